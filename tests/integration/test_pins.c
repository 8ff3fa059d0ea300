/*
 * test_pins.c - pins that are held for longer than pins.max_duration.
 *
 * Goal: each of the three actions on a leaked pin has its documented effect and no other. The pin is detected once, and
 * its holder is named. A touch in time prevents the detection. A revoked pin leaves a block that can be evicted and a
 * program that can continue. A session that was disconnected keeps its pages until its process ends.
 *
 * Method: each test starts a gpoold with a short leak time. The test polls the state until it is as expected, and
 * counts events up to one that a reload triggers. A second block, which leaks too, shows when the first was examined.
 *
 * Requirements: U6.
 */
#include "client/gpool.h"
#include "client/core/pool.h"
#include "client/core/request.h"
#include "proto/codec.h"
#include "tests/lib/await.h"
#include "tests/lib/harness.h"
#include "shm/monotonic.h"

#include <errno.h>
#include <poll.h>
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
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 64, ANSWER_MS = AWAIT_MS, STUCK_SECONDS = 1000, EVENTS_MAX = 256 };

#define POOL "name=p0,backend=host,size=32MiB,page_size=512KB,reserved=0"
#define QUIET "--set", "eviction.start=100", "--set", "eviction.stop=99"

static struct harness harness;
static struct gpool *looker; /* an admin session, for requests and events */

/* ---- requests ---- */

static uint8_t reply_bytes[MSG_BYTES_MAX];

#define ASK(question, request, answer, into) \
	do { \
		uint8_t message_[MSG_LARGEST_##question]; \
		int length_ = msg_encode_##question(request, 0, NULL, message_, sizeof(message_)); \
		length_ = pool_request( \
			looker, message_, (size_t)length_, reply_bytes, sizeof(reply_bytes), ANSWER_MS, NULL); \
		assert_true(length_ > 0); \
		assert_int_equal(msg_decode_##answer(into, reply_bytes, (size_t)length_), 0); \
	} while (0)

static const struct msg_status_reply *status(void)
{
	static struct msg_status_reply reply;
	const struct msg_status_request request = {0};

	ASK(status_request, &request, status_reply, &reply);
	assert_int_equal(reply.pools_count, 1);
	return &reply;
}

static const struct msg_pins_reply *pins(bool leaked_only)
{
	static struct msg_pins_reply reply;
	const struct msg_pins_request request = {.leaked_only = leaked_only};

	ASK(pins_request, &request, pins_reply, &reply);
	return &reply;
}

static const struct msg_pin_entry *pin_at(const struct msg_pins_reply *reply, uint32_t page)
{
	for (uint32_t i = 0; i < reply->pins_count; i++)
		if (reply->pins[i].page == page)
			return &reply->pins[i];
	return NULL;
}

static const struct msg_client_entry *client(uint32_t session)
{
	static struct msg_clients_reply reply;
	const struct msg_clients_request request = {.pool = ""};

	ASK(clients_request, &request, clients_reply, &reply);
	for (uint32_t i = 0; i < reply.clients_count; i++)
		if (reply.clients[i].session == session)
			return &reply.clients[i];
	return NULL;
}

/* Wait for steps of the agent's clock, at which it does its housekeeping. */
static void await_ticks(int count)
{
	const struct pool_header *header = pool_view(looker)->header;

	while (count-- > 0) {
		uint32_t was = atomic_load(&header->clock_ms);

		AWAIT(atomic_load(&header->clock_ms) != was);
	}
}

/* ---- events ---- */

static struct gpool_event events[EVENTS_MAX];
static uint32_t event_count;

/* Collect the events so far, in order. */
static void events_collect(void)
{
	const struct msg_reload_request request = {0};
	struct gpool_event event = GPOOL_EVENT_INIT;
	struct msg_done_reply done;

	ASK(reload_request, &request, done_reply, &done);
	for (;;) {
		assert_int_equal(gpool_event_next(looker, ANSWER_MS, &event), 0);
		if (event.kind == GPOOL_EVENT_RELOAD)
			return;
		assert_true(event_count < EVENTS_MAX);
		events[event_count++] = event;
	}
}

static uint32_t events_of(uint32_t kind, uint64_t value)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < event_count; i++)
		found += events[i].kind == kind && events[i].value == value;
	return found;
}

/* A new subscriber may miss events, so trigger them until one is received. */
static void events_listen(void)
{
	struct gpool_event event = GPOOL_EVENT_INIT;

	do
		gpool_close(harness_open(&harness));
	while (gpool_event_next(looker, 20, &event));
	events_collect();
	event_count = 0;
}

