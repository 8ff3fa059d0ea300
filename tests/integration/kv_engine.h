/*
 * kv_engine.h - run engines with a KV cache as separate processes that execute orders from a test. Based on kv_view.h.
 *
 * After each order the engine runs prefix_check() and sends a report. Every token has distinct content, also across
 * engines. A test program whose first argument is "engine" runs engine_main().
 */
#ifndef GPOOL_TESTS_KV_ENGINE_H
#define GPOOL_TESTS_KV_ENGINE_H

#include "shm/timeline.h"
#include "tests/integration/kv_view.h"

#include <sched.h>
#include <sys/socket.h>

enum {
	T = BLOCK_TOKENS,
	C = CHUNK_BLOCKS * T,
	POOL_BLOCKS = 16 * CHUNK_BLOCKS,
	TEXT_MAX = 1000,
	PLAIN = 7,
	ENGINES = 4
};

enum verb { BEGIN, FIND, LOOK, SHARE, FREE, EVICT, QUIET_DOWN, SWEEP, POKE_OLD, POKE, SLEEP, WAKE, DESTROY };

struct order {
	enum verb verb;
	uint32_t text, same, tokens; /* BEGIN, FIND: `same` tokens of the plain text, then distinct tokens */
	uint64_t salt;
	uint64_t sequence;        /* LOOK, SHARE, FREE */
	uint32_t fault, fault_at; /* this call of the driver (enum gpu_call) fails, counted from 1; 0: no call fails */
};

struct report {
	int error; /* error of the order, or the result of the call */
	bool right;
	uint64_t sequence;
	uint32_t found;
	struct gpool_kv_stats statistics;
};

/* ---- an engine ---- */

static struct order texts[64]; /* indexed by the sequence's row */

static inline const uint32_t *ids_of(const struct order *order)
{
	static uint32_t ids[TEXT_MAX];

	for (uint32_t i = 0; i < TEXT_MAX; i++)
		ids[i] = (i < order->same ? PLAIN : 100 + order->text) * 10000 + i;
	return ids;
}

#define ADAPTIVE "GPOOL_TEST_KV_ADAPTIVE" /* engines use the adaptive policy; tests run with and without it */

static inline struct gpool_kv_options engine_options(uint32_t pool_blocks, uint32_t heads)
{
	struct gpool_kv_options options = small_options(0);

	options.flags = GPOOL_KV_PREFIXES | (getenv(ADAPTIVE) ? GPOOL_KV_ADAPTIVE : 0);
	options.model[0] = 9;
	options.pool_blocks = pool_blocks ? pool_blocks : POOL_BLOCKS;
	options.shape.kv_heads = heads;
	return options;
}

static inline volatile uint64_t *engine_token(uint64_t sequence, uint32_t token)
{
	const int32_t *blocks = NULL;
	uint64_t address = 0;
	uint32_t count = 0;

	if (gpool_kv_table(kv, sequence, &blocks, &count) || token / T >= count ||
		gpool_kv_address(kv, (uint32_t)blocks[token / T], &address))
		return NULL;
	return (volatile uint64_t *)(uintptr_t)(address + token % T * TOKEN_BYTES);
}

static inline int engine_begin(const struct order *order, struct report *report)
{
	const uint32_t *ids = ids_of(order);
	struct gpool_kv_prefix prefix = prefix_of(ids, order->tokens);
	int error;

	prefix.salt[0] = order->salt;
	error = try_allocate_prefix(order->tokens, &prefix, &report->sequence, &report->found);
	if (error)
		return error;
	texts[(uint32_t)report->sequence] = *order;
	for (uint32_t i = report->found; i < order->tokens; i++)
		*engine_token(report->sequence, i) = ids[i];
	error = gpool_kv_prefix_publish(kv, report->sequence, &prefix);
	return error == (int)(order->tokens / T) ? 0 : error < 0 ? error : -EPROTO;
}

static inline int engine_find(const struct order *order, struct report *report)
{
	struct gpool_kv_prefix prefix = prefix_of(ids_of(order), order->tokens);
	struct gpool_kv_prefix_found found = {.size = sizeof(found)};
	int error = gpool_kv_prefix_find(kv, &prefix, &found);

	report->found = found.tokens;
	return error;
}

static inline bool engine_right(uint64_t sequence)
{
	const struct order *order = &texts[(uint32_t)sequence];
	const uint32_t *ids = ids_of(order);

	for (uint32_t i = 0; i < order->tokens; i++)
		if (!engine_token(sequence, i) || *engine_token(sequence, i) != ids[i])
			return false;
	return gpool_kv_sync(kv) == 0;
}

