#include "tools/replay/player.h"

#include "client/core/request.h"
#include "shm/monotonic.h"
#include "tools/lib/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	WAIT_SPINS = 200,
	PROGRESS_MS = 250,        /* interval of the progress line on a terminal, where it is rewritten */
	PROGRESS_PLAIN_MS = 2000, /* elsewhere, where each is a new line */
};

/* Results of a malloc that are no addresses. */
static const uint64_t address_pending = 0, address_failed = 1;

struct player;

struct play_thread {
	struct player *player;
	pthread_t thread;
	bool started;
	const uint32_t *events; /* [count] indexes, in order */
	uint32_t count;
	_Atomic uint32_t done;
	_Atomic bool waits;  /* the thread waits on `wake` for an event of another thread */
	pthread_cond_t wake; /* under player->lock */
	uint64_t no_space, over_quota, no_memory;
	struct latencies malloc_ns, free_ns;
	char __attribute__((aligned(64))) apart[64]; /* keeps the next element's counters in another cache line */
};

struct player {
	const struct play_plan *plan;
	struct allocator *allocator;
	struct play_result *result;
	uint64_t start_ns;
	_Atomic uint64_t *addresses; /* [trace->count] addresses of mallocs, by event index */
	uint32_t streams[MALLOC_TRACE_STREAMS_MAX + 1];
	uint32_t *order; /* [trace->count] indexes, by thread */
	struct play_thread *threads;
	_Atomic uint32_t turn; /* when playing in order: the next event */
	_Atomic bool stop;
	_Atomic uint64_t live, peak_live, peak_mapped;
	uint64_t calls[GPU_CALL_KINDS], calls_total; /* of the GPU before the replay */
	pthread_mutex_t lock;
	pthread_cond_t ended; /* a thread has ended */
	uint32_t running;     /* under the lock; number of threads */
	int error;            /* under the lock */
};

/* ---- waiting for another thread ---- */

/* Wait until `ready` returns true. The thread that makes it true calls player_wake() afterwards. */
static void player_await(
	struct play_thread *thread, bool (*ready)(const struct player *player, uint32_t event), uint32_t event)
{
	struct player *player = thread->player;

	for (int spins = 0; spins < WAIT_SPINS; spins++) {
		if (ready(player, event) || atomic_load_explicit(&player->stop, memory_order_relaxed))
			return;
		__builtin_ia32_pause();
	}
	pthread_mutex_lock(&player->lock);
	atomic_store(&thread->waits, true); /* set before the second check, so that at least one of the two threads
					     * sees the other's store */
	while (!ready(player, event) && !atomic_load(&player->stop))
		pthread_cond_wait(&thread->wake, &player->lock);
	atomic_store(&thread->waits, false);
	pthread_mutex_unlock(&player->lock);
}

/* Wake `thread`, which then sees earlier stores, even if it was about to sleep. */
static void player_wake(struct player *player, uint32_t thread)
{
	if (!atomic_load(&player->threads[thread].waits))
		return;
	pthread_mutex_lock(&player->lock);
	pthread_cond_signal(&player->threads[thread].wake);
	pthread_mutex_unlock(&player->lock);
}

static bool address_known(const struct player *player, uint32_t event)
{
	return atomic_load(&player->addresses[event]) != address_pending;
}

static bool turn_come(const struct player *player, uint32_t event)
{
	return atomic_load(&player->turn) == event;
}

/* Stop all threads. Only the first error is reported. */
static void __attribute__((format(printf, 3, 4))) player_stop(struct player *player, int error, const char *format, ...)
{
	va_list arguments;

	pthread_mutex_lock(&player->lock);
	if (!player->error) {
		player->error = error;
		va_start(arguments, format);
		vsnprintf(player->result->error, PLAY_ERROR_BYTES, format, arguments);
		va_end(arguments);
	}
	atomic_store(&player->stop, true);
	for (uint32_t i = 0; i < player->plan->trace->threads; i++)
		pthread_cond_signal(&player->threads[i].wake);
	pthread_mutex_unlock(&player->lock);
}

/* ---- events ---- */

static void raise_to(_Atomic uint64_t *peak, uint64_t value)
{
	uint64_t seen = atomic_load_explicit(peak, memory_order_relaxed);

	while (seen < value &&
		!atomic_compare_exchange_weak_explicit(peak, &seen, value, memory_order_relaxed, memory_order_relaxed))
		;
}

