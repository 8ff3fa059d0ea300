/* main.c - the tables of verbs, options and exit codes. */
#include "tools/poolctl/poolctl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATE_WORDS "FREE LEASED SHARED EVICTING MOVING QUARANTINED RESERVED RETIRED PINNED UNPINNED"
#define USAGE_WORDS "KV_CACHE LORA_WEIGHT TEMP_BUFFER ACTIVATION GRADIENT"
#define KIND_WORDS \
	"pressure eviction reclaim tenant-limit agent-start session-start session-end leaked-pin reload " \
	"front-restart " \
	"damaged-session object-published object-deleted object-evicted role-granted role-freed takeover retired " \
	"spill-error mover drain"

static const char *const codes[] = {
	[CODE_OK] = "Success.",
	[CODE_FAILED] = "The request failed; the message states the cause and what to do.",
	[CODE_USAGE] =
		"The command line is invalid, or names a verb, option, pool, tenant or session that does not exist.",
	[CODE_NO_AGENT] = "No agent is running, or it did not answer within the timeout.",
	[CODE_FOUND] = "Success, but check found an error or doctor a failure.",
	NULL,
};

static const struct option_spec global_options[] = {
	OPTION(OPTION_DIR, 'd', "dir", "DIR",
		"Directory of the agent's sockets. The default is $GPOOL_DIR, or /run/gpool if it is not set."),
	OPTION(OPTION_POOL, 'p', "pool", "NAME",
		"Name of the pool. The default is all pools for verbs that can show several, and the agent's first "
		"pool for others."),
	OPTION_ROW_OUTPUT,
	OPTION(OPTION_TIMEOUT, 0, "timeout", "SECONDS",
		"Reply timeout in seconds. The default is 5; fractions are allowed."),
	OPTION(OPTION_OFFLINE, 0, "offline", "[SNAPSHOT]",
		"Read the shared tables without asking the agent. They are read from a SNAPSHOT that dump wrote or, if "
		"none is given, through the descriptors of gpoold, which requires root."),
	OPTION(OPTION_QUIET, 'q', "quiet", NULL, "Print only errors, for scripts that use the exit status."),
	OPTION(OPTION_NO_COLOR, 0, "no-color", NULL,
		"Do not use colors. This is also the default if $NO_COLOR is set or the output is not a terminal."),
	OPTION(OPTION_HELP, 'h', "help", NULL, "Print the help of poolctl or of a verb."),
	OPTION(OPTION_VERSION, 0, "version", NULL, "Print the version of poolctl."),
	OPTIONS_END,
};

static const struct option_spec top_options[] = {
	OPTION(OPTION_INTERVAL, 0, "interval", "SECONDS",
		"Refresh interval in seconds, from 0.1 to 3600. The default is 1."),
	OPTIONS_END,
};

static const struct option_spec pages_options[] = {
	OPTION(OPTION_FIRST, 0, "first", "N", "First page. The default is 0."),
	OPTION(OPTION_COUNT, 0, "count", "N", "Number of pages. The default is all."),
	OPTION_WORDS(OPTION_STATE, 0, "state", "STATE", STATE_WORDS,
		"Show only pages in this state. PINNED and UNPINNED select the pages of pinned and unpinned blocks."),
	OPTION(OPTION_OWNER, 0, "owner", "N", "Show only pages of the session with this number."),
	OPTION(OPTION_EACH, 0, "each", NULL,
		"Print one line for each page, instead of one for each run of pages in the same state."),
	OPTION(OPTION_MAP, 0, "map", NULL,
		"Print a map as wide as the terminal. Each letter represents one or several pages and shows their most "
		"frequent state; capital letters mean pinned blocks. A legend with the number of pages in each state "
		"follows."),
	OPTIONS_END,
};

static const struct option_spec pins_options[] = {
	OPTION(OPTION_LEAKED, 0, "leaked", NULL,
		"Show only pins that are older than pins.max_duration of the configuration. With --offline, this value "
		"is unknown, and pins older than 30 seconds are shown."),
	OPTIONS_END,
};

#define SINCE_OPTION(text) OPTION(OPTION_SINCE, 0, "since", "DURATION", text)

static const struct option_spec events_options[] = {
	SINCE_OPTION("First print the recorded events of the last DURATION, such as 90s, 5m or 2h."),
	OPTION(OPTION_COUNT, 0, "count", "N", "End after N events. The default is to follow events until a signal."),
	OPTION_WORDS(OPTION_KIND, 0, "kind", "KIND", KIND_WORDS, "Print only events of this kind."),
	OPTIONS_END,
};

