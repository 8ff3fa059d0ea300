/*
 * test_cold_reader.c - reading groups of a cold file ahead.
 *
 * Goal: each method of reading yields the bytes of the file in order, even if the method changes during the file, the
 * kernel refuses some reads, or a request fails. A truncated file is an error, and no state of it remains for the next
 * file.
 *
 * Method: files of random groups. Wrappers in this program replace calls of the C library and of liburing and inject
 * failures.
 *
 * Requirements: C5, L5.
 */
#include "client/lora/load/cold_reader.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- calls that fail ---- */

enum { NEVER = 1 << 30 };
enum direct_open { DIRECT_OPENS, DIRECT_REFUSED, DIRECT_READS_FAIL };

static struct {
	int cached_reads; /* number of reads that the page cache answers */
	int requests;     /* number of requests that io_uring accepts */
	bool pread_fails, ring_refused, room_refused, waiting_fails;
	enum direct_open direct;
} now;

static void all_works(void)
{
	memset(&now, 0, sizeof(now));
	now.cached_reads = now.requests = NEVER;
}

ssize_t preadv2(int fd, const struct iovec *to, int count, off_t offset, int flags)
{
	if (now.cached_reads-- <= 0) {
		errno = EAGAIN;
		return -1;
	}
	return syscall(SYS_preadv2, fd, to, (long)count, (long)offset, 0L, (long)flags);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t offset)
{
	if (now.pread_fails) {
		errno = EIO;
		return -1;
	}
	return syscall(SYS_pread64, fd, to, bytes, offset);
}

int open(const char *path, int flags, ...)
{
	if (flags & O_DIRECT && now.direct == DIRECT_REFUSED) {
		errno = EINVAL;
		return -1;
	}
	if (flags & O_DIRECT && now.direct == DIRECT_READS_FAIL)
		flags = (flags & ~O_ACCMODE) | O_WRONLY;
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0600);
}

int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
	int (*real)(unsigned, struct io_uring *, unsigned);

	*(void **)&real = dlsym(RTLD_NEXT, "io_uring_queue_init");
	return now.ring_refused ? -EPERM : real(entries, ring, flags);
}

int io_uring_register_buffers(struct io_uring *ring, const struct iovec *buffers, unsigned count)
{
	int (*real)(struct io_uring *, const struct iovec *, unsigned);

	*(void **)&real = dlsym(RTLD_NEXT, "io_uring_register_buffers");
	return now.room_refused ? -ENOMEM : real(ring, buffers, count);
}

int io_uring_submit(struct io_uring *ring)
{
	int (*real)(struct io_uring *);

	*(void **)&real = dlsym(RTLD_NEXT, "io_uring_submit");
	return now.requests-- <= 0 ? -EBUSY : real(ring);
}

/* The functions that io_uring_wait_cqe() calls. That function is inlined into the reader. */
int __io_uring_get_cqe(
	struct io_uring *ring, struct io_uring_cqe **cqe, unsigned submit, unsigned count, sigset_t *mask)
{
	int (*real)(struct io_uring *, struct io_uring_cqe **, unsigned, unsigned, sigset_t *);

	*(void **)&real = dlsym(RTLD_NEXT, "__io_uring_get_cqe");
	return now.waiting_fails ? -EBADF : real(ring, cqe, submit, count, mask);
}

/* Return true if this machine permits reads by io_uring and O_DIRECT. Containers often do not. */
static bool direct_is_here(int fd)
{
	struct io_uring ring;
	char path[32];
	int direct;

	all_works();
	if (io_uring_queue_init(1, &ring, 0)) {
		print_message("no io_uring here\n");
		return false;
	}
	io_uring_queue_exit(&ring);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (direct < 0) {
		print_message("no O_DIRECT here\n");
		return false;
	}
	close(direct);
	return true;
}

/* ---- a file ---- */

enum { GROUPS = 24, GROUP_MOST = 300000 };

/* The parts of a cold file that the reader uses. */
struct made {
	struct cold_file file;
	struct cold_header header;
	struct cold_group groups[GROUPS];
	uint8_t *bytes; /* the whole file */
	uint64_t length;
};

static void made_begin(struct made *made, uint32_t groups)
{
	char path[] = "/var/tmp/test_cold_reader-XXXXXX";

	memset(made, 0, sizeof(*made));
	made->length = COLD_ALIGN;
	made->header.groups = groups;
	made->file =
		(struct cold_file){.fd = mkostemp(path, O_CLOEXEC), .header = &made->header, .groups = made->groups};
	assert_true(made->file.fd >= 0);
	unlink(path);
}

