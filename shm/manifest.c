#include "shm/manifest.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static uint64_t round_8(uint64_t bytes)
{
	return (bytes + 7) / 8 * 8;
}

struct manifest_layout manifest_layout_of(uint32_t runs, uint32_t allocations, uint32_t entries)
{
	struct manifest_layout layout;

	layout.runs = sizeof(struct manifest_header);
	layout.run_counts = layout.runs + runs * sizeof(struct manifest_run);
	layout.sizes = round_8(layout.run_counts + allocations * sizeof(uint32_t));
	layout.entries = round_8(layout.sizes + allocations * sizeof(uint32_t));
	layout.data = layout.entries + entries * sizeof(struct manifest_entry);
	return layout;
}

uint64_t manifest_value_at(uint64_t offset, uint32_t key_bytes)
{
	return round_8(offset + key_bytes + 1);
}

uint64_t manifest_next_at(uint64_t offset, uint32_t key_bytes, uint32_t value_bytes)
{
	return round_8(manifest_value_at(offset, key_bytes) + value_bytes);
}

uint64_t manifest_hash(const void *base, const struct manifest_layout *layout, uint64_t bytes, uint64_t page_bytes)
{
	uint64_t hash = XXH3_64bits_withSeed((const char *)base + layout->sizes, bytes - layout->sizes, page_bytes);

	return hash ? hash : 1; /* in a request to open an object, 0 means any layout */
}

int manifest_key_compare(const char *left, size_t left_bytes, const char *right, size_t right_bytes)
{
	int order = memcmp(left, right, left_bytes < right_bytes ? left_bytes : right_bytes);

	return order ? order : left_bytes < right_bytes ? -1 : left_bytes > right_bytes;
}

/* Return true if the bytes from `end` to the next multiple of 8 are zero. `base` is aligned to 8 bytes. */
static bool is_padded(const char *base, uint64_t end)
{
	uint64_t word;

	if (end % 8 == 0)
		return true;
	memcpy(&word, base + end / 8 * 8, sizeof(word));
	return !(le64toh(word) >> (8 * (end % 8)));
}

/* Check that runs are within the pool and do not overlap. */
static int check_runs(const struct manifest *manifest, const struct manifest_pool *pool)
{
	const struct manifest_header *header = manifest->header;
	uint8_t *seen = calloc(pool->page_count / 8 + 1, 1);
	uint64_t pages = 0;
	int error = 0;

	if (!seen)
		return -ENOMEM;
	for (uint32_t i = 0; i < header->runs && !error; i++) {
		uint32_t first = manifest->runs[i].first, count = manifest->runs[i].count;

		if (count < 1 || first >= pool->page_count || count > pool->page_count - first)
			error = -EBADMSG;
		for (uint32_t page = first; !error && page < first + count; page++) {
			if (seen[page / 8] >> (page % 8) & 1)
				error = -EBADMSG;
			seen[page / 8] |= (uint8_t)(1u << (page % 8));
		}
		pages += count;
	}
	free(seen);
	return error ? error : pages == header->pages ? 0 : -EBADMSG;
}

/*
 * Return true if the runs of an allocation can be mapped side by side: handles are mapped as a whole, so each run but
 * the first begins at the start of a handle, and each but the last ends at the end of one.
 */
static bool runs_meet(const struct manifest_run *runs, uint32_t count, uint32_t per_handle)
{
	for (uint32_t i = 1; i < count; i++)
		if ((runs[i - 1].first + runs[i - 1].count) % per_handle || runs[i].first % per_handle)
			return false;
	return true;
}

/* Check that the runs of each allocation add up to its size, and those of all allocations to the total size. */
static int check_allocations(const struct manifest *manifest, const struct manifest_pool *pool)
{
	const struct manifest_header *header = manifest->header;
	uint32_t run = 0;

	for (uint32_t i = 0; i < header->allocations; i++) {
		uint32_t runs = manifest->run_counts[i];
		uint64_t pages = 0;

		if (runs < 1 || runs > header->runs - run ||
			!runs_meet(&manifest->runs[run], runs, pool->pages_per_handle))
			return -EBADMSG;
		for (uint32_t end = run + runs; run < end; run++)
			pages += manifest->runs[run].count;
		if (pages != manifest->sizes[i])
			return -EBADMSG;
	}
	return run == header->runs ? 0 : -EBADMSG;
}

static int check_entries(const struct manifest *manifest, uint64_t data_bytes)
{
	const char *last = NULL;
	uint64_t at = 0;
	uint32_t last_bytes = 0;

	for (uint32_t i = 0; i < manifest->header->entries; i++) {
		const struct manifest_entry *entry = &manifest->entries[i];
		const char *key = manifest->data + at;
		uint64_t value, end;

		if (entry->offset != at || entry->key_bytes < 1 || entry->key_bytes > MANIFEST_KEY_MAX)
			return -EBADMSG;
		value = manifest_value_at(at, entry->key_bytes);
		end = manifest_next_at(at, entry->key_bytes, entry->value_bytes);
		if (end > data_bytes || memchr(key, 0, entry->key_bytes + 1) != key + entry->key_bytes ||
			!is_padded(manifest->data, at + entry->key_bytes + 1) ||
			!is_padded(manifest->data, value + entry->value_bytes))
			return -EBADMSG;
		if (last && manifest_key_compare(last, last_bytes, key, entry->key_bytes) >= 0)
			return -EBADMSG;
		last = key;
		last_bytes = entry->key_bytes;
		at = end;
	}
	return at == data_bytes ? 0 : -EBADMSG;
}

