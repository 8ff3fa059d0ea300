/*
 * safetensors.c - see safetensors.h.
 *
 * yajl parses the JSON, checks that it is UTF-8, and calls callbacks. The position in the format (`enum place`)
 * determines which callbacks are permitted. All others are refused immediately, so the nesting is limited to that of
 * the format.
 */
#include "client/lora/format/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <yajl/yajl_parse.h>

#include "client/lora/format/file_at.h"
#include "shm/plural.h"

static const struct {
	const char *name;
	uint32_t bytes;
} types[SAFETENSORS_TYPES] = {
	[SAFETENSORS_BOOL] = {"BOOL", 1},
	[SAFETENSORS_U8] = {"U8", 1},
	[SAFETENSORS_I8] = {"I8", 1},
	[SAFETENSORS_F8_E5M2] = {"F8_E5M2", 1},
	[SAFETENSORS_F8_E4M3] = {"F8_E4M3", 1},
	[SAFETENSORS_F8_E8M0] = {"F8_E8M0", 1},
	[SAFETENSORS_I16] = {"I16", 2},
	[SAFETENSORS_U16] = {"U16", 2},
	[SAFETENSORS_F16] = {"F16", 2},
	[SAFETENSORS_BF16] = {"BF16", 2},
	[SAFETENSORS_I32] = {"I32", 4},
	[SAFETENSORS_U32] = {"U32", 4},
	[SAFETENSORS_F32] = {"F32", 4},
	[SAFETENSORS_C64] = {"C64", 8},
	[SAFETENSORS_F64] = {"F64", 8},
	[SAFETENSORS_I64] = {"I64", 8},
	[SAFETENSORS_U64] = {"U64", 8},
};

const char *safetensors_type_name(enum safetensors_type type)
{
	return types[type].name;
}

uint32_t safetensors_type_bytes(enum safetensors_type type)
{
	return types[type].bytes;
}

/* ---- parse ---- */

enum place {
	BEGIN,
	IN_FILE,
	AT_METADATA,
	IN_METADATA,
	AT_TENSOR,
	IN_TENSOR,
	AT_TYPE,
	AT_SHAPE,
	IN_SHAPE,
	AT_PLACE,
	IN_PLACE,
	END
};

/* The expected value at each position, for error texts. */
static const char *const wanted[] = {
	[BEGIN] = "an object of tensors",
	[IN_FILE] = "the name of a tensor",
	[AT_METADATA] = "an object of strings in __metadata__",
	[IN_METADATA] = "a string in __metadata__",
	[AT_TENSOR] = "an object with dtype, shape and data_offsets",
	[IN_TENSOR] = "dtype, shape or data_offsets",
	[AT_TYPE] = "a string as dtype",
	[AT_SHAPE] = "an array as shape",
	[IN_SHAPE] = "a nonnegative integer in shape",
	[AT_PLACE] = "an array as data_offsets",
	[IN_PLACE] = "a nonnegative integer in data_offsets",
	[END] = "the end",
};

struct parse {
	struct safetensors *file;
	struct reason *reason;
	enum place place;
	int error; /* error of the callback that has stopped the parser, or 0 */
	bool metadata;
	uint32_t room; /* size of the array file->tensors */
	size_t names_used, names_room;
	/* state of the tensor that is being read, which is the last one in file->tensors */
	bool has_type, has_shape, has_place;
	uint32_t numbers;
	uint64_t span[2];
};

static struct safetensors_tensor *current(struct parse *parse)
{
	return &parse->file->tensors[parse->file->count - 1];
}

/* Return the current name. It is stored as an offset, because the memory of names may still be reallocated. */
static const char *current_name(struct parse *parse)
{
	return parse->file->names + (uintptr_t)current(parse)->name;
}

static int stop(struct parse *parse, int error)
{
	parse->error = error;
	return 0;
}

