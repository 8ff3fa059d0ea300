/*
 * exchange.h - one request of a tool, and the functions with which its handler in control*.c, inspect*.c or upgrade.c
 * answers it.
 */
#ifndef GPOOL_AGENT_EXCHANGE_H
#define GPOOL_AGENT_EXCHANGE_H

#include "agent/agent.h"
#include "proto/codec.h"

#include <stddef.h>

struct exchange {
	struct agent *agent;
	struct session *session;
	const uint8_t *request;
	size_t request_bytes;
	uint64_t id; /* assigned by the front, for the answer */
	uint64_t sequence;
	uint8_t *reply; /* [MSG_BYTES_MAX] */
	int reply_bytes;
};

/*
 * A handler returns the length of the reply, or a negative errno. If it returns 0, exchange_answer_later() sends the
 * answer.
 *
 * exchange_fail() - write an error as the reply. Return its length, like the following functions.
 */
int exchange_fail(struct exchange *x, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* exchange_done() - write the reply to a successful request. */
int exchange_done(struct exchange *x, uint64_t value, const char *text);
int exchange_malformed(struct exchange *x);
/*
 * exchange_pool() - return the pool with this name (empty: the first pool), or NULL if it does not exist.
 * exchange_no_pool() - write the error that the pool does not exist.
 */
struct pool *exchange_pool(struct exchange *x, const char *name);
int exchange_no_pool(struct exchange *x, const char *name);

/*
 * exchange_keep() - store the answer in the session's segment for a repetition of the request. An answer longer than
 * SESSION_ANSWER_BYTES is not stored.
 */
void exchange_keep(struct exchange *x);
/* exchange_answer_later() - send the answer of a handler that returned 0. error 0: success. */
void exchange_answer_later(struct agent *agent, const struct exchange_later *later, int error, const char *text);

#define DECODE(x, name, into) msg_decode_##name(into, (x)->request, (x)->request_bytes)
#define ENCODE(x, name, message) msg_encode_##name(message, (x)->sequence, NULL, (x)->reply, MSG_BYTES_MAX)

/* Read-only requests: inspect.c */
int answer_version(struct exchange *x);
int answer_layout(struct exchange *x);
int answer_status(struct exchange *x);
int answer_clients(struct exchange *x);
int answer_tenants(struct exchange *x);
int answer_shortage(struct exchange *x);
int answer_totals(struct exchange *x);
int answer_tenant_totals(struct exchange *x);
int answer_check(struct exchange *x);

/* inspect_pages.c */
int answer_pages(struct exchange *x);
int answer_page_kinds(struct exchange *x);
int answer_pins(struct exchange *x);

/* control_trust.c */
int answer_transfers(struct exchange *x);
int answer_domains(struct exchange *x);

/* control_regions.c */
int answer_regions(struct exchange *x);

/* control_roles.c */
int answer_roles(struct exchange *x);
int answer_role_remove(struct exchange *x);

#endif
