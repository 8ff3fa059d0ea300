/*
 * kv.h - the KV of one request: parts, each one block of pages, filled token by token with the request's pattern.
 *
 * The first part may be a prefix, the finished KV of another request that a follow-up continues: it is only read. Every
 * part is pinned for as long as the request has it.
 */
#ifndef GPOOL_DEMO_KV_H
#define GPOOL_DEMO_KV_H

#include "client/gpool.h"
#include "tools/demo/board.h"
#include "tools/demo/pattern.h"

#include <stdint.h>

/* A block with what is written in it. A value, as the block itself. */
struct kv_part {
	struct gpool_block block;
	unsigned char *memory;
	struct pattern_owner owner; /* whose pattern */
	uint32_t first_page;        /* which page of the owner's KV the block begins with */
	uint32_t tokens;            /* written in this part, from its beginning */
};

struct kv {
	struct kv_part *parts; /* [count] */
	uint32_t count, capacity;
	uint32_t pages;      /* that this request can write to or read from: prefix and own */
	uint32_t tokens;     /* in place */
	uint32_t has_prefix; /* parts[0] is one */
	uint32_t current;    /* part that holds the next token, or the last */
};

/* What all requests of an engine share. */
struct kv_context {
	struct gpool *pool;
	struct board_engine *score;
	uint64_t page_bytes;
	uint64_t token_bytes;
	uint32_t tokens_per_page;
};

/* kv_part_full_pages() - of it those that a follow-up may build on: pages with no token missing. */
uint32_t kv_part_full_pages(const struct kv_context *context, const struct kv_part *part);

/*
 * kv_part_check() - compare every byte that was written. Return: 0, or -EBADMSG, counted and reported as an error of
 * the
 * engine.
 */
int kv_part_check(const struct kv_context *context, const struct kv_part *part);

/*
 * kv_take() - more pages, in one block, for the owner's tokens to come.
 * Return: 0, -ENOSPC (none to be had in time; that is life), or another code of gpool_alloc(), which ends the engine.
 */
int kv_take(const struct kv_context *context, struct kv *kv, const struct pattern_owner *owner, uint32_t pages,
	int timeout_ms);

/* kv_set_prefix() - begin with the full pages of a pinned part; `kv` must be empty. Return: 0 or -ENOMEM. */
int kv_set_prefix(const struct kv_context *context, struct kv *kv, const struct kv_part *part);

/* kv_room() - tokens for which there are pages. */
uint32_t kv_room(const struct kv_context *context, const struct kv *kv);

/* kv_write() - the next `tokens` tokens, at most what there is room for. */
void kv_write(const struct kv_context *context, struct kv *kv, uint32_t tokens);

/* kv_check() - all parts. Return: 0 or -EBADMSG. */
int kv_check(const struct kv_context *context, const struct kv *kv);

/* kv_touch() - report the parts as used to the agent: a pin that is not refreshed counts as leaked. */
void kv_touch(const struct kv_context *context, const struct kv *kv);

/*
 * kv_release() - free the own parts but `keep`, which is left to the caller, pinned; so is the prefix, if there is one
 * (copied to *prefix before). keep NULL: all own parts. The kv is empty then.
 */
void kv_release(const struct kv_context *context, struct kv *kv, const struct kv_part *keep);

/* kv_destroy() - the memory of an empty kv. */
void kv_destroy(struct kv *kv);

#endif
