/* gather.c - obtain the shared segments: from the keeper, or from the agent if the keeper's are not permitted. */
#include "shm/plural.h"
#include "tools/poolctl/agent.h"
#include "tools/poolctl/pieces.h"

#include "client/core/request.h"
#include "shm/pool_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Create a piece with a copy of one pool's tables: a session has a mapping of them, but no descriptor. */
static int piece_from_session(const struct gpool *pool, struct pieces *pieces)
{
	const struct pool_segment *segment = pool_view(pool);
	const char *from = (const char *)segment->header;
	int fd = memfd_create("snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		goto fail;
	for (size_t at = 0; at < segment->bytes;) {
		ssize_t written = write(fd, from + at, segment->bytes - at);

		if (written <= 0)
			goto fail;
		at += (size_t)written;
	}
	/* Seal the memfd, so that it passes the same checks as other pieces. */
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0)
		goto fail;
	pieces_add(pieces, PIECE_POOL, segment->header->index % PIECE_POOLS_MAX, 0, fd);
	return CODE_OK;
fail:
	complain("cannot copy the table of a pool, %zu byte%s: %s", segment->bytes, plural(segment->bytes),
		strerror(errno));
	if (fd >= 0)
		close(fd);
	return CODE_FAILED;
}

/* Open the pool segments as an observer of each pool, which does not need root. */
static int pieces_from_agent(const struct command *command, struct pieces *pieces)
{
	static struct msg_status_reply status;
	struct command one = *command;
	struct timespec now;
	struct gpool *pool;
	int code = agent_open(command, GPOOL_OPEN_OBSERVER, &pool);

	if (code)
		return code;
	code = agent_status(command, pool, &status);
	gpool_close(pool);
	for (uint32_t i = 0; !code && i < status.pools_count; i++) {
		if (command->pool && strcmp(command->pool, status.pools[i].name))
			continue;
		one.pool = status.pools[i].name;
		code = agent_open(&one, GPOOL_OPEN_OBSERVER, &pool);
		if (code)
			break;
		code = piece_from_session(pool, pieces);
		gpool_close(pool);
	}
	clock_gettime(CLOCK_REALTIME, &now);
	pieces->time_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	return code;
}

/*
 * Return true if the keeper's descriptors can be read: by root, and, with core_dumps, by gpoold's own user. For root, a
 * failure is reported later.
 */
static bool keeper_readable(const char *directory)
{
	pid_t keeper = keeper_pid(directory);
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)keeper);
	return geteuid() == 0 || (keeper > 0 && access(path, R_OK | X_OK) == 0);
}

static bool piece_is_of(const struct piece *piece, const char *name)
{
	struct pool_segment segment;
	bool is;

	if (piece->kind != PIECE_POOL || pool_segment_open(piece->fd, &segment))
		return false;
	is = !strncmp(segment.header->name, name, sizeof(segment.header->name));
	pool_segment_close(&segment);
	return is;
}

/* Keep only one pool and its sessions. */
static int pieces_choose(const struct command *command, struct pieces *pieces)
{
	uint32_t pool = PIECE_POOLS_MAX, kept = 0;

	for (uint32_t i = 0; i < pieces->count && pool == PIECE_POOLS_MAX; i++)
		if (piece_is_of(&pieces->list[i], command->pool))
			pool = pieces->list[i].pool;
	if (pool == PIECE_POOLS_MAX) {
		complain("the gpoold in '%s' has no pool '%s'; 'poolctl status' lists its pools", command->directory,
			command->pool);
		pieces_close(pieces);
		return CODE_USAGE;
	}
	for (uint32_t i = 0; i < pieces->count; i++) {
		if (pieces->list[i].pool == pool)
			pieces->list[kept++] = pieces->list[i];
		else
			close(pieces->list[i].fd);
	}
	pieces->count = kept;
	return CODE_OK;
}

int pieces_gather(const struct command *command, struct pieces *pieces)
{
	int code;

	if (!keeper_readable(command->directory))
		return pieces_from_agent(command, pieces);
	code = pieces_from_keeper(command, pieces);
	return code || !command->pool ? code : pieces_choose(command, pieces);
}
