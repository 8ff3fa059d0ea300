/*
 * hostile_segment.c - a worker repeatedly writes arbitrary data to its session segment, while honest workers run.
 *
 * Goal: it can neither stop the agent, nor take another worker's page, nor damage the pool. Findings concern its own
 * session only. After its death every page is free. Method: the hostile process attaches without the library's checks.
 * Its two threads write at the same time: random bytes everywhere, and false values designed to cause damage, such as
 * cyclic block chains, counts that wrap, free bits for other workers' pages, and requests whose fields change while
 * they are read. Both threads ring the doorbell. When the agent ends the session, the process exits, and the next one
 * starts. Honest workers verify their contents all the time.
 *
 * usage: hostile_segment [SECONDS [SEED]] [--workers N]
 *
 * Requirements: S10.
 */
#include "proto/attach.h"
#include "proto/codec.h"
#include "shm/session_segment.h"
#include "tests/stress/honest.h"
#include "tests/stress/stress_agent.h"

#include <pthread.h>
#include <string.h>

enum { PAGES = 256, HONEST_BUDGET = 80 };
enum more { MORE_ATTACKS, MORE_RINGS, MORE_LEASED, MORE_SESSION, MORE_SESSIONS, MORE_ENDED };

struct hostile {
	struct honest_stage *stage;
	int socket, doorbell;
	struct pool_segment pool;
	struct session_segment session;
	uint32_t id;
	uint64_t random;
	bool careful; /* write no value that ends the session at once, so that other values are read for longer */
};

/* ---- attach without the library ---- */

static int hostile_attach(struct hostile *hostile, const char *directory)
{
	static struct msg_attach_request request;
	static struct msg_attach_reply reply;
	uint8_t buffer[MSG_LARGEST_attach_reply];
	char path[128];
	int fds[3], length;
	size_t fd_count = 0;

	snprintf(path, sizeof(path), "%s/attach", directory);
	hostile->socket = attach_connect(path, HONEST_PATIENCE_MS);
	if (hostile->socket < 0)
		return hostile->socket;
	request.layout_version = POOL_LAYOUT_VERSION;
	strcpy(request.name, "hostile");
	length = msg_encode_attach_request(&request, 0, NULL, buffer, sizeof(buffer));
	if (length > 0)
		length = attach_send(hostile->socket, buffer, (size_t)length, NULL, 0);
	if (length == 0)
		length = attach_receive(hostile->socket, buffer, sizeof(buffer), fds, 3, &fd_count, HONEST_PATIENCE_MS);
	if (length < 0)
		return length;
	if (msg_decode_attach_reply(&reply, buffer, (size_t)length))
		return -EBADMSG;
	if (reply.error)
		return reply.error;
	if (fd_count != 3)
		return -EBADMSG;
	hostile->id = reply.session;
	hostile->doorbell = fds[2];
	length = pool_segment_open(fds[0], &hostile->pool);
	return length ? length : session_segment_open(fds[1], reply.page_count, true, &hostile->session);
}

/* ---- false values ---- */

/* Write a field that is not atomic and that other threads write at the same time. */
#define put(field, value) __atomic_store_n((field), (value), __ATOMIC_RELAXED)

static uint32_t any_page(struct hostile *hostile)
{
	return chance_below(&hostile->random, PAGES);
}

/* Return a number near a limit, for which a check may be missing. */
static uint32_t wild(struct hostile *hostile)
{
	static const uint32_t numbers[] = {0, 1, 2, 63, 64, 65, PAGES - 1, PAGES, PAGES + 1, 4095, 4096, 0x7fffffff,
		0x80000000, 0xfffffffe, 0xffffffff};

	return chance_below(&hostile->random, 4)
		? numbers[chance_below(&hostile->random, sizeof(numbers) / sizeof(*numbers))]
		: (uint32_t)chance(&hostile->random);
}

