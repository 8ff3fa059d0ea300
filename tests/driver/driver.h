/*
 * driver.h - internals of the driver double, a libcuda.so.1 that runs on the CPU, as strict as the documentation.
 *
 * README.md describes what it models and its settings. Each rule names its source: the title of the section of
 * NVIDIA's "CUDA Driver API" that states it, and the function. A rule without a source is a choice, and is marked so.
 *
 * One lock, driver.lock, protects everything in the process except the bytes of device memory. Every entry point takes
 * it in call_enter() and drops it in call_leave(). driver.changed is signaled when something may have ended a wait.
 */
#ifndef TESTS_DRIVER_DRIVER_H
#define TESTS_DRIVER_DRIVER_H

/* Entry points are the only visible symbols. */
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { DEVICES_MAX = 2, SHARED_EVENTS = 4096, RECORDS_PENDING = 256, COST_MAX = 64 };

/* Preconditions of a call, for call_enter(). */
enum {
	CALL_CONTEXT = 1,     /* a current context, else CUDA_ERROR_INVALID_CONTEXT */
	CALL_AFTER_FAULT = 2, /* permitted after a fault: queries, and the management of contexts */
	CALL_UNSAFE = 4,      /* "potentially unsafe" while a stream is captured; see capture_forbids() */
	CALL_BEFORE_INIT = 8, /* permitted before cuInit() */
};

/* Properties that the documentation leaves open, or that tests vary; driver.c reads them from the environment. */
struct settings {
	unsigned devices;
	uint64_t memory_bytes; /* of each device */
	uint64_t granularity;
	uint64_t context_bytes; /* device memory that a context takes */
	bool peers;
	bool timeline; /* CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS */
	bool ipc_event;
	bool pools;
	bool early; /* code for an architecture whose kernels can start before the end of the one before */
	bool rdma;
	bool vmm, descriptors; /* virtual memory management, and memory exported as descriptors */
	bool host_alias;       /* registered host memory has another address on the device */
	bool cpu_access;       /* the CPU can access device memory at its device address */
	bool aligned;          /* by default, an address range is aligned to the granularity */
	bool unmap_waits;      /* cuMemUnmap and cuMemSetAccess wait for all queued work */
	bool fork;             /* a child of fork() may call cuInit() */
	bool delay;            /* each call takes the time of the cost model */
	bool late;             /* the last queued operation that seems ready runs first; see stream.c */
	bool partial;          /* access can be set for a part of an allocation */
	uint64_t faults;       /* about one of this number of queued operations fails; 0: none */
	uint64_t seed;         /* of `faults` */
	char counts[256];      /* the file to which calls are written when the process ends */
};
extern struct settings settings;

struct stream;
struct event;
struct capture;

struct context {
	int device;
	unsigned generation; /* of the primary context; a handle of an older one is refused */
	unsigned retained;
	bool active;
	unsigned flags;
	struct stream *legacy;
	int memory_fd; /* a file of context_bytes */
	char memory_name[64];
};

struct driver {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pid_t pid;        /* the process that called cuInit(); 0: none */
	CUresult fault;   /* sticky */
	unsigned copying; /* pieces of copies that are being copied, without the lock */
	struct context contexts[DEVICES_MAX];
};
extern struct driver driver;

/*
 * driver.c. call_enter() - begin an entry point: count, delay or fail the call, check `needs`, take the lock.
 * Return: CUDA_SUCCESS, or an error to return at once, without the lock.
 */
