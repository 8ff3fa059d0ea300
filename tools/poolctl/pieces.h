/*
 * pieces.h - an agent's shared segments as descriptors, obtained without the agent: from its keeper, or from a
 * snapshot.
 *
 * A piece is a sealed memfd that has not been read yet; its content is untrusted until checked. Functions that fail
 * print an error message and return an exit code.
 */
#ifndef GPOOL_TOOLS_POOLCTL_PIECES_H
#define GPOOL_TOOLS_POOLCTL_PIECES_H

#include "tools/poolctl/poolctl.h"

#include <sys/types.h>

enum piece_kind { PIECE_POOL = 1, PIECE_SESSION = 2 };
enum { PIECE_POOLS_MAX = 32 }; /* maximum number of pools of an agent */

struct piece {
	uint32_t kind; /* enum piece_kind */
	uint32_t pool;
	uint32_t session; /* 0 for a pool segment */
	int fd;
};

struct pieces {
	struct piece *list; /* sorted by pool, each pool before its sessions; without duplicates */
	uint32_t count, capacity;
	uint64_t time_ms; /* wall clock time of opening */
	pid_t keeper;     /* 0: from a snapshot */
};

/*
 * pieces_from_keeper() - open, through /proc, the descriptors of the gpoold of command->directory.
 *
 * Return: CODE_OK, CODE_NO_AGENT (no gpoold is running), CODE_FAILED (not permitted, or the process holds no pool).
 */
int pieces_from_keeper(const struct command *command, struct pieces *pieces);
/*
 * gather.c: pieces_gather() - open all pieces, for root and, with core_dumps, for gpoold's own user; for other users,
 * open only the pools, through the agent.
 */
int pieces_gather(const struct command *command, struct pieces *pieces);
void pieces_close(struct pieces *pieces);
/* pieces_add() - take over a descriptor. It is closed if the piece is already in the list. */
void pieces_add(struct pieces *pieces, enum piece_kind kind, uint32_t pool, uint32_t session, int fd);
void pieces_sort(struct pieces *pieces);

/*
 * keeper_pid() - return the pid in DIR/gpoold.pid, or -ENOENT (no such file), -EACCES, -EBADMSG (not a number), -ESRCH
 * (no such process).
 */
pid_t keeper_pid(const char *directory);

/* snapshot.c: snapshot_write(), snapshot_read() - write or read a snapshot, in the format described in poolctl(1). */
int snapshot_write(const char *path, const struct pieces *pieces);
int snapshot_read(const char *path, struct pieces *pieces);

#endif
