/*
 * main.c - gpool-bench: which figures were asked for, one process for each group that holds them, and what comes back.
 *
 * The parent attaches to nothing. It makes the folder, starts the groups one after the other, collects their samples,
 * and removes the folder when no process of theirs is left, also when it is interrupted.
 */
#include "tools/bench/bench.h"
#include "tools/bench/report.h"
#include "tools/lib/output_end.h"

#include <errno.h>
#include <ftw.h>
#include <getopt.h>
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
	EXIT_INCOMPLETE = 1, /* a figure could not be measured */
	EXIT_USAGE = 2,
	RUNS_MAX = 1000,
	GROUP_PATIENCE_S = 900, /* with the default runs every group needs less than a minute */
};

static const struct group_entry {
	const char *name, *text;
	unsigned runs;
	bool asked; /* measured only when a name is given that means it */
	int (*run)(struct bench *bench);
} groups[GROUPS] = {
#define GROUP(name, runs, text) {#name, text, runs, false, bench_##name},
#define GROUP_ASKED(name, runs, text) {#name, text, runs, true, bench_##name},
#include "tools/bench/figures.def"
};

struct session {
	bool json;
	bool progress;
	unsigned runs; /* 0: each group's own */
	bool wanted[FIGURES];
	char folder[64];
	struct figure_values values[FIGURES];
};

static volatile sig_atomic_t interrupted;
static volatile pid_t running; /* the group's process, to be ended with us */

static void interrupt(int signal)
{
	interrupted = signal;
	if (running > 0)
		kill(running, SIGTERM);
}

static const int end_signals[] = {SIGINT, SIGTERM, SIGHUP};

