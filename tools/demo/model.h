/*
 * model.h - the dimensions of a language model that determine its KV bytes per token.
 *
 * token_bytes = 2 (K and V) * layers * kv_heads * head_dim * bytes of the element type. A page holds whole tokens; the
 * remaining bytes at its end are written and verified, too.
 */
#ifndef GPOOL_DEMO_MODEL_H
#define GPOOL_DEMO_MODEL_H

#include <stddef.h>
#include <stdint.h>

enum { MODEL_NAME_BYTES = 32, MODEL_ERROR_BYTES = 256 };

struct model {
	char name[MODEL_NAME_BYTES]; /* its name in the table, or "own" */
	char dtype[8];
	uint32_t layers;
	uint32_t kv_heads; /* on one GPU */
	uint32_t head_dim;
	uint32_t dtype_bytes;
	uint64_t token_bytes;
};

/* MODEL_DEFAULT - the shape of a real model, small enough that both full traces are written and verified in minutes. */
#define MODEL_DEFAULT "qwen2.5-0.5b"

/*
 * model_parse() - parse "llama-8b", "llama-8b,dtype=int8" or "layers=2,kv_heads=2,head_dim=64,dtype=fp16".
 *
 * @error: [MODEL_ERROR_BYTES] receives the error
 *
 * Return: 0 or -EINVAL. *model changes only on success.
 */
int model_parse(const char *text, struct model *model, char *error);

/* model_tokens_per_page() - return the number of whole tokens in a page; 0: a token is larger than a page. */
uint32_t model_tokens_per_page(const struct model *model, uint64_t page_bytes);

/* model_pages() - return the number of pages for a number of tokens. */
uint32_t model_pages(uint64_t tokens, uint32_t tokens_per_page);

/* model_list() - return the i-th model of the table; NULL after the last. */
const struct model *model_list(size_t i);

#endif
