#include "agent/object/objects.h"

#include "agent/base/crash_point.h"
#include "agent/pages/event.h"
#include "agent/keeper/channel.h"
#include "agent/base/log.h"
#include "shm/object_names.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int objects_create(struct pool *pool)
{
	uint32_t count = pool->segment.header->object_count;
	struct objects *objects = pool->objects = calloc(1, sizeof(*objects) + count * sizeof(objects->of[0]));

	if (!objects || bitmap_init(&objects->unused, count) || bitmap_init(&objects->pinnable, count))
		goto no_memory;
	objects->sorted = calloc(count, sizeof(*objects->sorted));
	objects->stays = calloc(count, sizeof(*objects->stays));
	objects->goes = calloc(count, sizeof(*objects->goes));
	for (objects->ghost_count = 1; objects->ghost_count < count;)
		objects->ghost_count *= 2;
	objects->ghosts = calloc(objects->ghost_count, sizeof(*objects->ghosts));
	if (!objects->sorted || !objects->stays || !objects->goes || !objects->ghosts)
		goto no_memory;
	objects->count = count;
	for (uint32_t i = 1; i < count; i++)
		bitmap_add(&objects->unused, i);
	if (!objects_order_begin(pool)) {
		pool->evict.source = &objects_evict_source;
		return 0;
	}
no_memory:
	objects_destroy(pool);
	return -ENOMEM;
}

void objects_destroy(struct pool *pool)
{
	if (!pool->objects)
		return;
	for (uint32_t i = 1; i < pool->objects->count; i++) {
		free(pool->objects->of[i].runs);
		free(pool->objects->of[i].label);
		if (pool->objects->of[i].fd > 0)
			close(pool->objects->of[i].fd);
	}
	objects_order_end(pool);
	bitmap_fini(&pool->objects->unused);
	bitmap_fini(&pool->objects->pinnable);
	free(pool->objects->sorted);
	free(pool->objects->stays);
	free(pool->objects->goes);
	free(pool->objects->ghosts);
	free(pool->objects);
	pool->objects = NULL;
	pool->evict.source = NULL;
}

struct manifest_pool object_geometry(const struct pool *pool)
{
	const struct pool_header *header = pool->segment.header;

	return (struct manifest_pool){header->page_bytes, header->page_count, header->pages_per_handle};
}

/* ---- states ---- */

static const char *const state_names[OBJECT_STATES] = {
	"NONE", "PUBLISHING", "CURRENT", "OLD", "DELETED", "LEAVING", "ENDING"};

/* The permitted next states, as bit sets. */
static const uint8_t states_next[OBJECT_STATES] = {
	[OBJECT_NONE] = 1 << OBJECT_PUBLISHING,
	[OBJECT_PUBLISHING] = 1 << OBJECT_CURRENT | 1 << OBJECT_NONE,
	[OBJECT_CURRENT] = 1 << OBJECT_OLD | 1 << OBJECT_DELETED | 1 << OBJECT_LEAVING | 1 << OBJECT_ENDING,
	[OBJECT_LEAVING] = 1 << OBJECT_CURRENT | 1 << OBJECT_ENDING,
	[OBJECT_OLD] = 1 << OBJECT_ENDING,
	[OBJECT_DELETED] = 1 << OBJECT_ENDING,
	[OBJECT_ENDING] = 1 << OBJECT_NONE,
};

/*
 * Set the end of the used records. Call it before a record is first used, and after the last record has become unused.
 */
static void end_set(struct pool *pool, uint32_t end)
{
	atomic_store_explicit(&pool->segment.header->object_end, end, memory_order_release);
	crash_point();
}

static void count_used(struct pool *pool, uint32_t number)
{
	pool->object_count++;
	if (object_kept_by_pins(object_record(pool, number)))
		bitmap_add(&pool->objects->pinnable, number);
	bitmap_remove(&pool->objects->unused, number);
	if (number >= object_end_of(pool))
		end_set(pool, number + 1);
}

static void count_unused(struct pool *pool, uint32_t number)
{
	uint32_t end = object_end_of(pool);

	pool->object_count--;
	if (bitmap_has(&pool->objects->pinnable, number))
		bitmap_remove(&pool->objects->pinnable, number);
	bitmap_add(&pool->objects->unused, number);
	if (number + 1 != end)
		return;
	while (end > 1 && bitmap_has(&pool->objects->unused, end - 1))
		end--;
	end_set(pool, end);
}

