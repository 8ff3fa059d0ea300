/*
 * test_mover_gone.c - pools whose mover does not start, or dies each time during the same work.
 *
 * Goal: no caller waits forever. A block that was being spilled stays in the pool, and a spilled block that cannot be
 * restored is kept. A process stays awake or asleep. Pages for another trust domain are not lent before they are
 * cleared. Tools report the reason. When a mover works again, all operations continue. If the agent dies during this
 * time, callers at most wait once more.
 *
 * Method: gpoold runs a module whose movers behave as a file specifies (tests/modules/unwilling.c). They end at once,
 * hang before they serve, or die during jobs that they have started. In one test strace lets the forks of the keeper
 * fail.
 *
 * Requirements: S3.
 */
#include "tests/integration/mover_will.h"
#include "tests/lib/temporary.h"

#include "client/core/spill.h"
#include "shm/monotonic.h"

#include <errno.h>
#include <pthread.h>

enum { PAGE_BYTES = 512 << 10, WORDS = PAGE_BYTES / 8, STEP = 61, BLOCKS = 6, BLOCK_PAGES = 2 };

#define CALM QUIET, "--set", "lease.initial_pages=0", "--set", "lease.batch_pages=1", "--set", "lease.batch_most=1"
#define SPILLING POOL ",spill_memory=32MiB"

static char config_path[64];

/* ---- movers ---- */

static const char *module_path(void)
{
	static char path[512];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 32);

	assert_true(length > 0);
	path[length] = '\0';
	strcpy(strrchr(path, '/'), "/modules/unwilling.so");
	return path;
}

static void mover_kill(void)
{
	pid_t mover;

	AWAIT((mover = process_of("gpoold-mover")) > 0);
	kill(mover, SIGKILL);
}

/* Change the behavior of movers and kill the current one, so that the agent waits for a mover. */
static void mover_becomes(char what)
{
	will(what);
	mover_kill();
	if (what != 'd')
		AWAIT(status()->pools[0].mover_pid == 0);
}

static void begin_pool(const char *pool, const char *patience)
{
	char setting[64];

	snprintf(setting, sizeof(setting), "mover.patience=%s", patience);
	start((const char *const[]){"--module", module_path(), "--pool", pool, CALM, "--set", setting, NULL});
}

static void begin(const char *patience)
{
	begin_pool(SPILLING, patience);
}

static void begin_with_mover(const char *patience)
{
	will('w');
	begin(patience);
	mover_works();
}

static void begin_config(const char *text)
{
	FILE *file;

	snprintf(config_path, sizeof(config_path), "%s/gpool-mover-gone-%d.conf", temporary_folder(), (int)getpid());
	file = fopen(config_path, "we");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	if (harness.pid <= 0)
		start((const char *const[]){"--module", module_path(), "--config", config_path, NULL});
}

/* ---- blocks and their contents ---- */

static struct gpool_block blocks[BLOCKS];

static uint64_t *words_of(struct gpool *pool, const struct gpool_block *block)
{
	uint64_t address = 0;

	assert_int_equal(gpool_address(pool, block, &address), 0);
	return (uint64_t *)(uintptr_t)address;
}

static void blocks_make(struct gpool *pool)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	options.flags = GPOOL_ALLOC_SPILL;
	for (uint64_t i = 0; i < BLOCKS; i++) {
		assert_int_equal(gpool_alloc(pool, BLOCK_PAGES, &options, &blocks[i]), 0);
		for (uint64_t at = 0; at < BLOCK_PAGES * WORDS; at += STEP)
			words_of(pool, &blocks[i])[at] = i << 32 | at;
		assert_int_equal(gpool_unpin(pool, &blocks[i]), 0);
	}
}

/* Check that the block is pinned and has its content. */
static void block_is_whole(struct gpool *pool, uint64_t i)
{
	uint64_t wrong = 0;

	for (uint64_t at = 0; at < BLOCK_PAGES * WORDS; at += STEP)
		wrong += words_of(pool, &blocks[i])[at] != (i << 32 | at);
	assert_int_equal(wrong, 0);
	assert_int_equal(gpool_unpin(pool, &blocks[i]), 0);
}

static void blocks_are_whole(struct gpool *pool)
{
	for (uint64_t i = 0; i < BLOCKS; i++) {
		assert_int_equal(gpool_pin(pool, &blocks[i]), 0);
		block_is_whole(pool, i);
	}
}

static void evict_begin(struct gpool *pool)
{
	harness_evict(&harness, gpool_session(pool), PAGES);
}

