/*
 * tails.c - place the runs of adapters' last pages in shared pages.
 *
 * Threads that pin, unpin or free a tail may hold the lock of the set, and wait_pause() then keeps the program's check
 * function from being called. Only loads place pieces, in threads without a check function.
 */
#include "client/lora/load/tails.h"

#include "client/core/alloc.h"
#include "client/core/interrupt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	/*
	 * the highest priority of a block, for pages with tails of several objects: even if such a page was used a
	 * little earlier than an object, the object is evicted first
	 */
	PARTS_PRIORITY = 3,
	TABLE_UNIT = 256, /* the sizes of all pieces are multiples, so that all runs are aligned to it */
};

struct hole {
	uint32_t at, bytes;
};

struct tail_page {
	TAILQ_ENTRY(tail_page) link;
	struct gpool_block block;
	uint64_t address;
	uint32_t users, pieces; /* number of tails with this page, and of their pieces in it */
	bool whole;             /* the tails are all of their adapters */
	bool gone;              /* it was evicted, or may still be written to by a GPU that has failed */
	bool emptied;           /* tails_choose() has chosen it */
	bool stays;             /* tails_stay() */
	struct hole *holes;     /* [hole_count], in ascending order, not adjacent; at most pieces + 1 */
	uint32_t hole_count, hole_room;
};

void tails_begin(struct tails *tails)
{
	pthread_mutex_init(&tails->lock, NULL);
	TAILQ_INIT(&tails->pages);
}

void tails_end(struct tails *tails)
{
	struct tail_page *page;

	/* Only pages of tail_abandon() are left. */
	while ((page = TAILQ_FIRST(&tails->pages))) {
		TAILQ_REMOVE(&tails->pages, page, link);
		free(page->holes);
		free(page);
	}
	pthread_mutex_destroy(&tails->lock);
}

uint32_t tails_page_count(struct tails *tails)
{
	uint32_t count;

	pthread_mutex_lock(&tails->lock);
	count = tails->page_count;
	pthread_mutex_unlock(&tails->lock);
	return count;
}

static bool is_evicted(const struct gpool *pool, const struct tail_page *page)
{
	uint64_t tag = atomic_load_explicit(&block_entry(pool, page->block.page)->tag, memory_order_acquire);

	return (tag & ~(uint64_t)BLOCK_DYING) != page->block.tag;
}

void tails_touch(struct tails *tails, struct gpool *pool)
{
	struct tail_page *page;

	pthread_mutex_lock(&tails->lock);
	TAILQ_FOREACH(page, &tails->pages, link)
	if (!page->whole && !is_evicted(pool, page))
		atomic_store_explicit(&pool->session.touch[page->block.page], pool_clock(pool), memory_order_relaxed);
	pthread_mutex_unlock(&tails->lock);
}

bool tails_grew(struct tails *tails)
{
	bool grew;

	pthread_mutex_lock(&tails->lock);
	grew = tails->grew;
	tails->grew = false;
	pthread_mutex_unlock(&tails->lock);
	return grew;
}

/* ---- holes; under the lock ---- */

static int holes_have(struct tail_page *page, uint32_t count)
{
	uint32_t room = count * 2;
	struct hole *holes;

	if (count <= page->hole_room)
		return 0;
	holes = realloc(page->holes, room * sizeof(*holes));
	if (!holes)
		return -ENOMEM;
	page->holes = holes;
	page->hole_room = room;
	return 0;
}

/* Return the smallest hole with this size, or NULL. */
static struct hole *hole_find(const struct tail_page *page, uint32_t bytes)
{
	struct hole *best = NULL;

	for (struct hole *hole = page->holes; hole < page->holes + page->hole_count; hole++)
		if (hole->bytes >= bytes && (!best || hole->bytes < best->bytes))
			best = hole;
	return best;
}

static void hole_drop(struct tail_page *page, uint32_t index)
{
	page->hole_count--;
	memmove(page->holes + index, page->holes + index + 1, (page->hole_count - index) * sizeof(*page->holes));
}

