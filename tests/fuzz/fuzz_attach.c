/*
 * fuzz_attach.c - arbitrary packets, with any number of descriptors, to the receiving end of the attach socket.
 *
 * Method: the input is divided into packets. The first two bytes of each are the number of descriptors sent and the
 * number that the receiver accepts. Each packet is sent, and received as in the agent: bytes, envelope, then the
 * message of its type. Checked: accepted messages satisfy the guarantees of attach.h and codec.h, and no descriptor is
 * leaked.
 *
 * Requirements: S10.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/attach.h"
#include "proto/codec.h"

enum { PACKET_MAX = 512, RECEIVE_MAX = 400, FDS_MAX = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int condition)
{
	if (!condition)
		abort();
}

/* Count the open descriptors below 1000. */
static int count_descriptors(void)
{
	static struct pollfd all[1000];
	int count = 0;

	for (int fd = 0; fd < 1000; fd++)
		all[fd] = (struct pollfd){.fd = fd};
	demand(poll(all, 1000, 0) >= 0);
	for (int fd = 0; fd < 1000; fd++)
		count += !(all[fd].revents & POLLNVAL);
	return count;
}

/* Demand that a decoded text ends inside its array, is printable, and is followed only by zeros. */
static void demand_text(const char *text, size_t size)
{
	size_t length = strnlen(text, size);

	demand(length < size);
	demand(msg_text_clean(text, length));
	for (size_t i = length; i < size; i++)
		demand(text[i] == '\0');
}

/* Handle the bytes of a worker's packet as the agent does. */
static void handle_packet(const uint8_t *packet, size_t length)
{
	struct msg_envelope envelope;
	struct msg_attach_request attach;
	struct msg_handles_request handles;
	struct msg_detach_request detach;
	struct msg_role_request role;

	if (msg_envelope_read(&envelope, packet, length) < 0)
		return;
	demand(envelope.body_bytes + MSG_ENVELOPE_BYTES == length);
	demand(strlen(msg_name(envelope.type)) > 0);
	switch (envelope.type) {
	case MSG_TYPE_attach_request:
		if (msg_decode_attach_request(&attach, packet, length) == 0) {
			demand_text(attach.pool, sizeof(attach.pool));
			demand_text(attach.name, sizeof(attach.name));
			demand_text(attach.tenant, sizeof(attach.tenant));
			demand(msg_decode_handles_request(&handles, packet, length) == -EBADMSG);
		}
		break;
	case MSG_TYPE_handles_request:
		if (msg_decode_handles_request(&handles, packet, length) == 0)
			demand(length == MSG_LARGEST_handles_request);
		break;
	case MSG_TYPE_role_request:
		if (msg_decode_role_request(&role, packet, length) == 0)
			demand_text(role.name, sizeof(role.name));
		break;
	case MSG_TYPE_detach_request:
		if (msg_decode_detach_request(&detach, packet, length) == 0)
			demand(length == MSG_ENVELOPE_BYTES);
		break;
	default: break;
	}
}

/* Send and receive one packet. Return the number of input bytes used. */
static size_t one_packet(int from, int to, const uint8_t *data, size_t size)
{
	size_t sent_fds = data[0] % (FDS_MAX + 1);
	size_t wanted_fds = data[1] % (FDS_MAX + 1);
	size_t length = size - 2 < PACKET_MAX ? size - 2 : PACKET_MAX;
	uint8_t buffer[RECEIVE_MAX];
	int fds[FDS_MAX];
	size_t count = 999;
	int received;

	for (size_t i = 0; i < FDS_MAX; i++)
		fds[i] = from;
	if (length == 0) {
		demand(attach_send(from, data, 0, NULL, 0) == -EINVAL);
		return 2;
	}
	demand(attach_send(from, data + 2, length, fds, sent_fds) == 0);
	received = attach_receive(to, buffer, sizeof(buffer), fds, wanted_fds, &count, 0);
	if (length > RECEIVE_MAX) {
		demand(received == -EMSGSIZE && count == 999);
		return 2 + length;
	}
	demand(received == (int)length);
	demand(memcmp(buffer, data + 2, length) == 0);
	demand(count == (sent_fds < wanted_fds ? sent_fds : wanted_fds));
	for (size_t i = 0; i < count; i++) {
		demand(fcntl(fds[i], F_GETFD) == FD_CLOEXEC);
		close(fds[i]);
	}
	handle_packet(buffer, length);
	return 2 + length;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int before = count_descriptors();
	int pair[2];

	demand(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	while (size >= 2) {
		size_t used = one_packet(pair[0], pair[1], data, size);

		data += used;
		size -= used;
	}
	close(pair[0]);
	close(pair[1]);
	demand(count_descriptors() == before);
	return 0;
}
