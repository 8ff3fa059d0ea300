/* unwatched.h - functions that ThreadSanitizer does not watch. */
#ifndef GPOOL_TESTS_UNWATCHED_H
#define GPOOL_TESTS_UNWATCHED_H

#include <stdint.h>

/*
 * Exempt a function that computes or compares contents, because its checked accesses would take most of the time of a
 * test. Use it only for memory that no other thread accesses at the same time, or if the comparison of the contents
 * detects such an access.
 */
#define UNWATCHED __attribute__((no_sanitize_thread))

/* Overwrite memory. Not with memset(), which ThreadSanitizer intercepts. */
UNWATCHED static inline void spoil(uint64_t address, uint64_t bytes)
{
	volatile uint64_t *words = (volatile uint64_t *)(uintptr_t)address;

	for (uint64_t i = 0; i < bytes / sizeof(*words); i++)
		words[i] = UINT64_C(0xeeeeeeeeeeeeeeee);
}

#endif
