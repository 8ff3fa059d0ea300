/*
 * vpmm_offer.c - free regions whose pages the agent may take without a call of this process. See vpmm.h.
 *
 * The handles of a free region are held, so that the next allocation needs no claim. They are released shortly after
 * the last call, or at the latest some ticks after the free; each release takes effect once the fence of the region is
 * signaled. From then on other sessions can get the memory, even if this process sleeps, hangs or is stopped. The
 * region keeps its place in the sets. Before it is used again, its handles are claimed. Parts that the agent has taken
 * become a pending unmap, as with reclaimable pages (vpmm_idle.c).
 *
 * vpmm_chunk.tags contains the tags of the released handles, slot by slot. Since regions are joined and split, a region
 * may have both held and released handles. region->held and region->offered state which of them it may have.
 */
#include "client/vm/vpmm.h"
#include "shm/timeline.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- memory ---- */

static size_t tags_bytes(const struct vpmm_chunk *chunk)
{
	return chunk->space.slot_count * sizeof(*chunk->tags);
}

int vpmm_tags_open(struct vpmm_chunk *chunk)
{
	chunk->tags = mmap(
		NULL, tags_bytes(chunk), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (chunk->tags != MAP_FAILED)
		return 0;
	chunk->tags = NULL;
	return -ENOMEM;
}

void vpmm_tags_close(struct vpmm_chunk *chunk)
{
	if (chunk->tags)
		munmap(chunk->tags, tags_bytes(chunk));
}

/* ---- release handles ---- */

/* Get the fences of a free region. Return false if one of them is not recorded yet. */
static bool fences_of(const struct vm_region *region, uint64_t *fence, uint64_t *next)
{
	*fence = region->ready == VM_READY ? 0 : region->fence;
	*next = region->guarded ? region->next_fence : 0;
	return region->ready != VM_UNFENCED &&
		(!region->guarded || !is_stream_slot(region->next_slot) || region->next_fence);
}

static bool handle_behind(struct vpmm *vpmm, uint32_t page, uint64_t fence)
{
	return fence_signaled(&vpmm->pool->session, fence) || handle_fence(vpmm->pool, page, fence);
}

/* Release the held handles of a region. A handle stays held if no joint fence is free for it. */
static void region_release(struct vpmm *vpmm, struct vm_region *region, uint64_t fence, uint64_t next)
{
	const struct vm_space *space = vpmm_space(region);
	uint64_t *tags = vpmm_chunk_of(region)->tags;
	uint32_t first = vpmm_region_slot(vpmm, region), released = 0;

	region->held = false;
	for (uint32_t slot = first; slot < first + vpmm_region_slots(vpmm, region); slot++) {
		uint32_t page = space->pages[slot] - 1;

		if (tags[slot])
			continue;
		if (handle_behind(vpmm, page, fence) && handle_behind(vpmm, page, next)) {
			tags[slot] = handle_release(vpmm->pool, page);
			region->offered = true;
			released++;
		} else {
			region->held = true;
		}
	}
	handles_offered(vpmm->pool, released);
}

void vpmm_offer(struct vpmm *vpmm)
{
	const struct region_chunk *chunk = NULL;
	uint64_t fence, next;

	while ((chunk = region_chunk_next(&vpmm->set, chunk)))
		for (struct vm_region *region = chunk->lowest; region; region = region->after)
			if (region->kind == VM_FREE && !region->moving && region->held &&
				fences_of(region, &fence, &next))
				region_release(vpmm, region, fence, next);
}

/* ---- claim handles ---- */

uint32_t vpmm_claim(struct vpmm *vpmm, const struct vm_region *region, uint32_t *gone)
{
	const struct vm_space *space = vpmm_space(region);
	uint64_t *tags = vpmm_chunk_of(region)->tags;
	uint32_t first = vpmm_region_slot(vpmm, region), lost = 0, claimed = 0;

	for (uint32_t slot = first; slot < first + vpmm_region_slots(vpmm, region); slot++) {
		if (!tags[slot])
			continue;
		if (!handle_claim(vpmm->pool, space->pages[slot] - 1, tags[slot], &vpmm->take))
			gone[lost++] = slot;
		tags[slot] = 0;
		claimed++;
	}
	handles_offered(vpmm->pool, -claimed);
	return lost;
}

/* Take the regions with offered handles out of the sets, as moving regions. */
static void offered_take(struct region_set *set, const struct region_chunk *of, bool ready, struct region_list *list)
{
	const struct region_chunk *chunk = NULL;

	while ((chunk = region_chunk_next(set, chunk)))
		for (struct vm_region *region = chunk->lowest; region && (!of || of == chunk); region = region->after)
			if (region->kind == VM_FREE && !region->moving && region->offered &&
				(!ready || region->ready == VM_READY)) {
				region_carve(set, region, region->count);
				TAILQ_INSERT_TAIL(list, region, by_age);
			}
}

int vpmm_hold(struct vpmm_call *call, const struct region_chunk *chunk, bool ready)
{
	struct region_list offered = TAILQ_HEAD_INITIALIZER(offered);
	struct region_set *set = &call->vpmm->set;
	struct vm_region *region;
	int error = 0;

	/*
	 * vpmm_adopt() releases the lock. Meanwhile the background thread may offer regions, or another thread may find
	 * that offered regions are ready. Therefore, look again until a pass finds nothing.
	 */
	while (error != -ENOMEM) {
		offered_take(set, chunk, ready, &offered);
		if (TAILQ_EMPTY(&offered))
			return 0;
		while ((region = TAILQ_FIRST(&offered))) {
			TAILQ_REMOVE(&offered, region, by_age);
			/* With an error, vpmm_adopt() has put the region back. */
			if (error == -ENOMEM)
				region_put(set, region);
			else if (!(error = vpmm_adopt(call, region)))
				region_put(set, region);
		}
	}
	return error;
}
