/*
 * fuzz_session.c - arbitrary writes of a worker into its session segment.
 *
 * Goal: whatever a worker writes, the agent's accounting stays correct, and other sessions are not affected. Method: a
 * real pool and two real sessions in this process. The input is a list of writes to the first session's segment (offset
 * and bytes) and of triggers that make the agent read it: doorbell, housekeeping, eviction, requests of tools, results
 * of the mover. This process also acts as the mover, without moving bytes, so that the result depends only on the
 * input. After each step, the pool's words and counts agree, the second session is unchanged, and each slot of spilled
 * pages is either taken or free.
 *
 * Requirements: S10.
 */
#include "agent/control/control.h"
#include "agent/control/housekeeping.h"
#include "agent/control/pool_start.h"
#include "agent/pages/lease.h"
#include "agent/base/log.h"
#include "agent/pages/requests.h"
#include "agent/session/session.h"
#include "agent/spill/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { PAGES = 200, KEPT = 20, SPILL_SLOTS = 24 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct agent agent;
static struct pool *pool;
static int keeper; /* the keeper's end */

static void require(int condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "broken: %s\n", what);
	abort();
}

/* Create a socket whose other end is never read. When it is full, the agent must tolerate that. */
static int deaf_socket(void)
{
	int pair[2];

	require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
	return pair[0];
}

/* Read the keeper's messages and close their descriptors: no process is restarted here. */
static void keeper_reads(void)
{
	struct keep_message message;
	int fds[ATTACH_FDS_MAX];
	size_t count;

	while (attach_receive(keeper, &message, sizeof(message), fds, ATTACH_FDS_MAX, &count, 0) > 0)
		while (count)
			close(fds[--count]);
}

