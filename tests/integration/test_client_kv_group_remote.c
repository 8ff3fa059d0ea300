/*
 * test_client_kv_group_remote.c - sequences that extend over caches of several processes.
 *
 * Goal: each worker process has its range of a sequence's tokens, across forks, preemptions, and appends that cross the
 * boundary between ranges. A call that a worker refuses changes nothing in any process. Growth preempts sequences in
 * all processes, by order or policy, and no more than needed. Without a worker, calls that need it fail, and the others
 * succeed. No bytes of an order or an answer can do harm.
 *
 * Method: the first cache is in the test's process, the others in workers that execute orders from a socket; or all are
 * in workers. Workers also write and check the content of their tokens.
 *
 * Requirements: K14, K16.
 */
#include "tests/integration/kv_view.h"

#include <sys/socket.h>

enum { WORKERS = 3, RANGE = 40, MESSAGES = 3000 };

/* A message to a worker that is not an order. */
struct content {
	uint64_t sequence, content;
	uint32_t count, write, used_blocks, wrong;
};

struct remote {
	pid_t pid;
	int channel;
	uint32_t orders;
};

static struct remote remotes[WORKERS];
static struct gpool_kv_group *group;
static uint64_t seed = 88172645463325252;

static uint32_t any(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 16) % below;
}

/* ---- a worker ---- */

static void content_do(struct content *content)
{
	if (content->write)
		write_tokens(content->sequence, 0, content->count, content->content);
	else if (content->count)
		content->wrong = wrong_tokens(content->sequence, 0, content->count, content->content);
	content->used_blocks = statistics().used_blocks;
}

/* argv: program, "worker", directory, blocks, channel */
static int worker_main(char **arguments)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool_kv_options kv_options;
	union {
		struct gpool_kv_order order;
		struct content content;
	} message;
	int channel = atoi(arguments[4]);
	ssize_t bytes = 1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	options.directory = arguments[2];
	options.timeout_ms = ANSWER_MS;
	options.magazine = 1;
	if (gpool_open(&options, &worker) || gpool_stream_open(worker, NULL, 0, &stream))
		return 1;
	kv_options = small_options((uint32_t)atoi(arguments[3]));
	if (gpool_kv_create(worker, &kv_options, &kv))
		return 1;
	memset(&message, 0, sizeof(message));
	while (write(channel, &message, (size_t)bytes) == bytes &&
		(bytes = read(channel, &message, sizeof(message))) > 0) {
		if (bytes == sizeof(message.content))
			content_do(&message.content);
		else if (gpool_kv_execute(kv, &message.order))
			return 1;
	}
	gpool_close(worker);
	return 0;
}

/* ---- the workers as the test sees them ---- */

static struct remote *remote_start(uint32_t blocks)
{
	struct remote *remote = remotes;
	char channel[16], blocks_text[16];
	int ends[2];

	while (remote < remotes + WORKERS && remote->pid)
		remote++;
	assert_true(remote < remotes + WORKERS);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	fflush(stdout);
	remote->pid = fork();
	assert_true(remote->pid >= 0);
	if (remote->pid == 0) {
		snprintf(channel, sizeof(channel), "%d", ends[1]);
		snprintf(blocks_text, sizeof(blocks_text), "%u", blocks);
		fcntl(ends[1], F_SETFD, 0);
		execl("/proc/self/exe", "worker", "worker", harness.directory, blocks_text, channel, NULL);
		_exit(127);
	}
	close(ends[1]);
	remote->channel = ends[0];
	remote->orders = 0;
	assert_int_equal(read(remote->channel, channel, 1), 1); /* the cache exists */
	return remote;
}

static void remote_kill(struct remote *remote)
{
	kill(remote->pid, SIGKILL);
	assert_int_equal(waitpid(remote->pid, NULL, 0), remote->pid);
	remote->pid = 0;
}

static int remote_send(void *context, struct gpool_kv_order *order)
{
	struct remote *remote = context;

	remote->orders++;
	return send(remote->channel, order, sizeof(*order), MSG_NOSIGNAL) == sizeof(*order) &&
			read(remote->channel, order, sizeof(*order)) == sizeof(*order)
		? 0
		: -EPIPE;
}

