/*
 * test_codec.c - every message of the table can be encoded and decoded, and malformed bytes are refused.
 *
 * Method: expansions of messages.def fill, encode, decode and compare every field of every message, so a new message is
 * tested without a change here. The bytes to decode are at the end of a heap block of their exact size, so that
 * AddressSanitizer detects a read beyond them.
 */
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "proto/codec.h"

enum filling { FILL_EMPTY, FILL_MIXED, FILL_FULL };

/* ---- patterns ---- */

static uint64_t pattern_state;

static uint64_t pattern(void)
{
	pattern_state = pattern_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return pattern_state ^ pattern_state >> 29;
}

static void fill_bytes(uint8_t *to, size_t size)
{
	for (size_t i = 0; i < size; i++)
		to[i] = (uint8_t)pattern();
}

/* Make a text with all kinds of characters, of exactly this length. */
static void fill_text(char *to, size_t size, enum filling filling)
{
	static const char *const characters[] = {
		"a", "Z", " ", "~", "\xc2\xa0", "\xc3\xbc", "\xe6\xbc\xa2", "\xf0\x9f\x99\x82"};
	size_t length = filling == FILL_EMPTY ? 0 : filling == FILL_FULL ? size - 1 : pattern() % size;
	size_t used = 0;

	memset(to, 0, size);
	while (used < length) {
		const char *next = characters[pattern() % 8];

		if (strlen(next) > length - used)
			next = "x";
		memcpy(to + used, next, strlen(next));
		used += strlen(next);
	}
}

static uint32_t fill_count(uint32_t most, enum filling filling)
{
	return filling == FILL_EMPTY ? 0 : filling == FILL_FULL ? most : 1 + (uint32_t)(pattern() % 3);
}

