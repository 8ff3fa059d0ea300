/* subject_gpool.c - gpool_malloc_async() on the pool of the gpoold in GPOOL_DIR. */
#include "tools/bench/peers/subject.h"
#include "tools/lib/allocator.h"

#include <stdio.h>
#include <stdlib.h>

static struct gpool *pool;
static struct allocator *allocator;
static uint32_t stream;
static uint64_t *held, peak;

const char *subject_open(uint32_t slots)
{
	static char text[32];
	int error;

	held = calloc(slots, sizeof(*held));
	error = held ? gpool_open(NULL, &pool) : -1;
	if (!error)
		error = gpool_stream_open(pool, NULL, 0, &stream);
	if (!error)
		error = gpool_ops.open(pool, &allocator);
	if (error) {
		fprintf(stderr, "subject_gpool: %s\n", gpool_last_error(error));
		exit(1);
	}
	snprintf(text, sizeof(text), "gpool %s", gpool_version());
	return text;
}

bool subject_malloc(uint32_t slot, uint64_t bytes)
{
	return gpool_malloc_async(pool, bytes, stream, &held[slot]) == 0;
}

void subject_free(uint32_t slot)
{
	gpool_free_async(pool, held[slot], stream);
}

void subject_note(void)
{
	uint64_t now = gpool_ops.mapped(allocator);

	if (now > peak)
		peak = now;
}

uint64_t subject_peak(void)
{
	return peak;
}
