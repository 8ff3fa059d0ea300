#include "tools/exporter/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum scope {
#define SCOPE(name, labels, text) SCOPE_##name,
#include "tools/exporter/metrics.def"
	SCOPES
};

/* The object that a line of a metric describes; NULL or 0 for parts that its scope does not have. */
struct item {
	const struct sample *sample;
	const struct pool_sample *pool;
	const struct msg_tenant_entry *tenant;
	const struct msg_tenant_totals_reply *usages; /* [BLOCK_USAGES], of this tenant */
	unsigned index;                               /* index of the tier, class or usage */
};

enum { HISTOGRAM_FIRST = 5, HISTOGRAM_LAST = 29 }; /* buckets from 64 ns to about a second */

static const char *const tiers[] = {"memory", "file"};
static const char *const classes[OBJECT_CLASSES] = {"immutable", "mutable", "ephemeral", "pinnable"};
static const char *const usages[BLOCK_USAGES] = {"KV_CACHE", "LORA_WEIGHT", "TEMP_BUFFER", "ACTIVATION", "GRADIENT"};
#define COUNT(array) ((unsigned)(sizeof(array) / sizeof(*(array))))

/* ---- values, by their names in metrics.def ---- */

#define STATUS(field) (double)it->pool->status->field
#define BYTES(field) (STATUS(field) * STATUS(page_size))
#define TENANT_BYTES(field) ((double)it->tenant->field * STATUS(page_size))
#define COUNTED(name) (double)it->pool->counters[POOL_COUNT_##name]
#define TOTAL(field) (double)it->pool->totals.field
#define RATIO(part, whole) ((whole) > 0 ? (part) / (whole) : NAN)

