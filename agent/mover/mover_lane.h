/*
 * mover_lane.h - one lane of a mover: a GPU stream, a buffer and a way to the file, which carry out one job at a time.
 * A lane knows nothing of the ring. Thread: one at a time.
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
	uint8_t *buffer; /* a page, locked for GPU and disk */
	bool lost;       /* the GPU context answers nothing but errors */
};

/* A job as it was read from the ring, once. */
struct mover_task {
	uint32_t kind, page, to, tier;
	uint64_t checksum; /* given for a load, a result of a spill */
};

/* mover_lane_open() - over what all lanes share. 0, -ENOMEM, or what gpu.h said. */
int mover_lane_open(struct mover_lane *lane, struct gpu *gpu, struct mover_window *window, struct mover_memory *memory,
	struct mover_file *file);
/* mover_lane_close() - before gpu_close(), when no job runs. */
void mover_lane_close(struct mover_lane *lane);

/* mover_lane_do() - a job, from beginning to end. The error of struct mover_job. */
int mover_lane_do(struct mover_lane *lane, struct mover_task *task);

#endif
