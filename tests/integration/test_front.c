/*
 * test_front.c - the front process between honest clients, hostile peers and an agent.
 *
 * Goal: requests that pass the checks reach the agent, and replies are returned; other requests are refused or dropped.
 * A hostile peer can at most make the front die. The next front then serves again, and descriptors do not accumulate.
 *
 * Method: front_run() runs in a forked child, as the keeper would start it. This process is the agent, so it never
 * calls nanomsg itself. Honest clients are forked children that use client/core/control.c and client/core/events.c.
 * Hostile clients, and those that must send exact bytes, write nanomsg's wire format to a plain socket: 8 bytes of
 * greeting, then messages of a type byte (1), a u64 length (big-endian) and, for REQ, a u32 request id with the top bit
 * set. An alarm ends a test that would wait forever.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <nanomsg/nn.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "agent/front/front.h"
#include "client/core/control.h"
#include "client/core/events.h"
#include "proto/attach.h"
#include "proto/codec.h"
#include "tests/lib/temporary.h"

enum { SILENCE_MS = 100 }; /* time in which no message may arrive */
enum {
	STUCK_SECONDS = 1000,
	SP_REQ = 0x30,
	SP_REP = 0x31,
	SP_PUB = 0x20,
	SP_SUB = 0x21,
	FRAME_HEAD = 9,
	ID_BYTES = 4,
	MESSAGE_MAX = 4096, /* limit of the fronts in this test */
};

