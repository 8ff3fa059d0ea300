/*
 * test_requests.c - requests over the control socket: rights, and exactly-once effect.
 *
 * Goal: a request without the right is refused. The token of an ended session is invalid. A request takes effect once,
 * no matter how often it arrives, even if the front dies while handling it.
 *
 * Method: a real gpoold, whose front is killed with an unread request and with a forwarded one. Requests that must be
 * identical byte for byte are sent over the control socket by a few lines that implement nanomsg's framing.
 *
 * Requirements: S9.
 */
#include "client/gpool.h"
#include "client/core/pool.h"
#include "client/core/request.h"
#include "proto/codec.h"
#include "tests/integration/life.h"
#include "tests/lib/harness.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the control socket without nanomsg ---- */

static int control_open_raw(void)
{
	static const uint8_t ours[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0}; /* REQ */
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = ANSWER_MS / 1000};
	uint8_t theirs[8];
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/nn/control", harness.directory);
	AWAIT(connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
	assert_int_equal(write(fd, ours, sizeof(ours)), sizeof(ours));
	assert_int_equal(recv(fd, theirs, sizeof(theirs), MSG_WAITALL), sizeof(theirs));
	assert_memory_equal(theirs, ours, 4);
	return fd;
}

static void control_send_raw(int fd, uint32_t id, const uint8_t *message, size_t length)
{
	uint8_t frame[1024] = {1};
	uint64_t size = htobe64(length + 4);
	uint32_t header = htonl(id | 0x80000000);

	assert_true(length <= sizeof(frame) - 13);
	memcpy(frame + 1, &size, 8);
	memcpy(frame + 9, &header, 4);
	memcpy(frame + 13, message, length);
	assert_int_equal(write(fd, frame, length + 13), length + 13);
}

/* Receive the next reply. Return its length, and its request id in *id. */
static size_t control_receive_raw(int fd, uint32_t *id, uint8_t *reply, size_t capacity)
{
	uint8_t head[13];
	uint64_t size;
	uint32_t header;

	assert_int_equal(recv(fd, head, sizeof(head), MSG_WAITALL), sizeof(head));
	memcpy(&size, head + 1, 8);
	memcpy(&header, head + 9, 4);
	size = be64toh(size) - 4;
	assert_true(size <= capacity);
	assert_int_equal(recv(fd, reply, size, MSG_WAITALL), size);
	*id = ntohl(header) & 0x7fffffff;
	return (size_t)size;
}

static size_t control_call_raw(int fd, uint32_t id, const uint8_t *message, size_t length, uint8_t *reply)
{
	uint32_t answered;

	control_send_raw(fd, id, message, length);
	length = control_receive_raw(fd, &answered, reply, MSG_BYTES_MAX);
	assert_int_equal(answered, id);
	return length;
}

/* ---- requests ---- */

static void test_observers_cannot_change_anything(void **state)
{
	const struct msg_limit_request limit = {.tenant = "default", .limit_pages = 1, .minimum_pages = UINT32_MAX};
	const struct msg_reload_request again = {0};
	const struct msg_status_request look = {0};
	static struct msg_status_reply seen;
	struct gpool_block block;
	struct msg_done_reply done;
	struct gpool *sessions[2];
	uint32_t taken;

	(void)state;
	start(quiet);
	sessions[0] = open_as(GPOOL_OPEN_OBSERVER, NULL, NULL);
	sessions[1] = open_worker();
	alloc_unpinned(sessions[1], &block, 1);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(try_evict(sessions[i], "", 1, NULL), -EPERM);
		assert_non_null(strstr(error_text, "access.admins"));
		assert_int_equal(ASK_FROM(sessions[i], limit_request, &limit, done_reply, &done), -EPERM);
		assert_int_equal(ASK_FROM(sessions[i], reload_request, &again, done_reply, &done), -EPERM);
		assert_int_equal(ASK_FROM(sessions[i], status_request, &look, status_reply, &seen), 0);
		assert_int_equal(seen.pools[0].evicted_pages, 0);
	}
	assert_int_equal(tenant("default")->limit_pages, PAGES);
	assert_int_equal(try_evict(admin, "", 1, &taken), 0);
	assert_int_equal(taken, 1);
	gpool_close(sessions[0]);
	gpool_close(sessions[1]);
}