/* ---- fixture ---- */

static void start(const char *const *arguments)
{
	struct gpool_options options;

	alarm(STUCK_SECONDS);
	harness_start(&harness, arguments);
	options = harness_options(&harness);
	options.flags = GPOOL_OPEN_ADMIN;
	assert_int_equal(gpool_open(&options, &looker), 0);
	event_count = 0;
}

static int stop(void **state)
{
	uint32_t findings = harness.pid > 0 ? harness_check(&harness) : 0;

	(void)state;
	gpool_close(looker);
	looker = NULL;
	alarm(0);
	return harness_stop(&harness) || findings ? -1 : 0;
}

static struct gpool_block alloc(struct gpool *pool, uint32_t page_count)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block = {0};

	options.owner_id = 77;
	assert_int_equal(gpool_alloc(pool, page_count, &options, &block), 0);
	return block;
}

static uint32_t pins_on(const struct gpool *pool, const struct gpool_block *block)
{
	return atomic_load(&pool->session.pins[block->page]);
}

/* ---- report ---- */

static const char *const report[] = {
	"--pool", POOL, QUIET, "--set", "pins.max_duration=300ms", "--set", "pins.leaked=report", NULL};

static void test_a_leak_is_reported_once_with_its_holder(void **state)
{
	const struct msg_pins_reply *reply;
	struct gpool_options options;
	struct gpool_block block;
	struct gpool *pool;

	(void)state;
	start(report);
	events_listen();
	options = harness_options(&harness);
	options.name = "forgetful";
	assert_int_equal(gpool_open(&options, &pool), 0);
	block = alloc(pool, 2);
	reply = pins(false);
	assert_int_equal(reply->pins_count, 1);
	assert_int_equal(reply->pins[0].leaked, 0);

	/* Long after its detection the pin has been reported only once. */
	AWAIT((reply = pins(true))->pins_count == 1 && reply->pins[0].age_ms > 1500);
	assert_int_equal(reply->pins[0].page, block.page);
	assert_int_equal(reply->pins[0].page_count, 2);
	assert_int_equal(reply->pins[0].pins, 1);
	assert_int_equal(reply->pins[0].leaked, 1);
	assert_int_equal(reply->pins[0].session, gpool_session(pool));
	assert_int_equal(reply->pins[0].pid, getpid());
	assert_int_equal(reply->pins[0].owner_id, 77);
	assert_string_equal(reply->pins[0].name, "forgetful");
	assert_int_equal(status()->pools[0].leaked_pins, 1);
	events_collect();
	assert_int_equal(events_of(GPOOL_EVENT_LEAKED_PIN, block.page), 1);
	for (uint32_t i = 0; i < event_count; i++)
		if (events[i].kind == GPOOL_EVENT_LEAKED_PIN) {
			assert_int_equal(events[i].session, gpool_session(pool));
			assert_non_null(strstr(events[i].text, "forgetful"));
		}

	/* The action is only a report: the pin is kept. */
	assert_int_equal(harness_evict(&harness, gpool_session(pool), 1), 0);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	assert_int_equal(pins(false)->pins_count, 0);
	await_ticks(2);
	/* Another leaked pin of the same block is reported again. */
	assert_int_equal(gpool_pin(pool, &block), 0);
	AWAIT(status()->pools[0].leaked_pins == 2);
	events_collect();
	assert_int_equal(events_of(GPOOL_EVENT_LEAKED_PIN, block.page), 2);
	assert_int_equal(gpool_free(pool, &block), 0);
	gpool_close(pool);
}

static const char *const patient[] = {
	"--pool", POOL, QUIET, "--set", "pins.max_duration=1s", "--set", "pins.leaked=report", NULL};

