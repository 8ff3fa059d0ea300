/*
 * journal.h - the record of the agent's current step. It is written before the first store of the step and cleared
 * after the last one; see ledger.h. Cost: a few stores to memory that no other process reads.
 */
#ifndef GPOOL_AGENT_JOURNAL_H
#define GPOOL_AGENT_JOURNAL_H

#include "agent/base/crash_point.h"
#include "agent/base/ledger.h"

/*
 * journal_begin() - record a step. The caller has already filled the first run_count of ledger->runs and the other
 * fields.
 */
static inline void journal_begin(
	const struct ledger *ledger, enum ledger_step step, uint32_t session, uint32_t run_count)
{
	struct ledger_journal *journal = &ledger->header->journal;

	journal->session = session;
	journal->run_count = run_count;
	atomic_store_explicit(&journal->what, step, memory_order_release);
	crash_point();
}

static inline void journal_end(const struct ledger *ledger)
{
	atomic_store_explicit(&ledger->header->journal.what, LEDGER_REST, memory_order_release);
	crash_point();
}

#endif
