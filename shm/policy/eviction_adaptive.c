/*
 * eviction_adaptive.c - evict the candidate with the fewest expected touches per unit of time for which it would be
 * kept.
 *
 * Each node has a class and an age. The class depends on the number of touches, on the average time between them, on
 * whether the node ever had a child, and on whether its chain was left for another one. The class of a node that was
 * never touched also depends on the kind of the node below which it was inserted, and on the distance from that node.
 * The age is the number of steps of the clock since the last touch.
 *
 * For each class and age, the policy counts the time that nodes spent in it and the number of touches. Evicted nodes
 * continue to count as ghosts, because otherwise nothing would be learned about ages that no kept node reaches. Time
 * and touches yield the rate of touches at each age. From the rates, the policy computes the density of each class and
 * age: the number of touches per unit of time for which a node is kept, maximized over all durations. A node that is
 * unlikely to be touched soon but likely to be touched later is therefore kept. If not all such nodes fit, some of them
 * are kept.
 *
 * The unit of age is the size of the cache. Before anything is learned, the rates fall with age, which yields LRU. The
 * size of the cache is the number of nodes kept at an eviction. It is changed only if this number exceeds it or is less
 * than a quarter of it, because the capacity might not be a fixed number of nodes.
 *
 * Each class and age has a list of candidates. A candidate stays in the list of the age at which it was added until the
 * first visit after it has reached another age. The list with the lowest density is found with a bitmap of the nonempty
 * lists, ordered by density. Each insertion and touch also visits some nodes and ghosts to count their time.
 */
#include "shm/policy/bitmap.h"
#include "shm/policy/eviction_policy.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	AGES = 24,
	/* ages begin at 1/64 of the size of the cache, double every two steps, and end at 32 times that size */
	AGE_STEPS = 64,

	/* Classes. All except the last two exist twice: for nodes that never had a child, and for other nodes. */
	TOUCH_STEPS = 7, /* by number of touches: 1, 2, 3, 4.., 8.., 16.., 32.. */
	/* and by the average time between touches: less than 1/4, 1, 4, 16 times the size of the cache, or more */
	PAUSE_STEPS = 5,
	/*
	 * Untouched nodes are classified by their nearest touched ancestor: none, touched less than ORIGIN_SHARED
	 * times, or touched more often,
	 */
	ORIGINS = 3,
	/* and by the number of untouched nodes between it and the node: 0, 1.., 3.., 7.., 15.., 31.. */
	PLACE_STEPS = 6,
	ORIGIN_SHARED = 8, /* a node with at least this number of touches is probably shared */
	CLASS_TOUCHED = 2 * ORIGINS * PLACE_STEPS,
	CLASS_LEFT = CLASS_TOUCHED + 2 * TOUCH_STEPS * PAUSE_STEPS,
	CLASSES = CLASS_LEFT + 2, /* nodes whose chain was left: never touched, or touched */
	GROUPS = 2 * (ORIGINS + 1) + 1,
	LISTS = CLASSES * AGES,

	GHOST_WAYS = 8,      /* entries of a bucket; a key may be in any of them, and the oldest one is replaced */
	CLOCK_FAR = 1 << 30, /* maximum age; ages are stored in 32 bits */
};

/*
 * None of these values is tuned for a workload; small changes of them make no difference. A weight is the number of
 * touches after which observations count as much as the prior assumption: for all classes together, for a factor, for a
 * family of classes at each age, and for a class of a larger family at each age.
 */
/* factor applied to all counts at each turn: half is forgotten in 44 times the size of the cache */
static const float memory = 1 - 1 / 256.f;
static const float pooled_weight = 1, factor_weight = 10, family_weight = 2, class_weight = 10;
static const float first_guess = 0.3f; /* rate at an age x that age, before anything is learned */

enum {
	TURN_SHARE = 4, /* densities are computed once in size of the cache / TURN_SHARE clocks */
	TURN_LEAST = 256,
	NODES_SHARE = 8,  /* all nodes are visited once in size of the cache / NODES_SHARE clocks */
	GHOSTS_SHARE = 2, /* all ghosts are visited once in size of the cache / GHOSTS_SHARE clocks */

