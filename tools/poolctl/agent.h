/*
 * agent.h - requests to the agent: attach as observer or admin, send a request, explain errors. Every function here
 * that fails prints a complaint and returns an exit code, which a verb only has to return.
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
 * agent_try() - the same without a complaint: 0 or gpool_open()'s error. text, at least 256 bytes, receives the
 * library's log.
 */
int agent_try(const struct command *command, uint32_t kind, struct gpool **pool, char *text, size_t text_bytes);

/* An answer: the bytes of one message whose type was checked. */
struct agent_answer {
	uint8_t bytes[MSG_BYTES_MAX];
	int length;
};

/*
 * agent_ask() - send an encoded request of `length` bytes (an encoder's result: negative is an error) and receive the
 * answer.
 *
 * Return: CODE_OK; CODE_NO_AGENT (no answer, session ended), CODE_USAGE (it names a nonexistent object), CODE_FAILED.
 */
int agent_ask(
	const struct command *command, struct gpool *pool, uint8_t *request, int length, struct agent_answer *answer);

/* agent_bad_answer() - complain about an answer that cannot be decoded. Return: CODE_FAILED. */
int agent_bad_answer(const struct command *command);

/* agent_pool_name() - return the pool's name in the shared table. */
void agent_pool_name(const struct gpool *pool, char name[64]);

/* agent_clients() - list the sessions of all pools, or of that of --pool. */
struct clients_view;
int agent_clients(const struct command *command, struct gpool *pool, struct clients_view *view);

/* agent_status() - return the status of all pools, or of that of --pool. */
int agent_status(const struct command *command, struct gpool *pool, struct msg_status_reply *reply);

/*
 * AGENT_GETTER(pages) - define agent_get_pages(): send a pages_request, decode the pages_reply, return an exit code.
 * AGENT_DOER(evict) - define agent_do_evict(): the same for a request that is answered by a done_reply.
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
