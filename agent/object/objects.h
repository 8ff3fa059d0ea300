/*
 * objects.h - named objects: versions that outlive their writer. Their states are stored in the pool segment's records,
 * the pages in the page words (SHARED, the owner is the record's number), the readers in the ledger; the data here can
 * be rebuilt from these.
 *
 *   NONE -> PUBLISHING -> CURRENT -> OLD     -> ENDING -> NONE      a newer version became current,
 *                                                                   then the last reader closed it
 *                                 -> DELETED -> ENDING -> NONE      its name was deleted, then as above
 *                                 -> ENDING -> NONE                 the same without readers; or evicted
 *                                 -> LEAVING -> CURRENT or ENDING   OBJECT_PINNABLE: check for pins
 *
 * A name denotes its CURRENT record with the highest version. One store, PUBLISHING -> CURRENT, therefore publishes;
 * the preceding record becomes OLD afterwards. The files: objects.c states, objects_requests.c requests of sessions,
 * objects_recover.c recovery, objects_order.c eviction order, objects_evict.c eviction, objects_pins.c pins,
 * objects_names.c reserved names, objects_worth.c the worth of pinnable objects.
 */
#ifndef GPOOL_AGENT_OBJECTS_H
#define GPOOL_AGENT_OBJECTS_H

#include "agent/pages/object_records.h"
#include "agent/pages/session_state.h"
#include "proto/codec.h"
#include "shm/policy/bitmap.h"
#include "shm/policy/worth.h"
#include "shm/manifest.h"

/* An object; it has the same number as its record. */
struct object {
	int fd; /* descriptor of the manifest; 0: none */
	uint32_t run_count;
	/* runs of its pages, copied from the manifest: mapping every manifest would need too many mappings */
	struct page_run *runs;
	uint64_t manifest_bytes;
	struct tenant *tenant; /* the tenant to which its pages are leased; NULL: a tenant that no longer exists */
	bool in_order;         /* it is in the eviction order; the following fields are valid only then */
	bool open;             /* a session has it open; if only pins keep it: it was pinned at the last check */
	uint32_t stay_below;   /* number of objects that follow it and stay: open, or followed by one that stays */
	uint32_t touched_ms;   /* time of its last use, as of the last check */
	struct evict_candidate candidate; /* as seen by the last scan in which it could be evicted */
	uint64_t scanned;                 /* number of that scan; 0: none, or used since */
	uint32_t node;                    /* OBJECT_EPHEMERAL: its node in shm/policy/eviction.h, plus 1 */
	uint32_t uses_seen;               /* OBJECT_PINNABLE: sum of its readers' pin counts at the last check */
	struct worth worth;               /* OBJECT_PINNABLE */
};

struct objects {
	uint64_t manifest_bytes; /* of all manifests */
	uint64_t version;        /* the highest version so far */
	uint32_t count;          /* number of records, the first of which is unused */
	struct bitmap unused;    /* unused records */
	struct bitmap pinnable;  /* objects that only pins keep */
	struct objects_order *order;
	uint64_t looked_ms; /* time of the last check of all pins */
	uint32_t *sorted;   /* [count] scratch: objects_sort() */
	/* [count] scratch of objects_evict.c, by number */
	bool *stays, *goes;
	struct object of[]; /* [count] */
};

int objects_create(struct pool *pool);
void objects_destroy(struct pool *pool);

/* Requests about objects on the attach socket, and the end of a session that has objects open. */
extern const struct session_part objects_session_part;
/*
 * objects_tick() - periodic work: end versions that are not current and were kept by a pin, record uses, evict objects
 * above the limit.
 */
void objects_tick(struct pool *pool);
/* objects_session_end() - close all objects of an ended session. */
void objects_session_end(struct session *session);
/*
 * objects_holders() - call `found` for each session that pins a pinnable object, or has left an unsignaled fence there
 * (pins: 0). object_holders() - the same for one object. Cost: a check of each reader.
 */
