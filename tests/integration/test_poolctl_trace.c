/*
 * test_poolctl_trace.c - the flight recorder of a real agent and real workers, as `poolctl trace` and `poolctl events
 * --since` show it.
 *
 * Goal: the trace contains the events, including those of a worker and an agent that were killed. Perfetto can read the
 * trace. No reply of an agent is needed.
 *
 * Method: cause each event once, kill processes with SIGKILL, and search for the events by name. Check every element of
 * the trace against the format: known phases, named tracks, sorted times, no overlapping slices.
 *
 * Requirements: O3.
 */
#include "tests/integration/poolctl_process.h"
#include "tests/lib/harness.h"

#include "client/core/pool.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>

enum { CHILD_PAGES = 100, SAMPLED = 600 };

static struct {
	struct harness harness;
	struct gpool *worker;
	uint32_t session, killed; /* numbers of sessions */
} world;

#define AGENT(...) poolctl("-d", world.harness.directory, __VA_ARGS__, NULL)

/* ---- the format ---- */

struct track {
	double pid, tid, end, inner;
	bool named, process_named;
};

static struct track tracks[256];
static uint32_t track_count;

static struct track *track_of(const cJSON *event)
{
	double pid = number(event, "pid"), tid = number(event, "tid");

	for (uint32_t i = 0; i < track_count; i++)
		if (tracks[i].pid == pid && tracks[i].tid == tid)
			return &tracks[i];
	assert_true(track_count < sizeof(tracks) / sizeof(tracks[0]));
	tracks[track_count] = (struct track){.pid = pid, .tid = tid};
	return &tracks[track_count++];
}

static void check_metadata(const cJSON *event, struct track *track)
{
	const char *name = string(event, "name");
	const cJSON *args = cJSON_GetObjectItem(event, "args");

	if (!strcmp(name, "thread_name")) {
		assert_false(track->named);
		assert_true(string(args, "name")[0]);
		track->named = true;
	} else if (!strcmp(name, "process_name")) {
		assert_true(string(args, "name")[0]);
		track->process_named = true;
	} else {
		assert_string_equal(name, "process_labels");
	}
}

/*
 * Check that the slice begins after the end of the last one, or is within it and after its children. Times have three
 * decimals, as doubles.
 */
static void check_slice(struct track *track, double begin, double end)
{
	const double least = 0.0005;

	if (begin >= track->end - least) {
		track->end = end;
		track->inner = begin;
		return;
	}
	assert_true(end <= track->end + least);
	assert_true(begin >= track->inner - least);
	track->inner = end;
}

static void check_event(const cJSON *event, double *last)
{
	const char *phase = string(event, "ph");
	double ts = number(event, "ts");
	struct track *track = track_of(event);

	assert_true(string(event, "name")[0]);
	assert_true(cJSON_IsObject(cJSON_GetObjectItem(event, "args")));
	assert_true(number(event, "pid") >= 1);
	if (!strcmp(phase, "M")) {
		check_metadata(event, track);
		return;
	}
	assert_true(ts >= *last);
	*last = ts;
	if (!strcmp(phase, "X")) {
		assert_true(number(event, "dur") > 0);
		check_slice(track, ts, ts + number(event, "dur"));
	} else {
		assert_string_equal(phase, "i");
		assert_int_equal(strlen(string(event, "s")), 1);
		assert_non_null(strchr("gpt", string(event, "s")[0]));
	}
}

static void check_trace(const cJSON *trace)
{
	const cJSON *event;
	double last = 0;

	assert_true(cJSON_IsArray(trace));
	track_count = 0;
	cJSON_ArrayForEach(event, trace) check_event(event, &last);
	for (uint32_t i = 0; i < track_count; i++) {
		bool process = false;

		if (!tracks[i].named)
			fail_msg("thread %g of process %g has no name", tracks[i].tid, tracks[i].pid);
		for (uint32_t j = 0; j < track_count; j++)
			process |= tracks[j].pid == tracks[i].pid && tracks[j].process_named;
		assert_true(process);
	}
}

/* ---- content of a trace ---- */

static bool is(const cJSON *event, const char *name, const char *phase, uint32_t session)
{
	return !strcmp(string(event, "name"), name) && !strcmp(string(event, "ph"), phase) &&
		number(cJSON_GetObjectItem(event, "args"), "session") == session;
}

