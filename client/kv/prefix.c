/*
 * prefix.c - find blocks by their content. See prefix.h.
 *
 * A sequence records how many of its blocks, from the first on, have known keys, and the key of the last of these.
 * gpool_kv_prefix_publish() therefore hashes only new blocks. When sleep has discarded content, all keys are removed;
 * kv->prefix_epoch detects this.
 */
#include "client/kv/prefix.h"

#include "client/core/last_error.h"
#include "shm/policy/eviction.h"
#include "shm/plural.h"
#include "client/kv/offer.h"
#include "client/kv/pooled.h"
#include "client/core/thread_cache.h"
#include "client/vm/range.h"

#include <stdlib.h>
#include <string.h>

int prefix_open(struct gpool_kv *kv, const struct gpool_kv_options *options)
{
	_Static_assert(sizeof(options->model) == PREFIX_MODEL_BYTES, "");
	memcpy(kv->model, options->model, sizeof(kv->model));
	kv->cached_most = options->cached_blocks ? options->cached_blocks : UINT32_MAX;
	if (!(options->flags & GPOOL_KV_PREFIXES))
		return 0;
	if (prefix_table_init(&kv->prefixes, kv_block_count(kv)))
		return -ENOMEM;
	return block_order_init(&kv->order, kv->blocks.blocks, options->flags & GPOOL_KV_ADAPTIVE);
}

void prefix_close(struct gpool_kv *kv)
{
	prefix_table_fini(&kv->prefixes);
	block_order_fini(&kv->order);
}

/* ---- references ---- */

void prefix_ref(struct gpool_kv *kv, uint32_t block)
{
	if (is_pooled(kv, block))
		pooled_ref(kv, block);
	else if (block_pool_ref(&kv->blocks, block))
		block_order_use(&kv->order, block);
}

bool prefix_unref(struct gpool_kv *kv, uint32_t block)
{
	bool keep, last;

	if (is_pooled(kv, block)) {
		pooled_unref(kv, block);
		return false;
	}
	keep = prefix_table_has(&kv->prefixes, block);
	last = block_pool_unref(&kv->blocks, block, keep);
	if (last && keep)
		block_order_cache(&kv->order, block);
	return last;
}

void prefix_inherit(struct kv_sequence *child, const struct kv_sequence *parent)
{
	child->root = parent->root;
	child->last = parent->last;
	child->keyed = parent->keyed;
	child->keyed_epoch = parent->keyed_epoch;
}

/* Return this block, which has a key, or its nearest ancestor in the cache's own memory; or PREFIX_NONE. */
static uint32_t prefix_own(const struct gpool_kv *kv, uint32_t block)
{
	while (block != PREFIX_NONE && is_pooled(kv, block))
		block = kv->prefixes.entries[block].parent;
	return block;
}

/* ---- eviction ---- */

static void evict(struct gpool_kv *kv, uint32_t block)
{
	uint32_t before = kv->prefixes.entries[block].parent;

	block_order_evict(&kv->order, block);
	prefix_table_remove(&kv->prefixes, block);
	block_pool_drop(&kv->blocks, block);
	pooled_unfollowed(kv, before);
}

void prefix_evict(struct gpool_kv *kv, uint32_t blocks)
{
	kv->prefix_evicted += blocks;
	while (blocks--)
		evict(kv, block_order_next(&kv->order));
}

void prefix_limit(struct gpool_kv *kv)
{
	if (kv->blocks.cached_blocks > kv->cached_most)
		prefix_evict(kv, kv->blocks.cached_blocks - kv->cached_most);
}

void losses_follow(struct gpool_kv *kv)
{
	uint32_t losses = atomic_load_explicit(&kv->range->losses, memory_order_acquire);

	if (likely(losses == kv->prefix_epoch))
		return;
	kv->prefix_epoch = losses;
	prefix_evict(kv, kv->blocks.cached_blocks);
	prefix_table_clear(&kv->prefixes);
	block_order_clear(&kv->order);
	pooled_settle(kv);
	memory_park(kv);
}

