/*
 * objects.h - named objects: versions that outlive their writer. The states stand in the pool segment's records, the
 * pages in the page words (SHARED, owner is the record's number), the readers in the ledger; what is here can be made
 * again from these.
 *
 *   NONE -> PUBLISHING -> CURRENT -> OLD     -> ENDING -> NONE      a newer version became current, then the last
 *   reader went
 *                                 -> DELETED -> ENDING -> NONE      its name was taken away, then the last reader went
 *                                 -> ENDING -> NONE                 the same without readers; or evicted
 *                                 -> LEAVING -> CURRENT or ENDING   OBJECT_PINNABLE: are there pins?
 *
 * What a name means is its CURRENT record with the highest version. So one store, PUBLISHING -> CURRENT, publishes;
 * that the record before it becomes OLD is tidying up. The files: objects.c states, objects_requests.c what sessions
 * ask, objects_recover.c after the death of an agent, objects_order.c which one goes next, objects_evict.c taking it,
 * objects_pins.c who pins one, objects_names.c what names are reserved, objects_worth.c what pinnable ones are worth.
 */
#ifndef GPOOL_AGENT_OBJECTS_H
#define GPOOL_AGENT_OBJECTS_H

#include "agent/pages/object_records.h"
#include "agent/pages/session_state.h"
#include "proto/codec.h"
#include "shm/policy/bitmap.h"
#include "shm/policy/worth.h"
#include "shm/manifest.h"

/* Of the object with the same number as its record. */
struct object {
	int fd; /* of the manifest; 0: none */
	uint32_t run_count;
	struct page_run *runs; /* what the manifest says of its pages: a mapping each would be too many */
	uint64_t manifest_bytes;
	struct tenant *tenant; /* who has its pages on the books; NULL: a tenant that is no more */
	bool in_order;         /* in which they go: what is below is said of such ones */
	bool open;             /* a session has it open; kept by pins: had it pinned when that was last looked at */
	uint32_t stay_below;   /* so many of those that follow it stay: open, or followed by one that stays */
	uint32_t touched_ms;   /* of its last use, when that was last looked at */
	struct evict_candidate candidate; /* as the last scan that could take it has seen it */
	uint64_t scanned;                 /* which scan that was; 0: none, or it was used since */
	uint32_t node;                    /* OBJECT_EPHEMERAL: in shm/policy/eviction.h, plus 1 */
	uint32_t uses_seen; /* OBJECT_PINNABLE: what its readers' counts of pins added up to at the last look */
	struct worth worth; /* OBJECT_PINNABLE */
};

struct objects {
	uint64_t manifest_bytes; /* of all */
	uint64_t version;        /* the highest that there was */
	uint32_t count;          /* records, the first of which is none */
	struct bitmap unused;    /* those that are */
	struct bitmap pinnable;  /* those that are not, and that pins alone keep */
	struct objects_order *order;
	uint64_t looked_ms; /* at all pins, by the clock */
	uint32_t *sorted;   /* [count] scratch: objects_sort() */
	/* [count] scratch, by number, of objects_evict.c */
	bool *stays, *goes;
	struct object of[]; /* [count] */
};

int objects_create(struct pool *pool);
void objects_destroy(struct pool *pool);

/* Requests about objects on the attach socket, and the end of a session that has objects open. */
extern const struct session_part objects_session_part;
/*
 * objects_tick() - by the clock: versions that are not current, and which a pin has kept; what was used; more than
 * there may be.
 */
void objects_tick(struct pool *pool);
/* objects_session_end() - it reads and writes nothing any more. */
void objects_session_end(struct session *session);
/*
 * objects_holders() - calls `found` for each session that pins a pinnable object, or has left a fence there (pins: 0).
 * object_holders() - of one. Cost: a look at each reader.
 */
void object_holders(const struct pool *pool, uint32_t number, evict_holder_found *found, void *context);
void objects_holders(const struct pool *pool, evict_holder_found *found, void *context);

/*
 * The objects of a pool as eviction sees them (struct evict_source): ephemeral ones that no session has open, and
 * pinnable ones that no session pins. Of each kind the next is decided in objects_order.c; of the two, the one with the
 * lower score.
 */
extern const struct evict_source objects_evict_source;
/*
 * objects_thin() - of more pinnable ones than the pool's `pinnable_objects`, those worth least go, as far as nobody
 * pins them and the rules let them; not `spared` (0: none). Cost: a look at the pins of all, if there are too many.
 */
void objects_thin(struct pool *pool, struct tenant *taker, uint32_t spared);
/*
 * objects_check() - calls `found` for what is not as objects_order.c says, and for pins of sessions that do not have
 * the object open. Such a pin stands for a moment when somebody finds that an object has gone. Cost: a look at each
 * object for each ephemeral one.
 */
typedef void objects_fault(void *context, uint32_t session, uint32_t page, const char *text);
void objects_check(const struct pool *pool, objects_fault *found, void *context);
/*
 * objects_order_begin() - by the policy that is configured; what there is is entered anew, and nothing else is known.
 * 0, -ENOMEM.
 */
int objects_order_begin(struct pool *pool);

/*
 * objects_recover() - after an agent's death, when the sessions are restored and books and index fit the words. Maps
 * the manifests again from start->held, finishes or rolls back what was half-done, lets go what dead sessions had open,
 * and books the pages.
 */
void objects_recover(struct pool *pool);

/* ---- between the files ---- */

/* It is found by its name. */
static inline bool object_has_name(enum object_state state)
{
	return state == OBJECT_CURRENT || state == OBJECT_OLD || state == OBJECT_LEAVING;
}

void object_set_state(struct pool *pool, uint32_t number, enum object_state state);
struct manifest_pool object_geometry(const struct pool *pool);
/*
 * object_name_refusal() - why this session may not publish by a name, whatever stands there; NULL: it may
 * (objects_names.c).
 */
