/*
 * test_options.c - compatibility with programs that were built against another version of gpool.h.
 *
 * Goal: structs keep their published sizes and field offsets. In a shorter struct, the missing fields are taken as
 * zero. A longer struct is accepted if its unknown part is zero. libgpool.so exports exactly the names in libgpool.map.
 */
#include "client/core/pool.h"
#include "tests/lib/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct harness harness;
static struct gpool *pool;

/* ---- sizes and offsets: the numbers of version 0.1, which never change ---- */

static void test_layout(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct gpool_block), 24);
	assert_int_equal(sizeof(struct gpool_options), 72);
	assert_int_equal(sizeof(struct gpool_alloc_options), 32);
	assert_int_equal(sizeof(struct gpool_oom_info), 428);
	assert_int_equal(offsetof(struct gpool_oom_info, holder_name), 24);
	assert_int_equal(offsetof(struct gpool_oom_info, holder_count), 88);
	assert_int_equal(sizeof(struct gpool_holder), 84);
	assert_int_equal(offsetof(struct gpool_holder, name), 20);
	assert_int_equal(sizeof(struct gpool_oom_object), 208);
	assert_int_equal(offsetof(struct gpool_oom_object, session_name), 144);
	assert_int_equal(sizeof(struct gpool_span), 40);
	assert_int_equal(sizeof(struct gpool_fence), 8);
	assert_int_equal(sizeof(struct gpool_fence_handle), 128);
	assert_int_equal(offsetof(struct gpool_fence_handle, bytes), 4);
	assert_int_equal(GPOOL_FENCE_HANDLE_TIMELINE, 2);
	assert_int_equal(GPOOL_FENCE_EXPORT_EVENT, 1);
	assert_int_equal(sizeof(struct gpool_scope), 48);
	assert_int_equal(sizeof(struct gpool_event), 288);
	assert_int_equal(sizeof(struct gpool_loan), 56);
	assert_int_equal(sizeof(struct gpool_device_info), 144);
	assert_int_equal(offsetof(struct gpool_device_info, pool), 16);
	assert_int_equal(sizeof(struct gpool_role), 24);
	assert_int_equal(offsetof(struct gpool_role, token), 8);
	assert_int_equal(sizeof(struct gpool_stats), 616);
	assert_int_equal(offsetof(struct gpool_options, directory), 8);
	assert_int_equal(offsetof(struct gpool_options, timeout_ms), 40);
	assert_int_equal(offsetof(struct gpool_options, quota_bytes), 48);
	assert_int_equal(offsetof(struct gpool_options, log), 56);
	assert_int_equal(offsetof(struct gpool_alloc_options, owner_id), 16);
	assert_int_equal(offsetof(struct gpool_alloc_options, stream), 28);
	assert_int_equal(offsetof(struct gpool_stats, driver_calls), 96);
	assert_int_equal(offsetof(struct gpool_stats, refill_ns), 360);
	assert_int_equal(GPOOL_USAGE_GRADIENT, 4);
	assert_int_equal(GPOOL_ALLOC_SPILL, 16);
	assert_int_equal(GPOOL_EVENT_DAMAGE, 11);
	assert_int_equal(sizeof(struct gpool_object_options), 40);
	assert_int_equal(sizeof(struct gpool_object_open_options), 40);
	assert_int_equal(sizeof(struct gpool_object_info), 328);
	assert_int_equal(offsetof(struct gpool_object_options, role), 16);
	assert_int_equal(offsetof(struct gpool_object_options, expect_version), 32);
	assert_int_equal(offsetof(struct gpool_object_open_options, layout_hash), 16);
	assert_int_equal(offsetof(struct gpool_object_open_options, role_token), 32);
	assert_int_equal(offsetof(struct gpool_object_info, version), 32);
	assert_int_equal(offsetof(struct gpool_object_info, uid), 64);
	assert_int_equal(offsetof(struct gpool_object_info, name), 72);
	assert_int_equal(sizeof(struct gpool_kv_options), 104);
	assert_int_equal(offsetof(struct gpool_kv_options, stream), 28);
	assert_int_equal(offsetof(struct gpool_kv_options, watermark_blocks), 44);
	assert_int_equal(sizeof(struct gpool_kv_layout), 120);
	assert_int_equal(offsetof(struct gpool_kv_layout, layer_bytes), 64);
	assert_int_equal(sizeof(struct gpool_kv_write), 56);
	assert_int_equal(offsetof(struct gpool_kv_write, layer), 40);
	assert_int_equal(sizeof(struct gpool_kv_write_error), 24);
	assert_int_equal(offsetof(struct gpool_kv_layout, table_address), 40);
	assert_int_equal(sizeof(struct gpool_kv_need), 24);
	assert_int_equal(sizeof(struct gpool_kv_growth), 32);
	assert_int_equal(sizeof(struct gpool_kv_order), 144);
	assert_int_equal(offsetof(struct gpool_kv_order, info), 96);
	assert_int_equal(sizeof(struct gpool_kv_member), 32);
	assert_int_equal(offsetof(struct gpool_kv_growth, choose), 16);
	assert_int_equal(sizeof(struct gpool_kv_request), 32);
	assert_int_equal(offsetof(struct gpool_kv_request, priority), 16);
	assert_int_equal(sizeof(struct gpool_kv_sequence_info), 48);
	assert_int_equal(offsetof(struct gpool_kv_sequence_info, arrival), 32);
	assert_int_equal(offsetof(struct gpool_kv_options, model), 56);
	assert_int_equal(offsetof(struct gpool_kv_options, compact_bytes_per_s), 96);
	assert_int_equal(sizeof(struct gpool_kv_prefix), 48);
	assert_int_equal(offsetof(struct gpool_kv_prefix, adapter_id), 24);
	assert_int_equal(sizeof(struct gpool_kv_prefix_found), 24);
	assert_int_equal(offsetof(struct gpool_kv_prefix_found, last_block), 16);
	assert_int_equal(sizeof(struct gpool_kv_prefix_node), 48);
	assert_int_equal(offsetof(struct gpool_kv_prefix_node, sequences), 36);
	assert_int_equal(sizeof(struct gpool_kv_stats), 192);
	assert_int_equal(offsetof(struct gpool_kv_stats, prefix_lost), 184);
	assert_int_equal(offsetof(struct gpool_kv_stats, prefix_hits), 120);
	assert_int_equal(offsetof(struct gpool_kv_stats, committed_bytes), 48);
	assert_int_equal(sizeof(struct gpool_kv_quant_error), 24);
	assert_int_equal(sizeof(struct gpool_kv_offload_info), 56);
	assert_int_equal(offsetof(struct gpool_kv_offload_info, host_bytes), 16);
	assert_int_equal(sizeof(struct gpool_kv_attention), 128);
	assert_int_equal(offsetof(struct gpool_kv_attention, keys), 40);
	assert_int_equal(offsetof(struct gpool_kv_attention, heads), 100);
	assert_int_equal(sizeof(struct gpool_kv_span), 24);
	assert_int_equal(offsetof(struct gpool_kv_span, sequence), 16);
	assert_int_equal(GPOOL_KV_NEVER, 2);
	assert_int_equal(GPOOL_KV_PREEMPTED, 2);
	assert_int_equal(sizeof(struct gpool_lora_options), 80);
	assert_int_equal(offsetof(struct gpool_lora_options, salt), 24);
	assert_int_equal(offsetof(struct gpool_lora_options, warm), 40);
	assert_int_equal(offsetof(struct gpool_lora_options, rebalance_ms), 48);
	assert_int_equal(offsetof(struct gpool_lora_options, hot_bytes), 56);
	assert_int_equal(offsetof(struct gpool_lora_options, warm_adapters), 64);
	assert_int_equal(offsetof(struct gpool_lora_options, idle_ms), 68);
	assert_int_equal(offsetof(struct gpool_lora_options, warm_bytes), 72);
	assert_int_equal(sizeof(struct gpool_lora_array), 48);
	assert_int_equal(offsetof(struct gpool_lora_array, row_stride), 16);
	assert_int_equal(offsetof(struct gpool_lora_array, element), 40);
	assert_int_equal(sizeof(struct gpool_lora_info), 248);
	assert_int_equal(offsetof(struct gpool_lora_info, tier), 216);
	assert_int_equal(offsetof(struct gpool_lora_info, targets), 240);
	assert_int_equal(offsetof(struct gpool_lora_info, name), 64);
	assert_int_equal(offsetof(struct gpool_lora_info, from_warm), 192);
	assert_int_equal(offsetof(struct gpool_lora_info, rebalanced), 208);
	assert_int_equal(sizeof(struct gpool_lora_stats), 200);
	assert_int_equal(offsetof(struct gpool_lora_stats, dropped), 192);
	assert_int_equal(offsetof(struct gpool_lora_stats, evicted), 184);
	assert_int_equal(offsetof(struct gpool_lora_stats, hot_evictions), 120);
	assert_int_equal(offsetof(struct gpool_lora_stats, hot_utilization), 168);
	assert_int_equal(offsetof(struct gpool_lora_stats, hot_bytes), 64);
	assert_int_equal(sizeof(struct gpool_range_options), 40);
	assert_int_equal(sizeof(struct gpool_range_info), 200);
	assert_int_equal(sizeof(struct gpool_range_page), 32);
	assert_int_equal(offsetof(struct gpool_range_info, committed_pages), 176);
	assert_int_equal(offsetof(struct gpool_range_page, generation), 16);
	assert_int_equal(GPOOL_PAGE_COMMITTED, 2);
	assert_int_equal(sizeof(struct gpool_sliced_range_options), 32);
	assert_int_equal(sizeof(struct gpool_sliced_range_info), 48);
	assert_int_equal(offsetof(struct gpool_sliced_range_options, read_ahead), 24);
	assert_int_equal(offsetof(struct gpool_sliced_range_info, address), 24);
	assert_int_equal(offsetof(struct gpool_range_options, name), 16);
	assert_int_equal(offsetof(struct gpool_range_options, timeout_ms), 32);
	assert_int_equal(offsetof(struct gpool_range_info, address), 16);
	assert_int_equal(offsetof(struct gpool_range_info, name), 48);
	assert_int_equal(sizeof(struct gpool_vm_options), 72);
	assert_int_equal(sizeof(struct gpool_vm_stats), 184);
	assert_int_equal(offsetof(struct gpool_vm_options, page_bytes), 8);
	assert_int_equal(offsetof(struct gpool_vm_options, small), 32);
	assert_int_equal(offsetof(struct gpool_vm_options, record_path), 48);
	assert_int_equal(offsetof(struct gpool_vm_options, idle_ms), 56);
	assert_int_equal(offsetof(struct gpool_vm_options, slack_percent), 60);
	assert_int_equal(offsetof(struct gpool_vm_options, initial_percent), 64);
	assert_int_equal(offsetof(struct gpool_vm_stats, slack_percent), 4);
	assert_int_equal(offsetof(struct gpool_vm_stats, page_bytes), 8);
	assert_int_equal(offsetof(struct gpool_vm_stats, small_bytes), 72);
	assert_int_equal(offsetof(struct gpool_vm_stats, allocations), 112);
	assert_int_equal(offsetof(struct gpool_vm_stats, records_lost), 160);
	assert_int_equal(offsetof(struct gpool_vm_stats, slack_taken_bytes), 176);
	assert_int_equal(GPOOL_VM_SMALL_PAGES, 2);
	assert_int_equal(GPOOL_RANGE_ASLEEP, 2);
	assert_int_equal(GPOOL_OBJECT_EPHEMERAL, 2);
	assert_int_equal(GPOOL_OBJECT_PINNABLE, 3);
	assert_int_equal(GPOOL_OBJECT_PRIVATE, 2);
	assert_int_equal(GPOOL_OBJECT_DOMAIN_WRITE, 4);
	assert_int_equal(GPOOL_OBJECT_ADOPT, 1);
	assert_int_equal(GPOOL_EVENT_OBJECT_EVICTED, 14);
	assert_int_equal(GPOOL_EVENT_TAKEOVER, 17);
	assert_int_equal(sizeof(struct gpool_lora_target), 16);
	assert_int_equal(sizeof(struct gpool_lora_batch_options), 48);
	assert_int_equal(offsetof(struct gpool_lora_batch_options, tokens_max), 16);
	assert_int_equal(offsetof(struct gpool_lora_batch_options, targets), 32);
	assert_int_equal(sizeof(struct gpool_lora_scheduler_options), 32);
	assert_int_equal(offsetof(struct gpool_lora_scheduler_options, max_bypass_ms), 28);
	assert_int_equal(sizeof(struct gpool_lora_schedule), 3092);
	assert_int_equal(offsetof(struct gpool_lora_schedule, starts), 20);
	assert_int_equal(sizeof(struct gpool_lora_scheduler_stats), 104);
	assert_int_equal(offsetof(struct gpool_lora_scheduler_stats, batches), 16);
}

