#include "tools/replay/prefix_play.h"

#include "shm/monotonic.h"
#include "tools/lib/text.h"
#include "tools/replay/prefix_optimum.h"
#include "tools/replay/prefix_simple.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	LOOK_REQUESTS = 256,      /* requests between two checks of the clock and of signals */
	PROGRESS_MS = 250,        /* interval of the progress line on a terminal, where it is rewritten */
	PROGRESS_PLAIN_MS = 2000, /* elsewhere, where each is a new line */
};

struct play {
	const struct prefix_plan *plan;
	struct prefix_result *result;
	struct eviction *eviction;
	uint32_t *kept;          /* [node_count] the cache's node for each node of the trace; EVICTION_NONE: not
				  * cached */
	uint32_t *next;          /* [node_count] the next request that needs the node; may be NULL */
	uint32_t *next_of_block; /* [block_count] value of `next` for the block's node after its request */
	uint64_t begin_ns, shown_ns;
	bool terminal, shown;
};

double prefix_rate(const struct prefix_result *result)
{
	return result->blocks ? (double)result->hits / (double)result->blocks : 0;
}

/* ---- next uses ---- */

static int play_foresee(struct play *play)
{
	const struct prefix_trace *trace = play->plan->trace;

	play->next = malloc(trace->node_count * sizeof(*play->next));
	play->next_of_block = malloc(trace->block_count * sizeof(*play->next_of_block));
	if (!play->next || !play->next_of_block)
		return -ENOMEM;
	memset(play->next, 0xff, trace->node_count * sizeof(*play->next));
	for (uint32_t r = trace->request_count; r-- > 0;)
		for (uint32_t i = trace->requests[r].first; i < trace->requests[r].first + trace->requests[r].count;
			i++) {
			play->next_of_block[i] = play->next[trace->blocks[i]];
			play->next[trace->blocks[i]] = r;
		}
	prefix_optimum_foresee(play->eviction, play->next);
	return 0;
}

/* ---- requests ---- */

/* There is always room: the nodes suffice for a full cache and the blocks of the longest request. */
static void block_insert(struct play *play, uint32_t parent, uint32_t block)
{
	if (eviction_insert(play->eviction, parent, block, &play->kept[block]))
		abort();
}

static uint32_t request_play(struct play *play, const struct prefix_request *request)
{
	const struct prefix_trace *trace = play->plan->trace;
	uint32_t parent = EVICTION_NONE, hits = 0;
	bool found = true;

	for (uint32_t i = request->first; i < request->first + request->count; i++) {
		uint32_t block = trace->blocks[i];

		if (play->next)
			play->next[block] = play->next_of_block[i];
		found = found && play->kept[block] != EVICTION_NONE;
		hits += found;
		if (found)
			eviction_touch(play->eviction, play->kept[block]);
		else
			block_insert(play, parent, block);
		parent = play->kept[block];
	}
	return hits;
}

static void play_shrink(struct play *play)
{
	struct eviction_stats stats;

	for (eviction_get_stats(play->eviction, &stats); stats.kept > play->plan->capacity; stats.kept--) {
		uint32_t victim = eviction_victim(play->eviction);

		play->kept[eviction_key(play->eviction, victim)] = EVICTION_NONE;
		eviction_evict(play->eviction, victim);
	}
}

static uint32_t window_of(const struct prefix_trace *trace, const struct prefix_request *request)
{
	uint64_t span_ms = trace->requests[trace->request_count - 1].time_ms + 1;

	return (uint32_t)((double)request->time_ms / (double)span_ms * PREFIX_WINDOWS);
}

static void progress_show(struct play *play, uint32_t request)
{
	const struct prefix_plan *plan = play->plan;
	char now[TEXT_BYTES], all[TEXT_BYTES], blocks[TEXT_BYTES];

	fprintf(stderr, "%s%s, %s blocks: %s of %s requests, %.0f %%%s", play->terminal ? "\r\033[K" : "",
		eviction_policy_name(plan->policy), text_count(blocks, plan->capacity), text_count(now, request),
		text_count(all, plan->trace->request_count), 100.0 * request / plan->trace->request_count,
		play->terminal ? "" : "\n");
	play->shown = true;
}

static int play_look(struct play *play, uint32_t request)
{
	uint64_t now_ns;

	if (*play->plan->interrupted)
		return -EINTR;
	if (!play->plan->progress)
		return 0;
	now_ns = monotonic_ns();
	if (now_ns - play->shown_ns >= (play->terminal ? PROGRESS_MS : PROGRESS_PLAIN_MS) * UINT64_C(1000000)) {
		progress_show(play, request);
		play->shown_ns = now_ns;
	}
	return 0;
}

static int requests_play(struct play *play)
{
	const struct prefix_trace *trace = play->plan->trace;
	struct prefix_result *result = play->result;
	int error = 0;

	for (uint32_t r = 0; r < trace->request_count && !error; r++) {
		const struct prefix_request *request = &trace->requests[r];
		uint32_t hits = request_play(play, request), window = window_of(trace, request);

		play_shrink(play);
		result->hits += hits;
		result->blocks += request->count;
		result->window_hits[window] += hits;
		result->window_blocks[window] += request->count;
		if (r % LOOK_REQUESTS == 0)
			error = play_look(play, r);
	}
	return error;
}

int prefix_play(const struct prefix_plan *plan, struct prefix_result *result)
{
	struct play play = {.plan = plan, .result = result, .terminal = isatty(STDERR_FILENO)};
	const struct prefix_trace *trace = plan->trace;
	int error;

	memset(result, 0, sizeof(*result));
	result->policy = plan->policy;
	result->capacity = plan->capacity;
	if (plan->capacity > PREFIX_CAPACITY_MAX || trace->longest > EVICTION_NODES_MAX - plan->capacity)
		return -EFBIG;
	error = eviction_create(plan->policy, plan->capacity + trace->longest, &play.eviction);
	if (error)
		return error;
	play.kept = malloc(trace->node_count * sizeof(*play.kept));
	if (play.kept)
		memset(play.kept, 0xff, trace->node_count * sizeof(*play.kept));
	error = play.kept
		? prefix_simple_begin(play.eviction, plan->policy, plan->capacity, trace->node_count, plan->history)
		: -ENOMEM;
	if (!error && plan->policy == &prefix_optimum)
		error = play_foresee(&play);
	play.begin_ns = play.shown_ns = monotonic_ns();
	if (!error)
		error = requests_play(&play);
	result->duration_ns = monotonic_ns() - play.begin_ns;
	eviction_get_stats(play.eviction, &result->stats);
	if (play.shown && play.terminal)
		fputs("\r\033[K", stderr);
	free(play.next);
	free(play.next_of_block);
	free(play.kept);
	eviction_destroy(play.eviction);
	return error;
}