static void blocks_spill(struct gpool *pool)
{
	AWAIT((evict_begin(pool), kept_bytes() == BLOCKS * BLOCK_PAGES * PAGE_BYTES && moving() == 0));
}

/* ---- reports ---- */

static char output[65536];

static const char *poolctl_says(const char *what)
{
	char command[800], path[512];
	FILE *pipe;
	size_t length;

	program_path(path, sizeof(path));
	strcpy(strrchr(path, '/'), "/poolctl");
	snprintf(command, sizeof(command), "%s --dir %s %s 2>&1", path, harness.directory, what);
	pipe = popen(command, "re");
	assert_non_null(pipe);
	length = fread(output, 1, sizeof(output) - 1, pipe);
	output[length] = '\0';
	pclose(pipe);
	return output;
}

static void says(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("'%s' is missing in: %s", part, text);
}

static void log_says(const char *part)
{
	static char log[1 << 20];

	file_read(harness.log, log, sizeof(log));
	says(log, part);
}

/* Repeat until an event is received: a new subscriber may miss events that were published before. */
static void events_listen(void)
{
	struct gpool_event event = GPOOL_EVENT_INIT;

	AWAIT((gpool_close(open_worker()), gpool_event_next(admin, 20, &event) == 0));
}

static void event_comes(uint64_t value)
{
	struct gpool_event event = GPOOL_EVENT_INIT;

	while (event.kind != GPOOL_EVENT_MOVER)
		assert_int_equal(gpool_event_next(admin, ANSWER_MS, &event), 0);
	assert_int_equal(event.value, value);
}

/* ---- tests ---- */

/* The pool has no mover from the start, for example because the mover gets no GPU context. */
static void test_a_pool_works_without(void **state)
{
	struct gpool_block taken[PAGES];
	struct gpool *pool, *other;
	uint32_t count = 0;

	(void)state;
	will('e');
	begin("300ms");
	pool = open_worker();
	other = open_worker();
	blocks_make(pool);
	AWAIT(status()->pools[0].mover_gone_ms);
	assert_true(status()->pools[0].mover_gone_ms >= 300);
	says(status()->pools[0].mover_why, "ended (status 1): cannot open device 0:? it is not willing");
	log_says("no mover has served pool 'p0' for");
	says(poolctl_says("doctor"), "no mover has served pool 'p0'");
	says(output, "ulimit -u");
	says(poolctl_says("status"), "no mover has served for");
	says(poolctl_says("-o json status"), "\"mover_gone_ms\"");
	/* Blocks that cannot be spilled remain in the pool. Other sessions get the other pages. */
	while (gpool_alloc(other, 1, NULL, &taken[count]) == 0)
		count++;
	assert_int_equal(count, PAGES - BLOCKS * BLOCK_PAGES);
	blocks_are_whole(pool);
	assert_int_equal(spill_now(pool, &blocks[0]), -EIO);
	assert_int_equal(moving() + kept_bytes(), 0);
	events_listen();
	will('w');
	event_comes(1);
	assert_int_equal(status()->pools[0].mover_gone_ms, 0);
	AWAIT(gpool_alloc(other, BLOCK_PAGES, NULL, &taken[count]) == 0);
	assert_true(kept_bytes() > 0);
	gpool_close(other);
	blocks_are_whole(pool);
	mover_becomes('h');
	event_comes(0);
	gpool_close(pool);
}

static void test_blocks_being_spilled_stay(void **state)
{
	struct gpool_block some;
	struct gpool *pool, *other;

	(void)state;
	begin_with_mover("1s");
	pool = open_worker();
	other = open_worker();
	blocks_make(pool);
	mover_becomes('h');
	/* Pin a block that is being spilled, and let a request wait for its pages. */
	evict_begin(pool);
	assert_int_equal(moving(), BLOCKS * BLOCK_PAGES);
	blocks_are_whole(pool);
	assert_int_equal(moving() + kept_bytes(), 0);
	assert_int_equal(gpool_alloc(other, PAGES - 1, NULL, &some), -ENOSPC);
	blocks_are_whole(pool);
	assert_int_equal(counter(POOL_COUNT_SPILL_ERRORS), 0);
	says(status()->pools[0].mover_why, "ended (signal 9)");
	mover_works();
	AWAIT(gpool_alloc(other, PAGES - 1, NULL, &some) == 0);
	assert_int_equal(gpool_free(other, &some), 0);
	blocks_are_whole(pool);
	gpool_close(other);
	gpool_close(pool);
}

