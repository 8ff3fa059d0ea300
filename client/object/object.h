/*
 * object.h - a handle of an object that is being built, or of an open version of a named object. Internal to libgpool.
 *
 * While an object is built, its allocations are blocks that its handle has pinned once. gpool_object_publish() first
 * removes these blocks from the block table, so that their pages are in transit (docs/internals/shared_memory.md) and
 * the agent does not evict them. If the agent or the worker dies, the page words show whether the pages belong to the
 * object or still to the worker.
 *
 * A version that is opened by name is mapped into a range of its own, with the access that its class permits, unless a
 * caller of object_open() maps it. An object that was built by this process keeps its addresses, but loses write access
 * to them unless its class is GPOOL_OBJECT_MUTABLE.
 */
#ifndef GPOOL_CLIENT_OBJECT_H
#define GPOOL_CLIENT_OBJECT_H

#include "client/core/internal.h"
#include "client/core/block.h"
#include "client/core/stitch.h"
#include "shm/manifest.h"

/* An allocation of an object that is being built, or was built by this process. */
struct object_part {
	struct gpool_block block;
	struct stitch_range range; /* once published: the addresses that a scattered block had; va 0: none */
};

/* Metadata before publication. */
struct draft_entry {
	uint64_t prefix; /* 8 bytes of the key, for draft_sort() */
	uint64_t at;     /* offset of key, NUL and value in `data`; increases with the order of the calls */
	uint32_t key_bytes, value_bytes;
};

enum { DRAFT_SLACK = 8, DRAFT_PREFETCH = 8 };

struct draft {
	struct draft_entry *entries;
	char *data; /* followed by DRAFT_SLACK bytes that may be read */
	uint64_t bytes, capacity;
	uint32_t count, entry_capacity;
};

struct gpool_object {
	struct gpool *pool;
	struct gpool_object *next, **link; /* list of the pool's objects, protected by pool->objects_lock */
	char name[128];
	char role[64];
	uint64_t role_token, expect_version;
	uint32_t memory_class;
	uint32_t number; /* 0: not published */
	bool asking;     /* a request about it is in progress; protected by pool->objects_lock */
	uint64_t version;
	bool writable;
	bool pinned; /* publish the object with a pin of this session */
	bool private;
	bool domain_write;
	bool of_library; /* published by libgpool itself, under a name that is reserved for it */
	bool by_pins;    /* once published: only pins prevent its eviction (object_kept_by_pins()) */
	uint32_t cost_us;
	uint32_t touched_ms;
	/* used only if this process built the object: its allocations */
	const struct gpool_object *follows; /* set during a publish */
	struct object_part *parts;
	uint32_t part_count, part_capacity;
	struct draft draft;
	/* once published */
	struct manifest manifest;
	uint64_t *addresses;         /* [allocations] */
	uint64_t range, range_bytes; /* if opened by name */
	/* addresses at which the user of the handle has mapped it; 0: none. Protected by pool->objects_lock */
	uint64_t mapping, mapping_bytes;
	bool in_range; /* the user is an elastic range: gpool_range_unmap() ends the mapping */
};

/* object.c */
int object_new(struct gpool *pool, const char *name, struct gpool_object **object);
/*
 * object_ask_begin(), object_ask_end() - enclose a request to the agent that changes whether this session has an object
 * open. Requests for the same name are serialized, so that the agent's count, one per session, matches the handles of
 * this process. The caller holds pool->objects_lock; object_ask_begin() releases it while it waits for a request of
 * another thread.
 */
void object_ask_begin(struct gpool_object *object);
void object_ask_end(struct gpool_object *object);
/*
 * object_free() - remove a handle from the list and free its memory. The caller has unmapped the object, and holds
 * pool->objects_lock.
 */
void object_free(struct gpool_object *object);
int objects_open(struct gpool *pool);
void objects_close_all(struct gpool *pool);
int object_text_copy(char *to, size_t size, const char *from, const char *what);
/*
 * object_look_up() - find the current version of a name without a request to the agent, and describe it as
 * gpool_object_next() does. Return false if no version exists or its record is being changed.
 * Cost: below a microsecond, independent of the number of objects.
 */
bool object_look_up(const struct gpool *pool, const char *name, struct gpool_object_info *info);
/*
 * object_open() - gpool_object_open() with options that were already checked. If `map` is false, the caller maps the
 * runs of the manifest itself.
 */
int object_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options, bool map,
	struct gpool_object **object);

/*
 * object_adapter_ask() - ask the agent whether this session may publish an adapter `adapter` as object `name`. Return:
 * 0, -EPERM, with its text, or as attach_call().
 */
int object_adapter_ask(struct gpool *pool, const char *name, const char *adapter) GPOOL_INTERNAL(object_adapter_ask);

