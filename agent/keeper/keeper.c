#include "agent/keeper/keeper.h"

#include "agent/agent.h"
#include "agent/config_kept.h"
#include "agent/front/front.h"
#include "agent/keeper/channel.h"
#include "agent/keeper/directory.h"
#include "agent/log.h"
#include "cuda/gpu.h"
#include "proto/attach.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	FRONT_YOUNG_MS = 1000,     /* a front that dies younger counts as a quick death */
	FRONT_QUICK_DEATHS = 20,   /* so many in a row are answered at once: somebody may be killing it, and it is needed */
	FRONT_BACKOFF_MS = 100,    /* further ones after this, doubled each time */
	FRONT_BACKOFF_DOUBLINGS = 4,
	STOP_PATIENCE_MS = 10000,  /* for a child that was asked to end */
};

struct held_item {
	struct held_item *next;
	struct held held;
};

struct keeper {
	const struct recipe *recipe;
	const struct config *config;
	struct directory directory;
	struct module_pool pools[MODULE_POOLS_MAX];
	struct module_start start;
	sigset_t mask, old_mask;
	int signals;
	int channel; /* towards the agent */
	pid_t agent, front;
	uint32_t front_restarts;
	uint64_t front_born_ms;
	uint32_t front_quick_deaths;
	uint64_t front_due_ms; /* 0: not waiting to restart it */
	struct held_item *held;
	struct held kept;
	bool stopping;
};

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t wall_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* ---- what a device is, asked in a child: this process never touches a driver ---- */

struct device_answer {
	int error, index;
	uint64_t granularity, memory_bytes;
	char uuid[64], text[256];
};

static void device_ask(const struct config_pool *config, struct device_answer *answer)
{
	const struct gpu_ops *ops = gpu_backend(config->backend);
	struct gpu_device_info info;
	struct gpu *gpu = NULL;

	memset(answer, 0, sizeof(*answer));
	answer->error = ops ? gpu_device_find(ops, config->device) : -EINVAL;
	if (answer->error >= 0) {
		answer->index = answer->error;
		answer->error = ops->device_info(answer->index, &info);
	}
	if (!answer->error)
		answer->error = gpu_open(ops, answer->index, GPU_OPEN_OWNER, &gpu);
	if (!answer->error) {
		answer->memory_bytes = info.memory_bytes;
		snprintf(answer->uuid, sizeof(answer->uuid), "%s", info.uuid);
		answer->error = gpu_granularity(gpu, &answer->granularity);
	}
	snprintf(answer->text, sizeof(answer->text), "%s", gpu_error_text());
	if (gpu)
		gpu_close(gpu);
}

