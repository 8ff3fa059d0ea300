/*
 * torture_worker.h - the workers of torture.c, and the memory that they share with the test.
 *
 * A worker is this program, executed again, with two threads. Each thread executes random steps: allocate, verify under
 * a pin, free in every possible way, pass a handle to the other thread, defer operations until a fence is signaled. It
 * derives the content of a block from the block's tag, and knows the results that the documentation permits.
 */
#ifndef GPOOL_TESTS_STRESS_TORTURE_WORKER_H
#define GPOOL_TESTS_STRESS_TORTURE_WORKER_H

#include "client/gpool.h"
#include "client/core/pool.h"
#include "client/core/request.h"
#include "shm/session_segment.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <sched.h>

struct counters {
	_Atomic uint64_t allocations, pages, refusals, verified, verified_bytes, stale, late, frees, lost_frees, fences,
		prepared, spans, scopes, copies, offers, offers_lost, reclaimed, mallocs, published, mapped,
		unmapped_lost;
};

#include "tests/stress/tormentor.h"

enum {
	HANDLES = 48,
	BUDGET = 96,  /* pages that a thread wants; eight workers want three times the pool */
	PENDING = 6,  /* unsignaled fences of a thread */
	EXCHANGE = 8, /* handles that the threads of a worker exchange */
	PEEKS = 128,  /* contents that a thread with the planted bug relies on */
};

#define NOT_PINNED "not pinned" /* in violations that only the planted bug causes */

/* ---- a worker ---- */

struct pending {
	struct gpool_block block;
	struct gpool_fence fence;
	uint64_t address;
};

struct peek {
	struct gpool_block block;
	uint64_t address; /* 0: none */
};

struct thread {
	struct worker *worker;
	uint64_t random;
	struct gpool_block handles[HANDLES];
	uint32_t handle_count, pages; /* estimate of the thread's pages */
	struct pending pending[PENDING];
	uint32_t pending_count;
	uint32_t stream, copies;     /* a host-signaled timeline, and a stream of the GPU */
	struct ranges_state *ranges; /* torture_ranges.h */
	struct peek peeks[PEEKS];    /* a ring buffer */
	uint32_t peek_next;
};

struct worker {
	struct gpool *pool;
	uint32_t slot;
	uint64_t page_bytes;
	uint64_t key; /* of this process: tags are unique within it */
	pthread_mutex_t lock;
	struct gpool_block exchange[EXCHANGE];
	struct thread threads[THREADS];
};

static uint64_t content_key(const struct worker *worker, const struct gpool_block *block)
{
	return worker->key ^ block->tag * UINT64_C(0x9e3779b97f4a7c15);
}

/* Return true if the driver's double makes devices fail at random. */
static bool devices_fail(void)
{
	const char *settings = getenv("GPU_DOUBLE");

	return settings && strstr(settings, "faults=");
}

/* Return true if the double of the driver has made the device of this process fail. */
static bool device_failed(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	int (*failed)(void) = NULL;

	if (library)
		*(void **)&failed = dlsym(library, "gpuDoubleFailed");
	return failed && failed();
}

/*
 * Return true if `error` is the result of a device failure, or if the worker's device has failed before. Its threads
 * then end, and so does the worker, with LOST_STATUS.
 */
static bool device_lost(uint32_t slot, int error)
{
	/* -ENOMEM: pages could not be mapped */
	if ((error == -EIO || error == -ENODEV || error == -ENOMEM) && device_failed())
		atomic_store(&stage->lost[slot], 1);
	return atomic_load(&stage->lost[slot]);
}

/* Count all threads of a worker whose device has failed as paused, and end it. */
static void __attribute__((noreturn)) lost_exit(uint32_t slot)
{
	atomic_fetch_add(&stage->standing[slot], THREADS);
	futex_wake(&stage->standing[slot], 1);
	_exit(LOST_STATUS);
}

/*
 * Report a result that the documentation does not permit, which is a violation unless the device has failed.
 * call_refuse() - the same, of a call without a block.
 */
static void refuse(const struct thread *thread, const char *call, int error, const struct gpool_block *block)
{
	if (device_lost(thread->worker->slot, error))
		return;
	violation("worker %u: %s of block %" PRIx64 " at page %u answers %d: %s", thread->worker->slot, call,
		block->tag, block->page, error, gpool_strerror(error));
}

