/*
 * pieces.h - the shared segments of an agent as descriptors, without asking it: from its keeper, or from a snapshot.
 *
 * A piece is a sealed memfd that has not been read yet; everything in it is hostile until checked. Functions
 * that fail have complained already and return an exit code.
 */
#ifndef GPOOL_TOOLS_POOLCTL_PIECES_H
#define GPOOL_TOOLS_POOLCTL_PIECES_H

#include "tools/poolctl/poolctl.h"

#include <sys/types.h>

enum piece_kind { PIECE_POOL = 1, PIECE_SESSION = 2 };
enum { PIECE_POOLS_MAX = 32 }; /* as many as an agent can have */

struct piece {
	uint32_t kind; /* enum piece_kind */
	uint32_t pool;
	uint32_t session; /* 0 for a pool */
	int fd;
};

struct pieces {
	struct piece *list; /* sorted by pool, a pool before its sessions; none twice */
	uint32_t count, capacity;
	uint64_t time_ms; /* wall clock of the look */
	pid_t keeper;     /* 0: a snapshot */
};

/*
 * pieces_from_keeper() - re-open what the gpoold of command->directory holds, through /proc.
 * Return: CODE_OK, CODE_NO_AGENT (no gpoold runs there), CODE_FAILED (not permitted, or its process holds no pool).
 */
int pieces_from_keeper(const struct command *command, struct pieces *pieces);
/*
 * gather.c: pieces_gather() - as root or gpoold's own user all of them, as others the pools alone, through the agent.
 */
int pieces_gather(const struct command *command, struct pieces *pieces);
void pieces_close(struct pieces *pieces);
/* pieces_add() - takes over the descriptor, and closes it when the piece is known already. */
void pieces_add(struct pieces *pieces, enum piece_kind kind, uint32_t pool, uint32_t session, int fd);
void pieces_sort(struct pieces *pieces);

/*
 * keeper_pid() - the process named by DIR/gpoold.pid, or -ENOENT (no such file), -EACCES, -EBADMSG (no number), -ESRCH
 * (dead).
 */
pid_t keeper_pid(const char *directory);

/* snapshot.c: poolctl(1) documents the format. */
int snapshot_write(const char *path, const struct pieces *pieces);
int snapshot_read(const char *path, struct pieces *pieces);

#endif
