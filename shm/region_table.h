/*
 * region_table.h - the regions of a worker's gpool_malloc_async(), for inspection by other processes. The table is part
 * of the session segment.
 *
 *   header, totals | struct region_entry[REGION_TABLE_ENTRIES], one for each region, in any order
 *
 * Writer: the worker, under its own lock. Readers: the agent and tools. They use no lock, because the worker may hang
 * or die during a change. Each entry has a serial number, and `changes` is the serial number of the whole table. A
 * serial number is odd while the data that it protects is being changed. A reader that sees the same even number before
 * and after reading has read consistent data. After a limited number of attempts, it reports that the data is changing,
 * and continues.
 *
 * A region is a run of pages of gpool_malloc_async() in the same state. The regions cover the reserved addresses
 * without overlap. Regions that do not fit into the table are counted in `unlisted`. A reader must treat every field as
 * untrusted: it reads each field once and checks it, and reports invalid entries as damaged. No decision depends on the
 * contents.
 */
#ifndef GPOOL_SHM_REGION_TABLE_H
#define GPOOL_SHM_REGION_TABLE_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	/* chosen: more entries than a person reads; 512 KiB, of which only the pages of used entries are allocated */
	REGION_TABLE_ENTRIES = 8192,
	REGION_ROW_NEW = 0xffff,      /* instead of an entry's number: the region has no entry yet */
	REGION_ROW_UNLISTED = 0xfffe, /* the table was full; the region is counted as unlisted */
	REGION_TABLE_PAGE_LEAST = 4096,
};
static_assert(REGION_TABLE_ENTRIES <= REGION_ROW_UNLISTED, "the numbers of entries are uint16_t");

enum region_row_state {
	REGION_ROW_NONE,
	REGION_ROW_ALLOCATED,
	REGION_ROW_FREE,          /* mapped; can be allocated again by gpool_malloc_async() */
	REGION_ROW_PENDING_UNMAP, /* still mapped, but its pages were mapped elsewhere or taken by the agent */
	REGION_ROW_HOLE,          /* nothing is mapped */
	REGION_ROW_STATES
};

enum {
	REGION_ROW_RECLAIMABLE = 1u << 0, /* free, with idle pages: the agent may take them at any time */
	REGION_ROW_CAPTURED = 1u << 1,    /* captured by gpool_vm_capture(): keeps its addresses and pages */
	REGION_ROW_MOVING = 1u << 2,      /* in use by a call, so in none of the allocator's sets */
	REGION_ROW_FLAGS = 7u,
};

/* One region, as passed by the writer and returned to a reader. */
struct region_row {
	uint64_t address; /* a multiple of REGION_TABLE_PAGE_LEAST */
	uint64_t id;      /* increases with each new region */
	uint64_t fence;   /* as in timeline.h; 0: none */
	uint32_t pages;   /* number of pages, at least 1 */
	uint32_t stream;  /* stream slot: the low 8 bits of the stream returned by gpool_stream_open(); 0: none */
	enum region_row_state state;
	uint32_t flags;      /* REGION_ROW_RECLAIMABLE .. */
	uint32_t changed_ms; /* the pool's clock_ms at the last change; for display only */
};

/* The bytes and numbers of all regions by state, including unlisted regions. */
struct region_totals {
	uint64_t reserved; /* addresses, mapped or not */
	uint64_t mapped;   /* addresses with pages: live, reusable and pending unmap */
	uint64_t live;     /* allocated */
	uint64_t reusable; /* free, reclaimable or not */
	uint64_t reclaimable;
	uint64_t pending_unmap;
	uint64_t holes;
	/* the region that the last gpool_malloc_async() returned; 0: none, or freed */
	uint64_t last_id;
	uint64_t live_regions, reusable_regions, pending_unmap_regions, hole_regions;
};
enum { REGION_TOTALS = sizeof(struct region_totals) / sizeof(uint64_t) };

struct region_entry {
	_Alignas(64) _Atomic uint32_t serial;
	_Atomic uint32_t what; /* enum region_row_state | flags << 8 */
	_Atomic uint32_t pages;
	_Atomic uint32_t stream;
	_Atomic uint64_t address;
	_Atomic uint64_t id;
	_Atomic uint64_t fence;
	_Atomic uint32_t changed_ms;
	uint32_t reserved[3];
};
static_assert(sizeof(struct region_entry) == 64, "one cache line each");

struct region_table {
	_Alignas(64) _Atomic uint32_t changes; /* serial of the whole table */
	/* this entry and all further ones were never used; reading them would allocate memory */
	_Atomic uint32_t used;
	_Atomic uint32_t unlisted; /* number of regions without an entry */
	uint32_t reserved;
	_Atomic uint64_t page_bytes;            /* size of a page; 0: gpool_malloc_async() has not been used */
	_Atomic uint64_t totals[REGION_TOTALS]; /* struct region_totals */
	struct region_entry entries[REGION_TABLE_ENTRIES];
};

/* ---- functions of the worker, called with its lock held ---- */

/*
 * The private state of the writer. Each region stores the number of its entry, initially REGION_ROW_NEW. A region that
 * got no entry because the table was full gets one at a later region_table_set() if one is free.
 */
struct region_writer {
	struct region_table *table;
	const _Atomic uint32_t *clock_ms; /* clock_ms in the pool's header */
	uint32_t used;                    /* a copy of the table's field, which is never read back */
	uint32_t free_count;
	uint32_t unlisted;
	uint32_t changes;
	uint16_t free[REGION_TABLE_ENTRIES]; /* [free_count] entries below `used`; the last one is taken first */
};

