/*
 * test_client_spans.c - spans (parts of pages) with a real agent: their addresses, their sizes, and the free of their
 * pages.
 */
#include "tests/integration/calm_pool.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_next(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return *seed >> 17;
}

static void test_span_arguments(void **state)
{
	struct gpool_span span, none = {.offset = 3};

	(void)state;
	assert_int_equal(gpool_span_alloc(pool, 0, 0, &span), -EINVAL);
	assert_int_equal(gpool_span_alloc(pool, PAGE_BYTES / 2 + 1, 0, &span), -EINVAL);
	assert_int_equal(gpool_span_alloc(pool, 1, GPOOL_USAGE_COUNT, &span), -EINVAL);
	assert_int_equal(gpool_span_alloc(pool, 1, UINT32_C(1) << 31, &span), -EINVAL);
	assert_int_equal(gpool_span_free(pool, &none), -EINVAL);
	assert_int_equal(gpool_span_alloc(pool, PAGE_BYTES / 2, GPOOL_USAGE_LORA_WEIGHT, &span), 0);
	assert_int_equal(span.bytes, PAGE_BYTES / 2);
	none = span;
	none.offset += 256;
	assert_int_equal(gpool_span_free(pool, &none), -EINVAL);
	none = span;
	none.bytes = 256;
	assert_int_equal(gpool_span_free(pool, &none), -EINVAL);
	assert_int_equal(gpool_span_free(pool, &span), 0);
	assert_int_equal(gpool_span_free(pool, &span), -ESTALE);
	/* The handle is stale even while another span keeps the page. */
	assert_int_equal(gpool_span_alloc(pool, 300, 0, &span), 0);
	assert_int_equal(gpool_span_alloc(pool, 300, 0, &none), 0);
	assert_int_equal(none.block.page, span.block.page);
	assert_int_equal(gpool_span_free(pool, &span), 0);
	assert_int_equal(gpool_span_free(pool, &span), -ESTALE);
	assert_int_equal(gpool_span_free(pool, &none), 0);
}

static int by_address(const void *left, const void *right)
{
	const struct gpool_span *a = left, *b = right;

	return a->address < b->address ? -1 : a->address > b->address;
}

/*
 * Allocate many spans of mixed sizes, and free a third of them in between. Spans must be aligned, large enough, and
 * must not overlap.
 * Requirements: U1.
 */
static void test_spans_do_not_overlap(void **state)
{
	enum { SPANS = 4000 };
	static struct gpool_span spans[SPANS];
	struct gpool_stats statistics = {.size = sizeof(statistics)};
	uint64_t seed = 99;
	int count = 0;

	(void)state;
	for (int i = 0; i < SPANS; i++) {
		uint64_t bytes = 1 + random_next(&seed) % (random_next(&seed) % 8 ? 4096 : 60000);
		struct gpool_span *span = &spans[count];
		uint64_t page_address;

		assert_int_equal(gpool_span_alloc(pool, bytes, (uint32_t)(i % 2), span), 0);
		assert_true(span->bytes >= bytes && span->bytes % 256 == 0 && span->address % 256 == 0);
		assert_true(bytes < 1024 ? span->bytes < bytes + 256 : span->bytes <= bytes + bytes / 4 + 256);
		assert_int_equal(gpool_address(pool, &span->block, &page_address), 0);
		assert_int_equal(span->address, page_address + span->offset);
		if (i % 3 == 0)
			assert_int_equal(gpool_span_free(pool, span), 0);
		else
			count++;
	}
	qsort(spans, (size_t)count, sizeof(spans[0]), by_address);
	for (int i = 1; i < count; i++)
		assert_true(spans[i - 1].address + spans[i - 1].bytes <= spans[i].address);
	for (int i = 0; i < count; i++)
		assert_int_equal(gpool_span_free(pool, &spans[i]), 0);
	for (int i = 0; i < count; i++)
		assert_int_equal(gpool_span_free(pool, &spans[i]), -ESTALE);
	/* The last span of each page has freed the page. */
	assert_int_equal(gpool_stats(pool, &statistics), 0);
	assert_int_equal(statistics.allocations, statistics.frees);
}

/* Each thread writes its own mark to its spans, and checks the mark when it frees them. */
static void *churn(void *argument)
{
	struct gpool_span spans[32] = {0};
	uint64_t seed = (uintptr_t)argument;
	unsigned char mark = (unsigned char)seed;
	void *wrong = NULL;

	for (int round = 0; round < 20000 && !wrong; round++) {
		struct gpool_span *span = &spans[random_next(&seed) % 32];

		if (span->bytes) {
			const unsigned char *at = (const unsigned char *)(uintptr_t)span->address;

			if (at[0] != mark || at[span->bytes - 1] != mark || gpool_span_free(pool, span))
				wrong = span;
			span->bytes = 0;
		} else if (gpool_span_alloc(pool, 1 + random_next(&seed) % 3000, 0, span)) {
			wrong = span;
		} else {
			memset((void *)(uintptr_t)span->address, mark, span->bytes);
		}
	}
	for (int i = 0; i < 32; i++)
		if (spans[i].bytes && gpool_span_free(pool, &spans[i]))
			wrong = &spans[i];
	return wrong ? &pool : NULL;
}

static void test_threads_share_pages_of_spans(void **state)
{
	pthread_t threads[4];
	void *wrong;

	(void)state;
	for (uintptr_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &wrong);
		assert_null(wrong);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, attach, detach)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_span_arguments),
		TEST(test_spans_do_not_overlap),
		TEST(test_threads_share_pages_of_spans),
	};
	int failed;

	harness_start(&harness, (const char *const[]){"--pool", HARNESS_POOL, NULL});
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	return harness_stop(&harness) || failed;
}
