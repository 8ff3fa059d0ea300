/* lora.h - LoRA adapters, batches of them, and the scheduler. */
#ifndef GPOOL_LORA_H
#define GPOOL_LORA_H

#include "stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- adapters ---- */

/*
 * Adapters as PEFT writes them, packed into pages that all engines of a trust domain share: the first engine that needs
 * one loads it and publishes it as an object of class GPOOL_OBJECT_PINNABLE, the others map it. It stays in the pool
 * while an engine has acquired it, and after that until its pages are needed; acquiring it again meanwhile is a lookup
 * and a pin. Ranks are not padded to a common one; the rest of an adapter's last page is unused.
 *
 * Files of adapters are read by this process, with its own rights, and checked to the letter; the agent never sees
 * them.
 */
struct gpool_lora; /* the adapters of a process on one pool */

enum gpool_lora_element {
	GPOOL_LORA_AS_FILE = 0, /* fp16 where the file has nothing else, else bf16 */
	GPOOL_LORA_F16 = 1,
	GPOOL_LORA_BF16 = 2
};

enum {
	/*
	 * In cache_dir and warm, one of which has to be there, adapters are kept in int8 if that costs their outputs
	 * no more than 1.5 % (one scale for 128 columns): half the disk, half the host memory, half the time to read.
	 * What is in the pool is
	 * what int8 makes of the weights then, from the first load on, so that it is the same bits wherever it comes
	 * from; the first load of an adapter measures what it would cost. Without the flag, and for adapters that would
	 * lose more, weights are those of the files, bit by bit.
	 */
	GPOOL_LORA_INT8 = 1u << 0,
	/* Adapters are shared among engines of one tenant alone; else among those of a trust domain. */
	GPOOL_LORA_PRIVATE = 1u << 1,
};

struct gpool_lora_options {
	uint32_t size;    /* sizeof(struct gpool_lora_options); GPOOL_LORA_OPTIONS_INIT sets it */
	uint32_t flags;   /* GPOOL_LORA_INT8, GPOOL_LORA_PRIVATE; an unknown bit is -EINVAL */
	uint32_t element; /* enum gpool_lora_element: what weights become */
	/* threads that load adapters, several of them one where they are idle; 0: 4, at most 64 */
	uint32_t load_threads;
	const char *cache_dir; /* where loaded adapters are kept, ready to be loaded again; exists. NULL: nowhere */
	uint64_t salt[2];      /* who does not know it does not find them; engines that share have the same */
	/*
	 * A pool of the back end `host`, in which copies of loaded adapters are shared by all engines that have it:
	 * named objects, which leave as others do (gpool_object_pin()). The caller's, and open until
	 * gpool_lora_destroy(). NULL: no such copies.
	 */
	struct gpool *warm;
	/*
	 * What was acquired twice in the last minute, and has left the pool for others, is loaded again before somebody
	 * asks for it, when no loader has anything else to do: if that displaces nothing, an eighth of the pool stays
	 * free, and the pressure is low. The most used one comes first; at most one in so many milliseconds. One that
	 * has come back like that, or was unloaded, is not brought back again before it was acquired anew. 0: 10,000;
	 * UINT32_MAX: never.
	 */
	uint32_t rebalance_ms;
	uint32_t reserved; /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_lora_options, 56);
#define GPOOL_LORA_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_lora_options), 0, 0, 0, 0, {0, 0}, 0, 0, 0 \
	}

enum { GPOOL_LORA_REASON_BYTES = 256 };

/*
 * gpool_lora_create() - no adapter yet. It ends with gpool_lora_destroy(), before the pool's handle.
 * Return: 0, -EINVAL (also GPOOL_LORA_INT8 without cache_dir and warm; warm that the CPU cannot read, or an
 * observer's), -E2BIG, -ENOENT or what else cache_dir says, -EPERM (an observer), -EUSERS (streams), -ENOMEM, -EIO,
 * -ECHILD.
 */
GPOOL_API int gpool_lora_create(struct gpool *pool, const struct gpool_lora_options *options, struct gpool_lora **lora);
/*
 * gpool_lora_destroy() - gives up loads that are under way, and copies. No other thread is in a call for it. NULL is
 * fine. -EBUSY: an adapter is acquired, or was released behind a fence that is not reached; a batch or a scheduler is
 * open; -ECHILD.
 */
