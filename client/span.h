/*
 * span.h - what gpool_open() and gpool_close() ask of span.c. Internal to libgpool.
 */
#ifndef GPOOL_CLIENT_SPAN_H
#define GPOOL_CLIENT_SPAN_H

#include "client/pool.h"

int span_open(struct gpool *pool);
void span_close(struct gpool *pool);

#endif
