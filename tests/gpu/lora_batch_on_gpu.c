/*
 * lora_batch_on_gpu.c - test and measure batches of adapters through the public calls on a real GPU, with and without a
 * graph.
 *
 * Goal: gpool_lora_batch_set() and _apply() behave as the integration tests show on `host`. A graph that was captured
 * once is correct for every batch that is set later. The total cost equals the cost of the kernels, as measured by
 * lora_on_gpu. Method: a real gpoold, adapters in files, outputs compared with float64; inputs and outputs are copied;
 * graphs are created with driver calls, since gpool needs none.
 *
 * A table with microseconds follows. It has the time of one shrink and expand, by launches and in a graph of all
 * layers, compared with the roofline (see lora_on_gpu.c). It also has the time to set a batch, with all adapters new
 * and with the same adapters. Weights in the table are zeros from sparse files, since times do not depend on them. A
 * few adapters of low rank fit into the GPU's cache. Times are printed, but not checked. --small selects sizes for the
 * kernels' emulation. `lora_batch_on_gpu --backend host` has these sizes too, and applies the batch again in place of
 * each graph, to test the test.
 *
 * Exit status: 0: passed; 1: failed; 77: no GPU or no kernels (the reason is printed).
 */
#include "client/core/pool.h"
#include "cuda/gpu.h"
#include "tests/lib/harness.h"
#include "tests/unit/adapter_rig.h"
#include "tests/lib/temporary.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>

enum { ADAPTERS_MAX = 64, LAYERS_MAX = 128, TOKENS_MAX = 64, MIRROR_BYTES = 8 << 20, WAIT_MS = 600000 };

static const char *backend = "cuda";
static double bandwidth; /* GB/s; 0: measure it */
static bool small;       /* sizes for a CPU */
static bool graphs;      /* false on the host back end */
static struct harness harness;
static struct gpool *pool;
static uint32_t stream;
static uint8_t *mirror; /* registered host memory */

/* ---- graphs ---- */

static struct {
	int (*cuDevicePrimaryCtxRetain)(void **context, int device);
	int (*cuCtxSetCurrent)(void *context);
	int (*cuStreamBeginCapture_v2)(void *native, int mode);
	int (*cuStreamEndCapture)(void *native, void **graph);
	int (*cuGraphInstantiateWithFlags)(void **program, void *graph, unsigned long long flags);
	int (*cuGraphLaunch)(void *program, void *native);
	int (*cuGraphExecDestroy)(void *program);
	int (*cuGraphDestroy)(void *graph);
} driver;

static void *native;

