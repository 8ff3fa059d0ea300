/*
 * load.c - threads that bring adapters into the pool: by finding what another engine has published, or from the warmest source that there is.
 */
#include "client/lora/load.h"

#include "client/lora/cold_reader.h"
#include "client/lora/rebalance.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	TRIES = 8,      /* each of them ends by somebody else's work, publishing or evicting */
	WATCH_MS = 5,   /* for a fence; chosen: so long a load may wait for the only thread */
	LOADS_MAX = 32, /* under way at a time: each of them has its pages, and as many take turns. Chosen */
};

/* ---- steps of a load ---- */

static void shortage_say(struct lora_load *load, int error)
{
	struct gpool_shortage_object object = { .size = sizeof(object) };
	struct gpool_shortage shortage;
	char most[160] = "";

	if ((error != -ENOSPC && error != -EDQUOT) || load->reason.text[0])
		return;
	gpool_shortage(load->lora->pool, &shortage);
	if (!gpool_shortage_object(load->lora->pool, &object))
		snprintf(most, sizeof(most), ", of objects '%.60s' (%u, by session %u, %u times)", object.name, object.pages, object.session, object.pins);
	refuse(&load->reason, "%s: it needs %u pages; %u are free, %u are pinned, most of them (%u) by session %u%s; release adapters, or give the %s more",
		error == -ENOSPC ? "pool" : "limit", load->adapter->layout.header->pages, shortage.free, shortage.pinned, shortage.holder_pages,
		shortage.holder, most, error == -ENOSPC ? "pool" : "tenant");
}

/* Where its object lies, and the table of that on the device. */
static int place_make(struct lora_loader *loader, struct lora_load *load)
{
	uint64_t bytes;
	int error = gpool_object_address(load->object, 0, &load->base, &bytes);

	return error ? error : runs_make(loader, &load->adapter->layout, load->base, &load->runs);
}

/* Under the lock, for who begins to use it: there it will be. */
static void entry_place(struct lora_load *load)
{
	struct lora_entry *entry = load->entry;

	entry->base = load->base;
	entry->runs = load->runs;
	entry->placed = ++load->lora->placings;
	entry->ready = 0;
	entry->load = load;
	entry->granted = entry->beginning;
	entry->acquired += entry->beginning;
	entry->beginning = 0;
	pthread_cond_broadcast(&load->lora->loaded);
}

/* What another engine has is there; else there are pages, and a source to fill them from. */
static int load_begin(struct lora_loader *loader, struct lora_load *load)
{
	int error = adapter_know(load->lora, load->adapter, &load->files, &load->reason);

	if (error)
		return error;
	error = load_object_find(load, &load->object);
	load->stands = load->shared = !error;
	if (error == -ENOENT)
		error = load_object_begin(load);
	if (!error)
		error = place_make(loader, load);
	shortage_say(load, error);
	if (error || load->stands)
		return error;
	load->done = calloc(load->adapter->layout.header->pages, sizeof(*load->done));
	if (!load->done)
		return -ENOMEM;
	pthread_mutex_lock(&load->lora->lock);
	entry_place(load);
	pthread_mutex_unlock(&load->lora->lock);
	return source_open(load);
}

/* Its pages are filled, and nobody uses them. If somebody else was first, his are taken. */
static int load_publish(struct lora_loader *loader, struct lora_load *load)
{
	struct gpool_object *found;
	int error = 0;

	for (int i = 0; i < TRIES && !error; i++) {
		error = load_object_publish(load);
		load->stands = !error;
		if (error != -ESTALE)
			return error;
		error = load_object_find(load, &found);
		if (!error) {
			load_object_drop(load);
			load->object = found;
			load->stands = load->shared = true;
			return place_make(loader, load);
		}
		error = error == -ENOENT ? 0 : error;
	}
	return error ? error : -EAGAIN;
}

/* ---- its end ---- */

