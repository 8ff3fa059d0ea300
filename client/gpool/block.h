/* block.h - allocate, pin and free blocks of pages, and parts of pages. */
#ifndef GPOOL_BLOCK_H
#define GPOOL_BLOCK_H

#include "stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What a block holds. It weighs in, beside the time of the last use and the size, when the agent chooses what to evict:
 * TEMP_BUFFER is the cheapest to lose, then ACTIVATION, GRADIENT, LORA_WEIGHT, KV_CACHE.
 */
enum gpool_usage {
	GPOOL_USAGE_KV_CACHE = 0,    /* pinned for its request */
	GPOOL_USAGE_LORA_WEIGHT = 1, /* pinned by hand while in an active batch */
	GPOOL_USAGE_TEMP_BUFFER = 2, /* pinned for its kernel */
	GPOOL_USAGE_ACTIVATION = 3,  /* pinned for its layer's pass */
	GPOOL_USAGE_GRADIENT = 4,    /* pinned for the backward pass */
	GPOOL_USAGE_COUNT = 5
};

/*
 * A block of pages. A value: copy it freely. It names the content, not the place: after a free or an eviction it is
 * stale, and every call with it says so, also when the pages were taken for something else meanwhile.
 */
struct gpool_block {
	uint64_t generation; /* of the first page */
	uint64_t tag;        /* of the content; never repeated by this process */
	uint32_t page;       /* first page in the pool */
	uint32_t page_count;
};
GPOOL_ASSERT_SIZE(gpool_block, 24);

enum {
	GPOOL_ALLOC_FIRST_FIT = 1u << 0, /* lowest pages first instead of best fit */
	GPOOL_ALLOC_CRITICAL = 1u << 1,  /* may use the reserved pages; admins and the system tenant only */
	/* neighbouring pages of the pool, or -ENOSPC; without it a block may be scattered */
	GPOOL_ALLOC_CONTIGUOUS = 1u << 2,
	GPOOL_ALLOC_NO_EVICT = 1u << 3, /* rather -ENOSPC than another block's eviction */
	/* on eviction keep the content outside of the pool, and bring it back when it is pinned */
	GPOOL_ALLOC_SPILL = 1u << 4,
};

struct gpool_alloc_options {
	uint32_t size;     /* sizeof(struct gpool_alloc_options); GPOOL_ALLOC_OPTIONS_INIT sets it */
	uint32_t flags;    /* GPOOL_ALLOC_*; an unknown bit is -EINVAL */
	uint32_t usage;    /* enum gpool_usage */
	uint32_t priority; /* 0..3, higher stays longer */
	/* what tools show: request, adapter; free to choose. Evicted content is known again by it (`adaptive`) */
	uint64_t owner_id;
	int32_t timeout_ms; /* longest wait for pages; 0: none, -1: no limit (49 days) */
	uint32_t stream;    /* where it will be used first (gpool_stream_open); 0: anywhere */
};
GPOOL_ASSERT_SIZE(gpool_alloc_options, 32);
#define GPOOL_ALLOC_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_alloc_options), 0, 0, 0, 0, 0, 0 \
	}

/* ---- blocks ---- */

/*
 * gpool_alloc() - allocate `page_count` pages, pinned once.
 *
 * Looks into the thread's magazine, then the process's lease, then asks the agent, which takes free pages, idle pages
 * of others, unpinned blocks by its eviction policy. A request never fails while so many pages are free: when they do
 * not lie in a row, the block is scattered, and its address is contiguous all the same.
 *
 * Return: 0, or
 *   -EINVAL     page_count 0 or above the pool's, an unknown flag, usage or priority
 *   -ENOSPC     not so many pages to be had (in time); gpool_oom_info() says needed, free, pinned and by whom
 *   -EDQUOT     the tenant's limit or this process's quota
 *   -EPERM      GPOOL_ALLOC_CRITICAL without the right to it, or a session that only reads
 *   -ENOMEM     pages could not be mapped into this process
 *   -EPIPE      the agent is gone, and the lease is dry; what is allocated stays usable
 *   -ECHILD     after fork()
 *
 * Cost: a few atomics from the magazine [alloc1_free1]; a search of the lease's bitmap [alloc1, alloc100]; otherwise a
 * request to the agent [refill_p50, refill_p99]. The first use of a page maps it.
 */
