/*
 * physical.h - the physical memory behind a pool's pages: created once, exported once, passed on as duplicates.
 */
#ifndef GPOOL_AGENT_PHYSICAL_H
#define GPOOL_AGENT_PHYSICAL_H

#include "cuda/gpu.h"

#include <stdbool.h>

struct agent;

struct physical {
	struct gpu *gpu; /* opened as owner: no context */
	uint64_t handle_bytes;
	uint32_t handle_count;
	bool arena;      /* all handles lie one after the other behind exports[0] */
	uint64_t *handles;
	struct gpu_export *exports; /* [handle_count], or [1] for an arena */
	uint32_t created, exported;
};

/* physical_create() - all handles of a pool; logs its progress, since 40,960 of them take seconds on a GPU. */
int physical_create(struct physical *physical, const struct gpu_ops *ops, int device, uint64_t handle_bytes, uint32_t handle_count,
	const char *pool);
void physical_destroy(struct physical *physical);

#endif
