/* notices.h - the most recent events of the agent, numbered, for all viewers. */
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
 * notices_start() - start a thread that receives events as an observer, and attaches again after a restart of gpoold.
 * NULL: out of memory or threads.
 */
struct notices *notices_start(const char *directory, int timeout_ms);
/*
 * notices_stop() - stop the thread. It takes at most half a second, plus a wait for the agent in progress. NULL is
 * permitted.
 */
void notices_stop(struct notices *notices);

/*
 * notices_next() - return the first stored notice with a number above `seen`. Return: 1, or 0 if there is none.
 * Threads: any.
 */
int notices_next(struct notices *notices, uint64_t seen, struct notice *notice);

#endif
