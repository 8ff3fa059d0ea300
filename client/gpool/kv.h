/* kv.h - paged KV caches. */
#ifndef GPOOL_KV_H
#define GPOOL_KV_H

#include "stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- caches ---- */

/*
 * A paged KV cache stores the keys and values of tokens in blocks of one size, and a table of blocks for each sequence.
 * Its address range never changes, and block i always has the same address:
 *
 *	address + i / chunk_blocks * chunk_bytes + i % chunk_blocks * block_bytes        (struct gpool_kv_layout)
 *
 * Kernels need only these numbers and the tables. A chunk is the unit in which the cache commits and decommits memory:
 * one or several driver handles with one or several blocks. A chunk has memory while at least one of its blocks is in
 * use. Afterwards any session may get the memory. Blocks are allocated in ascending order, first from chunks with
 * memory, then from others.
 *
 * The cache's stream must order all GPU work that uses the cache: queue the work on this stream, or make the stream
 * wait for it (gpool_stream_wait()). A freed block may be allocated to another sequence at once, copies are queued on
 * the stream, and memory is returned after the work that is queued there.
 *
 * A sequence is identified by a number, which is valid in this cache only. Any thread may make calls. Tokens of a
 * sequence are in the order of the calls that append them. If several threads append to one sequence, the slots of one
 * thread therefore need not be adjacent.
 */
struct gpool_kv;

/*
 * Shape of the content: a block stores the keys and values of block_tokens tokens, with 2 * layers * kv_heads *
 * head_size * dtype_bytes bytes for each token. With GPOOL_KV_INT8, these are 2 * layers * kv_heads * (head_size + 2)
 * bytes for each token.
 */
struct gpool_kv_shape {
	uint32_t layers, kv_heads, head_size;
	uint32_t dtype_bytes;  /* size of an element: 1, 2, 4 or 8; with GPOOL_KV_INT8: 1 */
	uint32_t block_tokens; /* a power of two up to 1,024; 0: 16 */
};
GPOOL_ASSERT_SIZE(gpool_kv_shape, 20);

enum {
	/*
	 * gpool_sleep() spills the content of sequences and gpool_wake() restores it; without the flag it is discarded
	 */
	GPOOL_KV_KEEP = 1u << 0,
	/* blocks can be published and found by their tokens: gpool_kv_prefix_publish() */
	GPOOL_KV_PREFIXES = 1u << 1,
	/* with PREFIXES: evict by statistics of past requests, which take at most 256 bytes for each block */
	GPOOL_KV_ADAPTIVE = 1u << 2,
	GPOOL_KV_BF16 = 1u << 3, /* elements of 2 bytes are bfloat16, not IEEE half; for GPOOL_KV_OFFLOAD_INT8 */
	/*
	 * fill blocks with zeros, on the cache's stream, when a sequence gets them; otherwise their content is
	 * undefined. A fill for each run of adjacent blocks. The size of a block must be a multiple of 4
	 */
	GPOOL_KV_ZERO = 1u << 4,
	/*
	 * store int8 codes, and one bf16 scale for each vector of head_size codes, as described by struct
	 * gpool_kv_layout; gpool_kv_write() writes them, and gpool_kv_attention() reads them. dtype_bytes must be 1,
	 * head_size a multiple of 16 up to 256, kv_heads at most 65,535, and block_tokens at least 8. Not with
	 * GPOOL_KV_BF16
	 */
	GPOOL_KV_INT8 = 1u << 5,
};

#define GPOOL_KV_NO_WATERMARK UINT32_MAX

struct gpool_kv_options {
	uint32_t size;  /* sizeof(struct gpool_kv_options); GPOOL_KV_OPTIONS_INIT sets it */
	uint32_t flags; /* GPOOL_KV_KEEP, _PREFIXES, _ADAPTIVE, _BF16, _ZERO, _INT8; an unknown bit is -EINVAL */
	struct gpool_kv_shape shape;
	uint32_t stream;              /* stream that orders all work; open, not host-signaled */
	uint32_t max_blocks;          /* up to 2^24, rounded up to whole chunks; 0: as many as the pool can hold */
	uint32_t max_sequences;       /* running and preempted sequences, up to 65,536; 0: 256 */
	uint32_t max_sequence_tokens; /* up to 2^24 - block_tokens, rounded up to whole blocks; 0: 131,072 */
	uint32_t watermark_blocks;    /* blocks that admission leaves free; 0: 1 % of all; or GPOOL_KV_NO_WATERMARK */
	uint64_t owner_id;            /* any number; tools display it */
	/* PREFIXES: hash of everything that affects KV contents (weights, quantization, ...) */
	uint8_t model[32];
	uint32_t cached_blocks; /* PREFIXES: maximum number of cached blocks; 0: no limit */
	/* PREFIXES: addresses for blocks that other processes share; 0: gpool_kv_prefix_share() is disabled */
	uint32_t pool_blocks;
	/* average rate of gpool_kv_compact(); a call moves at most one second's bytes, or one chunk; 0: no limit */
	uint64_t compact_bytes_per_s;
};
GPOOL_ASSERT_SIZE(gpool_kv_options, 104);
#define GPOOL_KV_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_kv_options), 0, {0, 0, 0, 0, 0}, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0 \
	}

/*
 * gpool_kv_create() - create a cache. The call reserves addresses and allocates no pages.
 *
 * @kv: receives the cache; gpool_kv_destroy() or gpool_close() ends it
 *
 * Return: 0, or
 *   -EINVAL     an unknown flag; GPOOL_KV_ADAPTIVE, model, cached_blocks or pool_blocks without GPOOL_KV_PREFIXES;
 *               GPOOL_KV_INT8 with GPOOL_KV_BF16 or a shape for which it is not available; a shape with blocks of 0
 *               bytes or more than 2^40 bytes; a number out of range; a watermark of all blocks; a stream that is not
 *               open, or host-signaled
 *   -EHOSTDOWN  the session is asleep
 *   -ENOMEM     no host memory or address space
 *   -EPERM      the session is an observer or admin
 *   -EIO        the GPU driver failed
 *   -E2BIG, -ECHILD
 */
GPOOL_API int gpool_kv_create(struct gpool *pool, const struct gpool_kv_options *options, struct gpool_kv **kv);

/*
 * gpool_kv_destroy() - wait for the work on this handle's streams and destroy a cache with its sequences and addresses.
 * NULL is permitted.
 *
 * GPU work that the program queued elsewhere must have finished. Otherwise the call fails with the back end `host`, and
 * the work faults with `cuda`.
 *
 * Return: 0, -EBUSY (GPU work uses the cache; call again), -EIO, -ENODEV (the GPU driver failed), -EPIPE, -EINTR
 * (gpool_wait_check() ended the wait for the work; the cache is unchanged), -ECHILD. Threads: no other thread may be in
 * a call for the cache. Cost: as gpool_range_destroy(), twice.
 */
GPOOL_API int gpool_kv_destroy(struct gpool_kv *kv);

/*
 * The data that kernels need. It never changes.
 *
 * GPOOL_KV_INT8: the layers of a block are stored one after the other. In layer n, the codes of the key of a token and
 * head are at n * layer_bytes + keys + token * token_stride + head * head_stride, and its scale is at n * layer_bytes +
 * key_scales + token * scale_token_stride + head * scale_head_stride. For the value, replace keys with `values`, and
 * key_scales with value_scales. In all other caches, the program chooses the layout of a block, and these fields are 0.
 */
struct gpool_kv_layout {
	uint32_t size; /* sizeof(struct gpool_kv_layout), set by the caller */
	uint32_t block_tokens;
	uint64_t block_bytes;
	uint64_t chunk_bytes;
	uint32_t chunk_blocks;
	uint32_t max_blocks;
	uint64_t address;       /* of block 0 */
	uint64_t table_address; /* of the device tables, int32_t [max_sequences][table_columns]: gpool_kv_sync() */
	uint32_t table_columns;
	uint32_t max_sequences;
	uint32_t pool_blocks; /* blocks of the pool, read-only; their numbers start at max_blocks */
	uint32_t reserved;
	/* GPOOL_KV_INT8: the layout of a block, in bytes */
	uint64_t layer_bytes;
	uint64_t keys, values, key_scales, value_scales;
	uint32_t token_stride, head_stride;
	uint32_t scale_token_stride, scale_head_stride;
};
GPOOL_ASSERT_SIZE(gpool_kv_layout, 120);

/* gpool_kv_layout() - return the layout of a cache. Return: 0, -EINVAL (size), -ECHILD. */
GPOOL_API int gpool_kv_layout(const struct gpool_kv *kv, struct gpool_kv_layout *layout);

