#include "agent/keeper/store.h"

#include "proto/attach.h"
#include "shm/plural.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define STORE_MAGIC UINT64_C(0x3165726f74736731) /* "1gstore1" */
enum {
	STORE_BATCH = 250,      /* descriptors per packet; the kernel accepts 253 */
	ITEMS_MAX = 1 << 24,    /* far above the possible number of descriptors */
	DESCRIPTORS_SPARE = 64, /* descriptors that gpoold needs at its start, without those of the store */
	/* requested buffer size of the socket; 32 pools of 40,960 handles need a fifth of it */
	ROOM = 64 << 20,
};

/* ---- writing ---- */

/* Return true if the descriptor at `place` is stored. Connections and doorbells end with gpoold, so they are not. */
static bool kept(const struct held *item, uint32_t place)
{
	return place < item->fd_count && item->fds[place] >= 0 &&
		(item->kind != KEEP_SESSION || place == 0 || place == 2);
}

static int items_write(const struct held_table *held, struct store_head *head)
{
	size_t bytes = held->count * sizeof(struct store_item);
	struct store_item *items;
	int fd = memfd_create("gpool-store", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	head->item_count = held->count;
	if (!bytes)
		return fd;
	if (ftruncate(fd, (off_t)bytes) < 0 ||
		(items = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) {
		int error = -errno;

		close(fd);
		return error;
	}
	for (uint32_t i = 0; i < held->count; i++) {
		const struct held *from = &held->list[i];

		items[i] = (struct store_item){from->kind, from->pool, from->id, 0, from->value, from->value2};
		for (uint32_t place = 0; place < from->fd_count; place++)
			if (kept(from, place)) {
				items[i].fds |= 1u << place;
				head->fd_count++;
			}
	}
	munmap(items, bytes);
	fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE);
	return fd;
}

static int head_send(int socket, const struct store_head *head, int items_fd, const struct module_start *start)
{
	int fds[1 + 2 * MODULE_POOLS_MAX];
	size_t count = 0;

	fds[count++] = items_fd;
	for (uint32_t i = 0; i < start->pool_count; i++) {
		fds[count++] = start->pools[i].segment_fd;
		fds[count++] = start->pools[i].ledger_fd;
	}
	return attach_send(socket, head, sizeof(*head), fds, count);
}

static int items_send(int socket, const struct held_table *held)
{
	int fds[STORE_BATCH], error = 0;
	uint32_t count = 0;

	for (uint32_t i = 0; i < held->count && !error; i++)
		for (uint32_t place = 0; place < held->list[i].fd_count && !error; place++) {
			if (!kept(&held->list[i], place))
				continue;
			fds[count++] = held->list[i].fds[place];
			if (count < STORE_BATCH)
				continue;
			error = attach_send(socket, &count, sizeof(count), fds, count);
			count = 0;
		}
	return !error && count ? attach_send(socket, &count, sizeof(count), fds, count) : error;
}

static void socket_widen(int socket)
{
	int room = ROOM;

	if (setsockopt(socket, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) < 0)
		setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
}

static unsigned long long descriptors_most(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) < 0 ? 0 : limit.rlim_cur;
}

