/*
 * test_attach.c - packets, descriptors and peers on the attach socket, with a malicious peer.
 *
 * Method: socket pairs in one process, or a forked peer if the kernel's view of it matters. Every test ends with the
 * same number of open descriptors as it began with. An alarm ends a test that would wait forever.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <grp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "proto/attach.h"
#include "tests/lib/await.h"
#include "tests/lib/temporary.h"

enum { STUCK_SECONDS = 1000, WAIT_MS = AWAIT_MS };

struct fixture {
	int descriptors;
	int ours;
	int theirs;
	char folder[64];
};

static int count_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	assert_non_null(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static int set_up(void **state)
{
	static struct fixture fixture;
	int pair[2];

	alarm(STUCK_SECONDS);
	fixture.descriptors = count_descriptors();
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	fixture.ours = pair[0];
	fixture.theirs = pair[1];
	snprintf(fixture.folder, sizeof(fixture.folder), "%s/gpool-attach-XXXXXX", temporary_folder());
	assert_non_null(mkdtemp(fixture.folder));
	*state = &fixture;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *fixture = *state;
	char command[128];

	if (fixture->ours >= 0)
		close(fixture->ours);
	if (fixture->theirs >= 0)
		close(fixture->theirs);
	snprintf(command, sizeof(command), "rm -rf '%s'", fixture->folder);
	assert_int_equal(system(command), 0);
	assert_int_equal(count_descriptors(), fixture->descriptors);
	alarm(0);
	return 0;
}

static void path_in(const struct fixture *fixture, const char *name, char path[108])
{
	snprintf(path, 108, "%s/%s", fixture->folder, name);
}

/* Open `count` descriptors of different files. */
static void open_many(int *fds, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		fds[i] = (int)syscall(SYS_memfd_create, "test", 1u);
		assert_true(fds[i] >= 0);
	}
}

static void close_many(const int *fds, size_t count)
{
	for (size_t i = 0; i < count; i++)
		assert_int_equal(close(fds[i]), 0);
}

static ino_t inode_of(int fd)
{
	struct stat status;

	assert_int_equal(fstat(fd, &status), 0);
	return status.st_ino;
}

/* ---- packets and descriptors ---- */

static void test_bytes_and_descriptors_arrive(void **state)
{
	struct fixture *fixture = *state;
	int sent[ATTACH_FDS_MAX];
	int got[ATTACH_FDS_MAX];
	static const size_t counts[] = {0, 1, 2, 3, 64, ATTACH_FDS_MAX};
	char buffer[16];

	open_many(sent, ATTACH_FDS_MAX);
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		size_t count = 999;

		assert_int_equal(attach_send(fixture->ours, "hello", 5, sent, counts[i]), 0);
		assert_int_equal(
			attach_receive(fixture->theirs, buffer, sizeof(buffer), got, ATTACH_FDS_MAX, &count, WAIT_MS),
			5);
		assert_memory_equal(buffer, "hello", 5);
		assert_int_equal(count, counts[i]);
		for (size_t f = 0; f < count; f++) {
			assert_int_equal(inode_of(got[f]), inode_of(sent[f]));
			assert_int_equal(fcntl(got[f], F_GETFD), FD_CLOEXEC);
		}
		close_many(got, count);
	}
	close_many(sent, ATTACH_FDS_MAX);
}

static void test_send_refuses_too_many_descriptors_and_empty_packets(void **state)
{
	struct fixture *fixture = *state;
	int fds[ATTACH_FDS_MAX + 1] = {0};
	char buffer[4];

	assert_int_equal(attach_send(fixture->ours, "x", 1, fds, ATTACH_FDS_MAX + 1), -EINVAL);
	assert_int_equal(attach_send(fixture->ours, "x", 0, NULL, 0), -EINVAL);
	assert_int_equal(attach_receive(fixture->theirs, buffer, sizeof(buffer), NULL, 0, NULL, 0), -EAGAIN);
	fds[0] = 100000;
	assert_int_equal(attach_send(fixture->ours, "x", 1, fds, 1), -EBADF);
	assert_int_equal(
		attach_receive(fixture->theirs, buffer, sizeof(buffer), fds, ATTACH_FDS_MAX + 1, NULL, 0), -EINVAL);
}

