/*
 * memory.c - physical memory, address ranges, access, descriptors between processes, registered host memory: "Virtual
 * Memory Management" and "Memory Management".
 *
 * A handle is a file of machine.c. Mapping it maps the file at the device address without any access, so that an access
 * by the CPU is a fault, as on a GPU; with the setting cpu_access, the CPU has the rights of the devices. Queued work
 * uses a second mapping of the file (memory.alias), and only after it has checked the rights of its device.
 */
#include "tests/driver/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

struct memory {
	int fd;
	int device;
	uint64_t bytes;
	char name[64];
	bool exportable;
	uint32_t handles, mappings, busy; /* freed when all are 0; busy: queued work accesses it */
	unsigned char *alias;
};

struct mapping {
	CUdeviceptr at;
	struct memory *memory;
	unsigned char access[DEVICES_MAX]; /* CUmemAccess_flags */
};

struct reservation {
	struct reservation *next;
	CUdeviceptr at;
	uint64_t bytes;
	struct mapping **slots; /* one per granule */
	bool block;             /* of cuMemAlloc() or a pool */
};

struct registration {
	struct registration *next;
	unsigned char *at;
	uint64_t bytes;
	CUdeviceptr device; /* its address on devices */
	unsigned flags;
};

static struct memory **handles; /* by number; a released number is used again, as the driver does */
static uint32_t handle_count;
static struct reservation *reservations;
static struct registration *registrations;
static unsigned opened; /* kernels that run, on device opened_for */
static int opened_for;

static uint64_t slot_count(const struct reservation *reservation)
{
	return (reservation->bytes + settings.granularity - 1) / settings.granularity;
}

static CUmemGenericAllocationHandle handle_add(struct memory *memory)
{
	struct memory **grown;
	uint32_t i;

	for (i = 0; i < handle_count && handles[i]; i++)
		;
	if (i == handle_count) {
		grown = realloc(handles, (handle_count * 2 + 64) * sizeof(struct memory *));
		if (!grown)
			driver_undefined("no memory for handles");
		memset(grown + handle_count, 0, (handle_count + 64) * sizeof(struct memory *));
		handles = grown;
		handle_count = handle_count * 2 + 64;
	}
	handles[i] = memory;
	memory->handles++;
	return 0x600000000ull + (uint64_t)i * 16;
}

static struct memory **handle_find(CUmemGenericAllocationHandle handle)
{
	uint64_t i = (handle - 0x600000000ull) / 16;

	return handle >= 0x600000000ull && handle % 16 == 0 && i < handle_count && handles[i] ? &handles[i] : NULL;
}

static void memory_drop(struct memory *memory)
{
	if (memory->handles || memory->mappings || memory->busy)
		return;
	if (memory->alias)
		munmap(memory->alias, memory->bytes);
	close(memory->fd);
	machine_give(memory->device, memory->bytes, memory->name);
	free(memory);
}

void memory_unhold(struct memory *memory)
{
	if (!memory)
		return;
	memory->busy--;
	memory_drop(memory);
}

static struct reservation *reservation_at(CUdeviceptr at)
{
	struct reservation *reservation;

	for (reservation = reservations; reservation; reservation = reservation->next)
		if (at >= reservation->at && at - reservation->at < reservation->bytes)
			return reservation;
	return NULL;
}

static struct mapping **slot_at(CUdeviceptr at)
{
	struct reservation *reservation = reservation_at(at);

	return reservation ? &reservation->slots[(at - reservation->at) / settings.granularity] : NULL;
}

static bool location_ok(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id >= 0 &&
		(unsigned)location->id < settings.devices;
}

