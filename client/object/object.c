/* object.c - open, close and list named objects. */
#include "client/object/object.h"

#include "client/core/attach_call.h"
#include "client/core/last_error.h"
#include "client/core/window.h"
#include "proto/codec.h"
#include "shm/object_names.h"
#include "shm/plural.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int object_text_copy(char *to, size_t size, const char *from, const char *what)
{
	size_t length = from ? strnlen(from, size) : 0;

	if (length >= size)
		return fail(-EINVAL, "the name of the %s has %zu byte%s; the maximum is %zu", what, strlen(from),
			plural(strlen(from)), size - 1);
	if (!msg_text_clean(from ? from : "", length))
		return fail(-EINVAL, "the name of the %s has bytes that are not printable UTF-8", what);
	memcpy(to, from ? from : "", length);
	memset(to + length, 0, size - length);
	return 0;
}

static int object_name_copy(char to[POOL_OBJECT_NAME_BYTES], const char *name)
{
	return name && *name ? object_text_copy(to, POOL_OBJECT_NAME_BYTES, name, "object")
			     : fail(-EINVAL, "the name of the object is empty");
}

int object_new(struct gpool *pool, const char *name, struct gpool_object **object)
{
	struct gpool_object *made;

	if (pool->session_kind)
		return fail_kind(pool);
	made = calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	if (object_name_copy(made->name, name)) {
		free(made);
		return -EINVAL;
	}
	made->pool = pool;
	pthread_mutex_lock(&pool->objects_lock);
	made->next = pool->objects;
	made->link = &pool->objects;
	if (made->next)
		made->next->link = &made->next;
	pool->objects = made;
	pthread_mutex_unlock(&pool->objects_lock);
	*object = made;
	return 0;
}

void object_free(struct gpool_object *object)
{
	*object->link = object->next;
	if (object->next)
		object->next->link = object->link;
	draft_free(&object->draft);
	manifest_close(&object->manifest);
	free(object->addresses);
	free(object->parts);
	free(object);
}

/* A callback of window_user. Objects are added to the list before the handles of their pages are imported. */
static void objects_note(struct gpool *pool, uint64_t *numbers, bool *unsettled)
{
	pthread_mutex_lock(&pool->objects_lock);
	for (const struct gpool_object *object = pool->objects; object; object = object->next) {
		if (object->number && object->number < pool->header->object_count)
			numbers[object->number / 64] |= UINT64_C(1) << (object->number % 64);
		else
			*unsettled = true;
	}
	pthread_mutex_unlock(&pool->objects_lock);
}

int objects_open(struct gpool *pool)
{
	static const struct window_user user = {
		.sweep = objects_sweep, .sweeps_locked = true, .note_objects = objects_note};

	window_register(pool, &user);
	return 0;
}

void objects_close_all(struct gpool *pool)
{
	/*
	 * Errors are ignored: all streams of the session are closed, and work that the program queued on its own
	 * streams must not block the detach.
	 */
	while (pool->objects) {
		object_parts_unmap(pool->objects);
		object_unmap(pool->objects);
		object_free(pool->objects);
	}
}

/* ---- requests to the agent ---- */

static int change_ask(struct gpool *pool, const struct msg_object_change_request *request, int timeout_ms)
{
	struct msg_object_change_reply reply;
	uint8_t question[MSG_LARGEST_object_change_request], answer[MSG_LARGEST_object_change_reply];
	struct attach_call call = {
		.request = question, .fd = -1, .answer = answer, .capacity = sizeof(answer), .timeout_ms = timeout_ms};
	int length;

	call.length = msg_encode_object_change_request(request, 0, NULL, question, sizeof(question));
	length = attach_call(pool, &call);
	if (length < 0)
		return length;
	if (msg_decode_object_change_reply(&reply, answer, (size_t)length))
		return -EPROTO;
	if (reply.error)
		pool_log(pool, POOL_LOG_INFO, "the agent refused a change of object '%s': %s", request->name,
			reply.text);
	return reply.error ? fail(reply.error, "object '%s': %s", request->name, reply.text) : 0;
}

