/* sequence.c - allocate, fork, append to and free sequences. See kv.h. */
#include "client/kv/kv.h"

#include "client/kv/offload.h"
#include "client/kv/pooled.h"
#include "client/kv/preempt.h"
#include "client/kv/prefix.h"
#include "client/core/last_error.h"

/* Generations are unique among all caches of this process, so that no sequence number is valid in two caches. */
static _Atomic uint32_t generations;

static uint32_t generation_next(void)
{
	uint32_t generation;

	do
		generation = atomic_fetch_add_explicit(&generations, 1, memory_order_relaxed) + 1;
	while (!generation);
	return generation;
}

int kv_find(const struct gpool_kv *kv, uint64_t number, struct kv_sequence **sequence)
{
	uint32_t row = (uint32_t)number, generation = (uint32_t)(number >> 32);

	if (!generation || row >= kv->max_sequences)
		return fail(-EINVAL, "0x%llx is not a sequence of this cache", (unsigned long long)number);
	if (atomic_load_explicit(&kv->sequences[row].generation, memory_order_relaxed) != generation)
		return fail(-ESTALE, "sequence 0x%llx has ended", (unsigned long long)number);
	*sequence = &kv->sequences[row];
	return 0;
}

int fail_preempted(const struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	return fail(
		-EAGAIN, "sequence 0x%llx is preempted; resume it first", (unsigned long long)kv_number(kv, sequence));
}

/* ---- tables ---- */

static void entry_store(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t index, uint32_t block)
{
	__atomic_store_n(&kv_table(kv, sequence)[index], (int32_t)block, __ATOMIC_RELAXED);
}

/* Mark the entries from `first` to before `end` for the copy to the device. */
static void entries_mark(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t first, uint32_t end)
{
	if (sequence->dirty_first == sequence->dirty_end) {
		TAILQ_INSERT_TAIL(&kv->dirty, sequence, dirty);
		sequence->dirty_first = first;
		sequence->dirty_end = end;
		return;
	}
	if (first < sequence->dirty_first)
		sequence->dirty_first = first;
	if (end > sequence->dirty_end)
		sequence->dirty_end = end;
}

void kv_set_entry(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t index, uint32_t block)
{
	entry_store(kv, sequence, index, block);
	entries_mark(kv, sequence, index, index + 1);
}

void kv_clean(struct gpool_kv *kv, struct kv_sequence *sequence)
{
	if (sequence->dirty_first < sequence->dirty_end)
		TAILQ_REMOVE(&kv->dirty, sequence, dirty);
	sequence->dirty_first = sequence->dirty_end = 0;
}

void kv_grow(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t blocks)
{
	while (blocks) {
		uint32_t count, first = block_pool_take(&kv->blocks, blocks, &count);

		for (uint32_t i = 0; i < count; i++)
			kv_set_entry(kv, sequence, sequence->blocks++, first + i);
		blocks -= count;
	}
}

int kv_zero(struct gpool_kv *kv, const struct kv_sequence *sequence, uint32_t first)
{
	uint32_t run = 1;

	for (uint32_t i = first; kv->zero && i < sequence->blocks; i += run) {
		uint64_t address = memory_address(kv, kv_entry(kv, sequence, i));
		int error;

		for (run = 1; i + run < sequence->blocks; run++)
			if (memory_address(kv, kv_entry(kv, sequence, i + run)) != address + run * kv->block_bytes)
				break;
		error = gpool_fill(kv->pool, kv->stream, address, 0, run * kv->block_bytes);
		if (error)
			return error;
	}
	return 0;
}

uint32_t kv_shrink(struct gpool_kv *kv, struct kv_sequence *sequence)
{
	uint32_t freed = 0;

	/* Release the blocks from the last to the first, so that children become cached before their parents. */
	for (uint32_t i = sequence->blocks; i-- > 0;)
		freed += prefix_unref(kv, kv_entry(kv, sequence, i));
	sequence->keyed = 0;
	kv_clean(kv, sequence);
	prefix_limit(kv);
	return freed;
}

/* ---- cursors ---- */

uint32_t cursor_stop(struct kv_sequence *sequence)
{
	uint64_t seen = atomic_load_explicit(&sequence->cursor, memory_order_relaxed), stopped;

	do
		stopped = (seen & ~((uint64_t)KV_TOKENS_MAX << KV_TOKENS_BITS)) |
			(uint64_t)cursor_tokens(seen) << KV_TOKENS_BITS;
	while (!atomic_compare_exchange_weak_explicit(
		&sequence->cursor, &seen, stopped, memory_order_acquire, memory_order_relaxed));
	return cursor_tokens(stopped);
}

