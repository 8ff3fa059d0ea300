/*
 * load.h - the load of an adapter into the pool. Internal to client/lora.
 *
 * acquire.c queues an adapter. Loader threads (loaders.c) take each further step from a list: they begin a load
 * (load.c), make its parts (turns.c, part.c) and end it (finish.c). Copies are made later (later.h). load_state.h
 * defines the states and lists.
 *
 * A part consists of some pages. All loads in progress take turns, one part at a time, in the order in which they
 * began. Several threads can therefore work on one adapter, and a small adapter does not wait for a large one.
 *
 * If the CPU can write to pages, a thread that waits for a load, without a short timeout, begins the load itself and
 * makes those parts that come from memory. Without any timeout, it also ends the load if it has made the last part.
 * Waking another thread may take as long as making a part. Longer work is left to loader threads.
 */
#ifndef GPOOL_CLIENT_LORA_LOAD_H
#define GPOOL_CLIENT_LORA_LOAD_H

#include "client/lora/format/adapter.h"
#include "client/lora/load/cold_reader.h"
#include "client/lora/load/lora.h"
#include "client/lora/load/warm.h"

struct lora_load {
	struct gpool_lora *lora;
	struct lora_entry *entry;
	struct adapter *adapter; /* a reference */
	struct lora_files files;
	struct gpool_object
		*object;   /* named by the key; being built, or published; NULL: none, or adapter_has_object() */
	bool shared;       /* the object was published by another engine, and is pinned */
	bool unasked;      /* begun by rebalance.c: it evicts nothing */
	uint64_t began_ns; /* time at which the pages were allocated */
	uint64_t base;
	struct tail tail; /* of which only the pages are made if the object is shared */
	struct lora_runs runs;

	enum lora_from from; /* the open source, or the next one to open */
	enum cold_form form; /* of the open source */
	struct warm_copy warm;
	struct cold_file cold; /* header NULL: not open */
	/*
	 * Reader of the cold file, used by the thread that fetches a part, while the load is MAKING. NULL: each thread
	 * reads the file itself.
	 */
	struct cold_reader *reader;
	uint64_t warm_refused; /* version of an invalid warm copy; 0: none */
	bool cold_refused;     /* the cold file is invalid */

	/* The following fields are protected by the lock, except that a thread reads done[] of its own part. */
	bool *done;       /* [pages] */
	uint32_t next;    /* start of the next part: its first page, or with a cold file its group */
	uint32_t running; /* number of threads that make or fetch parts of this load */
	/* groups that the next user of the reader must return to it */
	uint32_t returned[COLD_READER_HELD_MAX], returned_count;
	int error; /* error of a part or of the source; in a draft, of the load */
	struct reason reason;
};

/* alloc_flags() - return the flags for all allocations of a load. */
static inline uint32_t alloc_flags(const struct lora_load *load)
{
	return load->unasked ? GPOOL_ALLOC_NO_EVICT : 0;
}

struct lora_part {
	uint32_t first, pages;
	uint32_t group;     /* number of the group in a cold file */
	const void *stored; /* the stored group, from the reader; NULL: none */
};

/* ---- acquire.c; under the lock ---- */

/* entry_queue() - queue an adapter that is COLD. */
void entry_queue(struct gpool_lora *lora, struct lora_entry *entry);

/*
 * is_placed() - return true if the pages of a load in progress have an address, so that callers can acquire the
 * adapter.
 */
static inline bool is_placed(const struct lora_entry *entry)
{
	return entry->load_state >= LOAD_OPENING && entry->load_state <= LOAD_DRAFT_UNUSED;
}

/* is_draft() - return true if the load has ended without being published. It has failed if entry->error is set. */
static inline bool is_draft(const struct lora_entry *entry)
{
	return entry->load_state == LOAD_DRAFT || entry->load_state == LOAD_DRAFT_UNUSED;
}

/*
 * load_is_short() - return true if a part comes from memory, so that making it occupies a core. More such threads than
 * cores would only displace each other. Parts from files mostly wait for reads.
 */
static inline bool load_is_short(const struct lora_load *load)
{
	return load->from == LORA_FROM_WARM;
}

/* ---- loaders.c; under the lock, except during the work ---- */

/* load_here() - begin a load in this thread if nothing delays it; otherwise call entry_queue(). */
void load_here(struct gpool_lora *lora, struct lora_entry *entry);
/* loader_wake() - wake a loader thread if there is work that this thread will not do. */
void loader_wake(struct gpool_lora *lora);

/* ---- load.c; under the lock, except during the work ---- */

/*
 * load_begin() - begin the load of an adapter, which then is LISTED or NEEDS_SOURCE. If no part needs to be made, or
 * after an error, end the load. If the pool has no room for now, return the adapter to QUEUED.
 */
void load_begin(struct lora_loader *loader, struct lora_entry *entry);
/*
 * load_source() - open the next source. The load goes from NEEDS_SOURCE to LISTED, or to MADE if no source can be
 * opened.
 */
void load_source(struct lora_load *load);

/*
 * place_make() - set the address of the object, and make the table of runs; without the lock. Return: as runs_make().
 */
int place_make(struct lora_loader *loader, struct lora_load *load);

/* ---- turns.c; under the lock, except during the work ---- */

/*
 * turn_take() - make one part of a load that is LISTED, unless its reader has no room. After the last part the load is
 * MADE or NEEDS_SOURCE.
 */
