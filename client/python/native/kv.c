/* kv.c - the type KvCache: allocate, append to, fork and free sequences, and read their tables. */
#include "native.h"

struct cache {
	PyObject_HEAD struct guard *handle;
};

enum { TOKENS, ESTIMATED_TOKENS, PRIORITY, OWNER_ID, CONTINUES, ARGUMENTS };

static const char *const allocate_names[ARGUMENTS] = {
	"tokens", "estimated_tokens", "priority", "owner_id", "continues"};
static const char *const append_names[] = {"sequence", "tokens"};

/* Let the package's method, which knows what EAGAIN means here, raise the exception of a refused call. Return NULL. */
static PyObject *refuse(PyObject *self, int code, PyObject *what)
{
	PyObject *result = what ? PyObject_CallMethod(self, "_check", "iO", code, what) : NULL;

	if (result)
		PyErr_SetString(PyExc_SystemError, "_check() has not raised an exception");
	Py_XDECREF(result);
	Py_XDECREF(what);
	return NULL;
}

/* Parse the arguments of a call for a sequence. Return the cache's guard, or NULL with an exception. */
static struct guard *sequence_of(PyObject *self, const char *call, PyObject *args, PyObject *kwargs, uint64_t *sequence)
{
	PyObject *value = NULL;

	if (arguments(call, args, kwargs, append_names, 1, 1, 1, &value) || to_u64(value, "sequence", sequence))
		return NULL;
	return guard_of(((struct cache *)self)->handle);
}

PyDoc_STRVAR(allocate_doc,
	"allocate($self, /, tokens, *, estimated_tokens=0, priority=0, owner_id=0, continues=False)\n--\n\n"
	"Create a sequence with blocks for `tokens` tokens and return its number.\n\n"
	"estimated_tokens: expected number of tokens at the end of the sequence, for which blocks are allocated in\n"
	"advance; 0: allocate blocks as the sequence grows. priority: sequences with a lower priority are preempted\n"
	"first. owner_id: any number, which sequence_info() returns. continues: the request continues running work, "
	"so\n"
	"it may use the blocks of the watermark.\n\n"
	"Raises NoRoom; Error with EFBIG (the sequence can never be admitted), EUSERS (max_sequences is reached).\n"
	"Cost: 0.3 us more than in C: one lock if the chunks have memory; otherwise a request to the agent and "
	"mappings.");

static int to_request(PyObject **values, struct gpool_kv_request *request)
{
	if (to_u32(values[TOKENS], "tokens", &request->tokens))
		return -1;
	if (values[ESTIMATED_TOKENS] &&
		to_u32(values[ESTIMATED_TOKENS], "estimated_tokens", &request->estimated_tokens))
		return -1;
	if (values[PRIORITY] && to_u32(values[PRIORITY], "priority", &request->priority))
		return -1;
	if (values[OWNER_ID] && to_u64(values[OWNER_ID], "owner_id", &request->owner_id))
		return -1;
	return to_flag(values[CONTINUES], GPOOL_KV_CONTINUES, true, &request->flags);
}

static PyObject *cache_allocate(PyObject *self, PyObject *args, PyObject *kwargs)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	PyObject *values[ARGUMENTS] = {NULL};
	struct gpool_kv *pointer;
	struct guard *guard;
	uint64_t sequence;
	int result;

	if (arguments("allocate", args, kwargs, allocate_names, 1, 1, ARGUMENTS, values) ||
		to_request(values, &request) || !(guard = guard_of(((struct cache *)self)->handle)) ||
		!(pointer = guard_enter(guard)))
		return NULL;
	UNLOCKED(result = lib.gpool_kv_allocate(pointer, &request, &sequence));
	if (result < 0)
		refuse(self, result,
			PyUnicode_FromFormat("allocate a sequence of %lu token%s", (unsigned long)request.tokens,
				plural(request.tokens)));
	guard_leave(guard);
	return result < 0 ? NULL : PyLong_FromUnsignedLongLong(sequence);
}

PyDoc_STRVAR(append_doc,
	"append($self, /, sequence, tokens=1)\n--\n\n"
	"Append tokens to a sequence, all or none, and return the slot of the first token: block * block_tokens +\n"
	"position in the block. The slots of the next tokens follow up to the end of the block; further blocks are in "
	"the\n"
	"table.\n\n"
	"Raises Preempted; NoRoom; Error with EFBIG: more than max_sequence_tokens.\n"
	"Cost: 0.3 us more than in C: a compare-and-swap if the blocks of the sequence have room; otherwise as\n"
	"allocate().");

static PyObject *cache_append(PyObject *self, PyObject *args, PyObject *kwargs)
{
	PyObject *values[2] = {NULL};
	struct gpool_kv *pointer;
	struct guard *guard;
	uint64_t sequence, slot;
	uint32_t tokens = 1;
	int result;

	if (arguments("append", args, kwargs, append_names, 1, 2, 2, values) ||
		to_u64(values[0], "sequence", &sequence) || (values[1] && to_u32(values[1], "tokens", &tokens)) ||
		!(guard = guard_of(((struct cache *)self)->handle)) || !(pointer = guard_enter(guard)))
		return NULL;
	UNLOCKED(result = lib.gpool_kv_append(pointer, sequence, tokens, &slot));
	if (result < 0)
		refuse(self, result,
			PyUnicode_FromFormat(
				"append %lu token%s to a sequence", (unsigned long)tokens, plural(tokens)));
	guard_leave(guard);
	return result < 0 ? NULL : PyLong_FromUnsignedLongLong(slot);
}

