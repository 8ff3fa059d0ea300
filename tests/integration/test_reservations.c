/*
 * test_reservations.c - pages that one process reserves and other processes of its tenant take over.
 *
 * Goal: no other session gets reserved pages, they cannot be refused to a session of the tenant, and pages that are not
 * taken over become free: by a release, at the deadline, or when the process that reserved them dies. This also holds
 * if the agent dies in between.
 *
 * Method: a real gpoold with two tenants. The process that reserves pages and the one that takes them over are
 * children, which execute the commands of the test; the test itself is the other tenant and takes all other pages.
 * test_crash_points.c ends the agent at each store of these steps.
 *
 * Requirements: E11.
 */
#include "client/core/pool.h"
#include "client/core/refill.h"
#include "tests/integration/life.h"
#include "tests/lib/temporary.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>

enum { RESERVED_PAGES = 24, LIMIT = 40, QUOTA = 4, MANY = 255 };

#define CONFIG(domain) CONFIG_WITH("", domain)
#define CONFIG_WITH(handles, domain) \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; " handles \
	"reserved = \"0 pages\"; } );\n" \
	"tenants = ( { name = \"engine\"; users = [ \"1\" ]; limit = \"40 pages\"; }, { name = \"other\"; " domain \
	" } );\n" \
	"lease = { initial_pages = 0; batch_pages = 1; batch_most = 1; };\n" \
	"eviction = { start = 100; stop = 99; };\n"

/* ---- processes ---- */

struct command {
	char what; /* 'r' reserve, 'u' use and commit pages of a range, 'e' release, 'v' verify the range */
	uint32_t pages, duration_ms;
	int timeout_ms;
	uint64_t reservation;
};

struct answer {
	int result;
	uint64_t reservation;
	char text[256];
};

struct child {
	pid_t pid;
	int channel;
	uint32_t session;
};

static struct child scheduler, worker;
static struct gpool *other;
static uint32_t other_pages;

/* Fill or verify the committed pages of a range. Return false if a page has another content. */
static bool range_words(struct gpool *pool, struct gpool_range *range, uint32_t pages, bool fill)
{
	size_t words = gpool_page_bytes(pool) / 8;
	volatile uint64_t *at;
	uint64_t address;

	if (gpool_range_address(range, &address))
		return false;
	for (uint32_t page = 0; page < pages; page++)
		for (uint32_t i = 0; i < 2; i++) {
			at = (volatile uint64_t *)(uintptr_t)address + (page + i) * words - i;
			if (fill)
				*at = address + page * 2 + i;
			else if (*at != address + page * 2 + i)
				return false;
		}
	return true;
}

static struct answer execute(
	struct gpool *pool, struct gpool_range *range, uint32_t *committed, const struct command *command)
{
	struct answer answer = {0};

	switch (command->what) {
	case 'r':
		answer.result = gpool_reservation_create(
			pool, command->pages, command->timeout_ms, command->duration_ms, &answer.reservation);
		break;
	case 'u':
		gpool_reservation_use(pool, command->reservation);
		answer.result = gpool_range_commit(range, *committed, command->pages, command->timeout_ms);
		gpool_reservation_use(pool, 0);
		*committed += answer.result ? 0 : command->pages;
		if (!answer.result && !range_words(pool, range, *committed, true))
			answer.result = -EFAULT;
		break;
	case 'e': answer.result = gpool_reservation_release(pool, command->reservation); break;
	default: answer.result = range_words(pool, range, *committed, false) ? 0 : -EBADMSG;
	}
	if (answer.result < 0)
		snprintf(answer.text, sizeof(answer.text), "%s", gpool_last_error(answer.result));
	return answer;
}

static _Noreturn void child_main(int channel, const char *tenant_name, uint64_t quota_bytes)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_range *range = NULL;
	struct gpool *pool = NULL;
	struct command command;
	struct answer answer = {0};
	uint32_t committed = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	options.tenant = tenant_name;
	options.quota_bytes = quota_bytes;
	answer.result = gpool_open(&options, &pool);
	if (!answer.result)
		answer.result = gpool_range_reserve(pool, PAGES, NULL, &range);
	answer.reservation = pool ? gpool_session(pool) : 0;
	while (write(channel, &answer, sizeof(answer)) == sizeof(answer) &&
		read(channel, &command, sizeof(command)) == sizeof(command))
		answer = execute(pool, range, &committed, &command);
	gpool_close(pool);
	_exit(0);
}