static struct content content_ask(const struct remote *remote, struct content content)
{
	assert_int_equal(write(remote->channel, &content, sizeof(content)), sizeof(content));
	assert_int_equal(read(remote->channel, &content, sizeof(content)), sizeof(content));
	return content;
}

static uint32_t used_by(const struct remote *remote)
{
	return content_ask(remote, (struct content){.count = 0}).used_blocks;
}

static struct gpool_kv_member member_of(struct remote *remote)
{
	return (struct gpool_kv_member){.size = sizeof(struct gpool_kv_member), .send = remote_send, .context = remote};
}

/* A group of a cache of this process and two others, with 64, `blocks` and 64 blocks. */
static void group_start(uint32_t blocks)
{
	struct gpool_kv_member members[3] = {{.size = sizeof(members[0])}};

	kv_start(calm, 64);
	members[0].cache = kv;
	members[1] = member_of(remote_start(blocks));
	members[2] = member_of(remote_start(64));
	assert_int_equal(gpool_kv_group_create_members(members, 3, RANGE, &group), 0);
}

static int group_stop(void **state)
{
	gpool_kv_group_destroy(group);
	group = NULL;
	for (int i = 0; i < WORKERS; i++) {
		if (remotes[i].pid)
			remote_kill(&remotes[i]);
		if (remotes[i].channel)
			close(remotes[i].channel);
		remotes[i] = (struct remote){0};
	}
	return kv_stop(state);
}

static int try_group(uint32_t tokens, uint32_t priority, uint64_t *sequence)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;

	request.tokens = tokens;
	request.priority = priority;
	return gpool_kv_group_allocate(group, &request, sequence);
}

static uint64_t grouped(uint32_t tokens, uint32_t priority)
{
	uint64_t sequence = 0;

	assert_int_equal(try_group(tokens, priority, &sequence), 0);
	return sequence;
}

static struct gpool_kv_span span_of(uint64_t sequence, uint32_t member)
{
	struct gpool_kv_span span = {.size = sizeof(span)};

	assert_int_equal(gpool_kv_group_span(group, sequence, member, &span), 0);
	return span;
}

/* Write or check the tokens of a sequence in the workers' caches. */
static uint32_t contents(uint64_t sequence, uint64_t content, bool write)
{
	uint32_t wrong = 0;

	for (uint32_t i = 0; i < 2; i++) {
		struct gpool_kv_span span = span_of(sequence, i + 1);

		if (span.sequence)
			wrong += content_ask(
				&remotes[i], (struct content){span.sequence, content, span.tokens, write, 0, 0})
					 .wrong;
	}
	return wrong;
}

/* ---- tests ---- */

static void test_ranges(void **state)
{
	uint64_t sequence, child, slot;
	uint32_t member;

	(void)state;
	group_start(16);
	sequence = grouped(RANGE - 1, 0);
	assert_int_equal(span_of(sequence, 1).sequence, 0);
	/* The append crosses the boundary. */
	assert_int_equal(gpool_kv_group_append(group, sequence, 3, &member, &slot), 0);
	assert_int_equal(member, 0);
	assert_int_equal(gpool_kv_group_append(group, sequence, 50, &member, &slot), 0);
	assert_int_equal(member, 1);
	assert_int_equal(slot, 2);
	assert_int_equal(span_of(sequence, 0).tokens, RANGE);
	assert_int_equal(span_of(sequence, 1).tokens, RANGE);
	assert_int_equal(span_of(sequence, 2).tokens, 12);
	assert_int_equal(span_of(sequence, 2).first_token, 2 * RANGE);
	assert_int_equal(used_by(&remotes[0]), 10);
	assert_int_equal(used_by(&remotes[1]), 3);
	contents(sequence, 7, true);
	assert_int_equal(contents(sequence, 7, false), 0);
	/* A fork shares the blocks in all processes. Its append copies the last one where it is. */
	assert_int_equal(gpool_kv_group_fork(group, sequence, &child), 0);
	assert_int_equal(used_by(&remotes[1]), 3);
	assert_int_equal(gpool_kv_group_append(group, child, 1, &member, &slot), 0);
	assert_int_equal(member, 2);
	assert_int_equal(contents(sequence, 7, false), 0);
	/* Preempted in all processes, and resumed in all. */
	assert_int_equal(gpool_kv_group_free(group, child), 0);
	assert_int_equal(gpool_kv_group_preempt(group, 0, &child), 10 + 10 + 3);
	assert_int_equal(child, sequence);
	assert_int_equal(used_by(&remotes[0]) + used_by(&remotes[1]), 0);
	assert_int_equal(gpool_kv_group_append(group, sequence, 1, NULL, NULL), -EAGAIN);
	assert_int_equal(gpool_kv_group_resume(group, sequence), 0);
	assert_int_equal(span_of(sequence, 2).tokens, 12);
	assert_int_equal(gpool_kv_group_free(group, sequence), 0);
	assert_int_equal(used_by(&remotes[0]) + used_by(&remotes[1]), 0);
}

