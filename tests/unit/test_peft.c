/*
 * test_peft.c - LoRA adapters in PEFT's format.
 *
 * Goal: modules, ranks, scales and offsets are read from the two files by PEFT's rules. Adapters that need more than B
 * (A x) are refused with the reason. Method: adapters that the reference library wrote (tests/fixtures/adapters), and
 * generated pairs of files, each wrong in one property.
 *
 * Requirements: L2.
 */
#include "client/lora/format/peft.h"
#include "client/lora/format/json_object.h"
#include "client/lora/format/peft_config.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static struct reason reason;

/* ---- files of the reference library ---- */

static struct peft fixture(const char *name)
{
	char path[128];
	struct peft peft;
	int config, weights, result;

	snprintf(path, sizeof(path), "tests/fixtures/adapters/%s/adapter_config.json", name);
	config = open(path, O_RDONLY | O_CLOEXEC);
	snprintf(path, sizeof(path), "tests/fixtures/adapters/%s/adapter_model.safetensors", name);
	weights = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(config >= 0 && weights >= 0);
	result = peft_read(config, weights, &peft, &reason);
	if (result)
		fail_msg("%s: %d, '%s'", name, result, reason.text);
	assert_int_equal(peft.file_bytes, lseek(weights, 0, SEEK_END));
	close(config);
	close(weights);
	return peft;
}

static void module_is(const struct peft_module *module, const char *path, const char *target, uint32_t layer,
	uint32_t rank, uint32_t in, uint32_t out, double scale)
{
	assert_string_equal(module->path, path);
	assert_string_equal(module->target, target);
	assert_int_equal(module->layer, layer);
	assert_int_equal(module->rank, rank);
	assert_int_equal(module->in, in);
	assert_int_equal(module->out, out);
	assert_true(fabs(module->scale - scale) < 1e-12);
}

static void test_plain(void **state)
{
	struct peft peft = fixture("plain");

	(void)state;
	assert_int_equal(peft.count, 4);
	assert_int_equal(peft.layers, 2);
	assert_int_equal(peft.rank_max, 4);
	assert_int_equal(peft.ranks_differ, 0);
	module_is(&peft.modules[0], "model.layers.0.self_attn.q_proj", "model.layers.*.self_attn.q_proj", 0, 4, 96, 96,
		2);
	module_is(&peft.modules[3], "model.layers.1.self_attn.v_proj", "model.layers.*.self_attn.v_proj", 1, 4, 96, 32,
		2);
	assert_int_equal(peft.modules[3].a.type, SAFETENSORS_F32);
	assert_int_equal(peft.modules[3].a.bytes, 4 * 96 * 4);
	assert_int_equal(peft.modules[3].b.bytes, 32 * 4 * 4);
	peft_free(&peft);
}

/* The adapter uses rsLoRA. Its layers are ordered by their numbers, not by their names. */
static void test_half(void **state)
{
	struct peft peft = fixture("half");

	(void)state;
	assert_int_equal(peft.count, 22);
	for (uint32_t i = 0; i < 22; i++)
		assert_int_equal(peft.modules[i].layer, i / 2);
	module_is(&peft.modules[21], "model.layers.10.self_attn.v_proj", "model.layers.*.self_attn.v_proj", 10, 3, 96,
		32, 6 / sqrt(3));
	assert_int_equal(peft.modules[0].b.type, SAFETENSORS_F16);
	peft_free(&peft);
}

/*
 * The first pattern that matches is used, at a dot or from the beginning. Numbers after the first one belong to the
 * target.
 */
