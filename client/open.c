/*
 * open.c - gpool_open() and gpool_close(): attach to a pool and open the parts of the library, and the reverse. Also
 * handles forks. See core/pool.h.
 *
 * This is the only file that includes all parts. When a part opens, it registers the functions that the core calls.
 */
#include "client/core/pool.h"
#include "shm/plural.h"

#include "client/core/attach_call.h"
#include "client/core/control.h"
#include "client/core/deferred.h"
#include "client/core/events.h"
#include "client/core/export.h"
#include "client/core/import.h"
#include "client/core/interrupt.h"
#include "client/kv/kv.h"
#include "client/core/last_error.h"
#include "client/object/object.h"
#include "client/core/role.h"
#include "client/core/span.h"
#include "client/core/spill.h"
#include "client/core/stitch.h"
#include "client/core/stream.h"
#include "client/core/thread_cache.h"
#include "client/vm/background.h"
#include "client/vm/range.h"
#include "client/vm/space.h"
#include "client/vm/vpmm.h"
#include "client/core/window.h"
#include "proto/attach.h"
#include "proto/codec.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <unistd.h>

#define DIRECTORY_DEFAULT "/run/gpool"

enum {
	REPLY_MS = 10000,  /* for a reply to an attach request, if the caller does not wait for the agent */
	ANSWER_MS = 10000, /* chosen: much longer than a restart of the agent */
	DETACH_MS = 2000,
	ATTACH_TRIES = 8,
	/* pause before another attempt, after the agent has closed the connection without a reply */
	ATTACH_PAUSE_MS = 10,
	RUNS_SHARE = 64, /* a thread keeps 1/64 of the pool in runs, or RUNS_LEAST pages if that is more */
	/* two blocks of 100 pages, the size in the performance goal; the agent can reclaim them */
	RUNS_LEAST = 256,
};

/* ---- attach ---- */

/* Data that gpool_open() receives or creates before it is stored in the pool. */
struct attaching {
	struct gpool *pool;
	struct gpool_options options;
	char pool_name[64];
	char name[64];
	char tenant[64];
	struct msg_attach_reply reply;
	uint8_t buffer[MSG_LARGEST_attach_reply]; /* the request is shorter */
};
static_assert((int)MSG_LARGEST_attach_request <= (int)MSG_LARGEST_attach_reply, "one buffer for both");

static int name_copy(char to[64], const char *from, const char *what)
{
	if (from && strlen(from) >= 64)
		return fail(-EINVAL, "the name of the %s has %zu byte%s; the maximum is 63", what, strlen(from),
			plural(strlen(from)));
	msg_text_copy(to, 64, from ? from : "");
	return 0;
}

static int options_refuse(const struct gpool_options *read)
{
	const uint32_t known = GPOOL_OPEN_OBSERVER | GPOOL_OPEN_ADMIN;

	if (read->flags & ~known)
		return fail(-EINVAL, "flags are 0x%x, of which 0x%x are unknown", read->flags, read->flags & ~known);
	if (read->flags == known)
		return fail(-EINVAL, "flags contain both GPOOL_OPEN_OBSERVER and GPOOL_OPEN_ADMIN; use one of them");
	if (read->timeout_ms < -1)
		return fail_timeout(read->timeout_ms);
	return fail(-EINVAL, "magazine is %u; the maximum is %d", read->magazine, MAGAZINE_MAX);
}

static int options_check(struct attaching *a, const struct gpool_options *options)
{
	struct gpool_options *read = &a->options;
	int error = options ? options_read(read, sizeof(*read), options) : 0;

	if (error)
		return error;
	if (read->flags & ~(uint32_t)(GPOOL_OPEN_OBSERVER | GPOOL_OPEN_ADMIN) ||
		read->flags == (GPOOL_OPEN_OBSERVER | GPOOL_OPEN_ADMIN) || read->timeout_ms < -1 ||
		read->magazine > MAGAZINE_MAX)
		return options_refuse(read);
	error = name_copy(a->pool_name, read->pool, "pool");
	if (!error)
		error = name_copy(a->tenant, read->tenant, "tenant");
	/* The name is only informational, so a long one is truncated. */
	msg_text_copy(a->name, sizeof(a->name), read->name ? read->name : program_invocation_short_name);
	return error;
}

