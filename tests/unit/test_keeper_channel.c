/*
 * test_keeper_channel.c - the keeper handles every message that an agent sent before its death.
 *
 * Goal: the keeper receives all descriptors that the dead agent sent to be held or dropped, even if the agent had not
 * read the keeper's messages. In that case the kernel reports a reset before it delivers the queued messages. Method:
 * the keeper reads a real socket pair whose other end is closed.
 */
#include "agent/keeper/state.h"
#include "proto/attach.h"
#include "tests/unit/held_find.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static struct keeper keeper;

static void say(int agent, enum keep_what what, uint32_t id)
{
	struct keep_message message = {.what = what, .kind = KEEP_SESSION, .id = id};
	int fd = eventfd(0, EFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(attach_send(agent, &message, sizeof(message), &fd, what == KEEP_HOLD), 0);
	close(fd);
}

static void last_words(bool unread)
{
	struct keep_message message = {.what = KEEP_MOVER};
	int pair[2];

	memset(&keeper, 0, sizeof(keeper));
	keeper.start.pool_count = 1;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	keeper.channel = pair[0];
	say(pair[1], KEEP_HOLD, 5);
	say(pair[1], KEEP_HOLD, 6);
	say(pair[1], KEEP_DROP, 5);
	say(pair[1], KEEP_HOLD, 7);
	if (unread)
		assert_int_equal(attach_send(pair[0], &message, sizeof(message), NULL, 0), 0);
	close(pair[1]);
	channel_drain(&keeper);
	assert_int_equal(keeper.channel, -1);
	assert_null(held_find(&keeper.held, KEEP_SESSION, 0, 5));
	assert_non_null(held_find(&keeper.held, KEEP_SESSION, 0, 6));
	assert_non_null(held_find(&keeper.held, KEEP_SESSION, 0, 7));
	held_clear(&keeper.held);
}

static void test_last_words(void **state)
{
	(void)state;
	last_words(false);
}

static void test_last_messages_of_an_agent_with_unread_input(void **state)
{
	(void)state;
	last_words(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_last_words),
		cmocka_unit_test(test_last_messages_of_an_agent_with_unread_input),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
