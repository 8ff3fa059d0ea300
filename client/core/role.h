/* role.h - the roles of this process; the calls are in gpool.h. */
#ifndef GPOOL_CLIENT_ROLE_H
#define GPOOL_CLIENT_ROLE_H

struct gpool;

/* role_close() - forget the roles; the detach that follows releases them. */
void role_close(struct gpool *pool);

#endif
