/*
 * session_segment.h - memory shared by one worker and the agent: leases, pins, blocks, requests. One memfd per session.
 *
 * Writers: that worker (any of its threads) and the agent. For the agent every field is untrusted input: it reads a
 * field once into a local variable and checks it against its own tables, and an invalid one affects this session only.
 * Sizes and offsets are computed from the page count on both sides and never read from the segment. The memfd is sealed
 * against shrinking and growing, so that no process gets SIGBUS.
 *
 *   header | free_bits u64[] | pins u32[] | touch u32[] | blocks struct block_entry[] | timeline u64[] | requests |
 *   stats | answers | struct region_table | struct fence_join[] | ring of the flight recorder (flight.h)
 *
 * A session that only reads (poolctl) has a segment of zero pages, no region table, no joint fences and no ring.
 */
#ifndef GPOOL_SHM_SESSION_SEGMENT_H
#define GPOOL_SHM_SESSION_SEGMENT_H

#include "shm/pool_segment.h"
#include "shm/region_table.h"

#define SESSION_MAGIC UINT64_C(0x73736573703167) /* "g1psess" */

enum {
	SESSION_TIMELINES = 256, /* stream slots; slot 0 is never used, so that fence 0 is "no fence" */
	SESSION_REQUESTS = 64,   /* lease requests in flight; one bit each in requests_pending */
	SESSION_STAT_SLOTS = 64, /* threads with counters of their own; all further threads share the last */
	SESSION_ANSWERS = 8,
	SESSION_ANSWER_BYTES = 496,
	/* joint fences; far more than pairs of streams that have unfinished work at one time */
	SESSION_JOINS = 4096,
	JOIN_MEMBERS = 7, /* the number that fits into a cache line */
};

/*
 * Where a leased page is: exactly one of
 *   idle    its free bit is set
 *   block   in a block: the entry at the block's first page has a tag
 *   cached  in a thread's magazine: the entry's tag is BLOCK_TAG_CACHED; the agent may evict it like an unpinned block
 *   transit a thread is between two of these; lasts nanoseconds, or until the process dies
 *
 * tag: sequence:48 (never repeated within a session) | attributes:16. 0: no block starts here.
 */
struct block_entry {
	_Atomic uint64_t tag;
	_Atomic uint32_t page_count; /* adjacent pages of this extent */
	_Atomic uint32_t next;       /* scattered blocks: first page of the next extent plus 1; 0: last */
	_Atomic uint64_t owner_id;   /* number given by the worker, such as that of a request or an adapter */
	_Atomic uint64_t fence;      /* GPU work that must finish before the page may be taken: slot:16 | value:48 */
};
static_assert(sizeof(struct block_entry) == 32, "shared layout");

enum {
	BLOCK_TYPE_MASK = 0xf,    /* usage */
	BLOCK_PRIORITY_SHIFT = 4, /* two bits, 0 lowest */
	BLOCK_PRIORITY_MASK = 0x30,
	BLOCK_EXTENT = 0x40,   /* a further extent of a scattered block; evicted with its head only */
	BLOCK_PREPARED = 0x80, /* two-phase: allocated, not yet committed */
	/* freed: no new pins. Without pins and after its fence it has no content, and the agent may take it */
	BLOCK_DYING = 0x100,
	BLOCK_SCATTERED = 0x200, /* the head of a scattered block */
	BLOCK_SPILL = 0x400,     /* the content is saved in host memory or a file when the block is evicted */
	BLOCK_RANGE = 0x800,     /* part of a range: pinned while the range is awake, and never reported as a leak */
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
 * Several fences combined into one: the GPU work of several streams that used a page. A fence of slot SESSION_TIMELINES
 * names an entry by serial:32 | index:16 (timeline.h). Written by the worker, under a lock of its own; read by the
 * agent without one. The serial number is odd while the members are written. An entry is reused only when all its
 * members are signaled, so a fence with another serial number than the entry's is signaled.
 */
struct fence_join {
	_Alignas(64) _Atomic uint32_t serial;
	uint32_t reserved;
	_Atomic uint64_t members[JOIN_MEMBERS]; /* fences; 0: none. A member may be a joint fence itself */
};
static_assert(sizeof(struct fence_join) == 64, "one cache line each");

/* The low bits of a request's state word; above them its serial number. */
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
	 * As LEASE_TAKE, for the `need` pages of the requester's spilled block `tag`, and answered when they have its
	 * content. Until then they belong to the agent, so the request may be cancelled at any time: an agent whose
	 * mover writes to them by then takes them back when it has finished. Refused before pages are lent for it:
	 * -ESTALE (not spilled), -EBUSY (being moved, also by a cancelled request), -EINVAL (it has another number of
	 * pages), -EIO (no mover serves the pool; it is kept). Afterwards also -EIO (it cannot be read; it is kept),
	 * -EBADMSG (its checksum differs; it is lost).
	 */
	LEASE_RESTORE,
	/*
	 * Requests about the spilled block `tag` without a time-out, which are not cancelled.
	 *   QUERY         whether LEASE_RESTORE would be refused: 0, -ESTALE, -EBUSY, -EINVAL, -EIO
	 *   RESTORE_INTO  as LEASE_RESTORE, into the block of `need` pages at first_page, which is pinned and prepared;
	 *                 the content is kept after any failure
	 *   DISCARD       delete its content. -ESTALE: not spilled. -EBUSY: being moved
	 *   SPILL         move the block at first_page out of the pool. -EBUSY: pinned, or behind a fence. -ENOSPC: no
	 *                 room
	 */
	LEASE_QUERY,
	LEASE_RESTORE_INTO,
	LEASE_DISCARD,
	LEASE_SPILL,
};
enum {
	LEASE_FIRST_FIT = 1u << 0,
	LEASE_CRITICAL = 1u << 1,   /* may use reserved pages */
	LEASE_CONTIGUOUS = 1u << 2, /* in one run or not at all */
	LEASE_NO_EVICT = 1u << 3,   /* refuse rather than evict a block */
	/* scattered pages are acceptable: idle pages are not gathered to form one run */
	LEASE_SCATTERED = 1u << 5,
	/* only free pages: no pages are taken from a session, not even idle ones */
	LEASE_FREE = 1u << 6,
	/*
	 * evict no content of the requesting session, nor content after it in the eviction order: the session evicts
	 * its own content itself
	 */
	LEASE_OWN_LAST = 1u << 8,
	LEASE_FLAGS = 0x16fu, /* valid flags of LEASE_TAKE and LEASE_RESTORE */
};