static bool properties_ok(const CUmemAllocationProp *properties)
{
	unsigned types = (unsigned)properties->requestedHandleTypes;

	return properties->type == CU_MEM_ALLOCATION_TYPE_PINNED && location_ok(&properties->location) &&
		!(types & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

/* "Virtual Memory Management", cuMemGetAllocationGranularity. */
CUresult cuMemGetAllocationGranularity(
	size_t *granularity, const CUmemAllocationProp *properties, CUmemAllocationGranularity_flags option)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!granularity || !properties || !properties_ok(properties) ||
		(option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	*granularity = settings.granularity;
	return call_leave(CUDA_SUCCESS);
}

static CUresult memory_make(int device, uint64_t bytes, bool exportable, struct memory **made)
{
	struct memory *memory = calloc(1, sizeof(*memory));
	CUresult result;

	if (!memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = machine_take(device, bytes, &memory->fd, memory->name);
	if (result != CUDA_SUCCESS) {
		free(memory);
		return result;
	}
	memory->device = device;
	memory->bytes = bytes;
	memory->exportable = exportable;
	*made = memory;
	return CUDA_SUCCESS;
}

/*
 * "Virtual Memory Management", cuMemCreate: the size is a multiple of the granularity, flags are 0; memory is exported
 * later only as one of the requested types; RDMA only if the device has the attribute. It needs no context.
 */
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
	unsigned long long flags)
{
	CUresult result = call_enter(__func__, 0);
	struct memory *memory;

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !properties || !properties_ok(properties) || flags || !bytes || bytes % settings.granularity)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (properties->allocFlags.gpuDirectRDMACapable && !settings.rdma)
		return call_leave(CUDA_ERROR_NOT_SUPPORTED);
	result = memory_make(properties->location.id, bytes, properties->requestedHandleTypes != 0, &memory);
	if (result == CUDA_SUCCESS)
		*handle = handle_add(memory);
	return call_leave(result);
}

/*
 * "Virtual Memory Management", cuMemRelease: memory lives until all handles are released and all mappings undone. The
 * behavior for a handle that is invalid, as after its release, is undefined; its number may be in use again.
 */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);
	struct memory **found, *memory;

	if (result != CUDA_SUCCESS)
		return result;
	found = handle_find(handle);
	if (!found)
		driver_undefined("cuMemRelease of handle %#llx, which is invalid", (unsigned long long)handle);
	memory = *found;
	*found = NULL;
	memory->handles--;
	memory_drop(memory);
	return call_leave(CUDA_SUCCESS);
}

/* The data of an exported descriptor, in addition to the file. */
struct carried {
	char magic[8];
	int device;
	uint64_t bytes;
	char name[64];
};

/*
 * A descriptor of the driver is not a regular file. Here it is a socket in which a message with the file remains
 * queued: each import peeks at the message, which duplicates the file. The memory cannot be accessed through the socket
 * in any other way.
 */
static CUresult descriptor_make(const struct memory *memory, int *descriptor)
{
	struct carried carried = {.magic = "gpudbl1", .device = memory->device, .bytes = memory->bytes};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec part = {&carried, sizeof(carried)};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	int pair[2];
	ssize_t sent;

	memcpy(carried.name, memory->name, sizeof(carried.name));
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair)) /* inheritable: its documentation does not exclude that */
		return CUDA_ERROR_OPERATING_SYSTEM;
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &memory->fd, sizeof(int));
	sent = sendmsg(pair[1], &message, MSG_NOSIGNAL);
	close(pair[1]);
	if (sent != (ssize_t)sizeof(carried)) {
		close(pair[0]);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*descriptor = pair[0];
	return CUDA_SUCCESS;
}

/* "Virtual Memory Management", cuMemExportToShareableHandle: one requested type, which the memory was created for. */
CUresult cuMemExportToShareableHandle(
	void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags)
{
	CUresult result = call_enter(__func__, 0);
	struct memory **found;

	if (result != CUDA_SUCCESS)
		return result;
	found = handle_find(handle);
	if (!shareable || !found || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(*found)->exportable)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	return call_leave(descriptor_make(*found, shareable));
}

