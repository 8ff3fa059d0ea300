/*
 * load.h - an adapter on its way into the pool. Internal to client/lora.
 *
 * A load is cut into parts, some pages each, which are made by whichever loader thread is idle. All loads that are
 * under way take turns, the one that came first first, each with one part at a time: so several threads work on one
 * adapter, and a small one does not wait for a large one.
 *
 * It is in the list of those whose turn comes, or in the hands of the threads that make its parts; with its last part
 * in those of the thread that made it, which goes on with it: publishes it, or takes what is missing from a colder
 * source.
 *
 * Where the CPU writes to pages itself, who waits for a load and is in no hurry begins it, and makes parts of it that
 * come from memory: to wake another thread may take as long as a part. What takes longer is left to loaders.
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
	struct gpool_object *object; /* of its key: being built, or one that stands */
	bool shared;                 /* the object is another engine's: published, and pinned */
	bool unasked;                /* begun for rebalance.c: it displaces nothing, also no copies of others */
	uint64_t began_ns;           /* when there were pages for it */
	uint64_t base;
	struct lora_runs runs;

	enum lora_from from; /* where its parts come from, and if it is not open there, what comes next */
	struct warm_copy warm;
	struct cold_file cold; /* header NULL: not open */
	/*
	 * of the kept file: used by the thread that fetches a part, meanwhile the load is not listed. NULL: each thread
	 * reads
	 */
	struct cold_reader *reader;
	uint64_t warm_refused; /* version of a warm copy that is not what it should be; 0: no such */
	bool cold_refused;     /* the kept file is not */

	/* Under the lock, but that threads look at the pages of their own part. */
	bool *done;       /* [pages] */
	uint32_t next;    /* part: its first page; from a kept file: the group */
	uint32_t running; /* threads that make parts of it */
	/* groups for the reader, when somebody uses it the next time */
	uint32_t returned[COLD_READER_HELD_MAX], returned_count;
	int error; /* of a part, or of the source; in a draft, of the load */
	struct reason reason;
};

/* Copies to be made of an adapter that was loaded. */
struct lora_later {
	struct adapter *adapter; /* a reference */
	enum lora_from from;
	uint64_t warm_refused;
	bool cold_refused;
	TAILQ_ENTRY(lora_later) link;
};

struct lora_part {
	uint32_t first, pages;
	uint32_t group;     /* from a kept file */
	const void *stored; /* that group, out of the reader; NULL: none */
};

/* ---- acquire.c; under the lock ---- */

/* entry_queue() - what is COLD is to be loaded. */
void entry_queue(struct gpool_lora *lora, struct lora_entry *entry);

/* is_placed() - Check whether callers can acquire an adapter whose load is in progress: its pages have an address. */
static inline bool is_placed(const struct lora_entry *entry)
{
	return entry->load_state >= LOAD_OPENING && entry->load_state <= LOAD_DRAFT_UNUSED;
}

/* is_draft() - Check whether the load has ended without being published; entry->error: it has failed. */
static inline bool is_draft(const struct lora_entry *entry)
{
	return entry->load_state == LOAD_DRAFT || entry->load_state == LOAD_DRAFT_UNUSED;
}

/*
 * load_is_short() - Check whether a part is work for a core: it comes from memory, so more threads than cores would only
 * change places. From files it waits.
 */
static inline bool load_is_short(const struct lora_load *load)
{
	return load->from == LORA_FROM_WARM;
}

/* ---- loaders.c; under the lock, but for the work ---- */

/* load_here() - Begin a load in this thread if nothing delays it; otherwise do the same as entry_queue(). */
void load_here(struct gpool_lora *lora, struct lora_entry *entry);
/* loader_wake() - Wake a loader thread if there is work, because this one turns to something else. */
void loader_wake(struct gpool_lora *lora);

/* ---- load.c; under the lock, but for the work ---- */

/* load_begin() - Take an adapter to LISTED or NEEDS_SOURCE, or to its end if no part has to be made. */
void load_begin(struct lora_loader *loader, struct lora_entry *entry);
/* load_source() - Open the next source: from NEEDS_SOURCE to LISTED, or to MADE if none can be opened. */
void load_source(struct lora_load *load);

/* place_make() - Set the address of the object, and make the table of runs; without the lock. Return: as runs_make(). */
int place_make(struct lora_loader *loader, struct lora_load *load);

/* ---- turns.c; under the lock, but for the work ---- */

