/*
 * gpu_host_memory.c - physical memory of the host back end: slices of memfds, identified by handles.
 *
 * Each device that creates memory has one memfd, its arena, and each new handle is a slice at the arena's end. Offsets
 * are never reused: unused offsets of a sparse file need no memory, and the kernel merges mappings of adjacent new
 * slices at adjacent addresses. A process with the arena's descriptor can map all of it. With GPU_OPEN_SEPARATE, for
 * processes that must not see each other's content, each handle is therefore a separate memfd, which needs a descriptor
 * and a mapping.
 *
 * The first export seals a file against growing, because its receivers could otherwise use it to allocate memory beyond
 * all limits. The next handle then begins a new arena.
 *
 * When the last reference is released, the slice is removed from the file (FALLOC_FL_PUNCH_HOLE), unless it was
 * exported: another process may then have it mapped, which the kernel does not report, and the content would be lost.
 * Exported memory therefore remains until all processes have closed the arena's descriptors and mappings, as with a
 * driver.
 *
 * Files from other processes are untrusted: only a memfd that is sealed against shrinking is accepted, because accesses
 * to a truncated file raise SIGBUS.
 */
#include "cuda/gpu_host.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { FRESH_BYTE = 0xa5 }; /* content of fresh memory if it is configured not to be zeroed */

/*
 * host_file_create() - create an empty memfd that only this user can reopen and that cannot shrink. Return: its
 * descriptor, or negative errno. Call host_file_seal() after the size is set and before another process gets the file.
 */
int host_file_create(const char *name)
{
	int error, fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return gpu_fail(-errno, "cannot create memfd '%s': %s", name, strerror(errno));
	if (fchmod(fd, 0600) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0) {
		error = errno;
		close(fd);
		return gpu_fail(-error, "cannot seal memfd '%s': %s", name, strerror(error));
	}
	return fd;
}

/*
 * host_file_seal() - fix the size of a memfd. F_SEAL_SEAL is added, so that no other holder can prevent mappings by a
 * further seal.
 */
int host_file_seal(int fd)
{
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return gpu_fail(-errno, "cannot seal a memfd against growing: %s", strerror(errno));
	return 0;
}

/*
 * host_file_check() - check that a descriptor is a memfd that can be mapped for writing and cannot shrink; return its
 * identity.
 */
int host_file_check(int fd, uint64_t *size_bytes, dev_t *device, ino_t *inode)
{
	struct statfs system;
	struct stat status;
	int seals, mode;

	if (fstat(fd, &status) < 0)
		return gpu_fail(-EINVAL, "cannot import descriptor %d: %s", fd, strerror(errno));
	if (!S_ISREG(status.st_mode) || fstatfs(fd, &system) < 0 || system.f_type != TMPFS_MAGIC)
		return gpu_fail(-EINVAL, "cannot import descriptor %d: not a memfd", fd);
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return gpu_fail(-EPERM, "cannot import descriptor %d: it is not sealed against shrinking", fd);
	mode = fcntl(fd, F_GETFL);
	if (mode < 0 || (mode & O_ACCMODE) != O_RDWR || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)))
		return gpu_fail(-EPERM, "cannot import descriptor %d: it cannot be mapped for writing", fd);
	*size_bytes = (uint64_t)status.st_size;
	*device = status.st_dev;
	*inode = status.st_ino;
	return 0;
}

static struct host_file **bucket_of(struct gpu_host *host, ino_t inode)
{
	return &host->files[inode % HOST_FILE_BUCKETS];
}

static struct host_file *file_add(struct gpu_host *host, int fd, dev_t device, ino_t inode)
{
	struct host_file *file = calloc(1, sizeof(*file));

	if (!file)
		return NULL;
	file->fd = fd;
	file->device = device;
	file->inode = inode;
	file->refs = 1;
	file->next = *bucket_of(host, inode);
	*bucket_of(host, inode) = file;
	return file;
}

