/*
 * fault_processes.h - rounds with trust domains and upgrades; for fault_rounds.h.
 */
#ifndef GPOOL_TESTS_FAULT_PROCESSES_H
#define GPOOL_TESTS_FAULT_PROCESSES_H

#include "client/core/pool.h"
#include "client/core/request.h"
#include "proto/codec.h"
#include "tests/integration/fault_base.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static inline void domains_write(const char *path)
{
	FILE *file = fopen(path, "we");
	char folder[128];

	snprintf(folder, sizeof(folder), "%s.d", path);
	if (!file || mkdir(folder, 0755))
		abort();
	fputs("pools = ( { name = \"p0\"; backend = \"host\"; size = \"64 pages\"; page_size = \"512KB\"; "
	      "reserved = \"0 pages\"; } );\n"
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
