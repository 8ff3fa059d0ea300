#include "client/core/window.h"

#include "client/core/attach_call.h"
#include "client/core/last_error.h"
#include "proto/attach.h"
#include "proto/codec.h"
#include "shm/invariant.h"
#include "shm/plural.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	HANDLES_MAPPED = 256, /* by one call of gpu_map_run() */
	/*
	 * chosen: the kernel first gives a process a table of 64 descriptors, and a process with threads waits about
	 * 10 ms when its table grows
	 */
	FETCHED_LEAST = 32,
};

/*
 * Consecutive handles that share one descriptor. The descriptor is kept, because importing all handles at once would be
 * slow.
 */
struct handle_source {
	struct handle_source *next;
	int fd;
	uint32_t first, count;
	uint64_t offset;
};

struct window {
	pthread_mutex_t lock;
	uint32_t pages_per_handle;
	uint32_t handle_count;
	uint64_t handle_bytes;
	uint64_t bytes;
	_Atomic uint64_t *mapped; /* a bit for each handle that is mapped completely, for reading and writing */
	uint64_t *there;          /* a bit for each handle that is mapped */
	uint64_t *readonly;       /* a bit for each handle that is mapped read-only; see window_protect() */
	/*
	 * [handle_count]; 0: not imported. Written under the lock, read without it by threads that hold pages of the
	 * handle
	 */
	_Atomic uint64_t *handles;
	uint32_t imports; /* number of handles that were imported, up to FETCHED_LEAST; see ahead_end() */
	struct handle_source *sources;
};

static inline uint32_t handle_of(const struct window *window, uint32_t page)
{
	return window->pages_per_handle == 1 ? page : page / window->pages_per_handle;
}

static inline uint64_t handle_at(const struct window *window, uint32_t handle)
{
	return atomic_load_explicit(&window->handles[handle], memory_order_acquire);
}

static inline bool is_mapped(const struct window *window, uint32_t handle)
{
	return atomic_load_explicit(&window->mapped[handle / 64], memory_order_acquire) >> (handle % 64) & 1;
}

static inline bool bit_of(const uint64_t *bits, uint32_t index)
{
	return bits[index / 64] >> (index % 64) & 1;
}

/* Check the invariants of a handle whose entry was changed and that stays mapped. The caller holds window->lock. */
static void handle_check(const struct window *window, uint32_t handle)
{
	GPOOL_INVARIANT(!bit_of(window->there, handle) || handle_at(window, handle),
		"handle %u is mapped and not imported", handle);
	GPOOL_INVARIANT(!is_mapped(window, handle) || bit_of(window->there, handle),
		"handle %u is writable and not mapped", handle);
	GPOOL_INVARIANT(!bit_of(window->readonly, handle) || bit_of(window->there, handle),
		"handle %u is read-only and not mapped", handle);
	GPOOL_INVARIANT(!is_mapped(window, handle) || !bit_of(window->readonly, handle),
		"handle %u is writable and read-only", handle);
}

/* ---- open and close ---- */

/* Idle callback: unmap the handles that the agent needs. */
static bool window_idle(struct gpool *pool)
{
	if (pool_release_due(pool))
		window_let_go(pool);
	return false;
}

