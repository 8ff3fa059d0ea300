/*
 * test_reclaim.c - a stopped worker cannot keep memory that it does not use.
 *
 * Goal: under pressure the agent takes a stopped worker's idle pages, the pages in its threads' magazines, and its
 * unpinned blocks, in this order. Pinned blocks are not taken. When the worker continues, calls for the taken blocks
 * return -ESTALE, and the other blocks are unchanged.
 *
 * Method: a child creates pages of each kind and is stopped; then this process allocates. The agent reports owner and
 * state of the pages.
 *
 * Requirements: U17.
 */
#include "client/gpool.h"
#include "client/core/request.h"
#include "proto/codec.h"
#include "tests/lib/harness.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
	PAGES = 64,
	PINNED = 8,
	UNPINNED = 16,
	FREED = 24, /* more than a magazine holds: the others are idle */
	STUCK_SECONDS = 1000,
};

static struct harness harness;

/* ---- the stopped worker ---- */

struct sleeper {
	struct gpool *pool;
	struct gpool_block pinned[PINNED], unpinned[UNPINNED];
};

/* The worker's report after SIGCONT. */
struct findings {
	int error; /* the first wrong result of a call */
	uint32_t stale, alive, wrong;
};

static _Atomic uint64_t *word_of(struct gpool *pool, const struct gpool_block *block)
{
	uint64_t address = 0;

	return gpool_address(pool, block, &address) ? NULL : (_Atomic uint64_t *)(uintptr_t)address;
}

static int sleeper_allocate(struct sleeper *sleeper, struct gpool_block *blocks, uint32_t count, bool keep_pinned)
{
	int error = 0;

	for (uint32_t i = 0; i < count && !error; i++) {
		error = gpool_alloc(sleeper->pool, 1, NULL, &blocks[i]);
		if (error)
			break;
		*word_of(sleeper->pool, &blocks[i]) = blocks[i].tag;
		if (!keep_pinned)
			error = gpool_unpin(sleeper->pool, &blocks[i]);
	}
	return error;
}

static int sleeper_prepare(struct sleeper *sleeper)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_block freed[FREED];
	int error;

	options.name = "sleeper";
	error = gpool_open(&options, &sleeper->pool);
	if (!error)
		error = sleeper_allocate(sleeper, sleeper->pinned, PINNED, true);
	if (!error)
		error = sleeper_allocate(sleeper, sleeper->unpinned, UNPINNED, false);
	if (!error)
		error = sleeper_allocate(sleeper, freed, FREED, true);
	for (uint32_t i = 0; i < FREED && !error; i++)
		error = gpool_free(sleeper->pool, &freed[i]);
	return error;
}

static void look(const struct sleeper *sleeper, const struct gpool_block *block, struct findings *findings)
{
	if (*word_of(sleeper->pool, block) != block->tag)
		findings->wrong++;
}

static struct findings sleeper_go_on(struct sleeper *sleeper)
{
	struct findings findings = {0};
	struct gpool_block block;

	for (uint32_t i = 0; i < PINNED; i++) {
		look(sleeper, &sleeper->pinned[i], &findings);
		findings.error |= gpool_free(sleeper->pool, &sleeper->pinned[i]);
	}
	for (uint32_t i = 0; i < UNPINNED; i++) {
		int error = gpool_pin(sleeper->pool, &sleeper->unpinned[i]);

		if (error == -ESTALE) {
			findings.stale++;
			continue;
		}
		findings.error |= error;
		look(sleeper, &sleeper->unpinned[i], &findings);
		findings.alive++;
		findings.error |= gpool_free(sleeper->pool, &sleeper->unpinned[i]);
	}
	/* The session works as before. */
	for (uint32_t i = 0; i < PAGES / 2 && !findings.error; i++)
		findings.error |= gpool_alloc(sleeper->pool, 1, NULL, &block);
	return findings;
}

