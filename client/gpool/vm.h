/* vm.h - address ranges, sleep and wake, stream-ordered memory. */
#ifndef GPOOL_VM_H
#define GPOOL_VM_H

#include "object.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ranges ---- */

/*
 * A range has addresses of its own, in a row, which it keeps from its creation to its end; the pages behind it may lie
 * anywhere in the pool. An engine that has nothing to do puts itself to sleep: all ranges of the handle give their
 * pages back, and have them again, at the same addresses, when it wakes. What becomes of the content the class says:
 *
 *   GPOOL_OBJECT_IMMUTABLE  it is published as a named object by the first sleep, and read only from then on; waking
 *                           opens that version
 *   GPOOL_OBJECT_MUTABLE    it is spilled (gpoold.conf(5), spill_memory), and comes back
 *   GPOOL_OBJECT_EPHEMERAL  it is dropped, and undefined after waking
 *
 * Blocks, scopes and spans are not ranges: what is pinned stays pinned and in the pool while the process sleeps.
 */
struct gpool_range;

struct gpool_range_options {
	uint32_t size;         /* sizeof(struct gpool_range_options); GPOOL_RANGE_OPTIONS_INIT sets it */
	uint32_t flags;        /* none yet; an unknown bit is -EINVAL */
	uint32_t memory_class; /* enum gpool_object_class */
	uint32_t usage;        /* enum gpool_usage */
	const char *name;      /* immutable: of the object as which it is kept, at most 127 bytes; others: NULL */
	uint64_t owner_id;     /* what tools show; free to choose */
	int32_t timeout_ms;    /* longest wait for pages; 0: none, -1: no limit (49 days) */
	uint32_t reserved;     /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_range_options, 40);
#define GPOOL_RANGE_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_range_options), 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_range_create() - addresses for `page_count` pages, and the pages, with one request for all. options NULL:
 * mutable, KV_CACHE. No pin of a range is ever called leaked (pins.max_duration).
 *
 * Return: 0, or
 *   -EINVAL  page_count, an unknown flag, class or usage; a name that an immutable range lacks or another has
 *   -EBUSY   this handle sleeps
 *   -ENOSPC, -EDQUOT, -EPERM, -ENOMEM, -EPIPE, -ECHILD  as gpool_alloc()
 *   -E2BIG
 *
 * Cost: one request to the agent, a mapping for each handle (a page, unless handles hold several) and one access call.
 */
GPOOL_API int gpool_range_create(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range);

/*
 * gpool_range_open() - a range over the pages of an immutable object, its allocations one behind the other, read only.
 * Asleep the object is closed, and waking opens the same version. options: as gpool_object_open(), without flags and
 * role.
 * Return: as gpool_object_open(); -EINVAL: it is not immutable; -EBUSY: this handle sleeps; -EOPNOTSUPP: handles hold
 * several pages, and the object's do not fill them, so that they cannot be put in a row.
 */
GPOOL_API int gpool_range_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options,
	struct gpool_range **range);

/*
 * gpool_range_destroy() - its addresses end, awake or asleep; waits for work queued on this handle's streams. What was
 * published stays. NULL is fine. Return: 0, -EBUSY (GPU work that the program queued elsewhere still uses it: it
 * stays), -EIO, -EPIPE, -ECHILD.
 */
GPOOL_API int gpool_range_destroy(struct gpool_range *range);

/* gpool_range_address() - of its first byte: the same for its whole life. */
GPOOL_API int gpool_range_address(const struct gpool_range *range, uint64_t *address);

enum gpool_range_state { GPOOL_RANGE_AWAKE = 1, GPOOL_RANGE_ASLEEP = 2 };

