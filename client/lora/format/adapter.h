/*
 * adapter.h - the files of an adapter, and the data that is derived from them. Internal to client/lora. The files are
 * in a folder, or in memory (memory_file.h).
 *
 * Reading and packing the headers takes longer than copying the weights from host memory. The results of the first load
 * are therefore kept, and stay valid while stat(2) reports that the files have not changed.
 */
#ifndef GPOOL_CLIENT_LORA_ADAPTER_H
#define GPOOL_CLIENT_LORA_ADAPTER_H

#include <stdbool.h>

#include "client/lora/format/cold_file.h"
#include "client/lora/format/reason.h"
#include "shm/object_names.h"
#include "shm/pool_segment.h"

struct gpool_lora;

enum {
	LORA_NAME_BYTES = 128,
	LORA_HASH_BYTES = 33,
	LORA_KEY_BYTES = POOL_OBJECT_NAME_BYTES,
	/* room for the tenants in the name of an object: "lora/", the hash, and "@" come first */
	LORA_TENANTS_BYTES = LORA_KEY_BYTES - 5 - LORA_HASH_BYTES,
};
static_assert((int)LORA_TENANTS_BYTES > (int)POOL_NAME_BYTES, "room for a tenant");

/* Suffix of the names of cold files. The names of objects are in shm/object_names.h. */
#define LORA_COLD_SUFFIX ".cold"

/* Identifies a file and its version. */
struct lora_stamp {
	uint64_t device, inode, bytes;
	int64_t mtime_ns, ctime_ns;
};

struct adapter {
	uint32_t refs; /* protected by the lock of struct gpool_lora, as are all fields below the line */
	char name[LORA_NAME_BYTES];
	char *folder;  /* NULL: the files are in memory */
	int memory[2]; /* without a folder: adapter_config.json and the weights, sealed; otherwise -1 */
	struct cold_source source;
	uint32_t rank_max, modules, layers, target_count;
	char *targets; /* the names of the targets, each with its NUL, in ascending order */
	/* tenants that may use the adapter, separated by commas, in ascending order; empty: all. Set before `known` */
	char tenants[LORA_TENANTS_BYTES];
	/* ---- */
	struct lora_stamp stamps[2]; /* adapter_config.json and the weights, as of the last check */
	bool known, form_known;      /* once set, the fields below do not change */
	struct adapter_layout layout;
	char key[LORA_KEY_BYTES], warm_name[LORA_KEY_BYTES], file_name[LORA_HASH_BYTES + 16];
	enum cold_form form; /* int8 if the loss permits it */
};

/* The open files of an adapter, used by one thread; initially zero. */
struct lora_files {
	bool open;
	int fds[2];
	struct peft peft;
};

/*
 * adapter_create() - read the headers of an adapter in a folder. Return: 0; or as open(2), -EINVAL, -EIO, -ENOMEM, with
 * a reason.
 * adapter_create_memory() - the same for two sealed files. The adapter closes them; after an error the caller does so.
 * adapter_unref() - drop a reference; under the lock.
 */
int adapter_create(const char *name, const char *folder, struct adapter **adapter, struct reason *reason);
int adapter_create_memory(const char *name, const int memory[2], struct adapter **adapter, struct reason *reason);
void adapter_unref(struct adapter *adapter);

/*
 * adapter_know() - check that the files have not changed since they were registered, and derive layout and names.
 * Return: 0; or as open(2), -EINVAL, -EIO, -ENOMEM, with a reason. Cost: two system calls (in memory: none), and
 * several hundred microseconds at the first call and after each change that stat(2) reports.
 */
int adapter_know(struct gpool_lora *lora, struct adapter *adapter, struct lora_files *files, struct reason *reason);
/* adapter_pages() - compute the number of pages of an adapter from its headers. Return: as adapter_know(). */
int adapter_pages(const struct gpool_lora *lora, struct adapter *adapter, uint32_t *pages, struct reason *reason);
/*
 * adapter_has_tail() - return true if the last page of a known adapter is not part of its object (tails.h).
 * adapter_has_object() - return false if this is its only page, because an object has at least one page.
 */
bool adapter_has_tail(const struct gpool_lora *lora, const struct adapter *adapter);
bool adapter_has_object(const struct gpool_lora *lora, const struct adapter *adapter);
/* adapter_files() - open the files, check them, and read their headers. Return: as adapter_know(). */
int adapter_files(struct adapter *adapter, struct lora_files *files, struct reason *reason);
/*
 * adapter_unchanged() - check that open files have not changed since they were registered. Return: 0, -EINVAL, -EIO,
 * -ENOMEM.
 */
int adapter_unchanged(const struct adapter *adapter, const struct lora_files *files, struct reason *reason);
/*
 * adapter_refuse() - insert the folder of the adapter, if it has one, into the reason of an error of its files. Return:
 * error.
 */
int adapter_refuse(const struct adapter *adapter, int error, struct reason *reason);
void files_close(struct lora_files *files);

/*
 * adapter_form() - decide the form of the pages. If int8 is requested, the loss is measured once, because all objects
 * of a key must have the same bits, whatever their source. Return: 0, or as int8_loss_measure().
 */
int adapter_form(
	struct gpool_lora *lora, struct adapter *adapter, const struct convert *convert, struct reason *reason);
/*
 * adapter_page() - round an image of convert_page() as the form requires. form: receives the form, [cold_page_bytes()];
 * may be NULL if the form is COLD_PLAIN.
 */
void adapter_page(const struct adapter *adapter, uint32_t page, void *image, void *form);

/*
 * adapter_cold() - open the cold file of an adapter. Return: 0; -ENOENT: it cannot be opened, or was made from other
 * files or with other options; or as cold_open().
 * adapter_cold_end() - close it.
 */
int adapter_cold(
	const struct gpool_lora *lora, const struct adapter *adapter, struct cold_file *file, struct reason *reason);
void adapter_cold_end(struct cold_file *file);

#endif