/* Return false if this process got too little CPU time and a touch was late. */
static bool touches_prevent_it(void)
{
	struct gpool_block touched, pinned, forgotten;
	const struct msg_pins_reply *reply;
	const struct msg_pin_entry *entry;
	struct gpool *pool = harness_open(&harness);
	uint64_t last = monotonic_ms(), before;
	bool in_time;
	uint32_t age;

	touched = alloc(pool, 1);
	pinned = alloc(pool, 1);
	forgotten = alloc(pool, 1);
	/* The untouched pin serves as the clock. */
	do {
		poll(NULL, 0, AWAIT_STEP_MS);
		before = monotonic_ms();
		assert_int_equal(gpool_touch(pool, &touched), 0);
		assert_int_equal(gpool_pin(pool, &pinned), 0); /* another pin refreshes the first one as well */
		assert_int_equal(gpool_unpin(pool, &pinned), 0);
		reply = pins(false);
		entry = pin_at(reply, forgotten.page);
		assert_non_null(entry);
		age = entry->age_ms;
		assert_int_equal(entry->leaked, age > 1000);
		in_time = monotonic_ms() - last < 900;
		last = before;
		if (!in_time)
			break;
		assert_int_equal(pin_at(reply, touched.page)->pins, 1);
		assert_int_equal(pin_at(reply, touched.page)->leaked, 0);
		assert_int_equal(pin_at(reply, pinned.page)->leaked, 0);
	} while (age <= 2500);
	if (in_time)
		assert_int_equal(status()->pools[0].leaked_pins, 1);
	events_collect();
	if (in_time) {
		assert_int_equal(events_of(GPOOL_EVENT_LEAKED_PIN, forgotten.page), 1);
		assert_int_equal(events_of(GPOOL_EVENT_LEAKED_PIN, touched.page), 0);
		assert_int_equal(events_of(GPOOL_EVENT_LEAKED_PIN, pinned.page), 0);
	}
	gpool_close(pool);
	return in_time;
}

static void test_a_touch_prevents_it(void **state)
{
	int tries = 30;

	(void)state;
	start(patient);
	events_listen();
	while (!touches_prevent_it()) {
		if (--tries == 0) {
			print_message("this machine is too busy for a touch every second\n");
			skip();
		}
		event_count = 0;
	}
}

/*
 * While an agent was stopped, starved or in a debugger, it has not advanced the clock of the touch stamps. Pins that
 * were touched during that time are not leaked.
 */
static void test_a_suspended_agent_reports_no_leaks(void **state)
{
	struct gpool_block block;
	struct gpool *pool;
	uint64_t end, touched, longest;
	uint32_t leaked = 0;
	pid_t agent;

	(void)state;
	start(report);
	pool = harness_open(&harness);
	block = alloc(pool, 1);
	agent = (pid_t)status()->agent_pid;
	assert_true(agent > 1);
	/* If this process got no CPU time, a touch was late: repeat it. */
	do {
		assert_int_equal(gpool_touch(pool, &block), 0);
		leaked = status()->pools[0].leaked_pins;
		assert_int_equal(kill(agent, SIGSTOP), 0);
		for (end = monotonic_ms() + 900; monotonic_ms() < end; poll(NULL, 0, AWAIT_STEP_MS))
			if (gpool_touch(pool, &block))
				break;
		assert_int_equal(gpool_touch(pool, &block), 0);
		touched = monotonic_ms();
		assert_int_equal(kill(agent, SIGCONT), 0);
		assert_true(touched >= end);
		longest = 0;
		for (int i = 0; i < 5; i++) {
			await_ticks(1);
			assert_int_equal(gpool_touch(pool, &block), 0);
			longest = monotonic_ms() - touched > longest ? monotonic_ms() - touched : longest;
			touched = monotonic_ms();
		}
		leaked = status()->pools[0].leaked_pins - leaked;
	} while (leaked && longest > 200);
	assert_int_equal(leaked, 0);
	gpool_close(pool);
}

/* ---- unpin ---- */

static const char *const unpin[] = {
	"--pool", POOL, QUIET, "--set", "pins.max_duration=500ms", "--set", "pins.leaked=unpin", NULL};

/* Wait until the agent has checked all existing pins. */
static void await_leaks(struct gpool *pool)
{
	struct gpool_block marker = alloc(pool, 1);

	AWAIT(pins_on(pool, &marker) == 0);
	await_ticks(2);
	assert_int_equal(gpool_discard(pool, &marker), 0);
}

static void all_can_be_had(struct gpool *pool)
{
	struct gpool_block all = alloc(pool, PAGES);

	assert_int_equal(gpool_free(pool, &all), 0);
}

static void test_an_unpinned_block_can_be_evicted(void **state)
{
	struct gpool_block block;
	struct gpool *pool;
	uint64_t address, *word;

	(void)state;
	start(unpin);
	pool = harness_open(&harness);
	block = alloc(pool, 2);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	word = (uint64_t *)(uintptr_t)address;
	*word = block.tag;
	AWAIT(pins(false)->pins_count == 0);
	assert_int_equal(status()->pools[0].leaked_pins, 1);

	/* The unpin reports the revocation, and no content is lost. */
	assert_int_equal(gpool_unpin(pool, &block), -EINVAL);
	assert_int_equal(gpool_free(pool, &block), -EINVAL);
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_true(*word == block.tag);
	assert_int_equal(gpool_unpin(pool, &block), 0);

	assert_int_equal(harness_evict(&harness, gpool_session(pool), 1), 2);
	assert_int_equal(gpool_unpin(pool, &block), -ESTALE);
	assert_int_equal(gpool_free(pool, &block), -ESTALE);
	assert_int_equal(gpool_pin(pool, &block), -ESTALE);
	assert_int_equal(gpool_touch(pool, &block), -ESTALE);
	all_can_be_had(pool);
	gpool_close(pool);
}

