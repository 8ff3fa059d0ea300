/* region_show.c - show regions to tools (shm/region_table.h). See region_set.h. */
#include "client/vm/region_set.h"

void region_show(struct region_set *set, struct vm_region *region)
{
	static const enum region_row_state states[VM_KINDS] = {
		REGION_ROW_HOLE, REGION_ROW_FREE, REGION_ROW_ALLOCATED, REGION_ROW_PENDING_UNMAP};
	struct region_row row = {
		.address = region_address(set, region),
		.id = region->id,
		.fence = region->fence,
		.pages = region->count,
		.stream = region->slot == VM_RECLAIMABLE ? 0 : region->slot,
		.state = states[region->kind],
		.flags = (region->kind == VM_FREE && region->slot == VM_RECLAIMABLE ? (uint32_t)REGION_ROW_RECLAIMABLE
										    : 0) |
			(region->captured ? (uint32_t)REGION_ROW_CAPTURED : 0) |
			(region->moving ? (uint32_t)REGION_ROW_MOVING : 0),
	};

	if (set->writer)
		region_table_set(set->writer, &region->row, &row);
	set->changed = true;
}

void region_show_totals(struct region_set *set)
{
	uint64_t bytes = set->page_bytes;
	struct region_totals totals = {
		.live = set->pages[VM_ALLOCATED] * bytes,
		.reusable = set->pages[VM_FREE] * bytes,
		.reclaimable = set->reclaimable * bytes,
		.pending_unmap = set->pages[VM_PENDING_UNMAP] * bytes,
		.holes = set->pages[VM_HOLE] * bytes,
		.last_id = set->newest,
		.live_regions = set->counts[VM_ALLOCATED],
		.reusable_regions = set->counts[VM_FREE],
		.pending_unmap_regions = set->counts[VM_PENDING_UNMAP],
		.hole_regions = set->counts[VM_HOLE],
	};

	if (!set->changed || !set->writer)
		return;
	totals.mapped = totals.live + totals.reusable + totals.pending_unmap;
	totals.reserved = totals.mapped + totals.holes;
	region_table_totals(set->writer, &totals);
	set->changed = false;
}
