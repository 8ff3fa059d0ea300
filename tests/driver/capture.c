/*
 * capture.c - stream capture and graphs: "Stream Management" (cuStreamBeginCapture and others) and "Graph Management".
 *
 * A graph is a list of operations in the order of their capture, which is an order that its dependencies permit. A
 * launch queues them one after the other, with the arguments that they had when they were captured.
 */
#include "tests/driver/driver.h"

#include <stdlib.h>
#include <string.h>

struct graph {
	struct operation *nodes;
	int count, capacity;
	struct dependency launched; /* an executable graph: the end of its last launch */
};

struct capture {
	struct capture *next;
	struct graph *graph;
	struct stream *origin;
	CUstreamCaptureMode mode;
	pthread_t thread;
	cuuint64_t id;
	bool invalid, ended;
};

static struct capture *captures;
static cuuint64_t last_id;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/*
 * "Stream Management", cuThreadExchangeStreamCaptureMode: potentially unsafe calls are forbidden to a thread in global
 * mode while any thread captures in global mode, and to a thread that itself captures in a mode other than relaxed.
 */
CUresult capture_forbids(bool unsafe)
{
	if (!unsafe || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	for (struct capture *capture = captures; capture; capture = capture->next) {
		bool own = pthread_equal(capture->thread, pthread_self());

		if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
			continue;
		if (own ||
			(capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
				thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL)) {
			capture->invalid = true;
			return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	return CUDA_SUCCESS;
}

/* "Data types used by CUDA driver", CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: an earlier error has ended the capture. */
CUresult capture_add(struct stream *stream, const struct operation *operation)
{
	struct graph *graph = stream->capture->graph;
	struct operation *grown;

	if (stream->capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (graph->count == graph->capacity) {
		grown = realloc(graph->nodes, (size_t)(graph->capacity * 2 + 16) * sizeof(*grown));
		if (!grown)
			return CUDA_ERROR_OUT_OF_MEMORY;
		graph->nodes = grown;
		graph->capacity = graph->capacity * 2 + 16;
	}
	graph->nodes[graph->count++] = *operation;
	stream->captured_to = graph->count;
	return CUDA_SUCCESS;
}

CUresult capture_break(struct stream *stream, CUresult error)
{
	stream->capture->invalid = true;
	return error;
}

/*
 * "Data types used by CUDA driver", CUresult: a wait may not merge two captures (CUDA_ERROR_STREAM_CAPTURE_MERGE), use
 * an invalid one, or make the legacy stream depend on a captured one (CUDA_ERROR_STREAM_CAPTURE_IMPLICIT). An event
 * whose last record was captured cannot be used outside of this capture (CUDA_ERROR_CAPTURED_EVENT).
 */
CUresult capture_join(struct stream *stream, struct event *event)
{
	struct stream *other = event->captured_in;

	if (event->capture->ended)
		return stream->capture ? capture_break(stream, CUDA_ERROR_CAPTURED_EVENT) : CUDA_ERROR_CAPTURED_EVENT;
	if (stream->capture && stream->capture != event->capture)
		return capture_break(stream, CUDA_ERROR_STREAM_CAPTURE_MERGE);
	if (event->capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream == stream->context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	if (!stream->capture) {
		stream->capture = event->capture;
		stream->captured_to = event->captured_at;
		stream->joined_to = 0;
	}
	if (other != stream && other->capture == event->capture && other->joined_to < event->captured_at)
		other->joined_to = event->captured_at;
	return CUDA_SUCCESS;
}

void capture_record(struct stream *stream, struct event *event)
{
	event->capture = stream->capture;
	event->captured_in = stream;
	event->captured_at = stream->captured_to;
}

/*
 * "Stream synchronization behavior": the legacy stream would wait for the blocking streams, captured ones as well.
 * "Stream Management", cuStreamIsCapturing: it cannot be used until such captures have ended, whatever their mode. That
 * the attempt makes the capture invalid is a choice.
 */
CUresult capture_implicit(struct context *context)
{
	for (struct stream *stream = stream_first(); stream; stream = stream->next)
		if (stream->capture && stream->context == context && stream->blocking)
			return capture_break(stream, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	return CUDA_SUCCESS;
}

/*
 * "Stream Management", cuStreamBeginCapture: not the legacy stream, not a stream that is being captured. The
 * documentation does not name the errors.
 */
CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct capture *capture;
	struct stream *stream;

	if (result != CUDA_SUCCESS)
		return result;
	result = stream_of(handle, &stream);
	if (result != CUDA_SUCCESS)
		return call_leave(result);
	if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (stream == stream->context->legacy)
		return call_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (stream->capture)
		return call_leave(CUDA_ERROR_ILLEGAL_STATE);
	capture = calloc(1, sizeof(*capture));
	if (capture)
		capture->graph = calloc(1, sizeof(*capture->graph));
	if (!capture || !capture->graph)
		return call_leave(CUDA_ERROR_OUT_OF_MEMORY);
	capture->origin = stream;
	capture->mode = mode;
	capture->thread = pthread_self();
	capture->id = ++last_id;
	capture->next = captures;
	captures = capture;
	stream->capture = capture;
	stream->captured_to = stream->joined_to = 0;
	return call_leave(CUDA_SUCCESS);
}

/*
 * capture_end() - end a capture and remove all streams from it. Return false if one of them was not joined to the
 * origin.
 */
static bool capture_end(struct capture *capture)
{
	struct capture **link = &captures;
	bool joined = true;

	for (struct stream *stream = stream_first(); stream; stream = stream->next) {
		if (stream->capture != capture)
			continue;
		joined &= stream == capture->origin || stream->joined_to >= stream->captured_to;
		stream->capture = NULL;
	}
	while (*link != capture)
		link = &(*link)->next;
	*link = capture->next;
	capture->ended = true;
	return joined; /* the capture itself is kept: events refer to it */
}

/*
 * "Stream Management", cuStreamEndCapture: on the stream on which it began; unless the mode is relaxed, in the same
 * thread; all streams that it involves have been joined to the origin; an invalid capture gives no graph.
 */
CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct capture *capture;
	struct stream *stream;
	bool joined;

	if (result != CUDA_SUCCESS)
		return result;
	result = graph ? stream_of(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return call_leave(result);
	*graph = NULL;
	capture = stream->capture;
	if (!capture)
		return call_leave(CUDA_ERROR_ILLEGAL_STATE);
	if (capture->origin != stream)
		return call_leave(capture_break(stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
		return call_leave(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	joined = capture_end(capture);
	if (capture->invalid)
		return call_leave(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	if (!joined)
		return call_leave(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	*graph = (CUgraph)(void *)capture->graph;
	return call_leave(CUDA_SUCCESS);
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct stream *stream;

	if (result != CUDA_SUCCESS)
		return result;
	result = status ? stream_of(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return call_leave(result);
	/*
	 * "Stream Management", cuStreamIsCapturing: an error for the legacy stream while a blocking stream is captured.
	 */
	if (stream == stream->context->legacy) {
		for (struct stream *other = stream_first(); other; other = other->next)
			if (other->capture && other->context == stream->context && other->blocking)
				return call_leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	}
	*status = !stream->capture         ? CU_STREAM_CAPTURE_STATUS_NONE
		: stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
					   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return call_leave(CUDA_SUCCESS);
}

/* "Stream Management", cuThreadExchangeStreamCaptureMode: exchanges the thread's mode, one of three, with *mode. */
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);
	CUstreamCaptureMode before = thread_mode;

	if (result != CUDA_SUCCESS)
		return result;
	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	thread_mode = *mode;
	*mode = before;
	return call_leave(CUDA_SUCCESS);
}

/* graph_copy() - copy a graph and what its nodes own. */
static struct graph *graph_copy(const struct graph *graph)
{
	struct graph *copy = calloc(1, sizeof(*copy));

	if (!copy)
		return NULL;
	copy->count = copy->capacity = graph->count;
	copy->nodes = malloc(((size_t)graph->count + 1) * sizeof(*copy->nodes));
	if (!copy->nodes) {
		free(copy);
		return NULL;
	}
	if (graph->count)
		memcpy(copy->nodes, graph->nodes, (size_t)graph->count * sizeof(*copy->nodes));
	return copy; /* a launch's arguments are shared: they live as long as the process */
}

/*
 * "Graph Management", cuGraphInstantiate: a snapshot; the graph may be destroyed afterwards. Only known flags; graphs
 * for launches by a device, and uploads, are not modeled, and refused.
 */
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct graph *copy;

	if (result != CUDA_SUCCESS)
		return result;
	if (!exec || !graph ||
		flags &
			~(unsigned long long)(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
				CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY))
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	copy = graph_copy((const struct graph *)(void *)graph);
	if (!copy)
		return call_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*exec = (CUgraphExec)(void *)copy;
	return call_leave(CUDA_SUCCESS);
}

static void graph_free(struct graph *graph)
{
	free(graph->nodes);
	free(graph);
}

/* "Graph Management", cuGraphDestroy: its executable graphs remain. NULL is CUDA_ERROR_INVALID_VALUE. */
CUresult cuGraphDestroy(CUgraph graph)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!graph)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	graph_free((struct graph *)(void *)graph);
	return call_leave(CUDA_SUCCESS);
}

/* "Graph Management", cuGraphExecDestroy: NULL is CUDA_ERROR_INVALID_VALUE. */
CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!exec)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	graph_free((struct graph *)(void *)exec);
	return call_leave(CUDA_SUCCESS);
}

/* node_queue() - queue a node, with copies of the data that the queue frees after its execution. */
static CUresult node_queue(struct stream *stream, const struct operation *node, struct dependency launched)
{
	struct operation operation = *node;
	CUresult result;

	operation.launched = launched;

	if (node->kind == OP_LAUNCH) {
		operation.staged = malloc(node->bytes);
		if (!operation.staged)
			return CUDA_ERROR_OUT_OF_MEMORY;
		memcpy(operation.staged, node->staged, node->bytes);
	}
	result = stream_queue(stream, &operation);
	if (result != CUDA_SUCCESS && node->kind == OP_LAUNCH)
		free(operation.staged);
	return result;
}

/* "Graph Management", cuGraphLaunch: after earlier work of the stream, and after earlier launches, in any stream. */
CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct graph *graph = (struct graph *)(void *)exec;
	struct stream *stream;

	if (result != CUDA_SUCCESS)
		return result;
	result = graph ? stream_of(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS && stream->capture)
		result = capture_break(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); /* child graphs: not modeled */
	for (int i = 0; i < (graph ? graph->count : 0) && result == CUDA_SUCCESS; i++)
		result = node_queue(stream, &graph->nodes[i], graph->launched);
	if (result == CUDA_SUCCESS && graph->count)
		graph->launched = (struct dependency){stream, stream->issued};
	return call_leave(result);
}

void captures_forget(void)
{
	captures = NULL;
}
