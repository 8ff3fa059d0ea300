/*
 * directory.h - the runtime directory: a lock, so that only one gpoold uses it, and the paths of the sockets.
 */
#ifndef GPOOL_AGENT_KEEPER_DIRECTORY_H
#define GPOOL_AGENT_KEEPER_DIRECTORY_H

#include "agent/config/config.h"

struct directory {
	const struct config *config;
	bool created;   /* by this process, which removes it at its end */
	bool locked;    /* by this process; otherwise no file in it belongs to this process */
	bool listening; /* the sockets belong to this process */
	int lock_fd;
	char attach[128];
	char front[128]; /* directory of the nanomsg sockets; it belongs to the front */
	char control_url[160];
	char events_url[160];
	char pid_file[128];
};

/* directory_open() - create and lock the directory. -EBUSY: another gpoold uses it (logged with its pid). */
int directory_open(struct directory *directory, const struct config *config);
/* directory_close() - remove the files that this process created, and the directory if this process created it. */
void directory_close(struct directory *directory);

#endif