/* A block is freed while a second session has a leaked pin on it. It must be freed when that last pin is revoked. */
static void test_a_freed_block_ends_with_its_leaked_pin(void **state)
{
	struct gpool_block block;
	struct gpool *pool;

	(void)state;
	start(unpin);
	pool = harness_open(&harness);
	block = alloc(pool, 2);
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	await_leaks(pool);
	all_can_be_had(pool);
	assert_int_equal(gpool_unpin(pool, &block), -ESTALE);
	gpool_close(pool);
}

/*
 * The fences of two streams are signaled in either order. No pin remains, and the agent evicts the block only after
 * both.
 */
static void test_fences_of_two_streams_keep_no_pin(void **state)
{
	struct gpool_fence fences[2];
	struct gpool_block block;
	struct gpool *pool;
	uint32_t stream;

	(void)state;
	start(unpin);
	pool = harness_open(&harness);
	for (int order = 0; order < 2; order++) {
		block = alloc(pool, 1);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
			assert_int_equal(gpool_fence_record(pool, stream, &fences[i]), 0);
		}
		assert_int_equal(gpool_pin(pool, &block), 0);
		assert_int_equal(gpool_unpin_after(pool, &block, fences[0]), 0);
		assert_int_equal(gpool_unpin_after(pool, &block, fences[1]), 0);
		assert_int_equal(pins_on(pool, &block), 0);
		assert_int_equal(gpool_fence_signal(pool, fences[order]), 0);
		harness_evict(&harness, gpool_session(pool), PAGES);
		assert_int_equal(gpool_touch(pool, &block), 0);
		assert_int_equal(gpool_fence_signal(pool, fences[!order]), 0);
		assert_true(harness_evict(&harness, gpool_session(pool), PAGES) >= 1);
		assert_int_equal(gpool_pin(pool, &block), -ESTALE);
	}
	gpool_close(pool);
}

/* The pins of pages that spans share, and of ranges, are the library's: they do not count as leaked. */
static void test_pages_of_the_library_do_not_leak(void **state)
{
	const struct msg_pins_reply *reply;
	struct gpool_range *range;
	struct gpool_span span;
	struct gpool *pool;
	uint64_t address;

	(void)state;
	start(unpin);
	pool = harness_open(&harness);
	assert_int_equal(gpool_span_alloc(pool, 1000, 0, &span), 0);
	assert_int_equal(gpool_range_reserve(pool, 2, NULL, &range), 0);
	assert_int_equal(gpool_range_commit(range, 0, 2, 0), 0);
	assert_int_equal(gpool_range_address(range, &address), 0);
	*(volatile uint64_t *)(uintptr_t)span.address = address;
	*(volatile uint64_t *)(uintptr_t)address = span.address;
	await_leaks(pool);
	assert_int_equal(status()->pools[0].leaked_pins, 1);
	assert_int_equal(pins(true)->pins_count, 0);
	reply = pins(false);
	assert_int_equal(reply->pins_count, 3);
	for (uint32_t i = 0; i < reply->pins_count; i++) {
		assert_int_equal(reply->pins[i].pins, 1);
		assert_int_equal(reply->pins[i].leaked, 0);
		assert_true(reply->pins[i].age_ms > 500);
	}
	harness_evict(&harness, gpool_session(pool), PAGES);
	assert_int_equal(*(volatile uint64_t *)(uintptr_t)span.address, address);
	assert_int_equal(*(volatile uint64_t *)(uintptr_t)address, span.address);
	assert_int_equal(gpool_span_free(pool, &span), 0);
	assert_int_equal(gpool_range_destroy(range), 0);
	all_can_be_had(pool);
	gpool_close(pool);
}

