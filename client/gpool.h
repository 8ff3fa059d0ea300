/*
 * gpool.h - GPU memory lent in pages by the one agent of this machine.
 *
 * A worker attaches, allocates blocks of pages, pins them while it or its GPU work uses them, unpins them so that the agent may
 * evict them under pressure, and frees them. All of that is a few atomics on shared memory; the agent is asked only when this
 * process's lease runs dry. gpool(7) tells the model, gpool(3) the calls.
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
 * Functions return 0 or a count, else negative errno; gpool_strerror() says what a code means here. Out-parameters change only on
 * success. Unless a call says otherwise any thread may make it, and none may be made from a signal handler. After fork() the child
 * owns nothing of this: every call answers -ECHILD there, and the parent is not disturbed.
 */
#ifndef GPOOL_H
#define GPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define GPOOL_ASSERT_SIZE(type, bytes) static_assert(sizeof(struct type) == (bytes), "append only")
#else
#include <assert.h>
#define GPOOL_ASSERT_SIZE(type, bytes) static_assert(sizeof(struct type) == (bytes), "append only")
#endif

#define GPOOL_API __attribute__((visibility("default")))

/* ---- version ---- */

#define GPOOL_VERSION_MAJOR 0
#define GPOOL_VERSION_MINOR 1
#define GPOOL_VERSION_PATCH 0

/* gpool_version() - "0.1.0", of the library at run time. */
GPOOL_API const char *gpool_version(void);

/* ---- errors ---- */

/* gpool_strerror() - what a code of this library means here; never NULL, never translated. `error` may have either sign. */
GPOOL_API const char *gpool_strerror(int error);

/* ---- types ---- */

struct gpool; /* an attached pool */
struct gpool_object; /* a named object: one that is being built, or a version that is open */

/*
 * What a block holds. It weighs in, beside the time of the last use and the size, when the agent chooses what to evict:
 * TEMP_BUFFER is the cheapest to lose, then ACTIVATION, GRADIENT, LORA_WEIGHT, KV_CACHE.
 */
enum gpool_content {
	GPOOL_KV_CACHE = 0,    /* pinned for its request */
	GPOOL_LORA_WEIGHT = 1, /* pinned by hand while in an active batch */
	GPOOL_TEMP_BUFFER = 2, /* pinned for its kernel */
	GPOOL_ACTIVATION = 3,  /* pinned for its layer's pass */
	GPOOL_GRADIENT = 4,    /* pinned for the backward pass */
	GPOOL_CONTENTS = 5
};

enum gpool_pressure { GPOOL_LOW, GPOOL_MEDIUM, GPOOL_HIGH, GPOOL_CRITICAL };

/*
 * A block of pages. A value: copy it freely. It names the content, not the place: after a free or an eviction it is stale, and
 * every call with it says so, also when the pages were taken for something else meanwhile.
 */
struct gpool_block {
	uint64_t generation; /* of the first page */
	uint64_t tag;        /* of the content; never repeated by this process */
	uint32_t page;       /* first page in the pool */
	uint32_t page_count;
};
GPOOL_ASSERT_SIZE(gpool_block, 24);

/* A point in a stream: reached when all work queued before it is done. Zero: always reached. */
struct gpool_fence {
	uint64_t value;
};

/* ---- options ---- */

enum {
	GPOOL_OPEN_OBSERVER = 1u << 0, /* read only: no pages, no blocks */
	GPOOL_OPEN_ADMIN = 1u << 1,    /* may steer the agent; no pages either */
};

struct gpool_options {
	uint32_t size;         /* sizeof(struct gpool_options); GPOOL_OPTIONS_INIT sets it */
	uint32_t flags;        /* GPOOL_OPEN_*; an unknown bit is -EINVAL */
	const char *directory; /* of the agent's sockets; NULL: $GPOOL_DIR, else /run/gpool */
	const char *pool;      /* name of the pool; NULL: the first */
	const char *name;      /* how tools show this process; NULL: the program's name */
	const char *tenant;    /* NULL: the first that this user may join */
	int32_t timeout_ms;    /* longest wait for an agent that is not up yet; -1: no limit, 0: none */
	uint32_t magazine;     /* single pages that each thread keeps at hand, 1..64; 0: 16 */
	uint64_t quota_bytes;  /* most that this process may lease; 0: the tenant's limit */
	void (*log)(void *context, int level, const char *text); /* NULL: silent. level: 0 error .. 3 debug */
	void *log_context;
};
GPOOL_ASSERT_SIZE(gpool_options, 72);
#define GPOOL_OPTIONS_INIT { sizeof(struct gpool_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

enum {
	GPOOL_ALLOC_FIRST_FIT = 1u << 0,  /* lowest pages first instead of best fit */
	GPOOL_ALLOC_CRITICAL = 1u << 1,   /* may use the reserved pages; admins and the system tenant only */
	GPOOL_ALLOC_CONTIGUOUS = 1u << 2, /* neighbouring pages of the pool, or -ENOSPC; without it a block may be stitched */
	GPOOL_ALLOC_NO_EVICT = 1u << 3,   /* rather -ENOSPC than another block's eviction */
	GPOOL_ALLOC_SPILL = 1u << 4,      /* on eviction keep the content outside of the pool, and bring it back when it is pinned */
};