/* Copies are made when nobody waits for anything else. Without memory there are none. */
static void later_add(const struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;
	struct lora_later *later;

	if (load->shared || load->spare || ((!lora->warm || load->from == LORA_FROM_WARM) && (lora->cold_fd < 0 || load->from == LORA_FROM_COLD)))
		return;
	later = calloc(1, sizeof(*later));
	if (!later)
		return;
	*later = (struct lora_later){ .adapter = load->adapter, .from = load->from, .warm_refused = load->warm_refused, .cold_refused = load->cold_refused };
	later->adapter->refs++;
	TAILQ_INSERT_TAIL(&lora->later, later, link);
}

static void later_free(struct lora_later *later)
{
	adapter_unref(later->adapter);
	free(later);
}

/* Under the lock, once: it was brought here. */
static void load_count(struct lora_load *load)
{
	struct lora_entry *entry = load->entry;

	if (load->counted)
		return;
	load->counted = true;
	if (load->shared)
		entry->counts.shared++;
	else
		entry->counts.from[load->from]++;
	entry->counts.rebalanced += load->spare && !load->shared;
	later_add(load);
}

/* Under the lock. Who waits has it pinned; without anybody it may leave again. */
static void entry_here(struct lora_load *load)
{
	struct lora_entry *entry = load->entry;

	entry->object = load->object;
	entry->base = load->base;
	entry->runs = load->runs;
	entry->placed = ++load->lora->placings;
	entry->held = entry->waiting > 0;
	if (!entry->held)
		gpool_object_unpin(entry->object);
	load_count(load);
}

/* Under the lock, and out of any list. */
static void load_free(struct lora_load *load)
{
	adapter_unref(load->adapter);
	free(load->done);
	free(load);
}

/* Under the lock: one less is under way, and who waits for it looks. */
static void load_leave(struct gpool_lora *lora)
{
	lora->loads--;
	lora->crowded = false;
	lora->changes++;
	pthread_cond_broadcast(&lora->loaded);
	pthread_cond_broadcast(&lora->queued);
}

/* Published, or given up: nobody uses it, and nobody can begin to. */
static void load_end(struct lora_load *load, int error)
{
	struct gpool_lora *lora = load->lora;
	struct lora_entry *entry = load->entry;

	if (error && load->object)
		load_object_drop(load);
	pthread_mutex_lock(&lora->lock);
	entry->error = error;
	entry->reason = load->reason;
	entry->state = error ? GPOOL_LORA_COLD : GPOOL_LORA_HERE;
	entry->runs = (struct lora_runs){ 0 };
	if (!error)
		entry_here(load);
	load_leave(lora);
	pthread_mutex_unlock(&lora->lock);
	/* Unmapping a copy takes a while, for which nobody has to wait. */
	source_close(load);
	pthread_mutex_lock(&lora->lock);
	load_free(load);
	pthread_mutex_unlock(&lora->lock);
}

/* ---- drafts; under the lock ---- */

void draft_use(struct lora_entry *entry)
{
	struct lora_load *load = entry->load;

	if (!entry->acquired++ && load->rests) {
		TAILQ_REMOVE(&load->lora->drafts, load, link);
		load->listed = false;
	}
}

void draft_leave(struct lora_entry *entry)
{
	struct lora_load *load = entry->load;

	if (!load->rests)
		return;
	load->listed = true;
	TAILQ_INSERT_TAIL(&load->lora->drafts, load, link);
	pthread_cond_signal(&load->lora->queued);
}

static void draft_begin(struct lora_load *load, int error)
{
	struct lora_entry *entry = load->entry;

	load->rests = true;
	load->error = error;
	entry->error = error;
	entry->reason = load->reason;
	if (!error) {
		entry->state = GPOOL_LORA_HERE;
		load_count(load);
	}
	if (!entry->acquired)
		draft_leave(entry);
	load_leave(load->lora);
}

/* One whose work is done. */
static struct lora_load *draft_done(struct gpool_lora *lora)
{
	struct lora_load *load;

	TAILQ_FOREACH(load, &lora->drafts, link)
		if (!entry_is_used(lora, load->entry))
			return load;
	return NULL;
}

static void draft_end(struct lora_loader *loader, struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;
	int error = load->error;

	TAILQ_REMOVE(&lora->drafts, load, link);
	load->entry->load = NULL;
	load->entry->state = GPOOL_LORA_LOADING;
	lora->loads++;
	pthread_mutex_unlock(&lora->lock);
	load_end(load, error ? error : load_publish(loader, load));
	pthread_mutex_lock(&lora->lock);
}

