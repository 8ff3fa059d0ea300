/*
 * test_background.c - the library's background thread.
 *
 * Goal: a task runs after each wake and by its period, one task at a time, and never after it was removed. The thread
 * starts with the first task, receives no signals, and ends. Method: a pool handle of which only the background thread
 * is used. Semaphores show which tasks have run.
 */
#include "client/vm/background.h"

#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct probe {
	struct background_task task;
	sem_t ran, go;
	bool waits; /* waits for `go` inside the task */
	_Atomic uint32_t runs, inside;
	pthread_t thread;
};

static struct gpool *pool;
static _Atomic uint32_t together;

static void probe_run(struct background_task *task)
{
	struct probe *probe = (struct probe *)task;

	assert_int_equal(atomic_fetch_add(&together, 1), 0);
	probe->thread = pthread_self();
	atomic_fetch_add(&probe->runs, 1);
	atomic_store(&probe->inside, 1);
	sem_post(&probe->ran);
	if (probe->waits)
		while (sem_wait(&probe->go))
			;
	atomic_store(&probe->inside, 0);
	atomic_fetch_sub(&together, 1);
}

static void probe_make(struct probe *probe, uint32_t period_ms, bool waits)
{
	*probe = (struct probe){.task.run = probe_run, .task.period_ms = period_ms, .waits = waits};
	sem_init(&probe->ran, 0, 0);
	sem_init(&probe->go, 0, 0);
}

static int opened(void **state)
{
	(void)state;
	pool = aligned_alloc(64, sizeof(*pool));
	assert_non_null(pool);
	memset(pool, 0, sizeof(*pool));
	return background_open(pool);
}

static int closed(void **state)
{
	(void)state;
	background_stop(pool);
	background_close(pool);
	free(pool);
	return 0;
}

static void test_runs_when_woken(void **state)
{
	struct probe probe;

	(void)state;
	probe_make(&probe, 0, false);
	assert_int_equal(background_add(pool, &probe.task), 0);
	for (uint32_t i = 1; i <= 100; i++) {
		background_wake(pool, &probe.task);
		sem_wait(&probe.ran);
		assert_int_equal(atomic_load(&probe.runs), i);
	}
	background_remove(pool, &probe.task);
	background_remove(pool, &probe.task);
	assert_int_equal(atomic_load(&probe.runs), 100);
}

static void test_runs_by_its_period(void **state)
{
	struct probe often, never;

	(void)state;
	probe_make(&often, 1, false);
	probe_make(&never, 0, false);
	assert_int_equal(background_add(pool, &never.task), 0);
	assert_int_equal(background_add(pool, &often.task), 0);
	for (int i = 0; i < 20; i++)
		sem_wait(&often.ran);
	background_remove(pool, &often.task);
	background_remove(pool, &never.task);
	assert_int_equal(atomic_load(&never.runs), 0);
	assert_false(pthread_equal(often.thread, pthread_self()));
}

/* A task that is woken while it runs is run once more. Other tasks run in between. */
static void test_woken_while_it_runs(void **state)
{
	struct probe slow, other;

	(void)state;
	probe_make(&slow, 0, true);
	probe_make(&other, 0, false);
	assert_int_equal(background_add(pool, &slow.task), 0);
	assert_int_equal(background_add(pool, &other.task), 0);
	background_wake(pool, &slow.task);
	sem_wait(&slow.ran);
	for (int i = 0; i < 5; i++)
		background_wake(pool, &slow.task);
	background_wake(pool, &other.task);
	sem_post(&slow.go);
	sem_wait(&other.ran);
	sem_wait(&slow.ran);
	sem_post(&slow.go);
	background_remove(pool, &slow.task);
	assert_int_equal(atomic_load(&slow.runs), 2);
	assert_int_equal(atomic_load(&other.runs), 1);
	background_remove(pool, &other.task);
}

static void *poster(void *argument)
{
	struct probe *probe = argument;

	assert_int_equal(atomic_load(&probe->inside), 1);
	sem_post(&probe->go);
	return NULL;
}

static void test_removing_waits(void **state)
{
	struct probe probe;
	pthread_t thread;

	(void)state;
	for (int i = 0; i < 50; i++) {
		probe_make(&probe, 0, true);
		assert_int_equal(background_add(pool, &probe.task), 0);
		background_wake(pool, &probe.task);
		sem_wait(&probe.ran);
		assert_int_equal(pthread_create(&thread, NULL, poster, &probe), 0);
		background_remove(pool, &probe.task);
		assert_int_equal(atomic_load(&probe.inside), 0);
		pthread_join(thread, NULL);
		assert_int_equal(atomic_load(&probe.runs), 1);
	}
}

/* A stop ends the thread, whether it runs a task or waits, even if tasks were not removed. */
static void test_stopping(void **state)
{
	struct probe probe;
	pthread_t thread;

	(void)state;
	probe_make(&probe, 1000000, true);
	assert_int_equal(background_add(pool, &probe.task), 0);
	background_wake(pool, &probe.task);
	sem_wait(&probe.ran);
	assert_int_equal(pthread_create(&thread, NULL, poster, &probe), 0);
	background_stop(pool);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&probe.inside), 0);
	assert_int_equal(atomic_load(&probe.runs), 1);
}

static void test_no_signals(void **state)
{
	struct probe probe;
	sigset_t mask;

	(void)state;
	probe_make(&probe, 0, true);
	assert_int_equal(background_add(pool, &probe.task), 0);
	/* The caller's own signal mask is unchanged. */
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	assert_false(sigismember(&mask, SIGUSR1));
	background_wake(pool, &probe.task);
	sem_wait(&probe.ran);
	assert_int_equal(pthread_kill(probe.thread, SIGUSR1), 0); /* would end the program */
	sem_post(&probe.go);
	background_remove(pool, &probe.task);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_runs_when_woken, opened, closed),
		cmocka_unit_test_setup_teardown(test_runs_by_its_period, opened, closed),
		cmocka_unit_test_setup_teardown(test_woken_while_it_runs, opened, closed),
		cmocka_unit_test_setup_teardown(test_removing_waits, opened, closed),
		cmocka_unit_test_setup_teardown(test_stopping, opened, closed),
		cmocka_unit_test_setup_teardown(test_no_signals, opened, closed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
