/*
 * lora.h - the registered adapters of a process. Internal to libgpool_lora.
 *
 * An adapter is COLD, LOADING or RESIDENT; load_state.h divides these states further. A load that fails leaves the
 * adapter COLD with `error` set, and the next acquire tries again. A pin of a RESIDENT adapter may find that the
 * adapter was evicted; its state is then COLD, unless the adapter is acquired or GPU work uses it.
 *
 * gpool_lora_acquire_async() acquires an adapter that is LOADING. An object in use cannot be published, because
 * publishing makes its mapping read-only. It therefore stays a draft of this process until its last use has ended:
 * RESIDENT if the load is complete, LOADING if the load has failed. A loader thread then publishes or drops it.
 *
 * One lock protects these states. It is not held while a file is read or while a thread waits for a GPU. Loader threads
 * (load.h) read files and open objects without it, because an entry that is LOADING is neither closed nor unregistered.
 * A RESIDENT entry is closed only when it is not acquired.
 */
#ifndef GPOOL_CLIENT_LORA_LORA_H
#define GPOOL_CLIENT_LORA_LORA_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "client/lora/format/adapter.h"
#include "client/lora/format/reason.h"
#include "client/lora/load/load_state.h"
#include "client/lora/load/tails.h"
#include "client/lora/load/warm.h"
#include "client/core/pool.h"
#include "shm/policy/worth.h"

/* If memory is short, uthash sets a flag instead of ending the program. */
#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(element) ((element)->unnamed = true)
#define HASH_FUNCTION(key, bytes, value) HASH_FNV(key, bytes, value)
#include <uthash.h>

/*
 * The number of pages in a loader's stage. Chosen: this number of copies is in progress while the next image is made.
 */
enum { LORA_STAGE_PAGES = 8 };

enum { LORA_THREADS_DEFAULT = 4, LORA_THREADS_MAX = 64 };

/* The table of runs to which struct gpool_lora_matrix.more points: device memory that kernels read. */
struct lora_runs {
	uint64_t address; /* uint64_t[runs of the layout]; 0: no table */
	bool in_tail;     /* a piece of the tail */
	bool is_span;
	struct gpool_span span;
	struct gpool_block block;
};

/* GPU work that may still use the addresses of an adapter that was released with a fence. */
struct lora_use {
	struct lora_use *next;
	struct gpool_fence fence;
};

/* The sources of a load, the fastest first. */
enum lora_from { LORA_FROM_WARM, LORA_FROM_COLD, LORA_FROM_PEFT, LORA_FROM_COUNT };

struct lora_counts {
	uint64_t hits, shared, lost, rebalanced;
	uint64_t from[LORA_FROM_COUNT]; /* number of loads from each source */
};

struct cold_reader;
struct residency;

struct lora_entry {
	struct adapter *adapter; /* a reference */

	enum load_state load_state; /* changed only by load_set_state(), which derives `state` */
	enum gpool_lora_state state;
	uint32_t acquired, waiting;  /* waiting: number of threads, and of claims of schedulers */
	uint32_t beginning, granted; /* threads that wait for the address; those that got it and are still asleep */
	uint32_t requests;           /* number of requests of schedulers, which prevent unregistering */
	struct lora_counts counts; /* near `state` and `acquired`, because the statistics of a set read these of all */

	int error; /* error of the last load */
	struct reason reason;
	struct lora_load *load;      /* set from BEGUN to DRAFT_ENDING, otherwise NULL */
	struct gpool_object *object; /* set in HELD and RESIDENT, if adapter_has_object() */
	uint64_t base;
	struct tail tail;
	struct lora_runs runs;
	uint32_t ready;        /* while it is loaded: number of complete pages, counted from the first */
	uint64_t placed;       /* a new number each time the adapter gets addresses */
	struct lora_use *uses; /* at most one for each stream */

	uint64_t acquires, acquires_learned; /* number of all acquires, and of those that `worth` includes */
	uint64_t served;                     /* acquires by the program, and finished requests of schedulers */
	uint32_t used_ms;                    /* pool_clock() at the last acquire */
	/*
	 * number of acquires up to the last rebalancing load or unload; only later ones justify another rebalancing
	 * load
	 */
	uint64_t acquires_spent;
	struct worth worth;
	uint64_t warm_refused; /* version of a copy in host memory that the last load found invalid; 0: none */
	uint64_t copy_version; /* with limits: version of the copy in host memory that this set has made; 0: none */

	/*
	 * For limits.c: the policy knows the adapter as used; it has decided the load in progress; the adapter is in
	 * lora->fenced; in lora->surplus
	 */
	bool is_held, is_decided, is_fenced, is_surplus;
	TAILQ_ENTRY(lora_entry) fenced, surplus;

	uint32_t id;
	bool unnamed;                 /* no memory was available for its entry in by_name */
	UT_hash_handle hh;            /* by name */
	TAILQ_ENTRY(lora_entry) link; /* in the list of its state */
};

TAILQ_HEAD(lora_list, lora_entry);
TAILQ_HEAD(lora_later_list, lora_later);

