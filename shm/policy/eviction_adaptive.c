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
 * If the popularity of nodes does not change, the number of touches says more than the age. The rates of all ages are
 * then only less precise, because each is learned from fewer touches. The policy therefore also counts time and touches
 * in cells, which do not depend on the age and have finer steps of the number of touches (cells.h). At each
 * computation, it determines how many of the touches since the last one were hits if the nodes with the highest
 * densities were kept, and how many if those in the cells with the highest rates were, for as many nodes as were kept.
 * The candidates are ordered by the rates of the cells if that yields more hits; see order_choose().
 *
 * If nodes are touched only for some time after their first insertion, neither order suffices. The policy therefore
 * numbers the first insertions (births). If a cache kept the nodes that were born last, it would have a node exactly if
 * fewer nodes were born since than can be kept, so the hits of such a cache can be counted exactly, without another
 * tree. The candidates are ordered by birth while that yields more hits than the order above.
 *
 * The unit of age is the size of the cache. Before anything is learned, the rates fall with age, which yields LRU. The
 * size of the cache is the number of nodes kept at an eviction. It is changed only if this number exceeds it or is less
 * than a quarter of it, because the capacity might not be a fixed number of nodes.
 *
 * Each class and age has a list of candidates. A candidate stays in the list of the age at which it was added until the
 * first visit after it has reached another age. The list with the lowest density is found with a bitmap of the nonempty
 * lists, ordered by density. Each insertion and touch also visits some nodes and ghosts to count their time. The order
 * is computed at every fourth of the size of the cache. Most classes of a workload are empty, and the empty classes of
 * a group have equal densities, which are computed only once.
 */
#include "shm/policy/bitmap.h"
#include "shm/policy/cells.h"
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
	PAIRS_UNTOUCHED = ORIGINS * PLACE_STEPS,
	PAIRS = PAIRS_UNTOUCHED + TOUCH_STEPS + 1,
	GROUPS = ORIGINS + 2,
	AGE_LISTS = CLASSES * AGES,

	/*
	 * Cells. Untouched nodes and nodes whose chain was left have the same cells as classes. Other nodes are grouped
	 * by the number of touches (1 to 7, then four steps per power of two), and by whether they ever had a child.
	 */
	USES_STEPS = 27,
	USES_EXACT = 8,
	CELL_LEFT = CLASS_TOUCHED + 2 * USES_STEPS,
	CELLS = CELL_LEFT + 2,

	/*
	 * Births. A node stores the number of its birth in units of at most 1/BIRTH_STEPS of the size of the cache. The
	 * last BIRTH_FAR units are distinguished. Each unit has a list, and the lists are used in turn; the others
	 * suffice until old nodes are visited. Ghosts are replaced long before 2^16 units have passed.
	 */
	BIRTH_STEPS = 64,
	BIRTH_FAR = 192,
	BIRTH_LISTS = 256,
	FIRST_BIRTH_LIST = AGE_LISTS + CELLS,
	LISTS = FIRST_BIRTH_LIST + BIRTH_LISTS,

	GHOST_WAYS = 8,      /* entries of a bucket; a key may be in any of them, and the oldest one is replaced */
	CLOCK_FAR = 1 << 30, /* maximum age; ages are stored in 32 bits */
};

/*
 * None of these values is tuned for a workload; small changes of them make no difference. A weight is the number of
 * touches after which observations count as much as the prior assumption: for all classes together, for a factor, for a
 * neighborhood of families at each age, for a family of classes at each age, and for a class of a larger family at each
 * age.
 */
/* factor applied to all counts at each turn: half is forgotten in 44 times the size of the cache */
static const float memory = 1 - 1 / 256.f;
static const float pooled_weight = 1, factor_weight = 10, near_weight = 1, family_weight = 2, class_weight = 10;
static const float first_guess = 0.3f; /* rate at an age x that age, before anything is learned */

enum {
	TURN_SHARE = 4, /* densities are computed once in size of the cache / TURN_SHARE clocks */
	TURN_LEAST = 256,
	NODES_SHARE = 8,  /* all nodes are visited once in size of the cache / NODES_SHARE clocks */
	GHOSTS_SHARE = 2, /* all ghosts are visited once in size of the cache / GHOSTS_SHARE clocks */

	LOG_STEPS = 8,

	LEAD_DEVIATIONS = 2, /* see order_choose() */

	DIGIT_BITS = 11, /* when the lists are sorted by density; three digits cover the bits of a float */

	SIZE_LEAST = 16,
	/* the size of the cache is reduced when fewer nodes than size / SIZE_SHARE are kept */
	SIZE_SHARE = 4,
};

