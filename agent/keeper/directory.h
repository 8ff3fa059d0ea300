/*
 * directory.h - the runtime directory: a lock that admits a single gpoold, and the paths of the sockets.
 */
#ifndef GPOOL_AGENT_KEEPER_DIRECTORY_H
#define GPOOL_AGENT_KEEPER_DIRECTORY_H

#include "agent/config/config.h"

struct directory {
	const struct config *config;
	bool created;   /* this process created it, and removes it at its end */
	bool locked;    /* this process holds the lock; otherwise no file in the directory belongs to it */
	bool listening; /* the sockets belong to this process */
	int lock_fd;
	char attach[128];
	char front[128]; /* directory of the nanomsg sockets, owned by the front */
	char control_url[160];
	char events_url[160];
	char pid_file[128];
};

/*
 * directory_check() - check that this process can use the runtime directory and its names. Nothing that it creates is
 * left. directory_open() begins with this check. Return: 0, or a negative errno with error->text set.
 */
int directory_check(const struct config *config, struct config_error *error);

/*
 * directory_open() - create and lock the directory. Return: 0; -EBUSY: another gpoold uses it (its pid was logged); or
 * another negative errno.
 */
int directory_open(struct directory *directory, const struct config *config);
/* directory_close() - remove the files that this process created, and the directory if this process created it. */
void directory_close(struct directory *directory);

#endif
