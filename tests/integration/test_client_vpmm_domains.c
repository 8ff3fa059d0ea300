/*
 * test_client_vpmm_domains.c - mappings of the stream-ordered allocator, between trust domains and with handles of
 * several pages.
 *
 * A reclaimable page may be given to another process at any time. A process of the same domain may get it while it is
 * still mapped here. For a process of another domain, the agent waits until the page is unmapped.
 *
 * Method: a pool of 64 pages of 512 KB, with handles of one page and of four, and two tenants of different domains.
 * `red` allocates and frees, and `blue` needs all pages.
 */
#include "tests/integration/life.h"
#include "tests/lib/temporary.h"

#include "client/core/stream.h"
#include "client/vm/vpmm.h"

#include <errno.h>
#include <pthread.h>

enum { PAGE_BYTES = 512 << 10 };

static char config_path[64];
static struct gpool *red, *blue;
static uint32_t stream;

#define POOLS(more) \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\";" more " } );\n" \
	"eviction: { start = 100; stop = 99; };\nlease: { initial_pages = 0; batch_pages = 1; };\n" \
	"tenants = ( { name = \"red\"; users = [ \"1\" ]; domain = \"red\"; }, { name = \"blue\"; users = [ \"2\" ]; " \
	"domain = \"blue\"; } );\n"

static void begin(const char *text)
{
	const char *arguments[] = {"--config", config_path, NULL};
	struct gpool_vm_options options = GPOOL_VM_OPTIONS_INIT;
	FILE *file;

	snprintf(config_path, sizeof(config_path), "%s/gpool-vpmm-%d.conf", temporary_folder(), (int)getpid());
	file = fopen(config_path, "we");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	start(arguments);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	assert_int_equal(gpool_stream_open(red, NULL, 0, &stream), 0);
	options.idle_ms = -1;
	options.timeout_ms = ANSWER_MS;
	assert_int_equal(gpool_vm_configure(red, &options), 0);
}

static int end(void **state)
{
	int result;

	gpool_close(red);
	gpool_close(blue);
	red = blue = NULL;
	result = stop(state);
	unlink(config_path);
	return result;
}

static uint64_t take(uint64_t bytes)
{
	uint64_t address = 0;

	assert_int_equal(gpool_malloc_async(red, bytes, stream, &address), 0);
	return address;
}

static void whole(void)
{
	char text[256] = "";

	if (vpmm_check(red, text, sizeof(text)))
		fail_msg("%s", text);
}

static uint64_t count(uint32_t kind)
{
	uint64_t pages;

	vpmm_lock(red->vpmm);
	pages = red->vpmm->set.pages[kind];
	vpmm_unlock(red->vpmm);
	return pages;
}

static uint64_t reclaimable(void)
{
	struct gpool_vm_stats now = {.size = sizeof(now)};

	assert_int_equal(gpool_vm_stats(red, &now), 0);
	return now.reclaimable_bytes;
}

static _Atomic bool busy;

/* Call gpool_release_unused() periodically, as the loop of a server does. */
static void *let_go(void *argument)
{
	(void)argument;
	while (atomic_load(&busy)) {
		gpool_release_unused(red);
		poll(NULL, 0, 1);
	}
	return NULL;
}

/* Blue gets all pages, and red's pages are decommitted. */
static void blue_has_all(void)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block blocks[PAGES];
	uint64_t address;
	pthread_t thread;

	atomic_store(&busy, true);
	assert_int_equal(pthread_create(&thread, NULL, let_go, NULL), 0);
	options.timeout_ms = ANSWER_MS;
	for (int i = 0; i < PAGES; i++) {
		assert_int_equal(gpool_alloc(blue, 1, &options, &blocks[i]), 0);
		assert_int_equal(gpool_address(blue, &blocks[i], &address), 0);
		assert_int_equal(*(uint32_t *)(uintptr_t)address, 0);
	}
	atomic_store(&busy, false);
	pthread_join(thread, NULL);
	gpool_close(blue);
	blue = NULL;
}

static void between_domains(uint32_t handle_pages_each)
{
	uint64_t all = (uint64_t)PAGES * PAGE_BYTES, at[4], again;
	uint32_t *word;

	assert_int_equal(handle_pages(red), handle_pages_each);
	for (int i = 0; i < 4; i++) {
		at[i] = take(all / 4);
		*(uint32_t *)(uintptr_t)at[i] = 0x5ec7e7;
	}
	/* Old addresses that are still mapped are unmapped too. */
	assert_int_equal(gpool_free_async(red, at[0], stream), 0);
	assert_int_equal(gpool_free_async(red, at[2], stream), 0);
	again = take(all / 2);
	for (int i = 1; i < 4; i += 2)
		assert_int_equal(gpool_free_async(red, at[i], stream), 0);
	assert_int_equal(gpool_free_async(red, again, stream), 0);
	assert_int_equal(gpool_trim_to(red, all), 0);
	/* Memory whose free still waits for the stream is returned by a later call, or in the background. */
	/* A page that was taken again at another address is counted at its old address too while it is mapped there. */
	AWAIT((gpool_trim_to(red, 0), reclaimable()) >= all);
	whole();
	blue_has_all();
	whole();
	assert_int_equal(count(VM_FREE), 0);
	/* The memory is allocated again, at new addresses. */
	word = (uint32_t *)(uintptr_t)take(all / 2);
	*word = 1;
	assert_int_equal(count(VM_PENDING_UNMAP), 0);
	whole();
}

static void test_between_domains(void **state)
{
	(void)state;
	begin(POOLS(""));
	between_domains(1);
}

static void test_between_domains_with_large_handles(void **state)
{
	(void)state;
	begin(POOLS("handle_size = \"2MB\";"));
	between_domains(4);
}

/* With large handles only, joins and remapping work as with others. Less than a handle has pages of its own. */
static void test_large_handles(void **state)
{
	struct gpool_vm_stats now = {.size = sizeof(now)};
	uint64_t at[4], moved, small, pages;

	(void)state;
	begin(POOLS("handle_size = \"2MB\";"));
	assert_int_equal(gpool_malloc_async(red, 100, stream, &small), 0);
	assert_int_equal(gpool_malloc_async(red, 3 * PAGE_BYTES, stream, &pages), 0);
	for (int i = 0; i < 4; i++)
		at[i] = take((uint64_t)4 * PAGE_BYTES); /* one handle each */
	assert_int_equal(at[1] - at[0], 2 << 20);
	assert_int_equal(gpool_free_async(red, at[0], stream), 0);
	assert_int_equal(gpool_free_async(red, at[2], stream), 0);
	moved = take(4 << 20);
	assert_int_equal(gpool_fill(red, stream, moved, 7, 4 << 20), 0);
	assert_int_equal(stream_sync_all(red), 0);
	assert_int_equal(*(uint32_t *)(uintptr_t)(moved + (4 << 20) - 4), 7);
	/* The background thread may have unmapped the old places already. */
	assert_int_equal(gpool_vm_stats(red, &now), 0);
	assert_int_equal(now.remapped_bytes, 4 << 20);
	assert_int_equal(count(VM_ALLOCATED), 4);
	assert_int_equal(gpool_free_async(red, small, stream), 0);
	assert_int_equal(gpool_free_async(red, pages, stream), 0);
	whole();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_between_domains, end),
		cmocka_unit_test_teardown(test_between_domains_with_large_handles, end),
		cmocka_unit_test_teardown(test_large_handles, end),
	};

	if (geteuid() != 0) {
		puts("tenants of other users take an operator");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
