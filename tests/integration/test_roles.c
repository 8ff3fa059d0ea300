/*
 * test_roles.c - roles: one session holds a role at a time, others wait as standbys, and a death passes it on.
 *
 * Goal: the next standby gets the role with a higher token once the holder's process is dead, and never before. Order,
 * timeouts, limits and rights are as described in gpool/role.h.
 *
 * Method: real processes execute commands from a socket, and are killed, stopped or disconnected. In another test,
 * several processes compete for one role, and randomly selected ones are killed and replaced. Each process that
 * acquires the role checks that no other process holds it.
 *
 * Requirements: S7.
 */
#include "client/gpool.h"
#include "client/core/pool.h"
#include "client/core/request.h"
#include "proto/attach.h"
#include "proto/codec.h"
#include "shm/doorbell.h"
#include "tests/integration/life.h"
#include "tests/lib/harness.h"
#include "tests/lib/temporary.h"

#include <errno.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- content of the table ---- */

static const struct role_record *record_of(const char *name)
{
	const struct role_record *roles = pool_view(admin)->roles;

	for (uint32_t i = 0; i < POOL_ROLES; i++)
		if (roles[i].state == ROLE_NAMED && !strcmp(roles[i].name, name))
			return &roles[i];
	return NULL;
}

static uint32_t holder(void)
{
	uint32_t session = 0;

	assert_int_equal(gpool_role_info(admin, "main", &session, NULL), 0);
	return session;
}

static uint32_t waiters(void)
{
	return record_of("main") ? atomic_load(&record_of("main")->waiters) : 0;
}

static uint64_t takeovers(void)
{
	return atomic_load(&pool_view(admin)->header->counters[POOL_COUNT_TAKEOVERS]);
}

/* ---- processes that execute orders ---- */

enum order { ORDER_ACQUIRE, ORDER_RELEASE, ORDER_CHECK, ORDER_DISCONNECT, ORDER_CHILD, ORDER_CLOSE };

struct command {
	enum order order;
	int timeout_ms;
	char name[64];
};

struct answer {
	int result;
	struct gpool_role role;
};

struct actor {
	pid_t pid;
	int channel;
	uint32_t session;
	struct gpool_role role; /* as of its last acquisition */
};

static int obey(struct gpool **pool, const struct command *command, struct gpool_role *role, int channel)
{
	char byte;
	pid_t pid;

	switch (command->order) {
	case ORDER_ACQUIRE:
		role->size = sizeof(*role);
		return gpool_role_acquire(*pool, command->name, command->timeout_ms, role);
	case ORDER_RELEASE: return gpool_role_release(*pool, role);
	case ORDER_CHECK: return gpool_role_check(*pool, role);
	case ORDER_DISCONNECT: return shutdown((*pool)->socket, SHUT_RDWR);
	case ORDER_CHILD:
		pid = fork();
		if (pid == 0) {
			while (read(channel, &byte, 1) > 0)
				;
			_exit(0);
		}
		return pid;
	default:
		gpool_close(*pool);
		*pool = NULL;
		return 0;
	}
}

static _Noreturn void actor_main(int channel, const char *tenant)
{
	struct gpool_options options = harness_options(&harness);
	struct answer answer = {.result = 0};
	struct gpool *pool = NULL;
	struct command command;

	options.tenant = tenant;
	options.magazine = 1;
	if (gpool_open(&options, &pool))
		_exit(1);
	answer.role.session = gpool_session(pool);
	do {
		if (write(channel, &answer, sizeof(answer)) != sizeof(answer))
			_exit(2);
		if (read(channel, &command, sizeof(command)) != sizeof(command))
			break;
		answer.result = obey(&pool, &command, &answer.role, channel);
	} while (true);
	_exit(0);
}

static struct answer heard(const struct actor *actor)
{
	struct answer answer;
	struct pollfd look = {.fd = actor->channel, .events = POLLIN};

	assert_int_equal(poll(&look, 1, END_MS), 1);
	assert_int_equal(read(actor->channel, &answer, sizeof(answer)), sizeof(answer));
	return answer;
}

static void say(const struct actor *actor, enum order order, int timeout_ms)
{
	struct command command = {.order = order, .timeout_ms = timeout_ms, .name = "main"};

	assert_int_equal(write(actor->channel, &command, sizeof(command)), sizeof(command));
}

static int tell(struct actor *actor, enum order order, int timeout_ms)
{
	struct answer answer;

	say(actor, order, timeout_ms);
	answer = heard(actor);
	if (order == ORDER_ACQUIRE && !answer.result)
		actor->role = answer.role;
	return answer.result;
}

static struct actor actor_start(const char *tenant)
{
	struct actor actor;
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	fflush(stdout);
	actor.pid = fork();
	assert_true(actor.pid >= 0);
	if (actor.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		actor_main(ends[1], tenant);
	}
	close(ends[1]);
	actor.channel = ends[0];
	actor.role = heard(&actor).role;
	actor.session = actor.role.session;
	return actor;
}

static void actor_kill(struct actor *actor)
{
	assert_true(actor->pid > 1);
	assert_int_equal(kill(actor->pid, SIGKILL), 0);
	assert_int_equal(waitpid(actor->pid, NULL, 0), actor->pid);
	actor->pid = 0;
}

static void actor_end(struct actor *actor)
{
	if (actor->pid > 1)
		actor_kill(actor);
	close(actor->channel);
}

