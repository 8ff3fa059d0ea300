/* residency_worth.c - what an adapter is worth: its accesses as learned, and what it saves to have it. See residency.h. */
#include "policy/residency_state.h"

#include <string.h>

enum {
	KEY_SHIFT = 20,   /* of a key, bits behind the point */
	UNUSED_WORTH = 6, /* doublings: so much less than after its first access; chosen, any that is clearly less will do */
};

/* ---- logarithms, without the mathematical library, which the agent has no other need for; right to 1e-5 ---- */

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

/* Two to the power of something between -1000 and 1000. */
static double exp2_of(double exponent)
{
	int whole = (int)exponent - (exponent < 0);
	double f = exponent - whole, power;
	uint64_t bits = (uint64_t)(whole + 1023) << 52;

	memcpy(&power, &bits, sizeof(power));
	return power *
	       (1 + f * (0.69314718 + f * (0.24022651 + f * (0.05550411 + f * (0.00961813 + f * (0.00133336 + f * 0.00016))))));
}

/* ---- accesses ---- */

static double half_lives(const struct residency *residency, uint64_t time_us)
{
	return (double)time_us / (double)residency->limits.half_life_us;
}

double heat_unused(const struct residency *residency, uint64_t now_us)
{
	return half_lives(residency, now_us) - UNUSED_WORTH;
}

/* Of which half are forgotten in a half-life. */
double accesses_now(const struct residency *residency, const struct adapter *adapter, uint64_t now_us)
{
	double doublings = adapter->heat - half_lives(residency, now_us);

	return doublings < -1000 ? 0 : exp2_of(doublings > 1000 ? 1000 : doublings);
}

/* Accesses in the last window, if those of the one before were spread evenly. */
static double in_window(const struct residency *residency, const struct adapter *adapter, uint64_t now_us)
{
	double share = 1 - (double)(now_us - adapter->window_us) / (double)residency->limits.window_us;

	return adapter->accesses + share * adapter->accesses_ago;
}

void count_accesses(struct residency *residency, struct adapter *adapter, uint32_t count, uint64_t now_us)
{
	const struct residency_limits *limits = &residency->limits;
	double accesses = accesses_now(residency, adapter, now_us) + count, recent;

	if (now_us - adapter->window_us >= limits->window_us) {
		adapter->accesses_ago = now_us - adapter->window_us < 2 * limits->window_us ? adapter->accesses : 0;
		adapter->accesses = 0;
		adapter->window_us = now_us - (now_us - adapter->window_us) % limits->window_us;
	}
	adapter->accesses += count < UINT32_MAX - adapter->accesses ? count : UINT32_MAX - adapter->accesses;
	recent = in_window(residency, adapter, now_us);
	if (recent >= limits->promote_accesses) {
		double always = recent * (double)limits->half_life_us / (double)limits->window_us /
				0.69314718; /* at this rate for ever */

		accesses = accesses > always ? accesses : always;
	}
	adapter->heat = log2_of(accesses) + half_lives(residency, now_us);
}

/* ---- worth ---- */

static double load_us(const struct residency *residency, const struct adapter *adapter, bool warm)
{
	const struct residency_limits *limits = &residency->limits;

	if (warm)
		return limits->load_us + (double)adapter->warm_bytes / limits->warm_bytes_per_us;
	return limits->load_us + (double)adapter->bytes / limits->cold_bytes_per_us;
}

/* For its bytes of GPU memory. What leaves without a warm copy gets one on the way, which takes as long as to come back from it.
 */
double hot_worth(const struct residency *residency, const struct adapter *adapter)
{
	double us;

	if (adapter->warm != RESIDENCY_NO_COPY)
		us = load_us(residency, adapter, true);
	else if (adapter->copyable)
		us = 2 * load_us(residency, adapter, true);
	else
		us = load_us(residency, adapter, false);
	return adapter->heat + log2_of(us / (double)adapter->bytes);
}

/* For the host memory of its copy: what that saves against the disk. */
static double copy_worth(const struct residency *residency, const struct adapter *adapter)
{
	double saved_us = load_us(residency, adapter, false) - load_us(residency, adapter, true);

	return adapter->heat + log2_of((saved_us > 1 ? saved_us : 1) / (double)adapter->warm_bytes);
}

/* The same order, in 63 bits. */
static uint64_t key_of(double worth)
{
	return (uint64_t)((INT64_C(1) << 62) + (int64_t)(worth * (1 << KEY_SHIFT)));
}

uint64_t victim_key(const struct residency *residency, const struct adapter *adapter)
{
	return (uint64_t)adapter->expected << 63 | key_of(hot_worth(residency, adapter));
}

uint64_t absent_key(const struct residency *residency, const struct adapter *adapter)
{
	return ~key_of(hot_worth(residency, adapter));
}

uint64_t copy_key(const struct residency *residency, const struct adapter *adapter, bool hot)
{
	return (uint64_t)!hot << 63 | key_of(copy_worth(residency, adapter));
}