struct entry {
	uint32_t seen;       /* clock up to which the node's time was counted */
	uint32_t prev, next; /* ring of a list; the heads of the lists follow the entries of the nodes */
	uint16_t list;
	uint16_t birth;  /* see BIRTH_STEPS */
	uint8_t touches; /* at most 255 */
	uint8_t origin;  /* class of the parent, see ORIGINS */
	uint8_t place;   /* distance below that parent, at most 255 */
	uint8_t pause;   /* average logarithm of the time between touches, see logarithm() */
	bool grew, left, listed;
};

struct ghost {
	uint64_t key;
	uint32_t touched, seen;
	uint16_t birth;
	uint8_t kind, cell, touches, pause;
	bool used, grew;
};

/* gpool/kv.h documents this size for GPOOL_KV_ADAPTIVE. */
static_assert(sizeof(struct eviction_node) + sizeof(struct entry) + EVICTION_GHOSTS * sizeof(struct ghost) <= 256,
	"memory of a node");

static_assert((int)CELLS <= (int)CELLS_MAX, "cells of the policy");

/* By which the candidates are ordered. */
enum order {
	BY_DENSITY,
	BY_USES, /* by the rates of the cells */
	BY_BIRTH,
};

/* Decaying sums of the differences between the hits of two orders, and of their squares. */
struct lead {
	float sum, square;
};