int window_open(struct gpool *pool)
{
	struct window *window = calloc(1, sizeof(*window));
	int error = -ENOMEM;

	if (!window)
		return -ENOMEM;
	window->pages_per_handle = pool->header->pages_per_handle;
	window->handle_count = pool->page_count / window->pages_per_handle;
	window->handle_bytes = pool->page_bytes * window->pages_per_handle;
	window->bytes = pool->page_bytes * pool->page_count;
	window->mapped = calloc((window->handle_count + 63) / 64, sizeof(*window->mapped));
	window->there = calloc((window->handle_count + 63) / 64, sizeof(*window->there));
	window->readonly = calloc((window->handle_count + 63) / 64, sizeof(*window->readonly));
	window->handles = calloc(window->handle_count, sizeof(*window->handles));
	if (!window->mapped || !window->there || !window->readonly || !window->handles)
		goto free_window;
	error = gpu_reserve(pool->gpu, window->bytes, 0, &pool->window_base);
	if (error) {
		pool_log(pool, POOL_LOG_ERROR, "cannot reserve %llu byte%s of addresses for pool '%s': %s",
			(unsigned long long)window->bytes, plural(window->bytes), pool->header->name, gpu_error_text());
		error = -ENOMEM;
		goto free_window;
	}
	pthread_mutex_init(&window->lock, NULL);
	pool->window = window;
	idle_register(pool, IDLE_WAIT | IDLE_FREED, window_idle);
	return 0;
free_window:
	free((void *)window->mapped);
	free(window->there);
	free(window->readonly);
	free((void *)window->handles);
	free(window);
	return error;
}

static void unmap_run(struct gpool *pool, uint32_t first, uint32_t end)
{
	struct window *window = pool->window;
	int error = gpu_unmap(
		pool->gpu, pool->window_base + first * window->handle_bytes, (end - first) * window->handle_bytes);

	if (error)
		pool_log(pool, POOL_LOG_ERROR, "cannot unmap handles %u to %u: %s", first, end - 1, gpu_error_text());
}

void window_close(struct gpool *pool)
{
	struct window *window = pool->window;
	struct handle_source *source;

	if (!window)
		return;
	for (uint32_t handle = 0; handle < window->handle_count;) {
		uint32_t first = handle;

		while (handle < window->handle_count && bit_of(window->there, handle))
			handle++;
		if (handle > first)
			unmap_run(pool, first, handle);
		else
			handle++;
	}
	for (uint32_t handle = 0; handle < window->handle_count; handle++)
		if (handle_at(window, handle))
			gpu_release(pool->gpu, handle_at(window, handle));
	gpu_unreserve(pool->gpu, pool->window_base, window->bytes);
	while ((source = window->sources)) {
		window->sources = source->next;
		close(source->fd);
		free(source);
	}
	pthread_mutex_destroy(&window->lock);
	free((void *)window->mapped);
	free(window->there);
	free(window->readonly);
	free((void *)window->handles);
	free(window);
	pool->window = NULL;
}

void window_keep_from_child(const struct gpool *pool, uint64_t va, uint64_t bytes)
{
	/* Do this only if device addresses are mappings of this process; a driver protects its own mappings. */
	if (pool->capabilities & GPU_CAP_HOST_POINTER)
		madvise((void *)(uintptr_t)va, bytes, MADV_DONTFORK);
}

/* ---- handles: caller holds window->lock ---- */

static int handle_import(struct gpool *pool, uint32_t handle, int fd, uint64_t offset)
{
	struct window *window = pool->window;
	struct gpu_export from = {.fd = fd, .offset = offset, .length = window->handle_bytes};
	uint64_t imported;
	int error;

	if (handle_at(window, handle))
		return 0;
	error = gpu_import(pool->gpu, &from, &imported);
	if (error)
		pool_log(pool, POOL_LOG_ERROR, "cannot import handle %u of pool '%s': %s", handle, pool->header->name,
			gpu_error_text());
	else
		atomic_store_explicit(&window->handles[handle], imported, memory_order_release);
	window->imports += !error && window->imports < FETCHED_LEAST;
	return error;
}

static int source_add(struct window *window, const struct msg_handle_entry *entry, int fd)
{
	struct handle_source *source = malloc(sizeof(*source));

	if (!source)
		return -ENOMEM;
	source->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (source->fd < 0) {
		free(source);
		return -errno;
	}
	source->first = entry->first;
	source->count = entry->count;
	source->offset = entry->offset;
	source->next = window->sources;
	window->sources = source;
	return 0;
}