/* turn_take() - Make one part of a load that is LISTED. After the last part the load is MADE or NEEDS_SOURCE. */
void turn_take(struct lora_loader *loader, struct lora_load *load);
/*
 * turns_help() - Let a thread that waits for pages 0 to `pages` - 1 make one part of them, if the part comes from
 * memory and a core is free. A loader thread does what follows the last part. Return: true if a part was made.
 */
bool turns_help(struct lora_load *load, uint32_t pages);

/* ---- finish.c; under the lock, but for the work ---- */

/* load_finish() - Publish or drop a load that is MADE; one that is in use becomes a draft. */
void load_finish(struct lora_loader *loader, struct lora_load *load);

/*
 * draft_done() - Return a draft that is no longer in use, or NULL. draft_end() - Publish it, or drop it. drafts_watch() -
 * Wait for the GPU work that uses a draft, for a short time, since another load may be queued meanwhile.
 */
struct lora_load *draft_done(struct gpool_lora *lora);
void draft_end(struct lora_loader *loader, struct lora_load *load);
void drafts_watch(struct gpool_lora *lora);
/* draft_use() - Acquire an adapter that is not published. draft_leave() - Handle its last release. */
void draft_use(struct lora_entry *entry);
void draft_leave(struct lora_entry *entry);

/*
 * load_end() - Publish the result of a load that is BEGUN or ENDING in its entry, and free the load; without the lock.
 * load_free() - Free a load that no entry refers to.
 */
void load_end(struct lora_load *load, int error);
void load_free(struct lora_load *load);

/* ---- load_object.c ---- */

/*
 * load_object_find() - what an engine has published: open, and pinned. Return: 0; -ENOENT: there is none (any more);
 * -EINVAL, with a reason; or as gpool_object_open().
 */
int load_object_find(struct lora_load *load, struct gpool_object **object);
/*
 * load_object_begin() - load->object with pages that nobody else sees. Also after a failure load_object_drop(). Return:
 * as gpool_object_alloc().
 */
int load_object_begin(struct lora_load *load);
/* load_object_cost() - the agent learns what it would take to have it again: as long as it has taken until now. */
void load_object_cost(const struct lora_load *load);
/* load_object_publish() - pinned. Return: as gpool_object_publish(); -ESTALE: somebody else was first. */
int load_object_publish(struct lora_load *load);
/* load_object_drop() - let go of what stands, or abort what was begun. Nothing of ours is queued on it. */
void load_object_drop(struct lora_load *load);

/* ---- part.c ---- */

/*
 * source_open() - the warmest source from load->from on: its parts can be made. Return: 0; -EINVAL, -EIO, -ENOMEM, or
 * what open(2) says of PEFT's files, in load->reason. source_close() - of all. No part is being made.
 */
int source_open(struct lora_load *load);
/*
 * source_open_warm() - the same of a copy in host memory, if there is one to be believed; false: source_open() finds
 * what comes after it.
 */
bool source_open_warm(struct lora_load *load);
void source_close(struct lora_load *load);
/* source_refuse() - it is not what it should be: logged and counted, and the next one is that behind it. */
void source_refuse(struct lora_load *load, int error);

/* part_take() - the next part; under the lock. False: it was the last. */
bool part_take(struct lora_load *load, struct lora_part *part);
/*
 * part_fetch() - waits for a group from the reader, of which the part is then; nothing without one. Return: 0; -EAGAIN:
 * threads have too many; -EIO. The load is not listed meanwhile. part_return() - under the lock: the group is not read
 * any more.
 */
int part_fetch(struct lora_load *load, struct lora_part *part);
void part_return(struct lora_load *load, const struct lora_part *part);
/*
 * part_make() - images in its pages, but those that are done. Return: 0; -EINVAL, -EIO: this source is not to be
 * believed; -ENOMEM.
 */
int part_make(
	struct lora_loader *loader, const struct lora_load *load, const struct lora_part *part, struct reason *reason);

/*
 * room_have() - the loader's room and its place for a stored group are so large at least, with nothing in them: 0,
 * -ENOMEM.
 */
int room_have(struct lora_loader *loader, uint64_t room_bytes, uint64_t stored_bytes);
/* group_forms() - forms of a group's pages, in the loader's room: 0, -EINVAL, -EIO, -ENOMEM. */
int group_forms(struct lora_loader *loader, const struct cold_file *file, uint32_t group, const void **forms,
	struct reason *reason);

/* ---- copy.c ---- */

/* copies_make() - in the warm pool and in the folder, where there are none. What fails is logged. */
void copies_make(struct lora_loader *loader, const struct lora_later *later);

#endif
