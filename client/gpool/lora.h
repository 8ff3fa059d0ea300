/*
 * lora.h - LoRA adapters, batches of them, and a scheduler of requests.
 *
 * These functions are in a separate library, libgpool_lora. Link with -lgpool_lora -lgpool, or use the pkg-config file
 * gpool-lora. Both libraries must have the same version.
 */
#ifndef GPOOL_LORA_H
#define GPOOL_LORA_H

#include "stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- adapters ---- */

/*
 * LoRA adapters in PEFT's file format are packed into pages that all engines of a trust domain share. The first engine
 * that needs an adapter loads it and publishes it as an object of class GPOOL_OBJECT_PINNABLE; the others map it. An
 * adapter is not evicted while an engine has acquired it, unless the agent has ended its pins as leaked
 * (gpool_object_pin()). Afterwards it is resident until its pages are needed. Acquiring an adapter that is resident and
 * mapped costs a lookup and a pin. Ranks are not padded to a common rank; the rest of an adapter's last page is unused,
 * unless the set has the flag GPOOL_LORA_SHARE_PAGES.
 *
 * This process reads and completely validates adapter files with its own permissions. The agent does not access them.
 */
struct gpool_lora; /* the adapters of a process in one pool */

enum gpool_lora_element {
	GPOOL_LORA_AS_FILE = 0, /* fp16 if all weights of the file are fp16, otherwise bf16 */
	GPOOL_LORA_F16 = 1,
	GPOOL_LORA_BF16 = 2,
	GPOOL_LORA_F32 = 3 /* only in struct gpool_lora_array */
};

enum {
	/*
	 * Store adapters as int8 in cache_dir and warm, with one scale for 128 columns, if this changes their outputs
	 * by at most 1.5 %. An adapter stored as int8 takes half the disk space, host memory and read time. At least
	 * one of cache_dir and warm is required. The first load of an adapter measures the loss. From this load on,
	 * the pool contains the restored int8 weights, so that the weights from every source are bit-identical.
	 * Without the flag, and for adapters with a larger loss, the weights are those of the files, rounded to the
	 * element type.
	 */
	GPOOL_LORA_INT8 = 1u << 0,
	/* Share adapters among the engines of one tenant only, instead of those of a trust domain. */
	GPOOL_LORA_PRIVATE = 1u << 1,
	/*
	 * Store the last pages of the adapters of this set together, so that their unused ends do not take memory. Each
	 * engine has its own copy of the last page of an adapter, and shares the other pages with engines that set this
	 * flag. The flag saves memory if adapters have few pages and are used by one or two engines. An adapter that
	 * is smaller than a page is not an object, so each engine loads it, and the key adapters.hot_budget does not
	 * count it. Adapters with less than 1 % of the last page unused are stored as without the flag.
	 */
	GPOOL_LORA_SHARE_PAGES = 1u << 2,
};

struct gpool_lora_options {
	uint32_t size;    /* sizeof(struct gpool_lora_options); GPOOL_LORA_OPTIONS_INIT sets it */
	uint32_t flags;   /* GPOOL_LORA_INT8, _PRIVATE, _SHARE_PAGES; an unknown bit is -EINVAL */
	uint32_t element; /* enum gpool_lora_element, the type of the weights in the pool */
	/* number of loader threads; idle threads help to load the same adapter; 0: 4, at most 64 */
	uint32_t load_threads;
	const char *cache_dir; /* existing directory in which loaded adapters are stored for later loads. NULL: none */
	uint64_t salt[2];      /* adapters are shared only among engines with the same salt */
	/*
	 * A pool of the back end `host` for copies of loaded adapters. All engines of the trust domain, or of the
	 * tenant with GPOOL_LORA_PRIVATE, that pass this pool share the copies, which are named objects and are evicted
	 * like others (gpool_object_pin()). The caller keeps the pool open until gpool_lora_destroy(). NULL: no such
	 * copies.
	 */
	struct gpool *warm;
	/*
	 * Interval in milliseconds between loads of evicted adapters in advance. The adapter must have been acquired at
	 * least adapters.promotion_threshold (gpoold.conf) times in the last minute, by default twice; the most used
	 * adapter is loaded first. The load starts when no loader is busy, if it evicts no content, an eighth of the
	 * pool remains free, and the pressure is low. An adapter that was loaded in advance, or was unloaded, is not
	 * loaded in advance again until it has been acquired. 0: 10,000; UINT32_MAX: never.
	 */
	uint32_t rebalance_ms;
	/*
	 * Limits of the adapters that this set keeps in the pool: their number, and the size of their pages in bytes.
	 * If one of them, or of warm_adapters and warm_bytes, is not 0, the set evicts adapters itself, by a residency
	 * policy, and loads an adapter only when there is room for it:
	 *
	 * - Only adapters that are not acquired are evicted, the one with the lowest worth first. The worth is the
	 *   number of uses, of which half are forgotten in 30 minutes, multiplied by the time to load the adapter and
	 *   divided by its size. An adapter with 10 uses within a minute counts as if it had always been used at this
	 *   rate.
	 * - For a minute, a prefetched adapter is evicted after all others, and only to make room for an adapter that
	 *   is acquired.
	 * - Every rebalance_ms, an adapter that is worth at least twice as much as a resident one may replace it.
	 *
	 * If another engine has the adapter open, this set only closes it. The agent evicts adapters of such a set as
	 * usual if the pool needs pages. A set with limits has at most 65,536 adapters. 0: no limit.
	 */
	uint32_t hot_adapters;
	uint64_t hot_bytes;
	/*
	 * Limits of the copies in host memory that this set makes and uses, by the same policy: their number, and the
	 * size of their pages in bytes. With a limit, an adapter is copied to `warm` when it was idle for idle_ms, or
	 * when it is evicted earlier. If the limits leave no room, copies that are worth less are deleted, first those
	 * of adapters that are in the pool. Copies that other engines have made are only counted. 0: no limit.
	 */
	uint32_t warm_adapters;
	/*
	 * Time in milliseconds without a use after which an adapter is copied to `warm`; 1: as soon as it is not in
	 * use. 0: adapters.compression_threshold (gpoold.conf), whose default is right after the load.
	 */
	uint32_t idle_ms;
	uint64_t warm_bytes;
};
GPOOL_ASSERT_SIZE(gpool_lora_options, 80);
#define GPOOL_LORA_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_lora_options), 0, 0, 0, 0, {0, 0}, 0, 0, 0, 0, 0, 0, 0 \
	}