/* object_pin.c */
/* object_pin_raise() - pin an object whose pages are in transit because it is about to be published. */
void object_pin_raise(struct gpool_object *object);
/* object_fail_gone() - describe an object that was evicted. Return: -ESTALE. */
int object_fail_gone(const struct gpool_object *object) COLD;
/* object_is_gone() - return true if an open version, whose eviction only pins prevent, was evicted. */
bool object_is_gone(const struct gpool_object *object) GPOOL_INTERNAL(object_is_gone);
/* objects_sweep() - unmap evicted objects. Return false if one of them must stay mapped for the time being. */
bool objects_sweep(struct gpool *pool);
/*
 * object_pin() and object_unpin() - do the same as gpool_object_pin() and gpool_object_unpin_after(). Permitted for
 * every object whose eviction only pins prevent, whatever its class is.
 */
int object_pin(struct gpool_object *object);
int object_unpin(struct gpool_object *object, struct gpool_fence fence);
/*
 * object_mapped_at() - record that the caller has mapped the pages at `at`. The mapping lasts until
 * object_mapping_unmap(), or, if the object is evicted, until objects_sweep().
 * object_mapping_unmap() - unmap them. Return: 0, -EBUSY (GPU work uses them), or the error of the back end.
 */
void object_mapped_at(struct gpool_object *object, uint64_t at, uint64_t bytes);
int object_mapping_unmap(struct gpool_object *object);

/* object_draft.c */
int draft_set(struct draft *draft, const char *key, const void *value, size_t bytes);
void draft_free(struct draft *draft);
/*
 * draft_manifest() - seal a manifest with these runs and this metadata, and map it. The caller owns *fd and *manifest.
 * Return: 0, -EFBIG, -ENOMEM, -EMFILE.
 */
struct manifest_runs {
	struct manifest_run *runs;
	uint32_t *run_counts, *sizes; /* [allocations] */
	uint32_t run_count, allocations;
};
int draft_manifest(
	struct draft *draft, const struct manifest_runs *runs, uint64_t page_bytes, struct manifest *manifest, int *fd);

/* object_sort.c */
/*
 * draft_sort() - sort by key, and keep the last value of each key. The data of other values stays allocated but unused.
 * Return: 0, -ENOMEM. Cost: linear in the bytes of all keys.
 */
int draft_sort(struct draft *draft);

/* object_map.c */
/*
 * object_map() - map the object into a range of its own and store the addresses. Return: 0, -ENOENT (it was evicted),
 * -ENOMEM, -EPIPE.
 * object_unmap() - unmap the range. Return: 0, -EBUSY.
 */
int object_map(struct gpool_object *object);
int object_unmap(struct gpool_object *object);
/*
 * object_map_at() - map all handles of the object side by side at addresses that the caller has reserved. Return: 0, or
 * -ENOENT (it was evicted), -ENOMEM, -EPIPE with nothing mapped, except that *stuck is set if the driver could not
 * remove mappings.
 */
int object_map_at(struct gpool_object *object, uint64_t begin, bool *stuck);

/* object_build.c */
/*
 * object_keep() - publish a pinned, scattered block of the caller, mapped in this range, under this name and without
 * metadata. On success, its pages belong to the object, and the caller's mapping becomes read-only. On an error, *block
 * is unchanged, except that its generation may be updated.
 * Return: as gpool_object_publish().
 */
int object_keep(struct gpool *pool, const char *name, struct gpool_block *block, const struct stitch_range *range,
	struct gpool_object **object);
/*
 * object_give() - publish pinned blocks of the caller as one ephemeral object, under a name that must be free. Only
 * pins prevent the eviction of the object, which is returned pinned. On success, the pages belong to the object; the
 * caller remains responsible for its own mapping. On an error, blocks[] are unchanged, except that their generations
 * may be updated.
 * Return: as gpool_object_publish().
 */
struct object_gift {
	const char *name;
	const struct gpool_object *follows; /* an open ephemeral object that is to be evicted after this one; or NULL */
	const char *key;                    /* key of the object's only metadata entry; NULL: no metadata */
	const void *value;
	size_t bytes;
	bool of_library, private;
};
int object_give(struct gpool *pool, const struct object_gift *gift, struct gpool_block *blocks, uint32_t count,
	struct gpool_object **object);
/* object_parts_drop() - free the blocks of an object that is not published. */
void object_parts_drop(struct gpool_object *object);
/* object_protect() - set the access to pages that were built by this process, at their addresses. Return: 0, -EBUSY. */
int object_protect(struct gpool_object *object, bool readonly);
/* object_parts_unmap() - unmap the ranges of the scattered parts of a published object. Return: 0, -EBUSY. */
int object_parts_unmap(struct gpool_object *object);

#endif
