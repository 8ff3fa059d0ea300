/*
 * config_value.h - parse and print the value of a single key of the configuration.
 *
 * For config*.c only; other files include config.h. An invalid value changes nothing. The error contains the given
 * value and the permitted ones; the caller adds file and line.
 */
#ifndef GPOOL_AGENT_CONFIG_VALUE_H
#define GPOOL_AGENT_CONFIG_VALUE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "agent/config/config.h"

enum config_kind {
	CONFIG_KIND_STRING,  /* char[]: printable, no quotation mark, no backslash */
	CONFIG_KIND_NAME,    /* char[]: letters, digits, '.', '_', '-' */
	CONFIG_KIND_PATH,    /* char[]: absolute, or empty if that is the default */
	CONFIG_KIND_USER,    /* char[] for front_user: resolved into front_uid and front_gid */
	CONFIG_KIND_GROUP,   /* char[] for group: resolved into group_id */
	CONFIG_KIND_ENUM,    /* int: index of the word in unit; or char[]: the word itself */
	CONFIG_KIND_INTEGER, /* uint32_t */
	CONFIG_KIND_FLOAT,   /* double */
	CONFIG_KIND_SIZE,    /* uint32_t or uint64_t, bytes: KB is 1000, KiB is 1024 */
	/* uint64_t, bytes, a power of two: KB and KiB are both 1024. "auto" is stored as 0, where it is the default */
	CONFIG_KIND_PAGE_SIZE,
	CONFIG_KIND_AMOUNT,   /* struct config_amount */
	CONFIG_KIND_DURATION, /* uint32_t, milliseconds */
	CONFIG_KIND_USERS,    /* struct config_names */
	CONFIG_KIND_GROUPS,   /* struct config_names */
};

enum config_reload { CONFIG_RELOAD_APPLIES, CONFIG_RELOAD_RESTART };

struct config_key {
	const char *path; /* path with dots, from the top level or from the pool or tenant */
	enum config_kind kind;
	const char *text; /* the default, as text */
	int64_t min, max;
	const char *unit;
	enum config_reload reload;
	size_t offset, bytes; /* of the field in the struct */
	const char *help;
};

struct config_table {
	const struct config_key *keys;
	size_t count;
};

extern const struct config_table config_keys;
extern const struct config_table config_pool_keys;
extern const struct config_table config_tenant_keys;

const struct config_key *config_key_find(const struct config_table *table, const char *path);

/* Another word for a key. With a unit, its value is an integer, to which the unit is appended. */
struct config_synonym {
	const struct config_table *table;
	const char *path, *key, *unit;
};

/*
 * config_synonym_of() - return the synonym of a key, or NULL; a key has at most one. config_synonym_at() - return the
 * synonym with this index, or NULL after the last.
 */
const struct config_synonym *config_synonym_of(const struct config_key *key);
const struct config_synonym *config_synonym_at(size_t index);

/* config_key_given() - return the key with this path or synonym, or NULL. *synonym is NULL for the key's own path. */
const struct config_key *config_key_given(
	const struct config_table *table, const char *path, const struct config_synonym **synonym);

/* config_synonym_parse() - as config_value_parse(), with the unit of the synonym; the synonym may be NULL. */
int config_synonym_parse(const struct config_synonym *synonym, const struct config_key *key, const char *text,
	void *base, char *why, size_t why_bytes);

/* config_group_help() - return the help text of a group such as "lease" or "access.workers", or "". */
const char *config_group_help(const char *path);

/* config_origin() - print the origin of a value: "FILE:LINE", "--set", or "the defaults". Return: text. */
const char *config_origin(const struct config *config, uint32_t origin, char *text, size_t text_bytes);

/* config_fail() - set the text of an error. Return: code. */
int config_fail(struct config_error *error, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/*
 * config_value_parse() - set the field of a key in `base` from text. Names in a list are separated by commas. Return:
 * 0, or -EINVAL with `why` set.
 */
int config_value_parse(const struct config_key *key, const char *text, void *base, char *why, size_t why_bytes);

/*
 * config_names_add() - resolve a user or group, and append it unless it is listed already. Return: 0, or -EINVAL with
 * `why` set.
 */
int config_names_add(
	const struct config_key *key, const char *text, struct config_names *names, char *why, size_t why_bytes);

/* config_value_quoted() - return true if a value of this kind is written as a string. Lists are not. */
bool config_value_quoted(enum config_kind kind);

/* config_value_is_list() - return true if a value of this kind is a list of strings. */
bool config_value_is_list(enum config_kind kind);

/* config_value_expected() - print the permitted values, such as "an integer from 1 to 4000". */
void config_value_expected(const struct config_key *key, char *text, size_t text_bytes);

/* config_value_format() - print the field of a key in `base`, in a form that config_value_parse() accepts. */
void config_value_format(const struct config_key *key, const void *base, char *text, size_t text_bytes);

enum { CONFIG_VALUE_BYTES = CONFIG_NAMES_MAX * 12 + 1 }; /* room for a list of the maximum number of ids */

void config_table_defaults(const struct config_table *table, void *base);

/* config_source_add() - add a file, or "--set", unless it was added before. Return: its number, from 1, or -ENOSPC. */
int config_source_add(struct config *config, const char *name);

/*
 * config_load_text() - apply the text of one file to *config, as config_load() does for each file. `name` is used in
 * errors.
 */
int config_load_text(
	const char *name, const char *text, size_t text_bytes, struct config *config, struct config_error *error);

#endif