/* gpool_kv_address() - return the address of a block, in use or not. Return: 0, -EINVAL (no such block), -ECHILD. */
GPOOL_API int gpool_kv_address(const struct gpool_kv *kv, uint32_t block, uint64_t *address);

/* ---- admission ---- */

/* The numbers of blocks that a request needs and that are available. */
struct gpool_kv_need {
	uint32_t size; /* sizeof(struct gpool_kv_need), set by the caller */
	uint32_t needed_blocks;
	/*
	 * blocks that can be allocated without evicting content of others: free and cached blocks with memory, and
	 * blocks for which the pool has free pages, or the session has idle pages
	 */
	uint32_t available_blocks;
	uint32_t free_blocks;      /* all blocks that are not in use, with or without memory; includes cached blocks */
	uint32_t watermark_blocks; /* free blocks that admission must leave free */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_kv_need, 24);

enum gpool_kv_admission {
	GPOOL_KV_OK = 0,
	/* not enough available blocks; gpool_kv_allocate() may still succeed, by evicting unpinned content of others */
	GPOOL_KV_LATER = 1,
	/* more blocks than a sequence may have or, with the watermark, than the cache or the pool has */
	GPOOL_KV_NEVER = 2
};

/*
 * gpool_kv_can_allocate() - check whether a sequence of `tokens` tokens can be admitted.
 *
 * @need: receives the numbers; the caller sets its size. May be NULL
 *
 * Tenant limits and quotas are not considered. Return: enum gpool_kv_admission, -EINVAL (size), -ECHILD. Cost: one lock
 * and a pass over the session's bitmap of idle pages; no system call.
 */
GPOOL_API int gpool_kv_can_allocate(struct gpool_kv *kv, uint32_t tokens, struct gpool_kv_need *need);

struct gpool_kv_batch {
	uint32_t size;          /* sizeof(struct gpool_kv_batch); GPOOL_KV_BATCH_INIT sets it */
	uint32_t max_sequences; /* running and admitted sequences; 0: limited by the cache only */
	uint64_t max_tokens;    /* limit on the tokens of all admitted requests in one step; 0: no limit */
};
GPOOL_ASSERT_SIZE(gpool_kv_batch, 16);
#define GPOOL_KV_BATCH_INIT \
	{ \
		sizeof(struct gpool_kv_batch), 0, 0 \
	}

/*
 * gpool_kv_can_batch() - count the requests at the beginning of a list that can be admitted together.
 *
 * @tokens: [count] tokens of each request, in the order of admission
 * @limits: NULL: none
 * @need:   receives the numbers for the requests that fit; the caller sets its size. May be NULL
 *
 * No request is bypassed: the count ends before the first request that does not fit or can never be admitted. Tenant
 * limits and quotas are not considered.
 *
 * Return: the number of requests, -EINVAL (size), -E2BIG, -ECHILD. Threads: any; concurrent admissions may invalidate
 * the result. Cost: no system call.
 */
GPOOL_API int gpool_kv_can_batch(struct gpool_kv *kv, const uint32_t *tokens, uint32_t count,
	const struct gpool_kv_batch *limits, struct gpool_kv_need *need);

/*
 * gpool_kv_oom_info() - return the numbers of blocks for the last gpool_kv_allocate(), gpool_kv_prefix_allocate(),
 * gpool_kv_append() or gpool_kv_resume() in this cache that failed with -ENOSPC, -EDQUOT or -EFBIG for lack of blocks
 * or pages for them.
 *
 * Return: 0, -EINVAL (size), -ECHILD. Cost: one lock.
 */
GPOOL_API int gpool_kv_oom_info(struct gpool_kv *kv, struct gpool_kv_need *need);

/* ---- sequences ---- */

enum {
	/* the request continues running work and may use the blocks of the watermark */
	GPOOL_KV_CONTINUES = 1u << 0,
};

