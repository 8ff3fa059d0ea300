/* vm.h - address ranges, elastic ranges, sleep and wake, stream-ordered memory. */
#ifndef GPOOL_VM_H
#define GPOOL_VM_H

#include "object.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ranges ---- */

/*
 * A range consists of contiguous addresses, which do not change until the range is destroyed. The pages that are mapped
 * at these addresses may be anywhere in the pool and may change. An engine without work calls gpool_sleep(), which
 * returns the pages of all ranges of the handle; gpool_wake() commits pages again at the same addresses. The class
 * determines what happens to the content:
 *
 *   GPOOL_OBJECT_IMMUTABLE  the first gpool_sleep() publishes it as a named object, after which it is read-only;
 *                           gpool_wake() opens that version
 *   GPOOL_OBJECT_MUTABLE    it is spilled (gpoold.conf(5), spill_memory) and restored
 *   GPOOL_OBJECT_EPHEMERAL  it is discarded, and undefined after gpool_wake()
 *
 * Sleep does not affect blocks, scopes and spans: their pinned content remains in the pool while the process sleeps.
 *
 * Unless stated otherwise, any thread may make the calls for a range. Calls that create, destroy, describe, put to
 * sleep or wake ranges of a handle wait for each other.
 */
struct gpool_range;

enum {
	/*
	 * gpool_range_reserve(): a page that is committed contains its own earlier content, or zeros. Without this
	 * flag, it may contain data of another program of the same trust domain.
	 */
	GPOOL_RANGE_ZERO = 1u << 0,
};

struct gpool_range_options {
	uint32_t size;         /* sizeof(struct gpool_range_options); GPOOL_RANGE_OPTIONS_INIT sets it */
	uint32_t flags;        /* GPOOL_RANGE_ZERO, in elastic ranges only; an unknown bit is -EINVAL */
	uint32_t memory_class; /* GPOOL_OBJECT_IMMUTABLE, _MUTABLE or _EPHEMERAL */
	uint32_t usage;        /* enum gpool_usage */
	/* immutable: name, at most 127 bytes, of the object that keeps the range; other classes: NULL. Copied */
	const char *name;
	uint64_t owner_id;  /* any number; tools display it */
	int32_t timeout_ms; /* longest wait for pages; 0: do not wait, -1: no limit (at most 49 days) */
	uint32_t reserved;  /* 0 */
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
 *   -EINVAL     page_count is 0 or exceeds the pool; a flag; an unknown class or usage; timeout_ms below -1; an
 *               immutable range without a name, or another range with one
 *   -EHOSTDOWN  the session is asleep
 *   -EPERM      the session is an observer or admin; a name that is reserved for the library (gpool_object_create())
 *   -ENOSPC, -EDQUOT, -ENOMEM, -E2BIG, -EPIPE, -EINTR, -ECHILD  as gpool_alloc()
 *
 * Cost: one request to the agent, a mapping for each driver handle (one page, unless handles have several) and one
 * access call.
 */
GPOOL_API int gpool_range_create(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range);

/*
 * gpool_range_open() - create a read-only range of the pages of an immutable object, with its allocations in order.
 *
 * @name:    name of the object
 * @options: as in gpool_object_open(), without flags and role
 *
 * gpool_sleep() closes the object; gpool_wake() opens the same version.
 *
 * Return: as gpool_object_open(), or
 *   -EINVAL      the object is not immutable
 *   -EHOSTDOWN   the session is asleep
 *   -EOPNOTSUPP  driver handles have several pages and the object's pages do not fill them, so they cannot be mapped
 *                side by side
 */
GPOOL_API int gpool_range_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options,
	struct gpool_range **range);

/*
 * gpool_range_destroy() - destroy a range and release its addresses, awake or asleep. A published object remains.
 *
 * Waits for work that is queued on this handle's streams. NULL is permitted. GPU work that the program queued elsewhere
 * must have finished. Otherwise the call fails with the back end `host`, and the work faults with `cuda`.
 *
 * Return: 0, or an error after which the range remains: -EBUSY (GPU work uses the range; an object is mapped in it:
 * gpool_range_unmap(); its spilled content is being moved), -EIO, -ENODEV (the GPU driver failed), -EPIPE (it is
 * asleep, and the agent is not running), -EINTR (gpool_wait_check() ended the wait for the work), -ECHILD. Threads: no
 * other thread may be in a call for the range. Cost: an unmap call for each run of mapped pages; for the last spilled
 * range a request to the agent.
 */
GPOOL_API int gpool_range_destroy(struct gpool_range *range);

/* gpool_range_address() - return the constant address of a range's first byte. Return: 0, -ECHILD. Cost: one load. */
GPOOL_API int gpool_range_address(const struct gpool_range *range, uint64_t *address);

enum gpool_range_state { GPOOL_RANGE_AWAKE = 1, GPOOL_RANGE_ASLEEP = 2 };

