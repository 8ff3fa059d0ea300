/*
 * test_manifest.c - manifests of named objects: manifests of the library are accepted, and false ones are refused.
 *
 * Method: build a valid manifest as the library does, change one of its fields, and correct its hash, so that the check
 * of the field itself must detect the change.
 */
#include "client/object/object.h"
#include "shm/manifest.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const struct manifest_pool geometry = {.page_bytes = 4096, .page_count = 64, .pages_per_handle = 1};

/* Build a manifest with three allocations, one of which has two runs, and three entries. */
static int good_of(const struct manifest_runs *all)
{
	struct draft draft = {NULL};
	struct manifest manifest;
	int fd;

	assert_int_equal(draft_set(&draft, "bb", "12345", 5), 0);
	assert_int_equal(draft_set(&draft, "b", "old", 3), 0);
	assert_int_equal(draft_set(&draft, "alphabet-a", "", 0), 0);
	assert_int_equal(draft_set(&draft, "b", "new", 3), 0);
	assert_int_equal(draft_manifest(&draft, all, geometry.page_bytes, &manifest, &fd), 0);
	manifest_close(&manifest);
	draft_free(&draft);
	return fd;
}

static int good(void)
{
	struct manifest_run runs[] = {{0, 2, 1}, {10, 3, 7}, {5, 1, 9}, {63, 1, 2}};
	uint32_t run_counts[] = {1, 2, 1}, sizes[] = {2, 4, 1};

	return good_of(&(struct manifest_runs){runs, run_counts, sizes, 4, 3});
}

static size_t bytes_of(int fd, uint8_t **bytes)
{
	struct stat stat;

	assert_int_equal(fstat(fd, &stat), 0);
	*bytes = calloc(1, (size_t)stat.st_size + 64);
	assert_int_equal(pread(fd, *bytes, (size_t)stat.st_size, 0), stat.st_size);
	close(fd);
	return (size_t)stat.st_size;
}

static void test_good(void **state)
{
	struct manifest manifest;
	int fd = good();

	(void)state;
	assert_int_equal(manifest_open(fd, &geometry, &manifest), 0);
	assert_int_equal(manifest.header->pages, 7);
	assert_int_equal(manifest.header->entries, 3);
	assert_int_equal(manifest_find(&manifest, "alphabet-a", 10), 0);
	assert_int_equal(manifest_find(&manifest, "b", 1), 1);
	assert_int_equal(manifest_find(&manifest, "bb", 2), 2);
	assert_int_equal(manifest_find(&manifest, "bbb", 3), -1);
	assert_int_equal(manifest_find(&manifest, "", 0), -1);
	assert_memory_equal(manifest.data + manifest_value_at(manifest.entries[1].offset, 1), "new", 3);
	assert_int_equal(manifest.entries[1].value_bytes, 3);
	manifest_close(&manifest);
	close(fd);
}

static void rehash(uint8_t *bytes, size_t length)
{
	struct manifest_header *header = (struct manifest_header *)(void *)bytes;
	struct manifest_layout layout = manifest_layout_of(header->runs, header->allocations, header->entries);

	if (layout.data <= length)
		header->layout_hash = manifest_hash(bytes, &layout, length, header->page_bytes);
}

static int check_changed(void (*change)(uint8_t *bytes))
{
	struct manifest manifest;
	uint8_t *bytes;
	size_t length = bytes_of(good(), &bytes);
	int error;

	change(bytes);
	rehash(bytes, length);
	error = manifest_check(bytes, length, &geometry, &manifest);
	free(bytes);
	return error;
}

#define HEADER(bytes) ((struct manifest_header *)(void *)(bytes))
#define LAYOUT manifest_layout_of(4, 3, 3)
#define RUNS(bytes) ((struct manifest_run *)(void *)((bytes) + LAYOUT.runs))
#define RUN_COUNTS(bytes) ((uint32_t *)(void *)((bytes) + LAYOUT.run_counts))
#define SIZES(bytes) ((uint32_t *)(void *)((bytes) + LAYOUT.sizes))
#define ENTRIES(bytes) ((struct manifest_entry *)(void *)((bytes) + LAYOUT.entries))
#define DATA(bytes) ((bytes) + LAYOUT.data)