enum { GPOOL_LORA_REASON_BYTES = 256 };

/*
 * gpool_lora_create() - create an empty set of adapters.
 *
 * @options: NULL: the defaults
 * @lora:    receives the handle; call gpool_lora_destroy() before gpool_close()
 *
 * Return: 0, or
 *   -EINVAL  an option out of range; GPOOL_LORA_INT8 without cache_dir and warm; warm_adapters, warm_bytes or idle_ms
 *            without warm; a warm pool that the CPU cannot read or that an observer opened
 *   -E2BIG   options of a newer library, with a field set that this library does not have
 *   -ENOENT, -ENOTDIR, -EACCES  cache_dir cannot be opened
 *   -EPERM   the session is an observer or admin
 *   -EUSERS  255 streams are open
 *   -EIO     the GPU driver failed
 *   -EINTR   as gpool_stream_open()
 *   -ENOMEM, -ECHILD
 */
GPOOL_API int gpool_lora_create(struct gpool *pool, const struct gpool_lora_options *options, struct gpool_lora **lora);

/*
 * gpool_lora_destroy() - cancel loads and copies in progress, and destroy a set of adapters. NULL is permitted.
 *
 * Return: 0, -EBUSY (an adapter is acquired, or was released with a fence that is not signaled; a batch or a
 * scheduler exists), -ECHILD. Threads: no other thread may be in a call for the set.
 */
GPOOL_API int gpool_lora_destroy(struct gpool_lora *lora);

/*
 * gpool_lora_register() - register an adapter under a name. Reads the headers of its files, but not the weights.
 *
 * @name:   1 to 127 bytes
 * @folder: PEFT folder with adapter_config.json and adapter_model.safetensors, which must not change while the adapter
 *          is registered
 * @id:     receives its number, starting at 0; numbers of unregistered adapters are reused
 * @why:    [GPOOL_LORA_REASON_BYTES] receives one line with the reason of a refusal; may be NULL
 *
 * Adapters that cannot be applied solely as B (A x) are refused. The rank of a module is the number of rows of its
 * lora_A, also in its scale, lora_alpha / rank; `r` and `rank_pattern` of the configuration must be positive numbers,
 * but need not equal it.
 *
 * Return: 0, or
 *   -EINVAL  invalid name; an empty folder; invalid files, or an adapter that is larger than hot_bytes, as described
 *            in *why
 *   -ENOSPC  a set with limits has 65,536 adapters
 *   -EEXIST  the name is registered
 *   -ENOENT, -EACCES, -EIO, -ENOMEM, -EMFILE  the files cannot be read
 *   -ECHILD  after fork()
 *
 * Threads: any. Cost: reads and parses the two headers; the time grows with the number of modules
 * [adapter_register_10000, adapter_register_32_layers: 42 and 224 modules].
 */
GPOOL_API int gpool_lora_register(
	struct gpool_lora *lora, const char *name, const char *folder, uint32_t *id, char *why);

/*
 * gpool_lora_register_buffer() - register an adapter whose files are in memory.
 *
 * @name:    as for gpool_lora_register()
 * @config:  content of adapter_config.json, JSON text
 * @weights: [bytes] content of adapter_model.safetensors
 * @id, @why: as for gpool_lora_register()
 *
 * The content is copied, so the caller may free or change it after the call. The copy is in host memory of this process
 * until the adapter is unregistered; later loads use it if there is no faster source. Processes that register equal
 * content share the adapter, as for files; the content is compared by a 128-bit hash that is not cryptographic. Use
 * GPOOL_LORA_PRIVATE if tenants do not trust each other.
 *
 * Return: as gpool_lora_register(), or
 *   -EMFILE           two file descriptors are needed until the adapter is unregistered
 *   -ENOSPC, -ENOMEM  no host memory for the copy
 *   -EFAULT           the weights cannot be read
 *
 * Threads: any. Cost: copies the weights and reads the copy once; no driver call.
 */
GPOOL_API int gpool_lora_register_buffer(struct gpool_lora *lora, const char *name, const char *config,
	const void *weights, uint64_t bytes, uint32_t *id, char *why);

/*
 * A matrix in host memory. The fields correspond to those of a tensor of DLPack with two dimensions. A value.
 */
