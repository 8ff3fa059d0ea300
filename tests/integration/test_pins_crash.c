/*
 * test_pins_crash.c - pins of content that the agent is evicting when it stops.
 *
 * Goal: a pin of a block or object that the agent examines waits until the agent has decided. If the content stays, the
 * pin succeeds. After pins.timeout it returns -ETIMEDOUT and leaves no pin behind, so the agent completes the eviction
 * when it continues.
 *
 * Method: the module of test_crash_points.c, in which the agent stops (SIGSTOP) instead of dying. It stops after the
 * store that marks the content, which is the first of the function that the test names.
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

static int end(void **state)
{
	atomic_store(countdown, 0);
	if (agent > 1)
		kill(agent, SIGCONT);
	gpool_close(pool);
	pool = NULL;
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

static void *evict_all(void *unused)
{
	(void)unused;
	try_evict(admin, "", PAGES, NULL);
	return NULL;
}

/* Begin an eviction, and wait until the agent has stopped in this function. */
static void evict_until(const char *function)
{
	snprintf(crash->function, sizeof(crash->function), "%s", function);
	atomic_store(countdown, 1);
	assert_int_equal(pthread_create(&evictor, NULL, evict_all, NULL), 0);
	AWAIT(state_of(agent) == 'T');
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
	evict_until("evict_block");
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_block, begin, end),
		cmocka_unit_test_setup_teardown(test_object, begin, end),
		cmocka_unit_test_setup_teardown(test_object_stays, begin_patient, end),
	};

	return cmocka_run_group_tests(tests, NULL, crash_end);
}
