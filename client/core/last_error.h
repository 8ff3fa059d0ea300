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
struct gpool_oom_info;

/* fail() - store the text, and return `error`. */
int fail(int error, const char *format, ...) GPOOL_INTERNAL(fail) __attribute__((format(printf, 2, 3), noinline, cold));

/* fail_size() - describe a struct whose `size` field is too small. Return: -EINVAL. */
int fail_size(uint32_t size) GPOOL_INTERNAL(fail_size) __attribute__((noinline, cold));
/* fail_handle() - describe a handle that block_handle_bad() rejects. Return: -EINVAL. */
int fail_handle(const struct gpool *pool, const struct gpool_block *block) __attribute__((noinline, cold));
/* fail_stale() - describe a block that was freed or evicted. Return: -ESTALE. */
int fail_stale(const struct gpool *pool, const struct gpool_block *block) __attribute__((noinline, cold));
/* fail_examined() - describe a pin that waited for the agent for too long. Return: -ETIMEDOUT. */
int fail_examined(const struct gpool *pool, const struct gpool_block *block) __attribute__((noinline, cold));
/* fail_unpinned() - describe a block that has no pin. Return: -EINVAL. */
int fail_unpinned(const struct gpool_block *block) __attribute__((noinline, cold));
/* fail_timeout() - describe a timeout below -1. Return: -EINVAL. */
int fail_timeout(int timeout_ms) GPOOL_INTERNAL(fail_timeout) __attribute__((noinline, cold));
/* fail_stream() - describe a number that no open stream has. Return: -EINVAL. */
int fail_stream(uint32_t stream) __attribute__((noinline, cold));

/* fail_kind() - describe a session that is an observer or admin. Return: -EPERM. */
int fail_kind(const struct gpool *pool) GPOOL_INTERNAL(fail_kind) __attribute__((noinline, cold));
/* fail_gone() - describe an agent that has ended the session or is not running. Return: -EPIPE. */
int fail_gone(const struct gpool *pool) __attribute__((noinline, cold));
/* fail_silent() - describe an agent that has not answered in time; timeout_ms: below 0: no limit. Return: -EPIPE. */
int fail_silent(const struct gpool *pool, int64_t timeout_ms) __attribute__((noinline, cold));
/*
 * fail_shortage() - describe a refusal of pages: a right, a limit or too few pages, with the numbers of struct
 * session_header.refusal. error: the agent's. Return: error. Cost: small compared with the request to the agent.
 */
int fail_shortage(const struct gpool *pool, int error, const struct gpool_oom_info *shortage)
	__attribute__((noinline, cold));
/* fail_reservation() - describe a reservation that has ended, is used up or is another tenant's. Return: error. */
int fail_reservation(const struct gpool *pool, int error, uint64_t reservation, uint32_t need)
	__attribute__((noinline, cold));
/* fail_map() - describe pages that the driver could not map, with its text. Return: -ENOMEM. */
int fail_map(void) __attribute__((noinline, cold));
/* fail_reserved() - describe a name of an object that is reserved for the library. Return: -EPERM. */
int fail_reserved(const char *name) __attribute__((noinline, cold));
/* fail_asleep() - describe a session that is asleep. Return: -EHOSTDOWN. */
int fail_asleep(void) __attribute__((noinline, cold));
/* fail_address() - describe an address at which no allocation of gpool_malloc_async() begins. Return: -EINVAL. */
int fail_address(uint64_t address) __attribute__((noinline, cold));

#endif
