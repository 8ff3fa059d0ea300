/* file_at.h - read and write bytes at a position of a file, and continue after interrupted or partial calls. */
#ifndef GPOOL_CLIENT_LORA_FILE_AT_H
#define GPOOL_CLIENT_LORA_FILE_AT_H

#include "client/lora/format/reason.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * file_size() - get the size of a regular file. Return: 0; -EINVAL: the file is empty, or is a directory, a FIFO or
 * similar, with a reason in which the file is called `name`; -EIO.
 */
int file_size(int fd, const char *name, uint64_t *bytes, struct reason *reason);

/* file_read_at() - read bytes. Return: 0; -EIO, also if the file is shorter. */
int file_read_at(int fd, void *bytes, uint64_t length, uint64_t offset);
/* file_write_at() - write bytes. Return: 0, or the error of pwrite(), such as -ENOSPC. */
int file_write_at(int fd, const void *bytes, uint64_t length, uint64_t offset);

/* file_is_sealed() - return true if the file is in memory and sealed, so that no process can change it. */
bool file_is_sealed(int fd);

#endif
