/*
 * test_client_ipc.c - fences between processes.
 *
 * Goal: an imported fence is signaled when the original is, with both handle types, on the host and in a stream. A wait
 * for a fence of a process that has died ends, and a query reports the death. Malformed handles do no harm. Slots,
 * events and mappings are freed. A session of another trust domain cannot import a fence.
 *
 * Method: a real gpoold, and exporters that are separate processes: this program, executing orders from a socket. Their
 * host-signaled timelines are gates: work queued after a gate runs only after the test has opened it.
 */
#include "tests/integration/life.h"
#include "tests/lib/temporary.h"

#include "client/core/export.h"
#include "client/core/fence_ticket.h"
#include "client/core/import.h"
#include "client/core/pool.h"
#include "client/core/stream.h"
#include "proto/attach.h"
#include "shm/timeline.h"
#include "shm/timeline_page.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { MANY = 1000, FILL_WORD = 0x5ca1ab1e, OBJECT_PAGES = 2, WAY_TIMELINE = 0, WAY_EVENT = GPOOL_FENCE_EXPORT_EVENT };

/* ---- exporters ---- */

enum order {
	ORDER_GATE, /* export a fence of the host-signaled timeline */
	/*
	 * let the GPU stream wait for the last gate and fill the object "kv"; export a fence recorded after that work
	 */
	ORDER_WORK,
	ORDER_OPEN,    /* signal the last gate, and all gates before it */
	ORDER_STREAMS, /* close and reopen both streams */
	ORDER_CLOSE,   /* close the pool; the process stays alive */
	ORDER_CHILD,   /* return the results of calls in a forked child */
};

struct command {
	enum order order;
	uint32_t flags;
};

struct answer {
	int result;
	uint32_t session;
	struct gpool_fence_handle handle;
};

struct exporter {
	pid_t pid;
	int channel;
	uint32_t session;
};

static struct gpool *ours;
static struct gpool_object *kv;
static uint64_t kv_address, kv_bytes;
static uint32_t gate_stream, work_stream, works;
static struct gpool_fence gate;

static int streams_open(void)
{
	int error = gpool_stream_open(ours, NULL, GPOOL_STREAM_HOST_SIGNALED, &gate_stream);

	return error ? error : gpool_stream_open(ours, NULL, 0, &work_stream);
}

/* Create a mutable object, so that other processes see content written after it was published. */
static int kv_make(void)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	uint64_t version;
	uint32_t index;
	int error;

	options.memory_class = GPOOL_OBJECT_MUTABLE;
	error = gpool_object_create(ours, "kv", &options, &kv);
	if (!error)
		error = gpool_object_alloc(kv, OBJECT_PAGES, NULL, &index);
	if (!error)
		error = gpool_object_publish(kv, &version);
	return error ? error : gpool_object_address(kv, index, &kv_address, &kv_bytes);
}

static int work(uint32_t flags, struct gpool_fence_handle *handle)
{
	struct gpool_fence fence;
	int error = kv ? 0 : kv_make();

	if (!error)
		error = gpool_stream_wait(ours, work_stream, gate);
	if (!error)
		error = gpool_fill(ours, work_stream, kv_address, FILL_WORD + works++, kv_bytes);
	if (!error)
		error = gpool_fence_record(ours, work_stream, &fence);
	return error ? error : gpool_fence_export(ours, fence, flags, handle);
}

static int in_a_child(struct gpool_fence_handle *handle)
{
	struct gpool_fence fence = gate;
	int status;
	pid_t pid = fork();

	if (pid == 0)
		_exit(gpool_fence_export(ours, fence, 0, handle) != -ECHILD ||
			gpool_fence_import(ours, handle, &fence) != -ECHILD ||
			gpool_fence_close(ours, fence) != -ECHILD);
	return pid < 0 || waitpid(pid, &status, 0) != pid || status ? -EIO : 0;
}

static int obey(const struct command *command, struct gpool_fence_handle *handle)
{
	int error;

	switch (command->order) {
	case ORDER_GATE:
		error = gpool_fence_record(ours, gate_stream, &gate);
		return error ? error : gpool_fence_export(ours, gate, command->flags, handle);
	case ORDER_WORK: return work(command->flags, handle);
	case ORDER_OPEN: return gpool_fence_signal(ours, gate);
	case ORDER_STREAMS:
		gpool_stream_close(ours, gate_stream);
		gpool_stream_close(ours, work_stream);
		return streams_open();
	case ORDER_CLOSE:
		gpool_close(ours);
		ours = NULL;
		return 0;
	default: return in_a_child(handle);
	}
}

/* argv: program, "exporter", directory, tenant, channel */
static int exporter_main(char **arguments)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct answer answer = {.result = 0};
	int channel = atoi(arguments[4]);
	struct command command;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	options.directory = arguments[2];
	options.tenant = *arguments[3] ? arguments[3] : NULL;
	options.timeout_ms = ANSWER_MS;
	options.name = "exporter";
	if (gpool_open(&options, &ours) || streams_open())
		return 1;
	answer.session = gpool_session(ours);
	while (write(channel, &answer, sizeof(answer)) == sizeof(answer) &&
		read(channel, &command, sizeof(command)) == sizeof(command))
		answer.result = obey(&command, &answer.handle);
	return 0;
}

static struct answer heard(const struct exporter *exporter)
{
	struct pollfd look = {.fd = exporter->channel, .events = POLLIN};
	struct answer answer;

	assert_int_equal(poll(&look, 1, END_MS), 1);
	assert_int_equal(read(exporter->channel, &answer, sizeof(answer)), sizeof(answer));
	return answer;
}

static struct answer tell(const struct exporter *exporter, enum order order, uint32_t flags)
{
	const struct command command = {order, flags};

	assert_int_equal(write(exporter->channel, &command, sizeof(command)), sizeof(command));
	return heard(exporter);
}

static struct gpool_fence_handle handle_of(const struct exporter *exporter, enum order order, uint32_t flags)
{
	struct answer answer = tell(exporter, order, flags);

	assert_int_equal(answer.result, 0);
	return answer.handle;
}

