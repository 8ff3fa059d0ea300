/*
 * chunks.c - the type Chunks: equal parts of an elastic range, each with committed pages, an object, or nothing.
 *
 * gpool.vllm executes the operations of a step in one call, in another thread than the one that computes. That thread
 * waits for batches of operations in serve(), without the interpreter's lock: if it took the lock at the beginning and
 * the end of each batch, the thread that computes would wait for it, for about 340 us per batch.
 */
#include "native.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* The operations; gpool.vllm describes them in its class Action. */
enum action { COMMIT, LEAVE, OFFER, RECLAIM, MAP, PUBLISH, RENEW, ACTIONS };

enum { LOST = 1 }; /* result of RECLAIM: the agent has taken pages */

struct chunk {
	struct gpool_object *object; /* NULL: none */
	bool pinned;
};

struct job;

/* The objects end with the pool. */
struct chunks {
	PyObject_HEAD struct guard *range;
	PyObject *pool, *key;
	struct chunk *list; /* [count] */
	uint32_t count, pages;
	bool private;
	atomic_bool busy; /* a thread changes the chunks */

	pthread_mutex_t lock; /* of the next fields; never held while the interpreter's lock is awaited */
	pthread_cond_t changed;
	struct job *first, *last; /* batches that were not taken, in order */
	struct job *next;         /* the first of them that has not ended; NULL: all have ended */
	bool stopped;             /* also changed under the interpreter's lock */
};

struct operation {
	int action;
	uint32_t chunk;
	long long follows; /* PUBLISH: chunk with the object that is evicted after this one; below 0: none */
	const char *name;  /* PUBLISH: of the object */
	const char *value; /* PUBLISH: metadata */
	Py_ssize_t bytes;
};

static const struct gpool_fence no_fence;

/* ---- operations, without the interpreter's lock ---- */

static int chunk_unmap(struct gpool_range *range, struct chunk *chunk)
{
	int error;

	if (!chunk->object)
		return 0;
	if (chunk->pinned) {
		error = lib.gpool_object_unpin(chunk->object);
		if (error && error != -ESTALE)
			return error;
		chunk->pinned = false;
	}
	error = lib.gpool_range_unmap(range, chunk->object);
	if (!error)
		chunk->object = NULL;
	return error;
}

static int chunk_leave(const struct chunks *chunks, struct gpool_range *range, uint32_t index)
{
	int error = chunk_unmap(range, &chunks->list[index]);

	return error ? error : lib.gpool_range_decommit(range, index * chunks->pages, chunks->pages, no_fence);
}

/* Give a chunk pages: its own if they were not taken. After an error it has none. */
static int chunk_commit(const struct chunks *chunks, struct gpool_range *range, uint32_t index, int timeout_ms)
{
	uint32_t first = index * chunks->pages;
	int error = chunk_unmap(range, &chunks->list[index]);

	if (error)
		return error;
	error = lib.gpool_range_commit(range, first, chunks->pages, timeout_ms);
	if (error) /* some may have been offered, and not taken */
		lib.gpool_range_decommit(range, first, chunks->pages, no_fence);
	return error;
}

static bool is_commit(const struct operation *operation)
{
	return operation->action == COMMIT || operation->action == RENEW;
}

/* Return the number of first operations that give pages to adjacent chunks. */
static uint32_t adjacent(const struct operation *operations, Py_ssize_t count)
{
	uint32_t run = 0;

	while (run < count && is_commit(&operations[run]) && operations[run].chunk == operations[0].chunk + run)
		run++;
	return run;
}

/* Give adjacent chunks pages by one request, which takes less time than several. Return false if it is refused. */
static bool chunks_commit(const struct chunks *chunks, struct gpool_range *range, uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < first + count; i++)
		if (chunk_unmap(range, &chunks->list[i]))
			return false;
	return lib.gpool_range_commit(range, first * chunks->pages, count * chunks->pages, 0) == 0;
}

static int chunk_offer(const struct chunks *chunks, struct gpool_range *range, uint32_t index)
{
	struct chunk *chunk = &chunks->list[index];

	if (!chunk->object)
		return lib.gpool_range_offer(range, index * chunks->pages, chunks->pages, no_fence);
	if (!chunk->pinned)
		return 0;
	chunk->pinned = false;
	return lib.gpool_object_unpin(chunk->object);
}

