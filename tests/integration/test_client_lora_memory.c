/*
 * test_client_lora_memory.c - adapters that are registered from memory.
 *
 * Goal: an adapter of a buffer or of arrays has the weights that were passed, from its first load on and after each
 * eviction, whatever the program does with its memory after the registration. Engines that register the same content
 * share it, and a cold file that one of them made is a source for the other. An invalid buffer or array is refused with
 * a reason, and leaves neither memory nor a descriptor behind.
 *
 * Method: generated adapters in two engines with a gpoold; the weights are read from the pool. Hostile content: each
 * prefix of a buffer, each byte of its header changed, memory that cannot be read, and no descriptors left.
 *
 * Requirements: L14.
 */
#include "client/gpool/lora.h"
#include "tests/integration/life.h"
#include "tests/integration/lora_weights.h"
#include "tests/lib/temporary.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { MODULES = 5, ARRAYS = 2 * MODULES };

static const char *const calm[] = {"--pool", POOL, QUIET, "--set", "lease.initial_pages=0", "--set",
	"lease.batch_pages=1", "--set", "lease.batch_most=1", NULL};
static const char config[] = "{\"peft_type\":\"LORA\",\"lora_alpha\":16}";

static struct rig rig;
static struct gpool *one, *other;
static struct gpool_lora *lora, *lora_of_other;
static char why[GPOOL_LORA_REASON_BYTES];

/* ---- fixture ---- */

static void rig_begin(enum safetensors_type q, enum safetensors_type v)
{
	const struct rig_module modules[MODULES] = {
		{"model.layers.0.q", 16, 512, 384, q},
		{"model.layers.0.v", 7, 512, 130, v},
		{"model.layers.1.q", 16, 512, 384, q},
		{"model.layers.1.v", 8, 512, 130, v},
		{"lm_head", 3, 512, 900, q},
	};

	rig_make(&rig, modules, MODULES);
	rig_fill(&rig, rig_normal);
}

static struct gpool_lora *lora_opened(struct gpool *pool, const char *cache_dir)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *made;

	options.element = GPOOL_LORA_BF16;
	options.cache_dir = cache_dir;
	options.rebalance_ms = UINT32_MAX;
	assert_int_equal(gpool_lora_create(pool, &options, &made), 0);
	return made;
}

static int engines_start(void **state)
{
	(void)state;
	start(calm);
	one = open_worker();
	other = open_worker();
	lora = lora_opened(one, NULL);
	lora_of_other = lora_opened(other, NULL);
	return 0;
}

static int engines_stop(void **state)
{
	int error = gpool_lora_destroy(lora) | gpool_lora_destroy(lora_of_other);

	gpool_close(one);
	gpool_close(other);
	rig_end(&rig);
	return error | stop(state);
}

static uint64_t file_bytes(void)
{
	return 8 + rig.header_bytes + rig.bytes;
}

static int buffer_register(struct gpool_lora *in, uint32_t *id)
{
	return gpool_lora_register_buffer(in, "memory", config, rig.file, file_bytes(), id, why);
}

static struct gpool_lora_info info_of(struct gpool_lora *in, uint32_t id)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_lora_info(in, id, &info), 0);
	return info;
}

static void acquired_is_right(struct gpool_lora *in, uint32_t id)
{
	if (gpool_lora_acquire(in, id, -1))
		fail_msg("%s", gpool_last_error(0));
	assert_int_equal(lora_wrong(in, id, &rig), 0);
	assert_int_equal(gpool_lora_release(in, id, GPOOL_FENCE_NONE), 0);
}

/* Return the number of descriptors of files of adapters in memory. */
static uint32_t descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	const struct dirent *entry;
	uint32_t count = 0;

	assert_non_null(folder);
	while ((entry = readdir(folder))) {
		char target[128];
		ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);

		target[length < 0 ? 0 : length] = '\0';
		count += strstr(target, "adapter_") != NULL;
	}
	closedir(folder);
	return count;
}

/* ---- buffers ---- */

static void test_buffer(void **state)
{
	struct rig kept;
	uint32_t id;

	(void)state;
	rig_begin(SAFETENSORS_F16, SAFETENSORS_BF16);
	assert_int_equal(buffer_register(lora, &id), 0);
	/* The program uses its memory for something else. */
	kept = rig;
	rig.file = malloc(file_bytes());
	assert_non_null(rig.file);
	memcpy(rig.file, kept.file, file_bytes());
	memset(kept.file, 0xff, file_bytes());
	for (int i = 0; i < 3; i++) {
		acquired_is_right(lora, id);
		assert_int_equal(info_of(lora, id).loads, i + 1);
		assert_int_equal(gpool_lora_unload(lora, id), 0);
	}
	free(rig.file);
	rig.file = kept.file;
	assert_int_equal(buffer_register(lora, &id), -EINVAL);
	assert_int_equal(gpool_lora_find(lora, "memory", &id), 0);
	assert_int_equal(gpool_lora_unregister(lora, id), 0);
}

