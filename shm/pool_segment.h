/*
 * pool_segment.h - the shared description of one pool: a memfd that only the agent can write.
 *
 * The keeper creates the memfd, makes the only writable mapping and then seals the memfd (F_SEAL_FUTURE_WRITE), so that
 * no process can map it for writing. Each agent inherits the mapping by fork. All other processes map it read-only.
 *
 *   header | page table: u64[page_count] | session directory: struct session_record[4096] |
 *   struct object_record[object_count] | names of objects: u32[object_count] (object_names.h) |
 *   struct role_record[64] | rings "flight" and "events" (flight.h)
 *
 * Fields have fixed widths, and offsets replace pointers. To change a struct in this file, raise POOL_LAYOUT_VERSION
 * and update agent/base/layout.def.
 */
#ifndef GPOOL_SHM_POOL_SEGMENT_H
#define GPOOL_SHM_POOL_SEGMENT_H

#include "shm/flight.h"
#include "shm/page_word.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POOL_MAGIC UINT64_C(0x006c6f6f70703167) /* "g1ppool" */
enum {
	POOL_LAYOUT_VERSION = 21,
	POOL_SESSIONS = PAGE_SESSION_MAX + 1, /* session 0 is unused */
	/* 8 TB in pages of 2 MB, which is more than any GPU has, and low enough to detect invalid sizes */
	POOL_PAGES_MAX = 1 << 22,
	POOL_NAME_BYTES = 64,
	POOL_PEERS_BYTES = 640, /* 15 UUIDs, separated by spaces */
	/*
	 * limits of the number of object records. Record 0 is unused, because record numbers are the owners of SHARED
	 * pages
	 */
	POOL_OBJECTS_LEAST = 1024,
	POOL_OBJECTS_MOST = PAGE_OWNER_MAX + 1,
	POOL_OBJECT_NAME_BYTES = 128,
	POOL_ROLES = 64,
	POOL_RESERVATIONS = 256, /* reservation 0 is unused; one byte in the record of each page */
	SESSION_HISTOGRAM = 32,  /* bucket i: [2^i, 2^(i+1)) nanoseconds */
	BLOCK_USAGES = 5,        /* usages of content, enum gpool_usage */
};

enum pool_pressure {
	POOL_PRESSURE_LOW,
	POOL_PRESSURE_MEDIUM,
	POOL_PRESSURE_HIGH,
	POOL_PRESSURE_CRITICAL,
	POOL_PRESSURES
};

/* Indexes of pool_header.counters, which count since the creation of the pool. New counters are added at the end. */
enum pool_counter {
	POOL_COUNT_GRANTS,    /* pages leased */
	POOL_COUNT_REFILLS,   /* requests for pages served */
	POOL_COUNT_RECLAIMS,  /* idle pages taken back */
	POOL_COUNT_EVICTIONS, /* blocks evicted */
	POOL_COUNT_EVICTED_PAGES,
	POOL_COUNT_REFUSALS, /* requests refused with out-of-memory or quota */
	POOL_COUNT_DEATHS,   /* sessions that ended without a detach */
	POOL_COUNT_LEAKED_PINS,
	POOL_COUNT_ATTACHES,
	POOL_COUNT_DAMAGE, /* invalid fields found in session segments */
	POOL_COUNT_AGENT_STARTS,
	POOL_COUNT_SPILLED_PAGES, /* pages whose content was saved to host memory or to the file */
	POOL_COUNT_RESTORED_PAGES,
	/*
	 * pages that could not be saved and stayed in the pool, or could not be restored, so that their content is lost
	 */
	POOL_COUNT_SPILL_ERRORS,
	POOL_COUNT_SCRUBBED_PAGES, /* pages cleared between two trust domains */
	POOL_COUNT_RETIREMENTS,    /* pages retired because a former holder may still have them mapped */
	POOL_COUNT_PUBLICATIONS,
	POOL_COUNT_TAKEOVERS, /* roles granted to a standby after a death */
	POOL_COUNT_MOVER_STARTS,
	POOL_COUNT_ADAPTER_EVICTIONS, /* objects evicted that are adapters, and copies of adapters in host memory */
	POOL_COUNT_COPY_EVICTIONS,
	POOL_COUNTERS = 32
};

/*
 * Counters of threads whose sums over all workers are reported. Each is a member of struct thread_stats, struct
 * session_totals and totals_reply.
 */
