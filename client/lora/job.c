/*
 * job.c - an adapter's files, its names, and the form of its pages.
 */
#include "client/lora/job.h"

#include "client/lora/int8_form.h"
#include "client/lora/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- files and names ---- */

static enum adapter_element element_of(const struct gpool_lora *lora, const struct peft *peft)
{
	return lora->element == GPOOL_LORA_AS_FILE ? pack_element(peft) : lora->element == GPOOL_LORA_F16 ? ADAPTER_F16 : ADAPTER_BF16;
}

static void names_make(struct job *job)
{
	const struct gpool_lora *lora = job->loader->lora;
	struct {
		struct cold_source source;
		uint64_t element, page_bytes, int8, salt[2];
		char tenant[POOL_NAME_BYTES]; /* where only its engines share */
	} identity;
	XXH128_hash_t hash;

	memset(&identity, 0, sizeof(identity));
	identity.source = job->entry->source;
	identity.element = job->layout.header->element;
	identity.page_bytes = job->layout.header->page_bytes;
	identity.int8 = lora->int8;
	memcpy(identity.salt, lora->salt, sizeof(identity.salt));
	if (lora->private)
		memcpy(identity.tenant, lora->pool->segment.sessions[lora->pool->id].tenant, sizeof(identity.tenant));
	hash = XXH3_128bits(&identity, sizeof(identity));
	snprintf(job->key, sizeof(job->key), LORA_PREFIX "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
	snprintf(job->warm_name, sizeof(job->warm_name), LORA_WARM_PREFIX "%s", job->key + strlen(LORA_PREFIX));
	snprintf(job->file_name, sizeof(job->file_name), "%s" LORA_COLD_SUFFIX, job->key + strlen(LORA_PREFIX));
}

int job_unchanged(struct job *job)
{
	struct cold_source source;
	int error = cold_source_of(job->fds[0], job->fds[1], &source);

	if (!error && memcmp(&source, &job->entry->source, sizeof(source)) != 0)
		error = refuse(job->reason, "folder: its files are not those that were registered; register it again");
	return error;
}

int job_open(struct job *job)
{
	const struct gpool_lora *lora = job->loader->lora;
	int error = files_open(job->entry->folder, job->fds, job->reason);

	if (error)
		return error;
	error = job_unchanged(job);
	if (!error)
		error = peft_read(job->fds[0], job->fds[1], &job->peft, job->reason);
	if (!error)
		error = pack_make(&job->peft, (uint32_t)lora->pool->page_bytes, element_of(lora, &job->peft), &job->layout, job->reason);
	if (!error)
		names_make(job);
	return error;
}

void job_close(struct job *job)
{
	pack_free(&job->layout);
	peft_free(&job->peft);
	if (job->fds[0] >= 0)
		files_close(job->fds);
}

/* ---- the form of its pages ---- */

int job_form(struct job *job, const struct convert *convert)
{
	struct lora_entry *entry = job->entry;
	struct int8_loss loss;
	int error;

	if (entry->form_known)
		return 0;
	entry->form = COLD_PLAIN;
	if (job->loader->lora->int8) {
		error = int8_loss_measure(convert, &loss, job->reason);
		if (error)
			return error;
		entry->form = (double)loss.output <= INT8_LOSS_MAX ? COLD_INT8 : COLD_PLAIN;
	}
	entry->form_known = true;
	return 0;
}

void job_page(const struct job *job, uint32_t page, void *image, void *form)
{
	uint64_t used = cold_page_bytes(&job->layout, COLD_PLAIN, page);
	enum adapter_element element = (enum adapter_element)job->layout.header->element;

	if (job->entry->form == COLD_INT8) {
		int8_form_make(image, (uint32_t)(used / ADAPTER_ROW_BYTES), element, form);
		int8_form_expand(form, (uint32_t)(used / ADAPTER_ROW_BYTES), element, image);
	} else if (form) {
		memcpy(form, image, used);
	}
}

/* ---- the kept file ---- */

int job_cold(struct job *job, struct cold_file *file)
{
	const struct gpool_lora *lora = job->loader->lora;
	int fd = lora->cold_fd < 0 ? -1 : openat(lora->cold_fd, job->file_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW), error;

	if (fd < 0)
		return -ENOENT;
	error = cold_open(fd, file, job->reason);
	if (error) {
		close(fd);
		return error;
	}
	if (cold_is_of(file, &job->entry->source) && file->layout.header->bytes == job->layout.header->bytes &&
		!memcmp(file->layout.header, job->layout.header, job->layout.header->bytes) && (file->header->form == COLD_PLAIN || lora->int8))
		return 0;
	job_cold_end(file);
	return -ENOENT;
}

void job_cold_end(struct cold_file *file)
{
	int fd = file->fd;

	cold_close(file);
	close(fd);
}

/* ---- room ---- */

static int memory_have(void **memory, uint64_t *bytes, uint64_t wanted)
{
	if (*bytes >= wanted)
		return 0;
	free(*memory);
	*memory = NULL;
	*bytes = 0;
	if (posix_memalign(memory, COLD_ALIGN, wanted))
		return -ENOMEM;
	*bytes = wanted;
	return 0;
}

int room_have(struct lora_loader *loader, uint64_t room_bytes, uint64_t stored_bytes)
{
	int error = memory_have(&loader->room, &loader->room_bytes, room_bytes);

	return error ? error : memory_have(&loader->stored, &loader->stored_bytes, stored_bytes);
}

int room_for_groups(struct lora_loader *loader, const struct cold_file *file)
{
	uint64_t stored = 0, room = 0;

	for (uint32_t i = 0; i < file->header->groups; i++) {
		const struct cold_group *group = &file->groups[i];
		uint64_t bytes = cold_pages_bytes(&file->layout, (enum cold_form)file->header->form, group->first_page, group->pages);

		stored = cold_align(group->bytes) > stored ? cold_align(group->bytes) : stored;
		room = bytes > room ? bytes : room;
	}
	return room_have(loader, room, stored);
}