static int chunk_reclaim(const struct chunks *chunks, struct gpool_range *range, uint32_t index)
{
	struct chunk *chunk = &chunks->list[index];
	int result;

	if (!chunk->object) {
		result = lib.gpool_range_reclaim(range, index * chunks->pages, chunks->pages, NULL);
		return result > 0 ? LOST : result;
	}
	result = chunk->pinned ? 0 : lib.gpool_object_pin(chunk->object);
	chunk->pinned |= !result;
	return result;
}

static int chunk_publish(
	const struct chunks *chunks, struct gpool_range *range, const struct operation *operation, const char *key)
{
	struct gpool_range_publish_options options = GPOOL_RANGE_PUBLISH_OPTIONS_INIT;
	struct chunk *chunk = &chunks->list[operation->chunk];
	struct gpool_object *made;
	int error;

	options.flags = chunks->private ? GPOOL_OBJECT_PRIVATE : 0;
	options.follows = operation->follows < 0 ? NULL : chunks->list[operation->follows].object;
	options.key = key;
	options.value = operation->value;
	options.value_bytes = (uint64_t)operation->bytes;
	error = lib.gpool_range_publish(
		range, operation->chunk * chunks->pages, chunks->pages, operation->name, &options, &made);
	if (!error)
		*chunk = (struct chunk){.object = made, .pinned = true};
	return error;
}

static int execute_one(const struct chunks *chunks, struct gpool_range *range, const struct operation *operation,
	const char *key, int timeout_ms)
{
	switch (operation->action) {
	case LEAVE: return chunk_leave(chunks, range, operation->chunk);
	case OFFER: return chunk_offer(chunks, range, operation->chunk);
	case RECLAIM: return chunk_reclaim(chunks, range, operation->chunk);
	case PUBLISH: return chunk_publish(chunks, range, operation, key);
	default: return chunk_commit(chunks, range, operation->chunk, timeout_ms); /* COMMIT, RENEW */
	}
}

/* Execute operations up to the first one that fails. Return its error, or 0; *done is the number before it. */
static int execute_all(const struct chunks *chunks, struct gpool_range *range, const struct operation *operations,
	Py_ssize_t count, const char *key, int timeout_ms, Py_ssize_t *done)
{
	Py_ssize_t single = 0; /* end of the operations that were refused together, and are executed one by one */
	int code = 0;

	for (*done = 0; *done < count && !code;) {
		const struct operation *next = operations + *done;
		uint32_t together = *done < single ? 1 : adjacent(next, count - *done);

		if (together > 1 && chunks_commit(chunks, range, next->chunk, together)) {
			*done += together;
			continue;
		}
		if (together > 1)
			single = *done + together;
		code = execute_one(chunks, range, next, key, timeout_ms);
		*done += !code;
	}
	return code;
}

/* ---- calls ---- */

/* Return a tuple of new references, which it takes; NULL with an exception if one of them is NULL. */
static PyObject *tuple_of(Py_ssize_t count, PyObject **values)
{
	PyObject *tuple = PyTuple_New(count);

	for (Py_ssize_t i = 0; i < count; i++) {
		if (!values[i])
			Py_CLEAR(tuple);
		if (tuple)
			PyTuple_SetItem(tuple, i, values[i]);
		else
			Py_XDECREF(values[i]);
	}
	return tuple;
}

/* Return 0, or -1 with IndexError. */
static int chunk_check(const struct chunks *chunks, const char *what, long long index)
{
	if (index >= 0 && index < chunks->count)
		return 0;
	PyErr_Format(PyExc_IndexError, "%s is %lld; there %s %lu chunk%s", what, index,
		chunks->count == 1 ? "is" : "are", (unsigned long)chunks->count, plural(chunks->count));
	return -1;
}

/* Enter the range, for one call at a time. Return NULL with an exception. */
static struct gpool_range *begin(struct chunks *chunks)
{
	struct gpool_range *range;

	if (atomic_exchange(&chunks->busy, true)) {
		raise_because(-EBUSY, "change chunks", "another thread changes them");
		return NULL;
	}
	range = guard_enter(chunks->range);
	if (!range)
		atomic_store(&chunks->busy, false);
	return range;
}

static void end(struct chunks *chunks)
{
	atomic_store(&chunks->busy, false);
	guard_leave(chunks->range);
}

