/*
 * agent.h - requests to the agent: attach as observer or admin, send a request, explain errors. A function that fails
 * prints an error message and returns an exit code, which a verb can simply return.
 */
#ifndef GPOOL_TOOLS_POOLCTL_AGENT_H
#define GPOOL_TOOLS_POOLCTL_AGENT_H

#include "tools/poolctl/poolctl.h"

#include "client/gpool.h"
#include "proto/codec.h"

/*
 * agent_open() - attach to the pool of --pool, or to the first pool. kind: GPOOL_OPEN_OBSERVER, GPOOL_OPEN_ADMIN, or 0
 * for a worker. Return: CODE_OK; CODE_NO_AGENT (no agent, or no answer), CODE_USAGE (no such pool), CODE_FAILED (not
 * permitted, or another error).
 */
int agent_open(const struct command *command, uint32_t kind, struct gpool **pool);

/*
 * agent_try() - attach like agent_open(), without printing an error. text, at least 256 bytes, receives the library's
 * log. Return: 0 or the error of gpool_open().
 */
int agent_try(const struct command *command, uint32_t kind, struct gpool **pool, char *text, size_t text_bytes);

/* An answer: one message, whose type has been checked. */
struct agent_answer {
	uint8_t bytes[MSG_BYTES_MAX];
	int length;
};

/*
 * agent_ask() - send an encoded request of `length` bytes and receive the answer. length: the result of an encoder; if
 * it is negative, it is an error.
 *
 * Return: CODE_OK; CODE_NO_AGENT (no answer, session ended), CODE_USAGE (the request names a nonexistent object),
 * CODE_FAILED.
 */
int agent_ask(
	const struct command *command, struct gpool *pool, uint8_t *request, int length, struct agent_answer *answer);

/* agent_bad_answer() - print that an answer cannot be decoded. Return: CODE_FAILED. */
int agent_bad_answer(const struct command *command);

/* agent_pool_name() - return the pool's name, read from the shared table. */
void agent_pool_name(const struct gpool *pool, char name[64]);

/* agent_clients() - list the sessions of all pools, or of the pool of --pool. */
struct clients_view;
int agent_clients(const struct command *command, struct gpool *pool, struct clients_view *view);

/* agent_status() - return the status of all pools, or of the pool of --pool. */
int agent_status(const struct command *command, struct gpool *pool, struct msg_status_reply *reply);

/*
 * AGENT_GETTER(pages) - define agent_get_pages(), which sends a pages_request, decodes the pages_reply and returns an
 * exit code.
 * AGENT_DOER(evict) - define agent_do_evict(), which does the same for a request answered by a done_reply.
 */
#define AGENT_CALL(function, name, done) \
	static inline int function(const struct command *command, struct gpool *pool, \
		const struct msg_##name##_request *request, struct msg_##done *reply) \
	{ \
		static struct agent_answer answer; \
		uint8_t bytes[MSG_LARGEST_##name##_request]; \
		int length = msg_encode_##name##_request(request, 0, NULL, bytes, sizeof(bytes)); \
		int code = agent_ask(command, pool, bytes, length, &answer); \
\
		if (code) \
			return code; \
		if (msg_decode_##done(reply, answer.bytes, (size_t)answer.length)) \
			return agent_bad_answer(command); \
		return CODE_OK; \
	}

#define AGENT_GETTER(name) AGENT_CALL(agent_get_##name, name, name##_reply)
#define AGENT_DOER(name) AGENT_CALL(agent_do_##name, name, done_reply)

#endif
