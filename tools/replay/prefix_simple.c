#include "tools/replay/prefix_simple.h"

#include "shm/policy/eviction_policy.h"
#include "shm/policy/number_heap.h"

#include <errno.h>
#include <stdlib.h>

enum {
	QUEUES = 2,       /* the policies other than S3-FIFO use only the first one */
	SMALL_SHARE = 10, /* the small queue has capacity / SMALL_SHARE nodes; the other nodes are the main queue */
	USES_MAX = 3,     /* uses that S3-FIFO counts */
};

enum { QUEUE_SMALL, QUEUE_MAIN };

struct past {
	uint64_t used; /* time of the last use, or of the eviction from the small queue; 0: none */
	uint32_t uses;
	bool evicted; /* a member of `evicted` */
};

struct place {
	uint64_t order; /* position in the queue, lowest first */
	uint32_t uses;  /* S3-FIFO: since the last look */
	uint32_t queue;
};

struct simple {
	struct number_heap candidates[QUEUES];
	struct place *places; /* [node_count] */
	struct past *past;    /* [keys] */
	/* remembered evicted keys by time of their last use; unused if their number is not limited */
	struct number_heap evicted;
	uint64_t evicted_most; /* UINT64_MAX: not limited */
	uint32_t capacity, small_count;
	uint64_t time, small_evictions;
	uint64_t floor; /* GDSF: value of the last evicted node */
};

static void simple_fini(struct eviction *eviction)
{
	struct simple *simple = eviction->state;

	if (!simple)
		return;
	for (int queue = 0; queue < QUEUES; queue++)
		number_heap_fini(&simple->candidates[queue]);
	number_heap_fini(&simple->evicted);
	free(simple->places);
	free(simple->past);
	free(simple);
	eviction->state = NULL;
}

static int simple_init(struct eviction *eviction)
{
	struct simple *simple = eviction->state = calloc(1, sizeof(*simple));

	if (!simple)
		return -ENOMEM;
	simple->places = calloc(eviction->node_count, sizeof(*simple->places));
	if (!simple->places)
		return -ENOMEM;
	for (int queue = 0; queue < QUEUES; queue++)
		if (number_heap_init(&simple->candidates[queue], eviction->node_count))
			return -ENOMEM;
	return 0;
}

int prefix_simple_begin(struct eviction *eviction, const struct eviction_policy *policy, uint32_t capacity,
	uint32_t keys, uint32_t history)
{
	struct simple *simple = eviction->state;

	if (policy->init != simple_init)
		return 0;
	simple->capacity = capacity;
	simple->evicted_most = history ? (uint64_t)history * capacity : UINT64_MAX;
	simple->past = calloc(keys, sizeof(*simple->past));
	if (!simple->past)
		return -ENOMEM;
	return history ? number_heap_init(&simple->evicted, keys) : 0;
}

static struct past *past_of(const struct eviction *eviction, uint32_t node)
{
	return &((const struct simple *)eviction->state)->past[eviction->nodes[node].key];
}

/* Record a use of the node's key. Return what was remembered before. */
static struct past past_use(struct eviction *eviction, uint32_t node)
{
	struct past *past = past_of(eviction, node), before = *past;

	if (past->evicted)
		number_heap_remove(&((struct simple *)eviction->state)->evicted, (uint32_t)eviction->nodes[node].key);
	*past = (struct past){.used = eviction->clock, .uses = past->uses + 1};
	return before;
}

/* Remember an evicted key. If there are too many, forget the one whose last use is the oldest. */
static void past_keep(struct eviction *eviction, uint32_t node)
{
	struct simple *simple = eviction->state;
	struct past *past = past_of(eviction, node);
	uint32_t oldest;

	if (simple->evicted_most == UINT64_MAX)
		return;
	past->evicted = true;
	number_heap_add(&simple->evicted, (uint32_t)eviction->nodes[node].key, past->used);
	if (simple->evicted.count <= simple->evicted_most)
		return;
	oldest = number_heap_lowest(&simple->evicted);
	number_heap_remove(&simple->evicted, oldest);
	simple->past[oldest] = (struct past){0};
}

static void simple_offered(struct eviction *eviction, uint32_t node)
{
	struct simple *simple = eviction->state;
	const struct place *place = &simple->places[node];

	number_heap_add(&simple->candidates[place->queue], node, place->order);
}

static void simple_withdrawn(struct eviction *eviction, uint32_t node)
{
	struct simple *simple = eviction->state;

	number_heap_remove(&simple->candidates[simple->places[node].queue], node);
}

static uint32_t simple_victim(struct eviction *eviction)
{
	return number_heap_lowest(&((const struct simple *)eviction->state)->candidates[0]);
}

static void simple_left(struct eviction *eviction, uint32_t node, bool evicted)
{
	if (evicted)
		past_keep(eviction, node);
}

/* ---- FIFO ---- */

static void fifo_inserted(struct eviction *eviction, uint32_t node)
{
	((struct simple *)eviction->state)->places[node].order = eviction->clock;
}

const struct eviction_policy prefix_fifo = {
	.name = "fifo",
	.init = simple_init,
	.fini = simple_fini,
	.inserted = fifo_inserted,
	.offered = simple_offered,
	.withdrawn = simple_withdrawn,
	.victim = simple_victim,
};

/* ---- LFU ---- */

