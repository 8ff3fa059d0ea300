/*
 * take_restart.pml - allocate_free.pml with an agent that may be killed between any two stores while it evicts a block.
 *
 * The agent marks the word EVICTING, looks at pins and tag, and if it takes the block writes its runs into the journal before it
 * changes anything else. Threads allocate, pin and free on while no agent runs. The next one completes the step in the journal,
 * and only then puts back each EVICTING word with no journal, with the same generation.
 * Proved: what allocate_free proves, and that no process waits for ever on a word that a dead agent has marked.
 * Planted bugs:
 *   BUG_JOURNAL_FIRST   the journal is written before the look at the pins
 *   BUG_JOURNAL_LATE    the journal is written after the tag is cleared
 *   BUG_WHAT_FIRST      the journal's `what` is stored before its runs
 *   BUG_REST_FIRST      the journal is cleared before the words
 *   BUG_HEAD_ONLY       the journal names the head's page alone; with PAGES=2
 *   BUG_BACK_FIRST      recovery puts EVICTING words back before it has finished the journal
 *   BUG_KEEP_TAG        recovery frees the pages and leaves the tag
 *   BUG_LEAVE_EVICTING  recovery leaves EVICTING words as they are
 *   BUG_NEW_GENERATION  recovery puts the word back with a new generation
 *   BUG_BACK_FREE       recovery frees pages that are EVICTING without looking again
 */
#define AGENT "take_agent.h"
#ifndef OPS
#define OPS 2
#endif
#ifdef SMALL
#define OTHER_OPS 1
#define KILLS     1
#endif
#include "allocate_free.pml"
