/*
 * test_adapter_cold.c - adapters in cold files.
 *
 * Goal: a file is read back as it was written, page by page, in the smallest form whose error is acceptable. A layer
 * needs no group after its own. A file that is damaged, truncated or forged at any place is refused, and a failed write
 * leaves the old file.
 *
 * Method: random adapters. Every byte of a file is changed, every length is tried, and each field of the head is wrong
 * with a correct checksum. Each system call of the writer fails, through functions of this program that replace those
 * of the C library.
 *
 * Requirements: L5.
 */
#include "client/lora/format/cold_file.h"
#include "client/lora/format/int8_form.h"
#include "client/lora/format/pack.h"
#include "tests/unit/adapter_rig.h"
#include "tests/lib/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include <cmocka.h>
#include <xxhash.h>
#include <zstd.h>

static struct reason reason;
static int folder;
static char folder_path[TEMPORARY_PATH_BYTES];

/* ---- calls that fail ---- */

static int calls_until_failure = -1; /* -1: no call fails */
static int failure;

static bool fails(void)
{
	if (calls_until_failure < 0 || calls_until_failure-- > 0)
		return false;
	errno = failure;
	return true;
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
	return fails() ? -1 : syscall(SYS_pwrite64, fd, bytes, count, offset);
}

int fsync(int fd)
{
	return fails() ? -1 : (int)syscall(SYS_fsync, fd);
}

int renameat(int old_folder, const char *old_name, int new_folder, const char *new_name)
{
	return fails() ? -1 : (int)syscall(SYS_renameat, old_folder, old_name, new_folder, new_name);
}

/* ---- writing and reading ---- */

static int write_as(const struct rig *rig, uint32_t page_bytes, const char *name, struct cold_header *header)
{
	struct adapter_layout layout;
	struct cold_source source;
	struct convert convert;
	int result;

	assert_int_equal(pack_make(&rig->peft, page_bytes, pack_element(&rig->peft), &layout, &reason), 0);
	assert_int_equal(convert_open(&rig->peft, &layout, rig->weights, &convert, &reason), 0);
	assert_int_equal(cold_source_of(rig->config, rig->weights, &source, NULL), 0);
	result = cold_write(&convert, &source, folder, name, true, header, &reason);
	convert_close(&convert);
	pack_free(&layout);
	return result;
}

static int written(const struct rig *rig, uint32_t page_bytes, struct cold_header *header)
{
	struct stat status;
	int fd;

	assert_int_equal(write_as(rig, page_bytes, "adapter", header), 0);
	fd = openat(folder, "adapter", O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &status), 0);
	assert_int_equal(status.st_size, header->file_bytes);
	assert_int_equal(status.st_mode & 0777, 0600);
	return fd;
}

/* Read all pages of the file. Return its error. `images` is [pages][page_bytes], or NULL. */
static int read_all(int fd, uint8_t *images)
{
	struct cold_file file;
	int error = cold_open(fd, &file, &reason);
	uint8_t *image;

	if (error)
		return error;
	image = malloc(file.layout.header->page_bytes);
	for (uint32_t i = 0; i < file.header->groups && !error; i++) {
		const struct cold_group *group = &file.groups[i];
		uint64_t whole = cold_pages_bytes(&file.layout, file.header->form, group->first_page, group->pages);
		void *stored = aligned_alloc(COLD_ALIGN, cold_align(group->bytes)), *room = malloc(whole);
		const void *pages;
		uint64_t at = 0;

		error = cold_group_read(&file, i, stored);
		if (!error)
			error = cold_group_expand(
				&file, i, stored, group->codec == COLD_RAW ? NULL : room, &pages, &reason);
		for (uint32_t page = group->first_page; page < group->first_page + group->pages && !error; page++) {
			error = cold_page_expand(&file, page, (const uint8_t *)pages + at, image, &reason);
			at += cold_page_bytes(&file.layout, file.header->form, page);
			if (images)
				memcpy(images + (size_t)page * file.layout.header->page_bytes, image,
					file.layout.header->page_bytes);
		}
		free(stored);
		free(room);
	}
	free(image);
	cold_close(&file);
	return error;
}

