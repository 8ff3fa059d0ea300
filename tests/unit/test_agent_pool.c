/*
 * test_agent_pool.c - a pool of the agent without other processes, for cases in which a keeper or a mover fails at a
 * given moment.
 *
 * Goal: a session whose descriptors the keeper could not hold waits for the end of its process, while all other
 * sessions are served. Spilled content that a mover cannot restore is kept, unless the content itself is the cause.
 * Jobs are taken back only from dead movers. A result that the previous agent has processed does not count for a later
 * job.
 *
 * Method: a real pool, whose ledger records that an agent has served. The test acts as the keeper, the worker and the
 * mover.
 */
#include "agent/agent.h"
#include "agent/pages/evict.h"
#include "agent/keeper/channel.h"
#include "agent/control/pool_start.h"
#include "agent/pages/pool.h"
#include "agent/pages/requests.h"
#include "agent/pages/trust.h"
#include "agent/control/recover.h"
#include "agent/session/session.h"
#include "agent/spill/spill.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 64, SLOTS = 16, HELD = 1, LOST = 2, SPILLS = 3, TAG = 77 << BLOCK_SEQUENCE_SHIFT };

static struct agent *agent;
static struct module_start start;
static struct module_pool made;
static struct held held[1];
static struct pool *pool;
static struct session_segment worker; /* the segment of the session whose descriptors are held */
static int ends[2], connection[2];
static pid_t process;

static void session_was(uint32_t id, pid_t pid)
{
	struct ledger_session *record = &made.ledger.sessions[id];

	record->pid = (uint32_t)pid;
	strcpy(record->tenant, "t");
	snprintf(record->name, sizeof(record->name), "s%u", id);
	atomic_store(&record->state, LEDGER_SESSION_LIVE);
}

static void pages_were(uint32_t first, uint32_t count, enum page_state state, uint32_t owner)
{
	for (uint32_t page = first; page < first + count; page++)
		atomic_store(&made.segment.pages[page], page_word_make(state, owner, 5));
}

static void slot_was(uint32_t number, uint32_t session, uint64_t tag, enum ledger_slot_state state, uint32_t page)
{
	struct ledger_slot *slot = &made.ledger.slots[number];

	*slot = (struct ledger_slot){.session = session, .pages = 1, .page = page, .generation = 5};
	atomic_store(&slot->state, state);
	atomic_store(&slot->tag, tag);
}

static int setup(void **state)
{
	struct pool_geometry geometry = {.name = "p",
		.backend = "host",
		.device = "host-0",
		.page_bytes = 524288,
		.page_count = PAGES,
		.pages_per_handle = 1};
	static struct config_pool config;

	(void)state;
	agent = calloc(1, sizeof(*agent));
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, connection), 0);
	agent->keeper.fd = ends[0];
	agent->front.fd = -1;
	agent->epoll = epoll_create1(EPOLL_CLOEXEC);
	agent->timer.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	config_defaults(&agent->config);
	agent->config.tenant_count = 1;
	strcpy(agent->config.tenants[0].name, "t");
	agent->config.tenants[0].limit = (struct config_amount){CONFIG_AMOUNT_PAGES, PAGES};
	config = (struct config_pool){.name = "p", .backend = "host", .page_bytes = 524288};
	agent->config.pools[0] = config;
	made = (struct module_pool){.handle_bytes = 524288, .work_bell = -1, .done_bell = -1};
	assert_int_equal(pool_segment_create(&geometry, &made.segment, &made.segment_fd), 0);
	assert_int_equal(ledger_create(PAGES, POOL_OBJECTS_LEAST, SLOTS, SLOTS, &made.ledger, &made.ledger_fd), 0);
	process = fork();
	if (process == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pause();
		_exit(0);
	}
	assert_true(process > 0);
	held[0] = (struct held){.kind = KEEP_SESSION, .id = HELD, .fd_count = 4};
	assert_int_equal(session_segment_create(PAGES, 0, HELD, 1, &worker, &held[0].fds[0]), 0);
	held[0].fds[1] = connection[0];
	held[0].fds[2] = (int)syscall(SYS_pidfd_open, getpid(), 0);
	held[0].fds[3] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	start = (struct module_start){
		.pools = &made, .pool_count = 1, .held = held, .held_count = 1, .keeper_fd = ends[0]};
	agent->start = &start;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (process > 0) {
		kill(process, SIGKILL);
		waitpid(process, NULL, 0);
	}
	pool_destroy(pool);
	pool = NULL;
	sessions_free_dead(agent);
	free(made.ring);
	session_segment_close(&worker);
	pool_segment_close(&made.segment);
	ledger_close(&made.ledger);
	close(made.segment_fd);
	close(made.ledger_fd);
	close(agent->epoll);
	close(agent->timer.fd);
	close(ends[0]);
	close(ends[1]);
	close(connection[1]);
	free(agent);
	return 0;
}