struct gpool_range_info {
	uint32_t size;         /* sizeof(struct gpool_range_info), set by the caller */
	uint32_t state;        /* enum gpool_range_state */
	uint32_t memory_class; /* enum gpool_object_class */
	uint32_t page_count;
	uint64_t address, bytes;
	uint64_t version;         /* version of the object that keeps its content; 0: none */
	uint64_t layout_hash;     /* of that object */
	char name[128];           /* of that object */
	uint32_t committed_pages; /* all pages, except in an elastic range */
	/* decommitted pages that are still mapped and that no GPU work uses; includes pages that the agent has taken */
	uint32_t reclaimable_pages;
	uint32_t captured_pages;
	uint32_t handle_pages;  /* pages per driver handle: 1, unless they are smaller than the GPU's mappings */
	uint32_t offered_pages; /* committed pages on offer; includes pages that the agent has taken */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_range_info, 200);

/*
 * gpool_range_info() - describe a range. Waits for a gpool_sleep() or gpool_wake() that is in progress.
 *
 * Return: 0, -EINVAL (size), -ECHILD. Cost: two locks; no system call.
 */
GPOOL_API int gpool_range_info(struct gpool_range *range, struct gpool_range_info *info);

/* ---- elastic ranges ---- */

/*
 * gpool_range_reserve() - create an elastic range, which initially has no pages.
 *
 * @page_count: number of pages; may exceed that of the pool
 * @options:    class (mutable or ephemeral), usage, owner_id and flags; timeout_ms is 0. NULL: mutable, KV_CACHE
 *
 * Pages are committed and decommitted individually while the addresses remain the same, so a tensor keeps its base
 * address while its memory grows and shrinks. gpool_sleep() spills or discards the content of committed pages,
 * depending on the class, and gpool_wake() commits these pages again. In between, the calls of this section return
 * -EHOSTDOWN.
 *
 * Return: 0, -EINVAL (page_count, options), -EHOSTDOWN (the session is asleep), -ENOMEM (no host memory or address
 * space; no stream to fill pages with zeros), -EPERM (an observer or admin), -E2BIG, -ECHILD. Cost: reserves addresses,
 * with one driver call; no request to the agent.
 */
GPOOL_API int gpool_range_reserve(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range);

/*
 * gpool_range_commit() - commit pages [first, first + count) of an elastic range, all or none.
 *
 * @timeout_ms: longest wait for pages, milliseconds; 0: do not wait, -1: no limit
 *
 * Pages that are already committed keep their content; the content of new pages is undefined. Decommitted memory is
 * reclaimable: it is still mapped, but idle, so any session may take it. Memory that was not taken is committed again
 * without a driver call. If pages are smaller than the GPU's mappings (gpool_range_info, handle_pages), committing a
 * page also takes the memory of the other pages of its handle.
 *
 * Return: 0, or
 *   -EINVAL     not an elastic range, pages outside the range, timeout_ms below -1
 *   -EBUSY      another thread is committing one of the pages, or an object is mapped there; with the back end `host`
 *               also: queued GPU work uses addresses that were decommitted without its fence and whose memory was taken
 *   -EHOSTDOWN  the session is asleep
 *   -ENOSPC, -EDQUOT  not enough pages in time; gpool_oom_info() returns the details. Also if count exceeds the pool
 *   -ENOMEM     no host memory, or the driver could not map the pages
 *   -EIO        the driver could not fill them with zeros
 *   -EPIPE, -EINTR, -ECHILD
 *
 * Threads: any. Cost: no driver call for reclaimable pages [range_commit_reclaimable]. For other pages, one request to
 * the agent (none if this process has enough unmapped idle pages), a mapping for each handle and one access call for
 * each run of handles [range_commit_new]; with GPOOL_RANGE_ZERO, the time to fill new pages as well.
 */
GPOOL_API int gpool_range_commit(struct gpool_range *range, uint32_t first, uint32_t count, int timeout_ms);

/*
 * gpool_range_decommit() - decommit the committed pages of [first, first + count). Their content is lost.
 *
 * @fence: recorded after the last GPU work on the pages (gpool_fence_record()); GPOOL_FENCE_NONE: that work is done
 *
 * The call does not wait. The memory remains mapped at least until the fence is signaled, so work before the fence
 * never uses unmapped addresses. If a page is committed again before the agent has taken its memory, it has the same
 * memory; the program must order its own work on this memory.
 *
 * Return: 0, -EINVAL (as gpool_range_commit(); a fence that no stream has recorded), -EHOSTDOWN (asleep), -ENOMEM (as
 * gpool_range_offer(); no page is decommitted), -ECHILD. Cost: no driver call [range_decommit].
 */
GPOOL_API int gpool_range_decommit(struct gpool_range *range, uint32_t first, uint32_t count, struct gpool_fence fence);

