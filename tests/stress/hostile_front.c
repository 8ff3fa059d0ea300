/*
 * hostile_front.c - programs send malformed data to the nanomsg sockets, while honest workers run.
 *
 * Goal: at most the front dies, and is restarted. The agent's process does not change, the workers' hot path is not
 * affected, control requests work again afterwards, and no process leaks descriptors. Method: attackers connect to both
 * sockets directly and send data that an honest peer never would: invalid greetings, headers with wrong type bytes,
 * lengths up to 2^64 - 1, partial messages, valid frames with invalid messages, descriptors with any message, hundreds
 * of connections. Meanwhile, honest workers verify their contents. Then descriptors are counted and requests are sent
 * to the agent.
 *
 * usage: hostile_front [SECONDS [SEED]] [--workers N]
 *
 * Requirements: S10.
 */
#include "proto/codec.h"
#include "tests/stress/honest.h"
#include "tests/stress/stress_agent.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
	PAGES = 256,
	HONEST_BUDGET = 40, /* the pool stays below any pressure, so no block is evicted */
	ATTACKERS = 2,
	CROWD = 120,   /* concurrent connections */
	ATTACHED = 40, /* descriptors sent with a message */
	FRONT_DESCRIPTORS = 256,
	FRAME_HEAD = 9,
};
enum more { MORE_ATTACKS, MORE_CONNECTIONS, MORE_REFUSED };

struct attacker {
	struct honest_stage *stage;
	uint64_t random;
	char path[108];
	bool events;
	int spare; /* a descriptor to send */
};

/* ---- connections without nanomsg ---- */

static int dial(struct attacker *attacker)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_usec = 100000};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	strcpy(address.sun_path, attacker->path);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		close(fd);
		atomic_fetch_add(&attacker->stage->more[MORE_REFUSED], 1);
		return -1;
	}
	atomic_fetch_add(&attacker->stage->more[MORE_CONNECTIONS], 1);
	return fd;
}

static void put(int fd, const void *bytes, size_t length)
{
	/* The peer has disconnected: nothing more to do. */
	if (send(fd, bytes, length, MSG_NOSIGNAL) < 0)
		return;
}

/* Send "\0SP\0", the protocol, and two more bytes: the greeting of nanomsg peers. */
static void greet(struct attacker *attacker, int fd)
{
	static const uint8_t subscriber[] = {0, 'S', 'P', 0, 0, 0x21, 0, 0},
			     requester[] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};

	put(fd, attacker->events ? subscriber : requester, 8);
}

static void head(uint8_t to[FRAME_HEAD], uint8_t type, uint64_t length)
{
	to[0] = type;
	for (int i = 0; i < 8; i++)
		to[1 + i] = (uint8_t)(length >> (56 - 8 * i));
}

static void random_fill(struct attacker *attacker, uint8_t *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)chance(&attacker->random);
}

/* Let the peer read the data, or disconnect. */
static void linger(int fd)
{
	char byte;

	while (recv(fd, &byte, 1, 0) > 0)
		;
}

/* ---- attacks; each uses a new connection ---- */

static void wrong_greeting(struct attacker *attacker, int fd)
{
	uint8_t bytes[64];

	random_fill(attacker, bytes, sizeof(bytes));
	put(fd, bytes, 1 + chance_below(&attacker->random, sizeof(bytes)));
}

static void wrong_type(struct attacker *attacker, int fd)
{
	uint8_t bytes[FRAME_HEAD];

	greet(attacker, fd);
	head(bytes, (uint8_t)(2 + chance_below(&attacker->random, 254)), 16);
	put(fd, bytes, sizeof(bytes));
}

static void huge_length(struct attacker *attacker, int fd)
{
	static const uint64_t lengths[] = {
		UINT64_MAX, INT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 40, UINT32_MAX, 1 << 20};
	uint8_t bytes[FRAME_HEAD + 64];

	greet(attacker, fd);
	random_fill(attacker, bytes, sizeof(bytes));
	head(bytes, 1, lengths[chance_below(&attacker->random, sizeof(lengths) / sizeof(*lengths))]);
	put(fd, bytes, sizeof(bytes));
	linger(fd);
}

