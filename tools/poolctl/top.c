/* top.c - show a pool on the whole terminal, refreshed once per second, and handle keys. */
#include "tools/poolctl/top.h"

#include "shm/monotonic.h"
#include "tools/poolctl/agent.h"
#include "tools/poolctl/map.h"
#include "tools/poolctl/screen.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

AGENT_GETTER(page_kinds)
AGENT_GETTER(tenants)

enum {
	ANSWER_MS = 1000, /* short, so that keys work even if no agent answers */
};

const char *const top_order_names[TOP_ORDERS] = {"leased", "needed", "offered", "name"};

/* The connection to the agent, and the last sample. */
struct watch {
	struct command command; /* its pool is the selected one; NULL: the first */
	char pool_name[64];
	struct gpool *pool; /* NULL: not attached */
	struct msg_pool_status before;
	uint64_t before_ms, incarnation;
	struct top top;
};

/* ---- sampling ---- */

static enum top_order order_now;

static int clients_compare(const void *left, const void *right)
{
	const struct msg_client_entry *a = left, *b = right;
	int64_t more[TOP_ORDERS] = {
		[TOP_LEASED] = (int64_t)b->leased_pages - a->leased_pages,
		[TOP_NEEDED] = (int64_t)b->needed_pages - a->needed_pages,
		[TOP_OFFERED] = (int64_t)b->offered_pages - a->offered_pages,
		[TOP_NAME] = strcmp(a->name, b->name),
	};

	if (more[order_now])
		return more[order_now] > 0 ? 1 : -1;
	return a->session < b->session ? -1 : a->session > b->session;
}

static void clients_sort(struct top *top)
{
	order_now = top->order;
	if (top->clients.count)
		qsort(top->clients.clients, top->clients.count, sizeof(*top->clients.clients), clients_compare);
}

static double rate(uint64_t before, uint64_t now, uint64_t ms)
{
	return now > before ? (double)(now - before) * 1000 / (double)ms : 0;
}

/* Compute rates only if both samples are from the same agent: counters start at 0 when gpoold is started. */
static void rates_fill(struct watch *watch)
{
	const struct msg_pool_status *now = &watch->top.status.pools[watch->top.chosen], *before = &watch->before;
	uint64_t at_ms = monotonic_ms(), ms = at_ms - watch->before_ms;

	watch->top.rates = (struct top_rates){0};
	if (watch->incarnation == watch->top.status.incarnation && !strcmp(before->name, now->name) && ms) {
		watch->top.rates.allocations = rate(before->allocations, now->allocations, ms);
		watch->top.rates.grants = rate(before->grants, now->grants, ms);
		watch->top.rates.evicted_pages = rate(before->evicted_pages, now->evicted_pages, ms);
		watch->top.rates.refusals = rate(before->refusals, now->refusals, ms);
	}
	watch->before = *now;
	watch->before_ms = at_ms;
	watch->incarnation = watch->top.status.incarnation;
}

static int kinds_ask(struct watch *watch, const char *pool_name)
{
	static struct msg_page_kinds_reply reply;
	struct msg_page_kinds_request request = {.first = 0};
	struct top *top = &watch->top;
	uint32_t count = gpool_page_count(watch->pool);
	int code = CODE_OK;

	if (count != top->kind_count) {
		/* zeroed, because entries that a failed request leaves unchanged are drawn, too */
		free(top->kinds);
		top->kinds = memory_or_exit(calloc(count, 1));
		top->kind_count = count;
	}
	strcpy(request.pool, pool_name);
	while (!code && request.first < count) {
		code = agent_get_page_kinds(&watch->command, watch->pool, &request, &reply);
		if (!code && (!reply.pages_count || reply.pages_count > count - request.first))
			code = agent_bad_answer(&watch->command);
		for (uint32_t i = 0; !code && i < reply.pages_count; i++)
			top->kinds[request.first + i] = (uint8_t)map_kind_of_number(reply.pages[i].kind);
		request.first += code ? 0 : reply.pages_count;
	}
	return code;
}

