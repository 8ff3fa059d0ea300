/*
 * lora_times.h - the time to load an adapter of 16 MB with the library, into pages of 2 MiB of an agent with host
 * memory that this program starts. Files are in the page cache.
 */
#ifndef GPOOL_REPLAY_LORA_TIMES_H
#define GPOOL_REPLAY_LORA_TIMES_H

#include <stdint.h>

enum { LORA_TIME_RUNS = 15 };

/* Where the library loads the adapter from. */
enum lora_source { LORA_SOURCE_FILES, LORA_SOURCE_DISK, LORA_SOURCE_MEMORY, LORA_SOURCES };

struct lora_time {
	uint64_t bytes;                           /* that are read from the source */
	double paged_ms, paged_least, paged_most; /* gpool_lora_acquire() in milliseconds: median, minimum, maximum */
	double piece_ms; /* median of a read() or memcpy() of the bytes into one piece of memory */
};

struct lora_times {
	uint64_t adapter_bytes; /* of its pages */
	struct lora_time of[LORA_SOURCES];
};

/*
 * lora_times_measure() - start an agent, load the adapter LORA_TIME_RUNS times from each source, and stop the agent.
 * Return: 0; or negative errno after printing the error, or because of an interrupt.
 */
int lora_times_measure(struct lora_times *times);

#endif
