/*
 * kv.h - what a paged KV cache is inside this process. docs/internals/kv.md says what holds. Internal to libgpool.
 *
 * A sequence is a row: of `sequences`, of `tables`, and of the device's tables. Its number is the row and a generation
 * that no two sequences of this process share.
 *
 * sequence->cursor is the one word that is changed without kv->lock, by appending where there is room:
 *
 *   bits 0..23 tokens | 24..47 limit, up to which tokens may be appended by that | 48..63 low bits of the generation
 *
 * Whoever changes a sequence under the lock first sets limit to tokens (cursor_stop()), so that nobody appends
 * meanwhile, and in the end lets go with a limit that fits (cursor_go()): the end of its last block, or the tokens
 * themselves where the next one needs a copy first.
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
	/* of a chunk that is shared with other processes; chosen: 128 MB where handles are 2 MB */
	KV_CHUNK_HANDLES_MAX = 64,
	KV_STAGES = 8,            /* pieces of the staging memory, each with a fence */
	KV_STAGE_ENTRIES = 16384, /* 64 KiB: chosen, two rows of the default length */
	/* copies from one piece; chosen: a batch of that many sequences each of which changed */
	KV_STAGE_PIECES = 256,
};

struct kv_sequence {
	_Alignas(64) _Atomic uint64_t cursor;
	_Atomic uint32_t generation; /* 0: nobody has the row. Written under the lock, read without it */
	uint32_t state;              /* enum gpool_kv_state; this and all below under the lock */
	uint32_t blocks;             /* running: it has; preempted: it had */
	uint32_t priority;
	uint32_t dirty_first, dirty_end; /* entries that the device's table lacks */
	uint64_t arrival;
	uint64_t owner_id;
	/* of its chain, where keyed > 0: what it begins with, and the key of the last keyed block */
	struct prefix_key root, last;
	uint32_t keyed; /* blocks from the first on whose keys are known */
	uint32_t keyed_epoch;
	struct kv_saved *saved;         /* preempted: what is kept of its content; NULL: nothing */
	struct gpool_fence loss_known;  /* lossy: what that lost is in `losses` behind this */
	bool lossy;                     /* when it was last offloaded it was as int8 */
	RB_ENTRY(kv_sequence) order;    /* among the running, or among the preempted */
	TAILQ_ENTRY(kv_sequence) dirty; /* where dirty_first < dirty_end */
};

RB_HEAD(kv_order, kv_sequence); /* lowest priority first, of the same the last to arrive */

struct kv_stage {
	int32_t *entries;         /* [KV_STAGE_ENTRIES] registered */
	struct gpool_fence fence; /* behind the copies from it */
	bool open;                /* that could not be recorded */
};

struct gpool_kv {
	struct gpool *pool;
	struct gpool_kv *next, **link; /* of all of the pool's, under kvs_lock */

	/* Written by gpool_kv_create() alone. */
	struct gpool_kv_shape shape;
	uint32_t stream;
	uint32_t token_shift; /* block_tokens is two to the power of it */
	uint64_t block_bytes, chunk_bytes;
	uint32_t chunk_pages;
	uint32_t max_sequences;
	uint32_t columns; /* of each table */
	uint32_t watermark;
	bool bf16; /* elements of two bytes are bfloat16 */
	uint64_t address, table_address;
	uint8_t model[PREFIX_MODEL_BYTES];
	uint32_t cached_most;                    /* blocks that stay when no sequence has them */
	int32_t *tables;                         /* [max_sequences][columns] touched as needed */
	struct kv_sequence *sequences;           /* [max_sequences] */
	struct gpool_range *range, *table_range; /* NULL: destroyed */

	/* all below; held over calls for ranges and copies, so it stands outside all locks of pool.h but sync_lock */
	pthread_mutex_t lock;
	struct block_pool blocks;
	struct prefix_table prefixes; /* without entries where it was not asked for */
	struct block_order order;     /* of blocks with a key that no sequence has */
	struct pooled *pooled;        /* pooled.h; NULL: nothing is shared with other processes */
	uint32_t prefix_epoch;        /* range_losses() that it knows */
	uint64_t taken_known;         /* offer.h: what the agent had taken from this session at the last look */
	struct bitmap lost;           /* offer.c: scratch, as the marks */
	uint8_t *marks;               /* [kv_block_count()] */
	struct bitmap rows;           /* that nobody has */
	struct kv_order running, preempted;
	uint32_t running_count, preempted_count;
	TAILQ_HEAD(, kv_sequence) dirty;
	uint64_t arrivals;
	struct budget packing;
	struct quantise_error *losses; /* [max_sequences + 1] registered; NULL: nothing was compressed yet */
	struct kv_host *host;          /* NULL: there is no host memory for preempted sequences */
	uint64_t offload_saves, offload_loads;
	struct gpool_kv_need shortage;
	uint64_t allocations, forks, frees, preemptions, resumes, refusals, block_copies, table_bytes;
	uint64_t prefix_hits, prefix_misses, prefix_published, prefix_switched, prefix_evicted, prefix_lost;
	uint64_t pool_shared, pool_found;