/* The second cache has 16 blocks, for 64 tokens. */
static void test_all_or_nothing(void **state)
{
	struct gpool_kv_need need = {.size = sizeof(need)};
	uint64_t first, second, third;
	uint32_t member;

	(void)state;
	group_start(16);
	first = grouped(2 * RANGE, 0);
	second = grouped(RANGE + 20, 0);
	assert_int_equal(used_by(&remotes[0]), 15);
	assert_int_equal(gpool_kv_group_can_allocate(group, 2 * RANGE, &member, &need), GPOOL_KV_LATER);
	assert_int_equal(member, 1);
	assert_int_equal(need.needed_blocks, 10);
	assert_int_equal(need.available_blocks, 1);
	assert_int_equal(try_group(2 * RANGE, 0, &third), -ENOSPC);
	assert_int_equal(gpool_kv_group_oom_info(group, &member, &need), 0);
	assert_int_equal(member, 1);
	assert_int_equal(need.needed_blocks, 10);
	assert_int_equal(statistics().used_blocks, 20);
	assert_int_equal(statistics().running, 2);
	/* An append that begins in the third cache is undone there. */
	assert_int_equal(gpool_kv_group_append(group, second, 30, NULL, NULL), -ENOSPC);
	assert_int_equal(used_by(&remotes[1]), 0);
	assert_int_equal(span_of(second, 1).tokens, 20);
	assert_int_equal(gpool_kv_group_free(group, first), 0);
	assert_int_equal(gpool_kv_group_append(group, second, 30, NULL, NULL), 0);
	assert_int_equal(span_of(second, 2).tokens, 10);
}

/* ---- growth ---- */

enum { VICTIMS = 4 };

static uint64_t victims[VICTIMS];

static int grow(uint64_t sequence, uint32_t tokens, const struct gpool_kv_growth *growth)
{
	struct gpool_kv_growth plain = GPOOL_KV_GROWTH_INIT;

	plain.most = VICTIMS;
	memset(victims, 0xff, sizeof(victims));
	return gpool_kv_group_grow(group, sequence, tokens, growth ? growth : &plain, NULL, NULL, victims);
}

static bool runs(uint64_t sequence)
{
	return info_of(sequence).state == GPOOL_KV_RUNNING;
}

/* The second cache has 16 blocks. No sequence without a part there, or outside the group, is preempted for it. */
static void test_growth(void **state)
{
	uint64_t high, low, late, small, alone, slot;
	uint32_t member;

	(void)state;
	group_start(16);
	high = grouped(RANGE + 4, 9);
	low = grouped(2 * RANGE, 1);
	late = grouped(RANGE + 16, 1);
	small = grouped(8, 0);
	alone = allocated(8, 0, 0);
	contents(high, 3, true);
	assert_int_equal(used_by(&remotes[0]), 15);
	/* There is a free block, so none is preempted. */
	assert_int_equal(gpool_kv_group_grow(group, high, 4, NULL, &member, &slot, NULL), 0);
	assert_int_equal(member, 1);
	assert_int_equal(slot % BLOCK_TOKENS, 0);
	assert_int_equal(grow(high, 4, NULL), 1);
	assert_int_equal(victims[0], late);
	assert_int_equal(victims[1], 0);
	assert_false(runs(late));
	assert_true(runs(low) && runs(small) && runs(alone));
	assert_int_equal(used_by(&remotes[0]), 13);
	/* An append to two caches: nothing remains in the third one, whatever the second one refuses. */
	assert_int_equal(grow(high, RANGE, NULL), 1);
	assert_int_equal(victims[0], low);
	assert_true(runs(small) && runs(alone));
	assert_int_equal(span_of(high, 1).tokens, RANGE);
	assert_int_equal(span_of(high, 2).tokens, 12);
	assert_int_equal(used_by(&remotes[0]), 10);
	assert_int_equal(used_by(&remotes[1]), 3);
	assert_int_equal(content_ask(&remotes[0], (struct content){span_of(high, 1).sequence, 3, 4, 0, 0, 0}).wrong, 0);
	/* The preempted sequences are resumed in all caches or in none. */
	assert_int_equal(gpool_kv_group_resume(group, low), -ENOSPC);
	assert_int_equal(gpool_kv_group_resume(group, late), 0);
	assert_int_equal(span_of(late, 1).tokens, 16);
}