/* Return true if the last block must be copied before the next token is written. */
static bool last_is_shared(const struct gpool_kv *kv, const struct kv_sequence *sequence, uint32_t tokens)
{
	return tokens & (kv->shape.block_tokens - 1) &&
		kv->blocks.refs[kv_entry(kv, sequence, tokens >> kv->token_shift)] > 1;
}

void cursor_go(const struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t tokens)
{
	uint32_t generation = atomic_load_explicit(&sequence->generation, memory_order_relaxed), limit = tokens;

	if (sequence->state == GPOOL_KV_RUNNING && !last_is_shared(kv, sequence, tokens))
		limit = sequence->blocks << kv->token_shift;
	atomic_store_explicit(&sequence->cursor, cursor_make(generation, limit, tokens), memory_order_release);
}

/* ---- create and free; the callers hold the lock ---- */

/* Take a row for a sequence without blocks. A free row must exist. */
static struct kv_sequence *sequence_new(struct gpool_kv *kv, uint32_t priority, uint64_t arrival, uint64_t owner_id)
{
	uint32_t row = bitmap_lowest(&kv->rows);
	struct kv_sequence *sequence = &kv->sequences[row];

	bitmap_remove(&kv->rows, row);
	sequence->blocks = sequence->keyed = 0;
	sequence->priority = priority;
	sequence->arrival = arrival;
	sequence->owner_id = owner_id;
	sequence->lossy = false;
	atomic_store_explicit(&sequence->generation, generation_next(), memory_order_relaxed);
	order_enter(kv, sequence, GPOOL_KV_RUNNING);
	return sequence;
}

/* End a sequence, and release its blocks and its row. */
static void discard(struct gpool_kv *kv, struct kv_sequence *sequence)
{
	cursor_stop(sequence);
	if (sequence->state == GPOOL_KV_RUNNING)
		kv_shrink(kv, sequence);
	offload_forget(kv, sequence);
	order_leave(kv, sequence);
	atomic_store_explicit(&sequence->generation, 0, memory_order_relaxed);
	/* A cursor of 0 has no room, so appends without the lock fail. */
	atomic_store_explicit(&sequence->cursor, 0, memory_order_relaxed);
	bitmap_add(&kv->rows, kv_row(kv, sequence));
	memory_park(kv);
}

int request_read(struct gpool_kv_request *read, const struct gpool_kv_request *request)
{
	int error = options_read(read, sizeof(*read), request);

	if (error)
		return error;
	return (read->flags & ~(uint32_t)GPOOL_KV_CONTINUES) || read->reserved
		? fail(-EINVAL,
			  "flags are 0x%x and reserved is %u; the only known flag is GPOOL_KV_CONTINUES, and reserved "
			  "must be 0",
			  read->flags, read->reserved)
		: 0;
}

/*
 * Hold the found blocks in the row that the sequence will get, so that none of them is evicted to make room for the
 * others.
 */
static int blocks_get(struct gpool_kv *kv, const struct prefix_walk *walk, uint32_t more)
{
	int32_t *entries = kv->tables + (size_t)bitmap_lowest(&kv->rows) * kv->columns;
	int error;

	prefix_take(kv, walk, entries);
	error = memory_get(kv, more);
	if (error) {
		prefix_untake(kv, walk, entries);
		memory_park(kv);
	}
	return error;
}

static void blocks_begin(struct gpool_kv *kv, struct kv_sequence *sequence, const struct prefix_walk *walk)
{
	for (uint32_t i = 0; i < walk->found; i++)
		kv_set_entry(kv, sequence, i, kv_entry(kv, sequence, i));
	sequence->blocks = sequence->keyed = walk->found;
	sequence->root = walk->root;
	sequence->last = walk->last;
	sequence->keyed_epoch = kv->prefix_epoch;
}

/*
 * If the cache shares chunks with other processes, take whole chunks for the full blocks as long as memory is
 * available. kv_grow() provides the remaining blocks.
 */