static double process_cpu_seconds(void)
{
	struct timespec used;

	return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) ? NAN : (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

static double process_resident_bytes(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	unsigned long pages;
	int found = file ? fscanf(file, "%*u %lu", &pages) : 0;

	if (file)
		fclose(file);
	return found == 1 ? (double)pages * (double)sysconf(_SC_PAGESIZE) : NAN;
}

#define USAGE(field) (double)it->usages[it->index].field
#define USAGE_HITS(field) (it->index < 2 ? USAGE(field) : NAN) /* KV_CACHE and LORA_WEIGHT */

/* Return the number of measurements in a bucket. */
#define LATENCY(field) (bucket < it->pool->totals.latencies_count ? it->pool->totals.latencies[bucket].field : 0)
#define USAGE_LATENCY(field) \
	(bucket < it->usages[it->index].latencies_count ? it->usages[it->index].latencies[bucket].field : 0)

static uint64_t usage_pages(const struct msg_tenant_entry *tenant, unsigned usage)
{
	const uint64_t pages[] = {
		tenant->by_usage_0, tenant->by_usage_1, tenant->by_usage_2, tenant->by_usage_3, tenant->by_usage_4};

	return pages[usage];
}

/* ---- lines ---- */

static void label_print(FILE *to, char *separator, const char *name, const char *value)
{
	fprintf(to, "%c%s=\"", *separator, name);
	*separator = ',';
	for (; *value; value++) {
		if (*value == '\n') {
			fputs("\\n", to);
			continue;
		}
		if (*value == '\\' || *value == '"')
			fputc('\\', to);
		fputc(*value, to);
	}
	fputc('"', to);
}

/*
 * Print the opening brace and all labels, or nothing if there are none. Return: the separator before a further label.
 */
static char labels_print(FILE *to, enum scope scope, const struct item *it)
{
	char separator = '{';

	if (!it->pool)
		return separator;
	label_print(to, &separator, "pool", it->pool->status->name);
	label_print(to, &separator, "UUID", it->pool->status->device);
	if (scope == SCOPE_INFO) {
		label_print(to, &separator, "backend", it->pool->status->backend);
		label_print(to, &separator, "policy", it->pool->status->policy);
	}
	if (it->tenant)
		label_print(to, &separator, "tenant", it->tenant->name);
	if (scope == SCOPE_TIER)
		label_print(to, &separator, "tier", tiers[it->index]);
	if (scope == SCOPE_OBJECTS)
		label_print(to, &separator, "class", classes[it->index]);
	if (scope == SCOPE_USAGE)
		label_print(to, &separator, "usage", usages[it->index]);
	return separator;
}

static void value_print(FILE *to, double value)
{
	if (value >= 0 && value < 0x1p53 && value == floor(value))
		fprintf(to, " %" PRIu64 "\n", (uint64_t)value);
	else
		fprintf(to, " %.9g\n", value);
}

static void head_print(FILE *to, const char *name, const char *kind, const char *help)
{
	fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

static void line_print(FILE *to, const char *name, enum scope scope, const struct item *it, double value)
{
	if (isnan(value))
		return;
	fputs(name, to);
	if (labels_print(to, scope, it) == ',')
		fputc('}', to);
	value_print(to, value);
}

typedef uint64_t bucket_reader(const struct item *it, unsigned bucket);

static void bucket_print(
	FILE *to, const char *name, enum scope scope, const struct item *it, const char *limit, uint64_t count)
{
	char separator;

	fprintf(to, "%s_bucket", name);
	separator = labels_print(to, scope, it);
	label_print(to, &separator, "le", limit);
	fprintf(to, "} %" PRIu64 "\n", count);
}

static void histogram_print(FILE *to, const char *name, enum scope scope, const struct item *it, bucket_reader *read)
{
	char text[80], limit[32];
	uint64_t count = 0;
	double sum = 0;

	for (unsigned i = 0; i < SESSION_HISTOGRAM; i++) {
		uint64_t here = read(it, i);

		count += here;
		sum += (double)here * 1.5 * ldexp(1e-9, (int)i);
		if (i < HISTOGRAM_FIRST || i > HISTOGRAM_LAST)
			continue;
		snprintf(limit, sizeof(limit), "%.9g", ldexp(1e-9, (int)i + 1));
		bucket_print(to, name, scope, it, limit, count);
	}
	bucket_print(to, name, scope, it, "+Inf", count);
	snprintf(text, sizeof(text), "%s_sum", name);
	line_print(to, text, scope, it, sum);
	snprintf(text, sizeof(text), "%s_count", name);
	line_print(to, text, scope, it, (double)count);
}

/* ---- the metrics of a scope ---- */

struct lines {
	FILE *to;
	const char *name;
	enum scope scope;
	double (*value)(const struct item *it);
	bucket_reader *bucket; /* for a histogram */
};

static void item_print(const struct lines *lines, const struct item *it)
{
	if (lines->bucket)
		histogram_print(lines->to, lines->name, lines->scope, it, lines->bucket);
	else
		line_print(lines->to, lines->name, lines->scope, it, lines->value(it));
}

static void items_print(const struct lines *lines, struct item it, unsigned count)
{
	for (it.index = 0; it.index < count; it.index++)
		item_print(lines, &it);
}

static void pools_print(const struct lines *lines, struct item it, unsigned count)
{
	for (uint32_t i = 0; i < it.sample->status.pools_count; i++) {
		it.pool = &it.sample->pools[i];
		items_print(lines, it, count);
	}
}

static void tenants_print(const struct lines *lines, struct item it, unsigned count)
{
	for (uint32_t i = 0; i < it.sample->tenants.tenants_count; i++) {
		it.tenant = &it.sample->tenants.tenants[i];
		it.usages = it.sample->usages[i];
		it.pool = sampler_pool(it.sample, it.tenant->pool);
		if (it.pool)
			items_print(lines, it, count);
	}
}

static void scope_print(const struct lines *lines, const struct sample *sample)
{
	struct item it = {.sample = sample};

	switch (lines->scope) {
	case SCOPE_EXPORTER:
	case SCOPE_AGENT: items_print(lines, it, 1); break;
	case SCOPE_INFO:
	case SCOPE_POOL: pools_print(lines, it, 1); break;
	case SCOPE_TIER: pools_print(lines, it, COUNT(tiers)); break;
	case SCOPE_OBJECTS: pools_print(lines, it, COUNT(classes)); break;
	case SCOPE_TENANT: tenants_print(lines, it, 1); break;
	case SCOPE_USAGE: tenants_print(lines, it, COUNT(usages)); break;
	case SCOPES: break;
	}
}

#define METRIC(scope, kind, name, help, value) \
	static double value_##name(const struct item *it) \
	{ \
		(void)it; \
		return (double)(value); \
	}
#define HISTOGRAM(scope, name, help, count) \
	static uint64_t bucket_##name(const struct item *it, unsigned bucket) \
	{ \
		return count; \
	}
#include "tools/exporter/metrics.def"

static const struct metric {
	enum scope scope;
	const char *kind, *name, *help;
	double (*value)(const struct item *it);
	bucket_reader *bucket;
} metrics[] = {
#define METRIC(scope, kind, name, help, value) {SCOPE_##scope, #kind, #name, help, value_##name, NULL},
#define HISTOGRAM(scope, name, help, count) {SCOPE_##scope, "histogram", #name, help, NULL, bucket_##name},
#include "tools/exporter/metrics.def"
};

void metrics_print(FILE *to, const struct sample *sample)
{
	for (unsigned i = 0; i < COUNT(metrics); i++) {
		const struct metric *metric = &metrics[i];
		struct lines lines = {to, metric->name, metric->scope, metric->value, metric->bucket};

		if (!sample->up && metric->scope != SCOPE_EXPORTER)
			continue;
		head_print(to, metric->name, metric->kind, metric->help);
		scope_print(&lines, sample);
	}
}

/* ---- the document ---- */

static const struct scope_text {
	const char *labels, *text;
} scopes[SCOPES] = {
#define SCOPE(name, labels, text) {labels, text},
#include "tools/exporter/metrics.def"
};

static void scope_document(FILE *to, enum scope scope)
{
	const char *labels = scopes[scope].labels;

	fprintf(to, "\n## %s\n\n", scopes[scope].text);
	if (labels[0])
		fprintf(to, "Labels: `%s`\n\n", labels);
	fputs("| metric | kind | description |\n| --- | --- | --- |\n", to);
	for (unsigned i = 0; i < COUNT(metrics); i++)
		if (metrics[i].scope == scope)
			fprintf(to, "| `%s` | %s | %s |\n", metrics[i].name, metrics[i].kind, metrics[i].help);
}

void metrics_document(FILE *to)
{
	fputs("# Metrics of gpool-exporter\n\n"
	      "Generated by `make docs` from tools/exporter/metrics.def; `gpool-exporter --metrics` prints it.\n\n"
	      "Values are in bytes, in seconds, or ratios from 0 to 1; the name ends with the unit. The label `UUID`\n"
	      "identifies the GPU. NVIDIA's dcgm-exporter uses the same label, so queries can join its metrics with\n"
	      "`on (UUID)`. No label contains a process ID or the name of a session.\n",
		to);
	for (int scope = 0; scope < SCOPES; scope++)
		scope_document(to, (enum scope)scope);
}
