/*
 * malloc_trace.h - a trace of allocations: who allocated and freed how much, on which stream, and when.
 *
 * As text it is CSV, one event a line behind the header line; a program records it (struct gpool_vm_options,
 * record_path), or a tool writes one. All fields are decimal numbers without sign, but for `op`:
 *
 *	time_ns,thread,stream,op,size,id
 *	0,1,1,malloc,2097152,1
 *	8120,1,1,free,0,1
 *
 *   time_ns  when, on any clock; it does not run backwards within a thread
 *   thread   who; any number
 *   stream   on which stream; any number, 0: none, the caller has waited for the GPU by itself
 *   op       malloc or free
 *   size     bytes of a malloc, from 1; of a free either those of its malloc or 0
 *   id       which allocation; when it has been freed the number may be used again
 *
 * A malloc precedes its free. Each line ends with a newline, so that a truncated one is noticed. An error
 * in a text is reported with its name, line and field, and the text is rejected. A record that lacks calls, because its
 * program was killed or was too quick, can be read all the same, if asked for. docs/internals/replay.md has the same
 * for people.
 */
#ifndef GPOOL_TOOLS_LIB_MALLOC_TRACE_H
#define GPOOL_TOOLS_LIB_MALLOC_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define MALLOC_TRACE_HEADER "time_ns,thread,stream,op,size,id"
/* of one allocation; so that sums of all events fit into 64 bits */
#define MALLOC_TRACE_BYTES_MAX (UINT64_C(1) << 40)

enum {
	MALLOC_TRACE_EVENTS_MAX = 10000000, /* 240 MB of events */
	/* concurrent, between their first and their last events; each becomes a thread */
	MALLOC_TRACE_THREADS_MAX = 256,
	MALLOC_TRACE_STREAMS_MAX = 250, /* also concurrent; a session can have 255 */
	MALLOC_TRACE_ERROR_BYTES = 512,
};

#define MALLOC_TRACE_NONE UINT32_MAX

enum malloc_op { MALLOC_OP_MALLOC, MALLOC_OP_FREE };

struct malloc_event {
	uint64_t time_ns; /* since the first event */
	uint64_t bytes;   /* of a free: those of its malloc */
	/* the index of the free of a malloc, and of the malloc of a free; MALLOC_TRACE_NONE: it is never freed */
	uint32_t twin;
	uint8_t op;     /* enum malloc_op */
	uint8_t thread; /* from 0; reused after the last event of a thread */
	uint8_t stream; /* from 1, reused as well; 0: none */
};

struct malloc_trace {
	struct malloc_event *events;
	uint32_t count, mallocs;
	uint32_t threads, streams; /* numbers in use */
	uint32_t dropped;          /* invalid events, and frees of unknown ids */
	uint64_t span_ns;          /* time of the latest event */
	uint64_t peak_bytes;       /* maximum of live bytes, with the events in the order of the trace */
};

/*
 * malloc_trace_read() - read a trace from text. malloc_trace_load() - from a file; "-": standard input.
 *
 * @name: the name of the text in messages @incomplete: drop a truncated last line, and frees of ids that are not
 * allocated; an id may then also be allocated twice @error: [MALLOC_TRACE_ERROR_BYTES] receives the error, with name,
 * line and field
 *
 * Return: 0, -EINVAL (not a trace), -ENOMEM, or the errno of opening and reading.
 */
int malloc_trace_read(FILE *file, const char *name, bool incomplete, struct malloc_trace *trace, char *error);
int malloc_trace_load(const char *path, bool incomplete, struct malloc_trace *trace, char *error);

/* malloc_trace_write() - write a trace as text; ids are counted from 1. Return: 0, or the errno of the write. */
int malloc_trace_write(const struct malloc_trace *trace, FILE *file);

/* malloc_trace_free() - free a trace; an all-zero struct is permitted. */
void malloc_trace_free(struct malloc_trace *trace);

/*
 * malloc_trace_append() - append an event to a trace that a program makes: *capacity is initially 0. The caller sets
 * twins; malloc_trace_finish() updates counts, span and peak. Return: 0, -ENOMEM, -EFBIG (MALLOC_TRACE_EVENTS_MAX).
 */
int malloc_trace_append(struct malloc_trace *trace, uint32_t *capacity, const struct malloc_event *event);
void malloc_trace_finish(struct malloc_trace *trace);

#endif
