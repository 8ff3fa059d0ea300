/* kv.h - paged KV caches. */
#ifndef GPOOL_KV_H
#define GPOOL_KV_H

#include "stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- caches ---- */

/*
 * A paged KV cache stores the keys and values of tokens in blocks of one size, and for each sequence a table of its
 * blocks. It has one range of addresses for its whole life, in which block i always has the same address:
 *
 *	address + i / chunk_blocks * chunk_bytes + i % chunk_blocks * block_bytes        (struct gpool_kv_layout)
 *
 * Kernels need these numbers and the tables, and nothing else. A chunk is the unit in which the cache commits and
 * decommits memory: one driver handle with several blocks, or several handles with one block. A chunk has memory from
 * its first block in use to its last; afterwards the memory is reclaimable by any session. Blocks are allocated in
 * ascending order: first from chunks with memory, then from others.
 *
 * All GPU work with a cache is in the order of its one stream, or the program makes that stream wait for it
 * (gpool_stream_wait()): a freed block may be allocated to another sequence at once, copies are queued on the stream,
 * and memory is returned behind the work that is queued there.
 *
 * A sequence is a number, valid in this cache only. Any thread may make calls; the tokens of one sequence are in the
 * order of the calls that append them, so that of several threads that append to one sequence none knows the neighbours
 * of its slots.
 */
struct gpool_kv;

/* Shape of the content: a block has keys and values of block_tokens tokens, 2 * layers * kv_heads * head_size *
 * dtype_bytes bytes for each token. */
struct gpool_kv_shape {
	uint32_t layers, kv_heads, head_size;
	uint32_t dtype_bytes;  /* of an element: 1, 2, 4 or 8 */
	uint32_t block_tokens; /* a power of two up to 1,024; 0: 16 */
};
GPOOL_ASSERT_SIZE(gpool_kv_shape, 20);

enum {
	/* gpool_sleep() spills the content of sequences, and waking restores it; without the flag it is dropped */
	GPOOL_KV_KEEP = 1u << 0,
	/* blocks can be published, and found again by their tokens: gpool_kv_prefix_publish() */
	GPOOL_KV_PREFIXES = 1u << 1,
	/* with PREFIXES: evict by what was learned of past requests; at most 256 bytes for each block */
	GPOOL_KV_ADAPTIVE = 1u << 2,
	GPOOL_KV_BF16 = 1u << 3, /* elements of 2 bytes are bfloat16, not IEEE half; for GPOOL_KV_OFFLOAD_INT8 */
};

#define GPOOL_KV_NO_WATERMARK UINT32_MAX

struct gpool_kv_options {
	uint32_t size;  /* sizeof(struct gpool_kv_options); GPOOL_KV_OPTIONS_INIT sets it */
	uint32_t flags; /* GPOOL_KV_KEEP, _PREFIXES, _ADAPTIVE, _BF16; an unknown bit is -EINVAL */
	struct gpool_kv_shape shape;
	uint32_t stream;              /* in whose order all work with the cache is; open, not host-signaled */
	uint32_t max_blocks;          /* up to 2^24, rounded up to whole chunks; 0: as many as the pool can hold */
	uint32_t max_sequences;       /* at a time, including preempted ones, up to 65,536; 0: 256 */
	uint32_t max_sequence_tokens; /* below 2^24, rounded up to whole blocks; 0: 131,072 */
	uint32_t watermark_blocks;    /* that admission leaves free; 0: 1 % of max_blocks; or GPOOL_KV_NO_WATERMARK */
	uint64_t owner_id;            /* any number, shown by tools */
	/* PREFIXES: hash of everything that affects KV contents (weights, quantization, ...) */
	uint8_t model[32];
	uint32_t cached_blocks; /* PREFIXES: most blocks that stay without a sequence; 0: no limit */
	/* PREFIXES: addresses for blocks that other processes share; 0: gpool_kv_prefix_share() is disabled */
	uint32_t pool_blocks;
	/* average limit of gpool_kv_compact(); one call moves at most a second's worth, or one chunk; 0: no limit */
	uint64_t compact_bytes_per_s;
};
GPOOL_ASSERT_SIZE(gpool_kv_options, 104);
#define GPOOL_KV_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_kv_options), 0, {0, 0, 0, 0, 0}, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0 \
	}

/*
 * gpool_kv_create() - create a cache: addresses, without pages.
 *
 * @kv: receives the cache; gpool_kv_destroy() or gpool_close() ends it
 *
 * Return: 0, or
 *   -EINVAL     an unknown flag; a shape without bytes, or with a block above 2^40 bytes; a number out of range; a
 *               watermark of all blocks; a stream that is not open, or host-signaled
 *   -EHOSTDOWN  the session is asleep
 *   -ENOMEM     no host memory or address space
 *   -EPERM      the session is an observer or admin
 *   -EIO        the GPU driver failed
 *   -E2BIG, -ECHILD
 */
GPOOL_API int gpool_kv_create(struct gpool *pool, const struct gpool_kv_options *options, struct gpool_kv **kv);

