/*
 * upgrade.h - the agent's part of 'poolctl upgrade': forward the request to the keeper, which checks the module, and
 * return its verdict. If the module is compatible, the keeper then sends KEEP_LEAVE and this agent exits.
 */
#ifndef GPOOL_AGENT_UPGRADE_H
#define GPOOL_AGENT_UPGRADE_H

struct agent;
struct exchange;
struct keep_message;

int answer_upgrade(struct exchange *x);
void upgrade_answer(struct agent *agent, const struct keep_message *verdict);

#endif
