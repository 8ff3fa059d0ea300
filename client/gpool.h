/*
 * gpool.h - allocate GPU memory from a pool that several processes share.
 *
 * One agent per machine (gpoold(8)) owns the memory and leases it in pages. A process attaches to a pool, allocates
 * blocks of pages, pins them while it or its GPU work uses them, unpins them so that the agent may evict them under
 * pressure, and frees them. These calls are a few atomic operations on shared memory; a request is sent to the agent
 * only when the lease of the process is used up, or when spilled content is restored or discarded. gpool(7) describes
 * the model, gpool(3) lists all calls.
 *
 *	struct gpool *pool;
 *	struct gpool_block block;
 *	uint64_t address;
 *
 *	gpool_open(NULL, &pool);                      attach to the first pool of the agent in /run/gpool
 *	gpool_alloc(pool, 4, NULL, &block);           four pages, pinned
 *	gpool_address(pool, &block, &address);        contiguous device address
 *	gpool_unpin(pool, &block);                    the block may be evicted from now on
 *	if (gpool_pin(pool, &block) == 0)             -ESTALE: it was evicted
 *		gpool_free(pool, &block);
 *	gpool_close(pool);
 *
 * This header includes one header per part; each part can be included alone.
 *
 * Results: functions return 0 or a count, or a negative errno value; they do not set errno. gpool_strerror() describes
 * a code, gpool_last_error() the last failure of the calling thread. Values are stored through pointers only on
 * success, unless a call documents otherwise.
 *
 * Pointers: no pointer may be NULL unless the comment of the call permits it, as for the options of most calls (NULL:
 * the defaults) and for the handles of calls that close or destroy. As in the C library, a NULL pointer elsewhere, or a
 * handle that is already closed, has undefined effects: the calls do not check pointers.
 *
 * Times: timeouts are in milliseconds; 0: do not wait, -1: wait without limit.
 *
 * Threads: any thread may make any call, concurrently with other threads and on the same handle, unless a call
 * documents otherwise. No call may be made from a signal handler.
 *
 * Fork: after fork() the child owns no handle of the parent. In the child, calls that can return an error return
 * -ECHILD; gpool_page_bytes(), gpool_page_count() and gpool_session() return 0; gpool_close() does nothing. The parent
 * is not affected. The child may open the pool itself.
 *
 * Structures: a structure with a `size` field may grow; fields are only appended. The caller sets size to sizeof the
 * structure, with the _INIT macro if one exists. In options, fields beyond the caller's size are treated as zero; bytes
 * beyond the size that the library knows must be zero, otherwise the call returns -E2BIG. In results, fields beyond the
 * caller's size are not written, and bytes that the library does not know are zeroed. A size below 4 is rejected with
 * -EINVAL. Reserved fields are zero.
 *
 * Costs: "Cost:" states the work of a call. Times depend on the machine. A name in brackets, such as [alloc1], is the
 * gpool-bench(1) figure that measures the call.
 */
#ifndef GPOOL_H
#define GPOOL_H

#include "gpool/pool.h"
#include "gpool/block.h"
#include "gpool/stream.h"
#include "gpool/object.h"
#include "gpool/vm.h"
#include "gpool/kv.h"
#include "gpool/lora.h"
#include "gpool/role.h"
#include "gpool/event.h"

#endif
