#include "agent/config_kept.h"

#include "agent/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int config_to_memfd(const struct config *config)
{
	int error, fd = memfd_create("gpool-config", MFD_CLOEXEC);

	if (fd < 0)
		return -errno;
	error = fchmod(fd, 0600) < 0 ? -errno : config_print(config, CONFIG_PRINT_CURRENT, fd);
	if (!error)
		return fd;
	close(fd);
	return error;
}

void config_keep(struct agent *agent)
{
	struct held item = { .kind = KEEP_CONFIG, .fd_count = 1 };

	item.fds[0] = config_to_memfd(&agent->config);
	if (item.fds[0] < 0) {
		log_warning("cannot keep the configuration: %s; a restarted agent goes by the one before", strerror(-item.fds[0]));
		return;
	}
	agent_hold(agent, &item);
	close(item.fds[0]);
}

int config_kept(const struct module_start *start, struct config *config, struct config_error *error)
{
	char path[64];
	int status;

	for (uint32_t i = 0; i < start->held_count; i++) {
		if (start->held[i].kind != KEEP_CONFIG)
			continue;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", start->held[i].fds[0]);
		status = config_load(path, config, error);
		return status ? status : config_finish(config, error);
	}
	return -ENOENT;
}