static void file_unref(struct gpu_host *host, struct host_file *file)
{
	struct host_file **link = bucket_of(host, file->inode);

	if (--file->refs > 0)
		return;
	while (*link != file)
		link = &(*link)->next;
	*link = file->next;
	close(file->fd);
	free(file);
}

static int file_make(struct gpu_host *host, const char *name, struct host_file **file)
{
	struct stat status;
	int fd = host_file_create(name);

	if (fd < 0)
		return fd;
	*file = fstat(fd, &status) == 0 ? file_add(host, fd, status.st_dev, status.st_ino) : NULL;
	if (*file)
		return 0;
	close(fd);
	return gpu_fail(-ENOMEM, "cannot create a file on host device %d: out of memory", host->index);
}

/*
 * slice_make() - create a slice of `bytes` with one reference: at the end of the arena, which is created if necessary,
 * or in a file of its own.
 */
static int slice_make(struct gpu_host *host, uint64_t bytes, struct host_file **file, uint64_t *offset)
{
	int rc = 0;

	*file = host->arena;
	if (host->separate || !host->arena)
		rc = file_make(host, host->separate ? "gpool-handle" : "gpool-arena", file);
	if (rc < 0)
		return rc;
	*offset = host->separate ? 0 : host->arena_bytes;
	if (bytes > INT64_MAX - *offset)
		rc = gpu_fail(-ENOMEM, "cannot create %llu bytes: the arena is full", (unsigned long long)bytes);
	else if (ftruncate((*file)->fd, (off_t)(*offset + bytes)) < 0)
		rc = gpu_fail(
			-ENOMEM, "cannot grow a file by %llu bytes: %s", (unsigned long long)bytes, strerror(errno));
	if (!host->separate) {
		host->arena = *file;
		(*file)->refs++;
	}
	if (rc < 0)
		file_unref(host, *file);
	return rc;
}

/*
 * memory_add() - add a slice, with one reference for its handle. On failure the caller keeps its reference to the file.
 */
static struct host_memory *memory_add(struct gpu_host *host, struct host_file *file, uint64_t offset, uint64_t bytes)
{
	struct host_memory *memory, *grown;
	uint32_t capacity;

	if (!host->memory_free && host->memory_count == host->memory_capacity) {
		capacity = host->memory_capacity ? host->memory_capacity * 2 : 64;
		if (capacity < host->memory_capacity)
			return NULL;
		grown = realloc(host->memories, capacity * sizeof(*grown));
		if (!grown)
			return NULL;
		host->memories = grown;
		host->memory_capacity = capacity;
	}
	if (host->memory_free) {
		memory = &host->memories[host->memory_free - 1];
		host->memory_free = memory->next_free;
	} else {
		memory = &host->memories[host->memory_count++];
		memory->generation = 0;
	}
	*memory = (struct host_memory){
		.file = file,
		.offset = offset,
		.bytes = bytes,
		.refs = 1,
		.generation = memory->generation + 1,
	};
	return memory;
}

uint32_t host_memory_slot(const struct gpu_host *host, const struct host_memory *memory)
{
	return (uint32_t)(memory - host->memories) + 1;
}

static uint64_t memory_handle(const struct gpu_host *host, const struct host_memory *memory)
{
	return (uint64_t)memory->generation << 32 | host_memory_slot(host, memory);
}

/* host_memory_find() - return the memory of a handle; NULL: it was released or never existed. */
struct host_memory *host_memory_find(struct gpu_host *host, uint64_t handle)
{
	uint32_t slot = (uint32_t)handle;
	struct host_memory *memory;

	if (slot == 0 || slot > host->memory_count)
		return NULL;
	memory = &host->memories[slot - 1];
	if (!memory->file || memory->released || memory->generation != handle >> 32)
		return NULL;
	return memory;
}

void host_memory_unref(struct gpu_host *host, struct host_memory *memory)
{
	assert(memory->refs > 0);
	if (--memory->refs > 0)
		return;
	if (memory->owned && !memory->exported) {
		/* If this fails, the pages remain charged, so a later creation may fail. */
		if (fallocate(memory->file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)memory->offset,
			    (off_t)memory->bytes) == 0)
			host_memory_discharge(host, memory->bytes);
	}
	file_unref(host, memory->file);
	memory->file = NULL;
	memory->next_free = host->memory_free;
	host->memory_free = host_memory_slot(host, memory);
}