/* Take memory from a hole. Return: its offset in the page. */
static uint32_t hole_take(struct tail_page *page, struct hole *hole, uint32_t bytes)
{
	uint32_t at = hole->at;

	hole->at += bytes;
	hole->bytes -= bytes;
	if (!hole->bytes)
		hole_drop(page, (uint32_t)(hole - page->holes));
	return at;
}

/* Return memory, for which there is room. */
static void hole_add(struct tail_page *page, uint32_t at, uint32_t bytes)
{
	uint32_t next = 0;
	struct hole *holes = page->holes;

	while (next < page->hole_count && holes[next].at < at)
		next++;
	if (next && holes[next - 1].at + holes[next - 1].bytes == at) {
		holes[next - 1].bytes += bytes;
		if (next < page->hole_count && holes[next].at == at + bytes) {
			holes[next - 1].bytes += holes[next].bytes;
			hole_drop(page, next);
		}
	} else if (next < page->hole_count && holes[next].at == at + bytes) {
		holes[next] = (struct hole){at, holes[next].bytes + bytes};
	} else {
		memmove(holes + next + 1, holes + next, (page->hole_count - next) * sizeof(*holes));
		holes[next] = (struct hole){at, bytes};
		page->hole_count++;
	}
}

/* ---- pages ---- */

static int page_alloc(struct gpool *pool, bool whole, uint32_t flags, struct tail_page **made)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct tail_page *page = calloc(1, sizeof(*page));
	int error = page ? holes_have(page, 4) : -ENOMEM;

	options.usage = GPOOL_USAGE_LORA_WEIGHT;
	options.flags = flags;
	options.priority = whole ? 0 : PARTS_PRIORITY;
	if (!error)
		error = alloc_own(pool, 1, &options, 0, &page->block);
	if (!error) {
		error = gpool_address(pool, &page->block, &page->address);
		if (error)
			gpool_free(pool, &page->block);
	}
	if (error) {
		if (page)
			free(page->holes);
		free(page);
		return error;
	}
	page->holes[page->hole_count++] = (struct hole){0, (uint32_t)pool->page_bytes};
	*made = page;
	return 0;
}

/* Drop a page without tails; under the lock. */
static void page_free(struct tails *tails, struct gpool *pool, struct tail_page *page)
{
	TAILQ_REMOVE(&tails->pages, page, link);
	tails->page_count--;
	wait_pause(true);
	/* -ESTALE: it was evicted; -ETIMEDOUT: the agent is examining it, and can evict it, because it is not pinned */
	gpool_discard(pool, &page->block);
	wait_pause(false);
	free(page->holes);
	free(page);
}

/* ---- place; under the lock ---- */

static bool has_page(const struct tail *tail, const struct tail_page *page)
{
	for (uint32_t i = 0; i < tail->page_count; i++)
		if (tail->pages[i] == page)
			return true;
	return false;
}

/*
 * Return the page with the smallest hole for a piece, or NULL. A page that already contains pieces of the tail is
 * preferred, so that an acquisition pins few pages, and an eviction affects few adapters.
 */
static struct tail_page *page_find(const struct tails *tails, const struct tail *tail, uint32_t bytes)
{
	struct tail_page *page, *best = NULL;
	uint32_t best_bytes = UINT32_MAX;
	bool best_own = false;

	TAILQ_FOREACH(page, &tails->pages, link)
	{
		bool fit = page->whole == tail->whole && !page->gone && !page->emptied;
		const struct hole *hole = fit ? hole_find(page, bytes) : NULL;
		bool own = hole && has_page(tail, page);

		if (hole && (own > best_own || (own == best_own && hole->bytes < best_bytes))) {
			best = page;
			best_bytes = hole->bytes;
			best_own = own;
		}
	}
	return best;
}

/*
 * Place a piece in a page with room, which becomes a page of the tail. Return: 0; -ESTALE: the page was evicted; or as
 * gpool_pin(), -ENOMEM.
 */
