/*
 * fault_file.h - the file that $GPOOL_FAULT_FILE names: tests/faults/sites writes it, and all processes map it. It has
 * the return addresses of the call sites of each program, relative to its beginning, and the trials. In each trial, the
 * first call of one site fails, counted over all processes, and only this one.
 */
#ifndef GPOOL_TESTS_FAULT_FILE_H
#define GPOOL_TESTS_FAULT_FILE_H

#include <stdint.h>

enum {
	FAULT_MODULES = 3, /* gpoold, gpoold-agent.so, worker */
	FAULT_WORKER = 2,
	FAULT_TRIALS_MAX = 128,
	FAULT_COPIES_MAX = 56,
	FAULT_FILE_BYTES = 1 << 18,
};

struct fault_trial {
	_Atomic uint32_t failed; /* calls that were made to fail */
	uint32_t module;         /* the program with the site */
	uint32_t copies;         /* the compiler may copy a site */
	uint32_t offsets[FAULT_COPIES_MAX];
};

struct fault_site {
	uint32_t offset; /* of the return address */
	_Atomic uint32_t calls;
};

struct fault_file {
	_Atomic uint32_t trial; /* the current one */
	uint32_t trials;        /* 0: no call fails */
	struct fault_trial trial_of[FAULT_TRIALS_MAX];
	uint32_t counts[FAULT_MODULES]; /* sites of each program */
	struct fault_site sites[];
};

#endif
