/* doctor.h - the findings of `poolctl doctor`. Each of the areas system, GPU and agent has its own files. */
#ifndef GPOOL_TOOLS_POOLCTL_DOCTOR_H
#define GPOOL_TOOLS_POOLCTL_DOCTOR_H

#include "tools/poolctl/poolctl.h"

#include <stddef.h>
#include <sys/types.h>

enum doctor_verdict {
	DOCTOR_OK,
	DOCTOR_INFO, /* a fact */
	DOCTOR_WARN, /* it works, but not optimally */
	DOCTOR_FAIL, /* a part of gpool does not work */
	DOCTOR_VERDICTS
};

struct doctor_line {
	enum doctor_verdict verdict;
	const char *thing;
	char found[256];
	char advice[384]; /* "": no action needed */
};

struct doctor {
	uint32_t count, capacity;
	struct doctor_line *lines;

	/*
	 * The needs of a gpoold on this machine: of the running agent if it answers, otherwise estimated from the
	 * devices.
	 */
	bool agent_answers;
	pid_t keeper;        /* 0: none, or not visible */
	uint64_t handles;    /* descriptors of physical memory that gpoold holds */
	uint64_t host_pages; /* pages of the largest pool of the host back end */
	uint64_t host_bytes; /* bytes of all pools of the host back end */
};

/*
 * doctor_add() - add a finding.
 * doctor_advise() - add advice to the last finding.
 */
void __attribute__((format(printf, 4, 5)))
doctor_add(struct doctor *doctor, enum doctor_verdict verdict, const char *thing, const char *format, ...);
void __attribute__((format(printf, 2, 3))) doctor_advise(struct doctor *doctor, const char *format, ...);

void doctor_agent(struct doctor *doctor, const struct command *command); /* call it first: it sets the needs */
void doctor_gpu(struct doctor *doctor);
void doctor_kernel(struct doctor *doctor);
void doctor_limits(struct doctor *doctor);

/* doctor_read() - read the first line of a small file, without its newline. Return false if the file cannot be read. */
bool doctor_read(const char *path, char *text, size_t size);

#endif
