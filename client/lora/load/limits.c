#include "client/lora/load/limits.h"

#include "client/lora/load/later.h"
#include "client/lora/residency/residency.h"
#include "client/object/object.h"
#include "shm/plural.h"

#include <errno.h>
#include <string.h>

/* chosen: interval of the checks of fences that hold adapters, so that idle adapters are copied to host memory */
#define FENCES_NS UINT64_C(100000000)

/* ---- registration ---- */

/* Return the size of a copy with this content in the pool of copies; 0: there is no such pool. */
static uint64_t copy_bytes(const struct gpool_lora *lora, uint64_t content_bytes)
{
	uint64_t page_bytes = lora->warm ? lora->warm->page_bytes : 0;

	return page_bytes ? (content_bytes + page_bytes - 1) / page_bytes * page_bytes : 0;
}

int limits_register(struct gpool_lora *lora, uint32_t id, uint32_t pages, struct reason *reason)
{
	uint64_t bytes = pages * lora->pool->page_bytes;
	/* The copy may be smaller, as the first load shows. */
	int error = id < LIMITS_ADAPTERS_MAX
		? residency_register(lora->residency, id, bytes, copy_bytes(lora, bytes), monotonic_us())
		: -ENOSPC;

	if (error == -EFBIG)
		return refuse(reason, "the adapter needs %llu byte%s of the pool, which is more than hot_bytes",
			(unsigned long long)bytes, plural(bytes));
	if (error)
		refuse(reason, "a set with limits has at most %d adapters", LIMITS_ADAPTERS_MAX);
	return error;
}

static void unfence(struct gpool_lora *lora, struct lora_entry *entry)
{
	if (entry->is_fenced)
		TAILQ_REMOVE(&lora->fenced, entry, fenced);
	entry->is_fenced = false;
}

/* Report that the adapter is not used any more. */
static void let_go(struct gpool_lora *lora, struct lora_entry *entry)
{
	unfence(lora, entry);
	if (entry->is_held)
		residency_unpin(lora->residency, entry->id, monotonic_us());
	entry->is_held = false;
}

int limits_unregister(struct gpool_lora *lora, struct lora_entry *entry)
{
	let_go(lora, entry);
	return residency_unregister(lora->residency, entry->id);
}

/* ---- copies in host memory ---- */

void limits_loaded(struct gpool_lora *lora, const struct lora_load *load)
{
	const struct adapter_layout *layout = &load->adapter->layout;

	load->entry->warm_refused = load->warm_refused;
	residency_copy_seen(lora->residency, load->entry->id, load->from == LORA_FROM_WARM,
		copy_bytes(lora, cold_pages_bytes(layout, load->form, 0, layout->header->pages)));
}

static void copy_report(struct gpool_lora *lora, uint32_t id, bool ok)
{
	const struct residency_decision decision = {.adapter = id, .action = RESIDENCY_COMPRESS};

	residency_done(lora->residency, &decision, ok, monotonic_us());
}

void limits_copied(struct gpool_lora *lora, const struct lora_later *later)
{
	struct lora_entry *entry = entry_of(lora, later->id);

	if (!entry || entry->adapter != later->adapter)
		return; /* the adapter was unregistered */
	/* -ESTALE: another engine has made the copy first */
	copy_report(lora, later->id, !later->error || later->error == -ESTALE);
	if (!later->error) {
		entry->copy_version = later->version;
		entry->warm_refused = 0;
	}
}

/* Make a copy that the policy has decided, unless that decision was about an earlier adapter with this number. */
static void copy_begin(struct gpool_lora *lora, struct lora_entry *entry)
{
	if (residency_warm(lora->residency, entry->id) != RESIDENCY_COPYING)
		return;
	if (!entry->adapter->known || later_decided(lora, entry))
		copy_report(lora, entry->id, false);
}

/* Delete a copy that this set has made; the agent evicts copies of other engines. */
static void copy_drop(struct gpool_lora *lora, struct lora_entry *entry)
{
	uint64_t version = entry->copy_version;
	char name[LORA_KEY_BYTES];
	bool deleted;

	entry->copy_version = 0;
	if (!version)
		return;
	memcpy(name, entry->adapter->warm_name, sizeof(name));
	lora->deciding = true;
	pthread_mutex_unlock(&lora->lock);
	warm_forget(&lora->kept, name);
	/* After a failure, the agent has evicted it before, or evicts it later. */
	deleted = !gpool_object_delete(lora->warm, name, version);
	pthread_mutex_lock(&lora->lock);
	lora->deciding = false;
	lora->dropped += deleted;
}

/* ---- uses ---- */

static void wake(struct gpool_lora *lora)
{
	if (limits_have(lora))
		pthread_cond_signal(&lora->queued);
}

static bool is_used(const struct lora_entry *entry)
{
	return entry->acquired || entry->waiting || is_draft(entry);
}

