/*
 * manifest.h - the content of a named object: its allocations, their pages, its metadata. Each version has one memfd.
 * Its publisher writes and seals it before publication; it never changes afterwards.
 *
 *   header | runs struct manifest_run[runs] | run_counts u32[allocations] | sizes u32[allocations] |
 *   entries struct manifest_entry[entries] | data
 *
 * The part from `sizes` on is the layout. It does not depend on the pages used, so two versions with equal sizes and
 * metadata have the same layout hash. A layout has exactly one encoding: entries ascend by key, keys and values are
 * stored in data without gaps, and unused bytes are zero.
 *
 * A reader must treat every field as untrusted until manifest_open() has accepted the manifest. The seals prevent later
 * changes.
 */
#ifndef GPOOL_SHM_MANIFEST_H
#define GPOOL_SHM_MANIFEST_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define MANIFEST_MAGIC UINT64_C(0x7473656e616d3167) /* "g1manest" */

enum {
	MANIFEST_VERSION = 1,
	MANIFEST_BYTES_MAX = 64 << 20, /* about 100,000 entries of 600 bytes */
	MANIFEST_KEY_MAX = 1023,
};

struct manifest_header {
	uint64_t magic;
	uint32_t version;
	uint32_t header_bytes;
	uint64_t bytes; /* size of the whole file */
	uint64_t page_bytes;
	uint64_t layout_hash; /* XXH3 64 from sizes to the end, seed page_bytes; never 0 */
	uint32_t pages, runs, allocations, entries;
	uint64_t reserved;
};
static_assert(sizeof(struct manifest_header) == 64, "shared layout");

/*
 * Adjacent pages. `generation` is copied from the first page's word at publication, when the publisher still owned the
 * page.
 */
struct manifest_run {
	uint32_t first, count;
	uint64_t generation;
};
static_assert(sizeof(struct manifest_run) == 16, "shared layout");

/* The key is stored at `offset` of data and followed by a NUL. Its value starts at the next multiple of 8. */
struct manifest_entry {
	uint64_t offset;
	uint32_t key_bytes; /* without the NUL; contains no NUL */
	uint32_t value_bytes;
};
static_assert(sizeof(struct manifest_entry) == 16, "shared layout");

struct manifest_layout {
	uint64_t runs, run_counts, sizes, entries, data;
};
struct manifest_layout manifest_layout_of(uint32_t runs, uint32_t allocations, uint32_t entries);
/*
 * manifest_value_at() - return the offset of a value in data.
 * manifest_next_at() - return the offset of the next key.
 */
uint64_t manifest_value_at(uint64_t offset, uint32_t key_bytes);
uint64_t manifest_next_at(uint64_t offset, uint32_t key_bytes, uint32_t value_bytes);
uint64_t manifest_hash(const void *base, const struct manifest_layout *layout, uint64_t bytes, uint64_t page_bytes);

struct manifest {
	const struct manifest_header *header;
	const struct manifest_run *runs;
	const uint32_t *run_counts; /* [allocations]: number of runs of each allocation, in order */
	const uint32_t *sizes;      /* [allocations]: pages */
	const struct manifest_entry *entries;
	const char *data;
	size_t bytes;
};

struct manifest_pool {
	uint64_t page_bytes;
	uint32_t page_count;
	uint32_t pages_per_handle;
};

/*
 * manifest_check() - check that [base, base + bytes) is a valid manifest for this pool: all counts are consistent, runs
 * are within the pool and do not overlap, keys are sorted, the hash matches. `base` must be aligned to 8 bytes.
 * Return: 0, -EBADMSG, -EPROTO (another version), -ENOMEM.
 */
int manifest_check(const void *base, size_t bytes, const struct manifest_pool *pool, struct manifest *manifest);

/*
 * manifest_map() - read or map a file of `bytes` bytes that this process has written itself, without a check. Return: 0
 * or negative errno.
 * manifest_open() - read or map a received manifest, and check it. The caller keeps the descriptor.
 * Return: 0, -EPERM (not sealed, or not a memfd), -EFBIG (above MANIFEST_BYTES_MAX), or as manifest_check().
 */
int manifest_map(int fd, size_t bytes, struct manifest *manifest);
int manifest_open(int fd, const struct manifest_pool *pool, struct manifest *manifest);
void manifest_close(struct manifest *manifest);

/* manifest_find() - return the index of the entry with this key, or -1. Cost: log2(entries) comparisons. */
int64_t manifest_find(const struct manifest *manifest, const char *key, size_t key_bytes);
/*
 * manifest_key_compare() - compare keys by the order of entries: that of memcmp(), with a key before longer keys that
 * begin with it.
 */
int manifest_key_compare(const char *left, size_t left_bytes, const char *right, size_t right_bytes);

#endif