struct gpool_lora_array {
	const char *name; /* as in PEFT's files: base_model.model.PATH.lora_A.weight or .lora_B.weight */
	const void *data; /* address of the first element, in memory that the CPU can read */
	int64_t row_stride, column_stride; /* elements from one row or column to the next; columns and 1: contiguous */
	uint32_t rows, columns;            /* lora_A: rank x in; lora_B: out x rank */
	uint32_t element;                  /* GPOOL_LORA_F16, GPOOL_LORA_BF16 or GPOOL_LORA_F32 */
	uint32_t reserved;                 /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_lora_array, 48);

/*
 * gpool_lora_register_arrays() - register an adapter whose matrices are in memory.
 *
 * @arrays: [count] all matrices of the adapter, in any order
 *
 * The matrices are copied to a file in memory, and otherwise treated as by gpool_lora_register_buffer(). The order of
 * the matrices and their strides do not matter for sharing. Copy weights from the memory of a GPU to host memory first.
 *
 * Return, Threads, Cost: as gpool_lora_register_buffer(); -EINVAL also: an array without name or data, with an invalid
 * shape or element. Matrices that are not contiguous are copied element by element.
 */
GPOOL_API int gpool_lora_register_arrays(struct gpool_lora *lora, const char *name, const char *config,
	const struct gpool_lora_array *arrays, uint32_t count, uint32_t *id, char *why);

/*
 * gpool_lora_restrict() - restrict an adapter to some tenants. Call it after the registration, before the first load.
 *
 * @tenants: [count] names of tenants, with the tenant of this session
 *
 * The agent lets only sessions of these tenants open the adapter's object and its copies in the warm pool, or publish
 * them; the names of these objects contain the tenants. Engines share the adapter if they pass the same tenants, in any
 * order. The configuration of gpoold can also state which adapters a tenant may use: the key adapters of a tenant.
 *
 * Return: 0, or
 *   -EINVAL  no tenant, an invalid name, or names of more than 89 bytes in total, with one byte between them; the set
 *            has GPOOL_LORA_PRIVATE
 *   -EPERM   the tenant of this session is not among them
 *   -EBUSY   the adapter has been loaded, or is being loaded
 *   -ENOENT, -ECHILD
 *
 * Threads: any. Cost: a lock.
 */
GPOOL_API int gpool_lora_restrict(struct gpool_lora *lora, uint32_t id, const char *const *tenants, uint32_t count);

/* gpool_lora_find() - return the number of the adapter with a name. Return: 0, -ENOENT, -ECHILD. Cost: one lookup. */
GPOOL_API int gpool_lora_find(struct gpool_lora *lora, const char *name, uint32_t *id);

/*
 * gpool_lora_unregister() - remove an adapter's name. Its pages and copies remain until their memory is needed.
 *
 * Return: 0, -EBUSY (acquired, being loaded, used by a scheduler's request, or queued GPU work uses its addresses),
 * -ENOENT, -ECHILD. Threads: any. Cost: as gpool_object_close() if this process has the adapter open.
 */
GPOOL_API int gpool_lora_unregister(struct gpool_lora *lora, uint32_t id);

/*
 * gpool_lora_acquire() - make an adapter resident and pin it. Acquisitions nest: call gpool_lora_release() once for
 * each.
 *
 * @timeout_ms: longest wait for its load, milliseconds; 0: start the load without waiting, -1: no limit
 *
 * Return: 0, or
 *   -EAGAIN     timeout_ms was 0, and the adapter is being loaded
 *   -ETIMEDOUT  the adapter is still being loaded
 *   -ENOSPC, -EDQUOT  no room: the pool's pages are in use; gpool_lora_last_error() states the required number. Or the
 *                     adapters in use leave no room within hot_bytes and hot_adapters. Release an adapter and try again
 *   -EINVAL     the files have changed, or a weight is not finite; gpool_lora_last_error() returns the details. Or
 *               timeout_ms is below -1
 *   -EBUSY      the adapter is acquired in this process and was unloaded by another engine: release it first; or queued
 *               GPU work uses its former addresses
 *   -EACCES, -EPERM  the tenant may not use the adapter: gpool_lora_restrict(), or the key adapters of the tenant; or
 *               the files cannot be read
 *   -ENOENT     no such adapter, or its files are missing
 *   -EIO        a file cannot be read, or the GPU driver failed
 *   -EINTR      gpool_wait_check() ended the wait
 *   -ENOMEM, -EPIPE, -ECHILD
 *
 * Threads: any. Cost: a lock and a pin if the adapter is resident and mapped in this process [adapter_acquire]; one
 * request to the agent and a mapping if another engine has loaded it [adapter_shared_16mb]; otherwise its load
 * [adapter_warm_acquire_16mb, adapter_cold_16mb, adapter_peft_16mb]. This thread starts the load if timeout_ms is -1
 * and it has no gpool_wait_check(); otherwise a loader thread does. With the back end `host`, this thread also makes
 * parts of a load from host memory if timeout_ms is -1 or at least 10.
 */
GPOOL_API int gpool_lora_acquire(struct gpool_lora *lora, uint32_t id, int timeout_ms);

