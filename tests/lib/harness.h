/*
 * harness.h - run a real gpoold in its own folder for a test, and send requests to it.
 *
 * The tests name the back end `host` in the definitions of their pools. With GPOOL_TEST_BACKEND=cuda, the pools that
 * the harness starts are on `cuda` instead, except a pool `warm`, and the test runs on the double of the driver
 * (tests/run cuda/test_NAME).
 *
 * The program is $GPOOLD, or else the gpoold in the folder above the test program's. No function waits for a fixed
 * time: starting waits for the attach socket, stopping for the end of the process. Every wait has a limit, after which
 * the test fails. If a case or the program fails, the last lines of the running gpoold's log are printed.
 */
#ifndef GPOOL_TESTS_HARNESS_H
#define GPOOL_TESTS_HARNESS_H

#include "client/gpool.h"
#include "tests/lib/await.h"

#include <stddef.h>
#include <sys/types.h>

/* The size of pages. `tests/run large-pages` compiles some tests with TEST_PAGES_4MB, and others with 512 KB. */
#ifdef TEST_PAGES_4MB
#define TEST_PAGE_BYTES (4096 << 10)
#define TEST_PAGE_SIZE "4MB"
#define TEST_SIZE_2_PAGES "8MB"
#define TEST_SIZE_4_PAGES "16MB"
#define TEST_SIZE_64_PAGES "256MB"
#else
#define TEST_PAGE_BYTES (512 << 10)
#define TEST_PAGE_SIZE "512KB"
#define TEST_SIZE_2_PAGES "1MB"
#define TEST_SIZE_4_PAGES "2MB"
#define TEST_SIZE_64_PAGES "32MB"
#endif

#define HARNESS_POOL "name=p0,backend=host,size=512 pages,page_size=" TEST_PAGE_SIZE ",reserved=0"

struct harness {
	char base[64];      /* a new folder in $TMPDIR */
	char directory[80]; /* runtime directory, in `base` */
	char log[80];
	pid_t pid;
	struct gpool *admin; /* attached by the first harness_evict() or harness_check() */
};

/*
 * harness_start() - start gpoold with --foreground, --dir and these arguments, terminated by NULL. Returns when a
 * worker can attach. If gpoold does not start, prints the log and ends the program.
 */
void harness_start(struct harness *harness, const char *const *arguments);

/*
 * harness_stop() - send SIGTERM. Return: 0 if gpoold exits with status 0 and an empty runtime directory, otherwise -1
 * with the cause on stderr. harness_kill() - send SIGKILL to its process group.
 */
int harness_stop(struct harness *harness);
void harness_kill(struct harness *harness);

/* harness_logs_print() - print the last lines of the logs of this process's gpoolds, for a case that failed. */
void harness_logs_print(void);

/* harness_backend() - return the back end of the pools: "host" or "cuda". */
const char *harness_backend(void);
/* harness_config_write() - write a configuration with this back end; end the program on failure. */
void harness_config_write(const char *path, const char *text);
/*
 * harness_argument() - return an argument for gpoold with this back end, in the process that will execute gpoold:
 * `argument` or, if the argument before it is --pool, another text. The file of --config is changed. harness_start()
 * does this for its arguments.
 */
const char *harness_argument(const char *before, const char *argument);

/* harness_options() - return the options for attaching to this gpoold. */
struct gpool_options harness_options(const struct harness *harness);
/* harness_open() - attach as a worker; end the program on failure. */
struct gpool *harness_open(const struct harness *harness);

/*
 * harness_open_calm() - attach, and wait until the pool's pressure is low. The agent updates the pressure some time
 * after an earlier test has freed its pages, and threads keep no pages in their magazines under pressure.
 */
struct gpool *harness_open_calm(const struct harness *harness);

/*
 * harness_evict() - make the agent evict up to `pages` pages of a session's unpinned blocks. Return: the number of
 * pages.
 */
uint32_t harness_evict(struct harness *harness, uint32_t session, uint32_t pages);

/*
 * harness_check() - make the agent check the pool's invariants, and print the findings. Return: the number of findings.
 */
uint32_t harness_check(struct harness *harness);

/* harness_free_pages() - return the number of free pages of the first pool. */
uint32_t harness_free_pages(struct harness *harness);

/*
 * harness_detach() - check the pool's invariants, close *pool and set it to NULL. Return: 0 if the check has no
 * findings and `pages` pages are free afterwards, otherwise -1.
 */
int harness_detach(struct harness *harness, struct gpool **pool, uint32_t pages);

#endif
