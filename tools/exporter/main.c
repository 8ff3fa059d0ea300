/*
 * gpool-exporter - metrics of gpoold's pools for Prometheus; see gpool-exporter(1).
 *
 *   main     options, paths, start and end      sampler   asks the agent, as an observer
 *   http     serves paths                       metrics   a sample as text, from the table metrics.def
 */
#include "tools/exporter/http.h"
#include "tools/exporter/live.h"
#include "tools/exporter/metrics.h"
#include "tools/exporter/sampler.h"
#include "tools/lib/option_help.h"
#include "tools/lib/output_end.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef GPOOL_VERSION
#define GPOOL_VERSION "unknown"
#endif

enum { STATUS_OK = 0, STATUS_FAILED = 1, STATUS_USAGE = 2, STATUS_NO_AGENT = 3 };
enum { PORT = 9743, TIMEOUT_MS = 2000, TIMEOUT_MOST_MS = 600000 };

struct settings {
	const char *directory, *address;
	uint16_t port;
	int timeout_ms;
	bool once;
};

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	flockfile(stderr);
	fputs("gpool-exporter: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	funlockfile(stderr);
	va_end(arguments);
}

/* ---- options ---- */

enum option_id { OPT_DIR, OPT_LISTEN, OPT_PORT, OPT_TIMEOUT, OPT_ONCE, OPT_METRICS, OPT_HELP, OPT_VERSION, OPTIONS };

static const struct option_text {
	char letter;
	const char *name, *argument, *help;
} options[OPTIONS] = {
	[OPT_DIR] = {'d', "dir", "FOLDER",
		"of the agent's sockets. The default is $GPOOL_DIR, and /run/gpool without it."},
	[OPT_LISTEN] = {'l', "listen", "ADDRESS",
		"where to serve. The default is 127.0.0.1: this machine alone. Neither TLS nor passwords: to be "
		"reached from elsewhere, better put a proxy in front of it."},
	[OPT_PORT] = {'p', "port", "NUMBER", "of that address; 0 means any that is free. The default is 9743."},
	[OPT_TIMEOUT] = {'t', "timeout", "SECONDS",
		"longest wait for an answer of the agent, 0.01 to 600. The default is 2."},
	[OPT_ONCE] = {0, "once", NULL, "print the metrics and end; exit status 3 where the agent does not answer."},
	[OPT_METRICS] = {0, "metrics", NULL, "print what there is to read, as Markdown."},
	[OPT_HELP] = {'h', "help", NULL, "this text."},
	[OPT_VERSION] = {'V', "version", NULL, "the version."},
};

static void help_print(void)
{
	puts("Usage: gpool-exporter [OPTION]...\n\n"
	     "Serves metrics of gpoold's pools at http://127.0.0.1:9743/metrics, in the text format of Prometheus.\n"
	     "/health says that this process lives, /ready that the agent answers. It attaches as an observer:\n"
	     "its user needs no more than access.observers.\n");
	for (int i = 0; i < OPTIONS; i++)
		help_option(options[i].letter, options[i].name, options[i].argument, options[i].help, 26);
}

static int wrong(enum option_id id, const char *value, const char *wanted)
{
	say("--%s '%s': %s; see --help", options[id].name, value, wanted);
	return -EINVAL;
}

static int port_read(const char *text, uint16_t *port)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*text < '0' || *text > '9' || *end || value > UINT16_MAX)
		return wrong(OPT_PORT, text, "a number from 0 to 65535 is needed");
	*port = (uint16_t)value;
	return 0;
}

static int timeout_read(const char *text, int *timeout_ms)
{
	char *end;
	double value = strtod(text, &end) * 1000;

	if (end == text || *end || !(value >= 10 && value <= TIMEOUT_MOST_MS))
		return wrong(OPT_TIMEOUT, text, "seconds from 0.01 to 600 are needed");
	*timeout_ms = (int)value;
	return 0;
}