static void test_other_sessions_continue(void **state)
{
	struct evict_request all = {.by_operator = true, .pages = PAGES};
	struct lease_request *ask = &worker.requests[0];

	(void)state;
	session_was(HELD, getpid());
	session_was(LOST, process);
	session_was(SPILLS, process);
	pages_were(0, 20, PAGE_LEASED, LOST);
	pages_were(20, 2, PAGE_EVICTING, LOST);
	pages_were(30, 1, PAGE_MOVING, SPILLS);
	pages_were(32, 1, PAGE_MOVING, SPILLS);
	slot_was(0, SPILLS, TAG, SLOT_SAVED, 30);
	slot_was(2, SPILLS, TAG + TAG, SLOT_ANSWERED, 32);
	atomic_store(&made.ledger.header->started, 1);
	/*
	 * The request exceeds the existing pages, so that every session is examined and the missing pages are counted.
	 */
	*ask = (struct lease_request){.kind = LEASE_TAKE, .need = PAGES};
	atomic_store(&ask->state, LEASE_SERIAL_ONE | LEASE_REQUESTED);
	assert_int_equal(pool_create(agent, 0, &made, &pool), 0);
	/* An id is used again only after all others, even by a new agent. */
	assert_int_equal(pool->session_next, SPILLS + 1);
	recover_resume(pool);
	assert_int_equal(lease_state_of(atomic_load(&ask->state)), LEASE_DONE);
	assert_int_equal(ask->error, -ENOSPC);
	assert_int_equal(evict_pages(pool, &all), 0);
	assert_int_equal(pool_idle(pool), 0);
	for (uint32_t page = 0; page < 22; page++)
		assert_int_equal(page_word_state(pool_word(pool, page)), PAGE_QUARANTINED);
	/* The sessions end, and all pages are free again. */
	session_end(pool->sessions[LOST], SESSION_END_DEATH);
	session_end(pool->sessions[SPILLS], SESSION_END_DEATH);
	assert_int_equal(pool->free.total, PAGES);
	assert_int_equal(pool->leased, 0);
}

/* A request that is refused at once must not keep a claim to pages that are being spilled. */
static void test_a_refused_request_claims_nothing(void **state)
{
	struct lease_request *ask = &worker.requests[0];

	(void)state;
	session_was(HELD, getpid());
	atomic_store(&made.ledger.header->started, 1);
	assert_int_equal(pool_create(agent, 0, &made, &pool), 0);
	recover_resume(pool);
	pool->sessions[HELD]->privileged = false;
	pool->saving_pages = 8;
	*ask = (struct lease_request){.kind = LEASE_TAKE, .need = 4, .flags = LEASE_CRITICAL, .timeout_ms = 60000};
	atomic_store(&ask->state, LEASE_SERIAL_ONE | LEASE_REQUESTED);
	atomic_store(&worker.header->requests_pending, 1);
	requests_doorbell(pool->sessions[HELD]);
	assert_int_equal(lease_state_of(atomic_load(&ask->state)), LEASE_DONE);
	assert_int_equal(ask->error, -EPERM);
	assert_int_equal(pool->claimed_pages, 0);
	pool->saving_pages = 0;
}

/* ---- eviction on a busy machine ---- */

static void score_slowly(void *state, struct evict_candidate *candidates, uint32_t count)
{
	(void)state, (void)candidates, (void)count;
	poll(NULL, 0, 300); /* like a preemption: no CPU time passes */
}

/*
 * After a scan that found no page, the next scan waits for as long as the last one took. A scan during which the agent
 * was preempted took long only by the wall clock. Pages that become idle after it must be found soon.
 */
