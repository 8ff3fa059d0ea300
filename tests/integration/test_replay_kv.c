/*
 * test_replay_kv.c - `gpool-replay kv` and `waste` on the excerpts of public traces that are shipped.
 *
 * Goal: the hit rates of the policies other than `adaptive` equal those of a slow model made of plain arrays and loops.
 * The rate of `adaptive` is between those of LRU and of the optimal policy. The bound of prefix_bound.py is above the
 * rates that it bounds. The chart is one complete file. Wrong options and traces are refused with the position.
 *
 * Method: the real program runs as a child process. Run it from the root of the source tree.
 *
 * Requirements: O5.
 */
#include "tests/integration/tool_process.h"

#include <stdbool.h>

enum { NODES_MAX = 10000, REQUESTS_MAX = 400, NOT = -1 };

static const char excerpt[] = "tools/replay/traces/mooncake_conversation.jsonl";
static char trace_path[64], chart_path[64];

/* ---- the slow model ---- */

static struct {
	int parents[NODES_MAX]; /* NOT: a root */
	double ids[NODES_MAX];
	int count;
	int blocks[NODES_MAX], block_count; /* node numbers, of all requests */
	int first[REQUESTS_MAX + 1];
	int requests;
	bool kept[NODES_MAX];
	int children[NODES_MAX]; /* that are kept */
	double rank[NODES_MAX];  /* the leaf with the lowest one is evicted */
	int touched[NODES_MAX], before[NODES_MAX], uses[NODES_MAX];
	double floor;
	/* S3-FIFO */
	bool main[NODES_MAX];
	int history; /* evicted nodes to remember for each node of the cache; NOT: all */
	int recent[NODES_MAX], left[NODES_MAX], small_count, small_left;
} slow;

static int slow_node(int parent, double id)
{
	int node = 0;

	while (node < slow.count && (slow.parents[node] != parent || slow.ids[node] != id))
		node++;
	if (node == slow.count) {
		assert_true(slow.count < NODES_MAX);
		slow.parents[slow.count] = parent;
		slow.ids[slow.count++] = id;
	}
	return node;
}

static void slow_read(void)
{
	char *line, *text = strdup(read_text(excerpt)), *rest = text;

	memset(&slow, 0, sizeof slow);
	slow.history = NOT;
	while ((line = strsep(&rest, "\n")) && *line) {
		cJSON *request = cJSON_Parse(line);
		const cJSON *ids = cJSON_GetObjectItem(request, "hash_ids"), *id;
		int node = NOT;

		assert_non_null(ids);
		assert_true(slow.requests < REQUESTS_MAX);
		cJSON_ArrayForEach(id, ids)
		{
			assert_true(slow.block_count < NODES_MAX);
			node = slow_node(node, id->valuedouble);
			slow.blocks[slow.block_count++] = node;
		}
		slow.first[++slow.requests] = slow.block_count;
		cJSON_Delete(request);
	}
	free(text);
}

/*
 * The searches through all nodes are compiled without sanitizers: they are most of the time of this program, and have
 * no other indices than those of nodes.
 */
#define SEARCH static __attribute__((no_sanitize("address,undefined")))

SEARCH int slow_needed(int node, int block)
{
	while (block < slow.block_count && slow.blocks[block] != node)
		block++;
	return block;
}

enum slow_policy { LRU, OPTIMUM, FIFO, LFU, LRU2, GDSF, S3FIFO, SLOW_POLICIES };

static const char *const slow_names[] = {"lru", "optimum", "fifo", "lfu", "lru2", "gdsf", "s3fifo"};

static void slow_keep(int node, bool keep)
{
	if (slow.parents[node] != NOT)
		slow.children[slow.parents[node]] += keep - slow.kept[node];
	slow.kept[node] = keep;
}

