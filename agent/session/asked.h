/*
 * asked.h - requests on the attach socket that change state, each executed once. A worker sends one request at a time,
 * with rising numbers, and repeats it with the same number if it gets no answer, since an agent may die in any of them.
 * The ledger stores the last answer of each session.
 *
 * The order guarantees this at every point at which the agent may die: decide; store the answer with asked_keep();
 * execute it; send it. For a repetition the agent finds the answer, executes it again, which must therefore be
 * idempotent, and sends it.
 */
#ifndef GPOOL_AGENT_ASKED_H
#define GPOOL_AGENT_ASKED_H

#include "agent/session/session.h"

/*
 * asked_find() - look up the stored answer to this number. Return: its length, copied to answer[LEDGER_ANSWER_BYTES];
 * 0: a new request; -ESTALE: older than the last one.
 */
int asked_find(struct session *session, uint64_t sequence, uint8_t *answer);

/* asked_keep() - store the encoded answer to this number. -EMSGSIZE: too long. */
int asked_keep(struct session *session, uint64_t sequence, const uint8_t *bytes, int length);

/* asked_send() - send an answer, with a descriptor or -1. If the socket is full, the worker repeats its request. */
void asked_send(struct session *session, const uint8_t *bytes, int length, int fd);

#endif
