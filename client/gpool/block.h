/* block.h - allocate, pin and free blocks of pages; spans, scopes, two-phase allocation. */
#ifndef GPOOL_BLOCK_H
#define GPOOL_BLOCK_H

#include "stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The purpose of a block. The usage and the priority of a block are among the criteria by which the agent selects
 * blocks to evict. With `lru_size_aware`, the others are the time of the last use and the size; with `adaptive`, the
 * expected uses and the reload cost (gpoold.conf(5), eviction.policy). If the other criteria are equal, the order is
 * TEMP_BUFFER (evicted first), ACTIVATION, GRADIENT, LORA_WEIGHT, KV_CACHE. Each comment below is the pin rule: how
 * long such a block is pinned. Scopes enforce it, with GPOOL_SCOPE_THREAD for all blocks of the usage that a thread
 * allocates. KV caches and adapters (kv.h, lora.h) pin their own blocks by the rule. The first gpool_alloc() of a
 * TEMP_BUFFER, ACTIVATION or GRADIENT outside of such a scope is logged, since only the program can then end the pin.
 */
enum gpool_usage {
	GPOOL_USAGE_KV_CACHE = 0,    /* until its request ends */
	GPOOL_USAGE_LORA_WEIGHT = 1, /* while a batch uses the adapter */
	GPOOL_USAGE_TEMP_BUFFER = 2, /* until its kernel ends */
	GPOOL_USAGE_ACTIVATION = 3,  /* until the pass of its layer ends */
	GPOOL_USAGE_GRADIENT = 4,    /* until the backward pass ends */
	GPOOL_USAGE_COUNT = 5
};

/*
 * Handle of a block of pages; a value that may be copied freely. It identifies the content, not the pages. After a free
 * or an eviction the handle is stale: calls with it return -ESTALE, even if the pages are in use again.
 */
struct gpool_block {
	uint64_t generation; /* of the first page */
	uint64_t tag;        /* of the content; never repeated by this process */
	uint32_t page;       /* first page in the pool */
	uint32_t page_count;
};
GPOOL_ASSERT_SIZE(gpool_block, 24);

enum {
	GPOOL_ALLOC_FIRST_FIT = 1u << 0, /* take the lowest pages instead of the best fit */
	/* may take the reserved pages; for users with the right to open an admin session, and for tenant "system" */
	GPOOL_ALLOC_CRITICAL = 1u << 1,
	/* allocate adjacent pages of the pool, or fail with -ENOSPC; without this flag a block may be scattered */
	GPOOL_ALLOC_CONTIGUOUS = 1u << 2,
	GPOOL_ALLOC_NO_EVICT = 1u << 3, /* fail with -ENOSPC or -EDQUOT instead of evicting content */
	/*
	 * spill the content to host memory or a file when the block is evicted; gpool_pin() restores it into other
	 * pages. The block counts against the agent's spill budget until it is freed, even while it is in the pool
	 */
	GPOOL_ALLOC_SPILL = 1u << 4,
};

struct gpool_alloc_options {
	uint32_t size;     /* sizeof(struct gpool_alloc_options); GPOOL_ALLOC_OPTIONS_INIT sets it */
	uint32_t flags;    /* GPOOL_ALLOC_*; an unknown bit is -EINVAL */
	uint32_t usage;    /* enum gpool_usage */
	uint32_t priority; /* 0..3; of two otherwise equal blocks, the one of the higher priority is evicted later */
	/*
	 * any number, such as that of a request or adapter; tools display it, and the `adaptive` policy recognizes
	 * evicted content by it
	 */
	uint64_t owner_id;
	int32_t timeout_ms; /* longest wait for pages, also at a limit; 0: none, -1: no limit (at most 49 days) */
	/*
	 * stream of the block's first use. The allocation may then reuse a block of the same number of pages that was
	 * freed after work of this stream, before that work is done. 0: no such reuse
	 */
	uint32_t stream;
};
GPOOL_ASSERT_SIZE(gpool_alloc_options, 32);
#define GPOOL_ALLOC_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_alloc_options), 0, 0, 0, 0, 0, 0 \
	}

