#include "agent/control/upgrade.h"

#include "agent/control/exchange.h"
#include "agent/session/session.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int answer_upgrade(struct exchange *x)
{
	struct exchange_later *asker = &x->agent->upgrade_asker;
	struct msg_upgrade_request request;
	int error;

	if (DECODE(x, upgrade_request, &request))
		return exchange_malformed(x);
	if (asker->id && asker->sequence == x->sequence &&
		!memcmp(asker->token, x->session->token, sizeof(asker->token))) {
		asker->id = x->id; /* a repetition of the waiting request */
		return 0;
	}
	if (asker->id)
		return exchange_fail(x, -EBUSY,
			"another upgrade is in progress; wait until it has finished, as poolctl version shows");
	error = agent_tell_keeper(x->agent, &(struct keep_message){.what = KEEP_UPGRADE}, NULL, 0);
	if (error)
		return exchange_fail(x, error, "cannot forward the request to the keeper: %s", strerror(-error));
	asker->id = x->id;
	asker->sequence = x->sequence;
	memcpy(asker->token, x->session->token, sizeof(asker->token));
	return 0;
}

void upgrade_answer(struct agent *agent, const struct keep_message *verdict)
{
	struct exchange_later asker = agent->upgrade_asker;
	/* The text contains the file and the reason. Only errors that a request may return are passed on. */
	int error = !verdict->id                                                            ? 0
		: verdict->id == EPROTO || verdict->id == EBUSY || verdict->id == ETIMEDOUT ? -(int)verdict->id
											    : -EINVAL;
	char text[KEEP_TEXT_BYTES + 100];

	if (!asker.id)
		return;
	agent->upgrade_asker.id = 0;
	snprintf(text, sizeof(text), error ? "%.*s; the agent is unchanged" : "the agent continues with %.*s",
		KEEP_TEXT_BYTES - 1, verdict->text);
	exchange_answer_later(agent, &asker, error, text);
}
