/* block.c - the types Pool, Block and Pin: allocate, pin and free blocks of pages. */
#include "native.h"

#include <errno.h>

static PyTypeObject *pool_type;

struct pool {
	PyObject_HEAD struct guard *handle;
};

struct block {
	PyObject_HEAD struct pool *pool;
	struct guard *handle; /* guard of the pool */
	struct gpool_block block;
	uint32_t pins; /* the program's pins; views have their own, which an excess unpin() cannot end */
	bool freed;
};

struct pin {
	PyObject_HEAD struct block *block;
};

/* ---- pools ---- */

enum {
	PAGE_COUNT,
	USAGE,
	POSITIONAL,
	PRIORITY = POSITIONAL,
	OWNER_ID,
	TIMEOUT_MS,
	STREAM,
	FIRST_FIT,
	CRITICAL,
	CONTIGUOUS,
	EVICT,
	SPILL,
	ARGUMENTS
};

/* the limits of the library, for texts */
enum { PRIORITY_MOST = 3, USAGE_MOST = GPOOL_USAGE_GRADIENT };

static const char *const alloc_names[ARGUMENTS] = {"page_count", "usage", "priority", "owner_id", "timeout_ms",
	"stream", "first_fit", "critical", "contiguous", "evict", "spill"};

static int to_options(PyObject **values, struct guard *pool, struct gpool_alloc_options *options)
{
	if (values[PRIORITY] && to_u32_most(values[PRIORITY], "priority", PRIORITY_MOST, &options->priority))
		return -1;
	if (values[OWNER_ID] && to_u64(values[OWNER_ID], "owner_id", &options->owner_id))
		return -1;
	if (values[TIMEOUT_MS] && to_timeout(values[TIMEOUT_MS], "timeout_ms", &options->timeout_ms))
		return -1;
	if (values[STREAM] && to_stream(values[STREAM], pool, &options->stream))
		return -1;
	return to_flag(values[FIRST_FIT], GPOOL_ALLOC_FIRST_FIT, true, &options->flags) ||
			to_flag(values[CRITICAL], GPOOL_ALLOC_CRITICAL, true, &options->flags) ||
			to_flag(values[CONTIGUOUS], GPOOL_ALLOC_CONTIGUOUS, true, &options->flags) ||
			to_flag(values[EVICT], GPOOL_ALLOC_NO_EVICT, false, &options->flags) ||
			to_flag(values[SPILL], GPOOL_ALLOC_SPILL, true, &options->flags)
		? -1
		: 0;
}

PyDoc_STRVAR(alloc_doc,
	"alloc($self, /, page_count, usage=0, *, priority=0, owner_id=0, timeout_ms=0, stream=None,\n"
	"      first_fit=False, critical=False, contiguous=False, evict=True, spill=False)\n--\n\n"
	"Allocate a block of `page_count` pages, pinned once.\n\n"
	"usage: purpose of the block, a Usage, which affects the order of eviction. priority: 0 to 3; blocks with a\n"
	"higher priority are evicted later. owner_id: number that tools show and by which evicted content is\n"
	"recognized. timeout_ms: longest wait for pages in milliseconds; 0: do not wait, -1: no limit. stream: the\n"
	"stream that uses the block first. first_fit: take the lowest free pages. critical: use reserved pages if\n"
	"necessary. contiguous: take adjacent pages of the pool; otherwise only the addresses are adjacent. evict:\n"
	"permit the eviction of other blocks. spill: save the content when the block is evicted; pin() restores it.\n\n"
	"Raises NoRoom: not enough pages, described by its `oom_info`; Asleep; AgentGone; Error with EINVAL, EPERM\n"
	"(critical without the right, observer, admin), ENOMEM.\n"
	"Cost: 0.3 us more than in C; a request to the agent if this process's lease is used up.");

