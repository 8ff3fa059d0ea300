/*
 * sharing.h - cells of the sharing matrix: how much of an engine's memory another engine can get, by kind of memory and
 * state of its owner.
 *
 * The owner is a separate process. It allocates memory of one kind, releases it, reports that, and makes no further
 * library call. The taker pins all other pages, so every page that it gets comes from the owner. Each program has a
 * table of kinds. main() makes one test for each kind and state; with --table it prints the rows of the table in
 * docs/sharing.md.
 *
 * The GPU work is a stream of the owner that waits for a gate, which is a host-signaled timeline. The test writes the
 * timeline with process_vm_writev(), as a GPU writes to the memory of a process that executes nothing. If the owner is
 * stopped, the threads that emulate its GPU are stopped too; the test then writes the timeline of the stream itself.
 *
 * Each program includes this header once, after life.h.
 */
#ifndef GPOOL_TESTS_SHARING_H
#define GPOOL_TESTS_SHARING_H

#include "client/core/pool.h"
#include "shm/monotonic.h"
#include "shm/timeline.h"
#include "tests/integration/life.h"
#include "tests/lib/unwatched.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { UNITS = 16, PAGE_BYTES = TEST_PAGE_BYTES, PAGE_WORDS = PAGE_BYTES / 8, STEP = 61 };
enum { NONE_MS = 150, ALL_MS = AWAIT_MS, CELLS_MAX = 256, GATES_MAX = 2, OWNER_MS = AWAIT_MS };

enum owner_state { IDLE, STOPPED, WORKING, HANGING, KILLED, BACK, STATES };

/* The pages that the taker gets in one state of the owner. */
enum gets {
	NONE,
	ALL,       /* immediately */
	WHEN_DONE, /* none before the GPU work ends, then all */
};

/* The content that the owner finds when it uses the memory again. */
enum content {
	NEEDED, /* all content */
	KEPT,   /* the content that was not evicted; evicted content is reported as lost */
	SAVED,  /* all content, including what was evicted */
	GONE,   /* no content: the memory was freed */
};

struct gate {
	uint32_t manual, stream;
	struct gpool_fence fence;
};

/* The state of the owner's process. */
struct owner {
	const struct kind *kind;
	struct gpool *pool, *second;
	int channel;
	struct gate gates[GATES_MAX];
	struct gpool_fence fence, fences[GATES_MAX]; /* recorded after the work */
	uint32_t pages; /* number of pages to release; kinds with a fixed size set it in prepare() */
	struct gpool_block blocks[4 * UNITS];
	struct gpool_range *range;
	struct gpool_sliced_range *sliced;
	uint64_t addresses[4 * UNITS];
	void *own; /* private data of a kind */
};

/* The content that the owner found. */
struct found {
	uint32_t kept, lost, wrong;
};

struct kind {
	const char *name; /* as in docs/sharing.md */
	enum gets gets[KILLED + 1];
	enum content content;
	uint32_t gates;      /* number of streams with work for which the memory waits; 0 means one */
	bool work_copies;    /* the work includes copies, and must end before the owner is stopped */
	bool work_later;     /* the work is queued after the release, and does not use the memory */
	bool whole;          /* the taker gets all of the memory or none of it */
	bool needs_room;     /* the owner needs pages to restore its memory: the taker frees all of its pages first */
	bool in_second_pool; /* the taker allocates in the second pool */
	void (*prepare)(struct owner *owner);
	void (*let_go)(struct owner *owner); /* makes the owner's last library calls */
	/* Count kept, lost and wrong pages. NULL: no content can remain. */
	void (*look)(struct owner *owner, struct found *found);
};

/* The owner's report, sent after it has released the memory. */
struct report {
	uint32_t pages, gates;
	uint64_t timeline; /* address in the owner's process */
	uint64_t gate_fences[GATES_MAX], work_fences[GATES_MAX];
};

/* One element for each state: idle, stopped, GPU work that ends, GPU work that hangs, killed. */
#define HELD \
	{ \
		NONE, NONE, NONE, NONE, ALL \
	}
#define AT_ONCE \
	{ \
		ALL, ALL, ALL, ALL, ALL \
	}
#define BEHIND_WORK \
	{ \
		ALL, ALL, WHEN_DONE, NONE, ALL \
	}
#define OUTLIVES \
	{ \
		NONE, NONE, NONE, NONE, NONE \
	}

