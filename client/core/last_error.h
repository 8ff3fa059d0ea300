/*
 * last_error.h - describe why a call failed, in more detail than its error code: the wrong value and its limit.
 *
 * The text belongs to the calling thread; gpool_last_error() returns it. It is set where the failure is first detected,
 * directly before the code is returned to the program, and never on a hot path.
 */
#ifndef GPOOL_CLIENT_LAST_ERROR_H
#define GPOOL_CLIENT_LAST_ERROR_H

#include "client/core/internal.h"
#include <stdint.h>

struct gpool;
struct gpool_block;

/* fail() - store the text, and return `error`. */
int fail(int error, const char *format, ...) GPOOL_INTERNAL(fail) __attribute__((format(printf, 2, 3), noinline, cold));

/* fail_size() - -EINVAL: the `size` field of a struct is too small. */
int fail_size(uint32_t size) GPOOL_INTERNAL(fail_size) __attribute__((noinline, cold));
/* fail_handle() - -EINVAL: the handle is invalid; see block_handle_bad(). */
int fail_handle(const struct gpool *pool, const struct gpool_block *block) __attribute__((noinline, cold));
/* fail_unpinned() - -EINVAL: the block has no pin. */
int fail_unpinned(const struct gpool_block *block) __attribute__((noinline, cold));
/* fail_timeout() - -EINVAL: the timeout is below -1. */
int fail_timeout(int timeout_ms) GPOOL_INTERNAL(fail_timeout) __attribute__((noinline, cold));
/* fail_stream() - -EINVAL: no open stream has this number. */
int fail_stream(uint32_t stream) GPOOL_INTERNAL(fail_stream) __attribute__((noinline, cold));

/* fail_kind() - -EPERM: the session is an observer or admin. */
int fail_kind(const struct gpool *pool) GPOOL_INTERNAL(fail_kind) __attribute__((noinline, cold));
/* fail_asleep() - -EHOSTDOWN: the session is asleep. */
int fail_asleep(void) __attribute__((noinline, cold));
/* fail_address() - -EINVAL: no allocation of gpool_malloc_async() begins at this address. */
int fail_address(uint64_t address) __attribute__((noinline, cold));

#endif