static int open_ask(const struct gpool_object *object, const struct gpool_object_open_options *options,
	struct msg_object_open_reply *reply, int *fd)
{
	struct msg_object_open_request request = {
		.flags = options->flags,
		.version = options->version,
		.layout_hash = options->layout_hash,
		.role_token = options->role_token,
	};
	uint8_t question[MSG_LARGEST_object_open_request], answer[MSG_LARGEST_object_open_reply];
	struct attach_call call = {
		.request = question,
		.fd = -1,
		.answer = answer,
		.capacity = sizeof(answer),
		.fds = fd,
		.fd_capacity = 1,
		.timeout_ms = -1,
	};
	int length;

	msg_text_copy(request.name, sizeof(request.name), object->name);
	msg_text_copy(request.role, sizeof(request.role), object->role);
	call.length = msg_encode_object_open_request(&request, 0, NULL, question, sizeof(question));
	length = attach_call(object->pool, &call);
	if (length < 0)
		return length;
	if (msg_decode_object_open_reply(reply, answer, (size_t)length) || (call.fd_count == 0 && !reply->error)) {
		for (size_t i = 0; i < call.fd_count; i++)
			close(*fd);
		return -EPROTO;
	}
	if (reply->error)
		pool_log(object->pool, POOL_LOG_INFO, "the agent refused to open object '%s': %s", object->name,
			reply->text);
	if (reply->error == -EPROTO && options->layout_hash)
		return fail(reply->error, "object '%s': %s, but the expected one is %016llx", object->name, reply->text,
			(unsigned long long)options->layout_hash);
	return reply->error ? fail(reply->error, "object '%s': %s", object->name, reply->text) : 0;
}

int object_adapter_ask(struct gpool *pool, const char *name, const char *adapter)
{
	struct msg_adapter_request request;
	struct msg_adapter_reply reply;
	uint8_t question[MSG_LARGEST_adapter_request], answer[MSG_LARGEST_adapter_reply];
	struct attach_call call = {
		.request = question, .fd = -1, .answer = answer, .capacity = sizeof(answer), .timeout_ms = -1};
	int length;

	msg_text_copy(request.object, sizeof(request.object), name);
	msg_text_copy(request.name, sizeof(request.name), adapter);
	call.length = msg_encode_adapter_request(&request, 0, NULL, question, sizeof(question));
	length = attach_call(pool, &call);
	if (length < 0)
		return length;
	if (msg_decode_adapter_reply(&reply, answer, (size_t)length))
		return -EPROTO;
	return reply.error ? fail(reply.error, "object '%s': %s", name, reply.text) : 0;
}

static bool name_is_asked(const struct gpool_object *object)
{
	for (const struct gpool_object *other = object->pool->objects; other; other = other->next)
		if (other->asking && !strcmp(other->name, object->name))
			return true;
	return false;
}

void object_ask_begin(struct gpool_object *object)
{
	while (name_is_asked(object))
		pthread_cond_wait(&object->pool->objects_answered, &object->pool->objects_lock);
	object->asking = true;
}

void object_ask_end(struct gpool_object *object)
{
	object->asking = false;
	pthread_cond_broadcast(&object->pool->objects_answered);
}

/* ---- open and close ---- */

static bool is_open_elsewhere(const struct gpool_object *object)
{
	for (const struct gpool_object *other = object->pool->objects; other; other = other->next)
		if (other != object && other->number == object->number && other->version == object->version)
			return true;
	return false;
}

/*
 * Free a handle, whose mappings the caller has removed. The agent counts a session once for each object, so only the
 * close of its last handle is reported. The close of an evicted object is not reported.
 */
