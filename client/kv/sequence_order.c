/* sequence_order.c - the order of the running and of the preempted sequences; see struct kv_order. */
#include "client/kv/kv.h"

int kv_sequence_compare(const struct kv_sequence *a, const struct kv_sequence *b)
{
	if (a->priority != b->priority)
		return a->priority < b->priority ? -1 : 1;
	if (a->arrival != b->arrival)
		return a->arrival > b->arrival ? -1 : 1;
	return a < b ? -1 : a > b;
}

RB_GENERATE(kv_order, kv_sequence, order, kv_sequence_compare)
