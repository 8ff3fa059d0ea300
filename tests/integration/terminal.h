/*
 * terminal.h - run a program on its own terminal and keep the text of that terminal. The terminal is a pty with the
 * part of an xterm that curses uses.
 *
 * Colors are not kept. Each test program includes this header once, after its own headers.
 */
#ifndef GPOOL_TESTS_TERMINAL_H
#define GPOOL_TESTS_TERMINAL_H

#include "tests/lib/await.h"

#include <poll.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <utmp.h>
#include <unistd.h>

#include <cmocka.h>

enum { TERMINAL_ROWS = 60, TERMINAL_COLUMNS = 200, TERMINAL_WAIT_MS = AWAIT_MS };

struct terminal {
	int fd;  /* the test's side of the pty */
	int own; /* the program's side, kept open for inspection */
	pid_t pid;
	int rows, columns, row, column;
	char cells[TERMINAL_ROWS][TERMINAL_COLUMNS + 1];
	char last; /* last character, for REP */
	char escape[64];
	size_t escape_bytes;
	bool other;  /* the alternate screen is shown */
	bool hidden; /* the cursor is hidden */
};

static inline void terminal_erase(struct terminal *t, int row, int from, int to)
{
	for (int column = from; row < TERMINAL_ROWS && column < to; column++)
		t->cells[row][column] = ' ';
}

static inline void terminal_clear(struct terminal *t)
{
	for (int row = 0; row < TERMINAL_ROWS; row++) {
		terminal_erase(t, row, 0, TERMINAL_COLUMNS);
		t->cells[row][TERMINAL_COLUMNS] = '\0';
	}
}

static inline void terminal_put(struct terminal *t, char character)
{
	if (t->column == t->columns) {
		t->column = 0;
		t->row++;
	}
	if (t->row >= 0 && t->row < t->rows)
		t->cells[t->row][t->column] = character;
	t->column++;
	t->last = character;
}

/* Execute "ESC [ parameters final". */
static inline void terminal_control(struct terminal *t, const char *parameters, char final)
{
	int first = atoi(parameters), second = 0, count = first ? first : 1;
	const char *semicolon = strchr(parameters, ';');

	if (semicolon)
		second = atoi(semicolon + 1);
	switch (final) {
	case 'H':
		t->row = count - 1;
		t->column = second ? second - 1 : 0;
		break;
	case 'A': t->row -= count; break;
	case 'B': t->row += count; break;
	case 'C': t->column += count; break;
	case 'D': t->column -= count; break;
	case 'G': t->column = count - 1; break;
	case 'd': t->row = count - 1; break;
	case 'J':
		terminal_erase(t, t->row, first == 2 ? 0 : t->column, TERMINAL_COLUMNS);
		for (int row = first == 2 ? 0 : t->row + 1; row < TERMINAL_ROWS; row++)
			terminal_erase(t, row, 0, TERMINAL_COLUMNS);
		break;
	case 'K':
		terminal_erase(t, t->row, first == 1 ? 0 : t->column, first == 1 ? t->column + 1 : TERMINAL_COLUMNS);
		break;
	case 'X': terminal_erase(t, t->row, t->column, t->column + count); break;
	case 'P':
		memmove(&t->cells[t->row][t->column], &t->cells[t->row][t->column + count],
			(size_t)(TERMINAL_COLUMNS - t->column - count));
		break;
	case '@':
		memmove(&t->cells[t->row][t->column + count], &t->cells[t->row][t->column],
			(size_t)(TERMINAL_COLUMNS - t->column - count));
		break;
	case 'b':
		for (int i = 0; i < count; i++)
			terminal_put(t, t->last);
		break;
	case 'h':
	case 'l':
		if (!strcmp(parameters, "?1049"))
			t->other = final == 'h';
		if (!strcmp(parameters, "?25"))
			t->hidden = final == 'l';
		break;
	case 'm':
	case 'r':
	case 't': break;
	default: fail_msg("this terminal does not know ESC [ %s %c", parameters, final);
	}
}