struct gpool_alloc_options {
	uint32_t size;      /* sizeof(struct gpool_alloc_options); GPOOL_ALLOC_OPTIONS_INIT sets it */
	uint32_t flags;     /* GPOOL_ALLOC_*; an unknown bit is -EINVAL */
	uint32_t content;   /* enum gpool_content */
	uint32_t priority;  /* 0..3, higher stays longer */
	uint64_t owner_id;  /* what tools show: request, adapter; free to choose */
	int32_t timeout_ms; /* longest wait for pages; 0: none, -1: no limit (49 days) */
	uint32_t stream;    /* where it will be used first (gpool_stream_open); 0: anywhere */
};
GPOOL_ASSERT_SIZE(gpool_alloc_options, 32);
#define GPOOL_ALLOC_OPTIONS_INIT { sizeof(struct gpool_alloc_options), 0, 0, 0, 0, 0, 0 }

/* ---- life cycle ---- */

/*
 * gpool_open() - attach to a pool.
 *
 * @options: NULL for the defaults. Smaller size than the library's: missing fields are zero. Larger: the unknown tail must be
 *           zero, else -E2BIG.
 * @pool:    receives the handle; gpool_close() it
 *
 * Return: 0, or
 *   -EINVAL     an unknown flag or a field out of range
 *   -E2BIG      options of a newer library with a field set that this one lacks
 *   -ENOENT     no agent's socket there, and timeout_ms is over
 *   -ETIMEDOUT  the agent did not answer in time
 *   -EACCES     this user may not attach, or not to this tenant or in this role
 *   -ENXIO      no pool, tenant of that name
 *   -EUSERS     the agent's limit on sessions
 *   -EPROTO     agent and library disagree on the shared memory's layout
 *   -ENODEV     the pool's device or back end cannot be opened in this process
 *   -EMFILE, -ENOMEM  this process's limits
 *
 * Cost: some system calls and one round trip to the agent. Source: proto/PROTOCOL.md.
 */
GPOOL_API int gpool_open(const struct gpool_options *options, struct gpool **pool);

/*
 * gpool_close() - detach. All blocks end; waits for GPU work queued through this handle. NULL is fine. No other thread may be
 * inside a call with this handle.
 */
GPOOL_API void gpool_close(struct gpool *pool);

/* ---- work: blocks ---- */

/*
 * gpool_alloc() - allocate `page_count` pages, pinned once.
 *
 * Looks into the thread's magazine, then the process's lease, then asks the agent, which takes free pages, idle pages of others,
 * unpinned blocks by its eviction policy. A request never fails while so many pages are free: when they do not lie in a row, the
 * block is stitched, and its address is contiguous all the same.
 *
 * Return: 0, or
 *   -EINVAL     page_count 0 or above the pool's, an unknown flag, content or priority
 *   -ENOSPC     not so many pages to be had (in time); gpool_shortage() says needed, free, pinned and by whom
 *   -EDQUOT     the tenant's limit or this process's quota
 *   -EPERM      GPOOL_ALLOC_CRITICAL without the right to it, or a session that only reads
 *   -ENOMEM     pages could not be mapped into this process
 *   -EPIPE      the agent is gone, and the lease is dry; what is allocated stays usable
 *   -ECHILD     after fork()
 *
 * Cost: about 10 ns from the magazine, 50 ns from the lease, one wake-up of the agent otherwise.
 */
GPOOL_API int gpool_alloc(struct gpool *pool, uint32_t page_count, const struct gpool_alloc_options *options,
	struct gpool_block *block);

/*
 * gpool_free() - end a block that the caller has pinned (an allocation is); the pin ends with it.
 * When other threads still pin it, the pages come back with their last unpin, and no new pin succeeds.
 * Return: 0, -ESTALE (freed already: of two frees one wins), -EINVAL (nobody has it pinned: use gpool_drop(); or not a handle
 * that gpool_alloc() returned), -ECHILD.
 */
GPOOL_API int gpool_free(struct gpool *pool, const struct gpool_block *block);

