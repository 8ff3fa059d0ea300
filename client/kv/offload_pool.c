#include "client/kv/offload_pool.h"

#include "client/core/alloc.h"
#include "client/core/last_error.h"
#include "shm/plural.h"

#include <stdlib.h>

enum {
	PIECE_PAGES = 8,  /* chosen: several pages per request to the agent, but few enough that the agent finds runs */
	FETCHES_MOST = 8, /* maximum number of concurrent restores; each uses one of the session's 64 requests */
};

static struct kv_extent piece_extent(struct gpool_kv *kv, const struct kv_piece *piece)
{
	struct kv_extent extent = {.bytes = piece->block.page_count * kv->pool->page_bytes};

	gpool_address(kv->pool, &piece->block, &extent.address);
	return extent;
}

/* ---- save ---- */

/* Free the pinned pieces after the fence, which was recorded after the copies to them. */
static void pieces_undo(struct gpool_kv *kv, const struct kv_saved *saved, struct gpool_fence fence)
{
	for (uint32_t i = 0; i < saved->count; i++)
		gpool_free_after(kv->pool, &saved->pieces[i].block, fence);
	free(saved->pieces);
}

/* Allocate the largest possible piece, up to a limit that each refusal lowers. */
static int piece_alloc(struct gpool_kv *kv, const struct kv_sequence *sequence, uint64_t pages, uint32_t *limit,
	struct gpool_block *block)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	int error;

	options.flags = GPOOL_ALLOC_SPILL;
	options.usage = GPOOL_USAGE_KV_CACHE;
	options.owner_id = sequence->owner_id;
	options.stream = kv->stream;
	for (;;) {
		error = alloc_own(kv->pool, pages < *limit ? (uint32_t)pages : *limit, &options, 0, block);
		if (error != -ENOSPC || *limit == 1)
			return error;
		*limit /= 2;
	}
}

static int pieces_alloc(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved)
{
	uint64_t room = extent_room(kv, saved->flags, kv->pool->page_bytes), pages = (saved->bytes + room - 1) / room;
	uint32_t limit = PIECE_PAGES;

	/* Return early if the content does not fit even with one page per piece. */
	if (pages > kv->pool->page_count)
		return fail(-ENOSPC, "the content needs %llu page%s; the pool has %u", (unsigned long long)pages,
			plural(pages), kv->pool->page_count);
	saved->pieces = calloc(pages + 1, sizeof(*saved->pieces));
	if (!saved->pieces)
		return -ENOMEM;
	while (pages) {
		struct gpool_block *block = &saved->pieces[saved->count].block;
		int error = piece_alloc(kv, sequence, pages, &limit, block);

		if (error)
			return error;
		saved->count++;
		pages -= block->page_count;
	}
	return 0;
}

static int pieces_fill(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved)
{
	int64_t offset = 0;

	for (uint32_t i = 0; i < saved->count && offset >= 0; i++) {
		struct kv_extent extent = piece_extent(kv, &saved->pieces[i]);

		offset = extent_copy(kv, sequence, saved, (uint64_t)offset, &extent, true);
	}
	return offset < 0 ? (int)offset : 0;
}

int pieces_save(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved)
{
	int error = pieces_alloc(kv, sequence, saved);
	struct gpool_fence fence = {0};

	if (!error) {
		error = pieces_fill(kv, sequence, saved);
		fence = offload_behind(kv);
	}
	if (error) {
		pieces_undo(kv, saved, fence);
		return error;
	}
	/* The blocks have no fences of other streams, so these unpins need no joint fence and leave no pin. */
	for (uint32_t i = 0; i < saved->count; i++)
		gpool_unpin_after(kv->pool, &saved->pieces[i].block, fence);
	return 0;
}

/* ---- load ---- */

/* Return the result of a restore in progress, or -EAGAIN if it has not finished. */
static int piece_settle(struct gpool_kv *kv, struct kv_piece *piece, bool wait)
{
	int error = piece->coming ? spill_fetch_end(kv->pool, &piece->fetch, wait) : 0;

	if (error != -EAGAIN)
		piece->coming = false;
	return error;
}

