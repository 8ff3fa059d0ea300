/* guard.c - the type Guard: a pointer of the library, which cannot be closed while calls or views use it. */
#include "native.h"

#include <errno.h>
#include <structmember.h>

unsigned int native_forks;

static PyTypeObject *guard_type;

bool guard_forked(const struct guard *guard)
{
	return guard->forks != native_forks;
}

bool guard_closed(const struct guard *guard)
{
	while (guard && guard->pointer)
		guard = guard->parent;
	return guard != NULL;
}

/* Let the package's method, which has the texts, raise Closed or Forked. */
static int refuse(struct guard *guard, int code)
{
	PyObject *result = PyObject_CallMethod((PyObject *)guard, "_refuse", "i", code);

	if (result)
		PyErr_SetString(PyExc_SystemError, "_refuse() has not raised an exception");
	Py_XDECREF(result);
	return -1;
}

/* Return 0, or -1 with an exception if a guard or an ancestor cannot be used; it names the topmost closed one. */
int guard_usable(struct guard *guard)
{
	struct guard *closed = NULL;

	if (guard_forked(guard))
		return refuse(guard, ECHILD);
	for (struct guard *each = guard; each; each = each->parent)
		if (!each->pointer)
			closed = each;
	return closed ? refuse(closed, EBADF) : 0;
}

static void count(struct guard *guard, int calls, int views)
{
	for (; guard; guard = guard->parent) {
		guard->calls += calls;
		guard->views += views;
	}
}

void *guard_enter(struct guard *guard)
{
	for (struct guard *each = guard; each; each = each->parent)
		if (!each->pointer || each->forks != native_forks) {
			if (guard_usable(guard))
				return NULL;
			break;
		}
	count(guard, 1, 0);
	return guard->pointer;
}

void guard_leave(struct guard *guard)
{
	count(guard, -1, 0);
}

int guard_refuse_views(struct guard *guard, const char *verb)
{
	PyObject *result;

	if (!guard->views)
		return 0;
	result = PyObject_CallMethod((PyObject *)guard, "refuse_views", "s", verb);
	Py_XDECREF(result);
	return result ? 0 : -1;
}

int guard_set(struct guard **field, PyObject *value)
{
	struct guard *old = *field;

	if (!value || !PyObject_TypeCheck(value, guard_type)) {
		PyErr_SetString(PyExc_TypeError, "not a Guard");
		return -1;
	}
	Py_INCREF(value);
	*field = (struct guard *)value;
	Py_XDECREF(old);
	return 0;
}

PyObject *guard_get(struct guard *guard, const char *name)
{
	if (!guard)
		PyErr_SetString(PyExc_AttributeError, name);
	Py_XINCREF(guard);
	return (PyObject *)guard;
}

struct guard *guard_of(struct guard *guard)
{
	if (!guard)
		PyErr_SetString(PyExc_AttributeError, "the object was not initialized");
	return guard;
}

/* ---- methods ---- */

static PyObject *guard_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static const char *const names[] = {"pointer", "what", "parent"};
	PyObject *values[3] = {NULL};
	struct guard *guard;
	void *pointer;

	if (arguments("Guard", args, kwargs, names, 2, 3, 3, values))
		return NULL;
	pointer = PyLong_AsVoidPtr(values[0]);
	if (!pointer) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_ValueError, "pointer is 0");
		return NULL;
	}
	if (values[2] && values[2] != Py_None && !PyObject_TypeCheck(values[2], guard_type)) {
		PyErr_SetString(PyExc_TypeError, "parent is not a Guard");
		return NULL;
	}
	guard = (struct guard *)PyType_GenericAlloc(type, 0);
	if (!guard)
		return NULL;
	guard->pointer = pointer;
	guard->forks = native_forks;
	Py_INCREF(values[1]);
	guard->what = values[1];
	if (values[2] && values[2] != Py_None) {
		Py_INCREF(values[2]);
		guard->parent = (struct guard *)values[2];
	}
	return (PyObject *)guard;
}

static int guard_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct guard *guard = (struct guard *)self;

	Py_VISIT(Py_TYPE(self));
	Py_VISIT(guard->parent);
	Py_VISIT(guard->what);
	return 0;
}

/* Keep the parent, in which views that end in the same collection are counted. A guard alone forms no cycle. */
static void guard_dealloc(PyObject *self)
{
	struct guard *guard = (struct guard *)self;

	PyObject_GC_UnTrack(self);
	Py_XDECREF(guard->parent);
	Py_XDECREF(guard->what);
	type_free(self);
}

static PyObject *guard_enter_method(PyObject *self, PyObject *none)
{
	void *pointer = guard_enter((struct guard *)self);

	(void)none;
	return pointer ? PyLong_FromVoidPtr(pointer) : NULL;
}

static PyObject *guard_exit_method(PyObject *self, PyObject *args)
{
	struct guard *guard = (struct guard *)self;

	(void)args;
	if (guard_forked(guard)) {
		refuse(guard, ECHILD);
		return NULL;
	}
	guard_leave(guard);
	Py_RETURN_NONE;
}

PyDoc_STRVAR(hold_doc, "hold($self, /)\n--\n\nCount a view. Raises Closed; Forked.");

