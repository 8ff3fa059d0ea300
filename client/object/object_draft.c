/* object_draft.c - collect metadata, and build the manifest. */
#include "client/object/object.h"

#include "client/core/last_error.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Make room for `more` bytes of data and one entry. */
static int draft_grow(struct draft *draft, uint64_t more)
{
	if (draft->count == draft->entry_capacity) {
		uint32_t capacity = draft->entry_capacity ? draft->entry_capacity * 2 : 64;
		struct draft_entry *grown = realloc(draft->entries, capacity * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		draft->entries = grown;
		draft->entry_capacity = capacity;
	}
	if (draft->capacity - draft->bytes < more) {
		uint64_t capacity =
			draft->capacity * 2 > draft->bytes + more ? draft->capacity * 2 : draft->bytes + more + 4096;
		char *grown = realloc(draft->data, capacity);

		if (!grown)
			return -ENOMEM;
		draft->data = grown;
		draft->capacity = capacity;
	}
	return 0;
}

int draft_set(struct draft *draft, const char *key, const void *value, size_t bytes)
{
	size_t key_bytes = strnlen(key, MANIFEST_KEY_MAX + 1);
	struct draft_entry *entry;
	int error;

	if (key_bytes < 1 || key_bytes > MANIFEST_KEY_MAX)
		return fail(-EINVAL, "the key has %zu bytes; it must have 1 to %d", strlen(key), MANIFEST_KEY_MAX);
	if (bytes > MANIFEST_BYTES_MAX || draft->bytes > 2 * (uint64_t)MANIFEST_BYTES_MAX)
		return fail(-EFBIG, "the value of '%s' has %zu bytes; the metadata of an object can have at most %d",
			key, bytes, MANIFEST_BYTES_MAX);
	error = draft_grow(draft, key_bytes + 1 + bytes);
	if (error)
		return error;
	entry = &draft->entries[draft->count++];
	*entry = (struct draft_entry){
		.at = draft->bytes, .key_bytes = (uint32_t)key_bytes, .value_bytes = (uint32_t)bytes};
	for (int i = 0; i < 8; i++)
		entry->prefix = entry->prefix << 8 | (i < (int)key_bytes ? (uint8_t)key[i] : 0);
	memcpy(draft->data + draft->bytes, key, key_bytes + 1);
	if (bytes)
		memcpy(draft->data + draft->bytes + key_bytes + 1, value, bytes);
	draft->bytes += key_bytes + 1 + bytes;
	return 0;
}

void draft_free(struct draft *draft)
{
	free(draft->entries);
	free(draft->data);
	memset(draft, 0, sizeof(*draft));
}

static int key_order(const struct draft *draft, const struct draft_entry *a, const struct draft_entry *b)
{
	if (a->prefix != b->prefix)
		return a->prefix < b->prefix ? -1 : 1;
	return manifest_key_compare(draft->data + a->at, a->key_bytes, draft->data + b->at, b->key_bytes);
}

static int by_key_and_age(const void *left, const void *right, void *context)
{
	const struct draft_entry *a = left, *b = right;
	int order = key_order(context, a, b);

	return order ? order : a->at < b->at ? -1 : a->at > b->at;
}

/* Sort by key, and keep the last value of each key. The data of other values stays allocated but unused. */
static void draft_sort(struct draft *draft)
{
	uint32_t kept = 0;

	if (!draft->count)
		return;
	qsort_r(draft->entries, draft->count, sizeof(*draft->entries), by_key_and_age, draft);
	for (uint32_t i = 0; i < draft->count; i++)
		if (i + 1 == draft->count || key_order(draft, &draft->entries[i], &draft->entries[i + 1]))
			draft->entries[kept++] = draft->entries[i];
	draft->count = kept;
}

static uint64_t data_bytes(const struct draft *draft)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < draft->count; i++)
		at = manifest_next_at(at, draft->entries[i].key_bytes, draft->entries[i].value_bytes);
	return at;
}

/* Write the manifest into zeroed memory that is aligned to 8 bytes. */
static void manifest_write(
	char *base, uint64_t bytes, const struct draft *draft, const struct manifest_runs *runs, uint64_t page_bytes)
{
	struct manifest_layout layout = manifest_layout_of(runs->run_count, runs->allocations, draft->count);
	struct manifest_header *header = (struct manifest_header *)(void *)base;
	struct manifest_entry *entries = (struct manifest_entry *)(void *)(base + layout.entries);
	uint64_t at = 0;

	*header = (struct manifest_header){
		.magic = MANIFEST_MAGIC,
		.version = MANIFEST_VERSION,
		.header_bytes = sizeof(*header),
		.bytes = bytes,
		.page_bytes = page_bytes,
		.runs = runs->run_count,
		.allocations = runs->allocations,
		.entries = draft->count,
	};
	for (uint32_t i = 0; i < runs->allocations; i++)
		header->pages += runs->sizes[i];
	memcpy(base + layout.runs, runs->runs, runs->run_count * sizeof(*runs->runs));
	memcpy(base + layout.run_counts, runs->run_counts, runs->allocations * sizeof(*runs->run_counts));
	memcpy(base + layout.sizes, runs->sizes, runs->allocations * sizeof(*runs->sizes));
	for (uint32_t i = 0; i < draft->count; i++) {
		const struct draft_entry *from = &draft->entries[i];

		entries[i] = (struct manifest_entry){at, from->key_bytes, from->value_bytes};
		memcpy(base + layout.data + at, draft->data + from->at, from->key_bytes + 1);
		memcpy(base + layout.data + manifest_value_at(at, from->key_bytes),
			draft->data + from->at + from->key_bytes + 1, from->value_bytes);
		at = manifest_next_at(at, from->key_bytes, from->value_bytes);
	}
	header->layout_hash = manifest_hash(base, &layout, bytes, page_bytes);
}

int draft_manifest(struct draft *draft, const struct manifest_runs *runs, uint64_t page_bytes, int *fd)
{
	uint64_t bytes;
	char *base;
	int error = -ENOMEM;

	draft_sort(draft);
	bytes = manifest_layout_of(runs->run_count, runs->allocations, draft->count).data + data_bytes(draft);
	if (bytes > MANIFEST_BYTES_MAX)
		return fail(-EFBIG, "the runs and metadata of the object have %llu bytes; the maximum is %d",
			(unsigned long long)bytes, MANIFEST_BYTES_MAX);
	/*
	 * Write the manifest with write(2). A writable mapping could be inherited by a child that another thread forks,
	 * and would then prevent the seal.
	 */
	base = calloc(1, bytes);
	if (!base)
		return -ENOMEM;
	manifest_write(base, bytes, draft, runs, page_bytes);
	*fd = memfd_create("gpool-object", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0) {
		error = errno == ENFILE || errno == EMFILE ? -EMFILE : -ENOMEM;
		goto free_base;
	}
	if (fchmod(*fd, 0600) < 0)
		goto close_fd;
	for (uint64_t at = 0; at < bytes;) {
		ssize_t written = write(*fd, base + at, bytes - at);

		if (written <= 0)
			goto close_fd;
		at += (uint64_t)written;
	}
	if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
		goto close_fd;
	free(base);
	return 0;
close_fd:
	close(*fd);
free_base:
	free(base);
	return error;
}
