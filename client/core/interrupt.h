/*
 * interrupt.h - waits that the program can interrupt: gpool_wait_check().
 *
 * A wait sleeps for wait_slice() at most, and calls wait_interrupted() before it sleeps again. The check function of
 * the program runs arbitrary code (in Python, all signal handlers), so a thread that calls it must not hold a lock that
 * other threads need, except the turn of a request or of a receiver of events.
 */
#ifndef GPOOL_CLIENT_INTERRUPT_H
#define GPOOL_CLIENT_INTERRUPT_H

#include "client/core/internal.h"
#include <stdbool.h>
#include <stdint.h>

/*
 * wait_pause() - end no wait of this thread, and call no check function, until the pause ends. Used while a lock is
 * held. Pauses may be nested.
 */
void wait_pause(bool pause) GPOOL_INTERNAL(wait_pause);

/*
 * wait_checked() - return true if this thread has a check function and no pause. A call that waits for GPU work with a
 * lock held must then wait before it acquires the lock. Cost: two loads.
 */
bool wait_checked(void);

/*
 * wait_interrupted() - return true if the wait of this thread must end with -EINTR. Calls the program's check function
 * at most once per WAIT_SLICE_MS. Cost: one load if the thread has no check function.
 */
bool wait_interrupted(void) GPOOL_INTERNAL(wait_interrupted);

/* wait_slice() - return the time for which a wait of up to `ns` nanoseconds may sleep before the next check. */
int64_t wait_slice(int64_t ns);
/*
 * wait_slice_ms() - like wait_slice(), in milliseconds; -1: no limit. For -1, return -1 if the thread has no check
 * function.
 */
int wait_slice_ms(int timeout_ms) GPOOL_INTERNAL(wait_slice_ms);

#endif
