#include "agent/control/exchange.h"

#include "agent/pages/event.h"
#include "agent/session/session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int exchange_fail(struct exchange *x, int error, const char *format, ...)
{
	struct msg_error_reply reply = {.error = error};
	char text[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	msg_text_copy(reply.text, sizeof(reply.text), text);
	return msg_encode_error_reply(&reply, x->sequence, NULL, x->reply, MSG_BYTES_MAX);
}

int exchange_done(struct exchange *x, uint64_t value, const char *text)
{
	struct msg_done_reply reply = {.value = value};

	msg_text_copy(reply.text, sizeof(reply.text), text);
	return msg_encode_done_reply(&reply, x->sequence, NULL, x->reply, MSG_BYTES_MAX);
}

int exchange_malformed(struct exchange *x)
{
	return exchange_fail(x, -EBADMSG, "the body of the request is malformed");
}

struct pool *exchange_pool(struct exchange *x, const char *name)
{
	if (!name[0])
		return x->agent->pools[0];
	for (uint32_t i = 0; i < x->agent->pool_count; i++)
		if (!strcmp(x->agent->pools[i]->segment.header->name, name))
			return x->agent->pools[i];
	return NULL;
}

int exchange_no_pool(struct exchange *x, const char *name)
{
	return exchange_fail(x, -ENXIO, "no pool '%s'; poolctl status lists the pools", name);
}

void exchange_keep(struct exchange *x)
{
	struct session_answer *answer = &x->session->segment.answers[x->sequence % SESSION_ANSWERS];

	if (x->reply_bytes > SESSION_ANSWER_BYTES)
		return;
	atomic_store_explicit(&answer->length, 0, memory_order_release);
	memcpy(answer->bytes, x->reply, (size_t)x->reply_bytes);
	atomic_store_explicit(&answer->sequence, x->sequence, memory_order_release);
	atomic_store_explicit(&answer->length, (uint32_t)x->reply_bytes, memory_order_release);
}

void exchange_answer_later(struct agent *agent, const struct exchange_later *later, int error, const char *text)
{
	static uint8_t reply[MSG_BYTES_MAX];
	struct exchange x = {.agent = agent, .id = later->id, .sequence = later->sequence, .reply = reply};

	x.reply_bytes = error ? exchange_fail(&x, error, "%s", text) : exchange_done(&x, 0, text);
	x.session = session_by_token(agent, later->token);
	if (x.session && x.reply_bytes > 0)
		exchange_keep(&x);
	if (x.reply_bytes > 0)
		front_send(agent, x.id, reply, (uint32_t)x.reply_bytes);
}
