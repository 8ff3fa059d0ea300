/*
 * adapter.h - one adapter: where its files are, and what is known of them. Internal to client/lora.
 *
 * Reading and packing headers takes longer than bringing the weights from host memory. So what the first load has found
 * out stays, and holds for as long as the files are the same by what stat(2) says.
 */
#ifndef GPOOL_CLIENT_LORA_ADAPTER_H
#define GPOOL_CLIENT_LORA_ADAPTER_H

#include <stdbool.h>

#include "client/lora/format/cold_file.h"
#include "client/lora/format/reason.h"
#include "shm/object_names.h"
#include "shm/pool_segment.h"

struct gpool_lora;

enum { LORA_NAME_BYTES = 128, LORA_HASH_BYTES = 33, LORA_KEY_BYTES = 8 + LORA_HASH_BYTES + POOL_NAME_BYTES };

/* How names of kept files end; those of objects are in shm/object_names.h. */
#define LORA_COLD_SUFFIX ".cold"

/* A file by its path, and whether it is the one of before. */
struct lora_stamp {
	uint64_t device, inode, bytes;
	int64_t mtime_ns, ctime_ns;
};

struct adapter {
	uint32_t refs; /* under the lock of struct gpool_lora, as all below the line */
	char name[LORA_NAME_BYTES];
	char *folder;
	struct cold_source source;
	uint32_t rank_max, modules, layers;
	/* ---- */
	struct lora_stamp stamps[2]; /* when it was last found unchanged: adapter_config.json, the weights */
	bool known, form_known;      /* from then on, what follows stays */
	struct adapter_layout layout;
	char key[LORA_KEY_BYTES], warm_name[LORA_KEY_BYTES], file_name[LORA_HASH_BYTES + 16];
	enum cold_form form; /* of its pages: int8 where it may be */
};

/* Its files, when they are needed: one thread's, zero at first. */
struct lora_files {
	bool open;
	int fds[2];
	struct peft peft;
};

/*
 * adapter_create() - reads headers. Return: 0; or what open(2) says, -EINVAL, -EIO, -ENOMEM, with a reason.
 * adapter_unref() under the lock.
 */
int adapter_create(const char *name, const char *folder, struct adapter **adapter, struct reason *reason);
void adapter_unref(struct adapter *adapter);

/*
 * adapter_know() - its files are those that were registered, and layout and names are known. Return: 0; what open(2)
 * says, -EINVAL, -EIO, -ENOMEM, with a reason. Cost: two system calls, the first time some hundred microseconds.
 */
int adapter_know(struct gpool_lora *lora, struct adapter *adapter, struct lora_files *files, struct reason *reason);
/* adapter_files() - open, the same, and their headers read: as above. */
int adapter_files(struct adapter *adapter, struct lora_files *files, struct reason *reason);
/* adapter_unchanged() - files that are open still are those that were registered: 0, -EINVAL, -EIO, -ENOMEM. */
int adapter_unchanged(const struct adapter *adapter, const struct lora_files *files, struct reason *reason);
void files_close(struct lora_files *files);

/*
 * adapter_form() - in which form its pages are kept and expanded from is known. It is measured once, where int8 is
 * asked for, because who finds its key is promised the same bits, whatever they come from. Return: 0, or what
 * int8_loss_measure() says.
 */
int adapter_form(
	struct gpool_lora *lora, struct adapter *adapter, const struct convert *convert, struct reason *reason);
/*
 * adapter_page() - an image out of convert_page() becomes what engines get. form: receives its form,
 * [cold_page_bytes()]; NULL where it is COLD_PLAIN and nobody wants it.
 */
void adapter_page(const struct adapter *adapter, uint32_t page, void *image, void *form);

/*
 * adapter_cold() - its kept file, open; -ENOENT: there is none, or one of something else; or what cold_open() says.
 * adapter_cold_end()
 */
int adapter_cold(
	const struct gpool_lora *lora, const struct adapter *adapter, struct cold_file *file, struct reason *reason);
void adapter_cold_end(struct cold_file *file);

#endif