static struct exporter exporter_start(const char *tenant_name)
{
	struct exporter exporter;
	char channel[16];
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	fflush(stdout);
	exporter.pid = fork();
	assert_true(exporter.pid >= 0);
	if (exporter.pid == 0) {
		snprintf(channel, sizeof(channel), "%d", ends[1]);
		fcntl(ends[1], F_SETFD, 0);
		execl("/proc/self/exe", "exporter", "exporter", harness.directory, tenant_name, channel, NULL);
		_exit(127);
	}
	close(ends[1]);
	exporter.channel = ends[0];
	exporter.session = heard(&exporter).session;
	return exporter;
}

static void exporter_kill(struct exporter *exporter)
{
	assert_true(exporter->pid > 0);
	assert_int_equal(kill(exporter->pid, SIGKILL), 0);
	status_of(exporter->pid);
	exporter->pid = 0;
	close(exporter->channel);
}

/* ---- fixture ---- */

static struct exporter exporter;

static void begin_with(const char *const *arguments)
{
	start(arguments);
	ours = open_worker();
	exporter = exporter_start("");
}

static void begin(void)
{
	begin_with(quiet);
}

static int end(void **state)
{
	if (exporter.pid)
		exporter_kill(&exporter);
	gpool_close(ours);
	ours = NULL;
	return stop(state);
}

static struct gpool_fence imported(const struct gpool_fence_handle *handle)
{
	struct gpool_fence fence = {0};

	assert_int_equal(gpool_fence_import(ours, handle, &fence), 0);
	return fence;
}

static void closed(struct gpool_fence fence)
{
	assert_int_equal(gpool_fence_close(ours, fence), 0);
}

/* Return the number of this session's slots that are used by neither a stream nor a mirror. */
static uint32_t slots_left(void)
{
	uint32_t streams[255], count = 0;

	while (count < 255 && gpool_stream_open(ours, NULL, GPOOL_STREAM_HOST_SIGNALED, &streams[count]) == 0)
		count++;
	for (uint32_t i = 0; i < count; i++)
		gpool_stream_close(ours, streams[i]);
	return count;
}

/* ---- on the host ---- */

static void test_seen_when_it_is_reached(void **state)
{
	struct gpool_fence_handle handle;
	struct gpool_fence fence, again;

	(void)state;
	begin();
	handle = handle_of(&exporter, ORDER_GATE, 0);
	assert_int_equal(handle.handle_type, GPOOL_FENCE_HANDLE_TIMELINE);
	fence = imported(&handle);
	again = imported(&handle);
	assert_int_equal(again.value, fence.value);
	assert_int_equal(gpool_fence_done(ours, fence), 0);
	assert_int_equal(gpool_fence_wait(ours, fence, 5), -ETIMEDOUT);
	assert_int_equal(gpool_fence_signal(ours, fence), -EINVAL);
	assert_int_equal(gpool_fence_export(ours, fence, 0, &handle), -EINVAL);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	assert_int_equal(gpool_fence_wait(ours, fence, -1), 0);
	assert_int_equal(gpool_fence_done(ours, again), 1);
	closed(fence);
	assert_int_equal(gpool_fence_done(ours, again), 1);
	closed(again);
	assert_int_equal(gpool_fence_close(ours, fence), -EINVAL);
	/* A signaled fence needs no import. */
	fence = imported(&handle);
	assert_int_equal(fence.value, 0);
	closed(fence);
	/* A fence that was signaled before its export needs no wait at all. */
	assert_int_equal(tell(&exporter, ORDER_STREAMS, 0).result, 0);
	AWAIT(slots_left() == 255);
}

/* A wait that times out leaves no state behind, even if the fence is never signaled. */
static void test_waiting_times_out(void **state)
{
	struct gpool_fence_handle handle;
	struct gpool_fence fence, kept;

	(void)state;
	begin();
	handle = handle_of(&exporter, ORDER_GATE, 0);
	fence = imported(&handle);
	closed(fence);
	assert_int_equal(slots_left(), 255);
	assert_int_equal(gpool_fence_done(ours, fence), 1);
	kept = imported(&handle);
	for (int i = 0; i < 300; i++) {
		handle = handle_of(&exporter, ORDER_GATE, 0);
		closed(imported(&handle));
	}
	assert_int_equal(gpool_fence_done(ours, kept), 0);
	fence = imported(&handle);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	assert_int_equal(gpool_fence_wait(ours, fence, END_MS), 0);
	assert_int_equal(gpool_fence_wait(ours, kept, 0), 0);
	closed(kept);
	closed(fence);
	assert_int_equal(slots_left(), 255);
}

static void test_in_any_order(void **state)
{
	struct gpool_fence_handle handles[4];
	struct gpool_fence fences[4];

	(void)state;
	begin();
	for (int i = 0; i < 3; i++)
		handles[i] = handle_of(&exporter, ORDER_GATE, 0);
	/* Import the latest fence first: the earlier ones are signaled no later. */
	for (int i = 2; i >= 0; i--)
		fences[i] = imported(&handles[i]);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	handles[3] = handle_of(&exporter, ORDER_GATE, 0);
	fences[3] = imported(&handles[3]);
	for (int i = 0; i < 3; i++)
		assert_int_equal(gpool_fence_wait(ours, fences[i], END_MS), 0);
	assert_int_equal(gpool_fence_done(ours, fences[3]), 0);
	for (int i = 0; i < 3; i++)
		closed(fences[i]);
	/* The fences of a closed stream are signaled. */
	assert_int_equal(tell(&exporter, ORDER_STREAMS, 0).result, 0);
	assert_int_equal(gpool_fence_wait(ours, fences[3], END_MS), 0);
	closed(fences[3]);
	AWAIT(slots_left() == 255);
}

static void test_closing_a_pool_ends_waits(void **state)
{
	struct gpool_fence_handle handle;
	struct gpool_fence fence;

	(void)state;
	begin();
	handle = handle_of(&exporter, ORDER_GATE, 0);
	fence = imported(&handle);
	assert_int_equal(tell(&exporter, ORDER_CLOSE, 0).result, 0);
	assert_int_equal(gpool_fence_wait(ours, fence, END_MS), 0);
	assert_int_equal(gpool_fence_done(ours, fence), 1);
	closed(fence);
	/* The fences of a closed exporter cannot be queried. */
	assert_int_equal(gpool_fence_import(ours, &handle, &fence), -ESRCH);
}

