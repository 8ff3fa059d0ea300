/*
 * machine.h - a description of the machine for reports, and its available memory.
 */
#ifndef GPOOL_TOOLS_LIB_MACHINE_H
#define GPOOL_TOOLS_LIB_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/*
 * machine_describe() - return a text such as "Model of CPU, 2 cores, 23.5 GiB of memory, Linux 6.1.0". An unknown model
 * is omitted. Never fails.
 */
void machine_describe(char *text, size_t text_bytes);

/* machine_available_bytes() - return MemAvailable; 0: unknown. */
uint64_t machine_available_bytes(void);

#endif
