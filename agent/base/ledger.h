/*
 * ledger.h - the state of the agent that is private to it and that the next agent needs: tokens, limits, the current
 * step, spilled blocks. It is one shared memory per pool, created by the keeper and inherited only by the agent.
 *
 * Writer: the agent. Reader: the next agent. State that the page words and the session segments contain is not repeated
 * here.
 *
 * Crash rule: the agent may die between any two stores; recover.c defines the result of each incomplete step. A record
 * is therefore filled first and its state stored last, and a step that changes several words is written to the journal
 * before the first change.
 *
 *   header | runs struct page_run[page_count] | sessions[POOL_SESSIONS] | objects[object_count] | roles[POOL_ROLES] |
 *   pages[page_count] | slots[slot_count] | holders, a bit for each session and handle
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
 * The current step of the agent. `what` is stored last and cleared first; while it is not LEDGER_REST the other fields
 * and the first run_count runs are complete.
 */
enum ledger_step {
	LEDGER_REST,
	/*
	 * runs become LEASED to session. The answer in the request slot commits it; without the answer they are taken
	 * back
	 */
	LEDGER_GRANT,
	/* the free bits `mask` of word `slot` are being cleared; the pages whose bits were set belong to the agent */
	LEDGER_RECLAIM,
	LEDGER_TAKE, /* a block, with runs in order of its extents, is freed: it was unpinned after it was marked */
};
enum { LEDGER_NO_SLOT = UINT32_MAX };
struct ledger_journal {
	_Atomic uint32_t what; /* enum ledger_step */
	uint32_t session;
	uint32_t run_count;
	/* LEDGER_GRANT: request slot, or LEDGER_NO_SLOT: the session is not admitted yet */
	uint32_t slot;
	uint32_t slot_word; /* LEDGER_GRANT: the slot's state until it is answered */
	uint32_t reserved;
	uint64_t mask;
};

/* A control request that changes state and is in progress, for the successor of an agent that dies in it. */
struct ledger_verb {
	_Atomic uint32_t session; /* 0: none */
	uint32_t type;
	uint64_t sequence;
	_Atomic uint64_t progress;
};

enum ledger_session_state {
	LEDGER_SESSION_NONE,
	LEDGER_SESSION_ADMITTING, /* being created; no other process has seen it */
	LEDGER_SESSION_SENDING,   /* complete; the reply may or may not have been sent */
	LEDGER_SESSION_LIVE,
	LEDGER_SESSION_CLOSED, /* connection closed, process alive */
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
	uint32_t domain;      /* trust domain, index in ledger_header.domains plus 1; 0: only one domain */
	uint64_t attached_ms; /* CLOCK_MONOTONIC, which all agents of one boot share */
	uint8_t token[16];
	char name[POOL_NAME_BYTES];
	char tenant[POOL_NAME_BYTES];
	/* The last request on the attach socket that changed state, and its reply: a repetition gets the same one. */
	_Atomic uint64_t answered;
	uint32_t answer_bytes;
	uint32_t reserved;
	uint8_t answer[LEDGER_ANSWER_BYTES];
};

/* Extends struct object_record of the pool segment: the sessions that have it open, one bit each. */
struct ledger_object {
	_Atomic uint64_t readers[POOL_SESSIONS / 64];
};

/*
 * Extends struct role_record of the pool segment: the arrival number of each session that waits for the role, 0: it
 * does not wait. The lowest number is next. Joining and leaving are one store each, so there is no list that a crash
 * could leave half-linked. Rows of unused roles are never touched.
 */
struct ledger_role {
	_Atomic uint64_t arrivals; /* last number given; stored before the number is used */
	_Atomic uint64_t standbys[POOL_SESSIONS];
};

/*
 * The trust domain and the transfer of a handle, in the record of its first page, since all pages of a handle are in
 * one domain: see trust.h. A transfer is stored before the first page's word changes, and cleared after the last one's.
 */
enum ledger_transfer {
	LEDGER_TRANSFER_NONE,
	LEDGER_TRANSFER_WAITS,  /* for former holders to unmap it */
	LEDGER_TRANSFER_SCRUBS, /* no process can have it mapped; done when `domain` is 0 */
};

struct ledger_page {
	/*
	 * the domain of its bytes, as in ledger_session or LEDGER_DOMAIN_FRESH; 0: none: it is cleared and not mapped
	 * in any process
	 */
	_Atomic uint8_t domain;
	/* 1: leased, and it is unknown whether the agent took it back before its predecessor died; see recover.c */
	uint8_t doubt;
	_Atomic uint8_t transfer; /* enum ledger_transfer */
	uint8_t reserved;
};

