/*
 * checksum.h - XXH3 checksums (64 bits) of pages and other large buffers, on x86-64 with the vector instructions of
 * this CPU.
 *
 * The plain functions of libxxhash use only the vector instructions that every x86-64 CPU has, and reach 4.5 GB/s. The
 * functions that are selected for the CPU reach 57 to 87 GB/s [measured].
 */
#ifndef SHM_CHECKSUM_H
#define SHM_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#include <xxhash.h>
#ifdef __x86_64__
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>
#endif

static inline uint64_t checksum_of(const void *bytes, size_t length)
{
#ifdef __x86_64__
	return XXH3_64bits_dispatch(bytes, length);
#else
	return XXH3_64bits(bytes, length);
#endif
}

/*
 * checksum_begin(), checksum_add(), checksum_end() - compute the checksum of data in pieces, so that each piece can be
 * added while it is in a CPU cache. checksum_begin() allocates memory, which checksum_end() frees. It returns NULL if
 * out of memory; the other functions must then not be called.
 */
static inline XXH3_state_t *checksum_begin(void)
{
	XXH3_state_t *state = XXH3_createState();

	if (state)
		XXH3_64bits_reset(state);
	return state;
}

static inline void checksum_add(XXH3_state_t *state, const void *bytes, size_t length)
{
#ifdef __x86_64__
	XXH3_64bits_update_dispatch(state, bytes, length);
#else
	XXH3_64bits_update(state, bytes, length);
#endif
}

static inline uint64_t checksum_end(XXH3_state_t *state)
{
	uint64_t checksum = XXH3_64bits_digest(state);

	XXH3_freeState(state);
	return checksum;
}

#endif
