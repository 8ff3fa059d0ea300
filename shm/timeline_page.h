/*
 * timeline_page.h - the timeline that a session shows to other sessions: a separate page of shared memory.
 *
 * The session segment is shared by the session and the agent only. The part of a session's streams that other processes
 * may see is therefore stored separately: one memfd of one page, created, mapped and sealed by its worker, so that no
 * other process can ever write to it. The agent forwards it to sessions of the same trust domain. A worker creates one
 * when it first exports a fence; its streams then write to it, in addition to the session segment, the numbers that
 * others wait for (client/core/export.c). Readers must treat it as untrusted: it may signal a fence too early or too
 * late, which affects only its waiters.
 */
#ifndef GPOOL_SHM_TIMELINE_PAGE_H
#define GPOOL_SHM_TIMELINE_PAGE_H

#include "shm/session_segment.h"

#define TIMELINE_PAGE_MAGIC UINT64_C(0x656d69743170673d) /* "=gp1time" */
enum { TIMELINE_PAGE_BYTES = 4096 };

struct timeline_page {
	uint64_t magic;
	uint32_t layout_version;
	uint32_t session;
	uint64_t key; /* random and unique, even if the session's id is assigned again */
	uint64_t more[5];
	/* by stream slot, as in the session segment; may lag behind it */
	_Atomic uint64_t signaled[SESSION_TIMELINES];
};
static_assert(sizeof(struct timeline_page) == 64 + SESSION_TIMELINES * 8, "shared layout");
static_assert(sizeof(struct timeline_page) <= TIMELINE_PAGE_BYTES, "one page");

/*
 * timeline_page_create() - create a page, mapped for writing and sealed; the caller owns *fd. Return: 0, or the error
 * of memfd_create, mmap, getrandom or fcntl.
 */
int timeline_page_create(uint32_t session, struct timeline_page **page, int *fd);

/*
 * timeline_page_verify() - check that a received descriptor is a page that no process can write any more: 0, -EPERM
 * (its seals), -EBADMSG (its size).
 */
int timeline_page_verify(int fd);

/* timeline_page_open() - map a received page for reading. 0, -EPERM, -EBADMSG, -EPROTO (another layout), -ENOMEM. */
int timeline_page_open(int fd, const struct timeline_page **page);

/* timeline_page_close() - unmap a page of either kind, or NULL. */
void timeline_page_close(const struct timeline_page *page);

#endif