static int piece_put(struct gpool *pool, struct tail *tail, struct tail_piece *piece, struct tail_page *page)
{
	/* so that tail_free() needs no memory */
	int error = holes_have(page, page->pieces + 2);

	if (!error && !has_page(tail, page)) {
		error = gpool_pin(pool, &page->block);
		if (error == -ESTALE)
			page->gone = true;
		if (!error) {
			page->users++;
			tail->pages[tail->page_count++] = page;
		}
	}
	if (error)
		return error;
	page->pieces++;
	piece->page = page;
	piece->at = hole_take(page, hole_find(page, piece->bytes), piece->bytes);
	piece->address = page->address + piece->at;
	return 0;
}

/* Place a piece where there is room. Return: 0; -ENOSPC: no page has room; or as piece_put(). */
static int piece_place(struct tails *tails, struct gpool *pool, struct tail *tail, struct tail_piece *piece)
{
	struct tail_page *page = page_find(tails, tail, piece->bytes);

	return page ? piece_put(pool, tail, piece, page) : -ENOSPC;
}

/* Add a new page to the tail and to the list. */
static void page_add(struct tails *tails, struct tail *tail, struct tail_page *page)
{
	page->users = 1;
	page->whole = tail->whole;
	tail->pages[tail->page_count++] = page;
	TAILQ_INSERT_TAIL(&tails->pages, page, link);
	tails->page_count++;
	tails->grew = true;
}

/*
 * Place a piece in a new page. The page is allocated without the lock, which other loads and the ends of adapters need.
 * Another load may make room in the meantime; the piece is still placed in the new page, because each page of a tail
 * must contain a piece of it.
 */
static int piece_place_new(
	struct tails *tails, struct gpool *pool, uint32_t flags, struct tail *tail, struct tail_piece *piece)
{
	struct tail_page *page = NULL; /* for the compiler */
	int error;

	pthread_mutex_unlock(&tails->lock);
	error = page_alloc(pool, tail->whole, flags, &page);
	pthread_mutex_lock(&tails->lock);
	if (error)
		return error;
	page_add(tails, tail, page);
	return piece_put(pool, tail, piece, page);
}

/* Place all pieces, the largest first. */
static int pieces_place(struct tails *tails, struct gpool *pool, uint32_t flags, struct tail *tail)
{
	uint32_t placed = 0;
	int error = 0;

	while (placed < tail->count && !error) {
		error = piece_place(tails, pool, tail, &tail->pieces[placed]);
		if (error == -ENOSPC)
			error = piece_place_new(tails, pool, flags, tail, &tail->pieces[placed]);
		if (!error)
			placed++;
		else if (error == -ESTALE)
			error = 0;
	}
	return error;
}

/* ---- the runs of the last page ---- */

static void matrix_pieces(const struct adapter_layout *layout, const struct adapter_matrix *matrix, uint32_t columns,
	uint32_t rank, struct tail *tail)
{
	uint32_t tiles = adapter_tiles(columns), runs = adapter_matrix_runs(matrix, tiles);

	for (uint32_t i = 0; i < runs; i++) {
		const struct adapter_run *run = &layout->runs[matrix->first + i];

		if (run->page == layout->header->pages - 1)
			tail->pieces[tail->count++] = (struct tail_piece){.run = matrix->first + i,
				.offset = run->offset,
				.bytes = adapter_run_tiles(matrix, tiles, i) * adapter_tile_bytes(rank)};
	}
}

/* Add the table of runs after the runs, if it is small. */
static void table_piece(const struct adapter_layout *layout, struct tail *tail)
{
	uint64_t bytes = tail_table_bytes(layout);

	tail->has_table = bytes && bytes <= layout->header->page_bytes / 2;
	if (tail->has_table)
		tail->pieces[tail->count++] = (struct tail_piece){.run = layout->header->runs,
			.bytes = (uint32_t)(bytes + TABLE_UNIT - 1) / TABLE_UNIT * TABLE_UNIT};
}