/* ---- lookup ---- */

int fail_no_prefixes(void)
{
	return fail(-EOPNOTSUPP, "the cache was created without GPOOL_KV_PREFIXES");
}

static int prefix_read(const struct gpool_kv *kv, struct gpool_kv_prefix *read, const struct gpool_kv_prefix *prefix)
{
	int error = options_read(read, sizeof(*read), prefix);

	if (error)
		return error;
	if (read->flags || read->reserved || (read->count && !read->ids))
		return fail(-EINVAL,
			"flags are 0x%x, reserved is %u and ids is %s; flags and reserved must be 0, and ids must have "
			"%u element%s",
			read->flags, read->reserved, read->ids ? "set" : "NULL", read->count, plural(read->count));
	return kv->prefixes.entries ? 0 : fail_no_prefixes();
}

static struct prefix_key root_of(const struct gpool_kv *kv, const struct gpool_kv_prefix *prefix)
{
	struct prefix_identity identity = {
		.layers = kv->shape.layers,
		.kv_heads = kv->shape.kv_heads,
		.head_size = kv->shape.head_size,
		.dtype_bytes = kv->shape.dtype_bytes,
		.block_tokens = kv->shape.block_tokens,
		.int8 = kv->int8,
		.adapter_id = prefix->adapter_id,
		.salt = {prefix->salt[0], prefix->salt[1]},
	};

	memcpy(identity.model, kv->model, sizeof(identity.model));
	return prefix_key_root(&identity);
}

/* Compute the key of the block with this index in the ids. */
static struct prefix_key walk_key(
	const struct gpool_kv *kv, const struct prefix_walk *walk, uint32_t index, struct prefix_key before)
{
	return prefix_key_next(before, walk->ids + ((size_t)index << kv->token_shift), kv->shape.block_tokens);
}

/*
 * Follow the chain from the first block on, as long as blocks with these keys exist in this cache or, if `far` is set,
 * in the pool.
 */
static struct prefix_walk walk_of(struct gpool_kv *kv, const struct gpool_kv_prefix *prefix, uint32_t tokens, bool far)
{
	struct prefix_walk walk = {.ids = prefix->ids, .count = tokens >> kv->token_shift};
	uint32_t before = PREFIX_NONE;

	losses_follow(kv);
	offer_look(kv);
	walk.root = walk.last = root_of(kv, prefix);
	while (walk.found < walk.count && walk.found < kv->columns) {
		struct prefix_key key = walk_key(kv, &walk, walk.found, walk.last);
		uint32_t block = prefix_table_find(&kv->prefixes, key);

		if (block == PREFIX_NONE && far) {
			block = pooled_find(kv, key, before);
			kv->pool_found += block != PREFIX_NONE;
		}
		if (block == PREFIX_NONE)
			break;
		walk.idle += !is_pooled(kv, block) && !kv->blocks.refs[block];
		before = block;
		walk.last = key;
		walk.found++;
	}
	return walk;
}

/*
 * Hold the memory of the found blocks. If the memory of a block cannot be held now, the walk ends before this block.
 * Return false if a block was lost and removed from the table; the caller then repeats the walk.
 */
static bool walk_hold(struct gpool_kv *kv, struct prefix_walk *walk)
{
	uint32_t block = walk->found ? prefix_table_find(&kv->prefixes, walk->last) : PREFIX_NONE, parent, chunk,
		 held = BITMAP_NONE;
	int error = 0;

	walk->idle = 0;
	for (uint32_t i = walk->found; i-- > 0; block = parent) {
		parent = kv->prefixes.entries[block].parent;
		chunk = block / kv->blocks.chunk_blocks;
		if (chunk != held)
			error = is_pooled(kv, block) ? pooled_use(kv, block) : offer_use(kv, chunk);
		held = chunk;
		if (error == -ENODATA)
			return false;
		walk->idle += !error && !is_pooled(kv, block) && !kv->blocks.refs[block];
		if (!error)
			continue;
		walk->idle = 0;
		walk->found = i;
		walk->last = i ? kv->prefixes.entries[parent].key : walk->root;
	}
	return true;
}

