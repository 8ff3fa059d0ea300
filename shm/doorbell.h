/*
 * doorbell.h - wake-ups between a worker and the agent, without messages.
 *
 * A worker wakes the agent with an eventfd in the agent's edge-triggered epoll set. The agent never reads the eventfd,
 * because the worker could clear O_NONBLOCK on the shared open file description, so that the read blocks forever. The
 * agent wakes a worker with a futex on a word of the session segment. The futex is not private, because two processes
 * share it.
 */
#ifndef GPOOL_SHM_DOORBELL_H
#define GPOOL_SHM_DOORBELL_H

#include <stdatomic.h>
#include <stdint.h>

/* doorbell_create() - create the eventfd. Return: the descriptor, or a negative errno. */
int doorbell_create(void);
/* doorbell_ring() - wake the agent, without blocking. If the counter is full, a wake-up is already pending. */
void doorbell_ring(int doorbell);

/*
 * futex_wait() - sleep while *word == value, for at most timeout_ns (negative: no limit). A read-only mapping suffices.
 * Return: 0 (woken, interrupted, or the value differs; the caller must check its condition again), -ETIMEDOUT.
 */
int futex_wait(const _Atomic uint32_t *word, uint32_t value, int64_t timeout_ns);
/* futex_wake() - wake up to `count` sleepers. */
void futex_wake(const _Atomic uint32_t *word, int count);

#endif
