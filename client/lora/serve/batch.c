/* batch.c - create a batch, set its adapters, and apply it; see batch.h. */
#include "client/lora/serve/batch.h"

#include "client/core/alloc.h"
#include "client/core/last_error.h"
#include "client/core/stream.h"
#include "shm/plural.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- create and destroy ---- */

static uint64_t align_up(uint64_t bytes, uint64_t align)
{
	return (bytes + align - 1) / align * align;
}

static uint64_t table_bytes(const struct gpool_lora_batch *batch)
{
	return (uint64_t)batch->places * sizeof(struct lora_adapter);
}

static int options_check(struct gpool *pool, const struct gpool_lora_batch_options *options)
{
	const struct {
		const char *name;
		uint32_t value, least, most;
	} numbers[] = {
		{"flags", options->flags, 0, 0},
		{"tokens_max", options->tokens_max, 1, LORA_TOKENS_MAX},
		{"adapters_max", options->adapters_max, 0, BATCH_ADAPTERS_MAX},
		{"rank_max", options->rank_max, 0, LORA_RANK_MAX},
		{"element", options->element, GPOOL_LORA_F16, GPOOL_LORA_BF16},
		{"layers", options->layers, 0, ADAPTER_LAYERS_MAX},
		{"target_count", options->target_count, 1, BATCH_PLACES_MAX},
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
		if (numbers[i].value < numbers[i].least || numbers[i].value > numbers[i].most)
			return fail(-EINVAL, "%s is %u; it must be %u to %u", numbers[i].name, numbers[i].value,
				numbers[i].least, numbers[i].most);
	if (!options->targets)
		return fail(-EINVAL, "targets is NULL");
	return stream_check(pool, options->stream);
}

static int targets_copy(struct gpool_lora_batch *batch, const struct gpool_lora_target *targets, uint32_t count)
{
	batch->targets = calloc(count, sizeof(*batch->targets));
	if (!batch->targets)
		return -ENOMEM;
	for (batch->target_count = 0; batch->target_count < count; batch->target_count++) {
		const struct gpool_lora_target *from = &targets[batch->target_count];
		struct batch_target *to = &batch->targets[batch->target_count];

		if (!from->name || !*from->name)
			return fail(-EINVAL, "target %u has no name", batch->target_count);
		if (!from->in || !from->out || from->in > ADAPTER_FEATURES_MAX || from->out > ADAPTER_FEATURES_MAX)
			return fail(-EINVAL,
				"target '%s' has %u input feature%s and %u output feature%s; it must have 1 to %d of "
				"each",
				from->name, from->in, plural(from->in), from->out, plural(from->out),
				ADAPTER_FEATURES_MAX);
		*to = (struct batch_target){
			.in_layers = strchr(from->name, '*'), .in = from->in, .out = from->out, .place = batch->places};
		batch->places += to->in_layers ? batch->layers : 1;
		if (to->in_layers && !batch->layers)
			return fail(-EINVAL, "target '%s' is in layers, but layers is 0", from->name);
		if (batch->places > BATCH_PLACES_MAX)
			return fail(-EINVAL, "all layers together have %u target%s; the maximum is %d", batch->places,
				plural(batch->places), BATCH_PLACES_MAX);
		for (uint32_t i = 0; i < batch->target_count; i++)
			if (!strcmp(batch->targets[i].name, from->name))
				return fail(-EINVAL, "duplicate target '%s'", from->name);
		to->name = strdup(from->name);
		if (!to->name)
			return -ENOMEM;
	}
	return 0;
}

static int lists_alloc(struct gpool_lora_batch *batch)
{
	batch->slots = calloc(batch->adapters_max, sizeof(*batch->slots));
	batch->joiners = calloc(batch->adapters_max, sizeof(*batch->joiners));
	batch->leaving = calloc(batch->adapters_max, 2 * sizeof(*batch->leaving));
	batch->token_slots = calloc(batch->tokens_max, sizeof(*batch->token_slots));
	return batch->slots && batch->joiners && batch->leaving && batch->token_slots ? 0 : -ENOMEM;
}

/* Allocate the stages, each of which mirrors the device memory before the workspace. */
static int staging_alloc(struct gpool_lora_batch *batch)
{
	uint64_t each = system_pages(batch->workspace_at);
	void *memory = mmap(NULL, each * BATCH_STAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int error;

	if (memory == MAP_FAILED)
		return -ENOMEM;
	error = gpu_host_register(batch->lora->pool->gpu, memory, each * BATCH_STAGES);
	if (error) {
		munmap(memory, each * BATCH_STAGES);
		return error;
	}
	batch->staging = memory;
	batch->staging_bytes = each * BATCH_STAGES;
	for (int i = 0; i < BATCH_STAGES; i++)
		batch->stages[i].memory = (uint8_t *)memory + (uint64_t)i * each;
	return 0;
}

static int device_alloc(struct gpool_lora_batch *batch)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool *pool = batch->lora->pool;
	uint64_t workspace = 0, page_bytes = pool->page_bytes;
	int error;

	for (uint32_t i = 0; i < batch->target_count; i++) {
		uint64_t bytes = lora_workspace_bytes(batch->tokens_max, batch->rank_max, batch->targets[i].in);

		workspace = bytes > workspace ? bytes : workspace;
	}
	batch->tables_at = align_up(lora_batch_bytes(batch->tokens_max, batch->adapters_max), 256);
	batch->workspace_at = align_up(batch->tables_at + batch->adapters_max * table_bytes(batch), 256);
	batch->bytes = align_up(batch->workspace_at + workspace, page_bytes);
	if (batch->bytes / page_bytes > pool->page_count)
		return fail(-ENOSPC, "a batch of this size needs %llu page%s; the pool has %u",
			(unsigned long long)(batch->bytes / page_bytes), plural(batch->bytes / page_bytes),
			pool->page_count);
	options.usage = GPOOL_USAGE_TEMP_BUFFER;
	options.stream = batch->stream;
	error = alloc_own(pool, (uint32_t)(batch->bytes / page_bytes), &options, BLOCK_RANGE, &batch->block);
	return error ? error : gpool_address(pool, &batch->block, &batch->address);
}

static struct lora_args args_of(const struct gpool_lora_batch *batch, const struct batch_target *target, uint32_t place)
{
	return (struct lora_args){
		.batch = batch->address,
		.adapters = batch->address + batch->tables_at + place * sizeof(struct lora_adapter),
		.workspace = batch->address + batch->workspace_at,
		.adapter_count = batch->adapters_max,
		.tokens_max = batch->tokens_max,
		.rank_max = batch->rank_max,
		.in = target->in,
		.out = target->out,
		.element = batch->element,
		.adapter_stride = (uint32_t)table_bytes(batch),
	};
}

/*
 * Initialize the device memory with zeros: a batch without tokens, tables without adapters, and the initial workspace.
 * Then run both kernels once without tokens. Their images are therefore loaded before a program captures graphs, and
 * missing images are detected here.
 */
static int device_begin(struct gpool_lora_batch *batch)
{
	struct lora_args args = args_of(batch, &batch->targets[0], 0);
	int error = gpool_fill(batch->lora->pool, batch->stream, batch->address, 0, batch->bytes);

	args.x = args.y = args.workspace;
	args.x_stride = (uint32_t)align_up(args.in, 8);
	args.y_stride = (uint32_t)align_up(args.out, 8);
	return error ? error : stream_kernel(batch->lora->pool, batch->stream, STREAM_LORA, &args);
}

static void batch_free(struct gpool_lora_batch *batch)
{
	struct gpool *pool = batch->lora->pool;

	if (batch->staging) {
		gpu_host_unregister(pool->gpu, batch->staging);
		munmap(batch->staging, batch->staging_bytes);
	}
	if (batch->block.page_count)
		gpool_free(pool, &batch->block);
	for (uint32_t i = 0; batch->targets && i < batch->target_count; i++)
		free(batch->targets[i].name);
	free(batch->targets);
	free(batch->slots);
	free(batch->joiners);
	free(batch->leaving);
	free(batch->token_slots);
	free(batch->slot_of);
	free(batch);
}

static int batch_wait(struct gpool_lora_batch *batch)
{
	struct gpool_fence fence;
	int error = gpool_fence_record(batch->lora->pool, batch->stream, &fence);

	/* -EINVAL: the stream was closed, so its work is done. */
	return error == -EINVAL ? 0 : error ? error : gpool_fence_wait(batch->lora->pool, fence, -1);
}

int gpool_lora_batch_create(
	struct gpool_lora *lora, const struct gpool_lora_batch_options *options, struct gpool_lora_batch **batch)
{
	struct gpool_lora_batch_options read = GPOOL_LORA_BATCH_OPTIONS_INIT;
	struct gpool_lora_batch *made;
	int error;

	if (!lora->pool->alive)
		return -ECHILD;
	error = options_read(&read, sizeof(read), options);
	if (!error)
		error = options_check(lora->pool, &read);
	if (error)
		return error;
	made = calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	made->lora = lora;
	made->tokens_max = read.tokens_max;
	made->adapters_max = read.adapters_max ? read.adapters_max : BATCH_ADAPTERS_DEFAULT;
	made->rank_max = read.rank_max ? read.rank_max : LORA_RANK_MAX;
	made->layers = read.layers;
	made->stream = read.stream;
	made->element = read.element == GPOOL_LORA_F16 ? ELEMENT_F16 : ELEMENT_BF16;
	error = targets_copy(made, read.targets, read.target_count);
	if (!error)
		error = lists_alloc(made);
	if (!error)
		error = device_alloc(made);
	if (!error)
		error = staging_alloc(made);
	if (!error)
		error = device_begin(made);
	if (error) {
		/* If the work does not end, the block stays allocated. */
		if (made->block.page_count && batch_wait(made))
			made->block.page_count = 0;
		batch_free(made);
		return error;
	}
	lora_user_add(lora, 1);
	*batch = made;
	return 0;
}

/* ---- release adapters of earlier batches ---- */

/* Release the adapters of earlier batches after the queued work. If a release fails, the next call repeats it. */
static void leavers_release(struct gpool_lora_batch *batch, struct gpool_fence fence)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < batch->leaving_count; i++)
		if (gpool_lora_release(batch->lora, batch->leaving[i], fence))
			batch->leaving[kept++] = batch->leaving[i];
	batch->leaving_count = kept;
}

