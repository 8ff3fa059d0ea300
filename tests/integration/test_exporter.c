/*
 * test_exporter.c - gpool-exporter with a real agent.
 *
 * Goal: the exporter reports the agent's values in a form that the checker of Prometheus (promtool) accepts. It detects
 * and survives ends and restarts of the agent and gpoold. It reports wrong options and a port in use.
 *
 * Method: the real programs, with this process as the worker. Values are compared with those of `poolctl` and the
 * agent.
 */
#include "client/object/object.h"
#include "tests/integration/exporter_process.h"
#include "tests/lib/temporary.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>

static char link_folder[64], link_path[80];

static void exporter_begin(void)
{
	snprintf(link_folder, sizeof(link_folder), "%s/test_exporter.XXXXXX", temporary_folder());
	assert_non_null(mkdtemp(link_folder));
	snprintf(link_path, sizeof(link_path), "%s/run", link_folder);
	assert_int_equal(symlink(harness.directory, link_path), 0);
	exporter_start(link_path, "20");
}

static void exporter_done(void)
{
	exporter_stop();
	unlink(link_path);
	assert_int_equal(rmdir(link_folder), 0);
}

static int forced_end(void **state)
{
	if (exporter.pid > 0) {
		kill(exporter.pid, SIGKILL);
		waitpid(exporter.pid, NULL, 0);
		exporter.pid = 0;
	}
	return clean(state);
}

static void agent_kill(void)
{
	pid_t agent = (pid_t)status()->agent_pid;
	int end;

	assert_true(agent > 1);
	end = pidfd_of(agent);
	assert_int_equal(kill(agent, SIGKILL), 0);
	await_end(end);
}

/* ---- values ---- */

/* Return `poolctl -o json status` of the first pool. The caller frees the document. */
static cJSON *poolctl_status(cJSON **document)
{
	static char text[65536];
	char command[1024];
	FILE *pipe_end;

	snprintf(command, sizeof(command), "%s --dir %s -o json status", beside_gpoold("poolctl"), harness.directory);
	pipe_end = popen(command, "re");
	assert_non_null(pipe_end);
	text[fread(text, 1, sizeof(text) - 1, pipe_end)] = '\0';
	assert_int_equal(pclose(pipe_end), 0);
	*document = cJSON_Parse(text);
	assert_non_null(*document);
	return cJSON_GetArrayItem(cJSON_GetObjectItem(*document, "pools"), 0);
}

static double of_tenant(const char *name)
{
	return metric_in(scrape(), metric_line(name, "p0", ",tenant=\"default\""));
}

struct figure {
	const char *member, *name; /* name in poolctl's JSON; name of the metric */
};

static void compare(const cJSON *pool, const char *member, const char *name, double unit)
{
	const cJSON *item = cJSON_GetObjectItem(pool, member);

	assert_true(cJSON_IsNumber(item));
	if (metric(name) != item->valuedouble * unit)
		fail_msg("%s is %g, %s is %g", name, metric(name), member, item->valuedouble);
}