/* A receiver that expects two descriptors gets two, whatever number was sent. */
static void test_unasked_descriptors_are_closed(void **state)
{
	struct fixture *fixture = *state;
	int sent[ATTACH_FDS_MAX];
	int got[2];
	char buffer[4];
	int before;

	open_many(sent, ATTACH_FDS_MAX);
	before = count_descriptors();
	for (size_t wanted = 0; wanted <= 2; wanted++) {
		size_t count = 999;

		assert_int_equal(attach_send(fixture->ours, "x", 1, sent, ATTACH_FDS_MAX), 0);
		assert_int_equal(
			attach_receive(fixture->theirs, buffer, sizeof(buffer), got, wanted, &count, WAIT_MS), 1);
		assert_int_equal(count, wanted);
		assert_int_equal(count_descriptors(), before + (int)wanted);
		close_many(got, count);
	}
	close_many(sent, ATTACH_FDS_MAX);
}

static void test_packet_too_long_is_refused_with_its_descriptors(void **state)
{
	struct fixture *fixture = *state;
	int sent[3];
	int got[3];
	size_t count = 999;
	char buffer[4];
	int before;

	open_many(sent, 3);
	before = count_descriptors();
	assert_int_equal(attach_send(fixture->ours, "12345", 5, sent, 3), 0);
	assert_int_equal(attach_send(fixture->ours, "1234", 4, NULL, 0), 0);
	assert_int_equal(attach_receive(fixture->theirs, buffer, sizeof(buffer), got, 3, &count, WAIT_MS), -EMSGSIZE);
	assert_int_equal(count, 999);
	assert_int_equal(count_descriptors(), before);
	/* the next packet is received normally */
	assert_int_equal(attach_receive(fixture->theirs, buffer, sizeof(buffer), got, 3, &count, WAIT_MS), 4);
	assert_int_equal(count, 0);
	close_many(sent, 3);
}

/*
 * At the limit on open files, the kernel delivers only some of the descriptors. None may stay open, and the caller must
 * be informed.
 */
static void test_limit_of_open_files_is_noticed(void **state)
{
	struct fixture *fixture = *state;
	struct rlimit saved;
	struct rlimit low;
	int sent[20];
	int got[20];
	size_t count = 999;
	char buffer[4];
	int before;

	open_many(sent, 20);
	before = count_descriptors();
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &saved), 0);
	assert_int_equal(attach_send(fixture->ours, "a", 1, sent, 20), 0);
	assert_int_equal(attach_send(fixture->ours, "b", 1, sent, 2), 0);
	low = saved;
	low.rlim_cur = (rlim_t)sent[19] + 8; /* room for 7 above the highest one, and a few gaps */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	assert_int_equal(attach_receive(fixture->theirs, buffer, sizeof(buffer), got, 20, &count, WAIT_MS), -EMFILE);
	assert_int_equal(count, 999);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &saved), 0);
	assert_int_equal(count_descriptors(), before);
	assert_int_equal(attach_receive(fixture->theirs, buffer, sizeof(buffer), got, 20, &count, WAIT_MS), 1);
	assert_int_equal(buffer[0], 'b');
	assert_int_equal(count, 2);
	close_many(got, 2);
	close_many(sent, 20);
}

static void test_end_of_peer_is_epipe(void **state)
{
	struct fixture *fixture = *state;
	char buffer[4];

	assert_int_equal(attach_send(fixture->theirs, "last", 4, NULL, 0), 0);
	close(fixture->theirs);
	fixture->theirs = -1;
	/* data that was sent before the end still arrives */
	assert_int_equal(attach_receive(fixture->ours, buffer, sizeof(buffer), NULL, 0, NULL, -1), 4);
	assert_int_equal(attach_receive(fixture->ours, buffer, sizeof(buffer), NULL, 0, NULL, -1), -EPIPE);
	assert_int_equal(attach_send(fixture->ours, "x", 1, NULL, 0), -EPIPE); /* and no SIGPIPE */
}

/* An empty packet looks like the end, and must not deliver descriptors. */
static void test_empty_packet_is_epipe(void **state)
{
	struct fixture *fixture = *state;
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.bytes = {0}};
	struct msghdr header = {.msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
	struct cmsghdr *entry = CMSG_FIRSTHDR(&header);
	int got[4];
	size_t count = 999;
	char buffer[4];
	int before = count_descriptors();

	entry->cmsg_level = SOL_SOCKET;
	entry->cmsg_type = SCM_RIGHTS;
	entry->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(entry), &fixture->ours, sizeof(int));
	assert_int_equal(sendmsg(fixture->ours, &header, 0), 0);
	assert_int_equal(attach_receive(fixture->theirs, buffer, sizeof(buffer), got, 4, &count, WAIT_MS), -EPIPE);
	assert_int_equal(count, 999);
	assert_int_equal(count_descriptors(), before);
}

