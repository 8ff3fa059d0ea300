/* reason.h - the reason for which an adapter is refused, as readable text. */
#ifndef GPOOL_CLIENT_LORA_REASON_H
#define GPOOL_CLIENT_LORA_REASON_H

enum { REASON_BYTES = 256 };

/*
 * A text in lower case without a full stop, which states the error, its position, the limit and the remedy. Names from
 * files are shortened and escaped.
 */
struct reason {
	char text[REASON_BYTES];
};

enum { REASON_NAME_BYTES = 100 };

/* refuse() - write a reason, which may be NULL. Return: -EINVAL, which the caller can return. */
int refuse(struct reason *reason, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* refuse_in() - insert the name of a file at the beginning of a reason. */
void refuse_in(struct reason *reason, const char *file);

/*
 * refuse_in_folder() - insert the folder of an adapter at the beginning of a reason: if the reason begins with the name
 * of a file, as a part of its path. Of a long folder, the end is kept, after "...". Does nothing without a reason.
 */
void refuse_in_folder(struct reason *reason, const char *folder);

enum { REASON_PATH_BYTES = 180 };
/* refuse_path() - shorten a path for a reason to its end, after "...". text: [REASON_PATH_BYTES]. Return: `text`. */
const char *refuse_path(const char *path, char *text);

/*
 * refuse_name() - escape and shorten a name from a file for a reason. text: [REASON_NAME_BYTES] receives it. Return:
 * `text`.
 */
const char *refuse_name(const char *name, char *text);

#endif
