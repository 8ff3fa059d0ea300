/*
 * peft.h - the files of a LoRA adapter of PEFT: adapter_config.json and adapter_model.safetensors.
 *
 * Each adapted module has two matrices, base_model.model.PATH.lora_A.weight [rank, in] and .lora_B.weight [out, rank],
 * and is applied as y += scale * B (A x). The rank is taken from the shapes. The rank in the configuration affects only
 * the scale, which is alpha / rank, or alpha / sqrt(rank) with rsLoRA. The patterns in the configuration can set rank
 * and alpha for each module.
 *
 * Only headers are read. The positions of the weights are checked: they are within the file and do not overlap.
 */
#ifndef GPOOL_CLIENT_LORA_PEFT_H
#define GPOOL_CLIENT_LORA_PEFT_H

#include <stdint.h>

#include "client/lora/format/reason.h"
#include "client/lora/format/safetensors.h"

#define PEFT_WEIGHTS_NAME "adapter_model.safetensors"

enum {
	PEFT_RANK_MAX = 128,         /* the largest rank that the kernels support */
	PEFT_FEATURES_MAX = 1 << 20, /* limit of `in` and `out`: four times the largest known vocabulary */
	PEFT_LAYERS_MAX = 4096,
	PEFT_MODULES_MAX = 65536,
	PEFT_MATCHES_MAX = 1 << 20,     /* limit of modules times expressions */
	PEFT_NO_LAYER = PEFT_LAYERS_MAX /* layer of modules outside all layers */
};

/* The position of a matrix in the file of weights, in rows. */
struct peft_matrix {
	uint64_t offset, bytes;
	uint8_t type; /* enum safetensors_type: F32, F16 or BF16 */
};

struct peft_module {
	const char *path;   /* "model.layers.3.self_attn.q_proj" */
	const char *target; /* the same in all layers: "model.layers.*.self_attn.q_proj" */
	uint32_t layer;     /* the first integer in the path, or PEFT_NO_LAYER */
	uint32_t rank, in, out;
	double scale;
	struct peft_matrix a, b;
};

struct peft {
	struct peft_module *modules; /* [count], ordered by layer, then by target */
	uint32_t count;
	uint32_t layers;       /* the highest layer + 1; 0: no module is in a layer */
	uint32_t ranks_differ; /* number of modules whose rank differs from that in the configuration */
	uint32_t rank_max;
	uint64_t file_bytes; /* size of the file of weights; must be the same when the weights are read */
	char *names;
};

/*
 * peft_read() - read the headers of an adapter from two descriptors of regular files. Return: 0, and peft_free() must
 * be called; -EINVAL, with a reason; -EIO; -ENOMEM.
 */
int peft_read(int config_fd, int weights_fd, struct peft *peft, struct reason *reason);
void peft_free(struct peft *peft);

#endif
