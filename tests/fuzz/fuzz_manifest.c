/*
 * fuzz_manifest.c - arbitrary bytes as the manifest of an object, as checked and read by the agent and by readers.
 *
 * Method: the input is copied to an allocation of its exact size, to detect overruns. It is checked twice: unchanged,
 * and with corrected lengths and hash, to reach later checks. Checked: an accepted manifest can be read completely, and
 * describes each page of the pool at most once.
 *
 * Requirements: S10.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shm/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct manifest_pool geometry = {.page_bytes = 4096, .page_count = 256, .pages_per_handle = 1};

static void demand(int condition)
{
	if (!condition)
		abort();
}

static void read_whole(const struct manifest *manifest)
{
	const struct manifest_header *header = manifest->header;
	uint8_t seen[256] = {0};
	uint64_t pages = 0, sum = 0;

	for (uint32_t i = 0; i < header->runs; i++)
		for (uint32_t page = manifest->runs[i].first, left = manifest->runs[i].count; left;
			page++, left--, pages++)
			demand(page < 256 && !seen[page]++);
	for (uint32_t i = 0; i < header->allocations; i++)
		sum += manifest->sizes[i];
	demand(pages == header->pages && sum == pages && header->layout_hash != 0);
	for (uint32_t i = 0; i < header->entries; i++) {
		const struct manifest_entry *entry = &manifest->entries[i];
		const char *key = manifest->data + entry->offset,
			   *value = manifest->data + manifest_value_at(entry->offset, entry->key_bytes);

		demand(strlen(key) == entry->key_bytes && (uintptr_t)value % 8 == 0);
		demand(value + entry->value_bytes <= (const char *)header + manifest->bytes);
		for (uint32_t at = 0; at < entry->value_bytes; at++)
			sum += (uint8_t)value[at];
		demand(manifest_find(manifest, key, entry->key_bytes) == (int64_t)i);
	}
}

static void check(uint8_t *bytes, size_t size)
{
	struct manifest manifest;
	int error = manifest_check(bytes, size, &geometry, &manifest);

	demand(error == 0 || error == -EBADMSG || error == -EPROTO);
	if (!error)
		read_whole(&manifest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *bytes = malloc(size ? size : 1);
	struct manifest_header *header = (struct manifest_header *)(void *)bytes;

	demand(bytes != NULL);
	if (size)
		memcpy(bytes, data, size);
	check(bytes, size);
	if (size >= sizeof(*header)) {
		struct manifest_layout layout;

		header->magic = MANIFEST_MAGIC;
		header->version = MANIFEST_VERSION;
		header->header_bytes = sizeof(*header);
		header->bytes = size;
		header->page_bytes = geometry.page_bytes;
		header->reserved = 0;
		header->allocations = header->allocations % 4 + 1;
		header->runs = header->allocations + header->runs % 3;
		header->entries %= 4;
		layout = manifest_layout_of(header->runs, header->allocations, header->entries);
		if (layout.data <= size) {
			struct manifest_run *runs = (struct manifest_run *)(void *)(bytes + layout.runs);

			/* Set consistent counts, unless the input's counts are to be kept. */
			if (header->layout_hash & 1) {
				uint32_t *run_counts = (uint32_t *)(void *)(bytes + layout.run_counts);
				uint32_t *sizes = (uint32_t *)(void *)(bytes + layout.sizes);

				header->runs = header->allocations;
				header->pages = 0;
				layout = manifest_layout_of(header->runs, header->allocations, header->entries);
				run_counts = (uint32_t *)(void *)(bytes + layout.run_counts);
				sizes = (uint32_t *)(void *)(bytes + layout.sizes);
				for (uint32_t i = 0; i < header->allocations; i++) {
					runs[i].first %= 256;
					runs[i].count = runs[i].count % 4 + 1;
					run_counts[i] = 1;
					sizes[i] = runs[i].count;
					header->pages += runs[i].count;
				}
			}
			header->layout_hash = manifest_hash(bytes, &layout, size, geometry.page_bytes);
		}
		check(bytes, size);
	}
	free(bytes);
	return 0;
}
