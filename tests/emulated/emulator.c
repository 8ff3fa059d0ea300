/* emulator.c - run blocks as fibers, with the warp and block operations. */
#undef _FORTIFY_SOURCE /* its longjmp() does not accept the fibers' stacks */
#include "tests/emulated/emulator.h"

#include "cuda/kernels/attention.h"
#include "cuda/kernels/block_copy.h"
#include "cuda/kernels/kernel.h"
#include "cuda/kernels/kv_write.h"
#include "cuda/kernels/lora.h"
#include "cuda/kernels/quantise.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

/*
 * Under ThreadSanitizer, CPU_THREADS run blocks at the same time. Each fiber is a thread for the sanitizer. Switching
 * between fibers orders nothing; order_give() and order_take() establish the order, at barriers, warp operations and
 * fences. This file is compiled without the sanitizer, because its own data needs no order.
 */
#ifdef EMULATOR_CONCURRENT
#include <pthread.h>
#include <sanitizer/tsan_interface.h>
#define PER_THREAD __thread
enum { CPU_THREADS = 3 };
#define order_give(place) __tsan_release(place)
#define order_take(place) __tsan_acquire(place)
#else
#define PER_THREAD
#define order_give(place) (void)(place)
#define order_take(place) (void)(place)
#endif

enum { WARP = 32, STACK_BYTES = 128 << 10, SHARE_BYTES = 48, COPY_BYTES = 16, COPIES_MAX = 64 };

/* Declared for the kernels in cuda.h. */
struct emulated_index {
	uint32_t x, y, z;
};
extern PER_THREAD struct emulated_index threadIdx, blockIdx, blockDim, gridDim;
PER_THREAD struct emulated_index threadIdx, blockIdx, blockDim, gridDim;
extern PER_THREAD unsigned char block_memory[GPU_SHARED_MAX];
_Alignas(16) PER_THREAD unsigned char block_memory[GPU_SHARED_MAX];
void emulated_sync_block(void);
void emulated_fence(void);
const void *emulated_share(const char *which, const void *given, size_t bytes);
void emulated_copy(void *to, const void *from, uint32_t bytes);
void emulated_copies_end(void);
void emulated_copies_wait(uint32_t left);
void emulated_kernel_wait(void);

enum fiber_state { READY, AT_WARP, AT_BLOCK, DONE };

/*
 * A context to switch to. swapcontext() makes a system call, so it is used only if AddressSanitizer must be notified
 * of the switch. Elsewhere, the compiler's own jumps are used, because ThreadSanitizer replaces longjmp() with a
 * function that accepts only the stack of its caller.
 */
struct place {
	ucontext_t context;
	void *jump[5];
	void *tsan;
};

/* A copy that a thread has begun. */
struct copy {
	void *to;
	const void *from;
	uint32_t bytes, group;
};

struct fiber {
	struct place place;
	void *stack;
	bool started;
	uint32_t barriers;
	enum fiber_state state;
	const char *which; /* the warp operation that the thread executes */
	uint32_t turn;     /* number of warp operations so far */
	struct copy copies[COPIES_MAX];
	uint32_t copy_count, group;
	bool waited; /* for the kernel before */
};

static PER_THREAD struct fiber *fibers;
static PER_THREAD struct place scheduler;
static PER_THREAD uint32_t running;
/* the values of an operation are kept until the one after the next */
static PER_THREAD _Alignas(16) unsigned char shares[2][GPU_BLOCK_MAX][SHARE_BYTES];
static uint64_t order_seed;

static void give_up(const char *what)
{
	fprintf(stderr, "emulator: block %u %u %u, thread %u: %s\n", blockIdx.x, blockIdx.y, blockIdx.z, running, what);
	abort();
}

#ifndef __SANITIZE_ADDRESS__
/* place_enter() - continue at `to`. first: `to` has not run yet. */
static __attribute__((noinline, noreturn)) void place_enter(struct place *to, bool first)
{
	if (first)
		setcontext(&to->context);
	__builtin_longjmp(to->jump, 1);
}
#endif