#define CALM QUIET, "--set", "lease.initial_pages=0", "--set", "lease.batch_pages=1", "--set", "lease.batch_most=1"

static const char *const second_pool = "warm"; /* in host memory on every back end, see harness.h */

/* ---- the owner ---- */

/* Write the content of a page, including its first and last word. Each page has different content. */
static inline void page_write(uint64_t address, uint64_t page)
{
	volatile uint64_t *words = (volatile uint64_t *)(uintptr_t)address;

	for (uint32_t i = 0; i < PAGE_WORDS; i += STEP)
		words[i] = page << 32 | i;
	words[PAGE_WORDS - 1] = ~page;
}

static inline bool page_right(uint64_t address, uint64_t page)
{
	const volatile uint64_t *words = (const volatile uint64_t *)(uintptr_t)address;

	for (uint32_t i = 0; i < PAGE_WORDS; i += STEP)
		if (i != PAGE_WORDS - 1 && words[i] != (page << 32 | i))
			return false;
	return words[PAGE_WORDS - 1] == ~page;
}

/* Classify a page by its presence and content, and count it. */
static inline void found_page(struct found *found, bool there, uint64_t address, uint64_t page)
{
	if (!there)
		found->lost++;
	else if (page_right(address, page))
		found->kept++;
	else
		found->wrong++;
}

static inline struct gpool_fence fence_of(struct gpool *pool, uint32_t queue)
{
	struct gpool_fence fence = {0};

	assert_int_equal(gpool_fence_record(pool, queue, &fence), 0);
	return fence;
}

/* Start the GPU work: the streams wait, and owner->fences are recorded after the work. */
static inline void gates_close(struct owner *owner)
{
	for (uint32_t i = 0; i < GATES_MAX; i++) {
		struct gate *gate = &owner->gates[i];

		gate->fence = fence_of(owner->pool, gate->manual);
		assert_int_equal(gpool_stream_wait(owner->pool, gate->stream, gate->fence), 0);
		owner->fences[i] = fence_of(owner->pool, gate->stream);
	}
	owner->fence = owner->fences[0];
}

static inline void owner_open(struct owner *owner)
{
	owner->pool = open_worker();
	for (int i = 0; i < GATES_MAX; i++) {
		assert_int_equal(
			gpool_stream_open(owner->pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &owner->gates[i].manual), 0);
		assert_int_equal(gpool_stream_open(owner->pool, NULL, 0, &owner->gates[i].stream), 0);
	}
	owner->pages = UNITS;
}

static inline void owner_lets_go(struct owner *owner)
{
	if (!owner->kind->work_later)
		gates_close(owner);
	if (owner->kind->let_go)
		owner->kind->let_go(owner);
	if (owner->kind->work_later)
		gates_close(owner);
}

static inline struct report owner_report(struct owner *owner)
{
	struct report report = {
		.pages = owner->pages, .gates = GATES_MAX, .timeline = (uintptr_t)owner->pool->session.timeline};

	for (int i = 0; i < GATES_MAX; i++) {
		report.gate_fences[i] = owner->gates[i].fence.value;
		/* The fences of the report are also recorded after all work that the library has queued. */
		report.work_fences[i] = fence_of(owner->pool, owner->gates[i].stream).value;
	}
	return report;
}

