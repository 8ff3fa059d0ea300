/*
 * physical.h - the physical memory of a pool's pages: created once, exported once, shared as duplicates of descriptors.
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
	bool arena;                 /* all handles are consecutive in the file behind exports[0] */
	uint64_t *handles;          /* 0: adopted, no handle in this process */
	struct gpu_export *exports; /* [handle_count], or [1] for an arena */
	uint32_t created, exported;
};

/* The properties of a pool's memory. */
struct physical_plan {
	const struct gpu_ops *ops;
	int device;
	uint64_t handle_bytes;
	uint32_t handle_count;
	bool separate;    /* one descriptor per handle, so that a process can have access to some handles only */
	bool huge;        /* in huge pages, allocated at the start: back end `host` only */
	int keeper;       /* socket; its end cancels the creation */
	const char *pool; /* for the log */
};

/*
 * physical_create() - create all handles of a pool. It logs its progress, since 40,960 of them take seconds on a GPU.
 */
int physical_create(struct physical *physical, const struct physical_plan *plan);

/*
 * physical_adopt() - take over the memory that the keeper holds, without a call to a driver, since exports suffice.
 * Missing handles are created: they are missing if an agent died before it served, so no session has seen the set.
 * -EBADMSG: the held items cannot be this pool's memory. -EACCES: one descriptor is for all handles, and the plan
 * requires separate ones.
 */
int physical_adopt(struct physical *physical, const struct physical_plan *plan, uint32_t pool_index,
	const struct held *held, uint32_t held_count);
/* physical_destroy() - free memory that was created here; adopted memory is freed when the keeper closes it too. */
void physical_destroy(struct physical *physical);

#endif