static const uint8_t token[MSG_TOKEN_BYTES] = {0xaa, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const uint8_t other_token[MSG_TOKEN_BYTES] = {0xaa, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16};

static const uint8_t third_token[MSG_TOKEN_BYTES] = {0xbb, 1};

struct fixture {
	char folder[64];
	char control_path[96];
	char events_path[96];
	char control_url[112];
	char events_url[112];
	int descriptors; /* of this process, before a front was started */
	pid_t front;
	int pidfd;
	int agent; /* this process's end of the front's socket */
};

/* ---- the front ---- */

static int count_descriptors(pid_t pid)
{
	char path[64];
	DIR *folder;
	int count = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	folder = opendir(path);
	assert_non_null(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static void send_to_front(const struct fixture *fixture, uint64_t id, const uint8_t *message, size_t length)
{
	static uint8_t packet[FRONT_ID_BYTES + MSG_BYTES_MAX];

	for (int i = 0; i < FRONT_ID_BYTES; i++)
		packet[i] = (uint8_t)(id >> (8 * i));
	memcpy(packet + FRONT_ID_BYTES, message, length);
	assert_int_equal(attach_send(fixture->agent, packet, FRONT_ID_BYTES + length, NULL, 0), 0);
}

static void announce(const struct fixture *fixture, const uint8_t *bytes, uint8_t valid)
{
	struct msg_front_token notice = {.valid = valid};
	uint8_t message[MSG_LARGEST_front_token];
	int length;

	memcpy(notice.token, bytes, MSG_TOKEN_BYTES);
	length = msg_encode_front_token(&notice, 0, NULL, message, sizeof(message));
	assert_true(length > 0);
	send_to_front(fixture, 0, message, (size_t)length);
}

/* Fork a front with these options. URLs that are not set are those of the fixture. */
static void start_front(struct fixture *fixture, struct front_options options)
{
	int pair[2];
	pid_t keeper = getpid();

	if (!options.control_url)
		options.control_url = fixture->control_url;
	if (!options.events_url)
		options.events_url = fixture->events_url;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	fixture->front = fork();
	assert_true(fixture->front >= 0);
	if (fixture->front == 0) {
		options.parent = keeper;
		options.agent_socket = pair[1];
		/* like the keeper, pass only the needed descriptors */
		if (pair[1] > 3)
			close_range(3, (unsigned)pair[1] - 1, 0);
		close_range((unsigned)pair[1] + 1, ~0u, 0);
		alarm(0);
		_exit(-front_run(&options));
	}
	close(pair[1]);
	fixture->agent = pair[0];
	fixture->pidfd = (int)syscall(SYS_pidfd_open, fixture->front, 0);
	assert_true(fixture->pidfd >= 0);
}

static struct front_options usual_options(void)
{
	return (struct front_options){.uid = (uid_t)-1,
		.gid = (gid_t)-1,
		.message_bytes_max = MESSAGE_MAX,
		.requests_per_second = 0,
		.seccomp = true};
}

static void start_usual_front(struct fixture *fixture)
{
	start_front(fixture, usual_options());
	announce(fixture, token, true);
	announce(fixture, token, FRONT_TOKENS_TOLD);
}

/* Wait for the end of the front. Return its status, as from waitpid(). */
static int reap_front(struct fixture *fixture)
{
	struct pollfd wait = {.fd = fixture->pidfd, .events = POLLIN};
	int status;

	assert_int_equal(poll(&wait, 1, -1), 1);
	assert_int_equal(waitpid(fixture->front, &status, 0), fixture->front);
	close(fixture->pidfd);
	close(fixture->agent);
	fixture->front = -1;
	return status;
}

/* Close the agent's end; the front must end without an error. */
static void stop_front(struct fixture *fixture)
{
	int status;

	shutdown(fixture->agent, SHUT_RDWR);
	status = reap_front(fixture);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("the front ended with status %#x", (unsigned)status);
}

/* Kill the front by its pidfd, which cannot refer to another process. */
static void kill_front(struct fixture *fixture)
{
	assert_int_equal(syscall(SYS_pidfd_send_signal, fixture->pidfd, SIGKILL, NULL, 0), 0);
	reap_front(fixture);
}

static bool front_is_dead(const struct fixture *fixture)
{
	struct pollfd wait = {.fd = fixture->pidfd, .events = POLLIN};

	return poll(&wait, 1, 0) == 1;
}

static int set_up(void **state)
{
	static struct fixture fixture;

	alarm(STUCK_SECONDS);
	memset(&fixture, 0, sizeof(fixture));
	fixture.descriptors = count_descriptors(getpid());
	fixture.front = -1;
	snprintf(fixture.folder, sizeof(fixture.folder), "%s/gpool-front-XXXXXX", temporary_folder());
	assert_non_null(mkdtemp(fixture.folder));
	snprintf(fixture.control_path, sizeof(fixture.control_path), "%s/control", fixture.folder);
	snprintf(fixture.events_path, sizeof(fixture.events_path), "%s/events", fixture.folder);
	snprintf(fixture.control_url, sizeof(fixture.control_url), "ipc://%s", fixture.control_path);
	snprintf(fixture.events_url, sizeof(fixture.events_url), "ipc://%s", fixture.events_path);
	*state = &fixture;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *fixture = *state;

	if (fixture->front > 0)
		kill_front(fixture);
	unlink(fixture->control_path);
	unlink(fixture->events_path);
	assert_int_equal(rmdir(fixture->folder), 0);
	assert_int_equal(count_descriptors(getpid()), fixture->descriptors);
	alarm(0);
	return 0;
}

/* ---- this process as the agent ---- */

struct request {
	uint64_t id;
	size_t length;
	struct msg_envelope envelope;
	uint8_t message[MSG_BYTES_MAX];
};

static void take_request(const struct fixture *fixture, struct request *request)
{
	static uint8_t packet[FRONT_ID_BYTES + MSG_BYTES_MAX];
	int received = attach_receive(fixture->agent, packet, sizeof(packet), NULL, 0, NULL, -1);

	assert_true(received > FRONT_ID_BYTES);
	request->id = 0;
	for (int i = 0; i < FRONT_ID_BYTES; i++)
		request->id |= (uint64_t)packet[i] << (8 * i);
	request->length = (size_t)received - FRONT_ID_BYTES;
	memcpy(request->message, packet + FRONT_ID_BYTES, request->length);
	assert_true(request->id != 0);
	assert_int_equal(msg_envelope_read(&request->envelope, request->message, request->length), 0);
}

static void answer_done(const struct fixture *fixture, const struct request *request, uint64_t value)
{
	const struct msg_done_reply reply = {.value = value, .text = "done"};
	uint8_t message[MSG_LARGEST_done_reply];
	int length = msg_encode_done_reply(&reply, request->envelope.sequence, NULL, message, sizeof(message));

	assert_true(length > 0);
	send_to_front(fixture, request->id, message, (size_t)length);
}

static void expect_no_request(const struct fixture *fixture)
{
	uint8_t byte;

	assert_int_equal(attach_receive(fixture->agent, &byte, 1, NULL, 0, NULL, 0), -EAGAIN);
}

/* ---- peers that write the wire format themselves ---- */

/* Connect as soon as a process listens. */
static int connect_raw(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	for (;;) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		assert_true(fd >= 0);
		if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
			return fd;
		assert_true(errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN);
		close(fd);
		poll(NULL, 0, 1); /* no event reports that the front listens */
	}
}

static void send_all(int fd, const void *bytes, size_t count)
{
	assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
}

static void receive_all(int fd, uint8_t *to, size_t count)
{
	assert_int_equal(recv(fd, to, count, MSG_WAITALL), count);
}

static void greet(int fd, uint8_t protocol)
{
	const uint8_t ours[8] = {0, 'S', 'P', 0, 0, protocol, 0, 0};
	uint8_t theirs[8];

	send_all(fd, ours, sizeof(ours));
	receive_all(fd, theirs, sizeof(theirs));
	assert_memory_equal(theirs, ours, 4);
}

static int connect_req(const struct fixture *fixture)
{
	int fd = connect_raw(fixture->control_path);

	greet(fd, SP_REQ);
	return fd;
}

static size_t frame(uint8_t *to, uint8_t type, uint64_t length)
{
	to[0] = type;
	for (int i = 0; i < 8; i++)
		to[1 + i] = (uint8_t)(length >> (8 * (7 - i)));
	return FRAME_HEAD;
}

static void send_req(int fd, uint32_t id, const uint8_t *message, size_t length)
{
	static uint8_t bytes[FRAME_HEAD + ID_BYTES + MSG_BYTES_MAX];
	size_t used = frame(bytes, 1, ID_BYTES + length);

	id |= 0x80000000u;
	for (int i = 0; i < ID_BYTES; i++)
		bytes[used++] = (uint8_t)(id >> (8 * (3 - i)));
	memcpy(bytes + used, message, length);
	send_all(fd, bytes, used + length);
}

static void send_version_request(int fd, uint32_t id, const uint8_t *with_token, uint64_t sequence)
{
	const struct msg_version_request request = {0};
	uint8_t message[MSG_LARGEST_version_request];
	int length = msg_encode_version_request(&request, sequence, with_token, message, sizeof(message));

	assert_true(length > 0);
	send_req(fd, id, message, (size_t)length);
}

/* Receive one reply, its request id and message. Return the length of the message. */
static size_t receive_rep(int fd, uint32_t *id, uint8_t *message, size_t capacity)
{
	uint8_t head[FRAME_HEAD + ID_BYTES];
	uint64_t length = 0;

	receive_all(fd, head, sizeof(head));
	assert_int_equal(head[0], 1);
	for (int i = 0; i < 8; i++)
		length = length << 8 | head[1 + i];
	assert_in_range(length, ID_BYTES + 1, ID_BYTES + capacity);
	*id = 0;
	for (int i = 0; i < ID_BYTES; i++)
		*id = *id << 8 | head[FRAME_HEAD + i];
	*id &= 0x7fffffffu;
	receive_all(fd, message, (size_t)length - ID_BYTES);
	return (size_t)length - ID_BYTES;
}

/* Check that the next reply is an error_reply to this request. */
static void expect_error(int fd, uint32_t id, uint64_t sequence, int error)
{
	uint8_t message[MSG_LARGEST_error_reply];
	struct msg_error_reply reply;
	struct msg_envelope envelope;
	uint32_t answered;
	size_t length = receive_rep(fd, &answered, message, sizeof(message));

	assert_int_equal(answered, id);
	assert_int_equal(msg_decode_error_reply(&reply, message, length), 0);
	assert_int_equal(reply.error, error);
	assert_true(strlen(reply.text) > 0);
	assert_int_equal(msg_envelope_read(&envelope, message, length), 0);
	assert_true(envelope.sequence == sequence);
}

static void expect_done(int fd, uint32_t id, uint64_t sequence, uint64_t value)
{
	uint8_t message[MSG_LARGEST_done_reply];
	struct msg_done_reply reply;
	struct msg_envelope envelope;
	uint32_t answered;
	size_t length = receive_rep(fd, &answered, message, sizeof(message));

	assert_int_equal(answered, id);
	assert_int_equal(msg_decode_done_reply(&reply, message, length), 0);
	assert_true(reply.value == value);
	assert_int_equal(msg_envelope_read(&envelope, message, length), 0);
	assert_true(envelope.sequence == sequence);
}

/* Send a request through all stages: client, front, agent, front, client. */
static void expect_service(struct fixture *fixture)
{
	static struct request request;
	int fd = connect_req(fixture);

	send_version_request(fd, 77, token, 12345);
	take_request(fixture, &request);
	assert_int_equal(request.envelope.type, MSG_TYPE_version_request);
	answer_done(fixture, &request, 99);
	expect_done(fd, 77, 12345, 99);
	close(fd);
}

/* ---- honest clients: children that use nanomsg ---- */

static pid_t start_client(const struct fixture *fixture, int (*run)(const struct fixture *fixture))
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		alarm(STUCK_SECONDS);
		_exit(run(fixture));
	}
	return pid;
}

static void expect_client_ok(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("the client ended with status %#x; an exit status is the line that failed", (unsigned)status);
}

