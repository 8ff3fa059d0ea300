/*
 * config_file.c - read files into struct config.
 *
 * libconfig parses the text, but some of its defects (version 1.5) require checks of the text before:
 *   an @include that cannot be read ends the process
 *   an integer that does not fit into 32 bits is read as 0
 *   a string is cut at \x00
 *   a comment without an end is accepted
 *   a comment on a last line without a line feed is refused
 *
 * After parsing, every setting in the tree is checked, so that an unknown key is an error instead of being ignored.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libconfig.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/config/config_value.h"
#include "shm/plural.h"

enum {
	/* ten times the size of a file with the maximum of tenants and names */
	FILE_BYTES_MAX = 1 << 20,
	CONF_D_FILES_MAX = CONFIG_SOURCES_MAX - 2, /* without sources[0] and the main file */
	NESTING_MAX = 16,                          /* the keys need 4 */
	CONF_D_NAME_BYTES = 256,                   /* NAME_MAX + 1 */
};

/* The file that is being read into *config. */
struct reading {
	const char *name;
	int source;
	struct config *config;
	struct config_error *error;
};

/* ---- the text ---- */

static unsigned line_of(const char *text, const char *place)
{
	unsigned line = 1;

	for (; text < place; text++)
		line += *text == '\n';
	return line;
}

/*
 * Return true if libconfig reads this number correctly: it uses atoi() and atoll() for integers, and atof() for floats.
 */
static bool number_fits(const char *token, size_t length)
{
	char number[48];
	char *end;
	long long value;

	if (length >= sizeof(number))
		return false;
	memcpy(number, token, length);
	number[length] = '\0';
	errno = 0;
	value = strtoll(number, &end, strncasecmp(number, "0x", 2) ? 10 : 16);
	if (*end == 'L')
		return errno == 0;
	if (*end) /* a float, or a number that libconfig refuses */
		return true;
	return errno == 0 && value >= INT_MIN && value <= INT_MAX;
}

/* Skip a string. Return NULL if it has no closing quotation mark or contains a \x00, whose place is stored in *zero. */
static const char *string_skip(const char *c, const char **zero)
{
	for (c++; *c && *c != '"'; c++) {
		if (*c != '\\' || !c[1])
			continue;
		if (tolower((unsigned char)c[1]) == 'x' && c[2] == '0' && c[3] == '0') {
			*zero = c;
			return NULL;
		}
		c++;
	}
	return *c ? c + 1 : NULL;
}

/* Find an @include. libconfig processes it at the start of any line, even inside comments and strings. */
static const char *include_find(const char *text)
{
	for (const char *at = strstr(text, "@include"); at; at = strstr(at + 1, "@include")) {
		const char *start = at;

		while (start > text && (start[-1] == ' ' || start[-1] == '\t'))
			start--;
		if (start == text || start[-1] == '\n')
			return at;
	}
	return NULL;
}

static int word_check(const struct reading *in, const char *text, const char *c, size_t length)
{
	bool number = isdigit((unsigned char)*c) || (strchr("+-", *c) && isdigit((unsigned char)c[1]));

	if (!number || number_fits(c, length))
		return 0;
	return config_fail(in->error, -EINVAL,
		"%s:%u: %.*s is out of range for an integer (at most %d); write a size as a string with a unit, such "
		"as \"16GiB\"",
		in->name, line_of(text, c), (int)(length > 40 ? 40 : length), c, INT_MAX);
}

/*
 * The position between brackets. libconfig leaks the memory of a string at an unexpected place. Strings are therefore
 * accepted only after an equals sign, after a string, and as elements of a list.
 */
struct nesting {
	char open[NESTING_MAX]; /* enclosing brackets */
	size_t depth;
	char previous; /* last significant character */
};

static bool string_expected(const struct nesting *n)
{
	bool in_list = n->depth && n->open[n->depth - 1] != '{';

	return n->previous && (strchr("=:\"", n->previous) || (in_list && strchr("[(,", n->previous)));
}