/*
 * A request for pages. The worker fills it, sets state to REQUESTED and its bit in requests_pending, and rings the
 * doorbell. Exactly one side ends it: the agent by REQUESTED -> DONE, the worker (at its deadline) by REQUESTED ->
 * CANCELLED. If the worker was first, the agent takes the pages back. A cancelled slot belongs to the agent until it
 * stores IDLE (so that the answer to an old request never meets a new one): the worker sets its pending bit, rings once
 * more, and uses another slot meanwhile.
 *
 * The worker raises the serial number with each request. By it, an agent that finds an incomplete step of its
 * predecessor determines whether that request was answered: the change to DONE hands over all pages of a grant at once.
 *
 * The free bits of the granted pages are not set, so that no other thread can take them. Of the `need` pages,
 * first_page is the first run, blocks[run].page_count its length, blocks[run].next the next run's first page plus 1.
 * Further pages are [extra_first, + extra_granted), which the worker marks as idle.
 */
struct lease_request {
	_Atomic uint32_t state; /* serial:28 | enum lease_request_state:4 */
	uint32_t kind;
	uint32_t need;  /* pages, at least 1 */
	uint32_t extra; /* additional pages wanted, as a hint; 0: none */
	uint32_t flags;
	uint32_t timeout_ms; /* how long the agent may delay the answer; 0: not at all */
	/* the answer */
	int32_t error;
	union {
		uint32_t first_page; /* LEASE_RESTORE_INTO, LEASE_SPILL: part of the request */
		/* if out of memory: the pinned object with most pages; 0: none is pinned */
		uint32_t object;
	};
	union {
		uint32_t extra_granted;
		uint32_t object_pins; /* by the session that pins it most */
	};
	uint32_t free_pages; /* if out of memory: the free pages, and the session that pins the most */
	uint32_t pinned_pages;
	uint32_t holder;       /* session */
	uint32_t holder_pages; /* pinned by it */
	union {
		uint32_t extra_first;
		uint32_t object_holder; /* that session */
	};
	uint64_t tag; /* of a block; not LEASE_TAKE. Never changed by the agent, whose successor may read it again */
};
static_assert(sizeof(struct lease_request) == 64, "one cache line each");

static inline enum lease_request_state lease_state_of(uint32_t word)
{
	return (enum lease_request_state)(word & LEASE_STATE_MASK);
}

/* lease_state_to() - return the same request in another state. */
static inline uint32_t lease_state_to(uint32_t word, enum lease_request_state state)
{
	return (word & ~(uint32_t)LEASE_STATE_MASK) | (uint32_t)state;
}

