/* fence.c - the types Stream and Fence: record, query, signal and wait for fences. */
#include "native.h"

#include <errno.h>

static PyTypeObject *stream_type, *fence_type;

struct stream {
	PyObject_HEAD struct guard *handle; /* of the pool */
	uint32_t number;
	bool closed;
};

struct fence {
	PyObject_HEAD struct guard *handle; /* of the pool */
	struct gpool_fence fence;
};

/* Streams and fences are numbers, which are unique only within a pool, so objects of another pool must be refused. */
static int same_pool(const struct guard *mine, struct guard *pool, const char *name)
{
	if (mine == pool)
		return 0;
	if (!guard_usable(pool)) /* a closed pool is the first cause */
		raise_because(EINVAL, name, "it belongs to another pool");
	return -1;
}

int to_fence(PyObject *value, struct guard *pool, struct gpool_fence *result)
{
	if (value == Py_None) {
		*result = GPOOL_FENCE_NONE;
		return 0;
	}
	if (!PyObject_TypeCheck(value, fence_type)) {
		PyErr_Format(PyExc_TypeError, "after is %R, which is not a Fence", value);
		return -1;
	}
	*result = ((struct fence *)value)->fence;
	return same_pool(((struct fence *)value)->handle, pool, "use a fence");
}

static int stream_open(struct stream *stream)
{
	if (!stream->closed)
		return 0;
	raise_because(EBADF, "use a stream", "it is closed");
	return -1;
}

int to_stream(PyObject *value, struct guard *pool, uint32_t *result)
{
	*result = 0;
	if (value == Py_None)
		return 0;
	if (!PyObject_TypeCheck(value, stream_type)) {
		PyErr_Format(PyExc_TypeError, "stream is %R, which is not a Stream", value);
		return -1;
	}
	if (guard_usable(pool) || stream_open((struct stream *)value))
		return -1;
	*result = ((struct stream *)value)->number;
	return same_pool(((struct stream *)value)->handle, pool, "use a stream");
}

/* Parse the handle and the number that both constructors take. */
static int made_of(
	const char *type, PyObject *args, PyObject *kwargs, const char *number, struct guard **handle, PyObject **value)
{
	const char *const names[] = {"handle", number};
	PyObject *values[2] = {NULL};

	if (arguments(type, args, kwargs, names, 2, 2, 2, values) || guard_set(handle, values[0]))
		return -1;
	*value = values[1];
	return 0;
}

/* ---- streams ---- */

PyDoc_STRVAR(record_doc,
	"record($self, /)\n--\n\n"
	"Return a fence for all work that is queued so far.\n\n"
	"Raises Error with EIO (driver).\n"
	"Cost: a driver call.");

static PyObject *stream_record(PyObject *self, PyObject *none)
{
	struct stream *stream = (struct stream *)self;
	struct fence *made;
	struct gpool *pointer;
	int result;

	(void)none;
	if (stream_open(stream) || !(pointer = guard_enter(stream->handle)))
		return NULL;
	made = (struct fence *)PyType_GenericAlloc(classes[CLASS_FENCE], 0);
	if (!made) {
		guard_leave(stream->handle);
		return NULL;
	}
	Py_INCREF(stream->handle);
	made->handle = stream->handle;
	UNLOCKED(result = lib.gpool_fence_record(pointer, stream->number, &made->fence));
	if (result < 0)
		raise_code(result, "record a fence");
	guard_leave(stream->handle);
	if (result < 0) {
		Py_DECREF(made);
		return NULL;
	}
	return (PyObject *)made;
}

PyDoc_STRVAR(
	take_doc, "take($self, /)\n--\n\nReturn the number and mark the stream as closed; 0: it was closed before.");

static PyObject *stream_take(PyObject *self, PyObject *none)
{
	struct stream *stream = (struct stream *)self;
	bool closed = stream->closed;

	(void)none;
	stream->closed = true;
	return PyLong_FromUnsignedLong(closed ? 0 : stream->number);
}

static PyObject *stream_get_number(PyObject *self, void *closure)
{
	struct stream *stream = (struct stream *)self;

	(void)closure;
	return stream_open(stream) ? NULL : PyLong_FromUnsignedLong(stream->number);
}

static PyObject *stream_get_closed(PyObject *self, void *closure)
{
	(void)closure;
	return PyBool_FromLong(((struct stream *)self)->closed);
}

static PyObject *stream_get_handle(PyObject *self, void *closure)
{
	(void)closure;
	return guard_get(((struct stream *)self)->handle, "_handle");
}

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct stream *stream = (struct stream *)PyType_GenericAlloc(type, 0);
	PyObject *number;

	if (stream &&
		(made_of("Stream", args, kwargs, "number", &stream->handle, &number) ||
			to_u32(number, "number", &stream->number))) {
		Py_DECREF(stream);
		return NULL;
	}
	return (PyObject *)stream;
}

static int stream_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct stream *)self)->handle);
	return 0;
}

static void stream_dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self);
	Py_XDECREF(((struct stream *)self)->handle);
	type_free(self);
}

