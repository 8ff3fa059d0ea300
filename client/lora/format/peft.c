/*
 * peft.c - read the headers of an adapter's two files.
 */
#include "client/lora/format/peft.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lora/format/peft_config.h"
#include "shm/plural.h"

static const char prefix[] = "base_model.model.";
static const char suffix_a[] = ".lora_A.weight", suffix_b[] = ".lora_B.weight";

static bool ends_with(const char *name, const char *end)
{
	size_t length = strlen(name), end_length = strlen(end);

	return length > end_length && strcmp(name + length - end_length, end) == 0;
}

/* Refuse a tensor other than A and B. The reason states the feature to which it belongs. */
static int stranger_refuse(const char *name, struct reason *reason)
{
	static const struct {
		const char *part, *why;
	} strangers[] = {
		{"lora_magnitude_vector", "DoRA is not supported, since it scales the columns of the base weights"},
		{"lora_embedding_", "the adapter changes an embedding, which the kernels do not support"},
		{".bias", "the adapter has biases; train with bias = \"none\""},
		{"modules_to_save", "the adapter contains complete modules in addition to A and B"},
		{"token_adapter", "the adapter contains embeddings in addition to A and B"},
	};
	char text[REASON_NAME_BYTES];

	refuse_name(name, text);
	for (size_t i = 0; i < sizeof(strangers) / sizeof(*strangers); i++)
		if (strstr(name, strangers[i].part))
			return refuse(reason, "tensor '%s': %s", text, strangers[i].why);
	return refuse(reason, "tensor '%s': expected the name %sMODULE%s or %s", text, prefix, suffix_a, suffix_b);
}

/* ---- one module ---- */

static int matrix_check(const struct safetensors_tensor *tensor, struct peft_matrix *matrix, struct reason *reason)
{
	char name[REASON_NAME_BYTES];

	refuse_name(tensor->name, name);
	if (tensor->type != SAFETENSORS_F32 && tensor->type != SAFETENSORS_F16 && tensor->type != SAFETENSORS_BF16)
		return refuse(reason, "tensor '%s': dtype %s is not supported; only F32, F16 and BF16 are", name,
			safetensors_type_name(tensor->type));
	if (tensor->dimensions != 2)
		return refuse(reason,
			"tensor '%s' has %u dimension%s; only linear modules, with two dimensions, are supported", name,
			tensor->dimensions, plural(tensor->dimensions));
	matrix->offset = tensor->offset;
	matrix->bytes = tensor->bytes;
	matrix->type = tensor->type;
	return 0;
}

static int shapes_check(const struct safetensors_tensor *a, const struct safetensors_tensor *b,
	struct peft_module *module, struct reason *reason)
{
	char name[REASON_NAME_BYTES];

	refuse_name(module->path, name);
	if (a->shape[0] != b->shape[1])
		return refuse(reason, "module '%s': A has rank %" PRIu64 ", but B has rank %" PRIu64, name, a->shape[0],
			b->shape[1]);
	if (!a->shape[0] || a->shape[0] > PEFT_RANK_MAX)
		return refuse(reason, "module '%s': rank is %" PRIu64 "; it must be 1 to %d", name, a->shape[0],
			PEFT_RANK_MAX);
	if (!a->shape[1] || a->shape[1] > PEFT_FEATURES_MAX || !b->shape[0] || b->shape[0] > PEFT_FEATURES_MAX)
		return refuse(reason,
			"module '%s' has %" PRIu64 " input%s and %" PRIu64 " output%s; it must have 1 to %d of each",
			name, a->shape[1], plural(a->shape[1]), b->shape[0], plural(b->shape[0]), PEFT_FEATURES_MAX);
	module->rank = (uint32_t)a->shape[0];
	module->in = (uint32_t)a->shape[1];
	module->out = (uint32_t)b->shape[0];
	return 0;
}

static int scale_set(
	const struct peft_config *config, struct peft *peft, struct peft_module *module, struct reason *reason)
{
	char name[REASON_NAME_BYTES];
	double rank, alpha;
	int error = peft_config_rank(config, module->path, &rank, reason);

	if (!error)
		error = peft_config_alpha(config, module->path, &alpha, reason);
	if (error)
		return error;
	peft->ranks_differ += rank != module->rank;
	module->scale = config->rslora ? alpha / sqrt(module->rank) : alpha / module->rank;
	if (fabs(module->scale) > 65504)
		return refuse(reason, "module '%s': scale %g is out of range for half precision",
			refuse_name(module->path, name), module->scale);
	return 0;
}

/*
 * Split a path into layer and target. The layer is the first component of the path that is a number. The target is the
 * path with a star instead of this number. target: has room for the length of the path + 1.
 */
static int layer_set(struct peft_module *module, char *target, struct reason *reason)
{
	const char *part = module->path;
	char name[REASON_NAME_BYTES];

	module->layer = PEFT_NO_LAYER;
	module->target = module->path;
	for (; part; part = strchr(part, '.') ? strchr(part, '.') + 1 : NULL) {
		size_t digits = strspn(part, "0123456789");
		unsigned long layer;

		if (!digits || (part[digits] && part[digits] != '.'))
			continue;
		layer = digits <= 5 ? strtoul(part, NULL, 10) : PEFT_LAYERS_MAX;
		if (layer >= PEFT_LAYERS_MAX)
			return refuse(reason, "module '%s': the number of the layer must be below %d",
				refuse_name(module->path, name), PEFT_LAYERS_MAX);
		module->layer = (uint32_t)layer;
		memcpy(target, module->path, (size_t)(part - module->path));
		target[part - module->path] = '*';
		strcpy(target + (part - module->path) + 1, part + digits);
		module->target = target;
		return 0;
	}
	return 0;
}

