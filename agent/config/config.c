/*
 * config.c - the configuration as a whole: defaults, the command line, checks across keys, comparison at a reload.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "agent/config/config_value.h"
#include "shm/plural.h"
#include "shm/pool_segment.h"

enum { HUGE_PAGE = 2 << 20 }; /* on x86-64 */

void config_defaults(struct config *config)
{
	memset(config, 0, sizeof(*config));
	config_table_defaults(&config_keys, config);
}

uint32_t config_amount_pages(const struct config_amount *amount, uint64_t page_bytes, uint32_t page_count)
{
	uint64_t pages = 0;

	switch (amount->unit) {
	case CONFIG_AMOUNT_BYTES: pages = amount->value / page_bytes; break;
	case CONFIG_AMOUNT_PAGES: pages = amount->value; break;
	case CONFIG_AMOUNT_PERCENT: pages = page_count * amount->value / 100; break;
	}
	return pages > UINT32_MAX ? UINT32_MAX : (uint32_t)pages;
}

uint32_t config_spill_slots(const struct config_pool *pool, uint32_t *memory_slots)
{
	uint64_t memory = pool->spill_memory_bytes / pool->page_bytes;
	uint64_t file = pool->spill_directory[0] ? pool->spill_file_bytes / pool->page_bytes : 0;

	/* The keys allow at most 64 TiB each, together 2^28 pages of the smallest size: the sum fits into 32 bits. */
	*memory_slots = (uint32_t)memory;
	return (uint32_t)(memory + file);
}

/* ---- the command line ---- */

int config_set(struct config *config, const char *assignment, struct config_error *error)
{
	const char *equals = strchr(assignment, '=');
	const struct config_key *key;
	const struct config_synonym *synonym;
	char path[64], why[400];
	int source;

	if (!equals)
		return config_fail(error, -EINVAL, "--set '%.80s': expected KEY=VALUE", assignment);
	snprintf(path, sizeof(path), "%.*s", equals - assignment > 63 ? 63 : (int)(equals - assignment), assignment);
	key = config_key_given(&config_keys, path, &synonym);
	if (!key && (!strncmp(path, "pools", 5) || !strncmp(path, "tenants", 7)))
		return config_fail(error, -EINVAL,
			"--set %s: pools and tenants must be defined in the configuration file; --pool can also add a "
			"pool",
			path);
	if (!key)
		return config_fail(
			error, -EINVAL, "--set %s: unknown key; gpoold --print-config prints all keys", path);
	if (config_synonym_parse(synonym, key, equals + 1, config, why, sizeof(why)))
		return config_fail(error, -EINVAL, "--set %s: %s", path, why);
	source = config_source_add(config, "--set");
	config->origins[key - config_keys.keys] = source > 0 ? (uint32_t)source << 24 : 0;
	return 0;
}

/* Set one "key=value" of the option --pool. */
static int pool_assign(struct config_pool *pool, char *assignment, struct config_error *error)
{
	char *equals = strchr(assignment, '='), why[400];
	const struct config_synonym *synonym;
	const struct config_key *key;

	if (!equals)
		return config_fail(error, -EINVAL, "--pool: '%.80s': expected KEY=VALUE", assignment);
	*equals = '\0';
	key = config_key_given(&config_pool_keys, assignment, &synonym);
	if (!key)
		return config_fail(error, -EINVAL, "--pool: unknown key '%.60s'; gpoold --print-config prints all keys",
			assignment);
	if (config_synonym_parse(synonym, key, equals + 1, pool, why, sizeof(why)))
		return config_fail(error, -EINVAL, "--pool: %s: %s", assignment, why);
	if (!strcmp(key->path, "reserved"))
		pool->reserved_given = true;
	return 0;
}

int config_add_pool(struct config *config, const char *text, struct config_error *error)
{
	struct config_pool pool;
	char copy[512], *rest = copy, *assignment;
	int source;

	if (config->pool_count == CONFIG_POOLS_MAX)
		return config_fail(error, -EINVAL, "--pool: too many pools; the limit is %d", CONFIG_POOLS_MAX);
	if (strlen(text) >= sizeof(copy))
		return config_fail(error, -EINVAL, "--pool: the value is longer than %zu bytes", sizeof(copy) - 1);
	if (strncmp(text, "name=", 5) && !strstr(text, ",name="))
		return config_fail(
			error, -EINVAL, "--pool: '%.80s' has no name; expected name=NAME,size=SIZE,...", text);
	strcpy(copy, text);
	memset(&pool, 0, sizeof(pool));
	config_table_defaults(&config_pool_keys, &pool);
	while ((assignment = strsep(&rest, ",")))
		if (pool_assign(&pool, assignment, error))
			return -EINVAL;
	source = config_source_add(config, "--pool");
	pool.origin = source > 0 ? (uint32_t)source << 24 : 0;
	config->pools[config->pool_count++] = pool;
	return 0;
}

