/*
 * ledger.h - the private state of the agent that the next agent needs: tokens, limits, the current step, spilled
 * blocks. Each pool has one ledger, a shared memory that the keeper creates and only the agent inherits.
 *
 * Writer: the agent. Reader: the next agent. The ledger does not repeat state that page words and session segments
 * contain.
 *
 * The agent may die between any two stores. Therefore a record is filled before its state is stored, and a step that
 * changes several words is written to the journal before the first change. recover.c completes or undoes each
 * incomplete step.
 *
 *   header | runs struct page_run[page_count] | sessions[POOL_SESSIONS] | objects[object_count] | roles[POOL_ROLES] |
 *   pages[page_count] | slots[slot_count] | holders, one bit per session and handle
 */
#ifndef GPOOL_AGENT_LEDGER_H
#define GPOOL_AGENT_LEDGER_H

#include "shm/pool_segment.h"

#include <stdatomic.h>
#include <stdint.h>

#define LEDGER_MAGIC UINT64_C(0x7265676465706731) /* "1gpedger" */

struct page_run {
	uint32_t first, count;
};

/*
 * The current step of the agent. `what` is stored last and cleared first. While it is not LEDGER_REST, the other fields
 * and the first run_count runs are complete.
 */
enum ledger_step {
	LEDGER_REST,
	/*
	 * runs become LEASED to session. The answer in the request slot commits the step; without it, the runs are
	 * taken back
	 */
	LEDGER_GRANT,
	/* the free bits `mask` of word `slot` are being cleared; pages whose bits were set now belong to the agent */
	LEDGER_RECLAIM,
	LEDGER_TAKE, /* a block (runs: its extents in order) is being freed; it was marked, then found unpinned */
	/*
	 * runs pass from the maker of reservation `mask` to session. The answer in the request slot commits the step;
	 * without it, the runs pass back
	 */
	LEDGER_PASS,
};
enum { LEDGER_NO_SLOT = UINT32_MAX };
struct ledger_journal {
	_Atomic uint32_t what; /* enum ledger_step */
	uint32_t session;
	uint32_t run_count;
	/* LEDGER_GRANT, LEDGER_PASS: the request slot, or LEDGER_NO_SLOT if the session is being admitted */
	uint32_t slot;
	uint32_t slot_word; /* LEDGER_GRANT, LEDGER_PASS: state of the slot before the answer */
	uint32_t reserved;
	uint64_t mask;
};

/* The state-changing control request in progress, for the successor of an agent that dies while it executes one. */
struct ledger_verb {
	_Atomic uint32_t session; /* 0: none */
	uint32_t type;
	uint64_t sequence;
	_Atomic uint64_t progress;
};

enum ledger_session_state {
	LEDGER_SESSION_NONE,
	LEDGER_SESSION_ADMITTING, /* being created; not visible to any other process */
	LEDGER_SESSION_SENDING,   /* complete; the reply may have been sent */
	LEDGER_SESSION_LIVE,
	LEDGER_SESSION_CLOSED, /* disconnected or dead, but the process may still use its pages */
	LEDGER_SESSION_ENDING, /* its pages are being freed */
};
enum { LEDGER_ANSWER_BYTES = 368 };

struct ledger_session {
	_Atomic uint32_t state; /* enum ledger_session_state */
	uint32_t kind;
	uint32_t privileged;
	uint32_t pid;
	uint32_t uid;
	uint32_t quota; /* pages */
	_Atomic uint32_t limit;
	uint32_t domain;      /* trust domain: index in ledger_header.domains plus 1; 0: no separate domains */
	uint64_t attached_ms; /* CLOCK_MONOTONIC, the same for all agents since boot */
	uint8_t token[16];
	char name[POOL_NAME_BYTES];
	char tenant[POOL_NAME_BYTES];
	/*
	 * The last request on the attach socket that changed state, and its reply, which is sent again if the request
	 * is repeated.
	 */
	_Atomic uint64_t answered;
	uint32_t answer_bytes;
	uint32_t reserved;
	uint8_t answer[LEDGER_ANSWER_BYTES];
};

/* Extends struct object_record of the pool segment by the sessions that have the object open, one bit each. */
struct ledger_object {
	_Atomic uint64_t readers[POOL_SESSIONS / 64];
};

/*
 * Extends struct role_record of the pool segment by the arrival number of each session that waits for the role; 0: it
 * does not wait. The lowest number is next. Joining and leaving take one store each, so a crash cannot leave a
 * half-linked list. Rows of unused roles are never touched.
 */
struct ledger_role {
	_Atomic uint64_t arrivals; /* last number assigned; stored before the number is used */
	_Atomic uint64_t standbys[POOL_SESSIONS];
};

/*
 * The trust domain and the transfer of a handle, stored in the record of its first page. All pages of a handle are in
 * the same domain; see trust.h. The transfer is stored before the first page's word changes, and cleared after the last
 * one has changed.
 */
enum ledger_transfer {
	LEDGER_TRANSFER_NONE,
	LEDGER_TRANSFER_WAITS,  /* waits until former holders have unmapped the handle */
	LEDGER_TRANSFER_SCRUBS, /* no process can have it mapped; complete when `domain` is 0 */
};