/* Report 0 when ready, wait for a byte, report the findings, and exit. */
static _Noreturn void sleeper_main(int parent)
{
	static struct sleeper sleeper;
	struct findings findings;
	int error;
	char go;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	error = sleeper_prepare(&sleeper);
	if (write(parent, &error, sizeof(error)) != sizeof(error) || read(parent, &go, 1) != 1)
		_exit(1);
	findings = sleeper_go_on(&sleeper);
	if (write(parent, &findings, sizeof(findings)) != sizeof(findings))
		_exit(1);
	gpool_close(sleeper.pool);
	_exit(0);
}

/* ---- the test process ---- */

struct fixture {
	pid_t pid;
	int channel;
	struct gpool *pool;
};

static int sleeper_stop(void **state)
{
	static struct fixture fixture;
	int ends[2], error = -1, status;

	alarm(STUCK_SECONDS);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return -1;
	fflush(stdout);
	fixture.pid = fork();
	if (fixture.pid == 0) {
		close(ends[0]);
		sleeper_main(ends[1]);
	}
	close(ends[1]);
	fixture.channel = ends[0];
	if (fixture.pid < 0 || read(fixture.channel, &error, sizeof(error)) != sizeof(error) || error)
		return -1;
	if (kill(fixture.pid, SIGSTOP) < 0 || waitpid(fixture.pid, &status, WUNTRACED) != fixture.pid ||
		!WIFSTOPPED(status))
		return -1;
	fixture.pool = harness_open(&harness);
	*state = &fixture;
	return 0;
}

/* Let the stopped worker continue, and return its findings. */
static struct findings wake(struct fixture *fixture)
{
	struct findings findings = {.error = -1};
	int status = -1;

	assert_int_equal(kill(fixture->pid, SIGCONT), 0);
	assert_int_equal(write(fixture->channel, "g", 1), 1);
	assert_int_equal(read(fixture->channel, &findings, sizeof(findings)), sizeof(findings));
	assert_int_equal(waitpid(fixture->pid, &status, 0), fixture->pid);
	assert_int_equal(status, 0);
	fixture->pid = 0;
	return findings;
}

static int sleeper_end(void **state)
{
	struct fixture *fixture = *state;
	uint32_t findings;

	if (fixture->pid > 0) {
		kill(fixture->pid, SIGKILL);
		waitpid(fixture->pid, NULL, 0);
	}
	close(fixture->channel);
	findings = harness_check(&harness);
	gpool_close(fixture->pool);
	alarm(0);
	return findings ? -1 : 0;
}

/* The number of the sleeper's pages in each use, as the agent reports it: 1 idle, 2 in a magazine, 3 in a block. */
struct uses {
	uint32_t idle, cached, blocks, pinned;
};

static struct uses uses_of_others(struct gpool *pool)
{
	static struct msg_pages_reply pages;
	static uint8_t reply[MSG_BYTES_MAX];
	struct msg_pages_request request = {.count = PAGES};
	uint8_t message[MSG_LARGEST_pages_request];
	struct uses uses = {0};
	int length = msg_encode_pages_request(&request, 0, NULL, message, sizeof(message));

	length = pool_request(pool, message, (size_t)length, reply, sizeof(reply), 60000, NULL);
	assert_true(length > 0);
	assert_int_equal(msg_decode_pages_reply(&pages, reply, (size_t)length), 0);
	assert_int_equal(pages.pages_count, PAGES);
	for (uint32_t i = 0; i < pages.pages_count; i++) {
		const struct msg_page_entry *page = &pages.pages[i];

		if (!page->owner || page->owner == gpool_session(pool))
			continue;
		uses.idle += page->use == 1;
		uses.cached += page->use == 2;
		uses.blocks += page->use == 3;
		uses.pinned += page->use == 3 && page->pins;
	}
	return uses;
}

/* Allocate pinned blocks of one page until no more pages are available. */
static uint32_t allocate_most(struct gpool *pool, uint32_t flags, struct gpool_block *blocks)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	uint32_t count = 0;
	int error;

	options.flags = flags;
	while ((error = gpool_alloc(pool, 1, &options, &blocks[count])) == 0)
		count++;
	assert_int_equal(error, -ENOSPC);
	return count;
}

static void free_all(struct gpool *pool, const struct gpool_block *blocks, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(gpool_free(pool, &blocks[i]), 0);
}

