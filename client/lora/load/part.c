/* part.c - make the images of pages from the fastest source. */
#include "client/lora/load/sink.h"

#include "client/lora/format/int8_form.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * The size of the images in a part. Chosen: a part from memory takes about 100 us, much longer than passing it to a
 * thread.
 */
enum { PART_BYTES = 1 << 20 };

/* ---- memory of a loader ---- */

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

/* ---- PEFT's files ---- */

static int peft_open(struct lora_load *load)
{
	struct convert convert;
	int error = adapter_files(load->adapter, &load->files, &load->reason);

	if (error)
		return error;
	error = convert_open(&load->files.peft, &load->adapter->layout, load->files.fds[1], &convert, &load->reason);
	if (!error) {
		error = adapter_form(load->lora, load->adapter, &convert, &load->reason);
		load->form = load->adapter->form;
		convert_close(&convert);
	}
	return adapter_refuse(load->adapter, error, &load->reason);
}

/* Make the form of a page in int8, which the GPU expands. Return: as sink_expand(). */
static int peft_form(const struct lora_load *load, const struct convert *convert, uint32_t page, struct sink *sink,
	struct reason *reason)
{
	const struct adapter_layout *layout = &load->adapter->layout;
	uint64_t used = cold_page_bytes(layout, COLD_PLAIN, page);
	void *form = sink_form(sink);
	int error = form ? convert_page(convert, page, sink->loader->room, reason) : -EIO;

	if (error)
		return error;
	int8_form_make(sink->loader->room, (uint32_t)(used / ADAPTER_ROW_BYTES),
		(enum adapter_element)layout->header->element, form);
	return sink_expand(sink, page);
}

static int peft_page(const struct lora_load *load, const struct convert *convert, uint32_t page, struct sink *sink,
	struct reason *reason)
{
	bool int8 = load->adapter->form == COLD_INT8;
	int error = int8 && sink_expands(sink, page) ? peft_form(load, convert, page, sink, reason) : 1;
	void *image;

	if (error <= 0)
		return error;
	image = sink_image(sink, page);
	error = image ? convert_page(convert, page, image, reason) : -EIO;
	if (error)
		return error;
	adapter_page(load->adapter, page, image, int8 ? sink->loader->room : NULL);
	return sink_put(sink, page);
}

static int peft_part(
	struct lora_loader *loader, const struct lora_load *load, const struct lora_part *part, struct reason *reason)
{
	struct sink sink = sink_begin(loader, load);
	struct convert convert;
	int error = convert_open(&load->files.peft, &load->adapter->layout, load->files.fds[1], &convert, reason);

	if (error)
		return adapter_refuse(load->adapter, error, reason);
	error = room_have(loader, sink.page_bytes, 0);
	for (uint32_t page = part->first; page < part->first + part->pages && !error; page++)
		if (!load->done[page])
			error = peft_page(load, &convert, page, &sink, reason);
	convert_close(&convert);
	adapter_refuse(load->adapter, error, reason);
	return sink_end(&sink, error);
}

/* ---- forms, from cold files and copies ---- */

/* Let the GPU expand a form in int8. Return: as sink_expand(); -EINVAL, with a reason. */
static int form_expand(
	const struct cold_file *file, uint32_t page, const void *form, struct sink *sink, struct reason *reason)
{
	void *copy = sink_form(sink);
	int error = copy ? cold_page_copy(file, page, form, copy, reason) : -EIO;

	return error ? error : sink_expand(sink, page);
}

static int form_page(
	const struct cold_file *file, uint32_t page, const void *form, struct sink *sink, struct reason *reason)
{
	bool by_gpu = file->header->form == COLD_INT8 && cold_forms_have_checksums(file) && sink_expands(sink, page);
	int error = by_gpu ? form_expand(file, page, form, sink, reason) : 1;
	void *image;

	if (error <= 0)
		return error;
	image = sink_image(sink, page);
	error = image ? cold_page_expand(file, page, form, image, reason) : -EIO;
	return error ? error : sink_put(sink, page);
}