static void signals_catch(void)
{
	/* a second one ends the process at once */
	struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESETHAND};

	for (size_t i = 0; i < sizeof(end_signals) / sizeof(end_signals[0]); i++) {
		struct sigaction before;

		/* nohup has SIGHUP ignored. */
		if (sigaction(end_signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
			sigaction(end_signals[i], &action, NULL);
	}
}

static void signals_block(int how)
{
	sigset_t mask;

	sigemptyset(&mask);
	for (size_t i = 0; i < sizeof(end_signals) / sizeof(end_signals[0]); i++)
		sigaddset(&mask, end_signals[i]);
	sigprocmask(how, &mask, NULL);
}

static int remove_entry(const char *path, const struct stat *stat, int kind, struct FTW *where)
{
	(void)stat, (void)kind, (void)where;
	remove(path);
	return 0;
}

static unsigned runs_of(const struct session *session, enum group group)
{
	return session->runs ? session->runs : groups[group].runs;
}

static _Noreturn void group_become(const struct session *session, enum group group, const char *folder, int results)
{
	struct bench bench = {
		.group = groups[group].name, .folder = folder, .runs = runs_of(session, group), .results = results};

	for (size_t i = 0; i < sizeof(end_signals) / sizeof(end_signals[0]); i++)
		signal(end_signals[i], SIG_DFL);
	signal(SIGALRM, SIG_DFL);
	signals_block(SIG_UNBLOCK);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
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

/* Until the group closes its end. A sample is written whole, and so it is read. */
static int results_collect(struct session *session, enum group group, int results)
{
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
		error = values_add(&session->values[result.figure], result.value);
		done = session->values[result.figure].count;
		progress_show(session, group, done, 0);
	}
	progress_clear(session);
	return error;
}

/*
 * What is left of a group: its agent, when the group did not live to stop it. We are the subreaper, so all of it ends
 * up here.
 */
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
	/* A signal meanwhile is handled when `running` is known, and ends the group even while it starts. */
	signals_block(SIG_BLOCK);
	running = interrupted ? -1 : fork();
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
		fprintf(stderr, "gpool-bench: %s: ended by signal %d (%s)\n", groups[group].name, WTERMSIG(status),
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

/* Prints what was asked of a group; false when something of it is missing. */
static bool group_report(struct session *session, enum group group)
{
	bool complete = true;

	for (int i = 0; i < FIGURES; i++) {
		if (figure_texts[i].group != group || !session->wanted[i])
			continue;
		if (session->values[i].count)
			report_figure(session->json, (enum figure)i, &session->values[i]);
		if (session->values[i].count < runs_of(session, group))
			complete = false;
	}
	fflush(stdout);
	return complete;
}

static int measure(struct session *session)
{
	const char *parent = getenv("TMPDIR");
	int result = EXIT_SUCCESS;

	/* Before the folder exists, so that none is left. */
	signals_catch();
	snprintf(session->folder, sizeof(session->folder), "%.40s/gpool-bench-XXXXXX",
		parent && *parent ? parent : "/tmp");
	/* The front of a gpoold that root started runs as another user, who must get to the sockets. */
	if (!mkdtemp(session->folder) || chmod(session->folder, 0755) < 0) {
		fprintf(stderr, "gpool-bench: cannot make folder '%s': %s\n", session->folder, strerror(errno));
		return EXIT_INCOMPLETE;
	}
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	report_begin(session->json);
	for (int group = 0; group < GROUPS && !interrupted; group++) {
		if (!group_wanted(session, (enum group)group))
			continue;
		if (group_measure(session, (enum group)group))
			result = EXIT_INCOMPLETE;
		if (!group_report(session, (enum group)group))
			result = EXIT_INCOMPLETE;
	}
	children_reap();
	nftw(session->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	return interrupted ? 128 + interrupted : result;
}

static void help(FILE *to)
{
	fputs("usage: gpool-bench [-o table|json] [--runs N] [NAME ...]\n"
	      "\n"
	      "Measures gpool on this machine: starts an agent of its own on the host back end, and no other.\n"
	      "A NAME is a figure's or the beginning of several: vpmm_random means all that begin with it and an "
	      "underscore.\n"
	      "Without one everything is measured but what --list marks with '*'; that takes some minutes.\n"
	      "\n"
	      "  -o, --output FORM  table (default), or json: one object a line\n"
	      "      --runs N       how often each figure is sampled, 1 to 1000; default: as many as it needs\n"
	      "      --list         names and meanings\n"
	      "      --help\n"
	      "      --version\n"
	      "\n"
	      "GPOOLD names the gpoold to measure; default: the one beside this program.\n"
	      "Exit status: 0 all was measured, 1 something could not be, 2 wrong usage.\n",
		to);
}

static int figure_find(const char *name)
{
	for (int i = 0; i < FIGURES; i++)
		if (!strcmp(figure_texts[i].name, name))
			return i;
	return -1;
}

/*
 * A figure, else all figures of the groups that are called so or begin so, up to an underscore. False: there is none.
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

/* Return: 0 go on, else the exit status plus 1. */
static int arguments_read(struct session *session, int argc, char **argv)
{
	enum { OPTION_RUNS = 256, OPTION_LIST, OPTION_HELP, OPTION_VERSION };
	static const struct option options[] = {{"output", required_argument, NULL, 'o'},
		{"runs", required_argument, NULL, OPTION_RUNS}, {"list", no_argument, NULL, OPTION_LIST},
		{"help", no_argument, NULL, OPTION_HELP}, {"version", no_argument, NULL, OPTION_VERSION},
		{NULL, 0, NULL, 0}};
	char *end;
	long runs;
	int option;

	while ((option = getopt_long(argc, argv, "o:", options, NULL)) != -1) {
		switch (option) {
		case 'o':
			session->json = !strcmp(optarg, "json");
			if (!session->json && strcmp(optarg, "table")) {
				fprintf(stderr, "gpool-bench: '%s' is not a form of output: table, json\n", optarg);
				return EXIT_USAGE + 1;
			}
			break;
		case OPTION_RUNS:
			runs = strtol(optarg, &end, 10);
			if (*end || end == optarg || runs < 1 || runs > RUNS_MAX) {
				fprintf(stderr, "gpool-bench: '%s' is not a number of runs: 1 to %d\n", optarg,
					RUNS_MAX);
				return EXIT_USAGE + 1;
			}
			session->runs = (unsigned)runs;
			break;
		case OPTION_LIST:
			for (int i = 0; i < FIGURES; i++)
				report_name((enum figure)i, groups[figure_texts[i].group].asked);
			return EXIT_SUCCESS + 1;
		case OPTION_HELP: help(stdout); return EXIT_SUCCESS + 1;
		case OPTION_VERSION: printf("gpool-bench %s\n", gpool_version()); return EXIT_SUCCESS + 1;
		default: help(stderr); return EXIT_USAGE + 1;
		}
	}
	for (int i = 0; i < FIGURES; i++)
		session->wanted[i] = optind == argc && !groups[figure_texts[i].group].asked;
	for (int i = optind; i < argc; i++)
		if (!name_want(session, argv[i])) {
			fprintf(stderr, "gpool-bench: there is no bench '%s'; --list names them\n", argv[i]);
			return EXIT_USAGE + 1;
		}
	return 0;
}

int main(int argc, char **argv)
{
	static struct session session;
	int status = arguments_read(&session, argc, argv);

	if (status)
		return output_end("gpool-bench", status - 1);
	session.progress = isatty(STDERR_FILENO);
	return output_end("gpool-bench", measure(&session));
}
