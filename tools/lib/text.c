/* text.c - see text.h. */
#include "tools/lib/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *text_count(char text[TEXT_BYTES], uint64_t value)
{
	char digits[24];
	int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value), n = 0;

	for (int i = 0; i < length; i++) {
		if (i > 0 && (length - i) % 3 == 0)
			text[n++] = ',';
		text[n++] = digits[i];
	}
	text[n] = '\0';
	return text;
}

const char *text_bytes(char text[TEXT_BYTES], uint64_t bytes)
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
	double value = (double)bytes;
	int unit = 0;

	for (; value >= 1024 && unit < 4; unit++)
		value /= 1024;
	snprintf(text, TEXT_BYTES, "%.*f %s",
		value >= 100 || value - (double)(uint64_t)value < 0.005 ? 0
			: value >= 10                                   ? 1
									: 2,
		value, units[unit]);
	return text;
}

const char *text_seconds(char text[TEXT_BYTES], uint64_t microseconds)
{
	double ms = (double)microseconds / 1000;

	if (microseconds == 0)
		snprintf(text, TEXT_BYTES, "0 s");
	else if (ms < 1000)
		snprintf(text, TEXT_BYTES, "%.*f ms", ms < 10 ? 2 : 0, ms);
	else
		snprintf(text, TEXT_BYTES, "%.*f s", ms < 10000 ? 2 : ms < 100000 ? 1 : 0, ms / 1000);
	return text;
}

const char *text_rate(char text[TEXT_BYTES], double value)
{
	if (value >= 1e6)
		snprintf(text, TEXT_BYTES, "%.2f M", value / 1e6);
	else if (value >= 1e3)
		snprintf(text, TEXT_BYTES, "%.1f k", value / 1e3);
	else
		snprintf(text, TEXT_BYTES, "%.1f", value);
	return text;
}

const char *text_percent(char text[TEXT_BYTES], double share)
{
	snprintf(text, TEXT_BYTES, "%.1f %%", share * 100);
	return text;
}

bool text_size(const char *text, uint64_t *bytes)
{
	static const struct {
		const char *unit;
		int shift;
	} units[] = {
		{"KiB", 10}, {"KB", 10}, {"MiB", 20}, {"MB", 20}, {"GiB", 30}, {"GB", 30}, {"TiB", 40}, {"TB", 40}};
	unsigned long long number;
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	number = strtoull(text, &end, 10);
	for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
		if (errno == 0 && strcmp(end, units[i].unit) == 0 && number > 0 &&
			number <= UINT64_C(1) << 44 >> units[i].shift) {
			*bytes = number << units[i].shift;
			return true;
		}
	return false;
}
