/*
 * asked.h - requests on the attach socket that change something, each of them once. A worker asks one question at a
 * time, numbers them in rising order, and asks again with the same number when no answer comes, since an agent may die
 * over any of them. The ledger keeps the last answer of each session.
 *
 * The order that makes it once, whatever the agent dies between: decide; asked_keep() the answer; carry it out; send
 * it. A repeat finds the answer, sees to it that what the answer promises is carried out (which must therefore do no
 * harm twice), and sends it.
 */
#ifndef GPOOL_AGENT_ASKED_H
#define GPOOL_AGENT_ASKED_H

#include "agent/session/session.h"

/*
 * asked_find() - Return: length of the answer that was kept for this number, copied to answer[LEDGER_ANSWER_BYTES]; 0:
 * it is a new question; -ESTALE: it is older than the last one.
 */
int asked_find(struct session *session, uint64_t sequence, uint8_t *answer);

/*
 * asked_keep() - what the session will get for this number from now on, encoded. -EMSGSIZE: longer than there is room.
 */
int asked_keep(struct session *session, uint64_t sequence, const uint8_t *bytes, int length);

/* asked_send() - with a descriptor or -1. What is not taken now is asked for again. */
void asked_send(struct session *session, const uint8_t *bytes, int length, int fd);

#endif