static uint32_t count_of(const cJSON *trace, const char *name, const char *phase, uint32_t session)
{
	const cJSON *event;
	uint32_t count = 0;

	cJSON_ArrayForEach(event, trace) count += strcmp(string(event, "ph"), "M") && is(event, name, phase, session);
	return count;
}

/* Return the last slice of this name. */
static const cJSON *find(const cJSON *trace, const char *name, uint32_t session)
{
	const cJSON *event, *found = NULL;

	cJSON_ArrayForEach(event, trace) if (!strcmp(string(event, "ph"), "X") && is(event, name, "X", session)) found =
		event;
	assert_non_null(found);
	return found;
}

static const cJSON *expect_event(const cJSON *trace, const char *name, const char *phase, uint32_t session)
{
	const cJSON *event;

	cJSON_ArrayForEach(event, trace) if (strcmp(string(event, "ph"), "M") &&
		is(event, name, phase, session)) return cJSON_GetObjectItem(event, "args");
	fail_msg("no '%s' of session %u", name, session);
	return NULL;
}

/* Check that the session's first track identifies the session. */
static void expect_track(const cJSON *trace, uint32_t session, const char *part)
{
	const cJSON *event;

	cJSON_ArrayForEach(event, trace)
	{
		if (strcmp(string(event, "name"), "thread_name") || number(event, "tid") != session)
			continue;
		expect_text(string(cJSON_GetObjectItem(event, "args"), "name"), part);
		return;
	}
	fail_msg("session %u has no track", session);
}

static struct result trace_read(void)
{
	struct result result = AGENT("trace");

	expect(&result, OK);
	check_trace(result.json);
	return result;
}

/* ---- causing the events ---- */

static struct gpool_block block_make(uint32_t pages, uint32_t flags, uint64_t owner_id)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	options.flags = flags;
	options.owner_id = owner_id;
	assert_int_equal(gpool_alloc(world.worker, pages, &options, &block), 0);
	return block;
}

static bool end_recorded(uint32_t session)
{
	const struct flight_ring *events = &world.worker->segment.events;
	struct flight_entry entry;

	for (uint32_t place = 0; place < flight_used(events); place++)
		if (!flight_read(events, place, UINT64_MAX, &entry, NULL) && entry.kind == GPOOL_EVENT_SESSION_END &&
			entry.session == session)
			return true;
	return false;
}

/* Kill a worker while it holds pages. Return its session. */
static uint32_t worker_killed(void)
{
	uint32_t session = 0;
	int ends[2], status;
	pid_t child;

	assert_int_equal(pipe(ends), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct gpool *pool = harness_open(&world.harness);
		struct gpool_block block;

		session = gpool_session(pool);
		if (gpool_alloc(pool, CHILD_PAGES, NULL, &block) ||
			write(ends[1], &session, sizeof(session)) != sizeof(session))
			_exit(1);
		pause();
	}
	assert_int_equal(read(ends[0], &session, sizeof(session)), sizeof(session));
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &status, 0), child);
	while (!end_recorded(session))
		sched_yield();
	close(ends[0]);
	close(ends[1]);
	return session;
}

static pid_t agent_pid(void)
{
	struct result result = poolctl("-d", world.harness.directory, "-o", "json", "status", NULL);
	pid_t pid;

	expect(&result, OK);
	pid = (pid_t)number(result.json, "agent_pid");
	result_free(&result);
	return pid;
}

/* Wait until the keeper has received the new session's segment. From then on the session's records are visible. */
static void seen_await(void)
{
	struct gpool_block block = block_make(CHILD_PAGES, 0, 0);
	uint32_t refills;

	assert_int_equal(gpool_free(world.worker, &block), 0);
	do {
		struct result result = trace_read();

		refills = count_of(result.json, "refill", "X", world.session);
		result_free(&result);
	} while (!refills);
}

static int world_setup(void **state)
{
	static const char *const arguments[] = {
		"--pool", HARNESS_POOL, "--set", "group=nogroup", "--set", "access.observers.users=nobody", NULL};

	(void)state;
	harness_start(&world.harness, arguments);
	world.worker = harness_open(&world.harness);
	world.session = gpool_session(world.worker);
	seen_await();
	return 0;
}