static void test_full_queue_is_eagain(void **state)
{
	struct fixture *fixture = *state;
	static char big[16384];
	int sent = 0;
	int result;

	while ((result = attach_send(fixture->ours, big, sizeof(big), NULL, 0)) == 0)
		sent++;
	assert_int_equal(result, -EAGAIN);
	assert_true(sent > 0);
	assert_int_equal(attach_receive(fixture->theirs, big, sizeof(big), NULL, 0, NULL, 0), sizeof(big));
}

static void test_timeouts(void **state)
{
	struct fixture *fixture = *state;
	char buffer[4];

	assert_int_equal(attach_receive(fixture->ours, buffer, sizeof(buffer), NULL, 0, NULL, 0), -EAGAIN);
	assert_int_equal(attach_receive(fixture->ours, buffer, sizeof(buffer), NULL, 0, NULL, 20), -ETIMEDOUT);
}

static volatile sig_atomic_t signals;

static void on_signal(int number)
{
	(void)number;
	signals++;
}

static void test_signals_do_not_end_a_wait(void **state)
{
	struct fixture *fixture = *state;
	struct sigaction action = {.sa_handler = on_signal}; /* without SA_RESTART, so that calls end with EINTR */
	struct itimerval every = {.it_interval = {.tv_usec = 2000}, .it_value = {.tv_usec = 2000}};
	struct itimerval none = {.it_value = {0}};
	char buffer[4];

	signals = 0;
	assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &every, NULL), 0);
	assert_int_equal(attach_receive(fixture->ours, buffer, sizeof(buffer), NULL, 0, NULL, 100), -ETIMEDOUT);
	assert_int_equal(setitimer(ITIMER_REAL, &none, NULL), 0);
	assert_true(signals > 1);
	signal(SIGALRM, SIG_DFL);
	alarm(STUCK_SECONDS);
}

/* ---- listen and connect ---- */

static void test_listen_sets_exactly_the_mode(void **state)
{
	static const mode_t modes[] = {0600, 0660, 0666};
	struct fixture *fixture = *state;
	char path[108];

	path_in(fixture, "socket", path);
	for (size_t i = 0; i < 3; i++) {
		mode_t saved = umask(0777);
		struct stat status;
		int fd = attach_listen(path, modes[i]);

		umask(saved);
		assert_true(fd >= 0);
		assert_int_equal(stat(path, &status), 0);
		assert_true(S_ISSOCK(status.st_mode));
		assert_int_equal(status.st_mode & 07777, modes[i]);
		assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
		assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
		close(fd); /* the file stays: stale for the next round */
	}
}

static void test_listen_does_not_displace_others(void **state)
{
	struct fixture *fixture = *state;
	char path[108];
	char long_path[200];
	int first;
	int file;

	path_in(fixture, "socket", path);
	first = attach_listen(path, 0600);
	assert_true(first >= 0);
	assert_int_equal(attach_listen(path, 0600), -EADDRINUSE);
	close(first);

	path_in(fixture, "file", path);
	file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_true(file >= 0);
	close(file);
	assert_int_equal(attach_listen(path, 0600), -ENOTSOCK);
	assert_int_equal(access(path, F_OK), 0);

	memset(long_path, 'x', sizeof(long_path) - 1);
	long_path[sizeof(long_path) - 1] = '\0';
	assert_int_equal(attach_listen(long_path, 0600), -ENAMETOOLONG);
	assert_int_equal(attach_connect(long_path, 0), -ENAMETOOLONG);
	path_in(fixture, "no/such/folder", path);
	assert_int_equal(attach_listen(path, 0600), -ENOENT);
}

static void test_connect_talks_to_listener(void **state)
{
	struct fixture *fixture = *state;
	char path[108];
	char buffer[8];
	int listener;
	int client;
	int server;

	path_in(fixture, "socket", path);
	listener = attach_listen(path, 0600);
	client = attach_connect(path, 0);
	assert_true(client >= 0);
	assert_int_equal(fcntl(client, F_GETFD), FD_CLOEXEC);
	assert_false(fcntl(client, F_GETFL) & O_NONBLOCK);
	server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(server >= 0);
	assert_int_equal(attach_send(client, "ping", 4, NULL, 0), 0);
	assert_int_equal(attach_receive(server, buffer, sizeof(buffer), NULL, 0, NULL, WAIT_MS), 4);
	close(server);
	close(client);
	close(listener);
}