/*
 * Call walk_of() for a sequence that will begin with the found blocks, and hold them. The walk is repeated whenever a
 * chunk was lost.
 */
static struct prefix_walk walk_far(struct gpool_kv *kv, const struct gpool_kv_prefix *prefix, uint32_t tokens)
{
	struct prefix_walk walk;

	do
		walk = walk_of(kv, prefix, tokens, true);
	while (!walk_hold(kv, &walk));
	return walk;
}

int gpool_kv_prefix_find(struct gpool_kv *kv, const struct gpool_kv_prefix *prefix, struct gpool_kv_prefix_found *found)
{
	struct gpool_kv_prefix read;
	struct prefix_walk walk;
	int32_t last;
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	error = prefix_read(kv, &read, prefix);
	if (error)
		return error;
	pthread_mutex_lock(&kv->lock);
	walk = walk_of(kv, &read, read.count, false);
	last = walk.found ? (int32_t)prefix_table_find(&kv->prefixes, walk.last) : -1;
	pthread_mutex_unlock(&kv->lock);
	return copy_struct(found,
		&(struct gpool_kv_prefix_found){
			.blocks = walk.found,
			.tokens = walk.found << kv->token_shift,
			.cached_blocks = walk.idle,
			.last_block = last,
		},
		sizeof(*found));
}

/* ---- sequences that begin with found blocks ---- */

/* Walk backwards along the chain, from each block to its parent. */
void prefix_take(struct gpool_kv *kv, const struct prefix_walk *walk, int32_t *entries)
{
	uint32_t block = walk->found ? prefix_table_find(&kv->prefixes, walk->last) : PREFIX_NONE;

	for (uint32_t i = walk->found; i-- > 0; block = kv->prefixes.entries[block].parent) {
		prefix_ref(kv, block);
		__atomic_store_n(&entries[i], (int32_t)block, __ATOMIC_RELAXED);
	}
}

void prefix_untake(struct gpool_kv *kv, const struct prefix_walk *walk, const int32_t *entries)
{
	for (uint32_t i = walk->found; i-- > 0;)
		prefix_unref(kv, (uint32_t)entries[i]);
}

/* Record for `adaptive` that a request found the first `blocks` blocks of the sequence. */
static void found_again(struct gpool_kv *kv, uint64_t number, uint32_t blocks)
{
	struct kv_sequence *sequence;

	if (!kv->order.eviction || kv_find(kv, number, &sequence))
		return;
	for (uint32_t i = 0; i < blocks; i++)
		if (!is_pooled(kv, kv_entry(kv, sequence, i)))
			block_order_found(&kv->order, kv_entry(kv, sequence, i));
}

/* Count hits and misses in the statistics of the pool. gpool_kv_stats() returns those of the cache. */
static void count_prefix(struct gpool *pool, const struct prefix_walk *walk)
{
	const struct thread_cache *cache = thread_cache_of(pool);

	if (!cache)
		return;
	stat_add_many(cache, &cache->stats->prefix_hits, walk->found);
	stat_add_many(cache, &cache->stats->prefix_misses, walk->count - walk->found);
}

int gpool_kv_prefix_allocate(struct gpool_kv *kv, const struct gpool_kv_request *request,
	const struct gpool_kv_prefix *prefix, uint64_t *sequence, uint32_t *tokens)
{
	struct gpool_kv_request read_request;
	struct gpool_kv_prefix read;
	struct prefix_walk walk;
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	error = request_read(&read_request, request);
	if (!error)
		error = prefix_read(kv, &read, prefix);
	if (error)
		return error;
	pthread_mutex_lock(&kv->lock);
	walk = walk_far(kv, &read, read.count < read_request.tokens ? read.count : read_request.tokens);
	error = sequence_allocate(kv, &read_request, &walk, sequence);
	if (!error) {
		found_again(kv, *sequence, walk.found);
		kv->prefix_hits += walk.found;
		kv->prefix_misses += walk.count - walk.found;
		count_prefix(kv->pool, &walk);
	} else {
		pooled_settle(kv);
		memory_park(kv);
	}
	pthread_mutex_unlock(&kv->lock);
	if (!error && tokens)
		*tokens = walk.found << kv->token_shift;
	return error;
}