/* ---- blocks ---- */

/*
 * gpool_alloc() - allocate a block of pages, pinned once.
 *
 * @page_count: number of pages
 * @options:    NULL: the defaults
 * @block:      receives the handle
 *
 * Pages are taken first from the thread's magazine, then from the lease of the session. If the lease is used up, the
 * agent leases further pages: free pages, idle pages of other sessions, and pages of unpinned content that it evicts.
 * If the pages are not adjacent, the block is scattered: its pages are mapped at contiguous addresses. Blocks are not
 * scattered with GPOOL_ALLOC_CONTIGUOUS. If driver handles have several pages (gpool_range_info, handle_pages), handles
 * are mapped as a whole: a scattered block consists of whole handles, the end of a handle before them, and the start of
 * a handle after them. It may therefore fail although enough pages are free, but not while enough whole handles are.
 *
 * Return: 0, or
 *   -EINVAL      page_count is 0 or exceeds the pool; an unknown flag, usage, priority or stream; timeout_ms below -1
 *   -E2BIG       options of a newer library, with a field set that this library does not have
 *   -EOPNOTSUPP  GPOOL_ALLOC_SPILL, and the pool has neither memory nor a file for spilled content
 *   -ENOSPC      not enough pages in time, apart from those reserved for other tenants; gpool_oom_info() returns the
 *                details
 *   -EDQUOT      the limit of the tenant or the quota of this session is reached
 *   -EPERM       GPOOL_ALLOC_CRITICAL in a session that may not use it; the session is an observer or admin
 *   -ENOMEM      the pages could not be mapped into this process, or no host memory for the thread's first call
 *   -EPIPE       the lease is used up or the pages are not mapped yet, and the agent is not running, does not answer
 *                within 10 s, or has ended the session; existing blocks remain usable
 *   -EINTR       gpool_wait_check() ended the wait
 *   -ECHILD      after fork()
 *
 * Cost: a few atomic operations from the magazine [alloc1_free1]; a search of the lease's bitmap [alloc1, alloc100];
 * otherwise a request to the agent [refill_p50, refill_p99]. A page is mapped at its first use.
 */
GPOOL_API int gpool_alloc(
	struct gpool *pool, uint32_t page_count, const struct gpool_alloc_options *options, struct gpool_block *block);

/*
 * gpool_free() - free a block that the caller has pinned, and end that pin. gpool_alloc() returns a pinned block.
 *
 * New pins fail from this call on. The pages are returned when no other thread has the block pinned, and the fences of
 * earlier gpool_unpin_after() calls are signaled. A block that is spilled, and therefore has no pin, is discarded as by
 * gpool_discard().
 *
 * Return: 0, or
 *   -ESTALE  the block was already freed or evicted; of two concurrent frees one succeeds
 *   -EINVAL  the block has no pin (use gpool_discard()); not a handle that gpool_alloc() returned
 *   -EPIPE   the block is spilled, and the agent is not running
 *   -ECHILD  after fork()
 *
 * Cost: a few atomic operations [free1, free100]; for a scattered block also unmap calls, and for a spilled one a
 * request to the agent.
 */