static void group_add(struct made *made, uint32_t group, uint64_t bytes)
{
	made->groups[group] = (struct cold_group){.offset = made->length, .bytes = bytes};
	made->length += cold_align(bytes);
}

static void make(struct made *made)
{
	made_begin(made, GROUPS);
	for (uint32_t i = 0; i < GROUPS; i++)
		group_add(made, i, 1 + (uint32_t)rand() % (i % 3 ? GROUP_MOST : 5000));
	made->bytes = malloc(made->length);
	for (uint64_t i = 0; i < made->length; i++)
		made->bytes[i] = (uint8_t)rand();
	assert_int_equal(write(made->file.fd, made->bytes, made->length), made->length);
}

static void unmake(struct made *made)
{
	close(made->file.fd);
	free(made->bytes);
}

static bool is_group(const struct made *made, uint32_t group, const void *stored)
{
	return memcmp(stored, made->bytes + made->groups[group].offset, cold_align(made->groups[group].bytes)) == 0;
}

/* Read from the beginning to the end. Return the last method. */
static enum cold_reader_way reads_all(struct cold_reader *reader, const struct made *made)
{
	uint32_t group = 0;
	const void *stored;

	assert_int_equal(cold_reader_begin(reader, &made->file), 0);
	for (uint32_t i = 0; i < made->header.groups; i++) {
		assert_int_equal(cold_reader_next(reader, &group, &stored), 1);
		assert_int_equal(group, i);
		assert_int_equal((uintptr_t)stored % COLD_ALIGN, 0);
		assert_true(is_group(made, group, stored));
		cold_reader_give_back(reader, group);
	}
	assert_int_equal(cold_reader_next(reader, &group, &stored), 0);
	cold_reader_end(reader);
	return cold_reader_way(reader);
}

static struct cold_reader *reader_made(void)
{
	struct cold_reader *reader;

	assert_int_equal(cold_reader_create(&reader), 0);
	return reader;
}

/* ---- methods of reading ---- */

static void test_cached_groups_are_read_from_the_page_cache(void **state)
{
	struct cold_reader *reader = reader_made();
	enum cold_reader_way way;
	struct made made;

	(void)state;
	make(&made);
	all_works();
	way = reads_all(reader, &made);
	if (way == COLD_READER_CACHED)
		assert_int_equal(now.cached_reads, NEVER - GROUPS);
	else
		print_message("the page cache did not have it\n");
	cold_reader_destroy(reader);
	unmake(&made);
}

/* Read from a random group on. The next file starts from the beginning. */
static void test_uncached_groups_are_read_from_disk(void **state)
{
	struct cold_reader *reader = reader_made();
	enum cold_reader_way wanted;
	struct made made;

	(void)state;
	make(&made);
	wanted = direct_is_here(made.file.fd) ? COLD_READER_DIRECT : COLD_READER_PLAIN;
	for (int cached = 0; cached < GROUPS; cached += 5) {
		all_works();
		now.cached_reads = cached;
		assert_int_equal(reads_all(reader, &made), wanted);
	}
	cold_reader_destroy(reader);
	unmake(&made);
}

static void refused(void (*prepare)(void), bool direct_stays)
{
	struct cold_reader *reader = reader_made();
	enum cold_reader_way wanted;
	struct made made;

	make(&made);
	wanted = direct_stays && direct_is_here(made.file.fd) ? COLD_READER_DIRECT : COLD_READER_PLAIN;
	for (int i = 0; i < 3; i++) {
		all_works();
		now.cached_reads = i;
		prepare();
		assert_int_equal(reads_all(reader, &made), wanted);
	}
	cold_reader_destroy(reader);
	unmake(&made);
}

static void refuse_ring(void)
{
	now.ring_refused = true;
}

static void refuse_direct(void)
{
	now.direct = DIRECT_REFUSED;
}

static void refuse_room(void)
{
	now.room_refused = true;
}

static void fail_direct_reads(void)
{
	now.direct = DIRECT_READS_FAIL;
}

static void test_refused_reads_use_another_method(void **state)
{
	(void)state;
	refused(refuse_ring, false);
	refused(refuse_direct, false);
	refused(refuse_room, true);
	refused(fail_direct_reads, true);
}

