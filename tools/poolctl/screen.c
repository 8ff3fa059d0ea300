/*
 * screen.c - the terminal, through ncurses. Signals that end the program are unblocked only while it waits for keys, so
 * that no drawing is incomplete and no signal is lost.
 */
#include "tools/poolctl/screen.h"

/* curses.h defines these names with other values; include it later. */
enum {
	PAINT_GREEN = COLOR_GREEN,
	PAINT_YELLOW = COLOR_YELLOW,
	PAINT_RED = COLOR_RED,
	PAINT_DIM = COLOR_DIM,
	PAINT_BOLD = COLOR_BOLD
};

#include <curses.h>
#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
	SCREEN *terminal;
	bool colors, reverse;
	sigset_t before; /* the signal mask while it waits for keys */
} screen;

static volatile sig_atomic_t ended;

static void on_end(int number)
{
	(void)number;
	ended = 1;
}

static void signals_take(void)
{
	static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
	const struct sigaction action = {.sa_handler = on_end};
	sigset_t held;

	sigemptyset(&held);
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		sigaction(ends[i], &action, NULL);
		sigaddset(&held, ends[i]);
	}
	sigaddset(&held, SIGWINCH);
	sigprocmask(SIG_BLOCK, &held, &screen.before);
	/* the process that started this one may have blocked them */
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		sigdelset(&screen.before, ends[i]);
	sigdelset(&screen.before, SIGWINCH);
}

int screen_open(bool color)
{
	if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
		return -ENOTTY;
	setlocale(LC_CTYPE, "");
	signals_take(); /* before curses checks which signals have handlers */
	screen.terminal = newterm(NULL, stdout, stdin);
	if (!screen.terminal)
		return -ENOTSUP;
	atexit(screen_close);
	cbreak();
	noecho();
	nonl();
	curs_set(0);
	keypad(stdscr, TRUE);
	timeout(0);
	screen.colors = color && has_colors() && start_color() == OK && use_default_colors() == OK;
	if (screen.colors) {
		init_pair(PAINT_GREEN, COLOR_GREEN, -1);
		init_pair(PAINT_YELLOW, COLOR_YELLOW, -1);
		init_pair(PAINT_RED, COLOR_RED, -1);
	}
	return 0;
}

void screen_close(void)
{
	if (!screen.terminal)
		return;
	endwin();
	delscreen(screen.terminal);
	screen.terminal = NULL;
}

void screen_size(uint32_t *rows, uint32_t *columns)
{
	*rows = (uint32_t)getmaxy(stdscr);
	*columns = (uint32_t)getmaxx(stdscr);
}

void screen_clear(void)
{
	erase();
}

static attr_t attributes(unsigned paint)
{
	attr_t reverse = screen.reverse ? A_REVERSE : 0;

	if (paint == PAINT_DIM)
		return reverse | A_DIM;
	if (paint == PAINT_BOLD)
		return reverse | A_BOLD;
	if (!screen.colors || !paint)
		return reverse | (paint == PAINT_RED ? A_BOLD : 0);
	return reverse | (attr_t)COLOR_PAIR((int)paint);
}

uint32_t screen_put(uint32_t row, uint32_t column, enum color color, const char *text, uint32_t most)
{
	uint32_t rows, columns;

	screen_size(&rows, &columns);
	if (row >= rows || column >= columns)
		return column;
	attrset(attributes(color));
	mvaddnstr((int)row, (int)column, text, (int)(most < columns - column ? most : columns - column));
	attrset(0);
	/* if the text filled the line, the cursor is in the next line */
	return (uint32_t)getcury(stdscr) == row ? (uint32_t)getcurx(stdscr) : columns;
}

void screen_reverse(bool on)
{
	screen.reverse = on;
}

void screen_show(void)
{
	refresh();
}

static int key_of(int character)
{
	switch (character) {
	case KEY_LEFT:
	case KEY_BTAB: return SCREEN_LEFT;
	case KEY_RIGHT:
	case '\t': return SCREEN_RIGHT;
	case KEY_UP: return SCREEN_UP;
	case KEY_DOWN: return SCREEN_DOWN;
	default: return character > 0 && character < 128 ? character : SCREEN_NOTHING;
	}
}

int screen_key(int timeout_ms)
{
	const struct timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	int character = getch();

	if (character == ERR && !ended) {
		int got = ppoll(&input, 1, &limit, &screen.before);

		if (got > 0 && !(input.revents & POLLIN))
			return SCREEN_END;
		character = getch();
		/* a closed terminal is readable, but has no input */
		if (got > 0 && character == ERR)
			return SCREEN_END;
	}
	return ended ? SCREEN_END : key_of(character);
}