/*
 * gpool_range_capture() - keep committed pages mapped to the same memory, for a captured graph or other code that uses
 * their addresses without further calls.
 *
 * @captured: 1: begin; 0: end
 *
 * Captured pages remain mapped to the same memory even if they are decommitted. gpool_sleep() unmaps them, and
 * gpool_wake() maps them again.
 *
 * Return: 0, -EINVAL (a page is offered or not committed; captured is neither 0 nor 1; as gpool_range_commit()),
 * -EHOSTDOWN (asleep), -ECHILD. Cost: a lock; no driver call.
 */
GPOOL_API int gpool_range_capture(struct gpool_range *range, uint32_t first, uint32_t count, int captured);

/*
 * gpool_range_offer() - permit the agent to take committed pages [first, first + count) of an elastic range. They keep
 * their content until they are taken.
 *
 * @fence: recorded after the last GPU work on the pages (gpool_fence_record()); GPOOL_FENCE_NONE: that work is done
 *
 * The pages remain committed and mapped. The agent takes offered pages in the order of eviction, as it evicts unpinned
 * blocks. It may take a page at any time after the page's fence is signaled, without a call of this process. Call
 * gpool_range_reclaim() before any code reads or writes the pages again. Offered pages may be offered again; the agent
 * then waits for all of their fences.
 *
 * gpool_range_commit() also ends an offer. It replaces pages that the agent has taken, but does not report their loss;
 * call gpool_range_reclaim() first if the content matters. gpool_sleep() discards the content of offered pages.
 *
 * Return: 0, or
 *   -EINVAL     not an elastic range; pages outside the range; a page that is captured or not committed; pages that are
 *               smaller than the GPU's mappings (gpool_range_info, handle_pages) and do not fill their handles; a fence
 *               that no stream has recorded
 *   -EHOSTDOWN  the session is asleep
 *   -ENOMEM     more than 4,096 different sets of unfinished streams use pages; no page is offered
 *   -ECHILD     after fork()
 *
 * Threads: any. Cost: no driver call and no request to the agent [range_offer, range_offer_one].
 */
GPOOL_API int gpool_range_offer(struct gpool_range *range, uint32_t first, uint32_t count, struct gpool_fence fence);

/*
 * gpool_range_reclaim() - end the offer of pages [first, first + count), and report which pages have kept their
 * content.
 *
 * @kept: [count] receives 1: page first + i is committed and has its content; 0: it is not committed, because the agent
 *        has taken it or it was not committed before; gpool_range_commit() replaces it. A committed page that was not
 *        offered counts as kept. May be NULL
 *
 * Waits while the agent examines a page for eviction; this takes a part of the time of one eviction [evict].
 *
 * Return: the number of pages that are not kept, or -EINVAL (as gpool_range_commit()), -EHOSTDOWN (asleep), -ECHILD.
 * Threads: any. Cost: as gpool_range_offer() [range_reclaim, range_reclaim_one].
 */
GPOOL_API int gpool_range_reclaim(struct gpool_range *range, uint32_t first, uint32_t count, uint8_t *kept);

enum gpool_page_state {
	GPOOL_PAGE_HOLE = 0,        /* no memory, or the memory was taken */
	GPOOL_PAGE_RECLAIMABLE = 1, /* not committed, but its memory is still mapped */
	GPOOL_PAGE_COMMITTED = 2,
	GPOOL_PAGE_SHARED = 3, /* a page of a named object: gpool_range_publish(), gpool_range_map() */
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
	uint64_t generation; /* generation of that page; it changes when the page gets another user */
	uint64_t address;    /* of its first byte */
};
GPOOL_ASSERT_SIZE(gpool_range_page, 32);

/*
 * gpool_range_resolve() - describe the memory of a page of an elastic range.
 *
 * Return: 0, -EINVAL (index, size, not an elastic range), -EHOSTDOWN (asleep), -ECHILD. Cost: a lock and a few loads.
 */
GPOOL_API int gpool_range_resolve(struct gpool_range *range, uint32_t index, struct gpool_range_page *page);

/* ---- named objects in elastic ranges ---- */

/*
 * Pages of an elastic range can be published as a named object at their addresses. Other processes can map this object
 * into elastic ranges of their own. A tensor over such a range then contains the object's content without a copy. For
 * example, a cache shares a computed prefix in this way.
 *
 * Such an object is immutable. The agent may evict it while no session has it pinned, even if sessions have it mapped.
 * Therefore pin the object (gpool_object_pin()) before the pages are read, and unpin it after the GPU work
 * (gpool_object_unpin_after()). If the object was evicted, the pin returns -ESTALE.
 *
 * Pages of objects are not committed. gpool_range_commit() returns -EBUSY for them, and gpool_range_decommit() ignores
 * them. The session cannot sleep while it maps such pages.
 */
