/*
 * fault_on_gpu.c - test that no wait hangs after a device failure, and that no page is given to another process while
 * work that was running may still use it.
 *
 * Goal: after a fault of queued work, work that was queued is never executed, and timeline words do not change. All
 * waits of the process must end with -EIO, and waits in processes that import its fences too. Pages behind a fence that
 * is never signaled stay allocated until the process has ended, even after gpool_close(); then all pages are free.
 * Method: a real gpoold. A fault ends the driver in its process, so each case runs in workers (this program, executed
 * again), which report what they have done. SIGALRM ends a worker that hangs. The faulting operation is queued behind a
 * host-signaled fence, so that everything after it is queued before the fault.
 * `fault_on_gpu --backend host` runs the same on the host back end, with sticky faults.
 *
 * Exit status: 0: passed; 1: failed; 77: no GPU (the reason is printed).
 */
#include "client/core/pool.h"
#include "client/core/stream.h"
#include "client/gpool/lora.h"
#include "cuda/gpu.h"
#include "cuda/kernels/block_copy.h"
#include "shm/timeline.h"
#include "tests/gpu/peer.h"
#include "tests/lib/await.h"
#include "tests/lib/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 64, PAGE_BYTES = 2 << 20, WAIT_S = 300 };

static const char *backend = "cuda";
static struct harness harness;

/* ---- workers ---- */

/* In a worker, end it and report the condition if it is false. */
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: worker: %s; %s\n", __FILE__, __LINE__, #condition, gpu_error_text()); \
			_exit(1); \
		} \
	} while (0)
#define RETURNS(call, value) \
	do { \
		long long returned_ = (call); \
\
		if (returned_ != (value)) { \
			fprintf(stderr, "%s:%d: worker: %s is %lld; %s\n", __FILE__, __LINE__, #call, returned_, \
				gpu_error_text()); \
			_exit(1); \
		} \
	} while (0)

/* In a worker, wait until the condition is true; SIGALRM ends the wait. */
#define AWAIT_IN_WORKER(condition) \
	while (!(condition)) { \
		gpool_fence_done(pool, GPOOL_FENCE_NONE); /* ends deferred frees */ \
		poll(NULL, 0, AWAIT_STEP_MS); \
	}

static struct gpool *pool;
static uint32_t stream, gate;
static struct gpool_fence held; /* signaled by fault_now() */

static void worker_open(const char *directory)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;

	options.directory = directory;
	options.timeout_ms = WAIT_S * 1000;
	RETURNS(gpool_open(&options, &pool), 0);
	RETURNS(gpool_stream_open(pool, NULL, 0, &stream), 0);
	RETURNS(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &gate), 0);
}

/* Queue work that faults when fault_now() is called. */
static void fault_queue(void)
{
	struct block_copy_args args = {.count = 1};
	uint64_t bytes, address;
	void *native;

	RETURNS(gpu_granularity(pool->gpu, &bytes), 0);
	RETURNS(gpu_reserve(pool->gpu, bytes, 0, &address), 0); /* nothing is mapped there */
	RETURNS(gpool_fence_record(pool, gate, &held), 0);
	RETURNS(gpool_stream_wait(pool, stream, held), 0);
	if (pool->capabilities & GPU_CAP_KERNELS && strcmp(backend, "host")) {
		args.items[0] = (struct block_copy_item){address, address + bytes / 2, bytes / 2};
		args.bytes_max = bytes;
		RETURNS(gpool_stream_native(pool, stream, &native), 0);
		RETURNS(block_copy_queue(pool->gpu, &args, native), 0);
	} else {
		RETURNS(gpool_fill(pool, stream, address, 1, bytes), 0);
	}
}

static void fault_now(void)
{
	RETURNS(gpool_fence_signal(pool, held), 0);
}

static struct gpool_fence record(uint32_t of)
{
	struct gpool_fence fence;

	RETURNS(gpool_fence_record(pool, of, &fence), 0);
	return fence;
}

static struct gpool_block alloc(uint32_t pages, uint64_t *address)
{
	struct gpool_block block;

	RETURNS(gpool_alloc(pool, pages, NULL, &block), 0);
	RETURNS(gpool_address(pool, &block, address), 0);
	return block;
}

static void say(const void *data, size_t bytes)
{
	RETURNS(peer_send(PEER_SOCKET, data, bytes, -1), 0);
}

