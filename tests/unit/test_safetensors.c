/*
 * test_safetensors.c - headers of safetensors files.
 *
 * Goal: everything that the format allows is read as written. Any deviation from the format is refused with the tensor
 * and the reason, and leaves nothing allocated. Method: headers as texts, with data of the size that each case needs,
 * and files of the reference writer in tests/fixtures/adapters.
 */
#include "client/lora/format/safetensors.h"

#include <errno.h>
#include <fcntl.h>
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

/* The text is allocated in its exact size, so that a sanitizer detects a read beyond it. */
static int parse(const char *text, size_t length, uint64_t data_bytes, struct safetensors *file)
{
	char *header = malloc(length ? length : 1);
	int result;

	assert_non_null(header);
	memcpy(header, text, length);
	strcpy(reason.text, "");
	result = safetensors_parse(header, length, 8 + length + data_bytes, file, &reason);
	free(header);
	return result;
}

#define TENSOR(NAME, TYPE, SHAPE, PLACE) \
	"\"" NAME "\":{\"dtype\":\"" TYPE "\",\"shape\":[" SHAPE "],\"data_offsets\":[" PLACE "]}"

static void test_all_of_it(void **state)
{
	static const char text[] =
		"{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("b", "F16", "2, 3", "8,20") "," TENSOR("a", "F64", "",
			"0,8") "," TENSOR("\xc3\xa9", "U8", "0,9223372036854775807", "20,20") " }       ";
	struct safetensors file;
	const struct safetensors_tensor *tensor;

	(void)state;
	assert_int_equal((sizeof(text) - 1) % 8, 0);
	assert_int_equal(parse(text, sizeof(text) - 1, 20, &file), 0);
	assert_int_equal(file.count, 3);
	assert_int_equal(file.data_offset, 8 + sizeof(text) - 1);
	tensor = safetensors_find(&file, "b");
	assert_non_null(tensor);
	assert_ptr_equal(tensor, &file.tensors[1]);
	assert_int_equal(tensor->type, SAFETENSORS_F16);
	assert_int_equal(tensor->dimensions, 2);
	assert_int_equal(tensor->shape[0], 2);
	assert_int_equal(tensor->shape[1], 3);
	assert_int_equal(tensor->offset, file.data_offset + 8);
	assert_int_equal(tensor->bytes, 12);
	assert_int_equal(safetensors_find(&file, "a")->dimensions, 0);
	assert_int_equal(safetensors_find(&file, "\xc3\xa9")->bytes, 0);
	assert_null(safetensors_find(&file, "c"));
	safetensors_free(&file);
	assert_null(safetensors_find(&file, "a"));
}

static void test_nothing_in_it(void **state)
{
	struct safetensors file;

	(void)state;
	assert_int_equal(parse("{}", 2, 0, &file), 0);
	assert_int_equal(file.count, 0);
	assert_null(safetensors_find(&file, "a"));
	safetensors_free(&file);
}

#define ONE(PLACE_AND_MORE) "{\"a\":{" PLACE_AND_MORE "}}"
#define LONG_16 "aaaaaaaaaaaaaaaa"
#define LONG_256 \
	LONG_16 LONG_16 LONG_16 LONG_16 LONG_16 LONG_16 LONG_16 LONG_16 LONG_16 LONG_16 LONG_16 LONG_16 LONG_16 \
		LONG_16 LONG_16 LONG_16

/*
 * Refused texts, and a part of each reason. Shapes whose product wraps and offsets that decrease are known problems of
 * other readers.
 */
