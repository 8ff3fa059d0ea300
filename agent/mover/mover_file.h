/*
 * mover_file.h - the file tier: slots of one page each. They bypass the page cache if the file system supports
 * O_DIRECT, and use io_uring if the system permits it; otherwise the calling threads read and write.
 *
 * Requests to io_uring survive a killed process: they may write to a slot when a successor already uses it. A mover
 * therefore locks the file, by an open file description of its own that the rings hold too. The kernel releases that
 * lock when the last request has finished, and only then the successor gets it.
 */
#ifndef GPOOL_AGENT_MOVER_MOVER_FILE_H
#define GPOOL_AGENT_MOVER_MOVER_FILE_H

#include "agent/keeper/channel.h"

#include <liburing.h>
#include <stdbool.h>
#include <stdint.h>

struct mover_file {
	bool open;    /* the tier exists */
	int fd;       /* this process's own open file description, locked; O_DIRECT when `direct` */
	int plain_fd; /* the inherited descriptor, for transfers that O_DIRECT refuses */
	bool direct;
	uint64_t page_bytes;
	uint32_t slots;
	_Atomic bool complained;
};

enum { MOVER_FILE_PARTS = 8 };

/* The transfer of one page between a buffer and the file. Threads: one at a time. */
struct mover_transfer {
	struct mover_file *file;
	uint8_t *buffer; /* page_bytes, aligned to the system's page */
	bool uring;
	bool fixed_buffer, fixed_file;
	struct io_uring ring;
	bool write;
	uint64_t offset;
	uint32_t part_bytes;
	uint32_t part_count;
	uint32_t waiting;               /* parts that io_uring has not completed */
	int32_t done[MOVER_FILE_PARTS]; /* bytes, or negative errno, of each part */
};

/*
 * mover_file_open() - open the file that the keeper holds, and wait for requests of a killed predecessor. 0, -EINVAL
 * (no slots), negative errno.
 */
int mover_file_open(struct mover_file *file, const struct held *held, uint64_t page_bytes);
void mover_file_close(struct mover_file *file);

void mover_transfer_init(struct mover_transfer *transfer, struct mover_file *file, uint8_t *buffer);
/*
 * mover_transfer_uring() - use io_uring from now on. 0, or negative errno: it cannot be used, and nothing has changed.
 */
int mover_transfer_uring(struct mover_transfer *transfer);
void mover_transfer_fini(struct mover_transfer *transfer);

/*
 * mover_transfer_begin() - start the transfer of one slot. The caller must not use the buffer until
 * mover_transfer_end(). Return: 0, -EINVAL (no such slot).
 */
int mover_transfer_begin(struct mover_transfer *transfer, uint32_t slot, bool write);
/*
 * mover_transfer_end() - wait until the page is transferred. Return: 0, -ENOSPC, -EBADMSG (the file ends before the
 * slot does), -EIO.
 */
int mover_transfer_end(struct mover_transfer *transfer);

#endif
