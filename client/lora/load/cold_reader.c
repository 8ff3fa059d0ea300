/*
 * cold_reader.c - see cold_reader.h. The buffers are slots of one memory area.
 *
 * A slot is free, or the kernel is reading a group into it, or it contains a group, or the caller uses its group.
 * Groups are requested in order. With direct reads, all groups from `next` up to `ahead` have slots; otherwise `next`
 * is read when it is needed.
 */
#include "client/lora/load/cold_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "client/lora/format/file_at.h"

/* maximum size of one announcement; a kernel may read only the beginning of a longer one */
enum { ADVICE_BYTES = 128 << 10 };

enum slot_state { SLOT_FREE, SLOT_ASKED, SLOT_READ, SLOT_HELD };

struct slot {
	enum slot_state state;
	uint32_t group;
	int32_t result; /* of io_uring: number of bytes, or negative errno */
};

enum ring_state { RING_NONE, RING_OPEN, RING_REFUSED };

struct cold_reader {
	uint8_t *room; /* [COLD_READER_ROOM], allocated with the first file; NULL: none, and no slots */
	const struct cold_file *file;
	enum cold_reader_way way;
	uint32_t next, ahead; /* groups: the next to return, and the first that was not requested */
	struct slot slots[COLD_READER_HELD_MAX];
	uint32_t slot_count;
	uint64_t slot_bytes;
	int direct_fd; /* descriptor of this file for direct reads; -1: none */
	enum ring_state ring_state;
	bool registered; /* the memory is registered as buffer 0 of the ring */
	struct io_uring ring;
};

static uint64_t group_bytes(const struct cold_reader *reader, uint32_t group)
{
	return cold_align(reader->file->groups[group].bytes);
}

static uint8_t *slot_bytes(const struct cold_reader *reader, const struct slot *slot)
{
	return reader->room + (uint64_t)(slot - reader->slots) * reader->slot_bytes;
}

static struct slot *slot_free(struct cold_reader *reader)
{
	for (struct slot *slot = reader->slots; slot < reader->slots + reader->slot_count; slot++)
		if (slot->state == SLOT_FREE)
			return slot;
	return NULL;
}

/* Return the slot of a group, in any state, or NULL. */
static struct slot *slot_of(struct cold_reader *reader, uint32_t group)
{
	for (struct slot *slot = reader->slots; slot < reader->slots + reader->slot_count; slot++)
		if (slot->state != SLOT_FREE && slot->group == group)
			return slot;
	return NULL;
}

/* ---- the io_uring ---- */

static bool ring_knows(struct io_uring *ring)
{
	struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
	bool known = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
		io_uring_opcode_supported(probe, IORING_OP_READ_FIXED);

	io_uring_free_probe(probe);
	return known;
}

/* Create the ring at its first use. After a failure, no further attempt is made. */
static bool ring_have(struct cold_reader *reader)
{
	struct iovec room = {.iov_base = reader->room, .iov_len = COLD_READER_ROOM};

	if (reader->ring_state != RING_NONE)
		return reader->ring_state == RING_OPEN;
	reader->ring_state = RING_REFUSED;
	if (io_uring_queue_init(COLD_READER_HELD_MAX, &reader->ring, 0))
		return false;
	if (!ring_knows(&reader->ring)) {
		io_uring_queue_exit(&reader->ring);
		return false;
	}
	/*
	 * A registered buffer saves work in each request. The registration may fail, for example at the limit of locked
	 * memory.
	 */
	reader->registered = io_uring_register_buffers(&reader->ring, &room, 1) == 0;
	reader->ring_state = RING_OPEN;
	return true;
}

/*
 * Leak the memory and the ring. Called if the kernel does not confirm the end of its reads, so that the memory can be
 * neither used nor freed.
 */
static void room_leave(struct cold_reader *reader)
{
	reader->room = NULL;
	reader->slot_count = 0;
	reader->ring_state = RING_REFUSED;
}

/* Wait for one completion and handle it. */
static void ring_wait(struct cold_reader *reader)
{
	struct io_uring_cqe *cqe;
	struct slot *slot;
	int error;

	do
		error = io_uring_wait_cqe(&reader->ring, &cqe);
	while (error == -EINTR || error == -EAGAIN);
	if (error) {
		room_leave(reader);
		return;
	}
	slot = &reader->slots[io_uring_cqe_get_data64(cqe)];
	slot->result = cqe->res;
	slot->state = SLOT_READ;
	io_uring_cqe_seen(&reader->ring, cqe);
}

