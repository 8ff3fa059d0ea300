/*
 * gpool-replay - traces of what programs did with GPU memory, done again on a real agent or in a model; see
 * gpool-replay(1).
 *
 *   main, options   verbs, the command line       verb_*                   what each verb does
 *   player          threads, streams, latencies   samples, picture         what lay where, and when
 *   pool            the agent                     result, latencies        what came of it
 *   lora_*          requests that bring adapters, in simulated time
 *   prefix_play     prefixes through a cache      prefix_optimum           and with foresight
 *   prefix_report   what came of that               serve_*                  requests served by engines on an agent
 */
#include "tools/replay/replay.h"

#include "client/gpool.h"
#include "tools/lib/output_end.h"

#include <stdio.h>
#include <stdlib.h>

volatile sig_atomic_t interrupted;

const char *const code_texts[CODES] = {
	[CODE_OK] = "Done. Allocations that found no memory are a result, and told.",
	[CODE_FAILED] = "It could not be replayed to its end, an engine failed, or a file could not be written.",
	[CODE_USAGE] = "The command line or the trace is wrong.",
};

const struct option_spec common_options[] = {
	{.name = "help", .id = OPTION_HELP, .help = "This text."},
	{.name = "version", .id = OPTION_VERSION, .help = "The version."},
	{.name = NULL},
};

static const struct option_spec malloc_options[] = {
	{
		.name = "allocator",
		.letter = 'a',
		.argument = "NAMES",
		.id = OPTION_ALLOCATOR,
		.help = "On which: gpool (gpool_malloc_async), best-fit (a caching allocator without remapping, from "
			"the "
			"same pool), driver (the GPU driver's own pool; needs a GPU), or several with commas between, "
			"one after the other; all that are there. The default is gpool.",
	},
	{
		.name = "picture",
		.argument = "FILE",
		.id = OPTION_PICTURE,
		.help = "Draw what lay at which address over time, as SVG. Looking takes time: figures are slower with "
			"it.",
	},
	{
		.name = "output",
		.letter = 'o',
		.argument = "FORMAT",
		.id = OPTION_OUTPUT,
		.help = "Print a table for people, or json for programs. The default is table.",
	},
	{
		.name = "speed",
		.argument = "X",
		.id = OPTION_SPEED,
		.help = "Keep to the trace's times, X times as fast. Without it as fast as it goes.",
	},
	{
		.name = "in-order",
		.id = OPTION_IN_ORDER,
		.help = "Each event after the one above it, also between threads. Without it a free waits for its "
			"malloc, and nothing else.",
	},
	{
		.name = "fill",
		.argument = "SIZE",
		.id = OPTION_FILL,
		.help = "Write so much of each allocation, on its stream, so that streams have something to do. The "
			"default is nothing.",
	},
	{
		.name = "pool-size",
		.argument = "SIZE",
		.id = OPTION_POOL_SIZE,
		.help = "Of the pool of an agent of its own on host memory, of which only what is written is used. The "
			"default is 80GiB.",
	},
	{
		.name = "page-size",
		.argument = "SIZE",
		.id = OPTION_PAGE_SIZE,
		.help = "Of its pages: 512KiB, 1MiB, 2MiB or 4MiB. The default is 2MiB.",
	},
	{
		.name = "dir",
		.letter = 'd',
		.argument = "DIR",
		.id = OPTION_DIR,
		.help = "Attach to the agent with its sockets there, and start none.",
	},
	{
		.name = "pool",
		.letter = 'p',
		.argument = "NAME",
		.id = OPTION_POOL,
		.help = "With --dir, the pool that is meant. The default is the agent's first one.",
	},
	{
		.name = "incomplete",
		.id = OPTION_INCOMPLETE,
		.help = "Take a trace that lacks calls: a last line that is cut off and frees of what is not allocated "
			"are left out, and told.",
	},
	{
		.name = "quiet",
		.letter = 'q',
		.id = OPTION_QUIET,
		.help = "No progress.",
	},
	{.name = NULL},
};

