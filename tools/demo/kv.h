/*
 * kv.h - the KV of one request. It consists of parts; each is a block of pages, filled token by token with the
 * request's pattern. The first part may be a prefix: the finished KV of another request that this one continues, which
 * is only read. A request keeps all of its parts pinned.
 */
#ifndef GPOOL_DEMO_KV_H
#define GPOOL_DEMO_KV_H

#include "client/gpool.h"
#include "tools/demo/board.h"
#include "tools/demo/pattern.h"

#include <stdint.h>

/* A block and the range written in it. It is copied by value, like a block. */
struct kv_part {
	struct gpool_block block;
	uint64_t address;
	struct pattern_owner owner; /* owner of the pattern */
	uint32_t first_page;        /* index in the owner's KV of the block's first page */
	uint32_t tokens;            /* tokens written in this part */
};

struct kv {
	struct kv_part *parts; /* [count] */
	uint32_t count, capacity;
	uint32_t pages;      /* pages of this request, including the prefix */
	uint32_t tokens;     /* tokens written */
	uint32_t has_prefix; /* parts[0] is a prefix */
	uint32_t current;    /* index of the part with the next token, or with the last one */
};

/* State shared by all requests of an engine. */
struct kv_context {
	struct gpool *pool;
	struct board_engine *score;
	uint64_t page_bytes;
	uint64_t token_bytes;
	uint32_t tokens_per_page;
	/* if the CPU cannot access the pool's memory: a page of host memory through which it is copied; else NULL */
	unsigned char *stage;
	uint32_t stream; /* of the copies */
};

/* kv_context_open() - prepare the access to the memory of context->pool. Return: 0, -ENOMEM, -EIO, -ENODEV. */
int kv_context_open(struct kv_context *context);
void kv_context_close(struct kv_context *context);

/* kv_part_full_pages() - return the number of pages that a continuation can use: those with all of their tokens. */
uint32_t kv_part_full_pages(const struct kv_context *context, const struct kv_part *part);

/*
 * kv_part_check() - compare every byte that was written. Return: 0, or -EBADMSG, which is also counted as an error of
 * the engine.
 */
int kv_part_check(const struct kv_context *context, const struct kv_part *part);

/* kv_part_flip() - flip one bit of the byte at `offset` in the part. */
void kv_part_flip(const struct kv_context *context, const struct kv_part *part, uint64_t offset);

/*
 * kv_take() - allocate more pages, as one block, for the owner's next tokens.
 *
 * Return: 0, -ENOSPC (none in time, which is expected), or another error of gpool_alloc(), which ends the engine.
 */
int kv_take(const struct kv_context *context, struct kv *kv, const struct pattern_owner *owner, uint32_t pages,
	int timeout_ms);

/* kv_set_prefix() - begin with the full pages of a pinned part. `kv` must be empty. Return: 0 or -ENOMEM. */
int kv_set_prefix(const struct kv_context *context, struct kv *kv, const struct kv_part *part);

/* kv_room() - return the number of tokens for which pages are allocated. */
uint32_t kv_room(const struct kv_context *context, const struct kv *kv);

/* kv_write() - write the next `tokens` tokens; there must be room for them. */
void kv_write(const struct kv_context *context, struct kv *kv, uint32_t tokens);

/* kv_check() - check all parts. Return: 0 or -EBADMSG. */
int kv_check(const struct kv_context *context, const struct kv *kv);

/* kv_touch() - report the parts as used. A pin that is not refreshed counts as leaked. */
void kv_touch(const struct kv_context *context, const struct kv *kv);

/*
 * kv_release() - free the request's own parts except `keep`, and empty the kv. `keep` (NULL: none) and a prefix stay
 * pinned and belong to the caller, which has copied them before.
 */
void kv_release(const struct kv_context *context, struct kv *kv, const struct kv_part *keep);

/* kv_destroy() - free an empty kv. */
void kv_destroy(struct kv *kv);

#endif