/* Each case has one false value. */
#define FALSE_FIELDS \
	LIE(magic, HEADER(bytes)->magic++) \
	LIE(too_long, HEADER(bytes)->bytes += 8) \
	LIE(too_short, HEADER(bytes)->bytes -= 8) \
	LIE(other_pages, HEADER(bytes)->page_bytes *= 2) \
	LIE(reserved, HEADER(bytes)->reserved = 1) \
	LIE(more_pages, HEADER(bytes)->pages++) \
	LIE(most_pages, HEADER(bytes)->pages = UINT32_MAX) \
	LIE(more_runs, HEADER(bytes)->runs++) \
	LIE(most_runs, HEADER(bytes)->runs = UINT32_MAX) \
	LIE(fewer_runs, HEADER(bytes)->runs--) \
	LIE(no_allocation, HEADER(bytes)->allocations = 0) \
	LIE(more_allocations, HEADER(bytes)->allocations++) \
	LIE(most_allocations, HEADER(bytes)->allocations = UINT32_MAX) \
	LIE(more_entries, HEADER(bytes)->entries++) \
	LIE(fewer_entries, HEADER(bytes)->entries--) \
	LIE(most_entries, HEADER(bytes)->entries = UINT32_MAX) \
	LIE(empty_run, RUNS(bytes)[3].count = 0) \
	LIE(run_behind_the_end, RUNS(bytes)[3].first = 64) \
	LIE(run_over_the_end, RUNS(bytes)[1].first = 62) \
	LIE(run_far_behind, RUNS(bytes)[3].first = UINT32_MAX) \
	LIE(huge_run, RUNS(bytes)[1].count = UINT32_MAX) \
	LIE(page_twice, RUNS(bytes)[3].first = 12) \
	LIE(runs_overlap, RUNS(bytes)[1].first = 3) \
	LIE(no_runs, (RUN_COUNTS(bytes)[0] = 0, RUN_COUNTS(bytes)[1] = 3)) \
	LIE(others_runs, (RUN_COUNTS(bytes)[0] = 2, RUN_COUNTS(bytes)[1] = 1)) \
	LIE(huge_run_count, RUN_COUNTS(bytes)[2] = UINT32_MAX) \
	LIE(size, SIZES(bytes)[0] = 3) \
	LIE(sizes_swapped, (SIZES(bytes)[0] = 4, SIZES(bytes)[1] = 2)) \
	LIE(padding_of_counts, RUN_COUNTS(bytes)[3] = 1) \
	LIE(padding_of_sizes, SIZES(bytes)[3] = 1) \
	LIE(offset, ENTRIES(bytes)[1].offset += 8) \
	LIE(offset_outside, ENTRIES(bytes)[2].offset = UINT64_MAX - 7) \
	LIE(no_key, ENTRIES(bytes)[1].key_bytes = 0) \
	LIE(long_key, ENTRIES(bytes)[0].key_bytes = 1024) \
	LIE(key_with_nul, DATA(bytes)[4] = 0) \
	LIE(key_without_nul, DATA(bytes)[10] = 'x') \
	LIE(padding_of_key, DATA(bytes)[11] = 1) \
	LIE(keys_not_in_order, DATA(bytes)[0] = 'c') \
	LIE(key_twice, DATA(bytes)[ENTRIES(bytes)[2].offset + 1] = 0) \
	LIE(huge_value, ENTRIES(bytes)[2].value_bytes = UINT32_MAX) \
	LIE(longer_value, ENTRIES(bytes)[2].value_bytes = 9) \
	LIE(padding_of_value, DATA(bytes)[manifest_value_at(ENTRIES(bytes)[2].offset, 2) + 5] = 1)

#define LIE(name, what) \
	static void lie_##name(uint8_t *bytes) \
	{ \
		what; \
	}
FALSE_FIELDS
#undef LIE

static void nothing(uint8_t *bytes)
{
	(void)bytes;
}

