/*
 * ledger.h - what an agent must know that nobody else may see or write, and that the next agent goes on with: tokens,
 * limits, the step it is in, spilled blocks. One shared memory for each pool, made by the keeper, inherited by the
 * agent alone.
 *
 * Writer: the agent. Reader: the next one. What the page words and the session segments tell anyhow is not written down
 * twice.
 * Crash rule: the agent may die between any two stores; recover.c says what each half-done step becomes. So a record is
 * filled first and its state stored last, and a step that touches several words stands in the journal before the first
 * of them changes.
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
 * The step that the agent is in. `what` is stored last and cleared first; while it is not LEDGER_REST the other fields
 * and the first run_count runs are whole.
 */
enum ledger_step {
	LEDGER_REST,
	/* runs become LEASED to session; committed by the answer in its request slot. Else: taken back */
	LEDGER_GRANT,
	/* the free bits `mask` of word `slot` are being cleared: what of them was set is the agent's */
	LEDGER_RECLAIM,
	LEDGER_TAKE, /* a block, runs in order of its extents, was found unpinned after it was marked: it goes */
};
enum { LEDGER_NO_SLOT = UINT32_MAX };
struct ledger_journal {
	_Atomic uint32_t what; /* enum ledger_step */
	uint32_t session;
	uint32_t run_count;
	/* LEDGER_GRANT: request slot, or LEDGER_NO_SLOT: of a session that is not admitted yet */
	uint32_t slot;
	uint32_t slot_word; /* LEDGER_GRANT: the slot's state as long as it is not answered */
	uint32_t reserved;
	uint64_t mask;
};

/* A control request that changes something and is being carried out: what is known of it when the agent dies in it. */
struct ledger_verb {
	_Atomic uint32_t session; /* 0: none */
	uint32_t type;
	uint64_t sequence;
	_Atomic uint64_t progress;
};

enum ledger_session_state {
	LEDGER_SESSION_NONE,
	LEDGER_SESSION_ADMITTING, /* being made; nobody has heard of it */
	LEDGER_SESSION_SENDING,   /* whole; its answer may or may not have been sent */
	LEDGER_SESSION_LIVE,
	LEDGER_SESSION_CLOSED, /* connection closed, process lives */
	LEDGER_SESSION_ENDING, /* its pages are on their way back */
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
	uint32_t domain;      /* trust domain, place in ledger_header.domains plus 1; 0: domains are not told apart */
	uint64_t attached_ms; /* CLOCK_MONOTONIC, which all agents of one boot share */
	uint8_t token[16];
	char name[POOL_NAME_BYTES];
	char tenant[POOL_NAME_BYTES];
	/* The last request on the attach socket that changed something, and its answer: a repeat gets the same one. */
	_Atomic uint64_t answered;
	uint32_t answer_bytes;
	uint32_t reserved;
	uint8_t answer[LEDGER_ANSWER_BYTES];
};

/* Beside struct object_record of the pool segment: who has it open, one bit for each session. */
struct ledger_object {
	_Atomic uint64_t readers[POOL_SESSIONS / 64];
};

/*
 * Beside struct role_record of the pool segment: who waits for it, by session; 0: does not. The lowest arrival is next.
 * One store joins the row and one leaves it, so there is no list to find half-linked. Rows of roles that nobody uses
 * are never touched.
 */
struct ledger_role {
	_Atomic uint64_t arrivals; /* numbers given; stored before the number is used */
	_Atomic uint64_t standbys[POOL_SESSIONS];
};

/*
 * What stands of trust domains at the first page of each handle, since all pages of a handle are in one: see trust.h. A
 * transfer is stored before the first page's word changes, and cleared after the last one's.
 */
enum ledger_transfer {
	LEDGER_TRANSFER_NONE,
	LEDGER_TRANSFER_WAITS,  /* for former holders to let go */
	LEDGER_TRANSFER_SCRUBS, /* nobody can have it mapped; done when `domain` is 0 */
};

struct ledger_page {
	/*
	 * whose bytes are in it, as in ledger_session or LEDGER_DOMAIN_FRESH; 0: nobody's, zeros, and nobody has it
	 * mapped
	 */
	_Atomic uint8_t domain;
	/* 1: leased, and its predecessor's death left open whether the agent has taken it; see recover.c */
	uint8_t doubt;
	_Atomic uint8_t transfer; /* enum ledger_transfer */
	uint8_t reserved;
};

