/*
 * test_segments.c - pool segments and timeline pages.
 *
 * Goal: only the creator can write a pool segment or a session's timeline page, and a malformed segment is refused.
 * Method: create real segments and try each way to write. Change one field, one size or one seal at a time, and open
 * the segment again.
 *
 * Requirements: C2.
 */
#include "shm/pool_segment.h"
#include "shm/session_segment.h"
#include "shm/timeline_page.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const struct pool_geometry geometry = {
	.name = "p0",
	.backend = "host",
	.device = "HOST-0",
	.page_bytes = 2 << 20,
	.page_count = 1000,
	.pages_per_handle = 1,
	.reserved_pages = 30,
};

/* getpagesize() - replace the C library's, because a test cannot change the page size of the system. */
static int page_bytes;

int getpagesize(void)
{
	return page_bytes ? page_bytes : (int)sysconf(_SC_PAGESIZE);
}

static void test_pool_starts_whole(void **state)
{
	struct pool_segment ours, theirs;
	int fd;

	(void)state;
	assert_int_equal(pool_segment_create(&geometry, &ours, &fd), 0);
	assert_int_equal(pool_segment_open(fd, &theirs), 0);
	assert_int_equal(theirs.header->page_count, 1000);
	assert_int_equal(theirs.header->state_pages[PAGE_FREE], 970);
	assert_int_equal(theirs.header->state_pages[PAGE_RESERVED], 30);
	assert_int_equal(page_word_state(theirs.pages[969]), PAGE_FREE);
	assert_int_equal(page_word_state(theirs.pages[970]), PAGE_RESERVED);
	atomic_store(&ours.pages[5], page_word_make(PAGE_LEASED, 7, 9));
	assert_int_equal(theirs.pages[5], page_word_make(PAGE_LEASED, 7, 9));
	pool_segment_close(&theirs);
	pool_segment_close(&ours);
	close(fd);
}

static void test_pool_cannot_be_written_by_others(void **state)
{
	struct pool_segment ours, theirs;
	char path[64];
	int fd, again;

	(void)state;
	assert_int_equal(pool_segment_create(&geometry, &ours, &fd), 0);
	assert_int_equal(pool_segment_open(fd, &theirs), 0);
	assert_int_equal(mprotect(theirs.header, 4096, PROT_READ | PROT_WRITE), -1);
	assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(ftruncate(fd, 1 << 30), -1);
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again >= 0) {
		assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
		assert_int_equal(pwrite(again, "x", 1, 0), -1);
		close(again);
	}
	/* the first mapping can still write */
	atomic_store(&ours.header->pressure, 2);
	assert_int_equal(theirs.header->pressure, 2);
	pool_segment_close(&theirs);
	pool_segment_close(&ours);
	close(fd);
}

static void test_geometry_that_cannot_be_is_refused(void **state)
{
	struct pool_segment segment;
	struct pool_geometry wrong;
	int fd;

	(void)state;
	wrong = geometry, wrong.page_count = 0;
	assert_int_equal(pool_segment_create(&wrong, &segment, &fd), -EINVAL);
	wrong = geometry, wrong.page_count = POOL_PAGES_MAX + 1;
	assert_int_equal(pool_segment_create(&wrong, &segment, &fd), -EINVAL);
	wrong = geometry, wrong.pages_per_handle = 3;
	assert_int_equal(pool_segment_create(&wrong, &segment, &fd), -EINVAL);
	wrong = geometry, wrong.reserved_pages = 1000;
	assert_int_equal(pool_segment_create(&wrong, &segment, &fd), -EINVAL);
	wrong = geometry, wrong.objects = POOL_OBJECTS_MOST;
	assert_int_equal(pool_segment_create(&wrong, &segment, &fd), -EINVAL);
}

/*
 * A pool has room for as many objects as pages, within a minimum and the maximum that page words can name, or for the
 * requested number. The first record is unused.
 */
static void test_room_for_objects(void **state)
{
	(void)state;
	assert_int_equal(pool_object_count(0, 1), 1024);
	assert_int_equal(pool_object_count(0, 1023), 1024);
	assert_int_equal(pool_object_count(0, 40960), 40961);
	assert_int_equal(pool_object_count(0, POOL_PAGES_MAX), 65536);
	assert_int_equal(pool_object_count(1, 40960), 2);
	assert_int_equal(pool_object_count(65535, 1), 65536);
}

