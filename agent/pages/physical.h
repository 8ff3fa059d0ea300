/*
 * physical.h - the physical memory behind a pool's pages: created once, exported once, passed on as duplicates.
 */
#ifndef GPOOL_AGENT_PHYSICAL_H
#define GPOOL_AGENT_PHYSICAL_H

#include "agent/keeper/channel.h"
#include "cuda/gpu.h"

#include <stdbool.h>

struct agent;

struct physical {
	struct gpu *gpu; /* opened as owner: no context */
	uint64_t handle_bytes;
	uint32_t handle_count;
	bool arena;                 /* all handles lie one after the other behind exports[0] */
	uint64_t *handles;          /* 0: adopted, no handle in this process */
	struct gpu_export *exports; /* [handle_count], or [1] for an arena */
	uint32_t created, exported;
};

/* What a pool's memory is. */
struct physical_plan {
	const struct gpu_ops *ops;
	int device;
	uint64_t handle_bytes;
	uint32_t handle_count;
	bool separate;    /* a descriptor for each handle: who has one must not have all */
	bool huge;        /* in huge pages, present from the start: host only */
	int keeper;       /* socket, at whose end making them is given up */
	const char *pool; /* for the log */
};

/* physical_create() - all handles of a pool; logs its progress, since 40,960 of them take seconds on a GPU. */
int physical_create(struct physical *physical, const struct physical_plan *plan);

/*
 * physical_adopt() - the same out of what the keeper has held since an agent made it, without a call to a driver: an
 * export is all that is ever passed on. Handles that are missing are created: a set is that of an agent that died
 * before it served, so nobody has seen them. -EBADMSG: what is held cannot be this pool's memory. -EACCES: one
 * descriptor stands for all, and must not.
 */
int physical_adopt(struct physical *physical, const struct physical_plan *plan, uint32_t pool_index,
	const struct held *held, uint32_t held_count);
/* physical_destroy() - what was created here goes, and what was adopted when the keeper lets go of it too. */
void physical_destroy(struct physical *physical);

#endif
