/* object.h - named objects, which outlive their writer, and loans. */
#ifndef GPOOL_OBJECT_H
#define GPOOL_OBJECT_H

#include "block.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpool_object; /* a named object: one that is being built, or a version that is open */

/* ---- named objects ---- */

/*
 * A named object outlives its writer: allocations and metadata under a name, published in one step and read by any
 * worker of the pool that is of the same trust domain; other domains may use the same name for objects of their own
 * (docs/rights.md). Each publication is a version of its own; who has an older one open keeps it, unchanged, until it
 * closes it.
 *
 * What may become of the pages is declared when the object is made, and all access follows from it:
 */
enum gpool_object_class {
	GPOOL_OBJECT_IMMUTABLE = 0, /* read only for everybody from its publication on, its writer included */
	GPOOL_OBJECT_MUTABLE = 1,   /* its one writer goes on writing; readers read, and see it at once */
	GPOOL_OBJECT_EPHEMERAL = 2, /* as immutable, and may be evicted as a whole while nobody has it open */
	/*
	 * as immutable, and may be evicted as a whole while no session pins it, open or not: gpool_object_pin().
	 * The one with the lowest (uses x cost_us / bytes) is evicted first; uses are pins
	 */
	GPOOL_OBJECT_PINNABLE = 3
};

enum {
	/* GPOOL_OBJECT_PINNABLE: its publisher has it pinned from the first moment on, until gpool_object_unpin() */
	GPOOL_OBJECT_PINNED = 1u << 0,
	/* sessions of other tenants cannot open it; those of its trust domain see its name */
	GPOOL_OBJECT_PRIVATE = 1u << 1,
	/* all tenants of the trust domain may replace and delete it; not with PRIVATE */
	GPOOL_OBJECT_DOMAIN_WRITE = 1u << 2,
};

#define GPOOL_OBJECT_NONE UINT64_MAX /* expect_version: there must be no such object */

struct gpool_object_options {
	uint32_t size;         /* sizeof(struct gpool_object_options); GPOOL_OBJECT_OPTIONS_INIT sets it */
	uint32_t flags;        /* GPOOL_OBJECT_PINNED, _PRIVATE, _DOMAIN_WRITE; an unknown bit is -EINVAL */
	uint32_t memory_class; /* enum gpool_object_class */
	/* GPOOL_OBJECT_PINNABLE: what it takes to have it again, microseconds, at most a minute; 0: not known */
	uint32_t cost_us;
	/* that this process holds: looked at when it publishes; its holder may adopt the object. NULL: none */
	const char *role;
	uint64_t role_token;     /* fencing token of the role */
	uint64_t expect_version; /* publish only over this version; 0: over whatever is there; GPOOL_OBJECT_NONE */
};
GPOOL_ASSERT_SIZE(gpool_object_options, 40);
#define GPOOL_OBJECT_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_object_options), 0, 0, 0, 0, 0, 0 \
	}

/*
 * gpool_object_create() - begin an object of this name, at most 127 bytes. All until gpool_object_publish() is this
 * process's own: nobody sees it, and it goes when the process ends. One thread at a time until then; afterwards any.
 * Return: 0, -EINVAL (name, flag, PRIVATE with DOMAIN_WRITE, class), -E2BIG, -EPERM (a session that only reads),
 * -ENOMEM, -ECHILD.
 */
GPOOL_API int gpool_object_create(
	struct gpool *pool, const char *name, const struct gpool_object_options *options, struct gpool_object **object);

/*
 * gpool_object_alloc() - a further allocation, as gpool_alloc() with these options; *index counts from 0. It is a block
 * of this process, pinned until it is published. (As any pin it needs to be in use: every call for the object refreshes
 * them all.)
 * Return: as gpool_alloc(); -EINVAL: it is published, or GPOOL_ALLOC_SPILL is asked for.
 */
GPOOL_API int gpool_object_alloc(
	struct gpool_object *object, uint32_t page_count, const struct gpool_alloc_options *options, uint32_t *index);

/*
 * gpool_object_set() - metadata: any bytes under a key, a text of 1 to 1,023 bytes. A second value for a key replaces
 * the first. All metadata of an object may have 64 MiB. Return: 0, -EINVAL, -ENOMEM, -EFBIG.
 */