static void other_version(uint8_t *bytes)
{
	HEADER(bytes)->version = 2;
}

static void other_header(uint8_t *bytes)
{
	HEADER(bytes)->header_bytes = 72;
}

static void test_false_fields(void **state)
{
	(void)state;
	assert_int_equal(check_changed(nothing), 0);
	assert_int_equal(check_changed(other_version), -EPROTO);
	assert_int_equal(check_changed(other_header), -EPROTO);
#define LIE(name, what) \
	if (check_changed(lie_##name) != -EBADMSG) \
		fail_msg("%s is not found", #name);
	FALSE_FIELDS
#undef LIE
}

/* The hash covers every part of the layout. No data beyond the end is read, wherever the manifest is truncated. */
static void test_hash_and_length(void **state)
{
	struct manifest manifest;
	uint8_t *bytes;
	size_t length = bytes_of(good(), &bytes);

	(void)state;
	for (size_t i = LAYOUT.sizes; i < length; i++) {
		bytes[i] ^= 0x40;
		assert_int_not_equal(manifest_check(bytes, length, &geometry, &manifest), 0);
		bytes[i] ^= 0x40;
	}
	assert_int_equal(manifest_check(bytes, length, &geometry, &manifest), 0);
	for (size_t cut = 0; cut < length; cut += 4) {
		uint8_t *part = malloc(cut + 1);

		memcpy(part, bytes, cut);
		if (cut >= sizeof(struct manifest_header)) {
			HEADER(part)->bytes = cut;
			rehash(part, cut);
		}
		assert_int_equal(manifest_check(part, cut, &geometry, &manifest), -EBADMSG);
		free(part);
	}
	free(bytes);
}

/* Handles are mapped as a whole: the runs of an allocation must meet at the borders of handles. */
static void test_large_handles(void **state)
{
	static const struct {
		struct manifest_run runs[3];
		int error;
	} cases[] = {
		{{{1, 3, 1}, {8, 4, 1}, {20, 2, 1}}, 0}, {{{4, 4, 1}, {16, 4, 1}, {8, 1, 1}}, 0},
		{{{1, 2, 1}, {8, 4, 1}, {20, 3, 1}}, -EBADMSG}, /* the first run ends within a handle */
		{{{1, 3, 1}, {9, 3, 1}, {20, 3, 1}}, -EBADMSG}, /* the second run begins within one */
		{{{1, 3, 1}, {8, 5, 1}, {20, 1, 1}}, -EBADMSG}, /* the second run ends within one */
		{{{1, 3, 1}, {8, 4, 1}, {21, 2, 1}}, -EBADMSG}, /* the last run begins within one */
	};
	struct manifest_pool large = {.page_bytes = 4096, .page_count = 64, .pages_per_handle = 4};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct manifest_run runs[3];
		uint32_t run_counts[] = {3}, sizes[] = {9};
		struct manifest manifest;
		int fd;

		memcpy(runs, cases[i].runs, sizeof(runs));
		fd = good_of(&(struct manifest_runs){runs, run_counts, sizes, 3, 1});
		assert_int_equal(manifest_open(fd, &large, &manifest), cases[i].error);
		if (!cases[i].error)
			manifest_close(&manifest);
		close(fd);
	}
}

static void test_descriptors(void **state)
{
	struct manifest manifest;
	int fd = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING), pair[2];

	(void)state;
	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(manifest_open(fd, &geometry, &manifest), -EPERM);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	assert_int_equal(manifest_open(fd, &geometry, &manifest), -EPERM);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
	assert_int_equal(manifest_open(fd, &geometry, &manifest), -EBADMSG);
	close(fd);
	fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, (off_t)MANIFEST_BYTES_MAX + 1), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
	assert_int_equal(manifest_open(fd, &geometry, &manifest), -EFBIG);
	close(fd);
	fd = memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
	assert_int_equal(manifest_open(fd, &geometry, &manifest), -EBADMSG);
	close(fd);
	assert_int_equal(pipe(pair), 0);
	assert_int_equal(manifest_open(pair[0], &geometry, &manifest), -EPERM);
	close(pair[0]);
	close(pair[1]);
	assert_int_equal(manifest_open(-1, &geometry, &manifest), -EPERM);
}

