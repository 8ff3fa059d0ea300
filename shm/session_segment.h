/*
 * session_segment.h - memory shared by one worker and the agent: leases, pins, blocks, requests. Each session has one
 * memfd.
 *
 * Writers: all threads of the worker, and the agent. For the agent, every field is untrusted input: it reads a field
 * once into a local variable and checks it against its own tables. An invalid field affects only this session. Both
 * sides compute sizes and offsets from the page count instead of reading them from the segment. The memfd is sealed
 * against shrinking, so accesses cannot raise SIGBUS.
 *
 *   header | free_bits u64[] | pins u32[] | touch u32[] | blocks struct block_entry[] | timeline u64[] | requests |
 *   stats | answers | struct region_table | struct fence_join[] | ring of the flight recorder (flight.h)
 *
 * The segment of a session without pages (such as poolctl's) has no region table, no joint fences and no ring.
 */
#ifndef GPOOL_SHM_SESSION_SEGMENT_H
#define GPOOL_SHM_SESSION_SEGMENT_H

#include "shm/pool_segment.h"
#include "shm/region_table.h"

#include <unistd.h>

#define SESSION_MAGIC UINT64_C(0x73736573703167) /* "g1psess" */

enum {
	SESSION_TIMELINES = 256, /* stream slots; slot 0 is never used, so a fence of 0 means "no fence" */
	SESSION_REQUESTS = 64,   /* maximum number of lease requests in progress; one bit each in requests_pending */
	SESSION_STAT_SLOTS = 64, /* threads have their own counters; all further threads share the last slot */
	SESSION_ANSWERS = 8,
	SESSION_ANSWER_BYTES = 496,
	/* number of joint fences: far more than the pairs of streams with unfinished work */
	SESSION_JOINS = 4096,
	JOIN_MEMBERS = 7, /* as many as fit into a cache line */
	SESSION_TIMELINE_BYTES = 2 * SESSION_TIMELINES * 8,
};

/*
 * Each leased page is in exactly one of these places:
 *   idle         its free bit is set
 *   block        the entry of the block's first page has the block's tag
 *   cached       in a thread's magazine: the entry's tag is BLOCK_TAG_CACHED. The agent may take it
 *   reservation  only the agent's ledger records it (agent/pages/reservation.h); the worker does not use it
 *   transit      a thread moves it between two of these places, or to or from an object; usually lasts nanoseconds
 *
 * tag: sequence:48 (never repeated within a session) | attributes:16. 0: no block starts at this page.
 */
struct block_entry {
	_Atomic uint64_t tag;
	_Atomic uint32_t page_count; /* number of adjacent pages of this extent */
	_Atomic uint32_t next;       /* scattered blocks: first page of the next extent plus 1; 0: last extent */
	_Atomic uint64_t owner_id;   /* chosen by the worker, such as the number of a request or an adapter */
	_Atomic uint64_t fence;      /* GPU work that must finish before the pages may be taken: slot:16 | value:48 */
};
static_assert(sizeof(struct block_entry) == 32, "shared layout");

enum {
	BLOCK_TYPE_MASK = 0xf,    /* usage, below BLOCK_USAGES */
	BLOCK_PRIORITY_SHIFT = 4, /* two bits; 0 is the lowest */
	BLOCK_PRIORITY_MASK = 0x30,
	BLOCK_EXTENT = 0x40,   /* further extent of a scattered block; evicted only with the head */
	BLOCK_PREPARED = 0x80, /* two-phase allocation: allocated, not yet committed */
	/*
	 * freed: it cannot be pinned again. When it is unpinned and its fence is signaled, the agent may take its pages
	 */
	BLOCK_DYING = 0x100,
	BLOCK_SCATTERED = 0x200,
	BLOCK_SPILL = 0x400, /* the content is saved to host memory or a file on eviction */
	/* pinned by the library for as long as a range is awake or spans use it: the pin never counts as leaked */
	BLOCK_RANGE = 0x800,
	BLOCK_ATTRIBUTES = 0xffff,
	BLOCK_SEQUENCE_SHIFT = 16,
};
#define BLOCK_TAG_CACHED UINT64_C(1) /* sequence 0, which no block has */

static inline uint64_t block_tag_make(uint64_t sequence, uint32_t attributes)
{
	return sequence << BLOCK_SEQUENCE_SHIFT | (attributes & BLOCK_ATTRIBUTES);
}

static inline bool block_tag_is_block(uint64_t tag)
{
	return tag >> BLOCK_SEQUENCE_SHIFT != 0;
}

/*
 * A joint fence combines the fences of several streams that used a page. A fence with the slot SESSION_TIMELINES refers
 * to an entry by serial:32 | index:16 (timeline.h). The worker writes entries under its own lock; the agent reads them
 * without a lock. The serial number is odd while the members are being written. An entry is reused only after all its
 * members are signaled, so a fence whose serial number differs from that of the entry is signaled.
 */
