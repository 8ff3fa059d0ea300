#include "agent/keeper/loader.h"

#include "agent/base/log.h"
#include "shm/plural.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef GPOOL_MODULE_DIR /* set by the Makefile; this is for tools that only read the source */
#define GPOOL_MODULE_DIR "/usr/local/lib/gpool"
#endif
#define MODULE_FILE "gpoold-agent.so"
#define WAY_OUT "stop gpoold and start the gpoold of that version"
enum { PATH_SHOWN = 64 };  /* maximum length of a path in a verdict, whose text is limited to KEEP_TEXT_BYTES */
enum { PROBE_MS = 10000 }; /* loading takes milliseconds, but its start-up code may hang */

void loader_find(const char *given, char path[PATH_MAX])
{
	ssize_t length;
	char *slash;

	if (given) {
		snprintf(path, PATH_MAX, "%s", given);
		return;
	}
	length = readlink("/proc/self/exe", path, PATH_MAX - sizeof(MODULE_FILE) - 1);
	path[length > 0 ? length : 0] = '\0';
	slash = strrchr(path, '/');
	if (slash) {
		strcpy(slash + 1, MODULE_FILE);
		if (access(path, F_OK) == 0)
			return;
	}
	snprintf(path, PATH_MAX, "%s/%s", GPOOL_MODULE_DIR, MODULE_FILE);
}

void loader_close(struct loader *loader)
{
	if (loader->fd >= 0)
		close(loader->fd);
	loader->fd = -1;
}

/* Load the module in a child. Return NULL after an error, with the reason in *why. */
static const struct module *load(const struct loader *loader, const char **why)
{
	char name[64];
	void *library;

	*why = NULL;
	/*
	 * Use the pid rather than /proc/self: a debugger opens the same name, and its own descriptor with this number
	 * may be a pipe on which open() blocks.
	 */
	snprintf(name, sizeof(name), "/proc/%d/fd/%d", (int)getpid(), loader->fd);
	library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		const char *text = dlerror();

		/*
		 * Skip the file name in a text such as "/proc/17/fd/5: invalid ELF header", because messages print the
		 * path.
		 */
		*why = text && !strncmp(text, name, strlen(name)) && text[strlen(name)] == ':' ? text + strlen(name) + 2
											       : text;
		return NULL;
	}
	return dlsym(library, MODULE_SYMBOL);
}

const struct module *loader_load(const struct loader *loader)
{
	const char *why;
	const struct module *module = load(loader, &why);

	if (!module)
		log_error("cannot load '%s': %s", loader->path, why ? why : "it is not a module of gpoold");
	return module;
}

static void facts_of_layout(const struct module *module, struct loader_facts *facts)
{
	const struct layout *layout =
		module->size < offsetof(struct module, layout) + sizeof(module->layout) ? NULL : module->layout;

	if (!layout)
		return;
	facts->interface_sum = layout_sum(layout, LAYOUT_INTERFACE);
	facts->layout_sum = layout_sum(layout, LAYOUT_SHARED);
	facts->differs = layout_difference(&layout_own, layout, facts->difference);
}

static void facts_collect(const struct loader *loader, struct loader_facts *facts)
{
	const char *why;
	const struct module *module = load(loader, &why);

	memset(facts, 0, sizeof(*facts));
	if (!module) {
		facts->error = -ENOEXEC;
		snprintf(facts->text, sizeof(facts->text), "%s", why ? why : "it has no symbol '" MODULE_SYMBOL "'");
		return;
	}
	facts->abi = module->abi;
	if (module->size < offsetof(struct module, device) + sizeof(module->device)) {
		facts->error = -ENOEXEC;
		snprintf(facts->text, sizeof(facts->text), "its module table has only %u byte%s", module->size,
			plural(module->size));
		return;
	}
	facts->layout_version = module->layout_version;
	facts->has_mover = module->mover != NULL;
	snprintf(facts->version, sizeof(facts->version), "%s", module->version ? module->version : "");
	if (module->abi == MODULE_ABI && (!module->agent || !module->front || !module->device)) {
		facts->error = -ENOEXEC;
		snprintf(facts->text, sizeof(facts->text), "a function is missing in its module table");
		return;
	}
	/* The form of the table is known only for this interface version. */
	if (module->abi == MODULE_ABI)
		facts_of_layout(module, facts);
}

int probe_start(struct probe *probe, const char *path, const struct child_shed *shed, char *text, size_t text_bytes)
{
	struct stat status;
	int ends[2], error;

	memset(probe, 0, sizeof(*probe));
	probe->answer = -1;
	snprintf(probe->loader.path, sizeof(probe->loader.path), "%s", path);
	probe->loader.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	error = probe->loader.fd < 0 || fstat(probe->loader.fd, &status) < 0 ? -errno
		: S_ISREG(status.st_mode)                                    ? 0
									     : -ENOEXEC;
	if (error) {
		snprintf(text, text_bytes,
			"cannot open '%s': %s; install it there, or specify another file with --module", path,
			error == -ENOEXEC ? "not a regular file" : strerror(-error));
		goto close_file;
	}
	error = pipe2(ends, O_CLOEXEC) < 0 ? -errno : 0;
	if (error) {
		snprintf(text, text_bytes, "cannot check '%s': %s", path, strerror(-error));
		goto close_file;
	}
	probe->pid = child_fork(shed, "gpoold-probe");
	if (probe->pid == 0) {
		struct loader_facts facts;

		facts_collect(&probe->loader, &facts);
		_exit(write(ends[1], &facts, sizeof(facts)) == (ssize_t)sizeof(facts) ? 0 : 1);
	}
	close(ends[1]);
	probe->answer = ends[0];
	probe->end_ms = keeper_ms() + PROBE_MS;
	if (probe->pid > 0)
		return 0;
	error = probe->pid;
	probe->pid = 0;
	snprintf(text, text_bytes, "cannot check '%s': %s", path, strerror(-error));
	close(probe->answer);
	probe->answer = -1;
close_file:
	loader_close(&probe->loader);
	return error;
}

