/*
 * config_value.c - the table of keys, and conversions of single values between text and field.
 *
 * Numbers are checked before strtoull() is called, because it also accepts signs, blanks and hexadecimal digits, which
 * are errors in a configuration. A field is changed only if the whole text is valid.
 */
#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/config/config_value.h"
#include "shm/plural.h"
#include "shm/pool_segment.h"

#define FIELD_BYTES(type, field) sizeof(((type *)0)->field)

#define CONFIG_KEY(key_path, kind, text, min, max, unit, reload, field, help) \
	{key_path, CONFIG_KIND_##kind, text, min, max, unit, CONFIG_RELOAD_##reload, offsetof(struct config, field), \
		FIELD_BYTES(struct config, field), help},
static const struct config_key global_keys[] = {
#include "agent/config/config_keys.def"
};

#define CONFIG_POOL_KEY(key_path, kind, text, min, max, unit, reload, field, help) \
	{key_path, CONFIG_KIND_##kind, text, min, max, unit, CONFIG_RELOAD_##reload, \
		offsetof(struct config_pool, field), FIELD_BYTES(struct config_pool, field), help},
static const struct config_key pool_keys[] = {
#include "agent/config/config_keys.def"
};

#define CONFIG_TENANT_KEY(key_path, kind, text, min, max, unit, reload, field, help) \
	{key_path, CONFIG_KIND_##kind, text, min, max, unit, CONFIG_RELOAD_##reload, \
		offsetof(struct config_tenant, field), FIELD_BYTES(struct config_tenant, field), help},
static const struct config_key tenant_keys[] = {
#include "agent/config/config_keys.def"
};

