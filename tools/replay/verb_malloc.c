/*
 * verb_malloc.c - gpool-replay malloc: replay a trace of allocations on one or several allocators, one after the other.
 */
#include "tools/lib/chart.h"
#include "tools/replay/replay.h"

#include "tools/replay/picture.h"
#include "tools/replay/player.h"
#include "tools/replay/pool.h"
#include "tools/replay/result.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALLOCATORS_MAX = 4 };

struct replay {
	const char *picture; /* NULL: none */
	const struct allocator_ops *allocators[ALLOCATORS_MAX];
	int count;
	bool all; /* all allocators that this device supports */
	struct malloc_trace trace;
	struct replay_pool pool;
	struct result_frame frame;
	struct play_plan plan;
	struct result results[ALLOCATORS_MAX];
	int result_count;
	struct samples samples[ALLOCATORS_MAX];
};

/* ---- options ---- */

static bool allocator_add(struct replay *replay, const struct allocator_ops *allocator)
{
	for (int i = 0; i < replay->count; i++)
		if (replay->allocators[i] == allocator)
			return false;
	replay->allocators[replay->count++] = allocator;
	return true;
}

static bool allocators_read(const struct command *command, struct replay *replay)
{
	const char *text = command->values[OPTION_ALLOCATOR];
	char names[128], *rest = names, *name;

	if (!text)
		return allocator_add(replay, allocators[0]);
	if (!strcmp(text, "all")) {
		replay->all = true;
		for (int i = 0; allocators[i]; i++)
			allocator_add(replay, allocators[i]);
		return true;
	}
	snprintf(names, sizeof(names), "%s", text);
	while ((name = strsep(&rest, ","))) {
		const struct allocator_ops *found = allocator_find(name);

		if (!found)
			return option_refuse(command, OPTION_ALLOCATOR,
				"contains an unknown allocator; 'gpool-replay malloc --help' lists the allocators");
		if (!allocator_add(replay, found))
			return option_refuse(command, OPTION_ALLOCATOR, "contains an allocator twice");
	}
	return true;
}

static bool pool_read(const struct command *command, struct replay_pool *pool)
{
	pool->directory = command->values[OPTION_DIR];
	pool->name = command->values[OPTION_POOL];
	if (pool->directory && command->values[OPTION_POOL_SIZE])
		return option_refuse(command, OPTION_POOL_SIZE, "cannot be used with --dir");
	if (pool->directory && command->values[OPTION_PAGE_SIZE])
		return option_refuse(command, OPTION_PAGE_SIZE, "cannot be used with --dir");
	if (!pool->directory && pool->name)
		return option_refuse(command, OPTION_POOL, "requires --dir");
	return command_size(command, OPTION_POOL_SIZE, UINT64_C(80) << 30, &pool->bytes) &&
		command_page_size(command, OPTION_PAGE_SIZE, UINT64_C(2) << 20, &pool->page_bytes);
}

static bool replay_read(const struct command *command, struct replay *replay)
{
	struct play_plan *plan = &replay->plan;

	if (!allocators_read(command, replay) || !pool_read(command, &replay->pool) ||
		!command_factor(command, OPTION_SPEED, 0.001, 1e6, 0, &plan->speed) ||
		!command_size(command, OPTION_FILL, 0, &plan->fill_bytes))
		return false;
	replay->picture = command->values[OPTION_PICTURE];
	plan->in_order = command->values[OPTION_IN_ORDER] != NULL;
	plan->progress = !command->values[OPTION_QUIET];
	plan->trace = &replay->trace;
	plan->interrupted = &interrupted;
	return true;
}

/* ---- the verb ---- */

static int replay_one(struct replay *replay, int i)
{
	struct result *result = &replay->results[replay->result_count];
	struct gpool *pool;
	int error = replay_pool_open(&replay->pool, &pool);

	if (error)
		return error;
	replay->frame.page_bytes = gpool_page_bytes(pool);
	replay->frame.pool_bytes = gpool_page_count(pool) * gpool_page_bytes(pool);
	result->allocator = replay->plan.allocator = replay->allocators[i];
	replay->plan.pool = pool;
	replay->plan.samples = replay->picture ? &replay->samples[replay->result_count] : NULL;
	error = play(&replay->plan, &result->play);
	if (!error)
		replay->result_count++;
	else if (error == -EOPNOTSUPP && replay->all)
		replay->frame.absent = result->allocator;
	else if (error != -EINTR)
		complain("%s: %s", result->allocator->name, result->play.error);
	if (replay->frame.absent == result->allocator)
		error = 0;
	gpool_close(pool);
	return error;
}

static int picture_write(const struct replay *replay)
{
	struct picture_panel panels[ALLOCATORS_MAX];
	struct picture picture = {&replay->frame, panels, replay->result_count};

	for (int i = 0; i < replay->result_count; i++)
		panels[i] = (struct picture_panel){replay->results[i].allocator, &replay->samples[i]};
	return chart_file(replay->picture, picture_draw, &picture);
}

static int replay_all(const struct command *command, struct replay *replay)
{
	int error = replay_pool_start(&replay->pool);

	for (int i = 0; i < replay->count && !error; i++)
		error = replay_one(replay, i);
	replay_pool_stop(&replay->pool);
	if (!error && command->json)
		result_json(&replay->frame, replay->results, replay->result_count);
	else if (!error)
		result_print(&replay->frame, replay->results, replay->result_count);
	if (!error && replay->picture)
		error = picture_write(replay);
	return error;
}

int malloc_run(const struct command *command)
{
	char text[MALLOC_TRACE_ERROR_BYTES];
	struct replay *replay = calloc(1, sizeof(*replay));
	int error, code = CODE_USAGE;

	if (!replay) {
		complain("out of memory");
		return CODE_FAILED;
	}
	if (!replay_read(command, replay))
		goto free_replay;
	error = malloc_trace_load(
		command->arguments[0], command->values[OPTION_INCOMPLETE] != NULL, &replay->trace, text);
	if (error) {
		complain("%s", text);
		goto free_replay;
	}
	interrupts_catch(NULL);
	replay->frame = (struct result_frame){.trace_name = command->arguments[0],
		.trace = &replay->trace,
		.in_order = replay->plan.in_order,
		.speed = replay->plan.speed,
		.fill_bytes = replay->plan.fill_bytes};
	for (int i = 0; i < replay->count; i++)
		samples_init(&replay->samples[i], replay->trace.span_ns);
	error = replay_all(command, replay);
	code = interrupted ? 128 + interrupted : error ? CODE_FAILED : CODE_OK;
	for (int i = 0; i < replay->count; i++)
		samples_fini(&replay->samples[i]);
	malloc_trace_free(&replay->trace);
free_replay:
	free(replay);
	return code;
}
