#include "tools/lib/json.h"

#include "tools/lib/cli.h"

#include <inttypes.h>

cJSON *json_document(const char *kind)
{
	cJSON *document = memory_or_exit(cJSON_CreateObject());

	json_number(document, "version", 1);
	json_text(document, "kind", kind);
	return document;
}

/* Add the number as raw text: cJSON stores numbers as doubles, which lose the low bits of large counters. */
void json_number(cJSON *object, const char *name, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, value);
	memory_or_exit(cJSON_AddRawToObject(object, name, text));
}

void json_real(cJSON *object, const char *name, double value)
{
	memory_or_exit(cJSON_AddNumberToObject(object, name, value));
}

void json_fields(cJSON *object, const struct json_field *fields)
{
	for (; fields->name; fields++)
		json_real(object, fields->name, fields->value);
}

void json_text(cJSON *object, const char *name, const char *value)
{
	memory_or_exit(cJSON_AddStringToObject(object, name, value));
}

void json_bool(cJSON *object, const char *name, bool value)
{
	memory_or_exit(cJSON_AddBoolToObject(object, name, value));
}

void json_null(cJSON *object, const char *name)
{
	memory_or_exit(cJSON_AddNullToObject(object, name));
}

cJSON *json_array(cJSON *object, const char *name)
{
	return memory_or_exit(cJSON_AddArrayToObject(object, name));
}

cJSON *json_object(cJSON *object, const char *name)
{
	return memory_or_exit(cJSON_AddObjectToObject(object, name));
}

cJSON *json_item(cJSON *array)
{
	cJSON *item = memory_or_exit(cJSON_CreateObject());

	cJSON_AddItemToArray(array, item);
	return item;
}

void json_write(FILE *out, cJSON *document, bool line)
{
	char *text = memory_or_exit(line ? cJSON_PrintUnformatted(document) : cJSON_Print(document));

	fprintf(out, "%s\n", text);
	cJSON_free(text);
	cJSON_Delete(document);
}
