#include "agent/spill/spill_slots.h"

#include "agent/base/crash_point.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	TIDY_SLOTS = 16,   /* per call: punching a hole of 2 MiB takes about 100 us in a tmpfs */
	TIDY_TICK_MS = 20, /* between calls that punch holes */
	/*
	 * chosen: an engine that evicts and restores content again and again does so within seconds. A slot whose space
	 * was returned costs a page fault and the zeroing of each 4 KiB when it is written again.
	 */
	TIDY_AGE_MS = 1000,
	TIDY_AGES = 3, /* value of `dirty` of a slot that was just freed; each TIDY_AGE_MS reduces it by 1, down to 1 */
};

static struct ledger_slot *slot_at(const struct ledger *ledger, uint32_t slot)
{
	return &ledger->slots[slot];
}

static uint64_t slot_tag(const struct ledger *ledger, uint32_t slot)
{
	return atomic_load_explicit(&slot_at(ledger, slot)->tag, memory_order_acquire);
}

enum mover_tier slots_tier(const struct spill_slots *slots, uint32_t slot, uint32_t *place)
{
	enum mover_tier tier = slot >= slots->tiers[MOVER_TIER_FILE].first ? MOVER_TIER_FILE : MOVER_TIER_MEMORY;

	*place = slot - slots->tiers[tier].first;
	return tier;
}

static void slot_soil(struct spill_slots *slots, struct spill_tier *tier, uint32_t slot)
{
	if (tier->punch && !slots->dirty[slot]) {
		slots->dirty[slot] = TIDY_AGES;
		tier->dirty++;
	}
}

static void tier_push(struct spill_slots *slots, uint32_t slot)
{
	uint32_t place;
	struct spill_tier *tier = &slots->tiers[slots_tier(slots, slot, &place)];

	tier->free[tier->stacked++] = slot;
	tier->free_count++;
	slot_soil(slots, tier, slot);
}

void slots_soil(struct spill_slots *slots)
{
	for (int i = 0; i < MOVER_TIERS; i++)
		for (uint32_t at = 0; at < slots->tiers[i].stacked; at++)
			slot_soil(slots, &slots->tiers[i], slots->tiers[i].free[at]);
}