/* Neither a sequence that is itself the next one nor a sequence that can never fit preempts another. */
static void test_growth_is_refused(void **state)
{
	struct gpool_kv_growth growth = GPOOL_KV_GROWTH_INIT;
	struct gpool_kv_need need = {.size = sizeof(need)};
	uint64_t first, second, third, top;
	uint32_t member;

	(void)state;
	group_start(16);
	first = grouped(2 * RANGE + 4, 1);
	second = grouped(RANGE + 8, 1);
	third = grouped(RANGE + 8, 1);
	top = grouped(RANGE + 8, 9);
	assert_int_equal(used_by(&remotes[0]), 16);
	assert_int_equal(grow(third, 4, NULL), -ENOSPC);
	assert_int_equal(victims[0], 0);
	assert_int_equal(gpool_kv_group_oom_info(group, &member, &need), 0);
	assert_int_equal(member, 1);
	assert_int_equal(need.needed_blocks, 1);
	/* The order permits one victim, and later the caller. One is not enough. */
	assert_int_equal(grow(second, 16, NULL), -ENOSPC);
	assert_int_equal(victims[0], third);
	assert_int_equal(victims[1], 0);
	growth.most = 1;
	assert_int_equal(grow(top, 20, &growth), -ENOSPC);
	assert_int_equal(victims[0], second);
	assert_true(runs(first) && !runs(second) && !runs(third));
	assert_int_equal(span_of(top, 1).tokens, 8);
	/* The third cache has 64 blocks. One more than that is needed. */
	assert_int_equal(grow(first, 64 * BLOCK_TOKENS, NULL), -EFBIG);
	assert_int_equal(victims[0], 0);
	assert_int_equal(gpool_kv_group_oom_info(group, &member, &need), 0);
	assert_int_equal(member, 2);
	assert_int_equal(need.needed_blocks, 65);
	assert_true(runs(top));
	assert_int_equal(grow(third, 1, NULL), -EAGAIN);
	assert_int_equal(grow(first, 0, NULL), -EINVAL);
	assert_int_equal(grow(7, 1, NULL), -EINVAL);
	growth.flags = GPOOL_KV_GROW_OFFLOAD;
	assert_int_equal(grow(first, 1, &growth), -EOPNOTSUPP);
	growth.flags = 2;
	assert_int_equal(grow(first, 1, &growth), -EINVAL);
	growth = (struct gpool_kv_growth)GPOOL_KV_GROWTH_INIT;
	assert_int_equal(grow(first, 1, &growth), -EINVAL); /* victims without `most` */
	assert_int_equal(span_of(first, 2).tokens, 4);
}

/* ---- policies ---- */

static struct {
	uint64_t returned;
	uint32_t calls, member;
	int code;
	bool end;
} policy;

static int choose(void *context, uint64_t sequence, uint64_t *victim)
{
	struct gpool_kv_need need = {.size = sizeof(need)};

	assert_ptr_equal(context, &policy);
	assert_int_equal(*victim, 0);
	policy.calls++;
	/* The group can be used in the meantime. */
	assert_int_equal(gpool_kv_group_oom_info(group, &policy.member, &need), 0);
	if (policy.end)
		assert_int_equal(gpool_kv_group_free(group, sequence), 0);
	*victim = policy.returned;
	return policy.code;
}

