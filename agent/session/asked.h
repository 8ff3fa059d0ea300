/*
 * asked.h - requests on the attach socket that change objects. Each takes effect at most once, although an agent may
 * die at any point. A worker sends one request at a time, with increasing numbers, and repeats an unanswered request
 * with the same number. The ledger stores the last answer of each session.
 *
 * The agent decides, stores the answer with asked_keep(), executes it, then sends it. If the request is repeated, the
 * agent finds the answer, completes its execution (which must be idempotent) and sends it.
 */
#ifndef GPOOL_AGENT_ASKED_H
#define GPOOL_AGENT_ASKED_H

#include "agent/session/session.h"

/*
 * asked_find() - look up the stored answer to this number. Return: its length, with the answer copied to
 * answer[LEDGER_ANSWER_BYTES]; 0: a new request; -ESTALE: older than the last request.
 */
int asked_find(struct session *session, uint64_t sequence, uint8_t *answer);

/* asked_keep() - store the encoded answer to this number. Return: 0; -EMSGSIZE: too long. */
int asked_keep(struct session *session, uint64_t sequence, const uint8_t *bytes, int length);

/* asked_send() - send an answer with a descriptor (-1: none). If the socket is full, the worker repeats its request. */
void asked_send(struct session *session, const uint8_t *bytes, int length, int fd);

#endif
