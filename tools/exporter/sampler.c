#include "tools/exporter/sampler.h"

#include "client/gpool.h"
#include "client/core/request.h"
#include "shm/monotonic.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sampler {
	pthread_mutex_t lock;
	const char *directory;
	int timeout_ms;
	void (*changed)(const struct sample *sample);
	struct gpool *pools[SAMPLE_POOLS]; /* [attached], in the agent's order */
	uint32_t attached;
	uint64_t ended_ms; /* time at which the sample was completed; 0: none yet */
	char logged[256];  /* last error that the library logged */
	uint8_t bytes[MSG_BYTES_MAX];
	struct sample sample;
	struct page_kinds *kinds[SAMPLE_POOLS]; /* of pools with viewers */
};

/* ---- attaching ---- */

static void log_keep(void *context, int level, const char *text)
{
	struct sampler *sampler = context;

	if (level == 0)
		snprintf(sampler->logged, sizeof(sampler->logged), "%s", text);
}

static void detach(struct sampler *sampler)
{
	for (uint32_t i = 0; i < sampler->attached; i++)
		gpool_close(sampler->pools[i]);
	sampler->attached = 0;
}

/* If the socket does not exist, gpoold does not run: gpoold keeps the socket while its agent restarts. */
static bool socket_missing(const struct sampler *sampler)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "%s/attach", sampler->directory) < (int)sizeof(path) &&
		access(path, F_OK) < 0 && errno == ENOENT;
}

static int attach(struct sampler *sampler, const char *name)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	int error;

	options.flags = GPOOL_OPEN_OBSERVER;
	options.directory = sampler->directory;
	options.pool = name;
	options.name = "gpool-exporter";
	options.timeout_ms = sampler->timeout_ms;
	options.log = log_keep;
	options.log_context = sampler;
	sampler->logged[0] = '\0';
	error = socket_missing(sampler) ? -ENOENT : gpool_open(&options, &sampler->pools[sampler->attached]);
	if (!error)
		sampler->attached++;
	return error;
}

/* ---- requests ---- */