static void slot_leave(struct gpool_lora_batch *batch, struct batch_slot *slot)
{
	if (slot->held)
		batch->leaving[batch->leaving_count++] = slot->id;
	slot->held = false;
}

/* Make room in the list for the adapters of all slots. Return: 0, -ENOMEM, or the error of the fence. */
static int leavers_make_room(struct gpool_lora_batch *batch)
{
	struct gpool_fence fence;
	int error;

	if (!batch->leaving_count)
		return 0;
	error = gpool_fence_record(batch->lora->pool, batch->stream, &fence);
	if (!error)
		leavers_release(batch, fence);
	return error ? error : batch->leaving_count > batch->adapters_max ? -ENOMEM : 0;
}

int gpool_lora_batch_destroy(struct gpool_lora_batch *batch)
{
	struct gpool_fence signaled = {0};
	int error;

	if (!batch)
		return 0;
	if (!batch->lora->pool->alive)
		return -ECHILD;
	error = batch_wait(batch);
	if (error)
		return error;
	for (uint32_t i = 0; i < batch->adapters_max; i++)
		slot_leave(batch, &batch->slots[i]);
	leavers_release(batch, signaled);
	lora_user_add(batch->lora, -1);
	batch_free(batch);
	return 0;
}

/* ---- adapters of the next batch ---- */