/* gpool_drop() - pin and free in one: ends a block that the caller has not pinned, a spilled one too. -ESTALE: freed or evicted already. */
GPOOL_API int gpool_drop(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_pin() - keep a block's content and place until gpool_unpin(). Pins count.
 *
 * Return: 0, or
 *   -ESTALE     freed or evicted
 *   -EIO        of a block with GPOOL_ALLOC_SPILL: it cannot be read back. When its checksum is wrong its content is lost, and from now
 *               on it is stale; else it is still kept, and another try may do
 *   -ENOSPC, -EDQUOT  likewise: no pages to bring it back to now. It is still kept
 *   -ENOMEM     likewise: this process cannot note or map where it comes back to
 *   -EPIPE      likewise: it is spilled, and the agent is gone
 *   -EINVAL     not the handle of a block, or of one that is prepared and not committed
 *   -ETIMEDOUT  it was on the move for longer than the pool's pin_timeout (100 ms by default)
 *   -ECHILD     after fork()
 *
 * A block with GPOOL_ALLOC_SPILL that has left the pool comes back for this, into other pages: the wait is as long as that takes, and
 * the handle stays good. pin_timeout does not count then. Other blocks' pages may be evicted for it.
 *
 * Cost: one atomic, two loads; no system call unless the block is on the move. By the handle of a block that has moved a lock and a
 * look into a table more, until gpool_relocate().
 */
GPOOL_API int gpool_pin(struct gpool *pool, const struct gpool_block *block);

/* gpool_unpin() - end one pin. -EINVAL: it is not pinned. -ESTALE: not this block's place any more. */
GPOOL_API int gpool_unpin(struct gpool *pool, const struct gpool_block *block);

/*
 * gpool_relocate() - after a block that was spilled has come back elsewhere: make *block say where it is, so that calls with it find it
 * at once again. The old handle stays good. 0, also when it has not moved; -ESTALE (spilled, or gone), -EINVAL, -ECHILD.
 */
GPOOL_API int gpool_relocate(struct gpool *pool, struct gpool_block *block);

/* gpool_touch() - say that a block is in use: refreshes a long pin (max_pin_duration) and the eviction policy's clock. */
GPOOL_API int gpool_touch(struct gpool *pool, const struct gpool_block *block);

/* gpool_address() - the block's device address, page_count * gpool_page_bytes() contiguous bytes; valid while it is pinned. */
GPOOL_API int gpool_address(struct gpool *pool, const struct gpool_block *block, uint64_t *address);

/* Why the calling thread's last gpool_alloc() found no pages. */
struct gpool_shortage {
	uint32_t needed, free, pinned;
	uint32_t holder;       /* session with the most pinned pages */
	uint32_t holder_pages;
};
GPOOL_API void gpool_shortage(struct gpool *pool, struct gpool_shortage *shortage);

/*
 * gpool_let_go() - unmap what the agent wants back for tenants of another trust domain: pages that this process uses no more and still
 * has mapped. Calls that allocate, wait or free while others wait do so by themselves; a process that is idle for long calls this now
 * and then (it is one load where nothing is wanted), lest its former pages are retired. Return: handles let go, -ECHILD.
 */
GPOOL_API int gpool_let_go(struct gpool *pool);

/* ---- work: smaller than a page ---- */

/* Part of a page, aligned to 256 bytes. */
struct gpool_span {
	struct gpool_block block; /* the page it lies in; pinned while a span in it lives */
	uint64_t address;
	uint32_t offset;
	uint32_t bytes; /* as rounded up */
};

/*
 * gpool_span_alloc() - 1 byte to half a page, from pages that this process shares among spans of one size class and content.
 * Return: as gpool_alloc(). Cost: a lock within the process, about 50 ns.
 */
GPOOL_API int gpool_span_alloc(struct gpool *pool, uint64_t bytes, uint32_t content, struct gpool_span *span);
GPOOL_API int gpool_span_free(struct gpool *pool, const struct gpool_span *span);

/* ---- work: streams and fences ---- */

enum {
	GPOOL_STREAM_MANUAL = 1u << 0, /* no GPU stream behind it: the program reaches its fences with gpool_fence_signal() */
};

/*
 * gpool_stream_open() - a stream whose progress everybody can see. `native`: a CUstream of this process to put fences on, which
 * stays the program's and must outlive gpool_stream_close(), or NULL for one of gpool's own. At most 255 at a time.
 * Return: 0, -EINVAL, -EUSERS (too many), -ENOMEM, -EIO, -EOPNOTSUPP.
 */
GPOOL_API int gpool_stream_open(struct gpool *pool, void *native, uint32_t flags, uint32_t *stream);
/* gpool_stream_close() - waits for its work. */
GPOOL_API void gpool_stream_close(struct gpool *pool, uint32_t stream);

/* gpool_copy(), gpool_fill() - queue on a stream that is not manual. bytes of fill: a multiple of 4. */
GPOOL_API int gpool_copy(struct gpool *pool, uint32_t stream, uint64_t to, uint64_t from, uint64_t bytes);
GPOOL_API int gpool_fill(struct gpool *pool, uint32_t stream, uint64_t to, uint32_t value, uint64_t bytes);

/* gpool_fence_record() - a fence behind all that was queued on `stream` so far. One driver call. */
GPOOL_API int gpool_fence_record(struct gpool *pool, uint32_t stream, struct gpool_fence *fence);
/* gpool_fence_done() - 1 reached, 0 not yet. One load. */
GPOOL_API int gpool_fence_done(struct gpool *pool, struct gpool_fence fence);
/* gpool_fence_wait() - wait on the host: 0, -ETIMEDOUT. gpool_stream_wait() - make a stream wait. */
GPOOL_API int gpool_fence_wait(struct gpool *pool, struct gpool_fence fence, int timeout_ms);
GPOOL_API int gpool_stream_wait(struct gpool *pool, uint32_t stream, struct gpool_fence fence);
/* gpool_fence_signal() - reach a fence of a GPOOL_STREAM_MANUAL stream. */
GPOOL_API int gpool_fence_signal(struct gpool *pool, struct gpool_fence fence);

/* gpool_free_after(), gpool_unpin_after() - as gpool_free() and gpool_unpin(), when the fence is reached; they return at once. */
GPOOL_API int gpool_free_after(struct gpool *pool, const struct gpool_block *block, struct gpool_fence fence);
GPOOL_API int gpool_unpin_after(struct gpool *pool, const struct gpool_block *block, struct gpool_fence fence);

/* ---- work: scopes ---- */

enum {
	GPOOL_SCOPE_FREE = 1u << 0, /* free at the end instead of unpin */
};

/*
 * A scope pins what is allocated in it and unpins (or frees) all of it at its end: a kernel, a layer's pass, a request. Used by one
 * thread at a time. gpool_scope_end() with a fence lets go when the fence is reached.
 */
struct gpool_scope {
	struct gpool *pool;
	struct gpool_block *blocks;
	uint32_t count, capacity;
	uint32_t content, flags;
};
GPOOL_API int gpool_scope_begin(struct gpool *pool, uint32_t content, uint32_t flags, struct gpool_scope *scope);
GPOOL_API int gpool_scope_alloc(struct gpool_scope *scope, uint32_t page_count, const struct gpool_alloc_options *options,
	struct gpool_block *block);
/* gpool_scope_end() - a second call does nothing. fence NULL: at once. Return: 0, or the first error met; all blocks are let go. */
GPOOL_API int gpool_scope_end(struct gpool_scope *scope, const struct gpool_fence *fence);
GPOOL_API void gpool_scope_cleanup(struct gpool_scope *scope);
/* GPOOL_SCOPE(scope); gpool_scope_begin(pool, ..., &scope); ... - ends by itself when the C block does. */
#define GPOOL_SCOPE(variable) \
	struct gpool_scope variable __attribute__((cleanup(gpool_scope_cleanup))) = { 0, 0, 0, 0, 0, 0 }

/* ---- work: two phases ---- */

/*
 * gpool_prepare() - take pages that nobody sees yet. gpool_commit() - make them a block and store its device address to *entry (an
 * entry of a table that kernels read; may be NULL) in one 8-byte release store; *block becomes the committed block, pinned once.
 * gpool_rollback() - give them back. A process that dies between the two rolls back by dying.
 * Only these two calls take a prepared block; others answer -EINVAL. Return: as gpool_alloc(); -ESTALE: committed or rolled back.
 */
GPOOL_API int gpool_prepare(struct gpool *pool, uint32_t page_count, const struct gpool_alloc_options *options,
	struct gpool_block *block);
GPOOL_API int gpool_commit(struct gpool *pool, struct gpool_block *block, uint64_t *entry);
GPOOL_API int gpool_rollback(struct gpool *pool, const struct gpool_block *block);

/* ---- work: named objects ---- */

/*
 * A named object outlives its writer: allocations and metadata under a name, published in one step and read by any worker of the
 * pool. Each publication is a version of its own; who has an older one open keeps it, unchanged, until it closes it.
 *
 * What may become of the pages is declared when the object is made, and all access follows from it:
 */
enum gpool_object_class {
	GPOOL_OBJECT_IMMUTABLE = 0, /* read only for everybody from its publication on, its writer included */
	GPOOL_OBJECT_MUTABLE = 1,   /* its one writer goes on writing; readers read, and see it at once */
	GPOOL_OBJECT_EPHEMERAL = 2  /* as immutable, and may be evicted as a whole while nobody has it open */
};

#define GPOOL_OBJECT_NONE UINT64_MAX /* expect_version: there must be no such object */

struct gpool_object_options {
	uint32_t size;           /* sizeof(struct gpool_object_options); GPOOL_OBJECT_OPTIONS_INIT sets it */
	uint32_t flags;          /* none yet; an unknown bit is -EINVAL */
	uint32_t memory_class;   /* enum gpool_object_class */
	uint32_t reserved;       /* 0 */
	const char *role;        /* that this process holds: looked at when it publishes; its holder may adopt the object. NULL: none */
	uint64_t role_token;     /* fencing token of the role */
	uint64_t expect_version; /* publish only over this version; 0: over whatever is there; GPOOL_OBJECT_NONE */
};
GPOOL_ASSERT_SIZE(gpool_object_options, 40);
#define GPOOL_OBJECT_OPTIONS_INIT { sizeof(struct gpool_object_options), 0, 0, 0, 0, 0, 0 }

/*
 * gpool_object_create() - begin an object of this name, at most 127 bytes. All until gpool_object_publish() is this process's own:
 * nobody sees it, and it goes when the process ends. One thread at a time until then; afterwards any.
 * Return: 0, -EINVAL (name, flag, class), -E2BIG, -EPERM (a session that only reads), -ENOMEM, -ECHILD.
 */
GPOOL_API int gpool_object_create(struct gpool *pool, const char *name, const struct gpool_object_options *options,
	struct gpool_object **object);

/*
 * gpool_object_alloc() - a further allocation, as gpool_alloc() with these options; *index counts from 0. It is a block of this
 * process, pinned until it is published. (As any pin it needs to be in use: every call for the object refreshes them all.)
 * Return: as gpool_alloc(); -EINVAL: it is published, or GPOOL_ALLOC_SPILL is asked for.
 */
GPOOL_API int gpool_object_alloc(struct gpool_object *object, uint32_t page_count, const struct gpool_alloc_options *options,
	uint32_t *index);

/*
 * gpool_object_set() - metadata: any bytes under a key, a text of 1 to 1,023 bytes. A second value for a key replaces the first.
 * All metadata of an object may have 64 MiB. Return: 0, -EINVAL, -ENOMEM, -EFBIG.
 */
GPOOL_API int gpool_object_set(struct gpool_object *object, const char *key, const void *value, size_t bytes);

/*
 * gpool_object_publish() - one step: from now on the name means this, whole. The object stays open, so that its addresses stay
 * valid, but only a mutable one can be written any more; GPU work that writes to it must be done before.
 *
 * Return: 0, or, and then it is as before and may be published again or aborted:
 *   -ESTALE  another version is current than expected; the role's token is not good any more; a pin was lost to pins.leaked
 *   -EBUSY   queued GPU work still uses it and could write to it
 *   -EINVAL  published already, or without an allocation
 *   -EUSERS  as many versions of objects are there as a pool can have (1,023)
 *   -ENOSPC  the metadata of all objects together is too large (1 GiB)
 *   -EFBIG   the metadata of this one is too large
 *   -ENOMEM, -EMFILE
 *   -EPIPE   the session is over
 *   -ECHILD  after fork()
 *
 * Cost: one question to the agent, whatever the number of allocations.
 */
GPOOL_API int gpool_object_publish(struct gpool_object *object, uint64_t *version);

/* gpool_object_abort() - end one that is not published; its pages are idle again. NULL is fine. */
GPOOL_API void gpool_object_abort(struct gpool_object *object);

enum {
	GPOOL_OBJECT_ADOPT = 1u << 0, /* become the writer of a mutable object whose writer is gone; takes the object's role */
};

struct gpool_object_open_options {
	uint32_t size;        /* sizeof(struct gpool_object_open_options); GPOOL_OBJECT_OPEN_OPTIONS_INIT sets it */
	uint32_t flags;       /* GPOOL_OBJECT_ADOPT; an unknown bit is -EINVAL */
	uint64_t version;     /* 0: the current one */
	uint64_t layout_hash; /* that it must have; 0: any */
	const char *role;     /* that this process holds; NULL: none */
	uint64_t role_token;
};
GPOOL_ASSERT_SIZE(gpool_object_open_options, 40);
#define GPOOL_OBJECT_OPEN_OPTIONS_INIT { sizeof(struct gpool_object_open_options), 0, 0, 0, 0, 0 }

/*
 * gpool_object_open() - map a version, read only unless this process is its writer. It stays as it is until gpool_object_close(),
 * whatever is published or deleted meanwhile.
 *
 * Return: 0, or
 *   -EINVAL  name, flag, ADOPT without a role or of an object that is not mutable
 *   -ENOENT  no object of this name, or not this version
 *   -EPROTO  another layout hash
 *   -ESTALE  the role's token is not good (any more)
 *   -EBUSY   ADOPT, and another process is its writer
 *   -EPERM   ADOPT with another role than the object's; or a session that only reads
 *   -ENOMEM, -EMFILE, -EPIPE, -E2BIG, -ECHILD
 *
 * Cost: one question to the agent, whatever the number of allocations, and one mapping for each page.
 */
GPOOL_API int gpool_object_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options,
	struct gpool_object **object);