static struct answer answer_of(const struct child *child)
{
	struct answer answer = {0};

	assert_int_equal(read(child->channel, &answer, sizeof(answer)), sizeof(answer));
	return answer;
}

static void send_to(const struct child *child, const struct command *command)
{
	assert_int_equal(write(child->channel, command, sizeof(*command)), sizeof(*command));
}

static struct child child_start(const char *tenant_name, uint64_t quota_bytes)
{
	struct child child;
	struct answer answer;
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	fflush(stdout);
	child.pid = fork();
	assert_true(child.pid >= 0);
	if (child.pid == 0) {
		close(ends[0]);
		child_main(ends[1], tenant_name, quota_bytes);
	}
	close(ends[1]);
	child.channel = ends[0];
	answer = answer_of(&child);
	assert_int_equal(answer.result, 0);
	child.session = (uint32_t)answer.reservation;
	return child;
}

static void child_kill(struct child *child)
{
	if (child->pid <= 0)
		return;
	kill(child->pid, SIGKILL);
	waitpid(child->pid, NULL, 0);
	close(child->channel);
	*child = (struct child){0};
}

static struct answer tell(const struct child *child, const struct command *command)
{
	send_to(child, command);
	return answer_of(child);
}

static int try_use(const struct child *child, uint64_t reservation, uint32_t pages)
{
	return tell(child, &(struct command){.what = 'u', .pages = pages, .reservation = reservation}).result;
}

/* The timeout is for the restart of an agent; enough pages are available. */
static void uses(const struct child *child, uint64_t reservation, uint32_t pages)
{
	const struct command command = {
		.what = 'u', .pages = pages, .timeout_ms = ANSWER_MS, .reservation = reservation};

	assert_int_equal(tell(child, &command).result, 0);
}

static uint64_t reserves(const struct child *child, uint32_t pages, uint32_t duration_ms)
{
	const struct command command = {.what = 'r', .pages = pages, .duration_ms = duration_ms, .timeout_ms = -1};
	struct answer answer = tell(child, &command);

	assert_int_equal(answer.result, 0);
	assert_true(answer.reservation != 0);
	return answer.reservation;
}

static int release(const struct child *child, uint64_t reservation)
{
	return tell(child, &(struct command){.what = 'e', .reservation = reservation}).result;
}

static void verifies(const struct child *child)
{
	assert_int_equal(tell(child, &(struct command){.what = 'v'}).result, 0);
}

/* ---- set-up ---- */