/* ---- gpool_options ---- */

struct longer_options {
	struct gpool_options known;
	uint64_t future[2];
};

static int open_and_close(const struct gpool_options *options)
{
	struct gpool *opened;
	int error = gpool_open(options, &opened);

	if (!error)
		gpool_close(opened);
	return error;
}

/* Shorter and longer structs for ranges. Without a name, the shorter one makes the range mutable. */
static void test_range_structs(void **state)
{
	struct {
		struct gpool_range_options known;
		uint64_t future;
	} made = {.known = GPOOL_RANGE_OPTIONS_INIT};
	struct {
		struct gpool_range_info known;
		uint64_t future;
	} info;
	struct gpool_range *range;

	(void)state;
	made.known.size = sizeof(made);
	made.known.memory_class = GPOOL_OBJECT_EPHEMERAL;
	made.future = 1;
	assert_int_equal(gpool_range_create(pool, 2, &made.known, &range), -E2BIG);
	made.future = 0;
	assert_int_equal(gpool_range_create(pool, 2, &made.known, &range), 0);
	assert_int_equal(gpool_range_destroy(range), 0);
	made.known.name = "beyond the size";
	made.known.size = offsetof(struct gpool_range_options, name);
	assert_int_equal(gpool_range_create(pool, 2, &made.known, &range), 0);
	memset(&info, 0xff, sizeof(info));
	info.known.size = offsetof(struct gpool_range_info, bytes);
	assert_int_equal(gpool_range_info(range, &info.known), 0);
	assert_int_equal(info.known.page_count, 2);
	assert_int_equal(info.known.bytes, UINT64_MAX);
	info.known.size = sizeof(info);
	assert_int_equal(gpool_range_info(range, &info.known), 0);
	assert_int_equal(info.future, 0);
	assert_int_equal(gpool_range_destroy(range), 0);
}

