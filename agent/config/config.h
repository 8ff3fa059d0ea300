/*
 * config.h - the configuration of gpoold: libconfig files, checked strictly.
 *
 * config_load() either fills a complete struct config or reports an error with file and line. Defaults, ranges, units
 * and texts are defined in config_keys.def, from which the parser, `gpoold --print-config`, the example file and
 * gpoold.conf(5) are generated.
 */
#ifndef GPOOL_AGENT_CONFIG_H
#define GPOOL_AGENT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	CONFIG_POOLS_MAX = 32,
	CONFIG_TENANTS_MAX = 64,
	CONFIG_NAMES_MAX = 64, /* users or groups in one list */
	CONFIG_NAME_BYTES = 64,
	CONFIG_PATH_BYTES = 96, /* leaves room for a socket's name in the 108 bytes of sun_path */
	CONFIG_KEYS_MAX = 80,
	CONFIG_SOURCES_MAX = 64, /* files and the command line */
};

enum config_leak_action { CONFIG_LEAK_REPORT, CONFIG_LEAK_UNPIN, CONFIG_LEAK_DISCONNECT };
enum config_strategy { CONFIG_BEST_FIT, CONFIG_FIRST_FIT };
enum config_unused { CONFIG_UNUSED_KEEP, CONFIG_UNUSED_LEND };
enum config_release { CONFIG_RELEASE_UNMAP, CONFIG_RELEASE_DEATH };
enum config_log_target { CONFIG_LOG_STDERR, CONFIG_LOG_JOURNAL };

/*
 * The place where a value was set, encoded as line | source << 24. It allows checks of several keys to report file and
 * line. The source is an index of config.sources[]; 0 is the default.
 */

/* An amount of pool memory with its unit: "2GiB", "4096 pages", "90%". */
enum config_amount_unit { CONFIG_AMOUNT_BYTES, CONFIG_AMOUNT_PAGES, CONFIG_AMOUNT_PERCENT };
struct config_amount {
	enum config_amount_unit unit;
	uint64_t value;
};

struct config_pool {
	char name[CONFIG_NAME_BYTES];
	char backend[16];
	char device[64]; /* index or UUID */
	char peers[640]; /* indexes and UUIDs, separated by spaces; "none" */
	struct config_amount size;
	uint64_t page_bytes;           /* 512 KiB, 1, 2 or 4 MiB */
	uint64_t handle_bytes;         /* 0: the larger of page size and granularity */
	uint64_t alignment;            /* of allocations that are smaller than a page; a power of two */
	int huge_pages;                /* 0 no, 1 yes; see huge_pages.h */
	struct config_amount reserved; /* pages for critical requests; see config_finish() */
	bool reserved_given;           /* set in the configuration, so not reduced */
	uint64_t spill_memory_bytes;
	char spill_directory[CONFIG_PATH_BYTES]; /* empty: no file */
	uint64_t spill_file_bytes;
	uint32_t objects;          /* versions of named objects; 0: the number of pages */
	uint32_t flight_records;   /* records of the flight recorder; 0: off */
	uint32_t pinnable_objects; /* maximum; 0: limited by memory only */
	uint32_t origin;
};

/*
 * User and group ids that have a right. Names are resolved when the configuration is loaded; an unknown name is an
 * error. Root has all rights.
 */
struct config_names {
	uint32_t count;
	uint32_t ids[CONFIG_NAMES_MAX];
};

struct config_tenant {
	char name[CONFIG_NAME_BYTES];
	struct config_names users, groups;
	struct config_amount minimum;   /* guaranteed; the minima together must fit each pool */
	struct config_amount limit;     /* maximum that it may lease */
	uint32_t weight;                /* 1..1000 */
	uint32_t priority;              /* 0..100; higher is evicted later */
	enum config_unused unused;      /* use of the unleased part of the minimum */
	char domain[CONFIG_NAME_BYTES]; /* trust domain */
	char adapters[512];             /* patterns of the names of adapters that it may use, separated by spaces */
	uint32_t origin;
};

struct config {
	char runtime_dir[CONFIG_PATH_BYTES];
	char group[CONFIG_NAME_BYTES]; /* group that owns the sockets; empty: the agent's own group */
	gid_t group_id;
	char front_user[CONFIG_NAME_BYTES]; /* user of the front if gpoold runs as root */
	uid_t front_uid;
	gid_t front_gid;
	int keep_over_restart; /* 0 no, 1 yes */
	int core_dumps;        /* 0 no, 1 yes */
	int log_level;         /* 0 error, 1 warning, 2 info, 3 debug */
	enum config_log_target log_target;

	uint32_t pool_count;
	struct config_pool pools[CONFIG_POOLS_MAX];
	uint32_t tenant_count; /* at least 1: "default" is added if none is configured */
	struct config_tenant tenants[CONFIG_TENANTS_MAX];

	struct {
		/* both empty: all users that can connect to the socket */
		struct config_names worker_users, worker_groups;
		struct config_names observer_users, observer_groups;
		struct config_names admin_users, admin_groups; /* both empty: root and the agent's own user */
	} access;

	struct {
		uint32_t sessions;       /* maximum per pool */
		uint32_t kept_sessions;  /* part that is kept for admins and observers; see session_limits.h */
		uint32_t tenant_percent; /* percentage of the other sessions that is guaranteed to tenants */
		uint32_t user_percent;   /* maximum percentage of the other sessions for one user */
		uint32_t message_bytes;
		uint32_t requests_per_second; /* limit per token */
	} limits;

