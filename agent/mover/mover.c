/*
 * mover.c - the main part of a mover: inherited descriptors, resources, and the distribution of jobs to lanes.
 *
 * The first thread waits in poll() for the bell, for signals, and for a lane that has lost its GPU context. When the
 * bell rings, it adds new jobs from the ring to `pending` in the order of their numbers. The lanes are threads, each
 * with a GPU stream. A lane takes the first pending job that does not conflict with an earlier one, executes it, and
 * stores the result in the ring. Copies, checksums and disk transfers of different lanes therefore run concurrently.
 *
 * Only the ring and the page contents survive the process; ring.h explains why that is sufficient.
 */
#include "agent/mover/mover.h"

#include "agent/base/log.h"
#include "agent/config/recipe.h"
#include "agent/mover/mover_lane.h"
#include "agent/mover/ring.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <unistd.h>

/*
 * One lane copies, one computes a checksum, one waits for the disk, and the fourth keeps these three busy. With pages
 * of 2 MiB, the file then has 16 requests, which is enough for an NVMe device. The buffers need 8 MiB, the usual limit
 * of locked memory.
 */
enum { LANES = 4 };

struct pending {
	uint32_t slot;
	bool running;
	uint64_t number;
	struct mover_task task;
};

struct mover;

struct worker {
	struct mover *mover;
	struct mover_lane lane;
	pthread_t thread;
	bool started;
};

struct mover {
	struct mover_ring *ring;
	uint32_t number; /* number among the movers of this pool, from 1 */
	int work_bell, done_bell;
	int signals;    /* signalfd */
	int help;       /* eventfd: a lane has lost its GPU context */
	uint32_t lanes; /* number of lanes that could be created, at most LANES */
	char pool[POOL_NAME_BYTES];
	struct gpu *gpu;
	struct mover_window window;
	struct mover_memory memory;
	struct mover_file file;

	pthread_mutex_t lock;
	pthread_cond_t more;
	bool stop;
	bool known[MOVER_JOBS];             /* slots in `pending` */
	struct pending pending[MOVER_JOBS]; /* sorted by number */
	uint32_t pending_count;
	struct worker workers[LANES];
};

