/*
 * test_flight.c - rings of the flight recorder.
 *
 * Goal: the last records are kept, and only complete ones, even if other threads write at the same time or died while
 * writing. Arbitrary bytes in a ring do no harm.
 *
 * Method: rings in private memory. Threads write records whose fields are derived from one number, and a reader checks
 * them. Other rings contain random bytes.
 *
 * Requirements: O3.
 */
#include "shm/flight.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLACES = 64, WRITERS = 3, WRITTEN = 60000, RUBBISH = 20000 };
static const uint64_t NOW = UINT64_C(1) << 60;

static struct flight_ring make(uint32_t count, bool texts)
{
	struct flight_ring ring;
	void *memory = aligned_alloc(64, (flight_bytes(count, texts) + 63) / 64 * 64);

	assert_non_null(memory);
	memset(memory, 0, flight_bytes(count, texts));
	flight_over(memory, count, texts, &ring);
	return ring;
}

/* Derive all fields from one number, so that a mixture of two records is detected. */
static struct flight_entry entry_of(uint64_t n)
{
	return (struct flight_entry){
		.time_ns = n + 1000,
		.duration_ns = n % 1000,
		.kind = FLIGHT_WORKERS_FIRST + (uint32_t)(n % 5),
		.session = (uint16_t)(n % 4096),
		.page = (uint32_t)n,
		.pages = (uint32_t)~n,
		.tag = n * 3,
		.value = n * 7,
	};
}

static bool follows(const struct flight_entry *entry)
{
	struct flight_entry want = entry_of(entry->page);

	return entry->time_ns == want.time_ns && entry->duration_ns == want.duration_ns && entry->kind == want.kind &&
		entry->session == want.session && entry->pages == want.pages && entry->tag == want.tag &&
		entry->value == want.value;
}

static void test_layout(void **state)
{
	(void)state;
	assert_int_equal(flight_bytes(0, true), 0);
	assert_int_equal(flight_bytes(16, false), 64 + 16 * 64);
	assert_int_equal(flight_bytes(16, true), 64 + 16 * (64 + FLIGHT_TEXT_BYTES));
	assert_int_equal(flight_count(0), 0);
	assert_int_equal(flight_count(1), 1);
	assert_int_equal(flight_count(1000), 1024);
	assert_int_equal(flight_count(UINT32_MAX), FLIGHT_RECORDS_MAX);
	for (uint32_t kind = 0; kind < FLIGHT_KINDS + 5; kind++)
		assert_int_equal(flight_kind_name(kind) != NULL, kind >= FLIGHT_KINDS_FIRST && kind < FLIGHT_KINDS);
}

static void test_last_records_are_kept(void **state)
{
	struct flight_ring ring = make(PLACES, true);
	char text[FLIGHT_TEXT_BYTES], want[FLIGHT_TEXT_BYTES + 100];
	struct flight_entry entry;
	bool seen[PLACES] = {false};

	(void)state;
	for (uint32_t place = 0; place < PLACES; place++)
		assert_int_equal(flight_read(&ring, place, NOW, &entry, text), -ENOENT);
	for (uint64_t n = 0; n < 10 * PLACES + 7; n++) {
		entry = entry_of(n);
		memset(want, 'a' + (int)(n % 26), sizeof(want));
		want[n % (FLIGHT_TEXT_BYTES + 90)] = '\0';
		flight_write(&ring, &entry, want);
	}
	for (uint32_t place = 0; place < PLACES; place++) {
		assert_int_equal(flight_read(&ring, place, NOW, &entry, text), 0);
		assert_true(follows(&entry));
		assert_in_range(entry.page, 9 * PLACES + 7, 10 * PLACES + 6);
		assert_false(seen[entry.page % PLACES]);
		seen[entry.page % PLACES] = true;
		assert_int_equal(strlen(text),
			entry.page % (FLIGHT_TEXT_BYTES + 90) < FLIGHT_TEXT_BYTES
				? entry.page % (FLIGHT_TEXT_BYTES + 90)
				: FLIGHT_TEXT_BYTES - 1);
		assert_int_equal(strspn(text, (char[]){(char)('a' + (int)(entry.page % 26)), '\0'}), strlen(text));
	}
	free(ring.head);
}

static void test_no_ring_no_record(void **state)
{
	struct flight_ring none, ring = make(PLACES, false);
	struct flight_entry entry = entry_of(1);

	(void)state;
	flight_over(NULL, 0, true, &none);
	flight_write(&none, &entry, NULL);
	flight_keep(&none, 1, &ring);
	flight_keep(&ring, 1, &none);
	flight_recover(&none);
	flight_copy(&ring, &none);
	assert_int_equal(atomic_load(&ring.head->begun), 0);
	free(ring.head);
}