static void begin_with(const char *config_text)
{
	char path[64];
	const char *arguments[] = {"--config", path, NULL};
	FILE *file;

	snprintf(path, sizeof(path), "%s/gpool-test-%d.conf", temporary_folder(), (int)getpid());
	file = fopen(path, "we");
	assert_non_null(file);
	assert_true(fputs(config_text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	start(arguments);
	unlink(path);
	scheduler = child_start("engine", 0);
	worker = child_start("engine", 0);
	other = open_as(0, NULL, "other");
	other_pages = 0;
}

static int begin(void **state)
{
	(void)state;
	begin_with(CONFIG(""));
	return 0;
}

/* The tenants belong to different trust domains. */
static int begin_apart(void **state)
{
	(void)state;
	begin_with(CONFIG("domain = \"apart\";"));
	return 0;
}

/* All pages are free at the end, and the pool's invariants hold. */
static int end(void **state)
{
	child_kill(&scheduler);
	child_kill(&worker);
	if (other)
		gpool_close(other);
	other = NULL;
	for (int tries = 0; harness_free_pages(&harness) != PAGES && tries < AWAIT_TRIES; tries++)
		poll(NULL, 0, AWAIT_STEP_MS);
	return harness_free_pages(&harness) != PAGES || stop(state) ? -1 : 0;
}

/* Let the other tenant take all pages that it can get. Return the number of its pages. */
static uint32_t other_takes_all(void)
{
	struct gpool_block block;
	int error;

	while (!(error = gpool_alloc(other, 1, NULL, &block)))
		other_pages++;
	assert_int_equal(error, -ENOSPC);
	return other_pages;
}

static void agent_kill(void)
{
	uint32_t pid = status()->agent_pid;
	int pidfd;

	assert_true(pid > 1);
	pidfd = pidfd_of((pid_t)pid);
	assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
	await_end(pidfd);
}

/* ---- tests ---- */

static void test_only_the_tenant_gets_the_pages(void **state)
{
	uint64_t reservation = reserves(&scheduler, RESERVED_PAGES, 0);

	(void)state;
	assert_int_equal(other_takes_all(), PAGES - RESERVED_PAGES);
	assert_int_equal(harness_check(&harness), 0);
	assert_int_equal(tenant("engine")->leased_pages, RESERVED_PAGES);
	assert_int_equal(status()->pools[0].reservation_pages, RESERVED_PAGES);
	/* An ordinary request of the tenant does not get them either. */
	assert_int_equal(try_use(&worker, 0, 1), -ENOSPC);
	uses(&worker, reservation, 1);
	assert_int_equal(status()->pools[0].reservation_pages, RESERVED_PAGES - 1);
	uses(&worker, reservation, RESERVED_PAGES - 1);
	assert_int_equal(status()->pools[0].reservation_pages, 0);
	assert_int_equal(tenant("engine")->leased_pages, RESERVED_PAGES);
	verifies(&worker);
	assert_int_equal(try_use(&worker, reservation, 1), -ENOENT);
	assert_int_equal(release(&scheduler, reservation), 0);
	/* The pages belong to the worker, and outlive the scheduler. */
	child_kill(&scheduler);
	AWAIT(tenant("engine")->sessions == 1);
	verifies(&worker);
	assert_int_equal(other_takes_all(), PAGES - RESERVED_PAGES);
}

static void test_several_workers(void **state)
{
	uint64_t reservation = reserves(&scheduler, 10, 0), next = reserves(&scheduler, 6, 0);
	struct child second = child_start("engine", 0);

	(void)state;
	assert_true(reservation != next);
	uses(&worker, reservation, 4);
	uses(&second, reservation, 6);
	uses(&second, next, 5);
	/* The process that reserved pages can use them, too. */
	uses(&scheduler, next, 1);
	verifies(&worker);
	verifies(&second);
	verifies(&scheduler);
	child_kill(&second);
	AWAIT(harness_free_pages(&harness) == PAGES - 5);
}

static void test_release(void **state)
{
	uint64_t reservation = reserves(&scheduler, RESERVED_PAGES, 0);

	(void)state;
	uses(&worker, reservation, 5);
	/* Any session of the tenant may release it. */
	assert_int_equal(release(&worker, reservation), RESERVED_PAGES - 5);
	assert_int_equal(harness_free_pages(&harness), PAGES - 5);
	assert_int_equal(try_use(&worker, reservation, 1), -ENOENT);
	assert_int_equal(release(&scheduler, reservation), 0);
	assert_int_equal(other_takes_all(), PAGES - 5);
	verifies(&worker);
}

static void test_deadline(void **state)
{
	uint64_t reservation = reserves(&scheduler, RESERVED_PAGES, 1);

	(void)state;
	AWAIT(harness_free_pages(&harness) == PAGES);
	assert_int_equal(try_use(&worker, reservation, 1), -ENOENT);
	/* A deadline in the distant future, which must not end the reservation. */
	reservation = reserves(&scheduler, RESERVED_PAGES, UINT32_MAX);
	assert_int_equal(other_takes_all(), PAGES - RESERVED_PAGES);
	uses(&worker, reservation, RESERVED_PAGES);
}

static void test_death_of_the_scheduler(void **state)
{
	uint64_t reservation = reserves(&scheduler, RESERVED_PAGES, 0);

	(void)state;
	uses(&worker, reservation, 3);
	child_kill(&scheduler);
	AWAIT(harness_free_pages(&harness) == PAGES - 3);
	assert_int_equal(try_use(&worker, reservation, 1), -ENOENT);
	verifies(&worker);
	assert_int_equal(other_takes_all(), PAGES - 3);
}

static void test_death_of_the_agent(void **state)
{
	uint64_t reservation = reserves(&scheduler, RESERVED_PAGES, 0);
	uint64_t lost = reserves(&scheduler, 4, 1000);

	(void)state;
	uses(&worker, reservation, 7);
	agent_kill();
	uses(&worker, reservation, 2);
	AWAIT(harness_free_pages(&harness) == PAGES - RESERVED_PAGES); /* the deadline of the other one */
	assert_int_equal(try_use(&worker, lost, 1), -ENOENT);
	assert_int_equal(other_takes_all(), PAGES - RESERVED_PAGES);
	agent_kill();
	uses(&worker, reservation, RESERVED_PAGES - 9);
	verifies(&worker);
	assert_int_equal(harness_check(&harness), 0);
}

static void test_death_of_the_scheduler_without_an_agent(void **state)
{
	uint64_t reservation = reserves(&scheduler, RESERVED_PAGES, 0);

	(void)state;
	agent_kill();
	child_kill(&scheduler);
	AWAIT(harness_free_pages(&harness) == PAGES);
	assert_int_equal(try_use(&worker, reservation, 1), -ENOENT);
}

static void test_limits(void **state)
{
	struct command command = {.what = 'r', .pages = LIMIT + 1};
	struct child small = child_start("engine", QUOTA * (uint64_t)gpool_page_bytes(other));
	struct answer answer = tell(&scheduler, &command);
	uint64_t reservation;

	(void)state;
	assert_int_equal(answer.result, -EDQUOT);
	assert_non_null(strstr(answer.text, "the limit of tenant 'engine' is reached: 41 needed, "));
	assert_int_equal(harness_free_pages(&harness), PAGES);
	reservation = reserves(&scheduler, LIMIT, 0);
	/* Reserved pages count against the limit of the tenant once. */
	assert_int_equal(try_use(&worker, 0, 1), -EDQUOT);
	uses(&worker, reservation, LIMIT - QUOTA - 1);
	uses(&small, reservation, QUOTA);
	assert_int_equal(try_use(&small, reservation, 1), -EDQUOT);
	uses(&worker, reservation, 1);
	child_kill(&small);
}

/* Until another session takes the pages over, they count against the quota of the session that reserved them. */
static void test_quota_of_the_scheduler(void **state)
{
	struct child small = child_start("engine", QUOTA * (uint64_t)gpool_page_bytes(other));
	struct answer answer = tell(&small, &(struct command){.what = 'r', .pages = QUOTA + 1});
	uint64_t reservation;

	(void)state;
	assert_int_equal(answer.result, -EDQUOT);
	assert_non_null(strstr(answer.text, "the quota of the session is reached: 5 needed, 0 of 4 pages in use"));
	reservation = reserves(&small, QUOTA, 0);
	assert_int_equal(try_use(&small, 0, 1), -EDQUOT);
	uses(&worker, reservation, 1);
	uses(&small, 0, 1);
	assert_int_equal(try_use(&small, 0, 1), -EDQUOT);
	/* Its own reservation is already counted. */
	uses(&small, reservation, QUOTA - 1);
	child_kill(&small);
	AWAIT(harness_free_pages(&harness) == PAGES - 1);
	verifies(&worker);
}

static void test_other_tenant(void **state)
{
	uint64_t reservation = reserves(&scheduler, RESERVED_PAGES, 0);
	struct child foreign = child_start("other", 0);
	struct answer answer = tell(&foreign, &(struct command){.what = 'u', .pages = 1, .reservation = reservation});

	(void)state;
	assert_int_equal(answer.result, -EPERM);
	assert_non_null(strstr(answer.text, "belongs to another tenant"));
	assert_int_equal(release(&foreign, reservation), -EPERM);
	uses(&worker, reservation, RESERVED_PAGES);
	child_kill(&foreign);
}

static void test_waiting_and_eviction(void **state)
{
	struct gpool_block blocks[PAGES];
	uint64_t reservation;

	(void)state;
	for (uint32_t i = 0; i < PAGES; i++)
		blocks[i] = alloc(other, 1);
	assert_int_equal(tell(&scheduler, &(struct command){.what = 'r', .pages = 8}).result, -ENOSPC);
	send_to(&scheduler, &(struct command){.what = 'r', .pages = 8, .timeout_ms = -1});
	AWAIT(atomic_load(&pool_view(other)->header->waiters) == 1);
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(gpool_free(other, &blocks[i]), 0);
	for (uint32_t i = 5; i < 9; i++)
		assert_int_equal(gpool_unpin(other, &blocks[i]), 0);
	reservation = answer_of(&scheduler).reservation;
	assert_true(reservation != 0);
	uses(&worker, reservation, 8);
	/* A scheduler that dies while it waits gets no pages. */
	send_to(&scheduler, &(struct command){.what = 'r', .pages = 8, .timeout_ms = -1});
	AWAIT(atomic_load(&pool_view(other)->header->waiters) == 1);
	child_kill(&scheduler);
	AWAIT(atomic_load(&pool_view(other)->header->waiters) == 0);
}

static int stop_waiting(void *argument)
{
	(void)argument;
	return 1;
}

static void test_calls(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block, rest[PAGES];
	uint64_t reservations[PAGES], reservation;
	uint32_t count = 0;

	(void)state;
	assert_int_equal(gpool_reservation_create(other, 0, 0, 0, &reservation), -EINVAL);
	assert_int_equal(gpool_reservation_create(other, PAGES + 1, 0, 0, &reservation), -EINVAL);
	assert_int_equal(gpool_reservation_create(other, 1, -2, 0, &reservation), -EINVAL);
	assert_int_equal(gpool_reservation_create(admin, 1, 0, 0, &reservation), -EPERM);
	assert_int_equal(gpool_reservation_release(admin, 1), -EPERM);
	assert_int_equal(gpool_reservation_release(other, 0), 0);
	assert_int_equal(gpool_reservation_release(other, 77), 0);
	/* A number without a reservation has no effect before a call needs pages. */
	assert_int_equal(gpool_reservation_use(other, 77), 0);
	options.timeout_ms = -1;
	assert_int_equal(gpool_alloc(other, 1, &options, &block), -ENOENT);
	assert_int_equal(gpool_reservation_use(other, 0), 0);
	/* Pages of single reservations are taken over one by one, and a block needs all its pages in one. */
	while (count < PAGES && !gpool_reservation_create(other, 1, 0, 0, &reservations[count]))
		count++;
	assert_int_equal(count, PAGES);
	assert_int_equal(gpool_reservation_use(other, reservations[9]), 0);
	assert_int_equal(gpool_alloc(other, 2, &options, &block), -ENOENT);
	assert_int_equal(gpool_alloc(other, 1, &options, &rest[0]), 0);
	assert_int_equal(gpool_reservation_use(other, 0), 0);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(gpool_reservation_release(other, reservations[i]), i != 9);
	assert_int_equal(harness_free_pages(&harness), PAGES - 1);
	/* A wait that the program ends leaves no reservation. */
	count = 1;
	while (count < PAGES)
		rest[count++] = alloc(other, 1);
	gpool_wait_check(stop_waiting, NULL);
	assert_int_equal(gpool_reservation_create(other, 4, -1, 0, &reservation), -EINTR);
	gpool_wait_check(NULL, NULL);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(gpool_free(other, &rest[i]), 0);
	assert_int_equal(gpool_reservation_create(other, PAGES, -1, 0, &reservation), 0);
	assert_int_equal(gpool_reservation_use(other, reservation), 0);
	options.flags = GPOOL_ALLOC_CONTIGUOUS;
	assert_int_equal(gpool_alloc(other, PAGES, &options, &block), 0);
	assert_int_equal(gpool_reservation_use(other, 0), 0);
}

/* A number replaces the earlier one of the thread, which does not return by itself. */
static void test_a_number_replaces_another(void **state)
{
	uint64_t outer, inner;
	struct gpool_block block;

	(void)state;
	assert_int_equal(gpool_reservation_create(other, 4, 0, 0, &outer), 0);
	assert_int_equal(gpool_reservation_create(other, 2, 0, 0, &inner), 0);
	assert_int_equal(gpool_reservation_use(other, outer), 0);
	assert_int_equal(gpool_reservation_use(other, inner), 0);
	assert_int_equal(gpool_alloc(other, 2, NULL, &block), 0);
	assert_int_equal(gpool_alloc(other, 1, NULL, &block), -ENOENT);
	assert_int_equal(gpool_reservation_use(other, outer), 0);
	assert_int_equal(gpool_alloc(other, 4, NULL, &block), 0);
	assert_int_equal(gpool_reservation_use(other, 0), 0);
	assert_int_equal(gpool_reservation_release(other, outer), 0);
	assert_int_equal(gpool_reservation_release(other, inner), 0);
}

/* A scattered reservation: no two pages are adjacent. */
static void test_scattered(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block blocks[PAGES], block;
	uint64_t reservation;

	(void)state;
	for (uint32_t i = 0; i < PAGES; i++)
		blocks[i] = alloc(other, 1);
	for (uint32_t i = 0; i < PAGES; i++)
		if (blocks[i].page % 2)
			assert_int_equal(gpool_free(other, &blocks[i]), 0);
	reservation = reserves(&scheduler, PAGES / 2, 0);
	uses(&worker, reservation, PAGES / 2 - 4);
	verifies(&worker);
	assert_int_equal(release(&scheduler, reservation), 4);
	assert_int_equal(gpool_reservation_create(other, 4, 0, 0, &reservation), 0);
	assert_int_equal(gpool_reservation_use(other, reservation), 0);
	options.flags = GPOOL_ALLOC_CONTIGUOUS;
	assert_int_equal(gpool_alloc(other, 2, &options, &block), -ENOENT);
	options.flags = 0;
	assert_int_equal(gpool_alloc(other, 4, &options, &block), 0);
	assert_int_equal(gpool_reservation_use(other, 0), 0);
}

/* ---- several pages in each handle ---- */

static int begin_with_handles(void **state)
{
	(void)state;
	begin_with(CONFIG_WITH("handle_size = \"2MiB\"; ", ""));
	return 0;
}

/* Ranges take over whole handles, which need not be adjacent. */
static void test_handles(void **state)
{
	struct gpool_block blocks[PAGES];
	uint64_t reservation, next;

	(void)state;
	for (uint32_t i = 0; i < PAGES; i++)
		blocks[i] = alloc(other, 1);
	for (uint32_t i = 0; i < PAGES; i++)
		if (blocks[i].page / 4 % 2)
			assert_int_equal(gpool_free(other, &blocks[i]), 0);
	/* The number of pages is rounded up to whole handles. */
	reservation = reserves(&scheduler, 15, 0);
	assert_int_equal(status()->pools[0].reservation_pages, 16);
	next = reserves(&scheduler, 1, 0);
	assert_int_equal(status()->pools[0].reservation_pages, 20);
	assert_int_equal(other_takes_all(), PAGES / 2 - 20);
	assert_int_equal(try_use(&worker, 0, 4), -ENOSPC);
	uses(&worker, reservation, 4);
	uses(&worker, reservation, 8);
	assert_int_equal(try_use(&worker, reservation, 8), -ENOENT);
	uses(&worker, reservation, 4);
	assert_int_equal(try_use(&worker, reservation, 4), -ENOENT);
	uses(&worker, next, 4);
	verifies(&worker);
	assert_int_equal(status()->pools[0].reservation_pages, 0);
	assert_int_equal(harness_check(&harness), 0);
}

/* Blocks take over parts of handles, as far as the driver can map them side by side. */
static void test_parts_of_handles(void **state)
{
	struct gpool_block block;
	uint64_t reservation;

	(void)state;
	reservation = reserves(&scheduler, 8, 0);
	gpool_close(other);
	other = open_as(0, NULL, "engine");
	assert_int_equal(gpool_reservation_use(other, reservation), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_alloc(other, 3, NULL, &block), 0);
	assert_int_equal(gpool_alloc(other, 3, NULL, &block), -ENOENT);
	assert_non_null(strstr(gpool_last_error(-ENOENT), "handles are mapped as a whole"));
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_alloc(other, 1, NULL, &block), 0);
	assert_int_equal(gpool_alloc(other, 1, NULL, &block), -ENOENT);
	reservation = reserves(&scheduler, 12, 0);
	assert_int_equal(gpool_reservation_use(other, reservation), 0);
	assert_int_equal(gpool_alloc(other, 3, NULL, &block), 0);
	agent_kill();
	assert_int_equal(gpool_alloc(other, 8,
				 &(struct gpool_alloc_options){
					 .size = sizeof(struct gpool_alloc_options), .timeout_ms = ANSWER_MS},
				 &block),
		0);
	assert_int_equal(gpool_reservation_use(other, 0), 0);
	assert_int_equal(release(&scheduler, reservation), 1);
	assert_int_equal(harness_check(&harness), 0);
}

/* ---- the table of reservations ---- */

static const char *const large[] = {
	"--pool", "name=p0,backend=host,size=160MiB,page_size=512KB,reserved=0", QUIET, NULL};

static int begin_large(void **state)
{
	(void)state;
	start(large);
	return 0;
}

static void test_table_is_full(void **state)
{
	uint64_t reservations[MANY], more;
	struct gpool *pool = open_worker();

	(void)state;
	for (uint32_t i = 0; i < MANY; i++)
		assert_int_equal(gpool_reservation_create(pool, 1, 0, 0, &reservations[i]), 0);
	assert_int_equal(gpool_reservation_create(pool, 1, -1, 0, &more), -EUSERS);
	assert_non_null(strstr(gpool_last_error(-EUSERS), "the pool has 255 reservations, the limit; release one"));
	assert_int_equal(gpool_reservation_release(pool, reservations[100]), 1);
	assert_int_equal(gpool_reservation_create(pool, 1, 0, 0, &more), 0);
	gpool_close(pool);
	AWAIT(harness_free_pages(&harness) == 320);
}

#define SHARED_CONFIG \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"160MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; } );\n" \
	"tenants = ( { name = \"engine\"; users = [ \"1\" ]; }, { name = \"other\"; } );\n" \
	"lease = { initial_pages = 0; batch_pages = 1; batch_most = 1; };\n" \
	"eviction = { start = 100; stop = 99; };\n"

static int begin_shared(void **state)
{
	char path[64];

	(void)state;
	snprintf(path, sizeof(path), "%s/gpool-test-%d.conf", temporary_folder(), (int)getpid());
	harness_config_write(path, SHARED_CONFIG);
	start((const char *const[]){"--config", path, NULL});
	unlink(path);
	return 0;
}

/* Half of the reservations are guaranteed to the tenants in equal parts. */
static void test_a_tenant_leaves_others_reservations(void **state)
{
	enum { GUARANTEED = MANY / 2 / 2 };
	struct gpool *engine = open_as(0, NULL, "engine"), *second = open_as(0, NULL, "other");
	uint64_t reservation;

	(void)state;
	for (uint32_t i = 0; i < MANY - GUARANTEED; i++)
		assert_int_equal(gpool_reservation_create(engine, 1, 0, 0, &reservation), 0);
	assert_int_equal(gpool_reservation_create(engine, 1, 0, 0, &reservation), -EUSERS);
	assert_non_null(strstr(gpool_last_error(-EUSERS),
		"tenant 'engine' has 192 of the 255 reservations of a pool, and the others are kept for other tenants "
		"by "
		"limits.tenant_sessions (50 percent); release one"));
	for (uint32_t i = 0; i < GUARANTEED; i++)
		assert_int_equal(gpool_reservation_create(second, 1, 0, 0, &reservation), 0);
	assert_int_equal(gpool_reservation_create(second, 1, 0, 0, &reservation), -EUSERS);
	gpool_close(engine);
	gpool_close(second);
	AWAIT(harness_free_pages(&harness) == 320);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_only_the_tenant_gets_the_pages, begin, end),
		cmocka_unit_test_setup_teardown(test_several_workers, begin, end),
		cmocka_unit_test_setup_teardown(test_release, begin, end),
		cmocka_unit_test_setup_teardown(test_deadline, begin, end),
		cmocka_unit_test_setup_teardown(test_death_of_the_scheduler, begin, end),
		cmocka_unit_test_setup_teardown(test_death_of_the_agent, begin, end),
		cmocka_unit_test_setup_teardown(test_death_of_the_scheduler_without_an_agent, begin, end),
		cmocka_unit_test_setup_teardown(test_limits, begin, end),
		cmocka_unit_test_setup_teardown(test_quota_of_the_scheduler, begin, end),
		cmocka_unit_test_setup_teardown(test_other_tenant, begin, end),
		cmocka_unit_test_setup_teardown(test_waiting_and_eviction, begin, end),
		cmocka_unit_test_setup_teardown(test_calls, begin, end),
		cmocka_unit_test_setup_teardown(test_a_number_replaces_another, begin, end),
		cmocka_unit_test_setup_teardown(test_scattered, begin, end),
		{"test_only_the_tenant_gets_the_pages, apart", test_only_the_tenant_gets_the_pages, begin_apart, end,
			NULL},
		{"test_death_of_the_agent, apart", test_death_of_the_agent, begin_apart, end, NULL},
		cmocka_unit_test_setup_teardown(test_handles, begin_with_handles, end),
		cmocka_unit_test_setup_teardown(test_parts_of_handles, begin_with_handles, end),
		cmocka_unit_test_setup_teardown(test_table_is_full, begin_large, stop),
		cmocka_unit_test_setup_teardown(test_a_tenant_leaves_others_reservations, begin_shared, stop),
	};

	setvbuf(stdout, NULL, _IOLBF, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