/* Requirements: U14. */
static void test_values_are_poolctls(void **state)
{
	static const struct figure pages[] = {
		{"page_count", "gpool_pool_size_bytes"},
		{"free_pages", "gpool_pool_free_bytes"},
		{"leased_pages", "gpool_pool_leased_bytes"},
		{"used_pages", "gpool_pool_used_bytes"},
		{"pinned_pages", "gpool_pool_pinned_bytes"},
		{"needed_pages", "gpool_pool_needed_bytes"},
		{"offered_pages", "gpool_pool_offered_bytes"},
		{"idle_pages", "gpool_pool_idle_bytes"},
		{"largest_free_run", "gpool_pool_largest_free_run_bytes"},
		{"reservation_pages", "gpool_pool_reservation_bytes"},
	};
	static const struct figure counts[] = {
		{"pool_utilization", "gpool_pool_utilization_ratio"},
		{"grants", "gpool_granted_pages_total"},
		{"evictions", "gpool_evictions_total"},
		{"evicted_pages", "gpool_evicted_pages_total"},
		{"refusals", "gpool_refusals_total"},
		{"pins", "gpool_pins_total"},
		{"allocations", "gpool_allocations_total"},
		{"waiters", "gpool_pool_waiters"},
	};
	struct gpool_alloc_options how = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block blocks[8], held;
	struct gpool *worker;
	cJSON *document, *pool;
	double page_bytes;
	uint32_t taken;
	uint64_t reservation;

	(void)state;
	start(quiet);
	worker = open_worker();
	how.usage = GPOOL_USAGE_LORA_WEIGHT;
	assert_int_equal(gpool_alloc(worker, 3, &how, &held), 0);
	alloc_unpinned(worker, blocks, 8);
	assert_int_equal(try_evict(admin, "", 2, &taken), 0);
	assert_int_equal(gpool_alloc(worker, PAGES - 1, NULL, &blocks[0]), -ENOSPC);
	assert_int_equal(gpool_reservation_create(worker, 4, 0, 0, &reservation), 0);
	exporter_begin();
	pool = poolctl_status(&document);
	page_bytes = cJSON_GetObjectItem(pool, "page_bytes")->valuedouble;
	for (size_t i = 0; i < sizeof(pages) / sizeof(*pages); i++)
		compare(pool, pages[i].member, pages[i].name, page_bytes);
	for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
		compare(pool, counts[i].member, counts[i].name, 1);
	assert_true(metric("gpool_evicted_pages_total") >= 2);
	assert_true(metric("gpool_pool_pinned_bytes") >= 3 * page_bytes);
	assert_float_equal(metric("gpool_pool_reservation_bytes"), 4 * page_bytes, 0);
	assert_float_equal(metric("gpool_pool_needed_bytes"), (3 + 4) * page_bytes, 0);
	assert_float_equal(metric("gpool_pool_offered_bytes"), metric("gpool_pool_used_bytes") - 3 * page_bytes, 0);
	assert_float_equal(of_tenant("gpool_tenant_needed_bytes"), (3 + 4) * page_bytes, 0);
	assert_float_equal(of_tenant("gpool_tenant_offered_bytes"), metric("gpool_pool_offered_bytes"), 0);
	assert_float_equal(of_tenant("gpool_tenant_idle_bytes"), metric("gpool_pool_idle_bytes"), 0);
	assert_float_equal(
		metric_in(scrape(),
			metric_line("gpool_tenant_usage_bytes", "p0", ",tenant=\"default\",usage=\"LORA_WEIGHT\"")),
		3 * page_bytes, 0);
	cJSON_Delete(document);
	exporter_done();
	gpool_close(worker);
}

static void test_a_drained_pool(void **state)
{
	struct msg_drain_request request = {.on = 1};
	struct msg_done_reply done;

	(void)state;
	start(quiet);
	exporter_begin();
	assert_float_equal(metric("gpool_pool_draining"), 0, 0);
	assert_int_equal(ASK_FROM(admin, drain_request, &request, done_reply, &done), 0);
	AWAIT(metric("gpool_pool_draining") == 1);
	request.on = 0;
	assert_int_equal(ASK_FROM(admin, drain_request, &request, done_reply, &done), 0);
	AWAIT(metric("gpool_pool_draining") == 0);
	exporter_done();
}

static void test_objects_and_adapters(void **state)
{
	static const char *const names[] = {"weights", "lora/one", "lora/two"};
	struct gpool_object *objects[3];
	struct gpool *worker;

	(void)state;
	start(quiet);
	worker = open_worker();
	for (int i = 0; i < 3; i++) {
		struct gpool_object_options how = GPOOL_OBJECT_OPTIONS_INIT;
		uint64_t version;
		uint32_t index;

		how.memory_class = i ? GPOOL_OBJECT_PINNABLE : GPOOL_OBJECT_IMMUTABLE;
		how.flags |= OBJECT_CREATE_OWN;
		assert_int_equal(gpool_object_create(worker, names[i], &how, &objects[i]), 0);
		assert_int_equal(gpool_object_alloc(objects[i], (uint32_t)i + 1, NULL, &index), 0);
		assert_int_equal(gpool_object_publish(objects[i], &version), 0);
	}
	exporter_begin();
	assert_float_equal(metric("gpool_adapters"), 2, 0);
	assert_float_equal(metric("gpool_adapter_bytes"), 5 * (512 << 10), 0);
	assert_float_equal(metric("gpool_publications_total"), 3, 0);
	assert_float_equal(metric_in(scrape(), metric_line("gpool_objects", "p0", ",class=\"immutable\"")), 1, 0);
	exporter_done();
	for (int i = 0; i < 3; i++)
		gpool_object_close(objects[i]);
	gpool_close(worker);
}

