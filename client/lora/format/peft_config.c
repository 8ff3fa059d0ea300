#define PCRE2_CODE_UNIT_WIDTH 8

#include "client/lora/format/peft_config.h"

#include "client/lora/format/file_at.h"
#include "client/lora/format/json_object.h"
#include "shm/plural.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pcre2.h>

struct peft_pattern {
	pcre2_code *code;
	double value;
};

/* ---- refused keys ---- */

static bool is_off(const struct json_value *value)
{
	return !value || value->kind == JSON_NULL || value->kind == JSON_FALSE ||
		((value->kind == JSON_ARRAY || value->kind == JSON_OBJECT) && !value->children);
}

static bool is_text(const struct json_value *value, const char *text)
{
	return value && value->kind == JSON_STRING && value->bytes == strlen(text) && !strcmp(value->text, text);
}

/* Keys of adapters that need more than A and B. */
static const struct {
	const char *key, *why;
} refused[] = {
	{"use_dora",
		"DoRA scales the columns of the base weights; merge the adapter into the model, or train without DoRA"},
	{"modules_to_save",
		"the adapter contains complete modules in addition to A and B; only adapters without modules_to_save "
		"are supported"},
	{"lora_bias", "the adapter has biases; train with lora_bias = false"},
	{"use_qalora", "QALoRA groups the inputs of A, which the kernels do not support"},
	{"trainable_token_indices", "the adapter contains embeddings in addition to A and B"},
	{"layer_replication", "the adapter replicates layers of the base model"},
	{"target_parameters", "the adapter changes parameters that are not modules"},
	{"alora_invocation_tokens", "activated LoRA applies to some of the tokens only"},
	{"arrow_config", "Arrow routes between adapters"},
};

/* Initializations that change the base weights. Other initializations do not affect the trained adapter. */
static const char *const base_changers[] = {"pissa", "olora", "corda", "loftq"};

static int begin_check(const struct json_value *value, struct reason *reason)
{
	if (!value || value->kind != JSON_STRING)
		return 0;
	for (size_t i = 0; i < sizeof(base_changers) / sizeof(*base_changers); i++)
		if (strncasecmp(value->text, base_changers[i], strlen(base_changers[i])) == 0)
			return refuse(reason,
				"adapter_config.json: init_lora_weights is \"%s\", which changes the base weights; "
				"convert it to plain LoRA",
				base_changers[i]);
	return 0;
}

static int kind_check(const struct json_object *root, struct reason *reason)
{
	const struct json_value *type = json_find(root, "peft_type"), *bias = json_find(root, "bias");
	char name[REASON_NAME_BYTES];

	if (!type || type->kind != JSON_STRING)
		return refuse(reason, "adapter_config.json: peft_type is missing or not a string");
	if (!is_text(type, "LORA"))
		return refuse(reason, "adapter_config.json: peft_type is '%s'; only LORA is supported",
			refuse_name(type->text, name));
	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++)
		if (!is_off(json_find(root, refused[i].key)))
			return refuse(reason, "adapter_config.json: %s: %s", refused[i].key, refused[i].why);
	if (!is_off(bias) && !is_text(bias, "none"))
		return refuse(reason, "adapter_config.json: bias: the adapter has biases; train with bias = \"none\"");
	return begin_check(json_find(root, "init_lora_weights"), reason);
}

/* Refuse keys that occur twice, because two readers could use different ones. */
static int keys_check(const struct json_object *root, const struct json_value *first, struct reason *reason)
{
	char name[REASON_NAME_BYTES];

	for (const struct json_value *one = first; one; one = json_next(root, one))
		for (const struct json_value *other = json_next(root, one); other; other = json_next(root, other))
			if (!strcmp(one->key, other->key))
				return refuse(
					reason, "adapter_config.json: duplicate key '%s'", refuse_name(one->key, name));
	return 0;
}

/* ---- values ---- */

enum { KEYS_MAX = 4096 };

static int number_of(const struct json_value *value, bool positive, double *number, struct reason *reason)
{
	char name[REASON_NAME_BYTES];

	if (value->kind == JSON_NUMBER && positive && value->number <= 0)
		return refuse(reason, "adapter_config.json: '%s' is %g; it must be a positive number",
			refuse_name(value->key, name), value->number);
	if (value->kind != JSON_NUMBER || !isfinite(value->number))
		return refuse(reason, "adapter_config.json: '%s' is not a %snumber", refuse_name(value->key, name),
			positive ? "positive " : "");
	*number = value->number;
	return 0;
}

