/*
 * test_roles_recover.c - how a new agent completes roles that the last one left in an intermediate state.
 *
 * Goal: wherever an agent dies in a grant, a release, a join or a naming, roles_recover() leaves each role with one
 * living holder, or with neither holder nor standby. Tokens never decrease, and the order of standbys is kept.
 *
 * A name belongs to a trust domain, and neither a tenant nor a user can use up the names.
 *
 * Method: tables in plain memory are set to each state between two stores (see the list in agent/session/roles.h), and
 * recovered. The tests of names send requests to the same tables.
 */
#include "agent/session/roles.h"
#include "agent/pages/trust.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SESSIONS = 6 };

static struct agent *agent;
static struct pool *pool;
static struct config_pool config_pool = {.name = "p0"};
static struct config_tenant config_tenants[2] = {{.name = "serving"}, {.name = "batch"}};
static struct session sessions[SESSIONS];

/* Return zeroed memory, aligned like a mapping. */
static void *of_segment(size_t bytes)
{
	void *part = aligned_alloc(64, (bytes + 63) / 64 * 64);

	assert_non_null(part);
	return memset(part, 0, bytes);
}

static int setup(void **state)
{
	(void)state;
	agent = calloc(1, sizeof(*agent));
	pool = calloc(1, sizeof(*pool));
	agent->front.fd = -1;
	pool->agent = agent;
	pool->config = &config_pool;
	pool->segment.header = of_segment(sizeof(*pool->segment.header));
	pool->segment.roles = of_segment(POOL_ROLES * sizeof(*pool->segment.roles));
	pool->ledger.roles = of_segment(POOL_ROLES * sizeof(*pool->ledger.roles));
	pool->tenants[0].config = &config_tenants[0];
	pool->tenants[1].config = &config_tenants[1];
	pool->tenant_count = 2;
	agent->config.limits.tenant_percent = 50;
	agent->config.limits.user_percent = 75;
	memset(sessions, 0, sizeof(sessions));
	for (uint32_t id = 1; id < SESSIONS; id++) {
		sessions[id].pool = pool;
		sessions[id].id = id;
		sessions[id].tenant = &pool->tenants[0];
		pool->sessions[id] = &sessions[id];
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(pool->segment.header);
	free(pool->segment.roles);
	free(pool->ledger.roles);
	free(pool);
	free(agent);
	return 0;
}

static struct msg_role_reply ask(uint32_t session, uint32_t verb, const char *name, uint64_t token)
{
	struct msg_role_request request = {.verb = verb, .token = token};
	struct msg_role_reply reply;

	snprintf(request.name, sizeof(request.name), "%s", name);
	role_serve(&sessions[session], &request, &reply);
	return reply;
}

static struct role_record *record(void)
{
	int index = role_find(pool, 0, "main");

	assert_true(index >= 0);
	return &pool->segment.roles[index];
}

static struct ledger_role *row(void)
{
	return &pool->ledger.roles[record() - pool->segment.roles];
}

static void gone(uint32_t session)
{
	pool->sessions[session] = NULL;
}

/* Let session 1 hold the role, with 2 and 3 as standbys. */
static uint64_t begin(void)
{
	uint64_t token = ask(1, ROLE_WAIT, "main", 0).token;

	assert_int_equal(ask(2, ROLE_WAIT, "main", 0).state, ROLE_STANDBY);
	assert_int_equal(ask(3, ROLE_WAIT, "main", 0).state, ROLE_STANDBY);
	return token;
}

static void expect(uint32_t holder, uint64_t least_token, uint32_t waiters)
{
	uint32_t waiting = 0;

	assert_int_equal(record()->holder, holder);
	assert_true(record()->token >= least_token);
	assert_int_equal(record()->waiters, waiters);
	for (uint32_t id = 0; id < POOL_SESSIONS; id++)
		waiting += row()->standbys[id] != 0;
	assert_int_equal(waiting, waiters);
}

/* ---- recovery ---- */

static void test_nothing_half_done_stays(void **state)
{
	uint64_t token = begin();

	(void)state;
	roles_recover(pool);
	roles_recover(pool);
	expect(1, token, 2);
	assert_int_equal(record()->token, token);
}

static void test_holder_died_with_the_agent(void **state)
{
	uint64_t token = begin();

	(void)state;
	gone(1);
	roles_recover(pool);
	expect(2, token + 1, 1);
	assert_int_equal(pool->segment.header->counters[POOL_COUNT_TAKEOVERS], 1);
	gone(2);
	roles_recover(pool);
	expect(3, token + 2, 0);
	gone(3);
	roles_recover(pool);
	expect(0, token + 2, 0);
}

static void test_grant_stopped_behind_the_token(void **state)
{
	uint64_t token = begin();

	(void)state;
	gone(1);
	record()->holder = 0;
	record()->token = token + 1;
	roles_recover(pool);
	/* The token + 1 was never granted. */
	expect(2, token + 2, 1);
}

static void test_grant_stopped_behind_the_holder(void **state)
{
	uint64_t token = begin();

	(void)state;
	gone(1);
	record()->token = token + 1;
	record()->holder = 2;
	roles_recover(pool);
	expect(2, token + 1, 1);
	assert_int_equal(record()->token, token + 1);
	/* The session repeats the request, and gets the current state. */
	assert_int_equal(ask(2, ROLE_WAIT, "main", 0).token, token + 1);
}

static void test_release_stopped_behind_the_holder(void **state)
{
	uint64_t token = begin();

	(void)state;
	record()->holder = 0;
	roles_recover(pool);
	expect(2, token + 1, 1);
	/* The session repeats the release, for which it got no reply. */
	assert_int_equal(ask(1, ROLE_RELEASE, "main", token).error, -ESTALE);
	expect(2, token + 1, 1);
}

static void test_join_stopped_behind_each_store(void **state)
{
	uint64_t token = begin();

	(void)state;
	row()->arrivals++;
	roles_recover(pool);
	expect(1, token, 2);
	row()->arrivals++;
	row()->standbys[4] = row()->arrivals;
	roles_recover(pool);
	expect(1, token, 3);
	/* A repeated request keeps its position in the queue. */
	assert_int_equal(ask(4, ROLE_WAIT, "main", 0).state, ROLE_STANDBY);
	expect(1, token, 3);
	for (uint32_t id = 1; id < 4; id++) {
		gone(id);
		roles_session_end(&sessions[id], true);
		expect(id + 1, token + id, 3 - id);
	}
}

static void test_standbys_that_ended_are_passed_over(void **state)
{
	uint64_t token = begin();

	(void)state;
	gone(2);
	sessions[3].state = SESSION_CLOSED;
	roles_recover(pool);
	expect(1, token, 0);
	gone(1);
	roles_recover(pool);
	expect(0, token, 0);
}

static void test_closed_holder_keeps_it(void **state)
{
	uint64_t token = begin();

	(void)state;
	sessions[1].state = SESSION_CLOSED;
	roles_recover(pool);
	expect(1, token, 2);
	assert_int_equal(role_fence(pool, (uint32_t)role_find(pool, 0, "main"), token, 1), 0);
}

static void test_naming_stopped_before_its_state(void **state)
{
	struct role_record *half = &pool->segment.roles[0];

	(void)state;
	half->token = 7;
	strcpy(half->name, "main");
	pool->ledger.roles[0].arrivals = 3;
	pool->ledger.roles[0].standbys[4] = 3; /* of the former name, which was being removed */
	roles_recover(pool);
	assert_int_equal(role_find(pool, 0, "main"), -ENOENT);
	assert_true(ask(1, ROLE_TAKE, "main", 0).token > 7);
	expect(1, 8, 0);
}

/* ---- names ---- */

static void test_tokens_increase_across_removal(void **state)
{
	uint64_t token, last;

	(void)state;
	token = ask(1, ROLE_TAKE, "main", 0).token;
	assert_int_equal(role_remove(pool, 0, &last), -EBUSY);
	assert_int_equal(ask(1, ROLE_RELEASE, "main", token).error, 0);
	assert_true(ask(1, ROLE_TAKE, "other", 0).token > token);
	assert_int_equal(role_remove(pool, 0, &last), 0);
	assert_int_equal(last, token);
	assert_int_equal(role_find(pool, 0, "main"), -ENOENT);
	/* The record is given to another name, and another record to the first name. */
	assert_true(ask(2, ROLE_TAKE, "third", 0).token > token);
	assert_true(ask(2, ROLE_TAKE, "main", 0).token > token);
	assert_int_equal(role_fence(pool, 0, token, 1), -ESTALE);
}

static void test_verbs_are_checked(void **state)
{
	uint64_t token = begin();

	(void)state;
	assert_int_equal(ask(1, ROLE_VERBS, "main", 0).error, -EINVAL);
	assert_int_equal(ask(1, UINT32_MAX, "main", 0).error, -EINVAL);
	assert_int_equal(ask(1, ROLE_TAKE, "", 0).error, -EINVAL);
	assert_int_equal(ask(2, ROLE_RELEASE, "main", token).error, -ESTALE);
	assert_int_equal(ask(1, ROLE_RELEASE, "main", token + 1).error, -ESTALE);
	assert_int_equal(ask(1, ROLE_RELEASE, "none", token).error, -ENOENT);
	assert_int_equal(ask(4, ROLE_WITHDRAW, "main", 0).state, ROLE_NEITHER);
	assert_int_equal(ask(1, ROLE_WITHDRAW, "main", 0).state, ROLE_HOLDER);
	assert_int_equal(ask(4, ROLE_TAKE, "main", 0).state, ROLE_NEITHER);
	assert_int_equal(ask(4, ROLE_FORGET, "main", token).state, ROLE_NEITHER);
	expect(1, token, 2);
	sessions[5].tenant = &pool->tenants[1];
	assert_int_equal(ask(5, ROLE_WAIT, "main", 0).error, -EACCES);
	sessions[5].kind = SESSION_OBSERVER;
	assert_int_equal(ask(5, ROLE_WAIT, "mine", 0).error, -EPERM);
	assert_int_equal(role_fence(pool, POOL_ROLES, 1, 1), -ESTALE);
	assert_int_equal(role_fence(pool, 5, 0, 0), -ESTALE);
	expect(1, token, 2);
}

/* ---- trust domains ---- */

static void test_domains_have_their_own_names(void **state)
{
	uint64_t token = begin();
	struct msg_role_reply other;

	(void)state;
	sessions[4].domain = sessions[5].domain = 2;
	sessions[4].tenant = sessions[5].tenant = &pool->tenants[1];
	assert_int_equal(ask(4, ROLE_RELEASE, "main", token).error, -ENOENT);
	other = ask(4, ROLE_WAIT, "main", 0);
	assert_int_equal(other.state, ROLE_HOLDER);
	assert_true(other.token > token);
	assert_int_equal(role_find(pool, 2, "main"), other.index);
	assert_int_equal(ask(5, ROLE_WAIT, "main", 0).state, ROLE_STANDBY);
	expect(1, token, 2);
	/* A death in one domain grants nothing in the other. */
	gone(4);
	roles_recover(pool);
	assert_int_equal(pool->segment.roles[other.index].holder, 5);
	expect(1, token, 2);
	gone(5);
	roles_session_end(&sessions[5], true);
	assert_int_equal(pool->segment.roles[other.index].holder, 0);
	expect(1, token, 2);
}

/* A domain without members gives its number to another one, which must not find the roles of the former. */
static void test_number_of_a_domain_with_roles_is_kept(void **state)
{
	struct trust trust = {.handle_count = 0};
	struct ledger_header *header = of_segment(sizeof(*header));
	char name[8];

	(void)state;
	pool->trust = &trust;
	pool->ledger.header = header;
	pool->ledger.sessions = of_segment(POOL_SESSIONS * sizeof(*pool->ledger.sessions));
	for (uint32_t domain = 1; domain <= LEDGER_DOMAINS; domain++) {
		snprintf(name, sizeof(name), "d%u", domain);
		assert_int_equal(trust_domain(pool, name), domain);
	}
	sessions[1].domain = 1;
	sessions[2].domain = 2;
	assert_int_equal(ask(1, ROLE_TAKE, "main", 0).state, ROLE_HOLDER);
	assert_int_equal(ask(2, ROLE_TAKE, "main", 0).state, ROLE_HOLDER);
	assert_int_equal(trust_domain(pool, "new"), 3);
	gone(1);
	roles_session_end(&sessions[1], false);
	assert_int_equal(trust_domain(pool, "newer"), 3);
	for (uint32_t domain = 1; domain <= LEDGER_DOMAINS; domain++) {
		free_runs_fini(&trust.views[domain].normal);
		free_runs_fini(&trust.views[domain].reserved);
	}
	free(pool->ledger.sessions);
	free(header);
}

/* ---- shares ---- */

/* Let a session acquire unused names until it is refused. Return their number; *last is the refusal. */
static uint32_t names_taken(uint32_t session, const char *prefix, struct msg_role_reply *last)
{
	char name[32];

	for (uint32_t i = 0;; i++) {
		snprintf(name, sizeof(name), "%s%u", prefix, i);
		*last = ask(session, ROLE_TAKE, name, 0);
		if (last->error)
			return i;
		assert_true(i < POOL_ROLES);
	}
}

static void test_a_tenant_leaves_others_their_names(void **state)
{
	struct msg_role_reply last;

	(void)state;
	sessions[2].tenant = &pool->tenants[1];
	assert_int_equal(names_taken(1, "a", &last), POOL_ROLES - POOL_ROLES / 4);
	assert_int_equal(last.error, -ENOSPC);
	assert_non_null(strstr(last.text, "limits.tenant_sessions (50 percent)"));
	/* A role that exists can still be acquired, and the names that ended sessions have acquired still count. */
	assert_int_equal(ask(1, ROLE_TAKE, "a0", 0).error, 0);
	gone(1);
	roles_session_end(&sessions[1], true);
	assert_int_equal(names_taken(3, "b", &last), 0);
	assert_int_equal(ask(3, ROLE_TAKE, "a0", 0).state, ROLE_HOLDER);
	assert_int_equal(names_taken(2, "c", &last), POOL_ROLES / 4);
	assert_non_null(strstr(last.text, "has 64 roles, the limit"));
}

/* With more tenants than half of the names, every tenant is still guaranteed one. */
static void test_many_tenants_have_one_name_each(void **state)
{
	static struct config_tenant many[CONFIG_TENANTS_MAX];
	struct msg_role_reply last;

	(void)state;
	pool->tenant_count = CONFIG_TENANTS_MAX;
	for (uint32_t i = 0; i < CONFIG_TENANTS_MAX; i++) {
		snprintf(many[i].name, sizeof(many[i].name), "t%u", i);
		pool->tenants[i].config = &many[i];
	}
	for (uint32_t i = 0; i < CONFIG_TENANTS_MAX; i++) {
		sessions[1].tenant = &pool->tenants[i];
		snprintf(last.text, sizeof(last.text), "of %u", i);
		assert_int_equal(ask(1, ROLE_TAKE, last.text, 0).error, 0);
		assert_int_equal(ask(1, ROLE_TAKE, "another", 0).error, -ENOSPC);
	}
}

static void test_a_user_leaves_others_names(void **state)
{
	enum { MOST = POOL_ROLES * 75 / 100 };
	struct msg_role_reply last;

	(void)state;
	pool->tenant_count = 1;
	sessions[1].uid = sessions[2].uid = geteuid() + 1;
	assert_int_equal(names_taken(1, "a", &last), MOST);
	assert_int_equal(last.error, -ENOSPC);
	assert_non_null(strstr(last.text, "limits.user_sessions (75 percent)"));
	assert_int_equal(names_taken(2, "b", &last), 0);
	/* The agent's own user is not limited. */
	sessions[3].uid = geteuid();
	assert_int_equal(names_taken(3, "c", &last), POOL_ROLES - MOST);
	/* A role that another user holds counts for the user that acquired it first. */
	assert_int_equal(ask(1, ROLE_RELEASE, "a0", ask(1, ROLE_TAKE, "a0", 0).token).error, 0);
	assert_int_equal(ask(3, ROLE_TAKE, "a0", 0).state, ROLE_HOLDER);
	assert_int_equal(names_taken(1, "d", &last), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_nothing_half_done_stays),
		TEST(test_holder_died_with_the_agent),
		TEST(test_grant_stopped_behind_the_token),
		TEST(test_grant_stopped_behind_the_holder),
		TEST(test_release_stopped_behind_the_holder),
		TEST(test_join_stopped_behind_each_store),
		TEST(test_standbys_that_ended_are_passed_over),
		TEST(test_closed_holder_keeps_it),
		TEST(test_naming_stopped_before_its_state),
		TEST(test_tokens_increase_across_removal),
		TEST(test_verbs_are_checked),
		TEST(test_domains_have_their_own_names),
		TEST(test_number_of_a_domain_with_roles_is_kept),
		TEST(test_a_tenant_leaves_others_their_names),
		TEST(test_many_tenants_have_one_name_each),
		TEST(test_a_user_leaves_others_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
