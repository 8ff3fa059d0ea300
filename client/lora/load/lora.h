/*
 * lora.h - the adapters of a process: what is registered, where it is, who loads it. Internal to libgpool.
 *
 *   COLD -> LOADING -> HERE     the object is open (and pinned, while somebody waits for it)
 *              |        +-> COLD   a pin found that it has left the pool
 *              +-> COLD         `error` says why; the next acquire tries again
 *
 * Who begins to use it while it comes (gpool_lora_acquire_async()) has it acquired while it is LOADING. What is in use
 * is not published, since that takes the right to write from where it is mapped: it stays a draft of this process, HERE
 * when
 * it is whole and LOADING when its load has failed, until nobody uses it; then a loader thread publishes it, or gives
 * it up.
 *
 * One lock for all of it, held over no file and no wait for a GPU: files are read and objects opened by loader threads
 * (load.h), which have an entry for themselves while it is LOADING. An entry that is HERE is closed only while nobody
 * has it acquired.
 */
#ifndef GPOOL_CLIENT_LORA_LORA_H
#define GPOOL_CLIENT_LORA_LORA_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "client/lora/format/adapter.h"
#include "client/lora/format/reason.h"
#include "client/lora/load/load_state.h"
#include "client/lora/load/warm.h"
#include "client/core/pool.h"
#include "shm/policy/worth.h"

/* Where uthash finds no memory it tells us instead of ending the program. */
#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(element) ((element)->unnamed = true)
#define HASH_FUNCTION(key, bytes, value) HASH_FNV(key, bytes, value)
#include <uthash.h>

/*
 * Pages of a loader's stage: so many copies are under way while the next image is made. Two would wait for each;
 * chosen.
 */
enum { LORA_STAGE_PAGES = 8 };

enum { LORA_THREADS_DEFAULT = 4, LORA_THREADS_MAX = 64 };

/* Where the runs of tiles lie that struct gpool_lora_matrix.more tells: device memory, from which kernels read. */
struct lora_runs {
	uint64_t address; /* uint64_t[runs of the layout]; 0: there are none */
	bool is_span;
	struct gpool_span span;
	struct gpool_block block;
};

/* Queued work that may still use an adapter's addresses: what is released behind a fence. */
struct lora_use {
	struct lora_use *next;
	struct gpool_fence fence;
};

/* Where a load got the pages from: the warmest that there is. */
enum lora_from { LORA_FROM_WARM, LORA_FROM_COLD, LORA_FROM_PEFT, LORA_FROM_COUNT };

struct lora_counts {
	uint64_t hits, shared, lost, rebalanced;
	uint64_t from[LORA_FROM_COUNT]; /* loads */
};

struct cold_reader;

struct lora_entry {
	struct adapter *adapter; /* a reference */

	enum load_state load_state; /* changed by load_set_state() alone, which derives `state` */
	enum gpool_lora_state state;
	uint32_t acquired, waiting;  /* waiting: threads, and claims of schedulers */
	uint32_t beginning, granted; /* who waits for its place; who has got it, and does not know yet */
	uint32_t requests;           /* of schedulers; it is not unregistered under them */

	int error; /* of the last load */
	struct reason reason;
	struct lora_load *load;      /* BEGUN to DRAFT_ENDING; else NULL */
	struct gpool_object *object; /* HERE, and published */
	uint64_t base;
	struct lora_runs runs;
	uint32_t ready;        /* LOADING, with a place: so many pages are there, from the first on */
	uint64_t placed;       /* differs each time it comes, as do its addresses */
	struct lora_use *uses; /* one for each stream */
	struct lora_counts counts;

	uint64_t acquires, acquires_learned; /* all of them; those that `worth` knows */
	/* what there were when it was last brought back, or unloaded: it takes more of them to bring it back */
	uint64_t acquires_spent;
	struct worth worth;