/* Record a failed malloc. Running out of memory is a result of the replay; other errors end it. */
static bool malloc_failed(struct play_thread *thread, uint32_t index, int error)
{
	if (error == -ENOSPC)
		thread->no_space++;
	else if (error == -EDQUOT)
		thread->over_quota++;
	else if (error == -ENOMEM)
		thread->no_memory++;
	else
		player_stop(thread->player, error, "event %" PRIu32 ": cannot allocate %" PRIu64 " bytes: %s",
			index + 1, thread->player->plan->trace->events[index].bytes, gpool_strerror(error));
	return error == -ENOSPC || error == -EDQUOT || error == -ENOMEM;
}

static void play_malloc(struct play_thread *thread, uint32_t index)
{
	struct player *player = thread->player;
	const struct play_plan *plan = player->plan;
	const struct malloc_event *event = &plan->trace->events[index];
	struct allocator *allocator = player->allocator;
	uint32_t stream = player->streams[event->stream];
	uint64_t address = address_failed, begin = monotonic_ns(), fill;
	int error = allocator->ops->malloc(allocator, event->bytes, stream, &address);

	if (!error) {
		latencies_add(&thread->malloc_ns, monotonic_ns() - begin);
		raise_to(&player->peak_live, atomic_fetch_add(&player->live, event->bytes) + event->bytes);
		raise_to(&player->peak_mapped, allocator->ops->mapped(allocator));
		fill = (plan->fill_bytes < event->bytes ? plan->fill_bytes : event->bytes) / 4 * 4;
		if (fill && stream)
			error = gpool_fill(plan->pool, stream, address, index, fill);
		if (error)
			player_stop(player, error, "event %" PRIu32 ": cannot fill %" PRIu64 " bytes: %s", index + 1,
				fill, gpool_strerror(error));
	} else if (malloc_failed(thread, index, error)) {
		address = address_failed;
	}
	atomic_store(&player->addresses[index], address);
	if (event->twin != MALLOC_TRACE_NONE)
		player_wake(player, plan->trace->events[event->twin].thread);
}

static void play_free(struct play_thread *thread, uint32_t index)
{
	struct player *player = thread->player;
	const struct malloc_event *event = &player->plan->trace->events[index];
	struct allocator *allocator = player->allocator;
	uint64_t address, begin;
	int error;

	player_await(thread, address_known, event->twin);
	address = atomic_load(&player->addresses[event->twin]);
	if (address == address_pending || address == address_failed)
		return; /* stopped, or the malloc failed */
	atomic_fetch_sub(&player->live, event->bytes);
	begin = monotonic_ns();
	error = allocator->ops->free(allocator, address, player->streams[event->stream]);
	latencies_add(&thread->free_ns, monotonic_ns() - begin);
	atomic_store(&player->addresses[event->twin], address_failed); /* the allocation has been freed */
	if (error)
		player_stop(player, error, "event %" PRIu32 ": cannot free %#" PRIx64 ": %s", index + 1, address,
			gpool_strerror(error));
}

/*
 * Wait for the time of an event. The wait is divided into short waits, because a signal or an error does not interrupt
 * it.
 */
static void play_pace(const struct player *player, uint64_t time_ns)
{
	uint64_t due, now;

	if (player->plan->speed <= 0)
		return;
	due = player->start_ns + (uint64_t)((double)time_ns / player->plan->speed);
	while ((now = monotonic_ns()) < due && !atomic_load_explicit(&player->stop, memory_order_relaxed)) {
		uint64_t left = due - now < 100000000 ? due - now : 100000000;
		struct timespec pause = {.tv_nsec = (long)left};

		nanosleep(&pause, NULL);
	}
}

static void play_event(struct play_thread *thread, uint32_t index)
{
	struct player *player = thread->player;
	const struct malloc_trace *trace = player->plan->trace;
	const struct malloc_event *event = &trace->events[index];

	play_pace(player, event->time_ns);
	if (player->plan->in_order)
		player_await(thread, turn_come, index);
	if (atomic_load_explicit(&player->stop, memory_order_relaxed))
		return;
	if (event->op == MALLOC_OP_MALLOC)
		play_malloc(thread, index);
	else
		play_free(thread, index);
	if (player->plan->samples && samples_due(player->plan->samples, event->time_ns))
		samples_take(player->plan->samples, event->time_ns);
	if (player->plan->in_order) {
		atomic_store(&player->turn, index + 1);
		if (index + 1 < trace->count)
			player_wake(player, trace->events[index + 1].thread);
	}
}

