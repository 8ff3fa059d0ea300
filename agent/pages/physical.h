/*
 * physical.h - the physical memory of a pool's pages. It is created and exported once, and shared as duplicates of
 * descriptors.
 */
#ifndef GPOOL_AGENT_PHYSICAL_H
#define GPOOL_AGENT_PHYSICAL_H

#include "agent/keeper/channel.h"
#include "cuda/gpu.h"

#include <stdbool.h>

struct agent;

struct physical {
	struct gpu *gpu; /* opened as owner, without a context */
	uint64_t handle_bytes;
	uint32_t handle_count;
	bool arena;                 /* all handles are adjacent in the file of exports[0] */
	uint64_t *handles;          /* 0: exported or adopted, so this process has no driver handle */
	struct gpu_export *exports; /* [handle_count], or [1] for an arena */
	uint32_t created, exported;
};

struct physical_plan {
	const struct gpu_ops *ops;
	int device;
	uint64_t handle_bytes;
	uint32_t handle_count;
	bool separate;    /* one descriptor per handle, so that a process can have access to only some of the handles */
	bool huge;        /* in huge pages, allocated at the start; back end `host` only */
	int keeper;       /* socket to the keeper; its end cancels the creation */
	const char *pool; /* name of the pool, for the log */
};

/* physical_create() - create all handles of a pool. The progress is logged: on a GPU, 40,960 handles take seconds. */
int physical_create(struct physical *physical, const struct physical_plan *plan);

/*
 * physical_adopt() - take over the memory that the keeper holds, without a driver call. Handles are missing only if an
 * agent died before it served; they are created.
 * Return: 0; -EBADMSG: the items that the keeper holds cannot be the memory of this pool; -EACCES: one descriptor
 * contains all handles, but the plan requires separate descriptors.
 */
int physical_adopt(struct physical *physical, const struct physical_plan *plan, uint32_t pool_index,
	const struct held *held, uint32_t held_count);
/*
 * physical_destroy() - free memory that was created by this process. The memory remains allocated while the keeper
 * holds descriptors of it.
 */
void physical_destroy(struct physical *physical);

#endif
