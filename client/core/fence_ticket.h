/*
 * fence_ticket.h - the content of a struct gpool_fence_handle. Internal to libgpool.
 *
 * A program receives the handle from another process, so every field must be checked.
 */
#ifndef GPOOL_CLIENT_FENCE_TICKET_H
#define GPOOL_CLIENT_FENCE_TICKET_H

#include "client/core/pool.h"

#include <string.h>

#define FENCE_TICKET_MAGIC 0x66706731u /* "1gpf" */
enum { FENCE_TICKET_VERSION = 1 };

struct fence_ticket {
	uint32_t handle_type; /* enum gpool_fence_handle_type */
	uint32_t magic, version;
	uint32_t session; /* number of the exporter's session */
	uint64_t key;     /* key of the exporter's timeline page; exporters that use only events have a random key */
	uint64_t value;   /* number of the fence within its slot */
	uint32_t slot;    /* slot of the exporter's stream */
	uint32_t zero;
	uint8_t ipc[GPU_IPC_BYTES]; /* GPOOL_FENCE_HANDLE_EVENT: the driver's handle of the event; otherwise zeros */
	uint8_t more[24];           /* must be zero */
};
static_assert(sizeof(struct fence_ticket) == sizeof(struct gpool_fence_handle), "one is copied into the other");

static inline bool fence_ticket_type_known(const struct fence_ticket *ticket)
{
	return ticket->handle_type >= GPOOL_FENCE_HANDLE_SIGNALED && ticket->handle_type <= GPOOL_FENCE_HANDLE_EVENT;
}

/* fence_ticket_zeros() - return true if all bytes that must be zero are zero. */
static inline bool fence_ticket_zeros(const struct fence_ticket *ticket)
{
	static const uint8_t zeros[GPU_IPC_BYTES];

	return !ticket->zero && !memcmp(ticket->more, zeros, sizeof(ticket->more)) &&
		(ticket->handle_type == GPOOL_FENCE_HANDLE_EVENT || !memcmp(ticket->ipc, zeros, sizeof(ticket->ipc)));
}

/* fence_ticket_read() - read a ticket. Return: 0, or -EINVAL if it was not written by an export. */
static inline int fence_ticket_read(const struct gpool_fence_handle *handle, struct fence_ticket *ticket)
{
	memcpy(ticket, handle, sizeof(*ticket));
	if (!fence_ticket_type_known(ticket) || ticket->magic != FENCE_TICKET_MAGIC ||
		ticket->version != FENCE_TICKET_VERSION || !fence_ticket_zeros(ticket))
		return -EINVAL;
	if (ticket->handle_type == GPOOL_FENCE_HANDLE_SIGNALED)
		return 0;
	return !ticket->slot || ticket->slot >= SESSION_TIMELINES || !ticket->session ||
			ticket->session >= POOL_SESSIONS || !ticket->value || ticket->value >> 48
		? -EINVAL
		: 0;
}

#endif