/* ---- streams ---- */

static struct gpool_object *kv_open(uint64_t *address, uint64_t *bytes)
{
	struct gpool_object *object = NULL;

	assert_int_equal(gpool_object_open(ours, "kv", NULL, &object), 0);
	assert_int_equal(gpool_object_address(object, 0, address, bytes), 0);
	return object;
}

/* Publish pages before the copy into them is done, as engines do. A reader's stream waits for the copy. */
static void reads_what_is_written(uint32_t flags, uint32_t way)
{
	struct gpool_fence_handle handle;
	struct gpool_fence written, read_;
	struct gpool_object *object;
	uint64_t from, to, bytes;
	struct gpool_block block;
	const uint32_t *words;
	uint32_t stream;

	begin();
	assert_int_equal(gpool_stream_open(ours, NULL, 0, &stream), 0);
	block = alloc(ours, OBJECT_PAGES);
	assert_int_equal(gpool_address(ours, &block, &to), 0);
	words = (const uint32_t *)(uintptr_t)to;
	for (uint32_t round = 0; round < 3; round++) {
		handle_of(&exporter, ORDER_GATE, 0);
		handle = handle_of(&exporter, ORDER_WORK, flags);
		assert_int_equal(handle.handle_type, way);
		object = kv_open(&from, &bytes);
		written = imported(&handle);
		assert_int_equal(gpool_fence_done(ours, written), 0);
		assert_int_equal(gpool_stream_wait(ours, stream, written), 0);
		assert_int_equal(gpool_copy(ours, stream, to, from, bytes), 0);
		assert_int_equal(gpool_fence_record(ours, stream, &read_), 0);
		assert_int_equal(gpool_fence_wait(ours, read_, 20), -ETIMEDOUT);
		if (round == 1)
			closed(written); /* the queued wait remains */
		assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
		assert_int_equal(gpool_fence_wait(ours, read_, END_MS), 0);
		/* The content is that of this round, so the copy was executed after the fill. */
		assert_int_equal(words[0], FILL_WORD + round);
		assert_int_equal(words[bytes / 4 - 1], FILL_WORD + round);
		if (round != 1)
			assert_int_equal(gpool_fence_wait(ours, written, END_MS), 0);
		if (round != 1)
			closed(written);
		gpool_object_close(object);
	}
	gpool_stream_close(ours, stream);
	AWAIT(slots_left() == 255);
}

/* Requirements: C2. */
static void test_stream_waits_by_timeline(void **state)
{
	(void)state;
	reads_what_is_written(WAY_TIMELINE, GPOOL_FENCE_HANDLE_TIMELINE);
}

/* Requirements: C2. */
static void test_stream_waits_by_event(void **state)
{
	(void)state;
	reads_what_is_written(WAY_EVENT, GPOOL_FENCE_HANDLE_EVENT);
}

/* Blocks are freed when another process signals their fence. */
static void test_blocks_behind_it(void **state)
{
	struct gpool_block freed, unpinned;
	struct gpool_fence_handle handle;
	struct gpool_fence fence;

	(void)state;
	begin();
	freed = alloc(ours, 2);
	unpinned = alloc(ours, 2);
	handle = handle_of(&exporter, ORDER_GATE, 0);
	fence = imported(&handle);
	assert_int_equal(gpool_free_after(ours, &freed, fence), 0);
	assert_int_equal(gpool_unpin_after(ours, &unpinned, fence), 0);
	closed(fence);
	/* The agent reads the same timeline word. */
	assert_int_equal(harness_evict(&harness, gpool_session(ours), PAGES), 0);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	AWAIT(gpool_fence_done(ours, fence) == 1 && atomic_load(&ours->deferred_count) == 0);
	assert_int_equal(gpool_pin(ours, &freed), -ESTALE);
	AWAIT(harness_evict(&harness, gpool_session(ours), PAGES) > 0);
	assert_int_equal(gpool_pin(ours, &unpinned), -ESTALE);
}

/*
 * Pages of an elastic range become reclaimable when another process signals their fence, even if the import was closed
 * before.
 */
static void test_pages_behind_it(void **state)
{
	struct gpool_range_info info = {.size = sizeof(info)};
	struct gpool_fence_handle handle;
	struct gpool_range *range;
	struct gpool_fence fence;

	(void)state;
	begin();
	assert_int_equal(gpool_range_reserve(ours, 4, NULL, &range), 0);
	assert_int_equal(gpool_range_commit(range, 0, 4, 0), 0);
	handle = handle_of(&exporter, ORDER_GATE, 0);
	fence = imported(&handle);
	assert_int_equal(gpool_range_decommit(range, 0, 4, fence), 0);
	closed(fence);
	assert_int_equal(gpool_fence_done(ours, fence), 0);
	assert_int_equal(gpool_range_info(range, &info), 0);
	assert_int_equal(info.committed_pages + info.reclaimable_pages, 0);
	assert_int_equal(gpool_range_destroy(range), -EBUSY);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	AWAIT(gpool_fence_done(ours, fence) == 1 && gpool_range_info(range, &info) == 0 && info.reclaimable_pages == 4);
	assert_int_equal(gpool_range_destroy(range), 0);
}

/* ---- death of an exporter ---- */

static _Atomic bool waiting;

static void *wait_for_it(void *argument)
{
	const struct gpool_fence *fence = argument;

	atomic_store(&waiting, true);
	return (void *)(intptr_t)gpool_fence_wait(ours, *fence, -1);
}