/* The reader waits for the earlier requests, and uses their data. */
static void test_a_ring_that_takes_no_more_is_left(void **state)
{
	struct made made;

	(void)state;
	make(&made);
	for (int requests = 0; requests < GROUPS; requests++) {
		struct cold_reader *reader = reader_made();

		all_works();
		now.cached_reads = 1;
		now.requests = requests;
		reads_all(reader, &made);
		now.cached_reads = 0;
		now.requests = NEVER;
		if (requests < GROUPS - 1)
			assert_int_equal(reads_all(reader, &made), COLD_READER_PLAIN);
		cold_reader_destroy(reader);
	}
	unmake(&made);
}

/* ---- groups that the caller holds ---- */

/* Hold groups at random, and return them out of order. Held groups must stay unchanged. */
static void holds(struct cold_reader *reader, const struct made *made)
{
	const void *held[GROUPS] = {NULL}, *stored;
	uint32_t group, given = 0;
	int result;

	assert_int_equal(cold_reader_begin(reader, &made->file), 0);
	while ((result = cold_reader_next(reader, &group, &stored)) != 0) {
		assert_true(result == 1 || result == -EAGAIN);
		if (result == 1)
			held[group] = stored;
		for (uint32_t i = 0; i < GROUPS; i++) {
			if (!held[i] || (result == 1 && rand() % 6))
				continue;
			assert_true(is_group(made, i, held[i]));
			cold_reader_give_back(reader, i);
			held[i] = NULL;
			given++;
			break;
		}
	}
	assert_true(given <= GROUPS);
	for (uint32_t i = 0; i < GROUPS; i++)
		if (held[i])
			assert_true(is_group(made, i, held[i]));
	cold_reader_end(reader);
}

static void test_groups_stay_until_they_are_returned(void **state)
{
	struct cold_reader *reader = reader_made();
	struct made made;

	(void)state;
	make(&made);
	for (int round = 0; round < 30; round++) {
		all_works();
		now.cached_reads = round % 3 == 2 ? NEVER : 0;
		now.direct = round % 3 == 1 ? DIRECT_REFUSED : DIRECT_OPENS;
		holds(reader, &made);
	}
	cold_reader_destroy(reader);
	unmake(&made);
}

/* Two of the largest groups can be held, and never more. */
static void test_two_of_any_find_room(void **state)
{
	struct cold_reader *reader = reader_made();
	const void *stored;
	struct made made;
	uint32_t group;

	(void)state;
	made_begin(&made, 3);
	for (uint32_t i = 0; i < 3; i++)
		group_add(&made, i, COLD_GROUP_IMAGE_MAX);
	assert_int_equal(ftruncate(made.file.fd, (off_t)made.length), 0);
	for (int cached = 0; cached < 4; cached++) {
		all_works();
		now.cached_reads = cached;
		assert_int_equal(cold_reader_begin(reader, &made.file), 0);
		assert_int_equal(cold_reader_next(reader, &group, &stored), 1);
		assert_int_equal(cold_reader_next(reader, &group, &stored), 1);
		assert_int_equal(cold_reader_next(reader, &group, &stored), -EAGAIN);
		assert_int_equal(cold_reader_next(reader, &group, &stored), -EAGAIN);
		cold_reader_give_back(reader, 1);
		assert_int_equal(cold_reader_next(reader, &group, &stored), 1);
		assert_int_equal(group, 2);
		cold_reader_end(reader);
	}
	cold_reader_destroy(reader);
	unmake(&made);
}

/* ---- failures ---- */

static void (*const ways[])(void) = {all_works, refuse_ring, refuse_direct, refuse_room};
enum { WAYS = sizeof(ways) / sizeof(*ways) };

/* The file has become shorter. The data before its end is correct. */
static void test_a_file_that_ends_early_is_an_error(void **state)
{
	struct made made, other;

	(void)state;
	make(&made);
	make(&other);
	for (int way = 0; way < 2 * WAYS; way++) {
		struct cold_reader *reader = reader_made();
		uint32_t last = (uint32_t)rand() % GROUPS, group;
		const void *stored;
		int result;

		all_works();
		ways[way / 2]();
		now.cached_reads = way % 2 ? NEVER : 0;
		assert_int_equal(
			ftruncate(made.file.fd,
				(off_t)(made.groups[last].offset + 4096 * (uint32_t)(rand() % 2) + rand() % 2)),
			0);
		assert_int_equal(cold_reader_begin(reader, &made.file), 0);
		while ((result = cold_reader_next(reader, &group, &stored)) == 1) {
			assert_true(is_group(&made, group, stored));
			assert_true(group <= last);
			cold_reader_give_back(reader, group);
		}
		assert_int_equal(result, -EIO);
		assert_int_equal(cold_reader_next(reader, &group, &stored), -EIO);
		cold_reader_end(reader);
		reads_all(reader, &other);
		cold_reader_destroy(reader);
		assert_int_equal(pwrite(made.file.fd, made.bytes, made.length, 0), made.length);
	}
	unmake(&made);
	unmake(&other);
}

