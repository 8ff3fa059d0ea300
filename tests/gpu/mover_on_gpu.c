/*
 * mover_on_gpu.c - test the mover on a real GPU.
 *
 * Goal: the behavior that tests/unit/test_mover*.c show on `host` is the same on `cuda`. A mover imports and maps
 * handles, each with its own descriptor, that a process without a context has created. It copies to and from
 * page-locked tiers and buffers. If it dies during work, its successor completes the work. Method: several processes,
 * since the driver does not survive fork(): an owner (this program, executed again), which creates and exports; this
 * process, which never uses the driver, as keeper and agent; and the movers that it forks. The content of a page is
 * loaded from a tier and read back through another slot of a tier. `mover_on_gpu --backend host` runs the same on the
 * host back end, to test the test.
 *
 * Exit status: 0: passed; 1: failed; 77: no GPU (the reason is printed).
 */
#include "tests/gpu/peer.h"
#include "tests/unit/mover_rig.h"

static const char *backend = "cuda";

/* The owner's message about a handle, with its descriptor or the reason why there is none. */
struct owner_message {
	int32_t error;
	uint64_t offset, length;
	char text[256];
};

/* ---- the owner ---- */

static int owner_say_error(int error)
{
	struct owner_message message = {.error = error};

	snprintf(message.text, sizeof(message.text), "%s", gpu_error_text());
	return peer_send(PEER_SOCKET, &message, sizeof(message), -1) ? 1 : 0;
}

static int owner_run(const char *name)
{
	const struct gpu_ops *ops = gpu_backend(name);
	char byte;
	struct gpu *gpu;
	int devices = ops ? ops->device_count() : -EINVAL;

	if (devices < 1)
		return owner_say_error(-ENODEV);
	if (gpu_open(ops, 0, GPU_OPEN_OWNER, &gpu))
		return owner_say_error(-EIO);
	for (uint32_t i = 0; i < HANDLES; i++) {
		struct owner_message message = {0};
		struct gpu_export export;
		uint64_t handle;

		if (gpu_create(gpu, (uint64_t)PAGES_PER_HANDLE * PAGE_BYTES, &handle) ||
			gpu_export(gpu, handle, &export))
			return owner_say_error(-EIO);
		message.offset = export.offset;
		message.length = export.length;
		if (peer_send(PEER_SOCKET, &message, sizeof(message), export.fd))
			return 1;
		close(export.fd);
	}
	while (read(PEER_SOCKET, &byte, 1) < 0 && errno == EINTR)
		;
	gpu_close(gpu);
	return 0;
}

/* ---- the test ---- */

static pid_t owner;
static int owner_socket = -1;

static int owner_start(struct owner_message *messages, int *fds)
{
	char name[16];
	char *const arguments[] = {"mover_on_gpu", "--owner", name, NULL};

	snprintf(name, sizeof(name), "%s", backend);
	owner = peer_start(arguments, &owner_socket);
	if (owner < 0)
		return (int)owner;
	for (uint32_t i = 0; i < HANDLES; i++) {
		int error = peer_receive(owner_socket, &messages[i], sizeof(messages[i]), &fds[i]);

		if (error || messages[i].error) {
			printf("no memory of back end '%s': %s\n", backend,
				error ? strerror(-error) : messages[i].text);
			return error ? error : messages[i].error;
		}
	}
	return 0;
}

static void owner_stop(void)
{
	close(owner_socket);
	waitpid(owner, NULL, 0);
}

static struct owner_message exports[HANDLES];
static int export_fds[HANDLES];

static int setup(void **state)
{
	struct rig *rig = rig_pool(backend);

	for (uint32_t i = 0; i < HANDLES; i++)
		rig_hold(rig,
			(struct held){
				KEEP_HANDLE, 0, i, 1, {dup(export_fds[i])}, exports[i].offset, exports[i].length});
	rig_tiers(rig);
	rig_start(rig);
	for (uint32_t page = 0; page < PAGES; page++) {
		pattern_write(rig_slot(rig, page), page);
		rig_submit(rig, MOVER_LOAD, page, MOVER_TIER_MEMORY, page, pattern_checksum(page), page);
	}
	rig_collect(rig, PAGES - rig->collected);
	for (uint32_t page = 0; page < PAGES; page++)
		assert_int_equal(rig->errors[page], 0);
	memset(rig->memory, 0x5a, (size_t)MEMORY_SLOTS * PAGE_BYTES);
	*state = rig;
	return 0;
}