static void test_mixed(void **state)
{
	struct peft peft = fixture("mixed");

	(void)state;
	assert_int_equal(peft.count, 6);
	assert_int_equal(peft.rank_max, 16);
	assert_int_equal(peft.ranks_differ, 0);
	module_is(&peft.modules[0], "model.layers.0.mlp.down_proj", "model.layers.*.mlp.down_proj", 0, 16, 160, 96,
		64.0 / 16);
	module_is(&peft.modules[1], "model.layers.0.self_attn.q_proj", "model.layers.*.self_attn.q_proj", 0, 4, 96, 96,
		16.0 / 4);
	module_is(&peft.modules[2], "model.layers.1.mlp.experts.0.up_proj", "model.layers.*.mlp.experts.0.up_proj", 1,
		4, 96, 40, 2);
	module_is(&peft.modules[3], "model.layers.1.mlp.experts.1.up_proj", "model.layers.*.mlp.experts.1.up_proj", 1,
		4, 96, 40, 2);
	module_is(&peft.modules[4], "model.layers.1.self_attn.q_proj", "model.layers.*.self_attn.q_proj", 1, 2, 96, 96,
		8);
	module_is(&peft.modules[5], "lm_head", "lm_head", PEFT_NO_LAYER, 1, 96, 300, 8);
	assert_int_equal(peft.modules[5].a.type, SAFETENSORS_BF16);
	peft_free(&peft);
}

/* ---- generated files ---- */

struct made {
	char header[8192];
	size_t length;
	uint64_t bytes;
};

static void add(struct made *made, const char *name, const char *type, const char *shape, uint64_t bytes)
{
	made->length += (size_t)snprintf(made->header + made->length, sizeof(made->header) - made->length,
		"%c\"base_model.model.%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
		made->length ? ',' : '{', name, type, shape, (unsigned long long)made->bytes,
		(unsigned long long)(made->bytes + bytes));
	made->bytes += bytes;
}

static int file_of(const void *bytes, size_t length)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, length), (ssize_t)length);
	return fd;
}

static int read_made(const char *config, struct made *made, struct peft *peft)
{
	int config_fd = file_of(config, strlen(config)), weights_fd, result;
	uint64_t length;

	made->header[made->length++] = '}';
	while (made->length % 8)
		made->header[made->length++] = ' ';
	length = made->length;
	weights_fd = file_of(&length, 8);
	assert_int_equal(write(weights_fd, made->header, length), (ssize_t)length);
	assert_int_equal(ftruncate(weights_fd, (off_t)(8 + length + made->bytes)), 0);
	strcpy(reason.text, "");
	result = peft_read(config_fd, weights_fd, peft, &reason);
	close(config_fd);
	close(weights_fd);
	return result;
}

#define LORA "\"peft_type\":\"LORA\""

static void refused(int result, const char *why)
{
	if (result != -EINVAL || !strstr(reason.text, why))
		fail_msg("%d, '%s', without '%s'", result, reason.text, why);
}

static struct made good(void)
{
	struct made made = {.length = 0};

	add(&made, "h.7.q.lora_A.weight", "F16", "2,8", 32);
	add(&made, "h.7.q.lora_B.weight", "F16", "8,2", 32);
	return made;
}