static void slow_use(enum slow_policy policy, int node, int block, int capacity)
{
	bool kept = slow.kept[node];

	slow_keep(node, true);
	slow.before[node] = slow.touched[node];
	slow.touched[node] = block + 1;
	slow.uses[node]++;
	if (policy == LRU)
		slow.rank[node] = block;
	else if (policy == OPTIMUM)
		slow.rank[node] = -slow_needed(node, block + 1);
	else if (policy == FIFO)
		slow.rank[node] = kept ? slow.rank[node] : block;
	else if (policy == LFU)
		slow.rank[node] = 1e6 * slow.uses[node] + block;
	else if (policy == LRU2)
		slow.rank[node] = slow.before[node] ? 1e6 * slow.before[node] : block;
	else if (policy == GDSF)
		slow.rank[node] = 1e6 * (slow.floor + slow.uses[node]) + block;
	else if (kept)
		slow.recent[node] = slow.recent[node] < 3 ? slow.recent[node] + 1 : 3;
	else {
		slow.main[node] = slow.left[node] && slow.small_left - slow.left[node] < capacity - capacity / 10;
		slow.small_count += !slow.main[node];
		slow.left[node] = slow.recent[node] = 0;
		slow.rank[node] = block;
	}
}

/* Return the kept node without a kept child that has the lowest rank, in one queue of S3-FIFO or in all. */
SEARCH int slow_lowest(bool all, bool main)
{
	int lowest = NOT;

	for (int node = 0; node < slow.count; node++)
		if (slow.kept[node] && !slow.children[node] && (all || slow.main[node] == main) &&
			(lowest == NOT || slow.rank[node] < slow.rank[lowest]))
			lowest = node;
	return lowest;
}

/* `rank` is above that of all nodes. */
static int slow_s3fifo(int capacity, double *rank)
{
	for (;;) {
		int small = slow_lowest(false, false), rest = slow_lowest(false, true),
		    node = small != NOT && (slow.small_count > capacity / 10 || rest == NOT) ? small : rest;

		if (slow.recent[node] == 0)
			return node;
		slow.recent[node] = node == small ? 0 : slow.recent[node] - 1;
		slow.small_count -= node == small;
		slow.main[node] = true;
		slow.rank[node] = *rank += 1e-6;
	}
}

/* Forget the evicted nodes that were used first, so that no more than permitted are remembered. */
SEARCH void slow_forget(int capacity)
{
	for (;;) {
		int count = 0, oldest = NOT;

		for (int node = 0; node < slow.count; node++) {
			if (slow.kept[node] || slow.uses[node] == 0)
				continue;
			count++;
			if (oldest == NOT || slow.touched[node] < slow.touched[oldest])
				oldest = node;
		}
		if (count <= slow.history * capacity)
			return;
		slow.touched[oldest] = slow.uses[oldest] = 0;
	}
}

static void slow_evict(enum slow_policy policy, int capacity, double *rank)
{
	int node = policy == S3FIFO ? slow_s3fifo(capacity, rank) : slow_lowest(true, false);
	double value = (int)(slow.rank[node] / 1e6);

	slow_keep(node, false);
	slow.floor = value > slow.floor ? value : slow.floor;
	if (slow.history != NOT)
		slow_forget(capacity);
	if (policy != S3FIFO || slow.main[node])
		return;
	slow.small_count--;
	slow.left[node] = ++slow.small_left;
}

static void slow_clear(void)
{
	memset(slow.kept, 0, sizeof slow.kept);
	memset(slow.children, 0, sizeof slow.children);
	memset(slow.touched, 0, sizeof slow.touched);
	memset(slow.uses, 0, sizeof slow.uses);
	memset(slow.left, 0, sizeof slow.left);
	slow.floor = slow.small_count = slow.small_left = 0;
}

static int slow_hits(int capacity, enum slow_policy policy)
{
	int hits = 0, kept = 0;

	slow_clear();
	for (int request = 0; request < slow.requests; request++) {
		bool found = true;
		double rank;

		for (int block = slow.first[request]; block < slow.first[request + 1]; block++) {
			int node = slow.blocks[block];

			found = found && slow.kept[node];
			hits += found;
			kept += !slow.kept[node];
			slow_use(policy, node, block, capacity);
		}
		rank = slow.first[request + 1] - 1;
		for (; kept > capacity; kept--)
			slow_evict(policy, capacity, &rank);
	}
	return hits;
}

/* ---- tests ---- */