/* In short waits, since there may be something to load meanwhile. */
static void drafts_watch(struct gpool_lora *lora)
{
	struct gpool_fence fence = TAILQ_FIRST(&lora->drafts)->entry->uses->fence;

	lora->watching = true;
	pthread_mutex_unlock(&lora->lock);
	gpool_fence_wait(lora->pool, fence, WATCH_MS);
	pthread_mutex_lock(&lora->lock);
	lora->watching = false;
}

/* ---- its parts are over ---- */

/* It is used already, or work of before still is: it is a draft until that is over, and its sources are closed before somebody else can have it. */
static bool is_draft(struct lora_load *load, int error)
{
	struct gpool_lora *lora = load->lora;
	struct lora_entry *entry = load->entry;
	bool used = false, closed;

	do {
		closed = used;
		if (used)
			source_close(load);
		pthread_mutex_lock(&lora->lock);
		used = entry->load && (entry->acquired || entry_is_used(lora, entry));
		if (used && closed)
			draft_begin(load, error);
		if (!used)
			entry->load = NULL;
		pthread_mutex_unlock(&lora->lock);
	} while (used && !closed);
	return used;
}

static void load_over(struct lora_loader *loader, struct lora_load *load, int error)
{
	if (!error && !load->stands && load->from == LORA_FROM_PEFT)
		error = adapter_unchanged(load->adapter, &load->files, &load->reason);
	if (!error && !load->stands)
		load_object_cost(load);
	if (is_draft(load, error))
		return;
	if (!error && !load->stands)
		error = load_publish(loader, load);
	load_end(load, error);
}

/* ---- taking turns ---- */

/* Under the lock: from now on idle threads make its parts. */
static void load_list(struct lora_load *load)
{
	load->listed = true;
	TAILQ_INSERT_TAIL(&load->lora->turns, load, link);
	pthread_cond_signal(&load->lora->queued);
}

/* All parts of its source were made, or one of them could not be, and nobody has it but we. */
static void load_go_on(struct lora_loader *loader, struct lora_load *load)
{
	int error = load->error;

	if (!error) {
		load_over(loader, load, 0);
		return;
	}
	if (load->from != LORA_FROM_PEFT && (error == -EINVAL || error == -EIO)) {
		source_refuse(load, error);
		error = source_open(load);
	}
	if (error) {
		load_over(loader, load, error);
		return;
	}
	pthread_mutex_lock(&load->lora->lock);
	load->error = 0;
	load_list(load);
	pthread_mutex_unlock(&load->lora->lock);
}

/* Under the lock: layers that became usable. */
static void pages_ready(struct lora_load *load)
{
	struct lora_entry *entry = load->entry;

	while (entry->ready < load->adapter->layout.header->pages && load->done[entry->ready])
		entry->ready++;
	if (entry->acquired)
		pthread_cond_broadcast(&load->lora->loaded);
}

/* Under the lock. */
static void part_end(struct lora_load *load, const struct lora_part *part, int error, const struct reason *reason)
{
	load->running--;
	part_return(load, part);
	if (load->starved && !load->error && !error)
		load_list(load);
	load->starved = false;
	for (uint32_t page = part->first; page < part->first + part->pages && !error; page++)
		load->done[page] = true;
	if (!error)
		pages_ready(load);
	if (!error || load->error)
		return;
	load->error = error;
	load->reason = *reason;
	if (load->listed)
		TAILQ_REMOVE(&load->lora->turns, load, link);
	load->listed = false;
}

/* There is no group for us until another thread gives one back, which may have happened by now. */
static void part_put_off(struct lora_load *load)
{
	load->running--;
	load->next--;
	if (load->returned_count)
		load_list(load);
	else
		load->starved = true;
}

/* Under the lock, but for the work: the next part, when it can be made. False: it cannot yet. */
static bool part_have(struct lora_load *load, struct lora_part *part, int *error)
{
	bool more = part_take(load, part);

	if (load->reader) {
		pthread_mutex_unlock(&load->lora->lock);
		*error = part_fetch(load, part);
		pthread_mutex_lock(&load->lora->lock);
		if (*error == -EAGAIN && !load->error) {
			part_put_off(load);
			return false;
		}
	}
	if (more && !*error && !load->error)
		load_list(load);
	return true;
}