static int pieces_list(const struct adapter_layout *layout, struct tail *tail)
{
	uint32_t count = 1; /* the table */

	for (uint32_t i = 0; i < layout->header->runs; i++)
		count += layout->runs[i].page == layout->header->pages - 1;
	*tail = (struct tail){.pieces = calloc(count, sizeof(*tail->pieces)),
		.pages = calloc(count, sizeof(*tail->pages)),
		.whole = layout->header->pages == 1};
	if (!tail->pieces || !tail->pages)
		return -ENOMEM;
	for (uint32_t i = 0; i < layout->header->modules; i++) {
		const struct adapter_module *module = &layout->modules[i];

		matrix_pieces(layout, &module->a, module->in, module->rank, tail);
		matrix_pieces(layout, &module->b, module->out, module->rank, tail);
	}
	table_piece(layout, tail);
	return 0;
}

static int by_bytes(const void *a, const void *b)
{
	const struct tail_piece *x = a, *y = b;

	return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

static int by_run(const void *a, const void *b)
{
	const struct tail_piece *x = a, *y = b;

	return (x->run > y->run) - (x->run < y->run);
}

int tail_make(
	struct tails *tails, struct gpool *pool, const struct adapter_layout *layout, uint32_t flags, struct tail *tail)
{
	int error = pieces_list(layout, tail);

	if (!error) {
		qsort(tail->pieces, tail->count, sizeof(*tail->pieces), by_bytes);
		pthread_mutex_lock(&tails->lock);
		error = pieces_place(tails, pool, flags, tail);
		pthread_mutex_unlock(&tails->lock);
		qsort(tail->pieces, tail->count, sizeof(*tail->pieces), by_run);
	}
	if (error) {
		tail_unpin(pool, tail, GPOOL_FENCE_NONE);
		tail_free(tails, pool, tail, NULL);
	}
	return error;
}

static void arrays_free(struct tail *tail)
{
	free(tail->pieces);
	free(tail->pages);
	*tail = (struct tail){0};
}

void tail_free(struct tails *tails, struct gpool *pool, struct tail *tail, const struct tail *other)
{
	pthread_mutex_lock(&tails->lock);
	for (uint32_t i = 0; i < tail->count; i++) {
		const struct tail_piece *piece = &tail->pieces[i];

		if (!piece->page || (other && other->pieces[i].address == piece->address))
			continue;
		hole_add(piece->page, piece->at, piece->bytes);
		piece->page->pieces--;
	}
	for (uint32_t i = 0; i < tail->page_count; i++)
		if (!--tail->pages[i]->users)
			page_free(tails, pool, tail->pages[i]);
	pthread_mutex_unlock(&tails->lock);
	arrays_free(tail);
}

void tail_abandon(struct tails *tails, struct tail *tail)
{
	pthread_mutex_lock(&tails->lock);
	for (uint32_t i = 0; i < tail->page_count; i++)
		tail->pages[i]->gone = true;
	pthread_mutex_unlock(&tails->lock);
	arrays_free(tail);
}

/* ---- pins ---- */

bool tail_is_gone(const struct gpool *pool, const struct tail *tail)
{
	for (uint32_t i = 0; i < tail->page_count; i++)
		if (is_evicted(pool, tail->pages[i]))
			return true;
	return false;
}

int tail_pin(struct tails *tails, struct gpool *pool, const struct tail *tail)
{
	uint32_t pinned = 0;
	int error = 0;

	wait_pause(true);
	while (pinned < tail->page_count && !error) {
		error = gpool_pin(pool, &tail->pages[pinned]->block);
		pinned += !error;
	}
	wait_pause(false);
	if (likely(!error))
		return 0;
	if (error == -ESTALE) {
		pthread_mutex_lock(&tails->lock);
		tail->pages[pinned]->gone = true;
		pthread_mutex_unlock(&tails->lock);
	}
	while (pinned)
		gpool_unpin(pool, &tail->pages[--pinned]->block);
	return error;
}

/* End a pin when the fence is signaled, without memory to record it. If the GPU has failed, the pin must stay. */
static COLD void unpin_late(struct gpool *pool, const struct gpool_block *block, struct gpool_fence fence)
{
	wait_pause(true);
	if (!gpool_fence_wait(pool, fence, -1))
		gpool_unpin(pool, block);
	wait_pause(false);
}

void tail_unpin(struct gpool *pool, const struct tail *tail, struct gpool_fence fence)
{
	for (uint32_t i = 0; i < tail->page_count; i++) {
		const struct gpool_block *block = &tail->pages[i]->block;

		if (gpool_unpin_after(pool, block, fence) == -ENOMEM)
			unpin_late(pool, block, fence);
	}
}

const struct tail_piece *tail_piece_of(const struct tail *tail, uint32_t run)
{
	const struct tail_piece key = {.run = run};

	return tail->count ? bsearch(&key, tail->pieces, tail->count, sizeof(key), by_run) : NULL;
}

/* ---- moves ---- */

static uint64_t free_bytes(const struct tail_page *page)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < page->hole_count; i++)
		bytes += page->holes[i].bytes;
	return bytes;
}