/*
 * Wait until all fences recorded for pages are signaled, without a library call. The threads that emulate streams stop
 * together with the engine.
 */
static inline int engine_quiet(void)
{
	for (uint32_t page = 0; page < worker->page_count; page++)
		while (!fence_signaled(&worker->session, atomic_load(&worker->session.blocks[page].fence)))
			sched_yield();
	return 0;
}

static inline int engine_sweep(void)
{
	struct gpool_fence fence;
	int error;

	for (int i = 0; i < 2; i++) {
		error = gpool_fence_record(worker, stream, &fence);
		if (!error)
			error = gpool_fence_wait(worker, fence, ANSWER_MS);
		if (!error)
			error = gpool_kv_prefix_evict(kv, UINT32_MAX);
		if (error < 0)
			return error;
	}
	return 0;
}

static volatile uint64_t *old_place; /* address of the first token of the last text, as of its BEGIN */

static inline int engine_obey(const struct order *order, struct report *report)
{
	if (order->fault_at)
		gpu_fault_set(worker->gpu, (enum gpu_call)order->fault, order->fault_at, -EIO);
	switch (order->verb) {
	case BEGIN:
		report->error = engine_begin(order, report);
		old_place = report->error ? NULL : engine_token(report->sequence, 0);
		return report->error;
	case FIND: return engine_find(order, report);
	case LOOK: report->right = engine_right(order->sequence); return 0;
	case SHARE: return gpool_kv_prefix_share(kv, order->sequence, ANSWER_MS);
	case FREE: return gpool_kv_free(kv, order->sequence);
	case EVICT: return gpool_kv_prefix_evict(kv, UINT32_MAX);
	case QUIET_DOWN: return engine_quiet();
	case SWEEP: return engine_sweep();
	case POKE_OLD: *old_place = order->salt; return 0;
	case POKE: *engine_token(order->sequence, 0) = 1; return 0;
	case SLEEP: return gpool_sleep(worker, 0);
	case WAKE: return gpool_wake(worker, ANSWER_MS);
	default: return gpool_kv_destroy(kv);
	}
}

/* argv: program, "engine", directory, tenant, pool blocks, heads, channel */
static inline int engine_main(char **arguments)
{
	struct gpool_kv_options kv_options;
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct report report = {.error = 0};
	struct order order;
	int channel = atoi(arguments[6]);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGSEGV, SIG_DFL);
	options.directory = arguments[2];
	options.tenant = *arguments[3] ? arguments[3] : NULL;
	options.timeout_ms = ANSWER_MS;
	options.magazine = 1;
	options.name = "engine";
	if (gpool_open(&options, &worker) || gpool_stream_open(worker, NULL, 0, &stream))
		return 1;
	kv_options = engine_options((uint32_t)atoi(arguments[4]), (uint32_t)atoi(arguments[5]));
	report.error = gpool_kv_create(worker, &kv_options, &kv);
	while (write(channel, &report, sizeof(report)) == sizeof(report) &&
		read(channel, &order, sizeof(order)) == sizeof(order)) {
		memset(&report, 0, sizeof(report));
		report.error = engine_obey(&order, &report);
		if (order.fault_at)
			gpu_fault_set(worker->gpu, (enum gpu_call)order.fault, 0, 0);
		report.statistics.size = sizeof(report.statistics);
		if (order.verb != DESTROY && order.verb != QUIET_DOWN &&
			(gpool_kv_stats(kv, &report.statistics) || !prefix_check(kv)))
			report.error = -EBADMSG;
	}
	gpool_close(worker);
	return 0;
}

/* ---- the engine as the test sees it ---- */

struct engine {
	pid_t pid;
	int channel;
};

static struct engine engines[ENGINES];
static uint32_t heads = 8; /* used by engines that are started from now on */
static struct report last;

static inline int heard(const struct engine *engine)
{
	struct pollfd look = {.fd = engine->channel, .events = POLLIN};

	assert_int_equal(poll(&look, 1, END_MS), 1);
	assert_int_equal(read(engine->channel, &last, sizeof(last)), sizeof(last));
	return last.error;
}

static inline void tell(const struct engine *engine, struct order order)
{
	assert_int_equal(write(engine->channel, &order, sizeof(order)), sizeof(order));
}

static inline int ask(const struct engine *engine, struct order order)
{
	tell(engine, order);
	return heard(engine);
}