/* Return true if the entry of a reply covers only handles of [at, end) and refers to a received descriptor. */
static bool entry_fits(const struct window *window, const struct msg_handle_entry *entry, uint32_t at, size_t fd_count)
{
	return entry->first < window->handle_count && entry->count >= 1 &&
		entry->count <= window->handle_count - entry->first && entry->first + entry->count > at &&
		(entry->first >= at || entry->count > 1) && entry->length == window->handle_bytes &&
		entry->fd_index < fd_count;
}

/* Send one request and receive its reply. *at is advanced to the end of the received handles. */
static int handles_ask(struct gpool *pool, uint32_t *at, uint32_t end, uint8_t *buffer, struct msg_handles_reply *reply)
{
	struct msg_handles_request request = {.first = *at, .count = end - *at};
	uint8_t question[MSG_LARGEST_handles_request];
	int fds[ATTACH_FDS_MAX], length, error;
	struct attach_call call = {
		.request = question,
		.length = msg_encode_handles_request(&request, 0, NULL, question, sizeof(question)),
		.fd = -1,
		.answer = buffer,
		.capacity = MSG_LARGEST_handles_reply,
		.fds = fds,
		.fd_capacity = ATTACH_FDS_MAX,
		.timeout_ms = pool->answer_ms,
	};
	size_t fd_count;

	length = attach_call(pool, &call);
	if (length < 0)
		return length;
	fd_count = call.fd_count;
	error = msg_decode_handles_reply(reply, buffer, (size_t)length);
	if (!error)
		error = reply->error;
	if (!error && !reply->entries_count)
		error = -EPROTO;
	for (uint32_t i = 0; !error && i < reply->entries_count; i++) {
		const struct msg_handle_entry *entry = &reply->entries[i];

		if (!entry_fits(pool->window, entry, *at, fd_count))
			error = -EPROTO;
		else if (entry->count > 1)
			error = source_add(pool->window, entry, fds[entry->fd_index]);
		else
			error = handle_import(pool, entry->first, fds[entry->fd_index], entry->offset);
		if (!error)
			*at = entry->first + entry->count;
	}
	for (size_t i = 0; i < fd_count; i++)
		close(fds[i]);
	return error;
}

static bool is_leased(const struct gpool *pool, uint32_t handle)
{
	uint64_t word =
		atomic_load_explicit(&pool->pages[handle * pool->window->pages_per_handle], memory_order_relaxed);

	return page_word_state(word) == PAGE_LEASED && page_word_owner(word) == pool->id;
}

/*
 * Return the end of a request for the handles [first, end). A request for few handles includes the next ones that are
 * leased to this session and not imported: the agent leases pages in batches, so the program probably uses these next.
 * It has at most as many handles as the process has imported so far, so that a process with few pages imports few in
 * vain.
 *
 * In a pool that separates trust domains it includes none: another domain that needs the pages would have to wait until
 * the handles are released.
 */
static uint32_t ahead_end(const struct gpool *pool, uint32_t first, uint32_t end)
{
	const struct window *window = pool->window;

	if (atomic_load_explicit(&pool->header->release_serial, memory_order_relaxed))
		return end;
	while (end < window->handle_count && end - first < window->imports && !handle_at(window, end) &&
		is_leased(pool, end))
		end++;
	return end;
}

static int handles_fetch(struct gpool *pool, uint32_t first, uint32_t end)
{
	struct msg_handles_reply *reply;
	uint32_t begin, ahead = ahead_end(pool, first, end);
	uint8_t *buffer;
	int error = 0;

	begin = first;
	reply = malloc(sizeof(*reply));
	buffer = malloc(MSG_LARGEST_handles_reply);
	if (!reply || !buffer)
		error = -ENOMEM;
	while (!error && first < end) {
		error = handles_ask(pool, &first, ahead, buffer, reply);
		/* Handles that are not needed yet must not make the call fail, nor their number of descriptors. */
		if (error && first >= end)
			error = 0;
		if ((error == -EMFILE || error == -ETOOMANYREFS) && ahead > end) {
			ahead = end;
			error = 0;
		}
		/* The last permitted handle may be followed by others that are not permitted. */
		if (error == -EACCES && first > begin)
			break;
	}
	if (error == -EACCES && first > begin)
		error = 0;
	/* The agent may have sent only handles after the requested ones. */
	if (!error && ahead > end && !handle_at(pool->window, begin))
		error = -EACCES;
	free(buffer);
	free(reply);
	/* -EACCES: the pages were taken back; the caller determines the reason. */
	if (error)
		pool_log(pool, error == -EACCES ? POOL_LOG_INFO : POOL_LOG_ERROR,
			"cannot get descriptors for handles %u to %u of pool '%s': %s", first, end - 1,
			pool->header->name, gpool_strerror(error));
	return error;
}