/* In a child: exit with the number of the line modulo 255, which fits into an exit status. */
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "test_front.c:%d: client: %s\n", __LINE__, #condition); \
			_exit(1 + __LINE__ % 255); \
		} \
	} while (0)

static int call_version(
	struct channel *control, const uint8_t *with_token, uint8_t *reply, size_t capacity, int timeout_ms)
{
	const struct msg_version_request request = {0};
	uint8_t message[MSG_LARGEST_version_request];
	int length = msg_encode_version_request(&request, 0, NULL, message, sizeof(message));

	CHECK(length > 0);
	return control_call(control, with_token, message, (size_t)length, reply, capacity, timeout_ms);
}

static int client_asks_three_times(const struct fixture *fixture)
{
	uint8_t reply[MSG_LARGEST_done_reply];
	struct msg_done_reply done;
	struct channel *control;

	CHECK(control_open(fixture->control_url, &control) == 0);
	for (uint64_t i = 1; i <= 3; i++) {
		int length = call_version(control, token, reply, sizeof(reply), -1);

		CHECK(length > 0 && msg_decode_done_reply(&done, reply, (size_t)length) == 0 && done.value == i);
	}
	channel_close(control);
	return 0;
}

/* Requirements: C3. */
static void test_requests_reach_the_agent_and_answers_the_client(void **state)
{
	struct fixture *fixture = *state;
	static struct request request;
	uint64_t last = 0;
	pid_t client;

	start_usual_front(fixture);
	client = start_client(fixture, client_asks_three_times);
	for (uint64_t i = 1; i <= 3; i++) {
		do /* REQ may have sent the request twice; the sequence number identifies it */
			take_request(fixture, &request);
		while (request.envelope.sequence == last);
		assert_true(request.envelope.sequence > last);
		last = request.envelope.sequence;
		assert_int_equal(request.envelope.type, MSG_TYPE_version_request);
		assert_memory_equal(request.envelope.token, token, MSG_TOKEN_BYTES);
		answer_done(fixture, &request, i);
	}
	expect_client_ok(client);
	stop_front(fixture);
}

static int client_is_not_answered(const struct fixture *fixture)
{
	uint8_t reply[MSG_LARGEST_done_reply];
	uint8_t message[MSG_ENVELOPE_BYTES] = {0};
	struct channel *control;
	pid_t child;
	int status;

	CHECK(control_open(fixture->control_url, &control) == 0);
	CHECK(call_version(control, token, reply, sizeof(reply), 50) == -ETIMEDOUT);
	CHECK(control_call(control, token, message, sizeof(message) - 1, reply, sizeof(reply), 0) == -EINVAL);
	CHECK(control_call(control, token, message, MSG_BYTES_MAX + 1, reply, sizeof(reply), 0) == -EMSGSIZE);
	/* a forked child may close the channel, but not use it */
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(call_version(control, token, reply, sizeof(reply), 0) == -ECHILD);
		channel_close(control);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	channel_close(control);
	channel_close(NULL);
	CHECK(control_open("nothing", &control) == -EINVAL);
	return 0;
}

static void test_call_without_front_times_out(void **state)
{
	struct fixture *fixture = *state;

	expect_client_ok(start_client(fixture, client_is_not_answered));
}

/* A client that sends a request before a front exists, or while it is dead, still gets a reply. */
static void test_client_survives_a_restart(void **state)
{
	struct fixture *fixture = *state;
	static struct request request;
	pid_t client = start_client(fixture, client_asks_three_times);

	for (uint64_t i = 1; i <= 3; i++) {
		start_usual_front(fixture);
		take_request(fixture, &request);
		if (i == 2) { /* the front dies during a request */
			kill_front(fixture);
			start_usual_front(fixture);
			take_request(fixture, &request);
		}
		answer_done(fixture, &request, i);
		if (i < 3) {
			/* the next request shows that the reply has arrived */
			uint64_t last = request.envelope.sequence;

			do
				take_request(fixture, &request);
			while (request.envelope.sequence == last);
			kill_front(fixture);
		}
	}
	expect_client_ok(client);
	stop_front(fixture);
}

/* ---- connections without a live peer ---- */

static int listen_raw(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 4), 0);
	return fd;
}

/* Accept a client's connection, and greet the client like a front. */
static int accept_raw(int listener, uint8_t protocol)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	assert_true(fd >= 0);
	greet(fd, protocol);
	return fd;
}

static int client_asks_once(const struct fixture *fixture)
{
	uint8_t reply[MSG_LARGEST_done_reply];
	struct channel *control;

	CHECK(control_open(fixture->control_url, &control) == 0);
	CHECK(call_version(control, token, reply, sizeof(reply), -1) > 0);
	channel_close(control);
	return 0;
}

/*
 * Read a version_request from a connection after the greeting, and reply to it. Return true if both succeed, or false
 * if the client has closed the connection.
 */
static bool answer_raw(int fd)
{
	const struct msg_done_reply done = {.text = "done"};
	uint8_t request[FRAME_HEAD + ID_BYTES + MSG_ENVELOPE_BYTES],
		reply[FRAME_HEAD + ID_BYTES + MSG_LARGEST_done_reply];
	struct msg_envelope envelope;
	int length;

	if (recv(fd, request, sizeof(request), MSG_WAITALL) != sizeof(request))
		return false;
	assert_int_equal(msg_envelope_read(&envelope, request + FRAME_HEAD + ID_BYTES, MSG_ENVELOPE_BYTES), 0);
	length = msg_encode_done_reply(
		&done, envelope.sequence, NULL, reply + FRAME_HEAD + ID_BYTES, MSG_LARGEST_done_reply);
	assert_true(length > 0);
	frame(reply, 1, ID_BYTES + (size_t)length);
	memcpy(reply + FRAME_HEAD, request + FRAME_HEAD, ID_BYTES);
	return send(fd, reply, FRAME_HEAD + ID_BYTES + (size_t)length, MSG_NOSIGNAL) > 0;
}

/*
 * The test reads requests on the first connection and never replies; nanomsg alone would use that connection forever.
 * On a busy machine the client may also abandon further connections before they get a reply.
 */
static void test_a_silent_connection_is_closed(void **state)
{
	struct fixture *fixture = *state;
	const uint8_t greeting[8] = {0, 'S', 'P', 0, 0, SP_REP, 0, 0};
	uint8_t theirs[sizeof(greeting)];
	int listener = listen_raw(fixture->control_path), connections = 0, fd = -1;
	pid_t client = start_client(fixture, client_asks_once);
	struct pollfd wait[] = {
		{.fd = (int)syscall(SYS_pidfd_open, client, 0), .events = POLLIN}, {.fd = listener, .events = POLLIN}};

	assert_true(wait[0].fd >= 0);
	while (poll(wait, 2, -1) > 0 && !wait[0].revents) {
		int next = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		assert_true(next >= 0);
		if (fd >= 0)
			close(fd);
		fd = next;
		if (send(fd, greeting, sizeof(greeting), MSG_NOSIGNAL) > 0 &&
			recv(fd, theirs, sizeof(theirs), MSG_WAITALL) > 0 && connections++)
			answer_raw(fd);
	}
	expect_client_ok(client);
	assert_true(connections >= 2);
	close(wait[0].fd);
	close(fd);
	close(listener);
}

