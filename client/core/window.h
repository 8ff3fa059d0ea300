/*
 * window.h - the window: an address range as large as the pool, in which page i is always at window_base + i *
 * page_bytes. Internal to libgpool.
 *
 * A handle is imported and mapped when one of its pages is first leased to this process. It remains mapped until
 * another trust domain needs it, so that the steady state needs no driver call.
 */
#ifndef GPOOL_CLIENT_WINDOW_H
#define GPOOL_CLIENT_WINDOW_H

#include "client/core/pool.h"

/*
 * window_open() - reserve the range. Return: 0, -ENOMEM. window_close() - unmap all of it, after all GPU work has
 * finished. Accepts a pool without a window.
 */
int window_open(struct gpool *pool);
void window_close(struct gpool *pool);

/* window_map() - map leased pages for reading and writing. Return: 0, -ENOMEM. */
int window_map(struct gpool *pool, uint32_t page, uint32_t page_count);

/*
 * window_map_at() - map the handles of leased pages or of pages of an object side by side at another address too,
 * without access. *at: the address, which is increased by the size of the mapped handles, even after an error.
 * Return: 0, -EPIPE, or the error of the back end.
 */
int window_map_at(struct gpool *pool, uint32_t page, uint32_t page_count, uint64_t *at);

/* window_has() - return true if the handle of a page is imported. */
bool window_has(const struct gpool *pool, uint32_t page);

/*
 * window_import() - import all handles of [first, first + count) that this session may use, many per request. Return:
 * 0, -EPIPE, -ENOMEM.
 */
int window_import(struct gpool *pool, uint32_t first, uint32_t count);

/*
 * window_protect() - make mapped pages read-only, or writable again. The driver sets the access of whole handles only:
 * pages stay writable if their handle also contains pages outside of the range. window_map() also restores write access
 * when pages of the handle are leased to this process again. Return: 0, -EBUSY (queued GPU work would lose its access),
 * -ENOMEM, or the error of the back end.
 */
int window_protect(struct gpool *pool, uint32_t first, uint32_t count, bool readonly);

/*
 * window_wanted() - return true if the handle of `page` is needed for another trust domain: its pages have no owner and
 * are not in use.
 */
bool window_wanted(const struct gpool *pool, uint32_t page);

/*
 * window_let_go() - unmap the handles whose pages are needed for another trust domain, notify the agent, and return the
 * number of these handles.
 */
int window_let_go(struct gpool *pool) COLD;

/*
 * window_let_go_unused() - if the pool has several trust domains, unmap all unused handles, even those that are not
 * needed elsewhere. Called before a long pause of this process.
 */
void window_let_go_unused(struct gpool *pool);

/*
 * A part of the library that maps handles outside the window, or that uses handles. It registers when it is opened,
 * which may precede window_open(). Its functions may be called until the window is closed.
 */
struct window_user {
	/*
	 * Unmap handles that are no longer in use. Return false if a handle that another trust domain needs may still
	 * be mapped.
	 */
	bool (*sweep)(struct gpool *pool);
	/* sweep() acquires only locks below window->lock; it is then also called with that lock held */
	bool sweeps_locked;
	/* Return true if this part of the library maps the handle. May be NULL. */
	bool (*maps)(const struct gpool *pool, uint32_t handle);
	/*
	 * Set the bit of each object number in use. *unsettled: set if an object in use has no number yet. The
	 * function may be NULL.
	 */
	void (*note_objects)(struct gpool *pool, uint64_t *numbers, bool *unsettled);
};

/*
 * window_register() - add a user, before any other thread uses the pool. *user must stay valid until the pool is
 * closed.
 */
void window_register(struct gpool *pool, const struct window_user *user);

/* window_keep_from_child() - exclude a mapping from forked children. */
void window_keep_from_child(const struct gpool *pool, uint64_t va, uint64_t bytes);

#endif
