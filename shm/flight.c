/*
 * flight.c - write a ring of the flight recorder, and read one without trusting its contents; see flight.h.
 */
#include "shm/flight.h"

#include "shm/page_word.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { FLAG_TOLD = 1, FLAG_EVERYWHERE = 2, FLAGS = 3 };

static const char *const names[FLIGHT_KINDS - FLIGHT_KINDS_FIRST] = {
	[FLIGHT_GRANT - FLIGHT_KINDS_FIRST] = "grant",
	[FLIGHT_RETURN - FLIGHT_KINDS_FIRST] = "return",
	[FLIGHT_REFUSAL - FLIGHT_KINDS_FIRST] = "refusal",
	[FLIGHT_EVICT - FLIGHT_KINDS_FIRST] = "evict",
	[FLIGHT_SPILL - FLIGHT_KINDS_FIRST] = "spill",
	[FLIGHT_LOAD - FLIGHT_KINDS_FIRST] = "load",
	[FLIGHT_OBJECT_OPEN - FLIGHT_KINDS_FIRST] = "object-open",
	[FLIGHT_ALLOCATE - FLIGHT_KINDS_FIRST] = "allocate",
	[FLIGHT_FREE - FLIGHT_KINDS_FIRST] = "free",
	[FLIGHT_REFILL - FLIGHT_KINDS_FIRST] = "refill",
	[FLIGHT_PIN_WAIT - FLIGHT_KINDS_FIRST] = "pin-wait",
	[FLIGHT_PIN_STALE - FLIGHT_KINDS_FIRST] = "pin-stale",
	[FLIGHT_RESTORE - FLIGHT_KINDS_FIRST] = "restore",
};

const char *flight_kind_name(uint32_t kind)
{
	return kind >= FLIGHT_KINDS_FIRST && kind < FLIGHT_KINDS ? names[kind - FLIGHT_KINDS_FIRST] : NULL;
}

uint64_t flight_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- layout ---- */

uint32_t flight_count(uint32_t records)
{
	uint32_t count = records ? 1 : 0;

	while (count < records && count < FLIGHT_RECORDS_MAX)
		count *= 2;
	return count;
}

size_t flight_bytes(uint32_t count, bool texts)
{
	if (!count)
		return 0;
	return sizeof(struct flight_head) + count * (sizeof(struct flight_record) + (texts ? FLIGHT_TEXT_BYTES : 0));
}

void flight_over(void *base, uint32_t count, bool texts, struct flight_ring *ring)
{
	char *at = base;

	*ring = (struct flight_ring){.count = count};
	if (!count)
		return;
	ring->head = base;
	ring->records = (struct flight_record *)(at + sizeof(struct flight_head));
	if (texts)
		ring->texts = (_Atomic uint64_t(*)[FLIGHT_TEXT_BYTES / 8])(ring->records + count);
}

/* ---- writing ---- */

static uint64_t what_of(const struct flight_entry *entry)
{
	uint64_t flags = (entry->self_reported ? FLAG_TOLD : 0) | (entry->everywhere ? FLAG_EVERYWHERE : 0);

	return entry->kind | (uint64_t)entry->session << 32 | flags << 48;
}

/* Store the text word by word, because readers may read it at the same time. */
static void text_store(_Atomic uint64_t *to, const char *text)
{
	uint64_t words[FLIGHT_TEXT_BYTES / 8] = {0};

	strncpy((char *)words, text ? text : "", sizeof(words) - 1);
	for (uint32_t i = 0; i < FLIGHT_TEXT_BYTES / 8; i++)
		atomic_store_explicit(&to[i], words[i], memory_order_relaxed);
}

/* Claim the record for this number. Return NULL if the entry must be dropped (see flight.h). */
static struct flight_record *claim(const struct flight_ring *ring, uint64_t number)
{
	struct flight_record *record = &ring->records[number & (ring->count - 1)];
	uint64_t serial = atomic_load_explicit(&record->serial, memory_order_relaxed);

	if (serial & FLIGHT_CLAIMED || serial > number)
		return NULL;
	if (!atomic_compare_exchange_strong_explicit(&record->serial, &serial, (number + 1) | FLIGHT_CLAIMED,
		    memory_order_acquire, memory_order_relaxed))
		return NULL;
	/* A reader that sees any part of the new contents also sees the claim. */
	atomic_thread_fence(memory_order_release);
	return record;
}

void flight_write(const struct flight_ring *ring, const struct flight_entry *entry, const char *text)
{
	struct flight_record *record;
	uint64_t number;

	if (!ring->count)
		return;
	number = atomic_fetch_add_explicit(&ring->head->begun, 1, memory_order_relaxed) & ~FLIGHT_CLAIMED;
	record = claim(ring, number);
	if (!record)
		return;
	atomic_store_explicit(&record->time_ns, entry->time_ns, memory_order_relaxed);
	atomic_store_explicit(&record->duration_ns, entry->duration_ns, memory_order_relaxed);
	atomic_store_explicit(&record->what, what_of(entry), memory_order_relaxed);
	atomic_store_explicit(&record->pages, (uint64_t)entry->page << 32 | entry->pages, memory_order_relaxed);
	atomic_store_explicit(&record->tag, entry->tag, memory_order_relaxed);
	atomic_store_explicit(&record->value, entry->value, memory_order_relaxed);
	if (ring->texts)
		text_store(ring->texts[number & (ring->count - 1)], text);
	atomic_store_explicit(&record->serial, number + 1, memory_order_release);
}