	pthread_mutex_t sync_lock; /* one gpool_kv_sync() at a time; outside of lock */
	struct kv_stage stages[KV_STAGES];
	uint32_t stage; /* the next to use */
	size_t staging_bytes;
	bool registered;
};

RB_PROTOTYPE(kv_order, kv_sequence, order, kv_sequence_compare)
int kv_sequence_compare(const struct kv_sequence *a, const struct kv_sequence *b);

/* kv_close_all() - of a pool that is closed: the GPU's work is done, and ranges end by themselves. */
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

static inline int32_t *kv_table(const struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	return kv->tables + (size_t)kv_row(kv, sequence) * kv->columns;
}

/* Entries are read without the lock by who appends. */
static inline uint32_t kv_entry(const struct gpool_kv *kv, const struct kv_sequence *sequence, uint32_t index)
{
	return (uint32_t)__atomic_load_n(&kv_table(kv, sequence)[index], __ATOMIC_RELAXED);
}

static inline uint32_t kv_blocks_for(const struct gpool_kv *kv, uint32_t tokens)
{
	return (uint32_t)(((uint64_t)tokens + (UINT32_C(1) << kv->token_shift) - 1) >> kv->token_shift);
}

/* kv_find() - by its number: 0, -EINVAL, -ESTALE. */
int kv_find(const struct gpool_kv *kv, uint64_t number, struct kv_sequence **sequence);
uint64_t kv_number(const struct gpool_kv *kv, const struct kv_sequence *sequence);

/* kv_set_entry() - and the device's table lacks it. */
void kv_set_entry(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t index, uint32_t block);
/* kv_clean() - nothing of it is to be copied any more. */
void kv_clean(struct gpool_kv *kv, struct kv_sequence *sequence);

/* cursor_stop() - nobody appends until cursor_go(); returns its tokens. */
uint32_t cursor_stop(struct kv_sequence *sequence);
void cursor_go(const struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t tokens);

/* kv_grow() - `blocks` more at its end, for which memory_get() was. */
void kv_grow(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t blocks);
/*
 * kv_shrink() - it has no block any more; returns how many are free or cached by that. The memory of what is free stays
 * until memory_park().
 */
uint32_t kv_shrink(struct gpool_kv *kv, struct kv_sequence *sequence);

/* ---- memory.c; the callers hold the lock ---- */

/* memory_shape() - block and chunk of a shape: 0, -EINVAL. */
int memory_shape(struct gpool_kv *kv, uint32_t *chunk_blocks);

/*
 * memory_get() - so many blocks are free in chunks that are held, if need be those of cached ones: 0, or as
 * gpool_range_commit(), and nothing has changed, but for what the agent has taken of the cache.
 */
int memory_get(struct gpool_kv *kv, uint32_t blocks);
/* memory_get_chunk() - whether an empty chunk has memory, which is taken for it if need be. */
bool memory_get_chunk(struct gpool_kv *kv);
/*
 * memory_park() - behind what is queued on the stream, chunks without a block in use or cached are freed, and those
 * without a block in use are offered (offer.h). What cannot be done now is done at the next call.
 */
void memory_park(struct gpool_kv *kv);
/*
 * memory_settle() - at the end of a call: memory_park() if chunks were reclaimed and not used, or lost what was cached
 * in them.
 */
void memory_settle(struct gpool_kv *kv);
/*
 * memory_blocks() - how many could be used without an eviction elsewhere; after offer_look() what was taken does not
 * count. memory_limit() - how many the pool could hold at all.
 */
uint32_t memory_blocks(const struct gpool_kv *kv);
uint32_t memory_limit(const struct gpool_kv *kv);
/*
 * memory_spare_pages() - that could be used without anybody's eviction when a sequence of so many blocks more has got
 * them.
 */
uint64_t memory_spare_pages(const struct gpool_kv *kv, uint32_t blocks);
/* memory_address() - of a block. */
static inline uint64_t memory_address(const struct gpool_kv *kv, uint32_t block)
{
	uint32_t per_chunk = kv->blocks.chunk_blocks;

	return kv->address + block / per_chunk * kv->chunk_bytes + block % per_chunk * kv->block_bytes;
}

/* ---- admission.c ---- */

/* kv_need() - what a sequence of so many blocks needs. The caller holds the lock. */
struct gpool_kv_need kv_need(const struct gpool_kv *kv, uint32_t blocks);
/*
 * kv_admit() - by numbers of blocks alone, `borrowed` of which other sequences have: 0, -ENOSPC, -EFBIG (there never
 * can be so many). The caller holds the lock.
 */
int kv_admit(const struct gpool_kv *kv, uint32_t blocks, uint32_t borrowed, uint32_t watermark);

/* fail_preempted() - -EAGAIN: this sequence does not run. */
int fail_preempted(const struct gpool_kv *kv, const struct kv_sequence *sequence) __attribute__((noinline, cold));
/* kv_refuse() - a call is refused for want of so many blocks; returns `error`. */
int kv_refuse(struct gpool_kv *kv, uint32_t blocks, int error);

/*
 * copy_struct() - to a caller's struct of another version: what it has of it, and zero for the rest. -EINVAL: its size.
 */
int copy_struct(void *to, const void *from, uint32_t known);

#endif