static const struct {
	const char *config, *why;
} refused_configs[] = {
	{"", "adapter_config.json is empty"},
	{"{" LORA "} x", "invalid JSON"},
	{"[]", "expected an object"},
	{"{}", "peft_type is missing"},
	{"{\"peft_type\":\"LOHA\"}", "peft_type is 'LOHA'"},
	{"{" LORA "," LORA "}", "duplicate key 'peft_type'"},
	{"{" LORA ",\"use_dora\":true}", "use_dora: DoRA"},
	{"{" LORA ",\"modules_to_save\":[\"lm_head\"]}", "modules_to_save: the adapter contains complete modules"},
	{"{" LORA ",\"bias\":\"all\"}", "bias: the adapter has biases"},
	{"{" LORA ",\"bias\":7}", "bias: the adapter has biases"},
	{"{" LORA ",\"lora_bias\":true}", "lora_bias"},
	{"{" LORA ",\"use_qalora\":true}", "use_qalora"},
	{"{" LORA ",\"trainable_token_indices\":[1]}", "trainable_token_indices"},
	{"{" LORA ",\"layer_replication\":[[0,1]]}", "layer_replication"},
	{"{" LORA ",\"target_parameters\":[\"w\"]}", "target_parameters"},
	{"{" LORA ",\"alora_invocation_tokens\":[1]}", "alora_invocation_tokens"},
	{"{" LORA ",\"init_lora_weights\":\"pissa_niter_4\"}", "changes the base weights"},
	{"{" LORA ",\"r\":\"8\"}", "'r' is not a positive number"},
	{"{" LORA ",\"r\":0}", "'r' is 0; it must be a positive number"},
	{"{" LORA ",\"lora_alpha\":1e999}", "'lora_alpha' is not a number"},
	{"{" LORA ",\"lora_alpha\":1e9}", "module 'h.7.q': scale 5e+08"},
	{"{" LORA ",\"use_rslora\":1}", "use_rslora is not a boolean"},
	{"{" LORA ",\"rank_pattern\":[1]}", "rank_pattern is not an object"},
	{"{" LORA ",\"rank_pattern\":{\"q\":-1}}", "'q' is -1; it must be a positive number"},
	{"{" LORA ",\"alpha_pattern\":{\"(\":1}}", "'(' is not a valid regular expression"},
	{"{" LORA ",\"alpha_pattern\":{\"\xff\":1}}", "invalid JSON at byte"},
	{"{" LORA ",\"alpha_pattern\":{\"q\":1,\"q\":2}}", "duplicate key 'q'"},
	{"{" LORA ",\"alpha_pattern\":{\"q\":1,\"\\u0071\":2}}", "duplicate key 'q'"},
	{"{" LORA ",\"alpha_pattern\":{\"q\\u0000\":1}}",
		"more than 64 levels of nesting, a number of more than 63 characters"},
	{"{" LORA ",\"alpha_pattern\":{\"q\":{\"r\":1}}}", "'q' is not a number"},
	{"{" LORA ",\"alpha_pattern\":{\"q\":[1]}}", "'q' is not a number"},
	{"{" LORA ",\"lora_alpha\":[8]}", "'lora_alpha' is not a number"},
	{"{" LORA ",\"lora_alpha\":8,}", "invalid JSON"},
	{"{" LORA ",\"lora_alpha\":NaN}", "invalid JSON"},
	{"{" LORA ",\"lora_alpha\":0000000000000000000000000000000000000000000000000000000000000008}", "invalid JSON"},
	{"{" LORA ",\"lora_alpha\":8.00000000000000000000000000000000000000000000000000000000000000}",
		"more than 64 levels of nesting, a number of more than 63 characters"},
	{"{\"peft_type\":\"LORA\\u0000\"}", "peft_type is 'LORA'; only LORA"},
	{"{" LORA, "invalid JSON"},
};

static void test_refused_configs(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(refused_configs) / sizeof(*refused_configs); i++) {
		struct made made = good();
		struct peft peft;

		refused(read_made(refused_configs[i].config, &made, &peft), refused_configs[i].why);
	}
}

/* Keys without effect are accepted. */
static void test_taken_configs(void **state)
{
	static const char *const configs[] = {
		"{" LORA "}",
		" {" LORA ",\"lora_alpha\":8,\"use_dora\":false,\"modules_to_save\":null,\"bias\":\"none\",\"layer_"
		"replication\":[],\"new_key\":{\"a\":[1]}} \n",
		"{" LORA ",\"init_lora_weights\":\"gaussian\",\"rank_pattern\":null,\"alpha_pattern\":{\"k\":99}}",
		"{" LORA ",\"r\":99,\"alpha_pattern\":{\"z\":1,\"h\\\\.(7|8)\\\\.[a-q]\":8,\"q\":5},\"lora_alpha\":1}",
		"{" LORA ",\"alpha_pattern\":{\".*\":8}}",
		"{" LORA ",\"x\":{\"alpha_pattern\":{\"q\":1},\"r\":[]},\"y\":[{\"lora_alpha\":1,\"lora_alpha\":2}],"
		"\"lora_alpha\":8}",
		"{" LORA ",\"alpha_pattern\":{\"z\":0.5,\".*q\":0.8e1},\"runtime\":{\"alpha_pattern\":{}}}",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(configs) / sizeof(*configs); i++) {
		struct made made = good();
		struct peft peft;

		assert_int_equal(read_made(configs[i], &made, &peft), 0);
		assert_int_equal(peft.count, 1);
		module_is(&peft.modules[0], "h.7.q", "h.*.q", 7, 2, 8, 8, 4);
		assert_int_equal(peft.ranks_differ, 1);
		peft_free(&peft);
	}
}

