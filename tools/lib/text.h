/* text.h - formatting of numbers and parsing of sizes. */
#ifndef GPOOL_TOOLS_LIB_TEXT_H
#define GPOOL_TOOLS_LIB_TEXT_H

#include <stdbool.h>
#include <stdint.h>

enum { TEXT_BYTES = 32 };

/* text_count() - print 1234567 as "1,234,567". */
const char *text_count(char text[TEXT_BYTES], uint64_t value);
/* text_bytes() - print "512 KiB", "19.9 GiB". */
const char *text_bytes(char text[TEXT_BYTES], uint64_t bytes);
/* text_seconds() - print microseconds as "0.42 ms", "81 ms", "4.20 s", "184 s". */
const char *text_seconds(char text[TEXT_BYTES], uint64_t microseconds);
/* text_rate() - print "1.62 M", "81.2 k". */
const char *text_rate(char text[TEXT_BYTES], double value);
/* text_percent() - print "48.1 %". */
const char *text_percent(char text[TEXT_BYTES], double share);

/*
 * text_size() - parse a size, such as "512KiB" or "80GiB". KB, MB and so on are powers of 1024, too, as in the agent's
 * page sizes. Return: false if the size is invalid, 0, or above 16 TiB.
 */
bool text_size(const char *text, uint64_t *bytes);

#endif
