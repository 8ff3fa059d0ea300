/*
 * main.c - the command line of gpoold. The process becomes the keeper.
 */
#include "agent/config/config.h"
#include "agent/keeper/keeper.h"
#include "agent/keeper/machine.h"
#include "agent/config/recipe.h"
#include "agent/base/layout.h"
#include "agent/base/module.h"
#include "shm/standard_files.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_FILE "/etc/gpool/gpoold.conf"

static const char usage[] =
	"usage: gpoold [options]\n"
	"\n"
	"Own the GPU memory of this machine, and lend it in pages to the processes that share it.\n"
	"\n"
	"  -c, --config FILE       read the configuration from FILE (default " DEFAULT_FILE ")\n"
	"  -d, --dir DIR           create the sockets in DIR; overrides runtime_dir\n"
	"  -p, --pool KEY=VALUE,.. add a pool, such as name=gpu0,backend=host,size=2GiB; may be repeated;\n"
	"                          the default configuration file is then not read\n"
	"  -s, --set KEY=VALUE     set a key, such as eviction.start=85; may be repeated\n"
	"      --module FILE       load the code of the agent, the front and the movers from FILE (default:\n"
	"                          gpoold-agent.so next to this program or, if it does not exist, the installed one)\n"
	"      --check-config[=file]\n"
	"                          check the configuration and exit; with =file, do not check whether it can serve on\n"
	"                          this machine\n"
	"      --print-config      print each key with its meaning, range and default, and exit\n"
	"  -f, --foreground        run in the foreground, as gpoold always does\n"
	"  -h, --help              print this help and exit\n"
	"      --version           print the version and the layouts on which upgrades depend, and exit\n"
	"\n"
	"gpoold.conf(5) describes the keys. SIGHUP reloads the configuration. SIGTERM ends all sessions, frees the\n"
	"memory (unless keep_over_restart is set) and removes the sockets.\n"
	"Exit status: 0 stopped by a signal, 1 the start failed, 2 invalid options or configuration.\n";

enum { OPTION_CHECK = 256, OPTION_PRINT, OPTION_VERSION, OPTION_MODULE };

static const struct option options[] = {
	{"config", required_argument, NULL, 'c'},
	{"dir", required_argument, NULL, 'd'},
	{"pool", required_argument, NULL, 'p'},
	{"set", required_argument, NULL, 's'},
	{"foreground", no_argument, NULL, 'f'},
	{"module", required_argument, NULL, OPTION_MODULE},
	{"check-config", optional_argument, NULL, OPTION_CHECK},
	{"print-config", no_argument, NULL, OPTION_PRINT},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, OPTION_VERSION},
	{NULL, 0, NULL, 0},
};

/* Flush standard output. Return the exit status: 1 if output was lost. */
static int printed(void)
{
	errno = 0;
	if (!fflush(stdout) && !ferror(stdout))
		return 0;
	fprintf(stderr, "gpoold: cannot write to standard output: %s\n", strerror(errno ? errno : EIO));
	return 1;
}

static void version_print(void)
{
	char layout[LAYOUT_TEXT_BYTES], interface[LAYOUT_TEXT_BYTES];

	printf("gpoold %s\nlayout %s, interface %s\n", GPOOL_VERSION,
		layout_text(POOL_LAYOUT_VERSION, layout_sum(&layout_own, LAYOUT_SHARED), layout),
		layout_text(MODULE_ABI, layout_sum(&layout_own, LAYOUT_INTERFACE), interface));
}

static int too_many(const char *option, int limit)
{
	fprintf(stderr, "gpoold: too many options %s; the limit is %d\n", option, limit);
	return 2;
}

int main(int argc, char **argv)
{
	/* The agent reads the sources again at a reload. */
	static struct recipe recipe;
	static struct config config;
	struct config_error error;
	const char *module = NULL;
	bool check = false, check_machine = true, print = false;
	int option, code;

	standard_files_open();
	while ((option = getopt_long(argc, argv, "c:d:p:s:fh", options, NULL)) != -1) {
		switch (option) {
		case 'c': recipe.file = optarg; break;
		case 'd': recipe.directory = optarg; break;
		case 'p':
			if (recipe.pool_count == CONFIG_POOLS_MAX)
				return too_many("--pool", CONFIG_POOLS_MAX);
			recipe.pools[recipe.pool_count++] = optarg;
			break;
		case 's':
			if (recipe.set_count == RECIPE_ITEMS_MAX)
				return too_many("--set", RECIPE_ITEMS_MAX);
			recipe.sets[recipe.set_count++] = optarg;
			break;
		case 'f': break;
		case OPTION_MODULE: module = optarg; break;
		case OPTION_CHECK:
			if (optarg && strcmp(optarg, "file")) {
				fprintf(stderr,
					"gpoold: --check-config=%s: the only permitted value is 'file'; --config FILE "
					"selects the file to check\n",
					optarg);
				return 2;
			}
			check = true;
			check_machine = !optarg;
			break;
		case OPTION_PRINT: print = true; break;
		case OPTION_VERSION: version_print(); return printed();
		case 'h': fputs(usage, stdout); return printed();
		default: fputs("gpoold: see gpoold --help\n", stderr); return 2;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "gpoold: unexpected argument '%s'; see gpoold --help\n", argv[optind]);
		return 2;
	}
	if (print) {
		config_defaults(&config);
		code = config_print(&config, CONFIG_PRINT_EXAMPLE, STDOUT_FILENO);
		if (code)
			fprintf(stderr, "gpoold: cannot write to standard output: %s\n", strerror(-code));
		return code ? 1 : 0;
	}
	if (!recipe.file && !recipe.pool_count)
		recipe.file = DEFAULT_FILE;
	/* The service manager passes the memory of a previous gpoold, which must not be lost because of a directory. */
	if (recipe_load(&recipe, &config, &error) ||
		(check && check_machine && keeper_check(&config, module, &error)) ||
		(!check && !getenv("LISTEN_FDS") && machine_check(&config, &error))) {
		fprintf(stderr, "gpoold: %s\n", error.text);
		return 2;
	}
	if (check) {
		puts("the configuration is valid");
		return printed();
	}
	return keeper_run(&recipe, &config, module);
}