/* Return the current exception as an object, and clear it. */
static PyObject *caught(void)
{
	PyObject *type, *value, *trace;

	PyErr_Fetch(&type, &value, &trace);
	PyErr_NormalizeException(&type, &value, &trace);
	Py_XDECREF(type);
	Py_XDECREF(trace);
	return value;
}

/* Return the exception of a failed operation, in the thread that has executed it; None: the content was lost. */
static PyObject *failed(const struct chunks *chunks, enum action action, int code)
{
	static const char *const verbs[ACTIONS] = {
		"commit", "decommit", "offer", "reclaim", "map", "publish", "commit"};
	unsigned long pages = chunks->pages;

	if (code == LOST)
		Py_RETURN_NONE;
	if (action == COMMIT || action == RENEW)
		raise_room(chunks->pool, chunks->range->parent, code, "commit %lu page%s", pages, plural(pages));
	else
		raise_code(code, "%s %lu page%s", verbs[action], pages, plural(pages));
	return caught();
}

/* Convert (action, chunk), or for PUBLISH (action, chunk, name, value, follows). Return 0, or -1 with an exception. */
static int operation_of(const struct chunks *chunks, PyObject *tuple, struct operation *operation)
{
	long long index;

	*operation = (struct operation){.follows = -1};
	if (!PyTuple_Check(tuple)) {
		PyErr_Format(PyExc_TypeError, "%R is not a tuple of an operation", tuple);
		return -1;
	}
	if (!PyArg_ParseTuple(tuple, "iL|yy#L", &operation->action, &index, &operation->name, &operation->value,
		    &operation->bytes, &operation->follows) ||
		chunk_check(chunks, "chunk", index) ||
		(operation->follows >= 0 && chunk_check(chunks, "follows", operation->follows)))
		return -1;
	operation->chunk = (uint32_t)index;
	if (operation->action >= 0 && operation->action < ACTIONS && operation->action != MAP &&
		!operation->name == (operation->action != PUBLISH))
		return 0;
	PyErr_Format(PyExc_ValueError, "action is %d, with %s name", operation->action, operation->name ? "a" : "no");
	return -1;
}

/* Convert a tuple of operations. Return an array to free with PyMem_Free(), or NULL with an exception. */
static struct operation *operations_of(const struct chunks *chunks, PyObject *tuples)
{
	Py_ssize_t count = PyTuple_Size(tuples);
	struct operation *list = PyMem_Calloc((size_t)count, sizeof(*list));

	if (!list) {
		PyErr_NoMemory();
		return NULL;
	}
	for (Py_ssize_t i = 0; i < count; i++)
		if (operation_of(chunks, PyTuple_GetItem(tuples, i), &list[i])) {
			PyMem_Free(list);
			return NULL;
		}
	return list;
}

PyDoc_STRVAR(execute_doc,
	"execute($self, operations, timeout_ms, /)\n--\n\n"
	"Execute operations in order, up to the first one that fails. Return the number of those that have succeeded, "
	"and\n"
	"the exception of the next one; None: all have succeeded, or the next one is RECLAIM and the content was "
	"lost.\n\n"
	"operations: tuples (action, chunk); of PUBLISH (action, chunk, name, value, follows), where follows is -1 or "
	"the\n"
	"chunk with the object that is evicted after this one. timeout_ms: longest wait for pages.\n"
	"COMMIT and RENEW end the object of a chunk first. After an error of them, the chunk's pages are as before, "
	"or\n"
	"have no content, and the objects and offers of adjacent chunks to which the next operations give pages may "
	"have\n"
	"ended.\n"
	"Raises Busy: another thread executes operations, or a view exists; IndexError: no such chunk; TypeError.\n"
	"Cost: that of the calls in C, and one release of the interpreter's lock.");

static PyObject *chunks_execute(PyObject *self, PyObject *args)
{
	struct chunks *chunks = (struct chunks *)self;
	PyObject *list, *tuples, *error = Py_None;
	struct operation *operations;
	struct gpool_range *range;
	Py_ssize_t done = 0, count;
	struct wait wait;
	const char *key;
	int timeout_ms, code = 0;

	if (!PyArg_ParseTuple(args, "Oi", &list, &timeout_ms) || !(tuples = PySequence_Tuple(list)))
		return NULL;
	operations = operations_of(chunks, tuples);
	if (!operations || guard_refuse_views(chunks->range, "change chunks of") || !(range = begin(chunks))) {
		PyMem_Free(operations);
		Py_DECREF(tuples);
		return NULL;
	}
	key = PyBytes_AsString(chunks->key);
	count = PyTuple_Size(tuples);
	wait_begin(&wait, timeout_ms);
	UNLOCKED(code = execute_all(chunks, range, operations, count, key, timeout_ms, &done));
	if (wait_end(&wait)) {
		wait_raise(&wait);
		error = NULL;
	} else if (code)
		error = failed(chunks, operations[done].action, code);
	else
		Py_INCREF(error);
	end(chunks);
	PyMem_Free(operations);
	Py_DECREF(tuples);
	return error ? tuple_of(2, (PyObject *[]){PyLong_FromSsize_t(done), error}) : NULL;
}

