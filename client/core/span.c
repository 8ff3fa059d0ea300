/*
 * span.c - spans: slabs of equal pieces, where each page has one size class and one usage.
 *
 * The sizes of the classes are 256 bytes times 4, 5, 6 or 7 times a power of two, so that rounding up wastes at most a
 * fifth. Below 1 KB, every multiple of 256 bytes is a class. A page of a class is a block that is pinned once as long
 * as it contains a span, and freed with its last span. The pin does not count as leaked: spans of different parts of a
 * program share the page, and none of these parts can refresh or end the pin for the others.
 *
 * Invariant, under the lock: the list of a class and usage contains exactly those of its pages that have a free piece.
 */
#include "client/core/alloc.h"
#include "client/core/last_error.h"
#include "client/core/span.h"
#include "shm/plural.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/queue.h>

enum {
	SPAN_UNIT = 256,
	ALIGNMENT_MAX = 4096,
};

struct span_page {
	TAILQ_ENTRY(span_page) link;
	struct gpool_block block;
	uint64_t address;
	uint32_t class;
	uint32_t usage;
	uint32_t pieces, used;
	uint32_t hint;   /* words of bits[] before this index have no free piece */
	uint64_t bits[]; /* 1: free */
};
TAILQ_HEAD(span_list, span_page);

struct spans {
	pthread_mutex_t lock;
	struct span_list with_room[GPOOL_USAGE_COUNT][SPAN_CLASSES];
	struct span_page **at; /* [page_count]; the kernel allocates the memory on first use */
	size_t bytes;
	_Atomic uint32_t page_count; /* number of pages with spans */
};

uint32_t span_pages(const struct gpool *pool)
{
	return atomic_load_explicit(&pool->spans->page_count, memory_order_relaxed);
}

