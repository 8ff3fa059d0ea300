/*
 * object_sort.c - sort metadata by key.
 *
 * A sort by comparisons would read two keys from memory for each comparison. This sort copies 8 bytes of each key into
 * its entry, and sorts the entries by them, one byte after the other. Entries with the same 8 bytes are then sorted by
 * the next 8 bytes. Each step keeps the order of equal entries, so the values of a key stay in the order of the calls.
 */
#include "client/object/object.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT = 24 }; /* a list of this length is sorted faster by insertion */

/*
 * Load the 8 bytes of a key after the first `depth`, as a number with their order. The bytes after its end are 0, which
 * no key contains. The load may pass the end of the key, but not of the data (DRAFT_SLACK).
 */
static uint64_t prefix_load(const char *data, const struct draft_entry *entry, uint32_t depth)
{
	uint32_t left = entry->key_bytes - depth;
	uint64_t bytes;

	if (!left)
		return 0;
	memcpy(&bytes, data + entry->at + depth, sizeof(bytes));
	bytes = be64toh(bytes);
	return left < 8 ? bytes & ~(UINT64_MAX >> (8 * left)) : bytes;
}

/* Load all prefixes. Return the bits in which they differ. */
static uint64_t prefixes_load(const char *data, struct draft_entry *entries, uint32_t count, uint32_t depth)
{
	uint64_t differ = 0;

	for (uint32_t i = 0; i < count; i++) {
		if (i + DRAFT_PREFETCH < count)
			__builtin_prefetch(data + entries[i + DRAFT_PREFETCH].at + depth);
		entries[i].prefix = prefix_load(data, &entries[i], depth);
		differ |= entries[i].prefix ^ entries[0].prefix;
	}
	return differ;
}

static void sort_short(struct draft_entry *entries, uint32_t count)
{
	for (uint32_t i = 1; i < count; i++) {
		struct draft_entry entry = entries[i];
		uint32_t at = i;

		for (; at && entries[at - 1].prefix > entry.prefix; at--)
			entries[at] = entries[at - 1];
		entries[at] = entry;
	}
}

/* Sort by the bytes of the prefix that differ, the last one first. Not inlined, because sort_from() is recursive. */
static __attribute__((noinline)) void sort_long(
	struct draft_entry *entries, uint32_t count, uint64_t differ, struct draft_entry *scratch)
{
	struct draft_entry *from = entries, *to = scratch, *other;

	for (unsigned shift = 0; shift < 64; shift += 8) {
		uint32_t begin[257] = {0};

		if (!(differ >> shift & 0xff))
			continue;
		for (uint32_t i = 0; i < count; i++)
			begin[(from[i].prefix >> shift & 0xff) + 1]++;
		for (int i = 1; i < 256; i++)
			begin[i] += begin[i - 1];
		for (uint32_t i = 0; i < count; i++)
			to[begin[from[i].prefix >> shift & 0xff]++] = from[i];
		other = from;
		from = to;
		to = other;
	}
	if (from != entries)
		memcpy(entries, from, count * sizeof(*entries));
}

/*
 * Sort entries whose keys have the same first `depth` bytes. Of entries with the same key, mark all but the last as
 * unused. The recursion ends, because each call compares 8 further bytes of keys that have at most MANIFEST_KEY_MAX.
 */
static void sort_from(
	const char *data, struct draft_entry *entries, uint32_t count, uint32_t depth, struct draft_entry *scratch)
{
	uint64_t differ = prefixes_load(data, entries, count, depth);

	if (count <= SHORT)
		sort_short(entries, count);
	else
		sort_long(entries, count, differ, scratch);
	for (uint32_t begin = 0, end; begin < count; begin = end) {
		bool ended = !(entries[begin].prefix & 0xff);

		for (end = begin + 1; end < count && entries[end].prefix == entries[begin].prefix; end++)
			if (ended)
				entries[end - 1].key_bytes = 0;
		if (!ended && end > begin + 1)
			sort_from(data, entries + begin, end - begin, depth + 8, scratch);
	}
}

int draft_sort(struct draft *draft)
{
	struct draft_entry *scratch = malloc(draft->count * sizeof(*scratch));
	uint32_t kept = 0;

	if (!scratch)
		return draft->count ? -ENOMEM : 0;
	if (draft->count > 1)
		sort_from(draft->data, draft->entries, draft->count, 0, scratch);
	free(scratch);
	for (uint32_t i = 0; i < draft->count; i++)
		if (draft->entries[i].key_bytes)
			draft->entries[kept++] = draft->entries[i];
	draft->count = kept;
	return 0;
}