/* Wait until the process is in the agent's queue, after the earlier standbys. */
static void stand_by(const struct actor *actor, int timeout_ms)
{
	uint32_t before = waiters();

	say(actor, ORDER_ACQUIRE, timeout_ms);
	AWAIT(waiters() == before + 1);
}

static void took_over(struct actor *actor, uint64_t above)
{
	struct answer answer = heard(actor);

	assert_int_equal(answer.result, 0);
	assert_true(answer.role.token > above);
	assert_int_equal(answer.role.session, actor->session);
	actor->role = answer.role;
	assert_int_equal(holder(), actor->session);
}

/* ---- one or two processes ---- */

static void test_take_and_give_back(void **state)
{
	struct gpool *pool, *other;
	struct gpool_role role = GPOOL_ROLE_INIT, again = GPOOL_ROLE_INIT, wrong = GPOOL_ROLE_INIT;
	uint32_t session;
	uint64_t token;

	(void)state;
	start(quiet);
	pool = open_worker();
	other = open_worker();
	assert_int_equal(gpool_role_info(pool, "main", &session, &token), -ENOENT);
	assert_int_equal(gpool_role_acquire(pool, "main", 0, &role), 0);
	assert_int_equal(role.session, gpool_session(pool));
	assert_int_equal(gpool_role_check(pool, &role), 0);
	assert_int_equal(gpool_role_check(other, &role), -ESTALE);
	assert_int_equal(gpool_role_info(other, "main", &session, &token), 0);
	assert_int_equal(session, role.session);
	assert_int_equal(token, role.token);

	assert_int_equal(gpool_role_acquire(pool, "main", 0, &again), -EALREADY);
	assert_int_equal(gpool_role_acquire(other, "main", 0, &again), -ETIMEDOUT);
	assert_int_equal(gpool_role_acquire(other, "main", 1, &again), -ETIMEDOUT);
	assert_int_equal(gpool_role_release(other, &role), -ESTALE);
	wrong = role;
	wrong.token++;
	assert_int_equal(gpool_role_release(pool, &wrong), -ESTALE);
	assert_int_equal(gpool_role_check(pool, &wrong), -ESTALE);
	wrong.index = POOL_ROLES;
	assert_int_equal(gpool_role_check(pool, &wrong), -EINVAL);
	assert_int_equal(gpool_role_check(pool, &role), 0);

	assert_int_equal(gpool_role_release(pool, &role), 0);
	assert_int_equal(gpool_role_check(pool, &role), -ESTALE);
	assert_int_equal(gpool_role_release(pool, &role), -ESTALE);
	assert_int_equal(gpool_role_info(pool, "main", &session, &token), 0);
	assert_int_equal(session, 0);
	assert_int_equal(token, role.token);
	assert_int_equal(gpool_role_acquire(other, "main", -1, &again), 0);
	assert_true(again.token > role.token);
	assert_int_equal(gpool_role_check(pool, &role), -ESTALE);
	/* The normal end of a session releases its role, too. */
	gpool_close(other);
	assert_int_equal(gpool_role_acquire(pool, "main", -1, &role), 0);
	assert_true(role.token > again.token);
	assert_int_equal(takeovers(), 0);
	gpool_close(pool);
}

static void test_release_passes_it_on(void **state)
{
	struct actor first, second;

	(void)state;
	start(quiet);
	first = actor_start(NULL);
	second = actor_start(NULL);
	assert_int_equal(tell(&first, ORDER_ACQUIRE, -1), 0);
	stand_by(&second, -1);
	assert_int_equal(tell(&first, ORDER_CHECK, 0), 0);
	assert_int_equal(tell(&first, ORDER_RELEASE, 0), 0);
	/* The release returns after the grant. */
	assert_int_equal(holder(), second.session);
	took_over(&second, first.role.token);
	assert_int_equal(tell(&first, ORDER_CHECK, 0), -ESTALE);
	assert_int_equal(tell(&second, ORDER_CHECK, 0), 0);
	assert_int_equal(takeovers(), 0);
	actor_end(&first);
	actor_end(&second);
}

static void test_death_passes_it_on(void **state)
{
	struct gpool_event event = GPOOL_EVENT_INIT;
	struct actor first, second;
	struct gpool_role role = GPOOL_ROLE_INIT;
	struct gpool *pool;

	(void)state;
	start(quiet);
	first = actor_start(NULL);
	second = actor_start(NULL);
	assert_int_equal(tell(&first, ORDER_ACQUIRE, -1), 0);
	stand_by(&second, -1);
	/* Wait until the subscription has taken effect, before the death. */
	while (gpool_event_next(admin, AWAIT_STEP_MS, &event) == -ETIMEDOUT && event.kind != GPOOL_EVENT_ROLE_GRANTED) {
		pool = open_worker();
		assert_int_equal(gpool_role_acquire(pool, "listen", -1, &role), 0);
		gpool_close(pool);
	}
	actor_kill(&first);
	took_over(&second, first.role.token);
	/* The agent increments the counter after the grant. */
	AWAIT(takeovers() == 1);
	assert_int_equal(atomic_load(&record_of("main")->takeovers), 1);
	do
		assert_int_equal(gpool_event_next(admin, ANSWER_MS, &event), 0);
	while (event.kind != GPOOL_EVENT_TAKEOVER);
	assert_int_equal(event.session, second.session);
	assert_int_equal(event.value, second.role.token);
	/* Without a standby the role is free, and the next grant is not a takeover. */
	actor_kill(&second);
	AWAIT(holder() == 0);
	pool = open_worker();
	assert_int_equal(gpool_role_acquire(pool, "main", -1, &role), 0);
	assert_true(role.token > second.role.token);
	assert_int_equal(takeovers(), 1);
	gpool_close(pool);
	actor_end(&first);
	actor_end(&second);
}

