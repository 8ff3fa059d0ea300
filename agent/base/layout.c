#include "agent/base/layout.h"

#include "agent/front/front.h"
#include "agent/keeper/store.h"
#include "agent/base/ledger.h"
#include "agent/base/module.h"
#include "agent/mover/ring.h"
#include "agent/config/recipe.h"
#include "proto/messages.h"
#include "shm/manifest.h"
#include "shm/session_segment.h"
#include "shm/timeline_page.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- the tables: one function per part ---- */

#define FIELDS_OPEN(name) \
	static const struct layout_field *fields_of_##name(uint32_t *count) \
	{
#define FIELDS_CLOSE \
	} \
	; \
	*count = COUNT(fields); \
	return fields; \
	}

/* `this` is the name of the current struct, for FIELD(). Its scope is one part. */
#define STRUCT_OPEN(name) \
	FIELDS_OPEN(name) \
	typedef struct name this; \
	static const struct layout_field fields[] = {
#define WHOLE {"", _Alignof(this), sizeof(this)},

#define SHARED(name) STRUCT_OPEN(name)
#define END_SHARED(name) WHOLE FIELDS_CLOSE
#define INTERFACE(name) STRUCT_OPEN(name)
#define END_INTERFACE(name) WHOLE FIELDS_CLOSE
#define GROWING(name) STRUCT_OPEN(name)
#define END_GROWING(name) FIELDS_CLOSE
#define FIELD(name) {#name, offsetof(this, name), sizeof(((this *)NULL)->name)},

#define VALUES_OPEN(name) \
	FIELDS_OPEN(values_##name) \
	static const struct layout_field fields[] = {
#define SHARED_VALUES(name) VALUES_OPEN(name)
#define INTERFACE_VALUES(name) VALUES_OPEN(name)
#define GROWING_VALUES(name) VALUES_OPEN(name)
#define END_VALUES(name) FIELDS_CLOSE
#define VALUE(name) {#name, (uint64_t)name, 0},
#include "agent/base/layout.def"

/* A message is described by its encoding: the kind of each field with its size or limit. */
enum encoding {
	ENCODING_MESSAGE = 1,
	ENCODING_UNSIGNED,
	ENCODING_SIGNED,
	ENCODING_BYTES,
	ENCODING_TEXT,
	ENCODING_LIST
};

#define MESSAGE(name, type, text) \
	FIELDS_OPEN(message_##name) \
	static const struct layout_field fields[] = {{"", type, ENCODING_MESSAGE},
#define MESSAGE_END(name) FIELDS_CLOSE
#define RECORD(name, text) \
	FIELDS_OPEN(record_##name) \
	static const struct layout_field fields[] = {
#define RECORD_END(name) FIELDS_CLOSE
#define U8(name, text) {#name, ENCODING_UNSIGNED, 1},
#define U16(name, text) {#name, ENCODING_UNSIGNED, 2},
#define U32(name, text) {#name, ENCODING_UNSIGNED, 4},
#define U64(name, text) {#name, ENCODING_UNSIGNED, 8},
#define I32(name, text) {#name, ENCODING_SIGNED, 4},
#define BYTES(name, size, text) {#name, ENCODING_BYTES, size},
#define STR(name, size, text) {#name, ENCODING_TEXT, size},
#define LIST(name, record, most, text) {#name " of " #record, ENCODING_LIST, most},
#include "proto/messages.def"

/* ---- the parts ---- */

static const struct layout_part parts[] = {
#define SHARED(name) {#name, fields_of_##name, LAYOUT_SHARED, 0},
#define END_SHARED(name)
#define INTERFACE(name) {#name, fields_of_##name, LAYOUT_INTERFACE, 0},
#define END_INTERFACE(name)
#define GROWING(name) {#name, fields_of_##name, LAYOUT_GROWING, 0},
#define END_GROWING(name)
#define SHARED_VALUES(name) {"values of " #name, fields_of_values_##name, LAYOUT_SHARED, 0},
#define INTERFACE_VALUES(name) {"values of " #name, fields_of_values_##name, LAYOUT_INTERFACE, 0},
#define GROWING_VALUES(name) {"values of " #name, fields_of_values_##name, LAYOUT_GROWING, 0},
#define END_VALUES(name)
#define FIELD(name)
#define VALUE(name)
#include "agent/base/layout.def"
#define MESSAGE(name, type, text) {"message " #name, fields_of_message_##name, LAYOUT_MESSAGE, 0},
#define RECORD(name, text) {"record " #name, fields_of_record_##name, LAYOUT_MESSAGE, 0},
#include "proto/messages.def"
};

const struct layout layout_own = {COUNT(parts), 0, parts};

/* ---- checksums and differences ---- */

/* FNV-1a, 64 bits. */
static uint64_t sum_add(uint64_t sum, const void *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		sum = (sum ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
	return sum;
}

uint32_t layout_sum(const struct layout *layout, enum layout_rule rule)
{
	uint64_t sum = UINT64_C(0xcbf29ce484222325);

	for (uint32_t i = 0; i < layout->part_count; i++) {
		const struct layout_part *part = &layout->parts[i];
		const struct layout_field *fields;
		uint32_t count;

		if (part->rule != rule)
			continue;
		fields = part->fields(&count);
		sum = sum_add(sum, part->name, strlen(part->name) + 1);
		for (uint32_t k = 0; k < count; k++) {
			uint64_t numbers[] = {fields[k].at, fields[k].bytes};

			sum = sum_add(sum, fields[k].name, strlen(fields[k].name) + 1);
			sum = sum_add(sum, numbers, sizeof(numbers));
		}
	}
	sum ^= sum >> 32;
	return (uint32_t)sum ? (uint32_t)sum : 1; /* 0 means no checksum */
}

static const struct layout_part *part_find(const struct layout *layout, const char *name)
{
	for (uint32_t i = 0; i < layout->part_count; i++)
		if (!strcmp(layout->parts[i].name, name))
			return &layout->parts[i];
	return NULL;
}

static bool field_same(const struct layout_field *left, const struct layout_field *right)
{
	return !strcmp(left->name, right->name) && left->at == right->at && left->bytes == right->bytes;
}

/*
 * Return true if two parts of the same name are compatible. Otherwise set *field to the first incompatible field: the
 * one of `theirs`, or the one of `ours` if `theirs` has none at that place.
 */
static bool part_fits(const struct layout_part *ours, const struct layout_part *theirs, const char **field)
{
	uint32_t count, their_count;
	const struct layout_field *fields = ours->fields(&count), *their_fields = theirs->fields(&their_count);

	*field = "";
	if (ours->rule != theirs->rule)
		return false;
	for (uint32_t i = 0; i < count && i < their_count; i++) {
		if (field_same(&fields[i], &their_fields[i]))
			continue;
		*field = their_fields[i].name;
		return false;
	}
	if (count == their_count || ours->rule == LAYOUT_GROWING)
		return true;
	*field = count > their_count ? fields[their_count].name : their_fields[count].name;
	return false;
}

static enum layout_rule differs(const struct layout_part *part, const char *field, char *name)
{
	snprintf(name, LAYOUT_NAME_BYTES, "%s%s%s", part->name, *field ? "." : "", field);
	return part->rule ? part->rule : LAYOUT_INTERFACE;
}

static bool part_optional(const struct layout_part *part)
{
	return part->rule == LAYOUT_GROWING || part->rule == LAYOUT_MESSAGE;
}

enum layout_rule layout_difference(const struct layout *ours, const struct layout *theirs, char *name)
{
	const char *field;

	name[0] = '\0';
	for (uint32_t i = 0; i < ours->part_count; i++) {
		const struct layout_part *part = &ours->parts[i], *other = part_find(theirs, part->name);

		if (other ? !part_fits(part, other, &field) : !part_optional(part))
			return differs(part, other ? field : "", name);
	}
	for (uint32_t i = 0; i < theirs->part_count; i++)
		if (!part_optional(&theirs->parts[i]) && !part_find(ours, theirs->parts[i].name))
			return differs(&theirs->parts[i], "", name);
	return 0;
}

const char *layout_text(uint32_t version, uint32_t sum, char *text)
{
	snprintf(text, LAYOUT_TEXT_BYTES, sum ? "%u.%08x" : "%u", version, sum);
	return text;
}
