/*
 * take_restart.pml - allocate_free.pml with an agent that may be killed between any two stores while it evicts a block.
 *
 * The agent marks the word EVICTING and checks pins and tag. If it takes the block, it writes the block's runs to the
 * journal before it changes anything else. Threads continue to allocate, pin and free while no agent runs. The next
 * agent first completes the step in the journal. Then it restores each other EVICTING word, with the same generation.
 *
 * Proved: the properties of allocate_free; and no process waits forever on a word that a dead agent has marked.
 *
 * Planted bugs:
 *   BUG_JOURNAL_FIRST   the journal is written before the check of the pins
 *   BUG_JOURNAL_LATE    the journal is written after the tag is cleared
 *   BUG_WHAT_FIRST      the journal's `what` is stored before its runs
 *   BUG_REST_FIRST      the journal is cleared before the words
 *   BUG_HEAD_ONLY       the journal contains only the block's first page; with PAGES=2
 *   BUG_BACK_FIRST      recovery restores EVICTING words before it has completed the journal
 *   BUG_KEEP_TAG        recovery frees the pages and leaves the tag
 *   BUG_LEAVE_EVICTING  recovery leaves EVICTING words as they are
 *   BUG_NEW_GENERATION  recovery restores the word with a new generation
 *   BUG_BACK_FREE       recovery frees EVICTING pages without checking them again
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
