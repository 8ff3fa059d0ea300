/* blocks.c - scopes, two-phase allocation, an object draft, sliced ranges, captured memory, refused allocations. */
#include <gpool.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static void must(int result, const char *what)
{
	if (result >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, gpool_last_error(result));
	exit(1);
}

/* The buffers of a layer are freed at the end of the C block. */
static void layer(struct gpool *pool)
{
	struct gpool_block block;

	GPOOL_SCOPE(scope);
	must(gpool_scope_begin(pool, GPOOL_USAGE_ACTIVATION, GPOOL_SCOPE_FREE, &scope), "begin a scope");
	must(gpool_scope_alloc(&scope, 2, NULL, &block), "allocate in the scope");
	must(gpool_scope_alloc(&scope, 1, NULL, &block), "allocate in the scope");
}

/* The buffers of a request are freed when its GPU work is done. */
static void request(struct gpool *pool, uint32_t stream)
{
	struct gpool_scope scope = GPOOL_SCOPE_INIT;
	struct gpool_block block;
	struct gpool_fence done;
	uint64_t address;

	must(gpool_scope_begin(pool, GPOOL_USAGE_TEMP_BUFFER, GPOOL_SCOPE_FREE, &scope), "begin a scope");
	must(gpool_scope_alloc(&scope, 1, NULL, &block), "allocate in the scope");
	must(gpool_address(pool, &block, &address), "address");
	must(gpool_fill(pool, stream, address, 1, gpool_page_bytes(pool)), "fill");
	must(gpool_fence_record(pool, stream, &done), "fence");
	must(gpool_scope_end(&scope, done), "end the scope");
}

/* Kernels read the table. One store sets an entry; if the process dies before it, the pages are returned. */
static void table(struct gpool *pool)
{
	uint64_t entries[2] = {0, 0};
	struct gpool_block first, second;

	must(gpool_prepare(pool, 1, NULL, &first), "prepare");
	must(gpool_prepare(pool, 1, NULL, &second), "prepare");
	must(gpool_commit(pool, &first, &entries[0]), "commit");
	must(gpool_rollback(pool, &second), "roll back");
	printf("table: %d of 2 entries\n", (entries[0] != 0) + (entries[1] != 0));
	must(gpool_free(pool, &first), "free");
}

/* Aborting an unpublished object frees its pages and its name. */
static void draft(struct gpool *pool)
{
	struct gpool_object *object;
	uint32_t index;

	must(gpool_object_create(pool, "draft", NULL, &object), "create an object");
	must(gpool_object_alloc(object, 1, NULL, &index), "allocate for the object");
	gpool_object_abort(object);
	printf("draft: %s\n", gpool_object_open(pool, "draft", NULL, &object) == -ENOENT ? "aborted" : "published");
}

/* K and V of two layers grow and shrink together. */
static void sliced(struct gpool *pool)
{
	struct gpool_sliced_range_info info = {.size = sizeof(info)};
	struct gpool_sliced_range *range;

	must(gpool_sliced_range_create(pool, 4, 8, 1, NULL, &range), "create a sliced range");
	must(gpool_sliced_range_grow(range, 2, -1), "grow");
	must(gpool_sliced_range_shrink(range, 1, GPOOL_FENCE_NONE), "shrink");
	must(gpool_sliced_range_info(range, &info), "info");
	printf("range: %u of %u blocks in each of %u slices\n", info.committed, info.blocks, info.slices);
	must(gpool_sliced_range_destroy(range), "destroy");
}

static void line_print(void *context, const char *text)
{
	(void)context;
	printf("  %s\n", text);
}

/* The addresses of a captured graph remain mapped to the same pages, even if the allocation is freed. */
static void captured(struct gpool *pool, uint32_t stream)
{
	uint64_t address;

	must(gpool_malloc_async(pool, gpool_page_bytes(pool), stream, &address), "allocate");
	must(gpool_vm_capture(pool, address, 1), "begin the capture");
	must(gpool_free_async(pool, address, stream), "free");
	must(gpool_vm_dump(pool, line_print, NULL), "dump");
	must(gpool_vm_capture(pool, address, 0), "end the capture");
}

/* Report the cause of a failed allocation. */
static void refused(struct gpool *pool)
{
	struct gpool_oom_info info = {.size = sizeof(info)};
	struct gpool_oom_object object = {.size = sizeof(object)};
	struct gpool_block all, more;
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	uint32_t pages = gpool_page_count(pool) / 2;

	must(gpool_alloc(pool, pages, &options, &all), "allocate");
	if (gpool_alloc(pool, gpool_page_count(pool), &options, &more) == -ENOSPC) {
		must(gpool_oom_info(pool, &info), "info");
		printf("refused: %u pages needed, %u pinned\n", info.needed, info.pinned);
		if (gpool_oom_object(pool, &object) == -ENOENT)
			puts("no object was pinned");
	}
	must(gpool_unpin(pool, &all), "unpin");
	must(gpool_refresh(pool, &all), "refresh"); /* after a restore, identify the new pages */
	must(gpool_discard(pool, &all), "discard");
}

int main(void)
{
	struct gpool *pool;
	uint32_t stream;

	must(gpool_open(NULL, &pool), "open");
	must(gpool_stream_open(pool, NULL, 0, &stream), "stream");
	layer(pool);
	request(pool, stream);
	table(pool);
	draft(pool);
	sliced(pool);
	captured(pool, stream);
	refused(pool);
	gpool_stream_close(pool, stream);
	gpool_close(pool);
	puts("done");
	return 0;
}
