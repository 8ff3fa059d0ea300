/*
 * screen.h - the terminal as a whole: drawing, keys, and how it was before. One at a time; one thread.
 */
#ifndef GPOOL_TOOLS_POOLCTL_SCREEN_H
#define GPOOL_TOOLS_POOLCTL_SCREEN_H

#include "tools/poolctl/output.h"

enum screen_key {
	SCREEN_NOTHING = 0, /* the time is over, or the size has changed */
	SCREEN_END = -1,    /* a signal to end, or the terminal is gone */
	SCREEN_LEFT = -2,
	SCREEN_RIGHT = -3,
	SCREEN_UP = -4,
	SCREEN_DOWN = -5,
};

/*
 * screen_open() - 0, -ENOTTY (input or output is no terminal), -ENOTSUP (not one that is known here: $TERM). From then
 * on SIGINT, SIGTERM, SIGHUP and SIGQUIT are keys, and the end of the process restores the terminal. screen_close() -
 * restores it now.
 */
int screen_open(bool color);
void screen_close(void);

void screen_size(uint32_t *rows, uint32_t *columns);
void screen_clear(void);
/*
 * screen_put() - at most `most` bytes of text; what is outside of the screen is left out. Returns the column behind it.
 */
uint32_t screen_put(uint32_t row, uint32_t column, enum color color, const char *text, uint32_t most);
/* screen_reverse() - what is put from now on is dark on light, or not. */
void screen_reverse(bool on);
/* screen_show() - what was put since screen_clear(). */
void screen_show(void);

/* screen_key() - an ASCII character, or one of enum screen_key, within this time. */
int screen_key(int timeout_ms);

#endif
