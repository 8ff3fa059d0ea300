/*
 * lora.c - register adapters, and report their state.
 */
#include "client/core/last_error.h"
#include "client/lora/format/memory_file.h"
#include "client/lora/load/limits.h"
#include "client/lora/load/lora.h"
#include "client/lora/load/rebalance.h"
#include "shm/plural.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/* ---- create and destroy ---- */

static const uint32_t FLAGS = GPOOL_LORA_INT8 | GPOOL_LORA_PRIVATE | GPOOL_LORA_SHARE_PAGES;

static int options_check(const struct gpool *pool, const struct gpool_lora_options *options)
{
	if (pool->session_kind)
		return fail_kind(pool);
	if (options->flags & ~FLAGS)
		return fail(
			-EINVAL, "flags are 0x%x, of which 0x%x are unknown", options->flags, options->flags & ~FLAGS);
	if (options->flags & GPOOL_LORA_INT8 && !options->cache_dir && !options->warm)
		return fail(-EINVAL, "GPOOL_LORA_INT8 requires cache_dir or warm");
	if (options->warm &&
		(!options->warm->alive || options->warm->session_kind ||
			!(options->warm->capabilities & GPU_CAP_HOST_POINTER)))
		return fail(-EINVAL, "warm must be a pool of the back end host, opened as a worker");
	if (!options->warm && (options->warm_adapters || options->warm_bytes || options->idle_ms))
		return fail(-EINVAL, "warm_adapters, warm_bytes and idle_ms require warm");
	if (options->element > GPOOL_LORA_BF16)
		return fail(-EINVAL, "element is %u; the maximum is %d", options->element, GPOOL_LORA_BF16);
	return options->load_threads <= LORA_THREADS_MAX
		? 0
		: fail(-EINVAL, "load_threads is %u; the maximum is %d", options->load_threads, LORA_THREADS_MAX);
}

static void lora_free(struct gpool_lora *lora)
{
	if (lora->cold_fd >= 0)
		close(lora->cold_fd);
	limits_end(lora);
	tails_end(&lora->tails);
	warm_kept_end(&lora->kept);
	pthread_cond_destroy(&lora->queued);
	pthread_cond_destroy(&lora->loaded);
	pthread_mutex_destroy(&lora->lock);
	free(lora->entries);
	free(lora);
}

