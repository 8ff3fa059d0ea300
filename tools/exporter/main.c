/*
 * main.c - gpool-exporter: metrics of gpoold's pools for Prometheus; see gpool-exporter(1).
 *
 *   main     options, paths, start and end
 *   sampler  requests to the agent, as an observer
 *   http     serving the paths
 *   metrics  a sample as text, from the table metrics.def
 */
#include "shm/plural.h"
#include "tools/exporter/http.h"
#include "tools/exporter/live.h"
#include "tools/exporter/metrics.h"
#include "tools/exporter/sampler.h"
#include "tools/lib/cli.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PORT = 9743, TIMEOUT_MS = 2000, TIMEOUT_MOST_MS = 600000 };

struct settings {
	const char *directory, *address;
	uint16_t port;
	int timeout_ms;
};

/* ---- options ---- */

enum { OPTION_LISTEN = OPTION_COMMON, OPTION_PORT, OPTION_TIMEOUT, OPTION_ONCE, OPTION_METRICS };

static const struct option_spec options[] = {
	OPTION(OPTION_DIR, 'd', "dir", "DIR",
		"Directory of the agent's sockets. The default is $GPOOL_DIR, or /run/gpool if it is not set."),
	OPTION(OPTION_LISTEN, 'l', "listen", "ADDRESS",
		"Address on which to listen. The default is 127.0.0.1, which can be reached only from this machine. "
		"TLS and passwords are not supported; use a proxy for access from other machines."),
	OPTION(OPTION_PORT, 'p', "port", "NUMBER",
		"Port on which to listen; 0 selects a free port. The default is 9743."),
	OPTION(OPTION_TIMEOUT, 't', "timeout", "SECONDS",
		"Reply timeout of the agent in seconds, 0.01 to 600. The default is 2."),
	OPTION(OPTION_ONCE, 0, "once", NULL,
		"Print the metrics and exit; the exit status is 3 if the agent does not answer."),
	OPTION(OPTION_METRICS, 0, "metrics", NULL, "Print the list of metrics, as Markdown."),
	OPTION_ROW_HELP,
	OPTION(OPTION_VERSION, 'V', "version", NULL, "Print the version."),
	OPTIONS_END,
};

static const char *const codes[] = {
	[CODE_OK] = "Success.",
	[CODE_FAILED] = "The server could not be started, or the output could not be written.",
	[CODE_USAGE] = "The command line is invalid.",
	[CODE_NO_AGENT] = "With --once, the agent does not answer.",
	NULL,
};

/* ---- paths ---- */

static void answer_metrics(void *context, const struct http_request *request, struct http_answer *answer)
{
	struct sampler *sampler = context;
	FILE *to = open_memstream(&answer->body, &answer->bytes);

	(void)request;
	if (to) {
		metrics_print(to, sampler_look(sampler));
		sampler_done(sampler);
	}
	if (to && !fclose(to)) {
		answer->type = METRICS_TYPE;
		return;
	}
	free(answer->body);
	http_text(answer, 503, "out of memory\n");
}

static void answer_health(void *context, const struct http_request *request, struct http_answer *answer)
{
	(void)context, (void)request;
	http_text(answer, 200, "ok\n");
}

static void answer_ready(void *context, const struct http_request *request, struct http_answer *answer)
{
	struct sampler *sampler = context;
	const struct sample *sample = sampler_look(sampler);

	(void)request;
	http_text(answer, sample->up ? 200 : 503, "%s\n", sample->up ? "ready" : sample->why);
	sampler_done(sampler);
}

/* ---- the program ---- */

static void report_change(const struct sample *sample)
{
	if (sample->up)
		complain(
			"the agent answers: %u pool%s", sample->status.pools_count, plural(sample->status.pools_count));
	else
		complain("%s; trying again at each request", sample->why);
}

static int once(struct sampler *sampler)
{
	const struct sample *sample = sampler_look(sampler);
	bool up = sample->up;

	metrics_print(stdout, sample);
	if (!up)
		complain("%s", sample->why);
	sampler_done(sampler);
	return up ? CODE_OK : CODE_NO_AGENT;
}

