/*
 * codec.c - the encoders and decoders, three expansions of messages.def. put_NAME writes a message, check_NAME checks
 * the bytes of a message without storing them, and take_NAME copies checked bytes. Decoding takes two passes, so that a
 * refused message changes nothing for the caller.
 */
#include "proto/codec.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define MESSAGE(name, type, text) \
	static_assert((int)MSG_LARGEST_##name <= MSG_BYTES_MAX, #name " does not fit; lower its list's `most`"); \
	static_assert((type) > 0 && (type) <= UINT16_MAX, #name " has a type that the envelope cannot hold");
#define STR(name, size, text) \
	static_assert((size) > 1 && (size) <= UINT16_MAX, #name " has a size that its length cannot hold");
#include "proto/messages.def"

/* ---- little-endian integers at any address; compilers replace each loop by one load or store ---- */

static void store_le(uint8_t *at, uint64_t value, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t load_le(const uint8_t *at, size_t bytes)
{
	uint64_t value = 0;

	for (size_t i = 0; i < bytes; i++)
		value |= (uint64_t)at[i] << (8 * i);
	return value;
}

/* ---- text ---- */

/* Return the length of the character at `at` if it is clean text, or 0. `left` must be at least 1. */
static size_t text_step(const uint8_t *at, size_t left)
{
	/* The lowest code point of each length. The value for two bytes also excludes C1 controls. */
	static const uint32_t least[] = {0, 0, 0xa0, 0x800, 0x10000};
	uint32_t code;
	size_t length;

	if (at[0] < 0x80)
		return at[0] >= 0x20 && at[0] != 0x7f ? 1 : 0;
	if ((at[0] & 0xe0) == 0xc0) {
		length = 2;
		code = at[0] & 0x1f;
	} else if ((at[0] & 0xf0) == 0xe0) {
		length = 3;
		code = at[0] & 0x0f;
	} else if ((at[0] & 0xf8) == 0xf0) {
		length = 4;
		code = at[0] & 0x07;
	} else {
		return 0;
	}
	if (left < length)
		return 0;
	for (size_t i = 1; i < length; i++) {
		if ((at[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (at[i] & 0x3f);
	}
	if (code < least[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
		return 0;
	return length;
}

bool msg_text_clean(const char *text, size_t length)
{
	const uint8_t *at = (const uint8_t *)text;

	for (size_t i = 0; i < length;) {
		size_t step = text_step(at + i, length - i);

		if (step == 0)
			return false;
		i += step;
	}
	return true;
}

void msg_text_copy(char *to, size_t size, const char *from)
{
	const uint8_t *at = (const uint8_t *)from;
	size_t left = strlen(from);
	size_t used = 0;

	while (left > 0) {
		size_t step = text_step(at, left);
		size_t bytes = step ? step : 1;

		if (used + bytes >= size)
			break;
		if (step)
			memcpy(to + used, at, step);
		else
			to[used] = '?';
		used += bytes;
		at += bytes;
		left -= bytes;
	}
	/* Zero the rest, so that a reused struct does not reveal old data. */
	memset(to + used, 0, size - used);
}

/* ---- envelope ---- */

enum {
	AT_MAGIC = 0,
	AT_VERSION = 4,
	AT_TYPE = 6,
	AT_SEQUENCE = 8,
	AT_TOKEN = 16,
	AT_BODY_BYTES = 32,
	AT_RESERVED = 36
};
static_assert(AT_RESERVED + 4 == MSG_ENVELOPE_BYTES, "the envelope has 40 bytes");

int msg_envelope_read(struct msg_envelope *envelope, const uint8_t *buffer, size_t length)
{
	if (length < MSG_ENVELOPE_BYTES || length > MSG_BYTES_MAX)
		return -EBADMSG;
	if (load_le(buffer + AT_MAGIC, 4) != MSG_MAGIC)
		return -EBADMSG;
	if (load_le(buffer + AT_VERSION, 2) != MSG_ENVELOPE_VERSION)
		return -EPROTO;
	if (load_le(buffer + AT_BODY_BYTES, 4) != length - MSG_ENVELOPE_BYTES || load_le(buffer + AT_RESERVED, 4) != 0)
		return -EBADMSG;
	envelope->type = (uint16_t)load_le(buffer + AT_TYPE, 2);
	envelope->sequence = load_le(buffer + AT_SEQUENCE, 8);
	memcpy(envelope->token, buffer + AT_TOKEN, MSG_TOKEN_BYTES);
	envelope->body_bytes = (uint32_t)(length - MSG_ENVELOPE_BYTES);
	return 0;
}

void msg_envelope_stamp(uint8_t *buffer, uint64_t sequence, const uint8_t *token)
{
	store_le(buffer + AT_SEQUENCE, sequence, 8);
	if (token)
		memcpy(buffer + AT_TOKEN, token, MSG_TOKEN_BYTES);
	else
		memset(buffer + AT_TOKEN, 0, MSG_TOKEN_BYTES);
}

const char *msg_name(unsigned type)
{
	/* clang-format off */
	switch (type) { /* two messages with the same type do not compile */
#define MESSAGE(name, type, text) case MSG_TYPE_##name: return #name;
#include "proto/messages.def"
	default: return "unknown";
	}
	/* clang-format on */
}

bool msg_is_control_request(unsigned type)
{
	const char *name = msg_name(type);
	const char suffix[] = "_request";
	size_t length = strlen(name);

	return ((type >= MSG_FIRST_control && type <= MSG_LAST_control) ||
		       (type >= MSG_FIRST_control_more && type <= MSG_LAST_control_more)) &&
		length >= sizeof(suffix) && strcmp(name + length - (sizeof(suffix) - 1), suffix) == 0;
}

/* ---- encode ---- */

/* The first error is kept, so the expansions below need no branch per field. */
struct writer {
	uint8_t *buffer;
	size_t capacity;
	size_t length;
	int error;
};

static void put(struct writer *to, const void *bytes, size_t count)
{
	if (to->error)
		return;
	if (count > to->capacity - to->length) {
		to->error = -EMSGSIZE;
		return;
	}
	memcpy(to->buffer + to->length, bytes, count);
	to->length += count;
}

static void put_integer(struct writer *to, uint64_t value, size_t bytes)
{
	uint8_t wire[8];

	store_le(wire, value, bytes);
	put(to, wire, bytes);
}

static void put_text(struct writer *to, const char *text, size_t size)
{
	size_t length = strnlen(text, size);

	if (length == size || !msg_text_clean(text, length)) {
		if (!to->error)
			to->error = -EINVAL;
		return;
	}
	put_integer(to, length, 2);
	put(to, text, length);
}

/* Write the number of records of a list. If the list is longer than its array, set an error and return 0. */
static uint32_t put_count(struct writer *to, uint32_t count, uint32_t most)
{
	if (count > most) {
		if (!to->error)
			to->error = -EINVAL;
		return 0;
	}
	put_integer(to, count, 4);
	return count;
}

static struct writer writer_begin(
	unsigned type, uint64_t sequence, const uint8_t *token, uint8_t *buffer, size_t capacity)
{
	struct writer to = {.buffer = buffer, .capacity = capacity < MSG_BYTES_MAX ? capacity : MSG_BYTES_MAX};

	if (to.capacity < MSG_ENVELOPE_BYTES) {
		to.error = -EMSGSIZE;
		return to;
	}
	store_le(buffer + AT_MAGIC, MSG_MAGIC, 4);
	store_le(buffer + AT_VERSION, MSG_ENVELOPE_VERSION, 2);
	store_le(buffer + AT_TYPE, type, 2);
	msg_envelope_stamp(buffer, sequence, token);
	store_le(buffer + AT_RESERVED, 0, 4);
	to.length = MSG_ENVELOPE_BYTES;
	return to;
}

static int writer_end(struct writer *to)
{
	if (to->error)
		return to->error;
	store_le(to->buffer + AT_BODY_BYTES, to->length - MSG_ENVELOPE_BYTES, 4);
	return (int)to->length;
}

#define PUT_BEGIN(name) \
	static void put_##name(struct writer *to, const struct msg_##name *from) \
	{ \
		(void)to, (void)from; /* a message may be empty */
#define RECORD(name, text) PUT_BEGIN(name)
#define RECORD_END(name) }
#define MESSAGE(name, type, text) PUT_BEGIN(name)
#define MESSAGE_END(name) }
#define U8(name, text) put_integer(to, from->name, 1);
#define U16(name, text) put_integer(to, from->name, 2);
#define U32(name, text) put_integer(to, from->name, 4);
#define U64(name, text) put_integer(to, from->name, 8);
#define I32(name, text) put_integer(to, (uint32_t)from->name, 4);
#define BYTES(name, size, text) put(to, from->name, size);
#define STR(name, size, text) put_text(to, from->name, size);
#define LIST(name, record, most, text) \
	for (uint32_t i = 0, count = put_count(to, from->name##_count, most); i < count && !to->error; i++) \
		put_##record(to, &from->name[i]);
#include "proto/messages.def"

#define MESSAGE(name, type, text) \
	int msg_encode_##name(const struct msg_##name *message, uint64_t sequence, const uint8_t *token, \
		uint8_t *buffer, size_t capacity) \
	{ \
		struct writer to = writer_begin(type, sequence, token, buffer, capacity); \
\
		put_##name(&to, message); \
		return writer_end(&to); \
	}
#include "proto/messages.def"

/* ---- decode ---- */

struct reader {
	const uint8_t *at;
	size_t left;
	bool bad; /* set by the first error */
};

/* Return the next count bytes, or NULL if fewer are left. */
static const uint8_t *take(struct reader *in, size_t count)
{
	const uint8_t *at = in->at;

	if (in->bad || count > in->left) {
		in->bad = true;
		return NULL;
	}
	in->at += count;
	in->left -= count;
	return at;
}

static uint64_t take_integer(struct reader *in, size_t bytes)
{
	const uint8_t *at = take(in, bytes);

	return at ? load_le(at, bytes) : 0;
}

static void check_text(struct reader *in, size_t size)
{
	size_t length = (size_t)take_integer(in, 2);
	const uint8_t *text = take(in, length);

	if (!text || length >= size || !msg_text_clean((const char *)text, length))
		in->bad = true;
}

static uint32_t check_count(struct reader *in, uint32_t most)
{
	uint32_t count = (uint32_t)take_integer(in, 4);

	if (count > most)
		in->bad = true;
	return in->bad ? 0 : count;
}

#define CHECK_BEGIN(name) \
	static void check_##name(struct reader *in) \
	{ \
		(void)in;
#define RECORD(name, text) CHECK_BEGIN(name)
#define RECORD_END(name) }
#define MESSAGE(name, type, text) CHECK_BEGIN(name)
#define MESSAGE_END(name) }
#define U8(name, text) take(in, 1);
#define U16(name, text) take(in, 2);
#define U32(name, text) take(in, 4);
#define U64(name, text) take(in, 8);
#define I32(name, text) take(in, 4);
#define BYTES(name, size, text) take(in, size);
#define STR(name, size, text) check_text(in, size);
#define LIST(name, record, most, text) \
	for (uint32_t i = 0, count = check_count(in, most); i < count && !in->bad; i++) \
		check_##record(in);
#include "proto/messages.def"

/* The following functions read checked bytes and cannot fail. */

static void take_bytes(struct reader *in, void *to, size_t count)
{
	memcpy(to, take(in, count), count);
}

static void take_text(struct reader *in, char *to)
{
	size_t length = (size_t)take_integer(in, 2);

	take_bytes(in, to, length);
	to[length] = '\0';
}

#define TAKE_BEGIN(name) \
	static void take_##name(struct reader *in, struct msg_##name *to) \
	{ \
		(void)in, (void)to;
#define RECORD(name, text) TAKE_BEGIN(name)
#define RECORD_END(name) }
#define MESSAGE(name, type, text) TAKE_BEGIN(name)
#define MESSAGE_END(name) }
#define U8(name, text) to->name = (uint8_t)take_integer(in, 1);
#define U16(name, text) to->name = (uint16_t)take_integer(in, 2);
#define U32(name, text) to->name = (uint32_t)take_integer(in, 4);
#define U64(name, text) to->name = take_integer(in, 8);
#define I32(name, text) to->name = (int32_t)(uint32_t)take_integer(in, 4);
#define BYTES(name, size, text) take_bytes(in, to->name, size);
#define STR(name, size, text) take_text(in, to->name);
#define LIST(name, record, most, text) \
	to->name##_count = (uint32_t)take_integer(in, 4); \
	for (uint32_t i = 0; i < to->name##_count; i++) \
		take_##record(in, &to->name[i]);
#include "proto/messages.def"

/* Return a reader of the body of a message. `bad` is set if the envelope is invalid or of another type. */
static struct reader reader_begin(unsigned type, const uint8_t *buffer, size_t length)
{
	struct msg_envelope envelope;
	struct reader in = {.bad = true};

	if (msg_envelope_read(&envelope, buffer, length) == 0 && envelope.type == type)
		in = (struct reader){.at = buffer + MSG_ENVELOPE_BYTES, .left = envelope.body_bytes};
	return in;
}

#define MESSAGE(name, type, text) \
	int msg_decode_##name(struct msg_##name *message, const uint8_t *buffer, size_t length) \
	{ \
		struct reader start = reader_begin(type, buffer, length); \
		struct reader in = start; \
\
		check_##name(&in); \
		if (in.bad || in.left > 0) \
			return -EBADMSG; \
		memset(message, 0, sizeof(*message)); \
		take_##name(&start, message); \
		return 0; \
	}
#include "proto/messages.def"
