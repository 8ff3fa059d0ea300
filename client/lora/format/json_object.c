/*
 * json_object.c - see json_object.h. yajl parses the text, checks that strings are UTF-8, and calls the functions
 * on_*().
 */
#include "client/lora/format/json_object.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include <yajl/yajl_parse.h>

enum {
	MEMBER_BYTES_MIN = 5, /* minimum size of a member in the text, with the comma: "":0, */
	DEPTH_STORED = 2,
};

struct parse {
	struct json_object *object;
	uint32_t depth; /* number of open arrays and objects */
	bool is_array[DEPTH_STORED + 1];
	uint32_t parent; /* index of the last value of depth 1 */
	size_t used;     /* used bytes of object->strings */
	locale_t locale; /* numbers have a decimal point in every locale of the program */
};

/* ---- values ---- */

/* Return true if the current value is a member of the object, or of an object in it. */
static bool is_stored(const struct parse *parse)
{
	if (!parse->object->is_object || !parse->depth || parse->depth > DEPTH_STORED)
		return false;
	return !parse->is_array[parse->depth];
}

static const char *string_add(struct parse *parse, const unsigned char *text, size_t bytes)
{
	char *added = parse->object->strings + parse->used;

	memcpy(added, text, bytes);
	added[bytes] = 0;
	parse->used += bytes + 1;
	return added;
}

/* Set the kind of the value for the last key. Return: the value, or NULL if it is not stored. */
static struct json_value *value_set(struct parse *parse, enum json_kind kind)
{
	struct json_object *object = parse->object;
	struct json_value *value;

	if (object->is_object && parse->depth == DEPTH_STORED)
		object->values[parse->parent].children++;
	if (!is_stored(parse))
		return NULL;
	value = &object->values[object->count - 1];
	value->kind = kind;
	return value;
}

static int on_null(void *context)
{
	value_set(context, JSON_NULL);
	return 1;
}

static int on_boolean(void *context, int is_true)
{
	value_set(context, is_true ? JSON_TRUE : JSON_FALSE);
	return 1;
}

static int on_number(void *context, const char *text, size_t bytes)
{
	struct parse *parse = context;
	struct json_value *value = value_set(parse, JSON_NUMBER);
	char copy[JSON_NUMBER_BYTES_MAX + 1];

	if (bytes > JSON_NUMBER_BYTES_MAX)
		return 0;
	if (!value)
		return 1;
	memcpy(copy, text, bytes);
	copy[bytes] = 0;
	value->number = strtod_l(copy, NULL, parse->locale);
	return 1;
}

static int on_string(void *context, const unsigned char *text, size_t bytes)
{
	struct json_value *value = value_set(context, JSON_STRING);

	if (value) {
		value->text = string_add(context, text, bytes);
		value->bytes = bytes;
	}
	return 1;
}

static int on_key(void *context, const unsigned char *key, size_t bytes)
{
	struct parse *parse = context;
	struct json_object *object = parse->object;

	if (memchr(key, 0, bytes))
		return 0;
	if (!is_stored(parse))
		return 1;
	if (parse->depth == 1)
		parse->parent = object->count;
	object->values[object->count++] =
		(struct json_value){.key = string_add(parse, key, bytes), .depth = parse->depth};
	return 1;
}

static int open_one(struct parse *parse, enum json_kind kind)
{
	value_set(parse, kind);
	if (!parse->depth)
		parse->object->is_object = kind == JSON_OBJECT;
	if (++parse->depth <= DEPTH_STORED)
		parse->is_array[parse->depth] = kind == JSON_ARRAY;
	return parse->depth <= JSON_DEPTH_MAX;
}

static int on_array(void *context)
{
	return open_one(context, JSON_ARRAY);
}

static int on_object(void *context)
{
	return open_one(context, JSON_OBJECT);
}

static int on_end(void *context)
{
	((struct parse *)context)->depth--;
	return 1;
}

/* ---- parse ---- */

static int parse_run(struct parse *parse, const char *text, size_t bytes, size_t *at)
{
	static const yajl_callbacks callbacks = {
		.yajl_null = on_null,
		.yajl_boolean = on_boolean,
		.yajl_number = on_number,
		.yajl_string = on_string,
		.yajl_start_map = on_object,
		.yajl_map_key = on_key,
		.yajl_end_map = on_end,
		.yajl_start_array = on_array,
		.yajl_end_array = on_end,
	};
	yajl_handle handle = yajl_alloc(&callbacks, NULL, parse);
	yajl_status status;

	if (!handle)
		return -ENOMEM;
	status = yajl_parse(handle, (const unsigned char *)text, bytes);
	*at = yajl_get_bytes_consumed(handle);
	if (status == yajl_status_ok)
		status = yajl_complete_parse(handle);
	yajl_free(handle);
	return status == yajl_status_ok ? 0 : status == yajl_status_client_canceled ? -E2BIG : -EINVAL;
}

int json_object_parse(const char *text, size_t bytes, struct json_object *object, size_t *at)
{
	struct json_object made = {0};
	struct parse parse = {.object = &made, .locale = newlocale(LC_ALL_MASK, "C", (locale_t)0)};
	int error = -ENOMEM;

	*at = 0;
	/* No string is longer than in the text, where it also has two quotes. */
	made.values = calloc(bytes / MEMBER_BYTES_MIN + 1, sizeof(*made.values));
	made.strings = malloc(bytes + 1);
	if (made.values && made.strings && parse.locale)
		error = parse_run(&parse, text, bytes, at);
	if (parse.locale)
		freelocale(parse.locale);
	if (error)
		json_object_free(&made);
	else
		*object = made;
	return error;
}

void json_object_free(struct json_object *object)
{
	free(object->values);
	free(object->strings);
	*object = (struct json_object){0};
}

/* ---- access ---- */

const struct json_value *json_next(const struct json_object *object, const struct json_value *value)
{
	const struct json_value *end = object->values + object->count;
	uint32_t depth = value->depth;

	for (value++; value < end && value->depth >= depth; value++)
		if (value->depth == depth)
			return value;
	return NULL;
}

const struct json_value *json_child(const struct json_object *object, const struct json_value *value)
{
	return value + 1 < object->values + object->count && value[1].depth > value->depth ? value + 1 : NULL;
}

const struct json_value *json_find(const struct json_object *object, const char *key)
{
	const struct json_value *value = object->count ? object->values : NULL;

	while (value && strcmp(value->key, key) != 0)
		value = json_next(object, value);
	return value;
}