#define SYMBOL(name) \
	do { \
		*(void **)&driver.name = dlsym(library, #name); \
		if (!driver.name) \
			fail_msg("the driver has no %s", #name); \
	} while (0)

static void graphs_open(void)
{
	void *library, *context;

	if (!graphs)
		return;
	library = dlopen("libcuda.so.1", RTLD_NOW);
	assert_non_null(library);
	SYMBOL(cuDevicePrimaryCtxRetain);
	SYMBOL(cuCtxSetCurrent);
	SYMBOL(cuStreamBeginCapture_v2);
	SYMBOL(cuStreamEndCapture);
	SYMBOL(cuGraphInstantiateWithFlags);
	SYMBOL(cuGraphLaunch);
	SYMBOL(cuGraphExecDestroy);
	SYMBOL(cuGraphDestroy);
	assert_int_equal(driver.cuDevicePrimaryCtxRetain(&context, 0), 0);
	assert_int_equal(driver.cuCtxSetCurrent(context), 0);
	assert_int_equal(gpool_stream_native(pool, stream, &native), 0);
}

/* ---- a model of one projection ---- */

struct model {
	uint32_t in, out, layers, element;
	struct gpool_lora *lora;
	struct gpool_lora_batch *batch;
	uint32_t ids[ADAPTERS_MAX], count;
	struct gpool_block block;
	uint64_t x, y; /* [TOKENS_MAX][in]; [TOKENS_MAX][out], of all layers */
	void *program; /* a graph of all layers */
	char folder[64];
};

static void finish(void)
{
	struct gpool_fence fence;

	assert_int_equal(gpool_fence_record(pool, stream, &fence), 0);
	assert_int_equal(gpool_fence_wait(pool, fence, WAIT_MS), 0);
}

static void apply(const struct model *model)
{
	for (uint32_t layer = 0; layer < model->layers; layer++) {
		int error = gpool_lora_batch_apply(
			model->batch, (int32_t)layer, 0, model->x, model->in, model->y, model->out, stream);

		if (error)
			fail_msg("gpool_lora_batch_apply(): %s; %s", gpool_strerror(error), gpu_error_text());
	}
}

/* The capture uses its own stream, since other threads of this process load adapters in the meantime. */
static void capture(struct model *model)
{
	enum { THREAD_LOCAL = 1 };
	void *graph;

	if (!graphs)
		return;
	assert_int_equal(driver.cuStreamBeginCapture_v2(native, THREAD_LOCAL), 0);
	apply(model);
	assert_int_equal(driver.cuStreamEndCapture(native, &graph), 0);
	assert_int_equal(driver.cuGraphInstantiateWithFlags(&model->program, graph, 0), 0);
	assert_int_equal(driver.cuGraphDestroy(graph), 0);
}

static void launch(const struct model *model)
{
	if (!graphs)
		apply(model);
	else
		assert_int_equal(driver.cuGraphLaunch(model->program, native), 0);
}

static void set(const struct model *model, const uint32_t *adapters, uint32_t tokens)
{
	char why[GPOOL_LORA_REASON_BYTES];

	if (gpool_lora_batch_set(model->batch, adapters, tokens, why))
		fail_msg("gpool_lora_batch_set(): %s", why);
}

static void model_open(struct model *model, uint32_t adapters_max, uint32_t rank_max)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora_batch_options batch = GPOOL_LORA_BATCH_OPTIONS_INIT;
	const struct gpool_lora_target target = {"model.layers.*.q", model->in, model->out};
	uint64_t bytes = (uint64_t)TOKENS_MAX * (model->in + model->out) * 2;
	int error;

	options.element = model->element;
	assert_int_equal(gpool_lora_create(pool, &options, &model->lora), 0);
	batch.stream = stream;
	batch.element = model->element;
	batch.tokens_max = TOKENS_MAX;
	batch.adapters_max = adapters_max;
	batch.rank_max = rank_max;
	batch.layers = model->layers;
	batch.targets = &target;
	batch.target_count = 1;
	error = gpool_lora_batch_create(model->lora, &batch, &model->batch);
	if (error)
		fail_msg("gpool_lora_batch_create(): %s; %s", gpool_strerror(error), gpu_error_text());
	assert_int_equal(gpool_alloc(pool, (uint32_t)(bytes / gpool_page_bytes(pool) + 1), NULL, &model->block), 0);
	assert_int_equal(gpool_address(pool, &model->block, &model->x), 0);
	model->y = model->x + (uint64_t)TOKENS_MAX * model->in * 2;
	snprintf(model->folder, sizeof(model->folder), "%s/gpool-lora-XXXXXX", temporary_folder());
	assert_non_null(mkdtemp(model->folder));
}

static void model_close(struct model *model)
{
	char command[128];

	if (model->program)
		assert_int_equal(driver.cuGraphExecDestroy(model->program), 0);
	assert_int_equal(gpool_lora_batch_destroy(model->batch), 0);
	for (uint32_t i = 0; i < model->count; i++) {
		assert_int_equal(gpool_lora_release(model->lora, model->ids[i], GPOOL_FENCE_NONE), 0);
		assert_int_equal(gpool_lora_unload(model->lora, model->ids[i]), 0);
	}
	assert_int_equal(gpool_lora_destroy(model->lora), 0);
	assert_int_equal(gpool_free(pool, &model->block), 0);
	snprintf(command, sizeof(command), "rm -rf %s", model->folder);
	assert_int_equal(system(command), 0);
}

static void file_write(const char *path, const void *bytes, size_t length, uint64_t whole)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, length), (ssize_t)length);
	assert_int_equal(ftruncate(fd, (off_t)whole), 0);
	close(fd);
}

