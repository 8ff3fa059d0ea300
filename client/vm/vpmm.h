/*
 * vpmm.h - the stream-ordered allocator: gpool_malloc_async(), gpool_free_async(). Internal to libgpool.
 *
 * region_set.h has the sets and says what a region is; here is what makes driver calls and asks the agent. Files:
 *   vpmm.c        life, malloc and free as long as no driver call is needed, capture
 *   vpmm_map.c    what needs one: pending unmaps to holes, new places, initial pages, chunks of addresses
 *   vpmm_offer.c  free pages that the agent may take, and that stay in their regions
 *   vpmm_idle.c   free pages that the process gives up: parking, trimming, adopting, letting go; what is done in the
 *                 background
 *   vpmm_small.c  less than a page
 *   vpmm_dump.c   totals, dump, trace
 *   vpmm_record.c calls into a file
 *   vpmm_options.c
 *
 * The lock guards the sets. It is a leaf: nothing is called under it that takes another or waits, no driver, no agent,
 * no callback. What needs such a call takes its regions out of the sets (they move), lets the lock go, and comes back
 * with the result, or puts all of it back as it was.
 */
#ifndef GPOOL_CLIENT_VM_VPMM_H
#define GPOOL_CLIENT_VM_VPMM_H

#include "client/vm/background.h"
#include "client/vm/region_set.h"
#include "client/vm/space.h"

enum { VPMM_TRACE_BYTES = 1024 };

struct vpmm_chunk {
	struct region_chunk regions;
	struct vm_space space;
	/* [space.slot_count] of handles that are released; 0: held, or of no free region. Under the lock */
	uint64_t *tags;
	struct vpmm_chunk *next;
};

struct vpmm_record;
struct vpmm_small;

struct vpmm {
	struct gpool *pool;
	_Atomic bool started;
	pthread_mutex_t start_lock;         /* outside the other: options, and the first call */
	struct gpool_vm_options configured; /* under start_lock */
	char *record_path;                  /* of those */
	struct gpool_vm_options options;    /* with what the environment adds; fixed by the first call */
	struct vm_take_options take;
	uint64_t page_bytes;
	uint64_t address_bytes; /* of a chunk, or a multiple */
	bool address_fixed;     /* not fewer */
	uint64_t small_bytes;   /* at most so many are a small one */
	uint32_t page_slots;    /* handles in a page */
	uint32_t idle_ms;       /* UINT32_MAX: never */

	pthread_mutex_t lock;
	/* somebody has let the lock go, while others wait for what it had taken out of the sets */
	pthread_cond_t settled;
	uint32_t settling; /* who wait for it */
	struct region_set set;
	struct region_writer writer;
	struct vpmm_chunk *chunks;
	/* of the stream whose slot has regions, or had; 0: of none. Written under the lock */
	_Atomic uint32_t numbers[SESSION_TIMELINES];
	_Atomic uint32_t streams_used;  /* open ones among them */
	uint64_t unmaps_refused;        /* by queued GPU work */
	uint32_t pressed_ms;            /* the pool's clock when we last reclaimable because of pressure */
	struct gpool_vm_stats counters; /* those that are not in the sets */

	struct vpmm_small *small;
	struct vpmm_record *record;

	/* In the background; under the lock. */
	struct background_task task;
	bool touched;        /* by a call, since the last look */
	atomic_bool asleep;  /* it does not look before it is woken; read without the lock by small frees */
	bool calm;           /* it looks rarely, since there was no call */
	uint32_t wait_ms;    /* until the next look */
	uint32_t busy_ticks; /* that found calls, since free regions were offered */
	uint64_t quiet_ns;   /* since when there was no call */
	uint64_t flushed_ns; /* when recorded calls were last written */
};

/* A call on its way: who asks for what, and what is told about it afterwards. */
struct vpmm_call {
	struct vpmm *vpmm;
	uint32_t stream; /* its number; 0: none */
	uint32_t slot;
	uint32_t count; /* pages */
	uint64_t bytes;
	uint64_t driver_calls;
	size_t traced;
	char trace[VPMM_TRACE_BYTES];
};

/* ---- life ---- */

int vpmm_open(struct gpool *pool);
/* vpmm_close() - GPU work is done, and the background has stopped; what handles are held end with the session. */
void vpmm_close(struct gpool *pool);

