/* object_build.c - build and publish an object. */
#include "client/object/object.h"

#include "client/core/alloc.h"
#include "client/core/attach_call.h"
#include "client/core/last_error.h"
#include "client/core/stitch.h"
#include "client/core/thread_cache.h"
#include "client/core/window.h"
#include "proto/codec.h"
#include "shm/object_names.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Refresh the pins of the parts, once for each step of the coarse clock. A build may take minutes, and its pins must
 * not count as leaked.
 */
static void parts_touch(struct gpool_object *object)
{
	const struct gpool *pool = object->pool;
	uint32_t now = pool_clock(pool);

	if (now == object->touched_ms)
		return;
	object->touched_ms = now;
	for (uint32_t i = 0; i < object->part_count; i++)
		atomic_store_explicit(&pool->session.touch[object->parts[i].block.page], now, memory_order_relaxed);
}

static int options_refuse(const struct gpool_object_options *read)
{
	const uint32_t known = GPOOL_OBJECT_PINNED | GPOOL_OBJECT_PRIVATE | GPOOL_OBJECT_DOMAIN_WRITE;

	if (read->flags & ~known)
		return fail(-EINVAL, "flags are 0x%x, of which 0x%x are unknown", read->flags, read->flags & ~known);
	if (read->flags & GPOOL_OBJECT_PRIVATE && read->flags & GPOOL_OBJECT_DOMAIN_WRITE)
		return fail(-EINVAL,
			"flags contain both GPOOL_OBJECT_PRIVATE and GPOOL_OBJECT_DOMAIN_WRITE; use one of them");
	if (read->memory_class > GPOOL_OBJECT_PINNABLE)
		return fail(
			-EINVAL, "memory_class is %u; the maximum is %d", read->memory_class, GPOOL_OBJECT_PINNABLE);
	return fail(-EINVAL, "%s requires the class PINNABLE, but memory_class is %u",
		read->cost_us ? "cost_us" : "GPOOL_OBJECT_PINNED", read->memory_class);
}

int gpool_object_create(
	struct gpool *pool, const char *name, const struct gpool_object_options *options, struct gpool_object **object)
{
	struct gpool_object_options read = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *made;
	bool of_library;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (options)
		error = options_read(&read, sizeof(read), options);
	if (error)
		return error;
	of_library = read.flags & OBJECT_CREATE_OWN;
	read.flags &= ~OBJECT_CREATE_OWN;
	if (read.flags & ~(uint32_t)(GPOOL_OBJECT_PINNED | GPOOL_OBJECT_PRIVATE | GPOOL_OBJECT_DOMAIN_WRITE) ||
		(read.flags & GPOOL_OBJECT_PRIVATE && read.flags & GPOOL_OBJECT_DOMAIN_WRITE) ||
		(read.flags & GPOOL_OBJECT_PINNED && read.memory_class != GPOOL_OBJECT_PINNABLE) ||
		(read.cost_us && read.memory_class != GPOOL_OBJECT_PINNABLE) ||
		read.memory_class > GPOOL_OBJECT_PINNABLE)
		return options_refuse(&read);
	if (!of_library && name && object_name_reserved(name))
		return fail_reserved(name);
	error = object_new(pool, name, &made);
	if (error)
		return error;
	made->of_library = of_library;
	error = object_text_copy(made->role, sizeof(made->role), read.role, "role");
	if (error) {
		gpool_object_abort(made);
		return error;
	}
	made->memory_class = read.memory_class;
	made->pinned = read.flags & GPOOL_OBJECT_PINNED;
	made->by_pins = read.memory_class == GPOOL_OBJECT_PINNABLE;
	made->private = read.flags & GPOOL_OBJECT_PRIVATE;
	made->domain_write = read.flags & GPOOL_OBJECT_DOMAIN_WRITE;
	made->cost_us = read.cost_us;
	made->role_token = read.role_token;
	made->expect_version = read.expect_version;
	made->touched_ms = pool_clock(pool);
	*object = made;
	return 0;
}

int gpool_object_alloc(
	struct gpool_object *object, uint32_t page_count, const struct gpool_alloc_options *options, uint32_t *index)
{
	struct alloc_request request = {0};
	struct gpool_block block;
	int error;

