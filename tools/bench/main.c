/*
 * main.c - gpool-bench: select figures, and run one process for each group of them.
 *
 * The parent attaches to no agent. It creates the folder, runs the groups one after the other, and collects their
 * samples. When all their processes have ended, it removes the folder, even after an interrupt.
 */
#include "tools/bench/against.h"
#include "tools/bench/bench.h"
#include "tools/bench/report.h"
#include "tools/lib/cli.h"
#include "tools/lib/dependent.h"
#include "tools/lib/folder.h"
#include "tools/lib/interrupt.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	RUNS_MAX = 1000,
	ROUNDS = 5,
	GROUP_PATIENCE_S = 900, /* with the default number of runs, every group takes less than a minute */
};

static const struct group_entry {
	const char *name, *text;
	unsigned runs;
	bool asked; /* measured only if selected by name */
	int (*run)(struct bench *bench);
} groups[GROUPS] = {
#define GROUP(name, runs, text) {#name, text, runs, false, bench_##name},
#define GROUP_ASKED(name, runs, text) {#name, text, runs, true, bench_##name},
#include "tools/bench/figures.def"
};

struct session {
	bool json;
	bool progress;
	unsigned runs; /* 0: the default of each group */
	bool wanted[FIGURES];
	char folder[64];
	const char *backend;
	struct figure_samples samples[FIGURES];
};

static volatile pid_t running; /* the group's process, which ends when this process ends */

static void running_end(void)
{
	if (running > 0)
		kill(running, SIGTERM);
}

static const int end_signals[] = {SIGINT, SIGTERM, SIGQUIT, SIGALRM, SIGHUP, SIGPIPE};

static void signals_block(int how)
{
	sigset_t mask;

	sigemptyset(&mask);
	for (size_t i = 0; i < sizeof(end_signals) / sizeof(end_signals[0]); i++)
		sigaddset(&mask, end_signals[i]);
	sigprocmask(how, &mask, NULL);
}

static unsigned runs_of(const struct session *session, enum group group)
{
	return session->runs ? session->runs : groups[group].runs;
}

static _Noreturn void group_become(const struct session *session, enum group group, const char *folder, int results)
{
	struct bench bench = {
		.group = groups[group].name,
		.folder = folder,
		.backend = session->backend,
		.runs = runs_of(session, group),
		.results = results,
		.begin_ns = monotonic_ns(),
	};

	for (size_t i = 0; i < sizeof(end_signals) / sizeof(end_signals[0]); i++)
		signal(end_signals[i], SIG_DFL);
	signals_block(SIG_UNBLOCK);
	alarm(GROUP_PATIENCE_S);
	_exit(groups[group].run(&bench) ? 1 : 0);
}

static void progress_show(const struct session *session, enum group group, size_t done, unsigned percent)
{
	char part[16] = "";

	if (!session->progress)
		return;
	if (percent)
		snprintf(part, sizeof(part), ", %u %%", percent);
	fprintf(stderr, "\r\033[K%s: %zu of %u%s (%s)", groups[group].name, done, runs_of(session, group), part,
		groups[group].text);
}

static void progress_clear(const struct session *session)
{
	if (session->progress)
		fputs("\r\033[K", stderr);
}

/* Read samples until the group closes the pipe. Each sample is written and read as a whole. */
static int results_collect(struct session *session, enum group group, int results)
{
	struct figure_samples *samples;
	struct bench_result result;
	size_t done = 0;
	ssize_t length;
	int error = 0;

	progress_show(session, group, 0, 0);
	while ((length = read(results, &result, sizeof(result))) != 0 && !error) {
		if (length < 0 && errno == EINTR && !interrupted)
			continue;
		if (length != sizeof(result) || result.figure > FIGURE_PROGRESS)
			return -EIO;
		if (result.figure == FIGURE_PROGRESS) {
			progress_show(session, group, done, (unsigned)result.value);
			continue;
		}
		samples = &session->samples[result.figure];
		error = values_add(&samples->values, result.value);
		if (!error)
			error = values_add(&samples->run, result.run_ms);
		if (!error && result.driver_ms >= 0)
			error = values_add(&samples->driver, result.driver_ms);
		done = samples->values.count;
		progress_show(session, group, done, 0);
	}
	progress_clear(session);
	return error;
}

