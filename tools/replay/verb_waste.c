/*
 * verb_waste.c - gpool-replay waste: the share of the memory for keys and values that contains no tokens.
 *
 * A request holds memory from its first generated token to its last, one step per token. Held and used memory are
 * summed over all steps of all requests, in tokens. The number of concurrent requests does not affect the share.
 */
#include "tools/replay/replay.h"

#include "tools/lib/json.h"
#include "tools/lib/request_trace.h"
#include "tools/lib/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct waste {
	struct number_list sizes; /* block sizes in tokens */
	uint64_t reserve;         /* reserved tokens per request; 0: the size of the longest one */
	struct trace trace;
	uint32_t longest;
	uint64_t context_tokens, generated_tokens;
	double used;           /* in tokens times steps, like the following */
	double held[LIST_MAX]; /* held in blocks */
	double held_reserved;  /* held with a fixed reservation per request */
	double held_foreseen;  /* held with a reservation of each request's final size */
};

static double share(double used, double held)
{
	return held > 0 ? 1 - used / held : 0;
}

/* Return the number of tokens for which the block manager allocates memory: `tokens`, in whole blocks. */
static uint64_t held_in_blocks(uint32_t block_tokens, uint32_t tokens)
{
	return ((uint64_t)tokens + block_tokens - 1) / block_tokens * block_tokens;
}

static void request_add(struct waste *waste, const struct trace_request *request)
{
	uint32_t most = request->context_tokens + request->generated_tokens;

	for (uint32_t tokens = request->context_tokens + 1; tokens <= most; tokens++) {
		waste->used += tokens;
		for (int i = 0; i < waste->sizes.count; i++)
			waste->held[i] += (double)held_in_blocks(waste->sizes.numbers[i], tokens);
	}
	waste->held_reserved += (double)waste->reserve * request->generated_tokens;
	waste->held_foreseen += (double)most * request->generated_tokens;
	waste->context_tokens += request->context_tokens;
	waste->generated_tokens += request->generated_tokens;
}

static int waste_count(const struct command *command, struct waste *waste)
{
	for (uint32_t i = 0; i < waste->trace.count; i++) {
		uint32_t tokens = waste->trace.requests[i].context_tokens + waste->trace.requests[i].generated_tokens;

		waste->longest = tokens > waste->longest ? tokens : waste->longest;
	}
	if (waste->reserve && waste->reserve < waste->longest) {
		option_refuse(command, OPTION_RESERVE, "is less than the longest request, %" PRIu32 " tokens",
			waste->longest);
		return CODE_USAGE;
	}
	waste->reserve = waste->reserve ? waste->reserve : waste->longest;
	for (uint32_t i = 0; i < waste->trace.count; i++)
		request_add(waste, &waste->trace.requests[i]);
	return CODE_OK;
}

static void waste_print(const struct command *command, const struct waste *waste)
{
	char a[TEXT_BYTES], b[TEXT_BYTES], c[TEXT_BYTES], d[TEXT_BYTES];

	printf("trace  %s: %s requests, %s tokens of context and %s generated, %s in the longest request\n\n",
		command->arguments[0], text_count(a, waste->trace.count), text_count(b, waste->context_tokens),
		text_count(c, waste->generated_tokens), text_count(d, waste->longest));
	printf("Share of the memory that holds no tokens, over all steps:\n\n");
	printf("%-52s %10.4f\n", "contiguous, the same size for each request",
		share(waste->used, waste->held_reserved));
	printf("%-52s %10.4f\n", "contiguous, the final size of each request",
		share(waste->used, waste->held_foreseen));
	for (int i = 0; i < waste->sizes.count; i++) {
		char name[TEXT_BYTES];

		snprintf(name, sizeof(name), "blocks of %" PRIu32 " tokens", waste->sizes.numbers[i]);
		printf("%-52s %10.4f\n", name, share(waste->used, waste->held[i]));
	}
}

static void waste_json(const struct command *command, const struct waste *waste)
{
	cJSON *object = json_document("replay-waste"), *list;

	json_text(object, "trace", command->arguments[0]);
	JSON_FIELDS(object, {"requests", waste->trace.count}, {"context_tokens", waste->context_tokens},
		{"generated_tokens", waste->generated_tokens}, {"longest_tokens", waste->longest},
		{"reserved_tokens", waste->reserve}, {"reserved_waste", share(waste->used, waste->held_reserved)},
		{"foreseen_waste", share(waste->used, waste->held_foreseen)});
	list = json_array(object, "blocks");
	for (int i = 0; i < waste->sizes.count; i++) {
		cJSON *item = json_item(list);

		JSON_FIELDS(
			item, {"block_tokens", waste->sizes.numbers[i]}, {"waste", share(waste->used, waste->held[i])});
	}
	json_write(stdout, object, false);
}

int waste_run(const struct command *command)
{
	char text[TRACE_ERROR_BYTES];
	struct waste waste = {0};
	int code;

	if (!command_block_tokens(command, OPTION_TOKENS, "8,16,32", &waste.sizes) ||
		!command_number(command, OPTION_RESERVE, 1, UINT32_MAX, 0, &waste.reserve))
		return CODE_USAGE;
	if (trace_load(command->arguments[0], &waste.trace, text)) {
		complain("%s", text);
		return CODE_USAGE;
	}
	code = waste_count(command, &waste);
	if (code == CODE_OK && command->json)
		waste_json(command, &waste);
	else if (code == CODE_OK)
		waste_print(command, &waste);
	trace_free(&waste.trace);
	return code;
}