static const struct option_spec make_options[] = {
	{
		.name = "allocations",
		.argument = "N",
		.id = OPTION_ALLOCATIONS,
		.help = "End after so many. The default is 10000, unless --through is given.",
	},
	{
		.name = "through",
		.argument = "SIZE",
		.id = OPTION_THROUGH,
		.help = "End when they have had so much together.",
	},
	{
		.name = "up-to",
		.argument = "SIZE",
		.id = OPTION_UP_TO,
		.help = "Sizes are uniform from 1 byte up to this. The default is 64MiB.",
	},
	{
		.name = "cap",
		.argument = "SIZE",
		.id = OPTION_CAP,
		.help = "Most that is live at once. The default is 16000MiB.",
	},
	{
		.name = "chance",
		.argument = "PERCENT",
		.id = OPTION_CHANCE,
		.help = "Of an allocation at each step, where the cap allows one; else one that lives, any of them, is "
			"freed. The default is 73.",
	},
	{
		.name = "threads",
		.argument = "N",
		.id = OPTION_THREADS,
		.help = "Threads, any of which allocates, and any frees. The default is 1.",
	},
	{
		.name = "streams",
		.argument = "N",
		.id = OPTION_STREAMS,
		.help = "Streams, any of which an allocation is for. The default is 1; 0 is none.",
	},
	{
		.name = "seed",
		.argument = "N",
		.id = OPTION_SEED,
		.help = "Random seed: the same seed gives the same trace. The default is 1.",
	},
	{.name = NULL},
};

static const struct option_spec kv_options[] = {
	{
		.name = "blocks",
		.argument = "N[,N...]",
		.id = OPTION_BLOCKS,
		.help = "Sizes of the cache. The default is 1000,2000,5000,10000,20000.",
	},
	{
		.name = "policy",
		.argument = "NAMES",
		.id = OPTION_POLICY,
		.help = "Who decides what goes: lru, adaptive (ghosts, and hit density by age and class), optimum "
			"(knows the trace to its end), or several with commas between. The default is "
			"lru,adaptive,optimum; with --engines, which know no optimum, lru.",
	},
	{
		.name = "engines",
		.argument = "N",
		.id = OPTION_ENGINES,
		.help = "Serve the requests with so many engine processes, up to 16, on an agent. There is one run for "
			"each combination of what --tokens, --growth, --watermark and --policy list.",
	},
	{
		.name = "tokens",
		.argument = "N[,N...]",
		.id = OPTION_TOKENS,
		.help = "Engines: sizes of blocks in tokens, powers of two up to 1024. The default is 16.",
	},
	{
		.name = "growth",
		.argument = "NAMES",
		.id = OPTION_GROWTH,
		.help = "Engines: when requests get their blocks: incremental (as they grow), mean or oracle (at once, "
			"for an answer as long as those before on average, or as long as the trace says). The default "
			"is incremental.",
	},
	{
		.name = "watermark",
		.argument = "N[,N...]",
		.id = OPTION_WATERMARK,
		.help = "Engines: percent of the pool's blocks that admission leaves free. The default is 1.",
	},
	{
		.name = "offload",
		.argument = "SIZE",
		.id = OPTION_OFFLOAD,
		.help = "Engines: host memory of each for what preempted requests have. Without it that is computed "
			"again.",
	},
	{
		.name = "apart",
		.id = OPTION_APART,
		.help = "Engines: share no blocks with each other.",
	},
	{
		.name = "idle",
		.argument = "SECONDS",
		.id = OPTION_IDLE,
		.help = "Engines: leave the last engine idle in every second window of SECONDS of trace time, run each "
			"combination again with one engine that has the whole pool, and compare the hit rates. Needs "
			"two or more engines.",
	},
	{
		.name = "speed",
		.argument = "X",
		.id = OPTION_SPEED,
		.help = "Engines: requests come X times as fast as in the trace. The default is 1.",
	},
	{
		.name = "pool-size",
		.argument = "SIZE",
		.id = OPTION_POOL_SIZE,
		.help = "Engines: of the pool, 2 KiB for each token. The default is 1GiB.",
	},
	{
		.name = "page-size",
		.argument = "SIZE",
		.id = OPTION_PAGE_SIZE,
		.help = "Engines: of its pages: 512KiB, 1MiB, 2MiB or 4MiB. The default is 1MiB.",
	},
	{.name = "corrupt", .argument = "N", .id = OPTION_CORRUPT}, /* lets a test see verification fail */
	{
		.name = "limit",
		.argument = "N",
		.id = OPTION_LIMIT,
		.help = "Read so many requests and no more.",
	},
	{
		.name = "chart",
		.argument = "FILE",
		.id = OPTION_CHART,
		.help = "Draw the hit rates over time, or with --engines the pages in use, as SVG.",
	},
	{
		.name = "output",
		.letter = 'o',
		.argument = "FORMAT",
		.id = OPTION_OUTPUT,
		.help = "Print a table for people, or json for programs. The default is table.",
	},
	{
		.name = "quiet",
		.letter = 'q',
		.id = OPTION_QUIET,
		.help = "No progress.",
	},
	{.name = NULL},
};

