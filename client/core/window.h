/*
 * window.h - one address range as large as the pool: page i is always at window_base + i * page_bytes. Internal to
 * libgpool.
 *
 * A handle is imported and mapped when a page of it is first leased to this process, and then stays mapped, so that the
 * steady state needs no driver call.
 */
#ifndef GPOOL_CLIENT_WINDOW_H
#define GPOOL_CLIENT_WINDOW_H

#include "client/core/pool.h"

/*
 * window_open() - reserve the range: 0, -ENOMEM. window_close() - unmap all of it; GPU work must be done. Accepts a
 * pool without a window.
 */
int window_open(struct gpool *pool);
void window_close(struct gpool *pool);

/* window_map() - make leased pages usable: 0, -ENOMEM. */
int window_map(struct gpool *pool, uint32_t page, uint32_t page_count);

/* window_handle() - return the back end's handle of a leased page, to map it elsewhere too: 0, -ENOMEM. */
int window_handle(struct gpool *pool, uint32_t page, uint64_t *handle);

/* window_has() - return true if the handle of a page is imported. */
bool window_has(const struct gpool *pool, uint32_t page);

/*
 * window_import() - request all handles of [first, first + count) that this session may have, many at a time: 0,
 * -EPIPE, -ENOMEM.
 */
int window_import(struct gpool *pool, uint32_t first, uint32_t count);

/*
 * window_protect() - make mapped pages read-only, or writable again. window_map() restores write access, too, when
 * pages are leased to this process again. Return: 0, -EBUSY (queued GPU work would lose its access), -ENOMEM, or the
 * error of the back end.
 */
int window_protect(struct gpool *pool, uint32_t first, uint32_t count, bool readonly);

/*
 * window_wanted() - return true if all pages of the handle of `page` are needed for another trust domain: they have no
 * owner and are not in use.
 */
bool window_wanted(const struct gpool *pool, uint32_t page);

/*
 * window_let_go() - unmap the handles whose pages are needed for another trust domain, and notify the agent. Returns
 * their number.
 */
int window_let_go(struct gpool *pool) COLD;

/*
 * window_let_go_unused() - before a long pause of this process, unmap all unused handles, needed or not, if the pool
 * has several trust domains.
 */
void window_let_go_unused(struct gpool *pool);

/*
 * A part of the library that maps handles outside the window, or that has handles in use. It registers when it opens,
 * which may be before the window opens. Its functions may be called until the window is closed.
 */
struct window_user {
	/*
	 * Unmap handles that are not in use any more. Return false if one that another trust domain needs may still be
	 * mapped.
	 */
	bool (*sweep)(struct gpool *pool);
	/* sweep() acquires only locks below window->lock: it is called a second time, with that lock held */
	bool sweeps_locked;
	/* Return true if the part maps this handle; or NULL. */
	bool (*maps)(const struct gpool *pool, uint32_t handle);
	/* Set the bit of each object number in use; *unsettled: an object in use has no number yet. Or NULL. */
	void (*note_objects)(struct gpool *pool, uint64_t *numbers, bool *unsettled);
};

/*
 * window_register() - add a user, before any other thread uses the pool; *user must be valid until the pool is closed.
 */
void window_register(struct gpool *pool, const struct window_user *user);

/* window_keep_from_child() - exclude a mapping from forked children. */
void window_keep_from_child(const struct gpool *pool, uint64_t va, uint64_t bytes);

#endif
