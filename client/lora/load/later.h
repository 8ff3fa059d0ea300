/*
 * later.h - the copies of loaded adapters that are to be made, in host memory and on disk. Internal to client/lora.
 *
 * A copy on disk is made after the load, as soon as no other work is queued. If the idle time (later_idle_ms()) is 0,
 * the same applies to a copy in host memory. Otherwise, this copy is made when the adapter is not acquired, and the
 * idle time has passed since it was last acquired. With limits, the residency policy decides the copies in host memory
 * instead.
 *
 * Copies are made from files, so an adapter may be used or evicted in the meantime. All functions are called under the
 * lock; only later_take() releases it.
 */
#ifndef GPOOL_CLIENT_LORA_LATER_H
#define GPOOL_CLIENT_LORA_LATER_H

#include "client/lora/load/load.h"

struct lora_later {
	struct adapter *adapter; /* a reference */
	uint32_t id;             /* number under which the adapter is, or was, registered */
	bool warm, cold;         /* the copies to make */
	bool decided;            /* the policy has decided the copy in host memory */
	uint32_t since_ms;       /* in lora->resting: pool_clock() since which no use is known */
	uint64_t warm_refused;   /* version of an invalid copy to replace; 0: none */
	bool cold_refused;
	/* results: of the copy in host memory, and the version of one that was made; 0: none */
	int error;
	uint64_t version;
	TAILQ_ENTRY(lora_later) link;
};

/* later_idle_ms() - return the time without a use after which an adapter is copied to host memory. */
uint32_t later_idle_ms(const struct gpool_lora *lora);

/* later_load() - register the copies to make after a load. If no memory is available, no copies are made. */
void later_load(const struct lora_load *load);

/* later_decided() - register a copy in host memory that the policy has decided. Return: 0, -ENOMEM. */
int later_decided(struct gpool_lora *lora, struct lora_entry *entry);

/*
 * later_due_ns() - return the time at which the next copy is due, on the monotonic clock; UINT64_MAX: none, or another
 * thread is making one.
 * later_take() - make the copies of an adapter, if they are due.
 * later_drop() - drop all copies to make.
 */
uint64_t later_due_ns(struct gpool_lora *lora);
void later_take(struct lora_loader *loader);
void later_drop(struct gpool_lora *lora);

/* copies_make() - make the missing copies in the warm pool and in the folder; without the lock. Failures are logged. */
void copies_make(struct lora_loader *loader, struct lora_later *later);

#endif
