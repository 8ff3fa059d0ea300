/* loan.c - loans: pins that are ended by code that does not use gpool; see client/gpool/object.h. */
#include "client/core/interrupt.h"
#include "client/core/stream.h"

/*
 * Unpin the block when the fence is signaled. If the unpin cannot be deferred, wait for the fence and then unpin. If
 * the fence is never signaled, the pin ends with the process.
 */
static void unpin_behind(const struct gpool_loan *loan, struct gpool_fence fence)
{
	int error = loan->object ? gpool_object_unpin_after(loan->object, fence)
				 : gpool_unpin_after(loan->pool, &loan->block, fence);

	if (error != -ENOMEM)
		return;
	wait_pause(true); /* a check must not end the pin before the fence is signaled */
	error = gpool_fence_wait(loan->pool, fence, -1);
	wait_pause(false);
	if (error == -EIO)
		return;
	if (loan->object)
		gpool_object_unpin(loan->object);
	else
		gpool_unpin(loan->pool, &loan->block);
}

void gpool_loan_end(void *behind)
{
	struct gpool_loan *loan = (struct gpool_loan *)behind - 1;
	struct gpool_fence fence = {0};
	int error = loan->stream ? release_fence(loan->pool, loan->stream, &fence) : 0;

	/* -EINVAL: the stream was closed, so its work is done. */
	if (error && error != -EINVAL)
		error = stream_sync_all(loan->pool);
	if ((!error || error == -EINVAL) && (loan->object || loan->block.page_count))
		unpin_behind(loan, fence);
	__atomic_store_n(&loan->ended, 1, __ATOMIC_RELEASE);
}
