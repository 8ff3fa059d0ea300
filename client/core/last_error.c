/* last_error.c - see last_error.h. */
#include "client/core/last_error.h"

#include "client/core/pool.h"
#include "shm/session_segment.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct {
	int error; /* 0: there is no text, or it has been read */
	char text[512];
} last;

int fail(int error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(last.text, sizeof(last.text), format, arguments);
	va_end(arguments);
	last.error = error < 0 ? -error : error;
	return error;
}

const char *gpool_last_error(int error)
{
	error = error < 0 ? -error : error;
	if (!error || error != last.error)
		return gpool_strerror(error);
	last.error = 0;
	return last.text;
}

/* ---- what several calls refuse ---- */

int fail_size(uint32_t size)
{
	return fail(-EINVAL,
		"size is %u bytes, which cannot hold a struct of this library; set it to sizeof the struct", size);
}

int fail_handle(const struct gpool *pool, const struct gpool_block *block)
{
	if (block->page >= pool->page_count)
		return fail(-EINVAL, "not a block's handle: its page is %u, and this session's pool has %u pages",
			block->page, pool->page_count);
	if (block->tag & BLOCK_PREPARED)
		return fail(-EINVAL, "the block at page %u is prepared and not committed", block->page);
	return fail(
		-EINVAL, "not a block's handle: tag %016llx, which no allocation has", (unsigned long long)block->tag);
}

int fail_unpinned(const struct gpool_block *block)
{
	return fail(-EINVAL, "the block at page %u is not pinned", block->page);
}

int fail_timeout(int timeout_ms)
{
	return fail(-EINVAL, "timeout_ms is %d; the least is -1, no limit", timeout_ms);
}

int fail_stream(uint32_t stream)
{
	return fail(-EINVAL, "stream %u is not open", stream);
}

int fail_role(const struct gpool *pool)
{
	return fail(-EPERM, "not in a session that was opened with %s",
		pool->role == 1 ? "GPOOL_OPEN_OBSERVER" : "GPOOL_OPEN_ADMIN");
}

int fail_asleep(void)
{
	return fail(-EHOSTDOWN, "the session is asleep; call gpool_wake()");
}

int fail_address(uint64_t address)
{
	return fail(-EINVAL, "0x%llx is not the address of an allocation", (unsigned long long)address);
}
