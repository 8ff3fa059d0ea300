/*
 * timeline_page.h - the timeline that a session shows to others: a page of shared memory of its own.
 *
 * The session segment is the session's and the agent's alone. So what other processes may see of a session's streams
 * lies apart: one memfd of one page, made, mapped and sealed by its worker, so that nobody else can ever write to it;
 * the agent hands it on to sessions of the same trust domain. A worker makes one when it first exports a fence, and its
 * streams write there, beside the session segment, the numbers that others wait for (client/core/export.c). To its
 * readers all of it is hostile: it may say too early or too late that a fence is reached, which harms those alone that
 * wait for it.
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
	uint64_t key; /* random: no other page has it, also when its session's id is given to another one */
	uint64_t more[5];
	_Atomic uint64_t reached[SESSION_TIMELINES]; /* by stream slot, as in the session segment; may be behind that */
};
static_assert(sizeof(struct timeline_page) == 64 + SESSION_TIMELINES * 8, "shared layout");
static_assert(sizeof(struct timeline_page) <= TIMELINE_PAGE_BYTES, "one page");

/*
 * timeline_page_create() - mapped for writing and sealed; *fd is the caller's. 0, or what memfd_create, mmap,
 * getrandom, fcntl said.
 */
int timeline_page_create(uint32_t session, struct timeline_page **page, int *fd);

/*
 * timeline_page_verify() - whether a received descriptor is a page that nobody can write any more: 0, -EPERM (its
 * seals), -EBADMSG (its size).
 */
int timeline_page_verify(int fd);

/*
 * timeline_page_open() - map one that was received for reading. 0, -EPERM, -EBADMSG, -EPROTO (another layout), -ENOMEM.
 */
int timeline_page_open(int fd, const struct timeline_page **page);

/* timeline_page_close() - of either kind; NULL is fine. */
void timeline_page_close(const struct timeline_page *page);

#endif
