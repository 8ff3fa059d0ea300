/*
 * fuzz_codec.c - arbitrary bytes to every decoder. Each input is rejected, or decoded to a message that encodes to the
 * same bytes.
 *
 * The first byte selects the message; the rest is the packet. The dictionary is `protogen --dictionary`.
 *
 * Requirements: S10.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static union msg_any message;
static uint8_t again[MSG_BYTES_MAX];

/* Raise a signal for a bug, which the fuzzer reports with the input. */
static void demand(int condition)
{
	if (!condition)
		abort();
}

#define MESSAGE(name, number, text) \
	static void try_##name(const uint8_t *packet, size_t length) \
	{ \
		struct msg_envelope envelope; \
\
		if (msg_decode_##name(&message.name, packet, length) < 0) \
			return; \
		demand(msg_envelope_read(&envelope, packet, length) == 0); \
		demand(envelope.type == (number)); \
		demand(msg_encode_##name(&message.name, envelope.sequence, envelope.token, again, sizeof(again)) == \
			(int)length); \
		demand(memcmp(again, packet, length) == 0); \
	}
#include "proto/messages.def"

static void (*const tries[])(const uint8_t *packet, size_t length) = {
#define MESSAGE(name, type, text) try_##name,
#include "proto/messages.def"
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size > 0)
		tries[data[0] % (sizeof(tries) / sizeof(tries[0]))](data + 1, size - 1);
	return 0;
}
