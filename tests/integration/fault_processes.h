/*
 * fault_processes.h - rounds that involve the processes of gpoold: their deaths, upgrades, reloads and trust domains;
 * for fault_rounds.h.
 */
#ifndef GPOOL_TESTS_FAULT_PROCESSES_H
#define GPOOL_TESTS_FAULT_PROCESSES_H

#include "client/core/pool.h"
#include "client/core/request.h"
#include "proto/attach.h"
#include "proto/codec.h"
#include "tests/integration/fault_base.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* A session that sends invalid packets is disconnected. */
static int round_of_damage(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool *other;
	int error = gpool_open(session, &other);

	(void)pool;
	if (error)
		return error;
	for (int i = 0; i < AWAIT_TRIES && !atomic_load(&other->session.header->closed); i++) {
		attach_send(other->socket, "damage", 6, NULL, 0);
		poll(NULL, 0, AWAIT_STEP_MS);
	}
	error = atomic_load(&other->session.header->closed) ? 0 : -ETIMEDOUT;
	gpool_close(other);
	return error;
}

static pid_t keeper_pid(const char *where)
{
	char path[160], text[32] = "";
	int fd;

	snprintf(path, sizeof(path), "%s/gpoold.pid", where);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && read(fd, text, sizeof(text) - 1) < 0)
		text[0] = '\0';
	if (fd >= 0)
		close(fd);
	return (pid_t)atoi(text);
}

/* Return a child of the keeper by its name; 0: there is none. */
static pid_t keeper_child(pid_t keeper, const char *name)
{
	DIR *folder = opendir("/proc");
	const struct dirent *entry;
	pid_t found = 0;

	while (folder && !found && (entry = readdir(folder))) {
		char path[300], comm[17] = "";
		int parent = 0;
		FILE *file;

		snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
		file = atoi(entry->d_name) > 0 ? fopen(path, "re") : NULL;
		if (!file)
			continue;
		if (fscanf(file, "%*d (%16[^)]) %*c %d", comm, &parent) == 2 && parent == keeper && !strcmp(comm, name))
			found = (pid_t)atoi(entry->d_name);
		fclose(file);
	}
	if (folder)
		closedir(folder);
	return found;
}

static pid_t keeper_child_await(pid_t keeper, const char *name)
{
	pid_t found = 0;

	for (int i = 0; i < AWAIT_TRIES && !(found = keeper_child(keeper, name)); i++)
		poll(NULL, 0, AWAIT_STEP_MS);
	return found;
}

/* The previous agent answers before it exits, and serves until then. */
static int successor_await(const struct gpool *pool, uint64_t incarnation, int timeout_ms)
{
	for (int waited = 0; waited < timeout_ms; waited += AWAIT_STEP_MS) {
		if (atomic_load(&pool->segment.header->incarnation) != incarnation)
			return 0;
		poll(NULL, 0, AWAIT_STEP_MS);
	}
	return -ETIMEDOUT;
}

/* The agent dies, and the front does not end with it. */
static int round_of_hanging(struct gpool *pool, const struct gpool_options *session)
{
	uint64_t incarnation = atomic_load(&pool->segment.header->incarnation);
	pid_t keeper = keeper_pid(session->directory), front = keeper_child_await(keeper, "gpoold-front"),
	      agent = keeper_child_await(keeper, "gpoold-agent");
	struct gpool_block block;
	int error = keeper > 1 && front && agent ? 0 : -ENOENT;

	if (error)
		return error;
	kill(front, SIGSTOP);
	kill(agent, SIGKILL);
	error = successor_await(pool, incarnation, session->timeout_ms);
	/* Wait for the front's end, and for the next front. */
	for (int i = 0; !error && i < AWAIT_TRIES && kill(front, 0) == 0; i++)
		poll(NULL, 0, AWAIT_STEP_MS);
	if (!error && !keeper_child_await(keeper, "gpoold-front"))
		error = -ETIMEDOUT;
	if (!error)
		error = gpool_alloc(pool, PAGES / 4, NULL, &block);
	return error ? error : gpool_free(pool, &block);
}

