/*
 * cold_file.c - read cold files, and compute the sizes of their parts.
 */
#include "client/lora/format/cold_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <zstd.h>

#include "client/lora/format/file_at.h"
#include "client/lora/format/int8_form.h"
#include "shm/checksum.h"
#include "shm/plural.h"

/*
 * The number of rows that are expanded before they are added to the checksum: 64 KiB, which fit in a core's cache.
 * Measured for 16 MB with two threads: 0.80 ms; with 2 MiB at a time, 1.0 ms.
 */
enum { EXPAND_ROWS = 256 };

/* ---- sizes ---- */

static uint32_t page_rows(const struct adapter_layout *layout, uint32_t page)
{
	const struct adapter_layout_header *header = layout->header;

	return (page == header->pages - 1 ? header->last_bytes : header->page_bytes) / ADAPTER_ROW_BYTES;
}

uint64_t cold_page_bytes(const struct adapter_layout *layout, enum cold_form form, uint32_t page)
{
	uint32_t rows = page_rows(layout, page);

	return form == COLD_INT8 ? int8_form_bytes(rows) : (uint64_t)rows * ADAPTER_ROW_BYTES;
}

uint64_t cold_pages_bytes(const struct adapter_layout *layout, enum cold_form form, uint32_t first, uint32_t pages)
{
	return (pages - 1) * cold_page_bytes(layout, form, first) + cold_page_bytes(layout, form, first + pages - 1);
}

/* ---- the head ---- */

static bool header_holds(const struct cold_header *header)
{
	uint64_t bytes = sizeof(*header) + header->groups * (uint64_t)sizeof(struct cold_group) +
		header->pages * sizeof(uint64_t) + (uint64_t)header->layout_bytes;

	return header->form < COLD_FORMS && header->groups >= 1 && header->groups <= header->pages &&
		header->head_bytes == cold_align(bytes) && header->head_bytes <= header->file_bytes;
}

/* Check the header before the rest of the head is read. */
static int header_check(const struct cold_header *header, uint64_t file_bytes, struct reason *reason)
{
	if (header->magic != COLD_MAGIC)
		return refuse(reason, "cold file: invalid magic number");
	if (header->version != COLD_VERSION || header->header_bytes != sizeof(*header))
		return refuse(reason, "cold file: version %u is not supported, only version %d; write the file again",
			header->version, COLD_VERSION);
	if (header->file_bytes != file_bytes)
		return refuse(reason, "cold file: the file has %" PRIu64 " byte%s, but %" PRIu64 " were written",
			file_bytes, plural(file_bytes), header->file_bytes);
	if (header->head_bytes < COLD_ALIGN || header->head_bytes > COLD_HEAD_MAX || header->head_bytes % COLD_ALIGN ||
		header->head_bytes > file_bytes)
		return refuse(
			reason, "cold file: invalid head of %u byte%s", header->head_bytes, plural(header->head_bytes));
	return 0;
}

static bool checksum_holds(struct cold_header *header)
{
	uint64_t checksum = header->checksum, found;

	header->checksum = 0;
	found = checksum_of(header, header->head_bytes);
	header->checksum = checksum;
	return found == checksum;
}

/* Check that the groups contain each page exactly once, and cover the file after the head. */
static bool groups_hold(const struct cold_file *file)
{
	const struct cold_header *header = file->header;
	uint64_t offset = header->head_bytes;
	uint32_t page = 0;

	for (const struct cold_group *group = file->groups; group < file->groups + header->groups; group++) {
		uint64_t whole;

		if (group->first_page != page || group->pages < 1 || group->pages > header->pages - page ||
			group->reserved || group->pages > COLD_GROUP_IMAGE_MAX / file->layout.header->page_bytes ||
			group->codec >= COLD_CODECS)
			return false;
		whole = cold_pages_bytes(&file->layout, header->form, page, group->pages);
		if (group->offset != offset || group->bytes < 1 || group->bytes > whole ||
			(group->codec == COLD_RAW && group->bytes != whole))
			return false;
		page += group->pages;
		offset += cold_align(group->bytes); /* cannot overflow: at most 65,536 groups of 8 MiB */
	}
	return page == header->pages && offset == header->file_bytes;
}

/* Find and check the parts of the head. */
static int head_check(struct cold_header *header, struct cold_file *file, struct reason *reason)
{
	int error;

	if (!checksum_holds(header))
		return refuse(reason, "cold file: the head is damaged");
	if (!header_holds(header))
		return refuse(reason, "cold file: invalid head");
	file->header = header;
	file->groups = (const void *)(header + 1);
	file->checksums = (const void *)(file->groups + header->groups);
	error = adapter_layout_check(file->checksums + header->pages, header->layout_bytes, &file->layout);
	if (error == -ENOMEM)
		return error;
	if (error || file->layout.header->pages != header->pages ||
		header->loss_module >= file->layout.header->modules || !groups_hold(file))
		return refuse(reason, "cold file: invalid layout or groups");
	return 0;
}