static void test_the_token_of_an_ended_session_is_eacces(void **state)
{
	const struct msg_evict_request request = {.pages = 1};
	uint8_t message[MSG_LARGEST_evict_request], token[MSG_TOKEN_BYTES];
	struct pollfd look = {.events = POLLIN};
	struct msg_error_reply error;
	struct msg_done_reply done;
	struct gpool_block blocks[4];
	struct gpool *ended, *worker;
	uint32_t id = 1, answered;
	size_t length;
	int size;

	(void)state;
	start(quiet);
	worker = open_worker();
	alloc_unpinned(worker, blocks, 4);
	ended = open_as(GPOOL_OPEN_ADMIN, NULL, NULL);
	memcpy(token, ended->token, sizeof(token));
	look.fd = control_open_raw();
	size = msg_encode_evict_request(&request, 1, token, message, sizeof(message));
	length = control_call_raw(look.fd, id++, message, (size_t)size, reply_bytes);
	assert_int_equal(msg_decode_done_reply(&done, reply_bytes, length), 0);
	assert_int_equal(done.value, 1);
	gpool_close(ended);
	/*
	 * Send the same request again, for which a reply exists, and another one. A new front does not reply to unknown
	 * tokens, so repeat both.
	 */
	for (uint64_t sequence = 1; sequence <= 2; sequence++) {
		size = msg_encode_evict_request(&request, sequence, token, message, sizeof(message));
		do
			control_send_raw(look.fd, id++, message, (size_t)size);
		while (poll(&look, 1, 200) == 0);
		length = control_receive_raw(look.fd, &answered, reply_bytes, sizeof(reply_bytes));
		assert_int_equal(msg_decode_error_reply(&error, reply_bytes, length), 0);
		assert_int_equal(error.error, -EACCES);
	}
	assert_int_equal(count_there(worker, blocks, 4), 3);
	close(look.fd);
	gpool_close(worker);
}

static void test_a_repeated_request_is_answered_and_not_done_again(void **state)
{
	const struct msg_evict_request request = {.pages = 2};
	const struct msg_limit_request limit = {.tenant = "default", .limit_pages = 30, .minimum_pages = UINT32_MAX};
	const struct msg_limit_request wider = {.tenant = "default", .limit_pages = 50, .minimum_pages = UINT32_MAX};
	uint8_t message[MSG_LARGEST_limit_request], first[512], second[MSG_BYTES_MAX];
	uint64_t sequence = 1000;
	struct gpool_block blocks[8];
	struct msg_done_reply done;
	struct gpool *worker;
	size_t length;
	int fd, other, size;

	(void)state;
	start(quiet);
	worker = open_worker();
	alloc_unpinned(worker, blocks, 8);
	fd = control_open_raw();
	other = control_open_raw();
	size = msg_encode_evict_request(&request, sequence, admin->token, message, sizeof(message));
	length = control_call_raw(fd, 1, message, (size_t)size, reply_bytes);
	assert_true(length <= sizeof(first));
	memcpy(first, reply_bytes, length);
	assert_int_equal(msg_decode_done_reply(&done, first, length), 0);
	assert_int_equal(done.value, 2);
	assert_int_equal(count_there(worker, blocks, 8), 6);
	/* Send the request on the same connection and on another one. */
	for (int i = 0; i < 4; i++) {
		assert_int_equal(
			control_call_raw(i % 2 ? other : fd, (uint32_t)(10 + i), message, (size_t)size, second),
			length);
		assert_memory_equal(second, first, length);
	}
	assert_int_equal(count_there(worker, blocks, 8), 6);
	assert_int_equal(status()->pools[0].evicted_pages, 2);
	/* A request with another number is another request. */
	size = msg_encode_evict_request(&request, sequence + 1, admin->token, message, sizeof(message));
	length = control_call_raw(other, 20, message, (size_t)size, second);
	assert_int_equal(msg_decode_done_reply(&done, second, length), 0);
	assert_int_equal(done.value, 2);
	assert_int_equal(count_there(worker, blocks, 8), 4);

	/* A late repetition of an older limit does not undo the newer one. */
	size = msg_encode_limit_request(&limit, sequence + 2, admin->token, message, sizeof(message));
	control_call_raw(fd, 30, message, (size_t)size, second);
	size = msg_encode_limit_request(&wider, sequence + 3, admin->token, message, sizeof(message));
	control_call_raw(fd, 31, message, (size_t)size, second);
	size = msg_encode_limit_request(&limit, sequence + 2, admin->token, message, sizeof(message));
	length = control_call_raw(fd, 32, message, (size_t)size, second);
	assert_int_equal(msg_decode_done_reply(&done, second, length), 0);
	assert_int_equal(done.value, 30);
	assert_int_equal(tenant("default")->limit_pages, 50);
	close(fd);
	close(other);
	gpool_close(worker);
}

struct call {
	struct gpool *pool;
	uint32_t pages, taken;
	int error;
	pthread_t thread;
};

