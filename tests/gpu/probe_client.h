/* probe_client.h - the part of probe.c that starts workers, sends requests to them, and moves memory between them. */
#ifndef GPOOL_TESTS_GPU_PROBE_CLIENT_H
#define GPOOL_TESTS_GPU_PROBE_CLIENT_H

#include "tests/gpu/peer.h"
#include "tests/gpu/probe_worker.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_TIMEOUT_S = 60 }; /* without an answer within this time, that is reported as the result */

/* The back end and device to probe, and the program that is executed for it. */
struct probe_target {
	const char *program;
	const char *backend;
	const char *device;
};

struct worker {
	pid_t pid;
	int socket;
};

static inline int worker_start(const struct probe_target *target, struct worker *w)
{
	char *arguments[] = {
		(char *)target->program,
		"--worker",
		"--backend",
		(char *)target->backend,
		"--device",
		(char *)target->device,
		NULL,
	};
	struct timeval timeout = {.tv_sec = ANSWER_TIMEOUT_S};
	pid_t pid = peer_start(arguments, &w->socket);

	if (pid < 0)
		return pid;
	w->pid = pid;
	setsockopt(w->socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	return 0;
}

/* worker_stop() - end a worker with a signal and wait for it; with `signal` 0, it ends by itself. */
static inline void worker_stop(struct worker *w, int signal)
{
	if (w->pid <= 0)
		return;
	if (signal)
		kill(w->pid, signal);
	close(w->socket);
	waitpid(w->pid, NULL, 0);
	w->pid = 0;
}

/*
 * ask() - let a worker make one call, with a descriptor in each direction. Return: the result of the call, or -EPIPE if
 * the call killed the worker.
 */
static inline int ask_with(struct worker *w, struct probe_message *m, enum probe_call call, int in, int *out)
{
	int rc, fd = -1;

	m->call = call;
	m->text[0] = '\0';
	rc = peer_send(w->socket, m, sizeof(*m), in);
	if (rc == 0)
		rc = peer_receive(w->socket, m, sizeof(*m), &fd);
	if (rc < 0) {
		/* Otherwise a late answer would be mistaken for the next one. */
		kill(w->pid, SIGKILL);
		if (rc != -EAGAIN) {
			snprintf(m->text, sizeof(m->text), "the worker died of it");
			return -EPIPE;
		}
		snprintf(m->text, sizeof(m->text), "no answer within %d s", ANSWER_TIMEOUT_S);
		return -ETIMEDOUT;
	}
	if (out)
		*out = fd;
	else if (fd >= 0)
		close(fd);
	return m->rc;
}

static inline int ask(struct worker *w, struct probe_message *m, enum probe_call call)
{
	return ask_with(w, m, call, -1, NULL);
}

/* ask4() - call ask() with the fields of the message as parameters. */
static inline int ask4(
	struct worker *w, struct probe_message *m, enum probe_call call, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	m->a = a;
	m->b = b;
	m->c = c;
	m->d = d;
	return ask(w, m, call);
}

/* A worker's memory and its mapping. */
struct piece {
	uint64_t handle, va, bytes;
};

/* piece_map() - reserve, map and give access to p->handle. Return: the first failure, with its text in m. */
static inline int piece_map(struct worker *w, struct piece *p, enum gpu_access access, struct probe_message *m)
{
	int rc = ask4(w, m, PROBE_RESERVE, p->bytes, 0, 0, 0);

	if (rc < 0)
		return rc;
	p->va = m->a;
	rc = ask4(w, m, PROBE_MAP, p->va, p->bytes, p->handle, 0);
	return rc < 0 ? rc : ask4(w, m, PROBE_ACCESS, p->va, p->bytes, access, 0);
}

static inline int piece_create(struct worker *w, struct piece *p, uint64_t bytes, struct probe_message *m)
{
	int rc = ask4(w, m, PROBE_CREATE, bytes, 0, 0, 0);

	if (rc < 0)
		return rc;
	p->handle = m->a;
	p->bytes = bytes;
	return piece_map(w, p, GPU_ACCESS_READ_WRITE, m);
}

/* piece_export(), piece_import() - export or import a descriptor with the position in `at`. */
static inline int piece_export(struct worker *w, const struct piece *p, struct gpu_export *at, struct probe_message *m)
{
	int rc;

	m->a = p->handle;
	rc = ask_with(w, m, PROBE_EXPORT, -1, &at->fd);
	at->offset = m->b;
	at->length = m->c;
	return rc < 0 ? rc : at->fd < 0 ? -EBADF : 0;
}

static inline int piece_import(struct worker *w, struct piece *p, const struct gpu_export *at, struct probe_message *m)
{
	int rc;

	m->b = at->offset;
	m->c = at->length;
	rc = ask_with(w, m, PROBE_IMPORT, at->fd, NULL);
	p->handle = m->a;
	p->bytes = at->length;
	return rc;
}

#endif
