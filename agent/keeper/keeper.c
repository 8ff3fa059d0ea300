#include "agent/keeper/keeper.h"

#include "agent/base/descriptors.h"
#include "agent/config/config_value.h"
#include "agent/config/kept_config.h"
#include "agent/keeper/machine.h"
#include "agent/keeper/notify.h"
#include "agent/keeper/pools.h"
#include "agent/keeper/state.h"
#include "agent/keeper/store.h"
#include "agent/base/log.h"
#include "proto/attach.h"
#include "shm/plural.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

enum { BARRIER_MS = 5000 }; /* longest wait until the service manager has received the descriptors */

static uint64_t wall_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* ---- memory kept by an earlier run ---- */

static void kept_forget(void)
{
	notify_send("FDSTOREREMOVE=1\nFDNAME=" STORE_NAME, -1);
}

static int kept_refuse(const char *text)
{
	log_error("cannot take over the memory kept by an earlier run: %s; restore the previous configuration, or free "
		  "the memory: stop the unit and run 'systemctl clean --what=fdstore' (systemd 254), or start gpoold "
		  "with keep_over_restart = \"no\"",
		text);
	return -EINVAL;
}

/* Open the store that the service manager passed, if any. */
static int kept_look(const struct keeper *keeper, struct store *store)
{
	char text[400];
	int fds[8], count = notify_listen_fds(STORE_NAME, fds, 8), error = 0;

	memset(store, 0, sizeof(*store));
	store->socket = store->items_fd = -1;
	if (count && !keeper->config->keep_over_restart) {
		log_warning("freeing the memory kept by an earlier run, since keep_over_restart is \"no\"");
		for (int i = 0; i < count; i++)
			close(fds[i]);
		kept_forget();
		return 0;
	}
	for (int i = 0; i < count; i++) {
		/*
		 * Use the first store with content: a run that could not remove its store at its end leaves an empty
		 * one.
		 */
		if (error || store->socket >= 0)
			close(fds[i]);
		else
			error = store_look(fds[i], store, text, sizeof(text));
	}
	return error ? kept_refuse(text) : 0;
}

/* ---- start ---- */

/* A pool before its resources are created. The geometry contains pointers into the device. */
struct plan {
	struct module_device device;
	struct pool_geometry geometry;
};

static int pool_start(struct keeper *keeper, uint32_t index, const struct plan *plan, struct store *store)
{
	const struct config_pool *config = &keeper->config->pools[index];
	char text[400];
	int error;

	if (store->socket < 0)
		return pool_make(config, &plan->geometry, &plan->device, &keeper->pools[index]);
	if (!store_fits(store, index, &plan->geometry, text, sizeof(text)))
		return kept_refuse(text);
	error = pool_make_from(&plan->geometry, &plan->device, &store->pools[index].segment,
		store->pools[index].ledger_fd, &keeper->pools[index]);
	if (!error)
		store->pools[index].ledger_fd = -1; /* now owned by the pool */
	return error;
}

static int pools_start(struct keeper *keeper, const struct plan *plans, struct store *store)
{
	if (store->socket >= 0 && store->head.pool_count != keeper->config->pool_count) {
		char text[100];

		snprintf(text, sizeof(text), "it has %u pool%s, but the configuration has %u", store->head.pool_count,
			plural(store->head.pool_count), keeper->config->pool_count);
		return kept_refuse(text);
	}
	for (uint32_t i = 0; i < keeper->config->pool_count; i++) {
		int error = pool_start(keeper, i, &plans[i], store);

		if (error)
			return error;
		keeper->start.pool_count = i + 1;
	}
	return 0;
}

/*
 * Take the items out of the store as the last step of the start. From then on the keeper holds them instead of the
 * service manager.
 */