static const struct {
	const char *text;
	uint64_t data_bytes;
	const char *why;
} malformed[] = {
	{"", 0, "expected '{'"},
	{" {}", 0, "expected '{'"},
	{"[]", 0, "expected '{'"},
	{"{", 0, "invalid JSON"},
	{"{}}", 0, "invalid JSON"},
	{"{}{}", 0, "invalid JSON"},
	{"{\"a\"}", 0, "invalid JSON"},
	{"{\"\xff\":{}}", 0, "invalid JSON"},
	{"{/**/}", 0, "invalid JSON"},
	{"{\"a\":1}", 0, "tensor 'a': an unexpected number instead of an object"},
	{"{\"a\":null}", 0, "tensor 'a': null instead of an object"},
	{"{\"a\":[[[[", 0, "tensor 'a': an array instead of an object"},
	{"{\"\":{}}", 0, "name of tensor 1 is empty"},
	{"{\"a\\u0000b\":{}}", 0, "contains a zero byte"},
	{"{\"" LONG_256 LONG_256 LONG_256 LONG_256 "\":{}}", 0, "longer than 1023 bytes"},
	{"{\"__metadata__\":{\"a\":1}}", 0, "an unexpected number instead of a string in __metadata__"},
	{"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate key __metadata__"},
	{"{\"__metadata__\":[]}", 0, "an array instead of an object of strings"},
	{ONE(""), 0, "tensor 'a' has no dtype"},
	{ONE("\"dtype\":\"F16\""), 0, "tensor 'a' has no shape"},
	{ONE("\"dtype\":\"F16\",\"shape\":[]"), 0, "tensor 'a' has no data_offsets"},
	{ONE("\"dtype\":\"F16\",\"dtype\":\"F16\""), 0, "tensor 'a': duplicate key dtype"},
	{ONE("\"shape\":[],\"shape\":[]"), 0, "tensor 'a': duplicate key shape"},
	{ONE("\"type\":\"F16\""), 0, "tensor 'a': an unknown key instead of dtype"},
	{ONE("\"dtype\":16"), 0, "tensor 'a': an unexpected number instead of a string"},
	{ONE("\"dtype\":\"F17\""), 0, "tensor 'a': unknown dtype"},
	{ONE("\"dtype\":\"f16\""), 0, "tensor 'a': unknown dtype"},
	{ONE("\"shape\":{}"), 0, "tensor 'a': an object instead of an array as shape"},
	{ONE("\"shape\":[1,true]"), 0, "tensor 'a': a boolean instead of a nonnegative integer"},
	{ONE("\"shape\":[-1]"), 0, "tensor 'a': an unexpected number instead of a nonnegative integer"},
	{ONE("\"shape\":[1.0]"), 0, "tensor 'a': an unexpected number"},
	{ONE("\"shape\":[1e3]"), 0, "tensor 'a': an unexpected number"},
	{ONE("\"shape\":[18446744073709551616]"), 0, "tensor 'a': an unexpected number"},
	{ONE("\"shape\":[[1]]"), 0, "tensor 'a': an array instead of a nonnegative integer"},
	{ONE("\"shape\":[1,1,1,1,1,1,1,1,1]"), 0, "tensor 'a' has more than 8 dimensions"},
	{ONE("\"data_offsets\":[1]"), 0, "tensor 'a': data_offsets are not two"},
	{ONE("\"data_offsets\":[1,2,3]"), 0, "tensor 'a': data_offsets are not two"},
	{"{" TENSOR("a", "F16", "2", "4,0") "}", 4, "tensor 'a': data_offsets end before they begin"},
	{"{" TENSOR("a", "F16", "4294967296,4294967296", "0,0") "}", 0,
		"tensor 'a': the shape has more than 2^64 bytes"},
	{"{" TENSOR("a", "F16", "9223372036854775808", "0,0") "}", 0, "tensor 'a': the shape has more than 2^64 bytes"},
	{"{" TENSOR("a", "F16", "3", "0,4") "}", 4, "tensor 'a': the shape has 6 bytes, but the data_offsets have 4"},
	{"{" TENSOR("a", "U8", "4", "0,4") "}", 3, "tensor 'a' ends beyond the end of the file"},
	{"{" TENSOR("a", "U8", "18446744073709551615", "0,18446744073709551615") "}", 3,
		"tensor 'a' ends beyond the end of the file"},
	{"{" TENSOR("a", "U8", "4", "0,4") "}", 5, "1 byte after the last tensor"},
	{"{}", 5, "5 bytes after the last tensor"},
	{"{" TENSOR("a", "U8", "4", "1,5") "}", 5, "tensor 'a' begins at byte 1 of the data, after a gap"},
	{"{" TENSOR("a", "U8", "4", "0,4") "," TENSOR("b", "U8", "4", "5,9") "}", 9,
		"tensor 'b' begins at byte 5 of the data, after a gap"},
	{"{" TENSOR("a", "U8", "4", "0,4") "," TENSOR("b", "U8", "4", "3,7") "}", 7,
		"tensor 'b' begins at byte 3 of the data, within"},
	{"{" TENSOR("a", "U8", "4", "0,4") "," TENSOR("b", "U8", "4", "0,4") "}", 4,
		"tensor 'b' begins at byte 0 of the data, within"},
	{"{" TENSOR("a", "U8", "4", "0,4") "," TENSOR("a", "U8", "4", "4,8") "}", 8, "duplicate tensor 'a'"},
	{"{" TENSOR("a\\u001b[2J", "U8", "4", "1,5") "}", 5, "tensor 'a\\x1b[2J' begins"},
};

static void test_malformed(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(malformed) / sizeof(*malformed); i++) {
		struct safetensors file = {.count = 77};
		int result = parse(malformed[i].text, strlen(malformed[i].text), malformed[i].data_bytes, &file);

		if (result != -EINVAL || !strstr(reason.text, malformed[i].why))
			fail_msg("'%s' gives %d, '%s', without '%s'", malformed[i].text, result, reason.text,
				malformed[i].why);
		assert_int_equal(file.count, 77);
	}
}

