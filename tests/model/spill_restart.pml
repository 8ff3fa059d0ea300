/*
 * spill_restart.pml - the content of a block is saved to a slot in host memory and restored; agent and mover may be
 * killed at any point.
 *
 * Order of a spill: word EVICTING, check of the pins; slot record WRITING; word MOVING with the same generation; job.
 * When the job is DONE: journal TAKE, tag = 0, slot SAVED, word FREE, journal REST, job IDLE. Order of a restore, which
 * is requested in a request slot: journal LEND; word LEASED to the worker, which does not know of the page yet; slot
 * record LOADING; journal REST; word MOVING; job. When the job is DONE: journal GRANT, word LEASED, answer,
 * compare-and-swap of the request; then slot FREE or, if the worker has cancelled, word FREE and slot SAVED again;
 * journal REST, job IDLE. While a job is in the ring and not DONE, its page and its slot are not used for anything
 * else, whatever happens to agent, mover and request.
 *
 * The agent takes back a job that no mover executes. A mover passes a gate before it reads a job. When all movers that
 * have passed it are dead, the agent closes the gate, sets the job to IDLE, undoes the spill or the restore, and
 * answers its request with an error. Then it opens the gate again; if it dies before, the next agent does.
 *
 * Proved: content that is read under a pin is the content that was written last. After all deaths, the content exists
 * exactly once. A mover writes to no slot and no page of another owner. With -DDEATH, the worker may die, and all of
 * its pages and slots are freed. With -DGIVE_UP, the agent takes a job back, in smaller bounds. With -DNO_MOVER, no
 * mover ever exists, and no process waits forever.
 *
 * Planted bugs:
 *   BUG_COPY_LEASED     the word stays LEASED while the mover copies
 *   BUG_TAKE_EARLY      the page is freed before the mover is done
 *   BUG_DONE_FIRST      the mover stores DONE before it has copied
 *   BUG_SAVED_LATE      the slot is SAVED after journal and job are cleared
 *   BUG_NO_RECORD       the slot's record is written after the job
 *   BUG_SLOT_FIRST      a restore frees the slot before the journal is written
 *   BUG_UNDO_FREES      an answer that is too late still frees the slot
 *   BUG_BACK_RUNNING    recovery undoes a spill and frees its slot while its job is still in the ring
 *   BUG_FREE_LOADING    recovery frees a page that a job still loads into
 *   BUG_CANCEL_EARLY    the end of a request frees the page that a job still loads into
 *   BUG_NO_LOOK         recovery assumes that the restore was answered, without checking the request
 *   BUG_LEND_ENDED      the page is lent, and the journal is REST, before the slot's record states the purpose
 *   BUG_LEND_KEPT       recovery leaves the page of a cancelled request to the worker
 *   BUG_LOAD_ANYWAY     recovery continues a load whose page it has taken back
 *   BUG_BURY_RUNNING    pages and slots of a dead worker are freed while a job still names them; with DEATH
 *   with GIVE_UP:
 *   BUG_NO_GATE         a mover begins without checking the gate
 *   BUG_LIVING          the agent takes a job back after a time limit, without checking that the movers are dead
 *   BUG_OPEN_FIRST      the gate is open before the job is IDLE
 *   BUG_UNDO_FIRST      the spill or restore is undone before the job is IDLE
 *   BUG_LEFT_SHUT       an agent does not open a gate that its predecessor closed
 */
#define FREE     0
#define LEASED   1
#define EVICTING 2
#define MOVING   3
#define OTHER    4        /* leased to another worker, which writes to it */
#define STATE(w) ((w) & 7)
#define MAKE(s, w) (((w) & 248) | (s))
#define NEXT_GEN 8

#define IDLE      0       /* state of the request, and of the job */
#define REQUESTED 1
#define DONE      2
#define CANCELLED 3
#define QUEUED    4
#define TAKEN     5

/* FREE, or one of: */
#define WRITING 1
#define SAVED   2
#define LOADING 3

#define REST  0
#define TAKE  1
#define GRANT 2
#define LEND  3

#define GARBAGE 15