GPOOL_API int gpool_lora_destroy(struct gpool_lora *lora);

/*
 * gpool_lora_register() - make an adapter known by a name of the program's own. Headers are read, no weights.
 *
 * @name:   1 to 127 bytes
 * @folder: PEFT's, with adapter_config.json and adapter_model.safetensors, which stay as they are while it is
 * registered
 * @id:     receives its number, from 0 on; numbers of adapters that were unregistered are given again
 * @why:    [GPOOL_LORA_REASON_BYTES] receives why it is refused, as a line; may be NULL
 *
 * Return: 0, or
 *   -EINVAL  the files are not what they have to be, as *why says; name
 *   -EEXIST  the name is taken
 *   -ENOENT, -EACCES, -EIO, -ENOMEM, -EMFILE, -ECHILD
 *
 * Threads: any. Cost: reads and parses the two headers, so the time grows with the number of modules
 * [adapter_register_10000, adapter_register_32_layers: 42 and 224 modules].
 */
GPOOL_API int gpool_lora_register(
	struct gpool_lora *lora, const char *name, const char *folder, uint32_t *id, char *why);
/* gpool_lora_find() - the number of a name: 0, -ENOENT, -ECHILD. */
GPOOL_API int gpool_lora_find(struct gpool_lora *lora, const char *name, uint32_t *id);
/*
 * gpool_lora_unregister() - 0, -EBUSY (acquired, being loaded, requested of a scheduler, or queued work uses its
 * addresses), -ENOENT, -ECHILD. Its pages, and copies of it, stay until their room is needed.
 */
GPOOL_API int gpool_lora_unregister(struct gpool_lora *lora, uint32_t id);

/*
 * gpool_lora_acquire() - make the adapter resident and pin it. Calls nest: release it once per acquisition.
 *
 * @timeout_ms: longest wait for its load, milliseconds; 0: begin it and do not wait, -1: no limit
 *
 * Return: 0, or
 *   -EAGAIN     timeout_ms was 0, and it is being loaded
 *   -ETIMEDOUT  it is still being loaded
 *   -ENOSPC, -EDQUOT  no room: what is in the pool is in use; gpool_lora_last_error() says what it needs. Release one
 *                     and try again
 *   -EINVAL     its files are not any more what they were, or a weight is no number; gpool_lora_last_error()
 *   -EBUSY      it is acquired here, and somebody has unloaded it: release it first. Or queued work uses addresses that
 *               it had
 *   -ENOENT     no such adapter, or its files are gone
 *   -EIO, -ENOMEM, -EPIPE, -ECHILD
 *
 * Threads: any. Cost: where it is in the pool and mapped here, a lock and a pin [adapter_acquire]; where another engine
 * has it in the pool, one question to the agent and its mapping [adapter_shared_16mb]; else its load
 * [adapter_warm_acquire_16mb, adapter_cold_16mb, adapter_peft_16mb]. On the back end `host` this thread takes part in a
 * load from host memory: it begins it, if timeout_ms is -1, and makes parts of it, if it has 10 ms or more.
 */
GPOOL_API int gpool_lora_acquire(struct gpool_lora *lora, uint32_t id, int timeout_ms);

/*
 * gpool_lora_acquire_async() - as gpool_lora_acquire(), and does not wait for the weights: the adapter has its place,
 * and layers come there one after the other, while the first ones are used. gpool_lora_release() ends it as it ends any
 * acquire, also before all has come.
 *
 *	error = gpool_lora_acquire_async(lora, id, -1);
 *	for (layer = 0; !error && layer < layers; layer++) {
 *		error = gpool_lora_wait_layer(lora, id, layer, -1);
 *		...                                 queue the work of this layer, with gpool_lora_weights() of it
 *	}
 *	gpool_lora_release(lora, id, fence);        behind all of that work, whatever came of it
 *
 * It is shared with other engines when all who have begun it here have released it, and the work behind their fences is
 * done. Until then others load one of their own; of two the first that is shared stays.
 *
 * @timeout_ms: longest wait for its place, milliseconds; 0: do not wait, -1: no limit
 *
 * Return: as gpool_lora_acquire(). Where a load has failed in the middle of it: why, until all who have begun it have
 * released it.
 * Threads: any. Cost: as gpool_lora_acquire(), without the load.
 */
