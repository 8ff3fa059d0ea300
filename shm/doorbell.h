/*
 * doorbell.h - a wake-up in each direction, without a message.
 *
 * To the agent: an eventfd in its edge-triggered epoll set, which the agent never reads: a worker could clear
 * O_NONBLOCK on the shared open file description and block a read forever. To the worker: a futex on a word of the
 * session segment (not private, since two processes share it).
 */
#ifndef GPOOL_SHM_DOORBELL_H
#define GPOOL_SHM_DOORBELL_H

#include <stdatomic.h>
#include <stdint.h>

/* doorbell_create() - create the eventfd. Return: it, or negative errno. */
int doorbell_create(void);
/* doorbell_ring() - ring; never blocks. A full counter means that the doorbell was rung already. */
void doorbell_ring(int doorbell);

/*
 * futex_wait() - sleep while *word == value, at most timeout_ns (negative: no limit); also through a read-only mapping.
 * Return: 0 (woken or the value differs: look again), -ETIMEDOUT.
 */
int futex_wait(const _Atomic uint32_t *word, uint32_t value, int64_t timeout_ns);
/* futex_wake() - wake up to `count` sleepers. */
void futex_wake(const _Atomic uint32_t *word, int count);

#endif