/*
 * A page's worth of spilled content: of the host memory tier [0, memory_slots), of the file [memory_slots, slot_count).
 * The slots of one block are a chain from that of its first page, whose `state` is the whole block's: one store
 * decides.
 */
enum ledger_slot_state {
	SLOT_UNUSED,
	SLOT_SAVING,    /* being written from page, of that generation, which is MOVING */
	SLOT_SAVED,     /* complete; the pages it came from are gone, or about to go */
	SLOT_LOADING,   /* being read into page; the request that asks for it is not answered */
	SLOT_ANSWERED,  /* that request is about to be answered: its slot's state tells whether it was */
	SLOT_DISCARDED, /* so is one that wants it forgotten */
	SLOT_SINKING,   /* in the file: being written from other slots of the same block, which hold it */
};
struct ledger_slot {
	_Atomic uint64_t tag;   /* of the block, without BLOCK_SCATTERED; 0: free */
	uint32_t session;       /* 0: its session has ended, and so does this as soon as no job uses it */
	uint32_t index;         /* of the page within its block, in order of its extents */
	uint64_t checksum;      /* XXH3 64 */
	uint32_t next;          /* slot of the next page plus 1; 0: last */
	uint32_t pages;         /* of the whole block */
	_Atomic uint32_t state; /* enum ledger_slot_state, in the slot of page 0 */
	uint32_t page;
	uint64_t generation;   /* of that page, LEASED or MOVING */
	uint64_t owner_id;     /* of the block */
	uint32_t request;      /* from SLOT_LOADING on: request slot, ... */
	uint32_t request_word; /* ... and its state, which that request had and no later one has */
};
static_assert(sizeof(struct ledger_slot) == 64, "one cache line each");

/* Limits that poolctl has set and that hold until the next reload, by position in the configuration. */
struct ledger_tenant {
	_Atomic uint32_t changed; /* 1: the two below count */
	_Atomic uint32_t minimum, limit;
};
enum {
	LEDGER_TENANTS = 64,
	LEDGER_DOMAINS = 64,
	/* memory as a driver has given it, which says nothing of what is in it */
	LEDGER_DOMAIN_FRESH = LEDGER_DOMAINS + 1,
};

struct ledger_header {
	uint64_t magic;
	uint32_t layout_version; /* POOL_LAYOUT_VERSION: one number for all that is shared */
	uint32_t header_bytes;
	uint32_t page_count;
	uint32_t object_count; /* as in the pool segment */
	uint32_t memory_slots, slot_count;
	_Atomic uint32_t started; /* an agent has served from this ledger */
	struct ledger_journal journal;
	struct ledger_verb verb;
	struct ledger_tenant tenants[LEDGER_TENANTS];
	/* Trust domains by name, since the configuration's order may change. Places are never used again. */
	_Atomic uint32_t domain_count;
	uint32_t reserved;
	char domains[LEDGER_DOMAINS][POOL_NAME_BYTES];
};

struct ledger {
	struct ledger_header *header;
	struct page_run *runs;           /* [page_count]: of the journal, and scratch of one grant */
	struct ledger_session *sessions; /* [POOL_SESSIONS] */
	struct ledger_object *objects;   /* [object_count] */
	struct ledger_role *roles;       /* [POOL_ROLES] */
	struct ledger_page *pages;       /* [page_count] */
	struct ledger_slot *slots;       /* [slot_count] */
	/*
	 * [POOL_SESSIONS][holder_words]: the handles of which each session may have a descriptor, an import or a
	 * mapping. Memory that is never touched while there is one domain; the row of a session that there is not means
	 * nothing.
	 */
	_Atomic uint64_t *holders;
	uint32_t holder_words;
	size_t bytes;
};

/*
 * ledger_create() - a new one, zeroed and mapped; *fd is the caller's, and never given to anybody. 0, -ENOMEM or what
 * memfd_create said.
 */
int ledger_create(uint32_t page_count, uint32_t object_count, uint32_t memory_slots, uint32_t slot_count,
	struct ledger *ledger, int *fd);
/* ledger_holders() - a session's row. */
static inline _Atomic uint64_t *ledger_holders(const struct ledger *ledger, uint32_t session)
{
	return ledger->holders + (size_t)session * ledger->holder_words;
}

/* ledger_open() - map one that was kept over a restart of gpoold. 0, -EPROTO (another layout), -EBADMSG, -ENOMEM. */
int ledger_open(int fd, struct ledger *ledger);
void ledger_close(struct ledger *ledger);

#endif