static int kept_take(struct keeper *keeper, struct store *store)
{
	char text[400];
	int error;

	if (store->socket < 0)
		return 0;
	error = store_take(store, &keeper->held, text, sizeof(text));
	if (error == -EMFILE)
		return kept_refuse(text);
	kept_forget();
	if (error) {
		log_error("cannot take over the memory kept by an earlier run: %s", text);
		return error;
	}
	keeper->start.adopted = 1;
	if (keeper->start.incarnation <= store->head.incarnation)
		keeper->start.incarnation = store->head.incarnation + 1;
	log_info("took over the memory of an earlier run: %u pool%s, %u held item%s", store->head.pool_count,
		plural(store->head.pool_count), keeper->held.count, plural(keeper->held.count));
	return 0;
}

/*
 * Hold the configuration for the agent, which must use the same one as the keeper even if the files change. Each reload
 * replaces it.
 */
static int config_hold(struct keeper *keeper)
{
	struct held item = {.kind = KEEP_CONFIG, .fd_count = 1, .fds = {kept_config_write(keeper->config)}};
	int error = item.fds[0] < 0 ? item.fds[0] : 0;

	if (!error)
		error = held_add(&keeper->held, &item);
	if (!error)
		return 0;
	log_error("cannot store the configuration for restarted agents: %s", strerror(-error));
	held_close(&item);
	return error;
}

static int module_find(const char *given, const struct child_shed *shed, struct probe *probe, struct loader *loader,
	struct config_error *why)
{
	static char path[PATH_MAX];
	char text[PATH_MAX + 400];
	int error;

	loader_find(given, path);
	error = probe_start(probe, path, shed, text, sizeof(text));
	if (!error)
		error = probe_finish(probe, loader, text, sizeof(text));
	return error ? config_fail(why, error, "%s", text) : 0;
}

static int signals_setup(struct keeper *keeper)
{
	sigset_t mask;

	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGHUP);
	sigaddset(&mask, SIGCHLD);
	sigprocmask(SIG_BLOCK, &mask, &keeper->shed.mask);
	signal(SIGPIPE, SIG_IGN);
	keeper->shed.signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	return keeper->shed.signals < 0 ? -errno : 0;
}

static bool stop_requested(void)
{
	sigset_t pending;

	return sigpending(&pending) == 0 && (sigismember(&pending, SIGTERM) || sigismember(&pending, SIGINT));
}

/*
 * Listen at `path`. Wait while the address is in use: the agent of a dead keeper may still be ending with its socket
 * open.
 */
static int listen_await(const char *path)
{
	uint64_t end = keeper_ms() + STOP_PATIENCE_MS;
	int fd = attach_listen(path, 0660);

	if (fd == -EADDRINUSE)
		log_info("another process listens at '%s'; waiting up to %d s until it ends", path,
			STOP_PATIENCE_MS / 1000);
	while (fd == -EADDRINUSE && keeper_ms() < end) {
		if (stop_requested())
			return -EINTR;
		poll(NULL, 0, 50);
		fd = attach_listen(path, 0660);
	}
	return fd;
}

static int listen_start(struct keeper *keeper)
{
	keeper->start.listen_fd = listen_await(keeper->directory.attach);
	keeper->directory.listening = keeper->start.listen_fd >= 0;
	if (keeper->start.listen_fd == -ENOTSOCK)
		log_error(
			"cannot listen at '%s': it exists and is not a socket; remove it or choose another runtime_dir",
			keeper->directory.attach);
	else if (keeper->start.listen_fd < 0 && keeper->start.listen_fd != -EINTR)
		log_error("cannot listen at '%s': %s", keeper->directory.attach, strerror(-keeper->start.listen_fd));
	if (keeper->start.listen_fd < 0)
		return keeper->start.listen_fd;
	if (geteuid() == 0 && keeper->config->group[0] &&
		chown(keeper->directory.attach, (uid_t)-1, keeper->config->group_id) < 0)
		log_warning("cannot change the group of '%s' to '%s': %s", keeper->directory.attach,
			keeper->config->group, strerror(errno));
	return 0;
}