/* NULL in builds without a sanitizer. */
extern int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static int missed[2]; /* a pipe: a byte for each reply that the client no longer waits for */

/* Send a request without waiting for its reply, and continue when nanomsg has received the reply. */
static void miss_an_answer(struct channel *control)
{
	uint8_t reply[MSG_LARGEST_done_reply];
	struct pollfd arrived = {.events = POLLIN};
	size_t size = sizeof(arrived.fd);

	CHECK(call_version(control, token, reply, sizeof(reply), 0) == -ETIMEDOUT);
	CHECK(write(missed[1], "", 1) == 1);
	CHECK(nn_getsockopt(channel_socket(control), NN_SOL_SOCKET, NN_RCVFD, &arrived.fd, &size) == 0);
	CHECK(poll(&arrived, 1, -1) == 1);
}

static int client_is_answered_late(const struct fixture *fixture)
{
	struct channel *control;

	CHECK(control_open(fixture->control_url, &control) == 0);
	miss_an_answer(control);
	miss_an_answer(control);
	channel_close(control);
	if (__lsan_do_recoverable_leak_check)
		CHECK(__lsan_do_recoverable_leak_check() == 0);
	return 0;
}

/*
 * If the client did not wait for the reply to a request, the next request must use another connection: nanomsg would
 * leak the late reply.
 */
static void test_a_late_answer_is_discarded(void **state)
{
	struct fixture *fixture = *state;
	uint8_t byte;
	int listener = listen_raw(fixture->control_path), first, second;
	pid_t client;

	assert_int_equal(pipe(missed), 0);
	client = start_client(fixture, client_is_answered_late);
	first = accept_raw(listener, SP_REP);
	assert_int_equal(read(missed[0], &byte, 1), 1);
	assert_true(answer_raw(first));
	assert_int_equal(recv(first, &byte, 1, 0), 0);
	second = accept_raw(listener, SP_REP);
	assert_int_equal(read(missed[0], &byte, 1), 1);
	assert_true(answer_raw(second));
	expect_client_ok(client);
	close(missed[0]);
	close(missed[1]);
	close(second);
	close(first);
	close(listener);
}

static int client_listens(const struct fixture *fixture)
{
	struct msg_event event;
	struct channel *events;

	CHECK(events_open(fixture->events_url, &events) == 0);
	CHECK(events_receive(events, -1, &event) == 0 && event.value == 42);
	channel_close(events);
	return 0;
}

/* Empty messages keep a connection alive, and are not events. */
static void test_a_silent_subscription_is_closed(void **state)
{
	struct fixture *fixture = *state;
	const struct msg_event event = {.kind = 2, .value = 42, .pool = "p", .text = "something happened"};
	uint8_t message[MSG_LARGEST_event], head[FRAME_HEAD];
	int listener = listen_raw(fixture->events_path), silent, fd;
	int length = msg_encode_event(&event, 0, NULL, message, sizeof(message));
	pid_t client = start_client(fixture, client_listens);

	silent = accept_raw(listener, SP_PUB);
	frame(head, 1, 0);
	send_all(silent, head, sizeof(head));
	fd = accept_raw(listener, SP_PUB);
	frame(head, 1, (size_t)length);
	send_all(fd, head, sizeof(head));
	send_all(fd, message, (size_t)length);
	expect_client_ok(client);
	close(fd);
	close(silent);
	close(listener);
}

static void test_the_front_beats(void **state)
{
	struct fixture *fixture = *state;
	uint8_t received[FRAME_HEAD], empty[FRAME_HEAD];
	int fd;

	start_usual_front(fixture);
	fd = connect_raw(fixture->events_path);
	greet(fd, SP_SUB);
	frame(empty, 1, 0);
	receive_all(fd, received, sizeof(received));
	assert_memory_equal(received, empty, sizeof(empty));
	close(fd);
	stop_front(fixture);
}

/*
 * A front that has not received all tokens yet does not reply to any request, because an unknown token may be valid.
 * Once it has all tokens, it replies at once.
 */
static void start_front_that_learns(struct fixture *fixture)
{
	struct pollfd wait = {.events = POLLIN};
	int fd;

	start_front(fixture, usual_options());
	announce(fixture, token, true);
	fd = wait.fd = connect_req(fixture);
	send_version_request(fd, 1, other_token, 1001);
	assert_int_equal(poll(&wait, 1, SILENCE_MS), 0);
	announce(fixture, token, FRONT_TOKENS_TOLD);
	expect_error(fd, 1, 1001, -EACCES);
	close(fd);
}

/* Requirements: S9. */
static void test_tokens_are_checked(void **state)
{
	struct fixture *fixture = *state;
	static struct request request;
	struct pollfd unanswered = {.events = POLLIN};
	int fd;

	start_front_that_learns(fixture);
	fd = connect_req(fixture);
	expect_no_request(fixture);

	/* a new token is valid at once */
	announce(fixture, other_token, true);
	send_version_request(fd, 50, other_token, 50);
	take_request(fixture, &request);
	assert_memory_equal(request.envelope.token, other_token, MSG_TOKEN_BYTES);
	answer_done(fixture, &request, 1);
	expect_done(fd, 50, 50, 1);

	/* while tokens follow, a request with an unknown token is not answered, and one with a known token is */
	announce(fixture, token, FRONT_TOKENS_FOLLOW);
	unanswered.fd = connect_req(fixture);
	send_version_request(unanswered.fd, 60, third_token, 60);
	expect_service(fixture);
	assert_int_equal(poll(&unanswered, 1, SILENCE_MS), 0);
	close(unanswered.fd);
	announce(fixture, token, FRONT_TOKENS_TOLD);
	send_version_request(fd, 61, third_token, 61);
	expect_error(fd, 61, 61, -EACCES);

	/* a token that the agent withdraws is invalid at once; its neighbor stays valid */
	announce(fixture, other_token, false);
	send_version_request(fd, 51, other_token, 51);
	expect_error(fd, 51, 51, -EACCES);
	send_version_request(fd, 52, NULL, 52);
	expect_error(fd, 52, 52, -EACCES);
	expect_no_request(fixture);
	close(fd);
	expect_service(fixture);
	stop_front(fixture);
}

