/*
 * objects_recover.c - recover objects after an agent's death. The result of each incomplete step depends on the record,
 * the page words, and the manifest that the keeper holds; see the table in docs/internals/agent.md.
 */
#include "agent/object/objects.h"

#include "agent/base/crash_point.h"
#include "agent/keeper/channel.h"
#include "agent/base/log.h"
#include "shm/object_names.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Return a session, even a closed one: its process is still running and may have mapped pages. */
static struct session *session_there(const struct pool *pool, uint32_t id)
{
	return id && id < POOL_SESSIONS ? pool->sessions[id] : NULL;
}

static void book(struct session *session, int pages)
{
	session->leased += (uint32_t)pages;
	session->tenant->leased += (uint32_t)pages;
}

static bool is_shared_by(uint64_t word, uint32_t number)
{
	return page_word_state(word) == PAGE_SHARED && page_word_owner(word) == number;
}

/* Take over the manifests of existing records from the keeper. Manifests without a record are dropped. */
static void manifests_take(struct pool *pool)
{
	const struct module_start *start = pool->agent->start;
	struct manifest_pool geometry = object_geometry(pool);

	for (uint32_t i = 0; i < start->held_count; i++) {
		const struct held *held = &start->held[i];
		struct manifest manifest;
		int error;

		if (held->kind != KEEP_OBJECT || held->pool != pool->index || held->fd_count < 1)
			continue;
		if (!held->id || held->id >= pool->objects->count || object_state(pool, held->id) == OBJECT_NONE) {
			agent_drop(pool->agent, KEEP_OBJECT, pool->index, held->id);
			close(held->fds[0]);
			continue;
		}
		error = manifest_open(held->fds[0], &geometry, &manifest);
		if (!error) {
			error = object_take(pool, held->id, held->fds[0], &manifest);
			manifest_close(&manifest);
		}
		if (error) {
			log_error("pool '%s': the manifest of object %u ('%s') is unusable: %s; deleting it",
				pool->segment.header->name, held->id, object_record(pool, held->id)->name,
				strerror(-error));
			close(held->fds[0]);
		}
	}
}

/* Return true if a publication can be completed: each page belongs to the object already, or to its publisher. */
static bool can_finish(const struct pool *pool, uint32_t number)
{
	const struct object *object = &pool->objects->of[number];
	uint32_t writer = atomic_load_explicit(&object_record(pool, number)->writer, memory_order_relaxed);

	if (object->fd <= 0)
		return false;
	for (uint32_t i = 0; i < object->run_count; i++)
		for (uint32_t page = object->runs[i].first, left = object->runs[i].count; left; page++, left--) {
			uint64_t word = pool_word(pool, page);

			if (!is_shared_by(word, number) &&
				!(page_word_state(word) == PAGE_LEASED && page_word_owner(word) == writer))
				return false;
		}
	return true;
}

static void finish(struct pool *pool, uint32_t number)
{
	const struct object *object = &pool->objects->of[number];
	struct session *writer =
		session_there(pool, atomic_load_explicit(&object_record(pool, number)->writer, memory_order_relaxed));

	for (uint32_t i = 0; i < object->run_count; i++)
		for (uint32_t page = object->runs[i].first, left = object->runs[i].count; left; page++, left--) {
			if (is_shared_by(pool_word(pool, page), number))
				continue;
			pool_share(pool, page, 1, number);
			if (writer)
				book(writer, -1);
		}
	object_set_state(pool, number, OBJECT_CURRENT);
}

/* Undo a publication that no session has seen. The pages return to their owners. */
static void roll_back(struct pool *pool, uint32_t number)
{
	struct session *writer =
		session_there(pool, atomic_load_explicit(&object_record(pool, number)->writer, memory_order_relaxed));

	for (uint32_t page = 0; page < pool->page_count; page++) {
		if (!is_shared_by(pool_word(pool, page), number))
			continue;
		if (writer) {
			pool_unshare(pool, page, 1, writer->id);
			book(writer, 1);
		} else {
			pool_take_back(pool, page, 1);
		}
	}
	object_forget(pool, number);
	object_set_state(pool, number, OBJECT_NONE);
}

/* End an object by its page words, because its manifest may be lost. */
static void end_by_words(struct pool *pool, uint32_t number)
{
	if (object_state(pool, number) != OBJECT_ENDING)
		object_set_state(pool, number, OBJECT_ENDING);
	for (uint32_t page = 0; page < pool->page_count; page++)
		if (is_shared_by(pool_word(pool, page), number))
			pool_take_back(pool, page, 1);
	object_forget(pool, number);
	object_set_state(pool, number, OBJECT_NONE);
}