void *slots_array(uint32_t slot_count, size_t bytes)
{
	void *array = mmap(NULL, (slot_count + 1) * bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return array == MAP_FAILED ? NULL : array;
}

void slots_array_free(void *array, uint32_t slot_count, size_t bytes)
{
	if (array)
		munmap(array, (slot_count + 1) * bytes);
}

/*
 * Return the number of slots of a tier, from its first one on, that may have been used: reading the others would
 * allocate their memory. Slots are used in ascending order, so there are few of them after the last used one.
 */
static uint32_t begun_find(const struct ledger *ledger, int ledger_fd, const struct spill_tier *tier)
{
	off_t begin = (const char *)slot_at(ledger, tier->first) - (const char *)ledger->header, end, at = begin;
	off_t used = begin;

	end = begin + (off_t)(tier->count * sizeof(struct ledger_slot));
	while (at < end) {
		at = lseek(ledger_fd, at, SEEK_DATA);
		if (at < 0 && errno != ENXIO)
			return tier->count;
		if (at < 0 || at >= end)
			break;
		at = lseek(ledger_fd, at, SEEK_HOLE);
		if (at < 0)
			return tier->count;
		used = at < end ? at : end;
	}
	return (uint32_t)((used - begin + (off_t)sizeof(struct ledger_slot) - 1) / (off_t)sizeof(struct ledger_slot));
}

uint32_t slots_begun(const struct spill_slots *slots, uint32_t slot)
{
	for (int i = 0; i < MOVER_TIERS; i++) {
		const struct spill_tier *tier = &slots->tiers[i];

		if (slot < tier->first)
			slot = tier->first;
		if (slot < tier->first + tier->begun)
			return slot;
	}
	return slots->ledger->header->slot_count;
}

int slots_open(struct spill_slots *slots, const struct ledger *ledger, int ledger_fd, uint64_t page_bytes)
{
	uint32_t memory = ledger->header->memory_slots, all = ledger->header->slot_count;

	slots->ledger = ledger;
	slots->page_bytes = page_bytes;
	slots->tiers[MOVER_TIER_MEMORY].first = 0;
	slots->tiers[MOVER_TIER_MEMORY].count = memory;
	slots->tiers[MOVER_TIER_FILE].first = memory;
	slots->tiers[MOVER_TIER_FILE].count = all - memory;
	slots->dirty = slots_array(all, sizeof(*slots->dirty));
	if (!slots->dirty)
		return -ENOMEM;
	for (int i = 0; i < MOVER_TIERS; i++) {
		struct spill_tier *tier = &slots->tiers[i];

		tier->free = slots_array(tier->count, sizeof(*tier->free));
		if (!tier->free) {
			slots_close(slots);
			return -ENOMEM;
		}
		tier->stacked = tier->dirty = 0;
		tier->begun = begun_find(ledger, ledger_fd, tier);
		/* Push in reverse order, so that the lowest slot is on top. */
		for (uint32_t slot = tier->first + tier->begun; slot-- > tier->first;)
			if (!slot_tag(ledger, slot))
				tier->free[tier->stacked++] = slot;
		tier->free_count = tier->count - tier->begun + tier->stacked;
	}
	return 0;
}

void slots_close(struct spill_slots *slots)
{
	for (int i = 0; i < MOVER_TIERS; i++) {
		slots_array_free(slots->tiers[i].free, slots->tiers[i].count, sizeof(*slots->tiers[i].free));
		slots->tiers[i].free = NULL;
	}
	slots_array_free(slots->dirty, slots->ledger ? slots->ledger->header->slot_count : 0, sizeof(*slots->dirty));
	slots->dirty = NULL;
}

static bool tier_open(const struct spill_tier *tier, uint64_t now_ms)
{
	return tier->fd >= 0 && now_ms >= tier->rest_ms;
}

uint32_t slots_room(const struct spill_slots *slots, uint64_t now_ms)
{
	uint32_t room = 0;

	for (int i = 0; i < MOVER_TIERS; i++)
		if (tier_open(&slots->tiers[i], now_ms))
			room += slots->tiers[i].free_count;
	return room;
}

/* Take a free slot of a tier. The caller has checked that the tier has one. */
static uint32_t tier_pop(struct spill_slots *slots, struct spill_tier *tier)
{
	uint32_t slot = tier->stacked ? tier->free[--tier->stacked] : tier->first + tier->begun++;

	tier->free_count--;
	if (slots->dirty[slot]) {
		slots->dirty[slot] = 0;
		tier->dirty--;
	}
	return slot;
}

static uint32_t slot_pop(struct spill_slots *slots, uint64_t now_ms)
{
	struct spill_tier *memory = &slots->tiers[MOVER_TIER_MEMORY];

	return tier_pop(
		slots, tier_open(memory, now_ms) && memory->free_count ? memory : &slots->tiers[MOVER_TIER_FILE]);
}

/* The page, or the checksum of the chain, from which a slot is filled. */
struct origin {
	struct spill_source source;
	uint64_t checksum;
};

/* Fill a slot. The tag is stored last. */
static void slot_write(const struct spill_slots *slots, const struct spill_name *name, const uint32_t *chain,
	uint32_t index, uint32_t pages, const struct origin *origin, enum ledger_slot_state state)
{
	struct ledger_slot *slot = slot_at(slots->ledger, chain[index]);

	slot->session = name->session;
	slot->index = index;
	slot->checksum = origin->checksum;
	slot->next = index + 1 < pages ? chain[index + 1] + 1 : 0;
	slot->pages = pages;
	slot->page = origin->source.page;
	slot->generation = origin->source.generation;
	slot->owner_id = name->owner_id;
	slot->request = 0;
	atomic_store_explicit(&slot->state, state, memory_order_relaxed);
	atomic_store_explicit(&slot->tag, name->tag, memory_order_release);
	crash_point();
}

int slots_take(struct spill_slots *slots, const struct spill_name *name, const struct spill_source *sources,
	uint32_t pages, uint64_t now_ms, uint32_t *chain)
{
	if (slots_room(slots, now_ms) < pages)
		return -ENOSPC;
	for (uint32_t i = 0; i < pages; i++)
		chain[i] = slot_pop(slots, now_ms);
	/* Start at the end: until the head is stored, the slots are not a chain. */
	for (uint32_t i = pages; i-- > 0;)
		slot_write(slots, name, chain, i, pages, &(struct origin){.source = sources[i]}, SLOT_SAVING);
	return 0;
}

int slots_take_file(struct spill_slots *slots, const struct spill_name *name, const uint32_t *from, uint32_t pages,
	uint64_t now_ms, uint32_t *chain)
{
	struct spill_tier *file = &slots->tiers[MOVER_TIER_FILE];

	if (!tier_open(file, now_ms) || file->free_count < pages)
		return -ENOSPC;
	for (uint32_t i = 0; i < pages; i++)
		chain[i] = tier_pop(slots, file);
	for (uint32_t i = pages; i-- > 0;) {
		const struct origin origin = {.checksum = slot_at(slots->ledger, from[i])->checksum};

		slot_write(slots, name, chain, i, pages, &origin, SLOT_SINKING);
	}
	return 0;
}

void slots_put(struct spill_slots *slots, const uint32_t *chain, uint32_t pages)
{
	for (uint32_t i = 0; i < pages; i++) {
		atomic_store_explicit(&slot_at(slots->ledger, chain[i])->tag, 0, memory_order_release);
		crash_point();
	}
	for (uint32_t i = pages; i-- > 0;)
		tier_push(slots, chain[i]);
}

bool slots_chain(const struct ledger *ledger, uint32_t head, uint32_t *chain)
{
	const struct ledger_slot *first = slot_at(ledger, head);
	uint64_t tag = slot_tag(ledger, head);
	uint32_t at = head;

	if (!tag || first->index != 0 || first->pages < 1 || first->pages > ledger->header->page_count)
		return false;
	for (uint32_t i = 0; i < first->pages; i++) {
		const struct ledger_slot *slot = slot_at(ledger, at);

		if (slot_tag(ledger, at) != tag || slot->index != i || slot->pages != first->pages)
			return false;
		chain[i] = at;
		if (slot->next > ledger->header->slot_count || (slot->next == 0) != (i + 1 == first->pages))
			return false;
		at = slot->next - 1;
	}
	return true;
}

static void tier_age(struct spill_slots *slots, const struct spill_tier *tier)
{
	for (uint32_t at = 0; tier->dirty && at < tier->stacked; at++)
		if (slots->dirty[tier->free[at]] > 1)
			slots->dirty[tier->free[at]]--;
}

uint32_t slots_tidy(struct spill_slots *slots, uint64_t now_ms)
{
	uint32_t left = TIDY_SLOTS, dirty = 0;
	bool ages = now_ms - slots->aged_ms >= TIDY_AGE_MS;

	if (ages)
		slots->aged_ms = now_ms;
	for (int i = 0; i < MOVER_TIERS; i++) {
		struct spill_tier *tier = &slots->tiers[i];

		if (ages)
			tier_age(slots, tier);
		/* Start at the bottom of the stack, since the slots on top will be reused next. */
		for (uint32_t at = 0; tier->dirty && left && at < tier->stacked; at++) {
			uint32_t slot = tier->free[at];

			if (slots->dirty[slot] != 1)
				continue;
			slots->dirty[slot] = 0;
			tier->dirty--;
			left--;
			/* On a file system without holes, the space stays allocated for the next page in that slot. */
			fallocate(tier->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				(off_t)((slot - tier->first) * slots->page_bytes), (off_t)slots->page_bytes);
		}
		dirty += tier->dirty;
	}
	return !dirty ? 0 : left ? TIDY_AGE_MS : TIDY_TICK_MS;
}
