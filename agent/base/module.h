/*
 * module.h - the interface between the keeper, which runs as long as gpoold, and the module. Each forked child loads
 * the code of agent, front and mover from the module's file. An upgrade loads a new file in a new child. The child does
 * not call exec, which would lose the writable mappings of the sealed pool segments. The keeper is not replaced,
 * because the descriptors that it holds would be lost.
 *
 * The keeper accepts a module of any version whose layouts (layout.h) equal its own: the layout of shared memory
 * (POOL_LAYOUT_VERSION), and that of the structs and functions in this file (MODULE_ABI). Structs that begin with their
 * size may have more fields at the end, and either side may have additional messages. The keeper refuses a module with
 * any other difference.
 */
#ifndef GPOOL_AGENT_MODULE_H
#define GPOOL_AGENT_MODULE_H

#include "agent/keeper/channel.h"
#include "agent/base/layout.h"
#include "agent/base/ledger.h"
#include "shm/pool_segment.h"

enum {
	MODULE_ABI = 2,
	MODULE_POOLS_MAX = 32,
};
#define MODULE_SYMBOL "gpool_module"

struct recipe;

struct module_pool {
	struct pool_segment segment; /* writable in the agent */
	int segment_fd;              /* a read-only descriptor, sent to other processes */
	int device;                  /* index of the device in its back end */
	uint64_t handle_bytes;
	struct ledger ledger; /* mapped only in the agent */
	int ledger_fd;
	void *ring; /* struct mover_ring; shared by agent and mover */
	size_t ring_bytes;
	int work_bell, done_bell; /* eventfds: agent -> mover, mover -> agent */
};

struct module_start {
	uint32_t size; /* sizeof(struct module_start) in the keeper */
	/* restarts of this process */
	uint32_t restarts;
	/* the command line, for a reload. The keeper holds the current configuration as KEEP_CONFIG */
	const struct recipe *recipe;
	struct module_pool *pools;
	uint32_t pool_count;
	uint32_t held_count;
	const struct held *held; /* the items that the keeper holds */
	uint64_t incarnation;
	int listen_fd;
	int keeper_fd; /* agent: socket to the keeper, SOCK_SEQPACKET */
	uint32_t pool; /* mover: index of its pool */
	int parent;    /* pid of the keeper */
	/*
	 * 1: pools and held items are from an earlier run of gpoold. Its sessions must end: the keeper holds their
	 * segments and pidfds, but not their connections (fds of -1). Their processes have mapped another pool segment,
	 * of which this one is a copy. 0 after the first KEEP_READY.
	 */
	uint32_t adopted;
};

/* The properties of a device. A child queries them, because the keeper never calls a driver. */
struct module_device {
	int32_t error;
	int32_t index;
	uint64_t granularity, memory_bytes;
	char uuid[64];
	char text[256];
	char peers[POOL_PEERS_BYTES]; /* in: the configured devices; out: their UUIDs. Separated by spaces */
};

struct module {
	uint32_t size; /* sizeof(struct module) in the module */
	uint32_t abi;
	uint32_t layout_version; /* layout of pool segment, session segment and ledger */
	const char *version;
	/* Each function returns the exit status of the process. */
	int (*agent)(const struct module_start *start);
	int (*mover)(const struct module_start *start);
	int (*front)(const struct module_start *start, const void *options);
	int (*device)(const char *backend, const char *device, struct module_device *answer);
	const struct layout *layout; /* layout of the module */
};

#endif
