/*
 * objects_requests.c - serve requests of sessions about objects. All fields are untrusted. asked.h explains how each
 * request takes effect exactly once.
 */
#include "agent/object/objects.h"
#include "shm/plural.h"

#include "agent/session/asked.h"
#include "agent/session/roles.h"
#include "agent/base/crash_point.h"
#include "agent/base/descriptors.h"
#include "agent/session/session_limits.h"
#include "agent/pages/event.h"
#include "agent/pages/flight.h"
#include "agent/keeper/channel.h"
#include "agent/pages/lease.h"
#include "agent/base/log.h"
#include "shm/lease_bitmap.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* limit per pool: manifests are host memory, which is not accounted to tenants */
#define MANIFESTS_BYTES_MAX (UINT64_C(1) << 30)

#define COST_US_MOST 60000000 /* a false cost keeps an object longer, but not forever */

enum { OPEN_ADOPT = 1 };
enum { VERB_CLOSE = 1, VERB_DELETE = 2 };

static_assert((int)MSG_LARGEST_object_publish_reply <= (int)LEDGER_ANSWER_BYTES, "answers are kept");
static_assert((int)MSG_LARGEST_object_open_reply <= (int)LEDGER_ANSWER_BYTES, "answers are kept");
static_assert((int)MSG_LARGEST_object_change_reply <= (int)LEDGER_ANSWER_BYTES, "answers are kept");

struct question {
	struct session *session;
	uint64_t sequence;
	uint8_t kept[LEDGER_ANSWER_BYTES]; /* the stored answer, if the request is a repetition */
	int kept_bytes;
};

#define REFUSE(reply, code, ...) \
	do { \
		char text_[512]; \
		snprintf(text_, sizeof(text_), __VA_ARGS__); \
		(reply)->error = (code); \
		msg_text_copy((reply)->text, sizeof((reply)->text), text_); \
	} while (0)

/* Encode and store an answer. The caller then executes the answer and calls asked_send(). */
#define KEEP(q, name, reply, bytes, length) \
	do { \
		length = msg_encode_##name(reply, (q)->sequence, NULL, bytes, sizeof(bytes)); \
		if (length > 0) \
			asked_keep((q)->session, (q)->sequence, bytes, length); \
	} while (0)

/* Return true if the session holds this role of its trust domain with this token. */
static bool role_held(const struct session *session, const char *role, uint64_t token)
{
	int index = role_find(session->pool, session->domain, role);

	return index >= 0 && role_fence(session->pool, (uint32_t)index, token, session->id) == 0;
}

/* ---- publish ---- */

/*
 * Return true if the request is a repetition, and either its object still exists or the first request was refused. The
 * sender is a reader of the object until it receives the answer, so the record cannot belong to another object.
 */
static bool publish_repeated(const struct question *q)
{
	struct msg_object_publish_reply reply;

	if (q->kept_bytes <= 0 || msg_decode_object_publish_reply(&reply, q->kept, (size_t)q->kept_bytes))
		return false;
	return reply.error ||
		(reply.object < q->session->pool->objects->count && object_stands(q->session->pool, reply.object) &&
			object_has_reader(q->session->pool, reply.object, q->session->id) &&
			object_record(q->session->pool, reply.object)->version == reply.version);
}

static bool flags_ok(uint32_t flags)
{
	return !(flags & ~(uint32_t)(OBJECT_PRIVATE | OBJECT_BY_PINS | OBJECT_DOMAIN_WRITE | OBJECT_OF_LIBRARY)) &&
		!(flags & OBJECT_PRIVATE && flags & OBJECT_DOMAIN_WRITE);
}

/*
 * Return true if the session may replace, delete or adopt a version in its trust domain (docs/rights.md). The writer of
 * a mutable object is its publisher, or has adopted it with the object's role, which one tenant can hold
 * (agent/session/roles.h).
 */