void tails_stay(struct tails *tails, const struct tail *tail, bool stay)
{
	pthread_mutex_lock(&tails->lock);
	for (uint32_t i = 0; i < tail->page_count; i++)
		tail->pages[i]->stays = stay;
	pthread_mutex_unlock(&tails->lock);
}

struct tail_page *tails_choose(struct tails *tails, const struct gpool *pool)
{
	struct tail_page *page, *best = NULL;
	uint64_t total[2] = {0}, most = 0; /* total: of pages for parts of adapters, and for whole ones */

	pthread_mutex_lock(&tails->lock);
	TAILQ_FOREACH(page, &tails->pages, link)
	total[page->whole] += page->gone ? 0 : free_bytes(page);
	TAILQ_FOREACH(page, &tails->pages, link)
	{
		uint64_t bytes = page->gone || page->stays ? 0 : free_bytes(page);

		if (bytes > most && bytes < pool->page_bytes && total[page->whole] >= pool->page_bytes) {
			most = bytes;
			best = page;
		}
	}
	if (best) {
		best->users++;
		best->emptied = true;
	}
	pthread_mutex_unlock(&tails->lock);
	return best;
}

bool tails_choose_end(struct tails *tails, struct gpool *pool, struct tail_page *page)
{
	bool empty;

	pthread_mutex_lock(&tails->lock);
	page->emptied = false;
	empty = !--page->users;
	if (empty)
		page_free(tails, pool, page);
	pthread_mutex_unlock(&tails->lock);
	return empty;
}

bool tail_has(const struct tail *tail, const struct tail_page *page)
{
	return has_page(tail, page);
}

/*
 * Place a piece again if it is in `page`, or if `again` is set; otherwise keep its place. `from` is pinned. Under the
 * lock.
 */
static int piece_move(struct tails *tails, struct gpool *pool, const struct tail_piece *from,
	const struct tail_page *page, bool again, struct tail *to, struct tail_piece *piece)
{
	int error;

	*piece = *from;
	if (from->page == page || again) {
		piece->page = NULL;
		while ((error = piece_place(tails, pool, to, piece)) == -ESTALE)
			;
		return error;
	}
	if (has_page(to, from->page))
		return 0;
	error = gpool_pin(pool, &from->page->block);
	if (error)
		return error;
	from->page->users++;
	to->pages[to->page_count++] = from->page;
	return 0;
}

int tail_move(
	struct tails *tails, struct gpool *pool, const struct tail *from, const struct tail_page *page, struct tail *to)
{
	int error = 0;

	*to = (struct tail){.pieces = calloc(from->count, sizeof(*to->pieces)),
		.pages = calloc(from->count, sizeof(*to->pages)),
		.has_table = from->has_table,
		.whole = from->whole};
	if (!to->pieces || !to->pages) {
		arrays_free(to);
		return -ENOMEM;
	}
	pthread_mutex_lock(&tails->lock);
	while (to->count < from->count && !error) {
		const struct tail_piece *piece = &from->pieces[to->count];

		error = piece_move(tails, pool, piece, page, piece == tail_table(from), to, &to->pieces[to->count]);
		to->count++;
	}
	pthread_mutex_unlock(&tails->lock);
	if (error) {
		tail_unpin(pool, to, GPOOL_FENCE_NONE);
		tail_free(tails, pool, to, from);
	}
	return error;
}