/* Add the entry to lora->fenced if a fence of its last release is not signaled. */
static bool is_fenced(struct gpool_lora *lora, struct lora_entry *entry)
{
	if (!entry_is_used(lora, entry))
		return false;
	if (!entry->is_fenced)
		TAILQ_INSERT_TAIL(&lora->fenced, entry, fenced);
	entry->is_fenced = true;
	return true;
}

void limits_report(struct gpool_lora *lora, struct lora_entry *entry)
{
	if (is_used(entry)) {
		unfence(lora, entry);
		/* An adapter that is COLD is not used until its load is asked for. */
		if (!entry->is_held && entry->load_state != LOAD_COLD)
			entry->is_held = residency_pin(lora->residency, entry->id, monotonic_us()) >= 0;
	} else if (entry->is_held && !is_fenced(lora, entry)) {
		let_go(lora, entry);
		/* A load that had not been decided is not wanted any more. */
		if (entry->load_state == LOAD_POSTPONED &&
			residency_hot(lora->residency, entry->id) == RESIDENCY_ABSENT)
			load_set_state(lora, entry, LOAD_COLD);
	}
	wake(lora);
	loaders_due(lora, limits_due_ns(lora));
}

static void fences_look(struct gpool_lora *lora)
{
	struct lora_entry *entry, *next;

	lora->fences_ns = monotonic_ns() + FENCES_NS;
	for (entry = TAILQ_FIRST(&lora->fenced); entry; entry = next) {
		next = TAILQ_NEXT(entry, fenced);
		limits_report(lora, entry);
	}
}

void limits_count(struct gpool_lora *lora, const struct lora_entry *entry)
{
	residency_access(lora->residency, entry->id, 1, monotonic_us());
}

/* ---- requests ---- */

static void time_pass(struct gpool_lora *lora)
{
	fences_look(lora);
	residency_set_idle(lora->residency, later_idle_ms(lora) * UINT64_C(1000));
	residency_tick(lora->residency, monotonic_us());
}

void limits_want(struct gpool_lora *lora, struct lora_entry *entry)
{
	let_go(lora, entry);
	time_pass(lora);
	if (residency_pin(lora->residency, entry->id, monotonic_us()) < 0) {
		entry->error = -ENOSPC;
		refuse(&entry->reason,
			"limit: the adapter does not fit beside the adapters in use; release adapters, or raise "
			"hot_bytes and "
			"hot_adapters");
	} else {
		entry->is_held = true;
		load_set_state(lora, entry, LOAD_POSTPONED);
	}
	wake(lora);
}

void limits_prefetch(struct gpool_lora *lora, struct lora_entry *entry)
{
	time_pass(lora);
	residency_prefetch(lora->residency, entry->id, monotonic_us());
	wake(lora);
}

/* ---- decisions ---- */

static void surplus_set(struct gpool_lora *lora, struct lora_entry *entry, bool surplus)
{
	if (surplus && !entry->is_surplus)
		TAILQ_INSERT_TAIL(&lora->surplus, entry, surplus);
	else if (!surplus && entry->is_surplus)
		TAILQ_REMOVE(&lora->surplus, entry, surplus);
	entry->is_surplus = surplus;
}

/*
 * Return the next adapter to evict, or NULL. An adapter stays if the policy has decided another load after its
 * eviction.
 */
static struct lora_entry *surplus_next(struct gpool_lora *lora)
{
	struct lora_entry *entry, *next;

	for (entry = TAILQ_FIRST(&lora->surplus); entry; entry = next) {
		next = TAILQ_NEXT(entry, surplus);
		if (residency_hot(lora->residency, entry->id) != RESIDENCY_ABSENT)
			surplus_set(lora, entry, false);
		else if (entry->load_state == LOAD_RESIDENT && !is_used(entry) && !entry_is_used(lora, entry))
			return entry;
	}
	return NULL;
}

bool limits_have(struct gpool_lora *lora)
{
	return lora->residency && !lora->deciding && (residency_has_next(lora->residency) || surplus_next(lora));
}

static void load_report(struct gpool_lora *lora, const struct lora_entry *entry, bool ok)
{
	const struct residency_decision decision = {.adapter = entry->id, .action = RESIDENCY_LOAD_COLD};

	residency_done(lora->residency, &decision, ok, monotonic_us());
}

/* Begin a load, unless the adapter is still resident because it was acquired again before its eviction. */
static void load_begin_decided(struct gpool_lora *lora, struct lora_entry *entry)
{
	if (residency_hot(lora->residency, entry->id) != RESIDENCY_LOADING)
		return;
	if (entry->load_state == LOAD_POSTPONED || entry->load_state == LOAD_COLD) {
		bool unasked = entry->load_state == LOAD_COLD && residency_is_moving(lora->residency, entry->id);

		entry->is_decided = true;
		entry->error = 0;
		load_set_state(lora, entry, unasked ? LOAD_QUEUED_UNASKED : LOAD_QUEUED);
	} else if (entry->state == GPOOL_LORA_RESIDENT) {
		load_report(lora, entry, true);
	} else {
		entry->is_decided = true; /* its load has been decided before */
	}
}

