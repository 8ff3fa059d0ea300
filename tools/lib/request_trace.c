/* request_trace.c - see request_trace.h. */
#include "tools/lib/request_trace.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE_BYTES = 256 }; /* three times the longest valid line */

static const char header[] = "TIMESTAMP,ContextTokens,GeneratedTokens";

static bool take_digits(const char **at, int digits, int *value)
{
	int sum = 0;

	for (int i = 0; i < digits; i++) {
		char c = (*at)[i];

		if (c < '0' || c > '9')
			return false;
		sum = sum * 10 + (c - '0');
	}
	*at += digits;
	*value = sum;
	return true;
}

static bool take_char(const char **at, char wanted)
{
	if (**at != wanted)
		return false;
	++*at;
	return true;
}

/* Parse ".ffffff", 1 to 9 digits, truncated to microseconds. An absent fraction is zero. */
static bool take_fraction(const char **at, int64_t *microseconds)
{
	int64_t sum = 0;
	int digits = 0;

	*microseconds = 0;
	if (**at != '.')
		return true;
	for (++*at; **at >= '0' && **at <= '9'; ++*at, digits++)
		if (digits < 6)
			sum = sum * 10 + (**at - '0');
	if (digits == 0 || digits > 9)
		return false;
	for (int i = digits; i < 6; i++)
		sum *= 10;
	*microseconds = sum;
	return true;
}

/* Parse a time such as "2023-11-16 18:17:03.9799600". */
static bool take_time(const char **at, int64_t *us)
{
	struct tm given = {0}, normal;
	int64_t fraction;
	time_t seconds;

	if (!take_digits(at, 4, &given.tm_year) || !take_char(at, '-') || !take_digits(at, 2, &given.tm_mon) ||
		!take_char(at, '-') || !take_digits(at, 2, &given.tm_mday) || !take_char(at, ' ') ||
		!take_digits(at, 2, &given.tm_hour) || !take_char(at, ':') || !take_digits(at, 2, &given.tm_min) ||
		!take_char(at, ':') || !take_digits(at, 2, &given.tm_sec) || !take_fraction(at, &fraction))
		return false;
	if (given.tm_year < 1970)
		return false;
	given.tm_year -= 1900;
	given.tm_mon -= 1;
	/* timegm() normalizes invalid dates (30 February to 1 March): if it changes a field, the date is invalid. */
	normal = given;
	seconds = timegm(&normal);
	if (normal.tm_mon != given.tm_mon || normal.tm_mday != given.tm_mday || normal.tm_hour != given.tm_hour ||
		normal.tm_min != given.tm_min || normal.tm_sec != given.tm_sec)
		return false;
	*us = (int64_t)seconds * 1000000 + fraction;
	return true;
}

/* Parse a count of tokens: decimal, without a sign, 1..TRACE_TOKENS_MAX. */
static bool take_tokens(const char **at, uint32_t *tokens)
{
	uint32_t sum = 0;
	const char *start = *at;

	for (; **at >= '0' && **at <= '9'; ++*at) {
		sum = sum * 10 + (uint32_t)(**at - '0');
		if (sum > TRACE_TOKENS_MAX)
			return false;
	}
	*tokens = sum;
	return *at != start && sum > 0;
}

/* Parse one line. Return: NULL, or a description of the error. */
static const char *row_parse(const char *line, struct trace_request *request)
{
	if (!take_time(&line, &request->arrival_us))
		return "the timestamp is not a time YYYY-MM-DD HH:MM:SS[.fraction] since 1970";
	if (!take_char(&line, ','))
		return "no comma after the timestamp";
	if (!take_tokens(&line, &request->context_tokens))
		return "the context tokens are not a number from 1 to 1048576";
	if (!take_char(&line, ','))
		return "no comma after the context tokens";
	if (!take_tokens(&line, &request->generated_tokens))
		return "the generated tokens are not a number from 1 to 1048576";
	if (*line != '\0')
		return "unexpected text after the generated tokens";
	return NULL;
}

static int trace_append(struct trace *trace, uint32_t *capacity, const struct trace_request *request)
{
	if (trace->count == *capacity) {
		uint32_t more = *capacity ? *capacity * 2 : 1024;
		struct trace_request *grown = realloc(trace->requests, more * sizeof *grown);

		if (!grown)
			return -ENOMEM;
		trace->requests = grown;
		*capacity = more;
	}
	trace->requests[trace->count++] = *request;
	return 0;
}

/*
 * Read one line without its newline. Return: 1, 0 at the end of the file, or negative errno with a description in
 * *what, which is NULL if the read failed.
 */
static int line_read(FILE *file, char line[LINE_BYTES], const char **what)
{
	size_t length = 0;
	int c;

	errno = 0;
	while ((c = getc_unlocked(file)) != EOF && c != '\n') {
		*what = c == '\0'                  ? "a NUL byte"
			: length == LINE_BYTES - 1 ? "the line is longer than any request"
						   : NULL;
		if (*what)
			return -EINVAL;
		line[length++] = (char)c;
	}
	if (c == EOF && ferror_unlocked(file))
		return errno ? -errno : -EIO;
	if (length && line[length - 1] == '\r')
		length--;
	line[length] = '\0';
	return c != EOF || length;
}

