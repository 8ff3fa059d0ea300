/* copy.c - copy an adapter that was loaded to host memory and to disk, so that its next load is faster. */
#include "client/lora/load/later.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <xxhash.h>

struct copying {
	struct lora_loader *loader;
	struct gpool_lora *lora;
	struct adapter *adapter;
	struct lora_later *later;
	struct lora_files files;
	struct reason reason;
};

/* ---- copy to host memory ---- */

/* Copy the forms from the cold file, which is smaller than PEFT's files and probably in the page cache. */
static int forms_from_cold(struct copying *copying, const struct cold_file *file, struct warm_copy *copy)
{
	int error = 0;

	for (uint32_t i = 0; i < file->header->groups && !error; i++) {
		const struct cold_group *group = &file->groups[i];
		const void *forms;

		error = group_forms(copying->loader, file, i, &forms, &copying->reason);
		if (!error)
			memcpy(warm_form(copy, group->first_page), forms,
				cold_pages_bytes(&file->layout, (enum cold_form)copy->header.form, group->first_page,
					group->pages));
	}
	return error;
}

/* Make the forms from PEFT's files, with the images in the loader's memory. */
static int forms_from_peft(
	struct copying *copying, const struct convert *convert, struct warm_copy *copy, uint64_t *checksums)
{
	const struct adapter_layout_header *layout = copying->adapter->layout.header;
	int error = room_have(copying->loader, layout->page_bytes, 0);

	for (uint32_t page = 0; page < layout->pages && !error; page++) {
		error = convert_page(convert, page, copying->loader->room, &copying->reason);
		if (!error) {
			adapter_page(copying->adapter, page, copying->loader->room, warm_form(copy, page));
			checksums[page] = XXH3_64bits(copying->loader->room, layout->page_bytes);
		}
	}
	return error ? error : adapter_unchanged(copying->adapter, &copying->files, &copying->reason);
}

static int warm_place(struct copying *copying, enum cold_form form, struct warm_copy *copy)
{
	return warm_begin(copying->lora->warm, copying->adapter->warm_name, &copying->adapter->layout, form,
		copying->lora->private, copying->later->warm_refused, copy);
}

static int warm_from_cold(struct copying *copying, const struct cold_file *file)
{
	struct warm_copy copy;
	int error = warm_place(copying, (enum cold_form)file->header->form, &copy);

	if (error)
		return error;
	error = forms_from_cold(copying, file, &copy);
	if (!error)
		return warm_publish(&copy, copying->adapter->name, file->checksums, &copying->later->version);
	warm_abort(&copy);
	return error;
}

static int warm_from_peft(struct copying *copying, const struct convert *convert)
{
	uint64_t *checksums = calloc(copying->adapter->layout.header->pages, sizeof(*checksums));
	struct warm_copy copy = {.object = NULL};
	int error = checksums ? adapter_form(copying->lora, copying->adapter, convert, &copying->reason) : -ENOMEM;

	if (!error)
		error = warm_place(copying, copying->adapter->form, &copy);
	if (!error) {
		error = forms_from_peft(copying, convert, &copy, checksums);
		if (error)
			warm_abort(&copy);
		else
			error = warm_publish(&copy, copying->adapter->name, checksums, &copying->later->version);
	}
	free(checksums);
	return error;
}

static int convert_begin(struct copying *copying, struct convert *convert)
{
	int error = adapter_files(copying->adapter, &copying->files, &copying->reason);

	return error ? error
		     : convert_open(&copying->files.peft, &copying->adapter->layout, copying->files.fds[1], convert,
			       &copying->reason);
}

static int warm_keep(struct copying *copying)
{
	struct convert convert;
	struct cold_file file;
	int error = copying->later->cold_refused
		? -ENOENT
		: adapter_cold(copying->lora, copying->adapter, &file, &copying->reason);

	if (!error) {
		error = warm_from_cold(copying, &file);
		adapter_cold_end(&file);
		return error;
	}
	error = convert_begin(copying, &convert);
	if (error)
		return error;
	error = warm_from_peft(copying, &convert);
	convert_close(&convert);
	return error;
}

/* ---- copy to disk ---- */

/*
 * Write the cold file. A folder has one writer at a time. Return: -EAGAIN if another one is active; the next load then
 * tries again.
 */
static int cold_keep(struct copying *copying)
{
	const struct gpool_lora *lora = copying->lora;
	int folder = openat(lora->cold_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), error;
	struct convert convert;

	if (folder < 0)
		return -errno;
	error = flock(folder, LOCK_EX | LOCK_NB) ? -EAGAIN : convert_begin(copying, &convert);
	if (!error) {
		error = cold_write(&convert, &copying->adapter->source, folder, copying->adapter->file_name, lora->int8,
			NULL, &copying->reason);
		convert_close(&convert);
	}
	close(folder);
	return error;
}

static bool cold_is_wanted(const struct gpool_lora *lora, const struct lora_later *later)
{
	return later->cold && (later->cold_refused || faccessat(lora->cold_fd, later->adapter->file_name, F_OK, 0));
}

/* ---- both copies ---- */

static void failure_say(struct copying *copying, const char *where, int error)
{
	pool_log(copying->lora->pool, POOL_LOG_ERROR, "cannot copy adapter '%s' %s: %s", copying->adapter->name, where,
		copying->reason.text[0] ? copying->reason.text : gpool_strerror(error));
}

/*
 * End the copy to host memory. A full pool is not a failure and is logged only once. A copy that another engine has
 * published first is not a failure either.
 */
static void warm_end(struct copying *copying, int error)
{
	struct gpool_lora *lora = copying->lora;
	bool full = error == -ENOSPC || error == -EDQUOT || error == -EUSERS, first;

	pthread_mutex_lock(&lora->lock);
	first = full && !lora->warm_full++;
	lora->warm_made += !error;
	pthread_mutex_unlock(&lora->lock);
	if (first)
		pool_log(lora->pool, POOL_LOG_INFO,
			"cannot copy adapter '%s' to host memory: the pool for copies is full, and all of its content "
			"is in use",
			copying->adapter->name);
	else if (error && !full && error != -ESTALE)
		failure_say(copying, "to host memory", error);
}

/* Return true if the copy in host memory is to be made. Another engine may have made it since the load. */
static bool warm_is_wanted(const struct gpool_lora *lora, const struct lora_later *later)
{
	const char *name = later->adapter->warm_name;

	return later->warm && (later->warm_refused || gpool_object_find(lora->warm, &name, 1) != 1);
}

void copies_make(struct lora_loader *loader, struct lora_later *later)
{
	struct copying copying = {.loader = loader, .lora = loader->lora, .adapter = later->adapter, .later = later};
	int error;

	if (warm_is_wanted(copying.lora, later)) {
		later->error = warm_keep(&copying);
		warm_end(&copying, later->error);
	}
	copying.reason.text[0] = '\0';
	error = cold_is_wanted(copying.lora, later) ? cold_keep(&copying) : -EAGAIN;
	if (error && error != -EAGAIN)
		failure_say(&copying, "to disk", error);
	files_close(&copying.files);
}
