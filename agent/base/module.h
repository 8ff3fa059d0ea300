/*
 * module.h - the interface between the keeper, which runs as long as gpoold, and the code of agent, front and mover,
 * which each forked child loads from a file. An upgrade therefore loads a new file in a new child. It does not exec,
 * which would lose the writable mappings of the sealed pool segments, and does not replace the keeper, which would lose
 * the descriptors.
 *
 * The keeper accepts a module of any version whose layouts (layout.h) equal its own: that of the shared memory, with
 * the number POOL_LAYOUT_VERSION, and that of the structs and functions here, with the number MODULE_ABI. Structs that
 * begin with their size may grow at the end. The keeper refuses a module with any other change of a layout.
 */
#ifndef GPOOL_AGENT_MODULE_H
#define GPOOL_AGENT_MODULE_H

#include "agent/keeper/channel.h"
#include "agent/base/layout.h"
#include "agent/base/ledger.h"
#include "shm/pool_segment.h"

enum {
	MODULE_ABI = 1,
	MODULE_POOLS_MAX = 32,
};
#define MODULE_SYMBOL "gpool_module"

struct recipe;

/* One pool, as the keeper created it. */
struct module_pool {
	struct pool_segment segment; /* writable in the agent */
	int segment_fd;              /* read-only for its receivers */
	int device;                  /* index within its back end */
	uint64_t handle_bytes;
	struct ledger ledger; /* mapped only in the agent */
	int ledger_fd;
	void *ring; /* struct mover_ring; shared by agent and mover */
	size_t ring_bytes;
	int work_bell, done_bell; /* eventfds: agent -> mover, mover -> agent */
};

struct module_start {
	uint32_t size; /* sizeof(struct module_start) of the keeper */
	/* of this process, without the first start */
	uint32_t restarts;
	/* the command line, for a reload; the current configuration is held, as KEEP_CONFIG */
	const struct recipe *recipe;
	struct module_pool *pools;
	uint32_t pool_count;
	uint32_t held_count;
	const struct held *held; /* the items that the keeper holds */
	uint64_t incarnation;
	int listen_fd;
	int keeper_fd; /* agent: SOCK_SEQPACKET to the keeper */
	uint32_t pool; /* mover: its pool */
	int parent;    /* the keeper's pid */
	/*
	 * 1: pools and held items belong to an earlier run of gpoold. Its sessions must end: their segments and pidfds
	 * are held, their connections are not (fds of -1), and the pool segment is a copy of the one that they have
	 * mapped. 0 after the first KEEP_READY.
	 */
	uint32_t adopted;
};

/* The properties of a device, queried in a child, since the keeper never calls a driver. */
struct module_device {
	int32_t error;
	int32_t index;
	uint64_t granularity, memory_bytes;
	char uuid[64];
	char text[256];
};

struct module {
	uint32_t size; /* sizeof(struct module) of the module */
	uint32_t abi;
	uint32_t layout_version; /* of pool segment, session segment and ledger */
	const char *version;
	/* Each returns its exit status. */
	int (*agent)(const struct module_start *start);
	int (*mover)(const struct module_start *start);
	int (*front)(const struct module_start *start, const void *options);
	int (*device)(const char *backend, const char *device, struct module_device *answer);
	const struct layout *layout; /* that the module was built with */
};

#endif
