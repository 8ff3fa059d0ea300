/*
 * offline.h - the tables of an agent that does not answer (it is dead, stopped or hung) or of a snapshot.
 *
 * The segments are mapped read-only, and the agent's replies are computed from them. Pages, owners and free runs are in
 * the pool segment. Idle, cached and used pages, pins and names of blocks are in the session segments, which are
 * untrusted: every field is read once, checked, and used only for pages that the pool segment assigns to that session.
 */
#ifndef GPOOL_TOOLS_POOLCTL_OFFLINE_H
#define GPOOL_TOOLS_POOLCTL_OFFLINE_H

#include "tools/poolctl/agent.h"
#include "tools/poolctl/view.h"

#include "proto/messages.h"

#include <stdlib.h>

struct offline;
struct pool_segment;
struct session_segment;

/*
 * offline_open() - open command->snapshot, or the keeper's segments; without --offline, open the segments that
 * pieces_gather() finds. Return: CODE_OK, or an exit code after an error message.
 */
int offline_open(const struct command *command, struct offline **offline);
void offline_close(struct offline *offline);

/* offline_pool() and others - return one pool's tables, by its index. NULL: the session's tables are not available. */
const struct pool_segment *offline_pool(const struct offline *offline, uint32_t index);
const char *offline_pool_name(const struct offline *offline, uint32_t index);
const struct session_segment *offline_session(const struct offline *offline, uint32_t index, uint32_t session);
/*
 * offline_session_name() - return a session's name as clean text. Return false if no session with this number is
 * attached.
 */
bool offline_session_name(
	const struct offline *offline, uint32_t index, uint32_t session, char name[64], uint32_t *pid);

uint64_t offline_time_ms(const struct offline *offline);
/* offline_print_source() - print one line that names the source of the tables. */
void offline_print_source(const struct command *command, const struct offline *offline);

/* The data of each verb. Functions return an exit code; CODE_USAGE if there is no pool command->pool. */
int offline_status(const struct command *command, const struct offline *offline, struct msg_status_reply *reply);
int offline_pages(const struct command *command, const struct offline *offline, struct pages_view *view);
int offline_pins(const struct command *command, const struct offline *offline, struct pins_view *view);
int offline_objects(const struct command *command, const struct offline *offline, struct objects_view *view);
int offline_clients(const struct command *command, const struct offline *offline, struct clients_view *view);
int offline_roles(const struct command *command, const struct offline *offline, struct roles_view *view);
/* offline_regions() - set the regions of view->client. */
int offline_regions(const struct command *command, const struct offline *offline, struct regions_view *view);
int offline_transfers(const struct command *command, const struct offline *offline, struct transfers_view *view);
/*
 * offline_pools() - return the pools selected by --pool: [first, first + count).
 * offline_check() - check one of them.
 */
int offline_pools(const struct command *command, const struct offline *offline, uint32_t *first, uint32_t *count);
int offline_check(const struct offline *offline, uint32_t index, bool quiescent, struct check_view *view);

/*
 * VIEW_FUNCTION() - define the function of a verb that shows a view. It attaches as an observer and requests the view
 * with ask(), or reads it with offline_NAME(), and prints it with NAME_json() or NAME_table(). The view has a list with
 * the same name.
 */
#define VIEW_FUNCTION(function, name, ask) \
	int function(const struct command *command) \
	{ \
		struct name##_view view = {.name = NULL}; \
		struct offline *offline = NULL; \
		struct gpool *pool = NULL; \
		int code = command->offline ? offline_open(command, &offline) \
					    : agent_open(command, GPOOL_OPEN_OBSERVER, &pool); \
\
		if (!code) \
			code = offline ? offline_##name(command, offline, &view) : ask(command, pool, &view); \
		gpool_close(pool); \
		if (!code && command->json) \
			name##_json(command, &view); \
		else if (!code) \
			name##_table(command, &view); \
		free(view.name); \
		offline_close(offline); \
		return code; \
	}

#endif
