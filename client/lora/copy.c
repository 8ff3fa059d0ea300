/*
 * copy.c - copies of an adapter that was loaded, in host memory and on disk, so that it comes faster the next time.
 */
#include "client/lora/job.h"

#include "client/lora/warm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <xxhash.h>

/* ---- in host memory ---- */

/* From the kept file, group by group: it is shorter than PEFT's, and read recently. */
static int forms_from_cold(struct job *job, const struct cold_file *file, struct warm_copy *copy)
{
	struct lora_loader *loader = job->loader;
	int error = room_for_groups(loader, file);

	for (uint32_t i = 0; i < file->header->groups && !error; i++) {
		const struct cold_group *group = &file->groups[i];
		const void *forms;

		error = cold_group_read(file, i, loader->stored);
		if (!error)
			error = cold_group_expand(file, i, loader->stored, loader->room, &forms, job->reason);
		if (!error)
			memcpy(warm_form(copy, group->first_page), forms,
				cold_pages_bytes(&job->layout, (enum cold_form)copy->header.form, group->first_page, group->pages));
	}
	return error;
}

/* Images are made in the loader's room. */
static int forms_from_peft(struct job *job, const struct convert *convert, struct warm_copy *copy, uint64_t *checksums)
{
	uint32_t page_bytes = job->layout.header->page_bytes;
	int error = room_have(job->loader, page_bytes, 0);

	for (uint32_t page = 0; page < job->layout.header->pages && !error; page++) {
		error = convert_page(convert, page, job->loader->room, job->reason);
		if (!error) {
			job_page(job, page, job->loader->room, warm_form(copy, page));
			checksums[page] = XXH3_64bits(job->loader->room, page_bytes);
		}
	}
	return error ? error : job_unchanged(job);
}

static int warm_place(struct job *job, enum cold_form form, struct warm_copy *copy)
{
	const struct gpool_lora *lora = job->loader->lora;

	return warm_begin(lora->warm, job->warm_name, &job->layout, form, lora->private, job->warm_refused, copy);
}

static int warm_from_cold(struct job *job, const struct cold_file *file)
{
	struct warm_copy copy;
	int error = warm_place(job, (enum cold_form)file->header->form, &copy);

	if (error)
		return error;
	error = forms_from_cold(job, file, &copy);
	if (!error)
		return warm_publish(&copy, file->checksums);
	warm_abort(&copy);
	return error;
}

static int warm_from_peft(struct job *job, const struct convert *convert)
{
	uint64_t *checksums = calloc(job->layout.header->pages, sizeof(*checksums));
	struct warm_copy copy = { .object = NULL };
	int error = checksums ? job_form(job, convert) : -ENOMEM;

	if (!error)
		error = warm_place(job, job->entry->form, &copy);
	if (!error) {
		error = forms_from_peft(job, convert, &copy, checksums);
		if (error)
			warm_abort(&copy);
		else
			error = warm_publish(&copy, checksums);
	}
	free(checksums);
	return error;
}

static int warm_keep(struct job *job)
{
	struct convert convert;
	struct cold_file file;
	int error = job_cold(job, &file);

	if (!error) {
		error = warm_from_cold(job, &file);
		job_cold_end(&file);
		return error;
	}
	error = convert_open(&job->peft, &job->layout, job->fds[1], &convert, job->reason);
	if (error)
		return error;
	error = warm_from_peft(job, &convert);
	convert_close(&convert);
	return error;
}

/* ---- on disk ---- */

/* One writer at a time in a folder; while another one is at work it is left to the next load: -EAGAIN. */
static int cold_keep(struct job *job)
{
	const struct gpool_lora *lora = job->loader->lora;
	int folder = openat(lora->cold_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), error;
	struct convert convert;

	if (folder < 0)
		return -errno;
	error = flock(folder, LOCK_EX | LOCK_NB) ? -EAGAIN : convert_open(&job->peft, &job->layout, job->fds[1], &convert, job->reason);
	if (!error) {
		error = cold_write(&convert, &job->entry->source, folder, job->file_name, lora->int8, NULL, job->reason);
		convert_close(&convert);
	}
	close(folder);
	return error;
}

static bool cold_is_wanted(const struct job *job)
{
	const struct gpool_lora *lora = job->loader->lora;

	return lora->cold_fd >= 0 && job->from != LORA_FROM_COLD && (job->cold_refused || faccessat(lora->cold_fd, job->file_name, F_OK, 0));
}

/* ---- both ---- */

static void failure_say(struct job *job, const char *where, int error)
{
	pool_log(job->loader->lora->pool, POOL_LOG_ERROR, "adapter '%s' is not kept %s: %s", job->entry->name, where,
		job->reason->text[0] ? job->reason->text : gpool_strerror(error));
}

/* No room is no failure, and said once; nor is it that another engine was first. */
static void warm_end(struct job *job, int error)
{
	struct gpool_lora *lora = job->loader->lora;
	bool full = error == -ENOSPC || error == -EDQUOT || error == -EUSERS, first;

	pthread_mutex_lock(&lora->lock);
	first = full && !lora->warm_full++;
	lora->warm_made += !error;
	pthread_mutex_unlock(&lora->lock);
	if (first)
		pool_log(lora->pool, POOL_LOG_INFO, "adapter '%s' is not kept in host memory: that pool is full, and all of it in use", job->entry->name);
	else if (error && !full && error != -ESTALE)
		failure_say(job, "in host memory", error);
}

void copies_make(struct job *job)
{
	int error;

	job->reason->text[0] = '\0';
	if (job->loader->lora->warm && job->from != LORA_FROM_WARM)
		warm_end(job, warm_keep(job));
	job->reason->text[0] = '\0';
	error = cold_is_wanted(job) ? cold_keep(job) : -EAGAIN;
	if (error && error != -EAGAIN)
		failure_say(job, "on disk", error);
}
