/*
 * probe.c - measure properties of a real GPU and its driver that their documentation leaves open, and print them as a
 * table.
 *
 * Goal: answer by a measurement each question that docs/internals/cuda.md marks as open. Method: this process never
 * uses the driver. It starts workers (probe_worker.h), each of which executes one call of gpu.h at a time, moves
 * descriptors between them, and kills them. An observer without a context reports the free memory. At most 4 GB of GPU
 * memory are used at once, no setting is changed, and the workers die with this process.
 *
 * Exit status: 0: all questions were asked, whatever the answers; 1: the probe itself failed; 77: no GPU.
 */
#include "cuda/gpu.h"
#include "tests/gpu/probe_client.h"
#include "tests/gpu/probe_worker.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	EXIT_SKIP = 77,
	COST_ROUNDS = 32, /* of 64 MB each: 2 GB, half of the limit above */
	FREE_TIMEOUT_MS = 30000,
};

static const uint64_t MB = 1u << 20;

static struct probe_target target = {.backend = "cuda", .device = "0"};
static int failures;

static void heading(const char *text)
{
	printf("\n%s\n", text);
}

__attribute__((format(printf, 2, 3))) static void answer(const char *question, const char *format, ...)
{
	va_list arguments;

	printf("  %-66s ", question);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
	fflush(stdout);
}

/* answer_rc() - print "yes", or the error of the driver. */
static void answer_rc(const char *question, int rc, const struct probe_message *m)
{
	if (rc == 0)
		answer(question, "yes");
	else
		answer(question, "no: %s (%s)", m->text[0] ? m->text : "no text", strerror(-rc));
}

/* broken() - report that the probe cannot continue a question. */
static void broken(const char *what, int rc, const struct probe_message *m)
{
	printf("  ! %s: %s%s%s\n", what, strerror(-rc), m && m->text[0] ? ": " : "", m ? m->text : "");
	failures++;
}

/* worker_open() - open the device in a worker, and report if there is none. */
static int worker_open(struct worker *w, uint32_t flags)
{
	struct probe_message m = {.a = flags};
	int rc = worker_start(&target, w);

	if (rc < 0) {
		broken("cannot start a worker", rc, NULL);
		return rc;
	}
	rc = ask(w, &m, PROBE_OPEN);
	if (rc < 0) {
		broken("a worker cannot open the device", rc, &m);
		worker_stop(w, SIGKILL);
	}
	return rc;
}

static uint64_t free_memory(struct worker *observer)
{
	struct probe_message m = {0};

	return ask(observer, &m, PROBE_MEMORY) == 0 ? m.a : 0;
}

/* answer_memory() - print the decrease of free memory since `before`, if the back end reports it. */
static void answer_memory(struct worker *observer, const char *question, uint64_t before)
{
	uint64_t now = free_memory(observer);

	if (before && now)
		answer(question, "%.1f MB", ((double)before - (double)now) / (double)MB);
	else
		answer(question, "cannot be asked here");
}

/* free_memory_settles() - wait until at least `bytes` are free. Return: the time in milliseconds, or -1. */
static double free_memory_settles(struct worker *observer, uint64_t bytes)
{
	uint64_t begin = probe_now(), now = begin;

	if (!free_memory(observer))
		return -1; /* the back end does not report it */
	while (now - begin < FREE_TIMEOUT_MS * 1000000ull) {
		if (free_memory(observer) >= bytes)
			return (double)(probe_now() - begin) / 1e6;
		now = probe_now();
	}
	return -1;
}

/* The questions */