/*
 * gpool_object_close() - its addresses end. Closing the last handle of a mutable object ends this process's right to write it; one
 * that is not published is aborted. NULL is fine. Return: 0, -EBUSY (queued GPU work still uses it: it stays open), -ECHILD.
 */
GPOOL_API int gpool_object_close(struct gpool_object *object);

/* gpool_object_address() - of an allocation, and its size: contiguous bytes, valid until the object is closed. -EINVAL: no such one. */
GPOOL_API int gpool_object_address(struct gpool_object *object, uint32_t index, uint64_t *address, uint64_t *bytes);

/* gpool_object_get() - a value of a published object, aligned to 8 and valid until it is closed. -ENOENT: no such key. */
GPOOL_API int gpool_object_get(struct gpool_object *object, const char *key, const void **value, size_t *bytes);

/* gpool_object_entry() - the index-th entry in order of the keys, each of which ends with a NUL. -ENOENT: there are not so many. */
GPOOL_API int gpool_object_entry(struct gpool_object *object, uint32_t index, const char **key, const void **value, size_t *bytes);

/*
 * gpool_object_delete() - the name is gone at once, the pages with their last reader. Members of the publisher's tenant, its writer
 * and admins may. version 0: the current one. Return: 0, -ENOENT, -ESTALE (another version is current), -EPERM, -EINVAL (name),
 * -ETIMEDOUT (no answer within 10 s; it may be deleted all the same), -EPIPE, -ECHILD.
 */
