#include "tools/lib/machine.h"

#include "shm/plural.h"
#include "tools/lib/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Return the text after ':' and blanks in the first line of `path` that begins with `key`. */
static bool find_line(const char *path, const char *key, char *value, size_t value_bytes)
{
	FILE *file = fopen(path, "re");
	char line[512];
	bool found = false;

	if (!file)
		return false;
	while (!found && fgets(line, sizeof line, file)) {
		const char *colon = strchr(line, ':');

		if (strncmp(line, key, strlen(key)) != 0 || !colon)
			continue;
		colon += 1 + strspn(colon + 1, " \t");
		snprintf(value, value_bytes, "%.*s", (int)strcspn(colon, "\n"), colon);
		found = true;
	}
	fclose(file);
	return found;
}

static uint64_t memory_bytes(const char *key)
{
	char value[64];
	unsigned long long kib;

	if (!find_line("/proc/meminfo", key, value, sizeof value) || sscanf(value, "%llu kB", &kib) != 1)
		return 0;
	return (uint64_t)kib << 10;
}

uint64_t machine_available_bytes(void)
{
	return memory_bytes("MemAvailable");
}

void machine_describe(char *text, size_t text_size)
{
	struct utsname system;
	char cpu[128] = "", size[TEXT_BYTES];
	long cores = sysconf(_SC_NPROCESSORS_ONLN);

	find_line("/proc/cpuinfo", "model name", cpu, sizeof cpu);
	if (uname(&system) != 0)
		memset(&system, 0, sizeof system);
	snprintf(text, text_size, "%s%s%ld core%s, %s of memory, %s %s", cpu, *cpu ? ", " : "", cores, plural(cores),
		text_bytes(size, memory_bytes("MemTotal")), system.sysname, system.release);
}
