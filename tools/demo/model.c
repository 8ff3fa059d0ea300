/*
 * model.c - see model.h. The shapes are taken from the models' public configuration files; tp8 is one of eight GPUs
 * with tensor parallelism.
 */
#include "tools/demo/model.h"

#include "shm/plural.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct model table[] = {
	{"tiny", "fp16", 2, 2, 64, 2, 1024},
	{"qwen2.5-0.5b", "fp16", 24, 2, 64, 2, 12288},
	{"llama-1b", "fp16", 16, 8, 64, 2, 32768},
	{"llama-8b", "fp16", 32, 8, 128, 2, 131072},
	{"llama-70b", "fp16", 80, 8, 128, 2, 327680},
	{"llama-70b-tp8", "fp16", 80, 1, 128, 2, 40960},
};

static const struct dtype {
	char name[8];
	uint32_t bytes;
} dtypes[] = {{"fp16", 2}, {"bf16", 2}, {"fp8", 1}, {"int8", 1}, {"fp32", 4}};

const struct model *model_list(size_t i)
{
	return i < sizeof table / sizeof table[0] ? &table[i] : NULL;
}

static bool number_parse(const char *text, uint32_t most, uint32_t *value)
{
	char *end;
	unsigned long number;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	number = strtoul(text, &end, 10);
	if (errno || *end != '\0' || number == 0 || number > most)
		return false;
	*value = (uint32_t)number;
	return true;
}

static int dtype_set(struct model *model, const char *value, char *error)
{
	for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
		if (strcmp(value, dtypes[i].name) == 0) {
			memcpy(model->dtype, dtypes[i].name, sizeof model->dtype);
			model->dtype_bytes = dtypes[i].bytes;
			return 0;
		}
	snprintf(error, MODEL_ERROR_BYTES, "unknown dtype '%s'; use fp16, bf16, fp8, int8 or fp32", value);
	return -EINVAL;
}

/* Parse "layers=32". The limits exceed the values of any model by far, and keep the product below 2^37. */
static int field_set(struct model *model, char *field, char *error)
{
	const struct {
		const char *key;
		uint32_t *number;
		uint32_t most;
	} keys[] = {
		{"layers", &model->layers, 1024},
		{"kv_heads", &model->kv_heads, 1024},
		{"head_dim", &model->head_dim, 4096},
	};
	char *value = strchr(field, '=');

	if (!value) {
		snprintf(error, MODEL_ERROR_BYTES, "'%s' is neither a model nor key=value", field);
		return -EINVAL;
	}
	*value++ = '\0';
	if (strcmp(field, "dtype") == 0)
		return dtype_set(model, value, error);
	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
		if (strcmp(field, keys[i].key) != 0)
			continue;
		if (number_parse(value, keys[i].most, keys[i].number))
			return 0;
		snprintf(error, MODEL_ERROR_BYTES, "%s must be a number from 1 to %u, not '%s'", field, keys[i].most,
			value);
		return -EINVAL;
	}
	snprintf(error, MODEL_ERROR_BYTES, "unknown key '%s'; use layers, kv_heads, head_dim or dtype", field);
	return -EINVAL;
}

static const struct model *model_find(const char *name)
{
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
		if (strcmp(name, table[i].name) == 0)
			return &table[i];
	return NULL;
}

static int model_finish(struct model *model, char *error)
{
	if (model->layers == 0 || model->kv_heads == 0 || model->head_dim == 0) {
		snprintf(error, MODEL_ERROR_BYTES, "a model without a name needs layers, kv_heads and head_dim");
		return -EINVAL;
	}
	model->token_bytes = UINT64_C(2) * model->layers * model->kv_heads * model->head_dim * model->dtype_bytes;
	/* The pattern that represents KV consists of 64-bit words. */
	if (model->token_bytes % sizeof(uint64_t) != 0) {
		snprintf(error, MODEL_ERROR_BYTES, "%llu byte%s per token are not a multiple of 8",
			(unsigned long long)model->token_bytes, plural(model->token_bytes));
		return -EINVAL;
	}
	return 0;
}

int model_parse(const char *text, struct model *model, char *error)
{
	struct model made = {.name = "own", .dtype = "fp16", .dtype_bytes = 2};
	char copy[256], *rest = copy, *field;
	int status = 0;

	if (strlen(text) >= sizeof copy) {
		snprintf(error, MODEL_ERROR_BYTES, "the description of the model is longer than %zu characters",
			sizeof copy - 1);
		return -EINVAL;
	}
	memcpy(copy, text, strlen(text) + 1);
	for (bool first = true; !status && (field = strsep(&rest, ",")) != NULL; first = false) {
		const struct model *known = first ? model_find(field) : NULL;

		if (known)
			made = *known;
		else
			status = field_set(&made, field, error);
	}
	if (!status)
		status = model_finish(&made, error);
	if (!status)
		*model = made;
	return status;
}

uint32_t model_tokens_per_page(const struct model *model, uint64_t page_bytes)
{
	return (uint32_t)(page_bytes / model->token_bytes);
}

uint32_t model_pages(uint64_t tokens, uint32_t tokens_per_page)
{
	return (uint32_t)((tokens + tokens_per_page - 1) / tokens_per_page);
}