/* Allocate and write all free pages. Return: 0, or an error other than a shortage. */
static int free_pages_write(struct gpool *pool)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;
	int error;

	options.flags = GPOOL_ALLOC_NO_EVICT;
	while (!(error = gpool_alloc(pool, 1, &options, &block)))
		if ((error = fill_and_verify(pool, &block, 9)))
			return error;
	return error == -ENOSPC ? 0 : error;
}

/*
 * The agent dies after the keeper has missed its message with the descriptors of a session. The process of the session
 * is alive, so its pages must not be given to another session. A fault ends the next agent before it serves, so the
 * wait for an agent does not depend on the timeout.
 */
static int round_of_lost(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_options options = options_of(session->directory, WAIT_MS);
	pid_t agent = keeper_child_await(keeper_pid(session->directory), "gpoold-agent");
	struct gpool *missed, *next;
	const uint64_t *words;
	struct gpool_block block;
	uint64_t address;
	int error;

	(void)pool;
	if (!agent)
		return -ENOENT;
	causes_begin();
	error = gpool_open(session, &missed);
	if (error)
		return error;
	error = gpool_alloc(missed, PAGES / 4, NULL, &block);
	if (!error)
		error = fill_and_verify(missed, &block, 7);
	if (!error)
		error = gpool_address(missed, &block, &address);
	if (error)
		return error;
	words = (const uint64_t *)(uintptr_t)address;
	kill(agent, SIGKILL);
	error = gpool_open(&options, &next);
	causes_end();
	if (error)
		return error;
	error = free_pages_write(next);
	for (size_t i = 0; !error && i < PAGES / 4 * gpool_page_bytes(next) / sizeof(*words); i += WORDS_APART)
		error = words[i] == 7 + i ? 0 : -EBADMSG;
	gpool_close(next);
	gpool_close(missed);
	return error;
}

/* The front does not get the token of a new session, until its socket accepts packets again. */
static int round_of_tokens(struct gpool *pool, const struct gpool_options *session)
{
	static uint8_t request[256], reply[MSG_BYTES_MAX];
	int length = msg_encode_status_request(&(struct msg_status_request){0}, 0, NULL, request, sizeof(request)),
	    error;
	struct gpool *other;

	/* The front answers when it has all tokens. */
	length = pool_request(pool, request, (size_t)length, reply, sizeof(reply), session->timeout_ms, NULL);
	causes_begin();
	if (length <= 0)
		return -ETIMEDOUT;
	error = gpool_open(session, &other);
	if (!error)
		gpool_close(other);
	return error;
}

/* Let gpoold read its configuration again until this process has received the event. */
static int round_of_events(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_event event = GPOOL_EVENT_INIT;
	pid_t keeper = keeper_pid(session->directory);
	int error = gpool_event_next(pool, 0, &event);

	if (keeper <= 1)
		return -ENOENT;
	for (int waited = 0; (!error || error == -ETIMEDOUT) && waited < session->timeout_ms; waited += AWAIT_STEP_MS) {
		if (!error && event.kind == GPOOL_EVENT_RELOAD)
			return 0;
		kill(keeper, SIGHUP);
		error = gpool_event_next(pool, AWAIT_STEP_MS, &event);
	}
	return error ? error : -ETIMEDOUT;
}

static inline void domains_write(const char *path)
{
	FILE *file = fopen(path, "we");
	char folder[128];

	snprintf(folder, sizeof(folder), "%s.d", path);
	if (!file || mkdir(folder, 0755))
		abort();
	fputs("pools = ( { name = \"p0\"; backend = \"host\"; size = \"64 pages\"; page_size = \"512KB\"; "
	      "reserved = \"0 pages\"; peers = \"1 2\"; } );\n"
	      "group = \"root\";\n"
	      "tenants = ( { name = \"red\"; users = [ \"1\" ]; domain = \"red\"; }, { name = \"blue\"; "
	      "domain = \"blue\"; } );\n"
	      "lease: { initial_pages = 0; batch_pages = 1; };\n",
		file);
	fclose(file);
}

