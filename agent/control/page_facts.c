#include "agent/control/page_facts.h"

#include <stdlib.h>

struct page_fact *facts_of(const struct pool *pool)
{
	struct pool_check_session *sessions;
	struct page_fact *facts = malloc(pool->page_count * sizeof(*facts));
	int count = facts ? pool_check_sessions(pool, &sessions) : -1;

	if (count < 0) {
		free(facts);
		return NULL;
	}
	page_map_fill(&pool->segment, sessions, (uint32_t)count, facts);
	free(sessions);
	return facts;
}

const struct page_uses *uses_of(const struct pool *pool, const struct page_fact *facts)
{
	static struct page_uses uses[POOL_SESSIONS];

	page_map_count(facts, pool->page_count, uses);
	return uses;
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
