#include "client/core/interrupt.h"

#include "client/core/pool.h"

enum { WAIT_SLICE_MS = 50 }; /* chosen: users perceive 50 ms as immediate, and twenty calls per second cost nothing */

static _Thread_local struct {
	int (*check)(void *argument);
	void *argument;
	uint64_t asked_ns;
	uint32_t pauses;
} wait;

void gpool_wait_check(int (*check)(void *argument), void *argument)
{
	wait.check = check;
	wait.argument = argument;
	wait.asked_ns = check ? monotonic_ns() : 0;
}

void wait_pause(bool pause)
{
	wait.pauses += pause ? 1 : -1U;
}

bool wait_checked(void)
{
	return wait.check && !wait.pauses;
}

bool wait_interrupted(void)
{
	uint64_t now;

	if (!wait_checked())
		return false;
	now = monotonic_ns();
	if (now - wait.asked_ns < WAIT_SLICE_MS * UINT64_C(1000000))
		return false;
	wait.asked_ns = now;
	return wait.check(wait.argument) != 0;
}

int64_t wait_slice(int64_t ns)
{
	const int64_t slice = WAIT_SLICE_MS * INT64_C(1000000);

	return wait.check && ns > slice ? slice : ns;
}

int wait_slice_ms(int timeout_ms)
{
	return wait.check && (timeout_ms < 0 || timeout_ms > WAIT_SLICE_MS) ? WAIT_SLICE_MS : timeout_ms;
}
