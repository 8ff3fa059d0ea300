/*
 * test_trust.c - pages that move from the tenants of one trust domain to those of another.
 *
 * Goal: a session that gets such a page finds only zeros in it. While a process of the old domain may have the page
 * mapped, no session of another domain gets the page; the page is retired, and tools show it. The page is free again
 * when that process unmaps it or dies. All of this holds across deaths of agent and mover. No descriptor gives access
 * to more than one handle. With one domain, no page is ever cleared.
 *
 * Method: a real gpoold with two tenants, `red` and `blue`. This process and its children open the sessions of both, as
 * an operator may. Red fills its pages, and blue checks every byte.
 *
 * Requirements: S8.
 */
#include "tests/integration/life.h"
#include "tests/lib/temporary.h"

#include "client/vm/space.h"
#include "proto/attach.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

enum { RED_BYTE = 0xad, SOME = 8 };

static char config_path[64];
static struct gpool *red, *blue;

/* ---- configuration ---- */

#define POOLS \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; } );\n"
#define POOLS_OF_FOUR \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; handle_size = " \
	"\"2MB\"; reserved = \"0 pages\"; } );\n"
#define CALM "eviction: { start = 100; stop = 99; };\nlease: { initial_pages = 0; batch_pages = 1; };\n"
#define APART \
	"tenants = ( { name = \"red\"; users = [ \"1\" ]; domain = \"red\"; }, { name = \"blue\"; users = [ \"2\" ]; " \
	"domain = \"blue\"; },\n" \
	"            { name = \"rose\"; domain = \"red\"; } );\n"
#define TOGETHER \
	"tenants = ( { name = \"red\"; users = [ \"1\" ]; }, { name = \"blue\"; users = [ \"2\" ]; }, { name = " \
	"\"rose\"; } );\n"

static void start_config(const char *text)
{
	const char *arguments[] = {"--config", config_path, NULL};

	snprintf(config_path, sizeof(config_path), "%s/gpool-trust-%d.conf", temporary_folder(), (int)getpid());
	harness_config_write(config_path, text);
	start(arguments);
}

static void sessions_close(void)
{
	if (red)
		gpool_close(red);
	if (blue)
		gpool_close(blue);
	red = blue = NULL;
}

static int stop_config(void **state)
{
	int result;

	sessions_close();
	result = stop(state);
	unlink(config_path);
	return result;
}

/* ---- reports of gpoold ---- */

static uint64_t counted(enum pool_counter which)
{
	return atomic_load(&pool_view(admin)->header->counters[which]);
}

static uint32_t pages_in(enum page_state state)
{
	return atomic_load(&pool_view(admin)->header->state_pages[state]);
}

static const struct msg_transfers_reply *transfers(void)
{
	static struct msg_transfers_reply reply;
	const struct msg_transfers_request request = {.pool = ""};

	ASK(transfers_request, &request, transfers_reply, &reply);
	return &reply;
}

static void books_balance(void)
{
	AWAIT(harness_check(&harness) == 0);
}

/* ---- pages ---- */

static uint8_t *bytes_of(struct gpool *pool, const struct gpool_block *block)
{
	uint64_t address;

	assert_int_equal(gpool_address(pool, block, &address), 0);
	return (uint8_t *)(uintptr_t)address;
}

/* Allocate up to `most` blocks of one page. */
static uint32_t take(struct gpool *pool, struct gpool_block *blocks, uint32_t most, int timeout_ms)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	uint32_t count = 0;

	options.timeout_ms = timeout_ms;
	while (count < most && gpool_alloc(pool, 1, &options, &blocks[count]) == 0)
		count++;
	return count;
}

/* Wait for pages: the mover, which clears new memory of the back end cuda for a trust domain, may still be starting. */
static const struct gpool_alloc_options patient = {.size = sizeof(patient), .timeout_ms = ANSWER_MS};

static void fill(struct gpool *pool, const struct gpool_block *blocks, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		memset(bytes_of(pool, &blocks[i]), RED_BYTE, gpool_page_bytes(pool));
}

static void is_all(struct gpool *pool, const struct gpool_block *block, uint8_t byte)
{
	const uint8_t *bytes = bytes_of(pool, block);
	uint64_t length = block->page_count * gpool_page_bytes(pool);

	if (bytes[0] != byte || memcmp(bytes, bytes + 1, length - 1))
		fail_msg("page %u holds something else than 0x%02x", block->page, byte);
}

static void are_zero(struct gpool *pool, const struct gpool_block *blocks, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		is_all(pool, &blocks[i], 0);
}

static void give(struct gpool *pool, const struct gpool_block *blocks, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(gpool_free(pool, &blocks[i]), 0);
}

/* Let red allocate, fill and free the whole pool. Red still has all of it mapped. */
static void red_has_been_everywhere(struct gpool *pool)
{
	struct gpool_block blocks[PAGES];

	assert_int_equal(take(pool, blocks, PAGES, ANSWER_MS), PAGES);
	fill(pool, blocks, PAGES);
	give(pool, blocks, PAGES);
}

/* ---- a running process that unmaps pages ---- */

static pthread_t busy_thread;
static _Atomic bool busy_stop;

static void *busy_run(void *argument)
{
	while (!atomic_load(&busy_stop)) {
		gpool_release_unused(argument);
		poll(NULL, 0, 1); /* at the interval of a loop that serves requests */
	}
	return NULL;
}

static void busy_begin(struct gpool *pool)
{
	atomic_store(&busy_stop, false);
	assert_int_equal(pthread_create(&busy_thread, NULL, busy_run, pool), 0);
}

static void busy_end(void)
{
	atomic_store(&busy_stop, true);
	pthread_join(busy_thread, NULL);
}

/* ---- a process of red ---- */

static pid_t child;
static int child_says, child_hears;

/*
 * Fill all pages that can be allocated, free them, report that, and make no further call. On receipt of a byte, detach
 * and keep running.
 */
