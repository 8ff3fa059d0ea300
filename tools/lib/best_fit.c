/*
 * best_fit.c - a caching allocator without remapping, for comparison with gpool_malloc_async(). It follows the design
 * of current allocators as closely as possible:
 *
 *   - Memory is divided into segments: 2 MiB for requests up to 1 MiB, 20 MiB for requests below 10 MiB, and the size
 *     of the request, in steps of 2 MiB, for larger ones. Small requests never share a segment with others.
 *   - A request takes the smallest free piece that is large enough; of two, the one at the lower address. The rest of
 *     the piece stays free, unless a large piece would leave 1 MiB or less. Sizes are rounded up to 512 bytes, not to
 *     pages.
 *   - Freed pieces are merged with free neighbors of the same segment and stream. A piece belongs to the stream that
 *     freed it, which may use it at once. Other streams may use it when that stream has reached the free. While only
 *     one stream is in use, no fences are recorded.
 *   - If no segment can be allocated, the allocator waits for the streams of segments without live allocations, frees
 *     these segments, and retries.
 *
 * Compared with gpool, it rounds less and makes almost no driver calls once it has grown, but it cannot combine
 * separate pieces. A segment is a block of the pool. The block is contiguous as long as the pool has enough free pages,
 * anywhere; segments here therefore cost less, and fail later, than with the driver's malloc. One lock protects
 * everything, even while a segment is allocated.
 */
#include "tools/lib/allocator.h"

#include <bsd/sys/tree.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/queue.h>

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)

enum { GRAIN = 512, SETS_MAX = 256 };

/* Each segment serves requests of one size class. */
enum size_class { CLASS_SMALL, CLASS_LARGE, CLASSES };
static const uint64_t small_most = MIB, small_segment = 2 * MIB, middle_most = 10 * MIB, middle_segment = 20 * MIB,
		      large_step = 2 * MIB, large_rest = MIB;

struct segment;
struct stream_set;

/* A part of a segment. */
struct piece {
	RB_ENTRY(piece) node; /* free: in its set, by size; allocated: among all allocated pieces, by address */
	TAILQ_ENTRY(piece) waiting;
	struct piece *before, *after; /* neighbors in the segment */
	struct segment *segment;
	struct stream_set *set; /* free: the set that it belongs to; else NULL */
	uint64_t address, bytes;
	/*
	 * For a piece in a stream's set: signaled when the stream has reached the free. 0: not recorded, because only
	 * one stream was in use; then no wait is needed.
	 */
	struct gpool_fence fence;
};

struct segment {
	TAILQ_ENTRY(segment) entry;
	struct gpool_block block;
	struct piece *first;
	enum size_class size_class;
	uint64_t bytes;
};

static int compare_sizes(const struct piece *a, const struct piece *b)
{
	return a->bytes != b->bytes ? (a->bytes > b->bytes) - (a->bytes < b->bytes)
				    : (a->address > b->address) - (a->address < b->address);
}

static int compare_addresses(const struct piece *a, const struct piece *b)
{
	return (a->address > b->address) - (a->address < b->address);
}

RB_HEAD(size_tree, piece);
RB_HEAD(address_tree, piece);
/* RB_GENERATE_STATIC() needs a macro that only BSD has. */
#define TREE_FUNCTION static __attribute__((unused))
RB_GENERATE_INTERNAL(size_tree, piece, node, compare_sizes, TREE_FUNCTION)
RB_GENERATE_INTERNAL(address_tree, piece, node, compare_addresses, TREE_FUNCTION)
TAILQ_HEAD(piece_queue, piece);
TAILQ_HEAD(segment_queue, segment);

/* Free pieces of one stream. All streams may use the pieces in the first set. */
struct stream_set {
	uint32_t stream;
	struct size_tree free[CLASSES];
	struct piece_queue waiting; /* in the order of their fences; empty in the first set */
};

struct best_fit {
	struct allocator allocator;
	pthread_mutex_t lock;
	struct stream_set sets[SETS_MAX];
	uint32_t set_count; /* at least 1 */
	bool unordered;     /* memory was freed without a stream */
	struct address_tree allocated;
	struct segment_queue segments;
	uint64_t live;
	_Atomic uint64_t mapped;
};

static struct best_fit *best_fit_of(struct allocator *allocator)
{
	return (struct best_fit *)allocator; /* its first member */
}

/* ---- sets ---- */

static bool set_is_first(const struct best_fit *pool, const struct stream_set *set)
{
	return set == &pool->sets[0];
}

static void set_add(struct best_fit *pool, struct stream_set *set, struct piece *piece)
{
	piece->set = set;
	RB_INSERT(size_tree, &set->free[piece->segment->size_class], piece);
	if (!set_is_first(pool, set))
		TAILQ_INSERT_TAIL(&set->waiting, piece, waiting);
}

