#include "agent/mover/mover_file.h"

#include "agent/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	DIRECT_ALIGNMENT = 4096, /* sufficient for every device */
	/* several requests per page keep a disk busy that executes requests concurrently */
	PART_BYTES_LEAST = 512 << 10,
};

/* ---- the file ---- */

/* Reopen the file, because flags and lock of the inherited open file description are shared with other processes. */
static int file_reopen(int fd, int flags)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDWR | O_CLOEXEC | flags);
}

int mover_file_open(struct mover_file *file, const struct held *held, uint64_t page_bytes)
{
	struct stat stat;
	uint64_t slots;

	memset(file, 0, sizeof(*file));
	if (fstat(held->fds[0], &stat) < 0)
		return -errno;
	slots = held->value ? held->value : (uint64_t)stat.st_size / page_bytes;
	if (!slots || slots > UINT32_MAX)
		return -EINVAL;
	file->plain_fd = held->fds[0];
	file->page_bytes = page_bytes;
	file->slots = (uint32_t)slots;
	file->fd = page_bytes % DIRECT_ALIGNMENT ? -1 : file_reopen(file->plain_fd, O_DIRECT);
	file->direct = file->fd >= 0;
	if (!file->direct)
		file->fd = file_reopen(file->plain_fd, 0);
	if (file->fd < 0)
		return -errno;
	while (flock(file->fd, LOCK_EX) < 0) {
		if (errno == EINTR)
			continue;
		log_warning("cannot lock the file tier: %s; late writes of a killed mover may corrupt a slot",
			strerror(errno));
		break;
	}
	file->open = true;
	return 0;
}

void mover_file_close(struct mover_file *file)
{
	if (file->open)
		close(file->fd);
	memset(file, 0, sizeof(*file));
}

static int file_error(struct mover_file *file, int error, bool write)
{
	if (error == -ENOSPC || error == -EDQUOT || error == -EFBIG)
		return -ENOSPC;
	if (!atomic_exchange_explicit(&file->complained, true, memory_order_relaxed))
		log_error("cannot %s the file tier: %s; the page is lost; further errors are not logged",
			write ? "write" : "read", strerror(-error));
	return -EIO;
}

static int range_transfer(struct mover_file *file, bool write, uint8_t *buffer, uint64_t bytes, uint64_t offset)
{
	int fd = file->fd;

	while (bytes) {
		ssize_t done;

		/* O_DIRECT cannot continue after a short transfer that ended within a block. */
		if (file->direct && (bytes % DIRECT_ALIGNMENT || offset % DIRECT_ALIGNMENT))
			fd = file->plain_fd;
		done = write ? pwrite(fd, buffer, bytes, (off_t)offset) : pread(fd, buffer, bytes, (off_t)offset);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0 && errno == EINVAL && fd != file->plain_fd) {
			fd = file->plain_fd;
			continue;
		}
		if (done < 0)
			return file_error(file, -errno, write);
		if (done == 0)
			return write ? file_error(file, -EIO, true) : -EBADMSG;
		buffer += done;
		offset += (uint64_t)done;
		bytes -= (uint64_t)done;
	}
	return 0;
}

/* ---- the transfer of a page ---- */

void mover_transfer_init(struct mover_transfer *transfer, struct mover_file *file, uint8_t *buffer)
{
	uint64_t part = (file->page_bytes + MOVER_FILE_PARTS - 1) / MOVER_FILE_PARTS;

	memset(transfer, 0, sizeof(*transfer));
	transfer->file = file;
	transfer->buffer = buffer;
	part = (part + DIRECT_ALIGNMENT - 1) / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT;
	transfer->part_bytes = (uint32_t)(part > PART_BYTES_LEAST ? part : PART_BYTES_LEAST);
	transfer->part_count = (uint32_t)((file->page_bytes + transfer->part_bytes - 1) / transfer->part_bytes);
}

static bool uring_knows(struct io_uring *ring)
{
	static const int needed[] = {IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, IORING_OP_READ, IORING_OP_WRITE};
	struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
	bool known = probe;

	for (size_t i = 0; known && i < sizeof(needed) / sizeof(*needed); i++)
		known = io_uring_opcode_supported(probe, needed[i]);
	io_uring_free_probe(probe);
	return known;
}

