/* first.c - allocate four pages of GPU memory, write to them, unpin them, and pin them again. */
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

int main(void)
{
	struct gpool *pool;
	struct gpool_block block;
	struct gpool_fence written;
	uint64_t address;
	uint32_t stream;
	int result;

	must(gpool_open(NULL, &pool), "open");
	must(gpool_alloc(pool, 4, NULL, &block), "allocate"); /* the block has one pin */
	must(gpool_address(pool, &block, &address), "address");
	must(gpool_stream_open(pool, NULL, 0, &stream), "stream");
	must(gpool_fill(pool, stream, address, 0x600d, 4 * gpool_page_bytes(pool)), "fill");
	must(gpool_fence_record(pool, stream, &written), "fence");
	must(gpool_unpin_after(pool, &block, written), "unpin"); /* it may be evicted after the fill */

	puts("4 pages, unpinned; Enter pins them again ('poolctl evict 4' evicts them)");
	getchar();
	result = gpool_pin(pool, &block);
	if (result == -ESTALE) {
		puts("evicted: a program would now recreate the content");
	} else {
		must(result, "pin");
		printf("still there, at %#llx\n", (unsigned long long)address);
		must(gpool_free(pool, &block), "free");
	}
	gpool_stream_close(pool, stream);
	gpool_close(pool);
	return 0;
}