struct gpool_range_info {
	uint32_t size;         /* sizeof(struct gpool_range_info), set by the caller */
	uint32_t state;        /* enum gpool_range_state */
	uint32_t memory_class; /* enum gpool_object_class */
	uint32_t page_count;
	uint64_t address, bytes;
	uint64_t version;         /* of the object as which it is kept; 0: it is not */
	uint64_t layout_hash;     /* of that */
	char name[128];           /* likewise */
	uint32_t committed_pages; /* all of them, but for an elastic range */
	/* mapped and used by no GPU work any more; those that the agent has taken meanwhile included */
	uint32_t reclaimable_pages;
	uint32_t captured_pages;
	uint32_t handle_pages;  /* pages that are mapped together: 1, unless they are smaller than what the GPU maps */
	uint32_t offered_pages; /* of the backed ones; those that the agent has taken meanwhile included */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_range_info, 200);

/* gpool_range_info() - waits while the handle goes to sleep or wakes. Return: 0, -EINVAL (its size), -ECHILD. */
GPOOL_API int gpool_range_info(struct gpool_range *range, struct gpool_range_info *info);

/* ---- elastic ranges ---- */

/*
 * gpool_range_reserve() - addresses for `page_count` pages, and no page. Single pages are backed and unbacked while the
 * addresses stay, so that a tensor keeps its base address while its memory grows and shrinks. page_count may be larger
 * than the pool. Class and usage of the options count, as in gpool_range_create(), but an immutable range cannot be
 * elastic; timeout_ms is 0. options NULL: mutable, KV_CACHE.
 *
 * Asleep what is backed at that time is spilled or dropped, by class, and backed again by waking. Calls of this section
 * answer -EBUSY then.
 *
 * Return: 0, -EINVAL, -EBUSY (this handle sleeps), -ENOMEM (no such addresses), -EPERM (a session that only reads),
 * -E2BIG, -ECHILD.
 */
GPOOL_API int gpool_range_reserve(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range);

/*
 * gpool_range_commit() - pages [first, first + count) of an elastic range have memory when this returns; those that had
 * any keep it, and its content. What the others contain is undefined. All or nothing.
 *
 * What was unbacked is reclaimable: idle, so that anybody may take it, and mapped all the same. What nobody has taken
 * is backed again without any call. Where pages are smaller than what the GPU maps (gpool_range_info, handle_pages), a
 * page brings along its neighbours' memory.
 *
 * Return: 0, or
 *   -EINVAL  not an elastic range, or not so many pages; timeout_ms below -1
 *   -EBUSY   another thread backs a page there at the same time; GPU work is queued at addresses that were unbacked
 *            without its fence, and whose memory went elsewhere; this handle sleeps
 *   -ENOSPC, -EDQUOT  not so many pages to be had (in time); gpool_oom_info() says more
 *   -ENOMEM  the driver could not map them
 *   -EPIPE, -ECHILD
 *
 * Threads: any. Cost: no driver call for reclaimable pages [range_commit_reclaimable]. For the rest one request to the
 * agent (none where this process has idle pages that are mapped nowhere), a mapping for each handle and one access call
 * for
 * each
 * run of them [range_commit_new].
 */
GPOOL_API int gpool_range_commit(struct gpool_range *range, uint32_t first, uint32_t count, int timeout_ms);

/*
 * gpool_range_decommit() - those of pages [first, first + count) that are backed are not any more, and their content is
 * gone. fence: behind the last GPU work that uses them (gpool_fence_record()); zero: there is none left. Until it is
 * reached the memory stays: nothing is ever unmapped under queued work. Nobody waits: backed again at once, they are
 * the same memory, in the order that the program gives its own work.
 *
 * Return: 0, -EINVAL (as gpool_range_commit(), or a fence that no stream has recorded), -EBUSY (this handle sleeps),
 * -ENOMEM (nothing has changed), -ECHILD. Cost: no driver call [range_decommit].
 */
GPOOL_API int gpool_range_decommit(struct gpool_range *range, uint32_t first, uint32_t count, struct gpool_fence fence);

