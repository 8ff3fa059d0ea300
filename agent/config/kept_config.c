#include "agent/config/kept_config.h"

#include "agent/config/config_value.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXT_MAX = 1 << 20 }; /* far above the longest possible text */

int kept_config_write(const struct config *config)
{
	int fd = memfd_create("gpool-config", MFD_CLOEXEC), error;

	if (fd < 0)
		return -errno;
	error = config_print(config, CONFIG_PRINT_CURRENT, fd);
	if (!error)
		return fd;
	close(fd);
	return error;
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