void object_set_state(struct pool *pool, uint32_t number, enum object_state state)
{
	struct object_record *record = object_record(pool, number);
	enum object_state was = object_state(pool, number);

	assert(states_next[was] >> state & 1);
	log_debug("object %u of pool '%s' ('%s', version %llu): %s -> %s", number, pool->config->name, record->name,
		(unsigned long long)record->version, state_names[was], state_names[state]);
	if (was == OBJECT_NONE)
		count_used(pool, number);
	if (object_has_name(state) && !object_has_name(was))
		object_names_add(&pool->segment, number);
	atomic_store_explicit(&record->state, state, memory_order_seq_cst);
	crash_point();
	if (object_has_name(was) && !object_has_name(state))
		object_names_remove(&pool->segment, number);
	if (state == OBJECT_NONE)
		count_unused(pool, number);
	object_order_look(pool, number);
}

uint32_t object_current(const struct pool *pool, uint32_t domain, const char *name)
{
	const struct pool_segment *segment = &pool->segment;
	uint32_t found = 0;

	for (uint32_t i = object_names_first(segment, domain, name); i; i = object_names_next(segment, i))
		/* Two versions are CURRENT only if an agent died during a publication. */
		if (object_state(pool, i) == OBJECT_CURRENT && object_names_are(object_record(pool, i), domain, name) &&
			(!found || object_record(pool, i)->version > object_record(pool, found)->version))
			found = i;
	return found;
}

uint32_t object_of_version(const struct pool *pool, uint32_t domain, const char *name, uint64_t version)
{
	const struct pool_segment *segment = &pool->segment;

	for (uint32_t i = object_names_first(segment, domain, name); i; i = object_names_next(segment, i))
		if (object_has_name(object_state(pool, i)) && object_record(pool, i)->version == version &&
			object_names_are(object_record(pool, i), domain, name))
			return i;
	return 0;
}

uint32_t object_anywhere(const struct pool *pool, const char *name, uint64_t version)
{
	uint32_t found = 0;

	for (uint32_t i = 1; i < object_end_of(pool); i++) {
		const struct object_record *record = object_record(pool, i);

		if (object_state(pool, i) != OBJECT_CURRENT || strcmp(record->name, name) ||
			(version && record->version != version))
			continue;
		if (found)
			return OBJECT_SEVERAL;
		found = i;
	}
	return found;
}

uint32_t object_place(const struct pool *pool)
{
	uint32_t lowest = bitmap_lowest(&pool->objects->unused);

	return lowest == BITMAP_NONE ? 0 : lowest;
}

/* ---- the manifest ---- */

char *object_label(const struct manifest *manifest)
{
	static const char key[] = "name";
	int64_t index = manifest_find(manifest, key, sizeof(key) - 1);
	const struct manifest_entry *entry = index < 0 ? NULL : &manifest->entries[index];
	uint32_t most = POOL_OBJECT_NAME_BYTES - 1;

	return entry ? strndup(manifest->data + manifest_value_at(entry->offset, entry->key_bytes),
			       entry->value_bytes < most ? entry->value_bytes : most)
		     : strdup("");
}

int object_take(struct pool *pool, uint32_t number, int fd, const struct manifest *manifest)
{
	struct object *object = &pool->objects->of[number];
	struct page_run *runs = calloc(manifest->header->runs + 1, sizeof(*runs));
	char *label = object_label(manifest);

	if (!runs || !label) {
		free(runs);
		free(label);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < manifest->header->runs; i++)
		runs[i] = (struct page_run){manifest->runs[i].first, manifest->runs[i].count};
	*object = (struct object){.fd = fd,
		.runs = runs,
		.run_count = manifest->header->runs,
		.manifest_bytes = manifest->bytes,
		.label = label};
	pool->objects->manifest_bytes += manifest->bytes;
	return 0;
}

/* ---- end ---- */

void object_forget(struct pool *pool, uint32_t number)
{
	struct object *object = &pool->objects->of[number];

	if (object->fd > 0) {
		agent_drop(pool->agent, KEEP_OBJECT, pool->index, number);
		pool->objects->manifest_bytes -= object->manifest_bytes;
		free(object->runs);
		free(object->label);
		close(object->fd);
	}
	*object = (struct object){0};
}

static void readers_clear(struct pool *pool, uint32_t number)
{
	if (!atomic_load_explicit(&object_record(pool, number)->readers, memory_order_relaxed))
		return;
	for (uint32_t word = 0; word < POOL_SESSIONS / 64; word++) {
		uint64_t bits =
			atomic_exchange_explicit(&pool->ledger.objects[number].readers[word], 0, memory_order_relaxed);

		for (; bits; bits &= bits - 1)
			pool->sessions[word * 64 + (uint32_t)__builtin_ctzll(bits)]->objects_open--;
	}
	atomic_store_explicit(&object_record(pool, number)->readers, 0, memory_order_relaxed);
}

