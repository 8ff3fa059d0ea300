/* vpmm_stats.c - totals of the stream-ordered allocator. See vpmm.h. */
#include "client/vm/vpmm.h"

#include "client/core/last_error.h"

#include <string.h>

static void totals_fill(const struct vpmm *vpmm, struct gpool_vm_stats *totals)
{
	const struct region_set *set = &vpmm->set;
	uint64_t page_bytes = vpmm->page_bytes;

	totals->page_bytes = vpmm->options.page_bytes;
	totals->live_bytes = set->pages[VM_ALLOCATED] * page_bytes;
	totals->reusable_bytes = set->pages[VM_FREE] * page_bytes;
	totals->hole_bytes = set->pages[VM_HOLE] * page_bytes;
	totals->pending_unmap_bytes = set->pages[VM_PENDING_UNMAP] * page_bytes;
	totals->mapped_bytes = totals->live_bytes + totals->reusable_bytes + totals->pending_unmap_bytes;
	totals->reserved_bytes = totals->mapped_bytes + totals->hole_bytes;
	totals->reclaimable_bytes = set->reclaimable * page_bytes;
	totals->slack_percent = vpmm_slack_percent(vpmm);
	totals->live_peak_bytes = vpmm->live_peak * page_bytes;
	totals->live_regions = set->counts[VM_ALLOCATED];
	totals->reusable_regions = set->counts[VM_FREE];
	totals->hole_regions = set->counts[VM_HOLE];
	totals->pending_unmap_regions = set->counts[VM_PENDING_UNMAP];
}

int gpool_vm_stats(struct gpool *pool, struct gpool_vm_stats *totals)
{
	struct gpool_vm_stats filled = {.size = totals->size};
	struct vpmm *vpmm;

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	if (filled.size < sizeof(filled.size))
		return fail_size(filled.size);
	vpmm = pool->vpmm;
	if (atomic_load_explicit(&vpmm->started, memory_order_acquire)) {
		vpmm_lock(vpmm);
		filled = vpmm->counters;
		totals_fill(vpmm, &filled);
		vpmm_unlock(vpmm);
		filled.size = totals->size;
		vpmm_small_totals(vpmm, &filled);
		filled.records_lost = vpmm->record ? vpmm_record_lost(vpmm->record) : 0;
	}
	if (filled.size > sizeof(filled))
		memset((char *)totals + sizeof(filled), 0, filled.size - sizeof(filled));
	memcpy(totals, &filled, filled.size < sizeof(filled) ? filled.size : sizeof(filled));
	return 0;
}
