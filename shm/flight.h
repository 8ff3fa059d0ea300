/*
 * flight.h - the flight recorder: rings of fixed-size records of past events, in shared memory, for later analysis.
 *
 * The flight recorder has three kinds of rings:
 *   each worker's session segment    what the worker did and waited for; written by all its threads
 *   the pool segment, "flight"       what the agent did with pages, and the last records of sessions that have ended
 *   the pool segment, "events"       the events that the agent published, with their texts; covers a long time, because
 *                                    events are rare
 * The oldest record is overwritten. Recording never waits, and no decision depends on the contents of a ring. The
 * agent's rings exist until the keeper ends, or longer with keep_over_restart.
 *
 *   head | struct flight_record[count] | char[count][FLIGHT_TEXT_BYTES], in a ring with texts
 *
 * A writer takes the next number, claims the record of that number with a compare-and-swap on its serial, fills it and
 * marks it as complete. If another thread holds a claim on the record, or the record has a later number, the new entry
 * is dropped. Therefore two threads never write the same record, and a reader that sees the same complete serial before
 * and after reading has read a consistent record. A record whose writer died stays unusable until the next agent clears
 * the rings that it owns (flight_recover()).
 *
 * A reader must treat every field as untrusted. flight_read() checks the number, kind and times of a record; pages,
 * tags and values must only be displayed.
 */
#ifndef GPOOL_SHM_FLIGHT_H
#define GPOOL_SHM_FLIGHT_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	FLIGHT_TEXT_BYTES = 192, /* size of an event's text, as in proto/messages.def */
	/* 64 KiB per worker, allocated as records are written; enough for some seconds of slow paths */
	FLIGHT_SESSION_RECORDS = 1024,
	FLIGHT_KEPT_RECORDS = 256, /* records of an ended session that are copied into the pool's ring */
	FLIGHT_EVENTS = 1024,      /* 256 KiB per pool */
	FLIGHT_RECORDS_MAX = 1 << 20,
	/* minimum of pool_header.flight_sampling, because only one allocation in 256 is timed */
	FLIGHT_SAMPLING_LEAST = 256,
};

/* Values below FLIGHT_KINDS_FIRST are values of enum event_kind in agent/pages/event.h. A value is never reused. */
enum flight_kind {
	FLIGHT_NONE,
	FLIGHT_KINDS_FIRST = 64,
	/* Recorded by the agent. */
	/* pages were leased, beginning with `page`; the duration starts when the agent reads the request */
	FLIGHT_GRANT = FLIGHT_KINDS_FIRST,
	FLIGHT_RETURN,  /* idle pages were taken back */
	FLIGHT_REFUSAL, /* a request was refused; pages: requested pages; value: errno */
	/* a block was evicted; value: its owner id */
	FLIGHT_EVICT,
	/* a block was spilled; the duration starts with its first job; value: errno, 0 if saved */
	FLIGHT_SPILL,
	FLIGHT_LOAD,        /* a block was restored; duration and value as for FLIGHT_SPILL */
	FLIGHT_OBJECT_OPEN, /* value: version; page: number of its record */
	/* Recorded by a worker. */
	FLIGHT_ALLOCATE,  /* one in flight_sampling blocks; value: its owner id */
	FLIGHT_FREE,      /* a block recorded by FLIGHT_ALLOCATE was freed */
	FLIGHT_REFILL,    /* pages were requested from the agent; value: errno */
	FLIGHT_PIN_WAIT,  /* a pin waited for pages that were being moved; value: errno */
	FLIGHT_PIN_STALE, /* a pin failed because its block was evicted */
	FLIGHT_RESTORE,   /* a pin waited for a spilled block; value: errno */
	FLIGHT_KINDS
};
#define FLIGHT_WORKERS_FIRST FLIGHT_ALLOCATE

