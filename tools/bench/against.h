/* against.h - measure an older build and this one alternately. */
#ifndef GPOOL_BENCH_AGAINST_H
#define GPOOL_BENCH_AGAINST_H

#include "tools/bench/report.h"

#include <stdbool.h>
#include <sys/types.h>

struct against {
	const char *folder;    /* has the older build's gpool-bench, and the gpoold that it starts */
	unsigned rounds, runs; /* runs: as for --runs; 0: the default of each group */
	bool json, progress;
	const bool *wanted;      /* by figure */
	volatile pid_t *running; /* the program that measures, for the caller's signal handler; 0: none */
};

/*
 * against_measure() - measure the wanted figures of each group with both builds, `rounds` times, in alternating order,
 * and print the ratios. Figures that the older build does not have are left out, with a message.
 *
 * Return: an exit code. If a signal arrives, the rest is left out.
 */
int against_measure(const struct against *against);

#endif