static void random_bytes(struct hostile *hostile)
{
	uint64_t *words = (uint64_t *)(void *)hostile->session.header;
	struct session_layout layout = session_layout_of(PAGES);
	/* The table of regions is last: it is ten times as large as the rest, and read only for requests of tools. */
	size_t first = hostile->careful ? layout.free_bits : 0,
	       end = hostile->careful ? layout.requests : layout.regions;
	bool small = chance_below(&hostile->random, 2);

	for (size_t i = first / 8; i < end / 8; i++)
		put(&words[i], small ? chance_below(&hostile->random, 16) : chance(&hostile->random));
}

static void free_bits_everywhere(struct hostile *hostile)
{
	for (uint32_t word = 0; word < PAGES / 64; word++)
		atomic_store(&hostile->session.free_bits[word], ~UINT64_C(0));
}

static void pins_wild(struct hostile *hostile)
{
	uint32_t value = wild(hostile);

	for (uint32_t page = 0; page < PAGES; page++)
		atomic_store(&hostile->session.pins[page], value);
}

static void block_lie(struct hostile *hostile, uint32_t page)
{
	struct block_entry *entry = &hostile->session.blocks[page];

	atomic_store(&entry->page_count,
		chance_below(&hostile->random, 2) ? 1 + chance_below(&hostile->random, 4) : wild(hostile));
	atomic_store(&entry->next, chance_below(&hostile->random, 2) ? any_page(hostile) + 1 : wild(hostile));
	atomic_store(&entry->owner_id, chance(&hostile->random));
	atomic_store(&entry->fence, chance_below(&hostile->random, 2) ? 0 : chance(&hostile->random));
	atomic_store(
		&entry->tag, block_tag_make(1 + chance_below(&hostile->random, 3), (uint32_t)chance(&hostile->random)));
}

static void blocks_everywhere(struct hostile *hostile)
{
	for (uint32_t page = 0; page < PAGES; page++) {
		atomic_store(&hostile->session.pins[page], 0);
		block_lie(hostile, page);
	}
}

/* Write a scattered block whose extents form a cycle, over its own pages if it has any. */
static void chain_in_a_cycle(struct hostile *hostile)
{
	uint32_t pages[8], count = 0;

	for (uint32_t page = 0; page < PAGES && count < 8; page++)
		if (page_word_owner(atomic_load(&hostile->pool.pages[page])) == hostile->id)
			pages[count++] = page;
	while (count < 2)
		pages[count++] = any_page(hostile);
	for (uint32_t i = 0; i < count; i++) {
		struct block_entry *entry = &hostile->session.blocks[pages[i]];

		atomic_store(&hostile->session.pins[pages[i]], 0);
		atomic_store(&entry->page_count, 1);
		atomic_store(&entry->next, pages[(i + 1) % count] + 1);
		atomic_store(&entry->fence, 0);
		atomic_store(&entry->tag, block_tag_make(77, i ? BLOCK_EXTENT : BLOCK_SCATTERED));
	}
}

static void requests_wild(struct hostile *hostile)
{
	for (uint32_t i = 0; i < SESSION_REQUESTS; i++) {
		struct lease_request *request = &hostile->session.requests[i];

		put(&request->kind, hostile->careful || chance_below(&hostile->random, 4) ? LEASE_TAKE : wild(hostile));
		put(&request->need, wild(hostile));
		put(&request->extra, wild(hostile));
		put(&request->flags,
			hostile->careful || chance_below(&hostile->random, 2) ? chance_below(&hostile->random, 16)
									      : wild(hostile));
		put(&request->timeout_ms, chance_below(&hostile->random, 2) ? 0 : wild(hostile));
		atomic_store(&request->state, chance_below(&hostile->random, 4) ? LEASE_REQUESTED : wild(hostile));
	}
	atomic_store(&hostile->session.header->requests_pending, ~UINT64_C(0));
}

/* Send valid requests, so that the session has pages. */
static void request_honest(struct hostile *hostile)
{
	struct lease_request *request = &hostile->session.requests[0];

	put(&request->kind, LEASE_TAKE);
	put(&request->need, 1 + chance_below(&hostile->random, 8));
	put(&request->extra, chance_below(&hostile->random, 16));
	put(&request->flags, chance_below(&hostile->random, 16) & ~(uint32_t)LEASE_CRITICAL);
	put(&request->timeout_ms, 0);
	atomic_store(&request->state, LEASE_REQUESTED);
	atomic_fetch_or(&hostile->session.header->requests_pending, 1);
	atomic_fetch_add(&hostile->stage->more[MORE_LEASED], 1);
}