/* A claimed place is not given to another writer, even one lap later, because its writer may have been preempted. */
static void test_claimed_place_is_left_alone(void **state)
{
	struct flight_ring ring = make(PLACES, false);
	struct flight_entry entry;

	(void)state;
	atomic_store(&ring.records[5].serial, 6 | FLIGHT_CLAIMED);
	for (uint64_t n = 0; n < 2 * PLACES; n++)
		flight_write(
			&ring, &(struct flight_entry){.time_ns = 1, .kind = FLIGHT_EVICT, .page = (uint32_t)n}, NULL);
	assert_int_equal(atomic_load(&ring.records[5].serial), 6 | FLIGHT_CLAIMED);
	assert_int_equal(atomic_load(&ring.records[5].value), 0);
	assert_int_equal(flight_read(&ring, 5, NOW, &entry, NULL), -ENOENT);
	assert_int_equal(flight_read(&ring, 6, NOW, &entry, NULL), 0);
	flight_recover(&ring);
	assert_int_equal(flight_read(&ring, 6, NOW, &entry, NULL), 0);
	for (uint64_t n = 0; n < PLACES; n++)
		flight_write(&ring, &(struct flight_entry){.time_ns = 1, .kind = FLIGHT_EVICT}, NULL);
	assert_int_equal(flight_read(&ring, 5, NOW, &entry, NULL), 0);
	free(ring.head);
}

/* A writer that is late by a whole lap does not overwrite a newer record with an older one. */
static void test_later_record_stays(void **state)
{
	struct flight_ring ring = make(PLACES, false);
	struct flight_entry entry = entry_of(3);

	(void)state;
	atomic_store(&ring.head->begun, 3 + PLACES);
	flight_write(&ring, &entry, NULL);
	atomic_store(&ring.head->begun, 3);
	entry = entry_of(4);
	flight_write(&ring, &entry, NULL);
	assert_int_equal(flight_read(&ring, 3, NOW, &entry, NULL), 0);
	assert_int_equal(entry.page, 3);
	free(ring.head);
}

static void test_impossible_is_refused(void **state)
{
	static const struct flight_entry bad[] = {
		{.time_ns = 10, .kind = FLIGHT_NONE},
		{.time_ns = 10, .kind = FLIGHT_KINDS},
		{.time_ns = 10, .kind = UINT32_MAX},
		{.time_ns = 10, .kind = FLIGHT_EVICT, .session = 4096},
		{.time_ns = (UINT64_C(1) << 60) + 1, .kind = FLIGHT_EVICT},
		{.time_ns = 10, .duration_ns = 11, .kind = FLIGHT_REFILL},
		{.time_ns = UINT64_C(1) << 59, .duration_ns = FLIGHT_DURATION_MAX + 1, .kind = FLIGHT_REFILL},
	};
	struct flight_ring ring = make(1, false);
	struct flight_entry entry;

	(void)state;
	for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		flight_write(&ring, &bad[i], NULL);
		assert_int_equal(flight_read(&ring, 0, NOW, &entry, NULL), -EBADMSG);
	}
	flight_write(&ring, &(struct flight_entry){.time_ns = 10, .kind = FLIGHT_EVICT}, NULL);
	assert_int_equal(flight_read(&ring, 0, NOW, &entry, NULL), 0);
	free(ring.head);
	/* The record claims to belong to another place. */
	ring = make(PLACES, false);
	entry = entry_of(1);
	flight_write(&ring, &entry, NULL);
	atomic_store(&ring.records[0].serial, 2);
	assert_int_equal(flight_read(&ring, 0, NOW, &entry, NULL), -EBADMSG);
	free(ring.head);
}

static void test_keep(void **state)
{
	struct flight_ring from = make(FLIGHT_SESSION_RECORDS, false), to = make(2 * FLIGHT_KEPT_RECORDS, false);
	struct flight_entry entry;
	uint32_t kept = 0;

	(void)state;
	for (uint64_t n = 0; n < 3 * FLIGHT_SESSION_RECORDS; n++) {
		entry = entry_of(n);
		flight_write(&from, &entry, NULL);
	}
	/* Only the agent may write records of these kinds. */
	flight_write(&from, &(struct flight_entry){.time_ns = 1, .kind = FLIGHT_EVICT}, NULL);
	flight_keep(&from, 9, &to);
	for (uint32_t place = 0; place < to.count; place++) {
		if (flight_read(&to, place, NOW, &entry, NULL))
			continue;
		assert_int_equal(entry.session, 9);
		assert_true(entry.self_reported);
		assert_in_range(
			entry.page, 3 * FLIGHT_SESSION_RECORDS - FLIGHT_KEPT_RECORDS, 3 * FLIGHT_SESSION_RECORDS - 1);
		kept++;
	}
	assert_int_equal(kept, FLIGHT_KEPT_RECORDS - 1);
	/* A head with a wrong count costs at most one pass over the ring. */
	atomic_store(&from.head->begun, UINT64_MAX - 3);
	flight_keep(&from, 9, &to);
	free(from.head);
	free(to.head);
}

