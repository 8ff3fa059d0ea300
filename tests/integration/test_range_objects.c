/*
 * test_range_objects.c - named objects in elastic ranges: gpool_range_publish(), gpool_range_map() and
 * gpool_range_unmap().
 *
 * Goal: published pages stay at their addresses, read-only; a second worker maps them in its own range, with the same
 * content and without a copy; they outlive their publisher; an unpinned object is evicted when pages are needed, a
 * pinned one is not; each refusal leaves everything as it was. Method: as test_client_offer.c.
 *
 * Requirements: S5.
 */
#include "tests/integration/elastic_view.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct gpool *pool, *other;
static struct gpool_block blocks[PAGES];

static struct gpool_range *begin(const char *const *options)
{
	start(options);
	pool = open_worker();
	other = open_worker();
	return reserved(pool);
}

static void end(void)
{
	gpool_close(pool);
	gpool_close(other);
	AWAIT(free_pages() == PAGES);
	assert_int_equal(harness_check(&harness), 0);
}

/* Drop the caller's pin, and delete the name: its pages are free once no session maps it. */
static void drop(struct gpool *worker, struct gpool_range *range, struct gpool_object *object, const char *name)
{
	assert_int_equal(gpool_object_unpin(object), 0);
	assert_int_equal(gpool_range_unmap(range, object), 0);
	if (name)
		assert_int_equal(gpool_object_delete(worker, name, 0), 0);
}

static bool is_readonly_here(const volatile uint64_t *word)
{
	char line[256], access[5];
	unsigned long begins, ends;
	bool found = false, readonly = false;
	FILE *maps = fopen("/proc/self/maps", "r");

	assert_non_null(maps);
	while (!found && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %4s", &begins, &ends, access) == 3 && (uintptr_t)word >= begins &&
			(uintptr_t)word < ends) {
			found = true;
			readonly = access[0] == 'r' && access[1] == '-';
		}
	fclose(maps);
	return found && readonly;
}

static void test_shared_without_a_copy(void **state)
{
	struct gpool_range *range = begin(plain), *theirs = reserved(other);
	struct gpool_range_publish_options options = GPOOL_RANGE_PUBLISH_OPTIONS_INIT;
	struct gpool_object *object, *mapped;
	const void *value;
	uint32_t used;
	size_t bytes;

	(void)state;
	assert_int_equal(commit(range, 0, 16), 0);
	fill(range, 0, 16, 1);
	assert_true(!is_readonly_here(words_at(range, 4)));
	used = PAGES - free_pages();
	options.key = "layout";
	options.value = "BLHNC";
	options.value_bytes = 5;
	assert_int_equal(gpool_range_publish(range, 4, 8, "prefix", &options, &object), 0);
	assert_int_equal(wrong(range, 0, 16, 1), 0);
	assert_int_equal(in_state(range, 4, 8, GPOOL_PAGE_SHARED), 8);
	assert_int_equal(in_state(range, 0, 16, GPOOL_PAGE_COMMITTED), 8);
	assert_int_equal(info_of(range).committed_pages, 8);
	assert_true(is_readonly_here(words_at(range, 4)));
	assert_true(!is_readonly_here(words_at(range, 12)));
	fill(range, 0, 4, 2);
	fill(range, 12, 4, 2);

	assert_int_equal(gpool_range_map(theirs, 20, "prefix", NULL, &mapped), 0);
	assert_int_equal(gpool_object_get(mapped, "layout", &value, &bytes), 0);
	assert_int_equal(bytes, 5);
	assert_memory_equal(value, "BLHNC", 5);
	for (uint32_t page = 4; page < 12; page++)
		assert_int_equal(words_at(theirs, page + 16)[0], UINT64_C(1) << 32 | page);
	assert_true(is_readonly_here(words_at(theirs, 20)));
	assert_int_equal(in_state(theirs, 20, 8, GPOOL_PAGE_SHARED), 8);
	assert_int_equal(PAGES - free_pages(), used);
	assert_int_equal(harness_check(&harness), 0);

	drop(pool, range, object, NULL);
	assert_int_equal(in_state(range, 4, 8, GPOOL_PAGE_HOLE), 8);
	assert_int_equal(commit(range, 4, 8), 0);
	fill(range, 4, 8, 3);
	for (uint32_t page = 4; page < 12; page++)
		assert_int_equal(words_at(theirs, page + 16)[0], UINT64_C(1) << 32 | page);
	drop(other, theirs, mapped, "prefix");
	end();
}

