/*
 * pooled.c - chunks that are shared with other processes. See pooled.h.
 *
 * The name and the metadata of an object are not trusted. A block of an object gets a key only if a lookup of this
 * process computed the same key from its own token ids, block by block, and the metadata match. A process may publish
 * content that does not match its key. This affects only sessions of its own trust domain, because the agent provides
 * no objects of other domains.
 */
#include "client/kv/pooled.h"

#include "client/kv/offer.h"
#include "client/kv/prefix.h"
#include "client/object/object.h"
#include "client/core/last_error.h"
#include "client/core/stream.h"
#include "client/vm/elastic.h"
#include "client/core/window.h"
#include "shm/object_names.h"
#include "shm/plural.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METADATA_KEY "kv-prefix"
#define METADATA_MAGIC UINT64_C(0x31786966657270) /* "prefix1" */

enum { NAME_BYTES = sizeof(KV_PREFIX) + 32 };

/* The metadata of an object: this struct, followed by the keys of its blocks in order. */
struct metadata {
	uint64_t magic;
	uint64_t block_bytes, chunk_bytes;
	uint32_t block_tokens, chunk_blocks;
	struct prefix_key keys[];
};

static size_t metadata_bytes(const struct gpool_kv *kv)
{
	return sizeof(struct metadata) + kv->blocks.chunk_blocks * sizeof(struct prefix_key);
}

static void name_make(char name[static NAME_BYTES], struct prefix_key key)
{
	snprintf(name, NAME_BYTES, KV_PREFIX "%016" PRIx64 "%016" PRIx64, key.high, key.low);
}

/* ---- places ---- */

static uint32_t place_block(const struct gpool_kv *kv, const struct pooled_place *place)
{
	return kv->blocks.blocks + (uint32_t)(place - kv->pooled->places) * kv->blocks.chunk_blocks;
}

static struct pooled_place *place_of(const struct gpool_kv *kv, uint32_t block)
{
	return &kv->pooled->places[(block - kv->blocks.blocks) / kv->blocks.chunk_blocks];
}

static uint64_t place_address(const struct gpool_kv *kv, const struct pooled_place *place)
{
	return memory_address(kv, place_block(kv, place));
}

static struct pooled_place *place_free(const struct gpool_kv *kv)
{
	for (uint32_t i = 0; i < kv->pooled->count; i++)
		if (!kv->pooled->places[i].object && !kv->pooled->places[i].lost)
			return &kv->pooled->places[i];
	return NULL;
}

int pooled_open(struct gpool_kv *kv, uint32_t places)
{
	struct pooled *pooled;

	if (!places)
		return 0;
	kv->pooled = pooled = calloc(1, sizeof(*pooled));
	if (!pooled)
		return -ENOMEM;
	pooled->count = places;
	pooled->places = calloc(places, sizeof(*pooled->places));
	pooled->refs = calloc((size_t)places * kv->blocks.chunk_blocks, sizeof(*pooled->refs));
	pooled->given = calloc(kv->blocks.chunks, sizeof(*pooled->given));
	pooled->refused = calloc(kv->pool->header->object_count, sizeof(*pooled->refused));
	return pooled->places && pooled->refs && pooled->given && pooled->refused ? 0 : -ENOMEM;
}

/* Mark a place as lost: its addresses are not used again. */
static void place_lose(struct gpool_kv *kv, struct pooled_place *place)
{
	pool_log(kv->pool, POOL_LOG_ERROR, "cannot unmap a chunk of a KV cache: %s; its addresses are lost",
		gpu_error_text());
	place->lost = true;
}

/* Unmap and close a place. Return: 0, -EBUSY (GPU work that the program queued on its own streams may still use it). */
static int place_close(struct gpool_kv *kv, struct pooled_place *place)
{
	int error = object_mapping_unmap(place->object);

	if (error == -EBUSY)
		return error;
	if (error)
		place_lose(kv, place);
	/* The place is still pinned only if the cache is being destroyed, after all work of its sequences is done. */
	if (place->pinned)
		object_unpin(place->object, GPOOL_FENCE_NONE);
	/* If the close fails, the object is closed when the session ends. */
	gpool_object_close(place->object);
	*place = (struct pooled_place){.lost = place->lost};
	kv->pooled->used--;
	return 0;
}

