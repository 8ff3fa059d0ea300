/* grow.h - the policy of calls that preempt sequences to grow another one. Internal to libgpool. */
#ifndef GPOOL_CLIENT_KV_GROW_H
#define GPOOL_CLIENT_KV_GROW_H

#include "client/kv/kv.h"

/*
 * growth_read() - read the caller's struct, which may be NULL, and clear its array of victims. Return: 0, -EINVAL,
 * -E2BIG.
 */
int growth_read(struct gpool_kv_growth *read, const struct gpool_kv_growth *growth, uint64_t *victims);
/*
 * growth_ask() - ask the policy, if there is one, without locks held. *chosen: 0 if it leaves the choice to the order.
 * Return: 0, the code of the policy, -EINVAL (its code is positive).
 */
int growth_ask(const struct gpool_kv_growth *growth, uint64_t sequence, uint64_t *chosen);
/* fail_choice() - return -EINVAL, with a text, for a sequence of the policy that is not running. */
int fail_choice(uint64_t chosen) __attribute__((noinline, cold));

#endif
