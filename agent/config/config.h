/*
 * config.h - the configuration of gpoold: one libconfig file, checked to the letter.
 *
 * config_load() either fills a whole struct config or explains, with file and line, what is wrong. Defaults, ranges,
 * units and texts stand in one table (config_keys.def), from which the parser, `gpoold --print-config`, the example
 * file and gpoold.conf(5) come.
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
 * An origin says where something was given, so that complaints about the whole name file and line too: line | source <<
 * 24, where the source is an index into struct config's sources[]; 0: nowhere, it is the default.
 */

/* An amount of pool memory as people write it: "2GiB", "4096 pages", "90%". */
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
	bool reserved_given;           /* by the user, who then means it */
	uint64_t spill_memory_bytes;
	char spill_directory[CONFIG_PATH_BYTES]; /* empty: no file */
	uint64_t spill_file_bytes;
	uint32_t objects;          /* versions of named objects; 0: by the pages */
	uint32_t flight_records;   /* places of the flight recorder; 0: off */
	uint32_t pinnable_objects; /* most of them that are pinnable; 0: as many as there is room for */
	uint32_t origin;
};

/* Who may do something: user and group ids, resolved at load; an unknown name is an error. Root always may. */
struct config_names {
	uint32_t count;
	uint32_t ids[CONFIG_NAMES_MAX];
};

struct config_tenant {
	char name[CONFIG_NAME_BYTES];
	struct config_names users, groups;
	struct config_amount minimum;   /* guaranteed; the sum must fit each pool */
	struct config_amount limit;     /* most it may lease */
	uint32_t weight;                /* 1..1000 */
	uint32_t priority;              /* 0..100, higher first */
	enum config_unused unused;      /* what of the minimum it does not lease */
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
		/* empty both: every user that reaches the socket */
		struct config_names worker_users, worker_groups;
		struct config_names observer_users, observer_groups;
		struct config_names admin_users, admin_groups; /* empty both: root and the agent's own user */
	} access;

	struct {
		uint32_t sessions;                     /* per pool */
		uint32_t kept_sessions;                /* of them, for admins and observers; see session_limits.h */
		uint32_t tenant_percent, user_percent; /* of the rest: guaranteed to tenants; the most of one user */
		uint32_t message_bytes;
		uint32_t requests_per_second; /* per token */
	} limits;

	struct {
		uint32_t initial_pages; /* lent at attach */
		uint32_t batch_pages;   /* lent at least per refill */
		uint32_t batch_most;    /* a batch grows to this under demand */
		uint32_t idle_ms;       /* idle pages go back after this time without a refill */
		uint32_t keep_pages;    /* but so many stay */
	} lease;

	struct {
		char policy[32];
		uint32_t start_percent, stop_percent;
		double recency, size, priority; /* weights, sum 1 */
		double hysteresis;              /* so much of what is evicted for a request is evicted beside it */
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
		enum config_release release; /* what proves that a process has let go of a page */
		uint32_t death_grace_ms;
	} trust;

	struct {
		uint32_t max_bypass_ms; /* how long jobs wait for a mover that does not come */
	} mover;

	struct {
		uint32_t sampling; /* one block in so many; 0: none */
	} flight;

	/* Not configuration, but where it came from. */
	uint32_t source_count;
	char sources[CONFIG_SOURCES_MAX][CONFIG_PATH_BYTES]; /* [0] is unused */
	uint32_t origins[CONFIG_KEYS_MAX];                   /* by index of the key in config_keys.def */
};

/* Where the first error goes: "FILE:LINE: what, the limit and the way out". */
struct config_error {
	char text[512];
};

/*
 * config_load() - read `path` and then path with ".d" appended: every *.conf in it, in order of name; a later value
 * replaces an earlier one, lists of pools and tenants are joined.
 * Return: 0, or negative errno with error->text set: -ENOENT, -EACCES, -EINVAL.
 */
int config_load(const char *path, struct config *config, struct config_error *error);

/* config_defaults() - as an empty file gives, with no pool. */
void config_defaults(struct config *config);

/*
 * config_set() - one `key=value` as on the command line (`--set eviction.start=85`), same checks; error text names
 * "--set".
 */
int config_set(struct config *config, const char *assignment, struct config_error *error);

/* config_add_pool() - a pool given on the command line: "name=gpu0,backend=host,size=2GiB,page_size=2MiB". */
int config_add_pool(struct config *config, const char *text, struct config_error *error);

/*
 * config_finish() - checks that need the whole: at least one pool, names unique, percentages in order, minima that fit.
 * Also makes the tenant "default" when none is given, and lowers a pool's default of reserved pages to a sixteenth of a
 * pool whose size is in bytes or pages (for one in percent the keeper does it, which knows the device).
 */
int config_finish(struct config *config, struct config_error *error);

/* What a device says of itself; 0: not known, as where a configuration is checked without its device. */
struct config_device {
	uint64_t granularity;
	uint64_t memory_bytes;
};

struct config_measure {
	uint64_t handle_bytes;
	uint32_t pages; /* 0: not known: the size is in percent of the device's memory */
	uint32_t reserved;
};

/*
 * config_pool_measure() - how large a pool is and how it is divided, or why it cannot be. The one check of that, for
 * --check-config, for a reload and for the start, which alone knows the device.
 */
int config_pool_measure(const struct config *config, const struct config_pool *pool, const struct config_device *device,
	struct config_measure *measure, struct config_error *error);

/*
 * config_amount_pages() - how many whole pages an amount is in a pool of page_count pages of page_bytes (percent: of
 * page_count). The answer may be above page_count.
 */
uint32_t config_amount_pages(const struct config_amount *amount, uint64_t page_bytes, uint32_t page_count);

/* config_domains() - how many trust domains its tenants are of. */
uint32_t config_domains(const struct config *config);

/*
 * config_spill_slots() - pages of spilled content that a pool keeps at most: of both tiers; *memory_slots: of the
 * first.
 */
uint32_t config_spill_slots(const struct config_pool *pool, uint32_t *memory_slots);

/*
 * config_difference() - what a reload would change: names of changed keys that apply at once, and of those that need a
 * restart, comma separated.
 */
void config_difference(const struct config *now, const struct config *next, char *applies, size_t applies_bytes,
	char *restart, size_t restart_bytes);

/*
 * config_print() - the configuration as text.
 *
 * CONFIG_PRINT_EXAMPLE: every key with its meaning, range and default; a default stands behind a '#' without a blank,
 * so the file
 *   is valid as it is, and without these '#' too. CONFIG_PRINT_MAN: the keys as mdoc(7) for gpoold.conf(5). Both take
 *   nothing from *config, which may be NULL. CONFIG_PRINT_CURRENT: a file that gives *config again.
 *
 * Return: 0, or negative errno of the failed write.
 */
enum config_print_form { CONFIG_PRINT_EXAMPLE, CONFIG_PRINT_MAN, CONFIG_PRINT_CURRENT };
int config_print(const struct config *config, enum config_print_form form, int fd);

#endif