static void question_owner(struct worker *observer)
{
	struct worker owner, user;
	struct piece piece;
	struct probe_message m = {0};
	struct gpu_export at = {.fd = -1};
	uint64_t before, with;
	int rc;

	heading("an owner without a context");
	before = free_memory(observer);
	if (worker_open(&owner, GPU_OPEN_OWNER) < 0)
		return;
	answer_memory(observer, "GPU memory that opening it takes", before);
	with = free_memory(observer);
	rc = ask4(&owner, &m, PROBE_GRANULARITY, 0, 0, 0, 0);
	if (rc == 0)
		answer("granularity", "%llu bytes", (unsigned long long)m.a);
	rc = ask4(&owner, &m, PROBE_CREATE, 64 * MB, 0, 0, 0);
	answer_rc("it can create memory", rc, &m);
	piece = (struct piece){.handle = m.a, .bytes = 64 * MB};
	if (rc == 0) {
		answer_memory(observer, "free memory falls by, for 64 MB", with);
		rc = piece_export(&owner, &piece, &at, &m);
		answer_rc("it can export", rc, &m);
		ask4(&owner, &m, PROBE_RELEASE, piece.handle, 0, 0, 0);
	}
	before = free_memory(observer);
	if (worker_open(&user, 0) == 0) {
		answer_memory(observer, "GPU memory that a process with a context takes", before);
		if (at.fd >= 0) {
			rc = piece_import(&user, &piece, &at, &m);
			if (rc == 0)
				rc = piece_map(&user, &piece, GPU_ACCESS_READ_WRITE, &m);
			if (rc == 0)
				rc = ask4(&user, &m, PROBE_FILL, piece.va, 64 * MB, 7, 0);
			answer_rc("another process can import, map and write it", rc, &m);
		}
		worker_stop(&user, 0);
	}
	if (at.fd >= 0)
		close(at.fd);
	worker_stop(&owner, 0);
}

static void question_lifetime(struct worker *observer)
{
	struct worker maker, reader;
	struct piece piece, imported = {0};
	struct probe_message m = {0};
	struct gpu_export at;
	uint64_t empty;
	double settled;
	int rc;

	heading("memory behind a descriptor whose maker is gone (64 MB)");
	empty = free_memory(observer);
	if (worker_open(&maker, 0) < 0)
		return;
	rc = piece_create(&maker, &piece, 64 * MB, &m);
	if (rc == 0)
		rc = ask4(&maker, &m, PROBE_FILL, piece.va, piece.bytes, 0x12345678, 0);
	if (rc == 0)
		rc = piece_export(&maker, &piece, &at, &m);
	if (rc < 0) {
		broken("cannot make memory to export", rc, &m);
		worker_stop(&maker, SIGKILL);
		return;
	}
	worker_stop(&maker, SIGKILL);
	/* the context is freed, but the 64 MB may remain */
	settled = free_memory_settles(observer, empty > 72 * MB ? empty - 72 * MB : 0);
	answer("maker killed: its context's memory is free, after", "%.1f ms (-1: not seen)", settled);
	answer_memory(observer, "still used, while a process without CUDA holds the descriptor", empty);
	if (worker_open(&reader, 0) == 0) {
		rc = piece_import(&reader, &imported, &at, &m);
		if (rc == 0)
			rc = piece_map(&reader, &imported, GPU_ACCESS_READ, &m);
		if (rc == 0)
			rc = ask4(&reader, &m, PROBE_READ, imported.va + imported.bytes - 4, 0, 0, 0);
		answer_rc("it can be imported then", rc, &m);
		answer("its contents are intact", "%s", rc == 0 && m.a == 0x12345678 ? "yes" : "no");
		close(at.fd);
		rc = ask4(&reader, &m, PROBE_READ, imported.va, 0, 0, 0);
		answer("a mapping outlives maker and descriptor", "%s", rc == 0 && m.a == 0x12345678 ? "yes" : "no");
		worker_stop(&reader, 0);
	} else {
		close(at.fd);
	}
	answer("free again when the last holder is gone, after", "%.1f ms (-1: not seen)",
		free_memory_settles(observer, empty > MB ? empty - MB : 0));
}

static int compare_numbers(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return a < b ? -1 : a > b;
}

static double median_us(uint64_t times[COST_ROUNDS], int count)
{
	qsort(times, (size_t)count, sizeof(*times), compare_numbers);
	return count ? (double)times[count / 2] / 1e3 : -1;
}

/*
 * question_costs_of() - print the median duration of each call for one size. Memory is created in one process, and
 * imported and mapped in another.
 */
