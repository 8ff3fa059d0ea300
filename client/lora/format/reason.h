/*
 * reason.h - why an adapter is refused: words for whoever wanted it.
 */
#ifndef GPOOL_CLIENT_LORA_REASON_H
#define GPOOL_CLIENT_LORA_REASON_H

enum { REASON_BYTES = 256 };

/*
 * Lower case, no full stop: what is wrong, where, the limit and the way out. Names out of files are shortened, and
 * escaped where not printable.
 */
struct reason {
	char text[REASON_BYTES];
};

enum { REASON_NAME_BYTES = 100 };

/* refuse() - says why; reason may be NULL. Returns -EINVAL, so that callers can return it. */
int refuse(struct reason *reason, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* refuse_in() - of which file a reason is: its name in front of what was said. */
void refuse_in(struct reason *reason, const char *file);

/*
 * refuse_name() - a name out of a file, as it may stand in a reason: in `text`, REASON_NAME_BYTES, which is returned.
 */
const char *refuse_name(const char *name, char *text);

#endif