struct pinner {
	pthread_t thread;
	struct gpool *pool;
	int error;
};

static void *pinner_main(void *argument)
{
	struct pinner *pinner = argument;

	pinner->error = gpool_pin(pinner->pool, &blocks[0]);
	return NULL;
}

static void pinner_start(struct pinner *pinner, struct gpool *pool)
{
	*pinner = (struct pinner){.pool = pool};
	assert_int_equal(pthread_create(&pinner->thread, NULL, pinner_main, pinner), 0);
}

static int pinner_end(struct pinner *pinner)
{
	assert_int_equal(pthread_join(pinner->thread, NULL), 0);
	return pinner->error;
}

static void test_spilled_blocks_stay_spilled(void **state)
{
	struct gpool_block others[PAGES];
	struct gpool *pool, *other;
	struct pinner pinners[3];
	uint32_t left;

	(void)state;
	begin_with_mover("300ms");
	pool = open_worker();
	other = open_worker();
	blocks_make(pool);
	blocks_spill(pool);
	alloc_unpinned(other, others, PAGES);
	mover_becomes('h');
	for (int i = 0; i < 3; i++)
		pinner_start(&pinners[i], pool);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pinner_end(&pinners[i]), -EIO);
	/* From now on the agent replies to the request at once, and no block is lost. */
	left = count_there(other, others, PAGES);
	assert_true(left < PAGES);
	for (int i = 1; i < BLOCKS; i++)
		assert_int_equal(gpool_pin(pool, &blocks[i]), -EIO);
	assert_int_equal(count_there(other, others, PAGES), left);
	assert_int_equal(moving(), 0);
	assert_int_equal(kept_bytes(), BLOCKS * BLOCK_PAGES * PAGE_BYTES);
	mover_works();
	blocks_are_whole(pool);
	/* A spilled block can be discarded without a mover. */
	blocks_spill(pool);
	mover_becomes('h');
	assert_int_equal(gpool_discard(pool, &blocks[5]), 0);
	assert_int_equal(kept_bytes(), (BLOCKS - 1) * BLOCK_PAGES * PAGE_BYTES);
	gpool_close(other);
	gpool_close(pool);
	AWAIT(kept_bytes() == 0);
}

static void test_sleeping_and_waking(void **state)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_block others[PAGES];
	struct gpool *pool, *other;
	struct gpool_range *range;
	uint64_t address, *words;
	uint32_t count = 0;

	(void)state;
	begin_with_mover("200ms");
	pool = open_worker();
	other = open_worker();
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	assert_int_equal(gpool_range_create(pool, 8, &options, &range), 0);
	assert_int_equal(gpool_range_address(range, &address), 0);
	words = (uint64_t *)(uintptr_t)address;
	for (uint64_t at = 0; at < 8 * WORDS; at += STEP)
		words[at] = at;
	mover_becomes('h');
	/* The first call waits until the state is known. The second call fails at once. */
	for (int i = 0; i < 2; i++) {
		assert_int_equal(gpool_sleep(pool, 0), -EIO);
		assert_int_equal(gpool_asleep(pool), 0);
		for (uint64_t at = 0; at < 8 * WORDS; at += STEP)
			assert_int_equal(words[at], at);
	}
	assert_int_equal(moving() + kept_bytes(), 0);
	mover_works();
	assert_int_equal(gpool_sleep(pool, 0), 0);
	mover_becomes('h');
	assert_int_equal(gpool_wake(pool, 0), -EIO);
	assert_int_equal(gpool_asleep(pool), 1);
	assert_int_equal(moving(), 0);
	/* The state is known now: other sessions keep their blocks. */
	alloc_unpinned(other, others, PAGES);
	AWAIT(status()->pools[0].mover_gone_ms);
	assert_int_equal(gpool_wake(pool, ANSWER_MS), -EIO);
	assert_int_equal(count_there(other, others, PAGES), PAGES);
	mover_works();
	AWAIT((count++, gpool_wake(pool, ANSWER_MS) == 0));
	for (uint64_t at = 0; at < 8 * WORDS; at += STEP)
		assert_int_equal(words[at], at);
	gpool_close(other);
	gpool_close(pool);
}

/* ---- a mover that dies during its work ---- */

