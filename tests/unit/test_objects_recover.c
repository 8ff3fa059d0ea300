/*
 * test_objects_recover.c - objects after the death of an agent between any two of its stores.
 *
 * Method: a real pool segment and ledger, with one object that is current (and has a reader or not) and another version
 * of it that is being published. The test makes the stores of a publication up to each point, in the order in which
 * objects_requests.c and objects.c make them. Then the successor starts, and must leave one of the two complete states,
 * with every page word and record consistent.
 */
#include "agent/agent.h"
#include "agent/keeper/channel.h"
#include "agent/object/objects.h"
#include "client/object/object.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 32, WRITER = 3, READER = 4, OLD = 1, NEW = 2, OLD_PAGES = 3, NEW_PAGES = 4 };

static const uint32_t old_pages[OLD_PAGES] = {8, 9, 10}, new_pages[NEW_PAGES] = {20, 21, 25, 26};

static struct agent *agent;
static struct pool *pool;
static struct module_start start;
static struct held held[2];
static struct config_pool pool_config = {.name = "p"};
static struct session writer, reader;
static int ends[2], fds[2];

static int setup(void **state)
{
	struct pool_geometry geometry = {.name = "p",
		.backend = "host",
		.device = "d",
		.page_bytes = 4096,
		.page_count = PAGES,
		.pages_per_handle = 1,
		.reserved_pages = 2};

	(void)state;
	agent = calloc(1, sizeof(*agent));
	pool = calloc(1, sizeof(*pool));
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	agent->keeper.fd = ends[0];
	agent->front.fd = -1;
	agent->start = &start;
	strcpy(agent->config.tenants[0].name, "t");
	pool->agent = agent;
	pool->config = &pool_config;
	pool->page_count = PAGES;
	pool->tenant_count = 1;
	pool->tenants[0].config = &agent->config.tenants[0];
	assert_int_equal(free_runs_init(&pool->free, 0, PAGES - 2) | free_runs_init(&pool->reserved, PAGES - 2, 2), 0);
	assert_int_equal(pool_segment_create(&geometry, &pool->segment, &pool->segment_fd), 0);
	assert_int_equal(ledger_create(PAGES, POOL_OBJECTS_LEAST, 0, 0, &pool->ledger, &fds[0]), 0);
	close(fds[0]);
	memset(held, 0, sizeof(held));
	start = (struct module_start){.held = held};
	writer = (struct session){.id = WRITER, .pool = pool};
	reader = (struct session){.id = READER, .pool = pool};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	objects_destroy(pool);
	free_runs_fini(&pool->free);
	free_runs_fini(&pool->reserved);
	close(pool->segment_fd);
	pool_segment_close(&pool->segment);
	ledger_close(&pool->ledger);
	close(ends[0]);
	close(ends[1]);
	free(pool);
	free(agent);
	return 0;
}

static void word(uint32_t page, enum page_state state, uint32_t owner)
{
	atomic_store(&pool->segment.pages[page],
		page_word_make(state, owner, page_word_generation(pool_word(pool, page)) + 1));
}

static int manifest_of(const uint32_t *pages, uint32_t count)
{
	struct manifest_run runs[8];
	uint32_t run_counts[8], sizes[8];
	struct manifest_runs all = {runs, run_counts, sizes, count, count};
	struct draft draft = {NULL};
	struct manifest manifest;
	int fd;

	for (uint32_t i = 0; i < count; i++) {
		runs[i] = (struct manifest_run){pages[i], 1, page_word_generation(pool_word(pool, pages[i]))};
		run_counts[i] = sizes[i] = 1;
	}
	assert_int_equal(draft_manifest(&draft, &all, 4096, &manifest, &fd), 0);
	manifest_close(&manifest);
	return fd;
}

static void record(uint32_t number, uint64_t version, uint32_t pages)
{
	struct object_record *to = object_record(pool, number);

	to->class = OBJECT_IMMUTABLE;
	to->version = version;
	to->pages = pages;
	to->allocations = pages;
	strcpy(to->name, "name");
	strcpy(to->tenant, "t");
}

static void state_of(uint32_t number, enum object_state state)
{
	if (state != OBJECT_NONE && pool_object_end(&pool->segment) <= number)
		atomic_store(&pool->segment.header->object_end, number + 1);
	atomic_store(&object_record(pool, number)->state, state);
}

static void read_by(uint32_t number, uint32_t session)
{
	atomic_fetch_or(&pool->ledger.objects[number].readers[session / 64], UINT64_C(1) << (session % 64));
}

static void hold(uint32_t number, int fd)
{
	held[start.held_count++] = (struct held){.kind = KEEP_OBJECT, .id = number, .fd_count = 1, .fds = {fd}};
}

