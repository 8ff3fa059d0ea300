/*
 * table.c - the device's copy of the tables.
 *
 * For each row, the entries between the first and the last changed entry are copied into a stage, which is host memory
 * that streams may read. A copy from the stage to the device is queued after all other work. The host can therefore
 * change its table immediately, and each kernel reads the table as it was when the kernel was queued. A stage is reused
 * when the fence recorded after its copies is signaled. Pages for the device's rows are committed when they are needed.
 */
#include "client/kv/kv.h"

#include <string.h>

/* Entries [first, first + count) of a row, which are being copied. */
struct piece {
	struct kv_sequence *sequence;
	uint32_t generation;
	uint32_t first, count;
};

struct batch {
	struct piece pieces[KV_STAGE_PIECES];
	uint32_t count, entries;
};

/* Add the sequence's remaining changes, or as many as fit. */
static void batch_add(struct gpool_kv *kv, struct batch *batch, struct kv_sequence *sequence, int32_t *entries)
{
	struct piece *piece = &batch->pieces[batch->count++];
	uint32_t room = KV_STAGE_ENTRIES - batch->entries, count = sequence->dirty_end - sequence->dirty_first;

	*piece = (struct piece){
		.sequence = sequence, .first = sequence->dirty_first, .count = count < room ? count : room};
	piece->generation = atomic_load_explicit(&sequence->generation, memory_order_relaxed);
	memcpy(entries + batch->entries, kv_table(kv, sequence) + piece->first, piece->count * sizeof(*entries));
	batch->entries += piece->count;
	if (piece->count == count)
		kv_clean(kv, sequence);
	else
		sequence->dirty_first += piece->count;
}

static void batch_fill(struct gpool_kv *kv, struct batch *batch, int32_t *entries)
{
	struct kv_sequence *sequence;

	batch->count = batch->entries = 0;
	pthread_mutex_lock(&kv->lock);
	while (batch->count < KV_STAGE_PIECES && batch->entries < KV_STAGE_ENTRIES &&
		(sequence = TAILQ_FIRST(&kv->dirty)))
		batch_add(kv, batch, sequence, entries);
	pthread_mutex_unlock(&kv->lock);
}

/*
 * Mark the entries of a failed copy as changed again, unless the sequence has ended or lost these blocks in the
 * meantime. The caller holds the lock.
 */
static void piece_return(struct gpool_kv *kv, const struct piece *piece)
{
	struct kv_sequence *sequence = piece->sequence;

	if (atomic_load_explicit(&sequence->generation, memory_order_relaxed) != piece->generation ||
		sequence->state != GPOOL_KV_RUNNING)
		return;
	for (uint32_t index = piece->first; index < piece->first + piece->count && index < sequence->blocks; index++)
		kv_set_entry(kv, sequence, index, kv_entry(kv, sequence, index));
}

static void batch_done(struct gpool_kv *kv, const struct batch *batch, int error)
{
	pthread_mutex_lock(&kv->lock);
	if (!error)
		kv->table_bytes += batch->entries * sizeof(int32_t);
	for (uint32_t i = 0; error && i < batch->count; i++)
		piece_return(kv, &batch->pieces[i]);
	pthread_mutex_unlock(&kv->lock);
}

/* Copy the entries of one row: commit their pages, then queue the copy. */
static int piece_copy(struct gpool_kv *kv, const struct piece *piece, const int32_t *entries)
{
	uint64_t offset = ((uint64_t)kv_row(kv, piece->sequence) * kv->columns + piece->first) * sizeof(int32_t);
	uint64_t bytes = piece->count * sizeof(int32_t), page_bytes = kv->pool->page_bytes;
	uint32_t first = (uint32_t)(offset / page_bytes), last = (uint32_t)((offset + bytes - 1) / page_bytes);
	int error = gpool_range_commit(kv->table_range, first, last - first + 1, 0);

	return error
		? error
		: gpool_copy(kv->pool, kv->stream, kv->table_address + offset, (uint64_t)(uintptr_t)entries, bytes);
}

static int batch_copy(struct gpool_kv *kv, const struct batch *batch, struct kv_stage *stage)
{
	const int32_t *entries = stage->entries;
	int error = 0;

	for (uint32_t i = 0; i < batch->count && !error; i++) {
		error = piece_copy(kv, &batch->pieces[i], entries);
		entries += batch->pieces[i].count;
	}
	/* Record the fence even if a copy failed, because earlier copies are queued. */
	stage->open = gpool_fence_record(kv->pool, kv->stream, &stage->fence) != 0;
	return error;
}

/* Wait until no copy reads the stage. */
static int stage_get(struct gpool_kv *kv, struct kv_stage *stage)
{
	int error = stage->open ? gpool_fence_record(kv->pool, kv->stream, &stage->fence) : 0;

	if (error)
		return error;
	stage->open = false;
	return gpool_fence_wait(kv->pool, stage->fence, -1);
}

static bool is_dirty(struct gpool_kv *kv)
{
	bool dirty;

	pthread_mutex_lock(&kv->lock);
	dirty = !TAILQ_EMPTY(&kv->dirty);
	pthread_mutex_unlock(&kv->lock);
	return dirty;
}

static int sync_batch(struct gpool_kv *kv)
{
	struct kv_stage *stage = &kv->stages[kv->stage];
	struct batch batch;
	int error = stage_get(kv, stage);

	if (error)
		return error;
	kv->stage = (kv->stage + 1) % KV_STAGES;
	batch_fill(kv, &batch, stage->entries);
	error = batch_copy(kv, &batch, stage);
	batch_done(kv, &batch, error);
	return error;
}

int gpool_kv_sync(struct gpool_kv *kv)
{
	int error = 0;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->sync_lock);
	while (!error && is_dirty(kv))
		error = sync_batch(kv);
	pthread_mutex_unlock(&kv->sync_lock);
	return error;
}
