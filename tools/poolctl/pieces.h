/*
 * pieces.h - the shared segments of an agent as descriptors, without a request to it: from its keeper, or from a
 * snapshot.
 *
 * A piece is a sealed memfd that has not been read yet; its content is untrusted until checked. Functions that fail
 * print a complaint and return an exit code.
 */
#ifndef GPOOL_TOOLS_POOLCTL_PIECES_H
#define GPOOL_TOOLS_POOLCTL_PIECES_H

#include "tools/poolctl/poolctl.h"

#include <sys/types.h>

enum piece_kind { PIECE_POOL = 1, PIECE_SESSION = 2 };
enum { PIECE_POOLS_MAX = 32 }; /* the maximum of an agent */

struct piece {
	uint32_t kind; /* enum piece_kind */
	uint32_t pool;
	uint32_t session; /* 0 for a pool */
	int fd;
};

struct pieces {
	struct piece *list; /* sorted by pool, a pool before its sessions; without duplicates */
	uint32_t count, capacity;
	uint64_t time_ms; /* wall clock time at which they were opened */
	pid_t keeper;     /* 0: a snapshot */
};

/*
 * pieces_from_keeper() - open the descriptors that the gpoold of command->directory holds, through /proc.
 *
 * Return: CODE_OK, CODE_NO_AGENT (no gpoold runs there), CODE_FAILED (not permitted, or its process holds no pool).
 */
int pieces_from_keeper(const struct command *command, struct pieces *pieces);
/*
 * gather.c: pieces_gather() - open all pieces as root or gpoold's own user; as another user only the pools, through the
 * agent.
 */
int pieces_gather(const struct command *command, struct pieces *pieces);
void pieces_close(struct pieces *pieces);
/* pieces_add() - take over a descriptor, and close it if the piece is already in the list. */
void pieces_add(struct pieces *pieces, enum piece_kind kind, uint32_t pool, uint32_t session, int fd);
void pieces_sort(struct pieces *pieces);

/*
 * keeper_pid() - return the process named by DIR/gpoold.pid, or -ENOENT (no such file), -EACCES, -EBADMSG (not a
 * number), -ESRCH (dead).
 */
pid_t keeper_pid(const char *directory);

/* snapshot.c: snapshot_write(), snapshot_read() - write or read a snapshot; poolctl(1) documents the format. */
int snapshot_write(const char *path, const struct pieces *pieces);
int snapshot_read(const char *path, struct pieces *pieces);

#endif