/*
 * gpool_kv_destroy() - wait for the work on this handle's streams and end a cache, its sequences and addresses. NULL is
 * permitted.
 *
 * Return: 0, -EBUSY (GPU work that the program queued elsewhere uses it: call again), -EIO (the GPU driver failed),
 * -EPIPE, -ECHILD. Threads: no other thread may be in a call for the cache.
 */
GPOOL_API int gpool_kv_destroy(struct gpool_kv *kv);

/* Everything that kernels need; it never changes. */
struct gpool_kv_layout {
	uint32_t size; /* sizeof(struct gpool_kv_layout), set by the caller */
	uint32_t block_tokens;
	uint64_t block_bytes;
	uint64_t chunk_bytes;
	uint32_t chunk_blocks;
	uint32_t max_blocks;
	uint64_t address;       /* of block 0 */
	uint64_t table_address; /* of the device's tables: int32_t [max_sequences][table_columns]; gpool_kv_sync() */
	uint32_t table_columns;
	uint32_t max_sequences;
	uint32_t pool_blocks; /* blocks of the pool, read-only, numbered from max_blocks on */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_kv_layout, 64);

/* gpool_kv_layout() - return the layout of a cache. Return: 0, -EINVAL (size), -ECHILD. */
GPOOL_API int gpool_kv_layout(const struct gpool_kv *kv, struct gpool_kv_layout *layout);

/* gpool_kv_address() - return the address of a block, in use or not. Return: 0, -EINVAL (no such block), -ECHILD. */
GPOOL_API int gpool_kv_address(const struct gpool_kv *kv, uint32_t block, uint64_t *address);

/* ---- admission ---- */

/* The number of blocks that a request needs, and the number that are available. */
struct gpool_kv_need {
	uint32_t size; /* sizeof(struct gpool_kv_need), set by the caller */
	uint32_t needed_blocks;
	/* free and cached blocks with memory in this cache or free in the pool: no content would be evicted */
	uint32_t available_blocks;
	uint32_t free_blocks;      /* all blocks that are not in use, with or without memory; includes cached ones */
	uint32_t watermark_blocks; /* of those, blocks that admission leaves free */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_kv_need, 24);

enum gpool_kv_admission {
	GPOOL_KV_OK = 0,
	/* not enough blocks now, or only by evicting unpinned content, which gpool_kv_allocate() may do */
	GPOOL_KV_LATER = 1,
	GPOOL_KV_NEVER = 2 /* more than a sequence may have, or than the cache or the pool has */
};

/*
 * gpool_kv_can_allocate() - check whether a sequence of `tokens` tokens can be admitted.
 *
 * @need: receives the numbers; the caller sets its size. May be NULL
 *
 * Limits of tenants and quotas are not considered. Return: enum gpool_kv_admission, -EINVAL (size), -ECHILD. Cost: no
 * system call.
 */
GPOOL_API int gpool_kv_can_allocate(struct gpool_kv *kv, uint32_t tokens, struct gpool_kv_need *need);

struct gpool_kv_batch {
	uint32_t size;          /* sizeof(struct gpool_kv_batch); GPOOL_KV_BATCH_INIT sets it */
	uint32_t max_sequences; /* running ones and those that are admitted; 0: as many as the cache has room for */
	uint64_t max_tokens;    /* of all that are admitted: what one step computes; 0: no limit */
};
GPOOL_ASSERT_SIZE(gpool_kv_batch, 16);
#define GPOOL_KV_BATCH_INIT \
	{ \
		sizeof(struct gpool_kv_batch), 0, 0 \
	}

/*
 * gpool_kv_can_batch() - count how many requests, from the first one on, can be admitted together.
 *
 * @tokens: [count] tokens of each request, in the order in which they are to be admitted
 * @limits: NULL: none
 * @need:   receives the numbers of those that fit; the caller sets its size. May be NULL
 *
 * No request is bypassed: the first that does not fit, or can never be admitted, ends the count. Limits of tenants and
 * quotas are not considered.
 *
 * Return: the number of requests, -EINVAL (size), -E2BIG, -ECHILD. Threads: any; admissions of other threads change the
 * result. Cost: no system call.
 */
GPOOL_API int gpool_kv_can_batch(struct gpool_kv *kv, const uint32_t *tokens, uint32_t count,
	const struct gpool_kv_batch *limits, struct gpool_kv_need *need);

/*
 * gpool_kv_oom_info() - report the numbers of this cache's last call that returned -ENOSPC, -EDQUOT or -EFBIG.
 *
 * Return: 0, -EINVAL (size), -ECHILD.
 */
GPOOL_API int gpool_kv_oom_info(struct gpool_kv *kv, struct gpool_kv_need *need);

/* ---- sequences ---- */

enum {
	/* the request continues running work, so that it may use the watermark's blocks */
	GPOOL_KV_CONTINUES = 1u << 0,
};