GPOOL_API int gpool_object_delete(struct gpool *pool, const char *name, uint64_t version);

enum gpool_object_state { GPOOL_OBJECT_CURRENT = 2, GPOOL_OBJECT_OLD = 3, GPOOL_OBJECT_DELETED = 4 };

struct gpool_object_info {
	uint32_t size;         /* sizeof(struct gpool_object_info), set by the caller */
	uint32_t number;       /* owner in the page table */
	uint32_t state;        /* enum gpool_object_state */
	uint32_t memory_class; /* enum gpool_object_class */
	uint32_t pages, allocations;
	uint32_t readers;      /* sessions that have it open */
	uint32_t writer;       /* session that may write it; 0: none */
	uint64_t version;
	uint64_t layout_hash;  /* of allocation sizes and metadata; contents do not enter */
	uint64_t metadata_bytes;
	uint64_t published_ms; /* wall clock */
	uint32_t uid, pid;     /* of who published it */
	char name[128];
	char tenant[64];
	char role[64];
};
GPOOL_ASSERT_SIZE(gpool_object_info, 328);

/* gpool_object_info() - of one that is published. -EINVAL: it is not; or its size. */
GPOOL_API int gpool_object_info(struct gpool_object *object, struct gpool_object_info *info);

/*
 * gpool_object_next() - the next version of any object; *cursor is 0 at first. Out of the shared table, without asking anybody.
 * Return: 0, -ENOENT (that was all), -EINVAL, -ECHILD.
 */