static void test_a_disk_that_fails_is_an_error(void **state)
{
	struct made made;

	(void)state;
	make(&made);
	for (int i = 0; i < 2; i++) {
		struct cold_reader *reader = reader_made();
		uint32_t group;
		const void *stored;

		all_works();
		now.cached_reads = 0;
		now.pread_fails = true;
		now.direct = i ? DIRECT_READS_FAIL : DIRECT_REFUSED;
		assert_int_equal(cold_reader_begin(reader, &made.file), 0);
		assert_int_equal(cold_reader_next(reader, &group, &stored), -EIO);
		cold_reader_end(reader);
		all_works();
		reads_all(reader, &made);
		cold_reader_destroy(reader);
	}
	unmake(&made);
}

/* The reader does not know where the kernel still writes, so it continues with other memory and without a ring. */
static void test_memory_of_requests_that_are_lost_is_not_used_again(void **state)
{
	struct cold_reader *reader = reader_made();
	const void *stored, *first, *other;
	struct made made;
	uint32_t group;
	int result;

	(void)state;
	make(&made);
	all_works();
	now.cached_reads = 1;
	now.waiting_fails = true;
	assert_int_equal(cold_reader_begin(reader, &made.file), 0);
	assert_int_equal(cold_reader_next(reader, &group, &first), 1);
	while ((result = cold_reader_next(reader, &group, &stored)) == 1)
		cold_reader_give_back(reader, group);
	if (result) { /* only if a request was waited for */
		assert_int_equal(result, -EIO);
		assert_int_equal(cold_reader_next(reader, &group, &stored), -EIO);
	}
	cold_reader_end(reader);
	now.cached_reads = 0;
	now.waiting_fails = false;
	if (result) {
		assert_int_equal(cold_reader_begin(reader, &made.file), 0);
		assert_int_equal(cold_reader_next(reader, &group, &other), 1);
		assert_true(llabs((const char *)other - (const char *)first) >= COLD_READER_ROOM);
		cold_reader_end(reader);
		assert_int_equal(reads_all(reader, &made), COLD_READER_PLAIN);
	}
	cold_reader_destroy(reader);
	unmake(&made);
}

/* End the reader while requests are under way. */
static void test_it_can_end_anywhere(void **state)
{
	struct cold_reader *reader = reader_made();
	struct made made;

	(void)state;
	make(&made);
	for (uint32_t end = 0; end < GROUPS; end++) {
		uint32_t group;
		const void *stored;

		all_works();
		now.cached_reads = 0;
		assert_int_equal(cold_reader_begin(reader, &made.file), 0);
		for (uint32_t i = 0; i < end; i++) {
			assert_int_equal(cold_reader_next(reader, &group, &stored), 1);
			cold_reader_give_back(reader, group);
		}
		if (end % 2)
			cold_reader_end(reader);
		else {
			cold_reader_destroy(reader);
			reader = reader_made();
		}
	}
	cold_reader_end(reader);
	cold_reader_destroy(reader);
	cold_reader_destroy(NULL);
	unmake(&made);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cached_groups_are_read_from_the_page_cache),
		cmocka_unit_test(test_uncached_groups_are_read_from_disk),
		cmocka_unit_test(test_refused_reads_use_another_method),
		cmocka_unit_test(test_a_ring_that_takes_no_more_is_left),
		cmocka_unit_test(test_groups_stay_until_they_are_returned),
		cmocka_unit_test(test_two_of_any_find_room),
		cmocka_unit_test(test_a_file_that_ends_early_is_an_error),
		cmocka_unit_test(test_a_disk_that_fails_is_an_error),
		cmocka_unit_test(test_memory_of_requests_that_are_lost_is_not_used_again),
		cmocka_unit_test(test_it_can_end_anywhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