static void header_wild(struct hostile *hostile)
{
	struct session_header *header = hostile->session.header;

	put(&header->magic, chance(&hostile->random));
	put(&header->page_count, wild(hostile));
	put(&header->session, wild(hostile));
	atomic_store(&header->pin_waiters, wild(hostile));
	atomic_store(&header->sequences, chance(&hostile->random));
	atomic_store(&header->closed, wild(hostile));
}

/* Fill the ring of records: the agent copies the last ones when the session ends. */
static void records_wild(struct hostile *hostile)
{
	const struct flight_ring *ring = &hostile->session.flight;

	for (uint32_t place = 0; place < ring->count; place++) {
		uint64_t *words = (uint64_t *)(void *)&ring->records[place];

		for (uint32_t i = 0; i < sizeof(ring->records[0]) / 8; i++)
			put(&words[i], chance(&hostile->random) >> chance_below(&hostile->random, 64));
		if (chance_below(&hostile->random, 2))
			atomic_store(&ring->records[place].serial,
				place + 1 + chance_below(&hostile->random, 9) * ring->count);
	}
	atomic_store(&ring->head->begun, chance(&hostile->random) >> chance_below(&hostile->random, 64));
}

static void one_flips(struct hostile *hostile)
{
	uint32_t page = any_page(hostile);

	for (int i = 0; i < 1000; i++) {
		block_lie(hostile, page);
		atomic_store(&hostile->session.pins[page], (uint32_t)i & 1);
		atomic_fetch_xor(&hostile->session.free_bits[page / 64], UINT64_C(1) << (page % 64));
	}
}

static void attack(struct hostile *hostile)
{
	static void (*const attacks[])(struct hostile *) = {random_bytes, free_bits_everywhere, pins_wild,
		blocks_everywhere, chain_in_a_cycle, requests_wild, request_honest, request_honest, header_wild,
		records_wild, one_flips};

	attacks[chance_below(&hostile->random, sizeof(attacks) / sizeof(*attacks))](hostile);
	atomic_fetch_add(&hostile->stage->more[MORE_ATTACKS], 1);
	if (chance_below(&hostile->random, 4)) {
		doorbell_ring(hostile->doorbell);
		atomic_fetch_add(&hostile->stage->more[MORE_RINGS], 1);
	}
}

static void *attack_forever(void *argument)
{
	for (;;)
		attack(argument);
	return NULL;
}

/* hostile_segment --hostile FD DIRECTORY SEED: run as the hostile process, with its own threads. */
static int hostile_main(char **arguments)
{
	struct honest_stage *stage = honest_stage_map(atoi(arguments[0]));
	uint64_t seed = strtoull(arguments[2], NULL, 0);
	struct hostile hostile = {.stage = stage, .random = seed, .careful = seed % 2};
	static struct hostile second;
	struct pollfd connection = {.events = POLLIN};
	pthread_t other;
	int error;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!stage)
		return 1;
	error = hostile_attach(&hostile, arguments[1]);
	if (error) {
		honest_wrong(stage, "the hostile worker cannot attach: %d, %s", error, gpool_strerror(error));
		return 1;
	}
	atomic_store(&stage->more[MORE_SESSION], hostile.id);
	atomic_fetch_add(&stage->more[MORE_SESSIONS], 1);
	second = hostile;
	second.random = ~seed;
	pthread_create(&other, NULL, attack_forever, &second);
	connection.fd = hostile.socket;
	while (poll(&connection, 1, 0) == 0)
		attack(&hostile);
	atomic_fetch_add(&stage->more[MORE_ENDED], 1);
	_exit(0); /* the agent has ended the session; the pages are freed when the process ends */
}

/* ---- the test ---- */

