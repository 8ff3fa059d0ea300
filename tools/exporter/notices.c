#include "tools/exporter/notices.h"

#include "client/gpool.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LISTEN_MS = 250, AGAIN_MS = 1000 };

struct notices {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t stopped;
	const char *directory;
	int timeout_ms;
	bool stopping;
	uint64_t count;
	struct notice kept[NOTICES_KEPT];
};

static void notice_add(struct notices *notices, const struct gpool_event *event)
{
	struct notice *notice;

	pthread_mutex_lock(&notices->lock);
	notice = &notices->kept[notices->count % NOTICES_KEPT];
	notice->number = ++notices->count;
	notice->time_ms = event->time_ms;
	snprintf(notice->pool, sizeof(notice->pool), "%s", event->pool);
	snprintf(notice->text, sizeof(notice->text), "%s", event->text);
	pthread_mutex_unlock(&notices->lock);
}

static bool stopping(struct notices *notices)
{
	bool stopping;

	pthread_mutex_lock(&notices->lock);
	stopping = notices->stopping;
	pthread_mutex_unlock(&notices->lock);
	return stopping;
}

static void rest(struct notices *notices)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += AGAIN_MS / 1000;
	pthread_mutex_lock(&notices->lock);
	while (!notices->stopping && !pthread_cond_timedwait(&notices->stopped, &notices->lock, &until))
		;
	pthread_mutex_unlock(&notices->lock);
}

static void no_log(void *context, int level, const char *text)
{
	(void)context, (void)level, (void)text;
}

static struct gpool *attach(struct notices *notices)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool *pool;

	options.flags = GPOOL_OPEN_OBSERVER;
	options.directory = notices->directory;
	options.name = "gpool-exporter";
	options.timeout_ms = notices->timeout_ms;
	options.log = no_log; /* the sampler logs failures */
	return gpool_open(&options, &pool) ? NULL : pool;
}

static void listen_to(struct notices *notices, struct gpool *pool)
{
	struct gpool_event event = GPOOL_EVENT_INIT;
	int error = 0;

	while ((!error || error == -ETIMEDOUT) && !stopping(notices)) {
		error = gpool_event_next(pool, LISTEN_MS, &event);
		if (!error)
			notice_add(notices, &event);
	}
}

static void *run(void *context)
{
	struct notices *notices = context;

	while (!stopping(notices)) {
		struct gpool *pool = attach(notices);

		if (pool) {
			listen_to(notices, pool);
			gpool_close(pool);
		}
		rest(notices);
	}
	return NULL;
}

struct notices *notices_start(const char *directory, int timeout_ms)
{
	struct notices *notices = calloc(1, sizeof(*notices));

	if (!notices)
		return NULL;
	pthread_mutex_init(&notices->lock, NULL);
	pthread_cond_init(&notices->stopped, NULL);
	notices->directory = directory;
	notices->timeout_ms = timeout_ms;
	if (!pthread_create(&notices->thread, NULL, run, notices))
		return notices;
	free(notices);
	return NULL;
}

void notices_stop(struct notices *notices)
{
	if (!notices)
		return;
	pthread_mutex_lock(&notices->lock);
	notices->stopping = true;
	pthread_cond_signal(&notices->stopped);
	pthread_mutex_unlock(&notices->lock);
	pthread_join(notices->thread, NULL);
	pthread_cond_destroy(&notices->stopped);
	pthread_mutex_destroy(&notices->lock);
	free(notices);
}

int notices_next(struct notices *notices, uint64_t seen, struct notice *notice)
{
	uint64_t next = seen + 1;
	int found;

	pthread_mutex_lock(&notices->lock);
	if (notices->count > NOTICES_KEPT && next < notices->count - NOTICES_KEPT + 1)
		next = notices->count - NOTICES_KEPT + 1;
	found = next <= notices->count;
	if (found)
		*notice = notices->kept[(next - 1) % NOTICES_KEPT];
	pthread_mutex_unlock(&notices->lock);
	return found;
}
