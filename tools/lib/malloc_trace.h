/*
 * malloc_trace.h - a trace of allocations: the thread, stream, size and time of each allocation and free.
 *
 * As text, a trace is CSV with a header line and one event per line. A program can record it (record_path in struct
 * gpool_vm_options), or a tool can generate it. All fields except `op` are decimal numbers without a sign:
 *
 * 	time_ns,thread,stream,op,size,id
 * 	0,1,1,malloc,2097152,1
 * 	8120,1,1,free,0,1
 *
 *   time_ns  time on any clock; it never decreases within a thread
 *   thread   the calling thread; any number
 *   stream   the stream; any number; 0: none, the caller has waited for the GPU
 *   op       malloc or free
 *   size     bytes of a malloc, at least 1; of a free, either 0 or the size of its malloc
 *   id       the allocation; after a free, its number may be used again
 *
 * A malloc precedes its free. Each line ends with a newline, so that truncation is detected. An invalid trace is
 * rejected; the error message contains its name, the line and the field. A record may lack calls because its program
 * was killed or recorded too fast; such a trace is accepted on request. docs/internals/replay.md describes the format
 * for users.
 */
#ifndef GPOOL_TOOLS_LIB_MALLOC_TRACE_H
#define GPOOL_TOOLS_LIB_MALLOC_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define MALLOC_TRACE_HEADER "time_ns,thread,stream,op,size,id"
/* per allocation; the sum of all events then fits in 64 bits */
#define MALLOC_TRACE_BYTES_MAX (UINT64_C(1) << 40)

enum {
	MALLOC_TRACE_EVENTS_MAX = 10000000, /* 240 MB of events */
	/* concurrent threads, from their first to their last events; each becomes a thread of the replay */
	MALLOC_TRACE_THREADS_MAX = 256,
	MALLOC_TRACE_STREAMS_MAX = 250, /* concurrent streams, counted in the same way; a session can have 255 */
	MALLOC_TRACE_ERROR_BYTES = 512,
};

#define MALLOC_TRACE_NONE UINT32_MAX

enum malloc_op { MALLOC_OP_MALLOC, MALLOC_OP_FREE };

struct malloc_event {
	uint64_t time_ns; /* since the first event */
	uint64_t bytes;   /* for a free: the size of its malloc */
	/* index of the matching free or malloc; MALLOC_TRACE_NONE: the allocation is never freed */
	uint32_t twin;
	uint8_t op;     /* enum malloc_op */
	uint8_t thread; /* from 0; a number is reused after the last event of its thread */
	uint8_t stream; /* from 1; reused in the same way; 0: none */
};

struct malloc_trace {
	struct malloc_event *events;
	uint32_t count, mallocs;
	uint32_t threads, streams; /* numbers in use */
	uint32_t dropped;          /* invalid events, and frees of unknown ids */
	uint64_t span_ns;          /* time of the last event */
	uint64_t peak_bytes;       /* maximum number of live bytes, with events in trace order */
};

/*
 * malloc_trace_read() - read a trace from text.
 * malloc_trace_load() - read it from a file; "-": standard input.
 *
 * @name:       name of the text in error messages
 * @incomplete: drop a truncated last line, and frees of ids that are not allocated; an id may be allocated twice
 * @error:      [MALLOC_TRACE_ERROR_BYTES] receives the error, with name, line and field
 *
 * Return: 0, -EINVAL (not a trace), -ENOMEM, or the errno of opening and reading.
 */
int malloc_trace_read(FILE *file, const char *name, bool incomplete, struct malloc_trace *trace, char *error);
int malloc_trace_load(const char *path, bool incomplete, struct malloc_trace *trace, char *error);

/* malloc_trace_write() - write a trace as text, with ids counted from 1. Return: 0, or the errno of the write. */
int malloc_trace_write(const struct malloc_trace *trace, FILE *file);

/* malloc_trace_free() - free a trace; an all-zero struct is permitted. */
void malloc_trace_free(struct malloc_trace *trace);

/*
 * malloc_trace_append() - append an event to a trace under construction. *capacity is initially 0. The caller sets the
 * twins; malloc_trace_finish() sets counts, span and peak. Return: 0, -ENOMEM, -EFBIG (MALLOC_TRACE_EVENTS_MAX).
 */
int malloc_trace_append(struct malloc_trace *trace, uint32_t *capacity, const struct malloc_event *event);
void malloc_trace_finish(struct malloc_trace *trace);

#endif
