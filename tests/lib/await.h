/*
 * await.h - wait for a condition without a notification, such as a word in shared memory or a line in a log.
 *
 * The condition is checked AWAIT_TRIES times: for one minute on an idle machine, longer on a busy one. A test thus
 * fails only if the condition does not become true, not because its process got no CPU time. A call with a timeout that
 * must not expire gets AWAIT_MS: longer than a virtual machine may be paused, and shorter than alarms in tests.
 */
#ifndef GPOOL_TESTS_AWAIT_H
#define GPOOL_TESTS_AWAIT_H

#include <poll.h>

enum { AWAIT_TRIES = 12000, AWAIT_STEP_MS = 5, AWAIT_MS = 600000 };

#define AWAIT(condition) \
	for (int tries_ = 0; !(condition); tries_++) { \
		assert_true(tries_ < AWAIT_TRIES); \
		poll(NULL, 0, AWAIT_STEP_MS); \
	}

#endif
