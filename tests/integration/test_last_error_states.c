/*
 * test_last_error_states.c - error texts of calls for things in the wrong state: freed, evicted, closed, of another
 * session, tenant or trust domain, asleep, or held by another session.
 *
 * Goal and method: as test_last_error.c. The tenants `red` and `rose` share a trust domain, and `blue` has its own.
 */
#include "tests/integration/life.h"
#include "tests/integration/last_error.h"
#include "tests/lib/temporary.h"

#include <errno.h>
#include <pthread.h>

#define CONFIG \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; spill_memory = \"8MiB\"; } );\n" \
	"eviction: { start = 100; stop = 99; };\nlease: { initial_pages = 0; batch_pages = 1; };\n" \
	"tenants = ( { name = \"red\"; users = [ \"1\" ]; domain = \"red\"; },\n" \
	"            { name = \"blue\"; users = [ \"2\" ]; domain = \"blue\"; },\n" \
	"            { name = \"rose\"; domain = \"red\"; limit = \"8 pages\"; },\n" \
	"            { name = \"grey\"; users = [ \"3\" ]; domain = \"red\"; minimum = \"4 pages\"; unused = " \
	"\"keep\"; } );\n"

static char config_path[64];
static struct gpool *red, *blue, *rose;
static uint32_t work_stream;
static const struct gpool_fence none = {0};

static int begin(void **state)
{
	const char *arguments[] = {"--config", config_path, NULL};

	(void)state;
	snprintf(config_path, sizeof(config_path), "%s/gpool-last-error-%d.conf", temporary_folder(), (int)getpid());
	harness_config_write(config_path, CONFIG);
	start(arguments);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	rose = open_as(0, NULL, "rose");
	return gpool_stream_open(red, NULL, 0, &work_stream);
}

static int end(void **state)
{
	gpool_close(rose);
	gpool_close(blue);
	gpool_close(red);
	unlink(config_path);
	return stop(state);
}

/* ---- blocks ---- */

static struct gpool_block block_of(uint32_t pages, uint32_t flags)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	options.flags = flags;
	assert_int_equal(gpool_alloc(red, pages, &options, &block), 0);
	return block;
}

static void test_a_freed_block(void **state)
{
	struct gpool_block block = block_of(2, 0);
	char text[96];
	uint64_t address;

	(void)state;
	snprintf(text, sizeof(text), "the block of 2 pages at page %u was ", block.page);
	assert_int_equal(gpool_free(red, &block), 0);
	SAYS(gpool_free(red, &block), -ESTALE, text);
	SAYS(gpool_free_after(red, &block, none), -ESTALE, text);
	SAYS(gpool_discard(red, &block), -ESTALE, text);
	SAYS(gpool_pin(red, &block), -ESTALE, text);
	SAYS(gpool_unpin(red, &block), -ESTALE, text);
	SAYS(gpool_unpin_after(red, &block, none), -ESTALE, text);
	SAYS(gpool_touch(red, &block), -ESTALE, text);
	SAYS(gpool_refresh(red, &block), -ESTALE, text);
	SAYS(gpool_address(red, &block, &address), -ESTALE, text);
}

static void test_an_evicted_block(void **state)
{
	struct gpool_block block = block_of(2, 0);
	uint64_t address;

	(void)state;
	assert_int_equal(gpool_unpin(red, &block), 0);
	assert_int_equal(harness_evict(&harness, gpool_session(red), 2), 2);
	SAYS(gpool_pin(red, &block), -ESTALE, "was freed, or evicted while it was not pinned; allocate a block");
	SAYS(gpool_free(red, &block), -ESTALE, "was freed, or evicted while it was not pinned; allocate a block");
	block = block_of(2, GPOOL_ALLOC_SPILL);
	assert_int_equal(gpool_unpin(red, &block), 0);
	assert_int_equal(harness_evict(&harness, gpool_session(red), 2), 2);
	AWAIT(gpool_touch(red, &block) == -ESTALE); /* -ETIMEDOUT: it is being spilled */
	SAYS(gpool_touch(red, &block), -ESTALE, "gpool_pin() restores spilled content");
	SAYS(gpool_address(red, &block, &address), -ESTALE, "gpool_pin() restores spilled content");
	assert_int_equal(gpool_discard(red, &block), 0);
	SAYS(gpool_discard(red, &block), -ESTALE, "was freed, or its content is spilled or lost");
}

