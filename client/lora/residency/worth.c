/*
 * worth.c - compute the time that a resident adapter saves; see residency.h and worth.h.
 */
#include "client/lora/residency/state.h"

static double load_us(const struct residency *residency, const struct adapter *adapter, bool warm)
{
	const struct residency_limits *limits = &residency->limits;

	if (warm)
		return limits->load_us + (double)adapter->warm_bytes / limits->warm_bytes_per_us;
	return limits->load_us + (double)adapter->bytes / limits->cold_bytes_per_us;
}

/*
 * An adapter that can have a warm copy but has none gets one before its eviction. Making the copy is assumed to take as
 * long as loading from it.
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
	return worth_of(&adapter->worth, us, (double)adapter->bytes);
}

/* Return the worth per byte of the copy in host memory: the time saved compared with a load from disk. */
static double copy_worth(const struct residency *residency, const struct adapter *adapter)
{
	double saved_us = load_us(residency, adapter, false) - load_us(residency, adapter, true);

	return worth_of(&adapter->worth, saved_us > 1 ? saved_us : 1, (double)adapter->warm_bytes);
}

uint64_t victim_key(const struct residency *residency, const struct adapter *adapter)
{
	return (uint64_t)adapter->expected << 63 | worth_key(hot_worth(residency, adapter));
}

uint64_t absent_key(const struct residency *residency, const struct adapter *adapter)
{
	return ~worth_key(hot_worth(residency, adapter));
}

uint64_t copy_key(const struct residency *residency, const struct adapter *adapter, bool hot)
{
	return (uint64_t)!hot << 63 | worth_key(copy_worth(residency, adapter));
}