static int world_teardown(void **state)
{
	(void)state;
	gpool_close(world.worker);
	return harness_stop(&world.harness);
}

/* ---- tests ---- */

static void test_allocations_are_sampled(void **state)
{
	uint32_t allocated, freed;
	struct result result;

	(void)state;
	for (uint32_t i = 0; i < SAMPLED; i++) {
		struct gpool_block block = block_make(1, 0, 7);

		assert_int_equal(gpool_free(world.worker, &block), 0);
	}
	result = trace_read();
	allocated = count_of(result.json, "allocate", "X", world.session);
	freed = count_of(result.json, "free", "i", world.session);
	assert_int_equal(allocated, SAMPLED / 256);
	assert_int_equal(freed, allocated);
	assert_string_equal(string(expect_event(result.json, "allocate", "X", world.session), "owner"), "7");
	assert_string_equal(string(expect_event(result.json, "allocate", "X", world.session), "tag"),
		string(expect_event(result.json, "free", "i", world.session), "tag"));
	result_free(&result);
}

static void test_requests_and_refusals(void **state)
{
	struct result result;
	struct gpool_block block = block_make(150, 0, 8);
	const cJSON *args;

	(void)state;
	assert_int_equal(gpool_alloc(world.worker, 512, NULL, &(struct gpool_block){0}), -ENOSPC);
	result = trace_read();
	expect_event(result.json, "session-start", "i", world.session);
	expect_event(result.json, "grant", "X", world.session);
	expect_event(result.json, "refill", "X", world.session);
	/* The grant is within the duration of the wait, so both are on one track. */
	assert_int_equal(number(find(result.json, "refill", world.session), "tid"),
		number(find(result.json, "grant", world.session), "tid"));
	args = expect_event(result.json, "refusal", "X", world.session);
	assert_int_equal(number(args, "errno"), ENOSPC);
	assert_int_equal(number(args, "pages"), 512);
	result_free(&result);
	assert_int_equal(gpool_free(world.worker, &block), 0);
}

static void test_evictions(void **state)
{
	struct gpool_block block = block_make(3, 0, 99);
	struct result result;
	const cJSON *args;

	(void)state;
	assert_int_equal(gpool_unpin(world.worker, &block), 0);
	assert_int_equal(harness_evict(&world.harness, world.session, 3), 3);
	assert_int_equal(gpool_pin(world.worker, &block), -ESTALE);
	result = trace_read();
	args = expect_event(result.json, "evict", "i", world.session);
	assert_int_equal(number(args, "page"), block.page);
	assert_int_equal(number(args, "pages"), 3);
	assert_string_equal(string(args, "owner"), "99");
	assert_int_equal(number(expect_event(result.json, "pin-stale", "i", world.session), "page"), block.page);
	result_free(&result);
}

static void test_moves(void **state)
{
	struct gpool_block block = block_make(2, GPOOL_ALLOC_SPILL, 100);
	struct result result;

	(void)state;
	assert_int_equal(gpool_unpin(world.worker, &block), 0);
	assert_int_equal(harness_evict(&world.harness, world.session, 2), 2);
	assert_int_equal(gpool_pin(world.worker, &block), 0);
	assert_int_equal(gpool_free(world.worker, &block), 0);
	result = trace_read();
	assert_int_equal(number(expect_event(result.json, "spill", "X", world.session), "pages"), 2);
	assert_int_equal(number(expect_event(result.json, "load", "X", world.session), "pages"), 2);
	expect_event(result.json, "restore", "X", world.session);
	result_free(&result);
}

/* The segment of the worker is freed, and its records are kept. */
static void test_killed_worker_is_heard(void **state)
{
	struct result result;

	(void)state;
	world.killed = worker_killed();
	result = trace_read();
	expect_event(result.json, "session-end", "i", world.killed);
	expect_track(result.json, world.killed, "attached as pid");
	expect_track(result.json, world.session, "', pid ");
	assert_int_equal(number(expect_event(result.json, "refill", "X", world.killed), "pages"), CHILD_PAGES);
	result_free(&result);
}