static int listen_or_complain(struct settings *settings)
{
	int fd = http_listen(settings->address, &settings->port);

	if (fd == -EADDRINUSE)
		complain("cannot listen on %s port %u: the port is in use; stop the other process, or choose another "
			 "--port",
			settings->address, settings->port);
	else if (fd == -EADDRNOTAVAIL)
		complain("cannot listen on '%s': it is not an address of this machine; choose another --listen",
			settings->address);
	else if (fd == -EINVAL)
		complain("cannot listen on '%s': it is not an address; set --listen to an address such as 127.0.0.1, "
			 "and the port with --port",
			settings->address);
	else if (fd < 0)
		complain("cannot listen on %s port %u: %s", settings->address, settings->port, strerror(-fd));
	return fd;
}

static int serve(struct settings *settings, struct sampler *sampler)
{
	static const struct peer_limits limits = HTTP_LIMITS;
	struct live live = {.sampler = sampler};
	const struct http_route routes[] = {
		{"/", live_page, NULL},
		{"/api/live", live_stream, &live},
		{"/api/page", live_detail, &live},
		{"/metrics", answer_metrics, sampler},
		{"/health", answer_health, NULL},
		{"/ready", answer_ready, sampler},
	};
	int socket = listen_or_complain(settings), signal_number;
	struct http *http;
	sigset_t ending;

	if (socket < 0)
		return CODE_FAILED;
	/* Block the signals in all threads, so that only the wait below receives them. */
	sigemptyset(&ending);
	sigaddset(&ending, SIGINT);
	sigaddset(&ending, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &ending, NULL);
	signal(SIGPIPE, SIG_IGN);
	live.notices = notices_start(settings->directory, settings->timeout_ms);
	if (!live.notices || http_start(socket, routes, sizeof(routes) / sizeof(*routes), &limits, &http)) {
		complain("cannot start the server: not enough memory or threads");
		notices_stop(live.notices);
		return CODE_FAILED;
	}
	complain("serving http://%s:%u/ and /metrics for the agent in '%s'", settings->address, settings->port,
		settings->directory);
	sigwait(&ending, &signal_number);
	http_stop(http);
	notices_stop(live.notices);
	return CODE_OK;
}

static int run(const struct command *command)
{
	struct settings settings = {command->directory, "127.0.0.1", PORT, TIMEOUT_MS};
	bool is_once = command->values[OPTION_ONCE] != NULL;
	struct sampler *sampler;
	uint64_t port;
	int code;

	if (command->values[OPTION_METRICS]) {
		metrics_document(stdout);
		return CODE_OK;
	}
	if (!command_number(command, OPTION_PORT, 0, UINT16_MAX, PORT, &port) ||
		!command_seconds(command, OPTION_TIMEOUT, 10, TIMEOUT_MOST_MS, TIMEOUT_MS, &settings.timeout_ms))
		return CODE_USAGE;
	settings.port = (uint16_t)port;
	if (command->values[OPTION_LISTEN])
		settings.address = command->values[OPTION_LISTEN];
	sampler = sampler_create(settings.directory, settings.timeout_ms, is_once ? NULL : report_change);
	if (!sampler) {
		complain("out of memory");
		return CODE_FAILED;
	}
	code = is_once ? once(sampler) : serve(&settings, sampler);
	sampler_destroy(sampler);
	return code;
}

int main(int argc, char **argv)
{
	static const struct program exporter = {
		.name = "gpool-exporter",
		.usage = "[OPTION]...",
		.summary = "Serves the metrics of gpoold's pools at http://127.0.0.1:9743/metrics, in the text format "
			   "of Prometheus, and a live page at the path /. /health reports that this process is "
			   "running, /ready whether the agent answers. The exporter attaches as an observer, so "
			   "access.observers of gpoold.conf must include its user.",
		.options = options,
		.codes = codes,
	};

	return command_run(&exporter, argc, argv, run);
}
