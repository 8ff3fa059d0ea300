/*
 * flight.h - the flight recorder: rings of fixed-size records about what happened, in shared memory, for who looks
 * afterwards.
 *
 * A ring lies in
 *   each worker's session segment    what the worker did and waited for. Any of its threads writes
 *   the pool segment, "flight"       what the agent did with pages, and the last records of sessions that have ended
 *   the pool segment, "events"       what the agent told everybody, with the words for people. Rare, so it reaches far
 *   back
 * The oldest record is overwritten. Nobody waits, nothing is decided by what stands here, and the agent's rings outlive
 * every process but the keeper.
 *
 *   head | struct flight_record[count] | char[count][FLIGHT_TEXT_BYTES], in a ring with texts
 *
 * A writer draws a number, claims the place of that number by one compare-and-swap on its serial, fills it and says
 * that it is whole. Where the place is claimed already, by a thread that stands still or has died there, or holds a
 * later record, the new one is dropped: so no two threads ever write into one record, and whoever reads the same
 * serial, whole, before and after has read what belongs together. A thread that dies within a record costs its place,
 * until the next agent clears its own (flight_recover()).
 *
 * To a reader every field is hostile: a place is believed to hold a record of its own number and nothing else, kinds
 * and times are checked by flight_read(), pages, tags and values are only ever shown.
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
	/* 64 KiB for each worker, touched as they are written. Chosen: seconds of slow paths */
	FLIGHT_SESSION_RECORDS = 1024,
	FLIGHT_KEPT_RECORDS = 256, /* of a session that ends, copied into the pool's ring */
	FLIGHT_EVENTS = 1024,      /* 256 KiB for each pool */
	FLIGHT_RECORDS_MAX = 1 << 20,
	FLIGHT_SAMPLING_LEAST = 256, /* every such block is allocated out of line in any case, to be timed */
};

/* Below FLIGHT_KINDS_FIRST: enum event_kind of agent/pages/event.h. A number keeps its meaning. */
enum flight_kind {
	FLIGHT_NONE,
	FLIGHT_KINDS_FIRST = 64,
	/* The agent's. */
	FLIGHT_GRANT = FLIGHT_KINDS_FIRST, /* pages lent, the first of `page`; from when it saw the request */
	FLIGHT_RETURN,                     /* idle pages taken back */
	FLIGHT_REFUSAL,                    /* pages asked for; value: errno */
	FLIGHT_EVICT,                      /* a block; value: what the worker calls it */
	FLIGHT_SPILL,                      /* a block saved; from its first job on; value: errno, 0: it is saved */
	FLIGHT_LOAD,                       /* a block brought back; likewise */
	FLIGHT_OBJECT_OPEN,                /* value: version; page: its number */
	/* A worker's. */
	FLIGHT_ALLOCATE,  /* a block, one in flight_sampling; value: what the worker calls it */
	FLIGHT_FREE,      /* of those */
	FLIGHT_REFILL,    /* the agent was asked for pages; value: errno */
	FLIGHT_PIN_WAIT,  /* a pin met pages in motion; value: errno */
	FLIGHT_PIN_STALE, /* a pin found its block evicted */
	FLIGHT_RESTORE,   /* a pin waited for a spilled block; value: errno */
	FLIGHT_KINDS
};
#define FLIGHT_WORKERS_FIRST FLIGHT_ALLOCATE

/* One entry as writers tell it and readers get it. Times are wall clock, nanoseconds since 1970. */
struct flight_entry {
	uint64_t time_ns;     /* of its end */
	uint64_t duration_ns; /* 0: an instant */
	uint32_t kind;        /* enum flight_kind, or an event's */
	uint16_t session;     /* whom it concerns; 0: nobody in particular */
	bool self_reported;   /* by that session about itself; the agent forwards it alone */
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
/* Nobody waits for longer than a day: what says so would only make a trace unreadable. */
#define FLIGHT_DURATION_MAX (UINT64_C(86400) * 1000000000)
#define FLIGHT_CLAIMED (UINT64_C(1) << 63)

struct flight_head {
	_Alignas(64) _Atomic uint64_t begun; /* numbers drawn; to a reader a hint that there is something */
};

struct flight_ring {
	struct flight_head *head;
	struct flight_record *records;                    /* [count] */
	_Atomic uint64_t (*texts)[FLIGHT_TEXT_BYTES / 8]; /* [count]; NULL: a ring without */
	uint32_t count;                                   /* a power of two; 0: there is no ring */
};

/*
 * flight_bytes() - what a ring takes; 0 for none. flight_over() - the parts of one in the caller's mapping, which is
 * zero at first.
 */
size_t flight_bytes(uint32_t count, bool texts);
void flight_over(void *base, uint32_t count, bool texts, struct flight_ring *ring);

/* flight_count() - places for so many records: the next power of two, at most FLIGHT_RECORDS_MAX; 0 stays 0. */
uint32_t flight_count(uint32_t records);

/*
 * flight_write() - any thread of any number of writers; never waits. `text` NULL: none; what is too long is cut. Cost:
 * about 20 ns.
 */
void flight_write(const struct flight_ring *ring, const struct flight_entry *entry, const char *text);

/* flight_now() - the clock of time_ns. */
uint64_t flight_now(void);

/*
 * flight_used() - places [0, this) are worth a look; reading one of a memfd that nobody has written yet would give it
 * memory.
 */
uint32_t flight_used(const struct flight_ring *ring);

/*
 * flight_read() - what stands at one place of a ring that anybody may be writing. now_ns: flight_now(), or when a copy
 * was made.
 * Return: 0, also text[FLIGHT_TEXT_BYTES] (may be NULL), ended by NUL but otherwise as it stands; -ENOENT (nothing, or
 * it is being written); -EBADMSG (it cannot be: number, kind, a time of the future, a duration of more than a day).
 */
int flight_read(
	const struct flight_ring *ring, uint32_t place, uint64_t now_ns, struct flight_entry *entry, char *text);

/*
 * flight_keep() - the last FLIGHT_KEPT_RECORDS of a session's ring to the pool's, as told by it. What it says of others
 * is dropped. Told twice, when an agent dies over it, they are the same records twice.
 */
void flight_keep(const struct flight_ring *from, uint16_t session, const struct flight_ring *to);

/* flight_recover() - places that a dead writer has claimed are free again. Only where nobody writes now. */
void flight_recover(const struct flight_ring *ring);

/*
 * flight_copy() - a ring whose writer is gone, to another one that nobody writes yet; nothing where their sizes differ.
 */
void flight_copy(const struct flight_ring *from, const struct flight_ring *to);

/* flight_kind_name() - "grant", for kinds from FLIGHT_KINDS_FIRST on; NULL: there is none of that number. */
const char *flight_kind_name(uint32_t kind);

#endif
