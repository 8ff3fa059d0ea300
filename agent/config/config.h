/*
 * config.h - the configuration of gpoold: a libconfig file, checked strictly.
 *
 * config_load() either fills a complete struct config or reports the error with file and line. Defaults, ranges, units
 * and texts are listed in one table (config_keys.def), from which the parser, `gpoold --print-config`, the example file
 * and gpoold.conf(5) are generated.
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
	CONFIG_PATH_BYTES = 96, /* leaves room for a socket's name within sun_path's 108 bytes */
	CONFIG_KEYS_MAX = 64,
	CONFIG_SOURCES_MAX = 64, /* files, and the command line */
};

enum config_leak_action { CONFIG_LEAK_REPORT, CONFIG_LEAK_UNPIN, CONFIG_LEAK_DISCONNECT };
enum config_unused { CONFIG_UNUSED_KEEP, CONFIG_UNUSED_LEND };
enum config_release { CONFIG_RELEASE_UNMAP, CONFIG_RELEASE_DEATH };
enum config_log_target { CONFIG_LOG_STDERR, CONFIG_LOG_JOURNAL };

/*
 * An origin records the place of a value, so that errors of checks between keys contain file and line, too: line |
 * source << 24, where the source is an index into struct config's sources[]; 0: the default.
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
	struct config_amount size;
	uint64_t page_bytes;           /* 512 KiB, 1, 2 or 4 MiB */
	uint64_t handle_bytes;         /* 0: the larger of page and granularity */
	int huge_pages;                /* 0 no, 1 yes; see huge_pages.h */
	struct config_amount reserved; /* pages for critical work; see config_finish() */
	bool reserved_given;           /* configured: not adjusted */
	uint64_t spill_memory_bytes;
	char spill_directory[CONFIG_PATH_BYTES]; /* empty: no file */
	uint64_t spill_file_bytes;
	uint32_t objects;          /* versions of named objects; 0: the number of pages */
	uint32_t flight_records;   /* records of the flight recorder; 0: off */
	uint32_t pinnable_objects; /* maximum of pinnable objects; 0: limited by memory */
	uint32_t origin;
};

/* User and group ids with a right, resolved at load; an unknown name is an error. Root has all rights. */
struct config_names {
	uint32_t count;
	uint32_t ids[CONFIG_NAMES_MAX];
};

struct config_tenant {
	char name[CONFIG_NAME_BYTES];
	struct config_names users, groups;
	struct config_amount minimum;   /* guaranteed; the sum must fit each pool */
	struct config_amount limit;     /* maximum that it may lease */
	uint32_t weight;                /* 1..1000 */
	uint32_t priority;              /* 0..100, higher first */
	enum config_unused unused;      /* use of the part of the minimum that it does not lease */
	char domain[CONFIG_NAME_BYTES]; /* trust domain */
	uint32_t origin;
};

struct config {
	char runtime_dir[CONFIG_PATH_BYTES];
	char group[CONFIG_NAME_BYTES]; /* owns the sockets; empty: the agent's own group */
	gid_t group_id;
	char front_user[CONFIG_NAME_BYTES]; /* the front runs as this user when gpoold is root */
	uid_t front_uid;
	gid_t front_gid;
	int keep_over_restart; /* 0 no, 1 yes */
	int core_dumps;        /* 0 no, 1 yes */
	int log_level;         /* 0 error, 1 warning, 2 info, 3 debug */
	enum config_log_target log_target;

	uint32_t pool_count;
	struct config_pool pools[CONFIG_POOLS_MAX];
	uint32_t tenant_count; /* at least 1: "default" is made when none is configured */
	struct config_tenant tenants[CONFIG_TENANTS_MAX];

	struct {
		/* both empty: all users that can connect to the socket */
		struct config_names worker_users, worker_groups;
		struct config_names observer_users, observer_groups;
		struct config_names admin_users, admin_groups; /* both empty: root and the agent's own user */
	} access;

	struct {
		uint32_t sessions;                     /* per pool */
		uint32_t kept_sessions;                /* of them, for admins and observers; see session_limits.h */
		uint32_t tenant_percent, user_percent; /* of the rest: guaranteed to tenants; maximum of one user */
		uint32_t message_bytes;
		uint32_t requests_per_second; /* per token */
	} limits;

	struct {
		uint32_t initial_pages; /* leased at attach */
		uint32_t batch_pages;   /* minimum leased per refill */
		uint32_t batch_most;    /* maximum to which a batch grows under demand */
		uint32_t idle_ms;       /* time without a refill after which idle pages are returned */
		uint32_t keep_pages;    /* number of idle pages that are kept */
	} lease;