static bool handle_from_source(struct gpool *pool, uint32_t handle, int *error)
{
	for (const struct handle_source *source = pool->window->sources; source; source = source->next) {
		if (handle < source->first || handle - source->first >= source->count)
			continue;
		*error = handle_import(pool, handle, source->fd,
			source->offset + (handle - source->first) * pool->window->handle_bytes);
		return true;
	}
	return false;
}

static int handles_import(struct gpool *pool, uint32_t first, uint32_t end)
{
	struct window *window = pool->window;
	bool fetched = false;
	int error = 0;

	for (uint32_t handle = first; handle < end && !error; handle++) {
		if (handle_at(window, handle) || handle_from_source(pool, handle, &error))
			continue;
		if (fetched)
			return -EPROTO; /* the reply lacks the requested handles */
		error = handles_fetch(pool, handle, end);
		fetched = true;
		handle--;
	}
	return error;
}

/*
 * error_of() - return the error of a mapping that failed: -EPIPE if the agent, from which descriptors are fetched, does
 * not answer.
 */
static int error_of(const struct gpool *pool, int error)
{
	if (error == -EPIPE || error == -ETIMEDOUT)
		return fail_silent(pool, pool->answer_ms);
	return error ? fail_map() : 0;
}

/* Return a handle. If it is not imported, the caller must not hold window->lock. */
static int handle_get(struct gpool *pool, uint32_t index, uint64_t *handle)
{
	struct window *window = pool->window;
	int error;

	*handle = handle_at(window, index);
	if (likely(*handle))
		return 0;
	pthread_mutex_lock(&window->lock);
	error = handles_import(pool, index, index + 1);
	if (!error)
		*handle = handle_at(window, index);
	pthread_mutex_unlock(&window->lock);
	return error_of(pool, error);
}

/* ---- mapping ---- */

/* Map handles side by side at *at, which is increased by the bytes that were mapped, even after an error. */
static int handles_map(struct gpool *pool, uint32_t first, uint32_t end, uint64_t *at)
{
	uint64_t handles[HANDLES_MAPPED];
	int error = 0;

	while (first < end && !error) {
		uint32_t count = 0, mapped = 0;
		int result = 0;

		while (count < HANDLES_MAPPED && first + count < end && !error) {
			error = handle_get(pool, first + count, &handles[count]);
			count += !error;
		}
		if (count)
			result = gpu_map_run(pool->gpu, *at, pool->window->handle_bytes, handles, count, &mapped);
		*at += mapped * pool->window->handle_bytes;
		first += count;
		error = result ? result : error;
	}
	return error;
}

