/*
 * last_error.h - describe a failed call beyond its code: the wrong value, and its limit.
 *
 * The text belongs to the calling thread, for gpool_last_error(). It is set where a failure is first detected, directly
 * before its code is returned to the program, and never on a hot path.
 */
#ifndef GPOOL_CLIENT_LAST_ERROR_H
#define GPOOL_CLIENT_LAST_ERROR_H

#include "client/core/internal.h"
#include <stdint.h>

struct gpool;
struct gpool_block;

/* fail() - store the text. Returns error, so that callers can return it. */
int fail(int error, const char *format, ...) GPOOL_INTERNAL(fail) __attribute__((format(printf, 2, 3), noinline, cold));

/* fail_size() - -EINVAL: a struct's `size` is too small to hold itself. */
int fail_size(uint32_t size) GPOOL_INTERNAL(fail_size) __attribute__((noinline, cold));
/* fail_handle() - -EINVAL: block_handle_bad(). */
int fail_handle(const struct gpool *pool, const struct gpool_block *block) __attribute__((noinline, cold));
/* fail_unpinned() - -EINVAL: a block without a pin. */
int fail_unpinned(const struct gpool_block *block) __attribute__((noinline, cold));
/* fail_timeout() - -EINVAL: a timeout below -1. */
int fail_timeout(int timeout_ms) GPOOL_INTERNAL(fail_timeout) __attribute__((noinline, cold));
/* fail_stream() - -EINVAL: not the number of an open stream. */
int fail_stream(uint32_t stream) GPOOL_INTERNAL(fail_stream) __attribute__((noinline, cold));

/* fail_kind() - -EPERM: the session is an observer or admin. */
int fail_kind(const struct gpool *pool) GPOOL_INTERNAL(fail_kind) __attribute__((noinline, cold));
/* fail_asleep() - -EHOSTDOWN: the session is asleep. */
int fail_asleep(void) __attribute__((noinline, cold));
/* fail_address() - -EINVAL: no allocation of gpool_malloc_async() begins there. */
int fail_address(uint64_t address) __attribute__((noinline, cold));

#endif
