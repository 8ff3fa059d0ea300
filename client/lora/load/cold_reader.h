/*
 * cold_reader.h - the groups of a cold file one after the other, read ahead of whoever expands them.
 *
 * A group that the page cache has whole is copied from there, when it is wanted. From the first that it has not, they
 * come from the disk past it (O_DIRECT), by io_uring, as many at once as there is room for: expanding one takes as long
 * as reading some. Where the kernel or the file system refuses that, it is told which groups will be wanted and reads
 * them into its cache meanwhile.
 *
 * One thread at a time uses a reader; what it handed out may be read by any.
 */
#ifndef GPOOL_CLIENT_LORA_COLD_READER_H
#define GPOOL_CLIENT_LORA_COLD_READER_H

#include "client/lora/format/cold_file.h"

enum {
	/* Bytes of buffers: any two groups fit, and of an adapter of usual size all. */
	COLD_READER_ROOM = 2 * COLD_GROUP_IMAGE_MAX,
	COLD_READER_HELD_MAX = 8, /* groups that are read ahead or not given back */
};

struct cold_reader;

/* Where the group that came last came from. */
enum cold_reader_way {
	COLD_READER_CACHED, /* all of it was in the page cache */
	COLD_READER_DIRECT, /* from the disk, by io_uring */
	COLD_READER_PLAIN,  /* by pread(2), and what follows it was asked for ahead */
};

/*
 * cold_reader_create() - a reader without a file. It is for many files, one after the other. Return: 0; -ENOMEM. Cost:
 * nothing yet; the first file takes its room, and the first that is not in the page cache a ring with its room
 * registered.
 */
int cold_reader_create(struct cold_reader **reader);
/* cold_reader_destroy() - also cold_reader_end(). NULL is taken. */
void cold_reader_destroy(struct cold_reader *reader);

/*
 * cold_reader_begin() - from now on groups of that file, from the first on. file: of cold_open(), without O_DIRECT,
 * which stays open until cold_reader_end(). Return: 0; -ENOMEM.
 */
int cold_reader_begin(struct cold_reader *reader, const struct cold_file *file);

/*
 * cold_reader_next() - wait for the next group.
 *
 * @group:  receives its number: 0, 1, ...
 * @stored: receives its bytes as they stand in the file, cold_align(bytes) of them, aligned to COLD_ALIGN and
 * unchecked: for
 *          cold_group_expand(). They stay until cold_reader_give_back().
 *
 * Return: 1; 0: there was no further one; -EAGAIN: the caller has so many groups that there is no room for another (two
 * always find room); -EIO: the file cannot be read, or has become shorter.
 */
int cold_reader_next(struct cold_reader *reader, uint32_t *group, const void **stored);

/* cold_reader_give_back() - that one's bytes are not read any more. In any order. */
void cold_reader_give_back(struct cold_reader *reader, uint32_t group);

/*
 * cold_reader_end() - no further groups of this file; all that were handed out are given back. Waits for what the
 * kernel is reading into our buffers, and forgets it. Without a file it does nothing.
 */
void cold_reader_end(struct cold_reader *reader);

/* cold_reader_way() - of the last group that cold_reader_next() gave: for tests and figures. */
enum cold_reader_way cold_reader_way(const struct cold_reader *reader);

#endif
