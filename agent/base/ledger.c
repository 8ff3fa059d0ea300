#include "agent/base/ledger.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct parts {
	size_t runs, sessions, objects, roles, pages, slots, holders, bytes;
};

static size_t round_up(size_t bytes)
{
	return (bytes + 4095) / 4096 * 4096;
}

static struct parts parts_of(uint32_t page_count, uint32_t object_count, uint32_t slot_count)
{
	struct parts parts;

	parts.runs = round_up(sizeof(struct ledger_header));
	parts.sessions = round_up(parts.runs + page_count * sizeof(struct page_run));
	parts.objects = round_up(parts.sessions + POOL_SESSIONS * sizeof(struct ledger_session));
	parts.roles = round_up(parts.objects + object_count * sizeof(struct ledger_object));
	parts.pages = round_up(parts.roles + POOL_ROLES * sizeof(struct ledger_role));
	parts.slots = round_up(parts.pages + page_count * sizeof(struct ledger_page));
	parts.holders = round_up(parts.slots + slot_count * sizeof(struct ledger_slot));
	/* Each row has room for one handle per page, the maximum. Unused memory is never touched. */
	parts.bytes = round_up(parts.holders + (size_t)POOL_SESSIONS * ((page_count + 63) / 64) * sizeof(uint64_t));
	return parts;
}

static void ledger_over(
	void *base, uint32_t page_count, uint32_t object_count, uint32_t slot_count, struct ledger *ledger)
{
	struct parts parts = parts_of(page_count, object_count, slot_count);
	char *at = base;

	ledger->header = base;
	ledger->runs = (struct page_run *)(void *)(at + parts.runs);
	ledger->sessions = (struct ledger_session *)(void *)(at + parts.sessions);
	ledger->objects = (struct ledger_object *)(void *)(at + parts.objects);
	ledger->roles = (struct ledger_role *)(void *)(at + parts.roles);
	ledger->pages = (struct ledger_page *)(void *)(at + parts.pages);
	ledger->slots = (struct ledger_slot *)(void *)(at + parts.slots);
	ledger->holders = (_Atomic uint64_t *)(void *)(at + parts.holders);
	ledger->holder_words = (page_count + 63) / 64;
	ledger->bytes = parts.bytes;
}

int ledger_create(uint32_t page_count, uint32_t object_count, uint32_t memory_slots, uint32_t slot_count,
	struct ledger *ledger, int *fd)
{
	size_t bytes = parts_of(page_count, object_count, slot_count).bytes;
	void *base;
	int error;

	*fd = memfd_create("gpool-ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0)
		return -errno;
	if (fchmod(*fd, 0600) < 0 || ftruncate(*fd, (off_t)bytes) < 0)
		goto close_fd;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (base == MAP_FAILED)
		goto close_fd;
	ledger_over(base, page_count, object_count, slot_count, ledger);
	ledger->header->layout_version = POOL_LAYOUT_VERSION;
	ledger->header->header_bytes = sizeof(struct ledger_header);
	ledger->header->page_count = page_count;
	ledger->header->object_count = object_count;
	ledger->header->memory_slots = memory_slots;
	ledger->header->slot_count = slot_count;
	ledger->header->magic = LEDGER_MAGIC;
	return 0;
close_fd:
	error = -errno;
	close(*fd);
	return error;
}

int ledger_open(int fd, struct ledger *ledger)
{
	const struct ledger_header *header;
	struct stat stat;
	void *base;
	int error = -EPROTO;

	if (fstat(fd, &stat) < 0)
		return -errno;
	if (stat.st_size < (off_t)sizeof(*header))
		return -EBADMSG;
	base = mmap(NULL, (size_t)stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	header = base;
	if (header->magic != LEDGER_MAGIC || header->layout_version != POOL_LAYOUT_VERSION ||
		header->header_bytes != sizeof(*header))
		goto unmap;
	error = -EBADMSG;
	if (header->page_count < 1 || header->page_count > POOL_PAGES_MAX ||
		header->memory_slots > header->slot_count || header->object_count < 2 ||
		header->object_count > POOL_OBJECTS_MOST ||
		parts_of(header->page_count, header->object_count, header->slot_count).bytes != (size_t)stat.st_size)
		goto unmap;
	ledger_over(base, header->page_count, header->object_count, header->slot_count, ledger);
	return 0;
unmap:
	munmap(base, (size_t)stat.st_size);
	return error;
}

void ledger_close(struct ledger *ledger)
{
	if (ledger->header)
		munmap(ledger->header, ledger->bytes);
	memset(ledger, 0, sizeof(*ledger));
}