static PyObject *guard_hold(PyObject *self, PyObject *none)
{
	(void)none;
	if (guard_usable((struct guard *)self))
		return NULL;
	count((struct guard *)self, 0, 1);
	Py_RETURN_NONE;
}

PyDoc_STRVAR(release_doc, "release($self, /)\n--\n\nEnd the count of a view.");

static PyObject *guard_release(PyObject *self, PyObject *none)
{
	(void)none;
	if (!guard_forked((struct guard *)self))
		count((struct guard *)self, 0, -1);
	Py_RETURN_NONE;
}

PyDoc_STRVAR(end_doc,
	"end($self, call, before, with_pointer, waits, /)\n--\n\n"
	"Call call(*before, pointer), or call(*before), which ends the pointer, and refuse other calls and views from "
	"then "
	"on.\n"
	"waits: signal handlers run while the call waits, and the exception of a handler ends the wait.\n\n"
	"Return its result, where None means 0; None: a call or a view uses the pointer, 0: it has ended. After an "
	"exception\n"
	"or a negative result, the pointer can be used again. If `call` is a function of the library, a handler's "
	"exception\n"
	"never hides that it has succeeded: no Python code runs between its end and the change of the guard.");

/* Return the arguments of the call: those in `before`, and the pointer. */
static PyObject *end_arguments(const struct guard *guard, PyObject *before, int with_pointer)
{
	PyObject *list, *pointer, *sum;

	if (!with_pointer) {
		Py_INCREF(before);
		return before;
	}
	pointer = PyLong_FromVoidPtr(guard->pointer);
	list = pointer ? PyTuple_Pack(1, pointer) : NULL;
	sum = list ? PySequence_Concat(before, list) : NULL;
	Py_XDECREF(pointer);
	Py_XDECREF(list);
	return sum;
}

static PyObject *guard_end(PyObject *self, PyObject *args)
{
	struct guard *guard = (struct guard *)self;
	PyObject *call, *before, *list, *result;
	void *pointer = guard->pointer;
	int with_pointer, waits, raised;
	struct wait wait;
	long code = -1;

	if (!PyArg_ParseTuple(args, "OO!pp", &call, &PyTuple_Type, &before, &with_pointer, &waits))
		return NULL;
	if (guard->calls || guard->views)
		Py_RETURN_NONE;
	if (!pointer)
		return PyLong_FromLong(0);
	list = end_arguments(guard, before, with_pointer);
	if (!list)
		return NULL;
	guard->pointer = NULL;
	wait_begin(&wait, waits ? -1 : 0);
	result = PyObject_CallObject(call, list);
	raised = wait_end(&wait);
	if (result)
		code = result == Py_None ? 0 : PyLong_AsLong(result);
	Py_XDECREF(result);
	Py_DECREF(list);
	if (code < 0)
		guard->pointer = pointer;
	if (raised) {
		PyErr_Clear();
		wait_raise(&wait);
	}
	return PyErr_Occurred() ? NULL : PyLong_FromLong(code);
}

static PyObject *guard_get_forked(PyObject *self, void *closure)
{
	(void)closure;
	return PyBool_FromLong(guard_forked((struct guard *)self));
}

static PyObject *guard_get_closed(PyObject *self, void *closure)
{
	(void)closure;
	return PyBool_FromLong(guard_closed((struct guard *)self));
}

static PyObject *guard_get_parent(PyObject *self, void *closure)
{
	PyObject *parent = (PyObject *)((struct guard *)self)->parent;

	(void)closure;
	if (!parent)
		Py_RETURN_NONE;
	Py_INCREF(parent);
	return parent;
}

static PyMethodDef guard_methods[] = {
	{"__enter__", guard_enter_method, METH_NOARGS, NULL},
	{"__exit__", guard_exit_method, METH_VARARGS, NULL},
	{"hold", guard_hold, METH_NOARGS, hold_doc},
	{"release", guard_release, METH_NOARGS, release_doc},
	{"end", guard_end, METH_VARARGS, end_doc},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef guard_members[] = {
	{"what", T_OBJECT_EX, offsetof(struct guard, what), READONLY, "description of the handle for error messages"},
	{"calls", T_PYSSIZET, offsetof(struct guard, calls), READONLY, "number of calls in progress"},
	{"held", T_PYSSIZET, offsetof(struct guard, views), READONLY,
		"number of views, including ended tensors of DLPack"},
	{NULL, 0, 0, 0, NULL},
};

static PyGetSetDef guard_getset[] = {
	{"forked", guard_get_forked, NULL, "whether this process is a child of the process that created the handle",
		NULL},
	{"closed", guard_get_closed, NULL, "whether the handle or its parent was closed", NULL},
	{"parent", guard_get_parent, NULL, "the handle that also counts the users of this handle, or None", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot guard_slots[] = {
	{Py_tp_doc, "Count the users of a pointer of the library."},
	{Py_tp_new, guard_new},
	{Py_tp_traverse, guard_traverse},
	{Py_tp_dealloc, guard_dealloc},
	{Py_tp_methods, guard_methods},
	{Py_tp_members, guard_members},
	{Py_tp_getset, guard_getset},
	{0, NULL},
};

static PyType_Spec guard_spec = {
	"gpool._native.Guard",
	sizeof(struct guard),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	guard_slots,
};

int guard_add(PyObject *module)
{
	guard_type = type_add(module, &guard_spec);
	return guard_type ? 0 : -1;
}
