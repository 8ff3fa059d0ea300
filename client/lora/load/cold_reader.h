/*
 * cold_reader.h - read the groups of a cold file in order, ahead of the threads that expand them.
 *
 * Groups are copied from the page cache as long as it contains them completely. The first group that is not in the page
 * cache, and all later groups, are read directly from the disk (O_DIRECT) by io_uring, with as many concurrent reads as
 * the buffers can hold. If the kernel or the file system does not support this, groups are read by pread(2), and the
 * following ones are announced to the kernel.
 *
 * Only one thread at a time may use a reader. Any thread may read the groups that it returned.
 */
#ifndef GPOOL_CLIENT_LORA_COLD_READER_H
#define GPOOL_CLIENT_LORA_COLD_READER_H

#include "client/lora/format/cold_file.h"

enum {
	/* Size of the buffers: enough for any two groups, and for all groups of an adapter of usual size. */
	COLD_READER_ROOM = 2 * COLD_GROUP_IMAGE_MAX,
	COLD_READER_HELD_MAX = 8, /* maximum number of groups that are read ahead or not yet returned */
};

struct cold_reader;

/* How the last group was read. */
enum cold_reader_way {
	COLD_READER_CACHED, /* copied from the page cache */
	COLD_READER_DIRECT, /* read from the disk, by io_uring */
	COLD_READER_PLAIN,  /* read by pread(2), with an announcement of the following groups */
};

/*
 * cold_reader_create() - create a reader, which can read any number of files one after another. Return: 0; -ENOMEM.
 * Cost: the buffers are allocated with the first file, and the ring with the first file that is not in the page cache.
 */
int cold_reader_create(struct cold_reader **reader);
/* cold_reader_destroy() - end the file of a reader, and free the reader. May be NULL. */
void cold_reader_destroy(struct cold_reader *reader);

/*
 * cold_reader_begin() - begin a file with its first group. file: from cold_open(), opened without O_DIRECT; it must
 * stay open until cold_reader_end(). Return: 0; -ENOMEM.
 */
int cold_reader_begin(struct cold_reader *reader, const struct cold_file *file);

/*
 * cold_reader_next() - wait for the next group.
 *
 * @group:  receives its number: 0, 1, ...
 * @stored: receives the address of its stored bytes, for cold_group_expand(): [cold_align(bytes)], aligned to
 *          COLD_ALIGN, and unchecked. They are valid until cold_reader_give_back().
 *
 * Return: 1; 0: no further group; -EAGAIN: the groups that were not returned leave no room for another one (two
 * always fit); -EIO: the file cannot be read, or was truncated.
 */
int cold_reader_next(struct cold_reader *reader, uint32_t *group, const void **stored);

/* cold_reader_give_back() - give back a group, in any order. */
void cold_reader_give_back(struct cold_reader *reader, uint32_t group);

/*
 * cold_reader_end() - end a file. All groups must have been returned. Waits for reads in progress. Does nothing if no
 * file was begun.
 */
void cold_reader_end(struct cold_reader *reader);

/* cold_reader_way() - return how the last group of cold_reader_next() was read; for tests and benchmarks. */
enum cold_reader_way cold_reader_way(const struct cold_reader *reader);

#endif