static void chunks_begin(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t full_blocks)
{
	uint32_t count = kv->blocks.chunk_blocks;

	while (kv->pooled && sequence->blocks + count <= full_blocks && memory_get_chunk(kv)) {
		uint32_t first = block_pool_take_chunk(&kv->blocks);

		for (uint32_t i = 0; i < count; i++)
			kv_set_entry(kv, sequence, sequence->blocks++, first + i);
	}
}

int sequence_allocate(
	struct gpool_kv *kv, const struct gpool_kv_request *request, const struct prefix_walk *walk, uint64_t *number)
{
	uint32_t blocks = kv_blocks_for(
		kv, request->estimated_tokens > request->tokens ? request->estimated_tokens : request->tokens);
	uint32_t borrowed = walk->found - walk->idle,
		 watermark = request->flags & GPOOL_KV_CONTINUES ? 0 : kv->watermark;
	int error = kv->rows.count ? kv_admit(kv, blocks, borrowed, watermark) : -EUSERS;
	struct kv_sequence *sequence;

	if (!error)
		error = blocks_get(kv, walk, blocks - walk->found);
	if (error)
		return kv_refuse(kv, error == -EFBIG ? blocks : blocks - borrowed, error);
	sequence = sequence_new(kv, request->priority, ++kv->arrivals, request->owner_id);
	blocks_begin(kv, sequence, walk);
	chunks_begin(kv, sequence, walk->count);
	kv_grow(kv, sequence, blocks - sequence->blocks);
	error = kv_zero(kv, sequence, walk->found);
	if (error) {
		discard(kv, sequence);
		return error;
	}
	memory_settle(kv);
	cursor_go(kv, sequence, request->tokens);
	*number = kv_number(kv, sequence);
	kv->allocations++;
	return 0;
}

int gpool_kv_allocate(struct gpool_kv *kv, const struct gpool_kv_request *request, uint64_t *sequence)
{
	const struct prefix_walk nothing = {.count = 0};
	struct gpool_kv_request read;
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	error = request_read(&read, request);
	if (error)
		return error;
	pthread_mutex_lock(&kv->lock);
	error = sequence_allocate(kv, &read, &nothing, sequence);
	pthread_mutex_unlock(&kv->lock);
	return error;
}

static uint64_t fork_of(struct gpool_kv *kv, struct kv_sequence *parent)
{
	struct kv_sequence *child = sequence_new(kv, parent->priority, parent->arrival, parent->owner_id);
	uint32_t tokens = cursor_stop(parent), blocks = kv_blocks_for(kv, tokens);

	for (uint32_t i = 0; i < blocks; i++) {
		uint32_t block = kv_entry(kv, parent, i);

		/* The parent has a reference to each of its blocks, so no block is cached. */
		if (is_pooled(kv, block))
			pooled_ref(kv, block);
		else
			block_pool_ref(&kv->blocks, block);
		entry_store(kv, child, i, block);
	}
	if (blocks)
		entries_mark(kv, child, 0, blocks);
	child->blocks = blocks;
	prefix_inherit(child, parent);
	cursor_go(kv, parent, tokens);
	cursor_go(kv, child, tokens);
	kv->forks++;
	return kv_number(kv, child);
}

int gpool_kv_fork(struct gpool_kv *kv, uint64_t sequence, uint64_t *child)
{
	struct kv_sequence *parent;
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	error = kv_find(kv, sequence, &parent);
	if (!error && parent->state != GPOOL_KV_RUNNING)
		error = fail_preempted(kv, parent);
	else if (!error && !kv->rows.count)
		error = kv_refuse(kv, 0, -EUSERS);
	if (!error)
		*child = fork_of(kv, parent);
	pthread_mutex_unlock(&kv->lock);
	return error;
}

int gpool_kv_free(struct gpool_kv *kv, uint64_t sequence)
{
	struct kv_sequence *found;
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	error = kv_find(kv, sequence, &found);
	if (!error) {
		discard(kv, found);
		kv->frees++;
	}
	pthread_mutex_unlock(&kv->lock);
	return error;
}

/* ---- append ---- */

/* Release the last blocks, which have no token. */
static void blocks_return(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t blocks)
{
	while (blocks--)
		block_pool_unref(&kv->blocks, kv_entry(kv, sequence, --sequence->blocks), false);
}

