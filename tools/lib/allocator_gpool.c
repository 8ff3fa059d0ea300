/*
 * allocator_gpool.c - gpool_malloc_async() as an allocator for replays. It reads the library's internal data, as tests
 * do.
 */
#include "tools/lib/allocator.h"

#include "client/core/pool.h"
#include "client/core/span.h"
#include "client/vm/vpmm.h"

#include <stdlib.h>

static int remap_open(struct gpool *pool, struct allocator **allocator)
{
	struct allocator *made = calloc(1, sizeof(*made));

	if (!made)
		return -ENOMEM;
	*made = (struct allocator){.ops = &gpool_ops, .pool = pool};
	*allocator = made;
	return 0;
}

/* Closing the session frees its allocations. */
static void remap_close(struct allocator *allocator)
{
	free(allocator);
}

static int remap_malloc(struct allocator *allocator, uint64_t bytes, uint32_t stream, uint64_t *address)
{
	return gpool_malloc_async(allocator->pool, bytes, stream, address);
}

static int remap_free(struct allocator *allocator, uint64_t address, uint32_t stream)
{
	return gpool_free_async(allocator->pool, address, stream);
}

/*
 * Count the pages that are unavailable to others: the allocator's own pages and those of small allocations, but not
 * reclaimable pages.
 */
static uint64_t remap_mapped(struct allocator *allocator)
{
	struct vpmm *vpmm = allocator->pool->vpmm;
	uint64_t pages = 0;

	if (atomic_load_explicit(&vpmm->started, memory_order_acquire)) {
		vpmm_lock(vpmm);
		pages = vpmm->set.pages[VM_ALLOCATED] + vpmm->set.pages[VM_FREE] - vpmm->set.reclaimable;
		vpmm_unlock(vpmm);
	}
	return pages * vpmm->page_bytes + span_pages(allocator->pool) * gpool_page_bytes(allocator->pool);
}

static void look(void *context, uint64_t address, uint64_t bytes, enum region_kind kind)
{
	struct allocator_totals *totals = context;

	(void)address;
	if (kind != REGION_FREE)
		return;
	totals->free += bytes;
	if (bytes > totals->largest_free)
		totals->largest_free = bytes;
}

static int remap_visit(struct allocator *allocator,
	void (*region)(void *context, uint64_t address, uint64_t bytes, enum region_kind kind), void *context)
{
	static const enum region_kind kinds[VM_KINDS] = {[VM_HOLE] = REGION_HOLE,
		[VM_FREE] = REGION_FREE,
		[VM_ALLOCATED] = REGION_ALLOCATED,
		[VM_PENDING_UNMAP] = REGION_PENDING_UNMAP};
	struct vpmm *vpmm = allocator->pool->vpmm;
	const struct region_chunk *chunk = NULL;

	if (!atomic_load_explicit(&vpmm->started, memory_order_acquire))
		return 0;
	vpmm_lock(vpmm);
	while ((chunk = region_chunk_next(&vpmm->set, chunk)))
		for (const struct vm_region *at = chunk->lowest; at; at = at->after)
			/* The rest of a reservation is a hole, but not between regions. */
			if (at->kind != VM_HOLE || at->after)
				region(context, region_address(&vpmm->set, at), at->count * vpmm->page_bytes,
					kinds[at->kind]);
	vpmm_unlock(vpmm);
	return 0;
}

static void remap_totals(struct allocator *allocator, struct allocator_totals *totals)
{
	struct gpool_vm_stats now = {.size = sizeof(now)};

	*totals = (struct allocator_totals){.mapped = remap_mapped(allocator)};
	if (gpool_vm_stats(allocator->pool, &now) == 0)
		totals->live = now.live_bytes + now.small_bytes;
	remap_visit(allocator, look, totals);
}

const struct allocator_ops gpool_ops = {
	.name = "gpool",
	.text = "gpool_malloc_async(), which maps free pages at new addresses",
	.open = remap_open,
	.close = remap_close,
	.malloc = remap_malloc,
	.free = remap_free,
	.mapped = remap_mapped,
	.totals = remap_totals,
	.visit = remap_visit,
};