/*
 * A page of spilled content: in host memory for indexes [0, memory_slots), in the file for [memory_slots, slot_count).
 * The slots of one block are a chain that starts at the slot of its first page. The `state` of that slot is the state
 * of the whole block, so that one store changes it.
 */
enum ledger_slot_state {
	SLOT_UNUSED,
	SLOT_SAVING,    /* being written from `page`, of that generation, which is MOVING */
	SLOT_SAVED,     /* complete; its pages are freed, or about to be */
	SLOT_LOADING,   /* being read into `page`; the request for it is not answered */
	SLOT_ANSWERED,  /* the request is about to be answered: its slot's state shows whether it was */
	SLOT_DISCARDED, /* a request to discard it is about to be answered, as above */
	SLOT_SINKING,   /* in the file: being written from other slots of the same block, which hold its content */
};
struct ledger_slot {
	_Atomic uint64_t tag;   /* of the block, without BLOCK_SCATTERED; 0: free */
	uint32_t session;       /* 0: its session has ended, and the slot is freed when no job uses it */
	uint32_t index;         /* of the page within its block, in order of the extents */
	uint64_t checksum;      /* XXH3 64 */
	uint32_t next;          /* slot of the next page plus 1; 0: last */
	uint32_t pages;         /* of the whole block */
	_Atomic uint32_t state; /* enum ledger_slot_state, in the slot of page 0 */
	uint32_t page;
	uint64_t generation;   /* of that page, LEASED or MOVING */
	uint64_t owner_id;     /* of the block */
	uint32_t request;      /* from SLOT_LOADING on: request slot, ... */
	uint32_t request_word; /* ... and its state, which is unique to that request */
};
static_assert(sizeof(struct ledger_slot) == 64, "one cache line each");

/* Limits that poolctl has set, in force until the next reload, by index in the configuration. */
struct ledger_tenant {
	_Atomic uint32_t changed; /* 1: the following two are valid */
	_Atomic uint32_t minimum, limit;
};
enum {
	LEDGER_TENANTS = 64,
	LEDGER_DOMAINS = 64,
	/* memory from the driver, whose content is undefined */
	LEDGER_DOMAIN_FRESH = LEDGER_DOMAINS + 1,
};

struct ledger_header {
	uint64_t magic;
	uint32_t layout_version; /* POOL_LAYOUT_VERSION: one number for all shared memory */
	uint32_t header_bytes;
	uint32_t page_count;
	uint32_t object_count; /* as in the pool segment */
	uint32_t memory_slots, slot_count;
	_Atomic uint32_t started; /* an agent has served from this ledger */
	struct ledger_journal journal;
	struct ledger_verb verb;
	struct ledger_tenant tenants[LEDGER_TENANTS];
	/* Trust domains by name, since the order in the configuration may change. Indexes are never reused. */
	_Atomic uint32_t domain_count;
	uint32_t reserved;
	char domains[LEDGER_DOMAINS][POOL_NAME_BYTES];
};

struct ledger {
	struct ledger_header *header;
	struct page_run *runs;           /* [page_count]: of the journal, and scratch memory of a grant */
	struct ledger_session *sessions; /* [POOL_SESSIONS] */
	struct ledger_object *objects;   /* [object_count] */
	struct ledger_role *roles;       /* [POOL_ROLES] */
	struct ledger_page *pages;       /* [page_count] */
	struct ledger_slot *slots;       /* [slot_count] */
	/*
	 * [POOL_SESSIONS][holder_words]: the handles of which each session may have a descriptor, an import or a
	 * mapping. With a single domain this memory is never touched. The row of a nonexistent session has no meaning.
	 */
	_Atomic uint64_t *holders;
	uint32_t holder_words;
	size_t bytes;
};

/*
 * ledger_create() - create, zero and map a ledger. The caller owns *fd and must not send it to another process. 0,
 * -ENOMEM or the errno of memfd_create.
 */
int ledger_create(uint32_t page_count, uint32_t object_count, uint32_t memory_slots, uint32_t slot_count,
	struct ledger *ledger, int *fd);
/* ledger_holders() - return a session's row of holders. */
static inline _Atomic uint64_t *ledger_holders(const struct ledger *ledger, uint32_t session)
{
	return ledger->holders + (size_t)session * ledger->holder_words;
}

/*
 * ledger_open() - map a ledger that was kept over a restart of gpoold. 0, -EPROTO (another layout), -EBADMSG, -ENOMEM.
 */
int ledger_open(int fd, struct ledger *ledger);
void ledger_close(struct ledger *ledger);

#endif
