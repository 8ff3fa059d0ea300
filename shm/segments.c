/*
 * segments.c - create, seal, check and map the two kinds of shared segments.
 */
#include "shm/pool_segment.h"
#include "shm/session_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const state_names[PAGE_STATES] = {
	[PAGE_FREE] = "FREE",
	[PAGE_LEASED] = "LEASED",
	[PAGE_SHARED] = "SHARED",
	[PAGE_EVICTING] = "EVICTING",
	[PAGE_MOVING] = "MOVING",
	[PAGE_QUARANTINED] = "QUARANTINED",
	[PAGE_RESERVED] = "RESERVED",
	[PAGE_RETIRED] = "RETIRED",
};

const char *page_state_name(enum page_state state)
{
	return (unsigned)state < PAGE_STATES ? state_names[state] : "INVALID";
}

const char *pool_pressure_name(enum pool_pressure pressure)
{
	static const char *const names[POOL_PRESSURES] = {"low", "medium", "high", "critical"};

	return (unsigned)pressure < POOL_PRESSURES ? names[pressure] : "invalid";
}

static size_t round_up(size_t bytes, size_t to)
{
	return (bytes + to - 1) / to * to;
}

/* Create a memfd of `bytes` bytes that can be sealed. Through /proc, only its creator's user and root can open it. */
static int segment_memfd(const char *name, size_t bytes, int *fd)
{
	int error;

	*fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0)
		return -errno;
	if (fchmod(*fd, 0600) < 0 || ftruncate(*fd, (off_t)bytes) < 0) {
		error = -errno;
		close(*fd);
		*fd = -1;
		return error;
	}
	return 0;
}

static int segment_map(int fd, size_t bytes, bool writable, void **base)
{
	*base = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	return *base == MAP_FAILED ? -errno : 0;
}

/* Check that a received descriptor is a memfd of this size that cannot shrink. */
static int segment_verify(int fd, int seals, size_t bytes)
{
	struct stat stat;
	int have;

	if (fstat(fd, &stat) < 0)
		return -errno;
	have = fcntl(fd, F_GET_SEALS);
	if (have < 0 || (have & seals) != seals)
		return -EPERM;
	return (uint64_t)stat.st_size == bytes ? 0 : -EBADMSG;
}

static void pool_segment_over(void *base, size_t bytes, bool writable, struct pool_segment *segment)
{
	struct pool_header *header = base;

	segment->header = header;
	segment->pages = (_Atomic uint64_t *)((char *)base + header->page_table_offset);
	segment->sessions = (struct session_record *)((char *)base + header->sessions_offset);
	segment->objects = (struct object_record *)((char *)base + header->objects_offset);
	segment->names = (_Atomic uint32_t *)((char *)base + header->names_offset);
	segment->roles = (struct role_record *)((char *)base + header->roles_offset);
	flight_over((char *)base + header->flight_offset, header->flight_records, false, &segment->flight);
	flight_over((char *)base + header->events_offset, header->flight_records ? FLIGHT_EVENTS : 0, true,
		&segment->events);
	segment->bytes = bytes;
	segment->writable = writable;
}

struct pool_layout {
	size_t table, sessions, objects, names, roles, flight, events, bytes;
};

static struct pool_layout pool_layout_of(uint32_t page_count, uint32_t object_count, uint32_t flight_records)
{
	struct pool_layout layout;

	layout.table = round_up(sizeof(struct pool_header), 4096);
	layout.sessions = round_up(layout.table + page_count * sizeof(uint64_t), 4096);
	layout.objects = round_up(layout.sessions + POOL_SESSIONS * sizeof(struct session_record), 4096);
	layout.names = round_up(layout.objects + object_count * sizeof(struct object_record), 4096);
	layout.roles = round_up(layout.names + object_count * sizeof(uint32_t), 4096);
	layout.flight = round_up(layout.roles + POOL_ROLES * sizeof(struct role_record), 4096);
	layout.events = round_up(layout.flight + flight_bytes(flight_records, false), 4096);
	layout.bytes = round_up(layout.events + flight_bytes(flight_records ? FLIGHT_EVENTS : 0, true), 4096);
	return layout;
}

static bool geometry_ok(const struct pool_geometry *g)
{
	return g->page_count >= 1 && g->page_count <= POOL_PAGES_MAX && g->pages_per_handle >= 1 &&
		g->page_count % g->pages_per_handle == 0 && g->reserved_pages < g->page_count &&
		g->page_bytes >= 4096 && g->objects < POOL_OBJECTS_MOST && strlen(g->name) < POOL_NAME_BYTES &&
		strlen(g->backend) < 16 && strlen(g->device) < 64 && (!g->peers || strlen(g->peers) < POOL_PEERS_BYTES);
}

uint32_t pool_object_count(uint32_t objects, uint32_t page_count)
{
	if (!objects)
		objects = page_count < POOL_OBJECTS_LEAST - 1 ? POOL_OBJECTS_LEAST - 1 : page_count;
	return objects < POOL_OBJECTS_MOST ? objects + 1 : POOL_OBJECTS_MOST;
}