	uint32_t id;
	bool unnamed;                 /* there was no memory to find it by its name */
	UT_hash_handle hh;            /* by name */
	TAILQ_ENTRY(lora_entry) link; /* in the list of its state */
};

TAILQ_HEAD(lora_list, lora_entry);

struct gpool_lora {
	struct gpool *pool;
	struct gpool *warm; /* where copies in host memory are; NULL: nowhere */
	enum gpool_lora_element element;
	uint64_t salt[2];
	int cold_fd; /* folder; -1: none */
	bool int8;   /* pages are what int8 makes of them, where it may */
	bool private;

	pthread_mutex_t lock;
	pthread_cond_t queued, loaded;
	struct lora_entry **entries; /* [entry_count], NULL where none is */
	uint32_t entry_count, entry_room;
	uint64_t placings;
	/*
	 * what lora_change_wait() waits for: loads that ended, and whatever schedulers tell each other; `loaded` is
	 * signalled
	 */
	uint64_t changes;
	uint32_t users; /* batches and schedulers */
	struct lora_entry *by_name;
	/* Lists by state, see load_state.h: in the order in which loader threads take from them. */
	struct lora_list steps, queue, turns, drafts;
	TAILQ_HEAD(, lora_later) later; /* copies to be made when nothing else is to be done */
	uint32_t loads;                 /* in progress */
	/* threads that make parts from memory; of more than there are cores, some would only wait for others */
	uint32_t making, cores;
	bool watching; /* one thread waits for a fence of a draft */
	bool crowded;  /* there was no room for a further one; until one of them ends */
	bool copying;  /* one thread at a time: others are there for loads */
	bool ending;
	uint32_t rebalance_ms;   /* UINT32_MAX: never */
	uint64_t rebalance_ns;   /* when what may come back is looked at again */
	struct lora_counts gone; /* of adapters that were unregistered */
	struct warm_kept kept;
	uint64_t warm_made, warm_full, refused; /* copies: made, for which there was no room, not believed */

	struct lora_loader {
		struct gpool_lora *lora;
		pthread_t thread;
		/* Where the CPU cannot write to pages; else 0 and NULL. */
		uint32_t stream;
		uint8_t *stage; /* LORA_STAGE_PAGES, registered */
		/*
		 * For forms and stored groups, as large as the largest so far: fresh memory would cost more than
		 * reading.
		 */
		void *stored, *room;
		uint64_t stored_bytes, room_bytes;
	} * loaders;
	uint32_t loader_count;
	/*
	 * One for each thread at most, since each has room for groups. Those that no load has:
	 * readers[0..readers_idle).
	 */
	struct cold_reader *readers[LORA_THREADS_MAX];
	uint32_t readers_idle, readers_made;
};

/* lora_can_help() - who waits can do what loaders do: where nothing goes through a stage, which only they have. */
static inline bool lora_can_help(const struct gpool_lora *lora)
{
	return lora->pool->capabilities & GPU_CAP_HOST_POINTER;
}

/* ---- lora.c ---- */

/*
 * lora_hold() - one use more of what is acquired already; gpool_lora_release() ends it. The entry stays as it is until
 * then, also without the lock. Return: 0, -ENOENT, -EINVAL (not acquired), -EBUSY (somebody has unloaded it), with a
 * reason.
 */
int lora_hold(struct gpool_lora *lora, uint32_t id, struct lora_entry **entry, struct reason *reason);

/* fail_adapter() - -ENOENT: no adapter has this number. */
int fail_adapter(uint32_t id) __attribute__((noinline, cold));
/* fail_unacquired() - -EINVAL: an adapter that must be acquired for this call. Under the lock. */
int fail_unacquired(const struct lora_entry *entry) __attribute__((noinline, cold));
/* entry_of() - under the lock; NULL: there is none. */
struct lora_entry *entry_of(const struct gpool_lora *lora, uint32_t id);