/* Make the stores of a publication up to `step`. Return false if the publication has fewer. */
static bool publish_until(int step, bool old_read, bool manifest)
{
	int fd = manifest_of(new_pages, NEW_PAGES);

	record(NEW, 2, NEW_PAGES);
	atomic_store(&object_record(pool, NEW)->writer, WRITER);
	read_by(NEW, WRITER);
	if (manifest)
		hold(NEW, fd);
	else
		close(fd);
	if (step-- == 0)
		return true;
	state_of(NEW, OBJECT_PUBLISHING);
	for (uint32_t i = 0; i < NEW_PAGES; i++) {
		if (step-- == 0)
			return true;
		word(new_pages[i], PAGE_SHARED, NEW);
	}
	if (step-- == 0)
		return true;
	state_of(NEW, OBJECT_CURRENT);
	if (step-- == 0)
		return true;
	atomic_store(&object_record(pool, NEW)->writer, 0);
	if (step-- == 0)
		return true;
	state_of(OLD, OBJECT_OLD);
	if (step-- == 0 || old_read)
		return step < 0;
	state_of(OLD, OBJECT_ENDING);
	for (uint32_t i = 0; i < OLD_PAGES; i++) {
		if (step-- == 0)
			return true;
		word(old_pages[i], PAGE_FREE, 0);
	}
	if (step-- == 0)
		return true;
	state_of(OLD, OBJECT_NONE);
	return step-- == 0;
}

static void begin(bool writer_lives, bool old_read)
{
	/* No agent leaves such chains: a ring, and numbers without a record. A successor rebuilds them. */
	for (uint32_t i = 0; i < pool->segment.header->object_count; i++)
		atomic_store(&pool->segment.names[i], i % 3 ? OLD : 77777);
	atomic_store(&object_record(pool, OLD)->next, OLD);
	record(OLD, 1, OLD_PAGES);
	hold(OLD, manifest_of(old_pages, OLD_PAGES));
	for (uint32_t i = 0; i < OLD_PAGES; i++)
		word(old_pages[i], PAGE_SHARED, OLD);
	for (uint32_t i = 0; i < NEW_PAGES; i++)
		word(new_pages[i], PAGE_LEASED, WRITER);
	state_of(OLD, OBJECT_CURRENT);
	if (old_read)
		read_by(OLD, READER);
	pool->sessions[WRITER] = writer_lives ? &writer : NULL;
	pool->sessions[READER] = &reader;
	atomic_store(&pool->segment.header->counters[POOL_COUNT_PUBLICATIONS], 1);
}

/* Build the counters and the index from the page words, as pool_create() and sessions_restore() do. */
static void books_make(void)
{
	uint32_t counts[PAGE_STATES] = {0};

	for (uint32_t page = 0; page < PAGES; page++)
		counts[page_word_state(pool_word(pool, page))]++;
	for (int i = 0; i < PAGE_STATES; i++)
		atomic_store(&pool->segment.header->state_pages[i], counts[i]);
	pool->leased = counts[PAGE_LEASED];
	pool->tenants[0].leased = 0;
	for (uint32_t id = 0; id < POOL_SESSIONS; id++) {
		struct session *session = pool->sessions[id];

		if (!session)
			continue;
		session->tenant = &pool->tenants[0];
		session->leased = 0;
		for (uint32_t page = 0; page < PAGES; page++)
			session->leased += page_word_owner(pool_word(pool, page)) == id &&
				page_word_state(pool_word(pool, page)) == PAGE_LEASED;
		pool->tenants[0].leased += session->leased;
	}
}

/* Free the pages that the publisher still leased when it died, as at the end of its session. */
static void dead_buried(void)
{
	if (!pool->sessions[WRITER])
		pool_take_back_of(pool, WRITER);
}

static void found(void *context, const struct pool_finding *finding)
{
	(void)context;
	fprintf(stderr, "page %u: %s\n", finding->page, finding->text);
}

static void recover(void)
{
	static struct session_segment none;
	struct pool_check_session sessions[] = {{READER, &none}, {WRITER, &none}};
	struct pool_check check = {.found = found};
	uint32_t leased = 0;

	assert_int_equal(objects_create(pool), 0);
	books_make();
	objects_recover(pool);
	dead_buried();
	for (uint32_t page = 0; page < PAGES; page++)
		leased += page_word_state(pool_word(pool, page)) == PAGE_LEASED;
	assert_int_equal(pool->leased, leased);
	assert_int_equal(pool_check(&pool->segment, sessions, pool->sessions[WRITER] ? 2 : 1, &check), 0);
}

static uint32_t pages_in(const uint32_t *pages, uint32_t count, enum page_state state, uint32_t owner)
{
	uint32_t in = 0;

	for (uint32_t i = 0; i < count; i++)
		in += page_word_state(pool_word(pool, pages[i])) == state &&
			page_word_owner(pool_word(pool, pages[i])) == owner;
	return in;
}

