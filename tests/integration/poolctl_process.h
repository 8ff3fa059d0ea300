/*
 * poolctl_process.h - run poolctl as a process and return its exit status, both outputs and its JSON.
 *
 * A poolctl that is killed by a signal fails the test. Each test program includes this header once, after its own
 * headers.
 */
#ifndef GPOOL_TESTS_POOLCTL_PROCESS_H
#define GPOOL_TESTS_POOLCTL_PROCESS_H

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

enum {
	ARGUMENTS_MAX = 24,
	STUCK_SECONDS = 1000,
	OK = 0,
	FAILED = 1,
	USAGE = 2,
	NO_AGENT = 3,
	FOUND = 4,
};

/* ---- files ---- */

static inline void file_write(const char *path, const void *content, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, content, bytes), (ssize_t)bytes);
	close(fd);
}

static inline char *file_read(const char *path, size_t *bytes)
{
	FILE *file = fopen(path, "re");
	char *content;
	long size;

	if (!file)
		fail_msg("cannot open %s", path);
	fseek(file, 0, SEEK_END);
	size = ftell(file);
	rewind(file);
	content = calloc(1, (size_t)size + 1);
	assert_non_null(content);
	assert_int_equal(fread(content, 1, (size_t)size, file), (size_t)size);
	fclose(file);
	if (bytes)
		*bytes = (size_t)size;
	return content;
}

/* ---- running poolctl ---- */

struct result {
	int code;
	char *out, *err;
	cJSON *json; /* `out`, parsed, if it is JSON */
};

/* Return $POOLCTL, or else the path of poolctl one folder above this program (build/CONFIG/tests/test_poolctl). */
static inline const char *poolctl_path(void)
{
	static char path[600];
	ssize_t length;

	if (getenv("POOLCTL"))
		return getenv("POOLCTL");
	if (path[0])
		return path;
	length = readlink("/proc/self/exe", path, 512);
	assert_true(length > 0);
	path[length] = '\0';
	*strrchr(path, '/') = '\0';
	strcat(path, "/../poolctl");
	return path;
}

/* Read a source file below $GPOOL_SOURCE, or else below the folder in which the tests run. */
static inline char *source_read(const char *name)
{
	const char *source = getenv("GPOOL_SOURCE");
	char path[600];

	snprintf(path, sizeof(path), "%s/%s", source ? source : ".", name);
	return file_read(path, NULL);
}

static inline void exec_poolctl(char *const *arguments, int out, int err, uid_t uid)
{
	/* Open the executable first: another user may have no access to the build folder. */
	int program = open(poolctl_path(), O_PATH | O_CLOEXEC);

	dup2(out, STDOUT_FILENO);
	dup2(err, STDERR_FILENO);
	if (uid && (setgroups(0, NULL) || setgid(uid) || setuid(uid)))
		_exit(127);
	fexecve(program, arguments, environ);
	_exit(127);
}

struct running {
	pid_t pid;
	int out, err;
};

/* If uid is 0, poolctl runs as the user of this process. The user's group has the same number as the user. */
static inline struct running poolctl_start_as(char *const *arguments, uid_t uid)
{
	struct running running;
	int out[2], err[2];

	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	assert_int_equal(pipe2(err, O_CLOEXEC), 0);
	fflush(NULL);
	/* After vfork(), setuid() would also change the threads of this process. */
	running.pid = uid ? fork() : vfork();
	assert_true(running.pid >= 0);
	if (running.pid == 0)
		exec_poolctl(arguments, out[1], err[1], uid);
	close(out[1]);
	close(err[1]);
	running.out = out[0];
	running.err = err[0];
	return running;
}

static inline struct running poolctl_start(char *const *arguments)
{
	return poolctl_start_as(arguments, 0);
}

/*
 * Start poolctl with `out` as its output, and close `out` in this process. `read` is the other end; poolctl_finish()
 * closes it.
 */
static inline struct running poolctl_start_at(char *const *arguments, int out, int read)
{
	struct running running = {.out = read};
	int err[2];

	assert_int_equal(pipe2(err, O_CLOEXEC), 0);
	fflush(NULL);
	running.pid = vfork();
	assert_true(running.pid >= 0);
	if (running.pid == 0)
		exec_poolctl(arguments, out, err[1], 0);
	close(out);
	close(err[1]);
	running.err = err[0];
	return running;
}

