/*
 * test_last_error.c - what calls say of wrong arguments.
 *
 * Goal: the calls that programs begin with name the value that was refused, and its limit; a text is of the failure that it is asked for, of this
 * thread, and read once. Method: each call once with each wrong value, against a real agent.
 */
#include "tests/lib/harness.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 512, PAGE_BYTES = 512 * 1024 };

static struct harness harness;
static struct gpool *pool;
static char long_name[200];

/* This call fails with this code and this text. */
static void said(int line, int result, int error, const char *text)
{
	const char *found;

	if (result != error)
		fail_msg("line %d: %d (%s) instead of %d", line, result, gpool_strerror(result), error);
	found = gpool_last_error(result);
	if (!strstr(found, text))
		fail_msg("line %d: '%s' instead of '%s'", line, found, text);
	/* Once: nobody takes it for that of a later failure. */
	assert_string_equal(gpool_last_error(result), gpool_strerror(result));
}
#define SAYS(call, error, text) said(__LINE__, call, error, text)

static void test_opening(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *none;

	(void)state;
	options.flags = 8 | GPOOL_OPEN_ADMIN;
	SAYS(gpool_open(&options, &none), -EINVAL, "flags are 0xa, of which 0x8 are not known");
	options.flags = GPOOL_OPEN_ADMIN | GPOOL_OPEN_OBSERVER;
	SAYS(gpool_open(&options, &none), -EINVAL, "both GPOOL_OPEN_OBSERVER and GPOOL_OPEN_ADMIN");
	options.flags = 0;
	options.timeout_ms = -2;
	SAYS(gpool_open(&options, &none), -EINVAL, "timeout_ms is -2; the least is -1");
	options.timeout_ms = 0;
	options.magazine = 10000;
	SAYS(gpool_open(&options, &none), -EINVAL, "magazine is 10000; the largest is ");
	options.magazine = 0;
	options.pool = long_name;
	SAYS(gpool_open(&options, &none), -EINVAL, "the pool's name has 199 bytes; at most 63");
	options.pool = "nope";
	SAYS(gpool_open(&options, &none), -ENXIO, "no pool 'nope'");
	options.pool = NULL;
	options.tenant = "nope";
	SAYS(gpool_open(&options, &none), -ENXIO, "nope");
	options.tenant = NULL;
	options.directory = "/nowhere";
	SAYS(gpool_open(&options, &none), -ENOENT, "cannot connect to '/nowhere/attach': No such file or directory");
	options.size = 2;
	SAYS(gpool_open(&options, &none), -EINVAL, "size is 2 bytes");
}

static void test_blocks(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block, all, wrong;
	uint64_t address;

	(void)state;
	SAYS(gpool_alloc(pool, 2048, NULL, &block), -EINVAL, "page_count is 2048; this pool has 512 pages");
	SAYS(gpool_alloc(pool, 0, NULL, &block), -EINVAL, "page_count is 0; this pool has 512 pages");
	options.flags = 1 << 20;
	SAYS(gpool_alloc(pool, 1, &options, &block), -EINVAL, "flags are 0x100000, of which 0x100000 are not known");
	options.flags = GPOOL_ALLOC_SPILL;
	SAYS(gpool_alloc(pool, 1, &options, &block), -EOPNOTSUPP, "this pool keeps no spilled content");
	options.flags = 0;
	options.content = 99;
	SAYS(gpool_alloc(pool, 1, &options, &block), -EINVAL, "content is 99; the largest is 4");
	options.content = 0;
	options.priority = 7;
	SAYS(gpool_alloc(pool, 1, &options, &block), -EINVAL, "priority is 7; the largest is 3");
	options.priority = 0;
	options.timeout_ms = -5;
	SAYS(gpool_alloc(pool, 1, &options, &block), -EINVAL, "timeout_ms is -5; the least is -1");
	options.timeout_ms = 0;
	options.stream = 77;
	SAYS(gpool_alloc(pool, 1, &options, &block), -EINVAL, "stream 77 is not open");
	assert_int_equal(gpool_alloc(pool, 500, NULL, &all), 0);
	SAYS(gpool_alloc(pool, 20, NULL, &block), -ENOSPC, "20 needed, 12 free, 500 pinned, 500 of them by session ");
	assert_int_equal(gpool_free(pool, &all), 0);
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), 0);
	wrong = block;
	wrong.page = PAGES;
	SAYS(gpool_pin(pool, &wrong), -EINVAL, "its page is 512, and this session's pool has 512 pages");
	SAYS(gpool_unpin(pool, &wrong), -EINVAL, "its page is 512");
	SAYS(gpool_free(pool, &wrong), -EINVAL, "its page is 512");
	SAYS(gpool_touch(pool, &wrong), -EINVAL, "its page is 512");
	SAYS(gpool_address(pool, &wrong, &address), -EINVAL, "its page is 512");
	wrong = block;
	wrong.tag = 5;
	SAYS(gpool_pin(pool, &wrong), -EINVAL, "not a block's handle: tag 0000000000000005");
	assert_int_equal(gpool_unpin(pool, &block), 0);
	SAYS(gpool_unpin(pool, &block), -EINVAL, "is not pinned");
	SAYS(gpool_free(pool, &block), -EINVAL, "is not pinned");
	assert_int_equal(gpool_drop(pool, &block), 0);
}