static void *thread_main(void *context)
{
	struct play_thread *thread = context;
	struct player *player = thread->player;

	for (uint32_t i = 0; i < thread->count && !atomic_load_explicit(&player->stop, memory_order_relaxed); i++) {
		play_event(thread, thread->events[i]);
		atomic_store_explicit(&thread->done, i + 1, memory_order_relaxed);
	}
	pthread_mutex_lock(&player->lock);
	player->running--;
	pthread_cond_signal(&player->ended);
	pthread_mutex_unlock(&player->lock);
	return NULL;
}

/* ---- preparation ---- */

static int streams_open(struct player *player)
{
	for (uint32_t i = 1; i <= player->plan->trace->streams; i++) {
		int error = gpool_stream_open(player->plan->pool, NULL, 0, &player->streams[i]);

		if (error) {
			player_stop(player, error, "cannot open stream %" PRIu32 " of %" PRIu32 ": %s", i,
				player->plan->trace->streams, gpool_strerror(error));
			return error;
		}
	}
	return 0;
}

static void streams_close(struct player *player)
{
	for (uint32_t i = 1; i <= player->plan->trace->streams; i++)
		if (player->streams[i])
			gpool_stream_close(player->plan->pool, player->streams[i]);
}

/* Distribute the events to the threads: each gets a contiguous part of `order`. */
static void events_deal(struct player *player)
{
	const struct malloc_trace *trace = player->plan->trace;
	uint32_t begins[MALLOC_TRACE_THREADS_MAX + 1] = {0};

	for (uint32_t i = 0; i < trace->count; i++)
		player->threads[trace->events[i].thread].count++;
	for (uint32_t t = 0; t < trace->threads; t++) {
		player->threads[t].events = player->order + begins[t];
		begins[t + 1] = begins[t] + player->threads[t].count;
	}
	for (uint32_t i = 0; i < trace->count; i++)
		player->order[begins[trace->events[i].thread]++] = i;
}

static int player_init(struct player *player, const struct play_plan *plan, struct play_result *result)
{
	const struct malloc_trace *trace = plan->trace;

	memset(player, 0, sizeof(*player));
	player->plan = plan;
	player->result = result;
	pthread_mutex_init(&player->lock, NULL);
	pthread_cond_init(&player->ended, NULL);
	player->addresses = calloc(trace->count, sizeof(*player->addresses));
	player->order = calloc(trace->count, sizeof(*player->order));
	player->threads = aligned_alloc(64, trace->threads * sizeof(*player->threads));
	if (!player->addresses || !player->order || !player->threads) {
		snprintf(result->error, PLAY_ERROR_BYTES, "out of memory");
		return -ENOMEM;
	}
	memset(player->threads, 0, trace->threads * sizeof(*player->threads));
	for (uint32_t i = 0; i < trace->threads; i++) {
		player->threads[i].player = player;
		pthread_cond_init(&player->threads[i].wake, NULL);
	}
	events_deal(player);
	return 0;
}

static void player_fini(struct player *player)
{
	for (uint32_t i = 0; player->threads && i < player->plan->trace->threads; i++)
		pthread_cond_destroy(&player->threads[i].wake);
	free(player->threads);
	free(player->order);
	free((void *)player->addresses);
	pthread_cond_destroy(&player->ended);
	pthread_mutex_destroy(&player->lock);
}

/* ---- progress ---- */

static void progress_show(const struct player *player, bool terminal)
{
	const struct play_plan *plan = player->plan;
	uint64_t done = 0;
	char now[TEXT_BYTES], all[TEXT_BYTES], bytes[TEXT_BYTES];

	for (uint32_t i = 0; i < plan->trace->threads; i++)
		done += atomic_load_explicit(&player->threads[i].done, memory_order_relaxed);
	fprintf(stderr, "%s%s: %s of %s events, %.0f %%, %s live%s", terminal ? "\r\033[K" : "", plan->allocator->name,
		text_count(now, done), text_count(all, plan->trace->count), 100 * (double)done / plan->trace->count,
		text_bytes(bytes, atomic_load_explicit(&player->live, memory_order_relaxed)), terminal ? "" : "\n");
}