	LOG_STEPS = 8,

	SIZE_LEAST = 16,
	/* the size of the cache is reduced when fewer nodes than size / SIZE_SHARE are kept */
	SIZE_SHARE = 4,
};

struct entry {
	uint32_t seen;       /* clock up to which the node's time was counted */
	uint32_t prev, next; /* ring of a list; the heads of the lists follow the entries of the nodes */
	uint16_t list;
	uint8_t touches; /* at most 255 */
	uint8_t origin;  /* class of the parent, see ORIGINS */
	uint8_t place;   /* distance below that parent, at most 255 */
	uint8_t pause;   /* average logarithm of the time between touches, see logarithm() */
	bool grew, left, listed;
};

struct ghost {
	uint64_t key;
	uint32_t touched, seen;
	uint8_t kind, touches, pause;
	bool used, grew;
};

/* gpool/kv.h documents this size for GPOOL_KV_ADAPTIVE. */
static_assert(sizeof(struct eviction_node) + sizeof(struct entry) + EVICTION_GHOSTS * sizeof(struct ghost) <= 256,
	"memory of a node");

struct adaptive {
	struct entry *entries; /* [node_count + LISTS] */
	struct ghost *ghosts;  /* [buckets * GHOST_WAYS] */
	uint32_t size;         /* size of the cache, in nodes */
	uint32_t bucket_mask;
	uint32_t turn;           /* clocks between two computations of the densities */
	uint32_t turned;         /* clocks since the last computation */
	uint32_t age_shift;      /* the first age ends at 2 to the power of age_shift */
	uint32_t ages[AGES + 1]; /* begin of each age */
	uint32_t node_hand, ghost_hand;
	float time[CLASSES][AGES], touches[CLASSES][AGES]; /* counts, which decay (`memory`) */
	float density[LISTS];
	uint16_t rank[LISTS], by_rank[LISTS]; /* lists in the order of density, lowest first */
	struct bitmap occupied;               /* ranks of nonempty lists */
};

/* ---- ages and classes ---- */