/* place_switch() - continue at `to` until it switches back. first: `to` has not run yet. */
static __attribute__((noinline)) void place_switch(struct place *from, struct place *to, bool first)
{
#ifdef EMULATOR_CONCURRENT
	__tsan_switch_to_fiber(to->tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef __SANITIZE_ADDRESS__
	(void)first;
	swapcontext(&from->context, &to->context);
#else
	if (!__builtin_setjmp(from->jump))
		place_enter(to, first);
#endif
}

/*
 * fibers_continue() - continue at the first ready fiber from `next` on, or at the scheduler if there is none.
 *
 * The fibers switch to each other directly: by way of the scheduler, there would be twice as many switches.
 */
static void fibers_continue(struct place *from, uint32_t next)
{
	struct fiber *fiber;
	bool first;

	while (next < blockDim.x && fibers[next].state != READY)
		next++;
	if (next == blockDim.x) {
		place_switch(from, &scheduler, false);
		return;
	}
	running = next;
	threadIdx = (struct emulated_index){next, 0, 0};
	fiber = &fibers[next];
	first = !fiber->started;
	fiber->started = true;
	place_switch(from, &fiber->place, first);
}

static void wait_as(enum fiber_state state)
{
	fibers[running].state = state;
	fibers_continue(&fibers[running].place, running + 1);
}

void emulated_sync_block(void)
{
	static PER_THREAD char places[2];
	char *place = &places[fibers[running].barriers++ % 2];

	order_give(place);
	wait_as(AT_BLOCK);
	order_take(place);
}

static bool fences_missing;

void emulated_fence(void)
{
	static char place;

	if (fences_missing)
		return;
	order_take(&place);
	order_give(&place);
}

static void *hidden;
static uint64_t hidden_bytes;
static bool wait_missing;

/* access_set() - make the hidden memory inaccessible, or accessible again. */
static void access_set(int protection)
{
#ifndef EMULATOR_CONCURRENT
	if (hidden && mprotect(hidden, hidden_bytes, protection))
		give_up("cannot hide memory");
#else
	(void)protection;
#endif
}

void emulated_kernel_wait(void)
{
	if (wait_missing)
		return;
	fibers[running].waited = true;
	access_set(PROT_READ | PROT_WRITE);
}

const void *emulated_share(const char *which, const void *given, size_t bytes)
{
	struct fiber *fiber = &fibers[running];
	uint32_t turn = fiber->turn++ % 2;

	if (bytes > SHARE_BYTES)
		give_up("shares more than there is place for");
	memcpy(shares[turn][running], given, bytes);
	fiber->which = which;
	order_give(&fibers[running / WARP * WARP + turn]);
	wait_as(AT_WARP);
	order_take(&fibers[running / WARP * WARP + turn]);
	return shares[turn][running / WARP * WARP];
}

void emulated_copy(void *to, const void *from, uint32_t bytes)
{
	struct fiber *fiber = &fibers[running];

	if ((uintptr_t)to % COPY_BYTES || (uintptr_t)from % COPY_BYTES || bytes > COPY_BYTES)
		give_up("copies to or from a place that is not aligned, or too much");
	if (fiber->copy_count == COPIES_MAX)
		give_up("has more copies than the emulator can remember");
	memset(to, 0xff, COPY_BYTES);
	fiber->copies[fiber->copy_count++] = (struct copy){to, from, bytes, fiber->group};
}

void emulated_copies_end(void)
{
	fibers[running].group++;
}

void emulated_copies_wait(uint32_t left)
{
	struct fiber *fiber = &fibers[running];
	uint32_t kept = 0;

	for (uint32_t i = 0; i < fiber->copy_count; i++) {
		struct copy copy = fiber->copies[i];

		if (copy.group + left >= fiber->group) {
			fiber->copies[kept++] = copy;
			continue;
		}
		memset(copy.to, 0, COPY_BYTES);
		memcpy(copy.to, copy.from, copy.bytes);
	}
	fiber->copy_count = kept;
}

/*
 * warp_release() - release the lanes if all lanes that have not ended have reached the same operation. Return false if
 * not.
 */
static bool warp_release(uint32_t first)
{
	for (uint32_t i = first; i < first + WARP; i++) {
		running = i;
		if (fibers[i].state == DONE && fibers[first].state == AT_WARP)
			give_up("has ended where its warp does something together");
		if (fibers[i].state != AT_WARP)
			return false;
		if (fibers[i].which != fibers[first].which || fibers[i].turn != fibers[first].turn)
			give_up("does something else than its warp");
	}
	for (uint32_t i = first; i < first + WARP; i++)
		fibers[i].state = READY;
	return true;
}

static bool block_release(uint32_t threads)
{
	for (uint32_t i = 0; i < threads; i++)
		if (fibers[i].state != AT_BLOCK && fibers[i].state != DONE)
			return false;
	for (uint32_t i = 0; i < threads; i++)
		if (fibers[i].state == AT_BLOCK)
			fibers[i].state = READY;
	return true;
}

/* threads_release() - release the threads that have reached what they wait for. Return false if all have ended. */
static bool threads_release(uint32_t threads)
{
	bool released = false, done = true;

	for (uint32_t i = 0; i < threads; i += WARP)
		released |= warp_release(i);
	if (released)
		return true;
	for (uint32_t i = 0; i < threads; i++)
		done = done && fibers[i].state == DONE;
	if (!done && !block_release(threads))
		give_up("some wait for their warp and some for the block");
	return !done;
}

static PER_THREAD void (*kernel_body)(const void *args);
static PER_THREAD const void *kernel_args;

/* A fiber runs its thread of one block after the other. */
static void fiber_main(void)
{
	for (;;) {
		order_take(&scheduler);
		kernel_body(kernel_args);
		order_give(&scheduler);
		if (fibers[running].copy_count)
			give_up("ends before its copies");
		wait_as(DONE);
	}
}

static void fiber_make(struct fiber *fiber)
{
	ucontext_t *context = &fiber->place.context;
	fiber->stack = malloc(STACK_BYTES);
	if (!fiber->stack || getcontext(context))
		give_up("no memory");
	context->uc_stack.ss_sp = fiber->stack;
	context->uc_stack.ss_size = STACK_BYTES;
	context->uc_link = NULL;
	makecontext(context, fiber_main, 0);
	/* Otherwise, AddressSanitizer would clear its shadow of the stack at each switch. */
	context->uc_stack = (stack_t){0};
#ifdef EMULATOR_CONCURRENT
	fiber->place.tsan = __tsan_create_fiber(0);
#endif
}

/* block_run() - run each thread in turn until its next wait, until all have ended. */
static void block_run(uint32_t threads)
{
	for (uint32_t i = 0; i < threads; i++) {
		/* Not by another fiber: ThreadSanitizer orders a fiber after the one that makes it. */
		if (!fibers[i].stack)
			fiber_make(&fibers[i]);
		fibers[i].state = READY;
		fibers[i].turn = fibers[i].barriers = 0;
		fibers[i].waited = false;
	}
	order_give(&scheduler);
	do
		fibers_continue(&scheduler, 0);
	while (threads_release(threads));
	order_take(&scheduler);
}

/* The kernels on the C++ side, one function per element type. */
#define KERNEL(id, name, file, args) \
	void name(const struct args given); \
	static void run_##name(const void *given) \
	{ \
		name(*(const struct args *)given); \
	}
#include "cuda/kernels/kernels.def"

static void (*const bodies[GPU_KERNEL_KINDS])(const void *) = {
#define KERNEL(id, name, file, args) [GPU_KERNEL_##id] = run_##name,
#include "cuda/kernels/kernels.def"
};

/* shuffled() - permute the numbers below `count`, by multiplication with a factor that is coprime to `count`. */
static uint64_t shuffled(uint64_t i, uint64_t count)
{
	uint64_t step = order_seed % count, a = 0, b = 0, t = 0;

	for (;; step = (step + 1) % count) {
		for (a = step, b = count; b; t = a % b, a = b, b = t)
			;
		if (a == 1)
			return (i * step + order_seed) % count;
	}
}

/* A launch, and the next block to run. */
struct launch {
	enum gpu_kernel kernel;
	const struct gpu_shape *shape;
	const void *args;
	uint64_t next;
};

#ifdef EMULATOR_CONCURRENT
/* The CPU threads and their fibers are kept between launches, because the sanitizer needs much time to make them. */
static struct launch *launched;
static pthread_barrier_t launch_start, launch_begun, launch_end;
#endif

/* launch_begin() - take a first block. Afterwards, each CPU thread has one, if there are enough blocks. */
static uint64_t launch_begin(struct launch *launch)
{
	uint64_t first = __atomic_fetch_add(&launch->next, 1, __ATOMIC_RELAXED);

#ifdef EMULATOR_CONCURRENT
	pthread_barrier_wait(&launch_begun);
#endif
	return first;
}

/*
 * block_memory_is_new() - return true if no byte from `at` on has been written. Eight bytes at a time, and by no
 * function of the C library, which ThreadSanitizer would check byte by byte.
 */
static bool block_memory_is_new(uint32_t at)
{
	uint64_t all = UINT64_MAX, eight;

	for (; at % sizeof(eight) && at < sizeof(block_memory); at++)
		if (block_memory[at] != 0xff)
			return false;
	for (; at < sizeof(block_memory); at += sizeof(eight)) {
		__builtin_memcpy(&eight, &block_memory[at], sizeof(eight));
		all &= eight;
	}
	return all == UINT64_MAX;
}

/* blocks_run() - run blocks until all have been run. */
static void blocks_run(struct launch *launch)
{
	const struct gpu_shape *shape = launch->shape;
	uint64_t count = (uint64_t)shape->grid[0] * shape->grid[1] * shape->grid[2];

	if (!fibers) {
		fibers = calloc(GPU_BLOCK_MAX, sizeof(*fibers));
		/* Before each block, all shared memory has this value, which is NaN in every element type. */
		memset(block_memory, 0xff, sizeof(block_memory));
	}
	if (!fibers)
		give_up("no memory");
#ifdef EMULATOR_CONCURRENT
	scheduler.tsan = __tsan_get_current_fiber();
#endif
	kernel_body = bodies[launch->kernel];
	kernel_args = launch->args;
	gridDim = (struct emulated_index){shape->grid[0], shape->grid[1], shape->grid[2]};
	blockDim = (struct emulated_index){shape->block, 1, 1};
	for (uint64_t i = launch_begin(launch); i < count; i = __atomic_fetch_add(&launch->next, 1, __ATOMIC_RELAXED)) {
		uint64_t block = order_seed && count > 1 ? shuffled(i, count) : i;

		blockIdx = (struct emulated_index){
			(uint32_t)(block % shape->grid[0]),
			(uint32_t)(block / shape->grid[0] % shape->grid[1]),
			(uint32_t)(block / shape->grid[0] / shape->grid[1]),
		};
		if (shape->early)
			access_set(PROT_NONE);
		block_run(shape->block);
		for (running = 0; shape->early && running < shape->block; running++)
			if (!fibers[running].waited)
				give_up("ends without a wait for the kernel before");
		if (!block_memory_is_new(shape->shared_bytes))
			give_up("shared memory beyond what was asked for was written");
		memset(block_memory, 0xff, shape->shared_bytes);
	}
}

#ifdef EMULATOR_CONCURRENT
static void *cpu_thread(void *unused)
{
	(void)unused;
	for (;;) {
		pthread_barrier_wait(&launch_start);
		blocks_run(launched);
		pthread_barrier_wait(&launch_end);
	}
	return NULL;
}

static void cpu_threads_start(void)
{
	pthread_t thread;

	pthread_barrier_init(&launch_start, NULL, CPU_THREADS + 1);
	pthread_barrier_init(&launch_begun, NULL, CPU_THREADS);
	pthread_barrier_init(&launch_end, NULL, CPU_THREADS + 1);
	for (int i = 0; i < CPU_THREADS; i++)
		if (pthread_create(&thread, NULL, cpu_thread, NULL) || pthread_detach(thread))
			give_up("no thread");
}
#endif

void emulator_run(enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args)
{
	struct launch launch = {.kernel = kernel, .shape = shape, .args = args};

	if (!shape->block || shape->block % WARP)
		give_up("the block is no number of warps");
#ifdef EMULATOR_CONCURRENT
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&lock);
	if (!launched)
		cpu_threads_start();
	launched = &launch;
	pthread_barrier_wait(&launch_start);
	pthread_barrier_wait(&launch_end);
	pthread_mutex_unlock(&lock);
#else
	blocks_run(&launch);
#endif
}

void emulator_hide(void *memory, uint64_t bytes)
{
	hidden = memory;
	hidden_bytes = bytes;
}

void emulator_plant_missing_wait(void)
{
	wait_missing = true;
}

void emulator_plant_missing_fences(void)
{
	fences_missing = true;
}

void emulator_seed(uint64_t seed)
{
	order_seed = seed;
}