static void hear(void *data, size_t bytes)
{
	int fd;

	RETURNS(peer_receive(PEER_SOCKET, data, bytes, &fd), 0);
}

static void say_step(void)
{
	say("", 1);
}

static void hear_step(void)
{
	char step;

	hear(&step, 1);
}

/* All waits for fences, and all calls that queue work, return -EIO. Fences that were signaled before stay signaled. */
static void worker_waits(void)
{
	struct gpool_fence before, after, elsewhere, fence;
	struct gpool_fence_handle handle;
	uint64_t address;
	uint32_t other;

	alloc(1, &address);
	RETURNS(gpool_stream_open(pool, NULL, 0, &other), 0);
	before = record(stream);
	RETURNS(gpool_fence_wait(pool, before, -1), 0);
	fault_queue();
	after = record(stream);
	RETURNS(gpool_stream_wait(pool, other, after), 0);
	elsewhere = record(other);
	RETURNS(gpool_fence_done(pool, after), 0);
	fault_now();
	RETURNS(gpool_fence_wait(pool, after, -1), -EIO);
	CHECK(strstr(gpool_last_error(-EIO), "GPU has failed"));
	RETURNS(gpool_fence_done(pool, after), -EIO);
	RETURNS(gpool_fence_wait(pool, elsewhere, -1), -EIO);
	RETURNS(gpool_stream_wait(pool, other, after), -EIO);
	RETURNS(gpool_fence_done(pool, before), 1);
	RETURNS(gpool_stream_wait(pool, other, before), 0);
	RETURNS(gpool_fence_record(pool, stream, &fence), -EIO);
	RETURNS(gpool_fill(pool, stream, address, 1, 4096), -EIO);
	RETURNS(gpool_copy(pool, other, address, address + 4096, 4096), -EIO);
	RETURNS(gpool_fence_export(pool, after, 0, &handle), -EIO);
	/* Timelines without GPU work are not affected. */
	fence = record(gate);
	RETURNS(gpool_fence_done(pool, fence), 0);
	RETURNS(gpool_fence_signal(pool, fence), 0);
	RETURNS(gpool_fence_wait(pool, fence, -1), 0);
	/* Closing a stream signals none of its fences, and its slot is not used again. */
	gpool_stream_close(pool, stream);
	RETURNS(gpool_fence_wait(pool, after, -1), -EIO);
	RETURNS(gpool_fence_record(pool, stream, &fence), -EIO);
	RETURNS(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &other), 0);
	CHECK(fence_slot(record(other).value) != fence_slot(after.value));
	gpool_close(pool);
}

/* A program that only queries fences learns of the failure too. */
static void worker_queries(void)
{
	struct gpool_fence after;
	int state;

	fault_queue();
	after = record(stream);
	fault_now();
	while (!(state = gpool_fence_done(pool, after)))
		;
	RETURNS(state, -EIO);
	gpool_close(pool);
}

/* Pages behind a fence stay allocated, first while the pool is open, then while the process is running. */
static void worker_memory(void)
{
	struct gpool_fence after;
	struct gpool_block unpinned, freed;
	struct gpool_loan *loan = calloc(1, sizeof(*loan) + 1);
	uint32_t session = gpool_session(pool);
	uint64_t address;

	CHECK(loan);
	unpinned = alloc(8, &address);
	freed = alloc(8, &address);
	*loan = (struct gpool_loan){pool, NULL, alloc(8, &address), stream, 0, 0, sizeof(*loan)};
	fault_queue();
	after = record(stream);
	RETURNS(gpool_unpin_after(pool, &unpinned, after), 0);
	RETURNS(gpool_free_after(pool, &freed, after), 0);
	fault_now();
	RETURNS(gpool_fence_wait(pool, after, -1), -EIO);
	gpool_loan_end(loan + 1); /* no fence can be recorded for it */
	CHECK(loan->ended);
	gpool_stream_close(pool, stream);
	say(&session, sizeof(session));
	hear_step();
	gpool_close(pool);
	say_step();
	hear_step();
}

static struct gpool_kv *cache(uint32_t pool_blocks, uint64_t *sequence)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv *kv;

	options.shape = (struct gpool_kv_shape){
		.layers = 2, .kv_heads = 2, .head_size = 64, .dtype_bytes = 2, .block_tokens = 16};
	options.flags = pool_blocks ? GPOOL_KV_PREFIXES : 0;
	options.pool_blocks = pool_blocks;
	options.stream = stream;
	options.max_blocks = 64;
	options.max_sequence_tokens = 512;
	RETURNS(gpool_kv_create(pool, &options, &kv), 0);
	request.tokens = 16;
	RETURNS(gpool_kv_allocate(kv, &request, sequence), 0);
	return kv;
}

