/*
 * test_spill.c - blocks allocated with GPOOL_ALLOC_SPILL are spilled under pressure, and restored with their content.
 *
 * Goal: every byte is right after a spill and a restore, through host memory and file, contiguous or scattered. This
 * holds with threads that pin the same block at the same time, and with a mover that is killed during the copy. Blocks
 * that cannot be saved remain in the pool. A block that cannot be read causes an error for that block alone. No saved
 * content remains of blocks that are freed or whose worker has ended.
 *
 * Method: each test starts a gpoold with a pool of 64 pages. Content identifies its page. The counters in the pool's
 * header show which blocks have moved. Tiers are damaged through the keeper's descriptors.
 *
 * Requirements: U13.
 */
#include "tests/integration/spill_view.h"
#include "tests/lib/temporary.h"

#include "client/core/spill.h"

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>

enum { PAGE_BYTES = 512 << 10, WORDS = PAGE_BYTES / 8, MANY = 48 };

#define CALM QUIET, "--set", "lease.initial_pages=0", "--set", "lease.batch_pages=1", "--set", "lease.batch_most=1"

static const char *const in_memory[] = {"--pool", POOL ",spill_memory=32MiB", CALM, NULL};
static const char *const no_tier[] = {"--pool", POOL ",spill_memory=0MiB", CALM, NULL};

/* ---- blocks and their contents ---- */

static struct gpool_block alloc_spill(struct gpool *pool, uint32_t page_count, uint32_t flags)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block = {0};

	options.flags = GPOOL_ALLOC_SPILL | flags;
	options.owner_id = 4711;
	options.timeout_ms = ANSWER_MS;
	assert_int_equal(gpool_alloc(pool, page_count, &options, &block), 0);
	return block;
}

static volatile uint64_t *words_of(struct gpool *pool, const struct gpool_block *block)
{
	uint64_t address = 0;

	assert_int_equal(gpool_address(pool, block, &address), 0);
	return (volatile uint64_t *)(uintptr_t)address;
}

/* Write to each word its content and position. The block is pinned. */
static void fill(struct gpool *pool, const struct gpool_block *block, uint64_t content)
{
	volatile uint64_t *words = words_of(pool, block);

	for (uint64_t i = 0; i < (uint64_t)block->page_count * WORDS; i++)
		words[i] = content << 32 | i;
}

static uint64_t wrong_words(struct gpool *pool, const struct gpool_block *block, uint64_t content)
{
	volatile uint64_t *words = words_of(pool, block);
	uint64_t wrong = 0;

	for (uint64_t i = 0; i < (uint64_t)block->page_count * WORDS; i++)
		wrong += words[i] != (content << 32 | i);
	return wrong;
}

static struct gpool_block made(struct gpool *pool, uint32_t page_count, uint64_t content)
{
	struct gpool_block block = alloc_spill(pool, page_count, 0);

	fill(pool, &block, content);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	return block;
}

static void read_back(struct gpool *pool, const struct gpool_block *block, uint64_t content)
{
	assert_int_equal(gpool_pin(pool, block), 0);
	assert_int_equal(wrong_words(pool, block, content), 0);
	assert_int_equal(gpool_unpin(pool, block), 0);
}

/* Evict all of a session's unpinned blocks. */
static void evict_all(struct gpool *pool, uint64_t pages)
{
	uint64_t before = spilled();

	/* The mover may still be starting. */
	AWAIT(spilled() - before >= pages ||
		(harness_evict(&harness, gpool_session(pool), PAGES), spilled() - before >= pages));
	AWAIT(moving() == 0);
}

/* Wait until the mover serves the pool, and return its pid. A mover that is starting has a pid, but may still end. */
static pid_t mover_serving(void)
{
	pid_t mover = 0;

	AWAIT((mover = (pid_t)status()->pools[0].mover_pid) != 0);
	return mover;
}

/* Return the number of requests that the worker has sent. Each request increases the serial number of its slot. */
static uint32_t requests_sent(const struct gpool *pool)
{
	uint32_t sent = 0;

	for (int i = 0; i < SESSION_REQUESTS; i++)
		sent += atomic_load(&pool->session.requests[i].state) / LEASE_SERIAL_ONE;
	return sent;
}

static int interrupted(void *argument)
{
	(void)argument;
	return 1;
}

/* Pin the block with a check that ends the wait. */
static int pin_briefly(struct gpool *pool, const struct gpool_block *block)
{
	int error;

	gpool_wait_check(interrupted, NULL);
	error = gpool_pin(pool, block);
	gpool_wait_check(NULL, NULL);
	return error;
}

/* ---- tests ---- */