static const cJSON *result_of(const cJSON *all, int capacity, const char *policy)
{
	const cJSON *result;

	cJSON_ArrayForEach(result, cJSON_GetObjectItem(all, "results"))
	{
		const char *name = cJSON_GetObjectItem(result, "policy")->valuestring;

		if (cJSON_GetObjectItem(result, "capacity_blocks")->valueint == capacity && !strcmp(name, policy))
			return result;
	}
	fail_msg("no result of %s with %d blocks", policy, capacity);
	return NULL;
}

static int hits_of(const cJSON *all, int capacity, const char *policy)
{
	const cJSON *result = result_of(all, capacity, policy);
	int hits = cJSON_GetObjectItem(result, "hits")->valueint;
	double rate = cJSON_GetObjectItem(result, "hit_rate")->valuedouble - (double)hits / slow.block_count;

	assert_int_equal(cJSON_GetObjectItem(result, "blocks")->valueint, slow.block_count);
	assert_true(rate > -1e-9 && rate < 1e-9);
	return hits;
}

static void test_same_as_the_slow_model(void **state)
{
	static const int capacities[] = {1, 60, 500, 1500, 6000};
	cJSON *all;

	(void)state;
	slow_read();
	assert_int_equal(RUN("kv", excerpt, "--blocks", "1,60,500,1500,6000", "--policy",
				 "s3fifo,adaptive,gdsf,lru2,lfu,fifo,optimum,lru", "-o", "json", "-q"),
		0);
	assert_string_equal(read_text(tool.error), "");
	all = cJSON_Parse(read_text(tool.out));
	assert_non_null(all);
	assert_string_equal(cJSON_GetObjectItem(all, "kind")->valuestring, "replay-kv");
	assert_int_equal(cJSON_GetObjectItem(cJSON_GetObjectItem(all, "trace"), "requests")->valueint, slow.requests);
	assert_int_equal(
		cJSON_GetObjectItem(cJSON_GetObjectItem(all, "trace"), "different_blocks")->valueint, slow.count);
	for (size_t i = 0; i < sizeof capacities / sizeof capacities[0]; i++) {
		int hits[SLOW_POLICIES];

		for (int policy = 0; policy < SLOW_POLICIES; policy++) {
			hits[policy] = slow_hits(capacities[i], policy);
			assert_int_equal(hits_of(all, capacities[i], slow_names[policy]), hits[policy]);
		}
		assert_in_range(hits_of(all, capacities[i], "adaptive"), hits[LRU] * 9 / 10, hits[OPTIMUM]);
	}
	cJSON_Delete(all);
}

static void test_history(void **state)
{
	static const int capacities[] = {60, 500};
	cJSON *all;

	(void)state;
	slow_read();
	slow.history = 2;
	assert_int_equal(RUN("kv", excerpt, "--blocks", "60,500", "--history", "2", "--policy", "fifo,lfu,lru2,gdsf",
				 "-o", "json", "-q"),
		0);
	all = cJSON_Parse(read_text(tool.out));
	assert_non_null(all);
	for (size_t i = 0; i < sizeof capacities / sizeof capacities[0]; i++)
		for (int policy = FIFO; policy <= GDSF; policy++)
			assert_int_equal(
				hits_of(all, capacities[i], slow_names[policy]), slow_hits(capacities[i], policy));
	cJSON_Delete(all);
}

#define ROUNDED 0.00005 /* prefix_bound.py prints four decimals */

/* Return the rate in the row of prefix_bound.py whose name begins with `name`, for the only size. */
static double bound_of(const char *text, const char *name)
{
	char begin[32];
	const char *row;

	snprintf(begin, sizeof begin, "\n%s", name);
	row = strstr(text, begin);
	assert_non_null(row);
	return strtod(row + 21, NULL) + 0.00005; /* the name has 20 columns, and the rate is rounded */
}

/* With finer classes the bound rises. No policy exceeds the one whose classes know the future. */
static void test_bound(void **state)
{
	char text[4096];
	FILE *script =
		popen("python3 tools/replay/prefix_bound.py tools/replay/traces/mooncake_conversation.jsonl 500", "r");
	size_t bytes;
	double one, uses, place, perfect;

	(void)state;
	assert_non_null(script);
	bytes = fread(text, 1, sizeof text - 1, script);
	text[bytes] = '\0';
	assert_int_equal(pclose(script), 0);
	one = bound_of(text, "one, 1 ");
	uses = bound_of(text, "uses, ");
	place = bound_of(text, "place, ");
	perfect = bound_of(text, "perfect");
	slow_read();
	assert_true(one <= uses && uses <= place && place < perfect && perfect < 1);
	assert_true(one + ROUNDED >= (double)slow_hits(500, LRU) / slow.block_count);
	assert_true(perfect + ROUNDED >= (double)slow_hits(500, OPTIMUM) / slow.block_count);
	assert_true(bound_of(text, "place, learned") <= perfect);
}