GPOOL_API int gpool_lora_acquire_async(struct gpool_lora *lora, uint32_t id, int timeout_ms);
/*
 * gpool_lora_wait_layer() - until that layer of an adapter that is begun or acquired is there; with it are all before
 * it. @layer: its number, also of one in which it has nothing; -1: all of it, with the modules outside of all layers,
 * which come last This thread takes part in the load as in gpool_lora_acquire().
 * Return: 0, -EAGAIN (timeout_ms was 0), -ETIMEDOUT, -EINVAL (not acquired), -ENOENT, -ECHILD, or why its load has
 * failed: gpool_lora_last_error(). Threads: any.
 */
GPOOL_API int gpool_lora_wait_layer(struct gpool_lora *lora, uint32_t id, int32_t layer, int timeout_ms);
/*
 * gpool_lora_prefetch() - begin to load it, if need be: 0, -ENOENT, -ECHILD. It may leave again before it is acquired.
 */
GPOOL_API int gpool_lora_prefetch(struct gpool_lora *lora, uint32_t id);
/*
 * gpool_lora_release() - fence NULL: at once; else when it is reached, without waiting. Return: 0, -EINVAL (not
 * acquired, no such fence), -ENOENT, -ENOMEM (it stays acquired), -ECHILD.
 */
GPOOL_API int gpool_lora_release(struct gpool_lora *lora, uint32_t id, struct gpool_fence fence);
/*
 * gpool_lora_unload() - out of the pool, for all engines; copies stay: 0; -EBUSY: acquired here, or coming, or just
 * released after gpool_lora_acquire_async(), or elsewhere, where it goes with its last use; -ENOENT, -EPERM, -ECHILD.
 */
GPOOL_API int gpool_lora_unload(struct gpool_lora *lora, uint32_t id);
/*
 * gpool_lora_last_error() - why its last load failed, as a line: why[GPOOL_LORA_REASON_BYTES]; empty if it did not. 0,
 * -ENOENT, -ECHILD.
 */
GPOOL_API int gpool_lora_last_error(struct gpool_lora *lora, uint32_t id, char *why);

/*
 * Where the tiles of a matrix lie: what kernels take (cuda/kernels/lora.h). A tile is 128 columns of all ranks,
 * [rank][128], 256 bytes a row.
 */
struct gpool_lora_matrix {
	uint64_t first; /* device address of the first tiles, side by side */
	/* device address of uint64_t[]: where each further run of tiles begins; 0: there is none */
	uint64_t more;
	uint32_t head_tiles; /* how many lie at `first` */
	uint32_t run_tiles;  /* how many in each further run; the last may have fewer */
};

/* An adapter's part in one layer and target. */
struct gpool_lora_weights {
	struct gpool_lora_matrix a; /* rank x in */
	struct gpool_lora_matrix b; /* its transpose: rank x out */
	uint32_t rank;
	float scale;
	uint64_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_lora_weights, 64);

/*
 * gpool_lora_weights() - of an acquired adapter. Addresses are good until it is released.
 * @layer:  its number; -1: of modules outside of all layers
 * @target: "model.layers.*.self_attn.q_proj": the module's path with a star for the layer
 * Return: 0; -ENOENT: it has none there, or there is no such adapter; -EAGAIN: the layer is not there yet,
 * gpool_lora_wait_layer(); -EINVAL: not acquired; -ECHILD. Cost: two binary searches.
 */
GPOOL_API int gpool_lora_weights(
	struct gpool_lora *lora, uint32_t id, int32_t layer, const char *target, struct gpool_lora_weights *part);

enum gpool_lora_state { GPOOL_LORA_COLD = 0, GPOOL_LORA_LOADING = 1, GPOOL_LORA_RESIDENT = 2 };