PyDoc_STRVAR(fork_doc,
	"fork($self, /, sequence)\n--\n\n"
	"Return a new sequence that shares the blocks of another one. If the last block is not full, each sequence\n"
	"copies it when it appends.\n\n"
	"Raises Preempted; Error with EUSERS: max_sequences is reached.\n"
	"Cost: 0.3 us more than in C.");

static PyObject *cache_fork(PyObject *self, PyObject *args, PyObject *kwargs)
{
	uint64_t sequence, child;
	struct guard *guard = sequence_of(self, "fork", args, kwargs, &sequence);
	struct gpool_kv *pointer = guard ? guard_enter(guard) : NULL;
	int result;

	if (!pointer)
		return NULL;
	UNLOCKED(result = lib.gpool_kv_fork(pointer, sequence, &child));
	if (result < 0)
		refuse(self, result, PyUnicode_FromString("fork a sequence"));
	guard_leave(guard);
	return result < 0 ? NULL : PyLong_FromUnsignedLongLong(child);
}

PyDoc_STRVAR(free_doc,
	"free($self, /, sequence)\n--\n\n"
	"End a sequence, running or preempted. Blocks that no other sequence shares become free immediately, or "
	"cached.\n\n"
	"Cost: 0.3 us more than in C.");

static PyObject *cache_free(PyObject *self, PyObject *args, PyObject *kwargs)
{
	uint64_t sequence;
	struct guard *guard = sequence_of(self, "free", args, kwargs, &sequence);
	struct gpool_kv *pointer = guard ? guard_enter(guard) : NULL;
	int result;

	if (!pointer)
		return NULL;
	UNLOCKED(result = lib.gpool_kv_free(pointer, sequence));
	if (result < 0)
		refuse(self, result, PyUnicode_FromString("free a sequence"));
	guard_leave(guard);
	if (result < 0)
		return NULL;
	Py_RETURN_NONE;
}

PyDoc_STRVAR(table_doc,
	"table($self, /, sequence)\n--\n\n"
	"Return the blocks of a sequence, in order; the list is empty if the sequence is preempted or has no "
	"tokens.\n\n"
	"No other thread may change the sequence during the call.\n"
	"Cost: one lock, and a few stores for each block.");

static PyObject *list_of(const int32_t *blocks, uint32_t count)
{
	PyObject *list = PyList_New(count);

	for (uint32_t i = 0; list && i < count; i++) {
		PyObject *block = PyLong_FromLong(blocks[i]);

		if (!block || PyList_SetItem(list, i, block)) {
			Py_DECREF(list);
			return NULL;
		}
	}
	return list;
}

static PyObject *cache_table(PyObject *self, PyObject *args, PyObject *kwargs)
{
	uint64_t sequence;
	struct guard *guard = sequence_of(self, "table", args, kwargs, &sequence);
	struct gpool_kv *pointer = guard ? guard_enter(guard) : NULL;
	const int32_t *blocks;
	PyObject *list;
	uint32_t count;
	int result;

	if (!pointer)
		return NULL;
	UNLOCKED(result = lib.gpool_kv_table(pointer, sequence, &blocks, &count));
	if (result < 0)
		list = refuse(self, result, PyUnicode_FromString("read the table of a sequence"));
	else
		list = list_of(blocks, count);
	guard_leave(guard);
	return list;
}

/* ---- the type ---- */

static PyObject *cache_get_handle(PyObject *self, void *closure)
{
	(void)closure;
	return guard_get(((struct cache *)self)->handle, "handle");
}

static int cache_set_handle(PyObject *self, PyObject *value, void *closure)
{
	(void)closure;
	return guard_set(&((struct cache *)self)->handle, value);
}

static int cache_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct cache *)self)->handle);
	return 0;
}

static void cache_dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self);
	Py_XDECREF(((struct cache *)self)->handle);
	type_free(self);
}

#define METHOD(name) #name, (PyCFunction)(void (*)(void))cache_##name, METH_VARARGS | METH_KEYWORDS, name##_doc

static PyMethodDef cache_methods[] = {
	{METHOD(allocate)},
	{METHOD(append)},
	{METHOD(fork)},
	{METHOD(free)},
	{METHOD(table)},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef cache_getset[] = {
	{"handle", cache_get_handle, cache_set_handle, "the guard of the cache", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot cache_slots[] = {
	{Py_tp_doc, "The calls of a KV cache that an engine makes in each step."},
	{Py_tp_new, PyType_GenericNew},
	{Py_tp_traverse, cache_traverse},
	{Py_tp_dealloc, cache_dealloc},
	{Py_tp_methods, cache_methods},
	{Py_tp_getset, cache_getset},
	{0, NULL},
};

static PyType_Spec cache_spec = {
	"gpool._native.KvCache",
	sizeof(struct cache),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	cache_slots,
};

int kv_add(PyObject *module)
{
	return type_add(module, &cache_spec) ? 0 : -1;
}
