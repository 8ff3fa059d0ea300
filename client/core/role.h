/* role.h - the roles of this process. The public calls are declared in gpool.h. */
#ifndef GPOOL_CLIENT_ROLE_H
#define GPOOL_CLIENT_ROLE_H

struct gpool;

/* role_close() - free the records of the roles; the detach that follows releases the roles. */
void role_close(struct gpool *pool);

#endif
