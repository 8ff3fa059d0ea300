#include "client/kv/budget.h"

#define SECOND_NS 1000000000

void budget_init(struct budget *budget, uint64_t bytes_per_s, uint64_t least, uint64_t now_ns)
{
	uint64_t most = bytes_per_s > least ? bytes_per_s : least;

	*budget = (struct budget){
		.bytes_per_s = bytes_per_s, .most = (unsigned __int128)most * SECOND_NS, .filled_ns = now_ns};
	budget->level = budget->most;
}

uint64_t budget_room(struct budget *budget, uint64_t now_ns)
{
	unsigned __int128 more;

	if (!budget->bytes_per_s)
		return UINT64_MAX;
	if (now_ns > budget->filled_ns) {
		more = (unsigned __int128)(now_ns - budget->filled_ns) * budget->bytes_per_s;
		budget->level = more < budget->most - budget->level ? budget->level + more : budget->most;
		budget->filled_ns = now_ns;
	}
	return (uint64_t)(budget->level / SECOND_NS);
}

void budget_spend(struct budget *budget, uint64_t bytes)
{
	unsigned __int128 spent = (unsigned __int128)bytes * SECOND_NS;

	budget->level -= spent < budget->level ? spent : budget->level;
}
