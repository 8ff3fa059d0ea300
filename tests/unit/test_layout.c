/*
 * test_layout.c - the description of the data that successive modules share (agent/base/layout.h).
 *
 * Goal: the description is complete, a change of any described field is found and named, and permitted additions are
 * accepted. Method: read the headers and look up each of their structs and fields in the description; make one change
 * each to copies of the description.
 */
#include "agent/base/layout.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- the headers ---- */

static const char *const headers[] = {
	"shm/flight.h",
	"shm/pool_segment.h",
	"shm/session_segment.h",
	"shm/region_table.h",
	"shm/timeline_page.h",
	"shm/manifest.h",
	"agent/base/ledger.h",
	"agent/config/recipe.h",
	"agent/base/module.h",
	"agent/keeper/channel.h",
	"agent/keeper/store.h",
	"agent/front/front.h",
	"agent/mover/ring.h",
};

/* Structs of these headers that only one process uses. */
static const char *const apart[] = {"flight_entry", "pool_geometry", "session_layout", "session_segment", "region_row",
	"region_writer", "region_look", "manifest_layout", "manifest", "manifest_pool", "store"};

static char *header_read(const char *name)
{
	const char *source = getenv("GPOOL_SOURCE");
	static char path[600], text[64 << 10];
	size_t length;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", source ? source : ".", name);
	file = fopen(path, "re");
	assert_non_null(file);
	length = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	assert_true(length < sizeof(text) - 1);
	text[length] = '\0';
	return text;
}

static void blank(char *from, const char *to)
{
	while (from < to)
		*from++ = ' ';
}

/* Replace comments, preprocessor lines, and text between [ and ] by spaces. */
static void header_reduce(char *text)
{
	uint32_t depth = 0;

	for (char *at = text; (at = strstr(at, "/*"));)
		blank(at, strstr(at, "*/") + 2);
	for (char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		while (*line == '#') {
			char *end = line + strcspn(line, "\n");
			bool more = end[-1] == '\\';

			blank(line, end);
			line = end + (*end == '\n');
			if (more)
				*line = '#';
		}
		if (!*line)
			break;
	}
	for (char *at = text; *at; at++) {
		depth += *at == '[';
		if (!depth)
			continue;
		depth -= *at == ']';
		if (*at != '\n')
			*at = ' ';
	}
}

static const struct layout_part *part_of(const char *name, size_t length)
{
	for (uint32_t i = 0; i < layout_own.part_count; i++)
		if (strlen(layout_own.parts[i].name) == length && !strncmp(layout_own.parts[i].name, name, length))
			return &layout_own.parts[i];
	return NULL;
}

static bool part_has(const struct layout_part *part, const char *name, size_t length)
{
	uint32_t count;
	const struct layout_field *fields = part->fields(&count);

	for (uint32_t i = 0; i < count; i++)
		if (strlen(fields[i].name) == length && !strncmp(fields[i].name, name, length))
			return true;
	return false;
}

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/*
 * Return the name at the end of a declaration. For a pointer to a function or an array, return the name in its inner
 * parentheses. The length is zero if there is no name, as for a union without a name.
 */
static const char *declared(const char *from, const char *to, size_t *length)
{
	const char *inner = from;
	const char *end = to;

	while (inner + 1 < to && !(inner[0] == '(' && inner[1] == '*'))
		inner++;
	if (inner + 1 < to)
		end = memchr(inner, ')', (size_t)(to - inner));
	while (end > from && !is_word(end[-1]))
		end--;
	for (*length = 0; end - *length > from && is_word(end[-(ptrdiff_t)*length - 1]);)
		++*length;
	return end - *length;
}

/* Check that each field between `body` and `end` is in the part. Return the number of fields. */
static uint32_t fields_check(const struct layout_part *part, const char *body, const char *end)
{
	uint32_t count = 0, parentheses = 0;
	const char *from = body;

	for (const char *at = body; at < end; at++) {
		const char *name;
		size_t length;

		parentheses += (*at == '(') - (*at == ')');
		if (*at == '{' || *at == '}')
			from = at + 1;
		if ((*at != ';' && *at != ',') || parentheses)
			continue;
		name = declared(from, at, &length);
		from = at + 1;
		if (!length)
			continue;
		if (!part_has(part, name, length))
			fail_msg("agent/base/layout.def has no field '%.*s' of struct %s", (int)length, name,
				part->name);
		count++;
	}
	return count;
}

static bool is_apart(const char *name, size_t length)
{
	for (size_t i = 0; i < COUNT(apart); i++)
		if (strlen(apart[i]) == length && !strncmp(apart[i], name, length))
			return true;
	return false;
}

static void test_every_struct_is_described(void **state)
{
	uint32_t structs = 0, fields = 0;

	(void)state;
	for (size_t i = 0; i < COUNT(headers); i++) {
		char *text = header_read(headers[i]);

		header_reduce(text);
		for (const char *at = text; (at = strstr(at, "\nstruct "));) {
			const char *name = at + strlen("\nstruct "), *open = name + strcspn(name, "{;(");
			size_t length = strcspn(name, " ;{");
			const struct layout_part *part;

			at = name;
			if (*open != '{' || is_apart(name, length))
				continue;
			part = part_of(name, length);
			if (!part)
				fail_msg("agent/base/layout.def has no struct '%.*s' of %s", (int)length, name,
					headers[i]);
			fields += fields_check(part, open + 1, strstr(open, "\n};"));
			structs++;
		}
	}
	assert_true(structs > 40);
	assert_true(fields > 300);
}