static int look_attached(struct watch *watch)
{
	struct msg_tenants_request tenants = {.pool = ""};
	struct command all = watch->command, one = watch->command;
	struct top *top = &watch->top;
	uint32_t chosen = 0;
	int code;

	agent_pool_name(watch->pool, tenants.pool);
	all.pool = NULL;
	one.pool = tenants.pool;
	code = agent_status(&all, watch->pool, &top->status);
	while (!code && chosen < top->status.pools_count && strcmp(top->status.pools[chosen].name, tenants.pool))
		chosen++;
	if (!code && chosen == top->status.pools_count)
		code = agent_bad_answer(&all);
	if (code)
		return code;
	top->chosen = chosen;
	top->clients.count = 0;
	code = agent_get_tenants(&one, watch->pool, &tenants, &top->tenants);
	if (!code)
		code = agent_clients(&one, watch->pool, &top->clients);
	if (!code)
		code = kinds_ask(watch, tenants.pool);
	if (code)
		return code;
	clients_sort(top);
	rates_fill(watch);
	return CODE_OK;
}

/* Sample once. After a failure, the next refresh uses a new session, because gpoold may have been restarted. */
static int look(struct watch *watch)
{
	int code = watch->pool ? CODE_OK : agent_open(&watch->command, GPOOL_OPEN_OBSERVER, &watch->pool);

	if (code)
		watch->pool = NULL;
	else
		code = look_attached(watch);
	if (!code) {
		watch->top.trouble[0] = '\0';
		return CODE_OK;
	}
	gpool_close(watch->pool);
	watch->pool = NULL;
	return code;
}

/* ---- keys ---- */

static void choose(struct watch *watch, uint32_t step)
{
	struct top *top = &watch->top;

	if (top->status.pools_count < 2)
		return;
	top->chosen = (top->chosen + step) % top->status.pools_count;
	strcpy(watch->pool_name, top->status.pools[top->chosen].name);
	watch->command.pool = watch->pool_name;
	top->scrolled = 0;
	gpool_close(watch->pool);
	watch->pool = NULL;
	look(watch);
}

/* Handle a key. Return false to end the program. */
static bool key_do(struct watch *watch, int key)
{
	struct top *top = &watch->top;

	switch (key) {
	case SCREEN_END:
	case 'q': return false;
	case SCREEN_LEFT: choose(watch, top->status.pools_count - 1); break;
	case SCREEN_RIGHT: choose(watch, 1); break;
	case SCREEN_UP: top->scrolled -= top->scrolled != 0; break;
	case SCREEN_DOWN: top->scrolled += top->scrolled + 1 < top->clients.count; break;
	case 'h':
	case '?': top->help = !top->help; break;
	case 'r': look(watch); break;
	case 's':
		top->order = (top->order + 1) % TOP_ORDERS;
		clients_sort(top);
		break;
	default: break;
	}
	return true;
}

static void watch_on(struct watch *watch, int interval_ms)
{
	uint64_t next_ms = monotonic_ms() + (uint64_t)interval_ms;

	for (;;) {
		uint64_t at_ms = monotonic_ms();

		top_draw(&watch->top);
		if (!key_do(watch, screen_key(next_ms > at_ms ? (int)(next_ms - at_ms) : 0)))
			return;
		if (monotonic_ms() < next_ms)
			continue;
		look(watch);
		next_ms = monotonic_ms() + (uint64_t)interval_ms;
	}
}

static int screen_complain(int error)
{
	const char *name = getenv("TERM");

	if (error == -ENOTTY)
		complain("'top' needs a terminal for input and output; 'poolctl status' prints the state once");
	else
		complain("'top' does not know the terminal type '%s' ($TERM); 'poolctl status' prints the state once",
			name ? name : "");
	return CODE_FAILED;
}

int top_run(const struct command *command)
{
	static struct watch watch;
	int interval_ms, error, code;

	if (!command_seconds(command, OPTION_INTERVAL, 100, 3600 * 1000, 1000, &interval_ms))
		return CODE_USAGE;
	if (command->json)
		return complain_usage(command->verb, "'top' does not print JSON; use 'poolctl status -o json'");
	watch.command = *command;
	code = look(&watch);
	if (code)
		return code;
	error = screen_open(command->color);
	if (!error) {
		watch.command.timeout_ms = ANSWER_MS;
		complaints_to(watch.top.trouble, sizeof(watch.top.trouble));
		watch_on(&watch, interval_ms);
		screen_close();
		complaints_to(NULL, 0);
	}
	gpool_close(watch.pool);
	free(watch.top.clients.clients);
	free(watch.top.kinds);
	return error ? screen_complain(error) : CODE_OK;
}
