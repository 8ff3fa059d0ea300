/*
 * engine.h - a process that uses KV memory as an LLM engine does, and checks every byte of it.
 *
 * It serves its requests of the board in order of arrival, as continuous batching does. An arrived request allocates
 * pages for its whole context or waits in the queue. Each step writes context of the admitted requests, up to a budget,
 * and one generated token for each request with complete context; a new page is allocated when the last one is full. If
 * there is none, the youngest request frees its pages and starts again later, so that older ones finish: requests never
 * wait for each other. A finished request is verified as a whole; its context stays in the prefix cache, unpinned, the
 * rest is freed.
 */
#ifndef GPOOL_DEMO_ENGINE_H
#define GPOOL_DEMO_ENGINE_H

#include <stdint.h>

/*
 * engine_main() - serve engine `index` of the board behind descriptor `fd` until all its requests are finished. Return:
 * the exit status.
 */
int engine_main(int fd, uint32_t index);

#endif