/* With two pools and all metrics, promtool reports no problem. */
static void test_promtool_has_no_complaint(void **state)
{
	static const char *const two[] = {
		"--pool", POOL, "--pool", "name=p1,backend=host,size=32MiB,page_size=1MB,reserved=0", QUIET, NULL};
	char path[96], command[256];
	FILE *file;

	(void)state;
	if (system("promtool --version >/dev/null 2>&1")) {
		print_message("promtool is not installed: 'make deps' installs it\n");
		skip();
	}
	start(two);
	exporter_begin();
	snprintf(path, sizeof(path), "%s/metrics", link_folder);
	file = fopen(path, "we");
	assert_non_null(file);
	assert_true(fputs(scrape(), file) >= 0);
	assert_int_equal(fclose(file), 0);
	snprintf(command, sizeof(command), "promtool check metrics <%s", path);
	assert_int_equal(system(command), 0);
	assert_false(isnan(metric_in(scrape(), metric_line("gpool_page_size_bytes", "p1", ""))));
	unlink(path);
	exporter_done();
}

/* ---- ends and restarts ---- */

static void test_an_agent_that_is_killed(void **state)
{
	struct gpool *worker;
	double before;

	(void)state;
	start(quiet);
	worker = open_worker();
	for (int i = 0; i < 100; i++) {
		struct gpool_block block = alloc(worker, 1);

		assert_int_equal(gpool_free(worker, &block), 0);
	}
	exporter_begin();
	before = metric("gpool_allocations_total");
	assert_float_equal(before, 100, 0);
	assert_float_equal(metric("gpool_agent_starts_total"), 1, 0);
	for (int deaths = 1; deaths <= 2; deaths++) {
		agent_kill();
		AWAIT(metric("gpool_agent_starts_total") == 1 + deaths);
		assert_float_equal(metric_plain("gpool_up"), 1, 0);
		assert_float_equal(metric("gpool_allocations_total"), before, 0);
	}
	exporter_done();
	gpool_close(worker);
}

/* Start a new gpoold in the folder that the exporter uses. */
static void gpoold_begin(const char *const *arguments)
{
	start(arguments);
	unlink(link_path);
	assert_int_equal(symlink(harness.directory, link_path), 0);
}

static void gpoold_kill(void)
{
	admin_close();
	harness_kill(&harness);
}

/*
 * Test without a gpoold, with one, without one again, with one that has another pool, and with another one immediately
 * after it.
 */
static void test_gpoold_starts_and_ends(void **state)
{
	static const char *const other[] = {
		"--pool", "name=q,backend=host,size=16MiB,page_size=512KB,reserved=0", QUIET, NULL};
	const char *text, *page = metric_line("gpool_page_size_bytes", "q", "");

	(void)state;
	strcpy(harness.directory, "/nonexistent");
	exporter_begin();
	assert_float_equal(metric_plain("gpool_up"), 0, 0);
	assert_int_equal(http_get(exporter_port, "/health", &text), 200);
	assert_int_equal(http_get(exporter_port, "/ready", &text), 503);
	assert_non_null(strstr(text, "no agent is running in this directory"));
	gpoold_begin(quiet);
	AWAIT(metric_plain("gpool_up") == 1);
	assert_int_equal(http_get(exporter_port, "/ready", &text), 200);
	assert_true(isnan(metric_in(scrape(), page)));
	gpoold_kill();
	AWAIT(metric_plain("gpool_up") == 0);
	assert_int_equal(http_get(exporter_port, "/health", &text), 200);
	gpoold_begin(other);
	AWAIT(metric_plain("gpool_up") == 1);
	assert_false(isnan(metric_in(scrape(), page)));
	/* A restart between two scrapes is visible only in counters that start again. */
	gpoold_kill();
	gpoold_begin(quiet);
	AWAIT(isnan(metric_in(text = scrape(), page)));
	assert_float_equal(metric_in(text, "gpool_up"), 1, 0);
	exporter_done();
}

/*
 * While a request waits for an agent that does not reply, /health responds, and waiting clients cause no further
 * requests to the agent.
 */
static void test_an_agent_that_hangs(void **state)
{
	const char *text;
	pid_t agent;

	(void)state;
	start(quiet);
	/* nanomsg leaks one message, independent of the number of cancelled requests */
	setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
	exporter_start(harness.directory, "0.2");
	unsetenv("ASAN_OPTIONS");
	AWAIT(metric_plain("gpool_up") == 1);
	agent = (pid_t)status()->agent_pid;
	assert_true(agent > 1);
	assert_int_equal(kill(agent, SIGSTOP), 0);
	AWAIT(metric_plain("gpool_up") == 0);
	assert_int_equal(http_get(exporter_port, "/ready", &text), 503);
	assert_non_null(strstr(text, "timed out"));
	assert_int_equal(http_get(exporter_port, "/health", &text), 200);
	assert_int_equal(kill(agent, SIGCONT), 0);
	AWAIT(metric_plain("gpool_up") == 1);
	exporter_stop();
}