static void __attribute__((noreturn)) child_run(void)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_block blocks[PAGES];
	struct gpool *pool;
	char byte = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	options.name = "child";
	options.tenant = "red";
	if (gpool_open(&options, &pool) || take(pool, blocks, PAGES, ANSWER_MS) != PAGES)
		_exit(1);
	fill(pool, blocks, PAGES);
	for (uint32_t i = 0; i < PAGES; i++)
		gpool_free(pool, &blocks[i]);
	if (write(child_says, &byte, 1) != 1)
		_exit(1);
	if (read(child_hears, &byte, 1) == 1) {
		gpool_close(pool);
		if (write(child_says, &byte, 1) != 1 || read(child_hears, &byte, 1) != 1)
			_exit(1);
	}
	_exit(0);
}

static void child_answers(void)
{
	char byte;

	assert_int_equal(read(child_says, &byte, 1), 1);
}

static void child_begin(void)
{
	int to[2], from[2];

	assert_int_equal(pipe2(to, O_CLOEXEC), 0);
	assert_int_equal(pipe2(from, O_CLOEXEC), 0);
	fflush(stdout);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		child_says = from[1];
		child_hears = to[0];
		close(to[1]);
		close(from[0]);
		child_run();
	}
	close(to[0]);
	close(from[1]);
	child_says = from[0];
	child_hears = to[1];
	child_answers();
}

static void child_end(void)
{
	assert_true(child > 0);
	kill(child, SIGKILL);
	status_of(child);
	child = 0;
	close(child_says);
	close(child_hears);
}

/* Kill the process of this name, and wait until its successor is running. */
static void killed(const char *name)
{
	pid_t pid = process_of(name), next;

	assert_true(pid > 0);
	assert_int_equal(kill(pid, SIGKILL), 0);
	AWAIT((next = process_of(name)) > 0 && next != pid);
}

/* ---- tests ---- */

/* Return the number of new pages that are cleared before their first use, because the driver does not clear them. */
static uint64_t new_pages_cleared(void)
{
	return strcmp(harness_backend(), "host") ? PAGES : 0;
}

static void moves(void)
{
	struct gpool_block blocks[PAGES];

	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	red_has_been_everywhere(red);
	busy_begin(red);
	assert_int_equal(take(blue, blocks, PAGES, ANSWER_MS), PAGES);
	busy_end();
	are_zero(blue, blocks, PAGES);
	assert_int_equal(counted(POOL_COUNT_SCRUBBED_PAGES), PAGES + new_pages_cleared());
	assert_int_equal(counted(POOL_COUNT_RETIREMENTS), 0);
	books_balance();
	/* Move the pages back to red. */
	fill(blue, blocks, PAGES);
	give(blue, blocks, PAGES);
	busy_begin(blue);
	assert_int_equal(take(red, blocks, PAGES, ANSWER_MS), PAGES);
	busy_end();
	are_zero(red, blocks, PAGES);
	books_balance();
}

static void test_moved_pages_are_cleared(void **state)
{
	(void)state;
	start_config(POOLS CALM APART);
	moves();
}

static void test_several_pages_in_a_handle_move_together(void **state)
{
	struct gpool_block kept[PAGES], got;
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	(void)state;
	start_config(POOLS_OF_FOUR CALM APART);
	moves();
	sessions_close();
	AWAIT(pages_in(PAGE_FREE) == PAGES);
	/* One page of each handle belongs to red, so no other page of the handle may be given to blue. */
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	assert_int_equal(take(red, kept, PAGES, ANSWER_MS), PAGES);
	for (uint32_t i = 0; i < PAGES; i++)
		if (kept[i].page % 4)
			assert_int_equal(gpool_free(red, &kept[i]), 0);
	assert_int_equal(gpool_alloc(blue, 1, &options, &got), -ENOSPC);
	assert_int_equal(counted(POOL_COUNT_RETIREMENTS), 0);
}

static void test_pages_in_one_run(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	red_has_been_everywhere(red);
	options.flags = GPOOL_ALLOC_CONTIGUOUS;
	options.timeout_ms = ANSWER_MS;
	busy_begin(red);
	assert_int_equal(gpool_alloc(blue, PAGES / 2, &options, &block), 0);
	is_all(blue, &block, 0);
	assert_int_equal(gpool_free(blue, &block), 0);
	options.flags = 0;
	assert_int_equal(gpool_alloc(blue, PAGES - 3, &options, &block), 0);
	is_all(blue, &block, 0);
	busy_end();
	books_balance();
}

static void test_within_a_domain_nothing_is_cleared(void **state)
{
	struct gpool_block blocks[PAGES];

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	red_has_been_everywhere(red);
	blue = open_as(0, NULL, "rose"); /* of the same domain as red */
	assert_int_equal(take(blue, blocks, PAGES, ANSWER_MS), PAGES);
	for (uint32_t i = 0; i < PAGES; i++)
		is_all(blue, &blocks[i], RED_BYTE);
	assert_int_equal(counted(POOL_COUNT_SCRUBBED_PAGES), new_pages_cleared());
}

/* Let blue request SOME pages of a red session that does not reply. */
static void red_is_silent(void)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	/* The transfer takes as long as the grace period of the session that does not reply. */
	assert_int_equal(gpool_alloc(blue, SOME, &options, &block), -ENOSPC);
	AWAIT(pages_in(PAGE_RETIRED) == SOME);
	assert_int_equal(counted(POOL_COUNT_RETIREMENTS), SOME);
}

static void is_shown(pid_t pid, uint32_t session)
{
	const struct msg_transfers_reply *reply = transfers();
	uint32_t pages = 0;

	for (uint32_t i = 0; i < reply->transfers_count; i++) {
		assert_int_equal(reply->transfers[i].state, 1);
		assert_string_equal(reply->transfers[i].domain, "red");
		assert_int_equal(reply->transfers[i].pid, pid);
		assert_int_equal(reply->transfers[i].holders, 1);
		if (session)
			assert_int_equal(reply->transfers[i].session, session);
		pages += reply->transfers[i].page_count;
	}
	assert_int_equal(pages, SOME);
	assert_int_equal(status()->pools[0].retired_pages, SOME);
}