#if defined(GIVE_UP) || defined(NO_MOVER)
#define GIVE_UPS 1
#define KILLS 1
#define LENDS 0
#define STEP_OF_MOVER(...) __VA_ARGS__
#else
#define GIVE_UPS 0
#define STEP_OF_MOVER(...) d_step { __VA_ARGS__ }  /* only the mover changes a waiting job */
#endif
#ifndef OPS
#define OPS 3
#endif
#ifndef SPILLS
#define SPILLS 2
#endif
#ifndef LENDS
#define LENDS 1
#endif
#ifndef KILLS
#define KILLS 2
#endif
#ifndef MOVER_KILLS
#define MOVER_KILLS 1
#endif
#define OPEN 0            /* value of the gate: open, or the number of the last mover that has passed */
#define SHUT   255

/*
 * One page, one slot, one job, one request. Stores are visible at once: pin_evict and grant_restart model store
 * buffers.
 */
byte word = LEASED;
byte pins;
bool tag = true;          /* the worker's block begins here */
byte request, serial;     /* state; number */
bool failed;              /* the answer is an error */
byte job;
bool job_load;
byte gate = OPEN;
byte ended;               /* highest number of a dead mover, as reported by the keeper */
#ifdef BUG_LIVING
#define LIVING false
#else
#define LIVING (gate > ended && gate != SHUT)
#endif

/* The ledger. */
byte slot;
byte journal, j_serial;

/* Ghosts: the bytes of the page and the slot, and those written last. */
byte page_bytes, slot_bytes, latest;
bool worker_done;
bool dies, buried;

byte kills = KILLS, mover_kills = MOVER_KILLS;
#define STEP(...) if :: __VA_ARGS__ :: kills > 0 -> kills--; goto dead fi

proctype worker()
{
	byte op, handle, now;
	bool won;

	handle = LEASED;
	do
	:: op < OPS -> op++;
		pins++;
		now = word;
		if
		:: now == handle && tag ->
			assert(page_bytes == latest);
			if
			:: d_step { latest++; page_bytes = latest }
			:: true
			fi;
			assert(page_bytes == latest);
			pins--
		:: now != handle && now == MAKE(EVICTING, handle) -> pins--
		:: now != handle && now == MAKE(MOVING, handle) -> pins--
		:: else ->
			pins--;
			/* The block was evicted: request it, unless the agent still has an old request. */
			if
			:: request == IDLE ->
				d_step { serial++; request = REQUESTED };
				if
				:: request == DONE
#ifdef DEATH
				:: dies = true; goto out
#endif
				:: true ->
					d_step {
						won = (request == REQUESTED);
						if
						:: won -> request = CANCELLED
						:: else
						fi
					}
				fi;
				if
				:: won
				:: !won && failed -> failed = false; request = IDLE
				:: else ->
					handle = word;
					assert(STATE(handle) == LEASED);
					assert(page_bytes == latest);
					tag = true;
					request = IDLE
				fi
			:: else
			fi
		fi;
		d_step { now = 0; won = false }
	:: true -> break
#ifdef DEATH
	:: dies = true; break
#endif
	od;
out:
	atomic { op = 0; handle = 0; now = 0; won = false; worker_done = true }
}

proctype mover()
{
	byte number;
	bool load;

next:	number++;
#ifdef NO_MOVER
end2:	false;
#endif
#ifdef BUG_NO_GATE
	gate = number;
#else
end0:	atomic { gate != SHUT -> gate = number };
#endif
end1:	do
	:: job == QUEUED || job == TAKEN ->
		STEP_OF_MOVER(load = job_load; job = TAKEN);
#ifdef BUG_DONE_FIRST
		job = DONE;
#endif
		d_step {
			if
			:: load -> assert(STATE(word) == MOVING && slot == LOADING); page_bytes = slot_bytes
			:: else -> assert(slot == WRITING); slot_bytes = page_bytes
			fi
		};
		if
		:: d_step { job = DONE; load = false }
		:: mover_kills > 0 -> goto killed      /* the next mover executes it again */
		fi
#if GIVE_UPS
	:: mover_kills > 0 -> goto killed
#endif
	od;
killed:
	load = false;
	d_step { mover_kills--; ended = number };
	goto next
}

/* Lease the page to another worker, and reclaim it. */
inline lend()
{
	word = MAKE(OTHER, word) + NEXT_GEN;
	page_bytes = GARBAGE;
	word = MAKE(FREE, word) + NEXT_GEN
}

