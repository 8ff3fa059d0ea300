/*
 * messages.h - every message as a C struct, expanded from messages.def.
 *
 * Each RECORD and MESSAGE of the table yields struct msg_NAME and MSG_LARGEST_NAME, the size of its largest encoding in
 * bytes. Each MESSAGE also yields its number MSG_TYPE_NAME. A list `LIST(pages, page_entry, 1024)` becomes `uint32_t
 * pages_count` and `struct msg_page_entry pages[1024]`. The structs are for memory only; codec.h converts them to and
 * from bytes.
 *
 * Some structs have tens of KB (MSG_STRUCT_BYTES_MAX). Store them in static or heap memory, not on the stack.
 */
#ifndef GPOOL_PROTO_MESSAGES_H
#define GPOOL_PROTO_MESSAGES_H

#include <stdint.h>

enum {
	MSG_MAGIC = 0x314d5047, /* "GPM1", little-endian */
	MSG_ENVELOPE_VERSION = 1,
	MSG_ENVELOPE_BYTES = 40,
	MSG_TOKEN_BYTES = 16,
	MSG_BYTES_MAX = 65536, /* limit of a message with its envelope; codec.c asserts that all messages fit */
	/* interval after which an empty message is sent on the channel of events if no event was sent */
	MSG_BEAT_MS = 3000,
};

/* The header of every message. The wire form is packed and little-endian; see msg_envelope_read(). */
struct msg_envelope {
	uint16_t type;
	uint64_t sequence; /* chosen by the requester, repeated in the reply */
	uint8_t token[MSG_TOKEN_BYTES];
	uint32_t body_bytes; /* bytes after the envelope */
};

#define RECORD(name, text) struct msg_##name {
#define RECORD_END(name) \
	} \
	;
#define MESSAGE(name, type, text) struct msg_##name {
#define MESSAGE_END(name) \
	} \
	;
#define U8(name, text) uint8_t name;
#define U16(name, text) uint16_t name;
#define U32(name, text) uint32_t name;
#define U64(name, text) uint64_t name;
#define I32(name, text) int32_t name;
#define BYTES(name, size, text) uint8_t name[size];
#define STR(name, size, text) char name[size];
#define LIST(name, record, most, text) \
	uint32_t name##_count; \
	struct msg_##record name[most];
#define NOTHING() uint8_t nothing;
#include "proto/messages.def"

enum msg_type {
#define MESSAGE(name, type, text) MSG_TYPE_##name = type,
#include "proto/messages.def"
};

/* MSG_FIRST_NAME and MSG_LAST_NAME: the range of types of each channel */
enum {
#define CHANNEL(name, first, last, text) MSG_FIRST_##name = first, MSG_LAST_##name = last,
#include "proto/messages.def"
};

/*
 * MSG_LARGEST_NAME: size of the encoding with all strings and lists full. Messages include the envelope, records do
 * not.
 */
#define RECORD(name, text) enum { MSG_LARGEST_##name = 0
#define RECORD_END(name) \
	} \
	;
#define MESSAGE(name, type, text) enum { MSG_LARGEST_##name = MSG_ENVELOPE_BYTES
#define MESSAGE_END(name) \
	} \
	;
#define U8(name, text) +1
#define U16(name, text) +2
#define U32(name, text) +4
#define U64(name, text) +8
#define I32(name, text) +4
#define BYTES(name, size, text) +(size)
#define STR(name, size, text) +2 + (size)-1
#define LIST(name, record, most, text) +4 + (most)*MSG_LARGEST_##record
#include "proto/messages.def"

/* MSG_LEAST_NAME: size of the encoding with all strings and lists empty */
#define RECORD(name, text) enum { MSG_LEAST_##name = 0
#define RECORD_END(name) \
	} \
	;
#define MESSAGE(name, type, text) enum { MSG_LEAST_##name = MSG_ENVELOPE_BYTES
#define MESSAGE_END(name) \
	} \
	;
#define U8(name, text) +1
#define U16(name, text) +2
#define U32(name, text) +4
#define U64(name, text) +8
#define I32(name, text) +4
#define BYTES(name, size, text) +(size)
#define STR(name, size, text) +2
#define LIST(name, record, most, text) +4
#include "proto/messages.def"

/* A union of all messages, for code that handles any of them. */
union msg_any {
#define MESSAGE(name, type, text) struct msg_##name name;
#include "proto/messages.def"
};
enum { MSG_STRUCT_BYTES_MAX = sizeof(union msg_any) };

#endif
