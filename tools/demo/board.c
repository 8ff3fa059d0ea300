#include "tools/demo/board.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static size_t requests_offset(void)
{
	return (sizeof(struct board_header) + 63) / 64 * 64;
}

static size_t board_bytes(uint32_t request_count)
{
	return requests_offset() + request_count * (sizeof(struct board_request) + sizeof(struct board_mark));
}

static int board_map(int fd, size_t bytes, struct board *board)
{
	char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (base == MAP_FAILED)
		return -errno;
	board->header = (struct board_header *)(void *)base;
	board->requests = (struct board_request *)(void *)(base + requests_offset());
	return 0;
}

int board_create(uint32_t request_count, struct board *board)
{
	size_t bytes = board_bytes(request_count);
	int error, fd = memfd_create("gpool-demo-board", MFD_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) != 0) {
		error = -errno;
		goto close_fd;
	}
	error = board_map(fd, bytes, board);
	if (error)
		goto close_fd;
	board->header->bytes = bytes;
	board->header->request_count = request_count;
	board->marks = (struct board_mark *)(void *)(board->requests + request_count);
	board->fd = fd;
	return 0;

close_fd:
	close(fd);
	return error;
}

int board_open(int fd, struct board *board)
{
	struct stat status;
	int error;

	if (fstat(fd, &status) != 0)
		return -errno;
	if ((size_t)status.st_size < board_bytes(0))
		return -EINVAL;
	error = board_map(fd, (size_t)status.st_size, board);
	if (error)
		return error;
	board->fd = -1;
	if (board->header->bytes != (size_t)status.st_size ||
		board_bytes(board->header->request_count) != board->header->bytes) {
		munmap(board->header, (size_t)status.st_size);
		return -EINVAL;
	}
	board->marks = (struct board_mark *)(void *)(board->requests + board->header->request_count);
	return 0;
}

void board_close(struct board *board)
{
	if (!board->header)
		return;
	munmap(board->header, board->header->bytes);
	if (board->fd >= 0)
		close(board->fd);
	board->header = NULL;
}

uint64_t board_now_us(const struct board *board)
{
	uint64_t behind = UINT64_MAX, ahead = 0;

	for (int i = 0; i < BOARD_ENGINES; i++) {
		const struct board_engine *engine = &board->header->engines[i];
		uint64_t clock_us = atomic_load(&engine->clock_us);

		if (atomic_load(&engine->active) && clock_us < behind)
			behind = clock_us;
		if (clock_us > ahead)
			ahead = clock_us;
	}
	return behind < UINT64_MAX ? behind : ahead;
}

void board_error(struct board_engine *engine, const char *format, ...)
{
	va_list arguments;

	atomic_fetch_add(&engine->errors, 1);
	if (atomic_exchange(&engine->error_claimed, 1))
		return;
	va_start(arguments, format);
	vsnprintf(engine->error_text, sizeof engine->error_text, format, arguments);
	va_end(arguments);
	atomic_store(&engine->error_ready, 1);
}
