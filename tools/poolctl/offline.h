/*
 * offline.h - the tables of an agent that does not answer: it is dead, stopped or hung, or there is only a snapshot.
 *
 * The segments are mapped read-only, and the replies of the agent computed from them. Pages, owners and free runs come
 * from the pool segment; idle, cached and used pages, pins and names of blocks from the session segments, which are
 * untrusted: every field is read once, checked, and used only for pages that the pool segment assigns to that session.
 */
#ifndef GPOOL_TOOLS_POOLCTL_OFFLINE_H
#define GPOOL_TOOLS_POOLCTL_OFFLINE_H

#include "tools/poolctl/view.h"

#include "proto/messages.h"

#include <stdlib.h>

struct offline;
struct pool_segment;
struct session_segment;

/*
 * offline_open() - open command->snapshot, the keeper's segments, or, without --offline, those that pieces_gather()
 * finds. Return: CODE_OK, or an exit code after a complaint.
 */
int offline_open(const struct command *command, struct offline **offline);
void offline_close(struct offline *offline);

/* offline_pool() and others - return one pool's tables, by its index; NULL: the session's are not available. */
const struct pool_segment *offline_pool(const struct offline *offline, uint32_t index);
const char *offline_pool_name(const struct offline *offline, uint32_t index);
const struct session_segment *offline_session(const struct offline *offline, uint32_t index, uint32_t session);
/* offline_session_name() - return a session's name as clean text; false: no session of this number is attached. */
bool offline_session_name(
	const struct offline *offline, uint32_t index, uint32_t session, char name[64], uint32_t *pid);

uint64_t offline_time_ms(const struct offline *offline);
/* offline_print_source() - print one line with the source of the tables. */
void offline_print_source(const struct command *command, const struct offline *offline);

/* The content of verbs; each returns an exit code, CODE_USAGE if no pool has command->pool's name. */
int offline_status(const struct command *command, const struct offline *offline, struct msg_status_reply *reply);
int offline_pages(const struct command *command, const struct offline *offline, struct pages_view *view);
int offline_pins(const struct command *command, const struct offline *offline, struct pins_view *view);
int offline_objects(const struct command *command, const struct offline *offline, struct objects_view *view);
int offline_clients(const struct command *command, const struct offline *offline, struct clients_view *view);
int offline_roles(const struct command *command, const struct offline *offline, struct roles_view *view);
/* offline_regions() - fill in the regions of view->client. */
int offline_regions(const struct command *command, const struct offline *offline, struct regions_view *view);
int offline_transfers(const struct command *command, const struct offline *offline, struct transfers_view *view);
/*
 * offline_pools() - return the pools selected by --pool: [first, first + count). offline_check() - check one of them.
 */
int offline_pools(const struct command *command, const struct offline *offline, uint32_t *first, uint32_t *count);
int offline_check(const struct offline *offline, uint32_t index, bool quiescent, struct check_view *view);

/*
 * VIEW_FUNCTION() - define a function of a verb that shows a view: it requests the view from the agent by NAME_ask() or
 * reads it by offline_NAME(), and prints it by NAME_json() or NAME_table(). The view's list has the same name.
 */
#define VIEW_FUNCTION(function, name) \
	int function(const struct command *command) \
	{ \
		struct name##_view view = {.name = NULL}; \
		struct offline *offline = NULL; \
		int code = command->offline ? offline_open(command, &offline) : name##_ask(command, &view); \
\
		if (!code && offline) \
			code = offline_##name(command, offline, &view); \
		if (!code && command->json) \
			name##_json(command, &view); \
		else if (!code) \
			name##_table(command, &view); \
		free(view.name); \
		offline_close(offline); \
		return code; \
	}

#endif