/* Fill fresh memory with nonzero bytes, because a driver need not zero it. */
static int slice_soil(const struct host_file *file, uint64_t offset, uint64_t bytes)
{
	void *slice = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, (off_t)offset);

	if (slice == MAP_FAILED)
		return gpu_fail(-ENOMEM, "cannot map %llu new bytes: %s", (unsigned long long)bytes, strerror(errno));
	memset(slice, FRESH_BYTE, bytes);
	munmap(slice, bytes);
	return 0;
}

static int create_locked(struct gpu_host *host, uint64_t bytes, uint64_t *handle)
{
	struct host_memory *memory;
	struct host_file *file;
	uint64_t offset;
	int rc = host_memory_charge(host, bytes);

	if (rc < 0)
		return rc;
	rc = slice_make(host, bytes, &file, &offset);
	if (rc < 0)
		goto discharge;
	if (!(host->capabilities & GPU_CAP_ZEROED))
		rc = slice_soil(file, offset, bytes);
	if (rc < 0)
		goto unref;
	memory = memory_add(host, file, offset, bytes);
	if (!memory) {
		rc = gpu_fail(
			-ENOMEM, "cannot create %llu bytes: out of memory for the handle", (unsigned long long)bytes);
		goto unref;
	}
	memory->owned = true;
	if (!host->separate)
		host->arena_bytes += bytes;
	*handle = memory_handle(host, memory);
	return 0;

unref:
	file_unref(host, file);
discharge:
	host_memory_discharge(host, bytes);
	return rc;
}

int host_create(struct gpu *gpu, uint64_t bytes, uint64_t *handle)
{
	struct gpu_host *host = host_of(gpu);
	int rc;

	if (bytes % host->granularity)
		return gpu_fail(-EINVAL, "cannot create %llu bytes: not a multiple of %llu", (unsigned long long)bytes,
			(unsigned long long)host->granularity);
	pthread_mutex_lock(&host->lock);
	rc = create_locked(host, bytes, handle);
	pthread_mutex_unlock(&host->lock);
	return rc;
}

void host_release(struct gpu *gpu, uint64_t handle)
{
	struct gpu_host *host = host_of(gpu);
	struct host_memory *memory;

	pthread_mutex_lock(&host->lock);
	memory = host_memory_find(host, handle);
	if (memory) {
		memory->released = true;
		host_memory_unref(host, memory);
	} else {
		gpu_fail(-EINVAL, "cannot release handle 0x%llx: it does not exist", (unsigned long long)handle);
	}
	pthread_mutex_unlock(&host->lock);
}

/*
 * file_share() - seal the size of a file before other processes get it. An imported file has the seals of its creator.
 */
static int file_share(struct gpu_host *host, const struct host_memory *memory)
{
	struct host_file *file = memory->file;
	int rc = 0;

	if (memory->owned && !file->sealed)
		rc = host_file_seal(file->fd);
	if (rc < 0)
		return rc;
	file->sealed = true;
	if (host->arena == file) {
		host->arena = NULL;
		host->arena_bytes = 0;
		file_unref(host, file);
	}
	return 0;
}

int host_export(struct gpu *gpu, uint64_t handle, struct gpu_export *out)
{
	struct gpu_host *host = host_of(gpu);
	struct host_memory *memory;
	int fd, rc = 0;

	pthread_mutex_lock(&host->lock);
	memory = host_memory_find(host, handle);
	if (!memory)
		rc = gpu_fail(-EINVAL, "cannot export handle 0x%llx: it does not exist", (unsigned long long)handle);
	else
		rc = file_share(host, memory);
	if (rc == 0) {
		fd = fcntl(memory->file->fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0) {
			rc = gpu_fail(
				-errno, "cannot export handle 0x%llx: %s", (unsigned long long)handle, strerror(errno));
		} else {
			memory->exported = true;
			*out = (struct gpu_export){.fd = fd, .offset = memory->offset, .length = memory->bytes};
		}
	}
	pthread_mutex_unlock(&host->lock);
	return rc;
}

