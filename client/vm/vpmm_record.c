/*
 * vpmm_record.c - record calls of the stream-ordered allocator in a file, for gpool-replay(1). See vpmm.h.
 *
 * A call stores a record in memory, and the background thread writes the records to the file. While one of two buffers
 * is written, the other one is filled. Records that do not fit, or cannot be written, are lost; they are counted and
 * reported.
 */
#include "client/core/last_error.h"
#include "client/vm/vpmm.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	BUFFER_RECORDS = 1 << 17, /* 5 MB: a quarter of a second at half a million calls per second */
	LINE_BYTES = 96,
	TEXT_BYTES = 1 << 16,
};

struct record {
	uint64_t time_ns, bytes, id;
	uint32_t thread, stream;
	bool is_free;
};

struct vpmm_record {
	struct gpool *pool;
	int fd;
	uint64_t start_ns;
	pthread_mutex_t lock; /* protects the buffer that is being filled */
	struct record *filling;
	uint32_t count;
	uint64_t lost;
	pthread_mutex_t flush_lock; /* protects the other buffer and the file; acquired before `lock` */
	struct record *writing;
	bool failed; /* the failure was reported */
	char text[TEXT_BYTES];
};

static _Thread_local uint32_t thread_number;

/* ---- write ---- */

/*
 * Write all bytes, or return an error. A partly written line may remain at the end of the file, where a reader detects
 * it.
 */
static int write_all(int fd, const char *text, size_t length)
{
	while (length) {
		ssize_t written = write(fd, text, length);

		if (written < 0 && errno != EINTR)
			return -errno;
		if (written > 0) {
			text += written;
			length -= (size_t)written;
		}
	}
	return 0;
}

static int records_write(struct vpmm_record *record, uint32_t count)
{
	size_t length = 0;
	int error = 0;

	for (uint32_t i = 0; i < count && !error; i++) {
		const struct record *at = &record->writing[i];

		length += (size_t)snprintf(record->text + length, LINE_BYTES, "%llu,%u,%u,%s,%llu,%llu\n",
			(unsigned long long)at->time_ns, at->thread, at->stream, at->is_free ? "free" : "malloc",
			(unsigned long long)at->bytes, (unsigned long long)at->id);
		if (length > TEXT_BYTES - LINE_BYTES || i + 1 == count) {
			error = write_all(record->fd, record->text, length);
			length = 0;
		}
	}
	return error;
}

void vpmm_record_flush(struct vpmm_record *record)
{
	struct record *full;
	uint32_t count;
	int error;

	pthread_mutex_lock(&record->flush_lock);
	pthread_mutex_lock(&record->lock);
	full = record->filling;
	count = record->count;
	record->filling = record->writing;
	record->count = 0;
	pthread_mutex_unlock(&record->lock);
	record->writing = full;
	error = record->failed ? -EIO : records_write(record, count);
	if (error) {
		if (!record->failed)
			pool_log(record->pool, POOL_LOG_WARNING, "cannot write the record of calls: %s; it ends here",
				strerror(-error));
		record->failed = true;
		pthread_mutex_lock(&record->lock);
		record->lost += count;
		pthread_mutex_unlock(&record->lock);
	}
	pthread_mutex_unlock(&record->flush_lock);
}

/* ---- add records ---- */

bool vpmm_record_add(struct vpmm_record *record, bool is_free, uint32_t stream, uint64_t bytes, uint64_t id)
{
	uint64_t now = monotonic_ns();
	bool half = false;

	if (unlikely(!thread_number))
		thread_number = (uint32_t)gettid();
	pthread_mutex_lock(&record->lock);
	if (likely(record->count < BUFFER_RECORDS)) {
		record->filling[record->count++] = (struct record){
			.time_ns = now - record->start_ns,
			.bytes = bytes,
			.id = id,
			.thread = thread_number,
			.stream = stream,
			.is_free = is_free,
		};
		half = record->count == BUFFER_RECORDS / 2;
	} else {
		record->lost++;
	}
	pthread_mutex_unlock(&record->lock);
	return half;
}

uint64_t vpmm_record_lost(struct vpmm_record *record)
{
	uint64_t lost;

	pthread_mutex_lock(&record->lock);
	lost = record->lost;
	pthread_mutex_unlock(&record->lock);
	return lost;
}

/* ---- open and close ---- */

int vpmm_record_open(struct vpmm *vpmm, const char *path)
{
	static const char header[] = "time_ns,thread,stream,op,size,id\n";
	struct vpmm_record *record = calloc(1, sizeof(*record));
	int error;

	if (!record)
		return -ENOMEM;
	record->pool = vpmm->pool;
	record->filling = malloc(BUFFER_RECORDS * sizeof(*record->filling));
	record->writing = malloc(BUFFER_RECORDS * sizeof(*record->writing));
	record->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	error = record->fd < 0 ? -errno : write_all(record->fd, header, sizeof(header) - 1);
	if (error)
		pool_log(vpmm->pool, POOL_LOG_ERROR, "cannot record calls to '%s': %s", path, strerror(-error));
	if (error || !record->filling || !record->writing) {
		if (record->fd >= 0)
			close(record->fd);
		free(record->filling);
		free(record->writing);
		free(record);
		return error ? fail(-EIO, "cannot record calls to '%s': %s", path, strerror(-error)) : -ENOMEM;
	}
	record->start_ns = monotonic_ns();
	pthread_mutex_init(&record->lock, NULL);
	pthread_mutex_init(&record->flush_lock, NULL);
	vpmm->record = record;
	return 0;
}

void vpmm_record_close(struct vpmm *vpmm)
{
	struct vpmm_record *record = vpmm->record;

	if (!record)
		return;
	vpmm_record_flush(record);
	if (close(record->fd) && !record->failed)
		pool_log(vpmm->pool, POOL_LOG_WARNING, "cannot write the record of calls: %s", strerror(errno));
	if (record->lost)
		pool_log(vpmm->pool, POOL_LOG_WARNING, "the record of calls lacks %llu of them",
			(unsigned long long)record->lost);
	pthread_mutex_destroy(&record->lock);
	pthread_mutex_destroy(&record->flush_lock);
	free(record->filling);
	free(record->writing);
	free(record);
	vpmm->record = NULL;
}
