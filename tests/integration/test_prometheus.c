/*
 * test_prometheus.c - tools/exporter/monitoring/ with a real Prometheus, which scrapes a real exporter of a real agent.
 *
 * Goal: the rules pass their own tests and use only metrics that exist. A Prometheus that loads them reports no errors.
 * Every query of the dashboard returns numbers while the pool is used.
 *
 * Method: promtool and Prometheus of this machine run on the loopback interface, with a workload that changes each
 * metric. Without these programs the test is skipped. Run it from the root of the source tree.
 *
 * Requirements: U14, O4.
 */
#include "client/core/pool.h"
#include "tests/integration/exporter_process.h"
#include "tests/lib/temporary.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <sys/stat.h>

enum { QUERIES_MAX = 256, QUERY_MAX = 1024 };

static char folder[64];
static struct process prometheus;
static uint16_t prometheus_port;

/* ---- files ---- */

static char *text_of(const char *path)
{
	char *text = calloc(1, TEXT_MAX);

	assert_non_null(text);
	file_read(path, text, TEXT_MAX);
	if (!*text)
		fail_msg("cannot read '%s'; run this test from the root of the source tree", path);
	return text;
}

static void skip_without(const char *program)
{
	char command[64];

	snprintf(command, sizeof(command), "%s --version >/dev/null 2>&1", program);
	if (!system(command))
		return;
	printf("%s is not installed: 'make deps' installs it\n", program);
	skip();
}

/* ---- rules ---- */

/* Requirements: U22. */
static void test_rules_pass_their_tests(void **state)
{
	(void)state;
	skip_without("promtool");
	assert_int_equal(system("cd tools/exporter/monitoring && promtool check rules rules.yml && promtool test rules "
				"rules_test.yml"),
		0);
}

/* A rule on a metric that does not exist would never fire. */
static void test_rules_name_exported_metrics(void **state)
{
	char *rules = text_of("tools/exporter/monitoring/rules.yml"), *metrics = text_of("docs/metrics.md");
	int names = 0;

	(void)state;
	for (const char *at = rules; (at = strstr(at, "gpool_")); at++) {
		char name[128];
		size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz_");

		if (at > rules && (isalpha((unsigned char)at[-1]) || at[-1] == ':' || at[-1] == '_'))
			continue;
		if (length > 7 && !strncmp(at + length - 7, "_bucket", 7))
			length -= 7;
		if (length > 6 && !strncmp(at + length - 6, "_count", 6)) /* of a histogram */
			length -= 6;
		snprintf(name, sizeof(name), "`%.*s`", (int)length, at);
		if (!strstr(metrics, name))
			fail_msg("tools/exporter/monitoring/rules.yml names %s, which is not exported", name);
		names++;
	}
	assert_true(names > 20);
	free(rules);
	free(metrics);
}

/* ---- the Prometheus of this test ---- */

/* Return a port that no process uses at this moment. */
static uint16_t free_port(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &length), 0);
	close(fd);
	return ntohs(at.sin_port);
}

static void prometheus_start(void)
{
	char config[96], option[3][128], rules[512];
	const char *const arguments[] = {"prometheus", option[0], option[1], option[2], "--log.level=error", NULL};
	const char *body;
	FILE *file;

	snprintf(config, sizeof(config), "%s/prometheus.yml", folder);
	assert_non_null(realpath("tools/exporter/monitoring/rules.yml", rules));
	file = fopen(config, "we");
	assert_non_null(file);
	fprintf(file,
		"global: { scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms }\n"
		"rule_files: ['%s']\n"
		"scrape_configs: [{ job_name: gpool, static_configs: [{ targets: ['127.0.0.1:%u'] }] }]\n",
		rules, exporter_port);
	assert_int_equal(fclose(file), 0);
	prometheus_port = free_port();
	snprintf(option[0], sizeof(option[0]), "--config.file=%s", config);
	snprintf(option[1], sizeof(option[1]), "--storage.tsdb.path=%s/data", folder);
	snprintf(option[2], sizeof(option[2]), "--web.listen-address=127.0.0.1:%u", prometheus_port);
	prometheus = process_start(arguments);
	AWAIT(http_get(prometheus_port, "/-/ready", &body) == 200);
}

static void prometheus_stop(void)
{
	char said[4096], command[128];

	kill(prometheus.pid, SIGTERM);
	if (process_end(&prometheus, said, sizeof(said)) || *said)
		fail_msg("Prometheus said: %s", said);
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	assert_int_equal(system(command), 0);
}

static int forced_end(void **state)
{
	struct process *const left[] = {&prometheus, &exporter};

	for (int i = 0; i < 2; i++) {
		if (left[i]->pid <= 0)
			continue;
		kill(left[i]->pid, SIGKILL);
		waitpid(left[i]->pid, NULL, 0);
		left[i]->pid = 0;
	}
	return clean(state);
}

static void escaped(char *to, const char *text)
{
	for (; *text; text++)
		to += isalnum((unsigned char)*text) ? sprintf(to, "%c", *text)
						    : sprintf(to, "%%%02X", (unsigned char)*text);
}

/* ---- the dashboard ---- */

static void replace(char *text, const char *what, const char *with)
{
	char *found, rest[QUERY_MAX];

	while ((found = strstr(text, what))) {
		strcpy(rest, found + strlen(what));
		assert_true((size_t)(found - text) + strlen(with) + strlen(rest) < QUERY_MAX);
		strcpy(stpcpy(found, with), rest);
	}
}