static void test_table_and_chart(void **state)
{
	const char *text;
	int lines = 0;

	(void)state;
	assert_int_equal(
		RUN("kv", excerpt, "--blocks", "500,1500", "--policy", "optimum,lru", "--chart", chart_path), 0);
	text = read_text(tool.out);
	assert_non_null(strstr(text, "300 requests"));
	assert_non_null(strstr(text, "    blocks    optimum        lru\n"));
	assert_null(strstr(text, "adaptive"));
	text = read_text(chart_path);
	assert_int_equal(strncmp(text, "<svg ", 5), 0);
	assert_string_equal(text + strlen(text) - 7, "</svg>\n");
	while ((text = strstr(text, "<path class=\"line "))) {
		text++;
		lines++;
	}
	assert_int_equal(lines, 4);
}

/* On every workload `adaptive` finds at least 99 % of what LRU finds, and far more where LRU is known to fail. */
static void test_workloads(void **state)
{
	static const struct {
		const char *name;
		double gain; /* minimum gain of adaptive over LRU */
	} workloads[] = {{"loop", 0.3}, {"scan", 0.1}, {"zipf", 0.02}, {"shift", -0.01}, {"recent", -0.01},
		{"chats", 0.005}, {"system", 0}, {"agents", -0.01}};

	(void)state;
	for (size_t i = 0; i < sizeof workloads / sizeof workloads[0]; i++) {
		double gain;
		cJSON *all;

		assert_int_equal(
			RUN("make-kv", workloads[i].name, trace_path, "--blocks", "1000", "--requests", "8000"), 0);
		assert_int_equal(RUN("kv", trace_path, "--blocks", "700", "-o", "json", "-q"), 0);
		all = cJSON_Parse(read_text(tool.out));
		assert_non_null(all);
		gain = cJSON_GetObjectItem(result_of(all, 700, "adaptive"), "hit_rate")->valuedouble -
			cJSON_GetObjectItem(result_of(all, 700, "lru"), "hit_rate")->valuedouble;
		if (gain < workloads[i].gain)
			fail_msg("%s: adaptive is %.4f better than LRU, and should be %.4f", workloads[i].name, gain,
				workloads[i].gain);
		cJSON_Delete(all);
	}
}

static double rate_of(const cJSON *all, int capacity, const char *policy)
{
	return cJSON_GetObjectItem(result_of(all, capacity, policy), "hit_rate")->valuedouble;
}

/*
 * If the popularity of documents never changes, LFU is the best policy. `adaptive` comes close to it only if it orders
 * blocks by their number of uses. In the order by density, it finds 0.015 and 0.010 less.
 */
static void test_constant_popularity(void **state)
{
	cJSON *all;

	(void)state;
	assert_int_equal(RUN("make-kv", "zipf", trace_path, "--blocks", "1000", "--requests", "8000"), 0);
	assert_int_equal(
		RUN("kv", trace_path, "--blocks", "250,700", "--policy", "adaptive,lfu", "-o", "json", "-q"), 0);
	all = cJSON_Parse(read_text(tool.out));
	assert_true(rate_of(all, 250, "adaptive") > rate_of(all, 250, "lfu") - 0.008);
	assert_true(rate_of(all, 700, "adaptive") > rate_of(all, 700, "lfu") - 0.005);
	cJSON_Delete(all);
}

