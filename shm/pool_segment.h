/*
 * pool_segment.h - the shared description of one pool: a memfd that the agent alone can write.
 *
 * The keeper creates it, makes the only writable mapping, then seals it (F_SEAL_FUTURE_WRITE): from then on nobody, a restarted
 * agent included, can map it for writing, so the agent inherits the mapping by fork. Everybody else maps it read-only.
 *
 *   header | page table: u64[page_count] | session directory: struct session_record[4096]
 *
 * Fixed-width fields, offsets and no pointers. A change of any struct here raises POOL_LAYOUT_VERSION.
 */
#ifndef GPOOL_SHM_POOL_SEGMENT_H
#define GPOOL_SHM_POOL_SEGMENT_H

#include "shm/page_word.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POOL_MAGIC UINT64_C(0x006c6f6f70703167) /* "g1ppool" */
enum {
	POOL_LAYOUT_VERSION = 1,
	POOL_SESSIONS = PAGE_OWNER_MAX + 1, /* session 0 is nobody */
	POOL_PAGES_MAX = 1 << 22,           /* 8 TB in pages of 2 MB: far above any device, low enough to check sizes against */
	POOL_NAME_BYTES = 64,
};

enum pool_pressure { POOL_PRESSURE_LOW, POOL_PRESSURE_MEDIUM, POOL_PRESSURE_HIGH, POOL_PRESSURE_CRITICAL, POOL_PRESSURES };

/* Counters since the pool was made; index of pool_header.counters. Append only. */
enum pool_counter {
	POOL_COUNT_GRANTS,        /* pages lent */
	POOL_COUNT_REFILLS,       /* lease requests served */
	POOL_COUNT_RECLAIMS,      /* idle pages taken back */
	POOL_COUNT_EVICTIONS,     /* blocks */
	POOL_COUNT_EVICTED_PAGES, /* pages of them */
	POOL_COUNT_REFUSALS,      /* out-of-memory and quota answers */
	POOL_COUNT_DEATHS,        /* sessions that ended without a detach */
	POOL_COUNT_LEAKED_PINS,   /* pins reported as leaked */
	POOL_COUNT_ATTACHES,
	POOL_COUNT_DAMAGE,        /* fields of session segments that could not be */
	POOL_COUNTERS = 32
};

enum session_record_state { SESSION_RECORD_NONE, SESSION_RECORD_LIVE, SESSION_RECORD_CLOSED };

/* Who is attached, for `poolctl --offline` and for the agent's next incarnation. */
struct session_record {
	_Atomic uint32_t state; /* enum session_record_state; stored last */
	uint32_t pid;
	uint32_t uid;
	uint32_t role;
	uint64_t attached_ms; /* wall clock */
	char name[POOL_NAME_BYTES];
	char tenant[POOL_NAME_BYTES];
	uint8_t reserved[40];
};
static_assert(sizeof(struct session_record) == 192, "shared layout");

struct pool_header {
	/* Written once by the keeper. */
	uint64_t magic;
	uint32_t layout_version;
	uint32_t header_bytes;
	uint32_t session_record_bytes;
	uint32_t session_header_bytes;
	uint32_t block_entry_bytes;
	uint32_t lease_request_bytes;
	uint64_t segment_bytes;
	uint64_t page_table_offset;
	uint64_t sessions_offset;
	uint64_t page_bytes;
	uint32_t page_count;
	uint32_t pages_per_handle;
	uint32_t reserved_first; /* pages [reserved_first, page_count) are kept for critical work */
	uint32_t index;          /* of the pool within this agent */
	char name[POOL_NAME_BYTES];
	char backend[16];
	char device[64];

	/* Read by workers on every pin or free, written by the agent now and then: a line of their own. */
	_Alignas(64) _Atomic uint32_t clock_ms; /* coarse: at most 100 ms behind while a session is attached; wraps */
	_Atomic uint32_t waiters;               /* requests that wait for the pool's pages: a worker that frees rings its doorbell */
	_Atomic uint32_t pressure;              /* enum pool_pressure */
	_Atomic uint32_t pin_timeout_ms;
	_Atomic uint64_t incarnation;           /* number of the agent's start */

	/* Written by the agent at every change, read by tools. */
	_Alignas(64) _Atomic uint32_t state_pages[PAGE_STATES];
	_Atomic uint64_t counters[POOL_COUNTERS];
	_Atomic uint32_t sessions;
};

struct pool_segment {
	struct pool_header *header;
	_Atomic uint64_t *pages; /* [page_count] */
	struct session_record *sessions; /* [POOL_SESSIONS] */
	size_t bytes;
	bool writable;
};

struct pool_geometry {
	const char *name;
	const char *backend;
	const char *device;
	uint32_t index;
	uint64_t page_bytes;
	uint32_t page_count;
	uint32_t pages_per_handle;
	uint32_t reserved_pages;
};

/*
 * pool_segment_create() - a new sealed memfd with the one writable mapping there will ever be; all pages FREE, the last
 * reserved_pages RESERVED. *fd is the caller's. Return: 0, -EINVAL, -ENOMEM, or what memfd_create, ftruncate, mmap, fcntl said.
 */
int pool_segment_create(const struct pool_geometry *geometry, struct pool_segment *segment, int *fd);

/*
 * pool_segment_open() - map another process's pool segment read-only, after checking its seals, sizes, magic and version.
 * Return: 0, -EPROTO (another layout), -EPERM (not sealed), -EBADMSG (a field that cannot be), -ENOMEM.
 */
int pool_segment_open(int fd, struct pool_segment *segment);
void pool_segment_close(struct pool_segment *segment);

const char *pool_pressure_name(enum pool_pressure pressure);

#endif
