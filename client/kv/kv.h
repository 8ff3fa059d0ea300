/*
 * kv.h - the state of a paged KV cache in its process. docs/internals/kv.md states the rules. Internal to libgpool.
 *
 * A sequence has one row in `sequences`, in `tables` and in the device's tables. Its number consists of the row and a
 * generation that is unique among the sequences of this process.
 *
 * sequence->cursor is the only word that may be changed without kv->lock: by an append, if the sequence has room.
 *
 *   bits 0..23 number of tokens | 24..47 its limit for appends without the lock | 48..63 low bits of the generation
 *
 * A function that changes a sequence under the lock first sets the limit to the number of tokens (cursor_stop()), so
 * that no other thread can append. At the end it sets a new limit (cursor_go()): the end of the last block, or the
 * number of tokens if the block must be copied before the next token.
 */
#ifndef GPOOL_CLIENT_KV_KV_H
#define GPOOL_CLIENT_KV_KV_H

#include "client/kv/block_order.h"
#include "client/kv/block_pool.h"
#include "client/kv/budget.h"
#include "client/kv/prefix_table.h"
#include "client/core/pool.h"

#include <bsd/sys/tree.h>
#include <sys/queue.h>

enum {
	KV_TOKENS_BITS = 24,
	/* chosen: limit for chunks that are shared with other processes; 128 MB with handles of 2 MB */
	KV_CHUNK_HANDLES_MAX = 64,
	KV_STAGES = 8,            /* parts of the staging memory, each with a fence */
	KV_STAGE_ENTRIES = 16384, /* chosen: 64 KiB, two rows of the default length */
	/* chosen: maximum number of copies from one stage, one for each changed sequence */
	KV_STAGE_PIECES = 256,
};

struct kv_sequence {
	_Alignas(64) _Atomic uint64_t cursor;
	_Atomic uint32_t generation; /* 0: the row is free. Written under the lock, read without it */
	uint32_t state;              /* enum gpool_kv_state; this field and all below are protected by the lock */
	uint32_t blocks;             /* number of blocks; preempted: number at the preemption */
	uint32_t priority;
	uint32_t dirty_first, dirty_end; /* range of changed entries that are not yet copied to the device's table */
	uint64_t arrival;
	uint64_t owner_id;
	/* if keyed > 0: the root of the sequence's chain, and the key of block keyed - 1 */
	struct prefix_key root, last;
	uint32_t keyed; /* the keys of this number of blocks, counted from the first, are known */
	uint32_t keyed_epoch;
	struct kv_saved *saved;         /* preempted: the saved content, or NULL */
	struct gpool_fence loss_known;  /* if lossy: when this fence is signaled, `losses` contains the error */
	bool lossy;                     /* the last offload converted to int8 */
	RB_ENTRY(kv_sequence) order;    /* in the tree of the running or the preempted sequences */
	TAILQ_ENTRY(kv_sequence) dirty; /* in the list while dirty_first < dirty_end */
};

RB_HEAD(kv_order, kv_sequence); /* lowest priority first; within a priority, latest arrival first */

struct kv_stage {
	int32_t *entries;         /* [KV_STAGE_ENTRIES] registered */
	struct gpool_fence fence; /* signaled when the copies from the stage are done */
	bool open;                /* no fence could be recorded after the copies */
};

struct gpool_kv {
	struct gpool *pool;
	struct gpool_kv *next, **link; /* list of the pool's caches, protected by kvs_lock */

	/* Written only by gpool_kv_create(). */
	struct gpool_kv_shape shape;
	uint32_t stream;
	uint32_t token_shift; /* log2 of block_tokens */
	uint64_t block_bytes, chunk_bytes;
	uint32_t chunk_pages;
	uint32_t max_sequences;
	uint32_t columns; /* number of entries in each table */
	uint32_t watermark;
	bool bf16; /* elements of two bytes are bfloat16, not float16 */
	bool zero; /* fill blocks with zeros when a sequence gets them */
	bool int8; /* blocks have codes and scales: resident.h */
	uint64_t address, table_address;
	uint8_t model[PREFIX_MODEL_BYTES];
	uint32_t cached_most;                    /* maximum number of cached blocks */
	int32_t *tables;                         /* [max_sequences][columns]; allocated on first use */
	struct kv_sequence *sequences;           /* [max_sequences] */
	struct gpool_range *range, *table_range; /* NULL: destroyed */