/* ---- checks across keys ---- */

const char *config_origin(const struct config *config, uint32_t origin, char *text, size_t text_bytes)
{
	const char *source = config->sources[origin >> 24];

	if (!origin)
		snprintf(text, text_bytes, "the defaults");
	else if (origin & 0xffffff)
		snprintf(text, text_bytes, "%s:%" PRIu32, source, origin & 0xffffff);
	else
		snprintf(text, text_bytes, "%s", source);
	return text;
}

/* Print the origin of the first key that was set among `paths`, a list that ends with NULL. */
static const char *keys_origin(const struct config *config, const char *const *paths, char *text, size_t text_bytes)
{
	uint32_t origin = 0;

	for (; !origin && *paths; paths++)
		origin = config->origins[config_key_find(&config_keys, *paths) - config_keys.keys];
	return config_origin(config, origin, text, text_bytes);
}
#define KEYS_ORIGIN(config, where, ...) \
	keys_origin(config, (const char *const[]){__VA_ARGS__, NULL}, where, sizeof(where))

static int keys_check(const struct config *config, struct config_error *error)
{
	char where[160];
	double sum = config->eviction.recency + config->eviction.size + config->eviction.priority;

	if (config->eviction.stop_percent >= config->eviction.start_percent)
		return config_fail(error, -EINVAL,
			"%s: eviction.stop (%" PRIu32 ") must be below eviction.start (%" PRIu32 ")",
			KEYS_ORIGIN(config, where, "eviction.stop", "eviction.start"), config->eviction.stop_percent,
			config->eviction.start_percent);
	if (sum < 0.999 || sum > 1.001)
		return config_fail(error, -EINVAL,
			"%s: the sum of eviction.recency, eviction.size and eviction.priority is %g, but must be 1",
			KEYS_ORIGIN(config, where, "eviction.recency", "eviction.size", "eviction.priority"), sum);
	if (config->pressure.medium_percent >= config->pressure.high_percent ||
		config->pressure.high_percent >= config->pressure.critical_percent)
		return config_fail(error, -EINVAL,
			"%s: pressure.medium (%" PRIu32 "), pressure.high (%" PRIu32 ") and pressure.critical (%" PRIu32
			") must be in ascending order",
			KEYS_ORIGIN(config, where, "pressure.medium", "pressure.high", "pressure.critical"),
			config->pressure.medium_percent, config->pressure.high_percent,
			config->pressure.critical_percent);
	if (config->lease.batch_most < config->lease.batch_pages)
		return config_fail(error, -EINVAL,
			"%s: lease.batch_most (%" PRIu32 ") must not be below lease.batch_pages (%" PRIu32 ")",
			KEYS_ORIGIN(config, where, "lease.batch_most", "lease.batch_pages"), config->lease.batch_most,
			config->lease.batch_pages);
	return 0;
}

static uint64_t handle_bytes_of(const struct config_pool *pool, uint64_t granularity)
{
	if (pool->handle_bytes)
		return pool->handle_bytes;
	return pool->page_bytes > granularity ? pool->page_bytes : granularity;
}

static int handle_check(
	const struct config_pool *pool, uint64_t granularity, const char *where, struct config_error *error)
{
	uint64_t bytes = handle_bytes_of(pool, granularity);

	if (bytes % pool->page_bytes)
		return config_fail(error, -EINVAL,
			"%s: pools.%s.handle_size of %" PRIu64 " byte%s is not a multiple of page_size, %" PRIu64
			" bytes",
			where, pool->name, bytes, plural(bytes), pool->page_bytes);
	if (granularity && bytes % granularity)
		return config_fail(error, -EINVAL,
			"%s: pools.%s.handle_size of %" PRIu64
			" byte%s is not a multiple of the device's granularity, %" PRIu64 " bytes",
			where, pool->name, bytes, plural(bytes), granularity);
	return 0;
}

int config_pool_measure(const struct config *config, const struct config_pool *pool, const struct config_device *device,
	struct config_measure *measure, struct config_error *error)
{
	struct config_measure found = {.handle_bytes = handle_bytes_of(pool, device->granularity)};
	uint64_t memory_bytes = device->memory_bytes / 100 * pool->size.value, pages;
	char where[160];

