/*
 * fuzz_config.c - arbitrary bytes as gpoold.conf.
 *
 * Goal: each input yields an error message or a configuration, never a crash, an exit or a leak. An accepted
 * configuration can be printed; the printed text is accepted and yields the same configuration. Method: the bytes are
 * passed to config_load_text(), which is config_load() without opening the file.
 *
 * Requirements: S10.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/config/config_value.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds, const char *what, const char *detail)
{
	if (holds)
		return;
	fprintf(stderr, "%s: %s\n", what, detail);
	abort();
}

/* Print, read back and compare. One memory file is used for all runs. */
static void check_round_trip(const struct config *config)
{
	static char text[1 << 18];
	static struct config again;
	static int fd = -1;
	char applies[4096], restart[4096];
	struct config_error error = {""};
	ssize_t bytes;

	if (fd < 0)
		fd = memfd_create("printed", MFD_CLOEXEC);
	must(fd >= 0 && !ftruncate(fd, 0) && lseek(fd, 0, SEEK_SET) == 0, "memory file", "");
	must(config_print(config, CONFIG_PRINT_CURRENT, fd) == 0, "print", "");
	bytes = pread(fd, text, sizeof(text), 0);
	must(bytes > 0 && bytes < (ssize_t)sizeof(text), "printed size", "");
	config_defaults(&again);
	must(config_load_text("printed", text, (size_t)bytes, &again, &error) == 0, "printed text is refused",
		error.text);
	/* A key that was not set is printed as a comment, and then has the same default. */
	must(config_finish(&again, &error) == 0, "printed text is not whole", error.text);
	config_difference(config, &again, applies, sizeof(applies), restart, sizeof(restart));
	must(!applies[0] && !restart[0], applies, restart);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct config config;
	struct config_error error = {""};

	config_defaults(&config);
	if (config_load_text("input", (const char *)data, size, &config, &error)) {
		must(!strncmp(error.text, "input:", 6), "complaint without a place", error.text);
		return 0;
	}
	if (config_finish(&config, &error))
		must(error.text[0] != '\0', "complaint without a word", "");
	else
		check_round_trip(&config);
	return 0;
}