static void test_content_is_restored_elsewhere(void **state)
{
	struct gpool *pool, *other;
	struct gpool_block blocks[4], squatters[64], moved;
	uint32_t count = 0;

	(void)state;
	start(in_memory);
	pool = open_worker();
	other = open_worker();
	for (uint32_t i = 0; i < 4; i++)
		blocks[i] = made(pool, 1 + i, 100 + i);
	evict_all(pool, 10);
	assert_int_equal(spilled(), 10);
	assert_int_equal(kept_bytes(), 10 * PAGE_BYTES);
	assert_int_equal(harness_free_pages(&harness), 64);
	/* Another session allocates the former pages of the blocks. */
	for (; count < 20; count++)
		squatters[count] = alloc(other, 1);
	for (uint32_t i = 0; i < 4; i++) {
		struct gpool_block was = blocks[i];

		assert_int_equal(gpool_touch(pool, &blocks[i]), -ESTALE);
		assert_int_equal(gpool_pin(pool, &blocks[i]), 0);
		assert_int_equal(wrong_words(pool, &blocks[i], 100 + i), 0);
		moved = blocks[i];
		assert_int_equal(gpool_refresh(pool, &moved), 0);
		assert_int_not_equal(moved.page, was.page);
		assert_int_equal(moved.page_count, was.page_count);
		assert_int_equal(moved.tag >> 16, was.tag >> 16);
		assert_int_equal(pool->session.blocks[moved.page].owner_id, 4711);
		/* Both handles are valid: the new one for a second pin, and either for an unpin. */
		assert_int_equal(gpool_pin(pool, &moved), 0);
		assert_int_equal(wrong_words(pool, &moved, 100 + i), 0);
		assert_int_equal(gpool_touch(pool, &was), 0);
		assert_int_equal(gpool_unpin(pool, &was), 0);
		assert_int_equal(gpool_unpin(pool, &moved), 0);
		assert_int_equal(gpool_unpin(pool, &was), -EINVAL);
	}
	assert_int_equal(kept_bytes(), 0);
	assert_int_equal(counter(POOL_COUNT_RESTORED_PAGES), 10);
	/* Spill and restore once more, from the new pages. */
	evict_all(pool, 10);
	for (uint32_t i = 0; i < 4; i++)
		read_back(pool, &blocks[i], 100 + i);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(gpool_pin(pool, &blocks[i]), 0);
		assert_int_equal(gpool_free(pool, &blocks[i]), 0);
		assert_int_equal(gpool_free(pool, &blocks[i]), -ESTALE);
		assert_int_equal(gpool_pin(pool, &blocks[i]), -ESTALE);
	}
	while (count)
		assert_int_equal(gpool_free(other, &squatters[--count]), 0);
	gpool_close(pool);
	gpool_close(other);
}

static void test_pressure_of_another_spills(void **state)
{
	struct gpool *pool, *other;
	struct gpool_block blocks[MANY], taken[MANY];

	(void)state;
	start(in_memory);
	pool = open_worker();
	other = open_worker();
	for (uint32_t i = 0; i < MANY; i++)
		blocks[i] = made(pool, 1, i);
	/* Even without a timeout, the call waits until the blocks that are being spilled have been moved. */
	for (uint32_t i = 0; i < MANY; i++)
		AWAIT(gpool_alloc(other, 1, NULL, &taken[i]) == 0);
	assert_true(spilled() >= 2 * MANY - PAGES);
	/* No more pages are spilled than needed, except those that several requests needed at the same time. */
	assert_true(spilled() <= 2 * MANY - PAGES + 2);
	for (uint32_t i = 0; i < MANY; i++)
		assert_int_equal(gpool_free(other, &taken[i]), 0);
	for (uint32_t i = 0; i < MANY; i++)
		read_back(pool, &blocks[i], i);
	gpool_close(pool);
	gpool_close(other);
}