static void test_a_prepared_block_can_be_rolled_back_or_committed(void **state)
{
	struct gpool_block given_up, kept;
	struct gpool *pool;

	(void)state;
	start(unpin);
	pool = harness_open(&harness);
	assert_int_equal(gpool_prepare(pool, 2, NULL, &given_up), 0);
	assert_int_equal(gpool_prepare(pool, 2, NULL, &kept), 0);
	await_leaks(pool);
	/* A prepared block is not evicted, and its worker keeps its pin at any age. */
	harness_evict(&harness, gpool_session(pool), PAGES);
	assert_int_equal(gpool_rollback(pool, &given_up), 0);
	assert_int_equal(gpool_commit(pool, &kept, NULL), 0);
	assert_int_equal(gpool_free(pool, &kept), 0); /* a commit counts as use, so the pin is fresh */
	all_can_be_had(pool);
	gpool_close(pool);
}

/* ---- disconnect ---- */

static const char *const disconnect[] = {
	"--pool", POOL, QUIET, "--set", "pins.max_duration=500ms", "--set", "pins.leaked=disconnect", NULL};

/* Leak a pin, report the session, wait for a byte, report the agent's reply, and keep running. */
static _Noreturn void forgetful_main(int parent, pid_t expected)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_block block, more;
	struct gpool *pool;
	int answer[3];
	uint32_t session;
	char go;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != expected)
		_exit(1);
	options.name = "forgetful";
	if (gpool_open(&options, &pool) || gpool_alloc(pool, 3, NULL, &block))
		_exit(1);
	session = gpool_session(pool);
	if (write(parent, &session, sizeof(session)) != sizeof(session) || read(parent, &go, 1) != 1)
		_exit(1);
	answer[0] = gpool_alloc(pool, 1, NULL, &more);
	answer[1] = gpool_alloc(pool, PAGES / 2, NULL, &more);
	answer[2] = gpool_unpin(pool, &block);
	if (write(parent, answer, sizeof(answer)) != sizeof(answer))
		_exit(1);
	for (;;)
		pause();
}

static void test_a_disconnected_session_keeps_its_pages_until_its_end(void **state)
{
	const struct msg_client_entry *entry;
	struct gpool_block rest;
	uint32_t session = 0, leased, ended = 0;
	pid_t pid, self = getpid();
	int ends[2], answer[3];
	struct gpool *other;

	(void)state;
	start(disconnect);
	events_listen();
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	fflush(stdout);
	pid = fork();
	if (pid == 0)
		forgetful_main(ends[1], self);
	assert_true(pid > 1);
	assert_int_equal(read(ends[0], &session, sizeof(session)), sizeof(session));
	AWAIT((entry = client(session)) && entry->state == 1);
	leased = entry->leased_pages;
	assert_true(leased >= 3);
	AWAIT(status()->pools[0].quarantined_pages == leased);
	assert_int_equal(status()->pools[0].leaked_pins, 1);
	events_collect();
	for (uint32_t i = 0; i < event_count; i++)
		ended += events[i].kind == GPOOL_EVENT_DAMAGE && events[i].session == session &&
			strstr(events[i].text, "forgetful") && strstr(events[i].text, "max_duration");
	assert_int_equal(ended, 1);

	/* The session is notified, and its mapped pages are not lent. */
	assert_int_equal(write(ends[0], "g", 1), 1);
	assert_int_equal(read(ends[0], answer, sizeof(answer)), sizeof(answer));
	assert_int_equal(answer[0], -EPIPE);
	assert_int_equal(answer[1], -EPIPE);
	other = harness_open(&harness);
	assert_int_equal(gpool_alloc(other, PAGES - leased + 1, NULL, &rest), -ENOSPC);
	rest = alloc(other, PAGES - leased);
	assert_int_equal(gpool_free(other, &rest), 0);
	assert_int_equal(harness_check(&harness), 0);

	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	AWAIT(!client(session));
	all_can_be_had(other);
	close(ends[0]);
	close(ends[1]);
	gpool_close(other);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_a_leak_is_reported_once_with_its_holder, stop),
		cmocka_unit_test_teardown(test_a_touch_prevents_it, stop),
		cmocka_unit_test_teardown(test_a_suspended_agent_reports_no_leaks, stop),
		cmocka_unit_test_teardown(test_an_unpinned_block_can_be_evicted, stop),
		cmocka_unit_test_teardown(test_a_freed_block_ends_with_its_leaked_pin, stop),
		cmocka_unit_test_teardown(test_fences_of_two_streams_keep_no_pin, stop),
		cmocka_unit_test_teardown(test_pages_of_the_library_do_not_leak, stop),
		cmocka_unit_test_teardown(test_a_prepared_block_can_be_rolled_back_or_committed, stop),
		cmocka_unit_test_teardown(test_a_disconnected_session_keeps_its_pages_until_its_end, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