/* If the popularity of documents changes, LFU fails, and `adaptive` must return from the order by uses. */
static void test_changing_popularity(void **state)
{
	cJSON *all;

	(void)state;
	assert_int_equal(RUN("make-kv", "shift", trace_path, "--blocks", "1000", "--requests", "8000"), 0);
	assert_int_equal(
		RUN("kv", trace_path, "--blocks", "250,700", "--policy", "adaptive,lfu,lru2", "-o", "json", "-q"), 0);
	all = cJSON_Parse(read_text(tool.out));
	assert_true(rate_of(all, 250, "adaptive") > rate_of(all, 250, "lru2"));
	assert_true(rate_of(all, 700, "adaptive") > rate_of(all, 700, "lru2") - 0.008);
	assert_true(rate_of(all, 250, "adaptive") > rate_of(all, 250, "lfu") + 0.09);
	assert_true(rate_of(all, 700, "adaptive") > rate_of(all, 700, "lfu") + 0.03);
	cJSON_Delete(all);
}

static void test_makes_the_same_again(void **state)
{
	char *first;

	(void)state;
	assert_int_equal(RUN("make-kv", "chats", "--requests", "500", "--seed", "7"), 0);
	first = strdup(read_text(tool.out));
	assert_int_equal(RUN("make-kv", "chats", "--requests", "500", "--seed", "7"), 0);
	assert_string_equal(read_text(tool.out), first);
	assert_int_equal(RUN("make-kv", "chats", "--requests", "500", "--seed", "8"), 0);
	assert_string_not_equal(read_text(tool.out), first);
	free(first);
}

/* Allocate for one request at a time, and for one token at a time. */
static void test_waste(void **state)
{
	static const char requests[] = "tools/demo/traces/azure_conv.csv";
	char *text = strdup(read_text(requests)), *rest = text, *line = strsep(&rest, "\n");
	double used = 0, held = 0;
	const cJSON *blocks;
	cJSON *all;

	(void)state;
	while ((line = strsep(&rest, "\n")) && *line) {
		int context, generated;

		assert_int_equal(sscanf(strchr(line, ',') + 1, "%d,%d", &context, &generated), 2);
		for (int i = 1; i <= generated; i++) {
			used += context + i;
			held += 16 * ((context + i + 15) / 16);
		}
	}
	free(text);
	assert_int_equal(RUN("waste", requests, "--tokens", "1,16", "-o", "json"), 0);
	all = cJSON_Parse(read_text(tool.out));
	assert_non_null(all);
	assert_int_equal(cJSON_GetObjectItem(all, "requests")->valueint, 448);
	blocks = cJSON_GetObjectItem(all, "blocks");
	assert_true(cJSON_GetObjectItem(cJSON_GetArrayItem(blocks, 0), "waste")->valuedouble == 0);
	assert_float_equal(
		cJSON_GetObjectItem(cJSON_GetArrayItem(blocks, 1), "waste")->valuedouble, 1 - used / held, 1e-6);
	assert_true(1 - used / held <= 0.04);
	assert_true(cJSON_GetObjectItem(all, "reserved_waste")->valuedouble >
		cJSON_GetObjectItem(all, "foreseen_waste")->valuedouble);
	cJSON_Delete(all);
	assert_int_equal(RUN("waste", requests), 0);
	assert_non_null(strstr(read_text(tool.out), "blocks of 32 tokens"));
}

static void test_limit(void **state)
{
	(void)state;
	assert_int_equal(RUN("kv", excerpt, "--limit", "7", "--blocks", "10"), 0);
	assert_non_null(strstr(read_text(tool.out), ": 7 requests"));
}