/* Allocate three quarters of the pool, whose pages must contain no word of the other tenant, fill and free them. */
static int domain_use(struct gpool *pool, uint64_t word, int timeout_ms)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	size_t page_words = gpool_page_bytes(pool) / 8;
	struct gpool_block block;
	uint64_t address, *words;
	int error, freed;

	options.timeout_ms = timeout_ms;
	error = gpool_alloc(pool, PAGES * 3 / 4, &options, &block);
	if (error)
		return error;
	error = gpool_address(pool, &block, &address);
	words = (uint64_t *)(uintptr_t)address;
	for (size_t i = 0; !error && i < PAGES * 3 / 4; i++) {
		if (words[i * page_words] && words[i * page_words] != word)
			error = -EBADMSG;
		words[i * page_words] = word;
	}
	freed = gpool_free(pool, &block);
	return error ? error : freed;
}

/* Let both tenants use three quarters of the pool in turn, so that pages move in each direction. */
static int round_of_domains(const char *where, int timeout_ms)
{
	static const char *const names[] = {"red", "blue"};
	struct gpool_options options = options_of(where, timeout_ms);
	struct gpool *pools[2] = {NULL, NULL};
	int error = 0;

	for (int i = 0; i < 2 && !error; i++) {
		options.tenant = names[i];
		error = gpool_open(&options, &pools[i]);
	}
	for (int turn = 0; turn < 4 && !error; turn++) {
		struct gpool *pool = pools[turn % 2], *other = pools[(turn + 1) % 2];

		/* The agent clears the pages of the other tenant after its session has unmapped them. */
		error = domain_use(pool, 1 + (uint64_t)turn % 2, turn ? 20 : timeout_ms);
		for (int i = 0; error == -ENOSPC && i < AWAIT_TRIES / 20; i++) {
			gpool_release_unused(other);
			error = domain_use(pool, 1 + (uint64_t)turn % 2, 20);
			if (error && fault_has_happened() && i > 20)
				break;
		}
	}
	for (int i = 0; i < 2; i++)
		if (pools[i])
			gpool_close(pools[i]);
	return error;
}

/* Return: 0, -EIO if the agent has refused to continue with the module's file. */
static int upgrade(const struct gpool_options *options)
{
	static uint8_t reply[MSG_BYTES_MAX];
	const struct msg_upgrade_request request = {0};
	struct gpool_options admin_options = *options;
	struct msg_done_reply done;
	uint8_t message[256];
	struct gpool *admin;
	int error, length;

	admin_options.flags = GPOOL_OPEN_ADMIN;
	error = gpool_open(&admin_options, &admin);
	if (error)
		return error;
	length = msg_encode_upgrade_request(&request, 0, NULL, message, sizeof(message));
	length = pool_request(admin, message, (size_t)length, reply, sizeof(reply), options->timeout_ms, NULL);
	error = length > 0 && !msg_decode_done_reply(&done, reply, (size_t)length) ? 0 : -EIO;
	gpool_close(admin);
	return error;
}

static int round_of_upgrade(const char *where, int timeout_ms)
{
	struct gpool_options options = options_of(where, timeout_ms);
	struct gpool_block block, more;
	uint64_t incarnation;
	struct gpool *pool;
	int error;

	error = gpool_open(&options, &pool);
	if (error)
		return error;
	incarnation = atomic_load(&pool->segment.header->incarnation);
	error = gpool_alloc(pool, PAGES / 4, NULL, &block);
	if (!error)
		error = fill_and_verify(pool, &block, 7);
	if (!error)
		error = upgrade(&options);
	if (!error)
		error = successor_await(pool, incarnation, timeout_ms);
	if (!error)
		error = verify(pool, &block, 7);
	if (!error)
		error = gpool_alloc(pool, PAGES / 2, NULL, &more);
	if (!error)
		error = fill_and_verify(pool, &more, 8);
	gpool_close(pool);
	return error;
}

#endif