static PyMethodDef stream_methods[] = {
	{"record", stream_record, METH_NOARGS, record_doc},
	{"take", stream_take, METH_NOARGS, take_doc},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef stream_getset[] = {
	{"number", stream_get_number, NULL, "Number of the stream in the C library. Raises Closed.", NULL},
	{"closed", stream_get_closed, NULL, "Whether the stream was closed.", NULL},
	{"_handle", stream_get_handle, NULL, "the guard of the pool", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot stream_slots[] = {
	{Py_tp_doc, "The calls of a stream that an engine makes in each step."},
	{Py_tp_new, stream_new},
	{Py_tp_traverse, stream_traverse},
	{Py_tp_dealloc, stream_dealloc},
	{Py_tp_methods, stream_methods},
	{Py_tp_getset, stream_getset},
	{0, NULL},
};

static PyType_Spec stream_spec = {
	"gpool._native.Stream",
	sizeof(struct stream),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	stream_slots,
};

/* ---- fences ---- */

static PyObject *fence_get_done(PyObject *self, void *closure)
{
	struct fence *fence = (struct fence *)self;
	struct gpool *pointer = guard_enter(fence->handle);
	int result;

	(void)closure;
	if (!pointer)
		return NULL;
	UNLOCKED(result = lib.gpool_fence_done(pointer, fence->fence));
	if (result < 0)
		raise_code(result, "check a fence");
	guard_leave(fence->handle);
	return result < 0 ? NULL : PyBool_FromLong(result);
}

PyDoc_STRVAR(wait_doc,
	"wait($self, /, timeout_ms=-1)\n--\n\n"
	"Wait until the fence is signaled.\n\n"
	"timeout_ms: longest wait in milliseconds; -1: no limit.\n"
	"Raises TimedOut; as `done`.\n"
	"Cost: sleeps on shared memory.");

static PyObject *fence_wait(PyObject *self, PyObject *args, PyObject *kwargs)
{
	static const char *const names[] = {"timeout_ms"};
	struct fence *fence = (struct fence *)self;
	PyObject *value = NULL;
	struct gpool *pointer;
	int timeout_ms = -1, result;
	struct wait wait;
	bool raised;

	if (arguments("wait", args, kwargs, names, 0, 1, 1, &value) ||
		(value && to_timeout(value, "timeout_ms", &timeout_ms)) || !(pointer = guard_enter(fence->handle)))
		return NULL;
	wait_begin(&wait, timeout_ms);
	UNLOCKED(result = lib.gpool_fence_wait(pointer, fence->fence, timeout_ms));
	raised = wait_end(&wait);
	if (raised)
		wait_raise(&wait);
	else if (result < 0)
		raise_code(result, "wait for a fence");
	guard_leave(fence->handle);
	if (raised || result < 0)
		return NULL;
	Py_RETURN_NONE;
}

PyDoc_STRVAR(signal_doc,
	"signal($self, /)\n--\n\n"
	"Signal the fence and all earlier ones of its host-signaled timeline.\n\n"
	"Raises Error with EINVAL: not a fence of a host-signaled timeline.\n"
	"Cost: one store, and a wake-up if another thread or process waits.");

static PyObject *fence_signal(PyObject *self, PyObject *none)
{
	struct fence *fence = (struct fence *)self;
	struct gpool *pointer = guard_enter(fence->handle);
	int result;

	(void)none;
	if (!pointer)
		return NULL;
	UNLOCKED(result = lib.gpool_fence_signal(pointer, fence->fence));
	if (result < 0)
		raise_code(result, "signal a fence");
	guard_leave(fence->handle);
	if (result < 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *fence_get_value(PyObject *self, void *closure)
{
	(void)closure;
	return PyLong_FromUnsignedLongLong(((struct fence *)self)->fence.value);
}

static PyObject *fence_get_handle(PyObject *self, void *closure)
{
	(void)closure;
	return guard_get(((struct fence *)self)->handle, "_handle");
}

static PyObject *fence_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct fence *fence = (struct fence *)PyType_GenericAlloc(type, 0);
	PyObject *value;

	if (fence &&
		(made_of("Fence", args, kwargs, "value", &fence->handle, &value) ||
			to_u64(value, "value", &fence->fence.value))) {
		Py_DECREF(fence);
		return NULL;
	}
	return (PyObject *)fence;
}

static int fence_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct fence *)self)->handle);
	return 0;
}

static void fence_dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self);
	Py_XDECREF(((struct fence *)self)->handle);
	type_free(self);
}

static PyMethodDef fence_methods[] = {
	{"wait", (PyCFunction)(void (*)(void))fence_wait, METH_VARARGS | METH_KEYWORDS, wait_doc},
	{"signal", fence_signal, METH_NOARGS, signal_doc},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef fence_getset[] = {
	{"done", fence_get_done, NULL,
		"Whether the fence is signaled.\n\n"
		"Raises Error with EINVAL (not a fence of this process); of an imported fence also Error with ESRCH "
		"(its process\n"
		"died before) and AgentGone (the agent, which reports deaths, is not running).\n"
		"Cost: one load.",
		NULL},
	{"value", fence_get_value, NULL, "Value of the struct gpool_fence of the C library.", NULL},
	{"_handle", fence_get_handle, NULL, "the guard of the pool", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot fence_slots[] = {
	{Py_tp_doc, "The calls of a fence that an engine makes in each step."},
	{Py_tp_new, fence_new},
	{Py_tp_traverse, fence_traverse},
	{Py_tp_dealloc, fence_dealloc},
	{Py_tp_methods, fence_methods},
	{Py_tp_getset, fence_getset},
	{0, NULL},
};

static PyType_Spec fence_spec = {
	"gpool._native.Fence",
	sizeof(struct fence),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	fence_slots,
};

int fence_add(PyObject *module)
{
	stream_type = type_add(module, &stream_spec);
	fence_type = type_add(module, &fence_spec);
	return stream_type && fence_type ? 0 : -1;
}
