/*
 * test_metrics.c - the metrics that the exporter prints.
 *
 * Goal: for any names and values in a sample, the output is valid text for Prometheus. Labels are escaped, buckets are
 * cumulative, a missing value has no line, and an agent that does not reply has only its state. docs/metrics.md agrees
 * with the table. Method: samples made in this test, and the expected lines. Run the test from the root of the source
 * tree.
 *
 * Requirements: U14.
 */
#include "tools/exporter/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct sample sample;
static char *text;

static int setup(void **state)
{
	struct msg_pool_status *pool = &sample.status.pools[0];

	(void)state;
	memset(&sample, 0, sizeof(sample));
	sample.up = true;
	sample.status.pools_count = 1;
	sample.status.uptime_ms = 1500;
	strcpy(pool->name, "a\"b\\c\nd");
	strcpy(pool->device, "GPU-1");
	pool->page_size = 1 << 21;
	pool->page_count = 1000;
	pool->used_pages = 250;
	sample.pools[0].status = pool;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(text);
	text = NULL;
	return 0;
}

static void print(void)
{
	size_t bytes;
	FILE *memory = open_memstream(&text, &bytes);

	assert_non_null(memory);
	metrics_print(memory, &sample);
	assert_int_equal(fclose(memory), 0);
}

static void expect(const char *line)
{
	if (!strstr(text, line))
		fail_msg("there is no '%s' in:\n%s", line, text);
}

#define LABELS "pool=\"a\\\"b\\\\c\\nd\",UUID=\"GPU-1\""

static void test_values_and_labels(void **state)
{
	(void)state;
	sample.pools[0].counters[POOL_COUNT_GRANTS] = UINT64_C(9007199254740991);
	print();
	expect("\ngpool_up 1\n");
	expect("\ngpool_agent_uptime_seconds 1.5\n");
	expect("\ngpool_pool_size_bytes{" LABELS "} 2097152000\n");
	expect("\ngpool_pool_utilization_ratio{" LABELS "} 0.25\n");
	expect("\n# TYPE gpool_granted_pages_total counter\ngpool_granted_pages_total{" LABELS "} 9007199254740991\n");
	expect("\ngpool_spill_limit_bytes{" LABELS ",tier=\"file\"} 0\n");
	expect("\ngpool_objects{" LABELS ",class=\"pinnable\"} 0\n");
	/* without free pages the ratio is undefined */
	assert_null(strstr(text, "\ngpool_fragmentation_ratio{"));
}

static void test_tenants(void **state)
{
	struct msg_tenant_entry *tenant = sample.tenants.tenants;

	(void)state;
	sample.tenants.tenants_count = 2;
	strcpy(tenant[0].pool, sample.status.pools[0].name);
	strcpy(tenant[0].name, "\\");
	tenant[0].by_usage_3 = 3;
	strcpy(tenant[1].pool, "that has just gone");
	print();
	expect("\ngpool_tenant_usage_bytes{" LABELS ",tenant=\"\\\\\",usage=\"ACTIVATION\"} 6291456\n");
	assert_null(strstr(text, "just gone"));
}

/* Return the names of a line's labels in order, without the limit of a bucket: "pool,UUID". */
static void label_names(const char *line, char names[128])
{
	const char *at = line + strcspn(line, "{ ");

	names[0] = '\0';
	if (*at != '{')
		return;
	do {
		size_t length = strcspn(++at, "=");

		if (length != 2 || strncmp(at, "le", 2))
			sprintf(names + strlen(names), "%s%.*s", names[0] ? "," : "", (int)length, at);
		at = strchr(at + length + 2, '"') + 1;
	} while (*at == ',');
	assert_int_equal(*at, '}');
}

/* Check that the metric has at least one line, and that each line has the labels. */
static void expect_labels(const char *metric, const char *labels)
{
	size_t length = strlen(metric);
	char names[128];
	int found = 0;

	for (const char *line = text; line; line = strchr(line, '\n'), line += line ? 1 : 0) {
		if (strncmp(line, metric, length) || !strchr("{ _", line[length]))
			continue;
		if (line[length] == '_' && strncmp(line + length, "_bucket{", 8) &&
			strncmp(line + length, "_sum{", 5) && strncmp(line + length, "_count{", 7))
			continue;
		label_names(line, names);
		assert_string_equal(names, labels);
		found++;
	}
	if (!found)
		fail_msg("there is no line of %s in:\n%s", metric, text);
}

static const struct scope {
	const char *name, *labels;
} scopes[] = {
#define SCOPE(name, labels, text) {#name, labels},
#include "tools/exporter/metrics.def"
};

static const struct metric {
	const char *scope, *name;
} metrics[] = {
#define METRIC(scope, kind, name, help, value) {#scope, #name},
#define HISTOGRAM(scope, name, help, member) {#scope, #name},
#include "tools/exporter/metrics.def"
};