static void test_draft_limits(void **state)
{
	struct draft draft = {NULL};
	struct manifest manifest;
	char key[MANIFEST_KEY_MAX + 2];
	char *large = calloc(1, MANIFEST_BYTES_MAX);
	struct manifest_run run = {0, 1, 1};
	uint32_t one = 1;
	struct manifest_runs runs = {&run, &one, &one, 1, 1};
	int fd;

	(void)state;
	memset(key, 'k', sizeof(key));
	key[MANIFEST_KEY_MAX + 1] = '\0';
	assert_int_equal(draft_set(&draft, key, "", 0), -EINVAL);
	key[MANIFEST_KEY_MAX] = '\0';
	assert_int_equal(draft_set(&draft, key, "v", 1), 0);
	assert_int_equal(draft_set(&draft, "large", large, MANIFEST_BYTES_MAX), 0);
	assert_int_equal(draft_manifest(&draft, &runs, 4096, &manifest, &fd), -EFBIG);
	/* Replaced entries do not count. */
	assert_int_equal(draft_set(&draft, "large", "small", 5), 0);
	assert_int_equal(draft_manifest(&draft, &runs, 4096, &manifest, &fd), 0);
	manifest_close(&manifest);
	close(fd);
	draft_free(&draft);
	free(large);
}

/* Make a key: keys of 1 to MANIFEST_KEY_MAX bytes, of which many begin with the same bytes. */
static void key_make(char *key, uint32_t number)
{
	static const size_t shared[] = {0, 1, 7, 8, 9, 16, 63, 500, 1015};
	size_t length = shared[number % 9];

	memset(key, 'p', length);
	snprintf(key + length, MANIFEST_KEY_MAX + 1 - length, "%c%u", 0x80 + (int)(number % 11), number / 99 % 4999);
}

/*
 * Set each of many keys several times, in a scattered order, publish, set some of them again, and publish again: the
 * manifest has its entries in order, which manifest_open() checks, and the last value of each key.
 */
static void test_sort(void **state)
{
	enum { KEYS = 3000, SETS = 9001 };
	struct manifest_run run = {0, 1, 1};
	uint32_t one = 1, last[KEYS];
	struct manifest_runs runs = {&run, &one, &one, 1, 1};
	struct draft draft = {NULL};
	struct manifest written, manifest;
	char key[MANIFEST_KEY_MAX + 1];
	int fd;

	(void)state;
	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t i = round * 500; i < (round ? 1000 : SETS); i++) {
			uint32_t value = round * SETS + i;

			last[i * 7919 % KEYS] = value;
			key_make(key, i * 7919 % KEYS);
			assert_int_equal(draft_set(&draft, key, &value, sizeof(value)), 0);
		}
		assert_int_equal(draft_manifest(&draft, &runs, geometry.page_bytes, &written, &fd), 0);
		assert_int_equal(manifest_open(fd, &geometry, &manifest), 0);
		close(fd);
		assert_int_equal(manifest.bytes, written.bytes);
		assert_memory_equal(manifest.header, written.header, written.bytes);
		manifest_close(&written);
		assert_int_equal(manifest.header->entries, KEYS);
		for (uint32_t i = 0; i < KEYS; i++) {
			const struct manifest_entry *entry;
			int64_t index;

			key_make(key, i);
			index = manifest_find(&manifest, key, strlen(key));
			assert_true(index >= 0);
			entry = &manifest.entries[index];
			assert_memory_equal(manifest.data + manifest_value_at(entry->offset, entry->key_bytes),
				&last[i], sizeof(last[i]));
		}
		manifest_close(&manifest);
	}
	draft_free(&draft);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_false_fields),
		cmocka_unit_test(test_hash_and_length),
		cmocka_unit_test(test_large_handles),
		cmocka_unit_test(test_descriptors),
		cmocka_unit_test(test_draft_limits),
		cmocka_unit_test(test_sort),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