static void test_killed_agent(void **state)
{
	pid_t before = agent_pid();
	struct result result;

	(void)state;
	assert_int_equal(kill(before, SIGKILL), 0);
	while (agent_pid() == before)
		;
	result = trace_read();
	assert_int_equal(count_of(result.json, "agent-start", "i", 0), 2);
	/* The trace contains the records that the worker had written. */
	expect_event(result.json, "session-end", "i", world.killed);
	assert_int_equal(number(expect_event(result.json, "refill", "X", world.killed), "pages"), CHILD_PAGES);
	expect_event(result.json, "evict", "i", world.session);
	result_free(&result);
}

static void test_choices(void **state)
{
	struct result all = trace_read(), one, later;
	char session[16], path[160];
	const cJSON *event;

	(void)state;
	snprintf(session, sizeof(session), "%u", world.killed);
	one = AGENT("trace", "--session", session);
	expect(&one, OK);
	check_trace(one.json);
	assert_true(cJSON_GetArraySize(one.json) < cJSON_GetArraySize(all.json));
	cJSON_ArrayForEach(event, one.json) if (strcmp(string(event, "ph"), "M"))
		assert_int_equal(number(cJSON_GetObjectItem(event, "args"), "session"), world.killed);
	later = AGENT("trace", "--since", "1h");
	expect(&later, OK);
	check_trace(later.json);
	assert_true(cJSON_GetArraySize(later.json) >= cJSON_GetArraySize(all.json));
	result_free(&later);
	result_free(&one);
	snprintf(path, sizeof(path), "%s/trace.json", world.harness.base);
	one = poolctl("-d", world.harness.directory, "-o", "json", "trace", "--file", path, NULL);
	expect(&one, OK);
	expect_document(&one, "trace");
	assert_int_equal(number(one.json, "damaged"), 0);
	assert_true(number(one.json, "records") > 10);
	result_free(&one);
	unlink(path);
	one = AGENT("trace", "-p", "nowhere");
	expect(&one, USAGE);
	result_free(&one);
	result_free(&all);
}

/* Read the trace while the agent hangs, and from a snapshot, which needs only a file. */
static void test_without_agent(void **state)
{
	pid_t agent = agent_pid();
	struct result result;
	char path[160];

	(void)state;
	snprintf(path, sizeof(path), "%s/snapshot", world.harness.base);
	assert_int_equal(kill(agent, SIGSTOP), 0);
	result = AGENT("trace", "--offline");
	expect(&result, OK);
	check_trace(result.json);
	expect_event(result.json, "allocate", "X", world.session);
	expect_event(result.json, "evict", "i", world.session);
	result_free(&result);
	result = AGENT("dump", path);
	expect(&result, OK);
	result_free(&result);
	assert_int_equal(kill(agent, SIGCONT), 0);
	result = poolctl("trace", "--offline", path, NULL);
	expect(&result, OK);
	check_trace(result.json);
	expect_event(result.json, "evict", "i", world.session);
	result_free(&result);
	unlink(path);
}

/* A user that is neither root nor gpoold's user sees only the records of the agent. */
static void test_as_an_unprivileged_user(void **state)
{
	char *const arguments[] = {(char *)"poolctl", (char *)"trace", (char *)"-d", world.harness.directory, NULL};
	struct result result;

	(void)state;
	if (geteuid()) {
		print_message("only root can become another user\n");
		skip();
	}
	result = poolctl_finish(poolctl_start_as(arguments, 65534));
	expect(&result, OK);
	check_trace(result.json);
	expect_event(result.json, "evict", "i", world.session);
	assert_int_equal(number(expect_event(result.json, "refill", "X", world.killed), "pages"), CHILD_PAGES);
	assert_int_equal(count_of(result.json, "allocate", "X", world.session), 0);
	result_free(&result);
}

/* A session may write any content into its ring. The trace shows it as the session's own, or not at all. */
static void test_liar(void **state)
{
	const struct flight_ring *ring = &world.worker->session.flight;
	struct flight_entry lie = {.time_ns = flight_now(),
		.kind = FLIGHT_EVICT,
		.session = (uint16_t)world.killed,
		.page = 1,
		.pages = 1};
	struct result result;
	uint32_t before;

	(void)state;
	result = trace_read();
	before = count_of(result.json, "evict", "i", world.killed);
	result_free(&result);
	flight_write(ring, &lie, NULL);
	lie.kind = FLIGHT_PIN_STALE;
	flight_write(ring, &lie, NULL);
	result = AGENT("trace");
	assert_int_equal(result.code, OK);
	assert_string_equal(result.err, "poolctl: skipping 1 invalid record\n");
	check_trace(result.json);
	assert_int_equal(count_of(result.json, "evict", "i", world.killed), before);
	assert_int_equal(count_of(result.json, "pin-stale", "i", world.killed), 0);
	assert_int_equal(count_of(result.json, "pin-stale", "i", world.session), 2);
	result_free(&result);
}

