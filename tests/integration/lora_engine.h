/*
 * lora_engine.h - run small engines with adapters: a model of two layers and a head, adapter files of any ranks, and
 * steps through gpool_lora_batch_set() and gpool_lora_batch_apply() whose outputs are compared with float64 results.
 *
 * Each test program includes this header once and gets its own state. Steps return their findings and make no
 * assertions, so engines may run in threads; only the thread that created an engine makes assertions.
 */
#ifndef GPOOL_TESTS_LORA_ENGINE_H
#define GPOOL_TESTS_LORA_ENGINE_H

#include "client/core/pool.h"
#include "tests/integration/life.h"
#include "tests/unit/adapter_rig.h"
#include "tests/lib/temporary.h"

#include <sys/stat.h>

enum {
	ENGINE_LAYERS = 2,
	ENGINE_TARGETS = 3,
	ENGINE_PLACES = 2 * ENGINE_LAYERS + 1,
	ENGINE_TOKENS = 64,
	ENGINE_SLOTS = 8,    /* adapters in a batch */
	ENGINE_IN = 256,     /* features of every x */
	ENGINE_OUT = 520,    /* features of the largest y */
	ENGINE_STRIDE = 536, /* rows are longer than their used part */
	ENGINE_ADAPTERS_MAX = 64,
};

static const struct gpool_lora_target engine_targets[ENGINE_TARGETS] = {
	{"model.layers.*.q", ENGINE_IN, 384},
	{"model.layers.*.v", ENGINE_IN, 130},
	{"lm_head", ENGINE_IN, ENGINE_OUT},
};

static char engine_folder[64];
static struct rig engine_rigs[ENGINE_ADAPTERS_MAX];
static uint32_t engine_rig_count;

/* ---- adapters ---- */

static inline void engine_copy(int fd, const char *path)
{
	char buffer[65536];
	off_t at = 0;
	ssize_t length;
	int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(to >= 0);
	while ((length = pread(fd, buffer, sizeof(buffer), at)) > 0) {
		assert_int_equal(write(to, buffer, (size_t)length), length);
		at += length;
	}
	close(to);
}

/* Write an adapter with these modules. Return its number, which is the name of its folder. */
static inline uint32_t engine_adapter_of(const struct rig_module *modules, uint32_t count)
{
	struct rig *rig = &engine_rigs[engine_rig_count];
	char path[128];

	assert_true(engine_rig_count < ENGINE_ADAPTERS_MAX);
	rig_make(rig, modules, count);
	rig_fill(rig, rig_normal);
	snprintf(path, sizeof(path), "%s/%u", engine_folder, engine_rig_count);
	assert_int_equal(mkdir(path, 0700), 0);
	strcat(path, "/adapter_config.json");
	engine_copy(rig->config, path);
	snprintf(path, sizeof(path), "%s/%u/adapter_model.safetensors", engine_folder, engine_rig_count);
	engine_copy(rig->weights, path);
	return engine_rig_count++;
}

/* Write an adapter for the model. Only every second adapter changes the head, and v in layer 1. */
static inline uint32_t engine_adapter(uint32_t rank, enum safetensors_type type)
{
	struct rig_module modules[] = {
		{"model.layers.0.q", rank, ENGINE_IN, 384, type},
		{"model.layers.0.v", rank / 2 + 1, ENGINE_IN, 130, type},
		{"model.layers.1.q", rank, ENGINE_IN, 384, type},
		{"model.layers.1.v", rank, ENGINE_IN, 130, type},
		{"lm_head", rank, ENGINE_IN, ENGINE_OUT, type},
	};

	return engine_adapter_of(modules, engine_rig_count % 2 ? 5 : 3);
}

static inline void engine_adapters_begin(void)
{
	snprintf(engine_folder, sizeof(engine_folder), "%s/gpool-lora-XXXXXX", temporary_folder());
	assert_non_null(mkdtemp(engine_folder));
	engine_rig_count = 0;
}

static inline int engine_adapters_end(void)
{
	char command[128];

	while (engine_rig_count)
		rig_end(&engine_rigs[--engine_rig_count]);
	snprintf(command, sizeof(command), "rm -rf %s", engine_folder);
	return system(command);
}

/* ---- an engine ---- */

struct engine {
	struct gpool *pool;
	struct gpool_lora *lora;
	struct gpool_lora_batch *batch;
	uint32_t stream, element;
	struct gpool_block block;
	uint16_t *x, *y; /* [tokens][stride]; [places][tokens][stride] */
	uint16_t before[ENGINE_PLACES][ENGINE_TOKENS][ENGINE_STRIDE];
	uint32_t ids[ENGINE_ADAPTERS_MAX];
	uint64_t random;
	/* [adapter][place][a, b]: the weights with the precision that they have in the pool; made at their first use */
	float *weights[ENGINE_ADAPTERS_MAX][ENGINE_PLACES][2];
};