struct fence_join {
	_Alignas(64) _Atomic uint32_t serial;
	uint32_t reserved;
	_Atomic uint64_t members[JOIN_MEMBERS]; /* 0: no fence. A member may itself be a joint fence */
};
static_assert(sizeof(struct fence_join) == 64, "one cache line each");

/* The state is in the low bits of the request's state word, the serial number in the bits above. */
enum lease_request_state {
	LEASE_IDLE,
	LEASE_REQUESTED,
	LEASE_DONE,
	LEASE_CANCELLED,
	LEASE_STATE_MASK = 0xf,
	LEASE_SERIAL_ONE = 0x10
};
enum lease_request_kind {
	LEASE_TAKE = 1,
	/*
	 * Request pages as LEASE_TAKE does, for the spilled block `tag` of the requester, which has `need` pages. The
	 * request is answered when the pages contain the block's content. It may be cancelled at any time, because the
	 * pages belong to the agent until the answer; the agent takes them back when the mover has stopped writing to
	 * them.
	 * Errors before pages are leased: -ESTALE (not spilled), -EBUSY (being moved, possibly for a cancelled
	 * request), -EINVAL (the block has another number of pages), -EIO (the pool has no mover; the content is kept).
	 * Errors of the restore: -EIO (read error; the content is kept), -EBADMSG (wrong checksum; the content is
	 * lost).
	 */
	LEASE_RESTORE,
	/*
	 * Requests that concern the spilled block `tag`. They have no timeout and are not cancelled.
	 *   QUERY         whether LEASE_RESTORE would be refused: 0, -ESTALE, -EBUSY, -EINVAL, -EIO
	 *   RESTORE_INTO  as LEASE_RESTORE, into the pinned and prepared block of `need` pages at first_page; the
	 *                 content is kept after any failure
	 *   DISCARD       delete the content: 0, -ESTALE (not spilled), -EBUSY (being moved)
	 *   SPILL         spill the block at first_page: 0, -EBUSY (pinned, or its fence is not signaled), -ENOSPC (no
	 *                 room)
	 */
	LEASE_QUERY,
	LEASE_RESTORE_INTO,
	LEASE_DISCARD,
	LEASE_SPILL,
	/*
	 * Requests that concern the reservation `tag` (agent/pages/reservation.h).
	 *   RESERVE    lease `need` pages to the requester as the new reservation `tag`, for `extra` milliseconds (0:
	 *              no limit). Waits and fails as LEASE_TAKE; also -EINVAL (not a new number of the requester),
	 *              -EUSERS (POOL_RESERVATIONS)
	 *   TAKE_OVER  take `need` pages over from the reservation; answered as LEASE_TAKE. -ENOENT (fewer pages are
	 *              left, or it has ended), -EPERM (of another tenant), -EDQUOT (quota of the requester)
	 *   UNRESERVE  end the reservation; first_page receives the number of freed pages. 0, -EPERM
	 */
	LEASE_RESERVE,
	LEASE_TAKE_OVER,
	LEASE_UNRESERVE,
};
enum {
	LEASE_FIRST_FIT = 1u << 0,
	LEASE_CRITICAL = 1u << 1,   /* may use reserved pages */
	LEASE_CONTIGUOUS = 1u << 2, /* lease the pages in one run, or refuse the request */
	LEASE_NO_EVICT = 1u << 3,   /* refuse the request instead of evicting a block */
	/* begin each run at the start of a handle, and end each but the last at the end of one */
	LEASE_ALIGNED = 1u << 4,
	/* scattered pages suffice: do not collect idle pages to form one run */
	LEASE_SCATTERED = 1u << 5,
	/* free pages only: take no pages from sessions, not even idle ones */
	LEASE_FREE = 1u << 6,
	/* evict neither content of the requesting session nor content that follows it in the eviction order */
	LEASE_OWN_LAST = 1u << 8,
	/* usage of the block, for statistics */
	LEASE_USAGE_SHIFT = 12,
	LEASE_USAGE_MASK = 7 << LEASE_USAGE_SHIFT,
	LEASE_FLAGS = 0x17fu | LEASE_USAGE_MASK, /* valid flags of LEASE_TAKE and LEASE_RESTORE */
};