#define ASK(sampler, pool, name, request, reply) \
	({ \
		uint8_t ask_[MSG_LARGEST_##name##_request]; \
		int length_ = msg_encode_##name##_request(request, 0, NULL, ask_, sizeof(ask_)); \
		length_ = pool_request(pool, ask_, (size_t)length_, (sampler)->bytes, sizeof((sampler)->bytes), \
			(sampler)->timeout_ms, NULL); \
		length_ < 0 ? length_ : msg_decode_##name##_reply(reply, (sampler)->bytes, (size_t)length_); \
	})

static int ask_status(struct sampler *sampler)
{
	return ASK(sampler, sampler->pools[0], status, &(struct msg_status_request){0}, &sampler->sample.status);
}

static int attach_all(struct sampler *sampler)
{
	int error = attach(sampler, NULL);

	if (!error)
		error = ask_status(sampler);
	while (!error && sampler->attached < sampler->sample.status.pools_count)
		error = attach(sampler, sampler->sample.status.pools[sampler->attached].name);
	return error;
}

static bool is_adapter(const struct object_record *record)
{
	return record->class == OBJECT_PINNABLE &&
		(!strncmp(record->name, "lora/", 5) || !strncmp(record->name, "warm/", 5));
}

static void object_count(struct object_sample *sample, const struct object_record *record)
{
	sample->versions++;
	sample->pages += record->pages;
}

/* Records may change during the scan; each is counted in the state in which it is read. */
static void objects_count(const struct pool_segment *segment, struct pool_sample *pool)
{
	uint32_t end = pool_object_end(segment);

	memset(pool->objects, 0, sizeof(pool->objects));
	memset(&pool->adapters, 0, sizeof(pool->adapters));
	for (uint32_t i = 1; i < end; i++) {
		const struct object_record *record = &segment->objects[i];
		uint32_t state = atomic_load_explicit(&record->state, memory_order_acquire), class = record->class;

		if (state == OBJECT_NONE || state == OBJECT_PUBLISHING || state == OBJECT_ENDING ||
			class >= OBJECT_CLASSES)
			continue;
		object_count(&pool->objects[class], record);
		if (is_adapter(record))
			object_count(&pool->adapters, record);
	}
}

static int pool_look(struct sampler *sampler, uint32_t index)
{
	const struct pool_segment *segment = pool_view(sampler->pools[index]);
	struct pool_sample *pool = &sampler->sample.pools[index];
	struct msg_totals_request request = {.pool = ""};

	pool->status = &sampler->sample.status.pools[index];
	for (int i = 0; i < POOL_COUNTERS; i++)
		pool->counters[i] = atomic_load_explicit(&segment->header->counters[i], memory_order_relaxed);
	for (int i = 0; i < PAGE_STATES; i++)
		pool->state_pages[i] = atomic_load_explicit(&segment->header->state_pages[i], memory_order_relaxed);
	objects_count(segment, pool);
	memcpy(request.pool, pool->status->name, sizeof(request.pool));
	return ASK(sampler, sampler->pools[0], totals, &request, &pool->totals);
}

static int usages_look(struct sampler *sampler, uint32_t index)
{
	const struct msg_tenant_entry *tenant = &sampler->sample.tenants.tenants[index];
	struct msg_tenant_totals_request request = {.pool = ""};
	int error = 0;

	memcpy(request.pool, tenant->pool, sizeof(request.pool));
	memcpy(request.tenant, tenant->name, sizeof(request.tenant));
	for (; !error && request.usage < BLOCK_USAGES; request.usage++)
		error = ASK(sampler, sampler->pools[0], tenant_totals, &request,
			&sampler->sample.usages[index][request.usage]);
	return error;
}

static int sample_fill(struct sampler *sampler)
{
	struct sample *sample = &sampler->sample;
	int error = sampler->attached ? ask_status(sampler) : attach_all(sampler);

	/* A different gpoold may have different pools. */
	if (!error && sample->status.pools_count != sampler->attached)
		error = -EPIPE;
	for (uint32_t i = 0; !error && i < sample->status.pools_count; i++)
		error = pool_look(sampler, i);
	if (!error)
		error = ASK(sampler, sampler->pools[0], tenants, &(struct msg_tenants_request){.pool = ""},
			&sample->tenants);
	for (uint32_t i = 0; !error && i < sample->tenants.tenants_count; i++)
		error = usages_look(sampler, i);
	return error;
}

static void sample_explain(struct sampler *sampler, int error)
{
	static const char who_may[] =
		"; add the user to access.observers of gpoold.conf, and to the group of the sockets";
	const char *detail = sampler->logged, *hint = error == -EACCES ? who_may : "";

	snprintf(sampler->sample.why, sizeof(sampler->sample.why), "the agent in '%s' does not answer: %s%s%s%s",
		sampler->directory, gpool_strerror(error), detail[0] ? ": " : "", detail, hint);
}

/* A restart of gpoold ends the sessions, so the first attempt fails and the second attaches again. */
static void sample_take(struct sampler *sampler)
{
	struct sample *sample = &sampler->sample;
	bool was_up = sample->up, first = !sample->taken;
	uint64_t begin = monotonic_ns(), end;
	int error = sample_fill(sampler);

	if (error == -EPIPE) {
		detach(sampler);
		error = sample_fill(sampler);
	}
	end = monotonic_ns();
	sample->up = !error;
	sample->why[0] = '\0';
	if (error)
		sample_explain(sampler, error);
	sample->seconds = (double)(end - begin) / 1e9;
	sample->taken++;
	sampler->ended_ms = end / 1000000;
	if (sampler->changed && (first || was_up != sample->up))
		sampler->changed(sample);
}

/* ---- functions for callers ---- */

struct sampler *sampler_create(const char *directory, int timeout_ms, void (*changed)(const struct sample *sample))
{
	struct sampler *sampler = calloc(1, sizeof(*sampler));

	if (!sampler)
		return NULL;
	pthread_mutex_init(&sampler->lock, NULL);
	sampler->directory = directory;
	sampler->timeout_ms = timeout_ms;
	sampler->changed = changed;
	return sampler;
}

void sampler_destroy(struct sampler *sampler)
{
	if (!sampler)
		return;
	detach(sampler);
	pthread_mutex_destroy(&sampler->lock);
	for (int i = 0; i < SAMPLE_POOLS; i++)
		free(sampler->kinds[i]);
	free(sampler);
}

const struct sample *sampler_look(struct sampler *sampler)
{
	uint64_t asked_ms = monotonic_ms();

	pthread_mutex_lock(&sampler->lock);
	if (!sampler->sample.taken || sampler->ended_ms + SAMPLE_MS < asked_ms)
		sample_take(sampler);
	return &sampler->sample;
}

void sampler_hold(struct sampler *sampler)
{
	pthread_mutex_lock(&sampler->lock);
}

void sampler_done(struct sampler *sampler)
{
	pthread_mutex_unlock(&sampler->lock);
}

const struct pool_sample *sampler_pool(const struct sample *sample, const char *name)
{
	for (uint32_t i = 0; i < sample->status.pools_count; i++)
		if (!strcmp(sample->pools[i].status->name, name))
			return &sample->pools[i];
	return NULL;
}

/* ---- pages; the caller holds the lock ---- */

static int pool_index(const struct sampler *sampler, const char *name)
{
	const struct pool_sample *pool = sampler->sample.up ? sampler_pool(&sampler->sample, name) : NULL;

	return pool ? (int)(pool - sampler->sample.pools) : -1;
}

static int kinds_ask(struct sampler *sampler, struct page_kinds *kinds)
{
	static struct msg_page_kinds_reply reply; /* protected by the lock */
	struct msg_page_kinds_request request = {.pool = ""};
	int error;

	memcpy(request.pool, kinds->pool, sizeof(request.pool));
	do {
		error = ASK(sampler, sampler->pools[0], page_kinds, &request, &reply);
		if (!error &&
			(!reply.pages_count || reply.page_count > PAGES_MAX ||
				reply.pages_count > reply.page_count - request.first))
			error = -EBADMSG;
		if (error)
			return error;
		memcpy(&kinds->pages[request.first], reply.pages, reply.pages_count * sizeof(*reply.pages));
		request.first += reply.pages_count;
	} while (request.first < reply.page_count);
	kinds->count = reply.page_count;
	return 0;
}

const struct page_kinds *sampler_kinds(struct sampler *sampler, const char *pool)
{
	int index = pool_index(sampler, pool);
	struct page_kinds *kinds;

	if (index < 0)
		return NULL;
	if (!sampler->kinds[index])
		sampler->kinds[index] = calloc(1, sizeof(*kinds));
	kinds = sampler->kinds[index];
	if (!kinds)
		return NULL;
	if (kinds->taken_ms && !strcmp(kinds->pool, pool) && kinds->taken_ms + KINDS_MS >= monotonic_ms())
		return kinds;
	snprintf(kinds->pool, sizeof(kinds->pool), "%s", pool);
	kinds->taken_ms = 0;
	if (kinds_ask(sampler, kinds))
		return NULL;
	kinds->taken_ms = monotonic_ms();
	return kinds;
}

int sampler_page(struct sampler *sampler, const char *pool, uint32_t page, struct msg_page_entry *entry)
{
	static struct msg_pages_reply reply; /* protected by the lock */
	struct msg_pages_request request = {.pool = "", .first = page, .count = 1};
	int error;

	if (pool_index(sampler, pool) < 0)
		return -ENOENT;
	snprintf(request.pool, sizeof(request.pool), "%s", pool);
	error = ASK(sampler, sampler->pools[0], pages, &request, &reply);
	if (error)
		return error == -EBADMSG ? -EINVAL : error;
	if (reply.pages_count != 1)
		return -EINVAL;
	*entry = reply.pages[0];
	return 0;
}