/* Under the lock, but for the work: one part of the load whose turn it is. */
static void turn_take(struct lora_loader *loader, struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;
	struct reason reason = { "" };
	struct lora_part part;
	int error = 0;

	TAILQ_REMOVE(&lora->turns, load, link);
	load->listed = false;
	load->running++;
	if (!part_have(load, &part, &error))
		return;
	pthread_mutex_unlock(&lora->lock);
	if (!error)
		error = part_make(loader, load, &part, &reason);
	pthread_mutex_lock(&lora->lock);
	part_end(load, &part, error, &reason);
	if (load->running || load->listed)
		return;
	pthread_mutex_unlock(&lora->lock);
	load_go_on(loader, load);
	pthread_mutex_lock(&lora->lock);
}

/* ---- beginning ---- */

/*
 * There is no room for it, but for others that are coming: it is tried again when one of them is there, and may leave. One that nobody has asked
 * for stays away, and if somebody has by now, it is tried again as his.
 */
static bool load_postpone(struct lora_load *load, int error)
{
	struct gpool_lora *lora = load->lora;
	struct lora_entry *entry = load->entry;
	bool others, postponed;

	if (error != -ENOSPC && error != -EDQUOT)
		return false;
	pthread_mutex_lock(&lora->lock);
	others = lora->loads > 1;
	postponed = others || load->spare;
	if (entry->spare) {
		entry->state = GPOOL_LORA_COLD;
		load_leave(lora);
	} else if (postponed) {
		lora->crowded |= others;
		lora->loads--;
		TAILQ_INSERT_HEAD(&lora->queue, entry, link);
	}
	pthread_mutex_unlock(&lora->lock);
	return postponed;
}

static void load_run(struct lora_loader *loader, struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;
	int error = load_begin(loader, load);

	if (error && !load->shared && load->object && !load->done) {
		load_object_drop(load);
		if (load_postpone(load, error)) {
			source_close(load);
			pthread_mutex_lock(&lora->lock);
			load_free(load);
			pthread_mutex_unlock(&lora->lock);
			return;
		}
	}
	if (error || load->stands) {
		load_over(loader, load, error);
		return;
	}
	pthread_mutex_lock(&lora->lock);
	load_list(load);
	pthread_mutex_unlock(&lora->lock);
}

/* Under the lock, but for the work. */
static void queue_take(struct lora_loader *loader)
{
	struct gpool_lora *lora = loader->lora;
	struct lora_entry *entry = TAILQ_FIRST(&lora->queue);
	struct lora_load *load = calloc(1, sizeof(*load));

	TAILQ_REMOVE(&lora->queue, entry, link);
	if (!load) {
		entry->error = -ENOMEM;
		entry->state = GPOOL_LORA_COLD;
		lora->changes++;
		pthread_cond_broadcast(&lora->loaded);
		return;
	}
	*load = (struct lora_load){ .lora = lora, .entry = entry, .adapter = entry->adapter, .spare = entry->spare };
	load->adapter->refs++;
	lora->loads++;
	pthread_mutex_unlock(&lora->lock);
	load_run(loader, load);
	pthread_mutex_lock(&lora->lock);
}

static void later_take(struct lora_loader *loader)
{
	struct gpool_lora *lora = loader->lora;
	struct lora_later *later = TAILQ_FIRST(&lora->later);

	TAILQ_REMOVE(&lora->later, later, link);
	lora->copying = true;
	pthread_mutex_unlock(&lora->lock);
	copies_make(loader, later);
	pthread_mutex_lock(&lora->lock);
	lora->copying = false;
	later_free(later);
}

