#include "client/core/last_error.h"

#include "client/core/block.h"
#include "client/core/pool.h"
#include "cuda/gpu.h"
#include "shm/object_names.h"
#include "shm/plural.h"
#include "shm/session_segment.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
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
	case E2BIG: return "the options are those of a newer library, and set a field that this library does not have";
	case EACCES:
		return "the user may not attach with this tenant or session kind, or the name belongs to another "
		       "tenant or trust domain";
	case EAGAIN: return "not possible in the current state: being loaded, moved, asleep or preempted";
	case EALREADY: return "already in effect, or already started and no longer configurable";
	case EBADMSG: return "spilled content is damaged, or a reply is not a valid message";
	case EBUSY: return "in use by queued GPU work, by another thread, or by another session";
	case ECHILD:
		return "called after fork(): the pool belongs to the parent process; open the pool in this process";
	case ECONNRESET: return "the process of a cache of the group was lost";
	case EDQUOT: return "the limit of the tenant or the quota of the session is reached";
	case EFBIG: return "too large: more metadata than an object can have, or more tokens than a sequence can have";
	case EEXIST: return "an adapter of this name is already registered";
	case EHOSTDOWN: return "the session is asleep; call gpool_wake()";
	case EINTR: return "the wait was interrupted by the function that was set with gpool_wait_check()";
	case EINVAL: return "an argument is out of range, or a handle was not returned by this library";
	case EIO: return "the GPU driver or a disk failed, or spilled content cannot be restored now";
	case EMFILE: return "too many open files, or too many pools in this process";
	case EMSGSIZE: return "a message is longer than the buffer of its reader";
	case ENODATA: return "saved content is lost";
	case ENODEV: return "the device or back end of the pool cannot be opened in this process";
	case ENOENT: return "no agent is running in this directory, or no object of this name or version exists";
	case ENOMEM: return "out of host memory, or pages could not be mapped into this process";
	case ENOSPC: return "not enough free or evictable pages, or a table is full";
	case ENOTDIR: return "a file is not a directory";
	case ENXIO: return "no pool or tenant of this name";
	case EOPNOTSUPP: return "not supported by this device, back end or version";
	case EPERM: return "not permitted for this session kind or tenant";
	case EPIPE: return "the agent is not running, or has ended this session";
	case EPROTO: return "the agent and the library have different protocols or layouts of shared memory";
	case ESHUTDOWN: return "the pool is out of service (poolctl drain)";
	case ESRCH: return "the other process has died or detached before the fence was signaled";
	case ESTALE: return "stale: memory was freed or evicted, a version is not current, or a role is no longer held";
	case ETIMEDOUT: return "timed out";
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
	driver = error == EIO || error == ENODEV ? gpu_error_take(-error) : NULL;
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
		"size is %u byte%s, too small for a struct of this library; set it to the size of the struct", size,
		plural(size));
}

int fail_handle(const struct gpool *pool, const struct gpool_block *block)
{
	if (block->page >= pool->page_count)
		return fail(-EINVAL, "not the handle of a block: its page is %u, but the pool has %u page%s",
			block->page, pool->page_count, plural(pool->page_count));
	if (block->tag & BLOCK_PREPARED)
		return fail(-EINVAL, "the block at page %u is prepared, but not committed", block->page);
	return fail(-EINVAL, "not the handle of a block: no allocation has the tag %016llx",
		(unsigned long long)block->tag);
}

int fail_stale(const struct gpool *pool, const struct gpool_block *block)
{
	uint64_t word = atomic_load_explicit(&pool->pages[block->page], memory_order_relaxed);
	const char *how = block_word_same(word, block->generation) ? "was already freed"
		: block->tag & BLOCK_SPILL
		? "was freed, or its content is spilled or lost; gpool_pin() restores spilled content"
		: "was freed, or evicted while it was not pinned; allocate a block and create its content again";

	return fail(-ESTALE, "the block of %u page%s at page %u %s", block->page_count, plural(block->page_count),
		block->page, how);
}

int fail_examined(const struct gpool *pool, const struct gpool_block *block)
{
	return fail(-ETIMEDOUT,
		"the agent has examined or moved the block at page %u for longer than %u ms (pins.timeout); try again",
		block->page, atomic_load_explicit(&pool->header->pin_timeout_ms, memory_order_relaxed));
}

int fail_unpinned(const struct gpool_block *block)
{
	return fail(-EINVAL, "the block at page %u is not pinned; gpool_discard() frees a block without a pin",
		block->page);
}

int fail_timeout(int timeout_ms)
{
	return fail(-EINVAL, "timeout_ms is %d; the minimum is -1 (no limit)", timeout_ms);
}

int fail_stream(uint32_t stream)
{
	return fail(-EINVAL, "stream %u is not open", stream);
}

int fail_kind(const struct gpool *pool)
{
	return fail(-EPERM, "not permitted in a session that was opened with %s",
		pool->session_kind == 1 ? "GPOOL_OPEN_OBSERVER" : "GPOOL_OPEN_ADMIN");
}

