/* load_state.c - the table of the states of an adapter, and the function that changes the state. */
#include "client/lora/load/load_state.h"

#include "client/lora/load/load.h"
#include "shm/invariant.h"

#define TO(state) (UINT32_C(1) << LOAD_##state)

enum list { NONE, QUEUE, STEPS, TURNS, DRAFTS };

static const struct {
	const char *name;
	enum gpool_lora_state shown; /* state in the public interface */
	enum list list;
	bool in_progress; /* counted in lora->loads */
	bool loaded;      /* counted as a load when the state is first reached without an error */
	uint32_t next;    /* set of the states that may follow, as TO() of each */
} states[LOAD_STATES] = {
	[LOAD_COLD] = {"cold", GPOOL_LORA_COLD, .next = TO(POSTPONED) | TO(QUEUED) | TO(QUEUED_UNASKED) | TO(BEGUN)},
	[LOAD_POSTPONED] = {"postponed", GPOOL_LORA_LOADING, .next = TO(QUEUED) | TO(COLD)},
	[LOAD_QUEUED] = {"queued", GPOOL_LORA_LOADING, QUEUE, .next = TO(BEGUN) | TO(COLD)},
	[LOAD_QUEUED_UNASKED] = {"queued unasked", GPOOL_LORA_LOADING, QUEUE,
		.next = TO(QUEUED) | TO(BEGUN_UNASKED) | TO(COLD)},
	[LOAD_BEGUN] = {"begun", GPOOL_LORA_LOADING, .in_progress = true,
		.next = TO(OPENING) | TO(QUEUED) | TO(HELD) | TO(RESIDENT) | TO(COLD)},
	[LOAD_BEGUN_UNASKED] = {"begun unasked", GPOOL_LORA_LOADING, .in_progress = true,
		.next = TO(BEGUN) | TO(OPENING) | TO(RESIDENT) | TO(COLD)},
	[LOAD_OPENING] = {"opening", GPOOL_LORA_LOADING, .in_progress = true,
		.next = TO(NEEDS_SOURCE) | TO(LISTED) | TO(MADE)},
	[LOAD_NEEDS_SOURCE] = {"needs source", GPOOL_LORA_LOADING, STEPS, .in_progress = true, .next = TO(OPENING)},
	[LOAD_LISTED] = {"listed", GPOOL_LORA_LOADING, TURNS, .in_progress = true,
		.next = TO(MAKING) | TO(FAILED) | TO(ENDING)},
	[LOAD_MAKING] = {"making", GPOOL_LORA_LOADING, .in_progress = true,
		.next = TO(LISTED) | TO(STARVED) | TO(FAILED) | TO(MADE)},
	[LOAD_STARVED] = {"starved", GPOOL_LORA_LOADING, .in_progress = true, .next = TO(LISTED) | TO(FAILED)},
	[LOAD_FAILED] = {"failed", GPOOL_LORA_LOADING, .in_progress = true, .next = TO(NEEDS_SOURCE) | TO(MADE)},
	[LOAD_MADE] = {"made", GPOOL_LORA_LOADING, STEPS, .in_progress = true, .next = TO(FINISHING)},
	[LOAD_FINISHING] = {"finishing", GPOOL_LORA_LOADING, .in_progress = true,
		.next = TO(DRAFT) | TO(DRAFT_UNUSED) | TO(ENDING)},
	[LOAD_DRAFT] = {"draft", GPOOL_LORA_RESIDENT, .loaded = true, .next = TO(DRAFT_UNUSED)},
	[LOAD_DRAFT_UNUSED] = {"unused draft", GPOOL_LORA_RESIDENT, DRAFTS, .loaded = true,
		.next = TO(DRAFT) | TO(DRAFT_ENDING)},
	[LOAD_ENDING] = {"ending", GPOOL_LORA_LOADING, .in_progress = true, .next = TO(HELD) | TO(RESIDENT) | TO(COLD)},
	[LOAD_DRAFT_ENDING] = {"ending a draft", GPOOL_LORA_LOADING, .in_progress = true, .loaded = true,
		.next = TO(HELD) | TO(RESIDENT) | TO(COLD)},
	[LOAD_HELD] = {"held", GPOOL_LORA_RESIDENT, .loaded = true, .next = TO(RESIDENT)},
	[LOAD_RESIDENT] = {"resident", GPOOL_LORA_RESIDENT, .loaded = true, .next = TO(COLD)},
};

