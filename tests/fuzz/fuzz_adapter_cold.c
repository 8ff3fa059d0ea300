/*
 * fuzz_adapter_cold.c - arbitrary bytes as a cold file.
 *
 * Method: the input is opened as a file twice: unchanged, and with corrected checksums, to reach the checks after them.
 * Checked: a rejection has a reason. All groups and pages of an accepted file can be read into memory of the sizes that
 * the file states. Reading ahead, through the page cache or with direct I/O, yields the same bytes for each group.
 *
 * Requirements: S10.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <xxhash.h>

#include "client/lora/load/cold_reader.h"

static int cached_reads; /* number of reads from the page cache, after which direct I/O is used */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int condition)
{
	if (!condition)
		abort();
}

ssize_t preadv2(int fd, const struct iovec *to, int count, off_t offset, int flags)
{
	if (cached_reads-- <= 0) {
		errno = EAGAIN;
		return -1;
	}
	return syscall(SYS_preadv2, fd, to, (long)count, (long)offset, 0L, (long)flags);
}

/*
 * Read with one reader for all files, as a process does. Two groups are held at a time, and returned in either order.
 */
static void read_ahead(const struct cold_file *file, int cached, int which)
{
	static struct cold_reader *reader;
	uint32_t held[2], count = 0, group;
	const void *stored;

	cached_reads = cached;
	demand((reader || !cold_reader_create(&reader)) && !cold_reader_begin(reader, file));
	for (uint32_t i = 0; i < file->header->groups; i++) {
		uint64_t bytes = cold_align(file->groups[i].bytes);
		uint8_t *plain = aligned_alloc(COLD_ALIGN, bytes);

		demand(plain && cold_group_read(file, i, plain) == 0);
		demand(cold_reader_next(reader, &group, &stored) == 1 && group == i);
		demand(memcmp(stored, plain, bytes) == 0);
		free(plain);
		held[count++] = group;
		if (count == 2) {
			cold_reader_give_back(reader, held[which]);
			held[0] = held[!which];
			count = 1;
		}
	}
	demand(cold_reader_next(reader, &group, &stored) == 0);
	if (count)
		cold_reader_give_back(reader, held[0]);
	cold_reader_end(reader);
}

static void group_read(const struct cold_file *file, uint32_t index)
{
	const struct cold_group *group = &file->groups[index];
	uint64_t whole = cold_pages_bytes(&file->layout, file->header->form, group->first_page, group->pages), at = 0;
	uint8_t *stored = aligned_alloc(COLD_ALIGN, cold_align(group->bytes)), *room = malloc(whole);
	uint8_t *image = malloc(file->layout.header->page_bytes);
	struct reason reason = {""};
	const void *pages;

	demand(whole <= COLD_GROUP_IMAGE_MAX && stored && room && image);
	demand(cold_group_read(file, index, stored) == 0);
	if (cold_group_expand(file, index, stored, room, &pages, &reason)) {
		demand(reason.text[0] != 0);
	} else {
		for (uint32_t page = group->first_page; page < group->first_page + group->pages; page++) {
			int error = cold_page_expand(file, page, (const uint8_t *)pages + at, image, &reason);

			demand(error == 0 || (error == -EINVAL && reason.text[0]));
			at += cold_page_bytes(&file->layout, file->header->form, page);
		}
		demand(at == whole);
	}
	free(stored);
	free(room);
	free(image);
}

static void check(const uint8_t *bytes, size_t size)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC), error;
	struct reason reason = {""};
	struct cold_file file;

	demand(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
	error = cold_open(fd, &file, &reason);
	demand(error == 0 || (error == -EINVAL && reason.text[0]));
	if (!error) {
		for (uint32_t i = 0; i < file.header->groups; i++)
			group_read(&file, i);
		read_ahead(&file, size % 3 ? (int)(size % 5) : INT32_MAX, size % 2);
		cold_close(&file);
	}
	close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t whole = (size + COLD_ALIGN - 1) / COLD_ALIGN * COLD_ALIGN;
	uint8_t *bytes = calloc(1, whole ? whole : 1);
	struct cold_header *header = (struct cold_header *)(void *)bytes;

	demand(bytes != NULL);
	if (size)
		memcpy(bytes, data, size);
	check(bytes, size);
	if (size >= sizeof(*header)) {
		struct cold_group *groups = (struct cold_group *)(void *)(header + 1);

		header->file_bytes = whole;
		for (uint32_t i = 0; i < header->groups && i < 4 && (uint8_t *)(groups + i + 1) <= bytes + whole; i++)
			if (groups[i].offset <= whole && groups[i].bytes <= whole &&
				cold_align(groups[i].bytes) <= whole - groups[i].offset)
				groups[i].checksum = XXH3_64bits(bytes + groups[i].offset, cold_align(groups[i].bytes));
		header->checksum = 0;
		if (header->head_bytes <= whole)
			header->checksum = XXH3_64bits(bytes, header->head_bytes);
		check(bytes, whole);
	}
	free(bytes);
	return 0;
}