static void assert_rolled_back(bool writer_lives)
{
	assert_int_equal(object_current(pool, 0, "name"), OLD);
	assert_int_equal(object_state(pool, NEW), OBJECT_NONE);
	assert_int_equal(pages_in(old_pages, OLD_PAGES, PAGE_SHARED, OLD), OLD_PAGES);
	assert_int_equal(writer_lives ? pages_in(new_pages, NEW_PAGES, PAGE_LEASED, WRITER)
				      : pages_in(new_pages, NEW_PAGES, PAGE_FREE, 0),
		NEW_PAGES);
	assert_int_equal(pool->tenants[0].leased, OLD_PAGES + (writer_lives ? NEW_PAGES : 0));
	assert_int_equal(writer.leased, writer_lives ? NEW_PAGES : writer.leased);
	assert_int_equal(pool->objects->of[NEW].fd, 0);
	assert_true(pool->objects->of[OLD].fd > 0);
}

static void assert_published(bool writer_lives, bool old_read)
{
	const struct object_record *new = object_record(pool, NEW);

	assert_int_equal(object_current(pool, 0, "name"), NEW);
	assert_int_equal(pages_in(new_pages, NEW_PAGES, PAGE_SHARED, NEW), NEW_PAGES);
	assert_int_equal(new->writer, 0);
	assert_int_equal(new->readers, writer_lives);
	assert_int_equal(object_has_reader(pool, NEW, WRITER), writer_lives);
	assert_int_equal(object_state(pool, OLD), old_read ? OBJECT_OLD : OBJECT_NONE);
	assert_int_equal(old_read ? pages_in(old_pages, OLD_PAGES, PAGE_SHARED, OLD)
				  : pages_in(old_pages, OLD_PAGES, PAGE_FREE, 0),
		OLD_PAGES);
	assert_int_equal(pool->tenants[0].leased, NEW_PAGES + (old_read ? OLD_PAGES : 0));
	assert_true(atomic_load(&pool->segment.header->counters[POOL_COUNT_PUBLICATIONS]) == 2);
	assert_true(pool->objects->of[NEW].fd > 0);
}

static void each_step(bool writer_lives, bool old_read)
{
	for (int step = 0, more = 1; more; step++) {
		setup(NULL);
		begin(writer_lives, old_read);
		more = publish_until(step, old_read, true);
		recover();
		/* From PUBLISHING on, the publication is completed. */
		if (step > 0)
			assert_published(writer_lives, old_read);
		else
			assert_rolled_back(writer_lives);
		teardown(NULL);
	}
}

static void test_every_step(void **state)
{
	(void)state;
	for (int i = 0; i < 4; i++)
		each_step(i & 1, i & 2);
}

static void test_rolled_back_without_manifest(void **state)
{
	(void)state;
	for (int writer_lives = 0; writer_lives < 2; writer_lives++)
		for (int step = 0; step <= 5; step++) {
			setup(NULL);
			begin(writer_lives, false);
			publish_until(step, false, false);
			recover();
			assert_rolled_back(writer_lives);
			teardown(NULL);
		}
}

/* A page of the publisher has another owner by now, so the publication cannot be completed. */
static void test_cannot_finish(void **state)
{
	(void)state;
	setup(NULL);
	begin(true, false);
	publish_until(3, false, true);
	word(new_pages[3], PAGE_LEASED, READER);
	recover();
	assert_int_equal(object_state(pool, NEW), OBJECT_NONE);
	assert_int_equal(pages_in(new_pages, 3, PAGE_LEASED, WRITER), 3);
	assert_int_equal(pages_in(new_pages + 3, 1, PAGE_LEASED, READER), 1);
	teardown(NULL);
}

/* The last reader of a deleted object and the writer of a mutable one died with the agent. */
static void test_dead_readers_and_writers(void **state)
{
	(void)state;
	setup(NULL);
	begin(false, false);
	publish_until(7, true, true);
	object_record(pool, NEW)->class = OBJECT_MUTABLE;
	atomic_store(&object_record(pool, NEW)->writer, WRITER);
	read_by(OLD, WRITER);
	state_of(OLD, OBJECT_DELETED);
	recover();
	assert_int_equal(object_state(pool, OLD), OBJECT_NONE);
	assert_int_equal(object_record(pool, NEW)->writer, 0);
	assert_int_equal(object_record(pool, NEW)->readers, 0);
	assert_int_equal(pages_in(old_pages, OLD_PAGES, PAGE_FREE, 0), OLD_PAGES);
	teardown(NULL);
	setup(NULL);
	begin(true, false);
	publish_until(7, true, true);
	object_record(pool, NEW)->class = OBJECT_MUTABLE;
	atomic_store(&object_record(pool, NEW)->writer, WRITER);
	recover();
	assert_int_equal(object_record(pool, NEW)->writer, WRITER);
	teardown(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_step),
		cmocka_unit_test(test_rolled_back_without_manifest),
		cmocka_unit_test(test_cannot_finish),
		cmocka_unit_test(test_dead_readers_and_writers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