static uint8_t *images_wanted(const struct rig *rig, uint32_t page_bytes, enum cold_form form)
{
	struct adapter_layout layout;
	struct convert convert;
	uint8_t *images, *int8 = malloc(int8_form_bytes(page_bytes / 256));

	assert_int_equal(pack_make(&rig->peft, page_bytes, pack_element(&rig->peft), &layout, &reason), 0);
	assert_int_equal(convert_open(&rig->peft, &layout, rig->weights, &convert, &reason), 0);
	images = malloc((size_t)layout.header->pages * page_bytes);
	for (uint32_t page = 0; page < layout.header->pages; page++) {
		uint8_t *image = images + (size_t)page * page_bytes;

		assert_int_equal(convert_page(&convert, page, image, &reason), 0);
		if (form == COLD_INT8) {
			int8_form_make(image, page_bytes / 256, layout.header->element, int8);
			int8_form_expand(int8, page_bytes / 256, layout.header->element, image);
		}
	}
	convert_close(&convert);
	pack_free(&layout);
	free(int8);
	return images;
}

static void images_come_back(const struct rig *rig, uint32_t page_bytes, int fd, const struct cold_header *header)
{
	uint8_t *wanted = images_wanted(rig, page_bytes, header->form),
		*images = malloc((size_t)header->pages * page_bytes);

	assert_int_equal(read_all(fd, images), 0);
	assert_memory_equal(images, wanted, (size_t)header->pages * page_bytes);
	free(wanted);
	free(images);
}

/* ---- written files ---- */

static float few_outliers(void)
{
	return rig_random(300) ? rig_normal() : 40 * rig_normal();
}

/* Check that for each layer a group ends with the pages that the layer needs. */
static void groups_end_with_layers(int fd)
{
	struct cold_file file;

	assert_int_equal(cold_open(fd, &file, &reason), 0);
	for (uint32_t i = 0; i < file.layout.header->layers; i++) {
		bool found = false;

		for (uint32_t group = 0; group < file.header->groups; group++)
			found |=
				file.groups[group].first_page + file.groups[group].pages == file.layout.layers[i].pages;
		assert_true(found);
	}
	for (uint32_t group = 0; group < file.header->groups; group++)
		assert_int_equal(file.groups[group].offset % COLD_ALIGN, 0);
	cold_close(&file);
}

static void test_random(void **state)
{
	static struct rig_module modules[43];
	uint32_t forms[COLD_FORMS] = {0};

	(void)state;
	for (uint32_t round = 0; round < 16; round++) {
		uint32_t page_bytes = (512u << 10) << round % 4;
		struct cold_header header;
		struct rig rig;
		int fd, direct;

		rig_make(&rig, modules, rig_random_modules(modules, 43, round % 4 ? 1000 : 9000));
		rig_fill(&rig, round % 2 ? few_outliers : rig_normal);
		fd = written(&rig, page_bytes, &header);
		forms[header.form]++;
		assert_int_equal(reason.text[0] != 0, header.form == COLD_PLAIN);
		images_come_back(&rig, page_bytes, fd, &header);
		groups_end_with_layers(fd);
		direct = openat(folder, "adapter", O_RDONLY | O_DIRECT | O_CLOEXEC);
		if (direct >= 0) {
			images_come_back(&rig, page_bytes, direct, &header);
			close(direct);
		}
		close(fd);
		rig_end(&rig);
	}
	assert_true(forms[COLD_INT8] && forms[COLD_PLAIN]);
}

static const struct rig_module one_layer[] = {
	{"h.0.q", 16, 2048, 2048, SAFETENSORS_F16},
	{"h.0.k", 16, 2048, 1024, SAFETENSORS_F16},
	{"h.0.v", 16, 2048, 1024, SAFETENSORS_F16},
};

/*
 * If the error is small, the file has half of the bytes and 1.6 % for scales. Otherwise it has all bytes and a text
 * with the reason. Zeros are compressed.
 */