static int unwanted(struct parse *parse, const char *what)
{
	char name[REASON_NAME_BYTES];

	if (parse->place >= AT_TENSOR && parse->place < END)
		return stop(parse,
			refuse(parse->reason, "tensor '%s': %s instead of %s", refuse_name(current_name(parse), name),
				what, wanted[parse->place]));
	return stop(parse, refuse(parse->reason, "header: %s instead of %s", what, wanted[parse->place]));
}

static int on_null(void *context)
{
	return unwanted(context, "null");
}

static int on_boolean(void *context, int value)
{
	(void)value;
	return unwanted(context, "a boolean");
}

/* Read a number. Only digits are permitted, because all numbers of the format are counts. */
static bool number_read(const char *text, size_t length, uint64_t *number)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < length; i++) {
		if (text[i] < '0' || text[i] > '9' || __builtin_mul_overflow(sum, 10, &sum) ||
			__builtin_add_overflow(sum, (uint64_t)(text[i] - '0'), &sum))
			return false;
	}
	*number = sum;
	return length > 0;
}

static int on_number(void *context, const char *text, size_t length)
{
	struct parse *parse = context;
	struct safetensors_tensor *tensor;
	char name[REASON_NAME_BYTES];
	uint64_t number;

	if ((parse->place != IN_SHAPE && parse->place != IN_PLACE) || !number_read(text, length, &number))
		return unwanted(parse, "an unexpected number");
	tensor = current(parse);
	if (parse->numbers == (parse->place == IN_SHAPE ? SAFETENSORS_DIMENSIONS : 2))
		return stop(parse,
			parse->place == IN_SHAPE
				? refuse(parse->reason, "tensor '%s' has more than %d dimensions",
					  refuse_name(current_name(parse), name), SAFETENSORS_DIMENSIONS)
				: refuse(parse->reason, "tensor '%s': data_offsets are not two numbers",
					  refuse_name(current_name(parse), name)));
	if (parse->place == IN_SHAPE)
		tensor->shape[parse->numbers++] = number;
	else
		parse->span[parse->numbers++] = number;
	return 1;
}

static int on_string(void *context, const unsigned char *text, size_t length)
{
	struct parse *parse = context;
	char name[REASON_NAME_BYTES];

	if (parse->place == IN_METADATA)
		return 1;
	if (parse->place != AT_TYPE)
		return unwanted(parse, "a string");
	for (uint8_t type = 0; type < SAFETENSORS_TYPES; type++)
		if (strlen(types[type].name) == length && memcmp(types[type].name, text, length) == 0) {
			current(parse)->type = type;
			parse->has_type = true;
			parse->place = IN_TENSOR;
			return 1;
		}
	return stop(parse, refuse(parse->reason, "tensor '%s': unknown dtype", refuse_name(current_name(parse), name)));
}

static int tensor_add(struct parse *parse, const unsigned char *name, size_t length)
{
	struct safetensors *file = parse->file;

	if (file->count == parse->room) {
		uint32_t room = parse->room ? parse->room * 2 : 64;
		struct safetensors_tensor *tensors = realloc(file->tensors, room * sizeof(*tensors));

		if (!tensors)
			return -ENOMEM;
		file->tensors = tensors;
		parse->room = room;
	}
	if (parse->names_used + length + 1 > parse->names_room) {
		size_t room = (parse->names_room + length + 1) * 2;
		char *names = realloc(file->names, room);

		if (!names)
			return -ENOMEM;
		file->names = names;
		parse->names_room = room;
	}
	memset(&file->tensors[file->count], 0, sizeof(*file->tensors));
	file->tensors[file->count++].name = (const char *)(uintptr_t)parse->names_used;
	memcpy(file->names + parse->names_used, name, length);
	file->names[parse->names_used + length] = 0;
	parse->names_used += length + 1;
	parse->has_type = parse->has_shape = parse->has_place = false;
	return 0;
}

