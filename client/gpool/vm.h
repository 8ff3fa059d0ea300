/* vm.h - address ranges, elastic ranges, sleep and wake, stream-ordered memory. */
#ifndef GPOOL_VM_H
#define GPOOL_VM_H

#include "object.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ranges ---- */

/*
 * A range is a contiguous range of addresses that stays the same from its creation to its end, while the pages behind
 * it may be anywhere in the pool and may change. An engine without work calls gpool_sleep(): all ranges of the handle
 * return their pages, and gpool_wake() commits them again at the same addresses. The class determines what happens to
 * the content:
 *
 *   GPOOL_OBJECT_IMMUTABLE  the first sleep publishes it as a named object, and it is read-only from then on; waking
 *                           opens that version
 *   GPOOL_OBJECT_MUTABLE    it is spilled (gpoold.conf(5), spill_memory) and restored
 *   GPOOL_OBJECT_EPHEMERAL  it is dropped, and undefined after waking
 *
 * Blocks, scopes and spans are not ranges: what is pinned stays in the pool while the process sleeps.
 */
struct gpool_range;

struct gpool_range_options {
	uint32_t size;         /* sizeof(struct gpool_range_options); GPOOL_RANGE_OPTIONS_INIT sets it */
	uint32_t flags;        /* 0; an unknown bit is -EINVAL */
	uint32_t memory_class; /* enum gpool_object_class */
	uint32_t usage;        /* enum gpool_usage */
	const char *name;      /* immutable: name of the object that keeps it, at most 127 bytes; others: NULL */
	uint64_t owner_id;     /* any number, shown by tools */
	int32_t timeout_ms;    /* longest wait for pages; 0: none, -1: no limit (at most 49 days) */
	uint32_t reserved;     /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_range_options, 40);
#define GPOOL_RANGE_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_range_options), 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_range_create() - create a range with all its pages.
 *
 * @page_count: number of pages
 * @options:    NULL: mutable, KV_CACHE
 * @range:      receives the range; gpool_range_destroy() ends it
 *
 * Pins of a range never count as leaked (pins.max_duration).
 *
 * Return: 0, or
 *   -EINVAL     page_count, an unknown flag, class or usage; an immutable range without a name, or another with one
 *   -EHOSTDOWN  the session is asleep
 *   -ENOSPC, -EDQUOT, -EPERM, -ENOMEM, -EPIPE, -EINTR, -ECHILD  as gpool_alloc()
 *   -E2BIG
 *
 * Cost: one request to the agent, a mapping for each driver handle (a page, unless handles hold several) and one access
 * call.
 */
GPOOL_API int gpool_range_create(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range);

/*
 * gpool_range_open() - create a read-only range over the pages of an immutable object, its allocations in sequence.
 *
 * @options: as in gpool_object_open(), without flags and role
 *
 * While the session is asleep the object is closed; waking opens the same version.
 *
 * Return: as gpool_object_open(), or
 *   -EINVAL      the object is not immutable
 *   -EHOSTDOWN   the session is asleep
 *   -EOPNOTSUPP  handles hold several pages, and the object's pages do not fill them, so that they cannot be mapped
 *                side by side
 */
GPOOL_API int gpool_range_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options,
	struct gpool_range **range);

/*
 * gpool_range_destroy() - end a range and its addresses, awake or asleep. A published object remains.
 *
 * Waits for work that is queued on this handle's streams. NULL is permitted.
 *
 * Return: 0, -EBUSY (GPU work that the program queued elsewhere uses it: the range remains), -EIO (the GPU driver
 * failed), -EPIPE, -ECHILD.
 */
GPOOL_API int gpool_range_destroy(struct gpool_range *range);

/* gpool_range_address() - return the address of a range's first byte, which never changes. Return: 0, -ECHILD. */
GPOOL_API int gpool_range_address(const struct gpool_range *range, uint64_t *address);

enum gpool_range_state { GPOOL_RANGE_AWAKE = 1, GPOOL_RANGE_ASLEEP = 2 };

