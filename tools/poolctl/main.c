/* main.c - the tables of verbs, options and exit codes, and the way from the command line to a verb. */
#include "tools/poolctl/poolctl.h"

#include "client/gpool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define STATE_WORDS "FREE LEASED SHARED EVICTING MOVING QUARANTINED RESERVED RETIRED PINNED UNPINNED"
#define CONTENT_WORDS "KV_CACHE LORA_WEIGHT TEMP_BUFFER ACTIVATION GRADIENT"
#define KIND_WORDS \
	"pressure eviction reclaim tenant-limit agent-start session-start session-end leaked-pin reload " \
	"front-restart " \
	"damaged-session object-published object-deleted object-evicted role-granted role-freed takeover retired " \
	"spill-error mover drain"

const char *const code_texts[CODES] = {
	[CODE_OK] = "Done.",
	[CODE_FAILED] = "The request failed; the message says why and what helps.",
	[CODE_USAGE] =
		"The command line is wrong, or names a verb, option, pool, tenant or session that does not exist.",
	[CODE_NO_AGENT] = "No agent answers in the folder of sockets, or not in time.",
	[CODE_FOUND] = "Done, and check found something wrong, or doctor a failure.",
};

const struct option_spec global_options[] = {
	{
		.name = "dir",
		.letter = 'd',
		.argument = "DIR",
		.id = OPTION_DIR,
		.help = "Folder of the agent's sockets. The default is $GPOOL_DIR, and /run/gpool without it.",
	},
	{
		.name = "pool",
		.letter = 'p',
		.argument = "NAME",
		.id = OPTION_POOL,
		.help = "The pool that is meant. The default is all pools where a verb can show several, and the "
			"agent's first one elsewhere.",
	},
	{
		.name = "output",
		.letter = 'o',
		.argument = "FORMAT",
		.id = OPTION_OUTPUT,
		.words = "table json",
		.help = "Print a table for people, or json for programs. The default is table.",
	},
	{
		.name = "timeout",
		.argument = "SECONDS",
		.id = OPTION_TIMEOUT,
		.help = "Reply timeout in seconds. The default is 5; fractions are allowed.",
	},
	{
		.name = "offline",
		.argument = "[SNAPSHOT]",
		.id = OPTION_OFFLINE,
		.help = "Do not ask the agent: read the shared tables through the descriptors of gpoold, which takes "
			"root, or those of a file that dump wrote.",
	},
	{
		.name = "quiet",
		.letter = 'q',
		.id = OPTION_QUIET,
		.help = "Print nothing but complaints: for scripts that look at the exit status alone.",
	},
	{
		.name = "no-color",
		.id = OPTION_NO_COLOR,
		.help = "No colours. There are none either when $NO_COLOR is set or the output is no terminal.",
	},
	{
		.name = "help",
		.letter = 'h',
		.id = OPTION_HELP,
		.help = "Print help, on a verb when one is given.",
	},
	{
		.name = "version",
		.id = OPTION_VERSION,
		.help = "Print the version of poolctl.",
	},
	{.name = NULL},
};

static const struct option_spec top_options[] = {
	{
		.name = "interval",
		.argument = "SECONDS",
		.id = OPTION_INTERVAL,
		.help = "Refresh interval in seconds, from 0.1 to 3600. The default is 1.",
	},
	{.name = NULL},
};

static const struct option_spec pages_options[] = {
	{
		.name = "first",
		.argument = "N",
		.id = OPTION_FIRST,
		.help = "Begin with this page. The default is 0.",
	},
	{
		.name = "count",
		.argument = "N",
		.id = OPTION_COUNT,
		.help = "Look at so many pages. The default is all.",
	},
	{
		.name = "state",
		.argument = "STATE",
		.id = OPTION_STATE,
		.words = STATE_WORDS,
		.help = "Only pages in this state: FREE, LEASED, SHARED, EVICTING, MOVING, QUARANTINED, RESERVED or "
			"RETIRED; or PINNED or UNPINNED for pages in blocks that are pinned or not.",
	},
	{
		.name = "owner",
		.argument = "N",
		.id = OPTION_OWNER,
		.help = "Only pages of the session with this number.",
	},
	{
		.name = "each",
		.id = OPTION_EACH,
		.help = "One line for each page instead of one for each run of pages that are alike.",
	},
	{
		.name = "map",
		.id = OPTION_MAP,
		.help = "A picture as wide as the terminal: each letter stands for some pages and shows what most of "
			"them are, a capital for what is pinned. Below it what the letters mean, and how many pages "
			"are what.",
	},
	{.name = NULL},
};

