/* adapter.c - the files of an adapter, its names, and the form of its pages. */
#include "client/lora/format/adapter.h"

#include "client/lora/format/int8_form.h"
#include "client/lora/load/lora.h"
#include "client/lora/format/pack.h"
#include "client/object/object.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { PATH_ROOM = 4096 };

static const char *const file_names[2] = {"adapter_config.json", PEFT_WEIGHTS_NAME};

/* ---- files ---- */

static int path_make(const struct adapter *adapter, int which, char *path, struct reason *reason)
{
	return snprintf(path, PATH_ROOM, "%s/%s", adapter->folder, file_names[which]) < PATH_ROOM
		? 0
		: refuse(reason, "folder: the path is too long");
}

static int file_open(const struct adapter *adapter, int which, struct reason *reason)
{
	char path[PATH_ROOM], text[REASON_PATH_BYTES];
	int fd;

	if (!adapter->folder) {
		fd = fcntl(adapter->memory[which], F_DUPFD_CLOEXEC, 0);
		if (fd < 0) {
			fd = -errno;
			refuse(reason, "cannot duplicate the descriptor of %s in memory: %s", file_names[which],
				strerror(-fd));
		}
		return fd;
	}
	fd = path_make(adapter, which, path, reason);
	if (fd)
		return fd;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		fd = errno == ENFILE ? -EMFILE : -errno;
		refuse(reason, "cannot open %s: %s", refuse_path(path, text), strerror(errno));
	}
	return fd;
}

static int files_open(const struct adapter *adapter, int fds[2], struct reason *reason)
{
	int config = file_open(adapter, 0, reason), weights;

	if (config < 0)
		return config;
	weights = file_open(adapter, 1, reason);
	if (weights < 0) {
		close(config);
		return weights;
	}
	fds[0] = config;
	fds[1] = weights;
	return 0;
}

int adapter_refuse(const struct adapter *adapter, int error, struct reason *reason)
{
	if (error && adapter->folder)
		refuse_in_folder(reason, adapter->folder);
	return error;
}

void files_close(struct lora_files *files)
{
	if (!files->open)
		return;
	peft_free(&files->peft);
	close(files->fds[0]);
	close(files->fds[1]);
	files->open = false;
}

/* Return the first file that differs. The weights are identified by their inode, size and time, the rest by a hash. */
static const char *changed_file(const struct cold_source *before, const struct cold_source *now)
{
	bool weights = before->bytes != now->bytes || before->inode != now->inode || before->mtime_ns != now->mtime_ns;

	return file_names[weights];
}

int adapter_unchanged(const struct adapter *adapter, const struct lora_files *files, struct reason *reason)
{
	struct cold_source source;
	char text[REASON_PATH_BYTES];
	int error;

	if (!adapter->folder)
		return 0;
	error = adapter_refuse(adapter, cold_source_of(files->fds[0], files->fds[1], &source, reason), reason);
	if (!error && memcmp(&source, &adapter->source, sizeof(source)) != 0)
		error = refuse(reason,
			"%s in '%s' has changed since the adapter was registered; register the adapter again",
			changed_file(&adapter->source, &source), refuse_path(adapter->folder, text));
	return error;
}

/* The source is identified before the headers are read, so that a later change of the files is detected. */
int adapter_files(struct adapter *adapter, struct lora_files *files, struct reason *reason)
{
	int error = files->open ? 0 : files_open(adapter, files->fds, reason);

	if (files->open || error)
		return error;
	error = adapter_unchanged(adapter, files, reason);
	if (!error)
		error = adapter_refuse(adapter, peft_read(files->fds[0], files->fds[1], &files->peft, reason), reason);
	if (error) {
		close(files->fds[0]);
		close(files->fds[1]);
	}
	files->open = !error;
	return error;
}

/* ---- file stamps ---- */