struct gpool_lora_info {
	uint32_t size;     /* sizeof(struct gpool_lora_info), set by the caller */
	uint32_t state;    /* enum gpool_lora_state: HERE: it was in the pool when it was last looked at */
	uint32_t acquired; /* times, here */
	uint32_t rank_max;
	uint32_t modules, layers;
	uint32_t pages;
	uint32_t element; /* enum gpool_lora_element */
	uint64_t hits;    /* acquired without a load */
	uint64_t loads;   /* brought into the pool and published */
	uint64_t shared;  /* found in the pool, loaded by another engine */
	uint64_t lost;    /* found to have left the pool since its last use */
	char name[128];
	uint64_t from_warm;  /* of the loads: from a copy in host memory */
	uint64_t from_cold;  /* from one in cache_dir; the others are from PEFT's files */
	uint64_t rebalanced; /* of the loads: brought back before somebody asked for it */
};
GPOOL_ASSERT_SIZE(gpool_lora_info, 216);

/* gpool_lora_info() - 0, -ENOENT, -EINVAL (its size), -ECHILD. */
GPOOL_API int gpool_lora_info(struct gpool_lora *lora, uint32_t id, struct gpool_lora_info *info);

/* Of all adapters of this process together; counts include those that were unregistered. */
struct gpool_lora_stats {
	uint32_t size;       /* sizeof(struct gpool_lora_stats), set by the caller */
	uint32_t registered; /* adapters */
	uint32_t resident;   /* in the pool when they were last looked at */
	uint32_t active;     /* acquired */
	uint64_t hits, loads, shared, lost, from_warm, from_cold; /* as in struct gpool_lora_info */
	uint64_t hot_bytes;                                       /* pages of those that are resident */
	uint64_t warm_bytes; /* of all copies in the warm pool, whoever has made them */
	uint64_t cold_bytes; /* of all in cache_dir, likewise */
	uint64_t warm_made;  /* copies that were put into the warm pool */
	uint64_t warm_full;  /* that were not, since there was no room */
	uint64_t refused;    /* copies that were not what they should be, and were not taken */
	uint64_t rebalanced; /* as in struct gpool_lora_info */
};
GPOOL_ASSERT_SIZE(gpool_lora_stats, 120);

/*
 * gpool_lora_stats() - 0, -EINVAL (its size), -ECHILD. Cost: looks at each adapter, at each object of the warm pool and
 * at each file in cache_dir.
 */
GPOOL_API int gpool_lora_stats(struct gpool_lora *lora, struct gpool_lora_stats *stats);

/* ---- adapters in a batch ---- */

/*
 * What a step of an engine adds to the outputs of its layers, for tokens with different adapters of different ranks:
 *
 *	y[token] += scale * (x[token] A^T) B^T        A, B, scale: of the token's own adapter, in this layer and target
 *
 *	gpool_lora_batch_set(batch, adapters, tokens, why);              once for a step
 *	gpool_lora_batch_apply(batch, layer, target, x, ..., stream);    after each projection: two kernels, for all
 *	adapters
 *
 * Everything lies at addresses that stay. So apply may be captured into a graph, which is launched again after each
 * set: it adds what the tokens of that have, none if there are none. Results of a token do not depend on who else is in
 * the batch, to the bit.
 *
 * Threads: one at a time, for each batch. Streams: its work is in the order of options.stream. Who applies, or launches
 * graphs, on another one makes that wait for this one behind set, and this one for that before the next set: nothing
 * else protects what is being read.
 */
struct gpool_lora_batch;

#define GPOOL_LORA_NONE UINT32_MAX /* the adapter of tokens that have none */

/* A projection of the model. */
struct gpool_lora_target {
	/* "model.layers.*.self_attn.q_proj": with a star for the layer it is in all of them, without one outside */
	const char *name;
	uint32_t in, out; /* features of x and y */
};