static void ring_drain(struct cold_reader *reader)
{
	for (uint32_t i = 0; i < reader->slot_count; i++)
		while (i < reader->slot_count && reader->slots[i].state == SLOT_ASKED)
			ring_wait(reader);
}

/* Stop using the ring, because a request that the kernel has not accepted would be submitted with the next one. */
static void ring_close(struct cold_reader *reader)
{
	ring_drain(reader);
	if (reader->ring_state == RING_OPEN)
		io_uring_queue_exit(&reader->ring);
	reader->ring_state = RING_REFUSED;
}

static bool slot_ask(struct cold_reader *reader, struct slot *slot)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&reader->ring);
	uint64_t offset = reader->file->groups[slot->group].offset;
	uint32_t bytes = (uint32_t)group_bytes(reader, slot->group);
	int taken;

	if (reader->registered)
		io_uring_prep_read_fixed(sqe, reader->direct_fd, slot_bytes(reader, slot), bytes, offset, 0);
	else
		io_uring_prep_read(sqe, reader->direct_fd, slot_bytes(reader, slot), bytes, offset);
	io_uring_sqe_set_data64(sqe, (uint64_t)(slot - reader->slots));
	do
		taken = io_uring_submit(&reader->ring);
	while (taken == -EINTR);
	return taken == 1;
}

/* ---- the three ways to read ---- */

static int slot_read(struct cold_reader *reader, const struct slot *slot, uint64_t done)
{
	return file_read_at(reader->file->fd, slot_bytes(reader, slot) + done, group_bytes(reader, slot->group) - done,
		reader->file->groups[slot->group].offset + done);
}

/* Read a group from the page cache. Return: -EAGAIN if the page cache does not contain the whole group. */
static int cached_read(struct cold_reader *reader, const struct slot *slot)
{
	struct iovec to = {.iov_base = slot_bytes(reader, slot), .iov_len = group_bytes(reader, slot->group)};

	return preadv2(reader->file->fd, &to, 1, (off_t)reader->file->groups[slot->group].offset, RWF_NOWAIT) ==
			(ssize_t)to.iov_len
		? 0
		: -EAGAIN;
}

/* Open the file again for direct reads, because O_DIRECT is a property of the open file description. */
static void direct_open(struct cold_reader *reader)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", reader->file->fd);
	reader->direct_fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
}

/* Switch to direct reads, or to pread(2) if they are not possible. */
static void way_turn(struct cold_reader *reader)
{
	direct_open(reader);
	reader->way = reader->direct_fd >= 0 && ring_have(reader) ? COLD_READER_DIRECT : COLD_READER_PLAIN;
}

/* Request groups as long as slots are free. */
static void direct_ask(struct cold_reader *reader)
{
	struct slot *slot;

	while (reader->ahead < reader->file->header->groups && (slot = slot_free(reader))) {
		slot->group = reader->ahead;
		if (!slot_ask(reader, slot)) {
			ring_close(reader);
			reader->way = COLD_READER_PLAIN;
			return;
		}
		slot->state = SLOT_ASKED;
		reader->ahead++;
	}
}

/* Finish a direct read. After a short or failed read, pread(2) reads the rest or returns the error. */
static int direct_finish(struct cold_reader *reader, struct slot *slot)
{
	uint64_t done;

	while (reader->room && slot->state == SLOT_ASKED)
		ring_wait(reader);
	if (!reader->room)
		return -EIO;
	done = slot->result > 0 ? (uint64_t)slot->result / COLD_ALIGN * COLD_ALIGN : 0;
	return slot_read(reader, slot, done);
}

/* Announce the next groups to the kernel, which reads them while earlier ones are expanded. */
static void plain_advise(struct cold_reader *reader)
{
	uint32_t end = reader->next + reader->slot_count;

	for (; reader->ahead < reader->file->header->groups && reader->ahead < end; reader->ahead++) {
		const struct cold_group *group = &reader->file->groups[reader->ahead];

		for (uint64_t at = 0; at < group->bytes; at += ADVICE_BYTES)
			posix_fadvise(reader->file->fd, (off_t)(group->offset + at), ADVICE_BYTES, POSIX_FADV_WILLNEED);
	}
}

