/*
 * report.h - what a run showed, as one HTML file that needs nothing else: drawings, table, and how to repeat it.
 */
#ifndef GPOOL_DEMO_REPORT_H
#define GPOOL_DEMO_REPORT_H

#include "tools/demo/summary.h"

/* report_write() - to frame->report, replacing it only when all is written. split NULL: only the shared run. Return: 0
 * or -errno.
 */
int report_write(const struct summary_frame *frame, const struct run *shared, const struct run *split);

#endif