/* Allocate and fill in `block`. Return 0, or -1 with an exception. */
static int alloc(struct pool *pool, struct block *block, uint32_t pages, const struct gpool_alloc_options *options)
{
	struct gpool *pointer = guard_enter(pool->handle);
	struct wait wait;
	int result, raised;

	if (!pointer)
		return -1;
	wait_begin(&wait, options->timeout_ms);
	UNLOCKED(result = lib.gpool_alloc(pointer, pages, options, &block->block));
	raised = wait_end(&wait);
	if (raised) {
		if (result >= 0)
			lib.gpool_free(pointer, &block->block);
		wait_raise(&wait);
	} else if (result < 0) {
		raise_room((PyObject *)pool, pool->handle, result, "allocate %lu page%s", (unsigned long)pages,
			plural(pages));
	} else {
		Py_INCREF(pool);
		block->pool = pool;
		Py_INCREF(pool->handle);
		block->handle = pool->handle;
		block->pins = 1;
	}
	guard_leave(pool->handle);
	return raised || result < 0 ? -1 : 0;
}

/* If C cannot hold the number of pages, name the valid ones; the library refuses other numbers. Return NULL. */
static PyObject *refuse_pages(PyObject *self, PyObject *value)
{
	long long most = pages_for_refusal(self);

	if (most >= 0)
		PyErr_Format(PyExc_OverflowError, "page_count is %S; it must be from 1 to %lld, the pages of the pool",
			value, most);
	return NULL;
}

static PyObject *pool_alloc(PyObject *self, PyObject *args, PyObject *kwargs)
{
	struct pool *pool = (struct pool *)self;
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	PyObject *values[ARGUMENTS] = {NULL};
	struct block *block;
	uint32_t pages;

	if (arguments("alloc", args, kwargs, alloc_names, 1, POSITIONAL, ARGUMENTS, values) || !guard_of(pool->handle))
		return NULL;
	if (to_u32(values[PAGE_COUNT], "page_count", &pages))
		return refuse_pages(self, values[PAGE_COUNT]);
	if (values[USAGE] && to_u32_most(values[USAGE], "usage", USAGE_MOST, &options.usage))
		return NULL;
	if (kwargs && to_options(values, pool->handle, &options))
		return NULL;
	block = (struct block *)PyType_GenericAlloc(classes[CLASS_BLOCK], 0);
	if (block && alloc(pool, block, pages, &options)) {
		Py_DECREF(block);
		return NULL;
	}
	return (PyObject *)block;
}

PyDoc_STRVAR(find_doc,
	"_find($self, names, /)\n--\n\n"
	"As find_objects(), for names that are bytes. This thread keeps the interpreter's lock: another one could\n"
	"otherwise take it, and keep it for longer than the call takes.");

/* Call for the names in a tuple, all bytes. Return a negative number with an exception. */
static int find(struct pool *pool, PyObject *names, const char **texts)
{
	Py_ssize_t count = PyTuple_Size(names);
	struct gpool *pointer;
	char *text;
	int result;

	for (Py_ssize_t i = 0; i < count; i++) {
		if (PyBytes_AsStringAndSize(PyTuple_GetItem(names, i), &text, NULL))
			return -1;
		texts[i] = text;
	}
	pointer = guard_enter(pool->handle);
	if (!pointer)
		return -1;
	result = lib.gpool_object_find(pointer, texts, (uint32_t)count);
	if (result < 0)
		raise_code(result, "find %zd object%s", count, plural(count));
	guard_leave(pool->handle);
	return result;
}

static PyObject *pool_find(PyObject *self, PyObject *names)
{
	struct pool *pool = (struct pool *)self;
	PyObject *tuple = guard_of(pool->handle) ? PySequence_Tuple(names) : NULL;
	const char **texts;
	int result = -1;

	if (!tuple)
		return NULL;
	texts = PyMem_Malloc(((size_t)PyTuple_Size(tuple) + 1) * sizeof(*texts));
	if (texts)
		result = find(pool, tuple, texts);
	else
		PyErr_NoMemory();
	PyMem_Free(texts);
	Py_DECREF(tuple);
	return result < 0 ? NULL : PyLong_FromLong(result);
}

