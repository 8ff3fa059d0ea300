/*
 * object_names.h - a hash table that finds the versions of a named object by name and trust domain.
 *
 * Every trust domain has its own names: the same name in two domains refers to two objects. names[] of the pool segment
 * contains the number of the first record of each hash chain, or 0; each record contains the number of the next one.
 * Versions are in a chain while they are CURRENT, LEAVING or OLD, the latest version first.
 *
 * Writer: the agent. Readers: every worker, without a lock. While the agent changes a chain, or after it died, a reader
 * may miss a version or find a record with another name. A reader must therefore check every record, and must not
 * conclude from a failed lookup that the object does not exist. A restarted agent rebuilds all chains before it relies
 * on them.
 */
#ifndef GPOOL_SHM_OBJECT_NAMES_H
#define GPOOL_SHM_OBJECT_NAMES_H

#include "shm/pool_segment.h"

#include <stdbool.h>

/* The prefixes of the names of adapters: in the pool, and in host memory (the warm pool). */
#define LORA_PREFIX "lora/"
#define LORA_WARM_PREFIX "warm/"
/* The prefixes of the names of shared KV blocks: of the library's caches, and of vLLM's (client/python/gpool/vllm). */
#define KV_PREFIX "kv-prefix/"
#define KV_VLLM_PREFIX "vllm-kv/"
#define NAMES_RESERVED "lora/, warm/, kv-prefix/ or kv/"

/*
 * object_name_reserved() - return the part of a name that follows one of the prefixes that are reserved for libgpool's
 * own objects (NAMES_RESERVED), or NULL if the name begins with none of them.
 */
const char *object_name_reserved(const char *name);

/*
 * object_names_first(), object_names_next() - return the first or the next record that may have this name in this
 * domain; 0: no more. A reader must stop after object_count records, because a chain may be circular.
 * Cost: a hash, and one cache line for each record.
 */
uint32_t object_names_first(const struct pool_segment *segment, uint32_t domain, const char *name);
uint32_t object_names_next(const struct pool_segment *segment, uint32_t number);

/*
 * object_names_are() - return true if a record has this name in this domain. The record's name need not end with a NUL.
 */
bool object_names_are(const struct object_record *record, uint32_t domain, const char *name);

/*
 * object_names_add() - add a record that is in no chain.
 * object_names_remove() - remove a record from its chain, if it is in one.
 * Only the agent may call these functions.
 */
void object_names_add(const struct pool_segment *segment, uint32_t number);
void object_names_remove(const struct pool_segment *segment, uint32_t number);
/* object_names_clear() - remove all records from their chains. */
void object_names_clear(const struct pool_segment *segment);

#endif
