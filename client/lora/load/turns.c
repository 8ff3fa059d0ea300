/*
 * turns.c - parts of loads, made in turn: by loader threads, and by those who wait for them.
 */
#include "client/lora/load/load.h"

#include <errno.h>

/*
 * From memory a part is work for a core, and more threads than there are cores would only change places. From files it
 * waits.
 */
static bool is_short(const struct lora_load *load)
{
	return load->from == LORA_FROM_WARM;
}

void load_list(struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;

	load->listed = true;
	TAILQ_INSERT_TAIL(&lora->turns, load, link);
	if (load->over || !is_short(load) || lora->making < lora->cores)
		pthread_cond_signal(&lora->queued);
}

void turns_pass(struct gpool_lora *lora)
{
	if (!TAILQ_EMPTY(&lora->turns))
		pthread_cond_signal(&lora->queued);
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

bool turn_take(struct lora_loader *loader, struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;
	struct reason reason = {""};
	bool counted = is_short(load);
	struct lora_part part;
	int error = 0;

	TAILQ_REMOVE(&lora->turns, load, link);
	load->listed = false;
	if (load->over) {
		load->over = false;
		return true;
	}
	load->running++;
	lora->making += counted;
	if (!part_have(load, &part, &error)) {
		lora->making -= counted;
		return false;
	}
	pthread_mutex_unlock(&lora->lock);
	if (!error)
		error = part_make(loader, load, &part, &reason);
	pthread_mutex_lock(&lora->lock);
	lora->making -= counted;
	part_end(load, &part, error, &reason);
	return !load->running && !load->listed;
}

bool turns_help(struct lora_load *load, uint32_t pages)
{
	struct gpool_lora *lora = load->lora;
	struct lora_loader helper = {.lora = lora};

	if (!load->listed || load->rests || load->over || !is_short(load) || load->next >= pages ||
		lora->making >= lora->cores || !lora_can_help(lora))
		return false;
	if (turn_take(&helper, load)) {
		load->over = true;
		load_list(load);
	}
	turns_pass(lora);
	return true;
}