	struct {
		uint32_t initial_pages; /* leased at attach */
		uint32_t batch_pages;   /* minimum leased at a refill */
		uint32_t batch_most;    /* limit up to which the batch size grows under demand */
		uint32_t idle_ms;       /* time without a refill after which idle pages are returned */
		uint32_t keep_pages;    /* idle pages that are not returned */
		enum config_strategy strategy;
		uint32_t thread_cache_pages; /* default of struct gpool_options.magazine */
	} lease;

	struct {
		char policy[32];
		uint32_t start_percent, stop_percent;
		double recency, size, priority; /* weights; their sum is 1 */
		double hysteresis;              /* additional share evicted per request */
	} eviction;

	struct {
		uint32_t medium_percent, high_percent, critical_percent;
	} pressure;

	struct {
		uint32_t timeout_ms;
		uint32_t max_duration_ms;
		enum config_leak_action leaked;
	} pins;

	struct {
		uint32_t hot_budget, warm_budget; /* maximum numbers in a pool; 0: limited by memory only */
		uint32_t promotion_uses, compression_ms;
	} adapters;

	struct {
		enum config_release release; /* when a page counts as released by a process */
		uint32_t death_grace_ms;
	} trust;

	struct {
		uint32_t patience_ms; /* longest wait of jobs for a missing mover */
	} mover;

	struct {
		uint32_t sampling; /* one in this number of blocks is recorded; 0: none */
	} flight;

	uint32_t source_count;
	char sources[CONFIG_SOURCES_MAX][CONFIG_PATH_BYTES]; /* [0] is unused */
	uint32_t origins[CONFIG_KEYS_MAX];                   /* indexed like config_keys.def */
};

/* The first error: "FILE:LINE: problem, limit, remedy". */
struct config_error {
	char text[512];
};

/*
 * config_load() - read `path`, then each *.conf in the directory `path`.d, in the order of their names. A later value
 * replaces an earlier one; lists of pools and tenants are joined. Return: 0, or a negative errno with error->text set:
 * -EINVAL, -EACCES (writable by all users), or an error of the files.
 */
int config_load(const char *path, struct config *config, struct config_error *error);

/* config_defaults() - set the values of an empty file, without a pool. */
void config_defaults(struct config *config);

/*
 * config_set() - set one `key=value` of the command line (`--set eviction.start=85`). The checks are the same as in a
 * file; errors name "--set" as the source.
 */
int config_set(struct config *config, const char *assignment, struct config_error *error);

/* config_add_pool() - add a pool of the command line, such as "name=gpu0,backend=host,size=2GiB,page_size=2MiB". */
int config_add_pool(struct config *config, const char *text, struct config_error *error);

/*
 * config_finish() - check the configuration as a whole: at least one pool, unique names, ordered percentages, minima
 * that fit. It also adds the tenant "default" if no tenant is configured. If a pool's size is in bytes or pages, its
 * default of reserved pages is limited to a sixteenth of the pool. For a size in percent, the keeper does this, since
 * it knows the device.
 */
int config_finish(struct config *config, struct config_error *error);

/* Properties of a device; 0: unknown, when a configuration is checked without the device. */
struct config_device {
	uint64_t granularity;
	uint64_t memory_bytes;
};

struct config_measure {
	uint64_t handle_bytes;
	uint32_t pages; /* 0: unknown, since the size is in percent of the device's memory */
	uint32_t reserved;
};

/*
 * config_pool_measure() - compute the size and division of a pool, or report an error. --check-config, reload and start
 * use this check; only the start knows the device.
 */
int config_pool_measure(const struct config *config, const struct config_pool *pool, const struct config_device *device,
	struct config_measure *measure, struct config_error *error);

/*
 * config_amount_pages() - return the whole pages of an amount in a pool of page_count pages of page_bytes. A percentage
 * refers to page_count. The result may exceed page_count.
 */
uint32_t config_amount_pages(const struct config_amount *amount, uint64_t page_bytes, uint32_t page_count);

uint32_t config_domains(const struct config *config);

/*
 * config_spill_slots() - return the maximum number of spilled pages of a pool, in both tiers; *memory_slots receives
 * the number in host memory.
 */
uint32_t config_spill_slots(const struct config_pool *pool, uint32_t *memory_slots);

/*
 * config_difference() - list the changed keys of a reload, separated by commas: in `applies` those that take effect at
 * once, in `restart` those that need a restart.
 */
void config_difference(const struct config *now, const struct config *next, char *applies, size_t applies_bytes,
	char *restart, size_t restart_bytes);

/*
 * config_print() - print the configuration as text.
 *
 *   CONFIG_PRINT_EXAMPLE  every key with its meaning, range and default. A default follows '#' without a blank, so the
 *                         file is valid with and without these '#'
 *   CONFIG_PRINT_MAN      the keys as mdoc(7) for gpoold.conf(5)
 *   CONFIG_PRINT_CURRENT  a file that yields *config when it is loaded
 *
 * The first two do not read *config, which may be NULL.
 *
 * Return: 0, or the negative errno of a failed write.
 */
enum config_print_form { CONFIG_PRINT_EXAMPLE, CONFIG_PRINT_MAN, CONFIG_PRINT_CURRENT };
int config_print(const struct config *config, enum config_print_form form, int fd);

#endif
