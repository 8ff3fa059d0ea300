/* role.h - the roles of this process. The public calls are declared in gpool.h. */
#ifndef GPOOL_CLIENT_ROLE_H
#define GPOOL_CLIENT_ROLE_H

struct gpool;

/* role_close() - free this process's records of the roles. The agent releases the roles when the session ends. */
void role_close(struct gpool *pool);

#endif