/*
 * "Virtual Memory Management", cuMemImportFromShareableHandle: the descriptor must be one of the driver's; the importer
 * keeps it and closes it, and releases the handle.
 */
CUresult cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type)
{
	CUresult result = call_enter(__func__, 0);
	struct carried carried;
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {&carried, sizeof(carried)};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header;
	struct memory *memory;
	int fd;

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (recvmsg((int)(intptr_t)shareable, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) !=
		(ssize_t)sizeof(carried))
		return call_leave(errno == EMFILE ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE);
	header = CMSG_FIRSTHDR(&message);
	if (!header || header->cmsg_type != SCM_RIGHTS)
		return call_leave(
			message.msg_flags & MSG_CTRUNC ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE);
	memcpy(&fd, CMSG_DATA(header), sizeof(fd));
	memory = memcmp(carried.magic, "gpudbl1", 8) == 0 && (unsigned)carried.device < settings.devices
		? calloc(1, sizeof(*memory))
		: NULL;
	if (!memory) {
		close(fd);
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	}
	memory->fd = fd;
	memory->device = carried.device;
	memory->bytes = carried.bytes;
	memory->exportable = true;
	memcpy(memory->name, carried.name, sizeof(memory->name));
	*handle = handle_add(memory);
	return call_leave(CUDA_SUCCESS);
}