/* Return the number of descriptors for the memory of a pool: one if all memory is in one file, else one per handle. */
static uint64_t descriptors_of_memory(const struct config *config, uint32_t index, const struct plan *plan)
{
	const struct config_device unknown = {0};
	struct config_measure measure;
	struct config_error error;

	if (!strcmp(config->pools[index].backend, "host") && config_domains(config) == 1)
		return 1;
	if (plan)
		return plan->geometry.page_count / plan->geometry.pages_per_handle;
	if (config_pool_measure(config, &config->pools[index], &unknown, &measure, &error) || !measure.pages)
		return 1;
	return measure.pages / (measure.handle_bytes / config->pools[index].page_bytes);
}

/*
 * Refuse a descriptor limit that does not admit a single session. descriptors.c uses the same count to refuse sessions.
 * plans: NULL: the devices are not known yet. Then refuse only limits that no device makes sufficient, but with the
 * number that the configuration suggests.
 */
static int descriptors_check(const struct config *config, const struct plan *plans, struct config_error *error)
{
	uint64_t own = DESCRIPTORS_OWN + DESCRIPTORS_OF_SESSION + (uint64_t)config->pool_count * DESCRIPTORS_OF_POOL;
	uint64_t needed = own;
	struct rlimit limit;

	for (uint32_t i = 0; i < config->pool_count; i++)
		needed += descriptors_of_memory(config, i, plans ? &plans[i] : NULL);
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= (plans ? needed : own + config->pool_count))
		return 0;
	return config_fail(error, -EMFILE,
		"RLIMIT_NOFILE is %llu: these pools and one session need %llu descriptor%s, each further session %d; "
		"raise the limit (LimitNOFILE= of the unit) or choose a larger handle_size",
		(unsigned long long)limit.rlim_cur, (unsigned long long)needed, plural(needed), DESCRIPTORS_OF_SESSION);
}

/* Query the devices, or only those of the back end host, which call no driver. Return: 0, or -EINTR, or an error. */
static int pools_plan(const struct config *config, const struct loader *loader, const struct child_shed *shed,
	bool only_host, struct plan *plans, struct config_error *why)
{
	bool all = true;

	for (uint32_t i = 0; i < config->pool_count; i++) {
		bool asked = !only_host || !strcmp(config->pools[i].backend, "host");
		int error =
			asked ? pool_measure(config, i, loader, shed, &plans[i].device, &plans[i].geometry, why) : 0;

		if (error)
			return error;
		all &= asked;
	}
	return descriptors_check(config, all ? plans : NULL, why);
}

/* Log the text of an error, if it has one. Return: error. */
static int start_refused(int error, const struct config_error *why)
{
	if (error && why->text[0])
		log_error("%s", why->text);
	return error;
}

static int keeper_setup(struct keeper *keeper, const char *module)
{
	static struct plan plans[MODULE_POOLS_MAX];
	struct config_error why = {""};
	struct store store;
	int error;

	keeper->start.recipe = keeper->recipe;
	keeper->start.size = sizeof(keeper->start);
	keeper->start.pools = keeper->pools;
	keeper->start.parent = getpid();
	/*
	 * Workers distinguish the runs of a pool by the incarnation, so it differs at each start: time in microseconds,
	 * then the number of restarts.
	 */
	keeper->start.incarnation = wall_us() << 10;
	error = descriptors_check(keeper->config, NULL, &why);
	if (!error)
		error = module_find(module, &keeper->shed, &keeper->probe, &keeper->loader, &why);
	if (!error)
		error = kept_look(keeper, &store);
	if (error)
		return start_refused(error, &why);
	error = start_refused(pools_plan(keeper->config, &keeper->loader, &keeper->shed, false, plans, &why), &why);
	if (!error)
		error = pools_start(keeper, plans, &store);
	if (!error)
		error = listen_start(keeper);
	if (!error)
		error = kept_take(keeper, &store);
	if (!error)
		error = config_hold(keeper);
	store_close(&store);
	return error ? error : agent_start(keeper);
}