static const struct option_spec trace_options[] = {
	SINCE_OPTION("Write only records that ended within the last DURATION, such as 90s, 5m or 2h. The default is "
		     "all records."),
	OPTION(OPTION_SESSION, 0, "session", "N", "Write only records of the session with this number."),
	OPTION(OPTION_FILE, 'f', "file", "FILE",
		"Write to FILE instead of standard output, and print a summary. FILE is replaced atomically and is "
		"readable only by its owner. If it exists, it must be a regular file; - is refused."),
	OPTIONS_END,
};

static const struct option_spec evict_options[] = {
	OPTION(OPTION_SESSION, 0, "session", "N", "Evict only blocks of the session with this number."),
	OPTION_WORDS(OPTION_USAGE, 0, "usage", "TYPE,...", USAGE_WORDS, "Evict only blocks of these usages."),
	OPTIONS_END,
};

static const struct option_spec drain_options[] = {
	OPTION(OPTION_OFF, 0, "off", NULL, "Return the pool to service."),
	OPTION(OPTION_EVICT, 0, "evict", NULL, "Evict all unpinned content immediately."),
	OPTION(OPTION_NO_WAIT, 0, "no-wait", NULL, "Do not wait for the workers."),
	OPTIONS_END,
};

static const struct option_spec object_options[] = {
	OPTION(OPTION_OBJECT_VERSION, 0, "object-version", "N",
		"Delete the object only if this is its current version."),
	OPTIONS_END,
};

static const struct option_spec roles_options[] = {
	OPTION(OPTION_DOMAIN, 0, "domain", "NAME",
		"Remove the role of this trust domain. Required if several domains have a role of this name."),
	OPTIONS_END,
};

static const struct option_spec limit_options[] = {
	OPTION(OPTION_SESSION, 0, "session", "N",
		"Change the limit of the session with this number instead of a tenant."),
	OPTION(OPTION_LIMIT, 0, "limit", "PAGES",
		"Maximum number of leased pages. For a session, 0 means the limit of its tenant."),
	OPTION(OPTION_MINIMUM, 0, "minimum", "PAGES", "Pages that are guaranteed to the tenant."),
	OPTIONS_END,
};

static const struct option_spec check_options[] = {
	OPTION(OPTION_QUIESCENT, 0, "quiescent", NULL,
		"With --offline, also report pages in transit and pins outside of blocks as errors. Use this option "
		"only if no worker is running. The pages of reservations are reported, too."),
	OPTIONS_END,
};

static const struct option_spec help_options[] = {
	OPTION(OPTION_MAN, 0, "man", NULL, NULL),
	OPTION(OPTION_COMPLETION, 0, "completion", "SHELL", NULL),
	OPTIONS_END,
};

static const struct option_spec no_options[] = {OPTIONS_END};

