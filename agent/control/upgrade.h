/*
 * upgrade.h - 'poolctl upgrade', as the agent sees it: it asks the keeper, which looks at the file, and passes on what
 * that says. When the file fits, KEEP_LEAVE follows and this agent is no more.
 */
#ifndef GPOOL_AGENT_UPGRADE_H
#define GPOOL_AGENT_UPGRADE_H

struct agent;
struct exchange;
struct keep_message;

int answer_upgrade(struct exchange *x);
void upgrade_answer(struct agent *agent, const struct keep_message *verdict);

#endif
