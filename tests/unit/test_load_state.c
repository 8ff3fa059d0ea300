/*
 * test_load_state.c - the states of an adapter.
 *
 * Goal: the table allows exactly the transitions that are listed in this test. A change of state moves the adapter
 * between the lists, counts loads, and derives the state that the public interface reports.
 *
 * Method: each pair of states, and sequences of states of an adapter without a pool. In debug builds a forbidden
 * transition ends a child process.
 */
#include "client/lora/load/load.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the table ---- */

static const struct {
	enum load_state from, to;
} allowed[] = {
	{LOAD_COLD, LOAD_POSTPONED},
	{LOAD_POSTPONED, LOAD_QUEUED},
	{LOAD_POSTPONED, LOAD_COLD},
	{LOAD_COLD, LOAD_QUEUED},
	{LOAD_COLD, LOAD_QUEUED_UNASKED},
	{LOAD_COLD, LOAD_BEGUN},
	{LOAD_QUEUED, LOAD_BEGUN},
	{LOAD_QUEUED, LOAD_COLD},
	{LOAD_QUEUED_UNASKED, LOAD_QUEUED},
	{LOAD_QUEUED_UNASKED, LOAD_BEGUN_UNASKED},
	{LOAD_QUEUED_UNASKED, LOAD_COLD},
	{LOAD_BEGUN, LOAD_OPENING},
	{LOAD_BEGUN, LOAD_QUEUED},
	{LOAD_BEGUN, LOAD_HELD},
	{LOAD_BEGUN, LOAD_RESIDENT},
	{LOAD_BEGUN, LOAD_COLD},
	{LOAD_BEGUN_UNASKED, LOAD_BEGUN},
	{LOAD_BEGUN_UNASKED, LOAD_OPENING},
	{LOAD_BEGUN_UNASKED, LOAD_RESIDENT},
	{LOAD_BEGUN_UNASKED, LOAD_COLD},
	{LOAD_OPENING, LOAD_NEEDS_SOURCE},
	{LOAD_OPENING, LOAD_LISTED},
	{LOAD_OPENING, LOAD_MADE},
	{LOAD_NEEDS_SOURCE, LOAD_OPENING},
	{LOAD_LISTED, LOAD_MAKING},
	{LOAD_LISTED, LOAD_FAILED},
	{LOAD_LISTED, LOAD_ENDING},
	{LOAD_MAKING, LOAD_LISTED},
	{LOAD_MAKING, LOAD_STARVED},
	{LOAD_MAKING, LOAD_FAILED},
	{LOAD_MAKING, LOAD_MADE},
	{LOAD_STARVED, LOAD_LISTED},
	{LOAD_STARVED, LOAD_FAILED},
	{LOAD_FAILED, LOAD_NEEDS_SOURCE},
	{LOAD_FAILED, LOAD_MADE},
	{LOAD_MADE, LOAD_FINISHING},
	{LOAD_FINISHING, LOAD_DRAFT},
	{LOAD_FINISHING, LOAD_DRAFT_UNUSED},
	{LOAD_FINISHING, LOAD_ENDING},
	{LOAD_DRAFT, LOAD_DRAFT_UNUSED},
	{LOAD_DRAFT_UNUSED, LOAD_DRAFT},
	{LOAD_DRAFT_UNUSED, LOAD_DRAFT_ENDING},
	{LOAD_ENDING, LOAD_HELD},
	{LOAD_ENDING, LOAD_RESIDENT},
	{LOAD_ENDING, LOAD_COLD},
	{LOAD_DRAFT_ENDING, LOAD_HELD},
	{LOAD_DRAFT_ENDING, LOAD_RESIDENT},
	{LOAD_DRAFT_ENDING, LOAD_COLD},
	{LOAD_HELD, LOAD_RESIDENT},
	{LOAD_RESIDENT, LOAD_COLD},
};

static bool is_allowed(enum load_state from, enum load_state to)
{
	for (size_t i = 0; i < sizeof(allowed) / sizeof(*allowed); i++)
		if (allowed[i].from == from && allowed[i].to == to)
			return true;
	return false;
}