static void call_refuse(const struct worker *worker, const char *call, int error)
{
	if (!device_lost(worker->slot, error))
		violation("worker %u: %s answers %d: %s", worker->slot, call, error, gpool_last_error(error));
}

/* The object that the calling thread is checking, for fault(). */
static _Thread_local struct {
	const struct gpool_block *block;
	const struct worker *worker;
	uint64_t address;
	const char *when;
} looked_at;

static void contents_verify(
	const struct thread *thread, const struct gpool_block *block, uint64_t address, const char *when)
{
	const struct worker *worker = thread->worker;
	int64_t wrong;

	looked_at.block = block;
	looked_at.worker = worker;
	looked_at.address = address;
	looked_at.when = when;
	wrong = content_check(address, worker->page_bytes, block->page_count, content_key(worker, block));

	if (wrong >= 0) {
		uint32_t page = block->page_count == 1 ? block->page : 0;

		violation("worker %u (session %u): wrong content in page %" PRId64 " of %u of block %" PRIx64
			  " at page %u (word then %" PRIx64 ", now %" PRIx64 "), %s, after %" PRIu64 " agents",
			worker->slot, gpool_session(worker->pool), wrong, block->page_count, block->tag, block->page,
			block->generation, atomic_load(&pool_view(worker->pool)->pages[page]), when,
			atomic_load(&pool_view(worker->pool)->header->counters[POOL_COUNT_AGENT_STARTS]));
	}
	COUNT(verified, 1);
	COUNT(verified_bytes, (uint64_t)block->page_count * CONTENT_WORDS * 8);
}

/* Return false also if the other thread has freed the pinned block: its content is kept, but the handle is stale. */
static bool address_of(const struct thread *thread, const struct gpool_block *block, uint64_t *address)
{
	int error = gpool_address(thread->worker->pool, block, address);

	if (error && error != -ESTALE)
		refuse(thread, "gpool_address()", error, block);
	return !error;
}

static void unpin(const struct thread *thread, const struct gpool_block *block)
{
	int error = gpool_unpin(thread->worker->pool, block);

	if (error)
		refuse(thread, "gpool_unpin()", error, block);
}

static void handle_forget(struct thread *thread, uint32_t at)
{
	uint32_t pages = thread->handles[at].page_count;

	/* An estimate, since threads exchange handles; it must not wrap. */
	thread->pages -= pages < thread->pages ? pages : thread->pages;
	thread->handles[at] = thread->handles[--thread->handle_count];
}

static void handle_add(struct thread *thread, const struct gpool_block *block)
{
	thread->handles[thread->handle_count++] = *block;
	thread->pages += block->page_count;
}

/* Pin a block. Return: 0, -ESTALE (it can be forgotten), or another error, such as that of a block that is busy. */
static int pin(const struct thread *thread, const struct gpool_block *block)
{
	int error = gpool_pin(thread->worker->pool, block);

	if (error == -ESTALE)
		COUNT(stale, 1);
	else if (error == -ETIMEDOUT)
		COUNT(late, 1);
	else if (error == -EIO && block->tag & BLOCK_SPILL && devices_fail() && !device_failed())
		COUNT(late, 1); /* the mover's device has failed; the content is kept */
	else if (error == -ENOSPC && block->tag & BLOCK_SPILL)
		COUNT(refusals, 1); /* its content is kept, but no pages are available for it now */
	else if (error)
		refuse(thread, "gpool_pin()", error, block);
	return error;
}

/* Pin the block of a handle, and forget a stale handle. Return false if the block is not pinned. */
static bool handle_pin(struct thread *thread, uint32_t at)
{
	int error = pin(thread, &thread->handles[at]);

	if (error == -ESTALE)
		handle_forget(thread, at);
	return !error;
}

static uint32_t any_size(struct thread *thread)
{
	switch (chance_below(&thread->random, 16)) {
	case 0: return 1 + chance_below(&thread->random, 64); /* more than a word of the bitmap; often scattered */
	case 1:
	case 2:
	case 3: return 1 + chance_below(&thread->random, 12);
	default: return 1 + chance_below(&thread->random, 3);
	}
}

