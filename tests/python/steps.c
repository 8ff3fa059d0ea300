/* steps.c - the calls that an engine makes in each step, in C; steps.py makes the same calls in Python. */
#include <stdint.h>
#include <time.h>

#include "gpool.h"

enum { CALLS = 16 };

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Make the call of a step CALLS times, and add the time of one to `ns`. */
#define STEP(call) \
	do { \
		uint64_t start = now(); \
		for (uint32_t i = 0; i < CALLS; i++) \
			errors |= (call) < 0; \
		ns[step++] = (double)(now() - start) / CALLS; \
	} while (0)

GPOOL_API int steps(struct gpool *pool, struct gpool_range *range, uint32_t stream, struct gpool_kv *kv, double *ns);

/* One round: `ns` receives the nanoseconds of a call of each step, in the order of steps.py. Return 0, or 1: a call has
 * failed. */
int steps(struct gpool *pool, struct gpool_range *range, uint32_t stream, struct gpool_kv *kv, double *ns)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_block blocks[CALLS], *block = &blocks[0];
	struct gpool_fence fences[CALLS];
	uint64_t sequences[CALLS], children[CALLS], slot;
	const int32_t *table;
	uint32_t blocks_of_table;
	uint8_t kept[CALLS];
	int errors = 0, step = 0;

	STEP(gpool_alloc(pool, 1, NULL, &blocks[i]));
	STEP(gpool_pin(pool, block));
	STEP(gpool_unpin(pool, block));
	STEP(gpool_free(pool, &blocks[i]));
	STEP(gpool_range_commit(range, i, 1, 0));
	STEP(gpool_range_offer(range, i, 1, GPOOL_FENCE_NONE));
	STEP(gpool_range_reclaim(range, i, 1, &kept[i]));
	STEP(gpool_range_decommit(range, i, 1, GPOOL_FENCE_NONE));
	STEP(gpool_fence_record(pool, stream, &fences[i]));
	STEP(gpool_fence_signal(pool, fences[i]));
	STEP(gpool_fence_done(pool, fences[i]));
	STEP(gpool_fence_wait(pool, fences[i], -1));
	request.tokens = 16 * 8;
	STEP(gpool_kv_allocate(kv, &request, &sequences[i]));
	STEP(gpool_kv_append(kv, sequences[i], 8, &slot));
	STEP(gpool_kv_append(kv, sequences[i], 1, &slot));
	STEP(gpool_kv_table(kv, sequences[i], &table, &blocks_of_table));
	STEP(gpool_kv_fork(kv, sequences[i], &children[i]));
	STEP(gpool_kv_free(kv, children[i]));
	for (uint32_t i = 0; i < CALLS; i++)
		errors |= gpool_kv_free(kv, sequences[i]) < 0;
	return errors;
}