/* Map an object, pin it, and find its metadata. After an error, *made is to be unmapped, unless it is NULL. */
static int map(const struct chunks *chunks, struct gpool_range *range, uint32_t index, const char *name,
	struct chunk *made, struct gpool_object_info *info, const void **value, size_t *bytes)
{
	int error = lib.gpool_range_map(range, index * chunks->pages, name, NULL, &made->object);

	if (error) {
		made->object = NULL;
		return error;
	}
	/* It is pinned once, unless it cannot be pinned. The second call has the reason. */
	made->pinned = !lib.gpool_object_unpin(made->object);
	error = lib.gpool_object_pin(made->object);
	made->pinned = !error;
	if (!error)
		error = lib.gpool_object_info(made->object, info);
	if (!error && lib.gpool_object_get(made->object, PyBytes_AsString(chunks->key), value, bytes))
		*value = NULL; /* it has no such metadata */
	return error;
}

PyDoc_STRVAR(map_doc,
	"map($self, chunk, name, /)\n--\n\n"
	"Map an object at a chunk without pages, and pin it. Return its number of pages, the process of its publisher, "
	"and\n"
	"the metadata value of the key, which is empty if there is none.\n\n"
	"Raises NotFound; Stale: it was evicted; Busy; Error with EINVAL: it does not fit, or cannot be pinned; "
	"IndexError.\n"
	"Cost: as Range.map().");

static PyObject *chunks_map(PyObject *self, PyObject *args)
{
	struct chunks *chunks = (struct chunks *)self;
	struct gpool_object_info info = {.size = sizeof(info)};
	struct chunk made = {0};
	struct gpool_range *range;
	const void *value = NULL;
	const char *name;
	size_t bytes = 0;
	long long index;
	int code;

	if (!PyArg_ParseTuple(args, "Ly", &index, &name) || chunk_check(chunks, "chunk", index) ||
		guard_refuse_views(chunks->range, "map objects in") || !(range = begin(chunks)))
		return NULL;
	UNLOCKED(code = map(chunks, range, (uint32_t)index, name, &made, &info, &value, &bytes));
	if (code) {
		raise_code(code, "map object '%s' at page %lu", name, (unsigned long)index * chunks->pages);
		UNLOCKED(chunk_unmap(range, &made));
	} else
		chunks->list[index] = made;
	end(chunks);
	if (code)
		return NULL;
	return tuple_of(4,
		(PyObject *[]){PyLong_FromUnsignedLong(info.pages), PyLong_FromUnsignedLong(info.memory_class),
			PyLong_FromUnsignedLong(info.pid),
			PyBytes_FromStringAndSize(value ? value : "", value ? (Py_ssize_t)bytes : 0)});
}

/* ---- batches ---- */

/* A batch of operations for serve(). */
struct job {
	struct job *next;
	PyObject *batch;              /* of the caller; the result, unless finish() sets another one */
	PyObject *tuples;             /* contains the texts of the operations; NULL: none */
	struct operation *operations; /* NULL: the caller of serve() executes the batch */
	Py_ssize_t count;
	struct gpool_range *range; /* entered */
};

/* Free a batch. Return its result. */
static PyObject *job_free(struct chunks *chunks, struct job *job)
{
	PyObject *result = job->batch;

	guard_leave(chunks->range);
	Py_XDECREF(job->tuples);
	PyMem_Free(job->operations);
	PyMem_Free(job);
	return result;
}

PyDoc_STRVAR(post_doc,
	"post($self, batch, operations, /)\n--\n\n"
	"Add a batch to those that serve() executes. batch: any object. operations: as of execute(), with a timeout\n"
	"of 0, or None: the caller of serve() executes the batch.\n\n"
	"Raises as execute(), except Busy for another thread; RuntimeError: stop() was called.\n"
	"Cost: a wake-up of the thread that serves.");