static void test_a_scan_that_was_preempted(void **state)
{
	static const struct evict_policy slow = {.name = "slow", .objects = "lru", .score = score_slowly};
	struct evict_request one = {.by_operator = true, .pages = 1};
	const struct evict_policy *real;
	uint32_t pinned, idle;

	(void)state;
	session_was(HELD, getpid());
	pages_were(40, 1, PAGE_LEASED, HELD);
	atomic_store(&worker.blocks[40].page_count, 1);
	atomic_store(&worker.blocks[40].tag, block_tag_make(5, 0));
	atomic_store(&worker.pins[40], 1);
	atomic_store(&made.ledger.header->started, 1);
	assert_int_equal(pool_create(agent, 0, &made, &pool), 0);
	recover_resume(pool);
	real = pool->evict.policy;
	pool->evict.policy = &slow;
	pinned = evict_pages(pool, &one);
	atomic_store(&worker.pins[40], 0);
	/* The scan took microseconds of CPU time, so the next one must follow long before 300 ms have passed. */
	for (int tries = 0; !(idle = evict_pages(pool, &one)) && tries < 20000; tries++)
		;
	pool->evict.policy = real;
	assert_int_equal(pinned, 0);
	assert_int_equal(idle, 1);
}

/* ---- eviction of whole handles ---- */

static uint64_t marked; /* bit i: page i */
static uint32_t marked_evictions;

static void mark_note(struct pool *of, uint32_t first, uint32_t count)
{
	(void)of;
	while (count--)
		marked |= UINT64_C(1) << first++;
}

static void evict_marked_count(struct pool *of)
{
	(void)of;
	marked_evictions++;
}

/* The eviction of objects sorts all of them, so that it must not be repeated for each handle. */
static void test_objects_of_all_handles_are_evicted_at_once(void **state)
{
	struct evict_request any = {.by_operator = true};
	const struct evict_source *real;
	struct evict_source counting;
	uint64_t chosen[1] = {0};
	bool found;

	(void)state;
	session_was(HELD, getpid());
	pages_were(3, 1, PAGE_LEASED, HELD);
	atomic_store(&made.ledger.header->started, 1);
	assert_int_equal(pool_create(agent, 0, &made, &pool), 0);
	recover_resume(pool);
	real = pool->evict.source;
	counting = *real;
	counting.mark = mark_note;
	counting.evict_marked = evict_marked_count;
	marked = marked_evictions = 0;
	any.for_tenant = &pool->tenants[0];
	pool->evict.source = &counting;
	found = evict_handles(pool, &any, 8, chosen);
	pool->evict.source = real;
	assert_true(found);
	assert_int_equal(__builtin_popcountll(chosen[0]), 8);
	assert_int_equal(marked, chosen[0]);
	assert_int_equal(marked_evictions, 1);
}

/* ---- a mover that fails ---- */

static void ring_make(void)
{
	made.ring = aligned_alloc(64, sizeof(struct mover_ring));
	memset(made.ring, 0, sizeof(struct mover_ring));
	made.work_bell = eventfd(0, EFD_CLOEXEC);
	made.done_bell = eventfd(0, EFD_CLOEXEC);
}

static void bells_close(void)
{
	close(made.work_bell);
	close(made.done_bell);
}

static void ask_back(uint32_t serial)
{
	struct lease_request *ask = &worker.requests[0];

	*ask = (struct lease_request){.kind = LEASE_RESTORE, .need = 1, .tag = TAG};
	atomic_store(&ask->state, serial * LEASE_SERIAL_ONE | LEASE_REQUESTED);
	atomic_store(&worker.header->requests_pending, 1);
}

/* End the only job in the ring with this error. */
static void job_ends(struct mover_ring *ring, int error)
{
	uint32_t jobs = 0;

	for (int i = 0; i < MOVER_JOBS; i++) {
		if (atomic_load(&ring->jobs[i].state) != MOVER_QUEUED)
			continue;
		assert_int_equal(ring->jobs[i].kind, MOVER_LOAD);
		assert_int_equal(ring->jobs[i].page, made.ledger.slots[0].page);
		ring->jobs[i].error = error;
		atomic_store(&ring->jobs[i].state, MOVER_DONE);
		jobs++;
	}
	assert_int_equal(jobs, 1);
	pool->jobs->done.ready(&pool->jobs->done, EPOLLIN);
}