static void test_connect_without_listener(void **state)
{
	struct fixture *fixture = *state;
	char path[108];
	int listener;

	path_in(fixture, "socket", path);
	assert_int_equal(attach_connect(path, 0), -ENOENT);
	assert_int_equal(attach_connect(path, 30), -ETIMEDOUT);
	assert_int_equal(attach_connect("", 0), -ENOENT);
	listener = attach_listen(path, 0600);
	assert_true(listener >= 0);
	close(listener);
	assert_int_equal(attach_connect(path, 0), -ECONNREFUSED);
	assert_int_equal(attach_connect(path, 120), -ETIMEDOUT);
	path_in(fixture, "socket/below", path);
	assert_int_equal(attach_connect(path, -1), -ENOTDIR); /* a wait would not help */
}

struct connection {
	const char *path;
	int result;
};

static void *connect_thread(void *argument)
{
	struct connection *connection = argument;

	connection->result = attach_connect(connection->path, -1);
	return NULL;
}

/*
 * Return true if this process has an inotify descriptor. attach_connect() then found no listener and is about to wait.
 */
static bool inotify_is_open(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	bool found = false;

	assert_non_null(folder);
	while ((entry = readdir(folder))) {
		char link[64];
		ssize_t length = readlinkat(dirfd(folder), entry->d_name, link, sizeof(link) - 1);

		if (length > 0) {
			link[length] = '\0';
			found = found || strstr(link, "inotify");
		}
	}
	closedir(folder);
	return found;
}

static void wait_until_connect_waits(void)
{
	while (!inotify_is_open())
		sched_yield();
}