/* The blocks have more content than the pool has pages, so each pin evicts another block. */
static void test_more_blocks_than_pages(void **state)
{
	enum { BLOCKS = 96 };
	struct gpool *pool;
	struct gpool_block blocks[BLOCKS];

	(void)state;
	start((const char *const[]){"--pool", POOL ",spill_memory=64MiB", CALM, NULL});
	pool = open_worker();
	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks[i] = made(pool, 1, i);
	for (int round = 0; round < 3; round++)
		for (uint32_t i = 0; i < BLOCKS; i++)
			read_back(pool, &blocks[i], i);
	assert_true(counter(POOL_COUNT_RESTORED_PAGES) >= BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_int_equal(gpool_discard(pool, &blocks[i]), 0);
	assert_int_equal(kept_bytes(), 0);
	gpool_close(pool);
}

static void test_scattered_blocks(void **state)
{
	struct gpool *pool;
	struct gpool_block singles[PAGES], block, moved;

	(void)state;
	start(in_memory);
	pool = open_worker();
	for (uint32_t i = 0; i < PAGES; i++)
		singles[i] = alloc(pool, 1);
	for (uint32_t i = 0; i < PAGES; i += 2)
		assert_int_equal(gpool_free(pool, &singles[i]), 0);
	block = alloc_spill(pool, 8, 0);
	assert_true(block.tag & BLOCK_SCATTERED);
	fill(pool, &block, 9);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	evict_all(pool, 8);
	read_back(pool, &block, 9); /* the free pages are as scattered as before */
	evict_all(pool, 8);
	for (uint32_t i = 1; i < PAGES; i += 2)
		assert_int_equal(gpool_free(pool, &singles[i]), 0);
	assert_int_equal(gpool_pin(pool, &block), 0); /* contiguous now, by the handle of the scattered block */
	assert_int_equal(wrong_words(pool, &block, 9), 0);
	moved = block;
	assert_int_equal(gpool_refresh(pool, &moved), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	assert_int_equal(gpool_pin(pool, &moved), -ESTALE);
	gpool_close(pool);
}

static void test_freed_and_dropped_leave_nothing(void **state)
{
	struct gpool *pool;
	struct gpool_block blocks[4];

	(void)state;
	start(in_memory);
	pool = open_worker();
	for (uint32_t i = 0; i < 4; i++)
		blocks[i] = made(pool, 2, i);
	evict_all(pool, 8);
	assert_int_equal(gpool_discard(pool, &blocks[0]), 0);
	assert_int_equal(gpool_discard(pool, &blocks[0]), -ESTALE);
	assert_int_equal(gpool_free(pool, &blocks[1]), 0);
	assert_int_equal(gpool_pin(pool, &blocks[1]), -ESTALE);
	assert_int_equal(kept_bytes(), 4 * PAGE_BYTES);
	read_back(pool, &blocks[2], 2);
	assert_int_equal(gpool_discard(pool, &blocks[2]), 0);
	assert_int_equal(kept_bytes(), 2 * PAGE_BYTES);
	gpool_close(pool);
	AWAIT(kept_bytes() == 0);
}

static void test_worker_killed(void **state)
{
	int ready[2];
	char byte;
	pid_t pid;

	(void)state;
	start(in_memory);
	assert_int_equal(pipe(ready), 0);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct gpool *pool = harness_open(&harness);
		struct gpool_block blocks[20];
		struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

		options.flags = GPOOL_ALLOC_SPILL;
		for (int i = 0; i < 20; i++)
			if (gpool_alloc(pool, 1, &options, &blocks[i]) || gpool_unpin(pool, &blocks[i]))
				_exit(1);
		if (write(ready[1], "", 1) != 1)
			_exit(1);
		for (int i = 0;; i++)
			gpool_pin(pool, &blocks[i % 20]), gpool_unpin(pool, &blocks[i % 20]);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	AWAIT(spilled() > 30 || (harness_evict(&harness, 0, 7), false));
	kill(pid, SIGKILL);
	status_of(pid);
	AWAIT(harness_free_pages(&harness) == PAGES && kept_bytes() == 0);
	assert_int_equal(moving(), 0);
	close(ready[0]);
	close(ready[1]);
}

/* ---- limits of the tiers, and full disks ---- */

static void with_file(const char *memory, const char *file, char *pool_text, size_t bytes)
{
	/* The runtime directory does not exist yet, so use the folder for temporary files itself. */
	snprintf(pool_text, bytes, POOL ",spill_memory=%s,spill_directory=%s,spill_file=%s", memory, temporary_folder(),
		file);
}

static void test_memory_full_then_file(void **state)
{
	struct gpool *pool;
	struct gpool_block blocks[12];
	char text[256];

	(void)state;
	with_file("2MiB", "16MiB", text, sizeof(text));
	start((const char *const[]){"--pool", text, CALM, NULL});
	pool = open_worker();
	for (uint32_t i = 0; i < 12; i++)
		blocks[i] = made(pool, 1 + i % 3, i);
	evict_all(pool, 24);
	assert_int_equal(status()->pools[0].spill_memory_bytes, 4 * PAGE_BYTES);
	assert_int_equal(status()->pools[0].spill_file_bytes, 20 * PAGE_BYTES);
	for (uint32_t i = 0; i < 12; i++)
		read_back(pool, &blocks[i], i);
	assert_int_equal(kept_bytes(), 0);
	gpool_close(pool);
}

static bool tiers_have(uint64_t memory_pages, uint64_t file_pages)
{
	const struct msg_pool_status *pool = &status()->pools[0];

	return pool->spill_memory_bytes == memory_pages * PAGE_BYTES &&
		pool->spill_file_bytes == file_pages * PAGE_BYTES;
}

/* The oldest spilled blocks move to the file, so that an eighth of the memory is free for the next ones. */
static void test_oldest_sink(void **state)
{
	struct gpool *pool;
	struct gpool_block blocks[20];
	char text[256];

	(void)state;
	with_file("8MiB", "16MiB", text, sizeof(text));
	start((const char *const[]){"--pool", text, CALM, NULL});
	pool = open_worker();
	/* No block sinks while memory is free. */
	for (uint32_t i = 0; i < 14; i++) {
		blocks[i] = made(pool, 1, i);
		evict_all(pool, 1);
	}
	assert_true(tiers_have(14, 0));
	for (uint32_t i = 14; i < 20; i++) {
		blocks[i] = made(pool, 1, i);
		evict_all(pool, 1);
		AWAIT(tiers_have(14, i - 13));
	}
	/* The first blocks are restored from the file; the last ones are in memory. */
	for (uint32_t i = 0; i < 6; i++) {
		read_back(pool, &blocks[i], i);
		AWAIT(tiers_have(14, 5 - i));
	}
	for (uint32_t i = 19; i >= 6; i--) {
		read_back(pool, &blocks[i], i);
		AWAIT(tiers_have(i - 6, 0));
	}
	gpool_close(pool);
}

/* Sinking blocks are freed or restored, or their worker dies. With many blocks, some are being moved at that time. */
static void test_sinking_is_no_hindrance(void **state)
{
	enum { BLOCKS = 24 };
	struct gpool *pool;
	struct gpool_block blocks[BLOCKS];
	char text[256];

	(void)state;
	with_file("8MiB", "32MiB", text, sizeof(text));
	start((const char *const[]){"--pool", text, CALM, NULL});
	pool = open_worker();
	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks[i] = made(pool, 1 + i % 3, i);
	for (int round = 0; round < 20; round++) {
		harness_evict(&harness, gpool_session(pool), PAGES);
		for (uint32_t i = 0; i < BLOCKS; i++) {
			uint32_t which = (i * 7 + (uint32_t)round) % BLOCKS;

			if (i % 4) {
				read_back(pool, &blocks[which], which);
			} else {
				assert_int_equal(gpool_discard(pool, &blocks[which]), 0);
				blocks[which] = made(pool, 1 + which % 3, which);
			}
		}
	}
	harness_evict(&harness, gpool_session(pool), PAGES);
	gpool_close(pool);
	AWAIT(kept_bytes() == 0);
}

/* A block that was damaged in memory does not sink, and its restore reports the damage. */
static void test_damaged_does_not_sink(void **state)
{
	struct gpool *pool;
	struct gpool_block blocks[16];
	char text[256];
	uint64_t word;
	int fd;

	(void)state;
	with_file("8MiB", "16MiB", text, sizeof(text));
	start((const char *const[]){"--pool", text, CALM, NULL});
	pool = open_worker();
	for (uint32_t i = 0; i < 14; i++) {
		blocks[i] = made(pool, 1, i);
		evict_all(pool, 1);
	}
	fd = tier_open("memfd:gpool-spill", 8 << 20);
	assert_true(fd >= 0);
	/* Find the first block by its content. */
	for (off_t page = 0; page < 8 << 20; page += PAGE_BYTES) {
		assert_int_equal(pread(fd, &word, 8, page + 8), 8);
		if (word != 1)
			continue;
		word ^= 1 << 20;
		assert_int_equal(pwrite(fd, &word, 8, page + 8), 8);
	}
	close(fd);
	for (uint32_t i = 14; i < 16; i++) {
		blocks[i] = made(pool, 1, i);
		evict_all(pool, 1);
	}
	/* Other blocks sink instead. */
	AWAIT(tiers_have(14, 2));
	assert_int_equal(gpool_pin(pool, &blocks[0]), -EBADMSG);
	assert_int_equal(gpool_pin(pool, &blocks[0]), -ESTALE);
	for (uint32_t i = 1; i < 16; i++)
		read_back(pool, &blocks[i], i);
	gpool_close(pool);
}

static void test_budget_full_block_stays(void **state)
{
	struct gpool *pool, *other;
	struct gpool_block blocks[40], taken[40];
	uint32_t got = 0;

	(void)state;
	start((const char *const[]){"--pool", POOL ",spill_memory=4MiB", CALM, NULL}); /* 8 pages */
	pool = open_worker();
	other = open_worker();
	for (uint32_t i = 0; i < 40; i++)
		blocks[i] = made(pool, 1, i);
	for (int misses = 0; got < 40 && misses < 3;)
		gpool_alloc(other, 1, NULL, &taken[got]) == 0 ? (void)got++ : (void)misses++;
	/* 24 pages were free and 8 could be saved; the other blocks stay resident. */
	assert_int_equal(got, 32);
	assert_int_equal(spilled(), 8);
	for (uint32_t i = 0; i < got; i++)
		assert_int_equal(gpool_free(other, &taken[i]), 0);
	for (uint32_t i = 0; i < 40; i++)
		read_back(pool, &blocks[i], i);
	gpool_close(pool);
	gpool_close(other);
}

/* Requirements: S12. */
static void test_disk_full_block_stays(void **state)
{
	const struct rlimit small = {6 * PAGE_BYTES, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
	struct gpool *pool;
	struct gpool_block blocks[10];
	char text[256];
	uint32_t there;
	pid_t mover;

	(void)state;
	with_file("0MiB", "16MiB", text, sizeof(text));
	start((const char *const[]){"--pool", text, CALM, NULL});
	pool = open_worker();
	for (uint32_t i = 0; i < 10; i++)
		blocks[i] = made(pool, 1, i);
	/* The double of the driver creates larger files when the mover starts. With the limit, the start would fail. */
	mover = mover_serving();
	/*
	 * The disk has space for 6 pages. Writes above the limit fail; gpoold ignores the signal that accompanies them.
	 */
	assert_int_equal(prlimit(mover, RLIMIT_FSIZE, &small, NULL), 0);
	AWAIT((harness_evict(&harness, gpool_session(pool), PAGES), counter(POOL_COUNT_SPILL_ERRORS) > 0));
	AWAIT(moving() == 0);
	there = count_there(pool, blocks, 10);
	assert_true(there >= 4);
	for (uint32_t i = 0; i < 10; i++)
		read_back(pool, &blocks[i], i);
	/* Space is available again. */
	assert_int_equal(prlimit(mover, RLIMIT_FSIZE, &none, NULL), 0);
	evict_all(pool, 10);
	assert_int_equal(count_there(pool, blocks, 10), 0);
	for (uint32_t i = 0; i < 10; i++)
		read_back(pool, &blocks[i], i);
	gpool_close(pool);
}

static void damage_and_see(const char *tier_name, off_t tier_bytes, const char *pool_text)
{
	struct gpool *pool;
	struct gpool_block blocks[6];
	uint64_t word, errors;
	uint32_t lost = 0;
	int fd;

	start((const char *const[]){"--pool", pool_text, CALM, NULL});
	pool = open_worker();
	for (uint32_t i = 0; i < 6; i++)
		blocks[i] = made(pool, 2, i);
	evict_all(pool, 12);
	fd = tier_open(tier_name, tier_bytes);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &word, 8, 3 * PAGE_BYTES + 4096), 8);
	word ^= 1 << 20;
	assert_int_equal(pwrite(fd, &word, 8, 3 * PAGE_BYTES + 4096), 8);
	close(fd);
	for (uint32_t i = 0; i < 6; i++) {
		int error = gpool_pin(pool, &blocks[i]);

		if (error == -EBADMSG) {
			lost++;
			assert_string_equal(gpool_last_error(error),
				"the spilled content of the block of 2 pages is lost: its checksum has changed; "
				"allocate "
				"a block and create its content again");
			/* The content is lost, and each later call reports that. */
			assert_int_equal(gpool_pin(pool, &blocks[i]), -ESTALE);
			assert_int_equal(gpool_discard(pool, &blocks[i]), -ESTALE);
			continue;
		}
		assert_int_equal(error, 0);
		assert_int_equal(wrong_words(pool, &blocks[i], i), 0);
		assert_int_equal(gpool_unpin(pool, &blocks[i]), 0);
	}
	assert_int_equal(lost, 1);
	errors = counter(POOL_COUNT_SPILL_ERRORS);
	assert_int_equal(errors, 1);
	assert_int_equal(kept_bytes(), 0);
	gpool_close(pool);
}

static void test_damaged_memory(void **state)
{
	(void)state;
	damage_and_see("memfd:gpool-spill", 32 << 20, in_memory[1]);
}

static void test_damaged_file(void **state)
{
	char text[256];

	(void)state;
	with_file("0MiB", "23MiB", text, sizeof(text));
	damage_and_see("/", 23 << 20, text);
}

static void test_damaged_file_by_threads(void **state)
{
	char text[256];

	(void)state;
	setenv("GPOOL_NO_URING", "1", 1);
	with_file("0MiB", "23MiB", text, sizeof(text));
	damage_and_see("/", 23 << 20, text);
	unsetenv("GPOOL_NO_URING");
}

static void test_no_tier(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;
	struct gpool *pool;

	(void)state;
	start(no_tier);
	pool = open_worker();
	options.flags = GPOOL_ALLOC_SPILL;
	assert_int_equal(gpool_alloc(pool, 1, &options, &block), -EOPNOTSUPP);
	gpool_close(pool);
}

static void test_no_pages_to_restore_into(void **state)
{
	struct gpool *pool, *other;
	struct gpool_block block, taken[PAGES];

	(void)state;
	start(in_memory);
	pool = open_worker();
	other = open_worker();
	block = made(pool, 4, 1);
	evict_all(pool, 4);
	for (uint32_t i = 0; i < PAGES; i++)
		taken[i] = alloc(other, 1);
	assert_int_equal(gpool_pin(pool, &block), -ENOSPC);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(gpool_free(other, &taken[i]), 0);
	read_back(pool, &block, 1);
	gpool_close(pool);
	gpool_close(other);
}

struct pin {
	struct gpool *pool;
	struct gpool_block block;
};

static void *pin_main(void *argument)
{
	const struct pin *pin = argument;

	return (void *)(intptr_t)gpool_pin(pin->pool, &pin->block);
}

/* A pin sends one request, whether the pages are free, must be evicted or waited for, or are not adjacent. */
static void test_one_request(void **state)
{
	struct pin pin;
	struct gpool_block taken[PAGES];
	struct gpool *other;
	pthread_t thread;
	uint32_t before;
	void *error;

	(void)state;
	start((const char *const[]){"--pool", POOL ",spill_memory=32MiB", CALM, "--set", "pins.timeout=60s", NULL});
	pin.pool = open_worker();
	other = open_worker();
	pin.block = made(pin.pool, 4, 1);
	evict_all(pin.pool, 4);
	before = requests_sent(pin.pool);
	read_back(pin.pool, &pin.block, 1);
	assert_int_equal(requests_sent(pin.pool) - before, 1);

	evict_all(pin.pool, 4);
	for (uint32_t i = 0; i < PAGES; i++) {
		taken[i] = alloc(other, 1);
		if (i % 2)
			assert_int_equal(gpool_unpin(other, &taken[i]), 0);
	}
	before = requests_sent(pin.pool);
	assert_int_equal(gpool_pin(pin.pool, &pin.block), 0);
	assert_int_equal(requests_sent(pin.pool) - before, 1);
	assert_int_equal(wrong_words(pin.pool, &pin.block, 1), 0);
	assert_int_equal(gpool_refresh(pin.pool, &pin.block), 0);
	assert_true(pin.block.tag & BLOCK_SCATTERED);
	assert_int_equal(gpool_unpin(pin.pool, &pin.block), 0);

	evict_all(pin.pool, 4);
	for (uint32_t i = 1; i < PAGES; i += 2) {
		if (gpool_pin(other, &taken[i]))
			taken[i] = alloc(other, 1);
	}
	before = requests_sent(pin.pool);
	assert_int_equal(pthread_create(&thread, NULL, pin_main, &pin), 0);
	AWAIT(atomic_load(&pool_view(admin)->header->waiters) == 1);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(gpool_free(other, &taken[i]), 0);
	assert_int_equal(pthread_join(thread, &error), 0);
	assert_int_equal((intptr_t)error, 0);
	assert_int_equal(requests_sent(pin.pool) - before, 1);
	assert_int_equal(wrong_words(pin.pool, &pin.block, 1), 0);
	gpool_close(pin.pool);
	gpool_close(other);
}

/*
 * Cancel the request while it waits for pages, and while the mover writes to them. Neither pages nor content may be
 * lost.
 */
static void test_withdrawn(void **state)
{
	struct gpool *pool, *other;
	struct gpool_block block, taken[PAGES];
	struct spill_fetch fetch;
	pid_t mover;

	(void)state;
	start((const char *const[]){"--pool", POOL ",spill_memory=32MiB", CALM, "--set", "pins.timeout=60s", NULL});
	pool = open_worker();
	other = open_worker();
	block = made(pool, 4, 3);
	evict_all(pool, 4);
	for (uint32_t i = 0; i < PAGES; i++)
		taken[i] = alloc(other, 1);
	assert_int_equal(pin_briefly(pool, &block), -EINTR);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(gpool_free(other, &taken[i]), 0);
	AWAIT(atomic_load(&pool_view(admin)->header->waiters) == 0);
	assert_int_equal(kept_bytes(), 4 * PAGE_BYTES);
	mover = mover_serving();
	assert_int_equal(kill(mover, SIGSTOP), 0);
	assert_int_equal(pin_briefly(pool, &block), -EINTR);
	assert_int_equal(moving(), 4);
	assert_int_equal(pin_briefly(pool, &block), -EINTR); /* the first restore is still under way */
	assert_int_equal(spill_fetch_begin(pool, &block, &fetch), 0);
	assert_int_equal(spill_fetch_end(pool, &fetch, true), -EBUSY);
	assert_int_equal(kill(mover, SIGCONT), 0);
	AWAIT(moving() == 0);
	assert_int_equal(kept_bytes(), 4 * PAGE_BYTES);
	read_back(pool, &block, 3);
	assert_int_equal(gpool_discard(pool, &block), 0);
	gpool_close(pool);
	gpool_close(other);
	AWAIT(harness_free_pages(&harness) == PAGES);
}

/* A restored block that cannot be mapped stays in the pool with its content. A later pin maps it. */
static void cannot_map(bool scattered, enum gpu_call call)
{
	struct gpool_block singles[PAGES], block;
	struct gpool *pool, *other;

	start(in_memory);
	pool = open_worker();
	other = open_worker();
	block = made(pool, 4, 5);
	evict_all(pool, 4);
	for (uint32_t i = 0; i < PAGES; i++)
		singles[i] = alloc(other, 1);
	/* Free pages that this process has not mapped before. */
	for (uint32_t i = 0; i < PAGES; i++)
		if (singles[i].page >= PAGES / 2 && (!scattered || i % 2))
			assert_int_equal(gpool_free(other, &singles[i]), 0);
	for (int tries = 0; tries < 2; tries++) {
		gpu_fault_set(pool->gpu, call, 1, -ENOMEM);
		assert_int_equal(gpool_pin(pool, &block), -ENOMEM);
		assert_int_equal(kept_bytes(), 0);
		assert_int_equal(spill_fetch_begin(pool, &block, &(struct spill_fetch){0}), -ENOMEM);
	}
	read_back(pool, &block, 5);
	evict_all(pool, 4);
	/* The block may be spilled again, and freed, before it is mapped. */
	gpu_fault_set(pool->gpu, GPU_CALL_RESERVE, 1, -ENOMEM);
	if (scattered) {
		assert_int_equal(gpool_pin(pool, &block), -ENOMEM);
		evict_all(pool, 4);
		assert_int_equal(gpool_pin(pool, &block), 0);
		assert_int_equal(wrong_words(pool, &block, 5), 0);
		assert_int_equal(gpool_unpin(pool, &block), 0);
		evict_all(pool, 4);
		gpu_fault_set(pool->gpu, GPU_CALL_RESERVE, 1, -ENOMEM);
		assert_int_equal(gpool_pin(pool, &block), -ENOMEM);
	}
	gpu_fault_set(pool->gpu, GPU_CALL_RESERVE, 0, 0);
	assert_int_equal(gpool_discard(pool, &block), 0);
	assert_int_equal(gpool_pin(pool, &block), -ESTALE);
	assert_int_equal(kept_bytes(), 0);
	gpool_close(pool);
	gpool_close(other);
}

static void test_cannot_map(void **state)
{
	(void)state;
	cannot_map(false, GPU_CALL_MAP);
}

static void test_cannot_map_scattered(void **state)
{
	(void)state;
	cannot_map(true, GPU_CALL_RESERVE);
}

/* The call starts the restore, and the next check reports its end. */
static void test_ahead_of_need(void **state)
{
	struct gpool *pool, *other;
	struct gpool_block block, taken[PAGES];
	struct spill_fetch fetch;
	int error = 0;

	(void)state;
	start(in_memory);
	pool = open_worker();
	other = open_worker();
	block = made(pool, 4, 7);
	assert_int_equal(spill_fetch_begin(pool, &block, &fetch), -EALREADY);
	for (int round = 0; round < 3; round++) {
		evict_all(pool, 4);
		assert_false(spill_here(pool, &block));
		assert_int_equal(spill_fetch_begin(pool, &block, &fetch), 0);
		assert_int_equal(spill_fetch_begin(pool, &block, &fetch), -EAGAIN);
		AWAIT((error = spill_fetch_end(pool, &fetch, round == 2)) != -EAGAIN);
		assert_int_equal(error, 0);
		assert_true(spill_here(pool, &block));
		assert_int_equal(spill_fetch_begin(pool, &block, &fetch), -EALREADY);
		assert_int_equal(kept_bytes(), 0);
		read_back(pool, &block, 7);
	}
	/* No content is evicted for the restore. */
	evict_all(pool, 4);
	for (uint32_t i = 0; i < PAGES - 3; i++)
		taken[i] = alloc(other, 1);
	assert_int_equal(gpool_unpin(other, &taken[0]), 0);
	assert_int_equal(spill_fetch_begin(pool, &block, &fetch), 0);
	assert_int_equal(spill_fetch_end(pool, &fetch, true), -ENOSPC);
	assert_int_equal(gpool_pin(other, &taken[0]), 0);
	assert_int_equal(gpool_free(other, &taken[0]), 0);
	assert_int_equal(spill_fetch_begin(pool, &block, &fetch), 0);
	assert_int_equal(spill_fetch_end(pool, &fetch, true), 0);
	read_back(pool, &block, 7);
	evict_all(pool, 4);
	assert_int_equal(gpool_discard(pool, &block), 0);
	assert_int_equal(spill_fetch_begin(pool, &block, &fetch), 0);
	assert_int_equal(spill_fetch_end(pool, &fetch, true), -ESTALE);
	gpool_close(pool);
	gpool_close(other);
}

static void test_at_its_own_wish(void **state)
{
	struct gpool *pool;
	struct gpool_block block;

	(void)state;
	start(in_memory);
	pool = open_worker();
	block = alloc_spill(pool, 3, 0);
	fill(pool, &block, 5);
	assert_int_equal(spill_now(pool, &block), -EBUSY);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(spill_now(pool, &block), 0);
		assert_int_equal(kept_bytes(), 3 * PAGE_BYTES);
		assert_int_equal(spill_now(pool, &block), 0); /* already restored */
		read_back(pool, &block, 5);
	}
	assert_int_equal(gpool_discard(pool, &block), 0);
	gpool_close(pool);
}

