#include "client/lora/format/memory_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lora/format/file_at.h"
#include "client/lora/format/peft.h"
#include "shm/plural.h"

enum {
	BLOCK_BYTES = 64 << 10, /* rows that are gathered before they are written; chosen: fits in a core's cache */
	HEADER_ALIGN = 8,
};

/* ---- files ---- */

static int fail_file(const char *name, int error, struct reason *reason)
{
	refuse(reason, "cannot copy %s to memory: %s", name, strerror(-error));
	return error;
}

/* Seal a file, or close it after an error. */
static int file_end(const char *name, int fd, int error, struct reason *reason)
{
	if (!error && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		error = -errno;
	if (!error)
		return 0;
	close(fd);
	return fail_file(name, error, reason);
}

static int file_begin(const char *name, int *fd, struct reason *reason)
{
	*fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return *fd < 0 ? fail_file(name, errno == ENFILE ? -EMFILE : -errno, reason) : 0;
}

int memory_file_of(const char *name, const void *bytes, uint64_t length, int *fd, struct reason *reason)
{
	int made, error = file_begin(name, &made, reason);

	if (error)
		return error;
	error = file_end(name, made, file_write_at(made, bytes, length, 0), reason);
	if (!error)
		*fd = made;
	return error;
}

/* ---- arrays ---- */

static enum safetensors_type type_of(const struct gpool_lora_array *array)
{
	return array->element == GPOOL_LORA_F32    ? SAFETENSORS_F32
		: array->element == GPOOL_LORA_F16 ? SAFETENSORS_F16
						   : SAFETENSORS_BF16;
}

static uint64_t row_bytes(const struct gpool_lora_array *array)
{
	return (uint64_t)array->columns * safetensors_type_bytes(type_of(array));
}

static uint64_t array_bytes(const struct gpool_lora_array *array)
{
	return array->rows * row_bytes(array);
}

static int array_check(const struct gpool_lora_array *array, uint32_t index, struct reason *reason)
{
	char name[REASON_NAME_BYTES];

	if (!array->name || strnlen(array->name, SAFETENSORS_NAME_MAX + 1) > SAFETENSORS_NAME_MAX)
		return refuse(reason, "array %u has no name, or its name has more than %d bytes", index,
			SAFETENSORS_NAME_MAX);
	refuse_name(array->name, name);
	if (!array->data)
		return refuse(reason, "array '%s' has no data", name);
	if (array->element < GPOOL_LORA_F16 || array->element > GPOOL_LORA_F32)
		return refuse(reason, "array '%s': element is %u; it must be GPOOL_LORA_F16, _BF16 or _F32", name,
			array->element);
	if (array->reserved)
		return refuse(reason, "array '%s': reserved is %u; it must be 0", name, array->reserved);
	if (!array->rows || array->rows > PEFT_FEATURES_MAX || !array->columns || array->columns > PEFT_FEATURES_MAX)
		return refuse(reason, "array '%s' has %u row%s and %u column%s; it must have 1 to %d of each", name,
			array->rows, plural(array->rows), array->columns, plural(array->columns), PEFT_FEATURES_MAX);
	return 0;
}

/* The larger elements first, because each array begins where the previous one ends, at a multiple of its element. */
static int by_element(const void *a, const void *b)
{
	const struct gpool_lora_array *const *x = a, *const *y = b;
	uint32_t x_bytes = safetensors_type_bytes(type_of(*x)), y_bytes = safetensors_type_bytes(type_of(*y));

	return x_bytes != y_bytes ? (x_bytes < y_bytes ? 1 : -1) : strcmp((*x)->name, (*y)->name);
}

/* Write a text as JSON. Bytes above 127 are not changed: the reader checks that they are UTF-8. */
static void text_write(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text; text++) {
		if ((unsigned char)*text < ' ' || *text == '"' || *text == '\\')
			fprintf(out, "\\u%04x", (unsigned)(unsigned char)*text);
		else
			fputc(*text, out);
	}
	fputc('"', out);
}

