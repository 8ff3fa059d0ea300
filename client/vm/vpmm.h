/*
 * vpmm.h - the stream-ordered allocator: gpool_malloc_async(), gpool_free_async(). Internal to libgpool.
 *
 * region_set.h defines regions and their sets, and calls neither driver nor agent. Files of the allocator:
 *   vpmm.c          open and close; malloc and free without a driver call; capture
 *   vpmm_map.c      steps with driver calls: unmap pending unmaps, map new places, initial pages, chunks of addresses
 *   vpmm_slack.c    how many new pages may be taken before free pages are remapped
 *   vpmm_offer.c    free pages that the agent may take, and that stay in their regions
 *   vpmm_idle.c     free pages that the process returns: park, trim, adopt, unmap; and the background task
 *   vpmm_small.c    allocations smaller than a VPMM page
 *   vpmm_dump.c     totals, dump, trace
 *   vpmm_record.c   record calls in a file
 *   vpmm_options.c  options and environment
 *
 * The lock protects the sets. A function that holds it must not wait, call the driver, the agent or a callback, or
 * acquire another lock, except those of the background tasks and of joint fences. A step that needs such a call takes
 * its regions out of the sets, so that they move, and releases the lock. Afterwards it acquires the lock again and
 * inserts the result, or restores the previous state.
 *
 * "Lock held" means that the caller holds the lock. "Released temporarily" means that the function releases the lock
 * and acquires it again.
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
	/* [space.slot_count] tags of released handles; 0: held, or not in a free region. Protected by the lock */
	uint64_t *tags;
	struct vpmm_chunk *next;
};

struct vpmm_record;
struct vpmm_small;

struct vpmm {
	struct gpool *pool;
	_Atomic bool started;
	pthread_mutex_t start_lock;         /* protects the options and the first call; acquired before `lock` */
	struct gpool_vm_options configured; /* protected by start_lock */
	char *record_path;                  /* path of the record, from the options */
	struct gpool_vm_options options;    /* from the program and the environment; fixed by the first call */
	struct vm_take_options take;
	uint64_t page_bytes;
	uint64_t address_bytes; /* size of a chunk; the size of a larger chunk is a multiple */
	bool address_fixed;     /* address_bytes must not be reduced */
	uint64_t small_bytes;   /* largest size of a small allocation */
	bool off;               /* all allocations are small: a VPMM page is larger than the pool */
	uint32_t page_slots;    /* handles per page */
	uint32_t idle_ms;       /* UINT32_MAX: never */

	pthread_mutex_t lock;
	/*
	 * signaled when a thread releases the lock, if other threads wait for regions that it had taken out of the sets
	 */
	pthread_cond_t settled;
	uint32_t settling; /* number of waiting threads */
	uint64_t parks;    /* number of times that a thread has put back free pages that it had taken out */
	struct region_set set;
	struct region_writer writer;
	struct vpmm_chunk *chunks;
	/* numbers of the streams whose slots have or had regions; 0: none. Written under the lock */
	_Atomic uint32_t numbers[SESSION_TIMELINES];
	_Atomic uint32_t streams_used;  /* number of open streams in `numbers` */
	uint64_t unmaps_refused;        /* unmaps refused because of queued GPU work */
	uint32_t pressed_ms;            /* the pool's clock when pages were last parked because of a shortage */
	uint64_t live_peak;             /* maximum of the allocated pages; the background task reduces it */
	uint64_t slack_refused_ns;      /* time until which no new pages are requested for the slack */
	struct gpool_vm_stats counters; /* counters in addition to those of the sets */

	struct vpmm_small *small;
	struct vpmm_record *record;

	/* State of the background task, protected by the lock. */
	struct background_task task;
	bool touched;        /* a call was made since the last run */
	atomic_bool asleep;  /* the task runs only after a wake; frees of small buffers read this without the lock */
	bool calm;           /* it runs rarely, because no call was made */
	uint32_t wait_ms;    /* time until the next run */
	uint32_t busy_ticks; /* runs that found new calls, since free regions were last offered */
	uint64_t quiet_ns;   /* time of the last run that found a new call */
	uint64_t flushed_ns; /* time of the last write of recorded calls */
};

/* A call in progress, with its text for the trace. */
struct vpmm_call {
	struct vpmm *vpmm;
	uint32_t stream; /* number of the stream; 0: none */
	uint32_t slot;
	uint32_t count; /* number of pages */
	uint64_t bytes;
	uint64_t driver_calls;
	size_t traced;
	char trace[VPMM_TRACE_BYTES];
};

/* ---- vpmm.c ---- */

