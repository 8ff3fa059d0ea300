/*
 * peft_config.c - what adapter_config.json says.
 */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "client/lora/format/peft_config.h"

#include "client/lora/format/file_at.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <pcre2.h>

struct peft_pattern {
	pcre2_code *code;
	double value;
};

/* ---- what must not be ---- */

static bool is_off(const cJSON *value)
{
	return !value || cJSON_IsNull(value) || cJSON_IsFalse(value) ||
		((cJSON_IsArray(value) || cJSON_IsObject(value)) && !value->child);
}

/* Each makes of the adapter something else than A and B alone. */
static const struct {
	const char *key, *why;
} refused[] = {
	{"use_dora", "DoRA scales the columns of the base weights, which needs these; merge it, or train without it"},
	{"modules_to_save", "it has whole modules beside A and B; only adapters without modules_to_save can be shared"},
	{"lora_bias", "it has biases; train with lora_bias = false"},
	{"use_qalora", "QALoRA groups the inputs of A, which these kernels do not"},
	{"trainable_token_indices", "it has embeddings beside A and B"},
	{"layer_replication", "it replicates layers of the base model"},
	{"target_parameters", "it adapts parameters that are no modules"},
	{"alora_invocation_tokens", "activated LoRA applies to a part of the tokens only"},
	{"arrow_config", "it routes between adapters"},
};

/* How weights were begun does not matter afterwards, but for these, which change the base weights. */
static const char *const base_changers[] = {"pissa", "olora", "corda", "loftq"};

static int begin_check(const cJSON *value, struct reason *reason)
{
	if (!cJSON_IsString(value))
		return 0;
	for (size_t i = 0; i < sizeof(base_changers) / sizeof(*base_changers); i++)
		if (strncasecmp(value->valuestring, base_changers[i], strlen(base_changers[i])) == 0)
			return refuse(reason,
				"adapter_config.json: init_lora_weights is \"%s\", which changes the base weights; "
				"convert it to plain LoRA",
				base_changers[i]);
	return 0;
}

static int kind_check(const cJSON *root, struct reason *reason)
{
	const cJSON *type = cJSON_GetObjectItemCaseSensitive(root, "peft_type"),
		    *bias = cJSON_GetObjectItemCaseSensitive(root, "bias");
	char name[REASON_NAME_BYTES];

	if (!cJSON_IsString(type))
		return refuse(reason, "adapter_config.json: no peft_type");
	if (strcmp(type->valuestring, "LORA") != 0)
		return refuse(reason, "adapter_config.json: peft_type is '%s', and only LORA is taken",
			refuse_name(type->valuestring, name));
	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++)
		if (!is_off(cJSON_GetObjectItemCaseSensitive(root, refused[i].key)))
			return refuse(reason, "adapter_config.json: %s: %s", refused[i].key, refused[i].why);
	if (!is_off(bias) && !(cJSON_IsString(bias) && strcmp(bias->valuestring, "none") == 0))
		return refuse(reason, "adapter_config.json: bias: it has biases; train with bias = \"none\"");
	return begin_check(cJSON_GetObjectItemCaseSensitive(root, "init_lora_weights"), reason);
}

/* Two readers may take different ones of two. */
static int keys_check(const cJSON *object, struct reason *reason)
{
	const cJSON *one, *other;
	char name[REASON_NAME_BYTES];

	cJSON_ArrayForEach(one, object) for (other = one->next; other;
					     other = other->next) if (strcmp(one->string, other->string) ==
		0) return refuse(reason, "adapter_config.json: key '%s' comes twice", refuse_name(one->string, name));
	return 0;
}

/* ---- values ---- */

enum { KEYS_MAX = 4096 };

static int number_of(const cJSON *value, const char *key, bool positive, double *number, struct reason *reason)
{
	char name[REASON_NAME_BYTES];

	if (!cJSON_IsNumber(value) || !isfinite(value->valuedouble) || (positive && value->valuedouble <= 0))
		return refuse(reason, "adapter_config.json: '%s' is no %snumber", refuse_name(key, name),
			positive ? "positive " : "");
	*number = value->valuedouble;
	return 0;
}