GPOOL_API int gpool_object_set(struct gpool_object *object, const char *key, const void *value, size_t bytes);

/*
 * gpool_object_publish() - one step: from now on the name means this, whole. The object stays open, so that its
 * addresses stay valid, but only a mutable one can be written any more; GPU work that writes to it must be done before.
 *
 * Return: 0, or, and then it is as before and may be published again or aborted:
 *   -ESTALE  another version is current than expected; the role's token is not good any more; a pin was lost to
 *            pins.leaked
 *   -EPERM   the name belongs to another tenant, or is one of the library's own, such as lora/... (docs/rights.md)
 *   -EBUSY   queued GPU work still uses it and could write to it
 *   -EINVAL  published already, or without an allocation
 *   -EUSERS  as many versions of objects are there as the pool may have (`objects` of its configuration)
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
	/* become the writer of a mutable object whose writer is gone; takes the object's role */
	GPOOL_OBJECT_ADOPT = 1u << 0,
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
#define GPOOL_OBJECT_OPEN_OPTIONS_INIT \
	{ \
		sizeof(struct gpool_object_open_options), 0, 0, 0, 0, 0 \
	}

/*
 * gpool_object_open() - map a version, read only unless this process is its writer. It stays as it is until
 * gpool_object_close(), whatever is published or deleted meanwhile; one of class GPOOL_OBJECT_PINNABLE while it is
 * pinned.
 *
 * Return: 0, or
 *   -EINVAL  name, flag, ADOPT without a role or of an object that is not mutable
 *   -ENOENT  no object of this name, or not this version
 *   -EPROTO  another layout hash
 *   -ESTALE  the role's token is not good (any more)
 *   -EBUSY   ADOPT, and another process is its writer
 *   -EACCES  of another tenant alone
 *   -EPERM   ADOPT with another role than the object's; or a session that only reads
 *   -ENOMEM, -EMFILE, -EPIPE, -E2BIG, -ECHILD
 *
 * Cost: one question to the agent, whatever the number of allocations, and one mapping for each page.
 */
GPOOL_API int gpool_object_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options,
	struct gpool_object **object);

/*
 * gpool_object_close() - its addresses end. Closing the last handle of a mutable object ends this process's right to
 * write it; one that is not published is aborted. NULL is fine. Return: 0, -EBUSY (queued GPU work still uses it: it
 * stays open), -ECHILD.
 */
GPOOL_API int gpool_object_close(struct gpool_object *object);

/*
 * gpool_object_pin() - an open version of class GPOOL_OBJECT_PINNABLE stays, with its content at its addresses, until
 * gpool_object_unpin() was called as often. For what is used now and then and can be had again, like adapters: it stays
 * mapped between two uses, costs nothing to use again, and makes room for others meanwhile. The publisher pins, too.
 *
 * gpool_object_unpin_after() - lets go when the fence is reached, without waiting; then its work may still read.
 *
 * Return: 0, or
 *   -ESTALE     it was evicted, or its name means another version by now: close it, and open the name or publish it
 *               again
 *   -EINVAL     of another class, not published, not pinned, or no such fence
 *   -ETIMEDOUT  pin: being looked at for longer than pin_timeout; try again
 *   -ENOMEM     unpin_after: it stays pinned
 *   -ECHILD
 *
 * Threads: any. Cost: one atomic operation and no system call. Source: shm/pins.h.
 */
GPOOL_API int gpool_object_pin(struct gpool_object *object);
GPOOL_API int gpool_object_unpin(struct gpool_object *object);
GPOOL_API int gpool_object_unpin_after(struct gpool_object *object, struct gpool_fence fence);

/*
 * gpool_object_address() - of an allocation, and its size: contiguous bytes, valid until the object is closed. -EINVAL:
 * no such one.
 */
GPOOL_API int gpool_object_address(struct gpool_object *object, uint32_t index, uint64_t *address, uint64_t *bytes);

/*
 * gpool_object_get() - a value of a published object, aligned to 8 and valid until it is closed. -ENOENT: no such key.
 */
GPOOL_API int gpool_object_get(struct gpool_object *object, const char *key, const void **value, size_t *bytes);

/*
 * gpool_object_entry() - the index-th entry in order of the keys, each of which ends with a NUL. -ENOENT: there are not
 * so many.
 */
