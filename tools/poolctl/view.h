/*
 * view.h - a pool's tables in one form, whether they are from the agent's replies or from offline.c. Lists are
 * allocated with malloc(3) and belong to the caller.
 */
#ifndef GPOOL_TOOLS_POOLCTL_VIEW_H
#define GPOOL_TOOLS_POOLCTL_VIEW_H

#include "tools/poolctl/poolctl.h"

#include "proto/messages.h"

#include <stddef.h>

/* Pages [first, first + count) of one pool. */
struct pages_view {
	char pool[64];
	uint64_t page_bytes;
	uint32_t page_count; /* page count of the pool */
	uint32_t first, count;
	struct msg_page_entry *pages; /* [count] */
};

/* A pinned block or object of a pool. */
struct pin_view {
	char pool[64];
	uint64_t page_bytes;
	struct msg_pin_entry pin;
};

struct pins_view {
	uint32_t count, capacity;
	struct pin_view *pins;
};

struct clients_view {
	uint32_t count, capacity;
	struct msg_client_entry *clients;
};

/* The regions of one worker, in ascending order of address. */
struct regions_view {
	struct msg_client_entry client;
	struct msg_regions_reply head; /* the reply without its list */
	bool whole;                    /* nothing changed while the regions were read, so they are consistent */
	uint32_t damaged;              /* number of invalid entries */
	uint32_t count, capacity;
	struct msg_region_entry *regions;
};

/* A version of an object of a pool, from its record. */
struct object_view {
	char pool[64];
	uint64_t page_bytes;
	uint32_t number, state, memory_class, pages, allocations, readers, writer, uid, pid;
	uint32_t pins, flags, cost_us, follows;
	uint32_t domain; /* trust domain of its name; 0: the pool does not separate domains */
	uint64_t version, follows_version, layout_hash, metadata_bytes, published_ms;
	uint64_t used_ms, uses; /* of pinnable objects */
	char name[128], label[64], tenant[64], role[64];
	char domain_name[64]; /* empty if unknown */
};

/* A pool with adapters: its size, and the numbers of evicted adapters and copies of adapters. */
struct adapter_pool {
	char name[64];
	uint64_t bytes, adapter_evictions, copy_evictions;
};

struct objects_view {
	uint32_t count, capacity, pool_count, pool_capacity;
	struct object_view *objects;
	struct adapter_pool *pools; /* [pool_count] */
};

struct roles_view {
	uint32_t count, capacity;
	struct msg_role_entry *roles;
};

/*
 * The states of an entry: those of the agent, and one for offline use, when it is unknown whether the entry waits or is
 * being cleared.
 */
enum { TRANSFER_WAITS, TRANSFER_RETIRED, TRANSFER_CLEARED, TRANSFER_UNDER_WAY };

struct transfers_view {
	uint32_t count, capacity;
	struct msg_transfer_entry *transfers;
};

struct check_view {
	char pool[64];
	uint32_t pages, sessions, in_transit, found;
	uint32_t count; /* number of findings in the array, which has the first ones */
	struct msg_finding findings[128];
};

const char *usage_name(uint32_t usage); /* "KV_CACHE"; "?" for an unknown number */
const char *session_kind_name(uint32_t kind);
const char *object_class_name(uint32_t memory_class);
const char *object_state_name(uint32_t state);
struct pool_segment;
/* objects_add() - add all versions of objects in a pool's table. */
void objects_add(struct objects_view *view, const char *pool, const struct pool_segment *segment);
/*
 * objects.c: objects_look() - read the objects of all pools, or of the pool of --pool, sorted by pool, name and
 * version, with their pins. Return: an exit code.
 */
int objects_look(const struct command *command, struct objects_view *view);
/*
 * objects.c: objects_show() - read the objects, and print them with the printer for the requested format. Return: an
 * exit code.
 */
typedef void objects_printer(const struct command *command, const struct objects_view *view);
int objects_show(const struct command *command, objects_printer *table, objects_printer *json);
/*
 * objects_pins() - add up the pins by object.
 * pins.c: pins_ask_pool() - request the pins of a pool. Return: an exit code.
 */
void objects_pins(struct objects_view *view, const struct pins_view *pins);
struct gpool;
int pins_ask_pool(const struct command *command, struct gpool *pool, const struct msg_pool_status *status,
	struct pins_view *view);
void pins_add(struct pins_view *view, const char *pool, uint64_t page_bytes, const struct msg_pin_entry *pin);
/* list_grow() - make room for one more element of size `item` in a list. */
void *list_grow(void *list, uint32_t count, uint32_t *capacity, size_t item);

/*
 * clients.c: client_pick() - return the worker that `text` denotes: a session id, otherwise a process id, otherwise a
 * name.
 *
 * Return: CODE_OK, or CODE_USAGE after an error message: no worker, several workers, or not a worker.
 */
int client_pick(const struct command *command, const struct clients_view *view, const char *text,
	struct msg_client_entry *client);

#endif