static int pattern_compile(const char *key, struct peft_pattern *pattern, struct reason *reason)
{
	char text[PEFT_PATTERN_BYTES_MAX + 16], name[REASON_NAME_BYTES];
	PCRE2_SIZE at;
	int error;

	refuse_name(key, name);
	if (strlen(key) > PEFT_PATTERN_BYTES_MAX)
		return refuse(reason, "adapter_config.json: the expression '%s' has more than %d bytes", name,
			PEFT_PATTERN_BYTES_MAX);
	/* As PEFT puts it: the whole path, or what stands behind a dot in it. */
	snprintf(text, sizeof(text), "(.*\\.)?(%s)$", key);
	pattern->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
		PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &at, NULL);
	if (!pattern->code)
		return refuse(reason, "adapter_config.json: '%s' is no regular expression", name);
	return 0;
}

static int patterns_read(
	const cJSON *root, const char *key, bool positive, struct peft_patterns *patterns, struct reason *reason)
{
	const cJSON *object = cJSON_GetObjectItemCaseSensitive(root, key), *one;
	uint32_t count = (uint32_t)cJSON_GetArraySize(object);
	int error = 0;

	if (!object || cJSON_IsNull(object) || (cJSON_IsObject(object) && !count))
		return 0;
	if (!cJSON_IsObject(object) || count > PEFT_PATTERNS_MAX)
		return refuse(reason, "adapter_config.json: %s is no object of at most %d expressions", key,
			PEFT_PATTERNS_MAX);
	error = keys_check(object, reason);
	if (error)
		return error;
	patterns->patterns = calloc(count, sizeof(*patterns->patterns));
	if (!patterns->patterns)
		return -ENOMEM;
	cJSON_ArrayForEach(one, object)
	{
		struct peft_pattern *pattern = &patterns->patterns[patterns->count++];

		error = pattern_compile(one->string, pattern, reason);
		if (!error)
			error = number_of(one, one->string, positive, &pattern->value, reason);
		if (error)
			return error;
	}
	return 0;
}

static int bool_of(const cJSON *root, const char *key, bool *value, struct reason *reason)
{
	const cJSON *found = cJSON_GetObjectItemCaseSensitive(root, key);

	if (found && !cJSON_IsNull(found) && !cJSON_IsBool(found))
		return refuse(reason, "adapter_config.json: %s is neither true nor false", key);
	*value = cJSON_IsTrue(found);
	return 0;
}

static int config_fill(const cJSON *root, struct peft_config *config, struct reason *reason)
{
	const cJSON *rank = cJSON_GetObjectItemCaseSensitive(root, "r"),
		    *alpha = cJSON_GetObjectItemCaseSensitive(root, "lora_alpha");
	int error;

	if (!cJSON_IsObject(root) || cJSON_GetArraySize(root) > KEYS_MAX)
		return refuse(reason, "adapter_config.json: it is no object of at most %d keys", KEYS_MAX);
	error = keys_check(root, reason);
	if (!error)
		error = kind_check(root, reason);
	/* PEFT's own defaults. */
	config->rank = config->alpha = 8;
	if (!error && rank)
		error = number_of(rank, "r", true, &config->rank, reason);
	if (!error && alpha)
		error = number_of(alpha, "lora_alpha", false, &config->alpha, reason);
	if (!error)
		error = bool_of(root, "use_rslora", &config->rslora, reason);
	if (!error)
		error = patterns_read(root, "rank_pattern", true, &config->ranks, reason);
	if (!error)
		error = patterns_read(root, "alpha_pattern", false, &config->alphas, reason);
	return error;
}