static inline uint32_t engine_random(struct engine *engine, uint32_t below)
{
	engine->random = engine->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((engine->random >> 33) % below);
}

static inline float engine_float(const struct engine *engine, uint16_t bits)
{
	return engine->element == GPOOL_LORA_F16 ? float_of_f16(bits) : float_of_bf16(bits);
}

static inline uint16_t engine_bits(const struct engine *engine, float value)
{
	return engine->element == GPOOL_LORA_F16 ? f16_of_float(value) : bf16_of_float(value);
}

static inline struct gpool_lora_batch_options engine_batch_options(const struct engine *engine)
{
	struct gpool_lora_batch_options options = GPOOL_LORA_BATCH_OPTIONS_INIT;

	options.stream = engine->stream;
	options.element = engine->element;
	options.tokens_max = ENGINE_TOKENS;
	options.adapters_max = ENGINE_SLOTS;
	options.layers = ENGINE_LAYERS;
	options.targets = engine_targets;
	options.target_count = ENGINE_TARGETS;
	return options;
}

/* Open an engine and register all adapters written so far. */
static inline void engine_open(struct engine *engine, uint32_t element)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora_batch_options batch;
	uint64_t address, bytes = (1 + ENGINE_PLACES) * sizeof(engine->before[0]);
	char path[128], why[GPOOL_LORA_REASON_BYTES];

	*engine = (struct engine){.element = element, .random = element};
	options.element = element;
	engine->pool = open_worker();
	assert_int_equal(gpool_lora_create(engine->pool, &options, &engine->lora), 0);
	assert_int_equal(gpool_stream_open(engine->pool, NULL, 0, &engine->stream), 0);
	batch = engine_batch_options(engine);
	assert_int_equal(gpool_lora_batch_create(engine->lora, &batch, &engine->batch), 0);
	engine->block = alloc(engine->pool,
		(uint32_t)((bytes + gpool_page_bytes(engine->pool) - 1) / gpool_page_bytes(engine->pool)));
	assert_int_equal(gpool_address(engine->pool, &engine->block, &address), 0);
	engine->x = (uint16_t *)(uintptr_t)address;
	engine->y = engine->x + sizeof(engine->before[0]) / sizeof(*engine->x);
	for (uint32_t i = 0; i < engine_rig_count; i++) {
		snprintf(path, sizeof(path), "%s/%u", engine_folder, i);
		if (gpool_lora_register(engine->lora, path, path, &engine->ids[i], why))
			fail_msg("%s", why);
	}
}

static inline int engine_close(struct engine *engine)
{
	int error = gpool_lora_batch_destroy(engine->batch);

	for (uint32_t i = 0; i < ENGINE_ADAPTERS_MAX; i++)
		for (uint32_t place = 0; place < ENGINE_PLACES; place++) {
			free(engine->weights[i][place][0]);
			free(engine->weights[i][place][1]);
		}
	error |= gpool_lora_destroy(engine->lora);
	gpool_close(engine->pool);
	engine->pool = NULL;
	return error;
}

/* ---- a step ---- */

static inline uint16_t *engine_y(const struct engine *engine, uint32_t place, uint32_t token)
{
	return engine->y + ((uint64_t)place * ENGINE_TOKENS + token) * ENGINE_STRIDE;
}

/* Apply the batch to all places, with new inputs. Wait for work that was queued earlier. Return 0 or an error. */
static inline int engine_apply(struct engine *engine)
{
	struct gpool_fence fence;
	int error = 0;

	for (uint32_t i = 0; i < ENGINE_TOKENS * ENGINE_STRIDE; i++)
		engine->x[i] = engine_bits(engine, (float)engine_random(engine, 2001) / 1000 - 1);
	for (uint32_t i = 0; i < ENGINE_PLACES * ENGINE_TOKENS * ENGINE_STRIDE; i++)
		engine->y[i] = engine_bits(engine, (float)engine_random(engine, 2001) / 1000 - 1);
	memcpy(engine->before, engine->y, sizeof(engine->before));
	for (uint32_t place = 0; place < ENGINE_PLACES && !error; place++)
		error = gpool_lora_batch_apply(engine->batch, place < ENGINE_PLACES - 1 ? (int32_t)(place / 2) : -1,
			place < ENGINE_PLACES - 1 ? place % 2 : 2, (uintptr_t)engine->x, ENGINE_STRIDE,
			(uintptr_t)engine_y(engine, place, 0), ENGINE_STRIDE, engine->stream);
	if (!error)
		error = gpool_fence_record(engine->pool, engine->stream, &fence);
	return error ? error : gpool_fence_wait(engine->pool, fence, -1);
}

