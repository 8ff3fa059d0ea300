/*
 * test_client_objects.c - threads of one process open, close, build and publish objects at the same time.
 *
 * Goal: while one thread waits for a reply of the agent, the other threads can make calls that need no reply. A request
 * waits no longer than its own timeout for requests of other threads. For every order of opens and closes, the agent
 * counts the session as a reader exactly while it has the object open.
 *
 * Method: an agent that is stopped, and threads that open and close one name as fast as they can.
 */
#include "tests/integration/life.h"

#include "client/core/pool.h"

#include <errno.h>
#include <pthread.h>

enum { ROUNDS = 300, THREADS = 4 };

static struct gpool *pool;

static void publish(const char *name)
{
	struct gpool_object *object;
	uint64_t version;
	uint32_t index;

	assert_int_equal(gpool_object_create(pool, name, NULL, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_int_equal(gpool_object_close(object), 0);
}

static struct gpool_object *opened(const char *name)
{
	struct gpool_object *object = NULL;

	assert_int_equal(gpool_object_open(pool, name, NULL, &object), 0);
	return object;
}

static bool is_asking(void)
{
	bool asking;

	pthread_mutex_lock(&pool->attach_lock);
	asking = pool->attach_busy;
	pthread_mutex_unlock(&pool->attach_lock);
	return asking;
}

/* ---- an agent that does not reply ---- */

static void *open_slowly(void *argument)
{
	struct gpool_object *object = NULL;
	int error = gpool_object_open(pool, argument, NULL, &object);

	return error ? (void *)(intptr_t)error : (gpool_object_close(object), NULL);
}

static void test_other_readers_continue(void **state)
{
	struct gpool_object *one, *other, *built;
	const void *value;
	pthread_t thread;
	void *failed;
	size_t bytes;
	pid_t agent;

	(void)state;
	start(quiet);
	pool = open_worker();
	publish("slow");
	publish("quick");
	one = opened("quick");
	other = opened("quick");
	agent = process_of("gpoold-agent");
	assert_int_equal(kill(agent, SIGSTOP), 0);
	assert_int_equal(pthread_create(&thread, NULL, open_slowly, (void *)(uintptr_t) "slow"), 0);
	AWAIT(is_asking());
	/* These calls need no reply. */
	assert_int_equal(gpool_object_close(one), 0);
	assert_int_equal(gpool_object_create(pool, "built", NULL, &built), 0);
	assert_int_equal(gpool_object_set(built, "key", "value", 5), 0);
	gpool_object_abort(built);
	assert_int_equal(gpool_object_get(other, "key", &value, &bytes), -ENOENT);
	/* This call needs a reply, and has its own timeout. */
	pool->answer_ms = 50;
	assert_int_equal(gpool_object_delete(pool, "quick", 0), -ETIMEDOUT);
	assert_true(is_asking());
	assert_int_equal(kill(agent, SIGCONT), 0);
	assert_int_equal(pthread_join(thread, &failed), 0);
	assert_null(failed);
	assert_int_equal(gpool_object_close(other), 0);
	gpool_close(pool);
}

/* ---- one name, many threads ---- */

static _Atomic uint32_t begun, wrong;

static void *open_and_close(void *argument)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	struct gpool_object *object;

	(void)argument;
	atomic_fetch_add(&begun, 1);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		if (gpool_object_open(pool, "busy", NULL, &object)) {
			atomic_fetch_add(&wrong, 1);
			continue;
		}
		/* The object's record is written, and the agent counts this session as a reader. */
		if (gpool_object_info(object, &info) || info.readers != 1)
			atomic_fetch_add(&wrong, 1);
		if (gpool_object_close(object))
			atomic_fetch_add(&wrong, 1);
	}
	return NULL;
}

static uint32_t readers_of(const char *name)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0, readers = 0;

	while (gpool_object_next(pool, &cursor, &info) == 0)
		if (!strcmp(info.name, name))
			readers += info.readers;
	return readers;
}

/* The publisher closes an object while other threads open it. */
static void test_opened_and_closed_at_once(void **state)
{
	pthread_t threads[THREADS];

	(void)state;
	start(quiet);
	pool = open_worker();
	publish("busy");
	atomic_store(&begun, 0);
	atomic_store(&wrong, 0);
	for (uint32_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, NULL), 0);
	AWAIT(atomic_load(&begun) == THREADS);
	for (uint32_t i = 0; i < 20; i++)
		publish("busy");
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(atomic_load(&wrong), 0);
	assert_int_equal(readers_of("busy"), 0);
	assert_int_equal(harness_check(&harness), 0);
	gpool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_other_readers_continue, stop),
		cmocka_unit_test_teardown(test_opened_and_closed_at_once, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
