/* machine.c - device memory, its accounting and shared events: what the processes of one machine have in common. */
#include "tests/driver/driver.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct machine {
	_Atomic uint64_t number;            /* the last allocation */
	_Atomic uint64_t used[DEVICES_MAX]; /* bytes, including memory whose last user has died unnoticed */
	struct shared_event events[SHARED_EVENTS];
} * machine;
static int folder = -1;

/* everyone_may_use() - let processes of other users, which may use a GPU, open a file in the folder. */
static void everyone_may_use(int fd)
{
	fchmod(fd, 0666); /* fails if another user has made the file, and has thus changed its mode already */
}

CUresult machine_open(void)
{
	const char *path = getenv("GPU_DOUBLE_DIR");
	char standard[64];
	void *at = MAP_FAILED;
	int fd;

	if (machine)
		return CUDA_SUCCESS;
	if (!path) {
		snprintf(standard, sizeof(standard), "/dev/shm/gpu-double-%u", (unsigned)getuid());
		path = standard;
	}
	if (mkdir(path, 0700) && errno != EEXIST)
		return CUDA_ERROR_OPERATING_SYSTEM;
	folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	fd = openat(folder, "machine", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	everyone_may_use(fd);
	if (fd >= 0 && ftruncate(fd, sizeof(*machine)) == 0)
		at = mmap(NULL, sizeof(*machine), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (at == MAP_FAILED)
		return CUDA_ERROR_OPERATING_SYSTEM;
	machine = at;
	return CUDA_SUCCESS;
}

/* file_take_back() - free a file that no process locks anymore. */
static void file_take_back(int device, const char *name)
{
	struct stat status;
	int fd = openat(folder, name, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &status) == 0 && unlinkat(folder, name, 0) == 0)
		atomic_fetch_sub(&machine->used[device], (uint64_t)status.st_size);
	close(fd);
}

/* machine_sweep() - take back the memory of processes that have died. */
static void machine_sweep(int device)
{
	int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *files = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *file;
	char prefix[8];

	if (!files)
		return;
	snprintf(prefix, sizeof(prefix), "d%d-", device);
	while ((file = readdir(files)))
		if (strncmp(file->d_name, prefix, strlen(prefix)) == 0)
			file_take_back(device, file->d_name);
	closedir(files);
}

static bool bytes_take(int device, uint64_t bytes)
{
	uint64_t used = atomic_load(&machine->used[device]);

	do {
		if (bytes > settings.memory_bytes || used > settings.memory_bytes - bytes)
			return false;
	} while (!atomic_compare_exchange_weak(&machine->used[device], &used, used + bytes));
	return true;
}

CUresult machine_take(int device, uint64_t bytes, int *fd, char name[64])
{
	char from[64];

	if (!bytes_take(device, bytes)) {
		machine_sweep(device);
		if (!bytes_take(device, bytes))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	/* The file gets a name only after it was locked, so that no other process frees it as unused. */
	*fd = openat(folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (*fd < 0)
		goto give_bytes;
	everyone_may_use(*fd);
	snprintf(name, 64, "d%d-%llu", device, (unsigned long long)atomic_fetch_add(&machine->number, 1) + 1);
	snprintf(from, sizeof(from), "/proc/self/fd/%d", *fd);
	if (flock(*fd, LOCK_SH) || ftruncate(*fd, (off_t)bytes) ||
		linkat(AT_FDCWD, from, folder, name, AT_SYMLINK_FOLLOW)) {
		close(*fd);
		goto give_bytes;
	}
	return CUDA_SUCCESS;

give_bytes:
	atomic_fetch_sub(&machine->used[device], bytes);
	return CUDA_ERROR_OPERATING_SYSTEM;
}

void machine_give(int device, uint64_t bytes, const char *name)
{
	(void)bytes;
	file_take_back(device, name);
}

uint64_t machine_free_bytes(int device)
{
	uint64_t used;

	machine_sweep(device);
	used = atomic_load(&machine->used[device]);
	return used < settings.memory_bytes ? settings.memory_bytes - used : 0;
}

/* process_start() - return when a process began, to distinguish it from a later one of that number; 0: gone. */
static uint64_t process_start(pid_t pid)
{
	char path[32], text[1024], *at;
	unsigned long long start = 0;
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return 0;
	text[length] = '\0';
	at = strrchr(text, ')'); /* the state is two characters further, the start time 19 fields further than that */
	if (!at || at[2] == 'Z')
		return 0;
	at += 2;
	for (int field = 0; field < 19 && at; field++)
		at = strchr(at + 1, ' ');
	if (at)
		sscanf(at, "%llu", &start);
	return start;
}

static struct shared_event *event_take(uint32_t *index)
{
	for (uint32_t i = 0; i < SHARED_EVENTS; i++) {
		struct shared_event *event = &machine->events[i];
		uint32_t generation = atomic_load(&event->generation);

		if (machine_event_alive(event, generation))
			continue;
		atomic_store(&event->maker, (int32_t)getpid());
		atomic_store(&event->maker_start, process_start(getpid()));
		atomic_store(&event->recorded, 0);
		for (int word = 0; word < RECORDS_PENDING / 64; word++)
			atomic_store(&event->pending[word], 0);
		atomic_store(&event->generation, (generation + 1) | 1);
		*index = i;
		return event;
	}
	return NULL;
}

struct shared_event *machine_event_take(uint32_t *index)
{
	int fd = openat(folder, "machine", O_RDWR | O_CLOEXEC);
	struct shared_event *event = NULL;

	if (fd < 0)
		return NULL;
	if (flock(fd, LOCK_EX) == 0) /* ends with the process at the latest */
		event = event_take(index);
	close(fd);
	return event;
}

struct shared_event *machine_event_at(uint32_t index)
{
	return index < SHARED_EVENTS ? &machine->events[index] : NULL;
}

void machine_event_give(struct shared_event *event)
{
	atomic_fetch_add(&event->generation, 1);
}

bool machine_event_alive(const struct shared_event *event, uint32_t generation)
{
	if (atomic_load(&event->generation) != generation || !(generation & 1))
		return false;
	return process_start((pid_t)atomic_load(&event->maker)) == atomic_load(&event->maker_start);
}