/* ---- differences ---- */

/* A copy of the description that a test can change. */
static struct {
	struct layout layout;
	struct layout_part parts[200];
} copy;

static struct layout_field changed[64];
static uint32_t changed_count;

static const struct layout_field *changed_fields(uint32_t *count)
{
	*count = changed_count;
	return changed;
}

/* Make a new copy. The fields of this part are in changed[]. */
static struct layout_part *copy_of(const char *name)
{
	struct layout_part *found = NULL;
	const struct layout_field *fields;

	assert_true(layout_own.part_count + 1 < COUNT(copy.parts));
	memcpy(copy.parts, layout_own.parts, layout_own.part_count * sizeof(copy.parts[0]));
	copy.layout = (struct layout){layout_own.part_count, 0, copy.parts};
	for (uint32_t i = 0; i < layout_own.part_count; i++)
		if (!strcmp(copy.parts[i].name, name))
			found = &copy.parts[i];
	assert_non_null(found);
	fields = found->fields(&changed_count);
	assert_true(changed_count < COUNT(changed));
	memcpy(changed, fields, changed_count * sizeof(*fields));
	found->fields = changed_fields;
	return found;
}

/* Check both directions. */
static void differs(enum layout_rule rule, const char *name)
{
	char found[LAYOUT_NAME_BYTES];

	assert_int_equal(layout_difference(&layout_own, &copy.layout, found), rule);
	if (name)
		assert_string_equal(found, name);
	assert_int_equal(layout_difference(&copy.layout, &layout_own, found), rule);
	if (rule == LAYOUT_SHARED || rule == LAYOUT_INTERFACE)
		assert_int_not_equal(layout_sum(&copy.layout, rule), layout_sum(&layout_own, rule));
	if (rule != LAYOUT_SHARED)
		assert_int_equal(layout_sum(&copy.layout, LAYOUT_SHARED), layout_sum(&layout_own, LAYOUT_SHARED));
}

static void test_the_same_has_no_difference(void **state)
{
	(void)state;
	copy_of("ledger_session");
	differs(0, "");
}

/* Change each field of each part, one at a time. */
static void test_every_change_is_found(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < layout_own.part_count; i++) {
		const struct layout_part *part = &layout_own.parts[i];
		uint32_t count;

		part->fields(&count);
		assert_true(count > 0);
		for (uint32_t k = 0; k < count; k++) {
			char found[LAYOUT_NAME_BYTES];

			copy_of(part->name);
			changed[k].at++;
			assert_int_equal(layout_difference(&layout_own, &copy.layout, found), part->rule);
			copy_of(part->name);
			changed[k].bytes++;
			assert_int_equal(layout_difference(&layout_own, &copy.layout, found), part->rule);
			copy_of(part->name);
			changed[k].name = "another";
			assert_int_equal(layout_difference(&layout_own, &copy.layout, found), part->rule);
			assert_non_null(strstr(found, ".another"));
		}
	}
}

static void test_additions(void **state)
{
	struct layout_part *part;

	(void)state;
	copy_of("ledger_page");
	changed[changed_count] = changed[changed_count - 1];
	changed[changed_count - 1] = (struct layout_field){"later", 4, 4};
	changed[changed_count++].bytes = 8;
	differs(LAYOUT_SHARED, "ledger_page.later");
	/* A struct that begins with its size may grow, and so may lists of constants. */
	copy_of("module_start");
	changed[changed_count++] = (struct layout_field){"later", 200, 8};
	differs(0, "");
	copy_of("values of keep_kind");
	changed[changed_count++] = (struct layout_field){"KEEP_LATER", 7, 0};
	differs(0, "");
	copy_of("module_start");
	changed[2].at += 8;
	differs(LAYOUT_GROWING, "module_start.recipe");
	/* A new message is accepted; a changed message is not. */
	part = copy_of("message version_reply");
	part->name = "message later";
	differs(0, "");
	copy_of("message version_reply");
	changed[changed_count++] = (struct layout_field){"later", 2, 4};
	differs(LAYOUT_MESSAGE, "message version_reply.later");
	/* Only one of the two descriptions has this shared struct. */
	part = copy_of("ledger_page");
	part->name = "later";
	differs(LAYOUT_SHARED, NULL);
	part = copy_of("recipe");
	copy.parts[copy.layout.part_count++] = (struct layout_part){"later", part->fields, LAYOUT_INTERFACE, 0};
	differs(LAYOUT_INTERFACE, "later");
}

static void test_text(void **state)
{
	char text[LAYOUT_TEXT_BYTES];

	(void)state;
	assert_string_equal(layout_text(14, 0x9f3c21, text), "14.009f3c21");
	assert_string_equal(layout_text(14, 0, text), "14");
	assert_string_equal(layout_text(UINT32_MAX, UINT32_MAX, text), "4294967295.ffffffff");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_struct_is_described),
		cmocka_unit_test(test_the_same_has_no_difference),
		cmocka_unit_test(test_every_change_is_found),
		cmocka_unit_test(test_additions),
		cmocka_unit_test(test_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