static int teardown(void **state)
{
	rig_free(*state);
	return 0;
}

/* Return the content of a page on the GPU, copied to a slot of the memory tier. */
static const uint8_t *page_seen(struct rig *rig, uint32_t page)
{
	memset(rig_slot(rig, MEMORY_SLOTS - 1), 0x5a, PAGE_BYTES);
	assert_int_equal(rig_do(rig, MOVER_SPILL, page, MOVER_TIER_MEMORY, MEMORY_SLOTS - 1, 0), 0);
	return rig_slot(rig, MEMORY_SLOTS - 1);
}

static void test_copy_and_scrub(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(rig_do(rig, MOVER_COPY, 3, 0, 30, 0), 0);
	assert_int_equal(rig_do(rig, MOVER_SCRUB, 5, 0, 0, 0), 0);
	assert_true(pattern_is(page_seen(rig, 30), 3));
	assert_true(pattern_is(page_seen(rig, 3), 3));
	assert_true(pattern_is(page_seen(rig, 31), 31));
	assert_true(is_zero(page_seen(rig, 5)));
	assert_true(pattern_is(page_seen(rig, 4), 4));
	assert_true(pattern_is(page_seen(rig, 6), 6));
}

static void test_tiers(void **state)
{
	struct rig *rig = *state;

	for (uint32_t page = 0; page < PAGES; page++) {
		enum mover_tier tier = page % 2 ? MOVER_TIER_MEMORY : MOVER_TIER_FILE;

		assert_int_equal(rig_do(rig, MOVER_SPILL, page, tier, page, 0), 0);
		assert_true(rig->checksums[0] == pattern_checksum(page));
		assert_int_equal(rig_do(rig, MOVER_SCRUB, page, 0, 0, 0), 0);
		assert_int_equal(rig_do(rig, MOVER_LOAD, page, tier, page, pattern_checksum(page) + 1), -EBADMSG);
		assert_true(is_zero(page_seen(rig, page)));
		assert_int_equal(rig_do(rig, MOVER_LOAD, page, tier, page, pattern_checksum(page)), 0);
		assert_true(pattern_is(page_seen(rig, page), page));
	}
}

static void test_killed_in_the_middle(void **state)
{
	enum { JOBS = 3 * PAGES };
	struct rig *rig = *state;
	uint32_t kills = 0;

	memset(rig->have, 0, sizeof(rig->have));
	rig->collected = 0;
	for (uint32_t page = 0; page < PAGES; page++) {
		enum mover_tier tier = page % 2 ? MOVER_TIER_MEMORY : MOVER_TIER_FILE;

		rig_submit(rig, MOVER_SPILL, page, tier, page, 0, 3 * page);
		rig_submit(rig, MOVER_SCRUB, page, 0, 0, 0, 3 * page + 1);
		rig_submit(rig, MOVER_LOAD, page, tier, page, pattern_checksum(page), 3 * page + 2);
	}
	while (rig->collected < JOBS) {
		uint32_t left = JOBS - rig->collected;

		rig_collect(rig, left < 9 ? left : 9);
		rig_stop(rig, SIGKILL);
		kills++;
		rig_start(rig);
	}
	for (uint32_t i = 0; i < JOBS; i++)
		assert_int_equal(rig->errors[i], 0);
	for (uint32_t page = 0; page < PAGES; page++)
		assert_true(pattern_is(page_seen(rig, page), page));
	print_message("%u movers killed\n", kills);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_copy_and_scrub, setup, teardown),
		cmocka_unit_test_setup_teardown(test_tiers, setup, teardown),
		cmocka_unit_test_setup_teardown(test_killed_in_the_middle, setup, teardown),
	};
	int result;

	if (argc == 3 && !strcmp(argv[1], "--owner"))
		return owner_run(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "--backend")) {
		backend = argv[2];
	} else if (argc > 1) {
		fprintf(stderr, "usage: mover_on_gpu [--backend cuda|host]\n");
		return 2;
	}
	result = owner_start(exports, export_fds);
	if (result)
		return result == -ENODEV ? 77 : 1;
	result = cmocka_run_group_tests(tests, NULL, NULL);
	owner_stop();
	return result;
}
