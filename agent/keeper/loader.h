/*
 * loader.h - find, check and load the module, the file with the code of agent, front and mover.
 *
 * The keeper does not load the module itself. It keeps the file open, so that a restarted child runs the same code even
 * if the path now refers to another file. Only an upgrade changes the code. To install a new module, rename it to the
 * path: running processes would see the changes of a file that is overwritten in place.
 */
#ifndef GPOOL_AGENT_KEEPER_LOADER_H
#define GPOOL_AGENT_KEEPER_LOADER_H

#include "agent/keeper/child.h"
#include "agent/base/module.h"

#include <limits.h>

/* The facts that a child has determined by loading the module. */
struct loader_facts {
	int32_t error; /* 0, or the error of the load; `text` then has the cause, and all other fields are zero */
	uint32_t abi, layout_version;
	uint32_t interface_sum, layout_sum; /* 0: the module does not describe its layout */
	/* rule (enum layout_rule) of the first difference from this program's layout; 0: no difference */
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

/* A child that loads a module to check it. */
struct probe {
	pid_t pid;  /* 0: none */
	int answer; /* readable when the child has sent its result or has died */
	uint64_t end_ms;
	struct loader loader; /* the module that is being checked */
};

/*
 * loader_find() - determine the path of the module: `given`, otherwise the file in the directory of the running
 * program, otherwise the installed one. The file need not exist: probe_start() and probe_finish() report that.
 */
void loader_find(const char *given, char path[PATH_MAX]);

/*
 * probe_start() - open the file and start a child that checks it. Return: 0, or a negative errno with the reason in
 * text.
 */
int probe_start(struct probe *probe, const char *path, const struct child_shed *shed, char *text, size_t text_bytes);
/*
 * probe_finish() - wait for the result until end_ms. Does not wait if `answer` is readable.
 *
 * Return: 0 (the caller owns the loader), -EPROTO (another layout or interface), -ENOEXEC (not a module) or -ETIMEDOUT.
 * In all cases, text contains the result, and for an error also the remedy.
 */
int probe_finish(struct probe *probe, struct loader *loader, char *text, size_t text_bytes);
void probe_cancel(struct probe *probe);

/* loader_load() - load the module in a child. Return: NULL after an error, which was logged. */
const struct module *loader_load(const struct loader *loader);
void loader_close(struct loader *loader);

#endif