static void test_name_is_taken(void **state)
{
	uint32_t id;

	(void)state;
	rig_begin(SAFETENSORS_F16, SAFETENSORS_BF16);
	assert_int_equal(buffer_register(lora, &id), 0);
	assert_int_equal(buffer_register(lora, &id), -EEXIST);
	assert_non_null(strstr(why, "'memory' is already registered"));
}

static void test_engines_share(void **state)
{
	uint32_t id, shared;

	(void)state;
	rig_begin(SAFETENSORS_F16, SAFETENSORS_BF16);
	assert_int_equal(buffer_register(lora, &id), 0);
	assert_int_equal(buffer_register(lora_of_other, &shared), 0);
	acquired_is_right(lora, id);
	acquired_is_right(lora_of_other, shared);
	assert_int_equal(info_of(lora_of_other, shared).shared, 1);
	assert_int_equal(info_of(lora_of_other, shared).loads, 0);
	/* One weight differs, so it is another adapter. */
	assert_int_equal(gpool_lora_unregister(lora_of_other, shared), 0);
	rig_put(&rig, &rig.peft.modules[1].b, 5, 1234);
	assert_int_equal(buffer_register(lora_of_other, &shared), 0);
	acquired_is_right(lora_of_other, shared);
	assert_int_equal(info_of(lora_of_other, shared).loads, 1);
}

static bool cold_file_is_there(const char *folder)
{
	DIR *kept = opendir(folder);
	const struct dirent *file;
	bool found = false;

	assert_non_null(kept);
	while ((file = readdir(kept)))
		found |= strstr(file->d_name, ".cold") && !strstr(file->d_name, ".new");
	closedir(kept);
	return found;
}

static void test_kept_on_disk(void **state)
{
	char folder[TEMPORARY_PATH_BYTES], command[64];
	struct gpool_lora *first, *second;
	uint32_t id;

	(void)state;
	rig_begin(SAFETENSORS_F16, SAFETENSORS_BF16);
	assert_non_null(mkdtemp(temporary_path(folder, "gpool-lora-XXXXXX")));
	first = lora_opened(one, folder);
	assert_int_equal(buffer_register(first, &id), 0);
	acquired_is_right(first, id);
	AWAIT(cold_file_is_there(folder));
	assert_int_equal(gpool_lora_unload(first, id), 0);
	assert_int_equal(gpool_lora_destroy(first), 0);
	/* A later process registers the same weights. */
	second = lora_opened(other, folder);
	assert_int_equal(buffer_register(second, &id), 0);
	acquired_is_right(second, id);
	assert_int_equal(info_of(second, id).from_cold, 1);
	assert_int_equal(gpool_lora_destroy(second), 0);
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	assert_int_equal(system(command), 0);
}

/* ---- arrays ---- */

static const char *array_name(uint32_t index)
{
	static char names[ARRAYS][128];

	snprintf(names[index], sizeof(names[index]), "base_model.model.%s.lora_%c.weight",
		rig.peft.modules[index / 2].path, "AB"[index % 2]);
	return names[index];
}

/* Describe matrix A or B of a module as it is in the file. */
static struct gpool_lora_array array_of(uint32_t index)
{
	const struct peft_module *module = &rig.peft.modules[index / 2];
	const struct peft_matrix *matrix = index % 2 ? &module->b : &module->a;
	struct gpool_lora_array array = {.name = array_name(index),
		.data = rig.file + matrix->offset,
		.rows = index % 2 ? module->out : module->rank,
		.columns = index % 2 ? module->rank : module->in,
		.column_stride = 1,
		.element = matrix->type == SAFETENSORS_F32 ? GPOOL_LORA_F32
			: matrix->type == SAFETENSORS_F16  ? GPOOL_LORA_F16
							   : GPOOL_LORA_BF16};

	array.row_stride = array.columns;
	return array;
}

