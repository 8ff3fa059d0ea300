#include "shm/policy/worth.h"

#include <string.h>

enum {
	KEY_SHIFT = 20, /* fractional bits of a key */
	/*
	 * binary logarithm of the factor by which the first use raises the worth of an item; the exact value is not
	 * critical
	 */
	UNUSED_WORTH = 6,
};

/* ---- logarithms, accurate to 1e-5; the agent must not depend on libm ---- */

static double log2_of(double value)
{
	uint64_t bits, mantissa;
	double s, t;

	memcpy(&bits, &value, sizeof(bits));
	mantissa = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1023) << 52;
	memcpy(&s, &mantissa, sizeof(s));
	s = (s - 1) / (s + 1);
	t = s * s;
	return (double)((int)(bits >> 52) - 1023) +
		2.8853900817779268 * s * (1 + t * (1 / 3.0 + t * (1 / 5.0 + t * (1 / 7.0 + t / 9))));
}

/* Return 2 to the power of a value between -1000 and 1000. */
static double exp2_of(double exponent)
{
	static const double terms[] = {1, 0.69314718, 0.24022651, 0.05550411, 0.00961813, 0.00133336, 0.00016};
	int whole = (int)exponent - (exponent < 0);
	double f = exponent - whole, power, sum = 0;
	uint64_t bits = (uint64_t)(whole + 1023) << 52;

	memcpy(&power, &bits, sizeof(power));
	for (int i = 6; i >= 0; i--)
		sum = terms[i] + f * sum;
	return power * sum;
}

/* ---- uses ---- */

static double half_lives(const struct worth_terms *terms, uint64_t time_us)
{
	return (double)time_us / (double)terms->half_life_us;
}

void worth_begin(const struct worth_terms *terms, struct worth *worth, uint64_t now_us)
{
	*worth = (struct worth){.heat = half_lives(terms, now_us) - UNUSED_WORTH, .window_us = now_us};
}

double worth_uses(const struct worth_terms *terms, const struct worth *worth, uint64_t now_us)
{
	double doublings = worth->heat - half_lives(terms, now_us);

	return doublings < -1000 ? 0 : exp2_of(doublings > 1000 ? 1000 : doublings);
}

static void window_move(const struct worth_terms *terms, struct worth *worth, uint64_t now_us)
{
	uint64_t age = now_us - worth->window_us;

	if (age < terms->window_us)
		return;
	worth->uses_ago = age < 2 * terms->window_us ? worth->uses : 0;
	worth->uses = 0;
	worth->window_us = now_us - age % terms->window_us;
}

double worth_recent(const struct worth_terms *terms, struct worth *worth, uint64_t now_us)
{
	window_move(terms, worth, now_us);
	return worth->uses + (1 - (double)(now_us - worth->window_us) / (double)terms->window_us) * worth->uses_ago;
}

void worth_count(const struct worth_terms *terms, struct worth *worth, uint32_t count, uint64_t now_us)
{
	double uses = worth_uses(terms, worth, now_us) + count, recent;

	window_move(terms, worth, now_us);
	worth->uses += count < UINT32_MAX - worth->uses ? count : UINT32_MAX - worth->uses;
	recent = worth_recent(terms, worth, now_us);
	if (recent >= terms->promote_uses) {
		/* The number of uses that would be remembered if this rate had always held. */
		double always = recent * (double)terms->half_life_us / (double)terms->window_us / 0.69314718;

		uses = uses > always ? uses : always;
	}
	worth->heat = log2_of(uses) + half_lives(terms, now_us);
}

/* ---- worth ---- */

double worth_of(const struct worth *worth, double us, double bytes)
{
	return worth->heat + log2_of(us / bytes);
}

uint64_t worth_key(double worth)
{
	return (uint64_t)((INT64_C(1) << 62) + (int64_t)(worth * (1 << KEY_SHIFT)));
}