static const struct option_spec make_kv_options[] = {
	{
		.name = "requests",
		.argument = "N",
		.id = OPTION_REQUESTS,
		.help = "How many. The default is 20000.",
	},
	{
		.name = "blocks",
		.argument = "N",
		.id = OPTION_BLOCKS,
		.help = "Size of the cache that it is made for: how much comes again and again is measured by it. The "
			"default is 2000.",
	},
	{
		.name = "seed",
		.argument = "N",
		.id = OPTION_SEED,
		.help = "Random seed: the same seed gives the same trace. The default is 1.",
	},
	{.name = NULL},
};

static const struct option_spec waste_options[] = {
	{
		.name = "tokens",
		.argument = "N[,N...]",
		.id = OPTION_TOKENS,
		.help = "Sizes of blocks in tokens, powers of two up to 1024. The default is 8,16,32.",
	},
	{
		.name = "reserve",
		.argument = "N",
		.id = OPTION_RESERVE,
		.help = "Tokens that a contiguous reservation is for. The default is what the longest request of the "
			"trace has.",
	},
	{
		.name = "output",
		.letter = 'o',
		.argument = "FORMAT",
		.id = OPTION_OUTPUT,
		.help = "Print a table for people, or json for programs. The default is table.",
	},
	{.name = NULL},
};

static const struct option_spec lora_options[] = {
	{
		.name = "busy",
		.argument = "N[,N...]",
		.id = OPTION_BUSY,
		.help = "Requests come so much faster or slower that compute alone would be busy so many percent of "
			"the time; 0: as they come. The default is 60,80,95; with --gamma 0.",
	},
	{
		.name = "strategy",
		.argument = "NAMES",
		.id = OPTION_STRATEGY,
		.help = "How they are served: fifo, around (nobody waits for another one's adapter), resident (whose "
			"adapter is there goes first), prefetch (the same, and loading ahead), limit (the same, and "
			"few adapters in a batch), or several with commas between. The default is all; the others are "
			"compared with the first one.",
	},
	{
		.name = "adapters",
		.argument = "N",
		.id = OPTION_ADAPTERS,
		.help = "How many there are. The default is 1000.",
	},
	{
		.name = "popularity",
		.argument = "LAW",
		.id = OPTION_POPULARITY,
		.help = "zipf:S: the n-th adapter is asked for 1/n^S as often as the first; A: the first share x of "
			"the adapters has x^A of the requests, so that 1 is uniform. The default is zipf:1.0.",
	},
	{
		.name = "ranks",
		.argument = "N[,N...]",
		.id = OPTION_RANKS,
		.help = "Ranks that they have, each as often; 5 MiB of GPU memory for each. The default is 8,16,32,64.",
	},
	{
		.name = "tenants",
		.argument = "N",
		.id = OPTION_TENANTS,
		.help = "Whom the adapters belong to; the one that is off worst is told in JSON. The default is 10.",
	},
	{
		.name = "hot",
		.argument = "N",
		.id = OPTION_HOT,
		.help = "GPU memory for so many adapters of average size. The default is 76.",
	},
	{
		.name = "warm",
		.argument = "N",
		.id = OPTION_WARM,
		.help = "Host memory for warm copies of so many. The default is 300.",
	},
	{
		.name = "patience",
		.argument = "MS",
		.id = OPTION_PATIENCE,
		.help = "Longest time that a request is bypassed. The default is 2000.",
	},
	{
		.name = "look-ahead",
		.argument = "N",
		.id = OPTION_LOOK_AHEAD,
		.help = "Requests for which adapters are loaded ahead, 64 at most. The default is 10.",
	},
	{
		.name = "batch-adapters",
		.argument = "N",
		.id = OPTION_BATCH_ADAPTERS,
		.help = "Different ones in a batch, with limit. The default is 32.",
	},
	{
		.name = "cost",
		.argument = "NAME=X[,...]",
		.id = OPTION_COST,
		.help = "What things take: step (us), prefill (us a token), decode (us a request and step), adapter "
			"(us a MiB and step), load (us), disk, bus, save (GB/s). The default is "
			"step=6000,prefill=40,decode=30,adapter=0.35,load=200,disk=3,bus=25,save=10.",
	},
	{
		.name = "gamma",
		.argument = "RATE,CV",
		.id = OPTION_GAMMA,
		.help = "Requests arrive at random, at this rate per second, with this coefficient of variation "
			"between them (1: Poisson); a trace then says their tokens only.",
	},
	{
		.name = "requests",
		.argument = "N",
		.id = OPTION_REQUESTS,
		.help = "How many, with --gamma and without a trace. The default is 10000.",
	},
	{
		.name = "seed",
		.argument = "N",
		.id = OPTION_SEED,
		.help = "Random seed: the same seed gives the same result. The default is 1.",
	},
	{
		.name = "limit",
		.argument = "N",
		.id = OPTION_LIMIT,
		.help = "Read so many requests and no more.",
	},
	{
		.name = "chart",
		.argument = "FILE",
		.id = OPTION_CHART,
		.help = "Draw the times to the first token over time, as SVG.",
	},
	{
		.name = "output",
		.letter = 'o',
		.argument = "FORMAT",
		.id = OPTION_OUTPUT,
		.help = "Print a table for people, or json for programs. The default is table.",
	},
	{
		.name = "quiet",
		.letter = 'q',
		.id = OPTION_QUIET,
		.help = "No progress.",
	},
	{.name = NULL},
};