static inline void __attribute__((noreturn)) owner_run(const struct kind *kind, int channel)
{
	static struct owner owner;
	struct report report = {0};
	struct found found = {0};
	char command;

	/* A failed assertion ends this process; the test then finds the channel closed. */
	setenv("CMOCKA_TEST_ABORT", "1", 1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	owner = (struct owner){.kind = kind, .channel = channel};
	owner_open(&owner);
	kind->prepare(&owner);
	assert_int_equal(write(channel, &report, sizeof(report)), sizeof(report));
	assert_int_equal(read(channel, &command, 1), 1);
	owner_lets_go(&owner);
	report = owner_report(&owner);
	assert_int_equal(write(channel, &report, sizeof(report)), sizeof(report));
	/* From here on the process makes no library call: it sleeps in read() until the test requests the content. */
	if (read(channel, &command, 1) != 1)
		_exit(1);
	kind->look(&owner, &found);
	assert_int_equal(write(channel, &found, sizeof(found)), sizeof(found));
	while (read(channel, &command, 1) > 0)
		;
	_exit(0);
}

/* ---- the owner as the test sees it ---- */

static pid_t owner_pid;
static int owner_channel = -1;
static struct report owner_says;

static inline void owner_ask(char command, void *answer, size_t bytes)
{
	struct pollfd look = {.fd = owner_channel, .events = POLLIN};

	if (command)
		assert_int_equal(write(owner_channel, &command, 1), 1);
	assert_int_equal(poll(&look, 1, OWNER_MS), 1);
	if (read(owner_channel, answer, bytes) != (ssize_t)bytes)
		fail_msg("the owner has ended");
}

static inline void owner_start(const struct kind *kind)
{
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	fflush(NULL);
	owner_pid = fork();
	assert_true(owner_pid >= 0);
	if (owner_pid == 0) {
		close(ends[0]);
		owner_run(kind, ends[1]);
	}
	close(ends[1]);
	owner_channel = ends[0];
	owner_ask(0, &owner_says, sizeof(owner_says));
}

static inline void owner_kill(void)
{
	if (!owner_pid)
		return;
	kill(owner_pid, SIGKILL);
	waitpid(owner_pid, NULL, 0);
	close(owner_channel);
	owner_pid = 0;
	owner_channel = -1;
}

static inline void owner_stop(void)
{
	int how = 0;

	kill(owner_pid, SIGSTOP);
	assert_int_equal(waitpid(owner_pid, &how, WUNTRACED), owner_pid);
	assert_true(WIFSTOPPED(how));
}

/* Return the location of a fence's timeline word in the owner's process. */
static inline struct iovec timeline_word(uint64_t fence)
{
	uint64_t address = owner_says.timeline + fence_slot(fence) * sizeof(uint64_t);

	return (struct iovec){(void *)(uintptr_t)address, sizeof(uint64_t)};
}

/* Write the timeline as a GPU does. */
static inline void timeline_write(uint64_t fence)
{
	uint64_t value = fence & FENCE_VALUE_MASK;
	struct iovec from = {&value, sizeof(value)};
	struct iovec to = timeline_word(fence);

	assert_int_equal(process_vm_writev(owner_pid, &from, 1, &to, 1, 0), sizeof(value));
}

static inline bool is_reached(uint64_t fence)
{
	uint64_t value = 0;
	struct iovec to = {&value, sizeof(value)};
	struct iovec from = timeline_word(fence);

	assert_int_equal(process_vm_readv(owner_pid, &to, 1, &from, 1, 0), sizeof(value));
	return value >= (fence & FENCE_VALUE_MASK);
}

static inline void gate_open(uint32_t gate)
{
	timeline_write(owner_says.gate_fences[gate]);
}

static inline void gates_open(void)
{
	for (uint32_t i = 0; i < owner_says.gates; i++)
		gate_open(i);
}

/* Wait until the stream itself signals its fences. */
static inline void work_await(void)
{
	for (uint32_t i = 0; i < owner_says.gates; i++)
		AWAIT(is_reached(owner_says.work_fences[i]));
}

/* End the work of a stopped owner. */
static inline void work_end(void)
{
	gates_open();
	for (uint32_t i = 0; i < owner_says.gates; i++)
		timeline_write(owner_says.work_fences[i]);
}

/* ---- the taker ---- */

static struct gpool *taker;
static struct gpool_block rest[8 * PAGES], taken[8 * PAGES];
static uint32_t rest_count, taken_count;

static inline uint32_t pages_free(void)
{
	return atomic_load(&pool_view(taker)->header->state_pages[PAGE_FREE]);
}

/* Allocate all free pages one by one. The remaining pages belong to the owner. */
static inline void rest_take(void)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	int error = 0;

	options.flags = GPOOL_ALLOC_NO_EVICT;
	while (!error) {
		assert_true(rest_count < 8 * PAGES);
		error = gpool_alloc(taker, 1, &options, &rest[rest_count]);
		rest_count += !error;
	}
	assert_int_equal(error, -ENOSPC);
	assert_int_equal(pages_free(), 0);
}

/* Allocate up to `most` pages one by one within `timeout_ms` milliseconds. Return their number. */
static inline uint32_t take(uint32_t most, int timeout_ms)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	uint64_t until = monotonic_us() + (uint64_t)timeout_ms * 1000;
	uint32_t got = 0;

	while (got < most) {
		uint64_t now = monotonic_us();
		int error;

		options.timeout_ms = now < until ? (int)((until - now) / 1000) : 0;
		error = gpool_alloc(taker, 1, &options, &taken[taken_count]);
		if (error) {
			assert_int_equal(error, -ENOSPC);
			break;
		}
		taken_count++;
		got++;
	}
	return got;
}