/* Add an acquired adapter. fill: with random numbers; otherwise with zeros, which need no disk space. */
static void adapter_add(struct model *model, struct rig *rig, uint32_t rank, bool fill)
{
	static struct rig_module modules[LAYERS_MAX];
	char path[128], why[GPOOL_LORA_REASON_BYTES];
	static const char config[] = "{\"peft_type\":\"LORA\",\"lora_alpha\":16}";
	uint64_t header, whole;
	int error;

	for (uint32_t layer = 0; layer < model->layers; layer++) {
		modules[layer] =
			(struct rig_module){.rank = rank, .in = model->in, .out = model->out, .type = SAFETENSORS_F16};
		snprintf(modules[layer].path, sizeof(modules[layer].path), "model.layers.%u.q", layer);
	}
	rig_make(rig, modules, model->layers);
	if (fill)
		rig_fill(rig, rig_normal);
	header = 8 + rig->header_bytes;
	whole = header + rig->bytes;
	snprintf(path, sizeof(path), "%s/%u", model->folder, model->count);
	assert_int_equal(mkdir(path, 0700), 0);
	strcat(path, "/adapter_config.json");
	file_write(path, config, strlen(config), strlen(config));
	snprintf(path, sizeof(path), "%s/%u/adapter_model.safetensors", model->folder, model->count);
	file_write(path, rig->file, fill ? whole : header, whole);
	snprintf(path, sizeof(path), "%s/%u", model->folder, model->count);
	if (gpool_lora_register(model->lora, path, path, &model->ids[model->count], why))
		fail_msg("gpool_lora_register(): %s", why);
	error = gpool_lora_acquire(model->lora, model->ids[model->count], WAIT_MS);
	if (error) {
		gpool_lora_last_error(model->lora, model->ids[model->count], why);
		fail_msg("gpool_lora_acquire(): %s: %s", gpool_strerror(error), why);
	}
	model->count++;
}

/* ---- correctness ---- */

static float value_of(uint32_t element, uint16_t bits)
{
	return element == GPOOL_LORA_F16 ? float_of_f16(bits) : float_of_bf16(bits);
}

static uint16_t bits_of(uint32_t element, float value)
{
	return element == GPOOL_LORA_F16 ? f16_of_float(value) : bf16_of_float(value);
}

/* Return the error of one token, summed over all layers like y: each layer adds to the same row. */
static double token_error(const struct model *model, const struct rig *rig, const uint16_t *x, const uint16_t *y)
{
	static double sums[LAYERS_MAX][128];
	double difference = 0, all = 0;

	for (uint32_t layer = 0; rig && layer < model->layers; layer++)
		for (uint32_t k = 0; k < rig->peft.modules[layer].rank; k++) {
			const struct peft_module *module = &rig->peft.modules[layer];

			sums[layer][k] = 0;
			for (uint32_t i = 0; i < model->in; i++)
				sums[layer][k] += (double)value_of(model->element, x[i]) *
					(double)value_of(model->element,
						bits_of(model->element,
							rig_get(rig, &module->a, (uint64_t)k * model->in + i)));
		}
	for (uint32_t o = 0; o < model->out; o++) {
		double exact = 0, got = (double)value_of(model->element, y[o]);

		for (uint32_t layer = 0; rig && layer < model->layers; layer++) {
			const struct peft_module *module = &rig->peft.modules[layer];

			for (uint32_t k = 0; k < module->rank; k++)
				exact += module->scale * sums[layer][k] *
					(double)value_of(model->element,
						bits_of(model->element,
							rig_get(rig, &module->b, (uint64_t)o * module->rank + k)));
		}
		difference += (got - exact) * (got - exact);
		all += exact * exact;
	}
	return all > 0 ? sqrt(difference / all) : difference;
}