static PyObject *pool_get_handle(PyObject *self, void *closure)
{
	(void)closure;
	return guard_get(((struct pool *)self)->handle, "handle");
}

static int pool_set_handle(PyObject *self, PyObject *value, void *closure)
{
	(void)closure;
	return guard_set(&((struct pool *)self)->handle, value);
}

static int pool_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct pool *)self)->handle);
	return 0;
}

static void pool_dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self);
	Py_XDECREF(((struct pool *)self)->handle);
	type_free(self);
}

static PyMethodDef pool_methods[] = {
	{"alloc", (PyCFunction)(void (*)(void))pool_alloc, METH_VARARGS | METH_KEYWORDS, alloc_doc},
	{"_find", pool_find, METH_O, find_doc},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef pool_getset[] = {
	{"handle", pool_get_handle, pool_set_handle,
		"access for other functions of the C library: `with pool.handle as pointer`", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot pool_slots[] = {
	{Py_tp_doc, "The calls of a pool that an engine makes in each step."},
	{Py_tp_new, PyType_GenericNew},
	{Py_tp_traverse, pool_traverse},
	{Py_tp_dealloc, pool_dealloc},
	{Py_tp_methods, pool_methods},
	{Py_tp_getset, pool_getset},
	{0, NULL},
};

static PyType_Spec pool_spec = {
	"gpool._native.Pool",
	sizeof(struct pool),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	pool_slots,
};

/* ---- pins ---- */

/* Pin a block. Return 0, or -1 with an exception. */
static int pin(struct block *block)
{
	struct gpool *pointer = guard_enter(block->handle);
	struct wait wait;
	int result;

	if (!pointer)
		return -1;
	wait_begin(&wait, -1);
	UNLOCKED(result = lib.gpool_pin(pointer, &block->block));
	if (wait_end(&wait)) {
		if (result >= 0)
			lib.gpool_unpin(pointer, &block->block);
		result = -EINTR;
		wait_raise(&wait);
	} else if (result < 0) {
		raise_code(result, "pin a block");
	} else {
		block->pins++;
	}
	guard_leave(block->handle);
	return result < 0 ? -1 : 0;
}

/*
 * End one of the program's pins, with gpool_unpin() or, if there is a fence, with gpool_unpin_after(). Return 0, or -1
 * with an exception; the program then keeps its pin, unless the block was freed or evicted.
 */
static int end_pin(struct block *block, PyObject *after, const char *what, bool freeing)
{
	struct gpool_fence fence = GPOOL_FENCE_NONE;
	struct gpool *pointer;
	int result;

	if (after && to_fence(after, block->handle, &fence))
		return -1;
	if (!block->pins) {
		raise_because(block->freed ? ESTALE : EINVAL, what,
			block->freed ? "it was already freed" : "the program has no pin of it; call pin() first");
		return -1;
	}
	pointer = guard_enter(block->handle);
	if (!pointer)
		return -1;
	block->pins--; /* before another thread runs, which may end a pin too */
	if (freeing && fence.value)
		UNLOCKED(result = lib.gpool_free_after(pointer, &block->block, fence));
	else if (freeing)
		UNLOCKED(result = lib.gpool_free(pointer, &block->block));
	else if (fence.value)
		UNLOCKED(result = lib.gpool_unpin_after(pointer, &block->block, fence));
	else
		UNLOCKED(result = lib.gpool_unpin(pointer, &block->block));
	if (result < 0 && result != -ESTALE)
		block->pins++;
	if (result < 0)
		raise_code(result, "%s", what);
	guard_leave(block->handle);
	return result < 0 ? -1 : 0;
}

/*
 * Free a block without pins. Return 0, or -1 with an exception. If a signal handler raised it, the block may already be
 * freed.
 */
static int discard(struct block *block)
{
	struct gpool *pointer = guard_enter(block->handle);
	struct wait wait;
	int result, raised;

	if (!pointer)
		return -1;
	wait_begin(&wait, -1);
	UNLOCKED(result = lib.gpool_discard(pointer, &block->block));
	raised = wait_end(&wait);
	if (result >= 0)
		block->freed = true;
	if (raised)
		wait_raise(&wait);
	else if (result < 0)
		raise_code(result, "free a block");
	guard_leave(block->handle);
	return raised || result < 0 ? -1 : 0;
}

static int free_block(struct block *block, PyObject *after)
{
	if (!block->pins && (!after || after == Py_None)) {
		if (discard(block))
			return -1;
	} else {
		if (!block->pins && pin(block))
			return -1;
		if (end_pin(block, after, "free a block", true))
			return -1;
	}
	block->freed = true;
	return 0;
}

/* ---- blocks ---- */

static const char *const after_name[] = {"after"};

PyDoc_STRVAR(pin_doc,
	"pin($self, /)\n--\n\n"
	"Pin the block: keep its content and address until unpin() or the end of `with block.pin():`; pins nest.\n\n"
	"Raises Stale: freed or evicted; TimedOut: the block was moved for longer than pins.timeout; and for spilled\n"
	"blocks NoRoom: no pages to restore it to; AgentGone; Error with EIO (the content cannot be read), ENOMEM.\n"
	"Cost: 0.2 us more than in C; a system call if the block is being moved, and its restore if it was spilled.");

static PyObject *block_pin(PyObject *self, PyObject *none)
{
	struct pin *made;

	(void)none;
	if (pin((struct block *)self))
		return NULL;
	made = (struct pin *)PyType_GenericAlloc(classes[CLASS_PIN], 0);
	if (!made) {
		end_pin((struct block *)self, NULL, "unpin a block", false);
		return PyErr_NoMemory();
	}
	Py_INCREF(self);
	made->block = (struct block *)self;
	return (PyObject *)made;
}

PyDoc_STRVAR(unpin_doc,
	"unpin($self, /, after=None)\n--\n\n"
	"End one pin of the program: that of the allocation or of pin().\n\n"
	"after: end it when this fence is signaled, without waiting.\n"
	"Raises Error with EINVAL: the program has no pin (pins of views end with the views).\n"
	"Cost: 0.2 us more than in C.");

static PyObject *block_unpin(PyObject *self, PyObject *args, PyObject *kwargs)
{
	PyObject *after = NULL;

	if (arguments("unpin", args, kwargs, after_name, 0, 1, 1, &after) ||
		end_pin((struct block *)self, after, "unpin a block", false))
		return NULL;
	Py_RETURN_NONE;
}

PyDoc_STRVAR(free_doc,
	"free($self, /, after=None)\n--\n\n"
	"Free the block, pinned or not.\n\n"
	"after: free it when this fence is signaled, without waiting. If views or other threads have pins, the pages "
	"are\n"
	"freed with the last of them.\n"
	"Raises Stale: freed or evicted already.\n"
	"Cost: 0.2 us more than in C.");

static PyObject *block_free(PyObject *self, PyObject *args, PyObject *kwargs)
{
	PyObject *after = NULL;

	if (arguments("free", args, kwargs, after_name, 0, 1, 1, &after) || free_block((struct block *)self, after))
		return NULL;
	Py_RETURN_NONE;
}

PyDoc_STRVAR(touch_doc,
	"touch($self, /)\n--\n\n"
	"Mark the block as used: a long pin does not count as leaked, and other blocks are evicted first.\n\n"
	"Raises Stale; TimedOut.\n"
	"Cost: a pin and an unpin.");

static PyObject *block_touch(PyObject *self, PyObject *none)
{
	struct block *block = (struct block *)self;
	struct gpool *pointer = guard_enter(block->handle);
	struct wait wait;
	int result, raised;

	(void)none;
	if (!pointer)
		return NULL;
	wait_begin(&wait, -1);
	UNLOCKED(result = lib.gpool_touch(pointer, &block->block));
	raised = wait_end(&wait);
	if (raised)
		wait_raise(&wait);
	else if (result < 0)
		raise_code(result, "touch a block");
	guard_leave(block->handle);
	if (raised || result < 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *block_enter(PyObject *self, PyObject *none)
{
	(void)none;
	Py_INCREF(self);
	return self;
}

/* Free the block at the end of `with`, unless it was freed or evicted. */
static PyObject *block_exit(PyObject *self, PyObject *args)
{
	struct block *block = (struct block *)self;

	(void)args;
	if (block->freed || guard_forked(block->handle) || guard_closed(block->handle) || !free_block(block, NULL))
		Py_RETURN_NONE;
	{
		PyObject *type, *value, *trace;
		PyObject *code = NULL;
		bool stale;

		PyErr_Fetch(&type, &value, &trace);
		PyErr_NormalizeException(&type, &value, &trace);
		code = value ? PyObject_GetAttrString(value, "errno") : NULL;
		stale = code && PyLong_Check(code) && PyLong_AsLong(code) == ESTALE;
		Py_XDECREF(code);
		PyErr_Clear();
		if (!stale) {
			PyErr_Restore(type, value, trace);
			return NULL;
		}
		Py_XDECREF(type);
		Py_XDECREF(value);
		Py_XDECREF(trace);
	}
	Py_RETURN_NONE;
}

static PyObject *block_get_address(PyObject *self, void *closure)
{
	struct block *block = (struct block *)self;
	struct gpool *pointer = guard_enter(block->handle);
	uint64_t address = 0;
	int result;

	(void)closure;
	if (!pointer)
		return NULL;
	UNLOCKED(result = lib.gpool_address(pointer, &block->block, &address));
	if (result < 0)
		raise_code(result, "read a block's address");
	guard_leave(block->handle);
	return result < 0 ? NULL : PyLong_FromUnsignedLongLong(address);
}

static PyObject *block_get_page(PyObject *self, void *closure)
{
	(void)closure;
	return PyLong_FromUnsignedLong(((struct block *)self)->block.page);
}

static PyObject *block_get_page_count(PyObject *self, void *closure)
{
	(void)closure;
	return PyLong_FromUnsignedLong(((struct block *)self)->block.page_count);
}

static PyObject *block_get_value(PyObject *self, void *closure)
{
	const struct gpool_block *block = &((struct block *)self)->block;

	(void)closure;
	return PyBytes_FromStringAndSize((const char *)block, sizeof(*block));
}

static PyObject *block_get_pool(PyObject *self, void *closure)
{
	PyObject *pool = (PyObject *)((struct block *)self)->pool;

	(void)closure;
	Py_INCREF(pool);
	return pool;
}

static PyObject *block_get_pins(PyObject *self, void *closure)
{
	(void)closure;
	return PyLong_FromUnsignedLong(((struct block *)self)->pins);
}

static PyObject *block_get_freed(PyObject *self, void *closure)
{
	(void)closure;
	return PyBool_FromLong(((struct block *)self)->freed);
}

static PyObject *block_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	(void)type;
	(void)args;
	(void)kwargs;
	PyErr_SetString(PyExc_TypeError, "blocks are created by Pool.alloc(), and pins by Block.pin()");
	return NULL;
}

static int block_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct block *)self)->pool);
	Py_VISIT(((struct block *)self)->handle);
	return 0;
}