	if (!object->pool->alive)
		return -ECHILD;
	if (object->number)
		return fail(-EINVAL, "object '%s' is already published", object->name);
	if (object->part_count == object->part_capacity) {
		uint32_t capacity = object->part_capacity ? object->part_capacity * 2 : 16;
		struct object_part *grown = realloc(object->parts, capacity * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		object->parts = grown;
		object->part_capacity = capacity;
	}
	parts_touch(object);
	error = options ? alloc_request_read(object->pool, options, 0, &request) : 0;
	/* Content that is being published must not be spilled at the same time. */
	if (!error && request.flags & GPOOL_ALLOC_SPILL)
		error = fail(-EINVAL, "GPOOL_ALLOC_SPILL cannot be used for allocations of objects");
	if (!error)
		error = alloc_block(object->pool, page_count, &request, &block);
	if (error)
		return error;
	*index = object->part_count;
	object->parts[object->part_count++] = (struct object_part){.block = block};
	return 0;
}

int gpool_object_set(struct gpool_object *object, const char *key, const void *value, size_t bytes)
{
	if (!object->pool->alive)
		return -ECHILD;
	if (object->number)
		return fail(-EINVAL, "object '%s' is already published", object->name);
	parts_touch(object);
	return draft_set(&object->draft, key, value, bytes);
}

void object_parts_drop(struct gpool_object *object)
{
	/* -ESTALE: the agent has ended the pin as leaked and evicted the block */
	for (uint32_t i = 0; i < object->part_count; i++)
		gpool_free(object->pool, &object->parts[i].block);
	object->part_count = 0;
}

/* ---- runs ---- */

/* Call `run` for each run of a part, which is a block, or is in transit and still has the entries of its block. */
static int part_runs(const struct gpool *pool, const struct gpool_block *block, void *context,
	int (*run)(const struct gpool *pool, uint32_t first, uint32_t count, void *context))
{
	uint32_t first = block->page;

	if (!(block->tag & BLOCK_SCATTERED))
		return run(pool, block->page, block->page_count, context);
	for (;;) {
		uint32_t count = atomic_load_explicit(&block_entry(pool, first)->page_count, memory_order_relaxed);
		uint32_t next = atomic_load_explicit(&block_entry(pool, first)->next, memory_order_relaxed);
		int error = run(pool, first, count, context);

		if (error || !next)
			return error;
		first = next - 1;
	}
}

struct run_list {
	struct manifest_runs *to;
	uint32_t capacity;
};

static int run_add(const struct gpool *pool, uint32_t first, uint32_t count, void *context)
{
	struct run_list *list = context;

	if (list->to->run_count == list->capacity) {
		uint32_t capacity = list->capacity ? list->capacity * 2 : 64;
		struct manifest_run *grown = realloc(list->to->runs, capacity * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		list->to->runs = grown;
		list->capacity = capacity;
	}
	list->to->runs[list->to->run_count++] = (struct manifest_run){
		first, count, page_word_generation(atomic_load_explicit(&pool->pages[first], memory_order_acquire))};
	return 0;
}

static int runs_collect(const struct gpool_object *object, struct manifest_runs *runs)
{
	struct run_list list = {.to = runs};
	int error = 0;

	runs->allocations = object->part_count;
	runs->run_counts = malloc(object->part_count * sizeof(*runs->run_counts));
	runs->sizes = malloc(object->part_count * sizeof(*runs->sizes));
	if (!runs->run_counts || !runs->sizes)
		return -ENOMEM;
	for (uint32_t i = 0; i < object->part_count && !error; i++) {
		uint32_t before = runs->run_count;

		error = part_runs(object->pool, &object->parts[i].block, &list, run_add);
		runs->run_counts[i] = runs->run_count - before;
		runs->sizes[i] = object->parts[i].block.page_count;
	}
	return error;
}

static void runs_free(struct manifest_runs *runs)
{
	free(runs->runs);
	free(runs->run_counts);
	free(runs->sizes);
}

/* Adjacent pages of one part or of several, whose access is set by one call. */
struct protect_run {
	uint32_t first, count;
	bool readonly;
};

static int run_protect(struct gpool *pool, const struct protect_run *run)
{
	int error = run->count ? window_protect(pool, run->first, run->count, run->readonly) : 0;

	/* If a back end cannot protect a part of a handle, the pages stay writable. */
	if (error && error != -EBUSY)
		pool_log(pool, POOL_LOG_WARNING, "pages %u to %u stay writable in this process: %s", run->first,
			run->first + run->count - 1, gpu_error_text());
	return error == -EBUSY ? error : 0;
}

static int protect_add(const struct gpool *pool, uint32_t first, uint32_t count, void *context)
{
	struct protect_run *run = context;
	int error = 0;

	if (run->count && first + count == run->first) {
		run->first = first;
	} else if (!run->count || first != run->first + run->count) {
		error = run_protect((struct gpool *)(uintptr_t)pool, run);
		run->first = first;
		run->count = 0;
	}
	run->count += count;
	return error;
}

int object_protect(struct gpool_object *object, bool readonly)
{
	struct gpool *pool = object->pool;
	struct protect_run run = {.readonly = readonly};
	int error = 0;

	for (uint32_t i = 0; i < object->part_count && !error; i++) {
		const struct object_part *part = &object->parts[i];
		struct stitch_range range = part->range;

		if (part->block.tag & BLOCK_SCATTERED && (range.va || !stitch_find(pool, &part->block, &range))) {
			error = gpu_access(
				pool->gpu, range.va, range.bytes, readonly ? GPU_ACCESS_READ : GPU_ACCESS_READ_WRITE);
			error = error == -EBUSY ? error : 0;
		}
		if (!error && (readonly || !(part->block.tag & BLOCK_SCATTERED)))
			error = part_runs(pool, &part->block, &run, protect_add);
	}
	error = error ? error : run_protect(pool, &run);
	return error == -EBUSY ? fail(error, "queued GPU work could write to object '%s'; wait for it", object->name)
			       : error;
}

int object_parts_unmap(struct gpool_object *object)
{
	struct gpool *pool = object->pool;

	for (uint32_t i = 0; i < object->part_count; i++) {
		struct object_part *part = &object->parts[i];
		int error;

		if (!part->range.va)
			continue;
		error = gpu_unmap(pool->gpu, part->range.va, part->range.bytes);
		if (error == -EBUSY)
			return error;
		if (!error)
			gpu_unreserve(pool->gpu, part->range.va, part->range.bytes);
		part->range.va = 0;
	}
	return 0;
}

/* ---- take out of the block table ---- */

/*
 * Remove all blocks of the object from the block table, so that their pages are in transit; all or none. Each block is
 * pinned first, because the agent may have ended earlier pins as leaked.
 */
static int parts_take_out(struct gpool_object *object)
{
	struct gpool *pool = object->pool;
	uint32_t pinned, i;
	int error = 0;

	for (pinned = 0; pinned < object->part_count && !error; pinned++)
		error = gpool_pin(pool, &object->parts[pinned].block);
	if (error) {
		for (i = 0; i + 1 < pinned; i++)
			gpool_unpin(pool, &object->parts[i].block);
		return -ESTALE;
	}
	for (i = 0; i < object->part_count; i++) {
		struct object_part *part = &object->parts[i];

		if (!(part->block.tag & BLOCK_SCATTERED) || stitch_take(pool, &part->block, &part->range))
			atomic_store_explicit(&block_entry(pool, part->block.page)->tag, 0, memory_order_release);
		/* End this pin, and the pin of the allocation if it still exists. */
		pin_drop(&pool->session, part->block.page);
		pin_drop(&pool->session, part->block.page);
	}
	return 0;
}

static int run_ours(const struct gpool *pool, uint32_t first, uint32_t count, void *context)
{
	(void)context;
	for (uint32_t page = first; page < first + count; page++) {
		uint64_t word = atomic_load_explicit(&pool->pages[page], memory_order_acquire);

		if (page_word_state(word) != PAGE_LEASED || page_word_owner(word) != pool->id)
			return -ESTALE;
	}
	return 0;
}

/*
 * Convert the parts to blocks again, with their content and one pin, after the publish was refused. If an agent died
 * during the publish, the next agent may have changed the generations; the page words show whether the pages still
 * belong to this session.
 */
static void parts_put_back(struct gpool_object *object)
{
	struct gpool *pool = object->pool;

	for (uint32_t i = 0; i < object->part_count; i++) {
		struct object_part *part = &object->parts[i];
		uint64_t word;

		/* If the pages belong to another session, the block stays stale, and its free returns -ESTALE. */
		if (part_runs(pool, &part->block, NULL, run_ours) || run_pin(pool, part->block.page, &word))
			continue;
		part->block.generation = word;
		if (!part->range.va) {
			atomic_store_explicit(
				&block_entry(pool, part->block.page)->tag, part->block.tag, memory_order_release);
		} else if (!stitch_give(pool, &part->block, &part->range)) {
			part->range.va = 0;
		} else {
			/* Out of memory: the pages stay in transit until this process ends. */
			pin_drop(&pool->session, part->block.page);
		}
	}
}

/* ---- publish ---- */

static int publish_ask(const struct gpool_object *object, int fd, struct msg_object_publish_reply *reply)
{
	struct msg_object_publish_request request = {
		.memory_class = object->memory_class,
		.expect_version = object->expect_version,
		.role_token = object->role_token,
		.flags = (object->private ? OBJECT_PRIVATE : 0) | (object->domain_write ? OBJECT_DOMAIN_WRITE : 0) |
			(object->of_library ? OBJECT_OF_LIBRARY : 0) |
			(object->by_pins && object->memory_class == GPOOL_OBJECT_EPHEMERAL ? OBJECT_BY_PINS : 0),
		.cost_us = object->cost_us,
		.follows = object->follows ? object->follows->number : 0,
		.follows_version = object->follows ? object->follows->version : 0,
	};
	uint8_t question[MSG_LARGEST_object_publish_request], answer[MSG_LARGEST_object_publish_reply];
	struct attach_call call = {
		.request = question, .fd = fd, .answer = answer, .capacity = sizeof(answer), .timeout_ms = -1};
	int length;

	msg_text_copy(request.name, sizeof(request.name), object->name);
	msg_text_copy(request.role, sizeof(request.role), object->role);
	call.length = msg_encode_object_publish_request(&request, 0, NULL, question, sizeof(question));
	length = attach_call(object->pool, &call);
	if (length < 0)
		return length;
	if (msg_decode_object_publish_reply(reply, answer, (size_t)length))
		return -EPROTO;
	if (reply->error)
		pool_log(object->pool, POOL_LOG_INFO, "the agent refused to publish object '%s': %s", object->name,
			reply->text);
	/* The library handles other refusals of its own names, so a text would remain and describe a later error. */
	return reply->error && (!object->of_library || reply->error == -EPERM)
		? fail(reply->error, "object '%s': %s", object->name, reply->text)
		: reply->error;
}

static int publish_in_turn(struct gpool_object *object, int fd)
{
	struct msg_object_publish_reply reply;
	struct gpool *pool = object->pool;
	int error;

	pthread_mutex_lock(&pool->objects_lock);
	object_ask_begin(object);
	pthread_mutex_unlock(&pool->objects_lock);
	error = publish_ask(object, fd, &reply);
	pthread_mutex_lock(&pool->objects_lock);
	if (!error) {
		object->version = reply.version;
		object->number = reply.object;
	}
	object_ask_end(object);
	pthread_mutex_unlock(&pool->objects_lock);
	return error;
}

static int addresses_fill(struct gpool_object *object)
{
	uint64_t *addresses = realloc(object->addresses, object->part_count * sizeof(*addresses));
	int error = 0;

	if (!addresses)
		return -ENOMEM;
	object->addresses = addresses;
	for (uint32_t i = 0; i < object->part_count && !error; i++)
		error = gpool_address(object->pool, &object->parts[i].block, &addresses[i]);
	return error;
}

/*
 * Publish with object->manifest. If this fails, nothing has changed, except that the generations of the blocks may be
 * updated; after -EPIPE the object has no parts.
 */
static int publish(struct gpool_object *object, int fd)
{
	struct gpool *pool = object->pool;
	bool readonly = object->memory_class != GPOOL_OBJECT_MUTABLE;
	struct thread_stats *transit;
	int error = addresses_fill(object);

	if (error)
		return error;
	/* End write access before the object becomes visible under its name. */
	error = readonly ? object_protect(object, true) : 0;
	/*
	 * The pages are in transit, so that the agent does not take them before they belong to the object or are blocks
	 * again.
	 */
	transit = transit_begin(pool);
	if (!error)
		error = parts_take_out(object);
	if (!error) {
		/* Pin the object before another session can see it. */
		if (object->pinned)
			object_pin_raise(object);
		error = publish_in_turn(object, fd);
		if (error && object->pinned)
			pin_drop(&pool->session, object->parts[0].block.page);
		/* -EPIPE: the session has ended, so the result is unknown, and the pages need no further handling. */
		if (error && error != -EPIPE)
			parts_put_back(object);
		else if (error)
			object->part_count = 0;
	}
	transit_end(pool, transit);
	if (!error) {
		object->writable = !readonly;
		draft_free(&object->draft);
		return 0;
	}
	if (readonly && object->part_count)
		object_protect(object, false);
	return error;
}

int gpool_object_publish(struct gpool_object *object, uint64_t *version)
{
	struct manifest_runs runs = {.run_counts = NULL};
	int error, fd;

	if (!object->pool->alive)
		return -ECHILD;
	if (object->number || !object->part_count)
		return fail(-EINVAL, "object '%s' %s", object->name,
			object->number ? "is already published"
				       : "has no allocation; add one with gpool_object_alloc() first");
	parts_touch(object);
	error = runs_collect(object, &runs);
	if (!error)
		error = draft_manifest(&object->draft, &runs, object->pool->page_bytes, &object->manifest, &fd);
	runs_free(&runs);
	if (error)
		return error;
	error = publish(object, fd);
	close(fd);
	if (error)
		manifest_close(&object->manifest);
	else
		*version = object->version;
	return error;
}

int object_keep(struct gpool *pool, const char *name, struct gpool_block *block, const struct stitch_range *range,
	struct gpool_object **object)
{
	struct stitch_range forgotten;
	struct gpool_object *made;
	uint64_t version;
	int error = object_new(pool, name, &made);

	if (error)
		return error;
	made->memory_class = GPOOL_OBJECT_IMMUTABLE;
	made->parts = malloc(sizeof(*made->parts));
	/*
	 * Record the range, so that the block is found like any scattered block. Publishing the object removes the
	 * record.
	 */
	error = made->parts ? stitch_give(pool, block, range) : -ENOMEM;
	if (!error) {
		made->parts[0] = (struct object_part){.block = *block};
		made->part_count = made->part_capacity = 1;
		error = gpool_object_publish(made, &version);
	}
	if (!error) {
		made->parts[0].range.va = 0;
		*object = made;
		return 0;
	}
	if (made->part_count) {
		*block = made->parts[0].block;
		made->part_count = 0;
		stitch_forget(pool, block, &forgotten);
	}
	gpool_object_abort(made);
	return error;
}

int object_give(struct gpool *pool, const struct object_gift *gift, struct gpool_block *blocks, uint32_t count,
	struct gpool_object **object)
{
	struct gpool_object *made;
	uint64_t version;
	int error = object_new(pool, gift->name, &made);

	if (error)
		return error;
	made->memory_class = GPOOL_OBJECT_EPHEMERAL;
	made->by_pins = made->pinned = true;
	made->of_library = gift->of_library;
	made->private = gift->private;
	made->expect_version = GPOOL_OBJECT_NONE;
	made->follows = gift->follows;
	made->parts = calloc(count, sizeof(*made->parts));
	error = made->parts ? 0 : -ENOMEM;
	if (!error && gift->key)
		error = draft_set(&made->draft, gift->key, gift->value, gift->bytes);
	for (uint32_t i = 0; i < count && !error; i++)
		made->parts[made->part_count++].block = blocks[i];
	made->part_capacity = made->part_count;
	if (!error)
		error = gpool_object_publish(made, &version);
	made->follows = NULL;
	if (!error) {
		*object = made;
		return 0;
	}
	for (uint32_t i = 0; i < made->part_count; i++)
		blocks[i] = made->parts[i].block;
	made->part_count = 0;
	gpool_object_abort(made);
	return error;
}
