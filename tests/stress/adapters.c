/*
 * adapters.c - engines load, use and unload LoRA adapters, while engines, the agent and its movers are killed and pages
 * are evicted.
 *
 * Goal: processes may die at any instruction. While an engine has acquired an adapter, or has released it with an
 * unsignaled fence, the adapter has the weights of its files. No tenant opens an adapter of another tenant. No page and
 * no pin is lost.
 *
 * Method: two tenants with three engines each, with two threads per engine, in a pool that holds a third of their
 * adapters. The adapters are private. Some engines keep copies on disk, in a shared folder; some in a warm pool, which
 * is also too small; some in both. Some store the last pages of their adapters together (GPOOL_LORA_SHARE_PAGES). Each
 * weight is read, and compared by a checksum with the PEFT files. The steps of an engine are random: acquire with and
 * without waiting, prefetch, release at once and with fences, unload, register again, allocate and overwrite other
 * pages, open objects of the other tenant. At the end everything is released and evicted, and every page of both pools
 * must be free.
 *
 * With --broken, engines read adapters that they have released. Wrong weights must then be found; otherwise the test
 * could not fail.
 *
 * usage: adapters [SECONDS [SEED]] [--workers N] [--broken]
 *
 * Requirements: S1.
 */
#include "tests/stress/stress_agent.h"
#include "tests/stress/adapters_engine.h"
#include "tests/lib/temporary.h"

#include <pthread.h>

#define WARM_POOL "name=warm,backend=host,size=24MiB,page_size=1MiB,reserved=0"
enum { PAGES = 48, WARM_PAGES = 24, GPOOLD_KILL_MEAN_MS = 250, EVICT_MEAN_MS = 30 };

static const char tenants[] =
	"tenants = ( { name = \"red\"; users = [ \"1\" ]; }, { name = \"blue\"; users = [ \"2\" ]; } );\n";
static const char *const settings[] = {"lease.initial_pages=0", "lease.batch_pages=1", "lease.batch_most=1", NULL};

/* ---- files ---- */

static bool file_write(const char *name, const void *bytes, size_t length, const char *folder)
{
	char path[160];
	bool written;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "we");
	written = file && fwrite(bytes, 1, length, file) == length;
	return file && fclose(file) == 0 && written;
}

/* Return a checksum of the matrix as kernels read it: tiles of 128 columns, in bf16. */
static uint64_t digest_of_file(const struct rig *rig, const struct peft_matrix *matrix, bool transposed, uint32_t rank,
	uint32_t columns, uint64_t digest)
{
	static uint16_t tile[RANK_MAX * LORA_TILE_COLUMNS];

	for (uint32_t begin = 0; begin < columns; begin += LORA_TILE_COLUMNS) {
		memset(tile, 0, sizeof(tile));
		for (uint32_t row = 0; row < rank; row++)
			for (uint32_t i = 0; i < LORA_TILE_COLUMNS && begin + i < columns; i++)
				tile[row * LORA_TILE_COLUMNS + i] = bf16_of_float(rig_get(rig, matrix,
					transposed ? (uint64_t)(begin + i) * rank + row
						   : (uint64_t)row * columns + begin + i));
		digest = XXH3_64bits_withSeed(tile, lora_tile_bytes(rank), digest);
	}
	return digest;
}

static bool adapter_make(uint32_t adapter)
{
	struct rig_module modules[MODULES];
	struct rig rig;
	char path[128];
	uint64_t digest = 0;
	bool made;

	for (uint32_t i = 0; i < MODULES; i++) {
		modules[i] = module_of(adapter, i);
		modules[i].type = i % 2 ? SAFETENSORS_BF16 : SAFETENSORS_F16;
	}
	rig_make(&rig, modules, MODULES);
	rig_fill(&rig, rig_normal);
	for (uint32_t i = 0; i < MODULES; i++) {
		const struct peft_module *module = &rig.peft.modules[i]; /* in the order of module_of() */

		digest = digest_of_file(&rig, &module->a, false, module->rank, module->in, digest);
		digest = digest_of_file(&rig, &module->b, true, module->rank, module->out, digest);
	}
	stage->counters.digests[adapter] = digest;
	snprintf(path, sizeof(path), "%s/%u", stage->counters.folder, adapter);
	made = mkdir(path, 0700) == 0 && file_write("adapter_config.json", CONFIG, strlen(CONFIG), path) &&
		file_write("adapter_model.safetensors", rig.file, rig.peft.file_bytes, path);
	rig_end(&rig);
	return made;
}