struct gpool_range_info {
	uint32_t size;         /* sizeof(struct gpool_range_info), set by the caller */
	uint32_t state;        /* enum gpool_range_state */
	uint32_t memory_class; /* enum gpool_object_class */
	uint32_t page_count;
	uint64_t address, bytes;
	uint64_t version;         /* of the object that keeps its content; 0: none */
	uint64_t layout_hash;     /* of that object */
	char name[128];           /* of that object */
	uint32_t committed_pages; /* all pages, except in an elastic range */
	/* decommitted, still mapped, and used by no GPU work; includes pages that the agent has taken meanwhile */
	uint32_t reclaimable_pages;
	uint32_t captured_pages;
	uint32_t handle_pages;  /* pages that are mapped together: 1, unless they are smaller than the GPU's mappings */
	uint32_t offered_pages; /* of the committed pages; includes pages that the agent has taken meanwhile */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_range_info, 200);

/*
 * gpool_range_info() - describe a range. Waits while the session goes to sleep or wakes.
 *
 * Return: 0, -EINVAL (size), -ECHILD.
 */
GPOOL_API int gpool_range_info(struct gpool_range *range, struct gpool_range_info *info);

/* ---- elastic ranges ---- */

/*
 * gpool_range_reserve() - create an elastic range: addresses without pages.
 *
 * @page_count: may exceed the pool's
 * @options:    class (mutable or ephemeral), usage and owner_id; timeout_ms is 0. NULL: mutable, KV_CACHE
 *
 * Single pages are committed and decommitted while the addresses stay, so that a tensor keeps its base address while
 * its memory grows and shrinks. Sleep spills or drops the committed pages, by class, and waking commits them again; in
 * between, calls of this section return -EHOSTDOWN.
 *
 * Return: 0, -EINVAL (page_count, options), -EHOSTDOWN (the session is asleep), -ENOMEM (no address space), -EPERM (an
 * observer or admin), -E2BIG, -ECHILD.
 */
GPOOL_API int gpool_range_reserve(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range);

/*
 * gpool_range_commit() - commit pages [first, first + count) of an elastic range, all or none.
 *
 * @timeout_ms: longest wait for pages, milliseconds; 0: do not wait, -1: no limit
 *
 * Committed pages keep their content; the content of new ones is undefined. Decommitted memory is reclaimable: idle, so
 * that any session may take it, but still mapped. If it was not taken it is committed again without a driver call.
 * Where pages are smaller than the GPU's mappings (gpool_range_info, handle_pages), a page brings its neighbours'
 * memory.
 *
 * Return: 0, or
 *   -EINVAL     not an elastic range, pages outside of it, timeout_ms below -1
 *   -EBUSY      another thread commits a page there at the same time; or GPU work is queued at addresses that were
 *               decommitted without its fence and whose memory was taken
 *   -EHOSTDOWN  the session is asleep
 *   -ENOSPC, -EDQUOT  not enough pages in time; gpool_oom_info() has the details
 *   -ENOMEM     the driver could not map them
 *   -EPIPE, -EINTR, -ECHILD
 *
 * Threads: any. Cost: no driver call for reclaimable pages [range_commit_reclaimable]. For others one request to the
 * agent (none where this process has idle pages that are mapped nowhere), a mapping for each handle and one access call
 * for each run of handles [range_commit_new].
 */
GPOOL_API int gpool_range_commit(struct gpool_range *range, uint32_t first, uint32_t count, int timeout_ms);

/*
 * gpool_range_decommit() - decommit those of pages [first, first + count) that are committed; their content is lost.
 *
 * @fence: behind the last GPU work that uses the pages (gpool_fence_record()); GPOOL_FENCE_NONE: that work is done
 *
 * The call does not wait. The memory stays mapped until the fence is signaled: nothing is unmapped under queued work. A
 * page that is committed again at once is the same memory, in the order in which the program queues its own work.
 *
 * Return: 0, -EINVAL (as gpool_range_commit(); a fence that no stream has recorded), -EHOSTDOWN (asleep), -ENOMEM
 * (nothing has changed), -ECHILD. Cost: no driver call [range_decommit].
 */
GPOOL_API int gpool_range_decommit(struct gpool_range *range, uint32_t first, uint32_t count, struct gpool_fence fence);

