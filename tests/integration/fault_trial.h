/*
 * fault_trial.h - the trial of a call site, as seen by a round; for fault_rounds.h.
 */
#ifndef GPOOL_TESTS_FAULT_TRIAL_H
#define GPOOL_TESTS_FAULT_TRIAL_H

#include "client/gpool.h"
#include "proto/messages.h"
#include "tests/faults/fault_file.h"
#include "tests/lib/await.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	PAGES = 64,
	SOON_MS = 1500,  /* limit of the waits of a round in which a call may fail */
	LATE_MS = 60000, /* the same, on a busy machine */
	WAIT_MS = AWAIT_MS,
};

/* Return the file that tests/faults/sites writes; NULL: no call site fails. */
static struct fault_file *fault_file(void)
{
	static struct fault_file *file;
	const char *path = getenv("GPOOL_FAULT_FILE");
	int fd = path && !file ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *base = fd < 0 ? MAP_FAILED : mmap(NULL, FAULT_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (base != MAP_FAILED)
		file = base;
	if (fd >= 0)
		close(fd);
	return file;
}

/* Return true if the call site of the current trial has failed. */
static bool fault_has_happened(void)
{
	struct fault_file *file = fault_file();

	return file && atomic_load(&file->trial_of[atomic_load(&file->trial) % FAULT_TRIALS_MAX].failed);
}

/* Return true if this has been a call site of a worker. No further call fails then. */
static bool fault_of_worker(void)
{
	const struct fault_file *file = fault_file();

	return fault_has_happened() &&
		file->trial_of[atomic_load(&file->trial) % FAULT_TRIALS_MAX].site.module == FAULT_WORKER;
}

/*
 * In some scenarios the causes of a trial (fault_file.h) fail only during one step of the round, from causes_begin() to
 * causes_end(). In the others they fail at any time.
 */
static bool causes_are_late;

static void causes_wait(bool wait)
{
	if (fault_file())
		atomic_store(&fault_file()->waiting, wait);
}

static void causes_prepare(const char *scenario)
{
	static const char *const late[] = {"exports", "fences", "lost", "streams", "tokens"};

	causes_are_late = false;
	for (size_t i = 0; i < sizeof(late) / sizeof(*late); i++)
		causes_are_late |= !strcmp(scenario, late[i]);
	causes_wait(causes_are_late);
}

static void causes_begin(void)
{
	causes_wait(false);
}

static void causes_end(void)
{
	causes_wait(causes_are_late);
}

static struct gpool_options options_of(const char *where, int timeout_ms)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;

	options.directory = where;
	options.timeout_ms = timeout_ms;
	return options;
}

/* Some calls return a number on success. */
static int error_of(int result)
{
	return result < 0 ? result : 0;
}

/* The front sends a beat at each interval. Wait until the call has failed, or for some beats without a fault. */
static int round_of_beats(struct gpool *pool, const struct gpool_options *session)
{
	const struct fault_file *file = fault_file();

	(void)pool;
	(void)session;
	if (!file || !file->trials)
		poll(NULL, 0, 3 * MSG_BEAT_MS);
	else
		for (int i = 0; i < AWAIT_TRIES && !fault_has_happened(); i++)
			poll(NULL, 0, AWAIT_STEP_MS);
	return 0;
}

#endif