static void player_watch(struct player *player)
{
	bool terminal = isatty(STDERR_FILENO), shown = false;
	uint64_t shown_ns = 0; /* the first line is printed after an interval */
	struct timespec until;

	pthread_mutex_lock(&player->lock);
	while (player->running) {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += PROGRESS_MS * 1000000;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&player->ended, &player->lock, &until);
		pthread_mutex_unlock(&player->lock);
		if (*player->plan->interrupted)
			player_stop(player, -EINTR, "interrupted");
		if (player->plan->progress &&
			monotonic_ns() - shown_ns >= (terminal ? PROGRESS_MS : PROGRESS_PLAIN_MS) * UINT64_C(1000000)) {
			progress_show(player, terminal);
			shown_ns = monotonic_ns();
			shown = true;
		}
		pthread_mutex_lock(&player->lock);
	}
	pthread_mutex_unlock(&player->lock);
	if (shown && terminal)
		fputs("\r\033[K", stderr);
}

/* ---- the replay ---- */

static void threads_start(struct player *player)
{
	int error = 0;

	player->start_ns = monotonic_ns();
	for (uint32_t i = 0; i < player->plan->trace->threads && !error; i++) {
		pthread_mutex_lock(&player->lock);
		error = -pthread_create(&player->threads[i].thread, NULL, thread_main, &player->threads[i]);
		player->threads[i].started = !error;
		player->running += !error;
		pthread_mutex_unlock(&player->lock);
	}
	if (error)
		player_stop(player, error, "cannot start a thread: %s", strerror(-error));
}

static void threads_join(struct player *player)
{
	struct play_result *result = player->result;

	for (uint32_t i = 0; i < player->plan->trace->threads; i++) {
		struct play_thread *thread = &player->threads[i];

		if (thread->started)
			pthread_join(thread->thread, NULL);
		latencies_merge(&result->malloc_ns, &thread->malloc_ns);
		latencies_merge(&result->free_ns, &thread->free_ns);
		result->no_space += thread->no_space;
		result->over_quota += thread->over_quota;
		result->no_memory += thread->no_memory;
	}
	result->duration_ns = monotonic_ns() - player->start_ns;
	result->mallocs = result->malloc_ns.count;
	result->frees = result->free_ns.count;
	result->peak_live = player->peak_live;
	result->peak_mapped = player->peak_mapped;
}

static void calls_note(struct player *player, bool end)
{
	const struct gpu *gpu = pool_gpu(player->plan->pool);
	struct play_result *result = player->result;

	for (int kind = 0; kind < GPU_CALL_KINDS; kind++) {
		uint64_t calls = gpu_calls(gpu, (enum gpu_call)kind);

		if (end)
			result->calls[kind] = calls - player->calls[kind];
		else
			player->calls[kind] = calls;
	}
	if (end)
		result->calls_total = gpu_calls_total(gpu) - player->calls_total;
	else
		player->calls_total = gpu_calls_total(gpu);
}

static void rest_free(struct player *player)
{
	const struct malloc_trace *trace = player->plan->trace;

	for (uint32_t i = 0; i < trace->count; i++) {
		uint64_t address = player->addresses[i];

		if (trace->events[i].op == MALLOC_OP_MALLOC && address != address_pending && address != address_failed)
			player->allocator->ops->free(
				player->allocator, address, player->streams[trace->events[i].stream]);
	}
}

static void player_run(struct player *player)
{
	struct samples *samples = player->plan->samples;

	if (samples)
		samples->allocator = player->allocator;
	calls_note(player, false);
	threads_start(player);
	player_watch(player);
	threads_join(player);
	calls_note(player, true);
	player->allocator->ops->totals(player->allocator, &player->result->end);
	rest_free(player);
}

int play(const struct play_plan *plan, struct play_result *result)
{
	struct player player;
	int error;

	memset(result, 0, sizeof(*result));
	error = player_init(&player, plan, result);
	if (!error)
		error = streams_open(&player);
	if (!error) {
		error = plan->allocator->open(plan->pool, &player.allocator);
		if (error)
			snprintf(result->error, PLAY_ERROR_BYTES, "cannot open the allocator: %s",
				gpool_strerror(error));
	}
	if (!error) {
		player_run(&player);
		error = player.error;
	}
	streams_close(&player);
	if (player.allocator)
		plan->allocator->close(player.allocator);
	player_fini(&player);
	return error;
}
