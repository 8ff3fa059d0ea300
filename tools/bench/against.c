/*
 * against.c - measure an older build and this one alternately.
 *
 * Each program measures one group at a time and prints its medians as JSON. A ratio is formed within a round, in which
 * the two programs run directly one after the other, so slow changes of the machine's speed affect both.
 */
#include "tools/bench/against.h"

#include "tools/lib/cli.h"
#include "tools/lib/dependent.h"
#include "tools/lib/interrupt.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OLDER, NEWER, BUILDS, ARGUMENTS_MAX = FIGURES + 4 };

struct comparison {
	const struct against *against;
	char program[BUILDS][PATH_MAX];
	bool common[FIGURES]; /* wanted, and known to the older build */
	struct figure_values values[BUILDS][FIGURES], ratios[FIGURES];
};

/* ---- run a program ---- */

static int figure_named(const char *name)
{
	for (int i = 0; i < FIGURES; i++)
		if (!strcmp(figure_texts[i].name, name))
			return i;
	return -1;
}

/* Start a program. Return its standard output, or NULL with errno set. */
static FILE *program_start(const struct against *against, const char *program, char **arguments)
{
	int ends[2];
	pid_t child;

	if (pipe(ends) < 0)
		return NULL;
	child = dependent_fork(SIGTERM);
	if (child == 0) {
		unsetenv("GPOOLD"); /* each build measures its own gpoold */
		dup2(ends[1], STDOUT_FILENO);
		close(ends[0]);
		close(ends[1]);
		execv(program, arguments);
		_exit(127);
	}
	close(ends[1]);
	if (child < 0) {
		close(ends[0]);
		return NULL;
	}
	*against->running = child;
	if (interrupted)
		kill(child, SIGTERM);
	return fdopen(ends[0], "r");
}

/* Run a program and call `take` for each line of its output. Return its exit status, or -1. */
static int program_run(struct comparison *comparison, int build, char **arguments,
	void (*take)(struct comparison *comparison, int build, char *line))
{
	const struct against *against = comparison->against;
	FILE *output = program_start(against, comparison->program[build], arguments);
	char line[1024];
	int status;

	if (!output)
		return -1;
	while (fgets(line, sizeof(line), output))
		take(comparison, build, line);
	fclose(output);
	while (waitpid(*against->running, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	*against->running = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- its output ---- */

/* A line of --list begins with the figure's name. */
static void take_name(struct comparison *comparison, int build, char *line)
{
	int figure;

	(void)build;
	line[strcspn(line, " \n")] = '\0';
	figure = figure_named(line);
	if (figure >= 0)
		comparison->common[figure] = comparison->against->wanted[figure];
}

static void take_figure(struct comparison *comparison, int build, char *line)
{
	cJSON *object = cJSON_Parse(line);
	const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(object, "bench"));
	const cJSON *value = cJSON_GetObjectItem(object, "median");
	int figure = name ? figure_named(name) : -1;

	if (figure >= 0 && cJSON_IsNumber(value) &&
		values_add(&comparison->values[build][figure], value->valuedouble) < 0)
		complain("out of memory");
	cJSON_Delete(object);
}

/* ---- rounds ---- */

static int names_read(struct comparison *comparison)
{
	char *arguments[] = {comparison->program[OLDER], "--list", NULL};

	if (program_run(comparison, OLDER, arguments, take_name) == 0)
		return CODE_OK;
	complain("cannot run '%s --list'; --against takes the folder of a build, such as build/release",
		comparison->program[OLDER]);
	return CODE_USAGE;
}

static void progress_show(const struct comparison *comparison, const char *group, unsigned round)
{
	if (comparison->against->progress)
		fprintf(stderr, "\r\033[K%s: round %u of %u", group, round + 1, comparison->against->rounds);
}

/* Run both builds `rounds` times for the common figures of a group. Return false if a program failed. */
static bool group_compare(struct comparison *comparison, enum group group)
{
	char runs[24], *arguments[ARGUMENTS_MAX] = {"gpool-bench", "-o", "json"};
	int count = 3, options;
	bool worked = true;

	if (comparison->against->runs) {
		snprintf(runs, sizeof(runs), "--runs=%u", comparison->against->runs);
		arguments[count++] = runs;
	}
	options = count;
	for (int i = 0; i < FIGURES; i++)
		if (comparison->common[i] && figure_texts[i].group == group)
			arguments[count++] = (char *)(uintptr_t)figure_texts[i].name;
	for (unsigned round = 0; count > options && round < comparison->against->rounds && !interrupted; round++) {
		progress_show(comparison, group_names[group], round);
		for (int i = 0; i < BUILDS && !interrupted; i++) {
			int build = round % 2 ? BUILDS - 1 - i : i;

			worked &= program_run(comparison, build, arguments, take_figure) == 0;
		}
		if (!worked) /* the n-th values of both builds must be from the same round */
			break;
	}
	if (comparison->against->progress)
		fputs("\r\033[K", stderr);
	return worked;
}

/* Print the figures of a group. Return false if one is missing. */
static bool group_print(struct comparison *comparison, enum group group)
{
	bool complete = true;

	for (int i = 0; i < FIGURES; i++) {
		struct figure_values *older = &comparison->values[OLDER][i], *newer = &comparison->values[NEWER][i];
		struct figure_values *ratios = &comparison->ratios[i];

		if (!comparison->common[i] || figure_texts[i].group != group)
			continue;
		for (size_t n = 0; n < older->count && n < newer->count; n++)
			if (older->values[n] != 0 && values_add(ratios, newer->values[n] / older->values[n]) < 0)
				complain("out of memory");
		if (older->count && newer->count)
			report_ratio(comparison->against->json, (enum figure)i, older, newer, ratios);
		if (older->count < comparison->against->rounds || newer->count < comparison->against->rounds)
			complete = false;
	}
	output_flush();
	return complete;
}

int against_measure(const struct against *against)
{
	static struct comparison comparison;
	ssize_t length = readlink("/proc/self/exe", comparison.program[NEWER], PATH_MAX - 1);
	int code;

	comparison.against = against;
	if (length < 0 ||
		snprintf(comparison.program[OLDER], PATH_MAX, "%s/gpool-bench", against->folder) >= PATH_MAX) {
		complain("the path of a program is too long; the limit is %d bytes", PATH_MAX);
		return CODE_USAGE;
	}
	code = names_read(&comparison);
	if (code)
		return code;
	for (int i = 0; i < FIGURES; i++)
		if (against->wanted[i] && !comparison.common[i])
			complain("'%s' has no figure '%s'", comparison.program[OLDER], figure_texts[i].name);
	report_ratios_begin(against->json, against->folder);
	for (int group = 0; group < GROUPS && !interrupted; group++) {
		if (!group_compare(&comparison, (enum group)group))
			code = CODE_FAILED;
		if (!group_print(&comparison, (enum group)group))
			code = CODE_FAILED;
	}
	return interrupted ? 128 + interrupted : code;
}
