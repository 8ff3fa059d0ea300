#include "agent/pages/huge_pages.h"

#include "agent/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1 */
#endif

#define MIB (UINT64_C(1) << 20)

enum {
	AT_ONCE_MIB = 256, /* memory for each call, which has a fixed cost of some milliseconds */
	TRIES = 3,         /* number of attempts, because the kernel skips pages that are being accessed elsewhere */
	PROGRESS_MIB = 4096,
};

/* Return the size of a huge page in bytes; 0: the kernel does not support huge pages. */
static uint64_t huge_page_bytes(void)
{
	FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "re");
	uint64_t bytes = 0;

	if (!file)
		return 0;
	if (fscanf(file, "%" SCNu64, &bytes) != 1)
		bytes = 0;
	fclose(file);
	return bytes;
}

/* Return the number of bytes that programs can allocate without swapping; UINT64_MAX: unknown. */
static uint64_t machine_available(void)
{
	FILE *file = fopen("/proc/meminfo", "re");
	uint64_t kib = UINT64_MAX / 1024;
	char line[128];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib * 1024;
}

/* Read a number from a file of this process's control group. Return UINT64_MAX if it contains no number. */
static uint64_t group_number(const char *group, const char *name)
{
	uint64_t number = UINT64_MAX;
	char path[512];
	FILE *file;

	if ((size_t)snprintf(path, sizeof(path), "/sys/fs/cgroup%s/%s", group, name) >= sizeof(path))
		return number;
	file = fopen(path, "re");
	if (file && fscanf(file, "%" SCNu64, &number) != 1)
		number = UINT64_MAX;
	if (file)
		fclose(file);
	return number;
}

/*
 * Return the memory that is left in this process's control group (version 2), such as that of a container or a service.
 * A process that exceeds it is killed.
 */
static uint64_t group_available(void)
{
	FILE *file = fopen("/proc/self/cgroup", "re");
	char line[400], *end;
	uint64_t most = UINT64_MAX, used;

	while (file && fgets(line, sizeof(line), file)) {
		end = strchr(line, '\n');
		if (strncmp(line, "0::", 3) != 0 || !end)
			continue;
		*end = '\0';
		most = group_number(line + 3, "memory.max");
		used = group_number(line + 3, "memory.current");
		if (most != UINT64_MAX)
			most = used < most ? most - used : 0;
	}
	if (file)
		fclose(file);
	return most;
}

static uint64_t memory_available(void)
{
	uint64_t machine = machine_available(), group = group_available();

	return machine < group ? machine : group;
}

/*
 * Convert the memory to huge pages in one call or, if that fails, page by page, so that one failed page does not affect
 * the others. Return the number of bytes in huge pages.
 */
static uint64_t collapse(char *memory, uint64_t bytes, uint64_t page_bytes)
{
	uint64_t huge = 0;

	for (int i = 0; i < TRIES; i++)
		if (madvise(memory, bytes, MADV_COLLAPSE) == 0)
			return bytes;
	for (uint64_t at = 0; at < bytes; at += page_bytes)
		if (madvise(memory + at, page_bytes, MADV_COLLAPSE) == 0)
			huge += page_bytes;
	return huge;
}

static int part_make(int fd, uint64_t offset, uint64_t bytes, uint64_t page_bytes, uint64_t *huge_bytes)
{
	/* Reserve additional addresses, because the mapping must be aligned to huge pages, as the file is. */
	char *room = mmap(NULL, bytes + page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
	     *memory;
	int error = 0;

	if (room == MAP_FAILED)
		return -errno;
	memory = room + (page_bytes - (uintptr_t)room % page_bytes);
	if (mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) == MAP_FAILED ||
		madvise(memory, bytes, MADV_POPULATE_WRITE) < 0)
		error = -errno;
	else
		*huge_bytes += collapse(memory, bytes, page_bytes);
	munmap(room, bytes + page_bytes);
	return error;
}

static bool is_stopping(int keeper)
{
	struct pollfd end = {keeper, POLLRDHUP, 0};

	return poll(&end, 1, 0) == 1;
}

static int all_make(
	const struct physical *physical, const struct physical_plan *plan, uint64_t page_bytes, uint64_t *huge_bytes)
{
	const uint64_t total = physical->handle_bytes * physical->handle_count,
		       each = physical->arena ? total : physical->handle_bytes;
	uint64_t done = 0;

	for (uint32_t i = 0; i < physical->exported; i++)
		for (uint64_t at = 0, bytes; at < each; at += bytes) {
			int error;

			bytes = each - at < AT_ONCE_MIB * MIB ? each - at : AT_ONCE_MIB * MIB;
			error = is_stopping(plan->keeper)
				? -ECANCELED
				: part_make(physical->exports[i].fd, physical->exports[i].offset + at, bytes,
					  page_bytes, huge_bytes);
			if (error)
				return error;
			done += bytes;
			if (done % (PROGRESS_MIB * MIB) == 0 && done < total)
				log_info("pool '%s': %" PRIu64 " of %" PRIu64 " MiB allocated", plan->pool, done / MIB,
					total / MIB);
		}
	return 0;
}

int huge_pages_make(const struct physical *physical, const struct physical_plan *plan)
{
	const uint64_t total = physical->handle_bytes * physical->handle_count, page_bytes = huge_page_bytes(),
		       available = memory_available();
	uint64_t huge_bytes = 0;
	int error;

	if (!page_bytes || physical->handle_bytes % page_bytes || physical->exports[0].offset % page_bytes) {
		log_warning("pool '%s': huge_pages has no effect: %s", plan->pool,
			page_bytes ? "huge pages are larger than handle_size" : "the kernel has no huge pages");
		return 0;
	}
	if (total > available) {
		log_error("pool '%s' needs %" PRIu64 " MiB of memory with huge_pages, but only %" PRIu64
			  " MiB are available; choose a smaller size, or huge_pages = \"no\", which allocates memory "
			  "when it is used",
			plan->pool, total / MIB, available / MIB);
		return -ENOMEM;
	}
	error = all_make(physical, plan, page_bytes, &huge_bytes);
	if (error == -ECANCELED)
		log_info("pool '%s': gpoold was stopped before its memory was allocated", plan->pool);
	else if (error)
		log_error(
			"cannot allocate %" PRIu64 " MiB for pool '%s': %s", total / MIB, plan->pool, strerror(-error));
	else if (huge_bytes < total)
		log_warning("pool '%s': only %" PRIu64 " of %" PRIu64
			    " MiB are in huge pages; the kernel did not provide more",
			plan->pool, huge_bytes / MIB, total / MIB);
	else
		log_info("pool '%s': %" PRIu64 " MiB in huge pages", plan->pool, total / MIB);
	return error;
}