/*
 * gpool_range_capture() - keep committed pages mapped to the same memory, because a captured graph or other code uses
 * their addresses without further calls.
 *
 * @captured: 1: begin; 0: end
 *
 * In between the pages stay mapped to the same memory, committed or not, except during sleep; waking maps them again.
 *
 * Return: 0, -EINVAL (a page is not committed; as gpool_range_commit()), -EHOSTDOWN (asleep), -ECHILD.
 */
GPOOL_API int gpool_range_capture(struct gpool_range *range, uint32_t first, uint32_t count, int captured);

/*
 * gpool_range_offer() - permit the agent to take committed pages [first, first + count) of an elastic range when it
 * needs them, and keep their content until then.
 *
 * @fence: behind the last GPU work that uses the pages (gpool_fence_record()); GPOOL_FENCE_NONE: that work is done
 *
 * The pages stay committed and mapped. Call gpool_range_reclaim() before anything reads or writes them again: the agent
 * may take an offered page at any time, without a request, in the order of eviction, as it does with unpinned blocks.
 * It does not take a page before its fence is signaled, and may do so from then on, whatever this process does. Offered
 * pages may be offered again: then all fences have to be signaled. gpool_range_commit() also ends an offer, and brings
 * other memory for a page that was taken, without reporting the loss: call gpool_range_reclaim() first where content
 * matters. Sleep (gpool_sleep()) drops the content of offered pages.
 *
 * Return: 0, or
 *   -EINVAL     not an elastic range, pages outside of it; a page is not committed, or captured; pages are smaller than
 *               the GPU's mappings (gpool_range_info, handle_pages) and the call does not cover whole handles; a fence
 *               that no stream has recorded
 *   -EHOSTDOWN  the session is asleep
 *   -ENOMEM     more than 4,096 different sets of unfinished streams use pages; none of the pages is offered
 *   -ECHILD     after fork()
 *
 * Threads: any. Cost: no driver call and no request [range_offer, range_offer_one].
 */
GPOOL_API int gpool_range_offer(struct gpool_range *range, uint32_t first, uint32_t count, struct gpool_fence fence);

/*
 * gpool_range_reclaim() - end the offer of pages [first, first + count), and report which of them have kept their
 * content.
 *
 * @kept: [count] receives 1: page first + i is committed and has its content; 0: it is not committed, since the agent
 *        has taken it or it never was; gpool_range_commit() brings another page. May be NULL. A committed page that was
 *        not offered counts as kept
 *
 * Waits while the agent examines a page for eviction, which is a part of the eviction of one page [evict].
 *
 * Return: the number of pages that are not kept, or -EINVAL (as gpool_range_commit()), -EHOSTDOWN (asleep), -ECHILD.
 * Threads: any. Cost: as gpool_range_offer() [range_reclaim, range_reclaim_one].
 */
GPOOL_API int gpool_range_reclaim(struct gpool_range *range, uint32_t first, uint32_t count, uint8_t *kept);

enum gpool_page_state {
	GPOOL_PAGE_HOLE = 0,        /* no memory, or memory that another user has taken */
	GPOOL_PAGE_RECLAIMABLE = 1, /* not committed, and its memory is still mapped */
	GPOOL_PAGE_COMMITTED = 2,
};

enum {
	GPOOL_PAGE_CAPTURED = 1u << 0,
	GPOOL_PAGE_OFFERED = 1u << 1,
};

struct gpool_range_page {
	uint32_t size;       /* sizeof(struct gpool_range_page), set by the caller */
	uint32_t state;      /* enum gpool_page_state */
	uint32_t page;       /* page of the pool; UINT32_MAX: a hole */
	uint32_t flags;      /* GPOOL_PAGE_* */
	uint64_t generation; /* of that page; a different one means that it had another user meanwhile */
	uint64_t address;    /* of its first byte */
};
GPOOL_ASSERT_SIZE(gpool_range_page, 32);

/*
 * gpool_range_resolve() - describe the memory behind a page of an elastic range.
 *
 * Return: 0, -EINVAL (index, size, not an elastic range), -EHOSTDOWN (asleep), -ECHILD.
 */