static int request_read(const char *line, uint32_t *capacity, struct trace *trace, const char **what)
{
	struct trace_request request = {0};

	*what = row_parse(line, &request);
	if (!*what && trace->count > 0 && request.arrival_us < trace->requests[trace->count - 1].arrival_us)
		*what = "the timestamp is earlier than that of the previous request";
	if (!*what && trace->count == TRACE_REQUESTS_MAX)
		*what = "more than 10000000 requests";
	return *what ? -EINVAL : trace_append(trace, capacity, &request);
}

/* Read all lines of an open file. On failure, *what is a description, or NULL if the return value is sufficient. */
static int trace_read(FILE *file, struct trace *trace, uint64_t *line_number, const char **what)
{
	char line[LINE_BYTES];
	uint32_t capacity = 0;
	int error;

	*what = NULL;
	for (*line_number = 1; (error = line_read(file, line, what)) > 0; ++*line_number) {
		if (*line_number > 1)
			error = request_read(line, &capacity, trace, what);
		else if (strcmp(line, header))
			*what = "the first line is not TIMESTAMP,ContextTokens,GeneratedTokens", error = -EINVAL;
		if (error < 0)
			return error;
	}
	if (!error && trace->count == 0) {
		error = -EINVAL;
		*what = *line_number == 1 ? "the file is empty" : "no requests";
	}
	return error;
}

int trace_name(const char *path, char name[TRACE_NAME_BYTES])
{
	const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
	size_t length;

	if (strncmp(base, "azure_", 6) == 0)
		base += 6;
	length = strlen(base);
	if (length >= 4 && strcmp(base + length - 4, ".csv") == 0)
		length -= 4;
	/* The name is also used for a pool, and must begin with a letter or digit. */
	if (length == 0 || length >= TRACE_NAME_BYTES || *base == '_' || *base == '-' ||
		strspn(base, "abcdefghijklmnopqrstuvwxyz0123456789_-") < length)
		return -EINVAL;
	memcpy(name, base, length);
	name[length] = '\0';
	return 0;
}

int trace_load(const char *path, struct trace *trace, char *error_text)
{
	struct trace made = {.count = 0};
	uint64_t line_number = 0;
	const char *what;
	FILE *file;
	int error = trace_name(path, made.name);

	if (error) {
		snprintf(error_text, TRACE_ERROR_BYTES,
			"%s: the name before .csv must be 1 to 31 of a-z, 0-9, _ and - and begin with a letter or "
			"digit, as it names the engine",
			path);
		return error;
	}
	file = fopen(path, "re");
	if (!file) {
		error = -errno;
		snprintf(error_text, TRACE_ERROR_BYTES, "cannot open trace '%s': %s", path, strerror(-error));
		return error;
	}
	error = trace_read(file, &made, &line_number, &what);
	if (error && what)
		snprintf(error_text, TRACE_ERROR_BYTES, "%s:%llu: %s", path, (unsigned long long)line_number, what);
	else if (error)
		snprintf(error_text, TRACE_ERROR_BYTES, "cannot read trace '%s': %s", path, strerror(-error));
	fclose(file);
	if (error) {
		trace_free(&made);
		return error;
	}
	*trace = made;
	return 0;
}

void trace_free(struct trace *trace)
{
	if (!trace)
		return;
	free(trace->requests);
	trace->requests = NULL;
	trace->count = 0;
}

void trace_span(const struct trace *traces, size_t count, int64_t *first_us, int64_t *last_us)
{
	bool any = false;

	*first_us = *last_us = 0;
	for (size_t i = 0; i < count; i++) {
		if (traces[i].count == 0)
			continue;
		if (!any || traces[i].requests[0].arrival_us < *first_us)
			*first_us = traces[i].requests[0].arrival_us;
		if (!any || traces[i].requests[traces[i].count - 1].arrival_us > *last_us)
			*last_us = traces[i].requests[traces[i].count - 1].arrival_us;
		any = true;
	}
}

/* Return the trace whose next request, at index taken[i], arrived first, or -1 if none has further requests. */
static int earliest(const struct trace *traces, const uint32_t *taken, size_t count)
{
	int best = -1;

	for (size_t i = 0; i < count; i++)
		if (taken[i] < traces[i].count &&
			(best < 0 ||
				traces[i].requests[taken[i]].arrival_us <
					traces[best].requests[taken[best]].arrival_us))
			best = (int)i;
	return best;
}

void trace_cut(struct trace *traces, size_t count, uint64_t duration_us, uint64_t limit)
{
	uint32_t taken[8] = {0};
	int64_t first_us, last_us;
	int next;

	if (count > sizeof taken / sizeof taken[0])
		return;
	trace_span(traces, count, &first_us, &last_us);
	for (uint64_t n = 0; (limit == 0 || n < limit) && (next = earliest(traces, taken, count)) >= 0; n++) {
		int64_t arrival_us = traces[next].requests[taken[next]].arrival_us;

		if (duration_us > 0 && (uint64_t)(arrival_us - first_us) > duration_us)
			break;
		taken[next]++;
	}
	for (size_t i = 0; i < count; i++)
		traces[i].count = taken[i];
}

uint64_t trace_tokens(const struct trace *trace)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < trace->count; i++)
		sum += (uint64_t)trace->requests[i].context_tokens + trace->requests[i].generated_tokens;
	return sum;
}