/* ---- concurrent pins ---- */

struct pinner {
	pthread_t thread;
	struct gpool *pool;
	const struct gpool_block *blocks;
	uint32_t count, rounds, seed;
	_Atomic bool stop;
	uint64_t wrong;
	int error;
};

static void *pinner_main(void *argument)
{
	struct pinner *pinner = argument;

	for (uint32_t i = 0; i < pinner->rounds && !pinner->error && !atomic_load(&pinner->stop); i++) {
		uint32_t which = (pinner->seed = pinner->seed * 1664525 + 1013904223) >> 8;
		const struct gpool_block *block = &pinner->blocks[which % pinner->count];
		uint64_t address;
		int error = gpool_pin(pinner->pool, block);

		/* All pages may be pinned or being moved for a moment. */
		if (error == -ENOSPC)
			continue;
		if (!error)
			error = gpool_address(pinner->pool, block, &address);
		if (!error) {
			const volatile uint64_t *words = (const volatile uint64_t *)(uintptr_t)address;

			for (uint64_t at = 0; at < (uint64_t)block->page_count * WORDS; at += 509)
				pinner->wrong += words[at] != ((uint64_t)(which % pinner->count) << 32 | at);
			error = gpool_unpin(pinner->pool, block);
		}
		pinner->error = error;
	}
	return NULL;
}

