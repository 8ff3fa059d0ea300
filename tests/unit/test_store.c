/*
 * test_store.c - the state in the store of a service manager.
 *
 * Goal: the stored state is read back completely, after any number of reads. The store of another program, or one of
 * another layout, is refused. Method: pools and held descriptors made by hand, distinguished by their inodes, and
 * damaged heads.
 */
#include "agent/keeper/store.h"
#include "proto/attach.h"
#include "tests/unit/held_find.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 700, HANDLES = 600 }; /* more than fit into one packet, and not a multiple of that */

static const struct pool_geometry geometry = {
	.name = "p0",
	.backend = "host",
	.device = "HOST-1",
	.page_bytes = 512 << 10,
	.page_count = PAGES,
	.pages_per_handle = 1,
	.reserved_pages = 10,
};
static struct module_pool pool;
static struct module_start start = {.pools = &pool, .pool_count = 1, .incarnation = 77};
static struct held_table held;
static ino_t inodes[HANDLES], session_inodes[4];

static ino_t inode_of(int fd)
{
	struct stat status;

	assert_int_equal(fstat(fd, &status), 0);
	return status.st_ino;
}

static int new_fd(void)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static int set_up(void **state)
{
	struct held session = {.kind = KEEP_SESSION, .id = 9, .fd_count = 4};

	(void)state;
	memset(&held, 0, sizeof(held));
	assert_int_equal(pool_segment_create(&geometry, &pool.segment, &pool.segment_fd), 0);
	assert_int_equal(ledger_create(PAGES, POOL_OBJECTS_LEAST, 0, 0, &pool.ledger, &pool.ledger_fd), 0);
	for (uint32_t i = 0; i < HANDLES; i++) {
		struct held item = {
			.kind = KEEP_HANDLE, .id = i, .fd_count = 1, .fds = {new_fd()}, .value = i * 10, .value2 = 5};

		inodes[i] = inode_of(item.fds[0]);
		assert_int_equal(held_add(&held, &item), 0);
	}
	for (int i = 0; i < 4; i++) {
		session.fds[i] = new_fd();
		session_inodes[i] = inode_of(session.fds[i]);
	}
	assert_int_equal(held_add(&held, &session), 0);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	held_clear(&held);
	pool_segment_close(&pool.segment);
	ledger_close(&pool.ledger);
	close(pool.segment_fd);
	close(pool.ledger_fd);
	return 0;
}

static void test_stored_content_reads_back(void **state)
{
	struct held_table out = {0};
	struct store store;
	const struct held *item;
	char text[400] = "";
	int socket = store_write(&start, &held, text, sizeof(text));

	(void)state;
	if (socket < 0)
		fail_msg("%s", text);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(store_look(dup(socket), &store, text, sizeof(text)), 0);
		assert_true(store.socket >= 0);
		assert_int_equal(store.head.incarnation, 77);
		assert_true(store_fits(&store, 0, &geometry, text, sizeof(text)));
		assert_false(store_fits(&store, 1, &geometry, text, sizeof(text)));
		if (i < 2)
			store_close(&store);
	}
	assert_int_equal(store_take(&store, &out, text, sizeof(text)), 0);
	store_close(&store);
	assert_int_equal(out.count, HANDLES + 1);
	for (uint32_t i = 0; i < HANDLES; i++) {
		item = held_find(&out, KEEP_HANDLE, 0, i);
		assert_non_null(item);
		assert_int_equal(inode_of(item->fds[0]), inodes[i]);
		assert_int_equal(item->value, i * 10);
		assert_int_equal(item->value2, 5);
	}
	/* A session's segment and pidfd are stored. Its connection and its doorbell are not. */
	item = held_find(&out, KEEP_SESSION, 0, 9);
	assert_non_null(item);
	assert_int_equal(item->fd_count, 4);
	assert_int_equal(inode_of(item->fds[0]), session_inodes[0]);
	assert_int_equal(item->fds[1], -1);
	assert_int_equal(inode_of(item->fds[2]), session_inodes[2]);
	assert_int_equal(item->fds[3], -1);
	held_clear(&out);
	assert_int_equal(store_look(socket, &store, text, sizeof(text)), 0);
	assert_int_equal(store.socket, -1);
}

static void test_a_different_layout_is_refused(void **state)
{
	struct pool_geometry others[8];
	struct store store;
	char text[400] = "";
	int socket = store_write(&start, &held, text, sizeof(text));

	(void)state;
	assert_true(socket >= 0);
	for (int i = 0; i < 8; i++)
		others[i] = geometry;
	others[0].name = "p1";
	others[1].backend = "cuda";
	others[2].device = "HOST-2";
	others[3].page_bytes *= 2;
	others[4].page_count++;
	others[5].pages_per_handle = 2;
	others[6].reserved_pages = 0;
	assert_int_equal(store_look(socket, &store, text, sizeof(text)), 0);
	for (int i = 0; i < 7; i++) {
		text[0] = '\0';
		assert_false(store_fits(&store, 0, &others[i], text, sizeof(text)));
		assert_true(text[0]);
	}
	assert_true(store_fits(&store, 0, &others[7], text, sizeof(text)));
	store_close(&store);
}

