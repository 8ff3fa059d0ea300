/*
 * space.h - a space: a reserved range of addresses, with handles mapped slot by slot. This file contains no policy.
 * Internal to libgpool.
 *
 * A slot holds one handle (handle.h). The owner of the space tracks which mapped handles are held and which are
 * reclaimable, that is, idle and still mapped. The handle of a reclaimable slot may be given to another process at any
 * time. Within a trust domain this is harmless, since the slot is not used before its handle was adopted again. Before
 * the handle moves to another trust domain, the agent waits until let_go() has unmapped it.
 */
#ifndef GPOOL_CLIENT_VM_SPACE_H
#define GPOOL_CLIENT_VM_SPACE_H

#include "client/vm/handle.h"

/* In vm_space.pages: the map failed, and then the unmap too. */
#define VM_UNFINISHED (UINT32_C(1) << 31)

struct vm_space {
	/*
	 * Pass all reclaimable slots to vm_let_go(). Return false if this is not possible now. Any thread of this
	 * process that waits for pages may call it, with any locks held, so it must not wait for a lock. The owner sets
	 * it before vm_space_open(). NULL: no slot of this space is ever reclaimable.
	 */
	bool (*let_go)(struct vm_space *space);
	void *owner;
	/* The following fields are set by vm_space_open(). */
	struct gpool *pool;
	uint64_t base, bytes; /* slot_count * slot_bytes */
	uint64_t slot_bytes;  /* size of one handle */
	uint32_t slot_count;
	_Atomic uint32_t slots_end; /* slots from here on were never mapped */
	/*
	 * [slot_count] first page of the mapped handle plus 1; 0: none. With VM_UNFINISHED, the slot may have no access
	 * and must be mapped again before it is used. The kernel allocates the memory on first use
	 */
	uint32_t *pages;
	struct vm_space *next, **link;
};

/*
 * vm_open() - initialize the state that all spaces of a pool share. Return: 0, -ENOMEM. vm_close() - free it, after all
 * spaces are closed.
 */
int vm_open(struct gpool *pool);
void vm_close(struct gpool *pool);

/* addresses_reserve() - reserve addresses, in whole handles. Return: 0, -ENOMEM, with a text. */
int addresses_reserve(struct gpool *pool, uint64_t bytes, uint64_t *base);
/*
 * vm_space_open() - reserve at least `bytes` bytes of addresses. Return: 0, -ENOMEM. vm_space_close() - unmap the
 * remaining handles and free the addresses, after all GPU work has finished.
 */
int vm_space_open(struct gpool *pool, uint64_t bytes, struct vm_space *space);
void vm_space_close(struct vm_space *space);

static inline uint64_t vm_address(const struct vm_space *space, uint32_t slot)
{
	return space->base + slot * space->slot_bytes;
}

/*
 * vm_map() - map held handles into slots [slot, slot + count), with one call for each handle and one access call for
 * all. All or none; but earlier mappings in these slots, reclaimable or left by a failed call, are unmapped first.
 * vm_unmap() - unmap the slots, with one call for each run of mapped slots. After an error, pages[] contains the
 * remaining mappings.
 *
 * Threads may call both functions concurrently, but not for the same slots; the callers ensure this.
 * Return: 0, -EBUSY (queued GPU work uses the mappings); vm_map() also -ENOMEM, -EPIPE; vm_unmap() also the error of
 * the back end.
 */
int vm_map(struct vm_space *space, uint32_t slot, const uint32_t *pages, uint32_t count);
int vm_unmap(struct vm_space *space, uint32_t slot, uint32_t count);

/*
 * vm_forget() - pass the mappings of slots [slot, slot + count) to another owner, without unmapping them.
 */
void vm_forget(struct vm_space *space, uint32_t slot, uint32_t count);

/*
 * vm_adopt_run() - hold those handles of reclaimable slots [slot, slot + count) again that are still idle in this
 * session. If a handle is one page, one instruction takes adjacent ones in a word of the free bits. gone[] receives the
 * other slots, ascending; they are still mapped. Return their number.
 */
uint32_t vm_adopt_run(
	struct vm_space *space, uint32_t slot, uint32_t count, const struct vm_take_options *options, uint32_t *gone);

/* vm_park() - make the held handles of slots [slot, slot + count) idle. They stay mapped. */
void vm_park(struct vm_space *space, uint32_t slot, uint32_t count);

/*
 * vm_let_go() - unmap those reclaimable slots that another trust domain needs and that have no queued GPU work. Return
 * false if a needed slot could not be unmapped.
 */
bool vm_let_go(struct vm_space *space, uint32_t slot, uint32_t count);

/* vm_maps() - return true if any space maps the handle with this index in the window. */
bool vm_maps(const struct gpool *pool, uint32_t handle);

#endif
