/*
 * protogen.c - print messages.def as a document (--markdown: docs/internals/messages.md) or as a libFuzzer dictionary.
 *
 * docs/internals/messages.md is committed. tests/unit/test_protocol_doc.c includes this file and fails if the document
 * is out of date.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/messages.h"

/* ---- docs/internals/messages.md ---- */

/* Set by the first field, because a message without fields has no table. */
static bool in_table;

/* Print the text of a table cell, in which a bar is escaped. */
static void print_cell(FILE *out, const char *text)
{
	for (; *text; text++) {
		if (*text == '|')
			fputc('\\', out);
		fputc(*text, out);
	}
}

static void print_field(FILE *out, const char *name, const char *wire, const char *text)
{
	if (!in_table)
		fprintf(out, "| field | on the wire | meaning |\n| --- | --- | --- |\n");
	in_table = true;
	fprintf(out, "| `%s` | %s | ", name, wire);
	print_cell(out, text);
	fprintf(out, " |\n");
}

static void print_bytes(FILE *out, const char *name, unsigned size, const char *text)
{
	char wire[64];

	snprintf(wire, sizeof(wire), "%u bytes", size);
	print_field(out, name, wire, text);
}

static void print_text(FILE *out, const char *name, unsigned size, const char *text)
{
	char wire[64];

	snprintf(wire, sizeof(wire), "text of at most %u bytes", size - 1);
	print_field(out, name, wire, text);
}

static void print_list(FILE *out, const char *name, const char *record, unsigned most, const char *text)
{
	char wire[96];

	snprintf(wire, sizeof(wire), "u32 count, at most %u, and that number of `%s`", most, record);
	print_field(out, name, wire, text);
}

static void print_title(FILE *out, const char *kind, const char *name, const char *text, int least, int largest)
{
	in_table = false;
	fprintf(out, "### %s `%s`\n\n%s. ", kind, name, text);
	if (least == largest)
		fprintf(out, "%d bytes.\n\n", least);
	else
		fprintf(out, "%d to %d bytes.\n\n", least, largest);
}

static void print_message_title(FILE *out, const char *name, int type, const char *text, int least, int largest)
{
	char kind[32];

	snprintf(kind, sizeof(kind), "%d", type);
	print_title(out, kind, name, text, least, largest);
}

static void print_end(FILE *out)
{
	if (in_table)
		fputc('\n', out);
}

static void print_introduction(FILE *out)
{
	fprintf(out,
		"# Messages of gpool\n\n"
		"Generated from `messages.def` by `make docs`. The purpose of each channel and the rules for sequence "
		"numbers and hostile\n"
		"input are described in `docs/internals/protocol.md`.\n\n"
		"Integers are little-endian and packed, in the order of the tables. A text is encoded as u16 length "
		"and "
		"that number of bytes\n"
		"of UTF-8, without NUL and other control characters. A list is encoded as u32 count and that number of "
		"records. A message has\n"
		"exactly one encoding. A message with missing or extra bytes, a text or list above its limit, or an "
		"invalid envelope is\n"
		"refused (`EBADMSG`).\n\n"
		"## The envelope\n\n"
		"The envelope is the first %d bytes of every message; the sizes below include it. No message is larger "
		"than %d bytes.\n\n"
		"| offset | size | content |\n| --- | --- | --- |\n"
		"| 0 | 4 | magic: the characters `GPM1` |\n"
		"| 4 | 2 | version of the envelope: %d; a different one is refused (`EPROTO`) |\n"
		"| 6 | 2 | type of the message |\n"
		"| 8 | 8 | sequence number, chosen by the requester and repeated in the reply |\n"
		"| 16 | %d | token of the session; zero if there is none |\n"
		"| 32 | 4 | bytes after the envelope |\n"
		"| 36 | 4 | reserved: zero |\n\n",
		MSG_ENVELOPE_BYTES, MSG_BYTES_MAX, MSG_ENVELOPE_VERSION, MSG_TOKEN_BYTES);
}

static void print_markdown(FILE *out)
{
	print_introduction(out);
#define CHANNEL(name, first, last, text) \
	fprintf(out, "## Channel `%s`: types %d to %d\n\n%s.\n\n", #name, first, last, text);
#define RECORD(name, text) print_title(out, "Record", #name, text, MSG_LEAST_##name, MSG_LARGEST_##name);
#define RECORD_END(name) print_end(out);
#define MESSAGE(name, type, text) print_message_title(out, #name, type, text, MSG_LEAST_##name, MSG_LARGEST_##name);
#define MESSAGE_END(name) print_end(out);
#define U8(name, text) print_field(out, #name, "u8", text);
#define U16(name, text) print_field(out, #name, "u16", text);
#define U32(name, text) print_field(out, #name, "u32", text);
#define U64(name, text) print_field(out, #name, "u64", text);
#define I32(name, text) print_field(out, #name, "i32", text);
#define BYTES(name, size, text) print_bytes(out, #name, size, text);
#define STR(name, size, text) print_text(out, #name, size, text);
#define LIST(name, record, most, text) print_list(out, #name, #record, most, text);
#include "proto/messages.def"
}

/* ---- dictionary ---- */

static void print_word(FILE *out, const char *name, const char *part, const void *bytes, size_t count)
{
	const uint8_t *at = bytes;

	fprintf(out, "%s%s=\"", name, part);
	for (size_t i = 0; i < count; i++)
		fprintf(out, "\\x%02x", at[i]);
	fprintf(out, "\"\n");
}

static void print_integer(FILE *out, const char *name, const char *part, uint64_t value, size_t bytes)
{
	uint8_t wire[8];

	for (size_t i = 0; i < bytes; i++)
		wire[i] = (uint8_t)(value >> (8 * i));
	print_word(out, name, part, wire, bytes);
}

static void print_dictionary(FILE *out)
{
	fprintf(out,
		"# Generated from messages.def by `protogen --dictionary`: the first bytes of each message, limits, "
		"and "
		"unusual text.\n");
#define MESSAGE(name, type, text) \
	print_integer(out, #name, "", MSG_MAGIC | (uint64_t)MSG_ENVELOPE_VERSION << 32 | (uint64_t)(type) << 48, 8);
#define STR(name, size, text) print_integer(out, #name, "_longest", (size)-1, 2);
#define LIST(name, record, most, text) \
	print_integer(out, #name, "_most", most, 4); \
	print_integer(out, #name, "_beyond", (most) + 1, 4);
#include "proto/messages.def"
	print_word(out, "text", "_c1", "\xc2\x85", 2);
	print_word(out, "text", "_two", "\xc3\xa9", 2);
	print_word(out, "text", "_three", "\xe6\xbc\xa2", 3);
	print_word(out, "text", "_four", "\xf0\x9f\x99\x82", 4);
	print_word(out, "text", "_overlong", "\xc0\xaf", 2);
	print_word(out, "text", "_surrogate", "\xed\xa0\x80", 3);
	print_word(out, "text", "_beyond", "\xf4\x90\x80\x80", 4);
}

#ifndef PROTOGEN_NO_MAIN
int main(int count, char **arguments)
{
	if (count == 2 && strcmp(arguments[1], "--markdown") == 0) {
		print_markdown(stdout);
	} else if (count == 2 && strcmp(arguments[1], "--dictionary") == 0) {
		print_dictionary(stdout);
	} else {
		fprintf(stderr, "usage: protogen --markdown | --dictionary\n");
		return 2;
	}
	return fflush(stdout) != 0 || ferror(stdout) ? 1 : 0;
}
#endif