GPOOL_API int gpool_object_next(struct gpool *pool, uint32_t *cursor, struct gpool_object_info *info);

/* ---- work: ranges, sleep and wake ---- */

/*
 * A range has addresses of its own, in a row, which it keeps from its creation to its end; the pages behind it may lie anywhere in the
 * pool. An engine that has nothing to do puts itself to sleep: all ranges of the handle give their pages back, and have them again, at
 * the same addresses, when it wakes. What becomes of the content the class says:
 *
 *   GPOOL_OBJECT_IMMUTABLE  it is published as a named object by the first sleep, and read only from then on; waking opens that version
 *   GPOOL_OBJECT_MUTABLE    it is spilled (gpoold.conf(5), spill_memory), and comes back
 *   GPOOL_OBJECT_EPHEMERAL  it is dropped, and undefined after waking
 *
 * Blocks, scopes and spans are not ranges: what is pinned stays pinned and in the pool while the process sleeps.
 */
struct gpool_range;

struct gpool_range_options {
	uint32_t size;         /* sizeof(struct gpool_range_options); GPOOL_RANGE_OPTIONS_INIT sets it */
	uint32_t flags;        /* none yet; an unknown bit is -EINVAL */
	uint32_t memory_class; /* enum gpool_object_class */
	uint32_t content;      /* enum gpool_content */
	const char *name;      /* immutable: of the object as which it is kept, at most 127 bytes; others: NULL */
	uint64_t owner_id;     /* what tools show; free to choose */
	int32_t timeout_ms;    /* longest wait for pages; 0: none, -1: no limit (49 days) */
	uint32_t reserved;     /* 0 */
};
GPOOL_ASSERT_SIZE(gpool_range_options, 40);
#define GPOOL_RANGE_OPTIONS_INIT { sizeof(struct gpool_range_options), 0, 0, 0, 0, 0, 0, 0 }

/*
 * gpool_range_create() - addresses for `page_count` pages, and the pages, with one request for all. options NULL: mutable, KV_CACHE.
 * No pin of a range is ever called leaked (pins.max_duration).
 *
 * Return: 0, or
 *   -EINVAL  page_count, an unknown flag, class or content; a name that an immutable range lacks or another has
 *   -EBUSY   this handle sleeps
 *   -ENOSPC, -EDQUOT, -EPERM, -ENOMEM, -EPIPE, -ECHILD  as gpool_alloc()
 *   -E2BIG
 *
 * Cost: one request to the agent, a mapping for each handle (a page, unless handles hold several) and one access call.
 */
GPOOL_API int gpool_range_create(struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options,
	struct gpool_range **range);

/*
 * gpool_range_open() - a range over the pages of an immutable object, its allocations one behind the other, read only. Asleep the object
 * is closed, and waking opens the same version. options: as gpool_object_open(), without flags and role.
 * Return: as gpool_object_open(); -EINVAL: it is not immutable; -EBUSY: this handle sleeps; -EOPNOTSUPP: handles hold several pages, and
 * the object's do not fill them, so that they cannot be put in a row.
 */
GPOOL_API int gpool_range_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options,
	struct gpool_range **range);

/*
 * gpool_range_destroy() - its addresses end, awake or asleep; waits for work queued on this handle's streams. What was published stays.
 * NULL is fine. Return: 0, -EBUSY (GPU work that the program queued elsewhere still uses it: it stays), -EIO, -EPIPE, -ECHILD.
 */
GPOOL_API int gpool_range_destroy(struct gpool_range *range);