static void half_message(struct attacker *attacker, int fd)
{
	uint8_t bytes[FRAME_HEAD + 256];

	greet(attacker, fd);
	random_fill(attacker, bytes, sizeof(bytes));
	head(bytes, 1, 256);
	put(fd, bytes, 1 + chance_below(&attacker->random, sizeof(bytes) - 1));
}

/* A frame that nanomsg accepts, with a message that gpool's codec must reject. */
static void wrong_message(struct attacker *attacker, int fd)
{
	uint8_t bytes[FRAME_HEAD + 4 + 512];
	size_t length = chance_below(&attacker->random, 512);

	greet(attacker, fd);
	random_fill(attacker, bytes, sizeof(bytes));
	head(bytes, 1, 4 + length);
	bytes[FRAME_HEAD] |= 0x80; /* a request id ends the stack of ids */
	if (chance_below(&attacker->random, 2) && length >= MSG_ENVELOPE_BYTES) {
		struct msg_status_request request = {0};

		if (msg_encode_status_request(&request, chance(&attacker->random), NULL, bytes + FRAME_HEAD + 4, 512) >
			0)
			bytes[FRAME_HEAD + 4 + chance_below(&attacker->random, MSG_ENVELOPE_BYTES)] ^= 1;
	}
	put(fd, bytes, FRAME_HEAD + 4 + length);
	linger(fd);
}

static void with_descriptors(struct attacker *attacker, int fd)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(ATTACHED * sizeof(int))];
	} control;
	uint8_t bytes[FRAME_HEAD + 32];
	struct iovec part = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header;

	memset(&control, 0, sizeof(control));
	header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(ATTACHED * sizeof(int));
	for (int i = 0; i < ATTACHED; i++)
		memcpy(CMSG_DATA(header) + (size_t)i * sizeof(int), &attacker->spare, sizeof(int));
	greet(attacker, fd);
	random_fill(attacker, bytes, sizeof(bytes));
	head(bytes, 1, 32);
	bytes[FRAME_HEAD] |= 0x80;
	if (sendmsg(fd, &message, MSG_NOSIGNAL) < 0)
		return;
	linger(fd);
}

static void crowd(struct attacker *attacker, int fd)
{
	int fds[CROWD];
	int count = 0;

	(void)fd;
	while (count < CROWD && (fds[count] = dial(attacker)) >= 0) {
		if (chance_below(&attacker->random, 2))
			greet(attacker, fds[count]);
		count++;
	}
	while (count)
		close(fds[--count]);
}

static void attack(struct attacker *attacker)
{
	static void (*const attacks[])(struct attacker *, int) = {wrong_greeting, wrong_type, huge_length, half_message,
		wrong_message, with_descriptors, with_descriptors, crowd};
	int fd = dial(attacker);

	if (fd < 0) {
		poll(NULL, 0, 2); /* the front is being restarted: wait instead of retrying at once */
		return;
	}
	attacks[chance_below(&attacker->random, sizeof(attacks) / sizeof(*attacks))](attacker, fd);
	close(fd);
	atomic_fetch_add(&attacker->stage->more[MORE_ATTACKS], 1);
}

static _Noreturn void attacker_main(struct honest_stage *stage, const char *directory, bool events, uint64_t seed)
{
	struct attacker attacker = {.stage = stage, .random = seed, .events = events};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(attacker.path, sizeof(attacker.path), "%s/nn/%s", directory, events ? "events" : "control");
	attacker.spare = memfd_create("given-away", MFD_CLOEXEC);
	for (;;)
		attack(&attacker);
}

/* ---- the test ---- */