static void test_elastic_structs(void **state)
{
	struct {
		struct gpool_sliced_range_options known;
		uint64_t future;
	} made = {.known = GPOOL_SLICED_RANGE_OPTIONS_INIT};
	struct {
		struct gpool_sliced_range_info known;
		uint64_t future;
	} info;
	struct {
		struct gpool_range_page known;
		uint64_t future;
	} page;
	struct gpool_sliced_range *tensor;
	struct gpool_range *range;

	(void)state;
	made.known.size = sizeof(made);
	made.known.memory_class = GPOOL_OBJECT_EPHEMERAL;
	made.future = 1;
	assert_int_equal(gpool_sliced_range_create(pool, 2, 3, 1, &made.known, &tensor), -E2BIG);
	made.known.size = offsetof(struct gpool_sliced_range_options, read_ahead);
	made.known.read_ahead = 7; /* beyond the size */
	assert_int_equal(gpool_sliced_range_create(pool, 2, 3, 1, &made.known, &tensor), 0);
	memset(&info, 0xff, sizeof(info));
	info.known.size = offsetof(struct gpool_sliced_range_info, address);
	assert_int_equal(gpool_sliced_range_info(tensor, &info.known), 0);
	assert_int_equal(info.known.blocks, 3);
	assert_int_equal(info.known.address, UINT64_MAX);
	info.known.size = sizeof(info);
	assert_int_equal(gpool_sliced_range_info(tensor, &info.known), 0);
	assert_int_equal(info.future, 0);
	assert_int_equal(gpool_sliced_range_destroy(tensor), 0);
	assert_int_equal(gpool_range_reserve(pool, 2, NULL, &range), 0);
	memset(&page, 0xff, sizeof(page));
	page.known.size = offsetof(struct gpool_range_page, generation);
	assert_int_equal(gpool_range_resolve(range, 0, &page.known), 0);
	assert_int_equal(page.known.state, GPOOL_PAGE_HOLE);
	assert_int_equal(page.known.generation, UINT64_MAX);
	page.known.size = sizeof(page);
	assert_int_equal(gpool_range_resolve(range, 0, &page.known), 0);
	assert_int_equal(page.future, 0);
	assert_int_equal(gpool_range_destroy(range), 0);
}