static int option_take(struct settings *settings, enum option_id id, const char *value)
{
	switch (id) {
	case OPT_DIR: settings->directory = value; return 0;
	case OPT_LISTEN: settings->address = value; return 0;
	case OPT_PORT: return port_read(value, &settings->port);
	case OPT_TIMEOUT: return timeout_read(value, &settings->timeout_ms);
	case OPT_ONCE: settings->once = true; return 0;
	case OPT_METRICS: metrics_document(stdout); exit(output_end("gpool-exporter", STATUS_OK));
	case OPT_HELP: help_print(); exit(output_end("gpool-exporter", STATUS_OK));
	case OPT_VERSION: puts("gpool-exporter " GPOOL_VERSION); exit(output_end("gpool-exporter", STATUS_OK));
	case OPTIONS: break;
	}
	return -EINVAL;
}

static enum option_id option_of(int letter)
{
	int id = 0;

	while (id < OPTIONS && options[id].letter != letter)
		id++;
	return (enum option_id)id;
}

static int options_read(struct settings *settings, int argc, char **argv)
{
	struct option table[OPTIONS + 1] = {{0}};
	int found;

	for (int i = 0; i < OPTIONS; i++)
		table[i] = (struct option){
			options[i].name, options[i].argument ? required_argument : no_argument, NULL, 256 + i};
	while ((found = getopt_long(argc, argv, "d:l:p:t:hV", table, NULL)) >= 0)
		if (found == '?' ||
			option_take(settings, found >= 256 ? (enum option_id)(found - 256) : option_of(found), optarg))
			return -EINVAL;
	if (optind == argc)
		return 0;
	say("what is '%s'? See --help", argv[optind]);
	return -EINVAL;
}

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

static void tell_change(const struct sample *sample)
{
	if (sample->up)
		say("the agent answers: %u pool%s", sample->status.pools_count,
			sample->status.pools_count == 1 ? "" : "s");
	else
		say("%s; asked again at each request", sample->why);
}

static int once(struct sampler *sampler)
{
	const struct sample *sample = sampler_look(sampler);
	bool up = sample->up;

	metrics_print(stdout, sample);
	if (!up)
		say("%s", sample->why);
	sampler_done(sampler);
	if (fflush(stdout)) {
		say("cannot write the metrics: %s", strerror(errno));
		return STATUS_FAILED;
	}
	return up ? STATUS_OK : STATUS_NO_AGENT;
}

static int listen_or_say(struct settings *settings)
{
	int fd = http_listen(settings->address, &settings->port);

	if (fd == -EADDRINUSE)
		say("cannot listen at %s port %u: another process does; stop it, or choose another --port",
			settings->address, settings->port);
	else if (fd == -EADDRNOTAVAIL)
		say("cannot listen at '%s': no address of this machine; choose another --listen", settings->address);
	else if (fd < 0)
		say("cannot listen at %s port %u: %s", settings->address, settings->port, strerror(-fd));
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
	int socket = listen_or_say(settings), signal_number;
	struct http *http;
	sigset_t ending;

	if (socket < 0)
		return STATUS_FAILED;
	/* In all threads, so that the wait below gets them. */
	sigemptyset(&ending);
	sigaddset(&ending, SIGINT);
	sigaddset(&ending, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &ending, NULL);
	signal(SIGPIPE, SIG_IGN);
	live.notices = notices_start(settings->directory, settings->timeout_ms);
	if (!live.notices || http_start(socket, routes, sizeof(routes) / sizeof(*routes), &limits, &http)) {
		say("cannot start the server: out of memory or threads");
		notices_stop(live.notices);
		return STATUS_FAILED;
	}
	say("serves http://%s:%u/ and /metrics of the agent in '%s'", settings->address, settings->port,
		settings->directory);
	sigwait(&ending, &signal_number);
	http_stop(http);
	notices_stop(live.notices);
	return STATUS_OK;
}

int main(int argc, char **argv)
{
	struct settings settings = {getenv("GPOOL_DIR"), "127.0.0.1", PORT, TIMEOUT_MS, false};
	struct sampler *sampler;
	int status;

	if (!settings.directory || !settings.directory[0])
		settings.directory = "/run/gpool";
	if (options_read(&settings, argc, argv))
		return STATUS_USAGE;
	sampler = sampler_create(settings.directory, settings.timeout_ms, settings.once ? NULL : tell_change);
	if (!sampler) {
		say("out of memory");
		return STATUS_FAILED;
	}
	status = settings.once ? once(sampler) : serve(&settings, sampler);
	sampler_destroy(sampler);
	return status;
}
