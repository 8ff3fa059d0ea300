/*
 * batch.h - the adapter of each token of a step, on the device. Internal to libgpool_lora.
 *
 *   device memory, in this order, at fixed addresses:
 *   struct lora_batch for tokens_max | tables: struct lora_adapter[adapters_max][places] | workspace
 *
 * A place is a combination of layer and target of the model. An adapter in the batch has a slot, whose index the
 * kernels use. The slot has a table of the adapter's matrices for all places. When the adapter leaves the batch, the
 * slot keeps this table until another adapter needs the slot. If the adapter is used again while it is resident, its
 * table need not be created again.
 *
 * Invariants: if a slot has an id, slot_of[id] is this slot. Slots of the last batch are held: the batch has acquired
 * their adapters. The device memory is written only in the order of `stream`, after the work that was queued on it for
 * the previous batch.
 */
#ifndef GPOOL_CLIENT_LORA_BATCH_H
#define GPOOL_CLIENT_LORA_BATCH_H

#include "client/lora/load/lora.h"
#include "cuda/kernels/lora.h"

enum {
	BATCH_STAGES = 2, /* the host prepares a batch while the device copies the previous batch */
	BATCH_ADAPTERS_DEFAULT = 32,
	BATCH_ADAPTERS_MAX = 1024, /* chosen */
	BATCH_PLACES_MAX = 65536,  /* the maximum number of modules of an adapter */
	BATCH_NO_SLOT = -1,
};

struct batch_target {
	char *name;
	bool in_layers; /* false: the target is outside of layers, and has one place */
	uint32_t in, out;
	uint32_t place; /* index in its first layer */
};

struct batch_slot {
	struct lora_entry *entry; /* if held: the adapter of the table */
	uint32_t id;
	uint64_t placed; /* entry->placed when the table was made; 0: no table */
	uint64_t step;   /* step of the last use */
	bool held;
	bool fresh; /* while a batch is queued: the table is copied, too */
};

/* An adapter to acquire for the next batch. */
struct batch_joiner {
	struct lora_entry *entry;
	uint32_t id;
	int32_t slot;
	bool fresh; /* its table must be created */
};

struct batch_stage {
	uint8_t *memory; /* has the layout of the device memory: batch, then tables */
	struct gpool_fence fence;
};

struct gpool_lora_batch {
	struct gpool_lora *lora;
	uint32_t tokens_max, adapters_max, rank_max, layers, stream;
	enum element element;
	struct batch_target *targets; /* [target_count] */
	uint32_t target_count, places;

	struct gpool_block block;
	uint64_t address, tables_at, workspace_at, bytes; /* address of the block, and offsets in it */
	void *staging;
	uint64_t staging_bytes;
	struct batch_stage stages[BATCH_STAGES];

	struct batch_slot *slots;     /* [adapters_max] */
	struct batch_joiner *joiners; /* [adapters_max] */
	int32_t *token_slots;         /* [tokens_max] */
	/*
	 * [id_count] for each adapter its slot, BATCH_NO_SLOT, or, while a batch is made, the result of joiner_mark()
	 */
	int32_t *slot_of;
	uint32_t id_count, joiner_count;
	uint32_t *leaving; /* [2 * adapters_max] adapters of earlier batches, to release with the next fence */
	uint32_t leaving_count;
	uint64_t step;
	bool torn; /* the device memory may contain parts of two batches */
};

/*
 * batch_table() - create the table of an open adapter: parts[places]. Return: 0, or -EINVAL with a reason: a module of
 * the adapter is unknown to the batch, or has another shape or a higher rank; or its weights have another type.
 */
int batch_table(const struct gpool_lora_batch *batch, const struct lora_entry *entry, struct gpool_lora_weights *parts,
	struct reason *reason);

#endif
