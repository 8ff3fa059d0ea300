#include "agent/mover/mover_window.h"

#include "agent/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Take the handles that the keeper holds for this pool. If all handles are in one file, the keeper holds only handle 0,
 * and the others use its descriptor with larger offsets.
 */
static int handles_fill(struct mover_window *window, const struct module_start *start)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < window->handle_count; i++)
		window->handles[i].fd = -1;
	for (uint32_t i = 0; i < start->held_count; i++) {
		const struct held *held = &start->held[i];

		if (held->kind != KEEP_HANDLE || held->pool != start->pool || held->id >= window->handle_count ||
			held->fd_count < 1)
			continue;
		found += window->handles[held->id].fd < 0;
		window->handles[held->id].fd = held->fds[0];
		window->handles[held->id].offset = held->value;
	}
	window->arena = found == 1 && window->handle_count > 1 && window->handles[0].fd >= 0;
	if (window->arena) {
		for (uint32_t i = 1; i < window->handle_count; i++) {
			window->handles[i].fd = window->handles[0].fd;
			window->handles[i].offset = window->handles[0].offset + i * window->handle_bytes;
		}
	}
	return found ? 0 : -EINVAL;
}

int mover_window_open(struct mover_window *window, struct gpu *gpu, const struct module_start *start)
{
	const struct pool_header *header = start->pools[start->pool].segment.header;
	int error;

	memset(window, 0, sizeof(*window));
	window->gpu = gpu;
	window->page_bytes = header->page_bytes;
	window->page_count = header->page_count;
	window->pages_per_handle = header->pages_per_handle;
	window->handle_count = window->page_count / window->pages_per_handle;
	window->handle_bytes = window->page_bytes * window->pages_per_handle;
	window->handles = calloc(window->handle_count, sizeof(*window->handles));
	if (!window->handles)
		return -ENOMEM;
	error = handles_fill(window, start);
	if (error) {
		log_error("pool '%s': the keeper does not hold the memory of the pool", header->name);
		goto free_handles;
	}
	if (gpu_reserve(gpu, window->page_bytes * window->page_count, 0, &window->base)) {
		log_error("cannot reserve %llu bytes of addresses for pool '%s': %s",
			(unsigned long long)(window->page_bytes * window->page_count), header->name, gpu_error_text());
		error = -EIO;
		goto free_handles;
	}
	pthread_mutex_init(&window->lock, NULL);
	return 0;
free_handles:
	free(window->handles);
	memset(window, 0, sizeof(*window));
	return error;
}

void mover_window_close(struct mover_window *window)
{
	if (!window->handles)
		return;
	pthread_mutex_destroy(&window->lock);
	free(window->handles);
	memset(window, 0, sizeof(*window));
}

/* Import and map a handle, then release the import; the mapping keeps the memory. The caller holds the lock. */
static int handle_map(struct mover_window *window, uint32_t index)
{
	struct mover_handle *handle = &window->handles[index];
	struct gpu_export from = {.fd = handle->fd, .offset = handle->offset, .length = window->handle_bytes};
	uint64_t address = window->base + index * window->handle_bytes, imported;
	int error;

	if (handle->fd < 0) {
		log_error("the keeper does not hold handle %u; jobs that use it fail", index);
		return -EIO;
	}
	error = gpu_import(window->gpu, &from, &imported);
	if (error)
		goto complain;
	error = gpu_map(window->gpu, address, window->handle_bytes, imported);
	if (!error) {
		error = gpu_access(window->gpu, address, window->handle_bytes, GPU_ACCESS_READ_WRITE);
		if (error)
			gpu_unmap(window->gpu, address, window->handle_bytes);
	}
	gpu_release(window->gpu, imported);
	if (error)
		goto complain;
	handle->mapped = true;
	if (!window->arena) {
		close(handle->fd); /* the mapping keeps the memory; a shared descriptor is still needed */
		handle->fd = -1;
	}
	return 0;
complain:
	log_error("cannot map handle %u: %s; jobs that use it fail", index, gpu_error_text());
	return -EIO;
}

int mover_window_page(struct mover_window *window, uint32_t page, uint64_t *address)
{
	uint32_t index = page / window->pages_per_handle;
	int error = 0;

	if (page >= window->page_count)
		return -EINVAL;
	pthread_mutex_lock(&window->lock);
	if (!window->handles[index].mapped)
		error = handle_map(window, index);
	pthread_mutex_unlock(&window->lock);
	if (!error)
		*address = window->base + page * window->page_bytes;
	return error;
}