static bool may_change(const struct session *session, const struct object_record *record)
{
	if (session->kind == SESSION_ADMIN)
		return true;
	return session->kind == SESSION_WORKER &&
		(record->flags & OBJECT_DOMAIN_WRITE || !strcmp(record->tenant, session->tenant->config->name) ||
			atomic_load_explicit(&record->writer, memory_order_relaxed) == session->id);
}

/*
 * Return true if all pages are leased to the sender, in no other use known to the agent, and unchanged since the
 * manifest was written.
 */
static bool runs_owned(const struct session *session, const struct manifest *manifest)
{
	for (uint32_t i = 0; i < manifest->header->runs; i++) {
		const struct manifest_run *run = &manifest->runs[i];

		if (page_word_generation(pool_word(session->pool, run->first)) != run->generation)
			return false;
		for (uint32_t page = run->first; page < run->first + run->count; page++) {
			uint64_t word = pool_word(session->pool, page);

			if (page_word_state(word) != PAGE_LEASED || page_word_owner(word) != session->id)
				return false;
		}
	}
	return true;
}

#define REFUSE_ADAPTER(reply, code, session, adapter) \
	REFUSE(reply, code, "tenant '%s' may not use adapter '%s' (its key 'adapters')", \
		(session)->tenant->config->name, adapter)

/* Check that the tenant may use an adapter of the name in the metadata; other objects need no check. */
static void adapter_check(const struct session *session, const struct msg_object_publish_request *request,
	const struct manifest *manifest, struct msg_object_publish_reply *reply)
{
	char *label = object_label(manifest);

	if (!label)
		REFUSE(reply, -ENOMEM, "the agent has no memory");
	else if (!object_adapter_allowed(session, request->name, label))
		REFUSE_ADAPTER(reply, -EPERM, session, label);
	free(label);
}

static void publish_check(const struct session *session, const struct msg_object_publish_request *request,
	const struct manifest *manifest, struct msg_object_publish_reply *reply)
{
	const struct pool *pool = session->pool;
	uint32_t current = object_current(pool, session->domain, request->name);
	uint64_t version = current ? object_record(pool, current)->version : 0;

	if (request->role[0] && !role_held(session, request->role, request->role_token))
		REFUSE(reply, -ESTALE, "the session does not hold role '%s' with this token", request->role);
	else if (request->expect_version == UINT64_MAX && current)
		REFUSE(reply, -ESTALE, "version %llu already exists", (unsigned long long)version);
	else if (current && !may_change(session, object_record(pool, current)))
		REFUSE(reply, -EPERM, "it belongs to tenant '%s', and only that tenant may replace it",
			object_record(pool, current)->tenant);
	else if (request->expect_version && request->expect_version != UINT64_MAX && request->expect_version != version)
		REFUSE(reply, -ESTALE, "the current version is %llu, not %llu", (unsigned long long)version,
			(unsigned long long)request->expect_version);
	else if (!runs_owned(session, manifest))
		REFUSE(reply, -ESTALE, "a page is no longer leased to this session");
	else if (pool->objects->manifest_bytes + manifest->bytes > MANIFESTS_BYTES_MAX)
		REFUSE(reply, -ENOSPC, "the metadata of all objects already has %llu byte%s; the limit is %llu",
			(unsigned long long)pool->objects->manifest_bytes, plural(pool->objects->manifest_bytes),
			(unsigned long long)MANIFESTS_BYTES_MAX);
	else if (!(reply->object = object_place(pool)))
		REFUSE(reply, -EUSERS,
			"pool '%s' has %u version%s of objects, the limit; delete some, or raise its key 'objects'",
			pool->config->name, pool->objects->count - 1, plural(pool->objects->count - 1));
	else if (!descriptors_left(pool->agent, 1))
		REFUSE(reply, -EMFILE,
			"too few of the %u descriptors of gpoold (RLIMIT_NOFILE) are left for another object; raise "
			"LimitNOFILE= of its unit",
			descriptors_most());
}

/* A follower can prevent the eviction of the followed object, so the session must have that object open. */
static bool follows_ok(const struct session *session, const struct msg_object_publish_request *request)
{
	const struct pool *pool = session->pool;

	return request->follows_version && request->follows < pool->objects->count &&
		object_stands(pool, request->follows) &&
		object_record(pool, request->follows)->version == request->follows_version &&
		object_has_reader(pool, request->follows, session->id);
}

