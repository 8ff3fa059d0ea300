/*
 * safetensors.h - which tensors a safetensors file has, and where: the header, checked to the letter.
 *
 * A file is: length of the header (8 bytes, little endian), header (JSON, may end in spaces), data. The header names
 * each tensor once, with its type, shape and place in the data; the places follow each other from 0 to the end of the
 * file without holes. The reference reader does not look at alignment nor for names that come twice; this one refuses
 * both: the first since kernels and copies rely on it, the second since two readers may take different ones.
 *
 * The header is the work of a stranger: it is parsed as a stream, in memory bounded by the limits below.
 */
#ifndef GPOOL_CLIENT_LORA_SAFETENSORS_H
#define GPOOL_CLIENT_LORA_SAFETENSORS_H

#include <stdint.h>

#include "client/lora/format/reason.h"

enum {
	SAFETENSORS_DIMENSIONS = 8,
	SAFETENSORS_TENSORS_MAX = 262144,
	SAFETENSORS_NAME_MAX = 1023,
	/* The reference's limit is 100 MB. The most tensors that we take need less than this, each with 250 bytes. */
	SAFETENSORS_HEADER_MAX = 64 << 20,
};

enum safetensors_type {
	SAFETENSORS_BOOL,
	SAFETENSORS_U8,
	SAFETENSORS_I8,
	SAFETENSORS_F8_E5M2,
	SAFETENSORS_F8_E4M3,
	SAFETENSORS_F8_E8M0,
	SAFETENSORS_I16,
	SAFETENSORS_U16,
	SAFETENSORS_F16,
	SAFETENSORS_BF16,
	SAFETENSORS_I32,
	SAFETENSORS_U32,
	SAFETENSORS_F32,
	SAFETENSORS_C64,
	SAFETENSORS_F64,
	SAFETENSORS_I64,
	SAFETENSORS_U64,
	SAFETENSORS_TYPES
};

struct safetensors_tensor {
	const char *name; /* without NUL in it */
	uint8_t type;     /* enum safetensors_type */
	uint8_t dimensions;
	uint64_t shape[SAFETENSORS_DIMENSIONS];
	uint64_t offset; /* bytes, from the beginning of the file */
	uint64_t bytes;
};

struct safetensors {
	struct safetensors_tensor *tensors; /* [count], by name in order of bytes */
	uint32_t count;
	uint64_t data_offset; /* where the first tensor begins */
	char *names;
};

/*
 * safetensors_parse() - header: [header_bytes], what stands behind the length. file_bytes: of the whole file.
 * Return: 0, and safetensors_free() is to be called; -EINVAL: no such file, reason says why; -ENOMEM.
 */
int safetensors_parse(const void *header, uint64_t header_bytes, uint64_t file_bytes, struct safetensors *file,
	struct reason *reason);

/*
 * safetensors_header() - how long the header is that the file begins with: 0; -EINVAL, with a reason, if it can be
 * none; -EIO.
 */
int safetensors_header(int fd, uint64_t *header_bytes, uint64_t *file_bytes, struct reason *reason);
/* safetensors_read() - the same, from a descriptor that can be read at any place: also -EIO. */
int safetensors_read(int fd, struct safetensors *file, struct reason *reason);

void safetensors_free(struct safetensors *file);

/* safetensors_find() - the tensor of that name, or NULL. Cost: a binary search. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name);

const char *safetensors_type_name(enum safetensors_type type);
uint32_t safetensors_type_bytes(enum safetensors_type type);

#endif
