/*
 * subject.h - an allocator that play.c measures. Each subject is linked with play.c into a program of its own.
 *
 * Allocations are in slots, so that a subject can keep what its own free function needs. One thread calls all of them.
 */
#ifndef GPOOL_TOOLS_BENCH_PEERS_SUBJECT_H
#define GPOOL_TOOLS_BENCH_PEERS_SUBJECT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* subject_open() - start with `slots` empty slots. Return: name and version. A failure ends the process. */
const char *subject_open(uint32_t slots);

/* subject_malloc() - allocate into an empty slot. Return: false: out of memory. The memory is not written. */
bool subject_malloc(uint32_t slot, uint64_t bytes);

/* subject_free() - empty a slot. */
void subject_free(uint32_t slot);

/* subject_note() - called after each allocation of a trace: update the peak, if the allocator does not count it. */
void subject_note(void);

/* subject_peak() - return the largest number of bytes that the allocator has held; 0: unknown. */
uint64_t subject_peak(void);

#ifdef __cplusplus
}
#endif

#endif
