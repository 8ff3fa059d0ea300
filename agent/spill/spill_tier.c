/*
 * spill_tier.c - create the memory and the file of the slots, and the state of spill.c.
 */
#include "agent/spill/spill.h"
#include "shm/plural.h"

#include "agent/base/log.h"
#include "agent/pages/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int memory_make(uint64_t bytes)
{
	int fd = memfd_create("gpool-spill", MFD_CLOEXEC), error;

	if (fd < 0)
		return -errno;
	if (fchmod(fd, 0600) == 0 && ftruncate(fd, (off_t)bytes) == 0)
		return fd;
	error = -errno;
	close(fd);
	return error;
}

/* Create a file without a name, so that no file is left however gpoold ends. */
static int file_make(const char *directory, uint64_t bytes)
{
	int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600), error;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) == 0)
		return fd;
	error = -errno;
	close(fd);
	return error;
}

/* Return the descriptor of a tier that the keeper holds, or -1. */
static int tier_held(const struct pool *pool, const struct module_start *start, uint32_t id)
{
	for (uint32_t i = 0; i < start->held_count; i++) {
		const struct held *held = &start->held[i];

		if (held->kind == KEEP_TIER && held->pool == pool->index && held->id == id && held->fd_count == 1)
			return held->fds[0];
	}
	return -1;
}

static int tier_open(struct pool *pool, const struct module_start *start, enum mover_tier id)
{
	struct spill_tier *tier = &pool->spill->slots.tiers[id];
	const char *directory = pool->config->spill_directory;
	uint64_t bytes = tier->count * pool->segment.header->page_bytes;
	int fd;

	if (!tier->count)
		return 0;
	fd = tier_held(pool, start, id);
	if (fd < 0) {
		fd = id == MOVER_TIER_MEMORY ? memory_make(bytes) : file_make(directory, bytes);
		if (fd < 0) {
			log_error("pool '%s': cannot create %s of %llu byte%s%s%s for spilled pages: %s",
				pool->config->name, id == MOVER_TIER_MEMORY ? "memory" : "a file",
				(unsigned long long)bytes, plural(bytes), id == MOVER_TIER_MEMORY ? "" : " in ",
				id == MOVER_TIER_MEMORY ? "" : directory,
				fd == -EOPNOTSUPP ? "the file system does not support unnamed files (O_TMPFILE)"
						  : strerror(-fd));
			return fd;
		}
		agent_hold(pool->agent,
			&(struct held){.kind = KEEP_TIER,
				.pool = pool->index,
				.id = id,
				.fd_count = 1,
				.fds = {fd},
				.value = tier->count});
	}
	tier->fd = fd;
	/*
	 * Do not punch holes in memory that a GPU has locked: the GPU would write to pages that no longer belong to the
	 * file (mover/ring.h).
	 */
	tier->punch = id == MOVER_TIER_FILE || !strcmp(pool->segment.header->backend, "host");
	return 0;
}

int spill_open(struct pool *pool, const struct module_start *start, int ledger_fd)
{
	struct spill *spill = calloc(1, sizeof(*spill));
	uint32_t slot_count = pool->ledger.header->slot_count;
	int error = -ENOMEM;

	if (!spill)
		return -ENOMEM;
	pool->spill = spill;
	pool->saver = &spill_saver;
	TAILQ_INIT(&spill->working);
	TAILQ_INIT(&spill->aged);
	spill->slots.tiers[MOVER_TIER_MEMORY].fd = spill->slots.tiers[MOVER_TIER_FILE].fd = -1;
	spill->places = slots_array(slot_count, sizeof(*spill->places));
	spill->sources = calloc(pool->page_count, sizeof(*spill->sources));
	spill->rest_ms = calloc(pool->page_count, sizeof(*spill->rest_ms));
	if (spill->places && spill->sources && spill->rest_ms)
		error = slots_open(&spill->slots, &pool->ledger, ledger_fd, pool->segment.header->page_bytes);
	for (int tier = 0; tier < MOVER_TIERS && !error && jobs_possible(pool->jobs); tier++)
		error = tier_open(pool, start, (enum mover_tier)tier);
	if (error) {
		spill_close(pool);
		return error;
	}
	atomic_store_explicit(
		&pool->segment.header->spill_slots, jobs_possible(pool->jobs) ? slot_count : 0, memory_order_relaxed);
	return 0;
}

void spill_close(struct pool *pool)
{
	struct spill *spill = pool->spill;
	struct spill_block *block;

	if (!spill)
		return;
	/* The blocks of ended sessions for which the mover still has jobs. */
	while ((block = TAILQ_FIRST(&spill->working))) {
		TAILQ_REMOVE(&spill->working, block, working);
		free(block);
	}
	slots_close(&spill->slots);
	for (int tier = 0; tier < MOVER_TIERS; tier++)
		if (spill->slots.tiers[tier].fd >= 0)
			close(spill->slots.tiers[tier].fd);
	free(spill->rest_ms);
	free(spill->sources);
	slots_array_free(spill->places, pool->ledger.header->slot_count, sizeof(*spill->places));
	free(spill);
	pool->spill = NULL;
}

uint64_t spill_used(const struct pool *pool, enum mover_tier tier)
{
	return slots_used(&pool->spill->slots, tier) * pool->segment.header->page_bytes;
}
