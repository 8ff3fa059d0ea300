/*
 * objects.h - named objects: versions that outlive their writer. The pool segment contains a record with the state of
 * each object. The page words identify its pages: they are SHARED, with the record's number as the owner. The ledger
 * contains its readers. The data in this file can be rebuilt from these.
 *
 *   NONE -> PUBLISHING -> CURRENT -> OLD     -> ENDING -> NONE      a newer version became current,
 *                                                                   then the last reader closed this one
 *                                 -> DELETED -> ENDING -> NONE      the name was deleted, then as above
 *                                 -> ENDING -> NONE                 likewise without readers; or evicted
 *                                 -> LEAVING -> CURRENT or ENDING   protected only by pins: check for pins
 *
 * A name refers to its CURRENT record with the highest version. Therefore a single store, PUBLISHING -> CURRENT,
 * publishes a version; the previous record becomes OLD afterwards.
 */
#ifndef GPOOL_AGENT_OBJECTS_H
#define GPOOL_AGENT_OBJECTS_H

#include "agent/pages/object_records.h"
#include "agent/pages/session_state.h"
#include "proto/codec.h"
#include "shm/policy/bitmap.h"
#include "shm/policy/worth.h"
#include "shm/manifest.h"

/* An object. It has the same number as its record. */
struct object {
	int fd; /* manifest; 0: none */
	uint32_t run_count;
	/*
	 * runs of the object's pages, copied from the manifest, because mapping every manifest would need too many
	 * mappings
	 */
	struct page_run *runs;
	uint64_t manifest_bytes;
	char *label;           /* object_label(); for an adapter: the adapter's name. NULL: no manifest */
	struct tenant *tenant; /* tenant to which the pages are leased; NULL: it no longer exists */
	bool in_order;         /* in the eviction order; the following fields are valid only in this case */
	bool open;             /* a session has it open; if only pins protect it: it was pinned at the last check */
	uint32_t stay_below;   /* number of followers that stay (objects_order.c) */
	uint32_t touched_ms;   /* time of the last use, as of the last check */
	struct evict_candidate candidate; /* as of the last scan in which the object was evictable */
	uint64_t scanned;                 /* number of that scan; 0: none, or the object was used since */
	uint32_t node;                    /* OBJECT_EPHEMERAL: node in shm/policy/eviction.h, plus 1 */
	uint32_t uses_seen;               /* OBJECT_PINNABLE: sum of the readers' pin counts at the last check */
	struct worth worth;               /* OBJECT_PINNABLE */
};

/* The uses of a pinnable object that was evicted, for its next publication. */
struct object_ghost {
	uint64_t key; /* of its name; 0: none */
	double heat;  /* as in struct worth */
};

struct objects {
	uint64_t manifest_bytes; /* size of all manifests */
	uint64_t version;        /* highest version assigned */
	uint32_t count;          /* number of records; record 0 is unused */
	struct bitmap unused;    /* unused records */
	struct bitmap pinnable;  /* objects that only pins protect */
	struct objects_order *order;
	uint64_t looked_ms; /* time of the last check of all pins */
	/* [ghost_count] each at a place by its key; a power of two. The agent that follows does not know them */
	struct object_ghost *ghosts;
	uint32_t ghost_count;
	uint32_t *sorted; /* [count] scratch, for objects_sort() */
	/* [count] scratch of objects_evict.c, indexed by number */
	bool *stays, *goes;
	struct object of[]; /* [count] */
};

int objects_create(struct pool *pool);
void objects_destroy(struct pool *pool);

/* The requests about objects on the attach socket, and the end of a session that has objects open. */
extern const struct session_part objects_session_part;
/*
 * objects_tick() - end versions that are neither current nor pinned, record uses, and evict objects above the limit;
 * called periodically.
 */
void objects_tick(struct pool *pool);
void objects_session_end(struct session *session);
/*
 * object_holders() - for an object that only pins protect, call `found` for each session that pins it, or whose fence
 * for it is not signaled (pins: 0). Cost: a check of each reader.
 * objects_holders() - do this for all such objects.
 */
void object_holders(const struct pool *pool, uint32_t number, evict_holder_found *found, void *context);
void objects_holders(const struct pool *pool, evict_holder_found *found, void *context);

/*
 * The objects of a pool for eviction (struct evict_source): ephemeral ones that no session has open (with
 * OBJECT_BY_PINS: pins), and pinnable ones that no session pins. objects_order.c determines the next object of each
 * kind; the one with the lower score is evicted first.
 */
extern const struct evict_source objects_evict_source;
/*
 * objects_thin() - evict pinnable objects above the pool's limit `pinnable_objects` and the budgets of adapters, those
 * with the lowest worth first.
 * Objects that a session pins or that the tenant rules protect, and the object `spared` (0: none), are not evicted.
 * Cost: a check of all pins, if the limit is exceeded.
 */