/*
 * Raise the limit of descriptors: a pool may need one per page, and each session needs four. Return: the limit if it
 * may be too low, otherwise 0.
 */
static unsigned long long raise_descriptor_limit(void)
{
	struct rlimit limit;
	rlim_t wanted = 524288;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return 0;
	if (limit.rlim_max < wanted && geteuid() == 0) {
		struct rlimit more = {wanted, wanted};

		if (setrlimit(RLIMIT_NOFILE, &more) == 0)
			return 0;
	}
	limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
	return setrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < 16384 ? limit.rlim_cur : 0;
}

int keeper_check(const struct config *config, const char *module, struct config_error *error)
{
	static struct plan plans[MODULE_POOLS_MAX];
	struct child_shed shed = {.signals = -1, .lock_fd = -1};
	struct loader loader = {.fd = -1};
	struct probe probe;
	int code = machine_check(config, error);

	raise_descriptor_limit();
	sigemptyset(&shed.mask);
	if (!code)
		code = directory_check(config, error);
	if (!code)
		code = descriptors_check(config, NULL, error);
	if (!code)
		code = module_find(module, &shed, &probe, &loader, error);
	if (!code)
		code = pools_plan(config, &loader, &shed, true, plans, error);
	loader_close(&loader);
	return code;
}

/* ---- main loop ---- */

