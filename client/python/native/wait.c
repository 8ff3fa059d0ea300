/*
 * wait.c - waits that a signal handler can end, and a count of forks.
 *
 * Python runs signal handlers in the main thread, between two bytecode instructions. No instruction ends while a call
 * waits in the library, so Ctrl-C would have no effect until the call returns. The library therefore calls a check
 * every 50 ms while a call waits; the check runs the handlers.
 */
#include "native.h"

#include <pthread.h>

static unsigned long main_thread;
static struct wait *waits; /* list of the main thread's waits; all after the first are made by signal handlers */
static Py_ssize_t wait_count;

/* Called by the library in the main thread, which does not hold the interpreter's lock. */
static int check(void *argument)
{
	struct wait *wait = argument;
	PyGILState_STATE state = PyGILState_Ensure();

	if (!wait->type && PyErr_CheckSignals())
		PyErr_Fetch(&wait->type, &wait->value, &wait->trace);
	PyGILState_Release(state);
	return wait->type != NULL;
}

void wait_begin(struct wait *wait, int timeout_ms)
{
	*wait = (struct wait){0};
	if (!timeout_ms || !lib.gpool_wait_check || PyThread_get_thread_ident() != main_thread)
		return;
	wait->set = true;
	wait->forks = native_forks;
	wait->outer = waits;
	waits = wait;
	wait_count++;
	lib.gpool_wait_check(check, wait);
}

int wait_end(struct wait *wait)
{
	if (!wait->set)
		return 0;
	if (wait->forks == native_forks) { /* else a handler has forked, and this is the child: see after_fork() */
		waits = wait->outer;
		wait_count--;
	}
	lib.gpool_wait_check(waits ? check : NULL, waits);
	return wait->type ? -1 : 0;
}

void wait_raise(struct wait *wait)
{
	PyErr_Restore(wait->type, wait->value, wait->trace);
}

PyDoc_STRVAR(waiting_doc,
	"waiting($module, call, arguments, undo, /)\n--\n\n"
	"Call call(*arguments), which may wait, and let signal handlers run during the wait.\n\n"
	"Raises the exception of a handler, which ends the wait; if the call had its result by then, undo() is called\n"
	"first, unless it is None.");

static PyObject *native_waiting(PyObject *module, PyObject *args)
{
	PyObject *call, *list, *undo, *result;
	struct wait wait;
	long code;

	(void)module;
	if (!PyArg_ParseTuple(args, "OO!O", &call, &PyTuple_Type, &list, &undo))
		return NULL;
	if (!lib.gpool_wait_check) {
		PyErr_SetString(PyExc_RuntimeError, "bind() was not called");
		return NULL;
	}
	wait_begin(&wait, -1);
	result = PyObject_CallObject(call, list);
	if (!wait_end(&wait))
		return result;
	PyErr_Clear();
	code = result ? PyLong_AsLong(result) : -1;
	Py_XDECREF(result);
	PyErr_Clear();
	if (code >= 0 && undo != Py_None) {
		result = PyObject_CallObject(undo, NULL);
		if (!result)
			PyErr_WriteUnraisable(undo);
		Py_XDECREF(result);
	}
	wait_raise(&wait);
	return NULL;
}

/*
 * Call the function `self`. If the main thread waits in the library, an exception of the function also ends this wait:
 * a signal handler may have raised the exception, because Python runs handlers between any two instructions.
 */
static PyObject *heard(PyObject *self, PyObject *args)
{
	PyObject *result = PyObject_CallObject(self, args);

	if (result || PyThread_get_thread_ident() != main_thread)
		return result;
	if (waits && !waits->type)
		PyErr_Fetch(&waits->type, &waits->value, &waits->trace);
	else if (!waits && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
		PyErr_Clear();
		PyErr_SetInterrupt(); /* raise it in the program, at the next bytecode instruction */
	} else
		return NULL;
	Py_RETURN_NONE;
}

PyDoc_STRVAR(hearing_doc,
	"hearing($module, function, /)\n--\n\n"
	"Return a function for the library that calls `function`, and keeps the exceptions of signal handlers that "
	"run\n"
	"meanwhile in the main thread.");

static PyObject *native_hearing(PyObject *module, PyObject *function)
{
	static PyMethodDef method = {"heard", heard, METH_VARARGS, NULL};

	(void)module;
	return PyCFunction_New(&method, function);
}

PyDoc_STRVAR(waits_doc, "waits($module, /)\n--\n\nReturn the number of calls in which the main thread waits.");

static PyObject *native_waits(PyObject *module, PyObject *none)
{
	(void)module;
	(void)none;
	return PyLong_FromSsize_t(wait_count);
}

static PyMethodDef wait_methods[] = {
	{"waiting", native_waiting, METH_VARARGS, waiting_doc},
	{"hearing", native_hearing, METH_O, hearing_doc},
	{"waits", native_waits, METH_NOARGS, waits_doc},
	{NULL, NULL, 0, NULL},
};

/* The thread that called fork() is the main thread of the child, and none of its calls waits. */
static void after_fork(void)
{
	native_forks++;
	main_thread = PyThread_get_thread_ident();
	waits = NULL;
	wait_count = 0;
}

/* The module may be imported by a thread other than the main thread. */
static int find_main_thread(void)
{
	PyObject *threading = PyImport_ImportModule("threading");
	PyObject *thread = threading ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
	PyObject *ident = thread ? PyObject_GetAttrString(thread, "ident") : NULL;

	if (ident)
		main_thread = PyLong_AsUnsignedLong(ident);
	Py_XDECREF(ident);
	Py_XDECREF(thread);
	Py_XDECREF(threading);
	return PyErr_Occurred() ? -1 : 0;
}

int wait_add(PyObject *module)
{
	static bool registered;

	if (find_main_thread())
		return -1;
	if (!registered && pthread_atfork(NULL, NULL, after_fork)) {
		PyErr_NoMemory();
		return -1;
	}
	registered = true;
	return PyModule_AddFunctions(module, wait_methods);
}
