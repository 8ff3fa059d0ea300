/*
 * file_at.h - all of some bytes at one place of a file, whatever interrupts.
 */
#ifndef GPOOL_CLIENT_LORA_FILE_AT_H
#define GPOOL_CLIENT_LORA_FILE_AT_H

#include "client/lora/format/reason.h"

#include <stdint.h>

/*
 * file_size() - of a file that can be read at any place. Return: 0; -EINVAL, with a reason that names it as `name`: it
 * is a directory, a FIFO, ..., or empty; -EIO.
 */
int file_size(int fd, const char *name, uint64_t *bytes, struct reason *reason);

/* file_read_at() - Return: 0; -EIO, also where the file ends before. */
int file_read_at(int fd, void *bytes, uint64_t length, uint64_t offset);
/* file_write_at() - Return: 0, or what pwrite() says, -ENOSPC for one. */
int file_write_at(int fd, const void *bytes, uint64_t length, uint64_t offset);

#endif