/* A block whose last reference is dropped stays pinned; its class issues a warning. */
static void block_finalize(PyObject *self)
{
	struct block *block = (struct block *)self;
	PyObject *type, *value, *trace, *result;

	if (!block->pins || block->freed || guard_forked(block->handle) || guard_closed(block->handle))
		return;
	PyErr_Fetch(&type, &value, &trace);
	result = PyObject_CallMethod(self, "_dropped", NULL);
	if (!result)
		PyErr_WriteUnraisable(self);
	Py_XDECREF(result);
	PyErr_Restore(type, value, trace);
}

static void block_dealloc(PyObject *self)
{
	struct block *block = (struct block *)self;

	PyObject_GC_UnTrack(self);
	Py_XDECREF(block->pool);
	Py_XDECREF(block->handle);
	type_free(self);
}

static PyMethodDef block_methods[] = {
	{"pin", block_pin, METH_NOARGS, pin_doc},
	{"unpin", (PyCFunction)(void (*)(void))block_unpin, METH_VARARGS | METH_KEYWORDS, unpin_doc},
	{"free", (PyCFunction)(void (*)(void))block_free, METH_VARARGS | METH_KEYWORDS, free_doc},
	{"touch", block_touch, METH_NOARGS, touch_doc},
	{"__enter__", block_enter, METH_NOARGS, NULL},
	{"__exit__", block_exit, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef block_getset[] = {
	{"address", block_get_address, NULL,
		"Device address of `nbytes` contiguous bytes, valid while the block is pinned.\n\n"
		"Raises Stale.\nCost: a few loads.",
		NULL},
	{"page", block_get_page, NULL, "Number of the first page in the pool.", NULL},
	{"page_count", block_get_page_count, NULL, "Number of pages.", NULL},
	{"_value", block_get_value, NULL, "struct gpool_block", NULL},
	{"_pool", block_get_pool, NULL, "the pool", NULL},
	{"_pins", block_get_pins, NULL, "pins of the program", NULL},
	{"_freed", block_get_freed, NULL, "whether free() was called", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot block_slots[] = {
	{Py_tp_doc, "The calls of a block that an engine makes in each step."},
	{Py_tp_new, block_new},
	{Py_tp_traverse, block_traverse},
	{Py_tp_finalize, block_finalize},
	{Py_tp_dealloc, block_dealloc},
	{Py_tp_methods, block_methods},
	{Py_tp_getset, block_getset},
	{0, NULL},
};

static PyType_Spec block_spec = {
	"gpool._native.Block",
	sizeof(struct block),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	block_slots,
};

/* ---- the result of Block.pin() ---- */

static PyObject *pin_get_block(PyObject *self, void *closure)
{
	PyObject *block = (PyObject *)((struct pin *)self)->block;

	(void)closure;
	Py_INCREF(block);
	return block;
}

static PyObject *pin_enter(PyObject *self, PyObject *none)
{
	(void)none;
	return pin_get_block(self, NULL);
}

static PyObject *pin_exit(PyObject *self, PyObject *args)
{
	(void)args;
	if (end_pin(((struct pin *)self)->block, NULL, "unpin a block", false))
		return NULL;
	Py_RETURN_NONE;
}

static int pin_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct pin *)self)->block);
	return 0;
}

static void pin_dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self);
	Py_XDECREF(((struct pin *)self)->block);
	type_free(self);
}

static PyMethodDef pin_methods[] = {
	{"__enter__", pin_enter, METH_NOARGS, NULL},
	{"__exit__", pin_exit, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef pin_getset[] = {
	{"block", pin_get_block, NULL, "The block.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot pin_slots[] = {
	{Py_tp_doc, "A pin of a block."},
	{Py_tp_new, block_new},
	{Py_tp_traverse, pin_traverse},
	{Py_tp_dealloc, pin_dealloc},
	{Py_tp_methods, pin_methods},
	{Py_tp_getset, pin_getset},
	{0, NULL},
};

static PyType_Spec pin_spec = {
	"gpool._native.Pin",
	sizeof(struct pin),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	pin_slots,
};

int block_add(PyObject *module)
{
	pool_type = type_add(module, &pool_spec);
	return pool_type && type_add(module, &block_spec) && type_add(module, &pin_spec) ? 0 : -1;
}