static void test_unreadable_content_is_kept(void **state)
{
	struct mover_ring *ring = aligned_alloc(64, sizeof(*ring));
	struct lease_request *ask = &worker.requests[0];
	struct ledger_slot *slot = &made.ledger.slots[0];

	(void)state;
	memset(ring, 0, sizeof(*ring));
	made.ring = ring;
	made.work_bell = eventfd(0, EFD_CLOEXEC);
	made.done_bell = eventfd(0, EFD_CLOEXEC);
	session_was(HELD, getpid());
	slot_was(0, HELD, TAG, SLOT_SAVED, 10);
	atomic_store(&made.ledger.header->started, 1);
	ask_back(1);
	assert_int_equal(pool_create(agent, 0, &made, &pool), 0);
	recover_resume(pool);
	/* Another mover may succeed, so the first failure is not reported. */
	job_ends(ring, -EIO);
	assert_int_equal(lease_state_of(atomic_load(&ask->state)), LEASE_REQUESTED);
	job_ends(ring, -EIO);
	assert_int_equal(lease_state_of(atomic_load(&ask->state)), LEASE_DONE);
	assert_int_equal(ask->error, -EIO);
	assert_int_equal(page_word_state(pool_word(pool, slot->page)), PAGE_FREE);
	assert_int_equal(pool->sessions[HELD]->leased, 0);
	assert_int_equal(atomic_load(&slot->tag), TAG);
	assert_int_equal(atomic_load(&slot->state), SLOT_SAVED);
	/* Later the restore is possible. */
	ask_back(2);
	pool->sessions[HELD]->doorbell.ready(&pool->sessions[HELD]->doorbell, EPOLLIN);
	job_ends(ring, 0);
	assert_int_equal(lease_state_of(atomic_load(&ask->state)), LEASE_DONE);
	assert_int_equal(ask->error, 0);
	assert_int_equal(page_word_state(pool_word(pool, ask->first_page)), PAGE_LEASED);
	assert_int_equal(pool->sessions[HELD]->leased, 1);
	assert_int_equal(atomic_load(&slot->tag), 0);
	close(made.work_bell);
	close(made.done_bell);
}

/* ---- a restore that the previous agent had begun ---- */

/* Check that the reply to the worker's request is one page that has the content, and that no other page is lent. */
static void is_restored(uint32_t request)
{
	struct lease_request *ask = &worker.requests[request];

	job_ends(made.ring, 0);
	assert_int_equal(lease_state_of(atomic_load(&ask->state)), LEASE_DONE);
	assert_int_equal(ask->error, 0);
	assert_int_equal(pool_word(pool, ask->first_page) >> 32, page_word_make(PAGE_LEASED, HELD, 0) >> 32);
	assert_int_equal(pool->sessions[HELD]->leased, 1);
	assert_int_equal(pool->free.total, PAGES - 1);
	assert_int_equal(atomic_load(&made.ledger.slots[0].tag), 0);
}

/* The agent died before the end of the grant. The pages are lent again, once. */
static void test_restore_that_was_granted(void **state)
{
	struct ledger_journal *journal = &made.ledger.header->journal;
	struct lease_request *ask = &worker.requests[0];

	(void)state;
	ring_make();
	session_was(HELD, getpid());
	pages_were(40, 1, PAGE_LEASED, HELD);
	ask_back(1);
	slot_was(0, HELD, TAG, SLOT_LOADING, 40);
	made.ledger.slots[0].request_word = atomic_load(&ask->state);
	made.ledger.runs[0] = (struct page_run){40, 1};
	journal->session = HELD;
	journal->run_count = 1;
	journal->slot_word = atomic_load(&ask->state);
	atomic_store(&journal->what, LEDGER_GRANT);
	atomic_store(&made.ledger.header->started, 1);
	assert_int_equal(pool_create(agent, 0, &made, &pool), 0);
	assert_int_equal(pool->free.total, PAGES);
	recover_resume(pool);
	is_restored(0);
	bells_close();
}