static void test_a_session_that_keeps_its_mapping(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block blocks[PAGES], block;
	struct gpool_oom_info shortage = {.size = sizeof(shortage)};
	const uint8_t *seen[PAGES];

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	assert_int_equal(take(red, blocks, PAGES, ANSWER_MS), PAGES);
	fill(red, blocks, PAGES);
	for (uint32_t i = 0; i < PAGES; i++)
		seen[i] = bytes_of(red, &blocks[i]);
	give(red, blocks, PAGES);
	red_is_silent();
	is_shown(getpid(), gpool_session(red));
	/* No more pages of that session are requested, and the refusal states the number of pages available to blue. */
	assert_int_equal(gpool_alloc(blue, SOME, &options, &block), -ENOSPC);
	gpool_oom_info(blue, &shortage);
	assert_int_equal(shortage.free, 0);
	assert_int_equal(counted(POOL_COUNT_RETIREMENTS), SOME);
	/* Pages that are still mapped were not written to. */
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(seen[i][i], RED_BYTE);
	books_balance();
	assert_int_equal(gpool_release_unused(red), SOME);
	assert_int_equal(gpool_release_unused(red), 0);
	AWAIT(pages_in(PAGE_FREE) == SOME && transfers()->transfers_count == 0);
	assert_int_equal(take(blue, blocks, SOME, ANSWER_MS), SOME);
	are_zero(blue, blocks, SOME);
}

static void test_other_pages_are_lent_instead(void **state)
{
	struct gpool_block blocks[PAGES], others[PAGES];

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	assert_int_equal(take(red, blocks, PAGES / 2, ANSWER_MS), PAGES / 2);
	fill(red, blocks, PAGES / 2);
	give(red, blocks, PAGES / 2);
	/* Half of the pool was never used, and is lent before red's pages. */
	assert_int_equal(take(blue, others, PAGES, 0), PAGES / 2);
	are_zero(blue, others, PAGES / 2);
	for (uint32_t i = 0; i < PAGES / 2; i++)
		for (uint32_t j = 0; j < PAGES / 2; j++)
			assert_int_not_equal(others[i].page, blocks[j].page);
}

static void test_retired_pages_serve_their_own_domain(void **state)
{
	struct gpool_block blocks[PAGES];

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	red_has_been_everywhere(red);
	red_is_silent();
	gpool_close(blue);
	blue = open_as(0, NULL, "rose"); /* of red's domain */
	assert_int_equal(take(blue, blocks, PAGES, ANSWER_MS), PAGES);
	for (uint32_t i = 0; i < PAGES; i++)
		is_all(blue, &blocks[i], RED_BYTE);
	assert_int_equal(pages_in(PAGE_RETIRED), 0);
}

static void test_death_ends_mappings(void **state)
{
	struct gpool_block blocks[PAGES];

	(void)state;
	start_config(POOLS CALM APART);
	child_begin();
	blue = open_as(0, NULL, "blue");
	red_is_silent();
	is_shown(child, 0);
	child_end();
	assert_int_equal(take(blue, blocks, PAGES, ANSWER_MS), PAGES);
	are_zero(blue, blocks, PAGES);
	assert_int_equal(pages_in(PAGE_RETIRED), 0);
}

static void test_release_by_death_alone(void **state)
{
	struct gpool_block blocks[PAGES];
	char byte = 0;

	(void)state;
	start_config(POOLS CALM APART "trust: { release = \"death\"; };\n");
	child_begin();
	blue = open_as(0, NULL, "blue");
	red_is_silent();
	/* The session reports falsely that it has unmapped all pages, and is not trusted. */
	assert_int_equal(write(child_hears, &byte, 1), 1);
	child_answers();
	assert_int_equal(pages_in(PAGE_RETIRED), SOME);
	assert_int_equal(take(blue, blocks, SOME, 0), 0);
	child_end();
	assert_int_equal(take(blue, blocks, PAGES, ANSWER_MS), PAGES);
	are_zero(blue, blocks, PAGES);
}

static void test_grace_after_a_death(void **state)
{
	struct gpool_block blocks[PAGES];

	(void)state;
	start_config(POOLS CALM APART "trust: { death_grace = \"1min\"; };\n");
	child_begin();
	child_end();
	AWAIT(pages_in(PAGE_QUARANTINED) > 0);
	red = open_as(0, NULL, "red");
	assert_int_equal(take(red, blocks, PAGES, 0), PAGES - pages_in(PAGE_QUARANTINED));
	/* The next agent does not trust it either. */
	killed("gpoold-agent");
	AWAIT(pages_in(PAGE_QUARANTINED) > 0);
	harness_config_write(config_path, POOLS CALM APART);
	{
		const struct msg_reload_request request = {0};
		struct msg_done_reply done;

		ASK(reload_request, &request, done_reply, &done);
	}
	AWAIT(pages_in(PAGE_QUARANTINED) == 0);
}

static void test_agent_dies_with_retired_pages(void **state)
{
	struct gpool_block blocks[PAGES];

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	red_has_been_everywhere(red);
	red_is_silent();
	killed("gpoold-agent");
	is_shown(getpid(), gpool_session(red));
	books_balance();
	/* Red's message to an agent that dies while handling it is sent again to the next agent. */
	assert_int_equal(gpool_release_unused(red), SOME);
	killed("gpoold-agent");
	busy_begin(red);
	assert_int_equal(take(blue, blocks, PAGES, ANSWER_MS), PAGES);
	busy_end();
	are_zero(blue, blocks, PAGES);
}

struct waiter {
	pthread_t thread;
	struct gpool *pool;
	uint32_t page_count;
	struct gpool_block block;
	_Atomic int error; /* 1: it waits */
};

