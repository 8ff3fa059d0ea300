/*
 * test_roles_crash.c - the agent dies after each of its stores while roles are acquired, waited for, withdrawn from,
 * released and taken over.
 *
 * Goal: no call fails. A role has one holder at a time and increasing tokens, and standbys are served in the order of
 * their arrival. Method: as in test_crash_points.c, with the module built with GPOOL_CRASH_POINTS.
 *
 * After many deaths in succession the keeper delays the restart, so only some points are tried. $GPOOL_CRASH_STRIDE=1
 * tries all of them, in minutes.
 *
 * Requirements: S7.
 */
#include "tests/integration/crash_points.h"

#include "shm/pool_segment.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { STANDBYS = 3 };

struct waiting {
	struct gpool *pool;
	struct gpool_role role;
	int result;
	pthread_t thread;
};

static struct waiting standbys[STANDBYS];
static struct gpool *first;
static pid_t child;
static uint64_t highest;

/* ---- content of the table ---- */

static uint32_t waiters(void)
{
	const struct role_record *roles = pool_view(admin)->roles;
	uint32_t count = 0;

	for (uint32_t i = 0; i < POOL_ROLES; i++)
		count += atomic_load(&roles[i].state) == ROLE_NAMED ? atomic_load(&roles[i].waiters) : 0;
	return count;
}

static uint32_t holder(void)
{
	uint32_t session = 0;

	return gpool_role_info(admin, "main", &session, NULL) ? 0 : session;
}

/* Check that the session holds the role, with a token that was never used before. */
static void holds(struct gpool *pool, const struct gpool_role *role)
{
	assert_int_equal(gpool_role_check(pool, role), 0);
	assert_int_equal(holder(), gpool_session(pool));
	assert_true(role->token > highest);
	highest = role->token;
}

/* ---- standbys ---- */

static void *wait_for_it(void *of)
{
	struct waiting *waiting = of;

	waiting->role.size = sizeof(waiting->role);
	waiting->result = gpool_role_acquire(waiting->pool, "main", ANSWER_MS, &waiting->role);
	return NULL;
}

/* Start the standbys in turn: each is waiting before the next one arrives. */
static void standbys_start(void)
{
	for (uint32_t i = 0; i < STANDBYS; i++) {
		assert_int_equal(pthread_create(&standbys[i].thread, NULL, wait_for_it, &standbys[i]), 0);
		AWAIT(waiters() == i + 1);
	}
}

static void standby_has_it(struct waiting *standby)
{
	assert_int_equal(pthread_join(standby->thread, NULL), 0);
	assert_int_equal(standby->result, 0);
	holds(standby->pool, &standby->role);
}

/* ---- a scenario, with a death at each point ---- */

struct scenario {
	void (*prepare)(void);
	void (*act)(void);
	int stride;
};

static void sessions_close(void)
{
	gpool_close(first);
	first = NULL;
	for (uint32_t i = 0; i < STANDBYS; i++) {
		gpool_close(standbys[i].pool);
		standbys[i].pool = NULL;
	}
}

static void role_forget(void)
{
	const struct msg_role_remove_request request = {.name = "main"};
	struct msg_done_reply done;

	ASK(role_remove_request, &request, done_reply, &done);
}

static void play(const struct scenario *scenario)
{
	const char *stride_text = getenv("GPOOL_CRASH_STRIDE");
	int stride = stride_text ? atoi(stride_text) : scenario->stride;
	int64_t left = 0, at;
	uint32_t deaths = 0;

	for (at = 1; left == 0; at += stride > 0 ? stride : 1) {
		alarm(STUCK_SECONDS);
		/* A new pool counts its tokens from the start. */
		if (crash_another(deaths))
			highest = 0;
		first = open_worker();
		for (uint32_t i = 0; i < STANDBYS; i++)
			standbys[i].pool = open_worker();
		scenario->prepare();
		atomic_store(countdown, at);
		scenario->act();
		left = atomic_exchange(countdown, 0);
		deaths += left == 0;
		sessions_close();
		AWAIT(holder() == 0 && waiters() == 0);
		AWAIT(harness_check(&harness) == 0);
		role_forget();
	}
	print_message("%u deaths at %lld points\n", deaths, (long long)(at - left));
	assert_true(deaths > 0);
}