static void test_spans(void **state)
{
	struct gpool_span span, wrong;

	(void)state;
	SAYS(gpool_span_alloc(pool, PAGE_BYTES, 0, &span), -EINVAL, "bytes is 524288; a span has 1 to 262144, half a page");
	SAYS(gpool_span_alloc(pool, 0, 0, &span), -EINVAL, "bytes is 0; a span has 1 to 262144");
	SAYS(gpool_span_alloc(pool, 1, 50, &span), -EINVAL, "content is 50; the largest is 4");
	assert_int_equal(gpool_span_alloc(pool, 300, 0, &span), 0);
	wrong = span;
	wrong.offset = 1;
	SAYS(gpool_span_free(pool, &wrong), -EINVAL, "not a span's handle: 512 bytes at offset 1, in a page of spans of 512 bytes");
	assert_int_equal(gpool_span_free(pool, &span), 0);
}

static void test_ranges(void **state)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_fence none = { 0 };
	struct gpool_range *range;

	(void)state;
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	SAYS(gpool_range_create(pool, 513, &options, &range), -EINVAL, "page_count is 513; this pool has 512 pages");
	options.memory_class = 9;
	SAYS(gpool_range_create(pool, 1, &options, &range), -EINVAL, "memory_class is 9; the largest is ");
	options.memory_class = GPOOL_OBJECT_IMMUTABLE;
	SAYS(gpool_range_create(pool, 1, &options, &range), -EINVAL, "a range of the class IMMUTABLE needs a name");
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	options.name = "r";
	SAYS(gpool_range_create(pool, 1, &options, &range), -EINVAL, "only a range of the class IMMUTABLE has a name");
	options.name = NULL;
	options.content = 8;
	SAYS(gpool_range_create(pool, 1, &options, &range), -EINVAL, "content is 8; the largest is 4");
	SAYS(gpool_range_reserve(pool, 1, &options, &range), -EINVAL, "content is 8; the largest is 4");
	SAYS(gpool_range_reserve(pool, 0, NULL, &range), -EINVAL, "page_count is 0");
	assert_int_equal(gpool_range_reserve(pool, 8, NULL, &range), 0);
	SAYS(gpool_range_back(range, 7, 2, 0), -EINVAL, "first is 7 and count 2; the range has 8 pages");
	SAYS(gpool_range_back(range, 0, 1, -2), -EINVAL, "timeout_ms is -2");
	SAYS(gpool_range_unback(range, 0, 9, none), -EINVAL, "first is 0 and count 9; the range has 8 pages");
	assert_int_equal(gpool_range_destroy(range), 0);
}

static void test_offered_ranges(void **state)
{
	struct gpool_fence none = { 0 }, wrong = { UINT64_MAX };
	struct gpool_range *range;

	(void)state;
	assert_int_equal(gpool_range_reserve(pool, 8, NULL, &range), 0);
	assert_int_equal(gpool_range_back(range, 0, 4, 0), 0);
	SAYS(gpool_range_offer(range, 0, 9, none), -EINVAL, "first is 0 and count 9; the range has 8 pages");
	SAYS(gpool_range_offer(range, 2, 4, none), -EINVAL, "page 4 is not backed");
	SAYS(gpool_range_offer(range, 0, 1, wrong), -EINVAL, "fence 0xffffffffffffffff was not recorded by this session");
	SAYS(gpool_range_reclaim(range, 8, 1, NULL), -EINVAL, "first is 8 and count 1; the range has 8 pages");
	SAYS(gpool_range_capture(range, 3, 2, 1), -EINVAL, "page 4 is not backed");
	assert_int_equal(gpool_range_capture(range, 1, 1, 1), 0);
	SAYS(gpool_range_offer(range, 0, 4, none), -EINVAL, "page 1 is captured");
	assert_int_equal(gpool_range_offer(range, 2, 2, none), 0);
	SAYS(gpool_range_capture(range, 0, 4, 1), -EINVAL, "page 2 is offered");
	assert_int_equal(gpool_range_destroy(range), 0);
	assert_int_equal(gpool_range_create(pool, 1, NULL, &range), 0);
	SAYS(gpool_range_offer(range, 0, 1, none), -EINVAL, "the range is not elastic");
	SAYS(gpool_range_reclaim(range, 0, 1, NULL), -EINVAL, "the range is not elastic");
	assert_int_equal(gpool_range_destroy(range), 0);
}