struct gpool_lora {
	struct gpool *pool;
	struct gpool *warm; /* pool of the copies in host memory; NULL: none */
	enum gpool_lora_element element;
	uint64_t salt[2];
	int cold_fd; /* descriptor of the folder; -1: none */
	bool int8;   /* pages are rounded to int8 if the adapter's loss permits it */
	bool private;
	bool shares_pages; /* GPOOL_LORA_SHARE_PAGES */
	struct tails tails;
	/* the adapter whose tail a thread is moving; entry_close() sets it to NULL, and the thread frees the tail */
	struct lora_entry *moving;
	bool unpacked;            /* a tail was freed, or a shared page was added, since the last tails_pack() */
	bool packing;             /* one thread moves tails */
	_Atomic bool cpu_expands; /* the kernel that expands int8 cannot be launched, as was logged */

	pthread_mutex_t lock;
	pthread_cond_t queued, loaded;
	struct lora_entry **entries; /* [entry_count]; NULL: unused number */
	uint32_t entry_count, entry_room;
	uint64_t placings;
	/*
	 * number of ended loads, and of changes that schedulers report; lora_change_wait() waits on `loaded` for a
	 * change
	 */
	uint64_t changes;
	uint32_t users; /* number of batches and schedulers */
	struct lora_entry *by_name;
	/* Lists of adapters by state, see load_state.h, in the order in which loader threads take from them. */
	struct lora_list steps, queue, turns, drafts;
	/* copies to make when no other work is queued; copies of adapters that must first be idle, see later.h */
	struct lora_later_list later, resting;
	uint32_t loads; /* number of loads in progress */
	/* making: number of threads that make parts from memory; from `cores` on, no other is woken or helps */
	uint32_t making, cores;
	bool watching; /* one thread is waiting for a fence of a draft */
	bool crowded;  /* the pool has no room for another load until one ends */
	bool copying;  /* one thread is making copies, so the others do not */
	bool ending;
	uint32_t rebalance_ms;   /* UINT32_MAX: never */
	uint64_t rebalance_ns;   /* time of the next rebalance() */
	uint64_t fences_ns;      /* time of the next check of `fenced` */
	uint64_t sleep_ns;       /* time until which an idle loader thread sleeps; UINT64_MAX: none, or not known */
	uint32_t idle_ms;        /* option idle_ms */
	struct lora_counts gone; /* counts of adapters that were unregistered */
	struct warm_kept kept;
	struct residency *residency; /* decides loads and evictions; NULL: no limits */
	/* reports a new state of an adapter to the policy; NULL: no limits. A pointer, so that states need no policy */
	void (*follow)(struct gpool_lora *lora, struct lora_entry *entry);
	struct lora_list fenced;  /* adapters that are used only by GPU work */
	struct lora_list surplus; /* adapters that are to be evicted when they are not in use */
	bool deciding;            /* one thread is executing a decision */
	uint64_t evicted,
		dropped; /* numbers of adapters that were evicted, and copies deleted, because of the limits */
	uint64_t warm_made, warm_full, refused; /* numbers of copies: made, without room, refused as invalid */

	struct lora_loader {
		struct gpool_lora *lora;
		pthread_t thread;
		/* Used if the CPU cannot write to pages; otherwise 0 and NULL. */
		uint32_t stream;
		uint8_t *stage; /* LORA_STAGE_PAGES, registered */
		/* Memory for forms and stored groups, as large as the largest needed so far. */
		void *stored, *room;
		uint64_t stored_bytes, room_bytes;
	} * loaders;
	uint32_t loader_count;
	/* Cold file readers, at most one for each loader thread. readers[0..readers_idle) are not used by a load. */
	struct cold_reader *readers[LORA_THREADS_MAX];
	uint32_t readers_idle, readers_made;
};

/*
 * lora_can_help() - return true if a waiting thread can do the work of a loader thread. This is possible if the pages
 * need no stage, which only loader threads have.
 */
static inline bool lora_can_help(const struct gpool_lora *lora)
{
	return lora->pool->capabilities & GPU_CAP_HOST_POINTER;
}

/* ---- lora.c ---- */

/*
 * lora_hold() - acquire again an adapter that is acquired, until gpool_lora_release(). The entry does not change until
 * then. Return: 0, -ENOENT, -EINVAL (not acquired), -EBUSY (unloaded by another process), with a reason.
 */
int lora_hold(struct gpool_lora *lora, uint32_t id, struct lora_entry **entry, struct reason *reason);

/* fail_adapter() - report that no adapter has this number. Return: -ENOENT. */
int fail_adapter(uint32_t id) __attribute__((noinline, cold));
/* fail_used() - report by what an adapter is used; under the lock. Return: -EBUSY. */
int fail_used(const struct lora_entry *entry) __attribute__((noinline, cold));
/* entry_of() - return the adapter with this number, or NULL; under the lock. */
struct lora_entry *entry_of(const struct gpool_lora *lora, uint32_t id);