static void waits_end_with_the_process(uint32_t flags)
{
	struct gpool_fence_handle handle;
	struct gpool_fence undone, done;
	pthread_t thread;
	uint32_t stream;
	void *result;

	begin();
	assert_int_equal(gpool_stream_open(ours, NULL, 0, &stream), 0);
	handle_of(&exporter, ORDER_GATE, 0);
	handle = handle_of(&exporter, ORDER_WORK, flags);
	undone = imported(&handle);
	assert_int_equal(gpool_stream_wait(ours, stream, undone), 0);
	assert_int_equal(gpool_fence_record(ours, stream, &done), 0);
	atomic_store(&waiting, false);
	assert_int_equal(pthread_create(&thread, NULL, wait_for_it, &undone), 0);
	AWAIT(atomic_load(&waiting));
	assert_int_equal(gpool_fence_done(ours, done), 0);
	exporter_kill(&exporter);
	pthread_join(thread, &result);
	assert_int_equal((intptr_t)result, -ESRCH);
	assert_int_equal(gpool_fence_done(ours, undone), -ESRCH);
	assert_non_null(strstr(gpool_last_error(ESRCH), "died or detached before the fence was signaled"));
	assert_int_equal(gpool_fence_wait(ours, undone, 0), -ESRCH);
	assert_int_equal(gpool_stream_wait(ours, stream, undone), -ESRCH);
	/* Waiting streams continue. A query of the fence reports that the content is not valid. */
	assert_int_equal(gpool_fence_wait(ours, done, END_MS), 0);
	AWAIT(gpool_fence_import(ours, &handle, &done) == -ESRCH);
	closed(undone);
	gpool_stream_close(ours, stream);
	AWAIT(slots_left() == 255);
}

static void test_death_by_timeline(void **state)
{
	(void)state;
	waits_end_with_the_process(WAY_TIMELINE);
}

static void test_death_by_event(void **state)
{
	(void)state;
	waits_end_with_the_process(WAY_EVENT);
}

/* For blocks, the fence of a dead process counts as signaled. */
static void test_death_before_blocks_end(void **state)
{
	struct gpool_block freed, unpinned;
	struct gpool_fence_handle handle;
	struct gpool_fence fence, none = {0};

	(void)state;
	begin();
	freed = alloc(ours, 2);
	unpinned = alloc(ours, 2);
	handle = handle_of(&exporter, ORDER_GATE, 0);
	fence = imported(&handle);
	assert_int_equal(gpool_free_after(ours, &freed, fence), 0);
	assert_int_equal(gpool_pin(ours, &freed), -ESTALE);
	assert_int_equal(gpool_unpin_after(ours, &unpinned, fence), 0);
	assert_int_equal(harness_evict(&harness, gpool_session(ours), PAGES), 0);
	exporter_kill(&exporter);
	AWAIT(gpool_fence_done(ours, fence) == -ESRCH);
	AWAIT(harness_evict(&harness, gpool_session(ours), PAGES) > 0);
	assert_int_equal(gpool_pin(ours, &unpinned), -ESTALE);
	/* The block is freed by a call of this process or by the agent. */
	AWAIT(gpool_fence_done(ours, none) == 1 && atomic_load(&ours->deferred_count) == 0);
	assert_int_equal(gpool_free_after(ours, &freed, fence), -ESTALE);
	closed(fence);
}

/* Fences signaled before the death stay signaled. Their numbers have no meaning in another session. */
static void test_death_after_the_work_was_done(void **state)
{
	struct gpool_fence_handle first, second;
	struct gpool_fence fences[2];

	(void)state;
	begin();
	first = handle_of(&exporter, ORDER_GATE, 0);
	fences[0] = imported(&first);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	second = handle_of(&exporter, ORDER_GATE, 0);
	fences[1] = imported(&second);
	exporter_kill(&exporter);
	assert_int_equal(gpool_fence_wait(ours, fences[1], -1), -ESRCH);
	assert_int_equal(gpool_fence_wait(ours, fences[0], -1), 0);
	closed(fences[0]);
	closed(fences[1]);
	exporter = exporter_start("");
	handle_of(&exporter, ORDER_GATE, 0);
	{
		struct fence_ticket ticket;

		memcpy(&ticket, &second, sizeof(ticket));
		ticket.session = exporter.session;
		memcpy(&second, &ticket, sizeof(ticket));
	}
	assert_int_equal(gpool_fence_import(ours, &second, &fences[1]), -ESRCH);
}

/* Closing a session does not wait for streams that wait for other processes. */
static void test_closing_while_waiting(void **state)
{
	struct gpool_fence_handle handle;
	struct gpool_fence fence;
	uint32_t stream;

	(void)state;
	begin();
	assert_int_equal(gpool_stream_open(ours, NULL, 0, &stream), 0);
	handle = handle_of(&exporter, ORDER_GATE, 0);
	fence = imported(&handle);
	assert_int_equal(gpool_stream_wait(ours, stream, fence), 0);
	gpool_close(ours);
	ours = open_worker();
	fence = imported(&handle);
	assert_int_equal(gpool_fence_done(ours, fence), 0);
}

/* ---- restarts of the agent ---- */

static void test_over_agents(void **state)
{
	struct gpool_fence_handle handle, late;
	struct gpool_fence fence, other;
	struct exporter second;
	uint64_t before;
	pid_t agent;

	(void)state;
	begin();
	second = exporter_start("");
	handle = handle_of(&exporter, ORDER_GATE, 0);
	before = atomic_load(&ours->header->incarnation);
	agent = process_of("gpoold-agent");
	assert_int_equal(kill(agent, SIGKILL), 0);
	AWAIT(atomic_load(&ours->header->incarnation) != before);
	/*
	 * The next agent knows the timelines that were exported to the previous agent. It accepts them again from the
	 * sessions that exported them.
	 */
	fence = imported(&handle);
	late = handle_of(&second, ORDER_GATE, 0);
	other = imported(&late);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	assert_int_equal(gpool_fence_wait(ours, fence, END_MS), 0);
	exporter_kill(&second);
	assert_int_equal(gpool_fence_wait(ours, other, -1), -ESRCH);
	closed(fence);
	closed(other);
}