int vpmm_open(struct gpool *pool);
/*
 * vpmm_close() - free the allocator. Call it after all GPU work has finished and the background thread has stopped. The
 * handles that the allocator holds are released when the session ends.
 */
void vpmm_close(struct gpool *pool);

/* vpmm_options_read() - read the options and the environment, at the first call. Return: 0, -EINVAL, -EOPNOTSUPP. */
int vpmm_options_read(struct vpmm *vpmm);

/*
 * vpmm_slot() - get the slot of an open stream, or VM_NONE for no stream. Return: 0, -EINVAL. A stream that the
 * allocator knows may be in the process of being closed; the subsequent stream_closed() then handles its regions. Lock
 * held.
 */
int vpmm_slot_enter(struct vpmm *vpmm, uint32_t stream, uint32_t *slot) COLD;

static inline int vpmm_slot(struct vpmm *vpmm, uint32_t stream, uint32_t *slot)
{
	*slot = stream & (SESSION_TIMELINES - 1);
	if (likely(atomic_load_explicit(&vpmm->numbers[*slot], memory_order_relaxed) == stream))
		return 0; /* also for stream 0 (no stream), which has slot 0 */
	return vpmm_slot_enter(vpmm, stream, slot);
}

/*
 * vpmm_fence_now() - record a fence after all work that is queued on a stream. Return 0 if no fence is needed, because
 * no other stream is in use and the stream is not a thread's default stream, or if the recording fails. In both cases a
 * later call records one when it is needed.
 */
uint64_t vpmm_fence_now(struct vpmm *vpmm, uint32_t stream);

/* vpmm_too_much() - refuse a request for more pages of the pool, or VPMM pages, than the pool has. Return: -ENOSPC. */
int vpmm_too_much(struct gpool *pool, uint64_t count) COLD;

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

/* Acquire the lock. The table for tools is marked as changing while the lock is held. */
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

/* ---- vpmm_slack.c: all with the lock held ---- */

/* vpmm_slack_percent() - return the slack in effect: the option while the pressure is low, otherwise 0. */
uint32_t vpmm_slack_percent(const struct vpmm *vpmm);
/*
 * vpmm_slack_most() - return the number of held pages below which an allocation prefers new pages to mapping free pages
 * elsewhere, with `percent` of slack and `live` allocated pages.
 */
uint64_t vpmm_slack_most(const struct vpmm *vpmm, uint32_t percent, uint64_t live);
/* vpmm_held() - return the number of pages that are held: allocated, or free and not reclaimable. */
uint64_t vpmm_held(const struct vpmm *vpmm);
/*
 * vpmm_slack() - return the number of new pages, up to `count`, that a call for `count` pages may take although free
 * pages could be mapped. vpmm_slack_refused() - record that the pool had no free pages; vpmm_slack() then returns 0 for
 * some time.
 */
uint32_t vpmm_slack(const struct vpmm *vpmm, uint32_t count);
void vpmm_slack_refused(struct vpmm *vpmm);
/*
 * vpmm_slack_shrink() - while no slack is in effect, make free pages beyond the peak reclaimable. The lock is released
 * temporarily.
 */
void vpmm_slack_shrink(struct vpmm *vpmm);

/* vpmm_live_rose() - record the peak after an allocation. */
static inline void vpmm_live_rose(struct vpmm *vpmm)
{
	if (vpmm->set.pages[VM_ALLOCATED] > vpmm->live_peak)
		vpmm->live_peak = vpmm->set.pages[VM_ALLOCATED];
}

/* ---- vpmm_map.c: these functions may release the lock temporarily ---- */

/* vpmm_chunk_add() - reserve addresses for at least `pages` pages. Return: 0, -ENOMEM. Lock held. */
int vpmm_chunk_add(struct vpmm *vpmm, uint32_t pages);

/* vpmm_pending_unmaps_end() - phase 0: unmap pending unmaps whose fences are signaled; they become holes. Lock held. */
void vpmm_pending_unmaps_end(struct vpmm_call *call) COLD;

/*
 * vpmm_fences_record() - record fences for UNFENCED regions in all slots except this one. Return true if any existed.
 * Lock held.
 */
bool vpmm_fences_record(struct vpmm *vpmm, uint32_t except) COLD;

/*
 * vpmm_place() - phase 2: map a new place for call->count pages, which moves. Return: 0, or as gpool_malloc_async().
 * Lock held.
 */
int vpmm_place(struct vpmm_call *call, struct vm_region **place) COLD;

/*
 * vpmm_fill() - map a new place, which moves, with call->count new pages from the agent. Return: 0, or as
 * gpool_malloc_async(). Lock held.
 */
int vpmm_fill(struct vpmm_call *call, int32_t timeout_ms, struct vm_region **place) COLD;

