#include "agent/mover/mover_lane.h"

#include "agent/base/log.h"
#include "agent/mover/ring.h"
#include "shm/checksum.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

int mover_lane_open(struct mover_lane *lane, struct gpu *gpu, struct mover_window *window, struct mover_memory *memory,
	struct mover_file *file)
{
	void *buffer;
	int error;

	memset(lane, 0, sizeof(*lane));
	lane->gpu = gpu;
	lane->window = window;
	lane->memory = memory;
	lane->file = file;
	/*
	 * Use ordinary memory that is locked afterwards, not memory of the driver, because io_uring must also be able
	 * to lock it.
	 */
	buffer = mmap(NULL, window->page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buffer == MAP_FAILED)
		return -ENOMEM;
	lane->buffer = buffer;
	error = gpu_host_register(gpu, buffer, window->page_bytes);
	if (!error)
		error = gpu_stream_create(gpu, &lane->stream);
	if (error) {
		mover_lane_close(lane);
		return error;
	}
	if (file->open)
		mover_transfer_init(&lane->transfer, file, buffer);
	return 0;
}

void mover_lane_close(struct mover_lane *lane)
{
	mover_transfer_fini(&lane->transfer);
	if (lane->stream)
		gpu_stream_destroy(lane->gpu, lane->stream);
	if (lane->buffer) {
		gpu_host_unregister(lane->gpu, lane->buffer);
		munmap(lane->buffer, lane->window->page_bytes);
	}
	memset(lane, 0, sizeof(*lane));
}

/* ---- on the GPU ---- */

static uint64_t address_of(const void *memory)
{
	return (uint64_t)(uintptr_t)memory;
}

/*
 * Log a GPU error and check the stream. A stream is usable after it has reported an error, unless the context is lost:
 * then it always reports the same error.
 */
static int gpu_failed(struct mover_lane *lane, const char *what)
{
	log_error("cannot %s: %s; the job fails", what, gpu_error_text());
	lane->lost = gpu_stream_sync(lane->gpu, lane->stream) != 0;
	return -EIO;
}

/* Copy a page and wait. Other lanes continue in the meantime. */
static int lane_copy(struct mover_lane *lane, uint64_t to, uint64_t from)
{
	int error = gpu_copy(lane->gpu, to, from, lane->window->page_bytes, lane->stream);

	if (!error)
		error = gpu_stream_sync(lane->gpu, lane->stream);
	return error ? gpu_failed(lane, "copy a page") : 0;
}

static int lane_scrub(struct mover_lane *lane, uint64_t page)
{
	int error = gpu_fill(lane->gpu, page, 0, lane->window->page_bytes, lane->stream);

	if (!error)
		error = gpu_stream_sync(lane->gpu, lane->stream);
	return error ? gpu_failed(lane, "scrub a page") : 0;
}

static uint64_t page_sum(const struct mover_lane *lane, const void *bytes)
{
	return checksum_of(bytes, lane->window->page_bytes);
}

/* ---- jobs ---- */

static int spill_to_memory(struct mover_lane *lane, struct mover_task *task, uint64_t page, uint8_t *slot, bool locked)
{
	uint8_t *landing = locked ? slot : lane->buffer;
	int error = lane_copy(lane, address_of(landing), page);

	if (error)
		return error;
	task->checksum = page_sum(lane, landing);
	if (!locked)
		memcpy(slot, landing, lane->window->page_bytes);
	return 0;
}

/* Check the checksum in the memory from which the GPU will read, before it reads. */
static int load_from_memory(
	struct mover_lane *lane, const struct mover_task *task, uint64_t page, const uint8_t *slot, bool locked)
{
	const uint8_t *source = locked ? slot : lane->buffer;

	if (!locked)
		memcpy(lane->buffer, slot, lane->window->page_bytes);
	if (page_sum(lane, source) != task->checksum)
		return -EBADMSG;
	return lane_copy(lane, page, address_of(source));
}

static int spill_to_file(struct mover_lane *lane, struct mover_task *task, uint64_t page)
{
	int error = lane_copy(lane, address_of(lane->buffer), page);

	if (!error)
		error = mover_transfer_begin(&lane->transfer, task->to, true);
	if (error)
		return error;
	task->checksum = page_sum(lane, lane->buffer); /* computed while the disk writes */
	return mover_transfer_end(&lane->transfer);
}

static int load_from_file(struct mover_lane *lane, const struct mover_task *task, uint64_t page)
{
	int error = mover_transfer_begin(&lane->transfer, task->to, false);

	if (!error)
		error = mover_transfer_end(&lane->transfer);
	if (!error && page_sum(lane, lane->buffer) != task->checksum)
		error = -EBADMSG;
	return error ? error : lane_copy(lane, page, address_of(lane->buffer));
}

/* Copy a page from memory to the file, and compare its checksum. */
static int sink(struct mover_lane *lane, const struct mover_task *task)
{
	uint8_t *slot;
	bool locked;
	int error;

	if (!lane->memory->base || !lane->file->open || task->to >= lane->file->slots)
		return -EINVAL;
	error = mover_memory_slot(lane->memory, task->page, &slot, &locked);
	if (error)
		return error;
	memcpy(lane->buffer, slot, lane->window->page_bytes);
	if (page_sum(lane, lane->buffer) != task->checksum)
		return -EBADMSG;
	error = mover_transfer_begin(&lane->transfer, task->to, true);
	return error ? error : mover_transfer_end(&lane->transfer);
}

static int tier_do(struct mover_lane *lane, struct mover_task *task, uint64_t page)
{
	bool spill = task->kind == MOVER_SPILL, locked;
	uint8_t *slot;
	int error;

	if (task->tier == MOVER_TIER_FILE) {
		if (!lane->file->open || task->to >= lane->file->slots)
			return -EINVAL;
		return spill ? spill_to_file(lane, task, page) : load_from_file(lane, task, page);
	}
	if (task->tier != MOVER_TIER_MEMORY || !lane->memory->base)
		return -EINVAL;
	error = mover_memory_slot(lane->memory, task->to, &slot, &locked);
	if (error)
		return error;
	return spill ? spill_to_memory(lane, task, page, slot, locked)
		     : load_from_memory(lane, task, page, slot, locked);
}

int mover_lane_do(struct mover_lane *lane, struct mover_task *task)
{
	uint64_t page, to;
	int error;

	if (task->kind == MOVER_SINK)
		return sink(lane, task);
	error = mover_window_page(lane->window, task->page, &page);
	if (error)
		return error;
	switch (task->kind) {
	case MOVER_COPY:
		if (task->to == task->page)
			return -EINVAL;
		error = mover_window_page(lane->window, task->to, &to);
		return error ? error : lane_copy(lane, to, page);
	case MOVER_SCRUB: return lane_scrub(lane, page);
	case MOVER_SPILL:
	case MOVER_LOAD: return tier_do(lane, task, page);
	default: return -EINVAL;
	}
}
