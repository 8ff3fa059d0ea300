/*
 * mover_window.h - the addresses of a pool's pages in the mover: one address range. A handle is imported and mapped at
 * the first use of one of its pages, and stays mapped. Threads: any.
 */
#ifndef GPOOL_AGENT_MOVER_MOVER_WINDOW_H
#define GPOOL_AGENT_MOVER_MOVER_WINDOW_H

#include "agent/base/module.h"
#include "cuda/gpu.h"

#include <pthread.h>
#include <stdbool.h>

struct mover_handle {
	int fd; /* -1: not held, or already mapped */
	bool mapped;
	uint64_t offset;
};

struct mover_window {
	struct gpu *gpu;
	uint64_t base;
	uint64_t page_bytes;
	uint64_t handle_bytes;
	uint32_t page_count;
	uint32_t pages_per_handle;
	uint32_t handle_count;
	bool arena; /* all handles are adjacent in the file of one descriptor */
	pthread_mutex_t lock;
	struct mover_handle *handles; /* [handle_count] */
};

/*
 * mover_window_open() - take the required descriptors of start->held. Return: 0, -ENOMEM, -EINVAL (no handle is held),
 * -EIO.
 */
int mover_window_open(struct mover_window *window, struct gpu *gpu, const struct module_start *start);
/*
 * mover_window_close() - close the window. Call it after gpu_close(), which unmaps all handles at once; unmapping them
 * one by one takes a second on a GPU.
 */
void mover_window_close(struct mover_window *window);

/*
 * mover_window_page() - return the address of a page, and map its handle if necessary. Return: 0, -EINVAL (no such
 * page), -EIO.
 */
int mover_window_page(struct mover_window *window, uint32_t page, uint64_t *address);

#endif
