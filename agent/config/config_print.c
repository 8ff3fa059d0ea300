/*
 * config_print.c - print the configuration: the example, the rows of gpoold.conf(5), the current values.
 *
 * Keys are printed in the order of config_keys.def.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/config/config_value.h"

struct printing {
	FILE *out;
	enum config_print_form form;
	const struct config *config; /* only for CONFIG_PRINT_CURRENT; otherwise it may be NULL */
	int depth;
	bool separate; /* not the first key of its group: the example prints an empty line before it */
};

static void indent(const struct printing *p)
{
	for (int i = 0; i < p->depth; i++)
		fputs("    ", p->out);
}

static void separate(struct printing *p)
{
	if (p->separate && p->form == CONFIG_PRINT_EXAMPLE)
		fputc('\n', p->out);
	p->separate = true;
}

/*
 * Return the length of the longest part of text that ends before a blank and fits into width columns. A longer word is
 * not broken.
 */
static size_t line_length(const char *text, size_t width)
{
	size_t length = strlen(text);

	if (length <= width)
		return length;
	for (length = width; length > 0 && text[length] != ' '; length--)
		;
	return length ? length : strcspn(text, " ");
}

static void print_comment(const struct printing *p, const char *text)
{
	while (*text) {
		size_t length = line_length(text, 100 - 4 * (size_t)p->depth - 2);

		indent(p);
		fprintf(p->out, "# %.*s\n", (int)length, text);
		text += length;
		text += *text == ' ';
	}
}

/* Print a help text as mdoc: each sentence begins a line, and lines are wrapped at 80 columns. */
static void print_sentences(FILE *out, const char *text)
{
	while (*text) {
		const char *end = strstr(text, ". ");
		size_t sentence = end ? (size_t)(end - text) + 1 : strlen(text), length = line_length(text, 78);

		if (length > sentence)
			length = sentence;
		fprintf(out, "%.*s\n", (int)length, text);
		text += length;
		text += *text == ' ';
	}
}

/* Print a value in the syntax of libconfig: quoted, unquoted, or as a list made from names separated by commas. */
static void print_value(FILE *out, const struct config_key *key, const char *text)
{
	if (config_value_quoted(key->kind)) {
		fprintf(out, "\"%s\"", text);
	} else if (!config_value_is_list(key->kind)) {
		fputs(text, out);
		if (key->kind == CONFIG_KIND_FLOAT && !strpbrk(text, ".e"))
			fputs(".0", out);
	} else if (!*text) {
		fputs("[ ]", out);
	} else {
		fputs("[ ", out);
		for (; *text; text += strcspn(text, ","), text += *text == ',')
			fprintf(out, "\"%.*s\"%s", (int)strcspn(text, ","), text, text[strcspn(text, ",")] ? ", " : "");
		fputs(" ]", out);
	}
}

static const char *reload_text(const struct config_key *key)
{
	return key->reload == CONFIG_RELOAD_APPLIES ? "takes effect at a reload" : "requires a restart";
}

/* Print the range of a key, such as "An integer from 1 to 4000; requires a restart." */
static void range_text(const struct config_key *key, char *text, size_t text_bytes)
{
	char expected[200];

	config_value_expected(key, expected, sizeof(expected));
	if (expected[0] >= 'a' && expected[0] <= 'z')
		expected[0] = (char)(expected[0] - 'a' + 'A');
	snprintf(text, text_bytes, "%s; %s.", expected, reload_text(key));
}

/* Print the synonym of a key as a sentence; an empty text if it has none. */
static const char *synonym_text(const struct config_key *key, char *text, size_t text_bytes)
{
	const struct config_synonym *synonym = config_synonym_of(key);
	const char *dot = synonym ? strrchr(synonym->path, '.') : NULL;

	text[0] = '\0';
	if (synonym)
		snprintf(text, text_bytes, "Can also be given as %s%s%s.", dot ? dot + 1 : synonym->path,
			*synonym->unit ? ", a number of " : "", synonym->unit);
	return text;
}