/* The agent announces a token and the client uses it at once. The front must know the token, whatever it is doing. */
static void test_announced_tokens_are_known_at_once(void **state)
{
	struct fixture *fixture = *state;
	static struct request request;
	uint8_t fresh[MSG_TOKEN_BYTES] = {7};
	int fd;

	/* a front without all tokens would send no reply instead of a refusal */
	start_front_that_learns(fixture);
	fd = connect_req(fixture);
	for (uint32_t i = 1; i <= 2000; i++) {
		memcpy(fresh + 4, &i, sizeof(i));
		announce(fixture, fresh, true);
		send_version_request(fd, i, fresh, i);
		if (i % 2) { /* in every second round the front is still processing the previous message */
			memcpy(fresh + 8, &i, sizeof(i));
			announce(fixture, fresh, true);
			send_version_request(fd, i + 100000, fresh, i);
			take_request(fixture, &request);
			answer_done(fixture, &request, i);
			expect_done(fd, i, i, i);
			take_request(fixture, &request);
			answer_done(fixture, &request, i);
			expect_done(fd, i + 100000, i, i);
		} else {
			take_request(fixture, &request);
			answer_done(fixture, &request, i);
			expect_done(fd, i, i, i);
		}
	}
	close(fd);
	stop_front(fixture);
}

/* Requirements: S9. */
static void test_rate_is_limited_per_token(void **state)
{
	struct fixture *fixture = *state;
	struct front_options options = usual_options();
	static struct request request;
	const uint32_t rate = 5;
	uint32_t passed = 0;
	int fd;

	options.requests_per_second = rate;
	start_front(fixture, options);
	announce(fixture, token, true);
	announce(fixture, other_token, true);
	fd = connect_req(fixture);
	/*
	 * Send one request at a time, so that each has its own reply. A burst passes, then a refusal follows, however
	 * slow the machine is.
	 */
	for (uint32_t id = 1;; id++) {
		struct pollfd both[2] = {{.fd = fd, .events = POLLIN}, {.fd = fixture->agent, .events = POLLIN}};

		send_version_request(fd, id, token, id);
		assert_true(poll(both, 2, -1) >= 1);
		if (both[0].revents) {
			expect_error(fd, id, id, -EBUSY);
			break;
		}
		take_request(fixture, &request);
		answer_done(fixture, &request, id);
		expect_done(fd, id, id, id);
		passed++;
		assert_true(passed < 100000);
	}
	assert_true(passed >= rate);
	/* another session is not affected */
	send_version_request(fd, 7777, other_token, 7777);
	take_request(fixture, &request);
	answer_done(fixture, &request, 1);
	expect_done(fd, 7777, 7777, 1);
	close(fd);
	stop_front(fixture);
}

static void test_unknown_types_are_refused(void **state)
{
	struct fixture *fixture = *state;
	static const uint16_t types[] = {
		MSG_TYPE_attach_request, MSG_TYPE_done_reply, MSG_TYPE_event, MSG_TYPE_front_token, 60000};
	uint8_t message[MSG_ENVELOPE_BYTES];
	const struct msg_version_request request = {0};
	int fd;

	start_usual_front(fixture);
	fd = connect_req(fixture);
	for (uint32_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		assert_int_equal(
			msg_encode_version_request(&request, i, token, message, sizeof(message)), sizeof(message));
		message[6] = (uint8_t)types[i];
		message[7] = (uint8_t)(types[i] >> 8);
		send_req(fd, i, message, sizeof(message));
		expect_error(fd, i, i, -EOPNOTSUPP);
	}
	expect_no_request(fixture);
	close(fd);
	stop_front(fixture);
}

static void test_requests_in_flight_are_limited(void **state)
{
	struct fixture *fixture = *state;
	static struct request requests[FRONT_FLIGHTS_MAX];
	int fd;

	start_usual_front(fixture);
	fd = connect_req(fixture);
	for (uint32_t i = 0; i < FRONT_FLIGHTS_MAX; i++) {
		send_version_request(fd, i, token, i);
		take_request(fixture, &requests[i]);
	}
	send_version_request(fd, 1000, token, 1000);
	expect_error(fd, 1000, 1000, -EBUSY);
	expect_no_request(fixture);
	/* replies in any order free an entry; a reply to an unknown request does not */
	requests[3].id += UINT64_C(1) << 40;
	answer_done(fixture, &requests[3], 3);
	requests[3].id -= UINT64_C(1) << 40;
	send_version_request(fd, 1001, token, 1001);
	expect_error(fd, 1001, 1001, -EBUSY);
	answer_done(fixture, &requests[200], 200);
	expect_done(fd, 200, 200, 200);
	send_version_request(fd, 1002, token, 1002);
	take_request(fixture, &requests[0]);
	answer_done(fixture, &requests[0], 5);
	expect_done(fd, 1002, 1002, 5);
	close(fd);
	stop_front(fixture);
}