GPOOL_API int gpool_range_resolve(struct gpool_range *range, uint32_t index, struct gpool_range_page *page);

/* ---- sliced ranges ---- */

/*
 * An elastic range of equal slices, for example one for each layer and for K and V. Block i of all slices is committed
 * together, so that one call grows or shrinks all slices. Block i of slice s is at address + s * slice_bytes +
 * i * block_bytes.
 */
struct gpool_sliced_range;

struct gpool_sliced_range_options {
	uint32_t size;         /* sizeof(struct gpool_sliced_range_options); GPOOL_SLICED_RANGE_OPTIONS_INIT sets it */
	uint32_t flags;        /* 0; an unknown bit is -EINVAL */
	uint32_t memory_class; /* enum gpool_object_class: mutable or ephemeral */
	uint32_t usage;        /* enum gpool_usage */
	uint64_t owner_id;     /* any number, shown by tools */
	/* blocks beyond the committed ones that a thread of the library maps in advance; 0: none, and no thread */
	uint32_t read_ahead;
	uint32_t reserved; /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_sliced_range_options, 32);
#define GPOOL_SLICED_RANGE_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_sliced_range_options), 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_sliced_range_create() - create a range of `slices` slices of `blocks` blocks of `block_pages` pages, without
 * pages.
 *
 * @options: NULL: mutable, KV_CACHE, no read-ahead
 *
 * Blocks that were mapped in advance are reclaimable: other sessions may take their pages without a request.
 *
 * Return: as gpool_range_reserve(); -EINVAL also: a shape of 0 or more than 2^32 pages; -ENOMEM also: no thread.
 */
GPOOL_API int gpool_sliced_range_create(struct gpool *pool, uint32_t slices, uint32_t blocks, uint32_t block_pages,
	const struct gpool_sliced_range_options *options, struct gpool_sliced_range **range);

/* gpool_sliced_range_destroy() - end a sliced range. NULL is permitted. Return: as gpool_range_destroy(). */
GPOOL_API int gpool_sliced_range_destroy(struct gpool_sliced_range *range);

/*
 * gpool_sliced_range_grow() - commit the first `blocks` blocks of all slices, or none more than before.
 *
 * Committed blocks keep their content. If that many blocks are committed the call does nothing.
 *
 * Return: as gpool_range_commit(); -EINVAL: the slices have fewer blocks.
 * Threads: any; one call at a time grows or shrinks a range. Cost: no driver call for blocks that were mapped in
 * advance [sliced_range_grow_ahead]; for others one request to the agent, a mapping for each handle and an access call
 * for each slice [sliced_range_grow].
 */
GPOOL_API int gpool_sliced_range_grow(struct gpool_sliced_range *range, uint32_t blocks, int timeout_ms);

/*
 * gpool_sliced_range_shrink() - decommit all but the first `blocks` blocks of all slices, as gpool_range_decommit(). If
 * no more are committed the call does nothing.
 *
 * Return: as gpool_range_decommit().
 */
GPOOL_API int gpool_sliced_range_shrink(struct gpool_sliced_range *range, uint32_t blocks, struct gpool_fence fence);

struct gpool_sliced_range_info {
	uint32_t size; /* sizeof(struct gpool_sliced_range_info), set by the caller */
	uint32_t slices, blocks, block_pages;
	uint32_t committed; /* blocks */
	uint32_t ready;     /* committed blocks and those mapped in advance, as far as is known */
	uint64_t address;
	uint64_t slice_bytes; /* from one slice to the next */
	uint64_t block_bytes;
};
GPOOL_ASSERT_SIZE(gpool_sliced_range_info, 48);

/* gpool_sliced_range_info() - describe a sliced range. Return: 0, -EINVAL (size), -ECHILD. */
GPOOL_API int gpool_sliced_range_info(struct gpool_sliced_range *range, struct gpool_sliced_range_info *info);

/* ---- sleep and wake ---- */

