/*
 * prefix_make.c - see prefix_make.h. A block's number is computed from its document and its position, so only the state
 * of open chats is stored.
 */
#include "tools/lib/prefix_make.h"

#include "tools/lib/malloc_make.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
	STEP_MS = 250,        /* between consecutive requests */
	DOCUMENT_BLOCKS = 12, /* on average; 1 to twice the average */
	TURN_BLOCKS = 3,      /* added by a turn of a chat, on average; 1 to twice the average */
	CHAT_BLOCKS_MAX = 200,
	PLACE_BITS = 16,
	TAIL = 1 << 15, /* set in the position of the partial last block of a chat's prompt; each turn has another */
	ANSWER_TOKENS = 200,
	TOKENS = 512,
};

#define FRESH (UINT64_C(1) << 32) /* documents with smaller numbers can recur */

struct making {
	const struct prefix_recipe *recipe;
	FILE *out;
	uint64_t random;
	uint32_t request;
	uint64_t fresh; /* number of the next new document */
	struct chat *chats;
	double *shares; /* cumulative shares, by Zipf's law */
};

struct chat {
	uint64_t document;
	uint32_t blocks; /* full ones */
};

static uint32_t below(struct making *making, uint32_t count)
{
	return (uint32_t)(random_step(&making->random) % count);
}

static bool chance(struct making *making, uint32_t percent)
{
	return below(making, 100) < percent;
}

/* ---- writing ---- */

static void request_begin(struct making *making, uint32_t blocks)
{
	fprintf(making->out,
		"{\"timestamp\": %" PRIu64 ", \"input_length\": %" PRIu32 ", \"output_length\": %d, \"hash_ids\": [",
		(uint64_t)making->request * STEP_MS, blocks * TOKENS, ANSWER_TOKENS);
}

static void blocks_write(struct making *making, uint64_t document, uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < first + count; i++)
		fprintf(making->out, "%s%" PRIu64, i ? ", " : "", document << PLACE_BITS | i);
}

static void request_end(struct making *making)
{
	fputs("]}\n", making->out);
	making->request++;
}

/* The length of a document depends only on its number. */
static uint32_t document_blocks(uint64_t document)
{
	return 1 + (uint32_t)(random_step(&document) % (2 * DOCUMENT_BLOCKS - 1));
}

static void document_write(struct making *making, uint64_t document)
{
	uint32_t blocks = document_blocks(document);

	request_begin(making, blocks);
	blocks_write(making, document, 0, blocks);
	request_end(making);
}

/* ---- workloads ---- */

/* Request documents with 1.5 times the blocks of the cache, one after the other in a loop. */
static void loop_step(struct making *making)
{
	document_write(making, making->request % (making->recipe->blocks * 3 / 2 / DOCUMENT_BLOCKS));
}

/* Request recurring documents, which fill half of the cache, in one of four requests; otherwise new ones. */
static void scan_step(struct making *making)
{
	if (chance(making, 25))
		document_write(making, below(making, making->recipe->blocks / 2 / DOCUMENT_BLOCKS));
	else
		document_write(making, making->fresh++);
}

static uint32_t zipf_documents(const struct prefix_recipe *recipe)
{
	return recipe->blocks * 10 / DOCUMENT_BLOCKS;
}