int pool_segment_create(const struct pool_geometry *geometry, struct pool_segment *segment, int *fd)
{
	uint32_t object_count = pool_object_count(geometry->objects, geometry->page_count);
	uint32_t flight_records = flight_count(geometry->flight_records);
	struct pool_layout layout = pool_layout_of(geometry->page_count, object_count, flight_records);
	size_t bytes = layout.bytes;
	struct pool_header *header;
	char name[64];
	void *base;
	int error;

	if (!geometry_ok(geometry))
		return -EINVAL;
	snprintf(name, sizeof(name), "gpool-pool-%u", geometry->index);
	error = segment_memfd(name, bytes, fd);
	if (error)
		return error;
	error = segment_map(*fd, bytes, true, &base);
	if (error)
		goto close_fd;
	header = base;
	header->magic = POOL_MAGIC;
	header->layout_version = POOL_LAYOUT_VERSION;
	header->header_bytes = sizeof(struct pool_header);
	header->session_record_bytes = sizeof(struct session_record);
	header->session_header_bytes = sizeof(struct session_header);
	header->block_entry_bytes = sizeof(struct block_entry);
	header->lease_request_bytes = sizeof(struct lease_request);
	header->object_record_bytes = sizeof(struct object_record);
	header->role_record_bytes = sizeof(struct role_record);
	header->region_table_bytes = sizeof(struct region_table);
	header->flight_record_bytes = sizeof(struct flight_record);
	header->flight_records = flight_records;
	header->object_count = object_count;
	header->segment_bytes = bytes;
	header->page_table_offset = layout.table;
	header->sessions_offset = layout.sessions;
	header->objects_offset = layout.objects;
	header->names_offset = layout.names;
	header->roles_offset = layout.roles;
	header->flight_offset = layout.flight;
	header->events_offset = layout.events;
	header->page_bytes = geometry->page_bytes;
	header->page_count = geometry->page_count;
	header->pages_per_handle = geometry->pages_per_handle;
	header->reserved_first = geometry->page_count - geometry->reserved_pages;
	header->index = geometry->index;
	strcpy(header->name, geometry->name);
	strcpy(header->backend, geometry->backend);
	strcpy(header->device, geometry->device);
	if (geometry->peers)
		strcpy(header->peers, geometry->peers);
	pool_segment_over(base, bytes, true, segment);
	for (uint32_t page = 0; page < geometry->page_count; page++)
		atomic_init(&segment->pages[page],
			page_word_make(page < header->reserved_first ? PAGE_FREE : PAGE_RESERVED, 0, 1));
	atomic_store(&header->state_pages[PAGE_FREE], header->reserved_first);
	atomic_store(&header->state_pages[PAGE_RESERVED], geometry->reserved_pages);
	if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0) {
		error = -errno;
		goto unmap;
	}
	return 0;
unmap:
	munmap(base, bytes);
close_fd:
	close(*fd);
	return error;
}

int pool_segment_open(int fd, struct pool_segment *segment)
{
	struct pool_layout layout;
	struct pool_header header;
	struct stat stat;
	void *base;
	int error;

	if (fstat(fd, &stat) < 0)
		return -errno;
	if (stat.st_size < (off_t)sizeof(header))
		return -EBADMSG;
	error = segment_verify(fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE, (size_t)stat.st_size);
	if (error)
		return error;
	error = segment_map(fd, (size_t)stat.st_size, false, &base);
	if (error)
		return error;
	memcpy(&header, base, offsetof(struct pool_header, clock_ms));
	error = -EPROTO;
	if (header.magic != POOL_MAGIC || header.layout_version != POOL_LAYOUT_VERSION ||
		header.header_bytes != sizeof(header) || header.session_record_bytes != sizeof(struct session_record) ||
		header.session_header_bytes != sizeof(struct session_header) ||
		header.block_entry_bytes != sizeof(struct block_entry) ||
		header.lease_request_bytes != sizeof(struct lease_request) ||
		header.object_record_bytes != sizeof(struct object_record) ||
		header.role_record_bytes != sizeof(struct role_record) ||
		header.region_table_bytes != sizeof(struct region_table) ||
		header.flight_record_bytes != sizeof(struct flight_record))
		goto unmap;
	error = -EBADMSG;
	if (header.page_count < 1 || header.page_count > POOL_PAGES_MAX || header.pages_per_handle < 1 ||
		header.page_count % header.pages_per_handle || header.reserved_first > header.page_count ||
		header.page_bytes < 4096 || header.object_count < 2 || header.object_count > POOL_OBJECTS_MOST ||
		header.flight_records > FLIGHT_RECORDS_MAX ||
		header.flight_records != flight_count(header.flight_records))
		goto unmap;
	layout = pool_layout_of(header.page_count, header.object_count, header.flight_records);
	if (layout.bytes != (size_t)stat.st_size || header.page_table_offset != layout.table ||
		header.sessions_offset != layout.sessions || header.objects_offset != layout.objects ||
		header.names_offset != layout.names || header.roles_offset != layout.roles ||
		header.flight_offset != layout.flight || header.events_offset != layout.events)
		goto unmap;
	pool_segment_over(base, layout.bytes, false, segment);
	return 0;
unmap:
	munmap(base, (size_t)stat.st_size);
	return error;
}