int span_open(struct gpool *pool)
{
	struct spans *spans = calloc(1, sizeof(*spans));
	uint32_t alignment = atomic_load_explicit(&pool->header->alignment, memory_order_relaxed);

	if (!spans)
		return -ENOMEM;
	/* Without an agent that publishes a valid alignment, use the smallest. Pages are aligned to ALIGNMENT_MAX. */
	pool->alignment = alignment > SPAN_UNIT && alignment <= ALIGNMENT_MAX && !(alignment & (alignment - 1))
		? alignment
		: SPAN_UNIT;
	spans->bytes = pool->page_count * sizeof(*spans->at);
	spans->at =
		mmap(NULL, spans->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (spans->at == MAP_FAILED) {
		free(spans);
		return -ENOMEM;
	}
	pthread_mutex_init(&spans->lock, NULL);
	for (int usage = 0; usage < GPOOL_USAGE_COUNT; usage++)
		for (int class = 0; class < SPAN_CLASSES; class ++)
			TAILQ_INIT(&spans->with_room[usage][class]);
	pool->spans = spans;
	return 0;
}

void span_close(struct gpool *pool)
{
	struct spans *spans = pool->spans;

	if (!spans)
		return;
	for (uint32_t page = 0; page < pool->page_count; page++)
		free(spans->at[page]);
	munmap(spans->at, spans->bytes);
	pthread_mutex_destroy(&spans->lock);
	free(spans);
	pool->spans = NULL;
}

/* ---- size classes ---- */

static uint32_t class_bytes(uint32_t class)
{
	if (class < 3) /* class 3 would have 4 units, like class 4 */
		return (class + 1) * SPAN_UNIT;
	return (4 + class % 4) << (class / 4 - 1) << 8;
}

static uint32_t class_of(uint32_t bytes)
{
	uint32_t units = (bytes + SPAN_UNIT - 1) / SPAN_UNIT, shift, class;

	if (units < 4)
		return units - 1;
	/* the two bits below the highest one select one of four classes */
	shift = 29 - (uint32_t)__builtin_clz(units);
	class = 4 * (shift + 1) + ((units >> shift) & 3);
	return units & ((1u << shift) - 1) ? class + 1 : class;
}

uint32_t span_class_of(const struct gpool *pool, uint32_t bytes)
{
	/* The pieces of a page are adjacent, so all are aligned if their size is a multiple. */
	uint32_t class = class_of((bytes + pool->alignment - 1) & -pool->alignment);

	while (unlikely(class_bytes(class) & (pool->alignment - 1)))
		class ++;
	return class;
}

/* ---- pages ---- */

static struct span_page *page_create(uint32_t class, uint32_t usage, uint32_t pieces)
{
	uint32_t words = (pieces + 63) / 64;
	struct span_page *page = calloc(1, sizeof(*page) + words * sizeof(page->bits[0]));

	if (!page)
		return NULL;
	page->class = class;
	page->usage = usage;
	page->pieces = pieces;
	for (uint32_t i = 0; i < pieces; i++)
		page->bits[i / 64] |= UINT64_C(1) << (i % 64);
	return page;
}

/* Add a page to the list of a class. The caller holds the lock. */
static int page_add(struct gpool *pool, uint32_t class, uint32_t usage, uint32_t flags, struct span_page **added)
{
	struct span_page *page = page_create(class, usage, (uint32_t)(pool->page_bytes / class_bytes(class)));
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	int error;

	if (!page)
		return -ENOMEM;
	options.usage = usage;
	options.flags = flags;
	error = alloc_own(pool, 1, &options, BLOCK_RANGE, &page->block);
	if (error) {
		free(page);
		return error;
	}
	gpool_address(pool, &page->block, &page->address);
	pool->spans->at[page->block.page] = page;
	TAILQ_INSERT_HEAD(&pool->spans->with_room[usage][class], page, link);
	atomic_fetch_add_explicit(&pool->spans->page_count, 1, memory_order_relaxed);
	*added = page;
	return 0;
}

static uint32_t piece_take(struct gpool *pool, struct span_page *page)
{
	uint32_t word = page->hint, piece;

	while (!page->bits[word])
		word++;
	page->hint = word;
	piece = word * 64 + (uint32_t)__builtin_ctzll(page->bits[word]);
	page->bits[word] &= page->bits[word] - 1;
	if (++page->used == page->pieces)
		TAILQ_REMOVE(&pool->spans->with_room[page->usage][page->class], page, link);
	return piece;
}

static int fail_freed(const struct gpool_span *span)
{
	return fail(-ESTALE, "the span of %u byte%s at address 0x%llx was already freed", span->bytes,
		plural(span->bytes), (unsigned long long)span->address);
}

/* Free a piece. Return -ESTALE if it is not in use. */
static int piece_put(struct gpool *pool, struct span_page *page, uint32_t piece, const struct gpool_span *span)
{
	uint64_t bit = UINT64_C(1) << (piece % 64);
	struct span_list *list = &pool->spans->with_room[page->usage][page->class];
	int error = 0;

	if (page->bits[piece / 64] & bit)
		return fail_freed(span);
	page->bits[piece / 64] |= bit;
	if (piece / 64 < page->hint)
		page->hint = piece / 64;
	if (page->used-- == page->pieces)
		TAILQ_INSERT_HEAD(list, page, link);
	if (page->used == 0) {
		TAILQ_REMOVE(list, page, link);
		pool->spans->at[page->block.page] = NULL;
		atomic_fetch_sub_explicit(&pool->spans->page_count, 1, memory_order_relaxed);
		error = gpool_free(pool, &page->block);
		free(page);
	}
	return error;
}

/* ---- calls ---- */

int span_alloc(struct gpool *pool, uint64_t bytes, uint32_t usage, uint32_t flags, struct gpool_span *span)
{
	uint32_t class, piece;
	struct span_page *page;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	if (bytes == 0 || bytes > pool->page_bytes / 2)
		return fail(-EINVAL, "bytes is %llu; a span must have 1 to %llu bytes, half a page",
			(unsigned long long)bytes, (unsigned long long)pool->page_bytes / 2);
	if (usage >= GPOOL_USAGE_COUNT)
		return fail(-EINVAL, "usage is %u; the maximum is %d", usage, GPOOL_USAGE_COUNT - 1);
	class = span_class_of(pool, (uint32_t)bytes);
	pthread_mutex_lock(&pool->spans->lock);
	page = TAILQ_FIRST(&pool->spans->with_room[usage][class]);
	if (!page)
		error = page_add(pool, class, usage, flags, &page);
	if (!error) {
		piece = piece_take(pool, page);
		*span = (struct gpool_span){
			.block = page->block,
			.address = page->address + piece * class_bytes(class),
			.offset = piece * class_bytes(class),
			.bytes = class_bytes(class),
		};
	}
	pthread_mutex_unlock(&pool->spans->lock);
	return error;
}

int gpool_span_alloc(struct gpool *pool, uint64_t bytes, uint32_t usage, struct gpool_span *span)
{
	return span_alloc(pool, bytes, usage, 0, span);
}

int gpool_span_free(struct gpool *pool, const struct gpool_span *span)
{
	struct span_page *page;
	int error;

	if (!pool->alive)
		return -ECHILD;
	if (block_handle_bad(pool, &span->block))
		return fail_handle(pool, &span->block);
	pthread_mutex_lock(&pool->spans->lock);
	page = pool->spans->at[span->block.page];
	if (!page || page->block.tag != span->block.tag || page->block.generation != span->block.generation)
		error = fail_freed(span);
	else if (span->bytes != class_bytes(page->class) || span->offset % span->bytes ||
		span->offset / span->bytes >= page->pieces)
		error = fail(-EINVAL,
			"not the handle of a span: it has %u byte%s at offset %u, in a page with spans of %u byte%s",
			span->bytes, plural(span->bytes), span->offset, class_bytes(page->class),
			plural(class_bytes(page->class)));
	else
		error = piece_put(pool, page, span->offset / span->bytes, span);
	pthread_mutex_unlock(&pool->spans->lock);
	return error;
}