static struct gpool_alloc_options any_options(struct thread *thread)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	options.usage = chance_below(&thread->random, GPOOL_USAGE_COUNT);
	options.priority = chance_below(&thread->random, 4);
	options.owner_id = chance(&thread->random);
	if (chance_below(&thread->random, 4) == 0)
		options.flags |= GPOOL_ALLOC_FIRST_FIT;
	if (chance_below(&thread->random, 8) == 0)
		options.flags |= GPOOL_ALLOC_NO_EVICT;
	if (chance_below(&thread->random, 8) == 0)
		options.flags |= GPOOL_ALLOC_CONTIGUOUS;
	if (chance_below(&thread->random, 4) == 0)
		options.timeout_ms = (int32_t)chance_below(&thread->random, 20);
	if (chance_below(&thread->random, 3) == 0 && !stage->broken)
		options.flags |= GPOOL_ALLOC_SPILL;
	return options;
}

/* Allocate and fill a block, which stays pinned. Return false if no memory is available. */
static bool allocate(struct thread *thread, struct gpool_block *block)
{
	struct gpool_alloc_options options = any_options(thread);
	uint32_t pages = any_size(thread);
	uint64_t address;
	int error;

	error = gpool_alloc(thread->worker->pool, pages, &options, block);
	if (error == -ENOSPC)
		COUNT(refusals, 1);
	else if (error)
		call_refuse(thread->worker, "gpool_alloc()", error);
	if (error || !address_of(thread, block, &address))
		return false;
	content_write(address, thread->worker->page_bytes, pages, content_key(thread->worker, block));
	COUNT(allocations, 1);
	COUNT(pages, pages);
	return true;
}

static void do_allocate(struct thread *thread)
{
	struct gpool_block block;

	if (thread->handle_count == HANDLES || thread->pages >= BUDGET || !allocate(thread, &block))
		return;
	unpin(thread, &block);
	handle_add(thread, &block);
}

/* With --broken: read the content of a block long after its unpin. */
static void do_peek(struct thread *thread, uint32_t at)
{
	struct gpool_block block = thread->handles[at];
	uint64_t address;

	/* Forget the block, so that the thread allocates more, which evicts it. */
	handle_forget(thread, at);
	/*
	 * The address of a scattered block is valid only as long as the block; pages of the window can always be read.
	 */
	if (block.page_count > 1 || pin(thread, &block))
		return;
	if (!address_of(thread, &block, &address))
		return;
	unpin(thread, &block);
	thread->peeks[thread->peek_next++ % PEEKS] = (struct peek){block, address};
	for (const struct peek *peek = thread->peeks; peek < thread->peeks + PEEKS && peek->address; peek++)
		contents_verify(thread, &peek->block, peek->address, NOT_PINNED);
}

static void do_verify(struct thread *thread, uint32_t at)
{
	struct gpool_block block = thread->handles[at];
	uint64_t address;

	if (!handle_pin(thread, at))
		return;
	if (address_of(thread, &block, &address)) {
		contents_verify(thread, &block, address, "pinned");
		if (chance_below(&thread->random, 4) == 0) {
			int error = gpool_touch(thread->worker->pool, &block);

			/*
			 * The other thread may have freed the block: the pin preserves its content, but not the block.
			 */
			if (error && error != -ESTALE)
				refuse(thread, "gpool_touch()", error, &block);
		}
		if (chance_below(&thread->random, 8) == 0)
			sched_yield();
		contents_verify(thread, &block, address, "still pinned");
	}
	unpin(thread, &block);
}

/* Copy a pinned block to another one on the GPU, wait, and verify the copy. */
static void do_copy(struct thread *thread, uint32_t at)
{
	struct gpool *pool = thread->worker->pool;
	struct gpool_block block = thread->handles[at], copy;
	struct gpool_fence fence;
	uint64_t from, to;
	int error;

	if (!handle_pin(thread, at))
		return;
	if (address_of(thread, &block, &from) && allocate(thread, &copy)) {
		struct gpool_block part = block;

		part.page_count = block.page_count < copy.page_count ? block.page_count : copy.page_count;
		error = gpool_address(pool, &copy, &to);
		if (!error)
			error = gpool_copy(
				pool, thread->copies, to, from, part.page_count * thread->worker->page_bytes);
		if (!error)
			error = gpool_fence_record(pool, thread->copies, &fence);
		if (!error)
			error = gpool_fence_wait(pool, fence, -1);
		if (!error) {
			contents_verify(thread, &part, to, "copied");
			COUNT(copies, 1);
			error = gpool_free(pool, &copy);
		}
		if (error)
			refuse(thread, "gpool_copy() or a call for its fence", error, &block);
	}
	unpin(thread, &block);
}