static void test_form(void **state)
{
	struct cold_header header;
	struct cold_file file;
	struct rig rig;
	int fd;

	(void)state;
	rig_make(&rig, one_layer, 3);
	rig_fill(&rig, rig_normal);
	fd = written(&rig, 512 << 10, &header);
	assert_int_equal(header.form, COLD_INT8);
	assert_true(header.loss > 0.005f && header.loss < 0.012f && header.bound > header.loss && header.bound < 0.02f);
	/* one group of 1,280 rows */
	assert_int_equal(header.file_bytes, 4096 + cold_align(16 * (4 * 2048 + 2 * 1024) / 128 * 130));
	assert_string_equal(reason.text, "");
	close(fd);
	rig_fill_matrix(&rig, &rig.peft.modules[2].b, few_outliers);
	fd = written(&rig, 512 << 10, &header);
	assert_int_equal(header.form, COLD_PLAIN);
	assert_int_equal(header.loss_module, 2);
	assert_int_equal(
		strncmp(reason.text,
			"the file is stored with 16 bits: with int8, the output of 'h.0.v' has an error of ", 82),
		0);
	close(fd);
	for (uint32_t i = 0; i < 3; i++)
		memset(rig.file + rig.peft.modules[i].b.offset, 0, rig.peft.modules[i].b.bytes);
	fd = written(&rig, 512 << 10, &header);
	assert_int_equal(cold_open(fd, &file, &reason), 0);
	assert_int_equal(header.form, COLD_INT8);
	assert_int_equal(header.loss, 0);
	assert_int_equal(file.groups[0].codec, COLD_ZSTD);
	assert_true(file.groups[0].bytes < cold_pages_bytes(&file.layout, COLD_INT8, 0, file.groups[0].pages) * 2 / 3);
	cold_close(&file);
	images_come_back(&rig, 512 << 10, fd, &header);
	close(fd);
	rig_end(&rig);
}

/* ---- damage ---- */

/* Write a file of two groups. */
static int small(struct rig *rig, struct cold_header *header)
{
	const struct rig_module module = {"h.0.q", 2, 300, 200, SAFETENSORS_F16};
	int fd;

	rig_make(rig, &module, 1);
	rig_fill(rig, rig_normal);
	fd = written(rig, 512 << 10, header);
	assert_int_equal(header->file_bytes, 8192);
	return fd;
}

static void test_damage(void **state)
{
	struct cold_header header;
	uint8_t bytes[8192 + 1] = {0};
	struct rig rig;
	int fd = small(&rig, &header), copy = memfd_create("copy", MFD_CLOEXEC);

	(void)state;
	assert_int_equal(pread(fd, bytes, 8192, 0), 8192);
	for (uint32_t at = 0; at < 8192; at++) {
		uint8_t good = bytes[at];

		bytes[at] ^= (uint8_t)(1 << rig_random(8));
		assert_int_equal(pwrite(copy, bytes, 8192, 0), 8192);
		reason.text[0] = 0;
		assert_int_equal(read_all(copy, NULL), -EINVAL);
		assert_int_not_equal(reason.text[0], 0);
		bytes[at] = good;
	}
	for (uint32_t length = 0; length <= 8193; length++) {
		assert_int_equal(ftruncate(copy, 0), 0);
		assert_int_equal(pwrite(copy, bytes, length, 0), length);
		assert_int_equal(read_all(copy, NULL), length == 8192 ? 0 : -EINVAL);
	}
	close(copy);
	close(fd);
	rig_end(&rig);
}

/* A malicious file with correct checksums. */
struct forged {
	union {
		uint8_t bytes[16384];
		struct cold_header header;
	};
	uint64_t length;
};

static struct cold_group *forged_groups(struct forged *forged)
{
	return (struct cold_group *)(void *)(&forged->header + 1);
}

static int forged_read(struct forged *forged)
{
	int fd = memfd_create("forged", MFD_CLOEXEC), result;

	if (forged->header.head_bytes <= forged->length) {
		forged->header.checksum = 0;
		forged->header.checksum = XXH3_64bits(forged->bytes, forged->header.head_bytes);
	}
	assert_int_equal(pwrite(fd, forged->bytes, forged->length, 0), forged->length);
	result = read_all(fd, NULL);
	close(fd);
	return result;
}

