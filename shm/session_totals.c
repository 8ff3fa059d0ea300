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

/* Return the largest valid counter to which all threads add. */
static uint64_t most_of_all(uint64_t age_ns)
{
	return age_ns <= UINT64_MAX / SESSION_STAT_SLOTS ? age_ns * SESSION_STAT_SLOTS : UINT64_MAX;
}

void session_totals_add(struct session_totals *totals, const struct session_stats *stats, uint64_t age_ns)
{
	uint64_t of_all = most_of_all(age_ns);

	for (int i = 0; i < SESSION_STAT_SLOTS; i++) {
		const struct thread_stats *thread = &stats->threads[i];

#define COUNTER(name) add(&totals->name, &thread->name, age_ns);
		SESSION_COUNTERS(COUNTER)
#undef COUNTER
	}
	for (int i = 0; i < SESSION_HISTOGRAM; i++) {
		for (int usage = 0; usage < BLOCK_USAGES; usage++)
			add(&totals->allocation_ns[i], &stats->allocation_ns[usage][i], of_all);
		add(&totals->refill_ns[i], &stats->refill_ns[i], of_all);
	}
}

static uint64_t valid(const _Atomic uint64_t *counter, uint64_t most)
{
	uint64_t count = look(counter);

	return count <= most ? count : 0;
}

struct usage_totals usage_totals_of(const struct session_stats *stats, uint64_t age_ns)
{
	struct usage_totals totals = {.hits = {0}};

	static_assert(BLOCK_USAGES > 1, "the first two usages are KV_CACHE and LORA_WEIGHT");
	for (int usage = 0; usage < BLOCK_USAGES; usage++)
		for (int i = 0; i < SESSION_HISTOGRAM; i++)
			totals.allocation_ns[usage][i] = valid(&stats->allocation_ns[usage][i], most_of_all(age_ns));
	for (int i = 0; i < SESSION_STAT_SLOTS; i++) {
		const struct thread_stats *thread = &stats->threads[i];

		totals.hits[0] += valid(&thread->prefix_hits, age_ns);
		totals.misses[0] += valid(&thread->prefix_misses, age_ns);
		totals.hits[1] += valid(&thread->adapter_hits, age_ns);
		totals.misses[1] += valid(&thread->adapter_misses, age_ns);
	}
	return totals;
}

static void usage_totals_sum(struct usage_totals *totals, const struct usage_totals *other, uint64_t sign)
{
	uint64_t *to = (uint64_t *)totals;
	const uint64_t *from = (const uint64_t *)other;

	for (size_t i = 0; i < sizeof(*totals) / sizeof(*to); i++)
		to[i] += sign * from[i];
}

void usage_totals_add(struct usage_totals *totals, const struct usage_totals *more)
{
	usage_totals_sum(totals, more, 1);
}

void usage_totals_subtract(struct usage_totals *totals, const struct usage_totals *less)
{
	usage_totals_sum(totals, less, UINT64_MAX);
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
