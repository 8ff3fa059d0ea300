/*
 * memory_file.h - files in memory with the content that a program passes for an adapter, in the format of PEFT's files.
 *
 * The files are sealed before they are read, so that the program cannot change data that has been checked. All readers
 * of this folder take descriptors, and therefore read these files like those of a folder.
 */
#ifndef GPOOL_CLIENT_LORA_MEMORY_FILE_H
#define GPOOL_CLIENT_LORA_MEMORY_FILE_H

#include "client/gpool.h"
#include "client/lora/format/reason.h"

/*
 * memory_file_of() - make a file with a copy of `bytes`. name: for error texts. Return: 0 and *fd, which the caller
 * closes; -EMFILE, -ENOMEM, -ENOSPC (no memory), -EFAULT (the bytes cannot be read), with a reason.
 */
int memory_file_of(const char *name, const void *bytes, uint64_t length, int *fd, struct reason *reason);

/*
 * memory_file_of_arrays() - make a safetensors file of arrays. Equal arrays in any order make equal files. Names are
 * not checked here, but by the reader. Return: as memory_file_of(); -EINVAL: an invalid array, with a reason.
 */
int memory_file_of_arrays(const struct gpool_lora_array *arrays, uint32_t count, int *fd, struct reason *reason);

#endif