/* A pattern that needs exponentially many steps is stopped. */
static void test_steps(void **state)
{
	struct made made = {.length = 0};
	struct peft peft;

	(void)state;
	add(&made, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.lora_A.weight", "F16", "2,8", 32);
	add(&made, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.lora_B.weight", "F16", "8,2", 32);
	refused(read_made("{" LORA ",\"alpha_pattern\":{\"(a+)+(b|c)\":1}}", &made, &peft),
		"requires more than 5000 steps for module 'aaa");
}

/* Names, types, shapes and bytes of two tensors. */
static const struct {
	const char *names[2], *types[2], *shapes[2];
	uint64_t bytes[2];
	const char *why;
} refused_tensors[] = {
	{{"q.lora_A.weight", "k.lora_B.weight"}, {"F16", "F16"}, {"2,8", "8,2"}, {32, 32},
		"q.lora_A.weight' has no corresponding lora_B"},
	{{"q.lora_A.weight", "k.lora_A.weight"}, {"F16", "F16"}, {"2,8", "8,2"}, {32, 32}, "2 lora_A and 0 lora_B"},
	{{"q.lora_A.weight", "q.weight"}, {"F16", "F16"}, {"2,8", "8,2"}, {32, 32},
		"q.weight': expected the name base_model.model.MODULE.lora_A.weight"},
	{{"lora_A.weight", "lora_B.weight"}, {"F16", "F16"}, {"2,8", "8,2"}, {32, 32}, "expected the name"},
	{{"q.lora_A.weight", "q.lora_A.bias"}, {"F16", "F16"}, {"2,8", "8"}, {32, 16}, "the adapter has biases"},
	{{"q.lora_A.weight", "q.lora_magnitude_vector"}, {"F16", "F16"}, {"2,8", "8"}, {32, 16}, "DoRA"},
	{{"q.lora_embedding_A", "q.lora_embedding_B"}, {"F16", "F16"}, {"2,8", "8,2"}, {32, 32},
		"changes an embedding"},
	{{"q.lora_A.weight", "q.lora_B.weight"}, {"F16", "I16"}, {"2,8", "8,2"}, {32, 32},
		"q.lora_B.weight': dtype I16 is not supported; only"},
	{{"q.lora_A.weight", "q.lora_B.weight"}, {"F64", "F16"}, {"2,8", "8,2"}, {128, 32},
		"q.lora_A.weight': dtype F64 is not supported; only"},
	{{"q.lora_A.weight", "q.lora_B.weight"}, {"F16", "F16"}, {"2,8,1,1", "8,2"}, {32, 32},
		"has 4 dimensions; only linear"},
	{{"q.lora_A.weight", "q.lora_B.weight"}, {"F16", "F16"}, {"2,8", "4,4"}, {32, 32},
		"module 'q': A has rank 2, but B has rank 4"},
	{{"q.lora_A.weight", "q.lora_B.weight"}, {"F16", "F16"}, {"0,8", "8,0"}, {0, 0}, "module 'q': rank is 0"},
	{{"q.lora_A.weight", "q.lora_B.weight"}, {"F16", "F16"}, {"129,8", "8,129"}, {2064, 2064},
		"module 'q': rank is 129; it must be 1 to 128"},
	{{"q.lora_A.weight", "q.lora_B.weight"}, {"F16", "F16"}, {"1,1048577", "8,1"}, {2097154, 16},
		"module 'q' has 1048577 inputs"},
	{{"q.lora_A.weight", "q.lora_B.weight"}, {"F16", "F16"}, {"1,8", "0,1"}, {16, 0}, "8 inputs and 0 outputs"},
	{{"h.4096.q.lora_A.weight", "h.4096.q.lora_B.weight"}, {"F16", "F16"}, {"2,8", "8,2"}, {32, 32},
		"the number of the layer must be below 4096"},
	{{"h.99999999999999999999.q.lora_A.weight", "h.99999999999999999999.q.lora_B.weight"}, {"F16", "F16"},
		{"2,8", "8,2"}, {32, 32}, "the number of the layer must be below"},
};

static void test_refused_tensors(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(refused_tensors) / sizeof(*refused_tensors); i++) {
		struct made made = {.length = 0};
		struct peft peft;

		for (int t = 0; t < 2; t++)
			add(&made, refused_tensors[i].names[t], refused_tensors[i].types[t],
				refused_tensors[i].shapes[t], refused_tensors[i].bytes[t]);
		refused(read_made("{" LORA "}", &made, &peft), refused_tensors[i].why);
	}
}

/* Two paths denote the same layer. */
static void test_twins(void **state)
{
	struct made made = good();
	struct peft peft;

	(void)state;
	add(&made, "h.07.q.lora_A.weight", "F16", "2,8", 32);
	add(&made, "h.07.q.lora_B.weight", "F16", "8,2", 32);
	refused(read_made("{" LORA "}", &made, &peft), "duplicate module");
}

static void test_empty(void **state)
{
	struct made made = {.header = "{", .length = 1};
	struct peft peft;

	(void)state;
	refused(read_made("{" LORA "}", &made, &peft), "0 lora_A and 0 lora_B");
}

static void test_too_many_expressions(void **state)
{
	char *config = malloc(PEFT_PATTERNS_MAX * 16 + 100);
	size_t length = (size_t)sprintf(config, "{" LORA ",\"alpha_pattern\":{");
	struct made made = good();
	struct peft peft;

	(void)state;
	for (int i = 0; i <= PEFT_PATTERNS_MAX; i++)
		length += (size_t)sprintf(config + length, "%s\"p%d\":1", i ? "," : "", i);
	sprintf(config + length, "}}");
	refused(read_made(config, &made, &peft), "with at most 1024 expressions");
	free(config);
}

/* Nest as deep as the limit, and one level deeper. */
static void test_nesting(void **state)
{
	(void)state;
	for (int depth = JSON_DEPTH_MAX; depth <= JSON_DEPTH_MAX + 1; depth++) {
		char config[2 * JSON_DEPTH_MAX + 100];
		size_t length = (size_t)sprintf(config, "{" LORA ",\"lora_alpha\":8,\"x\":");
		struct made made = good();
		struct peft peft;

		memset(config + length, '[', (size_t)depth - 1);
		memset(config + length + depth - 1, ']', (size_t)depth - 1);
		strcpy(config + length + 2 * (depth - 1), "}");
		if (depth > JSON_DEPTH_MAX) {
			refused(read_made(config, &made, &peft),
				"more than 64 levels of nesting, a number of more than 63 characters");
		} else {
			assert_int_equal(read_made(config, &made, &peft), 0);
			peft_free(&peft);
		}
	}
}

/* Numbers have a decimal point in any locale of the program. */
static void test_locale(void **state)
{
	static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "C"};
	struct made made = good();
	struct peft peft;

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !setlocale(LC_NUMERIC, names[i]); i++)
		;
	assert_int_equal(read_made("{" LORA ",\"lora_alpha\":8.5}", &made, &peft), 0);
	assert_true(fabs(peft.modules[0].scale - 4.25) < 1e-12);
	peft_free(&peft);
	setlocale(LC_NUMERIC, "C");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_half),
		cmocka_unit_test(test_mixed),
		cmocka_unit_test(test_refused_configs),
		cmocka_unit_test(test_taken_configs),
		cmocka_unit_test(test_nesting),
		cmocka_unit_test(test_locale),
		cmocka_unit_test(test_steps),
		cmocka_unit_test(test_refused_tensors),
		cmocka_unit_test(test_twins),
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_too_many_expressions),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