/*
 * gpool_range_capture() - captured 1: the addresses of these backed pages stand in a captured graph, or anywhere else
 * where they are used without anybody asking; 0: not any more. From the one to the other they stay mapped to the same
 * memory, backed or not, unless the handle sleeps; after waking they are mapped again. Return: 0, -EINVAL (a page is
 * not backed; as above), -EBUSY (sleeps), -ECHILD.
 */
GPOOL_API int gpool_range_capture(struct gpool_range *range, uint32_t first, uint32_t count, int captured);

/*
 * gpool_range_offer() - let the agent have backed pages [first, first + count) of an elastic range when it needs them,
 * and keep their content until then. They stay backed and mapped. Use gpool_range_reclaim() before anything reads or
 * writes them again: the agent may take an offered page at any time, without asking, in the order of eviction, as it
 * does with unpinned blocks.
 *
 * fence: behind the last GPU work that uses the pages (gpool_fence_record()); zero: there is none left. The agent does
 * not take a page before its fence is reached, and may do so from then on, whatever this process does. Offered pages
 * may be offered again: then all fences have to be reached. gpool_range_commit() also ends an offer, and brings other
 * memory for a page that was taken, without reporting the loss: call gpool_range_reclaim() first where content matters.
 * Sleep (gpool_sleep()) drops the content of offered pages.
 *
 * Return: 0, or
 *   -EINVAL  not an elastic range, or not so many pages; a page is not backed, or captured; pages are smaller than what
 *            the GPU maps (gpool_range_info, handle_pages) and the call does not cover whole handles; a fence that no
 *            stream has recorded
 *   -EBUSY   this handle sleeps
 *   -ENOMEM  more than 4,096 different sets of unfinished streams use pages; none of the pages is offered
 *   -ECHILD
 *
 * Threads: any. Cost: no driver call and no request [range_offer, range_offer_one].
 */
GPOOL_API int gpool_range_offer(struct gpool_range *range, uint32_t first, uint32_t count, struct gpool_fence fence);

/*
 * gpool_range_reclaim() - have offered pages [first, first + count) back, and learn which of them have kept their
 * content.
 *
 * kept: [count] 1: page first + i is backed, has its content and is not taken any more; 0: it is not backed, since the
 * agent has taken it or it never was; gpool_range_commit() brings another page. NULL: not wanted. A page that is backed
 * and was not offered counts as kept.
 *
 * Return: how many pages are not kept, or -EINVAL (as gpool_range_commit()), -EBUSY (this handle sleeps), -ECHILD.
 * Threads: any. Cost: as gpool_range_offer() [range_reclaim, range_reclaim_one]. Waits while the agent examines a page
 * for eviction, which is a part of the eviction of one page [evict].
 */
GPOOL_API int gpool_range_reclaim(struct gpool_range *range, uint32_t first, uint32_t count, uint8_t *kept);

enum gpool_page_state {
	GPOOL_PAGE_HOLE = 0,        /* no memory, or memory that is somebody else's by now */
	GPOOL_PAGE_RECLAIMABLE = 1, /* not backed, and its memory is still there */
	GPOOL_PAGE_COMMITTED = 2,
};

enum {
	GPOOL_PAGE_CAPTURED = 1u << 0,
	GPOOL_PAGE_OFFERED = 1u << 1,
};

struct gpool_range_page {
	uint32_t size;       /* sizeof(struct gpool_range_page), set by the caller */
	uint32_t state;      /* enum gpool_page_state */
	uint32_t page;       /* in the pool; UINT32_MAX: a hole */
	uint32_t flags;      /* GPOOL_PAGE_* */
	uint64_t generation; /* of that page: another one means that it was somebody else's meanwhile */
	uint64_t address;    /* of its first byte */
};
GPOOL_ASSERT_SIZE(gpool_range_page, 32);

/*
 * gpool_range_resolve() - what lies behind a page of an elastic range. Return: 0, -EINVAL (likewise; its size), -EBUSY
 * (sleeps), -ECHILD.
 */
