/*
 * harness.h - a real gpoold on the host back end for a test, in a folder of its own, and what tests ask it.
 *
 * The program is $GPOOLD, else gpoold in the folder above the test program's. Nothing here waits for time to pass:
 * starting waits for the attach socket, stopping for the process. Every wait has a limit, after which the test fails
 * with the agent's log.
 */
#ifndef GPOOL_TESTS_HARNESS_H
#define GPOOL_TESTS_HARNESS_H

#include "client/gpool.h"

#include <sys/types.h>

#define HARNESS_POOL "name=p0,backend=host,size=256MiB,page_size=512KB,reserved=0" /* 512 pages */

struct harness {
	char base[64];      /* a new folder in $TMPDIR */
	char directory[80]; /* the runtime directory, below it */
	char log[80];
	pid_t pid;
	struct gpool *admin; /* attached by the first harness_evict() or harness_check() */
};

/*
 * harness_start() - start gpoold with these arguments, NULL at the end, behind --foreground --dir; return when a worker
 * can attach. Fails the program with the log when it does not come up.
 */
void harness_start(struct harness *harness, const char *const *arguments);

/*
 * harness_stop() - SIGTERM. Return: 0 when it ends with status 0 and leaves nothing in its runtime directory, else -1
 * with the reason on stderr. harness_kill() - SIGKILL to the whole of it.
 */
int harness_stop(struct harness *harness);
void harness_kill(struct harness *harness);

/* harness_options() - to attach here. */
struct gpool_options harness_options(const struct harness *harness);
/* harness_open() - attach as a worker; ends the program when that fails. */
struct gpool *harness_open(const struct harness *harness);

/*
 * harness_open_calm() - the same, when the pool's pressure is low: what an earlier test filled, the agent notices to be
 * free some moments later, and under pressure nothing is kept in threads' caches.
 */
struct gpool *harness_open_calm(const struct harness *harness);

/* harness_evict() - have the agent evict up to `pages` pages of a session's unpinned blocks; how many it took. */
uint32_t harness_evict(struct harness *harness, uint32_t session, uint32_t pages);

/*
 * harness_check() - the pool's invariants, as the agent proves them: 0, or the number of findings, which are printed.
 */
uint32_t harness_check(struct harness *harness);

/* harness_free_pages() - return the number of free pages of the first pool. */
uint32_t harness_free_pages(struct harness *harness);

#endif