static void *waiter_run(void *argument)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct waiter *waiter = argument;

	options.timeout_ms = ANSWER_MS;
	atomic_store(&waiter->error, gpool_alloc(waiter->pool, waiter->page_count, &options, &waiter->block));
	return NULL;
}

static void waiter_begin(struct waiter *waiter, struct gpool *pool, uint32_t page_count)
{
	*waiter = (struct waiter){.pool = pool, .page_count = page_count, .error = 1};
	assert_int_equal(pthread_create(&waiter->thread, NULL, waiter_run, waiter), 0);
}

static void test_a_thread_that_waits_for_pages_unmaps(void **state)
{
	struct waiter of_red, of_blue;
	struct gpool_block blocks[PAGES];

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	assert_int_equal(take(red, blocks, PAGES, ANSWER_MS), PAGES);
	fill(red, blocks, PAGES);
	give(red, blocks, SOME);
	waiter_begin(&of_blue, blue, SOME);
	AWAIT(pages_in(PAGE_QUARANTINED) == SOME);
	assert_int_equal(atomic_load(&of_blue.error), 1);
	/* Red requests more pages than it has unpinned, so it still waits when blue has got those. */
	waiter_begin(&of_red, red, SOME + 1);
	AWAIT(atomic_load(&of_blue.error) <= 0);
	pthread_join(of_blue.thread, NULL);
	assert_int_equal(of_blue.error, 0);
	is_all(blue, &of_blue.block, 0);
	assert_int_equal(atomic_load(&of_red.error), 1);
	give(red, blocks + SOME, SOME + 1);
	pthread_join(of_red.thread, NULL);
	assert_int_equal(of_red.error, 0);
	books_balance();
}

struct taker {
	pthread_t thread;
	struct gpool_block blocks[PAGES];
	_Atomic uint32_t count;
};

static void *taker_run(void *argument)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct taker *taker = argument;

	options.timeout_ms = ANSWER_MS;
	while (taker->count < PAGES && gpool_alloc(blue, 1, &options, &taker->blocks[taker->count]) == 0)
		atomic_fetch_add(&taker->count, 1);
	return NULL;
}

static void deaths_over_transfers(const char *name)
{
	static struct taker taker;

	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	for (int round = 0; round < 3; round++) {
		red_has_been_everywhere(red);
		busy_begin(red);
		memset(&taker, 0, sizeof(taker));
		assert_int_equal(pthread_create(&taker.thread, NULL, taker_run, &taker), 0);
		AWAIT(atomic_load(&taker.count) > (uint32_t)round * SOME);
		killed(name);
		pthread_join(taker.thread, NULL);
		busy_end();
		assert_int_equal(taker.count, PAGES);
		are_zero(blue, taker.blocks, PAGES);
		fill(blue, taker.blocks, PAGES);
		give(blue, taker.blocks, PAGES);
		books_balance();
		busy_begin(blue);
		if (round < 2)
			red_has_been_everywhere(red);
		busy_end();
	}
}

static void test_agent_dies_during_transfers(void **state)
{
	(void)state;
	deaths_over_transfers("gpoold-agent");
}

static void test_mover_dies_during_transfers(void **state)
{
	(void)state;
	deaths_over_transfers("gpoold-mover");
}

/* Pages that are no longer mapped are cleared before they are requested. */
static void test_ahead_of_need(void **state)
{
	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	red_has_been_everywhere(red);
	gpool_close(red);
	red = NULL;
	blue = open_as(0, NULL, "blue");
	AWAIT(counted(POOL_COUNT_SCRUBBED_PAGES) >= SOME);
	assert_int_equal(counted(POOL_COUNT_RETIREMENTS), 0);
}

/* Return the size of the largest pool memory to which one descriptor of this process gives access. */
static uint64_t largest_memory(void)
{
	DIR *fds = opendir("/proc/self/fd");
	struct dirent *entry;
	uint64_t largest = 0;

	assert_non_null(fds);
	while ((entry = readdir(fds))) {
		char path[300], target[300];
		struct stat stat_of;
		ssize_t length;

		snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
		length = readlink(path, target, sizeof(target) - 1);
		target[length > 0 ? length : 0] = '\0';
		if ((strstr(target, "gpool-arena") || strstr(target, "gpool-handle")) && stat(path, &stat_of) == 0 &&
			(uint64_t)stat_of.st_size > largest)
			largest = (uint64_t)stat_of.st_size;
	}
	closedir(fds);
	return largest;
}

static void test_a_descriptor_for_each_handle(void **state)
{
	struct gpool_block block;

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	block = alloc(red, 5);
	assert_int_equal(largest_memory(), gpool_page_bytes(red));
	fill(red, &block, 1);
}

static void test_one_domain_costs_nothing(void **state)
{
	struct gpool_block blocks[PAGES];

	(void)state;
	start_config(POOLS CALM TOGETHER);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	red_has_been_everywhere(red);
	assert_int_equal(take(blue, blocks, PAGES, ANSWER_MS), PAGES);
	if (!strcmp(harness_backend(), "host"))
		assert_int_equal(largest_memory(), PAGES * gpool_page_bytes(red));
	assert_int_equal(counted(POOL_COUNT_SCRUBBED_PAGES), 0);
	assert_int_equal(counted(POOL_COUNT_RETIREMENTS), 0);
	assert_int_equal(atomic_load(&pool_view(admin)->header->release_serial), 0);
	/* A second domain requires a restart. */
	harness_config_write(config_path, POOLS CALM APART);
	{
		const struct msg_reload_request request = {0};
		struct msg_done_reply done;

		ASK(reload_request, &request, done_reply, &done);
		assert_non_null(strstr(done.text, "trust domains"));
	}
	give(blue, blocks, PAGES);
	red_has_been_everywhere(red);
	assert_int_equal(counted(POOL_COUNT_SCRUBBED_PAGES), 0);
}

