/*
 * span.h - what the rest of the library asks of span.c. Internal to libgpool.
 */
#ifndef GPOOL_CLIENT_SPAN_H
#define GPOOL_CLIENT_SPAN_H

#include "client/core/pool.h"

enum { SPAN_CLASSES = 64 }; /* far more than a page of 4 MB has */

/* span_class_of() - return the size class of a span of `bytes`. */
uint32_t span_class_of(uint32_t bytes);

/* span_pages() - how many pages of the pool hold spans now. */
uint32_t span_pages(const struct gpool *pool);

int span_open(struct gpool *pool);
void span_close(struct gpool *pool);

#endif