/* The agent does not read, so its socket fills with requests, and clients get an error. */
static void test_agent_that_does_not_read_is_reported(void **state)
{
	struct fixture *fixture = *state;
	static uint8_t message[MESSAGE_MAX];
	const struct msg_version_request request = {0};
	int small = 1; /* the kernel raises it to its minimum */
	int fd;

	start_usual_front(fixture);
	expect_service(fixture);
	/* the limit is the sender's buffer; fill it with large requests, which only the agent would refuse */
	assert_int_equal(setsockopt(fixture->agent, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
	assert_int_equal(msg_encode_version_request(&request, 0, token, message, sizeof(message)), MSG_ENVELOPE_BYTES);
	for (int i = 0; i < 4; i++)
		message[32 + i] = (uint8_t)((MESSAGE_MAX - MSG_ENVELOPE_BYTES) >> (8 * i));
	fd = connect_req(fixture);
	for (uint32_t id = 1;; id++) {
		struct pollfd wait = {.fd = fd, .events = POLLIN};

		msg_envelope_stamp(message, id, token);
		send_req(fd, id, message, sizeof(message));
		if (poll(&wait, 1, 0) == 1) {
			uint8_t reply[MSG_LARGEST_error_reply];
			struct msg_error_reply error;
			uint32_t answered;
			size_t length = receive_rep(fd, &answered, reply, sizeof(reply));

			assert_int_equal(msg_decode_error_reply(&error, reply, length), 0);
			assert_int_equal(error.error, -EBUSY);
			break;
		}
		assert_true(id < 1000);
	}
	close(fd);
	stop_front(fixture);
}

/* ---- events ---- */

static int client_hears_an_event(const struct fixture *fixture)
{
	struct msg_event event;
	struct channel *events;

	CHECK(events_open(fixture->events_url, &events) == 0);
	CHECK(events_receive(events, -1, &event) == 0);
	CHECK(event.kind == 2 && event.value == 42 && strcmp(event.text, "something happened") == 0);
	channel_close(events);
	return 0;
}

static int client_hears_nothing(const struct fixture *fixture)
{
	struct msg_event event;
	struct channel *events;

	CHECK(events_open(fixture->events_url, &events) == 0);
	CHECK(events_receive(events, 0, &event) == -ETIMEDOUT);
	CHECK(events_receive(events, 20, &event) == -ETIMEDOUT);
	channel_close(events);
	channel_close(NULL);
	return 0;
}

static void test_events_are_published(void **state)
{
	struct fixture *fixture = *state;
	const struct msg_event event = {.kind = 2, .value = 42, .pool = "p", .text = "something happened"};
	uint8_t message[MSG_LARGEST_event];
	int length = msg_encode_event(&event, 0, NULL, message, sizeof(message));
	uint8_t received[FRAME_HEAD + MSG_LARGEST_event];
	pid_t client;
	int status;
	int fd;

	expect_client_ok(start_client(fixture, client_hears_nothing));
	start_usual_front(fixture);
	client = start_client(fixture, client_hears_an_event);
	/* The start of a subscription is not reported, and events may be missed. Publish until an event is received. */
	while (waitpid(client, &status, WNOHANG) == 0) {
		send_to_front(fixture, 0, message, (size_t)length);
		poll(NULL, 0, 5);
	}
	assert_int_equal(status, 0);

	/* the same without the library: exactly this message, and no other */
	fd = connect_raw(fixture->events_path);
	greet(fd, SP_SUB);
	send_to_front(fixture, 0, (const uint8_t *)"rubbish", 7);
	for (;;) {
		struct pollfd wait = {.fd = fd, .events = POLLIN};

		send_to_front(fixture, 0, message, (size_t)length);
		if (poll(&wait, 1, 5) == 1)
			break;
	}
	do /* on a slow machine a heartbeat may have been sent first */
		receive_all(fd, received, FRAME_HEAD);
	while (received[FRAME_HEAD - 1] == 0 && received[FRAME_HEAD - 2] == 0);
	receive_all(fd, received + FRAME_HEAD, (size_t)length);
	assert_memory_equal(received + FRAME_HEAD, message, (size_t)length);
	close(fd);
	expect_service(fixture);
	stop_front(fixture);
}

/* ---- hostile peers ---- */

/* Return true if the front is alive after a peer's connection ended. A dying front closes its sockets first. */
static bool front_still_greets(const struct fixture *fixture)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	bool greets = false;

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", fixture->control_path);
	while (!greets && !front_is_dead(fixture)) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		uint8_t greeting[8];

		assert_true(fd >= 0);
		greets = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
			recv(fd, greeting, sizeof(greeting), MSG_WAITALL) == sizeof(greeting);
		close(fd);
	}
	return greets;
}

/* Wait until the front has disconnected this peer or is dead. Start a new front in the second case, and return true. */
static bool wait_for_outcome(struct fixture *fixture, int peer)
{
	struct pollfd both[2] = {{.fd = fixture->pidfd, .events = POLLIN}, {.fd = peer, .events = POLLIN}};
	uint8_t rest[64];
	ssize_t received;
	int status;

	do {
		assert_true(poll(both, 2, -1) >= 1);
		received = recv(peer, rest, sizeof(rest), MSG_DONTWAIT); /* possibly the greeting, then the end */
	} while (!front_is_dead(fixture) && (received > 0 || (received < 0 && errno == EAGAIN)));
	if (front_still_greets(fixture))
		return false;
	status = reap_front(fixture);
	/* the cause must be an assertion of nanomsg; death by the filter would mean that it lacks a system call */
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
		fail_msg("the front ended with status %#x", (unsigned)status);
	start_usual_front(fixture);
	return true;
}

struct garbage {
	const char *what;
	bool greeted; /* send a proper greeting first */
	size_t length;
	uint8_t bytes[64];
};