static int file_key(struct parse *parse, const unsigned char *key, size_t length)
{
	int error;

	if (length == 12 && memcmp(key, "__metadata__", 12) == 0) {
		if (parse->metadata)
			return stop(parse, refuse(parse->reason, "header: duplicate key __metadata__"));
		parse->metadata = true;
		parse->place = AT_METADATA;
		return 1;
	}
	if (!length || length > SAFETENSORS_NAME_MAX || memchr(key, 0, length))
		return stop(parse,
			refuse(parse->reason,
				"header: the name of tensor %u is empty, is longer than %d bytes, or contains a zero "
				"byte",
				parse->file->count + 1, SAFETENSORS_NAME_MAX));
	if (parse->file->count == SAFETENSORS_TENSORS_MAX)
		return stop(parse, refuse(parse->reason, "header: more than %d tensors", SAFETENSORS_TENSORS_MAX));
	error = tensor_add(parse, key, length);
	if (error)
		return stop(parse, error);
	parse->place = AT_TENSOR;
	return 1;
}

static int tensor_key(struct parse *parse, const unsigned char *key, size_t length)
{
	static const struct {
		const char *name;
		enum place place;
		size_t flag;
	} keys[] = {
		{"dtype", AT_TYPE, offsetof(struct parse, has_type)},
		{"shape", AT_SHAPE, offsetof(struct parse, has_shape)},
		{"data_offsets", AT_PLACE, offsetof(struct parse, has_place)},
	};
	char name[REASON_NAME_BYTES];

	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
		if (strlen(keys[i].name) != length || memcmp(keys[i].name, key, length) != 0)
			continue;
		if (*((bool *)((char *)parse + keys[i].flag)))
			return stop(parse,
				refuse(parse->reason, "tensor '%s': duplicate key %s",
					refuse_name(current_name(parse), name), keys[i].name));
		parse->place = keys[i].place;
		return 1;
	}
	return unwanted(parse, "an unknown key");
}

static int on_key(void *context, const unsigned char *key, size_t length)
{
	struct parse *parse = context;

	switch (parse->place) {
	case IN_FILE: return file_key(parse, key, length);
	case IN_TENSOR: return tensor_key(parse, key, length);
	case IN_METADATA: return 1;
	default: return unwanted(parse, "a key");
	}
}

static int on_map(void *context)
{
	struct parse *parse = context;

	switch (parse->place) {
	case BEGIN: parse->place = IN_FILE; return 1;
	case AT_METADATA: parse->place = IN_METADATA; return 1;
	case AT_TENSOR: parse->place = IN_TENSOR; return 1;
	default: return unwanted(parse, "an object");
	}
}

/* Check a single tensor. Its offset is still relative to the data. */
static int tensor_end(struct parse *parse)
{
	struct safetensors_tensor *tensor = current(parse);
	uint64_t bytes = types[tensor->type].bytes;
	char name[REASON_NAME_BYTES];

	refuse_name(current_name(parse), name);
	if (!parse->has_type || !parse->has_shape || !parse->has_place)
		return stop(parse,
			refuse(parse->reason, "tensor '%s' has no %s", name,
				!parse->has_type            ? "dtype"
					: !parse->has_shape ? "shape"
							    : "data_offsets"));
	if (parse->span[0] > parse->span[1])
		return stop(parse, refuse(parse->reason, "tensor '%s': data_offsets end before they begin", name));
	for (uint32_t i = 0; i < tensor->dimensions; i++)
		if (__builtin_mul_overflow(bytes, tensor->shape[i], &bytes))
			return stop(
				parse, refuse(parse->reason, "tensor '%s': the shape has more than 2^64 bytes", name));
	tensor->offset = parse->span[0];
	tensor->bytes = parse->span[1] - parse->span[0];
	if (tensor->bytes != bytes)
		return stop(parse,
			refuse(parse->reason,
				"tensor '%s': the shape has %" PRIu64 " byte%s, but the data_offsets have %" PRIu64,
				name, bytes, plural(bytes), tensor->bytes));
	parse->place = IN_FILE;
	return 1;
}

