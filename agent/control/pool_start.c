#include "agent/control/pool_start.h"

#include "agent/control/page_facts.h"
#include "agent/control/recover.h"
#include "agent/keeper/channel.h"
#include "agent/object/objects.h"
#include "agent/pages/reservation.h"
#include "agent/session/session.h"
#include "agent/spill/spill.h"
#include "agent/trust/trust_transfer.h"

#include <errno.h>
#include <stdlib.h>

static bool memory_is_held(const struct pool *pool)
{
	const struct module_start *start = pool->agent->start;

	for (uint32_t i = 0; i < start->held_count; i++)
		if (start->held[i].kind == KEEP_HANDLE && start->held[i].pool == pool->index)
			return true;
	return false;
}

/*
 * Send all handles to the keeper. If it cannot hold one of them, the start fails, because the next agent needs every
 * handle that a process may have mapped.
 */
static int memory_hold(struct pool *pool)
{
	int error = 0;

	for (uint32_t i = 0; i < pool->physical.exported && !error; i++)
		error = agent_hold(pool->agent,
			&(struct held){.kind = KEEP_HANDLE,
				.pool = pool->index,
				.id = i,
				.fd_count = 1,
				.fds = {pool->physical.exports[i].fd},
				.value = pool->physical.exports[i].offset,
				.value2 = pool->physical.exports[i].length});
	if (error)
		physical_destroy(&pool->physical);
	return error;
}

static int memory_start(struct pool *pool, const struct module_pool *start, uint32_t handles)
{
	const struct pool_header *header = start->segment.header;
	const struct physical_plan plan = {
		.ops = gpu_backend(header->backend),
		.device = start->device,
		.handle_bytes = start->handle_bytes,
		.handle_count = handles,
		.separate = trust_wanted(pool, &start->ledger),
		.huge = pool->config->huge_pages,
		.keeper = pool->agent->keeper.fd,
		.pool = header->name,
	};
	int error;

	if (memory_is_held(pool)) {
		error = physical_adopt(
			&pool->physical, &plan, pool->index, pool->agent->start->held, pool->agent->start->held_count);
		/* If no handle was created, the keeper already holds all of them. */
		return error || !pool->physical.created ? error : memory_hold(pool);
	}
	error = physical_create(&pool->physical, &plan);
	return error ? error : memory_hold(pool);
}

static const struct session_part *const session_parts[] = {
	&facts_session_part, &spill_session_part, &objects_session_part, &reservation_session_part, NULL};

int pool_create(struct agent *agent, uint32_t index, const struct module_pool *start, struct pool **result)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	const struct pool_header *header = start->segment.header;
	uint32_t handles = header->page_count / header->pages_per_handle;
	int error;

	*result = NULL;
	if (!pool)
		return -ENOMEM;
	pool->agent = agent;
	pool->index = index;
	pool->config = &agent->config.pools[index];
	pool->segment = start->segment;
	pool->segment_fd = start->segment_fd;
	pool->page_count = header->page_count;
	pool->session_next = 1;
	pool->session_parts = session_parts;
	TAILQ_INIT(&pool->waiters);
	error = memory_start(pool, start, handles);
	if (error)
		goto free_pool;
	error = free_runs_init(&pool->free, 0, header->reserved_first);
	if (error)
		goto destroy_physical;
	error = free_runs_init(&pool->reserved, header->reserved_first, header->page_count - header->reserved_first);
	if (error)
		goto fini_free;
	error = evict_init(pool);
	if (error)
		goto fini_reserved;
	error = objects_create(pool);
	if (error)
		goto fini_evict;
	pool->ledger = start->ledger;
	pool->runs = pool->ledger.runs;
	error = trust_open(pool, start, &trust_transfers);
	if (error)
		goto destroy_objects;
	error = jobs_open(pool, start);
	if (error)
		goto close_trust;
	jobs_register(pool, JOB_OF_SPILL, &spill_job_user);
	jobs_register(pool, JOB_OF_TRUST, &trust_job_user);
	error = spill_open(pool, agent->start, start->ledger_fd);
	if (error)
		goto close_jobs;
	pool_count_words(pool);
	flight_recover(&pool->segment.flight);
	flight_recover(&pool->segment.events);
	atomic_store_explicit(&pool->segment.header->incarnation, agent->incarnation, memory_order_relaxed);
	pool_configure(pool);
	/* A new run of gpoold puts a drained pool back in service. */
	if (agent->start->adopted)
		atomic_store_explicit(&pool->segment.header->draining, 0, memory_order_relaxed);
	if (atomic_load_explicit(&pool->ledger.header->started, memory_order_acquire))
		error = recover_pool(pool);
	if (error)
		goto close_spill;
	atomic_store_explicit(&pool->ledger.header->started, 1, memory_order_release);
	pool_count(pool, POOL_COUNT_AGENT_STARTS, 1);
	*result = pool;
	return 0;
close_spill:
	spill_close(pool);
close_jobs:
	jobs_close(pool);
close_trust:
	trust_close(pool);
destroy_objects:
	objects_destroy(pool);
fini_evict:
	evict_fini(pool);
fini_reserved:
	free_runs_fini(&pool->reserved);
fini_free:
	free_runs_fini(&pool->free);
destroy_physical:
	physical_destroy(&pool->physical);
free_pool:
	free(pool);
	return error;
}

void pool_destroy(struct pool *pool)
{
	if (!pool)
		return;
	for (uint32_t id = 1; id < POOL_SESSIONS; id++)
		if (pool->sessions[id])
			session_end(pool->sessions[id], SESSION_END_STOP);
	facts_drop(pool->index);
	objects_destroy(pool);
	spill_close(pool);
	jobs_close(pool);
	trust_close(pool);
	evict_fini(pool);
	free_runs_fini(&pool->reserved);
	free_runs_fini(&pool->free);
	physical_destroy(&pool->physical);
	free(pool);
}