static const struct garbage garbage[] = {
	{"a wrong type byte", true, 9, {9, 0, 0, 0, 0, 0, 0, 0, 4}},
	{"a type byte of shared memory", true, 9, {2, 0, 0, 0, 0, 0, 0, 0, 4}},
	{"a length beyond the limit", true, 9, {1, 0, 0, 0, 0, 0, 1, 0, 0}},
	{"a length near 2^64", true, 9, {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
	{"a length near 2^63", true, 9, {1, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
	{"a wrong greeting", false, 8, {'G', 'E', 'T', ' ', '/', 0, 0, 0}},
	{"a greeting with another protocol", false, 8, {0, 'S', 'P', 0, 0, SP_SUB, 0, 0}},
	{"a greeting with another version", false, 8, {0, 'S', 'P', 7, 0, SP_REQ, 0, 0}},
};

/*
 * Send each kind of garbage. The front must die and be replaced, or close the connection, and the service must
 * continue.
 */
static void test_garbage_costs_at_most_the_front(void **state)
{
	struct fixture *fixture = *state;
	unsigned died = 0;

	start_usual_front(fixture);
	expect_service(fixture);
	for (size_t i = 0; i < sizeof(garbage) / sizeof(garbage[0]); i++) {
		int peer = connect_raw(fixture->control_path);

		print_message("    %s: ", garbage[i].what);
		if (garbage[i].greeted)
			greet(peer, SP_REQ);
		send_all(peer, garbage[i].bytes, garbage[i].length);
		if (wait_for_outcome(fixture, peer)) {
			died++;
			print_message("the front died and was restarted\n");
		} else {
			print_message("the peer was thrown out\n");
		}
		close(peer);
		expect_service(fixture);
	}
	/* a failure here means that nanomsg has improved and the comment in front.h is out of date */
	assert_true(died > 0);
	stop_front(fixture);
}

/*
 * Incomplete messages have no visible effect. The service must continue while their connections are open, and
 * afterwards.
 */
static void test_half_messages_do_not_disturb(void **state)
{
	struct fixture *fixture = *state;
	uint8_t bytes[64] = {0};
	int peers[32];
	int before;

	start_usual_front(fixture);
	expect_service(fixture);
	before = count_descriptors(fixture->front);
	for (size_t i = 0; i < 32; i++) {
		peers[i] = connect_raw(fixture->control_path);
		greet(peers[i], SP_REQ);
		frame(bytes, 1, 1000);
		send_all(peers[i], bytes, 1 + i); /* from only a type byte to half a message */
		expect_service(fixture);
	}
	for (size_t i = 0; i < 32; i++)
		close(peers[i]);
	while (count_descriptors(fixture->front) > before + 1)
		expect_service(fixture); /* until nanomsg has detected all ends; the alarm limits the time */
	stop_front(fixture);
}

static void test_malformed_messages_are_dropped(void **state)
{
	struct fixture *fixture = *state;
	static struct request request;
	static uint8_t bytes[MESSAGE_MAX + MSG_ENVELOPE_BYTES];
	const struct msg_version_request version = {0};
	uint8_t head[FRAME_HEAD + 16];
	size_t used;
	int fd;

	start_usual_front(fixture);
	fd = connect_req(fixture);
	assert_int_equal(msg_encode_version_request(&version, 5, token, bytes, sizeof(bytes)), MSG_ENVELOPE_BYTES);
	/* messages that are empty, truncated, one byte too long, or have another magic number */
	send_req(fd, 1, bytes, 0);
	send_req(fd, 2, bytes, MSG_ENVELOPE_BYTES - 1);
	send_req(fd, 3, bytes, MSG_ENVELOPE_BYTES + 1);
	bytes[0] ^= 1;
	send_req(fd, 4, bytes, MSG_ENVELOPE_BYTES);
	bytes[0] ^= 1;
	/* messages without a return path: no request id; a stack of ids that never ends */
	used = frame(head, 1, 3);
	memset(head + used, 0, 16);
	send_all(fd, head, used + 3);
	used = frame(head, 1, 16);
	send_all(fd, head, used + 16);
	/* longer than the front's own limit, but not longer than nanomsg's */
	for (int i = 0; i < 4; i++)
		bytes[32 + i] = (uint8_t)((MESSAGE_MAX + 1 - MSG_ENVELOPE_BYTES) >> (8 * i));
	send_req(fd, 5, bytes, MESSAGE_MAX + 1);
	/* no message arrived or killed the front: the next request is the first to arrive, on the same connection */
	send_version_request(fd, 6, token, 6);
	take_request(fixture, &request);
	assert_true(request.envelope.sequence == 6);
	assert_int_equal(request.length, MSG_ENVELOPE_BYTES);
	answer_done(fixture, &request, 6);
	expect_done(fd, 6, 6, 6);
	close(fd);
	stop_front(fixture);
}

/*
 * A return path of many hops is valid in nanomsg, but no device forwards requests to the front. The front must drop
 * such a request before it uses memory.
 */
static void test_long_ways_back_are_dropped(void **state)
{
	struct fixture *fixture = *state;
	uint8_t bytes[FRAME_HEAD + 1024];
	size_t used;
	int fd;

	start_usual_front(fixture);
	fd = connect_req(fixture);
	used = frame(bytes, 1, 1024);
	memset(bytes + used, 0, 1024);
	bytes[used + 1020] = 0x80; /* 255 hops and then the request id */
	send_all(fd, bytes, used + 1024);
	close(fd);
	expect_service(fixture);
	expect_no_request(fixture);
	stop_front(fixture);
}

/* Send one request with 50 descriptors attached. Return false if the front no longer accepts it. */
static bool send_with_descriptors(int fd)
{
	uint8_t bytes[FRAME_HEAD + ID_BYTES] = {0};
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(50 * sizeof(int))];
	} control = {.bytes = {0}};
	struct iovec part = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct msghdr header = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	struct cmsghdr *entry = CMSG_FIRSTHDR(&header);
	int fds[50];

	frame(bytes, 1, ID_BYTES);
	bytes[FRAME_HEAD] = 0x80;
	for (int i = 0; i < 50; i++)
		fds[i] = STDERR_FILENO;
	entry->cmsg_level = SOL_SOCKET;
	entry->cmsg_type = SCM_RIGHTS;
	entry->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(entry), fds, sizeof(fds));
	return sendmsg(fd, &header, MSG_NOSIGNAL) == (ssize_t)sizeof(bytes);
}

static void test_attached_descriptors_do_not_pile_up(void **state)
{
	struct fixture *fixture = *state;
	int status;
	int fresh;
	int fd;

	start_usual_front(fixture);
	expect_service(fixture);
	fresh = count_descriptors(fixture->front);
	fd = connect_req(fixture);
	for (int i = 0; i < 10; i++) {
		if (!send_with_descriptors(fd))
			break;
	}
	status = reap_front(fixture); /* the front detects the descriptors, and exits */
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), EMFILE);
	close(fd);
	start_usual_front(fixture);
	expect_service(fixture);
	assert_true(count_descriptors(fixture->front) <= fresh + 1);
	stop_front(fixture);
}

/* Many honest connections are not a leak. When they are closed, so are their descriptors. */
static void test_many_connections_are_no_leak(void **state)
{
	struct fixture *fixture = *state;
	enum { MANY = 300 };
	int fds[MANY];
	int before;

	start_usual_front(fixture);
	expect_service(fixture);
	before = count_descriptors(fixture->front);
	for (int i = 0; i < MANY; i++) {
		fds[i] = i % 2 ? connect_req(fixture) : connect_raw(fixture->events_path);
		if (i % 2 == 0)
			greet(fds[i], SP_SUB);
	}
	/* the first count may have included a connection that was ending */
	assert_true(count_descriptors(fixture->front) >= before + MANY - 1);
	/* run for several of the front's own counts, which are half a second apart */
	for (struct timespec start, now = {0}; clock_gettime(CLOCK_MONOTONIC, now.tv_sec ? &now : &start), true;) {
		expect_service(fixture);
		if (now.tv_sec == 0)
			now = start;
		else if (now.tv_sec - start.tv_sec >= 2)
			break;
	}
	assert_false(front_is_dead(fixture));
	for (int i = 0; i < MANY; i++)
		close(fds[i]);
	while (count_descriptors(fixture->front) > before + 1)
		expect_service(fixture);
	stop_front(fixture);
}

/*
 * Open as many connections as the kernel accepts, which is more than the front may have. The front ends, and the next
 * one serves again.
 */
static void test_too_many_connections_cost_at_most_the_front(void **state)
{
	struct fixture *fixture = *state;
	struct front_options options = usual_options();
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	enum { MOST = 1000 };
	static int fds[MOST];
	int count = 0;
	int status;

	options.connections_max = 32;
	start_front(fixture, options);
	announce(fixture, token, true);
	expect_service(fixture);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", fixture->control_path);
	while (!front_is_dead(fixture)) {
		const uint8_t greeting[8] = {0, 'S', 'P', 0, 0, SP_REQ, 0, 0};
		struct pollfd wait = {.fd = fixture->pidfd, .events = POLLIN};
		int fd = -1;

		if (count < MOST)
			fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
			send(fd, greeting, sizeof(greeting), MSG_NOSIGNAL) == sizeof(greeting)) {
			fds[count++] = fd;
			continue;
		}
		if (fd >= 0)
			close(fd);
		poll(&wait, 1, 10); /* its queue is full: it accepts some connections, or ends */
	}
	assert_true(count > 32);
	status = reap_front(fixture);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), EMFILE);
	for (int i = 0; i < count; i++)
		close(fds[i]);
	start_usual_front(fixture);
	expect_service(fixture);
	stop_front(fixture);
}

/* ---- rights ---- */