/* `victim` is the process of gpoold that is killed repeatedly during the run, or NULL. */
static void many_pinners(
	struct gpool *pool, const struct gpool_block *blocks, uint32_t count, uint32_t rounds, const char *victim)
{
	struct pinner pinners[4] = {{0}};

	for (uint32_t i = 0; i < 4; i++) {
		pinners[i].pool = pool;
		pinners[i].blocks = blocks;
		pinners[i].count = count;
		pinners[i].rounds = rounds;
		pinners[i].seed = i + 1;
		assert_int_equal(pthread_create(&pinners[i].thread, NULL, pinner_main, &pinners[i]), 0);
	}
	for (int kills = 0; victim && kills < 20; kills++) {
		uint64_t before = counter(POOL_COUNT_RESTORED_PAGES) + spilled();
		pid_t pid;

		AWAIT(counter(POOL_COUNT_RESTORED_PAGES) + spilled() > before + 5 ||
			(harness_evict(&harness, 0, 8), false));
		AWAIT((pid = process_of(victim)) > 0);
		kill(pid, SIGKILL);
	}
	for (uint32_t i = 0; i < 4; i++) {
		atomic_store(&pinners[i].stop, victim != NULL);
		if (!victim)
			harness_evict(&harness, 0, 16);
		assert_int_equal(pthread_join(pinners[i].thread, NULL), 0);
		assert_int_equal(pinners[i].error, 0);
		assert_int_equal(pinners[i].wrong, 0);
	}
}