static PyObject *chunks_post(PyObject *self, PyObject *args)
{
	struct chunks *chunks = (struct chunks *)self;
	PyObject *batch, *list;
	struct job *job;

	if (!PyArg_ParseTuple(args, "OO", &batch, &list))
		return NULL;
	if (chunks->stopped) {
		PyErr_SetString(PyExc_RuntimeError, "post() after stop()");
		return NULL;
	}
	job = PyMem_Calloc(1, sizeof(*job));
	if (!job)
		return PyErr_NoMemory();
	if (list != Py_None) {
		job->tuples = PySequence_Tuple(list);
		job->operations = job->tuples ? operations_of(chunks, job->tuples) : NULL;
		if (!job->operations)
			goto fail;
		job->count = PyTuple_Size(job->tuples);
	}
	if (guard_refuse_views(chunks->range, "change chunks of") || !(job->range = guard_enter(chunks->range)))
		goto fail;
	Py_INCREF(batch);
	job->batch = batch;
	pthread_mutex_lock(&chunks->lock);
	if (chunks->first)
		chunks->last->next = job;
	else
		chunks->first = job;
	chunks->last = job;
	if (!chunks->next)
		chunks->next = job;
	pthread_cond_broadcast(&chunks->changed);
	pthread_mutex_unlock(&chunks->lock);
	Py_RETURN_NONE;
fail:
	Py_XDECREF(job->tuples);
	PyMem_Free(job->operations);
	PyMem_Free(job);
	return NULL;
}

/* Record that the first batch that has not ended has ended. The caller holds the lock. */
static void job_ended(struct chunks *chunks)
{
	chunks->next = chunks->next->next;
	pthread_cond_broadcast(&chunks->changed);
}

/*
 * Execute batches up to one that fails, or that has no operations. Return it, or NULL after stop(). *done is the number
 * of its operations that have succeeded; *code is the error of the next one.
 */
static struct job *jobs_execute(struct chunks *chunks, const char *key, Py_ssize_t *done, int *code)
{
	struct job *job;

	pthread_mutex_lock(&chunks->lock);
	for (;;) {
		*done = *code = 0;
		while (!chunks->next && !chunks->stopped)
			pthread_cond_wait(&chunks->changed, &chunks->lock);
		job = chunks->next;
		/* If another thread changes the chunks, execute() refuses the batch. */
		if (!job || !job->operations || atomic_exchange(&chunks->busy, true))
			break;
		pthread_mutex_unlock(&chunks->lock);
		*code = execute_all(chunks, job->range, job->operations, job->count, key, 0, done);
		atomic_store(&chunks->busy, false);
		pthread_mutex_lock(&chunks->lock);
		if (*code)
			break;
		job_ended(chunks);
	}
	pthread_mutex_unlock(&chunks->lock);
	return job;
}

PyDoc_STRVAR(serve_doc,
	"serve($self, /)\n--\n\n"
	"Execute the batches of post() in order. Return None after stop(), when all have ended; otherwise the first\n"
	"batch that the caller has to execute, and None, or what execute() would have returned if an operation has\n"
	"failed. The caller then ends this batch with finish().\n\n"
	"Threads: one.\n"
	"Cost: the interpreter's lock is released until the call returns.");

static PyObject *chunks_serve(PyObject *self, PyObject *none)
{
	struct chunks *chunks = (struct chunks *)self;
	const char *key = PyBytes_AsString(chunks->key);
	PyObject *result = Py_None, *batch;
	Py_ssize_t done;
	struct job *job;
	int code;

	(void)none;
	UNLOCKED(job = jobs_execute(chunks, key, &done, &code));
	if (!job)
		Py_RETURN_NONE;
	batch = job->batch;
	Py_INCREF(batch);
	if (code)
		result = tuple_of(2,
			(PyObject *[]){PyLong_FromSsize_t(done), failed(chunks, job->operations[done].action, code)});
	else
		Py_INCREF(result);
	return tuple_of(2, (PyObject *[]){batch, result});
}

PyDoc_STRVAR(finish_doc,
	"finish($self, result, /)\n--\n\n"
	"End the batch that serve() has returned; take() then returns result for it.\n\n"
	"Raises RuntimeError: there is none.");