/*
 * Copy the label of an object into its record, where tools read it without opening the object. A private object has
 * none.
 */
static void label_fill(struct object_record *record, const struct manifest *manifest)
{
	static const char key[] = "name";
	int64_t index = record->flags & OBJECT_PRIVATE ? -1 : manifest_find(manifest, key, sizeof(key) - 1);
	const struct manifest_entry *entry = index < 0 ? NULL : &manifest->entries[index];
	const char *value = entry ? manifest->data + manifest_value_at(entry->offset, entry->key_bytes) : "";
	uint32_t length = entry ? entry->value_bytes : 0;

	memset(record->label, 0, sizeof(record->label));
	for (uint32_t i = 0; i < length && i < sizeof(record->label) - 1; i++)
		record->label[i] = (unsigned char)value[i] < ' ' || (unsigned char)value[i] > '~' ? '?' : value[i];
}

/* Fill in all fields except the state. A record in state NONE is not read. */
static void record_fill(struct session *session, uint32_t number, const struct msg_object_publish_request *request,
	const struct manifest *manifest, uint64_t version)
{
	struct pool *pool = session->pool;
	struct object_record *record = object_record(pool, number);

	record->class = request->memory_class;
	record->version = version;
	record->layout_hash = manifest->header->layout_hash;
	record->pages = manifest->header->pages;
	record->allocations = manifest->header->allocations;
	record->manifest_bytes = manifest->bytes;
	record->published_ms = wall_ms();
	record->domain = session->domain;
	record->uid = session->uid;
	record->pid = (uint32_t)session->pid;
	snprintf(record->name, sizeof(record->name), "%s", request->name);
	snprintf(record->tenant, sizeof(record->tenant), "%s", session->tenant->config->name);
	snprintf(record->role, sizeof(record->role), "%s", request->role);
	record->flags = request->flags & ~(uint32_t)OBJECT_OF_LIBRARY;
	label_fill(record, manifest);
	record->cost_us = request->cost_us < COST_US_MOST ? request->cost_us : COST_US_MOST;
	record->first_page = manifest->header->runs ? manifest->runs[0].first : 0;
	atomic_store_explicit(&record->uses, 0, memory_order_relaxed);
	atomic_store_explicit(&record->used_ms, record->published_ms, memory_order_relaxed);
	atomic_store_explicit(&record->heat, 0, memory_order_relaxed);
	record->follows = follows_ok(session, request) ? request->follows : 0;
	record->follows_version = record->follows ? request->follows_version : 0;
	/* The owner of the pages until they belong to the object; for objects_recover(). */
	atomic_store_explicit(&record->writer, session->id, memory_order_relaxed);
	for (uint32_t word = 0; word < POOL_SESSIONS / 64; word++)
		atomic_store_explicit(&pool->ledger.objects[number].readers[word], 0, memory_order_relaxed);
	object_reader_add(pool, number, session->id);
}

/*
 * Give the sender's pages to the object. If the sender has wrongly marked some as idle, they can no longer be leased.
 */
static void runs_share(struct session *session, const struct manifest *manifest, uint32_t number)
{
	for (uint32_t i = 0; i < manifest->header->runs; i++) {
		const struct manifest_run *run = &manifest->runs[i];

		for (uint32_t word = run->first / 64; word <= (run->first + run->count - 1) / 64; word++)
			lease_take_word(session->segment.free_bits, word, lease_mask(word, run->first, run->count));
		pool_share(session->pool, run->first, run->count, number);
		session->leased -= run->count;
	}
}

/* Publish an object. Return 0, or an error with nothing changed. */
static int publish(struct question *q, const struct msg_object_publish_request *request,
	struct msg_object_publish_reply *reply, const struct manifest *manifest, int fd)
{
	struct pool *pool = q->session->pool;
	uint8_t bytes[MSG_LARGEST_object_publish_reply];
	int length, error;