/*
 * gpool_lora_acquire_async() - acquire an adapter without waiting for its weights. The call allocates its pages; its
 * layers become ready in order, so that work on the first layers can begin during the load.
 *
 *	error = gpool_lora_acquire_async(lora, id, -1);
 *	for (layer = 0; !error && layer < layers; layer++) {
 *		error = gpool_lora_wait_layer(lora, id, layer, -1);
 *		...                                 queue the work of this layer, with gpool_lora_weights() of it
 *	}
 *	gpool_lora_release(lora, id, fence);        fence: recorded after all of that work, even after an error
 *
 * gpool_lora_release() ends this acquisition like any other, even before all layers are ready. The adapter is shared
 * with other engines when all acquisitions that began during the load have been released and their fences are signaled.
 * Until then, other engines load their own copies; the first copy that is shared remains.
 *
 * @timeout_ms: longest wait for its pages, milliseconds; 0: do not wait, -1: no limit
 *
 * Return: as gpool_lora_acquire(). If a load fails after it has begun, its error is returned until all acquisitions are
 * released.
 * Threads: any. Cost: as gpool_lora_acquire(), without the load.
 */
GPOOL_API int gpool_lora_acquire_async(struct gpool_lora *lora, uint32_t id, int timeout_ms);

/*
 * gpool_lora_wait_layer() - wait until a layer of an acquired adapter and all layers before it are ready.
 *
 * @layer: number of a layer of the model. A layer without a module, or after the adapter's last layer, is ready with
 *         the layers before it. -1: the whole adapter, including modules outside all layers, which are loaded last
 *
 * This thread takes part in the load, as in gpool_lora_acquire().
 *
 * Return: 0, -EAGAIN (timeout_ms was 0), -ETIMEDOUT, -EINTR, -EINVAL (not acquired; layer or timeout_ms below -1),
 * -ENOENT, -ECHILD, or the error of the load (gpool_lora_last_error()). Threads: any. Cost: a lock if the layer is
 * ready.
 */
GPOOL_API int gpool_lora_wait_layer(struct gpool_lora *lora, uint32_t id, int32_t layer, int timeout_ms);

/*
 * gpool_lora_prefetch() - start the load of an adapter that is not resident. It may be evicted before it is acquired.
 *
 * Return: 0, -ENOENT, -ECHILD. Errors of the load are returned by gpool_lora_acquire(). Threads: any. Cost: a lock; a
 * loader thread loads the adapter.
 */
GPOOL_API int gpool_lora_prefetch(struct gpool_lora *lora, uint32_t id);

/*
 * gpool_lora_release() - end an acquisition. The call does not wait.
 *
 * @fence: GPOOL_FENCE_NONE: at once; otherwise when the fence is signaled
 *
 * Return: 0, -EINVAL (not acquired, not a fence of this session), -ENOENT, -ENOMEM (it remains acquired), -ECHILD.
 * Threads: any. Cost: a lock, and as gpool_object_unpin_after().
 */
GPOOL_API int gpool_lora_release(struct gpool_lora *lora, uint32_t id, struct gpool_fence fence);

/*
 * gpool_lora_unload() - remove an adapter from the pool for all engines. Its copies remain.
 *
 * If another engine has acquired it, its last release removes it.
 *
 * Return: 0, -EBUSY (acquired in this process, being loaded, or just released after gpool_lora_acquire_async()),
 * -ENOENT (no such adapter), -EPERM, -ETIMEDOUT, -EPIPE, -ECHILD. Threads: any. Cost: a request to the agent if the
 * adapter is resident; the calls of other threads for the adapters wait for it.
 */
GPOOL_API int gpool_lora_unload(struct gpool_lora *lora, uint32_t id);

/*
 * gpool_lora_last_error() - describe the failure of an adapter's last load.
 *
 * @why: [GPOOL_LORA_REASON_BYTES] receives one line; empty if the load did not fail
 *
 * Return: 0, -ENOENT, -ECHILD. Threads: any. Cost: a lock.
 */
GPOOL_API int gpool_lora_last_error(struct gpool_lora *lora, uint32_t id, char *why);

/*
 * The addresses of a matrix's tiles, as kernels read them (cuda/kernels/lora.h). A tile has 128 columns of all ranks,
 * [rank][128], 256 bytes per row. A value.
 */
struct gpool_lora_matrix {
	uint64_t first; /* device address of the first tiles, which are adjacent */
	/* device address of uint64_t[] with the addresses of further runs of tiles; 0: no further runs */
	uint64_t more;
	uint32_t head_tiles; /* number of tiles at `first` */
	uint32_t run_tiles;  /* number of tiles in each further run; the last run may have fewer */
};

/* An adapter's weights in one layer and target, as kernels read them. A value. */
struct gpool_lora_weights {
	struct gpool_lora_matrix a; /* rank x in */
	struct gpool_lora_matrix b; /* its transpose: rank x out */
	uint32_t rank;
	float scale;
	uint64_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_lora_weights, 64);

/*
 * gpool_lora_weights() - return the addresses of an acquired adapter's weights, valid until it is released.
 *
 * @layer:  number of the layer; -1: modules outside all layers
 * @target: path of the module with a star for the layer, "model.layers.*.self_attn.q_proj"
 *
 * Return: 0, -ENOENT (no module there, or no such adapter), -EAGAIN (the layer is not ready: gpool_lora_wait_layer()),
 * -EINVAL (not acquired), -ECHILD. Cost: two binary searches.
 */
GPOOL_API int gpool_lora_weights(
	struct gpool_lora *lora, uint32_t id, int32_t layer, const char *target, struct gpool_lora_weights *weights);

enum gpool_lora_state { GPOOL_LORA_COLD = 0, GPOOL_LORA_LOADING = 1, GPOOL_LORA_RESIDENT = 2 };