/*
 * gpool_sleep() - return the pages of all ranges of this handle, all or none.
 *
 * @flags: 0
 *
 * Waits for the work on this handle's streams. Other GPU work of the program must be done, and no thread may use an
 * address of a range until gpool_wake(). Host-signaled timelines are not waited for, and streams that wait for one must
 * be able to continue. On failure all ranges are mapped and have their content; only what was published remains
 * published and read-only. If the session is asleep the call does nothing. If the process ends while it is asleep, its
 * spilled content is freed; objects remain.
 *
 * Return: 0, or
 *   -EINVAL      flags
 *   -EBUSY       queued GPU work uses a range; a thread waits for pages of an elastic range
 *   -ENOSPC      no room to spill all mutable ranges, or a table of objects is full
 *   -EOPNOTSUPP  there are mutable ranges, and the pool has neither memory nor a file for spilled content
 *   -EIO         spilling failed (a full disk; no mover serves the pool for mover.patience, gpoold.conf(5)), or the GPU
 *                driver
 *   -EUSERS, -EMFILE  as gpool_object_publish()
 *   -ENOMEM      out of memory; if a range could then not be mapped again, gpool_asleep() returns 1 and gpool_wake()
 *                tries again
 *   -EPERM       the session is an observer or admin
 *   -EPIPE       the agent is not running; it is unknown what was spilled
 *   -ECHILD      after fork()
 *
 * Cost: an unmap call for each range and one request to the agent; for immutable and mutable ranges also their
 * publication and copies. Where the pool has several trust domains, also an unmap call for each handle that is no
 * longer used, and its import on waking.
 */
GPOOL_API int gpool_sleep(struct gpool *pool, uint32_t flags);

/*
 * gpool_wake() - give all ranges pages again, at the same addresses and with their content.
 *
 * @timeout_ms: longest wait for pages, milliseconds; 0: do not wait, -1: no limit
 *
 * All pages are granted in one step, so that processes that wake at the same time do not wait for each other's pages.
 * On failure the session is asleep as before, without loss, and holds no page. If it is awake the call does nothing.
 *
 * Return: 0, or
 *   -ENOSPC  not enough pages in time; gpool_oom_info() has the details
 *   -EDQUOT  the limit of the tenant or the quota of this session is reached
 *   -ESTALE  the version of an object that keeps a range was deleted
 *   -EIO     spilled content cannot be read now (for example, no mover serves the pool). It is kept; try again. If all
 *            mutable ranges are destroyed, the others can wake
 *   -ENOMEM  pages could not be mapped
 *   -EINVAL, -EPERM, -EMFILE, -EPIPE, -EINTR, -ECHILD
 *
 * Cost: one request to the agent for pages and two for content, a mapping for each handle, one access call for each
 * range.
 */
GPOOL_API int gpool_wake(struct gpool *pool, int timeout_ms);

/* gpool_asleep() - return 1 after gpool_sleep(), 0 after gpool_wake(), or -ECHILD. */
GPOOL_API int gpool_asleep(struct gpool *pool);

/* ---- stream-ordered memory ---- */

/*
 * gpool_malloc_async() and gpool_free_async() manage memory that is used from one point of a stream to another. Memory
 * that is freed in a stream can be allocated in the same stream at once, without a wait for the GPU. The addresses
 * belong to this process and are reserved once; the pages come from the pool. If no free region is large enough, free
 * pages from several places are mapped side by side in a new region: no data is copied, and all free memory can be
 * allocated in one piece. gpool(7) describes the method.
 *
 * Sizes are rounded up to pages of this allocator (VPMM pages: a driver handle of the pool, or a multiple). Allocations
 * of at most half a page of the pool share pages, see enum gpool_vm_small.
 */
enum gpool_vm_small {
	/* parts of pages of the pool, reused in the order of streams; a whole page if there is no other */
	GPOOL_VM_SMALL_SPANS = 0,
	GPOOL_VM_SMALL_DRIVER = 1, /* the driver's own stream-ordered pool, which the agent does not count */
	GPOOL_VM_SMALL_PAGES = 2   /* whole pages, as for larger ones */
};

/*
 * Environment variables replace options that are 0. Their sizes are bytes, or have a suffix: K, M, G or T, each with or
 * without "B" or "iB" (all powers of two).
 */
