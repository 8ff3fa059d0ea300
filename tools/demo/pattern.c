#include "tools/demo/pattern.h"

/* 2^64 / golden ratio: adding it changes all bytes of the sum over time */
static const uint64_t step = UINT64_C(0x9e3779b97f4a7c15);
enum { BATCH = 64 }; /* words; a loop of constant length is vectorized at -O2 */

/* The last step of splitmix64: a change of one input bit changes half of the output bits on average. */
static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

uint64_t pattern_seed(const struct pattern_owner *owner, uint32_t page)
{
	return mix(
		mix(mix(owner->engine + step) + owner->request + step) + ((uint64_t)owner->life << 32 | page) + step);
}

uint64_t pattern_word(uint64_t seed, uint64_t index)
{
	return seed + index * step;
}

void pattern_write(uint64_t *page, uint64_t seed, uint64_t first, uint64_t count)
{
	uint64_t *words = page + first;
	uint64_t value = pattern_word(seed, first);
	uint64_t i = 0;

	for (; i + BATCH <= count; i += BATCH, value += BATCH * step)
		for (uint64_t j = 0; j < BATCH; j++)
			words[i + j] = value + j * step;
	for (; i < count; i++, value += step)
		words[i] = value;
}

int64_t pattern_check(const uint64_t *page, uint64_t seed, uint64_t first, uint64_t count)
{
	uint64_t end = first + count, i = first;

	for (; i + BATCH <= end; i += BATCH) {
		uint64_t value = pattern_word(seed, i), wrong = 0;

		for (uint64_t j = 0; j < BATCH; j++)
			wrong |= page[i + j] ^ (value + j * step);
		if (wrong)
			break;
	}
	for (; i < end; i++)
		if (page[i] != pattern_word(seed, i))
			return (int64_t)i;
	return -1;
}