int mover_transfer_uring(struct mover_transfer *transfer)
{
	struct iovec buffer = {.iov_base = transfer->buffer, .iov_len = transfer->file->page_bytes};
	int error = io_uring_queue_init(MOVER_FILE_PARTS, &transfer->ring, 0);

	if (error)
		return error;
	if (!uring_knows(&transfer->ring)) {
		io_uring_queue_exit(&transfer->ring);
		return -ENOSYS;
	}
	/*
	 * Both are optional and save work per request. Registration fails with -ENOMEM if the limit of locked memory is
	 * too low.
	 */
	transfer->fixed_buffer = io_uring_register_buffers(&transfer->ring, &buffer, 1) == 0;
	transfer->fixed_file = io_uring_register_files(&transfer->ring, &transfer->file->fd, 1) == 0;
	transfer->uring = true;
	return 0;
}

void mover_transfer_fini(struct mover_transfer *transfer)
{
	if (transfer->uring)
		io_uring_queue_exit(&transfer->ring);
	transfer->uring = false;
}

static uint32_t part_bytes(const struct mover_transfer *transfer, uint32_t part)
{
	uint64_t left = transfer->file->page_bytes - (uint64_t)part * transfer->part_bytes;

	return left < transfer->part_bytes ? (uint32_t)left : transfer->part_bytes;
}

static void part_prepare(struct mover_transfer *transfer, struct io_uring_sqe *sqe, uint32_t part)
{
	uint8_t *buffer = transfer->buffer + (uint64_t)part * transfer->part_bytes;
	uint64_t offset = transfer->offset + (uint64_t)part * transfer->part_bytes;
	uint32_t bytes = part_bytes(transfer, part);
	int fd = transfer->fixed_file ? 0 : transfer->file->fd;

	if (transfer->write && transfer->fixed_buffer)
		io_uring_prep_write_fixed(sqe, fd, buffer, bytes, offset, 0);
	else if (transfer->write)
		io_uring_prep_write(sqe, fd, buffer, bytes, offset);
	else if (transfer->fixed_buffer)
		io_uring_prep_read_fixed(sqe, fd, buffer, bytes, offset, 0);
	else
		io_uring_prep_read(sqe, fd, buffer, bytes, offset);
	if (transfer->fixed_file)
		sqe->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data64(sqe, part);
}

/*
 * Wait for the parts that were submitted to io_uring. If the wait itself fails, the mover must end, because the kernel
 * still uses the buffer; the next mover repeats the job.
 */
static void uring_wait(struct mover_transfer *transfer)
{
	while (transfer->waiting) {
		struct io_uring_cqe *cqe;
		int error = io_uring_wait_cqe(&transfer->ring, &cqe);

		if (error == -EINTR || error == -EAGAIN)
			continue;
		if (error) {
			log_error("cannot wait for io_uring: %s; the mover exits, and the next mover repeats its jobs",
				strerror(-error));
			_exit(1);
		}
		if (cqe->user_data < transfer->part_count)
			transfer->done[cqe->user_data] = cqe->res;
		io_uring_cqe_seen(&transfer->ring, cqe);
		transfer->waiting--;
	}
}

static void uring_begin(struct mover_transfer *transfer)
{
	uint32_t submitted = 0;
	int result = 0;

	for (uint32_t part = 0; part < transfer->part_count; part++)
		part_prepare(transfer, io_uring_get_sqe(&transfer->ring), part);
	while (submitted < transfer->part_count) {
		result = io_uring_submit(&transfer->ring);
		if (result == -EINTR)
			continue;
		if (result <= 0)
			break;
		submitted += (uint32_t)result;
	}
	transfer->waiting = submitted;
	if (submitted == transfer->part_count)
		return;
	/* Stop using this ring, because requests left in its queue would be submitted with the next page. */
	log_warning("cannot submit to io_uring: %s; using a thread from now on", strerror(-result));
	uring_wait(transfer);
	mover_transfer_fini(transfer);
}

int mover_transfer_begin(struct mover_transfer *transfer, uint32_t slot, bool write)
{
	if (slot >= transfer->file->slots)
		return -EINVAL;
	transfer->write = write;
	transfer->offset = slot * transfer->file->page_bytes;
	transfer->waiting = 0;
	memset(transfer->done, 0, sizeof(transfer->done));
	if (transfer->uring)
		uring_begin(transfer);
	return 0;
}

int mover_transfer_end(struct mover_transfer *transfer)
{
	int error = 0;

	if (transfer->uring)
		uring_wait(transfer);
	/* Use plain calls for parts that were short, failed or were never submitted, or return their error. */
	for (uint32_t part = 0; part < transfer->part_count && !error; part++) {
		uint32_t bytes = part_bytes(transfer, part);
		uint32_t done = transfer->done[part] > 0 ? (uint32_t)transfer->done[part] : 0;
		uint64_t at = (uint64_t)part * transfer->part_bytes + done;

		if (done < bytes)
			error = range_transfer(transfer->file, transfer->write, transfer->buffer + at, bytes - done,
				transfer->offset + at);
	}
	return error;
}
