/*
 * engine.h - a process that uses KV memory as an LLM engine does, and checks every byte of it.
 *
 * The engine serves its requests of the board in order of arrival, with continuous batching. A request that arrives
 * allocates pages for its whole context or waits in the queue. Each step writes context of the admitted requests, up to
 * a budget, and one generated token for each request whose context is complete.
 *
 * When the last page of a request is full, the request allocates another page. If no page is available, the youngest
 * request frees its pages and starts again later. Older requests can therefore finish, and requests never wait for each
 * other.
 *
 * A finished request is verified completely. If continuations are enabled and its context has a full page, the context
 * is kept in the prefix cache, unpinned. Its other pages are freed.
 */
#ifndef GPOOL_DEMO_ENGINE_H
#define GPOOL_DEMO_ENGINE_H

#include <stdint.h>

/*
 * engine_main() - serve engine `index` of the board of descriptor `fd` until all its requests are finished. Return:
 * the exit status.
 */
int engine_main(int fd, uint32_t index);

#endif