int peft_config_parse(const char *text, uint64_t bytes, struct peft_config *config, struct reason *reason)
{
	struct peft_config made = {0};
	const char *end = text;
	cJSON *root;
	int error;

	if (bytes > PEFT_CONFIG_BYTES_MAX)
		return refuse(reason, "adapter_config.json: %" PRIu64 " bytes, more than the limit of %d", bytes,
			PEFT_CONFIG_BYTES_MAX);
	root = cJSON_ParseWithLengthOpts(text, bytes, &end, false);
	while (root && end < text + bytes && memchr(" \t\r\n", *end, 4))
		end++;
	if (!root || end != text + bytes) {
		cJSON_Delete(root);
		return refuse(reason, "adapter_config.json: no JSON at byte %td", end - text);
	}
	error = config_fill(root, &made, reason);
	cJSON_Delete(root);
	if (error)
		peft_config_free(&made);
	else
		*config = made;
	return error;
}

int peft_config_size(int fd, uint64_t *bytes, struct reason *reason)
{
	int error = file_size(fd, "adapter_config.json", bytes, reason);

	if (!error && *bytes > PEFT_CONFIG_BYTES_MAX)
		error = refuse(reason, "adapter_config.json has %" PRIu64 " bytes, more than the limit of %d", *bytes,
			PEFT_CONFIG_BYTES_MAX);
	return error;
}

int peft_config_read(int fd, struct peft_config *config, struct reason *reason)
{
	uint64_t bytes;
	int error = peft_config_size(fd, &bytes, reason);
	char *text;

	if (error)
		return error;
	text = malloc(bytes + 1);
	if (!text)
		return -ENOMEM;
	error = file_read_at(fd, text, bytes, 0);
	if (error)
		refuse(reason, "adapter_config.json cannot be read: a disk failed, or it is being changed");
	else
		error = peft_config_parse(text, bytes, config, reason);
	free(text);
	return error;
}

static void patterns_free(struct peft_patterns *patterns)
{
	for (uint32_t i = 0; i < patterns->count; i++)
		pcre2_code_free(patterns->patterns[i].code);
	free(patterns->patterns);
	*patterns = (struct peft_patterns){0};
}

void peft_config_free(struct peft_config *config)
{
	patterns_free(&config->ranks);
	patterns_free(&config->alphas);
}

/* ---- of one module ---- */

/* 1: it fits, 0: it does not, -EINVAL, -ENOMEM. */
static int pattern_fits(
	const struct peft_pattern *pattern, const char *path, pcre2_match_data *data, pcre2_match_context *context)
{
	int found = pcre2_match(pattern->code, (PCRE2_SPTR)path, PCRE2_ZERO_TERMINATED, 0, 0, data, context);

	if (found >= 0)
		return 1;
	return found == PCRE2_ERROR_NOMATCH ? 0 : found == PCRE2_ERROR_NOMEMORY ? -ENOMEM : -EINVAL;
}

static int first_fit(const struct peft_patterns *patterns, const char *path, double *value, struct reason *reason)
{
	pcre2_match_context *context;
	pcre2_match_data *data;
	char name[REASON_NAME_BYTES];
	int found = 0;

	if (!patterns->count)
		return 0;
	context = pcre2_match_context_create(NULL);
	data = pcre2_match_data_create(1, NULL);
	if (!context || !data)
		found = -ENOMEM;
	else
		pcre2_set_match_limit(context, PEFT_PATTERN_STEPS);
	for (uint32_t i = 0; !found && i < patterns->count; i++) {
		found = pattern_fits(&patterns->patterns[i], path, data, context);
		if (found == 1)
			*value = patterns->patterns[i].value;
	}
	pcre2_match_data_free(data);
	pcre2_match_context_free(context);
	if (found == -EINVAL)
		return refuse(reason, "adapter_config.json: an expression needs more than %d steps on module '%s'",
			PEFT_PATTERN_STEPS, refuse_name(path, name));
	return found < 0 ? found : 0;
}

int peft_config_rank(const struct peft_config *config, const char *path, double *value, struct reason *reason)
{
	*value = config->rank;
	return first_fit(&config->ranks, path, value, reason);
}

int peft_config_alpha(const struct peft_config *config, const char *path, double *value, struct reason *reason)
{
	*value = config->alpha;
	return first_fit(&config->alphas, path, value, reason);
}