	/* The keeper must hold the manifest, because otherwise the next agent could not open it. */
	error = agent_hold(pool->agent,
		&(struct held){
			.kind = KEEP_OBJECT, .pool = pool->index, .id = reply->object, .fd_count = 1, .fds = {fd}});
	if (error)
		return error;
	error = object_take(pool, reply->object, fd, manifest);
	if (error) {
		agent_drop(pool->agent, KEEP_OBJECT, pool->index, reply->object);
		return error;
	}
	reply->version = ++pool->objects->version;
	record_fill(q->session, reply->object, request, manifest, reply->version);
	pool->objects->of[reply->object].tenant = q->session->tenant;
	/*
	 * Store the answer before PUBLISHING: from then on a successor completes the publication, and the sender must
	 * find its answer.
	 */
	KEEP(q, object_publish_reply, reply, bytes, length);
	object_set_state(pool, reply->object, OBJECT_PUBLISHING);
	runs_share(q->session, manifest, reply->object);
	object_commit(pool, reply->object);
	pool_count(pool, POOL_COUNT_PUBLICATIONS,
		reply->version -
			atomic_load_explicit(
				&pool->segment.header->counters[POOL_COUNT_PUBLICATIONS], memory_order_relaxed));
	crash_point();
	if (request->memory_class == OBJECT_PINNABLE)
		objects_thin(pool, q->session->tenant, reply->object);
	asked_send(q->session, bytes, length, -1);
	crash_point();
	event_publish(pool->agent, EVENT_OBJECT_PUBLISHED, pool, q->session->id, reply->version,
		"object '%s' version %llu published, %u page%s", request->name, (unsigned long long)reply->version,
		manifest->header->pages, plural(manifest->header->pages));
	pool_mark_freed(pool);
	return 0;
}

static const char *manifest_error(int error)
{
	return error == -EPERM      ? "its descriptor is not a sealed memfd"
		: error == -EFBIG   ? "it is larger than 64 MiB"
		: error == -EPROTO  ? "it has another version"
		: error == -EBADMSG ? "a field is invalid"
				    : strerror(-error);
}

/* Return NULL, or the description of a malformed field. */
static const char *answer_publish(struct question *q, const struct msg_object_publish_request *request, int fd)
{
	struct msg_object_publish_reply reply = {.error = 0};
	struct manifest_pool geometry = object_geometry(q->session->pool);
	struct manifest manifest = {.header = NULL};
	const char *name_refusal = object_name_refusal(q->session, request->name, request->flags & OBJECT_OF_LIBRARY);
	uint8_t bytes[MSG_LARGEST_object_publish_reply];
	const char *damage = NULL;
	int error, length;

	if (publish_repeated(q)) {
		asked_send(q->session, q->kept, q->kept_bytes, -1);
		goto close_fd;
	}
	error = fd < 0 ? -EPERM : manifest_open(fd, &geometry, &manifest);
	if (error) {
		REFUSE(&reply, error == -ENOMEM ? error : -EPROTO, "cannot use the manifest of '%s': %s", request->name,
			manifest_error(error));
		if (error != -ENOMEM)
			damage = "an invalid manifest";
	} else if (request->memory_class >= OBJECT_CLASSES || !flags_ok(request->flags)) {
		REFUSE(&reply, -EINVAL, "unknown class or flag");
	} else if (name_refusal) {
		REFUSE(&reply, -EPERM, "%s", name_refusal);
	} else {
		adapter_check(q->session, request, &manifest, &reply);
		if (!reply.error)
			publish_check(q->session, request, &manifest, &reply);
	}
	if (!reply.error) {
		error = publish(q, request, &reply, &manifest, fd);
		if (!error) {
			manifest_close(&manifest);
			return NULL;
		}
		REFUSE(&reply, -ENOMEM, "cannot store the manifest of '%s': %s", request->name, strerror(-error));
	}
	reply.object = 0;
	reply.version = 0;
	manifest_close(&manifest);
	KEEP(q, object_publish_reply, &reply, bytes, length);
	asked_send(q->session, bytes, length, -1);
close_fd:
	if (fd >= 0)
		close(fd);
	return damage;
}