struct group_text {
	const char *path, *help;
};
#define CONFIG_GROUP(group_path, help) {group_path, help},
static const struct group_text groups[] = {
#include "agent/config/config_keys.def"
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

_Static_assert(COUNT(global_keys) <= CONFIG_KEYS_MAX, "raise CONFIG_KEYS_MAX");

const struct config_table config_keys = {global_keys, COUNT(global_keys)};
const struct config_table config_pool_keys = {pool_keys, COUNT(pool_keys)};
const struct config_table config_tenant_keys = {tenant_keys, COUNT(tenant_keys)};

const struct config_key *config_key_find(const struct config_table *table, const char *path)
{
	for (size_t i = 0; i < table->count; i++)
		if (!strcmp(table->keys[i].path, path))
			return &table->keys[i];
	return NULL;
}

/* ---- other words for keys ---- */

#define CONFIG_SYNONYM(word, key, unit) {&config_keys, word, key, unit},
#define CONFIG_POOL_SYNONYM(word, key, unit) {&config_pool_keys, word, key, unit},
static const struct config_synonym synonyms[] = {
#include "agent/config/config_keys.def"
};

const struct config_synonym *config_synonym_at(size_t index)
{
	return index < COUNT(synonyms) ? &synonyms[index] : NULL;
}

const struct config_synonym *config_synonym_of(const struct config_key *key)
{
	for (size_t i = 0; i < COUNT(synonyms); i++)
		if (config_key_find(synonyms[i].table, synonyms[i].key) == key)
			return &synonyms[i];
	return NULL;
}

const struct config_key *config_key_given(
	const struct config_table *table, const char *path, const struct config_synonym **synonym)
{
	*synonym = NULL;
	for (size_t i = 0; i < COUNT(synonyms); i++)
		if (synonyms[i].table == table && !strcmp(synonyms[i].path, path))
			*synonym = &synonyms[i];
	return config_key_find(table, *synonym ? (*synonym)->key : path);
}

int config_synonym_parse(const struct config_synonym *synonym, const struct config_key *key, const char *text,
	void *base, char *why, size_t why_bytes)
{
	char number[48];

	if (synonym && *synonym->unit) {
		snprintf(number, sizeof(number), "%.30s %s", text, synonym->unit);
		text = number;
	}
	return config_value_parse(key, text, base, why, why_bytes);
}

const char *config_group_help(const char *path)
{
	for (size_t i = 0; i < COUNT(groups); i++)
		if (!strcmp(groups[i].path, path))
			return groups[i].help;
	return "";
}

int config_fail(struct config_error *error, int code, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(error->text, sizeof(error->text), format, list);
	va_end(list);
	return code;
}

int config_source_add(struct config *config, const char *name)
{
	size_t length = strlen(name), room = CONFIG_PATH_BYTES - 1;
	uint32_t source = 1;
	char text[CONFIG_PATH_BYTES];

	if (length <= room) /* the end of a long path is more specific than its beginning */
		snprintf(text, sizeof(text), "%s", name);
	else
		snprintf(text, sizeof(text), "...%s", name + length - (room - 3));
	while (source < config->source_count && strcmp(config->sources[source], text))
		source++;
	if (source == CONFIG_SOURCES_MAX)
		return -ENOSPC;
	strcpy(config->sources[source], text);
	if (source >= config->source_count)
		config->source_count = source + 1;
	return (int)source;
}

/* ---- words and numbers ---- */

/* Read decimal digits at *text and advance it. Return 0, -EINVAL if there are none, or -ERANGE for too many. */
static int digits_parse(const char **text, uint64_t *number)
{
	uint64_t sum = 0;

	if (!isdigit((unsigned char)**text))
		return -EINVAL;
	for (; isdigit((unsigned char)**text); (*text)++)
		if (__builtin_mul_overflow(sum, 10, &sum) ||
			__builtin_add_overflow(sum, (uint64_t)(**text - '0'), &sum))
			return -ERANGE;
	*number = sum;
	return 0;
}

/* Read digits and any blanks; *unit receives the rest. */
static int number_unit_parse(const char *text, uint64_t *number, const char **unit)
{
	int rc = digits_parse(&text, number);

	if (rc)
		return rc;
	*unit = text + strspn(text, " ");
	return 0;
}

static const struct size_unit {
	const char *name;
	uint64_t bytes;
} size_units[] = {
	/* binary units first, in descending order, as size_format() requires */
	{"PiB", 1ull << 50},
	{"TiB", 1ull << 40},
	{"GiB", 1ull << 30},
	{"MiB", 1ull << 20},
	{"KiB", 1ull << 10},
	{"B", 1},
	{"KB", 1000},
	{"MB", 1000000},
	{"GB", 1000000000},
	{"TB", 1000000000000},
};

/*
 * Read a size such as "16GiB" as bytes. With `binary`, KB, MB and GB are also powers of 1024. Return 0, -EINVAL, or
 * -ERANGE for more than 2^60 bytes.
 */
static int size_parse(const char *text, bool binary, uint64_t *bytes)
{
	uint64_t number;
	const char *unit;
	int rc = number_unit_parse(text, &number, &unit);

	if (rc)
		return rc;
	for (size_t i = 0; i < COUNT(size_units); i++) {
		uint64_t factor = size_units[i].bytes;

		if (strcmp(unit, size_units[i].name))
			continue;
		if (binary && unit[0] != 'B' && unit[1] == 'B')
			factor = 1ull << (unit[0] == 'K' ? 10 : unit[0] == 'M' ? 20 : unit[0] == 'G' ? 30 : 40);
		if (__builtin_mul_overflow(number, factor, &number) || number > 1ull << 60)
			return -ERANGE;
		*bytes = number;
		return 0;
	}
	return -EINVAL;
}

static void size_format(uint64_t bytes, char *text, size_t text_bytes)
{
	size_t i = 0;

	while (size_units[i].bytes > 1 && (bytes == 0 || bytes % size_units[i].bytes != 0))
		i++;
	snprintf(text, text_bytes, "%" PRIu64 "%s", bytes / size_units[i].bytes, size_units[i].name);
}

static const struct duration_unit {
	const char *name;
	uint64_t ms;
} duration_units[] = {{"h", 3600000}, {"min", 60000}, {"s", 1000}, {"ms", 1}};

static int duration_parse(const char *text, uint64_t *ms)
{
	uint64_t number;
	const char *unit;

	if (number_unit_parse(text, &number, &unit))
		return -EINVAL;
	for (size_t i = 0; i < COUNT(duration_units); i++)
		if (!strcmp(unit, duration_units[i].name))
			return __builtin_mul_overflow(number, duration_units[i].ms, ms) ? -EINVAL : 0;
	return -EINVAL;
}

static void duration_format(uint64_t ms, char *text, size_t text_bytes)
{
	size_t i = 0;

	while (duration_units[i].ms > 1 && (ms == 0 || ms % duration_units[i].ms != 0))
		i++;
	snprintf(text, text_bytes, "%" PRIu64 "%s", ms / duration_units[i].ms, duration_units[i].name);
}

static int amount_parse(const char *text, uint64_t min, struct config_amount *amount)
{
	struct config_amount given = {.unit = CONFIG_AMOUNT_BYTES};
	const char *unit;
	int rc = number_unit_parse(text, &given.value, &unit);

	if (rc)
		return rc;
	if (!strcmp(unit, "%")) {
		given.unit = CONFIG_AMOUNT_PERCENT;
		if (given.value > 100)
			return -EINVAL;
	} else if (!strcmp(unit, "pages") || !strcmp(unit, "page")) {
		given.unit = CONFIG_AMOUNT_PAGES;
		if (given.value > POOL_PAGES_MAX)
			return -ERANGE;
	} else if (!unit[0] && given.value == 0) {
		given.unit = CONFIG_AMOUNT_PAGES; /* so that zero is the same in every unit */
	} else {
		rc = size_parse(text, false, &given.value);
		if (rc)
			return rc;
	}
	if (given.value < min)
		return -EINVAL;
	*amount = given;
	return 0;
}

static void amount_format(const struct config_amount *amount, char *text, size_t text_bytes)
{
	if (amount->unit == CONFIG_AMOUNT_BYTES)
		size_format(amount->value, text, text_bytes);
	else
		snprintf(text, text_bytes,
			amount->unit == CONFIG_AMOUNT_PERCENT ? "%" PRIu64 "%%" : "%" PRIu64 " page%s", amount->value,
			plural(amount->value));
}

/* Return the n-th of the words separated by bars, or NULL. */
static const char *word_at(const char *words, size_t n, size_t *length)
{
	for (; n > 0; n--) {
		words = strchr(words, '|');
		if (!words)
			return NULL;
		words++;
	}
	*length = strcspn(words, "|");
	return words;
}

static int word_find(const char *words, const char *text)
{
	size_t length;
	const char *word;

	for (size_t i = 0; (word = word_at(words, i, &length)); i++)
		if (strlen(text) == length && !memcmp(word, text, length))
			return (int)i;
	return -EINVAL;
}

static bool text_allowed(const struct config_key *key, const char *text)
{
	enum config_kind kind = key->kind;

	if (kind == CONFIG_KIND_PATH && text[0] == '\0' && key->text[0] == '\0')
		return true;
	if (kind == CONFIG_KIND_PATH && text[0] != '/')
		return false;
	if (kind == CONFIG_KIND_NAME && !isalnum((unsigned char)text[0]))
		return false;
	if (kind == CONFIG_KIND_GROUP && text[0] == '\0')
		return true;
	for (const char *c = text; *c; c++) {
		if (kind == CONFIG_KIND_NAME ? !isalnum((unsigned char)*c) && !strchr("._-", *c)
					     : (unsigned char)*c < ' ' || *c == 0x7f || *c == '"' || *c == '\\')
			return false;
	}
	return text[0] != '\0';
}

/* Fill all bytes of a char[], so that two of them can be compared as bytes. */
static void text_store(char *field, size_t bytes, const char *text)
{
	memset(field, 0, bytes);
	memcpy(field, text, strnlen(text, bytes - 1));
}

/* ---- users and groups ---- */

static int id_parse(const char *text, uint32_t *id)
{
	uint64_t number;

	/* UINT32_MAX is excluded: as -1 it means "no change" to chown(2) and setuid(2) */
	if (digits_parse(&text, &number) || *text || number >= UINT32_MAX)
		return -EINVAL;
	*id = (uint32_t)number;
	return 0;
}

static int lookup_failed(const char *what, const char *text, int code, char *why, size_t why_bytes)
{
	/* errors that mean "not found", as listed in getpwnam(3) */
	if (code == 0 || code == ENOENT || code == ESRCH || code == EBADF || code == EPERM)
		snprintf(why, why_bytes, "%s '%.64s' does not exist", what, text);
	else
		snprintf(why, why_bytes, "cannot look up %s '%.64s': %s", what, text, strerror(code));
	return -EINVAL;
}

static int user_resolve(const char *text, uid_t *uid, gid_t *gid, char *why, size_t why_bytes)
{
	uint32_t id;
	bool numeric = !id_parse(text, &id);
	const struct passwd *entry;

	errno = 0;
	entry = numeric ? getpwuid(id) : getpwnam(text);
	if (!entry && !numeric)
		return lookup_failed("user", text, errno, why, why_bytes);
	*uid = entry ? entry->pw_uid : id;
	/* An id without an account, as in a container, has the group with the same number. */
	*gid = entry ? entry->pw_gid : id;
	return 0;
}

static int group_resolve(const char *text, gid_t *gid, char *why, size_t why_bytes)
{
	const struct group *entry;

	if (!id_parse(text, gid))
		return 0;
	errno = 0;
	entry = getgrnam(text);
	if (!entry)
		return lookup_failed("group", text, errno, why, why_bytes);
	*gid = entry->gr_gid;
	return 0;
}

int config_names_add(
	const struct config_key *key, const char *text, struct config_names *names, char *why, size_t why_bytes)
{
	gid_t group;
	uint32_t id;
	int rc = key->kind == CONFIG_KIND_USERS ? user_resolve(text, &id, &group, why, why_bytes)
						: group_resolve(text, &id, why, why_bytes);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < names->count; i++)
		if (names->ids[i] == id)
			return 0;
	if (names->count == CONFIG_NAMES_MAX) {
		snprintf(why, why_bytes, "too many %s; the limit is %d",
			key->kind == CONFIG_KIND_USERS ? "users" : "groups", CONFIG_NAMES_MAX);
		return -EINVAL;
	}
	names->ids[names->count++] = id;
	return 0;
}

