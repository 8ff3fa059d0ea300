/* verb_make_kv.c - gpool-replay make-kv: a random trace of prefixes. */
#include "tools/replay/replay.h"

#include "tools/lib/prefix_make.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static bool recipe_read(const struct command *command, struct prefix_recipe *recipe)
{
	uint64_t requests, blocks;

	recipe->workload = prefix_workload_named(command->arguments[0]);
	if (!recipe->workload) {
		complain("unknown workload '%s'; see 'gpool-replay make-kv --help'", command->arguments[0]);
		return false;
	}
	if (!command_number(command, OPTION_REQUESTS, 1, PREFIX_MAKE_REQUESTS_MAX, 20000, &requests) ||
		!command_number(
			command, OPTION_BLOCKS, PREFIX_MAKE_BLOCKS_MIN, PREFIX_MAKE_BLOCKS_MAX, 2000, &blocks) ||
		!command_number(command, OPTION_SEED, 0, UINT64_MAX - 9, 1, &recipe->seed))
		return false;
	recipe->requests = (uint32_t)requests;
	recipe->blocks = (uint32_t)blocks;
	return true;
}

int make_kv_run(const struct command *command)
{
	const char *path = command->argument_count > 1 ? command->arguments[1] : NULL;
	struct prefix_recipe recipe = {0};
	FILE *file;
	int error;

	if (!recipe_read(command, &recipe))
		return CODE_USAGE;
	file = path ? fopen(path, "we") : stdout;
	error = file ? prefix_make(&recipe, file) : -errno;
	if (file && path && fclose(file) != 0 && !error)
		error = -errno;
	if (error && !path)
		return output_failed(error);
	if (error)
		complain("cannot write '%s': %s", path, strerror(-error));
	return error ? CODE_FAILED : CODE_OK;
}