/* ---- the command line ---- */

static void expect_end_as(uid_t uid, const char *const *arguments, int code, const char *within)
{
	struct process process = process_start_as(arguments, uid);
	char said[8192];
	int exit_status = process_end(&process, said, sizeof(said));

	assert_true(WIFEXITED(exit_status));
	if (WEXITSTATUS(exit_status) != code || !strstr(said, within))
		fail_msg("%s: exit status %d, it said: %s", arguments[1], WEXITSTATUS(exit_status), said);
}
#define EXPECT_END_AS(uid, code, within, ...) \
	expect_end_as(uid, (const char *const[]){beside_gpoold("gpool-exporter"), __VA_ARGS__, NULL}, code, within)
#define EXPECT_END(code, within, ...) EXPECT_END_AS(0, code, within, __VA_ARGS__)

/* ---- the live page ---- */

/*
 * Read the stream up to its first event of that name, and close it. Return the event's data as JSON, which the caller
 * frees.
 */
static cJSON *stream_event(const char *pool, const char *name)
{
	static char text[TEXT_MAX];
	struct sockaddr_in to = {
		.sin_family = AF_INET, .sin_port = htons(exporter_port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char *found = NULL, *end = NULL, begin[64];
	size_t length = 0;
	ssize_t got;

	snprintf(begin, sizeof(begin), "event: %s\ndata: ", name);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	dprintf(fd, "GET /api/live?pool=%s HTTP/1.0\r\n\r\n", pool);
	while (!end && length < sizeof(text) - 1 && (got = recv(fd, text + length, sizeof(text) - 1 - length, 0)) > 0) {
		length += (size_t)got;
		text[length] = '\0';
		found = strstr(text, begin);
		end = found ? strstr(found, "\n\n") : NULL;
	}
	close(fd);
	assert_non_null(end);
	*end = '\0';
	return cJSON_Parse(found + strlen(begin));
}

static int number_of(const cJSON *object, const char *name)
{
	const cJSON *number = cJSON_GetObjectItem(object, name);

	assert_true(cJSON_IsNumber(number));
	return number->valueint;
}

/* Return the number of pages of that kind and tenant in the runs. */
static int pages_of_kind(const cJSON *pages, int kind, int tenant)
{
	const cJSON *runs = cJSON_GetObjectItem(pages, "runs");
	int count = 0;

	for (int i = 0; i + 3 < cJSON_GetArraySize(runs); i += 4)
		if (cJSON_GetArrayItem(runs, i + 2)->valueint == kind &&
			cJSON_GetArrayItem(runs, i + 3)->valueint == tenant)
			count += cJSON_GetArrayItem(runs, i + 1)->valueint;
	return count;
}

/* The stream begins with the state of all pages. tests/browser tests the page itself. Requirements: O2. */
static void test_live_page(void **state)
{
	enum { KV_PINNED = 16 + 1, LORA = 16 + 2, FREE = 0, PINNED_PAGES = 5, LORA_PAGES = 3 };
	struct gpool_alloc_options how = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block pinned, unpinned;
	struct gpool *worker;
	const char *body;
	cJSON *json, *pool;

	(void)state;
	start(quiet);
	worker = open_worker();
	assert_int_equal(gpool_alloc(worker, PINNED_PAGES, &how, &pinned), 0);
	how.usage = GPOOL_USAGE_LORA_WEIGHT;
	how.owner_id = UINT64_C(0x123456789abcdef0);
	assert_int_equal(gpool_alloc(worker, LORA_PAGES, &how, &unpinned), 0);
	assert_int_equal(gpool_unpin(worker, &unpinned), 0);
	exporter_begin();
	assert_int_equal(http_get(exporter_port, "/", &body), 200);
	assert_non_null(strstr(body, "<canvas id=\"map\""));
	assert_non_null(strstr(body, "</html>"));

	json = stream_event("p0", "pages");
	assert_int_equal(number_of(json, "count"), PAGES);
	assert_int_equal(pages_of_kind(json, KV_PINNED, 0), PINNED_PAGES);
	assert_int_equal(pages_of_kind(json, LORA, 0), LORA_PAGES);
	assert_true(pages_of_kind(json, FREE, 255) > 0);
	cJSON_Delete(json);
	/* Without --pool the exporter uses the first pool. A nonexistent pool does not stop it. */
	json = stream_event("", "pages");
	assert_int_equal(number_of(json, "count"), PAGES);
	cJSON_Delete(json);
	json = stream_event("none", "state");
	pool = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "pools"), 0);
	assert_int_equal(number_of(pool, "count"), PAGES);
	assert_int_equal(number_of(pool, "pinned"), PINNED_PAGES);
	assert_int_equal(number_of(pool, "needed"), PINNED_PAGES);
	assert_int_equal(number_of(pool, "offered"), LORA_PAGES);
	assert_int_equal(number_of(pool, "idle"), number_of(pool, "leased") - PINNED_PAGES - LORA_PAGES);
	assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(pool, "tenants")), 1);
	cJSON_Delete(json);

	assert_int_equal(http_get(exporter_port, "/api/page?pool=none&page=1", &body), 404);
	assert_int_equal(http_get(exporter_port, "/api/page?pool=p0&page=64", &body), 404);
	assert_int_equal(http_get(exporter_port, "/api/page?pool=p0&page=1x", &body), 400);
	assert_int_equal(http_get(exporter_port, "/api/page?pool=p0", &body), 400);
	for (int page = 0, seen = 0; seen < LORA_PAGES; page++) {
		char path[64];

		assert_true(page < PAGES);
		snprintf(path, sizeof(path), "/api/page?pool=p0&page=%d", page);
		assert_int_equal(http_get(exporter_port, path, &body), 200);
		json = cJSON_Parse(body);
		assert_int_equal(number_of(json, "page"), page);
		if (!strcmp(cJSON_GetObjectItem(json, "owner_id")->valuestring, "1311768467463790320")) {
			assert_int_equal(number_of(json, "block_pages"), LORA_PAGES);
			assert_int_equal(number_of(json, "pins"), 0);
			seen++;
		}
		cJSON_Delete(json);
	}
	exporter_done();
	gpool_close(worker);
}

