/*
 * pins.h - pinning: the worker's pin count and the agent's page word.
 *
 * The worker raises its own pin, then reads the page word; the agent marks the page word, then reads the pins. All four
 * accesses are sequentially consistent, so at least one side sees the store of the other. If the reads were only
 * acquire loads, each side could miss the store of the other (shown by tests/model/pin_evict.pml).
 * tests/stress/torture_threads --broken plants a bug, such as a pin that does not read the page word, and must detect
 * it.
 *
 * The worker writes its pins, and the agent writes the page words. The pins of a dead worker end with its segment.
 * Cost: one atomic add.
 */
#ifndef GPOOL_SHM_PINS_H
#define GPOOL_SHM_PINS_H

#include "shm/session_segment.h"

#include <errno.h>

/*
 * pin_raise() - add a pin and return the page word. The pin is added even if the page word has changed; the caller then
 * removes it with pin_drop().
 */
static inline uint64_t pin_raise(const struct session_segment *session, const _Atomic uint64_t *pages, uint32_t page)
{
	atomic_fetch_add_explicit(&session->pins[page], 1, memory_order_seq_cst);
	return atomic_load_explicit(&pages[page], memory_order_seq_cst);
}

/*
 * pin_drop() - remove a pin and return the previous count. Memory order: release, so that accesses under the pin happen
 * before its removal. If the agent has removed the pin (pins.leaked = "unpin"), the count is 0 and stays 0.
 */
static inline uint32_t pin_drop(const struct session_segment *session, uint32_t page)
{
	uint32_t pins = atomic_fetch_sub_explicit(&session->pins[page], 1, memory_order_release);

	if (__builtin_expect(pins == 0, 0))
		atomic_fetch_add_explicit(&session->pins[page], 1, memory_order_relaxed);
	return pins;
}

static inline uint32_t pin_count(const struct session_segment *session, uint32_t page)
{
	return atomic_load_explicit(&session->pins[page], memory_order_seq_cst);
}

/*
 * pin_try() - pin the block of a handle, provided that its first page still has this word and the block entry this tag.
 *
 * Return: 0, -EAGAIN (the page is being evicted or moved: wait and try again), -ESTALE (freed or evicted).
 */
static inline int pin_try(const struct session_segment *session, const _Atomic uint64_t *pages, uint32_t page,
	uint64_t word, uint64_t tag)
{
	uint64_t now = pin_raise(session, pages, page);

	if (__builtin_expect(now == word, 1) &&
		__builtin_expect(atomic_load_explicit(&session->blocks[page].tag, memory_order_seq_cst) == tag, 1))
		return 0;
	pin_drop(session, page);
	if (page_word_in_motion(now) && page_word_owner(now) == page_word_owner(word) &&
		page_word_generation(now) == page_word_generation(word))
		return -EAGAIN;
	return -ESTALE;
}

/*
 * object_pin_try() - pin a version of a named object that only pins protect (object_kept_by_pins()). `page` is its
 * first page. The object's record takes the role of the page word: the agent stores LEAVING, then reads the pins of the
 * readers. If the record is CURRENT and has this version after the pin was added, the version is not evicted while
 * pinned. A version number is used once and is stored before its record becomes CURRENT, so a CURRENT record with this
 * number is the version that was opened.
 *
 * Return: 0, -EAGAIN (being checked: wait and try again), -ESTALE (evicted).
 */
static inline int object_pin_try(
	const struct session_segment *session, const struct object_record *record, uint64_t version, uint32_t page)
{
	uint32_t state;

	atomic_fetch_add_explicit(&session->pins[page], 1, memory_order_seq_cst);
	state = atomic_load_explicit(&record->state, memory_order_seq_cst);
	if (__builtin_expect(state == OBJECT_CURRENT && record->version == version, 1))
		return 0;
	pin_drop(session, page);
	return state == OBJECT_LEAVING && record->version == version ? -EAGAIN : -ESTALE;
}

#endif