/* ---- objects of dead writers ---- */

/* Called in a thread, so that the waiting session belongs to the test itself. */
static void *acquire_in_thread(void *pool)
{
	struct gpool_role role = GPOOL_ROLE_INIT;

	return (void *)(intptr_t)gpool_role_acquire(pool, "main", -1, &role);
}

enum { KV_PAGES = 3, KV_WORD = 0x600dcafe };

static uint32_t *kv_of(struct gpool_object *object)
{
	uint64_t address, bytes;

	if (gpool_object_address(object, 0, &address, &bytes))
		return NULL;
	return (uint32_t *)(uintptr_t)address;
}

/* Acquire the role, publish an object, write to it, report that, and wait for the end. */
static _Noreturn void engine_main(int channel)
{
	struct gpool_object_options how = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_options options = harness_options(&harness);
	struct gpool_object *object;
	struct answer answer = {.role = GPOOL_ROLE_INIT};
	struct gpool *pool;
	uint64_t version;
	uint32_t index;

	options.magazine = 1;
	answer.result = gpool_open(&options, &pool);
	if (!answer.result)
		answer.result = gpool_role_acquire(pool, "main", 0, &answer.role);
	how.memory_class = GPOOL_OBJECT_MUTABLE;
	how.role = "main";
	how.role_token = answer.role.token;
	if (!answer.result)
		answer.result = gpool_object_create(pool, "kv", &how, &object);
	if (!answer.result)
		answer.result = gpool_object_alloc(object, KV_PAGES, NULL, &index);
	if (!answer.result)
		answer.result = gpool_object_publish(object, &version);
	/* Write after the publication, as an engine fills its cache. */
	if (!answer.result)
		kv_of(object)[1] = KV_WORD;
	if (write(channel, &answer, sizeof(answer)) == sizeof(answer))
		for (;;)
			pause();
	_exit(1);
}

static void test_a_standby_adopts_the_kv_of_the_dead(void **state)
{
	struct gpool_object_open_options adopt = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	struct actor engine = {.session = 0};
	struct gpool_object *object;
	struct gpool *standby, *other;
	struct gpool_role role = GPOOL_ROLE_INIT;
	struct answer answer;
	pthread_t thread;
	void *result;
	int ends[2];

	(void)state;
	start(quiet);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	fflush(stdout);
	engine.pid = fork();
	assert_true(engine.pid >= 0);
	if (engine.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		engine_main(ends[1]);
	}
	close(ends[1]);
	engine.channel = ends[0];
	answer = heard(&engine);
	assert_int_equal(answer.result, 0);
	standby = open_worker();
	other = open_worker();

	/* While the writer is running, its token cannot be used to adopt: a token is valid for its own session only. */
	adopt.flags = GPOOL_OBJECT_ADOPT;
	adopt.role = "main";
	adopt.role_token = answer.role.token;
	assert_int_equal(gpool_object_open(standby, "kv", &adopt, &object), -ESTALE);
	assert_int_equal(pthread_create(&thread, NULL, acquire_in_thread, standby), 0);
	AWAIT(waiters() == 1);
	actor_kill(&engine);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_int_equal((int)(intptr_t)result, 0);

	/*
	 * With the role the session gets the dead writer's object, unchanged, without a wait and without another
	 * writer.
	 */
	assert_int_equal(gpool_role_info(standby, "main", &role.session, &role.token), 0);
	assert_int_equal(role.session, gpool_session(standby));
	assert_true(role.token > answer.role.token);
	assert_int_equal(gpool_object_open(standby, "kv", &adopt, &object), -ESTALE);
	adopt.role_token = role.token;
	assert_int_equal(gpool_object_open(other, "kv", &adopt, &object), -ESTALE);
	assert_int_equal(gpool_object_open(standby, "kv", &adopt, &object), 0);
	assert_int_equal(kv_of(object)[1], KV_WORD);
	kv_of(object)[2] = KV_WORD;
	assert_int_equal(gpool_object_close(object), 0);
	gpool_close(standby);
	gpool_close(other);
	actor_end(&engine);
}

/* ---- holders that are not dead ---- */

static void test_a_stopped_holder_keeps_it(void **state)
{
	struct actor first, second;
	int stopped;

	(void)state;
	start(quiet);
	first = actor_start(NULL);
	second = actor_start(NULL);
	assert_int_equal(tell(&first, ORDER_ACQUIRE, -1), 0);
	kill(first.pid, SIGSTOP);
	assert_int_equal(waitpid(first.pid, &stopped, WUNTRACED), first.pid);
	assert_true(WIFSTOPPED(stopped));
	assert_int_equal(tell(&second, ORDER_ACQUIRE, 300), -ETIMEDOUT);
	assert_int_equal(holder(), first.session);
	assert_int_equal(waiters(), 0);
	stand_by(&second, -1);
	kill(first.pid, SIGCONT);
	assert_int_equal(tell(&first, ORDER_CHECK, 0), 0);
	kill(first.pid, SIGSTOP);
	actor_kill(&first);
	took_over(&second, first.role.token);
	actor_end(&first);
	actor_end(&second);
}

