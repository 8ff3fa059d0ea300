/*
 * player.h - a trace of allocations on an allocator: one thread for each of the trace's, one stream for each of its
 * streams.
 *
 * A thread does its events in their order. A free waits for its malloc, also of another thread; nothing else is
 * ordered between
 * threads, unless the trace is played in order, each event after the one above it. Since an event waits only for
 * events that
 * precede it, no thread waits forever.
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
	double speed;        /* factor by which it is faster than recorded; 0: as fast as possible */
	uint64_t fill_bytes; /* written to each allocation, on its stream */
	bool in_order;
	bool progress;                      /* on standard error */
	struct samples *samples;            /* receives the regions; may be NULL */
	volatile sig_atomic_t *interrupted; /* set by a signal */
};

enum { PLAY_ERROR_BYTES = 256 };

struct play_result {
	uint64_t duration_ns;
	uint64_t mallocs, frees;                  /* that succeeded */
	uint64_t no_space, over_quota, no_memory; /* mallocs that failed, by what they returned */
	uint64_t peak_live;                       /* bytes, as asked for */
	uint64_t peak_mapped;                     /* bytes that the allocator held */
	struct allocator_totals end;              /* behind the last event */
	uint64_t calls[GPU_CALL_KINDS];
	uint64_t calls_total;
	struct latencies malloc_ns, free_ns;
	char error[PLAY_ERROR_BYTES]; /* of one that ended it */
};

/*
 * play() - all of it; what lives behind the last event is freed then, and not counted.
 * Return: 0; -EINTR; or the error that ended it, described in result->error.
 */
int play(const struct play_plan *plan, struct play_result *result);

#endif