/* Make a socket with this head, and the right number of descriptors or too few. */
static int socket_with(const struct store_head *head, size_t bytes, size_t fd_count)
{
	int ends[2], items = memfd_create("items", MFD_CLOEXEC), fds[] = {items, pool.segment_fd, pool.ledger_fd};

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	assert_int_equal(attach_send(ends[0], head, bytes, fds, fd_count), 0);
	close(items);
	close(ends[0]);
	return ends[1];
}

static void test_damage_is_refused(void **state)
{
	struct store_head good, head;
	char text[400] = "", wanted[200], theirs[LAYOUT_TEXT_BYTES], ours[LAYOUT_TEXT_BYTES];
	struct store store;
	int socket = store_write(&start, &held, text, sizeof(text));

	(void)state;
	assert_int_equal(store_look(socket, &store, text, sizeof(text)), 0);
	good = store.head;
	store_close(&store);
	good.item_count = good.fd_count = 0;
	assert_int_equal(store_look(socket_with(&good, sizeof(good), 3), &store, text, sizeof(text)), 0);
	store_close(&store);
	assert_int_equal(store_look(socket_with(&good, sizeof(good), 2), &store, text, sizeof(text)), -EBADMSG);
	assert_int_equal(store_look(socket_with(&good, sizeof(good), 0), &store, text, sizeof(text)), -EBADMSG);
	assert_int_equal(store_look(socket_with(&good, sizeof(good) - 1, 3), &store, text, sizeof(text)), -EBADMSG);
	head = good;
	head.magic++;
	assert_int_equal(store_look(socket_with(&head, sizeof(head), 3), &store, text, sizeof(text)), -EBADMSG);
	head = good;
	head.layout_version++;
	assert_int_equal(store_look(socket_with(&head, sizeof(head), 3), &store, text, sizeof(text)), -EPROTO);
	assert_non_null(strstr(text, "layout"));
	/* Use the same version number for other structs, and a head of a version without a sum. */
	head = good;
	head.layout_sum++;
	assert_int_equal(store_look(socket_with(&head, sizeof(head), 3), &store, text, sizeof(text)), -EPROTO);
	snprintf(wanted, sizeof(wanted), "it has layout %s, but this gpoold has %s",
		layout_text(POOL_LAYOUT_VERSION, head.layout_sum, theirs),
		layout_text(POOL_LAYOUT_VERSION, good.layout_sum, ours));
	assert_string_equal(text, wanted);
	head = good;
	head.head_bytes = offsetof(struct store_head, layout_sum);
	assert_int_equal(store_look(socket_with(&head, head.head_bytes, 3), &store, text, sizeof(text)), -EPROTO);
	snprintf(wanted, sizeof(wanted), "it has layout %d, but this gpoold has %s", POOL_LAYOUT_VERSION, ours);
	assert_string_equal(text, wanted);
	/* The head is shorter than it states. */
	assert_int_equal(store_look(socket_with(&good, offsetof(struct store_head, incarnation) - 1, 3), &store, text,
				 sizeof(text)),
		-EBADMSG);
	head = good;
	head.pool_count = 1000;
	assert_int_equal(store_look(socket_with(&head, sizeof(head), 3), &store, text, sizeof(text)), -EBADMSG);
	head = good;
	head.item_count = 5;
	assert_int_equal(store_look(socket_with(&head, sizeof(head), 3), &store, text, sizeof(text)), -EBADMSG);
	head = good;
	head.fd_count = 5;
	assert_int_equal(store_look(socket_with(&head, sizeof(head), 3), &store, text, sizeof(text)), -EBADMSG);
}

/* Run in an unprivileged process with a low limit. It may have its descriptors in flight once but not twice. */
static void test_too_many_in_flight_is_named(void **state)
{
	int status;
	pid_t child = fork();

	(void)state;
	assert_true(child >= 0);
	if (child == 0) {
		struct rlimit low = {HANDLES + 100, HANDLES + 100};
		char text[400] = "";
		int first, second;

		if (setrlimit(RLIMIT_NOFILE, &low) < 0 || (geteuid() == 0 && setuid(65534) < 0))
			_exit(1);
		first = store_write(&start, &held, text, sizeof(text));
		second = store_write(&start, &held, text, sizeof(text));
		if (first < 0 || second != -ETOOMANYREFS || !strstr(text, "RLIMIT_NOFILE") ||
			!strstr(text, "LimitNOFILE"))
			fprintf(stderr, "%d, %d: %s\n", first, second, text);
		_exit(first >= 0 && second == -ETOOMANYREFS && strstr(text, "RLIMIT_NOFILE") &&
					strstr(text, "LimitNOFILE")
				? 0
				: 2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_stored_content_reads_back, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_different_layout_is_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_too_many_in_flight_is_named, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_damage_is_refused, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