/*
 * For schedulers, whose requests wait without a thread.
 *   lora_requests_add()  so many requests more (or fewer) are for an adapter: 0, -ENOENT
 *   lora_hit()           what lora_try() has acquired is used: it counts as a hit
 *   lora_try()           acquire it if it is there: 0, -EAGAIN (it is being loaded), -ESTALE (it is not there), or what
 *                        gpool_lora_acquire() says
 *   lora_claim()         acquire it, or else have it loaded, and then kept until lora_claim_look(): 0, -EAGAIN
 *                        (claimed), or another error
 *   lora_claim_look()    what became of a claim: 0 (acquired), -EAGAIN (it is still being loaded), or why it failed;
 *                        then it is over, too
 *   lora_claim_end()     a claim is given up
 */
int lora_requests_add(struct gpool_lora *lora, uint32_t id, int32_t more);
void lora_hit(struct gpool_lora *lora, uint32_t id);
int lora_try(struct gpool_lora *lora, uint32_t id);
int lora_claim(struct gpool_lora *lora, uint32_t id);
int lora_claim_look(struct gpool_lora *lora, uint32_t id);
void lora_claim_end(struct gpool_lora *lora, uint32_t id);

/*
 * lora_changes() - as of now; lora_change() - one more; lora_change_wait() - until there are more than `seen`: 0,
 * -ETIMEDOUT. timeout_ms: -1: no limit.
 */
uint64_t lora_changes(struct gpool_lora *lora);
void lora_change(struct gpool_lora *lora);
int lora_change_wait(struct gpool_lora *lora, uint64_t seen, int timeout_ms);

/*
 * lora_user_add() - a batch or a scheduler (1), or one less (-1): gpool_lora_destroy() does not take their adapters
 * from under them.
 */
void lora_user_add(struct gpool_lora *lora, int32_t more);

/* ---- loaders.c ---- */

/*
 * loaders_start() - Return: 0, -ENOMEM, -EUSERS, -EIO; what was started is ended by loaders_end(), which waits for what
 * threads have in their hands, and gives all other loads up.
 */
int loaders_start(struct gpool_lora *lora, uint32_t count);
void loaders_end(struct gpool_lora *lora);

/* ---- place.c ---- */

/*
 * runs_make() - the table of runs of an adapter at `base`, on the device: 0, -ENOSPC and what else an allocation says,
 * -ENOMEM, -EIO.
 */
int runs_make(struct lora_loader *loader, const struct adapter_layout *layout, uint64_t base, struct lora_runs *runs);
void runs_free(struct gpool_lora *lora, struct lora_runs *runs);
/* entry_close() - it is not open here any more: 0, -EBUSY (queued work uses its addresses). */
int entry_close(struct gpool_lora *lora, struct lora_entry *entry);
/* entry_use() - it will not be closed before the fence is reached: 0, -ENOMEM, -EINVAL (no such fence). */
int entry_use(struct gpool_lora *lora, struct lora_entry *entry, struct gpool_fence fence);
/* entry_is_used() - a fence is not reached; entry->uses is one of those. What cannot be asked any more is over. */
bool entry_is_used(struct gpool_lora *lora, struct lora_entry *entry);
/*
 * target_find() - index of a target, -1: there is none. module_find() - of a layer and that; NULL. part_of() - where
 * its tiles lie.
 */
int target_find(const struct adapter_layout *layout, const char *target);
const struct adapter_module *module_find(const struct adapter_layout *layout, uint32_t layer, int target);
/* layer_pages() - so many pages, from the first on, have to be there for it; -1: for all. */
uint32_t layer_pages(const struct adapter_layout *layout, int32_t layer);
/* layer_is_here() - of one that is acquired, under the lock. -1: all of it. */
bool layer_is_here(const struct lora_entry *entry, int32_t layer);
struct gpool_lora_weights part_of(const struct lora_entry *entry, const struct adapter_module *module);

#endif
