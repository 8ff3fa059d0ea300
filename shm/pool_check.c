#include "shm/pool_check.h"

#include "shm/object_names.h"
#include "shm/plural.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A session's claim about each of its pages. */
enum use { USE_NONE, USE_IDLE, USE_CACHED, USE_BLOCK };

struct look {
	struct pool_check *check;
	const struct pool_segment *pool;
	uint8_t *use;     /* [page_count], claims of the current session */
	uint8_t *visited; /* [page_count], extents reached from a head */
};

static void __attribute__((format(printf, 4, 5)))
report(struct look *look, uint32_t session, uint32_t page, const char *format, ...)
{
	struct pool_finding finding = {.session = session, .page = page};
	va_list arguments;

	look->check->findings++;
	if (!look->check->found)
		return;
	va_start(arguments, format);
	vsnprintf(finding.text, sizeof(finding.text), format, arguments);
	va_end(arguments);
	look->check->found(look->check->context, &finding);
}

static uint64_t page_word(const struct look *look, uint32_t page)
{
	return atomic_load_explicit(&look->pool->pages[page], memory_order_acquire);
}

static bool owned_by(const struct look *look, uint32_t page, uint32_t session)
{
	uint64_t word = page_word(look, page);
	enum page_state state = page_word_state(word);

	return page_word_owner(word) == session &&
		(state == PAGE_LEASED || state == PAGE_EVICTING || state == PAGE_MOVING || state == PAGE_QUARANTINED);
}

/* Return true if a lookup by name finds the object. */
static bool is_found(const struct pool_segment *pool, uint32_t object, uint32_t *steps)
{
	char name[POOL_OBJECT_NAME_BYTES + 1] = "";
	uint32_t number;

	memcpy(name, pool->objects[object].name, POOL_OBJECT_NAME_BYTES);
	number = object_names_first(pool, pool->objects[object].domain, name);
	for (; number && number != object && *steps; --*steps)
		number = object_names_next(pool, number);
	/* In a forged segment, all names may be in one chain: `steps` bounds the search. */
	return number == object || !*steps;
}

/* Check that each SHARED page belongs to an existing object, and that each object has as many pages as it states. */
static void check_objects(struct look *look, const uint32_t *shared)
{
	uint32_t end = pool_object_end(look->pool), steps = 16 * look->pool->header->object_count;

	for (uint32_t i = 0; i < end; i++) {
		const struct object_record *record = &look->pool->objects[i];
		uint32_t state = atomic_load_explicit(&record->state, memory_order_acquire);
		bool exists = i && state >= OBJECT_CURRENT && state <= OBJECT_LEAVING;

		if (state >= OBJECT_STATES)
			report(look, 0, 0, "object %u has the unknown state %u", i, state);
		else if (shared[i] && (!i || state == OBJECT_NONE))
			report(look, 0, 0, "%u page%s %s SHARED by nonexistent object %u", shared[i], plural(shared[i]),
				be(shared[i]), i);
		else if (exists && shared[i] != record->pages)
			report(look, 0, 0, "object %u has %u page%s, but its record contains %u", i, shared[i],
				plural(shared[i]), record->pages);
		if (i && state == OBJECT_CURRENT && !is_found(look->pool, i, &steps))
			report(look, 0, 0, "object %u is not found by its name", i);
	}
	for (uint32_t i = end; i < look->pool->header->object_count; i++)
		if (shared[i])
			report(look, 0, 0, "%u page%s %s SHARED by nonexistent object %u", shared[i], plural(shared[i]),
				be(shared[i]), i);
}

static void check_words(struct look *look, const bool *attached, uint32_t *shared)
{
	const struct pool_header *header = look->pool->header;

	for (uint32_t page = 0; page < header->page_count; page++) {
		uint64_t word = page_word(look, page);
		enum page_state state = page_word_state(word);
		uint32_t owner = page_word_owner(word);

		if ((unsigned)state >= PAGE_STATES) {
			report(look, 0, page, "unknown state %d", (int)state);
			continue;
		}
		look->check->state_pages[state == PAGE_EVICTING ? PAGE_LEASED : state]++;
		if ((state == PAGE_FREE || state == PAGE_RESERVED || state == PAGE_RETIRED) && owner)
			report(look, 0, page, "%s, but owned by session %u", page_state_name(state), owner);
		if ((state == PAGE_LEASED || state == PAGE_EVICTING || state == PAGE_MOVING ||
			    (state == PAGE_QUARANTINED && owner)) &&
			(owner >= POOL_SESSIONS || !attached[owner]))
			report(look, 0, page, "%s to session %u, but this session is not attached",
				page_state_name(state), owner);
		if (state == PAGE_SHARED && owner < header->object_count)
			shared[owner]++;
		else if (state == PAGE_SHARED)
			report(look, 0, page, "SHARED by invalid object %u", owner);
		if (state == PAGE_RESERVED && page < header->reserved_first)
			report(look, 0, page, "RESERVED outside the reserved range");
	}
	check_objects(look, shared);
	for (int state = 0; state < PAGE_STATES; state++) {
		uint32_t published = atomic_load_explicit(&header->state_pages[state], memory_order_relaxed);

		/* The agent counts EVICTING pages as LEASED until the eviction is decided. */
		if (state == PAGE_EVICTING)
			continue;
		if (published != look->check->state_pages[state])
			report(look, 0, 0, "%u page%s %s %s, but the header of the pool counts %u",
				look->check->state_pages[state], plural(look->check->state_pages[state]),
				be(look->check->state_pages[state]), page_state_name(state), published);
	}
}