static void test_threads_want_the_same(void **state)
{
	struct gpool *pool;
	struct gpool_block block;

	(void)state;
	start(in_memory);
	pool = open_worker();
	block = made(pool, 3, 0);
	for (int round = 0; round < 20; round++) {
		read_back(pool, &block, 0);
		evict_all(pool, 3);
		many_pinners(pool, &block, 1, 3, NULL);
	}
	gpool_close(pool);
}

static void test_threads_want_more_than_fits(void **state)
{
	enum { BLOCKS = 40 };
	struct gpool *pool;
	struct gpool_block blocks[BLOCKS];

	(void)state;
	start((const char *const[]){"--pool", POOL ",spill_memory=64MiB", CALM, NULL});
	pool = open_worker();
	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks[i] = made(pool, 1 + i % 4, i);
	many_pinners(pool, blocks, BLOCKS, 200, NULL);
	for (uint32_t i = 0; i < BLOCKS; i++)
		read_back(pool, &blocks[i], i);
	gpool_close(pool);
}

static void killed(const char *victim)
{
	enum { BLOCKS = 40 };
	struct gpool *pool;
	struct gpool_block blocks[BLOCKS];
	char text[256];

	with_file("4MiB", "64MiB", text, sizeof(text));
	/* Nothing can be spilled until the next agent or mover serves: let pins wait for pages longer than that. */
	start((const char *const[]){"--pool", text, CALM, "--set", "pins.timeout=1min", NULL});
	pool = open_worker();
	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks[i] = made(pool, 1 + i % 4, i);
	many_pinners(pool, blocks, BLOCKS, UINT32_MAX, victim);
	for (uint32_t i = 0; i < BLOCKS; i++)
		read_back(pool, &blocks[i], i);
	gpool_close(pool);
	AWAIT(kept_bytes() == 0);
}