static int names_parse(
	const struct config_key *key, const char *text, struct config_names *names, char *why, size_t why_bytes)
{
	struct config_names given = {0};
	char one[256];

	while (*text) {
		size_t length = strcspn(text, ",");

		if (length >= sizeof(one)) {
			snprintf(why, why_bytes, "a name has %zu byte%s; the limit is %zu", length, plural(length),
				sizeof(one) - 1);
			return -EINVAL;
		}
		memcpy(one, text, length);
		one[length] = '\0';
		if (config_names_add(key, one, &given, why, why_bytes))
			return -EINVAL;
		text += length;
		if (*text == ',' && *++text == '\0')
			return config_names_add(key, "", &given, why, why_bytes);
	}
	*names = given;
	return 0;
}

/* Resolve one of the two keys whose value is an account. The ids are stored in the same struct config. */
static int account_parse(
	const struct config_key *key, const char *text, struct config *config, char *why, size_t why_bytes)
{
	if (key->kind == CONFIG_KIND_USER)
		return user_resolve(text, &config->front_uid, &config->front_gid, why, why_bytes);
	if (*text)
		return group_resolve(text, &config->group_id, why, why_bytes);
	config->group_id = getegid();
	return 0;
}

/* ---- conversions by kind ---- */

bool config_value_is_list(enum config_kind kind)
{
	return kind == CONFIG_KIND_USERS || kind == CONFIG_KIND_GROUPS;
}