/* The fastest tier that contains an adapter now. */
enum gpool_lora_tier {
	GPOOL_LORA_TIER_COLD = 0, /* only files, or the content of gpool_lora_register_buffer() */
	GPOOL_LORA_TIER_WARM = 1, /* a copy in the warm pool */
	GPOOL_LORA_TIER_HOT = 2   /* the pool, complete */
};

/* The activity of an adapter in this process. */
enum gpool_lora_activity {
	GPOOL_LORA_ABSENT = 0, /* not in the pool */
	GPOOL_LORA_QUEUED = 1, /* waits for a loader thread */
	GPOOL_LORA_IN_LOAD = 2,
	GPOOL_LORA_IDLE = 3,   /* in the pool; may be evicted unless another engine has acquired it */
	GPOOL_LORA_ACTIVE = 4, /* acquired, or released with a fence that is not signaled */
	/* active, but evicted or unloaded by another engine: its pages are freed after the last release */
	GPOOL_LORA_EVICTING = 5
};

struct gpool_lora_info {
	uint32_t size;     /* sizeof(struct gpool_lora_info), set by the caller */
	uint32_t state;    /* enum gpool_lora_state; RESIDENT: in the pool at its last access */
	uint32_t acquired; /* acquisitions in this process */
	uint32_t rank_max;
	uint32_t modules, layers;
	uint32_t pages;   /* 0: not RESIDENT */
	uint32_t element; /* GPOOL_LORA_F16 or _BF16; 0: not RESIDENT */
	uint64_t hits;    /* acquisitions without a load */
	uint64_t loads;   /* loads that were published */
	uint64_t shared;  /* acquisitions of an adapter that another engine had loaded */
	uint64_t lost;    /* evictions that were detected at a later use */
	char name[128];
	uint64_t from_warm;  /* loads from a copy in host memory */
	uint64_t from_cold;  /* loads from cache_dir; other loads are from PEFT's files */
	uint64_t rebalanced; /* loads in advance (rebalance_ms) */
	uint32_t tier;       /* enum gpool_lora_tier. Copies in a warm pool are known from the first load on */
	uint32_t activity;   /* enum gpool_lora_activity */
	/*
	 * time of the last acquisition in this process, wall clock, milliseconds since 1970, accurate to 100 ms; 0:
	 * never. After 49 days without an acquisition, the value is too high by multiples of 49 days
	 */
	uint64_t used_ms;
	uint64_t served;  /* gpool_lora_acquire() and gpool_lora_acquire_async(), and finished requests of schedulers */
	uint32_t targets; /* number of names of gpool_lora_target_name() */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_lora_info, 248);

/*
 * gpool_lora_info() - describe an adapter.
 *
 * Return: 0, -ENOENT, -EINVAL (size), -ECHILD. Threads: any. Cost: a lock, and a lookup in the table of the warm pool.
 */
GPOOL_API int gpool_lora_info(struct gpool_lora *lora, uint32_t id, struct gpool_lora_info *info);

enum { GPOOL_LORA_TARGET_BYTES = 1024 };

/*
 * gpool_lora_target_name() - return the name of a target of an adapter, as in gpool_lora_weights().
 *
 * @index: 0 .. targets - 1 (struct gpool_lora_info), in the order of the names
 * @name:  [GPOOL_LORA_TARGET_BYTES]
 *
 * Return: 0, -ENOENT (no such adapter or target), -ECHILD. Threads: any. Cost: a lock.
 */
GPOOL_API int gpool_lora_target_name(struct gpool_lora *lora, uint32_t id, uint32_t index, char *name);

/* Statistics of all adapters of this process; counters include unregistered adapters. */
struct gpool_lora_stats {
	uint32_t size;       /* sizeof(struct gpool_lora_stats), set by the caller */
	uint32_t registered; /* adapters */
	uint32_t resident;   /* in the pool at their last access */
	uint32_t active;     /* acquired */
	uint64_t hits, loads, shared, lost, from_warm, from_cold; /* as in struct gpool_lora_info */
	uint64_t hot_bytes;                                       /* pages of resident adapters */
	uint64_t warm_bytes;                                      /* of all copies in the warm pool, of all engines */
	uint64_t cold_bytes;                                      /* of all copies in cache_dir, of all engines */
	uint64_t warm_made;                                       /* copies stored in the warm pool */
	uint64_t warm_full;                                       /* copies that were not stored, for lack of room */
	uint64_t refused;                                         /* damaged copies, which were not used */
	uint64_t rebalanced;                                      /* as in struct gpool_lora_info */
	/*
	 * adapters, and copies in the warm pool, of all engines, that the agent has evicted since the pool was made;
	 * without adapters that are only in shared pages (GPOOL_LORA_SHARE_PAGES)
	 */
	uint64_t hot_evictions, warm_evictions;
	/* pages of adapters of all engines of the trust domain in the pool, except the shared pages of other sets */
	uint64_t hot_all_bytes;
	/* sizes of the pools, and of the file system of cache_dir without the space that other files use; 0: no tier */
	uint64_t hot_limit_bytes, warm_limit_bytes, cold_limit_bytes;
	/* hot_all_bytes, warm_bytes and cold_bytes as shares of these, from 0 to 1 */
	float hot_utilization, warm_utilization, cold_utilization;
	float reserved;
	uint64_t evicted; /* adapters that this set has evicted because of hot_bytes or hot_adapters */
	uint64_t dropped; /* copies that this set has deleted because of warm_bytes or warm_adapters */
};
GPOOL_ASSERT_SIZE(gpool_lora_stats, 200);