/* The request was cancelled just before its reply. Page and content belong to the agent again. */
static void test_restore_that_was_withdrawn(void **state)
{
	struct lease_request *ask = &worker.requests[0];
	uint32_t word;

	(void)state;
	ring_make();
	session_was(HELD, getpid());
	pages_were(40, 1, PAGE_LEASED, HELD);
	ask_back(1);
	word = atomic_load(&ask->state);
	slot_was(0, HELD, TAG, SLOT_ANSWERED, 40);
	made.ledger.slots[0].request_word = word;
	atomic_store(&ask->state, lease_state_to(word, LEASE_CANCELLED));
	atomic_store(&made.ledger.header->started, 1);
	assert_int_equal(pool_create(agent, 0, &made, &pool), 0);
	recover_resume(pool);
	assert_int_equal(pool->free.total, PAGES);
	assert_int_equal(pool->sessions[HELD]->leased, 0);
	assert_int_equal(atomic_load(&made.ledger.slots[0].state), SLOT_SAVED);
	assert_int_equal(lease_state_of(atomic_load(&ask->state)), LEASE_IDLE);
	ask_back(2);
	pool->sessions[HELD]->doorbell.ready(&pool->sessions[HELD]->doorbell, EPOLLIN);
	is_restored(0);
	bells_close();
}

/* The agent died while it returned one of two pages, because the content could not be read. */
static void test_restore_that_was_undone(void **state)
{
	struct lease_request *ask = &worker.requests[0];

	(void)state;
	ring_make();
	session_was(HELD, getpid());
	pages_were(41, 1, PAGE_MOVING, HELD);
	ask_back(1);
	ask->need = 2;
	slot_was(0, HELD, TAG, SLOT_LOADING, 40);
	slot_was(1, HELD, TAG, SLOT_LOADING, 41);
	made.ledger.slots[0].pages = made.ledger.slots[1].pages = 2;
	made.ledger.slots[0].next = 2;
	made.ledger.slots[1].index = 1;
	made.ledger.slots[0].request_word = atomic_load(&ask->state);
	atomic_store(&made.ledger.header->started, 1);
	assert_int_equal(pool_create(agent, 0, &made, &pool), 0);
	assert_int_equal(pool->free.total, PAGES);
	assert_int_equal(pool->sessions[HELD]->leased, 0);
	assert_int_equal(atomic_load(&made.ledger.slots[0].state), SLOT_SAVED);
	recover_resume(pool);
	assert_int_equal(pool->jobs->queue.in_flight, 2);
	assert_int_equal(pool->sessions[HELD]->leased, 2);
	bells_close();
}

/* ---- a mover that does not start ---- */

/* Let the first two requests each restore one block. */
static void two_are_asked_back(void)
{
	session_was(HELD, getpid());
	for (uint32_t i = 0; i < 2; i++) {
		slot_was(i, HELD, (i + 1) * TAG, SLOT_SAVED, 10 + i);
		worker.requests[i] = (struct lease_request){.kind = LEASE_RESTORE, .need = 1, .tag = (i + 1) * TAG};
		atomic_store(&worker.requests[i].state, LEASE_SERIAL_ONE | LEASE_REQUESTED);
	}
	atomic_store(&worker.header->requests_pending, 3);
	atomic_store(&made.ledger.header->started, 1);
	assert_int_equal(pool_create(agent, 0, &made, &pool), 0);
	recover_resume(pool);
	assert_int_equal(pool->jobs->queue.in_flight, 2);
}

static void keeper_says(enum keep_what what, uint32_t ended, const char *text)
{
	struct keep_message message = {.what = what, .id = 4711, .kind = ended};

	strcpy(message.text, text);
	jobs_hear(pool, &message);
}

static bool is_answered(uint32_t request)
{
	return lease_state_of(atomic_load(&worker.requests[request].state)) == LEASE_DONE;
}

/* Check that the request failed, and that the content is still kept. */
static void was_given_up(uint32_t request)
{
	assert_true(is_answered(request));
	assert_int_equal(worker.requests[request].error, -EIO);
	assert_int_equal(page_word_state(pool_word(pool, made.ledger.slots[request].page)), PAGE_FREE);
	assert_int_equal(atomic_load(&made.ledger.slots[request].tag), (request + 1) * TAG);
	assert_int_equal(atomic_load(&made.ledger.slots[request].state), SLOT_SAVED);
}