static void setup(void)
{
	static const struct pool_geometry geometry = {.name = "p0",
		.backend = "host",
		.device = "",
		.page_bytes = 2 << 20,
		.page_count = PAGES,
		.pages_per_handle = 1};
	static const struct module_start nothing_held;
	struct module_pool start = {.handle_bytes = 2 << 20, .ring_bytes = sizeof(struct mover_ring)};
	struct config_error error;
	int pair[2];

	log_setup("fuzz", -1, 0);
	config_defaults(&agent.config);
	agent.config.mover.patience_ms = 0;
	require(config_add_pool(&agent.config, "name=p0,backend=host,size=400MiB,page_size=2MB,reserved=0", &error) ==
			0,
		error.text);
	require(config_finish(&agent.config, &error) == 0, error.text);
	agent.start = &nothing_held;
	agent.epoll = epoll_create1(EPOLL_CLOEXEC);
	agent.timer.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
	agent.keeper.fd = pair[0];
	keeper = pair[1];
	agent.front.fd = deaf_socket();
	require(pool_segment_create(&geometry, &start.segment, &start.segment_fd) == 0, "pool segment");
	require(ledger_create(PAGES, POOL_OBJECTS_LEAST, SPILL_SLOTS, SPILL_SLOTS, &start.ledger, &start.ledger_fd) ==
			0,
		"ledger");
	start.ring = mmap(NULL, start.ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	require(start.ring != MAP_FAILED, "ring");
	start.work_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	start.done_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	require(pool_create(&agent, 0, &start, &pool) == 0, "pool");
	agent.pools[0] = pool;
	agent.pool_count = 1;
}

static struct session *attach(const char *name)
{
	static struct attach_peer peer;
	struct msg_attach_request request = {.layout_version = POOL_LAYOUT_VERSION};
	uint32_t before = pool->session_next;
	int pair[2];

	peer = (struct attach_peer){.pid = getpid(), .uid = geteuid(), .gid = getegid()};
	peer.pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	snprintf(request.name, sizeof(request.name), "%s", name);
	require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
	require(session_admit(&agent, pair[0], &peer, &request) == 0, "admission");
	close(pair[1]);
	for (uint32_t id = before; id < POOL_SESSIONS; id++)
		if (pool->sessions[id] && !strcmp(pool->sessions[id]->name, name))
			return pool->sessions[id];
	abort();
}

/* Complete up to `count` jobs in the order of the ring, each with a result that may be false. */
static void mover_ends(uint32_t count, uint8_t how)
{
	static const int32_t results[] = {0, 0, 0, -ENOSPC, -EBADMSG, -EIO, -EINVAL, 77};
	struct mover_ring *ring = pool->jobs->queue.ring;

	for (uint32_t slot = 0; slot < MOVER_JOBS && count; slot++) {
		if (atomic_load(&ring->jobs[slot].state) != MOVER_QUEUED)
			continue;
		ring->jobs[slot].error = results[how % 8];
		ring->jobs[slot].checksum = how;
		/* A mover may write anywhere in the ring. */
		ring->jobs[slot].page ^= how;
		ring->jobs[slot].to ^= how;
		ring->jobs[slot].tag ^= how;
		atomic_store(&ring->jobs[slot].state, MOVER_DONE);
		count--;
	}
	jobs_resume(pool);
}

/* Send the keeper's messages about movers. The time limit is 0: jobs are taken back as soon as no mover is reported. */
static void mover_comes_or_goes(uint8_t how)
{
	struct keep_message message = {.what = KEEP_MOVER_END, .kind = pool->jobs->ended, .id = how & 2};

	if (how & 1) {
		atomic_store(&pool->jobs->queue.ring->gate, pool->jobs->ended + 1);
		jobs_resume(pool);
		return;
	}
	message.kind += how & 4 ? 1 : 0;
	memset(pool->jobs->queue.ring->why, how, MOVER_WHY_BYTES);
	agent.config.trust.death_grace_ms = how & 8 ? 60000 : 0;
	jobs_hear(pool, &message);
}

/* A failed tier is not used for some time; here, until the next input. */
static void tiers_rested(void)
{
	for (int tier = 0; tier < MOVER_TIERS; tier++)
		pool->spill->slots.tiers[tier].rest_ms = 0;
	memset(pool->spill->rest_ms, 0, PAGES * sizeof(*pool->spill->rest_ms));
}

static void finish(struct session *session)
{
	session_end(session, SESSION_END_DETACH);
	sessions_free_dead(&agent);
}

static void spill_holds(const struct session *hostile, uint32_t moving)
{
	const struct spill_block *block;
	uint32_t taken = 0, saving = 0, loading = 0;

	for (uint32_t slot = 0; slot < SPILL_SLOTS; slot++)
		taken += pool->ledger.slots[slot].tag != 0;
	require(taken == slots_used(&pool->spill->slots, MOVER_TIER_MEMORY), "taken slots");
	TAILQ_FOREACH(block, &pool->spill->working, working)
	{
		if (!block->session)
			continue;
		saving += block->phase == SPILL_SAVING ? block->pages : 0;
		loading += block->phase == SPILL_LOADING ? block->pages : 0;
	}
	require(moving == saving + loading, "pages in motion");
	require(pool->saving_pages == saving && (!hostile || hostile->saving == saving), "pages on their way out");
	for (uint32_t slot = 0; hostile && slot < SESSION_REQUESTS; slot++) {
		uint32_t waits = 0;

		TAILQ_FOREACH(block, &pool->spill->working, working)
		waits += block->session && block->request == (int32_t)slot;
		require(waits == (hostile->spill_requests >> slot & 1), "requests about spilled blocks");
	}
}

static void books_hold(const struct session *second, const struct session *hostile)
{
	uint32_t moving = 0, retired = 0, by_owner[3] = {0}, free_pages = 0, published = 0;

	for (uint32_t page = 0; page < PAGES; page++) {
		uint64_t word = pool_word(pool, page);

		if (page_word_state(word) == PAGE_FREE) {
			free_pages++;
			require(page_word_owner(word) == 0, "a free page with an owner");
		} else if (page_word_state(word) == PAGE_RETIRED) {
			require(page_word_owner(word) == 0, "a page set aside with an owner");
			retired++;
		} else {
			require(page_word_state(word) == PAGE_LEASED || page_word_state(word) == PAGE_MOVING ||
					page_word_state(word) == PAGE_QUARANTINED,
				"a state that cannot be");
			moving += page_word_state(word) == PAGE_MOVING;
			by_owner[page_word_owner(word) == second->id ? 2 : 1]++;
		}
	}
	for (int state = 0; state < PAGE_STATES; state++)
		published += pool->segment.header->state_pages[state];
	require(pool->segment.header->state_pages[PAGE_MOVING] == moving, "published pages in motion");
	require(pool->segment.header->state_pages[PAGE_RETIRED] == retired, "published pages set aside");
	require(published == PAGES, "published counts");
	require(pool->segment.header->state_pages[PAGE_FREE] == free_pages && pool->free.total == free_pages,
		"free pages");
	require(by_owner[2] == second->leased && second->leased == KEPT, "the other session's pages");
	require(pool->leased == by_owner[1] + by_owner[2], "leased pages");
	require(!hostile || hostile->leased == by_owner[1], "the session's own pages");
	spill_holds(hostile, moving);
}

static void ask(const struct session *session, const struct session *hostile, uint8_t which)
{
	struct msg_regions_request regions = {.session = hostile->id, .first = which / 6 * UINT32_C(3000)};

	static uint8_t packet[8 + MSG_BYTES_MAX];
	uint64_t id = 1;
	int length = -1;

	memcpy(packet, &id, sizeof(id));
	switch (which % 6) {
	case 0:
		length = msg_encode_status_request(
			&(struct msg_status_request){0}, 1, session->token, packet + 8, MSG_BYTES_MAX);
		break;
	case 1:
		length = msg_encode_pages_request(
			&(struct msg_pages_request){.count = PAGES}, 2, session->token, packet + 8, MSG_BYTES_MAX);
		break;
	case 2:
		length = msg_encode_pins_request(
			&(struct msg_pins_request){0}, 3, session->token, packet + 8, MSG_BYTES_MAX);
		break;
	case 3:
		length = msg_encode_clients_request(
			&(struct msg_clients_request){0}, 4, session->token, packet + 8, MSG_BYTES_MAX);
		break;
	case 4:
		length = msg_encode_check_request(
			&(struct msg_check_request){0}, 5, session->token, packet + 8, MSG_BYTES_MAX);
		break;
	default: length = msg_encode_regions_request(&regions, 6, session->token, packet + 8, MSG_BYTES_MAX);
	}
	if (length > 0)
		control_packet(&agent, packet, (size_t)length + 8);
}

/* Write a region and a head, either of which may be invalid. */
static void region_lie(struct region_table *table, const uint8_t *data)
{
	struct region_entry *entry = &table->entries[data[1] % 64];

	table->used = data[7] * UINT32_C(33); /* up to slightly more than the capacity of the table */
	table->page_bytes = data[0] & 1 ? UINT64_C(2) << 20 : UINT64_C(1) << (data[0] & 31) * 2;
	table->changes = data[6] & 1;
	entry->serial = data[6] >> 1;
	entry->what = data[2] | (uint32_t)data[3] << 8;
	entry->pages = data[4] == 255 ? UINT32_MAX : data[4];
	entry->address = data[5] == 255 ? UINT64_MAX & ~UINT64_C(4095) : (uint64_t)data[5] << 12;
}

/* Send a request about a reservation: any session of the tenant may release it. */
static void reservation_ask(struct session *hostile, struct session *second, const uint8_t *data)
{
	uint32_t kind = LEASE_RESERVE + data[1] % 3, at = data[1] >> 2;
	struct session *session = kind == LEASE_UNRESERVE && data[3] & 1 ? second : hostile;
	struct lease_request *slot = &session->segment.requests[at];

	*slot = (struct lease_request){.kind = kind,
		.need = data[2] % 64,
		.extra = data[3] & 1,
		.flags = data[2] & 64 ? LEASE_CONTIGUOUS : 0,
		.tag = (uint64_t)hostile->id << RESERVATION_SESSION_SHIFT | (data[3] >> 1 & 3)};
	slot->state = LEASE_REQUESTED;
	session->segment.header->requests_pending |= UINT64_C(1) << at;
	requests_doorbell(session);
}

/* Execute one step of the input. Return the number of bytes used. */
static size_t step(struct session *hostile, struct session *second, const uint8_t *data, size_t size)
{
	uint8_t *base = (uint8_t *)hostile->segment.header;
	struct lease_request *slot = &hostile->segment.requests[data[0] % SESSION_REQUESTS];
	uint32_t offset;
	size_t length;

	switch (data[0] >> 5) {
	case 0: /* write anywhere, including the first of the regions */
		if (size < 6)
			return size;
		memcpy(&offset, data + 1, sizeof(offset));
		length = data[5] % 32;
		if (length > size - 6)
			length = size - 6;
		offset %= (uint32_t)(session_layout_of(PAGES).regions + 4096 - 32);
		memcpy(base + offset, data + 6, length);
		return 6 + length;
	case 1:
		if (size < 8)
			return size;
		region_lie(hostile->segment.regions, data);
		return 8;
	case 2: /* a request with these fields */
		if (size < 6)
			return size;
		*slot = (struct lease_request){.kind = data[1] % 6,
			.need = data[2],
			.extra = data[3],
			.flags = data[4],
			.timeout_ms = data[5] % 2};
		if (slot->kind > LEASE_TAKE)
			*slot = (struct lease_request){.kind = data[1] % 6,
				.need = data[2] % 8,
				.first_page = data[3],
				.tag = block_tag_make(data[4], data[5] | BLOCK_SPILL)};
		slot->state = LEASE_REQUESTED;
		hostile->segment.header->requests_pending |= UINT64_C(1) << (data[0] % SESSION_REQUESTS);
		requests_doorbell(hostile);
		return 6;
	case 3: /* a block that may be invalid */
		if (size < 6)
			return size;
		hostile->segment.blocks[data[1] % PAGES].page_count = data[2];
		hostile->segment.blocks[data[1] % PAGES].next = data[3];
		hostile->segment.blocks[data[1] % PAGES].tag =
			data[4] ? block_tag_make(data[4], data[5] | (uint32_t)(data[0] & 7) << 8) : 1;
		hostile->segment.pins[data[1] % PAGES] = data[0] >> 3 & 1;
		return 6;
	case 4:
		if (size < 2)
			return size;
		evict_pages(pool,
			&(struct evict_request){.pages = data[1], .for_tenant = data[0] & 1 ? second->tenant : NULL});
		return 2;
	case 5:
		if (data[0] & 16) {
			mover_comes_or_goes(data[0] & 15);
			return 1;
		}
		if (data[0] & 8) {
			if (size < 4)
				return size;
			reservation_ask(hostile, second, data);
			return 4;
		}
		hostile->last_refill_ms = 0;
		housekeeping(pool);
		return 1;
	case 6: lease_reclaim(hostile, data[0] & 31); return 1;
	default:
		if (data[0] & 16) {
			if (size < 2)
				return size;
			mover_ends(data[0] & 15, data[1]);
			return 2;
		}
		ask(second, hostile, data[0] & 31);
		return 1;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct session *hostile, *second;

	if (!pool)
		setup();
	tiers_rested();
	agent.config.lease.initial_pages = 0;
	second = attach("second");
	agent.config.lease.initial_pages = 64;
	hostile = attach("hostile");
	/* All pages of the second session are in one pinned block. */
	second->segment.requests[0] = (struct lease_request){.kind = LEASE_TAKE, .need = KEPT};
	second->segment.requests[0].state = LEASE_REQUESTED;
	second->segment.header->requests_pending = 1;
	requests_doorbell(second);
	require(second->segment.requests[0].state == LEASE_DONE && !second->segment.requests[0].error,
		"the second's grant");
	second->segment.pins[second->segment.requests[0].first_page] = 1;
	second->segment.blocks[second->segment.requests[0].first_page].tag = block_tag_make(77, 0);
	while (size) {
		size_t used = step(hostile, second, data, size);

		data += used;
		size -= used;
		books_hold(second, hostile->state == SESSION_LIVE ? hostile : NULL);
		if (hostile->state != SESSION_LIVE)
			break;
		keeper_reads();
	}
	finish(hostile);
	for (uint32_t i = 0; i < POOL_RESERVATIONS; i++)
		require(pool->ledger.header->reservations[i].id == 0, "a reservation without its maker");
	books_hold(second, NULL);
	/*
	 * Pages of running jobs are freed with the mover's result, or after the grace period following the mover's
	 * death.
	 */
	mover_ends(MOVER_JOBS, 0);
	mover_comes_or_goes(4);
	mover_comes_or_goes(1);
	finish(second);
	require(pool->free.total == PAGES && pool->leased == 0, "all pages back");
	require(slots_used(&pool->spill->slots, MOVER_TIER_MEMORY) == 0 && TAILQ_EMPTY(&pool->spill->working),
		"all slots back");
	require(pool->jobs->queue.in_flight == 0, "all jobs back");
	keeper_reads();
	return 0;
}