static void test_table(void **state)
{
	(void)state;
	for (enum load_state from = 0; from < LOAD_STATES; from++)
		for (enum load_state to = 0; to < LOAD_STATES; to++)
			if (load_state_allows(from, to) != is_allowed(from, to))
				fail_msg("from '%s' to '%s'", load_state_name(from), load_state_name(to));
}

/* Each state can be reached, and each one leads back to COLD. */
static void test_no_dead_end(void **state)
{
	bool signaled[LOAD_STATES] = {[LOAD_COLD] = true}, leads[LOAD_STATES] = {[LOAD_COLD] = true};

	(void)state;
	for (int round = 0; round < LOAD_STATES; round++)
		for (enum load_state from = 0; from < LOAD_STATES; from++)
			for (enum load_state to = 0; to < LOAD_STATES; to++)
				if (load_state_allows(from, to)) {
					signaled[to] |= signaled[from];
					leads[from] |= leads[to];
				}
	for (enum load_state at = 0; at < LOAD_STATES; at++)
		assert_true(signaled[at] && leads[at] && load_state_name(at));
}

/* ---- effects of a change of state ---- */

static struct gpool_lora lora;
static struct lora_entry entry;
static struct lora_load load;

static void start(enum load_state at)
{
	memset(&lora, 0, sizeof(lora));
	memset(&entry, 0, sizeof(entry));
	memset(&load, 0, sizeof(load));
	pthread_mutex_init(&lora.lock, NULL);
	pthread_cond_init(&lora.queued, NULL);
	pthread_cond_init(&lora.loaded, NULL);
	TAILQ_INIT(&lora.steps);
	TAILQ_INIT(&lora.queue);
	TAILQ_INIT(&lora.turns);
	TAILQ_INIT(&lora.drafts);
	load = (struct lora_load){.lora = &lora, .entry = &entry, .from = LORA_FROM_COLD};
	entry.load = &load;
	entry.load_state = at;
}

static void go(enum load_state to, const struct lora_list *list, enum gpool_lora_state shown, uint32_t loads)
{
	const struct lora_list *const lists[] = {&lora.steps, &lora.queue, &lora.turns, &lora.drafts};

	load_set_state(&lora, &entry, to);
	assert_int_equal(entry.load_state, to);
	assert_int_equal(entry.state, shown);
	assert_int_equal(lora.loads, loads);
	for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++)
		assert_ptr_equal(TAILQ_FIRST(lists[i]), lists[i] == list ? &entry : NULL);
}

static void test_lists_and_counts(void **state)
{
	(void)state;
	start(LOAD_COLD);
	go(LOAD_QUEUED_UNASKED, &lora.queue, GPOOL_LORA_LOADING, 0);
	go(LOAD_QUEUED, &lora.queue, GPOOL_LORA_LOADING, 0);
	go(LOAD_BEGUN, NULL, GPOOL_LORA_LOADING, 1);
	assert_false(is_placed(&entry));
	go(LOAD_OPENING, NULL, GPOOL_LORA_LOADING, 1);
	assert_true(is_placed(&entry));
	go(LOAD_NEEDS_SOURCE, &lora.steps, GPOOL_LORA_LOADING, 1);
	go(LOAD_OPENING, NULL, GPOOL_LORA_LOADING, 1);
	go(LOAD_LISTED, &lora.turns, GPOOL_LORA_LOADING, 1);
	go(LOAD_MAKING, NULL, GPOOL_LORA_LOADING, 1);
	go(LOAD_STARVED, NULL, GPOOL_LORA_LOADING, 1);
	go(LOAD_LISTED, &lora.turns, GPOOL_LORA_LOADING, 1);
	go(LOAD_FAILED, NULL, GPOOL_LORA_LOADING, 1);
	go(LOAD_MADE, &lora.steps, GPOOL_LORA_LOADING, 1);
	go(LOAD_FINISHING, NULL, GPOOL_LORA_LOADING, 1);
	assert_false(is_draft(&entry));
	assert_int_equal(lora.changes, 0);
	go(LOAD_DRAFT, NULL, GPOOL_LORA_RESIDENT, 0);
	assert_true(is_draft(&entry) && is_placed(&entry));
	assert_int_equal(lora.changes, 1);
	go(LOAD_DRAFT_UNUSED, &lora.drafts, GPOOL_LORA_RESIDENT, 0);
	go(LOAD_DRAFT, NULL, GPOOL_LORA_RESIDENT, 0);
	go(LOAD_DRAFT_UNUSED, &lora.drafts, GPOOL_LORA_RESIDENT, 0);
	go(LOAD_DRAFT_ENDING, NULL, GPOOL_LORA_LOADING, 1);
	assert_false(is_draft(&entry) || is_placed(&entry));
	go(LOAD_HELD, NULL, GPOOL_LORA_RESIDENT, 0);
	/* The adapter was loaded once, no matter how often it was a draft. */
	assert_int_equal(entry.counts.from[LORA_FROM_COLD], 1);
	assert_int_equal(entry.counts.shared + entry.counts.rebalanced, 0);
}