/* Map a run of handles of which none is mapped. */
static int map_run(struct gpool *pool, uint32_t first, uint32_t end)
{
	struct window *window = pool->window;
	uint64_t va = pool->window_base + first * window->handle_bytes, at = va;
	int error = handles_import(pool, first, end);

	if (error)
		return error;
	error = handles_map(pool, first, end, &at);
	if (error)
		goto unmap;
	error = gpu_access(pool->gpu, va, (end - first) * window->handle_bytes, GPU_ACCESS_READ_WRITE);
	if (error)
		goto unmap;
	window_keep_from_child(pool, va, (end - first) * window->handle_bytes);
	for (uint32_t handle = first; handle < end; handle++) {
		window->there[handle / 64] |= UINT64_C(1) << (handle % 64);
		atomic_fetch_or_explicit(
			&window->mapped[handle / 64], UINT64_C(1) << (handle % 64), memory_order_release);
		handle_check(window, handle);
	}
	return 0;
unmap:
	pool_log(pool, POOL_LOG_ERROR, "cannot map handles %u to %u of pool '%s': %s", first, end - 1,
		pool->header->name, gpu_error_text());
	if (at > va)
		unmap_run(pool, first, first + (uint32_t)((at - va) / window->handle_bytes));
	return error;
}

/*
 * Make read-only handles in [first, end), which are mapped, writable, because pages of them are leased to this session
 * again. One call is used for each run of such handles.
 */
static int restore(struct gpool *pool, uint32_t first, uint32_t end)
{
	struct window *window = pool->window;
	int error = 0;

	for (uint32_t handle = first, start; handle < end && !error; handle++) {
		if (!bit_of(window->readonly, handle))
			continue;
		for (start = handle; handle + 1 < end && bit_of(window->readonly, handle + 1);)
			handle++;
		error = gpu_access(pool->gpu, pool->window_base + start * window->handle_bytes,
			(handle + 1 - start) * window->handle_bytes, GPU_ACCESS_READ_WRITE);
		for (uint32_t at = start; !error && at <= handle; at++)
			window->readonly[at / 64] &= ~(UINT64_C(1) << (at % 64));
	}
	for (uint32_t handle = first; handle < end; handle++) {
		if (!bit_of(window->readonly, handle))
			atomic_fetch_or_explicit(
				&window->mapped[handle / 64], UINT64_C(1) << (handle % 64), memory_order_release);
		handle_check(window, handle);
	}
	return error;
}

static COLD int map_missing(struct gpool *pool, uint32_t page, uint32_t page_count)
{
	struct window *window = pool->window;
	uint32_t first = handle_of(window, page), end = handle_of(window, page + page_count - 1) + 1;
	int error = 0;

	pthread_mutex_lock(&window->lock);
	for (uint32_t handle = first; handle < end && !error;) {
		uint32_t start = handle;

		while (handle < end && !bit_of(window->there, handle))
			handle++;
		if (handle > start) {
			error = map_run(pool, start, handle);
			continue;
		}
		while (handle < end && bit_of(window->there, handle))
			handle++;
		error = restore(pool, start, handle);
	}
	pthread_mutex_unlock(&window->lock);
	/*
	 * If the mapping of a run failed, earlier runs stay mapped: they are leased to this session and will be used.
	 */
	return error_of(pool, error);
}

int window_map(struct gpool *pool, uint32_t page, uint32_t page_count)
{
	const struct window *window = pool->window;
	uint32_t first = handle_of(window, page), end = handle_of(window, page + page_count - 1) + 1;

	for (uint32_t handle = first; handle < end; handle++)
		if (unlikely(!is_mapped(window, handle)))
			return map_missing(pool, page, page_count);
	return 0;
}

int window_map_at(struct gpool *pool, uint32_t page, uint32_t page_count, uint64_t *at)
{
	const struct window *window = pool->window;

	return handles_map(pool, handle_of(window, page), handle_of(window, page + page_count - 1) + 1, at);
}

bool window_has(const struct gpool *pool, uint32_t page)
{
	return handle_at(pool->window, handle_of(pool->window, page)) != 0;
}

int window_import(struct gpool *pool, uint32_t first, uint32_t count)
{
	struct window *window = pool->window;
	uint32_t handle = handle_of(window, first), end = handle_of(window, first + count - 1) + 1;
	int error = 0;

	pthread_mutex_lock(&window->lock);
	while (handle < end && handle_at(window, handle))
		handle++;
	/* If one descriptor carries all handles, fetching several at once saves nothing. */
	if (handle < end && !window->sources)
		error = handles_fetch(pool, handle, end);
	pthread_mutex_unlock(&window->lock);
	return error_of(pool, error);
}