#define SESSION_COUNTERS(COUNTER) \
	COUNTER(allocations) \
	COUNTER(frees) \
	COUNTER(pins) \
	COUNTER(unpins) \
	COUNTER(stale_pins) \
	COUNTER(contended_pins) \
	COUNTER(refills) \
	COUNTER(refusals) \
	COUNTER(magazine_hits) \
	COUNTER(scattered) COUNTER(adapter_hits) COUNTER(adapter_misses) COUNTER(prefix_hits) COUNTER(prefix_misses)

struct session_totals {
#define COUNTER(name) _Atomic uint64_t name;
	SESSION_COUNTERS(COUNTER)
#undef COUNTER
	_Atomic uint64_t allocation_ns[SESSION_HISTOGRAM];
	_Atomic uint64_t refill_ns[SESSION_HISTOGRAM];
};
static_assert(sizeof(struct session_totals) == 624, "shared layout");

enum session_record_state { SESSION_RECORD_NONE, SESSION_RECORD_LIVE, SESSION_RECORD_CLOSED };

/* An attached session. Read by `poolctl --offline` and by the next incarnation of the agent. */
struct session_record {
	_Atomic uint32_t state; /* enum session_record_state; stored last, after all other fields */
	uint32_t pid;
	uint32_t uid;
	uint32_t kind;        /* enum session_kind */
	uint64_t attached_ms; /* wall clock time */
	char name[POOL_NAME_BYTES];
	char tenant[POOL_NAME_BYTES];
	uint32_t domain; /* trust domain, as in ledger_session; 0: the pool does not separate trust domains */
	uint8_t reserved[36];
};
static_assert(sizeof(struct session_record) == 192, "shared layout");

enum object_state {
	OBJECT_NONE,
	OBJECT_PUBLISHING, /* its pages are becoming SHARED; not visible yet */
	OBJECT_CURRENT,    /* the current version of its name */
	OBJECT_OLD,        /* replaced by a newer version; ends with its last reader */
	OBJECT_DELETED,    /* deleted by name; ends with its last reader */
	/* like CURRENT, while the agent is checking whether a session pins the object */
	OBJECT_LEAVING,
	OBJECT_ENDING, /* its pages are being freed */
	OBJECT_STATES
};

/* The class determines whether the pages of an object may be written or evicted. */
enum object_class {
	OBJECT_IMMUTABLE, /* never written after publication */
	OBJECT_MUTABLE,   /* one writer may write it after publication */
	/*
	 * like immutable, but may be evicted while no session has it open; with OBJECT_BY_PINS, while no session pins
	 * it
	 */
	OBJECT_EPHEMERAL,
	OBJECT_PINNABLE, /* like immutable, but may be evicted while no session pins it, even if open (shm/pins.h) */
	OBJECT_CLASSES
};

/* One version of a named object. Its pages are SHARED, and their owner is the number of this record. */
struct object_record {
	_Atomic uint32_t state; /* enum object_state; stored last, after all other fields */
	uint32_t class;         /* enum object_class */
	uint64_t version;       /* from 1; never reused */
	uint64_t layout_hash;
	uint32_t pages;
	uint32_t allocations;
	uint64_t manifest_bytes;
	uint64_t published_ms; /* wall clock time */
	uint32_t uid;          /* user id of the publisher */
	uint32_t pid;
	_Atomic uint32_t writer;  /* session that may write (OBJECT_MUTABLE); 0: none, so a session may adopt it */
	_Atomic uint32_t readers; /* number of sessions that have it open */
	char name[POOL_OBJECT_NAME_BYTES];
	/* value of "name" in the metadata, for display; empty: not set, or OBJECT_PRIVATE */
	char label[POOL_NAME_BYTES];
	char tenant[POOL_NAME_BYTES];
	char role[POOL_NAME_BYTES]; /* the holder of this role may adopt the object; empty: no session may */
	/* version of the ephemeral object that this one depends on and that is evicted after it; 0: none */
	uint64_t follows_version;
	uint32_t follows;      /* record of that object, which may contain another version */
	_Atomic uint32_t next; /* next record in the hash chain, see object_names.h */
	uint32_t flags;        /* OBJECT_PRIVATE, OBJECT_BY_PINS, OBJECT_DOMAIN_WRITE */
	uint32_t cost_us;      /* reload cost stated by the publisher; 0: not stated */
	uint32_t first_page;   /* the page whose pins are the object's pins */
	uint32_t domain;       /* trust domain of the publisher and of the name, as in ledger_session */
	/* OBJECT_PINNABLE: uses at the agent's last check of its pins, some seconds ago */
	_Atomic uint64_t uses;
	_Atomic uint64_t used_ms; /* time of the last use, wall clock */
	_Atomic int64_t heat;     /* struct worth.heat x 2^20, for the next agent; 0: not in the eviction order yet */
};
static_assert(sizeof(struct object_record) == 440, "shared layout");

