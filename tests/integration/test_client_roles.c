/*
 * test_client_roles.c - requests for roles that the agent does not answer in time.
 *
 * Goal: a caller that got -EPIPE, because the agent did not reply, neither waits for the role nor holds it once the
 * agent serves requests again. It does not matter how the agent handles the old request. The next call repeats a lost
 * withdrawal, and the name can be acquired again.
 *
 * Method: the agent is stopped during a request, and the library has a short timeout meanwhile. A further request on
 * the same connection shows which messages the agent has read.
 */
#include "tests/integration/life.h"

#include "client/core/pool.h"
#include "proto/attach.h"

#include <errno.h>

enum { PATIENCE_MS = 50, ROLE_VERB_WAIT = 1 };

static struct gpool *one, *other;
static pid_t agent;

static void begin(void)
{
	start(quiet);
	one = open_worker();
	other = open_worker();
	agent = process_of("gpoold-agent");
	assert_true(agent > 0);
}

static void end(void)
{
	gpool_close(one);
	gpool_close(other);
}

/* The timeout is short only while the agent is stopped: on a busy machine, an agent may need more time to answer. */
static void agent_stops(void)
{
	other->answer_ms = PATIENCE_MS;
	assert_int_equal(kill(agent, SIGSTOP), 0);
}

/* Continue the agent, and wait until it has read all messages of `other`. */
static void agent_goes_on(void)
{
	struct gpool_object *object;

	other->answer_ms = ANSWER_MS;
	assert_int_equal(kill(agent, SIGCONT), 0);
	assert_int_equal(gpool_object_open(other, "none", NULL, &object), -ENOENT);
}

static const struct role_record *record_of(const char *name)
{
	const struct role_record *roles = pool_view(admin)->roles;

	for (uint32_t i = 0; i < POOL_ROLES; i++)
		if (roles[i].state == ROLE_NAMED && !strcmp(roles[i].name, name))
			return &roles[i];
	return NULL;
}

static void is_of(uint32_t session, uint32_t waiters)
{
	assert_non_null(record_of("main"));
	assert_int_equal(atomic_load(&record_of("main")->holder), session);
	assert_int_equal(atomic_load(&record_of("main")->waiters), waiters);
}

static void test_waits_no_longer(void **state)
{
	struct gpool_role held = GPOOL_ROLE_INIT, role = GPOOL_ROLE_INIT;

	(void)state;
	begin();
	assert_int_equal(gpool_role_acquire(one, "main", 0, &held), 0);
	agent_stops();
	assert_int_equal(gpool_role_acquire(other, "main", -1, &role), -EPIPE);
	agent_goes_on();
	is_of(gpool_session(one), 0);
	assert_int_equal(gpool_role_release(one, &held), 0);
	is_of(0, 0);
	/* The role can be acquired as if the first request had not been sent. */
	assert_int_equal(gpool_role_acquire(other, "main", -1, &role), 0);
	is_of(gpool_session(other), 0);
	assert_int_equal(gpool_role_check(other, &role), 0);
	end();
}

static void test_does_not_get_it(void **state)
{
	struct gpool_role role = GPOOL_ROLE_INIT;

	(void)state;
	begin();
	agent_stops();
	assert_int_equal(gpool_role_acquire(other, "main", 0, &role), -EPIPE);
	agent_goes_on();
	is_of(0, 0);
	assert_int_equal(gpool_role_acquire(one, "main", 0, &role), 0);
	end();
}

/* A session does not keep a role whose release failed. */
static void test_late_release(void **state)
{
	struct gpool_role role = GPOOL_ROLE_INIT;

	(void)state;
	begin();
	assert_int_equal(gpool_role_acquire(other, "main", 0, &role), 0);
	agent_stops();
	assert_int_equal(gpool_role_release(other, &role), -EPIPE);
	assert_int_equal(gpool_role_release(other, &role), -ESTALE);
	agent_goes_on();
	is_of(0, 0);
	assert_int_equal(gpool_role_check(other, &role), -ESTALE);
	end();
}

/* The same name is requested again before the agent continues: the last request is valid. */
static void test_asks_again_at_once(void **state)
{
	struct gpool_role role = GPOOL_ROLE_INIT, again = GPOOL_ROLE_INIT;

	(void)state;
	begin();
	agent_stops();
	assert_int_equal(gpool_role_acquire(other, "main", 0, &role), -EPIPE);
	assert_int_equal(gpool_role_acquire(other, "main", 0, &role), -EPIPE);
	assert_int_equal(kill(agent, SIGCONT), 0);
	other->answer_ms = ANSWER_MS;
	assert_int_equal(gpool_role_acquire(other, "main", 0, &role), 0);
	is_of(gpool_session(other), 0);
	assert_int_equal(gpool_role_check(other, &role), 0);
	assert_int_equal(gpool_role_acquire(other, "main", 0, &again), -EALREADY);
	assert_int_equal(gpool_role_release(other, &role), 0);
	is_of(0, 0);
	end();
}

static void wait_send(struct gpool *pool, const char *name)
{
	struct msg_role_request request = {.verb = ROLE_VERB_WAIT};
	uint8_t bytes[MSG_LARGEST_role_request];
	int length;

	strcpy(request.name, name);
	length = msg_encode_role_request(&request, 0, pool->token, bytes, sizeof(bytes));
	assert_true(length > 0);
	assert_int_equal(attach_send(pool->socket, bytes, (size_t)length, NULL, 0), 0);
}

/*
 * The agent dies during the withdrawal of a request. The library sends the withdrawal again after the next answered
 * request.
 */
static void test_lost_message_is_said_again(void **state)
{
	struct gpool_role held = GPOOL_ROLE_INIT, role = GPOOL_ROLE_INIT;

	(void)state;
	begin();
	assert_int_equal(gpool_role_acquire(one, "main", 0, &held), 0);
	agent_stops();
	assert_int_equal(gpool_role_acquire(other, "main", -1, &role), -EPIPE);
	wait_send(other, "main");
	agent_goes_on();
	is_of(gpool_session(one), 1);
	assert_int_equal(gpool_role_acquire(other, "side", 0, &role), 0);
	agent_goes_on();
	is_of(gpool_session(one), 0);
	assert_int_equal(gpool_role_release(one, &held), 0);
	is_of(0, 0);
	assert_int_equal(gpool_role_check(other, &role), 0);
	end();
}

/* The successor of the agent to which the requests were sent receives them. */
static void test_agent_dies_instead(void **state)
{
	struct gpool_role held = GPOOL_ROLE_INIT, role = GPOOL_ROLE_INIT;
	uint64_t before;

	(void)state;
	begin();
	assert_int_equal(gpool_role_acquire(one, "main", 0, &held), 0);
	before = atomic_load(&other->header->incarnation);
	agent_stops();
	assert_int_equal(gpool_role_acquire(other, "main", -1, &role), -EPIPE);
	assert_int_equal(kill(agent, SIGKILL), 0);
	AWAIT(atomic_load(&other->header->incarnation) != before && process_of("gpoold-agent") > 0);
	agent = process_of("gpoold-agent");
	agent_goes_on();
	is_of(gpool_session(one), 0);
	assert_int_equal(gpool_role_release(one, &held), 0);
	is_of(0, 0);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_waits_no_longer, stop),
		cmocka_unit_test_teardown(test_does_not_get_it, stop),
		cmocka_unit_test_teardown(test_late_release, stop),
		cmocka_unit_test_teardown(test_asks_again_at_once, stop),
		cmocka_unit_test_teardown(test_lost_message_is_said_again, stop),
		cmocka_unit_test_teardown(test_agent_dies_instead, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