inline finish_take()
{
	STEP(tag = false);
#ifndef BUG_SAVED_LATE
	STEP(slot = SAVED);
#endif
	if
	:: STATE(word) == MOVING || STATE(word) == EVICTING -> STEP(word = MAKE(FREE, word) + NEXT_GEN)
	:: else
	fi;
	STEP(journal = REST);
#ifdef BUG_SAVED_LATE
	STEP(job = IDLE);
	STEP(slot = SAVED)
#else
	skip
#endif
}

/* Undo a restore that has failed. */
inline load_undo()
{
	if
	:: STATE(word) == MOVING || STATE(word) == LEASED -> STEP(word = MAKE(FREE, word) + NEXT_GEN)
	:: else
	fi;
#ifdef BUG_UNDO_FREES
	STEP(slot = FREE)
#else
	STEP(slot = SAVED)
#endif
}

proctype agent()
{
	byte spills, lends, got, give_ups = GIVE_UPS;

start:
	if
	:: journal == TAKE -> finish_take()
	:: journal == GRANT ->
		if
#ifdef BUG_NO_LOOK
		:: false
#else
		:: serial == j_serial && (request == REQUESTED || request == CANCELLED) -> load_undo()
#endif
		:: else -> STEP(slot = FREE)
		fi;
		STEP(journal = REST)
	:: journal == LEND ->
		if
#ifdef BUG_LEND_KEPT
		:: serial == j_serial && request == REQUESTED && STATE(word) == LEASED ->
#else
		:: serial == j_serial && (request == REQUESTED || request == CANCELLED) && STATE(word) == LEASED ->
#endif
			STEP(word = MAKE(FREE, word) + NEXT_GEN)
		:: else
		fi;
#ifdef BUG_LOAD_ANYWAY
		if
		:: slot == LOADING && job == IDLE -> STEP(d_step { job_load = true; job = QUEUED })
		:: else
		fi;
#endif
		STEP(journal = REST)
	:: else
	fi;
	/* A record without a job: the last agent died before it queued the job, or after the job was completed. */
	if
#ifdef BUG_BACK_RUNNING
	:: slot == WRITING ->
#else
	:: slot == WRITING && job == IDLE ->
#endif
		if
		:: STATE(word) == MOVING || STATE(word) == EVICTING -> STEP(word = MAKE(LEASED, word))
		:: else
		fi;
		STEP(slot = FREE)
#ifdef BUG_FREE_LOADING
	:: slot == LOADING ->
#else
	:: slot == LOADING && job == IDLE ->
#endif
		load_undo()
	:: else
	fi;
	if
	:: STATE(word) == EVICTING -> STEP(word = MAKE(LEASED, word))
	:: else
	fi;
	if
	:: job == DONE && slot != WRITING && slot != LOADING -> STEP(job = IDLE)
	:: else
	fi;

#ifndef BUG_LEFT_SHUT
	if
	:: gate == SHUT -> STEP(gate = OPEN)
	:: else
	fi;
#endif

again:
	got = 0;
	if
	/* Take back a job that no mover executes. */
	:: give_ups > 0 && !LIVING && (job == QUEUED || job == TAKEN) ->
#ifndef NO_MOVER
		give_ups--;
#endif
		STEP(d_step {
			got = !LIVING;
			if
			:: got -> gate = SHUT
			:: else
			fi });
		if
		:: got
		:: else -> goto again
		fi;
#ifdef BUG_OPEN_FIRST
		STEP(gate = OPEN);
#endif
#ifndef BUG_UNDO_FIRST
		STEP(job = IDLE);
#endif
		if
		:: slot == WRITING ->
			STEP(word = MAKE(LEASED, word));
			STEP(slot = FREE)
		:: slot == LOADING ->
			load_undo();
			STEP(d_step {
				if
				:: request == REQUESTED -> failed = true; request = DONE
				:: else
				fi })
		:: else
		fi;
#ifdef BUG_UNDO_FIRST
		STEP(job = IDLE);
#endif
		STEP(gate = OPEN);
		goto again
	/* Spill. */
	:: spills < SPILLS && STATE(word) == LEASED && tag && slot == FREE && job == IDLE -> spills++;
		STEP(word = MAKE(EVICTING, word));
		if
		:: pins == 0 && tag
		:: else -> STEP(word = MAKE(LEASED, word)); goto again
		fi;
#ifndef BUG_NO_RECORD
		STEP(slot = WRITING);
#endif
#ifdef BUG_COPY_LEASED
		STEP(word = MAKE(LEASED, word));
#else
		STEP(word = MAKE(MOVING, word));
#endif
		STEP(d_step { job_load = false; job = QUEUED });
#ifdef BUG_NO_RECORD
		STEP(slot = WRITING);
#endif
#ifdef BUG_TAKE_EARLY
		STEP(journal = TAKE);
		finish_take();
#endif
		goto again
	:: job == DONE && slot == WRITING ->
#ifdef BUG_COPY_LEASED
		STEP(word = MAKE(EVICTING, word));
		if
		:: pins == 0
		:: else -> STEP(word = MAKE(LEASED, word)); STEP(slot = FREE); STEP(job = IDLE); goto again
		fi;
#endif
		STEP(journal = TAKE);
		finish_take();
		STEP(job = IDLE);
		goto again
	/* Restore. */
	:: request == REQUESTED && slot == SAVED && STATE(word) == FREE && job == IDLE ->
		STEP(j_serial = serial);
		STEP(journal = LEND);
		STEP(word = MAKE(LEASED, word) + NEXT_GEN);
#ifdef BUG_LEND_ENDED
		STEP(journal = REST);
#endif
		STEP(slot = LOADING);
		STEP(journal = REST);
		STEP(word = MAKE(MOVING, word));
		STEP(d_step { job_load = true; job = QUEUED });
		goto again
#ifdef BUG_CANCEL_EARLY
	:: request == CANCELLED && slot == LOADING && job != DONE ->
		load_undo();
		STEP(request = IDLE);
		goto again
#endif
	:: job == DONE && slot == LOADING && request == REQUESTED ->
#ifdef BUG_SLOT_FIRST
		STEP(slot = FREE);
#endif
		STEP(j_serial = serial);
		STEP(journal = GRANT);
		STEP(word = MAKE(LEASED, word));
		STEP(d_step {
			got = (request == REQUESTED);
			if
			:: got -> request = DONE
			:: else
			fi });
		if
		:: got -> STEP(slot = FREE)
		:: else -> load_undo()
		fi;
		STEP(journal = REST);
		STEP(job = IDLE);
		goto again
	:: job == DONE && slot == LOADING && request != REQUESTED ->
		load_undo();
		STEP(job = IDLE);
		goto again
	/*
	 * The job must be IDLE, too. If a request were returned while its page is still being loaded, the next request
	 * could be mistaken for it.
	 */
	:: request == CANCELLED && slot != LOADING -> STEP(request = IDLE); goto again
	:: lends < LENDS && STATE(word) == FREE -> lends++; lend(); goto again
#ifdef DEATH
	/* Bury the worker; if the agent dies meanwhile, the next one repeats it. */
#ifdef BUG_BURY_RUNNING
	:: dies && !buried ->
#else
	:: dies && !buried && (job == IDLE || job == DONE) ->
#endif
		if
		:: STATE(word) == LEASED || STATE(word) == MOVING -> STEP(word = MAKE(FREE, word) + NEXT_GEN)
		:: else
		fi;
		STEP(slot = FREE);
		STEP(job = IDLE);
		STEP(d_step { tag = false; request = IDLE; buried = true });
		goto again
#endif
	:: worker_done && job == IDLE && request == IDLE && buried == dies -> goto done
	:: kills > 0 -> kills--          /* dies while asleep */
	fi;
dead:
	got = 0;
	goto start;
done:
	skip
}

init {
	atomic {
		run mover(); run worker(); run agent()
	};
	_nr_pr == 2;
	assert(journal == REST && (slot == FREE || slot == SAVED));
	if
	:: dies -> assert(STATE(word) == FREE && slot == FREE)
	:: slot == SAVED && !dies -> assert(STATE(word) == FREE && !tag && slot_bytes == latest)
	:: else -> assert(STATE(word) == LEASED && tag && page_bytes == latest)
	fi
}
