#include "agent/control/page_facts.h"

#include <stdlib.h>

uint64_t facts_scanned;

/* The facts of the last scan of each pool, and the pool and time of the last counts. */
static struct {
	struct page_fact *facts;
	uint64_t ms;
	uint32_t lists; /* sessions that have not finished a list */
} kept[CONFIG_POOLS_MAX];
static const struct pool *counted;
static uint64_t counted_ms;

bool listing_continues(const struct session *session, struct listing asked)
{
	struct listing next = session->listing;

	return next.pool == asked.pool && next.type == asked.type && next.first == asked.first &&
		next.first_session == asked.first_session;
}

void listing_set(struct session *session, struct listing next)
{
	uint32_t before = session->listing.pool;

	session->listing = next;
	if (next.pool)
		kept[next.pool - 1].lists++;
	if (before && !--kept[before - 1].lists)
		facts_drop(before - 1);
}

static void facts_session_ends(struct session *session)
{
	listing_set(session, (struct listing){.pool = 0});
}

const struct session_part facts_session_part = {.ending = facts_session_ends};

void facts_done(const struct pool *pool)
{
	if (!kept[pool->index].lists)
		facts_drop(pool->index);
}

void facts_drop(uint32_t index)
{
	free(kept[index].facts);
	kept[index].facts = NULL;
}

void facts_expire(const struct pool *pool, uint64_t now_ms)
{
	if (kept[pool->index].facts && now_ms - kept[pool->index].ms > FACTS_MS)
		facts_drop(pool->index);
}

const struct page_fact *facts_of(const struct pool *pool, bool continues)
{
	struct pool_check_session *sessions;
	struct page_fact *facts;
	int count;

	facts_expire(pool, clock_ms());
	if (continues && kept[pool->index].facts)
		return kept[pool->index].facts;
	facts_drop(pool->index);
	facts = malloc(pool->page_count * sizeof(*facts));
	count = facts ? pool_check_sessions(pool, &sessions) : -1;
	if (count < 0) {
		free(facts);
		return NULL;
	}
	page_map_fill(&pool->segment, sessions, (uint32_t)count, facts);
	free(sessions);
	facts_scanned += pool->page_count;
	kept[pool->index].facts = facts;
	kept[pool->index].ms = clock_ms();
	return facts;
}

struct page_fact fact_of(const struct pool *pool, const struct page_fact *facts, uint32_t page)
{
	uint64_t word = pool_word(pool, page);

	if (facts[page].session && facts[page].session != page_word_session(word))
		return (struct page_fact){.state = (uint8_t)page_word_state(word)};
	return facts[page];
}

const struct page_uses *uses_of(const struct pool *pool, bool continues)
{
	static struct page_uses uses[POOL_SESSIONS];
	struct pool_check_session *sessions;
	uint64_t *seen;
	int count;

	if (continues && counted == pool && clock_ms() - counted_ms <= FACTS_MS)
		return uses;
	counted = NULL;
	seen = calloc((pool->page_count + 63) / 64, sizeof(*seen));
	count = seen ? pool_check_sessions(pool, &sessions) : -1;
	if (count >= 0) {
		page_map_uses(&pool->segment, sessions, (uint32_t)count, seen, uses);
		free(sessions);
		facts_scanned += pool->page_count;
		counted = pool;
		counted_ms = clock_ms();
	}
	free(seen);
	return count < 0 ? NULL : uses;
}

const struct session *session_of_fact(const struct pool *pool, const struct page_fact *fact)
{
	return fact->session ? pool->sessions[fact->session] : NULL;
}

uint32_t pins_of_fact(const struct pool *pool, const struct page_fact *fact)
{
	const struct session *session = session_of_fact(pool, fact);

	if (!session || (fact->use != PAGE_USE_HEAD && fact->use != PAGE_USE_INSIDE))
		return 0;
	return atomic_load_explicit(&session->segment.pins[fact->head], memory_order_relaxed);
}

uint32_t idle_ms_of(const struct session *session, uint32_t page)
{
	uint32_t age = (uint32_t)clock_ms() - atomic_load_explicit(&session->segment.touch[page], memory_order_relaxed);

	return age > INT32_MAX ? 0 : age;
}