/* Run one step: write x, clear y, and run the batch, by launches or with the graph. */
static void step_check(struct model *model, const struct rig *rigs, const int32_t *which, bool by_graph)
{
	uint64_t x_bytes = (uint64_t)TOKENS_MAX * model->in * 2, y_bytes = (uint64_t)TOKENS_MAX * model->out * 2;
	uint16_t *x = (uint16_t *)(void *)mirror, *y = (uint16_t *)(void *)(mirror + x_bytes);
	double bound = model->element == GPOOL_LORA_F16 ? 1e-3 : 1e-2;

	for (uint32_t i = 0; i < x_bytes / 2; i++)
		x[i] = bits_of(model->element, rig_normal() / 64);
	assert_int_equal(gpool_copy(pool, stream, model->x, (uintptr_t)x, x_bytes), 0);
	assert_int_equal(gpool_fill(pool, stream, model->y, 0, y_bytes), 0);
	if (by_graph)
		launch(model);
	else
		apply(model);
	assert_int_equal(gpool_copy(pool, stream, (uintptr_t)y, model->y, y_bytes), 0);
	finish();
	for (uint32_t i = 0; i < TOKENS_MAX; i++) {
		double error = token_error(model, which[i] < 0 ? NULL : &rigs[which[i]], x + (uint64_t)i * model->in,
			y + (uint64_t)i * model->out);

		if (!(error <= bound))
			fail_msg("token %u, adapter %d, %s: error %g", i, which[i], by_graph ? "graph" : "launches",
				error);
	}
}

static void test_right(void **state)
{
	static const uint32_t ranks[] = {8, 128, 16, 100, 32, 64};
	static struct rig rigs[6];

	(void)state;
	for (uint32_t element = GPOOL_LORA_F16; element <= GPOOL_LORA_BF16; element++) {
		struct model model = {.in = 512, .out = 768, .layers = 1, .element = element};
		int32_t which[TOKENS_MAX];
		uint32_t adapters[TOKENS_MAX];

		model_open(&model, 4, 128);
		for (uint32_t i = 0; i < 6; i++)
			adapter_add(&model, &rigs[i], ranks[i], true);
		/* The graph is captured before the first batch is set; each batch has other adapters and tokens. */
		capture(&model);
		for (uint32_t round = 0; round < 6; round++) {
			uint32_t tokens = round == 4 ? 0 : TOKENS_MAX - 11 * round;

			for (uint32_t i = 0; i < TOKENS_MAX; i++) {
				which[i] = i >= tokens || i % 5 == 4 ? -1 : (int32_t)((round + i % 4) % 6);
				adapters[i] = which[i] < 0 ? GPOOL_LORA_NONE : model.ids[which[i]];
			}
			set(&model, adapters, tokens);
			step_check(&model, rigs, which, false);
			step_check(&model, rigs, which, true);
		}
		model_close(&model);
		for (uint32_t i = 0; i < 6; i++)
			rig_end(&rigs[i]);
	}
	assert_int_equal(harness_check(&harness), 0);
}

/* ---- speed ---- */

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* Return the microseconds of one pair of shrink and expand: the minimum of five series. */
static double pair_us(const struct model *model, void (*run)(const struct model *model))
{
	int turns = small ? 1 : 20;
	double best = 0;

	run(model);
	finish();
	for (int i = 0; i < 5; i++) {
		double begin = now_us(), us;

		for (int turn = 0; turn < turns; turn++)
			run(model);
		finish();
		us = (now_us() - begin) / turns / model->layers;
		best = i && best < us ? best : us;
	}
	return best;
}

static double set_us(const struct model *model, const uint32_t *adapters, uint32_t tokens)
{
	double begin;

	finish();
	begin = now_us();
	set(model, adapters, tokens);
	return now_us() - begin;
}