int pooled_end(struct gpool_kv *kv)
{
	int error = 0;

	for (uint32_t i = 0; kv->pooled && i < kv->pooled->count && !error; i++)
		if (kv->pooled->places[i].object)
			error = place_close(kv, &kv->pooled->places[i]);
	return error;
}

void pooled_close(struct gpool_kv *kv)
{
	struct pooled *pooled = kv->pooled;

	if (!pooled)
		return;
	for (uint32_t i = 0; pooled->places && i < pooled->count; i++)
		if (pooled->places[i].object)
			object_mapping_unmap(pooled->places[i].object);
	free(pooled->places);
	free(pooled->refs);
	free(pooled->given);
	free(pooled->refused);
	free(pooled);
	kv->pooled = NULL;
}

/* ---- leave a place ---- */

/* Return true if blocks outside the place follow one of its blocks. */
static bool is_followed(const struct gpool_kv *kv, const struct pooled_place *place)
{
	const struct prefix_entry *entries = &kv->prefixes.entries[place_block(kv, place)];

	for (uint32_t i = 0; i < kv->blocks.chunk_blocks; i++) {
		bool next = i + 1 < kv->blocks.chunk_blocks && entries[i + 1].parent == place_block(kv, place) + i;

		if (entries[i].parent != PREFIX_NO_KEY && entries[i].children > next)
			return true;
	}
	return false;
}

/* Begin to leave a place. Return the block that its first block follows. */
static uint32_t place_leave(struct gpool_kv *kv, struct pooled_place *place)
{
	uint32_t first = place_block(kv, place), before = PREFIX_NONE;

	for (uint32_t i = kv->blocks.chunk_blocks; i-- > 0;) {
		if (!prefix_table_has(&kv->prefixes, first + i))
			continue;
		before = kv->prefixes.entries[first + i].parent;
		prefix_table_remove(&kv->prefixes, first + i);
	}
	place->leaving = true;
	place->fenced = false;
	return before;
}

/* Leave the block's place, then the place that this place followed, and so on. */
static void places_leave(struct gpool_kv *kv, uint32_t block)
{
	while (block < PREFIX_NO_KEY && is_pooled(kv, block)) {
		struct pooled_place *place = place_of(kv, block);

		if (!place->object || place->leaving || place->refs || is_followed(kv, place))
			return;
		block = place_leave(kv, place);
	}
}

void pooled_ref(struct gpool_kv *kv, uint32_t block)
{
	kv->pooled->refs[block - kv->blocks.blocks]++;
	place_of(kv, block)->refs++;
}

void pooled_unref(struct gpool_kv *kv, uint32_t block)
{
	kv->pooled->refs[block - kv->blocks.blocks]--;
	if (--place_of(kv, block)->refs == 0)
		places_leave(kv, block);
}

void pooled_unfollowed(struct gpool_kv *kv, uint32_t block)
{
	places_leave(kv, block);
}

void pooled_settle(struct gpool_kv *kv)
{
	for (uint32_t i = 0; kv->pooled && i < kv->pooled->count; i++)
		places_leave(kv, place_block(kv, &kv->pooled->places[i]));
}

/* Record one fence for all places that need one now. If the stream was closed, its work is done. */
static bool fence_get(struct gpool_kv *kv, struct gpool_fence *all)
{
	int error = all->value ? 0 : gpool_fence_record(kv->pool, kv->stream, all);

	return !error || error == -EINVAL;
}

/* Return true if the entry's fence is signaled. If the entry has no fence, record one. */
static bool is_behind(struct gpool_kv *kv, bool *fenced, struct gpool_fence *own, struct gpool_fence *all)
{
	if (!*fenced) {
		if (!fence_get(kv, all))
			return false;
		*own = *all;
		*fenced = true;
	}
	return gpool_fence_done(kv->pool, *own) > 0;
}

