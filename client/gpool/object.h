/* object.h - named objects, which outlive their writer, and loans. */
#ifndef GPOOL_OBJECT_H
#define GPOOL_OBJECT_H

#include "block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- named objects ---- */

struct gpool_object; /* a named object that is being built, or an open version */

/*
 * A named object consists of allocations and metadata. It is published under a name in one step. Every worker of the
 * same trust domain can open the object, unless it is private; other domains may use the same name for their own
 * objects (docs/rights.md). A published object outlives its writer. Each publication creates a new version. A session
 * that has an older version open keeps this version until it closes the object.
 *
 * The class is chosen when the object is created and determines the access to its pages:
 */
enum gpool_object_class {
	/*
	 * read-only after its publication, even for its writer. If pages are smaller than the handles of the pool,
	 * pages of a handle that the object does not fill stay writable for the writer
	 */
	GPOOL_OBJECT_IMMUTABLE = 0,
	GPOOL_OBJECT_MUTABLE = 1,   /* its only writer continues to write; readers see each write */
	GPOOL_OBJECT_EPHEMERAL = 2, /* as immutable; may be evicted as a whole while no session has it open */
	/*
	 * as immutable; may be evicted as a whole while no session pins it, open or not: gpool_object_pin(). The object
	 * with the lowest (recent uses x cost_us / bytes) is evicted first; each pin is a use
	 */
	GPOOL_OBJECT_PINNABLE = 3
};

enum {
	/* GPOOL_OBJECT_PINNABLE: the object is published pinned; its publisher calls gpool_object_unpin() */
	GPOOL_OBJECT_PINNED = 1u << 0,
	/* sessions of other tenants cannot open it; sessions of its trust domain see its name */
	GPOOL_OBJECT_PRIVATE = 1u << 1,
	/* all tenants of the trust domain may replace and delete it; not with PRIVATE */
	GPOOL_OBJECT_DOMAIN_WRITE = 1u << 2,
};

#define GPOOL_OBJECT_NONE UINT64_MAX /* expect_version: no object of that name may exist */

struct gpool_object_options {
	uint32_t size;         /* sizeof(struct gpool_object_options); GPOOL_OBJECT_OPTIONS_INIT sets it */
	uint32_t flags;        /* GPOOL_OBJECT_PINNED, _PRIVATE, _DOMAIN_WRITE; an unknown bit is -EINVAL */
	uint32_t memory_class; /* enum gpool_object_class */
	/* GPOOL_OBJECT_PINNABLE: reload cost in microseconds; more than a minute counts as a minute; 0: unknown */
	uint32_t cost_us;
	/* role that this process must hold when it publishes; the role's holder may adopt the object. NULL: none */
	const char *role;
	uint64_t role_token;     /* fencing token of the role */
	uint64_t expect_version; /* version that must be current at the publication; 0: any; or GPOOL_OBJECT_NONE */
};
GPOOL_ASSERT_SIZE(gpool_object_options, 40);
#define GPOOL_OBJECT_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_object_options), 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_object_create() - begin building an object.
 *
 * @name:    at most 127 bytes. Names that begin with lora/, warm/, kv-prefix/ or kv/ are reserved for the library, and
 *           refused with -EPERM
 * @options: NULL: immutable, no flags
 * @object: receives the handle, for gpool_object_publish() or gpool_object_abort()
 *
 * Until its publication the object is private to this process and is freed when the process ends.
 *
 * Return: 0, -EINVAL (name, role, flag, PRIVATE with DOMAIN_WRITE, class; PINNED or cost_us with a class other than
 * PINNABLE), -E2BIG, -EPERM (an observer or admin; a reserved name), -ENOMEM, -ECHILD.
 * Threads: one at a time for each object until it is published, any afterwards. Cost: no system call.
 */
GPOOL_API int gpool_object_create(
	struct gpool *pool, const char *name, const struct gpool_object_options *options, struct gpool_object **object);

/*
 * gpool_object_alloc() - add an allocation to an object that is being built.
 *
 * @index: receives its index, counted from 0
 *
 * The allocation is a block of this process, pinned until the publication. Each call for the object refreshes these
 * pins; they count as leaked after pins.max_duration without such a call.
 *
 * Return: as gpool_alloc(); -EINVAL also: the object is published, or GPOOL_ALLOC_SPILL. Cost: as gpool_alloc().
 */
GPOOL_API int gpool_object_alloc(
	struct gpool_object *object, uint32_t page_count, const struct gpool_alloc_options *options, uint32_t *index);