static CUresult reserve(uint64_t bytes, uint64_t align, CUdeviceptr wanted, struct reservation **made)
{
	struct reservation *reservation = calloc(1, sizeof(*reservation));
	unsigned char *at;
	uint64_t head, shift = 0;

	/* Unless the setting is on, a range is aligned to less than the granularity if no alignment is requested. */
	if (!settings.aligned && align < settings.granularity)
		shift = align > 4096 ? align : 4096;
	if (align < settings.granularity)
		align = settings.granularity;
	if (!reservation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	at = mmap((void *)(uintptr_t)wanted, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		0);
	reservation->bytes = bytes;
	reservation->slots = calloc(slot_count(reservation), sizeof(struct mapping *));
	if (at == MAP_FAILED || !reservation->slots) {
		if (at != MAP_FAILED)
			munmap(at, bytes + align);
		free(reservation->slots);
		free(reservation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	head = (align - (uintptr_t)at % align) % align + shift;
	if (head)
		munmap(at, head);
	munmap(at + head + bytes, align - head);
	reservation->at = (uintptr_t)at + head;
	reservation->next = reservations;
	reservations = reservation;
	*made = reservation;
	return CUDA_SUCCESS;
}

/*
 * "Virtual Memory Management", cuMemAddressReserve: flags are 0; the alignment is 0 or a power of two; address and size
 * are multiples of the host's page size. That the size must also be a multiple of the granularity, as everything that
 * is mapped there, is a choice. The meaning of an alignment of 0 is not documented; the setting `aligned` defines it.
 */
CUresult cuMemAddressReserve(
	CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags)
{
	CUresult result = call_enter(__func__, 0);
	struct reservation *made;

	if (result != CUDA_SUCCESS)
		return result;
	if (!at || !bytes || bytes % settings.granularity || flags || alignment & (alignment - 1) ||
		wanted % (CUdeviceptr)sysconf(_SC_PAGESIZE))
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	result = reserve(bytes, alignment, wanted, &made);
	if (result == CUDA_SUCCESS)
		*at = made->at;
	return call_leave(result);
}

static void unreserve(struct reservation *reservation)
{
	struct reservation **link = &reservations;

	while (*link != reservation)
		link = &(*link)->next;
	*link = reservation->next;
	munmap((void *)(uintptr_t)reservation->at, reservation->bytes);
	free(reservation->slots);
	free(reservation);
}

/*
 * "Virtual Memory Management", cuMemAddressFree: address and size are those of the reservation. That a range which is
 * still mapped cannot be freed is a choice: the documentation does not mention it.
 */
CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);
	struct reservation *reservation;

	if (result != CUDA_SUCCESS)
		return result;
	reservation = reservation_at(at);
	if (!reservation || reservation->block || reservation->at != at || reservation->bytes != bytes)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	for (uint64_t i = 0; i < slot_count(reservation); i++)
		if (reservation->slots[i])
			return call_leave(CUDA_ERROR_INVALID_VALUE);
	unreserve(reservation);
	return call_leave(CUDA_SUCCESS);
}

/* "Virtual Memory Management", cuMemMap: a range that is mapped must not be mapped again. */
static CUresult map(struct reservation *reservation, CUdeviceptr at, struct memory *memory)
{
	struct mapping **slot = &reservation->slots[(at - reservation->at) / settings.granularity];
	uint64_t granules = memory->bytes / settings.granularity;
	struct mapping *mapping;

	for (uint64_t i = 0; i < granules; i++)
		if (slot[i])
			return CUDA_ERROR_INVALID_VALUE;
	if (!memory->alias) {
		memory->alias = mmap(NULL, memory->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
		if (memory->alias == MAP_FAILED) {
			memory->alias = NULL;
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	mapping = calloc(1, sizeof(*mapping));
	if (!mapping ||
		mmap((void *)(uintptr_t)at, memory->bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, 0) ==
			MAP_FAILED) {
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	mapping->at = at;
	mapping->memory = memory;
	memory->mappings++;
	for (uint64_t i = 0; i < granules; i++)
		slot[i] = mapping;
	return CUDA_SUCCESS;
}

/*
 * "Virtual Memory Management", cuMemMap: offset and flags are 0; address and size are multiples of the granularity; the
 * range is in one reservation and not mapped. The documentation permits a size below the handle's; here it must be the
 * handle's, since failures of smaller mappings have been reported. The mapping starts without access.
 */
CUresult cuMemMap(
	CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult result = call_enter(__func__, 0);
	struct reservation *reservation;
	struct memory **memory;

	if (result != CUDA_SUCCESS)
		return result;
	memory = handle_find(handle);
	reservation = reservation_at(at);
	if (!memory || !reservation || reservation->block || offset || flags || at % settings.granularity ||
		bytes != (*memory)->bytes || bytes > reservation->bytes - (at - reservation->at))
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	return call_leave(map(reservation, at, *memory));
}

/* range_whole() - return true if the range consists of whole mappings, without holes. */
static bool range_whole(CUdeviceptr at, uint64_t bytes)
{
	struct mapping **slot;

	for (CUdeviceptr i = at; i < at + bytes; i += (*slot)->memory->bytes) {
		slot = slot_at(i);
		if (!slot || !*slot || (*slot)->at != i || (*slot)->memory->bytes > at + bytes - i)
			return false;
	}
	return true;
}

static bool range_mapped(CUdeviceptr at, uint64_t bytes)
{
	for (CUdeviceptr i = at; i < at + bytes; i += settings.granularity) {
		struct mapping **slot = slot_at(i);

		if (!slot || !*slot)
			return false;
	}
	return true;
}

static void unmap(struct mapping *mapping)
{
	struct mapping **slot = slot_at(mapping->at);
	struct memory *memory = mapping->memory;

	if (mmap((void *)(uintptr_t)mapping->at, memory->bytes, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		driver_undefined("cannot unmap device memory: %s", strerror(errno));
	for (uint64_t i = 0; i < memory->bytes / settings.granularity; i++)
		slot[i] = NULL;
	free(mapping);
	memory->mappings--;
	memory_drop(memory);
}

static CUresult wait_for_all(void)
{
	for (unsigned device = 0; device < settings.devices; device++)
		if (driver.contexts[device].active)
			context_wait(&driver.contexts[device]);
	return driver_failed();
}

/*
 * "Virtual Memory Management", cuMemUnmap: the range is the whole range of a mapping. That it may consist of several
 * mappings is a choice. The documentation calls the call synchronous for most uses, but not what it waits for: here it
 * acts at once, and queued work that still uses the range faults; the setting unmap_waits makes it wait instead.
 */
CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (settings.unmap_waits)
		wait_for_all();
	if (!bytes || at % settings.granularity || bytes % settings.granularity || !range_whole(at, bytes) ||
		reservation_at(at)->block)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	for (CUdeviceptr i = at, end = at + bytes; i < end;) {
		struct mapping *mapping = *slot_at(i);

		i += mapping->memory->bytes;
		unmap(mapping);
	}
	return call_leave(CUDA_SUCCESS);
}

static int cpu_rights(unsigned access)
{
	return access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
		: access == CU_MEM_ACCESS_FLAGS_PROT_READ   ? PROT_READ
							    : PROT_NONE;
}

static void mapping_access(struct mapping *mapping, int device, unsigned access)
{
	mapping->access[device] = (unsigned char)access;
	if (settings.cpu_access)
		for (unsigned other = 0; other < settings.devices; other++)
			access |= mapping->access[other];
	if (settings.cpu_access || (opened && opened_for == device))
		mprotect((void *)(uintptr_t)mapping->at, mapping->memory->bytes, cpu_rights(access));
}

/*
 * "Virtual Memory Management", cuMemSetAccess: the range is fully mapped and contains all of each allocation that was
 * mapped there. The behavior for a part of an allocation is not documented; the setting `partial` permits it. A device
 * other than the memory's must be its peer, else CUDA_ERROR_INVALID_DEVICE; the documentation lists this error without
 * its cause. The call may wait, like cuMemUnmap().
 */
CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *descriptors, size_t count)
{
	CUresult result = call_enter(__func__, 0);

	if (result != CUDA_SUCCESS)
		return result;
	if (settings.unmap_waits)
		wait_for_all();
	if (!bytes || !descriptors || !count || at % settings.granularity || bytes % settings.granularity ||
		!range_mapped(at, bytes))
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (!settings.partial && !range_whole(at, bytes))
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count; i++) {
		unsigned flags = (unsigned)descriptors[i].flags;

		if (!location_ok(&descriptors[i].location) || flags == 2 || flags > CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return call_leave(CUDA_ERROR_INVALID_VALUE);
		if (descriptors[i].location.id != (*slot_at(at))->memory->device && !settings.peers)
			return call_leave(CUDA_ERROR_INVALID_DEVICE);
	}
	for (CUdeviceptr a = at; a < at + bytes; a += settings.granularity)
		for (size_t i = 0; i < count; i++)
			mapping_access(*slot_at(a), descriptors[i].location.id, (unsigned)descriptors[i].flags);
	return call_leave(CUDA_SUCCESS);
}

/* "Virtual Memory Management", cuMemGetAccess. */
CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr at)
{
	CUresult result = call_enter(__func__, 0);
	struct mapping **slot;

	if (result != CUDA_SUCCESS)
		return result;
	slot = slot_at(at);
	if (!flags || !location || !location_ok(location) || !slot || !*slot)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	*flags = (*slot)->access[location->id];
	return call_leave(CUDA_SUCCESS);
}

/* "Memory Management", cuMemGetInfo: of the current context's device, whatever process uses the memory. */
CUresult cuMemGetInfo(size_t *free_bytes, size_t *total)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!free_bytes || !total)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	*free_bytes = machine_free_bytes(context_current()->device);
	*total = settings.memory_bytes;
	return call_leave(CUDA_SUCCESS);
}

bool memory_is_device(CUdeviceptr at)
{
	return reservation_at(at);
}

bool memory_is_registered(const void *at, uint64_t bytes)
{
	const unsigned char *byte = at;

	for (struct registration *r = registrations; r; r = r->next)
		if (byte >= r->at && (uint64_t)(byte - r->at) < r->bytes &&
			bytes <= r->bytes - (uint64_t)(byte - r->at))
			return true;
	return false;
}

void *memory_translate(int device, CUdeviceptr at, uint64_t *bytes, bool write, struct memory **held)
{
	struct mapping **slot = slot_at(at);
	struct mapping *mapping;
	uint64_t offset;

	*held = NULL;
	if (!slot) {
		for (struct registration *r = registrations; r; r = r->next)
			if (at >= r->device && at - r->device < r->bytes) {
				offset = at - r->device;
				*bytes = *bytes < r->bytes - offset ? *bytes : r->bytes - offset;
				return r->at + offset;
			}
		return NULL;
	}
	mapping = *slot;
	if (!mapping || !(mapping->access[device] & CU_MEM_ACCESS_FLAGS_PROT_READ) ||
		(write && mapping->access[device] != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
		return NULL;
	offset = at - mapping->at;
	*bytes = *bytes < mapping->memory->bytes - offset ? *bytes : mapping->memory->bytes - offset;
	*held = mapping->memory;
	mapping->memory->busy++;
	return mapping->memory->alias + offset;
}

/*
 * "Memory Management", cuMemHostRegister: devices without the attribute CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM access
 * the memory only by the address of cuMemHostGetDevicePointer(), which then differs from that of the host.
 */
bool memory_for_kernel(uint64_t *value)
{
	for (struct registration *r = registrations; r && settings.host_alias; r = r->next) {
		if (*value - (uintptr_t)r->at < r->bytes)
			return false;
		if (*value - r->device < r->bytes) {
			*value = (uintptr_t)r->at + (*value - r->device);
			return true;
		}
	}
	return true;
}

static void rights_apply(int device)
{
	for (struct reservation *r = reservations; r; r = r->next)
		for (uint64_t i = 0; i < slot_count(r); i++) {
			struct mapping *mapping = r->slots[i];

			if (mapping && mapping->at == r->at + i * settings.granularity)
				mprotect((void *)(uintptr_t)mapping->at, mapping->memory->bytes,
					device < 0 ? PROT_NONE : cpu_rights(mapping->access[device]));
		}
}

void memory_open(int device)
{
	opened++;
	opened_for = device;
	if (!settings.cpu_access)
		rights_apply(device);
}

void memory_close(void)
{
	opened--;
	if (!settings.cpu_access)
		rights_apply(-1);
}

CUresult memory_block_make(int device, uint64_t bytes, CUdeviceptr *at)
{
	uint64_t whole = (bytes + settings.granularity - 1) / settings.granularity * settings.granularity;
	struct reservation *reservation;
	struct memory *memory;
	CUresult result = memory_make(device, whole, false, &memory);

	if (result != CUDA_SUCCESS)
		return result;
	result = reserve(whole, settings.granularity, 0, &reservation);
	if (result != CUDA_SUCCESS) {
		memory_drop(memory);
		return result;
	}
	result = map(reservation, reservation->at, memory);
	if (result != CUDA_SUCCESS) {
		unreserve(reservation);
		memory_drop(memory);
		return result;
	}
	reservation->block = true;
	mapping_access(reservation->slots[0], device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	*at = reservation->at;
	return CUDA_SUCCESS;
}

/* "Memory Management", cuMemFree, and "Stream Ordered Memory Allocator", cuMemFreeAsync: a returned address. */
CUresult memory_block_free(CUdeviceptr at)
{
	struct reservation *reservation = reservation_at(at);

	if (!reservation || !reservation->block || reservation->at != at)
		return CUDA_ERROR_INVALID_VALUE;
	unmap(reservation->slots[0]);
	unreserve(reservation);
	return CUDA_SUCCESS;
}

/* "Memory Management", cuMemAlloc: a size of 0 is CUDA_ERROR_INVALID_VALUE. */
CUresult cuMemAlloc(CUdeviceptr *at, size_t bytes)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT | CALL_UNSAFE);

	if (result != CUDA_SUCCESS)
		return result;
	if (!at || !bytes)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	return call_leave(memory_block_make(context_current()->device, bytes, at));
}

/*
 * "Memory Management", cuMemFree: an address that cuMemAlloc returned. The documentation permits it to wait for work;
 * here it waits for all work.
 */
CUresult cuMemFree(CUdeviceptr at)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT | CALL_UNSAFE);

	if (result != CUDA_SUCCESS)
		return result;
	wait_for_all();
	return call_leave(memory_block_free(at));
}

/* memory_is_writable() - return true if all of a range of the process is mapped and writable. */
static bool memory_is_writable(uintptr_t at, uint64_t bytes)
{
	unsigned long begin, end;
	uintptr_t reached = at;
	char writable, line[512];
	FILE *maps = fopen("/proc/self/maps", "re");

	while (maps && reached < at + bytes && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %*c%c", &begin, &end, &writable) != 3 || end <= reached)
			continue;
		if (begin > reached || writable != 'w')
			break;
		reached = end;
	}
	if (maps)
		fclose(maps);
	return !maps || reached >= at + bytes;
}

/*
 * "Memory Management", cuMemHostRegister: flags are known ones, of which two are modeled; memory that overlaps
 * registered memory is CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED. It must be writable, unless a flag says that devices
 * only read it. The documentation does not name the error; that it must exist is implied.
 */
CUresult cuMemHostRegister(void *at, size_t bytes, unsigned flags)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT | CALL_UNSAFE);
	struct registration *registration;
	unsigned char *byte = at;
	void *alias;

	if (result != CUDA_SUCCESS)
		return result;
	if (!at || !bytes || flags & ~(unsigned)(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP))
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	for (registration = registrations; registration; registration = registration->next)
		if (byte < registration->at + registration->bytes && registration->at < byte + bytes)
			return call_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	if (memory_is_device((uintptr_t)at) || !memory_is_writable((uintptr_t)at, bytes))
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	/* With the setting host_alias, as the attribute reports, the memory has another address on the device. */
	alias = settings.host_alias ? mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
				    : at;
	registration = alias == MAP_FAILED ? NULL : calloc(1, sizeof(*registration));
	if (!registration)
		return call_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*registration = (struct registration){registrations, at, bytes, (uintptr_t)alias, flags};
	registrations = registration;
	return call_leave(CUDA_SUCCESS);
}