static void question_costs_of(struct worker *maker, struct worker *user, uint64_t bytes)
{
	enum { CREATE, EXPORT, IMPORT, MAP, ACCESS, UNMAP, RELEASE, KINDS };
	static const char *const names[KINDS] = {"create", "export", "import", "map", "access", "unmap", "release"};
	uint64_t times[KINDS][COST_ROUNDS] = {{0}}, base;
	struct piece made[COST_ROUNDS], pieces[COST_ROUNDS];
	struct probe_message m = {0};
	char line[256] = "";
	size_t used = 0;
	int rc, count = 0;

	rc = ask4(user, &m, PROBE_RESERVE, bytes * COST_ROUNDS, 0, 0, 0);
	base = m.a;
	for (; rc == 0 && count < COST_ROUNDS; count++) {
		struct gpu_export at = {.fd = -1};
		uint64_t va = base + (uint64_t)count * bytes;

		rc = ask4(maker, &m, PROBE_CREATE, bytes, 0, 0, 0);
		if (rc < 0)
			break;
		made[count] = (struct piece){.handle = m.a, .bytes = bytes};
		times[CREATE][count] = m.nanoseconds;
		rc = piece_export(maker, &made[count], &at, &m);
		times[EXPORT][count] = m.nanoseconds;
		if (rc == 0) {
			rc = piece_import(user, &pieces[count], &at, &m);
			times[IMPORT][count] = m.nanoseconds;
			close(at.fd);
		}
		if (rc == 0)
			rc = ask4(user, &m, PROBE_MAP, va, bytes, pieces[count].handle, 0);
		times[MAP][count] = m.nanoseconds;
		if (rc == 0)
			rc = ask4(user, &m, PROBE_ACCESS, va, bytes, GPU_ACCESS_READ_WRITE, 0);
		times[ACCESS][count] = m.nanoseconds;
		if (rc < 0)
			ask4(maker, &m, PROBE_RELEASE, made[count].handle, 0, 0, 0);
		if (rc < 0)
			break;
	}
	if (rc < 0)
		broken("the measurement of costs ended early", rc, &m);
	for (int i = 0; i < count; i++) {
		ask4(user, &m, PROBE_UNMAP, base + (uint64_t)i * bytes, bytes, 0, 0);
		times[UNMAP][i] = m.nanoseconds;
		ask4(user, &m, PROBE_RELEASE, pieces[i].handle, 0, 0, 0);
		ask4(maker, &m, PROBE_RELEASE, made[i].handle, 0, 0, 0);
		times[RELEASE][i] = m.nanoseconds;
	}
	ask4(user, &m, PROBE_UNRESERVE, base, bytes * COST_ROUNDS, 0, 0);
	for (int i = 0; i < KINDS; i++)
		used += (size_t)snprintf(
			line + used, sizeof(line) - used, "%s %.1f  ", names[i], median_us(times[i], count));
	snprintf(m.text, sizeof(m.text), "%llu MB", (unsigned long long)(bytes / MB));
	answer(m.text, "%s", line);
}

static void question_costs(void)
{
	static const uint64_t sizes[] = {2, 32, 64};
	struct worker maker, user;

	heading("cost of one call, median in microseconds");
	if (worker_open(&maker, GPU_OPEN_OWNER) < 0)
		return;
	if (worker_open(&user, 0) == 0) {
		for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
			question_costs_of(&maker, &user, sizes[i] * MB);
		worker_stop(&user, 0);
	}
	worker_stop(&maker, 0);
}