/* ---- publish ---- */

/* Sequences that share a block have it at the same index. */
void prefix_replace(struct gpool_kv *kv, uint32_t index, uint32_t from, uint32_t to)
{
	uint32_t left = kv_refs(kv, from);
	struct kv_sequence *sequence;

	RB_FOREACH(sequence, kv_order, &kv->running)
	{
		if (index >= sequence->blocks || kv_entry(kv, sequence, index) != from)
			continue;
		prefix_ref(kv, to);
		kv_set_entry(kv, sequence, index, to);
		prefix_unref(kv, from);
		if (--left == 0)
			break;
	}
}

/* The effects that publishing a block can have. */
enum deed { DEED_NOTHING, DEED_ADD, DEED_SWITCH, DEED_OTHER_TEXT };

static enum deed deed_of(const struct gpool_kv *kv, uint32_t block, struct prefix_key key, uint32_t holder)
{
	if (prefix_table_has(&kv->prefixes, block))
		return prefix_key_same(kv->prefixes.entries[block].key, key) ? DEED_NOTHING : DEED_OTHER_TEXT;
	return holder == PREFIX_NONE ? DEED_ADD : DEED_SWITCH;
}

/*
 * Find the block with this key, and hold its memory. *holder is PREFIX_NONE if none exists. Return: 0, or as
 * range_enter().
 */
static int holder_find(struct gpool_kv *kv, struct prefix_key key, uint32_t *holder)
{
	int error = 0;

	*holder = prefix_table_find(&kv->prefixes, key);
	if (*holder == PREFIX_NONE || kv_refs(kv, *holder))
		return 0;
	error = is_pooled(kv, *holder) ? pooled_use(kv, *holder) : offer_use(kv, *holder / kv->blocks.chunk_blocks);
	if (error != -ENODATA)
		return error;
	*holder = PREFIX_NONE;
	return 0;
}

/* Publish the next block. Return: 0, -EINVAL (it was published with other ids), or as range_enter(). */
static int publish_next(struct gpool_kv *kv, struct kv_sequence *sequence, const struct prefix_walk *walk)
{
	uint32_t index = sequence->keyed, block = kv_entry(kv, sequence, index), holder;
	struct prefix_key key = walk_key(kv, walk, index, sequence->last);
	int error = holder_find(kv, key, &holder);

	if (error)
		return error;
	switch (deed_of(kv, block, key, holder)) {
	case DEED_OTHER_TEXT:
		return fail(-EINVAL, "block %u of the sequence is already published with other ids", index);
	case DEED_ADD:
		prefix_table_add(&kv->prefixes, block, key, index ? kv_entry(kv, sequence, index - 1) : PREFIX_NONE);
		if (!is_pooled(kv, block))
			block_order_key(&kv->order, block, prefix_own(kv, kv->prefixes.entries[block].parent), key.low);
		kv->prefix_published++;
		break;
	case DEED_SWITCH:
		prefix_replace(kv, index, block, holder);
		kv->prefix_switched++;
		break;
	case DEED_NOTHING: break;
	}
	sequence->last = key;
	sequence->keyed++;
	return 0;
}