static void do_free(struct thread *thread, uint32_t at)
{
	struct gpool_block block = thread->handles[at];
	int error;

	if (!handle_pin(thread, at))
		return;
	handle_forget(thread, at);
	if (chance_below(&thread->random, 4) == 0)
		sched_yield();
	error = gpool_free(thread->worker->pool, &block);
	if (!error) {
		COUNT(frees, 1);
		return;
	}
	if (error != -ESTALE)
		refuse(thread, "gpool_free()", error, &block);
	/* The other thread freed it first; this thread still has its pin. */
	COUNT(lost_frees, 1);
	unpin(thread, &block);
}

static void do_drop(struct thread *thread, uint32_t at)
{
	struct gpool_block block = thread->handles[at];
	int error = gpool_discard(thread->worker->pool, &block);

	if (error == -ETIMEDOUT || (error == -ENOSPC && block.tag & BLOCK_SPILL))
		return;
	handle_forget(thread, at);
	if (!error)
		COUNT(frees, 1);
	else if (error == -ESTALE)
		COUNT(lost_frees, 1);
	else
		refuse(thread, "gpool_discard()", error, &block);
}

/* Leave a handle for the other thread, and keep it or not; take the other thread's handle. */
static void do_exchange(struct thread *thread, uint32_t at)
{
	struct worker *worker = thread->worker;
	struct gpool_block ours = thread->handles[at], theirs;
	uint32_t place = chance_below(&thread->random, EXCHANGE);

	pthread_mutex_lock(&worker->lock);
	theirs = worker->exchange[place];
	worker->exchange[place] = ours;
	pthread_mutex_unlock(&worker->lock);
	if (chance_below(&thread->random, 2))
		handle_forget(thread, at);
	if (theirs.tag && thread->handle_count < HANDLES)
		handle_add(thread, &theirs);
}

/* Signal the oldest fence. Until now the content had to be kept, although the block was freed or unpinned with it. */
static void reach_fence(struct thread *thread)
{
	struct pending pending = thread->pending[0];
	int error;

	thread->pending_count--;
	memmove(thread->pending, thread->pending + 1, thread->pending_count * sizeof(pending));
	contents_verify(thread, &pending.block, pending.address, "before its fence");
	error = gpool_fence_signal(thread->worker->pool, pending.fence);
	if (error)
		refuse(thread, "gpool_fence_signal()", error, &pending.block);
	COUNT(fences, 1);
}

static void do_fence(struct thread *thread, uint32_t at)
{
	struct gpool *pool = thread->worker->pool;
	struct gpool_fence unneeded;
	struct pending *pending;
	struct gpool_block block = thread->handles[at];
	bool ends = chance_below(&thread->random, 2);
	int error;

	if (thread->pending_count == PENDING)
		reach_fence(thread);
	if (!handle_pin(thread, at))
		return;
	pending = &thread->pending[thread->pending_count];
	pending->block = block;
	if (!address_of(thread, &block, &pending->address))
		return;
	error = gpool_fence_record(pool, thread->stream, &pending->fence);
	if (error) {
		refuse(thread, "gpool_fence_record()", error, &block);
		return;
	}
	error = ends ? gpool_free_after(pool, &block, pending->fence) : gpool_unpin_after(pool, &block, pending->fence);
	if (ends)
		handle_forget(thread, at);
	if (!error) {
		thread->pending_count++;
		return;
	}
	if (error != -ESTALE || !ends)
		refuse(thread, ends ? "gpool_free_after()" : "gpool_unpin_after()", error, &block);
	COUNT(lost_frees, 1);
	/* This fence is not needed. When it is signaled, all earlier ones count as signaled, so signal those first. */
	unneeded = pending->fence;
	while (thread->pending_count)
		reach_fence(thread);
	gpool_fence_signal(pool, unneeded);
	unpin(thread, &block);
}