bool config_value_quoted(enum config_kind kind)
{
	return kind != CONFIG_KIND_INTEGER && kind != CONFIG_KIND_FLOAT && !config_value_is_list(kind);
}

void config_value_expected(const struct config_key *key, char *text, size_t text_bytes)
{
	char low[32], high[32];

	switch (key->kind) {
	case CONFIG_KIND_STRING:
		snprintf(text, text_bytes, "a string in quotes, 1 to %zu byte%s", key->bytes - 1,
			plural(key->bytes - 1));
		break;
	case CONFIG_KIND_NAME:
		snprintf(text, text_bytes, "a name in quotes, 1 to %zu letters, digits, '.', '_' and '-'",
			key->bytes - 1);
		break;
	case CONFIG_KIND_PATH:
		snprintf(text, text_bytes, "an absolute path in quotes, at most %zu byte%s%s", key->bytes - 1,
			plural(key->bytes - 1), key->text[0] ? "" : ", or \"\"");
		break;
	case CONFIG_KIND_USER: snprintf(text, text_bytes, "the name or id of a user in quotes"); break;
	case CONFIG_KIND_GROUP: snprintf(text, text_bytes, "the name or id of a group in quotes, or \"\""); break;
	case CONFIG_KIND_ENUM: {
		size_t used = (size_t)snprintf(text, text_bytes, strchr(key->unit, '|') ? "one of" : "only"), length;
		const char *word;

		for (size_t i = 0; used < text_bytes && (word = word_at(key->unit, i, &length)); i++)
			used += (size_t)snprintf(
				text + used, text_bytes - used, "%s \"%.*s\"", i ? "," : "", (int)length, word);
		break;
	}
	case CONFIG_KIND_INTEGER:
		snprintf(text, text_bytes, "an integer from %" PRId64 " to %" PRId64 "%s%s", key->min, key->max,
			*key->unit ? " " : "", key->unit);
		break;
	case CONFIG_KIND_FLOAT:
		snprintf(text, text_bytes, "a number from %" PRId64 " to %" PRId64, key->min, key->max);
		break;
	case CONFIG_KIND_SIZE:
	case CONFIG_KIND_PAGE_SIZE:
		size_format((uint64_t)key->min, low, sizeof(low));
		size_format((uint64_t)key->max, high, sizeof(high));
		snprintf(text, text_bytes, "%s in quotes, with a unit, from \"%s\" to \"%s\"%s",
			key->kind == CONFIG_KIND_SIZE ? "a size" : "a power of two", low, high,
			strcmp(key->text, "auto") ? "" : ", or \"auto\"");
		break;
	case CONFIG_KIND_AMOUNT:
		snprintf(text, text_bytes, "%s in quotes, such as \"2GiB\", \"4096 pages\" or \"90%%\"",
			key->min ? "an amount above 0" : "an amount");
		break;
	case CONFIG_KIND_DURATION:
		duration_format((uint64_t)key->min, low, sizeof(low));
		duration_format((uint64_t)key->max, high, sizeof(high));
		snprintf(
			text, text_bytes, "a duration in quotes, in ms, s, min or h, from \"%s\" to \"%s\"", low, high);
		break;
	case CONFIG_KIND_USERS:
		snprintf(text, text_bytes, "a list of at most %d users, such as [ \"alice\", \"1000\" ]",
			CONFIG_NAMES_MAX);
		break;
	case CONFIG_KIND_GROUPS:
		snprintf(text, text_bytes, "a list of at most %d groups, such as [ \"llm\", \"1000\" ]",
			CONFIG_NAMES_MAX);
		break;
	}
}