static void test_each_mover_dies_at_the_same_jobs(void **state)
{
	struct gpool *pool;

	(void)state;
	begin_with_mover("100ms");
	pool = open_worker();
	blocks_make(pool);
	blocks_spill(pool);
	mover_becomes('d');
	assert_int_equal(gpool_pin(pool, &blocks[0]), -EIO);
	assert_int_equal(gpool_pin(pool, &blocks[1]), -EIO);
	assert_int_equal(moving(), 0);
	assert_int_equal(kept_bytes(), BLOCKS * BLOCK_PAGES * PAGE_BYTES);
	will('w');
	mover_kill();
	AWAIT(gpool_pin(pool, &blocks[0]) == 0);
	block_is_whole(pool, 0);
	blocks_are_whole(pool);
	mover_becomes('d');
	AWAIT((evict_begin(pool), moving() > 0));
	for (uint64_t i = 0; i < BLOCKS; i++) {
		assert_int_equal(gpool_pin(pool, &blocks[i]), 0);
		block_is_whole(pool, i);
	}
	assert_int_equal(moving() + kept_bytes(), 0);
	will('w');
	mover_kill();
	blocks_spill(pool);
	blocks_are_whole(pool);
	gpool_close(pool);
}

/*
 * The GPU continues its copies after the mover's death. Until they are done, their pages are not lent and no other
 * mover serves.
 */
static void test_gpu_work_of_a_dead_mover_is_waited_for(void **state)
{
	struct gpool_block others[PAGES];
	struct gpool *pool;
	struct pinner pinner;
	uint64_t dead, gone_ms;
	uint32_t serving;

	(void)state;
	will('w');
	begin_config("pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved "
		     "= \"0 pages\"; } );\n"
		     "eviction: { start = 100; stop = 99; };\nlease: { initial_pages = 0; batch_pages = 1; batch_most "
		     "= 1; };\n"
		     "mover: { patience = \"300ms\"; };\ntrust: { death_grace = \"5s\"; };\n");
	mover_works();
	pool = open_worker();
	blocks_make(pool);
	blocks_spill(pool);
	mover_becomes('d');
	pinner_start(&pinner, pool);
	/* The time of the death, or earlier: the agent reports an age. */
	AWAIT((dead = monotonic_ms(), gone_ms = status()->pools[0].mover_gone_ms));
	dead -= gone_ms;
	assert_int_equal(moving(), BLOCK_PAGES);
	/* Further movers are started, and wait as well. */
	will('w');
	mover_kill();
	AWAIT(process_of("gpoold-mover") > 0);
	serving = status()->pools[0].mover_pid;
	assert_true(!serving || monotonic_ms() - dead >= 5000);
	alloc_unpinned(pool, others, 8);
	assert_int_equal(pinner_end(&pinner), -EIO);
	/* The last death was at most mover.patience before the agent gave up. */
	assert_true(monotonic_ms() - dead > 400);
	AWAIT(status()->pools[0].mover_pid != 0);
	blocks_are_whole(pool);
	gpool_close(pool);
}

/* ---- deaths of other processes ---- */

static void agent_kill(void)
{
	pid_t agent = process_of("gpoold-agent"), next;

	assert_true(agent > 0);
	kill(agent, SIGKILL);
	AWAIT((next = process_of("gpoold-agent")) > 0 && next != agent);
}

static void test_the_agent_dies_meanwhile(void **state)
{
	struct gpool *pool;
	struct pinner pinner;

	(void)state;
	begin_with_mover("200ms");
	pool = open_worker();
	blocks_make(pool);
	mover_becomes('h');
	evict_begin(pool);
	agent_kill();
	blocks_are_whole(pool);
	mover_works();
	blocks_spill(pool);
	mover_becomes('h');
	pinner_start(&pinner, pool);
	AWAIT(moving() == BLOCK_PAGES || status()->pools[0].mover_gone_ms);
	agent_kill();
	assert_int_equal(pinner_end(&pinner), -EIO);
	/* An agent that starts without a mover detects that, too. */
	AWAIT(status()->pools[0].mover_gone_ms);
	agent_kill();
	AWAIT(status()->pools[0].mover_gone_ms);
	mover_works();
	blocks_are_whole(pool);
	gpool_close(pool);
}

/*
 * The job of a failed restore names its target pages. By now these pages belong to another session and are being
 * spilled. An agent that finds both jobs must not confuse them.
 */