	struct {
		char policy[32];
		uint32_t start_percent, stop_percent;
		double recency, size, priority; /* weights, sum 1 */
		double hysteresis;              /* additional share evicted for a request */
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
		enum config_release release; /* when a page counts as released by a process */
		uint32_t death_grace_ms;
	} trust;

	struct {
		uint32_t patience_ms; /* time that jobs wait for a missing mover */
	} mover;

	struct {
		uint32_t sampling; /* one block in this number; 0: none */
	} flight;

	/* The origin of the configuration. */
	uint32_t source_count;
	char sources[CONFIG_SOURCES_MAX][CONFIG_PATH_BYTES]; /* [0] is unused */
	uint32_t origins[CONFIG_KEYS_MAX];                   /* by index of the key in config_keys.def */
};

/* The first error: "FILE:LINE: what, the limit and the remedy". */
struct config_error {
	char text[512];
};

/*
 * config_load() - read `path` and then path with ".d" appended: every *.conf in it, in order of name; a later value
 * replaces an earlier one, and lists of pools and tenants are joined.
 * Return: 0, or negative errno with error->text set: -ENOENT, -EACCES, -EINVAL.
 */
int config_load(const char *path, struct config *config, struct config_error *error);

/* config_defaults() - set the values of an empty file, without a pool. */
void config_defaults(struct config *config);

/*
 * config_set() - set one `key=value` of the command line (`--set eviction.start=85`), with the same checks; the error
 * text names "--set".
 */
int config_set(struct config *config, const char *assignment, struct config_error *error);

/* config_add_pool() - add a pool of the command line: "name=gpu0,backend=host,size=2GiB,page_size=2MiB". */
int config_add_pool(struct config *config, const char *text, struct config_error *error);

/*
 * config_finish() - check the configuration as a whole: at least one pool, unique names, percentages in order, minima
 * that fit. Also add the tenant "default" if there is none, and limit a pool's default of reserved pages to a sixteenth
 * of a pool whose size is in bytes or pages (the keeper does this for a size in percent, since it has the device).
 */
int config_finish(struct config *config, struct config_error *error);

/* Properties of a device; 0: unknown, if a configuration is checked without its device. */
struct config_device {
	uint64_t granularity;
	uint64_t memory_bytes;
};

struct config_measure {
	uint64_t handle_bytes;
	uint32_t pages; /* 0: unknown: the size is in percent of the device's memory */
	uint32_t reserved;
};

/*
 * config_pool_measure() - compute the size of a pool and its division, or report the error. --check-config, a reload
 * and the start use this check; only the start has the device.
 */
int config_pool_measure(const struct config *config, const struct config_pool *pool, const struct config_device *device,
	struct config_measure *measure, struct config_error *error);

/*
 * config_amount_pages() - return the number of whole pages of an amount in a pool of page_count pages of page_bytes
 * (percent: of page_count). The result may exceed page_count.
 */
uint32_t config_amount_pages(const struct config_amount *amount, uint64_t page_bytes, uint32_t page_count);

/* config_domains() - return the number of trust domains of the tenants. */
uint32_t config_domains(const struct config *config);

/*
 * config_spill_slots() - return the maximum of pages of spilled content of a pool, in both tiers; *memory_slots: in the
 * first one.
 */
uint32_t config_spill_slots(const struct config_pool *pool, uint32_t *memory_slots);

/*
 * config_difference() - list the changes of a reload: the names of changed keys that apply at once, and of those that
 * need a restart, separated by commas.
 */
void config_difference(const struct config *now, const struct config *next, char *applies, size_t applies_bytes,
	char *restart, size_t restart_bytes);

/*
 * config_print() - print the configuration as text.
 *
 *   CONFIG_PRINT_EXAMPLE  every key with its meaning, range and default; a default follows a '#' without a blank, so
 *                         the file is valid with and without these '#'
 *   CONFIG_PRINT_MAN      the keys as mdoc(7) for gpoold.conf(5)
 *   CONFIG_PRINT_CURRENT  a file that results in *config again
 *
 * The first two do not read *config, which may be NULL.
 *
 * Return: 0, or negative errno of the failed write.
 */
enum config_print_form { CONFIG_PRINT_EXAMPLE, CONFIG_PRINT_MAN, CONFIG_PRINT_CURRENT };
int config_print(const struct config *config, enum config_print_form form, int fd);

#endif
