/*
 * test_rights_sessions.c - tenants and users that attach without limit.
 *
 * Goal: neither a tenant nor a user nor observers can use up limits.sessions. Other tenants get their guaranteed number
 * of sessions, and root's tools can always attach. Refusals name the limit. The limits hold after a restart of the
 * agent, and a reload changes them.
 *
 * Method: as root, one child for each of several users attaches until it is refused, and keeps its sessions. Without
 * root no second user is available, and the test is skipped.
 *
 * Requirements: S9.
 */
#include "tests/integration/keeper.h"
#include "tests/lib/temporary.h"

#include "agent/session/session.h"
#include "proto/attach.h"
#include "proto/codec.h"
#include "shm/pool_segment.h"

#include <errno.h>
#include <sys/stat.h>

enum {
	SESSIONS = 64,
	KEPT = SESSIONS / 8,
	SHARED = SESSIONS - KEPT,
	GUARANTEED = SHARED / 2 / 2, /* half of them, for two tenants */
	USER_MOST = SHARED * 3 / 4,
	RED_USER = 1001,
	BLUE_USER = 1002,
	OTHER_USER = 1003,
	CROWDS = 5,
};

#define POOLS \
	"group = \"\";\n" \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; } );\n" \
	"lease: { initial_pages = 0; };\n"
#define TENANTS \
	"tenants = ( { name = \"red\"; }, { name = \"blue\"; users = [ \"1002\" ]; minimum = \"8 pages\"; } );\n"

/* A process of one user that attaches until it is refused. */
struct crowd {
	pid_t pid;
	int end; /* closing it ends the process */
	struct seen {
		uint32_t sessions;
		int error; /* error of the refused attach; 0: no attach was refused */
		char said[300];
	} seen;
};

static char config_path[64];
static struct crowd crowds[CROWDS];

/* Attach like the library, but without its limit of 16 sessions per process. The connection stays open. */
static int attach(uint32_t kind, char *said, size_t bytes)
{
	static struct msg_attach_request request;
	static struct msg_attach_reply reply;
	uint8_t buffer[MSG_LARGEST_attach_reply];
	int fds[ATTACH_FDS_MAX], socket, length;
	size_t fd_count = 0;
	char path[160];

	request = (struct msg_attach_request){.layout_version = POOL_LAYOUT_VERSION, .kind = kind};
	strcpy(request.name, "crowd");
	snprintf(path, sizeof(path), "%s/attach", harness.directory);
	socket = attach_connect(path, END_MS);
	if (socket < 0)
		return socket;
	length = msg_encode_attach_request(&request, 0, NULL, buffer, sizeof(buffer));
	if (length < 0 || attach_send(socket, buffer, (size_t)length, NULL, 0))
		return -EPIPE;
	length = attach_receive(socket, buffer, sizeof(buffer), fds, ATTACH_FDS_MAX, &fd_count, END_MS);
	if (length < 0)
		return length;
	if (msg_decode_attach_reply(&reply, buffer, (size_t)length))
		return -EPROTO;
	for (size_t i = 0; i < fd_count; i++)
		close(fds[i]);
	snprintf(said, bytes, "%s", reply.text);
	return reply.error;
}

static int crowd_run(struct crowd *crowd, uid_t uid, uint32_t kind, int ready, int end)
{
	struct seen seen;
	char byte;

	if (uid && (setgroups(0, NULL) || setgid(uid) || setuid(uid)))
		return 1;
	while (crowd->seen.sessions <= SESSIONS &&
		!(crowd->seen.error = attach(kind, crowd->seen.said, sizeof(crowd->seen.said))))
		crowd->seen.sessions++;
	seen = crowd->seen;
	if (write(ready, &seen, sizeof(seen)) != sizeof(seen))
		return 1;
	return read(end, &byte, 1) == 0 ? 0 : 1;
}

/* Start a crowd. `sessions` is the expected number of sessions, `limit` the name in the expected refusal. */
static struct crowd *crowd_start(uid_t uid, uint32_t kind, uint32_t sessions, const char *limit)
{
	struct crowd *crowd = crowds;
	int ready[2], end[2];

	while (crowd->pid)
		crowd++;
	assert_true(crowd < crowds + CROWDS);
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	assert_int_equal(pipe2(end, O_CLOEXEC), 0);
	memset(crowd, 0, sizeof(*crowd));
	fflush(stdout);
	crowd->pid = fork();
	assert_true(crowd->pid >= 0);
	if (!crowd->pid) {
		close(end[1]);
		_exit(crowd_run(crowd, uid, kind, ready[1], end[0]));
	}
	close(ready[1]);
	close(end[0]);
	crowd->end = end[1];
	assert_int_equal(read(ready[0], &crowd->seen, sizeof(crowd->seen)), sizeof(crowd->seen));
	close(ready[0]);
	if (crowd->seen.sessions != sessions || crowd->seen.error != -EUSERS || !strstr(crowd->seen.said, limit))
		fail_msg("user %u has %u sessions, then %d: %s", uid, crowd->seen.sessions, crowd->seen.error,
			crowd->seen.said);
	return crowd;
}

