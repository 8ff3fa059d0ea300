/* monitor.c - see monitor.h. Messages are large and therefore static; one thread uses this file. */
#include "tools/demo/monitor.h"

#include "client/core/request.h"
#include "proto/codec.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { REQUEST_TIMEOUT_MS = 5000, SETTLE_MS = 3000 };

static uint8_t request_bytes[MSG_ENVELOPE_BYTES + 256];
static uint8_t reply_bytes[MSG_BYTES_MAX];

int monitor_open(
	struct monitor *monitor, const char *directory, const char *const *pools, uint32_t count, int timeout_ms)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;

	memset(monitor, 0, sizeof *monitor);
	monitor->count = count;
	for (uint32_t i = 0; i < count; i++)
		monitor->pools[i] = pools[i];
	options.flags = GPOOL_OPEN_OBSERVER;
	options.directory = directory;
	options.name = "gpool-demo";
	options.timeout_ms = timeout_ms;
	return gpool_open(&options, &monitor->handle);
}

void monitor_close(struct monitor *monitor)
{
	gpool_close(monitor->handle);
	monitor->handle = NULL;
}

/*
 * Send the request in request_bytes[length], and receive the answer in reply_bytes. Return: its length, or negative
 * errno.
 */
static int ask(struct monitor *monitor, int length)
{
	if (length < 0)
		return length;
	return pool_request(monitor->handle, request_bytes, (size_t)length, reply_bytes, sizeof reply_bytes,
		REQUEST_TIMEOUT_MS, NULL);
}

static void take_client(
	const struct msg_client_entry *client, const char *const names[BOARD_ENGINES], struct run_sample *sample)
{
	for (int i = 0; i < BOARD_ENGINES; i++)
		if (strcmp(client->name, names[i]) == 0) {
			/*
			 * The session of a killed engine may exist for a while in addition to the session of the
			 * restarted engine.
			 */
			sample->engines[i].needed_pages += client->needed_pages;
			sample->engines[i].offered_pages += client->offered_pages;
			sample->engines[i].idle_pages += client->idle_pages;
		}
}

int monitor_sample(struct monitor *monitor, const char *const names[BOARD_ENGINES], struct run_sample *sample)
{
	static struct msg_clients_reply reply;
	struct msg_clients_request request = {.first = 0};

	do {
		int length = ask(
			monitor, msg_encode_clients_request(&request, 0, NULL, request_bytes, sizeof request_bytes));

		if (length < 0)
			return length;
		if (msg_decode_clients_reply(&reply, reply_bytes, (size_t)length) != 0)
			return -EBADMSG;
		for (uint32_t i = 0; i < reply.clients_count; i++)
			take_client(&reply.clients[i], names, sample);
		request.first = reply.next;
	} while (reply.next != 0);
	return 0;
}

static int read_status(struct monitor *monitor, struct run_agent *counted)
{
	static struct msg_status_reply reply;
	struct msg_status_request request = {0};
	int length = ask(monitor, msg_encode_status_request(&request, 0, NULL, request_bytes, sizeof request_bytes));

	if (length < 0)
		return length;
	if (msg_decode_status_reply(&reply, reply_bytes, (size_t)length) != 0)
		return -EBADMSG;
	memset(counted, 0, sizeof *counted);
	for (uint32_t i = 0; i < reply.pools_count; i++) {
		const struct msg_pool_status *pool = &reply.pools[i];

		counted->evictions += pool->evictions;
		counted->evicted_pages += pool->evicted_pages;
		counted->grants += pool->grants;
		counted->reclaims += pool->reclaims;
		counted->refusals += pool->refusals;
		counted->deaths += pool->deaths;
		counted->left_pages += pool->page_count - pool->free_pages - pool->reserved_pages;
	}
	return 0;
}

static int check(struct monitor *monitor, const char *pool, struct run_agent *counted)
{
	static struct msg_check_reply reply;
	struct msg_check_request request = {0};
	int length;

	snprintf(request.pool, sizeof request.pool, "%s", pool);
	length = ask(monitor, msg_encode_check_request(&request, 0, NULL, request_bytes, sizeof request_bytes));
	if (length < 0)
		return length;
	if (msg_decode_check_reply(&reply, reply_bytes, (size_t)length) != 0)
		return -EBADMSG;
	counted->pages_checked += reply.pages;
	counted->findings += reply.found;
	if (reply.findings_count > 0 && counted->finding[0] == '\0')
		snprintf(counted->finding, sizeof counted->finding, "pool '%s', page %u: %s", pool,
			reply.findings[0].page, reply.findings[0].text);
	return 0;
}

int monitor_finish(struct monitor *monitor, struct run_agent *counted)
{
	const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
	int error = read_status(monitor, counted);

	/* The engines have ended; the agent detects that through their sockets, with some delay. */
	for (int waited_ms = 0; !error && counted->left_pages > 0 && waited_ms < SETTLE_MS; waited_ms += 10) {
		nanosleep(&pause, NULL);
		error = read_status(monitor, counted);
	}
	for (uint32_t i = 0; !error && i < monitor->count; i++)
		error = check(monitor, monitor->pools[i], counted);
	return error;
}