static const struct option_spec pins_options[] = {
	{
		.name = "leaked",
		.id = OPTION_LEAKED,
		.help = "Only pins that are older than pins.max_duration of the configuration. Offline, where that is "
			"not known: older than 30 seconds.",
	},
	{.name = NULL},
};

#define SINCE_OPTION(text) \
	{ \
		.name = "since", .argument = "DURATION", .id = OPTION_SINCE, .help = text, \
	}

static const struct option_spec events_options[] = {
	SINCE_OPTION("First those of the last DURATION, such as 90s, 5m or 2h, as far as they are recorded."),
	{
		.name = "count",
		.argument = "N",
		.id = OPTION_COUNT,
		.help = "End after so many events. Without it events are followed until a signal.",
	},
	{
		.name = "kind",
		.argument = "KIND",
		.id = OPTION_KIND,
		.words = KIND_WORDS,
		.help = "Only this kind: pressure, eviction, reclaim, tenant-limit, agent-start, session-start, "
			"session-end, leaked-pin, reload, front-restart, damaged-session, object-published, "
			"object-deleted, object-evicted, role-granted, role-freed, takeover, retired, spill-error, "
			"mover or drain.",
	},
	{.name = NULL},
};

static const struct option_spec trace_options[] = {
	SINCE_OPTION(
		"Only what ended within the last DURATION, such as 90s, 5m or 2h. The default is all that is there."),
	{
		.name = "session",
		.argument = "N",
		.id = OPTION_SESSION,
		.help = "Only what concerns the session with this number.",
	},
	{
		.name = "file",
		.letter = 'f',
		.argument = "FILE",
		.id = OPTION_FILE,
		.help = "Write there instead of to standard output, and print what was written. FILE is replaced as a "
			"whole, and only its owner may read it.",
	},
	{.name = NULL},
};

static const struct option_spec evict_options[] = {
	{
		.name = "session",
		.argument = "N",
		.id = OPTION_SESSION,
		.help = "Only blocks of the session with this number.",
	},
	{
		.name = "content",
		.argument = "TYPE,...",
		.id = OPTION_CONTENT,
		.words = CONTENT_WORDS,
		.help = "Only blocks of these content types: KV_CACHE, LORA_WEIGHT, TEMP_BUFFER, ACTIVATION, GRADIENT.",
	},
	{.name = NULL},
};

static const struct option_spec drain_options[] = {
	{
		.name = "off",
		.id = OPTION_OFF,
		.help = "Put the pool back into service.",
	},
	{
		.name = "evict",
		.id = OPTION_EVICT,
		.help = "Evict everything that is unpinned at once.",
	},
	{
		.name = "no-wait",
		.id = OPTION_NO_WAIT,
		.help = "Do not wait for the workers.",
	},
	{.name = NULL},
};

static const struct option_spec object_options[] = {
	{
		.name = "object-version",
		.argument = "N",
		.id = OPTION_OBJECT_VERSION,
		.help = "Only when this is the current version.",
	},
	{.name = NULL},
};

static const struct option_spec limit_options[] = {
	{
		.name = "session",
		.argument = "N",
		.id = OPTION_SESSION,
		.help = "The session with this number instead of a tenant.",
	},
	{
		.name = "limit",
		.argument = "PAGES",
		.id = OPTION_LIMIT,
		.help = "The most that it may lease. For a session 0 means the limit of its tenant.",
	},
	{
		.name = "minimum",
		.argument = "PAGES",
		.id = OPTION_MINIMUM,
		.help = "What the tenant is guaranteed.",
	},
	{.name = NULL},
};