struct gpool_range_publish_options {
	uint32_t size;  /* sizeof(struct gpool_range_publish_options); GPOOL_RANGE_PUBLISH_OPTIONS_INIT sets it */
	uint32_t flags; /* GPOOL_OBJECT_PRIVATE; an unknown bit is -EINVAL */
	/* open object that is evicted after this one, such as the preceding part of a prefix; NULL: none */
	struct gpool_object *follows;
	const char *key;   /* key of its metadata, 1 to 1,023 bytes; NULL: no metadata */
	const void *value; /* value of that key */
	uint64_t value_bytes;
};
GPOOL_ASSERT_SIZE(gpool_range_publish_options, 40);
#define GPOOL_RANGE_PUBLISH_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_range_publish_options), 0, 0, 0, 0, 0 \
	}

/*
 * gpool_range_publish() - publish pages [first, first + count) of an elastic range as a named object that is not yet
 * published.
 *
 * @name:    as in gpool_object_create()
 * @options: NULL: no metadata, not private
 * @object:  receives the open object, pinned once; gpool_range_unmap() ends its mapping and closes it
 *
 * The pages belong to the object from then on, and the library maps them read-only in all processes. They remain at
 * their addresses. All work that writes to them must have finished.
 *
 * Return: 0, or an error that leaves the pages unchanged:
 *   -EINVAL     not an elastic range, pages outside of it; a page is not committed, offered, captured, or part of a
 *               handle that the call does not cover; name or options
 *   -ESTALE     an object of this name exists
 *   -EBUSY      queued GPU work uses the pages and could write to them (back end `host`)
 *   -EHOSTDOWN  the session is asleep
 *   -EPERM, -EUSERS, -ENOSPC, -EFBIG, -EPIPE, -ENOMEM, -EMFILE, -ECHILD  as gpool_object_publish()
 *
 * Threads: any. Cost: one request to the agent and one access call.
 */
GPOOL_API int gpool_range_publish(struct gpool_range *range, uint32_t first, uint32_t count, const char *name,
	const struct gpool_range_publish_options *options, struct gpool_object **object);

/*
 * gpool_range_map() - open an object and map all its pages, read-only, at page `first` of an elastic range and the
 * pages that follow.
 *
 * @options: as in gpool_object_open(), without flags and role
 * @object:  receives the open object, pinned once if it can be pinned (gpool_range_publish(), GPOOL_OBJECT_PINNABLE);
 *           gpool_range_unmap() ends its mapping and closes it
 *
 * Return: 0, or an error without effect:
 *   -EINVAL      not an elastic range; the object does not fit between `first` and the end of the range; `first` is not
 *                the first page of a handle; the object is mutable; options
 *   -EBUSY       a page there is committed, or mapped to an object; queued GPU work uses the memory that was
 *                decommitted there
 *   -ESTALE      the object was evicted in the meantime
 *   -EOPNOTSUPP  the object's pages do not fill the handles that the GPU maps
 *   -EHOSTDOWN   the session is asleep
 *   others as gpool_object_open()
 *
 * Threads: any. Cost: one request to the agent, a mapping for each handle and one access call.
 */
GPOOL_API int gpool_range_map(struct gpool_range *range, uint32_t first, const char *name,
	const struct gpool_object_open_options *options, struct gpool_object **object);

/*
 * gpool_range_unmap() - end the mapping of an object in an elastic range, and close the object. The pages of the range
 * then have no memory and can be committed. End all pins of the object before the call.
 *
 * Return: 0, -EINVAL (it is not mapped in this range), -EBUSY (back end `host`: queued GPU work uses the pages, which
 * remain mapped), -EIO, -ENODEV (the GPU driver failed), -EHOSTDOWN (asleep), -ECHILD. Threads: no other thread may use
 * the object. Cost: one unmap call; for the last handle of the version also a request to the agent.
 */
GPOOL_API int gpool_range_unmap(struct gpool_range *range, struct gpool_object *object);

/* ---- sliced ranges ---- */

/*
 * A sliced range is an elastic range of equal slices, for example one for K and one for V of each layer. Each block is
 * committed in all slices together, so one call grows or shrinks all slices. Block i of slice s is at address + s *
 * slice_bytes + i * block_bytes.
 */
struct gpool_sliced_range;

struct gpool_sliced_range_options {
	uint32_t size;         /* sizeof(struct gpool_sliced_range_options); GPOOL_SLICED_RANGE_OPTIONS_INIT sets it */
	uint32_t flags;        /* 0; an unknown bit is -EINVAL */
	uint32_t memory_class; /* enum gpool_object_class: mutable or ephemeral */
	uint32_t usage;        /* enum gpool_usage */
	uint64_t owner_id;     /* any number; tools display it */
	/* blocks after the committed blocks that a library thread maps in advance; 0: none, and no thread */
	uint32_t read_ahead;
	uint32_t reserved; /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_sliced_range_options, 32);