int window_protect(struct gpool *pool, uint32_t first, uint32_t count, bool readonly)
{
	struct window *window = pool->window;
	uint32_t handle = (first + window->pages_per_handle - 1) / window->pages_per_handle, start;
	uint32_t end = (first + count) / window->pages_per_handle;
	int error = 0;

	if (!readonly)
		return window_map(pool, first, count);
	pthread_mutex_lock(&window->lock);
	while (handle < end && !error) {
		start = handle;
		while (handle < end && bit_of(window->there, handle))
			handle++;
		/* A page that was mapped only in a scattered block is not mapped in the window. */
		if (handle == start) {
			handle++;
			continue;
		}
		error = gpu_access(pool->gpu, pool->window_base + start * window->handle_bytes,
			(handle - start) * window->handle_bytes, GPU_ACCESS_READ);
		for (uint32_t at = start; !error && at < handle; at++) {
			atomic_fetch_and_explicit(
				&window->mapped[at / 64], ~(UINT64_C(1) << (at % 64)), memory_order_relaxed);
			window->readonly[at / 64] |= UINT64_C(1) << (at % 64);
			handle_check(window, at);
		}
	}
	pthread_mutex_unlock(&window->lock);
	return error;
}

/* ---- release handles ---- */

/* The handles to unmap: those that another trust domain needs, or all unused ones. */
struct leaving {
	bool all;
	/* `all` only: the set of open objects is changing, so all of their pages count as used */
	bool objects_unsettled;
	uint64_t *objects; /* `all` only: a bit for each object that this process has open */
	/*
	 * a bit for each handle that may be unmapped; later, for each that was unmapped and must be reported to the
	 * agent
	 */
	uint64_t *gone;
	uint64_t *imported; /* [handle_count] handles that are being unmapped, to restore them if that fails */
	struct msg_handles_released message;
};

/* Return true if the pages of a handle are needed for another trust domain: they have no owner and are not in use. */
static bool is_wanted(const struct gpool *pool, uint32_t handle)
{
	const struct window *window = pool->window;

	for (uint32_t page = handle * window->pages_per_handle; page < (handle + 1) * window->pages_per_handle;
		page++) {
		uint64_t word = atomic_load_explicit(&pool->pages[page], memory_order_seq_cst);

		if (page_word_owner(word) ||
			(page_word_state(word) != PAGE_QUARANTINED && page_word_state(word) != PAGE_RETIRED))
			return false;
	}
	return true;
}

bool window_wanted(const struct gpool *pool, uint32_t page)
{
	return is_wanted(pool, handle_of(pool->window, page));
}

/*
 * Return true if no page of a handle is in a block or a cache, held by a thread of this process, or part of an open
 * object.
 */
static bool is_unused(const struct gpool *pool, const struct leaving *leaving, uint32_t handle)
{
	const struct window *window = pool->window;

	for (uint32_t page = handle * window->pages_per_handle; page < (handle + 1) * window->pages_per_handle;
		page++) {
		uint64_t word = atomic_load_explicit(&pool->pages[page], memory_order_seq_cst);
		uint32_t owner = page_word_owner(word);

		if (page_word_state(word) == PAGE_SHARED) {
			if (leaving->objects_unsettled || owner >= pool->header->object_count ||
				bit_of(leaving->objects, owner))
				return false;
		} else if (owner == pool->id &&
			!(atomic_load_explicit(&pool->session.free_bits[page / 64], memory_order_seq_cst) >>
					(page % 64) &
				1)) {
			return false;
		}
	}
	return true;
}

static bool may_leave(const struct gpool *pool, const struct leaving *leaving, uint32_t handle)
{
	return leaving->all ? is_unused(pool, leaving, handle) : is_wanted(pool, handle);
}

/* ---- window users ---- */