static void print_key_man(const struct printing *p, const struct config_key *key, const char *name)
{
	char range[256];

	if (config_value_is_list(key->kind))
		fprintf(p->out, ".It Ic %s No = Li \\&[ \\&]\n", name);
	else if (config_value_quoted(key->kind))
		fprintf(p->out, ".It Ic %s No = Li \"\\(dq%s\\(dq\"\n", name, key->text);
	else
		fprintf(p->out, ".It Ic %s No = Li %s\n", name, key->text);
	print_sentences(p->out, key->help);
	print_sentences(p->out, synonym_text(key, range, sizeof(range)));
	range_text(key, range, sizeof(range));
	print_sentences(p->out, range);
}

/* Print a key with its value. If `hidden`, print it after a '#', since it is the default. */
static void print_key_file(
	struct printing *p, const struct config_key *key, const char *name, const char *text, bool hidden)
{
	char range[256], synonym[128];

	separate(p);
	if (p->form == CONFIG_PRINT_EXAMPLE) {
		range_text(key, range, sizeof(range));
		print_comment(p, key->help);
		print_comment(p, synonym_text(key, synonym, sizeof(synonym)));
		print_comment(p, range);
	}
	indent(p);
	fprintf(p->out, "%s%s = ", hidden ? "#" : "", name);
	print_value(p->out, key, text);
	fputs(";\n", p->out);
}

static void group_open(struct printing *p, const char *path, const char *name)
{
	if (p->form == CONFIG_PRINT_MAN) {
		if (p->depth == 0 && strchr(path, '.') == NULL)
			fprintf(p->out, ".Ss %s\n", path);
		else
			fprintf(p->out, ".It Ic %s No = Li { ... }\n", name);
		print_sentences(p->out, config_group_help(path));
		fputs(".Bl -tag -width Ds\n", p->out);
	} else {
		separate(p);
		if (p->form == CONFIG_PRINT_EXAMPLE)
			print_comment(p, config_group_help(path));
		indent(p);
		fprintf(p->out, "%s = {\n", name);
	}
	p->separate = false;
	p->depth++;
}

static void group_close(struct printing *p)
{
	p->depth--;
	if (p->form == CONFIG_PRINT_MAN) {
		fputs(".El\n", p->out);
		return;
	}
	indent(p);
	fputs("};\n", p->out);
	p->separate = true;
}

/* Store the part of a path before its last dot; "" at the top level. */
static void group_of(const char *path, char *group, size_t group_bytes)
{
	const char *dot = strrchr(path, '.');

	snprintf(group, group_bytes, "%.*s", dot ? (int)(dot - path) : 0, path);
}

static bool group_within(const char *group, const char *outer)
{
	size_t length = strlen(outer);

	return length == 0 || (!strncmp(group, outer, length) && (group[length] == '.' || group[length] == '\0'));
}

/*
 * Print the ends and starts of groups between the groups `from` and `to`, then copy `to` into `from`, which has room
 * for 64 bytes.
 */
static void group_change(struct printing *p, char *from, const char *to)
{
	char next[64];
	size_t length;

	while (!group_within(to, from)) {
		group_close(p);
		group_of(from, next, sizeof(next));
		strcpy(from, next);
	}
	while (strcmp(from, to)) {
		length = strlen(from);
		length += from[0] != '\0';
		length += strcspn(to + length, ".");
		memcpy(from, to, length); /* not longer than `to`, which fits */
		from[length] = '\0';
		group_open(p, from, strrchr(from, '.') ? strrchr(from, '.') + 1 : from);
	}
}

static void print_globals(struct printing *p, size_t first, size_t end)
{
	char group[64] = "", to[64], text[CONFIG_VALUE_BYTES];

	for (size_t i = first; i < end; i++) {
		const struct config_key *key = &config_keys.keys[i];
		const char *name = strrchr(key->path, '.') ? strrchr(key->path, '.') + 1 : key->path;

		group_of(key->path, to, sizeof(to));
		group_change(p, group, to);
		if (p->form == CONFIG_PRINT_MAN) {
			print_key_man(p, key, name);
		} else if (p->form == CONFIG_PRINT_EXAMPLE) {
			print_key_file(p, key, name, key->text, true);
		} else {
			config_value_format(key, p->config, text, sizeof(text));
			print_key_file(p, key, name, text, false);
		}
	}
	group_change(p, group, "");
}