static void do_prepare(struct thread *thread)
{
	struct gpool *pool = thread->worker->pool;
	struct gpool_alloc_options options = any_options(thread);
	uint32_t pages = any_size(thread);
	struct gpool_block block;
	uint64_t entry = 0, address;
	int error;

	if (thread->handle_count == HANDLES || thread->pages >= BUDGET)
		return;
	error = gpool_prepare(pool, pages, &options, &block);
	if (error == -ENOSPC)
		COUNT(refusals, 1);
	else if (error)
		call_refuse(thread->worker, "gpool_prepare()", error);
	if (error)
		return;
	COUNT(prepared, 1);
	if (chance_below(&thread->random, 2)) {
		error = gpool_rollback(pool, &block);
		if (error)
			refuse(thread, "gpool_rollback()", error, &block);
		return;
	}
	error = gpool_commit(pool, &block, &entry);
	if (error) {
		refuse(thread, "gpool_commit()", error, &block);
		return;
	}
	if (!address_of(thread, &block, &address))
		return;
	if (entry != address)
		violation("worker %u: gpool_commit() stores %" PRIx64 ", gpool_address() says %" PRIx64,
			thread->worker->slot, entry, address);
	content_write(address, thread->worker->page_bytes, pages, content_key(thread->worker, &block));
	unpin(thread, &block);
	handle_add(thread, &block);
}

static void do_scope(struct thread *thread)
{
	struct worker *worker = thread->worker;
	struct gpool_block blocks[3];
	uint32_t count = 0;
	uint64_t address;
	GPOOL_SCOPE(scope);
	int error;

	error = gpool_scope_begin(worker->pool, GPOOL_USAGE_TEMP_BUFFER, GPOOL_SCOPE_FREE, &scope);
	while (!error && count < 3) {
		error = gpool_scope_alloc(&scope, any_size(thread), NULL, &blocks[count]);
		if (!error && address_of(thread, &blocks[count], &address)) {
			content_write(address, worker->page_bytes, blocks[count].page_count,
				content_key(worker, &blocks[count]));
			count++;
		}
	}
	if (error == -ENOSPC)
		COUNT(refusals, 1);
	else if (error)
		call_refuse(worker, "a scope", error);
	for (uint32_t i = 0; i < count; i++)
		if (address_of(thread, &blocks[i], &address))
			contents_verify(thread, &blocks[i], address, "in its scope");
	error = gpool_scope_end(&scope, GPOOL_FENCE_NONE);
	if (error)
		call_refuse(worker, "gpool_scope_end()", error);
	COUNT(scopes, 1);
}

static void do_spans(struct thread *thread)
{
	struct worker *worker = thread->worker;
	struct gpool_span spans[4];
	uint64_t keys[4];
	uint32_t count = 0;
	int error = 0;

	while (count < 4) {
		/* At least as large as the words that content_write() spreads over it. */
		error = gpool_span_alloc(worker->pool, 4096 + chance_below(&thread->random, 60000),
			GPOOL_USAGE_ACTIVATION, &spans[count]);
		if (error)
			break;
		keys[count] = worker->key + chance(&thread->random);
		content_write(spans[count].address, spans[count].bytes / 128 * 128, 1, keys[count]);
		count++;
	}
	if (error == -ENOSPC)
		COUNT(refusals, 1);
	else if (error)
		call_refuse(worker, "gpool_span_alloc()", error);
	for (uint32_t i = 0; i < count; i++) {
		if (content_check(spans[i].address, spans[i].bytes / 128 * 128, 1, keys[i]) >= 0)
			violation("worker %u: wrong content in a span of %u bytes at page %u", worker->slot,
				spans[i].bytes, spans[i].block.page);
		error = gpool_span_free(worker->pool, &spans[i]);
		if (error)
			refuse(thread, "gpool_span_free()", error, &spans[i].block);
		COUNT(spans, 1);
	}
}

/* torture_ranges.h */
static int ranges_begin(struct thread *thread);
static void ranges_end(struct thread *thread);
static void do_range(struct thread *thread);

static void work(struct thread *thread)
{
	uint32_t what = chance_below(&thread->random, 64), at;

	if (what < 12) {
		do_allocate(thread);
		return;
	}
	if (what < 20 && !stage->broken) {
		do_range(thread);
		return;
	}
	if (what == 20) {
		do_scope(thread);
		return;
	}
	if (what == 21) {
		do_spans(thread);
		return;
	}
	if (what < 24) {
		do_prepare(thread);
		return;
	}
	if (what < 27 && thread->pending_count) {
		reach_fence(thread);
		return;
	}
	if (!thread->handle_count)
		return;
	at = chance_below(&thread->random, thread->handle_count);
	if (stage->broken)
		do_peek(thread, at);
	else if (what < 44)
		do_verify(thread, at);
	else if (what < 46)
		do_copy(thread, at);
	else if (what < 50)
		do_exchange(thread, at);
	else if (what < 54)
		do_fence(thread, at);
	else if (what < 59)
		do_free(thread, at);
	else
		do_drop(thread, at);
}

