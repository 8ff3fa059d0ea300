/* range.c - the type Range: give pages of an elastic range memory, and take it away. */
#include "native.h"

struct range {
	PyObject_HEAD struct guard *handle;
	PyObject *pool;
};

enum { FIRST, COUNT, LAST, ARGUMENTS };

static const char *const commit_names[ARGUMENTS] = {"first", "count", "timeout_ms"};
static const char *const after_names[ARGUMENTS] = {"first", "count", "after"};

/*
 * If C cannot hold a number, name the valid ones, from `least` to `beyond` before the number of pages; the library
 * refuses other numbers. Return NULL.
 */
static struct guard *refuse(PyObject *self, PyObject *value, const char *name, long least, long beyond)
{
	long long count = pages_for_refusal(self);

	if (count >= 0)
		PyErr_Format(PyExc_OverflowError, "%s is %S; it must be from %ld to %lld; the range has %lld page%s",
			name, value, least, count - beyond, count, plural(count));
	return NULL;
}

/* Parse the pages and the third argument of a call, if present. Return the range's guard, or NULL with an exception. */
static struct guard *pages(PyObject *self, const char *call, PyObject *args, PyObject *kwargs, const char *const *names,
	uint32_t *first, uint32_t *count, PyObject **last)
{
	PyObject *values[ARGUMENTS] = {NULL};
	Py_ssize_t most = last ? ARGUMENTS : LAST;

	if (arguments(call, args, kwargs, names, LAST, most, most, values))
		return NULL;
	if (to_u32(values[FIRST], "first", first))
		return refuse(self, values[FIRST], "first", 0, 1);
	if (to_u32(values[COUNT], "count", count))
		return refuse(self, values[COUNT], "count", 1, 0);
	if (last)
		*last = values[LAST];
	return guard_of(((struct range *)self)->handle);
}

PyDoc_STRVAR(commit_doc,
	"commit($self, /, first, count, timeout_ms=0)\n--\n\n"
	"Commit memory to the pages [first, first + count) of an elastic range, all or none; committed pages\n"
	"keep their content.\n\n"
	"timeout_ms: longest wait for pages in milliseconds; 0: do not wait, -1: no limit.\n"
	"Raises NoRoom; Asleep; Busy: another thread commits them; Error with EINVAL: not an elastic range, or beyond "
	"its\n"
	"end.\n"
	"Cost: none for reclaimable pages; otherwise a request to the agent, a map call for each handle, an access "
	"call.");

static PyObject *range_commit(PyObject *self, PyObject *args, PyObject *kwargs)
{
	PyObject *last;
	uint32_t first, count;
	int timeout_ms = 0, result;
	struct guard *guard = pages(self, "commit", args, kwargs, commit_names, &first, &count, &last);
	struct gpool_range *pointer;
	struct wait wait;
	bool raised;

	if (!guard || (last && to_timeout(last, "timeout_ms", &timeout_ms)) || !(pointer = guard_enter(guard)))
		return NULL;
	wait_begin(&wait, timeout_ms);
	UNLOCKED(result = lib.gpool_range_commit(pointer, first, count, timeout_ms));
	raised = wait_end(&wait);
	if (raised)
		wait_raise(&wait);
	else if (result < 0)
		raise_room(((struct range *)self)->pool, guard->parent, result, "commit %lu page%s",
			(unsigned long)count, plural(count));
	guard_leave(guard);
	if (raised || result < 0)
		return NULL;
	Py_RETURN_NONE;
}

/* Implement decommit() and offer(). */
static PyObject *remove_pages(PyObject *self, PyObject *args, PyObject *kwargs, const char *name, const char *refused,
	int (*call)(struct gpool_range *, uint32_t, uint32_t, struct gpool_fence))
{
	PyObject *last;
	uint32_t first, count;
	struct gpool_fence fence = GPOOL_FENCE_NONE;
	struct guard *guard = pages(self, name, args, kwargs, after_names, &first, &count, &last);
	struct gpool_range *pointer;
	int result;

	if (!guard || (last && to_fence(last, guard->parent, &fence)) || guard_refuse_views(guard, refused) ||
		!(pointer = guard_enter(guard)))
		return NULL;
	UNLOCKED(result = call(pointer, first, count, fence));
	if (result < 0)
		raise_code(result, "%s %lu page%s", name, (unsigned long)count, plural(count));
	guard_leave(guard);
	if (result < 0)
		return NULL;
	Py_RETURN_NONE;
}

PyDoc_STRVAR(decommit_doc,
	"decommit($self, /, first, count, after=None)\n--\n\n"
	"Decommit the pages [first, first + count) of an elastic range; their content is lost.\n\n"
	"after: fence of the last work that uses the pages.\n"
	"Raises Busy: a view of the range exists; Asleep; Error with EINVAL.\n"
	"Cost: no request to the agent and no driver call.");