void pooled_park(struct gpool_kv *kv)
{
	struct gpool_fence fence = {0};
	struct pooled *pooled = kv->pooled;

	/*
	 * Go from the last place to the first. A chunk usually follows a chunk in an earlier place, so the agent sees a
	 * chunk released before the chunk that it follows.
	 */
	for (uint32_t i = pooled ? pooled->count : 0; i-- > 0;) {
		struct pooled_place *place = &pooled->places[i];

		if (place->pinned && !place->refs && fence_get(kv, &fence))
			place->pinned = object_unpin(place->object, fence) == -ENOMEM;
		if (place->object && place->leaving && is_behind(kv, &place->fenced, &place->fence, &fence))
			place_close(kv, place);
	}
	for (uint32_t i = 0; pooled && i < pooled->given_count;) {
		struct pooled_given *given = &pooled->given[i];

		if (!is_behind(kv, &given->fenced, &given->fence, &fence)) {
			i++;
			continue;
		}
		block_pool_return(&kv->blocks, given->chunk);
		*given = pooled->given[--pooled->given_count];
	}
}

/* ---- objects that the agent has evicted ---- */

static void lost_add(struct gpool_kv *kv, const struct pooled_place *place)
{
	uint32_t chunk = place_block(kv, place) / kv->blocks.chunk_blocks;

	if (!bitmap_has(&kv->lost, chunk))
		bitmap_add(&kv->lost, chunk);
}

int pooled_use(struct gpool_kv *kv, uint32_t block)
{
	struct pooled_place *place = place_of(kv, block);
	int error = place->pinned ? 0 : object_pin(place->object);

	if (error == -ESTALE) {
		lost_add(kv, place);
		offer_drop_lost(kv);
		return -ENODATA;
	}
	place->pinned = !error;
	return error;
}

/*
 * While the agent checks whether an object is pinned, it is undecided whether the object will be evicted. In that case
 * the next call repeats the check.
 */
void pooled_lost(struct gpool_kv *kv)
{
	struct pooled *pooled = kv->pooled;
	uint64_t evictions;
	bool known = true;

	if (!pooled || !pooled->used)
		return;
	evictions = atomic_load_explicit(&kv->pool->header->counters[POOL_COUNT_EVICTIONS], memory_order_acquire);
	if (evictions == pooled->evictions_known)
		return;
	for (uint32_t i = 0; i < pooled->count; i++) {
		const struct pooled_place *place = &pooled->places[i];

		if (!place->object || place->leaving || place->pinned)
			continue;
		known &= atomic_load_explicit(&kv->pool->segment.objects[place->object->number].state,
				 memory_order_relaxed) == OBJECT_CURRENT;
		if (object_is_gone(place->object))
			lost_add(kv, place);
	}
	if (known)
		pooled->evictions_known = evictions;
}

/* ---- the directory of objects ---- */

/*
 * Find the record of the pool's object that begins with this key. Return false if it does not exist or cannot be used
 * by this cache.
 */
static bool directory_find(const struct gpool_kv *kv, const char *name, struct gpool_object_info *info)
{
	info->size = sizeof(*info);
	return object_look_up(kv->pool, name, info) && info->memory_class == GPOOL_OBJECT_EPHEMERAL &&
		info->pages == kv->chunk_pages && kv->pooled->refused[info->number] != info->version;
}

/* Record that this version cannot be used. Versions are immutable, so it need not be tried again. */
static void directory_refuse(struct gpool_kv *kv, const struct gpool_object_info *info)
{
	kv->pooled->refused[info->number] = info->version;
}

/* ---- objects ---- */