/* Replace a shared last block by a copy. A free block must exist (block_pool_short()). */
static int last_copy(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t index)
{
	uint32_t from = kv_entry(kv, sequence, index), count, to = block_pool_take(&kv->blocks, 1, &count);
	int error = gpool_copy(kv->pool, kv->stream, memory_address(kv, to), memory_address(kv, from), kv->block_bytes);

	if (error) {
		block_pool_unref(&kv->blocks, to, false);
		return error;
	}
	/* The block is still shared and not full, so it has no key. */
	block_pool_unref(&kv->blocks, from, false);
	kv_set_entry(kv, sequence, index, to);
	kv->block_copies++;
	return 0;
}

static int append_stopped(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t before, uint32_t tokens)
{
	uint32_t blocks = kv_blocks_for(kv, before + tokens),
		 more = blocks > sequence->blocks ? blocks - sequence->blocks : 0;
	bool copy = last_is_shared(kv, sequence, before);
	int error;

	error = memory_try(kv, more + copy);
	if (error)
		return kv_refuse(kv, more + copy, error);
	if (copy)
		error = last_copy(kv, sequence, before >> kv->token_shift);
	if (error)
		return error;
	kv_grow(kv, sequence, more);
	error = kv_zero(kv, sequence, sequence->blocks - more);
	if (error) {
		blocks_return(kv, sequence, more);
		return error;
	}
	memory_settle(kv);
	return 0;
}

static uint64_t slot_of(const struct gpool_kv *kv, const struct kv_sequence *sequence, uint32_t token)
{
	uint64_t block = kv_entry(kv, sequence, token >> kv->token_shift);

	return block << kv->token_shift | (token & (kv->shape.block_tokens - 1));
}

int sequence_append(struct gpool_kv *kv, uint64_t number, uint32_t tokens, uint64_t *slot)
{
	struct kv_sequence *sequence;
	uint32_t before;
	int error = kv_find(kv, number, &sequence);

	if (!error && sequence->state != GPOOL_KV_RUNNING)
		error = fail_preempted(kv, sequence);
	if (error)
		return error;
	before = cursor_stop(sequence);
	if (tokens > (kv->columns << kv->token_shift) - before)
		error = kv_refuse(
			kv, kv_blocks_for(kv, tokens < UINT32_MAX - before ? before + tokens : UINT32_MAX), -EFBIG);
	else
		error = append_stopped(kv, sequence, before, tokens);
	if (!error && slot)
		*slot = slot_of(kv, sequence, before);
	cursor_go(kv, sequence, error ? before : before + tokens);
	return error;
}

static COLD int append_slow(struct gpool_kv *kv, uint64_t number, uint32_t tokens, uint64_t *slot)
{
	int error;

	pthread_mutex_lock(&kv->lock);
	error = sequence_append(kv, number, tokens, slot);
	if (error)
		memory_park(kv);
	pthread_mutex_unlock(&kv->lock);
	return error;
}

/* A function of its own, because gpool_kv_append() would otherwise keep a variable, and its guard, on the stack. */
static COLD int append_refuse(const struct gpool_kv *kv, uint64_t number, uint32_t tokens)
{
	struct kv_sequence *found;

	return tokens ? kv_find(kv, number, &found) : fail(-EINVAL, "tokens is 0; the minimum is 1");
}

int gpool_kv_append(struct gpool_kv *kv, uint64_t sequence, uint32_t tokens, uint64_t *slot)
{
	uint32_t row = (uint32_t)sequence, generation = (uint32_t)(sequence >> 32);
	struct kv_sequence *found;
	uint64_t cursor;

	if (unlikely(!kv->pool->alive))
		return -ECHILD;
	if (unlikely(!tokens || !generation || row >= kv->max_sequences))
		return append_refuse(kv, sequence, tokens);
	found = &kv->sequences[row];
	/*
	 * The cursor is read before the generation. If another sequence gets the row after that, its cursor has
	 * changed, and the compare-and-swap fails.
	 */
	cursor = atomic_load_explicit(&found->cursor, memory_order_acquire);
	while (likely(tokens <= cursor_limit(cursor) - cursor_tokens(cursor) &&
		atomic_load_explicit(&found->generation, memory_order_relaxed) == generation)) {
		if (unlikely(!atomic_compare_exchange_weak_explicit(
			    &found->cursor, &cursor, cursor + tokens, memory_order_acq_rel, memory_order_acquire)))
			continue;
		if (slot)
			*slot = slot_of(kv, found, cursor_tokens(cursor));
		return 0;
	}
	return append_slow(kv, sequence, tokens, slot);
}
