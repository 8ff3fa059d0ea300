/*
 * agent_process.h - a gpoold of our own in a fresh folder, and its end without leftovers.
 */
#ifndef GPOOL_TOOLS_LIB_AGENT_PROCESS_H
#define GPOOL_TOOLS_LIB_AGENT_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct agent_process {
	pid_t pid;          /* 0: none */
	char root[64];      /* the fresh folder */
	char directory[80]; /* in it: the agent's sockets */
	char log[80];       /* in it: what the agent says */
};

/*
 * agent_process_program() - path of gpoold: $GPOOLD, beside this program, or in the sbin beside its bin. Return: 0 or
 * -ENOENT.
 */
int agent_process_program(char *path, size_t path_bytes);

/*
 * agent_process_start() - make the folder and start gpoold.
 * @name: of the folder, before the six characters that make it a new one
 * @pools: [count] as after --pool
 * @setting: as after --set; NULL: none
 * @detached: it shall live on when this process ends
 * Return: 0, or what mkdtemp, open and fork said. That gpoold cannot run shows at the first agent_process_ended().
 */
int agent_process_start(struct agent_process *agent, const char *name, const char *gpoold, const char *const *pools,
	size_t count, const char *setting, bool detached);

/* agent_process_ended() - has it ended by itself? *status is then as of waitpid(). */
bool agent_process_ended(struct agent_process *agent, int *status);

/* agent_process_log_tail() - the last lines of what it said. */
void agent_process_log_tail(const struct agent_process *agent, char *text, size_t text_bytes);

/*
 * agent_process_stop() - SIGTERM, wait, remove the folder. Does nothing when there is none.
 * @complaint: receives what was wrong with its end, or ""
 */
void agent_process_stop(struct agent_process *agent, char *complaint, size_t complaint_bytes);

/* child_prepare() - in a child before exec: default signals, no descriptors but 0 to 2 and `keep` (-1: none).
 * Async-signal-safe.
 */
void child_prepare(int keep);

#endif
