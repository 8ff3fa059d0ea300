/* verb_make.c - gpool-replay make: a random trace of allocations. */
#include "tools/replay/replay.h"

#include "tools/lib/malloc_make.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static bool recipe_read(const struct command *command, struct malloc_recipe *recipe)
{
	uint64_t allocations, chance, threads, streams;

	recipe->least = 1;
	if (!command_size(command, OPTION_THROUGH, 0, &recipe->through) ||
		!command_number(command, OPTION_ALLOCATIONS, 1, MALLOC_TRACE_EVENTS_MAX, recipe->through ? 0 : 10000,
			&allocations) ||
		!command_size(command, OPTION_UP_TO, UINT64_C(64) << 20, &recipe->most) ||
		!command_size(command, OPTION_CAP, UINT64_C(16000) << 20, &recipe->cap) ||
		!command_number(command, OPTION_CHANCE, 1, 100, 73, &chance) ||
		!command_number(command, OPTION_THREADS, 1, MALLOC_TRACE_THREADS_MAX, 1, &threads) ||
		!command_number(command, OPTION_STREAMS, 0, MALLOC_TRACE_STREAMS_MAX, 1, &streams) ||
		!command_number(command, OPTION_SEED, 0, UINT64_MAX - 9, 1, &recipe->seed))
		return false;
	if (recipe->most > recipe->cap) {
		complain("--up-to must not exceed --cap");
		return false;
	}
	if (recipe->most > MALLOC_TRACE_BYTES_MAX)
		return option_refuse(command, OPTION_UP_TO, "exceeds the maximum size of an allocation, 1TiB");
	recipe->allocations = (uint32_t)allocations;
	recipe->chance = (uint32_t)chance;
	recipe->threads = (uint32_t)threads;
	recipe->streams = (uint32_t)streams;
	return true;
}

int make_run(const struct command *command)
{
	const char *path = command->argument_count ? command->arguments[0] : NULL;
	struct malloc_recipe recipe = {0};
	struct malloc_trace trace = {0};
	FILE *file;
	int error;

	if (!recipe_read(command, &recipe))
		return CODE_USAGE;
	error = malloc_make(&recipe, &trace);
	if (error) {
		complain("cannot generate the trace: %s",
			error == -EFBIG ? "it would exceed the maximum number of events of a trace" : strerror(-error));
		return error == -EFBIG ? CODE_USAGE : CODE_FAILED;
	}
	file = path ? fopen(path, "we") : stdout;
	error = file ? malloc_trace_write(&trace, file) : -errno;
	if (file && path && fclose(file) != 0 && !error)
		error = -errno;
	malloc_trace_free(&trace);
	if (error && !path)
		return output_failed(error);
	if (error)
		complain("cannot write '%s': %s", path, strerror(-error));
	return error ? CODE_FAILED : CODE_OK;
}
