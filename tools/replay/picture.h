/*
 * picture.h - the use of addresses over time as a self-contained SVG. Time is on the x axis, addresses are on the y
 * axis; below each panel are the live and the mapped bytes. Colors follow the viewer's light or dark mode.
 */
#ifndef GPOOL_REPLAY_PICTURE_H
#define GPOOL_REPLAY_PICTURE_H

#include "tools/replay/result.h"

#include <stdio.h>

struct picture_panel {
	const struct allocator_ops *allocator;
	const struct samples *samples;
};

struct picture {
	const struct result_frame *frame;
	const struct picture_panel *panels;
	int count;
};

/* picture_draw() - draw a struct picture; for chart_file(). Return: 0 or -ENOMEM. */
int picture_draw(const void *picture, FILE *out);

#endif