static void readers_recover(struct pool *pool, uint32_t number)
{
	struct object_record *record = object_record(pool, number);
	uint32_t writer = atomic_load_explicit(&record->writer, memory_order_relaxed), readers = 0;

	for (uint32_t word = 0; word < POOL_SESSIONS / 64; word++) {
		_Atomic uint64_t *bits = &pool->ledger.objects[number].readers[word];

		for (uint64_t left = atomic_load_explicit(bits, memory_order_relaxed); left; left &= left - 1) {
			struct session *session = session_there(pool, word * 64 + (uint32_t)__builtin_ctzll(left));

			if (session)
				session->objects_open++;
			else
				atomic_fetch_and_explicit(bits, ~(left & -left), memory_order_relaxed);
			readers += session != NULL;
			crash_point();
		}
	}
	atomic_store_explicit(&record->readers, readers, memory_order_relaxed);
	if (writer && (record->class != OBJECT_MUTABLE || !session_there(pool, writer)))
		atomic_store_explicit(&record->writer, 0, memory_order_relaxed);
}

static void recover_one(struct pool *pool, uint32_t number)
{
	struct object_record *record = object_record(pool, number);

	if (object_state(pool, number) == OBJECT_PUBLISHING) {
		if (!can_finish(pool, number)) {
			roll_back(pool, number);
			return;
		}
		finish(pool, number);
	}
	if (object_state(pool, number) == OBJECT_ENDING) {
		end_by_words(pool, number);
		return;
	}
	readers_recover(pool, number);
	/* The pins were being checked, and no page had been freed. */
	if (object_state(pool, number) == OBJECT_LEAVING)
		object_set_state(pool, number, OBJECT_CURRENT);
	/* Without a manifest, no session can open the object. Sessions that have it open continue to use it. */
	if (object_state(pool, number) == OBJECT_CURRENT && pool->objects->of[number].fd <= 0)
		object_set_state(pool, number, OBJECT_DELETED);
	pool->objects->of[number].tenant = pool_tenant(pool, record->tenant);
}

/* Rebuild the hash chains and the bitmaps of records. */
static void index_recover(struct pool *pool)
{
	uint32_t end = object_end_of(pool);

	if (end <= 1)
		return;
	object_names_clear(&pool->segment);
	for (uint32_t i = 1; i < end; i++) {
		enum object_state state = object_state(pool, i);

		if (state == OBJECT_NONE)
			continue;
		pool->object_count++;
		if (object_kept_by_pins(object_record(pool, i)))
			bitmap_add(&pool->objects->pinnable, i);
		bitmap_remove(&pool->objects->unused, i);
		if (object_has_name(state))
			object_names_add(&pool->segment, i);
		if (object_record(pool, i)->version > pool->objects->version)
			pool->objects->version = object_record(pool, i)->version;
	}
}

void objects_recover(struct pool *pool)
{
	_Atomic uint64_t *published = &pool->segment.header->counters[POOL_COUNT_PUBLICATIONS];
	uint32_t end = object_end_of(pool);

	/*
	 * Version numbers must increase even if an agent died between a publication and the update of the published
	 * counter.
	 */
	pool->objects->version = atomic_load_explicit(published, memory_order_relaxed);
	index_recover(pool);
	atomic_store_explicit(published, pool->objects->version, memory_order_relaxed);
	manifests_take(pool);
	for (uint32_t i = 1; i < end; i++)
		if (object_state(pool, i) != OBJECT_NONE)
			recover_one(pool, i);
	for (uint32_t i = 1; i < end; i++) {
		const struct object_record *record = object_record(pool, i);
		enum object_state state = object_state(pool, i);

		if (state == OBJECT_NONE)
			continue;
		/* If two versions are CURRENT, the newer one had just been published. */
		if (state == OBJECT_CURRENT && object_current(pool, record->domain, record->name) != i) {
			object_set_state(pool, i, OBJECT_OLD);
			state = OBJECT_OLD;
		}
		if (state != OBJECT_CURRENT && !atomic_load_explicit(&record->readers, memory_order_relaxed))
			end_by_words(pool, i);
		else if (pool->objects->of[i].tenant)
			pool->objects->of[i].tenant->leased += record->pages;
	}
	/* Until here, an object may have been restored before the one that it follows. */
	if (objects_order_begin(pool))
		log_error(
			"pool '%s': out of memory for the order of ephemeral objects; existing ones cannot be evicted",
			pool->segment.header->name);
}