/*
 * Encode or decode the index of an adapter that has no slot yet while a batch is made. The codes are below
 * BATCH_NO_SLOT.
 */
static int32_t joiner_mark(int32_t joiner)
{
	return -2 - joiner;
}

static int ids_have(struct gpool_lora_batch *batch, uint32_t id)
{
	uint32_t count = batch->id_count ? batch->id_count : 64;
	int32_t *slot_of;

	if (id < batch->id_count)
		return 0;
	while (count <= id)
		count *= 2;
	slot_of = realloc(batch->slot_of, count * sizeof(*slot_of));
	if (!slot_of)
		return -ENOMEM;
	for (uint32_t i = batch->id_count; i < count; i++)
		slot_of[i] = BATCH_NO_SLOT;
	batch->slot_of = slot_of;
	batch->id_count = count;
	return 0;
}

/* Register the adapter of a token if it is not registered for the batch yet. */
static void adapter_note(struct gpool_lora_batch *batch, uint32_t id, uint32_t *count)
{
	int32_t slot = batch->slot_of[id];
	struct batch_slot *found = slot >= 0 ? &batch->slots[slot] : NULL;

	if (slot < BATCH_NO_SLOT || (found && found->step == batch->step))
		return;
	if (++*count > batch->adapters_max)
		return;
	if (found)
		found->step = batch->step;
	if (found && found->held)
		return;
	batch->joiners[batch->joiner_count] = (struct batch_joiner){.id = id, .slot = slot};
	if (!found)
		batch->slot_of[id] = joiner_mark((int32_t)batch->joiner_count);
	batch->joiner_count++;
}