/* Return the object's keys if its content matches its name and fits this cache, otherwise NULL. */
static const struct prefix_key *object_keys(
	const struct gpool_kv *kv, struct gpool_object *object, struct prefix_key key)
{
	const struct manifest_header *header = object->manifest.header;
	const struct metadata *metadata;
	const void *value;
	size_t bytes;

	if (object->memory_class != GPOOL_OBJECT_EPHEMERAL || header->pages != kv->chunk_pages ||
		gpool_object_get(object, METADATA_KEY, &value, &bytes) || bytes != metadata_bytes(kv))
		return NULL;
	metadata = value;
	if (metadata->magic != METADATA_MAGIC || metadata->block_bytes != kv->block_bytes ||
		metadata->chunk_bytes != kv->chunk_bytes || metadata->block_tokens != kv->shape.block_tokens ||
		metadata->chunk_blocks != kv->blocks.chunk_blocks || !prefix_key_same(metadata->keys[0], key))
		return NULL;
	for (uint32_t i = 0; i < header->runs; i++)
		if (object->manifest.runs[i].first % handle_pages(kv->pool) ||
			object->manifest.runs[i].count % handle_pages(kv->pool))
			return NULL;
	return metadata->keys;
}

/* Map the handles side by side, read-only. Return: 0, or -ENOMEM, -EPIPE with nothing mapped. */
static int place_map(struct gpool_kv *kv, struct pooled_place *place, const uint32_t *pages, uint32_t handles)
{
	uint64_t begin = place_address(kv, place), at = begin;
	int error = 0;

	for (uint32_t i = 0; i < handles && !error; i++) {
		error = window_import(kv->pool, pages[i], handle_pages(kv->pool));
		if (!error)
			error = window_map_at(kv->pool, pages[i], 1, &at);
	}
	if (!error)
		error = gpu_access(kv->pool->gpu, begin, kv->chunk_bytes, GPU_ACCESS_READ);
	if (error) {
		pool_log(kv->pool, POOL_LOG_ERROR, "cannot map %u handle%s that a KV cache shares: %s", handles,
			plural(handles), gpu_error_text());
		if (error != -EPIPE)
			error = fail(-ENOMEM, "%u handle%s of shared blocks cannot be mapped: %s", handles,
				plural(handles), gpu_error_text());
		if (at > begin && gpu_unmap(kv->pool->gpu, begin, at - begin))
			place_lose(kv, place);
		return error;
	}
	window_keep_from_child(kv->pool, begin, kv->chunk_bytes);
	return 0;
}

static uint32_t chunk_handles(const struct gpool_kv *kv)
{
	return kv->chunk_pages / handle_pages(kv->pool);
}

static int object_place_map(struct gpool_kv *kv, struct pooled_place *place, struct gpool_object *object)
{
	bool stuck = false;
	int error = object_map_at(object, place_address(kv, place), &stuck);

	if (stuck)
		place_lose(kv, place);
	return error;
}

static struct pooled_place *place_used(
	struct gpool_kv *kv, struct pooled_place *place, struct gpool_object *object, const struct prefix_key *keys)
{
	object_mapped_at(object, place_address(kv, place), kv->chunk_bytes);
	*place = (struct pooled_place){.object = object, .keys = keys};
	kv->pooled->used++;
	return place;
}

/* Reuse the place of this chunk if it is being left. */
static struct pooled_place *place_again(struct gpool_kv *kv, struct prefix_key key)
{
	for (uint32_t i = 0; kv->pooled->used && i < kv->pooled->count; i++) {
		struct pooled_place *place = &kv->pooled->places[i];

		if (place->object && place->leaving && prefix_key_same(place->keys[0], key) &&
			!object_is_gone(place->object)) {
			place->leaving = false;
			return place;
		}
	}
	return NULL;
}

/*
 * Map the pool's chunk that begins with this key. Its blocks get no keys in the table yet. Return NULL if no usable
 * chunk exists.
 */
static struct pooled_place *place_open(struct gpool_kv *kv, struct prefix_key key)
{
	struct gpool_object_open_options options = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	struct pooled_place *place = place_again(kv, key);
	struct gpool_object_info info;
	const struct prefix_key *keys;
	struct gpool_object *object;
	char name[NAME_BYTES];
	int error;