/* The waits of caches, adapters, ranges and the allocator end too. All of them begin while the work is queued. */
static void worker_parts(void)
{
	struct gpool_lora_options lora_options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora_batch_options batch_options = GPOOL_LORA_BATCH_OPTIONS_INIT;
	const struct gpool_lora_target target = {"model.layers.*.q", 256, 256};
	const uint32_t tokens[4] = {GPOOL_LORA_NONE, GPOOL_LORA_NONE, GPOOL_LORA_NONE, GPOOL_LORA_NONE};
	struct gpool_lora_batch *batch;
	struct gpool_range *range;
	struct gpool_lora *lora;
	uint64_t offloaded, running, shared, slot, memory, more;
	struct gpool_block all = alloc(PAGES, &memory);
	struct gpool_kv *kv, *shares;
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;

	/* All pages are mapped now, since a driver may wait for queued work when a call maps or unmaps memory. */
	RETURNS(gpool_free(pool, &all), 0);
	kv = cache(0, &offloaded);
	shares = cache(32, &shared);
	RETURNS(gpool_kv_host_reserve(kv, 4 << 20), 0);
	request.tokens = 1;
	RETURNS(gpool_kv_allocate(kv, &request, &running), 0);
	RETURNS(gpool_kv_sync(kv), 0);
	lora_options.element = batch_options.element = GPOOL_LORA_F16;
	RETURNS(gpool_lora_create(pool, &lora_options, &lora), 0);
	batch_options.stream = stream;
	batch_options.tokens_max = 4;
	batch_options.layers = 1;
	batch_options.targets = &target;
	batch_options.target_count = 1;
	RETURNS(gpool_lora_batch_create(lora, &batch_options, &batch), 0);
	RETURNS(gpool_range_reserve(pool, 8, NULL, &range), 0);
	RETURNS(gpool_range_commit(range, 0, 8, 0), 0);
	RETURNS(gpool_malloc_async(pool, 8 * PAGE_BYTES, stream, &memory), 0);
	RETURNS(gpool_fence_wait(pool, record(stream), -1), 0);
	fault_queue();
	RETURNS(gpool_kv_offload(kv, offloaded, GPOOL_KV_OFFLOAD_INT8, NULL), 1);
	/* The next call of each kind waits for the first one, whose stage it uses again. */
	for (int i = 0; i < 8; i++) {
		RETURNS(gpool_kv_append(kv, running, 16, &slot), 0);
		RETURNS(gpool_kv_sync(kv), 0);
	}
	for (int i = 0; i < 2; i++)
		RETURNS(gpool_lora_batch_set(batch, tokens, 4, NULL), 0);
	RETURNS(gpool_kv_append(kv, running, 16, &slot), 0);
	RETURNS(gpool_free_async(pool, memory, stream), 0);
	fault_now();
	RETURNS(gpool_kv_resume(kv, offloaded), -EIO);
	RETURNS(gpool_kv_sync(kv), -EIO);
	RETURNS(gpool_lora_batch_set(batch, tokens, 4, NULL), -EIO);
	RETURNS(gpool_kv_prefix_share(shares, shared, -1), -EIO);
	RETURNS(gpool_sleep(pool, 0), -EIO);
	RETURNS(gpool_lora_batch_destroy(batch), -EIO);
	RETURNS(gpool_kv_destroy(shares), -EIO);
	RETURNS(gpool_kv_destroy(kv), -EIO);
	RETURNS(gpool_range_destroy(range), -EIO);
	CHECK(gpool_malloc_async(pool, PAGES * (uint64_t)PAGE_BYTES, 0, &more));
	gpool_stream_close(pool, stream);
	RETURNS(gpool_trim_to(pool, 0), 0);
	gpool_close(pool);
}

/* Export a fence of work that faults. The process then does nothing, and detects the failure all the same. */
static void export_and_fault(uint32_t flags)
{
	struct gpool_fence_handle handle;
	struct gpool_fence after;

	fault_queue();
	after = record(stream);
	RETURNS(gpool_fence_export(pool, after, flags, &handle), 0);
	say(&handle, sizeof(handle));
	hear_step();
	fault_now();
	hear_step();
}