/*
 * A request for pages. The worker fills it, sets state to REQUESTED, sets its bit in requests_pending and rings the
 * doorbell. Exactly one side ends the request: the agent by REQUESTED -> DONE, or the worker, at its deadline, by
 * REQUESTED -> CANCELLED. If the worker was first, it sets the pending bit and rings again, and the agent takes the
 * pages back. The slot then belongs to the agent until the agent stores IDLE; the worker uses other slots, so that it
 * cannot mistake the answer to an old request for that to a new one.
 *
 * The worker raises the serial number with each request. From this number, an agent determines whether the request of
 * an incomplete step of the previous agent was answered. The change to DONE transfers all pages of a grant at once.
 *
 * The free bits of granted pages stay clear, so that no other thread can take them. The first run of the `need` pages
 * starts at first_page. For each run, blocks[run].page_count is its length and blocks[run].next the first page of the
 * next run plus 1. If handles have several pages, each run but the first begins at the start of a handle, and each run
 * but the last ends at the end of one, so that the worker can map them side by side. The additional pages are
 * [extra_first, extra_first + extra_granted); the worker marks them as idle.
 */
struct lease_request {
	_Atomic uint32_t state; /* serial:28 | enum lease_request_state:4 */
	uint32_t kind;
	uint32_t need; /* pages, at least 1 */
	/* additional pages that are granted if possible; 0: none. LEASE_RESERVE: duration, milliseconds */
	uint32_t extra;
	uint32_t flags;
	uint32_t timeout_ms; /* maximum delay of the answer; 0: answer at once, unless pages are being freed */
	/* the answer */
	int32_t error;
	union {
		uint32_t first_page; /* input of LEASE_RESTORE_INTO and LEASE_SPILL */
		/* out of memory: the pinned object with the most pages; 0: no object is pinned */
		uint32_t object;
	};
	union {
		uint32_t extra_granted;
		uint32_t object_pins; /* pins of object_holder, the session with the most pins on it */
	};
	/* These four fields describe a lack of memory. */
	uint32_t free_pages;
	uint32_t pinned_pages;
	uint32_t holder;       /* the session that pins the most pages */
	uint32_t holder_pages; /* pages that it pins */
	union {
		uint32_t extra_first;
		uint32_t object_holder; /* see object_pins */
	};
	/*
	 * of a block, or number of a reservation; not for LEASE_TAKE. Not changed by the agent: the next agent may read
	 * it again
	 */
	uint64_t tag;
};
static_assert(sizeof(struct lease_request) == 64, "one cache line each");

/* The number of a reservation is the session of its maker and a number that the maker has not used before. */
enum { RESERVATION_SESSION_SHIFT = 48 };

static inline enum lease_request_state lease_state_of(uint32_t word)
{
	return (enum lease_request_state)(word & LEASE_STATE_MASK);
}

/* lease_state_to() - return the state word of the same request in another state. */
static inline uint32_t lease_state_to(uint32_t word, enum lease_request_state state)
{
	return (word & ~(uint32_t)LEASE_STATE_MASK) | (uint32_t)state;
}

/* Counters of one thread, written with relaxed stores. The last slot is shared, and is changed by atomic additions. */
struct thread_stats {
	_Alignas(128) _Atomic uint64_t allocations;
	_Atomic uint64_t frees;
	_Atomic uint64_t pins;
	_Atomic uint64_t unpins;
	_Atomic uint64_t stale_pins;
	_Atomic uint64_t contended_pins; /* pins that found a page being evicted or moved */
	_Atomic uint64_t refills;
	_Atomic uint64_t refusals;
	_Atomic uint64_t magazine_hits;
	_Atomic uint64_t scattered;
	/*
	 * Number of transits that the thread began and ended. During a transit, its pages are neither in free bits nor
	 * in entries. If the sums of both numbers over all threads are equal, no page of the worker is in transit.
	 */
	_Atomic uint64_t transits_begun, transits_ended;
	/* gpool_lora_acquire() found the adapter resident, or cold; loads in progress are not counted */
	_Atomic uint64_t adapter_hits, adapter_misses;
	/* blocks that gpool_kv_prefix_allocate() found, or did not find */
	_Atomic uint64_t prefix_hits, prefix_misses;
};
static_assert(sizeof(struct thread_stats) == 128, "shared layout");

struct session_stats {
	_Atomic uint64_t allocation_ns[BLOCK_USAGES][SESSION_HISTOGRAM]; /* one in 256 allocations */
	_Atomic uint64_t refill_ns[SESSION_HISTOGRAM];                   /* all refills */
	struct thread_stats threads[SESSION_STAT_SLOTS];
};

/*
 * The agent's answer to a request that changes state. If the request is repeated, the agent sends this answer again,
 * even after a restart.
 */
struct session_answer {
	_Atomic uint64_t sequence;
	_Atomic uint32_t length;
	uint32_t reserved;
	uint8_t bytes[SESSION_ANSWER_BYTES];
};
static_assert(sizeof(struct session_answer) == 512, "shared layout");