/*
 * gpool_object_set() - set a value of the metadata. A second value for a key replaces the first.
 *
 * @key:   a text of 1 to 1,023 bytes
 * @value: any bytes; the metadata of an object may have 64 MiB. Key and value are copied
 *
 * Return: 0, -EINVAL (key; published), -ENOMEM, -EFBIG (more than 64 MiB), -ECHILD. Cost: a copy of the value.
 */
GPOOL_API int gpool_object_set(struct gpool_object *object, const char *key, const void *value, size_t bytes);

/*
 * gpool_object_publish() - publish an object under its name, in one step.
 *
 * @version: receives the version number, which is higher than all earlier ones in the pool
 *
 * The object remains open and its addresses remain valid; they become read-only unless the object is mutable. GPU work
 * that writes to the object must have finished.
 *
 * Return: 0, or an error after which the object is unchanged, and can be published again or aborted:
 *   -ESTALE  the current version is not the expected one; the role's token is no longer valid; a pin was ended as
 *            leaked
 *   -EPERM   the name belongs to another tenant or to the library (docs/rights.md)
 *   -EBUSY   queued GPU work uses the object and could write to it (back end `host`)
 *   -EINVAL  already published, or without an allocation
 *   -EUSERS  the pool has its maximum number of object versions (`objects` of its configuration)
 *   -ENOSPC  the metadata of all objects of the pool would exceed 1 GiB
 *   -EFBIG   the metadata of this object exceeds 64 MiB
 *   -EPIPE   the session has ended; the object can only be aborted
 *   -EMFILE  no more file descriptors in this process or in the agent
 *   -ENOMEM, -EPROTO, -ECHILD
 *
 * Cost: one request to the agent, for any number of allocations. While the agent is being restarted, the call waits.
 */
GPOOL_API int gpool_object_publish(struct gpool_object *object, uint64_t *version);

/*
 * gpool_object_abort() - discard an unpublished object; its pages become idle. NULL is permitted. For a published
 * object the call does nothing. Cost: as gpool_free() for each allocation.
 */
GPOOL_API void gpool_object_abort(struct gpool_object *object);

enum {
	/* become the writer of a mutable object whose former writer has ended; requires the object's role */
	GPOOL_OBJECT_ADOPT = 1u << 0,
};

struct gpool_object_open_options {
	uint32_t size;        /* sizeof(struct gpool_object_open_options); GPOOL_OBJECT_OPEN_OPTIONS_INIT sets it */
	uint32_t flags;       /* GPOOL_OBJECT_ADOPT; an unknown bit is -EINVAL */
	uint64_t version;     /* 0: the current version */
	uint64_t layout_hash; /* required layout hash; 0: any */
	const char *role;     /* that this process holds; NULL: none */
	uint64_t role_token;
};
GPOOL_ASSERT_SIZE(gpool_object_open_options, 40);
#define GPOOL_OBJECT_OPEN_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_object_open_options), 0, 0, 0, 0, 0 \
	}

/*
 * gpool_object_open() - map a version of an object, read-only unless this process is its writer.
 *
 * @options: NULL: the current version
 *
 * The version remains available until gpool_object_close(), even if another version is published or the object is
 * deleted. A version of class GPOOL_OBJECT_PINNABLE, or of gpool_range_publish(), may be evicted while no session pins
 * it.
 *
 * Return: 0, or
 *   -EINVAL  name, flag; ADOPT without a role, or for an object that is not mutable
 *   -ENOENT  no object of this name, or no such version; or it was evicted during the call
 *   -EPROTO  another layout hash
 *   -ESTALE  the role's token is not valid
 *   -EBUSY   ADOPT, but another process is the writer
 *   -EACCES  the object is private to another tenant
 *   -EPERM   ADOPT with a role other than that of the object, or of another tenant than the owner's; the session is an
 *            observer or admin
 *   -EMFILE  no more file descriptors. The session may still count as a reader, until it opens and closes the object
 *            again, or ends
 *   -ENOMEM, -EPIPE, -E2BIG, -ECHILD
 *
 * Cost: one request to the agent, for any number of allocations, and one mapping for each driver handle. While the
 * agent is being restarted, the call waits.
 */
GPOOL_API int gpool_object_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options,
	struct gpool_object **object);