static uint32_t client_state(uint32_t session)
{
	return atomic_load(&pool_view(admin)->sessions[session].state);
}

static void test_a_closed_connection_keeps_it(void **state)
{
	struct actor first, second;

	(void)state;
	start(quiet);
	first = actor_start(NULL);
	second = actor_start(NULL);
	assert_int_equal(tell(&first, ORDER_ACQUIRE, -1), 0);
	stand_by(&second, -1);
	assert_int_equal(tell(&first, ORDER_DISCONNECT, 0), 0);
	AWAIT(client_state(first.session) == SESSION_RECORD_CLOSED);
	assert_int_equal(holder(), first.session);
	assert_int_equal(waiters(), 1);
	/* The process may still write, so the role is still reported as held. */
	assert_int_equal(tell(&first, ORDER_CHECK, 0), 0);
	actor_kill(&first);
	took_over(&second, first.role.token);
	actor_end(&first);
	actor_end(&second);
}

/* A child that has inherited the connection keeps it open after the death of the holder. */
static void test_a_child_keeps_nothing(void **state)
{
	struct actor first, second;
	pid_t child;

	(void)state;
	start(quiet);
	first = actor_start(NULL);
	second = actor_start(NULL);
	assert_int_equal(tell(&first, ORDER_ACQUIRE, -1), 0);
	stand_by(&second, -1);
	child = tell(&first, ORDER_CHILD, 0);
	assert_true(child > 1);
	actor_kill(&first);
	took_over(&second, first.role.token);
	assert_int_equal(kill(child, 0), 0);
	actor_end(&first); /* closing its channel ends the child */
	actor_end(&second);
}

static void test_a_forked_child_may_not(void **state)
{
	struct gpool_role role = GPOOL_ROLE_INIT;
	struct gpool *pool;
	uint32_t session;
	int status = -1;
	pid_t pid;

	(void)state;
	start(quiet);
	pool = open_worker();
	assert_int_equal(gpool_role_acquire(pool, "main", -1, &role), 0);
	fflush(stdout);
	pid = fork();
	if (pid == 0)
		_exit(gpool_role_check(pool, &role) != -ECHILD || gpool_role_release(pool, &role) != -ECHILD ||
			gpool_role_acquire(pool, "other", -1, &role) != -ECHILD ||
			gpool_role_info(pool, "main", &session, NULL) != -ECHILD);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(gpool_role_check(pool, &role), 0);
	gpool_close(pool);
}

/* ---- succession ---- */

static void test_standbys_in_order_of_arrival(void **state)
{
	enum { ACTORS = 7, KILLED = 3, STOPPED = 4 };
	struct actor actors[ACTORS];
	uint64_t token;
	int at = 0;

	(void)state;
	start(quiet);
	for (int i = 0; i < ACTORS; i++)
		actors[i] = actor_start(NULL);
	assert_int_equal(tell(&actors[0], ORDER_ACQUIRE, -1), 0);
	for (int i = 1; i < ACTORS; i++)
		stand_by(&actors[i], -1);
	/* One standby dies and is skipped, another one is stopped. */
	actor_kill(&actors[KILLED]);
	AWAIT(waiters() == ACTORS - 2);
	kill(actors[STOPPED].pid, SIGSTOP);
	token = actors[0].role.token;
	for (int next = 1; next < ACTORS; next++) {
		if (next == KILLED)
			continue;
		actor_kill(&actors[at]);
		AWAIT(holder() == actors[next].session);
		/* A stopped standby is alive, and gets the role. */
		if (next == STOPPED)
			kill(actors[STOPPED].pid, SIGCONT);
		took_over(&actors[next], token);
		token = actors[next].role.token;
		at = next;
	}
	AWAIT(takeovers() == ACTORS - 2);
	for (int i = 0; i < ACTORS; i++)
		actor_end(&actors[i]);
}

static void test_a_closed_standby_waits_for_nothing(void **state)
{
	struct actor first, third;
	struct gpool *second;
	pthread_t thread;
	void *result;

	(void)state;
	start(quiet);
	first = actor_start(NULL);
	third = actor_start(NULL);
	second = open_worker();
	assert_int_equal(tell(&first, ORDER_ACQUIRE, -1), 0);
	assert_int_equal(pthread_create(&thread, NULL, acquire_in_thread, second), 0);
	AWAIT(waiters() == 1);
	stand_by(&third, -1);
	shutdown(second->socket, SHUT_RDWR);
	AWAIT(waiters() == 1);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_int_equal((int)(intptr_t)result, -EPIPE);
	actor_kill(&first);
	took_over(&third, first.role.token);
	gpool_close(second);
	actor_end(&first);
	actor_end(&third);
}