static void test_without_an_agent(void **state)
{
	struct gpool_fence_handle timeline, event;
	struct gpool_fence fence;

	(void)state;
	begin();
	timeline = handle_of(&exporter, ORDER_GATE, 0);
	handle_of(&exporter, ORDER_WORK, 0);
	fence = imported(&timeline);
	admin_close();
	harness_kill(&harness);
	/* Deaths are no longer reported. */
	assert_int_equal(gpool_fence_wait(ours, fence, -1), -EPIPE);
	closed(fence);
	assert_int_equal(gpool_fence_import(ours, &timeline, &fence), 0); /* its page is still mapped */
	closed(fence);
	event = handle_of(&exporter, ORDER_WORK, WAY_EVENT);
	assert_int_equal(gpool_fence_import(ours, &event, &fence), 0);
	closed(fence);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
}

static int end_without_an_agent(void **state)
{
	exporter_kill(&exporter);
	gpool_close(ours);
	ours = NULL;
	return clean(state);
}

/* ---- many fences ---- */

static void test_many_by_timeline(void **state)
{
	static struct gpool_fence_handle handles[MANY];
	static struct gpool_fence fences[MANY];

	(void)state;
	begin();
	for (int i = 0; i < MANY; i++)
		handles[i] = handle_of(&exporter, ORDER_GATE, 0);
	for (int i = 0; i < MANY; i++)
		fences[i] = imported(&handles[i]);
	assert_int_equal(gpool_fence_done(ours, fences[0]), 0);
	/* One stream of another process uses one slot in this session. */
	assert_int_equal(slots_left(), 254);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	for (int i = MANY - 1; i >= 0; i--)
		assert_int_equal(gpool_fence_wait(ours, fences[i], END_MS), 0);
	for (int i = 0; i < MANY; i++)
		closed(fences[i]);
	AWAIT(slots_left() == 255);
	/* The exporter closes and reopens its streams, and the mirrors follow. */
	for (int round = 0; round < 300; round++) {
		handles[0] = handle_of(&exporter, ORDER_GATE, 0);
		fences[0] = imported(&handles[0]);
		assert_int_equal(gpool_fence_done(ours, fences[0]), 0);
		assert_int_equal(tell(&exporter, round % 3 ? ORDER_OPEN : ORDER_STREAMS, 0).result, 0);
		if (round % 2)
			closed(fences[0]);
		assert_int_equal(gpool_fence_wait(ours, fences[0], END_MS), 0);
		if (round % 2 == 0)
			closed(fences[0]);
	}
	AWAIT(slots_left() == 255);
}

static uint32_t descriptors(void)
{
	DIR *fds = opendir("/proc/self/fd");
	uint32_t count = 0;

	assert_non_null(fds);
	while (readdir(fds))
		count++;
	closedir(fds);
	return count;
}

static void test_many_by_event(void **state)
{
	static struct gpool_fence_handle handles[EXPORT_EVENTS];
	static struct gpool_fence fences[EXPORT_EVENTS];
	uint32_t before;

	(void)state;
	begin();
	handle_of(&exporter, ORDER_GATE, 0);
	for (int i = 0; i < EXPORT_EVENTS; i++) {
		handles[i] = handle_of(&exporter, ORDER_WORK, WAY_EVENT);
		fences[i] = imported(&handles[i]);
	}
	assert_int_equal(tell(&exporter, ORDER_WORK, WAY_EVENT).result, -EUSERS);
	/* Timelines have no such limit. */
	handle_of(&exporter, ORDER_WORK, WAY_TIMELINE);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	for (int i = 0; i < EXPORT_EVENTS; i++) {
		assert_int_equal(gpool_fence_wait(ours, fences[i], END_MS), 0);
		closed(fences[i]);
	}
	AWAIT(slots_left() == 255);
	/* Both processes reuse their events. */
	before = descriptors();
	for (int round = 0; round < EXPORT_EVENTS; round++) {
		handle_of(&exporter, ORDER_GATE, 0);
		handles[0] = handle_of(&exporter, ORDER_WORK, WAY_EVENT);
		fences[0] = imported(&handles[0]);
		assert_int_equal(gpool_fence_done(ours, fences[0]), 0);
		assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
		assert_int_equal(gpool_fence_wait(ours, fences[0], END_MS), 0);
		closed(fences[0]);
	}
	AWAIT(descriptors() == before);
	/* The events of a process that has ended are freed. */
	exporter_kill(&exporter);
	exporter = exporter_start("");
	handle_of(&exporter, ORDER_GATE, 0);
	for (int i = 0; i < EXPORT_EVENTS; i++) {
		handles[i] = handle_of(&exporter, ORDER_WORK, WAY_EVENT);
		fences[i] = imported(&handles[i]);
	}
	/* The double of the driver opens a file for a moment when the polling thread queries an event. */
	AWAIT(descriptors() <= before);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	for (int i = 0; i < EXPORT_EVENTS; i++)
		closed(fences[i]);
}

static void test_more_streams_than_slots(void **state)
{
	uint32_t streams[255], count = 0;
	struct gpool_fence_handle handle;
	struct gpool_fence fence;

	(void)state;
	begin();
	handle = handle_of(&exporter, ORDER_GATE, 0);
	while (count < 255 && gpool_stream_open(ours, NULL, GPOOL_STREAM_HOST_SIGNALED, &streams[count]) == 0)
		count++;
	assert_int_equal(gpool_fence_import(ours, &handle, &fence), -EUSERS);
	gpool_stream_close(ours, streams[--count]);
	fence = imported(&handle);
	assert_int_equal(gpool_stream_open(ours, NULL, GPOOL_STREAM_HOST_SIGNALED, &streams[count]), -EUSERS);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	assert_int_equal(gpool_fence_wait(ours, fence, END_MS), 0);
	closed(fence);
	AWAIT(gpool_stream_open(ours, NULL, GPOOL_STREAM_HOST_SIGNALED, &streams[count]) == 0);
}

/* Threads import the same fences, query them, wait for them and close them, while the fences are signaled. */
enum { HANDS = 4, HAND_ROUNDS = 60 };
static struct gpool_fence_handle passed[HANDS];
static pthread_barrier_t meeting;
static _Atomic uint32_t strange;