/*
 * gpool_lora_stats() - read the counters of a set of adapters.
 *
 * Return: 0, -EINVAL (size), -ECHILD. Cost: proportional to the number of adapters, objects of both pools and files in
 * cache_dir.
 */
GPOOL_API int gpool_lora_stats(struct gpool_lora *lora, struct gpool_lora_stats *stats);

/* ---- batches ---- */

/*
 * In a step of an engine, a batch adds the outputs of adapters to the outputs of the model's layers. Each token may
 * have its own adapter, of any rank:
 *
 *	y[token] += scale * (x[token] A^T) B^T        A, B, scale: of the token's adapter, in this layer and target
 *
 *	gpool_lora_batch_set(batch, adapters, tokens, why);              once for a step
 *	gpool_lora_batch_apply(batch, layer, target, x, ..., stream);    after each projection: two kernels in total
 *
 * All addresses remain the same, so the kernels may be captured into a graph. Launched after a call of
 * gpool_lora_batch_set(), the graph adds the outputs for the tokens of that call, or nothing if it had no tokens. The
 * result for a token is bit-identical for all combinations with other tokens.
 *
 * Threads: one at a time for each batch. Streams: options.stream orders the work. If the batch is applied, or graphs
 * are launched, on another stream, this stream must wait for options.stream after gpool_lora_batch_set(), and
 * options.stream must wait for this stream before the next gpool_lora_batch_set().
 */
struct gpool_lora_batch;

#define GPOOL_LORA_NONE UINT32_MAX /* the adapter of tokens without one */

/* A projection of the model. */
struct gpool_lora_target {
	/* path with a star for the layer, "model.layers.*.self_attn.q_proj"; without a star outside all layers */
	const char *name;
	uint32_t in, out; /* features of x and y */
};

struct gpool_lora_batch_options {
	uint32_t size;         /* sizeof(struct gpool_lora_batch_options); GPOOL_LORA_BATCH_OPTIONS_INIT sets it */
	uint32_t flags;        /* 0 */
	uint32_t stream;       /* stream that orders all work; open, not host-signaled */
	uint32_t element;      /* enum gpool_lora_element of x, y and the weights: fp16 or bf16 */
	uint32_t tokens_max;   /* maximum in a step, 1..2^20. Above 1,024, kernels suit prefill and need more memory */
	uint32_t adapters_max; /* different adapters in a step, at most 1,024; 0: 32 */
	uint32_t rank_max;     /* maximum of any module, at most 128; 0: 128. Kernels are faster with 64, 32 or 16 */
	uint32_t layers;       /* layers of the model, at most 4,096 */
	const struct gpool_lora_target *targets; /* [target_count], each name once; copied */
	uint32_t target_count;                   /* the sum of the targets' layers is at most 65,536 */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_lora_batch_options, 48);
#define GPOOL_LORA_BATCH_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_lora_batch_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_lora_batch_create() - create a batch without tokens.
 *
 * @batch: receives the batch; call gpool_lora_batch_destroy() before gpool_lora_destroy()
 *
 * Return: 0, or
 *   -EINVAL      a number out of range; a target without name, features or layers; a target that occurs twice; an
 *                unknown flag; a stream that is not open, or host-signaled
 *   -EOPNOTSUPP  gpool was built without kernels for this GPU
 *   -ENOSPC, -EDQUOT, -EPIPE  as gpool_alloc()
 *   -EIO, -ENODEV  the GPU driver failed
 *   -E2BIG, -ENOMEM, -ECHILD
 *
 * Cost: pinned pages of the pool, for about 5 bytes per token, 16 bytes per adapter (adapters_max), 64 bytes per layer,
 * target and adapter, and the sums that one kernel passes to the next: 4 bytes per token and rank, and 32 more per
 * token and rank for up to 1,024 tokens. Also host memory of twice the size of the first three. The call loads the
 * kernels, so that none is loaded during a capture.
 */
GPOOL_API int gpool_lora_batch_create(
	struct gpool_lora *lora, const struct gpool_lora_batch_options *options, struct gpool_lora_batch **batch);

/*
 * gpool_lora_batch_destroy() - wait for the work on a batch's stream, release its adapters and destroy it. NULL is
 * permitted.
 *
 * Return: 0, or an error after which the batch remains: -EIO, -ENODEV (the GPU driver failed), -EINTR
 * (gpool_wait_check() ended the wait), -ECHILD. Cost: the wait for the stream.
 */
GPOOL_API int gpool_lora_batch_destroy(struct gpool_lora_batch *batch);