/* Create a memfd with a header made by the test, and the seals of a real one. */
static int forge(const struct pool_header *header, size_t bytes, int seals)
{
	int fd = memfd_create("forged", MFD_ALLOW_SEALING | MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(pwrite(fd, header, sizeof(*header), 0), sizeof(*header));
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static int open_forged(const struct pool_header *header, size_t bytes, int seals)
{
	struct pool_segment segment;
	int fd = forge(header, bytes, seals), error = pool_segment_open(fd, &segment);

	if (!error)
		pool_segment_close(&segment);
	close(fd);
	return error;
}

static void test_forged_pools_are_refused(void **state)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
	struct pool_segment segment;
	struct pool_header good, bad;
	size_t bytes;
	int fd;

	(void)state;
	assert_int_equal(pool_segment_create(&geometry, &segment, &fd), 0);
	memcpy(&good, segment.header, sizeof(good));
	bytes = segment.bytes;
	pool_segment_close(&segment);
	close(fd);
	assert_int_equal(open_forged(&good, bytes, seals), 0);
	assert_int_equal(open_forged(&good, bytes, F_SEAL_GROW | F_SEAL_FUTURE_WRITE), -EPERM);
	assert_int_equal(open_forged(&good, bytes, F_SEAL_SHRINK | F_SEAL_GROW), -EPERM);
	assert_int_equal(open_forged(&good, bytes - 4096, seals), -EBADMSG);
	assert_int_equal(open_forged(&good, bytes + 4096, seals), -EBADMSG);
	assert_int_equal(open_forged(&good, sizeof(good), seals), -EBADMSG);
	bad = good, bad.magic++;
	assert_int_equal(open_forged(&bad, bytes, seals), -EPROTO);
	bad = good, bad.layout_version++;
	assert_int_equal(open_forged(&bad, bytes, seals), -EPROTO);
	bad = good, bad.block_entry_bytes++;
	assert_int_equal(open_forged(&bad, bytes, seals), -EPROTO);
	bad = good, bad.page_count = UINT32_MAX;
	assert_int_equal(open_forged(&bad, bytes, seals), -EBADMSG);
	bad = good, bad.page_table_offset = 1 << 20;
	assert_int_equal(open_forged(&bad, bytes, seals), -EBADMSG);
	bad = good, bad.pages_per_handle = 0;
	assert_int_equal(open_forged(&bad, bytes, seals), -EBADMSG);
	bad = good, bad.object_count++; /* other offsets */
	assert_int_equal(open_forged(&bad, bytes, seals), -EBADMSG);
	bad = good, bad.object_count = UINT32_MAX;
	assert_int_equal(open_forged(&bad, bytes, seals), -EBADMSG);
	bad = good, bad.names_offset += 4096;
	assert_int_equal(open_forged(&bad, bytes, seals), -EBADMSG);
}

static void test_session_is_shared_and_sealed(void **state)
{
	struct session_segment agent, worker, reader;
	int fd;

	(void)state;
	assert_int_equal(session_segment_create(1000, 0, 5, 42, &agent, &fd), 0);
	assert_int_equal(session_segment_open(fd, 1000, true, &worker), 0);
	assert_int_equal(session_segment_open(fd, 1000, false, &reader), 0);
	atomic_store(&worker.pins[999], 3);
	assert_int_equal(agent.pins[999], 3);
	assert_int_equal(reader.pins[999], 3);
	assert_int_equal(agent.header->session, 5);
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(session_segment_open(fd, 1001 * 64, true, &(struct session_segment){0}), -EBADMSG);
	worker.header->magic = 0;
	assert_int_equal(session_segment_open(fd, 1000, true, &(struct session_segment){0}), -EPROTO);
	session_segment_close(&reader);
	session_segment_close(&worker);
	session_segment_close(&agent);
	close(fd);
}

static void test_parts_do_not_overlap(void **state)
{
	static const uint32_t counts[] = {0, 1, 63, 64, 65, 1000, 40960, POOL_PAGES_MAX};

	(void)state;
	for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
		struct session_layout l = session_layout_of(counts[i]);
		uint64_t n = counts[i];

		assert_true(l.free_bits >= sizeof(struct session_header));
		assert_true(l.pins >= l.free_bits + (n + 63) / 64 * 8);
		assert_true(l.touch >= l.pins + n * 4);
		assert_true(l.blocks >= l.touch + n * 4);
		assert_true(l.timeline >= l.blocks + n * sizeof(struct block_entry));
		assert_true(l.requests >= l.timeline + SESSION_TIMELINES * 8);
		assert_true(l.stats >= l.requests + SESSION_REQUESTS * sizeof(struct lease_request));
		assert_true(l.answers >= l.stats + sizeof(struct session_stats));
		assert_true(l.regions >= l.answers + SESSION_ANSWERS * sizeof(struct session_answer));
		assert_true(l.bytes >= l.regions + (n ? sizeof(struct region_table) : 0));
		assert_int_equal(l.timeline % 4096, 0);
	}
}