enum {
	/* only sessions of the publisher's tenant may open it */
	OBJECT_PRIVATE = 1,
	/* all tenants of its trust domain may replace and delete it; excludes OBJECT_PRIVATE */
	OBJECT_DOMAIN_WRITE = 4,
	/* in publish requests only: the publisher is libgpool itself (agent/object/objects_names.c) */
	OBJECT_OF_LIBRARY = 8,
	/* with OBJECT_EPHEMERAL: only pins prevent the eviction of the object, as with OBJECT_PINNABLE */
	OBJECT_BY_PINS = 2,
};

/*
 * object_kept_by_pins() - return true if only pins prevent the eviction of the object; otherwise sessions that have it
 * open prevent it.
 */
static inline bool object_kept_by_pins(const struct object_record *record)
{
	return record->class == OBJECT_PINNABLE ||
		(record->class == OBJECT_EPHEMERAL && record->flags & OBJECT_BY_PINS);
}

enum role_state { ROLE_NONE, ROLE_NAMED };

/*
 * A leadership role, which one session holds at a time. Two trust domains may use the same name for different roles.
 * Each grant raises `token`, so that receivers can reject requests of earlier holders. The token never decreases, even
 * if the record is reused for another name. A reader that sees the same token before and after reading `holder` and
 * `name` has read a consistent pair.
 *   grant: token + 1, then holder          release: holder = 0
 */
struct role_record {
	_Atomic uint32_t holder; /* session; 0: none. Standbys wait on this futex */
	_Atomic uint32_t waiters;
	_Atomic uint64_t token;
	char name[POOL_NAME_BYTES];
	char tenant[POOL_NAME_BYTES]; /* tenant whose sessions may hold the role: the tenant of the first candidate */
	_Atomic uint32_t state;       /* enum role_state; stored last, cleared first */
	uint32_t domain;              /* trust domain of the name, as in ledger_session */
	_Atomic uint64_t changed_ms;  /* time of the last grant or release, wall clock */
	_Atomic uint64_t takeovers;   /* grants to a standby because the holder had died */
	uint32_t uid;                 /* user id of the first candidate */
	uint32_t reserved;
	uint64_t more[2];
};
static_assert(sizeof(struct role_record) == 192, "shared layout");

struct pool_header {
	/* Written once by the keeper. */
	uint64_t magic;
	uint32_t layout_version;
	uint32_t header_bytes;
	uint32_t session_record_bytes;
	uint32_t session_header_bytes;
	uint32_t block_entry_bytes;
	uint32_t lease_request_bytes;
	uint32_t object_record_bytes;
	uint32_t role_record_bytes;
	uint32_t region_table_bytes;
	uint32_t flight_record_bytes;
	/* number of records of the agent's ring; 0: the flight recorder is off, including the rings of the sessions */
	uint32_t flight_records;
	uint32_t object_count; /* number of records; record 0 is unused */
	uint64_t segment_bytes;
	uint64_t page_table_offset;
	uint64_t sessions_offset;
	uint64_t objects_offset;
	uint64_t names_offset;
	uint64_t roles_offset;
	uint64_t flight_offset;
	uint64_t events_offset;
	uint64_t page_bytes;
	uint32_t page_count;
	uint32_t pages_per_handle;
	uint32_t reserved_first; /* pages [reserved_first, page_count) are reserved for critical requests */
	uint32_t index;          /* index of the pool in the agent */
	char name[POOL_NAME_BYTES];
	char backend[16];
	char device[64];
	char peers[POOL_PEERS_BYTES]; /* UUIDs of the devices that may access the memory too, separated by spaces */

