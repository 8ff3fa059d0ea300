/*
 * main.c - gpool-replay: replay traces of GPU memory on a real agent or in a model; see gpool-replay(1).
 *
 *   main                         verbs, the command line
 *   verb_*                       one file for each verb
 *   pool                         the agent
 *   player, latencies            the verb malloc: threads and streams, histograms
 *   samples, picture             the use of addresses over time
 *   result                       reports of the verb malloc
 *   lora_*                       requests with adapters, in simulated time
 *   prefix_play, prefix_optimum  prefixes in a cache; the optimal policy
 *   prefix_report                reports of the verb kv
 *   serve_*                      requests served by engines on an agent
 */
#include "tools/replay/replay.h"

static const char *const codes[] = {
	[CODE_OK] = "Success. Allocations that failed are part of the result.",
	[CODE_FAILED] = "The replay did not complete, an engine failed, or a file could not be written.",
	[CODE_USAGE] = "The command line or the trace is invalid.",
	NULL,
};

static const struct option_spec common_options[] = {
	OPTION_ROW_HELP,
	OPTION_ROW_VERSION,
	OPTIONS_END,
};

static const struct option_spec malloc_options[] = {
	OPTION(OPTION_ALLOCATOR, 'a', "allocator", "NAMES",
		"Allocators to replay on, separated by commas: gpool (gpool_malloc_async), best-fit (a caching "
		"allocator without remapping, in the same pool), driver (the GPU driver's own pool; requires a GPU), "
		"or all. The default is gpool."),
	OPTION(OPTION_PICTURE, 0, "picture", "FILE",
		"Draw the use of addresses over time, as SVG. The sampling slows down the replay."),
	OPTION_ROW_OUTPUT,
	OPTION(OPTION_SPEED, 0, "speed", "X",
		"Replay at the times of the trace, X times as fast. The default is as fast as possible."),
	OPTION(OPTION_IN_ORDER, 0, "in-order", NULL,
		"Replay each event after the previous one, even across threads. By default, only a free waits for its "
		"malloc."),
	OPTION(OPTION_FILL, 0, "fill", "SIZE",
		"Number of bytes to write to each allocation on its stream, as work for the stream. The default is "
		"none."),
	OPTION(OPTION_POOL_SIZE, 0, "pool-size", "SIZE",
		"Size of the pool of the agent that is started. Its host memory is allocated when it is first written. "
		"The default is 80GiB."),
	OPTION(OPTION_PAGE_SIZE, 0, "page-size", "SIZE",
		"Page size of that pool: 512KiB, 1MiB, 2MiB or 4MiB. The default is 2MiB."),
	OPTION(OPTION_DIR, 'd', "dir", "DIR", "Attach to the agent with its sockets in DIR instead of starting one."),
	OPTION(OPTION_POOL, 'p', "pool", "NAME",
		"With --dir, the name of the pool. The default is the first pool of the agent."),
	OPTION(OPTION_INCOMPLETE, 0, "incomplete", NULL,
		"Accept an incomplete trace: a truncated last line and frees of unknown allocations are skipped and "
		"counted."),
	OPTION_ROW_QUIET,
	OPTIONS_END,
};

static const struct option_spec make_options[] = {
	OPTION(OPTION_ALLOCATIONS, 0, "allocations", "N",
		"Number of allocations. The default is 10000, unless --through is given."),
	OPTION(OPTION_THROUGH, 0, "through", "SIZE", "End when the sum of all allocations reaches SIZE."),
	OPTION(OPTION_UP_TO, 0, "up-to", "SIZE", "Sizes are uniform from 1 byte to SIZE. The default is 64MiB."),
	OPTION(OPTION_CAP, 0, "cap", "SIZE", "Maximum number of live bytes. The default is 16000MiB."),
	OPTION(OPTION_CHANCE, 0, "chance", "PERCENT",
		"Probability that a step allocates, if the cap allows it; else a random allocation is freed. The "
		"default is 73."),
	OPTION(OPTION_THREADS, 0, "threads", "N",
		"Number of threads; each allocation and each free is made by a random one. The default is 1."),
	OPTION(OPTION_STREAMS, 0, "streams", "N",
		"Number of streams; each allocation is for a random one. With 0, allocations have no stream. The "
		"default is 1."),
	OPTION(OPTION_SEED, 0, "seed", "N", "Random seed: the same seed gives the same trace. The default is 1."),
	OPTIONS_END,
};