int gpool_lora_create(struct gpool *pool, const struct gpool_lora_options *options, struct gpool_lora **lora)
{
	struct gpool_lora_options read = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *made;
	pthread_condattr_t clock;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (options)
		error = options_read(&read, sizeof(read), options);
	if (!error)
		error = options_check(pool, &read);
	if (error)
		return error;
	made = calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	made->pool = pool;
	made->warm = read.warm;
	made->element = (enum gpool_lora_element)read.element;
	memcpy(made->salt, read.salt, sizeof(made->salt));
	made->cold_fd = -1;
	made->int8 = read.flags & GPOOL_LORA_INT8;
	made->private = read.flags & GPOOL_LORA_PRIVATE;
	made->shares_pages = read.flags & GPOOL_LORA_SHARE_PAGES;
	tails_begin(&made->tails);
	rebalance_begin(made, read.rebalance_ms);
	TAILQ_INIT(&made->steps);
	TAILQ_INIT(&made->queue);
	TAILQ_INIT(&made->turns);
	TAILQ_INIT(&made->later);
	TAILQ_INIT(&made->resting);
	made->idle_ms = read.idle_ms;
	made->sleep_ns = UINT64_MAX;
	TAILQ_INIT(&made->drafts);
	pthread_mutex_init(&made->lock, NULL);
	pthread_mutex_init(&made->kept.lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&made->queued, &clock);
	pthread_cond_init(&made->loaded, &clock);
	pthread_condattr_destroy(&clock);
	if (read.cache_dir) {
		made->cold_fd = open(read.cache_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (made->cold_fd < 0)
			error = fail(-errno, "cannot open cache_dir '%s': %s", read.cache_dir, strerror(errno));
	}
	if (!error)
		error = limits_begin(made, &read);
	if (!error)
		error = loaders_start(made, read.load_threads ? read.load_threads : LORA_THREADS_DEFAULT);
	if (error) {
		loaders_end(made);
		lora_free(made);
		return error;
	}
	*lora = made;
	return 0;
}

static void counts_add(struct lora_counts *to, const struct lora_counts *counts)
{
	to->hits += counts->hits;
	to->shared += counts->shared;
	to->lost += counts->lost;
	to->rebalanced += counts->rebalanced;
	for (int i = 0; i < LORA_FROM_COUNT; i++)
		to->from[i] += counts->from[i];
}

static void entry_free(struct gpool_lora *lora, struct lora_entry *entry)
{
	counts_add(&lora->gone, &entry->counts);
	HASH_DEL(lora->by_name, entry);
	lora->entries[entry->id] = NULL;
	adapter_unref(entry->adapter);
	free(entry);
}

int gpool_lora_destroy(struct gpool_lora *lora)
{
	int error = 0;

	if (!lora)
		return 0;
	if (!lora->pool->alive)
		return -ECHILD;
	if (lora->users)
		return fail(-EBUSY, "the adapters have %u user%s; destroy their batches and schedulers first",
			lora->users, plural(lora->users));
	/* Loader threads may be working even if no caller waits. */
	pthread_mutex_lock(&lora->lock);
	for (uint32_t i = 0; i < lora->entry_count && !error; i++)
		if (lora->entries[i] && (lora->entries[i]->acquired || entry_is_used(lora, lora->entries[i])))
			error = fail_used(lora->entries[i]);
	pthread_mutex_unlock(&lora->lock);
	if (error)
		return error;
	loaders_end(lora);
	for (uint32_t i = 0; i < lora->entry_count && !error; i++) {
		if (!lora->entries[i])
			continue;
		error = entry_close(lora, lora->entries[i]);
		if (!error)
			entry_free(lora, lora->entries[i]);
	}
	if (!error)
		lora_free(lora);
	return error;
}

/* ---- register ---- */

/* Assign a number to an adapter and add its name; under the lock. */
static int entry_add(struct gpool_lora *lora, struct lora_entry *entry, uint32_t pages, struct reason *reason)
{
	struct lora_entry *other;
	uint32_t id = 0;
	int error;

	HASH_FIND_STR(lora->by_name, entry->adapter->name, other);
	if (other)
		return -EEXIST;
	while (id < lora->entry_count && lora->entries[id])
		id++;
	if (id == lora->entry_room) {
		uint32_t room = lora->entry_room ? lora->entry_room * 2 : 64;
		struct lora_entry **entries = realloc(lora->entries, room * sizeof(struct lora_entry *));

		if (!entries)
			return -ENOMEM;
		lora->entries = entries;
		lora->entry_room = room;
	}
	HASH_ADD_KEYPTR(hh, lora->by_name, entry->adapter->name, strlen(entry->adapter->name), entry);
	if (entry->unnamed)
		return -ENOMEM;
	error = lora->residency ? limits_register(lora, id, pages, reason) : 0;
	if (error) {
		HASH_DEL(lora->by_name, entry);
		return error;
	}
	entry->id = id;
	lora->entries[id] = entry;
	lora->entry_count += id == lora->entry_count;
	return 0;
}

/* Check the texts of a call. what: the second text, for the reason. */
static int texts_check(const struct gpool_lora *lora, const char *name, const char *text, const char *what)
{
	if (!lora->pool->alive)
		return -ECHILD;
	if (!name || !*name || !text)
		return fail(-EINVAL, "%s is empty", name && *name ? what : "the name of the adapter");
	if (strlen(name) >= LORA_NAME_BYTES)
		return fail(-EINVAL, "the name of the adapter has %zu byte%s; the maximum is %d", strlen(name),
			plural(strlen(name)), LORA_NAME_BYTES - 1);
	return 0;
}

/* Register an adapter, of which this call takes the reference. */
static int adapter_register(struct gpool_lora *lora, struct adapter *adapter, uint32_t *id, struct reason *reason)
{
	struct lora_entry *entry = calloc(1, sizeof(*entry));
	uint32_t pages = 0;
	int error = entry ? 0 : -ENOMEM;

	if (!error && lora->residency)
		error = adapter_pages(lora, adapter, &pages, reason);
	if (!error) {
		entry->adapter = adapter;
		pthread_mutex_lock(&lora->lock);
		error = entry_add(lora, entry, pages, reason);
		if (!error)
			*id = entry->id;
		pthread_mutex_unlock(&lora->lock);
		if (error == -EEXIST)
			refuse(reason, "adapter '%s' is already registered; unregister it first", adapter->name);
	}
	if (error) {
		adapter_unref(adapter);
		free(entry);
	}
	return error;
}

static int reason_give(int error, const struct reason *reason, char *why)
{
	if (why)
		memcpy(why, reason->text, sizeof(reason->text));
	return error && reason->text[0] ? fail(error, "%s", reason->text) : error;
}

int gpool_lora_register(struct gpool_lora *lora, const char *name, const char *folder, uint32_t *id, char *why)
{
	struct adapter *adapter;
	struct reason reason = {""};
	int error = texts_check(lora, name, folder, "folder");

	if (error)
		return error;
	/* The path of a file in it would begin with a slash, and name a file of the root directory. */
	error = *folder ? adapter_create(name, folder, &adapter, &reason) : refuse(&reason, "folder is empty");
	if (!error)
		error = adapter_register(lora, adapter, id, &reason);
	return reason_give(error, &reason, why);
}

/* Register an adapter with its weights in a sealed file, which this call closes after an error. */
static int memory_register(struct gpool_lora *lora, const char *name, const char *config, int weights_fd, uint32_t *id,
	struct reason *reason)
{
	struct adapter *adapter;
	int files[2] = {-1, weights_fd},
	    error = memory_file_of("adapter_config.json", config, strlen(config), &files[0], reason);

	if (!error)
		error = adapter_create_memory(name, files, &adapter, reason);
	if (!error)
		return adapter_register(lora, adapter, id, reason);
	if (files[0] >= 0)
		close(files[0]);
	close(weights_fd);
	return error;
}

int gpool_lora_register_buffer(struct gpool_lora *lora, const char *name, const char *config, const void *weights,
	uint64_t bytes, uint32_t *id, char *why)
{
	struct reason reason = {""};
	int fd, error = texts_check(lora, name, config, "config");

	if (error)
		return error;
	if (!weights)
		return fail(-EINVAL, "weights is NULL");
	error = memory_file_of(PEFT_WEIGHTS_NAME, weights, bytes, &fd, &reason);
	if (!error)
		error = memory_register(lora, name, config, fd, id, &reason);
	return reason_give(error, &reason, why);
}

int gpool_lora_register_arrays(struct gpool_lora *lora, const char *name, const char *config,
	const struct gpool_lora_array *arrays, uint32_t count, uint32_t *id, char *why)
{
	struct reason reason = {""};
	int fd, error = texts_check(lora, name, config, "config");

	if (error)
		return error;
	if (!arrays)
		return fail(-EINVAL, "arrays is NULL");
	error = memory_file_of_arrays(arrays, count, &fd, &reason);
	if (!error)
		error = memory_register(lora, name, config, fd, id, &reason);
	return reason_give(error, &reason, why);
}

/* ---- tenants ---- */

static bool is_tenant_name(const char *name)
{
	return name && isalnum((unsigned char)*name) &&
		strspn(name, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-") == strlen(name);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Write the names in ascending order, separated by commas, each once. Return: false if they are too long. */
static bool tenants_join(const char **tenants, uint32_t count, char list[LORA_TENANTS_BYTES])
{
	size_t used = 0;

	qsort(tenants, count, sizeof(*tenants), by_text);
	for (uint32_t i = 0; i < count; i++) {
		if (i && !strcmp(tenants[i], tenants[i - 1]))
			continue;
		used += (size_t)snprintf(list + used, LORA_TENANTS_BYTES - used, "%s%s", used ? "," : "", tenants[i]);
		if (used >= LORA_TENANTS_BYTES)
			return false;
	}
	return true;
}

static int tenants_check(
	const struct gpool_lora *lora, const char *const *tenants, uint32_t count, char list[LORA_TENANTS_BYTES])
{
	const char *sorted[LORA_TENANTS_BYTES];
	bool own = false;

	if (lora->private)
		return fail(-EINVAL, "the adapters of this set are private to the tenant (GPOOL_LORA_PRIVATE)");
	if (!tenants || !count || count > LORA_TENANTS_BYTES / 2)
		return fail(-EINVAL, "%u tenant%s; there must be 1 to %d", tenants ? count : 0,
			plural(tenants ? count : 0), LORA_TENANTS_BYTES / 2);
	for (uint32_t i = 0; i < count; i++) {
		if (!is_tenant_name(tenants[i]))
			return fail(-EINVAL, "tenant %u has no valid name", i);
		sorted[i] = tenants[i];
		own |= !strcmp(tenants[i], pool_tenant_name(lora->pool));
	}
	if (!own)
		return fail(-EPERM, "the tenant of this session, '%s', is not among the tenants",
			pool_tenant_name(lora->pool));
	return tenants_join(sorted, count, list)
		? 0
		: fail(-EINVAL, "the names of the tenants have more than %d bytes", LORA_TENANTS_BYTES - 1);
}

int gpool_lora_restrict(struct gpool_lora *lora, uint32_t id, const char *const *tenants, uint32_t count)
{
	char list[LORA_TENANTS_BYTES];
	struct lora_entry *entry;
	int error;

	if (!lora->pool->alive)
		return -ECHILD;
	error = tenants_check(lora, tenants, count, list);
	if (error)
		return error;
	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	if (!entry)
		error = fail_adapter(id);
	else if (entry->load_state != LOAD_COLD || entry->adapter->known || entry->adapter->refs > 1)
		error = fail(-EBUSY, "adapter '%s' has been loaded; restrict it before its first load",
			entry->adapter->name);
	else
		strcpy(entry->adapter->tenants, list);
	pthread_mutex_unlock(&lora->lock);
	return error;
}

struct lora_entry *entry_of(const struct gpool_lora *lora, uint32_t id)
{
	return id < lora->entry_count ? lora->entries[id] : NULL;
}

int gpool_lora_find(struct gpool_lora *lora, const char *name, uint32_t *id)
{
	struct lora_entry *entry;

	if (!lora->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&lora->lock);
	HASH_FIND_STR(lora->by_name, name, entry);
	if (entry)
		*id = entry->id;
	pthread_mutex_unlock(&lora->lock);
	return entry ? 0 : fail(-ENOENT, "no adapter '%s' is registered", name);
}

int gpool_lora_unregister(struct gpool_lora *lora, uint32_t id)
{
	struct lora_entry *entry;
	int error;

	if (!lora->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	if (!entry)
		error = fail_adapter(id);
	else if (entry->acquired || entry->waiting || entry->requests || entry->load ||
		entry->state == GPOOL_LORA_LOADING)
		error = fail_used(entry);
	else
		error = entry_close(lora, entry);
	if (!error && lora->residency && limits_unregister(lora, entry))
		error = fail_used(entry);
	if (!error)
		entry_free(lora, entry);
	pthread_mutex_unlock(&lora->lock);
	return error;
}

/* ---- inspect ---- */

static uint64_t loads_of(const struct lora_counts *counts)
{
	return counts->from[LORA_FROM_WARM] + counts->from[LORA_FROM_COLD] + counts->from[LORA_FROM_PEFT];
}

int gpool_lora_last_error(struct gpool_lora *lora, uint32_t id, char *why)
{
	const struct lora_entry *entry;

	if (!lora->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	if (entry)
		memcpy(why, entry->error ? entry->reason.text : "", entry->error ? sizeof(entry->reason.text) : 1);
	pthread_mutex_unlock(&lora->lock);
	return entry ? 0 : fail_adapter(id);
}

/* Copy as much as fits in the caller's struct, and fill the rest of the struct with zeros. */
static void struct_give(void *to, uint32_t size, const void *filled, size_t bytes)
{
	if (size > bytes)
		memset((char *)to + bytes, 0, size - bytes);
	memcpy(to, filled, size < bytes ? size : bytes);
}

/* Return true if the adapter is complete in the pool, and neither evicted nor unloaded. */
static bool is_hot(const struct gpool_lora *lora, const struct lora_entry *entry)
{
	struct gpool_object_info info = {.size = sizeof(info)};

	if (entry->state != GPOOL_LORA_RESIDENT)
		return false;
	if (entry->load)
		return true;
	return !entry_is_gone(lora, entry) &&
		(!entry->object || (!gpool_object_info(entry->object, &info) && info.state == GPOOL_OBJECT_CURRENT));
}

static enum gpool_lora_tier tier_of(const struct gpool_lora *lora, const struct lora_entry *entry)
{
	const char *copy = entry->adapter->warm_name;

	if (is_hot(lora, entry))
		return GPOOL_LORA_TIER_HOT;
	return lora->warm && entry->adapter->known && gpool_object_find(lora->warm, &copy, 1) == 1
		? GPOOL_LORA_TIER_WARM
		: GPOOL_LORA_TIER_COLD;
}

static enum gpool_lora_activity activity_of(struct gpool_lora *lora, struct lora_entry *entry)
{
	bool active = entry->acquired || entry_is_used(lora, entry);

	if (entry->load_state == LOAD_QUEUED || entry->load_state == LOAD_QUEUED_UNASKED)
		return GPOOL_LORA_QUEUED;
	if (entry->state == GPOOL_LORA_LOADING)
		return GPOOL_LORA_IN_LOAD;
	if (is_hot(lora, entry))
		return active ? GPOOL_LORA_ACTIVE : GPOOL_LORA_IDLE;
	return active ? GPOOL_LORA_EVICTING : GPOOL_LORA_ABSENT;
}

/* Return the time of the last use, on the wall clock. */
static uint64_t used_ms(const struct gpool_lora *lora, const struct lora_entry *entry)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000 -
		(uint32_t)(pool_clock(lora->pool) - entry->used_ms);
}

int gpool_lora_info(struct gpool_lora *lora, uint32_t id, struct gpool_lora_info *info)
{
	struct gpool_lora_info filled = {.size = info->size};
	struct lora_entry *entry;

	if (!lora->pool->alive)
		return -ECHILD;
	if (filled.size < sizeof(filled.size))
		return fail_size(filled.size);
	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	if (entry) {
		filled.state = entry->state;
		filled.acquired = entry->acquired;
		filled.rank_max = entry->adapter->rank_max;
		filled.modules = entry->adapter->modules;
		filled.layers = entry->adapter->layers;
		if (entry->state == GPOOL_LORA_RESIDENT) {
			filled.pages = entry->adapter->layout.header->pages;
			filled.element = entry->adapter->layout.header->element == ADAPTER_F16 ? GPOOL_LORA_F16
											       : GPOOL_LORA_BF16;
		}
		filled.hits = entry->counts.hits;
		filled.loads = loads_of(&entry->counts);
		filled.shared = entry->counts.shared;
		filled.lost = entry->counts.lost;
		filled.rebalanced = entry->counts.rebalanced;
		filled.from_warm = entry->counts.from[LORA_FROM_WARM];
		filled.from_cold = entry->counts.from[LORA_FROM_COLD];
		filled.tier = tier_of(lora, entry);
		filled.activity = activity_of(lora, entry);
		filled.used_ms = entry->acquires ? used_ms(lora, entry) : 0;
		filled.served = entry->served;
		filled.targets = entry->adapter->target_count;
		memcpy(filled.name, entry->adapter->name, sizeof(filled.name));
	}
	pthread_mutex_unlock(&lora->lock);
	if (!entry)
		return fail_adapter(id);
	struct_give(info, filled.size, &filled, sizeof(filled));
	return 0;
}

int gpool_lora_target_name(struct gpool_lora *lora, uint32_t id, uint32_t index, char *name)
{
	const struct lora_entry *entry;
	const char *target;
	int error = 0;

	if (!lora->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&lora->lock);
	entry = entry_of(lora, id);
	if (!entry) {
		error = fail_adapter(id);
	} else if (index >= entry->adapter->target_count) {
		error = fail(-ENOENT, "adapter '%s' has %u target%s, and no target %u", entry->adapter->name,
			entry->adapter->target_count, plural(entry->adapter->target_count), index);
	} else {
		target = entry->adapter->targets;
		while (index--)
			target += strlen(target) + 1;
		snprintf(name, GPOOL_LORA_TARGET_BYTES, "%s", target);
	}
	pthread_mutex_unlock(&lora->lock);
	return error;
}

/* ---- statistics of all adapters ---- */

/* Add up the counts of all adapters; under the lock. */
static void entries_count(struct gpool_lora *lora, struct gpool_lora_stats *stats, struct lora_counts *counts)
{
	enum { AHEAD = 16 }; /* chosen: the entries of many adapters are not in the CPU's caches */

	*counts = lora->gone;
	stats->hot_bytes = tails_page_count(&lora->tails) * lora->pool->page_bytes;
	for (uint32_t i = 0; i < lora->entry_count; i++) {
		const struct lora_entry *entry = lora->entries[i],
					*next = lora->entry_count - i > AHEAD ? lora->entries[i + AHEAD] : NULL;

		if (next) {
			__builtin_prefetch(next);
			__builtin_prefetch((const char *)(&next->counts + 1) - 1);
		}
		if (!entry)
			continue;
		counts_add(counts, &entry->counts);
		stats->registered++;
		stats->resident += entry->state == GPOOL_LORA_RESIDENT;
		stats->active += entry->acquired > 0;
		if (entry->state == GPOOL_LORA_RESIDENT)
			stats->hot_bytes += (entry->adapter->layout.header->pages - (entry->tail.count > 0)) *
				lora->pool->page_bytes;
	}
}

/* Return the size of all adapters of a tier in a pool, of this process and others. */
static uint64_t objects_bytes(struct gpool *pool, const char *prefix)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0;
	uint64_t bytes = 0;

	while (pool && !gpool_object_next(pool, &cursor, &info))
		if (!strncmp(info.name, prefix, strlen(prefix)))
			bytes += info.pages * pool->page_bytes;
	return bytes;
}

static uint64_t pool_bytes(const struct gpool *pool)
{
	return pool ? pool->page_count * pool->page_bytes : 0;
}

static uint64_t evictions_of(const struct gpool *pool, enum pool_counter counter)
{
	return pool ? atomic_load_explicit(&pool->header->counters[counter], memory_order_relaxed) : 0;
}

static float share_of(uint64_t bytes, uint64_t limit)
{
	return limit ? (float)((double)bytes / (double)limit) : 0;
}

/* Return true for the name of a complete cold file. A file is renamed to this suffix when it is complete. */
static bool is_kept_file(const char *name)
{
	const char *suffix = strstr(name, LORA_COLD_SUFFIX);

	return suffix && !suffix[strlen(LORA_COLD_SUFFIX)];
}

static uint64_t cold_bytes(const struct gpool_lora *lora)
{
	int fd = lora->cold_fd < 0 ? -1 : openat(lora->cold_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *folder = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *file;
	struct stat status;
	uint64_t bytes = 0;

	while (folder && (file = readdir(folder)))
		if (is_kept_file(file->d_name) && !fstatat(lora->cold_fd, file->d_name, &status, AT_SYMLINK_NOFOLLOW))
			bytes += (uint64_t)status.st_size;
	if (folder)
		closedir(folder);
	else if (fd >= 0)
		close(fd);
	return bytes;
}

/* Return the free space for cold files, for this process. */
static uint64_t cold_free_bytes(const struct gpool_lora *lora)
{
	struct statvfs status;

	return lora->cold_fd < 0 || fstatvfs(lora->cold_fd, &status) ? 0 : status.f_bavail * status.f_frsize;
}

static void tiers_fill(struct gpool_lora *lora, struct gpool_lora_stats *stats)
{
	stats->hot_all_bytes =
		objects_bytes(lora->pool, LORA_PREFIX) + tails_page_count(&lora->tails) * lora->pool->page_bytes;
	stats->warm_bytes = objects_bytes(lora->warm, LORA_WARM_PREFIX);
	stats->cold_bytes = cold_bytes(lora);
	stats->hot_evictions = evictions_of(lora->pool, POOL_COUNT_ADAPTER_EVICTIONS);
	stats->warm_evictions = evictions_of(lora->warm, POOL_COUNT_COPY_EVICTIONS);
	stats->hot_limit_bytes = pool_bytes(lora->pool);
	stats->warm_limit_bytes = pool_bytes(lora->warm);
	stats->cold_limit_bytes = stats->cold_bytes + cold_free_bytes(lora);
	stats->hot_utilization = share_of(stats->hot_all_bytes, stats->hot_limit_bytes);
	stats->warm_utilization = share_of(stats->warm_bytes, stats->warm_limit_bytes);
	stats->cold_utilization = share_of(stats->cold_bytes, stats->cold_limit_bytes);
}

int gpool_lora_stats(struct gpool_lora *lora, struct gpool_lora_stats *stats)
{
	struct gpool_lora_stats filled = {.size = stats->size};
	struct lora_counts counts;

	if (!lora->pool->alive)
		return -ECHILD;
	if (filled.size < sizeof(filled.size))
		return fail_size(filled.size);
	pthread_mutex_lock(&lora->lock);
	entries_count(lora, &filled, &counts);
	filled.warm_made = lora->warm_made;
	filled.warm_full = lora->warm_full;
	filled.refused = lora->refused;
	filled.evicted = lora->evicted;
	filled.dropped = lora->dropped;
	pthread_mutex_unlock(&lora->lock);
	filled.hits = counts.hits;
	filled.loads = loads_of(&counts);
	filled.from_warm = counts.from[LORA_FROM_WARM];
	filled.from_cold = counts.from[LORA_FROM_COLD];
	filled.shared = counts.shared;
	filled.lost = counts.lost;
	filled.rebalanced = counts.rebalanced;
	tiers_fill(lora, &filled);
	struct_give(stats, filled.size, &filled, sizeof(filled));
	return 0;
}