static const struct option_spec check_options[] = {
	{
		.name = "quiescent",
		.id = OPTION_QUIESCENT,
		.help = "With --offline, where no process is at work: pages between two places and pins beside blocks "
			"count as wrong too.",
	},
	{.name = NULL},
};

static const struct option_spec help_options[] = {
	{
		.name = "man",
		.id = OPTION_MAN,
	},
	{
		.name = "completion",
		.argument = "SHELL",
		.id = OPTION_COMPLETION,
	},
	{.name = NULL},
};

static const struct option_spec no_options[] = {{.name = NULL}};

const struct verb verbs[] = {
	{
		.name = "status",
		.arguments = "",
		.summary = "show the pools in numbers, with their pressure",
		.text = "For each pool a bar and the pages behind it, the pressure level, and the pages lent, taken "
			"back, evicted and refused since the agent started. Each leased page is needed, offered or "
			"idle. Needed: pinned, prepared, or in a thread's hands. Offered: content without a pin, kept "
			"until the page is needed elsewhere. Idle: no content; evicted first.",
		.options = no_options,
		.offline = true,
		.example = "poolctl status -o json",
		.example_text = "All pools in numbers, for a program.",
		.run = status_run,
	},
	{
		.name = "top",
		.arguments = "",
		.summary = "watch a pool on the whole terminal",
		.text = "Pressure, what the pages are used for, what happens in a second, tenants, clients, and in the "
			"room that is left a picture of the page table. The keys: left, right and Tab choose the pool, "
			"s the order of clients, up and down go through them, r looks at once, h explains the letters, "
			"q ends it. Needs a terminal.",
		.options = top_options,
		.example = "poolctl top --pool p0 --interval 2",
		.example_text = "One pool, every two seconds.",
		.run = top_run,
	},
	{
		.name = "pages",
		.arguments = "",
		.summary = "show the page table",
		.text = "Pages that are alike and neighbours share a line. BLOCKS says how many blocks begin in such a "
			"run, PINS how often the most pinned of them is pinned, and UNUSED how long ago one of them "
			"was used last.",
		.options = pages_options,
		.offline = true,
		.example = "poolctl pages --map",
		.example_text = "The first pool as a picture.",
		.run = pages_run,
	},
	{
		.name = "pins",
		.arguments = "",
		.summary = "show who has pinned what",
		.text = "One line for each pinned block, and for each session that pins a pinnable object, with its "
			"process. AGE counts from when the pin was made or refreshed.",
		.options = pins_options,
		.offline = true,
		.example = "poolctl pins --leaked",
		.example_text = "Who has forgotten a pin.",
		.run = pins_run,
	},
	{
		.name = "clients",
		.arguments = "",
		.summary = "show the sessions: workers, observers, admins",
		.text = "One line for each session. LEASED is the sum of NEEDED, OFFERED and IDLE, which are as in "
			"status; the pages of a session that closed and still lives are needed. The JSON also has "
			"used_pages (in blocks) and pinned_pages (in pinned ones).",
		.options = no_options,
		.offline = true,
		.example = "poolctl clients --pool p0",
		.example_text = "The sessions of one pool.",
		.run = clients_run,
	},
	{
		.name = "regions",
		.arguments = "CLIENT",
		.summary = "show what gpool_malloc_async has made of a worker's addresses",
		.text = "CLIENT is the number of a session, else a process, else a name, as clients shows them. First "
			"come the totals, then all regions in ascending order on one line, by their pages: [X] "
			"allocated, [+X] allocated by the last call, [-X] free, [*X] pending unmap: still mapped, but "
			"its "
			"pages have moved to another place, [#X] hole: nothing is mapped. A blank stands where "
			"addresses are missing. Then one line for each region. STREAM is the slot of its stream, the "
			"low 8 bits of its number; FENCE is the work after which others may have it, none yet where it "
			"was freed and nothing recorded; ID goes up with each region that is made; AGE counts from its "
			"last change. A reclaimable region is free, and the agent may take its pages without asking; a "
			"captured one keeps its addresses and pages; a moving one is being worked on. The worker is "
			"not asked, so this works too when it hangs; what it was changing at that moment is marked.",
		.options = no_options,
		.arguments_least = 1,
		.arguments_most = 1,
		.offline = true,
		.example = "poolctl regions engine",
		.example_text = "The addresses of the worker that calls itself engine.",
		.run = regions_run,
	},
	{
		.name = "tenants",
		.arguments = "",
		.summary = "show the tenants, their shares and what they use",
		.text = "One line for each tenant and pool: guaranteed minimum, limit, pages lent, of these the "
			"needed, offered and idle ones, pages borrowed above the minimum, and pages by content. An "
			"object's pages are leased by its tenant: offered where the object may be evicted, else "
			"needed.",
		.options = no_options,
		.example = "poolctl tenants -o json",
		.example_text = "What each tenant uses, for a program.",
		.run = tenants_run,
	},
	{
		.name = "objects",
		.arguments = "",
		.summary = "show the named objects",
		.text = "One line for each version: current, old while somebody has it open, or deleted likewise. "
			"PAGES stay taken until the version is neither current nor open; NUMBER is the owner of its "
			"pages in the page table, WRITER the session that may write a mutable one, FOLLOWS the number "
			"of the one without which it is useless. Of pinnable ones PINS are those of all sessions now, "
			"USES those that the agent has seen, COST what the publisher says that it takes to have it "
			"again; ACCESS is what sessions of other tenants of the trust domain may do: nothing (tenant), "
			"open it (all), or replace and delete it too (write).",
		.options = no_options,
		.offline = true,
		.example = "poolctl objects",
		.example_text = "All versions in all pools.",
		.run = objects_run,
	},
	{
		.name = "adapters",
		.arguments = "",
		.summary = "show the LoRA adapters that engines share",
		.text = "Of the named objects those that engines have made of adapters: hot are those whose pages "
			"kernels read, warm are copies in a pool of host memory. NAME is what the first engine that "
			"loaded it calls it, and none where the object is private. KEY is made of the adapter's files "
			"and form, so the two of one adapter have the same. READERS have it open; PINS keep it from "
			"being evicted; USES are those that the agent has seen.",
		.options = no_options,
		.offline = true,
		.example = "poolctl adapters --pool p0",
		.example_text = "Those in one pool.",
		.run = adapters_run,
	},
	{
		.name = "roles",
		.arguments = "[remove NAME]",
		.summary = "show who holds which role, and who stands by",
		.text = "One line for each role, with the fencing token of its last holder. A holder that is closed "
			"has lost its connection and keeps the role until its process ends. With remove the place of a "
			"role that nobody holds is freed; when a role of this name is taken later, it has a higher "
			"token all the same.",
		.options = no_options,
		.arguments_most = 2,
		.offline = true,
		.example = "poolctl roles remove main",
		.example_text = "Free the place of a role that nobody holds.",
		.run = roles_run,
	},
	{
		.name = "transfers",
		.arguments = "",
		.summary = "show pages on their way between trust domains, and who holds them up",
		.text = "Pages that tenants of one trust domain have given up and that are wanted for another: waiting "
			"for the processes that may still have them mapped, being cleared, or retired, when such a "
			"process has not let go in time. A retired page is out of use until that process lets go or "
			"ends; its own domain may have it at any time. HOLDERS is the number of processes that may "
			"have it mapped, SESSION, PID and NAME are one of them. Offline only the pages are known, and "
			"whether they are retired, which a page can also be because a mover died over it.",
		.options = no_options,
		.offline = true,
		.example = "poolctl transfers",
		.example_text = "All pages under way.",
		.run = transfers_run,
	},
	{
		.name = "events",
		.arguments = "",
		.summary = "follow what happens",
		.text = "One line for each event from now on: pressure levels, evictions, idle pages taken back, "
			"limits met, sessions that begin and end, roles that change hands, objects published, deleted "
			"and evicted, leaked pins, restarts, content that could not be spilled or brought back, pools "
			"without a mover or out of service. With json one object a line. An interrupt ends it with "
			"status 0. The last 1024 events of each pool are recorded: --since begins with them, and with "
			"--offline they are all there is.",
		.options = events_options,
		.offline = true,
		.example = "poolctl events --since 1h --count 1",
		.example_text = "The first thing that happened within the last hour.",
		.run = events_run,
	},
	{
		.name = "trace",
		.arguments = "",
		.summary = "write what the flight recorder has as a Chrome trace",
		.text = "A JSON array of events that Perfetto (ui.perfetto.dev) and chrome://tracing open: a track for "
			"each session, slices for what took time (requests to the agent, waits of pins, spills and "
			"loads), instants for evictions, pages lent and taken back, refusals, the blocks that are "
			"sampled, and events. Everybody sees what the agent recorded, and the last records of sessions "
			"that have ended; root, and with core_dumps gpoold's own user, also what living sessions have "
			"recorded about themselves. A session is believed about nobody else. The agent is not asked "
			"for it, so with --offline this works when it hangs.",
		.options = trace_options,
		.offline = true,
		.example = "poolctl trace --since 5m --file trace.json",
		.example_text = "The last five minutes, for Perfetto.",
		.run = trace_run,
	},
	{
		.name = "evict",
		.arguments = "PAGES",
		.summary = "take unpinned blocks from their owners now",
		.text = "Evicts whole blocks, in the order of the eviction policy, until at least PAGES pages came "
			"free. PAGES is a number, a size such as 128MiB, or percent of the pool. Pinned blocks stay; "
			"when fewer pages than asked came free, the status is 1.",
		.options = evict_options,
		.arguments_least = 1,
		.arguments_most = 1,
		.example = "poolctl evict 1GiB --content KV_CACHE",
		.example_text = "A gibibyte, of unpinned blocks of caches alone.",
		.run = evict_run,
	},
	{
		.name = "object",
		.arguments = "delete NAME",
		.summary = "delete a named object",
		.text = "Its name is gone at once, and its pages with the last process that has it open.",
		.options = object_options,
		.arguments_least = 2,
		.arguments_most = 2,
		.example = "poolctl object delete weights",
		.example_text = "The current version, whichever that is.",
		.run = object_run,
	},
	{
		.name = "drain",
		.arguments = "",
		.summary = "take a pool out of service, and wait until its workers have left",
		.text = "From now on no worker may attach to the pool, which its refusal says; observers and admins "
			"may. Those that are there go on, and an event tells them. Waits until the last one has left, "
			"for --timeout SECONDS at most, without it for as long as it takes, and says on standard error "
			"who is left; status 1 when some still are. Holds until --off or until gpoold ends; a restart "
			"or upgrade of the agent does not end it, nor does an interrupt of this.",
		.options = drain_options,
		.example = "poolctl drain --evict --timeout 60",
		.example_text = "Out of service, and a minute for the workers to leave.",
		.run = drain_run,
	},
	{
		.name = "limit",
		.arguments = "[TENANT]",
		.summary = "change what a tenant or a session may lease",
		.text = "Holds until the next reload. PAGES is a number, a size such as 4GiB, or percent of the pool. "
			"What is lent above a new limit is not taken back by force: it shrinks as it comes idle.",
		.options = limit_options,
		.arguments_most = 1,
		.example = "poolctl limit batch --limit 40%",
		.example_text = "At most 40 percent of the first pool for the tenant batch.",
		.run = limit_run,
	},
	{
		.name = "reload",
		.arguments = "",
		.summary = "have the agent read its configuration again",
		.text = "Says what changed and what waits for a restart. On a mistake in the file nothing changes.",
		.options = no_options,
		.example = "poolctl reload",
		.example_text = "After a change of gpoold.conf.",
		.run = reload_run,
	},
	{
		.name = "check",
		.arguments = "",
		.summary = "prove that the tables are consistent",
		.text = "Compares page table, published counts, leases, blocks and pins. What workers change at that "
			"very moment may look wrong for an instant, so findings in their tables are looked at up to "
			"three times more before they count.",
		.options = check_options,
		.offline = true,
		.example = "poolctl check --pool p0",
		.example_text = "The tables of one pool; status 4 when something is wrong.",
		.run = check_run,
	},
	{
		.name = "bench",
		.arguments = "",
		.summary = "measure the agent that runs, quickly",
		.text = "Attaches as a worker some times, allocates a few pages, pins, asks the agent for more, "
			"copies, and lets all of it go: a second or so. Medians stand beside the goals that "
			"gpool-bench has. Nobody's pages are evicted for it, and under high pressure, or where little "
			"is free, it does not begin.",
		.options = no_options,
		.example = "poolctl bench --pool p0",
		.example_text = "Is anything slow here?",
		.run = bench_run,
	},
	{
		.name = "doctor",
		.arguments = "",
		.summary = "test this machine and say what to do",
		.text = "Needs no agent. Looks at the kernel, the GPU driver, limits, memory, the folder of sockets "
			"and, where one runs, the agent.",
		.options = no_options,
		.example = "poolctl doctor --quiet",
		.example_text = "For a script: status 4 when something is wrong.",
		.run = doctor_run,
	},
	{
		.name = "dump",
		.arguments = "FILE",
		.summary = "write a snapshot that --offline reads",
		.text = "As root all pools, or the one of --pool, with all sessions, through the descriptors of gpoold "
			"and without asking the agent; else the pools alone, through the agent. FILE is replaced as a "
			"whole, and only its owner may read it.",
		.options = no_options,
		.arguments_least = 1,
		.arguments_most = 1,
		.example = "poolctl dump snapshot",
		.example_text = "For poolctl --offline snapshot, here or elsewhere.",
		.run = dump_run,
	},
	{
		.name = "upgrade",
		.arguments = "",
		.summary = "have the agent go on with newly installed code",
		.text = "Loads the file gpoold-agent.so again, as make install or a package has installed it, and "
			"restarts agent, front and movers from it. No page changes hands; attached processes stay "
			"attached. Any version, newer or older, is accepted if its layout is that of the running "
			"gpoold. A file that cannot be loaded, or has another layout, is refused with both layouts "
			"named, and the agent goes on as it was. See Upgrade in gpoold(8).",
		.options = no_options,
		.example = "poolctl upgrade",
		.example_text = "After make install, or the installation of a package.",
		.run = upgrade_run,
	},
	{
		.name = "version",
		.arguments = "",
		.summary = "show the versions of poolctl and of the agent",
		.text = "When no agent answers, poolctl's own lines are printed all the same.",
		.options = no_options,
		.example = "poolctl version -o json",
		.example_text = "Both versions, for a program.",
		.run = version_run,
	},
	{
		.name = "help",
		.arguments = "[VERB]",
		.summary = "explain poolctl or one verb",
		.text = "The same as --help.",
		.options = help_options,
		.arguments_most = 1,
		.example = "poolctl help evict",
		.example_text = "What evict does, and its options.",
		.run = help_run,
	},
	{.name = NULL},
};

const struct verb *verb_find(const char *name)
{
	for (const struct verb *verb = verbs; verb->name; verb++)
		if (!strcmp(verb->name, name))
			return verb;
	return NULL;
}

int main(int argc, char **argv)
{
	struct command command;
	int code = command_parse(argc, argv, &command);

	if (code)
		return code;
	if (command.values[OPTION_HELP]) {
		help_print(command.verb);
	} else if (command.values[OPTION_VERSION]) {
		printf("poolctl %s\n", gpool_version());
	} else if (!command.verb) {
		return complain_usage(NULL, "which verb?");
	} else {
		code = command.verb->run(&command);
	}
	if (fflush(stdout) || ferror(stdout)) {
		complain("cannot write the output: %s", strerror(errno));
		return code ? code : CODE_FAILED;
	}
	return code;
}
