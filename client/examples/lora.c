/*
 * lora.c - a small engine that serves requests with different LoRA adapters. It writes six adapters of different ranks
 * for a model of two layers, registers them, and submits requests. Before each step it schedules requests and sets the
 * adapter of each token; in the step it applies the adapters to the output of each layer's projection. It compares the
 * results with a computation in float64.
 *
 * usage: lora FOLDER
 *
 * FOLDER must be empty; the program writes the adapters there. The agent's pool must use the back end `host`, whose
 * device addresses are valid pointers in this process.
 */
#include <gpool.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LAYERS = 2, IN = 256, OUT = 384, ADAPTERS = 6, REQUESTS = 40, AT_ONCE = 8, TOKENS_EACH = 3 };

static const uint32_t ranks[ADAPTERS] = {8, 16, 24, 32, 64, 128};
static const double scale = 0.5; /* lora_alpha / rank: see adapter_write() */

static void must(int result, const char *what)
{
	if (result >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, gpool_last_error(result));
	exit(1);
}

/* ---- adapters ---- */

/* Return a pseudo-random number from -1 to 1 that bf16 can represent. */
static float weight(uint32_t adapter, uint32_t layer, char matrix, uint32_t index)
{
	uint64_t any = (((uint64_t)adapter * LAYERS + layer) * 2 + (matrix == 'B')) * 1000003 + index;

	any = (any ^ any >> 31) * UINT64_C(0x9e3779b97f4a7c15);
	return (float)((int)(any >> 40) % 129 - 64) / 64;
}

/*
 * Write an adapter in PEFT's format: adapter_config.json, and adapter_model.safetensors with the length of the header,
 * the header, and the numbers.
 */
static void adapter_write(const char *folder, uint32_t adapter)
{
	char path[512], header[4096] = "{";
	uint32_t rank = ranks[adapter];
	uint64_t offset = 0, length;
	FILE *file;

	must(mkdir(folder, 0700) ? -errno : 0, folder);
	snprintf(path, sizeof(path), "%s/adapter_config.json", folder);
	file = fopen(path, "w");
	must(file ? 0 : -errno, path);
	fprintf(file, "{\"peft_type\": \"LORA\", \"r\": %u, \"lora_alpha\": %g, \"target_modules\": [\"proj\"]}\n",
		rank, scale * rank);
	must(fclose(file) ? -errno : 0, path);
	for (uint32_t i = 0; i < 2 * LAYERS; i++) {
		uint32_t rows = i % 2 ? OUT : rank, columns = i % 2 ? rank : IN;
		uint64_t end = offset + (uint64_t)rows * columns * sizeof(float);

		snprintf(header + strlen(header), sizeof(header) - strlen(header),
			"%s\"base_model.model.layers.%u.proj.lora_%c.weight\":{\"dtype\":\"F32\",\"shape\":[%u,%u],"
			"\"data_offsets\":[%llu,%llu]}",
			i ? "," : "", i / 2, i % 2 ? 'B' : 'A', rows, columns, (unsigned long long)offset,
			(unsigned long long)end);
		offset = end;
	}
	strcat(header, "}");
	while (strlen(header) % 8)
		strcat(header, " ");
	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", folder);
	file = fopen(path, "wb");
	must(file ? 0 : -errno, path);
	length = strlen(header);
	fwrite(&length, sizeof(length), 1, file);
	fwrite(header, 1, length, file);
	for (uint32_t i = 0; i < 2 * LAYERS; i++)
		for (uint32_t j = 0; j < (i % 2 ? OUT : IN) * rank; j++) {
			float value = weight(adapter, i / 2, i % 2 ? 'B' : 'A', j);

			fwrite(&value, sizeof(value), 1, file);
		}
	must(fclose(file) ? -errno : 0, path);
}

/* ---- the engine ---- */

static struct engine {
	struct gpool *pool;
	struct gpool_lora *lora;
	struct gpool_lora_scheduler *scheduler;
	struct gpool_lora_batch *batch;
	uint32_t stream;
	uint32_t ids[ADAPTERS];
	uint16_t *x, *y; /* on the device: [AT_ONCE][IN]; [LAYERS][AT_ONCE][OUT] */
} engine;