static const struct option_spec kv_options[] = {
	OPTION(OPTION_BLOCKS, 0, "blocks", "N[,N...]",
		"Sizes of the cache in blocks. The default is 1000,2000,5000,10000,20000."),
	OPTION(OPTION_POLICY, 0, "policy", "NAMES",
		"Eviction policies, separated by commas: lru, adaptive (learns the hit density by age and class, also "
		"from ghosts), optimum (knows the whole trace), and for comparison fifo, lfu, lru2, gdsf, s3fifo. With "
		"--engines only the first two. The default is lru,adaptive,optimum, or lru with --engines."),
	OPTION(OPTION_HISTORY, 0, "history", "N",
		"Number of evicted blocks that lfu, lru2 and gdsf remember for each block of the cache; adaptive "
		"remembers at most 8. The default is to remember all."),
	OPTION(OPTION_ENGINES, 0, "engines", "N",
		"Serve the requests with N engine processes, up to 16, on an agent, in one run for each combination of "
		"--tokens, --growth, --watermark and --policy."),
	OPTION(OPTION_TOKENS, 0, "tokens", "N[,N...]",
		"With --engines: sizes of blocks in tokens, powers of two up to 1024. The default is 16."),
	OPTION(OPTION_GROWTH, 0, "growth", "NAMES",
		"With --engines: when blocks are allocated to a request: incremental (as it grows), mean or oracle (at "
		"the start, for an answer of the mean length so far, or of the length in the trace). The default is "
		"incremental."),
	OPTION(OPTION_WATERMARK, 0, "watermark", "N[,N...]",
		"With --engines: percentage of the pool's blocks that admission keeps free. The default is 1."),
	OPTION(OPTION_OFFLOAD, 0, "offload", "SIZE",
		"With --engines: host memory of each engine for the KV of preempted requests. The default is to "
		"recompute the KV."),
	OPTION(OPTION_APART, 0, "apart", NULL, "With --engines: do not share blocks between engines."),
	OPTION(OPTION_IDLE, 0, "idle", "SECONDS",
		"With --engines: leave the last engine idle in every second window of SECONDS of trace time, run each "
		"combination again with one engine that has the whole pool, and compare the hit rates. Requires two or "
		"more engines."),
	OPTION(OPTION_SPEED, 0, "speed", "X",
		"With --engines: requests arrive X times as fast as in the trace. The default is 1."),
	OPTION(OPTION_POOL_SIZE, 0, "pool-size", "SIZE",
		"With --engines: size of the pool; a token uses 2 KiB. The default is 1GiB."),
	OPTION(OPTION_PAGE_SIZE, 0, "page-size", "SIZE",
		"With --engines: page size of the pool: 512KiB, 1MiB, 2MiB or 4MiB. The default is 1MiB."),
	OPTION(OPTION_CORRUPT, 0, "corrupt", "N", NULL), /* lets a test observe a verification failure */
	OPTION(OPTION_LIMIT, 0, "limit", "N", "Read only the first N requests."),
	OPTION(OPTION_CHART, 0, "chart", "FILE",
		"Draw the hit rates over time, or with --engines the pages in use, as SVG."),
	OPTION_ROW_OUTPUT,
	OPTION_ROW_QUIET,
	OPTIONS_END,
};