static void *hand_run(void *argument)
{
	uint32_t me = *(uint32_t *)argument, stream = 0;

	if (gpool_stream_open(ours, NULL, 0, &stream))
		atomic_fetch_add(&strange, 1);
	for (uint32_t round = 0; round < HAND_ROUNDS; round++) {
		struct gpool_fence fences[HANDS];
		int state = 0;

		pthread_barrier_wait(&meeting);
		for (uint32_t i = 0; i < HANDS; i++)
			state |= gpool_fence_import(ours, &passed[(i + me) % HANDS], &fences[i]);
		for (uint32_t i = 0; i < HANDS; i++)
			state |= gpool_stream_wait(ours, stream, fences[i]);
		for (uint32_t i = 0; i < HANDS; i++)
			state |= gpool_fence_wait(ours, fences[i], END_MS);
		for (uint32_t i = 0; i < HANDS; i++)
			state |= gpool_fence_close(ours, fences[i]);
		atomic_fetch_add(&strange, state != 0);
		pthread_barrier_wait(&meeting);
	}
	gpool_stream_close(ours, stream);
	return NULL;
}

static void test_many_hands(void **state)
{
	uint32_t numbers[HANDS];
	pthread_t threads[HANDS];

	(void)state;
	begin();
	assert_int_equal(pthread_barrier_init(&meeting, NULL, HANDS + 1), 0);
	atomic_store(&strange, 0);
	for (uint32_t i = 0; i < HANDS; i++) {
		numbers[i] = i;
		assert_int_equal(pthread_create(&threads[i], NULL, hand_run, &numbers[i]), 0);
	}
	for (uint32_t round = 0; round < HAND_ROUNDS; round++) {
		for (uint32_t i = 0; i < HANDS; i++)
			passed[i] = i % 2 ? handle_of(&exporter, ORDER_WORK, round % 2 ? WAY_EVENT : WAY_TIMELINE)
					  : handle_of(&exporter, ORDER_GATE, 0);
		pthread_barrier_wait(&meeting);
		assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
		pthread_barrier_wait(&meeting);
	}
	for (uint32_t i = 0; i < HANDS; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&meeting);
	assert_int_equal(atomic_load(&strange), 0);
	AWAIT(slots_left() == 255);
}

/* ---- refused calls ---- */