#define FIELD(begin, type, field, change) \
	{ \
#type " " #field, begin + offsetof(struct type, field), sizeof(((struct type *)0)->field), change \
	}
#define HEADER(field, change) FIELD(0, cold_header, field, change)
#define GROUP(field, change) FIELD(sizeof(struct cold_header), cold_group, field, change)

static const struct {
	const char *what;
	size_t offset, bytes;
	int64_t change;
} forgeries[] = {
	HEADER(magic, 1),
	HEADER(version, 1),
	HEADER(header_bytes, 8),
	HEADER(file_bytes, 4096),
	HEADER(file_bytes, -4096),
	HEADER(head_bytes, 1),
	HEADER(head_bytes, 4096),
	HEADER(head_bytes, -4096),
	HEADER(head_bytes, 1 << 30),
	HEADER(form, 2),
	HEADER(form, -1),
	HEADER(groups, 1),
	HEADER(groups, -1),
	HEADER(groups, 1 << 30),
	HEADER(pages, 1),
	HEADER(pages, -1),
	HEADER(pages, 1 << 30),
	HEADER(layout_bytes, 1),
	HEADER(layout_bytes, -1),
	HEADER(layout_bytes, 1 << 20),
	HEADER(loss_module, 1),
	GROUP(offset, 4096),
	GROUP(offset, -4096),
	GROUP(offset, INT64_MIN),
	GROUP(bytes, 1),
	GROUP(bytes, -1),
	GROUP(bytes, 4096),
	GROUP(bytes, INT64_MIN),
	GROUP(checksum, 1),
	GROUP(first_page, 1),
	GROUP(first_page, -1),
	GROUP(pages, 1),
	GROUP(pages, -1),
	GROUP(pages, 1 << 30),
	GROUP(codec, 1),
	GROUP(codec, 2),
	GROUP(reserved, 1),
};

static void test_forged(void **state)
{
	struct cold_header header;
	struct forged good = {.length = 8192}, forged;
	struct rig rig;
	int fd = small(&rig, &header);
	size_t zeros;

	(void)state;
	assert_int_equal(pread(fd, good.bytes, 8192, 0), 8192);
	assert_int_equal(forged_read(&good), 0);
	for (size_t i = 0; i < sizeof(forgeries) / sizeof(*forgeries); i++) {
		uint64_t value = 0;

		forged = good;
		memcpy(&value, forged.bytes + forgeries[i].offset, forgeries[i].bytes);
		value += (uint64_t)forgeries[i].change;
		memcpy(forged.bytes + forgeries[i].offset, &value, forgeries[i].bytes);
		if (forged_read(&forged) != -EINVAL)
			fail_msg("%s by %lld", forgeries[i].what, (long long)forgeries[i].change);
	}
	/* The weights do not match the page's checksum. */
	forged = good;
	forged.bytes[4096]++;
	forged_groups(&forged)->checksum = XXH3_64bits(forged.bytes + 4096, 4096);
	assert_int_equal(forged_read(&forged), -EINVAL);
	assert_non_null(strstr(reason.text, "page 0 does not match its checksum"));
	/* The file has data after the last group. */
	forged = good;
	forged.length = forged.header.file_bytes = 12288;
	assert_int_equal(forged_read(&forged), -EINVAL);
	/* The compressed data has less or more than a group. */
	for (zeros = forged_groups(&good)->bytes - 1; zeros <= forged_groups(&good)->bytes + 1; zeros += 2) {
		static const uint8_t none[8192];

		forged = good;
		memset(forged.bytes + 4096, 0, 4096);
		forged_groups(&forged)->bytes = ZSTD_compress(forged.bytes + 4096, 4096, none, zeros, 3);
		forged_groups(&forged)->codec = COLD_ZSTD;
		forged_groups(&forged)->checksum = XXH3_64bits(forged.bytes + 4096, 4096);
		assert_int_equal(forged_read(&forged), -EINVAL);
		assert_non_null(strstr(reason.text, "does not decompress to"));
	}
	close(fd);
	rig_end(&rig);
}

