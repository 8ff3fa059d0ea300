/* adapter_make.h - random LoRA adapters (seeded) in the format of PEFT. */
#ifndef GPOOL_TOOLS_LIB_ADAPTER_MAKE_H
#define GPOOL_TOOLS_LIB_ADAPTER_MAKE_H

#include <stdint.h>

enum { ADAPTER_MAKE_LAYERS_MAX = 128 };

/*
 * adapter_make() - write adapter_config.json and adapter_model.safetensors to two empty files. The adapter has rank
 * `rank` in all linear layers of `layers` layers with the shapes of an 8B model, as approximately normal F32 values.
 * Six layers of rank 16 are 16 MB as fp16. Return: 0, -EINVAL, -EIO.
 */
int adapter_make(int config_fd, int weights_fd, uint32_t layers, uint32_t rank);

#endif