struct gpool_kv_request {
	uint32_t size;   /* sizeof(struct gpool_kv_request); GPOOL_KV_REQUEST_INIT sets it */
	uint32_t flags;  /* GPOOL_KV_CONTINUES; an unknown bit is -EINVAL */
	uint32_t tokens; /* initial tokens, usually those of the prompt */
	/*
	 * expected final number of tokens; their blocks are allocated at once. 0: allocate blocks as the sequence grows
	 */
	uint32_t estimated_tokens;
	uint32_t priority; /* sequences of lower priority are preempted first */
	uint32_t reserved; /* 0 */
	uint64_t owner_id; /* any number, returned by gpool_kv_sequence_info() */
};
GPOOL_ASSERT_SIZE(gpool_kv_request, 32);
#define GPOOL_KV_REQUEST_INIT \
	{ \
		sizeof(struct gpool_kv_request), 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_kv_allocate() - create a sequence with blocks for its initial or estimated tokens, whichever are more.
 *
 * @sequence: receives its number
 *
 * The blocks of the watermark remain free, unless the request has GPOOL_KV_CONTINUES.
 *
 * Return: 0, or an error without effect:
 *   -EINVAL     an unknown flag; reserved is not 0
 *   -EFBIG      GPOOL_KV_NEVER
 *   -ENOSPC, -EDQUOT  not enough blocks, or pages for them, now; gpool_kv_oom_info() returns the numbers
 *   -EUSERS     max_sequences is reached
 *   -EHOSTDOWN  the session is asleep
 *   -EBUSY      with the back end `host`: queued GPU work uses addresses that the cache has decommitted and whose
 *               memory was taken
 *   -ENOMEM     the driver could not map pages
 *   -EIO, -ENODEV, -EINVAL  GPOOL_KV_ZERO: the fill could not be queued (gpool_fill())
 *   -EPIPE, -EINTR, -E2BIG, -ECHILD
 *
 * Cost: one lock, and a few stores for each block whose chunk has memory [kv_alloc_128k: 8,192 blocks]; for other
 * blocks the cost of gpool_range_commit(), once for each run of chunks [kv_alloc_128k_cold].
 */
GPOOL_API int gpool_kv_allocate(struct gpool_kv *kv, const struct gpool_kv_request *request, uint64_t *sequence);

/*
 * gpool_kv_append() - append tokens to a sequence, all or none.
 *
 * @slot: receives the slot of the first token: block * block_tokens + position in the block. The other tokens have the
 *        next slots up to the end of the block, and then the slots of the table's next blocks. May be NULL
 *
 * If the last block is not full and is shared with other sequences, it is copied first, on the cache's stream.
 *
 * Return: 0, or an error without effect:
 *   -EINVAL  tokens is 0; not a sequence number; the last block must be copied, and the cache's stream is closed
 *   -ESTALE  the sequence has ended, or belongs to another cache
 *   -EAGAIN  the sequence is preempted: gpool_kv_resume()
 *   -EFBIG   more than max_sequence_tokens
 *   -ENOSPC, -EDQUOT, -EHOSTDOWN, -EBUSY, -ENOMEM, -EPIPE, -EINTR  as gpool_kv_allocate(), without the watermark
 *   -EIO, -ENODEV  the copy could not be queued (gpool_copy()), or the fill of new blocks (GPOOL_KV_ZERO)
 *   -ECHILD  after fork()
 *
 * Cost: a compare-and-swap if the sequence's blocks have room [kv_append_bulk]; otherwise one lock, and for each block
 * as gpool_kv_allocate() [kv_append].
 */
GPOOL_API int gpool_kv_append(struct gpool_kv *kv, uint64_t sequence, uint32_t tokens, uint64_t *slot);

/*
 * gpool_kv_fork() - create a sequence that shares the blocks of another one.
 *
 * @child: receives its number
 *
 * If the last block is not full, it is copied when one of the two sequences first appends a token. Blocks that were
 * allocated in advance remain with the original sequence. Priority, arrival and owner_id are copied.
 *
 * Return: 0, -EINVAL (not a sequence number), -ESTALE (ended), -EAGAIN (preempted), -EUSERS (max_sequences), -ECHILD.
 * Cost: a few instructions for each block [kv_fork: 125 blocks].
 */
GPOOL_API int gpool_kv_fork(struct gpool_kv *kv, uint64_t sequence, uint64_t *child);

/*
 * gpool_kv_free() - end a sequence, running or preempted. Blocks that no other sequence shares become free at once, or
 * cached if they were published.
 *
 * Return: 0, -EINVAL (not a sequence number), -ESTALE (already ended), -ECHILD. Cost: one lock, a few instructions for
 * each block, and one fence if a chunk becomes empty; for offloaded content as gpool_discard().
 */
GPOOL_API int gpool_kv_free(struct gpool_kv *kv, uint64_t sequence);

/*
 * gpool_kv_preempt() - preempt a running sequence and release its blocks at once.
 *
 * @sequence: 0: the running sequence of the lowest priority, and among these the last to arrive
 * @victim:   receives the number of the sequence; may be NULL
 *
 * The sequence keeps its number of tokens; after gpool_kv_resume() the program must recompute the keys and values.
 *
 * Return: the number of blocks that became free or cached, without those that other sequences share; or
 *   -ENOENT  sequence is 0, and no sequence is running
 *   -EAGAIN  the sequence is already preempted
 *   -EINVAL, -ESTALE, -ECHILD
 *
 * Cost: as gpool_kv_free().
 */
GPOOL_API int gpool_kv_preempt(struct gpool_kv *kv, uint64_t sequence, uint64_t *victim);

/*
 * gpool_kv_waiting() - return the preempted sequence to resume first: the one of the highest priority, and among these
 * the first to arrive.
 *
 * Return: 0, -ENOENT (none is preempted), -ECHILD. Cost: one lock and a search in a tree.
 */
GPOOL_API int gpool_kv_waiting(struct gpool_kv *kv, uint64_t *sequence);

/*
 * gpool_kv_resume() - allocate the number of blocks that a preempted sequence had. None of them is shared.
 *
 * Their content is undefined or, with GPOOL_KV_ZERO, zero, unless gpool_kv_offload() preempted the sequence. The blocks
 * of the watermark remain free, unless no other sequence is running.
 *
 * The call holds the lock of the cache while it waits. The function of gpool_wait_check() must therefore make no call
 * for the pool, and wait for no thread that makes a call for the cache.
 *
 * Return: as gpool_kv_allocate(), without -EFBIG and -EUSERS; -EALREADY (it is running), -EINVAL, -ESTALE; after
 * gpool_kv_offload() also these, and the sequence remains preempted:
 *   -EIO      the content is kept, but the copies could not be queued, or the mover cannot restore it now (gpool_pin())
 *   -ENODATA  the content is lost: its checksum was wrong, or it has no int8 form. The sequence is then in the same
 *             state as after gpool_kv_preempt()
 *   -ENOSPC, -EDQUOT  also: no pages for the restored content
 *   -EINTR    gpool_wait_check() ended the wait for the content or its conversion
 *
 * Cost: as gpool_kv_allocate(); after gpool_kv_offload() also the copies and waits that are described there.
 */
GPOOL_API int gpool_kv_resume(struct gpool_kv *kv, uint64_t sequence);

/* ---- offloading ---- */

/*
 * gpool_kv_host_reserve() - allocate and page-lock host memory for the content of preempted sequences, once for each
 * cache. It is freed with the cache.
 *
 * @bytes: at least one block, at most 2^24 blocks; rounded down to whole blocks
 *
 * Return: 0, -EINVAL (bytes), -EALREADY (the cache has host memory), -ENOMEM, -EIO (the GPU driver failed), -ECHILD.
 * Cost: page-locks the memory, in a time proportional to its size.
 */
GPOOL_API int gpool_kv_host_reserve(struct gpool_kv *kv, uint64_t bytes);

enum {
	/* use spillable blocks of the pool, which the agent evicts to its host memory, then to its file */
	GPOOL_KV_OFFLOAD_POOL = 1u << 0,
	/* store int8, about half the size of fp16; gpool_kv_quant_error() returns the loss */
	GPOOL_KV_OFFLOAD_INT8 = 1u << 1,
};

/*
 * gpool_kv_offload() - preempt a sequence and copy the content of its blocks elsewhere, on the cache's stream.
 *
 * @sequence: as in gpool_kv_preempt()
 * @flags:    0: copy to the cache's own host memory (gpool_kv_host_reserve()). GPOOL_KV_OFFLOAD_POOL: copy to unpinned
 *            blocks of the pool of up to 8 pages each, allocated with GPOOL_ALLOC_SPILL and the sequence's owner_id.
 *            These blocks use free pages or replace unpinned content. The agent can also evict these blocks, within its
 *            limits (spill_memory, spill_file). The mover saves evicted content, and restores it when the sequence is
 *            resumed or prefetched
 * @victim:   as in gpool_kv_preempt()
 *
 * gpool_kv_resume() copies the content back, so that it need not be recomputed; gpool_kv_free() discards it.
 *
 * With GPOOL_KV_OFFLOAD_INT8, each vector of head_size consecutive elements in a block is stored as int8 codes
 * -127..127 and one bf16 scale, which increases the size by a factor of 1 + 2 / head_size. If head_size is the
 * innermost dimension, there is one vector for each token and head, in K and in V. Conversions run on the stream.
 *
 * Elements of 4 bytes are fp32, those of 2 bytes fp16, or bf16 with GPOOL_KV_BF16; those of 1 byte, and the codes and
 * scales of GPOOL_KV_INT8, are stored unchanged. A restored element differs from the original by at most 1 / 252 of the
 * largest magnitude in its vector, plus the rounding to its type; zeros are restored as zeros. A sequence with an
 * infinity or a NaN has no int8 form: its loss is infinite, and gpool_kv_resume() returns -ENODATA.
 *
 * Return: as gpool_kv_preempt(), or an error that leaves the sequence running:
 *   -EOPNOTSUPP  no gpool_kv_host_reserve(); GPOOL_KV_OFFLOAD_POOL: a pool without spill_memory and spill_file;
 *                GPOOL_KV_OFFLOAD_INT8: elements of 8 bytes, blocks below 50 + head_size bytes, or the back end `cuda`
 *                in a library that was built without nvcc
 *   -ENOSPC      too few free blocks of host memory; with GPOOL_KV_OFFLOAD_POOL, no pages for the copy, which exists in
 *                addition to the original for a short time. In this case the cache's host memory may still have room
 *   -EDQUOT, -EPIPE  as gpool_alloc()
 *   -EHOSTDOWN   the session is asleep
 *   -EINVAL      an unknown flag; the cache's stream is closed
 *   -ENOMEM, -EIO
 *
 * Cost: a copy for each run of adjacent blocks; no wait, unless pages must be evicted. If content was evicted and not
 * prefetched, gpool_kv_resume() waits for the mover. During this wait, calls of other threads for this cache also wait,
 * except gpool_kv_append() to blocks that the sequence already has. gpool_kv_free() waits for content that is being
 * moved. With int8, gpool_kv_resume() waits until the stream has reached the conversion.
 */
GPOOL_API int gpool_kv_offload(struct gpool_kv *kv, uint64_t sequence, uint32_t flags, uint64_t *victim);

/*
 * gpool_kv_prefetch() - begin restoring evicted content of a preempted sequence (GPOOL_KV_OFFLOAD_POOL), so that
 * gpool_kv_resume() need not wait.
 *
 * Call it repeatedly until it returns 0: each call collects restored pages and requests the next ones. It uses only
 * free and idle pages, evicts no content, and leaves the pages that the sequence's blocks need. Restored content may be
 * evicted again, like all unpinned content.
 *
 * Return: the number of pages that are not yet in the pool; 0: gpool_kv_resume() will not wait, for example because all
 * content is in the cache's host memory, or none is kept; or
 *   -ENOSPC    no free pages for the remaining content
 *   -EALREADY  the sequence is running
 *   -EIO       a part cannot be restored now; gpool_kv_resume() retries
 *   -ENODATA   the content is lost; gpool_kv_resume() will return the same error
 *   -EDQUOT, -ENOMEM, -EPIPE, -EINVAL, -ESTALE, -ECHILD
 *
 * Cost: examines each piece of up to 8 pages, and sends a request to the agent for each piece that it begins to
 * restore, of which at most 8 are in progress; no wait for the answers.
 */
GPOOL_API int gpool_kv_prefetch(struct gpool_kv *kv, uint64_t sequence);

/*
 * The loss of a sequence's content in int8 form, where x' is the restored value of an element x. The loss is computed
 * over all elements of the blocks that contain tokens, including the elements after the last token.
 */
struct gpool_kv_quant_error {
	uint32_t size; /* sizeof(struct gpool_kv_quant_error), set by the caller */
	uint32_t reserved;
	double max_error; /* max |x - x'|; infinity: no int8 form exists */
	/* sqrt(sum (x - x')^2 / sum x^2), without the rounding to the element's type; 0 where all x are 0 */
	double relative_error;
};
GPOOL_ASSERT_SIZE(gpool_kv_quant_error, 24);

/*
 * gpool_kv_quant_error() - return the loss of a sequence's last gpool_kv_offload(), before or after it is resumed.
 *
 * Return: 0, -ENODATA (it was not offloaded as int8), -EAGAIN (the stream has not reached the conversion), -EINVAL
 * (size, not a sequence number), -ESTALE, -ECHILD. Cost: one lock; no driver call.
 */
GPOOL_API int gpool_kv_quant_error(struct gpool_kv *kv, uint64_t sequence, struct gpool_kv_quant_error *loss);

/* The kept content of preempted sequences. */
struct gpool_kv_offload_info {
	uint32_t size;        /* sizeof(struct gpool_kv_offload_info), set by the caller */
	uint32_t host_blocks; /* blocks of the cache's own host memory; 0: none */
	uint32_t host_free_blocks;
	uint32_t sequences; /* sequences with kept content */
	uint64_t host_bytes;
	uint64_t content_bytes; /* size of their content, as stored in their blocks */
	/* pages of the blocks that store it: in the pool, in the agent's host memory, or in its file */
	uint64_t pool_pages;
	uint64_t saves, loads; /* sequences that were copied out; copied back */
};
GPOOL_ASSERT_SIZE(gpool_kv_offload_info, 56);

/*
 * gpool_kv_offload_info() - describe the kept content of preempted sequences.
 *
 * Return: 0, -EINVAL (size), -ECHILD. Cost: proportional to the number of preempted sequences.
 */
GPOOL_API int gpool_kv_offload_info(struct gpool_kv *kv, struct gpool_kv_offload_info *info);

/* ---- growing under pressure ---- */

enum {
	/* keep the content of preempted sequences, as gpool_kv_offload(); if there is no room for it, discard it */
	GPOOL_KV_GROW_OFFLOAD = 1u << 0,
};

/* Which sequences gpool_kv_grow() may preempt. */
struct gpool_kv_growth {
	uint32_t size;          /* sizeof(struct gpool_kv_growth); GPOOL_KV_GROWTH_INIT sets it */
	uint32_t flags;         /* GPOOL_KV_GROW_OFFLOAD; an unknown bit is -EINVAL */
	uint32_t offload_flags; /* OFFLOAD: flags of gpool_kv_offload() */
	uint32_t most;          /* maximum number of sequences to preempt; 0: no limit */
	/*
	 * The policy: set *victim to the number of a running sequence of this cache that is to be preempted next.
	 * 0: the one that gpool_kv_preempt() would select. `sequence` itself: none. A negative code ends the call,
	 * which returns it. The cache is not locked during this call; gpool_kv_oom_info() returns the numbers of
	 * missing blocks. NULL: always 0
	 */
	int (*choose)(void *context, uint64_t sequence, uint64_t *victim);
	void *context;
};
GPOOL_ASSERT_SIZE(gpool_kv_growth, 32);
#define GPOOL_KV_GROWTH_INIT \
	{ \
		sizeof(struct gpool_kv_growth), 0, 0, 0, 0, 0 \
	}

/*
 * gpool_kv_grow() - append tokens to a sequence as gpool_kv_append(), and preempt other sequences while blocks or pages
 * for them are missing.
 *
 * @growth:  NULL: as GPOOL_KV_GROWTH_INIT
 * @victims: [most] receives the numbers of the preempted sequences in order, then zeros, even after an error. NULL: not
 *           needed; required to be NULL if `most` is 0
 *
 * Without a policy, the sequence of the lowest priority is preempted first, and among these the last to arrive. If the
 * sequence itself is the next, the call ends with the error of gpool_kv_append(), so that no sequence is preempted for
 * one that comes after it. The program then usually preempts the sequence itself. Preempted sequences stay preempted
 * after an error. Other threads may take the memory of a preempted sequence before the call gets it.
 *
 * Return: the number of preempted sequences, or an error that leaves the sequence unchanged:
 *   -ENOSPC, -EDQUOT  still not enough: the policy or the order ended the preemptions, or they reached `most`
 *   -EFBIG   also: more blocks than the cache or the pool has; no sequence is preempted
 *   -EINVAL  also: an unknown flag; victims without `most`; the policy's sequence is not running
 *   others   as gpool_kv_append() and gpool_kv_offload(), or the code of the policy
 *
 * Threads: any. Cost: as gpool_kv_append(); for each preempted sequence as gpool_kv_preempt() or gpool_kv_offload(),
 * but one fence for all.
 */
GPOOL_API int gpool_kv_grow(struct gpool_kv *kv, uint64_t sequence, uint32_t tokens,
	const struct gpool_kv_growth *growth, uint64_t *slot, uint64_t *victims);

/* ---- tables and blocks ---- */

/*
 * gpool_kv_table() - return the table of a sequence's blocks, in order. It is in host memory and valid until
 * gpool_kv_destroy().
 *
 * @count: receives the number of blocks, including blocks that were allocated in advance; 0: the sequence is preempted
 *         or has no blocks
 *
 * No other thread may change the sequence while the program reads the table.
 *
 * Return: 0, -EINVAL (not a sequence number), -ESTALE, -ECHILD. Cost: one lock.
 */
GPOOL_API int gpool_kv_table(struct gpool_kv *kv, uint64_t sequence, const int32_t **blocks, uint32_t *count);

/*
 * gpool_kv_sync() - copy the changes of all tables to the device, on the cache's stream.
 *
 * Work that is queued on the stream after this call reads the current tables; earlier work reads the previous ones.
 * struct gpool_kv_sequence_info contains the row of a sequence in the device tables. If gpool_sleep() discards the
 * content (no GPOOL_KV_KEEP), it also discards these tables. A sequence is in the tables again after it was preempted
 * and resumed.
 *
 * Return: 0, or an error after which the next call copies the rest:
 *   -ENOSPC, -EDQUOT, -ENOMEM, -EHOSTDOWN, -EBUSY, -EPIPE  no pages for the tables, as gpool_range_commit()
 *   -EINVAL  the cache's stream is closed
 *   -EIO, -ENODEV  the copy could not be queued (gpool_copy())
 *   -EINTR   gpool_wait_check() ended a wait
 *   -ECHILD  after fork()
 *
 * Cost: a copy for each changed sequence, from its first to its last changed entry; one fence for each part of up to 64
 * KiB of entries of up to 256 sequences. Before each part the call waits until the eighth part before it, of this or an
 * earlier call, is copied.
 */
GPOOL_API int gpool_kv_sync(struct gpool_kv *kv);

/* A copy between blocks. */
struct gpool_kv_pair {
	int32_t from, to;
};

/*
 * gpool_kv_copy_blocks() - queue copies of blocks in the given order, on the cache's stream. Adjacent blocks are copied
 * together.
 *
 * All blocks must be in use. A block that is written must belong to one sequence only and must not be published or
 * copied to itself.
 *
 * Return: 0, -EINVAL (a block does not meet these conditions, and no copy is queued; the cache's stream is closed),
 * -ENOMEM, -EIO, -ENODEV (a copy could not be queued; earlier copies may be queued), -ECHILD. Cost: one lock; for each
 * copy a comparison with up to 167 earlier ones; a launch for up to 168 runs of adjacent blocks that do not depend on
 * one another, or a copy for a single run. In a library without kernels, a copy for each run.
 */
GPOOL_API int gpool_kv_copy_blocks(struct gpool_kv *kv, const struct gpool_kv_pair *pairs, size_t count);

/*
 * gpool_kv_compact() - move blocks out of the chunks with the fewest blocks into free blocks of other chunks, and
 * return the memory of the emptied chunks to the pool.
 *
 * @blocks: maximum number of blocks to move; whole chunks are moved. compact_bytes_per_s is a further limit
 *
 * The call changes tables (gpool_kv_table(), gpool_kv_sync()) and queues copies on the cache's stream. Call it between
 * two steps, when all work that writes to slots of gpool_kv_append() is queued.
 *
 * Return: the number of moved blocks, even if a later chunk could not be moved; or, if no block was moved, -EHOSTDOWN
 * (asleep), -ENOMEM, -EIO, -ENODEV (a copy could not be queued), -EINVAL (the cache's stream is closed),
 * -ECHILD.
 * Cost: for each emptied chunk, proportional to the number of chunks and of table entries; a launch for up to 168 runs
 * of blocks, as gpool_kv_copy_blocks().
 */
GPOOL_API int gpool_kv_compact(struct gpool_kv *kv, uint32_t blocks);

/*
 * gpool_kv_validate() - check that a block belongs to a sequence and has the expected shape, for numbers from an
 * untrusted source.
 *
 * @shape: block_tokens 0 means 16
 *
 * Return: 0, or
 *   -EINVAL  no such block, or not a sequence number
 *   -ESTALE  the sequence has ended, or belongs to another cache; the block is free
 *   -EACCES  the block belongs to another sequence, or the sequence is preempted
 *   -EPROTO  the cache has another shape
 *   -ECHILD  after fork()
 *
 * Cost: proportional to the number of the sequence's blocks.
 */
GPOOL_API int gpool_kv_validate(
	struct gpool_kv *kv, uint64_t sequence, int32_t block, const struct gpool_kv_shape *shape);

/* ---- attention ---- */

/*
 * The library contains an attention kernel, which finds keys and values by the device tables (gpool_kv_sync()). An
 * engine may use its own kernel instead.
 */

/* A sequence of a launch. It is stored in device memory, so a captured graph can be launched for the next step. */
struct gpool_kv_attention_sequence {
	uint32_t row;         /* row in the device tables: struct gpool_kv_sequence_info */
	uint32_t tokens;      /* tokens with keys and values, including those of the queries */
	uint32_t query_begin; /* its first row in queries and output */
	uint32_t query_count; /* number of its last tokens that have queries: 1 for decoding; 0: skip the sequence */
};
GPOOL_ASSERT_SIZE(gpool_kv_attention_sequence, 16);

enum {
	/* queries and output, and keys and values of 2 bytes, are bfloat16, not IEEE half */
	GPOOL_KV_ATTENTION_BF16 = 1u << 0,
	/*
	 * keys and values are int8 codes, each vector of head_size codes with one bfloat16 scale: a value is code times
	 * scale. Required in a cache with GPOOL_KV_INT8
	 */
	GPOOL_KV_ATTENTION_INT8 = 1u << 1,
};

/*
 * The arguments of a launch, which computes one layer. `keys`, `values`, the scales and their strides are offsets in
 * bytes from the beginning of a block: the key of a token and head is at keys + token * token_stride + head *
 * head_stride, and the value at `values` with the same strides. The offsets therefore describe blocks of one layer or
 * of all layers, ordered by token and head (NHD) or by head and token (HND).
 */
struct gpool_kv_attention {
	uint32_t size;    /* sizeof(struct gpool_kv_attention); GPOOL_KV_ATTENTION_INIT sets it */
	uint32_t flags;   /* GPOOL_KV_ATTENTION_BF16, _INT8; an unknown bit is -EINVAL */
	uint64_t queries; /* address of [query_tokens][query_stride] elements, of which heads * head_size are used */
	uint64_t output;  /* address of [query_tokens][output_stride] elements; rows of other tokens are not changed */
	uint64_t sequences; /* address of struct gpool_kv_attention_sequence[sequence_count] */
	/*
	 * address of gpool_kv_attention_workspace() bytes, for one launch at a time; fill them with zeros before the
	 * first launch. 0 if no bytes are needed
	 */
	uint64_t workspace;
	uint64_t keys, values;             /* of token 0 and head 0 */
	uint64_t key_scales, value_scales; /* INT8 */
	uint32_t token_stride, head_stride;
	uint32_t scale_token_stride, scale_head_stride; /* INT8 */
	uint32_t sequence_count;
	uint32_t query_tokens;
	uint32_t max_query_count; /* maximum of query_count; sequences with more queries are skipped */
	/* heads of queries, a multiple of kv_heads; heads / kv_heads of them share one head of keys and values */
	uint32_t heads;
	uint32_t kv_heads;                    /* 0: those of the cache's shape */
	uint32_t head_size;                   /* a multiple of 16, up to 256; 0: as in the cache's shape */
	uint32_t query_stride, output_stride; /* elements */
	float scale;                          /* of the products of queries and keys; 0: 1 / sqrt(head_size) */
	uint32_t reserved;                    /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_kv_attention, 128);
#define GPOOL_KV_ATTENTION_INIT \
	{ \
		sizeof(struct gpool_kv_attention), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_kv_attention() - queue attention of the queries of some sequences over their keys and values, on the cache's
 * stream.
 *
 * The query of a token uses the keys and values of the sequence up to this token (causal attention). Products and sums
 * are fp32. The result for a sequence does not depend on the other sequences of the launch. Invalid sequences, such as
 * a sequence with more tokens than its table has, are skipped. The keys and values of all `tokens` must be finite.
 *
 * Addresses and strides must be multiples of 16 bytes; addresses and strides of scales, of 2 bytes. The launch can be
 * captured into a graph.
 *
 * If max_query_count * heads / kv_heads is at most 64, the kernel divides the tokens of a sequence among thread blocks;
 * otherwise it divides the queries. Batches with sequences of both kinds are faster as two launches.
 *
 * Return: 0, or
 *   -EINVAL      size, flag, reserved; block_tokens of the cache is below 8; a number is 0, too large or not a multiple
 *                of the required number; an address is 0 or not aligned; vectors do not fit into a block; a cache with
 *                GPOOL_KV_INT8 is read without GPOOL_KV_ATTENTION_INT8; the cache's stream is closed
 *   -EOPNOTSUPP  gpool was built without kernels, or the driver is too old for them
 *   -EHOSTDOWN   the session is asleep
 *   -EIO, -ENODEV, -ENOMEM  the kernel could not be queued
 *   -E2BIG, -ECHILD
 *
 * Threads: any. Cost: a lock, and one driver call.
 */
GPOOL_API int gpool_kv_attention(struct gpool_kv *kv, const struct gpool_kv_attention *attention);

/*
 * gpool_kv_attention_workspace() - return the size of the workspace that a launch needs. The addresses in `attention`
 * are ignored.
 *
 * Return: 0, -EINVAL, -E2BIG, -ECHILD as gpool_kv_attention(). Threads: any. Cost: a few instructions.
 */
GPOOL_API int gpool_kv_attention_workspace(
	struct gpool_kv *kv, const struct gpool_kv_attention *attention, uint64_t *bytes);

/* ---- writing int8 ---- */

enum {
	GPOOL_KV_WRITE_BF16 = 1u << 0, /* keys and values are bfloat16, not IEEE half */
};

/*
 * The loss of precision of the written elements, in device memory, or in registered host memory by its device address.
 * gpool_kv_write() adds to it, so fill it with zeros first. The relative error is the square root of
 * error_squares / squares.
 */
struct gpool_kv_write_error {
	double error_squares; /* sum of (x - x')^2 over all elements x, which became x' */
	double squares;       /* sum of x^2 */
	float max_error;      /* max |x - x'|; infinity: a vector has an infinity or a NaN, and is stored as zeros */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_kv_write_error, 24);

/* The arguments of a launch, which writes the keys and values of some tokens in one layer. */
struct gpool_kv_write {
	uint32_t size;   /* sizeof(struct gpool_kv_write); GPOOL_KV_WRITE_INIT sets it */
	uint32_t flags;  /* GPOOL_KV_WRITE_BF16; an unknown bit is -EINVAL */
	uint64_t keys;   /* address of [tokens][key_stride] elements, of which kv_heads * head_size are used */
	uint64_t values; /* address of [tokens][value_stride] elements */
	/*
	 * address of uint64_t[tokens]: the slot of each token (gpool_kv_append()). Tokens with a slot that the cache
	 * does not have, such as UINT64_MAX, are not written
	 */
	uint64_t slots;
	uint64_t error; /* address of struct gpool_kv_write_error; 0: not needed */
	uint32_t layer;
	uint32_t tokens;                   /* up to 2^20; 0: nothing is written */
	uint32_t key_stride, value_stride; /* multiples of 8; 0: kv_heads * head_size */
};
GPOOL_ASSERT_SIZE(gpool_kv_write, 56);
#define GPOOL_KV_WRITE_INIT \
	{ \
		sizeof(struct gpool_kv_write), 0, 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_kv_write() - queue the conversion of keys and values of some tokens to int8, into the blocks of a cache with
 * GPOOL_KV_INT8, on the cache's stream.
 *
 * An element x of a vector becomes the code nearest to x / scale, -127..127. The scale is the largest magnitude of the
 * vector divided by 127, rounded up to bf16, so x' = code * scale differs from x by at most 1 / 252 of that magnitude.
 * Zeros remain zeros. A vector with an infinity or a NaN is stored as zeros. `error` lets the program compare the loss
 * with a limit of its own, for example before it publishes a prefix.
 *
 * The slots must belong to running sequences, and their blocks must not be shared or published, as gpool_kv_append()
 * guarantees. Two tokens of a launch must not have the same slot. Addresses of keys and values must be multiples of 16
 * bytes, the others of 8. The launch can be captured into a graph.
 *
 * Forks, prefixes, sharing, compaction, sleep and offloading handle codes and scales as any content of blocks: nothing
 * is converted again.
 *
 * Return: 0, or
 *   -EINVAL      size, flag; layer or tokens is too large; a stride is too small or not a multiple of 8; an address is
 *                0 or not aligned; the cache's stream is closed
 *   -EOPNOTSUPP  the cache has no GPOOL_KV_INT8; gpool was built without kernels, or the driver is too old for them
 *   -EHOSTDOWN   the session is asleep
 *   -EIO, -ENODEV, -ENOMEM  the kernel could not be queued
 *   -E2BIG, -ECHILD
 *
 * Threads: any. Cost: a lock, and one driver call.
 */
GPOOL_API int gpool_kv_write(struct gpool_kv *kv, const struct gpool_kv_write *write);

/* ---- prefixes ---- */

/*
 * Sequences often begin with the same tokens, such as a system prompt or the turns of a conversation. In a cache with
 * GPOOL_KV_PREFIXES, the full blocks of a sequence can be published with the IDs of its tokens. Later sequences with
 * the same IDs share these blocks, as forks do, and need not recompute them. A block is identified by all tokens up to
 * its end, by the cache's model and shape, and by adapter and salt.
 *
 * A published block without a sequence is cached and counts as free. It remains until its memory is needed, until more
 * than cached_blocks are cached, until gpool_kv_prefix_evict(), or until gpool_sleep() discards the content. The least
 * recently used cached blocks are evicted first or, with GPOOL_KV_ADAPTIVE, those that are least likely to be reused.
 * Later blocks of a prefix are evicted before earlier blocks.
 *
 * Chunks without a block in use are offered, as by gpool_range_offer(), when the work queued at that time has finished.
 * When memory is needed elsewhere, the agent takes such chunks in the order of eviction, without a call of this
 * process. The cached blocks of a taken chunk, and all blocks that follow them in a prefix, are then no longer found. A
 * sequence that begins with cached blocks keeps them until it ends. Counters are exact at the time of the call that
 * returns them. gpool_sleep() discards the content of offered chunks, even with GPOOL_KV_KEEP.
 */
struct gpool_kv_prefix {
	uint32_t size;       /* sizeof(struct gpool_kv_prefix); GPOOL_KV_PREFIX_INIT sets it */
	uint32_t flags;      /* 0; an unknown bit is -EINVAL */
	const uint32_t *ids; /* [count] IDs of the first tokens of a sequence */
	uint32_t count;
	uint32_t reserved;   /* 0 */
	uint64_t adapter_id; /* adapter that computes the blocks; 0: none */
	uint64_t salt[2];    /* blocks are found only with the same salt; a secret salt separates tenants */
};
GPOOL_ASSERT_SIZE(gpool_kv_prefix, 48);
#define GPOOL_KV_PREFIX_INIT \
	{ \
		sizeof(struct gpool_kv_prefix), 0, 0, 0, 0, 0, \
		{ \
			0, 0 \
		} \
	}

struct gpool_kv_prefix_found {
	uint32_t size;          /* sizeof(struct gpool_kv_prefix_found), set by the caller */
	uint32_t blocks;        /* consecutive blocks, starting with the first */
	uint32_t tokens;        /* tokens in these blocks */
	uint32_t cached_blocks; /* cached blocks among these, which a new sequence takes from the free blocks */
	int32_t last_block;     /* number of the last of them; -1: none */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_kv_prefix_found, 24);

/*
 * gpool_kv_prefix_find() - find the longest published prefix of token IDs, in full blocks. No block is reserved. Blocks
 * that other processes share are found only if this cache already maps them.
 *
 * Return: 0, -EINVAL (size, flag; count without ids), -EOPNOTSUPP (no GPOOL_KV_PREFIXES), -E2BIG, -ECHILD.
 * Cost: one lock; for each block found, and for one more, a hash over its IDs and two loads.
 */
GPOOL_API int gpool_kv_prefix_find(
	struct gpool_kv *kv, const struct gpool_kv_prefix *prefix, struct gpool_kv_prefix_found *found);

/*
 * gpool_kv_prefix_allocate() - create a sequence that begins with the published blocks of its first tokens.
 *
 * @prefix: IDs of its first tokens; those beyond the request's tokens are ignored. If the last token must be computed
 *          in any case, pass one ID fewer, so that its block is not shared
 * @tokens: receives the number of tokens that need not be computed; may be NULL
 *
 * The other blocks are allocated as by gpool_kv_allocate(). After a failure, the needed blocks of gpool_kv_oom_info()
 * do not include shared blocks. Return: as gpool_kv_allocate() and gpool_kv_prefix_find().
 */
GPOOL_API int gpool_kv_prefix_allocate(struct gpool_kv *kv, const struct gpool_kv_request *request,
	const struct gpool_kv_prefix *prefix, uint64_t *sequence, uint32_t *tokens);

/*
 * gpool_kv_prefix_publish() - publish a sequence's full blocks among these tokens.
 *
 * The keys and values of the blocks must be written, or the work that writes them must be queued on the cache's stream,
 * or this stream must wait for that work. Published blocks must not be written. If a block with the same content is
 * already published, the sequence and its forks switch to that block and release their own (gpool_kv_table(),
 * gpool_kv_sync()). IDs of blocks that this sequence has published are not read again, so publishing a growing sequence
 * costs only the new part. Of a sequence of a group, only the part in the first cache can be published, since the IDs
 * must begin with the sequence's first token.
 *
 * Return: the number of the sequence's first blocks that are published, or
 *   -EINVAL      size, flag, count without ids; more IDs than the sequence has tokens; a block that a fork has
 *                published with other IDs; another adapter or salt than at the first publication; not a sequence number
 *   -EAGAIN      the sequence is preempted
 *   -EHOSTDOWN   the session is asleep
 *   -EOPNOTSUPP  no GPOOL_KV_PREFIXES
 *   -ESTALE, -E2BIG, -ECHILD
 *
 * Cost: one lock, and for each new block a hash over its IDs and an entry [kv_publish].
 */
GPOOL_API int gpool_kv_prefix_publish(struct gpool_kv *kv, uint64_t sequence, const struct gpool_kv_prefix *prefix);

/*
 * gpool_kv_prefix_share() - share a sequence's published blocks with other processes, without copying them.
 *
 * @timeout_ms: longest wait for the work on the cache's stream, milliseconds; 0: do not wait, -1: no limit
 *
 * Processes of the same trust domain that have caches of the same model and shape can then map the same memory
 * read-only with gpool_kv_prefix_allocate(). A chunk is shared only if it contains nothing but full blocks of this
 * sequence, in order. A cache with pool_blocks therefore allocates the blocks of new sequences in whole chunks.
 *
 * Each shared chunk becomes an ephemeral named object (kv-prefix/KEY). The object outlives this process and is charged
 * to the tenant that shared it. It is evicted as a whole when its memory is needed and no sequence of any process uses
 * it. Its blocks keep their memory, but their block numbers change in all sequences of this cache that use them
 * (gpool_kv_table(), gpool_kv_sync()). If another process has already shared the same content, the sequences switch to
 * its blocks and their own memory is freed.
 *
 * Blocks of the pool are not cached. When no sequence uses them, the agent may evict them, together with the cached
 * blocks that follow them, as soon as the work queued at that time has finished. If no cached block follows them, they
 * are unmapped by a later call that frees or allocates blocks. Until they are evicted, they can be found in the pool
 * again.
 *
 * Return: the number of the sequence's first blocks that belong to the pool, or
 *   -EOPNOTSUPP  a cache without pool_blocks
 *   -ETIMEDOUT   the work is not done
 *   -EAGAIN      the sequence is preempted
 *   -ENOSPC      all pool_blocks, or the pool's space for metadata, are in use
 *   -EUSERS      the pool has its maximum number of object versions (`objects` of its configuration)
 *   -ESTALE      an object of that name exists and cannot be used; the sequence has ended
 *   -EHOSTDOWN   the session is asleep
 *   -EBUSY       with the back end `host`: queued GPU work could write to the blocks
 *   -EINVAL      not a sequence number; timeout_ms below -1; the cache's stream is closed
 *   -EINTR       gpool_wait_check() ended the wait
 *   -ENOMEM, -EMFILE, -EIO, -EPIPE, -ECHILD
 * Chunks that were shared before an error remain shared.
 *
 * Cost: a wait for the stream; for each chunk one request to the agent, and one mapping for each handle.
 */
GPOOL_API int gpool_kv_prefix_share(struct gpool_kv *kv, uint64_t sequence, int timeout_ms);

/*
 * gpool_kv_prefix_evict() - free cached blocks, in the order of eviction.
 *
 * @blocks: maximum number of blocks to free; UINT32_MAX: all
 *
 * As after gpool_kv_free(), the memory of chunks that become empty is available to other sessions when the work queued
 * at that time has finished. Other sessions can take the memory of cached blocks without this call.
 *
 * Return: the number of freed blocks, -EOPNOTSUPP (no GPOOL_KV_PREFIXES), -ECHILD. Cost: one lock, plus time
 * proportional to the number of freed blocks.
 */
GPOOL_API int gpool_kv_prefix_evict(struct gpool_kv *kv, uint32_t blocks);

/*
 * A node of the radix tree of the published blocks: a run of blocks without a branch, used by the same sequences. The
 * tree shows which texts have a common beginning, and how many sequences use it.
 */
struct gpool_kv_prefix_node {
	/* key of its last block: a hash of all tokens up to its end, and of model, shape, adapter and salt */
	uint64_t key[2];
	uint32_t parent;      /* index of the node that it follows; UINT32_MAX: none, since its texts begin with it */
	uint32_t children;    /* number of nodes among those returned that follow it */
	uint32_t first_token; /* number of tokens before it */
	uint32_t blocks;
	int32_t last_block; /* number of its last block */
	uint32_t sequences; /* running sequences that use its blocks; 0: they are cached */
	uint32_t pooled;    /* 1: other processes can share its blocks (gpool_kv_prefix_share()) */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_kv_prefix_node, 48);

/*
 * gpool_kv_prefix_tree() - describe the published blocks of the cache as a radix tree.
 *
 * @nodes:   [most] receives the nodes, each after the one that it follows; the rest is unchanged. NULL if `most` is 0
 * @node_of: [max_blocks + pool_blocks] receives for each block the index of its node, also beyond `most`; UINT32_MAX:
 *           the block is not published. May be NULL
 *
 * A scheduler finds the node of a request with last_block of gpool_kv_prefix_find(), and the nodes of a sequence with
 * its table (gpool_kv_table()). `poolctl prefixes` shows what the processes of a machine share.
 *
 * Return: the number of nodes, which may exceed `most`, -EOPNOTSUPP (no GPOOL_KV_PREFIXES), -EINVAL (nodes is NULL and
 * most is not 0), -ENOMEM, -ECHILD. Threads: any. Cost: one lock; proportional to the number of blocks of the cache.
 */
GPOOL_API int gpool_kv_prefix_tree(
	struct gpool_kv *kv, struct gpool_kv_prefix_node *nodes, uint32_t most, uint32_t *node_of);

/* ---- state and counters ---- */

enum gpool_kv_state { GPOOL_KV_RUNNING = 1, GPOOL_KV_PREEMPTED = 2 };

struct gpool_kv_sequence_info {
	uint32_t size;  /* sizeof(struct gpool_kv_sequence_info), set by the caller */
	uint32_t state; /* enum gpool_kv_state */
	uint32_t tokens;
	/* blocks held; if preempted: blocks held before, which gpool_kv_resume() allocates again */
	uint32_t blocks;
	uint32_t shared_blocks; /* the blocks that other sequences share */
	uint32_t room;          /* tokens that can be appended without allocating or copying a block */
	uint32_t row;           /* row in the device tables */
	uint32_t priority;
	uint64_t arrival; /* a lower number arrived earlier */
	uint64_t owner_id;
};
GPOOL_ASSERT_SIZE(gpool_kv_sequence_info, 48);

/*
 * gpool_kv_sequence_info() - describe a sequence.
 *
 * Return: 0, -EINVAL (size, not a sequence number), -ESTALE, -ECHILD. Cost: one lock; proportional to the number of the
 * sequence's blocks.
 */
GPOOL_API int gpool_kv_sequence_info(struct gpool_kv *kv, uint64_t sequence, struct gpool_kv_sequence_info *info);

struct gpool_kv_stats {
	uint32_t size; /* sizeof(struct gpool_kv_stats), set by the caller */
	uint32_t used_blocks;
	uint32_t free_blocks;      /* max_blocks - used_blocks; includes cached blocks */
	uint32_t available_blocks; /* struct gpool_kv_need */
	uint32_t watermark_blocks;
	uint32_t reclaimable_blocks; /* blocks of the next victim that no other sequence shares */
	uint32_t step_blocks;        /* enough blocks for one more token of every running sequence */
	uint32_t shared_blocks;      /* own blocks that more than one sequence uses */
	uint32_t running, preempted; /* sequences */
	uint32_t committed_chunks;   /* chunks with memory */
	uint32_t cached_blocks;      /* published, without a sequence */
	uint64_t committed_bytes;    /* of committed_chunks */
	uint64_t allocations, forks, frees, preemptions, resumes; /* successful calls */
	uint64_t refusals;                                        /* for lack of blocks, sequences or pages */
	uint64_t block_copies;     /* copies of shared last blocks, and by gpool_kv_copy_blocks() */
	uint64_t table_bytes;      /* bytes copied to the device */
	uint64_t prefix_hits;      /* blocks that gpool_kv_prefix_allocate() found */
	uint64_t prefix_misses;    /* full blocks of the IDs that it did not find */
	uint64_t prefix_published; /* published blocks */
	/* blocks that their publication replaced by published blocks with the same content */
	uint64_t prefix_switched;
	uint64_t prefix_evicted; /* cached blocks that this cache evicted itself */
	uint64_t pool_shared;    /* blocks that gpool_kv_prefix_share() moved to the pool */
	uint64_t pool_found;     /* blocks found in the pool */
	uint32_t pool_blocks;    /* blocks of the pool that are mapped here */
	uint32_t offered_chunks; /* committed chunks without a sequence, which the agent may take */
	uint64_t prefix_lost;    /* cached blocks that were lost because the agent took them or an earlier block */
};
GPOOL_ASSERT_SIZE(gpool_kv_stats, 192);

/*
 * gpool_kv_stats() - read a cache's counters. Return: 0, -EINVAL (size), -ECHILD. Cost: proportional to the number of
 * sequences.
 */
GPOOL_API int gpool_kv_stats(struct gpool_kv *kv, struct gpool_kv_stats *stats);

/* ---- groups ---- */

/*
 * A group distributes sequences over several caches, usually one per GPU, so that a sequence can be longer than one
 * cache permits (KV parallelism). The first cache stores the first range_tokens tokens, the second cache the next
 * range_tokens tokens, and so on. The last cache stores all remaining tokens. A call for a group takes effect in all of
 * its caches or in none.
 *
 * A sequence of a group has the number of its part in the first cache. gpool_kv_group_span() returns the numbers of the
 * other parts, for access to their tables. The caches may also have sequences that are not of the group. Only the
 * group's calls may change the parts of its sequences, and gpool_kv_group_preempt() replaces gpool_kv_preempt() for the
 * first cache. Destroy a group before its caches. Any thread may make calls. The caches may be in several processes
 * (gpool_kv_group_create_members()).
 */
struct gpool_kv_group;

#define GPOOL_KV_GROUP_CACHES_MAX 16

enum gpool_kv_verb {
	GPOOL_KV_ORDER_DESCRIBE = 1,
	GPOOL_KV_ORDER_CAN_ALLOCATE = 2,
	GPOOL_KV_ORDER_OOM_INFO = 3,
	GPOOL_KV_ORDER_ALLOCATE = 4,
	GPOOL_KV_ORDER_APPEND = 5,
	GPOOL_KV_ORDER_SLOT = 6,
	GPOOL_KV_ORDER_FORK = 7,
	GPOOL_KV_ORDER_FREE = 8,
	GPOOL_KV_ORDER_PREEMPT = 9,
	GPOOL_KV_ORDER_RESUME = 10,
	GPOOL_KV_ORDER_INFO = 11,
	GPOOL_KV_ORDER_FITS = 12
};

/*
 * A call of a group for one of its caches, and the answer. It contains no addresses, so its bytes can be sent to
 * another process of the same machine.
 */
struct gpool_kv_order {
	uint32_t size; /* sizeof(struct gpool_kv_order) */
	uint32_t verb; /* enum gpool_kv_verb */
	int32_t result;
	uint32_t tokens;
	uint64_t sequence;
	uint64_t slot;
	uint32_t block_tokens, max_sequences;
	struct gpool_kv_request request;
	struct gpool_kv_need need;
	struct gpool_kv_sequence_info info;
};
GPOOL_ASSERT_SIZE(gpool_kv_order, 144);

/*
 * gpool_kv_execute() - execute an order of a group of another process in a cache of this process.
 *
 * @order: received from the group's process, and to be returned to it; any content is permitted
 *
 * Return: 0 (even if the call that was ordered failed; its result is in the order), -EPROTO (not an order of this
 * version of the library), -ECHILD. Threads: any. Cost: as the call that was ordered.
 */
GPOOL_API int gpool_kv_execute(struct gpool_kv *kv, struct gpool_kv_order *order);

/* A cache of a group. */
struct gpool_kv_member {
	uint32_t size; /* sizeof(struct gpool_kv_member) */
	uint32_t reserved;
	struct gpool_kv *cache; /* a cache of this process; NULL: `send` reaches it */
	/*
	 * Send the order to the process of the cache, which passes it to gpool_kv_execute(), and copy the bytes of the
	 * answer to `order`. Return 0, or a negative code if no answer is received. Afterwards, the group sends no
	 * order to this cache again, because it does not know whether the last one was executed. It is called with a
	 * lock held, so it must not call the group. Answers are checked before they are used
	 */
	int (*send)(void *context, struct gpool_kv_order *order);
	void *context;
};
GPOOL_ASSERT_SIZE(gpool_kv_member, 32);

/*
 * gpool_kv_group_create() - create a group of 1 to 16 caches, of one or several pool handles.
 *
 * @range_tokens: tokens in each cache except the last
 *
 * Return: 0, -EINVAL (count; a cache twice; range_tokens is 0, not a multiple of a cache's block_tokens, or above the
 * maximum sequence length of a cache other than the last), -ENOMEM, -ECHILD.
 */
GPOOL_API int gpool_kv_group_create(
	struct gpool_kv *const *caches, uint32_t count, uint32_t range_tokens, struct gpool_kv_group **group);

/*
 * gpool_kv_group_create_members() - create a group whose caches may be in other processes, such as the workers of an
 * engine, which a scheduler process controls.
 *
 * @members: caches of this process or others
 *
 * The caches of other processes are then controlled by this group alone. If a worker process ends, or `send` fails,
 * calls that need its cache return the code of `send`; sequences without tokens there can still be used. A sequence of
 * which a part was appended when another part was lost can only be freed (-ECONNRESET).
 *
 * Return: as gpool_kv_group_create(), -EPROTO (an answer is not that of a cache), or the code of `send`. Cost: one
 * order for each cache; each call of the group sends one or several orders to each cache that it concerns.
 */
GPOOL_API int gpool_kv_group_create_members(
	const struct gpool_kv_member *members, uint32_t count, uint32_t range_tokens, struct gpool_kv_group **group);

/*
 * gpool_kv_group_destroy() - destroy a group and end its sequences. NULL is permitted.
 *
 * Threads: no other thread may be in a call for the group.
 */
GPOOL_API void gpool_kv_group_destroy(struct gpool_kv_group *group);

/*
 * gpool_kv_group_can_allocate() - check whether a sequence can be admitted in all caches.
 *
 * @member: receives the index of the cache with the worst result; may be NULL
 * @need:   receives the numbers of that cache; may be NULL
 *
 * Return: as gpool_kv_can_allocate(), the worst result of all caches.
 */
GPOOL_API int gpool_kv_group_can_allocate(
	struct gpool_kv_group *group, uint32_t tokens, uint32_t *member, struct gpool_kv_need *need);

/*
 * gpool_kv_group_oom_info() - report the cache that refused the group's last failed allocation, append, fork, growth or
 * resume, and its numbers.
 *
 * @member: receives the index of the cache; may be NULL
 *
 * Return: as gpool_kv_oom_info() of that cache.
 */
GPOOL_API int gpool_kv_group_oom_info(struct gpool_kv_group *group, uint32_t *member, struct gpool_kv_need *need);

/* gpool_kv_group_allocate() - create a sequence. Return: as gpool_kv_allocate() of the cache that failed. */
GPOOL_API int gpool_kv_group_allocate(
	struct gpool_kv_group *group, const struct gpool_kv_request *request, uint64_t *sequence);

/*
 * gpool_kv_group_append() - append tokens to a sequence. Tokens that exceed the range of a cache begin a part in the
 * next cache.
 *
 * @member, @slot: receive the cache and the slot of the first token; may be NULL
 *
 * Return: as gpool_kv_append(), and as gpool_kv_allocate() for a new part. Cost: one more lock than gpool_kv_append(),
 * and another one with @slot.
 */
GPOOL_API int gpool_kv_group_append(
	struct gpool_kv_group *group, uint64_t sequence, uint32_t tokens, uint32_t *member, uint64_t *slot);

/* gpool_kv_group_fork() - create a sequence that shares all blocks of another one. Return: as gpool_kv_fork(). */
GPOOL_API int gpool_kv_group_fork(struct gpool_kv_group *group, uint64_t sequence, uint64_t *child);
/* gpool_kv_group_free() - end a sequence in all caches. Return: as gpool_kv_free(). */
GPOOL_API int gpool_kv_group_free(struct gpool_kv_group *group, uint64_t sequence);

/*
 * gpool_kv_group_preempt() - preempt a sequence in all caches.
 *
 * @sequence: 0: the sequence that the first cache selects, which may be outside the group
 *
 * Return: as gpool_kv_preempt(), with the sum of the blocks of all caches.
 */
GPOOL_API int gpool_kv_group_preempt(struct gpool_kv_group *group, uint64_t sequence, uint64_t *victim);
/*
 * gpool_kv_group_resume() - resume a sequence in all caches or in none. gpool_kv_waiting() of the first cache returns
 * the sequence to resume first.
 *
 * Return: as gpool_kv_resume().
 */
GPOOL_API int gpool_kv_group_resume(struct gpool_kv_group *group, uint64_t sequence);

/*
 * gpool_kv_group_grow() - append tokens to a sequence as gpool_kv_group_append(), and preempt other sequences of the
 * group in all of their caches, as gpool_kv_group_preempt(), while blocks or pages are missing.
 *
 * @growth:  as for gpool_kv_grow(). The policy chooses among the sequences of the group, and the group is not locked
 *           during its call; gpool_kv_group_oom_info() returns the cache that lacks blocks, and its numbers. A group
 *           discards content, so GPOOL_KV_GROW_OFFLOAD is not supported
 * @member, @slot: as for gpool_kv_group_append()
 * @victims: as for gpool_kv_grow()
 *
 * Without a policy, sequences that have a part in the cache that lacks blocks are preempted in the order of
 * gpool_kv_grow(): the lowest priority first, and among these the last to arrive in the group. If the sequence itself
 * is the next, the call ends with the error of the append. Sequences of the caches that are not of the group are never
 * preempted. Each failed append counts as a refusal in the statistics of its cache.
 *
 * Return: the number of preempted sequences, or an error that leaves the sequence unchanged in all caches: as
 * gpool_kv_group_append(), -EINVAL and the code of the policy as gpool_kv_grow(), or
 *   -EFBIG       a cache does not have enough blocks for its part even without other sequences; none is preempted
 *   -EOPNOTSUPP  GPOOL_KV_GROW_OFFLOAD
 *
 * Threads: any. Cost: as gpool_kv_group_append(); for each preempted sequence as gpool_kv_group_preempt(), another
 * append, and a pass over the sequences of the group; once, an order for each cache that gets tokens.
 */
GPOOL_API int gpool_kv_group_grow(struct gpool_kv_group *group, uint64_t sequence, uint32_t tokens,
	const struct gpool_kv_growth *growth, uint32_t *member, uint64_t *slot, uint64_t *victims);

/* The part of a group's sequence in one cache. */
struct gpool_kv_span {
	uint32_t size;        /* sizeof(struct gpool_kv_span), set by the caller */
	uint32_t first_token; /* index in the sequence of the first token in this cache */
	uint32_t tokens;
	uint32_t blocks;
	uint64_t sequence; /* number in this cache; 0: no part yet */
};
GPOOL_ASSERT_SIZE(gpool_kv_span, 24);

/*
 * gpool_kv_group_span() - describe the part of a sequence in one cache.
 *
 * @member: index of the cache
 *
 * Return: 0, -EINVAL (size, no such cache, not a sequence number), -ESTALE, -ECHILD. Cost: two locks, and as
 * gpool_kv_sequence_info().
 */
GPOOL_API int gpool_kv_group_span(
	struct gpool_kv_group *group, uint64_t sequence, uint32_t member, struct gpool_kv_span *span);

#ifdef __cplusplus
}
#endif

#endif
