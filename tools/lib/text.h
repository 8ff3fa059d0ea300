/*
 * text.h - figures as people read and write them.
 */
#ifndef GPOOL_TOOLS_LIB_TEXT_H
#define GPOOL_TOOLS_LIB_TEXT_H

#include <stdbool.h>
#include <stdint.h>

enum { TEXT_BYTES = 32 };

/* text_count() - 1234567 -> "1,234,567" */
const char *text_count(char text[TEXT_BYTES], uint64_t value);
/* text_bytes() - "512 KiB", "19.9 GiB" */
const char *text_bytes(char text[TEXT_BYTES], uint64_t bytes);
/* text_seconds() - microseconds as "0.42 ms", "81 ms", "4.20 s", "184 s" */
const char *text_seconds(char text[TEXT_BYTES], uint64_t microseconds);
/* text_rate() - "1.62 M", "81.2 k" */
const char *text_rate(char text[TEXT_BYTES], double value);
/* text_percent() - "48.1 %" */
const char *text_percent(char text[TEXT_BYTES], double share);

/*
 * text_size() - the other way: "512KiB", "80GiB", into bytes. KB, MB and so on mean powers of 1024 too, as the agent
 * reads sizes of pages.
 * False: anything else, 0, and above 16 TiB.
 */
bool text_size(const char *text, uint64_t *bytes);

#endif
