/* region_table.c - write and read a region table; see region_table.h. */
#include "shm/region_table.h"

/* Attempts to read consistent data. A change takes some nanoseconds, unless the writer is preempted or dead. */
enum { TRIES = 16 };
#define PAGE_BYTES_MOST (UINT64_C(1) << 40)

/* ---- functions of the worker ---- */

void region_writer_init(
	struct region_writer *writer, struct region_table *table, const _Atomic uint32_t *clock_ms, uint64_t page_bytes)
{
	writer->table = table;
	writer->clock_ms = clock_ms;
	writer->used = writer->free_count = writer->unlisted = writer->changes = 0;
	atomic_store_explicit(&table->page_bytes, page_bytes, memory_order_relaxed);
}

static void unlisted_set(struct region_writer *writer, uint32_t unlisted)
{
	writer->unlisted = unlisted;
	atomic_store_explicit(&writer->table->unlisted, unlisted, memory_order_relaxed);
}

uint16_t region_writer_number(struct region_writer *writer, uint16_t number)
{
	uint16_t found;

	if (writer->free_count)
		found = writer->free[--writer->free_count];
	else if (writer->used < REGION_TABLE_ENTRIES)
		found = (uint16_t)writer->used++;
	else
		found = REGION_ROW_UNLISTED;
	if (number != REGION_ROW_UNLISTED && found == REGION_ROW_UNLISTED)
		unlisted_set(writer, writer->unlisted + 1);
	else if (number == REGION_ROW_UNLISTED && found != REGION_ROW_UNLISTED)
		unlisted_set(writer, writer->unlisted - 1);
	atomic_store_explicit(&writer->table->used, writer->used, memory_order_relaxed);
	return found;
}

void region_table_clear(struct region_writer *writer, uint16_t *number)
{
	struct region_entry *entry;
	uint32_t odd;

	assert(writer->changes & 1);
	if (*number == REGION_ROW_UNLISTED)
		unlisted_set(writer, writer->unlisted - 1);
	if (*number < REGION_TABLE_ENTRIES) {
		entry = &writer->table->entries[*number];
		odd = region_serial_begin(&entry->serial);
		atomic_store_explicit(&entry->what, REGION_ROW_NONE, memory_order_relaxed);
		region_serial_end(&entry->serial, odd);
		writer->free[writer->free_count++] = *number;
	}
	*number = REGION_ROW_NEW;
}

/* Begin a read and return the serial number, which the caller compares at the end. */
static uint32_t look_begin(const _Atomic uint32_t *serial)
{
	return atomic_load_explicit(serial, memory_order_acquire);
}

static bool look_holds(const _Atomic uint32_t *serial, uint32_t begun)
{
	atomic_thread_fence(memory_order_acquire);
	return !(begun & 1) && atomic_load_explicit(serial, memory_order_relaxed) == begun;
}

static bool totals_read(const struct region_table *table, struct region_totals *totals)
{
	uint64_t *to = (uint64_t *)totals;

	for (int i = 0; i < TRIES; i++) {
		uint32_t begun = look_begin(&table->changes);

		for (size_t field = 0; field < REGION_TOTALS; field++)
			to[field] = atomic_load_explicit(&table->totals[field], memory_order_relaxed);
		if (look_holds(&table->changes, begun))
			return true;
	}
	return false;
}

void region_table_look(const struct region_table *table, struct region_look *look)
{
	look->changes = atomic_load_explicit(&table->changes, memory_order_acquire);
	look->used = atomic_load_explicit(&table->used, memory_order_relaxed);
	look->unlisted = atomic_load_explicit(&table->unlisted, memory_order_relaxed);
	look->page_bytes = atomic_load_explicit(&table->page_bytes, memory_order_relaxed);
	look->totals_changing = !totals_read(table, &look->totals);
	look->damaged = look->used > REGION_TABLE_ENTRIES || look->page_bytes % REGION_TABLE_PAGE_LEAST ||
		look->page_bytes > PAGE_BYTES_MOST || (look->used && !look->page_bytes);
	if (look->damaged)
		look->used = 0;
}

bool region_table_stands(const struct region_table *table, const struct region_look *look)
{
	return look_holds(&table->changes, look->changes);
}

static void entry_load(const struct region_entry *entry, struct region_row *region)
{
	uint32_t what = atomic_load_explicit(&entry->what, memory_order_relaxed);

	region->state = (enum region_row_state)(what & 0xff);
	region->flags = what >> 8;
	region->pages = atomic_load_explicit(&entry->pages, memory_order_relaxed);
	region->stream = atomic_load_explicit(&entry->stream, memory_order_relaxed);
	region->address = atomic_load_explicit(&entry->address, memory_order_relaxed);
	region->id = atomic_load_explicit(&entry->id, memory_order_relaxed);
	region->fence = atomic_load_explicit(&entry->fence, memory_order_relaxed);
	region->changed_ms = atomic_load_explicit(&entry->changed_ms, memory_order_relaxed);
}

static bool region_possible(const struct region_row *region, uint64_t page_bytes)
{
	return region->state != REGION_ROW_NONE && region->state < REGION_ROW_STATES &&
		!(region->flags & ~REGION_ROW_FLAGS) && region->pages && !(region->address % REGION_TABLE_PAGE_LEAST) &&
		region->pages <= (UINT64_MAX - region->address) / page_bytes;
}

enum region_read region_table_read(
	const struct region_table *table, const struct region_look *look, uint32_t number, struct region_row *region)
{
	const struct region_entry *entry = &table->entries[number];
	struct region_row now = {.state = REGION_ROW_NONE};
	bool whole = false;

	for (int i = 0; i < TRIES && !whole; i++) {
		uint32_t begun = look_begin(&entry->serial);

		entry_load(entry, &now);
		whole = look_holds(&entry->serial, begun);
	}
	if (now.state == REGION_ROW_NONE && !now.flags)
		return REGION_READ_NONE;
	if (!region_possible(&now, look->page_bytes))
		return REGION_READ_DAMAGED;
	*region = now;
	return whole ? REGION_READ_WHOLE : REGION_READ_CHANGING;
}

const char *region_row_state_name(enum region_row_state state)
{
	static const char *const names[REGION_ROW_STATES] = {"none", "allocated", "free", "pending_unmap", "hole"};

	return (unsigned)state < REGION_ROW_STATES ? names[state] : "?";
}
