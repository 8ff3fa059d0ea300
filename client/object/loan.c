/* loan.c - loans: pins that are ended by code that does not use gpool; see client/gpool/object.h. */
#include "client/core/pool.h"

/* Unpin the block when the fence is signaled. If the unpin cannot be deferred, wait for the fence and then unpin. */
static void unpin_behind(const struct gpool_loan *loan, struct gpool_fence fence)
{
	int error = loan->object ? gpool_object_unpin_after(loan->object, fence)
				 : gpool_unpin_after(loan->pool, &loan->block, fence);

	if (error != -ENOMEM)
		return;
	gpool_fence_wait(loan->pool, fence, -1);
	if (loan->object)
		gpool_object_unpin(loan->object);
	else
		gpool_unpin(loan->pool, &loan->block);
}

void gpool_loan_end(void *behind)
{
	struct gpool_loan *loan = (struct gpool_loan *)behind - 1;
	struct gpool_fence fence = {0};

	/* If the stream was closed, its work is done, and the fence remains GPOOL_FENCE_NONE. */
	if (loan->stream)
		gpool_fence_record(loan->pool, loan->stream, &fence);
	if (loan->object || loan->block.page_count)
		unpin_behind(loan, fence);
	__atomic_store_n(&loan->ended, 1, __ATOMIC_RELEASE);
}