/* ---- reading ---- */

uint32_t flight_used(const struct flight_ring *ring)
{
	uint64_t begun = ring->count ? atomic_load_explicit(&ring->head->begun, memory_order_relaxed) : 0;

	return begun < ring->count ? (uint32_t)begun : ring->count;
}

static void load(const struct flight_ring *ring, uint32_t place, struct flight_entry *entry, char *text)
{
	const struct flight_record *record = &ring->records[place];
	uint64_t what = atomic_load_explicit(&record->what, memory_order_relaxed);
	uint64_t pages = atomic_load_explicit(&record->pages, memory_order_relaxed), word;

	*entry = (struct flight_entry){
		.time_ns = atomic_load_explicit(&record->time_ns, memory_order_relaxed),
		.duration_ns = atomic_load_explicit(&record->duration_ns, memory_order_relaxed),
		.kind = (uint32_t)what,
		.session = (uint16_t)(what >> 32),
		.self_reported = what >> 48 & FLAG_TOLD,
		.everywhere = what >> 48 & FLAG_EVERYWHERE,
		.page = (uint32_t)(pages >> 32),
		.pages = (uint32_t)pages,
		.tag = atomic_load_explicit(&record->tag, memory_order_relaxed),
		.value = atomic_load_explicit(&record->value, memory_order_relaxed),
	};
	if (!text)
		return;
	memset(text, 0, FLIGHT_TEXT_BYTES);
	for (uint32_t i = 0; ring->texts && i < FLIGHT_TEXT_BYTES / 8; i++) {
		word = atomic_load_explicit(&ring->texts[place][i], memory_order_relaxed);
		memcpy(text + i * 8, &word, sizeof(word));
	}
	text[FLIGHT_TEXT_BYTES - 1] = '\0';
}

static bool possible(const struct flight_entry *entry, uint64_t now_ns)
{
	return entry->kind != FLIGHT_NONE && (entry->kind < FLIGHT_KINDS_FIRST || flight_kind_name(entry->kind)) &&
		entry->session <= PAGE_SESSION_MAX && entry->time_ns <= now_ns &&
		entry->duration_ns <= entry->time_ns && entry->duration_ns <= FLIGHT_DURATION_MAX;
}

int flight_read(const struct flight_ring *ring, uint32_t place, uint64_t now_ns, struct flight_entry *entry, char *text)
{
	const _Atomic uint64_t *serial = &ring->records[place].serial;
	uint64_t begun = atomic_load_explicit(serial, memory_order_acquire);

	if (!begun || begun & FLIGHT_CLAIMED)
		return -ENOENT;
	load(ring, place, entry, text);
	atomic_thread_fence(memory_order_acquire);
	if (atomic_load_explicit(serial, memory_order_relaxed) != begun)
		return -ENOENT;
	return ((begun - 1) & (ring->count - 1)) == place && possible(entry, now_ns) ? 0 : -EBADMSG;
}

/* ---- whole rings ---- */

void flight_keep(const struct flight_ring *from, uint16_t session, const struct flight_ring *to)
{
	uint64_t now = flight_now();
	uint32_t places = flight_used(from), begun, kept = places < FLIGHT_KEPT_RECORDS ? places : FLIGHT_KEPT_RECORDS;
	struct flight_entry entry;

	if (!kept || !to->count)
		return;
	/* The head is untrusted, so only the number of records to keep bounds the loop. */
	begun = (uint32_t)(atomic_load_explicit(&from->head->begun, memory_order_relaxed) - kept);
	for (uint32_t i = 0; i < kept; i++) {
		if (flight_read(from, (begun + i) & (from->count - 1), now, &entry, NULL) ||
			entry.kind < FLIGHT_WORKERS_FIRST)
			continue;
		entry.session = session;
		entry.self_reported = true;
		flight_write(to, &entry, NULL);
	}
}

void flight_recover(const struct flight_ring *ring)
{
	uint32_t places = flight_used(ring);

	for (uint32_t i = 0; i < places; i++)
		if (atomic_load_explicit(&ring->records[i].serial, memory_order_relaxed) & FLIGHT_CLAIMED)
			atomic_store_explicit(&ring->records[i].serial, 0, memory_order_relaxed);
}

void flight_copy(const struct flight_ring *from, const struct flight_ring *to)
{
	if (from->count == to->count && !from->texts == !to->texts && to->count)
		memcpy(to->head, from->head, flight_bytes(to->count, to->texts != NULL));
}