/* vpmm_options_read() - options and environment, of the first call: 0, -EINVAL, -EOPNOTSUPP. */
int vpmm_options_read(struct vpmm *vpmm);

/*
 * vpmm_slot() - of an open stream, or VM_NONE: 0, -EINVAL. Lock held. One that is known here may be just closing: then
 * what it is given is put right by stream_closed(), which comes after us.
 */
int vpmm_slot_enter(struct vpmm *vpmm, uint32_t stream, uint32_t *slot) COLD;

static inline int vpmm_slot(struct vpmm *vpmm, uint32_t stream, uint32_t *slot)
{
	*slot = stream & (SESSION_TIMELINES - 1);
	if (likely(atomic_load_explicit(&vpmm->numbers[*slot], memory_order_relaxed) == stream))
		return 0; /* also none: slot 0 is no stream's */
	return vpmm_slot_enter(vpmm, stream, slot);
}

/*
 * vpmm_fence_now() - a fence behind all that is queued on a stream by now. 0 when it need not be known, because no
 * other stream is in use, or cannot be had now: then others record one later, when they want to know.
 */
uint64_t vpmm_fence_now(struct vpmm *vpmm, uint32_t stream);

static inline struct vpmm_chunk *vpmm_chunk_of(const struct vm_region *region)
{
	return (struct vpmm_chunk *)((char *)region->chunk - offsetof(struct vpmm_chunk, regions));
}

static inline struct vm_space *vpmm_space(const struct vm_region *region)
{
	return &vpmm_chunk_of(region)->space;
}

static inline uint32_t vpmm_region_slot(const struct vpmm *vpmm, const struct vm_region *region)
{
	return region->first * vpmm->page_slots;
}

static inline uint32_t vpmm_region_slots(const struct vpmm *vpmm, const struct vm_region *region)
{
	return region->count * vpmm->page_slots;
}

/* What is shown outside is being changed for as long as the lock is held. */
static inline void vpmm_lock(struct vpmm *vpmm)
{
	pthread_mutex_lock(&vpmm->lock);
	region_table_begin(&vpmm->writer);
}

static inline bool vpmm_trylock(struct vpmm *vpmm)
{
	if (pthread_mutex_trylock(&vpmm->lock))
		return false;
	region_table_begin(&vpmm->writer);
	return true;
}

static inline void vpmm_unlock(struct vpmm *vpmm)
{
	region_show_totals(&vpmm->set);
	region_table_end(&vpmm->writer);
	if (unlikely(vpmm->settling))
		pthread_cond_broadcast(&vpmm->settled);
	pthread_mutex_unlock(&vpmm->lock);
}

/* ---- vpmm_map.c. "Lock held" means at the beginning and at the end: it is let go between ---- */

/* vpmm_chunk_add() - addresses for at least so many pages: 0, -ENOMEM. Lock held. */
int vpmm_chunk_add(struct vpmm *vpmm, uint32_t pages);

/* vpmm_pending_unmaps_end() - phase 0: those whose fence is reached become holes. Lock held. */
void vpmm_pending_unmaps_end(struct vpmm_call *call) COLD;

/* vpmm_fences_record() - for what was freed unfenced in other slots than this one. True: there was some. Lock held. */
bool vpmm_fences_record(struct vpmm *vpmm, uint32_t except) COLD;

/* vpmm_place() - phase 2: a new place for call->count pages, which moves: 0, or as gpool_malloc_async(). Lock held. */
int vpmm_place(struct vpmm_call *call, struct vm_region **place) COLD;

/* vpmm_fill() - so many new pages in a place of their own, which moves. 0, or as gpool_malloc_async(). Lock held. */
int vpmm_fill(struct vpmm_call *call, int32_t timeout_ms, struct vm_region **place) COLD;

/* ---- vpmm_offer.c ---- */

/* vpmm_tags_open() - of a chunk whose space is open: 0, -ENOMEM. */
int vpmm_tags_open(struct vpmm_chunk *chunk);
void vpmm_tags_close(struct vpmm_chunk *chunk);

/*
 * vpmm_offer() - all free regions but those without a fence: the agent may take their pages, each once its fence is
 * reached. Lock held. Cost: a look at each region.
 */
void vpmm_offer(struct vpmm *vpmm);

