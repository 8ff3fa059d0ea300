/*
 * role.h - what this process knows of its own roles; the calls are in gpool.h.
 */
#ifndef GPOOL_CLIENT_ROLE_H
#define GPOOL_CLIENT_ROLE_H

struct gpool;

/* role_close() - forget them: the detach that follows gives them back. */
void role_close(struct gpool *pool);

#endif