/*
 * Pin a piece. If the pool has too few pages, wait for the copies of the previous piece, so that its pages can be
 * evicted.
 */
static int piece_pin(struct gpool_kv *kv, struct kv_piece *piece, struct gpool_fence before)
{
	int error;

	piece_settle(kv, piece, true);
	error = gpool_pin(kv->pool, &piece->block);
	if (error != -ENOSPC || !before.value)
		return error;
	gpool_fence_wait(kv->pool, before, -1);
	return gpool_pin(kv->pool, &piece->block);
}

int pieces_load(struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	struct kv_saved *saved = sequence->saved;
	struct gpool_fence fence = {0};
	int64_t offset = 0;

	/* Pin one piece at a time, so that earlier pieces can be evicted if the pool has too few pages. */
	for (uint32_t i = 0; i < saved->count; i++) {
		struct kv_piece *piece = &saved->pieces[i];
		struct kv_extent extent;
		int error = piece_pin(kv, piece, fence);

		if (error)
			return error;
		extent = piece_extent(kv, piece);
		offset = extent_copy(kv, sequence, saved, (uint64_t)offset, &extent, false);
		fence = offload_behind(kv);
		gpool_unpin_after(kv->pool, &piece->block, fence);
		if (offset < 0)
			return (int)offset;
	}
	return 0;
}

/* Return 0 if the piece is resident, -EAGAIN if its restore is in progress, otherwise the error. */
static int piece_fetch(struct gpool_kv *kv, struct kv_piece *piece, uint64_t spare_pages)
{
	int error = piece_settle(kv, piece, false);

	/* -EBUSY: the piece was being spilled when its restore was requested. Request it again. */
	if (error && error != -EBUSY)
		return error;
	if (spill_here(kv->pool, &piece->block))
		return 0;
	if (spare_pages < piece->block.page_count)
		return fail(-ENOSPC, "%u page%s %s needed to restore content; %llu are available",
			piece->block.page_count, plural(piece->block.page_count), be(piece->block.page_count),
			(unsigned long long)spare_pages);
	error = spill_fetch_begin(kv->pool, &piece->block, &piece->fetch);
	/* The spill was cancelled, so the piece is resident. */
	if (error == -EALREADY)
		return 0;
	piece->coming = !error;
	return error ? error : -EAGAIN;
}

int pieces_fetch(struct gpool_kv *kv, const struct kv_sequence *sequence)
{
	struct kv_saved *saved = sequence->saved;
	uint32_t missing = 0, coming = 0, pending = 0;
	uint64_t spare = memory_spare_pages(kv, sequence->blocks);
	int worst = 0;

	/* `spare` still includes the pages of restores in progress for which the agent has not lent any yet. */
	for (uint32_t i = 0; i < saved->count; i++)
		pending += saved->pieces[i].coming ? saved->pieces[i].block.page_count : 0;
	for (uint32_t i = 0; i < saved->count; i++) {
		struct kv_piece *piece = &saved->pieces[i];
		int error;

		if (!piece->coming &&
			(coming == FETCHES_MOST || (pending && spare < pending + piece->block.page_count))) {
			missing += piece->block.page_count;
			continue;
		}
		error = piece_fetch(kv, piece, saved->refused ? 0 : spare);
		pending += error == -EAGAIN ? piece->block.page_count : 0;
		saved->refused |= error == -ENOSPC;
		if (!error)
			continue;
		missing += piece->block.page_count;
		coming += error == -EAGAIN;
		if (error != -EAGAIN)
			worst = error;
	}
	saved->refused &= coming != 0;
	/* While restores are in progress, a shortage is not an error: the caller should call again. */
	return worst && (!coming || worst != -ENOSPC) ? worst : (int)missing;
}

void pieces_forget(struct gpool_kv *kv, struct kv_saved *saved)
{
	for (uint32_t i = 0; i < saved->count; i++) {
		piece_settle(kv, &saved->pieces[i], true);
		/* The check function of the thread must not keep the piece, which would be lost. */
		while (gpool_discard(kv->pool, &saved->pieces[i].block) == -EINTR)
			;
	}
	free(saved->pieces);
}
