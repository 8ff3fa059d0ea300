/*
 * flight.h - the flight recorder: rings of fixed-size records of past events, in shared memory, for later analysis.
 *
 * There are three kinds of rings:
 *   each worker's session segment    what the worker did and waited for; any of its threads writes
 *   the pool segment, "flight"       what the agent did with pages, and the last records of ended sessions
 *   the pool segment, "events"       the agent's published events, with their text; rare, so it covers a long time
 * The oldest record is overwritten. Recording never waits, no decision depends on the contents, and the agent's rings
 * survive every process except the keeper.
 *
 *   head | struct flight_record[count] | char[count][FLIGHT_TEXT_BYTES], in a ring with texts
 *
 * A writer draws a number, claims the record of that number by one compare-and-swap on its serial, fills it and marks
 * it as complete. If the record is already claimed by a thread that is stopped or has died, or if it holds a later
 * number, the new entry is dropped. So no two threads ever write the same record, and a reader that sees the same
 * complete serial before and after reading has read a consistent record. A thread that dies while it writes makes its
 * record unusable until the next agent clears the rings it owns (flight_recover()).
 *
 * A reader must treat every field as untrusted: a record is accepted only with its own number, flight_read() checks
 * kinds and times, and pages, tags and values are only displayed.
 */
#ifndef GPOOL_SHM_FLIGHT_H
#define GPOOL_SHM_FLIGHT_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	FLIGHT_TEXT_BYTES = 192, /* the text of an event, proto/messages.def */
	/* 64 KiB for each worker, allocated as they are written: seconds of slow paths */
	FLIGHT_SESSION_RECORDS = 1024,
	FLIGHT_KEPT_RECORDS = 256, /* of an ended session, copied into the pool's ring */
	FLIGHT_EVENTS = 1024,      /* 256 KiB for each pool */
	FLIGHT_RECORDS_MAX = 1 << 20,
	/* one block in this number is allocated on the slow path in any case, to be timed */
	FLIGHT_SAMPLING_LEAST = 256,
};

/* Below FLIGHT_KINDS_FIRST: enum event_kind of agent/pages/event.h. A number keeps its meaning. */
enum flight_kind {
	FLIGHT_NONE,
	FLIGHT_KINDS_FIRST = 64,
	/* The agent's. */
	/* pages leased, the first of them `page`; the duration starts when the agent reads the request */
	FLIGHT_GRANT = FLIGHT_KINDS_FIRST,
	FLIGHT_RETURN,  /* idle pages taken back */
	FLIGHT_REFUSAL, /* a request was refused: the requested pages; value: errno */
	/* a block; value: its owner id */
	FLIGHT_EVICT,
	/* a block was saved; the duration starts with its first job; value: errno, 0: saved */
	FLIGHT_SPILL,
	FLIGHT_LOAD,        /* a block was restored; duration and value as above */
	FLIGHT_OBJECT_OPEN, /* value: version; page: its number */
	/* A worker's. */
	FLIGHT_ALLOCATE,  /* a block, one in flight_sampling; value: its owner id */
	FLIGHT_FREE,      /* one of those blocks */
	FLIGHT_REFILL,    /* a request for pages to the agent; value: errno */
	FLIGHT_PIN_WAIT,  /* a pin waited for pages in motion; value: errno */
	FLIGHT_PIN_STALE, /* a pin found its block evicted */
	FLIGHT_RESTORE,   /* a pin waited for a spilled block; value: errno */
	FLIGHT_KINDS
};
#define FLIGHT_WORKERS_FIRST FLIGHT_ALLOCATE

/* One entry, as passed by writers and returned to readers. Times are wall clock, in nanoseconds since 1970. */
struct flight_entry {
	uint64_t time_ns;     /* of its end */
	uint64_t duration_ns; /* 0: an instant */
	uint32_t kind;        /* enum flight_kind, or an event's */
	uint16_t session;     /* the session concerned; 0: none in particular */
	bool self_reported;   /* recorded by that session about itself; the agent only passes it on */
	bool everywhere;      /* an event of all pools */
	uint32_t page, pages;
	uint64_t tag;   /* of the block; 0: none */
	uint64_t value; /* as the kind says */
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
/* No wait lasts longer than a day; a longer duration would only make a trace unreadable. */
#define FLIGHT_DURATION_MAX (UINT64_C(86400) * 1000000000)
#define FLIGHT_CLAIMED (UINT64_C(1) << 63)

struct flight_head {
	_Alignas(64) _Atomic uint64_t begun; /* numbers drawn; for readers only a hint that there are records */
};

struct flight_ring {
	struct flight_head *head;
	struct flight_record *records;                    /* [count] */
	_Atomic uint64_t (*texts)[FLIGHT_TEXT_BYTES / 8]; /* [count]; NULL: no texts */
	uint32_t count;                                   /* a power of two; 0: no ring */
};

/*
 * flight_bytes() - return the size of a ring; 0 for none. flight_over() - return the parts of a ring in the caller's
 * mapping, which is initially zero.
 */
size_t flight_bytes(uint32_t count, bool texts);
void flight_over(void *base, uint32_t count, bool texts, struct flight_ring *ring);

/*
 * flight_count() - return the number of places for `records`: the next power of two, at most FLIGHT_RECORDS_MAX; 0
 * stays 0.
 */
uint32_t flight_count(uint32_t records);

/*
 * flight_write() - write an entry; any number of threads may write, none ever waits. `text` NULL: none; a text that is
 * too long is cut. Cost: about 20 ns.
 */
void flight_write(const struct flight_ring *ring, const struct flight_entry *entry, const char *text);

/* flight_now() - the clock of time_ns. */
uint64_t flight_now(void);

/*
 * flight_used() - return the number of places that may be in use. Reading unused places of a memfd would allocate
 * memory.
 */
uint32_t flight_used(const struct flight_ring *ring);

/*
 * flight_read() - read one place of a ring that may be written at the same time. now_ns: flight_now(), or the time when
 * a copy was made.
 * Return: 0, and text[FLIGHT_TEXT_BYTES] (may be NULL), terminated by NUL but otherwise unchecked; -ENOENT (empty, or
 * being written); -EBADMSG (invalid number or kind, a time in the future, a duration of more than a day).
 */
int flight_read(
	const struct flight_ring *ring, uint32_t place, uint64_t now_ns, struct flight_entry *entry, char *text);

/*
 * flight_keep() - copy the last FLIGHT_KEPT_RECORDS records of a session's ring to the pool's ring, marked as recorded
 * by that session. Records about other sessions are dropped. If an agent dies while it copies, the records may appear
 * twice.
 */
void flight_keep(const struct flight_ring *from, uint16_t session, const struct flight_ring *to);

/* flight_recover() - free the places that a dead writer has claimed. Call it only while there is no writer. */
void flight_recover(const struct flight_ring *ring);

/*
 * flight_copy() - copy a ring whose writer has ended to one without a writer; does nothing if their sizes differ.
 */
void flight_copy(const struct flight_ring *from, const struct flight_ring *to);

/*
 * flight_kind_name() - return the name of a kind, such as "grant", from FLIGHT_KINDS_FIRST on; NULL if there is no such
 * kind.
 */
const char *flight_kind_name(uint32_t kind);

#endif