#define GPOOL_SLICED_RANGE_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_sliced_range_options), 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_sliced_range_create() - create a range of `slices` slices of `blocks` blocks of `block_pages` pages. It
 * initially has no pages.
 *
 * @options: NULL: mutable, KV_CACHE, no read-ahead
 *
 * Blocks that were mapped in advance are reclaimable: the agent may give their pages to other sessions.
 *
 * Return: as gpool_range_reserve(); -EINVAL also: a shape of 0 or more than 2^32 - 1 pages; -ENOMEM also: no thread.
 * Cost: as gpool_range_reserve(), and the start of a thread with read_ahead.
 */
GPOOL_API int gpool_sliced_range_create(struct gpool *pool, uint32_t slices, uint32_t blocks, uint32_t block_pages,
	const struct gpool_sliced_range_options *options, struct gpool_sliced_range **range);

/* gpool_sliced_range_destroy() - end a sliced range. NULL is permitted. Return: as gpool_range_destroy(). */
GPOOL_API int gpool_sliced_range_destroy(struct gpool_sliced_range *range);

/*
 * gpool_sliced_range_grow() - commit the first `blocks` blocks of all slices, all or none.
 *
 * Committed blocks keep their content. If `blocks` or more blocks are committed, the call does nothing.
 *
 * Return: as gpool_range_commit(); -EINVAL: the slices have fewer blocks, timeout_ms below -1.
 * Threads: any; one call at a time grows or shrinks a range. Cost: no driver call for blocks that were mapped in
 * advance, unless the agent has taken their pages [sliced_range_grow_ahead]; for other blocks, one request to the
 * agent, a mapping for each handle and an access call for each slice [sliced_range_grow].
 */
GPOOL_API int gpool_sliced_range_grow(struct gpool_sliced_range *range, uint32_t blocks, int timeout_ms);

/*
 * gpool_sliced_range_shrink() - decommit all blocks after the first `blocks` blocks of all slices, as
 * gpool_range_decommit(). If no more blocks are committed, the call does nothing.
 *
 * Return: as gpool_range_decommit(); -EINVAL: the slices have fewer blocks, or the fence was not recorded by this
 * session. Threads: as gpool_sliced_range_grow(). Cost: as gpool_range_decommit().
 */
GPOOL_API int gpool_sliced_range_shrink(struct gpool_sliced_range *range, uint32_t blocks, struct gpool_fence fence);

struct gpool_sliced_range_info {
	uint32_t size; /* sizeof(struct gpool_sliced_range_info), set by the caller */
	uint32_t slices, blocks, block_pages;
	uint32_t committed; /* blocks */
	uint32_t ready;     /* committed blocks and blocks mapped in advance; an estimate */
	uint64_t address;
	uint64_t slice_bytes; /* from one slice to the next */
	uint64_t block_bytes;
};
GPOOL_ASSERT_SIZE(gpool_sliced_range_info, 48);

/* gpool_sliced_range_info() - describe a sliced range. Return: 0, -EINVAL (size), -ECHILD. Cost: a lock. */
GPOOL_API int gpool_sliced_range_info(struct gpool_sliced_range *range, struct gpool_sliced_range_info *info);

/* ---- sleep and wake ---- */

/*
 * gpool_sleep() - return the pages of all ranges of this handle, all or none.
 *
 * @flags: 0
 *
 * Waits for the work on this handle's streams. Other GPU work of the program must be done, and no thread may use an
 * address of a range until gpool_wake(). The call does not wait for host-signaled timelines; streams that wait for such
 * a timeline must be able to continue. On failure, all ranges remain mapped and keep their content; content that was
 * already published remains published and read-only. If a range cannot be mapped again after a failure, gpool_asleep()
 * returns 1 and gpool_wake() retries. If the session is asleep, the call does nothing. If the process ends while it is
 * asleep, its spilled content is freed; objects remain.
 *
 * Return: 0, or
 *   -EINVAL      flags
 *   -EBUSY       an object is mapped in an elastic range; another call for an elastic range does not end within a
 *                second; with the back end `host` also: queued GPU work uses a range
 *   -ENOSPC      no room to spill all mutable ranges, or a table of objects is full
 *   -EOPNOTSUPP  mutable ranges have pages, but the pool has neither memory nor a file for spilled content
 *   -EIO         spilling failed (a full disk; no mover serves the pool for mover.patience, gpoold.conf(5)), the GPU
 *                driver failed, or queued work had accessed an address that is not mapped
 *   -ENODEV      the GPU driver failed
 *   -ESTALE, -EUSERS, -EFBIG, -EMFILE  as gpool_object_publish()
 *   -ENOMEM      out of memory
 *   -EPERM       the session is an observer or admin; the name of an immutable range belongs to another tenant
 *   -EPIPE       the agent is not running; the spilled part of the content is unknown
 *   -EINTR       gpool_wait_check() ended the wait for the work on the streams
 *   -ECHILD      after fork()
 *
 * Cost: an unmap call for each range, one request to the agent, the publication of immutable ranges and copies of
 * mutable ranges. After the first move of pages between trust domains of the pool, also an unmap call for each unused
 * handle, which is imported again when it is used.
 */
