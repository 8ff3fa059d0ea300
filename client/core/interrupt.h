/*
 * interrupt.h - waits that the program can end: gpool_wait_check().
 *
 * A wait sleeps for wait_slice() at most, and calls wait_interrupted() before it sleeps again. The program's check runs
 * arbitrary code (in Python all signal handlers), so no lock that other threads need is held during the call.
 */
#ifndef GPOOL_CLIENT_INTERRUPT_H
#define GPOOL_CLIENT_INTERRUPT_H

#include "client/core/internal.h"
#include <stdbool.h>
#include <stdint.h>

bool wait_is_checked(void) GPOOL_INTERNAL(wait_is_checked);

/*
 * wait_interrupted() - return true if this thread's wait must end with -EINTR. Calls the program's check at most once
 * in WAIT_SLICE_MS. Cost: a load if the thread has set no check.
 */
bool wait_interrupted(void) GPOOL_INTERNAL(wait_interrupted);

/* wait_slice() - return the time for which a wait of up to ns nanoseconds may sleep at once. */
int64_t wait_slice(int64_t ns);
/* wait_slice_ms() - the same in milliseconds; -1: no limit. */
int wait_slice_ms(int timeout_ms) GPOOL_INTERNAL(wait_slice_ms);

#endif