	config_origin(config, pool->origin, where, sizeof(where));
	if (handle_check(pool, device->granularity, where, error))
		return -EINVAL;
	if (pool->size.unit == CONFIG_AMOUNT_PERCENT && !device->memory_bytes) {
		if (pool->reserved.unit == CONFIG_AMOUNT_PERCENT && pool->reserved.value == 100)
			return config_fail(error, -EINVAL,
				"%s: pools.%s.reserved must be less than 100 percent of the pool", where, pool->name);
		*measure = found;
		return 0;
	}
	pages = pool->size.unit == CONFIG_AMOUNT_PAGES
		? pool->size.value
		: (pool->size.unit == CONFIG_AMOUNT_BYTES ? pool->size.value : memory_bytes) / pool->page_bytes;
	pages -= pages % (found.handle_bytes / pool->page_bytes);
	if (pages < 1 || pages > POOL_PAGES_MAX)
		return config_fail(error, -EINVAL,
			"%s: pools.%s.size gives %" PRIu64 " page%s of %" PRIu64 " bytes in handles of %" PRIu64
			"; expected 1 to %d pages",
			where, pool->name, pages, plural(pages), pool->page_bytes, found.handle_bytes, POOL_PAGES_MAX);
	found.pages = (uint32_t)pages;
	found.reserved = config_amount_pages(&pool->reserved, pool->page_bytes, found.pages);
	/* The default of 96 pages is meant for pools of thousands of pages. A configured number is not reduced. */
	if (!pool->reserved_given && found.reserved > found.pages / 16)
		found.reserved = found.pages / 16;
	if (found.reserved >= found.pages)
		return config_fail(error, -EINVAL,
			"%s: pools.%s.reserved (%" PRIu32 " page%s) must be less than the size of the pool (%" PRIu32
			" page%s)",
			where, pool->name, found.reserved, plural(found.reserved), found.pages, plural(found.pages));
	*measure = found;
	return 0;
}

/* Compute the properties of a pool that do not depend on its device, and check them. */
static int pool_measure(
	const struct config *config, uint32_t index, struct config_measure *measure, struct config_error *error)
{
	const struct config_device unknown = {0};

	return config_pool_measure(config, &config->pools[index], &unknown, measure, error);
}

static int pool_check(const struct config *config, uint32_t index, struct config_error *error)
{
	const struct config_pool *pool = &config->pools[index];
	struct config_measure measure;
	char where[160], other[160];

	config_origin(config, pool->origin, where, sizeof(where));
	for (uint32_t i = 0; i < index; i++)
		if (!strcmp(config->pools[i].name, pool->name))
			return config_fail(error, -EINVAL, "%s: pool '%s' is already defined at %s", where, pool->name,
				config_origin(config, config->pools[i].origin, other, sizeof(other)));
	if (pool->huge_pages && strcmp(pool->backend, "host"))
		return config_fail(
			error, -EINVAL, "%s: pools.%s.huge_pages requires the back end host", where, pool->name);
	if (pool->huge_pages && pool->page_bytes % HUGE_PAGE)
		return config_fail(error, -EINVAL,
			"%s: pools.%s.huge_pages requires a page_size of 2MiB or 4MiB, not %" PRIu64 " bytes", where,
			pool->name, pool->page_bytes);
	return pool_measure(config, index, &measure, error);
}

/*
 * Return true unless a tenant's minimum exceeds its limit. Without the pool's size, only values in the same unit can be
 * compared.
 */
static bool minimum_within_limit(const struct config_tenant *tenant, uint64_t page_bytes, uint32_t pages)
{
	if (pages)
		return config_amount_pages(&tenant->minimum, page_bytes, pages) <=
			config_amount_pages(&tenant->limit, page_bytes, pages);
	return tenant->minimum.unit != tenant->limit.unit || tenant->minimum.value <= tenant->limit.value;
}

static int minimum_exceeds(const struct config *config, const struct config_tenant *tenant,
	const struct config_pool *pool, struct config_error *error)
{
	char where[160], minimum[32], limit[32];

	config_value_format(config_key_find(&config_tenant_keys, "minimum"), tenant, minimum, sizeof(minimum));
	config_value_format(config_key_find(&config_tenant_keys, "limit"), tenant, limit, sizeof(limit));
	return config_fail(error, -EINVAL, "%s: the minimum of tenant '%s', %s, exceeds its limit in pool '%s', %s",
		config_origin(config, tenant->origin, where, sizeof(where)), tenant->name, minimum, pool->name, limit);
}