static void question_mapping(void)
{
	struct worker w;
	struct probe_message m = {0};
	struct piece piece, small;
	uint64_t va, part;
	int rc;

	heading("what can be mapped (a handle of 64 MB)");
	if (worker_open(&w, 0) < 0)
		return;
	rc = ask4(&w, &m, PROBE_GRANULARITY, 0, 0, 0, 0);
	part = rc == 0 ? m.a : 2 * MB;
	rc = ask4(&w, &m, PROBE_CREATE, 64 * MB, 0, 0, 0);
	piece = (struct piece){.handle = m.a, .bytes = 64 * MB};
	if (rc == 0)
		rc = ask4(&w, &m, PROBE_RESERVE, 4 * piece.bytes, 0, 0, 0);
	if (rc < 0) {
		broken("cannot make memory to map", rc, &m);
		worker_stop(&w, SIGKILL);
		return;
	}
	va = m.a;
	rc = ask4(&w, &m, PROBE_MAP, va, part, piece.handle, 0);
	answer_rc("a part from the start", rc, &m);
	if (rc == 0)
		ask4(&w, &m, PROBE_UNMAP, va, part, 0, 0);
	rc = ask4(&w, &m, PROBE_MAP, va, piece.bytes, piece.handle, 0);
	if (rc == 0) {
		answer_rc("the whole in a second place as well",
			ask4(&w, &m, PROBE_MAP, va + piece.bytes, piece.bytes, piece.handle, 0), &m);
		answer_rc("access to both places by one call",
			ask4(&w, &m, PROBE_ACCESS, va, 2 * piece.bytes, GPU_ACCESS_READ_WRITE, 0), &m);
		rc = ask4(&w, &m, PROBE_FILL, va, 4096, 99, 0);
		if (rc == 0)
			rc = ask4(&w, &m, PROBE_READ, va + piece.bytes, 0, 0, 0);
		answer("what is written to one is read from the other", "%s", rc == 0 && m.a == 99 ? "yes" : "no");
		answer_rc("access over a hole",
			ask4(&w, &m, PROBE_ACCESS, va, 3 * piece.bytes, GPU_ACCESS_READ_WRITE, 0), &m);
		answer_rc("access to a part of a mapping",
			ask4(&w, &m, PROBE_ACCESS, va, part, GPU_ACCESS_READ_WRITE, 0), &m);
		rc = ask4(&w, &m, PROBE_UNMAP, va, part, 0, 0);
		answer_rc("unmapping a part", rc, &m);
		if (rc < 0)
			answer_rc("unmapping both places by one call",
				ask4(&w, &m, PROBE_UNMAP, va, 2 * piece.bytes, 0, 0), &m);
	}
	if (piece_create(&w, &small, part, &m) == 0) {
		ask4(&w, &m, PROBE_RELEASE, small.handle, 0, 0, 0);
		answer_rc("memory stays usable when its handle is released while mapped",
			ask4(&w, &m, PROBE_FILL, small.va, small.bytes, 1, 0), &m);
	}
	worker_stop(&w, 0);
}

static void question_import(void)
{
	struct worker maker, user, third;
	struct probe_message m = {0};
	struct piece piece, imported, again = {0};
	struct gpu_export at = {.fd = -1}, at_again = {.fd = -1};
	int rc;

	heading("what an importer may do");
	if (worker_open(&maker, 0) < 0)
		return;
	if (worker_open(&user, 0) < 0)
		goto stop_maker;
	if (worker_open(&third, 0) < 0)
		goto stop_user;
	rc = piece_create(&maker, &piece, 64 * MB, &m);
	if (rc == 0)
		rc = ask4(&maker, &m, PROBE_FILL, piece.va, piece.bytes, 1, 0);
	if (rc == 0)
		rc = ask4(&maker, &m, PROBE_ACCESS, piece.va, piece.bytes, GPU_ACCESS_READ, 0);
	if (rc == 0)
		rc = piece_export(&maker, &piece, &at, &m);
	if (rc == 0)
		rc = piece_import(&user, &imported, &at, &m);
	if (rc < 0) {
		broken("cannot hand memory from one worker to another", rc, &m);
		goto stop_third;
	}
	rc = piece_map(&user, &imported, GPU_ACCESS_READ_WRITE, &m);
	answer_rc("take write access to memory that its maker maps read-only", rc, &m);
	if (rc == 0) {
		rc = ask4(&user, &m, PROBE_FILL, imported.va, imported.bytes, 2, 0);
		answer_rc("write it", rc, &m);
		rc = ask4(&maker, &m, PROBE_READ, piece.va, 0, 0, 0);
		answer("the maker sees the change", "%s", rc == 0 && m.a == 2 ? "yes" : "no");
	}
	rc = piece_export(&user, &imported, &at_again, &m);
	answer_rc("export what it imported", rc, &m);
	if (rc == 0) {
		rc = piece_import(&third, &again, &at_again, &m);
		if (rc == 0)
			rc = piece_map(&third, &again, GPU_ACCESS_READ, &m);
		answer_rc("and a third process can import that", rc, &m);
		close(at_again.fd);
	}
	/* last, since it may end the worker's context */
	rc = ask4(&user, &m, PROBE_ACCESS, imported.va, imported.bytes, GPU_ACCESS_READ, 0);
	if (rc == 0)
		answer_rc("write through read access", ask4(&user, &m, PROBE_FILL, imported.va, imported.bytes, 3, 0),
			&m);
stop_third:
	if (at.fd >= 0)
		close(at.fd);
	worker_stop(&third, 0);
stop_user:
	worker_stop(&user, 0);
stop_maker:
	worker_stop(&maker, 0);
}