static bool files_make(void)
{
	struct counters *counters = &stage->counters;
	char path[128];

	snprintf(counters->folder, sizeof(counters->folder), "%s/gpool-adapters-XXXXXX", temporary_folder());
	if (!mkdtemp(counters->folder) || !file_write("gpoold.conf", tenants, strlen(tenants), counters->folder))
		return false;
	for (uint32_t i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", counters->folder, tenant_names[i]);
		if (mkdir(path, 0700))
			return false;
	}
	for (uint32_t i = 0; i < ADAPTERS; i++)
		if (!adapter_make(i))
			return false;
	return true;
}

static void files_remove(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", stage->counters.folder);
	if (system(command))
		printf("%s stays\n", stage->counters.folder);
}

/* ---- eviction by requests, as in poolctl ---- */

static void evict(struct stress_agent *agent, const char *pool, uint32_t pages)
{
	static uint8_t reply[MSG_BYTES_MAX];
	struct msg_evict_request request = {.pages = pages};
	uint8_t message[MSG_LARGEST_evict_request];
	char text[512] = "";
	int length;

	snprintf(request.pool, sizeof(request.pool), "%s", pool);
	length = msg_encode_evict_request(&request, 0, NULL, message, sizeof(message));
	length = pool_request(
		agent->harness.admin, message, (size_t)length, reply, sizeof(reply), STRESS_PATIENCE_MS, text);
	if (length < 0)
		violation("eviction in pool '%s' answers %d: %s %s", pool, length, gpool_strerror(length), text);
}

struct evictor {
	struct stress_agent *agent;
	uint64_t random, requests;
};

static void *evictor_run(void *argument)
{
	struct evictor *evictor = argument;

	while (told_to_run()) {
		evict(evictor->agent, evictor->requests % 4 ? "stress" : "warm", 1 + chance_below(&evictor->random, 8));
		evictor->requests++;
		futex_wait(&stage->command, RUN, (int64_t)chance_below(&evictor->random, 2 * EVICT_MEAN_MS) * 1000000);
	}
	return NULL;
}

/* ---- the end ---- */

static uint32_t objects_left(struct gpool *observer)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0, count = 0;

	while (gpool_object_next(observer, &cursor, &info) == 0)
		printf("object %u of %u pages is left: state %u, %u readers\n", ++count, info.pages, info.state,
			info.readers);
	return count;
}

/* After all engines have ended, all content is unpinned and can be evicted. */
static bool nothing_is_left(struct stress_agent *agent, struct gpool *observer, const char *pool, uint32_t pages)
{
	bool clean;

	evict(agent, pool, pages);
	clean = stress_pool_wait_free(pool_view(observer)->header);
	clean = !objects_left(observer) && clean;
	return stress_agent_check_pool(agent, pool, true, 0) && clean;
}

static void judge(const struct tormentor *tormentor, const struct stress_agent *agent, const struct evictor *evictor)
{
	const struct counters *c = &stage->counters;

	tormentor_show(tormentor);
	printf("%" PRIu64 " acquired at once, %" PRIu64 " waited for; %" PRIu64 " not there yet, %" PRIu64
	       " late, %" PRIu64 " without room, %" PRIu64 " busy\n",
		c->hot, c->acquired - c->hot, c->again, c->late, c->refusals, c->busy);
	printf("%" PRIu64 " adapters verified, %" PRIu64 " behind fences; %" PRIu64 " unloaded, %" PRIu64
	       " registered again, %" PRIu64 " not opened by the other tenant; %" PRIu64 " requests to evict, %" PRIu64
	       " pages evicted; of the last engines' loads %" PRIu64 " warm, %" PRIu64 " cold; %u violations\n",
		c->verified, c->fences, c->unloaded, c->renewed, c->denied, evictor->requests,
		atomic_load(&agent->header->counters[POOL_COUNT_EVICTED_PAGES]), c->from_warm, c->from_cold,
		atomic_load(&stage->wrong));
}