/* Read the group `next` into a slot, from the page cache or from the disk. */
static int group_read(struct cold_reader *reader, struct slot **found)
{
	struct slot *slot = slot_free(reader);

	if (!slot)
		return -EAGAIN;
	slot->group = reader->next;
	*found = slot;
	if (reader->way == COLD_READER_CACHED) {
		if (!cached_read(reader, slot)) {
			reader->ahead = reader->next + 1;
			return 0;
		}
		way_turn(reader);
	}
	if (reader->way == COLD_READER_DIRECT) {
		direct_ask(reader);
		*found = slot_of(reader, reader->next);
		if (*found)
			return direct_finish(reader, *found);
		*found = slot;
	}
	if (!reader->room)
		return -EIO;
	plain_advise(reader);
	return slot_read(reader, slot, 0);
}

/* ---- the reader ---- */

/*
 * Allocate the buffers, in huge pages if possible. Some disks limit the number of memory segments of a request; with
 * huge pages, such a disk gets requests of 4 MiB instead of 1 MiB. Measured on a virtual disk: 3.4 GB/s instead of 1.1.
 * The registration takes 0.06 ms instead of 1.4.
 */
static uint8_t *room_make(void)
{
	void *room = mmap(NULL, COLD_READER_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (room == MAP_FAILED)
		return NULL;
	madvise(room, COLD_READER_ROOM, MADV_HUGEPAGE);
	return room;
}

int cold_reader_create(struct cold_reader **reader)
{
	struct cold_reader *made = calloc(1, sizeof(*made));

	if (!made)
		return -ENOMEM;
	made->direct_fd = -1;
	*reader = made;
	return 0;
}

void cold_reader_destroy(struct cold_reader *reader)
{
	if (!reader)
		return;
	cold_reader_end(reader);
	if (reader->ring_state == RING_OPEN)
		io_uring_queue_exit(&reader->ring);
	if (reader->room)
		munmap(reader->room, COLD_READER_ROOM);
	free(reader);
}

int cold_reader_begin(struct cold_reader *reader, const struct cold_file *file)
{
	uint64_t largest = 0;
	uint32_t slots;

	if (!reader->room)
		reader->room = room_make();
	if (!reader->room)
		return -ENOMEM;
	for (uint32_t i = 0; i < file->header->groups; i++)
		largest = cold_align(file->groups[i].bytes) > largest ? cold_align(file->groups[i].bytes) : largest;
	slots = (uint32_t)(COLD_READER_ROOM / largest);
	reader->file = file;
	reader->way = COLD_READER_CACHED;
	reader->next = reader->ahead = 0;
	reader->slot_count = slots < COLD_READER_HELD_MAX ? slots : COLD_READER_HELD_MAX;
	reader->slot_bytes = largest;
	for (uint32_t i = 0; i < reader->slot_count; i++)
		reader->slots[i].state = SLOT_FREE;
	return 0;
}

int cold_reader_next(struct cold_reader *reader, uint32_t *group, const void **stored)
{
	struct slot *slot;
	int error;

	if (!reader->room)
		return -EIO;
	if (reader->next == reader->file->header->groups)
		return 0;
	slot = slot_of(reader, reader->next);
	error = slot ? direct_finish(reader, slot) : group_read(reader, &slot);
	if (error)
		return error;
	slot->state = SLOT_HELD;
	*group = reader->next++;
	*stored = slot_bytes(reader, slot);
	return 1;
}

void cold_reader_give_back(struct cold_reader *reader, uint32_t group)
{
	struct slot *slot = slot_of(reader, group);

	if (!slot)
		return;
	slot->state = SLOT_FREE;
	if (reader->way == COLD_READER_DIRECT)
		direct_ask(reader);
}

void cold_reader_end(struct cold_reader *reader)
{
	ring_drain(reader);
	if (reader->direct_fd >= 0)
		close(reader->direct_fd);
	reader->direct_fd = -1;
	reader->file = NULL;
	reader->slot_count = 0;
}

enum cold_reader_way cold_reader_way(const struct cold_reader *reader)
{
	return reader->way;
}