static void set_remove(struct best_fit *pool, struct piece *piece)
{
	RB_REMOVE(size_tree, &piece->set->free[piece->segment->size_class], piece);
	if (!set_is_first(pool, piece->set))
		TAILQ_REMOVE(&piece->set->waiting, piece, waiting);
	piece->set = NULL;
}

/* Merge `piece`, which is in no set, with its successor. */
static void piece_absorb(struct piece *piece)
{
	struct piece *next = piece->after;

	piece->bytes += next->bytes;
	piece->after = next->after;
	if (piece->after)
		piece->after->before = piece;
	free(next);
}

/*
 * Add a free piece to a set and merge it with its neighbors in the same set. The merged piece has the fence of
 * `piece`, which is the latest.
 */
static void piece_release(struct best_fit *pool, struct stream_set *set, struct piece *piece)
{
	if (piece->after && piece->after->set == set) {
		set_remove(pool, piece->after);
		piece_absorb(piece);
	}
	if (piece->before && piece->before->set == set) {
		struct piece *before = piece->before;

		set_remove(pool, before);
		before->fence = piece->fence;
		piece_absorb(before);
		piece = before;
	}
	set_add(pool, set, piece);
}

/*
 * Return a fence after the frees of a stream. If the stream is closed, its frees have been reached; if it is broken,
 * their state is unknown.
 */
static struct gpool_fence fence_behind(struct best_fit *pool, uint32_t stream)
{
	struct gpool_fence fence = {0};
	int error = gpool_fence_record(pool->allocator.pool, stream, &fence);

	if (error && error != -EINVAL)
		fence.value = UINT64_MAX; /* no fence: never signaled */
	return fence;
}

/* Record a fence for the pieces of this stream that have none. */
static void set_fence(struct best_fit *pool, struct stream_set *set)
{
	struct gpool_fence fence = fence_behind(pool, set->stream);
	struct piece *piece;

	TAILQ_FOREACH(piece, &set->waiting, waiting)
	if (!piece->fence.value)
		piece->fence = fence;
}

static bool many_streams(const struct best_fit *pool)
{
	return pool->set_count - 1 + pool->unordered > 1;
}

/* Prepare for another stream: record the fences that were omitted while only one stream was in use. */
static void set_appears(struct best_fit *pool)
{
	if (pool->set_count == 2 && !TAILQ_EMPTY(&pool->sets[1].waiting))
		set_fence(pool, &pool->sets[1]);
}

/* Return the set of a stream; create it if necessary. NULL: the table is full. */
static struct stream_set *set_of(struct best_fit *pool, uint32_t stream)
{
	struct stream_set *set = &pool->sets[pool->set_count];

	if (!stream) {
		if (!pool->unordered)
			set_appears(pool);
		pool->unordered = true;
		return &pool->sets[0];
	}
	for (uint32_t i = 1; i < pool->set_count; i++)
		if (pool->sets[i].stream == stream)
			return &pool->sets[i];
	if (pool->set_count == SETS_MAX)
		return NULL;
	set_appears(pool);
	set->stream = stream;
	pool->set_count++;
	return set;
}

/* Move pieces whose streams have reached their frees to the first set. */
static void sets_sweep(struct best_fit *pool)
{
	for (uint32_t i = 1; i < pool->set_count && many_streams(pool); i++) {
		struct stream_set *set = &pool->sets[i];
		struct piece *piece;

		while ((piece = TAILQ_FIRST(&set->waiting)) &&
			(!piece->fence.value || gpool_fence_done(pool->allocator.pool, piece->fence) == 1)) {
			set_remove(pool, piece);
			piece->fence.value = 0;
			piece_release(pool, &pool->sets[0], piece);
		}
	}
}

static struct piece *set_find(struct stream_set *set, enum size_class size_class, uint64_t bytes)
{
	struct piece key = {.bytes = bytes};

	return RB_NFIND(size_tree, &set->free[size_class], &key);
}

/* ---- segments ---- */

static uint64_t segment_bytes(uint64_t bytes)
{
	return bytes <= small_most    ? small_segment
		: bytes < middle_most ? middle_segment
				      : (bytes + large_step - 1) / large_step * large_step;
}