static const char *labels_of(const struct metric *metric)
{
	for (size_t i = 0; i < sizeof(scopes) / sizeof(scopes[0]); i++)
		if (!strcmp(scopes[i].name, metric->scope))
			return scopes[i].labels;
	fail_msg("no scope %s", metric->scope);
	return NULL;
}

/* The printed metrics are those that docs/metrics.md lists. Requirements: U23. */
static void test_labels_are_those_documented(void **state)
{
	struct msg_pool_status *pool = &sample.status.pools[0];
	struct msg_tenant_entry *tenant = sample.tenants.tenants;

	(void)state;
	strcpy(pool->name, "p0");
	pool->free_pages = 1;
	sample.tenants.tenants_count = 1;
	strcpy(tenant->pool, "p0");
	strcpy(tenant->name, "t");
	sample.pools[0].totals.latencies_count = 32;
	sample.usages[0][1].hits = 9;
	sample.usages[0][4].refusals = 3;
	sample.usages[0][4].latencies_count = SESSION_HISTOGRAM;
	sample.usages[0][4].latencies[6].allocations = 2; /* 64 to 128 ns */
	print();
	for (size_t i = 0; i < sizeof(metrics) / sizeof(metrics[0]); i++) {
		expect_labels(metrics[i].name, labels_of(&metrics[i]));
	}
	expect("\ngpool_tenant_usage_bytes{pool=\"p0\",UUID=\"GPU-1\",tenant=\"t\",usage=\"GRADIENT\"} 0\n");
#define OF_USAGE(name) "{pool=\"p0\",UUID=\"GPU-1\",tenant=\"t\",usage=\"" name "\""
	expect("\ngpool_tenant_usage_refusals_total" OF_USAGE("GRADIENT") "} 3\n");
	expect("\ngpool_tenant_usage_refusals_total" OF_USAGE("ACTIVATION") "} 0\n");
	expect("\ngpool_tenant_usage_hits_total" OF_USAGE("LORA_WEIGHT") "} 9\n");
	assert_null(strstr(text, "gpool_tenant_usage_hits_total" OF_USAGE("GRADIENT")));
	expect("\ngpool_tenant_usage_allocation_duration_seconds_bucket" OF_USAGE("GRADIENT") ",le=\"1.28e-07\"} 2\n");
	expect("\ngpool_tenant_usage_allocation_duration_seconds_count" OF_USAGE("KV_CACHE") "} 0\n");
}

static void test_histogram(void **state)
{
	struct msg_totals_reply *totals = &sample.pools[0].totals;

	(void)state;
	totals->latencies_count = 32;
	totals->latencies[2].allocations = 1;    /* 4 to 8 ns: below the first bucket */
	totals->latencies[6].allocations = 10;   /* 64 to 128 ns */
	totals->latencies[31].allocations = 100; /* above the last bucket */
	print();
	expect("gpool_allocation_duration_seconds_bucket{" LABELS ",le=\"6.4e-08\"} 1\n");
	expect("gpool_allocation_duration_seconds_bucket{" LABELS ",le=\"1.28e-07\"} 11\n");
	expect("gpool_allocation_duration_seconds_bucket{" LABELS ",le=\"1.07374182\"} 11\n");
	expect("gpool_allocation_duration_seconds_bucket{" LABELS ",le=\"+Inf\"} 111\n");
	expect("gpool_allocation_duration_seconds_sum{" LABELS "} 322.122548\n");
	expect("gpool_allocation_duration_seconds_count{" LABELS "} 111\n");
	expect("gpool_refill_duration_seconds_count{" LABELS "} 0\n");
}

static void test_no_answer(void **state)
{
	(void)state;
	sample.up = false;
	print();
	expect("\ngpool_up 0\n");
	expect("\ngpool_exporter_samples_total 0\n");
	assert_null(strstr(text, "gpool_pool"));
	assert_null(strstr(text, "gpool_agent"));
}

static void test_document_is_up_to_date(void **state)
{
	static const char path[] = "docs/metrics.md";
	static char found[65536];
	FILE *file = fopen(path, "r"), *memory;
	size_t bytes;

	(void)state;
	if (!file)
		fail_msg("cannot open '%s'; run this test from the root of the source tree", path);
	found[fread(found, 1, sizeof(found) - 1, file)] = '\0';
	fclose(file);
	memory = open_memstream(&text, &bytes);
	assert_non_null(memory);
	metrics_document(memory);
	assert_int_equal(fclose(memory), 0);
	if (strcmp(found, text))
		fail_msg("'%s' is out of date; make docs", path);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_values_and_labels, setup, teardown),
		cmocka_unit_test_setup_teardown(test_tenants, setup, teardown),
		cmocka_unit_test_setup_teardown(test_labels_are_those_documented, setup, teardown),
		cmocka_unit_test_setup_teardown(test_histogram, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_answer, setup, teardown),
		cmocka_unit_test_setup_teardown(test_document_is_up_to_date, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