static int adapters_note(
	struct gpool_lora_batch *batch, const uint32_t *adapters, uint32_t tokens, struct reason *reason)
{
	uint32_t count = 0, last = GPOOL_LORA_NONE, known;
	int error;

	pthread_mutex_lock(&batch->lora->lock);
	known = batch->lora->entry_count;
	pthread_mutex_unlock(&batch->lora->lock);
	for (uint32_t i = 0; i < tokens; i++) {
		if (adapters[i] == last || adapters[i] == GPOOL_LORA_NONE)
			continue;
		last = adapters[i];
		if (last >= known) {
			refuse(reason, "token %u: no adapter %u is registered", i, last);
			return -ENOENT;
		}
		error = ids_have(batch, last);
		if (error)
			return error;
		adapter_note(batch, last, &count);
		if (count > batch->adapters_max)
			return refuse(reason, "token %u: the batch has more than %u different adapter%s (adapters_max)",
				i, batch->adapters_max, plural(batch->adapters_max));
	}
	return 0;
}

/*
 * Return a slot that the batch does not use: an empty slot, or the least recently used slot. Such a slot always exists,
 * because the number of adapters is limited.
 */
static int32_t slot_choose(const struct gpool_lora_batch *batch)
{
	int32_t best = BATCH_NO_SLOT;

	for (uint32_t i = 0; i < batch->adapters_max; i++)
		if (batch->slots[i].step != batch->step && (best < 0 || batch->slots[i].step < batch->slots[best].step))
			best = (int32_t)i;
	return best;
}

/* Acquire an adapter. If it has no table, or its addresses have changed, create its table. */
static int joiner_join(
	struct gpool_lora_batch *batch, struct batch_joiner *joiner, struct batch_stage *stage, struct reason *reason)
{
	uint8_t *tables = stage->memory + batch->tables_at;
	int error = lora_hold(batch->lora, joiner->id, &joiner->entry, reason);

	if (error)
		return error;
	joiner->fresh = joiner->slot < 0 || batch->slots[joiner->slot].placed != joiner->entry->placed;
	if (joiner->slot < 0) {
		joiner->slot = slot_choose(batch);
		batch->slots[joiner->slot].step = batch->step;
	}
	if (joiner->fresh)
		error = batch_table(batch, joiner->entry,
			(struct gpool_lora_weights *)(void *)(tables + (uint64_t)joiner->slot * table_bytes(batch)),
			reason);
	if (error) {
		gpool_lora_release(batch->lora, joiner->id, GPOOL_FENCE_NONE);
		joiner->entry = NULL;
	}
	return error;
}