static int number_parse(const struct config_key *key, const char *text, void *field)
{
	uint64_t number = 0;
	int rc;

	if (key->kind == CONFIG_KIND_PAGE_SIZE && !strcmp(key->text, "auto") && !strcmp(text, "auto")) {
		*(uint64_t *)field = 0;
		return 0;
	}
	if (key->kind == CONFIG_KIND_INTEGER)
		rc = digits_parse(&text, &number) || *text ? -EINVAL : 0;
	else if (key->kind == CONFIG_KIND_DURATION)
		rc = duration_parse(text, &number);
	else
		rc = size_parse(text, key->kind == CONFIG_KIND_PAGE_SIZE, &number);
	if (rc || number < (uint64_t)key->min || number > (uint64_t)key->max)
		return -EINVAL;
	if (key->kind == CONFIG_KIND_PAGE_SIZE && (number & (number - 1)))
		return -EINVAL;
	if (key->bytes == sizeof(uint32_t))
		*(uint32_t *)field = (uint32_t)number;
	else
		*(uint64_t *)field = number;
	return 0;
}

static int float_parse(const struct config_key *key, const char *text, double *field)
{
	char *end;
	double number;

	/* Excluded: strtod() also accepts blanks, "nan" and "0x1p3". */
	if (strspn(text, "0123456789.eE+-") != strlen(text) || !*text)
		return -EINVAL;
	number = strtod(text, &end);
	if (*end || !(number >= (double)key->min && number <= (double)key->max))
		return -EINVAL;
	*field = number;
	return 0;
}

static int enum_parse(const struct config_key *key, const char *text, void *field)
{
	int word = word_find(key->unit, text);

	if (word < 0)
		return -EINVAL;
	if (key->bytes == sizeof(int))
		*(int *)field = word;
	else
		text_store(field, key->bytes, text);
	return 0;
}

static int text_parse(const struct config_key *key, const char *text, void *base, char *why, size_t why_bytes)
{
	int rc = 0;

	if (strlen(text) >= key->bytes || !text_allowed(key, text))
		return -EINVAL;
	if (key->kind == CONFIG_KIND_USER || key->kind == CONFIG_KIND_GROUP)
		rc = account_parse(key, text, base, why, why_bytes);
	if (!rc)
		text_store((char *)base + key->offset, key->bytes, text);
	return rc;
}

