/* subject_heap.c - malloc() and free() of the library in LD_PRELOAD: jemalloc or mimalloc. */
#include "tools/bench/peers/subject.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void **held;

const char *subject_open(uint32_t slots)
{
	int (*mallctl)(const char *, void *, size_t *, void *, size_t) =
		(int (*)(const char *, void *, size_t *, void *, size_t))dlsym(RTLD_DEFAULT, "mallctl");
	int (*mi_version)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "mi_version");
	static char text[64];
	const char *version = NULL;
	size_t bytes = sizeof(version);

	held = calloc(slots, sizeof(*held));
	if (mallctl && mallctl("version", &version, &bytes, NULL, 0) == 0)
		snprintf(text, sizeof(text), "jemalloc %.*s", (int)strcspn(version, "-"), version);
	else if (mi_version)
		snprintf(text, sizeof(text), "mimalloc %d.%d.%d", mi_version() / 100, mi_version() / 10 % 10,
			mi_version() % 10);
	if (held && text[0])
		return text;
	fputs("subject_heap: LD_PRELOAD has neither jemalloc nor mimalloc\n", stderr);
	exit(1);
}

bool subject_malloc(uint32_t slot, uint64_t bytes)
{
	held[slot] = malloc(bytes);
	return held[slot];
}

void subject_free(uint32_t slot)
{
	free(held[slot]);
}

void subject_note(void)
{
}

uint64_t subject_peak(void)
{
	return 0;
}