/* Convert an error of connect(2) or of the wait to one of gpool_open(). */
static int connect_error(int error)
{
	switch (error) {
	case -ECONNREFUSED:
	case -ENOTDIR:
	case -ETIMEDOUT: return -ENOENT; /* no agent is listening, or none started in time */
	case -EAGAIN: return -ETIMEDOUT; /* an agent is listening, but accepts no connection */
	case -ENAMETOOLONG: return -EINVAL;
	case -EPERM: return -EACCES;
	case -ENFILE: return -EMFILE;
	default: return error;
	}
}

/* Call attach_connect() with short timeouts, so that the thread's check can interrupt the wait. */
static int connect_await(const char *path, int timeout_ms)
{
	uint64_t start = monotonic_ns();
	int left = timeout_ms;

	for (;;) {
		int slice = wait_slice_ms(left), fd = attach_connect(path, slice);
		uint64_t waited = (monotonic_ns() - start) / 1000000;

		if (fd != -ETIMEDOUT || slice == left)
			return fd;
		if (wait_interrupted())
			return -EINTR;
		if (timeout_ms >= 0)
			left = waited < (uint64_t)timeout_ms ? timeout_ms - (int)waited : 0;
	}
}

static int attach_socket(struct attaching *a)
{
	const char *directory = a->options.directory ? a->options.directory : secure_getenv("GPOOL_DIR");
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
	const char *why;
	int length;

	if (!directory || !*directory)
		directory = DIRECTORY_DEFAULT;
	length = snprintf(path, sizeof(path), "%s/attach", directory);
	if (length < 0 || (size_t)length >= sizeof(path))
		return fail(-EINVAL, "the path of the directory has %zu byte%s; the maximum is %zu", strlen(directory),
			plural(strlen(directory)), sizeof(path) - sizeof("/attach"));
	length = connect_await(path, a->options.timeout_ms);
	if (length < 0) {
		int error = connect_error(length);

		if (error == -EINTR)
			return error;
		/* A wait has ended without a socket to which a connection is possible. */
		why = length == -ETIMEDOUT ? "no agent was listening in time" : strerror(-length);
		pool_log(a->pool, POOL_LOG_ERROR, "cannot connect to '%s': %s", path, why);
		if (error == -ENOENT)
			return fail(error,
				"cannot connect to '%s': %s; start gpoold, or set GPOOL_DIR or `directory` to its "
				"directory",
				path, why);
		return fail(error, "cannot connect to '%s': %s", path, why);
	}
	a->pool->socket = length;
	return 0;
}

/* Return a refusal that gpool_open() documents. Any other error violates the agent's protocol. */
static int refusal(int error)
{
	switch (error) {
	case -EINVAL:
	case -EACCES:
	case -ENXIO:
	case -EUSERS:
	case -ESHUTDOWN:
	case -EPROTO:
	case -ENODEV:
	case -EMFILE:
	case -ENOMEM:
	case -ETIMEDOUT: return error;
	case -EPERM: return -EACCES;
	case -ENFILE:
	case -ETOOMANYREFS: return -EMFILE;
	default: return -EPROTO;
	}
}

/* Describe a reply or shared memory that this library does not understand. Return: -EPROTO. */
static int fail_unfit(void)
{
	return fail(-EPROTO,
		"the reply or the shared memory of the agent does not match this library; install the same version of "
		"the library and the agent");
}

/* Send the attach request. Return -EPIPE if the agent ends during the request. */
static int attach_ask(struct attaching *a, int fds[3])
{
	struct msg_attach_request request = {
		.layout_version = POOL_LAYOUT_VERSION,
		.kind = a->pool->session_kind,
		.quota_bytes = a->options.quota_bytes,
	};
	int timeout_ms = a->options.timeout_ms, length, error;
	size_t fd_count = 0;

	if (timeout_ms == 0)
		timeout_ms = REPLY_MS;
	strcpy(request.pool, a->pool_name);
	strcpy(request.name, a->name);
	strcpy(request.tenant, a->tenant);
	length = msg_encode_attach_request(&request, 0, NULL, a->buffer, sizeof(a->buffer));
	if (length < 0)
		return -EINVAL;
	error = attach_send(a->pool->socket, a->buffer, (size_t)length, NULL, 0);
	if (error)
		return error == -EPIPE || error == -ECONNRESET ? -EPIPE : fail_unfit();
	length = attach_receive(a->pool->socket, a->buffer, sizeof(a->buffer), fds, 3, &fd_count, timeout_ms);
	if (length < 0)
		return length == -EPIPE || length == -ECONNRESET ? -EPIPE
			: length == -ETIMEDOUT ? fail(length, "the agent did not answer within %d ms", timeout_ms)
					       : refusal(length);
	if (msg_decode_attach_reply(&a->reply, a->buffer, (size_t)length))
		error = fail_unfit();
	else if (a->reply.error) {
		pool_log(a->pool, POOL_LOG_ERROR, "the agent refused the session '%s': %s", a->name, a->reply.text);
		error = fail(refusal(a->reply.error), "the agent refused the session '%s': %s", a->name, a->reply.text);
	} else if (fd_count != 3)
		error = fail_unfit();
	if (error)
		for (size_t i = 0; i < fd_count; i++)
			close(fds[i]);
	return error;
}

