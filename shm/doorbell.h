/*
 * doorbell.h - one wake-up in each direction, without a message.
 *
 * Towards the agent: an eventfd in its edge-triggered epoll set, which the agent never reads: a worker could clear
 * O_NONBLOCK on the shared description and block a read for good. Towards the worker: a futex on a word of the session
 * segment (not private, since two processes share it).
 */
#ifndef GPOOL_SHM_DOORBELL_H
#define GPOOL_SHM_DOORBELL_H

#include <stdatomic.h>
#include <stdint.h>

/* doorbell_create() - the eventfd, or negative errno. */
int doorbell_create(void);
/* doorbell_ring() - never blocks; a full counter means that the agent was rung already. */
void doorbell_ring(int doorbell);

/*
 * futex_wait() - sleep while *word == value, at most timeout_ns (negative: no limit); also through a read-only mapping.
 * Return: 0 (woken or the value differs: look again), -ETIMEDOUT.
 */
int futex_wait(const _Atomic uint32_t *word, uint32_t value, int64_t timeout_ns);
/* futex_wake() - wake up to `count` sleepers. */
void futex_wake(const _Atomic uint32_t *word, int count);

#endif