void pool_segment_close(struct pool_segment *segment)
{
	if (segment->header)
		munmap(segment->header, segment->bytes);
	memset(segment, 0, sizeof(*segment));
}

struct session_layout session_layout_of(uint32_t page_count)
{
	struct session_layout layout;
	size_t at = round_up(sizeof(struct session_header), 4096);

	layout.free_bits = at;
	at = round_up(at + (page_count + 63) / 64 * sizeof(uint64_t), 4096);
	layout.pins = at;
	at = round_up(at + page_count * sizeof(uint32_t), 4096);
	layout.touch = at;
	at = round_up(at + page_count * sizeof(uint32_t), 4096);
	layout.blocks = at;
	/* on separate pages, because a worker registers them with its GPU driver */
	at = system_pages(at + page_count * sizeof(struct block_entry));
	layout.timeline = at;
	at = system_pages(at + SESSION_TIMELINE_BYTES);
	layout.requests = at;
	at = round_up(at + SESSION_REQUESTS * sizeof(struct lease_request), 4096);
	layout.stats = at;
	at = round_up(at + sizeof(struct session_stats), 4096);
	layout.answers = at;
	at = round_up(at + SESSION_ANSWERS * sizeof(struct session_answer), 4096);
	layout.regions = at;
	at = round_up(at + (page_count ? sizeof(struct region_table) : 0), 4096);
	layout.joins = at;
	at = round_up(at + (page_count ? SESSION_JOINS * sizeof(struct fence_join) : 0), 4096);
	layout.flight = at;
	layout.bytes = round_up(at + (page_count ? flight_bytes(FLIGHT_SESSION_RECORDS, false) : 0), 4096);
	return layout;
}

void session_segment_over(void *base, uint32_t page_count, struct session_segment *segment)
{
	struct session_layout layout = session_layout_of(page_count);
	char *at = base;

	segment->header = base;
	segment->free_bits = (_Atomic uint64_t *)(at + layout.free_bits);
	segment->pins = (_Atomic uint32_t *)(at + layout.pins);
	segment->touch = (_Atomic uint32_t *)(at + layout.touch);
	segment->blocks = (struct block_entry *)(at + layout.blocks);
	segment->timeline = (_Atomic uint64_t *)(at + layout.timeline);
	segment->requests = (struct lease_request *)(at + layout.requests);
	segment->stats = (struct session_stats *)(at + layout.stats);
	segment->answers = (struct session_answer *)(at + layout.answers);
	segment->regions = page_count ? (struct region_table *)(at + layout.regions) : NULL;
	segment->joins = page_count ? (struct fence_join *)(at + layout.joins) : NULL;
	flight_over(at + layout.flight, page_count ? FLIGHT_SESSION_RECORDS : 0, false, &segment->flight);
	segment->page_count = page_count;
	segment->bytes = layout.bytes;
}

int session_segment_create(uint32_t page_count, uint32_t pool_index, uint32_t session, uint64_t incarnation,
	struct session_segment *segment, int *fd)
{
	size_t bytes = session_layout_of(page_count).bytes;
	char name[64];
	void *base;
	int error;

	snprintf(name, sizeof(name), "gpool-session-%u-%u", pool_index, session);
	error = segment_memfd(name, bytes, fd);
	if (error)
		return error;
	error = segment_map(*fd, bytes, true, &base);
	if (error)
		goto close_fd;
	if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
		error = -errno;
		goto unmap;
	}
	session_segment_over(base, page_count, segment);
	segment->header->magic = SESSION_MAGIC;
	segment->header->layout_version = POOL_LAYOUT_VERSION;
	segment->header->header_bytes = sizeof(struct session_header);
	segment->header->page_count = page_count;
	segment->header->session = session;
	segment->header->incarnation = incarnation;
	return 0;
unmap:
	munmap(base, bytes);
close_fd:
	close(*fd);
	*fd = -1;
	return error;
}

int session_segment_open(int fd, uint32_t page_count, bool writable, struct session_segment *segment)
{
	size_t bytes = session_layout_of(page_count).bytes;
	struct session_header *header;
	void *base;
	int error;

	error = segment_verify(fd, F_SEAL_SHRINK | F_SEAL_GROW, bytes);
	if (error)
		return error;
	error = segment_map(fd, bytes, writable, &base);
	if (error)
		return error;
	header = base;
	if (writable &&
		(header->magic != SESSION_MAGIC || header->layout_version != POOL_LAYOUT_VERSION ||
			header->header_bytes != sizeof(*header))) {
		munmap(base, bytes);
		return -EPROTO;
	}
	session_segment_over(base, page_count, segment);
	return 0;
}

void session_segment_close(struct session_segment *segment)
{
	if (segment->header)
		munmap(segment->header, segment->bytes);
	memset(segment, 0, sizeof(*segment));
}
