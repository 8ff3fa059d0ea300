/*
 * layout.h - a description of the memory and structs that successive modules share. Whether an upgrade is possible
 * depends on this description, not on a version number.
 *
 * The description is a table of parts (structs, groups of constants, messages) with the name, offset and size of each
 * field. It is expanded at compile time from layout.def and messages.def. The keeper compares its own description with
 * that of a module (loader.c), and the checksum of its shared parts with that of kept memory (store.c).
 *
 * Changing the offset, size, name or order of fields changes the checksum; changing the code that uses them does not.
 * The table describes neither the meaning of fields nor the order of the arrays in a segment. After a change of these,
 * raise POOL_LAYOUT_VERSION or MODULE_ABI.
 *
 * The keeper and modules of any version exchange the structs in this file, so these structs must never change.
 */
#ifndef GPOOL_AGENT_LAYOUT_H
#define GPOOL_AGENT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct layout_field {
	const char *name; /* "" for the struct as a whole, with its alignment and size */
	uint64_t at;      /* offset; value of a constant; encoding of a message's field */
	uint64_t bytes;
};

enum layout_rule {
	LAYOUT_SHARED = 1, /* in memory that workers map or that survives gpoold: must be equal */
	LAYOUT_INTERFACE,  /* between keeper, agent, front and mover of one run: must be equal */
	LAYOUT_GROWING,    /* fields are added only at the end: the common fields must be equal */
	LAYOUT_MESSAGE,    /* must be equal if both sides have it; an unknown type is answered with EOPNOTSUPP */
};

struct layout_part {
	const char *name;
	const struct layout_field *(*fields)(uint32_t *count);
	uint32_t rule; /* enum layout_rule */
	uint32_t reserved;
};

struct layout {
	uint32_t part_count, reserved;
	const struct layout_part *parts;
};

/* The layout of this program. */
extern const struct layout layout_own;

enum { LAYOUT_NAME_BYTES = 48, LAYOUT_TEXT_BYTES = 24 };

/* layout_sum() - return the checksum of all parts with this rule, LAYOUT_SHARED or LAYOUT_INTERFACE. */
uint32_t layout_sum(const struct layout *layout, enum layout_rule rule);

/*
 * layout_difference() - find the first part in which two layouts are incompatible.
 *
 * Return: 0, or the rule of that part; name[LAYOUT_NAME_BYTES] then contains a name such as "ledger_session.quota".
 */
enum layout_rule layout_difference(const struct layout *ours, const struct layout *theirs, char *name);

/*
 * layout_text() - print a version and a checksum, such as "14.9f3c21aa", into text[LAYOUT_TEXT_BYTES]. A checksum of 0
 * is omitted.
 *
 * Return: text.
 */
const char *layout_text(uint32_t version, uint32_t sum, char *text);

#endif
