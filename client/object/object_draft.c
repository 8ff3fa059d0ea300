/* object_draft.c - collect metadata, and build the manifest. */
#include "client/object/object.h"
#include "shm/plural.h"

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
		return fail(-EINVAL, "the key has %zu byte%s; it must have 1 to %d", strlen(key), plural(strlen(key)),
			MANIFEST_KEY_MAX);
	if (bytes > MANIFEST_BYTES_MAX || draft->bytes > 2 * (uint64_t)MANIFEST_BYTES_MAX)
		return fail(-EFBIG, "the value of '%s' has %zu byte%s; the metadata of an object can have at most %d",
			key, bytes, plural(bytes), MANIFEST_BYTES_MAX);
	error = draft_grow(draft, key_bytes + 1 + bytes + DRAFT_SLACK);
	if (error)
		return error;
	entry = &draft->entries[draft->count++];
	*entry = (struct draft_entry){
		.at = draft->bytes, .key_bytes = (uint32_t)key_bytes, .value_bytes = (uint32_t)bytes};
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

static uint64_t data_bytes(const struct draft *draft)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < draft->count; i++)
		at = manifest_next_at(at, draft->entries[i].key_bytes, draft->entries[i].value_bytes);
	return at;
}

/* ---- write the manifest ---- */

/* The file of a manifest that is being written. */
struct output {
	int fd;
	int error;
	size_t used;
	char bytes[64 << 10]; /* the end that is not written yet */
};

static void flush(struct output *out)
{
	size_t at = 0;

	while (at < out->used && !out->error) {
		ssize_t written = write(out->fd, out->bytes + at, out->used - at);

		if (written > 0)
			at += (size_t)written;
		else if (written == 0 || errno != EINTR)
			out->error = -ENOMEM;
	}
	out->used = 0;
}

static void put(struct output *out, const void *from, size_t bytes)
{
	while (bytes) {
		size_t part = sizeof(out->bytes) - out->used < bytes ? sizeof(out->bytes) - out->used : bytes;

		memcpy(out->bytes + out->used, from, part);
		from = (const char *)from + part;
		bytes -= part;
		out->used += part;
		if (out->used == sizeof(out->bytes))
			flush(out);
	}
}

/* Write zeros up to the next multiple of 8. */
static void pad(struct output *out)
{
	static const char zeros[8];

	put(out, zeros, (8 - out->used % 8) % 8);
}

static void entries_write(struct output *out, const struct draft *draft)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < draft->count; i++) {
		const struct draft_entry *from = &draft->entries[i];

		put(out, &(struct manifest_entry){at, from->key_bytes, from->value_bytes},
			sizeof(struct manifest_entry));
		at = manifest_next_at(at, from->key_bytes, from->value_bytes);
	}
	for (uint32_t i = 0; i < draft->count; i++) {
		const char *key = draft->data + draft->entries[i].at;

		/* The sort has scattered the entries in memory. */
		if (i + DRAFT_PREFETCH < draft->count)
			__builtin_prefetch(draft->data + draft->entries[i + DRAFT_PREFETCH].at);
		put(out, key, draft->entries[i].key_bytes + 1);
		pad(out);
		put(out, key + draft->entries[i].key_bytes + 1, draft->entries[i].value_bytes);
		pad(out);
	}
}

/*
 * Write the manifest with write(2). A writable mapping could be inherited by a child that another thread forks, and
 * would then prevent the seal.
 */
static int file_write(
	int fd, const struct manifest_header *header, const struct draft *draft, const struct manifest_runs *runs)
{
	struct output *out = malloc(sizeof(*out));
	int error;

	if (!out)
		return -ENOMEM;
	out->fd = fd;
	out->error = 0;
	out->used = 0;
	put(out, header, sizeof(*header));
	put(out, runs->runs, runs->run_count * sizeof(*runs->runs));
	put(out, runs->run_counts, runs->allocations * sizeof(*runs->run_counts));
	pad(out);
	put(out, runs->sizes, runs->allocations * sizeof(*runs->sizes));
	pad(out);
	entries_write(out, draft);
	flush(out);
	error = out->error;
	free(out);
	return error;
}

/* Write the file, and seal it with the hash of its content. */
static int file_seal(int fd, struct manifest_header *header, const struct draft *draft,
	const struct manifest_runs *runs, struct manifest *manifest)
{
	struct manifest_layout layout = manifest_layout_of(runs->run_count, runs->allocations, draft->count);
	int error = fchmod(fd, 0600) < 0 ? -ENOMEM : file_write(fd, header, draft, runs);

	if (error || manifest_map(fd, header->bytes, manifest))
		return -ENOMEM;
	header->layout_hash = manifest_hash(manifest->header, &layout, header->bytes, header->page_bytes);
	manifest_close(manifest);
	if (pwrite(fd, header, sizeof(*header), 0) != (ssize_t)sizeof(*header) ||
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
		return -ENOMEM;
	return manifest_map(fd, header->bytes, manifest) ? -ENOMEM : 0;
}

int draft_manifest(
	struct draft *draft, const struct manifest_runs *runs, uint64_t page_bytes, struct manifest *manifest, int *fd)
{
	struct manifest_header header = {
		.magic = MANIFEST_MAGIC,
		.version = MANIFEST_VERSION,
		.header_bytes = sizeof(header),
		.page_bytes = page_bytes,
		.runs = runs->run_count,
		.allocations = runs->allocations,
	};
	int error = draft_sort(draft);

	if (error)
		return error;
	header.entries = draft->count;
	header.bytes = manifest_layout_of(runs->run_count, runs->allocations, draft->count).data + data_bytes(draft);
	for (uint32_t i = 0; i < runs->allocations; i++)
		header.pages += runs->sizes[i];
	if (header.bytes > MANIFEST_BYTES_MAX)
		return fail(-EFBIG, "the runs and metadata of the object have %llu byte%s; the maximum is %d",
			(unsigned long long)header.bytes, plural(header.bytes), MANIFEST_BYTES_MAX);
	*fd = memfd_create("gpool-object", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0)
		return errno == ENFILE || errno == EMFILE ? -EMFILE : -ENOMEM;
	error = file_seal(*fd, &header, draft, runs, manifest);
	if (error)
		close(*fd);
	return error;
}