static void worker_exports(void)
{
	export_and_fault(0);
}

static void worker_exports_event(void)
{
	export_and_fault(GPOOL_FENCE_EXPORT_EVENT);
}

static struct gpool_fence import(struct gpool_fence_handle *handle)
{
	struct gpool_fence fence;

	hear(handle, sizeof(*handle));
	RETURNS(gpool_fence_import(pool, handle, &fence), 0);
	RETURNS(gpool_fence_done(pool, fence), 0);
	return fence;
}

/*
 * All waits for an imported fence end when the GPU of the exporter has failed; waits of threads return -EIO. Work of
 * the exporter may still use blocks that wait for the fence, so they wait until the exporter has ended.
 */
static void worker_imports(void)
{
	struct gpool_fence_handle handle;
	struct gpool_fence theirs = import(&handle), again, ours;
	struct gpool_block unpinned, freed;
	uint32_t session = gpool_session(pool);
	uint64_t address;

	unpinned = alloc(8, &address);
	freed = alloc(8, &address);
	RETURNS(gpool_unpin_after(pool, &unpinned, theirs), 0);
	RETURNS(gpool_free_after(pool, &freed, theirs), 0);
	RETURNS(gpool_stream_wait(pool, stream, theirs), 0);
	ours = record(stream);
	say(&session, sizeof(session));
	RETURNS(gpool_fence_wait(pool, theirs, -1), -EIO);
	CHECK(strstr(gpool_last_error(-EIO), "exported fence"));
	RETURNS(gpool_fence_wait(pool, ours, -1), 0);
	RETURNS(gpool_fence_done(pool, theirs), -EIO);
	RETURNS(gpool_stream_wait(pool, stream, theirs), -EIO);
	RETURNS(gpool_fence_import(pool, &handle, &again), -EIO);
	RETURNS(gpool_fence_close(pool, theirs), 0); /* the blocks still wait */
	CHECK(pool->deferred_count != 0);
	say_step();
	hear_step(); /* the exporter has ended */
	AWAIT_IN_WORKER(pool->deferred_count == 0);
	RETURNS(gpool_fence_record(pool, stream, &ours), 0);
	RETURNS(gpool_fence_wait(pool, ours, -1), 0);
	say_step();
	hear_step();
	gpool_close(pool);
}

/* Threads learn of the failure if the fence was exported by event, too. */
static void worker_imports_event(void)
{
	struct gpool_fence_handle handle;
	struct gpool_fence theirs = import(&handle);

	say_step();
	RETURNS(gpool_fence_wait(pool, theirs, -1), -EIO);
	RETURNS(gpool_fence_close(pool, theirs), 0);
	gpool_close(pool);
}

/* ---- the test ---- */

struct child {
	pid_t pid;
	int socket;
};

static struct child child_start(const char *name)
{
	char *const arguments[] = {
		"fault_on_gpu", "--backend", (char *)backend, "--worker", (char *)name, harness.directory, NULL};
	struct child child;

	child.pid = peer_start(arguments, &child.socket);
	assert_true(child.pid > 0);
	return child;
}

static void child_hear(const struct child *child, void *data, size_t bytes)
{
	int fd;

	assert_int_equal(peer_receive(child->socket, data, bytes, &fd), 0);
}

static void child_say(const struct child *child, const void *data, size_t bytes)
{
	assert_int_equal(peer_send(child->socket, data, bytes, -1), 0);
}

static void child_end(struct child *child)
{
	int status;

	assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
	close(child->socket);
	if (status)
		fail_msg("a worker ended with status 0x%x (0xe: it hung)", (unsigned)status);
}

static int start(void **state)
{
	char text[160];
	const char *const arguments[] = {"--pool", text, NULL};

	(void)state;
	snprintf(text, sizeof(text), "name=p0,backend=%s,size=%d pages,page_size=2MB,reserved=0", backend, PAGES);
	harness_start(&harness, arguments);
	return 0;
}

/* When the workers have ended, all pages are free. */
static int stop(void **state)
{
	(void)state;
	AWAIT(harness_free_pages(&harness) == PAGES);
	assert_int_equal(harness_check(&harness), 0);
	return harness_stop(&harness);
}

