/*
 * picture.h - what lay at which address over time, as one SVG that needs nothing else: time to the right, addresses
 * upwards, and under each panel how much was live and mapped. Its colours follow the viewer's choice of light or dark.
 */
#ifndef GPOOL_REPLAY_PICTURE_H
#define GPOOL_REPLAY_PICTURE_H

#include "tools/replay/result.h"

#include <stdio.h>

struct picture_panel {
	const struct allocator_ops *allocator;
	const struct samples *samples;
};

/* picture_draw() - 0; -ENOMEM; -EIO, when it could not be written. */
int picture_draw(FILE *out, const struct result_frame *frame, const struct picture_panel *panels, int count);

#endif
