/*
 * test_pins_crash.c - pins of content that the agent is evicting when it stops.
 *
 * Goal: a pin of a block or object that the agent examines waits until the agent has decided. If the content stays, the
 * pin succeeds. After pins.timeout it returns -ETIMEDOUT and leaves no pin behind, so the agent completes the eviction
 * when it continues. If the agent removes leaked pins, it keeps a pin that was added after the scan, or during the
 * removal.
 *
 * Method: the module of test_crash_points.c, in which the agent stops (SIGSTOP) instead of dying. It stops after the
 * store that marks the content, which is the first of the function that the test names. Before the agent removes leaked
 * pins, it reports them in leak_found(). To check what is visible before the time of a use, a test gets SIGSEGV at the
 * store of the time.
 *
 * Requirements: U6.
 */
#include "client/core/pool.h"
#include "client/object/object.h"
#include "shm/monotonic.h"
#include "shm/pins.h"
#include "tests/integration/crash_points.h"

#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>

enum { TIMEOUT_MS = 200 };

static struct gpool *pool;
static pid_t agent;
static pthread_t evictor;

static int begin_with(const char *setting, void **state)
{
	crash_setting = setting;
	if (crash_start(state))
		return -1;
	crash->signal = SIGSTOP;
	agent = (pid_t)status()->agent_pid;
	assert_true(agent > 1);
	pool = open_worker();
	return 0;
}

static int begin(void **state)
{
	return begin_with("pins.timeout=200ms", state);
}

static int begin_patient(void **state)
{
	return begin_with("pins.timeout=60s", state);
}

static int begin_leaky(void **state)
{
	static const char *const more[] = {"--set", "pins.leaked=unpin", "--set", "pins.max_duration=1s"};

	memcpy(crash_more, more, sizeof(more));
	return begin_patient(state);
}

static int end(void **state)
{
	atomic_store(countdown, 0);
	if (agent > 1)
		kill(agent, SIGCONT);
	gpool_close(pool);
	pool = NULL;
	memset(crash_more, 0, sizeof(crash_more));
	return crash_stop(state);
}

/* Return the state of a process or thread, as in proc(5). */
static char state_of(pid_t pid)
{
	char path[64], text[512], *name_end;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file_read(path, text, sizeof(text));
	name_end = strrchr(text, ')');
	return name_end ? name_end[2] : '\0';
}

/* Let the agent stop at the n-th crash point of this function. */
static void stop_at(const char *function, int64_t n)
{
	snprintf(crash->function, sizeof(crash->function), "%s", function);
	atomic_store(countdown, n);
}

static void await_stop(void)
{
	AWAIT(atomic_load(countdown) == 0 && state_of(agent) == 'T');
}

/* Let the agent run until it has reached the n-th crash point of this function. */
static void run_until(const char *function, int64_t n)
{
	stop_at(function, n);
	assert_int_equal(kill(agent, SIGCONT), 0);
	await_stop();
}

static void *evict_all(void *unused)
{
	(void)unused;
	try_evict(admin, "", PAGES, NULL);
	return NULL;
}

/* Begin an eviction, and wait until the agent has stopped in this function. */
static void evict_until(const char *function)
{
	stop_at(function, 1);
	assert_int_equal(pthread_create(&evictor, NULL, evict_all, NULL), 0);
	await_stop();
}

static void eviction_completes(void)
{
	assert_int_equal(kill(agent, SIGCONT), 0);
	assert_int_equal(pthread_join(evictor, NULL), 0);
}

static void test_block(void **state)
{
	struct gpool_block block = alloc(pool, 2);
	uint64_t begun_ms;

	(void)state;
	assert_int_equal(gpool_unpin(pool, &block), 0);
	evict_until("evict_mark");
	assert_int_equal(page_word_state(atomic_load(&pool->pages[block.page])), PAGE_EVICTING);
	begun_ms = monotonic_ms();
	assert_int_equal(gpool_pin(pool, &block), -ETIMEDOUT);
	assert_true(monotonic_ms() - begun_ms >= TIMEOUT_MS);
	assert_int_equal(gpool_touch(pool, &block), -ETIMEDOUT);
	assert_int_equal(pin_count(&pool->session, block.page), 0);
	eviction_completes();
	assert_int_equal(gpool_pin(pool, &block), -ESTALE);
}

/* ---- objects ---- */