struct adaptive {
	struct entry *entries; /* [node_count + LISTS] */
	struct ghost *ghosts;  /* [buckets * GHOST_WAYS] */
	uint32_t size;         /* size of the cache, in nodes */
	uint32_t bucket_mask;
	uint32_t turned;         /* clocks since the last computation of the densities */
	uint32_t age_shift;      /* the first age ends at 2 to the power of age_shift */
	uint32_t ages[AGES + 1]; /* begin of each age */
	uint32_t node_hand, ghost_hand;
	float time[CLASSES][AGES], touches[CLASSES][AGES];             /* counts, which decay (`memory`) */
	float fresh_time[CLASSES][AGES], fresh_touches[CLASSES][AGES]; /* counts since the last computation */
	float density[CLASSES][AGES];
	struct cells cells;
	uint32_t births;      /* nodes inserted so far that were not remembered */
	uint32_t birth_shift; /* a unit of births is 2 to the power of birth_shift */
	/* kept nodes and births after the last eviction; UINT32_MAX nodes: none */
	uint32_t room, room_births;
	uint32_t hits;       /* touches of nodes since the last computation */
	uint32_t birth_hits; /* those if the nodes born last were kept */
	enum order order;
	bool by_uses;           /* the order by uses is better than that by density */
	struct lead uses_lead;  /* of the order by uses over that by density */
	struct lead birth_lead; /* of the order by birth over the better one of these */
	/*
	 * lists of classes and ages in the order of density, lowest first; then cells in the order of rates; then lists
	 * by birth
	 */
	uint16_t rank[LISTS], by_rank[LISTS];
	struct bitmap occupied; /* ranks of nonempty lists */
	struct bitmap kept;     /* kept nodes */
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

static uint32_t place_of(const struct entry *entry)
{
	return entry->origin * PLACE_STEPS + least(power_of(entry->place + 1u), PLACE_STEPS - 1);
}

static uint32_t class_of(const struct adaptive *adaptive, const struct entry *entry)
{
	if (entry->left)
		return CLASS_LEFT + (entry->touches > 0);
	if (entry->touches)
		return CLASS_TOUCHED + (2 * touch_step(entry->touches) + entry->grew) * PAUSE_STEPS +
			pause_step(adaptive, entry->pause);
	return 2 * place_of(entry) + entry->grew;
}

/* Return the step of the number of touches for cells. It is finer than touch_step(). */
static uint32_t uses_step(uint32_t touches)
{
	uint32_t power = power_of(touches);

	if (touches < USES_EXACT)
		return touches - 1;
	return least(USES_EXACT - 1 + 4 * (power - 3) + (touches << 2 >> power) % 4, USES_STEPS - 1);
}

static uint32_t cell_of(const struct entry *entry)
{
	if (entry->left)
		return CELL_LEFT + (entry->touches > 0);
	if (entry->touches)
		return CLASS_TOUCHED + 2 * uses_step(entry->touches) + entry->grew;
	return 2 * place_of(entry) + entry->grew;
}

/* The prior assumption for a number of touches is the rate of the next lower one. */
static void cells_begin(struct cells *cells)
{
	cells_init(cells, CELLS);
	for (uint32_t cell = CLASS_TOUCHED + 2; cell < CELL_LEFT; cell++)
		cells->before[cell] = (uint8_t)(cell - 2);
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

/* ---- births ---- */

static uint32_t births_now(const struct adaptive *adaptive)
{
	return adaptive->births >> adaptive->birth_shift;
}

/* Return the number of units since a birth. */
static uint32_t birth_age(const struct adaptive *adaptive, uint16_t birth)
{
	return (uint16_t)(births_now(adaptive) - birth);
}

static uint16_t birth_limit(const struct adaptive *adaptive, uint16_t birth)
{
	return birth_age(adaptive, birth) > BIRTH_FAR ? (uint16_t)(births_now(adaptive) - BIRTH_FAR) : birth;
}

/* Return whether a node would be kept if the nodes born last had been kept at the last eviction. */
static bool birth_hits(const struct adaptive *adaptive, uint16_t birth)
{
	return (uint64_t)birth_age(adaptive, birth) << adaptive->birth_shift <
		(uint64_t)adaptive->room + (adaptive->births - adaptive->room_births);
}

static uint32_t birth_list(uint32_t birth)
{
	return FIRST_BIRTH_LIST + birth % BIRTH_LISTS;
}

/* ---- counting ---- */

/*
 * Add the time in which a node of this class and cell went from age `from` to age `to`, both in clocks since its last
 * touch.
 */
static void time_count(struct adaptive *adaptive, uint32_t kind, uint32_t cell, uint32_t from, uint32_t to)
{
	adaptive->cells.fresh_time[cell] += (float)(to - from);
	for (uint32_t age = age_of(adaptive, from); from < to; age++) {
		uint32_t end = age + 1 < AGES && adaptive->ages[age + 1] < to ? adaptive->ages[age + 1] : to;

		adaptive->fresh_time[kind][age] += (float)(end - from);
		from = end;
	}
}

static void node_count(struct eviction *eviction, uint32_t node)
{
	struct adaptive *adaptive = eviction->state;
	struct entry *entry = &adaptive->entries[node];
	uint32_t clocks = node_clocks(eviction, node), unseen = now_of(eviction) - entry->seen;

	time_count(adaptive, class_of(adaptive, entry), cell_of(entry), clocks - least(unseen, clocks), clocks);
	entry->birth = birth_limit(adaptive, entry->birth);
	entry->seen = now_of(eviction);
}

static void ghost_count(const struct eviction *eviction, struct ghost *ghost)
{
	uint32_t now = now_of(eviction);

	time_count(eviction->state, ghost->kind, ghost->cell, ghost->seen - ghost->touched, now - ghost->touched);
	ghost->seen = now;
}

static void touch_count(struct adaptive *adaptive, uint32_t kind, uint32_t cell, uint32_t clocks)
{
	adaptive->cells.fresh_touches[cell]++;
	adaptive->fresh_touches[kind][age_of(adaptive, clocks)]++;
}

/* ---- rates and densities ---- */

static float age_width(const struct adaptive *adaptive, uint32_t age)
{
	return age + 1 < AGES ? (float)(adaptive->ages[age + 1] - adaptive->ages[age])
			      : (float)adaptive->ages[AGES - 1];
}

struct counts {
	float touches[AGES], time[AGES];
};

static void counts_add(struct counts *counts, const float touches[AGES], const float time[AGES])
{
	for (uint32_t age = 0; age < AGES; age++) {
		counts->touches[age] += touches[age];
		counts->time[age] += time[age];
	}
}

/* Add the counts of the classes [first, end). */
static void counts_add_classes(const struct adaptive *adaptive, uint32_t first, uint32_t end, struct counts *counts)
{
	for (uint32_t kind = first; kind < end; kind++)
		counts_add(counts, adaptive->touches[kind], adaptive->time[kind]);
}

static bool counts_are_empty(const float touches[AGES], const float time[AGES])
{
	for (uint32_t age = 0; age < AGES; age++)
		if (touches[age] > 0 || time[age] > 0)
			return false;
	return true;
}

/* Compute the rate of touches at each age, over all classes. */
static void rates_pool(const struct adaptive *adaptive, const struct counts *all, float rates[AGES])
{
	for (uint32_t age = 0; age < AGES; age++) {
		float guess = first_guess / ((float)adaptive->ages[age] + age_width(adaptive, age) / 2);

		rates[age] = (all->touches[age] + pooled_weight) / (all->time[age] + pooled_weight / guess);
	}
}

/*
 * A family is a range of classes that differ only in the pause. A pair consists of the two families that differ only in
 * whether the nodes ever had a child, or of the classes of nodes whose chain was left. A group is a range of pairs:
 * nodes of an origin by place, touched nodes by the number of touches, or nodes whose chain was left.
 */
static uint32_t pair_begin(uint32_t pair)
{
	if (pair <= PAIRS_UNTOUCHED)
		return 2 * pair;
	return least(CLASS_TOUCHED + 2 * PAUSE_STEPS * (pair - PAIRS_UNTOUCHED), CLASSES);
}

static uint32_t group_of(uint32_t pair)
{
	return pair < PAIRS_UNTOUCHED ? pair / PLACE_STEPS : pair < PAIRS - 1 ? ORIGINS : ORIGINS + 1;
}

/* Observed touches, and those that rates let expect. The ratio of both is a factor. */
struct evidence {
	float touches, expected;
};

static void evidence_add(struct evidence *evidence, const struct counts *counts, const float rates[AGES])
{
	for (uint32_t age = 0; age < AGES; age++) {
		evidence->touches += counts->touches[age];
		evidence->expected += counts->time[age] * rates[age];
	}
}

static float factor_of(const struct evidence *evidence, float prior)
{
	return (evidence->touches + factor_weight) / (evidence->expected + factor_weight / prior);
}

/* Compute rates from counts. The prior assumption is that they are other rates multiplied by a factor. */
static void rates_make(
	const struct counts *counts, const float other[AGES], float prior, float weight, float rates[AGES])
{
	struct evidence evidence = {0};
	float factor;

	evidence_add(&evidence, counts, other);
	factor = factor_of(&evidence, prior);
	for (uint32_t age = 0; age < AGES; age++)
		rates[age] = (counts->touches[age] + weight) / (counts->time[age] + weight / (other[age] * factor));
}

/* Compute the density at each age: the maximum, over all durations, of touches per unit of time. */
static void densities(const struct adaptive *adaptive, const float rates[AGES], float density[AGES])
{
	float width[AGES], stay[AGES];

	for (uint32_t age = 0; age < AGES; age++) {
		width[age] = age_width(adaptive, age);
		stay[age] = 1 / (1 + rates[age] * width[age]);
	}
	for (uint32_t first = 0; first < AGES; first++) {
		float untouched = 1, touches = 0, time = 0, best = 0;

		for (uint32_t age = first; age < AGES; age++) {
			touches += untouched * (1 - stay[age]);
			time += untouched * width[age] * stay[age];
			untouched *= stay[age];
			best = touches > best * time ? touches / time : best;
		}
		density[first] = best;
	}
}

static void densities_copy(struct adaptive *adaptive, uint32_t to, uint32_t from, uint32_t count)
{
	memcpy(adaptive->density[to], adaptive->density[from], count * sizeof(adaptive->density[0]));
}

/* Compute the densities of each class of a family. The prior assumption is the rates of the family. */
static void members_learn(struct adaptive *adaptive, uint32_t first, uint32_t end, const float family[AGES])
{
	uint32_t empty = CLASSES;
	float rates[AGES];

	for (uint32_t kind = first; kind < end; kind++) {
		bool is_empty = counts_are_empty(adaptive->touches[kind], adaptive->time[kind]);
		struct counts counts = {0};

		if (is_empty && empty != CLASSES) {
			densities_copy(adaptive, kind, empty, 1);
			continue;
		}
		counts_add_classes(adaptive, kind, kind + 1, &counts);
		rates_make(&counts, family, 1, class_weight, rates);
		densities(adaptive, rates, adaptive->density[kind]);
		empty = is_empty ? kind : empty;
	}
}

/* Compute the densities of a family: of all its classes together first, then of each. */
static void family_learn(
	struct adaptive *adaptive, uint32_t first, uint32_t end, const struct counts *counts, const float prior[AGES])
{
	float rates[AGES];

	rates_make(counts, prior, 1, family_weight, rates);
	if (end == first + 1)
		densities(adaptive, rates, adaptive->density[first]);
	else
		members_learn(adaptive, first, end, rates);
}

/*
 * Compute the rates of a pair and its neighbors in the group together. The prior assumption is the rates of the group.
 * These are the rates over all classes multiplied by a factor.
 */
static void rates_near(
	const struct counts pairs[PAIRS], uint32_t pair, const float pooled[AGES], float group, float rates[AGES])
{
	struct counts near = pairs[pair];

	if (pair > 0 && group_of(pair - 1) == group_of(pair))
		counts_add(&near, pairs[pair - 1].touches, pairs[pair - 1].time);
	if (pair + 1 < PAIRS && group_of(pair + 1) == group_of(pair))
		counts_add(&near, pairs[pair + 1].touches, pairs[pair + 1].time);
	rates_make(&near, pooled, group, near_weight, rates);
}

/*
 * Compute the densities of both families of a pair. The prior assumption is the rates near the pair. The rates over all
 * classes would not do: at low ages they depend mostly on nodes that are touched often, and a family whose nodes are
 * seldom touched spends so little time at these ages that it would keep the prior assumption for long. Empty families
 * of a group get equal densities. empty: a family whose densities they get; CLASSES: none yet.
 */
static void pair_learn(struct adaptive *adaptive, const struct counts pairs[PAIRS], uint32_t pair,
	const float pooled[AGES], float group, uint32_t *empty)
{
	uint32_t first = pair_begin(pair), end = pair_begin(pair + 1), size = (end - first) / 2;
	float near[AGES];

	rates_near(pairs, pair, pooled, group, near);
	for (; first < end; first += size) {
		struct counts counts = {0};
		bool is_empty;

		counts_add_classes(adaptive, first, first + size, &counts);
		is_empty = counts_are_empty(counts.touches, counts.time);
		if (is_empty && *empty != CLASSES) {
			densities_copy(adaptive, first, *empty, size);
			continue;
		}
		family_learn(adaptive, first, first + size, &counts, near);
		*empty = is_empty ? first : *empty;
	}
}

/* Compute the densities of all classes from the rates over all classes. */
static void pairs_learn(struct adaptive *adaptive, const struct counts pairs[PAIRS], const float pooled[AGES])
{
	struct evidence groups[GROUPS] = {0};
	uint32_t empty[GROUPS];

	for (uint32_t group = 0; group < GROUPS; group++)
		empty[group] = CLASSES;
	for (uint32_t pair = 0; pair < PAIRS; pair++)
		evidence_add(&groups[group_of(pair)], &pairs[pair], pooled);
	for (uint32_t pair = 0; pair < PAIRS; pair++) {
		uint32_t group = group_of(pair);

		pair_learn(adaptive, pairs, pair, pooled, factor_of(&groups[group], 1), &empty[group]);
	}
}

/* Return a digit of a density. Densities are not negative, so their bits have the same order. */
static uint32_t density_digit(const struct adaptive *adaptive, uint32_t list, uint32_t digit)
{
	uint32_t bits;

	memcpy(&bits, &adaptive->density[list / AGES][list % AGES], sizeof(bits));
	return bits >> digit * DIGIT_BITS & ((1 << DIGIT_BITS) - 1);
}

/* Sort lists by one digit. The order of lists with an equal digit stays the same. */
static void lists_sort(
	const struct adaptive *adaptive, uint32_t digit, const uint16_t from[AGE_LISTS], uint16_t to[AGE_LISTS])
{
	uint16_t places[1 << DIGIT_BITS] = {0}, place = 0;

	for (uint32_t i = 0; i < AGE_LISTS; i++)
		places[density_digit(adaptive, from[i], digit)]++;
	for (uint32_t i = 0; i < 1 << DIGIT_BITS; i++) {
		uint16_t count = places[i];

		places[i] = place;
		place = (uint16_t)(place + count);
	}
	for (uint32_t i = 0; i < AGE_LISTS; i++)
		to[places[density_digit(adaptive, from[i], digit)]++] = from[i];
}

/* Order the lists of classes and ages by density, then by age, highest first, and then by class; order the cells. */
static void ranks_make(struct adaptive *adaptive)
{
	uint16_t occupied[LISTS], other[AGE_LISTS];
	uint32_t occupied_count = 0, rank = 0;

	while ((rank = bitmap_next(&adaptive->occupied, rank)) != BITMAP_NONE) {
		occupied[occupied_count++] = adaptive->by_rank[rank];
		bitmap_remove(&adaptive->occupied, rank);
	}
	rank = 0;
	for (uint32_t age = AGES; age-- > 0;)
		for (uint32_t kind = 0; kind < CLASSES; kind++)
			other[rank++] = (uint16_t)(kind * AGES + age);
	lists_sort(adaptive, 0, other, adaptive->by_rank);
	lists_sort(adaptive, 1, adaptive->by_rank, other);
	lists_sort(adaptive, 2, other, adaptive->by_rank);
	for (uint32_t i = 0; i < CELLS; i++)
		adaptive->by_rank[AGE_LISTS + i] = (uint16_t)(AGE_LISTS + adaptive->cells.order[i]);
	for (uint32_t list = FIRST_BIRTH_LIST; list < LISTS; list++)
		adaptive->by_rank[list] = (uint16_t)list;
	for (rank = 0; rank < LISTS; rank++)
		adaptive->rank[adaptive->by_rank[rank]] = (uint16_t)rank;
	for (uint32_t i = 0; i < occupied_count; i++)
		bitmap_add(&adaptive->occupied, adaptive->rank[occupied[i]]);
}

static void counts_decay(float counts[AGES])
{
	/* Otherwise, counts that are too small to make a difference would become denormal, and slow. */
	for (uint32_t age = 0; age < AGES; age++)
		counts[age] = counts[age] < 1e-30f ? 0 : counts[age] * memory;
}

static void fresh_add(struct adaptive *adaptive)
{
	for (uint32_t kind = 0; kind < CLASSES; kind++)
		for (uint32_t age = 0; age < AGES; age++) {
			adaptive->time[kind][age] += adaptive->fresh_time[kind][age];
			adaptive->touches[kind][age] += adaptive->fresh_touches[kind][age];
		}
	memset(adaptive->fresh_time, 0, sizeof(adaptive->fresh_time));
	memset(adaptive->fresh_touches, 0, sizeof(adaptive->fresh_touches));
}

static void learn(struct adaptive *adaptive)
{
	struct counts pairs[PAIRS] = {0}, all = {0};
	float pooled[AGES];

	fresh_add(adaptive);
	cells_learn(&adaptive->cells, first_guess / (float)adaptive->size, memory);
	for (uint32_t pair = 0; pair < PAIRS; pair++) {
		counts_add_classes(adaptive, pair_begin(pair), pair_begin(pair + 1), &pairs[pair]);
		counts_add(&all, pairs[pair].touches, pairs[pair].time);
	}
	rates_pool(adaptive, &all, pooled);
	pairs_learn(adaptive, pairs, pooled);
	ranks_make(adaptive);
	for (uint32_t kind = 0; kind < CLASSES; kind++) {
		counts_decay(adaptive->touches[kind]);
		counts_decay(adaptive->time[kind]);
	}
}

/* ---- lists ---- */

static bool list_is_empty(const struct adaptive *adaptive, uint32_t first, uint32_t list)
{
	return adaptive->entries[first + list].next == first + list;
}

static uint32_t list_of(const struct eviction *eviction, uint32_t node)
{
	const struct adaptive *adaptive = eviction->state;
	const struct entry *entry = &adaptive->entries[node];

	if (adaptive->order == BY_USES)
		return AGE_LISTS + cell_of(entry);
	if (adaptive->order == BY_BIRTH)
		return birth_list(entry->birth);
	return class_of(adaptive, entry) * AGES + age_of(adaptive, node_clocks(eviction, node));
}

static void list_add(struct eviction *eviction, uint32_t node)
{
	struct adaptive *adaptive = eviction->state;
	struct entry *entry = &adaptive->entries[node], *head;
	uint32_t list = list_of(eviction, node), first = eviction->node_count;

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

static void list_change(struct eviction *eviction, uint32_t node)
{
	list_drop(eviction, node);
	list_add(eviction, node);
}

/* Return whether a candidate has left its list since it was listed. Its class and cell have not changed. */
static bool list_is_old(const struct eviction *eviction, uint32_t node)
{
	const struct adaptive *adaptive = eviction->state;
	const struct entry *entry = &adaptive->entries[node];

	if (adaptive->order == BY_DENSITY)
		return entry->list % AGES != age_of(adaptive, node_clocks(eviction, node));
	return adaptive->order == BY_BIRTH && entry->list != birth_list(entry->birth);
}

/* Move all candidates whose list has changed, because ages were adapted or the order was. */
static void lists_change(struct eviction *eviction)
{
	const struct adaptive *adaptive = eviction->state;

	for (uint32_t node = bitmap_next(&adaptive->kept, 0); node != BITMAP_NONE;
		node = bitmap_next(&adaptive->kept, node + 1))
		if (adaptive->entries[node].listed && adaptive->entries[node].list != list_of(eviction, node))
			list_change(eviction, node);
}

/* Return the list from which the next candidate is evicted. The list by birth after the current one is the oldest. */
static uint32_t list_first(const struct adaptive *adaptive)
{
	uint32_t rank = BITMAP_NONE;

	if (adaptive->order == BY_BIRTH)
		rank = bitmap_next(&adaptive->occupied, birth_list(births_now(adaptive) + 1));
	return adaptive->by_rank[rank == BITMAP_NONE ? bitmap_lowest(&adaptive->occupied) : rank];
}

static uint32_t adaptive_victim(struct eviction *eviction)
{
	const struct adaptive *adaptive = eviction->state;
	uint32_t node = adaptive->entries[eviction->node_count + list_first(adaptive)].next;

	/* In the order by birth, only the oldest list has nodes that should be in another list, which is not better. */
	while (adaptive->order == BY_DENSITY && list_is_old(eviction, node)) {
		list_change(eviction, node);
		node = adaptive->entries[eviction->node_count + list_first(adaptive)].next;
	}
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
		.birth = entry->birth,
		.kind = (uint8_t)class_of(adaptive, entry),
		.cell = (uint8_t)cell_of(entry),
		.touches = entry->touches,
		.pause = entry->pause,
		.used = true,
		.grew = entry->grew};
	eviction->stats.ghosts++;
}

/*
 * If a remembered node was inserted again, count the touch that it would have received if it had been kept. Return
 * false if it was not remembered.
 */
static bool ghost_return(struct eviction *eviction, uint32_t node)
{
	struct adaptive *adaptive = eviction->state;
	struct entry *entry = &adaptive->entries[node];
	struct ghost *bucket = ghost_bucket(adaptive, eviction->nodes[node].key);

	for (struct ghost *ghost = bucket; ghost < bucket + GHOST_WAYS; ghost++) {
		if (!ghost->used || ghost->key != eviction->nodes[node].key)
			continue;
		ghost_count(eviction, ghost);
		touch_count(adaptive, ghost->kind, ghost->cell, now_of(eviction) - ghost->touched);
		entry->pause = pause_after(ghost->touches, ghost->pause, now_of(eviction) - ghost->touched);
		entry->touches = ghost->touches < UINT8_MAX ? ghost->touches + 1 : UINT8_MAX;
		entry->grew = ghost->grew;
		entry->birth = birth_limit(adaptive, ghost->birth);
		adaptive->birth_hits += birth_hits(adaptive, ghost->birth);
		ghost_drop(eviction, ghost);
		eviction->stats.returns++;
		return true;
	}
	return false;
}

/* ---- visits ---- */

/* Visit the kept nodes of [first, end). */
static void range_look(struct eviction *eviction, uint32_t first, uint32_t end)
{
	const struct adaptive *adaptive = eviction->state;

	for (uint32_t node = bitmap_next(&adaptive->kept, first); node < end;
		node = bitmap_next(&adaptive->kept, node + 1)) {
		eviction->stats.visits++;
		node_count(eviction, node);
		/* Nodes that were just inserted or touched are not listed. */
		if (adaptive->entries[node].listed && list_is_old(eviction, node))
			list_change(eviction, node);
	}
}

/* Visit those of the next `count` nodes that are kept. */
static void nodes_look(struct eviction *eviction, uint32_t count)
{
	struct adaptive *adaptive = eviction->state;
	uint32_t first = adaptive->node_hand, end = first + count;

	adaptive->node_hand = end < eviction->entered ? end : end - eviction->entered;
	range_look(eviction, first, least(end, eviction->entered));
	if (end > eviction->entered)
		range_look(eviction, 0, adaptive->node_hand);
}

static void ghosts_look(struct eviction *eviction, uint32_t count)
{
	struct adaptive *adaptive = eviction->state;
	uint32_t all = (adaptive->bucket_mask + 1) * GHOST_WAYS;

	eviction->stats.visits += count;
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

/* Return the fresh touches of kept nodes, if nodes of the highest densities could be kept for `time` in total. */
static float hits_by_density(const struct adaptive *adaptive, float time)
{
	struct hits hits = {.time_left = time};

	for (uint32_t rank = AGE_LISTS; rank-- > 0 && hits.time_left > 0;) {
		uint32_t kind = adaptive->by_rank[rank] / AGES, age = adaptive->by_rank[rank] % AGES;

		hits_add(&hits, adaptive->fresh_time[kind][age], adaptive->fresh_touches[kind][age]);
	}
	return hits.touches;
}

/* Add the difference between the hits of two orders since the last choice. */
static void lead_add(struct lead *lead, float more)
{
	lead->sum = lead->sum * memory + more;
	lead->square = lead->square * memory + more * more;
}

/* Return whether the lead exceeds LEAD_DEVIATIONS standard deviations. */
static bool lead_is_clear(const struct lead *lead)
{
	return lead->sum > 0 && lead->sum * lead->sum > LEAD_DEVIATIONS * LEAD_DEVIATIONS * lead->square;
}

/*
 * Choose the order from the hits that each would have had since the last choice. The order by uses replaces that by
 * density if its lead is clear, and as long as it is positive. The order by birth replaces the better one of both only
 * as long as its lead is clear, because meanwhile the hits of the better one are only estimated, and too low. time: of
 * all nodes that were kept since the last choice. Return whether the order changed.
 */
static bool order_choose(struct adaptive *adaptive, float time)
{
	float density = hits_by_density(adaptive, time), uses = cells_hits(&adaptive->cells, time);
	float learned = adaptive->by_uses ? uses : density;
	enum order before = adaptive->order;

	if (before != BY_BIRTH)
		learned = (float)adaptive->hits;
	lead_add(&adaptive->birth_lead, (float)adaptive->birth_hits - learned);
	lead_add(&adaptive->uses_lead, uses - density);
	adaptive->hits = adaptive->birth_hits = 0;
	adaptive->by_uses = adaptive->uses_lead.sum > 0 && (adaptive->by_uses || lead_is_clear(&adaptive->uses_lead));
	if (lead_is_clear(&adaptive->birth_lead))
		adaptive->order = BY_BIRTH;
	else
		adaptive->order = adaptive->by_uses ? BY_USES : BY_DENSITY;
	return adaptive->order != before;
}

static void step(struct eviction *eviction)
{
	struct adaptive *adaptive = eviction->state;
	/* After a reduction of the size of the cache, more nodes can be kept until the next eviction. */
	uint32_t size = eviction->stats.kept > adaptive->size ? eviction->stats.kept : adaptive->size;
	bool order_changed;

	nodes_look(eviction, looks(eviction->entered, size / NODES_SHARE));
	ghosts_look(eviction, looks((adaptive->bucket_mask + 1) * GHOST_WAYS, size / GHOSTS_SHARE));
	if (++adaptive->turned < TURN_LEAST || adaptive->turned < size / TURN_SHARE)
		return;
	order_changed = order_choose(adaptive, (float)eviction->stats.kept * (float)adaptive->turned);
	adaptive->turned = 0;
	learn(adaptive);
	if (order_changed)
		lists_change(eviction);
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
	adaptive->birth_shift = 0;
	while (size >> adaptive->birth_shift >= 2 * BIRTH_STEPS)
		adaptive->birth_shift++;
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

/* Convert the births of kept nodes after birth_shift has changed. */
static void births_rescale(struct adaptive *adaptive, uint32_t shift_before)
{
	uint32_t now_before = adaptive->births >> shift_before;

	for (uint32_t node = bitmap_next(&adaptive->kept, 0); node != BITMAP_NONE;
		node = bitmap_next(&adaptive->kept, node + 1)) {
		uint16_t *birth = &adaptive->entries[node].birth;
		uint32_t age = least((uint16_t)(now_before - *birth), BIRTH_FAR) << shift_before;

		*birth = (uint16_t)(births_now(adaptive) - least(age >> adaptive->birth_shift, BIRTH_FAR));
	}
}

/* Change the size of the cache. The ghosts are discarded, and the counts are adapted. */
static void rescale(struct eviction *eviction, uint32_t size)
{
	struct adaptive *adaptive = eviction->state;
	uint32_t shift = adaptive->age_shift, birth_shift = adaptive->birth_shift;

	/* Do not access memory that was never used. */
	if (eviction->stats.ghosts)
		memset(adaptive->ghosts, 0,
			(size_t)(adaptive->bucket_mask + 1) * GHOST_WAYS * sizeof(*adaptive->ghosts));
	eviction->stats.ghosts = 0;
	size_set(adaptive, size);
	fresh_add(adaptive);
	counts_rescale(adaptive, shift);
	births_rescale(adaptive, birth_shift);
	lists_change(eviction);
	learn(adaptive);
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
	bitmap_fini(&adaptive->kept);
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
	adaptive->room = UINT32_MAX;
	cells_begin(&adaptive->cells);
	adaptive->entries = calloc((size_t)nodes + LISTS, sizeof(*adaptive->entries));
	adaptive->ghosts = calloc((size_t)(adaptive->bucket_mask + 1) * GHOST_WAYS, sizeof(*adaptive->ghosts));
	if (!adaptive->entries || !adaptive->ghosts || bitmap_init(&adaptive->occupied, LISTS) ||
		bitmap_init(&adaptive->kept, nodes))
		return -ENOMEM;
	for (uint32_t list = 0; list < LISTS; list++)
		adaptive->entries[nodes + list].prev = adaptive->entries[nodes + list].next = nodes + list;
	learn(adaptive);
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

	bitmap_add(&adaptive->kept, node);
	adaptive->entries[node] = (struct entry){.seen = now_of(eviction)};
	entry_place(adaptive, node, parent);
	if (!ghost_return(eviction, node))
		adaptive->entries[node].birth = (uint16_t)(++adaptive->births >> adaptive->birth_shift);
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
	uint32_t kind = class_of(adaptive, entry), cell = cell_of(entry);

	time_count(adaptive, kind, cell, age - least(unseen, age), age);
	touch_count(adaptive, kind, cell, age);
	adaptive->hits++;
	adaptive->birth_hits += birth_hits(adaptive, entry->birth);
	entry->seen = now_of(eviction);
	entry->pause = pause_after(entry->touches, entry->pause, age);
	entry->touches += entry->touches < UINT8_MAX;
	entry->left = false;
	step(eviction);
}

static void adaptive_left(struct eviction *eviction, uint32_t node, bool evicted)
{
	struct adaptive *adaptive = eviction->state;

	node_count(eviction, node);
	if (evicted) {
		size_look(eviction);
		ghost_add(eviction, node);
		adaptive->room = eviction->stats.kept - 1;
		adaptive->room_births = adaptive->births;
	}
	bitmap_remove(&adaptive->kept, node);
}

static float adaptive_worth(const struct eviction *eviction, uint32_t node)
{
	const struct adaptive *adaptive = eviction->state;
	const struct entry *entry = &adaptive->entries[node];

	if (adaptive->order == BY_USES)
		return adaptive->cells.rates[cell_of(entry)];
	/* Only the order is known. The rate is assumed to be inversely proportional to the age. */
	if (adaptive->order == BY_BIRTH) {
		uint32_t units = 1 + least(birth_age(adaptive, entry->birth), BIRTH_FAR);

		return first_guess / (float)(units << adaptive->birth_shift);
	}
	return adaptive->density[class_of(adaptive, entry)][age_of(adaptive, node_clocks(eviction, node))];
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