/* Counters of one thread: plain loads and relaxed stores by that thread alone. */
struct thread_stats {
	_Alignas(128) _Atomic uint64_t allocations;
	_Atomic uint64_t frees;
	_Atomic uint64_t pins;
	_Atomic uint64_t unpins;
	_Atomic uint64_t stale_pins;
	_Atomic uint64_t contended_pins; /* a pin found a page in motion */
	_Atomic uint64_t refills;
	_Atomic uint64_t refusals;
	_Atomic uint64_t magazine_hits;
	_Atomic uint64_t scattered;
	/*
	 * Number of times that the thread began and ended a transit of pages, which are then in neither bits nor
	 * entries. While both are equal, it has none: so an agent that does not know what its predecessor took can find
	 * the worker's pages.
	 */
	_Atomic uint64_t transits_begun, transits_ended;
	/* gpool_lora_acquire() found it resident, or cold; a load in progress counts as neither */
	_Atomic uint64_t adapter_hits, adapter_misses;
	/* blocks that gpool_kv_prefix_allocate() found, or did not find */
	_Atomic uint64_t prefix_hits, prefix_misses;
};
static_assert(sizeof(struct thread_stats) == 128, "shared layout");

struct session_stats {
	_Atomic uint64_t allocation_ns[SESSION_HISTOGRAM]; /* one in 256, see thread caches */
	_Atomic uint64_t refill_ns[SESSION_HISTOGRAM];     /* every one */
	struct thread_stats threads[SESSION_STAT_SLOTS];
};

/*
 * The agent's last answers to requests that change state, so that a repetition is recognized, also after an agent
 * restart.
 */
struct session_answer {
	_Atomic uint64_t sequence;
	_Atomic uint32_t length;
	uint32_t reserved;
	uint8_t bytes[SESSION_ANSWER_BYTES];
};
static_assert(sizeof(struct session_answer) == 512, "shared layout");

struct session_header {
	/* Written once by the agent, which does not read it; a check for the worker. */
	uint64_t magic;
	uint32_t layout_version;
	uint32_t header_bytes;
	uint32_t page_count;
	uint32_t session;
	uint64_t incarnation;
	/* Worker -> agent */
	_Alignas(64) _Atomic uint64_t requests_pending; /* bit i: requests[i] must be read */
	_Atomic uint32_t pin_waiters;                   /* threads that wait for a page in motion */
	_Atomic uint64_t sequences;                     /* highest tag sequence assigned to a thread, in chunks */
	/* pages of ranges and gpool_malloc_async() that the worker has offered or released, as far as it knows */
	_Atomic uint32_t offered_pages;
	/* Agent -> worker */
	_Alignas(64) _Atomic uint32_t closed; /* 1: the agent ended this session; errno in close_error */
	_Atomic int32_t close_error;
	/* evicted blocks with content; incremented when their pages are free, and at the start of an agent */
	_Atomic uint32_t evictions;
};

struct session_layout {
	size_t free_bits, pins, touch, blocks, timeline, requests, stats, answers, regions, joins, flight, bytes;
};

/* Addresses of the parts in one process's mapping. */
struct session_segment {
	struct session_header *header;
	_Atomic uint64_t *free_bits;    /* [(page_count + 63) / 64] */
	_Atomic uint32_t *pins;         /* [page_count] */
	_Atomic uint32_t *touch;        /* [page_count], clock_ms of last use */
	struct block_entry *blocks;     /* [page_count] */
	_Atomic uint64_t *timeline;     /* [SESSION_TIMELINES] */
	struct lease_request *requests; /* [SESSION_REQUESTS] */
	struct session_stats *stats;
	struct session_answer *answers; /* [SESSION_ANSWERS] */
	struct region_table *regions;   /* NULL in a segment of zero pages */
	struct fence_join *joins;       /* [SESSION_JOINS]; likewise */
	struct flight_ring flight;      /* likewise: count 0 */
	uint32_t page_count;
	size_t bytes;
};

struct session_layout session_layout_of(uint32_t page_count);

/* session_segment_create() - create and map a sealed memfd; the caller owns *fd. Tools use pool_index and session. */
int session_segment_create(uint32_t page_count, uint32_t pool_index, uint32_t session, uint64_t incarnation,
	struct session_segment *segment, int *fd);

/*
 * session_segment_open() - map a received memfd; `writable` for the worker, read-only for tools.
 *
 * Return: 0, -EPROTO, -EPERM (not sealed), -EBADMSG (wrong size or page count), -ENOMEM.
 */
int session_segment_open(int fd, uint32_t page_count, bool writable, struct session_segment *segment);
/* session_segment_over() - return the parts of a mapping of the caller; tests run workers as threads on one mapping. */
void session_segment_over(void *base, uint32_t page_count, struct session_segment *segment);
void session_segment_close(struct session_segment *segment);

#endif
