/* agent_process.h - start gpoold in a new folder, and stop it and remove the folder. */
#ifndef GPOOL_TOOLS_LIB_AGENT_PROCESS_H
#define GPOOL_TOOLS_LIB_AGENT_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct agent_process {
	pid_t pid;          /* 0: none */
	char root[64];      /* the new folder */
	char directory[80]; /* in `root`: folder of the agent's sockets */
	char log[80];       /* in `root`: log of gpoold */
};

/*
 * agent_process_program() - return the path of gpoold: $GPOOLD, or gpoold next to this program, or in the sbin next to
 * this program's bin. Return: 0 or -ENOENT.
 */
int agent_process_program(char *path, size_t path_bytes);

/*
 * agent_process_start() - create the folder and start gpoold.
 *
 * @name:     prefix of the folder's name, followed by six characters
 * @pools:    [count] arguments of --pool
 * @setting:  argument of --set; NULL: none
 * @detached: gpoold keeps running when this process ends
 *
 * Return: 0, -EINVAL (too many pools), or the errno of mkdtemp or fork. If gpoold or its log cannot be opened, the
 * first agent_process_ended() reports it.
 */
int agent_process_start(struct agent_process *agent, const char *name, const char *gpoold, const char *const *pools,
	size_t count, const char *setting, bool detached);

/* agent_process_ended() - return true if gpoold has ended; *status is then the status of waitpid(2). */
bool agent_process_ended(struct agent_process *agent, int *status);

/* agent_process_log_tail() - return the last lines of gpoold's log. */
void agent_process_log_tail(const struct agent_process *agent, char *text, size_t text_bytes);

/*
 * agent_process_stop() - send SIGTERM, wait (SIGKILL follows after 10 s), and remove the folder. If gpoold has ended,
 * only remove the folder.
 *
 * @complaint: receives the errors of the shutdown, or ""
 */
void agent_process_stop(struct agent_process *agent, char *complaint, size_t complaint_bytes);

#endif
