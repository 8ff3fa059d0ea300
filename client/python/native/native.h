/* native.h - the types and functions that the source files of the module gpool._native share. */
#ifndef GPOOL_PYTHON_NATIVE_H
#define GPOOL_PYTHON_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpool.h"

/*
 * The functions of libgpool that the module calls. They are not linked: the package loads the library by ctypes and
 * passes their addresses to bind(), so that a process has only one copy of the library, wherever it was found.
 */
#define NATIVE_CALLS(call) \
	call(gpool_wait_check) call(gpool_alloc) call(gpool_free) call(gpool_free_after) call(gpool_discard) call( \
		gpool_pin) call(gpool_unpin) call(gpool_unpin_after) call(gpool_touch) call(gpool_address) \
		call(gpool_range_commit) call(gpool_range_decommit) call(gpool_range_offer) call(gpool_range_reclaim) \
			call(gpool_fence_record) call(gpool_fence_done) call(gpool_fence_wait) \
				call(gpool_fence_signal) call(gpool_kv_allocate) call(gpool_kv_append) \
					call(gpool_kv_fork) call(gpool_kv_free) call(gpool_kv_table) \
						call(gpool_range_publish) call(gpool_range_map) \
							call(gpool_range_unmap) call(gpool_object_pin) \
								call(gpool_object_unpin) call(gpool_object_info) \
									call(gpool_object_get) call(gpool_object_find)

struct native_calls {
#define NATIVE_MEMBER(name) __typeof__(&name) name;
	NATIVE_CALLS(NATIVE_MEMBER)
#undef NATIVE_MEMBER
};

extern struct native_calls lib;

/* Execute a statement without the interpreter's lock. */
#define UNLOCKED(statement) \
	do { \
		PyThreadState *unlocked_state = PyEval_SaveThread(); \
		statement; \
		PyEval_RestoreThread(unlocked_state); \
	} while (0)

/* Classes of the package whose instances this module creates, each derived from a type of this module; see setup(). */
enum native_class { CLASS_BLOCK, CLASS_PIN, CLASS_FENCE, CLASS_COUNT };
extern PyTypeObject *classes[CLASS_COUNT];

/* ---- guards ---- */

/*
 * Keeps a pointer of the library from being closed while it is in use. All fields are read and written under the
 * interpreter's lock, without a call of Python code between a check and the change that depends on it.
 */
struct guard {
	PyObject_HEAD struct guard *parent; /* NULL: none */
	PyObject *what;                     /* name of the object in messages */
	void *pointer;                      /* NULL: closed */
	unsigned int forks; /* native_forks at its creation; another number: this process is a forked child */
	Py_ssize_t calls;   /* calls in progress of this guard and its descendants */
	Py_ssize_t views;   /* views of this guard and its descendants */
};

extern unsigned int native_forks; /* number of forks between the process that loaded the module and this one */

/* Count a call of a guard and its parents. Return the pointer, or NULL with Closed or Forked set. */
void *guard_enter(struct guard *guard);
void guard_leave(struct guard *guard);
/* Return 0, or -1 with Closed or Forked set. */
int guard_usable(struct guard *guard);
bool guard_closed(const struct guard *guard);
bool guard_forked(const struct guard *guard);
/* Return 0, or -1 with Busy set if a view of the memory exists; verb: the refused operation, for the message. */
int guard_refuse_views(struct guard *guard, const char *verb);
/* Store a guard in a field from an attribute's setter. Return 0, or -1 with an exception. */
int guard_set(struct guard **field, PyObject *value);
/* Return a new reference to the guard, or NULL with AttributeError. */
PyObject *guard_get(struct guard *guard, const char *name);
/* Return the guard, or NULL with AttributeError, for a method of an object whose constructor has not set it. */
struct guard *guard_of(struct guard *guard);

/* ---- errors and arguments ---- */

/* Set the exception for a code of the library, in the thread of the failed call and right after it. Return NULL. */
PyObject *raise_code(int code, const char *what, ...) __attribute__((format(printf, 2, 3)));
/* Set the exception for a code, with a reason that this module states. Return NULL. */
PyObject *raise_because(int code, const char *what, const char *why);
/* Set the exception of a failed call that allocates pages. guard: the entered guard of `pool`. Return NULL. */
PyObject *raise_room(PyObject *pool, struct guard *guard, int code, const char *what, ...)
	__attribute__((format(printf, 4, 5)));

/* Return the ending of a noun after a number. */
static inline const char *plural(long long count)
{
	return count == 1 ? "" : "s";
}

/* Convert an argument. Return 0, or -1 with TypeError or OverflowError, which names the argument. */
int to_u32(PyObject *value, const char *name, uint32_t *result);
/* The same; the exception for a number that C cannot hold names `most`. The library refuses other numbers above it. */
int to_u32_most(PyObject *value, const char *name, uint32_t most, uint32_t *result);
/*
 * Remove the OverflowError of a conversion, so that the caller can raise one that names the valid numbers. Return the
 * page_count of a pool or range; or -1, with the exception unchanged, if it is another one or there is no page_count.
 */
long long pages_for_refusal(PyObject *self);
int to_u64(PyObject *value, const char *name, uint64_t *result);
/* Convert a timeout in milliseconds. The library refuses those below -1. */
int to_timeout(PyObject *value, const char *name, int *result);
/* Set a flag if an argument that is true or false is `when`. NULL: the flag is not set. Return 0, or -1. */
int to_flag(PyObject *value, uint32_t flag, bool when, uint32_t *flags);
/* Convert a fence of the pool with this guard, or None, which means no fence. Return as above, or -1 with Error. */
int to_fence(PyObject *value, struct guard *pool, struct gpool_fence *result);
/* Convert an open stream of the pool with this guard to its number, or None to 0. Also raises Closed and Error. */
int to_stream(PyObject *value, struct guard *pool, uint32_t *result);

/*
 * Collect at most `most` arguments by position or by name into `values`, which the caller has set to NULL. Arguments
 * from `positional` on must be named. Return 0, or -1 with TypeError.
 */
int arguments(const char *call, PyObject *args, PyObject *kwargs, const char *const *names, Py_ssize_t least,
	Py_ssize_t positional, Py_ssize_t most, PyObject **values);

/* ---- waiting ---- */

/* A call that waits. In the main thread, signal handlers run during the wait. */
struct wait {
	struct wait *outer;
	bool set;
	unsigned int forks;
	PyObject *type, *value, *trace; /* the exception of a handler, which has ended the wait */
};

void wait_begin(struct wait *wait, int timeout_ms);
/* Return 0, or -1 if a signal handler has raised an exception, which wait_raise() sets. */
int wait_end(struct wait *wait);
void wait_raise(struct wait *wait);

/* ---- types ---- */

int guard_add(PyObject *module);
int wait_add(PyObject *module);
int block_add(PyObject *module);
int range_add(PyObject *module);
int chunks_add(PyObject *module);
int kv_add(PyObject *module);
int fence_add(PyObject *module);

/* Create a type from its specification, and add it to the module. Return it, or NULL with an exception. */
PyTypeObject *type_add(PyObject *module, PyType_Spec *spec);
/* The end of tp_dealloc of a type of this module. */
void type_free(PyObject *self);

#endif