void object_end(struct pool *pool, uint32_t number)
{
	const struct object *object = &pool->objects->of[number];
	uint32_t pages = object_record(pool, number)->pages;

	if (object_state(pool, number) != OBJECT_ENDING)
		object_set_state(pool, number, OBJECT_ENDING);
	if (object->fd > 0)
		for (uint32_t i = 0; i < object->run_count; i++)
			pool_take_back(pool, object->runs[i].first, object->runs[i].count);
	else /* the manifest was lost with an agent */
		for (uint32_t page = 0; page < pool->page_count; page++)
			if (page_word_state(pool_word(pool, page)) == PAGE_SHARED &&
				page_word_owner(pool_word(pool, page)) == number)
				pool_take_back(pool, page, 1);
	if (object->tenant)
		object->tenant->leased -= pages;
	readers_clear(pool, number);
	object_forget(pool, number);
	object_set_state(pool, number, OBJECT_NONE);
}

/*
 * Return true if an object has readers or, if only pins protect it, pins. A session that pins it later detects that the
 * record has another version.
 */
static bool is_used(const struct pool *pool, uint32_t number)
{
	const struct object_record *record = object_record(pool, number);

	return atomic_load_explicit(&record->readers, memory_order_relaxed) &&
		(!object_kept_by_pins(record) || pool->objects->of[number].fd <= 0 || object_pinned(pool, number));
}

void object_end_if_unused(struct pool *pool, uint32_t number)
{
	enum object_state state = object_state(pool, number);

	if ((state == OBJECT_OLD || state == OBJECT_DELETED) && !is_used(pool, number))
		object_end(pool, number);
}

void object_delete(struct pool *pool, uint32_t number)
{
	struct object_record *record = object_record(pool, number);

	object_set_state(pool, number, OBJECT_DELETED);
	event_publish(pool->agent, EVENT_OBJECT_DELETED, pool, 0, record->version, "object '%s' version %llu deleted",
		record->name, (unsigned long long)record->version);
	object_end_if_unused(pool, number);
}

void object_commit(struct pool *pool, uint32_t number)
{
	struct object_record *record = object_record(pool, number);
	uint32_t before = object_current(pool, record->domain, record->name);

	object_set_state(pool, number, OBJECT_CURRENT);
	if (record->class != OBJECT_MUTABLE)
		atomic_store_explicit(&record->writer, 0, memory_order_relaxed);
	crash_point();
	if (!before)
		return;
	object_set_state(pool, before, OBJECT_OLD);
	object_end_if_unused(pool, before);
}

/* ---- readers ---- */

static _Atomic uint64_t *readers_word(const struct pool *pool, uint32_t number, uint32_t session)
{
	return &pool->ledger.objects[number].readers[session / 64];
}

/*
 * Store the number of readers in the record, for inspection. The bits in the ledger are authoritative; the number is
 * computed from them after a restart.
 */
static void readers_publish(struct pool *pool, uint32_t number)
{
	uint32_t readers = 0;

	for (uint32_t word = 0; word < POOL_SESSIONS / 64; word++)
		readers += (uint32_t)__builtin_popcountll(
			atomic_load_explicit(&pool->ledger.objects[number].readers[word], memory_order_relaxed));
	atomic_store_explicit(&object_record(pool, number)->readers, readers, memory_order_relaxed);
	object_order_look(pool, number);
}

void object_reader_add(struct pool *pool, uint32_t number, uint32_t session)
{
	if (!object_has_reader(pool, number, session)) {
		object_order_touch(pool, number);
		object_worth_reader(pool, number, pool->sessions[session], true);
		pool->sessions[session]->objects_open++;
	}
	atomic_fetch_or_explicit(
		readers_word(pool, number, session), UINT64_C(1) << (session % 64), memory_order_relaxed);
	crash_point();
	readers_publish(pool, number);
}

void object_reader_drop(struct pool *pool, uint32_t number, uint32_t session)
{
	struct object_record *record = object_record(pool, number);

	if (atomic_load_explicit(&record->writer, memory_order_relaxed) == session)
		atomic_store_explicit(&record->writer, 0, memory_order_relaxed);
	crash_point();
	object_worth_reader(pool, number, pool->sessions[session], false);
	pool->sessions[session]->objects_open--;
	atomic_fetch_and_explicit(
		readers_word(pool, number, session), ~(UINT64_C(1) << (session % 64)), memory_order_relaxed);
	crash_point();
	readers_publish(pool, number);
	object_end_if_unused(pool, number);
}

void objects_session_end(struct session *session)
{
	struct pool *pool = session->pool;

	/* Close the newest objects first, because newer objects depend on older ones. */
	for (uint32_t i = object_end_of(pool); session->objects_open && i-- > 1;)
		if (object_stands(pool, i) && object_has_reader(pool, i, session->id))
			object_reader_drop(pool, i, session->id);
}