static void test_two_threads_are_one_session(void **state)
{
	struct gpool *pool, *other;
	struct gpool_role role = GPOOL_ROLE_INIT, mine = GPOOL_ROLE_INIT;
	pthread_t thread;
	void *result;

	(void)state;
	start(quiet);
	pool = open_worker();
	other = open_worker();
	assert_int_equal(gpool_role_acquire(other, "main", -1, &role), 0);
	assert_int_equal(pthread_create(&thread, NULL, acquire_in_thread, pool), 0);
	AWAIT(waiters() == 1);
	assert_int_equal(gpool_role_acquire(pool, "main", 0, &mine), -EALREADY);
	assert_int_equal(gpool_role_acquire(pool, "main", 50, &mine), -EALREADY);
	assert_int_equal(waiters(), 1);
	assert_int_equal(gpool_role_release(other, &role), 0);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_int_equal((int)(intptr_t)result, 0);
	assert_int_equal(holder(), gpool_session(pool));
	gpool_close(pool);
	gpool_close(other);
}

/* A timeout may expire just when the role is granted. Only the process that was granted the role holds it. */
static void *impatient(void *pool)
{
	intptr_t got = 0;

	for (int round = 0; round < 400; round++) {
		struct gpool_role role = GPOOL_ROLE_INIT;
		uint32_t session;
		int error = gpool_role_acquire(pool, "main", round % 3, &role);

		if (error && error != -ETIMEDOUT)
			return (void *)(intptr_t)error;
		if (gpool_role_info(pool, "main", &session, NULL) || (session == gpool_session(pool)) != !error)
			return (void *)(intptr_t)-EPROTO;
		if (error)
			continue;
		got++;
		if (gpool_role_check(pool, &role) || gpool_role_release(pool, &role) ||
			gpool_role_check(pool, &role) != -ESTALE)
			return (void *)(intptr_t)-ESTALE;
	}
	return (void *)got;
}

static void test_time_out_and_grant_may_cross(void **state)
{
	enum { THREADS = 4 };
	struct gpool *pools[THREADS];
	pthread_t threads[THREADS];
	intptr_t total = 0;

	(void)state;
	start(quiet);
	for (int i = 0; i < THREADS; i++) {
		pools[i] = open_worker();
		assert_int_equal(pthread_create(&threads[i], NULL, impatient, pools[i]), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		void *got;

		assert_int_equal(pthread_join(threads[i], &got), 0);
		assert_true((intptr_t)got >= 0);
		total += (intptr_t)got;
	}
	assert_true(total > 0);
	assert_int_equal(holder(), 0);
	assert_int_equal(waiters(), 0);
	for (int i = 0; i < THREADS; i++)
		gpool_close(pools[i]);
}

static bool unread(const struct gpool *pool)
{
	int bytes = 0;

	return ioctl(pool->socket, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

static void *acquire_for_a_moment(void *pool)
{
	struct gpool_role role = GPOOL_ROLE_INIT;

	return (void *)(intptr_t)gpool_role_acquire(pool, "main", 200, &role);
}

/* Test the same case with a fixed order: both messages are queued when the agent continues, the release first. */
static void test_time_out_and_grant_do_cross(void **state)
{
	struct msg_role_request request = {.verb = 3, .name = "main"};
	uint8_t bytes[MSG_LARGEST_role_request];
	struct gpool *first, *second;
	struct gpool_role role = GPOOL_ROLE_INIT;
	pthread_t thread;
	pid_t agent_pid;
	void *result;
	int length;

	(void)state;
	start(quiet);
	agent_pid = (pid_t)status()->agent_pid;
	first = open_worker();
	second = open_worker();
	assert_int_equal(gpool_role_acquire(first, "main", 0, &role), 0);
	request.token = role.token;
	length = msg_encode_role_request(&request, 1, NULL, bytes, sizeof(bytes));
	assert_int_equal(pthread_create(&thread, NULL, acquire_for_a_moment, second), 0);
	AWAIT(waiters() == 1);
	assert_true(agent_pid > 1);
	assert_int_equal(kill(agent_pid, SIGSTOP), 0);
	/* If the agent has already read the withdrawal, the messages did not cross, which is correct too. */
	assert_int_equal(attach_send(first->socket, bytes, (size_t)length, NULL, 0), 0);
	AWAIT(unread(second) || waiters() == 0);
	assert_int_equal(kill(agent_pid, SIGCONT), 0);
	assert_int_equal(pthread_join(thread, &result), 0);
	AWAIT(!unread(first));
	if ((int)(intptr_t)result == 0)
		assert_int_equal(holder(), gpool_session(second));
	else
		assert_int_not_equal(holder(), gpool_session(second));
	gpool_close(first);
	gpool_close(second);
}

/* ---- a crowd ---- */

enum { CROWD = 6, DEATHS = 120 };

/* Written only by the holder of the role, except `error`. */
struct scene {
	_Atomic uint32_t inside; /* pid of the process inside, even if it died there */
	_Atomic uint64_t token;  /* token of the last process inside */
	_Atomic uint32_t left, right;
	_Atomic uint32_t entered, found_dead;
	_Atomic uint32_t error;
};

/* Return true if the process does not exist, or waits to be reaped. */
static bool is_dead(uint32_t pid)
{
	char path[64], text[512];
	const char *end;

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	file_read(path, text, sizeof(text));
	end = strrchr(text, ')');
	return !end || end[2] == 'Z' || end[2] == 'X';
}

static int enter(struct scene *scene, struct gpool *pool, const struct gpool_role *role, uint32_t rounds)
{
	uint32_t self = (uint32_t)getpid(), before = atomic_load(&scene->inside);

	if (before && !is_dead(before))
		return 1;
	atomic_fetch_add(&scene->found_dead, before != 0);
	if (!atomic_compare_exchange_strong(&scene->inside, &before, self))
		return 2;
	if (atomic_load(&scene->token) >= role->token)
		return 3;
	atomic_store(&scene->token, role->token);
	/* The loop makes no read-modify-write, so a second process inside changes the sums. */
	for (uint32_t i = 0; i < rounds; i++) {
		uint32_t value = atomic_load(&scene->left);

		if (gpool_role_check(pool, role))
			return 4;
		atomic_store(&scene->left, value + 1);
		atomic_store(&scene->right, value + 1);
		if (atomic_load(&scene->inside) != self || atomic_load(&scene->left) != value + 1)
			return 5;
	}
	atomic_fetch_add(&scene->entered, 1);
	atomic_store(&scene->inside, 0);
	return 0;
}

static _Noreturn void crowd_main(struct scene *scene, unsigned seed)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *pool;
	int error = gpool_open(&options, &pool) ? 6 : 0;

	while (!error) {
		struct gpool_role role = GPOOL_ROLE_INIT;
		int timeout_ms = rand_r(&seed) % 4 ? -1 : rand_r(&seed) % 3;
		int result = gpool_role_acquire(pool, "main", timeout_ms, &role);

		if (result == -ETIMEDOUT)
			continue;
		error = result ? 7 : enter(scene, pool, &role, (uint32_t)rand_r(&seed) % 30000);
		if (!error && gpool_role_release(pool, &role))
			error = 8;
	}
	atomic_store(&scene->error, (uint32_t)error);
	_exit(1);
}

static pid_t crowd_start(struct scene *scene, unsigned seed)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		crowd_main(scene, seed);
	}
	return pid;
}