GPOOL_API int gpool_range_resolve(struct gpool_range *range, uint32_t index, struct gpool_range_page *page);

/* ---- sliced ranges ---- */

/*
 * An elastic range cut into equal slices, one for each layer and for K and V, say. Block i of every slice is backed
 * together, so one call grows all of them and one shrinks all of them. Block i of slice s lies at address + s *
 * slice_bytes + i * block_bytes, always.
 */
struct gpool_sliced_range;

struct gpool_sliced_range_options {
	uint32_t size;         /* sizeof(struct gpool_sliced_range_options); GPOOL_SLICED_RANGE_OPTIONS_INIT sets it */
	uint32_t flags;        /* none yet; an unknown bit is -EINVAL */
	uint32_t memory_class; /* enum gpool_object_class: mutable or ephemeral */
	uint32_t usage;        /* enum gpool_usage */
	uint64_t owner_id;     /* what tools show; free to choose */
	/* blocks beyond those that are backed which a thread of this library brings to hand; 0: none, and no thread */
	uint32_t read_ahead;
	uint32_t reserved; /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_sliced_range_options, 32);
#define GPOOL_SLICED_RANGE_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_sliced_range_options), 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_sliced_range_create() - addresses for `slices` slices of `blocks` blocks of `block_pages` pages, and no page.
 * options
 * NULL: mutable, KV_CACHE, without reading ahead. What is at hand is mapped, and others may have it whenever they need
 * pages, without asking.
 * Return: as gpool_range_reserve(); -EINVAL: also a shape of no or of more than 2^32 pages; -ENOMEM: also no thread.
 */
GPOOL_API int gpool_sliced_range_create(struct gpool *pool, uint32_t slices, uint32_t blocks, uint32_t block_pages,
	const struct gpool_sliced_range_options *options, struct gpool_sliced_range **tensor);

/* gpool_sliced_range_destroy() - as gpool_range_destroy(). NULL is fine. */
GPOOL_API int gpool_sliced_range_destroy(struct gpool_sliced_range *tensor);

/*
 * gpool_sliced_range_grow() - the first `blocks` blocks of every slice are backed when this returns, or as many as
 * before, when it fails. Those that were keep their content. So many already: 0. Return: as gpool_range_commit();
 * -EINVAL: the slices have not so many blocks.
 *
 * Threads: any; one call at a time grows or shrinks a tensor. Cost: no driver call within what is at hand
 * [tensor_grow_ahead]; beyond that one request to the agent, a mapping for each handle and an access call for each
 * slice [tensor_grow].
 */
GPOOL_API int gpool_sliced_range_grow(struct gpool_sliced_range *tensor, uint32_t blocks, int timeout_ms);

/*
 * gpool_sliced_range_shrink() - no more than the first `blocks` blocks are backed: as gpool_range_decommit() for the
 * others. So few already: 0.
 */
GPOOL_API int gpool_sliced_range_shrink(struct gpool_sliced_range *tensor, uint32_t blocks, struct gpool_fence fence);

struct gpool_sliced_range_info {
	uint32_t size; /* sizeof(struct gpool_sliced_range_info), set by the caller */
	uint32_t slices, blocks, block_pages;
	uint32_t backed; /* blocks */
	uint32_t ready;  /* those at hand behind them included, as far as is known */
	uint64_t address;
	uint64_t slice_bytes; /* from one slice to the next */
	uint64_t block_bytes;
};
GPOOL_ASSERT_SIZE(gpool_sliced_range_info, 48);

/* gpool_sliced_range_info() - Return: 0, -EINVAL (its size), -ECHILD. */
GPOOL_API int gpool_sliced_range_info(struct gpool_sliced_range *tensor, struct gpool_sliced_range_info *info);

/* ---- sleep and wake ---- */