static struct gpool_kv_growth policy_of(uint64_t returned, int code)
{
	struct gpool_kv_growth growth = GPOOL_KV_GROWTH_INIT;

	memset(&policy, 0, sizeof(policy));
	policy.returned = returned;
	policy.code = code;
	growth.most = VICTIMS;
	growth.choose = choose;
	growth.context = &policy;
	return growth;
}

static void test_growth_by_policy(void **state)
{
	struct gpool_kv_growth growth;
	uint64_t high, low, late, alone;

	(void)state;
	group_start(16);
	high = grouped(2 * RANGE, 9);
	low = grouped(RANGE + 16, 1);
	late = grouped(RANGE + 8, 1);
	alone = allocated(8, 0, 0);
	growth = policy_of(high, 0);
	assert_int_equal(grow(late, 4, &growth), 1);
	assert_int_equal(policy.calls, 1);
	assert_int_equal(policy.member, 1);
	assert_int_equal(victims[0], high);
	assert_true(runs(low) && !runs(high));
	/* The second cache is full again. */
	grouped(RANGE + 36, 5);
	growth = policy_of(high, 0);
	assert_int_equal(grow(late, 4, &growth), -EINVAL); /* it is preempted */
	growth = policy_of(alone, 0);
	assert_int_equal(grow(late, 4, &growth), -EINVAL); /* it is not of the group */
	growth = policy_of(late, 0);
	assert_int_equal(grow(late, 4, &growth), -ENOSPC);
	growth = policy_of(low, -ECANCELED);
	assert_int_equal(grow(late, 4, &growth), -ECANCELED);
	growth = policy_of(low, 1);
	assert_int_equal(grow(late, 4, &growth), -EINVAL);
	assert_true(runs(low) && runs(late) && runs(alone));
	assert_int_equal(span_of(late, 1).tokens, 12);
	growth = policy_of(low, 0);
	policy.end = true;
	assert_int_equal(grow(late, 4, &growth), -ESTALE);
	assert_true(runs(low));
	assert_int_equal(used_by(&remotes[0]), 4 + 9);
}

/* A victim with a part in a lost process is preempted where it can be. A lost cache that must grow is an error. */
static void test_growth_without_a_worker(void **state)
{
	uint64_t high, low;

	(void)state;
	group_start(16);
	high = grouped(RANGE + 20, 9);
	low = grouped(2 * RANGE + 4, 1);
	remote_kill(&remotes[1]);
	assert_int_equal(grow(high, 8, NULL), 1);
	assert_int_equal(victims[0], low);
	assert_int_equal(used_by(&remotes[0]), 7);
	assert_int_equal(grow(high, RANGE, NULL), -EPIPE);
	assert_int_equal(span_of(high, 1).tokens, 28);
	assert_int_equal(gpool_kv_group_free(group, low), 0);
}

/* All caches are in other processes, as for a scheduler that has no cache. */
static void test_without_a_cache_here(void **state)
{
	struct gpool_kv_member members[2];
	uint64_t sequence, other;

	(void)state;
	worker_open(calm);
	members[0] = member_of(remote_start(16));
	members[1] = member_of(remote_start(16));
	assert_int_equal(gpool_kv_group_create_members(members, 2, RANGE, &group), 0);
	sequence = grouped(RANGE + 10, 0);
	assert_int_equal(used_by(&remotes[0]), 10);
	assert_int_equal(used_by(&remotes[1]), 3);
	other = grouped(4, 0);
	assert_int_equal(try_group(RANGE, 0, &(uint64_t){0}), -ENOSPC);
	assert_int_equal(gpool_kv_group_free(group, other), 0);
	assert_int_equal(gpool_kv_group_free(group, other), -ESTALE);
	assert_int_equal(gpool_kv_group_free(group, sequence), 0);
	assert_int_equal(used_by(&remotes[0]) + used_by(&remotes[1]), 0);
}

