/*
 * timeline_page.h - a page of shared memory with the timelines that a session shares with other sessions.
 *
 * The numbers that other processes may read need a separate memfd, because the session segment is shared only with the
 * agent. The worker creates, maps and seals it when it first exports a fence; no other process can ever write to it.
 * The agent forwards the memfd to sessions of the same trust domain. The worker's streams write the numbers that others
 * wait for both to this page and to the session segment (client/core/export.c). Readers must treat the page as
 * untrusted: it may signal a fence too early or too late, or mark a slot as failed, which affects only the waiters.
 */
#ifndef GPOOL_SHM_TIMELINE_PAGE_H
#define GPOOL_SHM_TIMELINE_PAGE_H

#include "shm/session_segment.h"

#define TIMELINE_PAGE_MAGIC UINT64_C(0x656d69743170673d) /* "=gp1time" */

struct timeline_page {
	uint64_t magic;
	uint32_t layout_version;
	uint32_t session;
	uint64_t key;             /* random, to distinguish sessions to which the same id was assigned */
	_Atomic uint64_t more[5]; /* more[0] to more[3]: timeline_page_failed(); more[4]: 0 */
	/* by stream slot: the value in the session segment, or an older one */
	_Atomic uint64_t signaled[SESSION_TIMELINES];
};
static_assert(sizeof(struct timeline_page) == 64 + SESSION_TIMELINES * 8, "shared layout");
static_assert(SESSION_TIMELINES / 64 <= 5, "a bit for each stream slot");

/* timeline_page_bytes() - return the size of the memfd. */
static inline size_t timeline_page_bytes(void)
{
	return system_pages(sizeof(struct timeline_page));
}

/*
 * timeline_page_fail() - mark a slot whose number will no longer change, because the session's GPU has failed.
 * timeline_page_failed() - return true if the slot is marked. A reader that finds the mark must read the number again:
 * progress before the failure counts.
 */
static inline void timeline_page_fail(struct timeline_page *page, uint32_t slot)
{
	atomic_fetch_or_explicit(&page->more[slot / 64], UINT64_C(1) << (slot % 64), memory_order_release);
}

static inline bool timeline_page_failed(const struct timeline_page *page, uint32_t slot)
{
	return atomic_load_explicit(&page->more[slot / 64], memory_order_acquire) >> (slot % 64) & 1;
}

/*
 * timeline_page_create() - create a page, map it for writing and seal it; the caller owns *fd. Return: 0, -EIO (no
 * random key), or the error of memfd_create, fchmod, ftruncate, mmap or fcntl.
 */
int timeline_page_create(uint32_t session, struct timeline_page **page, int *fd);

/*
 * timeline_page_verify() - check that a received descriptor is a timeline page that no process can map for writing.
 * Return: 0, -EPERM (its seals), -EBADMSG (its size).
 */
int timeline_page_verify(int fd);

/*
 * timeline_page_open() - map a received page for reading. Return: 0, -EPERM, -EBADMSG, -EPROTO (another layout),
 * -ENOMEM.
 */
int timeline_page_open(int fd, const struct timeline_page **page);

/* timeline_page_close() - unmap a page that was created or opened; NULL is allowed. */
void timeline_page_close(const struct timeline_page *page);

#endif