void objects_thin(struct pool *pool, struct tenant *taker, uint32_t spared);
/*
 * objects_check() - call `found` for each violation of the invariants of objects_order.c, and for each pin of a session
 * that does not have the object open. Such a pin may exist for a moment, until a session detects that an object was
 * evicted. Cost: a check of each object per ephemeral object.
 */
typedef void objects_fault(void *context, uint32_t session, uint32_t page, const char *text);
void objects_check(const struct pool *pool, objects_fault *found, void *context);
/*
 * objects_order_begin() - create the order with the configured policy, and insert all objects without their history.
 * Return: 0, -ENOMEM.
 */
int objects_order_begin(struct pool *pool);

/*
 * objects_recover() - restore the objects after an agent's death: map the manifests of start->held, complete or roll
 * back incomplete steps, close the versions that dead sessions had open, and account for the pages. Call it after the
 * sessions are restored, when accounts and index agree with the page words.
 */
void objects_recover(struct pool *pool);

/* ---- between the files ---- */

/* object_has_name() - return true if an object in this state can be found by its name. */
static inline bool object_has_name(enum object_state state)
{
	return state == OBJECT_CURRENT || state == OBJECT_OLD || state == OBJECT_LEAVING;
}

void object_set_state(struct pool *pool, uint32_t number, enum object_state state);
struct manifest_pool object_geometry(const struct pool *pool);
/*
 * object_name_refusal() - return the reason why this session must not publish under a name, whether the name exists or
 * not; NULL: the session may publish (objects_names.c).
 */
const char *object_name_refusal(const struct session *session, const char *name, bool of_library);
/*
 * object_name_lists() - return true if a name ends with no list of tenants, or the list contains the tenant of the
 * session. object_adapter_allowed() - return true if the object is not an adapter, or the tenant of the session may use
 * an adapter of this name (NULL: none).
 */
bool object_name_lists(const struct session *session, const char *name);
bool object_adapter_allowed(const struct session *session, const char *name, const char *adapter);
/*
 * object_current() - return the current object of a name in a trust domain; 0: none. object_of_version() - return a
 * version, which may be an old one that a session still has open. object_anywhere() - return the object with this name
 * in any domain, for an admin; `version` 0: the current one; OBJECT_SEVERAL: several domains have one.
 */
#define OBJECT_SEVERAL UINT32_MAX
uint32_t object_current(const struct pool *pool, uint32_t domain, const char *name);
uint32_t object_of_version(const struct pool *pool, uint32_t domain, const char *name, uint64_t version);
uint32_t object_anywhere(const struct pool *pool, const char *name, uint64_t version);
/* object_place() - return the lowest unused record; 0: none. */
uint32_t object_place(const struct pool *pool);
/*
 * object_label() - return the value "name" of the metadata, for free(): at most 127 bytes, "" if there is none; NULL:
 * no memory. object_take() - store a checked manifest and its descriptor. Return: 0, -ENOMEM.
 */
char *object_label(const struct manifest *manifest);
int object_take(struct pool *pool, uint32_t number, int fd, const struct manifest *manifest);

/*
 * object_commit() - change an object from PUBLISHING to CURRENT, and the previous version to OLD. All its pages must be
 * SHARED.
 */
void object_commit(struct pool *pool, uint32_t number);
void object_reader_add(struct pool *pool, uint32_t number, uint32_t session);
/*
 * object_reader_drop() - remove a reader. If the reader was the writer, the object then has no writer. The object ends
 * if it is then unused.
 */
void object_reader_drop(struct pool *pool, uint32_t number, uint32_t session);
void object_delete(struct pool *pool, uint32_t number);
/*
 * object_end() - free the pages, the manifest and the record of an object. No session may have it open; if only pins
 * keep it, no session may pin it.
 */
void object_end(struct pool *pool, uint32_t number);
void object_end_if_unused(struct pool *pool, uint32_t number);
/* object_page_stands() - return true if the pages of an object are known, because its manifest is not lost. */
static inline bool object_page_stands(const struct object *object)
{
	return object->fd > 0 && object->run_count;
}

/* object_page() - return the first page of an object, to which its pins belong; 0 also if its manifest is lost. */
uint32_t object_page(const struct pool *pool, uint32_t number);

