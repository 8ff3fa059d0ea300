/*
 * load.c - the beginning of a load: open the object of another engine, or allocate pages and open the fastest source.
 */
#include "client/lora/load/load.h"

#include "shm/plural.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- steps ---- */

static void shortage_say(struct lora_load *load, int error)
{
	struct gpool_oom_object object = {.size = sizeof(object)};
	struct gpool_oom_info shortage = {.size = offsetof(struct gpool_oom_info, holder_count)};
	char most[240] = "";

	if ((error != -ENOSPC && error != -EDQUOT) || load->reason.text[0])
		return;
	gpool_oom_info(load->lora->pool, &shortage);
	if (!gpool_oom_object(load->lora->pool, &object))
		snprintf(most, sizeof(most), ", of objects '%.60s' (%u, by session %u '%s', %u time%s)", object.name,
			object.pages, object.session, object.session_name, object.pins, plural(object.pins));
	refuse(&load->reason,
		"%s: the adapter needs %u page%s; %u are free, %u are pinned, most of them (%u) by session %u '%s'%s; "
		"release adapters, or %s",
		error == -ENOSPC ? "pool" : "limit", load->adapter->layout.header->pages,
		plural(load->adapter->layout.header->pages), shortage.free, shortage.pinned, shortage.holder_pages,
		shortage.holder, shortage.holder_name, most, error == -ENOSPC ? "enlarge the pool" : "raise the limit");
}

int place_make(struct lora_loader *loader, struct lora_load *load)
{
	uint64_t bytes;
	int error = load->object ? gpool_object_address(load->object, 0, &load->base, &bytes) : 0;

	return error
		? error
		: runs_make(loader, &load->adapter->layout, load->base, &load->tail, alloc_flags(load), &load->runs);
}

/* Set the address of the adapter. This also acquires the adapter for the callers that wait for the address. */
static void entry_place(struct lora_load *load)
{
	struct lora_entry *entry = load->entry;

	pthread_mutex_lock(&load->lora->lock);
	entry->base = load->base;
	entry->tail = load->tail;
	entry->runs = load->runs;
	entry->placed = ++load->lora->placings;
	entry->ready = load->shared ? load_object_pages(load) : 0;
	entry->granted = entry->beginning;
	entry->acquired += entry->beginning;
	entry->beginning = 0;
	load_set_state(load->lora, entry, LOAD_OPENING);
	pthread_cond_broadcast(&load->lora->loaded);
	pthread_mutex_unlock(&load->lora->lock);
}

/* List the pages that are to be made. Of an object of another engine, only the tail is missing. */
static int pages_list(struct lora_load *load)
{
	load->done = calloc(load->adapter->layout.header->pages, sizeof(*load->done));
	if (!load->done)
		return -ENOMEM;
	for (uint32_t page = 0; load->shared && page < load_object_pages(load); page++)
		load->done[page] = true;
	return 0;
}

/* Open the object of another engine, or allocate pages, unless the adapter has only a tail. */
static int object_have(struct lora_load *load)
{
	int error;

	if (!adapter_has_object(load->lora, load->adapter))
		return load_object_ask(load);
	error = load_object_exists(load) ? load_object_find(load, &load->object) : -ENOENT;
	load->shared = !error;
	return error == -ENOENT ? load_object_begin(load) : error;
}

/* Get the pages of the object, and place the tail. If pages are to be made, set load->done and the address. */
static int pages_have(struct lora_loader *loader, struct lora_load *load)
{
	int error = adapter_know(load->lora, load->adapter, &load->files, &load->reason);

	if (error)
		return error;
	tails_touch(&load->lora->tails, load->lora->pool);
	error = object_have(load);
	if (!error && adapter_has_tail(load->lora, load->adapter))
		error = tail_make(
			&load->lora->tails, load->lora->pool, &load->adapter->layout, alloc_flags(load), &load->tail);
	if (!error)
		error = place_make(loader, load);
	shortage_say(load, error);
	if (!error && (!load->shared || adapter_has_tail(load->lora, load->adapter)))
		error = pages_list(load);
	if (!error && load->done)
		entry_place(load);
	return error;
}

/*
 * Handle a load for which the pool has no room; under the lock. If other loads are in progress, the load begins again
 * when one of them has ended, because pages of that adapter can be evicted then. A load that no caller has requested
 * ends. If a caller has requested the adapter in the meantime, the load begins again for that caller. Return: false if
 * the load has failed.
 */
static bool load_postpone(struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;
	struct lora_entry *entry = load->entry;
	bool others = lora->loads > 1;

	if (entry->load_state == LOAD_BEGUN_UNASKED) {
		entry->load = NULL;
		load_set_state(lora, entry, LOAD_COLD);
		/* Permit another attempt: the free pages that rebalance() saw were being granted to a session. */
		entry->acquires_spent = entry->acquires - 1;
		return true;
	}
	if (!others && !load->unasked)
		return false;
	entry->load = NULL;
	load_set_state(lora, entry, LOAD_QUEUED);
	lora->crowded |= others;
	return true;
}

/* End a load that needs no part: the object is another engine's, or the load has failed. */
static void begin_end(struct lora_load *load, int error)
{
	struct gpool_lora *lora = load->lora;
	bool postponed = false;

	if (error == -ENOSPC || error == -EDQUOT) {
		load_object_drop(load);
		load_tail_drop(load);
		pthread_mutex_lock(&lora->lock);
		postponed = load_postpone(load);
		pthread_mutex_unlock(&lora->lock);
	}
	if (postponed)
		load_free(load);
	else
		load_end(load, error);
}

/* ---- states; under the lock, except during the work ---- */

void load_begin(struct lora_loader *loader, struct lora_entry *entry)
{
	struct gpool_lora *lora = loader->lora;
	bool unasked = entry->load_state == LOAD_QUEUED_UNASKED, warm;
	struct lora_load *load = calloc(1, sizeof(*load));
	int error;

	entry->error = load ? 0 : -ENOMEM;
	if (!load) {
		if (entry->load_state != LOAD_COLD)
			load_set_state(lora, entry, LOAD_COLD);
		lora->changes++;
		pthread_cond_broadcast(&lora->loaded);
		return;
	}
	*load = (struct lora_load){.lora = lora, .entry = entry, .adapter = entry->adapter, .unasked = unasked};
	load->adapter->refs++;
	entry->load = load;
	load_set_state(lora, entry, unasked ? LOAD_BEGUN_UNASKED : LOAD_BEGUN);
	loader_wake(lora);
	pthread_mutex_unlock(&lora->lock);
	error = pages_have(loader, load);
	if (error || !load->done) {
		begin_end(load, error);
		pthread_mutex_lock(&lora->lock);
		return;
	}
	warm = source_open_warm(load);
	pthread_mutex_lock(&lora->lock);
	load_set_state(lora, entry, warm ? LOAD_LISTED : LOAD_NEEDS_SOURCE);
}

void load_source(struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;
	int error;

	load_set_state(lora, load->entry, LOAD_OPENING);
	loader_wake(lora);
	pthread_mutex_unlock(&lora->lock);
	if (load->error)
		source_refuse(load, load->error);
	error = source_open(load);
	pthread_mutex_lock(&lora->lock);
	load->error = error;
	load_set_state(lora, load->entry, error ? LOAD_MADE : LOAD_LISTED);
}