static int publish(struct gpool_kv *kv, struct kv_sequence *sequence, const struct gpool_kv_prefix *prefix)
{
	struct prefix_walk walk = {
		.ids = prefix->ids, .count = prefix->count >> kv->token_shift, .root = root_of(kv, prefix)};
	uint64_t switched = kv->prefix_switched;
	int error = 0;

	losses_follow(kv);
	if (sequence->state != GPOOL_KV_RUNNING)
		return fail_preempted(kv, sequence);
	if (prefix->count > cursor_tokens(atomic_load_explicit(&sequence->cursor, memory_order_relaxed)))
		return fail(-EINVAL, "count is %u; it must not exceed %u, the tokens of the sequence", prefix->count,
			cursor_tokens(atomic_load_explicit(&sequence->cursor, memory_order_relaxed)));
	if (sequence->keyed_epoch != kv->prefix_epoch)
		sequence->keyed = 0;
	if (!sequence->keyed) {
		sequence->root = sequence->last = walk.root;
		sequence->keyed_epoch = kv->prefix_epoch;
	} else if (!prefix_key_same(sequence->root, walk.root)) {
		return fail(-EINVAL, "the sequence is already published for another adapter or with another salt");
	}
	while (!error && sequence->keyed < walk.count)
		error = publish_next(kv, sequence, &walk);
	if (switched != kv->prefix_switched)
		memory_park(kv);
	else
		memory_settle(kv);
	return error ? error : (int)sequence->keyed;
}

int gpool_kv_prefix_publish(struct gpool_kv *kv, uint64_t sequence, const struct gpool_kv_prefix *prefix)
{
	struct gpool_kv_prefix read;
	struct kv_sequence *found;
	int result;

	if (!kv->pool->alive)
		return -ECHILD;
	result = prefix_read(kv, &read, prefix);
	if (result)
		return result;
	pthread_mutex_lock(&kv->lock);
	result = kv_find(kv, sequence, &found);
	if (!result)
		result = publish(kv, found, &read);
	pthread_mutex_unlock(&kv->lock);
	return result;
}

/* Share the chunks of the sequence in order, up to the first one that is neither whole nor already shared. */
static int share(struct gpool_kv *kv, struct kv_sequence *sequence)
{
	uint32_t index = 0;
	int error = 0;

	losses_follow(kv);
	if (sequence->state != GPOOL_KV_RUNNING)
		return fail_preempted(kv, sequence);
	if (sequence->keyed_epoch != kv->prefix_epoch)
		sequence->keyed = 0;
	while (!error && index < sequence->keyed) {
		if (is_pooled(kv, kv_entry(kv, sequence, index)))
			index++;
		else
			error = pooled_share(kv, sequence, index);
	}
	memory_park(kv);
	return error && error != -ENOENT ? error : (int)index;
}

int gpool_kv_prefix_share(struct gpool_kv *kv, uint64_t sequence, int timeout_ms)
{
	struct kv_sequence *found;
	struct gpool_fence fence;
	int result;

	if (!kv->pool->alive)
		return -ECHILD;
	if (!kv->pooled)
		return fail(-EOPNOTSUPP, "the cache was created without pool_blocks");
	if (timeout_ms < -1)
		return fail_timeout(timeout_ms);
	/* Wait for queued work first: other processes must not see unfinished content. */
	result = gpool_fence_record(kv->pool, kv->stream, &fence);
	if (!result)
		result = gpool_fence_wait(kv->pool, fence, timeout_ms);
	if (result)
		return result;
	pthread_mutex_lock(&kv->lock);
	result = kv_find(kv, sequence, &found);
	if (!result)
		result = ranges_enter(kv->pool->ranges);
	if (!result) {
		result = share(kv, found);
		ranges_leave(kv->pool->ranges);
	}
	pthread_mutex_unlock(&kv->lock);
	return result;
}

int gpool_kv_prefix_evict(struct gpool_kv *kv, uint32_t blocks)
{
	if (!kv->pool->alive)
		return -ECHILD;
	if (!kv->prefixes.entries)
		return fail_no_prefixes();
	pthread_mutex_lock(&kv->lock);
	offer_look(kv);
	if (blocks > kv->blocks.cached_blocks)
		blocks = kv->blocks.cached_blocks;
	prefix_evict(kv, blocks);
	memory_park(kv);
	pthread_mutex_unlock(&kv->lock);
	return (int)blocks;
}

