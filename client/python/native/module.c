/* module.c - the module gpool._native: addresses of the library, classes and errors of the package, arguments. */
#include "native.h"

#include <inttypes.h>
#include <stdarg.h>

struct native_calls lib;
PyTypeObject *classes[CLASS_COUNT];

static PyObject *error_of; /* the package's function error(code, what, why) */

/* ---- errors ---- */

static void raise_exception(PyObject *exception)
{
	if (exception)
		PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
	Py_XDECREF(exception);
}

PyObject *raise_code(int code, const char *what, ...)
{
	PyObject *text;
	va_list list;

	va_start(list, what);
	text = PyUnicode_FromFormatV(what, list);
	va_end(list);
	if (text)
		raise_exception(PyObject_CallFunction(error_of, "iO", code, text));
	Py_XDECREF(text);
	return NULL;
}

PyObject *raise_because(int code, const char *what, const char *why)
{
	raise_exception(PyObject_CallFunction(error_of, "iss", code, what, why));
	return NULL;
}

PyObject *raise_room(PyObject *pool, struct guard *guard, int code, const char *what, ...)
{
	PyObject *text, *result;
	va_list list;

	va_start(list, what);
	text = PyUnicode_FromFormatV(what, list);
	va_end(list);
	if (!text)
		return NULL;
	result = PyObject_CallMethod(pool, "check_room", "NiO", PyLong_FromVoidPtr(guard->pointer), code, text);
	Py_DECREF(text);
	if (result) /* it raises for each negative code */
		PyErr_SetString(PyExc_SystemError, "check_room() has not raised an exception");
	Py_XDECREF(result);
	return NULL;
}

/* ---- arguments ---- */

static int refuse_number(PyObject *value, const char *name, const char *limits)
{
	PyErr_Format(PyExc_OverflowError, "%s is %S; it must be from %s", name, value, limits);
	return -1;
}

/* Return a new reference to the integer that `value` is. A bool, which Python also accepts as an index, is none. */
static PyObject *to_index(PyObject *value, const char *name)
{
	PyObject *index = PyBool_Check(value) ? NULL : PyNumber_Index(value);

	if (!index)
		PyErr_Format(PyExc_TypeError, "%s is %R, which is not an integer", name, value);
	return index;
}

/* Convert to a signed 64-bit number; *over: it does not fit. */
static long long to_long(PyObject *value, const char *name, int *over)
{
	PyObject *index = to_index(value, name);
	long long number;

	if (!index)
		return -1;
	number = PyLong_AsLongLongAndOverflow(index, over);
	Py_DECREF(index);
	return number;
}

int to_u32(PyObject *value, const char *name, uint32_t *result)
{
	int over = 0;
	long long number = to_long(value, name, &over);

	if (number == -1 && PyErr_Occurred())
		return -1;
	if (over || number < 0 || number > UINT32_MAX)
		return refuse_number(value, name, "0 to 4294967295");
	*result = (uint32_t)number;
	return 0;
}

long long pages_for_refusal(PyObject *self)
{
	PyObject *type, *error, *trace, *pages;
	long long count;

	if (!PyErr_ExceptionMatches(PyExc_OverflowError))
		return -1;
	PyErr_Fetch(&type, &error, &trace);
	pages = PyObject_GetAttrString(self, "page_count");
	count = pages ? PyLong_AsLongLong(pages) : -1;
	Py_XDECREF(pages);
	if (count < 0) {
		PyErr_Clear();
		PyErr_Restore(type, error, trace);
		return -1;
	}
	Py_XDECREF(type);
	Py_XDECREF(error);
	Py_XDECREF(trace);
	return count;
}

int to_u32_most(PyObject *value, const char *name, uint32_t most, uint32_t *result)
{
	char limits[32];

	if (!to_u32(value, name, result))
		return 0;
	if (!PyErr_ExceptionMatches(PyExc_OverflowError))
		return -1;
	PyErr_Clear();
	snprintf(limits, sizeof(limits), "0 to %" PRIu32, most);
	return refuse_number(value, name, limits);
}

int to_timeout(PyObject *value, const char *name, int *result)
{
	int over = 0;
	long long number = to_long(value, name, &over);

	if (number == -1 && PyErr_Occurred())
		return -1;
	if (over || number < INT32_MIN || number > INT32_MAX)
		return refuse_number(value, name, "-1 to 2147483647");
	*result = (int)number;
	return 0;
}

int to_flag(PyObject *value, uint32_t flag, bool when, uint32_t *flags)
{
	int truth = value ? PyObject_IsTrue(value) : !when;

	if (truth < 0)
		return -1;
	if (truth == when)
		*flags |= flag;
	return 0;
}

int to_u64(PyObject *value, const char *name, uint64_t *result)
{
	PyObject *index = to_index(value, name);
	unsigned long long number;

	if (!index)
		return -1;
	number = PyLong_AsUnsignedLongLong(index);
	Py_DECREF(index);
	if (number == (unsigned long long)-1 && PyErr_Occurred()) {
		PyErr_Clear();
		return refuse_number(value, name, "0 to 18446744073709551615");
	}
	*result = number;
	return 0;
}

/* Compare without calling Python code, which could change the dictionary. */
static Py_ssize_t name_index(PyObject *key, const char *const *names, Py_ssize_t most)
{
	for (Py_ssize_t i = 0; i < most; i++)
		if (PyUnicode_Check(key) && !PyUnicode_CompareWithASCIIString(key, names[i]))
			return i;
	return -1;
}