	if (place)
		return place;
	name_make(name, key);
	if (!directory_find(kv, name, &info))
		return NULL;
	pooled_park(kv);
	place = place_free(kv);
	if (!place)
		return NULL;
	options.version = info.version;
	error = object_open(kv->pool, name, &options, false, &object);
	if (error == -ENOENT || error == -EACCES || error == -EPROTO)
		directory_refuse(kv, &info);
	if (error)
		return NULL;
	keys = object_keys(kv, object, key);
	if (keys && !object_place_map(kv, place, object))
		return place_used(kv, place, object, keys);
	if (!keys) {
		pool_log(kv->pool, POOL_LOG_WARNING,
			"object '%s' is not a prefix in the shape of this KV cache and is not used", name);
		directory_refuse(kv, &info);
	}
	gpool_object_close(object);
	return NULL;
}

uint32_t pooled_find(struct gpool_kv *kv, struct prefix_key key, uint32_t before)
{
	struct pooled_place *place;
	uint32_t block;

	if (!kv->pooled)
		return PREFIX_NONE;
	/* The next block of the same chunk is already mapped. */
	if (before != PREFIX_NONE && is_pooled(kv, before)) {
		uint32_t at = (before - kv->blocks.blocks) % kv->blocks.chunk_blocks + 1;

		if (at < kv->blocks.chunk_blocks && !prefix_table_has(&kv->prefixes, before + 1) &&
			prefix_key_same(place_of(kv, before)->keys[at], key)) {
			prefix_table_add(&kv->prefixes, before + 1, key, before);
			return before + 1;
		}
	}
	place = place_open(kv, key);
	if (!place)
		return PREFIX_NONE;
	block = place_block(kv, place);
	prefix_table_add(&kv->prefixes, block, key, before);
	return block;
}

/* ---- publish ---- */

/* Describe the chunk's handles as blocks. */
static int chunk_blocks_of(struct gpool_kv *kv, uint32_t chunk, struct gpool_block *blocks, uint32_t *pages)
{
	const struct elastic_pages all = {.first = chunk * kv->chunk_pages, .count = kv->chunk_pages, .times = 1};

	return elastic_can_give(kv->range->elastic, &all, blocks, pages);
}

static struct metadata *metadata_make(const struct gpool_kv *kv, uint32_t block)
{
	struct metadata *metadata = calloc(1, metadata_bytes(kv));

	if (!metadata)
		return NULL;
	*metadata = (struct metadata){
		.magic = METADATA_MAGIC,
		.block_bytes = kv->block_bytes,
		.chunk_bytes = kv->chunk_bytes,
		.block_tokens = kv->shape.block_tokens,
		.chunk_blocks = kv->blocks.chunk_blocks,
	};
	for (uint32_t i = 0; i < kv->blocks.chunk_blocks; i++)
		metadata->keys[i] = kv->prefixes.entries[block + i].key;
	return metadata;
}

/* Publish a chunk as an object. The chunk is mapped at the place first, because no step may fail after the publish. */
static int chunk_give(
	struct gpool_kv *kv, struct pooled_place *place, uint32_t block, const struct gpool_object *follows)
{
	const struct elastic_pages all = {
		.first = block / kv->blocks.chunk_blocks * kv->chunk_pages, .count = kv->chunk_pages, .times = 1};
	struct gpool_block blocks[KV_CHUNK_HANDLES_MAX];
	uint32_t pages[KV_CHUNK_HANDLES_MAX];
	struct metadata *metadata = metadata_make(kv, block);
	struct gpool_object *object;
	const void *value;
	char name[NAME_BYTES];
	size_t bytes;
	int error = metadata ? chunk_blocks_of(kv, block / kv->blocks.chunk_blocks, blocks, pages) : -ENOMEM;

	if (!error)
		error = place_map(kv, place, pages, chunk_handles(kv));
	if (!error) {
		name_make(name, metadata->keys[0]);
		error = object_give(kv->pool,
			&(struct object_gift){
				.name = name,
				.follows = follows,
				.key = METADATA_KEY,
				.value = metadata,
				.bytes = metadata_bytes(kv),
				.of_library = true,
			},
			blocks, chunk_handles(kv), &object);
		if (error && gpu_unmap(kv->pool->gpu, place_address(kv, place), kv->chunk_bytes))
			place_lose(kv, place);
	}
	free(metadata);
	if (error)
		return error;
	elastic_give(kv->range->elastic, &all);
	gpool_object_get(object, METADATA_KEY, &value, &bytes);
	place_used(kv, place, object, ((const struct metadata *)value)->keys)->pinned = true;
	return 0;
}