static void bell_ring(int bell)
{
	uint64_t one = 1;

	/* EAGAIN: the counter is full, so the bell has already rung. */
	while (write(bell, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

/* Log the reason and store it in the ring. The agent reports it to tools that ask about a pool without a mover. */
static void say_why(struct mover *mover, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say_why(struct mover *mover, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(mover->ring->why, sizeof(mover->ring->why), format, arguments);
	va_end(arguments);
	log_error("pool '%s': %s; the mover exits", mover->pool, mover->ring->why);
}

/* ---- jobs; the caller holds the lock ---- */

static void pending_add(struct mover *mover, uint32_t slot)
{
	const struct mover_job *job = &mover->ring->jobs[slot];
	struct pending added = {.slot = slot,
		.number = job->number,
		.task = {.kind = job->kind,
			.page = job->page,
			.to = job->to,
			.tier = job->tier,
			.checksum = job->checksum}};
	uint32_t at = mover->pending_count;

	while (at && mover->pending[at - 1].number > added.number)
		at--;
	memmove(&mover->pending[at + 1], &mover->pending[at], (mover->pending_count - at) * sizeof(*mover->pending));
	mover->pending[at] = added;
	mover->pending_count++;
	mover->known[slot] = true;
}

static void pending_remove(struct mover *mover, uint32_t slot)
{
	uint32_t at = 0;

	while (mover->pending[at].slot != slot)
		at++;
	mover->pending_count--;
	memmove(&mover->pending[at], &mover->pending[at + 1], (mover->pending_count - at) * sizeof(*mover->pending));
	mover->known[slot] = false;
}

/* Return true if the slot contains a job to execute that is not in `pending`. */
static bool slot_is_new(const struct mover *mover, uint32_t slot)
{
	uint32_t state;

	if (mover->known[slot])
		return false;
	state = atomic_load_explicit(&mover->ring->jobs[slot].state, memory_order_acquire);
	/* Unknown TAKEN slots exist only at the start of a mover: its predecessor took them. */
	return state == MOVER_QUEUED || state == MOVER_TAKEN;
}

/*
 * Add new jobs to `pending`, but none without the earlier ones. The agent adds jobs in the meantime, so one pass over
 * the slots can miss a job and find a later one. After the first pass, all jobs before the newest found are visible.
 * The bell rings again for jobs that are newer.
 */
static void ring_scan(struct mover *mover)
{
	uint32_t lanes = LANES;
	uint64_t newest = 0;

	for (uint32_t slot = 0; slot < MOVER_JOBS; slot++)
		if (slot_is_new(mover, slot) && mover->ring->jobs[slot].number > newest)
			newest = mover->ring->jobs[slot].number;
	for (uint32_t slot = 0; slot < MOVER_JOBS; slot++) {
		if (!slot_is_new(mover, slot) || mover->ring->jobs[slot].number > newest)
			continue;
		pending_add(mover, slot);
		if (lanes) {
			lanes--;
			pthread_cond_signal(&mover->more);
		}
	}
}

static bool uses_page(const struct mover_task *task, uint32_t page)
{
	return task->kind != MOVER_SINK && (task->page == page || (task->kind == MOVER_COPY && task->to == page));
}

static bool uses_slot(const struct mover_task *task, uint32_t tier, uint32_t slot)
{
	if (task->kind == MOVER_SINK)
		return slot == (tier == MOVER_TIER_FILE ? task->to : task->page);
	return (task->kind == MOVER_SPILL || task->kind == MOVER_LOAD) && task->tier == tier && task->to == slot;
}

static bool in_the_way(const struct mover_task *a, const struct mover_task *b)
{
	switch (b->kind) {
	case MOVER_SINK: return uses_slot(a, MOVER_TIER_MEMORY, b->page) || uses_slot(a, MOVER_TIER_FILE, b->to);
	case MOVER_SPILL:
	case MOVER_LOAD: return uses_page(a, b->page) || uses_slot(a, b->tier, b->to);
	case MOVER_COPY: return uses_page(a, b->page) || uses_page(a, b->to);
	default: return uses_page(a, b->page);
	}
}

/* Return the first job that is not running and does not conflict with an earlier job. */
static struct pending *pending_take(struct mover *mover)
{
	for (uint32_t i = 0; i < mover->pending_count; i++) {
		struct pending *job = &mover->pending[i];
		bool free = !job->running;

		for (uint32_t before = 0; before < i && free; before++)
			free = !in_the_way(&mover->pending[before].task, &job->task);
		if (free)
			return job;
	}
	return NULL;
}

/* Publish the result of a job whose page contents are complete. */
static void job_finish(struct mover *mover, uint32_t slot, const struct mover_task *task, int error)
{
	struct mover_job *job = &mover->ring->jobs[slot];

	if (task->kind == MOVER_SPILL && !error)
		job->checksum = task->checksum;
	job->error = error;
	atomic_fetch_add_explicit(&mover->ring->jobs_done, 1, memory_order_relaxed);
	if (!error)
		atomic_fetch_add_explicit(&mover->ring->bytes_moved, mover->window.page_bytes, memory_order_relaxed);
	pending_remove(mover, slot);
	atomic_store_explicit(&job->state, MOVER_DONE, memory_order_release);
	bell_ring(mover->done_bell);
	/* Another job may have waited for this page or slot. */
	if (mover->pending_count)
		pthread_cond_broadcast(&mover->more);
}

static void *worker_main(void *argument)
{
	struct worker *worker = argument;
	struct mover *mover = worker->mover;

	pthread_mutex_lock(&mover->lock);
	while (!mover->stop) {
		struct pending *job = pending_take(mover);
		struct mover_task task;
		uint32_t slot;
		int error;

		if (!job) {
			pthread_cond_wait(&mover->more, &mover->lock);
			continue;
		}
		job->running = true;
		slot = job->slot;
		task = job->task;
		atomic_store_explicit(&mover->ring->jobs[slot].state, MOVER_TAKEN, memory_order_relaxed);
		pthread_mutex_unlock(&mover->lock);
		error = mover_lane_do(&worker->lane, &task);
		pthread_mutex_lock(&mover->lock);
		/*
		 * Report the error of the job even if the context is lost: the job may be the cause, and would
		 * otherwise be repeated forever.
		 */
		job_finish(mover, slot, &task, error);
		if (worker->lane.lost) {
			mover->stop = true;
			bell_ring(mover->help);
		}
	}
	pthread_mutex_unlock(&mover->lock);
	return NULL;
}

/* ---- inherited resources ---- */

static bool held_is_ours(const struct module_start *start, const struct held *held)
{
	return held->pool == start->pool && (held->kind == KEEP_HANDLE || held->kind == KEEP_TIER) &&
		held->fd_count >= 1;
}

static int compare_fds(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;

	return (x > y) - (x < y);
}

/* Close all descriptors except the standard ones, the bells, and the held items of this pool. */
static int descriptors_drop(const struct module_start *start)
{
	const struct module_pool *pool = &start->pools[start->pool];
	int *kept = calloc(start->held_count + 2, sizeof(*kept)), next = STDERR_FILENO + 1;
	uint32_t count = 0;

	if (!kept)
		return -ENOMEM;
	kept[count++] = pool->work_bell;
	kept[count++] = pool->done_bell;
	for (uint32_t i = 0; i < start->held_count; i++)
		if (held_is_ours(start, &start->held[i]))
			kept[count++] = start->held[i].fds[0];
	qsort(kept, count, sizeof(*kept), compare_fds);
	for (uint32_t i = 0; i < count; i++) {
		if (kept[i] > next)
			close_range((unsigned)next, (unsigned)kept[i] - 1, 0);
		if (kept[i] >= next)
			next = kept[i] + 1;
	}
	close_range((unsigned)next, ~0U, 0);
	free(kept);
	return 0;
}

/* Unmap the agent's tables, to which no other process may write. */
static void mappings_drop(const struct module_start *start)
{
	for (uint32_t i = 0; i < start->pool_count; i++) {
		pool_segment_close(&start->pools[i].segment);
		ledger_close(&start->pools[i].ledger);
		if (i != start->pool && start->pools[i].ring)
			munmap(start->pools[i].ring, start->pools[i].ring_bytes);
	}
}

/* Configure the log. An error in a configuration that is being edited must not prevent a mover from starting. */
static void log_configure(const struct recipe *recipe)
{
	struct config *config = calloc(1, sizeof(*config));
	struct config_error error;

	log_setup("mover", LOG_LEVEL_INFO, 0);
	if (config && recipe && recipe_load(recipe, config, &error) == 0)
		log_setup("mover", config->log_level, config->log_target == CONFIG_LOG_JOURNAL);
	else if (config && recipe)
		log_warning("cannot read the configuration: %s; using the defaults for logging", error.text);
	free(config);
}

/* ---- start, serve, stop ---- */

static const struct held *tier_find(const struct module_start *start, enum mover_tier tier)
{
	for (uint32_t i = 0; i < start->held_count; i++)
		if (held_is_ours(start, &start->held[i]) && start->held[i].kind == KEEP_TIER &&
			start->held[i].id == (uint32_t)tier)
			return &start->held[i];
	return NULL;
}

/* Open the tiers. If a tier cannot be opened, only its jobs are refused. */
static void tiers_open(struct mover *mover, const struct module_start *start)
{
	const struct held *memory = tier_find(start, MOVER_TIER_MEMORY), *file = tier_find(start, MOVER_TIER_FILE);
	int error = memory ? mover_memory_open(&mover->memory, mover->gpu, memory, mover->window.page_bytes) : 0;

	if (error)
		log_error("pool '%s': cannot use the memory tier: %s; jobs that use it fail", mover->pool,
			strerror(-error));
	error = file ? mover_file_open(&mover->file, file, mover->window.page_bytes) : 0;
	if (error)
		log_error("pool '%s': cannot use the file tier: %s; jobs that use it fail", mover->pool,
			strerror(-error));
}

/* Use io_uring in all lanes or in none, so that a single value describes the access to the file. */
static void uring_open(struct mover *mover)
{
	const char *refuse = getenv("GPOOL_NO_URING");
	bool threads = refuse && !strcmp(refuse, "1");
	enum mover_file_way way = !mover->file.open ? MOVER_FILE_NONE : threads ? MOVER_FILE_THREADS : MOVER_FILE_URING;
	int error = 0;

	for (uint32_t i = 0; way == MOVER_FILE_URING && i < mover->lanes && !error; i++)
		error = mover_transfer_uring(&mover->workers[i].lane.transfer);
	if (error) {
		log_info("pool '%s': cannot use io_uring: %s; threads read and write the file tier", mover->pool,
			strerror(-error));
		way = MOVER_FILE_THREADS;
		for (uint32_t i = 0; i < mover->lanes; i++)
			mover_transfer_fini(&mover->workers[i].lane.transfer);
	}
	atomic_store_explicit(&mover->ring->uring_error, error, memory_order_relaxed);
	atomic_store_explicit(&mover->ring->uring, way, memory_order_relaxed);
}

/* Decide after lane number `count` could not be created: continue with fewer lanes if there is at least one. */
static int lanes_are(struct mover *mover, uint32_t count, int error, const char *what, const char *why)
{
	if (!count) {
		say_why(mover, "cannot create %s: %s", what, why);
		return error;
	}
	log_warning(
		"pool '%s': cannot create %s %u: %s; the mover continues with fewer", mover->pool, what, count, why);
	mover->lanes = count;
	return 0;
}

static int lanes_open(struct mover *mover)
{
	mover->lanes = LANES;
	for (uint32_t i = 0; i < mover->lanes; i++) {
		int error;

		mover->workers[i].mover = mover;
		error = mover_lane_open(
			&mover->workers[i].lane, mover->gpu, &mover->window, &mover->memory, &mover->file);
		if (error && (error = lanes_are(mover, i, error, "lane", gpu_error_text())))
			return error;
	}
	uring_open(mover);
	return 0;
}

/* Have SIGTERM reported by a descriptor, for poll() in the first thread. */
static int signals_open(struct mover *mover)
{
	sigset_t mask;

	signal(SIGXFSZ, SIG_IGN); /* writing beyond a file size limit then fails with an error */
	signal(SIGINT, SIG_IGN);  /* a terminal also sends it to the keeper, which stops the mover */
	signal(SIGHUP, SIG_IGN);
	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	if (sigprocmask(SIG_BLOCK, &mask, NULL) < 0)
		return -errno;
	mover->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	mover->help = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return mover->signals < 0 || mover->help < 0 ? -errno : 0;
}

static int mover_open(struct mover *mover, const struct module_start *start)
{
	const struct module_pool *pool = &start->pools[start->pool];
	const struct pool_header *header = pool->segment.header;
	int error;

	mover->ring = pool->ring;
	mover->ring->why[0] = '\0';
	mover->number = start->restarts + 1;
	mover->work_bell = pool->work_bell;
	mover->done_bell = pool->done_bell;
	mover->signals = mover->help = -1;
	memcpy(mover->pool, header->name, sizeof(mover->pool));
	pthread_mutex_init(&mover->lock, NULL);
	pthread_cond_init(&mover->more, NULL);
	error = descriptors_drop(start);
	if (!error)
		/* before the driver starts threads, which would otherwise receive the signals */
		error = signals_open(mover);
	if (error) {
		say_why(mover, "cannot set up signals and descriptors: %s", strerror(-error));
		return error;
	}
	/* A thread that waits for a copy must not occupy a core, which the programs on this machine need. */
	error = gpu_open(gpu_backend(header->backend), pool->device, GPU_OPEN_BLOCKING, &mover->gpu);
	if (error) {
		mover->gpu = NULL;
		say_why(mover, "cannot open device %d of back end '%s': %s", pool->device, header->backend,
			gpu_error_text());
		return error;
	}
	error = mover_window_open(&mover->window, mover->gpu, start);
	if (error) {
		say_why(mover, "cannot map the pool's memory: %s", strerror(-error));
		return error;
	}
	mappings_drop(start);
	tiers_open(mover, start);
	return lanes_open(mover);
}

static int workers_start(struct mover *mover)
{
	for (uint32_t i = 0; i < mover->lanes; i++) {
		int error = pthread_create(&mover->workers[i].thread, NULL, worker_main, &mover->workers[i]);

		if (error && lanes_are(mover, i, -error, "thread", strerror(error)))
			return -error;
		mover->workers[i].started = i < mover->lanes;
	}
	return 0;
}

/* Finish the running jobs. The others stay in the ring. */
static void workers_stop(struct mover *mover)
{
	pthread_mutex_lock(&mover->lock);
	mover->stop = true;
	pthread_cond_broadcast(&mover->more);
	pthread_mutex_unlock(&mover->lock);
	for (uint32_t i = 0; i < LANES; i++)
		if (mover->workers[i].started)
			pthread_join(mover->workers[i].thread, NULL);
}

/* Reset the bell. The caller must read the ring afterwards. Return 0 or a negative errno. */
static int bell_drain(int bell)
{
	uint64_t rung;

	return read(bell, &rung, sizeof(rung)) < 0 && errno != EAGAIN && errno != EINTR ? -errno : 0;
}

/*
 * Enter the gate. Return 1 after entering, 0 after SIGTERM, or a negative errno. While the gate is shut, only the agent
 * may handle jobs.
 */
static int gate_pass(struct mover *mover)
{
	struct pollfd look[] = {{mover->work_bell, POLLIN, 0}, {mover->signals, POLLIN, 0}};
	uint32_t gate = atomic_load_explicit(&mover->ring->gate, memory_order_acquire);
	int error = 0;

	while (gate == MOVER_SHUT ||
		!atomic_compare_exchange_weak_explicit(
			&mover->ring->gate, &gate, mover->number, memory_order_acq_rel, memory_order_acquire)) {
		if (gate != MOVER_SHUT)
			continue;
		if (poll(look, sizeof(look) / sizeof(*look), -1) < 0 && errno != EINTR)
			return -errno;
		if (look[1].revents)
			return 0;
		error = look[0].revents ? bell_drain(mover->work_bell) : 0;
		if (error)
			return error;
		gate = atomic_load_explicit(&mover->ring->gate, memory_order_acquire);
	}
	return 1;
}

static int mover_serve(struct mover *mover)
{
	struct pollfd look[] = {{mover->work_bell, POLLIN, 0}, {mover->signals, POLLIN, 0}, {mover->help, POLLIN, 0}};
	int error;

	atomic_store_explicit(&mover->ring->serving, (uint32_t)getpid(), memory_order_release);
	error = gate_pass(mover);
	if (error != 1)
		return error;
	log_info("pool '%s': the mover serves", mover->pool);
	bell_ring(mover->done_bell); /* reports this mover; also, its predecessor may have died before it rang */
	for (;;) {
		pthread_mutex_lock(&mover->lock);
		ring_scan(mover);
		pthread_mutex_unlock(&mover->lock);
		if (poll(look, sizeof(look) / sizeof(*look), -1) < 0 && errno != EINTR)
			return -errno;
		if (look[1].revents)
			return 0;
		if (look[2].revents) {
			say_why(mover, "the GPU context is lost");
			return -ENODEV;
		}
		/* Reset the bell before reading the ring: a later job rings it again. */
		error = look[0].revents ? bell_drain(mover->work_bell) : 0;
		if (error)
			return error;
	}
}

static bool is_lost(const struct mover *mover)
{
	for (uint32_t i = 0; i < LANES; i++)
		if (mover->workers[i].lane.lost)
			return true;
	return false;
}

static void mover_close(struct mover *mover)
{
	workers_stop(mover);
	/* Copies that were queued before the loss may still use the memory of this process, until it has ended. */
	if (is_lost(mover))
		return;
	for (uint32_t i = 0; i < LANES; i++)
		if (mover->workers[i].lane.gpu)
			mover_lane_close(&mover->workers[i].lane);
	if (mover->gpu)
		gpu_close(mover->gpu);
	mover_memory_close(&mover->memory);
	mover_file_close(&mover->file);
	mover_window_close(&mover->window);
}

int mover_run(const struct module_start *start)
{
	struct mover *mover;
	int error;

	log_configure(start->recipe);
	mover = calloc(1, sizeof(*mover));
	error = mover ? mover_open(mover, start) : -ENOMEM;
	if (!error)
		error = workers_start(mover);
	if (!error)
		error = mover_serve(mover);
	if (mover)
		mover_close(mover);
	free(mover);
	return error ? 1 : 0;
}