static PyObject *chunks_finish(PyObject *self, PyObject *result)
{
	struct chunks *chunks = (struct chunks *)self;
	PyObject *batch = NULL;

	pthread_mutex_lock(&chunks->lock);
	if (chunks->next) {
		batch = chunks->next->batch;
		Py_INCREF(result);
		chunks->next->batch = result;
		job_ended(chunks);
	}
	pthread_mutex_unlock(&chunks->lock);
	if (!batch) {
		PyErr_SetString(PyExc_RuntimeError, "finish() without a batch");
		return NULL;
	}
	Py_DECREF(batch);
	Py_RETURN_NONE;
}

/* Wait for the end of the first batch, up to 50 ms. The caller holds neither lock. */
static void job_wait(struct chunks *chunks)
{
	struct timespec end;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_nsec += 50000000;
	if (end.tv_nsec >= 1000000000) {
		end.tv_nsec -= 1000000000;
		end.tv_sec++;
	}
	pthread_mutex_lock(&chunks->lock);
	while (chunks->first == chunks->next && !pthread_cond_timedwait(&chunks->changed, &chunks->lock, &end))
		;
	pthread_mutex_unlock(&chunks->lock);
}

PyDoc_STRVAR(take_doc,
	"take($self, wait, /)\n--\n\n"
	"Return the result of the first batch that was not taken: the batch itself if serve() has executed all of\n"
	"it, or what finish() got. Return None if there is none, or if it has not ended and `wait` is false.\n\n"
	"Threads: one. Raises what a signal handler raises during the wait.");

static PyObject *chunks_take(PyObject *self, PyObject *wait)
{
	struct chunks *chunks = (struct chunks *)self;
	int waits = PyObject_IsTrue(wait);
	struct job *job = NULL;

	while (waits >= 0 && !job) {
		bool empty;

		pthread_mutex_lock(&chunks->lock);
		empty = !chunks->first;
		if (chunks->first != chunks->next) {
			job = chunks->first;
			chunks->first = job->next;
		}
		pthread_mutex_unlock(&chunks->lock);
		if (job || empty || !waits)
			break;
		UNLOCKED(job_wait(chunks));
		if (PyErr_CheckSignals())
			return NULL;
	}
	if (waits < 0)
		return NULL;
	if (!job)
		Py_RETURN_NONE;
	return job_free(chunks, job);
}

PyDoc_STRVAR(stop_doc, "stop($self, /)\n--\n\nLet serve() return None when all batches have ended.");

static PyObject *chunks_stop(PyObject *self, PyObject *none)
{
	struct chunks *chunks = (struct chunks *)self;

	(void)none;
	pthread_mutex_lock(&chunks->lock);
	chunks->stopped = true;
	pthread_cond_broadcast(&chunks->changed);
	pthread_mutex_unlock(&chunks->lock);
	Py_RETURN_NONE;
}

/* ---- pins ---- */

/* Store the chunks that are pinned, or of these only those whose objects were evicted. Return their number. */
static uint32_t pinned_find(const struct chunks *chunks, bool only_lost, uint32_t *found)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < chunks->count; i++) {
		const struct chunk *chunk = &chunks->list[i];
		int error;

		if (!chunk->pinned)
			continue;
		error = only_lost ? lib.gpool_object_pin(chunk->object) : -ESTALE;
		if (error == -ESTALE)
			found[count++] = i;
		else if (!error)
			lib.gpool_object_unpin(chunk->object);
	}
	return count;
}

static PyObject *pinned_list(PyObject *self, bool only_lost)
{
	struct chunks *chunks = (struct chunks *)self;
	uint32_t *found = PyMem_Malloc(chunks->count * sizeof(*found)), count;
	PyObject *list;

	if (!found)
		return PyErr_NoMemory();
	if (!begin(chunks)) {
		PyMem_Free(found);
		return NULL;
	}
	UNLOCKED(count = pinned_find(chunks, only_lost, found));
	end(chunks);
	list = PyList_New(0);
	for (uint32_t i = 0; list && i < count; i++) {
		PyObject *index = PyLong_FromUnsignedLong(found[i]);

		if (!index || PyList_Append(list, index))
			Py_CLEAR(list);
		Py_XDECREF(index);
	}
	PyMem_Free(found);
	return list;
}

PyDoc_STRVAR(pinned_doc,
	"pinned($self, /)\n--\n\n"
	"Return the chunks whose objects are pinned.\n\n"
	"Raises Busy: another thread executes operations.");