int store_write(const struct module_start *start, const struct held_table *held, char *text, size_t text_bytes)
{
	struct store_head head = {
		.magic = STORE_MAGIC,
		.head_bytes = sizeof(head),
		.item_bytes = sizeof(struct store_item),
		.layout_version = POOL_LAYOUT_VERSION,
		.layout_sum = layout_sum(&layout_own, LAYOUT_SHARED),
		.pool_count = start->pool_count,
		.incarnation = start->incarnation,
	};
	int ends[2], items_fd, error;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
		error = -errno;
		snprintf(text, text_bytes, "cannot create a socket: %s", strerror(-error));
		return error;
	}
	socket_widen(ends[0]);
	items_fd = items_write(held, &head);
	error = items_fd < 0 ? items_fd : head_send(ends[0], &head, items_fd, start);
	if (!error)
		error = items_send(ends[0], held);
	if (items_fd >= 0)
		close(items_fd);
	close(ends[0]);
	if (!error)
		return ends[1];
	close(ends[1]);
	if (error == -ETOOMANYREFS)
		snprintf(text, text_bytes,
			"cannot send %u descriptor%s: RLIMIT_NOFILE permits only %llu in flight; raise LimitNOFILE= of "
			"the unit",
			head.fd_count, plural(head.fd_count), descriptors_most());
	else if (error == -EAGAIN)
		snprintf(text, text_bytes, "a socket does not hold %u descriptor%s; raise net.core.wmem_max",
			head.fd_count, plural(head.fd_count));
	else
		snprintf(text, text_bytes, "cannot write %u descriptor%s: %s", head.fd_count, plural(head.fd_count),
			strerror(-error));
	return error;
}

/* ---- reading ---- */

/* Read the first packet and leave it in the socket. The kernel duplicates its descriptors. */
static int head_peek(int socket, struct store_head *head, int *fds, size_t fd_room, size_t *fd_count)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE((1 + 2 * MODULE_POOLS_MAX) * sizeof(int))];
	} control;
	struct iovec part = {head, sizeof(*head)};
	struct msghdr message = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = CMSG_LEN(fd_room * sizeof(int))};
	ssize_t length = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	*fd_count = 0;
	if (length < 0)
		return -errno;
	for (struct cmsghdr *entry = CMSG_FIRSTHDR(&message); entry; entry = CMSG_NXTHDR(&message, entry)) {
		size_t here = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS)
			continue;
		memcpy(fds + *fd_count, CMSG_DATA(entry), here * sizeof(int));
		*fd_count += here;
	}
	if (message.msg_flags & MSG_CTRUNC && *fd_count < fd_room)
		return -EMFILE;
	return (int)length;
}

static int items_open(struct store *store)
{
	size_t bytes = store->head.item_count * sizeof(struct store_item);
	struct stat status;
	void *items;

	if (fstat(store->items_fd, &status) < 0 || (uint64_t)status.st_size != bytes)
		return -EBADMSG;
	if (!bytes)
		return 0;
	if ((fcntl(store->items_fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_WRITE)) != (F_SEAL_SHRINK | F_SEAL_WRITE))
		return -EPERM;
	items = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, store->items_fd, 0);
	if (items == MAP_FAILED)
		return -errno;
	store->items = items;
	return 0;
}

/* Check that the numbers of descriptors add up and that each item is within its limits. */
static int items_check(const struct store *store)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < store->head.item_count; i++) {
		const struct store_item *item = &store->items[i];

		if (item->fds >= 1u << KEEP_FDS_MAX || item->pool >= store->head.pool_count)
			return -EBADMSG;
		count += (uint32_t)__builtin_popcount(item->fds);
	}
	return count == store->head.fd_count ? 0 : -EBADMSG;
}

static int pools_look(struct store *store, const int *fds)
{
	int error = 0;

	for (uint32_t i = 0; i < store->head.pool_count; i++) {
		store->pools[i].segment_fd = fds[2 * i];
		store->pools[i].ledger_fd = fds[2 * i + 1];
	}
	for (uint32_t i = 0; i < store->head.pool_count && !error; i++)
		error = pool_segment_open(store->pools[i].segment_fd, &store->pools[i].segment);
	return error;
}

/* Check a head of `length` bytes. A head of another version may be shorter; its missing fields are then zero. */
static int head_check(const struct store_head *head, size_t length, size_t fd_count)
{
	if (length < offsetof(struct store_head, incarnation) || head->magic != STORE_MAGIC ||
		head->head_bytes < length)
		return -EBADMSG;
	if (head->head_bytes != sizeof(*head) || head->layout_version != POOL_LAYOUT_VERSION ||
		head->layout_sum != layout_sum(&layout_own, LAYOUT_SHARED))
		return -EPROTO;
	if (length != sizeof(*head) || head->item_bytes != sizeof(struct store_item))
		return -EBADMSG;
	if (head->pool_count < 1 || head->pool_count > MODULE_POOLS_MAX || head->item_count > ITEMS_MAX ||
		fd_count != 1 + 2 * (size_t)head->pool_count)
		return -EBADMSG;
	return 0;
}