int config_value_parse(const struct config_key *key, const char *text, void *base, char *why, size_t why_bytes)
{
	void *field = (char *)base + key->offset;
	char expected[200];
	int rc = -EINVAL;

	why[0] = '\0';
	switch (key->kind) {
	case CONFIG_KIND_STRING:
	case CONFIG_KIND_NAME:
	case CONFIG_KIND_PATH:
	case CONFIG_KIND_USER:
	case CONFIG_KIND_GROUP: rc = text_parse(key, text, base, why, why_bytes); break;
	case CONFIG_KIND_ENUM: rc = enum_parse(key, text, field); break;
	case CONFIG_KIND_FLOAT: rc = float_parse(key, text, field); break;
	case CONFIG_KIND_INTEGER:
	case CONFIG_KIND_SIZE:
	case CONFIG_KIND_PAGE_SIZE:
	case CONFIG_KIND_DURATION: rc = number_parse(key, text, field); break;
	case CONFIG_KIND_AMOUNT: rc = amount_parse(text, (uint64_t)key->min, field); break;
	case CONFIG_KIND_USERS:
	case CONFIG_KIND_GROUPS: rc = names_parse(key, text, field, why, why_bytes); break;
	}
	if (rc == -ERANGE && key->kind == CONFIG_KIND_AMOUNT && !why[0]) {
		snprintf(why, why_bytes, "invalid value '%.80s'; a pool has at most %d pages", text, POOL_PAGES_MAX);
		rc = -EINVAL;
	}
	if (rc && !why[0]) {
		config_value_expected(key, expected, sizeof(expected));
		snprintf(why, why_bytes, "invalid value '%.80s'; expected %s", text, expected);
	}
	return rc;
}

static void names_format(const struct config_names *names, char *text, size_t text_bytes)
{
	size_t used = 0;

	text[0] = '\0';
	for (uint32_t i = 0; i < names->count && used < text_bytes; i++)
		used += (size_t)snprintf(text + used, text_bytes - used, "%s%" PRIu32, i ? "," : "", names->ids[i]);
}

void config_value_format(const struct config_key *key, const void *base, char *text, size_t text_bytes)
{
	const void *field = (const char *)base + key->offset;
	size_t length = 0;
	const char *word;

	switch (key->kind) {
	case CONFIG_KIND_STRING:
	case CONFIG_KIND_NAME:
	case CONFIG_KIND_PATH:
	case CONFIG_KIND_USER:
	case CONFIG_KIND_GROUP: snprintf(text, text_bytes, "%s", (const char *)field); break;
	case CONFIG_KIND_ENUM:
		word = key->bytes == sizeof(int) ? word_at(key->unit, (size_t) * (const int *)field, &length) : field;
		snprintf(text, text_bytes, "%.*s", key->bytes == sizeof(int) ? (int)length : (int)key->bytes,
			word ? word : "");
		break;
	case CONFIG_KIND_INTEGER: snprintf(text, text_bytes, "%" PRIu32, *(const uint32_t *)field); break;
	case CONFIG_KIND_FLOAT: {
		int precision = 1;

		do /* find the shortest text that yields the same number */
			snprintf(text, text_bytes, "%.*g", precision, *(const double *)field);
		while (strtod(text, NULL) != *(const double *)field && precision++ < 17);
		break;
	}
	case CONFIG_KIND_SIZE:
		size_format(key->bytes == sizeof(uint32_t) ? *(const uint32_t *)field : *(const uint64_t *)field, text,
			text_bytes);
		break;
	case CONFIG_KIND_PAGE_SIZE:
		if (*(const uint64_t *)field)
			size_format(*(const uint64_t *)field, text, text_bytes);
		else
			snprintf(text, text_bytes, "auto");
		break;
	case CONFIG_KIND_AMOUNT: amount_format(field, text, text_bytes); break;
	case CONFIG_KIND_DURATION: duration_format(*(const uint32_t *)field, text, text_bytes); break;
	case CONFIG_KIND_USERS:
	case CONFIG_KIND_GROUPS: names_format(field, text, text_bytes); break;
	}
}

/*
 * Set the default of a key. The defaults of keys for a user or a group depend on the accounts of the machine; the other
 * defaults are always valid.
 */
static void default_set(const struct config_key *key, void *base)
{
	struct config *config = base;
	char why[256];

	if (!config_value_parse(key, key->text, base, why, sizeof(why)))
		return;
	if (key->kind == CONFIG_KIND_GROUP) {
		config_value_parse(key, "", base, why, sizeof(why));
	} else if (key->kind == CONFIG_KIND_USER) {
		text_store(config->front_user, sizeof(config->front_user), key->text);
		/* the overflow user of the kernel, /proc/sys/kernel/overflowuid */
		config->front_uid = config->front_gid = 65534;
	} else {
		abort(); /* invalid default in config_keys.def */
	}
}

void config_table_defaults(const struct config_table *table, void *base)
{
	for (size_t i = 0; i < table->count; i++)
		default_set(&table->keys[i], base);
}
