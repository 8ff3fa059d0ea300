/*
 * loader.h - find, check and load the module: the file with the code of agent, front and mover.
 *
 * The keeper never loads the module itself. It keeps the file open, so that a restarted child runs the same code even
 * if the path now names another file; only an upgrade changes the code. A file must therefore be replaced by rename:
 * running processes would see changes of a file that is overwritten in place.
 */
#ifndef GPOOL_AGENT_KEEPER_LOADER_H
#define GPOOL_AGENT_KEEPER_LOADER_H

#include "agent/keeper/child.h"
#include "agent/base/module.h"

#include <limits.h>

/* What a child found out by loading the module. */
struct loader_facts {
	int32_t error; /* 0, or why it could not be loaded; then the other fields are zero, and text has details */
	uint32_t abi, layout_version;
	uint32_t interface_sum, layout_sum; /* 0: the module does not describe its layout */
	/* enum layout_rule of the first difference from this program's layout; 0: no difference */
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

/* A child that loads a module in order to check it. */
struct probe {
	pid_t pid;  /* 0: none */
	int answer; /* readable when the child has sent its result, or has died */
	uint64_t end_ms;
	struct loader loader; /* the module being checked */
};

/*
 * loader_find() - return the path of the module: `given`, else next to the running program, else the installed one. The
 * file may not exist; the probe reports that.
 */
void loader_find(const char *given, char path[PATH_MAX]);

/* probe_start() - open the file and start a child that checks it. 0, or negative errno with the reason in text. */
int probe_start(struct probe *probe, const char *path, const struct child_shed *shed, char *text, size_t text_bytes);
/*
 * probe_finish() - wait for the result, at most until end_ms; no wait if `answer` is readable.
 *
 * Return: 0, and the caller owns the loader; -EPROTO (another layout or interface), -ENOEXEC (not a module) or
 * -ETIMEDOUT. In all cases text has the result, and for an error the remedy.
 */
int probe_finish(struct probe *probe, struct loader *loader, char *text, size_t text_bytes);
void probe_cancel(struct probe *probe);

/* loader_load() - load the module in a child. NULL: an error, logged. */
const struct module *loader_load(const struct loader *loader);
void loader_close(struct loader *loader);

#endif