static void print_element(struct printing *p, const struct config_table *table, const void *base,
	const struct config_pool *pool, bool last)
{
	char text[CONFIG_VALUE_BYTES];

	fputs("    {\n", p->out);
	p->depth = 2;
	for (size_t i = 0; i < table->count; i++) {
		const struct config_key *key = &table->keys[i];

		config_value_format(key, base, text, sizeof(text));
		print_key_file(
			p, key, key->path, text, pool && !pool->reserved_given && !strcmp(key->path, "reserved"));
	}
	p->depth = 0;
	fputs(last ? "    }\n" : "    },\n", p->out);
}

/* Print a list of the example with one element: a pool, or a tenant that is commented out. */
static void print_list_example(struct printing *p, const char *name, const struct config_table *table, bool stands)
{
	fprintf(p->out, "%s = (\n    %s{\n", name, stands ? "" : "#");
	p->depth = 2;
	p->separate = false;
	for (size_t i = 0; i < table->count; i++)
		print_key_file(p, &table->keys[i], table->keys[i].path, table->keys[i].text,
			!stands || strcmp(table->keys[i].path, "name") != 0);
	p->depth = 0;
	fprintf(p->out, "    %s}\n);\n", stands ? "" : "#");
}

static void print_list(struct printing *p, const char *name, const struct config_table *table)
{
	bool pools = table == &config_pool_keys;

	if (p->form == CONFIG_PRINT_MAN) {
		fprintf(p->out, ".Ss %s\n", name);
		print_sentences(p->out, config_group_help(name));
		fputs(".Bl -tag -width Ds\n", p->out);
		for (size_t i = 0; i < table->count; i++)
			print_key_man(p, &table->keys[i], table->keys[i].path);
		fputs(".El\n", p->out);
	} else if (p->form == CONFIG_PRINT_EXAMPLE) {
		separate(p);
		print_comment(p, config_group_help(name));
		print_list_example(p, name, table, pools);
	} else {
		fprintf(p->out, "%s = (\n", name);
		for (uint32_t i = 0; i < (pools ? p->config->pool_count : p->config->tenant_count); i++)
			print_element(p, table, pools ? (const void *)&p->config->pools[i] : &p->config->tenants[i],
				pools ? &p->config->pools[i] : NULL,
				i + 1 == (pools ? p->config->pool_count : p->config->tenant_count));
		fputs(");\n", p->out);
	}
}

static void print_all(struct printing *p)
{
	size_t top = 0, logs;

	while (top < config_keys.count && !strchr(config_keys.keys[top].path, '.'))
		top++;
	for (logs = top; logs < config_keys.count && !strncmp(config_keys.keys[logs].path, "log.", 4);)
		logs++;
	if (p->form == CONFIG_PRINT_MAN)
		fputs(".Ss Top level\n.Bl -tag -width Ds\n", p->out);
	else if (p->form == CONFIG_PRINT_EXAMPLE)
		fputs("# gpoold.conf - configuration of gpoold, see gpoold.conf(5).\n"
		      "#\n"
		      "# A key that directly follows a '#' is shown with its default; remove the '#' to change "
		      "it.\n\n",
			p->out);
	print_globals(p, 0, top);
	if (p->form == CONFIG_PRINT_MAN)
		fputs(".El\n", p->out);
	print_globals(p, top, logs);
	print_list(p, "pools", &config_pool_keys);
	print_list(p, "tenants", &config_tenant_keys);
	print_globals(p, logs, config_keys.count);
}

static int write_all(int fd, const char *text, size_t bytes)
{
	while (bytes > 0) {
		ssize_t written = write(fd, text, bytes);

		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			return -errno;
		text += written;
		bytes -= (size_t)written;
	}
	return 0;
}

int config_print(const struct config *config, enum config_print_form form, int fd)
{
	struct printing p = {.form = form, .config = config};
	char *text = NULL;
	size_t bytes = 0;
	int rc;

	p.out = open_memstream(&text, &bytes);
	if (!p.out)
		return -ENOMEM;
	print_all(&p);
	rc = fclose(p.out) ? -ENOMEM : 0;
	if (!rc)
		rc = write_all(fd, text, bytes);
	free(text);
	return rc;
}