struct gpool_lora_batch_options {
	uint32_t size;         /* sizeof(struct gpool_lora_batch_options); GPOOL_LORA_BATCH_OPTIONS_INIT sets it */
	uint32_t flags;        /* 0 */
	uint32_t stream;       /* in whose order all of it is; open, and not a manual one */
	uint32_t element;      /* enum gpool_lora_element, fp16 or bf16: of x, y and the weights */
	uint32_t tokens_max;   /* of a step, 1..2^20. Above 1,024 kernels need more room, and are made for prefill */
	uint32_t adapters_max; /* different ones in a step, at most 1,024; 0: 32 */
	uint32_t rank_max;     /* of any module, at most 128; 0: 128. Kernels are faster with 64, 32 or 16 */
	uint32_t layers;       /* of the model, at most 4,096 */
	const struct gpool_lora_target *targets; /* [target_count], each name once; copied */
	uint32_t target_count;                   /* 65,536 places at most: for each target its layers */
	uint32_t reserved;
};
GPOOL_ASSERT_SIZE(gpool_lora_batch_options, 48);
#define GPOOL_LORA_BATCH_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_lora_batch_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_lora_batch_create() - a batch without a token. It ends with gpool_lora_batch_destroy(), before `lora`.
 *
 * Return: 0, or
 *   -EINVAL      a number out of range; a target without name, features or layers, or twice; an unknown flag; no such
 *                stream, or a manual one
 *   -EOPNOTSUPP  gpool was built without kernels for this GPU
 *   -ENOSPC, -EDQUOT  as gpool_alloc()
 *   -E2BIG, -ENOMEM, -EIO, -ECHILD
 *
 * Cost: pages of the pool, pinned: 20 bytes for a token, 64 for a place of each of adapters_max, and the sums between
 * the kernels, 64 bytes a rank for each of up to 1,024 tokens and 4 for all; host memory for the first two, twice. The
 * kernels are loaded here and not in a capture.
 */
GPOOL_API int gpool_lora_batch_create(
	struct gpool_lora *lora, const struct gpool_lora_batch_options *options, struct gpool_lora_batch **batch);

/*
 * gpool_lora_batch_destroy() - waits for the work on its stream, and lets go of its adapters. NULL is fine. 0, -EIO,
 * -ECHILD.
 */
GPOOL_API int gpool_lora_batch_destroy(struct gpool_lora_batch *batch);

/*
 * gpool_lora_batch_set() - which adapter each token of the next step has, behind all that is queued on the batch's
 * stream.
 *
 * @adapters: [tokens] numbers of acquired adapters, in any order, or GPOOL_LORA_NONE
 * @tokens:   up to tokens_max; 0: none, which lets go of what the batch has
 * @why:      [GPOOL_LORA_REASON_BYTES] receives why it is refused, as a line; may be NULL
 *
 * The batch acquires its adapters once more, until the next set, and lets go of them behind what was queued on its
 * stream before that: they may be released at once after this call. Every module of an adapter must have its place in
 * the batch, in the same shape: one that was left out would make it another adapter. On failure, but for -EIO, all is
 * as it was, and the batch before is still the batch.
 *
 * Return: 0, or
 *   -EINVAL  more tokens, adapters or ranks than the batch takes; an adapter that is not acquired, has modules of
 *            another shape or without a place here, or weights of another type
 *   -ENOENT  no adapter of that number
 *   -EBUSY   somebody has unloaded an adapter
 *   -EIO     what is on the device may be of two batches: no graph may run, and apply refuses, until a set has
 *            succeeded
 *   -ENOMEM, -ECHILD
 *
 * Cost: sorts the tokens; two driver calls, a copy of 20 bytes for each of tokens_max and a fence. For an adapter that
 * is new in the batch, or has come to another place since, a table for all layers and targets is made, and those that
 * lie side by side are one copy
 * more: not one for each module [lora_batch_set_32, lora_batch_new_32]. While it stays in the pool an adapter that left
 * the batch and comes back costs a pin. Waits, where the copies of the set before the last are not done.
 */
GPOOL_API int gpool_lora_batch_set(
	struct gpool_lora_batch *batch, const uint32_t *adapters, uint32_t tokens, char *why);

