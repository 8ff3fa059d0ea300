#include "client/vm/space.h"

#include "client/core/last_error.h"
#include "client/core/window.h"
#include "shm/plural.h"

#include <stdlib.h>
#include <sys/mman.h>

enum {
#ifdef __aarch64__
	USER_ADDRESS_BITS = 48,
#else
	USER_ADDRESS_BITS = 47, /* of x86-64; Linux uses more bits only for processes that request it */
#endif
};

struct vm_spaces {
	pthread_mutex_t lock;
	struct vm_space *all;
	/* [handles of the pool] number of slots that map each handle; 0 before its unmap is reported to the agent */
	_Atomic uint32_t *mapped;
};

/* ---- open and close ---- */

static void *slots_allocate(uint32_t slots)
{
	void *memory = mmap(NULL, slots * sizeof(uint32_t), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

int addresses_reserve(struct gpool *pool, uint64_t bytes, uint64_t *base)
{
	const uint64_t most = UINT64_C(1) << USER_ADDRESS_BITS;

	if (!gpu_reserve(pool->gpu, bytes, 0, base))
		return 0;
	pool_log(pool, POOL_LOG_ERROR, "cannot reserve addresses: %s", gpu_error_text());
	if (bytes >= most)
		return fail(-ENOMEM, "%llu bytes of addresses are needed; a process can have at most %llu",
			(unsigned long long)bytes, (unsigned long long)most);
	return fail(-ENOMEM,
		"%llu bytes of addresses are needed, of at most %llu of a process, some of which are in use: %s",
		(unsigned long long)bytes, (unsigned long long)most, gpu_error_text());
}

int vm_space_open(struct gpool *pool, uint64_t bytes, struct vm_space *space)
{
	uint64_t slot_bytes = pool->page_bytes * handle_pages(pool),
		 slots = bytes / slot_bytes + (bytes % slot_bytes != 0);

	if (slots == 0 || slots > UINT32_MAX)
		return fail(-ENOMEM, "%llu bytes of addresses are needed; the maximum is %llu",
			(unsigned long long)bytes, (unsigned long long)(UINT32_MAX * slot_bytes));
	space->pages = slots_allocate((uint32_t)slots);
	if (!space->pages)
		return -ENOMEM;
	if (addresses_reserve(pool, slots * slot_bytes, &space->base)) {
		munmap(space->pages, slots * sizeof(*space->pages));
		return -ENOMEM;
	}
	space->pool = pool;
	space->slot_bytes = slot_bytes;
	space->slot_count = (uint32_t)slots;
	space->bytes = slots * slot_bytes;
	atomic_store_explicit(&space->slots_end, 0, memory_order_relaxed);
	pthread_mutex_lock(&pool->spaces->lock);
	space->next = pool->spaces->all;
	space->link = &pool->spaces->all;
	if (space->next)
		space->next->link = &space->next;
	pool->spaces->all = space;
	pthread_mutex_unlock(&pool->spaces->lock);
	return 0;
}

void vm_space_close(struct vm_space *space)
{
	struct gpool *pool = space->pool;
	int error;

	pthread_mutex_lock(&pool->spaces->lock);
	*space->link = space->next;
	if (space->next)
		space->next->link = space->link;
	pthread_mutex_unlock(&pool->spaces->lock);
	error = vm_unmap(space, 0, atomic_load_explicit(&space->slots_end, memory_order_relaxed));
	if (!error)
		error = gpu_unreserve(pool->gpu, space->base, space->bytes);
	if (error)
		pool_log(pool, POOL_LOG_ERROR, "cannot free %llu byte%s of addresses: %s; the addresses are lost",
			(unsigned long long)space->bytes, plural(space->bytes), gpu_error_text());
	munmap(space->pages, space->slot_count * sizeof(*space->pages));
	space->pages = NULL;
}

/* ---- map and unmap ---- */

static void count_mapped(const struct vm_space *space, uint32_t page, uint32_t change)
{
	atomic_fetch_add_explicit(
		&space->pool->spaces->mapped[page / handle_pages(space->pool)], change, memory_order_seq_cst);
}

/* If the back end has one descriptor per handle, request the descriptors of all handles together. */
static int handles_import(struct gpool *pool, const uint32_t *pages, uint32_t count)
{
	uint32_t least = UINT32_MAX, most = 0;

	for (uint32_t i = 0; i < count; i++) {
		if (likely(window_has(pool, pages[i])))
			continue;
		least = pages[i] < least ? pages[i] : least;
		most = pages[i] > most ? pages[i] : most;
	}
	return least == UINT32_MAX ? 0 : window_import(pool, least, most - least + 1);
}

/* Undo mappings. space->pages[] keeps those that could not be undone, for a later call. */
static void map_undo(struct vm_space *space, uint32_t slot, const uint32_t *pages, uint32_t count)
{
	if (!count)
		return;
	if (gpu_unmap(space->pool->gpu, vm_address(space, slot), count * space->slot_bytes)) {
		pool_log(space->pool, POOL_LOG_ERROR, "cannot unmap the pages that were mapped before the failure: %s",
			gpu_error_text());
		for (uint32_t i = 0; i < count; i++)
			space->pages[slot + i] = (pages[i] + 1) | VM_UNFINISHED;
		return;
	}
	for (uint32_t i = 0; i < count; i++)
		count_mapped(space, pages[i], UINT32_MAX);
}

static void slots_end_raise(struct vm_space *space, uint32_t end)
{
	uint32_t seen = atomic_load_explicit(&space->slots_end, memory_order_relaxed);

	while (seen < end &&
		!atomic_compare_exchange_weak_explicit(
			&space->slots_end, &seen, end, memory_order_relaxed, memory_order_relaxed))
		;
}

static int map_all(struct vm_space *space, uint32_t slot, const uint32_t *pages, uint32_t count)
{
	struct gpool *pool = space->pool;
	int error = handles_import(pool, pages, count);
	uint32_t done = 0, per_slot = handle_pages(pool);
	uint64_t begin = vm_address(space, slot), at = begin;

	while (done < count && !error) {
		uint32_t end = done + 1;

		while (end < count && pages[end] == pages[end - 1] + per_slot)
			end++;
		for (uint32_t i = done; i < end; i++)
			count_mapped(space, pages[i], 1);
		error = window_map_at(pool, pages[done], (end - done) * per_slot, &at);
		done = (uint32_t)((at - begin) / space->slot_bytes);
		for (uint32_t i = done; i < end; i++)
			count_mapped(space, pages[i], UINT32_MAX);
	}
	if (!error)
		error = gpu_access(pool->gpu, begin, count * space->slot_bytes, GPU_ACCESS_READ_WRITE);
	if (!error)
		return 0;
	pool_log(pool, POOL_LOG_ERROR, "cannot map %u handle%s: %s", count, plural(count),
		error == -EPIPE ? "the agent is not running" : gpu_error_text());
	if (error != -EPIPE)
		error = fail_map();
	map_undo(space, slot, pages, done);
	return error;
}

int vm_map(struct vm_space *space, uint32_t slot, const uint32_t *pages, uint32_t count)
{
	int error;

	if (!count)
		return 0;
	slots_end_raise(space, slot + count);
	error = vm_unmap(space, slot, count);
	if (error)
		return error == -EBUSY ? -EBUSY : -ENOMEM;
	error = map_all(space, slot, pages, count);
	if (error)
		return error;
	window_keep_from_child(space->pool, vm_address(space, slot), count * space->slot_bytes);
	for (uint32_t i = 0; i < count; i++)
		space->pages[slot + i] = pages[i] + 1;
	return 0;
}

/* The first page of the handle that is mapped at a slot. */
static uint32_t mapped_page(const struct vm_space *space, uint32_t slot)
{
	return (space->pages[slot] & ~VM_UNFINISHED) - 1;
}

void vm_forget(struct vm_space *space, uint32_t slot, uint32_t count)
{
	for (uint32_t i = slot; i < slot + count; i++) {
		count_mapped(space, mapped_page(space, i), UINT32_MAX);
		space->pages[i] = 0;
	}
}

/* Unmap slots that are all mapped. */
static int unmap_run(struct vm_space *space, uint32_t slot, uint32_t count)
{
	int error = gpu_unmap(space->pool->gpu, vm_address(space, slot), count * space->slot_bytes);

	if (error && error != -EBUSY)
		pool_log(space->pool, POOL_LOG_ERROR, "cannot unmap %u handle%s: %s", count, plural(count),
			gpu_error_text());
	if (!error)
		vm_forget(space, slot, count);
	return error;
}

int vm_unmap(struct vm_space *space, uint32_t slot, uint32_t count)
{
	uint32_t end = slot + count;
	int error = 0;

	while (slot < end && !error) {
		uint32_t first = slot;

		while (slot < end && space->pages[slot])
			slot++;
		if (slot > first)
			error = unmap_run(space, first, slot - first);
		else
			slot++;
	}
	return error;
}

/* ---- reclaimable slots ---- */

void vm_park(struct vm_space *space, uint32_t slot, uint32_t count)
{
	enum { BATCH = 256 };
	uint32_t pages[BATCH];

	for (uint32_t done = 0; done < count;) {
		uint32_t batch = count - done < BATCH ? count - done : BATCH;

		for (uint32_t i = 0; i < batch; i++)
			pages[i] = space->pages[slot + done + i] - 1;
		vm_put(space->pool, pages, batch);
		done += batch;
	}
}

/* Return the number of slots from `slot` on whose pages are adjacent bits in one word of the free bits. */
static uint32_t word_run(const struct vm_space *space, uint32_t slot, uint32_t count)
{
	uint32_t first = space->pages[slot] - 1, room = 64 - first % 64, run = 1;

	if (handle_pages(space->pool) > 1)
		return 1;
	while (run < count && run < room && space->pages[slot + run] == space->pages[slot] + run)
		run++;
	return run;
}

/*
 * Hold the adopted pages of one word_run(). `taken` is a mask over the slots from `slot` on. Return the mask of the
 * held ones.
 */
static uint64_t run_stand(struct vm_space *space, uint32_t slot, uint64_t taken, struct thread_cache *cache,
	const struct vm_take_options *options)
{
	struct gpool *pool = space->pool;
	uint64_t stand = taken;

	for (; taken; taken &= taken - 1) {
		uint32_t page = space->pages[slot + (uint32_t)__builtin_ctzll(taken)] - 1;

		if (likely(!handle_stand(pool, cache, page, options)))
			continue;
		pool_put(pool, page, handle_pages(pool));
		stand &= ~(taken & -taken);
	}
	return stand;
}

static uint64_t run_take(struct vm_space *space, uint32_t slot, uint32_t run)
{
	uint32_t page = space->pages[slot] - 1, per_handle = handle_pages(space->pool);
	_Atomic uint64_t *bits = space->pool->session.free_bits;

	if (per_handle > 1)
		return lease_take(bits, page, per_handle);
	return lease_take_word(bits, page / 64, lease_mask(page / 64, page, run)) >> (page % 64);
}

uint32_t vm_adopt_run(
	struct vm_space *space, uint32_t slot, uint32_t count, const struct vm_take_options *options, uint32_t *gone)
{
	static const struct vm_take_options no_options;
	struct thread_cache *cache = thread_cache_of(space->pool);
	uint32_t end = slot + count, lost = 0;
	struct thread_stats *transit;

	transit = transit_begin(space->pool);
	while (slot < end) {
		if (unlikely(space->pages[slot] & VM_UNFINISHED)) {
			gone[lost++] = slot++;
			continue;
		}
		uint32_t run = word_run(space, slot, end - slot);
		uint64_t taken = cache ? run_take(space, slot, run) : 0;
		uint64_t ours = run_stand(space, slot, taken, cache, options ? options : &no_options);

		for (uint32_t i = 0; i < run; i++)
			if (!(ours >> i & 1))
				gone[lost++] = slot + i;
		slot += run;
	}
	transit_end(space->pool, transit);
	return lost;
}

/* ---- unmap for other trust domains ---- */

bool vm_let_go(struct vm_space *space, uint32_t slot, uint32_t count)
{
	bool all = true;

	for (uint32_t i = slot; i < slot + count; i++)
		if (space->pages[i] && window_wanted(space->pool, mapped_page(space, i)))
			all &= unmap_run(space, i, 1) == 0;
	return all;
}

static bool vm_sweep(struct gpool *pool)
{
	struct vm_spaces *spaces = pool->spaces;
	bool all = true;

	if (!spaces)
		return true;
	/* If another thread holds the lock, it sweeps, or opens or closes a space. */
	if (pthread_mutex_trylock(&spaces->lock))
		return false;
	for (struct vm_space *space = spaces->all; space; space = space->next)
		if (space->let_go)
			all &= space->let_go(space);
	pthread_mutex_unlock(&spaces->lock);
	return all;
}

bool vm_maps(const struct gpool *pool, uint32_t handle)
{
	return pool->spaces && atomic_load_explicit(&pool->spaces->mapped[handle], memory_order_seq_cst) != 0;
}

/* ---- shared state ---- */

static const struct window_user user = {.sweep = vm_sweep, .maps = vm_maps};

int vm_open(struct gpool *pool)
{
	struct vm_spaces *spaces = calloc(1, sizeof(*spaces));

	if (!spaces)
		return -ENOMEM;
	spaces->mapped = calloc(pool->page_count / handle_pages(pool), sizeof(*spaces->mapped));
	if (!spaces->mapped) {
		free(spaces);
		return -ENOMEM;
	}
	pthread_mutex_init(&spaces->lock, NULL);
	pool->spaces = spaces;
	window_register(pool, &user);
	return 0;
}

void vm_close(struct gpool *pool)
{
	struct vm_spaces *spaces = pool->spaces;

	if (!spaces)
		return;
	pthread_mutex_destroy(&spaces->lock);
	free((void *)spaces->mapped);
	free(spaces);
	pool->spaces = NULL;
}
