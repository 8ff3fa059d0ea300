/*
 * messages.c - the keeper's end of the channel to the agent: held items, readiness, upgrades.
 */
#include "agent/keeper/notify.h"
#include "agent/keeper/state.h"
#include "agent/base/log.h"
#include "proto/attach.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void hold(struct keeper *keeper, const struct keep_message *message, const int *fds, size_t fd_count)
{
	struct held item = {
		message->kind, message->pool, message->id, (uint32_t)fd_count, {0}, message->value, message->value2};
	int error;

	memcpy(item.fds, fds, fd_count * sizeof(*fds));
	error = message->pool < keeper->start.pool_count ? held_add(&keeper->held, &item) : -EINVAL;
	if (!error)
		return;
	log_error("cannot store an item of the agent (kind %u, pool %u, id %u): %s; a restarted agent will not have it",
		message->kind, message->pool, message->id, strerror(-error));
	held_close(&item);
}

static void ready(struct keeper *keeper)
{
	keeper->ready = true;
	keeper->start.adopted = 0;
	loader_close(&keeper->before);
	if (!keeper->ever_ready) {
		log_info("serving in '%s'", keeper->config->runtime_dir);
		notify_send("READY=1", -1);
	} else {
		log_info("serving again, incarnation %llu", (unsigned long long)keeper->start.incarnation);
	}
	keeper->ever_ready = true;
	movers_begin(keeper);
}

/* ---- an upgrade ---- */

static void verdict_send(struct keeper *keeper, int error, const char *text)
{
	struct keep_message message = {.what = KEEP_VERDICT, .id = (uint32_t)-error};

	snprintf(message.text, sizeof(message.text), "%s", text);
	error = attach_send(keeper->channel, &message, sizeof(message), NULL, 0);
	if (error)
		log_warning("cannot report the result of the upgrade to the agent: %s", strerror(-error));
}

static void upgrade_begin(struct keeper *keeper)
{
	char text[KEEP_TEXT_BYTES];
	int error = keeper->probe.pid || keeper->leaving || !keeper->ready ? -EBUSY : 0;

	if (error)
		snprintf(text, sizeof(text), "an upgrade is already in progress");
	else
		error = probe_start(&keeper->probe, keeper->loader.path, &keeper->shed, text, sizeof(text));
	if (!error)
		return;
	log_warning("upgrade refused: %s", text);
	verdict_send(keeper, error, text);
}

void upgrade_go_on(struct keeper *keeper)
{
	struct keep_message leave = {.what = KEEP_LEAVE};
	char text[KEEP_TEXT_BYTES];
	struct loader next;
	int error = probe_finish(&keeper->probe, &next, text, sizeof(text));

	if (error) {
		log_warning("upgrade refused: %s", text);
		verdict_send(keeper, error, text);
		return;
	}
	verdict_send(keeper, 0, text);
	error = attach_send(keeper->channel, &leave, sizeof(leave), NULL, 0);
	if (error) {
		log_error("cannot ask the agent to exit for an upgrade: %s; the agent continues with the old version",
			strerror(-error));
		loader_close(&next);
		return;
	}
	log_info("upgrade: the agent, the front and the movers continue with %s", text);
	loader_close(&keeper->before);
	keeper->before = keeper->loader;
	keeper->loader = next;
	keeper->leaving = true;
	keeper->stop_deadline_ms = keeper_ms() + STOP_PATIENCE_MS;
}

/* ---- reading ---- */

static void message_take(struct keeper *keeper, const struct keep_message *message)
{
	switch (message->what) {
	case KEEP_DROP: held_drop(&keeper->held, message->kind, message->pool, message->id); break;
	case KEEP_READY: ready(keeper); break;
	case KEEP_UPGRADE: upgrade_begin(keeper); break;
	default: log_warning("dropped a message of unknown kind %u from the agent", message->what);
	}
}

int channel_read(struct keeper *keeper)
{
	struct keep_message message;
	size_t fd_count = 0;
	int fds[KEEP_FDS_MAX];
	int length = attach_receive(keeper->channel, &message, sizeof(message), fds, KEEP_FDS_MAX, &fd_count, 0);

	if (length == sizeof(message) && message.what == KEEP_HOLD && fd_count) {
		hold(keeper, &message, fds, fd_count);
		return 0;
	}
	for (size_t i = 0; i < fd_count; i++)
		close(fds[i]);
	if (length == -EMFILE || length == -ENFILE)
		log_error("too few descriptors to store an item of the agent; a restarted agent will not have it; "
			  "raise RLIMIT_NOFILE");
	if (length == sizeof(message))
		message_take(keeper, &message);
	return length == -EAGAIN || length == -EPIPE ? length : 0;
}

void channel_drain(struct keeper *keeper)
{
	/* The agent is dead, so the number of messages is finite. */
	while (keeper->channel >= 0 && channel_read(keeper) == 0)
		;
	if (keeper->channel >= 0)
		close(keeper->channel);
	keeper->channel = -1;
}