static double copy_bandwidth(void)
{
	enum { TURNS = 10 };
	uint64_t page_bytes = gpool_page_bytes(pool), half = (small ? UINT64_C(4) << 20 : UINT64_C(256) << 20), address;
	struct gpool_block block;
	double begin;

	assert_int_equal(gpool_alloc(pool, (uint32_t)(2 * half / page_bytes), NULL, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	assert_int_equal(gpool_copy(pool, stream, address + half, address, half), 0);
	finish();
	begin = now_us();
	for (int i = 0; i < TURNS; i++)
		assert_int_equal(gpool_copy(pool, stream, address + half, address, half), 0);
	finish();
	begin = 2.0 * TURNS * (double)half / (now_us() - begin) / 1e3;
	assert_int_equal(gpool_free(pool, &block), 0);
	return begin;
}

static void row_print(uint32_t adapters, uint32_t rank)
{
	struct model model = {.in = small ? 512 : 4096, .out = small ? 768 : 11008, .element = GPOOL_LORA_F16};
	uint64_t each = 2ull * adapters * rank * (model.in + model.out),
		 layers = (small ? UINT64_C(256) << 10 : UINT64_C(1) << 30) / each;
	double bytes = (double)each + 2.0 * adapters * (model.in + 2.0 * model.out), roofline = bytes / bandwidth / 1e3,
	       launched, captured, fresh;
	struct rig rig;

	model.layers = layers < 2 ? 2 : layers > LAYERS_MAX ? LAYERS_MAX : (uint32_t)layers;
	model_open(&model, adapters, rank);
	for (uint32_t i = 0; i < adapters; i++) {
		adapter_add(&model, &rig, rank, false);
		rig_end(&rig);
	}
	fresh = set_us(&model, model.ids, adapters);
	launched = pair_us(&model, apply);
	capture(&model);
	captured = pair_us(&model, launch);
	printf("| %u | %u | %u | %.1f | %.1f | %.2f | %.1f | %.2f | %.0f | %.0f |\n", adapters, rank, model.layers,
		launched, captured, bytes / 1e6, roofline, captured / roofline, fresh,
		set_us(&model, model.ids, adapters));
	model_close(&model);
}

static void test_table(void **state)
{
	static const uint32_t adapters[] = {1, 4, 16, 32, 64}, ranks[] = {8, 16, 64};

	(void)state;
	if (bandwidth == 0)
		bandwidth = copy_bandwidth();
	printf("\n%s, fp16, through the public calls, a token for each adapter; roofline by %.0f GB/s; us of one "
	       "shrink and expand\n\n",
		small ? "on a CPU" : "4096 to 11008", bandwidth);
	printf("| adapters | rank | layers | us, launches | us, graph | MB | roofline us | ratio | us of a set, all "
	       "new | and the same again |\n");
	printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
	for (size_t r = 0; r < (small ? 2 : sizeof(ranks) / sizeof(*ranks)); r++)
		for (size_t a = 0; a < (small ? 2 : sizeof(adapters) / sizeof(*adapters)); a++)
			row_print(adapters[a], ranks[r]);
	printf("\n");
}

/* ---- the agent ---- */

static int attach(void **state)
{
	char text[160];
	const char *const arguments[] = {"--pool", text, NULL};

	(void)state;
	snprintf(text, sizeof(text), "name=p0,backend=%s,size=%s,page_size=2MB,reserved=0", backend,
		small ? "256MB" : "6GB");
	harness_start(&harness, arguments);
	pool = harness_open(&harness);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	mirror = mmap(NULL, MIRROR_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(mirror != MAP_FAILED);
	assert_int_equal(gpu_host_register(pool->gpu, mirror, MIRROR_BYTES), 0);
	graphs_open();
	return 0;
}

static int detach(void **state)
{
	(void)state;
	gpu_host_unregister(pool->gpu, mirror);
	munmap(mirror, MIRROR_BYTES);
	gpool_close(pool);
	return harness_stop(&harness);
}

/* usable() - return 0, or print the reason and return 77. */
static int usable(void)
{
	const struct gpu_ops *ops = gpu_backend(backend);
	struct gpu_device_info info;
	int count = ops ? ops->device_count() : -EINVAL;

	if (count < 1 || ops->device_info(0, &info) < 0) {
		printf("no device of back end '%s': %s\n", backend, count ? gpu_error_text() : "none is listed");
		return 77;
	}
	if (!(info.capabilities & GPU_CAP_KERNELS)) {
		printf("no kernels: this gpool was built without nvcc\n");
		return 77;
	}
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_right),
		cmocka_unit_test(test_table),
	};

	for (int i = 1; i < argc; i++) {
		if (i + 1 < argc && !strcmp(argv[i], "--backend")) {
			backend = argv[++i];
		} else if (i + 1 < argc && !strcmp(argv[i], "--bandwidth") && atof(argv[i + 1]) > 0) {
			bandwidth = atof(argv[++i]);
		} else if (!strcmp(argv[i], "--small")) {
			small = true;
		} else {
			fprintf(stderr,
				"usage: lora_batch_on_gpu [--backend cuda|host] [--bandwidth GB/S] [--small]\n");
			return 2;
		}
	}
	graphs = strcmp(backend, "host") != 0;
	small |= !graphs;
	if (usable())
		return 77;
	return cmocka_run_group_tests(tests, attach, detach);
}