static void test_objects_stay_in_their_domain(void **state)
{
	struct gpool_object *object;
	uint64_t version;
	uint32_t index;

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	assert_int_equal(gpool_object_create(red, "weights", NULL, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 3, &patient, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	gpool_object_close(object);
	assert_int_equal(gpool_object_open(blue, "weights", NULL, &object), -ENOENT);
	assert_int_equal(gpool_object_open(red, "weights", NULL, &object), 0);
	gpool_object_close(object);
}

static bool is_readable(uint64_t address)
{
	int ends[2];
	ssize_t length;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	length = write(ends[1], (const void *)(uintptr_t)address, 1);
	close(ends[0]);
	close(ends[1]);
	return length == 1;
}

/*
 * The other domain needs the pages of an object that is open but not pinned. The sessions that have the object mapped,
 * its publisher or its readers, must unmap it first.
 */
static void test_evicted_objects_are_unmapped(void **state)
{
	struct gpool *rose;
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object, *again;
	struct gpool_block blocks[PAGES];
	uint64_t version, address, bytes;
	uint32_t index, count = 0;

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	rose = open_as(0, NULL, "rose");
	blue = open_as(0, NULL, "blue");
	options.memory_class = GPOOL_OBJECT_PINNABLE;
	assert_int_equal(gpool_object_create(red, "adapter", &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, SOME, &patient, &index), 0);
	assert_int_equal(gpool_object_address(object, 0, &address, &bytes), 0);
	memset((void *)(uintptr_t)address, RED_BYTE, bytes);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_int_equal(gpool_object_open(rose, "adapter", NULL, &again), 0);
	assert_int_equal(gpool_object_address(again, 0, &address, &bytes), 0);
	assert_true(is_readable(address));
	assert_int_equal(gpool_object_pin(again), 0);
	/*
	 * Allocate all pages except those of the object. Red gets most of them. The mover may still be starting, so
	 * blue waits for its pages.
	 */
	assert_int_equal(take(red, blocks, PAGES - 2 * SOME, ANSWER_MS), PAGES - 2 * SOME);
	assert_int_equal(take(blue, blocks, SOME, ANSWER_MS), SOME);
	assert_int_equal(take(blue, blocks + SOME, SOME, 0), 0);
	assert_int_equal(gpool_object_unpin(again), 0);
	for (int tries = 0; count < SOME; tries++) {
		assert_true(tries < AWAIT_TRIES);
		count += take(blue, blocks + SOME + count, SOME - count, 0);
		gpool_release_unused(red);
		gpool_release_unused(rose);
		poll(NULL, 0, AWAIT_STEP_MS);
	}
	are_zero(blue, blocks, 2 * SOME);
	assert_false(is_readable(address));
	assert_int_equal(gpool_object_pin(again), -ESTALE);
	assert_int_equal(gpool_object_close(again), 0);
	assert_int_equal(gpool_object_pin(object), -ESTALE);
	assert_int_equal(gpool_object_close(object), 0);
	books_balance();
	gpool_close(rose);
}

/* ---- both domains at once ---- */

struct side {
	pthread_t thread;
	struct gpool *pool;
	uint8_t byte;
	uint32_t seed, rounds, served;
	bool strange;
};

/* Return true if the bytes are zeros, or content of the session's own domain. */
static bool is_ours(const uint8_t *bytes, uint64_t length, uint8_t byte)
{
	return (bytes[0] == 0 || bytes[0] == byte) && !memcmp(bytes, bytes + 1, length - 1);
}

static void *side_run(void *argument)
{
	struct side *side = argument;
	uint64_t page_bytes = gpool_page_bytes(side->pool);

	for (uint32_t round = 0; round < side->rounds && !side->strange; round++) {
		struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
		struct gpool_block blocks[SOME];
		uint32_t count = 0;

		options.timeout_ms = 200;
		side->seed = side->seed * 1103515245 + 12345;
		for (uint32_t want = 1 + side->seed / 65536 % SOME; count < want; count++)
			if (gpool_alloc(side->pool, 1 + (round + count) % 3, &options, &blocks[count]))
				break;
		for (uint32_t i = 0; i < count; i++) {
			uint64_t address;

			gpool_address(side->pool, &blocks[i], &address);
			for (uint32_t page = 0; page < blocks[i].page_count; page++) {
				uint8_t *bytes = (uint8_t *)(uintptr_t)(address + page * page_bytes);

				side->strange |= !is_ours(bytes, page_bytes, side->byte);
				memset(bytes, side->byte, page_bytes);
			}
		}
		for (uint32_t i = 0; i < count; i++)
			gpool_free(side->pool, &blocks[i]);
		side->served += count;
	}
	return NULL;
}

/*
 * Two threads of each domain use a pool that is too small for all. Pages change domains while the threads' windows are
 * remapped.
 */
static void test_both_at_once(void **state)
{
	struct side sides[4];

	(void)state;
	start_config("pools = ( { name = \"p0\"; backend = \"host\"; size = \"8MiB\"; page_size = \"512KB\"; reserved "
		     "= \"0 pages\"; } );\n" CALM APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	for (uint32_t i = 0; i < 4; i++) {
		sides[i] = (struct side){
			.pool = i % 2 ? blue : red, .byte = i % 2 ? 0xb1 : RED_BYTE, .seed = i + 1, .rounds = 40};
		assert_int_equal(pthread_create(&sides[i].thread, NULL, side_run, &sides[i]), 0);
	}
	for (uint32_t i = 0; i < 4; i++) {
		pthread_join(sides[i].thread, NULL);
		assert_false(sides[i].strange);
		assert_true(sides[i].served > 0);
	}
	assert_true(counted(POOL_COUNT_SCRUBBED_PAGES) > 0);
	books_balance();
}

/* Spilled blocks of red are restored with their content, into any available pages. */
static void test_spilled_over_domains(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block blocks[PAGES], others[PAGES];

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	options.flags = GPOOL_ALLOC_SPILL;
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(gpool_alloc(red, 1, &options, &blocks[i]), 0);
	fill(red, blocks, PAGES);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(gpool_unpin(red, &blocks[i]), 0);
	busy_begin(red);
	assert_int_equal(take(blue, others, PAGES / 2, ANSWER_MS), PAGES / 2);
	are_zero(blue, others, PAGES / 2);
	fill(blue, others, PAGES / 2);
	give(blue, others, PAGES / 2);
	busy_end();
	busy_begin(blue);
	for (uint32_t i = 0; i < PAGES; i++) {
		assert_int_equal(gpool_pin(red, &blocks[i]), 0);
		is_all(red, &blocks[i], RED_BYTE);
		assert_int_equal(gpool_unpin(red, &blocks[i]), 0);
	}
	busy_end();
	assert_true(counted(POOL_COUNT_SPILLED_PAGES) >= PAGES / 2);
	assert_int_equal(counted(POOL_COUNT_SPILL_ERRORS), 0);
	books_balance();
}

/* ---- fresh memory ---- */

static void start_dirty(const char *text)
{
	setenv("GPOOL_HOST_LACKS", "zeros", 1);
	start_config(text);
	unsetenv("GPOOL_HOST_LACKS");
}

/*
 * On a device that may return old content, the old content is never visible, and each page is cleared once. Each
 * session makes only one request. With several, the agent may lease more pages than needed; the others would move to
 * the other domain later, and be cleared again.
 */
static void test_fresh_memory_is_cleared(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block, other;

	(void)state;
	start_dirty(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	options.timeout_ms = ANSWER_MS;
	assert_int_equal(gpool_alloc(red, PAGES / 2, &options, &block), 0);
	are_zero(red, &block, 1);
	assert_int_equal(gpool_alloc(blue, PAGES / 2, &options, &other), 0);
	are_zero(blue, &other, 1);
	assert_int_equal(counted(POOL_COUNT_SCRUBBED_PAGES), PAGES);
	assert_int_equal(counted(POOL_COUNT_RETIREMENTS), 0);
	books_balance();
	/* Once red has used it, it is an ordinary page. */
	memset(bytes_of(red, &block), RED_BYTE, PAGES / 2 * gpool_page_bytes(red));
	assert_int_equal(gpool_free(red, &block), 0);
	assert_int_equal(gpool_alloc(red, PAGES / 2, &options, &block), 0);
	is_all(red, &block, RED_BYTE);
	assert_int_equal(counted(POOL_COUNT_SCRUBBED_PAGES), PAGES);
}

/* The next agent knows which pages were never used. */
static void test_fresh_memory_over_deaths(void **state)
{
	struct gpool_block blocks[PAGES];

	(void)state;
	start_dirty(POOLS_OF_FOUR CALM APART);
	red = open_as(0, NULL, "red");
	assert_int_equal(take(red, blocks, SOME, ANSWER_MS), SOME);
	killed("gpoold-agent");
	killed("gpoold-mover");
	assert_int_equal(take(red, &blocks[SOME], PAGES - SOME, ANSWER_MS), PAGES - SOME);
	are_zero(red, blocks, PAGES);
	assert_true(counted(POOL_COUNT_SCRUBBED_PAGES) >= PAGES); /* pages in the ring may be cleared twice */
	books_balance();
}

/* Within one trust domain no page is cleared. */
static void test_fresh_memory_of_one_domain(void **state)
{
	struct gpool_block blocks[PAGES];

	(void)state;
	start_dirty(POOLS CALM TOGETHER);
	red = open_as(0, NULL, "red");
	assert_int_equal(take(red, blocks, PAGES, ANSWER_MS), PAGES);
	assert_int_not_equal(*bytes_of(red, &blocks[0]), 0);
	assert_int_equal(counted(POOL_COUNT_SCRUBBED_PAGES), 0);
}

/* ---- sleep ---- */

static struct gpool_range *range_made(struct gpool *pool, uint32_t pages, uint32_t memory_class, const char *name)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range *range = NULL;
	uint64_t address;

	options.memory_class = memory_class;
	options.name = name;
	options.timeout_ms = ANSWER_MS;
	assert_int_equal(gpool_range_create(pool, pages, &options, &range), 0);
	assert_int_equal(gpool_range_address(range, &address), 0);
	memset((void *)(uintptr_t)address, RED_BYTE, pages * gpool_page_bytes(pool));
	return range;
}

static void range_is_whole(const struct gpool_range *range, uint64_t bytes)
{
	const uint8_t *at;
	uint64_t address;

	assert_int_equal(gpool_range_address(range, &address), 0);
	at = (const uint8_t *)(uintptr_t)address;
	assert_int_equal(at[0], RED_BYTE);
	assert_memory_equal(at, at + 1, bytes - 1);
}

/* Red does not reply during its sleep. Blue gets red's unused pages at once, and no page is retired. */
static void sleeps(uint32_t kept_pages)
{
	struct gpool_range *mutable, *immutable, *ephemeral;
	struct gpool_block blocks[PAGES], pinned;
	uint32_t count;

	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	mutable = range_made(red, 16, GPOOL_OBJECT_MUTABLE, NULL);
	immutable = range_made(red, 8, GPOOL_OBJECT_IMMUTABLE, "weights");
	ephemeral = range_made(red, 8, GPOOL_OBJECT_EPHEMERAL, NULL);
	pinned = alloc(red, 4);
	fill(red, &pinned, 1);
	memset(bytes_of(red, &pinned), RED_BYTE, 4 * gpool_page_bytes(red));
	assert_int_equal(take(red, blocks, 16, 0), 16);
	give(red, blocks, 16);
	assert_int_equal(gpool_sleep(red, 0), 0);
	count = take(blue, blocks, PAGES - kept_pages, ANSWER_MS);
	assert_int_equal(count, PAGES - kept_pages);
	assert_int_equal(take(blue, &blocks[count], 1, 0), 0);
	are_zero(blue, blocks, count);
	assert_int_equal(counted(POOL_COUNT_RETIREMENTS), 0);
	is_all(red, &pinned, RED_BYTE);
	/* The object no longer has a reader, so its pages count as unmapped. */
	assert_int_equal(gpool_object_delete(red, "weights", 0), 0);
	AWAIT(take(blue, &blocks[count], 1, 0) == 1);
	assert_int_equal(counted(POOL_COUNT_RETIREMENTS), 0);
	books_balance();
	fill(blue, blocks, count + 1);
	give(blue, blocks, count + 1);
	gpool_close(blue);
	blue = NULL;
	/* Red cannot wake without the object, but can wake without that range. */
	assert_int_equal(gpool_wake(red, ANSWER_MS), -ESTALE);
	assert_int_equal(gpool_range_destroy(immutable), 0);
	assert_int_equal(gpool_wake(red, ANSWER_MS), 0);
	range_is_whole(mutable, 16 * gpool_page_bytes(red));
	is_all(red, &pinned, RED_BYTE);
	assert_int_equal(gpool_range_destroy(ephemeral), 0);
	books_balance();
}

static void test_asleep_nothing_is_retired(void **state)
{
	(void)state;
	start_config(POOLS CALM APART);
	sleeps(8 + 4);
}

static void test_asleep_with_several_pages_in_a_handle(void **state)
{
	(void)state;
	start_config(POOLS_OF_FOUR CALM APART);
	sleeps(8 + 4);
}

static _Atomic bool allocator_stop;
static _Atomic uint32_t allocator_strange, allocator_served;

/* Take idle pages and open an object, while another thread releases unused pages. */
static void *allocator_run(void *argument)
{
	struct gpool *pool = argument;
	uint64_t page_bytes = gpool_page_bytes(pool);

	for (uint32_t round = 0; !atomic_load(&allocator_stop); round++) {
		struct gpool_object *object;
		struct gpool_block block;
		uint64_t address, bytes;

		if (gpool_alloc(pool, 1 + round % 5, NULL, &block) == 0) {
			gpool_address(pool, &block, &address);
			memset((void *)(uintptr_t)address, (int)round, block.page_count * page_bytes);
			atomic_fetch_add(&allocator_strange, *(uint8_t *)(uintptr_t)address != (uint8_t)round);
			gpool_free(pool, &block);
			atomic_fetch_add(&allocator_served, 1);
		}
		if (gpool_object_open(pool, "read", NULL, &object)) {
			atomic_fetch_add(&allocator_strange, 1);
			continue;
		}
		if (gpool_object_address(object, 0, &address, &bytes) == 0)
			atomic_fetch_add(&allocator_strange, *(uint8_t *)(uintptr_t)address != RED_BYTE);
		gpool_object_close(object);
	}
	return NULL;
}

static void test_threads_continue_while_the_process_goes_to_sleep(void **state)
{
	struct gpool_object *object;
	pthread_t threads[2];
	uint64_t address, bytes, version;
	uint32_t index;

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	assert_int_equal(gpool_object_create(red, "read", NULL, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 3, &patient, &index), 0);
	assert_int_equal(gpool_object_address(object, index, &address, &bytes), 0);
	memset((void *)(uintptr_t)address, RED_BYTE, bytes);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	gpool_object_close(object);
	range_made(red, 4, GPOOL_OBJECT_EPHEMERAL, NULL);
	atomic_store(&allocator_stop, false);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, allocator_run, red), 0);
	for (int round = 0; round < 100; round++) {
		assert_int_equal(gpool_sleep(red, 0), 0);
		assert_int_equal(gpool_wake(red, ANSWER_MS), 0);
	}
	AWAIT(atomic_load(&allocator_served) > 100);
	atomic_store(&allocator_stop, true);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(atomic_load(&allocator_strange), 0);
	books_balance();
}

static void released_send(struct gpool *pool, const struct msg_handle_run *run)
{
	struct msg_handles_released message = {.runs_count = 1, .runs = {*run}};
	uint8_t bytes[MSG_LARGEST_handles_released];
	int length = msg_encode_handles_released(&message, 0, pool->token, bytes, sizeof(bytes));

	assert_true(length > 0);
	assert_int_equal(attach_send(pool->socket, bytes, (size_t)length, NULL, 0), 0);
}

/* Releases of impossible runs, and of handles that the session never had or still uses, have no effect. */
static void test_odd_releases(void **state)
{
	static const struct msg_handle_run runs[] = {
		{0, 0}, {0, UINT32_MAX}, {UINT32_MAX, 1}, {PAGES, 1}, {PAGES - 1, 2}, {0, PAGES}};
	struct gpool_block blocks[SOME];

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	assert_int_equal(take(red, blocks, SOME, ANSWER_MS), SOME);
	fill(red, blocks, SOME);
	for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
		released_send(blue, &runs[i]);
		released_send(red, &runs[i]);
	}
	assert_int_equal(take(blue, blocks, SOME, ANSWER_MS), SOME);
	are_zero(blue, blocks, SOME);
}

