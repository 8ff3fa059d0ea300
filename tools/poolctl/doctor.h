/*
 * doctor.h - the list of what doctor found, filled by one file for each kind of thing: system, gpu, agent.
 */
#ifndef GPOOL_TOOLS_POOLCTL_DOCTOR_H
#define GPOOL_TOOLS_POOLCTL_DOCTOR_H

#include "tools/poolctl/poolctl.h"

#include <stddef.h>
#include <sys/types.h>

enum doctor_verdict {
	DOCTOR_OK,
	DOCTOR_INFO, /* a fact, neither good nor bad */
	DOCTOR_WARN, /* works, but less well */
	DOCTOR_FAIL, /* something of gpool does not work */
	DOCTOR_VERDICTS
};

struct doctor_line {
	enum doctor_verdict verdict;
	const char *thing;
	char found[256];
	char advice[384]; /* empty: nothing to do */
};

struct doctor {
	uint32_t count, capacity;
	struct doctor_line *lines;

	/* What a gpoold here needs, as far as it is known: from the agent that answers, else from the devices. */
	bool agent_answers;
	pid_t keeper;        /* 0: none, or not visible */
	uint64_t handles;    /* descriptors of physical memory that it holds */
	uint64_t host_pages; /* of the largest pool of the host back end */
	uint64_t host_bytes; /* of all of them */
};

/* doctor_add() - a line with what was found. doctor_advise() - what to do, for the line added last. */
void __attribute__((format(printf, 4, 5)))
doctor_add(struct doctor *doctor, enum doctor_verdict verdict, const char *thing, const char *format, ...);
void __attribute__((format(printf, 2, 3))) doctor_advise(struct doctor *doctor, const char *format, ...);

void doctor_agent(struct doctor *doctor, const struct command *command); /* first: it learns what is needed */
void doctor_gpu(struct doctor *doctor);
void doctor_kernel(struct doctor *doctor);
void doctor_limits(struct doctor *doctor);

/* doctor_read() - the first line of a small file, without its end: true, or false. */
bool doctor_read(const char *path, char *text, size_t size);

#endif
