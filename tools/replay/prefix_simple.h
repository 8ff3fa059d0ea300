/*
 * prefix_simple.h - simple eviction policies, with which `adaptive` is compared. By default, they remember each key for
 * the whole replay, so they are upper estimates of what they would achieve in bounded memory.
 *
 *   fifo    evicts the block that was inserted first
 *   lfu     evicts the block with the fewest uses, and of these the one whose last use is the oldest
 *   lru2    evicts the block whose last use but one is the oldest (LRU-2); blocks used once come first
 *   gdsf    evicts the block with the fewest uses, plus the value of the last evicted block at its last use
 *           (Greedy-Dual-Size-Frequency; all blocks have the same size)
 *   s3fifo  S3-FIFO: a small queue of a tenth of the cache for new blocks, and a main queue for blocks that were used
 *           again, in the small queue or soon after it
 *
 * As with all policies of the tree, only blocks without followers are evicted. Where a policy would evict another
 * block, it takes the next one in its order.
 */
#ifndef GPOOL_REPLAY_PREFIX_SIMPLE_H
#define GPOOL_REPLAY_PREFIX_SIMPLE_H

#include "shm/policy/eviction.h"

extern const struct eviction_policy prefix_fifo, prefix_lfu, prefix_lru2, prefix_gdsf, prefix_s3fifo;

/*
 * prefix_simple_begin() - set the size of the cache and what is remembered; call it before the first insertion. It does
 * nothing for other policies.
 *
 * @capacity: size of the cache, in nodes
 * @keys:     number of keys
 * @history:  maximum number of evicted keys that lfu, lru2 and gdsf remember for each node of the cache, those that
 *            were used last; 0: all. fifo remembers none, and s3fifo at most one
 *
 * Return: 0, -ENOMEM.
 */
int prefix_simple_begin(struct eviction *eviction, const struct eviction_policy *policy, uint32_t capacity,
	uint32_t keys, uint32_t history);

#endif