const char *object_name_refusal(const struct session *session, const char *name, bool of_library);
/*
 * object_current() - what a name means in a trust domain; 0: nothing. object_of_version() - also an old one that is
 * still open somewhere. object_anywhere() - for an admin: the current version of this name, whatever its domain;
 * `version` 0: any. OBJECT_SEVERAL: domains.
 */
#define OBJECT_SEVERAL UINT32_MAX
uint32_t object_current(const struct pool *pool, uint32_t domain, const char *name);
uint32_t object_of_version(const struct pool *pool, uint32_t domain, const char *name, uint64_t version);
uint32_t object_anywhere(const struct pool *pool, const char *name, uint64_t version);
/* object_place() - the lowest record that is NONE; 0: there is none. */
uint32_t object_place(const struct pool *pool);
/* object_take() - its manifest, with the descriptor, which was checked. 0, -ENOMEM. */
int object_take(struct pool *pool, uint32_t number, int fd, const struct manifest *manifest);

/* object_commit() - PUBLISHING, all its pages SHARED: CURRENT, and what the name meant before OLD. */
void object_commit(struct pool *pool, uint32_t number);
void object_reader_add(struct pool *pool, uint32_t number, uint32_t session);
/* object_reader_drop() - its writership ends too. What nobody needs any more ends. */
void object_reader_drop(struct pool *pool, uint32_t number, uint32_t session);
void object_delete(struct pool *pool, uint32_t number);
/*
 * object_end() - pages free, manifest dropped, record NONE. Nobody has it open, or pins it, where that is what keeps
 * it.
 */
void object_end(struct pool *pool, uint32_t number);
void object_end_if_unused(struct pool *pool, uint32_t number);
/* It is known where its pages are: its manifest is not lost. */
static inline bool object_page_stands(const struct object *object)
{
	return object->fd > 0 && object->run_count;
}

/* object_page() - its first page, where pins stand; 0 too where its manifest is lost. */
uint32_t object_page(const struct pool *pool, uint32_t number);

/* What the segments of its readers say of an object of class OBJECT_PINNABLE. */
struct object_pins {
	uint32_t holders;    /* sessions that pin it, or have left a fence there that is not reached */
	uint32_t uses;       /* their counts of pins, added up; wraps */
	uint32_t touched_ms; /* the last use that is known */
};
/*
 * object_pins_look(), object_pinned() - Cost: a look at each reader. object_uses_of() - a reader's count.
 * object_leave() - CURRENT: true, and it is LEAVING, to be ended; or false: somebody pins it.
 */
void object_pins_look(const struct pool *pool, uint32_t number, struct object_pins *pins);
bool object_pinned(const struct pool *pool, uint32_t number);
uint32_t object_uses_of(const struct pool *pool, uint32_t number, const struct session *session);
bool object_leave(struct pool *pool, uint32_t number);

/*
 * object_worth_begin() - when it comes into the order; what a predecessor has learned stands in its record.
 * object_worth_learn() - from a look at its pins: true, it is worth more now. object_worth_reader() - a session has it
 * open from now on, or is about to have it open no more: what it counts without having it open is no use.
 * object_worth_key() - those with less go first.
 */
void object_worth_begin(struct pool *pool, uint32_t number);
bool object_worth_learn(struct pool *pool, uint32_t number, const struct object_pins *pins);
void object_worth_reader(struct pool *pool, uint32_t number, const struct session *session, bool comes);
uint64_t object_worth_key(const struct pool *pool, uint32_t number);
/*
 * object_cost() - to have it again, by its publisher's word, against what reading so many bytes takes; 1: it says
 * nothing.
 */
float object_cost(const struct pool *pool, uint32_t number);

/*
 * object_order_look() - after its state or its readers have changed. object_order_touch() - another session opens it.
 * _look_at_pins() - of a pinnable one in the order; objects_...: of all. _open() - somebody pins it, or nobody.
 * _evicted() - it leaves the order for want of room.
 */
void object_order_look(struct pool *pool, uint32_t number);
void object_order_touch(struct pool *pool, uint32_t number);
void object_order_look_at_pins(struct pool *pool, uint32_t number);
void objects_order_look_at_pins(struct pool *pool);
void object_order_open(struct pool *pool, uint32_t number, bool open);
void object_order_evicted(struct pool *pool, uint32_t number);
/*
 * object_order_next_...() - of a kind the one that goes next; 0: none. _aside() - of such a one: not this one, until
 * _back() of all.
 */
uint32_t object_order_next_ephemeral(const struct pool *pool);
uint32_t object_order_next_pinnable(const struct pool *pool);
void object_order_aside(struct pool *pool, uint32_t number);
void object_order_back(struct pool *pool);
/* How many pinnable ones there are; pages that may go and are of no tenant's. */
uint32_t object_order_pinnables(const struct pool *pool);
uint32_t object_order_idle_pages(const struct pool *pool);
/*
 * object_order_offered_pages() - of objects with OBJECT_BY_PINS, whatever their tenant, that may be evicted: prefixes
 * that no sequence uses.
 */
uint32_t object_order_offered_pages(const struct pool *pool);
/* object_followed() - the one without which this one is useless; 0: none. */
uint32_t object_followed(const struct pool *pool, uint32_t number);
/*
 * objects_sort() - into objects->sorted those for which `in` says yes, by version: what is followed stands before what
 * follows it.
 */
uint32_t objects_sort(struct pool *pool, bool (*in)(const struct pool *pool, uint32_t number));
void objects_order_end(struct pool *pool);
/* object_forget() - unmaps and drops the manifest. */
void object_forget(struct pool *pool, uint32_t number);

#endif
