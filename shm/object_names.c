#include "shm/object_names.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

const char *object_name_reserved(const char *name)
{
	static const char *const prefixes[] = {LORA_PREFIX, LORA_WARM_PREFIX, KV_PREFIX, "kv/"};

	for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++)
		if (!strncmp(name, prefixes[i], strlen(prefixes[i])))
			return name + strlen(prefixes[i]);
	return NULL;
}

static _Atomic uint32_t *place_of(const struct pool_segment *segment, uint32_t domain, const char *name)
{
	uint64_t hash = XXH3_64bits_withSeed(name, strnlen(name, POOL_OBJECT_NAME_BYTES), domain);

	return &segment->names[hash % segment->header->object_count];
}

/* Return the number of the record at this place. Readers must treat it as untrusted. */
static uint32_t number_at(const struct pool_segment *segment, const _Atomic uint32_t *place)
{
	uint32_t number = atomic_load_explicit(place, memory_order_acquire);

	return number < segment->header->object_count ? number : 0;
}

uint32_t object_names_first(const struct pool_segment *segment, uint32_t domain, const char *name)
{
	return number_at(segment, place_of(segment, domain, name));
}

bool object_names_are(const struct object_record *record, uint32_t domain, const char *name)
{
	return record->domain == domain && !strncmp(record->name, name, POOL_OBJECT_NAME_BYTES);
}

uint32_t object_names_next(const struct pool_segment *segment, uint32_t number)
{
	return number_at(segment, &segment->objects[number].next);
}

void object_names_add(const struct pool_segment *segment, uint32_t number)
{
	struct object_record *record = &segment->objects[number];
	_Atomic uint32_t *place = place_of(segment, record->domain, record->name);

	atomic_store_explicit(&record->next, number_at(segment, place), memory_order_relaxed);
	atomic_store_explicit(place, number, memory_order_release);
}

void object_names_remove(const struct pool_segment *segment, uint32_t number)
{
	const struct object_record *record = &segment->objects[number];
	_Atomic uint32_t *place = place_of(segment, record->domain, record->name);
	uint32_t at;

	while ((at = number_at(segment, place)) != 0) {
		if (at == number) {
			atomic_store_explicit(place, object_names_next(segment, number), memory_order_release);
			return;
		}
		place = &segment->objects[at].next;
	}
}

void object_names_clear(const struct pool_segment *segment)
{
	memset((void *)segment->names, 0, segment->header->object_count * sizeof(*segment->names));
}