/* ---- open ---- */

static void adopt_check(const struct session *session, const struct msg_object_open_request *request,
	const struct object_record *record, struct msg_object_open_reply *reply)
{
	uint32_t writer = atomic_load_explicit(&record->writer, memory_order_relaxed);

	if (record->class != OBJECT_MUTABLE)
		REFUSE(reply, -EINVAL, "'%s' is not mutable and has no writer", request->name);
	else if (!record->role[0] || strcmp(record->role, request->role))
		REFUSE(reply, -EPERM, "'%s' does not belong to role '%s'", request->name, request->role);
	else if (!may_change(session, record)) /* an admin had removed the role, and another tenant acquired the name */
		REFUSE(reply, -EPERM, "'%s' belongs to tenant '%s', and only that tenant may adopt it", request->name,
			record->tenant);
	else if (writer && writer != session->id)
		REFUSE(reply, -EBUSY, "session %u is the writer of '%s'", writer, request->name);
}

/* Refuse to open a name or version that does not exist. */
static void open_absent(const struct session *session, const struct msg_object_open_request *request,
	struct msg_object_open_reply *reply)
{
	uint32_t current = object_current(session->pool, session->domain, request->name);

	if (!current)
		REFUSE(reply, -ENOENT, "no such object");
	else
		REFUSE(reply, -ENOENT, "version %llu does not exist; the current version is %llu",
			(unsigned long long)request->version,
			(unsigned long long)object_record(session->pool, current)->version);
}

static void open_check(const struct session *session, const struct msg_object_open_request *request,
	struct msg_object_open_reply *reply)
{
	const struct pool *pool = session->pool;
	const struct object_record *record;

	if (request->flags & ~(uint32_t)OPEN_ADOPT || (request->flags & OPEN_ADOPT && !request->role[0])) {
		REFUSE(reply, -EINVAL, "an unknown flag, or a request to adopt without a role");
		return;
	}
	if (request->role[0] && !role_held(session, request->role, request->role_token)) {
		REFUSE(reply, -ESTALE, "the session does not hold role '%s' with this token", request->role);
		return;
	}
	reply->object = request->version ? object_of_version(pool, session->domain, request->name, request->version)
					 : object_current(pool, session->domain, request->name);
	if (!reply->object) {
		open_absent(session, request, reply);
		return;
	}
	record = object_record(pool, reply->object);
	/*
	 * The object was found under a name of the session's own trust domain, so all its pages belong to that domain.
	 */
	if (record->flags & OBJECT_PRIVATE && strcmp(record->tenant, session->tenant->config->name) != 0)
		REFUSE(reply, -EACCES, "it is private to tenant '%s'", record->tenant);
	else if (!object_name_lists(session, request->name))
		REFUSE(reply, -EACCES, "its name does not list tenant '%s'", session->tenant->config->name);
	else if (!object_adapter_allowed(session, request->name, pool->objects->of[reply->object].label))
		REFUSE_ADAPTER(reply, -EACCES, session, pool->objects->of[reply->object].label);
	else if (request->layout_hash && request->layout_hash != record->layout_hash)
		REFUSE(reply, -EPROTO, "its layout hash is %016llx", (unsigned long long)record->layout_hash);
	else if (request->flags & OPEN_ADOPT)
		adopt_check(session, request, record, reply);
	reply->version = record->version;
	reply->memory_class = record->class;
	reply->writable = !reply->error &&
		(request->flags & OPEN_ADOPT ||
			atomic_load_explicit(&record->writer, memory_order_relaxed) == session->id);
}