static int minima_check(const struct config *config, uint32_t index, struct config_error *error)
{
	const struct config_pool *pool = &config->pools[index];
	struct config_measure measure = {0};
	int rc = pool_measure(config, index, &measure, error);
	uint32_t pages = measure.pages, reserved = measure.reserved;
	uint64_t sum = 0, percent = 0;
	char where[160];

	if (rc)
		return rc;
	for (uint32_t i = 0; i < config->tenant_count; i++) {
		const struct config_tenant *tenant = &config->tenants[i];

		if (!minimum_within_limit(tenant, pool->page_bytes, pages))
			return minimum_exceeds(config, tenant, pool, error);
		if (tenant->minimum.unit == CONFIG_AMOUNT_PERCENT)
			percent += tenant->minimum.value;
		sum += pages ? config_amount_pages(&tenant->minimum, pool->page_bytes, pages) : 0;
	}
	config_origin(config, config->tenants[0].origin, where, sizeof(where));
	if (percent > 100)
		return config_fail(error, -EINVAL,
			"%s: the sum of the minima of all tenants is %" PRIu64 " percent of a pool; the limit is 100",
			where, percent);
	if (sum > pages - reserved)
		return config_fail(error, -EINVAL,
			"%s: the sum of the minima of all tenants is %" PRIu64 " page%s; pool '%s' has %" PRIu32
			" page%s, of which %" PRIu32 " are reserved",
			where, sum, plural(sum), pool->name, pages, plural(pages), reserved);
	return 0;
}

/* Return true if two lists have an id in common, and store the first one in *id. */
static bool names_overlap(const struct config_names *a, const struct config_names *b, uint32_t *id)
{
	for (uint32_t i = 0; i < a->count; i++)
		for (uint32_t j = 0; j < b->count; j++)
			if (a->ids[i] == b->ids[j]) {
				*id = a->ids[i];
				return true;
			}
	return false;
}

static bool takes_everyone(const struct config_tenant *tenant)
{
	return tenant->users.count == 0 && tenant->groups.count == 0;
}

static int tenant_pair_check(const struct config *config, const struct config_tenant *a, const struct config_tenant *b,
	struct config_error *error)
{
	char where[160], other[160];
	uint32_t id;

	config_origin(config, b->origin, where, sizeof(where));
	config_origin(config, a->origin, other, sizeof(other));
	if (!strcmp(a->name, b->name))
		return config_fail(error, -EINVAL, "%s: tenant '%s' is already defined at %s", where, b->name, other);
	if (names_overlap(&a->users, &b->users, &id))
		return config_fail(error, -EINVAL,
			"%s: user %" PRIu32
			" is listed in tenant '%s' and, at %s, in tenant '%s'; list it in one tenant only",
			where, id, b->name, other, a->name);
	if (names_overlap(&a->groups, &b->groups, &id))
		return config_fail(error, -EINVAL,
			"%s: group %" PRIu32
			" is listed in tenant '%s' and, at %s, in tenant '%s'; list it in one tenant only",
			where, id, b->name, other, a->name);
	if (takes_everyone(a) && takes_everyone(b))
		return config_fail(error, -EINVAL,
			"%s: tenant '%s' and, at %s, tenant '%s' have neither users nor groups; only one tenant may "
			"omit both",
			where, b->name, other, a->name);
	return 0;
}

static void default_tenant_add(struct config *config)
{
	struct config_tenant *tenant = &config->tenants[config->tenant_count++];

	memset(tenant, 0, sizeof(*tenant));
	config_table_defaults(&config_tenant_keys, tenant);
}

/* Store the pool's default of reserved pages as a number of pages, because tools and reloads compare it. */
static int reserved_lower(struct config *config, uint32_t index, struct config_error *error)
{
	struct config_pool *pool = &config->pools[index];
	struct config_measure measure;
	int rc = pool_measure(config, index, &measure, error);

	if (!rc && !pool->reserved_given && measure.pages)
		pool->reserved.value = measure.reserved;
	return rc;
}

int config_finish(struct config *config, struct config_error *error)
{
	int rc = keys_check(config, error);

	if (rc)
		return rc;
	if (config->pool_count == 0)
		return config_fail(error, -EINVAL,
			"no pool is configured; define one in the configuration file, or use --pool "
			"name=gpu0,backend=cuda,device=0,size=90%%");
	if (config->tenant_count == 0)
		default_tenant_add(config);
	for (uint32_t i = 0; rc == 0 && i < config->pool_count; i++) {
		rc = pool_check(config, i, error);
		if (!rc)
			rc = reserved_lower(config, i, error);
	}
	for (uint32_t i = 0; rc == 0 && i < config->pool_count; i++)
		rc = minima_check(config, i, error);
	for (uint32_t i = 1; rc == 0 && i < config->tenant_count; i++)
		for (uint32_t j = 0; rc == 0 && j < i; j++)
			rc = tenant_pair_check(config, &config->tenants[j], &config->tenants[i], error);
	return rc;
}

