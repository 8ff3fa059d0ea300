/*
 * adapter_rig.h - adapters for tests: create both of PEFT's files in memory, with given modules, and read them.
 */
#ifndef TESTS_UNIT_ADAPTER_RIG_H
#define TESTS_UNIT_ADAPTER_RIG_H

#include "client/lora/format/peft.h"
#include "cuda/kernels/element.h"
#include "tests/lib/unwatched.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct rig_module {
	char path[64];
	uint32_t rank, in, out;
	enum safetensors_type type;
};

struct rig {
	int config, weights; /* descriptors; both support pread() at any offset */
	struct peft peft;
	struct reason reason;
	uint8_t *file; /* the weights file, mapped */
	uint64_t bytes, header_room, header_bytes;
	char *header;
};

static uint64_t rig_state = 1;

UNWATCHED static inline uint32_t rig_random(uint32_t below)
{
	rig_state = rig_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((rig_state >> 33) % below);
}

/* Return a random value with about a normal distribution and deviation 1. */
UNWATCHED static inline float rig_normal(void)
{
	float sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (float)rig_random(1 << 24) / (1 << 24);
	return (sum - 2) * 1.732f;
}

static inline void rig_tensor(
	struct rig *rig, const struct rig_module *module, const char *name, uint32_t rows, uint32_t columns)
{
	uint64_t bytes = (uint64_t)rows * columns * safetensors_type_bytes(module->type);

	if (rig->header_room - rig->header_bytes < 512) {
		rig->header_room = rig->header_room * 2 + 4096;
		rig->header = realloc(rig->header, rig->header_room);
	}
	rig->header_bytes += (uint64_t)snprintf(rig->header + rig->header_bytes, 512,
		"%c\"base_model.model.%s.%s.weight\":{\"dtype\":\"%s\",\"shape\":[%u,%u],\"data_offsets\":[%llu,%llu]}",
		rig->bytes ? ',' : '{', module->path, name, safetensors_type_name(module->type), rows, columns,
		(unsigned long long)rig->bytes, (unsigned long long)(rig->bytes + bytes));
	rig->bytes += bytes;
}

/* Build an adapter whose values are zeros. `config` is its text, or NULL for a plain one. */
static inline int rig_make_with(struct rig *rig, const struct rig_module *modules, uint32_t count, const char *config)
{
	*rig = (struct rig){
		.config = memfd_create("config", MFD_CLOEXEC), .weights = memfd_create("weights", MFD_CLOEXEC)};
	if (!config)
		config = "{\"peft_type\":\"LORA\",\"lora_alpha\":16}";
	for (uint32_t bytes = 4; bytes >= 2; bytes -= 2) /* the larger types first, for their alignment */
		for (uint32_t i = 0; i < count; i++) {
			if (safetensors_type_bytes(modules[i].type) != bytes)
				continue;
			rig_tensor(rig, &modules[i], "lora_A", modules[i].rank, modules[i].in);
			rig_tensor(rig, &modules[i], "lora_B", modules[i].out, modules[i].rank);
		}
	rig->header[rig->header_bytes++] = '}';
	while (rig->header_bytes % 8)
		rig->header[rig->header_bytes++] = ' ';
	if (pwrite(rig->config, config, strlen(config), 0) < 0 || pwrite(rig->weights, &rig->header_bytes, 8, 0) != 8 ||
		pwrite(rig->weights, rig->header, rig->header_bytes, 8) != (ssize_t)rig->header_bytes ||
		ftruncate(rig->weights, (off_t)(8 + rig->header_bytes + rig->bytes)))
		abort();
	rig->file = mmap(NULL, 8 + rig->header_bytes + rig->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, rig->weights, 0);
	if (rig->file == MAP_FAILED)
		abort();
	free(rig->header);
	rig->header = NULL;
	return peft_read(rig->config, rig->weights, &rig->peft, &rig->reason);
}

static inline void rig_make(struct rig *rig, const struct rig_module *modules, uint32_t count)
{
	if (rig_make_with(rig, modules, count, NULL)) {
		fprintf(stderr, "rig: %s\n", rig->reason.text);
		abort();
	}
}

UNWATCHED static inline void rig_put(
	const struct rig *rig, const struct peft_matrix *matrix, uint64_t index, float value)
{
	uint16_t half;

	/* Copies of constant size are no calls, which sanitizers would intercept for each element. */
	if (matrix->type == SAFETENSORS_F32) {
		memcpy(rig->file + matrix->offset + index * sizeof(value), &value, sizeof(value));
		return;
	}
	half = matrix->type == SAFETENSORS_F16 ? f16_of_float(value) : bf16_of_float(value);
	memcpy(rig->file + matrix->offset + index * sizeof(half), &half, sizeof(half));
}

/* Return one element of a matrix, as stored in the file. */
UNWATCHED static inline float rig_get(const struct rig *rig, const struct peft_matrix *matrix, uint64_t index)
{
	uint16_t half;
	float value;

	if (matrix->type == SAFETENSORS_F32) {
		memcpy(&value, rig->file + matrix->offset + index * sizeof(value), sizeof(value));
		return value;
	}
	memcpy(&half, rig->file + matrix->offset + index * sizeof(half), sizeof(half));
	return matrix->type == SAFETENSORS_F16 ? float_of_f16(half) : float_of_bf16(half);
}

UNWATCHED static inline void rig_fill_matrix(
	const struct rig *rig, const struct peft_matrix *matrix, float (*value)(void))
{
	for (uint64_t i = 0; i < matrix->bytes / safetensors_type_bytes(matrix->type); i++)
		rig_put(rig, matrix, i, value());
}

/* Fill all matrices with results of `value`. */
static inline void rig_fill(const struct rig *rig, float (*value)(void))
{
	for (uint32_t i = 0; i < rig->peft.count; i++) {
		rig_fill_matrix(rig, &rig->peft.modules[i].a, value);
		rig_fill_matrix(rig, &rig->peft.modules[i].b, value);
	}
}

static inline void rig_end(struct rig *rig)
{
	peft_free(&rig->peft);
	munmap(rig->file, 8 + rig->header_bytes + rig->bytes);
	close(rig->config);
	close(rig->weights);
}

/*
 * Make random shapes and ranks: 1 to `most` modules in some layers and, occasionally, one outside the layers. Return
 * the number of modules.
 */
static inline uint32_t rig_random_modules(struct rig_module *modules, uint32_t most, uint32_t features_max)
{
	static const char *const targets[] = {"q", "k", "v", "o", "gate", "up", "down"};
	static const enum safetensors_type types[] = {SAFETENSORS_F32, SAFETENSORS_F16, SAFETENSORS_BF16};
	uint32_t layers = 1 + rig_random(6), each = 1 + rig_random(7), count = 0, ranks = 1 + rig_random(4);

	for (uint32_t layer = 0; layer < layers; layer++)
		for (uint32_t i = 0; i < each && count < most; i++, count++) {
			struct rig_module *module = &modules[count];

			snprintf(module->path, sizeof(module->path), "model.layers.%u.%s", layer, targets[i]);
			module->rank = ranks == 1 ? 16 : ranks == 2 ? 8u << rig_random(5) : 1 + rig_random(128);
			module->in = 1 + rig_random(features_max);
			module->out = 1 + rig_random(features_max);
			module->type = types[rig_random(3)];
		}
	if (count < most && rig_random(3) == 0)
		modules[count++] = (struct rig_module){"lm_head", 1 + rig_random(64), 1 + rig_random(features_max),
			1 + rig_random(4 * features_max), SAFETENSORS_F16};
	return count;
}

#endif
