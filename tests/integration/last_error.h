/* last_error.h - check the code and the text of a failed call. */
#ifndef GPOOL_TESTS_LAST_ERROR_H
#define GPOOL_TESTS_LAST_ERROR_H

#include "client/gpool.h"

#include <string.h>

/* Check that the call failed with this code and this text. */
static inline void said(int line, int result, int error, const char *text)
{
	const char *found;

	if (result != error)
		fail_msg("line %d: %d (%s) instead of %d", line, result, gpool_strerror(result), error);
	found = gpool_last_error(result);
	if (!strstr(found, text))
		fail_msg("line %d: '%s' instead of '%s'", line, found, text);
	/* The text is returned once, so that it is not mistaken for that of a later failure. */
	assert_string_equal(gpool_last_error(result), gpool_strerror(result));
}
/* tests/docs/last_error reads the rows SAYS(call(...), code, text). */
#define SAYS(call, error, text) said(__LINE__, call, error, text)

#endif