/*
 * word_becomes() - watch a shared word in this process, without CUDA. Return: the microseconds until it has the value,
 * or -1.
 */
static double word_becomes(const uint64_t *word, uint64_t value)
{
	uint64_t begin = probe_now();

	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value)
		if (probe_now() - begin > 5000000000u)
			return -1;
	return (double)(probe_now() - begin) / 1e3;
}

static void question_timeline(void)
{
	struct worker first, second;
	struct probe_message m = {0};
	int rc, fd = memfd_create("gpool-probe", MFD_CLOEXEC);
	uint64_t *words;

	heading("timelines: words in a memfd, registered in two processes, read by a third without CUDA");
	if (fd < 0 || ftruncate(fd, WORDS_BYTES) < 0) {
		broken("cannot make shared memory", -errno, NULL);
		return;
	}
	words = mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (words == MAP_FAILED || worker_open(&first, 0) < 0)
		goto close_fd;
	if (worker_open(&second, 0) < 0)
		goto stop_first;
	rc = ask_with(&first, &m, PROBE_WORDS, fd, NULL);
	answer_rc("the first can register it", rc, &m);
	if (rc == 0)
		rc = ask_with(&second, &m, PROBE_WORDS, fd, NULL);
	answer_rc("the second can register it too", rc, &m);
	if (rc < 0)
		goto stop_second;

	rc = ask4(&first, &m, PROBE_WRITE, 0, 1, 0, 0);
	answer_rc("a stream can write a word", rc, &m);
	answer("the CPU sees it, after", "%.1f us (-1: never)", word_becomes(&words[0], 1));
	rc = ask4(&second, &m, PROBE_WAIT, 0, 2, 0, 0);
	answer_rc("a stream can wait for a word", rc, &m);
	if (rc == 0)
		rc = ask4(&second, &m, PROBE_WRITE, 8, 5, 0, 0);
	answer("while it waits, what follows is not done", "%s",
		__atomic_load_n(&words[8], __ATOMIC_ACQUIRE) == 0 ? "yes" : "no");
	if (rc == 0)
		rc = ask4(&first, &m, PROBE_WRITE, 0, 2, 0, 0);
	answer("a stream of one process releases a stream of another, after", "%.1f us (-1: never)",
		word_becomes(&words[8], 5));
	rc = ask4(&second, &m, PROBE_WAIT, 16, 1, 0, 0);
	if (rc == 0)
		rc = ask4(&second, &m, PROBE_WRITE, 24, 6, 0, 0);
	__atomic_store_n(&words[16], 1, __ATOMIC_RELEASE);
	answer("a store by the CPU releases a stream, after", "%.1f us (-1: never)",
		rc == 0 ? word_becomes(&words[24], 6) : -1.0);
	/* whatever the answer is, no stream may wait forever */
	__atomic_store_n(&words[0], UINT64_MAX / 2, __ATOMIC_RELEASE);
	rc = ask4(&second, &m, PROBE_SYNC, 0, 0, 0, 0);
	answer_rc("the streams end without an error", rc, &m);
stop_second:
	worker_stop(&second, 0);
stop_first:
	worker_stop(&first, 0);
close_fd:
	if (words != MAP_FAILED)
		munmap(words, WORDS_BYTES);
	close(fd);
}