int fail_gone(const struct gpool *pool)
{
	const struct session_header *header = pool->session.header;
	int why = atomic_load_explicit(&header->close_error, memory_order_relaxed);

	if (!atomic_load_explicit(&header->closed, memory_order_acquire))
		return fail(-EPIPE, "gpoold is not running: the connection of session %u is closed", pool->id);
	return fail(-EPIPE,
		"the agent has ended session %u (%s; the log of gpoold has the details); close the pool and open it "
		"again",
		pool->id, why == -EPIPE ? "gpoold was restarted" : strerror(abs(why)));
}

int fail_silent(const struct gpool *pool, int64_t timeout_ms)
{
	return pool_gone(pool) ? fail_gone(pool)
			       : fail(-EPIPE, "the agent has not answered within %lld ms; check that gpoold is running",
					 (long long)(timeout_ms < 0 ? pool->answer_ms : timeout_ms));
}

/* Describe a refusal because of a limit; struct session_header.refusal has its numbers. */
static int fail_limit(const struct gpool *pool, uint32_t need)
{
	const struct session_record *own = &pool->segment.sessions[pool->id];
	uint32_t most, used;

	switch (lease_limit_of(
		atomic_load_explicit(&pool->session.header->refusal, memory_order_relaxed), &most, &used)) {
	case LEASE_LIMIT_QUOTA:
		return fail(-EDQUOT,
			"the quota of the session is reached: %u needed, %u of %u page%s in use; free memory of this "
			"process, or raise quota_bytes of gpool_open() (or 'poolctl limit --session')",
			need, used, most, plural(most));
	case LEASE_LIMIT_TENANT:
		return fail(-EDQUOT,
			"the limit of tenant '%.*s' is reached: %u needed, %u of %u page%s in use; free memory of its "
			"processes, or raise tenants.limit of gpoold.conf (or 'poolctl limit')",
			(int)sizeof(own->tenant) - 1, own->tenant, need, used, most, plural(most));
	default:
		return fail(-EDQUOT, "the limit of the tenant or the quota of the session is reached: %u needed", need);
	}
}

int fail_shortage(const struct gpool *pool, int error, const struct gpool_oom_info *shortage)
{
	char holder[80] = "", handles[160] = "", kept[96] = "";
	uint32_t most, used;

	if (error == -EPERM)
		return fail(error,
			"GPOOL_ALLOC_CRITICAL is permitted only to users that may open an admin session "
			"(access.admins) and "
			"to tenant 'system'");
	if (error == -EDQUOT)
		return fail_limit(pool, shortage->needed);
	if (lease_limit_of(atomic_load_explicit(&pool->session.header->refusal, memory_order_relaxed), &most, &used) ==
		LEASE_LIMIT_KEPT)
		snprintf(kept, sizeof(kept), "; %u free page%s %s kept for other tenants (tenants.minimum)",
			most < used ? most : used, plural(most < used ? most : used), be(most < used ? most : used));
	if (shortage->holder)
		snprintf(
			holder, sizeof(holder), ", %u of them by session %u", shortage->holder_pages, shortage->holder);
	if (pool->header->pages_per_handle > 1 && shortage->needed <= shortage->free)
		snprintf(handles, sizeof(handles),
			"; the free pages cannot be mapped side by side, because the GPU maps whole handles of %u "
			"page%s",
			pool->header->pages_per_handle, plural(pool->header->pages_per_handle));
	return fail(error,
		"not enough free or evictable pages: %u needed, %u free, %u pinned%s%s; the pool has %u page%s "
		"(pools.size), %u of them reserved%s",
		shortage->needed, shortage->free, shortage->pinned, holder, handles, pool->page_count,
		plural(pool->page_count), pool->page_count - pool->unreserved, kept);
}

int fail_reservation(const struct gpool *pool, int error, uint64_t reservation, uint32_t need)
{
	if (error == -EPERM)
		return fail(error, "reservation %#" PRIx64 " belongs to another tenant", reservation);
	return fail(error, "reservation %#" PRIx64 " has ended, or has fewer than %" PRIu32 " page%s left%s",
		reservation, need, plural(need),
		pool->header->pages_per_handle > 1 ? " that can be mapped side by side: handles are mapped as a whole"
						   : "");
}

int fail_map(void)
{
	return fail(-ENOMEM, "pages cannot be mapped into this process: %s", gpu_error_text());
}

int fail_reserved(const char *name)
{
	return fail(-EPERM, "object '%.*s': names that begin with " NAMES_RESERVED " are reserved for the library",
		POOL_OBJECT_NAME_BYTES - 1, name);
}

int fail_asleep(void)
{
	return fail(-EHOSTDOWN, "the session is asleep; call gpool_wake()");
}

int fail_address(uint64_t address)
{
	return fail(-EINVAL, "0x%llx is not the address of an allocation", (unsigned long long)address);
}
