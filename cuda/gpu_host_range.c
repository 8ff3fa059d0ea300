/*
 * gpu_host_range.c - address ranges of the host back end, and their use by queued work.
 *
 * A reservation is an inaccessible anonymous mapping, with one struct host_granule for each granule. The array of
 * granules is mapped rather than allocated, so a reservation of terabytes needs memory only for the part in use. All
 * rules are checked against this array before any system call, so a rejected call changes nothing.
 *
 * Invariants, under host->lock:
 *
 *   each mapping (a granule with `first` set, and those after it) holds one reference to its memory
 *   range->mapped is the number of granules with memory
 *   the kernel's protection of a granule is its access
 *   while a granule's uses > 0, its memory and access are not removed, so a checked operation cannot fault
 */
#include "cuda/gpu_host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	HUGE_PAGE = 2 << 20, /* on most machines; only an optimization */
	MAP_RUN = 512,       /* handles in one system call */
};

/* The common beginning of all entries of a struct host_table. */
struct span {
	uint64_t va;
	uint64_t bytes;
};

/* table_position() - return the number of entries that begin at or below `va`. */
static size_t table_position(const struct host_table *table, uint64_t va)
{
	size_t low = 0, high = table->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (((const struct span *)table->entries[middle])->va <= va)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* table_find() - return the entry that contains all of [va, va + bytes), or NULL. */
static void *table_find(const struct host_table *table, uint64_t va, uint64_t bytes)
{
	size_t position = table_position(table, va);
	const struct span *span;

	if (position == 0)
		return NULL;
	span = table->entries[position - 1];
	if (va - span->va >= span->bytes || bytes > span->bytes - (va - span->va))
		return NULL;
	return table->entries[position - 1];
}

/* table_overlaps() - return true if an entry overlaps [va, va + bytes). */
static bool table_overlaps(const struct host_table *table, uint64_t va, uint64_t bytes)
{
	size_t position = table_position(table, va + bytes - 1);
	const struct span *span;

	if (position == 0)
		return false;
	span = table->entries[position - 1];
	return span->va + span->bytes > va;
}

static int table_add(struct host_table *table, void *entry)
{
	size_t position, capacity;
	void **grown;

	if (table->count == table->capacity) {
		capacity = table->capacity ? table->capacity * 2 : 16;
		grown = realloc(table->entries, capacity * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		table->entries = grown;
		table->capacity = capacity;
	}
	position = table_position(table, ((const struct span *)entry)->va);
	memmove(&table->entries[position + 1], &table->entries[position],
		(table->count - position) * sizeof(*table->entries));
	table->entries[position] = entry;
	table->count++;
	return 0;
}

static void table_remove(struct host_table *table, const void *entry)
{
	size_t position = table_position(table, ((const struct span *)entry)->va);

	table->count--;
	memmove(&table->entries[position - 1], &table->entries[position],
		(table->count - (position - 1)) * sizeof(*table->entries));
}

static size_t granules_bytes(const struct gpu_host *host, uint64_t bytes)
{
	return bytes / host->granularity * sizeof(struct host_granule);
}

static void *map_inaccessible(uint64_t va, uint64_t bytes)
{
	return mmap((void *)va, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (va ? MAP_FIXED : 0),
		-1, 0);
}

static int map_aligned(uint64_t bytes, uint64_t align, uint64_t *va)
{
	uint64_t begin, head;
	void *place;

	if (bytes > UINT64_MAX - align)
		return -ENOMEM;
	place = map_inaccessible(0, bytes + align);
	if (place == MAP_FAILED)
		return -errno;
	begin = ((uintptr_t)place + align - 1) & ~(align - 1);
	head = begin - (uintptr_t)place;
	if (head)
		munmap(place, head);
	if (align - head)
		munmap((void *)(begin + bytes), align - head);
	*va = begin;
	return 0;
}

int host_reserve(struct gpu *gpu, uint64_t bytes, uint64_t align, uint64_t *va)
{
	struct gpu_host *host = host_of(gpu);
	struct host_range *range;
	int rc;

	if (bytes % host->granularity)
		return gpu_fail(-EINVAL, "cannot reserve %llu bytes: not a multiple of %llu", (unsigned long long)bytes,
			(unsigned long long)host->granularity);
	if (align < host->granularity)
		align = host->granularity;
	/* Align for huge pages. */
	if (align < HUGE_PAGE && bytes >= HUGE_PAGE)
		align = HUGE_PAGE;
	range = calloc(1, sizeof(*range));
	if (!range)
		return gpu_fail(-ENOMEM, "cannot reserve %llu bytes: out of memory", (unsigned long long)bytes);
	range->bytes = bytes;
	rc = map_aligned(bytes, align, &range->va);
	if (rc < 0)
		goto free_range;
	range->granules = mmap(NULL, granules_bytes(host, bytes), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (range->granules == MAP_FAILED) {
		rc = -errno;
		goto unmap_range;
	}
	pthread_mutex_lock(&host->lock);
	rc = table_add(&host->ranges, range);
	pthread_mutex_unlock(&host->lock);
	if (rc < 0)
		goto unmap_granules;
	*va = range->va;
	return 0;

unmap_granules:
	munmap(range->granules, granules_bytes(host, bytes));
unmap_range:
	munmap((void *)range->va, bytes);
free_range:
	free(range);
	return gpu_fail(rc, "cannot reserve %llu bytes: %s", (unsigned long long)bytes, strerror(-rc));
}

static void range_destroy(struct gpu_host *host, struct host_range *range)
{
	munmap(range->granules, granules_bytes(host, range->bytes));
	munmap((void *)range->va, range->bytes);
	free(range);
}

int host_unreserve(struct gpu *gpu, uint64_t va, uint64_t bytes)
{
	struct gpu_host *host = host_of(gpu);
	struct host_range *range;
	int rc = 0;

	pthread_mutex_lock(&host->lock);
	range = table_find(&host->ranges, va, bytes);
	if (!range || range->va != va || range->bytes != bytes)
		rc = gpu_fail(-EINVAL, "cannot unreserve %llu bytes at 0x%llx: not a complete reservation",
			(unsigned long long)bytes, (unsigned long long)va);
	else if (range->mapped)
		rc = gpu_fail(-EINVAL, "cannot unreserve %llu bytes at 0x%llx: mapped granules: %llu",
			(unsigned long long)bytes, (unsigned long long)va, (unsigned long long)range->mapped);
	else if (range->uses)
		rc = gpu_fail(-EBUSY, "cannot unreserve %llu bytes at 0x%llx: queued operations use it (%llu)",
			(unsigned long long)bytes, (unsigned long long)va, (unsigned long long)range->uses);
	else
		table_remove(&host->ranges, range);
	pthread_mutex_unlock(&host->lock);
	if (rc == 0)
		range_destroy(host, range);
	return rc;
}

/* granules_find() - return the granules of [va, va + bytes), which must be whole granules of one reservation. */
static struct host_granule *granules_find(
	struct gpu_host *host, uint64_t va, uint64_t bytes, struct host_range **range, uint64_t *count)
{
	struct host_range *found = table_find(&host->ranges, va, bytes);

	if (!found || va % host->granularity || bytes % host->granularity)
		return NULL;
	*range = found;
	*count = bytes / host->granularity;
	return &found->granules[(va - found->va) / host->granularity];
}

/* Map `bytes` bytes of a file, and record their granules, which are those of handles of `each` bytes. */
static int run_map(struct gpu_host *host, uint64_t va, uint64_t bytes, uint64_t each, struct host_memory *memories[],
	struct host_range *range, struct host_granule *granule)
{
	uint64_t count = bytes / host->granularity, per_handle = each / host->granularity;
	int rc;

	if (mmap((void *)va, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memories[0]->file->fd,
		    (off_t)memories[0]->offset) == MAP_FAILED) {
		rc = gpu_fail(-errno, "cannot map %llu bytes at 0x%llx: %s (limits: vm.max_map_count, RLIMIT_AS)",
			(unsigned long long)bytes, (unsigned long long)va, strerror(errno));
		/* a failed fixed mapping may leave unreserved addresses, which another mapping could use */
		map_inaccessible(va, bytes);
		return rc;
	}
	for (uint64_t i = 0; i < count; i++) {
		granule[i].memory = host_memory_slot(host, memories[i / per_handle]);
		granule[i].access = GPU_ACCESS_NONE;
		granule[i].first = i % per_handle == 0;
		granule[i].populated = false;
		memories[i / per_handle]->refs += granule[i].first;
	}
	range->mapped += count;
	return 0;
}

/* map_check() - check that a handle can be mapped at `va`. Return its granules, or NULL. */
static struct host_granule *map_check(struct gpu_host *host, uint64_t va, uint64_t bytes, uint64_t handle,
	struct host_memory **memory, struct host_range **range)
{
	struct host_granule *granule;
	uint64_t count;

	*memory = host_memory_find(host, handle);
	if (!*memory || (*memory)->bytes != bytes) {
		gpu_fail(-EINVAL, "cannot map %llu bytes of handle 0x%llx, which has %llu bytes",
			(unsigned long long)bytes, (unsigned long long)handle,
			*memory ? (unsigned long long)(*memory)->bytes : 0ull);
		return NULL;
	}
	granule = granules_find(host, va, bytes, range, &count);
	if (!granule) {
		gpu_fail(-EINVAL, "cannot map %llu bytes at 0x%llx: not inside a reservation",
			(unsigned long long)bytes, (unsigned long long)va);
		return NULL;
	}
	for (uint64_t i = 0; i < count; i++)
		if (granule[i].memory) {
			gpu_fail(-EINVAL, "cannot map %llu bytes at 0x%llx: the range overlaps a mapping",
				(unsigned long long)bytes, (unsigned long long)va);
			return NULL;
		}
	return granule;
}

/*
 * Map the first of `count` handles, and those that follow it without a gap in the file and in the reservation, by one
 * system call. *done: the number of handles.
 */
static int map_locked(
	struct gpu_host *host, uint64_t va, uint64_t bytes, const uint64_t *handles, uint32_t count, uint32_t *done)
{
	struct host_memory *memories[MAP_RUN];
	struct host_range *range, *other;
	struct host_granule *granule = map_check(host, va, bytes, handles[0], &memories[0], &range);
	uint32_t run = 1;
	int rc;

	if (!granule)
		return -EINVAL;
	for (; run < count && run < MAP_RUN; run++)
		if (!map_check(host, va + run * bytes, bytes, handles[run], &memories[run], &other) || other != range ||
			memories[run]->file != memories[0]->file ||
			memories[run]->offset != memories[0]->offset + run * bytes)
			break;
	rc = run_map(host, va, run * bytes, bytes, memories, range, granule);
	if (rc == 0)
		*done = run;
	return rc;
}

int host_map(struct gpu *gpu, uint64_t va, uint64_t bytes, const uint64_t *handles, uint32_t count, uint32_t *mapped)
{
	struct gpu_host *host = host_of(gpu);
	int rc = 0;

	pthread_mutex_lock(&host->lock);
	while (*mapped < count && rc == 0) {
		uint32_t done = 0;

		rc = map_locked(host, va + *mapped * bytes, bytes, handles + *mapped, count - *mapped, &done);
		*mapped += done;
	}
	pthread_mutex_unlock(&host->lock);
	return rc;
}

/* is_part() - return true if these granules begin or end within a mapping. */
static bool is_part(
	const struct host_range *range, const struct host_granule *granule, uint64_t count, uint64_t granularity)
{
	const struct host_granule *end = granule + count, *range_end = range->granules + range->bytes / granularity;

	return (granule->memory && !granule->first) || (end < range_end && end->memory && !end->first);
}

/* unmap_check() - check that these granules are whole mappings without holes and not used by queued work. */
static int unmap_check(
	const struct host_range *range, const struct host_granule *granule, uint64_t count, uint64_t granularity)
{
	const struct host_granule *end = granule + count;

	if (is_part(range, granule, count, granularity))
		return gpu_fail(-EINVAL, "cannot unmap a part of a mapping");
	for (; granule < end; granule++) {
		if (!granule->memory)
			return gpu_fail(-EINVAL, "cannot unmap a range with a hole");
		if (granule->uses)
			return gpu_fail(-EBUSY, "cannot unmap a range that queued operations use (%u)", granule->uses);
	}
	return 0;
}

static int unmap_locked(struct gpu_host *host, uint64_t va, uint64_t bytes)
{
	struct host_granule *granule;
	struct host_range *range;
	uint64_t count;
	int rc;

	granule = granules_find(host, va, bytes, &range, &count);
	if (!granule)
		return gpu_fail(-EINVAL, "cannot unmap %llu bytes at 0x%llx: not inside a reservation",
			(unsigned long long)bytes, (unsigned long long)va);
	rc = unmap_check(range, granule, count, host->granularity);
	if (rc < 0)
		return rc;
	if (map_inaccessible(va, bytes) == MAP_FAILED)
		return gpu_fail(-errno, "cannot unmap %llu bytes at 0x%llx: %s (limit: vm.max_map_count)",
			(unsigned long long)bytes, (unsigned long long)va, strerror(errno));
	for (uint64_t i = 0; i < count; i++) {
		if (granule[i].first)
			host_memory_unref(host, &host->memories[granule[i].memory - 1]);
		granule[i].memory = 0;
		granule[i].access = GPU_ACCESS_NONE;
		granule[i].first = false;
	}
	range->mapped -= count;
	return 0;
}

int host_unmap(struct gpu *gpu, uint64_t va, uint64_t bytes)
{
	struct gpu_host *host = host_of(gpu);
	int rc;

	pthread_mutex_lock(&host->lock);
	rc = unmap_locked(host, va, bytes);
	pthread_mutex_unlock(&host->lock);
	return rc;
}

static int access_protection(enum gpu_access access)
{
	static const int protection[] = {
		[GPU_ACCESS_NONE] = PROT_NONE,
		[GPU_ACCESS_READ] = PROT_READ,
		[GPU_ACCESS_READ_WRITE] = PROT_READ | PROT_WRITE,
	};

	return protection[access];
}

static void access_restore(const struct gpu_host *host, uint64_t va, const struct host_granule *granule, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		mprotect((void *)(va + i * host->granularity), host->granularity, access_protection(granule[i].access));
}

static int access_locked(struct gpu_host *host, uint64_t va, uint64_t bytes, enum gpu_access access)
{
	struct host_granule *granule;
	struct host_range *range;
	uint64_t count;
	int rc;

	granule = granules_find(host, va, bytes, &range, &count);
	if (!granule)
		return gpu_fail(-EINVAL, "cannot set access of %llu bytes at 0x%llx: not inside a reservation",
			(unsigned long long)bytes, (unsigned long long)va);
	if (is_part(range, granule, count, host->granularity))
		return gpu_fail(-EINVAL, "cannot set access of %llu bytes at 0x%llx: a part of a mapping",
			(unsigned long long)bytes, (unsigned long long)va);
	for (uint64_t i = 0; i < count; i++) {
		if (!granule[i].memory)
			return gpu_fail(-EINVAL,
				"cannot set access of %llu bytes at 0x%llx: nothing is mapped at granule %llu",
				(unsigned long long)bytes, (unsigned long long)va, (unsigned long long)i);
		if (granule[i].uses && access < granule[i].access)
			return gpu_fail(-EBUSY, "cannot remove access to 0x%llx: queued operations use it (%u)",
				(unsigned long long)(va + i * host->granularity), granule[i].uses);
	}
	if (mprotect((void *)va, bytes, access_protection(access)) < 0) {
		rc = gpu_fail(-errno, "cannot set access of %llu bytes at 0x%llx: %s", (unsigned long long)bytes,
			(unsigned long long)va, strerror(errno));
		access_restore(host, va, granule, count);
		return rc;
	}
	for (uint64_t i = 0; i < count; i++)
		granule[i].access = (uint8_t)access;
	return 0;
}

int host_access(struct gpu *gpu, uint64_t va, uint64_t bytes, enum gpu_access access)
{
	struct gpu_host *host = host_of(gpu);
	int rc;

	pthread_mutex_lock(&host->lock);
	rc = access_locked(host, va, bytes, access);
	pthread_mutex_unlock(&host->lock);
	return rc;
}

/*
 * All registered memory of the process: as on `cuda`, memory that is registered with one device cannot be registered
 * with another one. A child of fork() begins with an empty table, since it opens devices of its own.
 */
static struct {
	pthread_mutex_t lock;
	struct host_table table;
	pid_t pid;
} registered = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int registered_add(struct host_registration *registration)
{
	int rc = -EEXIST;

	pthread_mutex_lock(&registered.lock);
	if (registered.pid != getpid()) {
		registered.table.count = 0;
		registered.pid = getpid();
	}
	if (!table_overlaps(&registered.table, registration->va, registration->bytes))
		rc = table_add(&registered.table, registration);
	pthread_mutex_unlock(&registered.lock);
	return rc;
}

static void registered_remove(const struct host_registration *registration)
{
	pthread_mutex_lock(&registered.lock);
	if (registered.pid == getpid())
		table_remove(&registered.table, registration);
	pthread_mutex_unlock(&registered.lock);
}

int host_register(struct gpu *gpu, void *memory, uint64_t bytes)
{
	struct gpu_host *host = host_of(gpu);
	struct host_registration *registration;
	uint64_t va = (uintptr_t)memory;
	int rc = 0;

	/* Make the pages present, as page-locking does, and check that they exist and are writable. */
	if (madvise(memory, bytes, MADV_POPULATE_WRITE) < 0)
		return gpu_fail(-EINVAL, "cannot register %llu bytes at %p: the memory is not writable: %s",
			(unsigned long long)bytes, memory, strerror(errno));
	registration = calloc(1, sizeof(*registration));
	if (!registration)
		return gpu_fail(
			-ENOMEM, "cannot register %llu bytes at %p: out of memory", (unsigned long long)bytes, memory);
	registration->va = va;
	registration->bytes = bytes;
	rc = registered_add(registration);
	if (rc < 0) {
		free(registration);
		return rc == -EEXIST
			? gpu_fail(-EINVAL, "cannot register %llu bytes at %p: already registered in this process",
				  (unsigned long long)bytes, memory)
			: gpu_fail(rc, "cannot register %llu bytes at %p: out of memory", (unsigned long long)bytes,
				  memory);
	}
	pthread_mutex_lock(&host->lock);
	if (table_overlaps(&host->ranges, va, bytes))
		rc = gpu_fail(-EINVAL, "cannot register %llu bytes at %p: it is device memory",
			(unsigned long long)bytes, memory);
	else if (table_add(&host->registrations, registration) < 0)
		rc = gpu_fail(
			-ENOMEM, "cannot register %llu bytes at %p: out of memory", (unsigned long long)bytes, memory);
	pthread_mutex_unlock(&host->lock);
	if (rc < 0) {
		registered_remove(registration);
		free(registration);
	}
	return rc;
}

int host_unregister(struct gpu *gpu, void *memory)
{
	struct gpu_host *host = host_of(gpu);
	struct host_registration *registration;
	int rc = 0;

	pthread_mutex_lock(&host->lock);
	registration = table_find(&host->registrations, (uintptr_t)memory, 1);
	if (!registration || registration->va != (uintptr_t)memory)
		rc = gpu_fail(-EINVAL, "cannot unregister %p: it is not registered", memory);
	else if (registration->uses)
		rc = gpu_fail(-EBUSY, "cannot unregister %p: queued operations use it (%llu)", memory,
			(unsigned long long)registration->uses);
	else
		table_remove(&host->registrations, registration);
	pthread_mutex_unlock(&host->lock);
	if (rc == 0) {
		registered_remove(registration);
		free(registration);
	}
	return rc;
}

int host_address(struct gpu *gpu, const void *memory, uint64_t *va)
{
	struct gpu_host *host = host_of(gpu);
	bool found;

	pthread_mutex_lock(&host->lock);
	found = table_find(&host->registrations, (uintptr_t)memory, 1);
	pthread_mutex_unlock(&host->lock);
	if (!found)
		return gpu_fail(-EINVAL, "%p is not registered host memory", memory);
	*va = (uintptr_t)memory;
	return 0;
}

/* use_add() - add `step`, 1 or -1, to the uses of every granule of a queued operation. */
static void use_add(const struct gpu_host *host, const struct host_use *use, int step)
{
	uint64_t granule, last;

	if (use->registration) {
		use->registration->uses += (uint64_t)step;
		return;
	}
	use->range->uses += (uint64_t)step;
	granule = (use->va - use->range->va) / host->granularity;
	last = (use->va + use->bytes - 1 - use->range->va) / host->granularity;
	for (; granule <= last; granule++)
		use->range->granules[granule].uses += (uint32_t)step;
}

int host_use_begin_registered(struct gpu_host *host, uint64_t va, uint64_t bytes, struct host_use *use)
{
	struct host_use found = {.va = va, .bytes = bytes};

	pthread_mutex_lock(&host->lock);
	found.registration = table_find(&host->registrations, va, bytes);
	if (found.registration)
		use_add(host, &found, 1);
	pthread_mutex_unlock(&host->lock);
	if (!found.registration)
		return gpu_fail(-EINVAL, "%llu bytes at 0x%llx are not registered host memory",
			(unsigned long long)bytes, (unsigned long long)va);
	*use = found;
	return 0;
}

/* table_room() - return the number of bytes from `va` to the end of the entry that contains it; 0: none does. */
static uint64_t table_room(const struct host_table *table, uint64_t va)
{
	const struct span *span = table_find(table, va, 1);

	return span ? span->bytes - (va - span->va) : 0;
}

/* outside_fail() - describe memory that queued work cannot use. */
static int outside_fail(struct gpu_host *host, uint64_t va, uint64_t bytes)
{
	uint64_t room;

	pthread_mutex_lock(&host->lock);
	room = table_room(&host->ranges, va);
	room = room ? room : table_room(&host->registrations, va);
	pthread_mutex_unlock(&host->lock);
	if (room)
		return gpu_fail(-EINVAL, "%llu bytes at 0x%llx exceed the memory there, which ends after %llu bytes",
			(unsigned long long)bytes, (unsigned long long)va, (unsigned long long)room);
	return gpu_fail(-EINVAL, "0x%llx is the address of neither GPU memory nor registered host memory",
		(unsigned long long)va);
}

int host_use_begin(struct gpu_host *host, uint64_t va, uint64_t bytes, struct host_use *use)
{
	struct host_use found = {.va = va, .bytes = bytes};

	pthread_mutex_lock(&host->lock);
	found.range = table_find(&host->ranges, va, bytes);
	if (found.range)
		use_add(host, &found, 1);
	pthread_mutex_unlock(&host->lock);
	if (found.range) {
		*use = found;
		return 0;
	}
	return host_use_begin_registered(host, va, bytes, use) < 0 ? outside_fail(host, va, bytes) : 0;
}

int host_use_check(struct gpu_host *host, const struct host_use *use, enum gpu_access access)
{
	uint64_t granule, last;
	int rc = 0;

	if (use->registration)
		return 0; /* registered memory is writable, and cannot be unregistered while it is used */
	granule = (use->va - use->range->va) / host->granularity;
	last = (use->va + use->bytes - 1 - use->range->va) / host->granularity;
	pthread_mutex_lock(&host->lock);
	for (; granule <= last && rc == 0; granule++)
		if (!use->range->granules[granule].memory || use->range->granules[granule].access < access)
			rc = -EIO;
	pthread_mutex_unlock(&host->lock);
	return rc;
}

/*
 * run_unpopulated() - find the first run of granules in [*granule, end) that are not populated, and mark them as
 * populated. Return its length.
 */
static uint64_t run_unpopulated(struct gpu_host *host, struct host_granule *granules, uint64_t *granule, uint64_t end)
{
	uint64_t count = 0;

	pthread_mutex_lock(&host->lock);
	while (*granule < end && granules[*granule].populated)
		++*granule;
	while (*granule + count < end && !granules[*granule + count].populated)
		granules[*granule + count++].populated = true;
	pthread_mutex_unlock(&host->lock);
	return count;
}

void host_use_populate(struct gpu_host *host, const struct host_use *use)
{
	uint64_t granule, end, count;

	if (use->registration)
		return;
	granule = (use->va - use->range->va + host->granularity - 1) / host->granularity;
	end = (use->va + use->bytes - use->range->va) / host->granularity;
	while ((count = run_unpopulated(host, use->range->granules, &granule, end)) > 0) {
		/*
		 * The mapping is shared, so this advice maps the pages for writing, too, several by one fault. Linux
		 * before 5.14 has no such advice. The operation works without it.
		 */
		madvise((void *)(use->range->va + granule * host->granularity), count * host->granularity,
			MADV_POPULATE_READ);
		granule += count;
	}
}

void host_use_end(struct gpu_host *host, struct host_use *use)
{
	if (!use->range && !use->registration)
		return;
	pthread_mutex_lock(&host->lock);
	use_add(host, use, -1);
	pthread_mutex_unlock(&host->lock);
	*use = (struct host_use){0};
}

void host_range_fini(struct gpu_host *host)
{
	for (size_t i = 0; i < host->ranges.count; i++)
		range_destroy(host, host->ranges.entries[i]);
	for (size_t i = 0; i < host->registrations.count; i++) {
		registered_remove(host->registrations.entries[i]);
		free(host->registrations.entries[i]);
	}
	free(host->ranges.entries);
	free(host->registrations.entries);
}