static const struct option_spec make_kv_options[] = {
	OPTION(OPTION_REQUESTS, 0, "requests", "N", "Number of requests. The default is 20000."),
	OPTION(OPTION_BLOCKS, 0, "blocks", "N",
		"Size of the cache for which the trace is generated; the reused part of the workload is scaled to it. "
		"The default is 2000."),
	OPTION(OPTION_SEED, 0, "seed", "N", "Random seed: the same seed gives the same trace. The default is 1."),
	OPTIONS_END,
};

static const struct option_spec waste_options[] = {
	OPTION(OPTION_TOKENS, 0, "tokens", "N[,N...]",
		"Sizes of blocks in tokens, powers of two up to 1024. The default is 8,16,32."),
	OPTION(OPTION_RESERVE, 0, "reserve", "N",
		"Size of a contiguous reservation in tokens. The default is the length of the longest request of the "
		"trace."),
	OPTION_ROW_OUTPUT,
	OPTIONS_END,
};

static const struct option_spec lora_options[] = {
	OPTION(OPTION_BUSY, 0, "busy", "N[,N...]",
		"Scale the arrivals so that the engine is busy N percent of the time if all adapters are resident; 0: "
		"do not scale. The default is 60,80,95, or 0 with --gamma."),
	OPTION(OPTION_STRATEGY, 0, "strategy", "NAMES",
		"Scheduling strategies, separated by commas: fifo, around (no request waits for the adapter of another "
		"request), resident (requests with a resident adapter first), prefetch (resident, and loads ahead), "
		"limit (prefetch, with a limited number of adapters in a batch), single (only requests of one adapter "
		"run at a time). The default is all but single, with --tables also without limit; the others are "
		"compared with the first one."),
	OPTION(OPTION_TABLES, 0, "tables", NULL,
		"Print tables for several popularities instead: the strategies, with requests and cold starts per "
		"second; the throughput against one adapter at a time; the adapters held at once in pages and in "
		"contiguous pieces; the measured time of a load, on an agent that is started on host memory. Each "
		"figure has its bound beside it."),
	OPTION(OPTION_ADAPTERS, 0, "adapters", "N", "Number of adapters. The default is 1000."),
	OPTION(OPTION_POPULARITY, 0, "popularity", "LAW",
		"Popularity of adapters. zipf:S: the n-th adapter has 1/n^S as many requests as the first; A: the "
		"first fraction x of the adapters has x^A of the requests; 1 is uniform. The default is zipf:1.0. "
		"With --tables, a list separated by commas; the default is zipf:1.0,0.1,0.3."),
	OPTION(OPTION_RANKS, 0, "ranks", "N[,N...]",
		"Ranks of adapters, with equal probability; an adapter uses 5 MiB of GPU memory per rank. The default "
		"is 8,16,32,64."),
	OPTION(OPTION_TENANTS, 0, "tenants", "N",
		"Number of tenants that own the adapters; the JSON output reports the tenant with the longest times. "
		"The default is 10."),
	OPTION(OPTION_HOT, 0, "hot", "N", "GPU memory, in adapters of average size. The default is 76."),
	OPTION(OPTION_WARM, 0, "warm", "N",
		"Host memory for warm copies, in adapters of average size. The default is 300."),
	OPTION(OPTION_MAX_BYPASS, 0, "max-bypass", "MS",
		"Maximum time in milliseconds for which a request is bypassed. The default is 2000."),
	OPTION(OPTION_LOOK_AHEAD, 0, "look-ahead", "N",
		"Number of queued requests whose adapters are loaded ahead, at most 64. The default is 10."),
	OPTION(OPTION_BATCH_ADAPTERS, 0, "batch-adapters", "N",
		"Maximum number of different adapters in a batch, with the strategy limit. The default is 32."),
	OPTION(OPTION_COST, 0, "cost", "NAME=X[,...]",
		"Costs: step (us), prefill (us per token), decode (us per request and step), adapter (us per MiB and "
		"step), load (us), disk, bus, save (GB/s). With save=0, warm copies are made from the disk, as by the "
		"library, instead of from GPU memory. The default is "
		"step=6000,prefill=40,decode=30,adapter=0.35,load=200,disk=3,bus=25,save=10."),
	OPTION(OPTION_GAMMA, 0, "gamma", "RATE,CV",
		"Random arrivals (seeded): rate per second, and coefficient of variation of the intervals (1: "
		"Poisson); a trace then provides only the numbers of tokens."),
	OPTION(OPTION_REQUESTS, 0, "requests", "N",
		"Number of requests, with --gamma and without a trace. The default is 10000."),
	OPTION(OPTION_SEED, 0, "seed", "N", "Random seed: the same seed gives the same result. The default is 1."),
	OPTION(OPTION_LIMIT, 0, "limit", "N", "Read only the first N requests."),
	OPTION(OPTION_CHART, 0, "chart", "FILE", "Draw the times to the first token over time, as SVG."),
	OPTION_ROW_OUTPUT,
	OPTION_ROW_QUIET,
	OPTIONS_END,
};