/* Check that the segments match the reply. */
static bool reply_fits(const struct attaching *a)
{
	const struct gpool *pool = a->pool;
	const struct pool_header *header = pool->segment.header;
	const struct session_header *session = pool->session.header;
	const struct msg_attach_reply *reply = &a->reply;

	return reply->session >= 1 && reply->session <= PAGE_SESSION_MAX && reply->page_size == header->page_bytes &&
		reply->page_count == header->page_count && reply->pages_per_handle == header->pages_per_handle &&
		strncmp(reply->pool, header->name, sizeof(reply->pool)) == 0 &&
		strncmp(reply->backend, header->backend, sizeof(reply->backend)) == 0 &&
		session->session == reply->session && session->page_count == pool->page_count &&
		(!*a->pool_name || strcmp(reply->pool, a->pool_name) == 0);
}

static int segments_open(struct attaching *a, const int fds[3])
{
	struct gpool *pool = a->pool;
	int error = pool_segment_open(fds[0], &pool->segment);

	if (error)
		return error == -ENOMEM ? error : fail_unfit();
	pool->header = pool->segment.header;
	pool->pages = pool->segment.pages;
	pool->page_bytes = pool->header->page_bytes;
	pool->page_count = pool->session_kind ? 0 : pool->header->page_count;
	pool->unreserved = pool->session_kind ? 0 : pool->header->reserved_first;
	error = session_segment_open(fds[1], pool->page_count, true, &pool->session);
	if (error)
		return error == -ENOMEM ? error : fail_unfit();
	if (!reply_fits(a))
		return fail_unfit();
	/*
	 * Exclude the segment from forked children: the fork check does not stop a child that writes through a pointer
	 * that it kept.
	 */
	madvise(pool->session.header, pool->session.bytes, MADV_DONTFORK);
	/* Releases that were requested earlier do not concern this session. */
	atomic_store_explicit(&pool->release_seen,
		atomic_load_explicit(&pool->header->release_serial, memory_order_relaxed), memory_order_relaxed);
	pool->id = a->reply.session;
	memcpy(pool->control_url, a->reply.control_url, sizeof(pool->control_url));
	memcpy(pool->events_url, a->reply.events_url, sizeof(pool->events_url));
	return 0;
}

/* Let the peers of the pool access its memory, except those that this process cannot see. */
static int peers_open(struct gpool *pool, const struct gpu_ops *ops)
{
	char uuids[POOL_PEERS_BYTES], *rest = NULL;
	int devices[GPU_PEERS_MAX], index;
	uint32_t count = 0;

	memcpy(uuids, pool->header->peers, sizeof(uuids));
	uuids[sizeof(uuids) - 1] = '\0';
	for (char *uuid = strtok_r(uuids, " ", &rest); uuid && count < GPU_PEERS_MAX;
		uuid = strtok_r(NULL, " ", &rest)) {
		index = gpu_device_find(ops, uuid);
		if (index >= 0)
			devices[count++] = index;
	}
	return gpu_peers_set(pool->gpu, devices, count);
}

static int device_open(struct attaching *a)
{
	struct gpool *pool = a->pool;
	const struct gpu_ops *ops = gpu_backend(a->reply.backend);
	struct gpu_device_info info;
	int index, error;

	if (!ops) {
		pool_log(pool, POOL_LOG_ERROR, "cannot open pool '%s': this library has no back end '%s'",
			a->reply.pool, a->reply.backend);
		return fail(-ENODEV, "cannot open pool '%s': this library has no back end '%s'", a->reply.pool,
			a->reply.backend);
	}
	index = gpu_device_find(ops, a->reply.device);
	error = index < 0 ? index : gpu_open(ops, index, 0, &pool->gpu);
	if (!error)
		error = peers_open(pool, ops);
	if (!error)
		error = ops->device_info(index, &info);
	if (error) {
		pool_log(pool, POOL_LOG_ERROR, "cannot open device '%s' of back end '%s': %s", a->reply.device,
			a->reply.backend, gpu_error_text());
		return fail(error == -ENOMEM ? -ENOMEM : -ENODEV, "cannot open device '%s' of back end '%s': %s",
			a->reply.device, a->reply.backend, gpu_error_text());
	}
	pool->capabilities = info.capabilities;
	pool->device = (uint32_t)index;
	memcpy(pool->device_uuid, info.uuid, sizeof(pool->device_uuid));
	pool->calls_at_open = gpu_calls_total(pool->gpu);
	return 0;
}