	/*
	 * Protects the fields below, except those after sync_lock. It is held during calls for ranges and copies, and
	 * is therefore acquired before all locks of pool.h, but after sync_lock.
	 */
	pthread_mutex_t lock;
	struct block_pool blocks;
	struct prefix_table prefixes; /* without entries if GPOOL_KV_PREFIXES is not set */
	struct block_order order;     /* eviction order of the blocks that have a key */
	struct pooled *pooled;        /* pooled.h; NULL: no chunks are shared with other processes */
	uint32_t prefix_epoch;        /* range->losses at the last check */
	uint64_t taken_known;         /* offer.h: times_taken() at the last check */
	struct bitmap lost;           /* used by offer.c during a call, like `marks` */
	uint8_t *marks;               /* [kv_block_count()] */
	struct bitmap rows;           /* free rows */
	struct kv_order running, preempted;
	uint32_t running_count, preempted_count;
	TAILQ_HEAD(, kv_sequence) dirty;
	uint64_t arrivals;
	struct budget packing;
	struct quantise_error *losses; /* [max_sequences + 1], registered; NULL: no sequence was ever compressed */
	struct kv_host *host;          /* host memory for preempted sequences; NULL: none */
	uint64_t offload_saves, offload_loads;
	struct gpool_kv_need shortage;
	uint64_t allocations, forks, frees, preemptions, resumes, refusals, block_copies, table_bytes;
	uint64_t prefix_hits, prefix_misses, prefix_published, prefix_switched, prefix_evicted, prefix_lost;
	uint64_t pool_shared, pool_found;

	pthread_mutex_t sync_lock; /* serializes gpool_kv_sync(); acquired before `lock` */
	struct kv_stage stages[KV_STAGES];
	uint32_t stage; /* index of the stage to use next */
	size_t staging_bytes;
	bool registered;
};

RB_PROTOTYPE(kv_order, kv_sequence, order, kv_sequence_compare)
int kv_sequence_compare(const struct kv_sequence *a, const struct kv_sequence *b);

/*
 * kv_close_all() - free the caches of a pool that is being closed, after all GPU work has finished. Their ranges are
 * closed separately.
 */
void kv_close_all(struct gpool *pool);

/* ---- cursors ---- */

#define KV_TOKENS_MAX ((UINT32_C(1) << KV_TOKENS_BITS) - 1)

static inline uint32_t cursor_tokens(uint64_t cursor)
{
	return (uint32_t)cursor & KV_TOKENS_MAX;
}

static inline uint32_t cursor_limit(uint64_t cursor)
{
	return (uint32_t)(cursor >> KV_TOKENS_BITS) & KV_TOKENS_MAX;
}

static inline uint64_t cursor_make(uint32_t generation, uint32_t limit, uint32_t tokens)
{
	return (uint64_t)generation << (2 * KV_TOKENS_BITS) | (uint64_t)limit << KV_TOKENS_BITS | tokens;
}

/* ---- sequences; the callers hold the lock ---- */

static inline uint32_t kv_row(const struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	return (uint32_t)(sequence - kv->sequences);
}

/* kv_number() - return the number by which programs refer to the sequence. */
static inline uint64_t kv_number(const struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	return (uint64_t)atomic_load_explicit(&sequence->generation, memory_order_relaxed) << 32 | kv_row(kv, sequence);
}

static inline int32_t *kv_table(const struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	return kv->tables + (size_t)kv_row(kv, sequence) * kv->columns;
}

/* Return an entry of the table. An append reads entries without the lock. */
static inline uint32_t kv_entry(const struct gpool_kv *kv, const struct kv_sequence *sequence, uint32_t index)
{
	return (uint32_t)__atomic_load_n(&kv_table(kv, sequence)[index], __ATOMIC_RELAXED);
}

static inline uint32_t kv_blocks_for(const struct gpool_kv *kv, uint32_t tokens)
{
	return (uint32_t)(((uint64_t)tokens + (UINT32_C(1) << kv->token_shift) - 1) >> kv->token_shift);
}

/* kv_find() - find a sequence by its number. Return: 0, -EINVAL, -ESTALE. */
int kv_find(const struct gpool_kv *kv, uint64_t number, struct kv_sequence **sequence);

/* kv_set_entry() - set an entry and mark it for the copy to the device. */
void kv_set_entry(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t index, uint32_t block);
/* kv_clean() - clear the sequence's range of changed entries. */
void kv_clean(struct gpool_kv *kv, struct kv_sequence *sequence);

/* cursor_stop() - prevent appends without the lock until cursor_go() is called. Return the number of tokens. */
uint32_t cursor_stop(struct kv_sequence *sequence);
void cursor_go(const struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t tokens);

