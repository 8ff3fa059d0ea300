/*
 * progress.h - one line on stderr with the progress of a run. On a terminal it is rewritten; elsewhere a new line is
 * printed every 2 s.
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
/* progress_end() - end the line that is being rewritten, if any. */
void progress_end(struct progress *progress);
/* progress_show() - print the line if its interval has passed, or if `last` is set. */
void progress_show(struct progress *progress, const struct plan *plan, const struct run *run, const struct board *board,
	bool last);

#endif