struct gpool_vm_options {
	uint32_t size;  /* sizeof(struct gpool_vm_options); GPOOL_VM_OPTIONS_INIT sets it */
	uint32_t flags; /* 0; an unknown bit is -EINVAL */
	/* size of a VPMM page: a multiple of the pool's handle; 0: $GPOOL_VM_PAGE_SIZE, or one handle */
	uint64_t page_bytes;
	/* memory allocated by the first call, free in its stream; 0: $GPOOL_VM_PAGES pages, or none */
	uint64_t initial_bytes;
	/* addresses reserved at a time; 0: $GPOOL_VM_VA_SIZE, or 8 TB, or less where a process cannot have that */
	uint64_t address_bytes;
	uint32_t small; /* enum gpool_vm_small */
	uint32_t usage; /* enum gpool_usage, as tools show the pages */
	/* longest wait for pages, and of calls without a stream for the GPU; 0: none, -1: no limit */
	int32_t timeout_ms;
	/*
	 * log through options.log of gpool_open(), level 3. 1: calls that use the driver or the agent, with their
	 * steps; 2: all calls; 3: also the regions after each call; 0: $GPOOL_VM_TRACE, or none
	 */
	uint32_t trace;
	/*
	 * a new file to which a background thread records all calls as CSV (gpool-replay(1)); records that cannot be
	 * written are counted. NULL: $GPOOL_VM_RECORD, or none
	 */
	const char *record_path;
	/* after this time without a call, free memory is reclaimable; 0: 1000, -1: only under pressure */
	int32_t idle_ms;
	uint32_t reserved; /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_vm_options, 64);
#define GPOOL_VM_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_vm_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_vm_configure() - set the options of this handle's allocator, before its first gpool_malloc_async().
 *
 * Return: 0, -EINVAL (a field out of range, an environment variable that is not a size), -EALREADY (the allocator has
 * started), -E2BIG, -EPERM (an observer or admin), -ECHILD.
 */
GPOOL_API int gpool_vm_configure(struct gpool *pool, const struct gpool_vm_options *options);

/*
 * gpool_malloc_async() - allocate memory for work that is queued on a stream from now on.
 *
 * @bytes:   size
 * @stream:  from gpool_stream_open(). 0: for work that the caller starts in any way after the call; then only memory
 *           that the GPU no longer uses is allocated, and if there is none the call waits on the host. So it does for a
 *           host-signaled timeline
 * @address: receives the device address, aligned to the GPU's smallest mapping; of a small allocation to 256 bytes
 *
 * Memory is searched in this order: the best fit among memory that was freed in this stream, used by the GPU or not;
 * the best fit among memory of any stream that the GPU no longer uses; a new region, to which free pages are mapped,
 * first this stream's, then the ones unused for the longest time, then new ones from the agent. If the agent has none,
 * or few, memory that other streams have freed and still use is taken as well, and this stream waits for them on the
 * GPU. On failure no region has changed.
 *
 * Return: 0, or
 *   -EINVAL  bytes is 0; the stream is not open; at the first call: an environment variable that is not a size
 *   -ENOSPC  the pool has no pages in time; gpool_oom_info() has the details
 *   -EDQUOT  the limit of the tenant or the quota of this session is reached
 *   -ENOMEM  no host memory or addresses, or pages could not be mapped
 *   -EIO     the GPU driver failed; at the first call: the record file cannot be created
 *   -EPIPE   the agent is not running, and the free memory of this process does not suffice
 *   -EPERM   the session is an observer or admin
 *   -EOPNOTSUPP  at the first call: GPOOL_VM_SMALL_DRIVER, and the device has no such pool
 *   -EINTR, -ECHILD
 *
 * Threads: any; calls in different streams do not wait for each other's driver calls. Cost: no driver call if a free
 * region fits, which is the steady state [malloc_async_steady_pair]. Otherwise a map call for each handle and one
 * access call.
 */
GPOOL_API int gpool_malloc_async(struct gpool *pool, uint64_t bytes, uint32_t stream, uint64_t *address);