static void test_our_own(void **state)
{
	struct gpool_fence_handle handle, event;
	struct gpool_fence fence, fill;
	uint32_t manual, stream;
	struct gpool *second;
	uint64_t address;
	struct gpool_block block;

	(void)state;
	begin();
	assert_int_equal(gpool_stream_open(ours, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	assert_int_equal(gpool_stream_open(ours, NULL, 0, &stream), 0);
	assert_int_equal(gpool_fence_record(ours, manual, &fence), 0);
	assert_int_equal(gpool_fence_export(ours, fence, 0, &handle), 0);
	assert_int_equal(gpool_fence_import(ours, &handle, &fill), -EINVAL);
	assert_int_equal(gpool_fence_export(ours, fence, GPOOL_FENCE_EXPORT_EVENT, &event), -EINVAL); /* no GPU work */
	block = alloc(ours, 1);
	assert_int_equal(gpool_address(ours, &block, &address), 0);
	assert_int_equal(gpool_stream_wait(ours, stream, fence), 0);
	assert_int_equal(gpool_fill(ours, stream, address, 1, 4096), 0);
	assert_int_equal(gpool_fence_record(ours, stream, &fill), 0);
	assert_int_equal(gpool_fence_export(ours, fill, GPOOL_FENCE_EXPORT_EVENT, &event), 0);
	assert_int_equal(gpool_fence_import(ours, &event, &fill), -EINVAL);
	/* A second session in the same process can import a timeline. The driver does not support that for events. */
	second = open_worker();
	assert_int_equal(gpool_fence_import(second, &event, &fill), -EINVAL);
	assert_int_equal(gpool_fence_import(second, &handle, &fill), 0);
	assert_int_equal(gpool_fence_done(second, fill), 0);
	assert_int_equal(gpool_fence_signal(ours, fence), 0);
	assert_int_equal(gpool_fence_wait(second, fill, END_MS), 0);
	assert_int_equal(gpool_fence_close(second, fill), 0);
	gpool_close(second);
	/* A signaled fence needs no resources, and any session may import it. */
	assert_int_equal(gpool_fence_export(ours, fence, 0, &handle), 0);
	assert_int_equal(handle.handle_type, GPOOL_FENCE_HANDLE_SIGNALED);
	assert_int_equal(gpool_fence_import(ours, &handle, &fill), 0);
	assert_int_equal(fill.value, 0);
	assert_int_equal(gpool_fence_export(ours, fill, 0, &handle), 0);
	assert_int_equal(handle.handle_type, GPOOL_FENCE_HANDLE_SIGNALED);
}

static void test_arguments(void **state)
{
	struct gpool_fence fence = {0}, never = {fence_make(3, 7)};
	struct gpool_fence_handle handle = {.handle_type = 0};

	(void)state;
	begin();
	assert_int_equal(gpool_fence_export(ours, never, 0, &handle), -EINVAL);
	assert_int_equal(gpool_fence_export(ours, fence, 2, &handle), -EINVAL);
	assert_int_equal(gpool_fence_export(admin, fence, 0, &handle), -EPERM);
	assert_int_equal(gpool_fence_import(admin, &handle, &fence), -EPERM);
	assert_int_equal(gpool_fence_import(ours, &handle, &fence), -EINVAL);
	assert_int_equal(gpool_fence_close(ours, never), -EINVAL);
	assert_int_equal(gpool_fence_close(admin, never), -EINVAL);
	assert_int_equal(gpool_fence_close(ours, fence), 0);
	handle_of(&exporter, ORDER_GATE, 0);
	assert_int_equal(tell(&exporter, ORDER_CHILD, 0).result, 0);
}

static uint64_t random_next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static void survives(const struct gpool_fence_handle *handle)
{
	struct gpool_fence fence;
	int error = gpool_fence_import(ours, handle, &fence);

	switch (error) {
	case 0:
		/* The page reports progress. The exporter is responsible for its values. */
		assert_true(gpool_fence_done(ours, fence) >= 0);
		closed(fence);
		break;
	case -EINVAL:
	case -ESRCH:
	case -EACCES: break;
	default: fail_msg("an import of odd bytes says %s, %s", gpool_strerror(error), gpu_error_text());
	}
}

static void test_hostile_handles(void **state)
{
	struct gpool_fence_handle good[2], odd;
	uint64_t seed = 20261, word;

	(void)state;
	begin();
	good[0] = handle_of(&exporter, ORDER_GATE, 0);
	good[1] = handle_of(&exporter, ORDER_WORK, WAY_EVENT);
	for (int round = 0; round < 2000; round++) {
		for (size_t at = 0; at < sizeof(odd); at += sizeof(word)) {
			word = random_next(&seed);
			memcpy((uint8_t *)&odd + at, &word, sizeof(word));
		}
		assert_int_equal(gpool_fence_import(ours, &odd, &GPOOL_FENCE_NONE), -EINVAL);
	}
	/* Change one byte of a valid handle, or use random numbers. */
	for (int round = 0; round < 4000; round++) {
		odd = good[round % 2];
		((uint8_t *)&odd)[random_next(&seed) % 112] = (uint8_t)random_next(&seed);
		survives(&odd);
	}
	for (int round = 0; round < 400; round++) {
		struct fence_ticket ticket;

		memcpy(&ticket, &good[0], sizeof(ticket));
		ticket.session = (uint32_t)random_next(&seed) % POOL_SESSIONS;
		ticket.slot = (uint32_t)random_next(&seed) % SESSION_TIMELINES;
		ticket.value = random_next(&seed) >> 16;
		if (round % 2)
			ticket.session = exporter.session;
		memcpy(&odd, &ticket, sizeof(ticket));
		survives(&odd);
	}
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	assert_int_equal(tell(&exporter, ORDER_CLOSE, 0).result, 0);
	AWAIT(slots_left() == 255);
}

static void test_another_trust_domain(void **state)
{
	static const char text[] = "pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = "
				   "\"512KB\"; reserved = \"0 pages\"; } );\n"
				   "tenants = ( { name = \"red\"; domain = \"red\"; }, { name = \"rose\"; users = [ "
				   "\"1\" ]; domain = \"red\"; },\n"
				   "            { name = \"blue\"; users = [ \"2\" ]; domain = \"blue\"; } );\n";
	struct gpool_fence_handle theirs, friends;
	struct exporter rose;
	struct gpool_fence fence;
	char path[64];
	FILE *file;

	(void)state;
	snprintf(path, sizeof(path), "%s/gpool-ipc-%d.conf", temporary_folder(), (int)getpid());
	file = fopen(path, "we");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	start((const char *const[]){"--config", path, NULL});
	unlink(path);
	ours = open_as(0, NULL, "red");
	exporter = exporter_start("blue");
	rose = exporter_start("rose");
	theirs = handle_of(&exporter, ORDER_GATE, 0);
	friends = handle_of(&rose, ORDER_GATE, 0);
	assert_int_equal(gpool_fence_import(ours, &theirs, &fence), -EACCES);
	fence = imported(&friends);
	closed(fence);
	exporter_kill(&rose);
}

static void test_a_device_without_events(void **state)
{
	struct gpool_fence_handle handle;
	struct gpool_fence fence;

	(void)state;
	setenv("GPOOL_HOST_LACKS", "events", 1);
	begin();
	unsetenv("GPOOL_HOST_LACKS");
	handle = handle_of(&exporter, ORDER_GATE, 0);
	assert_int_equal(tell(&exporter, ORDER_WORK, WAY_EVENT).result, -EOPNOTSUPP);
	handle = handle_of(&exporter, ORDER_WORK, 0);
	fence = imported(&handle);
	/* The device has no shared events, so it cannot open an event of another device. */
	{
		struct fence_ticket ticket;

		memcpy(&ticket, &handle, sizeof(ticket));
		ticket.handle_type = GPOOL_FENCE_HANDLE_EVENT;
		memcpy(&handle, &ticket, sizeof(ticket));
	}
	assert_int_equal(gpool_fence_import(ours, &handle, &GPOOL_FENCE_NONE), -EOPNOTSUPP);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	assert_int_equal(gpool_fence_wait(ours, fence, END_MS), 0);
	closed(fence);
}

/* ---- faults ---- */

static void test_driver_faults(void **state)
{
	static const enum gpu_call by_timeline[] = {GPU_CALL_TIMELINE_WRITE, GPU_CALL_HOST_REGISTER},
				   by_event[] = {GPU_CALL_EVENT_CREATE, GPU_CALL_EVENT_RECORD, GPU_CALL_EVENT_EXPORT};
	struct gpool_fence_handle handle;
	struct gpool_fence opened, fence;
	uint32_t manual, stream;

	(void)state;
	begin();
	assert_int_equal(gpool_stream_open(ours, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	assert_int_equal(gpool_stream_open(ours, NULL, 0, &stream), 0);
	assert_int_equal(gpool_fence_record(ours, manual, &opened), 0);
	assert_int_equal(gpool_stream_wait(ours, stream, opened), 0);
	assert_int_equal(gpool_fence_record(ours, stream, &fence), 0);
	for (size_t i = 0; i < sizeof(by_event) / sizeof(*by_event); i++) {
		gpu_fault_set(ours->gpu, by_event[i], 1, -ENOMEM);
		assert_int_equal(gpool_fence_export(ours, fence, GPOOL_FENCE_EXPORT_EVENT, &handle), -ENOMEM);
		assert_int_equal(gpool_fence_export(ours, fence, GPOOL_FENCE_EXPORT_EVENT, &handle), 0);
	}
	/* If the first handle type fails, the second one is used. If both fail, the first error is reported. */
	for (size_t i = 0; i < sizeof(by_timeline) / sizeof(*by_timeline); i++) {
		gpu_fault_set(ours->gpu, by_timeline[i], 1, -EIO);
		if (i == 0)
			gpu_fault_set(ours->gpu, GPU_CALL_HOST_REGISTER, 1, -EIO);
		assert_int_equal(gpool_fence_export(ours, fence, 0, &handle), 0);
		assert_int_equal(handle.handle_type, GPOOL_FENCE_HANDLE_EVENT);
		gpu_fault_set(ours->gpu, GPU_CALL_HOST_REGISTER, 0, 0);
	}
	gpu_fault_set(ours->gpu, GPU_CALL_HOST_REGISTER, 1, -ENOMEM);
	gpu_fault_set(ours->gpu, GPU_CALL_EVENT_CREATE, 1, -EIO);
	gpu_fault_set(ours->gpu, GPU_CALL_EVENT_EXPORT, 1, -EIO);
	assert_int_equal(gpool_fence_export(ours, fence, 0, &handle), -ENOMEM);
	gpu_fault_set(ours->gpu, GPU_CALL_TIMELINE_WRITE, 0, 0);
	assert_int_equal(gpool_fence_export(ours, fence, 0, &handle), 0);
	assert_int_equal(handle.handle_type, GPOOL_FENCE_HANDLE_TIMELINE);
	/* Make calls fail during the import of the other process's fences. */
	handle_of(&exporter, ORDER_GATE, 0);
	handle = handle_of(&exporter, ORDER_WORK, WAY_EVENT);
	gpu_fault_set(ours->gpu, GPU_CALL_EVENT_IMPORT, 1, -ENOMEM);
	assert_int_equal(gpool_fence_import(ours, &handle, &fence), -ENOMEM);
	fence = imported(&handle);
	gpu_fault_set(ours->gpu, GPU_CALL_EVENT_WAIT, 1, -EIO);
	assert_int_equal(gpool_stream_wait(ours, stream, fence), -EIO);
	closed(fence);
	assert_int_equal(gpool_fence_signal(ours, opened), 0);
	assert_int_equal(tell(&exporter, ORDER_OPEN, 0).result, 0);
	AWAIT(slots_left() == 253);
}

/* ---- false messages to the agent ---- */

static int share(int fd)
{
	static uint64_t sequence = UINT64_C(1) << 62;
	const struct msg_timeline_share_request request = {0};
	struct msg_timeline_reply reply = {.error = 1};
	uint8_t bytes[MSG_LARGEST_timeline_reply];
	int length = msg_encode_timeline_share_request(&request, ++sequence, ours->token, bytes, sizeof(bytes));

	assert_true(length > 0);
	assert_int_equal(attach_send(ours->socket, bytes, (size_t)length, &fd, fd >= 0), 0);
	length = attach_receive(ours->socket, bytes, sizeof(bytes), NULL, 0, NULL, ANSWER_MS);
	assert_true(length > 0);
	assert_int_equal(msg_decode_timeline_reply(&reply, bytes, (size_t)length), 0);
	return reply.error;
}

static int file_of(off_t bytes, int seals)
{
	int fd = memfd_create("odd", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, bytes), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void test_false_messages(void **state)
{
	const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
	struct timeline_page *pages[2];
	struct gpool_fence_handle handle = {.handle_type = 0};
	struct gpool_fence fence;
	struct gpool *asker;
	int odd[5], fds[2];

	(void)state;
	begin();
	odd[0] = open("/dev/null", O_RDWR | O_CLOEXEC);
	odd[1] = file_of(4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);       /* other processes could write to it */
	odd[2] = file_of(4096, F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL); /* it could shrink */
	odd[3] = file_of(8192, all);
	odd[4] = file_of(0, all);
	assert_int_equal(share(-1), -EBADMSG);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(share(odd[i]), -EBADMSG);
		close(odd[i]);
	}
	for (int i = 0; i < 2; i++)
		assert_int_equal(timeline_page_create(gpool_session(ours), &pages[i], &fds[i]), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(share(fds[0]), 0);
	assert_int_equal(share(fds[1]), -EEXIST);
	/* The numbers on this page increase and decrease at random. */
	asker = open_worker();
	for (uint64_t round = 0; round < 200; round++) {
		const struct fence_ticket ticket = {
			.handle_type = GPOOL_FENCE_HANDLE_TIMELINE,
			.magic = FENCE_TICKET_MAGIC,
			.version = FENCE_TICKET_VERSION,
			.session = gpool_session(ours),
			.key = pages[0]->key,
			.value = (round * UINT64_C(0x123456789abd)) >> 8 | 1,
			.slot = 1 + round % 3,
		};

		memcpy(&handle, &ticket, sizeof(handle));
		atomic_store(&pages[0]->signaled[ticket.slot], round % 5 ? 0 : ticket.value - 1);
		assert_int_equal(gpool_fence_import(asker, &handle, &fence), 0);
		assert_int_equal(gpool_fence_done(asker, fence), 0);
		atomic_store(&pages[0]->signaled[ticket.slot], UINT64_MAX);
		assert_int_equal(gpool_fence_wait(asker, fence, END_MS), 0);
		atomic_store(&pages[0]->signaled[ticket.slot], 0);
		assert_int_equal(gpool_fence_done(asker, fence), 1);
		assert_int_equal(gpool_fence_close(asker, fence), 0);
	}
	gpool_close(asker);
	for (int i = 0; i < 2; i++) {
		timeline_page_close(pages[i]);
		close(fds[i]);
	}
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(test_##name, end)
	const struct CMUnitTest tests[] = {
		TEST(seen_when_it_is_reached),
		TEST(waiting_times_out),
		TEST(in_any_order),
		TEST(closing_a_pool_ends_waits),
		TEST(stream_waits_by_timeline),
		TEST(stream_waits_by_event),
		TEST(blocks_behind_it),
		TEST(pages_behind_it),
		TEST(death_by_timeline),
		TEST(death_by_event),
		TEST(death_before_blocks_end),
		TEST(death_after_the_work_was_done),
		TEST(closing_while_waiting),
		TEST(over_agents),
		cmocka_unit_test_teardown(test_without_an_agent, end_without_an_agent),
		TEST(many_by_timeline),
		TEST(many_by_event),
		TEST(more_streams_than_slots),
		TEST(many_hands),
		TEST(our_own),
		TEST(arguments),
		TEST(hostile_handles),
		TEST(another_trust_domain),
		TEST(a_device_without_events),
		TEST(driver_faults),
		TEST(false_messages),
	};

	if (argc == 5 && !strcmp(argv[1], "exporter"))
		return exporter_main(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