/* ---- open and close ---- */

static struct gpool *pool_allocate(void)
{
	struct gpool *pool = mmap(NULL, sizeof(*pool), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_condattr_t attributes;

	if (pool == MAP_FAILED)
		return NULL;
	if (madvise(pool, sizeof(*pool), MADV_WIPEONFORK)) {
		munmap(pool, sizeof(*pool));
		return NULL;
	}
	pool->socket = -1;
	pool->doorbell = -1;
	pool->device = GPOOL_DEVICE_NONE;
	pthread_mutex_init(&pool->attach_lock, NULL);
	pthread_mutex_init(&pool->objects_lock, NULL);
	pthread_cond_init(&pool->objects_answered, NULL);
	pthread_mutex_init(&pool->kvs_lock, NULL);
	/* Start above the numbers of all earlier sessions, one of which may have had the same session number. */
	pool->attach_sequence = monotonic_ns();
	pool->answer_ms = ANSWER_MS;
	pthread_mutex_init(&pool->roles_lock, NULL);
	pthread_mutex_init(&pool->request_lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* a wait must not depend on a clock that can be set */
	pthread_cond_init(&pool->request_free, &attributes);
	pthread_cond_init(&pool->attach_free, &attributes);
	pthread_condattr_destroy(&attributes);
	pthread_mutex_init(&pool->control_lock, NULL);
	pthread_mutex_init(&pool->events_lock, NULL);
	return pool;
}

static void pool_release(struct gpool *pool)
{
	if (pool->socket >= 0)
		close(pool->socket);
	if (pool->doorbell >= 0)
		close(pool->doorbell);
	session_segment_close(&pool->session);
	pool_segment_close(&pool->segment);
	pthread_mutex_destroy(&pool->attach_lock);
	pthread_cond_destroy(&pool->attach_free);
	pthread_mutex_destroy(&pool->objects_lock);
	pthread_cond_destroy(&pool->objects_answered);
	pthread_mutex_destroy(&pool->kvs_lock);
	pthread_mutex_destroy(&pool->roles_lock);
	pthread_mutex_destroy(&pool->request_lock);
	pthread_cond_destroy(&pool->request_free);
	pthread_mutex_destroy(&pool->control_lock);
	pthread_mutex_destroy(&pool->events_lock);
	munmap(pool, sizeof(*pool));
}

/* Report to the agent that all pages are unmapped and idle, so that it need not wait until this process has ended. */
static void detach(struct gpool *pool)
{
	const struct msg_detach_request request = {0};
	uint8_t buffer[MSG_LARGEST_detach_request], reply[MSG_LARGEST_detach_reply];
	struct attach_call call = {
		.request = buffer, .fd = -1, .answer = reply, .capacity = sizeof(reply), .timeout_ms = DETACH_MS};
	int length = msg_encode_detach_request(&request, 0, pool->token, buffer, sizeof(buffer));

	if (length < 0)
		return;
	call.length = length;
	if (pool->header && pool->session.header)
		attach_call(pool, &call);
	else if (attach_send(pool->socket, buffer, (size_t)length, NULL, 0) == 0)
		attach_receive(pool->socket, reply, sizeof(reply), NULL, 0, NULL, DETACH_MS);
}

/* If the agent ends during the request, it is restarted, and the next connection waits for it. */
static int attach(struct attaching *a, int fds[3])
{
	int error;

	for (int tries = 1;; tries++) {
		error = attach_socket(a);
		if (!error)
			error = attach_ask(a, fds);
		if (error != -EPIPE)
			return error;
		close(a->pool->socket);
		a->pool->socket = -1;
		if (tries == ATTACH_TRIES)
			return fail(-ETIMEDOUT, "the agent closed %d connections without an answer", ATTACH_TRIES);
		poll(NULL, 0, ATTACH_PAUSE_MS);
	}
}

/* ---- parts ---- */

static int summary_open(struct gpool *pool)
{
	pool->summary = calloc(lease_summary_words(pool->page_count), sizeof(*pool->summary));
	if (!pool->summary)
		return -ENOMEM;
	lease_summary_all(pool->summary, pool->page_count);
	return 0;
}

static void summary_close(struct gpool *pool)
{
	free((void *)pool->summary);
}

static void channels_close(struct gpool *pool)
{
	channel_close(pool->control);
	channel_close(pool->events);
}

/*
 * The parts, in the order in which they are opened. They are closed in reverse order, so each may use those above it
 * until it is closed. Streams are opened after the parts that queued work uses, so that this work ends before these
 * parts are closed. A part can be closed in any state, even if it was not opened.
 */
static const struct part {
	int (*open)(struct gpool *pool);
	void (*close)(struct gpool *pool);
	bool readers; /* also opened for observers and admins */
} parts[] = {
	{summary_open, summary_close, false},
	{window_open, window_close, false},
	{background_open, background_close, false},
	{vm_open, vm_close, false},
	{spills_open, spills_close, false},
	{stitch_open, stitch_close, false},
	{deferred_open, deferred_close, true},
	{span_open, span_close, false},
	{objects_open, objects_close_all, false},
	{ranges_open, ranges_close, false},
	{vpmm_open, vpmm_close, false},
	{NULL, kv_close_all, false},
	{NULL, sliced_ranges_close, false},
	{export_open, export_close, false},
	{stream_open_all, stream_close_all, true},
	{import_open, import_close, false},
	{NULL, role_close, true},
	{NULL, channels_close, true},
};
enum { PARTS = sizeof(parts) / sizeof(*parts) };

static int parts_open(struct gpool *pool)
{
	int error = 0;

	for (int i = 0; i < PARTS && !error; i++)
		if (parts[i].open && (parts[i].readers || !pool->session_kind))
			error = parts[i].open(pool);
	return error;
}

static void parts_close(struct gpool *pool)
{
	for (int i = PARTS; i-- > 0;)
		parts[i].close(pool);
	if (pool->gpu)
		gpu_close(pool->gpu);
}

static int pool_open(struct attaching *a)
{
	struct gpool *pool = a->pool;
	int fds[3], error = attach(a, fds);

	if (error) {
		/* The agent may have admitted the session nevertheless, and would lend it pages until the detach. */
		if (pool->socket >= 0 && error != -ETIMEDOUT)
			detach(pool);
		return error;
	}
	pool->doorbell = fds[2];
	memcpy(pool->token, a->reply.token, sizeof(pool->token));
	error = segments_open(a, fds);
	close(fds[0]);
	close(fds[1]);
	if (!error && !pool->session_kind)
		error = device_open(a);
	if (!error)
		error = parts_open(pool);
	if (!error)
		error = thread_cache_pool_open(pool);
	if (error) {
		parts_close(pool);
		detach(pool);
		return error;
	}
	pool->magazine = a->options.magazine;
	if (!pool->magazine)
		pool->magazine = atomic_load_explicit(&pool->header->thread_cache_pages, memory_order_relaxed);
	if (!pool->magazine || pool->magazine > MAGAZINE_MAX)
		pool->magazine = MAGAZINE_DEFAULT; /* an invalid number in the segment */
	pool->run_pages = pool->page_count / RUNS_SHARE > RUNS_LEAST ? pool->page_count / RUNS_SHARE : RUNS_LEAST;
	pool->alive = 1;
	return 0;
}

int gpool_open(const struct gpool_options *options, struct gpool **pool)
{
	struct attaching *a = calloc(1, sizeof(*a));
	int error;

	if (!a)
		return -ENOMEM;
	error = options_check(a, options);
	if (error)
		goto free_attaching;
	a->pool = pool_allocate();
	if (!a->pool) {
		error = -ENOMEM;
		goto free_attaching;
	}
	a->pool->log = a->options.log;
	a->pool->log_context = a->options.log_context;
	a->pool->session_kind = a->options.flags & GPOOL_OPEN_OBSERVER ? 1
		: a->options.flags & GPOOL_OPEN_ADMIN                  ? 2
								       : 0;
	error = pool_open(a);
	if (error)
		pool_release(a->pool);
	else
		*pool = a->pool;
free_attaching:
	free(a);
	return error;
}

void gpool_close(struct gpool *pool)
{
	/* A forked child owns nothing: the parent still holds the pool's resources. */
	if (!pool || !pool->alive)
		return;
	/* Stop the background thread first, because one of the thread caches belongs to it. */
	background_stop(pool);
	thread_cache_pool_close(pool);
	parts_close(pool);
	/* After a device failure, work may still use pages. The agent then waits until this process has ended. */
	if (!pool_gpu_failed(pool))
		detach(pool);
	pool_release(pool);
}
