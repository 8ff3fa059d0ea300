/*
 * progress.h - one line with the progress of a run: rewritten on a terminal, a new one every 2 s elsewhere. On stderr.
 */
#ifndef GPOOL_DEMO_PROGRESS_H
#define GPOOL_DEMO_PROGRESS_H

#include "tools/demo/board.h"
#include "tools/demo/run.h"

struct progress {
	bool terminal;
	bool open; /* the cursor is at the end of a line */
	uint64_t next_us;
};

void progress_init(struct progress *progress);
/* progress_end() - end the line, if one is being rewritten. */
void progress_end(struct progress *progress);
/* progress_show() - print the line if its interval has passed, or if `last`. */
void progress_show(struct progress *progress, const struct plan *plan, const struct run *run, const struct board *board,
	bool last);

#endif