/* Data is aligned to its type, relative to the beginning of the file. */
static void test_alignment(void **state)
{
	char text[128];
	struct safetensors file;

	(void)state;
	for (int spaces = 0; spaces < 8; spaces++) {
		int length = snprintf(text, sizeof(text), "{%s}%*s", TENSOR("a", "F64", "1", "0,8"), spaces, "");

		if (length % 8 == 0) {
			assert_int_equal(parse(text, (size_t)length, 8, &file), 0);
			safetensors_free(&file);
		} else {
			assert_int_equal(parse(text, (size_t)length, 8, &file), -EINVAL);
			assert_non_null(strstr(reason.text, "tensor 'a': F64 at byte"));
		}
	}
}

/* Use more names than the arena's initial size, out of order. Each must be found. */
static void test_many(void **state)
{
	enum { COUNT = 3000 };
	char *text = malloc(COUNT * 100), name[16];
	size_t length = 0;
	struct safetensors file;

	(void)state;
	for (uint32_t i = 0; i < COUNT; i++)
		length += (size_t)sprintf(text + length, "%c" TENSOR("t%u", "U8", "%u", "%u,%u"), i ? ',' : '{',
			(i * 7) % COUNT, i % 2 + 1, i / 2 * 3 + i % 2, (i + 1) / 2 * 3 + (i + 1) % 2);
	text[length++] = '}';
	assert_int_equal(parse(text, length, COUNT / 2 * 3, &file), 0);
	assert_int_equal(file.count, COUNT);
	for (uint32_t i = 0; i < COUNT; i++) {
		snprintf(name, sizeof(name), "t%u", (i * 7) % COUNT);
		assert_int_equal(safetensors_find(&file, name)->offset, file.data_offset + i / 2 * 3 + i % 2);
	}
	safetensors_free(&file);
	free(text);
}

/* ---- files ---- */

static int read_bytes(const void *bytes, size_t length, struct safetensors *file)
{
	int fd = memfd_create("test", MFD_CLOEXEC), result;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, length), (ssize_t)length);
	strcpy(reason.text, "");
	result = safetensors_read(fd, file, &reason);
	close(fd);
	return result;
}

static void test_lengths(void **state)
{
	struct safetensors file;

	(void)state;
	assert_int_equal(read_bytes("\2\0\0\0\0\0\0\0{}", 10, &file), 0);
	safetensors_free(&file);
	assert_int_equal(read_bytes("\2\0\0\0\0\0\0", 7, &file), -EINVAL);
	assert_non_null(strstr(reason.text, "too few"));
	assert_int_equal(read_bytes("\3\0\0\0\0\0\0\0{}", 10, &file), -EINVAL);
	assert_string_equal(reason.text, "header: the length is 3 bytes, but the file has 10 bytes");
	assert_int_equal(read_bytes("\0\0\0\0\0\0\0\0{}", 10, &file), -EINVAL);
	assert_int_equal(read_bytes("\1\0\0\4\0\0\0\0{}", 10, &file), -EINVAL);
	assert_string_equal(reason.text, "header: the length is 67108865 bytes; the limit is 67108864");
	assert_int_equal(read_bytes("\377\377\377\377\377\377\377\377{}", 10, &file), -EINVAL);
	assert_non_null(strstr(reason.text, "; the limit is "));
}

static void test_no_file(void **state)
{
	struct safetensors file;
	int ends[2];

	(void)state;
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(safetensors_read(ends[0], &file, &reason), -EINVAL);
	assert_non_null(strstr(reason.text, "file is a pipe, not a regular file"));
	close(ends[0]);
	close(ends[1]);
	assert_int_equal(safetensors_read(-1, &file, &reason), -EIO);
}

static void test_of_the_reference(void **state)
{
	int fd = open("tests/fixtures/adapters/plain/adapter_model.safetensors", O_RDONLY | O_CLOEXEC);
	const struct safetensors_tensor *tensor;
	struct safetensors file;
	float value;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(safetensors_read(fd, &file, &reason), 0);
	assert_int_equal(file.count, 8);
	tensor = safetensors_find(&file, "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight");
	assert_non_null(tensor);
	assert_int_equal(tensor->type, SAFETENSORS_F32);
	assert_int_equal(tensor->shape[0], 32);
	assert_int_equal(tensor->shape[1], 4);
	/* make.py: module 3's B has seed 7. */
	assert_int_equal(pread(fd, &value, sizeof(value), (off_t)(tensor->offset + 10 * sizeof(value))), sizeof(value));
	assert_float_equal(value, (float)((10 * 7 + 7) % 127 - 63) / 64, 0);
	safetensors_free(&file);
	close(fd);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_of_it),
		cmocka_unit_test(test_nothing_in_it),
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_alignment),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_no_file),
		cmocka_unit_test(test_of_the_reference),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