static void test_load_without_draft(void **state)
{
	(void)state;
	start(LOAD_FINISHING);
	lora.loads = 1;
	load.unasked = true;
	lora.crowded = true;
	go(LOAD_ENDING, NULL, GPOOL_LORA_LOADING, 1);
	assert_true(lora.crowded);
	go(LOAD_HELD, NULL, GPOOL_LORA_RESIDENT, 0);
	assert_false(lora.crowded);
	assert_int_equal(entry.counts.from[LORA_FROM_COLD], 1);
	assert_int_equal(entry.counts.rebalanced, 1);
}

static void test_object_of_another_engine(void **state)
{
	(void)state;
	start(LOAD_BEGUN);
	lora.loads = 1;
	load.shared = true;
	go(LOAD_HELD, NULL, GPOOL_LORA_RESIDENT, 0);
	assert_int_equal(entry.counts.shared, 1);
	assert_int_equal(entry.counts.from[LORA_FROM_COLD] + entry.counts.from[LORA_FROM_WARM], 0);
}

static void test_failed_load(void **state)
{
	(void)state;
	start(LOAD_FINISHING);
	lora.loads = 1;
	load.error = -EIO;
	go(LOAD_DRAFT, NULL, GPOOL_LORA_LOADING, 0);
	go(LOAD_DRAFT_UNUSED, &lora.drafts, GPOOL_LORA_LOADING, 0);
	go(LOAD_DRAFT_ENDING, NULL, GPOOL_LORA_LOADING, 1);
	go(LOAD_COLD, NULL, GPOOL_LORA_COLD, 0);
	assert_int_equal(entry.counts.from[LORA_FROM_COLD], 0);
}

/* A load for which there is no room returns to the head of the queue; the other loads are counted as before. */
static void test_postponed_load(void **state)
{
	struct lora_entry other = {.load_state = LOAD_COLD};

	(void)state;
	start(LOAD_BEGUN);
	lora.loads = 2;
	lora.crowded = true;
	load_set_state(&lora, &other, LOAD_QUEUED);
	load_set_state(&lora, &entry, LOAD_QUEUED);
	assert_ptr_equal(TAILQ_FIRST(&lora.queue), &entry);
	assert_ptr_equal(TAILQ_NEXT(&entry, link), &other);
	assert_int_equal(lora.loads, 1);
	assert_true(lora.crowded);
	assert_int_equal(lora.changes, 0);
}

/* ---- forbidden transitions ---- */

#ifdef GPOOL_DEBUG

/* Return true if load_set_state() ended the process. */
static bool is_fatal(enum load_state from, enum load_state to)
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (!child) {
		start(from);
		signal(SIGABRT, SIG_DFL);
		unsetenv("GPOOL_INVARIANT_LOG");
		if (close(STDERR_FILENO))
			_exit(1);
		load_set_state(&lora, &entry, to);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void test_forbidden(void **state)
{
	(void)state;
	for (enum load_state from = 0; from < LOAD_STATES; from++)
		for (enum load_state to = 0; to < LOAD_STATES; to++)
			if (!is_allowed(from, to) && !is_fatal(from, to))
				fail_msg("from '%s' to '%s' passed", load_state_name(from), load_state_name(to));
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_no_dead_end),
		cmocka_unit_test(test_lists_and_counts),
		cmocka_unit_test(test_load_without_draft),
		cmocka_unit_test(test_object_of_another_engine),
		cmocka_unit_test(test_failed_load),
		cmocka_unit_test(test_postponed_load),
#ifdef GPOOL_DEBUG
		cmocka_unit_test(test_forbidden),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