int store_look(int socket, struct store *store, char *text, size_t text_bytes)
{
	int fds[1 + 2 * MODULE_POOLS_MAX], length, error;
	char theirs[LAYOUT_TEXT_BYTES], ours[LAYOUT_TEXT_BYTES];
	size_t fd_count;

	memset(store, 0, sizeof(*store));
	store->socket = socket;
	store->items_fd = -1;
	for (uint32_t i = 0; i < MODULE_POOLS_MAX; i++)
		store->pools[i].segment_fd = store->pools[i].ledger_fd = -1;
	length = head_peek(socket, &store->head, fds, sizeof(fds) / sizeof(*fds), &fd_count);
	if (length == 0 || length == -EAGAIN) {
		store_close(store);
		return 0;
	}
	error = length < 0 ? length : head_check(&store->head, (size_t)length, fd_count);
	if (error) {
		for (size_t i = 0; i < fd_count; i++)
			close(fds[i]);
	} else {
		store->items_fd = fds[0];
		error = pools_look(store, fds + 1);
		if (!error)
			error = items_open(store);
		if (!error)
			error = items_check(store);
	}
	if (!error)
		return 0;
	if (error == -EPROTO)
		snprintf(text, text_bytes, "it has layout %s, but this gpoold has %s",
			layout_text(store->head.layout_version, store->head.layout_sum, theirs),
			layout_text(POOL_LAYOUT_VERSION, layout_sum(&layout_own, LAYOUT_SHARED), ours));
	else
		snprintf(text, text_bytes, "it cannot be read: %s", strerror(-error));
	store_close(store);
	return error;
}

bool store_fits(
	const struct store *store, uint32_t index, const struct pool_geometry *geometry, char *text, size_t text_bytes)
{
	const struct pool_header *header;
	uint32_t reserved;

	if (index >= store->head.pool_count) {
		snprintf(text, text_bytes, "it has no pool '%s'", geometry->name);
		return false;
	}
	header = store->pools[index].segment.header;
	reserved = header->page_count - header->reserved_first;
	if (strncmp(header->name, geometry->name, sizeof(header->name)) ||
		strncmp(header->backend, geometry->backend, sizeof(header->backend)) ||
		strncmp(header->device, geometry->device, sizeof(header->device))) {
		snprintf(text, text_bytes,
			"its pool %u is '%.63s' on %.15s %.63s, but the configured pool is '%s' on %s %s", index,
			header->name, header->backend, header->device, geometry->name, geometry->backend,
			geometry->device);
		return false;
	}
	if (header->page_bytes != geometry->page_bytes || header->page_count != geometry->page_count ||
		header->pages_per_handle != geometry->pages_per_handle || reserved != geometry->reserved_pages) {
		snprintf(text, text_bytes,
			"its pool '%s' has %u page%s of %llu bytes, %u per handle and %u reserved; the configured pool "
			"has %u page%s of %llu bytes, %u per handle and %u reserved",
			geometry->name, header->page_count, plural(header->page_count),
			(unsigned long long)header->page_bytes, header->pages_per_handle, reserved,
			geometry->page_count, plural(geometry->page_count), (unsigned long long)geometry->page_bytes,
			geometry->pages_per_handle, geometry->reserved_pages);
		return false;
	}
	if (header->object_count != pool_object_count(geometry->objects, geometry->page_count)) {
		snprintf(text, text_bytes,
			"its pool '%s' can have %u object%s, the configured pool %u; set 'objects' to the previous "
			"value",
			geometry->name, header->object_count - 1, plural(header->object_count - 1),
			pool_object_count(geometry->objects, geometry->page_count) - 1);
		return false;
	}
	return true;
}