static inline void taken_spoil(void)
{
	for (uint32_t i = 0; i < taken_count; i++) {
		uint64_t address = 0;

		assert_int_equal(gpool_address(taker, &taken[i], &address), 0);
		spoil(address, gpool_page_bytes(taker));
	}
}

static inline void taker_free_all(void)
{
	while (taken_count)
		assert_int_equal(gpool_free(taker, &taken[--taken_count]), 0);
	while (rest_count)
		assert_int_equal(gpool_free(taker, &rest[--rest_count]), 0);
}

struct waiting {
	uint32_t wanted, got;
};

static inline void *take_waiting(void *argument)
{
	struct waiting *waiting = argument;

	waiting->got = take(waiting->wanted, ALL_MS);
	return NULL;
}

/* ---- cells ---- */

static const char *const state_names[STATES] = {
	"idle", "stopped", "GPU work that ends", "GPU work that hangs", "killed", "returns"};
static const char *const gets_words[] = {[NONE] = "none", [ALL] = "all", [WHEN_DONE] = "all, when the work ends"};
static const char *const content_words[] = {
	[NEEDED] = "everything", [KEPT] = "remaining content", [SAVED] = "everything, restored", [GONE] = "nothing"};

struct cell {
	const struct kind *kind;
	enum owner_state state;
	char name[160];
};

static void print_time(const char *what, uint32_t got, uint32_t of, uint64_t since_us)
{
	printf("    %s: %u of %u pages after %.1f ms\n", what, got, of, (double)(monotonic_us() - since_us) / 1000);
}

/* Check that the taker gets all pages that the owner released, and no other pages. */
static inline void expect_all(uint32_t pages, bool exactly)
{
	uint64_t since = monotonic_us();
	uint32_t got = take(pages, ALL_MS);

	print_time("taken", got, pages, since);
	assert_int_equal(got, pages);
	if (exactly)
		assert_int_equal(take(1, 0), 0);
}

static inline void expect_none(void)
{
	assert_int_equal(take(1, NONE_MS), 0);
}

/* Check that the taker waits until the last gate is opened. */
static inline void expect_when_done(const struct kind *kind, uint32_t pages)
{
	struct waiting waiting = {.wanted = pages};
	pthread_t thread;
	uint64_t since;

	expect_none();
	for (uint32_t i = 1; i < kind->gates; i++) {
		gate_open(i);
		AWAIT(is_reached(owner_says.work_fences[i]));
		expect_none();
	}
	assert_int_equal(pthread_create(&thread, NULL, take_waiting, &waiting), 0);
	AWAIT(atomic_load(&pool_view(taker)->header->waiters) != 0);
	since = monotonic_us();
	gates_open();
	pthread_join(thread, NULL);
	print_time("taken behind the work", waiting.got, pages, since);
	assert_int_equal(waiting.got, pages);
	assert_int_equal(take(1, 0), 0);
}

/* Continue the owner, which checks its memory. */
static inline struct found owner_returns(const struct kind *kind)
{
	struct found found = {0};

	taken_spoil();
	if (kind->needs_room)
		taker_free_all();
	owner_ask('l', &found, sizeof(found));
	printf("    the owner finds %u kept, %u lost, %u wrong\n", found.kept, found.lost, found.wrong);
	assert_int_equal(found.wrong, 0);
	assert_int_equal(found.kept + found.lost, owner_says.pages);
	return found;
}

static inline void expect_content(const struct kind *kind, bool all_taken)
{
	struct found found;

	if (kind->content == GONE)
		return;
	found = owner_returns(kind);
	if (kind->content != KEPT)
		assert_int_equal(found.lost, 0);
	else if (all_taken)
		assert_int_equal(found.kept, 0);
	else if (!kind->whole)
		assert_true(found.kept >= owner_says.pages / 2);
}

/* Take part of the memory, if the kind permits it, and continue the owner. */
static inline void run_back(const struct kind *kind)
{
	uint32_t quarter = owner_says.pages / 4;

	gates_open();
	work_await();
	if (kind->gets[IDLE] != NONE)
		assert_int_equal(take(quarter, ALL_MS), quarter);
	expect_content(kind, false);
}

