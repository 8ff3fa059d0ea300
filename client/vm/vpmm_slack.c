/*
 * vpmm_slack.c - how many new pages may be taken before free pages are mapped elsewhere. See vpmm.h.
 *
 * Mapping free pages elsewhere costs two driver calls for each page, and again later when a region of the old size is
 * needed. New pages cost memory. The allocator therefore takes new pages as long as it holds at most (1 + slack) times
 * the peak of allocated pages, and only pages that are free in the pool, so that no session loses memory. The slack is
 * in effect only while the pool's pressure is low; otherwise the background thread returns what exceeds the peak.
 *
 * New pages require an agent that answers. While the agent is stopped, a process therefore uses its free pages.
 */
#include "client/vm/vpmm.h"

enum {
	AGENT_LATE_MS = 2000, /* chosen: the pool's clock is at most 100 ms late while the agent runs */
	/* chosen: at its quota, a process sends at most one request per second that is refused */
	REFUSED_NS = 1000000000,
};

uint32_t vpmm_slack_percent(const struct vpmm *vpmm)
{
	const struct pool_header *header = vpmm->pool->header;

	if (atomic_load_explicit(&header->waiters, memory_order_relaxed) ||
		atomic_load_explicit(&header->pressure, memory_order_relaxed) != POOL_PRESSURE_LOW)
		return 0;
	return (uint32_t)vpmm->options.slack_percent;
}

uint64_t vpmm_slack_most(const struct vpmm *vpmm, uint32_t percent, uint64_t live)
{
	uint64_t peak = live > vpmm->live_peak ? live : vpmm->live_peak;

	return percent ? peak + peak * percent / 100 : 0;
}

uint64_t vpmm_held(const struct vpmm *vpmm)
{
	const struct region_set *set = &vpmm->set;

	return set->pages[VM_ALLOCATED] + set->pages[VM_FREE] - set->reclaimable;
}

uint32_t vpmm_slack(const struct vpmm *vpmm, uint32_t count)
{
	uint32_t percent = vpmm_slack_percent(vpmm);
	uint64_t now = monotonic_ns(), most, held = vpmm_held(vpmm);
	uint32_t late_ms = (uint32_t)(now / 1000000) - pool_clock(vpmm->pool);

	if (!percent || now < vpmm->slack_refused_ns || (int32_t)late_ms > AGENT_LATE_MS)
		return 0;
	most = vpmm_slack_most(vpmm, percent, vpmm->set.pages[VM_ALLOCATED] + count);
	if (held >= most)
		return 0;
	return most - held < count ? (uint32_t)(most - held) : count;
}

void vpmm_slack_refused(struct vpmm *vpmm)
{
	vpmm->slack_refused_ns = monotonic_ns() + REFUSED_NS;
}

void vpmm_slack_shrink(struct vpmm *vpmm)
{
	const struct region_set *set = &vpmm->set;
	uint64_t live = set->pages[VM_ALLOCATED], keep = vpmm->live_peak > live ? vpmm->live_peak - live : 0;

	if (!vpmm->options.slack_percent || vpmm_slack_percent(vpmm) || set->available - set->reclaimable <= keep)
		return;
	vpmm_fences_record(vpmm, VM_SLOTS);
	region_sweep(&vpmm->set);
	vpmm_park(vpmm, keep);
}