/* State of reading descriptors one by one. Packets are received as they are needed. */
struct fd_reader {
	int socket;
	int fds[STORE_BATCH];
	size_t count, at;
};

static int fd_next(struct fd_reader *reader)
{
	uint32_t said;
	int length;

	if (reader->at == reader->count) {
		reader->at = reader->count = 0;
		length = attach_receive(
			reader->socket, &said, sizeof(said), reader->fds, STORE_BATCH, &reader->count, 0);
		if (length < 0)
			return length;
		if (!reader->count)
			return -EBADMSG;
	}
	return reader->fds[reader->at++];
}

static int item_take(struct fd_reader *reader, const struct store_item *item, struct held_table *held)
{
	struct held into = {
		.kind = item->kind, .pool = item->pool, .id = item->id, .value = item->value, .value2 = item->value2};
	int fd, error = 0;

	for (uint32_t place = 0; place < KEEP_FDS_MAX; place++)
		into.fds[place] = -1;
	for (uint32_t place = 0; place < KEEP_FDS_MAX && !error; place++) {
		if (!(item->fds >> place & 1))
			continue;
		fd = fd_next(reader);
		if (fd < 0)
			error = fd;
		else
			into.fds[place] = fd;
		into.fd_count = place + 1;
	}
	/* A session has the usual number of descriptors; those that were not stored are -1. */
	if (item->kind == KEEP_SESSION)
		into.fd_count = KEEP_FDS_MAX;
	if (!error)
		error = held_add(held, &into);
	if (error)
		held_close(&into);
	return error;
}

int store_take(struct store *store, struct held_table *held, char *text, size_t text_bytes)
{
	unsigned long long most = descriptors_most();
	struct fd_reader reader = {.socket = store->socket};
	struct store_head head;
	int fds[1 + 2 * MODULE_POOLS_MAX], length, error = 0;
	size_t fd_count = 0;

	if (store->head.fd_count + (unsigned long long)DESCRIPTORS_SPARE > most) {
		snprintf(text, text_bytes,
			"it has %u descriptor%s, but RLIMIT_NOFILE is %llu; raise LimitNOFILE= of the unit",
			store->head.fd_count, plural(store->head.fd_count), most);
		return -EMFILE;
	}
	/* Receive the first packet again to remove it. */
	length = attach_receive(store->socket, &head, sizeof(head), fds, sizeof(fds) / sizeof(*fds), &fd_count, 0);
	for (size_t i = 0; i < fd_count; i++)
		close(fds[i]);
	if (length != sizeof(head))
		error = length < 0 ? length : -EBADMSG;
	for (uint32_t i = 0; i < store->head.item_count && !error; i++)
		error = item_take(&reader, &store->items[i], held);
	while (reader.at < reader.count)
		close(reader.fds[reader.at++]);
	if (!error)
		return 0;
	snprintf(text, text_bytes, "cannot read its descriptors: %s; its content is lost", strerror(-error));
	return -EIO;
}

void store_close(struct store *store)
{
	for (uint32_t i = 0; i < MODULE_POOLS_MAX; i++) {
		pool_segment_close(&store->pools[i].segment);
		if (store->pools[i].segment_fd >= 0)
			close(store->pools[i].segment_fd);
		if (store->pools[i].ledger_fd >= 0)
			close(store->pools[i].ledger_fd);
		store->pools[i].segment_fd = store->pools[i].ledger_fd = -1;
	}
	if (store->items)
		munmap((void *)(uintptr_t)store->items, store->head.item_count * sizeof(struct store_item));
	store->items = NULL;
	if (store->items_fd >= 0)
		close(store->items_fd);
	if (store->socket >= 0)
		close(store->socket);
	store->items_fd = store->socket = -1;
}
