/*
 * bench_scaling.c - interference of two processes: gpool, compared with one shared reference count per page.
 *
 * Each turn measures every member alone and then both at the same time, so that other load of the machine affects all
 * three measurements.
 */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
	POOL_PAGES = 4096,
	BATCH = 64,
	PINS = 4, /* pins of each block between its allocation and its free */
	STEP = 4096,
};
#define TURN_NS UINT64_C(100000000)

static const char *const settings[] = {"lease.keep_pages=1024", NULL};

/* ---- gpool ---- */

struct member {
	struct gpool *pool;
	struct gpool_block blocks[BATCH];
};

static int member_open(void *context, unsigned member, void **state)
{
	const struct bench *bench = context;
	struct member *me = calloc(1, sizeof(*me));
	int error;

	(void)member;
	if (!me)
		return -ENOMEM;
	error = daemon_open(bench, 0, &me->pool);
	if (error)
		return bench_complain(bench, error, "cannot attach");
	*state = me;
	return 0;
}

static int64_t member_step(void *state)
{
	struct member *me = state;
	int error = 0;

	for (unsigned i = 0; i < BATCH && !error; i++) {
		error = gpool_alloc(me->pool, 1, NULL, &me->blocks[i]);
		if (error)
			return error;
	}
	for (unsigned pin = 0; pin < PINS; pin++)
		for (unsigned i = 0; i < BATCH; i++) {
			error |= gpool_pin(me->pool, &me->blocks[i]);
			error |= gpool_unpin(me->pool, &me->blocks[i]);
		}
	for (unsigned i = 0; i < BATCH; i++)
		error |= gpool_free(me->pool, &me->blocks[i]);
	return error ? -EIO : BATCH * (2 + 2 * PINS);
}

/* Open a member that allocates once and then only pins. */
static int pinner_open(void *context, unsigned member, void **state)
{
	int error = member_open(context, member, state);
	struct member *me = *state;

	for (unsigned i = 0; i < BATCH && !error; i++)
		error = gpool_alloc(me->pool, 1, NULL, &me->blocks[i]);
	return error;
}

static int64_t pinner_step(void *state)
{
	struct member *me = state;
	int error = 0;

	for (unsigned round = 0; round < STEP / BATCH; round++)
		for (unsigned i = 0; i < BATCH; i++) {
			error |= gpool_pin(me->pool, &me->blocks[i]);
			error |= gpool_unpin(me->pool, &me->blocks[i]);
		}
	return error ? -EIO : STEP;
}

static int race_ratio(struct bench *bench, struct crew *crew)
{
	double alone[2][CREW_MAX], both[CREW_MAX];
	int error = 0;

	for (unsigned run = 0; run < bench->runs && !error; run++) {
		for (unsigned member = 0; member < CREW_MAX && !error; member++)
			error = crew_race(crew, 1u << member, TURN_NS, alone[member]);
		if (!error)
			error = crew_race(crew, 3, TURN_NS, both);
		if (!error)
			bench_sample(bench, FIGURE_two_process_scaling,
				2 * (both[0] + both[1]) / (alone[0][0] + alone[1][1]));
	}
	return error;
}

/* Return nanoseconds per operation while both members work. */
static int race_cost(struct bench *bench, const struct crew_plan *plan, enum figure figure)
{
	struct crew *crew = NULL;
	double rates[CREW_MAX];
	int error;

	error = crew_start(plan, &crew);
	for (unsigned run = 0; run < bench->runs && !error; run++) {
		error = crew_race(crew, 3, TURN_NS, rates);
		if (!error)
			bench_sample(bench, figure, 2e9 / (rates[0] + rates[1]));
	}
	crew_stop(crew);
	return error;
}

int bench_scaling(struct bench *bench)
{
	struct crew_plan mixed = {.count = 2, .context = bench, .open = member_open, .step = member_step};
	struct crew_plan pins = {.count = 2, .context = bench, .open = pinner_open, .step = pinner_step};
	struct crew *crew = NULL;
	double warm_up[CREW_MAX];
	int error;

	error = daemon_start(bench, POOL_PAGES, settings);
	if (error)
		return error;
	error = crew_start(&mixed, &crew);
	if (!error)
		error = crew_race(crew, 3, TURN_NS, warm_up);
	if (!error)
		error = race_ratio(bench, crew);
	crew_stop(crew);
	if (!error)
		error = race_cost(bench, &pins, FIGURE_two_process_pin_unpin);
	if (error)
		bench_complain(bench, error, "the concurrent measurement failed");
	daemon_stop(bench);
	return error;
}

/* ---- the peer: a reference count per page in shared memory, and a page that both members use ---- */

static int count_open(void *context, unsigned member, void **state)
{
	(void)member;
	*state = context;
	return 0;
}

static void cas_add(_Atomic uint32_t *count, uint32_t add)
{
	uint32_t seen = atomic_load_explicit(count, memory_order_relaxed);

	while (!atomic_compare_exchange_weak(count, &seen, seen + add))
		;
}

static int64_t count_step_cas(void *state)
{
	_Atomic uint32_t *count = state;

	for (unsigned i = 0; i < STEP; i++) {
		cas_add(count, 1);
		cas_add(count, UINT32_MAX);
	}
	return STEP;
}

static int64_t count_step_add(void *state)
{
	_Atomic uint32_t *count = state;

	for (unsigned i = 0; i < STEP; i++) {
		atomic_fetch_add(count, 1);
		atomic_fetch_sub(count, 1);
	}
	return STEP;
}

int bench_shared_count(struct bench *bench)
{
	struct crew_plan plan = {.count = 2, .open = count_open, .step = count_step_cas};
	int error;

	plan.context = mmap(NULL, sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (plan.context == MAP_FAILED)
		return bench_complain(bench, -ENOMEM, "cannot map %zu bytes", sizeof(uint32_t));
	error = race_cost(bench, &plan, FIGURE_peer_cas_pin_unpin);
	plan.step = count_step_add;
	if (!error)
		error = race_cost(bench, &plan, FIGURE_peer_add_pin_unpin);
	munmap(plan.context, sizeof(uint32_t));
	return error;
}