static void test_all_but_the_pinned_is_taken(void **state)
{
	struct fixture *fixture = *state;
	struct gpool_block blocks[PAGES];
	struct uses before = uses_of_others(fixture->pool), after;
	struct findings findings;
	uint32_t count;

	assert_true(before.idle > 0);
	assert_true(before.cached > 0);
	assert_int_equal(before.blocks, PINNED + UNPINNED);
	assert_int_equal(before.pinned, PINNED);

	count = allocate_most(fixture->pool, 0, blocks);
	assert_int_equal(count, PAGES - PINNED);
	after = uses_of_others(fixture->pool);
	assert_int_equal(after.idle, 0);
	assert_int_equal(after.cached, 0);
	assert_int_equal(after.blocks, PINNED);
	assert_int_equal(after.pinned, PINNED);
	free_all(fixture->pool, blocks, count);

	findings = wake(fixture);
	assert_int_equal(findings.error, 0);
	assert_int_equal(findings.wrong, 0);
	assert_int_equal(findings.stale, UNPINNED);
	assert_int_equal(findings.alive, 0);
}

static void test_idle_pages_serve_one_large_block(void **state)
{
	struct fixture *fixture = *state;
	struct gpool_block block, one;
	struct findings findings;

	/*
	 * The sleeper requests pages less than a millisecond after this refusal, and must get the pages that were just
	 * freed.
	 */
	assert_int_equal(gpool_alloc(fixture->pool, PAGES - PINNED, NULL, &block), 0);
	assert_int_equal(gpool_alloc(fixture->pool, 1, NULL, &one), -ENOSPC);
	free_all(fixture->pool, &block, 1);
	findings = wake(fixture);
	assert_int_equal(findings.error, 0);
	assert_int_equal(findings.wrong, 0);
	assert_int_equal(findings.stale, UNPINNED);
}

/* Requirements: U4. */
static void test_idle_pages_and_magazines_are_taken_before_blocks(void **state)
{
	struct fixture *fixture = *state;
	struct gpool_block block;
	struct findings findings;

	/* The request needs all pages outside blocks. */
	assert_int_equal(gpool_alloc(fixture->pool, PAGES - PINNED - UNPINNED, NULL, &block), 0);
	assert_int_equal(uses_of_others(fixture->pool).blocks, PINNED + UNPINNED);
	free_all(fixture->pool, &block, 1);
	findings = wake(fixture);
	assert_int_equal(findings.error, 0);
	assert_int_equal(findings.wrong, 0);
	assert_int_equal(findings.stale, 0);
	assert_int_equal(findings.alive, UNPINNED);
}

static void test_no_evict_leaves_blocks_alone(void **state)
{
	struct fixture *fixture = *state;
	struct gpool_block blocks[PAGES];
	struct findings findings;
	uint32_t count = allocate_most(fixture->pool, GPOOL_ALLOC_NO_EVICT, blocks);

	assert_int_equal(count, PAGES - PINNED - UNPINNED);
	free_all(fixture->pool, blocks, count);
	findings = wake(fixture);
	assert_int_equal(findings.error, 0);
	assert_int_equal(findings.stale, 0);
	assert_int_equal(findings.alive, UNPINNED);
}

int main(void)
{
	static const char *const arguments[] = {"--pool", "name=p0,backend=host,size=32MiB,page_size=512KB,reserved=0",
		/* No page is taken without a request. */
		"--set", "eviction.start=100", "--set", "eviction.stop=99", "--set", "lease.idle=1h", NULL};
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_all_but_the_pinned_is_taken, sleeper_stop, sleeper_end),
		cmocka_unit_test_setup_teardown(test_idle_pages_serve_one_large_block, sleeper_stop, sleeper_end),
		cmocka_unit_test_setup_teardown(
			test_idle_pages_and_magazines_are_taken_before_blocks, sleeper_stop, sleeper_end),
		cmocka_unit_test_setup_teardown(test_no_evict_leaves_blocks_alone, sleeper_stop, sleeper_end),
	};
	int failed;

	harness_start(&harness, arguments);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	return harness_stop(&harness) || failed ? 1 : 0;
}
