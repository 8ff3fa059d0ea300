/* span.h - functions of span.c for other parts of the library. Internal to libgpool. */
#ifndef GPOOL_CLIENT_SPAN_H
#define GPOOL_CLIENT_SPAN_H

#include "client/core/pool.h"

enum { SPAN_CLASSES = 64 }; /* more than the classes of a page of 4 MB */

/* span_alloc() - allocate as gpool_span_alloc() does. flags: of struct gpool_alloc_options, for a new page. */
int span_alloc(struct gpool *pool, uint64_t bytes, uint32_t usage, uint32_t flags, struct gpool_span *span)
	GPOOL_INTERNAL(span_alloc);

/* span_class_of() - return the smallest class of spans that have room for `bytes` and the alignment of the pool. */
uint32_t span_class_of(const struct gpool *pool, uint32_t bytes);

uint32_t span_pages(const struct gpool *pool);

int span_open(struct gpool *pool);
void span_close(struct gpool *pool);

#endif
