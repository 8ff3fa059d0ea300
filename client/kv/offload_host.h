/*
 * offload_host.h - host memory of the cache's own, in slots of a block's size, for what preempted sequences contain.
 * Internal to libgpool; the callers hold the cache's lock.
 */
#ifndef GPOOL_CLIENT_KV_OFFLOAD_HOST_H
#define GPOOL_CLIENT_KV_OFFLOAD_HOST_H

#include "client/kv/offload.h"

struct kv_host {
	char *memory; /* registered */
	size_t bytes;
	uint32_t slots;
	struct bitmap free;
};

/* host_close() - when nothing is queued any more. */
void host_close(struct gpool_kv *kv);

/*
 * host_save() - slots for what `saved` says, and copies there are queued: 0, -ENOSPC, -ENOMEM, -EIO, -EINVAL, and it
 * has none.
 */
int host_save(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved);
/* host_load() - copies from there are queued: 0, -EIO, -EINVAL. host_forget() - its slots are free. */
int host_load(struct gpool_kv *kv, const struct kv_sequence *sequence);
void host_forget(struct gpool_kv *kv, struct kv_saved *saved);

#endif