static uint32_t zipf_any(struct making *making)
{
	uint32_t low = 0, high = zipf_documents(making->recipe) - 1;
	double at = (double)(random_step(&making->random) >> 11) / 9007199254740992.0 * making->shares[high];

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (making->shares[middle] < at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * Request a document from a set that has 10 times as many blocks as the cache. The frequency of the n-th document is
 * 1/n of that of the first.
 */
static void zipf_step(struct making *making)
{
	document_write(making, zipf_any(making));
}

/* Request documents as in zipf_step(), but change from time to time which ones are the most popular. */
static void shift_step(struct making *making)
{
	uint32_t documents = zipf_documents(making->recipe), phase = making->request / documents;

	document_write(making, (zipf_any(making) + (uint64_t)phase * (documents / 3)) % documents);
}

/* Request a new document in 3 of 10 requests, otherwise an earlier one: the more recent, the more likely. */
static void recent_step(struct making *making)
{
	uint32_t reach = making->recipe->blocks * 2 / DOCUMENT_BLOCKS;
	uint64_t back = below(making, reach);

	back = back * back / reach;
	if (chance(making, 30) || back >= making->fresh - FRESH)
		document_write(making, making->fresh++);
	else
		document_write(making, making->fresh - 1 - back);
}

/* Request the next turn of a chat, after one block that all chats share; some turns end the chat and begin another. */
static void chat_turn(struct making *making, struct chat *chat)
{
	if (chat->blocks == 0 || chance(making, 25) || chat->blocks > CHAT_BLOCKS_MAX)
		*chat = (struct chat){.document = making->fresh++, .blocks = document_blocks(making->fresh)};
	else
		chat->blocks += 1 + below(making, 2 * TURN_BLOCKS - 1);
	request_begin(making, chat->blocks + 2);
	fputs("0, ", making->out);
	blocks_write(making, chat->document, 0, chat->blocks);
	fprintf(making->out, ", %" PRIu64, chat->document << PLACE_BITS | TAIL | chat->blocks);
	request_end(making);
}

static uint32_t chats_count(const struct prefix_recipe *recipe)
{
	return recipe->blocks * 3 / DOCUMENT_BLOCKS;
}

/* Request chats with 3 times the blocks of the cache; half of the requests are for a tenth of the chats. */
static void chats_step(struct making *making)
{
	uint32_t count = chats_count(making->recipe), tenth = count / 10 + 1;

	chat_turn(making, &making->chats[chance(making, 50) ? below(making, tenth) : below(making, count)]);
}

/* Request a prompt of 20 blocks that all requests share, followed by blocks that never recur. */
static void system_step(struct making *making)
{
	uint32_t blocks = document_blocks(making->fresh);

	request_begin(making, 20 + blocks);
	blocks_write(making, 0, 0, 20);
	blocks_write(making, making->fresh++, 20, blocks);
	request_end(making);
}

/*
 * Request tasks of many quick steps. Each step extends the prompt of the one before. Eight tasks run at a time, each
 * after one of five prompts.
 */
static void agents_step(struct making *making)
{
	struct chat *chat = &making->chats[below(making, 8)];
	uint64_t prompt;

	if (chat->blocks == 0 || chance(making, 5) || chat->blocks > CHAT_BLOCKS_MAX)
		*chat = (struct chat){.document = making->fresh++, .blocks = 1};
	else
		chat->blocks += 1 + below(making, 2);
	prompt = 1 + chat->document % 5;
	request_begin(making, 10 + chat->blocks);
	blocks_write(making, prompt, 0, 10);
	blocks_write(making, chat->document, 10, chat->blocks);
	request_end(making);
}

struct prefix_workload {
	const char *name;
	void (*step)(struct making *making); /* writes one request */
};

static const struct prefix_workload workloads[] = {
	{"loop", loop_step},
	{"scan", scan_step},
	{"zipf", zipf_step},
	{"shift", shift_step},
	{"recent", recent_step},
	{"chats", chats_step},
	{"system", system_step},
	{"agents", agents_step},
};

const struct prefix_workload *prefix_workload_named(const char *name)
{
	for (size_t i = 0; i < sizeof(workloads) / sizeof(workloads[0]); i++)
		if (!strcmp(workloads[i].name, name))
			return &workloads[i];
	return NULL;
}

static void shares_make(struct making *making)
{
	double sum = 0;

	for (uint32_t i = 0; i < zipf_documents(making->recipe); i++) {
		sum += 1.0 / (i + 1);
		making->shares[i] = sum;
	}
}

int prefix_make(const struct prefix_recipe *recipe, FILE *out)
{
	struct making making = {.recipe = recipe, .out = out, .random = recipe->seed, .fresh = FRESH};
	int error = 0;

	if (!recipe->workload || recipe->requests == 0 || recipe->requests > PREFIX_MAKE_REQUESTS_MAX ||
		recipe->blocks < PREFIX_MAKE_BLOCKS_MIN || recipe->blocks > PREFIX_MAKE_BLOCKS_MAX)
		return -EINVAL;
	making.chats = calloc(chats_count(recipe) + 8, sizeof(*making.chats));
	making.shares = malloc(zipf_documents(recipe) * sizeof(*making.shares));
	if (making.chats && making.shares) {
		shares_make(&making);
		errno = 0; /* a failed write sets it */
		while (making.request < recipe->requests && !ferror(out))
			recipe->workload->step(&making);
		error = fflush(out) == 0 && !ferror(out) ? 0 : errno ? -errno : -EIO;
	} else {
		error = -ENOMEM;
	}
	free(making.chats);
	free(making.shares);
	return error;
}
