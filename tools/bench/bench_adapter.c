/*
 * bench_adapter.c - an adapter of 16 MB: from PEFT's files to page images, to its cold file, and back. This is the
 * library's work before it writes pages; no agent and no pool take part. Files are in the page cache, except in the
 * disk figures.
 */
#include "tools/bench/bench.h"
#include "tools/lib/adapter_make.h"

#include "client/lora/load/cold_reader.h"
#include "client/lora/format/pack.h"
#include "cuda/kernels/element.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LAYERS = 6, RANK = 16, PAGE_BYTES = 2 << 20 };

struct adapter {
	int config, weights, folder;
	struct peft peft;
	struct adapter_layout layout;
	struct convert convert;
	struct cold_source source;
	uint8_t *images, *others; /* [pages][PAGE_BYTES] each */
};

static int adapter_init(struct bench *bench, struct adapter *adapter)
{
	struct reason reason;
	int error;

	adapter->config = memfd_create("adapter_config.json", MFD_CLOEXEC);
	adapter->weights = memfd_create("adapter_model.safetensors", MFD_CLOEXEC);
	error = adapter_make(adapter->config, adapter->weights, LAYERS, RANK);
	adapter->folder = open(bench->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (!error)
		error = peft_read(adapter->config, adapter->weights, &adapter->peft, &reason);
	if (!error)
		error = pack_make(&adapter->peft, PAGE_BYTES, ADAPTER_BF16, &adapter->layout, &reason);
	if (!error)
		error = convert_open(&adapter->peft, &adapter->layout, adapter->weights, &adapter->convert, &reason);
	if (!error)
		error = cold_source_of(adapter->config, adapter->weights, &adapter->source, &reason);
	if (error)
		return error;
	adapter->images = calloc(adapter->layout.header->pages, PAGE_BYTES);
	adapter->others = calloc(adapter->layout.header->pages, PAGE_BYTES);
	return adapter->images && adapter->others ? 0 : -ENOMEM;
}

static void adapter_fini(struct adapter *adapter)
{
	free(adapter->images);
	free(adapter->others);
	convert_close(&adapter->convert);
	pack_free(&adapter->layout);
	peft_free(&adapter->peft);
	close(adapter->config);
	close(adapter->weights);
	close(adapter->folder);
}

/* ---- measurements ---- */

static int convert_sample(struct bench *bench, struct adapter *adapter)
{
	uint64_t bytes = (uint64_t)adapter->layout.header->pages * PAGE_BYTES, begin = own_time_ns();
	struct reason reason;
	int error = 0;

	for (uint32_t page = 0; page < adapter->layout.header->pages && !error; page++)
		error = convert_page(&adapter->convert, page, adapter->images + (uint64_t)page * PAGE_BYTES, &reason);
	bench_sample(bench, FIGURE_adapter_convert, (double)bytes / (double)(own_time_ns() - begin));
	begin = own_time_ns();
	memcpy(adapter->others, adapter->images, bytes);
	bench_sample(bench, FIGURE_peer_adapter_memcpy, (double)bytes / (double)(own_time_ns() - begin));
	return error;
}

/* Read all groups in the form in which they are copied to a GPU. */
static int cold_read_all(int fd, uint8_t *stored)
{
	struct cold_file file;
	struct reason reason;
	const void *pages;
	int error = cold_open(fd, &file, &reason);

	if (error)
		return error;
	for (uint32_t i = 0; i < file.header->groups && !error; i++) {
		error = cold_group_read(&file, i, stored);
		if (!error)
			error = cold_group_expand(&file, i, stored, stored + COLD_GROUP_IMAGE_MAX, &pages, &reason);
	}
	cold_close(&file);
	return error;
}

/* Expand each group to page images, in one thread. The form was just read and may be in a CPU cache. */
static int group_expand(struct adapter *adapter, const struct cold_file *file, uint32_t index, uint64_t *took_ns)
{
	const struct cold_group *group = &file->groups[index];
	const void *form;
	struct reason reason;
	uint64_t begin;
	int error = cold_group_read(file, index, adapter->others);

	if (!error)
		error = cold_group_expand(
			file, index, adapter->others, adapter->others + COLD_GROUP_IMAGE_MAX, &form, &reason);
	begin = own_time_ns();
	for (uint32_t page = group->first_page; page < group->first_page + group->pages && !error; page++) {
		error = cold_page_expand(file, page, form, adapter->images + (uint64_t)page * PAGE_BYTES, &reason);
		form = (const char *)form + cold_page_bytes(&file->layout, (enum cold_form)file->header->form, page);
	}
	*took_ns += own_time_ns() - begin;
	return error;
}

static int expand_sample(struct bench *bench, struct adapter *adapter, int fd)
{
	uint64_t bytes = (uint64_t)adapter->layout.header->pages * PAGE_BYTES, took_ns = 0, begin;
	struct cold_file file;
	struct reason reason;
	int error = cold_open(fd, &file, &reason);

	if (error)
		return error;
	for (uint32_t i = 0; i < file.header->groups && !error; i++)
		error = group_expand(adapter, &file, i, &took_ns);
	cold_close(&file);
	bench_sample(bench, FIGURE_adapter_int8_expand, (double)bytes / (double)took_ns);
	begin = own_time_ns();
	memcpy(adapter->others, adapter->images, bytes);
	bench_sample(bench, FIGURE_peer_adapter_expand_memcpy, (double)bytes / (double)(own_time_ns() - begin));
	return error;
}

/* Read without the page cache, if the file system permits it. */
static int plain_read(int fd, uint8_t *to, uint64_t bytes)
{
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return pread(fd, to, bytes, 0) == (ssize_t)bytes ? 0 : -EIO;
}

static int reader_read(int fd, struct cold_reader *reader, const struct cold_file *file)
{
	const void *stored;
	uint32_t group;
	int result;

	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	result = cold_reader_begin(reader, file);
	if (result)
		return result;
	while ((result = cold_reader_next(reader, &group, &stored)) > 0)
		cold_reader_give_back(reader, group);
	cold_reader_end(reader);
	return result;
}

/* The first read after a write is not measured: it may be slow on a virtual disk. */
static int disk_sample(struct bench *bench, struct adapter *adapter, struct cold_reader *reader, int fd)
{
	struct cold_file file;
	struct reason reason;
	uint64_t begin, bytes;
	int error = cold_open(fd, &file, &reason);

	if (error)
		return error;
	bytes = file.header->file_bytes;
	error = plain_read(fd, adapter->others, bytes);
	begin = own_time_ns();
	if (!error)
		error = reader_read(fd, reader, &file);
	bench_sample(bench, FIGURE_adapter_cold_disk, (double)(own_time_ns() - begin) / 1e6);
	begin = own_time_ns();
	if (!error)
		error = plain_read(fd, adapter->others, bytes);
	bench_sample(bench, FIGURE_peer_adapter_disk, (double)(own_time_ns() - begin) / 1e6);
	cold_close(&file);
	return error;
}

static int cold_sample(struct bench *bench, struct adapter *adapter, struct cold_reader *reader)
{
	uint64_t begin = own_time_ns();
	struct cold_header header;
	struct reason reason;
	int error = cold_write(&adapter->convert, &adapter->source, adapter->folder, "adapter", true, &header, &reason),
	    fd;

	if (error)
		return error;
	bench_sample(bench, FIGURE_adapter_cold_write, (double)(own_time_ns() - begin) / 1e6);
	fd = openat(adapter->folder, "adapter", O_RDONLY | O_CLOEXEC);
	begin = own_time_ns();
	error = cold_read_all(fd, adapter->others);
	bench_sample(bench, FIGURE_adapter_cold_read, (double)(own_time_ns() - begin) / 1e6);
	begin = own_time_ns();
	if (!error && pread(fd, adapter->others, header.file_bytes, 0) != (ssize_t)header.file_bytes)
		error = -EIO;
	bench_sample(bench, FIGURE_peer_adapter_pread, (double)(own_time_ns() - begin) / 1e6);
	if (!error)
		error = expand_sample(bench, adapter, fd);
	if (!error)
		error = disk_sample(bench, adapter, reader, fd);
	close(fd);
	return error;
}

int bench_adapter(struct bench *bench)
{
	struct adapter adapter = {.config = -1};
	struct cold_reader *reader = NULL;
	int error = adapter_init(bench, &adapter);

	if (!error)
		error = cold_reader_create(&reader);
	for (unsigned run = 0; run < bench->runs && !error; run++) {
		error = convert_sample(bench, &adapter);
		if (!error)
			error = cold_sample(bench, &adapter, reader);
	}
	cold_reader_destroy(reader);
	adapter_fini(&adapter);
	return error ? bench_complain(bench, error, "cannot convert, write or read an adapter") : 0;
}