static void finish_connection(pthread_t thread, struct connection *connection, int listener)
{
	int server;
	struct pollfd wait = {.fd = listener, .events = POLLIN};

	assert_int_equal(poll(&wait, 1, -1), 1);
	server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(server >= 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(connection->result >= 0);
	close(connection->result);
	close(server);
	close(listener);
}

static void test_connect_waits_for_a_listener(void **state)
{
	struct fixture *fixture = *state;
	char path[108];
	struct connection connection = {.path = path};
	pthread_t thread;
	int listener;

	path_in(fixture, "socket", path);
	assert_int_equal(pthread_create(&thread, NULL, connect_thread, &connection), 0);
	wait_until_connect_waits();
	listener = attach_listen(path, 0600);
	assert_true(listener >= 0);
	finish_connection(thread, &connection, listener);
}

static void test_connect_waits_for_the_folder_too(void **state)
{
	struct fixture *fixture = *state;
	char path[108];
	char folder[108];
	struct connection connection = {.path = path};
	pthread_t thread;
	int listener;

	path_in(fixture, "a/b/socket", path);
	assert_int_equal(pthread_create(&thread, NULL, connect_thread, &connection), 0);
	wait_until_connect_waits();
	path_in(fixture, "a", folder);
	assert_int_equal(mkdir(folder, 0700), 0);
	path_in(fixture, "a/b", folder);
	assert_int_equal(mkdir(folder, 0700), 0);
	listener = attach_listen(path, 0600);
	assert_true(listener >= 0);
	finish_connection(thread, &connection, listener);
}

/* The agent was killed and left its socket file. The worker connects to the next agent. */
static void test_connect_waits_at_a_stale_socket(void **state)
{
	struct fixture *fixture = *state;
	char path[108];
	struct connection connection = {.path = path};
	pthread_t thread;
	int listener;

	path_in(fixture, "socket", path);
	listener = attach_listen(path, 0600);
	assert_true(listener >= 0);
	close(listener);
	assert_int_equal(pthread_create(&thread, NULL, connect_thread, &connection), 0);
	wait_until_connect_waits();
	listener = attach_listen(path, 0600);
	assert_true(listener >= 0);
	finish_connection(thread, &connection, listener);
}

/* ---- peers ---- */

struct child {
	pid_t pid;
	int socket; /* this process's end of the child's connection */
	int life;   /* closing it ends the child */
};

/* Start a child that connects, as another user if possible, and runs until the parent ends it. */
static struct child start_child(const struct fixture *fixture)
{
	struct child child;
	char path[108];
	struct pollfd wait;
	int listener;
	int life[2];

	path_in(fixture, "socket", path);
	listener = attach_listen(path, 0666);
	assert_true(listener >= 0);
	assert_int_equal(chmod(fixture->folder, 0755), 0);
	assert_int_equal(pipe2(life, O_CLOEXEC), 0);
	child.pid = fork();
	assert_true(child.pid >= 0);
	if (child.pid == 0) {
		const gid_t groups[] = {4242, 4343};
		char byte;

		close(life[1]);
		if (geteuid() == 0 &&
			(setgroups(2, groups) < 0 || setresgid(1234, 1234, 1234) < 0 ||
				setresuid(1235, 1235, 1235) < 0))
			_exit(2);
		if (attach_connect(path, WAIT_MS) < 0)
			_exit(3);
		_exit(read(life[0], &byte, 1) == 0 ? 0 : 4);
	}
	close(life[0]);
	child.life = life[1];
	wait = (struct pollfd){.fd = listener, .events = POLLIN};
	assert_int_equal(poll(&wait, 1, -1), 1);
	child.socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(child.socket >= 0);
	close(listener);
	return child;
}

static void end_child(struct child *child)
{
	int status;

	close(child->life);
	assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static bool is_readable(int fd, int timeout_ms)
{
	struct pollfd wait = {.fd = fd, .events = POLLIN};

	return poll(&wait, 1, timeout_ms) == 1;
}

static void test_peer_is_the_connecting_process(void **state)
{
	static struct attach_peer peer;
	struct child child = start_child(*state);
	bool changed = geteuid() == 0;

	assert_int_equal(attach_peer(child.socket, &peer), 0);
	assert_int_equal(peer.pid, child.pid);
	assert_int_equal(peer.uid, changed ? 1235 : getuid());
	assert_int_equal(peer.gid, changed ? 1234 : getgid());
	if (changed) {
		assert_int_equal(peer.group_count, 2);
		assert_int_equal(peer.groups[0], 4242);
		assert_int_equal(peer.groups[1], 4343);
	} else {
		assert_int_equal(peer.group_count, getgroups(0, NULL));
	}
	assert_int_equal(fcntl(peer.pidfd, F_GETFD), FD_CLOEXEC);
	assert_false(is_readable(peer.pidfd, 0));
	end_child(&child);
	assert_true(is_readable(peer.pidfd, -1));
	close(peer.pidfd);
	close(child.socket);
}

/* Test the method for kernels without SO_PEERPIDFD. */
static void test_pidfd_by_number_checks_the_peer(void **state)
{
	struct child child = start_child(*state);
	uid_t uid = geteuid() == 0 ? 1235 : getuid();
	int pidfd = attach_pidfd_open(child.socket, child.pid, uid);

	assert_true(pidfd >= 0);
	assert_int_equal(fcntl(pidfd, F_GETFD), FD_CLOEXEC);
	assert_false(is_readable(pidfd, 0));
	/* another user's process with this pid is not the peer */
	assert_int_equal(attach_pidfd_open(child.socket, child.pid, uid + 1), -ESRCH);
	end_child(&child);
	assert_true(is_readable(pidfd, -1));
	close(pidfd);
	/*
	 * by now the pid is free, or another process has it; to simulate the second case, pass this process's own pid,
	 * so that only the closed connection shows the end
	 */
	assert_int_equal(attach_pidfd_open(child.socket, child.pid, uid), -ESRCH);
	assert_int_equal(attach_pidfd_open(child.socket, getpid(), geteuid()), -ESRCH);
	close(child.socket);
}

static void test_dead_process_has_no_pidfd(void **state)
{
	struct fixture *fixture = *state;
	int status;
	siginfo_t info;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0)
		_exit(0);
	/* a zombie is dead, but its pid is not free yet, and the given connection is open */
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	assert_int_equal(attach_pidfd_open(fixture->ours, pid, geteuid()), -ESRCH);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(attach_pidfd_open(fixture->ours, pid, geteuid()), -ESRCH);
}

#define attach_test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		attach_test(test_bytes_and_descriptors_arrive),
		attach_test(test_send_refuses_too_many_descriptors_and_empty_packets),
		attach_test(test_unasked_descriptors_are_closed),
		attach_test(test_packet_too_long_is_refused_with_its_descriptors),
		attach_test(test_limit_of_open_files_is_noticed),
		attach_test(test_end_of_peer_is_epipe),
		attach_test(test_empty_packet_is_epipe),
		attach_test(test_full_queue_is_eagain),
		attach_test(test_timeouts),
		attach_test(test_signals_do_not_end_a_wait),
		attach_test(test_listen_sets_exactly_the_mode),
		attach_test(test_listen_does_not_displace_others),
		attach_test(test_connect_talks_to_listener),
		attach_test(test_connect_without_listener),
		attach_test(test_connect_waits_for_a_listener),
		attach_test(test_connect_waits_for_the_folder_too),
		attach_test(test_connect_waits_at_a_stale_socket),
		attach_test(test_peer_is_the_connecting_process),
		attach_test(test_pidfd_by_number_checks_the_peer),
		attach_test(test_dead_process_has_no_pidfd),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