/* Close all pipes first, because a child has copies of the ends of earlier ones. */
static int crowds_end(void **state)
{
	for (struct crowd *crowd = crowds; crowd < crowds + CROWDS; crowd++)
		if (crowd->pid > 0)
			close(crowd->end);
	for (struct crowd *crowd = crowds; crowd < crowds + CROWDS; crowd++) {
		int status = 0;

		if (crowd->pid <= 0)
			continue;
		assert_int_equal(waitpid(crowd->pid, &status, 0), crowd->pid);
		crowd->pid = 0;
		assert_int_equal(status, 0);
	}
	unlink(config_path);
	return harness.pid > 0 ? stop(state) : 0;
}

static void config_write(const char *tenants, const char *limits)
{
	char text[2048];
	int length =
		snprintf(text, sizeof(text), "%s%slimits = { sessions = %d; %s };\n", POOLS, tenants, SESSIONS, limits);

	file_write(config_path, text, (size_t)length);
}

static void begin(const char *tenants, const char *limits)
{
	char path[160];

	if (geteuid() != 0) {
		puts("needs root, to be several users");
		skip();
	}
	alarm(STUCK_SECONDS);
	snprintf(config_path, sizeof(config_path), "%s/gpool-sessions-%d.conf", temporary_folder(), (int)getpid());
	config_write(tenants, limits);
	harness_start(&harness, (const char *const[]){"--config", config_path, NULL});
	/* Permit every user to connect to the socket. */
	snprintf(path, sizeof(path), "%s/attach", harness.directory);
	assert_int_equal(chmod(path, 0666), 0);
}

static void tools_attach(void)
{
	struct result result = poolctl("--dir", harness.directory, "status", NULL);

	expect(&result, OK);
	result_free(&result);
	assert_int_equal(harness_check(&harness), 0);
}

static void test_a_tenant_leaves_others_their_sessions(void **state)
{
	(void)state;
	begin(TENANTS, "user_sessions = 100;");
	crowd_start(RED_USER, SESSION_WORKER, SHARED - GUARANTEED, "limits.tenant_sessions");
	tools_attach();
	kill_and_await(child_named(harness.pid, "gpoold-agent"), SIGKILL);
	agent_seen();
	/* Root's workers belong to the tenant as well. */
	crowd_start(0, SESSION_WORKER, 0, "limits.tenant_sessions");
	crowd_start(BLUE_USER, SESSION_WORKER, GUARANTEED, "limits.kept_sessions");
	crowd_start(OTHER_USER, SESSION_OBSERVER, KEPT / 4, "limits.kept_sessions");
	crowd_start(RED_USER, SESSION_OBSERVER, KEPT / 4, "limits.kept_sessions");
	tools_attach();
}

/*
 * A tenant's observers use sessions that are kept for observers, not those that are guaranteed to other tenants. One
 * user can have half of them, so the observers of another user of the tenant, such as the exporter's, can attach.
 */
static void test_observers_leave_tenants_their_sessions(void **state)
{
	(void)state;
	begin(TENANTS, "user_sessions = 100;");
	crowd_start(RED_USER, SESSION_WORKER, SHARED - GUARANTEED, "limits.tenant_sessions");
	crowd_start(RED_USER, SESSION_OBSERVER, KEPT / 4, "limits.tenant_sessions");
	crowd_start(OTHER_USER, SESSION_OBSERVER, KEPT / 4, "limits.tenant_sessions");
	crowd_start(BLUE_USER, SESSION_WORKER, GUARANTEED, "limits.kept_sessions");
	tools_attach();
}

static void test_a_user_leaves_others_sessions(void **state)
{
	struct result result;

	(void)state;
	begin("", "");
	crowd_start(RED_USER, SESSION_WORKER, USER_MOST, "limits.user_sessions");
	/* The user cannot attach as an observer either. */
	crowd_start(RED_USER, SESSION_OBSERVER, 0, "limits.user_sessions");
	config_write("", "user_sessions = 80;");
	result = poolctl("--dir", harness.directory, "reload", NULL);
	expect(&result, OK);
	result_free(&result);
	crowd_start(RED_USER, SESSION_WORKER, (SHARED * 80 + 99) / 100 - USER_MOST, "limits.user_sessions");
	/* Root's workers are limited only by the remaining number of sessions. */
	crowd_start(0, SESSION_WORKER, SHARED - (SHARED * 80 + 99) / 100, "limits.kept_sessions");
	tools_attach();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_a_tenant_leaves_others_their_sessions, crowds_end),
		cmocka_unit_test_teardown(test_observers_leave_tenants_their_sessions, crowds_end),
		cmocka_unit_test_teardown(test_a_user_leaves_others_sessions, crowds_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
