#include "client/lora/format/reason.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int refuse(struct reason *reason, const char *format, ...)
{
	va_list arguments;

	if (!reason)
		return -EINVAL;
	va_start(arguments, format);
	vsnprintf(reason->text, sizeof(reason->text), format, arguments);
	va_end(arguments);
	return -EINVAL;
}

void refuse_in(struct reason *reason, const char *file)
{
	struct reason said;

	if (!reason || !reason->text[0])
		return;
	said = *reason;
	snprintf(reason->text, sizeof(reason->text), "%.60s: %.190s", file, said.text);
}

/* Printable ASCII is copied unchanged. Other bytes become \xNN, so that a name cannot contain terminal sequences. */
const char *refuse_name(const char *name, char *text)
{
	size_t at = 0;

	for (; *name; name++) {
		int plain = *name >= ' ' && *name <= '~' && *name != '\\';

		if (at + (plain ? 1 : 4) > REASON_NAME_BYTES - 4) {
			memcpy(text + at, "...", 3);
			at += 3;
			break;
		}
		at += (size_t)(plain ? snprintf(text + at, 2, "%c", *name)
				     : snprintf(text + at, 5, "\\x%02x", (unsigned)(unsigned char)*name));
	}
	text[at] = 0;
	return text;
}
