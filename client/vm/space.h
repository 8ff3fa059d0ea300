/*
 * space.h - a reserved range of addresses with handles mapped in it, slot by slot. No policy. Internal to libgpool.
 *
 * One slot holds one handle (handle.h). Who owns the space says what is mapped where: of slots that are mapped it knows
 * which handles are held and which are reclaimable, idle and mapped all the same. A reclaimable slot's handle may go to
 * another process at any time. Within a trust domain that is all right, since nobody uses the slot before its handle
 * was
 * adopted again. For another trust domain the agent waits until it is unmapped: that is what let_go() is for.
 */
#ifndef GPOOL_CLIENT_VM_SPACE_H
#define GPOOL_CLIENT_VM_SPACE_H

#include "client/vm/handle.h"

struct vm_space {
	/*
	 * Set by the owner before vm_space_open(). Called by any thread of ours, from wherever it waits for pages and
	 * whatever locks it holds: so it must not wait for a lock (try it; false: not now). It passes all reclaimable
	 * slots to vm_let_go(). NULL: nothing of this space is ever reclaimable.
	 */
	bool (*let_go)(struct vm_space *space);
	void *owner;
	/* The rest is vm_space_open()'s. */
	struct gpool *pool;
	uint64_t base, bytes; /* slot_count * slot_bytes */
	uint64_t slot_bytes;  /* one handle */
	uint32_t slot_count;
	_Atomic uint32_t slots_end; /* no slot from here on was ever mapped */
	/* [slot_count] first page of the handle mapped there plus 1; 0: nothing. Touched as needed */
	uint32_t *pages;
	struct vm_space *next, **link;
};

/* vm_open() - what all spaces of a pool share: 0, -ENOMEM. vm_close() - after all spaces. */
int vm_open(struct gpool *pool);
void vm_close(struct gpool *pool);

/*
 * vm_space_open() - at least so many bytes of addresses: 0, -ENOMEM. _close() unmaps what is left; GPU work must be
 * done.
 */
int vm_space_open(struct gpool *pool, uint64_t bytes, struct vm_space *space);
void vm_space_close(struct vm_space *space);

static inline uint64_t vm_address(const struct vm_space *space, uint32_t slot)
{
	return space->base + slot * space->slot_bytes;
}

/*
 * vm_map() - held handles into slots [slot, slot + count): one call for each handle and one access call for all. All or
 * nothing, but that what was mapped there before, reclaimable or left by a call that failed, is unmapped first.
 * vm_unmap() - whatever is mapped there: one call for each run of mapped slots. After an error pages[] says what still
 * is.
 *
 * Callers see to it that nobody else is at the same slots; then any number of threads may call at once.
 * Return: 0, -EBUSY (queued GPU work uses what is mapped there); vm_map() -ENOMEM, -EPIPE; vm_unmap() what the back end
 * said.
 */
int vm_map(struct vm_space *space, uint32_t slot, const uint32_t *pages, uint32_t count);
int vm_unmap(struct vm_space *space, uint32_t slot, uint32_t count);

/*
 * vm_adopt_run() - the handles of reclaimable slots [slot, slot + count) are held again, those that are idle here.
 * Whole words of free bits at once. gone[] receives the slots, ascending, whose handles are somebody else's now: they
 * are
 * still mapped. Returns how many are gone.
 */
uint32_t vm_adopt_run(
	struct vm_space *space, uint32_t slot, uint32_t count, const struct vm_take_options *options, uint32_t *gone);

/* vm_park() - the held handles of mapped slots [slot, slot + count) become idle, and stay mapped. */
void vm_park(struct vm_space *space, uint32_t slot, uint32_t count);

/*
 * vm_let_go() - of reclaimable slots, on which no GPU work is queued: unmap those that are wanted. False: one of them
 * could not be.
 */
bool vm_let_go(struct vm_space *space, uint32_t slot, uint32_t count);

/* vm_maps() - whether a handle of the window (by its index) is mapped in any space. */
bool vm_maps(const struct gpool *pool, uint32_t handle);

#endif