static void test_shortages(void **state)
{
	struct gpool_shortage shortage = { .size = 2 };
	struct gpool_shortage_object object = { .size = 3 };

	(void)state;
	SAYS(gpool_shortage(pool, &shortage), -EINVAL, "size is 2 bytes");
	SAYS(gpool_shortage_object(pool, &object), -EINVAL, "size is 3 bytes");
}

static void test_objects(void **state)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object_open_options open = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	struct gpool_object *object, *reader;
	const void *value;
	size_t bytes;
	uint64_t version, address;
	uint32_t index;

	(void)state;
	SAYS(gpool_object_create(pool, "", NULL, &object), -EINVAL, "the object's name is empty");
	SAYS(gpool_object_create(pool, long_name, NULL, &object), -EINVAL, "a name has 199 bytes; at most 127");
	SAYS(gpool_object_create(pool, "a\n", NULL, &object), -EINVAL, "a name has bytes that are no printable UTF-8");
	options.memory_class = 12;
	SAYS(gpool_object_create(pool, "o", &options, &object), -EINVAL, "memory_class is 12; the largest is 3");
	assert_int_equal(gpool_object_create(pool, "o", NULL, &object), 0);
	SAYS(gpool_object_publish(object, &version), -EINVAL, "object 'o' has no allocation");
	SAYS(gpool_object_set(object, "", "x", 1), -EINVAL, "the key has 0 bytes; 1 to 1023");
	SAYS(gpool_object_get(object, "k", &value, &bytes), -EINVAL, "object 'o' is not published");
	SAYS(gpool_object_alloc(object, 600, NULL, &index), -EINVAL, "page_count is 600; this pool has 512 pages");
	assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), 0);
	SAYS(gpool_object_address(object, 3, &address, &address), -EINVAL, "allocation 3 of object 'o', which has 1");
	SAYS(gpool_object_pin(object), -EINVAL, "object 'o' is not published with the class PINNABLE");
	assert_int_equal(gpool_object_publish(object, &version), 0);
	SAYS(gpool_object_set(object, "k", "x", 1), -EINVAL, "object 'o' is published");
	open.layout_hash = 0x1234;
	SAYS(gpool_object_open(pool, "o", &open, &reader), -EPROTO, "and the one expected is 0000000000001234");
	open.layout_hash = 0;
	open.version = version + 7;
	SAYS(gpool_object_open(pool, "o", &open, &reader), -ENOENT, "object 'o': there is no such object, or not this version of it");
	SAYS(gpool_object_delete(pool, "p", 0), -ENOENT, "object 'p': ");
	assert_int_equal(gpool_object_delete(pool, "o", 0), 0);
	assert_int_equal(gpool_object_close(object), 0);
}

static void test_roles_events_streams(void **state)
{
	struct gpool_role role = { .token = 0 };
	struct gpool_fence fence = { UINT64_MAX };
	struct gpool_event event;
	uint32_t stream;
	void *native;

	(void)state;
	SAYS(gpool_role_acquire(pool, "", 0, &role), -EINVAL, "the role's name is empty");
	SAYS(gpool_role_acquire(pool, long_name, 0, &role), -EINVAL, "the role's name has 199 bytes; at most 63");
	SAYS(gpool_role_acquire(pool, "r", -2, &role), -EINVAL, "timeout_ms is -2");
	SAYS(gpool_role_check(pool, &role), -EINVAL, "not a role that gpool_role_acquire() returned");
	SAYS(gpool_event_next(pool, -3, &event), -EINVAL, "timeout_ms is -3");
	SAYS(gpool_stream_open(pool, NULL, 6, &stream), -EINVAL, "flags are 0x6; the only one is GPOOL_STREAM_MANUAL");
	SAYS(gpool_copy(pool, 900, 0, 0, 0), -EINVAL, "stream 900 is not open");
	SAYS(gpool_fence_wait(pool, fence, 0), -EINVAL, "fence 0xffffffffffffffff was not recorded by this session");
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_MANUAL, &stream), 0);
	SAYS(gpool_stream_native(pool, stream, &native), -EINVAL, "is manual");
	SAYS(gpool_fill(pool, stream, 0, 0, 5), -EINVAL, "bytes is 5, which is not a multiple of 4");
	gpool_stream_close(pool, stream);
}

