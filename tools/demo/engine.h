/*
 * engine.h - a process that does with KV memory what an LLM engine does, and checks every byte of it.
 *
 * It serves its requests of the board in order of arrival, as continuous batching does. A request that came takes pages
 * for its whole context or waits in the queue. Each step writes context of the admitted requests, up to a budget, and
 * one generated token for each that has its context; a new page is taken when the last one is full. When there is none,
 * the youngest request gives up its pages and starts over later, so that the older ones finish: no two requests ever
 * wait for each other. A finished request is verified as a whole; its context stays in the prefix cache, unpinned, the
 * rest is freed.
 */
#ifndef GPOOL_DEMO_ENGINE_H
#define GPOOL_DEMO_ENGINE_H

#include <stdint.h>

/*
 * engine_main() - serve engine `index` of the board behind descriptor `fd` until all its requests are finished. Exit
 * status.
 */
int engine_main(int fd, uint32_t index);

#endif