static uint32_t power_of(uint32_t number)
{
	return 31 - (uint32_t)__builtin_clz(number);
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t age_of(const struct adaptive *adaptive, uint32_t clocks)
{
	uint32_t units = clocks >> adaptive->age_shift, power, age;

	if (units == 0)
		return 0;
	power = power_of(units);
	age = 1 + 2 * power + (clocks >> (adaptive->age_shift + power - 1) & 1);
	return least(age, AGES - 1);
}

static void ages_make(struct adaptive *adaptive)
{
	adaptive->age_shift = 1;
	while (adaptive->size / AGE_STEPS >> adaptive->age_shift)
		adaptive->age_shift++;
	for (uint32_t age = 1; age <= AGES; age++)
		adaptive->ages[age] = (age % 2 ? 2 : 3) << (adaptive->age_shift + (age - 1) / 2 - 1);
}

static uint32_t touch_step(uint32_t touches)
{
	return touches < 4 ? touches - 1 : least(power_of(touches) + 1, TOUCH_STEPS - 1);
}

/* Return the binary logarithm in units of 1/LOG_STEPS, interpolated linearly. */
static uint32_t logarithm(uint32_t number)
{
	uint32_t power = power_of(number);

	return power * LOG_STEPS + (uint32_t)((uint64_t)number * LOG_STEPS >> power) % LOG_STEPS;
}

/* Return the average after a touch that came `clocks` after the last touch. The last time counts half. */
static uint8_t pause_after(uint32_t touches, uint32_t pause, uint32_t clocks)
{
	uint32_t last = logarithm(clocks + 1);

	return (uint8_t)(touches ? (pause + last) / 2 : last);
}

static uint32_t pause_step(const struct adaptive *adaptive, uint32_t pause)
{
	uint32_t least_pause = logarithm(adaptive->size);

	least_pause -= least(least_pause, 4 * LOG_STEPS);
	return pause < least_pause ? 0 : least((pause - least_pause) / (2 * LOG_STEPS), PAUSE_STEPS - 1);
}

static uint32_t class_of(const struct adaptive *adaptive, const struct entry *entry)
{
	if (entry->left)
		return CLASS_LEFT + (entry->touches > 0);
	if (entry->touches)
		return CLASS_TOUCHED + (2 * touch_step(entry->touches) + entry->grew) * PAUSE_STEPS +
			pause_step(adaptive, entry->pause);
	return 2 * (entry->origin * PLACE_STEPS + least(power_of(entry->place + 1u), PLACE_STEPS - 1)) + entry->grew;
}

static uint32_t now_of(const struct eviction *eviction)
{
	return (uint32_t)eviction->clock;
}

static uint32_t node_clocks(const struct eviction *eviction, uint32_t node)
{
	uint64_t clocks = eviction->clock - eviction->nodes[node].touched;

	return clocks < CLOCK_FAR ? (uint32_t)clocks : CLOCK_FAR;
}

/* ---- counting ---- */

/* Add the time in which a node of this class went from age `from` to age `to`, both in clocks since its last touch. */
static void time_count(struct adaptive *adaptive, uint32_t kind, uint32_t from, uint32_t to)
{
	for (uint32_t age = age_of(adaptive, from); from < to; age++) {
		uint32_t end = age + 1 < AGES && adaptive->ages[age + 1] < to ? adaptive->ages[age + 1] : to;

		adaptive->time[kind][age] += (float)(end - from);
		from = end;
	}
}

static void node_count(struct eviction *eviction, uint32_t node)
{
	struct adaptive *adaptive = eviction->state;
	struct entry *entry = &adaptive->entries[node];
	uint32_t clocks = node_clocks(eviction, node), unseen = now_of(eviction) - entry->seen;

	time_count(adaptive, class_of(adaptive, entry), clocks - (unseen < clocks ? unseen : clocks), clocks);
	entry->seen = now_of(eviction);
}

static void ghost_count(const struct eviction *eviction, struct ghost *ghost)
{
	uint32_t now = now_of(eviction);

	time_count(eviction->state, ghost->kind, ghost->seen - ghost->touched, now - ghost->touched);
	ghost->seen = now;
}

static void touch_count(struct adaptive *adaptive, uint32_t kind, uint32_t clocks)
{
	adaptive->touches[kind][age_of(adaptive, clocks)]++;
}

/* ---- rates and densities ---- */

static float age_width(const struct adaptive *adaptive, uint32_t age)
{
	return age + 1 < AGES ? (float)(adaptive->ages[age + 1] - adaptive->ages[age])
			      : (float)adaptive->ages[AGES - 1];
}

/* Compute the rate of touches at each age, over all classes. */
static void rates_pool(const struct adaptive *adaptive, float rates[AGES])
{
	for (uint32_t age = 0; age < AGES; age++) {
		float guess = first_guess / ((float)adaptive->ages[age] + age_width(adaptive, age) / 2), touches = 0,
		      time = 0;

		for (uint32_t kind = 0; kind < CLASSES; kind++) {
			touches += adaptive->touches[kind][age];
			time += adaptive->time[kind][age];
		}
		rates[age] = (touches + pooled_weight) / (time + pooled_weight / guess);
	}
}

static bool class_is_touched(uint32_t kind)
{
	return kind >= CLASS_TOUCHED && kind < CLASS_LEFT;
}

/* Return the number of classes in the family that begins with this class: they differ only in the pause. */
static uint32_t family_size(uint32_t kind)
{
	return class_is_touched(kind) ? PAUSE_STEPS : 1;
}

/*
 * Return the group of a class: touched nodes, nodes of an origin, or nodes whose chain was left. Families of a group
 * are assumed to have equal factors until more is known.
 */
static uint32_t group_of(uint32_t kind)
{
	if (kind >= CLASS_LEFT)
		return GROUPS - 1;
	if (class_is_touched(kind))
		return 2 * ORIGINS + (kind - CLASS_TOUCHED) / PAUSE_STEPS % 2;
	return 2 * (kind / 2 / PLACE_STEPS) + kind % 2;
}

/* Observed touches, and those that rates let expect. The ratio of both is a factor. */
struct evidence {
	float touches, expected;
};

static void evidence_add(
	struct evidence *evidence, const float touches[AGES], const float time[AGES], const float rates[AGES])
{
	for (uint32_t age = 0; age < AGES; age++) {
		evidence->touches += touches[age];
		evidence->expected += time[age] * rates[age];
	}
}

static float factor_of(const struct evidence *evidence, float prior)
{
	return (evidence->touches + factor_weight) / (evidence->expected + factor_weight / prior);
}

/* Compute rates from counts. The prior assumption is that they are other rates multiplied by a factor. */
static void rates_make(const float touches[AGES], const float time[AGES], const float other[AGES], float prior,
	float weight, float rates[AGES])
{
	struct evidence evidence = {0};
	float factor;

	evidence_add(&evidence, touches, time, other);
	factor = factor_of(&evidence, prior);
	for (uint32_t age = 0; age < AGES; age++)
		rates[age] = (touches[age] + weight) / (time[age] + weight / (other[age] * factor));
}

/* Compute the density at each age: the maximum, over all durations, of touches per unit of time. */
static void densities(struct adaptive *adaptive, uint32_t kind, const float rates[AGES])
{
	for (uint32_t first = 0; first < AGES; first++) {
		float untouched = 1, touches = 0, time = 0, best = 0;

		for (uint32_t age = first; age < AGES; age++) {
			float width = age_width(adaptive, age), stay = 1 / (1 + rates[age] * width);

			touches += untouched * (1 - stay);
			time += untouched * width * stay;
			untouched *= stay;
			best = touches > best * time ? touches / time : best;
		}
		adaptive->density[kind * AGES + first] = best;
	}
}

/* Compute the densities of a family: of all its classes together first, then of each. */
static void family_learn(struct adaptive *adaptive, uint32_t first, const float pooled[AGES], float group)
{
	float touches[AGES] = {0}, time[AGES] = {0}, rates[AGES], own[AGES];
	uint32_t end = first + family_size(first);

	for (uint32_t kind = first; kind < end; kind++)
		for (uint32_t age = 0; age < AGES; age++) {
			touches[age] += adaptive->touches[kind][age];
			time[age] += adaptive->time[kind][age];
		}
	rates_make(touches, time, pooled, group, family_weight, rates);
	if (end == first + 1)
		densities(adaptive, first, rates);
	else
		for (uint32_t kind = first; kind < end; kind++) {
			rates_make(adaptive->touches[kind], adaptive->time[kind], rates, 1, class_weight, own);
			densities(adaptive, kind, own);
		}
}

static int compare_lists(const void *a, const void *b, void *context)
{
	const struct adaptive *adaptive = context;
	uint16_t x = *(const uint16_t *)a, y = *(const uint16_t *)b;

	if (adaptive->density[x] != adaptive->density[y])
		return adaptive->density[x] < adaptive->density[y] ? -1 : 1;
	return x % AGES != y % AGES ? y % AGES - x % AGES : x - y;
}

static bool list_is_empty(const struct adaptive *adaptive, uint32_t first, uint32_t list)
{
	return adaptive->entries[first + list].next == first + list;
}

static void ranks_make(struct eviction *eviction)
{
	struct adaptive *adaptive = eviction->state;

	for (uint32_t list = 0; list < LISTS; list++) {
		if (bitmap_has(&adaptive->occupied, adaptive->rank[list]))
			bitmap_remove(&adaptive->occupied, adaptive->rank[list]);
		adaptive->by_rank[list] = (uint16_t)list;
	}
	qsort_r(adaptive->by_rank, LISTS, sizeof(adaptive->by_rank[0]), compare_lists, adaptive);
	for (uint32_t rank = 0; rank < LISTS; rank++) {
		uint16_t list = adaptive->by_rank[rank];

		adaptive->rank[list] = (uint16_t)rank;
		if (!list_is_empty(adaptive, eviction->node_count, list))
			bitmap_add(&adaptive->occupied, rank);
	}
}

static void learn(struct eviction *eviction)
{
	struct adaptive *adaptive = eviction->state;
	struct evidence groups[GROUPS] = {0};
	float pooled[AGES];

	rates_pool(adaptive, pooled);
	for (uint32_t kind = 0; kind < CLASSES; kind++)
		evidence_add(&groups[group_of(kind)], adaptive->touches[kind], adaptive->time[kind], pooled);
	for (uint32_t kind = 0; kind < CLASSES; kind += family_size(kind))
		family_learn(adaptive, kind, pooled, factor_of(&groups[group_of(kind)], 1));
	ranks_make(eviction);
	for (uint32_t kind = 0; kind < CLASSES; kind++)
		for (uint32_t age = 0; age < AGES; age++) {
			adaptive->touches[kind][age] *= memory;
			adaptive->time[kind][age] *= memory;
		}
}

/* ---- lists ---- */

static void list_add(struct eviction *eviction, uint32_t node)
{
	struct adaptive *adaptive = eviction->state;
	struct entry *entry = &adaptive->entries[node], *head;
	uint32_t list = class_of(adaptive, entry) * AGES + age_of(adaptive, node_clocks(eviction, node)),
		 first = eviction->node_count;

	if (list_is_empty(adaptive, first, list))
		bitmap_add(&adaptive->occupied, adaptive->rank[list]);
	head = &adaptive->entries[first + list];
	/*
	 * Append the node, or insert it at the front if the first node was touched later, so that the rest of a chain
	 * is evicted before the next chain.
	 */
	if (head->next != first + list && eviction->nodes[node].touched < eviction->nodes[head->next].touched)
		head = &adaptive->entries[head->next];
	entry->list = (uint16_t)list;
	entry->prev = head->prev;
	entry->next = (uint32_t)(head - adaptive->entries);
	adaptive->entries[head->prev].next = node;
	head->prev = node;
	entry->listed = true;
}

static void list_drop(struct eviction *eviction, uint32_t node)
{
	struct adaptive *adaptive = eviction->state;
	struct entry *entry = &adaptive->entries[node];

	entry->listed = false;
	adaptive->entries[entry->prev].next = entry->next;
	adaptive->entries[entry->next].prev = entry->prev;
	if (list_is_empty(adaptive, eviction->node_count, entry->list))
		bitmap_remove(&adaptive->occupied, adaptive->rank[entry->list]);
}

/* Move a candidate whose age has changed since it was listed. Return false if the age is the same. */
static bool list_renew(struct eviction *eviction, uint32_t node)
{
	const struct adaptive *adaptive = eviction->state;

	if (adaptive->entries[node].list % AGES == age_of(adaptive, node_clocks(eviction, node)))
		return false;
	list_drop(eviction, node);
	list_add(eviction, node);
	return true;
}

static uint32_t adaptive_victim(struct eviction *eviction)
{
	const struct adaptive *adaptive = eviction->state;
	uint32_t node;

	do {
		uint32_t list = adaptive->by_rank[bitmap_lowest(&adaptive->occupied)];

		node = adaptive->entries[eviction->node_count + list].next;
	} while (list_renew(eviction, node));
	return node;
}

/* ---- ghosts ---- */

static struct ghost *ghost_bucket(const struct adaptive *adaptive, uint64_t key)
{
	key = (key ^ key >> 32) * UINT64_C(0x9e3779b97f4a7c15);
	return &adaptive->ghosts[(key >> 32 & adaptive->bucket_mask) * GHOST_WAYS];
}

static void ghost_drop(struct eviction *eviction, struct ghost *ghost)
{
	ghost->used = false;
	eviction->stats.ghosts--;
}

static void ghost_add(struct eviction *eviction, uint32_t node)
{
	const struct adaptive *adaptive = eviction->state;
	const struct entry *entry = &adaptive->entries[node];
	struct ghost *bucket = ghost_bucket(adaptive, eviction->nodes[node].key), *place = bucket;
	uint32_t now = now_of(eviction);

	for (struct ghost *ghost = bucket; ghost < bucket + GHOST_WAYS && place->used; ghost++)
		if (!ghost->used || now - ghost->touched > now - place->touched)
			place = ghost;
	if (place->used)
		ghost_drop(eviction, place);
	*place = (struct ghost){.key = eviction->nodes[node].key,
		.touched = now - node_clocks(eviction, node),
		.seen = now,
		.kind = (uint8_t)class_of(adaptive, entry),
		.touches = entry->touches,
		.pause = entry->pause,
		.used = true,
		.grew = entry->grew};
	eviction->stats.ghosts++;
}

/* If a remembered node was inserted again, count the touch that it would have received if it had been kept. */
static void ghost_return(struct eviction *eviction, uint32_t node)
{
	struct adaptive *adaptive = eviction->state;
	struct entry *entry = &adaptive->entries[node];
	struct ghost *bucket = ghost_bucket(adaptive, eviction->nodes[node].key);

	for (struct ghost *ghost = bucket; ghost < bucket + GHOST_WAYS; ghost++) {
		if (!ghost->used || ghost->key != eviction->nodes[node].key)
			continue;
		ghost_count(eviction, ghost);
		touch_count(adaptive, ghost->kind, now_of(eviction) - ghost->touched);
		entry->pause = pause_after(ghost->touches, ghost->pause, now_of(eviction) - ghost->touched);
		entry->touches = ghost->touches < UINT8_MAX ? ghost->touches + 1 : UINT8_MAX;
		entry->grew = ghost->grew;
		ghost_drop(eviction, ghost);
		eviction->stats.returns++;
		return;
	}
}

/* ---- visits ---- */

static void nodes_look(struct eviction *eviction, uint32_t count)
{
	struct adaptive *adaptive = eviction->state;

	for (; count; count--) {
		uint32_t node = adaptive->node_hand;

		if (eviction->nodes[node].kept)
			node_count(eviction, node);
		/* Nodes that were just inserted or touched are not listed. */
		if (adaptive->entries[node].listed)
			list_renew(eviction, node);
		adaptive->node_hand = adaptive->node_hand + 1 < eviction->entered ? adaptive->node_hand + 1 : 0;
	}
}

static void ghosts_look(struct eviction *eviction, uint32_t count)
{
	struct adaptive *adaptive = eviction->state;
	uint32_t all = (adaptive->bucket_mask + 1) * GHOST_WAYS;

	for (; count; count--) {
		struct ghost *ghost = &adaptive->ghosts[adaptive->ghost_hand];

		if (ghost->used && now_of(eviction) - ghost->touched >= CLOCK_FAR)
			ghost_drop(eviction, ghost);
		if (ghost->used)
			ghost_count(eviction, ghost);
		adaptive->ghost_hand = (adaptive->ghost_hand + 1) & (all - 1);
	}
}

/* Return the number of entries to visit in each step so that `count` entries are visited in `step_count` steps. */
static uint32_t looks(uint32_t count, uint32_t step_count)
{
	return step_count ? (count + step_count - 1) / step_count : count;
}

static void step(struct eviction *eviction)
{
	struct adaptive *adaptive = eviction->state;

	nodes_look(eviction, looks(eviction->entered, adaptive->size / NODES_SHARE));
	ghosts_look(eviction, looks((adaptive->bucket_mask + 1) * GHOST_WAYS, adaptive->size / GHOSTS_SHARE));
	if (++adaptive->turned < adaptive->turn)
		return;
	adaptive->turned = 0;
	learn(eviction);
}

/* ---- the size of the cache ---- */

static void size_set(struct adaptive *adaptive, uint32_t size)
{
	uint32_t buckets = 1;

	/* The number of buckets is the largest power of two that does not exceed the number of ghosts. */
	while (buckets * 2 * GHOST_WAYS <= size * (uint32_t)EVICTION_GHOSTS)
		buckets *= 2;
	adaptive->size = size;
	adaptive->bucket_mask = buckets - 1;
	adaptive->ghost_hand = 0;
	adaptive->turn = size / TURN_SHARE > TURN_LEAST ? size / TURN_SHARE : TURN_LEAST;
	ages_make(adaptive);
}

/*
 * Adapt the counts to half the size of the cache: those of an age belong to the age two steps later. The distribution
 * within the first age is unknown and assumed to be even.
 */
static void counts_halve(float counts[AGES])
{
	counts[AGES - 1] += counts[AGES - 2] + counts[AGES - 3];
	memmove(&counts[3], &counts[1], (AGES - 4) * sizeof(*counts));
	counts[1] = counts[2] = counts[0] / 4;
	counts[0] /= 2;
}

static void counts_double(float counts[AGES])
{
	counts[0] += counts[1] + counts[2];
	memmove(&counts[1], &counts[3], (AGES - 3) * sizeof(*counts));
	counts[AGES - 2] = counts[AGES - 1] = 0;
}

static void counts_rescale(struct adaptive *adaptive, uint32_t shift_before)
{
	for (uint32_t kind = 0; kind < CLASSES; kind++) {
		for (uint32_t shift = shift_before; shift > adaptive->age_shift; shift--) {
			counts_halve(adaptive->time[kind]);
			counts_halve(adaptive->touches[kind]);
		}
		for (uint32_t shift = shift_before; shift < adaptive->age_shift; shift++) {
			counts_double(adaptive->time[kind]);
			counts_double(adaptive->touches[kind]);
		}
	}
}

/* Change the size of the cache. The ghosts are discarded, and the counts are adapted. */
static void rescale(struct eviction *eviction, uint32_t size)
{
	struct adaptive *adaptive = eviction->state;
	uint32_t shift = adaptive->age_shift;

	/* Do not access memory that was never used. */
	if (eviction->stats.ghosts)
		memset(adaptive->ghosts, 0,
			(size_t)(adaptive->bucket_mask + 1) * GHOST_WAYS * sizeof(*adaptive->ghosts));
	eviction->stats.ghosts = 0;
	size_set(adaptive, size);
	counts_rescale(adaptive, shift);
	for (uint32_t node = 0; node < eviction->entered; node++)
		if (eviction->nodes[node].kept && adaptive->entries[node].listed)
			list_renew(eviction, node);
	learn(eviction);
	adaptive->turned = 0;
}

/* Update the size of the cache when a node is evicted to make room. */
static void size_look(struct eviction *eviction)
{
	const struct adaptive *adaptive = eviction->state;
	uint32_t kept = eviction->stats.kept, size = adaptive->size;

	while (kept < size / SIZE_SHARE && size > SIZE_LEAST)
		size /= 2;
	while (kept > size)
		size = size < eviction->node_count / 2 ? size * 2 : eviction->node_count;
	if (size != adaptive->size)
		rescale(eviction, size);
}

/* ---- the policy ---- */

static void adaptive_fini(struct eviction *eviction)
{
	struct adaptive *adaptive = eviction->state;

	if (!adaptive)
		return;
	bitmap_fini(&adaptive->occupied);
	free(adaptive->entries);
	free(adaptive->ghosts);
	free(adaptive);
	eviction->state = NULL;
}

static int adaptive_init(struct eviction *eviction)
{
	struct adaptive *adaptive = eviction->state = calloc(1, sizeof(*adaptive));
	uint32_t nodes = eviction->node_count;

	if (!adaptive)
		return -ENOMEM;
	size_set(adaptive, nodes);
	adaptive->entries = calloc((size_t)nodes + LISTS, sizeof(*adaptive->entries));
	adaptive->ghosts = calloc((size_t)(adaptive->bucket_mask + 1) * GHOST_WAYS, sizeof(*adaptive->ghosts));
	if (!adaptive->entries || !adaptive->ghosts || bitmap_init(&adaptive->occupied, LISTS))
		return -ENOMEM;
	for (uint32_t list = 0; list < LISTS; list++)
		adaptive->entries[nodes + list].prev = adaptive->entries[nodes + list].next = nodes + list;
	learn(eviction);
	return 0;
}

/* Record that a node got a child. Its time so far counts for its previous class. */
static void entry_grew(struct eviction *eviction, uint32_t node)
{
	struct adaptive *adaptive = eviction->state;

	if (adaptive->entries[node].grew)
		return;
	node_count(eviction, node);
	adaptive->entries[node].grew = true;
}

static void entry_left(struct eviction *eviction, uint32_t node)
{
	struct adaptive *adaptive = eviction->state;
	bool listed = adaptive->entries[node].listed;

	if (listed)
		list_drop(eviction, node);
	node_count(eviction, node);
	adaptive->entries[node].left = true;
	if (listed)
		list_add(eviction, node);
}

/*
 * Mark the chain that begins with this node as left, because its parent got a second child, and further accesses are
 * expected in the new branch. Each node is marked at most once between two touches, so marking costs no more than
 * touching.
 */
static void chain_leave(struct eviction *eviction, uint32_t node)
{
	const struct adaptive *adaptive = eviction->state;

	while (!adaptive->entries[node].left) {
		entry_left(eviction, node);
		if (eviction->nodes[node].children != 1)
			break;
		node = eviction->nodes[node].child_sum;
	}
}

/* Set the origin and place of a node. It inherits the origin of a parent that was never touched. */
static void entry_place(struct adaptive *adaptive, uint32_t node, uint32_t parent)
{
	const struct entry *above = parent == EVICTION_NONE ? NULL : &adaptive->entries[parent];
	struct entry *entry = &adaptive->entries[node];

	if (above && above->touches == 0) {
		entry->origin = above->origin;
		entry->place = (uint8_t)least(above->place + 1u, UINT8_MAX);
	} else if (above) {
		entry->origin = above->touches < ORIGIN_SHARED ? 1 : 2;
	}
}

static void adaptive_inserted(struct eviction *eviction, uint32_t node)
{
	struct adaptive *adaptive = eviction->state;
	uint32_t parent = eviction->nodes[node].parent;

	adaptive->entries[node] = (struct entry){.seen = now_of(eviction)};
	entry_place(adaptive, node, parent);
	ghost_return(eviction, node);
	if (parent != EVICTION_NONE) {
		entry_grew(eviction, parent);
		if (eviction->nodes[parent].children == 2)
			chain_leave(eviction, eviction->nodes[parent].child_sum ^ node);
	}
	step(eviction);
}

static void adaptive_touched(struct eviction *eviction, uint32_t node, uint64_t before)
{
	struct adaptive *adaptive = eviction->state;
	struct entry *entry = &adaptive->entries[node];
	uint64_t clocks = eviction->clock - before;
	uint32_t age = clocks < CLOCK_FAR ? (uint32_t)clocks : CLOCK_FAR, unseen = now_of(eviction) - entry->seen;

	time_count(adaptive, class_of(adaptive, entry), age - (unseen < age ? unseen : age), age);
	touch_count(adaptive, class_of(adaptive, entry), age);
	entry->seen = now_of(eviction);
	entry->pause = pause_after(entry->touches, entry->pause, age);
	entry->touches += entry->touches < UINT8_MAX;
	entry->left = false;
	step(eviction);
}

static void adaptive_left(struct eviction *eviction, uint32_t node, bool evicted)
{
	node_count(eviction, node);
	if (!evicted)
		return;
	size_look(eviction);
	ghost_add(eviction, node);
}

static float adaptive_worth(const struct eviction *eviction, uint32_t node)
{
	const struct adaptive *adaptive = eviction->state;

	return adaptive->density[class_of(adaptive, &adaptive->entries[node]) * AGES +
		age_of(adaptive, node_clocks(eviction, node))];
}

const struct eviction_policy eviction_adaptive = {
	.name = "adaptive",
	.init = adaptive_init,
	.fini = adaptive_fini,
	.inserted = adaptive_inserted,
	.touched = adaptive_touched,
	.used = node_count,
	.offered = list_add,
	.withdrawn = list_drop,
	.victim = adaptive_victim,
	.left = adaptive_left,
	.worth = adaptive_worth,
};
