/*
 * space.h - a reserved range of addresses with handles mapped in it, slot by slot. No policy. Internal to libgpool.
 *
 * One slot holds one handle (handle.h). The owner of the space tracks its slots: which mapped handles are held and
 * which are reclaimable, that is idle and still mapped. A reclaimable slot's handle may be given to another process at
 * any time. Within a trust domain this is harmless, since the slot is not used before its handle was adopted again. For
 * another trust domain the agent waits until it is unmapped: let_go() does that.
 */
#ifndef GPOOL_CLIENT_VM_SPACE_H
#define GPOOL_CLIENT_VM_SPACE_H

#include "client/vm/handle.h"

struct vm_space {
	/*
	 * Set by the owner before vm_space_open(). Called by any thread of this process that waits for pages, under any
	 * locks: so it must not wait for a lock (only try it; false: not now). It passes all reclaimable slots to
	 * vm_let_go(). NULL: no slot of this space is ever reclaimable.
	 */
	bool (*let_go)(struct vm_space *space);
	void *owner;
	/* Set by vm_space_open(). */
	struct gpool *pool;
	uint64_t base, bytes; /* slot_count * slot_bytes */
	uint64_t slot_bytes;  /* size of one handle */
	uint32_t slot_count;
	_Atomic uint32_t slots_end; /* slots from here on were never mapped */
	/* [slot_count] first page of the mapped handle plus 1; 0: none. Touched on demand */
	uint32_t *pages;
	struct vm_space *next, **link;
};

/*
 * vm_open() - initialize the state that all spaces of a pool share: 0, -ENOMEM. vm_close() - free it, after all spaces.
 */
int vm_open(struct gpool *pool);
void vm_close(struct gpool *pool);

/*
 * vm_space_open() - reserve at least `bytes` bytes of addresses: 0, -ENOMEM. vm_space_close() - unmap the remaining
 * handles and free the addresses; GPU work must be done.
 */
int vm_space_open(struct gpool *pool, uint64_t bytes, struct vm_space *space);
void vm_space_close(struct vm_space *space);

static inline uint64_t vm_address(const struct vm_space *space, uint32_t slot)
{
	return space->base + slot * space->slot_bytes;
}

/*
 * vm_map() - map held handles into slots [slot, slot + count): one call for each handle and one access call for all.
 * All or none, except that earlier mappings there, reclaimable or left by a failed call, are unmapped first. vm_unmap()
 * - unmap the slots: one call for each run of mapped slots. After an error pages[] has the remaining mappings.
 *
 * Callers ensure that no other thread uses the same slots; then any number of threads may call at once.
 * Return: 0, -EBUSY (queued GPU work uses the mappings); vm_map() -ENOMEM, -EPIPE; vm_unmap() the error of the back
 * end.
 */
int vm_map(struct vm_space *space, uint32_t slot, const uint32_t *pages, uint32_t count);
int vm_unmap(struct vm_space *space, uint32_t slot, uint32_t count);

/*
 * vm_forget() - the mappings of slots [slot, slot + count) belong to another owner from now on; they remain.
 */
void vm_forget(struct vm_space *space, uint32_t slot, uint32_t count);

/*
 * vm_adopt_run() - hold the handles of reclaimable slots [slot, slot + count) again that are idle in this session,
 * whole words of free bits at once. gone[] receives the slots, ascending, whose handles were taken: they are still
 * mapped. Returns their number.
 */
uint32_t vm_adopt_run(
	struct vm_space *space, uint32_t slot, uint32_t count, const struct vm_take_options *options, uint32_t *gone);

/* vm_park() - make the held handles of mapped slots [slot, slot + count) idle; they stay mapped. */
void vm_park(struct vm_space *space, uint32_t slot, uint32_t count);

/*
 * vm_let_go() - unmap reclaimable slots without queued GPU work that another trust domain needs. Return false if one
 * could not be unmapped.
 */
bool vm_let_go(struct vm_space *space, uint32_t slot, uint32_t count);

/* vm_maps() - return true if a handle of the window (by its index) is mapped in any space. */
bool vm_maps(const struct gpool *pool, uint32_t handle);

#endif