GPOOL_API int gpool_sleep(struct gpool *pool, uint32_t flags);

/*
 * gpool_wake() - commit pages for all ranges again, at the same addresses and with their content.
 *
 * @timeout_ms: longest wait for pages, milliseconds; 0: do not wait, -1: no limit
 *
 * The agent grants all pages in one step, so processes that wake concurrently do not wait for each other's pages. On
 * failure, except -EPIPE, the session remains asleep, loses no content, and holds no pages except those that a failed
 * gpool_sleep() could not map again. If the session is awake, the call does nothing.
 *
 * The call holds the lock of the handle's ranges while it waits for pages. The function of gpool_wait_check() must
 * therefore make no call for the pool, and wait for no thread that creates, destroys or describes a range.
 *
 * Return: 0, or
 *   -ENOSPC  not enough pages in time; gpool_oom_info() returns the details
 *   -EDQUOT  the limit of the tenant or the quota of this session is reached
 *   -ESTALE  the object version that keeps the content of a range was deleted
 *   -EIO     spilled content cannot be read (for example, no mover serves the pool, or a checksum is wrong). It is
 *            kept; call again. The session can also wake after all mutable ranges are destroyed
 *   -ENOMEM  no host memory, or pages could not be mapped
 *   -EINVAL  timeout_ms below -1
 *   -EPERM, -EACCES, -EMFILE, -EPIPE, -EINTR, -ECHILD
 *
 * Cost: one request to the agent for pages and two for content, a mapping for each handle, one access call for each
 * range.
 */
GPOOL_API int gpool_wake(struct gpool *pool, int timeout_ms);

/* gpool_asleep() - return 1 after gpool_sleep(), 0 after gpool_wake(), or -ECHILD. Cost: a lock. */
GPOOL_API int gpool_asleep(struct gpool *pool);

/* ---- stream-ordered memory ---- */

/*
 * gpool_malloc_async() and gpool_free_async() allocate and free memory in the order of a stream. Memory that is freed
 * in a stream can be allocated in the same stream at once, without a wait for the GPU. Addresses are reserved once in
 * this process; pages are taken from the pool. If no free region is large enough, free pages from several places are
 * mapped side by side in a new region. No data is copied, and all free memory can be allocated in one piece. gpool(7)
 * describes the method.
 *
 * Sizes are rounded up to VPMM pages, the pages of this allocator: a driver handle of the pool, or a multiple. An
 * allocation that is smaller than a VPMM page is small, see enum gpool_vm_small.
 *
 * With a VPMM page larger than the pool, for example GPOOL_VM_PAGE_SIZE=1T, all allocations are small and come from the
 * driver's pool, as with GPOOL_VM_SMALL_DRIVER. Allocations that it cannot serve are whole pages of the pool: those
 * without a stream or for a host-signaled timeline, and all on a device without such a pool, as with the back end
 * `host`. No addresses are then reserved, and no pages mapped elsewhere.
 */
enum gpool_vm_small {
	/*
	 * a part of a page of the pool, up to half a page, otherwise whole pages of the pool; reused in the order of
	 * streams. A whole VPMM page if the pool has no such page
	 */
	GPOOL_VM_SMALL_SPANS = 0,
	GPOOL_VM_SMALL_DRIVER = 1, /* the driver's own stream-ordered pool, which the agent does not account for */
	GPOOL_VM_SMALL_PAGES = 2   /* whole VPMM pages, as for larger allocations */
};

enum { GPOOL_VM_SLACK_MAX = 1000 };

/*
 * Environment variables replace options that are 0. Sizes in variables are bytes, or have the suffix K, M, G or T,
 * optionally followed by "B" or "iB" (all powers of two). GPOOL_VM_SLACK is a percentage.
 */
