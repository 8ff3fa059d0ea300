/*
 * journal.h - the step that the agent is in, written down before its first store and struck out after its last: see
 * ledger.h. Costs a few stores to memory that nobody else looks at.
 */
#ifndef GPOOL_AGENT_JOURNAL_H
#define GPOOL_AGENT_JOURNAL_H

#include "agent/base/crash_point.h"
#include "agent/base/ledger.h"

/*
 * journal_begin() - the first run_count of ledger->runs, and what the caller has put into the other fields, are whole.
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
