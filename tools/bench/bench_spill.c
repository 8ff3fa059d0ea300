/*
 * bench_spill.c - content that agent and mover spill and restore, compared with memcpy and with a file of the same
 * bytes in the same run.
 */
#include "tools/bench/bench.h"

#include "shm/pool_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { POOL_PAGES = 512, BLOCKS = 256, FILE_CHUNK = 1 << 20, LOOK_NS = 20000 };
static const uint64_t PATIENCE_NS = UINT64_C(60000000000);

struct spill {
	struct gpool *pool;
	struct gpool_block blocks[BLOCKS];
	uint64_t bytes;
	const struct pool_header *header;
};

static double gbps(uint64_t bytes, uint64_t ns)
{
	return (double)bytes / (double)ns;
}

static int blocks_take(struct spill *spill)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	int error = 0;

	options.flags = GPOOL_ALLOC_SPILL;
	for (unsigned i = 0; i < BLOCKS && !error; i++) {
		uint64_t address;

		error = gpool_alloc(spill->pool, 1, &options, &spill->blocks[i]);
		if (!error)
			error = gpool_address(spill->pool, &spill->blocks[i], &address);
		if (!error) {
			memset((void *)(uintptr_t)address, (int)i, (size_t)gpool_page_bytes(spill->pool));
			error = gpool_unpin(spill->pool, &spill->blocks[i]);
		}
	}
	return error;
}

/* Spill: measure one request for all blocks, until the last page is free. */
static int sample_out(struct bench *bench, struct spill *spill, enum figure figure)
{
	uint64_t before = atomic_load(&spill->header->counters[POOL_COUNT_SPILLED_PAGES]), begin = monotonic_ns(),
		 end = begin + PATIENCE_NS;
	int64_t taken = daemon_evict(bench, POOL_PAGES); /* cached pages count too */

	if (taken < 0)
		return (int)taken;
	/* Sleep, because the mover needs all processors. */
	while (atomic_load(&spill->header->counters[POOL_COUNT_SPILLED_PAGES]) - before < BLOCKS) {
		if (monotonic_ns() > end)
			return -ETIMEDOUT;
		clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = LOOK_NS}, NULL);
	}
	bench_sample(bench, figure, gbps(spill->bytes, monotonic_ns() - begin));
	return 0;
}

/* Restore: pin one block after the other, as a program does. */
static int sample_back(struct bench *bench, struct spill *spill, enum figure figure)
{
	uint64_t begin = monotonic_ns(), took;
	int error = 0;

	for (unsigned i = 0; i < BLOCKS && !error; i++)
		error = gpool_pin(spill->pool, &spill->blocks[i]);
	took = monotonic_ns() - begin;
	if (!error)
		bench_sample(bench, figure, gbps(spill->bytes, took));
	if (!error && figure == FIGURE_restore)
		bench_sample(bench, FIGURE_restore_pin, (double)took / BLOCKS / 1000);
	for (unsigned i = 0; i < BLOCKS && !error; i++) {
		uint64_t address;

		error = gpool_address(spill->pool, &spill->blocks[i], &address);
		if (!error && *(uint8_t *)(uintptr_t)address != (uint8_t)i)
			error = -EILSEQ;
		if (!error)
			error = gpool_unpin(spill->pool, &spill->blocks[i]);
	}
	return error;
}

/* ---- peers ---- */

static void sample_memcpy(struct bench *bench, const struct spill *spill, uint8_t *from, uint8_t *to)
{
	uint64_t begin = monotonic_ns();

	memcpy(to, from, spill->bytes);
	bench_sample(bench, FIGURE_peer_memcpy, gbps(spill->bytes, monotonic_ns() - begin));
}

/* Read and write the same bytes. The page cache is bypassed if the file system permits it, as in the mover. */
static int sample_file(struct bench *bench, const struct spill *spill, uint8_t *memory)
{
	int fd = open(bench->folder, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600), error = 0;
	uint64_t begin, middle;

	if (fd < 0)
		fd = open(bench->folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	begin = monotonic_ns();
	for (uint64_t at = 0; at < spill->bytes && !error; at += FILE_CHUNK)
		error = pwrite(fd, memory + at, FILE_CHUNK, (off_t)at) == FILE_CHUNK ? 0 : -EIO;
	middle = monotonic_ns();
	for (uint64_t at = 0; at < spill->bytes && !error; at += FILE_CHUNK)
		error = pread(fd, memory + at, FILE_CHUNK, (off_t)at) == FILE_CHUNK ? 0 : -EIO;
	if (!error) {
		bench_sample(bench, FIGURE_peer_file_write, gbps(spill->bytes, middle - begin));
		bench_sample(bench, FIGURE_peer_file_read, gbps(spill->bytes, monotonic_ns() - middle));
	}
	close(fd);
	return error;
}

static int sample_peers(struct bench *bench, const struct spill *spill)
{
	uint8_t *memory =
		mmap(NULL, 2 * spill->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	int error;

	if (memory == MAP_FAILED)
		return -errno;
	memset(memory, 1, 2 * spill->bytes);
	sample_memcpy(bench, spill, memory, memory + spill->bytes);
	error = sample_file(bench, spill, memory);
	munmap(memory, 2 * spill->bytes);
	return error;
}

/* ---- the group ---- */

static int tier(struct bench *bench, const char *more, enum figure out, enum figure back, bool peers)
{
	struct spill spill = {.pool = NULL};
	int error = daemon_start_with(bench, POOL_PAGES, more, NULL);

	if (error)
		return error;
	error = daemon_open(bench, 0, &spill.pool);
	if (!error) {
		spill.header = pool_view(bench->control)->header;
		spill.bytes = BLOCKS * gpool_page_bytes(spill.pool);
		error = blocks_take(&spill);
	}
	for (unsigned run = 0; run < bench->runs && !error; run++) {
		error = sample_out(bench, &spill, out);
		if (!error)
			error = sample_back(bench, &spill, back);
		if (!error && peers)
			error = sample_peers(bench, &spill);
	}
	if (error)
		bench_complain(bench, error, "cannot spill and restore content");
	gpool_close(spill.pool);
	daemon_stop(bench);
	return error;
}

int bench_spill(struct bench *bench)
{
	char file[PATH_MAX + 64];
	int error = tier(bench, "", FIGURE_spill, FIGURE_restore, true);

	snprintf(file, sizeof(file), ",spill_memory=0MiB,spill_directory=%s,spill_file=1GiB", bench->folder);
	return error ? error : tier(bench, file, FIGURE_spill_file, FIGURE_restore_file, false);
}
