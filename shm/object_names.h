/*
 * object_names.h - the versions of named objects that have a name, found by a hash of name and trust domain.
 *
 * A name belongs to a trust domain: the same name in another domain is another name. names[] of the pool segment has a
 * place for each hash, with the number of a record or 0; each record has the number of the next record with the same
 * place. Versions are in a chain while they are CURRENT or OLD, the latest one first.
 *
 * Writer: the agent alone. Readers: every worker, without a lock. While the agent changes a chain, or after its death,
 * a reader may miss a version or find a record with another name. So a reader checks every record, and a failed lookup
 * means no more than "not now". The agent rebuilds all chains before it relies on them.
 */
#ifndef GPOOL_SHM_OBJECT_NAMES_H
#define GPOOL_SHM_OBJECT_NAMES_H

#include "shm/pool_segment.h"

#include <stdbool.h>

/* Prefixes of the names of adapters: of objects in the pool, and of copies in the warm pool. */
#define LORA_PREFIX "lora/"
#define LORA_WARM_PREFIX "warm/"

/*
 * object_names_first(), object_names_next() - return the records that may have this name in this domain, one after the
 * other; 0: no more. A reader looks at object_count records at most. Cost: a hash, and a cache line for each record.
 */
uint32_t object_names_first(const struct pool_segment *segment, uint32_t domain, const char *name);
uint32_t object_names_next(const struct pool_segment *segment, uint32_t number);

/*
 * object_names_are() - return whether a record has this name in this domain. The record's name need not be terminated
 * within its 128 bytes.
 */
bool object_names_are(const struct object_record *record, uint32_t domain, const char *name);

/*
 * object_names_add() - add a record that is in no chain. object_names_remove() - remove a record from its chain, if it
 * is in one. Agent only.
 */
void object_names_add(const struct pool_segment *segment, uint32_t number);
void object_names_remove(const struct pool_segment *segment, uint32_t number);
/* object_names_clear() - remove all records from their chains. */
void object_names_clear(const struct pool_segment *segment);

#endif