static inline void terminal_take(struct terminal *t, char character)
{
	if (t->escape_bytes) {
		assert_true(t->escape_bytes + 1 < sizeof(t->escape));
		t->escape[t->escape_bytes++] = character;
		t->escape[t->escape_bytes] = '\0';
		if (t->escape_bytes == 2 && strchr("[()", character))
			return;
		if (t->escape[1] == '[' && (character < '@' || character > '~'))
			return;
		t->escape[t->escape_bytes - 1] = '\0';
		if (t->escape[1] == '[')
			terminal_control(t, t->escape + 2, character);
		t->escape_bytes = 0;
		return;
	}
	switch (character) {
	case '\033': t->escape[t->escape_bytes++] = character; break;
	case '\r': t->column = 0; break;
	case '\n': t->row++; break;
	case '\b': t->column--; break;
	case '\017': break;
	default: terminal_put(t, character);
	}
}

/* Read the program's output. Return false once the program has ended and all its output was read. */
static inline bool terminal_read(struct terminal *t)
{
	struct pollfd wait = {.fd = t->fd, .events = POLLIN};
	char bytes[4096];
	ssize_t got;

	for (int waited = 0; poll(&wait, 1, 50) == 0; waited += 50) {
		siginfo_t info = {.si_pid = 0};

		assert_true(waited < TERMINAL_WAIT_MS);
		/* this process has the terminal open too, so the end of the program is not reported as a hang-up */
		if (waitid(P_PID, (id_t)t->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid)
			return false;
	}
	got = read(t->fd, bytes, sizeof(bytes));
	if (got <= 0)
		return false;
	for (ssize_t i = 0; i < got; i++)
		terminal_take(t, bytes[i]);
	return true;
}

static inline bool terminal_shows(const struct terminal *t, const char *text)
{
	for (int row = 0; row < t->rows; row++)
		if (strstr(t->cells[row], text))
			return true;
	return false;
}

static inline void terminal_await(struct terminal *t, const char *text)
{
	while (!terminal_shows(t, text)) {
		if (terminal_read(t))
			continue;
		for (int row = 0; row < t->rows; row++)
			fprintf(stderr, "%.*s\n", t->columns, t->cells[row]);
		fail_msg("the program ended before it showed '%s'", text);
	}
}

static inline void terminal_size(struct terminal *t, int rows, int columns)
{
	const struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};

	t->rows = rows;
	t->columns = columns;
	assert_int_equal(ioctl(t->own, TIOCSWINSZ, &size), 0);
}

/* Start a program with this $TERM. The arguments end with NULL. */
static inline void terminal_start(
	struct terminal *t, const char *program, char *const *arguments, const char *term, int rows, int columns)
{
	memset(t, 0, sizeof(*t));
	terminal_clear(t);
	assert_int_equal(openpty(&t->fd, &t->own, NULL, NULL, NULL), 0);
	terminal_size(t, rows, columns);
	fflush(NULL);
	t->pid = fork();
	assert_true(t->pid >= 0);
	if (t->pid == 0) {
		sigset_t blocked;

		close(t->fd);
		login_tty(t->own);
		/* the program must not rely on the signal mask that it inherits */
		sigfillset(&blocked);
		sigprocmask(SIG_SETMASK, &blocked, NULL);
		setenv("TERM", term, 1);
		execv(program, arguments);
		_exit(127);
	}
}

static inline void terminal_type(struct terminal *t, const char *keys)
{
	assert_int_equal(write(t->fd, keys, strlen(keys)), (ssize_t)strlen(keys));
}

/* Close the terminal. Return the program's status, as from waitpid(). */
static inline int terminal_finish(struct terminal *t)
{
	int status;

	while (terminal_read(t))
		;
	assert_int_equal(waitpid(t->pid, &status, 0), t->pid);
	close(t->fd);
	close(t->own);
	return status;
}

#endif