static void *thread_main(void *argument)
{
	struct thread *thread = argument;
	struct worker *worker = thread->worker;
	int error = gpool_stream_open(worker->pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &thread->stream);

	if (error)
		call_refuse(worker, "gpool_stream_open()", error);
	if (!error)
		error = gpool_stream_open(worker->pool, NULL, 0, &thread->copies);
	if (!error)
		error = ranges_begin(thread);
	if (error)
		call_refuse(worker, "gpool_range_reserve()", error);
	while (!error && told_to_run() && !atomic_load(&stage->lost[worker->slot]))
		work(thread);
	/* Its work in progress is undefined. */
	if (atomic_load(&stage->lost[worker->slot]))
		return NULL;
	while (thread->pending_count)
		reach_fence(thread);
	ranges_end(thread);
	if (!atomic_load(&stage->lost[worker->slot]))
		stand(worker->slot, 1);
	gpool_stream_close(worker->pool, thread->copies);
	gpool_stream_close(worker->pool, thread->stream);
	return NULL;
}

/* Print the location of the fault, which the message needs. */
static void fault(int number, siginfo_t *info, void *context)
{
	void *frames[48];
	char text[512];
	int length = snprintf(text, sizeof(text), "worker %d: signal %d (code %d) at %p\n", (int)getpid(), number,
		info->si_code, info->si_addr);

	(void)context;
	if (write(STDERR_FILENO, text, (size_t)length) == length)
		backtrace_symbols_fd(frames, backtrace(frames, 48), STDERR_FILENO);
	if (looked_at.block) {
		const struct gpool *pool = looked_at.worker->pool;
		const struct gpool_block *block = looked_at.block;
		const struct block_entry *entry = &pool->session.blocks[block->page];

		length = snprintf(text, sizeof(text),
			"it looked at block %" PRIx64 " of %u pages at page %u (word then %" PRIx64
			"), address %" PRIx64 ", %s; session %u, after %" PRIu64 " agents; now there: word %" PRIx64
			", tag %" PRIx64 ", fence %" PRIx64 ", pins %u\n",
			block->tag, block->page_count, block->page, block->generation, looked_at.address,
			looked_at.when, pool->id, atomic_load(&pool->header->counters[POOL_COUNT_AGENT_STARTS]),
			atomic_load(&pool->pages[block->page]), atomic_load(&entry->tag), atomic_load(&entry->fence),
			atomic_load(&pool->session.pins[block->page]));
		if (write(STDERR_FILENO, text, (size_t)length) != length)
			_exit(1);
	}
	signal(number, SIG_DFL);
	raise(number);
}

/* torture --worker SLOT FD DIRECTORY SEED: run as one of the workers. */
static int worker_main(char **arguments)
{
	const struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
	static struct worker worker;
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	pthread_t other;
	int error;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	if (!stage_map(atoi(arguments[1])))
		return 1;
	worker.slot = (uint32_t)atoi(arguments[0]);
	worker.key = strtoull(arguments[3], NULL, 0);
	options.directory = arguments[2];
	options.timeout_ms = PATIENCE_MS;
	error = gpool_open(&options, &worker.pool);
	if (error) {
		call_refuse(&worker, "gpool_open()", error);
		if (atomic_load(&stage->lost[worker.slot]))
			lost_exit(worker.slot);
		return 1;
	}
	/* On a busy machine, the agent may get no CPU time for longer than 10 s. */
	worker.pool->answer_ms = PATIENCE_MS;
	worker.page_bytes = gpool_page_bytes(worker.pool);
	pthread_mutex_init(&worker.lock, NULL);
	for (uint32_t i = 0; i < THREADS; i++) {
		worker.threads[i].worker = &worker;
		worker.threads[i].random = worker.key + i * UINT64_C(0x5851f42d4c957f2d);
	}
	error = pthread_create(&other, NULL, thread_main, &worker.threads[1]);
	if (error) {
		violation("worker %u: cannot start a thread: %s", worker.slot, strerror(error));
		return 1;
	}
	thread_main(&worker.threads[0]);
	pthread_join(other, NULL); /* no call hangs after a failure */
	/* Pages are free again after the end of the process, however it ends. */
	if (!atomic_load(&stage->lost[worker.slot]) || chance_below(&worker.threads[0].random, 2))
		gpool_close(worker.pool);
	if (atomic_load(&stage->lost[worker.slot]))
		lost_exit(worker.slot);
	return 0;
}

#endif