/* Execute the answer to an open request; this may be repeated. Return false if it can no longer be executed. */
static bool open_carry_out(struct session *session, const struct msg_object_open_reply *reply)
{
	struct pool *pool = session->pool;
	struct object_record *record;
	uint32_t writer;

	if (reply->error)
		return true;
	if (reply->object >= pool->objects->count || !object_stands(pool, reply->object))
		return false;
	record = object_record(pool, reply->object);
	writer = atomic_load_explicit(&record->writer, memory_order_relaxed);
	if (record->version != reply->version || (reply->writable && writer && writer != session->id))
		return false;
	if (reply->writable)
		atomic_store_explicit(&record->writer, session->id, memory_order_relaxed);
	object_reader_add(pool, reply->object, session->id);
	return true;
}

static void answer_open(struct question *q, const struct msg_object_open_request *request)
{
	const struct objects *objects = q->session->pool->objects;
	struct msg_object_open_reply reply = {.error = 0};
	uint8_t bytes[MSG_LARGEST_object_open_reply];
	int length;

	if (q->kept_bytes > 0 && !msg_decode_object_open_reply(&reply, q->kept, (size_t)q->kept_bytes) &&
		open_carry_out(q->session, &reply)) {
		asked_send(q->session, q->kept, q->kept_bytes, reply.error ? -1 : objects->of[reply.object].fd);
		return;
	}
	memset(&reply, 0, sizeof(reply));
	open_check(q->session, request, &reply);
	if (reply.error)
		reply.object = 0;
	KEEP(q, object_open_reply, &reply, bytes, length);
	if (open_carry_out(q->session, &reply) && !reply.error)
		flight_note(q->session->pool,
			&(struct flight_entry){.kind = FLIGHT_OBJECT_OPEN,
				.session = (uint16_t)q->session->id,
				.page = reply.object,
				.value = reply.version},
			0);
	asked_send(q->session, bytes, length, reply.error ? -1 : objects->of[reply.object].fd);
}

/* ---- close and delete ---- */

/* Return the object to which a name refers for this session. 0: none, or several for an admin. */
static uint32_t delete_find(const struct session *session, const struct msg_object_change_request *request,
	struct msg_object_change_reply *reply)
{
	const struct pool *pool = session->pool;
	uint32_t found = session->kind == SESSION_ADMIN ? object_anywhere(pool, request->name, 0)
							: object_current(pool, session->domain, request->name);

	if (found == OBJECT_SEVERAL && request->version)
		found = object_anywhere(pool, request->name, request->version);
	if (found == OBJECT_SEVERAL)
		REFUSE(reply, -EINVAL,
			"several trust domains have an object of this name; specify its version (--object-version)");
	else if (!found)
		REFUSE(reply, -ENOENT, "no object '%s'", request->name);
	return found == OBJECT_SEVERAL ? 0 : found;
}

static void change_check(const struct session *session, const struct msg_object_change_request *request,
	struct msg_object_change_reply *reply)
{
	const struct pool *pool = session->pool;

	reply->object = request->object;
	reply->version = request->version;
	if (request->verb == VERB_CLOSE) {
		if (!request->object || request->object >= pool->objects->count ||
			!object_stands(pool, request->object) ||
			object_record(pool, request->object)->version != request->version ||
			!object_has_reader(pool, request->object, session->id))
			REFUSE(reply, -ENOENT, "object %u is not open", request->object);
		return;
	}
	if (request->verb != VERB_DELETE) {
		REFUSE(reply, -EINVAL, "unknown verb %u", request->verb);
		return;
	}
	reply->object = delete_find(session, request, reply);
	if (!reply->object)
		return;
	reply->version = object_record(pool, reply->object)->version;
	if (request->version && request->version != reply->version)
		REFUSE(reply, -ESTALE, "the current version is %llu, not %llu", (unsigned long long)reply->version,
			(unsigned long long)request->version);
	else if (!may_change(session, object_record(pool, reply->object)))
		REFUSE(reply, -EPERM, "it belongs to tenant '%s', and only that tenant and admins may delete it",
			object_record(pool, reply->object)->tenant);
}

