/*
 * batch.h - which adapter each token of a step has, on the device. Internal to libgpool.
 *
 *   device memory, in this order, at addresses that stay:
 *   struct lora_batch for tokens_max | tables: struct lora_adapter[adapters_max][places] | workspace
 *
 * A place is a layer and target of the model. An adapter in the batch has a slot, which is the index that kernels have
 * for it, and its table there for all places side by side. A slot keeps its table when its adapter leaves the batch,
 * until another one needs it, so what comes back while it stays in the pool costs nothing.
 *
 * Invariants: a slot with an id is that id's in slot_of[], and no other one's. Slots of the last batch are held: their
 * adapters are acquired by it. Nothing on the device is written but in the order of `stream`, behind the work of the
 * batch before.
 */
#ifndef GPOOL_CLIENT_LORA_BATCH_H
#define GPOOL_CLIENT_LORA_BATCH_H

#include "client/lora/load/lora.h"
#include "cuda/kernels/lora.h"

enum {
	BATCH_STAGES = 2, /* the host makes the next batch while the device takes the last one */
	BATCH_ADAPTERS_DEFAULT = 32,
	BATCH_ADAPTERS_MAX = 1024, /* chosen */
	BATCH_PLACES_MAX = 65536,  /* as many modules as an adapter may have */
	BATCH_NO_SLOT = -1,
};

struct batch_target {
	char *name;
	bool in_layers; /* else it is outside of them, and has one place */
	uint32_t in, out;
	uint32_t place; /* of its first layer */
};

struct batch_slot {
	struct lora_entry *entry; /* held: whose table it is */
	uint32_t id;
	uint64_t placed; /* the entry's, when the table was made; 0: there is none */
	uint64_t step;   /* in which it was used last */
	bool held;
	bool fresh; /* while a batch is queued: its table goes along */
};

/* One that has to be acquired for the next batch. */
struct batch_joiner {
	struct lora_entry *entry;
	uint32_t id;
	int32_t slot;
	bool fresh; /* its table has to be made */
};

struct batch_stage {
	uint8_t *memory; /* as on the device: batch, then tables */
	struct gpool_fence fence;
};

struct gpool_lora_batch {
	struct gpool_lora *lora;
	uint32_t tokens_max, adapters_max, rank_max, layers, stream;
	enum element element;
	struct batch_target *targets; /* [target_count] */
	uint32_t target_count, places;

	struct gpool_block block;
	uint64_t address, tables_at, workspace_at, bytes; /* of the block; offsets in it */
	void *staging;
	uint64_t staging_bytes;
	struct batch_stage stages[BATCH_STAGES];

	struct batch_slot *slots;     /* [adapters_max] */
	struct batch_joiner *joiners; /* [adapters_max] */
	int32_t *token_slots;         /* [tokens_max] */
	/* [id_count] by adapter: slot, BATCH_NO_SLOT, or while a batch is made what joiner_mark() says */
	int32_t *slot_of;
	uint32_t id_count, joiner_count;
	uint32_t *leaving; /* [2 * adapters_max] of batches before, to be released behind the next fence */
	uint32_t leaving_count;
	uint64_t step;
	bool torn; /* what is on the device may be of two batches */
};

/*
 * batch_table() - an open adapter's table: parts[places]. Return: 0, or -EINVAL with a reason: the adapter has a module
 * that the batch does not know, of another shape, or of a higher rank; or its weights are of another type.
 */
int batch_table(const struct gpool_lora_batch *batch, const struct lora_entry *entry, struct gpool_lora_weights *parts,
	struct reason *reason);

#endif