/*
 * gpool_object_close() - close an object and release its addresses.
 *
 * Closing the last handle of a mutable object ends this process's right to write to it. An unpublished object is
 * aborted. NULL is permitted.
 *
 * Return: 0, -EBUSY (back end `host`: queued GPU work uses the object; it remains open), -EINVAL (it is mapped in an
 * elastic range: gpool_range_unmap()), -ECHILD. Cost: a few unmap calls; for the last handle of a version also a
 * request to the agent.
 */
GPOOL_API int gpool_object_close(struct gpool_object *object);

/*
 * gpool_object_pin() - pin an open version of class GPOOL_OBJECT_PINNABLE, or of gpool_range_publish(): keep its
 * content in the pool, at its addresses. Pins nest: call gpool_object_unpin() once per pin.
 *
 * This class is for content that is used repeatedly and can be loaded again, such as adapters. Between two uses the
 * object remains mapped and may be evicted in favor of other content. The publisher must pin the object as well. The
 * pins of a session count as leaked when it has not pinned the object again for pins.max_duration.
 *
 * Return: 0, or
 *   -ESTALE     the object was evicted or deleted, or its name has another version. Close it, and open the name or
 *               publish the object again
 *   -EINVAL     another class, or not published
 *   -ETIMEDOUT  the agent examined the object for longer than pins.timeout; try again
 *   -ECHILD     after fork()
 *
 * Threads: any. Cost: one atomic operation and no system call. Source: shm/pins.h.
 */
GPOOL_API int gpool_object_pin(struct gpool_object *object);

/*
 * gpool_object_unpin() - end one pin of an object; any thread may end it.
 *
 * Return: 0, -EINVAL (another class, not pinned), -ESTALE (the pin was ended as leaked, and the object was evicted),
 * -ECHILD. Cost: one atomic operation and a few loads.
 */
GPOOL_API int gpool_object_unpin(struct gpool_object *object);

/*
 * gpool_object_unpin_after() - end one pin when a fence is signaled. The call does not wait; GPU work may read the
 * object until the fence is signaled.
 *
 * Return: 0, or an error that keeps the pin: -EINVAL (another class, not pinned, not a fence of this session), -ESTALE
 * (as gpool_object_unpin()), -ENOMEM, -ECHILD. Cost: as gpool_unpin_after().
 */
GPOOL_API int gpool_object_unpin_after(struct gpool_object *object, struct gpool_fence fence);

/*
 * gpool_object_address() - return the address and the size of an allocation. Its bytes are contiguous, and the address
 * is valid until the object is closed; for an object that only pins protect (gpool_object_pin()), while it is pinned.
 *
 * Return: 0, -EINVAL (no such allocation), -ESTALE (not published, and the pin was ended as leaked), -ECHILD. Cost: a
 * few loads.
 */
GPOOL_API int gpool_object_address(struct gpool_object *object, uint32_t index, uint64_t *address, uint64_t *bytes);

/*
 * gpool_object_get() - return a metadata value of a published object. It is aligned to 8 bytes and valid until the
 * object is closed.
 *
 * Return: 0, -ENOENT (no such key), -EINVAL (not published), -ECHILD. Cost: a search in memory.
 */
GPOOL_API int gpool_object_get(struct gpool_object *object, const char *key, const void **value, size_t *bytes);

/*
 * gpool_object_entry() - return a metadata entry by its index in the order of the keys. The key is NUL-terminated.
 *
 * Return: 0, -ENOENT (fewer entries), -EINVAL (not published), -ECHILD.
 */
GPOOL_API int gpool_object_entry(
	struct gpool_object *object, uint32_t index, const char **key, const void **value, size_t *bytes);

/*
 * gpool_object_delete() - delete an object by name. Its pages are freed when the last reader closes it.
 *
 * @version: version that must be current; 0: any
 *
 * An object may be deleted by the sessions that may replace it: its writer, sessions of its tenant, and with
 * DOMAIN_WRITE sessions of its trust domain. Admins may delete objects of all domains; if the name exists in several
 * domains, they must state the version.
 *
 * Return: 0, or
 *   -ENOENT     no such object
 *   -ESTALE     another version is current
 *   -EPERM      no right to delete it; the session is an observer
 *   -EINVAL     name; a name that exists in several trust domains, without a version
 *   -ETIMEDOUT  no answer within 10 s; the object may still be deleted
 *   -EPIPE, -EPROTO, -ECHILD
 *
 * Cost: one request to the agent.
 */
GPOOL_API int gpool_object_delete(struct gpool *pool, const char *name, uint64_t version);