static void question_events(void)
{
	struct worker maker, user;
	struct probe_message m = {0};
	uint64_t event, imported = 0, *words;
	int rc, fd = memfd_create("gpool-probe", MFD_CLOEXEC);

	heading("events between processes");
	if (fd < 0 || ftruncate(fd, WORDS_BYTES) < 0) {
		broken("cannot make shared memory", -errno, NULL);
		return;
	}
	words = mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (words == MAP_FAILED || worker_open(&maker, 0) < 0)
		goto close_fd;
	if (worker_open(&user, 0) < 0)
		goto stop_maker;
	rc = ask_with(&maker, &m, PROBE_WORDS, fd, NULL);
	if (rc == 0)
		rc = ask4(&maker, &m, PROBE_EVENT_CREATE, 0, 0, 0, 0);
	event = m.a;
	if (rc == 0)
		rc = ask4(&maker, &m, PROBE_WAIT, 0, 1, 0, 0); /* holds the event back */
	if (rc == 0)
		rc = ask4(&maker, &m, PROBE_EVENT_RECORD, event, 0, 0, 0);
	if (rc == 0)
		rc = ask4(&maker, &m, PROBE_EVENT_EXPORT, event, 0, 0, 0);
	answer_rc("can be made and exported", rc, &m);
	if (rc < 0)
		goto stop_user;
	rc = ask(&maker, &m, PROBE_EVENT_IMPORT);
	answer_rc("can be opened by the process that made it", rc, &m);
	ask4(&maker, &m, PROBE_EVENT_EXPORT, event, 0, 0, 0);
	rc = ask(&user, &m, PROBE_EVENT_IMPORT);
	answer_rc("can be opened by another", rc, &m);
	if (rc == 0) {
		imported = m.a;
		rc = ask4(&user, &m, PROBE_EVENT_QUERY, imported, 0, 0, 0);
		answer("while it is pending the other sees", "%s",
			rc == -EAGAIN     ? "pending"
				: rc == 0 ? "done"
					  : m.text);
	}
	__atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
	ask4(&maker, &m, PROBE_SYNC, 0, 0, 0, 0);
	if (imported) {
		rc = ask4(&user, &m, PROBE_EVENT_QUERY, imported, 0, 0, 0);
		answer("when it is done the other sees", "%s", rc == -EAGAIN ? "pending" : rc == 0 ? "done" : m.text);
		worker_stop(&maker, SIGKILL);
		rc = ask4(&user, &m, PROBE_EVENT_QUERY, imported, 0, 0, 0);
		answer("when its maker was killed the other sees", "%s",
			rc == -EAGAIN     ? "pending"
				: rc == 0 ? "done"
					  : m.text);
	}
stop_user:
	__atomic_store_n(&words[0], 1, __ATOMIC_RELEASE); /* otherwise the maker could not exit */
	worker_stop(&user, 0);
stop_maker:
	worker_stop(&maker, 0);
close_fd:
	if (words != MAP_FAILED)
		munmap(words, WORDS_BYTES);
	close(fd);
}

/*
 * question_kill() - kill a process that uses 1 GB, and print whether its pidfd becomes readable before its memory is
 * free.
 */