/*
 * gpool_free_async() - free an allocation behind all work that is queued on a stream.
 *
 * @address: from gpool_malloc_async()
 * @stream:  0, or a stream that was closed: all work with it is done
 *
 * The caller ensures that work with it on other streams is done, or that `stream` waits for that work. While a stream
 * is being captured into a graph no memory may be freed in it, since a fence is recorded on it.
 *
 * Return: 0, or
 *   -EINVAL  not an address of this allocator, or a stream that never existed
 *   -ESTALE  no allocation begins there: it was freed before
 *   -ENOMEM  no host memory for the frees of a stream that is new to the allocator; a small allocation remains
 *   -EPERM, -ECHILD
 *
 * Cost: no driver call while one stream is in use [malloc_async_steady_pair]. With several: one fence, recorded before
 * any lock is taken [malloc_async_steady_two_streams].
 */
GPOOL_API int gpool_free_async(struct gpool *pool, uint64_t address, uint32_t stream);

/*
 * gpool_trim_to() - return free memory that the GPU no longer uses to the agent, the longest unused first, until
 * keep_bytes are left.
 *
 * The memory stays mapped, and is allocated again without a driver call unless another session has taken the pages. The
 * library does the same under pressure and after idle_ms.
 *
 * Return: the number of bytes returned, or -EPERM, -ECHILD.
 */
GPOOL_API int64_t gpool_trim_to(struct gpool *pool, uint64_t keep_bytes);

/*
 * gpool_vm_capture() - keep an allocation mapped to the same pages, because a captured graph uses its addresses.
 *
 * @captured: 1: begin; 0: end. Memory that was freed in between becomes free at the end
 *
 * Return: 0, -EINVAL (not an address of whole pages, captured neither 0 nor 1), -ESTALE (freed), -EPERM, -ECHILD.
 */
GPOOL_API int gpool_vm_capture(struct gpool *pool, uint64_t address, int captured);

struct gpool_vm_stats {
	uint32_t size; /* sizeof(struct gpool_vm_stats), set by the caller */
	uint32_t reserved;
	uint64_t page_bytes;     /* of a VPMM page; 0: gpool_malloc_async() was not called yet */
	uint64_t reserved_bytes; /* addresses: live, reusable, holes and pending unmaps */
	uint64_t mapped_bytes;   /* of those, with pages: all but holes */
	uint64_t live_bytes;     /* allocated */
	uint64_t reusable_bytes; /* free; live and reusable together are the pages of this allocator */
	uint64_t hole_bytes;     /* not mapped */
	/* former places of pages that are mapped elsewhere, until the GPU no longer uses them */
	uint64_t pending_unmap_bytes;
	uint64_t reclaimable_bytes; /* of the reusable ones: those that the agent may take */
	uint64_t small_bytes;       /* allocated as parts of pages; not in any of the above */
	uint64_t live_regions, reusable_regions, hole_regions, pending_unmap_regions;
	uint64_t allocations, frees; /* calls that succeeded, including small ones */
	uint64_t remaps;             /* allocations for which free pages were mapped to a new place */
	uint64_t remapped_bytes;     /* of those */
	uint64_t taken_bytes;        /* leased from the agent */
	uint64_t waits;              /* waits of a stream for another */
	uint64_t records_lost;       /* calls that could not be recorded (record_path) */
};
GPOOL_ASSERT_SIZE(gpool_vm_stats, 168);

/* gpool_vm_stats() - read the allocator's counters. Return: 0, -EINVAL (size), -EPERM, -ECHILD. */
GPOOL_API int gpool_vm_stats(struct gpool *pool, struct gpool_vm_stats *stats);

/*
 * gpool_vm_dump() - print all regions in ascending order.
 *
 * @line:    called for each line, without a lock held
 * @context: passed to line
 *
 * First a line for each reservation, in pages:
 *
 *	[+10][1][-5][*4][#100]   allocated by the last call, allocated, free, pending unmap, hole
 *
 * then a line for each region with its address, pages, kind, stream, age and fence. "poolctl regions" prints the same.
 *
 * Return: the number of regions, or -ENOMEM, -EPERM, -ECHILD.
 */
GPOOL_API int gpool_vm_dump(struct gpool *pool, void (*line)(void *context, const char *text), void *context);

#ifdef __cplusplus
}
#endif

#endif
