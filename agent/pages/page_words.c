/*
 * page_words.c - store page words, and update the counts and indexes that depend on them; see pool.h.
 */
#include "agent/pages/pool.h"

#include "agent/base/crash_point.h"
#include "agent/pages/trust.h"

static void words_count(struct pool *pool, enum page_state state, int64_t more)
{
	_Atomic uint32_t *cell = &pool->segment.header->state_pages[state];

	atomic_store_explicit(cell, (uint32_t)((int64_t)atomic_load_explicit(cell, memory_order_relaxed) + more),
		memory_order_relaxed);
}

/* Return the state under which a page is counted. EVICTING pages count as LEASED until the eviction is decided. */
static enum page_state counted_state(uint64_t word)
{
	return page_word_state(word) == PAGE_EVICTING ? PAGE_LEASED : page_word_state(word);
}

void pool_lend(struct pool *pool, uint32_t first, uint32_t count, uint32_t owner)
{
	uint32_t normal = 0;

	for (uint32_t page = first; page < first + count; page++) {
		uint64_t word = pool_word(pool, page);

		normal += page_word_state(word) == PAGE_FREE;
		/* left over from an ended reservation */
		atomic_store_explicit(&pool->ledger.pages[page].reservation, 0, memory_order_release);
		pool_word_set(
			pool, page, STEP_LEND, page_word_make(PAGE_LEASED, owner, page_word_generation(word) + 1));
		crash_point();
	}
	words_count(pool, PAGE_FREE, -(int64_t)normal);
	words_count(pool, PAGE_RESERVED, -(int64_t)(count - normal));
	words_count(pool, PAGE_LEASED, count);
	pool->leased += count;
}

static void words_become(struct pool *pool, uint32_t first, uint32_t count, enum page_step step, uint32_t owner)
{
	enum page_state state = step == STEP_SHARE ? PAGE_SHARED : PAGE_LEASED;

	for (uint32_t page = first; page < first + count; page++) {
		pool_word_set(pool, page, step,
			page_word_make(state, owner, page_word_generation(pool_word(pool, page)) + 1));
		crash_point();
	}
}

void pool_share(struct pool *pool, uint32_t first, uint32_t count, uint32_t object)
{
	words_become(pool, first, count, STEP_SHARE, object);
	words_count(pool, PAGE_LEASED, -(int64_t)count);
	words_count(pool, PAGE_SHARED, count);
	pool->leased -= count;
}

void pool_unshare(struct pool *pool, uint32_t first, uint32_t count, uint32_t owner)
{
	words_become(pool, first, count, STEP_UNSHARE, owner);
	words_count(pool, PAGE_SHARED, -(int64_t)count);
	words_count(pool, PAGE_LEASED, count);
	pool->leased += count;
}

void pool_pass(struct pool *pool, uint32_t first, uint32_t count, uint32_t owner)
{
	words_become(pool, first, count, STEP_PASS, owner);
}

/* Return true for a leased or quarantined page. The owner of a SHARED page is an object's number. */
static bool is_lent(uint64_t word)
{
	return page_word_owner(word) && page_word_state(word) != PAGE_SHARED;
}

/* Set the page words. The caller adds the run to the index. */
static void words_free(struct pool *pool, uint32_t first, uint32_t count, enum page_state to)
{
	uint32_t by_state[PAGE_STATES] = {0}, lent = 0;

	for (uint32_t page = first; page < first + count; page++) {
		uint64_t word = pool_word(pool, page);

		by_state[counted_state(word)]++;
		lent += is_lent(word);
		pool->ledger.pages[page].doubt = 0;
		pool_word_set(pool, page, STEP_TAKE_BACK, page_word_make(to, 0, page_word_generation(word) + 1));
		crash_point();
	}
	for (int state = 0; state < PAGE_STATES; state++)
		if (by_state[state])
			words_count(pool, (enum page_state)state, -(int64_t)by_state[state]);
	words_count(pool, to, count);
	pool->leased -= lent;
}

void pool_take_back(struct pool *pool, uint32_t first, uint32_t count)
{
	uint32_t border = pool->segment.header->reserved_first;

	if (first < border) {
		uint32_t normal = first + count <= border ? count : border - first;

		words_free(pool, first, normal, PAGE_FREE);
		free_runs_put(&pool->free, first, normal);
		trust_put(pool, first, normal);
		first += normal;
		count -= normal;
	}
	if (count) {
		words_free(pool, first, count, PAGE_RESERVED);
		free_runs_put(&pool->reserved, first, count);
		trust_put(pool, first, count);
	}
}