/*
 * kv_grow() - append `blocks` blocks, which memory_get() has provided.
 * kv_zero() - with GPOOL_KV_ZERO: queue fills of the sequence's blocks from index `first` on. Return: 0, or as
 * gpool_fill().
 */
void kv_grow(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t blocks);
int kv_zero(struct gpool_kv *kv, const struct kv_sequence *sequence, uint32_t first);
/*
 * kv_shrink() - release all blocks of a sequence. Return how many of them became free or cached. The memory of free
 * blocks stays committed until memory_park() is called.
 */
uint32_t kv_shrink(struct gpool_kv *kv, struct kv_sequence *sequence);

/*
 * sequence_append() - gpool_kv_append(). After an error, memory that it got stays in empty chunks until memory_park()
 * is called.
 */
int sequence_append(struct gpool_kv *kv, uint64_t number, uint32_t tokens, uint64_t *slot);

/* ---- memory.c; the callers hold the lock ---- */

/* memory_shape() - compute the sizes of a block and a chunk from a shape. Return: 0, -EINVAL. */
int memory_shape(struct gpool_kv *kv, uint32_t *chunk_blocks);

/*
 * memory_get() - provide `blocks` free blocks in held chunks; evicts cached blocks if necessary.
 * Return: 0, or as gpool_range_commit(). On an error, cached content may be lost: chunks that the agent has taken and,
 * if these made it impossible to evict enough, blocks evicted before.
 *
 * memory_try() - the same, but after an error, memory that it got stays in empty chunks until memory_park() is called.
 */
int memory_get(struct gpool_kv *kv, uint32_t blocks);
int memory_try(struct gpool_kv *kv, uint32_t blocks);
static inline bool is_shortage(int error)
{
	return error == -ENOSPC || error == -EDQUOT;
}
/* memory_get_chunk() - provide memory for an empty chunk. Return false if the pool has none. */
bool memory_get_chunk(struct gpool_kv *kv);
/*
 * memory_park() - free the memory of chunks without blocks in use or cached, and offer the chunks that have only cached
 * blocks (offer.h). Both take effect after the work that is queued on the stream. The next call repeats steps that are
 * not possible now.
 */
void memory_park(struct gpool_kv *kv);
/*
 * memory_settle() - call memory_park() if chunks were reclaimed but not used, or lost their cached blocks. Called at
 * the end of public functions.
 */
void memory_settle(struct gpool_kv *kv);
/*
 * memory_blocks() - return the number of blocks that the cache can use without evicting content elsewhere; lost blocks
 * are excluded if offer_look() was called before.
 * memory_limit() - return the number of blocks for which the whole pool has memory.
 */
uint32_t memory_blocks(const struct gpool_kv *kv);
uint32_t memory_limit(const struct gpool_kv *kv);
/*
 * memory_spare_pages() - return the number of pages that are available without an eviction, in addition to those for
 * `blocks` more blocks.
 */
uint64_t memory_spare_pages(const struct gpool_kv *kv, uint32_t blocks);
static inline uint64_t memory_address(const struct gpool_kv *kv, uint32_t block)
{
	uint32_t per_chunk = kv->blocks.chunk_blocks;

	return kv->address + block / per_chunk * kv->chunk_bytes + block % per_chunk * kv->block_bytes;
}

/* ---- admission.c ---- */

/*
 * kv_admit() - check by numbers of blocks whether a sequence fits; memory_get() may still fail. Other sequences already
 * have `borrowed` of its blocks. Return: 0, -ENOSPC, -EFBIG (more than a sequence may have, or than the cache or the
 * pool has even when empty). The caller holds the lock.
 */
int kv_admit(const struct gpool_kv *kv, uint32_t blocks, uint32_t borrowed, uint32_t watermark);

/* fail_preempted() - return -EAGAIN, with a text, for a sequence that is preempted. */
int fail_preempted(const struct gpool_kv *kv, const struct kv_sequence *sequence) __attribute__((noinline, cold));
/* kv_fits() - check that the cache would have enough blocks if no other sequence had any. Return: 0, -EFBIG. */
int kv_fits(struct gpool_kv *kv, uint32_t blocks);
/* kv_refuse() - count a refusal because `blocks` blocks are missing, and set the error text. Return `error`. */
int kv_refuse(struct gpool_kv *kv, uint32_t blocks, int error);

/*
 * copy_struct() - fill a caller's struct, which may be of another version. Fields that the caller's version lacks are
 * omitted; fields that this version lacks are zeroed. Return: 0, -EINVAL (its size is invalid).
 */
int copy_struct(void *to, const void *from, uint32_t known);

#endif