static void handle_drop(struct gpool_object *object)
{
	const struct msg_object_change_request request = {
		.verb = 1, .object = object->number, .version = object->version};
	struct gpool *pool = object->pool;

	bool gone = object->by_pins && object->number && object_is_gone(object);

	pthread_mutex_lock(&pool->objects_lock);
	if (object->number && !gone && !is_open_elsewhere(object)) {
		object_ask_begin(object);
		/* Another thread may have opened the object while this one waited. */
		if (!is_open_elsewhere(object)) {
			pthread_mutex_unlock(&pool->objects_lock);
			change_ask(pool, &request, -1);
			pthread_mutex_lock(&pool->objects_lock);
		}
		object_ask_end(object);
	}
	object_free(object);
	pthread_mutex_unlock(&pool->objects_lock);
}

/* Request the object from the agent. On success, other threads see the number, and the caller owns *fd. */
static int open_in_turn(struct gpool_object *object, const struct gpool_object_open_options *options, int *fd)
{
	struct msg_object_open_reply reply;
	struct gpool *pool = object->pool;
	int error;

	pthread_mutex_lock(&pool->objects_lock);
	object_ask_begin(object);
	pthread_mutex_unlock(&pool->objects_lock);
	error = open_ask(object, options, &reply, fd);
	pthread_mutex_lock(&pool->objects_lock);
	if (!error) {
		object->number = reply.object;
		object->version = reply.version;
		object->memory_class = reply.memory_class;
		object->by_pins = object_kept_by_pins(&pool->segment.objects[reply.object]);
		object->writable = reply.writable;
	}
	object_ask_end(object);
	pthread_mutex_unlock(&pool->objects_lock);
	return error;
}

int object_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options, bool map,
	struct gpool_object **object)
{
	struct manifest_pool geometry = {pool->page_bytes, pool->page_count, pool->header->pages_per_handle};
	struct gpool_object *made;
	int error, fd;

	if (options->flags & ~(uint32_t)GPOOL_OBJECT_ADOPT)
		return fail(-EINVAL, "flags are 0x%x; the only known flag is GPOOL_OBJECT_ADOPT", options->flags);
	if (options->flags & GPOOL_OBJECT_ADOPT && (!options->role || !*options->role))
		return fail(-EINVAL, "object '%s' cannot be adopted without role, the object's leadership role",
			name ? name : "");
	error = object_new(pool, name, &made);
	if (error)
		return error;
	error = object_text_copy(made->role, sizeof(made->role), options->role, "role");
	if (!error)
		error = open_in_turn(made, options, &fd);
	if (!error) {
		error = manifest_open(fd, &geometry, &made->manifest);
		close(fd);
		if (error)
			error = error == -ENOMEM ? error : -EPROTO;
		else if (map)
			error = object_map(made);
	}
	if (error)
		handle_drop(made);
	else
		*object = made;
	return error;
}

int gpool_object_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options,
	struct gpool_object **object)
{
	struct gpool_object_open_options read = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (options)
		error = options_read(&read, sizeof(read), options);
	return error ? error : object_open(pool, name, &read, true, object);
}

void gpool_object_abort(struct gpool_object *object)
{
	struct gpool *pool;

	if (!object || !object->pool->alive || object->number)
		return;
	pool = object->pool;
	object_parts_drop(object);
	pthread_mutex_lock(&pool->objects_lock);
	object_free(object);
	pthread_mutex_unlock(&pool->objects_lock);
}

int gpool_object_close(struct gpool_object *object)
{
	struct gpool *pool;
	int error = 0;

	if (!object)
		return 0;
	pool = object->pool;
	if (!pool->alive)
		return -ECHILD;
	if (!object->number) {
		gpool_object_abort(object);
		return 0;
	}
	if (object->in_range)
		return fail(
			-EINVAL, "object '%s' is mapped in a range; close it with gpool_range_unmap()", object->name);
	/* Pages of an object that was built by this process stay mapped in the window, but read-only. */
	if (object->part_count && object->writable)
		error = object_protect(object, true);
	/* The lock is necessary, because another thread may be unmapping evicted objects. */
	pthread_mutex_lock(&pool->objects_lock);
	if (!error)
		error = object_parts_unmap(object);
	if (!error)
		error = object_unmap(object);
	pthread_mutex_unlock(&pool->objects_lock);
	if (error)
		return error == -EBUSY ? fail(error, "queued GPU work uses object '%s'", object->name) : error;
	handle_drop(object);
	return 0;
}