static int device_ask_in_child(const struct keeper *keeper, const struct config_pool *config, struct device_answer *answer)
{
	int ends[2], status;
	ssize_t length;
	pid_t child;

	if (pipe(ends) < 0)
		return -errno;
	child = fork();
	if (child == 0) {
		/* A driver that hangs must neither outlive the keeper nor hold its lock. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(keeper->directory.lock_fd);
		sigprocmask(SIG_SETMASK, &keeper->old_mask, NULL);
		device_ask(config, answer);
		_exit(write(ends[1], answer, sizeof(*answer)) == (ssize_t)sizeof(*answer) ? 0 : 1);
	}
	close(ends[1]);
	length = child < 0 ? -1 : read(ends[0], answer, sizeof(*answer));
	close(ends[0]);
	if (child > 0)
		waitpid(child, &status, 0);
	return length == (ssize_t)sizeof(*answer) ? answer->error : -EIO;
}

/* ---- segments ---- */

static int pool_geometry_of(const struct config_pool *config, const struct device_answer *device, uint32_t index,
	struct pool_geometry *geometry, uint64_t *handle_bytes)
{
	uint64_t bytes = config->handle_bytes, pages, reserved;

	if (!bytes)
		bytes = config->page_bytes > device->granularity ? config->page_bytes : device->granularity;
	if (bytes % config->page_bytes || bytes % device->granularity) {
		log_error("pool '%s': handle_size %llu is no multiple of page_size %llu and the device's granularity %llu", config->name,
			(unsigned long long)bytes, (unsigned long long)config->page_bytes, (unsigned long long)device->granularity);
		return -EINVAL;
	}
	pages = config->size.unit == CONFIG_AMOUNT_PAGES ? config->size.value :
		config->size.unit == CONFIG_AMOUNT_BYTES ? config->size.value / config->page_bytes :
							   device->memory_bytes / 100 * config->size.value / config->page_bytes;
	pages -= pages % (bytes / config->page_bytes);
	if (pages < 1 || pages > POOL_PAGES_MAX) {
		log_error("pool '%s': size gives %llu pages; it takes 1 to %d", config->name, (unsigned long long)pages, POOL_PAGES_MAX);
		return -ERANGE;
	}
	reserved = config_amount_pages(&config->reserved, config->page_bytes, (uint32_t)pages);
	/* The default of 96 is meant for pools of thousands of pages; what somebody chose stands. */
	if (!config->reserved_given && reserved > pages / 16)
		reserved = pages / 16;
	if (reserved >= pages) {
		log_error("pool '%s': %llu of %llu pages reserved leaves none to lend; choose fewer", config->name,
			(unsigned long long)reserved, (unsigned long long)pages);
		return -ERANGE;
	}
	*geometry = (struct pool_geometry){
		.name = config->name,
		.backend = config->backend,
		.device = device->uuid,
		.index = index,
		.page_bytes = config->page_bytes,
		.page_count = (uint32_t)pages,
		.pages_per_handle = (uint32_t)(bytes / config->page_bytes),
		.reserved_pages = (uint32_t)reserved,
	};
	*handle_bytes = bytes;
	return 0;
}

static int pools_create(struct keeper *keeper)
{
	for (uint32_t i = 0; i < keeper->config->pool_count; i++) {
		const struct config_pool *config = &keeper->config->pools[i];
		struct module_pool *pool = &keeper->pools[i];
		struct pool_geometry geometry;
		struct device_answer device;
		uint32_t slots, memory_slots;
		int error = device_ask_in_child(keeper, config, &device);

		if (error) {
			log_error("pool '%s': no device '%s' on back end '%s': %s; poolctl doctor tells what there is", config->name,
				config->device, config->backend, device.text[0] ? device.text : strerror(-error));
			return error;
		}
		error = pool_geometry_of(config, &device, i, &geometry, &pool->handle_bytes);
		if (error)
			return error;
		error = pool_segment_create(&geometry, &pool->segment, &pool->segment_fd);
		if (error) {
			log_error("pool '%s': cannot make its segment: %s", config->name, strerror(-error));
			return error;
		}
		slots = config_spill_slots(config, &memory_slots);
		error = ledger_create(geometry.page_count, memory_slots, slots, &pool->ledger, &pool->ledger_fd);
		if (error) {
			log_error("pool '%s': cannot make its ledger: %s", config->name, strerror(-error));
			close(pool->segment_fd);
			pool_segment_close(&pool->segment);
			return error;
		}
		pool->device = device.index;
		keeper->start.pool_count = i + 1;
	}
	return 0;
}

/* ---- children ---- */

/* In the child: default signals, nothing of the keeper's but what it is given. */
static void child_begin(struct keeper *keeper, const char *name)
{
	prctl(PR_SET_NAME, name);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(keeper->signals);
	/* flock belongs to the open description: a child that kept it would hold the lock after the keeper's death */
	close(keeper->directory.lock_fd);
	for (struct held_item *item = keeper->held; item; item = item->next)
		for (uint32_t i = 0; i < item->held.fd_count; i++)
			close(item->held.fds[i]);
	sigprocmask(SIG_SETMASK, &keeper->old_mask, NULL);
}

static int agent_start(struct keeper *keeper)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	keeper->agent = fork();
	if (keeper->agent == 0) {
		child_begin(keeper, "gpoold-agent");
		close(pair[0]);
		keeper->start.keeper_fd = pair[1];
		_exit(agent_run(&keeper->start));
	}
	close(pair[1]);
	if (keeper->agent < 0) {
		int error = -errno;

		keeper->agent = 0; /* never -1: that would be everybody to kill() */
		close(pair[0]);
		return error;
	}
	keeper->channel = pair[0];
	return 0;
}

/* Each session may hold one for control and one for events. */
static uint32_t front_connections(const struct config *config)
{
	uint32_t wanted = 2 * config->limits.sessions * config->pool_count + 64;

	return wanted < FRONT_CONNECTIONS_MOST ? wanted : FRONT_CONNECTIONS_MOST;
}

static void front_child(struct keeper *keeper, int socket)
{
	const struct config *config = keeper->config;
	bool root = geteuid() == 0;
	struct front_options options = {
		.control_url = keeper->directory.control_url,
		.events_url = keeper->directory.events_url,
		.parent = getppid(),
		.uid = root ? config->front_uid : (uid_t)-1,
		.gid = root ? config->front_gid : (gid_t)-1,
		.message_bytes_max = config->limits.message_bytes,
		.requests_per_second = config->limits.requests_per_second,
		.connections_max = front_connections(config),
		.seccomp = true,
	};

	child_begin(keeper, "gpoold-front");
	log_setup("front", config->log_level, config->log_target == CONFIG_LOG_JOURNAL);
	/* The writable pool segments are the agent's alone: this process must not even have them mapped. */
	for (uint32_t i = 0; i < keeper->start.pool_count; i++) {
		pool_segment_close(&keeper->start.pools[i].segment);
		ledger_close(&keeper->start.pools[i].ledger);
	}
	if (dup2(socket, 3) < 0 || close_range(4, ~0U, 0) < 0)
		_exit(1);
	options.agent_socket = 3;
	_exit(front_run(&options) == 0 ? 0 : 1);
}

static int front_start(struct keeper *keeper)
{
	struct keep_message message = { .what = KEEP_FRONT, .pool = keeper->front_restarts };
	int pair[2], error;

	keeper->front_due_ms = 0;
	keeper->front_born_ms = now_ms();
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	keeper->front = fork();
	if (keeper->front == 0) {
		close(pair[0]);
		front_child(keeper, pair[1]);
	}
	close(pair[1]);
	if (keeper->front < 0) {
		error = -errno;
		keeper->front = 0;
		close(pair[0]);
		return error;
	}
	message.id = (uint32_t)keeper->front;
	error = attach_send(keeper->channel, &message, sizeof(message), &pair[0], 1);
	close(pair[0]);
	return error;
}

/* No process or no descriptor to be had now: another try soon. (A front that the agent does not hear of ends by itself.) */
static void front_start_or_later(struct keeper *keeper)
{
	int error = front_start(keeper);

	if (error && !keeper->front) {
		log_warning("cannot start the front: %s; trying again in %d ms", strerror(-error), FRONT_BACKOFF_MS);
		keeper->front_due_ms = now_ms() + FRONT_BACKOFF_MS;
	}
}

static void front_died(struct keeper *keeper, int status)
{
	uint64_t now = now_ms();

	keeper->front = 0;
	if (keeper->stopping)
		return;
	log_warning("front ended (%s %d); it is started again", WIFSIGNALED(status) ? "signal" : "status",
		WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	keeper->front_restarts++;
	keeper->front_quick_deaths = now - keeper->front_born_ms < FRONT_YOUNG_MS ? keeper->front_quick_deaths + 1 : 0;
	if (keeper->front_quick_deaths <= FRONT_QUICK_DEATHS) {
		front_start_or_later(keeper);
	} else {
		uint32_t doublings = keeper->front_quick_deaths - FRONT_QUICK_DEATHS - 1;

		if (doublings > FRONT_BACKOFF_DOUBLINGS)
			doublings = FRONT_BACKOFF_DOUBLINGS;
		keeper->front_due_ms = now + ((uint64_t)FRONT_BACKOFF_MS << doublings);
	}
}

/* ---- descriptors that outlive the agent ---- */

static void held_drop(struct keeper *keeper, const struct keep_message *message)
{
	for (struct held_item **at = &keeper->held; *at; at = &(*at)->next) {
		struct held_item *item = *at;

		if (item->held.kind != message->kind || item->held.pool != message->pool || item->held.id != message->id)
			continue;
		*at = item->next;
		for (uint32_t i = 0; i < item->held.fd_count; i++)
			close(item->held.fds[i]);
		free(item);
		return;
	}
}

static void held_add(struct keeper *keeper, const struct keep_message *message, const int *fds, size_t fd_count)
{
	struct held_item *item = malloc(sizeof(*item));

	held_drop(keeper, message);
	if (!item) {
		log_error("out of memory: the descriptor of %u/%u is not kept", message->pool, message->id);
		for (size_t i = 0; i < fd_count; i++)
			close(fds[i]);
		return;
	}
	item->next = keeper->held;
	item->held = (struct held){ message->kind, message->pool, message->id, (uint32_t)fd_count, { 0 }, message->value, message->value2 };
	memcpy(item->held.fds, fds, fd_count * sizeof(*fds));
	keeper->held = item;
}

/* False: the agent's end is closed. */
static bool channel_read(struct keeper *keeper)
{
	struct keep_message message;
	size_t fd_count = 0;
	int fds[KEEP_FDS_MAX];
	int length = attach_receive(keeper->channel, &message, sizeof(message), fds, KEEP_FDS_MAX, &fd_count, 0);

	if (length == sizeof(message) && message.what == KEEP_HOLD && fd_count) {
		held_add(keeper, &message, fds, fd_count);
		return true;
	}
	for (size_t i = 0; i < fd_count; i++)
		close(fds[i]);
	if (length != sizeof(message))
		return length != -EPIPE && length != -ECONNRESET;
	if (message.what == KEEP_DROP)
		held_drop(keeper, &message);
	else if (message.what == KEEP_READY)
		log_info("serving in '%s'", keeper->config->runtime_dir);
	return true;
}

/* ---- life ---- */

static void children_reap(struct keeper *keeper, int *exit_status)
{
	int status;
	pid_t child;

	while ((child = waitpid(-1, &status, WNOHANG)) > 0) {
		if (child == keeper->front) {
			front_died(keeper, status);
		} else if (child == keeper->agent) {
			keeper->agent = 0;
			if (keeper->stopping)
				continue;
			log_error("agent ended (%s %d); gpoold stops", WIFSIGNALED(status) ? "signal" : "status",
				WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
			keeper->stopping = true;
			*exit_status = 1;
		}
	}
}

static void signal_read(struct keeper *keeper, int *exit_status)
{
	struct signalfd_siginfo info;

	while (read(keeper->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		if (info.ssi_signo == SIGCHLD)
			children_reap(keeper, exit_status);
		else if (info.ssi_signo == SIGHUP && keeper->agent)
			kill(keeper->agent, SIGHUP);
		else if (info.ssi_signo != SIGHUP)
			keeper->stopping = true;
	}
}

static int keeper_loop(struct keeper *keeper)
{
	int exit_status = 0;

	while (!keeper->stopping) {
		struct pollfd look[] = { { keeper->signals, POLLIN, 0 }, { keeper->channel, POLLIN, 0 } };
		uint64_t now = now_ms();
		int timeout = keeper->front_due_ms ? (keeper->front_due_ms > now ? (int)(keeper->front_due_ms - now) : 0) : -1;

		if (poll(look, 2, timeout) < 0 && errno != EINTR)
			break;
		if (look[1].revents && !channel_read(keeper))
			poll(look, 1, -1); /* the agent ends: SIGCHLD follows */
		if (look[0].revents & POLLIN)
			signal_read(keeper, &exit_status);
		if (keeper->front_due_ms && now_ms() >= keeper->front_due_ms && !keeper->stopping)
			front_start_or_later(keeper);
	}
	return exit_status;
}

/* Ask, wait for the event of its death, and only then insist. */
static void child_stop(struct keeper *keeper, pid_t *child, const char *name)
{
	uint64_t end = now_ms() + STOP_PATIENCE_MS;

	if (*child <= 0)
		return;
	kill(*child, SIGTERM);
	while (*child) {
		struct pollfd look = { keeper->signals, POLLIN, 0 };
		struct signalfd_siginfo info;
		uint64_t now = now_ms();
		int status;

		if (waitpid(*child, &status, WNOHANG) == *child) {
			*child = 0;
			return;
		}
		if (now >= end) {
			log_warning("%s does not end within %d ms; it is killed", name, STOP_PATIENCE_MS);
			kill(*child, SIGKILL);
			waitpid(*child, &status, 0);
			*child = 0;
			return;
		}
		if (poll(&look, 1, (int)(end - now)) > 0 && read(keeper->signals, &info, sizeof(info)) < 0)
			continue;
	}
}

/* Descriptors: pages on CUDA take one each, sessions three. */
static void raise_descriptor_limit(void)
{
	struct rlimit limit;
	rlim_t wanted = 524288;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	if (limit.rlim_max < wanted && geteuid() == 0) {
		struct rlimit more = { wanted, wanted };

		if (setrlimit(RLIMIT_NOFILE, &more) == 0)
			return;
	}
	limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < 16384)
		log_warning("descriptor limit is %llu; raise RLIMIT_NOFILE for large pools or many sessions", (unsigned long long)limit.rlim_cur);
}

static int keeper_setup(struct keeper *keeper)
{
	int error;

	sigemptyset(&keeper->mask);
	sigaddset(&keeper->mask, SIGTERM);
	sigaddset(&keeper->mask, SIGINT);
	sigaddset(&keeper->mask, SIGHUP);
	sigaddset(&keeper->mask, SIGCHLD);
	sigprocmask(SIG_BLOCK, &keeper->mask, &keeper->old_mask);
	signal(SIGPIPE, SIG_IGN);
	keeper->signals = signalfd(-1, &keeper->mask, SFD_CLOEXEC | SFD_NONBLOCK);
	if (keeper->signals < 0)
		return -errno;
	error = pools_create(keeper);
	if (error)
		return error;
	/* After the death of a keeper its agent may still be ending, with the socket open. */
	for (uint64_t end = now_ms() + STOP_PATIENCE_MS;; poll(NULL, 0, 50)) {
		keeper->start.listen_fd = attach_listen(keeper->directory.attach, 0660);
		if (keeper->start.listen_fd != -EADDRINUSE || now_ms() >= end)
			break;
	}
	keeper->directory.listening = keeper->start.listen_fd >= 0;
	if (keeper->start.listen_fd < 0) {
		log_error("cannot listen at '%s': %s", keeper->directory.attach, strerror(-keeper->start.listen_fd));
		return keeper->start.listen_fd;
	}
	if (geteuid() == 0 && keeper->config->group[0] &&
		chown(keeper->directory.attach, (uid_t)-1, keeper->config->group_id) < 0)
		log_warning("cannot give '%s' to group '%s': %s", keeper->directory.attach, keeper->config->group, strerror(errno));
	keeper->start.recipe = keeper->recipe;
	keeper->start.size = sizeof(keeper->start);
	keeper->kept = (struct held){ .kind = KEEP_CONFIG, .fd_count = 1, .fds = { config_to_memfd(keeper->config) } };
	if (keeper->kept.fds[0] < 0)
		return keeper->kept.fds[0];
	keeper->start.held = &keeper->kept;
	keeper->start.held_count = 1;
	keeper->start.pools = keeper->pools;
	keeper->start.parent = getpid();
	/* Workers tell one run of the pool from another by it, so no two starts have the same number: microseconds, then restarts. */
	keeper->start.incarnation = wall_us() << 10;
	error = agent_start(keeper);
	return error ? error : front_start(keeper);
}

int keeper_run(const struct recipe *recipe, const struct config *config)
{
	struct keeper *keeper = calloc(1, sizeof(*keeper));
	int status = 1, error;

	if (!keeper)
		return 1;
	keeper->recipe = recipe;
	keeper->config = config;
	keeper->signals = keeper->channel = keeper->start.listen_fd = -1;
	log_setup("keeper", config->log_level, config->log_target == CONFIG_LOG_JOURNAL);
	raise_descriptor_limit();
	error = directory_open(&keeper->directory, config);
	if (error)
		goto free_keeper;
	error = keeper_setup(keeper);
	if (error)
		log_error("cannot start: %s", strerror(-error));
	else
		status = keeper_loop(keeper);
	keeper->stopping = true;
	/* The agent first: no new request is taken. Its end closes the front's channel. */
	child_stop(keeper, &keeper->agent, "agent");
	child_stop(keeper, &keeper->front, "front");
	while (keeper->held)
		held_drop(keeper, &(struct keep_message){ .kind = keeper->held->held.kind, .pool = keeper->held->held.pool,
			.id = keeper->held->held.id });
	for (uint32_t i = 0; i < keeper->start.pool_count; i++) {
		close(keeper->start.pools[i].segment_fd);
		pool_segment_close(&keeper->start.pools[i].segment);
		close(keeper->start.pools[i].ledger_fd);
		ledger_close(&keeper->start.pools[i].ledger);
	}
free_keeper:
	directory_close(&keeper->directory);
	free(keeper);
	return status;
}