static inline const struct peft_module *engine_module(const struct rig *rig, uint32_t place)
{
	const char *target = engine_targets[place < ENGINE_PLACES - 1 ? place % 2 : 2].name;

	for (uint32_t i = 0; i < rig->peft.count; i++)
		if (!strcmp(rig->peft.modules[i].target, target) &&
			rig->peft.modules[i].layer == (place < ENGINE_PLACES - 1 ? place / 2 : (uint32_t)PEFT_NO_LAYER))
			return &rig->peft.modules[i];
	return NULL;
}

/* Return the weights of a matrix with the precision that they have in the pool. */
static inline const float *engine_weights(
	const struct engine *engine, const struct rig *rig, const struct peft_matrix *matrix, float **weights)
{
	uint64_t count = matrix->bytes / safetensors_type_bytes(matrix->type);

	if (!*weights) {
		*weights = malloc(count * sizeof(**weights));
		assert_non_null(*weights);
		for (uint64_t i = 0; i < count; i++)
			(*weights)[i] = engine_float(engine, engine_bits(engine, rig_get(rig, matrix, i)));
	}
	return *weights;
}

/* Return the error of a token's row in one place against float64, relative to the size of the row. */
static inline double engine_error(struct engine *engine, uint32_t place, uint32_t token, const struct rig *rig)
{
	const struct peft_module *module = engine_module(rig, place);
	float **weights = engine->weights[rig - engine_rigs][place];
	const float *a = engine_weights(engine, rig, &module->a, &weights[0]),
		    *b = engine_weights(engine, rig, &module->b, &weights[1]);
	const uint16_t *x = engine->x + (uint64_t)token * ENGINE_STRIDE, *y = engine_y(engine, place, token),
		       *before = engine->before[place][token];
	double sums[128], error = 0, norm = 0;

	for (uint32_t k = 0; k < module->rank; k++) {
		sums[k] = 0;
		for (uint32_t i = 0; i < module->in; i++)
			sums[k] += (double)engine_float(engine, x[i]) * (double)a[(uint64_t)k * module->in + i];
	}
	for (uint32_t o = 0; o < module->out; o++) {
		double sum = 0, got = (double)engine_float(engine, y[o]);

		for (uint32_t k = 0; k < module->rank; k++)
			sum += sums[k] * (double)b[(uint64_t)o * module->rank + k];
		sum = (double)engine_float(engine, before[o]) + module->scale * sum;
		error += (got - sum) * (got - sum);
		norm += sum * sum;
	}
	return sqrt(error / norm);
}

/* Return the number of wrong rows. which[ENGINE_TOKENS] contains the adapter of each token; -1 means none. */
static inline uint32_t engine_wrong(struct engine *engine, const int32_t *which)
{
	double bound = engine->element == GPOOL_LORA_F16 ? 1e-3 : 1e-2;
	uint32_t wrong = 0;

	for (uint32_t token = 0; token < ENGINE_TOKENS; token++)
		for (uint32_t place = 0; place < ENGINE_PLACES; place++) {
			const struct rig *rig = which[token] < 0 ? NULL : &engine_rigs[which[token]];
			const struct peft_module *module = rig ? engine_module(rig, place) : NULL;
			uint32_t out = module ? module->out : 0;

			wrong += memcmp(engine_y(engine, place, token) + out, engine->before[place][token] + out,
					 (ENGINE_STRIDE - out) * sizeof(uint16_t)) != 0;
			if (module)
				wrong += !(engine_error(engine, place, token, rig) <= bound);
		}
	return wrong;
}

/* Set the adapters of the first tokens (-1: none). The remaining elements of `which` are set to -1. */
static inline int engine_set(struct engine *engine, int32_t which[ENGINE_TOKENS], uint32_t tokens, char *why)
{
	uint32_t adapters[ENGINE_TOKENS];

	for (uint32_t i = 0; i < ENGINE_TOKENS; i++) {
		if (i >= tokens)
			which[i] = -1;
		adapters[i] = which[i] < 0 ? GPOOL_LORA_NONE : engine->ids[which[i]];
	}
	return gpool_lora_batch_set(engine->batch, adapters, tokens, why);
}

#endif