/* Structs for stream-ordered memory. */
static void test_vm_structs(void **state)
{
	struct {
		struct gpool_vm_options known;
		uint64_t future;
	} made = {.known = GPOOL_VM_OPTIONS_INIT};
	struct {
		struct gpool_vm_stats known;
		uint8_t future[16];
	} totals;
	uint64_t address;

	(void)state;
	made.known.size = sizeof(made);
	made.future = 1;
	assert_int_equal(gpool_vm_configure(pool, &made.known), -E2BIG);
	made.future = 0;
	assert_int_equal(gpool_vm_configure(pool, &made.known), 0);
	made.known.record_path = "/beyond the size/it would be made";
	made.known.idle_ms = -99;
	made.known.size = offsetof(struct gpool_vm_options, record_path);
	assert_int_equal(gpool_vm_configure(pool, &made.known), 0);
	made.known.size = 3;
	assert_int_equal(gpool_vm_configure(pool, &made.known), -EINVAL);
	assert_int_equal(gpool_malloc_async(pool, gpool_page_bytes(pool), 0, &address), 0);
	memset(&totals, 0xee, sizeof(totals));
	totals.known.size = offsetof(struct gpool_vm_stats, reusable_bytes);
	assert_int_equal(gpool_vm_stats(pool, &totals.known), 0);
	assert_int_equal(totals.known.live_bytes, gpool_page_bytes(pool));
	assert_int_equal(totals.known.reusable_bytes, UINT64_C(0xeeeeeeeeeeeeeeee));
	totals.known.size = sizeof(totals.known) + 8;
	assert_int_equal(gpool_vm_stats(pool, &totals.known), 0);
	for (int i = 0; i < 16; i++)
		assert_int_equal(totals.future[i], i < 8 ? 0 : 0xee);
	totals.known.size = 3;
	assert_int_equal(gpool_vm_stats(pool, &totals.known), -EINVAL);
	assert_int_equal(gpool_free_async(pool, address, 0), 0);
}

/*
 * Shorter and longer structs for KV caches. The shorter request has no estimate, the shorter view no arrival, and the
 * shorter prefix no adapter.
 */
static void test_kv_structs(void **state)
{
	struct {
		struct gpool_kv_options known;
		uint64_t future;
	} made = {.known = GPOOL_KV_OPTIONS_INIT};
	struct {
		struct gpool_kv_request known;
		uint64_t future;
	} request = {.known = GPOOL_KV_REQUEST_INIT};
	struct {
		struct gpool_kv_sequence_info known;
		uint64_t future;
	} info;
	struct {
		struct gpool_kv_prefix known;
		uint64_t future;
	} prefix = {.known = GPOOL_KV_PREFIX_INIT};
	struct {
		struct gpool_kv_prefix_found known;
		uint64_t future;
	} found;
	const uint32_t ids[16] = {0};
	struct gpool_kv *kv;
	uint64_t sequence;
	uint32_t stream;

	(void)state;
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	made.known.shape = (struct gpool_kv_shape){2, 2, 64, 2, 16};
	made.known.stream = stream;
	made.known.size = sizeof(made);
	made.future = 1;
	assert_int_equal(gpool_kv_create(pool, &made.known, &kv), -E2BIG);
	made.known.max_blocks = UINT32_MAX; /* beyond the size */
	made.known.size = offsetof(struct gpool_kv_options, max_blocks);
	assert_int_equal(gpool_kv_create(pool, &made.known, &kv), 0);
	request.known.tokens = 1;
	request.known.size = sizeof(request);
	request.future = 1;
	assert_int_equal(gpool_kv_allocate(kv, &request.known, &sequence), -E2BIG);
	request.known.estimated_tokens = 100;
	request.known.size = offsetof(struct gpool_kv_request, estimated_tokens);
	assert_int_equal(gpool_kv_allocate(kv, &request.known, &sequence), 0);
	memset(&info, 0xff, sizeof(info));
	info.known.size = offsetof(struct gpool_kv_sequence_info, arrival);
	assert_int_equal(gpool_kv_sequence_info(kv, sequence, &info.known), 0);
	assert_int_equal(info.known.blocks, 1);
	assert_int_equal(info.known.arrival, UINT64_MAX);
	info.known.size = sizeof(info);
	assert_int_equal(gpool_kv_sequence_info(kv, sequence, &info.known), 0);
	assert_int_equal(info.known.size, sizeof(info));
	assert_int_equal(info.future, 0);
	info.known.size = 3;
	assert_int_equal(gpool_kv_sequence_info(kv, sequence, &info.known), -EINVAL);
	assert_int_equal(gpool_kv_destroy(kv), 0);
	made.known.max_blocks = 0;
	made.known.flags = GPOOL_KV_PREFIXES;
	made.known.size = offsetof(struct gpool_kv_options, model);
	assert_int_equal(gpool_kv_create(pool, &made.known, &kv), 0);
	prefix.known.ids = ids;
	prefix.known.count = 16;
	prefix.known.size = sizeof(prefix);
	prefix.future = 1;
	found.known.size = sizeof(found.known);
	assert_int_equal(gpool_kv_prefix_find(kv, &prefix.known, &found.known), -E2BIG);
	prefix.known.adapter_id = 1; /* beyond the size */
	prefix.known.size = offsetof(struct gpool_kv_prefix, adapter_id);
	request.known.tokens = 16;
	request.known.estimated_tokens = 0;
	request.known.size = sizeof(request.known);
	assert_int_equal(gpool_kv_prefix_allocate(kv, &request.known, &prefix.known, &sequence, NULL), 0);
	assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix.known), 1);
	prefix.known.adapter_id = 0;
	prefix.known.size = sizeof(prefix.known);
	memset(&found, 0xff, sizeof(found));
	found.known.size = sizeof(found);
	assert_int_equal(gpool_kv_prefix_find(kv, &prefix.known, &found.known), 0);
	assert_int_equal(found.known.blocks, 1);
	assert_int_equal(found.future, 0);
	found.known.size = 3;
	assert_int_equal(gpool_kv_prefix_find(kv, &prefix.known, &found.known), -EINVAL);
	assert_int_equal(gpool_kv_destroy(kv), 0);
	gpool_stream_close(pool, stream);
}