void window_register(struct gpool *pool, const struct window_user *user)
{
	assert(pool->window_user_count < WINDOW_USERS_MAX);
	pool->window_users[pool->window_user_count++] = user;
}

/*
 * Call the sweep() functions of the users. locked: window->lock is held, so call only those that acquire no lock above
 * it.
 */
static bool users_sweep(struct gpool *pool, bool locked)
{
	for (uint32_t i = 0; i < pool->window_user_count; i++) {
		const struct window_user *user = pool->window_users[i];

		if ((user->sweeps_locked || !locked) && !user->sweep(pool))
			return false;
	}
	return true;
}

static bool users_map(const struct gpool *pool, uint32_t handle)
{
	for (uint32_t i = 0; i < pool->window_user_count; i++)
		if (pool->window_users[i]->maps && pool->window_users[i]->maps(pool, handle))
			return true;
	return false;
}

static void users_note_objects(struct gpool *pool, struct leaving *leaving)
{
	for (uint32_t i = 0; i < pool->window_user_count; i++)
		if (pool->window_users[i]->note_objects)
			pool->window_users[i]->note_objects(pool, leaving->objects, &leaving->objects_unsettled);
}

/* ---- unmap and report ---- */

/* Unmap a handle. Return false if it stays mapped; the next use of the handle sets its bit in `mapped` again. */
static bool handle_let_go(struct gpool *pool, const struct leaving *leaving, uint32_t handle)
{
	struct window *window = pool->window;
	bool there = bit_of(window->there, handle);

	if (!may_leave(pool, leaving, handle) || users_map(pool, handle) ||
		(there &&
			gpu_unmap(
				pool->gpu, pool->window_base + handle * window->handle_bytes, window->handle_bytes))) {
		atomic_store_explicit(&window->handles[handle], leaving->imported[handle], memory_order_release);
		handle_check(window, handle);
		return false;
	}
	window->there[handle / 64] &= ~(UINT64_C(1) << (handle % 64));
	window->readonly[handle / 64] &= ~(UINT64_C(1) << (handle % 64));
	gpu_release(pool->gpu, leaving->imported[handle]);
	handle_check(window, handle);
	return true;
}

static int released_send(struct gpool *pool, struct msg_handles_released *message)
{
	uint8_t bytes[MSG_LARGEST_handles_released];
	int length = msg_encode_handles_released(message, 0, pool->token, bytes, sizeof(bytes));

	message->runs_count = 0;
	return length < 0 ? length : attach_send(pool->socket, bytes, (size_t)length, NULL, 0);
}

static void run_note(struct msg_handles_released *message, uint32_t handle)
{
	struct msg_handle_run *last = message->runs_count ? &message->runs[message->runs_count - 1] : NULL;

	if (last && last->first + last->count == handle)
		last->count++;
	else
		message->runs[message->runs_count++] = (struct msg_handle_run){handle, 1};
}

/*
 * Mark the handles that may be unmapped. Needed handles that were never mapped, or were unmapped before, are reported
 * too, because an agent may have died while it handled an earlier report of them.
 */
static void candidates_mark(struct gpool *pool, struct leaving *leaving)
{
	struct window *window = pool->window;

	for (uint32_t handle = 0; handle < window->handle_count; handle++) {
		uint64_t bit = UINT64_C(1) << (handle % 64), imported = handle_at(window, handle);

		if (!may_leave(pool, leaving, handle) || (!imported && !is_wanted(pool, handle)))
			continue;
		leaving->gone[handle / 64] |= bit;
		leaving->imported[handle] = imported;
		atomic_fetch_and_explicit(&window->mapped[handle / 64], ~bit, memory_order_seq_cst);
		if (imported)
			atomic_store_explicit(&window->handles[handle], 0, memory_order_seq_cst);
	}
}

