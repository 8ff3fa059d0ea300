#include "tools/demo/kv.h"

#include "shm/plural.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int kv_context_open(struct kv_context *context)
{
	struct gpool_device_info device = {.size = sizeof device};
	int error = gpool_device_info(context->pool, &device);

	if (error || device.flags & GPOOL_DEVICE_HOST_POINTER)
		return error;
	context->stage = malloc(context->page_bytes);
	return context->stage ? gpool_stream_open(context->pool, NULL, 0, &context->stream) : -ENOMEM;
}

void kv_context_close(struct kv_context *context)
{
	if (context->stage)
		gpool_stream_close(context->pool, context->stream);
	free(context->stage);
	context->stage = NULL;
}

/* Copy between the stage and the pool's memory, and wait for the copy. */
static void stage_copy(const struct kv_context *context, uint64_t to, uint64_t from, uint64_t bytes)
{
	struct gpool_fence copied;
	int error = gpool_copy(context->pool, context->stream, to, from, bytes);

	if (!error)
		error = gpool_fence_record(context->pool, context->stream, &copied);
	if (!error)
		error = gpool_fence_wait(context->pool, copied, -1);
	if (error)
		board_error(context->score, "cannot copy %llu byte%s: %s", (unsigned long long)bytes, plural(bytes),
			gpool_strerror(error));
}

/* Return where the CPU can read `bytes` bytes at an address of the pool. */
static void *bytes_read(const struct kv_context *context, uint64_t address, uint64_t bytes)
{
	if (!context->stage)
		return (void *)(uintptr_t)address;
	stage_copy(context, (uintptr_t)context->stage, address, bytes);
	return context->stage;
}

/* Return the used bytes of a page that has `tokens` tokens. A full page also uses the rest at its end. */
static uint64_t page_filled(const struct kv_context *context, uint32_t tokens)
{
	return tokens == context->tokens_per_page ? context->page_bytes : tokens * context->token_bytes;
}

uint32_t kv_part_full_pages(const struct kv_context *context, const struct kv_part *part)
{
	return part->tokens / context->tokens_per_page;
}

int kv_part_check(const struct kv_context *context, const struct kv_part *part)
{
	uint32_t left = part->tokens;
	uint64_t checked = 0;

	for (uint32_t i = 0; left > 0; i++) {
		uint32_t tokens = left < context->tokens_per_page ? left : context->tokens_per_page;
		uint64_t words = page_filled(context, tokens) / sizeof(uint64_t);
		const uint64_t *page =
			bytes_read(context, part->address + i * context->page_bytes, words * sizeof(uint64_t));
		uint64_t seed = pattern_seed(&part->owner, part->first_page + i);
		int64_t wrong = pattern_check(page, seed, 0, words);

		if (wrong >= 0) {
			board_error(context->score,
				"wrong content: request %u of engine %u, life %u, page %u of its KV (page %u of the "
				"pool), word %lld: found %016llx, wrote %016llx",
				part->owner.request, part->owner.engine, part->owner.life, part->first_page + i,
				part->block.page + i, (long long)wrong, (unsigned long long)page[wrong],
				(unsigned long long)pattern_word(seed, (uint64_t)wrong));
			return -EBADMSG;
		}
		checked += words * sizeof(uint64_t);
		left -= tokens;
	}
	board_add(&context->score->bytes_verified, checked);
	return 0;
}

void kv_part_flip(const struct kv_context *context, const struct kv_part *part, uint64_t offset)
{
	unsigned char *byte = bytes_read(context, part->address + offset, 1);

	*byte ^= 0x10;
	if (context->stage)
		stage_copy(context, part->address + offset, (uintptr_t)byte, 1);
}

static int kv_append(struct kv *kv, const struct kv_part *part)
{
	if (kv->count == kv->capacity) {
		uint32_t more = kv->capacity ? kv->capacity * 2 : 8;
		struct kv_part *grown = realloc(kv->parts, more * sizeof *grown);

		if (!grown)
			return -ENOMEM;
		kv->parts = grown;
		kv->capacity = more;
	}
	kv->parts[kv->count++] = *part;
	return 0;
}