/* The running requests. Each step computes one token for each request. */
static struct {
	uint32_t request;
	uint32_t adapter; /* ADAPTERS: none */
	uint32_t left;    /* tokens left to compute */
} running[AT_ONCE];
static uint32_t running_count, adapter_of[REQUESTS];

static void engine_open(const char *folder)
{
	struct gpool_lora_options lora = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora_scheduler_options scheduler = GPOOL_LORA_SCHEDULER_OPTIONS_INIT;
	struct gpool_lora_batch_options batch = GPOOL_LORA_BATCH_OPTIONS_INIT;
	const struct gpool_lora_target target = {"layers.*.proj", IN, OUT};
	char path[512], why[GPOOL_LORA_REASON_BYTES] = "";
	struct gpool_block block;
	uint64_t address, bytes = (uint64_t)AT_ONCE * (IN + LAYERS * OUT) * sizeof(*engine.x);

	must(gpool_open(NULL, &engine.pool), "open");
	must(gpool_stream_open(engine.pool, NULL, 0, &engine.stream), "stream");
	lora.element = GPOOL_LORA_BF16;
	must(gpool_lora_create(engine.pool, &lora, &engine.lora), "adapters");
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		snprintf(path, sizeof(path), "%s/rank-%u", folder, ranks[i]);
		adapter_write(path, i);
		if (gpool_lora_register(engine.lora, path, path, &engine.ids[i], why)) {
			fprintf(stderr, "%s: %s\n", path, why);
			exit(1);
		}
	}
	scheduler.requests = REQUESTS;
	scheduler.batch_requests = AT_ONCE;
	scheduler.batch_adapters = 4;
	must(gpool_lora_scheduler_create(engine.lora, &scheduler, &engine.scheduler), "scheduler");
	batch.stream = engine.stream;
	batch.element = GPOOL_LORA_BF16;
	batch.tokens_max = AT_ONCE;
	batch.adapters_max = 4;
	batch.layers = LAYERS;
	batch.targets = &target;
	batch.target_count = 1;
	must(gpool_lora_batch_create(engine.lora, &batch, &engine.batch), "batch");
	must(gpool_alloc(engine.pool, (uint32_t)(1 + bytes / gpool_page_bytes(engine.pool)), NULL, &block),
		"memory of the model");
	must(gpool_address(engine.pool, &block, &address), "address");
	engine.x = (uint16_t *)(uintptr_t)address;
	engine.y = engine.x + AT_ONCE * IN;
}

static void engine_close(void)
{
	must(gpool_lora_batch_destroy(engine.batch), "batch");
	must(gpool_lora_scheduler_destroy(engine.scheduler), "scheduler");
	must(gpool_lora_destroy(engine.lora), "adapters");
	gpool_stream_close(engine.pool, engine.stream);
	gpool_close(engine.pool);
}

/* A bf16 is the upper half of a float. */
static float value(uint16_t bf16)
{
	uint32_t bits = (uint32_t)bf16 << 16;
	float result;

	memcpy(&result, &bits, sizeof(result));
	return result;
}

/* Return the largest error of a token's rows, relative to their size. */
static double error_of(uint32_t token, uint32_t adapter)
{
	double largest = 0;

	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		const uint16_t *x = engine.x + token * IN, *y = engine.y + (layer * AT_ONCE + token) * OUT;
		double sums[128] = {0}, difference = 0, all = 0;

		for (uint32_t k = 0; adapter < ADAPTERS && k < ranks[adapter]; k++)
			for (uint32_t i = 0; i < IN; i++)
				sums[k] += (double)value(x[i]) * (double)weight(adapter, layer, 'A', k * IN + i);
		for (uint32_t o = 0; o < OUT; o++) {
			double exact = 0;

			for (uint32_t k = 0; adapter < ADAPTERS && k < ranks[adapter]; k++)
				exact += scale * sums[k] * (double)weight(adapter, layer, 'B', o * ranks[adapter] + k);
			difference += ((double)value(y[o]) - exact) * ((double)value(y[o]) - exact);
			all += exact * exact;
		}
		difference = all > 0 ? sqrt(difference / all) : difference;
		largest = difference > largest ? difference : largest;
	}
	return largest;
}

