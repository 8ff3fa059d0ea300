/* lora_weights.h - compare the weights of an acquired adapter with those of its files. */
#ifndef GPOOL_TESTS_LORA_WEIGHTS_H
#define GPOOL_TESTS_LORA_WEIGHTS_H

#include "client/gpool/lora.h"
#include "cuda/kernels/lora.h"
#include "tests/integration/life.h"
#include "tests/unit/adapter_rig.h"

static inline uint16_t lora_element(
	const struct gpool_lora_matrix *matrix, uint32_t rank, uint32_t row, uint32_t column)
{
	/* Not copied, because ThreadSanitizer would check the copy for each element. */
	const struct lora_matrix *at = (const void *)matrix;

	static_assert(sizeof(*at) == sizeof(*matrix), "what kernels take");
	return ((const uint16_t *)(uintptr_t)lora_tile_at(
		at, rank, column / LORA_TILE_COLUMNS))[row * LORA_TILE_COLUMNS + column % LORA_TILE_COLUMNS];
}

/* Return the number of elements that differ from the file as bf16, to which mixed files are converted. */
UNWATCHED static inline uint64_t lora_wrong(struct gpool_lora *in, uint32_t id, const struct rig *rig)
{
	uint64_t wrong = 0;

	for (uint32_t m = 0; m < rig->peft.count; m++) {
		const struct peft_module *module = &rig->peft.modules[m];
		struct gpool_lora_weights part;

		assert_int_equal(
			gpool_lora_weights(in, id, module->layer == PEFT_NO_LAYER ? -1 : (int32_t)module->layer,
				module->target, &part),
			0);
		assert_int_equal(part.rank, module->rank);
		assert_true(part.scale == (float)module->scale);
		for (uint32_t k = 0; k < module->rank; k++) {
			for (uint32_t i = 0; i < module->in; i++)
				wrong += lora_element(&part.a, part.rank, k, i) !=
					bf16_of_float(rig_get(rig, &module->a, (uint64_t)k * module->in + i));
			for (uint32_t i = 0; i < module->out; i++)
				wrong += lora_element(&part.b, part.rank, k, i) !=
					bf16_of_float(rig_get(rig, &module->b, (uint64_t)i * module->rank + k));
		}
	}
	return wrong;
}

#endif
