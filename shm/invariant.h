/*
 * invariant.h - assertions of debug builds (CONFIG=debug).
 *
 * GPOOL_INVARIANT(condition, format, ...) - end the process with SIGABRT and a message if the condition is false. The
 * message contains file, line, condition and the formatted values. Other builds compile the condition but do not
 * evaluate it. The condition must not have side effects, and must not depend on memory that an untrusted process can
 * write.
 */
#ifndef GPOOL_SHM_INVARIANT_H
#define GPOOL_SHM_INVARIANT_H

#ifdef GPOOL_DEBUG
enum { INVARIANTS = 1 };
#else
enum { INVARIANTS = 0 };
#endif

/*
 * The message is written to standard error and to the file named by the environment variable GPOOL_INVARIANT_LOG. By
 * this file, a test detects the failure of a process that the keeper restarts.
 */
void invariant_failed(const char *file, int line, const char *condition, const char *format, ...)
	__attribute__((format(printf, 4, 5), noreturn, cold));

#define GPOOL_INVARIANT(condition, ...) \
	do { \
		if (INVARIANTS && !(condition)) \
			invariant_failed(__FILE__, __LINE__, #condition, __VA_ARGS__); \
	} while (0)

#endif