static void test_never_two_holders(void **state)
{
	struct scene *scene = mmap(NULL, sizeof(*scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)getpid(), next = seed;
	pid_t pids[CROWD], late[DEATHS];
	int late_count = 0;

	(void)state;
	assert_ptr_not_equal(scene, MAP_FAILED);
	start(quiet);
	print_message("seed %u\n", seed);
	for (int i = 0; i < CROWD; i++)
		pids[i] = crowd_start(scene, (unsigned)rand_r(&next));
	for (int deaths = 0; deaths < DEATHS && !atomic_load(&scene->error); deaths++) {
		uint32_t entered = atomic_load(&scene->entered), pid;
		int victim = rand_r(&next) % CROWD;

		AWAIT(atomic_load(&scene->entered) > entered || atomic_load(&scene->error));
		/* Every second time, kill the process inside, if it is a child of the test. */
		pid = atomic_load(&scene->inside);
		for (int i = 0; i < CROWD && rand_r(&next) % 2; i++)
			if ((uint32_t)pids[i] == pid)
				victim = i;
		assert_int_equal(kill(pids[victim], SIGKILL), 0);
		if (rand_r(&next) % 2)
			assert_int_equal(waitpid(pids[victim], NULL, 0), pids[victim]);
		else
			late[late_count++] = pids[victim];
		pids[victim] = crowd_start(scene, (unsigned)rand_r(&next));
	}
	for (int i = 0; i < CROWD; i++) {
		assert_int_equal(kill(pids[i], SIGKILL), 0);
		assert_int_equal(waitpid(pids[i], NULL, 0), pids[i]);
	}
	for (int i = 0; i < late_count; i++)
		assert_int_equal(waitpid(late[i], NULL, 0), late[i]);
	assert_int_equal(atomic_load(&scene->error), 0);
	assert_true(atomic_load(&scene->entered) > 0);
	print_message("%u times inside, %u died there, %llu takeovers\n", atomic_load(&scene->entered),
		atomic_load(&scene->found_dead), (unsigned long long)takeovers());
	assert_true(atomic_load(&scene->left) - atomic_load(&scene->right) <= 1);
	AWAIT(holder() == 0 && waiters() == 0);
	munmap(scene, sizeof(*scene));
}

/* ---- names, limits, rights ---- */

static int try_remove(const char *name)
{
	struct msg_role_remove_request request = {.pool = ""};
	struct msg_done_reply done;

	strcpy(request.name, name);
	return ASK_FROM(admin, role_remove_request, &request, done_reply, &done);
}

static void test_names_and_places(void **state)
{
	struct gpool_role roles[POOL_ROLES], more = GPOOL_ROLE_INIT;
	struct gpool *pool, *observer;
	char name[80];

	(void)state;
	start(quiet);
	for (size_t i = 0; i < POOL_ROLES; i++)
		roles[i] = (struct gpool_role)GPOOL_ROLE_INIT;
	pool = open_worker();
	assert_int_equal(gpool_role_acquire(pool, "", 0, &more), -EINVAL);
	assert_int_equal(gpool_role_acquire(pool, NULL, 0, &more), -EINVAL);
	assert_int_equal(gpool_role_acquire(pool, "a\nb", 0, &more), -EINVAL);
	assert_int_equal(gpool_role_acquire(pool, "\xff", 0, &more), -EINVAL);
	assert_int_equal(gpool_role_acquire(pool, "main", -2, &more), -EINVAL);
	memset(name, 'x', sizeof(name));
	name[64] = '\0';
	assert_int_equal(gpool_role_acquire(pool, name, 0, &more), -EINVAL);
	name[63] = '\0';
	assert_int_equal(gpool_role_acquire(pool, name, 0, &roles[0]), 0);
	for (int i = 1; i < POOL_ROLES; i++) {
		snprintf(name, sizeof(name), "role %d", i);
		assert_int_equal(gpool_role_acquire(pool, name, 0, &roles[i]), 0);
	}
	assert_int_equal(gpool_role_acquire(pool, "main", 0, &more), -ENOSPC);
	assert_int_equal(try_remove("role 7"), -EBUSY);
	assert_int_equal(try_remove("main"), -ENXIO);
	assert_int_equal(gpool_role_release(pool, &roles[7]), 0);
	/* A role's record is kept for its name until an admin removes it. */
	assert_int_equal(gpool_role_acquire(pool, "main", 0, &more), -ENOSPC);
	assert_int_equal(try_remove("role 7"), 0);
	assert_int_equal(gpool_role_info(pool, "role 7", NULL, NULL), -ENOENT);
	assert_int_equal(gpool_role_acquire(pool, "main", 0, &more), 0);
	assert_int_equal(more.index, roles[7].index);
	assert_true(more.token > roles[7].token);
	assert_int_equal(gpool_role_check(pool, &roles[7]), -ESTALE);
	gpool_close(pool);

	observer = open_as(GPOOL_OPEN_OBSERVER, NULL, NULL);
	assert_int_equal(gpool_role_acquire(observer, "main", 0, &more), -EPERM);
	assert_int_equal(gpool_role_info(observer, "main", NULL, NULL), 0);
	gpool_close(observer);
}

static void start_tenants(void)
{
	static const char text[] =
		"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; } );\n"
		"tenants = ( { name = \"serving\"; users = [ \"1\" ]; }, { name = \"batch\"; } );\n";
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "%s/gpool-test-%d.conf", temporary_folder(), (int)getpid());
	file = fopen(path, "we");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	start((const char *const[]){"--config", path, NULL});
	unlink(path);
}