const char *load_state_name(enum load_state state)
{
	return states[state].name;
}

bool load_state_allows(enum load_state from, enum load_state to)
{
	return states[from].next >> to & 1;
}

/* ---- lists and counts ---- */

static struct lora_list *list_of(struct gpool_lora *lora, enum load_state state)
{
	switch (states[state].list) {
	case QUEUE: return &lora->queue;
	case STEPS: return &lora->steps;
	case TURNS: return &lora->turns;
	case DRAFTS: return &lora->drafts;
	default: return NULL;
	}
}

/* Move the entry between the lists. A load for which there was no room returns to the head of the queue. */
static void lists_set(struct gpool_lora *lora, struct lora_entry *entry, enum load_state from, enum load_state to)
{
	struct lora_list *left = list_of(lora, from), *entered = list_of(lora, to);

	if (left == entered)
		return;
	if (left)
		TAILQ_REMOVE(left, entry, link);
	if (entered && from == LOAD_BEGUN)
		TAILQ_INSERT_HEAD(entered, entry, link);
	else if (entered)
		TAILQ_INSERT_TAIL(entered, entry, link);
}

/* Count the loads in progress. The end of a load makes room for another one, unless the load was only postponed. */
static void progress_set(struct gpool_lora *lora, enum load_state from, enum load_state to)
{
	if (states[from].in_progress == states[to].in_progress)
		return;
	lora->loads += states[to].in_progress ? 1 : -1U;
	if (states[to].in_progress || to == LOAD_QUEUED)
		return;
	lora->crowded = false;
	lora->changes++;
	pthread_cond_broadcast(&lora->loaded);
	pthread_cond_broadcast(&lora->queued);
}

static void load_count(struct lora_entry *entry, enum load_state from, enum load_state to)
{
	const struct lora_load *load = entry->load;

	if (states[from].loaded || !states[to].loaded || load->error)
		return;
	if (load->shared)
		entry->counts.shared++;
	else
		entry->counts.from[load->from]++;
	entry->counts.rebalanced += load->unasked && !load->shared;
}

/*
 * Wake a loader thread if the new state needs one. No thread is woken for a step: the loader thread that has listed it
 * also takes it, and other threads call loader_wake().
 */
static void loader_signal(struct gpool_lora *lora, const struct lora_entry *entry, enum load_state from)
{
	switch (states[entry->load_state].list) {
	case QUEUE:
		if (from == LOAD_COLD || from == LOAD_POSTPONED)
			pthread_cond_signal(&lora->queued);
		break;
	case TURNS:
		if (!load_is_short(entry->load) || lora->making < lora->cores)
			pthread_cond_signal(&lora->queued);
		break;
	case DRAFTS: pthread_cond_signal(&lora->queued); break;
	default: break;
	}
}

static enum gpool_lora_state shown_of(const struct lora_entry *entry, enum load_state state)
{
	bool failed = (state == LOAD_DRAFT || state == LOAD_DRAFT_UNUSED) && entry->load->error;

	return failed ? GPOOL_LORA_LOADING : states[state].shown;
}

void load_set_state(struct gpool_lora *lora, struct lora_entry *entry, enum load_state state)
{
	enum load_state from = entry->load_state;

	GPOOL_INVARIANT(load_state_allows(from, state), "adapter %u: from '%s' to '%s'", entry->id, states[from].name,
		states[state].name);
	entry->load_state = state;
	entry->state = shown_of(entry, state);
	lists_set(lora, entry, from, state);
	progress_set(lora, from, state);
	load_count(entry, from, state);
	loader_signal(lora, entry, from);
	if (state == LOAD_RESIDENT)
		entry_unpin(lora, entry, GPOOL_FENCE_NONE);
	if (lora->follow)
		lora->follow(lora, entry);
}