static int64_t ns_of(struct timespec time)
{
	return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static struct lora_stamp stamp_of(const struct stat *status)
{
	return (struct lora_stamp){status->st_dev, status->st_ino, (uint64_t)status->st_size, ns_of(status->st_mtim),
		ns_of(status->st_ctim)};
}

/* Read the stamps of the files that are at these paths now. Files in memory do not change. */
static int stamps_take(const struct adapter *adapter, struct lora_stamp stamps[2], struct reason *reason)
{
	memset(stamps, 0, 2 * sizeof(*stamps));
	for (int i = 0; i < 2 && adapter->folder; i++) {
		char path[PATH_ROOM], text[REASON_PATH_BYTES];
		struct stat status;

		if (path_make(adapter, i, path, reason))
			return -EINVAL;
		if (stat(path, &status)) {
			int error = -errno;

			refuse(reason, "cannot open %s: %s", refuse_path(path, text), strerror(-error));
			return error;
		}
		stamps[i] = stamp_of(&status);
	}
	return 0;
}

/* ---- create and free ---- */

static void adapter_free(struct adapter *adapter)
{
	pack_free(&adapter->layout);
	for (int i = 0; i < 2; i++)
		if (adapter->memory[i] >= 0)
			close(adapter->memory[i]);
	free(adapter->folder);
	free(adapter->targets);
	free(adapter);
}

void adapter_unref(struct adapter *adapter)
{
	if (adapter && !--adapter->refs)
		adapter_free(adapter);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Keep the names of the targets, which peft_free() frees. */
static int targets_keep(struct adapter *adapter, const struct peft *peft)
{
	const char **names = malloc(peft->count * sizeof(*names));
	uint32_t count = 0;
	size_t bytes = 0;
	char *to;

	if (!names)
		return -ENOMEM;
	for (uint32_t i = 0; i < peft->count; i++)
		names[i] = peft->modules[i].target;
	qsort(names, peft->count, sizeof(*names), by_name);
	for (uint32_t i = 0; i < peft->count; i++)
		if (!i || strcmp(names[i], names[count - 1]) != 0) {
			bytes += strlen(names[i]) + 1;
			names[count++] = names[i];
		}
	adapter->targets = to = malloc(bytes);
	for (uint32_t i = 0; to && i < count; i++)
		to = stpcpy(to, names[i]) + 1;
	adapter->target_count = count;
	free(names);
	return adapter->targets ? 0 : -ENOMEM;
}

/* Read the headers, and identify the files. */
static int adapter_read(struct adapter *adapter, struct reason *reason)
{
	struct lora_files files = {.open = false};
	int error = files_open(adapter, files.fds, reason);

	if (error)
		return error;
	error = cold_source_of(files.fds[0], files.fds[1], &adapter->source, reason);
	if (!error)
		error = peft_read(files.fds[0], files.fds[1], &files.peft, reason);
	if (!error) {
		adapter->rank_max = files.peft.rank_max;
		adapter->modules = files.peft.count;
		adapter->layers = files.peft.layers;
		error = targets_keep(adapter, &files.peft);
		peft_free(&files.peft);
	}
	adapter_refuse(adapter, error, reason);
	close(files.fds[0]);
	close(files.fds[1]);
	return error;
}

static struct adapter *adapter_new(const char *name)
{
	struct adapter *made = calloc(1, sizeof(*made));

	if (!made)
		return NULL;
	made->refs = 1;
	made->memory[0] = made->memory[1] = -1;
	snprintf(made->name, sizeof(made->name), "%s", name);
	return made;
}

int adapter_create_memory(const char *name, const int memory[2], struct adapter **adapter, struct reason *reason)
{
	struct adapter *made = adapter_new(name);
	int error;

	if (!made)
		return -ENOMEM;
	memcpy(made->memory, memory, sizeof(made->memory));
	error = adapter_read(made, reason);
	if (error) {
		made->memory[0] = made->memory[1] = -1;
		adapter_free(made);
	} else {
		*adapter = made;
	}
	return error;
}

int adapter_create(const char *name, const char *folder, struct adapter **adapter, struct reason *reason)
{
	struct adapter *made = adapter_new(name);
	int error;

	if (!made)
		return -ENOMEM;
	made->folder = strdup(folder);
	error = made->folder ? adapter_read(made, reason) : -ENOMEM;
	if (error)
		adapter_free(made);
	else
		*adapter = made;
	return error;
}

/* ---- layout and names ---- */

static enum adapter_element element_of(const struct gpool_lora *lora, const struct peft *peft)
{
	return lora->element == GPOOL_LORA_AS_FILE ? pack_element(peft)
		: lora->element == GPOOL_LORA_F16  ? ADAPTER_F16
						   : ADAPTER_BF16;
}

bool adapter_has_tail(const struct gpool_lora *lora, const struct adapter *adapter)
{
	/*
	 * Chosen: if less than a hundredth of the last page is unused, sharing the page saves less than the copy that
	 * each engine then makes of it costs.
	 */
	enum { UNUSED_PART = 100 };
	const struct adapter_layout_header *layout = adapter->layout.header;

	return lora->shares_pages && layout->page_bytes - layout->last_bytes >= layout->page_bytes / UNUSED_PART;
}

bool adapter_has_object(const struct gpool_lora *lora, const struct adapter *adapter)
{
	return adapter->layout.header->pages > 1 || !adapter_has_tail(lora, adapter);
}

static void hash_write(const void *data, size_t bytes, uint64_t seed, char text[LORA_HASH_BYTES])
{
	XXH128_hash_t hash = XXH3_128bits_withSeed(data, bytes, seed);

	snprintf(text, LORA_HASH_BYTES, "%016llx%016llx", (unsigned long long)hash.high64,
		(unsigned long long)hash.low64);
}

static void names_make(const struct gpool_lora *lora, struct adapter *adapter)
{
	struct {
		struct cold_source source;
		uint64_t element, page_bytes, int8, salt[2];
		/* to separate domains, which cannot open each other's objects, but may use the same names */
		uint64_t domain;
		char tenant[POOL_NAME_BYTES]; /* set if only engines of the tenant share the object */
	} identity;
	const char *tenants = lora->private ? identity.tenant : adapter->tenants;
	char text[LORA_HASH_BYTES], object[LORA_HASH_BYTES];

	memset(&identity, 0, sizeof(identity));
	identity.source = adapter->source;
	identity.element = adapter->layout.header->element;
	identity.page_bytes = adapter->layout.header->page_bytes;
	identity.int8 = lora->int8;
	memcpy(identity.salt, lora->salt, sizeof(identity.salt));
	identity.domain = pool_domain(lora->pool);
	if (lora->private)
		memcpy(identity.tenant, pool_tenant_name(lora->pool), sizeof(identity.tenant));
	hash_write(&identity, sizeof(identity), 0, text);
	/* An object without the last page is another object. Copies are complete, and therefore the same. */
	hash_write(&identity, sizeof(identity), adapter_has_tail(lora, adapter), object);
	/* The agent lets only these tenants publish and open a name that ends with them. */
	snprintf(adapter->key, sizeof(adapter->key), LORA_PREFIX "%s%s%s", object, tenants[0] ? "@" : "", tenants);
	snprintf(adapter->warm_name, sizeof(adapter->warm_name), LORA_WARM_PREFIX "%s%s%s", text, tenants[0] ? "@" : "",
		tenants);
	snprintf(adapter->file_name, sizeof(adapter->file_name), "%s" LORA_COLD_SUFFIX, text);
}

/*
 * Store layout and names; under the lock. If two threads have read the headers at the same time, the layout of the
 * first thread is kept.
 */
static void known_set(struct gpool_lora *lora, struct adapter *adapter, struct adapter_layout *layout,
	const struct lora_stamp stamps[2])
{
	memcpy(adapter->stamps, stamps, sizeof(adapter->stamps));
	if (adapter->known) {
		pack_free(layout);
		return;
	}
	adapter->layout = *layout;
	names_make(lora, adapter);
	adapter->known = true;
}

static int layout_make(const struct gpool_lora *lora, struct adapter *adapter, struct lora_files *files,
	struct adapter_layout *layout, struct reason *reason)
{
	int error = adapter_files(adapter, files, reason);

	return error ? error
		     : pack_make(&files->peft, (uint32_t)lora->pool->page_bytes, element_of(lora, &files->peft), layout,
			       reason);
}

int adapter_pages(const struct gpool_lora *lora, struct adapter *adapter, uint32_t *pages, struct reason *reason)
{
	struct lora_files files = {.open = false};
	struct adapter_layout layout;
	int error = layout_make(lora, adapter, &files, &layout, reason);

	if (!error) {
		*pages = layout.header->pages;
		pack_free(&layout);
	}
	files_close(&files);
	return error;
}

int adapter_know(struct gpool_lora *lora, struct adapter *adapter, struct lora_files *files, struct reason *reason)
{
	struct lora_stamp stamps[2];
	struct adapter_layout layout;
	int error = stamps_take(adapter, stamps, reason);
	bool known;

	if (error)
		return error;
	pthread_mutex_lock(&lora->lock);
	known = adapter->known && !memcmp(stamps, adapter->stamps, sizeof(stamps));
	pthread_mutex_unlock(&lora->lock);
	if (known)
		return 0;
	error = layout_make(lora, adapter, files, &layout, reason);
	if (error)
		return error;
	pthread_mutex_lock(&lora->lock);
	known_set(lora, adapter, &layout, stamps);
	pthread_mutex_unlock(&lora->lock);
	return 0;
}

/* ---- the form of the pages ---- */

int adapter_form(struct gpool_lora *lora, struct adapter *adapter, const struct convert *convert, struct reason *reason)
{
	struct int8_loss loss = {.output = 0};
	bool known;
	int error;

	pthread_mutex_lock(&lora->lock);
	known = adapter->form_known;
	pthread_mutex_unlock(&lora->lock);
	error = known || !lora->int8 ? 0 : int8_loss_measure(convert, &loss, reason);
	if (known || error)
		return error;
	pthread_mutex_lock(&lora->lock);
	adapter->form = lora->int8 && (double)loss.output <= INT8_LOSS_MAX ? COLD_INT8 : COLD_PLAIN;
	adapter->form_known = true;
	pthread_mutex_unlock(&lora->lock);
	return 0;
}

void adapter_page(const struct adapter *adapter, uint32_t page, void *image, void *form)
{
	uint64_t used = cold_page_bytes(&adapter->layout, COLD_PLAIN, page);
	enum adapter_element element = (enum adapter_element)adapter->layout.header->element;

	if (adapter->form == COLD_INT8) {
		int8_form_make(image, (uint32_t)(used / ADAPTER_ROW_BYTES), element, form);
		int8_form_expand(form, (uint32_t)(used / ADAPTER_ROW_BYTES), element, image);
	} else if (form) {
		memcpy(form, image, used);
	}
}

/* ---- the cold file ---- */

int adapter_cold(
	const struct gpool_lora *lora, const struct adapter *adapter, struct cold_file *file, struct reason *reason)
{
	const struct adapter_layout_header *layout = adapter->layout.header;
	int fd = lora->cold_fd < 0 ? -1 : openat(lora->cold_fd, adapter->file_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW),
	    error;

	if (fd < 0)
		return -ENOENT;
	error = cold_open(fd, file, reason);
	if (error) {
		close(fd);
		return error;
	}
	if (cold_is_of(file, &adapter->source) && file->layout.header->bytes == layout->bytes &&
		!memcmp(file->layout.header, layout, layout->bytes) && (file->header->form == COLD_PLAIN || lora->int8))
		return 0;
	adapter_cold_end(file);
	return -ENOENT;
}

void adapter_cold_end(struct cold_file *file)
{
	int fd = file->fd;

	cold_close(file);
	close(fd);
}
