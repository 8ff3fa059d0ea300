/*
 * json.h - JSON documents of the tools: {"version": 1, "kind": KIND, ...}. Within a version, fields may be added, but
 * never renamed or removed. A program that runs out of memory exits.
 */
#ifndef GPOOL_TOOLS_LIB_JSON_H
#define GPOOL_TOOLS_LIB_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

cJSON *json_document(const char *kind);
void json_number(cJSON *object, const char *name, uint64_t value); /* exact, also above 2^53 */
void json_real(cJSON *object, const char *name, double value);
void json_text(cJSON *object, const char *name, const char *value);
void json_bool(cJSON *object, const char *name, bool value);
void json_null(cJSON *object, const char *name);
cJSON *json_array(cJSON *object, const char *name);
cJSON *json_object(cJSON *object, const char *name);
cJSON *json_item(cJSON *array); /* append a new object */

struct json_field {
	const char *name; /* NULL ends the list */
	double value;
};
/* json_fields() - add several numbers: JSON_FIELDS(object, {"pages", pages}, {"seconds", seconds}); */
void json_fields(cJSON *object, const struct json_field *fields);
#define JSON_FIELDS(object, ...) json_fields(object, (const struct json_field[]){__VA_ARGS__, {NULL, 0}})

/* json_write() - write the document, indented or on one line, and free it. */
void json_write(FILE *out, cJSON *document, bool line);

#endif
