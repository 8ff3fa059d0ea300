/*
 * agent.h - asking the agent: attach as observer or admin, send a request, explain what went wrong.
 *
 * Every function here that fails has complained already and returns an exit code, so that a verb only hands it on.
 */
#ifndef GPOOL_TOOLS_POOLCTL_AGENT_H
#define GPOOL_TOOLS_POOLCTL_AGENT_H

#include "tools/poolctl/poolctl.h"

#include "client/gpool.h"
#include "proto/codec.h"

/*
 * agent_open() - attach with a session kind, GPOOL_OPEN_OBSERVER, GPOOL_OPEN_ADMIN or 0, a worker; to the pool of
 * --pool, else to the first.
 * Return: CODE_OK; CODE_NO_AGENT (no agent, or no answer), CODE_USAGE (no such pool), CODE_FAILED (not permitted,
 * other).
 */
int agent_open(const struct command *command, uint32_t kind, struct gpool **pool);

/*
 * agent_try() - the same, silent: 0 or gpool_open()'s error. Text, at least 256 bytes, is what the library logged about
 * it.
 */
int agent_try(const struct command *command, uint32_t kind, struct gpool **pool, char *text, size_t text_bytes);

/* agent_answer - what came back: the bytes of one message, of a type that has been checked. */
struct agent_answer {
	uint8_t bytes[MSG_BYTES_MAX];
	int length;
};

/*
 * agent_ask() - send an encoded request of `length` bytes (an encoder's result: negative is a complaint) and take the
 * answer.
 * Return: CODE_OK; CODE_NO_AGENT (no answer, session over), CODE_USAGE (names what is not there), CODE_FAILED.
 */
int agent_ask(
	const struct command *command, struct gpool *pool, uint8_t *request, int length, struct agent_answer *answer);

/* agent_bad_answer() - complain about an answer that does not decode. Returns CODE_FAILED. */
int agent_bad_answer(const struct command *command);

/* The pool's name in the shared table. */
void agent_pool_name(const struct gpool *pool, char name[64]);

/* agent_clients() - the sessions of all pools, or of that of --pool. */
struct clients_view;
int agent_clients(const struct command *command, struct gpool *pool, struct clients_view *view);

/* agent_status() - all pools in numbers, or the one of --pool. */
int agent_status(const struct command *command, struct gpool *pool, struct msg_status_reply *reply);

/*
 * AGENT_GETTER(pages) - agent_get_pages(): send a pages_request, decode the pages_reply, return an exit code.
 * AGENT_DOER(evict) - agent_do_evict(): the same for a request that a done_reply answers.
 */
#define AGENT_GETTER(name) \
	static inline int agent_get_##name(const struct command *command, struct gpool *pool, \
		const struct msg_##name##_request *request, struct msg_##name##_reply *reply) \
	{ \
		static struct agent_answer answer; \
		uint8_t bytes[MSG_LARGEST_##name##_request]; \
		int length = msg_encode_##name##_request(request, 0, NULL, bytes, sizeof(bytes)); \
		int code = agent_ask(command, pool, bytes, length, &answer); \
\
		if (code) \
			return code; \
		if (msg_decode_##name##_reply(reply, answer.bytes, (size_t)answer.length)) \
			return agent_bad_answer(command); \
		return CODE_OK; \
	}

#define AGENT_DOER(name) \
	static inline int agent_do_##name(const struct command *command, struct gpool *pool, \
		const struct msg_##name##_request *request, struct msg_done_reply *reply) \
	{ \
		static struct agent_answer answer; \
		uint8_t bytes[MSG_LARGEST_##name##_request]; \
		int length = msg_encode_##name##_request(request, 0, NULL, bytes, sizeof(bytes)); \
		int code = agent_ask(command, pool, bytes, length, &answer); \
\
		if (code) \
			return code; \
		if (msg_decode_done_reply(reply, answer.bytes, (size_t)answer.length)) \
			return agent_bad_answer(command); \
		return CODE_OK; \
	}

#endif
