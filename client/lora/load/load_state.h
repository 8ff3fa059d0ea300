/*
 * load_state.h - the states of an adapter in this process. Internal to client/lora.
 *
 *    COLD <-- error, eviction or end, from QUEUED, BEGUN, ENDING, DRAFT_ENDING and RESIDENT
 *      |  acquire, prefetch, claim                 acquire.c
 *    POSTPONED: with limits, until the load is decided; limits.c
 *      |
 *    QUEUED <------- BEGUN: the pool has no room
 *      |  taken by a loader thread                 loaders.c
 *    BEGUN --------> RESIDENT: another engine has published the object
 *      |  pages allocated                          load.c
 *    OPENING <-----> NEEDS_SOURCE
 *      |  source opened                   ^
 *    LISTED <------> MAKING, STARVED      |        turns.c
 *      |               |                  |
 *      |             FAILED --------------+
 *      |  all parts made
 *    MADE
 *      |  taken by a loader thread                 finish.c
 *    FINISHING ----> DRAFT <--> DRAFT_UNUSED --> DRAFT_ENDING --> RESIDENT
 *      |  not in use
 *    ENDING
 *      |  published
 *    HELD
 *      |  no caller waits
 *    RESIDENT
 *
 * load_state.c lists all transitions. load_set_state() is the only function that changes the state. It checks the
 * transition, and keeps the lists and counts that depend on the state. It is called under the lock of struct
 * gpool_lora.
 */
#ifndef GPOOL_CLIENT_LORA_LOAD_STATE_H
#define GPOOL_CLIENT_LORA_LOAD_STATE_H

#include <stdbool.h>

struct gpool_lora;
struct lora_entry;

/* From OPENING to DRAFT_UNUSED the pages have an address, and callers can acquire the adapter layer by layer. */
enum load_state {
	LOAD_COLD,
	LOAD_POSTPONED, /* a caller waits, but the limits leave no room, or no loader thread has taken the decision */
	LOAD_QUEUED,    /* in lora->queue, until a loader thread begins the load */
	LOAD_QUEUED_UNASKED, /* QUEUED for rebalance.c: no caller has asked for the adapter */
	LOAD_BEGUN,          /* a thread opens the object of another engine, or allocates pages */
	LOAD_BEGUN_UNASKED,  /* BEGUN for rebalance.c */
	LOAD_OPENING,        /* a thread opens a source */
	LOAD_NEEDS_SOURCE,   /* in lora->steps, until a loader thread opens the next source */
	LOAD_LISTED,         /* in lora->turns: parts are left that no thread makes; threads may be making others */
	LOAD_MAKING,         /* threads make or fetch the last parts */
	LOAD_STARVED,        /* parts are left, but the reader has no room until a thread returns a group */
	LOAD_FAILED,         /* a part has failed, and other threads are still making parts */
	LOAD_MADE,           /* complete or failed; in lora->steps until a loader thread ends the load */
	LOAD_FINISHING,      /* a loader thread checks the source; callers can still acquire the adapter */
	LOAD_DRAFT,          /* complete or failed, but in use, so that it cannot be published */
	LOAD_DRAFT_UNUSED,   /* in lora->drafts: like DRAFT, but no caller has it acquired; GPU work may still use it */
	LOAD_ENDING,         /* a thread publishes the object, or drops it */
	LOAD_DRAFT_ENDING,   /* ENDING of a draft */
	LOAD_HELD,           /* published, and pinned for the callers that wait for it */
	LOAD_RESIDENT,       /* published */
	LOAD_STATES
};

const char *load_state_name(enum load_state state);

/* load_state_allows() - return true if `to` may follow `from`. */
bool load_state_allows(enum load_state from, enum load_state to);

/*
 * load_set_state() - change the state of an adapter. This moves the entry between the lists of the two states, counts
 * loads in progress and loaded adapters, unpins an object for which no caller waits, and notifies the threads that wait
 * for the change. In debug builds, a transition that is not in the table ends the program.
 */
void load_set_state(struct gpool_lora *lora, struct lora_entry *entry, enum load_state state);

#endif
