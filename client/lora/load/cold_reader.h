/*
 * cold_reader.h - read the groups of a cold file in order, ahead of the threads that expand them.
 *
 * A group that is completely in the page cache is copied from it. From the first other group on, groups are read from
 * the disk without the page cache (O_DIRECT), by io_uring, as many at once as the buffers can hold. If the kernel or
 * the file system refuses that, groups are read by pread(2), and the following ones are announced to the kernel.
 *
 * One thread at a time uses a reader; any thread may read the groups that it returned.
 */
#ifndef GPOOL_CLIENT_LORA_COLD_READER_H
#define GPOOL_CLIENT_LORA_COLD_READER_H

#include "client/lora/format/cold_file.h"

enum {
	/* Bytes of buffers: enough for any two groups, and for all groups of an adapter of usual size. */
	COLD_READER_ROOM = 2 * COLD_GROUP_IMAGE_MAX,
	COLD_READER_HELD_MAX = 8, /* groups that are read ahead, or not yet given back */
};

struct cold_reader;

/* The source of the last group. */
enum cold_reader_way {
	COLD_READER_CACHED, /* the page cache */
	COLD_READER_DIRECT, /* from the disk, by io_uring */
	COLD_READER_PLAIN,  /* pread(2), with an announcement of the following groups */
};

/*
 * cold_reader_create() - Create a reader, which reads any number of files one after the other. Return: 0; -ENOMEM.
 * Cost: buffers are allocated with the first file, and the ring with the first file that is not in the page cache.
 */
int cold_reader_create(struct cold_reader **reader);
/* cold_reader_destroy() - Free a reader, after cold_reader_end(). May be NULL. */
void cold_reader_destroy(struct cold_reader *reader);

/*
 * cold_reader_begin() - Start with the first group of a file. file: of cold_open(), without O_DIRECT; it must stay open
 * until cold_reader_end(). Return: 0; -ENOMEM.
 */
int cold_reader_begin(struct cold_reader *reader, const struct cold_file *file);

/*
 * cold_reader_next() - Wait for the next group.
 *
 * @group:  receives its number: 0, 1, ...
 * @stored: receives the address of its stored bytes, cold_align(bytes) of them, aligned to COLD_ALIGN and unchecked,
 *          for cold_group_expand(). They are valid until cold_reader_give_back().
 *
 * Return: 1; 0: no further group; -EAGAIN: the groups that were not given back leave no room for another (two always
 * fit); -EIO: the file cannot be read, or was truncated.
 */
int cold_reader_next(struct cold_reader *reader, uint32_t *group, const void **stored);

/* cold_reader_give_back() - Give back the bytes of a group; in any order. */
void cold_reader_give_back(struct cold_reader *reader, uint32_t group);

/*
 * cold_reader_end() - End a file; all groups must have been given back. It waits for the reads in progress. Without a
 * file it does nothing.
 */
void cold_reader_end(struct cold_reader *reader);

/* cold_reader_way() - Return the source of the last group of cold_reader_next(); for tests and figures. */
enum cold_reader_way cold_reader_way(const struct cold_reader *reader);

#endif
