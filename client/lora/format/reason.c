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

/* Copy the path, or "..." and its end if it has more than `most` bytes. */
static const char *path_shorten(const char *path, size_t most, char *text)
{
	size_t length = strlen(path);

	if (length <= most)
		snprintf(text, most + 1, "%s", path);
	else
		snprintf(text, most + 1, "...%s", path + length - (most - 3));
	return text;
}

const char *refuse_path(const char *path, char *text)
{
	return path_shorten(path, REASON_PATH_BYTES - 1, text);
}

void refuse_in_folder(struct reason *reason, const char *folder)
{
	enum {
		FOLDER_LEAST = 100,
		SEPARATOR = 2
	}; /* chosen: a long reason is cut rather than this much of the folder */
	struct reason said;
	char text[REASON_BYTES];
	size_t length, most;

	if (!reason || !reason->text[0])
		return;
	said = *reason;
	length = strlen(said.text);
	most = length + SEPARATOR + FOLDER_LEAST < sizeof(said.text) ? sizeof(said.text) - 1 - SEPARATOR - length
								     : FOLDER_LEAST;
	path_shorten(folder, most, text);
	strcat(text, strncmp(said.text, "adapter_", 8) ? ": " : "/");
	length = strlen(text);
	snprintf(reason->text, sizeof(reason->text), "%.*s%.*s", (int)length, text,
		(int)(sizeof(reason->text) - 1 - length), said.text);
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
