/*
 * view.h - a pool's tables in one form, wherever they come from: the agent's answers, or offline.c's own look.
 *
 * All lists are malloc()ed and belong to the caller.
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
	uint32_t page_count; /* of the pool */
	uint32_t first, count;
	struct msg_page_entry *pages; /* [count] */
};

/* A pinned block of some pool. */
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

struct roles_view {
	uint32_t count, capacity;
	struct msg_role_entry *roles;
};

struct check_view {
	char pool[64];
	uint32_t pages, sessions, in_transit, found;
	uint32_t count; /* of the findings told: the first ones */
	struct msg_finding findings[128];
};

const char *content_name(uint32_t content); /* "KV_CACHE"; "?" for a number that is none */
const char *role_name(uint32_t role);
void pins_add(struct pins_view *view, const char *pool, uint64_t page_bytes, const struct msg_pin_entry *pin);
/* Grow a list so that one more fits; `item` is its element's size. */
void *list_grow(void *list, uint32_t count, uint32_t *capacity, size_t item);

#endif