static const struct verb verbs[] = {
	{"status", "", 0, 0, no_options, status_run, true, "show the pools with their numbers of pages and pressure",
		"Prints for each pool a bar, the number of pages in each state, the pressure level, and the numbers of "
		"pages lent, reclaimed and evicted and of requests refused since the agent started. Each leased page "
		"is needed, offered or idle. Needed pages are pinned, prepared, or held by a thread. Offered pages "
		"have unpinned content, which is kept until the page is needed elsewhere. Idle pages have no content "
		"and are reclaimed before any content is evicted.",
		"poolctl status -o json", "Print all pools as JSON."},
	{"top", "", 0, 0, top_options, top_run, false, "monitor a pool in full-screen mode",
		"Shows the pressure level, the use of the pages, rates per second, the tenants, the clients and, in "
		"the remaining space, a map of the page table. Keys: left, right and Tab select the pool; s changes "
		"the order of the clients; up and down scroll them; r refreshes the display; h explains the letters; q "
		"quits. Requires a terminal.",
		"poolctl top --pool p0 --interval 2", "Monitor one pool, every two seconds."},
	{"pages", "", 0, 0, pages_options, pages_run, true, "show the page table",
		"Adjacent pages in the same state share a line. BLOCKS is the number of blocks that begin in the run, "
		"PINS the highest pin count of these blocks, and UNUSED the time since one of the pages was last used.",
		"poolctl pages --map", "Print a map of the first pool."},
	{"pins", "", 0, 0, pins_options, pins_run, true, "show the pins and the sessions that hold them",
		"Prints one line for each pinned block, and for each session that pins a pinnable object, with its "
		"process. AGE is the time since the pin was made or refreshed.",
		"poolctl pins --leaked", "Find pins that are held for too long."},
	{"clients", "", 0, 0, no_options, clients_run, true, "show the sessions: workers, observers, admins",
		"Prints one line for each session. LEASED is the sum of NEEDED, OFFERED and IDLE, which have the same "
		"meaning as in status. If a session has disconnected and its process is still running, all its pages "
		"count as needed. The JSON also has used_pages (in blocks) and pinned_pages (in pinned blocks).",
		"poolctl clients --pool p0", "Print the sessions of one pool."},
	{"regions", "CLIENT", 1, 1, no_options, regions_run, true, "show the regions of gpool_malloc_async in a worker",
		"CLIENT is a session number, a process ID or a name, as printed by clients; they are compared in this "
		"order. The output begins with totals, followed by all regions in ascending order on one line, with "
		"their sizes in pages: [X] allocated, [+X] allocated by the last call, [-X] free, [*X] hole (nothing "
		"is "
		"mapped) or pending unmap (still mapped, but its pages were moved), [#X] new (a call that has not "
		"returned maps pages there). A blank marks addresses that belong to no region. Then one line follows "
		"for each region. STREAM is the slot of its stream, the low "
		"8 bits of its number; FENCE is the state of the fence after which other streams may use the region, "
		"or none yet if the region was freed and no fence was recorded; ID increases with each new region; AGE "
		"is the time since its last change. A reclaimable region is free, and the agent may take its pages "
		"without asking; a captured region keeps its addresses and pages; a moving region is being changed. "
		"The verb reads shared memory without involving the worker, so it also works if the worker hangs. A "
		"region that was being changed is marked.",
		"poolctl regions engine", "Print the regions of the worker named engine."},
	{"tenants", "", 0, 0, no_options, tenants_run, false, "show the tenants, their shares and their use",
		"Prints one line for each tenant and pool: guaranteed minimum, limit, leased pages, the numbers of "
		"needed, offered and idle pages among them, pages borrowed above the minimum, and pages by usage. An "
		"object's pages are leased by its tenant: offered if the object may be evicted, else needed.",
		"poolctl tenants -o json", "Print the use of each tenant as JSON."},
	{"objects", "", 0, 0, no_options, objects_run, true, "show the named objects",
		"Prints one line for each version: current, old if it is no longer current but open, or deleted if it "
		"is deleted but open. A name belongs to a trust domain, DOMAIN, unless the pool does not separate "
		"them; "
		"with --offline, its number is printed. PAGES stay allocated until the version is neither current nor "
		"open; NUMBER is "
		"the owner of its pages in the page table, WRITER the session that may write a mutable object, FOLLOWS "
		"the number of the version that it depends on. For pinnable objects, PINS is the number of pins of all "
		"sessions, USES the number of uses that the agent has counted, and COST the reload cost that the "
		"publisher has stated. ACCESS is what sessions of other tenants in the trust domain may do: nothing "
		"(tenant), open the object (all), or also replace and delete it (write).",
		"poolctl objects", "Print all versions in all pools."},
	{"adapters", "", 0, 0, no_options, adapters_run, true, "show the LoRA adapters that engines share",
		"Prints the named objects that engines have created for adapters: hot objects are used by kernels, "
		"warm objects are copies in a pool of host memory. NAME is the name used by the first engine that "
		"loaded the adapter; it is empty if the object is private. KEY is computed from the adapter's files "
		"and format, so the hot and the warm object of an adapter have the same KEY. READERS is the number of "
		"sessions that have the object open; PINS is the number of pins, which prevent its eviction; USES is "
		"the number of uses that the agent has counted. STATE is loading (its publication is in progress), "
		"active (pinned), idle, or evicting (its pages are freed when its last reader closes it). Pages in "
		"which an engine stores the last parts of several adapters (GPOOL_LORA_SHARE_PAGES) are known only to "
		"this engine: adapters that are smaller than a page are not listed, and the state of an adapter does "
		"not tell whether its last part was evicted. A second table has "
		"the totals of each tier: the share of the pool, and the evictions since the pool was created.",
		"poolctl adapters --pool p0", "Print the adapters of one pool."},
	{"prefixes", "", 0, 0, no_options, prefixes_run, true, "show the prefixes of KV caches that engines share",
		"Prints a tree of the named objects with blocks of KV caches: each contains the blocks that follow "
		"those of "
		"the object above it, so texts with a common beginning share the objects of this beginning. PREFIX is "
		"the "
		"hash of the tokens up to its first block, DEPTH the number of objects before it, FOLLOWERS the number "
		"of "
		"objects that continue it, and READERS the number of sessions that have it open. PINS, of sequences "
		"that "
		"use it, prevent its eviction.",
		"poolctl prefixes -o json", "Print the shared prefixes as JSON."},
	{"roles", "[remove NAME]", 0, 2, roles_options, roles_run, true,
		"show the leadership roles, their holders and standbys",
		"Prints one line for each role, with the fencing token of its last holder. A name belongs to a trust "
		"domain, DOMAIN, unless the pool does not separate them; with --offline, its number is printed. A "
		"closed holder has lost "
		"its connection and keeps the role until its process ends. The action remove frees the slot of a role "
		"that is not held; a later holder of a role with the same name still gets a higher token.",
		"poolctl roles remove main", "Free the slot of a role that is not held."},
	{"transfers", "", 0, 0, no_options, transfers_run, true, "show pages in transfer between trust domains",
		"Prints the pages that tenants of one trust domain have returned and that another domain has "
		"requested. Such a page is waiting for processes that may still have it mapped, is being cleared, or "
		"is retired because such a process did not unmap it in time. A retired page is out of use until that "
		"process unmaps it or ends; its own domain may use it at any time. HOLDERS is the number of processes "
		"that may have the page mapped; SESSION, PID and NAME describe one of them. With --offline, only the "
		"pages are known, and whether they are retired; a page may also be retired because a mover has died.",
		"poolctl transfers", "Print all pages in transfer."},
	{"events", "", 0, 0, events_options, events_run, true, "follow events",
		"Prints one line for each new event: pressure levels, evictions, reclaimed idle pages, limits reached, "
		"starts and ends of sessions, changes of roles, objects published, deleted and evicted, leaked pins, "
		"restarts, content that could not be spilled or restored, pools without a mover or out of service. "
		"With -o json, each event is one object on a line. An interrupt ends the command with status 0. The "
		"last 1,024 events of each pool are recorded: --since prints these first, and --offline prints only "
		"these.",
		"poolctl events --since 1h --count 1", "Print the first event of the last hour."},
	{"trace", "", 0, 0, trace_options, trace_run, true, "write the flight recorder's records as a Chrome trace",
		"Writes a JSON array of events that Perfetto (ui.perfetto.dev) and chrome://tracing can open: a track "
		"for each session, slices for operations with a duration (requests to the agent, waits for pins, "
		"spills and restores), instants for evictions, pages lent and reclaimed, refusals, sampled blocks, and "
		"events. Any user can read what the agent recorded and the last records of ended sessions; root, and "
		"with core_dumps also gpoold's own user, can also read what running sessions have recorded about "
		"themselves. Records that a session has written are attributed to that session only. The agent is not "
		"involved, so --offline also works if the agent hangs.",
		"poolctl trace --since 5m --file trace.json", "Write the last five minutes, for Perfetto."},
	{"evict", "PAGES", 1, 1, evict_options, evict_run, false, "evict unpinned blocks",
		"Evicts whole blocks, in the order of the eviction policy, until at least PAGES pages have been "
		"evicted. PAGES is a number, a size such as 128MiB, or a percentage of the pool. Pinned blocks are "
		"kept; if fewer pages were evicted, the status is 1.",
		"poolctl evict 1GiB --usage KV_CACHE", "Evict 1 GiB of unpinned KV cache blocks."},
	{"object", "delete NAME", 2, 2, object_options, object_run, false, "delete a named object",
		"Removes the name immediately; the pages are freed when the last process closes the object.",
		"poolctl object delete weights", "Delete the current version of an object."},
	{"drain", "", 0, 0, drain_options, drain_run, false,
		"take a pool out of service and wait for its workers to detach",
		"New workers cannot attach to the pool; the error states the reason. Observers and admins can still "
		"attach. Attached workers continue and receive an event. Waits until the last worker has detached, for "
		"at most --timeout SECONDS (no limit if it is not given), and prints the remaining workers on standard "
		"error; the status is 1 if there are any. The pool stays out of service until --off or until gpoold "
		"ends; a restart or upgrade of the agent and an interrupt of this command do not change that.",
		"poolctl drain --evict --timeout 60",
		"Take the pool out of service and wait a minute for its workers."},
	{"limit", "[TENANT]", 0, 1, limit_options, limit_run, false, "change the limit of a tenant or a session",
		"The change is kept until the next reload. PAGES is a number, a size such as 4GiB, or a percentage of "
		"the pool. Pages above a new limit are reclaimed only when they become idle.",
		"poolctl limit batch --limit 40%", "Limit the tenant batch to 40 percent of the first pool."},
	{"reload", "", 0, 0, no_options, reload_run, false, "reload the agent's configuration",
		"Prints the changes that were applied and those that require a restart. If the file has an error, the "
		"configuration is unchanged.",
		"poolctl reload", "Apply a change of gpoold.conf."},
	{"check", "", 0, 0, check_options, check_run, true, "check the consistency of the tables",
		"Compares the page table, published counts, leases, blocks and pins. The tables of a worker may be "
		"inconsistent while the worker changes them, so the check is repeated up to three times before "
		"findings in these tables are reported.",
		"poolctl check --pool p0", "Check the tables of one pool; status 4 if there is an error."},
	{"bench", "", 0, 0, no_options, bench_run, false, "measure the running agent",
		"Attaches several times as a worker, allocates a few pages, pins and copies them, requests pages from "
		"the agent, and frees everything. This takes about a second. The medians are printed with the targets "
		"of gpool-bench. No pages are evicted for the measurement. It is refused under high pressure or if few "
		"pages are free.",
		"poolctl bench --pool p0", "Check whether any operation is slow."},
	{"doctor", "", 0, 0, no_options, doctor_run, false, "check this machine and recommend changes",
		"Requires no agent. Checks the kernel, the GPU driver, limits, memory, the directory of the sockets "
		"and, if it is running, the agent.",
		"poolctl doctor --quiet", "Check from a script: status 4 if a check failed."},
	{"dump", "FILE", 1, 1, no_options, dump_run, false, "write a snapshot for --offline",
		"As root, writes all pools, or the pool given with --pool, and all their sessions, which it reads "
		"through the descriptors of gpoold without asking the agent. As another user, writes the pools without "
		"their sessions, which it requests from the agent. FILE is replaced atomically and is readable only by "
		"its owner. If it exists, it must be a regular file; - is refused.",
		"poolctl dump snapshot", "Write a file for poolctl --offline snapshot, here or on another machine."},
	{"upgrade", "", 0, 0, no_options, upgrade_run, false, "upgrade the running agent to the installed version",
		"Loads the installed gpoold-agent.so and restarts the agent, the front and the movers from it. Pages "
		"keep their owners, and attached processes stay attached. Newer and older versions are accepted if "
		"they have the layout of the running gpoold. If the file cannot be loaded or has a different layout, "
		"the upgrade is refused with a message that states both layouts, and the agent continues unchanged. "
		"See Upgrade in gpoold(8).",
		"poolctl upgrade", "Upgrade after make install or the installation of a package."},
	{"version", "", 0, 0, no_options, version_run, false, "show the versions of poolctl and of the agent",
		"The last line contains the layouts of the running gpoold. An upgrade is refused if gpoold --version "
		"of the "
		"new program prints another line. If no agent answers, poolctl's own version is still printed.",
		"poolctl version -o json", "Print both versions as JSON."},
	{"help", "[VERB]", 0, 1, help_options, help_run, false, "describe poolctl or one verb",
		"Prints the same text as --help.", "poolctl help evict", "Describe evict and its options."},
	VERBS_END,
};

static int globals_check(struct command *command)
{
	const char *snapshot = command->values[OPTION_OFFLINE], *no_color = getenv("NO_COLOR");

	if (!command_seconds(command, OPTION_TIMEOUT, 0, 86400000, 5000, &command->timeout_ms))
		return CODE_USAGE;
	command->offline = snapshot != NULL;
	command->snapshot = snapshot && snapshot[0] ? snapshot : NULL;
	command->color = !command->values[OPTION_NO_COLOR] && !(no_color && no_color[0]) && isatty(STDOUT_FILENO);
	return CODE_OK;
}

const struct program poolctl = {
	.name = "poolctl",
	.usage = "[OPTION]... VERB [ARGUMENT]...",
	.summary = "Inspects and controls the gpool agent of this machine.",
	.options = global_options,
	.verbs = verbs,
	.codes = codes,
	.check = globals_check,
};

int main(int argc, char **argv)
{
	return command_run(&poolctl, argc, argv, NULL);
}
