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
	bool stands, shared;         /* it is published, and pinned; another engine's */
	bool spare;                  /* begun for nobody: it displaces nothing, also no copies of others */
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
	/* it has parts that nobody makes, and its turn comes; or it is a draft that nobody uses */
	bool listed;
	/* groups for the reader, when somebody uses it the next time */
	uint32_t returned[COLD_READER_HELD_MAX], returned_count;
	/* threads have all the groups that the reader has room for: listed when one of them is done */
	bool starved;
	/* listed for a loader to go on with: all parts were made, or it has no source yet (error: -EAGAIN) */
	bool over;
	bool rests; /* it is over, but in use: a draft */
	bool counted;
	int error; /* of a part; of all of it, when it rests */
	struct reason reason;
	TAILQ_ENTRY(lora_load) link;
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

/* ---- finish.c; under the lock ---- */

/* load_rests() - its load is over, and it is a draft: whole where entry->error is 0. */
static inline bool load_rests(const struct lora_entry *entry)
{
	return entry->load && entry->load->rests;
}

/*
 * draft_done() - one whose work is done, or NULL. draft_end() - publish it, or give it up. drafts_watch() - in short
 * waits, since there may be something to load meanwhile.
 */
struct lora_load *draft_done(struct gpool_lora *lora);
void draft_end(struct lora_loader *loader, struct lora_load *load);
void drafts_watch(struct gpool_lora *lora);
/* draft_use() - one more has it acquired before it is published. draft_leave() - nobody has any more. */
void draft_use(struct lora_entry *entry);
void draft_leave(struct lora_entry *entry);
/* load_free() - when it is out of any list. */
void load_free(struct lora_load *load);
/* load_leave() - one load less is under way: notify the waiting threads. */
void load_leave(struct gpool_lora *lora);

/* ---- load.c; without the lock ---- */

/* place_make() - set the address of its object, and make the table of runs. Return: as runs_make(). */
int place_make(struct lora_loader *loader, struct lora_load *load);

/*
 * load_run() - its beginning: after it the load is listed, or over. wholly: else any source but a warm copy is opened
 * by another thread.
 */
void load_run(struct lora_loader *loader, struct lora_load *load, bool wholly);

/* ---- finish.c; without the lock ---- */

/* load_over() - check the source, and publish; a load that is used becomes a draft. */
void load_over(struct lora_loader *loader, struct lora_load *load, int error);
/* load_go_on() - all parts of its source were made, or one of them could not be, and nobody has it but we. */
void load_go_on(struct lora_loader *loader, struct lora_load *load);
/* load_end() - published, or given up: nobody uses it, and nobody can begin to. */
void load_end(struct lora_load *load, int error);

/* ---- turns.c; under the lock, but for the work ---- */

/* load_list() - from now on idle threads make its parts. */
void load_list(struct lora_load *load);
/* turn_take() - make one part of what is listed. True: it was the last, and load_go_on() is next. */
bool turn_take(struct lora_loader *loader, struct lora_load *load);
/*
 * turns_help() - let a thread that waits for pages 0 to `pages` - 1 make one part of them itself, if the part comes
 * from memory and a core is free. What follows the last part is done by a loader. Return: whether there was such a
 * part.
 */
bool turns_help(struct lora_load *load, uint32_t pages);
/* turns_pass() - a thread turns to something else: another one takes the next part, if there is one. */
void turns_pass(struct gpool_lora *lora);

/* ---- loaders.c; under the lock, but for the work ---- */

/* load_here() - as entry_queue(), but that its load begins in this thread, where it can at once. */
void load_here(struct gpool_lora *lora, struct lora_entry *entry);

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