static void test_a_worker_dies(void **state)
{
	uint64_t whole, two, one, next;
	uint32_t orders;

	(void)state;
	group_start(64);
	whole = grouped(2 * RANGE + 4, 0);
	two = grouped(RANGE + 4, 0);
	one = grouped(8, 0);
	remote_kill(&remotes[1]);
	/* Sequences that have no tokens in the lost worker can still be used. */
	assert_int_equal(gpool_kv_group_append(group, one, 1, NULL, NULL), 0);
	assert_int_equal(gpool_kv_group_append(group, two, 1, NULL, NULL), 0);
	assert_int_equal(gpool_kv_group_append(group, whole, 1, NULL, NULL), -EPIPE);
	assert_int_equal(try_group(2 * RANGE + 4, 0, &next), -EPIPE);
	assert_int_equal(statistics().running, 3);
	assert_int_equal(used_by(&remotes[0]), 12);
	/* Nothing is sent to it again. */
	orders = remotes[1].orders;
	assert_int_equal(gpool_kv_group_can_allocate(group, 2 * RANGE + 4, NULL, NULL), -EPIPE);
	assert_int_equal(gpool_kv_group_fork(group, whole, &next), -EPIPE);
	assert_int_equal(gpool_kv_group_free(group, whole), 0);
	assert_int_equal(remotes[1].orders, orders);
	assert_int_equal(used_by(&remotes[0]), 2);
	assert_int_equal(statistics().running, 2);
	assert_int_equal(gpool_kv_group_fork(group, two, &next), 0);
	assert_int_equal(gpool_kv_group_can_allocate(group, 2 * RANGE, NULL, NULL), GPOOL_KV_OK);
}

/* A worker that is lost between two appends of one call: the sequence can then only be freed. */
static int send_until(void *context, struct gpool_kv_order *order)
{
	struct remote *remote = context;

	return order->verb == GPOOL_KV_ORDER_APPEND ? -ETIMEDOUT : remote_send(remote, order);
}

static void test_torn(void **state)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_member members[2] = {{.size = sizeof(members[0])}};
	uint64_t sequence, child;

	(void)state;
	kv_start(calm, 64);
	members[0].cache = kv;
	members[1] = member_of(remote_start(64));
	members[1].send = send_until;
	assert_int_equal(gpool_kv_group_create_members(members, 2, RANGE, &group), 0);
	request.tokens = RANGE - 2;
	request.estimated_tokens = 2 * RANGE;
	assert_int_equal(gpool_kv_group_allocate(group, &request, &sequence), 0);
	assert_int_equal(gpool_kv_group_append(group, sequence, 4, NULL, NULL), -ETIMEDOUT);
	assert_int_equal(gpool_kv_group_append(group, sequence, 1, NULL, NULL), -ECONNRESET);
	assert_int_equal(gpool_kv_group_fork(group, sequence, &child), -ECONNRESET);
	assert_int_equal(gpool_kv_group_free(group, sequence), 0);
	assert_int_equal(statistics().used_blocks, 0);
}

/* ---- hostile bytes ---- */

static int lie(void *context, struct gpool_kv_order *order)
{
	struct remote *remote = context;
	unsigned char *bytes = (unsigned char *)order;
	int error = remote_send(remote, order);

	if (error || remote->orders == 1)
		return error;
	for (uint32_t i = any(40); i > 0; i--)
		bytes[any(sizeof(*order))] = (unsigned char)any(256);
	return any(20) ? 0 : 7;
}

static void test_answers_are_not_trusted(void **state)
{
	struct gpool_kv_member member;
	uint64_t sequences[8] = {0};

	(void)state;
	worker_open(calm);
	for (int turn = 0; turn < 60; turn++) {
		struct remote *remote = remotes[0].pid ? &remotes[0] : remote_start(64);

		remote->orders = 0;
		member = member_of(remote);
		member.send = lie;
		assert_int_equal(gpool_kv_group_create_members(&member, 1, RANGE, &group), 0);
		for (int i = 0; i < 50; i++) {
			struct gpool_kv_span span = {.size = sizeof(span)};
			struct gpool_kv_need need = {.size = sizeof(need)};
			uint64_t *sequence = &sequences[any(8)], slot;
			uint32_t index;

			switch (any(9)) {
			case 0: assert_true(try_group(any(60), 0, sequence) <= 0); break;
			case 1:
				assert_true(gpool_kv_group_append(group, *sequence, 1 + any(9), &index, &slot) <= 0);
				break;
			case 2: assert_true(gpool_kv_group_fork(group, *sequence, &sequences[any(8)]) <= 0); break;
			case 3: assert_true(gpool_kv_group_free(group, *sequence) <= 0); break;
			case 4: gpool_kv_group_preempt(group, any(2) ? *sequence : 0, &slot); break;
			case 5: assert_true(gpool_kv_group_resume(group, *sequence) <= 0); break;
			case 6: gpool_kv_group_span(group, *sequence, 0, &span); break;
			case 7: grow(*sequence, 1 + any(90), NULL); break;
			default: gpool_kv_group_can_allocate(group, any(100), &index, &need); break;
			}
		}
		gpool_kv_group_destroy(group);
		group = NULL;
	}
}