/* Acquire all adapters. The caller calls joiners_undo() after an error. */
static int joiners_join(struct gpool_lora_batch *batch, struct batch_stage *stage, struct reason *reason)
{
	int error = 0;

	for (uint32_t i = 0; i < batch->joiner_count && !error; i++)
		error = joiner_join(batch, &batch->joiners[i], stage, reason);
	return error;
}

/* Undo the batch. Slots keep the number of the undone step, which no later step has. */
static void joiners_undo(struct gpool_lora_batch *batch)
{
	for (uint32_t i = 0; i < batch->joiner_count; i++) {
		struct batch_joiner *joiner = &batch->joiners[i];

		if (joiner->entry)
			gpool_lora_release(batch->lora, joiner->id, GPOOL_FENCE_NONE);
		if (batch->slot_of[joiner->id] < BATCH_NO_SLOT)
			batch->slot_of[joiner->id] = BATCH_NO_SLOT;
	}
}

/* Assign the slots, and list the adapters that are not in this batch for release. */
static void joiners_commit(struct gpool_lora_batch *batch)
{
	for (uint32_t i = 0; i < batch->adapters_max; i++)
		if (batch->slots[i].step != batch->step)
			slot_leave(batch, &batch->slots[i]);
	for (uint32_t i = 0; i < batch->joiner_count; i++) {
		const struct batch_joiner *joiner = &batch->joiners[i];
		struct batch_slot *slot = &batch->slots[joiner->slot];

		if (slot->placed && slot->id != joiner->id) {
			slot_leave(batch, slot);
			batch->slot_of[slot->id] = BATCH_NO_SLOT;
		}
		*slot = (struct batch_slot){.entry = joiner->entry,
			.id = joiner->id,
			.placed = joiner->entry->placed,
			.step = batch->step,
			.held = true};
		batch->slot_of[joiner->id] = joiner->slot;
	}
}

/* ---- copy to the device ---- */

/* Copy the new tables, with one call for each run of adjacent ones. */
static int tables_copy(struct gpool_lora_batch *batch, const struct batch_stage *stage)
{
	uint64_t each = table_bytes(batch);
	int error = 0;

	for (uint32_t i = 0; i < batch->joiner_count; i++)
		if (batch->joiners[i].fresh)
			batch->slots[batch->joiners[i].slot].fresh = true;
	for (uint32_t first = 0, end; first < batch->adapters_max && !error; first = end + 1) {
		for (end = first; end < batch->adapters_max && batch->slots[end].fresh; end++)
			batch->slots[end].fresh = false;
		if (end > first)
			error = gpool_copy(batch->lora->pool, batch->stream,
				batch->address + batch->tables_at + first * each,
				(uintptr_t)stage->memory + batch->tables_at + first * each, (end - first) * each);
	}
	return error;
}

static int stage_copy(struct gpool_lora_batch *batch, struct batch_stage *stage)
{
	int error = tables_copy(batch, stage);

	if (!error)
		error = gpool_copy(batch->lora->pool, batch->stream, batch->address, (uintptr_t)stage->memory,
			lora_batch_bytes(batch->tokens_max, batch->adapters_max));
	return error;
}

/* Record that the content of the device memory is unknown. The next batch writes all of it. */
static void batch_tear(struct gpool_lora_batch *batch)
{
	batch->torn = true;
	for (uint32_t i = 0; i < batch->adapters_max; i++) {
		if (batch->slots[i].placed)
			batch->slot_of[batch->slots[i].id] = BATCH_NO_SLOT;
		slot_leave(batch, &batch->slots[i]);
		batch->slots[i] = (struct batch_slot){.id = 0};
	}
}