GPOOL_API int gpool_free(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_discard() - free a block that the caller has not pinned, even while it is spilled. If it is being spilled or
 * restored, the call waits.
 *
 * Return: 0, -ESTALE (already freed or evicted), -ETIMEDOUT, -EINTR, -EINVAL (as gpool_pin()), -EPIPE (it is spilled,
 * and the agent is not running), -ECHILD. Cost: as gpool_pin() and gpool_free(); for a spilled block a request to the
 * agent.
 */
GPOOL_API int gpool_discard(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_pin() - pin a block: keep its content at its address until gpool_unpin(). Pins are counted.
 *
 * A spilled block (GPOOL_ALLOC_SPILL) is first restored into other pages. The call waits for the restore, and the agent
 * may evict other blocks to get these pages. The handle remains valid; the address changes. pins.timeout limits the
 * wait for these pages, but not the wait for their content. If no mover serves the pool, the wait ends after
 * mover.patience (5 s by default).
 *
 * Return: 0, or
 *   -ESTALE     the block was freed or evicted
 *   -ETIMEDOUT  the agent examined the block for longer than pins.timeout (100 ms by default); try again
 *   -EINTR      gpool_wait_check() ended the wait; the block is kept
 *   -EINVAL     not a handle that gpool_alloc() returned, or a block that is prepared and not committed
 *   -ECHILD     after fork()
 * and for spilled blocks:
 *   -EBADMSG    the content is lost: its checksum is wrong. The block becomes stale
 *   -EIO        the content cannot be read now: a disk or the device of two movers in succession failed, or no mover
 *               serves the pool. The content is kept, and a later call may succeed
 *   -ENOSPC, -EDQUOT  no pages to restore the block to; it is kept
 *   -ENOMEM     the pages cannot be mapped into this process; the block is kept
 *   -EPIPE      the agent is not running; the block is kept
 *
 * Cost: one atomic operation and two loads [pin]; no system call unless the block is being moved. For a restored block,
 * each pin with the old handle adds a lock and a table lookup, until gpool_refresh().
 */
GPOOL_API int gpool_pin(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_unpin() - end one pin of a block; any thread may end it.
 *
 * Return: 0, -EINVAL (not pinned; not a handle that gpool_alloc() returned), -ESTALE (freed or evicted), -ECHILD. Cost:
 * one atomic operation and a few loads [unpin]; the last unpin of a freed block also returns its pages.
 */
GPOOL_API int gpool_unpin(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_refresh() - update a handle after its block was restored into other pages, so that calls need no table lookup.
 * The old handle remains valid.
 *
 * Return: 0, even if the block was not moved; -ESTALE (spilled, freed or evicted), -EINVAL (as gpool_pin()), -ECHILD.
 * Cost: two loads; for a restored block a lock and a table lookup.
 */
GPOOL_API int gpool_refresh(struct gpool *pool, struct gpool_block *block);

/*
 * gpool_touch() - mark a block as used for the eviction policy, and refresh its pin so that it does not count as leaked
 * (pins.max_duration).
 *
 * A spilled block is not restored.
 *
 * Return: 0, -ESTALE (spilled, freed or evicted), -ETIMEDOUT, -EINTR, -EINVAL (as gpool_pin()), -ECHILD. Cost: a pin
 * and an unpin.
 */
GPOOL_API int gpool_touch(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_address() - return the device address of the page_count * gpool_page_bytes() contiguous bytes of a block.
 *
 * The address is valid while the block is pinned. A later pin has the same address unless the block was spilled. With
 * the back end `host` the CPU can use it as a pointer.
 *
 * Return: 0, -ESTALE (spilled, freed or evicted), -EINVAL (as gpool_pin()), -ECHILD. Cost: two loads; for a scattered
 * or restored block also a lock.
 */
GPOOL_API int gpool_address(struct gpool *pool, const struct gpool_block *block, uint64_t *address);

/*
 * gpool_release_unused() - unmap pages that this process no longer uses and for which tenants of another trust domain
 * wait (gpoold.conf(5), tenants.domain).
 *
 * Calls that wait, allocations that the pages of the calling thread do not satisfy, and calls that free while other
 * sessions wait, also do this. After the first move of pages between trust domains, gpool_sleep() unmaps all unused
 * pages. A process that makes none of these calls for more than a second should call this function periodically.
 * Otherwise such pages are retired, and listed under the name of the process.
 *
 * Return: the number of driver handles that were reported to the agent as released, or -ECHILD. Cost: one load if no
 * session waits for a page; otherwise a pass over the page table, an unmap call for each handle and a message to the
 * agent.
 */
GPOOL_API int gpool_release_unused(struct gpool *pool);

/* ---- out of memory ---- */

/* A session and the pages that it leases. As an array element, the structure never grows. */
struct gpool_holder {
	uint32_t session;
	uint32_t usage;         /* enum gpool_usage of most of its pages in blocks; GPOOL_USAGE_COUNT: no blocks */
	uint32_t needed_pages;  /* pinned, or kept by a thread */
	uint32_t offered_pages; /* with unpinned content, which is evicted when the page is needed elsewhere */
	uint32_t idle_pages;    /* without content; taken first */
	char name[64];
};
GPOOL_ASSERT_SIZE(gpool_holder, 84);

enum { GPOOL_HOLDERS_MAX = 4 };

/* The fields before holder_count describe the state at the refusal, and the others the state at the call. */
struct gpool_oom_info {
	uint32_t size;         /* sizeof(struct gpool_oom_info), set by the caller */
	uint32_t needed;       /* pages that the allocation needed; 0: no allocation was refused */
	uint32_t free, pinned; /* pages of the pool */
	uint32_t holder;       /* session with the most pinned pages; 0: none */
	uint32_t holder_pages; /* pages that this session has pinned */
	char holder_name[64];
	uint32_t holder_count; /* 0: no session leases pages, or the agent did not answer within a second */
	/* the sessions that lease the most pages, in descending order */
	struct gpool_holder holders[GPOOL_HOLDERS_MAX];
};
GPOOL_ASSERT_SIZE(gpool_oom_info, 428);

/*
 * gpool_oom_info() - report why the calling thread's last allocation was refused for lack of pages, and which sessions
 * now hold the pages.
 *
 * Return: 0, even if no allocation was refused; -EINVAL (size), -ECHILD.
 * Threads: any. Cost: one request to the agent, which examines all pages of the pool; the call waits for the answer for
 * at most a second. If size is offsetof(struct gpool_oom_info, holder_count), only the fields before holder_count are
 * filled and no request is sent.
 */
GPOOL_API int gpool_oom_info(struct gpool *pool, struct gpool_oom_info *info);

/* The largest of the objects that were pinned at the refusal. */
struct gpool_oom_object {
	uint32_t size; /* sizeof(struct gpool_oom_object), set by the caller */
	uint32_t pages;
	uint32_t session; /* the session with the most pins of this object */
	uint32_t pins;    /* pins of that session; 0: only its GPU work is unfinished */
	char name[128];
	char session_name[64];
};
GPOOL_ASSERT_SIZE(gpool_oom_object, 208);

/*
 * gpool_oom_object() - report the largest object that was pinned when the calling thread's last allocation was refused.
 *
 * Return: 0, -ENOENT (no object was pinned, or no allocation was refused), -EINVAL (size), -ECHILD. Cost: no system
 * call.
 */
GPOOL_API int gpool_oom_object(struct gpool *pool, struct gpool_oom_object *object);

/* ---- frees and unpins with fences ---- */

/*
 * gpool_free_after() - free a pinned block when a fence is signaled. The call does not wait, except for a spilled
 * block, which it discards as gpool_discard() does.
 *
 * From this call on the handle is stale and no new pin succeeds. The pages can be reused when `fence` and all fences of
 * earlier gpool_unpin_after() calls are signaled and all other pins have ended. Then a call of this process that
 * allocates, frees or waits collects the pages. When no pin is left and the fences are signaled, the agent also
 * collects them when it needs pages, even while this process sleeps or is stopped. Allocations with the fence's stream
 * in their options may reuse the pages earlier, in the order of the stream.
 *
 * @fence: recorded after the last GPU work that uses the block (gpool_fence_record()), or imported. With
 *         GPOOL_FENCE_NONE, or a signaled fence, the call is the same as gpool_free(). If the process of an imported
 *         fence dies, this call treats the fence as signaled
 *
 * Return: 0, or an error without effect:
 *   -EINVAL  the block has no pin (use gpool_discard()); not a handle that gpool_alloc() returned; not a fence of this
 *            session
 *   -ESTALE  the block was already freed or evicted; of two concurrent frees one succeeds
 *   -EPIPE   the block is spilled, and the agent is not running
 *   -ECHILD  after fork()
 *
 * Threads: any. Cost: as gpool_free() if the fence is signaled; otherwise a lock within the process, without a driver
 * call and without a request to the agent.
 */
GPOOL_API int gpool_free_after(struct gpool *pool, const struct gpool_block *block, struct gpool_fence fence);

/*
 * gpool_unpin_after() - end one pin of a block, and protect the block from eviction until a fence is signaled. The call
 * does not wait.
 *
 * The pin ends at once, and the block remains allocated: gpool_pin() succeeds until the block is freed or evicted.
 * After several such calls with fences of different streams, the agent waits for all of these fences before an
 * eviction, even if this process is stopped in the meantime.
 *
 * @fence: as in gpool_free_after(); with GPOOL_FENCE_NONE, or a signaled fence, the call is the same as
 *         gpool_unpin()
 *
 * Return: 0, or an error that keeps the pin:
 *   -EINVAL  the block has no pin; not a handle that gpool_alloc() returned; not a fence of this session
 *   -ESTALE  the block was freed or evicted
 *   -ENOMEM  no host memory to record the deferred unpin. Such a record is needed only if the session's table of stream
 *            sets for which blocks wait is full. With a record, the pin ends in a call of this process after the fence
 *            is signaled
 *   -ECHILD  after fork()
 *
 * Threads: any. Cost: as gpool_unpin(), plus a few atomic operations, and a lock within the process if the block also
 * waits for another stream. No driver call and no request to the agent.
 */
GPOOL_API int gpool_unpin_after(struct gpool *pool, const struct gpool_block *block, struct gpool_fence fence);

/* ---- parts of pages ---- */

/* Part of a page, aligned to the pool's `alignment`, by default 256 bytes; a value that may be copied freely. */
struct gpool_span {
	struct gpool_block block; /* the page that contains it, pinned while it has spans */
	uint64_t address;
	uint32_t offset;
	uint32_t bytes; /* rounded-up size */
};

/*
 * gpool_span_alloc() - allocate a part of a page. Spans of one size class and usage share pages.
 *
 * @bytes: 1 to half a page; rounded up to a multiple of the alignment, and above four times the alignment by at most a
 *         quarter
 * @usage: enum gpool_usage
 *
 * The call does not wait for pages. The pin of the page never counts as leaked (pins.max_duration), because spans of
 * different parts of the program share it.
 *
 * Return: as gpool_alloc(); -EINVAL: bytes or usage out of range. Cost: a lock within the process [span_alloc,
 * span_free]; the first span of a page also allocates the page, and freeing the last span frees it.
 */
GPOOL_API int gpool_span_alloc(struct gpool *pool, uint64_t bytes, uint32_t usage, struct gpool_span *span);

/*
 * gpool_span_free() - free a part of a page. GPU work that uses it must be done.
 *
 * Return: 0, -ESTALE (already freed), -EINVAL (not a span), -ECHILD. Cost: as gpool_span_alloc().
 */
GPOOL_API int gpool_span_free(struct gpool *pool, const struct gpool_span *span);

/* ---- scopes ---- */

enum {
	GPOOL_SCOPE_FREE = 1u << 0, /* free the blocks at the end instead of unpinning them */
	/*
	 * until it ends, the scope also contains the blocks of its usage that the thread which has begun it allocates
	 * with gpool_alloc(). The program may free such a block, but not unpin it. Of nested scopes of a usage, the
	 * last one counts. The same thread must end the scope
	 */
	GPOOL_SCOPE_THREAD = 1u << 1,
};

/*
 * A scope keeps the blocks that are allocated in it pinned, and unpins or frees all of them when it ends. Typical
 * scopes are a kernel, the pass of a layer, or a request. Its pins count as leaked after pins.max_duration, like all
 * pins of blocks. The fields belong to the library.
 *
 *	GPOOL_SCOPE(layer);                                           ends with the enclosing C block
 *	if (gpool_scope_begin(pool, GPOOL_USAGE_ACTIVATION, 0, &layer) == 0)
 *		gpool_scope_alloc(&layer, 8, NULL, &block);
 */
struct gpool_scope {
	uint32_t size; /* sizeof(struct gpool_scope), set by the caller; GPOOL_SCOPE_INIT and GPOOL_SCOPE() set it */
	uint32_t flags;
	struct gpool *pool;
	struct gpool_block *blocks;
	uint32_t count, capacity;
	uint32_t usage, reserved;
	struct gpool_scope *outer;
};
GPOOL_ASSERT_SIZE(gpool_scope, 48);
#define GPOOL_SCOPE_INIT \
	{ \
		sizeof(struct gpool_scope), 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_scope_begin() - begin a scope.
 *
 * @usage: enum gpool_usage of all its blocks
 * @flags: GPOOL_SCOPE_*
 * @scope: the caller sets its size
 *
 * Return: 0, -EINVAL (usage, flags, size), -ENOMEM, -ECHILD. Threads: one at a time for each scope. Cost: no system
 * call; a scope allocates host memory with its first block.
 */
GPOOL_API int gpool_scope_begin(struct gpool *pool, uint32_t usage, uint32_t flags, struct gpool_scope *scope);

/*
 * gpool_scope_alloc() - allocate a block in a scope. The scope's usage replaces that of the options.
 *
 * Return: as gpool_alloc(); -EINVAL: the scope has ended or was never begun. Threads: one at a time for each scope.
 * Cost: as gpool_alloc().
 */
GPOOL_API int gpool_scope_alloc(struct gpool_scope *scope, uint32_t page_count,
	const struct gpool_alloc_options *options, struct gpool_block *block);

/*
 * gpool_scope_end() - unpin or free all blocks of a scope.
 *
 * @fence: GPOOL_FENCE_NONE: at once; otherwise when the fence is signaled, without waiting
 *
 * A second call does nothing. Return: 0, or the first error of gpool_unpin_after() or gpool_free_after(), after all
 * blocks have been processed. With GPOOL_SCOPE_THREAD, blocks that the program has freed are no error, and -EINVAL also
 * means that another thread has begun the scope, which then does not end. Threads: one at a time for each scope. Cost:
 * as these calls, once for each block.
 */
GPOOL_API int gpool_scope_end(struct gpool_scope *scope, struct gpool_fence fence);

/* gpool_scope_cleanup() - end the scope of a variable that GPOOL_SCOPE() declared. */
GPOOL_API void gpool_scope_cleanup(struct gpool_scope *scope);
/* GPOOL_SCOPE() - declare a scope that ends, without a fence, when its C block ends. */
#define GPOOL_SCOPE(variable) \
	struct gpool_scope variable __attribute__((cleanup(gpool_scope_cleanup))) = GPOOL_SCOPE_INIT

/* ---- two-phase allocation ---- */

/*
 * gpool_prepare() - allocate a block that is invisible to other calls and not evicted until gpool_commit() or
 * gpool_rollback(). If the process dies before the commit, the pages are returned.
 *
 * The pin of a prepared block is reported as leaked after pins.max_duration, but not ended.
 *
 * Return: as gpool_alloc(). Cost: as gpool_alloc().
 */
GPOOL_API int gpool_prepare(
	struct gpool *pool, uint32_t page_count, const struct gpool_alloc_options *options, struct gpool_block *block);

/*
 * gpool_commit() - make a prepared block visible, pinned once.
 *
 * @block: replaced by the handle of the committed block
 * @entry: receives the device address in one 8-byte release store, for a table that kernels read; may be NULL
 *
 * Return: 0, -ESTALE (committed or rolled back before), -EINVAL (not a handle of a block), -ECHILD. Cost: one atomic
 * operation and a few loads.
 */
GPOOL_API int gpool_commit(struct gpool *pool, struct gpool_block *block, uint64_t *entry);

/*
 * gpool_rollback() - free a prepared block.
 *
 * Return: 0, -ESTALE (committed or rolled back before), -EINVAL (not a handle of a block), -ECHILD. Cost: as
 * gpool_free().
 */
GPOOL_API int gpool_rollback(struct gpool *pool, const struct gpool_block *block);

/* ---- reservations ---- */

/*
 * A reservation consists of pages that one session leases for the sessions of its tenant. For example, the scheduler of
 * an engine reserves pages before it admits a request, and the engine's workers take exactly these pages over. No other
 * request gets the pages in between. Pages that are not taken over become free when the reservation ends: by
 * gpool_reservation_release(), at its deadline, or when the session that created it ends. A reservation continues when
 * the agent is restarted.
 *
 * Until they are taken over, the pages count as leased by the session that created the reservation, then by the session
 * that takes them over. Each of these sessions needs a quota that is sufficient, because a quota limits all pages that
 * other sessions cannot get because of a session. Against the limit of the tenant, the pages count once.
 */

/*
 * gpool_reservation_create() - reserve pages for sessions of the same tenant.
 *
 * @page_count:  number of pages, which is rounded up to whole driver handles (gpool_range_info, handle_pages)
 * @timeout_ms:  longest wait for pages, also at a limit; 0: none, -1: no limit (at most 49 days)
 * @duration_ms: time after which the reservation ends; 0: no limit
 * @reservation: receives the number of the reservation, which is not 0 and can be sent to other processes
 *
 * The agent provides the pages as for gpool_alloc(), by eviction if necessary. The pages need not be adjacent.
 *
 * Return: 0, or
 *   -EINVAL      page_count is 0 or exceeds the pool; timeout_ms below -1
 *   -ENOSPC, -EDQUOT  as gpool_alloc(); gpool_oom_info() returns the details
 *   -EUSERS      the pool has 255 reservations, or the tenant or the user has its share of them (limits.tenant_sessions
 *                and limits.user_sessions in gpoold.conf(5))
 *   -EPERM       the session is an observer or admin
 *   -EPIPE, -EINTR, -ENOMEM, -ECHILD  as gpool_alloc()
 *
 * Threads: any. Cost: one request to the agent; no driver call.
 */
GPOOL_API int gpool_reservation_create(
	struct gpool *pool, uint32_t page_count, int timeout_ms, uint32_t duration_ms, uint64_t *reservation);

/*
 * gpool_reservation_use() - from now on, take pages of a reservation in the calls of this thread.
 *
 * @reservation: its number; 0: none, calls take pages from the pool again
 *
 * The number replaces that of an earlier call of the thread: calls do not nest. A function that uses a reservation for
 * a part of its work must afterwards set the number that its caller uses.
 *
 * Calls that need pages, such as gpool_alloc() and gpool_range_commit(), first use idle pages of this session. They
 * take over the other pages from the reservation, and take none from the rest of the pool. If the reservation has
 * enough pages left, the agent refuses the request only if it would exceed the quota of this session (-EDQUOT). The
 * number is checked when a call needs pages. Such a call then also returns, without waiting:
 *   -ENOENT  the reservation has ended or has fewer pages left than the call needs, or, with GPOOL_ALLOC_CONTIGUOUS, no
 *            adjacent ones. If handles have several pages, commits of whole handles get all of them; blocks may leave
 *            parts of handles that no further block can use (gpool_alloc())
 *   -EPERM   it was created by a session of another tenant
 *
 * Return: 0, -ENOMEM (no host memory for the thread's first call), -ECHILD. Threads: any; each thread and pool has its
 * own setting. Cost: none; a call that takes pages over makes one request to the agent.
 */
GPOOL_API int gpool_reservation_use(struct gpool *pool, uint64_t reservation);

/*
 * gpool_reservation_release() - end a reservation; any session of the tenant may do this.
 *
 * Pages that were taken over are not affected.
 *
 * Return: the number of freed pages (0 also if the reservation has already ended), or -EPERM (of another tenant; the
 * session is an observer or admin), -EPIPE, -EINTR, -ECHILD as gpool_alloc(). Threads: any. Cost: one request to the
 * agent; no driver call.
 */
GPOOL_API int gpool_reservation_release(struct gpool *pool, uint64_t reservation);

#ifdef __cplusplus
}
#endif

#endif
