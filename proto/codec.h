/*
 * codec.h - encode and decode messages, and the envelope before every message. The functions are expanded from
 * messages.def.
 *
 * Invariants, checked by tests/unit/test_codec.c and tests/fuzz/fuzz_codec.c:
 *   each message has exactly one encoding: a decoded message is encoded to the same bytes
 *   the decoder reads nothing beyond `length`, and refuses messages with missing or additional bytes
 *   a decoded string is clean text (msg_text_clean()) and ends with a NUL; the rest of its array is zero
 *   a decoded list has at most as many records as its array
 * Threads: no state. Memory: the functions allocate none.
 */
#ifndef GPOOL_PROTO_CODEC_H
#define GPOOL_PROTO_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/messages.h"

/*
 * msg_encode_NAME() - write one message with its envelope.
 *
 * @sequence: number for the envelope; an answer repeats the number of its request
 * @token:    [16] for the envelope; NULL: zeros
 *
 * Return: bytes written, or an error (the content of buffer is then undefined)
 *   -EMSGSIZE  longer than capacity or MSG_BYTES_MAX
 *   -EINVAL    a list is longer than its array, or a string has no NUL or bytes that the decoder would refuse
 *
 * msg_decode_NAME() - read one message. To get the token or the sequence number, call msg_envelope_read() as well.
 *
 * Return: 0, or -EBADMSG (*message is unchanged): the envelope is invalid or of another type, bytes are missing or left
 * over, a list is too long, or a string is too long or not clean text.
 */
#define MESSAGE(name, type, text) \
	int msg_encode_##name(const struct msg_##name *message, uint64_t sequence, const uint8_t *token, \
		uint8_t *buffer, size_t capacity); \
	int msg_decode_##name(struct msg_##name *message, const uint8_t *buffer, size_t length);
#include "proto/messages.def"

/*
 * msg_envelope_read() - check and read the first 40 bytes of a message: its type, sequence number and token.
 *
 * Return: 0, or an error (*envelope is unchanged)
 *
 *   -EBADMSG  shorter than an envelope, longer than MSG_BYTES_MAX, wrong magic, a body length that differs from the
 *             rest of the buffer, or nonzero reserved bytes. The type is not checked; msg_name() returns "unknown"
 *             for an unknown type
 *   -EPROTO   another version of the envelope
 */
int msg_envelope_read(struct msg_envelope *envelope, const uint8_t *buffer, size_t length);

/* msg_envelope_stamp() - write sequence and token (NULL: zeros) into the envelope of an encoded message. */
void msg_envelope_stamp(uint8_t *buffer, uint64_t sequence, const uint8_t *token);

/* msg_name() - return the name of a type as in messages.def, or "unknown". */
const char *msg_name(unsigned type);

bool msg_is_control_request(unsigned type);

/*
 * msg_text_clean() - return true for valid UTF-8 without control characters (C0, DEL, C1). Such text can be printed and
 * logged.
 */
bool msg_text_clean(const char *text, size_t length);

/*
 * msg_text_copy() - copy text to to[size], with a NUL. Text that is too long is cut between two characters, and each
 * byte that is not clean text becomes '?'. Use it for external text (a process name, strerror()) in a message, which
 * may otherwise fail to encode.
 */
void msg_text_copy(char *to, size_t size, const char *from);

#endif