/* Take a reader. If all are in use, each thread reads its groups itself. */
static void reader_take(struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;
	struct cold_reader *reader = NULL;

	pthread_mutex_lock(&lora->lock);
	if (lora->readers_idle)
		reader = lora->readers[--lora->readers_idle];
	else if (lora->readers_made < lora->loader_count && !cold_reader_create(&reader))
		lora->readers_made++;
	pthread_mutex_unlock(&lora->lock);
	if (!reader || !cold_reader_begin(reader, &load->cold)) {
		load->reader = reader;
		return;
	}
	cold_reader_destroy(reader);
	pthread_mutex_lock(&lora->lock);
	lora->readers_made--;
	pthread_mutex_unlock(&lora->lock);
}

static void reader_leave(struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;

	if (!load->reader)
		return;
	cold_reader_end(load->reader);
	pthread_mutex_lock(&lora->lock);
	lora->readers[lora->readers_idle++] = load->reader;
	pthread_mutex_unlock(&lora->lock);
	load->reader = NULL;
}

static int cold_source_open(struct lora_load *load)
{
	int error = adapter_cold(load->lora, load->adapter, &load->cold, &load->reason);

	if (error)
		return error;
	load->form = (enum cold_form)load->cold.header->form;
	/* A reader reads all groups; a tail needs only the last. */
	if (!load->shared)
		reader_take(load);
	return 0;
}

/* Give groups back to the reader. Only the thread that uses the reader may do so. */
static void groups_give_back(struct lora_load *load)
{
	uint32_t groups[COLD_READER_HELD_MAX], count;

	pthread_mutex_lock(&load->lora->lock);
	count = load->returned_count;
	memcpy(groups, load->returned, count * sizeof(*groups));
	load->returned_count = 0;
	pthread_mutex_unlock(&load->lora->lock);
	while (count)
		cold_reader_give_back(load->reader, groups[--count]);
}

int part_fetch(struct lora_load *load, struct lora_part *part)
{
	const struct cold_group *group;
	int got;

	if (load->from != LORA_FROM_COLD || !load->reader)
		return 0;
	groups_give_back(load);
	got = cold_reader_next(load->reader, &part->group, &part->stored);
	if (got <= 0)
		return got ? got : -EIO;
	group = &load->cold.groups[part->group];
	part->first = group->first_page;
	part->pages = group->pages;
	return 0;
}

void part_return(struct lora_load *load, const struct lora_part *part)
{
	if (part->stored)
		load->returned[load->returned_count++] = part->group;
}

/* Get the forms of a stored group, decompressed into the loader's memory if necessary. */
static int forms_of(struct lora_loader *loader, const struct cold_file *file, uint32_t index, const void *stored,
	const void **forms, struct reason *reason)
{
	const struct cold_group *group = &file->groups[index];
	int error = room_have(loader,
		cold_pages_bytes(&file->layout, (enum cold_form)file->header->form, group->first_page, group->pages),
		0);

	return error ? error : cold_group_expand(file, index, stored, loader->room, forms, reason);
}

int group_forms(struct lora_loader *loader, const struct cold_file *file, uint32_t index, const void **forms,
	struct reason *reason)
{
	int error = room_have(loader, 0, cold_align(file->groups[index].bytes));

	if (!error)
		error = cold_group_read(file, index, loader->stored);
	return error ? error : forms_of(loader, file, index, loader->stored, forms, reason);
}

static int cold_part(
	struct lora_loader *loader, const struct lora_load *load, const struct lora_part *part, struct reason *reason)
{
	struct sink sink = sink_begin(loader, load);
	const void *forms;
	int error = part->stored ? forms_of(loader, &load->cold, part->group, part->stored, &forms, reason)
				 : group_forms(loader, &load->cold, part->group, &forms, reason);

	for (uint32_t page = part->first; page < part->first + part->pages && !error; page++) {
		if (!load->done[page])
			error = form_page(&load->cold, page, forms, &sink, reason);
		forms = (const char *)forms +
			cold_page_bytes(&load->cold.layout, (enum cold_form)load->cold.header->form, page);
	}
	return sink_end(&sink, error);
}

static int warm_open(struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;
	const struct adapter *adapter = load->adapter;
	int error;

	if (!lora->warm)
		return -ENOENT;
	error = warm_again(&lora->kept, adapter->warm_name, &adapter->layout, lora->int8, &load->warm);
	if (error)
		error = warm_find(lora->warm, adapter->warm_name, &adapter->layout, lora->int8, lora->private,
			&load->warm, &load->reason);
	if (!error)
		load->form = (enum cold_form)load->warm.header.form;
	/* After other errors it is unknown whether a copy exists. */
	return error && error != -EINVAL ? -ENOENT : error;
}

