/*
 * report.h - the results of a run as one self-contained HTML file: drawings, table, and the command that repeats it.
 */
#ifndef GPOOL_DEMO_REPORT_H
#define GPOOL_DEMO_REPORT_H

#include "tools/demo/summary.h"

/*
 * report_write() - write frame->report, replacing it only when it is complete. split NULL: only the shared run. Return:
 * 0 or -errno.
 */
int report_write(const struct summary_frame *frame, const struct run *shared, const struct run *split);

#endif