struct ledger_page {
	/*
	 * trust domain of its content, as in ledger_session, or LEDGER_DOMAIN_FRESH; 0: none, as it is cleared and not
	 * mapped in any process
	 */
	_Atomic uint8_t domain;
	/* 1: leased, but the previous agent may have taken it back before it died; see recover.c */
	uint8_t doubt;
	_Atomic uint8_t transfer; /* enum ledger_transfer */
	/* index of the reservation to which the page belongs while it is LEASED to the maker; 0: none */
	_Atomic uint8_t reservation;
};

/* A reservation (agent/pages/reservation.h). The record is filled before its id, and unused if the id is 0. */
struct ledger_reservation {
	_Atomic uint64_t id;  /* chosen by the maker */
	uint64_t deadline_ms; /* UINT64_MAX: none */
	uint32_t session;     /* the maker */
	uint32_t reserved;
};

/*
 * A slot for one page of spilled content. Slots [0, memory_slots) are in host memory, slots [memory_slots, slot_count)
 * in the file. The slots of a block form a chain that starts at the slot of its first page. The `state` of that slot is
 * the state of the whole block, so one store changes it.
 */
enum ledger_slot_state {
	SLOT_UNUSED,
	SLOT_SAVING,    /* being written from `page`, whose word is MOVING with `generation` */
	SLOT_SAVED,     /* complete; the block's pages are freed, or about to be */
	SLOT_LOADING,   /* being read into `page`; the request is not answered yet */
	SLOT_ANSWERED,  /* the request is about to be answered; the state of its request slot shows whether it was */
	SLOT_DISCARDED, /* the same, for a request to discard the block */
	SLOT_SINKING,   /* in the file: being copied from other slots of the same block, which contain its content */
};
struct ledger_slot {
	_Atomic uint64_t tag;   /* tag of the block, without BLOCK_SCATTERED; 0: the slot is free */
	uint32_t session;       /* 0: the session has ended, and the slot is freed when no job uses it */
	uint32_t index;         /* index of the page in its block, in the order of the extents */
	uint64_t checksum;      /* XXH3 64 */
	uint32_t next;          /* slot of the next page plus 1; 0: last page */
	uint32_t pages;         /* number of pages of the block */
	_Atomic uint32_t state; /* enum ledger_slot_state, in the slot of the first page */
	uint32_t page;
	uint64_t generation; /* generation of `page` while it is LEASED or MOVING */
	uint64_t owner_id;
	uint32_t request;      /* from SLOT_LOADING on: number of the request slot */
	uint32_t request_word; /* from SLOT_LOADING on: state of that slot, which is unique to the request */
};
static_assert(sizeof(struct ledger_slot) == 64, "one cache line each");

/* Limits set with poolctl, which apply until the next reload. Indexed as in the configuration. */
struct ledger_tenant {
	_Atomic uint32_t changed; /* 1: minimum and limit are valid */
	_Atomic uint32_t minimum, limit;
};
enum {
	LEDGER_TENANTS = 64,
	LEDGER_DOMAINS = 64,
	/* memory just allocated from the driver, with undefined content */
	LEDGER_DOMAIN_FRESH = LEDGER_DOMAINS + 1,
};

struct ledger_header {
	uint64_t magic;
	uint32_t layout_version; /* POOL_LAYOUT_VERSION, one number for all shared memory */
	uint32_t header_bytes;
	uint32_t page_count;
	uint32_t object_count; /* as in the pool segment */
	uint32_t memory_slots, slot_count;
	_Atomic uint32_t started; /* 1: an agent has used this ledger */
	struct ledger_journal journal;
	struct ledger_verb verb;
	struct ledger_tenant tenants[LEDGER_TENANTS];
	/*
	 * Trust domains by name, because their order in the configuration may change. When all indexes are used, that
	 * of a domain without members, pages and roles is assigned again.
	 */
	_Atomic uint32_t domain_count;
	uint32_t reserved;
	char domains[LEDGER_DOMAINS][POOL_NAME_BYTES];
	struct ledger_reservation reservations[POOL_RESERVATIONS]; /* [0] is unused */
};

struct ledger {
	struct ledger_header *header;
	struct page_run *runs;           /* [page_count]: runs of the journal, and scratch memory of a grant */
	struct ledger_session *sessions; /* [POOL_SESSIONS] */
	struct ledger_object *objects;   /* [object_count] */
	struct ledger_role *roles;       /* [POOL_ROLES] */
	struct ledger_page *pages;       /* [page_count] */
	struct ledger_slot *slots;       /* [slot_count] */
	/*
	 * [POOL_SESSIONS][holder_words]: the handles of which each session may have a descriptor, an import or a
	 * mapping. If the pool does not separate domains, this memory is never touched. Rows of nonexistent sessions
	 * are undefined.
	 */
	_Atomic uint64_t *holders;
	uint32_t holder_words;
	size_t bytes;
};

/*
 * ledger_create() - create, zero and map a ledger. The caller owns *fd and must not send it to another process. Return:
 * 0, -ENOMEM, or the errno of memfd_create.
 */
int ledger_create(uint32_t page_count, uint32_t object_count, uint32_t memory_slots, uint32_t slot_count,
	struct ledger *ledger, int *fd);
static inline _Atomic uint64_t *ledger_holders(const struct ledger *ledger, uint32_t session)
{
	return ledger->holders + (size_t)session * ledger->holder_words;
}

/*
 * ledger_open() - map a ledger that was kept over a restart of gpoold. Return: 0, -EPROTO (another layout), -EBADMSG,
 * -ENOMEM.
 */
int ledger_open(int fd, struct ledger *ledger);
void ledger_close(struct ledger *ledger);

#endif
