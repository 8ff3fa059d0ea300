#include "tools/lib/adapter_make.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct target {
	const char *name;
	uint32_t in, out;
} targets[] = {
	{"q_proj", 4096, 4096},
	{"k_proj", 4096, 1024},
	{"v_proj", 4096, 1024},
	{"o_proj", 4096, 4096},
	{"gate_proj", 4096, 14336},
	{"up_proj", 4096, 14336},
	{"down_proj", 14336, 4096},
};
enum { TARGETS = sizeof(targets) / sizeof(*targets) };

/* xorshift; the state must not be 0. */
static uint32_t random_next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (uint32_t)(*state >> 16);
}

static uint64_t tensor_name(char *text, size_t room, const struct target *target, uint32_t layer, uint32_t rank,
	char matrix, uint64_t offset)
{
	uint32_t rows = matrix == 'A' ? rank : target->out, columns = matrix == 'A' ? target->in : rank;
	uint64_t end = offset + 4 * (uint64_t)rows * columns;

	snprintf(text, room,
		"%c\"base_model.model.model.layers.%u.%s.lora_%c.weight\":{\"dtype\":\"F32\",\"shape\":[%u,%u],\"data_"
		"offsets\":[%llu,%llu]}",
		offset ? ',' : '{', layer, target->name, matrix, rows, columns, (unsigned long long)offset,
		(unsigned long long)end);
	return end;
}

/* Write approximately normal values. Return: 0 or negative errno. */
static int values_write(int fd, uint64_t bytes)
{
	static float values[65536];
	uint64_t state = 1;

	for (uint64_t done = 0; done < bytes; done += sizeof(values)) {
		uint64_t some = bytes - done < sizeof(values) ? bytes - done : sizeof(values);

		for (uint64_t i = 0; i < some / sizeof(*values); i++) {
			int64_t sum = 0;

			for (int j = 0; j < 4; j++)
				sum += random_next(&state);
			values[i] = (float)(sum - (INT64_C(1) << 33)) * 0x1p-36f;
		}
		if (write(fd, values, some) != (ssize_t)some)
			return -EIO;
	}
	return 0;
}

int adapter_make(int config_fd, int weights_fd, uint32_t layers, uint32_t rank)
{
	static const char config[] = "{\"peft_type\":\"LORA\",\"lora_alpha\":32}";
	static char header[ADAPTER_MAKE_LAYERS_MAX * TARGETS * 2 * 200];
	uint64_t offset = 0, length = 0;

	if (!layers || layers > ADAPTER_MAKE_LAYERS_MAX || !rank)
		return -EINVAL;
	for (uint32_t i = 0; i < layers * TARGETS * 2; i++) {
		offset = tensor_name(header + length, sizeof(header) - length, &targets[i / 2 % TARGETS],
			i / 2 / TARGETS, rank, i % 2 ? 'B' : 'A', offset);
		length += strlen(header + length);
	}
	strcat(header, "}");
	while (strlen(header) % 8)
		strcat(header, " ");
	length = strlen(header);
	if (write(config_fd, config, sizeof(config) - 1) < 0 || write(weights_fd, &length, 8) != 8 ||
		write(weights_fd, header, length) != (ssize_t)length)
		return -EIO;
	return values_write(weights_fd, offset);
}