/*
 * own_copy() - duplicate a descriptor. With one file per handle, the usual soft limit of 1,024 descriptors may be
 * reached. It is then raised to the hard limit.
 */
static int own_copy(int fd)
{
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	struct rlimit limit;

	if (own >= 0 || errno != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= limit.rlim_max)
		return own;
	limit.rlim_cur = limit.rlim_max;
	return setrlimit(RLIMIT_NOFILE, &limit) < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

/*
 * file_import() - return the file of a descriptor, with a reference: the known file with the same inode, or a new file
 * with a duplicate of the descriptor.
 */
static int file_import(struct gpu_host *host, int fd, struct host_file **imported, uint64_t *size_bytes)
{
	struct host_file *file;
	struct stat status;
	dev_t device;
	ino_t inode;
	int rc, own;

	if (fstat(fd, &status) < 0)
		return gpu_fail(-EINVAL, "cannot import descriptor %d: %s", fd, strerror(errno));
	for (file = *bucket_of(host, status.st_ino); file; file = file->next) {
		if (file->inode == status.st_ino && file->device == status.st_dev) {
			file->refs++;
			*imported = file;
			*size_bytes = (uint64_t)status.st_size;
			return 0;
		}
	}
	own = own_copy(fd);
	if (own < 0)
		return gpu_fail(-errno, "cannot import descriptor %d: %s", fd, strerror(errno));
	/* Check the duplicate, because another thread may replace the caller's descriptor. */
	rc = host_file_check(own, size_bytes, &device, &inode);
	if (rc == 0) {
		*imported = file_add(host, own, device, inode);
		if (!*imported)
			rc = gpu_fail(-ENOMEM, "cannot import descriptor %d: out of memory", fd);
	}
	if (rc < 0)
		close(own);
	return rc;
}

static int import_locked(struct gpu_host *host, const struct gpu_export *from, uint64_t *handle)
{
	struct host_memory *memory;
	struct host_file *file = NULL;
	uint64_t size_bytes = 0;
	int rc = file_import(host, from->fd, &file, &size_bytes);

	if (rc < 0)
		return rc;
	if (from->offset > size_bytes || from->length > size_bytes - from->offset) {
		rc = gpu_fail(-EINVAL, "cannot import %llu bytes at offset %llu: the file has %llu bytes",
			(unsigned long long)from->length, (unsigned long long)from->offset,
			(unsigned long long)size_bytes);
		goto unref;
	}
	memory = memory_add(host, file, from->offset, from->length);
	if (!memory) {
		rc = gpu_fail(-ENOMEM, "cannot import %llu bytes: out of memory for the handle",
			(unsigned long long)from->length);
		goto unref;
	}
	*handle = memory_handle(host, memory);
	return 0;

unref:
	file_unref(host, file);
	return rc;
}

int host_import(struct gpu *gpu, const struct gpu_export *from, uint64_t *handle)
{
	struct gpu_host *host = host_of(gpu);
	int rc;

	if (from->offset % host->page || from->length % host->granularity)
		return gpu_fail(-EINVAL,
			"cannot import %llu bytes at offset %llu: the length must be a multiple of %llu, the offset of "
			"%llu",
			(unsigned long long)from->length, (unsigned long long)from->offset,
			(unsigned long long)host->granularity, (unsigned long long)host->page);
	pthread_mutex_lock(&host->lock);
	rc = import_locked(host, from, handle);
	pthread_mutex_unlock(&host->lock);
	return rc;
}

void host_memory_fini(struct gpu_host *host)
{
	struct host_file *file;

	free(host->memories);
	for (int i = 0; i < HOST_FILE_BUCKETS; i++)
		while ((file = host->files[i])) {
			host->files[i] = file->next;
			close(file->fd);
			free(file);
		}
}