/* Copy an array to memory in which its columns are contiguous, and its rows begin at the end. */
static void *array_turn(struct gpool_lora_array *array)
{
	uint32_t bytes = array->element == GPOOL_LORA_F32 ? 4 : 2;
	char *turned = malloc((size_t)array->rows * array->columns * bytes);

	assert_non_null(turned);
	for (uint32_t row = 0; row < array->rows; row++)
		for (uint32_t column = 0; column < array->columns; column++)
			memcpy(turned + ((size_t)column * array->rows + (array->rows - 1 - row)) * bytes,
				(const char *)array->data + ((size_t)row * array->columns + column) * bytes, bytes);
	array->data = turned + (size_t)(array->rows - 1) * bytes;
	array->row_stride = -1;
	array->column_stride = array->rows;
	return turned;
}

static void test_arrays(void **state)
{
	struct gpool_lora_array arrays[ARRAYS], turned[ARRAYS];
	void *memory[ARRAYS];
	uint32_t id, shared;

	(void)state;
	rig_begin(SAFETENSORS_F32, SAFETENSORS_F16);
	for (uint32_t i = 0; i < ARRAYS; i++) {
		arrays[i] = array_of(i);
		turned[ARRAYS - 1 - i] = arrays[i];
		memory[i] = array_turn(&turned[ARRAYS - 1 - i]);
	}
	assert_int_equal(gpool_lora_register_arrays(lora, "memory", config, arrays, ARRAYS, &id, why), 0);
	acquired_is_right(lora, id);
	/* Neither the order nor the strides matter. */
	assert_int_equal(gpool_lora_register_arrays(lora_of_other, "turned", config, turned, ARRAYS, &shared, why), 0);
	acquired_is_right(lora_of_other, shared);
	assert_int_equal(info_of(lora_of_other, shared).shared, 1);
	for (uint32_t i = 0; i < ARRAYS; i++)
		free(memory[i]);
}

static void test_wrong_arrays(void **state)
{
	struct gpool_lora_array arrays[ARRAYS];
	uint32_t id, before;

	(void)state;
	rig_begin(SAFETENSORS_F32, SAFETENSORS_F16);
	for (uint32_t i = 0; i < ARRAYS; i++)
		arrays[i] = array_of(i);
	before = descriptors();
#define REFUSED(change, text) \
	do { \
		struct gpool_lora_array right = arrays[3]; \
		change; \
		strcpy(why, ""); \
		assert_int_equal( \
			gpool_lora_register_arrays(lora, "memory", config, arrays, ARRAYS, &id, why), -EINVAL); \
		if (!strstr(why, text)) \
			fail_msg("'%s' instead of '%s'", why, text); \
		arrays[3] = right; \
	} while (0)
	REFUSED(arrays[3].name = NULL, "array 3 has no name");
	REFUSED(arrays[3].name = "base_model.model.\"\\\n.lora_B.weight", "has no corresponding lora_B");
	REFUSED(arrays[3].name = "\xff", "invalid JSON or UTF-8");
	REFUSED(arrays[3].name = arrays[1].name, "duplicate tensor");
	REFUSED(arrays[3].name = "a.bias", "the adapter has biases");
	REFUSED(arrays[3].data = NULL, "has no data");
	REFUSED(arrays[3].element = 0, "element is 0");
	REFUSED(arrays[3].element = 4, "element is 4");
	REFUSED(arrays[3].reserved = 1, "reserved is 1");
	REFUSED(arrays[3].rows = 0, "has 0 rows");
	REFUSED(arrays[3].columns = UINT32_MAX, "has 130 rows and 4294967295 columns");
	REFUSED((arrays[3].columns = 6, arrays[3].row_stride = 7), "A has rank 7, but B has rank 6");
#undef REFUSED
	assert_int_equal(gpool_lora_register_arrays(lora, "memory", config, arrays, 0, &id, why), -EINVAL);
	assert_int_equal(gpool_lora_register_arrays(lora, "memory", config, NULL, 1, &id, why), -EINVAL);
	assert_int_equal(gpool_lora_register_arrays(lora, "memory", NULL, arrays, ARRAYS, &id, why), -EINVAL);
	assert_int_equal(gpool_lora_register_arrays(lora, "memory", "{", arrays, ARRAYS, &id, why), -EINVAL);
	assert_non_null(strstr(why, "adapter_config.json"));
	assert_int_equal(gpool_lora_register_arrays(lora, "memory", "", arrays, ARRAYS, &id, why), -EINVAL);
	assert_non_null(strstr(why, "adapter_config.json is empty"));
	assert_int_equal(descriptors(), before);
	/* A name with characters that JSON escapes is one name of a module. */
	arrays[8].name = "base_model.model.a\"\\\t\xc3\xa9.lora_A.weight";
	arrays[9].name = "base_model.model.a\"\\\t\xc3\xa9.lora_B.weight";
	assert_int_equal(gpool_lora_register_arrays(lora, "memory", config, arrays, ARRAYS, &id, why), 0);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(gpool_lora_weights(lora, id, -1, "a\"\\\t\xc3\xa9", &(struct gpool_lora_weights){0}), 0);
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_unregister(lora, id), 0);
	AWAIT(descriptors() == before); /* a loader thread closes the files after the load */
}

