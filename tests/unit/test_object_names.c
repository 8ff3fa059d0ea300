/*
 * test_object_names.c - records of named objects are found by name.
 *
 * Goal: a record in a chain is found by its name and domain, the latest one first, and no other record is found. If the
 * chains have invalid content, a search reads only records and ends. Method: random steps compared with an array, and
 * chains with invalid content.
 */
#include "shm/object_names.h"
#include "tests/lib/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { OBJECTS = 500, NAMES = 150, DOMAINS = 2, STEPS = 200000 };

static struct pool_segment segment;
static int fd;
static int setup(void **state)
{
	const struct pool_geometry geometry = {.name = "p",
		.backend = "host",
		.device = "d",
		.page_bytes = 4096,
		.page_count = 10,
		.pages_per_handle = 1,
		.objects = OBJECTS - 1};

	(void)state;
	return pool_segment_create(&geometry, &segment, &fd);
}

static int teardown(void **state)
{
	(void)state;
	pool_segment_close(&segment);
	close(fd);
	return 0;
}

/* Return the first record with this name in this domain, or 0. */
static uint32_t found(uint32_t domain, const char *name)
{
	uint32_t number = object_names_first(&segment, domain, name), left = OBJECTS;

	while (number && !object_names_are(&segment.objects[number], domain, name) && left--)
		number = object_names_next(&segment, number);
	return left == UINT32_MAX ? 0 : number;
}

static void test_random_steps(void **state)
{
	uint64_t added[OBJECTS] = {0};
	char name[POOL_OBJECT_NAME_BYTES];

	(void)state;
	seed_begin();
	for (uint64_t step = 1; step <= STEPS; step++) {
		uint32_t number = 1 + any(OBJECTS - 1), latest = 0, domain;

		if (added[number]) {
			object_names_remove(&segment, number);
			added[number] = 0;
		} else {
			snprintf(segment.objects[number].name, sizeof(name), "name-%u", any(NAMES));
			segment.objects[number].domain = any(DOMAINS);
			object_names_remove(&segment, number); /* no effect on a record that is in no chain */
			object_names_add(&segment, number);
			added[number] = step;
		}
		snprintf(name, sizeof(name), "name-%u", any(NAMES));
		domain = any(DOMAINS);
		for (uint32_t i = 1; i < OBJECTS; i++)
			if (added[i] > added[latest] && segment.objects[i].domain == domain &&
				!strcmp(segment.objects[i].name, name))
				latest = i;
		assert_int_equal(found(domain, name), latest);
	}
	object_names_clear(&segment);
	for (uint32_t i = 0; i < NAMES; i++) {
		snprintf(name, sizeof(name), "name-%u", i);
		for (uint32_t domain = 0; domain < DOMAINS; domain++)
			assert_int_equal(object_names_first(&segment, domain, name), 0);
	}
}

static void test_rubbish(void **state)
{
	char name[POOL_OBJECT_NAME_BYTES];

	(void)state;
	seed = 1;
	for (uint32_t i = 0; i < OBJECTS; i++) {
		segment.names[i] = any(3) ? any(OBJECTS) : UINT32_MAX - any(100);
		segment.objects[i].next = any(3) ? any(OBJECTS) : OBJECTS + any(1000);
		memset(segment.objects[i].name, 'x', POOL_OBJECT_NAME_BYTES); /* not terminated */
	}
	for (uint32_t i = 0; i < OBJECTS; i++) {
		uint32_t number;

		snprintf(name, sizeof(name), "name-%u", i);
		number = object_names_first(&segment, any(DOMAINS), name);
		for (uint32_t left = OBJECTS; number && left; left--) {
			assert_true(number < OBJECTS);
			number = object_names_next(&segment, number);
		}
	}
	memset(name, 'x', sizeof(name));
	assert_true(object_names_first(&segment, any(DOMAINS), name) < OBJECTS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_random_steps, setup, teardown),
		cmocka_unit_test_setup_teardown(test_rubbish, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