/*
 * region_writer_init() - initialize the writer of a new session's table. Most of the 16 KiB of the struct are not
 * accessed until they are needed.
 */
void region_writer_init(struct region_writer *writer, struct region_table *table, const _Atomic uint32_t *clock_ms,
	uint64_t page_bytes);

/*
 * region_writer_number() - allocate an entry for a region without one; `number` is REGION_ROW_NEW or
 * REGION_ROW_UNLISTED. Return the entry's number, or REGION_ROW_UNLISTED if the table is full.
 */
uint16_t region_writer_number(struct region_writer *writer, uint16_t number);

/*
 * region_table_begin(), region_table_end() - enclose changes that readers must see together; called when the lock is
 * acquired and released.
 */
static inline void region_table_begin(struct region_writer *writer)
{
	assert(!(writer->changes & 1));
	atomic_store_explicit(&writer->table->changes, ++writer->changes, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
}

static inline void region_table_end(struct region_writer *writer)
{
	assert(writer->changes & 1);
	atomic_store_explicit(&writer->table->changes, ++writer->changes, memory_order_release);
}

/* region_serial_begin(), region_serial_end() - the two halves of a seqlock, for the only writer of `serial`. */
static inline uint32_t region_serial_begin(_Atomic uint32_t *serial)
{
	uint32_t odd = atomic_load_explicit(serial, memory_order_relaxed) | 1;

	atomic_store_explicit(serial, odd, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	return odd;
}

static inline void region_serial_end(_Atomic uint32_t *serial, uint32_t odd)
{
	atomic_store_explicit(serial, odd + 1, memory_order_release);
}

/*
 * region_table_set() - store the state of a region in entry *number, or in a new entry if it is REGION_ROW_NEW. Call it
 * between begin and end.
 * Cost: ten plain stores to one cache line.
 */
static inline void region_table_set(struct region_writer *writer, uint16_t *number, const struct region_row *region)
{
	struct region_entry *entry;
	uint32_t odd;

	assert(writer->changes & 1);
	if (__builtin_expect(*number >= REGION_TABLE_ENTRIES, 0)) {
		*number = region_writer_number(writer, *number);
		if (*number == REGION_ROW_UNLISTED)
			return;
	}
	entry = &writer->table->entries[*number];
	odd = region_serial_begin(&entry->serial);
	atomic_store_explicit(&entry->what, (uint32_t)region->state | region->flags << 8, memory_order_relaxed);
	atomic_store_explicit(&entry->pages, region->pages, memory_order_relaxed);
	atomic_store_explicit(&entry->stream, region->stream, memory_order_relaxed);
	atomic_store_explicit(&entry->address, region->address, memory_order_relaxed);
	atomic_store_explicit(&entry->id, region->id, memory_order_relaxed);
	atomic_store_explicit(&entry->fence, region->fence, memory_order_relaxed);
	atomic_store_explicit(
		&entry->changed_ms, atomic_load_explicit(writer->clock_ms, memory_order_relaxed), memory_order_relaxed);
	region_serial_end(&entry->serial, odd);
}

/* region_table_clear() - remove a region; *number becomes REGION_ROW_NEW. Call it between begin and end. */
void region_table_clear(struct region_writer *writer, uint16_t *number);

/*
 * region_table_totals() - store the totals. Call it between begin and end.
 * Cost: one plain store for each field, in two cache lines.
 */
static inline void region_table_totals(struct region_writer *writer, const struct region_totals *totals)
{
	_Atomic uint64_t *to = writer->table->totals;

	assert(writer->changes & 1);
#define STORE(field) \
	atomic_store_explicit( \
		&to[offsetof(struct region_totals, field) / sizeof(*to)], totals->field, memory_order_relaxed)
	STORE(reserved);
	STORE(mapped);
	STORE(live);
	STORE(reusable);
	STORE(reclaimable);
	STORE(pending_unmap);
	STORE(holes);
	STORE(last_id);
	STORE(live_regions);
	STORE(reusable_regions);
	STORE(pending_unmap_regions);
	STORE(hole_regions);
#undef STORE
}

/* ---- functions of readers ---- */

/* A reader's copy of the table's header. */
struct region_look {
	/* odd: the table is being changed. If two copies have the same even number, the table has not changed */
	uint32_t changes;
	uint32_t used; /* number of entries to read, at most REGION_TABLE_ENTRIES */
	uint32_t unlisted;
	bool totals_changing; /* the totals were changing and may be inconsistent */
	bool damaged;         /* a field is invalid */
	uint64_t page_bytes;  /* 0: gpool_malloc_async() has not been used */
	struct region_totals totals;
};

enum region_read {
	REGION_READ_NONE, /* unused */
	REGION_READ_WHOLE,
	REGION_READ_CHANGING, /* being changed: the fields are valid, but may be inconsistent */
	REGION_READ_DAMAGED,  /* a field is invalid */
};

void region_table_look(const struct region_table *table, struct region_look *look);

/*
 * region_table_stands() - return true if the table has not changed since `look` was read; all data read since then is
 * consistent.
 */
bool region_table_stands(const struct region_table *table, const struct region_look *look);

/* region_table_read() - read entry `number`, below look->used. *region is set for WHOLE and CHANGING. */
enum region_read region_table_read(
	const struct region_table *table, const struct region_look *look, uint32_t number, struct region_row *region);

const char *region_row_state_name(enum region_row_state state);

#endif
