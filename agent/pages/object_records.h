/*
 * object_records.h - read the records of named objects in the pool segment, and their readers in the ledger. Only
 * agent/object changes them.
 */
#ifndef GPOOL_AGENT_OBJECT_RECORDS_H
#define GPOOL_AGENT_OBJECT_RECORDS_H

#include "agent/pages/pool.h"

static inline struct object_record *object_record(const struct pool *pool, uint32_t number)
{
	return &pool->segment.objects[number];
}

static inline enum object_state object_state(const struct pool *pool, uint32_t number)
{
	return (enum object_state)atomic_load_explicit(&object_record(pool, number)->state, memory_order_acquire);
}

/* object_stands() - return true if the object has pages and may be open: CURRENT, OLD, DELETED or LEAVING. */
static inline bool object_stands(const struct pool *pool, uint32_t number)
{
	return object_state(pool, number) >= OBJECT_CURRENT && object_state(pool, number) <= OBJECT_LEAVING;
}

/* object_end_of() - return the end of the records to scan: the record with this number and all later ones are NONE. */
static inline uint32_t object_end_of(const struct pool *pool)
{
	return pool_object_end(&pool->segment);
}

static inline bool object_has_reader(const struct pool *pool, uint32_t number, uint32_t session)
{
	return atomic_load_explicit(&pool->ledger.objects[number].readers[session / 64], memory_order_relaxed) >>
		(session % 64) &
		1;
}

/* object_may_map() - return true if a page with this word belongs to an object that the session has open. */
static inline bool object_may_map(const struct pool *pool, uint32_t session, uint64_t word)
{
	uint32_t number = page_word_owner(word);

	return page_word_state(word) == PAGE_SHARED && number < pool->segment.header->object_count &&
		object_stands(pool, number) && object_has_reader(pool, number, session);
}

#endif