static inline void text_append(char **text, size_t *length, int fd, struct pollfd *wait)
{
	char buffer[4096];
	ssize_t got = read(fd, buffer, sizeof(buffer));

	if (got <= 0) {
		wait->fd = -1;
		return;
	}
	*text = realloc(*text, *length + (size_t)got + 1);
	assert_non_null(*text);
	memcpy(*text + *length, buffer, (size_t)got);
	*length += (size_t)got;
	(*text)[*length] = '\0';
}

static inline struct result poolctl_finish(struct running running)
{
	struct pollfd waits[2] = {{.fd = running.out, .events = POLLIN}, {.fd = running.err, .events = POLLIN}};
	struct result result = {.out = calloc(1, 1), .err = calloc(1, 1)};
	size_t lengths[2] = {0, 0};
	int status;

	while (waits[0].fd >= 0 || waits[1].fd >= 0) {
		assert_true(poll(waits, 2, -1) > 0);
		if (waits[0].fd >= 0 && waits[0].revents)
			text_append(&result.out, &lengths[0], running.out, &waits[0]);
		if (waits[1].fd >= 0 && waits[1].revents)
			text_append(&result.err, &lengths[1], running.err, &waits[1]);
	}
	close(running.out);
	close(running.err);
	assert_int_equal(waitpid(running.pid, &status, 0), running.pid);
	if (!WIFEXITED(status))
		fail_msg("poolctl died of signal %d; it said: %s", WTERMSIG(status), result.err);
	result.code = WEXITSTATUS(status);
	assert_int_not_equal(result.code, 127);
	result.json = cJSON_Parse(result.out);
	return result;
}

static inline void result_free(struct result *result)
{
	free(result->out);
	free(result->err);
	cJSON_Delete(result->json);
}

static inline void arguments_fill(char **to, const char *first, va_list rest)
{
	int count = 0;

	to[count++] = (char *)"poolctl";
	for (const char *argument = first; argument; argument = va_arg(rest, const char *)) {
		assert_true(count < ARGUMENTS_MAX - 1);
		to[count++] = (char *)(uintptr_t)argument;
	}
	to[count] = NULL;
}

/* Run poolctl. The arguments end with NULL. */
static inline struct result poolctl(const char *first, ...)
{
	char *arguments[ARGUMENTS_MAX];
	va_list rest;

	va_start(rest, first);
	arguments_fill(arguments, first, rest);
	va_end(rest);
	return poolctl_finish(poolctl_start(arguments));
}

static inline void expect(struct result *result, int code)
{
	if (result->code != code)
		fail_msg(
			"exit status %d instead of %d\nout: %s\nerr: %s", result->code, code, result->out, result->err);
	/* a failing program reports the cause on stderr; a successful one writes nothing to stderr */
	if (code == OK)
		assert_string_equal(result->err, "");
	else if (code != FOUND)
		assert_int_equal(strncmp(result->err, "poolctl: ", 9), 0);
}

static inline void expect_text(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("'%s' is missing in:\n%s", part, text);
}

static inline double number(const cJSON *object, const char *name)
{
	const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);

	if (!cJSON_IsNumber(value))
		fail_msg("no number '%s' in %s", name, cJSON_PrintUnformatted(object));
	return value->valuedouble;
}

static inline const char *string(const cJSON *object, const char *name)
{
	const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);

	if (!cJSON_IsString(value))
		fail_msg("no text '%s' in %s", name, cJSON_PrintUnformatted(object));
	return value->valuestring;
}

static inline const cJSON *list(const struct result *result, const char *name)
{
	const cJSON *value = cJSON_GetObjectItemCaseSensitive(result->json, name);

	if (!cJSON_IsArray(value))
		fail_msg("no list '%s' in %s", name, result->out);
	return value;
}

static inline void expect_document(const struct result *result, const char *kind)
{
	if (!result->json)
		fail_msg("no JSON: %s\n%s", result->out, result->err);
	assert_int_equal(number(result->json, "version"), 1);
	assert_string_equal(string(result->json, "kind"), kind);
}

/* Return the verbs that --help lists: lines in the part after "Verbs:" that begin with two blanks and a name. */
static inline int verb_names(char names[32][16])
{
	struct result result = poolctl("--help", NULL);
	const char *line;
	int count = 0;

	expect(&result, OK);
	line = strstr(result.out, "Verbs:\n");
	assert_non_null(line);
	for (line = strchr(line, '\n') + 1; line[0] == ' '; line = strchr(line, '\n') + 1) {
		assert_true(count < 32);
		assert_int_equal(sscanf(line, "%15s", names[count++]), 1);
	}
	result_free(&result);
	return count;
}

#endif