static int pattern_compile(const char *key, struct peft_pattern *pattern, struct reason *reason)
{
	char text[PEFT_PATTERN_BYTES_MAX + 16], name[REASON_NAME_BYTES];
	int error = PCRE2_ERROR_HEAP_FAILED;
	PCRE2_SIZE at;

	refuse_name(key, name);
	if (strlen(key) > PEFT_PATTERN_BYTES_MAX)
		return refuse(reason, "adapter_config.json: expression '%s' is longer than %d bytes", name,
			PEFT_PATTERN_BYTES_MAX);
	/* PEFT matches the complete path, or the part of it after a dot. */
	snprintf(text, sizeof(text), "(.*\\.)?(%s)$", key);
	pattern->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
		PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &at, NULL);
	if (pattern->code)
		return 0;
	return error == PCRE2_ERROR_HEAP_FAILED
		? -ENOMEM
		: refuse(reason, "adapter_config.json: '%s' is not a valid regular expression", name);
}

static int patterns_read(const struct json_object *root, const char *key, bool positive, struct peft_patterns *patterns,
	struct reason *reason)
{
	const struct json_value *object = json_find(root, key), *one;
	int error = 0;

	if (!object || object->kind == JSON_NULL || (object->kind == JSON_OBJECT && !object->children))
		return 0;
	if (object->kind != JSON_OBJECT || object->children > PEFT_PATTERNS_MAX)
		return refuse(reason, "adapter_config.json: %s is not an object with at most %d expressions", key,
			PEFT_PATTERNS_MAX);
	error = keys_check(root, json_child(root, object), reason);
	if (error)
		return error;
	patterns->patterns = calloc(object->children, sizeof(*patterns->patterns));
	if (!patterns->patterns)
		return -ENOMEM;
	for (one = json_child(root, object); one && !error; one = json_next(root, one)) {
		struct peft_pattern *pattern = &patterns->patterns[patterns->count++];

		error = pattern_compile(one->key, pattern, reason);
		if (!error)
			error = number_of(one, positive, &pattern->value, reason);
	}
	return error;
}

static int bool_of(const struct json_object *root, const char *key, bool *value, struct reason *reason)
{
	const struct json_value *found = json_find(root, key);

	*value = found && found->kind == JSON_TRUE;
	if (found && !*value && found->kind != JSON_NULL && found->kind != JSON_FALSE)
		return refuse(reason, "adapter_config.json: %s is not a boolean", key);
	return 0;
}

static uint32_t keys_count(const struct json_object *root)
{
	uint32_t count = 0;

	for (const struct json_value *one = root->values; one; one = json_next(root, one))
		count++;
	return count;
}

static int config_fill(const struct json_object *root, struct peft_config *config, struct reason *reason)
{
	const struct json_value *rank, *alpha;
	int error;

	if (!root->is_object || (root->count && keys_count(root) > KEYS_MAX))
		return refuse(reason, "adapter_config.json: expected an object with at most %d keys", KEYS_MAX);
	rank = json_find(root, "r");
	alpha = json_find(root, "lora_alpha");
	error = root->count ? keys_check(root, root->values, reason) : 0;
	if (!error)
		error = kind_check(root, reason);
	/* PEFT's defaults */
	config->rank = config->alpha = 8;
	if (!error && rank)
		error = number_of(rank, true, &config->rank, reason);
	if (!error && alpha)
		error = number_of(alpha, false, &config->alpha, reason);
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
	struct json_object root;
	size_t at;
	int error;

	if (bytes > PEFT_CONFIG_BYTES_MAX)
		return refuse(reason, "adapter_config.json has %" PRIu64 " byte%s; the limit is %d", bytes,
			plural(bytes), PEFT_CONFIG_BYTES_MAX);
	error = json_object_parse(text, bytes, &root, &at);
	if (error == -EINVAL)
		return refuse(reason, "adapter_config.json: invalid JSON at byte %zu", at);
	if (error == -E2BIG)
		return refuse(reason,
			"adapter_config.json: more than %d levels of nesting, a number of more than %d characters, or "
			"a zero byte in a key, at byte %zu",
			JSON_DEPTH_MAX, JSON_NUMBER_BYTES_MAX, at);
	if (error)
		return error;
	error = config_fill(&root, &made, reason);
	json_object_free(&root);
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
		error = refuse(reason, "adapter_config.json has %" PRIu64 " byte%s; the limit is %d", *bytes,
			plural(*bytes), PEFT_CONFIG_BYTES_MAX);
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
		refuse(reason, "cannot read adapter_config.json: a disk failed, or the file is being changed");
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

/* ---- values for a module ---- */

/* Match a pattern against a path. Return: 1: it matches, 0: it does not, -EINVAL, -ENOMEM. */
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
		return refuse(reason, "adapter_config.json: an expression requires more than %d steps for module '%s'",
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
