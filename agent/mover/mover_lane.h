/*
 * mover_lane.h - a lane of a mover: a GPU stream, a buffer and access to the file. A lane executes one job at a time
 * and does not use the ring. Threads: one at a time.
 */
#ifndef GPOOL_AGENT_MOVER_MOVER_LANE_H
#define GPOOL_AGENT_MOVER_MOVER_LANE_H

#include "agent/mover/mover_file.h"
#include "agent/mover/mover_memory.h"
#include "agent/mover/mover_window.h"

struct mover_lane {
	struct gpu *gpu;
	struct gpu_stream *stream;
	struct mover_window *window;
	struct mover_memory *memory;
	struct mover_file *file;
	struct mover_transfer transfer;
	uint8_t *buffer; /* one page, locked for GPU and disk */
	bool lost;       /* the GPU context is lost and returns only errors */
};

/* A job, read once from the ring. */
struct mover_task {
	uint32_t kind, page, to, tier;
	uint64_t checksum; /* input of a load, result of a spill */
};

/* mover_lane_open() - open a lane on the resources that all lanes share. Return: 0, -ENOMEM, or an errno of gpu.h. */
int mover_lane_open(struct mover_lane *lane, struct gpu *gpu, struct mover_window *window, struct mover_memory *memory,
	struct mover_file *file);
/* mover_lane_close() - close a lane that executes no job. Call it before gpu_close(). */
void mover_lane_close(struct mover_lane *lane);

/* mover_lane_do() - execute a job. Return: the value for the field `error` of struct mover_job. */
int mover_lane_do(struct mover_lane *lane, struct mover_task *task);

#endif