/*
 * vpmm_claim() - the handles of a region that moves are held again; gone[] receives the slots whose handles the agent
 * has taken: how many.
 */
uint32_t vpmm_claim(struct vpmm *vpmm, const struct vm_region *region, uint32_t *gone);

/*
 * vpmm_hold() - all free regions are held again; what the agent has taken of them are pending unmaps. chunk: of this
 * one;
 * NULL: of all. ready: only those that wait for no fence. 0, -ENOMEM. Lock held. Cost: a look at each region.
 */
int vpmm_hold(struct vpmm_call *call, const struct region_chunk *chunk, bool ready) COLD;

/* ---- vpmm_idle.c ---- */

int vpmm_idle_open(struct vpmm *vpmm);
void vpmm_idle_close(struct vpmm *vpmm);

/* vpmm_park() - READY regions become idle, the oldest first, but for so many pages: how many pages. Lock held. */
uint64_t vpmm_park(struct vpmm *vpmm, uint64_t keep_pages);

/*
 * vpmm_adopt() - a reclaimable or offered region that moves, to be held again: 0, all of it is. -EAGAIN: it is in the
 * sets again, in pieces, and what the agent has taken of it are pending unmaps. -ENOMEM: likewise, all of it pending
 * unmaps. Lock held.
 */
int vpmm_adopt(struct vpmm_call *call, struct vm_region *region);

bool vpmm_let_go(struct vm_space *space);

/* vpmm_pressed() - somebody needs pages more than we do: park, but not at every call. Lock held. */
void vpmm_pressed(struct vpmm *vpmm) COLD;

/* vpmm_idle_touch() - a call was made; the background looks again when none was for a while. Lock held. */
static inline void vpmm_idle_touch(struct vpmm *vpmm)
{
	vpmm->touched = true;
	if (unlikely(atomic_load_explicit(&vpmm->asleep, memory_order_relaxed) || vpmm->calm)) {
		atomic_store_explicit(&vpmm->asleep, false, memory_order_relaxed);
		vpmm->calm = false;
		background_wake(vpmm->pool, &vpmm->task);
	}
}

/* ---- vpmm_small.c ---- */

int vpmm_small_open(struct vpmm *vpmm);
void vpmm_small_close(struct vpmm *vpmm);
int vpmm_small_malloc(struct vpmm *vpmm, uint64_t bytes, uint32_t stream, uint64_t *address, uint64_t *id);
/* vpmm_small_has() - whether it can only be a small one's address. */
bool vpmm_small_has(const struct vpmm *vpmm, uint64_t address);
int vpmm_small_free(struct vpmm *vpmm, uint64_t address, uint32_t stream, uint64_t *bytes, uint64_t *id);
void vpmm_small_stream_closed(struct vpmm *vpmm, uint32_t stream);
/*
 * vpmm_small_return() - what the GPU has done with goes back to its pages; `all`: also what others have not asked about
 * yet.
 */
void vpmm_small_return(struct vpmm *vpmm, bool all);
bool vpmm_small_waits(const struct vpmm *vpmm);
void vpmm_small_totals(struct vpmm *vpmm, struct gpool_vm_stats *totals);

/* ---- vpmm_dump.c ---- */

/* vpmm_trace() - one more step of a call; said when it ends. Lock held or not. */
void vpmm_trace(struct vpmm_call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* vpmm_trace_end() - without the lock. */
void vpmm_trace_end(struct vpmm_call *call, const char *what, int error, uint64_t address) COLD;

/*
 * vpmm_check() - region_check() and what mappings it implies: 0, or how many findings, the first in words. For tests.
 */
uint32_t vpmm_check(struct gpool *pool, char *text, size_t text_bytes);

/* ---- vpmm_record.c ---- */

int vpmm_record_open(struct vpmm *vpmm, const char *path);
/* vpmm_record_add() - what cannot be kept is counted. True: flush soon. vpmm_record_flush() - into the file. */
bool vpmm_record_add(struct vpmm_record *record, bool is_free, uint32_t stream, uint64_t bytes, uint64_t id);
void vpmm_record_flush(struct vpmm_record *record);
uint64_t vpmm_record_lost(struct vpmm_record *record);
void vpmm_record_close(struct vpmm *vpmm);

#endif