void turn_take(struct lora_loader *loader, struct lora_load *load);
/*
 * turns_help() - let a thread that waits for pages 0 to `pages` - 1 make one part of these pages itself, if the part
 * comes from memory and a core is free. After the last part, this thread ends the load if `finish` is set; `load` is
 * then freed. If `finish` is not set, a loader thread ends the load. Return: true if a part was made.
 */
bool turns_help(struct lora_load *load, uint32_t pages, bool finish);

/* ---- finish.c; under the lock, except during the work ---- */

/* load_finish() - publish or drop a load that is MADE. If it is in use, it becomes a draft. */
void load_finish(struct lora_loader *loader, struct lora_load *load);

/*
 * draft_done() - return a draft that is no longer in use, or NULL.
 * draft_end() - publish or drop it.
 * drafts_watch() - wait for the GPU work that uses a draft, but only for a short time, because another load may be
 * queued.
 */
struct lora_load *draft_done(struct gpool_lora *lora);
void draft_end(struct lora_loader *loader, struct lora_load *load);
void drafts_watch(struct gpool_lora *lora);
/*
 * draft_use() - acquire an adapter that is not published.
 * draft_leave() - handle its last release.
 */
void draft_use(struct lora_entry *entry);
void draft_leave(struct lora_entry *entry);

/*
 * load_end() - store the result of a load that is BEGUN, ENDING or DRAFT_ENDING in its entry, and free the load;
 * without the lock.
 * load_free() - free a load to which no entry refers.
 */
void load_end(struct lora_load *load, int error);
void load_free(struct lora_load *load);

/* ---- load_object.c ---- */

/* load_object_pages() - return the number of pages of the object. */
uint32_t load_object_pages(const struct lora_load *load);
/*
 * load_object_exists() - look up in the shared table whether an engine has published the object. The lookup saves a
 * request for most loads. If it misses an object, this process loads the adapter, and finds the object when it
 * publishes its own.
 */
bool load_object_exists(const struct lora_load *load);
/*
 * load_object_find() - open and pin an object that an engine has published. Return: 0; -ENOENT: no such object;
 * -EINVAL, with a reason; or as gpool_object_open().
 */
int load_object_find(struct lora_load *load, struct gpool_object **object);
/*
 * load_object_ask() - ask the agent whether the tenant may use an adapter without an object. Return: 0; -EPERM, with a
 * reason; or as attach_call().
 */
int load_object_ask(struct lora_load *load);
/*
 * load_object_begin() - create load->object and allocate its pages, invisible to other processes. Also after a failure,
 * load_object_drop() must be called. Return: as gpool_object_alloc().
 */
int load_object_begin(struct lora_load *load);
/* load_object_cost() - set the reload cost of the object: the time since its pages were allocated. */
void load_object_cost(const struct lora_load *load);
/*
 * load_object_publish() - publish the object, which stays pinned. Return: as gpool_object_publish(); -ESTALE: another
 * engine was first.
 */
int load_object_publish(struct lora_load *load);
/*
 * load_object_drop() - close a published object, or abort one that is being built, if there is one, and free the table
 * of runs. No GPU work may use them.
 */
void load_object_drop(struct lora_load *load);
/* load_tail_drop() - free the tail of a load. */
void load_tail_drop(struct lora_load *load);

/* ---- part.c ---- */

/*
 * source_open() - open the fastest source, beginning with load->from. Return: 0; -EINVAL, -EIO, -ENOMEM, or the error
 * of open(2) for PEFT's files, with load->reason.
 * source_close() - close all sources. No part may be in progress.
 */
int source_open(struct lora_load *load);
/* source_open_warm() - open the copy in host memory. Return: false if no valid one exists; then call source_open(). */
bool source_open_warm(struct lora_load *load);
void source_close(struct lora_load *load);
/* source_refuse() - log and count an invalid source, and set load->from to the next one. */
void source_refuse(struct lora_load *load, int error);

/* part_take() - take the next part; under the lock. Return: false if it was the last. */
bool part_take(struct lora_load *load, struct lora_part *part);
/*
 * part_fetch() - wait for a group from the reader, which becomes the part. Without a reader, do nothing. The load is
 * MAKING during the wait. Return: 0; -EAGAIN: other threads use all groups; -EIO.
 * part_return() - give the group back; under the lock.
 */
int part_fetch(struct lora_load *load, struct lora_part *part);
void part_return(struct lora_load *load, const struct lora_part *part);
/*
 * part_make() - write the images of a part to its pages, except those that are done. Return: 0; -EINVAL: the source is
 * invalid; -EIO: it is invalid, or the GPU failed; -ENOMEM.
 */
int part_make(
	struct lora_loader *loader, const struct lora_load *load, const struct lora_part *part, struct reason *reason);

/*
 * room_have() - enlarge the loader's memory for forms and for a stored group, if it is too small. Its content is lost.
 * Return: 0, -ENOMEM.
 */
int room_have(struct lora_loader *loader, uint64_t room_bytes, uint64_t stored_bytes);
/* group_forms() - read the forms of a group's pages into the loader's memory. Return: 0, -EINVAL, -EIO, -ENOMEM. */
int group_forms(struct lora_loader *loader, const struct cold_file *file, uint32_t group, const void **forms,
	struct reason *reason);

#endif