struct gpool_vm_options {
	uint32_t size;  /* sizeof(struct gpool_vm_options); GPOOL_VM_OPTIONS_INIT sets it */
	uint32_t flags; /* 0; an unknown bit is -EINVAL */
	/*
	 * size of a VPMM page: a multiple of the pool's handle, or more than the pool; 0: $GPOOL_VM_PAGE_SIZE, or one
	 * handle
	 */
	uint64_t page_bytes;
	/*
	 * memory that the first call allocates in advance for its stream; 0: initial_percent, or else $GPOOL_VM_PAGES,
	 * which is a number of pages, or a share of the pool such as 80%. Ignored if a VPMM page is larger than the
	 * pool
	 */
	uint64_t initial_bytes;
	/* addresses reserved at a time; 0: $GPOOL_VM_VA_SIZE, or 8 TB, or less if a process cannot reserve that much */
	uint64_t address_bytes;
	uint32_t small; /* enum gpool_vm_small */
	uint32_t usage; /* enum gpool_usage that tools display for the pages */
	/* longest wait for pages, and for the GPU in calls without a stream; 0: do not wait, -1: no limit */
	int32_t timeout_ms;
	/*
	 * which calls to log through options.log of gpool_open(), at level 3. 1: calls that use the driver or the
	 * agent, with their steps; 2: all calls; 3: all calls, and the regions after each call; 0: $GPOOL_VM_TRACE, or
	 * no calls if that is not set
	 */
	uint32_t trace;
	/*
	 * a new file in which a background thread records all calls as CSV (gpool-replay(1)); records that cannot be
	 * written are counted. NULL: $GPOOL_VM_RECORD, or no record if that is not set
	 */
	const char *record_path;
	/* time without a call, in ms, after which free memory is reclaimable; 0: 1000, -1: only under pressure */
	int32_t idle_ms;
	/*
	 * while the pressure is low, take new pages before free pages are mapped elsewhere, as long as the pages of the
	 * allocator do not exceed the peak of live memory by more than this, in percent of the peak, at most
	 * GPOOL_VM_SLACK_MAX; 0: $GPOOL_VM_SLACK, or 20 if that is not set; -1: none
	 */
	int32_t slack_percent;
	/*
	 * share of the pool that the first call allocates in advance, in percent, instead of initial_bytes. 80 is a
	 * good value for a program that does not share the pool
	 */
	uint32_t initial_percent;
	uint32_t reserved; /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_vm_options, 72);
#define GPOOL_VM_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_vm_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_vm_configure() - set the options of this handle's allocator before its first gpool_malloc_async().
 *
 * @options: not NULL; record_path is copied
 *
 * Return: 0, -EINVAL (a field out of range), -EALREADY (the allocator has started), -E2BIG, -EPERM (an observer or
 * admin), -ENOMEM, -ECHILD. Cost: no system call; the options take effect at the first gpool_malloc_async().
 */
GPOOL_API int gpool_vm_configure(struct gpool *pool, const struct gpool_vm_options *options);

/*
 * gpool_malloc_async() - allocate memory for later work of a stream.
 *
 * @bytes:   size
 * @stream:  from gpool_stream_open(). 0: for work that the caller starts after the call in any way. The call then
 *           allocates only memory that the GPU no longer uses; if no such memory exists, the call waits on the host, as
 *           it does for a host-signaled timeline
 * @address: receives the device address, aligned to the GPU's smallest mapping, or for a small allocation to the pool's
 *           `alignment`, by default 256 bytes
 *
 * Memory is searched in this order: the best fit among memory that was freed in this stream, whether the GPU uses it or
 * not; the best fit among memory of any stream that the GPU no longer uses; a new region to which free pages are
 * mapped. The region gets new pages if slack_percent permits them and the pool has free ones. Otherwise it gets pages
 * of this stream first, then pages that have been unused longest, then new pages from the agent. If the agent does not
 * have enough pages, the region also gets memory that other streams have freed but still use, and this stream waits for
 * them on the GPU.
 *
 * Return: 0, or
 *   -EINVAL  bytes is 0; the stream is not open; at the first call: an environment variable with an invalid value,
 *            or a page size that does not fit the pool
 *   -ENOSPC  not enough pages in time; gpool_oom_info() returns the details
 *   -EDQUOT  the limit of the tenant or the quota of this session is reached
 *   -ENOMEM  no host memory or addresses, or pages could not be mapped; the driver's pool has no memory
 *   -EIO     the GPU driver failed; at the first call: the record file cannot be created
 *   -EPIPE   the agent is not running, and the free memory of this process is not sufficient
 *   -EPERM   the session is an observer or admin
 *   -EOPNOTSUPP  at the first call: GPOOL_VM_SMALL_DRIVER, but the device has no such pool
 *   -EINTR, -ECHILD
 *
 * Threads: any; calls in different streams do not wait for each other's driver calls. Cost: no driver call if a free
 * region fits, as in the steady state [malloc_async_steady_pair]. Otherwise a map call for each handle and one access
 * call.
 */
GPOOL_API int gpool_malloc_async(struct gpool *pool, uint64_t bytes, uint32_t stream, uint64_t *address);

/*
 * gpool_free_async() - free an allocation after all work that is queued on a stream.
 *
 * @address: from gpool_malloc_async()
 * @stream:  0, or a closed stream: all work that uses the memory is done
 *
 * The caller ensures that work on other streams that uses the memory is done, or that `stream` waits for it. Memory
 * that is freed in a stream from which a graph is being captured can be reused by this stream at once, and by others
 * after the capture has ended. For memory that the graph uses, call gpool_vm_capture() first.
 *
 * Return: 0, or
 *   -EINVAL  not an address of this allocator, or a stream that never existed
 *   -ESTALE  no allocation begins there, or it was already freed
 *   -ENOMEM  no host memory for the frees of a stream that is new to the allocator; a small allocation is not freed
 *   -EPERM, -ECHILD
 *
 * Cost: no driver call while one stream is in use [malloc_async_steady_pair]. With several streams, one fence, recorded
 * before any lock is taken [malloc_async_steady_two_streams].
 */