static int batch_queue(struct gpool_lora_batch *batch, struct batch_stage *stage)
{
	struct gpool *pool = batch->lora->pool;
	int error = stage_copy(batch, stage), late = gpool_fence_record(pool, batch->stream, &stage->fence);

	if (error || late) {
		/* Wait for the copies that read the stage, because no fence exists for a later wait. */
		stream_sync_all(pool);
		batch_tear(batch);
		return -EIO; /* whatever the cause: other errors leave the batch unchanged */
	}
	leavers_release(batch, stage->fence);
	batch->torn = false;
	return 0;
}

/* ---- public functions ---- */

static void tokens_place(
	struct gpool_lora_batch *batch, const uint32_t *adapters, uint32_t tokens, struct batch_stage *stage)
{
	for (uint32_t i = 0; i < tokens; i++)
		batch->token_slots[i] = adapters[i] == GPOOL_LORA_NONE ? -1 : batch->slot_of[adapters[i]];
	lora_batch_build((struct lora_batch *)(void *)stage->memory, batch->tokens_max, batch->token_slots, tokens,
		batch->adapters_max);
}

static int batch_make(struct gpool_lora_batch *batch, const uint32_t *adapters, uint32_t tokens, struct reason *reason)
{
	struct batch_stage *stage = &batch->stages[++batch->step % BATCH_STAGES];
	int error = leavers_make_room(batch);

	if (!error)
		error = gpool_fence_wait(batch->lora->pool, stage->fence, -1);
	if (error)
		return error;
	batch->joiner_count = 0;
	error = adapters_note(batch, adapters, tokens, reason);
	if (!error)
		error = joiners_join(batch, stage, reason);
	if (error) {
		joiners_undo(batch);
		return error;
	}
	joiners_commit(batch);
	tokens_place(batch, adapters, tokens, stage);
	return batch_queue(batch, stage);
}

int gpool_lora_batch_set(struct gpool_lora_batch *batch, const uint32_t *adapters, uint32_t tokens, char *why)
{
	struct reason reason = {""};
	int error;

	if (!batch->lora->pool->alive)
		return -ECHILD;
	if (tokens > batch->tokens_max)
		error = refuse(&reason, "there are %u token%s; the batch can have at most %u (tokens_max)", tokens,
			plural(tokens), batch->tokens_max);
	else
		error = batch_make(batch, adapters, tokens, &reason);
	if (error && *reason.text)
		fail(error, "%s", reason.text);
	if (why)
		memcpy(why, reason.text, sizeof(reason.text));
	return error;
}

int gpool_lora_batch_apply(struct gpool_lora_batch *batch, int32_t layer, uint32_t target, uint64_t x,
	uint32_t x_stride, uint64_t y, uint32_t y_stride, uint32_t stream)
{
	const struct batch_target *found = target < batch->target_count ? &batch->targets[target] : NULL;
	struct lora_args args;
	int error;

	if (unlikely(!batch->lora->pool->alive))
		return -ECHILD;
	if (!found)
		return fail(-EINVAL, "target is %u; the batch has %u target%s", target, batch->target_count,
			plural(batch->target_count));
	if (found->in_layers ? layer < 0 || (uint32_t)layer >= batch->layers : layer != -1)
		return fail(-EINVAL, "layer is %d; the batch has %u layer%s, and for target '%s', layer must be %s",
			layer, batch->layers, plural(batch->layers), found->name,
			found->in_layers ? "one of them" : "-1");
	if (unlikely(stream_check(batch->lora->pool, stream)))
		return -EINVAL;
	if (unlikely(batch->torn))
		return fail(-EIO, "the last gpool_lora_batch_set() failed while it wrote to the device; call it again");
	args = args_of(batch, found, found->place + (found->in_layers ? (uint32_t)layer : 0));
	args.x = x;
	args.x_stride = x_stride;
	args.y = y;
	args.y_stride = y_stride;
	error = stream_kernel(batch->lora->pool, stream, STREAM_LORA, &args);
	if (error)
		pool_log(batch->lora->pool, POOL_LOG_ERROR, "cannot apply adapters to '%s' of layer %d: %s",
			found->name, layer, gpu_error_text());
	return error;
}