static void test_jobs_are_taken_back_from_dead_movers_only(void **state)
{
	struct mover_ring *ring;

	(void)state;
	ring_make();
	ring = made.ring;
	agent->config.mover.patience_ms = 0;
	two_are_asked_back();
	/*
	 * Without a message of the keeper, the agent waits: a mover of an earlier version, which does not know the
	 * gate, may be running.
	 */
	jobs_tick(pool);
	assert_int_equal(pool->jobs->queue.in_flight, 2);
	/* The second mover has passed the gate, and is alive. */
	atomic_store(&ring->gate, 2);
	keeper_says(KEEP_MOVER, 1, "");
	jobs_tick(pool);
	assert_int_equal(pool->jobs->queue.in_flight, 2);
	assert_false(pool->jobs->gone);
	snprintf(ring->why, sizeof(ring->why), "no\001memory");
	keeper_says(KEEP_MOVER_END, 2, "process 9 ended (status 1)");
	for (uint32_t i = 0; i < 2; i++)
		was_given_up(i);
	assert_int_equal(pool->jobs->queue.in_flight, 0);
	assert_true(pool->jobs->gone);
	assert_string_equal(pool->jobs->why, "process 9 ended (status 1): no?memory");
	assert_int_equal(atomic_load(&ring->gate), MOVER_NOBODY);
	for (int i = 0; i < MOVER_JOBS; i++)
		assert_int_equal(atomic_load(&ring->jobs[i].state), MOVER_IDLE);
	/* The mover starts, and the work continues. */
	atomic_store(&ring->gate, 3);
	pool->jobs->done.ready(&pool->jobs->done, EPOLLIN);
	assert_false(pool->jobs->gone);
	bells_close();
}

/* Movers that die after completing jobs are restarted. After repeated deaths during the same job the agent gives up. */
static void test_movers_that_get_on(void **state)
{
	struct mover_ring *ring;
	uint32_t first = 0;

	(void)state;
	ring_make();
	ring = made.ring;
	agent->config.mover.patience_ms = 10000;
	two_are_asked_back();
	atomic_store(&ring->gate, 1);
	keeper_says(KEEP_MOVER_END, 1, "process 9 ended (signal 9)");
	pool->jobs->since_ms -= 20000;
	while (ring->jobs[first].number != 1)
		first++;
	atomic_store(&ring->jobs[first].state, MOVER_DONE);
	pool->jobs->done.ready(&pool->jobs->done, EPOLLIN);
	jobs_tick(pool);
	assert_int_equal(pool->jobs->queue.in_flight, 1);
	assert_false(pool->jobs->gone);
	/* A mover has passed the gate, and dies before it has done any work. */
	pool->jobs->since_ms -= 20000;
	atomic_store(&ring->gate, 2);
	jobs_tick(pool);
	assert_int_equal(pool->jobs->queue.in_flight, 1);
	keeper_says(KEEP_MOVER_END, 2, "process 10 ended (signal 9)");
	assert_int_equal(pool->jobs->queue.in_flight, 0);
	assert_true(pool->jobs->gone);
	bells_close();
}

static void test_begun_jobs_wait_for_the_driver(void **state)
{
	struct mover_ring *ring;
	uint32_t begun = 0;

	(void)state;
	ring_make();
	ring = made.ring;
	agent->config.mover.patience_ms = 0;
	agent->config.trust.death_grace_ms = 60000;
	two_are_asked_back();
	atomic_store(&ring->gate, 1);
	while (atomic_load(&ring->jobs[begun].state) != MOVER_QUEUED ||
		ring->jobs[begun].page != made.ledger.slots[0].page)
		begun++;
	atomic_store(&ring->jobs[begun].state, MOVER_TAKEN);
	keeper_says(KEEP_MOVER_END, 1, "process 9 ended (signal 9)");
	/* No mover has begun the other job. */
	was_given_up(1);
	assert_false(is_answered(0));
	assert_int_equal(page_word_state(pool_word(pool, made.ledger.slots[0].page)), PAGE_MOVING);
	assert_int_equal(atomic_load(&ring->gate), MOVER_SHUT);
	jobs_tick(pool);
	assert_false(is_answered(0));
	agent->config.trust.death_grace_ms = 0;
	jobs_tick(pool);
	was_given_up(0);
	assert_int_equal(atomic_load(&ring->gate), MOVER_NOBODY);
	bells_close();
}

