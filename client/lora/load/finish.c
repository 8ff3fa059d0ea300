/*
 * finish.c - the end of a load: the object is published, or kept as a draft while it is in use, or dropped.
 */
#include "client/lora/load/load.h"

#include <errno.h>
#include <stdlib.h>

enum {
	TRIES = 8,    /* each of them ends by somebody else's work, publishing or evicting */
	WATCH_MS = 5, /* for a fence; chosen: so long a load may wait for the only thread */
};

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

	if (load->shared || load->spare ||
		((!lora->warm || load->from == LORA_FROM_WARM) && (lora->cold_fd < 0 || load->from == LORA_FROM_COLD)))
		return;
	later = calloc(1, sizeof(*later));
	if (!later)
		return;
	*later = (struct lora_later){.adapter = load->adapter,
		.from = load->from,
		.warm_refused = load->warm_refused,
		.cold_refused = load->cold_refused};
	later->adapter->refs++;
	TAILQ_INSERT_TAIL(&lora->later, later, link);
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
void load_free(struct lora_load *load)
{
	adapter_unref(load->adapter);
	free(load->done);
	free(load);
}

/* Under the lock: one less is under way, and who waits for it looks. */
void load_leave(struct gpool_lora *lora)
{
	lora->loads--;
	lora->crowded = false;
	lora->changes++;
	pthread_cond_broadcast(&lora->loaded);
	pthread_cond_broadcast(&lora->queued);
}

/* Published, or given up: nobody uses it, and nobody can begin to. */
void load_end(struct lora_load *load, int error)
{
	struct gpool_lora *lora = load->lora;
	struct lora_entry *entry = load->entry;

	if (error && load->object)
		load_object_drop(load);
	pthread_mutex_lock(&lora->lock);
	entry->error = error;
	entry->reason = load->reason;
	entry->state = error ? GPOOL_LORA_COLD : GPOOL_LORA_RESIDENT;
	entry->runs = (struct lora_runs){0};
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
		entry->state = GPOOL_LORA_RESIDENT;
		load_count(load);
	}
	if (!entry->acquired)
		draft_leave(entry);
	load_leave(load->lora);
}

struct lora_load *draft_done(struct gpool_lora *lora)
{
	struct lora_load *load;

	TAILQ_FOREACH(load, &lora->drafts, link)
	if (!entry_is_used(lora, load->entry))
		return load;
	return NULL;
}

void draft_end(struct lora_loader *loader, struct lora_load *load)
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

void drafts_watch(struct gpool_lora *lora)
{
	struct gpool_fence fence = TAILQ_FIRST(&lora->drafts)->entry->uses->fence;

	lora->watching = true;
	pthread_mutex_unlock(&lora->lock);
	gpool_fence_wait(lora->pool, fence, WATCH_MS);
	pthread_mutex_lock(&lora->lock);
	lora->watching = false;
}

/* ---- its parts are over ---- */

/*
 * It is used already, or work of before still is: it is a draft until that is over, and its sources are closed before
 * somebody else can have it.
 */
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

void load_over(struct lora_loader *loader, struct lora_load *load, int error)
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

void load_go_on(struct lora_loader *loader, struct lora_load *load)
{
	int error = load->error;

	if (!error) {
		load_over(loader, load, 0);
		return;
	}
	if (error == -EAGAIN) {
		error = source_open(load);
	} else if (load->from != LORA_FROM_PEFT && (error == -EINVAL || error == -EIO)) {
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