/* ---- all modules ---- */

static int by_layer(const void *a, const void *b)
{
	const struct peft_module *x = a, *y = b;

	if (x->layer != y->layer)
		return x->layer < y->layer ? -1 : 1;
	return strcmp(x->target, y->target);
}

/* Check that no two modules have the same layer and target: "00" and "0" in different paths are the same layer. */
static int twins_check(const struct peft *peft, struct reason *reason)
{
	char name[REASON_NAME_BYTES];

	for (uint32_t i = 1; i < peft->count; i++)
		if (by_layer(&peft->modules[i - 1], &peft->modules[i]) == 0)
			return refuse(reason, "duplicate module '%s'", refuse_name(peft->modules[i].path, name));
	return 0;
}

/* Add the module of a matrix A. names: receives its path and target. */
static int module_add(struct peft *peft, const struct safetensors *file, const struct safetensors_tensor *a,
	char **names, const struct peft_config *config, struct reason *reason)
{
	struct peft_module *module = &peft->modules[peft->count];
	size_t length = strlen(a->name) - strlen(suffix_a) - strlen(prefix);
	char sought[SAFETENSORS_NAME_MAX + 1], text[REASON_NAME_BYTES], *path = *names;
	const struct safetensors_tensor *b;
	int error;

	memcpy(path, a->name + strlen(prefix), length);
	path[length] = 0;
	snprintf(sought, sizeof(sought), "%s%s%s", prefix, path, suffix_b);
	b = safetensors_find(file, sought);
	if (!b)
		return refuse(reason, "tensor '%s' has no corresponding lora_B", refuse_name(a->name, text));
	module->path = path;
	error = matrix_check(a, &module->a, reason);
	if (!error)
		error = matrix_check(b, &module->b, reason);
	if (!error)
		error = shapes_check(a, b, module, reason);
	if (!error)
		error = layer_set(module, path + length + 1, reason);
	if (!error)
		error = scale_set(config, peft, module, reason);
	if (error)
		return error;
	*names += 2 * length + 2 + 1;
	peft->count++;
	if (module->layer != PEFT_NO_LAYER && module->layer >= peft->layers)
		peft->layers = module->layer + 1;
	if (module->rank > peft->rank_max)
		peft->rank_max = module->rank;
	return 0;
}

/* Count the modules and the bytes of their names, and refuse tensors of other kinds. */
static int tensors_count(const struct safetensors *file, const struct peft_config *config, uint32_t *modules,
	size_t *name_bytes, struct reason *reason)
{
	uint32_t a = 0, b = 0;

	*name_bytes = 0;
	for (uint32_t i = 0; i < file->count; i++) {
		const char *name = file->tensors[i].name;
		bool is_a = ends_with(name, suffix_a);

		if (strncmp(name, prefix, strlen(prefix)) != 0 || (!is_a && !ends_with(name, suffix_b)) ||
			strlen(name) <= strlen(prefix) + strlen(suffix_a))
			return stranger_refuse(name, reason);
		a += is_a;
		b += !is_a;
		*name_bytes += is_a ? 2 * strlen(name) : 0;
	}
	if (!a || a != b)
		return refuse(reason, PEFT_WEIGHTS_NAME ": the file contains %u lora_A and %u lora_B", a, b);
	if (a > PEFT_MODULES_MAX)
		return refuse(reason, PEFT_WEIGHTS_NAME ": the file contains %u module%s; the limit is %d", a,
			plural(a), PEFT_MODULES_MAX);
	if ((uint64_t)a * (config->ranks.count + config->alphas.count) > PEFT_MATCHES_MAX)
		return refuse(reason, "adapter_config.json: the product of %u expression%s and %u module%s exceeds %d",
			config->ranks.count + config->alphas.count, plural(config->ranks.count + config->alphas.count),
			a, plural(a), PEFT_MATCHES_MAX);
	*modules = a;
	return 0;
}

static int modules_make(
	struct peft *peft, const struct safetensors *file, const struct peft_config *config, struct reason *reason)
{
	uint32_t count = 0;
	size_t name_bytes = 0;
	char *names;
	int error = tensors_count(file, config, &count, &name_bytes, reason);

	if (error)
		return error;
	peft->modules = calloc(count, sizeof(*peft->modules));
	peft->names = names = malloc(name_bytes);
	if (!peft->modules || !names)
		return -ENOMEM;
	for (uint32_t i = 0; i < file->count && !error; i++)
		if (ends_with(file->tensors[i].name, suffix_a))
			error = module_add(peft, file, &file->tensors[i], &names, config, reason);
	if (error)
		return error;
	qsort(peft->modules, peft->count, sizeof(*peft->modules), by_layer);
	return twins_check(peft, reason);
}

int peft_read(int config_fd, int weights_fd, struct peft *peft, struct reason *reason)
{
	struct peft_config config;
	struct safetensors file;
	struct peft made = {0};
	int error = peft_config_read(config_fd, &config, reason);

	if (error)
		return error;
	error = safetensors_read(weights_fd, &file, reason);
	if (error)
		refuse_in(reason, PEFT_WEIGHTS_NAME);
	if (!error) {
		error = modules_make(&made, &file, &config, reason);
		made.file_bytes = file.data_offset;
		for (uint32_t i = 0; i < file.count; i++)
			made.file_bytes += file.tensors[i].bytes;
		safetensors_free(&file);
	}
	peft_config_free(&config);
	if (error)
		peft_free(&made);
	else
		*peft = made;
	return error;
}

void peft_free(struct peft *peft)
{
	free(peft->modules);
	free(peft->names);
	*peft = (struct peft){0};
}