static void test_the_agent_dies_after_a_failed_load(void **state)
{
	enum { MORE = PAGES / BLOCK_PAGES };
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	static struct gpool_block more[MORE];
	struct gpool *pool;
	pid_t mover;

	(void)state;
	will('w');
	begin_pool(POOL ",spill_memory=64MiB", "200ms");
	mover_works();
	pool = open_worker();
	blocks_make(pool);
	blocks_spill(pool);
	mover_becomes('h');
	assert_int_equal(gpool_pin(pool, &blocks[0]), -EIO);
	mover_works();
	options.flags = GPOOL_ALLOC_SPILL;
	for (uint64_t i = 0; i < MORE; i++) {
		assert_int_equal(gpool_alloc(pool, BLOCK_PAGES, &options, &more[i]), 0);
		*words_of(pool, &more[i]) = ~i;
		assert_int_equal(gpool_unpin(pool, &more[i]), 0);
	}
	mover = mover_stop();
	evict_begin(pool);
	assert_int_equal(moving(), PAGES);
	agent_kill();
	kill(mover, SIGCONT);
	for (uint64_t i = 0; i < MORE; i++) {
		assert_int_equal(gpool_pin(pool, &more[i]), 0);
		assert_int_equal(*words_of(pool, &more[i]), ~i);
		assert_int_equal(gpool_free(pool, &more[i]), 0);
	}
	blocks_are_whole(pool);
	assert_int_equal(harness_check(&harness), 0);
	gpool_close(pool);
}

static void test_the_worker_dies_meanwhile(void **state)
{
	int ready[2];
	pid_t child;
	char byte;

	(void)state;
	begin_with_mover("200ms");
	assert_int_equal(pipe(ready), 0);
	fflush(NULL);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct gpool *pool = harness_open(&harness);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		blocks_make(pool);
		if (write(ready[1], "", 1) != 1)
			_exit(1);
		while (spill_now(pool, &blocks[0]) || write(ready[1], "", 1) != 1)
			;
		for (;;)
			gpool_pin(pool, &blocks[0]);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	mover_becomes('h');
	mover_works();
	assert_int_equal(read(ready[0], &byte, 1), 1);
	mover_becomes('h');
	AWAIT(moving() == BLOCK_PAGES || status()->pools[0].mover_gone_ms);
	kill(child, SIGKILL);
	status_of(child);
	AWAIT(harness_free_pages(&harness) == PAGES && kept_bytes() == 0);
	assert_int_equal(moving(), 0);
	close(ready[0]);
	close(ready[1]);
}

/* ---- pages for another trust domain ---- */

#define TWO_DOMAINS \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; } );\n" \
	"eviction: { start = 100; stop = 99; };\nlease: { initial_pages = 0; batch_pages = 1; };\n" \
	"tenants = ( { name = \"red\"; users = [ \"1\" ]; domain = \"red\"; }, { name = \"blue\"; users = [ \"2\" ]; " \
	"domain = \"blue\"; } );\n"

static void reload(const char *text)
{
	const struct msg_reload_request request = {0};
	struct msg_done_reply done;

	begin_config(text);
	ASK(reload_request, &request, done_reply, &done);
}

static uint32_t take(struct gpool *pool, struct gpool_block *taken, uint32_t most)
{
	uint32_t count = 0;

	while (count < most && gpool_alloc(pool, 1, NULL, &taken[count]) == 0)
		count++;
	return count;
}

static void test_pages_wait_to_be_cleared(void **state)
{
	struct gpool_block taken[PAGES];
	struct gpool *red, *blue;
	uint64_t scrubbed;
	uint32_t cleaning;

	(void)state;
	will('w');
	begin_config(TWO_DOMAINS "mover: { patience = \"1h\"; };\n");
	mover_works();
	red = open_as(0, NULL, "red");
	/* On a device whose new memory is not zero, the mover clears the pages first. */
	for (uint32_t count = 0; count < PAGES;)
		count += take(red, taken + count, PAGES - count);
	mover_becomes('h');
	scrubbed = counter(POOL_COUNT_SCRUBBED_PAGES);
	for (uint32_t i = 0; i < PAGES; i++) {
		memset(words_of(red, &taken[i]), 0xad, PAGE_BYTES);
		assert_int_equal(gpool_free(red, &taken[i]), 0);
	}
	gpool_close(red);
	/* The transfer is under way, because the agent does not know yet that no mover will start. */
	blue = open_as(0, NULL, "blue");
	assert_int_equal(take(blue, taken, PAGES), 0);
	AWAIT(status()->pools[0].cleaning_pages > 0);
	reload(TWO_DOMAINS "mover: { patience = \"10ms\"; };\n");
	AWAIT(status()->pools[0].mover_gone_ms);
	says(status()->pools[0].mover_why, "ended (signal 9)");
	/*
	 * The agent now knows that no mover serves, and retires no further page. The retired pages are not lent, and
	 * the status shows them.
	 */
	cleaning = status()->pools[0].cleaning_pages;
	assert_in_range(cleaning, 1, PAGES - 1);
	assert_int_equal(take(blue, taken, PAGES), 0);
	assert_int_equal(status()->pools[0].cleaning_pages, cleaning);
	says(poolctl_says("transfers"), "cleared");
	red = open_as(0, NULL, "red");
	assert_int_equal(take(red, taken, PAGES), PAGES - cleaning);
	gpool_close(red);
	assert_int_equal(counter(POOL_COUNT_SCRUBBED_PAGES), scrubbed);
	mover_works();
	AWAIT(status()->pools[0].cleaning_pages == 0);
	for (uint32_t count = 0; count < PAGES;) {
		uint32_t more = take(blue, taken + count, PAGES - count);

		for (uint32_t i = count; i < count + more; i++)
			for (uint64_t at = 0; at < WORDS; at++)
				assert_int_equal(words_of(blue, &taken[i])[at], 0);
		count += more;
	}
	gpool_close(blue);
}

