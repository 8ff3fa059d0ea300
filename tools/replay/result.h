/*
 * result.h - the results of a replay: a table, and JSON.
 */
#ifndef GPOOL_REPLAY_RESULT_H
#define GPOOL_REPLAY_RESULT_H

#include "tools/replay/player.h"

/* The replay on one allocator. */
struct result {
	const struct allocator_ops *allocator;
	struct play_result play;
};

/* The parameters of all replays. */
struct result_frame {
	const char *trace_name;
	const struct malloc_trace *trace;
	uint64_t pool_bytes, page_bytes;
	bool in_order;
	double speed;
	uint64_t fill_bytes;
	const struct allocator_ops *absent; /* an allocator that was requested implicitly but is not available on
					     * this device; NULL: none */
};

void result_print(const struct result_frame *frame, const struct result *results, int count);
void result_json(const struct result_frame *frame, const struct result *results, int count);

#endif
