/*
 * safetensors.h - read and check the header of a safetensors file: its tensors and their positions.
 *
 * A file consists of the length of the header (8 bytes, little endian), the header (JSON, may end in spaces), and the
 * data. The header lists each tensor once, with its type, shape and range of the data; the ranges cover the data
 * without gaps. The reference reader checks neither that tensors are aligned nor that names are unique. This reader
 * refuses such files, because kernels and copies rely on the alignment, and because two readers could use different
 * tensors of the same name.
 *
 * Headers are untrusted: they are parsed as a stream, in memory that is bounded by the limits below.
 */
#ifndef GPOOL_CLIENT_LORA_SAFETENSORS_H
#define GPOOL_CLIENT_LORA_SAFETENSORS_H

#include <stdint.h>

#include "client/lora/format/reason.h"

enum {
	SAFETENSORS_DIMENSIONS = 8,
	SAFETENSORS_TENSORS_MAX = 262144,
	SAFETENSORS_NAME_MAX = 1023,
	/*
	 * The reference reader's limit is 100 MB. SAFETENSORS_TENSORS_MAX tensors of 250 bytes each need less than
	 * this.
	 */
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
	const char *name; /* contains no zero byte */
	uint8_t type;     /* enum safetensors_type */
	uint8_t dimensions;
	uint64_t shape[SAFETENSORS_DIMENSIONS];
	uint64_t offset; /* in bytes, from the beginning of the file */
	uint64_t bytes;
};

struct safetensors {
	struct safetensors_tensor *tensors; /* [count], ordered by the bytes of their names */
	uint32_t count;
	uint64_t data_offset; /* position of the first tensor */
	char *names;
};

/*
 * safetensors_parse() - read a header. header: [header_bytes], without the length before it; file_bytes: size of the
 * file. Return: 0, and safetensors_free() must be called; -EINVAL, with a reason; -ENOMEM.
 */
int safetensors_parse(const void *header, uint64_t header_bytes, uint64_t file_bytes, struct safetensors *file,
	struct reason *reason);

/* safetensors_header() - get the length of the header of a file. Return: 0; -EINVAL, with a reason; -EIO. */
int safetensors_header(int fd, uint64_t *header_bytes, uint64_t *file_bytes, struct reason *reason);
/* safetensors_read() - read the header of a regular file. Return: as safetensors_parse(), or -EIO. */
int safetensors_read(int fd, struct safetensors *file, struct reason *reason);

void safetensors_free(struct safetensors *file);

/* safetensors_find() - return the tensor with this name, or NULL. Cost: a binary search. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name);

const char *safetensors_type_name(enum safetensors_type type);
uint32_t safetensors_type_bytes(enum safetensors_type type);

#endif