/* Read one line of /proc/PID/status. */
static void read_status(pid_t pid, const char *key, char *value, size_t size)
{
	char path[64];
	char line[256];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	assert_non_null(file);
	value[0] = '\0';
	while (fgets(line, sizeof(line), file)) {
		size_t length = strlen(key);

		if (strncmp(line, key, length) == 0 && line[length] == ':')
			snprintf(value, size, "%s", line + length + 1 + strspn(line + length + 1, " \t"));
	}
	fclose(file);
	value[strcspn(value, "\n")] = '\0';
}

static void test_front_has_no_rights(void **state)
{
	struct fixture *fixture = *state;
	struct front_options options = usual_options();
	struct stat status;
	char value[128];

	if (geteuid() == 0) {
		const gid_t groups[] = {4242};

		options.uid = 65533;
		options.gid = 65532;
		assert_int_equal(chown(fixture->folder, options.uid, options.gid), 0);
		assert_int_equal(setgroups(1, groups), 0);
	}
	start_front(fixture, options);
	announce(fixture, token, true);
	expect_service(fixture);
	read_status(fixture->front, "CapEff", value, sizeof(value));
	assert_string_equal(value, "0000000000000000");
	read_status(fixture->front, "CapPrm", value, sizeof(value));
	assert_string_equal(value, "0000000000000000");
	read_status(fixture->front, "NoNewPrivs", value, sizeof(value));
	assert_string_equal(value, "1");
	read_status(fixture->front, "Seccomp", value, sizeof(value));
	assert_string_equal(value, "2");
	if (geteuid() == 0) {
		read_status(fixture->front, "Uid", value, sizeof(value));
		assert_string_equal(value, "65533\t65533\t65533\t65533");
		read_status(fixture->front, "Gid", value, sizeof(value));
		assert_string_equal(value, "65532\t65532\t65532\t65532");
		read_status(fixture->front, "Groups", value, sizeof(value));
		assert_true(strspn(value, " ") == strlen(value));
		assert_int_equal(stat(fixture->control_path, &status), 0);
		assert_int_equal(status.st_gid, options.gid);
		assert_int_equal(setgroups(0, NULL), 0);
	}
	/* the group may connect, others may not */
	assert_int_equal(stat(fixture->control_path, &status), 0);
	assert_int_equal(status.st_mode & 07777, 0770);
	assert_int_equal(stat(fixture->events_path, &status), 0);
	assert_int_equal(status.st_mode & 07777, 0770);
	stop_front(fixture);
}

static void test_front_dies_with_the_keeper(void **state)
{
	struct fixture *fixture = *state;
	struct fixture inner = *fixture;
	struct {
		pid_t front;
		int agent; /* descriptor number of the agent's socket in the keeper */
	} made;
	int pipes[2];
	pid_t keeper;
	int pidfd;
	int agent;
	int status;
	struct pollfd wait;

	/*
	 * become the reaper of orphans, so that this process can wait for the front and the front's pid is not reused
	 */
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	keeper = fork();
	assert_true(keeper >= 0);
	if (keeper == 0) {
		start_usual_front(&inner);
		made.front = inner.front;
		made.agent = inner.agent;
		if (write(pipes[1], &made, sizeof(made)) == sizeof(made))
			pause();
		_exit(1);
	}
	assert_int_equal(read(pipes[0], &made, sizeof(made)), sizeof(made));
	pidfd = (int)syscall(SYS_pidfd_open, made.front, 0);
	assert_true(pidfd >= 0);
	/* keep the agent's end open longer than the keeper lives: only the death of the parent may end the front */
	wait = (struct pollfd){.fd = (int)syscall(SYS_pidfd_open, keeper, 0), .events = POLLIN};
	agent = (int)syscall(SYS_pidfd_getfd, wait.fd, made.agent, 0);
	assert_true(agent >= 0);
	close(wait.fd);
	close(connect_raw(fixture->control_path)); /* it listens, so its start is complete */
	assert_int_equal(kill(keeper, SIGKILL), 0);
	assert_int_equal(waitpid(keeper, &status, 0), keeper);
	wait = (struct pollfd){.fd = pidfd, .events = POLLIN};
	assert_int_equal(poll(&wait, 1, -1), 1);
	assert_int_equal(waitpid(made.front, &status, 0), made.front);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
	close(agent);
	close(pidfd);
	close(pipes[0]);
	close(pipes[1]);
}

static void test_bad_options_are_refused(void **state)
{
	struct fixture *fixture = *state;
	struct front_options options = usual_options();
	static char long_url[300] = "ipc://";
	int file;
	int status;
	struct {
		const char *url;
		int error;
	} cases[] = {
		{"tcp://127.0.0.1:5555", EINVAL}, {"ipc://", EINVAL}, {long_url, ENAMETOOLONG},
		{"ipc:///no/such/folder/socket", ENOENT},
		{fixture->events_url, EADDRINUSE}, /* a file that is not a socket is not removed */
	};

	memset(long_url + 6, 'x', sizeof(long_url) - 7);
	file = open(fixture->events_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_true(file >= 0);
	close(file);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		options.control_url = cases[i].url;
		start_front(fixture, options);
		status = reap_front(fixture);
		assert_true(WIFEXITED(status));
		if (i == 3)
			assert_int_not_equal(WEXITSTATUS(status), 0); /* nanomsg has its own error number for it */
		else
			assert_int_equal(WEXITSTATUS(status), cases[i].error);
	}
	assert_int_equal(access(fixture->events_path, F_OK), 0);
	unlink(fixture->events_path);
	for (int i = 0; i < 2; i++) {
		options = usual_options();
		if (i == 0)
			options.message_bytes_max = MSG_BYTES_MAX + 1;
		else
			options.connections_max = UINT32_MAX;
		start_front(fixture, options);
		status = reap_front(fixture);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), EINVAL);
	}
}

#define front_test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		front_test(test_requests_reach_the_agent_and_answers_the_client),
		front_test(test_call_without_front_times_out),
		front_test(test_client_survives_a_restart),
		front_test(test_a_silent_connection_is_closed),
		front_test(test_a_late_answer_is_discarded),
		front_test(test_a_silent_subscription_is_closed),
		front_test(test_the_front_beats),
		front_test(test_tokens_are_checked),
		front_test(test_announced_tokens_are_known_at_once),
		front_test(test_rate_is_limited_per_token),
		front_test(test_unknown_types_are_refused),
		front_test(test_requests_in_flight_are_limited),
		front_test(test_agent_that_does_not_read_is_reported),
		front_test(test_events_are_published),
		front_test(test_garbage_costs_at_most_the_front),
		front_test(test_half_messages_do_not_disturb),
		front_test(test_malformed_messages_are_dropped),
		front_test(test_long_ways_back_are_dropped),
		front_test(test_attached_descriptors_do_not_pile_up),
		front_test(test_many_connections_are_no_leak),
		front_test(test_too_many_connections_cost_at_most_the_front),
		front_test(test_front_has_no_rights),
		front_test(test_front_dies_with_the_keeper),
		front_test(test_bad_options_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