/*
 * gpool_sleep() - all ranges of this handle give their pages back. All or nothing: on failure all of them are mapped
 * and whole as before; only what was published for it stays published, and read only. Asleep already: 0.
 *
 * It waits for the work on this handle's streams; what else the program has queued on a GPU must be done, and no thread
 * may use an address of a range until gpool_wake(). A manual stream is not waited for, and a stream that waits for one
 * must be able to go on. When the process ends asleep, what was spilled is freed; objects live on.
 *
 * Return: 0, or
 *   -EINVAL      flags other than 0
 *   -EBUSY       queued GPU work uses a range; a thread waits for pages of an elastic one
 *   -ENOSPC      no room to spill all mutable ranges, or a table of objects is full
 *   -EOPNOTSUPP  mutable ranges, and the pool keeps no spilled content
 *   -EIO         spilling failed (a full disk, or no mover serves the pool: gpoold.conf(5), mover.patience); the GPU
 *                driver
 *   -EUSERS, -EMFILE  as gpool_object_publish()
 *   -ENOMEM      out of memory; if a range could then not be mapped again, gpool_asleep() says 1, and gpool_wake()
 *                tries again
 *   -EPERM       a session that only reads
 *   -EPIPE       the agent is gone; what is spilled is unknown
 *   -ECHILD
 *
 * Cost: an unmap call for each range, one request to the agent; for immutable and mutable ranges their publication and
 * their copying. Where the pool tells trust domains apart, also an unmapping of each handle that is not used any more,
 * and its import on waking.
 */
GPOOL_API int gpool_sleep(struct gpool *pool, uint32_t flags);

/*
 * gpool_wake() - all ranges have pages again, at the same addresses, with their contents. All pages are granted in one
 * step, so it cannot run out half-way, and processes that wake at the same time do not wait for each other's. On
 * failure all is as before: asleep, nothing lost, no page held. Awake already: 0. timeout_ms: longest wait for pages;
 * 0: none, -1: no limit.
 *
 * Return: 0, or
 *   -ENOSPC  not so many pages to be had (in time); gpool_oom_info() says more
 *   -EDQUOT  the tenant's limit or this process's quota
 *   -ESTALE  an object is not there any more in the version that went to sleep
 *   -EIO     spilled content cannot be read back (no mover serves the pool, for one). It is kept, and may be tried
 *            again; when all mutable ranges are destroyed, the others wake
 *   -ENOMEM  pages could not be mapped
 *   -EINVAL, -EPERM, -EMFILE, -EPIPE, -ECHILD
 *
 * Cost: one request to the agent for pages and two for content, a mapping for each handle, one access call for each
 * range.
 */
GPOOL_API int gpool_wake(struct gpool *pool, int timeout_ms);

/* gpool_asleep() - 1 after gpool_sleep(), 0 after gpool_wake(), -ECHILD. */
GPOOL_API int gpool_asleep(struct gpool *pool);

/* ---- stream-ordered memory ---- */

/*
 * gpool_malloc_async() and gpool_free_async() are for memory that lives from one point of a stream to another: what one
 * frees in a stream, the same stream may have again at once, without anybody waiting for the GPU. Addresses are this
 * process's
 * own, in ranges that are reserved once; pages come from the pool. When no free place is long enough, pages that are
 * free in several places are mapped side by side in a new one: nothing is copied, and free memory can always be had in
 * one piece. gpool(7) tells how.
 *
 * Sizes are rounded up to pages of this allocator ("VPMM pages": a handle of the pool, or a multiple); what is at most
 * half a page of the pool shares pages (enum gpool_vm_small).
 */

enum gpool_vm_small {
	/* parts of pages of the pool, kept in the order of streams; a whole page when there is no other */
	GPOOL_VM_SMALL_SPANS = 0,
	GPOOL_VM_SMALL_DRIVER = 1, /* the driver's own stream-ordered pool, where it has one */
	GPOOL_VM_SMALL_PAGES = 2   /* whole pages, as for larger ones */
};