static bool was_real(const struct tormentor *tormentor)
{
	const struct counters *c = &stage->counters;

	return tormentor->arguments.seconds < 5 ||
		(tormentor->kills && tormentor->agent_kills && tormentor->mover_kills && c->hot &&
			c->acquired > c->hot && c->again && c->verified && c->fences && c->unloaded && c->renewed &&
			c->denied);
}

static bool run(struct tormentor *tormentor, struct stress_agent *agent, struct gpool *warm)
{
	struct evictor evictor = {.agent = agent, .random = tormentor->arguments.seed};
	pthread_t thread;
	bool clean;

	if (pthread_create(&thread, NULL, evictor_run, &evictor))
		return false;
	torment(tormentor);
	stand_still(tormentor);
	pthread_join(thread, NULL);
	clean = stress_agent_check_pool(agent, "stress", true, 0);
	clean = stress_agent_check_pool(agent, "warm", true, 0) && clean;
	leave(tormentor);
	clean = nothing_is_left(agent, agent->observer, "stress", PAGES) && clean;
	clean = nothing_is_left(agent, warm, "warm", WARM_PAGES) && clean;
	judge(tormentor, agent, &evictor);
	if (!tormentor->arguments.broken && !was_real(tormentor)) {
		printf("something this test is about did not happen\n");
		clean = false;
	}
	return clean && !atomic_load(&stage->wrong);
}

static struct gpool *session(const struct stress_agent *agent, const char *pool, uint32_t flags)
{
	struct gpool_options options = harness_options(&agent->harness);
	struct gpool *opened = NULL;
	int error;

	options.pool = pool;
	options.flags = flags;
	options.timeout_ms = STRESS_PATIENCE_MS;
	error = gpool_open(&options, &opened);
	if (error)
		printf("pool '%s' cannot be opened: %s\n", pool, gpool_strerror(error));
	return opened;
}

static bool run_with_agent(struct tormentor *tormentor)
{
	struct stress_agent agent;
	struct gpool *warm;
	char config[128];
	const char *const more[] = {"--pool", WARM_POOL, "--config", config, NULL};
	bool clean;

	snprintf(config, sizeof(config), "%s/gpoold.conf", stage->counters.folder);
	clean = stress_agent_start_with(&agent, PAGES, settings, more);
	tormentor->directory = agent.directory;
	tormentor->keeper = agent.keeper;
	warm = session(&agent, "warm", GPOOL_OPEN_OBSERVER);
	agent.harness.admin = session(&agent, "stress", GPOOL_OPEN_ADMIN);
	clean = clean && warm && agent.harness.admin && run(tormentor, &agent, warm);
	gpool_close(warm);
	return stress_agent_stop(&agent, clean || tormentor->arguments.broken);
}

int main(int argc, char **argv)
{
	struct tormentor tormentor = {
		.arguments = {.seconds = 10, .workers = 6, .usage = "[SECONDS [SEED]] [--workers N] [--broken]"},
		.kill_ms = worker_kill_ms(),
		.gpoold_ms = gpoold_ms(GPOOLD_KILL_MEAN_MS),
		.was_real = was_real};
	bool clean;

	if (argc == 6 && !strcmp(argv[1], "--worker"))
		return engine_main(argv + 2);
	if (!stress_arguments_read(argc, argv, &tormentor.arguments) || tormentor.arguments.workers > WORKERS_MAX)
		return 2;
	tormentor.random = tormentor.arguments.seed;
	tormentor.stage_fd = stage_create();
	if (tormentor.stage_fd < 0 || !files_make())
		return 1;
	stage->broken = tormentor.arguments.broken;
	clean = run_with_agent(&tormentor);
	files_remove();
	if (tormentor.arguments.broken) {
		printf("the planted bug was %sfound%s%s\n", atomic_load(&stage->wrong) ? "" : "not ",
			atomic_load(&stage->wrong) ? ": " : "", stage->texts[0]);
		return atomic_load(&stage->wrong) ? 0 : 1;
	}
	return clean ? 0 : 1;
}
