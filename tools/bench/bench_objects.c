/*
 * bench_objects.c - a large named object: the time to allocate, to publish and to open it. Writer and reader are two
 * sessions. The writer writes before the measurement, as a model's pages are loaded before they are published.
 */
#include "tools/bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { POOL_PAGES = 8192, ALLOCATIONS = 3500, ENTRIES = 100000 };

/* The figures of one kind of object. */
struct kind {
	int entries;
	enum figure allocate, publish, open;
};

static int build(struct bench *bench, struct gpool *pool, const struct kind *kind, struct gpool_object **object)
{
	char key[48], value[64];
	uint32_t index;
	int error = gpool_object_create(pool, "bench", NULL, object);
	uint64_t begin = monotonic_ns();

	for (int i = 0; i < ALLOCATIONS && !error; i++)
		error = gpool_object_alloc(*object, 1, NULL, &index);
	bench_sample(bench, kind->allocate, (double)(monotonic_ns() - begin) / 1e6);
	for (int i = 0; i < kind->entries && !error; i++) {
		snprintf(key, sizeof(key), "model.layers.%d.self_attn.q_proj.%d", i % 80, i);
		snprintf(value, sizeof(value), "{\"dtype\":\"bf16\",\"shape\":[4096,%d]}", i);
		error = gpool_object_set(*object, key, value, strlen(value));
	}
	return error;
}

static int sample(struct bench *bench, struct gpool *writer, struct gpool *reader, const struct kind *kind)
{
	struct gpool_object *object, *open;
	uint64_t begin, version, address, bytes;
	int error = build(bench, writer, kind, &object);

	if (error)
		return error;
	begin = monotonic_ns();
	error = gpool_object_publish(object, &version);
	if (error)
		return error;
	bench_sample(bench, kind->publish, (double)(monotonic_ns() - begin) / 1e6);
	begin = monotonic_ns();
	error = gpool_object_open(reader, "bench", NULL, &open);
	if (error)
		return error;
	bench_sample(bench, kind->open, (double)(monotonic_ns() - begin) / 1e6);
	error = gpool_object_address(open, ALLOCATIONS - 1, &address, &bytes);
	if (!error)
		error = gpool_object_close(open);
	if (!error)
		error = gpool_object_close(object);
	return error ? error : gpool_object_delete(writer, "bench", 0);
}

int bench_objects(struct bench *bench)
{
	static const struct kind kinds[] = {
		{0, FIGURE_object_alloc_3500, FIGURE_publish_3500_plain, FIGURE_open_3500_plain},
		{ENTRIES, FIGURE_object_alloc_3500, FIGURE_publish_3500, FIGURE_open_3500},
	};
	struct gpool *writer = NULL, *reader = NULL;
	int error = daemon_start(bench, POOL_PAGES, NULL);

	if (error)
		return error;
	error = daemon_open(bench, 0, &writer);
	if (!error)
		error = daemon_open(bench, 0, &reader);
	for (unsigned run = 0; run < bench->runs && !error; run++)
		for (int i = 0; i < 2 && !error; i++)
			error = sample(bench, writer, reader, &kinds[i]);
	if (error)
		bench_complain(bench, error, "cannot publish and open the object");
	gpool_close(reader);
	gpool_close(writer);
	daemon_stop(bench);
	return error;
}