/* The pins of an OBJECT_PINNABLE object, as recorded in its readers' segments. */
struct object_pins {
	uint32_t holders;    /* sessions that pin the object, or have left an unsignaled fence there */
	uint32_t uses;       /* sum of the sessions' pin counts; wraps */
	uint32_t touched_ms; /* time of the last known use */
};
/*
 * object_pins_look() - read the pins of all readers. object_pinned() - return true if a session pins the object. Cost:
 * a check of each reader. object_uses_of() - return the pin count of one reader. object_leave() - check a CURRENT
 * object before its eviction. Return: true: it is LEAVING, and the caller must end it; false: a session pins it.
 * object_mark() - make a CURRENT object LEAVING, so that no pin succeeds until object_unmark().
 */
void object_pins_look(const struct pool *pool, uint32_t number, struct object_pins *pins);
bool object_pinned(const struct pool *pool, uint32_t number);
uint32_t object_uses_of(const struct pool *pool, uint32_t number, const struct session *session);
bool object_leave(struct pool *pool, uint32_t number);
void object_mark(struct pool *pool, uint32_t number);
void object_unmark(struct pool *pool, uint32_t number);

/*
 * object_worth_begin() - initialize the worth of an object that is added to the order, from the values that an earlier
 * agent stored in its record, or from the uses before its last eviction. object_worth_evicted() - keep these uses when
 * an object is evicted, so that an adapter that is loaded again is not treated as new. object_worth_learn() - update
 * the worth from the pins; true: it has increased. object_worth_reader() - exclude from the uses
 * the pins that a session counts while it does not have the object open; called when it opens or is about to close it.
 * object_worth_key() - return the key of the order; objects with lower keys are evicted first.
 */
void object_worth_begin(struct pool *pool, uint32_t number);
void object_worth_evicted(struct pool *pool, uint32_t number);
bool object_worth_learn(struct pool *pool, uint32_t number, const struct object_pins *pins);
void object_worth_reader(struct pool *pool, uint32_t number, const struct session *session, bool comes);
uint64_t object_worth_key(const struct pool *pool, uint32_t number);
/*
 * object_cost() - return the reload cost stated by the publisher, relative to reading the same number of bytes; 1: not
 * stated.
 */
float object_cost(const struct pool *pool, uint32_t number);

/*
 * object_order_look() - update the order after a change of the object's state or readers. object_order_touch() - record
 * that another session opens the object. object_order_look_at_pins() - check the pins of an object in the order.
 * objects_order_look_at_pins() - check the pins of all of them. object_order_open() - record whether a session pins the
 * object. object_order_evicted() - remove an evicted object from the order.
 */
void object_order_look(struct pool *pool, uint32_t number);
void object_order_touch(struct pool *pool, uint32_t number);
void object_order_look_at_pins(struct pool *pool, uint32_t number);
void objects_order_look_at_pins(struct pool *pool);
void object_order_open(struct pool *pool, uint32_t number, bool open);
void object_order_evicted(struct pool *pool, uint32_t number);
/*
 * object_order_next_...() - return the next object of a kind to evict; 0: none. object_order_aside() - skip an object
 * until object_order_back(), which restores all skipped objects.
 */
uint32_t object_order_next_ephemeral(const struct pool *pool);
uint32_t object_order_next_pinnable(const struct pool *pool);
void object_order_aside(struct pool *pool, uint32_t number);
void object_order_back(struct pool *pool);
/*
 * object_order_pinnables() - return the number of pinnable objects. object_order_idle_pages() - return the number of
 * evictable pages that belong to no tenant.
 */
uint32_t object_order_pinnables(const struct pool *pool);
/*
 * object_adapter_tier() - return the tier of an adapter's object, by the prefix of its name; OBJECT_ADAPTER_TIERS: not
 * an adapter. object_order_adapters() - return the number of pinnable objects of a tier.
 */
enum object_adapter_tier { OBJECT_ADAPTER_HOT, OBJECT_ADAPTER_WARM, OBJECT_ADAPTER_TIERS };
enum object_adapter_tier object_adapter_tier(const struct object_record *record);
uint32_t object_order_adapters(const struct pool *pool, enum object_adapter_tier tier);
uint32_t object_order_idle_pages(const struct pool *pool);
/*
 * object_order_offered_pages() - return the number of pages of all evictable objects with OBJECT_BY_PINS, which are
 * prefixes that no sequence uses.
 */
uint32_t object_order_offered_pages(const struct pool *pool);
/* object_followed() - return the object on which this one depends; 0: none. */
uint32_t object_followed(const struct pool *pool, uint32_t number);
/*
 * objects_sort() - store in objects->sorted the objects for which `in` returns true. They are sorted by version, so an
 * object is stored before those that follow it.
 */
uint32_t objects_sort(struct pool *pool, bool (*in)(const struct pool *pool, uint32_t number));
void objects_order_end(struct pool *pool);
/* object_forget() - unmap and close the manifest of an object. */
void object_forget(struct pool *pool, uint32_t number);

#endif
