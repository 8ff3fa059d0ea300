/*
 * harness.h - run a real gpoold on the host back end for a test, in its own folder, and send it requests.
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
 * can attach. Ends the program, and prints the log, if gpoold does not start.
 */
void harness_start(struct harness *harness, const char *const *arguments);

/*
 * harness_stop() - send SIGTERM. Return: 0 when gpoold ends with status 0 and an empty runtime directory, else -1
 * with the reason on stderr. harness_kill() - send SIGKILL to its process group.
 */
int harness_stop(struct harness *harness);
void harness_kill(struct harness *harness);

/* harness_options() - return options to attach to this gpoold. */
struct gpool_options harness_options(const struct harness *harness);
/* harness_open() - attach as a worker; end the program on failure. */
struct gpool *harness_open(const struct harness *harness);

/*
 * harness_open_calm() - attach and wait until the pool's pressure is low. The agent updates it some time after an
 * earlier test has freed its pages, and under pressure nothing is kept in threads' caches.
 */
struct gpool *harness_open_calm(const struct harness *harness);

/* harness_evict() - have the agent evict up to `pages` pages of a session's unpinned blocks; return the number. */
uint32_t harness_evict(struct harness *harness, uint32_t session, uint32_t pages);

/*
 * harness_check() - have the agent check the pool's invariants; print the findings, and return their number.
 */
uint32_t harness_check(struct harness *harness);

/* harness_free_pages() - return the number of free pages of the first pool. */
uint32_t harness_free_pages(struct harness *harness);

#endif