/*
 * Unmap the candidates. The order: first clear the handles and their bits in `mapped`, then read page words, free bits
 * and objects again.
 *
 * Meanwhile the agent may lend a page of a handle to this process, and a thread of this process may take an idle page
 * or open an object. That thread has been granted the page (refill.c has the fence), taken it (an atomic instruction)
 * or added the object to the list (a lock). Either that thread then finds the handle cleared, and waits for the lock
 * that this function holds, or this function sees its page or object.
 *
 * Return false if a needed handle stays mapped for now.
 */
static bool handles_let_go(struct gpool *pool, struct leaving *leaving)
{
	bool all = true;

	candidates_mark(pool, leaving);
	atomic_thread_fence(memory_order_seq_cst);
	if (leaving->all)
		users_note_objects(pool, leaving);
	for (uint32_t handle = 0; handle < pool->window->handle_count; handle++) {
		if (!leaving->imported[handle] || handle_let_go(pool, leaving, handle))
			continue;
		leaving->gone[handle / 64] &= ~(UINT64_C(1) << (handle % 64));
		all &= !is_wanted(pool, handle);
	}
	return all;
}

/* Report the unmapped handles. Return their number, or a negative error if the agent cannot accept a message now. */
static int gone_tell(struct gpool *pool, struct leaving *leaving)
{
	int count = 0, error = 0;

	for (uint32_t handle = 0; handle < pool->window->handle_count && !error; handle++) {
		if (!bit_of(leaving->gone, handle))
			continue;
		count++;
		run_note(&leaving->message, handle);
		if (leaving->message.runs_count == sizeof(leaving->message.runs) / sizeof(*leaving->message.runs))
			error = released_send(pool, &leaving->message);
	}
	if (!error && leaving->message.runs_count)
		error = released_send(pool, &leaving->message);
	return error ? error : count;
}

/*
 * Unmap handles and report them. Two sweeps are needed: the first unmaps the ranges of earlier scattered blocks and
 * pinnable objects; the second, after the words were read, unmaps the ranges of those that were evicted in between.
 * Otherwise this process could report a handle as unmapped while such a range still maps it.
 */
static int window_leave(struct gpool *pool, bool all)
{
	uint32_t serial = atomic_load_explicit(&pool->header->release_serial, memory_order_acquire);
	struct window *window = pool->window;
	struct leaving *leaving;
	int count = 0;
	bool whole;

	if (!window || window->sources) /* one descriptor carries all handles, so the pool has only one trust domain */
		return 0;
	if (!users_sweep(pool, false))
		return 0;
	leaving = calloc(1, sizeof(*leaving));
	if (!leaving)
		return 0;
	leaving->all = all;
	leaving->gone = calloc((window->handle_count + 63) / 64, sizeof(*leaving->gone));
	leaving->imported = calloc(window->handle_count, sizeof(*leaving->imported));
	leaving->objects = calloc((pool->header->object_count + 63) / 64, sizeof(*leaving->objects));
	pthread_mutex_lock(&window->lock);
	if (leaving->gone && leaving->imported && leaving->objects) {
		whole = handles_let_go(pool, leaving);
		if (users_sweep(pool, true))
			count = gone_tell(pool, leaving);
		else
			whole = false;
		if (count >= 0 && whole)
			atomic_store_explicit(&pool->release_seen, serial, memory_order_relaxed);
	}
	pthread_mutex_unlock(&window->lock);
	free(leaving->gone);
	free(leaving->imported);
	free(leaving->objects);
	free(leaving);
	return count < 0 ? 0 : count;
}

int window_let_go(struct gpool *pool)
{
	return window_leave(pool, false);
}

void window_let_go_unused(struct gpool *pool)
{
	/* A pool with one trust domain never needs this, and importing handles again would cost time. */
	if (atomic_load_explicit(&pool->header->release_serial, memory_order_relaxed))
		window_leave(pool, true);
}

int gpool_release_unused(struct gpool *pool)
{
	if (!pool->alive)
		return -ECHILD;
	return pool_release_due(pool) ? window_let_go(pool) : 0;
}