void object_holders(const struct pool *pool, uint32_t number, evict_holder_found *found, void *context);
void objects_holders(const struct pool *pool, evict_holder_found *found, void *context);

/*
 * The objects of a pool for eviction (struct evict_source): ephemeral ones that no session has open, and pinnable ones
 * that no session pins. objects_order.c determines the next one of each kind; of the two, the one with the lower score
 * is evicted first.
 */
extern const struct evict_source objects_evict_source;
/*
 * objects_thin() - if there are more pinnable objects than the pool's `pinnable_objects`, evict those with the least
 * worth, if no session pins them and the tenant rules permit it, without `spared` (0: none). Cost: a check of all pins,
 * if there are too many.
 */
void objects_thin(struct pool *pool, struct tenant *taker, uint32_t spared);
/*
 * objects_check() - call `found` for each violation of the invariants of objects_order.c, and for pins of sessions that
 * do not have the object open. Such a pin exists for a moment while a session detects that an object was evicted. Cost:
 * a check of each object for each ephemeral one.
 */
typedef void objects_fault(void *context, uint32_t session, uint32_t page, const char *text);
void objects_check(const struct pool *pool, objects_fault *found, void *context);
/*
 * objects_order_begin() - create the order with the configured policy, and insert all objects without their history. 0,
 * -ENOMEM.
 */
int objects_order_begin(struct pool *pool);

/*
 * objects_recover() - restore objects after an agent's death, when the sessions are restored and accounts and index
 * agree with the page words. Map the manifests of start->held, complete or roll back incomplete steps, close what dead
 * sessions had open, and account for the pages.
 */
void objects_recover(struct pool *pool);

/* ---- between the files ---- */

/* object_has_name() - return true if it can be found by its name. */
static inline bool object_has_name(enum object_state state)
{
	return state == OBJECT_CURRENT || state == OBJECT_OLD || state == OBJECT_LEAVING;
}

void object_set_state(struct pool *pool, uint32_t number, enum object_state state);
struct manifest_pool object_geometry(const struct pool *pool);
/*
 * object_name_refusal() - return why this session may not publish under a name, existing or not; NULL: it may
 * (objects_names.c).
 */
const char *object_name_refusal(const struct session *session, const char *name, bool of_library);
/*
 * object_current() - return the current object of a name in a trust domain; 0: none. object_of_version() - return a
 * version, also an old one that a session still has open. object_anywhere() - return, for an admin, the object of this
 * name in any domain; `version` 0: the current one. OBJECT_SEVERAL: more than one domain has it.
 */
#define OBJECT_SEVERAL UINT32_MAX
uint32_t object_current(const struct pool *pool, uint32_t domain, const char *name);
uint32_t object_of_version(const struct pool *pool, uint32_t domain, const char *name, uint64_t version);
uint32_t object_anywhere(const struct pool *pool, const char *name, uint64_t version);
/* object_place() - return the lowest unused record; 0: none. */
uint32_t object_place(const struct pool *pool);
/* object_take() - store the checked manifest and its descriptor. 0, -ENOMEM. */
int object_take(struct pool *pool, uint32_t number, int fd, const struct manifest *manifest);

/*
 * object_commit() - change an object from PUBLISHING, with all its pages SHARED, to CURRENT, and the previous version
 * to OLD.
 */
void object_commit(struct pool *pool, uint32_t number);
void object_reader_add(struct pool *pool, uint32_t number, uint32_t session);
/* object_reader_drop() - remove a reader, which also stops being the writer. End the object if it is unused. */
void object_reader_drop(struct pool *pool, uint32_t number, uint32_t session);
void object_delete(struct pool *pool, uint32_t number);
/*
 * object_end() - free its pages, its manifest and its record. No session may have it open, or pin it, if only pins keep
 * it.
 */
void object_end(struct pool *pool, uint32_t number);
void object_end_if_unused(struct pool *pool, uint32_t number);
/* object_page_stands() - return true if its pages are known: its manifest is not lost. */
static inline bool object_page_stands(const struct object *object)
{
	return object->fd > 0 && object->run_count;
}

