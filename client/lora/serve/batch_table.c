/*
 * batch_table.c - create the table of an adapter's matrices for each place of a batch, and check that the adapter fits
 * the model.
 */
#include "client/lora/serve/batch.h"
#include "shm/plural.h"

#include <string.h>

static const char *element_name(uint32_t element)
{
	return element == ADAPTER_F16 ? "fp16" : "bf16";
}

static int module_check(const struct gpool_lora_batch *batch, const struct lora_entry *entry,
	const struct batch_target *target, const struct adapter_module *module, struct reason *reason)
{
	char name[REASON_NAME_BYTES];

	if (module->in != target->in || module->out != target->out)
		return refuse(reason,
			"adapter '%.60s': '%s' of layer %u has %u input feature%s and %u output feature%s, but the "
			"batch has %u and %u",
			entry->adapter->name, refuse_name(target->name, name), module->layer, module->in,
			plural(module->in), module->out, plural(module->out), target->in, target->out);
	if (module->rank > batch->rank_max)
		return refuse(reason,
			"adapter '%.60s': '%s' of layer %u has rank %u; the maximum of the batch is %u (rank_max)",
			entry->adapter->name, refuse_name(target->name, name), module->layer, module->rank,
			batch->rank_max);
	return 0;
}

static bool module_known(
	const struct gpool_lora_batch *batch, const struct adapter_layout *layout, const struct adapter_module *module)
{
	const char *name = layout->names + layout->targets[module->target].offset;

	for (uint32_t i = 0; i < batch->target_count; i++)
		if (!strcmp(name, batch->targets[i].name))
			return batch->targets[i].in_layers ? module->layer < batch->layers
							   : module->layer == ADAPTER_NO_LAYER;
	return false;
}

/* Refuse an adapter with a module that has no place: without this module it would compute other results. */
static int stranger_say(const struct gpool_lora_batch *batch, const struct lora_entry *entry, struct reason *reason)
{
	const struct adapter_layout *layout = &entry->adapter->layout;
	const struct adapter_module *module = layout->modules;
	char name[REASON_NAME_BYTES];

	while (module_known(batch, layout, module))
		module++;
	refuse_name(layout->names + layout->targets[module->target].offset, name);
	if (module->layer == ADAPTER_NO_LAYER)
		return refuse(reason, "adapter '%.60s' contains '%s', which is not a target of the batch",
			entry->adapter->name, name);
	return refuse(reason,
		"adapter '%.60s' contains '%s' in layer %u, which is not a target in the %u layer%s of the batch",
		entry->adapter->name, name, module->layer, batch->layers, plural(batch->layers));
}

/* Fill the places of one target. Return: the number of modules, or -EINVAL. */
static int target_fill(const struct gpool_lora_batch *batch, const struct lora_entry *entry,
	const struct batch_target *target, struct gpool_lora_weights *parts, struct reason *reason)
{
	int index = target_find(&entry->adapter->layout, target->name), count = 0, error;

	for (uint32_t layer = 0; index >= 0 && layer < (target->in_layers ? batch->layers : 1); layer++) {
		const struct adapter_module *module = module_find(
			&entry->adapter->layout, target->in_layers ? layer : (uint32_t)ADAPTER_NO_LAYER, index);

		if (!module)
			continue;
		error = module_check(batch, entry, target, module, reason);
		if (error)
			return error;
		parts[target->place + layer] = part_of(entry, module);
		count++;
	}
	return count;
}

int batch_table(const struct gpool_lora_batch *batch, const struct lora_entry *entry, struct gpool_lora_weights *parts,
	struct reason *reason)
{
	const struct adapter_layout_header *header = entry->adapter->layout.header;
	uint32_t found = 0;

	if (header->element != (uint32_t)(batch->element == ELEMENT_F16 ? ADAPTER_F16 : ADAPTER_BF16))
		return refuse(reason,
			"adapter '%.60s' has weights in %s, but the batch is in %s; set gpool_lora_options.element to "
			"convert all weights",
			entry->adapter->name, element_name(header->element),
			batch->element == ELEMENT_F16 ? "fp16" : "bf16");
	memset(parts, 0, batch->places * sizeof(*parts));
	for (uint32_t i = 0; i < batch->target_count; i++) {
		int count = target_fill(batch, entry, &batch->targets[i], parts, reason);

		if (count < 0)
			return count;
		found += (uint32_t)count;
	}
	return found == header->modules ? 0 : stranger_say(batch, entry, reason);
}
