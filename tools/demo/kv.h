/*
 * kv.h - the KV of one request: parts, each one block of pages, filled token by token with the request's pattern. The
 * first part may be a prefix, the finished KV of another request that a follow-up continues: it is only read. Every
 * part is pinned while the request has it.
 */
#ifndef GPOOL_DEMO_KV_H
#define GPOOL_DEMO_KV_H

#include "client/gpool.h"
#include "tools/demo/board.h"
#include "tools/demo/pattern.h"

#include <stdint.h>

/* A block and the range written in it. Copied by value, as a block. */
struct kv_part {
	struct gpool_block block;
	unsigned char *memory;
	struct pattern_owner owner; /* of the pattern */
	uint32_t first_page;        /* page of the owner's KV with which the block begins */
	uint32_t tokens;            /* number of tokens written in this part */
};

struct kv {
	struct kv_part *parts; /* [count] */
	uint32_t count, capacity;
	uint32_t pages;      /* that this request can read or write: prefix and its own */
	uint32_t tokens;     /* number of tokens written */
	uint32_t has_prefix; /* parts[0] is a prefix */
	uint32_t current;    /* part with the next token, or with the last one */
};

/* State shared by all requests of an engine. */
struct kv_context {
	struct gpool *pool;
	struct board_engine *score;
	uint64_t page_bytes;
	uint64_t token_bytes;
	uint32_t tokens_per_page;
};

/* kv_part_full_pages() - return the number of pages on which a follow-up can build: those with all tokens. */
uint32_t kv_part_full_pages(const struct kv_context *context, const struct kv_part *part);

/*
 * kv_part_check() - compare every byte that was written. Return: 0, or -EBADMSG, which counts as an error of the
 * engine.
 */
int kv_part_check(const struct kv_context *context, const struct kv_part *part);

/*
 * kv_take() - allocate more pages, in one block, for the owner's next tokens.
 *
 * Return: 0, -ENOSPC (none in time, which is expected), or another code of gpool_alloc(), which ends the engine.
 */
int kv_take(const struct kv_context *context, struct kv *kv, const struct pattern_owner *owner, uint32_t pages,
	int timeout_ms);

/* kv_set_prefix() - begin with the full pages of a pinned part; `kv` must be empty. Return: 0 or -ENOMEM. */
int kv_set_prefix(const struct kv_context *context, struct kv *kv, const struct kv_part *part);

/* kv_room() - return the number of tokens for which there are pages. */
uint32_t kv_room(const struct kv_context *context, const struct kv *kv);

/* kv_write() - write the next `tokens` tokens, at most as many as there is room for. */
void kv_write(const struct kv_context *context, struct kv *kv, uint32_t tokens);

/* kv_check() - check all parts. Return: 0 or -EBADMSG. */
int kv_check(const struct kv_context *context, const struct kv *kv);

/* kv_touch() - report the parts as used: a pin that is not refreshed counts as leaked. */
void kv_touch(const struct kv_context *context, const struct kv *kv);

/*
 * kv_release() - free its own parts except `keep`, which stays pinned and belongs to the caller; so does the prefix, if
 * there is one (copied to *prefix before). keep NULL: free all own parts. The kv is empty afterwards.
 */
void kv_release(const struct kv_context *context, struct kv *kv, const struct kv_part *keep);

/* kv_destroy() - free an empty kv. */
void kv_destroy(struct kv *kv);

#endif
