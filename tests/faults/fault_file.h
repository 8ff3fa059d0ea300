/*
 * fault_file.h - the file that $GPOOL_FAULT_FILE names: tests/faults/sites writes it, and all processes map it. It has
 * the return addresses of the call sites of each program, relative to its beginning, and the trials. In each trial, the
 * first call of one site fails, counted over all processes, and only this one. Some sites are called only after calls
 * of other sites have failed: these calls fail until the first site has been called.
 */
#ifndef GPOOL_TESTS_FAULT_FILE_H
#define GPOOL_TESTS_FAULT_FILE_H

#include <stdint.h>

enum {
	FAULT_MODULES = 3, /* gpoold, gpoold-agent.so, worker */
	FAULT_WORKER = 2,
	FAULT_TRIALS_MAX = 128,
	FAULT_COPIES_MAX = 56,
	FAULT_NO_MODULE = FAULT_MODULES,
	FAULT_CAUSES = 2,
	FAULT_FILE_BYTES = 1 << 19,
};

struct fault_place {
	uint32_t module; /* the program with the site */
	uint32_t copies; /* the compiler may copy a site */
	uint32_t offsets[FAULT_COPIES_MAX];
};

struct fault_trial {
	_Atomic uint32_t failed; /* calls of `site` that were made to fail */
	struct fault_place site; /* whose first call fails */
	struct {
		uint32_t error; /* 0: that of calls.def */
		struct fault_place site;
	} causes[FAULT_CAUSES]; /* whose calls fail until then; module FAULT_NO_MODULE: none */
};

struct fault_site {
	uint32_t offset; /* of the return address */
	_Atomic uint32_t calls;
};

struct fault_file {
	_Atomic uint32_t trial;   /* the current one */
	uint32_t trials;          /* 0: no call fails */
	_Atomic uint32_t waiting; /* not 0: the causes do not fail yet */
	struct fault_trial trial_of[FAULT_TRIALS_MAX];
	uint32_t counts[FAULT_MODULES]; /* sites of each program */
	struct fault_site sites[];
};

#endif