	/*
	 * Fields that workers read on every pin or free, and that the agent rarely writes. They have their own cache
	 * line.
	 */
	_Alignas(64) _Atomic uint32_t clock_ms; /* at most 100 ms late while a session is attached; wraps around */
	/* number of waiting requests for pages; while it is not 0, a worker that frees pages rings the doorbell */
	_Atomic uint32_t waiters;
	_Atomic uint32_t pressure; /* enum pool_pressure */
	_Atomic uint32_t pin_timeout_ms;
	_Atomic uint64_t incarnation; /* raised at each start of an agent */
	_Atomic uint32_t spill_slots; /* pages that can be spilled at the same time; 0: none */
	/*
	 * Raised when another trust domain needs pages that sessions may have mapped. These pages are QUARANTINED or
	 * RETIRED and have no owner. A session that has such a page mapped unmaps it and sends handles_released. 0: the
	 * pool does not separate trust domains.
	 */
	_Atomic uint32_t release_serial;
	/* one in this number of blocks is recorded: a power of two, at least FLIGHT_SAMPLING_LEAST; 0: none */
	_Atomic uint32_t flight_sampling;
	/* 1: the pool is being drained; stored here because it must survive the agent */
	_Atomic uint32_t draining;
	_Atomic uint32_t first_fit;          /* 1: lease.allocation_strategy is first_fit */
	_Atomic uint32_t thread_cache_pages; /* lease.thread_cache_size */
	_Atomic uint32_t alignment;          /* of allocations smaller than a page; a power of two, at least 256 */
	_Atomic uint32_t promotion_uses;     /* adapters.promotion_threshold */
	_Atomic uint32_t compression_ms;     /* adapters.compression_threshold */

	/* Written by the agent at every change, read by tools. */
	_Alignas(64) _Atomic uint32_t state_pages[PAGE_STATES];
	_Atomic uint64_t counters[POOL_COUNTERS];
	_Atomic uint32_t sessions;
	/* this record and all further ones are NONE, so a scan may stop here */
	_Atomic uint32_t object_end;
	struct session_totals ended; /* sums over all ended sessions */
};

struct pool_segment {
	struct pool_header *header;
	_Atomic uint64_t *pages;         /* [page_count] */
	struct session_record *sessions; /* [POOL_SESSIONS] */
	struct object_record *objects;   /* [object_count] */
	_Atomic uint32_t *names;         /* [object_count] */
	struct role_record *roles;       /* [POOL_ROLES] */
	struct flight_ring flight;       /* records of the agent */
	struct flight_ring events;       /* events with their texts */
	size_t bytes;
	bool writable;
};

struct pool_geometry {
	const char *name;
	const char *backend;
	const char *device;
	const char *peers; /* NULL: none */
	uint32_t index;
	uint64_t page_bytes;
	uint32_t page_count;
	uint32_t pages_per_handle;
	uint32_t reserved_pages;
	/* maximum number of object versions; 0: the number of pages, at least 1,023 and at most 65,535 */
	uint32_t objects;
	uint32_t flight_records; /* number of records of the flight recorder, rounded up to a power of two; 0: off */
};

/* pool_object_count() - return the number of records for `objects`, as in struct pool_geometry. */
uint32_t pool_object_count(uint32_t objects, uint32_t page_count);

/*
 * pool_object_end() - return the end of the records to scan, which begin with record 1. The result never exceeds the
 * number of records, even if the segment is untrusted.
 */
static inline uint32_t pool_object_end(const struct pool_segment *segment)
{
	uint32_t end = atomic_load_explicit(&segment->header->object_end, memory_order_acquire);

	return end < segment->header->object_count ? end : segment->header->object_count;
}

/*
 * pool_segment_create() - create a sealed memfd and its only writable mapping. All pages are FREE, except the last
 * reserved_pages, which are RESERVED. The caller owns *fd.
 * Return: 0, -EINVAL, or the error of memfd_create, ftruncate, mmap or fcntl.
 */
int pool_segment_create(const struct pool_geometry *geometry, struct pool_segment *segment, int *fd);

/*
 * pool_segment_open() - check the seals, sizes, magic and version of a received pool segment, and map it read-only.
 * Return: 0, -EPERM (not sealed), -EPROTO (another layout), -EBADMSG, or the error of fstat or mmap.
 */
int pool_segment_open(int fd, struct pool_segment *segment);
void pool_segment_close(struct pool_segment *segment);

const char *pool_pressure_name(enum pool_pressure pressure);

#endif
