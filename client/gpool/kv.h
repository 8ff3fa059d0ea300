/* kv.h - paged KV caches. */
#ifndef GPOOL_KV_H
#define GPOOL_KV_H

#include "stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A paged KV cache keeps the keys and values of tokens in blocks of one size, and for each sequence a table of its
 * blocks. It has one range of addresses for its whole life, in which block i always has the same address:
 *
 *   address + i / chunk_blocks * chunk_bytes + i % chunk_blocks * block_bytes        (struct gpool_kv_layout)
 *
 * so kernels take that and the tables, and nothing else. A chunk is what it takes from the pool and gives back at once:
 * one handle with several blocks, or several with one block. It has memory from its first block in use to its last;
 * then that is reclaimable, for anybody to take. Blocks with the lowest numbers come first: of those whose chunk has
 * memory, then of chunks that get some.
 *
 * All GPU work with a cache is in the order of its one stream, or made to wait for it by the program
 * (gpool_stream_wait()): a block that is freed may be another sequence's at once, copies are queued there, and memory
 * is given back behind what is queued there by then.
 *
 * Sequences are numbers, good for this cache only. Calls may be made by any thread; but the tokens of one sequence are
 * in the order of the calls that append them, so who appends to it from several threads does not know whose slots are
 * whose neighbours.
 */
struct gpool_kv;

/*
 * What a block holds: keys and values of block_tokens tokens, 2 * layers * kv_heads * head_size * dtype_bytes bytes for
 * each.
 */
struct gpool_kv_shape {
	uint32_t layers, kv_heads, head_size;
	uint32_t dtype_bytes;  /* of an element: 1, 2, 4 or 8 */
	uint32_t block_tokens; /* a power of two up to 1,024; 0: 16 */
};
GPOOL_ASSERT_SIZE(gpool_kv_shape, 20);

enum {
	/* gpool_sleep() spills what sequences have, and waking brings it back; without it it is dropped */
	GPOOL_KV_KEEP = 1u << 0,
	/* blocks can be published, and found again by their tokens: gpool_kv_prefix_publish() */
	GPOOL_KV_PREFIXES = 1u << 1,
	/* with it: evict by what was learned of the texts; at most 256 bytes for each block */
	GPOOL_KV_ADAPTIVE = 1u << 2,
	GPOOL_KV_BF16 = 1u << 3, /* elements of 2 bytes are bfloat16, not IEEE half: for GPOOL_KV_OFFLOAD_INT8 */
};

#define GPOOL_KV_NO_WATERMARK UINT32_MAX

struct gpool_kv_options {
	uint32_t size;  /* sizeof(struct gpool_kv_options); GPOOL_KV_OPTIONS_INIT sets it */
	uint32_t flags; /* GPOOL_KV_KEEP, _PREFIXES, _ADAPTIVE, _BF16; an unknown bit is -EINVAL */
	struct gpool_kv_shape shape;
	uint32_t stream;              /* in whose order all work with the cache is; open, and not a manual one */
	uint32_t max_blocks;          /* up to 2^24, rounded up to whole chunks; 0: as many as the pool could hold */
	uint32_t max_sequences;       /* at a time, preempted ones too, up to 65,536; 0: 256 */
	uint32_t max_sequence_tokens; /* below 2^24, rounded up to whole blocks; 0: 131,072 */
	uint32_t watermark_blocks;    /* that admission leaves free; 0: 1 % of max_blocks; or GPOOL_KV_NO_WATERMARK */
	uint64_t owner_id;            /* what tools show; free to choose */
	/*
	 * GPOOL_KV_PREFIXES: hash of everything that affects the contents of keys and values (weights, quantization,
	 * ...)
	 */
	uint8_t model[32];
	uint32_t cached_blocks; /* GPOOL_KV_PREFIXES: most that stay when no sequence has them; 0: no limit */
	/* GPOOL_KV_PREFIXES: addresses for so many that other processes have too; 0: gpool_kv_prefix_share() is off */
	uint32_t pool_blocks;
	/* most that gpool_kv_compact() moves, and no more than a second's worth, or a chunk, at once; 0: no bound */
	uint64_t compact_bytes_per_s;
};
GPOOL_ASSERT_SIZE(gpool_kv_options, 104);
#define GPOOL_KV_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_kv_options), 0, {0, 0, 0, 0, 0}, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0 \
	}

/*
 * gpool_kv_create() - a cache without a block in use: addresses, and no page. It ends with gpool_kv_destroy(), or with
 * the pool handle.
 *
 * Return: 0, or
 *   -EINVAL  an unknown flag; a shape without bytes, or with a block above 2^40 bytes; a number out of range, or a
 *            watermark of all blocks; no such stream, or a manual one
 *   -EBUSY   this handle sleeps
 *   -ENOMEM  host memory, or no such addresses
 *   -EPERM   a session that only reads
 *   -EIO, -E2BIG, -ECHILD
 */
GPOOL_API int gpool_kv_create(struct gpool *pool, const struct gpool_kv_options *options, struct gpool_kv **kv);

