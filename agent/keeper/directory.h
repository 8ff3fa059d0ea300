/*
 * directory.h - the runtime directory: the lock that makes gpoold the only one there, the sockets' places, and their
 * end.
 */
#ifndef GPOOL_AGENT_KEEPER_DIRECTORY_H
#define GPOOL_AGENT_KEEPER_DIRECTORY_H

#include "agent/config/config.h"

struct directory {
	const struct config *config;
	bool created;   /* by us: goes with us */
	bool locked;    /* ours; else nothing in it is */
	bool listening; /* the sockets are ours */
	int lock_fd;
	char attach[128];
	char front[128]; /* of the nanomsg sockets: the front's own */
	char control_url[160];
	char events_url[160];
	char pid_file[128];
};

/* directory_open() - make and lock it. -EBUSY: another gpoold serves there (logged with its pid). */
int directory_open(struct directory *directory, const struct config *config);
/* directory_close() - remove every file in it that is ours, and it too when we made it. */
void directory_close(struct directory *directory);

#endif
