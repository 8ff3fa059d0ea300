/*
 * fuzz_adapter.c - arbitrary bytes as the two files of an adapter.
 *
 * Method: the first two bytes are the length of adapter_config.json; the rest is the header of the tensors. The stated
 * data length is the length that the header requires, or one byte more. Checked: a rejection has a reason. In an
 * accepted adapter, matrices are within the file, have the size of their shapes and do not overlap; modules are sorted
 * and unique.
 *
 * Requirements: S10.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lora/format/peft.h"
#include "client/lora/format/peft_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int condition)
{
	if (!condition)
		abort();
}

static void check_matrix(const struct peft *peft, const struct peft_matrix *matrix, uint64_t elements)
{
	uint32_t element = safetensors_type_bytes(matrix->type);

	demand(matrix->type == SAFETENSORS_F32 || matrix->type == SAFETENSORS_F16 || matrix->type == SAFETENSORS_BF16);
	demand(matrix->bytes == elements * element && matrix->offset % element == 0);
	demand(matrix->offset <= peft->file_bytes && matrix->bytes <= peft->file_bytes - matrix->offset);
}

static void check_peft(const struct peft *peft)
{
	demand(peft->count > 0 && peft->count <= PEFT_MODULES_MAX);
	for (uint32_t i = 0; i < peft->count; i++) {
		const struct peft_module *module = &peft->modules[i], *before = module - 1;

		demand(module->rank > 0 && module->rank <= peft->rank_max && peft->rank_max <= PEFT_RANK_MAX);
		demand(module->layer == PEFT_NO_LAYER || module->layer < peft->layers);
		demand(module->scale >= -65504 && module->scale <= 65504);
		demand(strlen(module->path) > 0 && strlen(module->target) > 0);
		demand(i == 0 || before->layer < module->layer ||
			(before->layer == module->layer && strcmp(before->target, module->target) < 0));
		check_matrix(peft, &module->a, (uint64_t)module->rank * module->in);
		check_matrix(peft, &module->b, (uint64_t)module->rank * module->out);
	}
}

static void check_tensors(const struct safetensors *file, uint64_t file_bytes)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < file->count; i++) {
		demand(file->tensors[i].offset >= file->data_offset && file->tensors[i].offset <= file_bytes);
		demand(file->tensors[i].bytes <= file_bytes - file->tensors[i].offset);
		demand(i == 0 || strcmp(file->tensors[i - 1].name, file->tensors[i].name) < 0);
		demand(safetensors_find(file, file->tensors[i].name) == &file->tensors[i]);
		sum += file->tensors[i].bytes;
	}
	demand(sum == file_bytes - file->data_offset);
}

/* Return the largest number in the text: the end of the data, if the header is valid. */
static uint64_t end_wanted(const uint8_t *text, size_t size)
{
	uint64_t most = 0, number = 0;

	for (size_t i = 0; i < size; i++) {
		number = text[i] >= '0' && text[i] <= '9' ? (number * 10 + text[i] - '0') & ((UINT64_C(1) << 40) - 1)
							  : 0;
		if (number > most)
			most = number;
	}
	return most;
}

static int memory_file(const void *bytes, size_t length)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	demand(fd >= 0);
	demand(write(fd, bytes, length) == (ssize_t)length);
	return fd;
}

static void check_files(
	const uint8_t *config, size_t config_bytes, const uint8_t *header, size_t header_bytes, uint64_t data_bytes)
{
	uint64_t length = header_bytes;
	int config_fd = memory_file(config, config_bytes), weights_fd = memory_file(&length, 8), result;
	struct reason reason = {""};
	struct peft peft;

	demand(write(weights_fd, header, header_bytes) == (ssize_t)header_bytes);
	demand(ftruncate(weights_fd, (off_t)(8 + header_bytes + data_bytes)) == 0);
	result = peft_read(config_fd, weights_fd, &peft, &reason);
	if (result) {
		demand(result == -EINVAL && reason.text[0]);
	} else {
		check_peft(&peft);
		peft_free(&peft);
	}
	close(config_fd);
	close(weights_fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char config[] = "{\"peft_type\":\"LORA\",\"alpha_pattern\":{\"q\":4}}";
	struct reason reason = {""};
	struct safetensors file;
	size_t split;
	uint64_t wanted;

	if (size < 2)
		return 0;
	split = data[0] | (size_t)data[1] << 8;
	data += 2;
	size -= 2;
	if (split > size)
		split = size;
	wanted = end_wanted(data + split, size - split) + (split & 1 && split == size);
	if (safetensors_parse(data + split, size - split, 8 + size - split + wanted, &file, &reason) == 0) {
		check_tensors(&file, 8 + size - split + wanted);
		safetensors_free(&file);
	} else {
		demand(reason.text[0] != 0);
	}
	check_files(data, split, data + split, size - split, wanted);
	check_files((const uint8_t *)config, strlen(config), data + split, size - split, wanted);
	return 0;
}
