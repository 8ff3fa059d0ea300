/*
 * test_rights_requests.c - the rights to control requests that docs/rights.md states.
 *
 * Goal: observers and workers may read everything and change nothing. Every request from them that changes something is
 * refused without any effect. Method: send each request of both kinds from a real session of either kind.
 *
 * Requirements: S9.
 */
#include "tests/integration/life.h"

#include "shm/pool_segment.h"

#include <errno.h>

static struct gpool *worker, *observer;

static int begin(void **state)
{
	(void)state;
	start(quiet);
	worker = open_worker();
	observer = open_as(GPOOL_OPEN_OBSERVER, NULL, NULL);
	return 0;
}

static int end(void **state)
{
	gpool_close(worker);
	gpool_close(observer);
	return stop(state);
}

/* Send a request without arguments, or with those of a designated initializer. */
#define CHANGE_FROM(pool, question, ...) \
	({ \
		const struct msg_##question request_ = {__VA_ARGS__}; \
		struct msg_done_reply done_; \
		ASK_FROM(pool, question, &request_, done_reply, &done_); \
	})
#define LOOK_FROM(pool, what, ...) \
	({ \
		const struct msg_##what##_request request_ = {__VA_ARGS__}; \
		static struct msg_##what##_reply reply_; \
		ASK_FROM(pool, what##_request, &request_, what##_reply, &reply_); \
	})

static void changes_nothing(struct gpool *pool)
{
	assert_int_equal(CHANGE_FROM(pool, evict_request, .pages = 1), -EPERM);
	assert_non_null(strstr(error_text, "access.admins"));
	assert_int_equal(
		CHANGE_FROM(pool, limit_request, .tenant = "default", .limit_pages = 1, .minimum_pages = UINT32_MAX),
		-EPERM);
	assert_int_equal(
		CHANGE_FROM(pool, limit_request, .session = 1, .limit_pages = 1, .minimum_pages = UINT32_MAX), -EPERM);
	assert_int_equal(CHANGE_FROM(pool, drain_request, .on = 1), -EPERM);
	assert_int_equal(CHANGE_FROM(pool, reload_request, 0), -EPERM);
	assert_int_equal(CHANGE_FROM(pool, upgrade_request, 0), -EPERM);
	assert_int_equal(CHANGE_FROM(pool, role_remove_request, .name = "main"), -EPERM);
}

static void test_others_than_admins_change_nothing(void **state)
{
	uint64_t incarnation = atomic_load(&pool_view(admin)->header->incarnation);
	struct gpool_role role = GPOOL_ROLE_INIT;
	struct gpool_block block;

	(void)state;
	alloc_unpinned(worker, &block, 1);
	assert_int_equal(gpool_role_acquire(worker, "main", 0, &role), 0);
	assert_int_equal(gpool_role_release(worker, &role), 0);
	changes_nothing(worker);
	changes_nothing(observer);
	assert_int_equal(count_there(worker, &block, 1), 1);
	assert_int_equal(tenant("default")->limit_pages, PAGES);
	assert_int_equal(atomic_load(&pool_view(admin)->header->draining), 0);
	assert_int_equal(atomic_load(&pool_view(admin)->header->incarnation), incarnation);
	/* The role still exists, and an admin can remove it. */
	assert_int_equal(CHANGE_FROM(admin, role_remove_request, .name = "main"), 0);
}

static void looks_at_everything(struct gpool *pool)
{
	assert_int_equal(LOOK_FROM(pool, version, 0), 0);
	assert_int_equal(LOOK_FROM(pool, status, 0), 0);
	assert_int_equal(LOOK_FROM(pool, pages, .count = 1), 0);
	assert_int_equal(LOOK_FROM(pool, page_kinds, .pool = ""), 0);
	assert_int_equal(LOOK_FROM(pool, pins, .pool = ""), 0);
	assert_int_equal(LOOK_FROM(pool, clients, .pool = ""), 0);
	assert_int_equal(LOOK_FROM(pool, tenants, .pool = ""), 0);
	assert_int_equal(LOOK_FROM(pool, shortage, 0), 0);
	assert_int_equal(LOOK_FROM(pool, totals, .pool = ""), 0);
	assert_int_equal(LOOK_FROM(pool, check, .pool = ""), 0);
	assert_int_equal(LOOK_FROM(pool, transfers, .pool = ""), 0);
	assert_int_equal(LOOK_FROM(pool, domains, .pool = ""), 0);
	assert_int_equal(LOOK_FROM(pool, regions, .session = gpool_session(worker)), 0);
	assert_int_equal(LOOK_FROM(pool, roles, .pool = ""), 0);
}

static void test_every_session_looks(void **state)
{
	(void)state;
	looks_at_everything(worker);
	looks_at_everything(observer);
	looks_at_everything(admin);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, begin, end)
	const struct CMUnitTest tests[] = {
		TEST(others_than_admins_change_nothing),
		TEST(every_session_looks),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
