#include "client/core/last_error.h"

#include "client/core/pool.h"
#include "cuda/gpu.h"
#include "shm/session_segment.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct {
	int error; /* 0: no text, or the text was already returned */
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

const char *gpool_strerror(int error)
{
	switch (error < 0 ? -error : error) {
	case 0: return "success";
	case E2BIG: return "options of a newer library, with a field set that this one does not have";
	case EACCES:
		return "this user may not attach, or not to this tenant or with this session kind; or the name belongs "
		       "to another tenant or trust domain";
	case EAGAIN: return "not possible at this moment";
	case EALREADY: return "in effect already: this process has the role, or it is too late to configure";
	case EBADMSG: return "spilled content is damaged, or an answer is no message of the protocol";
	case EBUSY: return "in use by queued GPU work, by another thread, or by another session";
	case ECHILD: return "called after fork(): the pool is the parent's, open one of your own";
	case EDQUOT: return "the tenant's limit or this process's quota is reached";
	case EFBIG: return "more metadata than an object can have";
	case EFAULT: return "an address that is not mapped for this access";
	case EHOSTDOWN: return "the session is asleep; call gpool_wake()";
	case EINTR: return "the wait was interrupted by the check that gpool_wait_check() has set";
	case EINVAL: return "an argument out of range, or a handle that no call returned";
	case EIO: return "the GPU driver or a disk failed, or spilled content cannot be restored now";
	case EMFILE: return "too many open files, or too many pools in this process";
	case EMSGSIZE: return "a message longer than its reader has room for";
	case ENODATA: return "what was kept is lost";
	case ENODEV: return "the pool's device or back end cannot be opened in this process";
	case ENOENT: return "no agent listens there, or no such name or version exists";
	case ENOMEM: return "out of host memory, or pages could not be mapped into this process";
	case ENOSPC: return "not enough pages free or evictable, or no place left in a table of names";
	case ENXIO: return "no pool or tenant of that name";
	case EOPNOTSUPP: return "not supported by this device, back end or version";
	case EPERM: return "not permitted to this session kind or tenant";
	case EPIPE: return "the agent is not running, or has ended this session";
	case EPROTO: return "agent and library disagree on the protocol or the layout of shared memory";
	case ESHUTDOWN: return "the pool is out of service (poolctl drain)";
	case ESRCH: return "the other process has died or detached, and never signaled that fence";
	case ESTALE: return "stale: memory was freed or evicted, a version is not current, or a role is no longer held";
	case ETIMEDOUT: return "not in time";
	case EUSERS: return "too many sessions, streams, objects or events";
	default: return "unknown error";
	}
}

const char *gpool_last_error(int error)
{
	const char *driver;

	error = error < 0 ? -error : error;
	/*
	 * These codes have several causes. The text for a driver failure is written in cuda/, where the cause is known.
	 */
	driver = error == EIO || error == ENODEV || error == EFAULT ? gpu_error_take(-error) : NULL;
	if (driver && error != last.error) {
		snprintf(last.text, sizeof(last.text), "the GPU driver failed: %s", driver);
		return last.text;
	}
	if (!error || error != last.error)
		return gpool_strerror(error);
	last.error = 0;
	return last.text;
}

/* ---- errors that several calls return ---- */

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

int fail_kind(const struct gpool *pool)
{
	return fail(-EPERM, "not in a session that was opened with %s",
		pool->session_kind == 1 ? "GPOOL_OPEN_OBSERVER" : "GPOOL_OPEN_ADMIN");
}

int fail_asleep(void)
{
	return fail(-EHOSTDOWN, "the session is asleep; call gpool_wake()");
}

int fail_address(uint64_t address)
{
	return fail(-EINVAL, "0x%llx is not the address of an allocation", (unsigned long long)address);
}
