/*
 * job.h - what is known of an adapter while it is loaded, and while copies of it are made. Internal to client/lora.
 */
#ifndef GPOOL_CLIENT_LORA_JOB_H
#define GPOOL_CLIENT_LORA_JOB_H

#include "client/lora/lora.h"
#include "client/lora/peft.h"

/* One thread's. */
struct job {
	struct lora_loader *loader;
	struct lora_entry *entry;
	struct reason *reason;
	int fds[2]; /* adapter_config.json, and the weights */
	struct peft peft;
	struct adapter_layout layout;
	/* Of the object in the pool, of the one in the warm pool, of the kept file. */
	char key[LORA_KEY_BYTES], warm_name[LORA_KEY_BYTES], file_name[LORA_KEY_BYTES + 8];
	enum lora_from from;
	uint64_t warm_refused; /* version of a warm copy that is not what it should be; 0: no such */
	bool cold_refused;     /* the kept file is not */
};

/* ---- job.c ---- */

/* job_open() - its files are those that were registered, read and packed. Return: 0, or what the acquire shall say, with a reason; job_close() in any case. */
int job_open(struct job *job);
void job_close(struct job *job);
/* job_unchanged() - the files still are. Return: 0; -EINVAL, with a reason; -EIO; -ENOMEM. */
int job_unchanged(struct job *job);

/*
 * job_form() - in which form its pages are kept, and expanded from, is in the entry now: measured once, where int8 is asked for, because who finds
 * its key is promised the same bits, whatever they were made from.
 */
int job_form(struct job *job, const struct convert *convert);
/*
 * job_page() - an image out of convert_page() becomes what engines get. form: receives its form, [cold_page_bytes()]; NULL where it is COLD_PLAIN and
 * nobody wants it.
 */
void job_page(const struct job *job, uint32_t page, void *image, void *form);

/* job_cold() - the kept file, open; -ENOENT: there is none, or one of something else; or what cold_open() says. */
int job_cold(struct job *job, struct cold_file *file);
void job_cold_end(struct cold_file *file);

/* room_have() - the loader's room and its place for a stored group are so large at least, with nothing in them: 0, -ENOMEM. */
int room_have(struct lora_loader *loader, uint64_t room_bytes, uint64_t stored_bytes);
/* room_for_groups() - likewise, for any of that file. */
int room_for_groups(struct lora_loader *loader, const struct cold_file *file);

/* ---- copy.c ---- */

/* copies_make() - after a load that nobody waits for any more: in the warm pool and in the folder, where there are none. What fails is logged. */
void copies_make(struct job *job);

#endif