/* Reap the remaining processes of a group, such as the agent of a group that died. This process is the subreaper. */
static void children_reap(void)
{
	while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
		;
}

static int group_measure(struct session *session, enum group group)
{
	char folder[PATH_MAX];
	int ends[2], error, status = 0;

	snprintf(folder, sizeof(folder), "%s/%s", session->folder, groups[group].name);
	if (mkdir(folder, 0755) < 0 || pipe(ends) < 0)
		return -errno;
	/*
	 * A signal that arrives before `running` is set is handled when it is set, so it also ends a group that is
	 * starting.
	 */
	signals_block(SIG_BLOCK);
	running = interrupted ? -1 : dependent_fork(SIGTERM);
	if (running == 0) {
		close(ends[0]);
		group_become(session, group, folder, ends[1]);
	}
	error = interrupted ? -EINTR : running < 0 ? -errno : 0;
	running = error ? 0 : running;
	signals_block(SIG_UNBLOCK);
	close(ends[1]);
	if (error) {
		close(ends[0]);
		return error;
	}
	error = results_collect(session, group, ends[0]);
	close(ends[0]);
	while (waitpid(running, &status, 0) < 0 && errno == EINTR)
		;
	running = 0;
	children_reap();
	if (WIFSIGNALED(status) && !interrupted)
		complain("%s: ended by signal %d (%s)", groups[group].name, WTERMSIG(status),
			strsignal(WTERMSIG(status)));
	return error ? error : status ? -EPIPE : 0;
}

static bool group_wanted(const struct session *session, enum group group)
{
	for (int i = 0; i < FIGURES; i++)
		if (session->wanted[i] && figure_texts[i].group == group)
			return true;
	return false;
}

/* Return true if the back end calls a driver. */
static bool is_driver(const struct session *session)
{
	return strcmp(session->backend, "host") != 0;
}

/* Print the selected figures of a group. Return false if one is missing. */
static bool group_report(struct session *session, enum group group)
{
	bool complete = true;

	for (int i = 0; i < FIGURES; i++) {
		if (figure_texts[i].group != group || !session->wanted[i])
			continue;
		if (session->samples[i].values.count)
			report_figure(session->json, is_driver(session), (enum figure)i, &session->samples[i]);
		if (session->samples[i].values.count < runs_of(session, group))
			complete = false;
	}
	output_flush();
	return complete;
}

static int measure(struct session *session)
{
	int result = CODE_OK, error;

	/* Catch signals before the folder exists, so that it is always removed. */
	interrupts_catch(running_end);
	snprintf(session->folder, sizeof(session->folder), "%s/gpool-bench-XXXXXX", folder_temporary());
	/* If root starts gpoold, its front runs as another user, which must reach the sockets. */
	if (!mkdtemp(session->folder) || chmod(session->folder, 0755) < 0) {
		complain("cannot create directory '%s': %s", session->folder, strerror(errno));
		return CODE_FAILED;
	}
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	report_begin(session->json, is_driver(session));
	for (int group = 0; group < GROUPS && !interrupted; group++) {
		if (!group_wanted(session, (enum group)group))
			continue;
		if (group_measure(session, (enum group)group))
			result = CODE_FAILED;
		if (!group_report(session, (enum group)group))
			result = CODE_FAILED;
	}
	children_reap();
	error = folder_remove(session->folder);
	if (error)
		complain("cannot remove '%s': %s", session->folder, strerror(-error));
	return interrupted ? 128 + interrupted : result;
}

static int figure_find(const char *name)
{
	for (int i = 0; i < FIGURES; i++)
		if (!strcmp(figure_texts[i].name, name))
			return i;
	return -1;
}

/*
 * Select the figure, or all figures of groups, with this name or with this prefix before an underscore. Return false if
 * there is none.
 */
static bool name_want(struct session *session, const char *name)
{
	size_t length = strlen(name);
	int figure = figure_find(name);
	bool any = false;

	if (figure >= 0)
		return session->wanted[figure] = true;
	for (int i = 0; i < FIGURES; i++) {
		const char *group = groups[figure_texts[i].group].name;

		if (!strncmp(group, name, length) && (group[length] == '\0' || group[length] == '_'))
			any = session->wanted[i] = true;
	}
	return any;
}

