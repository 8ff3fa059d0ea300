/* finish.c - the end of a load: the object is published, or kept as a draft while it is in use, or dropped. */
#include "client/lora/load/later.h"
#include "client/lora/load/tails_pack.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

enum {
	/*
	 * maximum number of attempts to publish; chosen: an attempt fails only if another engine publishes the object,
	 * and the object is evicted before this thread finds it
	 */
	TRIES = 8,
	WATCH_MS = 5, /* limit of a wait for a fence; chosen: a queued load may have to wait for this thread */
};

/*
 * Publish the pages of the object, which must not be in use, unless they are shared. If another engine was first, open
 * its object instead.
 */
static int load_publish(struct lora_loader *loader, struct lora_load *load)
{
	struct gpool_object *found;
	int error = 0;

	if (load->shared || !load->object)
		return 0;
	for (int i = 0; i < TRIES && !error; i++) {
		error = load_object_publish(load);
		if (error != -ESTALE)
			return error;
		error = load_object_find(load, &found);
		if (!error) {
			load_object_drop(load);
			load->object = found;
			load->shared = true;
			return place_make(loader, load);
		}
		error = error == -ENOENT ? 0 : error;
	}
	return error ? error : -EAGAIN;
}

/* ---- the end of a load ---- */

/*
 * Make the entry resident; under the lock. The object stays pinned while callers wait for it; without such callers it
 * can be evicted.
 */
static void entry_resident(struct lora_load *load)
{
	struct lora_entry *entry = load->entry;

	entry->object = load->object;
	entry->base = load->base;
	entry->tail = load->tail;
	entry->runs = load->runs;
	entry->placed = ++load->lora->placings;
	if (entry->load_state != LOAD_DRAFT_ENDING)
		later_load(load);
	load_set_state(load->lora, entry, entry->waiting ? LOAD_HELD : LOAD_RESIDENT);
}

void load_free(struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;

	/* Close the sources without the lock, because it takes time to unmap a copy. */
	source_close(load);
	pthread_mutex_lock(&lora->lock);
	adapter_unref(load->adapter);
	pthread_mutex_unlock(&lora->lock);
	free(load->done);
	free(load);
}

void load_end(struct lora_load *load, int error)
{
	struct gpool_lora *lora = load->lora;
	struct lora_entry *entry = load->entry;

	if (error)
		load_object_drop(load);
	pthread_mutex_lock(&lora->lock);
	entry->tail = (struct tail){0};
	if (error) {
		/* Another thread that has the lock must not find a tail that is being freed. */
		pthread_mutex_unlock(&lora->lock);
		load_tail_drop(load);
		pthread_mutex_lock(&lora->lock);
	}
	entry->error = error;
	entry->reason = load->reason;
	entry->runs = (struct lora_runs){0};
	if (error)
		load_set_state(lora, entry, LOAD_COLD);
	else
		entry_resident(load);
	if (!error && entry->tail.count)
		tails_placed(lora);
	entry->load = NULL;
	pthread_mutex_unlock(&lora->lock);
	load_free(load);
}

/* ---- drafts; under the lock ---- */

void draft_use(struct lora_entry *entry)
{
	if (!entry->acquired++ && entry->load_state == LOAD_DRAFT_UNUSED)
		load_set_state(entry->load->lora, entry, LOAD_DRAFT);
}

void draft_leave(struct lora_entry *entry)
{
	if (entry->load_state == LOAD_DRAFT)
		load_set_state(entry->load->lora, entry, LOAD_DRAFT_UNUSED);
}

static void draft_begin(struct lora_load *load, int error)
{
	struct lora_entry *entry = load->entry;

	load->error = error;
	entry->error = error;
	entry->reason = load->reason;
	if (!error)
		later_load(load);
	load_set_state(load->lora, entry, entry->acquired ? LOAD_DRAFT : LOAD_DRAFT_UNUSED);
}

struct lora_load *draft_done(struct gpool_lora *lora)
{
	struct lora_entry *entry;

	TAILQ_FOREACH(entry, &lora->drafts, link)
	if (!entry_is_used(lora, entry))
		return entry->load;
	return NULL;
}

void draft_end(struct lora_loader *loader, struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;
	int error = load->error;

	load_set_state(lora, load->entry, LOAD_DRAFT_ENDING);
	pthread_mutex_unlock(&lora->lock);
	load_end(load, error ? error : load_publish(loader, load));
	pthread_mutex_lock(&lora->lock);
}

void drafts_watch(struct gpool_lora *lora)
{
	struct gpool_fence fence = TAILQ_FIRST(&lora->drafts)->uses->fence;

	lora->watching = true;
	pthread_mutex_unlock(&lora->lock);
	/* -EIO: the fence is never signaled, and the call has returned without waiting. */
	if (gpool_fence_wait(lora->pool, fence, WATCH_MS) == -EIO)
		poll(NULL, 0, WATCH_MS);
	pthread_mutex_lock(&lora->lock);
	lora->watching = false;
}

/* ---- after the last part ---- */

/*
 * If the adapter is acquired, or GPU work still uses it, turn the load into a draft. Its sources are closed before
 * another thread can take the draft. Return: true if the load has become a draft.
 */
static bool draft_made(struct lora_load *load, int error)
{
	struct gpool_lora *lora = load->lora;
	struct lora_entry *entry = load->entry;
	bool used = false, closed;

	do {
		closed = used;
		if (used)
			source_close(load);
		pthread_mutex_lock(&lora->lock);
		used = entry->acquired || entry_is_used(lora, entry);
		if (used && closed)
			draft_begin(load, error);
		if (!used)
			load_set_state(lora, entry, LOAD_ENDING);
		pthread_mutex_unlock(&lora->lock);
	} while (used && !closed);
	return used;
}

void load_finish(struct lora_loader *loader, struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;
	int error = load->error;

	load_set_state(lora, load->entry, LOAD_FINISHING);
	loader_wake(lora);
	pthread_mutex_unlock(&lora->lock);
	if (!error && load->from == LORA_FROM_PEFT)
		error = adapter_unchanged(load->adapter, &load->files, &load->reason);
	if (!error && load->object)
		load_object_cost(load);
	if (!draft_made(load, error))
		load_end(load, error ? error : load_publish(loader, load));
	pthread_mutex_lock(&lora->lock);
}