static void test_a_role_is_of_one_tenant(void **state)
{
	struct gpool *serving, *batch, *second;
	struct gpool_role role = GPOOL_ROLE_INIT;

	(void)state;
	start_tenants();
	serving = open_as(0, NULL, "serving");
	second = open_as(0, NULL, "serving");
	batch = open_as(0, NULL, "batch");
	assert_int_equal(gpool_role_acquire(serving, "main", 0, &role), 0);
	assert_int_equal(gpool_role_acquire(batch, "main", 0, &role), -EACCES);
	assert_int_equal(gpool_role_acquire(second, "main", 0, &role), -ETIMEDOUT);
	gpool_close(serving);
	/* The refusal is the same if the role has no holder. */
	assert_int_equal(gpool_role_acquire(batch, "main", -1, &role), -EACCES);
	assert_int_equal(gpool_role_acquire(second, "main", -1, &role), 0);
	assert_int_equal(gpool_role_acquire(batch, "mine", -1, &role), 0);
	gpool_close(second);
	assert_int_equal(try_remove("main"), 0);
	assert_int_equal(gpool_role_acquire(batch, "main", -1, &role), 0);
	gpool_close(batch);
}

static void test_tools_see_it(void **state)
{
	static struct msg_roles_reply reply;
	struct msg_roles_request request = {.pool = "p0"};
	struct actor first, second;

	(void)state;
	start(quiet);
	ASK(roles_request, &request, roles_reply, &reply);
	assert_int_equal(reply.roles_count, 0);
	first = actor_start(NULL);
	second = actor_start(NULL);
	assert_int_equal(tell(&first, ORDER_ACQUIRE, -1), 0);
	stand_by(&second, -1);
	ASK(roles_request, &request, roles_reply, &reply);
	assert_int_equal(reply.roles_count, 1);
	assert_string_equal(reply.roles[0].name, "main");
	assert_int_equal(reply.roles[0].session, first.session);
	assert_int_equal(reply.roles[0].pid, first.pid);
	assert_int_equal(reply.roles[0].standbys, 1);
	assert_int_equal(reply.roles[0].token, first.role.token);
	assert_int_equal(reply.roles[0].state, 0);
	assert_int_equal(tell(&first, ORDER_DISCONNECT, 0), 0);
	AWAIT(client_state(first.session) == SESSION_RECORD_CLOSED);
	ASK(roles_request, &request, roles_reply, &reply);
	assert_int_equal(reply.roles[0].state, 1);
	strcpy(request.pool, "none");
	assert_int_equal(ASK_FROM(admin, roles_request, &request, roles_reply, &reply), -ENXIO);
	strcpy(request.pool, "");
	request.first = UINT32_MAX;
	ASK(roles_request, &request, roles_reply, &reply);
	assert_int_equal(reply.roles_count, 0);
	actor_end(&first);
	actor_end(&second);
}

/* ---- messages sent on the socket itself ---- */