enum { OPTION_RUNS = OPTION_COMMON, OPTION_BACKEND, OPTION_LIST, OPTION_AGAINST, OPTION_ROUNDS };

static const struct option_spec options[] = {
	OPTION_ROW_OUTPUT,
	OPTION(OPTION_RUNS, 0, "runs", "N",
		"Number of samples of each figure, 1 to 1000. The default depends on the figure."),
	OPTION(OPTION_BACKEND, 0, "backend", "NAME",
		"Back end of the pools: host, or cuda with its first device. The default is host. With cuda, two more "
		"columns are printed: the median of the times between two samples, and the time of the driver's calls "
		"in them, which is known only if the driver is the tests' double, with its cost model."),
	OPTION(OPTION_AGAINST, 0, "against", "DIR",
		"Measure the build in DIR, such as build/release of an older version, and this one alternately. Print "
		"this build's figures divided by the older one's: the median, least and largest ratio of the rounds."),
	OPTION(OPTION_ROUNDS, 0, "rounds", "N",
		"Number of rounds of --against, 1 to 1000. The default is 5. In each round both builds run once."),
	OPTION(OPTION_LIST, 0, "list", NULL, "Print the names and descriptions of the figures."),
	OPTION_ROW_HELP,
	OPTION_ROW_VERSION,
	OPTIONS_END,
};

static const char *const codes[] = {
	[CODE_OK] = "All figures were measured.",
	[CODE_FAILED] = "A figure could not be measured.",
	[CODE_USAGE] = "The command line is invalid.",
	NULL,
};

static int run(const struct command *command)
{
	static struct session session = {0};
	uint64_t runs, rounds;

	if (!command_number(command, OPTION_RUNS, 1, RUNS_MAX, 0, &runs) ||
		!command_number(command, OPTION_ROUNDS, 1, RUNS_MAX, ROUNDS, &rounds))
		return CODE_USAGE;
	if (command->values[OPTION_ROUNDS] && !command->values[OPTION_AGAINST]) {
		complain("--rounds needs --against");
		return CODE_USAGE;
	}
	session.backend = command->values[OPTION_BACKEND] ? command->values[OPTION_BACKEND] : "host";
	if (strcmp(session.backend, "host") && strcmp(session.backend, "cuda"))
		return option_refuse(command, OPTION_BACKEND, "'%s' is not host or cuda", session.backend);
	if (is_driver(&session) && command->values[OPTION_AGAINST]) {
		complain("--against compares builds on the back end host");
		return CODE_USAGE;
	}
	session.json = command->json;
	session.runs = (unsigned)runs;
	session.progress = isatty(STDERR_FILENO);
	if (command->values[OPTION_LIST]) {
		for (int i = 0; i < FIGURES; i++)
			report_name((enum figure)i, groups[figure_texts[i].group].asked);
		return CODE_OK;
	}
	for (int i = 0; i < FIGURES; i++)
		session.wanted[i] = !command->argument_count && !groups[figure_texts[i].group].asked;
	for (uint32_t i = 0; i < command->argument_count; i++)
		if (!name_want(&session, command->arguments[i])) {
			complain("there is no figure '%s'; --list prints the names", command->arguments[i]);
			return CODE_USAGE;
		}
	if (!command->values[OPTION_AGAINST])
		return measure(&session);
	interrupts_catch(running_end);
	return against_measure(&(struct against){
		.folder = command->values[OPTION_AGAINST],
		.rounds = (unsigned)rounds,
		.runs = session.runs,
		.json = session.json,
		.progress = session.progress,
		.wanted = session.wanted,
		.running = &running,
	});
}

int main(int argc, char **argv)
{
	static const struct program bench = {
		.name = "gpool-bench",
		.usage = "[OPTION]... [NAME]...",
		.summary = "Measures gpool on this machine, with an agent of its own. A NAME selects "
			   "a figure, a group of figures, or all groups whose names begin with NAME and an underscore, "
			   "such as malloc_async_random. Without a NAME, all figures are measured except those that "
			   "--list marks with '*'. The environment variable GPOOLD is the path "
			   "of the gpoold to measure; the default is the one in the directory of this program.",
		.options = options,
		.arguments_most = UINT32_MAX,
		.codes = codes,
	};

	return command_run(&bench, argc, argv, run);
}