/*
 * gpool_lora_batch_apply() - y += what the tokens' adapters add, in one layer and target; those without a module there
 * add nothing.
 *
 * @layer:    0 .. layers - 1; -1: of a target without a star
 * @target:   index in options.targets
 * @x, @y:    device addresses of [tokens] rows, multiples of 16 bytes, that do not overlap
 * @x_stride, @y_stride: elements from one row to the next, multiples of 8, at least the target's in, out
 * @stream:   the batch's, or what its order is kept with
 *
 * Return: 0, or
 *   -EINVAL  no such layer, target, stream, or a manual one; an address or a stride that is not as above, as the log
 *            says
 *   -EIO     the last set has failed so, or the back end
 *   -ENOMEM, -ECHILD
 *
 * Cost: two launches, nothing else [lora_batch_apply]: no allocation, copy, fence or wait. What the batch has is read
 * when they run.
 */
GPOOL_API int gpool_lora_batch_apply(struct gpool_lora_batch *batch, int32_t layer, uint32_t target, uint64_t x,
	uint32_t x_stride, uint64_t y, uint32_t y_stride, uint32_t stream);

/* ---- which requests start next ---- */

/*
 * The waiting requests of an engine. Before each step it asks which of them start: those whose adapter is in the pool
 * first, in order of arrival, so that steps do not wait for adapters; adapters of those whose turn it is are loaded
 * meanwhile, and of those behind prefetched. What started has its adapter acquired until it is finished.
 *
 *	gpool_lora_scheduler_add(scheduler, adapter, tokens, &request);         as they arrive, by any thread
 *
 *	gpool_lora_scheduler_schedule(scheduler, running ? 0 : -1, &schedule);      before each step
 *	gpool_lora_batch_set(batch, adapters_of_those_that_run, tokens, why);
 *	...                                                                      the step
 *	gpool_lora_scheduler_finish(scheduler, request, GPOOL_FENCE_NONE);  for each that has ended: the batch
 *	still has its adapter
 *
 * A batch is what runs and what is started with it: at most batch_requests requests, batch_adapters adapters, and
 * batch_tokens tokens, which are the prompts of those started and one for each that runs. A longer prompt is started
 * when no other one is.
 *
 * Bound: a request is passed over when one starts that came after it. From max_bypass_ms after the first time nobody
 * passes it any more; then it waits for nothing but those before it, its adapter and room in the batch. Where there is
 * no room for its adapter, that is until somebody lets go of what is in use.
 *
 * Threads: any. Memory: 48 bytes for each of `requests`, 80 for each adapter up to the highest number, rounded up to a
 * power of two.
 */
struct gpool_lora_scheduler;

enum { GPOOL_LORA_BATCH_REQUESTS_MAX = 256 };

struct gpool_lora_scheduler_options {
	/* sizeof(struct gpool_lora_scheduler_options); GPOOL_LORA_SCHEDULER_OPTIONS_INIT sets it */
	uint32_t size;
	uint32_t flags;          /* 0 */
	uint32_t requests;       /* most that wait and run at a time, at most 2^20; 0: 4096 */
	uint32_t batch_requests; /* at most 256; 0: 256 */
	uint32_t batch_adapters; /* different ones; 0: 32 */
	uint32_t batch_tokens;   /* 0: 8192 */
	/* requests behind those whose turn it is whose adapters are prefetched, at most 64; 0: 10 */
	uint32_t look_ahead;
	uint32_t max_bypass_ms; /* 0: 2000 */
};
GPOOL_ASSERT_SIZE(gpool_lora_scheduler_options, 32);
#define GPOOL_LORA_SCHEDULER_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_lora_scheduler_options), 0, 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_lora_scheduler_create() - without a request; options may be NULL. It ends before `lora`. Return: 0, -EINVAL,
 * -E2BIG, -ENOMEM, -ECHILD.
 */
GPOOL_API int gpool_lora_scheduler_create(struct gpool_lora *lora, const struct gpool_lora_scheduler_options *options,
	struct gpool_lora_scheduler **scheduler);
/*
 * gpool_lora_scheduler_destroy() - the work of requests that run is done, and no other thread is in a call for it. NULL
 * is fine. 0, -ECHILD.
 */
GPOOL_API int gpool_lora_scheduler_destroy(struct gpool_lora_scheduler *scheduler);