static void test_other_calls(void **state)
{
	struct gpool_range *range = begin(plain), *theirs = reserved(other);
	struct gpool_range_publish_options options = GPOOL_RANGE_PUBLISH_OPTIONS_INIT;
	struct gpool_object *object, *second = NULL;

	(void)state;
	assert_int_equal(commit(range, 0, 8), 0);
	fill(range, 0, 8, 1);
	/* Each refusal leaves the pages committed and writable. */
	assert_int_equal(gpool_range_publish(range, 6, 4, "o", NULL, &object), -EINVAL);
	assert_non_null(strstr(gpool_last_error(EINVAL), "page 8 is not committed"));
	assert_int_equal(gpool_range_offer(range, 0, 1, done_fence), 0);
	assert_int_equal(gpool_range_publish(range, 0, 4, "o", NULL, &object), -EINVAL);
	assert_int_equal(gpool_range_reclaim(range, 0, 1, NULL), 0);
	assert_int_equal(gpool_range_publish(range, 0, 4, "", NULL, &object), -EINVAL);
	assert_int_equal(gpool_range_publish(range, 0, 4, "lora/o", NULL, &object), -EPERM);
	assert_int_equal(gpool_range_publish(range, 0, SPARSE + 1, "o", NULL, &object), -EINVAL);
	options.flags = 1u << 31;
	assert_int_equal(gpool_range_publish(range, 0, 4, "o", &options, &object), -EINVAL);
	options.flags = 0;
	options.value_bytes = 1;
	assert_int_equal(gpool_range_publish(range, 0, 4, "o", &options, &object), -EINVAL);
	fill(range, 0, 8, 2);
	assert_int_equal(info_of(range).committed_pages, 8);

	assert_int_equal(gpool_range_publish(range, 0, 4, "o", NULL, &object), 0);
	assert_int_equal(gpool_range_publish(range, 4, 4, "o", NULL, &second), -ESTALE);
	fill(range, 4, 4, 3);
	assert_int_equal(wrong(range, 4, 4, 3), 0);
	/* Pages of an object are not committed, and cannot be. */
	assert_int_equal(commit(range, 0, 8), -EBUSY);
	assert_non_null(strstr(gpool_last_error(EBUSY), "page 0 is mapped to a named object"));
	assert_int_equal(info_of(range).committed_pages, 4);
	assert_int_equal(decommit(range, 0, 4), 0);
	assert_int_equal(gpool_range_offer(range, 0, 4, done_fence), -EINVAL);
	assert_int_equal(gpool_range_reclaim(range, 0, 4, NULL), 4);
	assert_int_equal(gpool_range_capture(range, 0, 1, 1), -EINVAL);
	assert_int_equal(gpool_sleep(pool, 0), -EBUSY);
	assert_int_equal(gpool_range_destroy(range), -EBUSY);
	assert_non_null(strstr(gpool_last_error(EBUSY), "4 pages of named objects are mapped in a range"));
	assert_int_equal(gpool_object_close(object), -EINVAL);
	assert_int_equal(gpool_range_unmap(theirs, object), -EINVAL);
	assert_int_equal(wrong(range, 0, 4, 2), 0);

	assert_int_equal(gpool_range_map(theirs, SPARSE - 2, "o", NULL, &second), -EINVAL);
	assert_int_equal(gpool_range_map(theirs, SPARSE, "o", NULL, &second), -EINVAL);
	assert_int_equal(gpool_range_map(theirs, 0, "absent", NULL, &second), -ENOENT);
	assert_int_equal(commit(theirs, 2, 1), 0);
	assert_int_equal(gpool_range_map(theirs, 0, "o", NULL, &second), -EBUSY);
	assert_non_null(strstr(gpool_last_error(EBUSY), "page 2 is not free"));
	assert_int_equal(decommit(theirs, 2, 1), 0);
	assert_int_equal(in_state(theirs, 0, 4, GPOOL_PAGE_HOLE), 3);
	/* Reclaimable memory makes room for the object. */
	assert_int_equal(gpool_range_map(theirs, 0, "o", NULL, &second), 0);
	assert_int_equal(wrong(theirs, 0, 4, 2), 0);
	drop(other, theirs, second, "o");
	drop(pool, range, object, NULL);
	assert_int_equal(gpool_sleep(other, 0), 0);
	assert_int_equal(gpool_range_map(theirs, 0, "o", NULL, &second), -EHOSTDOWN);
	assert_int_equal(gpool_wake(other, 0), 0);
	end();
}

/* An object that is not pinned makes room for others; one that is pinned does not. */
static void test_evicted(void **state)
{
	struct gpool_range *range = begin(plain), *theirs = reserved(other);
	struct gpool_object *kept, *lost, *mapped;
	uint32_t taken;

	(void)state;
	assert_int_equal(commit(range, 0, 16), 0);
	fill(range, 0, 16, 1);
	assert_int_equal(gpool_range_publish(range, 0, 8, "kept", NULL, &kept), 0);
	assert_int_equal(gpool_range_publish(range, 8, 8, "lost", NULL, &lost), 0);
	assert_int_equal(gpool_range_map(theirs, 0, "lost", NULL, &mapped), 0);
	assert_int_equal(gpool_object_unpin(mapped), 0);
	assert_int_equal(gpool_object_unpin(lost), 0);
	taken = squat(other, blocks, PAGES);
	assert_int_equal(taken, PAGES - 8);
	assert_int_equal(gpool_object_pin(lost), -ESTALE);
	assert_int_equal(gpool_object_pin(mapped), -ESTALE);
	assert_int_equal(gpool_object_find(pool, (const char *const[]){"kept", "lost", "kept"}, 3), 1);
	assert_int_equal(wrong(range, 0, 8, 1), 0);
	assert_int_equal(gpool_range_unmap(range, lost), 0);
	assert_int_equal(gpool_range_unmap(theirs, mapped), 0);
	leave(other, blocks, taken);
	assert_int_equal(gpool_object_pin(kept), 0);
	assert_int_equal(gpool_object_unpin(kept), 0);
	assert_int_equal(wrong(range, 0, 8, 1), 0);
	drop(pool, range, kept, "kept");
	end();
}