/*
 * gpool_kv_destroy() - waits for the work on this handle's streams; sequences and addresses end. No other thread is in
 * a call for it. NULL is fine. Return: 0, -EBUSY (GPU work that the program queued elsewhere still uses it: call
 * again), -EIO, -EPIPE, -ECHILD.
 */
GPOOL_API int gpool_kv_destroy(struct gpool_kv *kv);

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
	uint32_t pool_blocks; /* numbers from max_blocks on: blocks that are the pool's, to be read only */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_kv_layout, 64);

/* gpool_kv_layout() - all that kernels need; never changes. Return: 0, -EINVAL (its size), -ECHILD. */
GPOOL_API int gpool_kv_layout(const struct gpool_kv *kv, struct gpool_kv_layout *layout);

/* gpool_kv_address() - of a block, in use or not: 0, -EINVAL (no such block), -ECHILD. */
GPOOL_API int gpool_kv_address(const struct gpool_kv *kv, uint32_t block, uint64_t *address);

/* What a request costs, and what there is for it. */
struct gpool_kv_need {
	uint32_t size; /* sizeof(struct gpool_kv_need), set by the caller */
	uint32_t needed_blocks;
	/*
	 * free ones, as far as their memory is here, or free in the pool: no content elsewhere is lost; and cached ones
	 */
	uint32_t available_blocks;
	/* all that are not in use, whether memory is to be had for them or not; cached ones too */
	uint32_t free_blocks;
	uint32_t watermark_blocks; /* of those admission leaves so many */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_kv_need, 24);

enum gpool_kv_admission {
	GPOOL_KV_OK = 0,
	/* not enough blocks now, or not without evicting what others have unpinned: gpool_kv_allocate() may try that */
	GPOOL_KV_LATER = 1,
	GPOOL_KV_NEVER = 2 /* more than a sequence may have, or than the cache or the pool has */
};

/*
 * gpool_kv_can_allocate() - whether a sequence of so many tokens can be admitted. need: may be NULL; its size is set by
 * the caller. Limits of tenants and quotas are the agent's, and not looked at. Return: enum gpool_kv_admission,
 * -EINVAL, -ECHILD. No system call.
 */
GPOOL_API int gpool_kv_can_allocate(struct gpool_kv *kv, uint32_t tokens, struct gpool_kv_need *need);

struct gpool_kv_batch {
	uint32_t size;          /* sizeof(struct gpool_kv_batch); GPOOL_KV_BATCH_INIT sets it */
	uint32_t max_sequences; /* that run, with those that are admitted; 0: as many as the cache has room for */
	uint64_t max_tokens;    /* of those that are admitted, together: what one step computes; 0: no limit */
};
GPOOL_ASSERT_SIZE(gpool_kv_batch, 16);
#define GPOOL_KV_BATCH_INIT \
	{ \
		sizeof(struct gpool_kv_batch), 0, 0 \
	}

/*
 * gpool_kv_can_batch() - how many of these requests, from the first one on, can be admitted together, within memory and
 * limits. None is passed over: the first that does not fit ends it. One that could never be admitted, as
 * gpool_kv_can_allocate() says, ends it too.
 *
 * @tokens: [count] of each request, in the order in which they are to be admitted
 * @limits: NULL: none
 * @need:   of those that fit, together; may be NULL; its size is set by the caller
 *
 * Return: how many, -EINVAL (a size), -E2BIG, -ECHILD. Limits of tenants and quotas are the agent's, and not looked at.
 * Threads: any; what another thread admits meanwhile is not there any more. No system call.
 */
GPOOL_API int gpool_kv_can_batch(struct gpool_kv *kv, const uint32_t *tokens, uint32_t count,
	const struct gpool_kv_batch *limits, struct gpool_kv_need *need);

/*
 * gpool_kv_oom_info() - of this cache's last call that answered -ENOSPC, -EDQUOT or -EFBIG. Return: 0, -EINVAL (its
 * size), -ECHILD.
 */
GPOOL_API int gpool_kv_oom_info(struct gpool_kv *kv, struct gpool_kv_need *need);

enum {
	GPOOL_KV_CONTINUES = 1u << 0, /* it goes on with what runs already, so the watermark is for it too */
};