static void test_prepared_blocks(void **state)
{
	struct gpool_block block, prepared;
	uint64_t entry;

	(void)state;
	assert_int_equal(gpool_prepare(red, 1, NULL, &block), 0);
	prepared = block;
	SAYS(gpool_pin(red, &prepared), -EINVAL, "is prepared, but not committed");
	assert_int_equal(gpool_commit(red, &block, &entry), 0);
	SAYS(gpool_commit(red, &block, &entry), -ESTALE, "was already committed or rolled back");
	SAYS(gpool_commit(red, &prepared, &entry), -ESTALE, "was already committed or rolled back");
	SAYS(gpool_rollback(red, &prepared), -ESTALE, "was already committed or rolled back");
	assert_int_equal(gpool_free(red, &block), 0);
}

static void test_freed_spans_and_allocations(void **state)
{
	struct gpool_span span, other;
	char text[96];
	uint64_t address;

	(void)state;
	assert_int_equal(gpool_span_alloc(red, 300, 0, &span), 0);
	assert_int_equal(gpool_span_alloc(red, 300, 0, &other), 0);
	snprintf(text, sizeof(text), "the span of 512 bytes at address 0x%llx was already freed",
		(unsigned long long)span.address);
	assert_int_equal(gpool_span_free(red, &span), 0);
	SAYS(gpool_span_free(red, &span), -ESTALE, text);
	assert_int_equal(gpool_span_free(red, &other), 0);
	SAYS(gpool_span_free(red, &span), -ESTALE, text);
	for (uint64_t bytes = 300; bytes <= 4 * TEST_PAGE_BYTES; bytes = 4 * TEST_PAGE_BYTES + (bytes != 300)) {
		assert_int_equal(gpool_malloc_async(red, bytes, 0, &address), 0);
		assert_int_equal(gpool_free_async(red, address, 0), 0);
		snprintf(text, sizeof(text), "no allocation begins at 0x%llx, or it was already freed",
			(unsigned long long)address);
		SAYS(gpool_free_async(red, address, 0), -ESTALE, text);
		if (bytes != 300)
			SAYS(gpool_vm_capture(red, address, 1), -ESTALE, text);
	}
}

static void test_limits_of_a_tenant(void **state)
{
	struct gpool_block block;
	struct gpool_range *range;
	uint64_t address, number;

	(void)state;
	SAYS(gpool_alloc(rose, 9, NULL, &block), -EDQUOT,
		"the limit of tenant 'rose' is reached: 9 needed, 0 of 8 pages in use; free memory of its processes, "
		"or "
		"raise tenants.limit of gpoold.conf");
	SAYS(gpool_range_create(rose, 9, NULL, &range), -EDQUOT, "9 needed");
	assert_int_equal(gpool_range_reserve(rose, 9, NULL, &range), 0);
	SAYS(gpool_range_commit(range, 0, 9, 0), -EDQUOT, "9 needed");
	assert_int_equal(gpool_range_destroy(range), 0);
	SAYS(gpool_malloc_async(rose, 9 * TEST_PAGE_BYTES, 0, &address), -EDQUOT, "9 needed");
	SAYS(gpool_reservation_create(rose, 9, 0, 0, &number), -EDQUOT, "9 needed");
	assert_int_equal(gpool_alloc(red, 1, NULL, &block), 0);
	SAYS(gpool_reservation_create(red, 64, 0, 0, &number), -ENOSPC, "64 needed, ");
	SAYS(gpool_reservation_create(red, 64, 0, 0, &number), -ENOSPC,
		"; the pool has 64 pages (pools.size), 0 of them reserved; 4 free pages are kept for other tenants "
		"(tenants.minimum)");
	SAYS(gpool_range_create(red, 64, NULL, &range), -ENOSPC, "64 needed, ");
	assert_int_equal(gpool_range_reserve(red, 64, NULL, &range), 0);
	SAYS(gpool_range_commit(range, 0, 64, 0), -ENOSPC, "64 needed, ");
	assert_int_equal(gpool_range_destroy(range), 0);
	assert_int_equal(gpool_free(red, &block), 0);
}

/* ---- objects ---- */