/* The recorded events are printed first, then current ones, each once. */
/* Read a line, and return true if it has this text. */
static bool line_has(int fd, const char *text)
{
	char line[1024];
	size_t length = 0;

	do {
		assert_true(length + 1 < sizeof(line));
		assert_int_equal(read(fd, line + length, 1), 1);
	} while (line[length++] != '\n');
	line[length] = '\0';
	return strstr(line, text) != NULL;
}

static void test_events_since(void **state)
{
	struct result recorded = AGENT("events", "--offline", "--since", "1h", "-o", "json"), result;
	char *arguments[] = {(char *)"poolctl", (char *)"-d", world.harness.directory, (char *)"events",
		(char *)"--since", (char *)"1h", (char *)"-o", (char *)"json", NULL};
	struct running running;

	(void)state;
	expect(&recorded, OK);
	expect_text(recorded.out, "\"event\":\"agent-start\"");
	expect_text(recorded.out, "\"event\":\"session-end\"");
	running = poolctl_start(arguments);
	/* After the recorded events, poolctl follows the current ones. Others may precede that of the new session. */
	for (const char *at = recorded.out; *at; at++)
		if (*at == '\n')
			line_has(running.out, "");
	gpool_close(harness_open(&world.harness));
	while (!line_has(running.out, "\"event\":\"session-start\""))
		;
	assert_int_equal(kill(running.pid, SIGINT), 0);
	result = poolctl_finish(running);
	expect(&result, OK);
	result_free(&result);
	result_free(&recorded);
}

/* The recorder is disabled in one pool, and takes no samples in the other. */
static void test_off(void **state)
{
	static const char *const arguments[] = {"--pool",
		"name=off,backend=host,size=16MiB,page_size=512KB,reserved=0,flight_records=0", "--pool", HARNESS_POOL,
		"--set", "flight.sampling=0", NULL};
	struct harness kept = world.harness;
	struct gpool *kept_worker = world.worker;
	struct gpool_options options;
	struct result result;
	struct gpool *off;

	(void)state;
	harness_start(&world.harness, arguments);
	options = harness_options(&world.harness);
	options.pool = "off";
	assert_int_equal(gpool_open(&options, &off), 0);
	options.pool = "p0";
	assert_int_equal(gpool_open(&options, &world.worker), 0);
	for (uint32_t i = 0; i < SAMPLED; i++) {
		struct gpool_block block = block_make(1, 0, 7), other;

		assert_int_equal(gpool_free(world.worker, &block), 0);
		assert_int_equal(gpool_alloc(off, 1, NULL, &other), 0);
		assert_int_equal(gpool_free(off, &other), 0);
	}
	result = trace_read();
	expect_event(result.json, "grant", "i", gpool_session(world.worker));
	assert_int_equal(count_of(result.json, "allocate", "X", gpool_session(world.worker)), 0);
	result_free(&result);
	result = AGENT("trace", "-p", "off");
	expect(&result, FAILED);
	expect_text(result.err, "flight_records");
	result_free(&result);
	gpool_close(off);
	gpool_close(world.worker);
	assert_int_equal(harness_stop(&world.harness), 0);
	world.harness = kept;
	world.worker = kept_worker;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_allocations_are_sampled),
		cmocka_unit_test(test_requests_and_refusals),
		cmocka_unit_test(test_evictions),
		cmocka_unit_test(test_moves),
		cmocka_unit_test(test_killed_worker_is_heard),
		cmocka_unit_test(test_killed_agent),
		cmocka_unit_test(test_choices),
		cmocka_unit_test(test_without_agent),
		cmocka_unit_test(test_as_an_unprivileged_user),
		cmocka_unit_test(test_liar),
		cmocka_unit_test(test_events_since),
		cmocka_unit_test(test_off),
	};

	return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