CUresult call_enter(const char *name, unsigned needs);
/* call_leave() - drop the lock. Return `result`. */
CUresult call_leave(CUresult result);
/* driver_fault() - record that queued work was illegal: all later work is dropped, all later calls return `error`. */
void driver_fault(CUresult error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/*
 * driver_failed() - return the fault, if any, when no copy is in progress anymore: a program that detects the fault may
 * unmap host memory, which the driver would have kept pinned.
 */
CUresult driver_failed(void);
/* driver_fault_chance() - call driver_fault() for about one of settings.faults operations. */
void driver_fault_chance(void);
/* driver_undefined() - report a use whose effect the documentation declares undefined, and abort. */
_Noreturn void driver_undefined(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* driver_poll() - sleep briefly without the lock, in a loop that waits for a change by another process. */
void driver_poll(unsigned *round);
uint64_t call_count(const char *name);
/*
 * In a child of fork(), with the setting `fork`: discard the records of the parent's objects. The parent's memory
 * remains mapped and allocated until the child ends.
 */
void memory_forget(void);
void streams_forget(void);
void events_forget(void);
void captures_forget(void);
void pools_forget(void);
void kernels_forget(void);

/* context.c */
struct context *context_current(void);
/*
 * context_of() - check a handle. Return: the context, or NULL if the handle names none or the context has been
 * destroyed.
 */
struct context *context_of(CUcontext handle);
CUcontext context_handle(const struct context *context);

/*
 * machine.c - what processes on one machine share: device memory, its accounting, and events between processes. It is a
 * folder of a memory file system; its name is in GPU_DOUBLE_DIR.
 *
 * Each allocation is a file in it. The descriptor that made it holds a lock (flock(2)), which all duplicates and all
 * mappings share and which ends with the last of them, in whatever process. A file without a lock is free memory.
 */
struct shared_event {
	_Atomic uint64_t recorded; /* number of the last record that was issued */
	/* bit n % RECORDS_PENDING: record n has not been executed */
	_Atomic uint64_t pending[RECORDS_PENDING / 64];
	_Atomic uint32_t generation; /* odd: in use */
	_Atomic int32_t maker;       /* process */
	_Atomic uint64_t maker_start;
};

CUresult machine_open(void);
CUresult machine_take(int device, uint64_t bytes, int *fd, char name[64]);
/* machine_give() - free memory whose descriptor and mappings the caller has closed, unless another process has it. */
void machine_give(int device, uint64_t bytes, const char *name);
uint64_t machine_free_bytes(int device);
struct shared_event *machine_event_take(uint32_t *index);
struct shared_event *machine_event_at(uint32_t index);
void machine_event_give(struct shared_event *event);
/* machine_event_alive() - return true if the process that made the event lives and has not destroyed it. */
bool machine_event_alive(const struct shared_event *event, uint32_t generation);

/* memory.c */
struct memory;
/*
 * memory_translate() - find where the process can access device memory that `device` may access.
 *
 * @bytes: in: bytes wanted; out: bytes from there that are contiguous
 *
 * Return: the place, or NULL if the device may not access it. *held, if set, is to be given to memory_unhold().
 */
void *memory_translate(int device, CUdeviceptr at, uint64_t *bytes, bool write, struct memory **held);
void memory_unhold(struct memory *memory);
/* memory_is_device() - return true if the address is in a range that the driver reserved. */
bool memory_is_device(CUdeviceptr at);
/* memory_is_registered() - return true if all of it is registered host memory, at its address in the process. */
bool memory_is_registered(const void *at, uint64_t bytes);
/*
 * memory_for_kernel() - convert a value that a kernel receives: the address of registered host memory on devices
 * becomes its address in the process, where the CPU executes the kernel. Return false if it is an address in the
 * process, which devices cannot use.
 */
bool memory_for_kernel(uint64_t *value);
/*
 * memory_open() - while a kernel runs, permit the CPU to access the memory that `device` may access; memory_close()
 * undoes this. Both have no effect with the setting cpu_access.
 */
void memory_open(int device);
void memory_close(void);
CUresult memory_block_make(int device, uint64_t bytes, CUdeviceptr *at);
CUresult memory_block_free(CUdeviceptr at);

/* stream.c */
enum operation_kind {
	OP_COPY,
	OP_FILL,
	OP_WRITE,
	OP_WAIT_VALUE,
	OP_RECORD,
	OP_WAIT_EVENT,
	OP_LAUNCH,
	OP_FREE,
	OP_HOST
};

struct dependency {
	struct stream *stream;
	uint64_t number;
};

struct operation {
	struct operation *next;
	uint64_t number; /* in its stream, from 1 */
	uint64_t order;  /* in the process */
	enum operation_kind kind;
	struct dependency *after; /* work of other streams that must end first: the default stream's rules */
	unsigned after_count;
	struct dependency launched; /* in a graph: the end of its launch before; stream NULL: none */
	CUdeviceptr to, from;
	void *staged; /* OP_COPY: the bytes of pageable memory; OP_LAUNCH: the arguments */
	uint64_t bytes, value;
	uint32_t element; /* OP_FILL: bytes of an element */
	unsigned flags;
	struct event *event;
	uint64_t record;
	int kernel;
	uint32_t grid[3], block, shared_bytes;
	bool early; /* the kernel may start before the end of the one before it */
	struct pool *pool;
	CUhostFn function;
};

struct stream {
	struct stream *next;
	struct context *context;
	unsigned generation; /* of the context */
	bool alive, blocking, started;
	struct operation *first, **last;
	uint64_t issued, done;
	pthread_t thread;
	struct capture *capture;
	int captured_to; /* number of its last node */
	int joined_to;   /* its last node that another stream waits for */
};

/* stream_of() - check a handle, of which NULL and the constants are the default streams. */
CUresult stream_of(CUstream handle, struct stream **stream);
/* stream_issue() - queue an operation, or add it to the stream's capture. It is copied. */
CUresult stream_issue(struct stream *stream, const struct operation *operation);
/* stream_queue() - queue an operation whatever is captured, for graphs. */
CUresult stream_queue(struct stream *stream, const struct operation *operation);
/* stream_wait() - wait until work up to `number` is done. Return: the fault, if any. */
CUresult stream_wait(struct stream *stream, uint64_t number);
CUresult context_wait(struct context *context);
struct stream *stream_make(struct context *context, bool blocking);
struct stream *stream_first(void);
void streams_end(struct context *context);

/* event.c */
struct event {
	struct event *next;
	struct context *context;
	unsigned flags;
	bool alive, imported;
	struct shared_event own, *state; /* state: own, or in the machine */
	uint32_t index, generation;
	struct capture *capture; /* the last record was captured */
	struct stream *captured_in;
	int captured_at;
	uint64_t recorded_ns;
};
void event_record_end(struct event *event, uint64_t record);
bool event_reached(const struct event *event, uint64_t record);
void events_end(struct context *context);

/* capture.c */
CUresult capture_forbids(bool unsafe);
CUresult capture_add(struct stream *stream, const struct operation *operation);
/* capture_break() - invalidate the stream's capture, because of an operation that it cannot contain. Return `error`. */
CUresult capture_break(struct stream *stream, CUresult error);
CUresult capture_join(struct stream *stream, struct event *event);
void capture_record(struct stream *stream, struct event *event);
/* capture_implicit() - refuse a use of the legacy stream while a stream that it synchronizes with is captured. */
CUresult capture_implicit(struct context *context);

/* kernel.c, pool.c */
void kernel_run(int device, const struct operation *operation);
void pool_freed(struct pool *pool, CUdeviceptr at);

#endif