int gpool_object_delete(struct gpool *pool, const char *name, uint64_t version)
{
	struct msg_object_change_request request = {.verb = 2, .version = version};

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind == 1)
		return fail_kind(pool);
	if (object_name_copy(request.name, name))
		return -EINVAL;
	return change_ask(pool, &request, pool->answer_ms);
}

/* ---- read ---- */

static int object_fail_draft(const struct gpool_object *object)
{
	return fail(-EINVAL, "object '%s' is not published", object->name);
}

int gpool_object_address(struct gpool_object *object, uint32_t index, uint64_t *address, uint64_t *bytes)
{
	struct gpool *pool = object->pool;
	uint32_t count = object->number ? object->manifest.header->allocations : object->part_count;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (index >= count)
		return fail(-EINVAL, "no allocation %u: object '%s' has %u allocation%s", index, object->name, count,
			plural(count));
	if (object->number) {
		*address = object->addresses[index];
		*bytes = object->manifest.sizes[index] * pool->page_bytes;
		return 0;
	}
	error = gpool_address(pool, &object->parts[index].block, address);
	if (!error)
		*bytes = object->parts[index].block.page_count * pool->page_bytes;
	return error;
}

int gpool_object_entry(struct gpool_object *object, uint32_t index, const char **key, const void **value, size_t *bytes)
{
	const struct manifest_entry *entry;

	if (!object->pool->alive)
		return -ECHILD;
	if (!object->number)
		return object_fail_draft(object);
	if (index >= object->manifest.header->entries)
		return fail(-ENOENT, "no entry %u: object '%s' has %u entr%s", index, object->name,
			object->manifest.header->entries, object->manifest.header->entries == 1 ? "y" : "ies");
	entry = &object->manifest.entries[index];
	*key = object->manifest.data + entry->offset;
	*value = object->manifest.data + manifest_value_at(entry->offset, entry->key_bytes);
	*bytes = entry->value_bytes;
	return 0;
}

int gpool_object_get(struct gpool_object *object, const char *key, const void **value, size_t *bytes)
{
	const char *found;
	int64_t index;

	if (!object->pool->alive)
		return -ECHILD;
	if (!object->number)
		return object_fail_draft(object);
	index = manifest_find(&object->manifest, key, strlen(key));
	return index < 0 ? fail(-ENOENT, "object '%s' has no key '%s'", object->name, key)
			 : gpool_object_entry(object, (uint32_t)index, &found, value, bytes);
}

/* ---- list ---- */

/* Read a record. Return false if it has no version that can be opened, or if it changed during the read. */
static bool record_read(const struct gpool *pool, uint32_t number, struct gpool_object_info *info)
{
	const struct object_record *record = &pool->segment.objects[number];
	uint32_t state = atomic_load_explicit(&record->state, memory_order_acquire);

	if (state < OBJECT_CURRENT || state > OBJECT_LEAVING)
		return false;
	*info = (struct gpool_object_info){
		.size = info->size,
		.number = number,
		.state = state == OBJECT_LEAVING ? OBJECT_CURRENT : state,
		.memory_class = record->class,
		.pages = record->pages,
		.allocations = record->allocations,
		.readers = atomic_load_explicit(&record->readers, memory_order_relaxed),
		.writer = atomic_load_explicit(&record->writer, memory_order_relaxed),
		.version = record->version,
		.layout_hash = record->layout_hash,
		.metadata_bytes = record->manifest_bytes,
		.published_ms = record->published_ms,
		.uid = record->uid,
		.pid = record->pid,
	};
	memcpy(info->name, record->name, sizeof(info->name) - 1);
	memcpy(info->tenant, record->tenant, sizeof(info->tenant) - 1);
	memcpy(info->role, record->role, sizeof(info->role) - 1);
	atomic_thread_fence(memory_order_acquire);
	/* Check state and version again, because the record may have got another version while it was copied. */
	state = atomic_load_explicit(&record->state, memory_order_acquire);
	return state >= OBJECT_CURRENT && state <= OBJECT_LEAVING && record->version == info->version;
}