const struct verb verbs[] = {
	{
		.name = "malloc",
		.arguments = "TRACE",
		.summary = "replay stream-ordered allocations",
		.text = "Replays a trace of allocations (gpool-replay(1) has the format; - is standard input) with as "
			"many threads and streams as it has, and tells time, latencies, memory, driver calls and "
			"failures.",
		.options = malloc_options,
		.arguments_least = 1,
		.arguments_most = 1,
		.run = malloc_run,
	},
	{
		.name = "make",
		.arguments = "[FILE]",
		.summary = "make a random trace of allocations",
		.text = "Writes a trace for the verb malloc to FILE, or to standard output.",
		.options = make_options,
		.arguments_least = 0,
		.arguments_most = 1,
		.run = make_run,
	},
	{
		.name = "kv",
		.arguments = "TRACE",
		.summary = "replay prefixes of prompts through caches",
		.text = "Replays requests to a language model (gpool-replay(1) has the format; - is standard input) "
			"through caches of prefixes, and tells which share of their blocks was still there, for each "
			"size and policy; for that it needs no agent. With --engines it serves the requests, also "
			"those of an Azure trace (a file that ends in .csv), by engines on an agent of its own on host "
			"memory, in simulated time, and tells what they found, preempted, waited for and held.",
		.options = kv_options,
		.arguments_least = 1,
		.arguments_most = 1,
		.run = kv_run,
	},
	{
		.name = "make-kv",
		.arguments = "WORKLOAD [FILE]",
		.summary = "make a random trace of prefixes",
		.text = "Writes a trace for the verb kv to FILE, or to standard output. Workloads: loop (documents in "
			"turn, half again as many as fit), scan (few that come again, and many that do not), zipf (ten "
			"times what fits, some far more popular than others), shift (the same, with popularity moving "
			"on), recent (what came last comes again), chats (many chats, turn by turn, some livelier than "
			"others), system (one prompt that all share), agents (tasks of many quick steps).",
		.options = make_kv_options,
		.arguments_least = 1,
		.arguments_most = 2,
		.run = make_kv_run,
	},
	{
		.name = "waste",
		.arguments = "TRACE",
		.summary = "tell how much KV memory holds no tokens",
		.text = "Goes through requests to a language model (gpool-replay(1) has the format) step by step, and "
			"tells which share of the memory that they hold has no tokens in it, with blocks and with "
			"contiguous reservations. Needs no agent.",
		.options = waste_options,
		.arguments_least = 1,
		.arguments_most = 1,
		.run = waste_run,
	},
	{
		.name = "lora",
		.arguments = "[TRACE]",
		.summary = "serve requests that bring LoRA adapters",
		.text = "Serves requests to a language model (an Azure trace; gpool-replay(1) has the format), each "
			"with one of many LoRA adapters of which few fit into GPU memory, with several strategies side "
			"by side, and tells times to the first token and adapters loaded. Time, engine, disk and bus "
			"are simulated, by costs that are printed; who starts and which adapter goes is decided by the "
			"code that decides it in earnest. Needs no agent.",
		.options = lora_options,
		.arguments_least = 0,
		.arguments_most = 1,
		.run = lora_run,
	},
	{.name = NULL},
};

static void interrupt(int signal)
{
	interrupted = signal;
}

void interrupts_catch(void)
{
	/* a second one ends the process at once */
	struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESETHAND};
	struct sigaction before;

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	/* nohup has it ignored. */
	if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
		sigaction(SIGHUP, &action, NULL);
}

int main(int argc, char **argv)
{
	struct command command;
	int code = command_parse(argc, argv, &command);

	if (code)
		return code;
	if (command.values[OPTION_HELP]) {
		help_print(command.verb);
		return output_end("gpool-replay", CODE_OK);
	}
	if (command.values[OPTION_VERSION]) {
		printf("gpool-replay %s\n", gpool_version());
		return output_end("gpool-replay", CODE_OK);
	}
	return command.verb->run(&command);
}
