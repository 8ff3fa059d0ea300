/*
 * load.c - the beginning of a load: another engine's object, or pages of our own and the warmest source.
 */
#include "client/lora/load/load.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- steps of a load ---- */

static void shortage_say(struct lora_load *load, int error)
{
	struct gpool_oom_object object = {.size = sizeof(object)};
	struct gpool_oom_info shortage = {.size = offsetof(struct gpool_oom_info, holder_count)};
	char most[240] = "";

	if ((error != -ENOSPC && error != -EDQUOT) || load->reason.text[0])
		return;
	gpool_oom_info(load->lora->pool, &shortage);
	if (!gpool_oom_object(load->lora->pool, &object))
		snprintf(most, sizeof(most), ", of objects '%.60s' (%u, by session %u '%s', %u times)", object.name,
			object.pages, object.session, object.session_name, object.pins);
	refuse(&load->reason,
		"%s: it needs %u pages; %u are free, %u are pinned, most of them (%u) by session %u '%s'%s; release "
		"adapters, or give the %s more",
		error == -ENOSPC ? "pool" : "limit", load->adapter->layout.header->pages, shortage.free,
		shortage.pinned, shortage.holder_pages, shortage.holder, shortage.holder_name, most,
		error == -ENOSPC ? "pool" : "tenant");
}

/* Where its object lies, and the table of that on the device. */
int place_make(struct lora_loader *loader, struct lora_load *load)
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

/* What another engine has is there; else there are pages. */
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
	return 0;
}

/* ---- beginning ---- */

/*
 * There is no room for it, but for others that are coming: it is tried again when one of them is there, and may leave.
 * One that nobody has asked for stays away, and if somebody has by now, it is tried again as his.
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
		/*
		 * It was not brought back: pages that were free for a moment, on their way to a session, do not count
		 * against it.
		 */
		entry->acquires_spent = entry->acquires - 1;
		load_leave(lora);
	} else if (postponed) {
		lora->crowded |= others;
		lora->loads--;
		TAILQ_INSERT_HEAD(&lora->queue, entry, link);
	}
	pthread_mutex_unlock(&lora->lock);
	return postponed;
}

void load_run(struct lora_loader *loader, struct lora_load *load, bool wholly)
{
	struct gpool_lora *lora = load->lora;
	int error = load_begin(loader, load);
	bool later = false;

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
	if (!error && !load->stands) {
		if (wholly)
			error = source_open(load);
		else
			later = !source_open_warm(load);
	}
	if (error || load->stands) {
		load_over(loader, load, error);
		return;
	}
	pthread_mutex_lock(&lora->lock);
	load->error = later ? -EAGAIN : 0;
	load->over = later;
	load_list(load);
	pthread_mutex_unlock(&lora->lock);
}