static PyObject *chunks_pinned(PyObject *self, PyObject *none)
{
	(void)none;
	return pinned_list(self, false);
}

PyDoc_STRVAR(lost_doc,
	"lost($self, /)\n--\n\n"
	"Return the chunks whose objects are pinned and were evicted nevertheless.\n\n"
	"Raises Busy: another thread executes operations.\n"
	"Cost: a pin and an unpin for each pinned object.");

static PyObject *chunks_lost(PyObject *self, PyObject *none)
{
	(void)none;
	return pinned_list(self, true);
}

/* ---- the type ---- */

static PyObject *chunks_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct chunks *chunks = (struct chunks *)PyType_GenericAlloc(type, 0);
	PyObject *handle;
	int private;

	(void)kwargs;
	if (!chunks)
		return NULL;
	pthread_mutex_init(&chunks->lock, NULL);
	pthread_cond_init(&chunks->changed, NULL);
	if (!PyArg_ParseTuple(
		    args, "OOIISp", &handle, &chunks->pool, &chunks->count, &chunks->pages, &chunks->key, &private)) {
		chunks->pool = chunks->key = NULL;
		goto fail;
	}
	Py_INCREF(chunks->pool);
	Py_INCREF(chunks->key);
	chunks->private = private;
	if (guard_set(&chunks->range, handle))
		goto fail;
	if (!chunks->range->parent || (uint64_t)chunks->count * chunks->pages > UINT32_MAX) {
		PyErr_SetString(PyExc_ValueError, "no guard of a range, or too many pages");
		goto fail;
	}
	chunks->list = PyMem_Calloc(chunks->count, sizeof(*chunks->list));
	if (chunks->list)
		return (PyObject *)chunks;
	PyErr_NoMemory();
fail:
	Py_DECREF(chunks);
	return NULL;
}

static int chunks_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct chunks *)self)->range);
	Py_VISIT(((struct chunks *)self)->pool);
	return 0;
}

static void chunks_dealloc(PyObject *self)
{
	struct chunks *chunks = (struct chunks *)self;

	PyObject_GC_UnTrack(self);
	while (chunks->first) {
		struct job *job = chunks->first;

		chunks->first = job->next;
		Py_DECREF(job_free(chunks, job));
	}
	pthread_cond_destroy(&chunks->changed);
	pthread_mutex_destroy(&chunks->lock);
	PyMem_Free(chunks->list);
	Py_XDECREF(chunks->range);
	Py_XDECREF(chunks->pool);
	Py_XDECREF(chunks->key);
	type_free(self);
}

static PyMethodDef chunks_methods[] = {
	{"execute", chunks_execute, METH_VARARGS, execute_doc},
	{"map", chunks_map, METH_VARARGS, map_doc},
	{"post", chunks_post, METH_VARARGS, post_doc},
	{"serve", chunks_serve, METH_NOARGS, serve_doc},
	{"finish", chunks_finish, METH_O, finish_doc},
	{"take", chunks_take, METH_O, take_doc},
	{"stop", chunks_stop, METH_NOARGS, stop_doc},
	{"pinned", chunks_pinned, METH_NOARGS, pinned_doc},
	{"lost", chunks_lost, METH_NOARGS, lost_doc},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot chunks_slots[] = {
	{Py_tp_doc,
		"Chunks(handle, pool, count, pages, key, private)\n--\n\n"
		"Chunks of `pages` pages of the elastic range with this guard. key: bytes, of the metadata of "
		"published\n"
		"objects. private: refuse sessions of other tenants.\n"
		"Threads: one at a time, and one in serve()."},
	{Py_tp_new, chunks_new},
	{Py_tp_traverse, chunks_traverse},
	{Py_tp_dealloc, chunks_dealloc},
	{Py_tp_methods, chunks_methods},
	{0, NULL},
};

static PyType_Spec chunks_spec = {
	"gpool._native.Chunks",
	sizeof(struct chunks),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	chunks_slots,
};

int chunks_add(PyObject *module)
{
	static const char *const names[ACTIONS] = {"COMMIT", "LEAVE", "OFFER", "RECLAIM", "MAP", "PUBLISH", "RENEW"};

	for (int i = 0; i < ACTIONS; i++)
		if (PyModule_AddIntConstant(module, names[i], i))
			return -1;
	return type_add(module, &chunks_spec) ? 0 : -1;
}