/* Return the end of a long path, so that a message of limited size has room for the reason. */
static const char *path_end(const char *path, char text[PATH_SHOWN])
{
	size_t length = strlen(path);

	if (length < PATH_SHOWN)
		return path;
	snprintf(text, PATH_SHOWN, "...%s", path + length - (PATH_SHOWN - 4));
	return text;
}

/* Refuse a module with another shared layout, in version or checksum. */
static int refuse_layout(const struct loader_facts *facts, const char *path, char *text, size_t text_bytes)
{
	char theirs[LAYOUT_TEXT_BYTES], ours[LAYOUT_TEXT_BYTES];
	bool named = facts->differs == LAYOUT_SHARED;

	snprintf(text, text_bytes, "'%s' has layout %s, but the running pools have %s%s%s%s; " WAY_OUT, path,
		layout_text(facts->layout_version, facts->layout_sum, theirs),
		layout_text(POOL_LAYOUT_VERSION, layout_sum(&layout_own, LAYOUT_SHARED), ours), named ? ": " : "",
		named ? facts->difference : "", named ? " differs" : "");
	return -EPROTO;
}

static int refuse_interface(const struct loader_facts *facts, const char *path, char *text, size_t text_bytes)
{
	char theirs[LAYOUT_TEXT_BYTES], ours[LAYOUT_TEXT_BYTES];

	/* Rules by which one side may have additional fields have no checksum. */
	if (facts->differs != LAYOUT_INTERFACE)
		snprintf(text, text_bytes, "'%s' has a different %s, which running processes use; " WAY_OUT, path,
			facts->difference);
	else
		snprintf(text, text_bytes, "'%s' has interface %s, but this gpoold has %s: %s differs; " WAY_OUT, path,
			layout_text(facts->abi, facts->interface_sum, theirs),
			layout_text(MODULE_ABI, layout_sum(&layout_own, LAYOUT_INTERFACE), ours), facts->difference);
	return -EPROTO;
}

static int verdict(const struct loader *loader, char *text, size_t text_bytes)
{
	const struct loader_facts *facts = &loader->facts;
	char shown[PATH_SHOWN], layout[LAYOUT_TEXT_BYTES];
	const char *path = path_end(loader->path, shown);

	if (facts->error) {
		snprintf(text, text_bytes, "cannot load '%s': %s; install the file that belongs to this gpoold", path,
			facts->text);
		return facts->error;
	}
	if (facts->abi != MODULE_ABI) {
		snprintf(text, text_bytes, "'%s' has interface %u, but this gpoold has %d; " WAY_OUT, path, facts->abi,
			MODULE_ABI);
		return -EPROTO;
	}
	if (facts->layout_version != POOL_LAYOUT_VERSION || !facts->layout_sum || facts->differs == LAYOUT_SHARED)
		return refuse_layout(facts, path, text, text_bytes);
	if (facts->differs)
		return refuse_interface(facts, path, text, text_bytes);
	snprintf(text, text_bytes, "version %s, layout %s, of '%s'", facts->version,
		layout_text(facts->layout_version, facts->layout_sum, layout), path);
	return 0;
}

/* Reap the child and return its wait status. `kill_it`: kill the child first. */
static int probe_reap(struct probe *probe, bool kill_it)
{
	int status = 0;

	if (kill_it)
		kill(probe->pid, SIGKILL);
	child_wait(probe->pid, &status, 0);
	close(probe->answer);
	probe->pid = 0;
	probe->answer = -1;
	return status;
}

int probe_finish(struct probe *probe, struct loader *loader, char *text, size_t text_bytes)
{
	struct pollfd look = {probe->answer, POLLIN, 0};
	struct loader_facts *facts = &probe->loader.facts;
	uint64_t now = keeper_ms();
	bool said = poll(&look, 1, probe->end_ms > now ? (int)(probe->end_ms - now) : 0) == 1;
	bool whole = said && read(probe->answer, facts, sizeof(*facts)) == (ssize_t)sizeof(*facts);
	/* The child closed the pipe without a result: it is dying, and its status is the reason. */
	int status = probe_reap(probe, !said || whole), error;

	if (whole) {
		facts->text[sizeof(facts->text) - 1] = '\0';
		facts->version[sizeof(facts->version) - 1] = '\0';
		facts->difference[sizeof(facts->difference) - 1] = '\0';
		error = verdict(&probe->loader, text, text_bytes);
	} else if (said) {
		error = -ENOEXEC;
		snprintf(text, text_bytes, "cannot load '%s': its initialization code ended with %s",
			probe->loader.path, child_end_text(status));
	} else {
		error = -ETIMEDOUT;
		snprintf(text, text_bytes, "cannot load '%s': its initialization code did not end within %d ms",
			probe->loader.path, PROBE_MS);
	}
	if (error)
		loader_close(&probe->loader);
	else
		*loader = probe->loader;
	return error;
}

void probe_cancel(struct probe *probe)
{
	if (!probe->pid)
		return;
	probe_reap(probe, true);
	loader_close(&probe->loader);
}