static void test_command_line(void **state)
{
	char port[8];

	(void)state;
	EXPECT_END(2, "--help", "--port", "65536");
	EXPECT_END(2, "--help", "--port", "x");
	EXPECT_END(2, "--help", "--timeout", "nan");
	EXPECT_END(2, "--help", "--timeout", "0");
	EXPECT_END(2, "--help", "extra");
	EXPECT_END(2, "unknown option", "--frobnicate");
	EXPECT_END(1, "not an address of this machine", "--listen", "192.0.2.1");
	EXPECT_END(1, "cannot listen on '127.0.0.1:19743': it is not an address; set --listen to", "--listen",
		"127.0.0.1:19743");
	EXPECT_END(3, "no agent is running in this directory", "--dir", "/nonexistent", "--once");
	EXPECT_END(0, "", "--help");
	EXPECT_END(0, "", "--metrics");
	start(quiet);
	EXPECT_END(0, "", "--dir", harness.directory, "--once");
	exporter_begin();
	snprintf(port, sizeof(port), "%u", exporter_port);
	EXPECT_END(1, "the port is in use", "--port", port);
	exporter_done();
}

/* An unprivileged user needs only the permission of an observer. */
static void test_any_observer(void **state)
{
	static const char *const for_one_user[] = {
		"--pool", POOL, QUIET, "--set", "access.observers.users=nobody", "--set", "group=nogroup", NULL};

	(void)state;
	if (getuid()) {
		print_message("only root can become another user\n");
		skip();
	}
	start(for_one_user);
	EXPECT_END_AS(OTHER_USER, 0, "", "--dir", harness.directory, "--once");
	EXPECT_END_AS(OTHER_USER - 1, 3, "access.observers", "--dir", harness.directory, "--once");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_values_are_poolctls, stop),
		cmocka_unit_test_teardown(test_a_drained_pool, stop),
		cmocka_unit_test_teardown(test_objects_and_adapters, stop),
		cmocka_unit_test_teardown(test_promtool_has_no_complaint, forced_end),
		cmocka_unit_test_teardown(test_an_agent_that_is_killed, stop),
		cmocka_unit_test_teardown(test_gpoold_starts_and_ends, forced_end),
		cmocka_unit_test_teardown(test_an_agent_that_hangs, stop),
		cmocka_unit_test_teardown(test_live_page, forced_end),
		cmocka_unit_test_teardown(test_command_line, stop),
		cmocka_unit_test_teardown(test_any_observer, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