/* Record a claim. Return false and report a finding if the session must not claim the page. */
static bool claim(struct look *look, uint32_t session, uint32_t page, enum use use)
{
	if (!owned_by(look, page, session)) {
		report(look, session, page, "%s on a page that is not leased to the session",
			use == USE_IDLE             ? "a free bit"
				: use == USE_CACHED ? "a cached run"
						    : "a block");
		return false;
	}
	if (look->use[page] != USE_NONE) {
		report(look, session, page, "the session claims the page twice");
		return false;
	}
	look->use[page] = (uint8_t)use;
	if (use == USE_IDLE)
		look->check->idle_pages++;
	else if (use == USE_CACHED)
		look->check->cached_pages++;
	else
		look->check->block_pages++;
	return true;
}

/*
 * Claim one run of a block or of the magazine. Return false at the first page that the session must not claim, so that
 * each of the overlapping runs of a damaged session causes only one finding.
 */
static bool claim_run(struct look *look, const struct pool_check_session *s, uint32_t first, enum use use)
{
	uint32_t count = atomic_load_explicit(&s->segment->blocks[first].page_count, memory_order_relaxed);

	if (count < 1 || count > look->pool->header->page_count - first) {
		report(look, s->id, first, "a block of %u page%s exceeds the pool", count, plural(count));
		return false;
	}
	for (uint32_t page = first; page < first + count; page++)
		if (!claim(look, s->id, page, use))
			return false;
	return true;
}

static void check_block(struct look *look, const struct pool_check_session *s, uint32_t head, uint64_t tag)
{
	const struct block_entry *blocks = s->segment->blocks;
	uint32_t pins = atomic_load_explicit(&s->segment->pins[head], memory_order_relaxed);
	uint32_t before = look->check->block_pages, next;

	if (!claim_run(look, s, head, USE_BLOCK))
		return;
	next = tag & BLOCK_SCATTERED ? atomic_load_explicit(&blocks[head].next, memory_order_relaxed) : 0;
	while (next) {
		uint32_t extent = next - 1;
		uint64_t extent_tag;

		if (extent >= look->pool->header->page_count) {
			report(look, s->id, head, "a scattered block continues at nonexistent page %u", extent);
			return;
		}
		extent_tag = atomic_load_explicit(&blocks[extent].tag, memory_order_acquire);
		if (extent_tag >> BLOCK_SEQUENCE_SHIFT != tag >> BLOCK_SEQUENCE_SHIFT || !(extent_tag & BLOCK_EXTENT) ||
			look->visited[extent]) {
			report(look, s->id, head, "a scattered block continues at page %u, which is not its extent",
				extent);
			return;
		}
		look->visited[extent] = 1;
		if (!claim_run(look, s, extent, USE_BLOCK))
			return;
		next = atomic_load_explicit(&blocks[extent].next, memory_order_relaxed);
	}
	if (pins)
		look->check->pinned_pages += look->check->block_pages - before;
}

static void check_session(struct look *look, const struct pool_check_session *s)
{
	uint32_t page_count = look->pool->header->page_count;
	const struct session_segment *segment = s->segment;

	memset(look->use, USE_NONE, page_count);
	memset(look->visited, 0, page_count);
	for (uint32_t word = 0; word < (page_count + 63) / 64; word++) {
		uint64_t bits = atomic_load_explicit(&segment->free_bits[word], memory_order_acquire);

		for (; bits; bits &= bits - 1) {
			uint32_t page = word * 64 + (uint32_t)__builtin_ctzll(bits);

			if (page < page_count)
				claim(look, s->id, page, USE_IDLE);
			else
				report(look, s->id, page, "a free bit beyond the last page");
		}
	}
	for (uint32_t page = 0; page < page_count; page++) {
		uint64_t tag = atomic_load_explicit(&segment->blocks[page].tag, memory_order_acquire);

		if (tag == BLOCK_TAG_CACHED)
			claim_run(look, s, page, USE_CACHED);
		else if (tag && !(tag & BLOCK_EXTENT))
			check_block(look, s, page, tag);
	}
	for (uint32_t page = 0; page < page_count; page++) {
		uint64_t tag = atomic_load_explicit(&segment->blocks[page].tag, memory_order_acquire);

		if (tag & BLOCK_EXTENT && !look->visited[page] && look->check->quiescent)
			report(look, s->id, page, "an extent of a scattered block without its head");
		if (!owned_by(look, page, s->id))
			continue;
		if (look->use[page] == USE_NONE) {
			look->check->in_transit++;
			if (look->check->quiescent)
				report(look, s->id, page, "leased, but not in a block, idle or cached");
		}
		if (look->check->quiescent && atomic_load_explicit(&segment->pins[page], memory_order_relaxed) &&
			!(block_tag_is_block(tag) && !(tag & BLOCK_EXTENT)))
			report(look, s->id, page, "pinned, but no block starts here");
	}
}

int pool_check(const struct pool_segment *pool, const struct pool_check_session *sessions, uint32_t session_count,
	struct pool_check *check)
{
	struct look look = {.check = check, .pool = pool};
	bool *attached = calloc(POOL_SESSIONS, sizeof(*attached));
	uint32_t *shared = calloc(pool->header->object_count, sizeof(*shared)); /* pages of each object */
	int error = -ENOMEM;

	look.use = malloc(pool->header->page_count);
	look.visited = malloc(pool->header->page_count);
	if (!attached || !shared || !look.use || !look.visited)
		goto free_memory;
	for (uint32_t i = 0; i < session_count; i++)
		attached[sessions[i].id] = true;
	check_words(&look, attached, shared);
	for (uint32_t i = 0; i < session_count; i++)
		if (sessions[i].segment->page_count == pool->header->page_count)
			check_session(&look, &sessions[i]);
	error = check->findings ? 1 : 0;
free_memory:
	free(attached);
	free(shared);
	free(look.use);
	free(look.visited);
	return error;
}