/* Allocate a segment, as one free piece in no set. */
static int segment_fetch(struct best_fit *pool, enum size_class size_class, uint64_t bytes, struct piece **piece)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool *pages = pool->allocator.pool;
	uint64_t page_bytes = gpool_page_bytes(pages), count = (segment_bytes(bytes) + page_bytes - 1) / page_bytes;
	struct segment *segment = calloc(1, sizeof(*segment));
	struct piece *first = calloc(1, sizeof(*first));
	int error = !segment || !first ? -ENOMEM : count > gpool_page_count(pages) ? -ENOSPC : 0;

	options.flags = GPOOL_ALLOC_NO_EVICT;
	options.usage = GPOOL_USAGE_TEMP_BUFFER;
	if (!error)
		error = gpool_alloc(pages, (uint32_t)count, &options, &segment->block);
	if (!error) {
		error = gpool_address(pages, &segment->block, &first->address);
		if (error)
			gpool_free(pages, &segment->block);
	}
	if (error) {
		free(segment);
		free(first);
		return error;
	}
	segment->first = first;
	segment->size_class = size_class;
	segment->bytes = first->bytes = count * page_bytes;
	first->segment = segment;
	TAILQ_INSERT_TAIL(&pool->segments, segment, entry);
	atomic_fetch_add_explicit(&pool->mapped, segment->bytes, memory_order_relaxed);
	*piece = first;
	return 0;
}

/* Free a segment; no GPU work may still use it. */
static void segment_drop(struct best_fit *pool, struct segment *segment)
{
	struct piece *piece = segment->first, *next;

	for (; piece; piece = next) {
		next = piece->after;
		free(piece);
	}
	atomic_fetch_sub_explicit(&pool->mapped, segment->bytes, memory_order_relaxed);
	TAILQ_REMOVE(&pool->segments, segment, entry);
	gpool_free(pool->allocator.pool, &segment->block);
	free(segment);
}

/* Wait for the stream of a free piece. Return false if that is not possible. */
static bool piece_await(struct best_fit *pool, struct piece *piece)
{
	if (set_is_first(pool, piece->set))
		return true;
	if (!piece->fence.value && !many_streams(pool))
		set_fence(pool, piece->set);
	return !piece->fence.value || gpool_fence_wait(pool->allocator.pool, piece->fence, -1) == 0;
}

/* Return true if the segment has no live allocation; its pieces may belong to several streams. */
static bool segment_idle(const struct segment *segment)
{
	const struct piece *piece = segment->first;

	while (piece && piece->set)
		piece = piece->after;
	return !piece;
}

/* Free all segments without live allocations. Return true if there were any. */
static bool segments_release(struct best_fit *pool)
{
	struct segment *segment = TAILQ_FIRST(&pool->segments), *next;
	bool any = false;

	for (; segment; segment = next) {
		struct piece *piece = segment->first;

		next = TAILQ_NEXT(segment, entry);
		if (!segment_idle(segment))
			continue;
		while (piece && piece_await(pool, piece))
			piece = piece->after;
		if (piece)
			continue; /* its stream is broken */
		for (piece = segment->first; piece; piece = piece->after)
			set_remove(pool, piece);
		segment_drop(pool, segment);
		any = true;
	}
	return any;
}

/* ---- the calls ---- */

/*
 * Take a piece of at least `bytes` from *set, which is the stream's set or the first set. A segment allocated for a
 * stream belongs to that stream.
 */
static int piece_take(struct best_fit *pool, struct stream_set **set, uint64_t bytes, struct piece **taken)
{
	enum size_class size_class = bytes <= small_most ? CLASS_SMALL : CLASS_LARGE;
	struct piece *piece = set_find(*set, size_class, bytes);
	int error;

	if (!piece) {
		sets_sweep(pool);
		piece = set_find(&pool->sets[0], size_class, bytes);
	}
	if (piece) {
		*set = piece->set;
		set_remove(pool, piece);
		*taken = piece;
		return 0;
	}
	error = segment_fetch(pool, size_class, bytes, taken);
	if ((error == -ENOSPC || error == -EDQUOT) && segments_release(pool))
		error = segment_fetch(pool, size_class, bytes, taken);
	return error;
}

/* Split a piece that was just taken: return the part beyond `bytes` to the set. */
static int piece_split(struct best_fit *pool, struct stream_set *set, struct piece *piece, uint64_t bytes)
{
	uint64_t rest = piece->bytes - bytes;
	struct piece *after;

	if (rest < (piece->segment->size_class == CLASS_SMALL ? GRAIN : large_rest + 1))
		return 0;
	after = calloc(1, sizeof(*after));
	if (!after)
		return -ENOMEM;
	after->before = piece;
	after->after = piece->after;
	after->segment = piece->segment;
	after->address = piece->address + bytes;
	after->bytes = rest;
	after->fence = piece->fence;
	if (after->after)
		after->after->before = after;
	piece->after = after;
	piece->bytes = bytes;
	set_add(pool, set, after);
	return 0;
}

static int allocate(struct best_fit *pool, uint32_t stream, uint64_t bytes, uint64_t *address)
{
	struct stream_set *set = set_of(pool, stream);
	struct piece *piece;
	int error;

	if (!set)
		return -EUSERS;
	error = piece_take(pool, &set, bytes, &piece);
	if (error)
		return error;
	error = piece_split(pool, set, piece, bytes);
	if (error) {
		piece_release(pool, set, piece);
		return error;
	}
	RB_INSERT(address_tree, &pool->allocated, piece);
	pool->live += piece->bytes;
	*address = piece->address;
	return 0;
}

