/* screen.h - the whole terminal: drawing, keys, and restoring it. There is one screen, for one thread. */
#ifndef GPOOL_TOOLS_POOLCTL_SCREEN_H
#define GPOOL_TOOLS_POOLCTL_SCREEN_H

#include "tools/poolctl/output.h"

enum screen_key {
	SCREEN_NOTHING = 0, /* timeout, or the size has changed */
	SCREEN_END = -1,    /* a signal that ends the program, or the terminal was closed */
	SCREEN_LEFT = -2,
	SCREEN_RIGHT = -3,
	SCREEN_UP = -4,
	SCREEN_DOWN = -5,
};

/*
 * screen_open() - take over the terminal. From then on, SIGINT, SIGTERM, SIGHUP and SIGQUIT are reported as keys, and
 * the terminal is restored when the process exits. Return: 0, -ENOTTY (input or output is not a terminal), -ENOTSUP (an
 * unknown $TERM).
 * screen_close() - restore the terminal.
 */
int screen_open(bool color);
void screen_close(void);

void screen_size(uint32_t *rows, uint32_t *columns);
void screen_clear(void);
/* screen_put() - draw at most `most` bytes of text, clipped to the screen. Return: the column after the text. */
uint32_t screen_put(uint32_t row, uint32_t column, enum color color, const char *text, uint32_t most);
/* screen_reverse() - turn reverse video on or off. */
void screen_reverse(bool on);
/* screen_show() - display everything drawn since screen_clear(). */
void screen_show(void);

/* screen_key() - wait for a key. Return: an ASCII character, or one of enum screen_key. */
int screen_key(int timeout_ms);

#endif