static inline struct engine *engine_start(const char *tenant_name, uint32_t pool_blocks)
{
	struct engine *engine = engines;
	char channel[16], blocks[16], heads_text[16];
	int ends[2];

	while (engine < engines + ENGINES && engine->pid)
		engine++;
	assert_true(engine < engines + ENGINES);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	fflush(stdout);
	engine->pid = fork();
	assert_true(engine->pid >= 0);
	if (engine->pid == 0) {
		snprintf(channel, sizeof(channel), "%d", ends[1]);
		snprintf(blocks, sizeof(blocks), "%u", pool_blocks);
		snprintf(heads_text, sizeof(heads_text), "%u", heads);
		fcntl(ends[1], F_SETFD, 0);
		execl("/proc/self/exe", "engine", "engine", harness.directory, tenant_name, blocks, heads_text, channel,
			NULL);
		_exit(127);
	}
	close(ends[1]);
	engine->channel = ends[0];
	assert_int_equal(heard(engine), 0);
	return engine;
}

static inline void engine_killed(struct engine *engine)
{
	kill(engine->pid, SIGKILL);
	status_of(engine->pid);
	close(engine->channel);
	*engine = (struct engine){0};
}

/* Stop an engine normally. */
static inline void engine_ended(struct engine *engine)
{
	close(engine->channel);
	assert_int_equal(status_of(engine->pid), 0);
	*engine = (struct engine){0};
}

static inline int engines_stop(void **state)
{
	heads = 8;
	for (int i = 0; i < ENGINES; i++)
		if (engines[i].pid)
			engine_killed(&engines[i]);
	if (worker)
		gpool_close(worker);
	worker = NULL;
	return stop(state);
}

static inline struct engine *engine(void)
{
	return engine_start("", 0);
}

/* Begin a text. Return the number of tokens found in the cache. */
static inline uint32_t begun(
	const struct engine *engine, uint32_t text, uint32_t same, uint32_t tokens, uint64_t *sequence)
{
	assert_int_equal(ask(engine, (struct order){.verb = BEGIN, .text = text, .same = same, .tokens = tokens}), 0);
	*sequence = last.sequence;
	return last.found;
}

/* Look up a text. Return the number of tokens that a BEGIN would find. */
static inline uint32_t found_by(const struct engine *engine, uint32_t text, uint32_t same, uint32_t tokens)
{
	assert_int_equal(ask(engine, (struct order){.verb = FIND, .text = text, .same = same, .tokens = tokens}), 0);
	return last.found;
}

/* Stop the process of an engine once its GPU work is done. The engine executes nothing until engine_continued(). */
static inline void engine_stopped(const struct engine *engine)
{
	int exit_status;

	assert_int_equal(ask(engine, (struct order){.verb = QUIET_DOWN}), 0);
	assert_int_equal(kill(engine->pid, SIGSTOP), 0);
	assert_int_equal(waitpid(engine->pid, &exit_status, WUNTRACED), engine->pid);
	assert_true(WIFSTOPPED(exit_status));
}

static inline void engine_continued(const struct engine *engine)
{
	assert_int_equal(kill(engine->pid, SIGCONT), 0);
}

static inline int shared(const struct engine *engine, uint64_t sequence)
{
	return ask(engine, (struct order){.verb = SHARE, .sequence = sequence});
}

static inline void freed(const struct engine *engine, uint64_t sequence)
{
	assert_int_equal(ask(engine, (struct order){.verb = FREE, .sequence = sequence}), 0);
}

static inline void swept(const struct engine *engine)
{
	assert_int_equal(ask(engine, (struct order){.verb = SWEEP}), 0);
}

static inline void look(const struct engine *engine, uint64_t sequence)
{
	assert_int_equal(ask(engine, (struct order){.verb = LOOK, .sequence = sequence}), 0);
	assert_true(last.right);
}

static inline void agent_kill(void)
{
	uint32_t pid = status()->agent_pid;
	int pidfd;

	assert_true(pid > 1);
	pidfd = pidfd_of((pid_t)pid);
	assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
	await_end(pidfd);
}

/* Return the number of named objects; *readers is the number of sessions that have them open. */
static inline uint32_t objects(uint32_t *readers)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0, count = 0;

	*readers = 0;
	while (gpool_object_next(admin, &cursor, &info) == 0) {
		count++;
		*readers += info.readers;
	}
	return count;
}

/* Block the cache's stream until gpool_fence_signal(). */
static inline struct gpool_fence gate_make(uint32_t manual)
{
	struct gpool_fence gate;

	assert_int_equal(gpool_fence_record(worker, manual, &gate), 0);
	assert_int_equal(gpool_stream_wait(worker, stream, gate), 0);
	return gate;
}

#endif