/* ---- hostile buffers ---- */

static void refused(const void *buffer, uint64_t bytes)
{
	uint32_t id;

	strcpy(why, "");
	assert_int_equal(gpool_lora_register_buffer(lora, "memory", config, buffer, bytes, &id, why), -EINVAL);
	assert_true(why[0] != '\0');
}

static void test_cut_buffers(void **state)
{
	uint32_t before;

	(void)state;
	rig_begin(SAFETENSORS_F32, SAFETENSORS_F16);
	before = descriptors();
	/* Each prefix, in memory of its exact size, so that a sanitizer detects a read beyond it. */
	for (uint64_t bytes = 0; bytes < file_bytes(); bytes += bytes < 8 + rig.header_bytes + 9 ? 1 : 30011) {
		void *cut = malloc(bytes ? bytes : 1);

		assert_non_null(cut);
		memcpy(cut, rig.file, bytes);
		refused(cut, bytes);
		free(cut);
	}
	assert_int_equal(descriptors(), before);
}

/* A changed header is refused, or describes an adapter that loads or is refused; nothing else. */
static void test_changed_headers(void **state)
{
	uint32_t id, before, accepted = 0;

	(void)state;
	rig_begin(SAFETENSORS_F32, SAFETENSORS_F16);
	before = descriptors();
	for (uint64_t at = 0; at < 8 + rig.header_bytes; at++) {
		uint8_t kept = rig.file[at];

		rig.file[at] = (uint8_t)(rig_random(2) ? '0' + rig_random(10) : rig_random(256));
		if (buffer_register(lora, &id)) {
			assert_true(why[0] != '\0');
		} else {
			if (!gpool_lora_acquire(lora, id, -1))
				assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
			assert_int_equal(gpool_lora_unload(lora, id), 0);
			assert_int_equal(gpool_lora_unregister(lora, id), 0);
			accepted++;
		}
		rig.file[at] = kept;
	}
	assert_true(accepted < 8 + rig.header_bytes);
	AWAIT(descriptors() == before); /* a loader thread closes the files after the load */
}

static void test_faults(void **state)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), bytes;
	struct rlimit limit, few;
	uint32_t id, before;
	char *fenced;

	(void)state;
	rig_begin(SAFETENSORS_F32, SAFETENSORS_F16);
	bytes = (file_bytes() + page - 1) / page * page;
	/* The last page of the weights cannot be read. */
	fenced = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(fenced != MAP_FAILED);
	memcpy(fenced, rig.file, file_bytes());
	assert_int_equal(mprotect(fenced + bytes - page, page, PROT_NONE), 0);
	before = descriptors();
	assert_int_equal(gpool_lora_register_buffer(lora, "memory", config, fenced, file_bytes(), &id, why), -EFAULT);
	assert_non_null(strstr(why, "cannot copy adapter_model.safetensors to memory"));
	assert_int_equal(munmap(fenced, bytes + page), 0);
	assert_int_equal(descriptors(), before);
	/* 0 to 3 descriptors are left: the weights, the configuration, and one for reading each. */
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	for (int left = 0; left < 4; left++) {
		int next = dup(0), error;

		assert_true(next >= 0);
		close(next);
		few = (struct rlimit){.rlim_cur = (rlim_t)next + (rlim_t)left, .rlim_max = limit.rlim_max};
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
		error = buffer_register(lora, &id);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
		assert_int_equal(error, -EMFILE);
		assert_true(why[0] != '\0');
		assert_int_equal(descriptors(), before);
	}
	assert_int_equal(buffer_register(lora, &id), 0);
	acquired_is_right(lora, id);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, engines_start, engines_stop)
	const struct CMUnitTest tests[] = {
		TEST(buffer),
		TEST(name_is_taken),
		TEST(engines_share),
		TEST(kept_on_disk),
		TEST(arrays),
		TEST(wrong_arrays),
		TEST(cut_buffers),
		TEST(changed_headers),
		TEST(faults),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