/* ---- a scrub whose result the previous agent had processed ---- */

enum { SCRUBBED = 3, FORMER = 1, NEXT = 2 };

static struct mover_job *scrub_at(enum mover_job_state state)
{
	struct mover_ring *ring = made.ring;

	for (int i = 0; i < MOVER_JOBS; i++) {
		struct mover_job *job = &ring->jobs[i];

		if (atomic_load(&job->state) == state && job->kind == MOVER_SCRUB && job->page == SCRUBBED)
			return job;
	}
	return NULL;
}

/* The previous agent died after it had stored this transfer, before the slot of the result was free. */
static void scrub_was_processed(enum ledger_transfer transfer)
{
	struct mover_job *job;

	ring_make();
	job = &((struct mover_ring *)made.ring)->jobs[7];
	*job = (struct mover_job){
		.kind = MOVER_SCRUB, .page = SCRUBBED, .number = 5, .tag = job_tag(JOB_OF_TRUST, SCRUBBED)};
	atomic_store(&job->state, MOVER_DONE);
	strcpy(made.ledger.header->domains[FORMER - 1], "former");
	strcpy(made.ledger.header->domains[NEXT - 1], "next");
	atomic_store(&made.ledger.header->domain_count, 2);
	atomic_store(&made.ledger.pages[SCRUBBED].transfer, transfer);
	atomic_store(&made.ledger.header->started, 1);
	assert_int_equal(pool_create(agent, 0, &made, &pool), 0);
	assert_int_equal(page_word_state(pool_word(pool, SCRUBBED)), PAGE_FREE);
}

static void test_processed_scrub_of_a_complete_transfer(void **state)
{
	(void)state;
	pages_were(SCRUBBED, 1, PAGE_QUARANTINED, 0);
	scrub_was_processed(LEDGER_TRANSFER_SCRUBS);
	assert_int_equal(pool->jobs->queue.in_flight, 0);
	assert_null(scrub_at(MOVER_DONE));
	bells_close();
}

/* Before the results are read, the page has another owner and is transferred again. */
static void test_processed_scrub_does_not_end_the_next_transfer(void **state)
{
	const struct trust_wish wish = {.domain = NEXT, .pages = PAGES};
	struct mover_job *job;

	(void)state;
	scrub_was_processed(LEDGER_TRANSFER_NONE);
	trust_withdraw(pool, SCRUBBED, 1);
	atomic_store(&trust_note(pool, SCRUBBED)->domain, FORMER);
	trust_put(pool, SCRUBBED, 1);
	assert_int_equal(trust_begin(pool, &wish), 1);
	jobs_resume(pool);
	assert_int_equal(page_word_state(pool_word(pool, SCRUBBED)), PAGE_QUARANTINED);
	assert_int_equal(trust_of_page(pool, SCRUBBED), FORMER);
	job = scrub_at(MOVER_QUEUED);
	assert_non_null(job);
	atomic_store(&job->state, MOVER_DONE);
	pool->jobs->done.ready(&pool->jobs->done, EPOLLIN);
	assert_int_equal(page_word_state(pool_word(pool, SCRUBBED)), PAGE_FREE);
	assert_int_equal(trust_of_page(pool, SCRUBBED), 0);
	bells_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_other_sessions_continue, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_refused_request_claims_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_scan_that_was_preempted, setup, teardown),
		cmocka_unit_test_setup_teardown(test_objects_of_all_handles_are_evicted_at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unreadable_content_is_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(test_restore_that_was_granted, setup, teardown),
		cmocka_unit_test_setup_teardown(test_restore_that_was_withdrawn, setup, teardown),
		cmocka_unit_test_setup_teardown(test_restore_that_was_undone, setup, teardown),
		cmocka_unit_test_setup_teardown(test_jobs_are_taken_back_from_dead_movers_only, setup, teardown),
		cmocka_unit_test_setup_teardown(test_movers_that_get_on, setup, teardown),
		cmocka_unit_test_setup_teardown(test_begun_jobs_wait_for_the_driver, setup, teardown),
		cmocka_unit_test_setup_teardown(test_processed_scrub_of_a_complete_transfer, setup, teardown),
		cmocka_unit_test_setup_teardown(test_processed_scrub_does_not_end_the_next_transfer, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
