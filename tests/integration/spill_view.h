/*
 * spill_view.h - inspect spilled content: counters, saved blocks, and the tiers that the agent has open. Based on
 * life.h.
 */
#ifndef GPOOL_TESTS_SPILL_VIEW_H
#define GPOOL_TESTS_SPILL_VIEW_H

#include "client/core/block.h"
#include "client/core/pool.h"
#include "client/core/refill.h"
#include "client/core/spill.h"
#include "tests/integration/life.h"

#include <sys/stat.h>

static inline uint64_t counter(enum pool_counter which)
{
	return atomic_load(&pool_view(admin)->header->counters[which]);
}

static inline uint64_t spilled(void)
{
	return counter(POOL_COUNT_SPILLED_PAGES);
}

static inline uint64_t moving(void)
{
	return atomic_load(&pool_view(admin)->header->state_pages[PAGE_MOVING]);
}

static inline uint64_t kept_bytes(void)
{
	const struct msg_pool_status *pool = &status()->pools[0];

	return pool->spill_memory_bytes + pool->spill_file_bytes;
}

/*
 * Spill an unpinned block. Return: 0, -ESTALE, -EBUSY (pinned, or waiting for a fence), -ENOSPC, -EIO, -EPIPE.
 */
static inline int spill_now(struct gpool *pool, const struct gpool_block *block)
{
	struct lease_request ask = {.kind = LEASE_SPILL};
	struct gpool_block place = *block;

	if (atomic_load_explicit(&block_entry(pool, block->page)->tag, memory_order_acquire) != block->tag)
		spill_where(pool, block, &place);
	ask.tag = place.tag;
	ask.first_page = place.page;
	return lease_ask(pool, &ask);
}

/* Open a tier of the agent. The memory tier is identified by its name, the file by its size. */
static inline int tier_open(const char *name, off_t bytes)
{
	pid_t agent = process_of("gpoold-agent");
	char path[300], target[300];
	int found = -1;

	for (int fd = 3; fd < 256 && found < 0; fd++) {
		struct stat stat_of;
		ssize_t length;

		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)agent, fd);
		length = readlink(path, target, sizeof(target) - 1);
		if (length < 0)
			continue;
		target[length] = '\0';
		if (strstr(target, name) && stat(path, &stat_of) == 0 && S_ISREG(stat_of.st_mode) &&
			stat_of.st_size == bytes)
			found = open(path, O_RDWR | O_CLOEXEC);
	}
	return found;
}

#endif
