/* loaders.c - the loader threads, which take work from the lists of struct gpool_lora. */
#include "client/lora/load/later.h"
#include "client/lora/load/limits.h"
#include "client/lora/load/rebalance.h"
#include "client/lora/load/tails_pack.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* The maximum number of loads in progress, each of which has pages allocated (chosen). */
enum { LOADS_MAX = 32 };

/* ---- work ---- */

static bool is_room(const struct gpool_lora *lora)
{
	return lora->loads < LOADS_MAX && !lora->crowded;
}

void loader_wake(struct gpool_lora *lora)
{
	if (!TAILQ_EMPTY(&lora->steps) || !TAILQ_EMPTY(&lora->turns))
		pthread_cond_signal(&lora->queued);
}

void load_here(struct gpool_lora *lora, struct lora_entry *entry)
{
	struct lora_loader helper = {.lora = lora};

	if (lora->residency || !lora_can_help(lora) || !entry->adapter->known || !TAILQ_EMPTY(&lora->queue) ||
		!is_room(lora)) {
		entry_queue(lora, entry);
		return;
	}
	load_begin(&helper, entry);
	if (!TAILQ_EMPTY(&lora->steps))
		pthread_cond_signal(&lora->queued);
}

static void step_take(struct lora_loader *loader, struct lora_entry *entry)
{
	if (entry->load_state == LOAD_MADE)
		load_finish(loader, entry->load);
	else
		load_source(entry->load);
}

static void time_pass(struct gpool_lora *lora)
{
	if (!lora->residency)
		rebalance(lora);
	else if (monotonic_ns() >= rebalance_due_ns(lora))
		limits_tick(lora);
	else
		limits_look(lora);
}

/* Return the time at which time_pass() has work. */
static uint64_t time_due_ns(const struct gpool_lora *lora)
{
	uint64_t due_ns = rebalance_due_ns(lora), limits_ns = lora->residency ? limits_due_ns(lora) : UINT64_MAX;

	return due_ns < limits_ns ? due_ns : limits_ns;
}

void loaders_due(struct gpool_lora *lora, uint64_t due_ns)
{
	if (due_ns < lora->sleep_ns)
		pthread_cond_signal(&lora->queued);
}

/* Wait for work, until the time at which the next work is due without an event. */
static void work_wait(struct gpool_lora *lora)
{
	uint64_t time_ns = time_due_ns(lora), later_ns = later_due_ns(lora),
		 due_ns = time_ns < later_ns ? time_ns : later_ns;
	struct timespec limit = {.tv_sec = (time_t)(due_ns / 1000000000), .tv_nsec = (long)(due_ns % 1000000000)};

	if (due_ns < lora->sleep_ns)
		lora->sleep_ns = due_ns;
	if (due_ns == UINT64_MAX)
		pthread_cond_wait(&lora->queued, &lora->lock);
	else
		pthread_cond_timedwait(&lora->queued, &lora->lock, &limit);
	/* Other threads may sleep until an earlier time. loaders_due() then wakes a thread without need. */
	lora->sleep_ns = UINT64_MAX;
}

static void *loader_run(void *argument)
{
	struct lora_loader *loader = argument;
	struct gpool_lora *lora = loader->lora;
	struct lora_load *draft;

	pthread_mutex_lock(&lora->lock);
	while (!lora->ending || !TAILQ_EMPTY(&lora->steps)) {
		if (!TAILQ_EMPTY(&lora->steps))
			step_take(loader, TAILQ_FIRST(&lora->steps));
		else if (limits_have(lora))
			limits_take(lora);
		else if (!TAILQ_EMPTY(&lora->queue) && is_room(lora))
			load_begin(loader, TAILQ_FIRST(&lora->queue));
		else if (!TAILQ_EMPTY(&lora->turns))
			turn_take(loader, TAILQ_FIRST(&lora->turns)->load);
		else if ((draft = draft_done(lora)))
			draft_end(loader, draft);
		else if (!later_due_ns(lora))
			later_take(loader);
		else if (lora->unpacked && !lora->packing)
			tails_pack(loader);
		else if (monotonic_ns() >= time_due_ns(lora))
			time_pass(lora);
		else if (!TAILQ_EMPTY(&lora->drafts) && !lora->watching)
			drafts_watch(lora);
		else
			work_wait(lora);
	}
	pthread_mutex_unlock(&lora->lock);
	return NULL;
}

/* ---- loader threads ---- */

/* Create the loader's stage, unless the CPU can write to pages. */
static int stage_open(struct lora_loader *loader)
{
	struct gpool *pool = loader->lora->pool;
	uint64_t bytes = LORA_STAGE_PAGES * pool->page_bytes;
	void *stage;
	int error;

	if (pool->capabilities & GPU_CAP_HOST_POINTER)
		return 0;
	stage = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stage == MAP_FAILED)
		return -ENOMEM;
	error = gpu_host_register(pool->gpu, stage, bytes);
	if (!error) {
		error = gpool_stream_open(pool, NULL, 0, &loader->stream);
		if (!error) {
			loader->stage = stage;
			return 0;
		}
		gpu_host_unregister(pool->gpu, stage);
	}
	munmap(stage, bytes);
	return error;
}

static void loader_close(struct lora_loader *loader)
{
	struct gpool *pool = loader->lora->pool;

	if (loader->stage) {
		gpool_stream_close(pool, loader->stream);
		gpu_host_unregister(pool->gpu, loader->stage);
		munmap(loader->stage, LORA_STAGE_PAGES * pool->page_bytes);
	}
	free(loader->stored);
	free(loader->room);
}

static int loader_open(struct lora_loader *loader)
{
	int error = stage_open(loader);

	if (error)
		return error;
	if (!pthread_create(&loader->thread, NULL, loader_run, loader))
		return 0;
	loader_close(loader);
	return -ENOMEM;
}

int loaders_start(struct gpool_lora *lora, uint32_t count)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	int error = 0;

	lora->cores = cores > 1 ? (uint32_t)cores : 1;
	lora->loaders = calloc(count, sizeof(*lora->loaders));
	if (!lora->loaders)
		return -ENOMEM;
	while (lora->loader_count < count && !error) {
		lora->loaders[lora->loader_count].lora = lora;
		error = loader_open(&lora->loaders[lora->loader_count]);
		lora->loader_count += !error;
	}
	return error;
}

/* Drop the loads on which no thread works. */
static void lists_empty(struct gpool_lora *lora)
{
	struct lora_entry *entry;

	while ((entry = TAILQ_FIRST(&lora->turns))) {
		load_set_state(lora, entry, LOAD_ENDING);
		load_end(entry->load, -ECANCELED);
	}
	while ((entry = TAILQ_FIRST(&lora->drafts))) {
		load_set_state(lora, entry, LOAD_DRAFT_ENDING);
		load_end(entry->load, -ECANCELED);
	}
	while ((entry = TAILQ_FIRST(&lora->queue)))
		load_set_state(lora, entry, LOAD_COLD);
	later_drop(lora);
}

void loaders_end(struct gpool_lora *lora)
{
	pthread_mutex_lock(&lora->lock);
	lora->ending = true;
	pthread_cond_broadcast(&lora->queued);
	pthread_mutex_unlock(&lora->lock);
	for (uint32_t i = 0; i < lora->loader_count; i++) {
		pthread_join(lora->loaders[i].thread, NULL);
		loader_close(&lora->loaders[i]);
	}
	lists_empty(lora);
	while (lora->readers_idle)
		cold_reader_destroy(lora->readers[--lora->readers_idle]);
	free(lora->loaders);
	lora->loaders = NULL;
	lora->loader_count = 0;
}
