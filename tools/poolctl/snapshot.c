/*
 * snapshot.c - write segments to a file, and read them.
 *
 *   file     magic "GPOOLSN1", u32 version 1, u32 number of segments, u64 wall clock in milliseconds since 1970
 *   segment  u32 kind (1 pool, 2 session), u32 pool, u32 session, u32 zero, u64 bytes; then runs
 *   run      u64 offset, u64 length, then the bytes; a run of length 0 ends the segment; bytes outside of all runs are
 *            zero
 *
 * Numbers have the byte order of the machine, like the segments. Runs are in ascending order and do not overlap. A
 * reader copies each segment into a sealed memfd, so that the same checks apply as to segments of a running agent.
 */
#include "tools/poolctl/pieces.h"
#include "tools/lib/replace.h"

#include "shm/session_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

static const char magic[8] = {'G', 'P', 'O', 'O', 'L', 'S', 'N', '1'};

enum { SNAPSHOT_VERSION = 1, COPY_BYTES = 64 << 10 };

struct snapshot_header {
	char magic[8];
	uint32_t version;
	uint32_t segments;
	uint64_t time_ms;
};

struct snapshot_segment {
	uint32_t kind, pool, session, zero;
	uint64_t bytes;
};

struct snapshot_run {
	uint64_t offset, length;
};

/*
 * Write a part of a segment to the file. A worker may change the segment during the write; the old or the new data is
 * written.
 */
static int run_write(FILE *file, int fd, uint64_t offset, uint64_t length)
{
	static char buffer[COPY_BYTES];
	struct snapshot_run run = {offset, length};

	if (fwrite(&run, sizeof(run), 1, file) != 1)
		return -EIO;
	while (length) {
		ssize_t got = pread(fd, buffer, length < sizeof(buffer) ? length : sizeof(buffer), (off_t)offset);

		if (got <= 0)
			return got ? -errno : -EBADMSG;
		if (fwrite(buffer, 1, (size_t)got, file) != (size_t)got)
			return -EIO;
		offset += (uint64_t)got;
		length -= (uint64_t)got;
	}
	return 0;
}

static int segment_write(FILE *file, const struct piece *piece)
{
	struct snapshot_segment segment = {piece->kind, piece->pool, piece->session, 0, 0};
	static const struct snapshot_run end;
	off_t at = 0, hole;
	struct stat stat;
	int error;

	if (fstat(piece->fd, &stat) < 0)
		return -errno;
	segment.bytes = (uint64_t)stat.st_size;
	if (fwrite(&segment, sizeof(segment), 1, file) != 1)
		return -EIO;
	/* the size is sealed; pages that were never written are holes */
	while ((at = lseek(piece->fd, at, SEEK_DATA)) >= 0 && at < stat.st_size) {
		hole = lseek(piece->fd, at, SEEK_HOLE);
		if (hole < 0)
			return -errno;
		error = run_write(file, piece->fd, (uint64_t)at, (uint64_t)(hole - at));
		if (error)
			return error;
		at = hole;
	}
	if (at < 0 && errno != ENXIO)
		return -errno;
	return fwrite(&end, sizeof(end), 1, file) == 1 ? 0 : -EIO;
}

static int pieces_write(FILE *file, const struct pieces *pieces)
{
	struct snapshot_header header = {
		.version = SNAPSHOT_VERSION, .segments = pieces->count, .time_ms = pieces->time_ms};
	int error = 0;

	memcpy(header.magic, magic, sizeof(magic));
	if (fwrite(&header, sizeof(header), 1, file) != 1)
		return -EIO;
	for (uint32_t i = 0; i < pieces->count && !error; i++)
		error = segment_write(file, &pieces->list[i]);
	if (!error && (fflush(file) || fsync(fileno(file)) < 0))
		error = -errno;
	return error;
}

int snapshot_write(const char *path, const struct pieces *pieces)
{
	struct replacement replacement;
	int error;

	if (replacement_open(path, &replacement))
		return CODE_FAILED;
	errno = 0;
	error = pieces_write(replacement.file, pieces);
	if (error == -EIO && errno)
		error = -errno;
	error = replacement_end(&replacement, path, error);
	if (error)
		complain("cannot write the snapshot '%s': %s", path, strerror(-error));
	return error ? CODE_FAILED : CODE_OK;
}

