/*
 * layout.h - describe the memory and the structs that successive modules share, so that they decide about an upgrade,
 * and not a version number.
 *
 * The description is a table of parts (a struct, a group of constants, a message) with the name, the offset and the
 * size of each field, expanded at compile time from layout.def and messages.def. The keeper compares its own with that
 * of a module (loader.c), and the checksum of its shared parts with that of kept memory (store.c).
 *
 * A field that moves, or changes its size, its name or its order, changes the checksum; new code over the same fields
 * does not. The table cannot describe meanings, nor the order of the arrays in a segment: a change of those must raise
 * POOL_LAYOUT_VERSION or MODULE_ABI.
 *
 * The structs here are exchanged between keeper and module: they never change.
 */
#ifndef GPOOL_AGENT_LAYOUT_H
#define GPOOL_AGENT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct layout_field {
	const char *name; /* "": the struct as a whole, with its alignment and size */
	uint64_t at;      /* offset; of a constant, its value; of a message's field, its encoding */
	uint64_t bytes;
};

enum layout_rule {
	LAYOUT_SHARED = 1, /* in memory that workers map, or that survives gpoold: equal on both sides */
	LAYOUT_INTERFACE,  /* between keeper, agent, front and mover of one run: equal on both sides */
	LAYOUT_GROWING,    /* fields are only added at the end: equal for the fields that both sides have */
	LAYOUT_MESSAGE,    /* equal if both sides have it; the receiver answers EOPNOTSUPP to an unknown type */
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

/* The layout that this program was built with. */
extern const struct layout layout_own;

enum { LAYOUT_NAME_BYTES = 48, LAYOUT_TEXT_BYTES = 24 };

/* layout_sum() - return the checksum of all parts of one rule: LAYOUT_SHARED or LAYOUT_INTERFACE. */
uint32_t layout_sum(const struct layout *layout, enum layout_rule rule);

/*
 * layout_difference() - find the first part in which two layouts are incompatible.
 *
 * Return: 0, or the rule of that part, with name[LAYOUT_NAME_BYTES] as "ledger_session.quota".
 */
enum layout_rule layout_difference(const struct layout *ours, const struct layout *theirs, char *name);

/*
 * layout_text() - print a version and a checksum as "14.9f3c21aa" into text[LAYOUT_TEXT_BYTES], without the checksum if
 * it is 0.
 *
 * Return: text.
 */
const char *layout_text(uint32_t version, uint32_t sum, char *text);

#endif
