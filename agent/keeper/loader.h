/*
 * loader.h - the file with the code of agent, front and mover: where it is, whether it fits, and loading it in a child.
 *
 * The keeper itself never loads it. It keeps the file open instead, so that a child that is started again runs the same
 * code although the path may mean another file by then; only an upgrade changes that. (A file that is written over in
 * place is another matter: the processes that run it would see the change. Whoever installs one renames it to its
 * place.)
 */
#ifndef GPOOL_AGENT_KEEPER_LOADER_H
#define GPOOL_AGENT_KEEPER_LOADER_H

#include "agent/keeper/child.h"
#include "agent/base/module.h"

#include <limits.h>

/* What a child has found out by loading it. */
struct loader_facts {
	int32_t error; /* 0, or why it could not be loaded; then the rest is zero, and text says more */
	uint32_t abi, layout_version;
	uint32_t interface_sum, layout_sum; /* 0: the module does not describe its layout */
	/* enum layout_rule of the first difference from this program's layout; 0: there is none */
	uint32_t differs;
	char difference[LAYOUT_NAME_BYTES];
	uint32_t has_mover;
	char version[32];
	char text[160];
};

struct loader {
	char path[PATH_MAX];
	int fd; /* -1: none */
	struct loader_facts facts;
};

/* A child that looks at a file. */
struct probe {
	pid_t pid;  /* 0: none */
	int answer; /* readable when it has said what it found, or has died */
	uint64_t end_ms;
	struct loader loader; /* what it looks at */
};

/*
 * loader_find() - where the module is: `given`, else beside the running program, else where it was to be installed. The
 * path may not exist: the probe says so.
 */
void loader_find(const char *given, char path[PATH_MAX]);

/* probe_start() - open the file and have a child look at it. 0, or negative errno with the reason in text. */
int probe_start(struct probe *probe, const char *path, const struct child_shed *shed, char *text, size_t text_bytes);
/*
 * probe_finish() - what came of it: 0, then the loader is the caller's, or negative errno: -EPROTO (another layout or
 * interface), -ENOEXEC (no module), -ETIMEDOUT. Text says in either case what was found, and the way out. Waits until
 * end_ms, so that who calls it when `answer` is readable does not wait.
 */
int probe_finish(struct probe *probe, struct loader *loader, char *text, size_t text_bytes);
void probe_cancel(struct probe *probe);

/* loader_load() - in a child: the module, or NULL, which is logged. */
const struct module *loader_load(const struct loader *loader);
void loader_close(struct loader *loader);

#endif