/*
 * gpool_lora_batch_set() - set the adapter of each token of the next step, after the work that is queued on the batch's
 * stream.
 *
 * @adapters: [tokens] numbers of acquired adapters, in any order, or GPOOL_LORA_NONE
 * @tokens:   number of tokens, up to tokens_max; 0 releases the adapters of the batch
 * @why:      [GPOOL_LORA_REASON_BYTES] receives one line with the reason of a refusal; may be NULL
 *
 * The batch itself acquires its adapters until the next call, which releases them after the work that is queued on the
 * stream at that time. The caller may therefore release them directly after this call. Every module of an adapter must
 * have a layer and target of the same shape in the batch, because an adapter without one of its modules would compute
 * other outputs. After a failure other than -EIO, the previous call remains in effect.
 *
 * Return: 0, or
 *   -EINVAL  more tokens, adapters or ranks than the batch permits; an adapter that is not acquired, has modules of
 *            another shape or without a target in the batch, or has weights of another type
 *   -ENOENT  no adapter with that number
 *   -EBUSY   an adapter was unloaded by another engine
 *   -EINTR   gpool_wait_check() ended the wait for the copies
 *   -EIO     the data on the device may be a mixture of two calls. Until a call succeeds, no graph may be launched and
 *            gpool_lora_batch_apply() fails
 *   -ENOMEM, -ECHILD
 *
 * Cost: a sort of the tokens; two driver calls, a copy of 20 bytes for each of tokens_max, and a fence. For each
 * adapter that is new in the batch, or that was loaded to other pages after its last use in the batch, the call builds
 * a table of all layers and targets. Adjacent tables are copied together; modules are not copied one by one
 * [lora_batch_set_32, lora_batch_new_32]. An adapter of the previous call that is still in the pool costs a pin. The
 * call waits if the copies of the call before the last are not done.
 */
GPOOL_API int gpool_lora_batch_set(
	struct gpool_lora_batch *batch, const uint32_t *adapters, uint32_t tokens, char *why);

/*
 * gpool_lora_batch_apply() - add the outputs of the tokens' adapters in one layer and target to y, on a stream.
 * Adapters without a module there add nothing.
 *
 * @layer:    0 .. layers - 1; -1: for a target without a star
 * @target:   index in options.targets
 * @x, @y:    device addresses of [tokens] rows, multiples of 16 bytes; x and y do not overlap
 * @x_stride, @y_stride: elements from one row to the next, multiples of 8, at least the target's in and out
 * @stream:   the batch's stream, or a stream that is ordered with it
 *
 * Return: 0, or
 *   -EINVAL  no such layer or target; a stream that is not open, or host-signaled; an invalid address or stride, which
 *            gpool_last_error() reports
 *   -EIO     the last gpool_lora_batch_set() failed with -EIO, or the GPU driver failed
 *   -ENOMEM, -ECHILD
 *
 * Cost: two kernel launches [lora_batch_apply], and no allocation, copy, fence or wait. The kernels read the batch when
 * they run.
 */
GPOOL_API int gpool_lora_batch_apply(struct gpool_lora_batch *batch, int32_t layer, uint32_t target, uint64_t x,
	uint32_t x_stride, uint64_t y, uint32_t y_stride, uint32_t stream);

/* ---- scheduler ---- */

/*
 * A scheduler holds the waiting requests of an engine and selects, before each step, the requests that start. Requests
 * whose adapter is resident start first, in order of arrival, so that steps do not wait for adapters. Meanwhile the
 * scheduler loads the adapters of the next requests and prefetches those of later requests. A started request keeps its
 * adapter acquired until it is finished.
 *
 *	gpool_lora_scheduler_add(scheduler, adapter, tokens, &request);          as requests arrive, by any thread
 *
 *	gpool_lora_scheduler_schedule(scheduler, running ? 0 : -1, &schedule);   before each step
 *	gpool_lora_batch_set(batch, adapters_of_running_requests, tokens, why);
 *	...                                                                      the step
 *	gpool_lora_scheduler_finish(scheduler, request, GPOOL_FENCE_NONE);       for each request that has ended; the
 *	                                                                         batch still has its adapter acquired
 *
 * A step consists of the running and the starting requests: at most batch_requests requests, batch_adapters adapters,
 * and batch_tokens tokens. The tokens are the prompts of the starting requests and one token for each running request.
 * A prompt longer than batch_tokens starts when no other request starts.
 *
 * Bound: a request is bypassed when a request that arrived later starts. A request is bypassed only during the
 * max_bypass_ms after the first bypass; afterwards it waits only for earlier requests, its adapter and room in the
 * batch. If the pool has no room for the adapter, the request waits until pages are released.
 *
 * Threads: any. Memory: 48 bytes for each of `requests`, and 80 bytes for each adapter number up to the highest one,
 * rounded up to a power of two.
 */
struct gpool_lora_scheduler;

enum { GPOOL_LORA_BATCH_REQUESTS_MAX = 256 };

struct gpool_lora_scheduler_options {
	/* sizeof(struct gpool_lora_scheduler_options); GPOOL_LORA_SCHEDULER_OPTIONS_INIT sets it */
	uint32_t size;
	uint32_t flags;          /* 0 */
	uint32_t requests;       /* maximum of waiting and running requests, at most 2^20; 0: 4096 */
	uint32_t batch_requests; /* at most 256; 0: 256 */
	uint32_t batch_adapters; /* different adapters in a step; 0: 32 */
	uint32_t batch_tokens;   /* 0: 8192 */
	/* number of requests after the next ones whose adapters are prefetched, at most 64; 0: 10 */
	uint32_t look_ahead;
	uint32_t max_bypass_ms; /* 0: 2000 */
};
GPOOL_ASSERT_SIZE(gpool_lora_scheduler_options, 32);
#define GPOOL_LORA_SCHEDULER_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_lora_scheduler_options), 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_lora_scheduler_create() - create a scheduler without requests.
 *
 * @options:   NULL: the defaults
 * @scheduler: receives the scheduler; call gpool_lora_scheduler_destroy() before gpool_lora_destroy()
 *
 * Return: 0, -EINVAL (an option out of range), -E2BIG, -ENOMEM, -ECHILD. Cost: allocates memory; no system call
 * otherwise.
 */