static void storm(struct honest_stage *stage, const struct stress_agent *agent, double seconds, uint64_t *random)
{
	pid_t pids[ATTACKERS];

	for (int i = 0; i < ATTACKERS; i++) {
		uint64_t seed = chance(random);

		pids[i] = fork();
		if (pids[i] == 0)
			attacker_main(stage, agent->directory, i % 2, seed);
	}
	/* This wait is the length of the test. */
	poll(NULL, 0, (int)(seconds * 1000));
	for (int i = 0; i < ATTACKERS; i++)
		if (pids[i] > 0) {
			kill(pids[i], SIGKILL);
			waitpid(pids[i], NULL, 0);
		}
}

static bool no_more_than(const char *who, pid_t pid, int before, int allowed)
{
	int now = stress_descriptors(pid);

	/* A connection's descriptors are closed when its end has been detected. */
	for (int tries = 0; now > allowed && tries < 6000; tries++) {
		poll(NULL, 0, 10);
		now = stress_descriptors(pid);
	}
	printf("descriptors of %s: %d before, %d after\n", who, before, now);
	return now >= 0 && now <= allowed;
}

int main(int argc, char **argv)
{
	struct stress_arguments arguments = {.seconds = 10, .workers = 3, .usage = "[SECONDS [SEED]] [--workers N]"};
	static const char *const settings[] = {"limits.sessions=64", NULL};
	struct rlimit no_core = {0, 0};
	struct honest_crew crew = {0};
	struct stress_agent agent;
	int keeper, policy, front;
	uint32_t restarts = 0;
	pid_t front_pid = 0;
	bool clean;

	if (!stress_arguments_read(argc, argv, &arguments) || arguments.workers > HONEST_MOST)
		return 2;
	setrlimit(RLIMIT_CORE, &no_core); /* many fronts end in abort() */
	crew.stage = honest_stage_map(honest_stage_create());
	if (!crew.stage || !stress_agent_start(&agent, PAGES, settings))
		return 1;
	clean = honest_start(&crew, agent.directory, arguments.workers, HONEST_BUDGET, &arguments.seed);
	keeper = stress_keeper_descriptors(&agent, arguments.workers + 1); /* the workers and the observer */
	clean = keeper >= 0 && clean;
	policy = stress_descriptors(agent.pid);
	front = stress_descriptors(agent.front);
	storm(crew.stage, &agent, arguments.seconds, &arguments.seed);
	clean = honest_stand_still(&crew) && clean;
	/* The agent answers again through the current front; its process has not changed. */
	clean = stress_agent_same(&agent) && clean;
	clean = stress_agent_front(&agent, &front_pid, &restarts) && clean;
	clean = stress_agent_check(&agent, true) && clean;
	clean = no_more_than("the keeper", agent.keeper, keeper, keeper) && clean;
	clean = no_more_than("the agent", agent.pid, policy, policy) && clean;
	clean = no_more_than("the front", front_pid, front, FRONT_DESCRIPTORS + front) && clean;
	clean = honest_end(&crew) && clean;
	clean = stress_agent_wait_free(&agent) && clean;
	printf("%" PRIu64 " attacks, %" PRIu64 " connections, %" PRIu64
	       " refused, %u restarts of the front; honest: %" PRIu64 " allocations, %" PRIu64 " refused, %" PRIu64
	       " verified, %" PRIu64 " stale, slowest pin %.3f ms; %u violations\n",
		crew.stage->more[MORE_ATTACKS], crew.stage->more[MORE_CONNECTIONS], crew.stage->more[MORE_REFUSED],
		restarts, crew.stage->allocations, crew.stage->refusals, crew.stage->verified, crew.stage->stale,
		(double)crew.stage->slowest_ns / 1e6, atomic_load(&crew.stage->wrong));
	/*
	 * All workers fit into the pool, so no request may be refused and no block evicted, whatever the attackers do.
	 */
	if (crew.stage->refusals || crew.stage->stale || !crew.stage->more[MORE_ATTACKS]) {
		printf("the workers noticed, or there was nothing to notice\n");
		clean = false;
	}
	return stress_agent_stop(&agent, clean) ? 0 : 1;
}
