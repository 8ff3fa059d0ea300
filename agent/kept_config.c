#include "agent/kept_config.h"

#include "agent/config_value.h"
#include "agent/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXT_MAX = 1 << 20 }; /* far above the longest configuration that there can be */

void kept_config_hold(struct agent *agent)
{
	int fd = memfd_create("gpool-config", MFD_CLOEXEC);
	int error = fd < 0 ? -errno : config_print(&agent->config, CONFIG_PRINT_CURRENT, fd);

	if (!error)
		error = agent_hold(agent, &(struct held){ .kind = KEEP_CONFIG, .fd_count = 1, .fds = { fd } });
	if (error)
		log_warning("the configuration is not kept: %s; an agent that is started again will read the files", strerror(-error));
	if (fd >= 0)
		close(fd);
}

static int text_load(int fd, struct config *config, struct config_error *error)
{
	struct stat stat;
	char *text;
	int status;

	if (fstat(fd, &stat) < 0 || stat.st_size > TEXT_MAX)
		return -EBADMSG;
	text = malloc((size_t)stat.st_size + 1);
	if (!text)
		return -ENOMEM;
	if (pread(fd, text, (size_t)stat.st_size, 0) != stat.st_size) {
		free(text);
		return -EIO;
	}
	text[stat.st_size] = '\0';
	config_defaults(config);
	status = config_load_text("kept configuration", text, (size_t)stat.st_size, config, error);
	free(text);
	return status ? status : config_finish(config, error);
}

int kept_config_load(const struct module_start *start, struct config *config, struct config_error *error)
{
	error->text[0] = '\0';
	for (uint32_t i = 0; i < start->held_count; i++) {
		const struct held *item = &start->held[i];
		int status;

		if (item->kind != KEEP_CONFIG || item->fd_count != 1)
			continue;
		status = text_load(item->fds[0], config, error);
		if (status && !error->text[0])
			snprintf(error->text, sizeof(error->text), "kept configuration: %s", strerror(-status));
		return status;
	}
	return -ENOENT;
}