int arguments(const char *call, PyObject *args, PyObject *kwargs, const char *const *names, Py_ssize_t least,
	Py_ssize_t positional, Py_ssize_t most, PyObject **values)
{
	Py_ssize_t count = PyTuple_Size(args), at = 0;
	PyObject *key, *value;

	if (count > positional) {
		PyErr_Format(PyExc_TypeError, "%s() takes at most %zd positional arguments (%zd given)", call,
			positional, count);
		return -1;
	}
	for (Py_ssize_t i = 0; i < count; i++)
		values[i] = PyTuple_GetItem(args, i);
	while (kwargs && PyDict_Next(kwargs, &at, &key, &value)) {
		Py_ssize_t index = name_index(key, names, most);

		if (index < 0 || values[index]) {
			PyErr_Format(PyExc_TypeError,
				index < 0 ? "%s() got an unexpected keyword argument %R"
					  : "%s() got multiple values for argument %R",
				call, key);
			return -1;
		}
		values[index] = value;
	}
	for (Py_ssize_t i = 0; i < least; i++)
		if (!values[i]) {
			PyErr_Format(PyExc_TypeError, "%s() is missing the required argument '%s'", call, names[i]);
			return -1;
		}
	return 0;
}

/* ---- types ---- */

PyTypeObject *type_add(PyObject *module, PyType_Spec *spec)
{
	PyObject *type = PyType_FromSpec(spec);
	const char *name = strrchr(spec->name, '.') + 1;

	if (!type)
		return NULL;
	Py_INCREF(type); /* a reference for the caller's variable, which is never released */
	if (PyModule_AddObject(module, name, type)) {
		Py_DECREF(type);
		Py_DECREF(type);
		return NULL;
	}
	return (PyTypeObject *)type;
}

void type_free(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);

	PyObject_GC_Del(self);
	Py_DECREF(type);
}

/* ---- the module ---- */

PyDoc_STRVAR(bind_doc, "bind($module, addresses, /)\n--\n\nSet the addresses of the library's functions, by name.");

static PyObject *native_bind(PyObject *module, PyObject *addresses)
{
	struct native_calls found;

	(void)module;
	if (!PyDict_Check(addresses)) {
		PyErr_SetString(PyExc_TypeError, "addresses must be a dict");
		return NULL;
	}
#define BIND(name) \
	do { \
		PyObject *address = PyDict_GetItemString(addresses, #name); \
		found.name = address ? (__typeof__(found.name))PyLong_AsVoidPtr(address) : NULL; \
		if (!found.name) { \
			if (!PyErr_Occurred()) \
				PyErr_SetString(PyExc_KeyError, #name); \
			return NULL; \
		} \
	} while (0);
	NATIVE_CALLS(BIND)
#undef BIND
	lib = found;
	Py_RETURN_NONE;
}

PyDoc_STRVAR(setup_doc,
	"setup($module, error, classes, /)\n--\n\n"
	"Set the function that creates an exception from a code and a verb phrase, and the classes Block, Pin and "
	"Fence.");

static PyObject *native_setup(PyObject *module, PyObject *args)
{
	PyObject *error, *made[CLASS_COUNT];

	(void)module;
	if (!PyArg_ParseTuple(args, "O(OOO)", &error, &made[CLASS_BLOCK], &made[CLASS_PIN], &made[CLASS_FENCE]))
		return NULL;
	for (int i = 0; i < CLASS_COUNT; i++) {
		static const char *const bases[CLASS_COUNT] = {"Block", "Pin", "Fence"};
		PyObject *base = PyObject_GetAttrString(module, bases[i]);
		bool derived = base && PyType_Check(made[i]) &&
			PyType_IsSubtype((PyTypeObject *)made[i], (PyTypeObject *)base);

		Py_XDECREF(base);
		if (!derived) {
			PyErr_Format(PyExc_TypeError, "%R is not derived from gpool._native.%s", made[i], bases[i]);
			return NULL;
		}
	}
	for (int i = 0; i < CLASS_COUNT; i++) {
		Py_INCREF(made[i]);
		classes[i] = (PyTypeObject *)made[i];
	}
	Py_INCREF(error);
	error_of = error;
	Py_RETURN_NONE;
}

PyDoc_STRVAR(constant_doc,
	"constant($module, value, /)\n--\n\n"
	"Return a function that ignores its arguments and returns value. A function in Python takes about 1 us more\n"
	"if its code is not in the processor's caches.");

static PyObject *constant_call(PyObject *value, PyObject *args, PyObject *kwargs)
{
	(void)args;
	(void)kwargs;
	Py_INCREF(value);
	return value;
}

static PyObject *native_constant(PyObject *module, PyObject *value)
{
	static PyMethodDef call = {
		"constant", (PyCFunction)(void (*)(void))constant_call, METH_VARARGS | METH_KEYWORDS, NULL};

	(void)module;
	return PyCFunction_NewEx(&call, value, NULL);
}

static PyMethodDef methods[] = {
	{"bind", native_bind, METH_O, bind_doc},
	{"constant", native_constant, METH_O, constant_doc},
	{"setup", native_setup, METH_VARARGS, setup_doc},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "gpool._native",
	.m_doc = "Calls that an engine makes in each step, and guards for pointers of the library. For internal use by "
		 "the package.",
	.m_size = -1,
	.m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void);

PyMODINIT_FUNC PyInit__native(void)
{
	PyObject *module = PyModule_Create(&definition);

	if (!module)
		return NULL;
	if (guard_add(module) || wait_add(module) || fence_add(module) || block_add(module) || range_add(module) ||
		chunks_add(module) || kv_add(module)) {
		Py_DECREF(module);
		return NULL;
	}
	return module;
}