static void test_refuses(void **state)
{
	static const struct {
		const char *arguments[5];
		const char *words;
	} bad[] = {
		{{"kv"}, "'kv' needs TRACE"},
		{{"kv", "--blocks", "0", excerpt}, "--blocks '0' is not a list of numbers"},
		{{"kv", "--blocks", "5,", excerpt}, "--blocks '5,' is not"},
		{{"kv", "--blocks", "99999999999999999999999", excerpt}, "is not a list of numbers"},
		{{"kv", "--blocks", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", excerpt}, "more than 16"},
		{{"kv", "--history", "0", excerpt}, "--history '0' is not a number from 1 to 1000"},
		{{"kv", "--policy", "clock", excerpt}, "contains the unknown name"},
		{{"kv", "--policy", "lru,lru", excerpt}, "twice"},
		{{"kv", "--limit", "0", excerpt}, "--limit '0' is not a number from 1"},
		{{"kv", "/nonexistent"}, "cannot open trace '/nonexistent'"},
		{{"waste", excerpt}, "the name before .csv must be"},
		{{"waste", "--tokens", "24", "-"}, "--tokens '24' is not a list of powers of two"},
		{{"waste", "--tokens", "16,", "-"}, "--tokens '16,' is not a list of numbers"},
		{{"waste", "--reserve", "100", "tools/demo/traces/azure_conv.csv"},
			"--reserve '100' is less than the longest request"},
		{{"make-kv"}, "'make-kv' needs WORKLOAD"},
		{{"make-kv", "storm"}, "unknown workload 'storm'"},
		{{"make-kv", "loop", "--blocks", "99"}, "--blocks '99' is not a number from 100"},
		{{"make-kv", "loop", "--requests", "0"}, "--requests '0' is not"},
		{{"kv", trace_path}, "trace.jsonl:2: the member 'hash_ids' is missing"},
	};

	(void)state;
	write_text(trace_path,
		"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[0]}\n"
		"{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n");
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		const char *arguments[6] = {NULL};

		memcpy(arguments, bad[i].arguments, sizeof bad[i].arguments);
		if (tool_run(arguments) != 2 || !strstr(read_text(tool.error), bad[i].words))
			fail_msg("case %zu: not refused with '%s' but: %s", i, bad[i].words, read_text(tool.error));
	}
	assert_int_equal(RUN("kv", excerpt, "--chart", "/nonexistent/c.svg"), 1);
	assert_non_null(strstr(read_text(tool.error), "cannot draw '/nonexistent/c.svg'"));
	assert_int_equal(RUN("make-kv", "loop", "/dev/full"), 1);
	assert_non_null(strstr(read_text(tool.error), "cannot write '/dev/full'"));
}

/* ---- traces without an end ---- */

/* Start the tool with a FIFO as its trace. Return the FIFO's other end as soon as the tool has opened it. */
static int fifo_start(const char *verb, const char *path, pid_t *child)
{
	const char *const arguments[] = {verb, path, NULL};
	int fd;

	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	*child = tool_start(arguments, -1);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	unlink(path);
	return fd;
}

static void test_an_endless_line_is_refused(void **state)
{
	static const char *const verbs[] = {"waste", "lora", "kv", "malloc"};
	static char line[1 << 16];

	(void)state;
	signal(SIGPIPE, SIG_IGN);
	memset(line, 'x', sizeof line);
	for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
		char path[64];
		pid_t child;
		int fd = fifo_start(verbs[i], tool_path(path, "endless.csv"), &child), blocks = 0;

		while (write(fd, line, sizeof line) > 0)
			assert_true(++blocks < 1024); /* the tool reads at most 64 MiB of one line */
		close(fd);
		assert_int_equal(tool_wait(child), 2);
		assert_non_null(strstr(read_text(tool.error), "endless.csv:1: the line is longer than "));
	}
}

static void test_a_signal_ends_the_reading_of_a_trace(void **state)
{
	static const char *const verbs[] = {"waste", "lora", "kv", "malloc"};

	(void)state;
	for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
		char path[64];
		int status, fd;
		pid_t child;

		fd = fifo_start(verbs[i], tool_path(path, "silent.csv"), &child);
		assert_int_equal(kill(child, SIGTERM), 0);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
		close(fd);
	}
}

static int prepare(void **state)
{
	(void)state;
	if (tool_prepare("gpool-replay", "GPOOL_REPLAY"))
		return -1;
	tool_path(trace_path, "trace.jsonl");
	tool_path(chart_path, "chart.svg");
	return 0;
}

static int clean_up(void **state)
{
	(void)state;
	return tool_clean_up();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_as_the_slow_model),
		cmocka_unit_test(test_history),
		cmocka_unit_test(test_bound),
		cmocka_unit_test(test_table_and_chart),
		cmocka_unit_test(test_workloads),
		cmocka_unit_test(test_constant_popularity),
		cmocka_unit_test(test_changing_popularity),
		cmocka_unit_test(test_makes_the_same_again),
		cmocka_unit_test(test_waste),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_an_endless_line_is_refused),
		cmocka_unit_test(test_a_signal_ends_the_reading_of_a_trace),
	};

	return cmocka_run_group_tests(tests, prepare, clean_up);
}
