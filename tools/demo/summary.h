/*
 * summary.h - the results of one or two runs, as rows of a table and as JSON.
 */
#ifndef GPOOL_DEMO_SUMMARY_H
#define GPOOL_DEMO_SUMMARY_H

#include "tools/demo/run.h"

#include <stdio.h>

enum { SUMMARY_ROWS_MAX = 32 };

struct summary_row {
	char label[48];
	char shared[40];
	char split[40]; /* "" without a split run */
	char ratio[16]; /* split to shared; "" if not meaningful */
};

/* summary_rows() - fill the rows. split NULL: there was only the shared run. Return: the number of rows. */
size_t summary_rows(const struct run *shared, const struct run *split, struct summary_row rows[SUMMARY_ROWS_MAX]);

/* summary_print() - print the table. */
void summary_print(FILE *out, const struct run *shared, const struct run *split);

/* Data about the whole invocation, in addition to the runs. */
struct summary_frame {
	const struct plan *plan;
	const char *command;
	const char *machine;
	const char *date;
	const char *report; /* path */
};

/* summary_json() - print one versioned JSON object, which is described in gpool-demo(1). */
void summary_json(FILE *out, const struct summary_frame *frame, const struct run *shared, const struct run *split);

#endif