static int on_map_end(void *context)
{
	struct parse *parse = context;

	switch (parse->place) {
	case IN_FILE: parse->place = END; return 1;
	case IN_METADATA: parse->place = IN_FILE; return 1;
	default: return tensor_end(parse);
	}
}

static int on_array(void *context)
{
	struct parse *parse = context;

	if (parse->place != AT_SHAPE && parse->place != AT_PLACE)
		return unwanted(parse, "an array");
	parse->place = parse->place == AT_SHAPE ? IN_SHAPE : IN_PLACE;
	parse->numbers = 0;
	return 1;
}

static int on_array_end(void *context)
{
	struct parse *parse = context;
	char name[REASON_NAME_BYTES];

	if (parse->place == IN_SHAPE) {
		current(parse)->dimensions = (uint8_t)parse->numbers;
		parse->has_shape = true;
	} else if (parse->numbers == 2) {
		parse->has_place = true;
	} else {
		return stop(parse,
			refuse(parse->reason, "tensor '%s': data_offsets are not two numbers",
				refuse_name(current_name(parse), name)));
	}
	parse->place = IN_TENSOR;
	return 1;
}

static int json_parse(struct parse *parse, const void *text, uint64_t length)
{
	static const yajl_callbacks callbacks = {
		.yajl_null = on_null,
		.yajl_boolean = on_boolean,
		.yajl_number = on_number,
		.yajl_string = on_string,
		.yajl_start_map = on_map,
		.yajl_map_key = on_key,
		.yajl_end_map = on_map_end,
		.yajl_start_array = on_array,
		.yajl_end_array = on_array_end,
	};
	yajl_handle handle = yajl_alloc(&callbacks, NULL, parse);
	yajl_status status;

	if (!handle)
		return -ENOMEM;
	status = yajl_parse(handle, text, length);
	if (status == yajl_status_ok)
		status = yajl_complete_parse(handle);
	if (!parse->error && status != yajl_status_ok)
		parse->error = refuse(
			parse->reason, "header: invalid JSON or UTF-8 at byte %zu", yajl_get_bytes_consumed(handle));
	yajl_free(handle);
	assert(parse->error || parse->place == END);
	return parse->error;
}

/* ---- the whole header ---- */

static int by_place(const void *a, const void *b)
{
	const struct safetensors_tensor *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
	const struct safetensors_tensor *x = a, *y = b;

	return strcmp(x->name, y->name);
}

/* Check that the tensors cover the data without gaps, and that each is aligned to its type. */
static int places_check(struct safetensors *file, uint64_t file_bytes, struct reason *reason)
{
	uint64_t end = 0, data_bytes = file_bytes - file->data_offset;
	char name[REASON_NAME_BYTES];

	if (file->count)
		qsort(file->tensors, file->count, sizeof(*file->tensors), by_place);
	for (uint32_t i = 0; i < file->count; i++) {
		struct safetensors_tensor *tensor = &file->tensors[i];

		refuse_name(tensor->name, name);
		if (tensor->offset != end)
			return refuse(reason, "tensor '%s' begins at byte %" PRIu64 " of the data, %s", name,
				tensor->offset, tensor->offset < end ? "within another tensor" : "after a gap");
		if (tensor->bytes > data_bytes - end)
			return refuse(reason,
				"tensor '%s' ends beyond the end of the file, which has %" PRIu64 " byte%s of data",
				name, data_bytes, plural(data_bytes));
		end += tensor->bytes;
		tensor->offset += file->data_offset;
		if (tensor->offset % types[tensor->type].bytes)
			return refuse(reason,
				"tensor '%s': %s at byte %" PRIu64
				" of the file is not aligned; save the file with a newer version of safetensors",
				name, types[tensor->type].name, tensor->offset);
	}
	if (end != data_bytes)
		return refuse(reason, "file: %" PRIu64 " byte%s after the last tensor", data_bytes - end,
			plural(data_bytes - end));
	return 0;
}