GPOOL_API int gpool_alloc(
	struct gpool *pool, uint32_t page_count, const struct gpool_alloc_options *options, struct gpool_block *block);

/*
 * gpool_free() - end a block that the caller has pinned (an allocation is); the pin ends with it.
 * When other threads still pin it, the pages come back with their last unpin, and no new pin succeeds.
 * Return: 0, -ESTALE (freed already: of two frees one wins), -EINVAL (nobody has it pinned: use gpool_discard(); or not
 * a handle that gpool_alloc() returned), -ECHILD. Cost: a few atomics [free1, free100].
 */
GPOOL_API int gpool_free(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_discard() - pin and free in one: ends a block that the caller has not pinned, a spilled one too. -ESTALE: freed
 * or evicted already.
 */
GPOOL_API int gpool_discard(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_pin() - keep a block's content and place until gpool_unpin(). Pins count.
 *
 * Return: 0, or
 *   -ESTALE     freed or evicted
 *   -EIO        of a block with GPOOL_ALLOC_SPILL: it cannot be read back. When its checksum is wrong its content is
 *               lost, and from now on it is stale; else it is still kept, and another try may do: a disk failed, or the
 *               pool is without its mover (gpoold.conf(5), mover.patience)
 *   -ENOSPC, -EDQUOT  likewise: no pages to bring it back to now. It is still kept
 *   -ENOMEM     likewise: this process cannot note or map where it comes back to
 *   -EPIPE      likewise: it is spilled, and the agent is gone
 *   -EINVAL     not the handle of a block, or of one that is prepared and not committed
 *   -ETIMEDOUT  it was on the move for longer than the pool's pin_timeout (100 ms by default)
 *   -ECHILD     after fork()
 *
 * A block with GPOOL_ALLOC_SPILL that has left the pool comes back for this, into other pages: the wait is as long as
 * that takes, and the handle stays good. pin_timeout does not count then, but where nobody comes to bring it the wait
 * ends after mover.patience (5 s by default). Other blocks' pages may be evicted for it.
 *
 * Cost: one atomic, two loads [pin]; no system call unless the block is on the move. By the handle of a block that has
 * moved a lock and a look into a table more, until gpool_refresh().
 */
GPOOL_API int gpool_pin(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_unpin() - end one pin. -EINVAL: it is not pinned. -ESTALE: not this block's place any more.
 * Cost: one atomic, some loads [unpin].
 */
GPOOL_API int gpool_unpin(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_refresh() - after a block that was spilled has come back elsewhere: make *block say where it is, so that calls
 * with it find it at once again. The old handle stays good. 0, also when it has not moved; -ESTALE (spilled, or gone),
 * -EINVAL, -ECHILD.
 */
GPOOL_API int gpool_refresh(struct gpool *pool, struct gpool_block *block);

/*
 * gpool_touch() - say that a block is in use: refreshes a long pin (max_pin_duration) and the eviction policy's clock.
 */
GPOOL_API int gpool_touch(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_address() - the block's device address, page_count * gpool_page_bytes() contiguous bytes; valid while it is
 * pinned.
 */
GPOOL_API int gpool_address(struct gpool *pool, const struct gpool_block *block, uint64_t *address);

/*
 * A session and the pages that it leases. Needed: pinned, or in a thread's hands. Offered: content without a pin, kept
 * until the page is needed elsewhere. Idle: no content; evicted first.
 */
struct gpool_holder {
	uint32_t session;
	uint32_t usage; /* enum gpool_usage of most of its pages in blocks; GPOOL_USAGE_COUNT: it has no blocks */
	uint32_t needed_pages, offered_pages, idle_pages;
	char name[64];
};
GPOOL_ASSERT_SIZE(gpool_holder, 84);

enum { GPOOL_HOLDERS_MAX = 4 };

/* The fields before holder_count are as of the refusal. */
struct gpool_oom_info {
	uint32_t size;         /* sizeof(struct gpool_oom_info), set by the caller */
	uint32_t needed;       /* pages that the allocation needed */
	uint32_t free, pinned; /* pages in the pool */
	uint32_t holder;       /* session with the most pinned pages; 0: none */
	uint32_t holder_pages; /* pinned by it */
	char holder_name[64];
	uint32_t holder_count; /* 0: no session leases pages, or the agent did not answer within a second */
	struct gpool_holder holders[GPOOL_HOLDERS_MAX]; /* the sessions that lease the most pages, most first */
};
GPOOL_ASSERT_SIZE(gpool_oom_info, 428);

/*
 * gpool_oom_info() - report why the calling thread's last allocation was refused for lack of pages, and which sessions
 * hold the pages now.
 *
 * Return: 0, also when no allocation was refused (needed is 0 then); -EINVAL (its size), -ECHILD.
 * Cost: one request to the agent, which looks at all pages. None if size is offsetof(struct gpool_oom_info,
 * holder_count): then only the fields before it are filled. Threads: any.
 */
GPOOL_API int gpool_oom_info(struct gpool *pool, struct gpool_oom_info *shortage);

/* Of the objects that were pinned at the refusal, the one with the most pages. */
struct gpool_oom_object {
	uint32_t size; /* sizeof(struct gpool_oom_object), set by the caller */
	uint32_t pages;
	uint32_t session; /* that pins it most often */
	uint32_t pins;    /* of that session; 0: its GPU work is not over */
	char name[128];
	char session_name[64];
};
GPOOL_ASSERT_SIZE(gpool_oom_object, 208);
/*
 * gpool_oom_object() - report the largest object that was pinned. Return: 0; -ENOENT: no object was pinned;
 * -EINVAL (its size), -ECHILD.
 */
GPOOL_API int gpool_oom_object(struct gpool *pool, struct gpool_oom_object *object);

/*
 * gpool_release_unused() - unmap what the agent wants back for tenants of another trust domain: pages that this process
 * uses no more and still has mapped. Calls that allocate, wait or free while others wait do so by themselves, and
 * gpool_sleep() with all that is not in use; a process that is idle for long without sleeping calls this now and then
 * (it is one load where nothing is wanted), lest its former pages are retired. Return: handles let go, -ECHILD.
 */
GPOOL_API int gpool_release_unused(struct gpool *pool);

/* ---- frees and unpins behind fences ---- */

/*
 * gpool_free_after() - free a block that the caller has pinned, when a fence is reached. The call does not wait.
 *
 * From this call on the handle is stale and no new pin succeeds. The pages are reused when `fence`, all fences behind
 * which the block was unpinned before, and all other pins are past: by a later call of this process that allocates,
 * frees or waits, or by the agent when it needs pages. The agent also does so while this process sleeps or is stopped.
 * Allocations with this stream in their options may reuse them earlier, in the order of the stream.
 *
 * @fence: behind the last GPU work that uses the block (gpool_fence_record()), or an imported fence; zero, and a fence
 *         that is reached: as gpool_free(). If the process of an imported fence dies, the fence counts as reached here
 *
 * Return: 0, or, and then nothing has changed:
 *   -EINVAL  the block has no pin (use gpool_discard()); not a handle that gpool_alloc() returned; not a fence of this
 *            session
 *   -ESTALE  the block was freed before: of two frees one succeeds
 *   -ECHILD  after fork()
 *
 * Cost: as gpool_free() if the fence is reached; otherwise a lock within the process. No driver call and no request.
 * Threads: any.
 */
GPOOL_API int gpool_free_after(struct gpool *pool, const struct gpool_block *block, struct gpool_fence fence);
/*
 * gpool_unpin_after() - end one pin of a block, and protect the block from eviction until a fence is reached. The call
 * does not wait.
 *
 * The pin ends at once, and the block stays allocated: gpool_pin() succeeds as long as it was not evicted. After
 * several such calls with fences of different streams the agent respects all of these fences, also if this process is
 * stopped meanwhile.
 *
 * @fence: as in gpool_free_after(); zero, and a fence that is reached: as gpool_unpin()
 *
 * Return: 0, or, and then the pin remains:
 *   -EINVAL  the block has no pin; not a handle that gpool_alloc() returned; not a fence of this session
 *   -ESTALE  the block was freed or evicted
 *   -ENOMEM  no host memory to note the pin. That is necessary only where the sets of unfinished streams that blocks
 *            wait for use up the session's table of them; the pin then ends in a later call of this process, after the
 *            fence
 *   -ECHILD  after fork()
 *
 * Cost: as gpool_unpin(), with a few atomics more; a lock within the process where the block waits for another stream
 * too. No driver call and no request.
 * Threads: any.
 */
GPOOL_API int gpool_unpin_after(struct gpool *pool, const struct gpool_block *block, struct gpool_fence fence);

/* ---- smaller than a page ---- */

/* Part of a page, aligned to 256 bytes. */
struct gpool_span {
	struct gpool_block block; /* the page it lies in; pinned while a span in it lives */
	uint64_t address;
	uint32_t offset;
	uint32_t bytes; /* as rounded up */
};

/*
 * gpool_span_alloc() - 1 byte to half a page, from pages that this process shares among spans of one size class and
 * usage.
 * Return: as gpool_alloc(). Cost: a lock within the process [span_alloc, span_free]; the first and the last span of a
 * page also allocate and free the page.
 */
GPOOL_API int gpool_span_alloc(struct gpool *pool, uint64_t bytes, uint32_t usage, struct gpool_span *span);
GPOOL_API int gpool_span_free(struct gpool *pool, const struct gpool_span *span);

/* ---- scopes ---- */

enum {
	GPOOL_SCOPE_FREE = 1u << 0, /* free at the end instead of unpin */
};

/*
 * A scope pins what is allocated in it and unpins (or frees) all of it at its end: a kernel, a layer's pass, a request.
 * Used by one thread at a time. gpool_scope_end() with a fence lets go when the fence is reached.
 */
struct gpool_scope {
	uint32_t size; /* sizeof(struct gpool_scope), set by the caller; GPOOL_SCOPE_INIT and GPOOL_SCOPE() set it */
	uint32_t flags;
	struct gpool *pool;
	struct gpool_block *blocks;
	uint32_t count, capacity;
	uint32_t usage, reserved;
};
GPOOL_ASSERT_SIZE(gpool_scope, 40);
#define GPOOL_SCOPE_INIT \
	{ \
		sizeof(struct gpool_scope), 0, 0, 0, 0, 0, 0, 0 \
	}
GPOOL_API int gpool_scope_begin(struct gpool *pool, uint32_t usage, uint32_t flags, struct gpool_scope *scope);
GPOOL_API int gpool_scope_alloc(struct gpool_scope *scope, uint32_t page_count,
	const struct gpool_alloc_options *options, struct gpool_block *block);
/*
 * gpool_scope_end() - a second call does nothing. fence NULL: at once. Return: 0, or the first error met; all blocks
 * are let go.
 */
GPOOL_API int gpool_scope_end(struct gpool_scope *scope, struct gpool_fence fence);
GPOOL_API void gpool_scope_cleanup(struct gpool_scope *scope);
/* GPOOL_SCOPE(scope); gpool_scope_begin(pool, ..., &scope); ... - ends by itself when the C block does. */
#define GPOOL_SCOPE(variable) \
	struct gpool_scope variable __attribute__((cleanup(gpool_scope_cleanup))) = GPOOL_SCOPE_INIT

/* ---- two phases ---- */

/*
 * gpool_prepare() - take pages that nobody sees yet. gpool_commit() - make them a block and store its device address to
 * *entry (an entry of a table that kernels read; may be NULL) in one 8-byte release store; *block becomes the committed
 * block, pinned once. gpool_rollback() - give them back. A process that dies between the two rolls back by dying.
 * Only these two calls take a prepared block; others answer -EINVAL. Return: as gpool_alloc(); -ESTALE: committed or
 * rolled back.
 */
GPOOL_API int gpool_prepare(
	struct gpool *pool, uint32_t page_count, const struct gpool_alloc_options *options, struct gpool_block *block);
GPOOL_API int gpool_commit(struct gpool *pool, struct gpool_block *block, uint64_t *entry);
GPOOL_API int gpool_rollback(struct gpool *pool, const struct gpool_block *block);

#ifdef __cplusplus
}
#endif

#endif