static void *loader_run(void *argument)
{
	struct lora_loader *loader = argument;
	struct gpool_lora *lora = loader->lora;
	struct lora_load *draft;

	pthread_mutex_lock(&lora->lock);
	while (!lora->ending) {
		if (!TAILQ_EMPTY(&lora->queue) && lora->loads < LOADS_MAX && !lora->crowded)
			queue_take(loader);
		else if (!TAILQ_EMPTY(&lora->turns))
			turn_take(loader, TAILQ_FIRST(&lora->turns));
		else if ((draft = draft_done(lora)))
			draft_end(loader, draft);
		else if (!TAILQ_EMPTY(&lora->later) && !lora->copying)
			later_take(loader);
		else if (rebalance_is_due(lora))
			rebalance(lora);
		else if (!TAILQ_EMPTY(&lora->drafts) && !lora->watching)
			drafts_watch(lora);
		else
			rebalance_wait(lora);
	}
	pthread_mutex_unlock(&lora->lock);
	return NULL;
}

/* ---- threads ---- */

/* Where the CPU writes to pages itself there is nothing to copy. */
static int stage_open(struct lora_loader *loader)
{
	struct gpool *pool = loader->lora->pool;
	uint64_t bytes = LORA_STAGE_PAGES * pool->page_bytes;
	void *stage;
	int error;

	if (pool->capabilities & GPU_CAP_HOST_POINTER)
		return 0;
	stage = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stage == MAP_FAILED)
		return -ENOMEM;
	error = gpu_host_register(pool->gpu, stage, bytes);
	if (!error) {
		error = gpool_stream_open(pool, NULL, 0, &loader->stream);
		if (!error) {
			loader->stage = stage;
			return 0;
		}
		gpu_host_unregister(pool->gpu, stage);
	}
	munmap(stage, bytes);
	return error;
}

static void loader_close(struct lora_loader *loader)
{
	struct gpool *pool = loader->lora->pool;

	if (loader->stage) {
		gpool_stream_close(pool, loader->stream);
		gpu_host_unregister(pool->gpu, loader->stage);
		munmap(loader->stage, LORA_STAGE_PAGES * pool->page_bytes);
	}
	free(loader->stored);
	free(loader->room);
}

static int loader_open(struct lora_loader *loader)
{
	int error = stage_open(loader);

	if (error)
		return error;
	error = -pthread_create(&loader->thread, NULL, loader_run, loader);
	if (error)
		loader_close(loader);
	return error;
}

int loaders_start(struct gpool_lora *lora, uint32_t count)
{
	int error = 0;

	lora->loaders = calloc(count, sizeof(*lora->loaders));
	if (!lora->loaders)
		return -ENOMEM;
	while (lora->loader_count < count && !error) {
		lora->loaders[lora->loader_count].lora = lora;
		error = loader_open(&lora->loaders[lora->loader_count]);
		lora->loader_count += !error;
	}
	return error;
}

/* What no thread had in its hands. */
static void lists_empty(struct gpool_lora *lora)
{
	struct lora_entry *entry;
	struct lora_later *later;
	struct lora_load *load;

	while ((load = TAILQ_FIRST(&lora->turns))) {
		TAILQ_REMOVE(&lora->turns, load, link);
		load->entry->load = NULL;
		load_end(load, -ECANCELED);
	}
	while ((load = TAILQ_FIRST(&lora->drafts))) {
		TAILQ_REMOVE(&lora->drafts, load, link);
		load->entry->load = NULL;
		lora->loads++;
		load_end(load, -ECANCELED);
	}
	while ((entry = TAILQ_FIRST(&lora->queue))) {
		TAILQ_REMOVE(&lora->queue, entry, link);
		entry->state = GPOOL_LORA_COLD;
	}
	while ((later = TAILQ_FIRST(&lora->later))) {
		TAILQ_REMOVE(&lora->later, later, link);
		later_free(later);
	}
}

void loaders_end(struct gpool_lora *lora)
{
	pthread_mutex_lock(&lora->lock);
	lora->ending = true;
	pthread_cond_broadcast(&lora->queued);
	pthread_mutex_unlock(&lora->lock);
	for (uint32_t i = 0; i < lora->loader_count; i++) {
		pthread_join(lora->loaders[i].thread, NULL);
		loader_close(&lora->loaders[i]);
	}
	lists_empty(lora);
	while (lora->readers_idle)
		cold_reader_destroy(lora->readers[--lora->readers_idle]);
	free(lora->loaders);
	lora->loaders = NULL;
	lora->loader_count = 0;
}