/* ---- writes that fail ---- */

static uint32_t files_in_folder(void)
{
	DIR *listing = opendir(folder_path);
	uint32_t count = 0;

	for (struct dirent *entry = readdir(listing); entry; entry = readdir(listing))
		count += entry->d_name[0] != '.';
	closedir(listing);
	return count;
}

/* Whichever call fails, only the old file exists afterwards. After the rename, the new file must be complete. */
static void test_failures(void **state)
{
	static const int failures[] = {ENOSPC, EIO, EDQUOT};
	struct cold_header header;
	struct rig rig;
	int fd = small(&rig, &header), result = 1, calls;

	(void)state;
	close(fd);
	for (calls = 0; result; calls++) {
		failure = failures[calls % 3];
		calls_until_failure = calls;
		result = write_as(&rig, 512 << 10, "adapter", NULL);
		if (result) {
			assert_int_equal(result, -failure);
			assert_non_null(strstr(reason.text, "cannot write cold file 'adapter': "));
		}
		calls_until_failure = -1;
		assert_int_equal(files_in_folder(), 1);
		fd = openat(folder, "adapter", O_RDONLY | O_CLOEXEC);
		assert_int_equal(read_all(fd, NULL), 0);
		close(fd);
	}
	assert_int_equal(calls, 6); /* group, head, file, name, folder: each has failed once, and then no call fails */
	rig_put(&rig, &rig.peft.modules[0].a, 0, INFINITY);
	assert_int_equal(write_as(&rig, 512 << 10, "adapter", NULL), -EINVAL);
	assert_string_equal(reason.text, "module 'h.0.q': lora_A[0][0] is inf");
	assert_int_equal(files_in_folder(), 1);
	rig_end(&rig);
}

/* ---- the source files ---- */

static void test_source(void **state)
{
	struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 2}};
	struct adapter_layout layout;
	struct cold_header header;
	struct cold_source source, other;
	struct convert convert;
	struct cold_file file;
	struct rig rig, again;
	int fd = small(&rig, &header);

	(void)state;
	assert_int_equal(cold_open(fd, &file, &reason), 0);
	assert_int_equal(cold_source_of(rig.config, rig.weights, &source, NULL), 0);
	assert_true(cold_is_of(&file, &source));
	/* The source changes in turn: the same bytes in another file, another configuration, another time. */
	close(small(&again, &header));
	assert_int_equal(cold_source_of(again.config, again.weights, &other, NULL), 0);
	assert_int_equal(other.headers, source.headers);
	assert_false(cold_is_of(&file, &other));
	assert_int_equal(pwrite(rig.config, " ", 1, lseek(rig.config, 0, SEEK_END)), 1);
	assert_int_equal(cold_source_of(rig.config, rig.weights, &other, NULL), 0);
	assert_int_not_equal(other.headers, source.headers);
	assert_false(cold_is_of(&file, &other));
	assert_int_equal(futimens(rig.weights, times), 0);
	assert_int_equal(pack_make(&rig.peft, 512 << 10, ADAPTER_F16, &layout, &reason), 0);
	assert_int_equal(convert_open(&rig.peft, &layout, rig.weights, &convert, &reason), 0);
	assert_int_equal(cold_write(&convert, &source, folder, "adapter", true, NULL, &reason), -EINVAL);
	assert_string_equal(reason.text, "weights: the file was changed while it was read");
	convert_close(&convert);
	pack_free(&layout);
	cold_close(&file);
	close(fd);
	rig_end(&again);
	rig_end(&rig);
}

static int folder_open(void **state)
{
	(void)state;
	if (!mkdtemp(temporary_path(folder_path, "test_cold-XXXXXX")))
		return -1;
	folder = open(folder_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return folder < 0 ? -1 : 0;
}

static int folder_remove(void **state)
{
	(void)state;
	unlinkat(folder, "adapter", 0);
	close(folder);
	return rmdir(folder_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_form),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_forged),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_source),
	};

	return cmocka_run_group_tests(tests, folder_open, folder_remove);
}
