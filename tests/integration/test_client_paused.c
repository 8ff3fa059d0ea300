/*
 * test_client_paused.c - a machine or a container is paused while a worker waits for the agent.
 *
 * Goal: even if the pause is longer than a worker waits for an agent that does not answer, the worker's calls succeed
 * afterwards.
 *
 * Method: the agent is stopped, then a worker process whose threads wait for it: one for pages, one for a reply on the
 * attach socket. The worker continues first.
 */
#include "client/core/pool.h"
#include "shm/monotonic.h"
#include "tests/integration/life.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { PAUSE_MS = 11000 }; /* the worker waits for 10 s */

/* Shared with the worker. */
static struct {
	_Atomic bool is_open, go, waits;
	_Atomic int allocated, deleted; /* results of the calls */
} * shared;

static void *pages_ask(void *pool)
{
	struct gpool_block block;

	shared->allocated = gpool_alloc(pool, 1, NULL, &block);
	return NULL;
}

static void *deletion_ask(void *pool)
{
	shared->deleted = gpool_object_delete(pool, "none", 0);
	return NULL;
}

static bool is_asking(struct gpool *pool)
{
	bool asking;

	pthread_mutex_lock(&pool->attach_lock);
	asking = pool->attach_busy;
	pthread_mutex_unlock(&pool->attach_lock);
	pthread_mutex_lock(&pool->request_lock);
	asking = asking && pool->requests_used;
	pthread_mutex_unlock(&pool->request_lock);
	return asking;
}

/* Run as the worker. Return its exit status. */
static int work(void)
{
	struct gpool_options options = harness_options(&harness);
	pthread_t threads[2];
	struct gpool *pool;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (gpool_open(&options, &pool))
		return 1;
	shared->is_open = true;
	while (!shared->go)
		poll(NULL, 0, 1);
	if (pthread_create(&threads[0], NULL, pages_ask, pool) || pthread_create(&threads[1], NULL, deletion_ask, pool))
		return 1;
	while (!is_asking(pool))
		poll(NULL, 0, 1);
	shared->waits = true;
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	gpool_close(pool);
	return 0;
}

static void test_a_pause(void **state)
{
	pid_t agent, worker;
	uint64_t begin;

	(void)state;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(shared != MAP_FAILED);
	start((const char *const[]){"--pool", POOL, QUIET, "--set", "lease.initial_pages=0", NULL});
	agent = process_of("gpoold-agent");
	worker = fork();
	assert_true(worker >= 0);
	if (!worker)
		_exit(work());
	AWAIT(shared->is_open);
	assert_int_equal(kill(agent, SIGSTOP), 0);
	shared->go = true;
	AWAIT(shared->waits);
	assert_int_equal(kill(worker, SIGSTOP), 0);
	begin = monotonic_ms();
	AWAIT(monotonic_ms() - begin >= PAUSE_MS);
	assert_int_equal(kill(worker, SIGCONT), 0);
	assert_int_equal(kill(agent, SIGCONT), 0);
	assert_int_equal(status_of(worker), 0);
	assert_int_equal(shared->allocated, 0);
	assert_int_equal(shared->deleted, -ENOENT);
	munmap(shared, sizeof(*shared));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_a_pause, stop)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