/*
 * gpool_lora_scheduler_add() - a request comes, at the end of the queue.
 * @adapter: its number, which is not unregistered before the request has ended; or GPOOL_LORA_NONE
 * @tokens:  of its prompt
 * @request: receives its number, below options.requests, its own until it is finished or removed
 * Return: 0, -ENOENT (no such adapter), -ENOSPC (as many as there may be wait and run), -ENOMEM, -ECHILD.
 */
GPOOL_API int gpool_lora_scheduler_add(
	struct gpool_lora_scheduler *scheduler, uint32_t adapter, uint32_t tokens, uint32_t *request);
/*
 * gpool_lora_scheduler_remove() - one that waits, or has failed, is given up: 0, -ENOENT (there is none, or it runs),
 * -ECHILD.
 */
GPOOL_API int gpool_lora_scheduler_remove(struct gpool_lora_scheduler *scheduler, uint32_t request);
/*
 * gpool_lora_scheduler_finish() - one that runs has ended; with the last of its adapter's that is released, at once
 * (fence NULL), or when the fence is reached. A batch (gpool_lora_batch_set()) has its adapters by itself. Return: 0,
 * -ENOENT, -EINVAL (no such fence), -ENOMEM (it still runs), -ECHILD.
 */
GPOOL_API int gpool_lora_scheduler_finish(
	struct gpool_lora_scheduler *scheduler, uint32_t request, struct gpool_fence fence);

struct gpool_lora_schedule {
	uint32_t size; /* sizeof(struct gpool_lora_schedule), set by the caller */
	uint32_t start_count, failed_count;
	uint32_t adapters;                              /* different ones in the batch, with what runs already */
	uint32_t awaited;                               /* adapters that are being loaded for those whose turn it is */
	uint32_t starts[GPOOL_LORA_BATCH_REQUESTS_MAX]; /* they run from now on */
	uint32_t failed[GPOOL_LORA_BATCH_REQUESTS_MAX]; /* their adapter cannot be loaded: to be removed */
	/* of those failed, as gpool_lora_acquire() says; gpool_lora_last_error() has words */
	int32_t errors[GPOOL_LORA_BATCH_REQUESTS_MAX];
};
GPOOL_ASSERT_SIZE(gpool_lora_schedule, 3092);

/*
 * gpool_lora_scheduler_schedule() - the next batch.
 *
 * @timeout_ms: longest wait, milliseconds, until something starts or fails; 0: none, which is for engines of which
 * something runs; -1: no limit
 *
 * Return: how many start, or -EINVAL (timeout_ms, or its size), -ECHILD. What is for lack of room, or of the agent, is
 * tried again at each call, not more often than each 10 ms. Cost: a look at each waiting request, a lock and a pin for
 * each of their adapters.
 */
GPOOL_API int gpool_lora_scheduler_schedule(
	struct gpool_lora_scheduler *scheduler, int timeout_ms, struct gpool_lora_schedule *schedule);

/*
 * gpool_lora_scheduler_queue() - for engines that form their batches themselves, and acquire, start and remove by
 * themselves: those who wait, up to `most`; overdue ones first, then by where their adapters are (there, being loaded,
 * the rest), each in order of arrival.
 * Return: how many, -ECHILD. Cost: as _form(), four times.
 */
GPOOL_API int gpool_lora_scheduler_queue(struct gpool_lora_scheduler *scheduler, uint32_t *requests, uint32_t most);

struct gpool_lora_scheduler_stats {
	uint32_t size; /* sizeof(struct gpool_lora_scheduler_stats), set by the caller */
	uint32_t waiting, running, awaited;
	uint64_t batches; /* that started something */
	uint64_t added, started, finished, removed, failed;
	uint64_t cold_starts; /* requests whose turn it was before their adapter was there */
	uint64_t bypassed;    /* requests */
	uint64_t overdue;     /* requests that were started as such */
	uint64_t longest_bypass_us, longest_wait_us;
};
GPOOL_ASSERT_SIZE(gpool_lora_scheduler_stats, 104);

/* gpool_lora_scheduler_stats() - 0, -EINVAL (its size), -ECHILD. */
GPOOL_API int gpool_lora_scheduler_stats(
	struct gpool_lora_scheduler *scheduler, struct gpool_lora_scheduler_stats *statistics);

#ifdef __cplusplus
}
#endif

#endif