static int names_check(struct safetensors *file, struct reason *reason)
{
	char name[REASON_NAME_BYTES];

	if (file->count)
		qsort(file->tensors, file->count, sizeof(*file->tensors), by_name);
	for (uint32_t i = 1; i < file->count; i++)
		if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
			return refuse(reason, "duplicate tensor '%s'", refuse_name(file->tensors[i].name, name));
	return 0;
}

static int read_fail(struct reason *reason)
{
	refuse(reason, "cannot read the file: a disk failed, or the file is being changed");
	return -EIO;
}

static int length_check(uint64_t header_bytes, uint64_t file_bytes, struct reason *reason)
{
	if (header_bytes > SAFETENSORS_HEADER_MAX)
		return refuse(reason, "header: the length is %" PRIu64 " byte%s; the limit is %d", header_bytes,
			plural(header_bytes), SAFETENSORS_HEADER_MAX);
	if (file_bytes < 8 || header_bytes > file_bytes - 8)
		return refuse(reason, "header: the length is %" PRIu64 " byte%s, but the file has %" PRIu64 " byte%s",
			header_bytes, plural(header_bytes), file_bytes, plural(file_bytes));
	return 0;
}

int safetensors_parse(
	const void *header, uint64_t header_bytes, uint64_t file_bytes, struct safetensors *file, struct reason *reason)
{
	struct safetensors made = {0};
	struct parse parse = {.file = &made, .reason = reason};
	int error = length_check(header_bytes, file_bytes, reason);

	if (error)
		return error;
	made.data_offset = 8 + header_bytes;
	if (!header_bytes || *(const char *)header != '{')
		return refuse(reason, "header: expected '{' as first character");
	error = json_parse(&parse, header, header_bytes);
	for (uint32_t i = 0; i < made.count; i++)
		made.tensors[i].name = made.names + (uintptr_t)made.tensors[i].name;
	if (!error)
		error = places_check(&made, file_bytes, reason);
	if (!error)
		error = names_check(&made, reason);
	if (error)
		safetensors_free(&made);
	else
		*file = made;
	return error;
}

int safetensors_header(int fd, uint64_t *header_bytes, uint64_t *file_bytes, struct reason *reason)
{
	uint8_t length[8];
	int error = file_size(fd, "file", file_bytes, reason);

	if (error)
		return error;
	if (*file_bytes < sizeof(length))
		return refuse(reason, "file: %" PRIu64 " byte%s %s too few for a header", *file_bytes,
			plural(*file_bytes), be(*file_bytes));
	error = file_read_at(fd, length, sizeof(length), 0);
	if (error)
		return read_fail(reason);
	*header_bytes = 0;
	for (int i = 7; i >= 0; i--)
		*header_bytes = *header_bytes << 8 | length[i];
	return length_check(*header_bytes, *file_bytes, reason);
}

int safetensors_read(int fd, struct safetensors *file, struct reason *reason)
{
	uint64_t header_bytes, file_bytes;
	void *header;
	int error = safetensors_header(fd, &header_bytes, &file_bytes, reason);

	if (error)
		return error;
	header = malloc(header_bytes + 1);
	if (!header)
		return -ENOMEM;
	error = file_read_at(fd, header, header_bytes, 8)
		? read_fail(reason)
		: safetensors_parse(header, header_bytes, file_bytes, file, reason);
	free(header);
	return error;
}

void safetensors_free(struct safetensors *file)
{
	free(file->tensors);
	free(file->names);
	*file = (struct safetensors){0};
}

static int name_compare(const void *name, const void *tensor)
{
	return strcmp(name, ((const struct safetensors_tensor *)tensor)->name);
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name)
{
	return file->count ? bsearch(name, file->tensors, file->count, sizeof(*file->tensors), name_compare) : NULL;
}
