/* pieces.c - find the keeper, and open the segments through its descriptors. */
#include "tools/poolctl/pieces.h"
#include "tools/poolctl/view.h"

#include "shm/pool_segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void pieces_close(struct pieces *pieces)
{
	for (uint32_t i = 0; i < pieces->count; i++)
		close(pieces->list[i].fd);
	free(pieces->list);
	memset(pieces, 0, sizeof(*pieces));
}

void pieces_add(struct pieces *pieces, enum piece_kind kind, uint32_t pool, uint32_t session, int fd)
{
	pieces->list = list_grow(pieces->list, pieces->count, &pieces->capacity, sizeof(*pieces->list));
	pieces->list[pieces->count++] = (struct piece){kind, pool, session, fd};
}

static int piece_compare(const void *a, const void *b)
{
	const struct piece *one = a, *two = b;

	if (one->pool != two->pool)
		return one->pool < two->pool ? -1 : 1;
	if (one->session != two->session)
		return one->session < two->session ? -1 : 1;
	return 0;
}

/*
 * Remove duplicates: a keeper may hold a segment by two descriptors, one to write and one to pass to other processes.
 */
void pieces_sort(struct pieces *pieces)
{
	uint32_t kept = 0;

	if (pieces->count)
		qsort(pieces->list, pieces->count, sizeof(*pieces->list), piece_compare);
	for (uint32_t i = 0; i < pieces->count; i++) {
		if (kept && !piece_compare(&pieces->list[kept - 1], &pieces->list[i]))
			close(pieces->list[i].fd);
		else
			pieces->list[kept++] = pieces->list[i];
	}
	pieces->count = kept;
}

pid_t keeper_pid(const char *directory)
{
	char path[PATH_MAX], text[32] = "";
	uint64_t pid;
	ssize_t length;
	int fd;

	if (snprintf(path, sizeof(path), "%s/gpoold.pid", directory) >= (int)sizeof(path))
		return -ENOENT;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return -EBADMSG;
	text[strcspn(text, "\n")] = '\0';
	if (!number_parse(text, 1, INT_MAX, &pid))
		return -EBADMSG;
	if (kill((pid_t)pid, 0) < 0 && errno == ESRCH)
		return -ESRCH;
	return (pid_t)pid;
}

/* Parse "/memfd:gpool-pool-0 (deleted)" or "/memfd:gpool-session-0-17 (deleted)". */
static bool piece_name_parse(const char *name, enum piece_kind *kind, uint32_t *pool, uint32_t *session)
{
	static const char pool_prefix[] = "/memfd:gpool-pool-", session_prefix[] = "/memfd:gpool-session-",
			  suffix[] = " (deleted)";
	char text[64];
	size_t length = strlen(name);
	uint64_t pool_number, session_number = 0;
	char *dash;

	if (length >= sizeof(text) || length < strlen(suffix) || strcmp(name + length - strlen(suffix), suffix))
		return false;
	strcpy(text, name);
	text[length - strlen(suffix)] = '\0';
	if (!strncmp(text, pool_prefix, strlen(pool_prefix))) {
		*kind = PIECE_POOL;
		if (!number_parse(text + strlen(pool_prefix), 0, PIECE_POOLS_MAX - 1, &pool_number))
			return false;
	} else if (!strncmp(text, session_prefix, strlen(session_prefix))) {
		*kind = PIECE_SESSION;
		dash = strchr(text + strlen(session_prefix), '-');
		if (!dash)
			return false;
		*dash = '\0';
		if (!number_parse(text + strlen(session_prefix), 0, PIECE_POOLS_MAX - 1, &pool_number) ||
			!number_parse(dash + 1, 1, PAGE_SESSION_MAX, &session_number))
			return false;
	} else {
		return false;
	}
	*pool = (uint32_t)pool_number;
	*session = (uint32_t)session_number;
	return true;
}

static int piece_open(struct pieces *pieces, int directory, const char *entry)
{
	uint32_t pool, session;
	enum piece_kind kind;
	char name[64];
	ssize_t length = readlinkat(directory, entry, name, sizeof(name) - 1);
	int fd;

	if (length < 0)
		return 0; /* closed in the meantime */
	name[length] = '\0';
	if (!piece_name_parse(name, &kind, &pool, &session))
		return 0;
	fd = openat(directory, entry, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	pieces_add(pieces, kind, pool, session, fd);
	return 0;
}

/* Raise the limit of descriptors: this process, too, needs one per session. */
static void descriptors_raise(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int pieces_scan(struct pieces *pieces, pid_t keeper)
{
	char path[64];
	struct dirent *entry;
	DIR *directory;
	int error = 0;

	descriptors_raise();
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)keeper);
	directory = opendir(path);
	if (!directory)
		return -errno;
	while (!error && (entry = readdir(directory)))
		error = piece_open(pieces, dirfd(directory), entry->d_name);
	closedir(directory);
	return error;
}

static int keeper_complain(const char *directory, int error)
{
	switch (error) {
	case -ENOENT:
		complain("'%s/gpoold.pid' does not exist: no gpoold runs there; set its directory with --dir, or read "
			 "a snapshot of 'poolctl dump' with --offline SNAPSHOT",
			directory);
		return CODE_NO_AGENT;
	case -ESRCH:
		complain("the process of '%s/gpoold.pid' has ended, so its pools cannot be read; start gpoold, or read "
			 "a snapshot of 'poolctl dump' with --offline SNAPSHOT",
			directory);
		return CODE_NO_AGENT;
	case -EBADMSG:
		complain("'%s/gpoold.pid' does not contain a process ID; check that --dir is the directory of gpoold",
			directory);
		return CODE_FAILED;
	default:
		complain("cannot read '%s/gpoold.pid': %s; try as root", directory, strerror(-error));
		return CODE_FAILED;
	}
}

int pieces_from_keeper(const struct command *command, struct pieces *pieces)
{
	struct timespec now;
	int error;

	memset(pieces, 0, sizeof(*pieces));
	pieces->keeper = keeper_pid(command->directory);
	if (pieces->keeper < 0)
		return keeper_complain(command->directory, pieces->keeper);
	clock_gettime(CLOCK_REALTIME, &now);
	pieces->time_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	error = pieces_scan(pieces, pieces->keeper);
	if (error) {
		complain("cannot open the descriptors of process %d, the gpoold of '%s/gpoold.pid': %s%s",
			(int)pieces->keeper, command->directory, strerror(-error),
			error == -EACCES || error == -EPERM ? "; try as root" : "");
		pieces_close(pieces);
		return CODE_FAILED;
	}
	pieces_sort(pieces);
	if (!pieces->count || pieces->list[0].kind != PIECE_POOL) {
		complain("process %d of '%s/gpoold.pid' has no pool: the file is stale, or gpoold is still starting",
			(int)pieces->keeper, command->directory);
		pieces_close(pieces);
		return CODE_NO_AGENT;
	}
	return CODE_OK;
}