static inline void enter(const struct kind *kind, enum owner_state state)
{
	if (state == IDLE || (state == STOPPED && kind->work_copies)) {
		gates_open();
		work_await();
	}
	if (state == STOPPED) {
		owner_stop();
		work_end();
	} else if (state == KILLED) {
		owner_kill();
	}
}

static inline void run_state(const struct kind *kind, enum owner_state state)
{
	enum gets gets = kind->gets[state];

	enter(kind, state);
	if (gets == ALL)
		expect_all(owner_says.pages, state != KILLED);
	else if (gets == NONE)
		expect_none();
	else
		expect_when_done(kind, owner_says.pages);
	if (state == KILLED || state == HANGING)
		return;
	if (state == STOPPED)
		kill(owner_pid, SIGCONT);
	gates_open();
	expect_content(kind, gets != NONE);
}

/* Delete the objects at the end of the cell, because objects outlive their owner. */
static inline void objects_delete(struct gpool *pool)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0;

	while (gpool_object_next(pool, &cursor, &info) == 0) {
		int error = info.state == GPOOL_OBJECT_CURRENT ? gpool_object_delete(pool, info.name, info.version) : 0;

		assert_true(error == 0 || error == -ENOENT || error == -ESTALE);
	}
}

static inline void taker_open(const struct kind *kind)
{
	taker = open_as(0, kind->in_second_pool ? second_pool : NULL, NULL);
	rest_count = taken_count = 0;
}

static int cell_end(void **state)
{
	(void)state;
	owner_kill();
	if (!taker)
		return -1;
	gpool_close(taker);
	/* At the end of each cell all pages must be free again. */
	for (int second = 0; second < 2; second++) {
		taker = NULL;
		struct gpool_options options = harness_options(&harness);

		options.pool = second ? second_pool : NULL;
		options.flags = GPOOL_OPEN_ADMIN;
		if (gpool_open(&options, &taker))
			break;
		objects_delete(taker);
		for (int tries = 0; pages_free() != gpool_page_count(taker) && tries < AWAIT_TRIES; tries++)
			poll(NULL, 0, AWAIT_STEP_MS);
		if (pages_free() != gpool_page_count(taker)) {
			print_error("%u of %u pages are free at the end\n", pages_free(), gpool_page_count(taker));
			gpool_close(taker);
			taker = NULL;
			return -1;
		}
		gpool_close(taker);
	}
	taker = NULL;
	return harness_check(&harness) ? -1 : 0;
}

static void test_cell(void **state)
{
	const struct cell *cell = *state;
	struct report done;

	alarm(STUCK_SECONDS);
	owner_start(cell->kind);
	taker_open(cell->kind);
	rest_take();
	owner_ask('g', &done, sizeof(done));
	owner_says = done;
	if (cell->state == BACK)
		run_back(cell->kind);
	else
		run_state(cell->kind, cell->state);
	alarm(0);
}

/* ---- the program ---- */

static inline int table_print(const struct kind *kinds, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		printf("| %s |", kinds[i].name);
		for (int state = 0; state <= KILLED; state++)
			printf(" %s |", gets_words[kinds[i].gets[state]]);
		printf(" %s |\n", content_words[kinds[i].content]);
	}
	return 0;
}

static inline size_t cells_make(const struct kind *kinds, size_t count, struct cell *cells, struct CMUnitTest *tests)
{
	size_t made = 0;

	for (size_t i = 0; i < count; i++)
		for (int state = 0; state < STATES; state++) {
			struct cell *cell = &cells[made];

			if (state == BACK && kinds[i].content == GONE)
				continue;
			assert_true(made < CELLS_MAX);
			*cell = (struct cell){.kind = &kinds[i], .state = (enum owner_state)state};
			snprintf(cell->name, sizeof(cell->name), "%s / %s", kinds[i].name, state_names[state]);
			tests[made++] = (struct CMUnitTest){cell->name, test_cell, NULL, cell_end, cell};
		}
	return made;
}

static int sharing_main(int argc, char **argv, const char *const *arguments, const struct kind *kinds, size_t count)
{
	static struct cell cells[CELLS_MAX];
	static struct CMUnitTest tests[CELLS_MAX];
	size_t made;
	int failed;

	if (argc > 1 && !strcmp(argv[1], "--table"))
		return table_print(kinds, count);
	made = cells_make(kinds, count, cells, tests);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	harness_start(&harness, arguments);
	failed = _cmocka_run_group_tests("sharing", tests, made, NULL, NULL);
	return harness_stop(&harness) || failed;
}

#endif