/* The clock is less than 2^32: a trace has fewer blocks. */
static void lfu_inserted(struct eviction *eviction, uint32_t node)
{
	struct past before = past_use(eviction, node);

	((struct simple *)eviction->state)->places[node].order = (uint64_t)before.uses << 32 | eviction->clock;
}

static void lfu_touched(struct eviction *eviction, uint32_t node, uint64_t before)
{
	(void)before;
	lfu_inserted(eviction, node);
}

const struct eviction_policy prefix_lfu = {
	.name = "lfu",
	.init = simple_init,
	.fini = simple_fini,
	.inserted = lfu_inserted,
	.touched = lfu_touched,
	.offered = simple_offered,
	.withdrawn = simple_withdrawn,
	.victim = simple_victim,
	.left = simple_left,
};

/* ---- LRU-2 ---- */

static void lru2_inserted(struct eviction *eviction, uint32_t node)
{
	struct simple *simple = eviction->state;
	struct past before = past_use(eviction, node);

	simple->places[node].order = before.used ? before.used << 32 : eviction->clock;
}

static void lru2_touched(struct eviction *eviction, uint32_t node, uint64_t before)
{
	(void)before;
	lru2_inserted(eviction, node);
}

const struct eviction_policy prefix_lru2 = {
	.name = "lru2",
	.init = simple_init,
	.fini = simple_fini,
	.inserted = lru2_inserted,
	.touched = lru2_touched,
	.offered = simple_offered,
	.withdrawn = simple_withdrawn,
	.victim = simple_victim,
	.left = simple_left,
};

/* ---- GDSF ---- */

static void gdsf_inserted(struct eviction *eviction, uint32_t node)
{
	struct simple *simple = eviction->state;

	simple->places[node].order = (simple->floor + past_use(eviction, node).uses + 1) << 32 | eviction->clock;
}

static void gdsf_touched(struct eviction *eviction, uint32_t node, uint64_t before)
{
	(void)before;
	gdsf_inserted(eviction, node);
}

static void gdsf_left(struct eviction *eviction, uint32_t node, bool evicted)
{
	struct simple *simple = eviction->state;
	uint64_t value = simple->places[node].order >> 32;

	if (evicted && value > simple->floor)
		simple->floor = value;
	simple_left(eviction, node, evicted);
}

const struct eviction_policy prefix_gdsf = {
	.name = "gdsf",
	.init = simple_init,
	.fini = simple_fini,
	.inserted = gdsf_inserted,
	.touched = gdsf_touched,
	.offered = simple_offered,
	.withdrawn = simple_withdrawn,
	.victim = simple_victim,
	.left = gdsf_left,
};

/* ---- S3-FIFO ---- */

/* A key is remembered until as many others as the main queue has nodes were evicted from the small queue. */
static bool s3fifo_remembers(const struct simple *simple, const struct past *past)
{
	return past->used && simple->small_evictions - past->used < simple->capacity - simple->capacity / SMALL_SHARE;
}

static void s3fifo_inserted(struct eviction *eviction, uint32_t node)
{
	struct simple *simple = eviction->state;
	struct past *past = past_of(eviction, node);
	bool again = s3fifo_remembers(simple, past);

	past->used = 0;
	simple->places[node] = (struct place){.order = ++simple->time, .queue = again ? QUEUE_MAIN : QUEUE_SMALL};
	simple->small_count += !again;
}

static void s3fifo_touched(struct eviction *eviction, uint32_t node, uint64_t before)
{
	struct place *place = &((struct simple *)eviction->state)->places[node];

	(void)before;
	place->uses += place->uses < USES_MAX;
}

/* Move a candidate to the end of the main queue. */
static void s3fifo_keep(struct eviction *eviction, uint32_t node, uint32_t uses)
{
	struct simple *simple = eviction->state;
	struct place *place = &simple->places[node];

	simple_withdrawn(eviction, node);
	simple->small_count -= place->queue == QUEUE_SMALL;
	*place = (struct place){.order = ++simple->time, .uses = uses, .queue = QUEUE_MAIN};
	simple_offered(eviction, node);
}

static uint32_t s3fifo_victim(struct eviction *eviction)
{
	struct simple *simple = eviction->state;
	const struct number_heap *small = &simple->candidates[QUEUE_SMALL], *rest = &simple->candidates[QUEUE_MAIN];

	for (;;) {
		bool from_small =
			small->count && (simple->small_count > simple->capacity / SMALL_SHARE || rest->count == 0);
		uint32_t node = number_heap_lowest(from_small ? small : rest), uses = simple->places[node].uses;

		if (uses == 0)
			return node;
		s3fifo_keep(eviction, node, from_small ? 0 : uses - 1);
	}
}

static void s3fifo_left(struct eviction *eviction, uint32_t node, bool evicted)
{
	struct simple *simple = eviction->state;

	if (simple->places[node].queue != QUEUE_SMALL)
		return;
	simple->small_count--;
	if (evicted)
		past_of(eviction, node)->used = ++simple->small_evictions;
}

const struct eviction_policy prefix_s3fifo = {
	.name = "s3fifo",
	.init = simple_init,
	.fini = simple_fini,
	.inserted = s3fifo_inserted,
	.touched = s3fifo_touched,
	.offered = simple_offered,
	.withdrawn = simple_withdrawn,
	.victim = s3fifo_victim,
	.left = s3fifo_left,
};
