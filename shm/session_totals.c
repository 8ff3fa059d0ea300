#include "shm/session_totals.h"

static uint64_t look(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static void add(_Atomic uint64_t *total, const _Atomic uint64_t *counter, uint64_t most)
{
	uint64_t count = look(counter);

	if (count && count <= most)
		atomic_store_explicit(total, look(total) + count, memory_order_relaxed);
}

void session_totals_add(struct session_totals *totals, const struct session_stats *stats, uint64_t age_ns)
{
	uint64_t of_all = age_ns <= UINT64_MAX / SESSION_STAT_SLOTS ? age_ns * SESSION_STAT_SLOTS : UINT64_MAX;

	for (int i = 0; i < SESSION_STAT_SLOTS; i++) {
		const struct thread_stats *thread = &stats->threads[i];

#define COUNTER(name) add(&totals->name, &thread->name, age_ns);
		SESSION_COUNTERS(COUNTER)
#undef COUNTER
	}
	for (int i = 0; i < SESSION_HISTOGRAM; i++) {
		add(&totals->allocation_ns[i], &stats->allocation_ns[i], of_all);
		add(&totals->refill_ns[i], &stats->refill_ns[i], of_all);
	}
}

void session_totals_copy(struct session_totals *to, const struct session_totals *from)
{
#define COUNTER(name) atomic_store_explicit(&to->name, look(&from->name), memory_order_relaxed);
	SESSION_COUNTERS(COUNTER)
#undef COUNTER
	for (int i = 0; i < SESSION_HISTOGRAM; i++) {
		atomic_store_explicit(&to->allocation_ns[i], look(&from->allocation_ns[i]), memory_order_relaxed);
		atomic_store_explicit(&to->refill_ns[i], look(&from->refill_ns[i]), memory_order_relaxed);
	}
}