/* Shorter and longer structs for batches of adapters. */
static void test_lora_structs(void **state)
{
	struct {
		struct gpool_lora_batch_options known;
		uint64_t future;
	} made = {.known = GPOOL_LORA_BATCH_OPTIONS_INIT};
	struct gpool_lora_target target = {"model.layers.*.q", 64, 64};
	struct gpool_lora *lora;
	struct gpool_lora_batch *batch;

	(void)state;
	assert_int_equal(gpool_lora_create(pool, NULL, &lora), 0);
	made.known.element = GPOOL_LORA_F16;
	made.known.tokens_max = made.known.layers = made.known.target_count = 1;
	made.known.targets = &target;
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &made.known.stream), 0);
	made.known.size = sizeof(made);
	assert_int_equal(gpool_lora_batch_create(lora, &made.known, &batch), 0);
	assert_int_equal(gpool_lora_batch_destroy(batch), 0);
	made.future = 1;
	assert_int_equal(gpool_lora_batch_create(lora, &made.known, &batch), -E2BIG);
	/* Without its last two fields, the struct has no targets. */
	made.known.size = offsetof(struct gpool_lora_batch_options, target_count);
	assert_int_equal(gpool_lora_batch_create(lora, &made.known, &batch), -EINVAL);
	made.known.size = offsetof(struct gpool_lora_batch_options, reserved);
	assert_int_equal(gpool_lora_batch_create(lora, &made.known, &batch), 0);
	assert_int_equal(gpool_lora_batch_destroy(batch), 0);
	gpool_stream_close(pool, made.known.stream);
	assert_int_equal(gpool_lora_destroy(lora), 0);
}