GPOOL_API int gpool_object_entry(
	struct gpool_object *object, uint32_t index, const char **key, const void **value, size_t *bytes);

/*
 * gpool_object_delete() - the name is gone at once, the pages with their last reader. Whoever may publish over it may
 * delete it, and so may admins, who name the version where several trust domains have such a name. version 0: the
 * current one. Return: 0, -ENOENT, -ESTALE (another version is current), -EPERM, -EINVAL (name; an admin's name of
 * several trust domains without a version), -ETIMEDOUT (no answer within 10 s; it may be deleted all the same), -EPIPE,
 * -ECHILD.
 */
GPOOL_API int gpool_object_delete(struct gpool *pool, const char *name, uint64_t version);

enum gpool_object_state { GPOOL_OBJECT_CURRENT = 2, GPOOL_OBJECT_OLD = 3, GPOOL_OBJECT_DELETED = 4 };

struct gpool_object_info {
	uint32_t size;         /* sizeof(struct gpool_object_info), set by the caller */
	uint32_t number;       /* owner in the page table */
	uint32_t state;        /* enum gpool_object_state */
	uint32_t memory_class; /* enum gpool_object_class */
	uint32_t pages, allocations;
	uint32_t readers; /* sessions that have it open */
	uint32_t writer;  /* session that may write it; 0: none */
	uint64_t version;
	uint64_t layout_hash; /* of allocation sizes and metadata; contents do not enter */
	uint64_t metadata_bytes;
	uint64_t published_ms; /* wall clock */
	uint32_t uid, pid;     /* of who published it */
	char name[128];
	char tenant[64];
	char role[64];
};
GPOOL_ASSERT_SIZE(gpool_object_info, 328);

/*
 * gpool_object_info() - of one that is published. -EINVAL: it is not; or its size. -ESTALE: GPOOL_OBJECT_PINNABLE, and
 * it was evicted.
 */
GPOOL_API int gpool_object_info(struct gpool_object *object, struct gpool_object_info *info);

/*
 * gpool_object_next() - the next version of any object of this session's trust domain, of all domains for an observer
 * or admin; *cursor is 0 at first. Out of the shared table, without a question to the agent.
 * Return: 0, -ENOENT (that was all), -EINVAL, -ECHILD.
 */
GPOOL_API int gpool_object_next(struct gpool *pool, uint32_t *cursor, struct gpool_object_info *info);

/* ---- loans ---- */

/*
 * A pin for code that knows nothing of gpool and ends it with one argument: whoever gives it memory as a tensor
 * (DLPack) also gives it a function to call when it is done, and the address of the tensor's description to call it
 * with. The loan lies right in front of that.
 *
 *	struct { struct gpool_loan loan; struct DLManagedTensorVersioned tensor; } *lent = ...;
 *	lent->loan = (struct gpool_loan){ pool, NULL, block, 0, 0, 0, sizeof(lent->loan) };    pinned once for it
 *	lent->tensor.deleter = (void (*)(struct DLManagedTensorVersioned *))gpool_loan_end;
 *
 * The memory of both stays the lender's, who frees it when `ended` is not 0 any more, and closes neither pool nor
 * object before.
 */
struct gpool_loan {
	struct gpool *pool;
	struct gpool_object *object; /* of class GPOOL_OBJECT_PINNABLE, pinned once for this; or NULL */
	struct gpool_block block;    /* pinned once for this; page_count 0: none */
	uint32_t stream;             /* the pin ends behind what is queued there by then; 0: at once */
	uint32_t ended;              /* 0; gpool_loan_end() makes it 1, last of all */
	uint32_t reserved;           /* 0 */
	/* sizeof(struct gpool_loan). The last field, since a loan is found by its end: later fields are put in front */
	uint32_t size;
};
GPOOL_ASSERT_SIZE(gpool_loan, 56);

/*
 * gpool_loan_end() - end the pin of the loan that ends where `behind` begins. Once. Where the fence for it cannot be
 * made, memory being short, it waits for the stream. Threads: any. Cost: gpool_unpin(), with a stream a driver call
 * more.
 */
GPOOL_API void gpool_loan_end(void *behind);

#ifdef __cplusplus
}
#endif

#endif