/* Start the requests that the scheduler admits. Their adapters remain resident until the requests end. */
static void requests_start(uint32_t step)
{
	struct gpool_lora_schedule schedule = {.size = sizeof(schedule)};

	must(gpool_lora_scheduler_schedule(engine.scheduler, running_count ? 0 : -1, &schedule), "form");
	for (uint32_t i = 0; i < schedule.failed_count; i++)
		must(schedule.errors[i], "adapter");
	for (uint32_t i = 0; i < schedule.start_count; i++, running_count++) {
		running[running_count].request = schedule.starts[i];
		running[running_count].adapter = adapter_of[schedule.starts[i]];
		running[running_count].left = TOKENS_EACH;
	}
	printf("step %2u: %u start, %u run with %u adapters, %u adapters are awaited", step, schedule.start_count,
		running_count, schedule.adapters, schedule.awaited);
}

/* Compute a token for each running request. */
static void tokens_make(void)
{
	struct gpool_fence done;
	uint32_t adapters[AT_ONCE];
	char why[GPOOL_LORA_REASON_BYTES];

	for (uint32_t i = 0; i < running_count; i++)
		adapters[i] = running[i].adapter == ADAPTERS ? GPOOL_LORA_NONE : engine.ids[running[i].adapter];
	if (gpool_lora_batch_set(engine.batch, adapters, running_count, why)) {
		fprintf(stderr, "batch: %s\n", why);
		exit(1);
	}
	for (uint32_t i = 0; i < AT_ONCE * IN; i++)
		engine.x[i] = i % 3 ? 0x3f80 : 0xbf00; /* 1, -0.5: instead of a model's output */
	memset(engine.y, 0, LAYERS * AT_ONCE * OUT * sizeof(*engine.y));
	for (int layer = 0; layer < LAYERS; layer++)
		must(gpool_lora_batch_apply(engine.batch, layer, 0, (uintptr_t)engine.x, IN,
			     (uintptr_t)(engine.y + layer * AT_ONCE * OUT), OUT, engine.stream),
			"apply");
	must(gpool_fence_record(engine.pool, engine.stream, &done), "fence");
	must(gpool_fence_wait(engine.pool, done, -1), "wait");
}

/* Return the largest error of all tokens, and end the requests that are done. */
static double tokens_check(void)
{
	double largest = 0, error;
	uint32_t left = 0;

	for (uint32_t i = 0; i < running_count; i++) {
		error = error_of(i, running[i].adapter);
		largest = error > largest ? error : largest;
	}
	for (uint32_t i = 0; i < running_count; i++)
		if (--running[i].left)
			running[left++] = running[i];
		else
			must(gpool_lora_scheduler_finish(engine.scheduler, running[i].request, GPOOL_FENCE_NONE),
				"finish");
	running_count = left;
	return largest;
}

int main(int argc, char **argv)
{
	struct gpool_lora_scheduler_stats all = {.size = sizeof(all)};
	double largest = 0;

	if (argc != 2) {
		fprintf(stderr, "usage: lora FOLDER\n");
		return 2;
	}
	engine_open(argv[1]);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		uint32_t adapter = i * i % (ADAPTERS + 1), request; /* ADAPTERS: the request has no adapter */

		must(gpool_lora_scheduler_add(engine.scheduler,
			     adapter == ADAPTERS ? GPOOL_LORA_NONE : engine.ids[adapter], 100, &request),
			"add");
		adapter_of[request] = adapter;
	}
	for (uint32_t step = 1; all.finished < REQUESTS; step++) {
		double error;

		requests_start(step);
		tokens_make();
		error = tokens_check();
		printf(", largest error %.4f\n", error);
		largest = error > largest ? error : largest;
		must(gpool_lora_scheduler_stats(engine.scheduler, &all), "statistics");
	}
	printf("%llu requests, %llu had to wait for their adapter; largest error %.4f\n",
		(unsigned long long)all.finished, (unsigned long long)all.cold_starts, largest);
	engine_close();
	return largest < 1e-2 ? 0 : 1;
}
