/* turns.c - make the parts of loads in turn, in loader threads and in threads that wait for a load. */
#include "client/lora/load/load.h"

#include <errno.h>

/* Count the complete pages, and wake the threads that wait for layers; under the lock. */
static void pages_ready(struct lora_load *load)
{
	struct lora_entry *entry = load->entry;

	while (entry->ready < load->adapter->layout.header->pages && load->done[entry->ready])
		entry->ready++;
	if (entry->acquired)
		pthread_cond_broadcast(&load->lora->loaded);
}

/*
 * Return true if another source can replace the one that has failed; under the lock. A failure of the device does not
 * show that the source is invalid, and no other source can be loaded after it.
 */
static bool is_refusable(const struct lora_load *load)
{
	return load->from != LORA_FROM_PEFT && !pool_gpu_failed(load->lora->pool) &&
		(load->error == -EINVAL || load->error == -EIO);
}

/* Record the end of a part; under the lock. */
static void part_end(struct lora_load *load, const struct lora_part *part, int error, const struct reason *reason)
{
	struct lora_entry *entry = load->entry;

	load->running--;
	part_return(load, part);
	for (uint32_t page = part->first; page < part->first + part->pages && !error; page++)
		load->done[page] = true;
	if (!error)
		pages_ready(load);
	if (error && entry->load_state != LOAD_FAILED) {
		load->error = error;
		load->reason = *reason;
		load_set_state(load->lora, entry, LOAD_FAILED);
	} else if (entry->load_state == LOAD_STARVED) {
		load_set_state(load->lora, entry, LOAD_LISTED);
	}
	if (load->running)
		return;
	if (entry->load_state == LOAD_FAILED && is_refusable(load))
		load_set_state(load->lora, entry, LOAD_NEEDS_SOURCE);
	else if (entry->load_state == LOAD_FAILED || entry->load_state == LOAD_MAKING)
		load_set_state(load->lora, entry, LOAD_MADE);
}

/*
 * Postpone a part, because the reader had no room until another thread returns a group. The group may have been
 * returned since.
 */
static void part_put_off(struct lora_load *load)
{
	load->running--;
	load->next--;
	load_set_state(load->lora, load->entry, load->returned_count ? LOAD_LISTED : LOAD_STARVED);
}

/* Take the next part; under the lock, except during the fetch. Return: false if it cannot be made yet. */
static bool part_have(struct lora_load *load, struct lora_part *part, int *error)
{
	const struct lora_entry *entry = load->entry;
	bool more = part_take(load, part);

	if (load->reader) {
		pthread_mutex_unlock(&load->lora->lock);
		*error = part_fetch(load, part);
		pthread_mutex_lock(&load->lora->lock);
		if (*error == -EAGAIN && entry->load_state != LOAD_FAILED) {
			part_put_off(load);
			return false;
		}
	}
	if (more && !*error && entry->load_state != LOAD_FAILED)
		load_set_state(load->lora, load->entry, LOAD_LISTED);
	return true;
}

void turn_take(struct lora_loader *loader, struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;
	struct reason reason = {""};
	bool counted = load_is_short(load);
	struct lora_part part;
	int error = 0;

	load_set_state(lora, load->entry, LOAD_MAKING);
	load->running++;
	lora->making += counted;
	if (!part_have(load, &part, &error)) {
		lora->making -= counted;
		return;
	}
	pthread_mutex_unlock(&lora->lock);
	if (!error)
		error = part_make(loader, load, &part, &reason);
	pthread_mutex_lock(&lora->lock);
	lora->making -= counted;
	part_end(load, &part, error, &reason);
}

bool turns_help(struct lora_load *load, uint32_t pages, bool finish)
{
	struct gpool_lora *lora = load->lora;
	struct lora_loader helper = {.lora = lora};

	if (load->entry->load_state != LOAD_LISTED || !load_is_short(load) || load->next >= pages ||
		lora->making >= lora->cores || !lora_can_help(lora))
		return false;
	turn_take(&helper, load);
	if (finish && load->entry->load_state == LOAD_MADE)
		load_finish(&helper, load);
	loader_wake(lora);
	return true;
}