/* ---- vpmm_offer.c ---- */

/* vpmm_tags_open() - allocate the tags of a chunk whose space is open. Return: 0, -ENOMEM. */
int vpmm_tags_open(struct vpmm_chunk *chunk);
void vpmm_tags_close(struct vpmm_chunk *chunk);

/*
 * vpmm_offer() - release the handles of all free regions except UNFENCED ones. The agent may take each page once its
 * fence is signaled. Lock held. Cost: linear in the number of regions.
 */
void vpmm_offer(struct vpmm *vpmm);

/*
 * vpmm_claim() - hold the handles of a moving region again. gone[] receives the slots whose handles the agent has
 * taken. Return their number.
 */
uint32_t vpmm_claim(struct vpmm *vpmm, const struct vm_region *region, uint32_t *gone);

/*
 * vpmm_hold() - hold the handles of free regions again; parts that the agent has taken become pending unmaps. chunk:
 * only in this chunk; NULL: in all. ready: only READY regions. Return: 0: none of these regions is offered until the
 * lock is released; -ENOMEM. Lock held; released temporarily. Cost: linear in the number of regions.
 */
int vpmm_hold(struct vpmm_call *call, const struct region_chunk *chunk, bool ready) COLD;

/* ---- vpmm_idle.c ---- */

int vpmm_idle_open(struct vpmm *vpmm);
void vpmm_idle_close(struct vpmm *vpmm);

/*
 * vpmm_park() - make READY regions idle, the oldest first, but keep keep_pages pages. Return the number of pages. Lock
 * held.
 */
uint64_t vpmm_park(struct vpmm *vpmm, uint64_t keep_pages);

/*
 * vpmm_adopt() - hold the handles of a moving reclaimable or offered region again. Return: 0: all of them are held.
 * -EAGAIN: the region is in the sets again, in pieces; parts that the agent has taken are pending unmaps. -ENOMEM: the
 * region is in the sets again, possibly as one pending unmap. Lock held.
 */
int vpmm_adopt(struct vpmm_call *call, struct vm_region *region);

bool vpmm_let_go(struct vm_space *space);

/* vpmm_pressed() - park, because other sessions need pages; at most once per step of the pool's clock. Lock held. */
void vpmm_pressed(struct vpmm *vpmm) COLD;

/* vpmm_idle_touch() - record that a call was made, so that the background task runs again. Lock held. */
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
/* vpmm_small_has() - return true if the address can only belong to a small allocation. */
bool vpmm_small_has(const struct vpmm *vpmm, uint64_t address);
int vpmm_small_free(struct vpmm *vpmm, uint64_t address, uint32_t stream, uint64_t *bytes, uint64_t *id);
void vpmm_small_stream_closed(struct vpmm *vpmm, uint32_t stream);
/*
 * vpmm_small_return() - return buffers whose GPU work is done to their pages. all: also record fences for buffers that
 * were freed without one, so that a later call can return them.
 */
void vpmm_small_return(struct vpmm *vpmm, bool all);
/*
 * vpmm_small_wait() - wait for the GPU work of a buffer that was freed and is larger than a span, and return it. Return
 * false if there is none, or at the limit. *limit_ns must be 0 at the first call, which sets it to the limit.
 */
bool vpmm_small_wait(struct vpmm *vpmm, uint64_t *limit_ns);
bool vpmm_small_waits(const struct vpmm *vpmm);
void vpmm_small_totals(struct vpmm *vpmm, struct gpool_vm_stats *totals);

/* ---- vpmm_dump.c ---- */

/* vpmm_trace() - add a step of a call to its trace, which is logged when the call ends. Lock held or not. */
void vpmm_trace(struct vpmm_call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* vpmm_trace_end() - log the trace of a call. Lock not held. */
void vpmm_trace_end(struct vpmm_call *call, const char *what, int error, uint64_t address) COLD;

/*
 * vpmm_check() - call region_check(), and check the mappings. Return the number of findings; `text` describes the
 * first. For tests.
 */
uint32_t vpmm_check(struct gpool *pool, char *text, size_t text_bytes);

/* ---- vpmm_record.c ---- */

int vpmm_record_open(struct vpmm *vpmm, const char *path);
/*
 * vpmm_record_add() - record a call, or count it as lost. Return true if a flush is due. vpmm_record_flush() - write
 * the records to the file.
 */
bool vpmm_record_add(struct vpmm_record *record, bool is_free, uint32_t stream, uint64_t bytes, uint64_t id);
void vpmm_record_flush(struct vpmm_record *record);
uint64_t vpmm_record_lost(struct vpmm_record *record);
void vpmm_record_close(struct vpmm *vpmm);

#endif