GPOOL_API int gpool_free_async(struct gpool *pool, uint64_t address, uint32_t stream);

/*
 * gpool_trim_to() - return free memory to the agent, least recently used first, until keep_bytes are left. Memory that
 * the GPU still uses is kept.
 *
 * The memory remains mapped, and is allocated again without a driver call unless another session has taken the pages.
 * The library also returns memory under pressure and after idle_ms.
 *
 * Return: the number of returned bytes, or -EPERM, -ECHILD. Threads: any. Cost: a lock of the allocator, proportional
 * to the number of returned regions; a fence for streams whose frees have none.
 */
GPOOL_API int64_t gpool_trim_to(struct gpool *pool, uint64_t keep_bytes);

/*
 * gpool_vm_capture() - keep an allocation mapped to the same pages, for a captured graph that uses its addresses.
 *
 * @captured: 1: begin; 0: end. Memory that is freed in between becomes free at the end
 *
 * Return: 0, -EINVAL (a small allocation; not an address; captured neither 0 nor 1), -ESTALE (freed), -EPERM,
 * -ECHILD. Threads: any. Cost: a lock of the allocator.
 */
GPOOL_API int gpool_vm_capture(struct gpool *pool, uint64_t address, int captured);

struct gpool_vm_stats {
	uint32_t size;           /* sizeof(struct gpool_vm_stats), set by the caller */
	uint32_t slack_percent;  /* slack in effect now; 0: none, for example because the pressure is not low */
	uint64_t page_bytes;     /* size of a VPMM page; 0: gpool_malloc_async() was not called yet */
	uint64_t reserved_bytes; /* addresses: live, reusable, holes and pending unmaps */
	uint64_t mapped_bytes;   /* addresses with pages: all but holes */
	uint64_t live_bytes;     /* allocated */
	uint64_t reusable_bytes; /* free; the pages of this allocator are live_bytes + reusable_bytes */
	uint64_t hole_bytes;     /* not mapped */
	/* former addresses of pages that are mapped elsewhere; unmapped when the GPU no longer uses these addresses */
	uint64_t pending_unmap_bytes;
	uint64_t reclaimable_bytes; /* reusable bytes that the agent may take; a page counts once for each address */
	uint64_t small_bytes;       /* small allocations; not included in any of the above */
	uint64_t live_regions, reusable_regions, hole_regions, pending_unmap_regions;
	uint64_t allocations, frees; /* successful calls, including small allocations */
	uint64_t remaps;             /* allocations for which free pages were mapped to a new region */
	uint64_t remapped_bytes;     /* free pages that were mapped to new regions */
	uint64_t taken_bytes;        /* leased from the agent */
	uint64_t waits;              /* waits of one stream for another */
	uint64_t records_lost;       /* calls that could not be recorded (record_path) */
	uint64_t live_peak_bytes;    /* maximum of live_bytes since the last pause of idle_ms, or the last shortage */
	uint64_t slack_taken_bytes;  /* leased from the agent although free pages could have been mapped */
};
GPOOL_ASSERT_SIZE(gpool_vm_stats, 184);

/*
 * gpool_vm_stats() - read the allocator's counters. Return: 0, -EINVAL (size), -EPERM, -ECHILD. Cost: a lock of the
 * allocator.
 */
GPOOL_API int gpool_vm_stats(struct gpool *pool, struct gpool_vm_stats *stats);

/*
 * gpool_vm_dump() - print all regions in ascending order.
 *
 * @line:    called for each line, without a lock held
 * @context: passed to line
 *
 * The output begins with a line for each reservation, in pages:
 *
 *	[+10]   allocated by the last call
 *	[1]     allocated
 *	[-5]    free
 *	[*4]    a hole, or a pending unmap, which becomes a hole: its pages are mapped elsewhere
 *	[#3]    new: a call that has not returned maps pages there
 *
 * A line for each region follows, with its address, pages, kind, stream, age and fence. "poolctl regions" prints the
 * same. The last line contains the slack in effect:
 *
 *	104 pages held; slack 20 %: new pages are preferred up to 120
 *
 * Return: the number of regions, or -ENOMEM, -EPERM, -ECHILD. Cost: a lock of the allocator, plus time proportional to
 * the number of regions.
 */
GPOOL_API int gpool_vm_dump(struct gpool *pool, void (*line)(void *context, const char *text), void *context);

#ifdef __cplusplus
}
#endif

#endif
