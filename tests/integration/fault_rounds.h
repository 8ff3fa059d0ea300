/*
 * fault_rounds.h - the work of a worker while system calls and driver calls fail; for test_faults.c.
 *
 * A round makes the public calls of a scenario, and returns the first error. It makes no assertions: a round in which a
 * call fails may end with any documented error.
 *
 *   base, store   all parts from `attach` to `objects` in parts[], one after the other
 *   a part        this part of parts[] alone
 *   adapters      loads of an adapter from its files, from the copy in host memory, and from the copy on disk
 *   sets          adapters in int8, in shared pages, from arrays, and with a scheduler
 *   domains       pages that move between trust domains, and back
 *   upgrade       the agent continues with the module's file
 *   exports       fences of another process, as events of the driver
 *   lost          the agent dies, and the keeper does not have the descriptors of a session
 */
#ifndef GPOOL_TESTS_FAULT_ROUNDS_H
#define GPOOL_TESTS_FAULT_ROUNDS_H

#include "tests/integration/fault_adapters.h"
#include "tests/integration/fault_base.h"
#include "tests/integration/fault_kernels.h"
#include "tests/integration/fault_memory.h"
#include "tests/integration/fault_processes.h"
#include "tests/integration/fault_streams.h"

#include <errno.h>
#include <string.h>

/* The parts of a session's work. */
static const struct {
	const char *name;
	int (*run)(struct gpool *pool, const struct gpool_options *session);
	bool in_base;
} parts[] = {
	{"attach", round_of_attach, true},
	{"blocks", round_of_blocks, true},
	{"growth", round_of_growth, true},
	{"spill", round_of_spilling, true},
	{"roles", round_of_roles, true},
	{"fences", round_of_fences, true},
	{"objects", round_of_objects, true},
	{"streams", round_of_streams, false},
	{"malloc", round_of_malloc, false},
	{"ranges", round_of_ranges, false},
	{"cache", round_of_cache, false},
	{"sleep", round_of_sleep, false},
	{"beats", round_of_beats, false},
	{"scattered", round_of_scattered, false},
	{"leaving", round_of_leaving, false},
	{"prefixes", round_of_prefixes, false},
	{"damage", round_of_damage, false},
	{"tokens", round_of_tokens, false},
	{"events", round_of_events, false},
	{"tidying", round_of_tidying, false},
	{"hanging", round_of_hanging, false},
	{"lost", round_of_lost, false},
	{"huge", round_of_attach, false},
	{"driver", round_of_driver, false},
	{"batches", round_of_batches, false},
	{"kernels", round_of_kernels, false},
	{"reports", round_of_reports, false},
	{"waits", round_of_waits, false},
	{"policies", round_of_policies, false},
};

static int round_of_parts(const char *scenario, const char *where, int timeout_ms)
{
	struct gpool_options options = options_of(where, timeout_ms);
	bool base = !strcmp(scenario, "base") || !strcmp(scenario, "store");
	bool found = false;
	struct gpool *pool;
	int error = gpool_open(&options, &pool);

	if (error && fault_of_worker()) {
		/* The process can try again. */
		if (gpool_open(&options, &pool))
			return -EBADMSG;
		gpool_close(pool);
	}
	if (error)
		return error;
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts) && !error; i++)
		if (base ? parts[i].in_base : !strcmp(parts[i].name, scenario)) {
			error = parts[i].run(pool, &options);
			found = true;
		}
	gpool_close(pool);
	return found ? error : -EINVAL;
}

static int round_of(const char *scenario, const char *where, int timeout_ms)
{
	causes_prepare(scenario);
	if (!strcmp(scenario, "exports"))
		return round_of_exports(where, timeout_ms);
	if (!strcmp(scenario, "adapters"))
		return round_of_adapters(where, timeout_ms);
	if (!strcmp(scenario, "sets"))
		return round_of_sets(where, timeout_ms);
	if (!strcmp(scenario, "domains"))
		return round_of_domains(where, timeout_ms);
	if (!strcmp(scenario, "upgrade"))
		return round_of_upgrade(where, timeout_ms);
	return round_of_parts(scenario, where, timeout_ms);
}

#endif