/* gpool_range_address() - of its first byte: the same for its whole life. */
GPOOL_API int gpool_range_address(const struct gpool_range *range, uint64_t *address);

enum gpool_range_state { GPOOL_RANGE_AWAKE = 1, GPOOL_RANGE_ASLEEP = 2 };

struct gpool_range_info {
	uint32_t size;         /* sizeof(struct gpool_range_info), set by the caller */
	uint32_t state;        /* enum gpool_range_state */
	uint32_t memory_class; /* enum gpool_object_class */
	uint32_t page_count;
	uint64_t address, bytes;
	uint64_t version;      /* of the object as which it is kept; 0: it is not */
	uint64_t layout_hash;  /* of that */
	char name[128];        /* likewise */
};
GPOOL_ASSERT_SIZE(gpool_range_info, 176);

/* gpool_range_get() - waits while the handle goes to sleep or wakes. Return: 0, -EINVAL (its size), -ECHILD. */
GPOOL_API int gpool_range_get(struct gpool_range *range, struct gpool_range_info *info);

/*
 * gpool_sleep() - all ranges of this handle give their pages back. All or nothing: on failure all of them are mapped and whole as before;
 * only what was published for it stays published, and read only. Asleep already: 0.
 *
 * It waits for the work on this handle's streams; what else the program has queued on a GPU must be done, and no thread may use an
 * address of a range until gpool_wake(). A manual stream is not waited for, and a stream that waits for one must be able to go on.
 * When the process ends asleep, what was spilled is freed; objects live on.
 *
 * Return: 0, or
 *   -EINVAL      flags other than 0
 *   -EBUSY       queued GPU work uses a range
 *   -ENOSPC      no room to spill all mutable ranges, or a table of objects is full
 *   -EOPNOTSUPP  mutable ranges, and the pool keeps no spilled content
 *   -EIO         spilling failed (a full disk); the GPU driver
 *   -EUSERS, -EMFILE  as gpool_object_publish()
 *   -ENOMEM      out of memory; if a range could then not be mapped again, gpool_asleep() says 1, and gpool_wake() tries again
 *   -EPERM       a session that only reads
 *   -EPIPE       the agent is gone; what is spilled is unknown
 *   -ECHILD
 *
 * Cost: an unmap call for each range, one request to the agent; for immutable and mutable ranges their publication and their copying.
 */
GPOOL_API int gpool_sleep(struct gpool *pool, uint32_t flags);

/*
 * gpool_wake() - all ranges have pages again, at the same addresses, with their contents. All pages are granted in one step, so it cannot
 * run out half-way, and processes that wake at the same time do not wait for each other's. On failure all is as before: asleep,
 * nothing lost, no page held. Awake already: 0. timeout_ms: longest wait for pages; 0: none, -1: no limit.
 *
 * Return: 0, or
 *   -ENOSPC  not so many pages to be had (in time); gpool_shortage() says more
 *   -EDQUOT  the tenant's limit or this process's quota
 *   -ESTALE  an object is not there any more in the version that went to sleep
 *   -EIO     spilled content cannot be read back. It is kept, and may be tried again; when all mutable ranges are destroyed, the others wake
 *   -ENOMEM  pages could not be mapped
 *   -EINVAL, -EPERM, -EMFILE, -EPIPE, -ECHILD
 *
 * Cost: one request to the agent for pages and one for content, a mapping for each handle, one access call for each range.
 */
GPOOL_API int gpool_wake(struct gpool *pool, int timeout_ms);

/* gpool_asleep() - 1 after gpool_sleep(), 0 after gpool_wake(), -ECHILD. */
GPOOL_API int gpool_asleep(struct gpool *pool);

/* ---- roles ---- */

/*
 * A role is a name that one session of a pool holds at a time: the engine that serves, while others stand by. The agent grants it;
 * the kernel tells the agent of the holder's death, and nothing less than that, a release or a close takes a role away: no time-out,
 * no missed heartbeat. So a holder that is stopped, or has lost its connection, keeps the role until its process has ended, and
 * when a standby has it, nothing of the old holder runs any more, on this machine or its GPUs.
 *
 * What the holder does elsewhere (a request to a server, a file) may arrive late all the same: send the token along, and let the
 * other side refuse one that is lower than it has seen.
 */
struct gpool_role {
	uint64_t token;   /* fencing token: each grant has a higher one than all before in this pool */
	uint32_t index;   /* the role's place in the pool's table */
	uint32_t session; /* holder: gpool_session() */
};
GPOOL_ASSERT_SIZE(gpool_role, 16);

