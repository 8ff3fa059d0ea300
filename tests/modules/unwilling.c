/*
 * unwilling.c - gpoold's own module with a mover that the test controls. Each mover reads the file $GPOOL_TEST_MOVER at
 * its start; the first letter selects its behavior.
 *
 *   w  works normally, as without the file
 *   e  reports an error like that of a missing GPU context, and ends at once
 *   h  hangs before it serves, until the file changes
 *   d  serves, begins the first jobs that it finds, and dies during them
 */
#include "agent/mover/mover.h"
#include "agent/mover/ring.h"
#include "tests/modules/module.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char wish(void)
{
	const char *path = getenv("GPOOL_TEST_MOVER");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	char letter = 'w';

	if (fd >= 0) {
		if (read(fd, &letter, 1) != 1)
			letter = 'w';
		close(fd);
	}
	return letter;
}

/* Start like a mover, begin jobs, and die. */
static int die_over_jobs(const struct module_start *start)
{
	const struct module_pool *pool = &start->pools[start->pool];
	struct mover_ring *ring = pool->ring;
	uint32_t gate = atomic_load(&ring->gate), begun = 0;
	uint64_t rung = 1;

	while (gate == MOVER_SHUT || !atomic_compare_exchange_strong(&ring->gate, &gate, start->restarts + 1)) {
		poll(NULL, 0, 1);
		gate = atomic_load(&ring->gate);
	}
	if (write(pool->done_bell, &rung, sizeof(rung)) < 0)
		return 1;
	while (!begun) {
		for (uint32_t slot = 0; slot < MOVER_JOBS; slot++) {
			uint32_t state = atomic_load(&ring->jobs[slot].state);

			if (state != MOVER_QUEUED && state != MOVER_TAKEN)
				continue;
			atomic_store(&ring->jobs[slot].state, MOVER_TAKEN);
			begun++;
		}
		poll(&(struct pollfd){.fd = pool->work_bell, .events = POLLIN}, 1, 1);
	}
	_exit(3);
}

static int mover(const struct module_start *start)
{
	struct mover_ring *ring = start->pools[start->pool].ring;

	while (wish() == 'h')
		poll(NULL, 0, 5);
	switch (wish()) {
	case 'e': strcpy(ring->why, "cannot open device 0:\n it is not willing"); return 1;
	case 'd': return die_over_jobs(start);
	default: return mover_run(start);
	}
}

/* All other functions are gpoold's own, from the same file. */
#define mover_run mover
#include "agent/base/module.c"