static struct gpool_object *published(void)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	uint64_t version;
	uint32_t index;

	options.memory_class = GPOOL_OBJECT_PINNABLE;
	assert_int_equal(gpool_object_create(pool, "weights", &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 2, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	return object;
}

/* Begin the eviction of the only object, and wait until the agent has stopped after marking it. */
static void object_evict_until_marked(const struct gpool_object *object)
{
	evict_until("object_set_state");
	assert_int_equal(atomic_load(&pool->segment.objects[object->number].state), OBJECT_LEAVING);
}

static uint32_t pins_of(const struct gpool_object *object)
{
	return pin_count(&object->pool->session, object->manifest.runs[0].first);
}

static void test_object(void **state)
{
	struct gpool_object *object = published();
	uint64_t begun_ms;

	(void)state;
	object_evict_until_marked(object);
	begun_ms = monotonic_ms();
	assert_int_equal(gpool_object_pin(object), -ETIMEDOUT);
	assert_true(monotonic_ms() - begun_ms >= TIMEOUT_MS);
	assert_int_equal(pins_of(object), 0);
	eviction_completes();
	assert_int_equal(gpool_object_pin(object), -ESTALE);
	assert_int_equal(gpool_object_close(object), 0);
}

static _Atomic pid_t pinner;

static void *pin(void *object)
{
	atomic_store(&pinner, (pid_t)syscall(SYS_gettid));
	return (void *)(intptr_t)gpool_object_pin(object);
}

/* Another session has added a pin before the mark, so the object stays. */
static void test_object_stays(void **state)
{
	struct gpool_object *object = published(), *other;
	struct gpool *reader = open_worker();
	pthread_t thread;
	void *result;

	(void)state;
	assert_int_equal(gpool_object_open(reader, "weights", NULL, &other), 0);
	object_evict_until_marked(object);
	object_pin_raise(other);
	assert_int_equal(pthread_create(&thread, NULL, pin, object), 0);
	AWAIT(atomic_load(&pinner) && state_of(atomic_load(&pinner)) == 'S');
	eviction_completes();
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_int_equal((intptr_t)result, 0);
	assert_int_equal(pins_of(object), 1);
	assert_int_equal(gpool_object_unpin(object), 0);
	assert_int_equal(gpool_object_unpin(other), 0);
	assert_int_equal(gpool_object_pin(object), 0);
	assert_int_equal(gpool_object_unpin(object), 0);
	assert_int_equal(gpool_object_close(other), 0);
	assert_int_equal(gpool_object_close(object), 0);
	gpool_close(reader);
}

/* ---- the removal of leaked pins ---- */

static void leak(uint32_t page)
{
	atomic_store(&pool->session.touch[page], pool_clock(pool) - 3600 * 1000);
}

static void test_pin_after_the_scan(void **state)
{
	struct gpool_block block = alloc(pool, 1);

	(void)state;
	leak(block.page);
	run_until("leak_found", 1);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	assert_int_equal(gpool_pin(pool, &block), 0);
	run_until("evict_unmark", 1);
	assert_int_equal(gpool_unpin(pool, &block), 0);
}

static void test_object_pin_after_the_scan(void **state)
{
	struct gpool_object *object = published();

	(void)state;
	assert_int_equal(gpool_object_pin(object), 0);
	leak(object->manifest.runs[0].first);
	run_until("leak_found", 1);
	assert_int_equal(gpool_object_unpin(object), 0);
	assert_int_equal(gpool_object_pin(object), 0);
	run_until("object_set_state", 2);
	assert_int_equal(gpool_object_unpin(object), 0);
	assert_int_equal(kill(agent, SIGCONT), 0);
	assert_int_equal(gpool_object_close(object), 0);
}

static void *pin_block(void *block)
{
	atomic_store(&pinner, (pid_t)syscall(SYS_gettid));
	return (void *)(intptr_t)gpool_pin(pool, block);
}

/* Start a thread that pins, and wait until it waits for the agent. */
static pthread_t pin_begins(void *(*run)(void *), void *argument)
{
	pthread_t thread;

	atomic_store(&pinner, 0);
	assert_int_equal(pthread_create(&thread, NULL, run, argument), 0);
	AWAIT(atomic_load(&pinner) && state_of(atomic_load(&pinner)) == 'S');
	return thread;
}

static void pin_ends(pthread_t thread)
{
	void *result;

	assert_int_equal(pthread_join(thread, &result), 0);
	assert_int_equal((intptr_t)result, 0);
}

static void test_pin_during_the_removal(void **state)
{
	struct gpool_block block = alloc(pool, 1);
	pthread_t thread;

	(void)state;
	leak(block.page);
	run_until("evict_mark", 1);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	thread = pin_begins(pin_block, &block);
	run_until("evict_unmark", 1);
	pin_ends(thread);
	assert_int_equal(gpool_unpin(pool, &block), 0);
}

static void test_object_pin_during_the_removal(void **state)
{
	struct gpool_object *object = published();
	pthread_t thread;

	(void)state;
	assert_int_equal(gpool_object_pin(object), 0);
	leak(object->manifest.runs[0].first);
	run_until("object_set_state", 1);
	assert_int_equal(gpool_object_unpin(object), 0);
	thread = pin_begins(pin, object);
	run_until("object_set_state", 1);
	pin_ends(thread);
	assert_int_equal(gpool_object_unpin(object), 0);
	assert_int_equal(kill(agent, SIGCONT), 0);
	assert_int_equal(gpool_object_close(object), 0);
}

/* ---- the time of a use ---- */

enum { TOUCH_BYTES = 4096 };

static struct {
	uint32_t stores, pins;
	uint64_t tag;
} seen; /* at the store of a time */

static void time_is_stored(int number, siginfo_t *info, void *context)
{
	size_t page = (size_t)((_Atomic uint32_t *)info->si_addr - pool->session.touch);

	(void)number;
	(void)context;
	if (page >= PAGES || mprotect(pool->session.touch, TOUCH_BYTES, PROT_READ | PROT_WRITE))
		abort();
	seen.stores++;
	seen.pins = pin_count(&pool->session, (uint32_t)page);
	seen.tag = atomic_load(&pool->session.blocks[page].tag);
}

static void watch(void)
{
	seen.stores = 0;
	assert_int_equal(mprotect(pool->session.touch, TOUCH_BYTES, PROT_READ), 0);
}

/* The agent could remove a pin that it sees with an old time. */
static void test_time_is_stored_before_a_pin(void **state)
{
	const struct sigaction action = {.sa_sigaction = time_is_stored, .sa_flags = SA_SIGINFO};
	struct gpool_object *object = published();
	struct gpool_block block;
	struct sigaction before;

	(void)state;
	assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
	watch();
	block = alloc(pool, 1);
	assert_int_equal(seen.stores, 1);
	assert_false(block_tag_is_block(seen.tag));
	assert_int_equal(gpool_unpin(pool, &block), 0);
	watch();
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(seen.stores, 1);
	assert_int_equal(seen.pins, 0);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	watch();
	assert_int_equal(gpool_touch(pool, &block), 0);
	assert_int_equal(seen.stores, 1);
	assert_int_equal(seen.pins, 0);
	watch();
	assert_int_equal(gpool_object_pin(object), 0);
	assert_int_equal(seen.stores, 1);
	assert_int_equal(seen.pins, 0);
	assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
	assert_int_equal(gpool_object_unpin(object), 0);
	assert_int_equal(gpool_object_close(object), 0);
}

/* A failed pin does not change the time of the block that is now at the place of the handle. */
static void test_failed_pin_stores_no_time(void **state)
{
	struct gpool_block freed = alloc(pool, 1), block;
	uint32_t time;

	(void)state;
	assert_int_equal(gpool_free(pool, &freed), 0);
	block = alloc(pool, 1);
	assert_int_equal(block.page, freed.page);
	leak(block.page);
	time = atomic_load(&pool->session.touch[block.page]);
	assert_int_equal(gpool_pin(pool, &freed), -ESTALE);
	assert_int_equal(gpool_touch(pool, &freed), -ESTALE);
	assert_int_equal(atomic_load(&pool->session.touch[block.page]), time);
	assert_int_equal(gpool_free(pool, &block), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_block, begin, end),
		cmocka_unit_test_setup_teardown(test_object, begin, end),
		cmocka_unit_test_setup_teardown(test_object_stays, begin_patient, end),
		cmocka_unit_test_setup_teardown(test_pin_after_the_scan, begin_leaky, end),
		cmocka_unit_test_setup_teardown(test_object_pin_after_the_scan, begin_leaky, end),
		cmocka_unit_test_setup_teardown(test_pin_during_the_removal, begin_leaky, end),
		cmocka_unit_test_setup_teardown(test_object_pin_during_the_removal, begin_leaky, end),
		cmocka_unit_test_setup_teardown(test_time_is_stored_before_a_pin, begin, end),
		cmocka_unit_test_setup_teardown(test_failed_pin_stores_no_time, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, crash_end);
}