struct session_header {
	/* Written once by the agent. The worker checks it, and the next agent checks the first three fields. */
	uint64_t magic;
	uint32_t layout_version;
	uint32_t header_bytes;
	uint32_t page_count;
	uint32_t session;
	uint64_t incarnation;
	/* Written by the worker. */
	_Alignas(64) _Atomic uint64_t requests_pending; /* bit i: requests[i] must be read */
	_Atomic uint32_t pin_waiters;                   /* threads that wait for a page being evicted or moved */
	_Atomic uint64_t sequences;                     /* highest tag sequence assigned to a thread; grows in chunks */
	/* pages of ranges and gpool_malloc_async() that the worker has offered or released, as far as it knows */
	_Atomic uint32_t offered_pages;
	/* Written by the agent. */
	_Alignas(64) _Atomic uint32_t closed; /* 1: the agent ended this session; errno in close_error */
	_Atomic int32_t close_error;
	/* raised when a block is evicted without a save, after its pages are free, and at each start of an agent */
	_Atomic uint32_t evictions;
	/* the limit that caused the last refusal of a lease request, see lease_limit_make(); 0: none */
	_Atomic uint64_t refusal;
};

/* What struct session_header.refusal describes. The numbers are in pages or reservations. */
enum lease_limit {
	LEASE_LIMIT_NONE,
	LEASE_LIMIT_QUOTA,        /* the quota of the session, and the pages that it leases */
	LEASE_LIMIT_TENANT,       /* the limit of the tenant, and the pages that its sessions lease */
	LEASE_LIMIT_KEPT,         /* free pages that are kept for the minima of other tenants */
	LEASE_LIMIT_RESERVATIONS, /* the limit of the pool, and its number of reservations */
	/* the share of the tenants or of the user in percent, and the number of its reservations */
	LEASE_LIMIT_TENANT_RESERVATIONS,
	LEASE_LIMIT_USER_RESERVATIONS,
};

/* The numbers of a refusal are stored in one word, so that a worker does not mix those of two refusals. */
static inline uint64_t lease_limit_make(enum lease_limit limit, uint32_t most, uint32_t used)
{
	return (uint64_t)limit << 60 | (uint64_t)(most & (UINT32_MAX >> 2)) << 30 | (used & (UINT32_MAX >> 2));
}

static inline enum lease_limit lease_limit_of(uint64_t word, uint32_t *most, uint32_t *used)
{
	*most = (uint32_t)(word >> 30) & (UINT32_MAX >> 2);
	*used = (uint32_t)word & (UINT32_MAX >> 2);
	return (enum lease_limit)(word >> 60);
}

struct session_layout {
	size_t free_bits, pins, touch, blocks, timeline, requests, stats, answers, regions, joins, flight, bytes;
};

struct session_segment {
	struct session_header *header;
	_Atomic uint64_t *free_bits;    /* [(page_count + 63) / 64] */
	_Atomic uint32_t *pins;         /* [page_count] */
	_Atomic uint32_t *touch;        /* [page_count], clock_ms of the last use */
	struct block_entry *blocks;     /* [page_count] */
	_Atomic uint64_t *timeline;     /* [2 * SESSION_TIMELINES]; the second half: client/core/stream.h */
	struct lease_request *requests; /* [SESSION_REQUESTS] */
	struct session_stats *stats;
	struct session_answer *answers; /* [SESSION_ANSWERS] */
	struct region_table *regions;   /* NULL in a segment of zero pages */
	struct fence_join *joins;       /* [SESSION_JOINS]; NULL as well */
	struct flight_ring flight;      /* count is 0 in a segment of zero pages */
	uint32_t page_count;
	size_t bytes;
};

/* system_pages() - round up to whole pages of the system, because drivers register whole pages. */
static inline size_t system_pages(size_t bytes)
{
	size_t page = (size_t)getpagesize();

	return (bytes + page - 1) / page * page;
}

struct session_layout session_layout_of(uint32_t page_count);

/*
 * session_segment_create() - create and map a sealed memfd; the caller owns *fd. The memfd's name contains pool_index
 * and session, for tools.
 */
int session_segment_create(uint32_t page_count, uint32_t pool_index, uint32_t session, uint64_t incarnation,
	struct session_segment *segment, int *fd);

/*
 * session_segment_open() - map a received memfd: writable for the worker and the next agent, read-only for tools.
 *
 * Return: 0, -EPROTO, -EPERM (not sealed), -EBADMSG (wrong size or page count), -ENOMEM.
 */
int session_segment_open(int fd, uint32_t page_count, bool writable, struct session_segment *segment);
/*
 * session_segment_over() - compute the parts in the caller's mapping. Tests use it to run workers as threads on one
 * mapping.
 */
void session_segment_over(void *base, uint32_t page_count, struct session_segment *segment);
void session_segment_close(struct session_segment *segment);

#endif