uint32_t config_domains(const struct config *config)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < config->tenant_count; i++) {
		bool seen = false;

		for (uint32_t j = 0; j < i && !seen; j++)
			seen = !strcmp(config->tenants[i].domain, config->tenants[j].domain);
		count += !seen;
	}
	return count;
}

/* ---- comparison at a reload ---- */

struct differences {
	char *texts[2]; /* indexed by enum config_reload */
	size_t bytes[2];
};

/* Append ", path", or "..." if it does not fit. */
static void difference_add(struct differences *out, enum config_reload reload, const char *path)
{
	char *text = out->texts[reload];
	size_t used = strlen(text), room = out->bytes[reload] - used, need = strlen(path) + (used ? 2 : 0);

	if (need < room)
		snprintf(text + used, room, "%s%s", used ? ", " : "", path);
	else if (out->bytes[reload] > 3)
		strcpy(text + (used + 3 < out->bytes[reload] ? used : out->bytes[reload] - 4), "...");
}

static void table_difference(const struct config_table *table, const char *prefix, const void *now, const void *next,
	struct differences *out)
{
	char a[CONFIG_VALUE_BYTES], b[CONFIG_VALUE_BYTES], path[160];

	for (size_t i = 0; i < table->count; i++) {
		const struct config_key *key = &table->keys[i];

		config_value_format(key, now, a, sizeof(a));
		config_value_format(key, next, b, sizeof(b));
		if (!strcmp(a, b))
			continue;
		snprintf(path, sizeof(path), "%s%s", prefix, key->path);
		difference_add(out, key->reload, path);
	}
}

static const struct config_pool *pool_find(const struct config *config, const char *name)
{
	for (uint32_t i = 0; i < config->pool_count; i++)
		if (!strcmp(config->pools[i].name, name))
			return &config->pools[i];
	return NULL;
}

static const struct config_tenant *tenant_find(const struct config *config, const char *name)
{
	for (uint32_t i = 0; i < config->tenant_count; i++)
		if (!strcmp(config->tenants[i].name, name))
			return &config->tenants[i];
	return NULL;
}

/*
 * List the elements of `a` that `b` lacks. With `compare`, also list the differences of elements in both; the caller
 * sets it for one of the two directions.
 */
static void pools_difference(const struct config *a, const struct config *b, bool compare, struct differences *out)
{
	char path[CONFIG_NAME_BYTES + 16];

	for (uint32_t i = 0; i < a->pool_count; i++) {
		const struct config_pool *other = pool_find(b, a->pools[i].name);

		if (!other) {
			snprintf(path, sizeof(path), "pools.%s", a->pools[i].name);
			difference_add(out, CONFIG_RELOAD_RESTART, path);
		} else if (compare) {
			snprintf(path, sizeof(path), "pools.%s.", a->pools[i].name);
			table_difference(&config_pool_keys, path, &a->pools[i], other, out);
		}
	}
}

static void tenants_difference(const struct config *a, const struct config *b, bool compare, struct differences *out)
{
	char path[CONFIG_NAME_BYTES + 16];

	for (uint32_t i = 0; i < a->tenant_count; i++) {
		const struct config_tenant *other = tenant_find(b, a->tenants[i].name);

		if (!other) {
			snprintf(path, sizeof(path), "tenants.%s", a->tenants[i].name);
			difference_add(out, CONFIG_RELOAD_APPLIES, path);
		} else if (compare) {
			snprintf(path, sizeof(path), "tenants.%s.", a->tenants[i].name);
			table_difference(&config_tenant_keys, path, &a->tenants[i], other, out);
		}
	}
}

void config_difference(const struct config *now, const struct config *next, char *applies, size_t applies_bytes,
	char *restart, size_t restart_bytes)
{
	struct differences out = {{applies, restart}, {applies_bytes, restart_bytes}};

	applies[0] = restart[0] = '\0';
	table_difference(&config_keys, "", now, next, &out);
	pools_difference(now, next, true, &out);
	pools_difference(next, now, false, &out);
	tenants_difference(now, next, true, &out);
	tenants_difference(next, now, false, &out);
}