/*
 * Replace `count` blocks, from `from` on, by those of a place, in all sequences that have them. `sequence` has them
 * from `index` on.
 */
static void blocks_move(
	struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t index, uint32_t from, uint32_t to, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t next = index + i + 1 < sequence->blocks ? kv_entry(kv, sequence, index + i + 1) : PREFIX_NONE;

		block_order_leave(&kv->order, from + i);
		prefix_table_move(&kv->prefixes, from + i, to + i, next);
		prefix_replace(kv, index + i, from + i, to + i);
	}
}

/* Return true if the sequence has a whole own chunk from `index` on, in order. Its forks then have the same chunk. */
static bool is_whole(const struct gpool_kv *kv, const struct kv_sequence *sequence, uint32_t index)
{
	uint32_t count = kv->blocks.chunk_blocks, block = kv_entry(kv, sequence, index);

	if (is_pooled(kv, block) || block % count || index + count > sequence->keyed)
		return false;
	for (uint32_t i = 0; i < count; i++)
		if (kv_entry(kv, sequence, index + i) != block + i || !prefix_table_has(&kv->prefixes, block + i))
			return false;
	return true;
}

/*
 * Return the number of keys that the sequence's blocks and the place have in common, from the first block of the chunk
 * on.
 */
static uint32_t keys_same(const struct gpool_kv *kv, const struct pooled_place *place, uint32_t block)
{
	uint32_t same = 0;

	while (same < kv->blocks.chunk_blocks &&
		prefix_key_same(kv->prefixes.entries[block + same].key, place->keys[same]))
		same++;
	return same;
}

/*
 * Replace the sequence's blocks by those of the same chunk of another process. Return false if no usable chunk exists.
 */
static bool share_other(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t index)
{
	uint32_t from = kv_entry(kv, sequence, index);
	struct pooled_place *place = place_open(kv, kv->prefixes.entries[from].key);

	if (!place || pooled_use(kv, place_block(kv, place)))
		return false;
	blocks_move(kv, sequence, index, from, place_block(kv, place), keys_same(kv, place, from));
	return true;
}

/* Return the object that the chunk follows, or NULL. The object is open, because the sequence has the block before. */
static const struct gpool_object *object_before(
	const struct gpool_kv *kv, const struct kv_sequence *sequence, uint32_t index)
{
	uint32_t before = index ? kv_entry(kv, sequence, index - 1) : PREFIX_NONE;

	return before != PREFIX_NONE && is_pooled(kv, before) ? place_of(kv, before)->object : NULL;
}

int pooled_share(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t index)
{
	uint32_t from = kv_entry(kv, sequence, index), count = kv->blocks.chunk_blocks;
	struct pooled_place *place;
	int error;

	if (!is_whole(kv, sequence, index))
		return -ENOENT;
	pooled_park(kv);
	if (share_other(kv, sequence, index))
		return 0;
	place = place_free(kv);
	error = place ? chunk_give(kv, place, from, object_before(kv, sequence, index))
		      : fail(-ENOSPC, "no address for another shared block is left, of %u (pool_blocks)",
				kv->pooled->count * count);
	/* Another process has published the name in the meantime, with the same or other content. */
	if (error == -ESTALE)
		return share_other(kv, sequence, index)
			? 0
			: fail(error, "another process has published the same prefix, and this cache cannot use it");
	if (error)
		return error;
	blocks_move(kv, sequence, index, from, place_block(kv, place), count);
	/* The chunk's memory belongs to the object, so it is not decommitted. */
	block_pool_withhold(&kv->blocks, from / count);
	kv->pooled->given[kv->pooled->given_count++] = (struct pooled_given){.chunk = from / count};
	kv->pool_shared += count;
	return 0;
}