GPOOL_API int gpool_lora_scheduler_create(struct gpool_lora *lora, const struct gpool_lora_scheduler_options *options,
	struct gpool_lora_scheduler **scheduler);

/*
 * gpool_lora_scheduler_destroy() - destroy a scheduler. NULL is permitted.
 *
 * The work of its running requests must be done. Return: 0, -ECHILD. Threads: no other thread may be in a call for the
 * scheduler.
 */
GPOOL_API int gpool_lora_scheduler_destroy(struct gpool_lora_scheduler *scheduler);

/*
 * gpool_lora_scheduler_add() - add a request at the end of the queue.
 *
 * @adapter: number of its adapter, which must not be unregistered before the request has ended; or GPOOL_LORA_NONE
 * @tokens:  number of tokens of its prompt
 * @request: receives its number, below options.requests, until it is finished or removed
 *
 * Return: 0, -ENOENT (no such adapter), -ENOSPC (the maximum of `requests` is reached), -ENOMEM, -ECHILD. Cost: two
 * locks; the first waiting request of an adapter also prefetches the adapter.
 */
GPOOL_API int gpool_lora_scheduler_add(
	struct gpool_lora_scheduler *scheduler, uint32_t adapter, uint32_t tokens, uint32_t *request);

/*
 * gpool_lora_scheduler_remove() - remove a waiting or failed request.
 *
 * Return: 0, -ENOENT (no such request, or it is running), -ECHILD. Cost: two locks.
 */
GPOOL_API int gpool_lora_scheduler_remove(struct gpool_lora_scheduler *scheduler, uint32_t request);

/*
 * gpool_lora_scheduler_finish() - end a running request. The last request of an adapter releases the adapter.
 *
 * @fence: as in gpool_lora_release(). GPOOL_FENCE_NONE is sufficient with a batch, which acquires its adapters itself
 *         (gpool_lora_batch_set())
 *
 * Return: 0, -ENOENT (it is not running), -EINVAL (not a fence of this session), -ENOMEM (it is still running),
 * -ECHILD. Cost: two locks; the last request of an adapter also as gpool_lora_release().
 */
GPOOL_API int gpool_lora_scheduler_finish(
	struct gpool_lora_scheduler *scheduler, uint32_t request, struct gpool_fence fence);

struct gpool_lora_schedule {
	uint32_t size; /* sizeof(struct gpool_lora_schedule), set by the caller */
	uint32_t start_count, failed_count;
	uint32_t adapters; /* different adapters in the step, with those of running requests */
	uint32_t awaited;  /* adapters that are being loaded for the next requests */
	uint32_t starts[GPOOL_LORA_BATCH_REQUESTS_MAX]; /* requests that start */
	uint32_t failed[GPOOL_LORA_BATCH_REQUESTS_MAX]; /* requests whose adapter cannot be loaded; remove them */
	/* errors of the failed requests, as for gpool_lora_acquire(); gpool_lora_last_error() returns the texts */
	int32_t errors[GPOOL_LORA_BATCH_REQUESTS_MAX];
};
GPOOL_ASSERT_SIZE(gpool_lora_schedule, 3092);

/*
 * gpool_lora_scheduler_schedule() - select the requests of the next step.
 *
 * @timeout_ms: longest wait until a request starts or fails, milliseconds; 0: do not wait, for engines with running
 *              requests; -1: no limit
 * @schedule:   receives the result; the caller sets its size
 *
 * Each call retries loads that failed for lack of room, or because the agent was not running, at most every 10 ms.
 *
 * Return: the number of requests that start, or -EINVAL (timeout_ms, size smaller than the struct), -ECHILD. Cost:
 * proportional to the number of waiting requests; a lock and a pin for each of their adapters.
 */
GPOOL_API int gpool_lora_scheduler_schedule(
	struct gpool_lora_scheduler *scheduler, int timeout_ms, struct gpool_lora_schedule *schedule);

/*
 * gpool_lora_scheduler_queue() - list waiting requests in the order in which they should start, for engines that form
 * their batches, acquire adapters and remove requests themselves.
 *
 * @requests: [most] receives the numbers: overdue requests first, then requests whose adapters are resident, then those
 *            whose adapters are being loaded, then the others, each group in order of arrival
 *
 * Return: the number of requests in `requests`, or -ECHILD. Cost: four passes over the waiting requests; a lock and a
 * pin for each of their adapters.
 */
GPOOL_API int gpool_lora_scheduler_queue(struct gpool_lora_scheduler *scheduler, uint32_t *requests, uint32_t most);

struct gpool_lora_scheduler_stats {
	uint32_t size; /* sizeof(struct gpool_lora_scheduler_stats), set by the caller */
	uint32_t waiting, running, awaited;
	uint64_t batches; /* steps that started a request */
	uint64_t added, started, finished, removed, failed;
	uint64_t cold_starts; /* requests that were next before their adapter was resident */
	uint64_t bypassed;    /* requests that were bypassed */
	uint64_t overdue;     /* requests that were started after max_bypass_ms */
	uint64_t longest_bypass_us, longest_wait_us;
};
GPOOL_ASSERT_SIZE(gpool_lora_scheduler_stats, 104);

/* gpool_lora_scheduler_stats() - read a scheduler's counters. Return: 0, -EINVAL (size), -ECHILD. Cost: a lock. */
GPOOL_API int gpool_lora_scheduler_stats(
	struct gpool_lora_scheduler *scheduler, struct gpool_lora_scheduler_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
