/*
 * json_object.h - read a JSON object whose members are values, or objects of values. Internal to client/lora.
 *
 * The text is untrusted and small. Members of the object, and of objects in it, are stored in the order of the text.
 * Deeper values and elements of arrays are checked and counted, but not stored. Limits: the depth is at most
 * JSON_DEPTH_MAX; numbers have at most JSON_NUMBER_BYTES_MAX characters; strings are UTF-8; keys contain no zero byte.
 * Keys may occur twice, so callers must check for duplicates.
 */
#ifndef GPOOL_CLIENT_LORA_JSON_OBJECT_H
#define GPOOL_CLIENT_LORA_JSON_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_DEPTH_MAX = 64, JSON_NUMBER_BYTES_MAX = 63 };

enum json_kind { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json_value {
	const char *key;
	enum json_kind kind;
	uint32_t depth;    /* 1: a member of the object; 2: a member of the last value of depth 1 */
	uint32_t children; /* JSON_ARRAY and JSON_OBJECT: number of direct elements or members */
	double number;     /* JSON_NUMBER; infinite if it is out of range */
	const char *text;  /* JSON_STRING: [bytes], and a zero byte */
	size_t bytes;
};

struct json_object {
	struct json_value *values; /* [count] */
	uint32_t count;
	char *strings;
	bool is_object; /* false: the text is JSON but not an object, and has no values */
};

/*
 * json_object_parse() - read `text`, which has `bytes` bytes. Return: 0, and json_object_free() must be called;
 * -EINVAL: not JSON, because of byte *at; -E2BIG: a limit is exceeded at byte *at; -ENOMEM.
 */
int json_object_parse(const char *text, size_t bytes, struct json_object *object, size_t *at);
void json_object_free(struct json_object *object);

/* json_find() - return the first member of the object with this key, or NULL. */
const struct json_value *json_find(const struct json_object *object, const char *key);

/*
 * json_next() - return the next value of the same depth, or NULL after the last. The first value of depth 1 is
 * object->values. The first value of depth 2 follows its parent; see json_child().
 */
const struct json_value *json_next(const struct json_object *object, const struct json_value *value);
/* json_child() - return the first member of a value of depth 1 that is an object, or NULL. */
const struct json_value *json_child(const struct json_object *object, const struct json_value *value);

#endif