static uint64_t publish(struct gpool *pool, const char *name, const struct gpool_object_options *options)
{
	struct gpool_object *object;
	uint64_t version;
	uint32_t index;

	assert_int_equal(gpool_object_create(pool, name, options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_int_equal(gpool_object_close(object), 0);
	return version;
}

static void test_versions_of_objects(void **state)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object_open_options open = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	uint64_t first = publish(red, "o", NULL), second = publish(red, "o", NULL), version;
	struct gpool_object *object;
	const char *key;
	const void *value;
	size_t bytes;
	char text[128];
	uint32_t index;

	(void)state;
	snprintf(text, sizeof(text), "object 'o': version %llu does not exist; the current version is %llu",
		(unsigned long long)first, (unsigned long long)second);
	open.version = first;
	SAYS(gpool_object_open(red, "o", &open, &object), -ENOENT, text);
	snprintf(text, sizeof(text), "object 'o': the current version is %llu, not %llu", (unsigned long long)second,
		(unsigned long long)first);
	SAYS(gpool_object_delete(red, "o", first), -ESTALE, text);
	options.expect_version = first;
	assert_int_equal(gpool_object_create(red, "o", &options, &object), 0);
	SAYS(gpool_object_entry(object, 0, &key, &value, &bytes), -EINVAL, "object 'o' is not published");
	assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), 0);
	SAYS(gpool_object_publish(object, &version), -ESTALE, text);
	gpool_object_abort(object);
	/* Other tenants and other domains. */
	SAYS(gpool_object_delete(rose, "o", 0), -EPERM, "object 'o': it belongs to tenant 'red', and only ");
	SAYS(gpool_object_delete(blue, "o", 0), -ENOENT, "object 'o': no object 'o'");
	assert_int_equal(gpool_object_create(rose, "o", NULL, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), 0);
	SAYS(gpool_object_publish(object, &version), -EPERM, "object 'o': it belongs to tenant 'red', and only ");
	gpool_object_abort(object);
	assert_int_equal(gpool_object_delete(red, "o", 0), 0);
	options.expect_version = 0;
	options.flags = GPOOL_OBJECT_PRIVATE;
	publish(red, "p", &options);
	SAYS(gpool_object_open(rose, "p", NULL, &object), -EACCES, "object 'p': it is private to tenant 'red'");
	assert_int_equal(gpool_object_delete(red, "p", 0), 0);
	SAYS(gpool_object_delete(red, "", 0), -EINVAL, "the name of the object is empty");
}

static void test_adopting(void **state)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object_open_options open = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	struct gpool_role writer = GPOOL_ROLE_INIT, other = GPOOL_ROLE_INIT;
	struct gpool_object *object, *held;
	uint64_t version;
	uint32_t index;

	(void)state;
	assert_int_equal(gpool_role_acquire(red, "writer", 0, &writer), 0);
	assert_int_equal(gpool_role_acquire(red, "other", 0, &other), 0);
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	options.role = "writer";
	options.role_token = writer.token;
	assert_int_equal(gpool_object_create(red, "m", &options, &held), 0);
	assert_int_equal(gpool_object_alloc(held, 1, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(held, &version), 0);
	open.flags = 2;
	SAYS(gpool_object_open(red, "m", &open, &object), -EINVAL,
		"flags are 0x2; the only known flag is GPOOL_OBJECT_ADOPT");
	open.flags = GPOOL_OBJECT_ADOPT;
	SAYS(gpool_object_open(red, "m", &open, &object), -EINVAL,
		"object 'm' cannot be adopted without role, the object's leadership role");
	open.role = "other";
	open.role_token = other.token;
	SAYS(gpool_object_open(red, "m", &open, &object), -EPERM, "'m' does not belong to role 'other'");
	open.role_token++;
	SAYS(gpool_object_open(red, "m", &open, &object), -ESTALE,
		"object 'm': the session does not hold role 'other' with this token");
	assert_int_equal(gpool_role_release(red, &writer), 0);
	assert_int_equal(gpool_role_release(red, &other), 0);
	SAYS(gpool_role_check(red, &writer), -ESTALE, "the session does not hold a role with index ");
	assert_int_equal(gpool_object_close(held), 0);
	assert_int_equal(gpool_object_delete(red, "m", 0), 0);
}