/* This thread uses its own buffers, because the test continues to send requests. */
static void *call_evict(void *argument)
{
	static uint8_t reply[MSG_BYTES_MAX];
	struct call *call = argument;
	const struct msg_evict_request request = {.pages = call->pages};
	uint8_t message[MSG_LARGEST_evict_request];
	struct msg_done_reply done;
	int length = msg_encode_evict_request(&request, 0, NULL, message, sizeof(message));

	length = pool_request(call->pool, message, (size_t)length, reply, sizeof(reply), ANSWER_MS, NULL);
	call->error = length < 0 ? length : msg_decode_done_reply(&done, reply, (size_t)length);
	call->taken = call->error ? 0 : (uint32_t)done.value;
	return NULL;
}

/* The front dies with an unread request, and the client itself repeats the request. */
static void test_a_request_survives_the_front(void **state)
{
	struct gpool_block blocks[8];
	struct call call = {.pages = 2};
	struct gpool *worker;
	pid_t agent, front;
	int exit_front;

	(void)state;
	start(quiet);
	worker = open_worker();
	alloc_unpinned(worker, blocks, 8);
	agent = (pid_t)status()->agent_pid;
	front = (pid_t)status()->front_pid;
	assert_true(agent > 1 && front > 1);
	call.pool = open_as(GPOOL_OPEN_ADMIN, NULL, NULL);
	/* Connect first, so that the next request is sent to a front that does not read. */
	assert_int_equal(try_evict(call.pool, "nowhere", 1, NULL), -ENXIO);
	exit_front = pidfd_of(front);
	assert_int_equal(kill(front, SIGSTOP), 0);
	assert_int_equal(pthread_create(&call.thread, NULL, call_evict, &call), 0);
	assert_int_equal(kill(front, SIGKILL), 0);
	await_end(exit_front);
	pthread_join(call.thread, NULL);
	assert_int_equal(call.error, 0);
	assert_int_equal(call.taken, 2);
	assert_int_equal(count_there(worker, blocks, 8), 6);
	assert_int_equal(status()->agent_pid, agent);
	assert_int_not_equal(status()->front_pid, front);
	assert_int_equal(status()->front_restarts, 1);
	assert_int_equal(kill(harness.pid, 0), 0);
	gpool_close(call.pool);
	gpool_close(worker);
}

/*
 * The front dies after it has forwarded a request, and before the reply. The agent may execute the forwarded request,
 * and the client sends it again; it must be executed once. The front itself replies to a later request on the same
 * connection, which shows that the first one was forwarded.
 */
static void test_a_request_that_was_passed_on_is_done_once(void **state)
{
	const struct msg_evict_request request = {.pages = 2};
	const struct msg_detach_request strange = {0};
	uint8_t message[MSG_LARGEST_evict_request], other[MSG_LARGEST_detach_request];
	struct gpool_block blocks[8];
	struct msg_error_reply error;
	struct msg_done_reply done;
	struct gpool *worker;
	pid_t agent, front;
	uint32_t id;
	size_t length;
	int fd, size, other_size, exit_front;

	(void)state;
	start(quiet);
	worker = open_worker();
	alloc_unpinned(worker, blocks, 8);
	agent = (pid_t)status()->agent_pid;
	front = (pid_t)status()->front_pid;
	assert_true(agent > 1 && front > 1);
	fd = control_open_raw();
	size = msg_encode_evict_request(&request, 5000, admin->token, message, sizeof(message));
	other_size = msg_encode_detach_request(&strange, 5001, admin->token, other, sizeof(other));
	exit_front = pidfd_of(front);
	assert_int_equal(kill(agent, SIGSTOP), 0);
	control_send_raw(fd, 1, message, (size_t)size);
	control_send_raw(fd, 2, other, (size_t)other_size);
	length = control_receive_raw(fd, &id, reply_bytes, sizeof(reply_bytes));
	kill(front, SIGKILL);
	kill(agent, SIGCONT);
	assert_int_equal(id, 2);
	assert_int_equal(msg_decode_error_reply(&error, reply_bytes, length), 0);
	assert_int_equal(error.error, -EOPNOTSUPP);
	await_end(exit_front);
	close(fd);
	AWAIT(status()->front_restarts == 1);
	fd = control_open_raw();
	length = control_call_raw(fd, 1, message, (size_t)size, reply_bytes);
	assert_int_equal(msg_decode_done_reply(&done, reply_bytes, length), 0);
	assert_int_equal(done.value, 2);
	assert_int_equal(count_there(worker, blocks, 8), 6);
	assert_int_equal(status()->pools[0].evicted_pages, 2);
	assert_int_equal(status()->agent_pid, agent);
	close(fd);
	gpool_close(worker);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_observers_cannot_change_anything, stop),
		cmocka_unit_test_teardown(test_the_token_of_an_ended_session_is_eacces, stop),
		cmocka_unit_test_teardown(test_a_repeated_request_is_answered_and_not_done_again, stop),
		cmocka_unit_test_teardown(test_a_request_survives_the_front, stop),
		cmocka_unit_test_teardown(test_a_request_that_was_passed_on_is_done_once, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