static void test_copy(void **state)
{
	struct flight_ring from = make(PLACES, true), same = make(PLACES, true), other = make(2 * PLACES, true);
	struct flight_entry entry = entry_of(0);
	char text[FLIGHT_TEXT_BYTES];

	(void)state;
	flight_write(&from, &entry, "words");
	flight_copy(&from, &same);
	flight_copy(&from, &other);
	assert_int_equal(flight_read(&same, 0, NOW, &entry, text), 0);
	assert_string_equal(text, "words");
	assert_int_equal(flight_read(&other, 0, NOW, &entry, text), -ENOENT);
	free(from.head);
	free(same.head);
	free(other.head);
}

/* ---- several writers ---- */

static struct flight_ring shared;
static _Atomic uint64_t numbers, writing, whole;

static void *writer(void *unused)
{
	(void)unused;
	/* Continue until the reader has read a complete record, because on a busy machine it may start late. */
	for (uint32_t i = 0; i < WRITTEN || !atomic_load(&whole); i++) {
		struct flight_entry entry = entry_of(atomic_fetch_add(&numbers, 1));

		flight_write(&shared, &entry, "same length");
	}
	atomic_fetch_sub(&writing, 1);
	return NULL;
}

static void test_no_reader_gets_half_a_record(void **state)
{
	pthread_t threads[WRITERS];

	(void)state;
	/* With few places, laps are short and writers collide. */
	shared = make(8, true);
	writing = WRITERS;
	whole = 0;
	for (uint32_t i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, writer, NULL), 0);
	do {
		for (uint32_t place = 0; place < shared.count; place++) {
			char text[FLIGHT_TEXT_BYTES];
			struct flight_entry entry;
			int error = flight_read(&shared, place, NOW, &entry, text);

			assert_int_not_equal(error, -EBADMSG);
			if (error)
				continue;
			assert_true(follows(&entry));
			assert_string_equal(text, "same length");
			atomic_fetch_add(&whole, 1);
		}
	} while (atomic_load(&writing));
	for (uint32_t i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
	assert_true(whole > 0);
	for (uint32_t place = 0; place < shared.count; place++)
		assert_int_equal(atomic_load(&shared.records[place].serial) & FLIGHT_CLAIMED, 0);
	free(shared.head);
}

/* ---- false records ---- */

static void test_rubbish(void **state)
{
	const char *given = getenv("GPOOL_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)getpid() * 2654435761u + 1;
	struct flight_ring ring = make(PLACES, true), to = make(PLACES, false);
	unsigned char *bytes = (unsigned char *)ring.head;
	size_t size = flight_bytes(PLACES, true);

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	for (uint32_t i = 0; i < RUBBISH; i++) {
		char text[FLIGHT_TEXT_BYTES];
		struct flight_entry entry;
		uint32_t place;

		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		bytes[(seed >> 8) % size] = (unsigned char)seed;
		place = (uint32_t)(seed >> 40) % PLACES;
		/* Valid serials rarely occur by accident. */
		atomic_store(&ring.records[place].serial, place + 1 + (seed >> 50) * PLACES);
		if (flight_read(&ring, place, NOW, &entry, text))
			continue;
		assert_true(entry.session < 4096 && entry.time_ns <= NOW && entry.duration_ns <= entry.time_ns);
		assert_true(strlen(text) < sizeof(text));
	}
	flight_keep(&ring, 3, &to);
	flight_write(&ring, &(struct flight_entry){.kind = FLIGHT_EVICT}, NULL);
	free(ring.head);
	free(to.head);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_layout),
		cmocka_unit_test(test_last_records_are_kept),
		cmocka_unit_test(test_no_ring_no_record),
		cmocka_unit_test(test_claimed_place_is_left_alone),
		cmocka_unit_test(test_later_record_stays),
		cmocka_unit_test(test_impossible_is_refused),
		cmocka_unit_test(test_keep),
		cmocka_unit_test(test_copy),
		cmocka_unit_test(test_no_reader_gets_half_a_record),
		cmocka_unit_test(test_rubbish),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