static void test_evicted_objects(void **state)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object_info info = {.size = sizeof(info)};
	struct gpool_object *object;
	uint64_t version;
	uint32_t index, cursor = 0;

	(void)state;
	options.memory_class = GPOOL_OBJECT_PINNABLE;
	assert_int_equal(gpool_object_create(red, "e", &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	SAYS(gpool_object_unpin(object), -EINVAL, "object 'e' is not pinned");
	assert_int_equal(gpool_object_delete(red, "e", 0), 0);
	AWAIT(gpool_object_pin(object) == -ESTALE);
	SAYS(gpool_object_pin(object), -ESTALE, "of object 'e' was evicted or deleted; close it, and open");
	SAYS(gpool_object_unpin(object), -ESTALE, "of object 'e' was evicted or deleted");
	SAYS(gpool_object_unpin_after(object, none), -ESTALE, "of object 'e' was evicted or deleted");
	SAYS(gpool_object_info(object, &info), -ESTALE, "of object 'e' was evicted or deleted");
	assert_int_equal(gpool_object_close(object), 0);
	SAYS(gpool_object_next(red, &cursor, &info), -ENOENT, "no object has a number above 0");
}

/* ---- ranges ---- */

static void test_ranges_larger_than_addresses(void **state)
{
	struct gpool_range *range;

	(void)state;
	SAYS(gpool_range_reserve(red, UINT32_C(1) << 31, NULL, &range), -ENOMEM,
		"1125899906842624 bytes of addresses are needed; a process can have at most ");
}

static void test_ranges_of_objects(void **state)
{
	struct gpool_range *range, *opened;
	struct gpool_object *object, *second;

	(void)state;
	assert_int_equal(gpool_range_reserve(red, 8, NULL, &range), 0);
	assert_int_equal(gpool_range_commit(range, 0, 2, 0), 0);
	SAYS(gpool_range_publish(range, 0, 1, "lora/x", NULL, &object), -EPERM, "lora/");
	assert_int_equal(gpool_range_publish(range, 0, 1, "r", NULL, &object), 0);
	SAYS(gpool_range_publish(range, 1, 1, "r", NULL, &second), -ESTALE, "object 'r': version ");
	SAYS(gpool_range_commit(range, 0, 1, 0), -EBUSY, "page 0 ");
	SAYS(gpool_range_map(range, 1, "r", NULL, &second), -EBUSY, "page 1 is not free");
	SAYS(gpool_range_map(range, 8, "r", NULL, &second), -EINVAL,
		"first is 8 and count is 1; the range has 8 pages");
	SAYS(gpool_object_close(object), -EINVAL, "object 'r' is mapped in a range; close it with gpool_range_unmap()");
	SAYS(gpool_range_destroy(range), -EBUSY, "1 page of named objects is mapped in a range");
	SAYS(gpool_sleep(red, 0), -EBUSY, "");
	SAYS(gpool_range_open(red, "r", NULL, &opened), -EINVAL, "object 'r' does not have the class IMMUTABLE");
	assert_int_equal(gpool_object_unpin(object), 0);
	assert_int_equal(gpool_range_unmap(range, object), 0);
	assert_int_equal(gpool_range_destroy(range), 0);
	gpool_object_delete(red, "r", 0);
}

/* ---- roles, events and fences ---- */

static void test_roles_of_others(void **state)
{
	struct gpool_role role = GPOOL_ROLE_INIT, other = GPOOL_ROLE_INIT;
	struct gpool *second = open_as(0, NULL, "red");
	char text[96];

	(void)state;
	assert_int_equal(gpool_role_acquire(red, "leader", 0, &role), 0);
	snprintf(text, sizeof(text), "session %u holds role 'leader' and has not released it within 1 ms",
		gpool_session(red));
	SAYS(gpool_role_acquire(second, "leader", 1, &other), -ETIMEDOUT, text);
	SAYS(gpool_role_acquire(red, "leader", 0, &other), -EALREADY, "already holds role 'leader'");
	SAYS(gpool_role_acquire(rose, "leader", 0, &other), -EACCES, "role 'leader': ");
	role.size = 2;
	SAYS(gpool_role_release(red, &role), -EINVAL, "size is 2 bytes");
	role.size = sizeof(role);
	assert_int_equal(gpool_role_release(red, &role), 0);
	SAYS(gpool_role_check(red, &role), -ESTALE, "the session does not hold a role with index ");
	SAYS(gpool_role_info(red, "", NULL, NULL), -EINVAL, "the name of the role is empty");
	gpool_close(second);
}

static void test_waits_that_end(void **state)
{
	struct gpool_event event = GPOOL_EVENT_INIT;
	struct gpool_fence fence;
	uint32_t stream;

	(void)state;
	AWAIT(gpool_event_next(blue, 1, &event) == -ETIMEDOUT);
	assert_non_null(strstr(gpool_last_error(ETIMEDOUT), "no event within 1 ms"));
	assert_int_equal(gpool_stream_open(red, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	assert_int_equal(gpool_fence_record(red, stream, &fence), 0);
	SAYS(gpool_fence_wait(red, fence, 1), -ETIMEDOUT, "was not signaled within 1 ms");
	gpool_stream_close(red, stream);
}

static void test_fences_of_others(void **state)
{
	static const struct {
		size_t at; /* byte of the handle */
		const char *text;
	} damages[] = {
		{0, ": its handle_type is 77; it must be 1 to 3"},
		{4, ": bytes 4 to 7 are 0x"},
		{8, ": its version is 77; this library has version 1"},
		{33, ", stream slot 19"},
		{36, ": bytes that must be 0 are not; pass all 128 bytes unchanged"},
		{127, ": bytes that must be 0 are not; pass all 128 bytes unchanged"},
	};
	struct gpool *second = open_as(0, NULL, "red");
	struct gpool_fence_handle handle, wrong;
	struct gpool_fence fence, imported;
	char text[96];
	uint32_t stream;

	(void)state;
	assert_int_equal(gpool_stream_open(second, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	assert_int_equal(gpool_fence_record(second, stream, &fence), 0);
	SAYS(gpool_fence_export(second, fence, GPOOL_FENCE_EXPORT_EVENT, &handle), -EINVAL,
		"is of a host-signaled timeline and cannot be exported as an event");
	assert_int_equal(gpool_fence_export(second, fence, 0, &handle), 0);
	SAYS(gpool_fence_import(second, &handle, &imported), -EINVAL, "was exported by this session");
	snprintf(text, sizeof(text), "session %u, which exported the fence, belongs to another trust domain",
		gpool_session(second));
	SAYS(gpool_fence_import(blue, &handle, &imported), -EACCES, text);
	for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
		wrong = handle;
		((uint8_t *)&wrong)[damages[i].at] = 77;
		SAYS(gpool_fence_import(red, &wrong, &imported), -EINVAL, damages[i].text);
	}
	assert_int_equal(gpool_fence_import(red, &handle, &imported), 0);
	snprintf(text, sizeof(text), "session %u, which exported the fence, has ended", gpool_session(second));
	gpool_close(second);
	SAYS(gpool_fence_import(rose, &handle, &fence), -ESRCH, text);
	assert_int_equal(gpool_fence_close(red, imported), 0);
}

/* ---- sessions ---- */

static void test_quotas(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_block block;
	struct gpool *pool;

	(void)state;
	options.tenant = "red";
	options.quota_bytes = 1;
	SAYS(gpool_open(&options, &pool), -EINVAL,
		"quota_bytes is 1; the minimum is a page, 524288 bytes (0: no quota)");
	options.quota_bytes = 2 * TEST_PAGE_BYTES - 1;
	assert_int_equal(gpool_open(&options, &pool), 0);
	SAYS(gpool_alloc(pool, 2, NULL, &block), -EDQUOT,
		"the quota of the session is reached: 2 needed, 0 of 1 page in use; free memory of this process, or "
		"raise quota_bytes");
	gpool_close(pool);
}

static void test_no_shortage(void **state)
{
	struct gpool_oom_object object = {.size = sizeof(object)};
	struct gpool *pool = open_as(0, NULL, "red");

	(void)state;
	SAYS(gpool_oom_object(pool, &object), -ENOENT, "no object prevented the last failed allocation");
	gpool_close(pool);
}

static void test_observers(void **state)
{
	static const char observer[] = "not permitted in a session that was opened with GPOOL_OPEN_OBSERVER";
	struct gpool_kv_options caches = GPOOL_KV_OPTIONS_INIT;
	struct gpool_vm_options options = {.size = sizeof(options)};
	struct gpool_vm_stats stats = {.size = sizeof(stats)};
	struct gpool *pool = open_as(GPOOL_OPEN_OBSERVER, NULL, NULL);
	struct gpool_role role = GPOOL_ROLE_INIT;
	struct gpool_fence_handle handle = {0};
	struct gpool_fence fence;
	struct gpool_object *object;
	struct gpool_range *range;
	struct gpool_lora *lora;
	struct gpool_kv *kv;
	uint64_t address;

	(void)state;
	SAYS(gpool_object_create(pool, "o", NULL, &object), -EPERM, observer);
	SAYS(gpool_object_open(pool, "o", NULL, &object), -EPERM, observer);
	SAYS(gpool_object_delete(pool, "o", 0), -EPERM, observer);
	SAYS(gpool_role_acquire(pool, "r", 0, &role), -EPERM, observer);
	SAYS(gpool_fence_import(pool, &handle, &fence), -EPERM, observer);
	SAYS(gpool_range_create(pool, 1, NULL, &range), -EPERM, observer);
	SAYS(gpool_range_reserve(pool, 1, NULL, &range), -EPERM, observer);
	SAYS(gpool_range_open(pool, "o", NULL, &range), -EPERM, observer);
	SAYS(gpool_sleep(pool, 0), -EPERM, observer);
	SAYS(gpool_vm_configure(pool, &options), -EPERM, observer);
	SAYS(gpool_malloc_async(pool, 1, 0, &address), -EPERM, observer);
	SAYS(gpool_free_async(pool, 4096, 0), -EPERM, observer);
	SAYS(gpool_vm_capture(pool, 4096, 1), -EPERM, observer);
	SAYS(gpool_vm_stats(pool, &stats), -EPERM, observer);
	SAYS(gpool_reservation_create(pool, 1, 0, 0, &address), -EPERM, observer);
	SAYS(gpool_kv_create(pool, &caches, &kv), -EPERM, observer);
	SAYS(gpool_lora_create(pool, NULL, &lora), -EPERM, observer);
	gpool_close(pool);
}

static void test_asleep(void **state)
{
	static const char asleep[] = "the session is asleep";
	struct gpool_range_page page = {.size = sizeof(page)};
	struct gpool_object *object;
	struct gpool_range *range;

	(void)state;
	assert_int_equal(gpool_range_reserve(red, 4, NULL, &range), 0);
	assert_int_equal(gpool_sleep(red, 0), 0);
	SAYS(gpool_range_decommit(range, 0, 1, none), -EHOSTDOWN, asleep);
	SAYS(gpool_range_capture(range, 0, 1, 1), -EHOSTDOWN, asleep);
	SAYS(gpool_range_offer(range, 0, 1, none), -EHOSTDOWN, asleep);
	SAYS(gpool_range_reclaim(range, 0, 1, NULL), -EHOSTDOWN, asleep);
	SAYS(gpool_range_resolve(range, 0, &page), -EHOSTDOWN, asleep);
	SAYS(gpool_range_publish(range, 0, 1, "s", NULL, &object), -EHOSTDOWN, asleep);
	SAYS(gpool_range_map(range, 0, "s", NULL, &object), -EHOSTDOWN, asleep);
	assert_int_equal(gpool_wake(red, 0), 0);
	assert_int_equal(gpool_range_destroy(range), 0);
}

/* ---- caches ---- */

static struct gpool_kv *make_cache(uint32_t flags)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_kv *kv;

	options.shape = (struct gpool_kv_shape){2, 2, 16, 2, 16};
	options.stream = work_stream;
	options.flags = flags;
	options.max_blocks = 4;
	options.max_sequences = 3;
	options.max_sequence_tokens = 1024;
	options.watermark_blocks = GPOOL_KV_NO_WATERMARK;
	assert_int_equal(gpool_kv_create(red, &options, &kv), 0);
	return kv;
}

static uint64_t make_sequence(struct gpool_kv *kv, uint32_t tokens)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	uint64_t sequence;

	request.tokens = tokens;
	assert_int_equal(gpool_kv_allocate(kv, &request, &sequence), 0);
	return sequence;
}

static void test_sequences(void **state)
{
	static const struct gpool_kv_shape shape = {2, 2, 16, 2, 16};
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_sequence_info info = {.size = sizeof(info)};
	struct gpool_kv_quant_error loss = {.size = sizeof(loss)};
	struct gpool_kv *kv = make_cache(0);
	struct gpool_kv_layout layout = {.size = sizeof(layout)};
	uint64_t ended, sequence, other, last, victim;
	uint32_t blocks;
	const int32_t *table;

	(void)state;
	assert_int_equal(gpool_kv_layout(kv, &layout), 0);
	SAYS(gpool_kv_preempt(kv, 0, &victim), -ENOENT, "no sequence of the cache is running");
	ended = make_sequence(kv, 1);
	assert_int_equal(gpool_kv_free(kv, ended), 0);
	SAYS(gpool_kv_append(kv, ended, 1, NULL), -ESTALE, "has ended");
	SAYS(gpool_kv_fork(kv, ended, &other), -ESTALE, "has ended");
	SAYS(gpool_kv_fork(kv, 7, &other), -EINVAL, "0x7 is not a sequence of this cache");
	SAYS(gpool_kv_free(kv, 7), -EINVAL, "0x7 is not a sequence of this cache");
	SAYS(gpool_kv_preempt(kv, ended, &victim), -ESTALE, "has ended");
	SAYS(gpool_kv_resume(kv, ended), -ESTALE, "has ended");
	SAYS(gpool_kv_resume(kv, 7), -EINVAL, "0x7 is not a sequence of this cache");
	SAYS(gpool_kv_prefetch(kv, 7), -EINVAL, "0x7 is not a sequence of this cache");
	SAYS(gpool_kv_table(kv, 7, &table, &blocks), -EINVAL, "0x7 is not a sequence of this cache");
	SAYS(gpool_kv_sequence_info(kv, 7, &info), -EINVAL, "0x7 is not a sequence of this cache");
	SAYS(gpool_kv_validate(kv, ended, 0, &shape), -ESTALE, "");
	SAYS(gpool_kv_quant_error(kv, ended, &loss), -ESTALE, "has ended");
	/* The cache has 128 blocks of 16 tokens, and a sequence at most 64. */
	assert_int_equal(layout.max_blocks, 128);
	sequence = make_sequence(kv, 16 * 60);
	other = make_sequence(kv, 16 * 60);
	SAYS(gpool_kv_prefetch(kv, sequence), -EALREADY, "is running");
	SAYS(gpool_kv_quant_error(kv, sequence, &loss), -ENODATA, "was not offloaded with GPOOL_KV_OFFLOAD_INT8");
	request.tokens = 16 * 60;
	SAYS(gpool_kv_allocate(kv, &request, &last), -ENOSPC, "60 blocks needed; the cache has ");
	last = make_sequence(kv, 16 * 8);
	SAYS(gpool_kv_append(kv, last, 1, NULL), -ENOSPC, "1 block needed; the cache has ");
	SAYS(gpool_kv_grow(kv, last, 16 * 60, NULL, NULL, NULL), -EFBIG, "68 blocks needed; ");
	assert_int_equal(gpool_kv_free(kv, other), 0);
	assert_true(gpool_kv_preempt(kv, sequence, &victim) >= 0);
	SAYS(gpool_kv_fork(kv, sequence, &other), -EAGAIN, "is preempted");
	SAYS(gpool_kv_preempt(kv, sequence, &victim), -EAGAIN, "is preempted");
	assert_int_equal(gpool_kv_host_reserve(kv, layout.block_bytes), 0);
	SAYS(gpool_kv_host_reserve(kv, layout.block_bytes), -EALREADY, "the cache already has host memory");
	SAYS(gpool_kv_offload(kv, last, 0, &victim), -ENOSPC,
		"the content needs 8 blocks of host memory, of which 1 are free");
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

static void test_prefixes(void **state)
{
	static const uint32_t ids[64];
	struct gpool_kv_prefix prefix = GPOOL_KV_PREFIX_INIT;
	struct gpool_kv_prefix_found found = {.size = sizeof(found)};
	struct gpool_kv *kv = make_cache(GPOOL_KV_PREFIXES), *plain = make_cache(0);
	uint64_t sequence = make_sequence(kv, 20), victim;

	(void)state;
	prefix.count = 16;
	SAYS(gpool_kv_prefix_find(kv, &prefix, &found), -EINVAL, "ids is NULL");
	prefix.ids = ids;
	SAYS(gpool_kv_prefix_publish(plain, sequence, &prefix), -EOPNOTSUPP, "created without GPOOL_KV_PREFIXES");
	assert_true(gpool_kv_preempt(kv, sequence, &victim) >= 0);
	SAYS(gpool_kv_prefix_publish(kv, sequence, &prefix), -EAGAIN, "is preempted");
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	SAYS(gpool_kv_prefix_publish(kv, sequence, &prefix), -ESTALE, "has ended");
	SAYS(gpool_kv_prefix_tree(kv, NULL, 3, NULL), -EINVAL, "most is 3, but nodes is NULL");
	assert_int_equal(gpool_kv_destroy(kv), 0);
	assert_int_equal(gpool_kv_destroy(plain), 0);
}

static void test_sharing_prefixes(void **state)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_kv *kv;

	(void)state;
	options.shape = (struct gpool_kv_shape){2, 2, 16, 2, 16};
	options.stream = work_stream;
	options.flags = GPOOL_KV_PREFIXES;
	options.max_blocks = 4;
	options.watermark_blocks = GPOOL_KV_NO_WATERMARK;
	options.pool_blocks = 4;
	assert_int_equal(gpool_kv_create(red, &options, &kv), 0);
	SAYS(gpool_kv_prefix_share(kv, 7, -2), -EINVAL, "timeout_ms is -2; the minimum is -1");
	SAYS(gpool_kv_prefix_share(kv, 7, -1), -EINVAL, "0x7 is not a sequence of this cache");
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

static void test_groups(void **state)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv *caches[] = {make_cache(0), make_cache(0)};
	struct gpool_kv_span span = {.size = sizeof(span)};
	struct gpool_kv_group *group;
	uint64_t sequence;

	(void)state;
	assert_int_equal(gpool_kv_group_create(caches, 2, 32, &group), 0);
	request.tokens = 10;
	assert_int_equal(gpool_kv_group_allocate(group, &request, &sequence), 0);
	assert_int_equal(gpool_kv_group_free(group, sequence), 0);
	SAYS(gpool_kv_group_span(group, sequence, 0, &span), -ESTALE, "has ended");
	gpool_kv_group_destroy(group);
	assert_int_equal(gpool_kv_destroy(caches[0]), 0);
	assert_int_equal(gpool_kv_destroy(caches[1]), 0);
}

/* ---- adapters ---- */

static void test_adapters(void **state)
{
	static const char *const others[] = {"red", "rose"};
	struct gpool_lora_info info = {.size = sizeof(info)};
	struct gpool_lora *lora;
	uint32_t id;

	(void)state;
	assert_int_equal(gpool_lora_create(red, NULL, &lora), 0);
	SAYS(gpool_lora_release(lora, 4, none), -ENOENT, "no adapter 4 is registered");
	SAYS(gpool_lora_wait_layer(lora, 4, 0, 0), -ENOENT, "no adapter 4 is registered");
	SAYS(gpool_lora_info(lora, 4, &info), -ENOENT, "no adapter 4 is registered");
	SAYS(gpool_lora_restrict(lora, 4, others, 2), -ENOENT, "no adapter 4 is registered");
	assert_int_equal(gpool_lora_register(lora, "plain", "tests/fixtures/adapters/plain", &id, NULL), 0);
	SAYS(gpool_lora_restrict(lora, id, others, 0), -EINVAL, "0 tenants; there must be 1 to ");
	SAYS(gpool_lora_acquire(lora, id, 0), -EAGAIN, "adapter 'plain' is being loaded, and timeout_ms is 0");
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	SAYS(gpool_lora_restrict(lora, id, others, 2), -EBUSY, "adapter 'plain' has been loaded; restrict it before");
	SAYS(gpool_lora_release(lora, id, (struct gpool_fence){UINT64_MAX}), -EINVAL, "fence 0xffffffffffffffff");
	assert_int_equal(gpool_lora_release(lora, id, none), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
}

static void test_options_for_prefixes(void **state)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_kv *kv;

	(void)state;
	options.shape = (struct gpool_kv_shape){2, 2, 16, 2, 16};
	options.stream = work_stream;
	options.cached_blocks = 9;
	SAYS(gpool_kv_create(red, &options, &kv), -EINVAL, "cached_blocks requires GPOOL_KV_PREFIXES");
	options.cached_blocks = 0;
	options.model[31] = 1;
	SAYS(gpool_kv_create(red, &options, &kv), -EINVAL, "model requires GPOOL_KV_PREFIXES");
	options.model[31] = 0;
	options.flags = GPOOL_KV_ADAPTIVE;
	SAYS(gpool_kv_create(red, &options, &kv), -EINVAL, "GPOOL_KV_ADAPTIVE requires GPOOL_KV_PREFIXES");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_freed_block),
		cmocka_unit_test(test_an_evicted_block),
		cmocka_unit_test(test_prepared_blocks),
		cmocka_unit_test(test_freed_spans_and_allocations),
		cmocka_unit_test(test_limits_of_a_tenant),
		cmocka_unit_test(test_versions_of_objects),
		cmocka_unit_test(test_adopting),
		cmocka_unit_test(test_evicted_objects),
		cmocka_unit_test(test_ranges_larger_than_addresses),
		cmocka_unit_test(test_ranges_of_objects),
		cmocka_unit_test(test_roles_of_others),
		cmocka_unit_test(test_waits_that_end),
		cmocka_unit_test(test_fences_of_others),
		cmocka_unit_test(test_quotas),
		cmocka_unit_test(test_no_shortage),
		cmocka_unit_test(test_observers),
		cmocka_unit_test(test_asleep),
		cmocka_unit_test(test_sequences),
		cmocka_unit_test(test_prefixes),
		cmocka_unit_test(test_sharing_prefixes),
		cmocka_unit_test(test_groups),
		cmocka_unit_test(test_adapters),
		cmocka_unit_test(test_options_for_prefixes),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