static void test_orders_are_not_trusted(void **state)
{
	struct gpool_kv_order order;
	uint64_t sequence;

	(void)state;
	kv_start(calm, 64);
	sequence = allocated(10, 0, 0);
	for (uint32_t i = 0; i < MESSAGES; i++) {
		unsigned char *bytes = (unsigned char *)&order;

		for (size_t at = 0; at < sizeof(order); at++)
			bytes[at] = any(3) ? 0 : (unsigned char)any(256);
		order.size = any(4) ? sizeof(order) : any(300);
		order.verb = any(14);
		order.sequence = any(2) ? sequence : order.sequence;
		order.tokens = any(2) ? any(40) : order.tokens;
		assert_int_equal(gpool_kv_execute(kv, &order), order.size == sizeof(order) ? 0 : -EPROTO);
		if (order.size == sizeof(order) && order.verb == GPOOL_KV_ORDER_FREE && !order.result)
			try_allocate(10, 0, 0, &sequence);
	}
	assert_true(statistics().used_blocks <= 64);
	order = (struct gpool_kv_order){.size = sizeof(order), .verb = 77};
	assert_int_equal(gpool_kv_execute(kv, &order), 0);
	assert_int_equal(order.result, -EINVAL);
}

static void test_wrong_members(void **state)
{
	struct gpool_kv_member members[2] = {{.size = sizeof(members[0])}, {.size = sizeof(members[0])}};

	(void)state;
	kv_start(calm, 64);
	members[0].cache = kv;
	assert_int_equal(gpool_kv_group_create_members(members, 2, RANGE, &group), -EINVAL);
	members[1] = member_of(remote_start(16));
	members[1].cache = kv;
	assert_int_equal(gpool_kv_group_create_members(members, 2, RANGE, &group), -EINVAL);
	members[1].cache = NULL;
	members[1].size = 8;
	assert_int_equal(gpool_kv_group_create_members(members, 2, RANGE, &group), -EINVAL);
	members[1].size = sizeof(members[1]);
	assert_int_equal(gpool_kv_group_create_members(members, 2, RANGE + 1, &group), -EINVAL);
	remote_kill(&remotes[0]);
	assert_int_equal(gpool_kv_group_create_members(members, 2, RANGE, &group), -EPIPE);
	assert_int_equal(gpool_kv_group_create_members(members, 0, RANGE, &group), -EINVAL);
	group = NULL;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_ranges, group_stop),
		cmocka_unit_test_teardown(test_all_or_nothing, group_stop),
		cmocka_unit_test_teardown(test_growth, group_stop),
		cmocka_unit_test_teardown(test_growth_is_refused, group_stop),
		cmocka_unit_test_teardown(test_growth_by_policy, group_stop),
		cmocka_unit_test_teardown(test_growth_without_a_worker, group_stop),
		cmocka_unit_test_teardown(test_without_a_cache_here, group_stop),
		cmocka_unit_test_teardown(test_a_worker_dies, group_stop),
		cmocka_unit_test_teardown(test_torn, group_stop),
		cmocka_unit_test_teardown(test_answers_are_not_trusted, group_stop),
		cmocka_unit_test_teardown(test_orders_are_not_trusted, group_stop),
		cmocka_unit_test_teardown(test_wrong_members, group_stop),
	};

	if (argc > 1 && !strcmp(argv[1], "worker"))
		return worker_main(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
