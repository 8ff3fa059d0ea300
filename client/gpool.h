/*
 * gpool.h - GPU memory lent in pages by the one agent of this machine.
 *
 * A worker attaches, allocates blocks of pages, pins them while it or its GPU work uses them, unpins them so that the
 * agent may evict them under pressure, and frees them. All of that is a few atomics on shared memory; the agent is
 * asked only when this process's lease runs dry. gpool(7) tells the model, gpool(3) the calls.
 *
 *	struct gpool *pool;
 *	struct gpool_block block;
 *	uint64_t address;
 *
 *	gpool_open(NULL, &pool);                      attach to /run/gpool, the first pool
 *	gpool_alloc(pool, 4, NULL, &block);           four pages, pinned
 *	gpool_address(pool, &block, &address);        contiguous device address
 *	gpool_unpin(pool, &block);                    may be evicted from now on
 *	if (gpool_pin(pool, &block) == 0)             -ESTALE: it was
 *		gpool_free(pool, &block);
 *	gpool_close(pool);
 *
 * Functions return 0 or a count, else negative errno; gpool_strerror() says what a code means here. Out-parameters
 * change only on success. Unless a call says otherwise any thread may make it, and none may be made from a signal
 * handler. After fork() the child owns nothing of this: every call answers -ECHILD there, and the parent is not
 * disturbed.
 *
 * "Cost:" states what a call does. Times depend on the machine and are not promised: [alloc1] names the figure of
 * gpool-bench(1) that measures the call on this one, `gpool-bench alloc1`.
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