struct gpool_kv_request {
	uint32_t size;   /* sizeof(struct gpool_kv_request); GPOOL_KV_REQUEST_INIT sets it */
	uint32_t flags;  /* GPOOL_KV_CONTINUES; an unknown bit is -EINVAL */
	uint32_t tokens; /* that it begins with: the prompt's */
	/* that it is likely to have in the end: blocks for all of them now. 0: blocks as it grows */
	uint32_t estimated_tokens;
	uint32_t priority; /* higher stays longer */
	uint32_t reserved; /* 0 */
	uint64_t owner_id; /* gpool_kv_sequence_info(); free to choose */
};
GPOOL_ASSERT_SIZE(gpool_kv_request, 32);
#define GPOOL_KV_REQUEST_INIT \
	{ \
		sizeof(struct gpool_kv_request), 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_kv_allocate() - a sequence, with blocks for its tokens, or for the estimated ones if these are more. It leaves
 * the watermark free.
 *
 * Return: 0, or, and then nothing has changed:
 *   -EINVAL  an unknown flag
 *   -EFBIG   GPOOL_KV_NEVER
 *   -ENOSPC, -EDQUOT  not so many blocks, or pages for them (now); gpool_kv_oom_info() says needed and available
 *   -EUSERS  max_sequences
 *   -EBUSY   this handle sleeps; GPU work is queued at addresses that the cache has given back, and whose memory went
 *            elsewhere
 *   -ENOMEM  the driver could not map pages
 *   -EPIPE, -E2BIG, -ECHILD
 *
 * Cost: one lock and a few stores a block where its chunk has memory [kv_alloc_128k: 8,192 blocks]; for others as
 * gpool_range_commit(), in one call for each run of chunks [kv_alloc_128k_cold].
 */
GPOOL_API int gpool_kv_allocate(struct gpool_kv *kv, const struct gpool_kv_request *request, uint64_t *sequence);

/*
 * gpool_kv_append() - `tokens` more, all or none. A last block that is not full and that other sequences have too is
 * copied first, on the cache's stream. *slot, which may be NULL, is the place of the first: block * block_tokens +
 * place in the block. The others follow there up to the end of the block, and then as the table says.
 *
 * Return: 0, or, and then nothing has changed:
 *   -EINVAL  tokens is 0, or no such sequence could be
 *   -ESTALE  the sequence has ended, or is another cache's
 *   -EAGAIN  it is preempted: gpool_kv_resume()
 *   -EFBIG   more than max_sequence_tokens
 *   -ENOSPC, -EDQUOT, -EBUSY, -ENOMEM, -EPIPE  as gpool_kv_allocate(), without the watermark
 *   -EIO     the copy could not be queued; -EINVAL also: the cache's stream is closed
 *   -ECHILD
 *
 * Cost: a compare-and-swap where there is room in the blocks that it has [kv_append_bulk]; otherwise one lock, and for
 * each block as gpool_kv_allocate() [kv_append].
 */
GPOOL_API int gpool_kv_append(struct gpool_kv *kv, uint64_t sequence, uint32_t tokens, uint64_t *slot);

/*
 * gpool_kv_fork() - another sequence with the same tokens, in the same blocks; each of both copies the last one, if it
 * is not full, when it appends and the other still has it. Blocks ahead of need stay with the first. Priority, arrival
 * and owner_id are the first one's.
 * Return: 0, -EINVAL, -ESTALE, -EAGAIN (it is preempted), -EUSERS (max_sequences), -ECHILD. Cost: a few
 * instructions a block [kv_fork: 125 blocks].
 */
GPOOL_API int gpool_kv_fork(struct gpool_kv *kv, uint64_t sequence, uint64_t *child);

/*
 * gpool_kv_free() - it ends, running or preempted; blocks that no other has are free at once, or cached if they were
 * published. Return: 0, -EINVAL, -ESTALE, -ECHILD.
 */
GPOOL_API int gpool_kv_free(struct gpool_kv *kv, uint64_t sequence);

/*
 * gpool_kv_preempt() - a running sequence gives its blocks back at once, and waits; its tokens are counted on, for the
 * program to compute their keys and values again after gpool_kv_resume().
 *
 * @sequence: 0: the running one of lowest priority, of those the one that arrived last
 * @victim:   receives which one; may be NULL
 *
 * Return: the number of blocks that are free or cached by that (those that another sequence shares are not), or
 *   -ENOENT  sequence is 0, and none runs
 *   -EAGAIN  it is preempted already
 *   -EINVAL, -ESTALE, -ECHILD
 */
GPOOL_API int gpool_kv_preempt(struct gpool_kv *kv, uint64_t sequence, uint64_t *victim);

/*
 * gpool_kv_waiting() - the preempted one to resume first: of highest priority, of those that arrived first. 0, -ENOENT
 * (none), -ECHILD.
 */
GPOOL_API int gpool_kv_waiting(struct gpool_kv *kv, uint64_t *sequence);

/*
 * gpool_kv_resume() - a preempted sequence has as many blocks again as it had, none of them shared, and as many tokens;
 * what the blocks contain is undefined, unless it was gpool_kv_offload() that preempted it. Admission: it leaves the
 * watermark free, unless no other sequence runs.
 * Return: as gpool_kv_allocate(), but for -EFBIG and -EUSERS; -EALREADY (it runs), -EINVAL, -ESTALE.
 */
GPOOL_API int gpool_kv_resume(struct gpool_kv *kv, uint64_t sequence);

/*
 * gpool_kv_host_reserve() - so much host memory for what preempted sequences contain, in blocks; it ends with the
 * cache. It is all taken and page-locked now, once for a cache. Return: 0, -EINVAL (less than a block, more than 2^24),
 * -EBUSY (it has some), -ENOMEM, -EIO, -ECHILD.
 */
GPOOL_API int gpool_kv_host_reserve(struct gpool_kv *kv, uint64_t bytes);

enum {
	/* into blocks of the pool, which leave it under pressure: to the agent's host memory, then to its file */
	GPOOL_KV_OFFLOAD_POOL = 1u << 0,
	/* as int8, in about half the room of fp16; gpool_kv_quant_error() says what that lost */
	GPOOL_KV_OFFLOAD_INT8 = 1u << 1,
};

/*
 * gpool_kv_offload() - gpool_kv_preempt(), but what the sequence's blocks contain is copied elsewhere, on the cache's
 * stream, and back by gpool_kv_resume(): it goes on where it was, and nothing is to be computed again. gpool_kv_free()
 * gives up what was copied.
 *
 * @flags: GPOOL_KV_OFFLOAD_*. 0: to the cache's own host memory (gpool_kv_host_reserve()), at the speed of a copy both
 * ways. With
 *         GPOOL_KV_OFFLOAD_POOL to blocks of the pool with GPOOL_ALLOC_SPILL, with the sequence's owner_id, up to 8
 *         pages each, unpinned: they take free pages, or those of what others have unpinned, and leave in their turn
 *         when pages are wanted, so that the bounds are the agent's (spill_memory, spill_file). The mover saves what
 *         leaves, and brings it back when the sequence is resumed or prefetched
 *
 * With GPOOL_KV_OFFLOAD_INT8 each vector of head_size elements that follow each other in a block (where head_size is
 * the innermost dimension: of each token and head, of K and of V) becomes int8 codes -127..127 and one bf16 scale, so 2
 * / head_size more than the codes; conversions are work on the stream. Elements of 4 bytes are fp32, those of 2 bytes
 * fp16, or bf16 with GPOOL_KV_BF16; those of 1 byte are kept as they are. What comes back is off by no more than 1 /
 * 252 of the largest magnitude in its vector, and the rounding to its type; zeros come back as zeros. A sequence with
 * an infinity or a NaN in it has no such form: its loss is infinite, and gpool_kv_resume() says -ENODATA.
 *
 * Return: as gpool_kv_preempt(), or, and then it runs as before:
 *   -EOPNOTSUPP  no gpool_kv_host_reserve(); with GPOOL_KV_OFFLOAD_POOL: a pool without spill_memory and spill_file;
 *                with
 *                GPOOL_KV_OFFLOAD_INT8: elements of 8 bytes, blocks below 50 bytes, or a back end without kernels
 *                (built without nvcc)
 *   -ENOSPC      the host memory has not so many free blocks; no pages are to be had to copy to, since there are two
 *                copies for a moment. Then the host memory may do
 *   -EDQUOT, -EPIPE  as gpool_alloc()
 *   -EBUSY       this handle sleeps
 *   -ENOMEM, -EIO, -EINVAL (an unknown flag; the cache's stream is closed)
 *
 * gpool_kv_resume() of such a one may also say the following, and then it is preempted as before:
 *   -EIO      its content is still kept, but the copies could not be queued, or the mover cannot bring it back now
 *             (gpool_pin())
 *   -ENODATA  its content is lost: its checksum was wrong when it came back, or it has no int8 form. From now on it is
 *             as one that gpool_kv_preempt() preempted
 *   -ENOSPC, -EDQUOT also: no page to bring it back to
 *
 * Cost: a copy for each run of blocks that are neighbours; nothing is waited for, unless pages have to be evicted. Of
 * what has left the pool and was not prefetched, gpool_kv_resume() waits for the mover, and so do other threads' calls
 * for this cache, but for gpool_kv_append() in blocks that the sequence has. gpool_kv_free() waits for what is just on
 * its way. As int8 resuming waits until the stream has come to the conversion.
 */
GPOOL_API int gpool_kv_offload(struct gpool_kv *kv, uint64_t sequence, uint32_t flags, uint64_t *victim);

/*
 * gpool_kv_prefetch() - begin to bring back into the pool what a preempted sequence will need and what has left it
 * (GPOOL_KV_OFFLOAD_POOL), so that gpool_kv_resume() need not wait. Call it again until it says 0: some pages are on
 * their way at a time, and each call takes what has come and asks for the next. Into free pages only, and those that
 * the sequence's blocks will take stay free; nothing is evicted for it. What has come may leave again when pages are
 * wanted, like all that nobody pins.
 *
 * Return: how many pages are not in the pool yet, 0: resuming it will not wait, also when nothing is kept or all is in
 * the cache's host memory; or
 *   -ENOSPC    no free pages for any of the rest
 *   -EALREADY  it runs
 *   -EIO       one cannot be brought back now; gpool_kv_resume() tries again
 *   -ENODATA   what is kept is lost, as gpool_kv_resume() will say
 *   -EDQUOT, -ENOMEM, -EPIPE, -EINVAL, -ESTALE, -ECHILD
 *
 * Cost: a look at each piece of 8 pages, and a message to the agent for each that it begins to bring; no wait.
 */
GPOOL_API int gpool_kv_prefetch(struct gpool_kv *kv, uint64_t sequence);

/*
 * What int8 has lost of a sequence's content, over all elements x of its blocks with tokens, which became x': those of
 * the last block behind them too.
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
 * gpool_kv_quant_error() - of the last gpool_kv_offload(), whether it has been resumed or not.
 * Return: 0, -ENODATA (that was not as int8), -EAGAIN (the stream has not come to it), -EINVAL (its size, no such
 * sequence could be), -ESTALE, -ECHILD.
 */
GPOOL_API int gpool_kv_quant_error(struct gpool_kv *kv, uint64_t sequence, struct gpool_kv_quant_error *loss);

/* What is kept of preempted sequences, and where. */
struct gpool_kv_offload_info {
	uint32_t size;        /* sizeof(struct gpool_kv_offload_info), set by the caller */
	uint32_t host_blocks; /* of the cache's own host memory; 0: there is none */
	uint32_t host_free_blocks;
	uint32_t sequences; /* of which content is kept now */
	uint64_t host_bytes;
	uint64_t content_bytes; /* of theirs, as it was in their blocks */
	/* of the blocks that have some of it: in the pool, in the agent's host memory, or in its file */
	uint64_t pool_pages;
	uint64_t saves, loads; /* sequences that were copied away, and back */
};
GPOOL_ASSERT_SIZE(gpool_kv_offload_info, 56);

/* gpool_kv_offload_info() - Return: 0, -EINVAL (its size), -ECHILD. Cost: a look at each preempted sequence. */
GPOOL_API int gpool_kv_offload_info(struct gpool_kv *kv, struct gpool_kv_offload_info *offloaded);

/*
 * gpool_kv_table() - the blocks of a sequence, in order: host memory, valid until gpool_kv_destroy(). It is the
 * program's to see to it that no other thread changes the sequence while it looks. count 0: it is preempted, or has no
 * token. Return: 0, -EINVAL, -ESTALE, -ECHILD.
 */
GPOOL_API int gpool_kv_table(struct gpool_kv *kv, uint64_t sequence, const int32_t **blocks, uint32_t *count);

/*
 * gpool_kv_sync() - what has changed in the tables is copied to the device, on the cache's stream: work that is queued
 * there after this call finds them as they are now, and work before it as they were. Rows of the device's table: struct
 * gpool_kv_sequence_info. Where the content was dropped in sleep (GPOOL_KV_KEEP), so were these tables: sequences that
 * are preempted and resumed are in them again.
 *
 * Return: 0, or, and then all that is not copied is by the next call:
 *   -ENOSPC, -EDQUOT, -ENOMEM, -EBUSY, -EPIPE  pages for the tables, as gpool_range_commit()
 *   -EIO, -ECHILD
 *
 * Cost: a copy for each sequence that changed, of the entries from the first to the last that did; one fence for 64 KiB
 * of them.
 */
GPOOL_API int gpool_kv_sync(struct gpool_kv *kv);

/* A block and the one that gets its content. */
struct gpool_kv_pair {
	int32_t from, to;
};

/*
 * gpool_kv_copy_blocks() - copies, in this order, on the cache's stream; neighbours in one. All blocks must be in use,
 * and one that is written be no more than one sequence's, and not published. Return: 0, -EINVAL (a block that is not
 * so, and nothing is queued), -ENOMEM, -EIO, -ECHILD.
 */
GPOOL_API int gpool_kv_copy_blocks(struct gpool_kv *kv, const struct gpool_kv_pair *pairs, size_t count);

/*
 * gpool_kv_compact() - moves blocks out of chunks that are nearly empty into holes of others, whole chunks at a time
 * and up to so many blocks, so that the memory of these chunks goes back to the pool; with compact_bytes_per_s no more
 * than that allows by now. Tables change (gpool_kv_table(), gpool_kv_sync()); copies are queued on the cache's stream.
 * For between two steps: not while a place that gpool_kv_append() told is still to be written by work that is not
 * queued
 * yet.
 *
 * Return: how many blocks have moved, or -EBUSY (this handle sleeps), -ENOMEM, -EIO, -EINVAL (the cache's stream is
 * closed), -ECHILD.
 * Cost: for each chunk a look at all chunks and at all tables, and a copy for each block.
 */
GPOOL_API int gpool_kv_compact(struct gpool_kv *kv, uint32_t blocks);

/*
 * gpool_kv_validate() - whether a block is a sequence's, of this shape (block_tokens 0 means 16 here too). For what
 * comes from elsewhere.
 * Return: 0, -EINVAL (no such block, or no such sequence could be), -ESTALE (the sequence has ended, or is another
 * cache's; the block is free), -EACCES (it is another sequence's), -EPROTO (the shape is not the cache's), -ECHILD.
 * Cost: a look at each block of the sequence.
 */
GPOOL_API int gpool_kv_validate(
	struct gpool_kv *kv, uint64_t sequence, int32_t block, const struct gpool_kv_shape *shape);

/*
 * What sequences begin with is often the same: a system prompt, the turns of a conversation. In a cache with
 * GPOOL_KV_PREFIXES a sequence's full blocks can be published, with the ids of its tokens; later sequences with the
 * same ids begin with these blocks, as forks do, and do not compute them again. A block is known by all tokens up to
 * its end, by the cache's model and shape, and by adapter and salt. When no sequence has it any more it is cached: it
 * stays until its memory is wanted (least recently used first, or with GPOOL_KV_ADAPTIVE what is least likely to be
 * found again; what follows a block before the block), until gpool_kv_prefix_evict(), or until the content is dropped
 * in sleep. Cached blocks count as free.
 *
 * Chunks without a block in use are offered, as by gpool_range_offer(), behind the work that is queued by then: when
 * memory is wanted elsewhere the agent takes such a chunk in the order of eviction, while this process calls nothing.
 * Its cached blocks, and all that follow one of them, are then found no more. A sequence that begins with cached blocks
 * has them for good. Counts are right when the call that tells them looks; what is taken after that counts until the
 * next call. In sleep what is offered is dropped, with GPOOL_KV_KEEP as well.
 */
struct gpool_kv_prefix {
	uint32_t size;       /* sizeof(struct gpool_kv_prefix); GPOOL_KV_PREFIX_INIT sets it */
	uint32_t flags;      /* none yet; an unknown bit is -EINVAL */
	const uint32_t *ids; /* [count] of the tokens, from a sequence's first one on */
	uint32_t count;
	uint32_t reserved;   /* 0 */
	uint64_t adapter_id; /* with which they are computed; 0: none */
	uint64_t salt[2];    /* only who gives the same finds the blocks; a tenant's secret keeps its own apart */
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
	uint32_t tokens;        /* that these are */
	uint32_t cached_blocks; /* of those: nobody has them, so that using them leaves fewer free ones */
};
GPOOL_ASSERT_SIZE(gpool_kv_prefix_found, 16);

/*
 * gpool_kv_prefix_find() - the longest prefix of the ids that is there, in full blocks. Nothing changes, and nothing is
 * promised for later.
 * Return: 0, -EINVAL (a size, flag; count without ids), -EOPNOTSUPP (no GPOOL_KV_PREFIXES), -E2BIG, -ECHILD.
 * Cost: one lock, a hash over each block's ids and two loads for each block found, and for one more.
 */
GPOOL_API int gpool_kv_prefix_find(
	struct gpool_kv *kv, const struct gpool_kv_prefix *prefix, struct gpool_kv_prefix_found *found);

/*
 * gpool_kv_prefix_allocate() - gpool_kv_allocate() of a sequence whose first tokens have these ids: it begins with the
 * blocks that are there, and *tokens, which may be NULL, is how many tokens of it need not be computed. Tokens beyond
 * those of the request are not looked at. Who needs the last token computed in any case gives one id less, so that its
 * block is not shared.
 * Return: as gpool_kv_allocate() and gpool_kv_prefix_find(). In gpool_kv_oom_info() needed blocks are without those
 * that others have.
 */
GPOOL_API int gpool_kv_prefix_allocate(struct gpool_kv *kv, const struct gpool_kv_request *request,
	const struct gpool_kv_prefix *prefix, uint64_t *sequence, uint32_t *tokens);

/*
 * gpool_kv_prefix_publish() - from now on the sequence's full blocks among these tokens can be found. Their keys and
 * values are written, or the work that writes them is queued on the cache's stream, or that stream waits for it: from
 * now on nobody writes to these blocks. Where the same content is there already, the sequence and its forks change over
 * to that block and give up their own (gpool_kv_table(), gpool_kv_sync()). Ids of what was published before are not
 * looked at again, so publishing as a sequence grows costs what is new. Of a group's sequences only the parts in the
 * first cache can be published: the ids of others are not those of the whole text's first tokens.
 *
 * Return: how many of the sequence's first blocks are published by now, or
 *   -EINVAL      a size, a flag, count without ids; more ids than the sequence has tokens; a block that was published
 *                with other ids, adapter or salt; no such sequence could be
 *   -EAGAIN      it is preempted
 *   -EOPNOTSUPP  no GPOOL_KV_PREFIXES
 *   -ESTALE, -E2BIG, -ECHILD
 *
 * Cost: one lock, and for each new block a hash over its ids and an entry [kv_publish].
 */
GPOOL_API int gpool_kv_prefix_publish(struct gpool_kv *kv, uint64_t sequence, const struct gpool_kv_prefix *prefix);

/*
 * gpool_kv_prefix_share() - what the sequence has published can be found by other processes with caches of the same
 * model and shape, in the same trust domain, without a copy: their gpool_kv_prefix_allocate() maps the same memory, to
 * be read. Waits for the work on the cache's stream, so that the content is there.
 *
 * Whole chunks are shared, in which there are only full blocks of this sequence in their order; a cache with
 * pool_blocks therefore lays the blocks of new sequences into whole chunks. Each becomes a named object
 * (kv-prefix/KEY), ephemeral: it outlives this process, is evicted as a whole when its memory is wanted and no sequence
 * of any process has a block of it, and counts for the tenant that shared it. Here its blocks have other numbers from
 * now on (gpool_kv_table(), gpool_kv_sync()), for all sequences that have them, and the same memory. Where another
 * process was first, the sequences change over to its blocks, and their own memory is free.
 *
 * Blocks of the pool are not cached: when no sequence has them, the agent may evict them behind the work that is queued
 * by then, with the cached blocks that follow one. Where none follows, they are unmapped at one of the next calls that
 * free or allocate, and found in the pool again as long as that has them.
 *
 * @timeout_ms: longest wait for the work, milliseconds; 0: do not wait, -1: no limit
 *
 * Return: how many of the sequence's first blocks are the pool's by now, or
 *   -EOPNOTSUPP  a cache without pool_blocks
 *   -ETIMEDOUT   the work is not done
 *   -EAGAIN      the sequence is preempted
 *   -ENOSPC      pool_blocks are in use, or the pool's metadata are
 *   -EUSERS      as many versions of objects are there as the pool may have (`objects` of its configuration)
 *   -ESTALE      an object of that name is there, and is none that can be used; the sequence has ended
 *   -EBUSY       this handle sleeps, or queued GPU work could write to the blocks
 *   -EINVAL, -ENOMEM, -EMFILE, -EIO, -EPIPE, -ECHILD
 * After an error what was shared before it stays shared.
 *
 * Cost: a wait for the stream; for each chunk one question to the agent, and one mapping for each handle.
 */
GPOOL_API int gpool_kv_prefix_share(struct gpool_kv *kv, uint64_t sequence, int timeout_ms);

/*
 * gpool_kv_prefix_evict() - up to so many cached blocks are free, those that would go next; memory of chunks that get
 * empty by that is available to others behind the work that is queued by then, as after gpool_kv_free(), without a
 * further call. UINT32_MAX: all. Others get the memory of cached blocks without it.
 * Return: how many, -EOPNOTSUPP, -ECHILD.
 */
GPOOL_API int gpool_kv_prefix_evict(struct gpool_kv *kv, uint32_t blocks);

enum gpool_kv_state { GPOOL_KV_RUNNING = 1, GPOOL_KV_PREEMPTED = 2 };

struct gpool_kv_sequence_info {
	uint32_t size;  /* sizeof(struct gpool_kv_sequence_info), set by the caller */
	uint32_t state; /* enum gpool_kv_state */
	uint32_t tokens;
	uint32_t blocks;        /* that it has; preempted: that it had, and gets when it is resumed */
	uint32_t shared_blocks; /* of those: other sequences have them too */
	uint32_t room;          /* tokens for which it needs no further block, and no copy */
	uint32_t row;           /* in the device's tables */
	uint32_t priority;
	uint64_t arrival; /* lower came earlier */
	uint64_t owner_id;
};
GPOOL_ASSERT_SIZE(gpool_kv_sequence_info, 48);

/* gpool_kv_sequence_info() - Return: 0, -EINVAL (its size), -ESTALE, -ECHILD. */
GPOOL_API int gpool_kv_sequence_info(struct gpool_kv *kv, uint64_t sequence, struct gpool_kv_sequence_info *info);

struct gpool_kv_stats {
	uint32_t size; /* sizeof(struct gpool_kv_stats), set by the caller */
	uint32_t used_blocks;
	uint32_t free_blocks;      /* these two are max_blocks; cached ones are free */
	uint32_t available_blocks; /* struct gpool_kv_need */
	uint32_t watermark_blocks;
	uint32_t reclaimable_blocks; /* that the preemption of gpool_kv_preempt()'s next victim would free */
	uint32_t step_blocks;        /* that one further token of every running sequence needs */
	uint32_t shared_blocks;      /* in use by more than one sequence */
	uint32_t running, preempted; /* sequences */
	uint32_t committed_chunks;   /* with memory */
	uint32_t cached_blocks;      /* that no sequence has, and that are kept because they may be found again */
	uint64_t committed_bytes;    /* of those */
	uint64_t allocations, forks, frees, preemptions, resumes; /* calls that succeeded */
	uint64_t refusals;                                        /* for want of blocks, sequences or pages */
	uint64_t block_copies;     /* of shared last blocks, and by gpool_kv_copy_blocks() */
	uint64_t table_bytes;      /* copied to the device */
	uint64_t prefix_hits;      /* blocks that gpool_kv_prefix_allocate() found ... */
	uint64_t prefix_misses;    /* ... and those that it did not: full ones of the ids */
	uint64_t prefix_published; /* blocks */
	/* blocks that were given up at their publication, for others with the same content */
	uint64_t prefix_switched;
	uint64_t prefix_evicted; /* cached blocks that this cache evicted itself */
	uint64_t pool_shared;    /* blocks that gpool_kv_prefix_share() gave to the pool */
	uint64_t pool_found;     /* blocks that came from there */
	uint32_t pool_blocks;    /* of the pool, mapped here now: in use, or about to leave */
	uint32_t offered_chunks; /* of committed_chunks: no sequence uses them, and the agent may take them */
	uint64_t prefix_lost;    /* cached blocks that are no more because the agent took them, or one before them */
};
GPOOL_ASSERT_SIZE(gpool_kv_stats, 192);

/* gpool_kv_stats() - Return: 0, -EINVAL (its size), -ECHILD. Cost: a look at each running sequence. */
GPOOL_API int gpool_kv_stats(struct gpool_kv *kv, struct gpool_kv_stats *statistics);

/*
 * A group of caches, each on a GPU of its own as a rule, has sequences that are longer than one of them could hold (KV
 * parallelism): the first range_tokens tokens are in the first cache, the next in the second, and the last cache has
 * all that remain. What a call for a group does it does in all of its caches, or in none.
 *
 * A sequence of a group has the number of the part of it in the first cache; gpool_kv_group_span() tells those of the
 * others, for their tables. The caches may have sequences besides. Parts of a group's are changed by the group's calls
 * alone, and gpool_kv_group_preempt() takes the place of gpool_kv_preempt() for the first cache. A group ends before
 * its caches. Calls may be made by any thread.
 */
struct gpool_kv_group;

#define GPOOL_KV_GROUP_CACHES_MAX 16

/*
 * gpool_kv_group_create() - of 1 to 16 caches, of one pool handle or of several.
 * Return: 0, -EINVAL (their number, one of them twice, a range that is 0, no multiple of a cache's block_tokens, or
 * longer than what a sequence may have in one that is not the last), -ENOMEM, -ECHILD.
 */
GPOOL_API int gpool_kv_group_create(
	struct gpool_kv *const *caches, uint32_t count, uint32_t range_tokens, struct gpool_kv_group **group);

/* gpool_kv_group_destroy() - and its sequences. No other thread is in a call for it. NULL is fine. */
GPOOL_API void gpool_kv_group_destroy(struct gpool_kv_group *group);

/*
 * gpool_kv_group_can_allocate() - the worst answer of its caches, which one gave it, and what that one lacks; both may
 * be NULL. Return: as gpool_kv_can_allocate().
 */
GPOOL_API int gpool_kv_group_can_allocate(
	struct gpool_kv_group *group, uint32_t tokens, uint32_t *member, struct gpool_kv_need *need);

/* gpool_kv_group_oom_info() - the cache for which the group's last call failed, and gpool_kv_oom_info() of it. */
GPOOL_API int gpool_kv_group_oom_info(struct gpool_kv_group *group, uint32_t *member, struct gpool_kv_need *need);

/* gpool_kv_group_allocate() - Return: as gpool_kv_allocate(), of the cache that could not. */
GPOOL_API int gpool_kv_group_allocate(
	struct gpool_kv_group *group, const struct gpool_kv_request *request, uint64_t *sequence);

/*
 * gpool_kv_group_append() - tokens that come into a further cache begin a part there. *member and *slot, which may be
 * NULL, are the place of the first one. Return: as gpool_kv_append(), and gpool_kv_allocate() for a part that begins.
 * Cost: one lock more than gpool_kv_append().
 */
GPOOL_API int gpool_kv_group_append(
	struct gpool_kv_group *group, uint64_t sequence, uint32_t tokens, uint32_t *member, uint64_t *slot);

/* Return: as gpool_kv_fork(), gpool_kv_free(). */
GPOOL_API int gpool_kv_group_fork(struct gpool_kv_group *group, uint64_t sequence, uint64_t *child);
GPOOL_API int gpool_kv_group_free(struct gpool_kv_group *group, uint64_t sequence);

/*
 * gpool_kv_group_preempt() - sequence 0: the first cache's choice, which may be one that is not the group's;
 * gpool_kv_waiting() of the first cache says whom to resume. gpool_kv_group_resume() - in all caches or in none.
 * Return: as gpool_kv_preempt(), the blocks of all caches together, and gpool_kv_resume().
 */
GPOOL_API int gpool_kv_group_preempt(struct gpool_kv_group *group, uint64_t sequence, uint64_t *victim);
GPOOL_API int gpool_kv_group_resume(struct gpool_kv_group *group, uint64_t sequence);

/* What a sequence of a group has in one cache. */
struct gpool_kv_span {
	uint32_t size;        /* sizeof(struct gpool_kv_span), set by the caller */
	uint32_t first_token; /* of the sequence, that is the first one here */
	uint32_t tokens;
	uint32_t blocks;
	uint64_t sequence; /* number in this cache; 0: nothing yet */
};
GPOOL_ASSERT_SIZE(gpool_kv_span, 24);

/* gpool_kv_group_span() - Return: 0, -EINVAL (its size, no such cache, no such sequence could be), -ESTALE, -ECHILD. */
GPOOL_API int gpool_kv_group_span(
	struct gpool_kv_group *group, uint64_t sequence, uint32_t member, struct gpool_kv_span *span);

#ifdef __cplusplus
}
#endif

#endif
