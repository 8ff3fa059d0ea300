/* bench_peers.c - alternatives to gpool's hot path: a heap for the same sizes; a message or a wake-up per operation. */
#include "tools/bench/bench.h"

#include "shm/doorbell.h"
#include "tools/lib/dependent.h"

#include <errno.h>
#include <jemalloc/jemalloc.h>
#include <limits.h>
#include <nanomsg/nn.h>
#include <nanomsg/reqrep.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a heap ---- */

enum {
	PAGE_BYTES = 512 << 10,
	SINGLES = 512,
	HUNDREDS = 8,
	SINGLE_BATCHES = 16,
	HUNDRED_BATCHES = 128,
};

/* The memory is not written, as in the gpool figures: only the cost of finding it is compared. */
static int heap_batches(size_t bytes, unsigned count, unsigned rounds, double *alloc_ns, double *free_ns)
{
	static double first_ns[HUNDRED_BATCHES], second_ns[HUNDRED_BATCHES];
	void *blocks[SINGLES];

	for (unsigned round = 0; round < rounds; round++) {
		uint64_t begin = monotonic_ns(), middle;
		unsigned got = 0;

		while (got < count && (blocks[got] = mallocx(bytes, 0)))
			got++;
		middle = monotonic_ns();
		for (unsigned i = 0; i < got; i++)
			sdallocx(blocks[i], bytes, 0);
		if (got < count)
			return -ENOMEM;
		first_ns[round] = (double)(middle - begin) / count;
		second_ns[round] = (double)(monotonic_ns() - middle) / count;
	}
	*alloc_ns = median(first_ns, rounds);
	*free_ns = median(second_ns, rounds);
	return 0;
}

int bench_heap(struct bench *bench)
{
	double alloc_ns, free_ns;
	int error;

	error = heap_batches(PAGE_BYTES, SINGLES, 2, &alloc_ns, &free_ns);
	for (unsigned run = 0; run < bench->runs && !error; run++) {
		error = heap_batches(PAGE_BYTES, SINGLES, SINGLE_BATCHES, &alloc_ns, &free_ns);
		if (error)
			break;
		bench_sample(bench, FIGURE_peer_jemalloc_alloc1, alloc_ns);
		bench_sample(bench, FIGURE_peer_jemalloc_free1, free_ns);
		error = heap_batches(PAGE_BYTES * (size_t)100, HUNDREDS, HUNDRED_BATCHES, &alloc_ns, &free_ns);
		if (!error)
			bench_sample(bench, FIGURE_peer_jemalloc_alloc100, alloc_ns);
	}
	return error ? bench_complain(bench, error, "jemalloc cannot allocate memory") : 0;
}

/* ---- wake-ups ---- */

enum { TRIPS = 2000, MESSAGE_BYTES = 64, PATIENCE_MS = 10000 };

struct pingpong {
	_Atomic uint32_t ping;
	char apart[60];
	_Atomic uint32_t pong;
};

static int pass(_Atomic uint32_t *wait_for, uint32_t seen)
{
	while (atomic_load(wait_for) == seen)
		if (futex_wait(wait_for, seen, PATIENCE_MS * INT64_C(1000000)) == -ETIMEDOUT)
			return -ETIMEDOUT;
	return 0;
}

static _Noreturn void futex_answer(struct pingpong *shared)
{
	for (uint32_t turn = 0; pass(&shared->ping, turn) == 0; turn++) {
		atomic_store(&shared->pong, turn + 1);
		futex_wake(&shared->pong, 1);
	}
	_exit(1);
}

static int futex_ask(struct bench *bench, struct pingpong *shared)
{
	uint32_t turn = 0;
	int error = 0;

	for (unsigned run = 0; run < bench->runs && !error; run++) {
		uint64_t begin = monotonic_ns();

		for (unsigned trip = 0; trip < TRIPS && !error; trip++, turn++) {
			atomic_store(&shared->ping, turn + 1);
			futex_wake(&shared->ping, 1);
			error = pass(&shared->pong, turn);
		}
		if (!error)
			bench_sample(bench, FIGURE_peer_futex, (double)(monotonic_ns() - begin) / 1000 / TRIPS);
	}
	return error;
}

static int futex_trips(struct bench *bench)
{
	struct pingpong *shared =
		mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid;
	int error;

	if (shared == MAP_FAILED)
		return -ENOMEM;
	pid = dependent_fork(SIGKILL);
	if (pid == 0)
		futex_answer(shared);
	error = pid < 0 ? -errno : futex_ask(bench, shared);
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	munmap(shared, sizeof(*shared));
	return error;
}

static _Noreturn void nanomsg_answer(const char *url)
{
	char message[MESSAGE_BYTES];
	int socket = nn_socket(AF_SP, NN_REP);

	if (socket < 0 || nn_bind(socket, url) < 0)
		_exit(1);
	while (nn_recv(socket, message, sizeof(message), 0) >= 0 && nn_send(socket, message, sizeof(message), 0) >= 0)
		;
	_exit(1);
}

/* nanomsg uses its own error numbers, so all failures are reported as one. */
static int nanomsg_trip(int socket)
{
	char message[MESSAGE_BYTES] = "ping";

	if (nn_send(socket, message, sizeof(message), 0) < 0 || nn_recv(socket, message, sizeof(message), 0) < 0)
		return -EIO;
	return 0;
}

/*
 * Run in a separate process: nanomsg must not have been used before a fork, and a failed assertion then ends only that
 * process.
 */
static _Noreturn void nanomsg_ask(struct bench *bench, const char *url)
{
	int socket = nn_socket(AF_SP, NN_REQ), patience = PATIENCE_MS, error;

	if (socket < 0 || nn_setsockopt(socket, NN_SOL_SOCKET, NN_RCVTIMEO, &patience, sizeof(patience)) < 0 ||
		nn_connect(socket, url) < 0)
		_exit(EIO);
	error = nanomsg_trip(socket); /* waits until the other side is connected */
	for (unsigned run = 0; run < bench->runs && !error; run++) {
		uint64_t begin = monotonic_ns();

		for (unsigned trip = 0; trip < TRIPS && !error; trip++)
			error = nanomsg_trip(socket);
		if (!error)
			bench_sample(bench, FIGURE_peer_nanomsg, (double)(monotonic_ns() - begin) / 1000 / TRIPS);
	}
	_exit(error ? EIO : 0);
}

static int nanomsg_trips(struct bench *bench)
{
	char url[PATH_MAX];
	pid_t answer, ask;
	int status, error;

	snprintf(url, sizeof(url), "ipc://%s/peer", bench->folder);
	answer = dependent_fork(SIGKILL);
	if (answer == 0)
		nanomsg_answer(url);
	if (answer < 0)
		return -errno;
	ask = dependent_fork(SIGKILL);
	if (ask == 0)
		nanomsg_ask(bench, url);
	error = ask < 0 ? -errno : 0;
	if (ask > 0 && waitpid(ask, &status, 0) == ask)
		error = WIFEXITED(status) ? -WEXITSTATUS(status) : -EPIPE;
	kill(answer, SIGKILL);
	waitpid(answer, NULL, 0);
	return error;
}

int bench_wakeup(struct bench *bench)
{
	int error;

	error = futex_trips(bench);
	if (error)
		return bench_complain(bench, error, "the futex peer did not answer");
	error = nanomsg_trips(bench);
	return error ? bench_complain(bench, error, "the nanomsg peer did not answer") : 0;
}