/* Make the length of the header, and the header. */
static int header_make(const struct gpool_lora_array *const *order, uint32_t count, char **header, size_t *bytes)
{
	uint64_t end = 0, length = 0;
	FILE *out;
	bool failed;

	*header = NULL; /* fclose() may fail before it is set */
	out = open_memstream(header, bytes);
	if (!out)
		return -ENOMEM;
	fwrite(&length, sizeof(length), 1, out);
	for (uint32_t i = 0; i < count; i++) {
		const struct gpool_lora_array *array = order[i];

		fputc(i ? ',' : '{', out);
		text_write(out, array->name);
		fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[%u,%u],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
			safetensors_type_name(type_of(array)), array->rows, array->columns, end,
			end + array_bytes(array));
		end += array_bytes(array);
	}
	fprintf(out, "}%*s", HEADER_ALIGN - 1, "");
	failed = ferror(out);
	if (fclose(out) || failed) {
		free(*header);
		return -ENOMEM;
	}
	*bytes -= *bytes % HEADER_ALIGN;
	length = *bytes - sizeof(length);
	for (size_t i = 0; i < sizeof(length); i++)
		(*header)[i] = (char)(length >> 8 * i);
	return 0;
}

static void rows_gather(const struct gpool_lora_array *array, uint32_t first, uint32_t rows, void *to)
{
	uint32_t bytes = safetensors_type_bytes(type_of(array));

	for (uint32_t row = first; row < first + rows; row++) {
		const char *from = (const char *)array->data + row * array->row_stride * (int64_t)bytes;

		for (uint32_t column = 0; column < array->columns; column++, to = (char *)to + bytes)
			if (bytes == sizeof(uint32_t))
				memcpy(to, from + column * array->column_stride * (int64_t)bytes, sizeof(uint32_t));
			else
				memcpy(to, from + column * array->column_stride * (int64_t)bytes, sizeof(uint16_t));
	}
}

/* block: [BLOCK_BYTES], or a row if that is more */
static int array_write(int fd, const struct gpool_lora_array *array, uint64_t offset, void *block)
{
	uint64_t length = row_bytes(array);
	uint32_t each = length < BLOCK_BYTES ? (uint32_t)(BLOCK_BYTES / length) : 1;
	int error = 0;

	if (array->column_stride == 1 && array->row_stride == array->columns)
		return file_write_at(fd, array->data, array_bytes(array), offset);
	for (uint32_t row = 0; row < array->rows && !error; row += each) {
		uint32_t rows = array->rows - row < each ? array->rows - row : each;

		rows_gather(array, row, rows, block);
		error = file_write_at(fd, block, rows * length, offset + row * length);
	}
	return error;
}

static int arrays_write(int fd, const struct gpool_lora_array *const *order, uint32_t count)
{
	uint64_t room = BLOCK_BYTES, offset;
	size_t header_bytes;
	char *header;
	void *block;
	int error = header_make(order, count, &header, &header_bytes);

	if (error)
		return error;
	for (uint32_t i = 0; i < count; i++)
		room = row_bytes(order[i]) > room ? row_bytes(order[i]) : room;
	block = malloc(room);
	error = block ? file_write_at(fd, header, header_bytes, 0) : -ENOMEM;
	offset = header_bytes;
	for (uint32_t i = 0; i < count && !error; i++) {
		error = array_write(fd, order[i], offset, block);
		offset += array_bytes(order[i]);
	}
	free(block);
	free(header);
	return error;
}

int memory_file_of_arrays(const struct gpool_lora_array *arrays, uint32_t count, int *fd, struct reason *reason)
{
	const struct gpool_lora_array **order;
	int made, error = 0;

	if (!count || count > SAFETENSORS_TENSORS_MAX)
		return refuse(reason, "%u arrays; there must be 1 to %d", count, SAFETENSORS_TENSORS_MAX);
	for (uint32_t i = 0; i < count && !error; i++)
		error = array_check(&arrays[i], i, reason);
	if (error)
		return error;
	order = malloc(count * sizeof(*order));
	if (!order)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++)
		order[i] = &arrays[i];
	qsort(order, count, sizeof(*order), by_element);
	error = file_begin(PEFT_WEIGHTS_NAME, &made, reason);
	if (!error)
		error = file_end(PEFT_WEIGHTS_NAME, made, arrays_write(made, order, count), reason);
	free(order);
	if (!error)
		*fd = made;
	return error;
}