static void test_lora_scheduler_structs(void **state)
{
	struct {
		struct gpool_lora_scheduler_options known;
		uint64_t future;
	} made = {.known = GPOOL_LORA_SCHEDULER_OPTIONS_INIT};
	struct {
		struct gpool_lora_scheduler_stats known;
		uint64_t future;
	} statistics = {.future = 1};
	struct gpool_lora *lora;
	struct gpool_lora_scheduler *scheduler;

	(void)state;
	assert_int_equal(gpool_lora_create(pool, NULL, &lora), 0);
	made.known.size = sizeof(made);
	made.future = 1;
	assert_int_equal(gpool_lora_scheduler_create(lora, &made.known, &scheduler), -E2BIG);
	made.future = 0;
	assert_int_equal(gpool_lora_scheduler_create(lora, &made.known, &scheduler), 0);
	statistics.known.size = sizeof(statistics);
	assert_int_equal(gpool_lora_scheduler_stats(scheduler, &statistics.known), 0);
	assert_int_equal(statistics.future, 0);
	statistics.known.size = offsetof(struct gpool_lora_scheduler_stats, batches);
	statistics.known.batches = 77;
	assert_int_equal(gpool_lora_scheduler_stats(scheduler, &statistics.known), 0);
	assert_int_equal(statistics.known.batches, 77);
	assert_int_equal(gpool_lora_scheduler_destroy(scheduler), 0);
	/* A missing number has its default value, whatever bytes follow the struct. */
	made.known.size = offsetof(struct gpool_lora_scheduler_options, look_ahead);
	made.known.look_ahead = 1000;
	assert_int_equal(gpool_lora_scheduler_create(lora, &made.known, &scheduler), 0);
	assert_int_equal(gpool_lora_scheduler_destroy(scheduler), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
}

static void test_longer_options(void **state)
{
	struct longer_options options = {.known = harness_options(&harness)};

	(void)state;
	options.known.size = sizeof(options);
	assert_int_equal(open_and_close(&options.known), 0);
	options.future[1] = 1;
	assert_int_equal(open_and_close(&options.known), -E2BIG);
	options.known.size = sizeof(options.known) + 1;
	options.future[1] = 0;
	options.future[0] = 1;
	assert_int_equal(open_and_close(&options.known), -E2BIG);
	/* The library does not read beyond the size. */
	options.known.size = sizeof(options.known);
	assert_int_equal(open_and_close(&options.known), 0);
}

static void test_shorter_options(void **state)
{
	struct gpool_options options = harness_options(&harness);

	(void)state;
	/* Bytes beyond the size are ignored, whatever their values. */
	options.pool = "no pool of this name";
	options.timeout_ms = -77;
	options.magazine = 1000;
	options.size = offsetof(struct gpool_options, pool);
	assert_int_equal(open_and_close(&options), 0);
	options.size = offsetof(struct gpool_options, name);
	assert_int_equal(open_and_close(&options), -ENXIO);
	options.size = 3;
	assert_int_equal(open_and_close(&options), -EINVAL);
	options.size = 0;
	assert_int_equal(open_and_close(&options), -EINVAL);
	/* Defaults apply if the struct has only its size field. */
	setenv("GPOOL_DIR", harness.directory, 1);
	options.size = 4;
	options.flags = 0xffffffff;
	assert_int_equal(open_and_close(&options), 0);
	unsetenv("GPOOL_DIR");
}

/* ---- gpool_alloc_options ---- */

static void test_alloc_options(void **state)
{
	struct {
		struct gpool_alloc_options known;
		uint32_t future[3];
	} options = {.known = GPOOL_ALLOC_OPTIONS_INIT};
	struct gpool_scope scope = GPOOL_SCOPE_INIT;
	struct gpool_block block;

	(void)state;
	options.known.size = sizeof(options.known) + 12;
	options.known.usage = GPOOL_USAGE_GRADIENT;
	assert_int_equal(gpool_alloc(pool, 1, &options.known, &block), 0);
	assert_int_equal(block.tag & BLOCK_TYPE_MASK, GPOOL_USAGE_GRADIENT);
	assert_int_equal(gpool_free(pool, &block), 0);
	options.future[2] = 1;
	assert_int_equal(gpool_alloc(pool, 1, &options.known, &block), -E2BIG);
	assert_int_equal(gpool_prepare(pool, 1, &options.known, &block), -E2BIG);
	assert_int_equal(gpool_scope_begin(pool, 0, 0, &scope), 0);
	assert_int_equal(gpool_scope_alloc(&scope, 1, &options.known, &block), -E2BIG);
	assert_int_equal(gpool_scope_end(&scope, GPOOL_FENCE_NONE), 0);

	options.known.priority = 99;
	options.known.size = offsetof(struct gpool_alloc_options, priority);
	assert_int_equal(gpool_alloc(pool, 1, &options.known, &block), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	options.known.size = offsetof(struct gpool_alloc_options, owner_id);
	assert_int_equal(gpool_alloc(pool, 1, &options.known, &block), -EINVAL);
	options.known.size = 1;
	assert_int_equal(gpool_alloc(pool, 1, &options.known, &block), -EINVAL);
}

/* ---- gpool_object_options, gpool_object_open_options, gpool_object_info ---- */

static void test_object_structs(void **state)
{
	struct {
		struct gpool_object_options known;
		uint64_t future;
	} made = {.known = GPOOL_OBJECT_OPTIONS_INIT};
	struct {
		struct gpool_object_open_options known;
		uint64_t future;
	} opened = {.known = GPOOL_OBJECT_OPEN_OPTIONS_INIT};
	struct {
		struct gpool_object_info known;
		uint8_t future[16];
	} info;
	struct gpool_object *object, *other;
	uint64_t version;
	uint32_t index, cursor = 0;

	(void)state;
	made.known.size = sizeof(made);
	made.future = 1;
	assert_int_equal(gpool_object_create(pool, "abi", &made.known, &object), -E2BIG);
	made.future = 0;
	made.known.expect_version = 99; /* beyond the size: ignored */
	made.known.size = offsetof(struct gpool_object_options, expect_version);
	assert_int_equal(gpool_object_create(pool, "abi", &made.known, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	opened.known.size = sizeof(opened);
	opened.future = 1;
	assert_int_equal(gpool_object_open(pool, "abi", &opened.known, &other), -E2BIG);
	opened.future = 0;
	opened.known.version = version + 1;
	assert_int_equal(gpool_object_open(pool, "abi", &opened.known, &other), -ENOENT);
	opened.known.size = offsetof(struct gpool_object_open_options, version);
	assert_int_equal(gpool_object_open(pool, "abi", &opened.known, &other), 0);
	assert_int_equal(gpool_object_close(other), 0);

	memset(&info, 0xee, sizeof(info));
	info.known.size = offsetof(struct gpool_object_info, version);
	assert_int_equal(gpool_object_info(object, &info.known), 0);
	assert_int_equal(info.known.pages, 1);
	assert_int_equal(info.known.version, UINT64_C(0xeeeeeeeeeeeeeeee));
	info.known.size = sizeof(info.known) + 8;
	assert_int_equal(gpool_object_next(pool, &cursor, &info.known), 0);
	assert_string_equal(info.known.name, "abi");
	for (int i = 0; i < 16; i++)
		assert_int_equal(info.future[i], i < 8 ? 0 : 0xee);
	info.known.size = 3;
	assert_int_equal(gpool_object_info(object, &info.known), -EINVAL);
	assert_int_equal(gpool_object_delete(pool, "abi", 0), 0);
	assert_int_equal(gpool_object_close(object), 0);
}

/* ---- gpool_role, gpool_event, gpool_scope ---- */

static void test_roles(void **state)
{
	struct {
		struct gpool_role known;
		uint8_t future[16];
	} role;

	(void)state;
	memset(&role, 0xee, sizeof(role));
	role.known.size = 3;
	assert_int_equal(gpool_role_acquire(pool, "abi", 0, &role.known), -EINVAL);
	assert_string_equal(gpool_last_error(-EINVAL),
		"size is 3 bytes, too small for a struct of this library; set it to the size of the struct");
	role.known.size = offsetof(struct gpool_role, session);
	assert_int_equal(gpool_role_acquire(pool, "abi", 0, &role.known), 0);
	assert_int_equal(role.known.session, 0xeeeeeeee);
	assert_int_equal(gpool_role_check(pool, &role.known), 0);
	role.known.size = offsetof(struct gpool_role, token);
	assert_int_equal(gpool_role_check(pool, &role.known), -EINVAL);
	assert_int_equal(gpool_role_release(pool, &role.known), -EINVAL);
	role.known.size = offsetof(struct gpool_role, session);
	assert_int_equal(gpool_role_release(pool, &role.known), 0);
	role.known.size = sizeof(role.known) + 8;
	assert_int_equal(gpool_role_acquire(pool, "abi", 0, &role.known), 0);
	assert_int_equal(role.known.session, gpool_session(pool));
	for (int i = 0; i < 16; i++)
		assert_int_equal(role.future[i], i < 8 ? 0 : 0xee);
	assert_int_equal(gpool_role_release(pool, &role.known), 0);
}

static void test_events(void **state)
{
	struct {
		struct gpool_event known;
		uint8_t future[16];
	} event;
	struct gpool_options options = harness_options(&harness);
	struct gpool *other;
	int error;

	(void)state;
	memset(&event, 0xee, sizeof(event));
	event.known.size = 3;
	assert_int_equal(gpool_event_next(pool, 0, &event.known), -EINVAL);
	event.known.size = sizeof(event.known) + 8;
	assert_int_equal(gpool_event_next(pool, 0, &event.known), -ETIMEDOUT);
	/* The subscription takes effect some time after the first call. */
	do {
		assert_int_equal(gpool_open(&options, &other), 0);
		gpool_close(other);
		error = gpool_event_next(pool, 100, &event.known);
	} while (error == -ETIMEDOUT);
	assert_int_equal(error, 0);
	assert_int_equal(event.known.size, sizeof(event.known) + 8);
	for (int i = 0; i < 16; i++)
		assert_int_equal(event.future[i], i < 8 ? 0 : 0xee);
	memset(&event, 0xee, sizeof(event));
	event.known.size = offsetof(struct gpool_event, pool);
	do {
		assert_int_equal(gpool_open(&options, &other), 0);
		gpool_close(other);
		error = gpool_event_next(pool, 100, &event.known);
	} while (error == -ETIMEDOUT);
	assert_int_equal(error, 0);
	assert_true(event.known.kind < 100);
	assert_int_equal((uint8_t)event.known.pool[0], 0xee);
}

static void test_scopes(void **state)
{
	struct {
		struct gpool_scope known;
		uint64_t future;
	} scope = {.future = 77};

	(void)state;
	scope.known.size = sizeof(scope.known) - 8;
	assert_int_equal(gpool_scope_begin(pool, GPOOL_USAGE_ACTIVATION, 0, &scope.known), -EINVAL);
	scope.known.size = sizeof(scope);
	assert_int_equal(gpool_scope_begin(pool, GPOOL_USAGE_ACTIVATION, 0, &scope.known), 0);
	assert_int_equal(gpool_scope_end(&scope.known, GPOOL_FENCE_NONE), 0);
	assert_int_equal(scope.known.size, sizeof(scope));
	assert_int_equal(scope.future, 77);
}

/* ---- gpool_stats ---- */

static void test_statistics(void **state)
{
	struct {
		struct gpool_stats known;
		uint8_t future[16];
	} statistics;
	struct gpool_block block;

	(void)state;
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	memset(&statistics, 0xee, sizeof(statistics));
	statistics.known.size = offsetof(struct gpool_stats, frees);
	assert_int_equal(gpool_stats(pool, &statistics.known), 0);
	assert_true(statistics.known.allocations >= 1);
	assert_int_equal(statistics.known.frees, UINT64_C(0xeeeeeeeeeeeeeeee)); /* beyond the size: not written */

	statistics.known.size = sizeof(statistics.known) + 8;
	assert_int_equal(gpool_stats(pool, &statistics.known), 0);
	assert_int_equal(statistics.known.size, sizeof(statistics.known) + 8);
	for (int i = 0; i < 16; i++)
		assert_int_equal(statistics.future[i], i < 8 ? 0 : 0xee);
	statistics.known.size = 3;
	assert_int_equal(gpool_stats(pool, &statistics.known), -EINVAL);
}

/* ---- gpool_device_info ---- */

static void test_device(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_device_info device = {.size = offsetof(struct gpool_device_info, uuid), .uuid = "mine"};
	struct gpool *observer;

	(void)state;
	assert_int_equal(gpool_device_info(pool, &device), 0);
	assert_int_equal(device.flags, GPOOL_DEVICE_HOST_POINTER);
	assert_int_equal(device.ordinal, 0);
	assert_string_equal(device.pool, "p0");
	assert_string_equal(device.backend, "host");
	assert_string_equal(device.uuid, "mine"); /* the program was built without this field */
	device.size = sizeof(device);
	assert_int_equal(gpool_device_info(pool, &device), 0);
	assert_true(strlen(device.uuid) > 0 && strcmp(device.uuid, "mine") != 0);

	options.flags = GPOOL_OPEN_OBSERVER;
	assert_int_equal(gpool_open(&options, &observer), 0);
	assert_int_equal(gpool_device_info(observer, &device), 0);
	assert_int_equal(device.ordinal, GPOOL_DEVICE_NONE);
	assert_int_equal(device.flags, 0);
	assert_string_equal(device.pool, "p0");
	assert_string_equal(device.uuid, "");
	gpool_close(observer);
	device.size = 3;
	assert_int_equal(gpool_device_info(pool, &device), -EINVAL);
}

/* ---- exported symbols ---- */

enum { NAMES_MAX = 512, NAME_BYTES = 64 };

struct names {
	char name[NAMES_MAX][NAME_BYTES];
	size_t count;
};

static int by_name(const void *left, const void *right)
{
	return strcmp(left, right);
}

static void names_add(struct names *names, const char *name)
{
	assert_true(names->count < NAMES_MAX && strlen(name) < NAME_BYTES);
	strcpy(names->name[names->count++], name);
}

/* Collect the lines "gpool_...;" of the map's only node. */
static void names_of_map(FILE *map, struct names *names)
{
	char line[256], name[256];

	while (fgets(line, sizeof(line), map))
		if (sscanf(line, " %255[a-z0-9_*];", name) == 1 && !strncmp(name, "gpool_", 6) && !strchr(name, '*'))
			names_add(names, name);
}

/* Collect the lines "gpool_alloc@@GPOOL_0.2 T ..." of nm -P. */
static void names_of_library(FILE *nm, const char *version, struct names *names)
{
	char line[512], name[256], kind;

	while (fgets(line, sizeof(line), nm)) {
		assert_int_equal(sscanf(line, "%255s %c", name, &kind), 2);
		if (kind == 'A')
			continue; /* the version node itself */
		if (strchr(name, '@')) {
			assert_string_equal(strchr(name, '@'), version);
			*strchr(name, '@') = '\0';
		}
		names_add(names, name);
	}
}

/* The library of this build is next to the test program; the sources are at their path of the build. */
/*
 * Check that the exported names of a library are those of its map. Names for libgpool_lora only have another version.
 */
static void check_exports(const char *library, const char *map_path, const char *version, size_t least)
{
	static struct names listed, exported;
	char path[512], command[640];
	FILE *map, *nm;
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 64);

	memset(&listed, 0, sizeof(listed));
	memset(&exported, 0, sizeof(exported));
	assert_true(length > 0);
	path[length] = '\0';
	for (int up = 0; up < 2; up++)
		*strrchr(path, '/') = '\0';
	strcat(path, library);
	snprintf(command, sizeof(command),
		"nm -D -P --defined-only '%s' | grep -v -e ^gpool_internal_ -e ^GPOOL_INTERNAL_", path);
	map = fopen(map_path, "re");
	if (!map || access(path, R_OK)) {
		print_message("neither the sources nor '%s' are here\n", path);
		skip();
	}
	nm = popen(command, "re");
	assert_non_null(nm);
	names_of_map(map, &listed);
	names_of_library(nm, version, &exported);
	fclose(map);
	assert_int_equal(pclose(nm), 0);
	assert_true(listed.count >= least);
	qsort(listed.name, listed.count, NAME_BYTES, by_name);
	qsort(exported.name, exported.count, NAME_BYTES, by_name);
	for (size_t i = 0; i < listed.count && i < exported.count; i++)
		assert_string_equal(listed.name[i], exported.name[i]);
	assert_int_equal(listed.count, exported.count);
}

static void test_exports_equal_the_map(void **state)
{
	(void)state;
	check_exports("/libgpool.so", "client/libgpool.map", "@@GPOOL_0.2", 100);
	check_exports("/libgpool_lora.so", "client/lora/libgpool_lora.map", "@@GPOOL_LORA_0.2", 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_layout),
		cmocka_unit_test(test_object_structs),
		cmocka_unit_test(test_range_structs),
		cmocka_unit_test(test_elastic_structs),
		cmocka_unit_test(test_vm_structs),
		cmocka_unit_test(test_kv_structs),
		cmocka_unit_test(test_lora_structs),
		cmocka_unit_test(test_lora_scheduler_structs),
		cmocka_unit_test(test_longer_options),
		cmocka_unit_test(test_shorter_options),
		cmocka_unit_test(test_alloc_options),
		cmocka_unit_test(test_roles),
		cmocka_unit_test(test_events),
		cmocka_unit_test(test_scopes),
		cmocka_unit_test(test_statistics),
		cmocka_unit_test(test_device),
		cmocka_unit_test(test_exports_equal_the_map),
	};
	int failed;

	harness_start(&harness, (const char *const[]){"--pool", HARNESS_POOL, NULL});
	pool = harness_open(&harness);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	gpool_close(pool);
	return harness_stop(&harness) || failed;
}