/* "Memory Management", cuMemHostUnregister: the base address that was registered. */
CUresult cuMemHostUnregister(void *at)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT | CALL_UNSAFE);
	struct registration **link, *registration;

	if (result != CUDA_SUCCESS)
		return result;
	for (link = &registrations; *link && (*link)->at != at; link = &(*link)->next)
		;
	registration = *link;
	if (!registration)
		return call_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	wait_for_all();
	*link = registration->next;
	if (registration->device != (uintptr_t)registration->at)
		munmap((void *)(uintptr_t)registration->device, registration->bytes);
	free(registration);
	return call_leave(CUDA_SUCCESS);
}

/* "Memory Management", cuMemHostGetDevicePointer: flags are 0; memory must have been registered with DEVICEMAP. */
CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *at, unsigned flags)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	unsigned char *byte = at;

	if (result != CUDA_SUCCESS)
		return result;
	if (!device || flags)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	for (struct registration *r = registrations; r; r = r->next)
		if (byte >= r->at && byte < r->at + r->bytes && r->flags & CU_MEMHOSTREGISTER_DEVICEMAP) {
			*device = r->device + (uint64_t)(byte - r->at);
			return call_leave(CUDA_SUCCESS);
		}
	return call_leave(CUDA_ERROR_INVALID_VALUE);
}

void memory_forget(void)
{
	handles = NULL;
	handle_count = 0;
	reservations = NULL;
	registrations = NULL;
	opened = 0;
}