/* ---- ranges ---- */

/*
 * Reclaimable pages of a range are unmapped before another domain gets them. Its committed pages stay, and the range
 * remains usable.
 */
static void reclaimable(const char *pools, uint32_t per_handle)
{
	struct gpool_fence fence;
	struct gpool_block blocks[PAGES];
	struct gpool_range *range;
	uint32_t manual, stream, count;
	uint8_t *bytes;
	uint64_t address;
	int error;

	start_config(pools);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	assert_int_equal(gpool_range_reserve(red, 2 * PAGES, NULL, &range), 0);
	assert_int_equal(gpool_range_address(range, &address), 0);
	bytes = (uint8_t *)(uintptr_t)address;
	assert_int_equal(gpool_range_commit(range, 0, PAGES, 0), 0);
	memset(bytes, RED_BYTE, PAGES * gpool_page_bytes(red));
	assert_int_equal(gpool_range_decommit(range, SOME, PAGES - SOME, GPOOL_FENCE_NONE), 0);
	busy_begin(red);
	count = take(blue, blocks, PAGES - SOME, ANSWER_MS);
	busy_end();
	assert_int_equal(count, PAGES - SOME);
	assert_int_equal(take(blue, blocks + count, 1, 0), 0);
	are_zero(blue, blocks, PAGES - SOME);
	assert_int_equal(counted(POOL_COUNT_RETIREMENTS), 0);
	for (uint64_t i = 0; i < SOME * gpool_page_bytes(red); i += 4093)
		assert_int_equal(bytes[i], RED_BYTE);
	books_balance();
	give(blue, blocks, PAGES - SOME);
	busy_begin(blue);
	error = gpool_range_commit(range, 0, 2 * SOME, ANSWER_MS);
	busy_end();
	assert_int_equal(error, 0);
	assert_int_equal(bytes[0], RED_BYTE);
	assert_int_equal(bytes[SOME * gpool_page_bytes(red)], 0);
	/* The work is queued without a fence. Its memory is not unmapped, so no other session gets it. */
	assert_int_equal(gpool_stream_open(red, NULL, 0, &stream), 0);
	assert_int_equal(gpool_stream_open(red, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	assert_int_equal(gpool_fence_record(red, manual, &fence), 0);
	assert_int_equal(gpool_stream_wait(red, stream, fence), 0);
	assert_int_equal(gpool_fill(red, stream, address, 0x5555, gpool_page_bytes(red)), 0);
	assert_int_equal(gpool_range_decommit(range, 0, 2 * SOME, GPOOL_FENCE_NONE), 0);
	busy_begin(red);
	count = take(blue, blocks, PAGES - per_handle, ANSWER_MS);
	error = gpool_alloc(blue, per_handle, NULL, &blocks[count]);
	for (int tries = 0; tries < AWAIT_TRIES && !counted(POOL_COUNT_RETIREMENTS); tries++)
		poll(NULL, 0, AWAIT_STEP_MS);
	busy_end();
	assert_int_equal(error, -ENOSPC);
	assert_int_equal(count, PAGES - per_handle);
	are_zero(blue, blocks, PAGES - per_handle);
	assert_int_equal(counted(POOL_COUNT_RETIREMENTS), per_handle);
	assert_int_equal(gpool_fence_signal(red, fence), 0);
	assert_int_equal(gpool_fence_record(red, stream, &fence), 0);
	assert_int_equal(gpool_fence_wait(red, fence, ANSWER_MS), 0);
	AWAIT(gpool_release_unused(red) == 1);
	assert_int_equal(take(blue, blocks, per_handle, ANSWER_MS), per_handle);
	are_zero(blue, blocks, per_handle);
	books_balance();
}

/* A mapping that its owner has not released counts, even if a sweep ran too early to release it. */
static void test_mapped_pages_are_not_released(void **state)
{
	struct vm_space space = {.let_go = NULL};
	struct gpool_block blocks[PAGES];
	uint32_t pages[SOME], count;
	uint64_t retired;

	(void)state;
	start_config(POOLS CALM APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	assert_int_equal(vm_space_open(red, SOME * gpool_page_bytes(red), &space), 0);
	assert_int_equal(vm_take(red, SOME, NULL, pages), 0);
	assert_int_equal(vm_map(&space, 0, pages, SOME), 0);
	vm_park(&space, 0, SOME);
	busy_begin(red);
	count = take(blue, blocks, PAGES - SOME, ANSWER_MS);
	/* Request one of these pages; none is available. */
	count += take(blue, blocks + count, 1, 0);
	for (int tries = 0; tries < AWAIT_TRIES && !(retired = counted(POOL_COUNT_RETIREMENTS)); tries++)
		poll(NULL, 0, AWAIT_STEP_MS);
	busy_end();
	assert_int_equal(vm_unmap(&space, 0, SOME), 0);
	assert_int_equal(count, PAGES - SOME);
	assert_int_equal(retired, 1);
	AWAIT(gpool_release_unused(red) >= 0 && pages_in(PAGE_RETIRED) == 0);
	busy_begin(red);
	count = take(blue, blocks, SOME, ANSWER_MS);
	busy_end();
	assert_int_equal(count, SOME);
	vm_space_close(&space);
	books_balance();
}

static void test_reclaimable_pages_are_released(void **state)
{
	(void)state;
	reclaimable(POOLS CALM APART, 1);
}

static void test_reclaimable_handles_are_released(void **state)
{
	(void)state;
	reclaimable(POOLS_OF_FOUR CALM APART, 4);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, NULL, stop_config)
	const struct CMUnitTest tests[] = {
		TEST(moved_pages_are_cleared),
		TEST(several_pages_in_a_handle_move_together),
		TEST(pages_in_one_run),
		TEST(within_a_domain_nothing_is_cleared),
		TEST(a_thread_that_waits_for_pages_unmaps),
		TEST(a_session_that_keeps_its_mapping),
		TEST(other_pages_are_lent_instead),
		TEST(retired_pages_serve_their_own_domain),
		TEST(death_ends_mappings),
		TEST(release_by_death_alone),
		TEST(grace_after_a_death),
		TEST(agent_dies_with_retired_pages),
		TEST(agent_dies_during_transfers),
		TEST(mover_dies_during_transfers),
		TEST(ahead_of_need),
		TEST(a_descriptor_for_each_handle),
		TEST(one_domain_costs_nothing),
		TEST(objects_stay_in_their_domain),
		TEST(evicted_objects_are_unmapped),
		TEST(both_at_once),
		TEST(spilled_over_domains),
		TEST(fresh_memory_is_cleared),
		TEST(fresh_memory_over_deaths),
		TEST(fresh_memory_of_one_domain),
		TEST(asleep_nothing_is_retired),
		TEST(asleep_with_several_pages_in_a_handle),
		TEST(threads_continue_while_the_process_goes_to_sleep),
		TEST(odd_releases),
		TEST(mapped_pages_are_not_released),
		TEST(reclaimable_pages_are_released),
		TEST(reclaimable_handles_are_released),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