static void *aligned_room(uint64_t bytes)
{
	return aligned_alloc(COLD_ALIGN, bytes);
}

int cold_open(int fd, struct cold_file *file, struct reason *reason)
{
	struct cold_file made = {.fd = fd};
	struct cold_header *first = aligned_room(COLD_ALIGN), *head = NULL;
	struct stat status;
	int error = first ? 0 : -ENOMEM;

	if (!error && fstat(fd, &status))
		error = -EIO;
	if (!error && (!S_ISREG(status.st_mode) || status.st_size < COLD_ALIGN))
		error = refuse(reason, "cold file: invalid or truncated");
	if (!error)
		error = file_read_at(fd, first, COLD_ALIGN, 0);
	if (!error)
		error = header_check(first, (uint64_t)status.st_size, reason);
	if (!error) {
		uint32_t head_bytes = first->head_bytes;

		head = aligned_room(head_bytes);
		error = head ? file_read_at(fd, head, head_bytes, 0) : -ENOMEM;
		if (!error && memcmp(head, first, sizeof(*first)) != 0)
			error = refuse(reason, "cold file: the file was changed while it was read");
	}
	if (!error)
		error = head_check(head, &made, reason);
	free(first);
	if (error)
		free(head);
	else
		*file = made;
	return error;
}

void cold_close(struct cold_file *file)
{
	free((void *)(uintptr_t)file->header);
	*file = (struct cold_file){.fd = -1};
}

bool cold_is_of(const struct cold_file *file, const struct cold_source *source)
{
	return memcmp(&file->header->source, source, sizeof(*source)) == 0;
}

/* ---- groups and pages ---- */

int cold_group_read(const struct cold_file *file, uint32_t group, void *stored)
{
	return file_read_at(file->fd, stored, cold_align(file->groups[group].bytes), file->groups[group].offset);
}

int cold_group_expand(const struct cold_file *file, uint32_t group, const void *stored, void *room, const void **pages,
	struct reason *reason)
{
	const struct cold_group *from = &file->groups[group];
	uint64_t whole = cold_pages_bytes(&file->layout, file->header->form, from->first_page, from->pages);

	if (checksum_of(stored, cold_align(from->bytes)) != from->checksum)
		return refuse(reason, "cold file: group %u, %" PRIu64 " byte%s at %" PRIu64 ", is damaged", group,
			from->bytes, plural(from->bytes), from->offset);
	if (from->codec == COLD_RAW) {
		*pages = stored;
		return 0;
	}
	if (ZSTD_decompress(room, whole, stored, from->bytes) != whole)
		return refuse(reason,
			"cold file: group %u, %" PRIu64 " byte%s at %" PRIu64 ", does not decompress to %" PRIu64,
			group, from->bytes, plural(from->bytes), from->offset, whole);
	*pages = room;
	return 0;
}

static void rows_expand(
	const struct cold_file *file, uint32_t page, const void *form, uint32_t first, uint32_t count, uint8_t *image)
{
	size_t at = (size_t)first * ADAPTER_ROW_BYTES;

	if (file->header->form == COLD_INT8)
		int8_form_expand_some(
			form, page_rows(&file->layout, page), first, count, file->layout.header->element, image);
	else
		memcpy(image + at, (const uint8_t *)form + at, (size_t)count * ADAPTER_ROW_BYTES);
}

int cold_page_expand(const struct cold_file *file, uint32_t page, const void *form, void *image, struct reason *reason)
{
	uint32_t page_bytes = file->layout.header->page_bytes, rows = page_rows(&file->layout, page),
		 used = rows * ADAPTER_ROW_BYTES;
	XXH3_state_t *state = checksum_begin();

	if (!state)
		return -ENOMEM;
	for (uint32_t row = 0; row < rows; row += EXPAND_ROWS) {
		uint32_t count = rows - row < EXPAND_ROWS ? rows - row : EXPAND_ROWS;

		rows_expand(file, page, form, row, count, image);
		checksum_add(state, (const uint8_t *)image + (size_t)row * ADAPTER_ROW_BYTES,
			(size_t)count * ADAPTER_ROW_BYTES);
	}
	memset((char *)image + used, 0, page_bytes - used);
	checksum_add(state, (const uint8_t *)image + used, page_bytes - used);
	if (checksum_end(state) != file->checksums[page])
		return refuse(reason, "cold file: page %u does not match its checksum", page);
	return 0;
}

int cold_page_copy(const struct cold_file *file, uint32_t page, const void *form, void *copy, struct reason *reason)
{
	uint64_t bytes = cold_page_bytes(&file->layout, (enum cold_form)file->header->form, page);

	memcpy(copy, form, bytes);
	if (file->form_checksums && checksum_of(copy, bytes) != file->form_checksums[page])
		return refuse(reason, "cold file: the form of page %u does not match its checksum", page);
	return 0;
}
