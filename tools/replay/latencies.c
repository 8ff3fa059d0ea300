/* latencies.c - see latencies.h. */
#include "tools/replay/latencies.h"

/*
 * Each value below 32 has its own bucket. For other values, the leading bit and the next five bits select the bucket.
 */
static uint32_t bucket_of(uint64_t value)
{
	uint32_t shift;

	if (value < 1u << LATENCIES_SUB_BITS)
		return (uint32_t)value;
	shift = 63u - (uint32_t)__builtin_clzll(value) - LATENCIES_SUB_BITS;
	return ((shift + 1) << LATENCIES_SUB_BITS) + (uint32_t)(value >> shift) - (1u << LATENCIES_SUB_BITS);
}

static uint64_t bucket_last(uint32_t bucket)
{
	uint32_t shift = bucket >> LATENCIES_SUB_BITS;
	uint64_t lead = bucket & ((1u << LATENCIES_SUB_BITS) - 1);

	if (shift == 0)
		return lead;
	shift--;
	return ((lead + (1u << LATENCIES_SUB_BITS) + 1) << shift) - 1;
}

void latencies_add(struct latencies *latencies, uint64_t value)
{
	latencies->count++;
	latencies->sum += value;
	if (value > latencies->most)
		latencies->most = value;
	latencies->buckets[bucket_of(value)]++;
}

void latencies_merge(struct latencies *latencies, const struct latencies *other)
{
	latencies->count += other->count;
	latencies->sum += other->sum;
	if (other->most > latencies->most)
		latencies->most = other->most;
	for (uint32_t i = 0; i < LATENCIES_BUCKETS; i++)
		latencies->buckets[i] += other->buckets[i];
}

uint64_t latencies_percentile(const struct latencies *latencies, double share)
{
	uint64_t wanted = (uint64_t)(share * (double)latencies->count + 0.5), seen = 0;

	if (wanted == 0)
		wanted = 1;
	for (uint32_t i = 0; i < LATENCIES_BUCKETS; i++) {
		seen += latencies->buckets[i];
		if (latencies->count && seen >= wanted)
			return bucket_last(i) < latencies->most ? bucket_last(i) : latencies->most;
	}
	return latencies->most;
}

double latencies_mean(const struct latencies *latencies)
{
	return latencies->count ? (double)latencies->sum / (double)latencies->count : 0;
}
