/*
 * mover_file.h - the file tier: slots of one page each. Transfers bypass the page cache if the file system supports
 * O_DIRECT. They use io_uring if the system permits it; otherwise the calling threads read and write.
 *
 * io_uring requests survive a killed process and may write to a slot that a new mover already uses. A mover therefore
 * locks the file through its own open file description, which the rings also hold. The kernel releases the lock when
 * the last request has finished; only then can the next mover lock the file.
 */
#ifndef GPOOL_AGENT_MOVER_MOVER_FILE_H
#define GPOOL_AGENT_MOVER_MOVER_FILE_H

#include "agent/keeper/channel.h"

#include <liburing.h>
#include <stdbool.h>
#include <stdint.h>

struct mover_file {
	bool open;    /* the tier exists */
	int fd;       /* own open file description, locked; O_DIRECT if `direct` */
	int plain_fd; /* the inherited descriptor, for transfers that O_DIRECT does not permit */
	bool direct;
	uint64_t page_bytes;
	uint32_t slots;
	_Atomic bool complained;
};

enum { MOVER_FILE_PARTS = 8 };

/* The transfer of one page between a buffer and the file. Threads: one at a time. */
struct mover_transfer {
	struct mover_file *file;
	uint8_t *buffer; /* page_bytes, aligned to a page of the system */
	bool uring;
	bool fixed_buffer, fixed_file;
	struct io_uring ring;
	bool write;
	uint64_t offset;
	uint32_t part_bytes;
	uint32_t part_count;
	uint32_t waiting;               /* parts that io_uring has not completed */
	int32_t done[MOVER_FILE_PARTS]; /* per part: bytes transferred, or a negative errno */
};

/*
 * mover_file_open() - open the file that the keeper holds, and wait for the requests of a killed predecessor. Return:
 * 0, -EINVAL (no slots), or another negative errno.
 */
int mover_file_open(struct mover_file *file, const struct held *held, uint64_t page_bytes);
void mover_file_close(struct mover_file *file);

void mover_transfer_init(struct mover_transfer *transfer, struct mover_file *file, uint8_t *buffer);
/*
 * mover_transfer_uring() - use io_uring from now on. Return: 0; or a negative errno: io_uring cannot be used, and
 * nothing was changed.
 */
int mover_transfer_uring(struct mover_transfer *transfer);
void mover_transfer_fini(struct mover_transfer *transfer);

/*
 * mover_transfer_begin() - start the transfer of one slot. The caller must not use the buffer until
 * mover_transfer_end(). Return: 0, -EINVAL (no such slot).
 */
int mover_transfer_begin(struct mover_transfer *transfer, uint32_t slot, bool write);
/*
 * mover_transfer_end() - wait until the page has been transferred. Return: 0, -ENOSPC, -EBADMSG (the file ends before
 * the slot does), -EIO.
 */
int mover_transfer_end(struct mover_transfer *transfer);

#endif
