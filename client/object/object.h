/*
 * object.h - a handle of a named object: one that is being built, or a version that is open. Internal to libgpool.
 *
 * While it is built its allocations are blocks, pinned once by the handle. To be published they leave the block table
 * first, so that their pages are in transit (docs/internals/shared_memory.md): nobody takes those, and when agent or
 * worker die at any point there is nothing to tidy up, since the page words say by then whether they are the object's
 * or still the worker's.
 *
 * A version that is opened by name is mapped into a range of its own, with the access that its class gives. What this
 * process has built itself stays where it is, and loses write access where it is.
 */
#ifndef GPOOL_CLIENT_OBJECT_H
#define GPOOL_CLIENT_OBJECT_H

#include "client/core/internal.h"
#include "client/core/block.h"
#include "shm/manifest.h"

/* An allocation that is being built, or was built here. */
struct object_part {
	struct gpool_block block;
	uint64_t range; /* once it is published: address of the range that a scattered block had */
};

/* Metadata before it is sorted. */
struct draft_entry {
	uint64_t prefix; /* the key's first 8 bytes, so that most comparisons need nothing else */
	uint64_t at;     /* of key, NUL and value in `data`; rises with the order of the calls */
	uint32_t key_bytes, value_bytes;
};

struct draft {
	struct draft_entry *entries;
	char *data;
	uint64_t bytes, capacity;
	uint32_t count, entry_capacity;
};

struct gpool_object {
	struct gpool *pool;
	struct gpool_object *next, **link; /* in pool->objects, under pool->objects_lock */
	char name[128];
	char role[64];
	uint64_t role_token, expect_version;
	uint32_t memory_class;
	uint32_t number; /* 0: not published */
	bool asking;     /* the agent is being asked about it; under pool->objects_lock */
	uint64_t version;
	bool writable;
	bool pinned; /* to be published with a pin of ours */
	bool private;
	bool domain_write;
	bool of_library; /* a call of libgpool's own publishes it, by a name that programs cannot publish by */
	bool by_pins;    /* once it is published: pins alone keep it (object_kept_by_pins()) */
	uint32_t cost_us;
	uint32_t touched_ms;
	/* built here */
	const struct gpool_object *follows; /* while it is published */
	struct object_part *parts;
	uint32_t part_count, part_capacity;
	struct draft draft;
	/* published */
	struct manifest manifest;
	uint64_t *addresses;         /* [allocations] */
	uint64_t range, range_bytes; /* opened by name */
	/* mapped by its holder at addresses of its own; 0: nothing. Under pool->objects_lock */
	uint64_t mapping, mapping_bytes;
};

/* object.c */
int object_new(struct gpool *pool, const char *name, struct gpool_object **object);
/*
 * object_ask_begin(), object_ask_end() - around a question to the agent whether this session has an object open: of one
 * name there is one at a time, so that what the agent counts, one session each, and who has it open here cannot fall
 * apart. The caller holds pool->objects_lock, which begin() lets go of while it waits for another thread's question
 * about that name.
 */
void object_ask_begin(struct gpool_object *object);
void object_ask_end(struct gpool_object *object);
/*
 * object_free() - out of the list, with all memory; what is mapped is gone already. The caller holds
 * pool->objects_lock.
 */
void object_free(struct gpool_object *object);
int objects_open(struct gpool *pool);
void objects_close_all(struct gpool *pool);
int object_text_copy(char *to, size_t size, const char *from);
/* object_domain() - the trust domain of this session, to which its names belong; 0: domains are not told apart. */
uint32_t object_domain(const struct gpool *pool) GPOOL_INTERNAL(object_domain);
/*
 * object_look_up() - the version that a name means at this moment, as gpool_object_next() tells it, without asking the
 * agent: false, there is none, or its record is just changing. Cost: below a microsecond, whatever else there is.
 */
bool object_look_up(const struct gpool *pool, const char *name, struct gpool_object_info *info);
/*
 * object_open() - gpool_object_open() with options that were read. `map` false: into no range, the caller maps the
 * manifest's runs.
 */
int object_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options, bool map,
	struct gpool_object **object);

/* object_pin.c */
/* object_pin_raise() - a pin on what is about to be published: its pages are in transit. */
void object_pin_raise(struct gpool_object *object);
/* object_is_gone() - an open version does not stand any more: it was evicted, as class GPOOL_OBJECT_PINNABLE allows. */
bool object_is_gone(const struct gpool_object *object) GPOOL_INTERNAL(object_is_gone);
/* objects_sweep() - ranges and places of those that were evicted are unmapped. False: not all of them could be. */
bool objects_sweep(struct gpool *pool);
/*
 * object_pin() - gpool_object_pin() of one that pins alone keep, of any class; object_unpin() -
 * gpool_object_unpin_after() likewise.
 */
int object_pin(struct gpool_object *object);
int object_unpin(struct gpool_object *object, struct gpool_fence fence);
/*
 * object_mapped_at() - its pages are mapped at `at`, until object_mapping_unmap(), or until it has been evicted and its
 * pages are wanted by another trust domain. object_mapping_unmap() - 0, -EBUSY (GPU work uses them), or what the back
 * end said.
 */
void object_mapped_at(struct gpool_object *object, uint64_t at, uint64_t bytes);
int object_mapping_unmap(struct gpool_object *object);

/* object_draft.c */
int draft_set(struct draft *draft, const char *key, const void *value, size_t bytes);
void draft_free(struct draft *draft);
/*
 * draft_manifest() - a sealed manifest of these runs and this metadata; *fd is the caller's. 0, -EFBIG, -ENOMEM,
 * -EMFILE.
 */
struct manifest_runs {
	struct manifest_run *runs;
	uint32_t *run_counts, *sizes; /* [allocations] */
	uint32_t run_count, allocations;
};
int draft_manifest(struct draft *draft, const struct manifest_runs *runs, uint64_t page_bytes, int *fd);

/* object_map.c */
/*
 * object_map() - all of it into a range of its own, addresses filled: 0, -ENOMEM, -EPIPE. object_unmap() - 0, -EBUSY.
 */
int object_map(struct gpool_object *object);
int object_unmap(struct gpool_object *object);

/* object_build.c */
/*
 * object_keep() - publish a pinned, scattered block of the caller's, mapped at `address`, under this name, with no
 * metadata. On success its pages are the object's, and the mapping, which may only be read then, stays the caller's.
 * Else *block is as before, perhaps with another generation. Return: as gpool_object_publish().
 */
int object_keep(struct gpool *pool, const char *name, struct gpool_block *block, uint64_t address,
	struct gpool_object **object);
/*
 * object_give() - publish pinned blocks of the caller's as one ephemeral object of this name, which nobody must have
 * yet, with one piece of metadata. Pins alone keep it, and the caller has pinned it then. `follows`: an ephemeral one
 * that is open here and goes after this one; or NULL. On success their pages are the object's; where the caller has
 * them mapped is its matter. Else blocks[] are as before, perhaps with other generations.
 * Return: as gpool_object_publish().
 */
int object_give(struct gpool *pool, const char *name, const struct gpool_object *follows, struct gpool_block *blocks,
	uint32_t count, const char *key, const void *value, size_t bytes, struct gpool_object **object);
/* object_parts_drop() - of one that is not published: its blocks end. */
void object_parts_drop(struct gpool_object *object);
/* object_protect() - the pages that were built here, where they are: 0, -EBUSY. */
int object_protect(struct gpool_object *object, bool readonly);
/* object_parts_unmap() - the ranges of scattered parts, once it is published: 0, -EBUSY. */
int object_parts_unmap(struct gpool_object *object);

#endif
