/*
 * notices.h - the last events of the agent, numbered, for all viewers.
 */
#ifndef GPOOL_TOOLS_EXPORTER_NOTICES_H
#define GPOOL_TOOLS_EXPORTER_NOTICES_H

#include <stdint.h>

enum { NOTICES_KEPT = 256 };

struct notice {
	uint64_t number;  /* from 1 on */
	uint64_t time_ms; /* wall clock */
	char pool[64], text[192];
};

struct notices;

/*
 * notices_start() - a thread that listens as an observer, and attaches again when gpoold was restarted. NULL: out of
 * memory or threads.
 */
struct notices *notices_start(const char *directory, int timeout_ms);
/* notices_stop() - NULL is fine. Waits for the thread, half a second at most beside what it waits for an agent. */
void notices_stop(struct notices *notices);

/* notices_next() - the first one behind number `seen` that is kept: 1, or 0: there is none. Threads: any. */
int notices_next(struct notices *notices, uint64_t seen, struct notice *notice);

#endif