/* The object remains when its publisher is killed, and pages that a killed process only mapped are not lost. */
static void test_killed(void **state)
{
	struct gpool_range *theirs;
	struct gpool_object *mapped;
	int ready[2];
	pid_t child;
	char byte;

	(void)state;
	begin(plain);
	gpool_close(pool);
	pool = NULL;
	assert_int_equal(pipe(ready), 0);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		struct gpool *mine = harness_open(&harness);
		struct gpool_range *range = reserved(mine);
		struct gpool_object *object;

		if (commit(range, 0, 8))
			_exit(1);
		fill(range, 0, 8, 7);
		if (gpool_range_publish(range, 0, 4, "survivor", NULL, &object) || write(ready[1], "x", 1) != 1)
			_exit(1);
		pause();
		_exit(1);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	AWAIT(free_pages() >= PAGES - 4);
	theirs = reserved(other);
	assert_int_equal(gpool_range_map(theirs, 3, "survivor", NULL, &mapped), 0);
	for (uint32_t page = 0; page < 4; page++)
		assert_int_equal(words_at(theirs, page + 3)[0], UINT64_C(7) << 32 | page);
	assert_int_equal(harness_check(&harness), 0);
	/* The pool is closed with the object mapped. */
	gpool_close(other);
	other = open_worker();
	assert_int_equal(gpool_object_delete(other, "survivor", 0), 0);
	close(ready[0]);
	close(ready[1]);
	end();
}

/* Handles of four pages. */
static void test_large_handles(void **state)
{
	struct gpool_range *range = begin(fours), *theirs = reserved(other);
	struct gpool_object *object, *mapped;

	(void)state;
	assert_int_equal(commit(range, 0, 16), 0);
	fill(range, 0, 16, 1);
	assert_int_equal(gpool_range_publish(range, 2, 4, "o", NULL, &object), -EINVAL);
	assert_non_null(strstr(gpool_last_error(EINVAL), "both must be multiples of 4, the pages of a handle"));
	assert_int_equal(gpool_range_publish(range, 4, 8, "o", NULL, &object), 0);
	assert_int_equal(gpool_range_map(theirs, 2, "o", NULL, &mapped), -EINVAL);
	assert_int_equal(gpool_range_map(theirs, 4, "o", NULL, &mapped), 0);
	assert_int_equal(wrong(theirs, 4, 8, 1), 0);
	drop(pool, range, object, NULL);
	drop(other, theirs, mapped, "o");
	end();
}

/* GPU work that is queued keeps what it uses. */
static void test_queued_work(void **state)
{
	struct gpool_range *range = begin(plain), *theirs = reserved(other);
	struct gpool_object *object, *mapped;
	struct gpool_fence fence;
	uint32_t stream;

	(void)state;
	assert_int_equal(commit(range, 0, 4), 0);
	fill(range, 0, 4, 1);
	assert_int_equal(gpool_range_publish(range, 0, 4, "o", NULL, &object), 0);
	assert_int_equal(gpool_range_map(theirs, 0, "o", NULL, &mapped), 0);
	assert_int_equal(gpool_stream_open(other, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	assert_int_equal(gpool_fence_record(other, stream, &fence), 0);
	assert_int_equal(gpool_object_unpin_after(mapped, fence), 0);
	assert_int_equal(gpool_object_unpin(object), 0);
	/* The pin ends after the work, so the object cannot be evicted before. */
	assert_int_equal(squat(pool, blocks, PAGES), PAGES - 4);
	assert_int_equal(wrong(theirs, 0, 4, 1), 0);
	leave(pool, blocks, PAGES - 4);
	assert_int_equal(gpool_fence_signal(other, fence), 0);
	assert_int_equal(gpool_range_unmap(theirs, mapped), 0);
	assert_int_equal(gpool_range_unmap(range, object), 0);
	assert_int_equal(gpool_object_delete(pool, "o", 0), 0);
	end();
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_shared_without_a_copy, stop),
		cmocka_unit_test_teardown(test_other_calls, stop),
		cmocka_unit_test_teardown(test_evicted, stop),
		cmocka_unit_test_teardown(test_killed, stop),
		cmocka_unit_test_teardown(test_large_handles, stop),
		cmocka_unit_test_teardown(test_queued_work, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