enum gpool_object_state { GPOOL_OBJECT_CURRENT = 2, GPOOL_OBJECT_OLD = 3, GPOOL_OBJECT_DELETED = 4 };

struct gpool_object_info {
	uint32_t size;         /* sizeof(struct gpool_object_info), set by the caller */
	uint32_t number;       /* number of the object in the page table */
	uint32_t state;        /* enum gpool_object_state */
	uint32_t memory_class; /* enum gpool_object_class */
	uint32_t pages, allocations;
	uint32_t readers; /* sessions that have it open */
	uint32_t writer;  /* session that may write to it; 0: none */
	uint64_t version;
	uint64_t layout_hash; /* hash of allocation sizes and metadata, without the content of allocations */
	uint64_t metadata_bytes;
	uint64_t published_ms; /* wall clock, milliseconds since 1970 */
	uint32_t uid, pid;     /* of the publisher */
	char name[128];
	char tenant[64];
	char role[64];
};
GPOOL_ASSERT_SIZE(gpool_object_info, 328);

/*
 * gpool_object_info() - describe a published object.
 *
 * Return: 0, -EINVAL (not published; size), -ESTALE (an object that only pins protect was evicted), -EPIPE (the session
 * has ended), -ECHILD. Cost: reads the shared table.
 */
GPOOL_API int gpool_object_info(struct gpool_object *object, struct gpool_object_info *info);

/*
 * gpool_object_next() - list the versions of all objects of this session's trust domain; observers and admins list all
 * domains.
 *
 * @cursor: 0 before the first call; updated by each call
 * @info:   receives the next version; the caller sets its size
 *
 * Return: 0, -ENOENT (end of the list), -EINVAL (size), -ECHILD. Cost: reads the shared table; no request to the agent.
 */
GPOOL_API int gpool_object_next(struct gpool *pool, uint32_t *cursor, struct gpool_object_info *info);

/*
 * gpool_object_find() - count the names at the beginning of a list that refer to objects which this session may open.
 *
 * @names: [count] each as in gpool_object_create(); for example the names of the parts of a prefix, in order
 *
 * The objects are not opened, and may be evicted or deleted at any time.
 *
 * Return: the number of consecutive names, from the first one on, that refer to such an object; -EINVAL (a count above
 * 2^31 - 1; NULL for a name), -ECHILD.
 * Threads: any. Cost: a lookup in the shared table for each name; no request.
 */
GPOOL_API int gpool_object_find(struct gpool *pool, const char *const *names, uint32_t count);

/* ---- loans ---- */

/*
 * A loan is a pin that code outside this library ends by calling a function with one address. In DLPack, an exchanged
 * tensor has such a function, its deleter, which is called with the address of the tensor's descriptor. The loan is
 * stored directly before this descriptor.
 *
 *	struct { struct gpool_loan loan; struct DLManagedTensorVersioned tensor; } *lent = ...;
 *	lent->loan = (struct gpool_loan){ pool, NULL, block, 0, 0, 0, sizeof(lent->loan) };    pinned once for it
 *	lent->tensor.deleter = (void (*)(struct DLManagedTensorVersioned *))gpool_loan_end;
 *
 * The lender owns the memory of the loan and the descriptor. It may free this memory, and close the pool or the object,
 * only when `ended` is not 0.
 */
struct gpool_loan {
	struct gpool *pool;
	struct gpool_object *object; /* of class GPOOL_OBJECT_PINNABLE, pinned once for the loan; or NULL */
	struct gpool_block block;    /* pinned once for the loan; page_count 0: none */
	uint32_t stream;             /* gpool_loan_end() ends the pin after the work queued on it; 0: at once */
	uint32_t ended;              /* initially 0; set to 1 by the last store of gpool_loan_end() */
	uint32_t reserved;           /* 0 */
	/*
	 * sizeof(struct gpool_loan). A loan is located by its end, so new fields are inserted before this one
	 */
	uint32_t size;
};
GPOOL_ASSERT_SIZE(gpool_loan, 56);

/*
 * gpool_loan_end() - end the pin of a loan, once.
 *
 * @behind: address directly after the loan
 *
 * If there is no memory to record a fence, the call waits for the stream. If a graph is being captured from the stream,
 * the pin ends after the capture; if the GPU has failed, it ends with the process.
 *
 * Threads: any. Cost: as gpool_unpin(); with a stream, plus one driver call.
 */
GPOOL_API void gpool_loan_end(void *behind);

#ifdef __cplusplus
}
#endif

#endif