static void question_kill(struct worker *observer, bool working)
{
	enum { PIECES = 16 };
	struct worker victim;
	struct piece pieces[PIECES];
	struct probe_message m = {0};
	uint64_t before, begin, free_bytes;
	double fired = -1, freed = -1, now = 0, free_when_fired = -1;
	int pidfd, rc = 0;

	before = free_memory(observer);
	if (worker_open(&victim, 0) < 0)
		return;
	pidfd = (int)syscall(SYS_pidfd_open, victim.pid, 0);
	for (int i = 0; rc == 0 && i < PIECES; i++)
		rc = piece_create(&victim, &pieces[i], 64 * MB, &m);
	if (rc == 0)
		rc = ask4(&victim, &m, PROBE_FILL, pieces[0].va, pieces[0].bytes, 1, 0);
	if (rc < 0 || pidfd < 0) {
		broken("cannot make a process to kill", rc < 0 ? rc : -errno, &m);
		goto stop;
	}
	if (before - free_memory(observer) > (uint64_t)1 << 62 || before - free_memory(observer) < 1000 * MB) {
		answer("a process using 1 GB", "not to be seen from outside here, so not asked");
		goto stop;
	}
	if (working) { /* send a request for work, and do not wait for the answer */
		m.a = pieces[0].va;
		m.b = pieces[0].bytes;
		m.call = PROBE_FILL;
		peer_send(victim.socket, &m, sizeof(m), -1);
	}
	begin = probe_now();
	kill(victim.pid, SIGKILL);
	while ((fired < 0 || freed < 0) && now < FREE_TIMEOUT_MS) {
		struct pollfd ended = {.fd = pidfd, .events = POLLIN};
		bool fires = fired < 0 && poll(&ended, 1, 0) > 0;

		free_bytes = free_memory(observer);
		now = (double)(probe_now() - begin) / 1e6;
		if (fires) {
			fired = now;
			free_when_fired = ((double)before - (double)free_bytes) / (double)MB;
		}
		if (freed < 0 && free_bytes + MB >= before)
			freed = now;
	}
	answer(working ? "killed at work: its pidfd fires after, the memory is free after"
		       : "killed idle: its pidfd fires after, the memory is free after",
		"%.1f ms, %.1f ms (-1: not within %d ms)", fired, freed, FREE_TIMEOUT_MS);
	answer("still used right after the pidfd fired", "%.1f MB", free_when_fired);
stop:
	if (pidfd >= 0)
		close(pidfd);
	worker_stop(&victim, SIGKILL);
}

static void usage(void)
{
	printf("usage: probe [--backend NAME] [--device INDEX|UUID]\n"
	       "Asks the GPU and its driver what their documentation leaves open, and prints the answers.\n"
	       "Uses at most 4 GB of GPU memory, changes no settings.\n\n"
	       "  --backend NAME  cuda (default) or host\n"
	       "  --device ID     index or UUID of the device; 0\n"
	       "  --help          this text\n\n"
	       "Exit status: 0 all questions were asked, 1 the probe failed, 77 there is no such device.\n");
}

/* ask_all() - ask all questions. The observer has no context, since a context would change the numbers. */
static int ask_all(void)
{
	struct probe_message m = {.a = GPU_OPEN_OWNER};
	struct worker observer;
	int rc = worker_start(&target, &observer);

	if (rc < 0) {
		fprintf(stderr, "probe: cannot start a worker: %s\n", strerror(-rc));
		return EXIT_FAILURE;
	}
	rc = ask(&observer, &m, PROBE_OPEN);
	if (rc < 0) {
		printf("probe: skipped: no device '%s' of back end '%s': %s\n", target.device, target.backend, m.text);
		worker_stop(&observer, SIGKILL);
		return rc == -ENODEV || rc == -EOPNOTSUPP ? EXIT_SKIP : EXIT_FAILURE;
	}
	printf("device '%s' of back end '%s'", target.device, target.backend);
	rc = ask(&observer, &m, PROBE_MEMORY);
	if (rc == 0)
		printf(", %.1f of %.1f GB free\n", (double)m.a / 1e9, (double)m.b / 1e9);
	else
		printf("; how much memory is free cannot be asked: %s\n", m.text);
	question_owner(&observer);
	question_lifetime(&observer);
	question_costs();
	question_mapping();
	question_import();
	question_timeline();
	question_events();
	heading("a killed process that uses 1 GB");
	question_kill(&observer, false);
	question_kill(&observer, true);
	worker_stop(&observer, 0);
	return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"backend", required_argument, NULL, 'b'},
		{"device", required_argument, NULL, 'd'},
		{"help", no_argument, NULL, 'h'},
		{"worker", no_argument, NULL, 'w'},
		{NULL, 0, NULL, 0},
	};
	bool worker = false;
	int option;

	target.program = argv[0];
	while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (option) {
		case 'b': target.backend = optarg; break;
		case 'd': target.device = optarg; break;
		case 'w': worker = true; break;
		case 'h': usage(); return EXIT_SUCCESS;
		default: return EXIT_FAILURE;
		}
	}
	if (optind < argc || !gpu_backend(target.backend)) {
		fprintf(stderr, "probe: unknown argument or back end; see --help\n");
		return EXIT_FAILURE;
	}
	return worker ? probe_worker_main(target.backend, target.device) : ask_all();
}
