/*
 * interrupt.h - waits that end when the program wants its thread back: gpool_wait_check().
 *
 * A wait sleeps for wait_slice() at most, and asks wait_interrupted() before it sleeps again. The program's check runs
 * arbitrary code (in Python all signal handlers), so no lock is held over it that another thread needs to go on.
 */
#ifndef GPOOL_CLIENT_INTERRUPT_H
#define GPOOL_CLIENT_INTERRUPT_H

#include "client/core/internal.h"
#include <stdbool.h>
#include <stdint.h>

bool wait_is_checked(void) GPOOL_INTERNAL(wait_is_checked);

/*
 * wait_interrupted() - whether this thread's wait is to end with -EINTR. Asks the program at most once in
 * WAIT_SLICE_MS. Cost: a load where it has set no check.
 */
bool wait_interrupted(void) GPOOL_INTERNAL(wait_interrupted);

/* wait_slice() - how long a wait of up to ns nanoseconds may sleep at once. */
int64_t wait_slice(int64_t ns);
/* wait_slice_ms() - the same in milliseconds; -1: no limit. */
int wait_slice_ms(int timeout_ms) GPOOL_INTERNAL(wait_slice_ms);

#endif
