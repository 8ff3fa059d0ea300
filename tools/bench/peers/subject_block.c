/* subject_block.c - blocks and spans of the pool of the gpoold in GPOOL_DIR, as a program without a GPU uses them. */
#include "tools/bench/peers/subject.h"
#include "client/gpool.h"

#include <stdio.h>
#include <stdlib.h>

static struct gpool *pool;
static uint64_t page_bytes;
static struct held {
	struct gpool_span span; /* of a block of pages: only span.block */
	bool is_span;
} * held;

const char *subject_open(uint32_t slots)
{
	static char text[32];
	int error;

	held = calloc(slots, sizeof(*held));
	error = held ? gpool_open(NULL, &pool) : -1;
	if (error) {
		fprintf(stderr, "subject_block: %s\n", gpool_last_error(error));
		exit(1);
	}
	page_bytes = gpool_page_bytes(pool);
	snprintf(text, sizeof(text), "gpool %s", gpool_version());
	return text;
}

bool subject_malloc(uint32_t slot, uint64_t bytes)
{
	struct held *at = &held[slot];

	at->is_span = bytes <= page_bytes / 2;
	if (at->is_span)
		return gpool_span_alloc(pool, bytes, 0, &at->span) == 0;
	return gpool_alloc(pool, (uint32_t)((bytes + page_bytes - 1) / page_bytes), NULL, &at->span.block) == 0;
}

void subject_free(uint32_t slot)
{
	if (held[slot].is_span)
		gpool_span_free(pool, &held[slot].span);
	else
		gpool_free(pool, &held[slot].span.block);
}

void subject_note(void)
{
}

uint64_t subject_peak(void)
{
	return 0;
}