int kv_take(const struct kv_context *context, struct kv *kv, const struct pattern_owner *owner, uint32_t pages,
	int timeout_ms)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct kv_part part = {.owner = *owner, .first_page = kv->pages};
	int error;

	options.usage = GPOOL_USAGE_KV_CACHE;
	options.owner_id = owner->request;
	options.timeout_ms = timeout_ms;
	error = gpool_alloc(context->pool, pages, &options, &part.block);
	/*
	 * The session has no quota, so -EDQUOT means that the tenant's limit is reached. That limit is the whole pool;
	 * report the error as a shortage of pages.
	 */
	if (error)
		return error == -EDQUOT ? -ENOSPC : error;
	error = gpool_address(context->pool, &part.block, &part.address);
	if (error)
		goto free_block;
	error = kv_append(kv, &part);
	if (error)
		goto free_block;
	kv->pages += pages;
	return 0;

free_block:
	gpool_free(context->pool, &part.block);
	return error;
}

int kv_set_prefix(const struct kv_context *context, struct kv *kv, const struct kv_part *part)
{
	uint32_t pages = kv_part_full_pages(context, part);
	int error = kv_append(kv, part);

	if (error)
		return error;
	kv->has_prefix = 1;
	kv->current = 1;
	kv->pages = pages;
	kv->tokens = pages * context->tokens_per_page;
	return 0;
}

uint32_t kv_room(const struct kv_context *context, const struct kv *kv)
{
	return kv->pages * context->tokens_per_page - kv->tokens;
}

void kv_write(const struct kv_context *context, struct kv *kv, uint32_t tokens)
{
	uint64_t written = 0;

	while (tokens > 0) {
		uint32_t page = kv->tokens / context->tokens_per_page;
		uint32_t begin = kv->tokens % context->tokens_per_page;
		uint32_t count = context->tokens_per_page - begin;
		struct kv_part *part = &kv->parts[kv->current];
		uint64_t first, last, address;
		void *memory;

		if (page >= part->first_page + part->block.page_count) {
			kv->current++;
			continue;
		}
		count = count < tokens ? count : tokens;
		first = begin * context->token_bytes / sizeof(uint64_t);
		last = page_filled(context, begin + count) / sizeof(uint64_t);
		address = part->address + (page - part->first_page) * context->page_bytes;
		memory = context->stage ? context->stage : (void *)(uintptr_t)address;
		pattern_write(memory, pattern_seed(&part->owner, page), first, last - first);
		if (context->stage)
			stage_copy(context, address + first * sizeof(uint64_t),
				(uintptr_t)context->stage + first * sizeof(uint64_t),
				(last - first) * sizeof(uint64_t));
		written += (last - first) * sizeof(uint64_t);
		part->tokens += count;
		kv->tokens += count;
		tokens -= count;
	}
	board_add(&context->score->bytes_written, written);
}

int kv_check(const struct kv_context *context, const struct kv *kv)
{
	int error = 0;

	/* Check all parts even if one is wrong: each wrong part counts as an error. */
	for (uint32_t i = 0; i < kv->count; i++)
		if (kv_part_check(context, &kv->parts[i]) != 0)
			error = -EBADMSG;
	return error;
}

void kv_touch(const struct kv_context *context, const struct kv *kv)
{
	for (uint32_t i = 0; i < kv->count; i++)
		gpool_touch(context->pool, &kv->parts[i].block);
}

void kv_release(const struct kv_context *context, struct kv *kv, const struct kv_part *keep)
{
	for (uint32_t i = kv->has_prefix; i < kv->count; i++) {
		int error = 0;

		if (&kv->parts[i] != keep)
			error = gpool_free(context->pool, &kv->parts[i].block);
		if (error)
			board_error(context->score, "cannot free a pinned block at page %u: %s",
				kv->parts[i].block.page, gpool_strerror(error));
	}
	kv->count = kv->pages = kv->tokens = kv->has_prefix = kv->current = 0;
}

void kv_destroy(struct kv *kv)
{
	free(kv->parts);
	memset(kv, 0, sizeof *kv);
}
