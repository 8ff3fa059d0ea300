/*
 * report.h - the results of a run as one self-contained HTML file: drawings, a table, and the command that repeats the
 * run.
 */
#ifndef GPOOL_DEMO_REPORT_H
#define GPOOL_DEMO_REPORT_H

#include "tools/demo/summary.h"

/*
 * report_write() - write frame->report; an existing file is replaced only when the new one is complete. split NULL:
 * there was only the shared run. Return: 0 or negative errno.
 */
int report_write(const struct summary_frame *frame, const struct run *shared, const struct run *split);

#endif