static int best_fit_malloc(struct allocator *allocator, uint64_t bytes, uint32_t stream, uint64_t *address)
{
	struct best_fit *pool = best_fit_of(allocator);
	int error;

	if (bytes == 0)
		return -EINVAL;
	if (bytes > UINT64_MAX / 2)
		return -ENOSPC;
	pthread_mutex_lock(&pool->lock);
	error = allocate(pool, stream, (bytes + GRAIN - 1) / GRAIN * GRAIN, address);
	pthread_mutex_unlock(&pool->lock);
	return error;
}

/* Return the set for a piece that this stream frees now. */
static struct stream_set *free_behind(struct best_fit *pool, struct piece *piece, uint32_t stream)
{
	struct stream_set *set = set_of(pool, stream);

	piece->fence.value = 0;
	if (!set || set_is_first(pool, set))
		return &pool->sets[0];
	if (!many_streams(pool))
		return set;
	piece->fence = fence_behind(pool, stream);
	return piece->fence.value ? set : &pool->sets[0];
}

static int best_fit_free(struct allocator *allocator, uint64_t address, uint32_t stream)
{
	struct best_fit *pool = best_fit_of(allocator);
	struct piece key = {.address = address}, *piece;

	pthread_mutex_lock(&pool->lock);
	piece = RB_FIND(address_tree, &pool->allocated, &key);
	if (piece) {
		RB_REMOVE(address_tree, &pool->allocated, piece);
		pool->live -= piece->bytes;
		piece_release(pool, free_behind(pool, piece, stream), piece);
	}
	pthread_mutex_unlock(&pool->lock);
	return piece ? 0 : -EINVAL;
}

/* ---- statistics ---- */

static uint64_t best_fit_mapped(struct allocator *allocator)
{
	return atomic_load_explicit(&best_fit_of(allocator)->mapped, memory_order_relaxed);
}

static void best_fit_totals(struct allocator *allocator, struct allocator_totals *totals)
{
	struct best_fit *pool = best_fit_of(allocator);

	pthread_mutex_lock(&pool->lock);
	*totals = (struct allocator_totals){.live = pool->live, .mapped = best_fit_mapped(allocator)};
	totals->free = totals->mapped - totals->live;
	for (uint32_t i = 0; i < pool->set_count; i++)
		for (int c = 0; c < CLASSES; c++) {
			const struct piece *largest = RB_MAX(size_tree, &pool->sets[i].free[c]);

			if (largest && largest->bytes > totals->largest_free)
				totals->largest_free = largest->bytes;
		}
	pthread_mutex_unlock(&pool->lock);
}

static int best_fit_visit(struct allocator *allocator,
	void (*region)(void *context, uint64_t address, uint64_t bytes, enum region_kind kind), void *context)
{
	struct best_fit *pool = best_fit_of(allocator);
	const struct segment *segment;

	pthread_mutex_lock(&pool->lock);
	TAILQ_FOREACH(segment, &pool->segments, entry)
	for (const struct piece *piece = segment->first; piece; piece = piece->after)
		region(context, piece->address, piece->bytes, piece->set ? REGION_FREE : REGION_ALLOCATED);
	pthread_mutex_unlock(&pool->lock);
	return 0;
}

/* ---- open and close ---- */

static int best_fit_open(struct gpool *pages, struct allocator **allocator)
{
	struct best_fit *pool = calloc(1, sizeof(*pool));

	if (!pool)
		return -ENOMEM;
	pool->allocator.ops = &best_fit_ops;
	pool->allocator.pool = pages;
	pthread_mutex_init(&pool->lock, NULL);
	TAILQ_INIT(&pool->segments);
	for (int i = 0; i < SETS_MAX; i++)
		TAILQ_INIT(&pool->sets[i].waiting);
	pool->set_count = 1;
	*allocator = &pool->allocator;
	return 0;
}

static void best_fit_close(struct allocator *allocator)
{
	struct best_fit *pool;
	struct segment *segment;

	if (!allocator)
		return;
	pool = best_fit_of(allocator);
	while ((segment = TAILQ_FIRST(&pool->segments)))
		segment_drop(pool, segment);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

const struct allocator_ops best_fit_ops = {
	.name = "best-fit",
	.text = "a caching allocator: best fit, merges free neighbors, no remapping",
	.open = best_fit_open,
	.close = best_fit_close,
	.malloc = best_fit_malloc,
	.free = best_fit_free,
	.mapped = best_fit_mapped,
	.totals = best_fit_totals,
	.visit = best_fit_visit,
};