static void nothing(void)
{
}

static void hand_over(void)
{
	struct gpool_role role = GPOOL_ROLE_INIT;

	assert_int_equal(gpool_role_acquire(first, "main", ANSWER_MS, &role), 0);
	holds(first, &role);
	standbys_start();
	assert_int_equal(gpool_role_check(first, &role), 0);
	assert_int_equal(gpool_role_release(first, &role), 0);
	assert_int_equal(gpool_role_check(first, &role), -ESTALE);
	for (uint32_t i = 0; i < STANDBYS; i++) {
		standby_has_it(&standbys[i]);
		/* Pass the role on by a release, and by the end of a session. */
		if (i % 2)
			assert_int_equal(gpool_role_release(standbys[i].pool, &standbys[i].role), 0);
		else
			gpool_close(standbys[i].pool);
		if (i % 2 == 0)
			standbys[i].pool = NULL;
	}
}

static void test_hand_over(void **state)
{
	(void)state;
	play(&(struct scenario){nothing, hand_over, 4});
}

static void give_up(void)
{
	struct gpool_role role = GPOOL_ROLE_INIT, other = GPOOL_ROLE_INIT;

	assert_int_equal(gpool_role_acquire(first, "main", ANSWER_MS, &role), 0);
	holds(first, &role);
	for (uint32_t i = 0; i < STANDBYS; i++)
		assert_int_equal(gpool_role_acquire(standbys[i].pool, "main", (int)i, &other), -ETIMEDOUT);
	AWAIT(waiters() == 0);
	assert_int_equal(gpool_role_check(first, &role), 0);
	assert_int_equal(gpool_role_release(first, &role), 0);
	assert_int_equal(gpool_role_acquire(standbys[0].pool, "main", 0, &other), 0);
	holds(standbys[0].pool, &other);
}

static void test_withdrawal(void **state)
{
	(void)state;
	play(&(struct scenario){nothing, give_up, 3});
}

static void child_holds(void)
{
	struct gpool_role role = GPOOL_ROLE_INIT;
	struct gpool_block block;
	struct gpool *pool;
	int says[2];

	assert_int_equal(pipe(says), 0);
	fflush(stdout);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct gpool_options options = harness_options(&harness);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (gpool_open(&options, &pool) || gpool_role_acquire(pool, "main", ANSWER_MS, &role) ||
			gpool_alloc(pool, 4, NULL, &block) || write(says[1], &role, sizeof(role)) != sizeof(role))
			_exit(1);
		for (;;)
			pause();
	}
	close(says[1]);
	assert_int_equal(read(says[0], &role, sizeof(role)), sizeof(role));
	close(says[0]);
	assert_int_equal(holder(), role.session);
	assert_true(role.token > highest);
	highest = role.token;
	standbys_start();
}

static void child_dies(void)
{
	assert_true(child > 1);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	for (uint32_t i = 0; i < STANDBYS; i++) {
		standby_has_it(&standbys[i]);
		assert_int_equal(gpool_role_release(standbys[i].pool, &standbys[i].role), 0);
	}
}

static void test_takeover(void **state)
{
	(void)state;
	play(&(struct scenario){child_holds, child_dies, 3});
}

/* The holder dies while no agent runs, and a standby times out. */
static void agent_and_child_die(void)
{
	pid_t agent_pid = (pid_t)status()->agent_pid;

	assert_true(agent_pid > 1 && child > 1);
	assert_int_equal(kill(child, SIGSTOP), 0);
	assert_int_equal(kill(agent_pid, SIGKILL), 0);
	child_dies();
}

static void test_both_die(void **state)
{
	(void)state;
	play(&(struct scenario){child_holds, agent_and_child_die, 6});
}

/* ---- fixture ---- */

static int end(void **state)
{
	crash_stop(NULL);
	return crash_end(state);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hand_over),
		cmocka_unit_test(test_withdrawal),
		cmocka_unit_test(test_takeover),
		cmocka_unit_test(test_both_die),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, crash_start, end);
}