static const struct verb verbs[] = {
	{"malloc", "TRACE", 1, 1, malloc_options, malloc_run, false, "replay stream-ordered allocations",
		"Replays a trace of allocations (gpool-replay(1) has the format; - is standard input) with the threads "
		"and streams of the trace, and reports time, latencies, memory, driver calls and failures.",
		NULL, NULL},
	{"make", "[FILE]", 0, 1, make_options, make_run, false, "generate a random trace of allocations",
		"Writes a trace for the verb malloc to FILE, or to standard output.", NULL, NULL},
	{"kv", "TRACE", 1, 1, kv_options, kv_run, false, "replay prefixes of prompts through caches",
		"Replays requests to a language model (gpool-replay(1) has the format; - is standard input) through "
		"caches of prefixes, and reports the hit rate for each size and policy; no agent is required. With "
		"--engines, the requests, or those of an Azure trace (a file whose name ends in .csv), are served in "
		"simulated time by engines on an agent that is started on host memory, and prefix hits, preemptions, "
		"waits and memory are reported.",
		NULL, NULL},
	{"make-kv", "WORKLOAD [FILE]", 1, 2, make_kv_options, make_kv_run, false, "generate a random trace of prefixes",
		"Writes a trace for the verb kv to FILE, or to standard output. Workloads: loop (documents in turn, "
		"1.5 times the cache), scan (few documents that are reused and many that are not), zipf (ten times the "
		"cache, with a Zipf popularity), shift (zipf with a popularity that changes), recent (the latest "
		"documents are reused), chats (many chats, turn by turn, of different activity), system (one prompt "
		"that all requests share), agents (tasks of many short steps).",
		NULL, NULL},
	{"waste", "TRACE", 1, 1, waste_options, waste_run, false, "report the share of KV memory that holds no tokens",
		"Processes requests to a language model (gpool-replay(1) has the format) step by step, and reports the "
		"share of their memory that holds no tokens, with blocks and with contiguous reservations. No agent is "
		"required.",
		NULL, NULL},
	{"lora", "[TRACE]", 0, 1, lora_options, lora_run, false, "serve requests with LoRA adapters",
		"Serves requests to a language model (an Azure trace; gpool-replay(1) has the format). Each request "
		"uses one of many LoRA adapters, of which few fit into GPU memory. Several scheduling strategies are "
		"compared by the times to the first token and the loads of adapters. Time, engine, disk and bus are "
		"simulated, with costs that are printed; the scheduler and the eviction policy are the code of "
		"libgpool_lora. No agent is required, except with --tables.",
		NULL, NULL},
	VERBS_END,
};

int main(int argc, char **argv)
{
	static const struct program replay = {
		.name = "gpool-replay",
		.usage = "VERB [OPTION]... [ARGUMENT]...",
		.summary = "Replays traces of GPU memory on an agent, and prints and draws the results.",
		.options = common_options,
		.verbs = verbs,
		.codes = codes,
	};

	return command_run(&replay, argc, argv, NULL);
}