/* ---- a keeper that cannot fork ---- */

static pid_t strace_start(void)
{
	char keeper[16];
	pid_t tracer;

	snprintf(keeper, sizeof(keeper), "%d", (int)harness.pid);
	tracer = fork();
	assert_true(tracer >= 0);
	if (tracer == 0) {
		int null = open("/dev/null", O_WRONLY);

		prctl(PR_SET_PDEATHSIG, SIGTERM);
		dup2(null, STDERR_FILENO);
		execlp("strace", "strace", "-qq", "-o", "/dev/null", "-e", "trace=clone", "-e",
			"inject=clone:error=EAGAIN", "-p", keeper, NULL);
		_exit(127);
	}
	return tracer;
}

/* Return false if strace is missing or not permitted here. */
static bool strace_traces(pid_t tracer)
{
	char path[64], text[4096], wanted[32];
	siginfo_t info = {0};

	snprintf(path, sizeof(path), "/proc/%d/status", (int)harness.pid);
	snprintf(wanted, sizeof(wanted), "TracerPid:\t%d\n", (int)tracer);
	for (;;) {
		file_read(path, text, sizeof(text));
		if (strstr(text, wanted))
			return true;
		if (waitid(P_PID, (id_t)tracer, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == tracer)
			return false;
		poll(NULL, 0, 1);
	}
}

static void test_the_keeper_cannot_fork(void **state)
{
	struct gpool *pool;
	pid_t tracer;

	(void)state;
	begin_with_mover("200ms");
	pool = open_worker();
	blocks_make(pool);
	blocks_spill(pool);
	tracer = strace_start();
	if (!strace_traces(tracer)) {
		status_of(tracer);
		gpool_close(pool);
		print_message("strace may not trace here\n");
		skip();
	}
	mover_becomes('w');
	assert_int_equal(gpool_pin(pool, &blocks[0]), -EIO);
	AWAIT(status()->pools[0].mover_gone_ms);
	says(status()->pools[0].mover_why, "cannot start a process: Resource temporarily unavailable");
	kill(tracer, SIGTERM);
	status_of(tracer);
	AWAIT(status()->pools[0].mover_pid);
	blocks_are_whole(pool);
	gpool_close(pool);
}

/* ---- fixture ---- */

static int after(void **state)
{
	int error = stop(state);

	if (config_path[0])
		unlink(config_path);
	return error;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_a_pool_works_without, after),
		cmocka_unit_test_teardown(test_blocks_being_spilled_stay, after),
		cmocka_unit_test_teardown(test_spilled_blocks_stay_spilled, after),
		cmocka_unit_test_teardown(test_sleeping_and_waking, after),
		cmocka_unit_test_teardown(test_each_mover_dies_at_the_same_jobs, after),
		cmocka_unit_test_teardown(test_gpu_work_of_a_dead_mover_is_waited_for, after),
		cmocka_unit_test_teardown(test_the_agent_dies_meanwhile, after),
		cmocka_unit_test_teardown(test_the_agent_dies_after_a_failed_load, after),
		cmocka_unit_test_teardown(test_the_worker_dies_meanwhile, after),
		cmocka_unit_test_teardown(test_pages_wait_to_be_cleared, after),
		cmocka_unit_test_teardown(test_the_keeper_cannot_fork, after),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, will_begin, will_end);
}