/*
 * Calls for schedulers, whose requests wait without a thread.
 *   lora_requests_add()  Change the number of requests for an adapter by `more`: 0, -ENOENT
 *   lora_served()        Count a finished request
 *   lora_hit()           Count the use of an adapter that lora_try() has acquired as a hit
 *   lora_try()           Acquire an adapter if it is resident: 0, -EAGAIN (it is being loaded), -ESTALE (not resident),
 *                        or as gpool_lora_acquire()
 *   lora_claim()         Acquire an adapter, or load it and pin it until lora_claim_look(): 0, -EAGAIN (claimed), or
 *                        another error
 *   lora_claim_look()    Check a claim: 0 (acquired), -EAGAIN (still being loaded), or the error of the load. The claim
 *                        ends, except after -EAGAIN
 *   lora_claim_end()     Drop a claim
 */
int lora_requests_add(struct gpool_lora *lora, uint32_t id, int32_t more);
void lora_served(struct gpool_lora *lora, uint32_t id);
void lora_hit(struct gpool_lora *lora, uint32_t id);
int lora_try(struct gpool_lora *lora, uint32_t id);
int lora_claim(struct gpool_lora *lora, uint32_t id);
int lora_claim_look(struct gpool_lora *lora, uint32_t id);
void lora_claim_end(struct gpool_lora *lora, uint32_t id);

/*
 * lora_changes() - return the number of changes.
 * lora_change() - report a change.
 * lora_change_wait() - wait until the number differs from `seen`, at most timeout_ms (-1: no limit). Return: 0,
 * -ETIMEDOUT (also if gpool_wait_check() ended the wait).
 */
uint64_t lora_changes(struct gpool_lora *lora);
void lora_change(struct gpool_lora *lora);
int lora_change_wait(struct gpool_lora *lora, uint64_t seen, int timeout_ms);

/*
 * lora_user_add() - register (1) or unregister (-1) a batch or a scheduler. gpool_lora_destroy() fails while one is
 * registered.
 */
void lora_user_add(struct gpool_lora *lora, int32_t more);

/* ---- loaders.c ---- */

/* loaders_due() - report that a loader thread has work at this time; under the lock. */
void loaders_due(struct gpool_lora *lora, uint64_t due_ns);

/*
 * loaders_start() - start `count` loader threads. Return: 0, -ENOMEM, -EUSERS, -EAGAIN, -EIO. Even after an error,
 * loaders_end() must be called.
 * loaders_end() - let the threads finish their current work, end them, and drop all other loads.
 */
int loaders_start(struct gpool_lora *lora, uint32_t count);
void loaders_end(struct gpool_lora *lora);

/* ---- place.c ---- */

/*
 * runs_make() - write the table of runs of an adapter at `base`, with this tail, to the device. flags: for its
 * allocation. Return: 0, -ENOMEM, -EIO, or as gpool_alloc().
 * runs_free() - free the table.
 */
int runs_make(struct lora_loader *loader, const struct adapter_layout *layout, uint64_t base, const struct tail *tail,
	uint32_t flags, struct lora_runs *runs);
void runs_free(struct gpool_lora *lora, struct lora_runs *runs);
/*
 * entry_pin() - pin a resident adapter. Return: as gpool_object_pin(); -ESTALE also: its tail was evicted.
 * entry_unpin() - end one pin when the fence is signaled. Return: as gpool_object_unpin_after().
 */
int entry_pin(struct gpool_lora *lora, const struct lora_entry *entry);
int entry_unpin(struct gpool_lora *lora, const struct lora_entry *entry, struct gpool_fence fence);
/* entry_is_gone() - return true if the object of a resident adapter, or its tail, was evicted; without a use of it. */
bool entry_is_gone(const struct gpool_lora *lora, const struct lora_entry *entry);
/* entry_close() - close the object of an adapter. Return: 0, -EBUSY (GPU work uses its addresses). */
int entry_close(struct gpool_lora *lora, struct lora_entry *entry);
/* entry_use() - keep the object open until the fence is signaled. Return: 0, -ENOMEM, -EINVAL (no such fence). */
int entry_use(struct gpool_lora *lora, struct lora_entry *entry, struct gpool_fence fence);
/*
 * entry_is_used() - return true if a fence of entry_use() is not signaled; entry->uses then begins with such a fence.
 * A fence that can no longer be checked counts as signaled.
 */
bool entry_is_used(struct gpool_lora *lora, struct lora_entry *entry);
/*
 * target_find() - return the index of a target, or -1.
 * module_find() - return the module with a layer and a target index, or NULL.
 * part_of() - return the addresses of a module's tiles.
 */
int target_find(const struct adapter_layout *layout, const char *target);
const struct adapter_module *module_find(const struct adapter_layout *layout, uint32_t layer, int target);
/* layer_pages() - return the number of pages, from the first on, that a layer needs; -1: all pages. */
uint32_t layer_pages(const struct adapter_layout *layout, int32_t layer);
/* layer_is_here() - return true if a layer (-1: all layers) of an acquired adapter is complete; under the lock. */
bool layer_is_here(const struct lora_entry *entry, int32_t layer);
struct gpool_lora_weights part_of(const struct lora_entry *entry, const struct adapter_module *module);

#endif
