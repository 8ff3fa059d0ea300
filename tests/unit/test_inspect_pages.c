/*
 * test_inspect_pages.c - the agent's replies to requests that list pages, pins and sessions.
 *
 * Goal: the cost of a list is proportional to its length: the requests that continue it do not scan the pool again. A
 * new list shows the current state, and a page that has changed its session is not described with its former use.
 *
 * Method: a pool segment and sessions that the test fills, without other processes. The agent counts the pages that it
 * scans. A scan is repeated when it is older than FACTS_MS, so the permitted number depends on the time that the list
 * took.
 */
#include "agent/control/exchange.h"
#include "agent/control/page_facts.h"
#include "agent/object/objects.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 70000, SESSIONS = 600, WORKER = 1, LEASED = 60000, PINNED = 20000 };

static struct {
	struct agent agent;
	struct pool pool;
	struct objects objects;
	struct session *sessions; /* [SESSIONS]; the segment of all of them is that of WORKER */
	struct session_segment segment;
	int fds[2];
	uint8_t request[1024], reply[MSG_BYTES_MAX];
	uint64_t scanned, begin_ms;
} * it;

static int setup(void **state)
{
	static const struct pool_geometry geometry = {.name = "p",
		.backend = "host",
		.device = "d",
		.page_bytes = 1 << 20,
		.page_count = PAGES,
		.pages_per_handle = 1};

	(void)state;
	it = calloc(1, sizeof(*it));
	assert_non_null(it);
	it->sessions = calloc(SESSIONS, sizeof(*it->sessions));
	assert_non_null(it->sessions);
	config_defaults(&it->agent.config);
	assert_int_equal(pool_segment_create(&geometry, &it->pool.segment, &it->fds[0]), 0);
	assert_int_equal(session_segment_create(PAGES, 0, WORKER, 1, &it->segment, &it->fds[1]), 0);
	it->pool.ledger.header = calloc(1, sizeof(*it->pool.ledger.header));
	it->pool.ledger.pages = calloc(PAGES, sizeof(*it->pool.ledger.pages));
	assert_non_null(it->pool.ledger.header);
	assert_non_null(it->pool.ledger.pages);
	it->agent.pools[0] = &it->pool;
	it->agent.pool_count = 1;
	it->pool.agent = &it->agent;
	it->pool.page_count = PAGES;
	it->pool.objects = &it->objects;
	it->pool.tenants[0].config = &it->agent.config.tenants[0];
	it->pool.session_count = SESSIONS;
	for (uint32_t i = 0; i < SESSIONS; i++) {
		struct session *session = &it->sessions[i];

		*session = (struct session){.pool = &it->pool, .id = WORKER + i, .tenant = &it->pool.tenants[0]};
		session->segment = it->segment;
		it->pool.sessions[session->id] = session;
	}
	for (uint32_t page = 0; page < LEASED; page++) {
		it->pool.segment.pages[page] = page_word_make(PAGE_LEASED, WORKER, 2);
		it->segment.blocks[page].page_count = 1;
		it->segment.blocks[page].tag = (uint64_t)(page + 1) << BLOCK_SEQUENCE_SHIFT;
		it->segment.pins[page] = page < PINNED;
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	facts_drop(0);
	pool_segment_close(&it->pool.segment);
	session_segment_close(&it->segment);
	close(it->fds[0]);
	close(it->fds[1]);
	free(it->pool.ledger.header);
	free(it->pool.ledger.pages);
	free(it->sessions);
	free(it);
	return 0;
}

/* Answer a request of a session, and decode the reply. */
#define ASK(session_index, handler, name, message, reply_name, into) \
	do { \
		struct exchange exchange = {.agent = &it->agent, \
			.session = &it->sessions[session_index], \
			.request = it->request, \
			.reply = it->reply}; \
		int bytes = msg_encode_##name(message, 0, NULL, it->request, sizeof(it->request)); \
		assert_true(bytes > 0); \
		exchange.request_bytes = (size_t)bytes; \
		bytes = handler(&exchange); \
		assert_true(bytes > 0); \
		assert_int_equal(msg_decode_##reply_name(into, it->reply, (size_t)bytes), 0); \
	} while (0)

static void lists_begin(void)
{
	it->scanned = facts_scanned;
	it->begin_ms = clock_ms();
}

/* Check that at most `lists` scans were made since lists_begin(), and one more for each time that facts expired. */
static void lists_end(uint32_t lists)
{
	uint64_t scans = (facts_scanned - it->scanned) / PAGES, took = clock_ms() - it->begin_ms;

	assert_in_range(scans, 1, lists * (1 + took / FACTS_MS));
}

/* Request the next pages of a list, and check them. Return the page from which the list continues. */
static uint32_t pages_next(uint32_t session_index, uint32_t first)
{
	static struct msg_pages_reply reply;
	struct msg_pages_request request = {.first = first, .count = 1024};

	ASK(session_index, answer_pages, pages_request, &request, pages_reply, &reply);
	assert_int_equal(reply.page_count, PAGES);
	assert_int_equal(reply.pages_count, PAGES - first < 1024 ? PAGES - first : 1024);
	for (uint32_t i = 0; i < reply.pages_count; i++) {
		uint32_t page = first + i;

		assert_int_equal(reply.pages[i].page, page);
		assert_int_equal(reply.pages[i].state, page < LEASED ? PAGE_LEASED : PAGE_FREE);
		assert_int_equal(reply.pages[i].use, page < LEASED ? PAGE_USE_HEAD : PAGE_USE_NONE);
		assert_int_equal(reply.pages[i].pins, page < PINNED);
	}
	return first + reply.pages_count;
}

static void test_pages(void **state)
{
	(void)state;
	lists_begin();
	for (uint32_t page = 0; page < PAGES;)
		page = pages_next(0, page);
	lists_end(1);
}

static void test_page_kinds(void **state)
{
	static struct msg_page_kinds_reply reply;
	struct msg_page_kinds_request request = {.first = 0};
	uint32_t replies = 0;

	(void)state;
	lists_begin();
	for (; request.first < PAGES; request.first += reply.pages_count, replies++) {
		ASK(0, answer_page_kinds, page_kinds_request, &request, page_kinds_reply, &reply);
		assert_true(reply.pages_count > 0);
		for (uint32_t i = 0; i < reply.pages_count; i++)
			assert_int_equal(reply.pages[i].kind,
				request.first + i >= LEASED ? 0 : 16 + (request.first + i < PINNED));
	}
	assert_int_equal(replies, 3);
	lists_end(1);
}

static void test_pins(void **state)
{
	static struct msg_pins_reply reply;
	struct msg_pins_request request = {.first = 0};
	uint32_t count = 0;

	(void)state;
	lists_begin();
	do {
		ASK(0, answer_pins, pins_request, &request, pins_reply, &reply);
		for (uint32_t i = 0; i < reply.pins_count; i++)
			assert_int_equal(reply.pins[i].page, count++);
		request.first = reply.next;
		request.first_session = reply.next_session;
	} while (reply.next_session);
	assert_int_equal(count, PINNED);
	lists_end(1);
}

static void test_clients(void **state)
{
	static struct msg_clients_reply reply;
	struct msg_clients_request request = {.first = 0};
	uint32_t count = 0;

	(void)state;
	lists_begin();
	do {
		ASK(0, answer_clients, clients_request, &request, clients_reply, &reply);
		for (uint32_t i = 0; i < reply.clients_count; i++) {
			assert_int_equal(reply.clients[i].session, WORKER + count++);
			assert_int_equal(
				reply.clients[i].pinned_pages, reply.clients[i].session == WORKER ? PINNED : 0);
		}
		request.first = reply.next;
	} while (reply.next);
	assert_int_equal(count, SESSIONS);
	lists_end(1);
}

static void test_two_lists_at_once(void **state)
{
	(void)state;
	lists_begin();
	for (uint32_t page = 0, others = 0; page < PAGES; others = pages_next(1, others))
		page = pages_next(0, page);
	lists_end(2);
}

/* A request that does not continue a list is answered from a new scan. */
static void test_new_lists(void **state)
{
	static struct msg_pages_reply reply;
	struct msg_pages_request request = {.first = 1024, .count = 1};

	(void)state;
	pages_next(0, 0);
	it->segment.blocks[1024].tag = 0;
	ASK(1, answer_pages, pages_request, &request, pages_reply, &reply);
	assert_int_equal(reply.pages[0].use, PAGE_USE_NONE);
	it->segment.blocks[1024].tag = 1025 << BLOCK_SEQUENCE_SHIFT;
	ASK(1, answer_pages, pages_request, &request, pages_reply, &reply);
	assert_int_equal(reply.pages[0].use, PAGE_USE_HEAD);
	/* A session that repeats the beginning of its list begins a new one. */
	assert_int_equal(pages_next(0, 0), 1024);
	it->segment.blocks[3].tag = 0;
	request.first = 0;
	request.count = 1024;
	ASK(0, answer_pages, pages_request, &request, pages_reply, &reply);
	assert_int_equal(reply.pages[3].use, PAGE_USE_NONE);
}

static void test_changes_during_a_list(void **state)
{
	static struct msg_pages_reply reply;
	struct msg_pages_request request = {.first = 1024, .count = 1024};

	(void)state;
	pages_next(0, 0);
	/* Another session leases a page, one page is freed, and then the worker ends. */
	it->pool.segment.pages[1024] = page_word_make(PAGE_LEASED, WORKER + 1, 3);
	it->pool.segment.pages[1025] = page_word_make(PAGE_FREE, 0, 3);
	ASK(0, answer_pages, pages_request, &request, pages_reply, &reply);
	assert_int_equal(reply.pages[0].use, PAGE_USE_NONE);
	assert_int_equal(reply.pages[0].pins, 0);
	assert_int_equal(reply.pages[1].use, PAGE_USE_NONE);
	assert_int_equal(reply.pages[1].state, PAGE_FREE);
	assert_int_equal(reply.pages[2].use, PAGE_USE_HEAD);
	assert_int_equal(reply.pages[2].pins, 1);
	it->pool.sessions[WORKER] = NULL;
	it->pool.session_count--;
	request.first = 2048;
	ASK(0, answer_pages, pages_request, &request, pages_reply, &reply);
	assert_int_equal(reply.pages[0].pins, 0);
	/* The end of the session that lists releases the facts: the next request of its list scans again. */
	facts_session_part.ending(&it->sessions[0]);
	lists_begin();
	request.first = 3072;
	ASK(0, answer_pages, pages_request, &request, pages_reply, &reply);
	assert_int_equal(facts_scanned - it->scanned, PAGES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_pages, setup, teardown),
		cmocka_unit_test_setup_teardown(test_page_kinds, setup, teardown),
		cmocka_unit_test_setup_teardown(test_pins, setup, teardown),
		cmocka_unit_test_setup_teardown(test_clients, setup, teardown),
		cmocka_unit_test_setup_teardown(test_two_lists_at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_new_lists, setup, teardown),
		cmocka_unit_test_setup_teardown(test_changes_during_a_list, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