static void run_alone(const char *name)
{
	struct child child = child_start(name);

	child_end(&child);
}

static void test_waits_end(void **state)
{
	(void)state;
	run_alone("waits");
}

static void test_queries_end(void **state)
{
	(void)state;
	run_alone("queries");
}

static void test_pages_stay_until_the_process_has_ended(void **state)
{
	struct child child = child_start("memory");
	uint32_t session;
	char step;

	(void)state;
	child_hear(&child, &session, sizeof(session));
	harness_evict(&harness, session, PAGES);
	assert_true(harness_free_pages(&harness) <= PAGES - 24);
	child_say(&child, "", 1);
	child_hear(&child, &step, 1); /* after gpool_close() */
	harness_evict(&harness, session, PAGES);
	assert_true(harness_free_pages(&harness) <= PAGES - 24);
	assert_int_equal(harness_check(&harness), 0);
	child_say(&child, "", 1);
	child_end(&child);
}

static void test_waits_of_all_parts_end(void **state)
{
	(void)state;
	run_alone("parts");
}

static void test_waits_of_importers_end(void **state)
{
	struct child exporter = child_start("exports"), importer = child_start("imports");
	struct gpool_fence_handle handle;
	uint32_t session;
	char step;
	int status;

	(void)state;
	child_hear(&exporter, &handle, sizeof(handle));
	child_say(&importer, &handle, sizeof(handle));
	child_hear(&importer, &session, sizeof(session));
	child_say(&exporter, "", 1);
	child_hear(&importer, &step, 1); /* all its waits have ended */
	assert_int_equal(harness_evict(&harness, session, PAGES), 0);
	assert_int_equal(kill(exporter.pid, SIGKILL), 0);
	assert_int_equal(waitpid(exporter.pid, &status, 0), exporter.pid);
	close(exporter.socket);
	child_say(&importer, "", 1);
	child_hear(&importer, &step, 1);
	assert_int_equal(harness_evict(&harness, session, PAGES), 8);
	child_say(&importer, "", 1);
	child_end(&importer);
}

static void test_waits_of_importers_by_event_end(void **state)
{
	struct child exporter = child_start("exports_event"), importer = child_start("imports_event");
	struct gpool_fence_handle handle;
	char step;

	(void)state;
	child_hear(&exporter, &handle, sizeof(handle));
	child_say(&importer, &handle, sizeof(handle));
	child_hear(&importer, &step, 1);
	child_say(&exporter, "", 1);
	child_end(&importer);
	child_say(&exporter, "", 1);
	child_end(&exporter);
}

static const struct {
	const char *name;
	void (*run)(void);
} workers[] = {
	{"waits", worker_waits},
	{"queries", worker_queries},
	{"memory", worker_memory},
	{"parts", worker_parts},
	{"exports", worker_exports},
	{"exports_event", worker_exports_event},
	{"imports", worker_imports},
	{"imports_event", worker_imports_event},
};

static int worker(const char *name, const char *directory)
{
	alarm(WAIT_S);
	worker_open(directory);
	for (size_t i = 0; i < sizeof(workers) / sizeof(*workers); i++)
		if (!strcmp(workers[i].name, name)) {
			workers[i].run();
			return 0;
		}
	return 2;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_waits_end, start, stop),
		cmocka_unit_test_setup_teardown(test_queries_end, start, stop),
		cmocka_unit_test_setup_teardown(test_pages_stay_until_the_process_has_ended, start, stop),
		cmocka_unit_test_setup_teardown(test_waits_of_all_parts_end, start, stop),
		cmocka_unit_test_setup_teardown(test_waits_of_importers_end, start, stop),
		cmocka_unit_test_setup_teardown(test_waits_of_importers_by_event_end, start, stop),
	};
	const struct gpu_ops *ops;

	if (argc >= 3 && !strcmp(argv[1], "--backend"))
		backend = argv[2];
	ops = gpu_backend(backend);
	if (!ops || (argc != 1 && argc != 3 && (argc != 6 || strcmp(argv[3], "--worker")))) {
		fprintf(stderr, "usage: fault_on_gpu [--backend cuda|host]\n");
		return 2;
	}
	setenv("GPOOL_HOST_FAULTS", "sticky", 1);
	if (argc == 6)
		return worker(argv[4], argv[5]);
	if (ops->device_count() < 1) {
		printf("no device of back end '%s': %s\n", backend, gpu_error_text());
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