static int warm_part(
	struct lora_loader *loader, const struct lora_load *load, const struct lora_part *part, struct reason *reason)
{
	struct sink sink = sink_begin(loader, load);
	int error = 0;

	for (uint32_t page = part->first; page < part->first + part->pages && !error; page++)
		if (!load->done[page])
			error = form_page(&load->warm.file, page, warm_form(&load->warm, page), &sink, reason);
	return sink_end(&sink, error);
}

/* ---- sources ---- */

static const struct source {
	int (*open)(struct lora_load *load);
	int (*part)(struct lora_loader *loader, const struct lora_load *load, const struct lora_part *part,
		struct reason *reason);
} sources[LORA_FROM_COUNT] = {
	[LORA_FROM_WARM] = {warm_open, warm_part},
	[LORA_FROM_COLD] = {cold_source_open, cold_part},
	[LORA_FROM_PEFT] = {peft_open, peft_part},
};

void source_refuse(struct lora_load *load, int error)
{
	struct gpool_lora *lora = load->lora;

	pthread_mutex_lock(&lora->lock);
	lora->refused++;
	pthread_mutex_unlock(&lora->lock);
	if (load->from == LORA_FROM_WARM)
		load->warm_refused = load->warm.version;
	else
		load->cold_refused = true;
	pool_log(lora->pool, POOL_LOG_ERROR,
		"adapter '%s': copy '%s' is invalid: %s; loading from another source and replacing the copy",
		load->adapter->name, load->from == LORA_FROM_WARM ? load->adapter->warm_name : load->adapter->file_name,
		load->reason.text[0] ? load->reason.text : gpool_strerror(error));
	load->reason.text[0] = '\0';
	load->from++;
}

/* Set the first part. Of a shared object, only the tail is missing. */
static void parts_begin(struct lora_load *load)
{
	load->next = !load->shared             ? 0
		: load->from == LORA_FROM_COLD ? load->cold.header->groups - 1
					       : load->adapter->layout.header->pages - 1;
}

int source_open(struct lora_load *load)
{
	int error;

	while ((error = sources[load->from].open(load)) && load->from != LORA_FROM_PEFT &&
		(error == -ENOENT || error == -EINVAL || error == -EIO)) {
		if (error == -ENOENT)
			load->from++;
		else
			source_refuse(load, error);
	}
	if (!error)
		parts_begin(load);
	return error;
}

bool source_open_warm(struct lora_load *load)
{
	int error = warm_open(load);

	if (error == -EINVAL)
		source_refuse(load, error);
	else if (error)
		load->from++;
	else
		parts_begin(load);
	return !error;
}

void source_close(struct lora_load *load)
{
	/* Keep a copy that was used, for the next load; close a copy that was refused. */
	if (load->from == LORA_FROM_WARM)
		warm_leave(&load->lora->kept, load->adapter->warm_name, &load->warm);
	else
		warm_close(&load->warm);
	reader_leave(load);
	if (load->cold.header)
		adapter_cold_end(&load->cold);
	files_close(&load->files);
}

bool part_take(struct lora_load *load, struct lora_part *part)
{
	const struct adapter_layout_header *layout = load->adapter->layout.header;

	if (load->from == LORA_FROM_COLD) {
		const struct cold_group *group = &load->cold.groups[load->next];

		*part = (struct lora_part){.first = group->first_page, .pages = group->pages, .group = load->next};
		return ++load->next < load->cold.header->groups;
	}
	*part = (struct lora_part){
		.first = load->next, .pages = layout->page_bytes < PART_BYTES ? PART_BYTES / layout->page_bytes : 1};
	if (part->pages > layout->pages - part->first)
		part->pages = layout->pages - part->first;
	load->next += part->pages;
	return load->next < layout->pages;
}

int part_make(
	struct lora_loader *loader, const struct lora_load *load, const struct lora_part *part, struct reason *reason)
{
	return sources[load->from].part(loader, load, part, reason);
}