static void signals_read(struct keeper *keeper)
{
	struct signalfd_siginfo info;
	bool reap = false;

	while (read(keeper->shed.signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		if (info.ssi_signo == SIGCHLD)
			reap = true;
		else if (info.ssi_signo == SIGHUP && keeper->agent.pid > 0)
			kill(keeper->agent.pid, SIGHUP);
		else if (info.ssi_signo != SIGHUP)
			keeper->stopping = true;
	}
	/* Reap children after all signals were read: if one of them requests a stop, no child is restarted. */
	if (reap)
		children_reap(keeper);
}

/*
 * Report to the service manager that this loop runs. Only its failure is a reason to restart all of gpoold, because the
 * keeper itself supervises the children.
 */
static int watchdog_wait_ms(struct keeper *keeper, int wait_ms)
{
	uint64_t now = keeper_ms();
	int left;

	if (!keeper->watchdog_ms)
		return wait_ms;
	if (now >= keeper->watchdog_due_ms) {
		notify_send("WATCHDOG=1", -1);
		keeper->watchdog_due_ms = now + (uint64_t)keeper->watchdog_ms;
	}
	left = (int)(keeper->watchdog_due_ms - now);
	return wait_ms < 0 || left < wait_ms ? left : wait_ms;
}

static void keeper_loop(struct keeper *keeper)
{
	keeper->watchdog_ms = notify_watchdog_ms();
	while (!keeper->stopping) {
		struct pollfd look[] = {
			{keeper->shed.signals, POLLIN, 0},
			{keeper->channel, POLLIN, 0},
			{keeper->probe.pid ? keeper->probe.answer : -1, POLLIN, 0},
		};

		if (poll(look, 3, watchdog_wait_ms(keeper, children_wait_ms(keeper))) < 0 && errno != EINTR)
			break;
		if (look[1].revents && channel_read(keeper) == -EPIPE) {
			/*
			 * The agent is ending, and SIGCHLD will follow. If it does not end, it is killed at the
			 * deadline, since it cannot work without a channel.
			 */
			close(keeper->channel);
			keeper->channel = -1;
			keeper->stop_deadline_ms = keeper_ms() + STOP_PATIENCE_MS;
		}
		if (keeper->probe.pid && (look[2].revents || keeper_ms() >= keeper->probe.end_ms))
			upgrade_go_on(keeper);
		if (look[0].revents & POLLIN)
			signals_read(keeper);
		if (!keeper->stopping)
			children_start_due(keeper);
	}
}

/* ---- end ---- */

/* Give all descriptors to the service manager for the next run. Otherwise the end of gpoold frees the memory. */
static void keep_for_next_run(const struct keeper *keeper)
{
	char text[400];
	int socket = store_write(&keeper->start, &keeper->held, text, sizeof(text)), error;

	if (socket < 0) {
		log_error("memory is not kept over the restart: %s", text);
		return;
	}
	/* FDPOLL=0: the other end of the socket is closed, for which the manager would otherwise discard the socket. */
	error = notify_send("FDSTORE=1\nFDPOLL=0\nFDNAME=" STORE_NAME, socket);
	if (!error)
		error = notify_barrier(BARRIER_MS);
	if (error)
		log_error("memory is not kept over the restart: the service manager did not accept it: %s; check "
			  "FileDescriptorStoreMax= of the unit",
			strerror(-error));
	else
		log_info("memory is kept for the next run: %u pool%s, %u held item%s", keeper->start.pool_count,
			plural(keeper->start.pool_count), keeper->held.count, plural(keeper->held.count));
	close(socket);
}

static void keeper_stop(struct keeper *keeper)
{
	/* Also store memory that was taken over but never served. */
	bool keep =
		keeper->config->keep_over_restart && notify_there() && (keeper->ever_ready || keeper->start.adopted);

	notify_send("STOPPING=1", -1);
	children_stop(keeper, keep);
	if (keep)
		keep_for_next_run(keeper);
	held_clear(&keeper->held);
	for (uint32_t i = 0; i < keeper->start.pool_count; i++)
		pool_unmake(&keeper->pools[i]);
	loader_close(&keeper->loader);
	loader_close(&keeper->before);
}

/*
 * Prevent other processes of the same user from opening /proc/PID/mem and the descriptors in /proc/PID/fd. All children
 * inherit this setting. The setting is not applied if gpoold runs as root: it would not restrict other processes of
 * root, and poolctl dump would lack a right in containers.
 */
static int memory_hide(const struct config *config)
{
	if (geteuid() == 0 || config->core_dumps || prctl(PR_SET_DUMPABLE, 0) == 0)
		return 0;
	return -errno;
}

int keeper_run(const struct recipe *recipe, const struct config *config, const char *module)
{
	struct keeper *keeper = calloc(1, sizeof(*keeper));
	unsigned long long low;
	int status = 1, error;

	if (!keeper)
		return 1;
	keeper->recipe = recipe;
	keeper->config = config;
	keeper->shed.signals = keeper->channel = keeper->start.listen_fd = keeper->start.keeper_fd = -1;
	keeper->directory.lock_fd = -1;
	keeper->loader.fd = keeper->before.fd = -1;
	log_setup("keeper", config->log_level, config->log_target == CONFIG_LOG_JOURNAL);
	low = raise_descriptor_limit();
	if (low)
		log_warning("descriptor limit is %llu; raise RLIMIT_NOFILE for large pools or many sessions", low);
	error = memory_hide(config);
	if (error) {
		log_error("cannot hide the memory of gpoold from other processes of its user: %s", strerror(-error));
		goto free_keeper;
	}
	/* From here on, a signal that requests a stop does not leave files behind. */
	error = signals_setup(keeper);
	if (error) {
		log_error("cannot receive signals: %s", strerror(-error));
		goto free_keeper;
	}
	error = directory_open(&keeper->directory, config);
	if (error)
		goto free_keeper;
	keeper->shed.lock_fd = keeper->directory.lock_fd;
	error = keeper_setup(keeper, module);
	if (error == -EINTR) {
		status = 0;
	} else if (error) {
		log_error("cannot start: %s", strerror(-error));
	} else {
		keeper_loop(keeper);
		status = keeper->exit_status;
	}
	keeper_stop(keeper);
free_keeper:
	directory_close(&keeper->directory);
	free(keeper);
	return status;
}
