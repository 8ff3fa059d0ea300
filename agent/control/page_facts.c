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

const struct page_uses *uses_of(const struct pool *pool)
{
	static struct page_uses uses[POOL_SESSIONS];
	struct pool_check_session *sessions;
	uint64_t *seen = calloc((pool->page_count + 63) / 64, sizeof(*seen));
	int count = seen ? pool_check_sessions(pool, &sessions) : -1;

	if (count >= 0) {
		page_map_uses(&pool->segment, sessions, (uint32_t)count, seen, uses);
		free(sessions);
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