static PyObject *range_decommit(PyObject *self, PyObject *args, PyObject *kwargs)
{
	return remove_pages(self, args, kwargs, "decommit", "decommit pages of", lib.gpool_range_decommit);
}

PyDoc_STRVAR(offer_doc,
	"offer($self, /, first, count, after=None)\n--\n\n"
	"Permit the agent to take the committed pages [first, first + count) when it needs them; until then they keep\n"
	"their content.\n\n"
	"after: fence of the last work that uses the pages. Call reclaim() before the pages are used again.\n"
	"Raises Busy: a view of the range exists; Asleep; Error with EINVAL: a page is not committed, or captured.\n"
	"Cost: no request to the agent and no driver call.");

static PyObject *range_offer(PyObject *self, PyObject *args, PyObject *kwargs)
{
	return remove_pages(self, args, kwargs, "offer", "offer pages of", lib.gpool_range_offer);
}

PyDoc_STRVAR(reclaim_doc,
	"reclaim($self, /, first, count)\n--\n\n"
	"End the offer of the pages [first, first + count); return a byte for each: 1: committed, with its content; "
	"0:\n"
	"not committed.\n\n"
	"Raises Asleep; Error with EINVAL.\n"
	"Cost: no request to the agent and no driver call.");

static PyObject *range_reclaim(PyObject *self, PyObject *args, PyObject *kwargs)
{
	uint32_t first, count;
	struct guard *guard = pages(self, "reclaim", args, kwargs, after_names, &first, &count, NULL);
	struct gpool_range *pointer;
	PyObject *kept;
	uint8_t *bytes;
	int result;

	if (!guard)
		return NULL;
	kept = PyBytes_FromStringAndSize(NULL, count);
	if (!kept)
		return NULL;
	pointer = guard_enter(guard);
	if (!pointer) {
		Py_DECREF(kept);
		return NULL;
	}
	bytes = (uint8_t *)PyBytes_AsString(kept);
	UNLOCKED(result = lib.gpool_range_reclaim(pointer, first, count, bytes));
	if (result < 0)
		raise_code(result, "reclaim %lu page%s", (unsigned long)count, plural(count));
	guard_leave(guard);
	if (result < 0) {
		Py_DECREF(kept);
		return NULL;
	}
	return kept;
}

/* ---- the type ---- */

static PyObject *range_get_handle(PyObject *self, void *closure)
{
	(void)closure;
	return guard_get(((struct range *)self)->handle, "handle");
}

static int range_set_handle(PyObject *self, PyObject *value, void *closure)
{
	(void)closure;
	return guard_set(&((struct range *)self)->handle, value);
}

static PyObject *range_get_pool(PyObject *self, void *closure)
{
	PyObject *pool = ((struct range *)self)->pool;

	(void)closure;
	if (!pool)
		PyErr_SetString(PyExc_AttributeError, "_pool");
	Py_XINCREF(pool);
	return pool;
}

static int range_set_pool(PyObject *self, PyObject *value, void *closure)
{
	struct range *range = (struct range *)self;
	PyObject *old = range->pool;

	(void)closure;
	Py_XINCREF(value);
	range->pool = value;
	Py_XDECREF(old);
	return 0;
}

static int range_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct range *)self)->handle);
	Py_VISIT(((struct range *)self)->pool);
	return 0;
}

static void range_dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self);
	Py_XDECREF(((struct range *)self)->handle);
	Py_XDECREF(((struct range *)self)->pool);
	type_free(self);
}

static PyMethodDef range_methods[] = {
	{"commit", (PyCFunction)(void (*)(void))range_commit, METH_VARARGS | METH_KEYWORDS, commit_doc},
	{"decommit", (PyCFunction)(void (*)(void))range_decommit, METH_VARARGS | METH_KEYWORDS, decommit_doc},
	{"offer", (PyCFunction)(void (*)(void))range_offer, METH_VARARGS | METH_KEYWORDS, offer_doc},
	{"reclaim", (PyCFunction)(void (*)(void))range_reclaim, METH_VARARGS | METH_KEYWORDS, reclaim_doc},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef range_getset[] = {
	{"handle", range_get_handle, range_set_handle, "the guard of the range", NULL},
	{"_pool", range_get_pool, range_set_pool, "the pool", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot range_slots[] = {
	{Py_tp_doc, "The calls of a range that an engine makes in each step."},
	{Py_tp_new, PyType_GenericNew},
	{Py_tp_traverse, range_traverse},
	{Py_tp_dealloc, range_dealloc},
	{Py_tp_methods, range_methods},
	{Py_tp_getset, range_getset},
	{0, NULL},
};

static PyType_Spec range_spec = {
	"gpool._native.Range",
	sizeof(struct range),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	range_slots,
};

int range_add(PyObject *module)
{
	return type_add(module, &range_spec) ? 0 : -1;
}