/* object_page() - return its first page, to which its pins belong; also 0 if its manifest is lost. */
uint32_t object_page(const struct pool *pool, uint32_t number);

/* The state of an OBJECT_PINNABLE object, as recorded in its readers' segments. */
struct object_pins {
	uint32_t holders;    /* sessions that pin it, or have left an unsignaled fence there */
	uint32_t uses;       /* sum of their counts of pins; wraps */
	uint32_t touched_ms; /* time of the last known use */
};
/*
 * object_pins_look() - read the pins of all readers. object_pinned() - return true if a session pins it. Cost: a check
 * of each reader. object_uses_of() - return a reader's count. object_leave() - check a CURRENT object before its
 * eviction: true: it is LEAVING, and the caller must end it; false: a session pins it.
 */
void object_pins_look(const struct pool *pool, uint32_t number, struct object_pins *pins);
bool object_pinned(const struct pool *pool, uint32_t number);
uint32_t object_uses_of(const struct pool *pool, uint32_t number, const struct session *session);
bool object_leave(struct pool *pool, uint32_t number);

/*
 * object_worth_begin() - initialize its worth when it enters the order, from what an earlier agent stored in its
 * record. object_worth_learn() - update its worth from its pins; true: it has increased. object_worth_reader() - adjust
 * the count for a session that opens it or is about to close it: what the session counts without having it open is not
 * a use. object_worth_key() - return the key of the order: lower ones are evicted first.
 */
void object_worth_begin(struct pool *pool, uint32_t number);
bool object_worth_learn(struct pool *pool, uint32_t number, const struct object_pins *pins);
void object_worth_reader(struct pool *pool, uint32_t number, const struct session *session, bool comes);
uint64_t object_worth_key(const struct pool *pool, uint32_t number);
/*
 * object_cost() - return its reload cost as stated by its publisher, relative to reading the same number of bytes; 1:
 * not stated.
 */
float object_cost(const struct pool *pool, uint32_t number);

/*
 * object_order_look() - update the order after a change of its state or its readers. object_order_touch() - record that
 * another session opens it. object_order_look_at_pins() - check the pins of one object in the order;
 * objects_order_look_at_pins(): of all. object_order_open() - record that a session pins it, or none.
 * object_order_evicted() - remove an evicted object from the order.
 */
void object_order_look(struct pool *pool, uint32_t number);
void object_order_touch(struct pool *pool, uint32_t number);
void object_order_look_at_pins(struct pool *pool, uint32_t number);
void objects_order_look_at_pins(struct pool *pool);
void object_order_open(struct pool *pool, uint32_t number, bool open);
void object_order_evicted(struct pool *pool, uint32_t number);
/*
 * object_order_next_...() - return the next object of a kind to evict; 0: none. object_order_aside() - skip this one,
 * until object_order_back() restores all.
 */
uint32_t object_order_next_ephemeral(const struct pool *pool);
uint32_t object_order_next_pinnable(const struct pool *pool);
void object_order_aside(struct pool *pool, uint32_t number);
void object_order_back(struct pool *pool);
/* Number of pinnable objects; pages that may be evicted and belong to no tenant. */
uint32_t object_order_pinnables(const struct pool *pool);
uint32_t object_order_idle_pages(const struct pool *pool);
/*
 * object_order_offered_pages() - return the pages of evictable objects with OBJECT_BY_PINS, of any tenant: prefixes
 * that no sequence uses.
 */
uint32_t object_order_offered_pages(const struct pool *pool);
/* object_followed() - return the object without which this one is useless; 0: none. */
uint32_t object_followed(const struct pool *pool, uint32_t number);
/*
 * objects_sort() - store in objects->sorted the objects for which `in` returns true, by version: an object comes before
 * those that follow it.
 */
uint32_t objects_sort(struct pool *pool, bool (*in)(const struct pool *pool, uint32_t number));
void objects_order_end(struct pool *pool);
/* object_forget() - unmap and close the manifest. */
void object_forget(struct pool *pool, uint32_t number);

#endif