/* ---- reading ---- */

static int exactly(FILE *file, void *buffer, size_t bytes)
{
	return fread(buffer, 1, bytes, file) == bytes ? 0 : -EBADMSG;
}

/* Read the runs of one segment into a memfd of its size. */
static int runs_read(FILE *file, int fd, uint64_t bytes)
{
	static char buffer[COPY_BYTES];
	struct snapshot_run run;
	uint64_t at = 0;

	for (;;) {
		if (exactly(file, &run, sizeof(run)))
			return -EBADMSG;
		if (!run.length)
			return 0;
		if (run.offset < at || run.offset > bytes || run.length > bytes - run.offset)
			return -EBADMSG;
		at = run.offset;
		while (run.length) {
			size_t part = run.length < sizeof(buffer) ? (size_t)run.length : sizeof(buffer);

			if (exactly(file, buffer, part))
				return -EBADMSG;
			if (pwrite(fd, buffer, part, (off_t)at) != (ssize_t)part)
				return -ENOMEM;
			at += part;
			run.length -= part;
		}
	}
}

static int segment_read(FILE *file, struct pieces *pieces, uint64_t *bytes_left)
{
	struct snapshot_segment segment;
	char name[64];
	int fd, error;

	if (exactly(file, &segment, sizeof(segment)) || segment.zero || segment.pool >= PIECE_POOLS_MAX ||
		!((segment.kind == PIECE_POOL && !segment.session) ||
			(segment.kind == PIECE_SESSION && segment.session && segment.session <= PAGE_SESSION_MAX)))
		return -EBADMSG;
	/* a small file may describe large holes, which need memory when they are read */
	if (segment.bytes > *bytes_left)
		return -EFBIG;
	*bytes_left -= segment.bytes;
	snprintf(name, sizeof(name), "snapshot-%" PRIu32 "-%" PRIu32, segment.pool, segment.session);
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)segment.bytes) < 0)
		error = -errno;
	else
		error = runs_read(file, fd, segment.bytes);
	if (!error && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0)
		error = -errno;
	if (error) {
		close(fd);
		return error;
	}
	pieces_add(pieces, segment.kind, segment.pool, segment.session, fd);
	return 0;
}

static int file_read(FILE *file, struct pieces *pieces)
{
	struct snapshot_header header;
	struct sysinfo info;
	uint64_t bytes_left;
	int error = 0;

	if (exactly(file, &header, sizeof(header)) || memcmp(header.magic, magic, sizeof(magic)))
		return -ENOMSG;
	if (header.version != SNAPSHOT_VERSION)
		return -EPROTO;
	if (header.segments > PIECE_POOLS_MAX * POOL_SESSIONS)
		return -EBADMSG;
	sysinfo(&info);
	bytes_left = (uint64_t)info.totalram * info.mem_unit;
	pieces->time_ms = header.time_ms;
	for (uint32_t i = 0; i < header.segments && !error; i++)
		error = segment_read(file, pieces, &bytes_left);
	if (!error && fgetc(file) != EOF)
		error = -EBADMSG;
	return error;
}

static const char *read_error_text(int error)
{
	switch (error) {
	case -ENOMSG: return "it was not written by 'poolctl dump'";
	case -EPROTO: return "it was written by another version of poolctl";
	case -EBADMSG: return "it is damaged: a field is invalid, or the file is truncated";
	case -EFBIG: return "its tables are larger than the memory of this machine";
	default: return strerror(-error);
	}
}

int snapshot_read(const char *path, struct pieces *pieces)
{
	FILE *file = fopen(path, "re");
	int error;

	memset(pieces, 0, sizeof(*pieces));
	if (!file) {
		complain("cannot open the snapshot '%s': %s", path, strerror(errno));
		return CODE_FAILED;
	}
	error = file_read(file, pieces);
	fclose(file);
	if (!error) {
		pieces_sort(pieces);
		if (!pieces->count || pieces->list[0].kind != PIECE_POOL)
			error = -EBADMSG;
	}
	if (!error)
		return CODE_OK;
	complain("cannot read the snapshot '%s': %s", path, read_error_text(error));
	pieces_close(pieces);
	return CODE_FAILED;
}