#define RECORD(name, text) \
	static void fill_##name(struct msg_##name *to, enum filling filling) \
	{ \
		(void)to, (void)filling;
#define RECORD_END(name) }
#define MESSAGE(name, type, text) \
	static void fill_##name(struct msg_##name *to, enum filling filling) \
	{ \
		(void)to, (void)filling;
#define MESSAGE_END(name) }
#define U8(name, text) to->name = (uint8_t)pattern();
#define U16(name, text) to->name = (uint16_t)pattern();
#define U32(name, text) to->name = (uint32_t)pattern();
#define U64(name, text) to->name = pattern();
#define I32(name, text) to->name = -(int32_t)(pattern() % 4096);
#define BYTES(name, size, text) fill_bytes(to->name, size);
#define STR(name, size, text) fill_text(to->name, size, filling);
#define LIST(name, record, most, text) \
	to->name##_count = fill_count(most, filling); \
	for (uint32_t i = 0; i < to->name##_count; i++) \
		fill_##record(&to->name[i], filling);
#include "proto/messages.def"

#define RECORD(name, text) \
	static void compare_##name(const struct msg_##name *one, const struct msg_##name *other) \
	{ \
		(void)one, (void)other;
#define RECORD_END(name) }
#define MESSAGE(name, type, text) \
	static void compare_##name(const struct msg_##name *one, const struct msg_##name *other) \
	{ \
		(void)one, (void)other;
#define MESSAGE_END(name) }
#define U8(name, text) assert_int_equal(one->name, other->name);
#define U16(name, text) assert_int_equal(one->name, other->name);
#define U32(name, text) assert_int_equal(one->name, other->name);
#define U64(name, text) assert_true(one->name == other->name);
#define I32(name, text) assert_int_equal(one->name, other->name);
#define BYTES(name, size, text) assert_memory_equal(one->name, other->name, size);
#define STR(name, size, text) assert_memory_equal(one->name, other->name, size); /* and zeros after the text */
#define LIST(name, record, most, text) \
	assert_int_equal(one->name##_count, other->name##_count); \
	for (uint32_t i = 0; i < one->name##_count; i++) \
		compare_##record(&one->name[i], &other->name[i]);
#include "proto/messages.def"

/* ---- one interface for all messages ---- */

struct list_facts {
	uint32_t most;
	int record_bytes; /* minimum; 0: the message has no list */
	bool record_fixed;
};

struct operations {
	const char *name;
	unsigned type;
	int least;
	int largest;
	size_t struct_bytes;
	struct list_facts list;
	void (*fill)(void *message, enum filling filling);
	int (*encode)(const void *message, uint64_t sequence, const uint8_t *token, uint8_t *buffer, size_t capacity);
	int (*decode)(void *message, const uint8_t *buffer, size_t length);
	void (*compare)(const void *one, const void *other);
};

#define MESSAGE(name, type, text) \
	static void any_fill_##name(void *message, enum filling filling) \
	{ \
		fill_##name(message, filling); \
	} \
	static int any_encode_##name( \
		const void *message, uint64_t sequence, const uint8_t *token, uint8_t *buffer, size_t capacity) \
	{ \
		return msg_encode_##name(message, sequence, token, buffer, capacity); \
	} \
	static int any_decode_##name(void *message, const uint8_t *buffer, size_t length) \
	{ \
		return msg_decode_##name(message, buffer, length); \
	} \
	static void any_compare_##name(const void *one, const void *other) \
	{ \
		compare_##name(one, other); \
	}
#include "proto/messages.def"

static const struct operations all[] = {
#define MESSAGE(name, type, text) \
	{ \
#name, type, MSG_LEAST_##name, MSG_LARGEST_##name, sizeof(struct msg_##name), \
		{
#define LIST(name, record, most, text) most, MSG_LEAST_##record, (int)MSG_LEAST_##record == (int)MSG_LARGEST_##record
#define MESSAGE_END(name) \
	} \
	, any_fill_##name, any_encode_##name, any_decode_##name, any_compare_##name \
	} \
	,
#include "proto/messages.def"
};
#define ALL_COUNT (sizeof(all) / sizeof(all[0]))

static union msg_any sent;
static union msg_any got;
static uint8_t wire[MSG_BYTES_MAX + 512];
static const uint8_t token[MSG_TOKEN_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255};

static void store_u32(uint8_t *at, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

static void set_body_bytes(uint8_t *message, size_t length)
{
	store_u32(message + 32, (uint32_t)(length - MSG_ENVELOPE_BYTES));
}

/* Decode a copy that ends with its heap block. A refusal must not change the struct. */
static int decode_copy(const struct operations *ops, const uint8_t *bytes, size_t length)
{
	uint8_t *copy = malloc(length ? length : 1);
	uint8_t *end = copy + (length ? 0 : 1);
	int result;

	assert_non_null(copy);
	if (length)
		memcpy(copy, bytes, length);
	memset(&got, 0xa5, sizeof(got));
	result = ops->decode(&got, end, length);
	if (result != 0) {
		const uint8_t *touched = (const uint8_t *)&got;

		assert_int_equal(result, -EBADMSG);
		for (size_t i = 0; i < ops->struct_bytes; i++)
			assert_int_equal(touched[i], 0xa5);
	}
	free(copy);
	return result;
}

static int encode(const struct operations *ops, enum filling filling)
{
	memset(&sent, 0, sizeof(sent));
	ops->fill(&sent, filling);
	return ops->encode(&sent, UINT64_C(0x1122334455667788), token, wire, MSG_BYTES_MAX);
}

/* ---- tests ---- */

static void test_round_trip_keeps_every_field(void **state)
{
	(void)state;
	for (size_t m = 0; m < ALL_COUNT; m++) {
		for (int round = 0; round < 20; round++) {
			enum filling filling = round == 0 ? FILL_EMPTY : round == 1 ? FILL_FULL : FILL_MIXED;
			struct msg_envelope envelope;
			int length = encode(&all[m], filling);

			assert_true(length >= all[m].least && length <= all[m].largest);
			if (filling == FILL_EMPTY)
				assert_int_equal(length, all[m].least);
			if (filling == FILL_FULL)
				assert_int_equal(length, all[m].largest);
			assert_int_equal(decode_copy(&all[m], wire, (size_t)length), 0);
			all[m].compare(&sent, &got);
			assert_int_equal(msg_envelope_read(&envelope, wire, (size_t)length), 0);
			assert_int_equal(envelope.type, all[m].type);
			assert_true(envelope.sequence == UINT64_C(0x1122334455667788));
			assert_memory_equal(envelope.token, token, MSG_TOKEN_BYTES);
			assert_int_equal(envelope.body_bytes, length - MSG_ENVELOPE_BYTES);
		}
	}
}

static void test_wire_form_is_as_documented(void **state)
{
	static const uint8_t expected[] = {
		'G',
		'P',
		'M',
		'1',
		1,
		0,
		16,
		0, /* magic, version, type */
		7,
		0,
		0,
		0,
		0,
		0,
		0,
		0, /* sequence */
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		0, /* token */
		8,
		0,
		0,
		0,
		0,
		0,
		0,
		0, /* bytes after the envelope, reserved */
		0xf3,
		0xff,
		0xff,
		0xff,
		2,
		0,
		'n',
		'o',
	};
	const struct msg_error_reply reply = {.error = -13, .text = "no"};

	(void)state;
	assert_int_equal(msg_encode_error_reply(&reply, 7, NULL, wire, sizeof(wire)), sizeof(expected));
	assert_memory_equal(wire, expected, sizeof(expected));
}

static void test_truncation_at_every_length_is_refused(void **state)
{
	(void)state;
	for (size_t m = 0; m < ALL_COUNT; m++) {
		int length = encode(&all[m], FILL_MIXED);

		assert_true(length > 0);
		for (size_t cut = 0; cut < (size_t)length; cut++) {
			assert_int_equal(decode_copy(&all[m], wire, cut), -EBADMSG);
			if (cut < MSG_ENVELOPE_BYTES)
				continue;
			/* the same with a correct envelope: now the fields must be refused */
			set_body_bytes(wire, cut);
			assert_int_equal(decode_copy(&all[m], wire, cut), -EBADMSG);
			set_body_bytes(wire, (size_t)length);
		}
	}
}

static void test_a_byte_too_many_is_refused(void **state)
{
	(void)state;
	for (size_t m = 0; m < ALL_COUNT; m++) {
		int length = encode(&all[m], FILL_MIXED);

		wire[length] = 0;
		assert_int_equal(decode_copy(&all[m], wire, (size_t)length + 1), -EBADMSG);
		set_body_bytes(wire, (size_t)length + 1);
		assert_int_equal(decode_copy(&all[m], wire, (size_t)length + 1), -EBADMSG);
	}
}

static void test_another_type_is_refused(void **state)
{
	(void)state;
	for (size_t m = 0; m < ALL_COUNT; m++) {
		int length = encode(&all[m], FILL_MIXED);

		for (size_t other = 0; other < ALL_COUNT; other++) {
			if (other != m)
				assert_int_equal(decode_copy(&all[other], wire, (size_t)length), -EBADMSG);
		}
	}
}

static void test_damaged_envelope_is_refused(void **state)
{
	struct msg_envelope envelope = {.type = 99};
	int length = encode(&all[0], FILL_MIXED);

	(void)state;
	for (size_t at = 0; at < MSG_ENVELOPE_BYTES; at++) {
		bool free_field = at >= 8 && at < 32; /* sequence and token may have any value */

		wire[at] ^= 0x40;
		assert_int_equal(decode_copy(&all[0], wire, (size_t)length), free_field ? 0 : -EBADMSG);
		wire[at] ^= 0x40;
	}
	wire[4] = 2;
	assert_int_equal(msg_envelope_read(&envelope, wire, (size_t)length), -EPROTO);
	wire[4] = 1;
	assert_int_equal(msg_envelope_read(&envelope, wire, MSG_ENVELOPE_BYTES - 1), -EBADMSG);
	assert_int_equal(envelope.type, 99);
	set_body_bytes(wire, MSG_BYTES_MAX + 1);
	assert_int_equal(msg_envelope_read(&envelope, wire, MSG_BYTES_MAX + 1), -EBADMSG);
}

static void test_a_list_too_long_is_refused(void **state)
{
	unsigned lists = 0;

	(void)state;
	for (size_t m = 0; m < ALL_COUNT; m++) {
		const struct list_facts *list = &all[m].list;
		size_t start;
		int length;

		if (list->record_bytes == 0)
			continue;
		lists++;
		/* Every list is the last field. If it is empty, its count is the last four bytes. */
		length = encode(&all[m], FILL_EMPTY);
		start = (size_t)length;
		/* Zeros are valid records with empty texts. The maximum number is accepted, and one more is not. */
		memset(wire + start, 0, sizeof(wire) - start);
		for (uint32_t extra = 0; extra <= 1; extra++) {
			size_t total = start + (size_t)(list->most + extra) * (size_t)list->record_bytes;

			store_u32(wire + start - 4, list->most + extra);
			set_body_bytes(wire, total);
			assert_int_equal(decode_copy(&all[m], wire, total), extra ? -EBADMSG : 0);
		}
		/* a count for which no memory exists */
		store_u32(wire + start - 4, UINT32_MAX);
		set_body_bytes(wire, start);
		assert_int_equal(decode_copy(&all[m], wire, start), -EBADMSG);
	}
	assert_true(lists >= 7);
}

/* The encoder checks the message struct: it does not send a message that the decoder would refuse. */
static void test_encoder_refuses_undecodable_messages(void **state)
{
	unsigned tried = 0;

	(void)state;
	memset(wire, 0, sizeof(wire));
#define MESSAGE(message, type, text) \
	{ \
		struct msg_##message *to = &sent.message; \
		int (*encode_it)(const struct msg_##message *, uint64_t, const uint8_t *, uint8_t *, size_t) = \
			msg_encode_##message; \
\
		memset(&sent, 0, sizeof(sent)); \
		(void)to, (void)encode_it;
#define STR(name, size, text) \
	memset(to->name, 'x', size); \
	assert_int_equal(encode_it(to, 0, NULL, wire, MSG_BYTES_MAX), -EINVAL); \
	to->name[(size)-1] = '\0'; \
	assert_true(encode_it(to, 0, NULL, wire, MSG_BYTES_MAX) > 0); \
	to->name[(size) / 2] = '\n'; \
	assert_int_equal(encode_it(to, 0, NULL, wire, MSG_BYTES_MAX), -EINVAL); \
	to->name[(size) / 2] = '\0'; \
	tried++;
#define LIST(name, record, most, text) \
	to->name##_count = (most) + 1; \
	assert_int_equal(encode_it(to, 0, NULL, wire, MSG_BYTES_MAX), -EINVAL); \
	to->name##_count = 0; \
	tried++;
#define MESSAGE_END(name) }
/* A record has no encoder of its own. Its fields are expanded like any others: compiled, but never run. */
#define RECORD(name, text) \
	if (tried == UINT_MAX) { \
		struct msg_##name *to = NULL; \
		int (*encode_it)(const struct msg_##name *, uint64_t, const uint8_t *, uint8_t *, size_t) = NULL; \
\
		(void)to, (void)encode_it;
#define RECORD_END(name) }
#include "proto/messages.def"
	assert_true(tried > 20);
}

static void test_encoder_stays_inside_its_buffer(void **state)
{
	(void)state;
	for (size_t m = 0; m < ALL_COUNT; m++) {
		int length = encode(&all[m], FILL_MIXED);

		for (size_t capacity = 0; capacity < (size_t)length; capacity++) {
			uint8_t *buffer = malloc(capacity + 1);

			assert_non_null(buffer);
			buffer[capacity] = 0x77;
			assert_int_equal(all[m].encode(&sent, 1, token, buffer, capacity), -EMSGSIZE);
			assert_int_equal(buffer[capacity], 0x77);
			free(buffer);
		}
		assert_int_equal(all[m].encode(&sent, 1, token, wire, (size_t)length), length);
	}
}

static void test_text_is_clean_or_refused(void **state)
{
	static const struct {
		const char *bytes;
		size_t length;
		bool clean;
	} texts[] = {
		{"", 0, true},
		{"plain text, ~!", 14, true},
		{"gr\xc3\xbc\xc3\x9f\x65 \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x99\x82", 19, true},
		{"\xc2\xa0", 2, true},                 /* the first after the C1 controls */
		{"\xed\x9f\xbf\xee\x80\x80", 6, true}, /* before and after the surrogates */
		{"\xf4\x8f\xbf\xbf", 4, true},         /* the last code point */
		{"a\0b", 3, false},
		{"a\n", 2, false},
		{"\x1b[2J", 4, false},
		{"\x7f", 1, false},
		{"\xc2\x85", 2, false}, /* C1: next line */
		{"\xc2\x9f", 2, false}, /* C1: the last */
		{"\xc0\xaf", 2, false}, /* overlong */
		{"\xc1\xbf", 2, false},
		{"\xe0\x9f\xbf", 3, false},
		{"\xf0\x8f\xbf\xbf", 4, false},
		{"\xed\xa0\x80", 3, false}, /* surrogates */
		{"\xed\xbf\xbf", 3, false},
		{"\xf4\x90\x80\x80", 4, false}, /* beyond Unicode */
		{"\xf8\x88\x80\x80\x80", 5, false},
		{"\x80", 1, false}, /* only a continuation byte */
		{"\xc3", 1, false}, /* truncated */
		{"\xe6\xbc", 2, false},
		{"\xf0\x9f\x99", 3, false},
		{"\xc3\x28", 2, false},
		{"\xff", 1, false},
	};
	size_t at = MSG_ENVELOPE_BYTES + 4;
	const struct operations *ops = NULL;

	(void)state;
	for (size_t m = 0; m < ALL_COUNT; m++) {
		if (all[m].type == MSG_TYPE_error_reply)
			ops = &all[m];
	}
	assert_non_null(ops);
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		size_t total = at + 2 + texts[i].length;

		assert_int_equal(msg_text_clean(texts[i].bytes, texts[i].length), texts[i].clean);
		encode(ops, FILL_EMPTY);
		wire[at] = (uint8_t)texts[i].length;
		wire[at + 1] = 0;
		memcpy(wire + at + 2, texts[i].bytes, texts[i].length);
		set_body_bytes(wire, total);
		assert_int_equal(decode_copy(ops, wire, total), texts[i].clean ? 0 : -EBADMSG);
		if (texts[i].clean)
			assert_string_equal(got.error_reply.text, texts[i].bytes);
	}
	/* as long as the array: no room for the NUL */
	encode(ops, FILL_EMPTY);
	wire[at] = 0x00;
	wire[at + 1] = 0x02;
	memset(wire + at + 2, 'x', 512);
	set_body_bytes(wire, at + 2 + 512);
	assert_int_equal(decode_copy(ops, wire, at + 2 + 512), -EBADMSG);
	wire[at] = 0xff;
	wire[at + 1] = 0x01;
	set_body_bytes(wire, at + 2 + 511);
	assert_int_equal(decode_copy(ops, wire, at + 2 + 511), 0);
}

static void test_text_copy_makes_any_string_clean(void **state)
{
	static const struct {
		const char *from;
		size_t size;
		const char *to;
	} copies[] = {
		{"", 8, ""},
		{"short", 8, "short"},
		{"exactly", 8, "exactly"},
		{"too long for it", 8, "too lon"},
		{"a\nb\tc", 8, "a?b?c"},
		{"\xff\xfe!", 8,
			"?"
			"?!"},
		{"abcdef\xc3\xbc", 8, "abcdef"}, /* the whole character does not fit */
		{"abcde\xc3\xbc", 8, "abcde\xc3\xbc"},
		{"\xe6\xbc\xa2\xe5\xad\x97\xe6", 8, "\xe6\xbc\xa2\xe5\xad\x97?"},
		{"anything", 1, ""},
	};
	char to[8];

	(void)state;
	for (size_t i = 0; i < sizeof(copies) / sizeof(copies[0]); i++) {
		memset(to, 'z', sizeof(to));
		msg_text_copy(to, copies[i].size, copies[i].from);
		assert_string_equal(to, copies[i].to);
		assert_true(msg_text_clean(to, strlen(to)));
	}
}

static void test_names_and_requests(void **state)
{
	(void)state;
	for (size_t m = 0; m < ALL_COUNT; m++)
		assert_string_equal(msg_name(all[m].type), all[m].name);
	assert_string_equal(msg_name(0), "unknown");
	assert_string_equal(msg_name(65535), "unknown");
	for (unsigned type = 0; type < 65536; type++) {
		if (strcmp(msg_name(type), "unknown") == 0)
			assert_false(msg_is_control_request(type));
	}
	assert_true(msg_is_control_request(MSG_TYPE_status_request));
	assert_true(msg_is_control_request(MSG_TYPE_evict_request));
	assert_true(msg_is_control_request(MSG_TYPE_shortage_request));
	assert_false(msg_is_control_request(MSG_TYPE_shortage_reply));
	assert_false(msg_is_control_request(MSG_TYPE_timeline_open_request));
	assert_false(msg_is_control_request(MSG_TYPE_status_reply));
	assert_false(msg_is_control_request(MSG_TYPE_attach_request)); /* belongs to another channel */
	assert_false(msg_is_control_request(MSG_TYPE_front_token));
}

/* Each message is listed below the channel to which its type belongs. */
static void test_types_are_in_their_channels(void **state)
{
	int low = 0;
	int high = 0;

	(void)state;
#define CHANNEL(name, first, last, text) \
	assert_true((first) > high && (last) >= (first)); \
	low = first; \
	high = last;
#define MESSAGE(name, type, text) assert_in_range(type, low, high);
#include "proto/messages.def"
}

static void test_stamp_replaces_sequence_and_token(void **state)
{
	struct msg_envelope envelope;
	static const uint8_t zero[MSG_TOKEN_BYTES];
	int length = encode(&all[0], FILL_MIXED);

	(void)state;
	msg_envelope_stamp(wire, 5, NULL);
	assert_int_equal(msg_envelope_read(&envelope, wire, (size_t)length), 0);
	assert_true(envelope.sequence == 5);
	assert_memory_equal(envelope.token, zero, MSG_TOKEN_BYTES);
	msg_envelope_stamp(wire, UINT64_MAX, token);
	assert_int_equal(msg_envelope_read(&envelope, wire, (size_t)length), 0);
	assert_true(envelope.sequence == UINT64_MAX);
	assert_memory_equal(envelope.token, token, MSG_TOKEN_BYTES);
	assert_int_equal(decode_copy(&all[0], wire, (size_t)length), 0);
	all[0].compare(&sent, &got);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip_keeps_every_field),
		cmocka_unit_test(test_wire_form_is_as_documented),
		cmocka_unit_test(test_truncation_at_every_length_is_refused),
		cmocka_unit_test(test_a_byte_too_many_is_refused),
		cmocka_unit_test(test_another_type_is_refused),
		cmocka_unit_test(test_damaged_envelope_is_refused),
		cmocka_unit_test(test_a_list_too_long_is_refused),
		cmocka_unit_test(test_encoder_refuses_undecodable_messages),
		cmocka_unit_test(test_encoder_stays_inside_its_buffer),
		cmocka_unit_test(test_text_is_clean_or_refused),
		cmocka_unit_test(test_text_copy_makes_any_string_clean),
		cmocka_unit_test(test_names_and_requests),
		cmocka_unit_test(test_types_are_in_their_channels),
		cmocka_unit_test(test_stamp_replaces_sequence_and_token),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