static pid_t hostile_start(int stage_fd, const char *directory, uint64_t *random)
{
	char fd_text[16], seed_text[32];
	pid_t pid;

	snprintf(fd_text, sizeof(fd_text), "%d", stage_fd);
	snprintf(seed_text, sizeof(seed_text), "%" PRIu64, chance(random));
	pid = fork();
	if (pid == 0) {
		execl("/proc/self/exe", "hostile_segment", "--hostile", fd_text, directory, seed_text, (char *)NULL);
		_exit(127);
	}
	return pid;
}

static bool was_real(struct honest_stage *stage, double seconds)
{
	return seconds < 2 || (stage->more[MORE_ATTACKS] && stage->more[MORE_ENDED] && stage->verified);
}

/*
 * Run one hostile process after the other, and kill some of them, until the time is over. The last one is stopped and
 * remains.
 */
static pid_t hostiles_run(
	struct honest_stage *stage, int stage_fd, const char *directory, double seconds, uint64_t *random)
{
	uint64_t begin = clock_ns(), length = (uint64_t)(seconds * 1e9);
	pid_t pid = -1;

	while (clock_ns() - begin < length * STRESS_LONGEST && !atomic_load(&stage->wrong)) {
		struct pollfd ended;

		pid = hostile_start(stage_fd, directory, random);
		if (pid < 0)
			return -1;
		ended = (struct pollfd){.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
		poll(&ended, 1, 200 + (int)chance_below(random, 800));
		close(ended.fd);
		if (clock_ns() - begin >= length && was_real(stage, seconds))
			break;
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		pid = -1;
	}
	return pid;
}

int main(int argc, char **argv)
{
	struct stress_arguments arguments = {.seconds = 10, .workers = 3, .usage = "[SECONDS [SEED]] [--workers N]"};
	struct honest_crew crew = {0};
	struct stress_agent agent;
	int stage_fd;
	pid_t last;
	bool clean;

	if (argc == 5 && !strcmp(argv[1], "--hostile"))
		return hostile_main(argv + 2);
	if (!stress_arguments_read(argc, argv, &arguments) || arguments.workers > HONEST_MOST)
		return 2;
	stage_fd = honest_stage_create();
	crew.stage = honest_stage_map(stage_fd);
	if (!crew.stage || !stress_agent_start(&agent, PAGES, NULL))
		return 1;
	clean = honest_start(&crew, agent.directory, arguments.workers, HONEST_BUDGET, &arguments.seed);
	last = hostiles_run(crew.stage, stage_fd, agent.directory, arguments.seconds, &arguments.seed);
	if (last > 0)
		kill(last, SIGSTOP);
	clean = honest_stand_still(&crew) && clean;
	/* Findings are permitted only for the hostile session, if it still exists. */
	clean = stress_agent_check_except(&agent, (uint32_t)atomic_load(&crew.stage->more[MORE_SESSION])) && clean;
	if (last > 0) {
		kill(last, SIGKILL);
		waitpid(last, NULL, 0);
	}
	clean = honest_end(&crew) && clean;
	clean = stress_agent_wait_free(&agent) && clean;
	clean = stress_agent_check(&agent, true) && clean;
	clean = stress_agent_same(&agent) && clean;
	printf("%" PRIu64 " attacks, %" PRIu64 " rings, %" PRIu64 " sessions, %" PRIu64
	       " of them ended by the agent; honest: %" PRIu64 " allocations, %" PRIu64 " refused, %" PRIu64
	       " verified, %" PRIu64 " stale; %u violations\n",
		crew.stage->more[MORE_ATTACKS], crew.stage->more[MORE_RINGS], crew.stage->more[MORE_SESSIONS],
		crew.stage->more[MORE_ENDED], crew.stage->allocations, crew.stage->refusals, crew.stage->verified,
		crew.stage->stale, atomic_load(&crew.stage->wrong));
	if (!was_real(crew.stage, arguments.seconds)) {
		printf("no attack, no ended session, or no honest content\n");
		clean = false;
	}
	clean = stress_agent_stop(&agent, clean);
	return clean ? 0 : 1;
}
