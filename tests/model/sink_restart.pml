/*
 * sink_restart.pml - a spilled block sinks from a slot in memory to a slot in the file; agent and mover may be killed
 * at any point.
 *
 * Sink: set the record of the file's slot to SINKING, and submit the job. When the job is DONE, set the job to IDLE,
 * the file's slot to SAVED, and free the slot in memory. Restore: set the slot with the block to ANSWERED, answer the
 * request, and free the slot. A sink of this block in progress has then lost its origin; its slot is freed when its job
 * is done. Recovery: free a slot in state SINKING, or one whose block is also in another slot; if a job uses the slot,
 * wait for the job first. Spill and restore are one step each here; spill_restart.pml models them. Another owner takes
 * free slots, and checks them later.
 *
 * Proved: the restored content is the content that was spilled last. No job writes to the slot of another block. After
 * all deaths, no slot is lost.
 *
 * Planted bugs:
 *   BUG_SAVED_EARLY     the file's slot is SAVED when the job is submitted
 *   BUG_MEMORY_FIRST    memory's slot is free before the file's is SAVED
 *   BUG_NO_CANCEL       a restore ignores a slot that is sinking
 *   BUG_CANCEL_FREES    a restore frees the file's slot although its job runs
 *   BUG_RECOVER_FREES   recovery frees the file's slot although its job runs
 *   BUG_NO_TWINS        recovery keeps both slots of a block if both are SAVED
 */
#define MEMORY 0
#define FILE   1
#define NONE   2

#define SAVED    1        /* state of a slot */
#define SINKING  2
#define ANSWERED 3

#define IDLE   0          /* state of the job */
#define QUEUED 1
#define TAKEN  2
#define DONE   3

#define BLOCK   1         /* owner of a slot; 0: free */
#define ANOTHER 2
#define THEIRS  99

#ifndef SPILLS
#define SPILLS 3
#endif
#ifndef KILLS
#define KILLS 2
#endif

byte owner[2], state[2], content[2];
byte job, job_sum;
bool job_failed;
byte value;               /* the content of the block */
bool home = true;         /* it is in the pool: the request for it was answered */
byte spills, kills;

/* State of the agent, which is lost when it dies. */
byte where = NONE;        /* slot that holds the block */
bool below, rises;        /* the block is sinking; it is requested */
bool taken;               /* the agent has selected the file's slot and is about to record that */

proctype mover()
{
	byte seen;

end:	do
	:: job == QUEUED -> job = TAKEN
	:: job == TAKEN ->
		/* A successor repeats it. */
		seen = content[MEMORY];
		if
		:: seen == job_sum -> content[FILE] = seen; job_failed = false
		:: else -> job_failed = true
		fi;
		if
		:: job = DONE
		:: kills < KILLS -> kills++
		fi
	od
}

/* Between two stores: the next agent starts from the recorded state. */
#define MAY_DIE if :: kills < KILLS -> kills++; goto recover :: true fi

proctype agent()
{
	byte slot;

	do
	/* Spill, first to memory. */
	:: atomic {
			home && spills < SPILLS && where == NONE && (owner[MEMORY] == 0 || owner[FILE] == 0) ->
			spills++;
			value = spills;
			slot = (owner[MEMORY] == 0 -> MEMORY : FILE);
			content[slot] = value;
			state[slot] = SAVED;
			owner[slot] = BLOCK;
			home = false;
			where = slot
		}
	/* Sink. */
	:: atomic { where == MEMORY && !below && owner[FILE] == 0 -> taken = true };
		state[FILE] = SINKING;
		MAY_DIE;
		owner[FILE] = BLOCK;
		taken = false;
		MAY_DIE;
		atomic { below = true; rises = true; job_sum = value };
		job = QUEUED;
#ifdef BUG_SAVED_EARLY
		state[FILE] = SAVED;
#endif
		MAY_DIE
	:: below && job == DONE ->
		job = IDLE;
		MAY_DIE;
		if
		:: rises && !job_failed ->
#ifdef BUG_MEMORY_FIRST
			owner[MEMORY] = 0;
			MAY_DIE;
#endif
			state[FILE] = SAVED;
			MAY_DIE;
			where = FILE;
			owner[MEMORY] = 0;
			MAY_DIE
		:: else ->
			owner[FILE] = 0;
			MAY_DIE
		fi;
		atomic { below = false; rises = false }
	/* Restore. */
	:: !home && where != NONE ->
#ifndef BUG_NO_CANCEL
		rises = false;
#endif
#ifdef BUG_CANCEL_FREES
		if
		:: below -> owner[FILE] = 0
		:: else
		fi;
#endif
		assert(owner[where] == BLOCK && content[where] == value);
		state[where] = ANSWERED;
		MAY_DIE;
		home = true;
		MAY_DIE;
		owner[where] = 0;
		where = NONE;
		MAY_DIE
	:: home && where == NONE && spills == SPILLS && !below -> break
	:: false ->
recover:	atomic { where = NONE; below = false; rises = false; taken = false; slot = MEMORY };
		do
		:: slot == NONE -> break
		:: slot != NONE && owner[slot] == BLOCK ->
			if
			:: state[slot] == ANSWERED && !home -> state[slot] = SAVED
			:: else
			fi;
			if
			:: state[slot] == ANSWERED -> owner[slot] = 0
#ifdef BUG_NO_TWINS
			:: state[slot] == SAVED -> where = slot
			:: state[slot] == SINKING ->
#else
			:: state[slot] == SAVED && where == NONE -> where = slot
			:: state[slot] == SINKING || (state[slot] == SAVED && where != NONE) ->
#endif
				if
#ifndef BUG_RECOVER_FREES
				:: job != IDLE -> below = true
				:: job == IDLE -> owner[slot] = 0
#else
				:: owner[slot] = 0
#endif
				fi
			fi;
			slot++
		:: slot != NONE && owner[slot] != BLOCK -> slot++
		od;
		assert(home || where != NONE)
	od;
	assert(owner[MEMORY] != BLOCK && owner[FILE] != BLOCK && job == IDLE)
}

/* Take a free slot, and check later that it has the stored content. */
proctype another()
{
	byte slot, rounds;

	do
	:: rounds < 2 ->
		rounds++;
		if
		:: atomic { owner[MEMORY] == 0 -> slot = MEMORY; owner[slot] = ANOTHER; content[slot] = THEIRS }
		:: atomic { owner[FILE] == 0 && !taken -> slot = FILE; owner[slot] = ANOTHER; content[slot] = THEIRS }
		:: goto done
		fi;
		assert(content[slot] == THEIRS);
		owner[slot] = 0
	:: true -> break
	od;
done:	skip
}

init {
	atomic { run mover(); run agent(); run another() }
}