/* ---- checks ---- */

/*
 * Count a block as a child of its parent. A parent in a place is not in the eviction order; it is counted when all its
 * children were counted.
 */
static void stands(const struct gpool_kv *kv, uint32_t *children, uint32_t block)
{
	for (;;) {
		uint32_t parent = kv->prefixes.entries[block].parent;

		if (parent == PREFIX_NONE || ++children[parent] != kv->prefixes.entries[parent].children ||
			!is_pooled(kv, parent) || kv_refs(kv, parent))
			return;
		block = parent;
	}
}

/*
 * Check the tree of `adaptive`. It must contain each own block with a key as a child of its nearest own ancestor. A
 * block must be a candidate if and only if it is cached and no own block follows it.
 */
static bool tree_check(const struct gpool_kv *kv)
{
	const struct block_order *order = &kv->order;
	struct eviction_stats stats;
	uint32_t count = 0;

	for (uint32_t block = 0; block < kv->blocks.blocks; block++) {
		uint32_t parent, node = order->nodes[block];

		if (!prefix_table_has(&kv->prefixes, block))
			continue;
		count++;
		parent = prefix_own(kv, kv->prefixes.entries[block].parent);
		if (order->owners[node] != block ||
			eviction_parent(order->eviction, node) !=
				(parent == PREFIX_NONE ? EVICTION_NONE : order->nodes[parent]))
			return false;
		if (eviction_is_candidate(order->eviction, node) !=
			(!kv->blocks.refs[block] && !eviction_children(order->eviction, node)))
			return false;
	}
	eviction_get_stats(order->eviction, &stats);
	return stats.kept == count;
}

/* Check that the list contains each cached block with a key exactly once, after all its children. */
static bool cached_check(const struct gpool_kv *kv)
{
	uint32_t *children = calloc(kv_block_count(kv), sizeof(*children)); /* children before the block in the list */
	uint32_t count = 0, cached = 0, end = kv->blocks.blocks;
	bool right = children != NULL;

	for (uint32_t block = 0; block < kv->blocks.blocks; block++)
		cached += prefix_table_has(&kv->prefixes, block) && !kv->blocks.refs[block];
	for (uint32_t block = end; right && block < kv_block_count(kv); block++)
		if (prefix_table_has(&kv->prefixes, block) && !kv_refs(kv, block) &&
			!kv->prefixes.entries[block].children)
			stands(kv, children, block);
	if (kv->order.eviction) {
		free(children);
		return right && cached == kv->blocks.cached_blocks && tree_check(kv);
	}
	for (uint32_t block = kv->order.lru.links[end].after; right && block != end;
		block = kv->order.lru.links[block].after) {
		const struct prefix_entry *entry = &kv->prefixes.entries[block];

		right = prefix_table_has(&kv->prefixes, block) && !kv->blocks.refs[block] &&
			entry->children == children[block] && ++count <= cached;
		if (right)
			stands(kv, children, block);
	}
	free(children);
	return right && count == cached && cached == kv->blocks.cached_blocks;
}

/* Check, in every running sequence, that the parent of each block with a key is the block at the preceding index. */
static bool chains_check(struct gpool_kv *kv)
{
	struct kv_sequence *sequence;

	RB_FOREACH(sequence, kv_order, &kv->running)
	for (uint32_t i = 0; i < sequence->blocks; i++) {
		uint32_t block = kv_entry(kv, sequence, i);
		uint32_t before = i ? kv_entry(kv, sequence, i - 1) : PREFIX_NONE;

		if (prefix_table_has(&kv->prefixes, block) && kv->prefixes.entries[block].parent != before)
			return false;
	}
	return true;
}

bool prefix_check(struct gpool_kv *kv)
{
	return !kv->prefixes.entries || (prefix_table_check(&kv->prefixes) && cached_check(kv) && chains_check(kv));
}
