/* span.h - functions of span.c for other parts of the library. Internal to libgpool. */
#ifndef GPOOL_CLIENT_SPAN_H
#define GPOOL_CLIENT_SPAN_H

#include "client/core/pool.h"

enum { SPAN_CLASSES = 64 }; /* more than the classes of a page of 4 MB */

/* With this bit in its usage, gpool_span_alloc() evicts no content for a new page. For libgpool_lora. */
#define SPAN_NO_EVICT (UINT32_C(1) << 31)

/* span_class_of() - return the smallest class of spans that have room for `bytes` and the alignment of the pool. */
uint32_t span_class_of(const struct gpool *pool, uint32_t bytes);

uint32_t span_pages(const struct gpool *pool);

int span_open(struct gpool *pool);
void span_close(struct gpool *pool);

#endif