/* One entry, as passed by writers and returned to readers. Times are wall clock times in nanoseconds since 1970. */
struct flight_entry {
	uint64_t time_ns;     /* end of the operation */
	uint64_t duration_ns; /* 0: instantaneous */
	uint32_t kind;        /* enum flight_kind, or enum event_kind */
	uint16_t session;     /* the session concerned; 0: none */
	bool self_reported;   /* recorded by the session itself and copied by the agent */
	bool everywhere;      /* an event that concerns all pools */
	uint32_t page, pages;
	uint64_t tag;   /* of the block; 0: none */
	uint64_t value; /* depends on the kind */
};

struct flight_record {
	_Atomic uint64_t serial; /* 0: never used; number + 1, with FLIGHT_CLAIMED while it is written */
	_Atomic uint64_t time_ns;
	_Atomic uint64_t duration_ns;
	_Atomic uint64_t what;  /* kind:32 | session:16 | flags:16 */
	_Atomic uint64_t pages; /* page:32 | pages:32 */
	_Atomic uint64_t tag;
	_Atomic uint64_t value;
	_Atomic uint64_t reserved;
};
static_assert(sizeof(struct flight_record) == 64, "one cache line each");
/* The longest valid duration: no operation lasts longer than a day. */
#define FLIGHT_DURATION_MAX (UINT64_C(86400) * 1000000000)
#define FLIGHT_CLAIMED (UINT64_C(1) << 63)

struct flight_head {
	_Alignas(64) _Atomic uint64_t begun; /* count of numbers taken; only a hint for readers */
};

struct flight_ring {
	struct flight_head *head;
	struct flight_record *records;                    /* [count] */
	_Atomic uint64_t (*texts)[FLIGHT_TEXT_BYTES / 8]; /* [count]; NULL: no texts */
	uint32_t count;                                   /* a power of two; 0: no ring */
};

/*
 * flight_bytes() - return the size of a ring in bytes; 0 for none.
 * flight_over() - compute the parts of a ring in the caller's mapping. A new ring is all zero.
 */
size_t flight_bytes(uint32_t count, bool texts);
void flight_over(void *base, uint32_t count, bool texts, struct flight_ring *ring);

/* flight_count() - return `records` rounded up to a power of two, at most FLIGHT_RECORDS_MAX; 0 for 0. */
uint32_t flight_count(uint32_t records);

/*
 * flight_write() - write an entry. `text` may be NULL; a text that is too long is truncated.
 * Threads: any number may write at the same time, without waiting.
 * Cost: about 20 ns.
 */
void flight_write(const struct flight_ring *ring, const struct flight_entry *entry, const char *text);

/* flight_now() - return the current time on the clock of time_ns. */
uint64_t flight_now(void);

/*
 * flight_used() - return an upper bound on the number of used records. A reader must not read further records, because
 * reading an unused page of a memfd allocates memory.
 */
uint32_t flight_used(const struct flight_ring *ring);

/*
 * flight_read() - read one record of a ring that may be written at the same time. now_ns is flight_now(), or the time
 * at which the ring was copied.
 * Return: 0, with the text in text[FLIGHT_TEXT_BYTES] (may be NULL), terminated by NUL but otherwise unchecked; -ENOENT
 * (empty, or being written); -EBADMSG (invalid number, kind or session, a time in the future, a duration of more than a
 * day).
 */
int flight_read(
	const struct flight_ring *ring, uint32_t place, uint64_t now_ns, struct flight_entry *entry, char *text);

/*
 * flight_keep() - copy the last FLIGHT_KEPT_RECORDS records of a session's ring to the pool's ring, marked as recorded
 * by that session. Only records of workers' kinds are copied. If an agent dies while it copies, records may appear
 * twice.
 */
void flight_keep(const struct flight_ring *from, uint16_t session, const struct flight_ring *to);

/* flight_recover() - release the records that dead writers have claimed. The ring must have no writer. */
void flight_recover(const struct flight_ring *ring);

/* flight_copy() - copy a ring whose writer has ended to a ring without a writer. Does nothing if their sizes differ. */
void flight_copy(const struct flight_ring *from, const struct flight_ring *to);

/*
 * flight_kind_name() - return the name of a kind, such as "grant", or NULL for events (below FLIGHT_KINDS_FIRST) and
 * unknown kinds.
 */
const char *flight_kind_name(uint32_t kind);

#endif