static void test_timelines_fill_pages_of_64_kib(void **state)
{
	static const uint32_t counts[] = {0, 1, 1000, 40960};
	const struct timeline_page *theirs;
	struct timeline_page *ours;
	struct stat stat;
	int fd;

	(void)state;
	page_bytes = 64 << 10;
	for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
		struct session_layout l = session_layout_of(counts[i]);

		assert_int_equal(l.timeline % (64 << 10), 0);
		assert_true(l.requests >= l.timeline + (64 << 10));
	}
	assert_int_equal(timeline_page_create(7, &ours, &fd), 0);
	assert_int_equal(fstat(fd, &stat), 0);
	assert_int_equal(stat.st_size, 64 << 10);
	assert_int_equal(timeline_page_open(fd, &theirs), 0);
	timeline_page_close(theirs);
	timeline_page_close(ours);
	close(fd);
	page_bytes = 0;
}

static void test_timeline_page_is_its_makers(void **state)
{
	struct timeline_page *ours, *another;
	const struct timeline_page *theirs;
	char path[64];
	int fd, other, again;

	(void)state;
	assert_int_equal(timeline_page_create(7, &ours, &fd), 0);
	assert_int_equal(timeline_page_create(7, &another, &other), 0);
	assert_true(ours->key != another->key);
	assert_int_equal(timeline_page_verify(fd), 0);
	assert_int_equal(timeline_page_open(fd, &theirs), 0);
	assert_int_equal(theirs->session, 7);
	assert_true(theirs->key == ours->key);
	atomic_store(&ours->signaled[255], 12);
	assert_int_equal(theirs->signaled[255], 12);
	/* Neither the mapping nor the descriptor nor a new open permits a write. */
	assert_int_equal(mprotect((void *)(uintptr_t)theirs, 4096, PROT_READ | PROT_WRITE), -1);
	assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_equal(ftruncate(fd, 0), -1);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	assert_true(again < 0 || mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
	if (again >= 0)
		close(again);
	timeline_page_close(theirs);
	/* Open a page of another layout, and another kind of file. */
	ours->layout_version++;
	assert_int_equal(timeline_page_open(fd, &theirs), -EPROTO);
	ours->layout_version--;
	ours->magic++;
	assert_int_equal(timeline_page_open(fd, &theirs), -EPROTO);
	timeline_page_close(ours);
	timeline_page_close(another);
	timeline_page_close(NULL);
	close(fd);
	close(other);
}

static void test_forged_timeline_pages_are_refused(void **state)
{
	static const struct {
		off_t bytes;
		int seals, error;
	} forged[] = {
		{4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, -EPERM},
		{4096, F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL, -EPERM},
		/* a process that may add seals could do so later */
		{4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE, -EPERM}, {4096, 0, -EPERM},
		{0, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL, -EBADMSG},
		{4095, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL, -EBADMSG},
		{8192, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL, -EBADMSG},
		{4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL, -EPROTO}, /* zeros */
	};
	const struct timeline_page *page;

	(void)state;
	for (size_t i = 0; i < sizeof(forged) / sizeof(*forged); i++) {
		int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);

		assert_true(fd >= 0);
		assert_int_equal(ftruncate(fd, forged[i].bytes), 0);
		assert_int_equal(fcntl(fd, F_ADD_SEALS, forged[i].seals), 0);
		assert_int_equal(timeline_page_open(fd, &page), forged[i].error);
		close(fd);
	}
	assert_int_equal(timeline_page_open(-1, &page), -EPERM);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pool_starts_whole),
		cmocka_unit_test(test_pool_cannot_be_written_by_others),
		cmocka_unit_test(test_geometry_that_cannot_be_is_refused),
		cmocka_unit_test(test_room_for_objects),
		cmocka_unit_test(test_forged_pools_are_refused),
		cmocka_unit_test(test_session_is_shared_and_sealed),
		cmocka_unit_test(test_parts_do_not_overlap),
		cmocka_unit_test(test_timelines_fill_pages_of_64_kib),
		cmocka_unit_test(test_timeline_page_is_its_makers),
		cmocka_unit_test(test_forged_timeline_pages_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
