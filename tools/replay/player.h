/*
 * player.h - replay a trace of allocations on an allocator: with one thread for each of the trace's threads, and one
 * stream for each of its streams.
 *
 * A thread executes its events in order. A free waits for its malloc, also that of another thread; otherwise there is
 * no order between threads, unless the trace is played in order, each event after the preceding one. Since an event
 * waits only for preceding events, no thread waits forever.
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
	bool progress;                      /* print progress on standard error */
	struct samples *samples;            /* receives the regions; may be NULL */
	volatile sig_atomic_t *interrupted; /* set by a signal */
};

enum { PLAY_ERROR_BYTES = 256 };

struct play_result {
	uint64_t duration_ns;
	uint64_t mallocs, frees;                  /* successful ones */
	uint64_t no_space, over_quota, no_memory; /* failed mallocs, by their error */
	uint64_t peak_live;                       /* bytes, as asked for */
	uint64_t peak_mapped;                     /* maximum of bytes that the allocator held */
	struct allocator_totals end;              /* after the last event */
	uint64_t calls[GPU_CALL_KINDS];
	uint64_t calls_total;
	struct latencies malloc_ns, free_ns;
	char error[PLAY_ERROR_BYTES]; /* the error that ended the replay */
};

/*
 * play() - replay the trace; allocations that remain after the last event are then freed, and not counted.
 *
 * Return: 0; -EINTR; or the error that ended it, described in result->error.
 */
int play(const struct play_plan *plan, struct play_result *result);

#endif