bool object_look_up(const struct gpool *pool, const char *name, struct gpool_object_info *info)
{
	const struct pool_segment *segment = &pool->segment;
	uint32_t left = pool->header->object_count, domain = pool_domain(pool);

	/* If the chain changes during the walk, it may lead to any record, so the number of steps is limited. */
	for (uint32_t i = object_names_first(segment, domain, name); i && left--; i = object_names_next(segment, i))
		if (object_names_are(&segment->objects[i], domain, name) && record_read(pool, i, info) &&
			info->state == GPOOL_OBJECT_CURRENT && !strcmp(info->name, name))
			return true;
	return false;
}

static bool is_openable(const struct gpool *pool, const char *name)
{
	struct gpool_object_info info = {.size = sizeof(info)};

	return object_look_up(pool, name, &info) &&
		(!(pool->segment.objects[info.number].flags & OBJECT_PRIVATE) ||
			!strcmp(info.tenant, pool->segment.sessions[pool->id].tenant));
}

int gpool_object_find(struct gpool *pool, const char *const *names, uint32_t count)
{
	uint32_t found = 0;

	if (!pool->alive)
		return -ECHILD;
	if (count > INT32_MAX)
		return fail(-EINVAL, "count is %u; the maximum is %d", count, INT32_MAX);
	for (; found < count; found++) {
		if (!names[found])
			return fail(-EINVAL, "name %u is NULL", found);
		if (!is_openable(pool, names[found]))
			break;
	}
	return (int)found;
}

/* Copy as many fields as the caller's struct has. */
static int info_give(struct gpool_object_info *filled, struct gpool_object_info *info)
{
	if (filled->size > sizeof(*filled))
		memset((char *)info + sizeof(*filled), 0, filled->size - sizeof(*filled));
	memcpy(info, filled, filled->size < sizeof(*filled) ? filled->size : sizeof(*filled));
	return 0;
}

int gpool_object_info(struct gpool_object *object, struct gpool_object_info *info)
{
	struct gpool_object_info filled = {.size = info->size};

	if (!object->pool->alive)
		return -ECHILD;
	if (!object->number)
		return object_fail_draft(object);
	if (filled.size < sizeof(filled.size))
		return fail_size(filled.size);
	/* An open object keeps its record, unless only pins prevent its eviction. */
	if (!record_read(object->pool, object->number, &filled) || filled.version != object->version)
		return object->by_pins ? object_fail_gone(object) : fail_gone(object->pool);
	return info_give(&filled, info);
}

int gpool_object_next(struct gpool *pool, uint32_t *cursor, struct gpool_object_info *info)
{
	struct gpool_object_info filled = {.size = info->size};

	if (!pool->alive)
		return -ECHILD;
	if (filled.size < sizeof(filled.size))
		return fail_size(filled.size);
	for (uint32_t number = *cursor + 1; number < pool_object_end(&pool->segment); number++)
		/* Observers and admins see the objects of all domains. */
		if ((pool->session_kind || pool->segment.objects[number].domain == pool_domain(pool)) &&
			record_read(pool, number, &filled)) {
			*cursor = number;
			return info_give(&filled, info);
		}
	return fail(-ENOENT, "no object has a number above %u", *cursor);
}