/* Requirements: S3. */
static void test_mover_killed(void **state)
{
	(void)state;
	killed("gpoold-mover");
}

static void test_agent_killed(void **state)
{
	(void)state;
	killed("gpoold-agent");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_content_is_restored_elsewhere, stop),
		cmocka_unit_test_teardown(test_pressure_of_another_spills, stop),
		cmocka_unit_test_teardown(test_more_blocks_than_pages, stop),
		cmocka_unit_test_teardown(test_scattered_blocks, stop),
		cmocka_unit_test_teardown(test_freed_and_dropped_leave_nothing, stop),
		cmocka_unit_test_teardown(test_worker_killed, stop),
		cmocka_unit_test_teardown(test_memory_full_then_file, stop),
		cmocka_unit_test_teardown(test_oldest_sink, stop),
		cmocka_unit_test_teardown(test_sinking_is_no_hindrance, stop),
		cmocka_unit_test_teardown(test_damaged_does_not_sink, stop),
		cmocka_unit_test_teardown(test_budget_full_block_stays, stop),
		cmocka_unit_test_teardown(test_disk_full_block_stays, stop),
		cmocka_unit_test_teardown(test_damaged_memory, stop),
		cmocka_unit_test_teardown(test_damaged_file, stop),
		cmocka_unit_test_teardown(test_damaged_file_by_threads, stop),
		cmocka_unit_test_teardown(test_no_tier, stop),
		cmocka_unit_test_teardown(test_no_pages_to_restore_into, stop),
		cmocka_unit_test_teardown(test_one_request, stop),
		cmocka_unit_test_teardown(test_withdrawn, stop),
		cmocka_unit_test_teardown(test_cannot_map, stop),
		cmocka_unit_test_teardown(test_cannot_map_scattered, stop),
		cmocka_unit_test_teardown(test_ahead_of_need, stop),
		cmocka_unit_test_teardown(test_at_its_own_wish, stop),
		cmocka_unit_test_teardown(test_threads_want_the_same, stop),
		cmocka_unit_test_teardown(test_threads_want_more_than_fits, stop),
		cmocka_unit_test_teardown(test_mover_killed, stop),
		cmocka_unit_test_teardown(test_agent_killed, stop),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