static struct msg_role_reply raw(
	const struct gpool *pool, uint64_t sequence, uint32_t verb, const char *name, uint64_t token)
{
	struct msg_role_request request = {.verb = verb, .token = token};
	struct msg_envelope envelope;
	struct msg_role_reply reply;
	uint8_t buffer[MSG_LARGEST_role_reply];
	int length;

	strcpy(request.name, name);
	length = msg_encode_role_request(&request, sequence, pool->token, buffer, sizeof(buffer));
	assert_true(length > 0);
	assert_int_equal(attach_send(pool->socket, buffer, (size_t)length, NULL, 0), 0);
	length = attach_receive(pool->socket, buffer, sizeof(buffer), NULL, 0, NULL, ANSWER_MS);
	assert_true(length > 0);
	assert_int_equal(msg_envelope_read(&envelope, buffer, (size_t)length), 0);
	assert_int_equal(envelope.sequence, sequence);
	assert_int_equal(msg_decode_role_reply(&reply, buffer, (size_t)length), 0);
	return reply;
}

static void test_repeats_and_nonsense(void **state)
{
	uint8_t bytes[MSG_LARGEST_role_request + 1] = {0};
	struct msg_role_request request = {.name = "main"};
	struct gpool *pool, *other;
	struct msg_role_reply reply;
	uint64_t token;
	int length;

	(void)state;
	start(quiet);
	pool = open_worker();
	other = open_worker();
	reply = raw(pool, 9, 1, "main", 0);
	token = reply.token;
	assert_int_equal(reply.state, 1);
	for (int i = 0; i < 3; i++) {
		reply = raw(pool, 9, 1, "main", 0);
		assert_int_equal(reply.state, 1);
		assert_int_equal(reply.token, token);
	}
	for (int i = 0; i < 3; i++)
		assert_int_equal(raw(other, 5, 1, "main", 0).state, 2);
	assert_int_equal(waiters(), 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(raw(other, 6, 2, "main", 0).state, 0);
	assert_int_equal(waiters(), 0);
	assert_int_equal(raw(other, 7, 3, "main", token).error, -ESTALE);
	assert_int_equal(raw(other, 8, 3, "none", token).error, -ENOENT);
	assert_int_equal(raw(other, 9, 5, "main", token).error, -EINVAL);
	/*
	 * Request ROLE_FORGET. For a session that neither waits nor holds, nothing changes. For a standby and for the
	 * holder, each repetition has the same result.
	 */
	assert_int_equal(raw(other, 10, 4, "main", 0).state, 0);
	assert_int_equal(holder(), gpool_session(pool));
	assert_int_equal(raw(other, 10, 1, "main", 0).state, 2);
	for (int i = 0; i < 3; i++)
		assert_int_equal(raw(other, 10, 4, "main", 0).state, 0);
	assert_int_equal(waiters(), 0);
	assert_int_equal(raw(other, 10, 4, "none", 0).error, -ENOENT);
	assert_int_equal(raw(other, 10, 0, "side", 0).state, 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(raw(other, 10, 4, "side", 0).state, 0);
	assert_int_equal(raw(pool, 10, 0, "side", 0).state, 1);
	assert_int_equal(raw(other, 10, 1, "", 0).error, -EINVAL);
	assert_int_equal(raw(pool, 10, 3, "main", token).error, 0);
	assert_int_equal(raw(pool, 10, 3, "main", token).error, -ESTALE);
	assert_int_equal(holder(), 0);

	/*
	 * A message body of a wrong length counts as damage. The sixteenth such message ends the session. Its roles
	 * stay held until its process ends.
	 */
	token = raw(pool, 11, 0, "main", 0).token;
	assert_true(token > 0);
	length = msg_encode_role_request(&request, 12, pool->token, bytes, sizeof(bytes));
	for (int i = 0; i < 16; i++) {
		int wrong = i % 2 ? length - 1 : length + 1;

		bytes[32] = (uint8_t)(wrong - MSG_ENVELOPE_BYTES);
		attach_send(pool->socket, bytes, (size_t)wrong, NULL, 0);
	}
	AWAIT(pool_gone(pool));
	AWAIT(client_state(gpool_session(pool)) == SESSION_RECORD_CLOSED);
	assert_int_equal(holder(), gpool_session(pool));
	assert_int_equal(raw(other, 11, 0, "main", 0).state, 0);
	gpool_close(pool);
	gpool_close(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_take_and_give_back, stop),
		cmocka_unit_test_teardown(test_release_passes_it_on, stop),
		cmocka_unit_test_teardown(test_death_passes_it_on, stop),
		cmocka_unit_test_teardown(test_a_standby_adopts_the_kv_of_the_dead, stop),
		cmocka_unit_test_teardown(test_a_stopped_holder_keeps_it, stop),
		cmocka_unit_test_teardown(test_a_closed_connection_keeps_it, stop),
		cmocka_unit_test_teardown(test_a_child_keeps_nothing, stop),
		cmocka_unit_test_teardown(test_a_forked_child_may_not, stop),
		cmocka_unit_test_teardown(test_standbys_in_order_of_arrival, stop),
		cmocka_unit_test_teardown(test_a_closed_standby_waits_for_nothing, stop),
		cmocka_unit_test_teardown(test_two_threads_are_one_session, stop),
		cmocka_unit_test_teardown(test_time_out_and_grant_may_cross, stop),
		cmocka_unit_test_teardown(test_time_out_and_grant_do_cross, stop),
		cmocka_unit_test_teardown(test_never_two_holders, stop),
		cmocka_unit_test_teardown(test_names_and_places, stop),
		cmocka_unit_test_teardown(test_a_role_is_of_one_tenant, stop),
		cmocka_unit_test_teardown(test_tools_see_it, stop),
		cmocka_unit_test_teardown(test_repeats_and_nonsense, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
