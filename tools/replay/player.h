/*
 * player.h - replay a trace of allocations on an allocator, with one thread for each thread of the trace and one stream
 * for each stream.
 *
 * A thread executes its events in order. A free waits for its malloc, even if another thread executes the malloc. There
 * is no other order between threads, unless the trace is played in order: then each event waits for the preceding
 * event. An event waits only for earlier events of the trace, so there are no deadlocks.
 */
#ifndef GPOOL_REPLAY_PLAYER_H
#define GPOOL_REPLAY_PLAYER_H

#include "cuda/gpu.h"
#include "tools/lib/allocator.h"
#include "tools/lib/malloc_trace.h"
#include "tools/replay/latencies.h"
#include "tools/replay/samples.h"

#include <signal.h>
#include <stdbool.h>

struct play_plan {
	const struct malloc_trace *trace;
	const struct allocator_ops *allocator;
	struct gpool *pool;
	double speed;        /* factor by which the replay is faster than the trace; 0: as fast as possible */
	uint64_t fill_bytes; /* written to each allocation that has a stream */
	bool in_order;
	bool progress;                      /* print progress on standard error */
	struct samples *samples;            /* receives the regions; may be NULL */
	volatile sig_atomic_t *interrupted; /* set by a signal */
};

enum { PLAY_ERROR_BYTES = 256 };

struct play_result {
	uint64_t duration_ns;
	uint64_t mallocs, frees;                  /* that succeeded */
	uint64_t no_space, over_quota, no_memory; /* failed mallocs, by error */
	uint64_t peak_live;                       /* bytes, as requested */
	uint64_t peak_mapped;                     /* maximum number of bytes that the allocator held */
	struct allocator_totals end;              /* after the last event */
	uint64_t calls[GPU_CALL_KINDS];
	uint64_t calls_total;
	struct latencies malloc_ns, free_ns;
	char error[PLAY_ERROR_BYTES]; /* the error that ended the replay */
};

/*
 * play() - replay the trace. Allocations that remain after the last event are then freed, without being counted.
 *
 * Return: 0; -EINTR; or the error that ended the replay, with a description in result->error.
 */
int play(const struct play_plan *plan, struct play_result *result);

#endif
