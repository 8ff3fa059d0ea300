/*
 * offload_host.h - the cache's own host memory for the content of preempted sequences, in slots with the size of a
 * block. Internal to libgpool. The callers hold the cache's lock.
 */
#ifndef GPOOL_CLIENT_KV_OFFLOAD_HOST_H
#define GPOOL_CLIENT_KV_OFFLOAD_HOST_H

#include "client/kv/offload.h"

struct kv_host {
	char *memory;     /* registered */
	uint64_t address; /* of the memory, for kernels */
	size_t bytes;
	uint32_t slots;
	struct bitmap free;
};

/* host_close() - free the memory. All queued copies must have finished. */
void host_close(struct gpool_kv *kv);

/*
 * host_save() - take slots for `saved` and queue the copies to them.
 * Return: 0, or -ENOSPC, -ENOMEM, -EIO, -EINVAL; on an error no slots are taken.
 */
int host_save(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved);
/*
 * host_load() - queue the copies from the slots. Return: 0, -EIO, -EINVAL.
 * host_forget() - free the slots.
 */
int host_load(struct gpool_kv *kv, const struct kv_sequence *sequence);
void host_forget(struct gpool_kv *kv, struct kv_saved *saved);

#endif