static struct manifest manifest_view(const void *base, const struct manifest_layout *layout)
{
	const char *at = base;

	return (struct manifest){
		.header = base,
		.runs = (const struct manifest_run *)(const void *)(at + layout->runs),
		.run_counts = (const uint32_t *)(const void *)(at + layout->run_counts),
		.sizes = (const uint32_t *)(const void *)(at + layout->sizes),
		.entries = (const struct manifest_entry *)(const void *)(at + layout->entries),
		.data = at + layout->data,
		.bytes = ((const struct manifest_header *)base)->bytes,
	};
}

int manifest_check(const void *base, size_t bytes, const struct manifest_pool *pool, struct manifest *manifest)
{
	const struct manifest_header *header = base;
	struct manifest_layout layout;
	struct manifest m;
	int error;

	if (bytes < sizeof(*header) || bytes > MANIFEST_BYTES_MAX || header->magic != MANIFEST_MAGIC)
		return -EBADMSG;
	if (header->version != MANIFEST_VERSION || header->header_bytes != sizeof(*header))
		return -EPROTO;
	if (header->bytes != bytes || header->page_bytes != pool->page_bytes || header->reserved ||
		header->allocations < 1 || header->runs < header->allocations || header->runs > header->pages ||
		header->pages > pool->page_count)
		return -EBADMSG;
	layout = manifest_layout_of(header->runs, header->allocations, header->entries);
	if (layout.data > bytes)
		return -EBADMSG;
	m = manifest_view(base, &layout);
	if (!is_padded(base, layout.run_counts + header->allocations * sizeof(uint32_t)) ||
		!is_padded(base, layout.sizes + header->allocations * sizeof(uint32_t)))
		return -EBADMSG;
	error = check_runs(&m, pool);
	if (!error)
		error = check_allocations(&m, pool);
	if (!error)
		error = check_entries(&m, bytes - layout.data);
	if (!error && header->layout_hash != manifest_hash(base, &layout, bytes, pool->page_bytes))
		error = -EBADMSG;
	if (!error)
		*manifest = m;
	return error;
}

/* Larger files are mapped. The end of a mapping interrupts all other threads of the process, which costs them 50 us. */
enum { COPY_BYTES_MAX = 64 << 10 };

/* Return MAP_FAILED with errno on error. */
static void *file_copy(int fd, size_t bytes)
{
	void *copy = malloc(bytes);
	ssize_t count = copy ? pread(fd, copy, bytes, 0) : 0;
	int error = !copy ? ENOMEM : count < 0 ? errno : EBADMSG;

	if (copy && count == (ssize_t)bytes)
		return copy;
	free(copy);
	errno = error;
	return MAP_FAILED;
}

/*
 * Read or map a file. MAP_PRIVATE, because Linux before 6.7 refuses any shared mapping of a write-sealed file, even a
 * read-only one.
 */
static void *file_get(int fd, size_t bytes)
{
	return bytes <= COPY_BYTES_MAX ? file_copy(fd, bytes) : mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
}

static void file_put(const void *base, size_t bytes)
{
	if (bytes <= COPY_BYTES_MAX)
		free((void *)(uintptr_t)base);
	else
		munmap((void *)(uintptr_t)base, bytes);
}

int manifest_map(int fd, size_t bytes, struct manifest *manifest)
{
	const struct manifest_header *header = file_get(fd, bytes);
	struct manifest_layout layout;

	if (header == MAP_FAILED)
		return -errno;
	layout = manifest_layout_of(header->runs, header->allocations, header->entries);
	*manifest = manifest_view(header, &layout);
	return 0;
}

int manifest_open(int fd, const struct manifest_pool *pool, struct manifest *manifest)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
	struct statfs system;
	struct stat stat;
	void *base;
	int seals = fcntl(fd, F_GET_SEALS), error;

	/* Files of hugetlbfs are refused, because they have other rules for mappings. */
	if (seals < 0 || (seals & wanted) != wanted || fstatfs(fd, &system) < 0 || system.f_type != TMPFS_MAGIC)
		return -EPERM;
	if (fstat(fd, &stat) < 0)
		return -errno;
	if (stat.st_size > MANIFEST_BYTES_MAX)
		return -EFBIG;
	if (stat.st_size < (off_t)sizeof(struct manifest_header))
		return -EBADMSG;
	base = file_get(fd, (size_t)stat.st_size);
	if (base == MAP_FAILED)
		return -errno;
	error = manifest_check(base, (size_t)stat.st_size, pool, manifest);
	if (error)
		file_put(base, (size_t)stat.st_size);
	return error;
}

void manifest_close(struct manifest *manifest)
{
	if (manifest->header)
		file_put(manifest->header, manifest->bytes);
	memset(manifest, 0, sizeof(*manifest));
}

int64_t manifest_find(const struct manifest *manifest, const char *key, size_t key_bytes)
{
	uint32_t low = 0, high = manifest->header->entries;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct manifest_entry *entry = &manifest->entries[middle];
		int order = manifest_key_compare(manifest->data + entry->offset, entry->key_bytes, key, key_bytes);

		if (order == 0)
			return middle;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return -1;
}