static void test_caches_and_adapters(void **state)
{
	struct gpool_lora_options lora_options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	char why[GPOOL_LORA_REASON_BYTES];
	struct gpool_lora *lora;
	struct gpool_kv *kv;
	uint32_t id;

	(void)state;
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &options.stream), 0);
	options.shape = (struct gpool_kv_shape){ 2, 2, 16, 2, 24 };
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "block_tokens is 24; a power of two up to 1024");
	options.shape = (struct gpool_kv_shape){ 2, 2, 16, 3, 16 };
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "dtype_bytes is 3; 1, 2, 4 or 8");
	options.shape = (struct gpool_kv_shape){ 2, 0, 16, 2, 16 };
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "2 layers, 0 heads of 16 elements of 2 bytes");
	options.shape.kv_heads = 2;
	options.pool_blocks = 4;
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "pool_blocks needs GPOOL_KV_PREFIXES");
	options.pool_blocks = 0;
	options.max_sequences = 1 << 20;
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "max_sequences is 1048576; at most 65536");
	gpool_stream_close(pool, options.stream);
	lora_options.load_threads = 1000;
	SAYS(gpool_lora_open(pool, &lora_options, &lora), -EINVAL, "load_threads is 1000; at most ");
	lora_options.load_threads = 0;
	lora_options.flags = GPOOL_LORA_INT8;
	SAYS(gpool_lora_open(pool, &lora_options, &lora), -EINVAL, "GPOOL_LORA_INT8 needs cold_folder or warm");
	lora_options.flags = 0;
	assert_int_equal(gpool_lora_open(pool, &lora_options, &lora), 0);
	SAYS(gpool_lora_register(lora, "", "/tmp", &id, why), -EINVAL, "the adapter's name is empty");
	SAYS(gpool_lora_register(lora, "a", "/nowhere", &id, NULL), -ENOENT, "/nowhere/adapter_config.json");
	SAYS(gpool_lora_find(lora, "b", &id), -ENOENT, "no adapter 'b' is registered");
	assert_int_equal(gpool_lora_close(lora), 0);
}

/* ---- whose text, and when ---- */

static void *fail_elsewhere(void *unused)
{
	struct gpool_block block;

	assert_int_equal(gpool_alloc(pool, 5000, NULL, &block), -EINVAL);
	return unused;
}

static void test_a_text_is_of_this_thread_and_code(void **state)
{
	struct gpool_block block;
	pthread_t other;

	(void)state;
	assert_int_equal(gpool_alloc(pool, 3000, NULL, &block), -EINVAL);
	assert_int_equal(pthread_create(&other, NULL, fail_elsewhere, NULL), 0);
	pthread_join(other, NULL);
	assert_string_equal(gpool_last_error(-ENOSPC), gpool_strerror(ENOSPC));
	assert_string_equal(gpool_last_error(0), gpool_strerror(0));
	assert_non_null(strstr(gpool_last_error(EINVAL), "page_count is 3000;"));
	assert_string_equal(gpool_last_error(EINVAL), gpool_strerror(EINVAL));
}

static int begin(void **state)
{
	static const char *const arguments[] = { "--pool", HARNESS_POOL ",spill_memory=0B", NULL };

	(void)state;
	memset(long_name, 'x', sizeof(long_name) - 1);
	harness_start(&harness, arguments);
	pool = harness_open(&harness);
	return 0;
}

static int end(void **state)
{
	(void)state;
	gpool_close(pool);
	return harness_stop(&harness);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_opening),
		cmocka_unit_test(test_blocks),
		cmocka_unit_test(test_spans),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_offered_ranges),
		cmocka_unit_test(test_shortages),
		cmocka_unit_test(test_objects),
		cmocka_unit_test(test_roles_events_streams),
		cmocka_unit_test(test_caches_and_adapters),
		cmocka_unit_test(test_a_text_is_of_this_thread_and_code),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
