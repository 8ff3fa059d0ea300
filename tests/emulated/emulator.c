/* emulator.c - run blocks as fibers, with the warp and block operations. */
#undef _FORTIFY_SOURCE /* its longjmp() does not accept the fibers' stacks */
#include "tests/emulated/emulator.h"

#include "cuda/kernels/block_copy.h"
#include "cuda/kernels/kernel.h"
#include "cuda/kernels/lora.h"
#include "cuda/kernels/quantise.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { WARP = 32, STACK_BYTES = 128 << 10, SHARE_BYTES = 48, COPY_BYTES = 16, COPIES_MAX = 64 };

/* Declared for the kernels in cuda.h. */
struct emulated_index {
	uint32_t x, y, z;
};
extern struct emulated_index threadIdx, blockIdx, blockDim, gridDim;
struct emulated_index threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char block_memory[GPU_SHARED_MAX];
_Alignas(16) unsigned char block_memory[GPU_SHARED_MAX];
void emulated_sync_block(void);
const void *emulated_share(const char *which, const void *given, size_t bytes);
void emulated_copy(void *to, const void *from, uint32_t bytes);
void emulated_copies_end(void);
void emulated_copies_wait(uint32_t left);

enum fiber_state { READY, AT_WARP, AT_BLOCK, DONE };

/*
 * A context to switch to. swapcontext() makes a system call, so it is used only where AddressSanitizer has to know of
 * the switch, and to start a fiber.
 */
struct place {
	ucontext_t context;
	jmp_buf jump;
};

/* A copy that a thread has begun. */
struct copy {
	void *to;
	const void *from;
	uint32_t bytes, group;
};

static struct fiber {
	struct place place;
	bool started;
	enum fiber_state state;
	const char *which; /* the warp operation that the thread executes */
	uint32_t turn;     /* number of warp operations so far */
	struct copy copies[COPIES_MAX];
	uint32_t copy_count, group;
} fibers[GPU_BLOCK_MAX];

static struct place scheduler;
static uint32_t running;
/* the values of an operation are kept until the one after the next */
static _Alignas(16) unsigned char shares[2][GPU_BLOCK_MAX][SHARE_BYTES];
static uint64_t order_seed;

static void give_up(const char *what)
{
	fprintf(stderr, "emulator: block %u %u %u, thread %u: %s\n", blockIdx.x, blockIdx.y, blockIdx.z, running, what);
	abort();
}

/* place_switch() - continue at `to` until it switches back. first: `to` has not run yet. */
static void place_switch(struct place *from, struct place *to, bool first)
{
#ifdef __SANITIZE_ADDRESS__
	(void)first;
	swapcontext(&from->context, &to->context);
#else
	if (_setjmp(from->jump))
		return;
	if (first)
		setcontext(&to->context);
	_longjmp(to->jump, 1);
#endif
}

static void wait_as(enum fiber_state state)
{
	fibers[running].state = state;
	place_switch(&fibers[running].place, &scheduler, false);
}

void emulated_sync_block(void)
{
	wait_as(AT_BLOCK);
}

const void *emulated_share(const char *which, const void *given, size_t bytes)
{
	struct fiber *fiber = &fibers[running];
	uint32_t turn = fiber->turn++ % 2;

	if (bytes > SHARE_BYTES)
		give_up("shares more than there is place for");
	memcpy(shares[turn][running], given, bytes);
	fiber->which = which;
	wait_as(AT_WARP);
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

static void (*kernel_body)(const void *args);
static const void *kernel_args;

/* A fiber runs its thread of one block after the other. */
static void fiber_main(void)
{
	for (;;) {
		kernel_body(kernel_args);
		if (fibers[running].copy_count)
			give_up("ends before its copies");
		wait_as(DONE);
	}
}

static void fiber_make(struct fiber *fiber)
{
	ucontext_t *context = &fiber->place.context;
	unsigned char *stack = malloc(STACK_BYTES);

	if (!stack || getcontext(context))
		give_up("no memory");
	context->uc_stack.ss_sp = stack;
	context->uc_stack.ss_size = STACK_BYTES;
	context->uc_link = NULL;
	makecontext(context, fiber_main, 0);
	/* Otherwise, AddressSanitizer would clear its shadow of the stack at each switch. */
	context->uc_stack = (stack_t){0};
}

static void fiber_resume(struct fiber *fiber)
{
	bool first = !fiber->started;

	if (first)
		fiber_make(fiber);
	fiber->started = true;
	place_switch(&scheduler, &fiber->place, first);
}

/* block_run() - run each thread in turn until its next wait, until all have ended. */
static void block_run(uint32_t threads)
{
	uint32_t done = 0;

	for (uint32_t i = 0; i < threads; i++) {
		fibers[i].state = READY;
		fibers[i].turn = 0;
	}
	while (done < threads) {
		bool moved = false;

		for (uint32_t i = 0; i < threads; i++) {
			if (fibers[i].state != READY)
				continue;
			running = i;
			threadIdx = (struct emulated_index){i, 0, 0};
			fiber_resume(&fibers[i]);
			done += fibers[i].state == DONE;
			moved = true;
		}
		for (uint32_t i = 0; i < threads; i += WARP)
			moved |= warp_release(i);
		moved |= block_release(threads);
		if (!moved)
			give_up("some wait for their warp and some for the block");
	}
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

void emulator_run(enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args)
{
	uint64_t count = (uint64_t)shape->grid[0] * shape->grid[1] * shape->grid[2];

	if (shape->block % WARP)
		give_up("the block is no number of warps");
	kernel_body = bodies[kernel];
	kernel_args = args;
	gridDim = (struct emulated_index){shape->grid[0], shape->grid[1], shape->grid[2]};
	blockDim = (struct emulated_index){shape->block, 1, 1};
	for (uint64_t i = 0; i < count; i++) {
		uint64_t block = order_seed && count > 1 ? shuffled(i, count) : i;

		blockIdx = (struct emulated_index){
			(uint32_t)(block % shape->grid[0]),
			(uint32_t)(block / shape->grid[0] % shape->grid[1]),
			(uint32_t)(block / shape->grid[0] / shape->grid[1]),
		};
		memset(block_memory, 0xff, sizeof(block_memory)); /* NaN in every element type */
		block_run(shape->block);
		for (uint32_t at = shape->shared_bytes; at < sizeof(block_memory); at++)
			if (block_memory[at] != 0xff)
				give_up("shared memory beyond what was asked for was written");
	}
}

void emulator_seed(uint64_t seed)
{
	order_seed = seed;
}