void pool_take_back_word(struct pool *pool, uint32_t word, uint64_t mask)
{
	while (mask) {
		uint32_t at = (uint32_t)__builtin_ctzll(mask);
		uint64_t from = mask >> at;
		uint32_t count = ~from ? (uint32_t)__builtin_ctzll(~from) : 64;

		pool_take_back(pool, word * 64 + at, count);
		if (at + count >= 64)
			break;
		mask &= ~UINT64_C(0) << (at + count);
	}
}

/*
 * Return true if the page is owned by this session. The owner of a SHARED page is an object, which may have the same
 * number.
 */
static bool is_of_session(uint64_t word, uint32_t session)
{
	return page_word_owner(word) == session && page_word_state(word) != PAGE_SHARED;
}

void pool_move(struct pool *pool, uint32_t page, enum page_state state)
{
	uint64_t word = pool_word(pool, page);

	words_count(pool, counted_state(word), -1);
	words_count(pool, state, 1);
	pool_word_set(pool, page, state == PAGE_MOVING ? STEP_MOVE : STEP_UNMOVE,
		page_word_make(state, page_word_owner(word), page_word_generation(word)));
	crash_point();
}

void pool_put_aside(struct pool *pool, uint32_t page, enum page_state state)
{
	uint64_t word = pool_word(pool, page);

	words_count(pool, counted_state(word), -1);
	words_count(pool, state, 1);
	pool_word_set(pool, page, STEP_PUT_ASIDE, page_word_make(state, 0, page_word_generation(word) + 1));
	crash_point();
}

void pool_set_aside(struct pool *pool, uint32_t page)
{
	uint64_t word = pool_word(pool, page);

	words_count(pool, counted_state(word), -1);
	words_count(pool, PAGE_RETIRED, 1);
	pool->leased--;
	pool_word_set(pool, page, STEP_SET_ASIDE, page_word_make(PAGE_RETIRED, 0, page_word_generation(word) + 1));
	crash_point();
}

/* Call `run` for each maximal run of pages of this session. */
static uint32_t for_runs_of(
	struct pool *pool, uint32_t owner, void (*run)(struct pool *pool, uint32_t first, uint32_t count))
{
	uint32_t total = 0;

	for (uint32_t page = 0; page < pool->page_count;) {
		uint32_t first = page;

		while (page < pool->page_count && is_of_session(pool_word(pool, page), owner))
			page++;
		if (page > first) {
			run(pool, first, page - first);
			total += page - first;
		} else {
			page++;
		}
	}
	return total;
}

static void run_quarantine(struct pool *pool, uint32_t first, uint32_t count)
{
	for (uint32_t page = first; page < first + count; page++) {
		uint64_t word = pool_word(pool, page);

		words_count(pool, counted_state(word), -1);
		pool_word_set(pool, page, STEP_QUARANTINE,
			page_word_make(PAGE_QUARANTINED, page_word_owner(word), page_word_generation(word) + 1));
		crash_point();
	}
	words_count(pool, PAGE_QUARANTINED, count);
}

void pool_quarantine_of(struct pool *pool, uint32_t owner)
{
	for_runs_of(pool, owner, run_quarantine);
}

uint32_t pool_take_back_of(struct pool *pool, uint32_t owner)
{
	return for_runs_of(pool, owner, pool_take_back);
}

/* In a new pool all pages are free; after a restart they have their previous state. */
void pool_count_words(struct pool *pool)
{
	uint32_t by_state[PAGE_STATES] = {0};

	pool->leased = 0;
	for (uint32_t page = 0; page < pool->page_count; page++) {
		enum page_state state = counted_state(pool_word(pool, page));

		by_state[state]++;
		pool->leased += is_lent(pool_word(pool, page));
		if (state == PAGE_FREE || state == PAGE_RESERVED)
			trust_put(pool, page, 1);
		if (state == PAGE_FREE)
			free_runs_put(&pool->free, page, 1);
		else if (state == PAGE_RESERVED)
			free_runs_put(&pool->reserved, page, 1);
	}
	for (int state = 0; state < PAGE_STATES; state++)
		atomic_store_explicit(&pool->segment.header->state_pages[state], by_state[state], memory_order_relaxed);
}
