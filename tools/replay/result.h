/* result.h - what came of a replay: a table for people, JSON for programs. */
#ifndef GPOOL_REPLAY_RESULT_H
#define GPOOL_REPLAY_RESULT_H

#include "tools/replay/player.h"

/* One allocator's play. */
struct result {
	const struct allocator_ops *allocator;
	struct play_result play;
};

/* What all of them had in common. */
struct result_frame {
	const char *trace_name;
	const struct malloc_trace *trace;
	uint64_t pool_bytes, page_bytes;
	bool in_order;
	double speed;
	uint64_t fill_bytes;
	const struct allocator_ops *absent; /* asked for among all, and not there on this device; NULL: none */
};

void result_print(const struct result_frame *frame, const struct result *results, int count);
void result_json(const struct result_frame *frame, const struct result *results, int count);

#endif