struct gpool_kv_request {
	uint32_t size;   /* sizeof(struct gpool_kv_request); GPOOL_KV_REQUEST_INIT sets it */
	uint32_t flags;  /* GPOOL_KV_CONTINUES; an unknown bit is -EINVAL */
	uint32_t tokens; /* initial tokens: the prompt's */
	/* expected tokens at its end: their blocks are allocated at once. 0: blocks are allocated as it grows */
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
 * gpool_kv_allocate() - create a sequence with blocks for its tokens, or for the estimated ones if they are more.
 *
 * @sequence: receives its number
 *
 * The blocks of the watermark stay free.
 *
 * Return: 0, or, with no effect:
 *   -EINVAL     an unknown flag
 *   -EFBIG      GPOOL_KV_NEVER
 *   -ENOSPC, -EDQUOT  not enough blocks, or pages for them, now; gpool_kv_oom_info() has the numbers
 *   -EUSERS     max_sequences is reached
 *   -EHOSTDOWN  the session is asleep
 *   -EBUSY      GPU work is queued at addresses that the cache has decommitted, and whose memory was taken
 *   -ENOMEM     the driver could not map pages
 *   -EPIPE, -E2BIG, -ECHILD
 *
 * Cost: one lock and a few stores a block where its chunk has memory [kv_alloc_128k: 8,192 blocks]; for others as
 * gpool_range_commit(), in one call for each run of chunks [kv_alloc_128k_cold].
 */
GPOOL_API int gpool_kv_allocate(struct gpool_kv *kv, const struct gpool_kv_request *request, uint64_t *sequence);

/*
 * gpool_kv_append() - append tokens to a sequence, all or none.
 *
 * @slot: receives the slot of the first token: block * block_tokens + position in the block. The others follow up to
 *        the end of the block, and then as the table says. May be NULL
 *
 * A last block that is not full and that other sequences share is copied first, on the cache's stream.
 *
 * Return: 0, or, with no effect:
 *   -EINVAL  tokens is 0, not a sequence number, or the cache's stream is closed
 *   -ESTALE  the sequence has ended, or belongs to another cache
 *   -EAGAIN  the sequence is preempted: gpool_kv_resume()
 *   -EFBIG   more than max_sequence_tokens
 *   -ENOSPC, -EDQUOT, -EHOSTDOWN, -EBUSY, -ENOMEM, -EPIPE  as gpool_kv_allocate(), without the watermark
 *   -EIO     the copy could not be queued
 *   -ECHILD  after fork()
 *
 * Cost: a compare-and-swap where its blocks have room [kv_append_bulk]; otherwise one lock, and for each block as
 * gpool_kv_allocate() [kv_append].
 */
GPOOL_API int gpool_kv_append(struct gpool_kv *kv, uint64_t sequence, uint32_t tokens, uint64_t *slot);

/*
 * gpool_kv_fork() - create a sequence that shares the blocks of another one.
 *
 * @child: receives its number
 *
 * Each of both copies a last block that is not full when it appends and the other still shares it. Blocks allocated in
 * advance stay with the first one. Priority, arrival and owner_id are copied.
 *
 * Return: 0, -EINVAL (not a sequence number), -ESTALE (ended), -EAGAIN (preempted), -EUSERS (max_sequences), -ECHILD.
 * Cost: a few instructions a block [kv_fork: 125 blocks].
 */
GPOOL_API int gpool_kv_fork(struct gpool_kv *kv, uint64_t sequence, uint64_t *child);

/*
 * gpool_kv_free() - end a sequence, running or preempted. Blocks that no other sequence shares are free at once, or
 * cached if they were published.
 *
 * Return: 0, -EINVAL (not a sequence number), -ESTALE (ended before), -ECHILD.
 */
GPOOL_API int gpool_kv_free(struct gpool_kv *kv, uint64_t sequence);

/*
 * gpool_kv_preempt() - preempt a running sequence: return its blocks at once.
 *
 * @sequence: 0: the running one of the lowest priority, of those the last to arrive
 * @victim:   receives the number of the sequence; may be NULL
 *
 * Its tokens stay counted; after gpool_kv_resume() the program computes their keys and values again.
 *
 * Return: the number of blocks that are now free or cached (without those that other sequences share), or
 *   -ENOENT  sequence is 0, and none runs
 *   -EAGAIN  it is preempted
 *   -EINVAL, -ESTALE, -ECHILD
 */
GPOOL_API int gpool_kv_preempt(struct gpool_kv *kv, uint64_t sequence, uint64_t *victim);

/*
 * gpool_kv_waiting() - return the preempted sequence to resume first: of the highest priority, of those the first to
 * arrive.
 *
 * Return: 0, -ENOENT (none is preempted), -ECHILD.
 */
GPOOL_API int gpool_kv_waiting(struct gpool_kv *kv, uint64_t *sequence);

/*
 * gpool_kv_resume() - give a preempted sequence as many blocks as it had, none of them shared.
 *
 * Their content is undefined, unless gpool_kv_offload() preempted the sequence. The blocks of the watermark stay free,
 * unless no other sequence runs.
 *
 * Return: as gpool_kv_allocate(), without -EFBIG and -EUSERS; -EALREADY (it runs), -EINVAL, -ESTALE; after
 * gpool_kv_offload() also, and then it is preempted as before:
 *   -EIO      its content is kept, but the copies could not be queued, or the mover cannot restore it now (gpool_pin())
 *   -ENODATA  its content is lost: its checksum was wrong, or it has no int8 form. From now on it is as after
 *             gpool_kv_preempt()
 *   -ENOSPC, -EDQUOT also: no page to restore it to
 */
GPOOL_API int gpool_kv_resume(struct gpool_kv *kv, uint64_t sequence);

/* ---- offloading ---- */

/*
 * gpool_kv_host_reserve() - allocate and page-lock host memory for the content of preempted sequences, once for a
 * cache. It ends with the cache.
 *
 * @bytes: at least one block, at most 2^24 blocks
 *
 * Return: 0, -EINVAL (bytes), -EALREADY (the cache has host memory), -ENOMEM, -EIO (the GPU driver failed), -ECHILD.
 */
GPOOL_API int gpool_kv_host_reserve(struct gpool_kv *kv, uint64_t bytes);

enum {
	/* to spillable blocks of the pool, which the agent evicts to its host memory, then to its file */
	GPOOL_KV_OFFLOAD_POOL = 1u << 0,
	/* as int8, in about half the size of fp16; gpool_kv_quant_error() reports the loss */
	GPOOL_KV_OFFLOAD_INT8 = 1u << 1,
};

/*
 * gpool_kv_offload() - preempt a sequence and copy the content of its blocks elsewhere, on the cache's stream.
 *
 * @sequence: as in gpool_kv_preempt()
 * @flags:    0: to the cache's own host memory (gpool_kv_host_reserve()), at the speed of a copy both ways.
 *            GPOOL_KV_OFFLOAD_POOL: to unpinned blocks of the pool of up to 8 pages each, allocated with
 *            GPOOL_ALLOC_SPILL and the sequence's owner_id: they take free pages, or those of unpinned content, and are
 *            evicted in their turn, within the agent's limits (spill_memory, spill_file). The mover saves what is
 *            evicted, and restores it when the sequence is resumed or prefetched
 * @victim:   as in gpool_kv_preempt()
 *
 * gpool_kv_resume() copies the content back, so that nothing has to be computed again; gpool_kv_free() discards it.
 *
 * With GPOOL_KV_OFFLOAD_INT8 each vector of head_size elements that follow each other in a block (where head_size is
 * the innermost dimension: of each token and head, of K and of V) becomes int8 codes -127..127 and one bf16 scale,
 * which is 2 / head_size more than the codes; conversions are work on the stream. Elements of 4 bytes are fp32, those
 * of 2 bytes fp16, or bf16 with GPOOL_KV_BF16; those of 1 byte are kept as they are. A restored element differs by at
 * most 1 / 252 of the largest magnitude in its vector, and the rounding to its type; zeros are restored as zeros. A
 * sequence with an infinity or a NaN has no such form: its loss is infinite, and gpool_kv_resume() returns -ENODATA.
 *
 * Return: as gpool_kv_preempt(), or, and then it runs as before:
 *   -EOPNOTSUPP  no gpool_kv_host_reserve(); GPOOL_KV_OFFLOAD_POOL: a pool without spill_memory and spill_file;
 *                GPOOL_KV_OFFLOAD_INT8: elements of 8 bytes, blocks below 50 bytes, or a back end without kernels
 *                (built without nvcc)
 *   -ENOSPC      too few free blocks of host memory; no pages to copy to, since both copies exist for a moment. Then
 *                the host memory may have room
 *   -EDQUOT, -EPIPE  as gpool_alloc()
 *   -EHOSTDOWN   the session is asleep
 *   -EINVAL      an unknown flag; the cache's stream is closed
 *   -ENOMEM, -EIO
 *
 * Cost: a copy for each run of neighbouring blocks; no wait, unless pages have to be evicted. If content was evicted
 * and not prefetched, gpool_kv_resume() waits for the mover, and so do other threads' calls for this cache, except
 * gpool_kv_append() in blocks that the sequence has; gpool_kv_free() waits for content that is being moved. With int8,
 * resuming waits until the stream has reached the conversion.
 */
GPOOL_API int gpool_kv_offload(struct gpool_kv *kv, uint64_t sequence, uint32_t flags, uint64_t *victim);

/*
 * gpool_kv_prefetch() - begin to restore evicted content of a preempted sequence (GPOOL_KV_OFFLOAD_POOL), so that
 * gpool_kv_resume() need not wait.
 *
 * Call it repeatedly until it returns 0: each call collects restored pages and requests the next ones. It uses free
 * pages only, leaves those free that the sequence's blocks need, and evicts nothing. Restored content may be evicted
 * again, like all unpinned content.
 *
 * Return: the number of pages that are not in the pool yet; 0: resuming will not wait, also if nothing is kept or all
 * is in the cache's host memory; or
 *   -ENOSPC    no free pages for any of the rest
 *   -EALREADY  it runs
 *   -EIO       a part cannot be restored now; gpool_kv_resume() tries again
 *   -ENODATA   the content is lost, as gpool_kv_resume() will report
 *   -EDQUOT, -ENOMEM, -EPIPE, -EINVAL, -ESTALE, -ECHILD
 *
 * Cost: examines each piece of 8 pages, and sends a message to the agent for each that it begins to restore; no wait.
 */
GPOOL_API int gpool_kv_prefetch(struct gpool_kv *kv, uint64_t sequence);

/*
 * The loss of a sequence's content by int8, over all elements x of its blocks with tokens, which became x'; including
 * those of the last block behind its tokens.
 */
struct gpool_kv_quant_error {
	uint32_t size; /* sizeof(struct gpool_kv_quant_error), set by the caller */
	uint32_t reserved;
	double max_error; /* max |x - x'|; infinity: there is no int8 form */
	/* sqrt(sum (x - x')^2 / sum x^2), without the rounding to the element's type; 0 where all x are 0 */
	double relative_error;
};
GPOOL_ASSERT_SIZE(gpool_kv_quant_error, 24);

/*
 * gpool_kv_quant_error() - return the loss of a sequence's last gpool_kv_offload(), whether it was resumed or not.
 *
 * Return: 0, -ENODATA (it was not offloaded as int8), -EAGAIN (the stream has not reached the conversion), -EINVAL
 * (size, not a sequence number), -ESTALE, -ECHILD.
 */
GPOOL_API int gpool_kv_quant_error(struct gpool_kv *kv, uint64_t sequence, struct gpool_kv_quant_error *loss);

/* The content that is kept of preempted sequences. */
struct gpool_kv_offload_info {
	uint32_t size;        /* sizeof(struct gpool_kv_offload_info), set by the caller */
	uint32_t host_blocks; /* blocks of host memory of the cache itself; 0: it has none */
	uint32_t host_free_blocks;
	uint32_t sequences; /* whose content is kept now */
	uint64_t host_bytes;
	uint64_t content_bytes; /* of their content, as it was in their blocks */
	/* of the blocks that keep it: in the pool, in the agent's host memory, or in its file */
	uint64_t pool_pages;
	uint64_t saves, loads; /* sequences that were copied out, and back */
};
GPOOL_ASSERT_SIZE(gpool_kv_offload_info, 56);

/*
 * gpool_kv_offload_info() - describe the content that is kept of preempted sequences.
 *
 * Return: 0, -EINVAL (size), -ECHILD. Cost: examines each preempted sequence.
 */
GPOOL_API int gpool_kv_offload_info(struct gpool_kv *kv, struct gpool_kv_offload_info *info);

/* ---- tables and blocks ---- */

/*
 * gpool_kv_table() - return the blocks of a sequence, in order: host memory that is valid until gpool_kv_destroy().
 *
 * @count: receives the number of blocks; 0: the sequence is preempted, or has no token
 *
 * The program must ensure that no other thread changes the sequence while it reads the table.
 *
 * Return: 0, -EINVAL (not a sequence number), -ESTALE, -ECHILD.
 */
GPOOL_API int gpool_kv_table(struct gpool_kv *kv, uint64_t sequence, const int32_t **blocks, uint32_t *count);

/*
 * gpool_kv_sync() - copy the changes of all tables to the device, on the cache's stream.
 *
 * Work that is queued there after this call reads the tables as they are now, work before it as they were. The row of a
 * sequence in the device's table is in struct gpool_kv_sequence_info. If sleep drops the content (no GPOOL_KV_KEEP), it
 * drops these tables as well: sequences that are preempted and resumed are in them again.
 *
 * Return: 0, or, and then the next call copies the rest:
 *   -ENOSPC, -EDQUOT, -ENOMEM, -EHOSTDOWN, -EBUSY, -EPIPE  pages for the tables, as gpool_range_commit()
 *   -EIO     the copy could not be queued
 *   -ECHILD  after fork()
 *
 * Cost: a copy for each sequence that changed, of the entries from the first to the last that did; one fence for 64 KiB
 * of them.
 */
GPOOL_API int gpool_kv_sync(struct gpool_kv *kv);

/* A copy between blocks. */
struct gpool_kv_pair {
	int32_t from, to;
};

/*
 * gpool_kv_copy_blocks() - queue copies of blocks in the given order, on the cache's stream; neighbours in one copy.
 *
 * All blocks must be in use; one that is written must belong to one sequence only, and not be published.
 *
 * Return: 0, -EINVAL (a block that does not meet this; nothing is queued), -ENOMEM, -EIO (a copy could not be queued),
 * -ECHILD.
 */
GPOOL_API int gpool_kv_copy_blocks(struct gpool_kv *kv, const struct gpool_kv_pair *pairs, size_t count);

/*
 * gpool_kv_compact() - move blocks out of chunks that are nearly empty into free blocks of other chunks, so that the
 * memory of these chunks is returned to the pool.
 *
 * @blocks: most blocks to move; whole chunks are moved. compact_bytes_per_s limits it further
 *
 * Tables change (gpool_kv_table(), gpool_kv_sync()), and copies are queued on the cache's stream. Call it between two
 * steps: not while work that writes to a slot of gpool_kv_append() is not queued yet.
 *
 * Return: the number of blocks that were moved, or -EHOSTDOWN (asleep), -ENOMEM, -EIO (a copy could not be queued),
 * -EINVAL (the cache's stream is closed), -ECHILD.
 * Cost: for each chunk a look at all chunks and all tables, and a copy for each block.
 */
GPOOL_API int gpool_kv_compact(struct gpool_kv *kv, uint32_t blocks);

/*
 * gpool_kv_validate() - check that a block belongs to a sequence and has a shape; for numbers from an untrusted source.
 *
 * @shape: block_tokens 0 means 16
 *
 * Return: 0, or
 *   -EINVAL  no such block, or not a sequence number
 *   -ESTALE  the sequence has ended, or belongs to another cache; the block is free
 *   -EACCES  the block belongs to another sequence
 *   -EPROTO  the shape is not the cache's
 *   -ECHILD  after fork()
 *
 * Cost: a look at each block of the sequence.
 */
GPOOL_API int gpool_kv_validate(
	struct gpool_kv *kv, uint64_t sequence, int32_t block, const struct gpool_kv_shape *shape);

/* ---- prefixes ---- */

/*
 * Sequences often begin with the same tokens: a system prompt, the turns of a conversation. In a cache with
 * GPOOL_KV_PREFIXES the full blocks of a sequence can be published with the IDs of its tokens; later sequences with the
 * same IDs begin with these blocks, as forks do, and need not compute them again. A block is identified by all tokens
 * up to its end, by the cache's model and shape, and by adapter and salt. A published block without a sequence is
 * cached: it stays until its memory is needed (least recently used first, or with GPOOL_KV_ADAPTIVE the one that is
 * least likely to be found again; later blocks of a prefix before earlier ones), until gpool_kv_prefix_evict(), or
 * until sleep drops the content. Cached blocks count as free.
 *
 * Chunks without a block in use are offered, as by gpool_range_offer(), behind the work that is queued at that time:
 * when memory is needed elsewhere, the agent takes such a chunk in the order of eviction, without a call of this
 * process. Its cached blocks, and all that follow one of them, are then not found any more. A sequence that begins with
 * cached blocks holds them for good. Counters are correct when the call that returns them reads them; what is taken
 * afterwards counts until the next call. Sleep drops offered chunks, also with GPOOL_KV_KEEP.
 */
struct gpool_kv_prefix {
	uint32_t size;       /* sizeof(struct gpool_kv_prefix); GPOOL_KV_PREFIX_INIT sets it */
	uint32_t flags;      /* 0; an unknown bit is -EINVAL */
	const uint32_t *ids; /* [count] of the tokens, from a sequence's first one on */
	uint32_t count;
	uint32_t reserved;   /* 0 */
	uint64_t adapter_id; /* adapter that computes them; 0: none */
	uint64_t salt[2];    /* blocks are found only with the same salt; a secret separates tenants */
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
	uint32_t blocks;        /* from the first on, without a gap */
	uint32_t tokens;        /* in these blocks */
	uint32_t cached_blocks; /* of those, blocks without a sequence: using them leaves fewer free ones */
};
GPOOL_ASSERT_SIZE(gpool_kv_prefix_found, 16);

/*
 * gpool_kv_prefix_find() - find the longest published prefix of token IDs, in full blocks. Nothing is reserved.
 *
 * Return: 0, -EINVAL (size, flag; count without ids), -EOPNOTSUPP (no GPOOL_KV_PREFIXES), -E2BIG, -ECHILD.
 * Cost: one lock; a hash over each block's IDs and two loads for each block found, and for one more.
 */
GPOOL_API int gpool_kv_prefix_find(
	struct gpool_kv *kv, const struct gpool_kv_prefix *prefix, struct gpool_kv_prefix_found *found);

/*
 * gpool_kv_prefix_allocate() - create a sequence, as gpool_kv_allocate(), that begins with the published blocks of its
 * first tokens.
 *
 * @prefix: IDs of its first tokens; those beyond the request's tokens are ignored. Pass one ID less if the last token
 *          is to be computed in any case, so that its block is not shared
 * @tokens: receives the number of tokens that need not be computed; may be NULL
 *
 * In gpool_kv_oom_info() the needed blocks are without the shared ones. Return: as gpool_kv_allocate() and
 * gpool_kv_prefix_find().
 */
GPOOL_API int gpool_kv_prefix_allocate(struct gpool_kv *kv, const struct gpool_kv_request *request,
	const struct gpool_kv_prefix *prefix, uint64_t *sequence, uint32_t *tokens);

/*
 * gpool_kv_prefix_publish() - publish a sequence's full blocks among these tokens.
 *
 * Their keys and values must be written, or the work that writes them queued on the cache's stream, or that stream must
 * wait for it; from now on these blocks must not be written. Where the same content is published already, the sequence
 * and its forks change to that block and release their own (gpool_kv_table(), gpool_kv_sync()). IDs that were published
 * before are not read again, so that publishing a growing sequence costs only the new part. Of a group's sequences only
 * the parts in the first cache can be published, since IDs must start with the text's first token.
 *
 * Return: the number of the sequence's first blocks that are published, or
 *   -EINVAL      size, flag, count without ids; more IDs than the sequence has tokens; a block that was published with
 *                other IDs, adapter or salt; not a sequence number
 *   -EAGAIN      the sequence is preempted
 *   -EOPNOTSUPP  no GPOOL_KV_PREFIXES
 *   -ESTALE, -E2BIG, -ECHILD
 *
 * Cost: one lock, and for each new block a hash over its IDs and an entry [kv_publish].
 */
GPOOL_API int gpool_kv_prefix_publish(struct gpool_kv *kv, uint64_t sequence, const struct gpool_kv_prefix *prefix);

/*
 * gpool_kv_prefix_share() - share a sequence's published blocks with other processes, without a copy.
 *
 * @timeout_ms: longest wait for the work on the cache's stream, milliseconds; 0: do not wait, -1: no limit
 *
 * gpool_kv_prefix_allocate() of other processes of the same trust domain, with caches of the same model and shape, maps
 * the same memory read-only. Whole chunks are shared that contain only full blocks of this sequence in their order; a
 * cache with pool_blocks therefore allocates the blocks of new sequences in whole chunks. Each chunk becomes an
 * ephemeral named object (kv-prefix/KEY): it outlives this process, is evicted as a whole when its memory is needed and
 * no sequence of any process uses it, and counts for the tenant that shared it. In this cache its blocks get other
 * numbers (gpool_kv_table(), gpool_kv_sync()), for all sequences that use them, and the same memory. Where another
 * process has shared the same content, the sequences change to its blocks, and their own memory is freed.
 *
 * Blocks of the pool are not cached: without a sequence the agent may evict them behind the work that is queued at that
 * time, with the cached blocks that follow. If none follows, they are unmapped by a later call that frees or allocates,
 * and found in the pool again as long as it has them.
 *
 * Return: the number of the sequence's first blocks that are the pool's, or
 *   -EOPNOTSUPP  a cache without pool_blocks
 *   -ETIMEDOUT   the work is not done
 *   -EAGAIN      the sequence is preempted
 *   -ENOSPC      all pool_blocks are in use, or the pool's space for metadata
 *   -EUSERS      the pool has the most versions of objects that it can have (`objects` of its configuration)
 *   -ESTALE      an object of that name exists and cannot be used; the sequence has ended
 *   -EHOSTDOWN   the session is asleep
 *   -EBUSY       queued GPU work could write to the blocks
 *   -EINVAL, -ENOMEM, -EMFILE, -EIO, -EPIPE, -ECHILD
 * After an error, chunks that were shared before it remain shared.
 *
 * Cost: a wait for the stream; for each chunk one request to the agent, and one mapping for each handle.
 */
GPOOL_API int gpool_kv_prefix_share(struct gpool_kv *kv, uint64_t sequence, int timeout_ms);

/*
 * gpool_kv_prefix_evict() - free cached blocks, in the order of eviction.
 *
 * @blocks: most blocks to free; UINT32_MAX: all
 *
 * Memory of chunks that become empty is available to other sessions behind the work that is queued at that time, as
 * after gpool_kv_free(), without a further call. Other sessions also get the memory of cached blocks without this call.
 *
 * Return: the number of blocks freed, -EOPNOTSUPP (no GPOOL_KV_PREFIXES), -ECHILD.
 */
GPOOL_API int gpool_kv_prefix_evict(struct gpool_kv *kv, uint32_t blocks);

/* ---- state and counters ---- */

enum gpool_kv_state { GPOOL_KV_RUNNING = 1, GPOOL_KV_PREEMPTED = 2 };

struct gpool_kv_sequence_info {
	uint32_t size;  /* sizeof(struct gpool_kv_sequence_info), set by the caller */
	uint32_t state; /* enum gpool_kv_state */
	uint32_t tokens;
	uint32_t blocks;        /* that it has; preempted: that it had, and gets when it is resumed */
	uint32_t shared_blocks; /* of those, blocks that other sequences share */
	uint32_t room;          /* tokens that fit without a further block or copy */
	uint32_t row;           /* in the device's tables */
	uint32_t priority;
	uint64_t arrival; /* a lower number arrived earlier */
	uint64_t owner_id;
};
GPOOL_ASSERT_SIZE(gpool_kv_sequence_info, 48);

/* gpool_kv_sequence_info() - describe a sequence. Return: 0, -EINVAL (size), -ESTALE, -ECHILD. */
GPOOL_API int gpool_kv_sequence_info(struct gpool_kv *kv, uint64_t sequence, struct gpool_kv_sequence_info *info);

struct gpool_kv_stats {
	uint32_t size; /* sizeof(struct gpool_kv_stats), set by the caller */
	uint32_t used_blocks;
	uint32_t free_blocks;      /* used and free blocks are max_blocks; cached ones are free */
	uint32_t available_blocks; /* struct gpool_kv_need */
	uint32_t watermark_blocks;
	uint32_t reclaimable_blocks; /* that gpool_kv_preempt() of its next victim would free */
	uint32_t step_blocks;        /* that one more token of every running sequence needs */
	uint32_t shared_blocks;      /* used by more than one sequence */
	uint32_t running, preempted; /* sequences */
	uint32_t committed_chunks;   /* with memory */
	uint32_t cached_blocks;      /* published, without a sequence */
	uint64_t committed_bytes;    /* of committed_chunks */
	uint64_t allocations, forks, frees, preemptions, resumes; /* calls that succeeded */
	uint64_t refusals;                                        /* for lack of blocks, sequences or pages */
	uint64_t block_copies;     /* of shared last blocks, and by gpool_kv_copy_blocks() */
	uint64_t table_bytes;      /* copied to the device */
	uint64_t prefix_hits;      /* blocks that gpool_kv_prefix_allocate() found */
	uint64_t prefix_misses;    /* full blocks of the IDs that it did not find */
	uint64_t prefix_published; /* blocks */
	/* blocks that were replaced at their publication by others with the same content */
	uint64_t prefix_switched;
	uint64_t prefix_evicted; /* cached blocks that this cache evicted itself */
	uint64_t pool_shared;    /* blocks that gpool_kv_prefix_share() gave to the pool */
	uint64_t pool_found;     /* blocks found in the pool */
	uint32_t pool_blocks;    /* blocks of the pool that are mapped here */
	uint32_t offered_chunks; /* of committed_chunks: without a sequence, so that the agent may take them */
	uint64_t prefix_lost;    /* cached blocks that were lost because the agent took them, or one before them */
};
GPOOL_ASSERT_SIZE(gpool_kv_stats, 192);

/* gpool_kv_stats() - read a cache's counters. Return: 0, -EINVAL (size), -ECHILD. Cost: a look at each sequence. */
GPOOL_API int gpool_kv_stats(struct gpool_kv *kv, struct gpool_kv_stats *stats);

/* ---- groups ---- */

/*
 * A group of caches, usually each on its own GPU, has sequences that are longer than one cache can hold (KV
 * parallelism): the first range_tokens tokens are in the first cache, the next in the second, and the last cache has
 * all remaining ones. A call for a group takes effect in all of its caches or in none.
 *
 * A sequence of a group has the number of its part in the first cache; gpool_kv_group_span() returns those of the other
 * parts, for their tables. The caches may have further sequences. Parts of a group's sequences are changed by the
 * group's calls alone, and gpool_kv_group_preempt() replaces gpool_kv_preempt() for the first cache. A group ends
 * before its caches. Calls may be made by any thread.
 */
struct gpool_kv_group;

#define GPOOL_KV_GROUP_CACHES_MAX 16

/*
 * gpool_kv_group_create() - create a group of 1 to 16 caches, of one pool handle or of several.
 *
 * @range_tokens: tokens in each cache but the last
 *
 * Return: 0, -EINVAL (their number, one of them twice, a range that is 0, no multiple of a cache's block_tokens, or
 * longer than a sequence may be in one that is not the last), -ENOMEM, -ECHILD.
 */
GPOOL_API int gpool_kv_group_create(
	struct gpool_kv *const *caches, uint32_t count, uint32_t range_tokens, struct gpool_kv_group **group);

/*
 * gpool_kv_group_destroy() - end a group and its sequences. NULL is permitted.
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
 * Return: as gpool_kv_can_allocate(), the worst of all caches.
 */
GPOOL_API int gpool_kv_group_can_allocate(
	struct gpool_kv_group *group, uint32_t tokens, uint32_t *member, struct gpool_kv_need *need);

/* gpool_kv_group_oom_info() - report the cache for which the group's last call failed, and its numbers. */
GPOOL_API int gpool_kv_group_oom_info(struct gpool_kv_group *group, uint32_t *member, struct gpool_kv_need *need);

/* gpool_kv_group_allocate() - create a sequence. Return: as gpool_kv_allocate(), of the cache that failed. */
GPOOL_API int gpool_kv_group_allocate(
	struct gpool_kv_group *group, const struct gpool_kv_request *request, uint64_t *sequence);

/*
 * gpool_kv_group_append() - append tokens to a sequence; tokens that reach a further cache begin a part there.
 *
 * @member, @slot: receive the cache and the slot of the first token; may be NULL
 *
 * Return: as gpool_kv_append(), and as gpool_kv_allocate() for a part that begins. Cost: one lock more than
 * gpool_kv_append().
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
 * @sequence: 0: the choice of the first cache, which may be a sequence outside of the group
 *
 * Return: as gpool_kv_preempt(), the blocks of all caches together.
 */
GPOOL_API int gpool_kv_group_preempt(struct gpool_kv_group *group, uint64_t sequence, uint64_t *victim);
/*
 * gpool_kv_group_resume() - resume a sequence in all caches or in none; gpool_kv_waiting() of the first cache returns
 * the one to resume first.
 *
 * Return: as gpool_kv_resume().
 */
GPOOL_API int gpool_kv_group_resume(struct gpool_kv_group *group, uint64_t sequence);

/* The part of a group's sequence in one cache. */
struct gpool_kv_span {
	uint32_t size;        /* sizeof(struct gpool_kv_span), set by the caller */
	uint32_t first_token; /* of the sequence, that is the first one here */
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
 * Return: 0, -EINVAL (size, no such cache, not a sequence number), -ESTALE, -ECHILD.
 */
GPOOL_API int gpool_kv_group_span(
	struct gpool_kv_group *group, uint64_t sequence, uint32_t member, struct gpool_kv_span *span);

#ifdef __cplusplus
}
#endif

#endif