struct gpool_vm_options {
	uint32_t size;  /* sizeof(struct gpool_vm_options); GPOOL_VM_OPTIONS_INIT sets it */
	uint32_t flags; /* none yet; an unknown bit is -EINVAL */
	/* of a VPMM page: a multiple of the pool's handle; 0: $GPOOL_VM_PAGE_SIZE, else one handle */
	uint64_t page_bytes;
	/* to begin with, free in the stream of the first call; 0: $GPOOL_VM_PAGES pages, else none */
	uint64_t initial_bytes;
	/* to reserve at a time; 0: $GPOOL_VM_VA_SIZE, else 8 TB, or less where a process cannot have so many */
	uint64_t address_bytes;
	uint32_t small; /* enum gpool_vm_small */
	uint32_t usage; /* enum gpool_usage, as tools show it */
	/* longest wait for pages, and of calls without a stream for the GPU; 0: none, -1: no limit */
	int32_t timeout_ms;
	/*
	 * through options.log of gpool_open(), level 3. 1: steps that call the driver or the agent, 2: all, 3: and the
	 * regions after each call; 0: $GPOOL_VM_TRACE, else none
	 */
	uint32_t trace;
	/* a new file, to which all calls are recorded (gpool-replay(1)); NULL: $GPOOL_VM_RECORD, else none */
	const char *record_path;
	/* what lies unused for so long the agent may take; 0: 1000, -1: it may not, but under pressure */
	int32_t idle_ms;
	uint32_t reserved; /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_vm_options, 64);
#define GPOOL_VM_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_vm_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_vm_configure() - before this handle's first gpool_malloc_async(). Without it the defaults hold. Sizes in the
 * environment are bytes, or have a suffix: K, M, G or T, each with or without "B" or "iB" (all powers of two).
 * Return: 0, -EINVAL (a field out of range, a variable that is no size), -EBUSY (too late), -E2BIG, -EPERM, -ECHILD.
 */
GPOOL_API int gpool_vm_configure(struct gpool *pool, const struct gpool_vm_options *options);

/*
 * gpool_malloc_async() - `bytes` of memory for work that is queued on a stream from now on.
 *
 * @stream:  from gpool_stream_open(). 0: for work that the caller starts by itself after this call returns, wherever;
 *           then only memory that the GPU has done with is given, and for lack of that the call waits on the host
 * @address: receives the device address: where the GPU's smallest mapping can begin, of a small one a multiple of 256
 * bytes
 *
 * Looks in this order: the best fit among what was freed in this stream, whether the GPU has done with it or not; the
 * best fit among what it has done with, in any stream; a new place, to which free pages are mapped, this stream's
 * first, then what the GPU has done with, oldest first, and new ones from the agent. When that has none, or is short of
 * them, also what other streams have freed and are not done with, for which this stream is made to wait on the GPU. On
 * failure all is as it was, to the region.
 *
 * Return: 0, or
 *   -EINVAL  bytes is 0; no open stream has that number; the first call: a variable of the environment that is no size
 *   -ENOSPC  the pool has no pages (in time); gpool_oom_info() says more
 *   -EDQUOT  the tenant's limit or this process's quota
 *   -ENOMEM  host memory, or addresses, or pages could not be mapped
 *   -EIO     the driver failed, or the record file cannot be made (first call)
 *   -EPIPE   the agent is gone, and what is free here is not enough
 *   -EPERM   a session that only reads
 *   -EOPNOTSUPP  GPOOL_VM_SMALL_DRIVER, and the device has no such pool (first call)
 *   -ECHILD
 *
 * Threads: any; calls in different streams do not wait for each other's driver calls.
 * Cost:    no driver call where a free place fits, as it does in the steady state [vpmm_steady_pair]. Else a map call
 *          for each handle and one access call.
 */
GPOOL_API int gpool_malloc_async(struct gpool *pool, uint64_t bytes, uint32_t stream, uint64_t *address);