/*
 * gpool_role_acquire() - hold a role; wait for it while another session does, in order of arrival.
 *
 * A role exists from its first acquisition on and belongs to the tenant of who made that. It keeps its place, one of 64 in each pool,
 * when nobody holds it ('poolctl roles remove NAME' frees the place).
 *
 * @name:       1 to 63 bytes of printable UTF-8
 * @timeout_ms: longest wait, milliseconds; 0: do not wait, -1: no limit
 * @role:       receives the token
 *
 * Return: 0, or
 *   -ETIMEDOUT  another session holds it, and the time is over; this one waits no longer
 *   -EALREADY   this process has the role, or another thread of it waits for it
 *   -EACCES     the role is another tenant's
 *   -EPERM      a session that only reads
 *   -ENOSPC     64 roles have names
 *   -EINVAL     a name that cannot be, timeout_ms below -1
 *   -EPIPE      the agent has ended this session, or does not answer: then the role may be, or become, this process's until it
 *               asks again or closes
 *   -ENOMEM, -EPROTO, -ECHILD
 *
 * Cost: a round trip to the agent; while waiting a sleep in the kernel. An agent that restarts meanwhile keeps who waits, in order.
 */
GPOOL_API int gpool_role_acquire(struct gpool *pool, const char *name, int timeout_ms, struct gpool_role *role);

/*
 * gpool_role_check() - whether this process holds the role by this token. 0, -ESTALE (given back, or taken over), -EINVAL, -ECHILD.
 * Two loads. What it says was true when it looked; a role does not go away from a process that neither releases nor closes.
 */
GPOOL_API int gpool_role_check(const struct gpool *pool, const struct gpool_role *role);

/*
 * gpool_role_release() - give it back; the first standby has it when this returns. gpool_close() does the same. What GPU work of the
 * holder still runs is the holder's to wait for. Return: 0, -ESTALE (not ours), -EPIPE, -EPROTO, -ECHILD.
 */
GPOOL_API int gpool_role_release(struct gpool *pool, const struct gpool_role *role);

/*
 * gpool_role_get() - who holds a role: any session may look. *session 0: nobody, and *token is the last holder's. Either may be NULL.
 * Return: 0, -ENOENT (no role of that name), -EINVAL, -ECHILD. No system call.
 */
GPOOL_API int gpool_role_get(const struct gpool *pool, const char *name, uint32_t *session, uint64_t *token);

/* ---- events ---- */

enum gpool_event_kind {
	GPOOL_EVENT_PRESSURE = 1,
	GPOOL_EVENT_EVICTION = 2,
	GPOOL_EVENT_RECLAIM = 3,
	GPOOL_EVENT_TENANT_LIMIT = 4,
	GPOOL_EVENT_AGENT_START = 5,
	GPOOL_EVENT_SESSION_START = 6,
	GPOOL_EVENT_SESSION_END = 7,
	GPOOL_EVENT_LEAKED_PIN = 8,
	GPOOL_EVENT_RELOAD = 9,
	GPOOL_EVENT_FRONT_RESTART = 10,
	GPOOL_EVENT_DAMAGE = 11,
	GPOOL_EVENT_OBJECT_PUBLISHED = 12, /* value: version */
	GPOOL_EVENT_OBJECT_DELETED = 13,
	GPOOL_EVENT_OBJECT_EVICTED = 14,
	GPOOL_EVENT_ROLE_GRANTED = 15, /* value: token */
	GPOOL_EVENT_ROLE_FREED = 16,   /* value: token */
	GPOOL_EVENT_TAKEOVER = 17,     /* a standby has the role of a dead session; value: token */
	GPOOL_EVENT_RETIRED = 18,      /* pages are out of use: a session of another trust domain may still map them; value: its pid */
	GPOOL_EVENT_SPILL_ERROR = 20   /* content could not be spilled, and stayed, or not be read back, and is lost */
};

struct gpool_event {
	uint32_t kind;    /* enum gpool_event_kind */
	uint32_t session; /* whom it concerns; 0: all */
	uint64_t time_ms; /* wall clock */
	uint64_t value;   /* level, pages or number, as the kind says */
	char pool[64];
	char text[192];
};

/* gpool_event_next() - the agent's next event: 0, -ETIMEDOUT. The first call subscribes; earlier events are not seen. One thread. */
GPOOL_API int gpool_event_next(struct gpool *pool, int timeout_ms, struct gpool_event *event);

/* ---- inspection ---- */

GPOOL_API uint64_t gpool_page_bytes(const struct gpool *pool);
GPOOL_API uint32_t gpool_page_count(const struct gpool *pool);
GPOOL_API uint32_t gpool_session(const struct gpool *pool);
/* gpool_pressure() - enum gpool_pressure, one load. */
GPOOL_API int gpool_pressure(const struct gpool *pool);

struct gpool_statistics {
	uint32_t size; /* sizeof(struct gpool_statistics), set by the caller */
	uint32_t leased_pages, idle_pages, deferred_blocks;
	uint64_t allocations, frees, pins, unpins;
	uint64_t stale_pins, contended_pins;
	uint64_t magazine_hits, stitched, refills, refusals;
	uint64_t driver_calls;             /* of the back end, by this handle, since gpool_open() */
	uint64_t allocation_ns[32];        /* histogram, bucket i: [2^i, 2^(i+1)) ns; one allocation in 256 */
	uint64_t refill_ns[32];            /* every refill */
};
GPOOL_API int gpool_statistics(struct gpool *pool, struct gpool_statistics *statistics);

#ifdef __cplusplus
}
#endif

#endif