/* Read all queries, with the values that the variables have if all machines and pools are selected. */
static int queries_read(char queries[QUERIES_MAX][QUERY_MAX])
{
	char command[192], path[96], *text;
	cJSON *dashboard;
	const cJSON *panel, *target;
	int count = 0;

	snprintf(path, sizeof(path), "%s/dashboard.json", folder);
	snprintf(command, sizeof(command), "python3 tools/exporter/monitoring/dashboard.py > %s", path);
	assert_int_equal(system(command), 0);
	text = text_of(path);
	unlink(path);
	dashboard = cJSON_Parse(text);
	assert_non_null(dashboard);
	cJSON_ArrayForEach(panel, cJSON_GetObjectItem(dashboard, "panels"))
	{
		cJSON_ArrayForEach(target, cJSON_GetObjectItem(panel, "targets"))
		{
			const char *expression = cJSON_GetStringValue(cJSON_GetObjectItem(target, "expr"));

			assert_non_null(expression);
			assert_true(count < QUERIES_MAX && strlen(expression) < QUERY_MAX);
			strcpy(queries[count], expression);
			replace(queries[count], "$__rate_interval", "10s");
			replace(queries[count], "$instance", ".*");
			replace(queries[count], "$pool", ".*");
			assert_null(strchr(queries[count], '$'));
			count++;
		}
	}
	cJSON_Delete(dashboard);
	free(text);
	return count;
}

/* Return true if the query yields a number. A query that Prometheus cannot parse fails the test. */
static bool answered(const char *query)
{
	static char path[4 * QUERY_MAX];
	const cJSON *result, *item;
	const char *body;
	bool number = false;
	cJSON *answer;

	escaped(stpcpy(path, "/api/v1/query?query="), query);
	if (http_get(prometheus_port, path, &body) != 200)
		fail_msg("'%s': %s", query, body);
	answer = cJSON_Parse(body);
	assert_non_null(answer);
	result = cJSON_GetObjectItem(cJSON_GetObjectItem(answer, "data"), "result");
	cJSON_ArrayForEach(item, result)
	{
		const char *value = cJSON_GetStringValue(cJSON_GetArrayItem(cJSON_GetObjectItem(item, "value"), 1));

		number = number || (value && isfinite(strtod(value, NULL)));
	}
	cJSON_Delete(answer);
	return number;
}

/* Attach a worker, make calls of each kind, and detach. */
static void work(void)
{
	struct gpool *worker = open_worker();
	struct thread_stats *stats = worker->session.stats->threads;
	struct gpool_block block;

	for (int i = 0; i < 600; i++) {               /* one allocation in 256 is measured */
		block = alloc(worker, i ? 1 : PAGES); /* the first allocation sends a request to the agent */
		assert_int_equal(gpool_unpin(worker, &block), 0);
		assert_int_equal(gpool_pin(worker, &block), 0);
		assert_int_equal(gpool_free(worker, &block), 0);
	}
	/* counted as the caches of adapters and prompts count */
	stats->adapter_hits += 9;
	stats->adapter_misses += 1;
	stats->prefix_hits += 3;
	stats->prefix_misses += 1;
	gpool_close(worker);
}

static int unanswered(char queries[QUERIES_MAX][QUERY_MAX], int count, int *done)
{
	work();
	while (*done < count && answered(queries[*done]))
		++*done;
	return count - *done;
}

/* Return true if all rules were evaluated without an error. */
static bool rules_are_well(void)
{
	const cJSON *group, *rule;
	int count = 0, well = 0;
	const char *body;
	cJSON *answer;

	assert_int_equal(http_get(prometheus_port, "/api/v1/rules", &body), 200);
	answer = cJSON_Parse(body);
	cJSON_ArrayForEach(group, cJSON_GetObjectItem(cJSON_GetObjectItem(answer, "data"), "groups"))
	{
		cJSON_ArrayForEach(rule, cJSON_GetObjectItem(group, "rules"))
		{
			const char *health = cJSON_GetStringValue(cJSON_GetObjectItem(rule, "health"));

			if (!strcmp(health, "err"))
				fail_msg(
					"rule '%s': %s", cJSON_GetStringValue(cJSON_GetObjectItem(rule, "name")), body);
			well += !strcmp(health, "ok");
			count++;
		}
	}
	cJSON_Delete(answer);
	return count >= 16 && well == count;
}

static void test_dashboard_has_data(void **state)
{
	static char queries[QUERIES_MAX][QUERY_MAX];
	int count, done = 0;

	(void)state;
	skip_without("prometheus");
	snprintf(folder, sizeof(folder), "%s/test_prometheus.XXXXXX", temporary_folder());
	assert_non_null(mkdtemp(folder));
	count = queries_read(queries);
	assert_true(count > 50);
	start(quiet);
	exporter_start(harness.directory, "20");
	prometheus_start();
	AWAIT(answered("up{job=\"gpool\"} == 1")); /* the first scrape is 5 s after the start of Prometheus */
	for (int tries = 0; unanswered(queries, count, &done); tries++) {
		if (tries == AWAIT_TRIES)
			fail_msg("no number comes for '%s'", queries[done]);
		poll(NULL, 0, AWAIT_STEP_MS);
	}
	AWAIT(rules_are_well());
	prometheus_stop();
	exporter_stop();
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rules_pass_their_tests),
		cmocka_unit_test(test_rules_name_exported_metrics),
		cmocka_unit_test_teardown(test_dashboard_has_data, forced_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