/*
 * gpool_free_async() - an allocation ends behind all work that is queued on `stream` by now. The caller sees to it that
 * work on other streams that uses it is done, or that `stream` waits for it.
 *
 * @stream: 0, or one that is closed: all work is done
 *
 * Return: 0, or
 *   -EINVAL  not an address that gpool_malloc_async() gives, or a stream that never was
 *   -ESTALE  no allocation begins there: it was freed already
 *   -ENOMEM  host memory for what a stream that is new here frees; a small one is still allocated
 *   -EPERM, -ECHILD
 *
 * Cost: no driver call while one stream is in use [vpmm_steady_pair]. With several: one fence, recorded before any lock
 * is taken [vpmm_steady_two_streams].
 */
GPOOL_API int gpool_free_async(struct gpool *pool, uint64_t address, uint32_t stream);

/*
 * gpool_trim_to() - what is free and done with goes back to the agent, the longest free first, but for so many bytes.
 * It stays mapped, and is had again without a driver call unless somebody else has got the pages. Return: the bytes
 * given back, -EPERM, -ECHILD. The library does the same under pressure and with what lies unused (idle_ms).
 */
GPOOL_API int64_t gpool_trim_to(struct gpool *pool, uint64_t keep_bytes);

/*
 * gpool_vm_capture() - 1: the addresses of this allocation stay mapped to the same pages until 0, as a captured graph
 * needs it: when it is freed meanwhile, it is only free when that ends. 0: that ends. Whole pages only.
 * Return: 0, -EINVAL (not an address of whole pages, captured neither 0 nor 1), -ESTALE, -EPERM, -ECHILD.
 */
GPOOL_API int gpool_vm_capture(struct gpool *pool, uint64_t address, int captured);

struct gpool_vm_stats {
	uint32_t size; /* sizeof(struct gpool_vm_stats), set by the caller */
	uint32_t reserved;
	uint64_t page_bytes;     /* of a VPMM page; 0: gpool_malloc_async() was not called yet */
	uint64_t reserved_bytes; /* addresses: live, reusable, holes and pending unmaps */
	uint64_t mapped_bytes;   /* of those: with pages behind them; all but holes */
	uint64_t live_bytes;     /* allocated */
	uint64_t reusable_bytes; /* free. live and reusable together are the pages that this allocator has */
	uint64_t hole_bytes;     /* nothing is mapped */
	/* old places of pages that are mapped elsewhere, until the GPU has done with them */
	uint64_t pending_unmap_bytes;
	uint64_t reclaimable_bytes; /* of the reusable ones: those that the agent may take */
	uint64_t small_bytes;       /* allocated as parts of pages; in none of the above */
	uint64_t live_regions, reusable_regions, hole_regions, pending_unmap_regions;
	uint64_t allocations, frees; /* calls that succeeded, small ones too */
	uint64_t remaps;             /* allocations for which free pages were mapped to a new place ... */
	uint64_t remapped_bytes;     /* ... and how much of them */
	uint64_t taken_bytes;        /* from the agent */
	uint64_t waits;              /* how often a stream was made to wait for another */
	uint64_t records_lost;       /* calls that could not be recorded (record_path) */
};
GPOOL_ASSERT_SIZE(gpool_vm_stats, 168);

/* gpool_vm_stats() - Return: 0, -EINVAL (its size), -EPERM, -ECHILD. */
GPOOL_API int gpool_vm_stats(struct gpool *pool, struct gpool_vm_stats *totals);

/*
 * gpool_vm_dump() - every region in ascending order. First in short, a line for each reservation, by pages:
 *   [+10][1][-5][*4][#100]   allocated by the last call, allocated, free, pending unmap, hole
 * then a line for each region with its address, pages, kind, stream, age and fence. `line` is called without a lock
 * held.
 * Return: the number of regions, -ENOMEM, -EPERM, -ECHILD.
 */
GPOOL_API int gpool_vm_dump(struct gpool *pool, void (*line)(void *context, const char *text), void *context);

#ifdef __cplusplus
}
#endif

#endif