/* Execute the answer. A repetition has no effect. */
static void change_carry_out(struct session *session, uint32_t verb, const struct msg_object_change_reply *reply)
{
	struct pool *pool = session->pool;

	if (reply->error || !reply->object || reply->object >= pool->objects->count ||
		!object_stands(pool, reply->object) || object_record(pool, reply->object)->version != reply->version)
		return;
	if (verb == VERB_CLOSE && object_has_reader(pool, reply->object, session->id))
		object_reader_drop(pool, reply->object, session->id);
	else if (verb == VERB_DELETE && object_state(pool, reply->object) == OBJECT_CURRENT)
		object_delete(pool, reply->object);
	pool_mark_freed(pool);
}

static void answer_change(struct question *q, const struct msg_object_change_request *request)
{
	struct msg_object_change_reply reply = {.error = 0};
	uint8_t bytes[MSG_LARGEST_object_change_reply];
	int length;

	if (q->kept_bytes > 0 && !msg_decode_object_change_reply(&reply, q->kept, (size_t)q->kept_bytes)) {
		change_carry_out(q->session, request->verb, &reply);
		asked_send(q->session, q->kept, q->kept_bytes, -1);
		return;
	}
	memset(&reply, 0, sizeof(reply));
	change_check(q->session, request, &reply);
	KEEP(q, object_change_reply, &reply, bytes, length);
	change_carry_out(q->session, request->verb, &reply);
	asked_send(q->session, bytes, length, -1);
}

/* ---- adapters without an object ---- */

/* Check the rights to an adapter as for its publication. This changes nothing, so the answer is not stored. */
static void answer_adapter(const struct question *q, const struct msg_adapter_request *request)
{
	struct msg_adapter_reply reply = {.error = 0};
	uint8_t bytes[MSG_LARGEST_adapter_reply];
	const char *refusal = object_name_refusal(q->session, request->object, true);
	int length;

	if (refusal)
		REFUSE(&reply, -EPERM, "%s", refusal);
	else if (!object_adapter_allowed(q->session, request->object, request->name))
		REFUSE_ADAPTER(&reply, -EPERM, q->session, request->name);
	length = msg_encode_adapter_reply(&reply, q->sequence, NULL, bytes, sizeof(bytes));
	asked_send(q->session, bytes, length, -1);
}

static bool serves(uint32_t type)
{
	return type == MSG_TYPE_object_publish_request || type == MSG_TYPE_object_open_request ||
		type == MSG_TYPE_object_change_request || type == MSG_TYPE_adapter_request;
}

static const char *serve(
	struct session *session, const struct msg_envelope *envelope, const uint8_t *packet, size_t length, int fd)
{
	struct question q = {.session = session, .sequence = envelope->sequence};
	union {
		struct msg_object_publish_request publish;
		struct msg_object_open_request open;
		struct msg_object_change_request change;
		struct msg_adapter_request adapter;
	} request;
	const char *damage = NULL;

	q.kept_bytes = asked_find(session, q.sequence, q.kept);
	if (q.kept_bytes < 0)
		goto close_fd; /* an old request: the sender has since sent another one */
	if (envelope->type == MSG_TYPE_object_publish_request && session->kind == SESSION_WORKER &&
		!msg_decode_object_publish_request(&request.publish, packet, length)) {
		return answer_publish(&q, &request.publish, fd);
	}
	if (envelope->type == MSG_TYPE_object_open_request && session->kind == SESSION_WORKER &&
		!msg_decode_object_open_request(&request.open, packet, length)) {
		answer_open(&q, &request.open);
	} else if (envelope->type == MSG_TYPE_object_change_request && session->kind != SESSION_OBSERVER &&
		!msg_decode_object_change_request(&request.change, packet, length)) {
		answer_change(&q, &request.change);
	} else if (envelope->type == MSG_TYPE_adapter_request && session->kind == SESSION_WORKER &&
		!msg_decode_adapter_request(&request.adapter, packet, length)) {
		answer_adapter(&q, &request.adapter);
	} else {
		damage = "an invalid object request";
	}
close_fd:
	if (fd >= 0)
		close(fd);
	return damage;
}

const struct session_part objects_session_part = {
	.serves = serves,
	.request = serve,
	.returned = objects_session_end,
};