/* Enter or leave a bracket. Return false if the brackets are nested too deeply. */
static bool nesting_follow(struct nesting *n, char c)
{
	if (isspace((unsigned char)c))
		return true;
	n->previous = c;
	if (strchr("{[(", c)) {
		if (n->depth == NESTING_MAX)
			return false;
		n->open[n->depth++] = c;
	} else if (strchr("}])", c) && n->depth) {
		n->depth--;
	}
	return true;
}

/* Check one string, comment, word or sign. Return the text after it, or NULL with the error set. */
static const char *lexeme_check(const struct reading *in, const char *text, const char *c, struct nesting *n)
{
	const size_t word = strspn(c, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_+-.*");
	const char *next = c + 1, *complaint = NULL, *zero = NULL;

	if (*c == '#' || (*c == '/' && c[1] == '/'))
		return c + strcspn(c, "\n");
	if (*c == '/' && c[1] == '*') {
		next = strstr(c + 2, "*/");
		if (next)
			return next + 2;
		complaint = "unterminated comment";
	} else if (*c == '"') {
		next = string_skip(c, &zero);
		complaint = !string_expected(n) ? "unexpected string"
			: zero                  ? "a string cannot contain \\x00"
			: !next                 ? "unterminated string"
						: NULL;
		n->previous = '"';
	} else if (word) {
		if (word_check(in, text, c, word))
			return NULL;
		n->previous = 'a';
		next = c + word;
	} else if (!nesting_follow(n, *c)) {
		complaint = "brackets are nested too deeply";
	}
	if (!complaint)
		return next;
	config_fail(in->error, -EINVAL, "%s:%u: %s", in->name, line_of(text, zero ? zero : c), complaint);
	return NULL;
}

static int text_check(const struct reading *in, const char *text)
{
	const char *c = include_find(text);
	struct nesting nesting = {.depth = 0};

	if (c)
		return config_fail(in->error, -EINVAL,
			"%s:%u: @include is not supported; put the file into the directory that has the name of the "
			"configuration file followed by .d",
			in->name, line_of(text, c));
	for (c = text; *c;) {
		c = lexeme_check(in, text, c, &nesting);
		if (!c)
			return -EINVAL;
	}
	return 0;
}

/* ---- the tree ---- */

/*
 * Return the number of edits (insertions, deletions, replacements, swaps) between two short words; 99 if one is too
 * long.
 */
static unsigned word_distance(const char *a, const char *b)
{
	enum { MOST = 32 };
	unsigned rows[MOST + 1][MOST + 1];
	size_t rows_count = strlen(a), columns = strlen(b);

	if (rows_count > MOST || columns > MOST)
		return 99;
	for (size_t i = 0; i <= rows_count; i++) {
		for (size_t j = 0; j <= columns; j++) {
			/* Exact for the first row and column; an upper bound elsewhere. */
			unsigned best = (unsigned)(i + j);

			if (i && j) {
				best = rows[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
				best = rows[i - 1][j] + 1 < best ? rows[i - 1][j] + 1 : best;
				best = rows[i][j - 1] + 1 < best ? rows[i][j - 1] + 1 : best;
				if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
					rows[i - 2][j - 2] + 1 < best)
					best = rows[i - 2][j - 2] + 1;
			}
			rows[i][j] = best;
		}
	}
	return rows[rows_count][columns];
}

/*
 * Store the component of `path` after `prefix`, up to the next dot. Return false if `path` does not begin with
 * `prefix`.
 */
static bool child_of(const char *path, const char *prefix, char *child, size_t child_bytes)
{
	size_t length = strlen(prefix);

	if (length && (strncmp(path, prefix, length) || path[length++] != '.'))
		return false;
	snprintf(child, child_bytes, "%.*s", (int)strcspn(path + length, "."), path + length);
	return true;
}

struct suggestion {
	char text[64];
	unsigned distance;
};

static void suggest(struct suggestion *best, const char *given, const char *candidate)
{
	unsigned distance = word_distance(given, candidate);

	if (distance < best->distance && distance <= (strlen(given) + 2) / 3) {
		best->distance = distance;
		snprintf(best->text, sizeof(best->text), "%s", candidate);
	}
}

static int unknown_key(const struct reading *in, const config_setting_t *setting, const struct config_table *table,
	const char *prefix, const char *label)
{
	struct suggestion best = {.distance = 99};
	const char *given = config_setting_name(setting);
	const struct config_synonym *synonym;
	char child[64];

	for (size_t i = 0; i < table->count; i++)
		if (child_of(table->keys[i].path, prefix, child, sizeof(child)))
			suggest(&best, given, child);
	for (size_t i = 0; (synonym = config_synonym_at(i)); i++)
		if (synonym->table == table && child_of(synonym->path, prefix, child, sizeof(child)))
			suggest(&best, given, child);
	if (table == &config_keys && !*prefix) {
		suggest(&best, given, "pools");
		suggest(&best, given, "tenants");
	}
	return config_fail(in->error, -EINVAL, "%s:%u: unknown key '%s%s%s%.60s'%s%s%s", in->name, setting->line, label,
		prefix, *prefix ? "." : "", given, best.text[0] ? "; did you mean '" : "", best.text,
		best.text[0] ? "'?" : "");
}

static const char *type_name(const config_setting_t *setting)
{
	switch (config_setting_type(setting)) {
	case CONFIG_TYPE_GROUP: return "a group";
	case CONFIG_TYPE_INT:
	case CONFIG_TYPE_INT64: return "an integer";
	case CONFIG_TYPE_FLOAT: return "a floating-point number";
	case CONFIG_TYPE_STRING: return "a string";
	case CONFIG_TYPE_BOOL: return "a boolean";
	default: return "a list";
	}
}

/* A key in the file, with the word that the file uses for it. */
struct given_key {
	const struct config_key *key;
	const struct config_synonym *synonym; /* NULL: the key's own word */
	const char *path;
};

static int wrong_type(
	const struct reading *in, const config_setting_t *setting, const struct given_key *given, const char *label)
{
	char expected[200];

	if (given->synonym && *given->synonym->unit)
		snprintf(expected, sizeof(expected), "an integer, without quotes");
	else
		config_value_expected(given->key, expected, sizeof(expected));
	return config_fail(in->error, -EINVAL, "%s:%u: %s%s%s is %s; expected %s", in->name, setting->line,
		config_setting_name(setting) ? "" : "an element of ", label, given->path, type_name(setting), expected);
}

static int read_names(const struct reading *in, const config_setting_t *setting, const struct given_key *given_key,
	void *base, const char *label)
{
	const struct config_key *key = given_key->key;
	struct config_names given = {0};
	char why[256];

	if (!config_setting_is_array(setting) && !config_setting_is_list(setting))
		return wrong_type(in, setting, given_key, label);
	for (int i = 0; i < config_setting_length(setting); i++) {
		const config_setting_t *element = config_setting_get_elem(setting, (unsigned)i);

		if (config_setting_type(element) != CONFIG_TYPE_STRING)
			return wrong_type(in, element, given_key, label);
		if (config_names_add(key, config_setting_get_string(element), &given, why, sizeof(why)))
			return config_fail(
				in->error, -EINVAL, "%s:%u: %s%s: %s", in->name, element->line, label, key->path, why);
	}
	memcpy((char *)base + key->offset, &given, sizeof(given));
	return 0;
}

static int read_value(const struct reading *in, const config_setting_t *setting, const struct given_key *given,
	void *base, const char *label)
{
	const struct config_key *key = given->key;
	int type = config_setting_type(setting);
	char number[40], why[256];
	const char *text = number;

	if (config_value_is_list(key->kind))
		return read_names(in, setting, given, base, label);
	if (config_value_quoted(key->kind) && !(given->synonym && *given->synonym->unit)) {
		if (type != CONFIG_TYPE_STRING)
			return wrong_type(in, setting, given, label);
		text = config_setting_get_string(setting);
	} else if (type == CONFIG_TYPE_INT || type == CONFIG_TYPE_INT64) {
		snprintf(number, sizeof(number), "%lld", config_setting_get_int64(setting));
	} else if (type == CONFIG_TYPE_FLOAT && key->kind == CONFIG_KIND_FLOAT) {
		snprintf(number, sizeof(number), "%.17g", config_setting_get_float(setting));
	} else {
		return wrong_type(in, setting, given, label);
	}
	if (config_synonym_parse(given->synonym, key, text, base, why, sizeof(why)))
		return config_fail(
			in->error, -EINVAL, "%s:%u: %s%s: %s", in->name, setting->line, label, given->path, why);
	return 0;
}

static uint32_t origin_of(const struct reading *in, const config_setting_t *setting)
{
	return (uint32_t)in->source << 24 | setting->line;
}

static const char *name_in_group(const struct config_key *key)
{
	const char *dot = strrchr(key->path, '.');

	return dot ? dot + 1 : key->path;
}

static bool group_known(const struct config_table *table, const char *path)
{
	char child[64];

	for (size_t i = 0; i < table->count; i++)
		if (child_of(table->keys[i].path, path, child, sizeof(child)))
			return true;
	return false;
}

static int read_list(const struct reading *in, const config_setting_t *setting);

/*
 * Read the members of one group: values, groups, and at the top level the lists of pools and tenants. `label` is the
 * prefix of paths in error messages about a pool or tenant.
 */
static int read_group(const struct reading *in, const config_setting_t *group, const struct config_table *table,
	const char *prefix, void *base, const char *label)
{
	char path[128];
	int rc = 0;

	for (int i = 0; rc == 0 && i < config_setting_length(group); i++) {
		const config_setting_t *setting = config_setting_get_elem(group, (unsigned)i);
		const char *name = config_setting_name(setting);
		struct given_key given = {.path = path};

		snprintf(path, sizeof(path), "%s%s%.60s", prefix, *prefix ? "." : "", name);
		given.key = config_key_given(table, path, &given.synonym);
		if (given.key && given.synonym && config_setting_get_member(group, name_in_group(given.key))) {
			rc = config_fail(in->error, -EINVAL, "%s:%u: %s%s and %s are the same key; set one of them",
				in->name, setting->line, label, path, name_in_group(given.key));
		} else if (given.key) {
			rc = read_value(in, setting, &given, base, label);
			if (table == &config_keys)
				in->config->origins[given.key - table->keys] = origin_of(in, setting);
		} else if (table == &config_keys && !*prefix && (!strcmp(name, "pools") || !strcmp(name, "tenants"))) {
			rc = read_list(in, setting);
		} else if (!group_known(table, path)) {
			rc = unknown_key(in, setting, table, prefix, label);
		} else if (!config_setting_is_group(setting)) {
			rc = config_fail(in->error, -EINVAL, "%s:%u: %s%s is %s; expected a group, %s = { ... };",
				in->name, setting->line, label, path, type_name(setting), name);
		} else {
			rc = read_group(in, setting, table, path, base, label);
		}
	}
	return rc;
}

static int read_pool(const struct reading *in, const config_setting_t *setting, const char *label)
{
	struct config *config = in->config;
	struct config_pool *pool = &config->pools[config->pool_count];
	int rc;

	if (config->pool_count == CONFIG_POOLS_MAX)
		return config_fail(in->error, -EINVAL, "%s:%u: too many pools; the limit is %d", in->name,
			setting->line, CONFIG_POOLS_MAX);
	memset(pool, 0, sizeof(*pool));
	config_table_defaults(&config_pool_keys, pool);
	pool->origin = origin_of(in, setting);
	pool->reserved_given = config_setting_get_member(setting, "reserved") != NULL;
	rc = read_group(in, setting, &config_pool_keys, "", pool, label);
	config->pool_count += rc == 0;
	return rc;
}

static int read_tenant(const struct reading *in, const config_setting_t *setting, const char *label)
{
	struct config *config = in->config;
	struct config_tenant *tenant = &config->tenants[config->tenant_count];
	int rc;

	if (config->tenant_count == CONFIG_TENANTS_MAX)
		return config_fail(in->error, -EINVAL, "%s:%u: too many tenants; the limit is %d", in->name,
			setting->line, CONFIG_TENANTS_MAX);
	memset(tenant, 0, sizeof(*tenant));
	config_table_defaults(&config_tenant_keys, tenant);
	tenant->origin = origin_of(in, setting);
	rc = read_group(in, setting, &config_tenant_keys, "", tenant, label);
	config->tenant_count += rc == 0;
	return rc;
}

/* Read the list of pools or tenants; each element is a group with a name. */
static int read_list(const struct reading *in, const config_setting_t *setting)
{
	const char *what = config_setting_name(setting);
	char label[CONFIG_NAME_BYTES + 16];
	int rc = 0;

	if (!config_setting_is_list(setting))
		return config_fail(in->error, -EINVAL, "%s:%u: %s is %s; expected a list of groups, %s = ( { ... } );",
			in->name, setting->line, what, type_name(setting), what);
	for (int i = 0; rc == 0 && i < config_setting_length(setting); i++) {
		const config_setting_t *element = config_setting_get_elem(setting, (unsigned)i), *name;

		if (!config_setting_is_group(element))
			return config_fail(in->error, -EINVAL,
				"%s:%u: an element of %s is %s; expected a group, { name = \"...\"; ... }", in->name,
				element->line, what, type_name(element));
		name = config_setting_get_member(element, "name");
		if (!name)
			return config_fail(in->error, -EINVAL,
				"%s:%u: an element of %s has no name; add name = \"...\";", in->name, element->line,
				what);
		snprintf(label, sizeof(label), "%s.%.60s.", what,
			config_setting_type(name) == CONFIG_TYPE_STRING ? config_setting_get_string(name) : "?");
		rc = what[0] == 'p' ? read_pool(in, element, label) : read_tenant(in, element, label);
	}
	return rc;
}

int config_load_text(
	const char *name, const char *text, size_t text_bytes, struct config *config, struct config_error *error)
{
	struct reading in = {.name = name, .config = config, .error = error};
	config_t tree;
	char *copy;
	int rc;

	if (memchr(text, '\0', text_bytes))
		return config_fail(error, -EINVAL, "%s:%u: the file contains a zero byte; expected a text file", name,
			line_of(text, memchr(text, '\0', text_bytes)));
	in.source = config_source_add(config, name);
	if (in.source < 0)
		return config_fail(error, -EINVAL, "%s: too many configuration files; the limit is %d", name,
			CONFIG_SOURCES_MAX - 1);
	copy = malloc(text_bytes + 2);
	if (!copy)
		return config_fail(error, -ENOMEM, "%s: out of memory", name);
	memcpy(copy, text, text_bytes);
	strcpy(copy + text_bytes, text_bytes && text[text_bytes - 1] == '\n' ? "" : "\n");

	rc = text_check(&in, copy);
	if (!rc) {
		config_init(&tree);
		if (config_read_string(&tree, copy))
			rc = read_group(&in, config_root_setting(&tree), &config_keys, "", config, "");
		else
			rc = config_fail(
				error, -EINVAL, "%s:%d: %s", name, config_error_line(&tree), config_error_text(&tree));
		config_destroy(&tree);
	}
	free(copy);
	return rc;
}

/* ---- the files ---- */

/* Check that a file is regular, not writable by all users, and no larger than any valid configuration. */
static int file_check(const char *path, int fd, off_t *size, struct config_error *error)
{
	struct stat status;

	if (fstat(fd, &status))
		return config_fail(error, -errno, "cannot stat configuration file '%s': %s", path, strerror(errno));
	if (!S_ISREG(status.st_mode))
		return config_fail(error, -EINVAL, "configuration file '%s' is not a regular file", path);
	if (status.st_mode & S_IWOTH)
		return config_fail(
			error, -EACCES, "configuration file '%s' is writable by all users; run chmod o-w on it", path);
	if (status.st_size > FILE_BYTES_MAX)
		return config_fail(error, -EINVAL, "configuration file '%s' has %lld byte%s; the limit is %d", path,
			(long long)status.st_size, plural(status.st_size), FILE_BYTES_MAX);
	*size = status.st_size;
	return 0;
}

static int text_read(const char *path, int fd, char *text, size_t room, size_t *bytes, struct config_error *error)
{
	size_t used = 0;
	ssize_t got;

	do {
		got = read(fd, text + used, room - used);
		if (got > 0)
			used += (size_t)got;
	} while (got > 0 || (got < 0 && errno == EINTR));
	if (got < 0)
		return config_fail(error, -errno, "cannot read configuration file '%s': %s", path, strerror(errno));
	*bytes = used; /* a file that grows in the meantime is cut, and refused as incomplete */
	return 0;
}

static int load_fd(const char *path, int fd, struct config *config, struct config_error *error)
{
	size_t bytes = 0;
	off_t size = 0;
	char *text;
	int rc = file_check(path, fd, &size, error);

	if (rc)
		return rc;
	text = malloc((size_t)size + 1);
	if (!text)
		return config_fail(error, -ENOMEM, "configuration file '%s': out of memory", path);
	rc = text_read(path, fd, text, (size_t)size, &bytes, error);
	if (!rc)
		rc = config_load_text(path, text, bytes, config, error);
	free(text);
	return rc;
}

static int load_file(int dir_fd, const char *name, const char *path, struct config *config, struct config_error *error)
{
	int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* do not block on a FIFO */
	int rc;

	if (fd < 0)
		return config_fail(error, -errno, "cannot open configuration file '%s': %s", path, strerror(errno));
	rc = load_fd(path, fd, config, error);
	close(fd);
	return rc;
}

static int name_compare(const void *a, const void *b)
{
	return strcmp(a, b);
}

static bool is_conf_name(const char *name)
{
	size_t length = strlen(name);

	return name[0] != '.' && length > 5 && !strcmp(name + length - 5, ".conf");
}

/* List the names of the *.conf files in a directory in order. names[] has room for CONF_D_FILES_MAX. */
static int conf_d_names(
	const char *folder, DIR *dir, char (*names)[CONF_D_NAME_BYTES], size_t *count, struct config_error *error)
{
	const struct dirent *entry;

	*count = 0;
	for (errno = 0; (entry = readdir(dir)); errno = 0) {
		if (!is_conf_name(entry->d_name))
			continue;
		if (*count == CONF_D_FILES_MAX)
			return config_fail(error, -EINVAL,
				"directory '%s': too many configuration files; the limit is %d", folder,
				CONF_D_FILES_MAX);
		snprintf(names[(*count)++], CONF_D_NAME_BYTES, "%s", entry->d_name);
	}
	if (errno)
		return config_fail(error, -errno, "cannot read directory '%s': %s", folder, strerror(errno));
	qsort(names, *count, sizeof(names[0]), name_compare);
	return 0;
}

static int load_conf_d(const char *folder, DIR *dir, struct config *config, struct config_error *error)
{
	char names[CONF_D_FILES_MAX][CONF_D_NAME_BYTES], path[PATH_MAX + CONF_D_NAME_BYTES];
	struct stat status;
	size_t count;
	int rc;

	if (fstat(dirfd(dir), &status))
		return config_fail(error, -errno, "cannot stat directory '%s': %s", folder, strerror(errno));
	if (status.st_mode & S_IWOTH)
		return config_fail(
			error, -EACCES, "directory '%s' is writable by all users; run chmod o-w on it", folder);
	rc = conf_d_names(folder, dir, names, &count, error);
	for (size_t i = 0; rc == 0 && i < count; i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		rc = load_file(dirfd(dir), names[i], path, config, error);
	}
	return rc;
}

static int load_all(const char *path, struct config *config, struct config_error *error)
{
	char folder[PATH_MAX];
	DIR *dir;
	int rc = load_file(AT_FDCWD, path, path, config, error);

	if (rc)
		return rc;
	if (snprintf(folder, sizeof(folder), "%s.d", path) >= (int)sizeof(folder))
		return 0; /* too long for a file name, so it cannot exist */
	dir = opendir(folder);
	if (!dir && errno == ENOENT)
		return 0;
	if (!dir)
		return config_fail(error, -errno, "cannot open directory '%s': %s", folder, strerror(errno));
	rc = load_conf_d(folder, dir, config, error);
	closedir(dir);
	return rc;
}

int config_load(const char *path, struct config *config, struct config_error *error)
{
	struct config *next = malloc(sizeof(*next));
	int rc;

	if (!next)
		return config_fail(error, -ENOMEM, "out of memory");
	config_defaults(next);
	rc = load_all(path, next, error);
	if (!rc)
		*config = *next;
	free(next);
	return rc;
}