/*
 * Evict an adapter. Its pages are freed unless another engine has it open; they are then evicted by the agent when they
 * are needed.
 */
static void evict(struct gpool_lora *lora, struct lora_entry *entry)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	bool object = entry->object,
	     here = object ? !gpool_object_info(entry->object, &info) : !entry_is_gone(lora, entry);

	surplus_set(lora, entry, false);
	if (entry_close(lora, entry))
		return;
	/* Otherwise, the agent has evicted it before. */
	if (here)
		lora->evicted++;
	else
		entry->counts.lost++;
	if (!here || !object || info.readers > 1)
		return;
	/* A load that was decided after this eviction needs the pages. */
	lora->deciding = true;
	pthread_mutex_unlock(&lora->lock);
	/* After a failure, the agent evicts the adapter later. */
	gpool_object_delete(lora->pool, info.name, info.version);
	pthread_mutex_lock(&lora->lock);
	lora->deciding = false;
	wake(lora);
}

void limits_take(struct gpool_lora *lora)
{
	struct residency_decision decision;
	struct lora_entry *entry = surplus_next(lora);

	if (entry) {
		evict(lora, entry);
		return;
	}
	if (!residency_next(lora->residency, &decision))
		return;
	entry = decision.adapter < lora->entry_count ? lora->entries[decision.adapter] : NULL;
	if (entry && decision.action == RESIDENCY_EVICT)
		surplus_set(lora, entry, entry->load_state != LOAD_COLD);
	else if (entry && decision.action == RESIDENCY_COMPRESS)
		copy_begin(lora, entry);
	else if (entry && decision.action == RESIDENCY_DROP)
		copy_drop(lora, entry);
	else if (entry)
		load_begin_decided(lora, entry);
	wake(lora);
}

static void follow(struct gpool_lora *lora, struct lora_entry *entry)
{
	bool ended = entry->load_state == LOAD_COLD || entry->state == GPOOL_LORA_RESIDENT;

	if (entry->is_decided && ended) {
		entry->is_decided = false;
		load_report(lora, entry, entry->load_state != LOAD_COLD);
	} else if (entry->load_state == LOAD_COLD) {
		residency_lost(lora->residency, entry->id);
	}
	if (entry->load_state == LOAD_COLD)
		surplus_set(lora, entry, false);
	limits_report(lora, entry);
}

/* ---- creation ---- */

int limits_begin(struct gpool_lora *lora, const struct gpool_lora_options *options)
{
	struct residency_limits limits = RESIDENCY_LIMITS_INIT;

	TAILQ_INIT(&lora->fenced);
	TAILQ_INIT(&lora->surplus);
	if (!options->hot_bytes && !options->hot_adapters && !options->warm_bytes && !options->warm_adapters)
		return 0;
	limits.hot_bytes = options->hot_bytes ? options->hot_bytes : UINT64_MAX;
	limits.hot_count = options->hot_adapters ? options->hot_adapters : UINT32_MAX;
	limits.warm_bytes = options->warm_bytes ? options->warm_bytes : UINT64_MAX;
	limits.warm_count = !lora->warm ? 0 : options->warm_adapters ? options->warm_adapters : UINT32_MAX;
	limits.from_files = true;
	limits.idle_us = later_idle_ms(lora) * UINT64_C(1000);
	limits.rebalance_us = lora->rebalance_ms == UINT32_MAX ? 0 : lora->rebalance_ms * UINT64_C(1000);
	lora->follow = follow;
	return residency_create(&limits, LIMITS_ADAPTERS_MAX, &lora->residency);
}

void limits_end(struct gpool_lora *lora)
{
	residency_destroy(lora->residency);
}

/* ---- time ---- */

/* Return true if the agent has evicted the adapter, and no use of it has detected this. */
static bool is_gone(const struct gpool_lora *lora, const struct lora_entry *entry)
{
	return entry->load_state == LOAD_RESIDENT && !entry->acquired && entry_is_gone(lora, entry);
}

uint64_t limits_due_ns(const struct gpool_lora *lora)
{
	uint64_t due_us = residency_due_us(lora->residency),
		 due_ns = due_us > UINT64_MAX / 1000 ? UINT64_MAX : due_us * 1000;

	return lora->warm && !TAILQ_EMPTY(&lora->fenced) && lora->fences_ns < due_ns ? lora->fences_ns : due_ns;
}

void limits_look(struct gpool_lora *lora)
{
	time_pass(lora);
	wake(lora);
}

void limits_tick(struct gpool_lora *lora)
{
	lora->rebalance_ns = monotonic_ns() + lora->rebalance_ms * UINT64_C(1000000);
	for (uint32_t i = 0; i < lora->entry_count; i++)
		if (lora->entries[i] && is_gone(lora, lora->entries[i]) && !entry_close(lora, lora->entries[i]))
			lora->entries[i]->counts.lost++;
	limits_look(lora);
}
