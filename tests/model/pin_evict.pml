/*
 * pin_evict.pml - two workers pin one shared page that the agent evicts.
 *
 * A worker may die at any step. Proved: a worker with a valid pin sees the contents of its handle. So does GPU work
 * that it launched under the pin, if it stored the fence in the block entry.
 *
 * Planted bugs:
 *   BUG_NO_FENCE        the pin is a plain store and waits in the store buffer
 *   BUG_ACQUIRE_LOAD    the page word is loaded before the pin is visible, as an acquire load permits
 *   BUG_NO_WORD_CHECK   the pin does not check the page word
 *   BUG_AGENT_NO_FENCE  the agent's EVICTING is a plain store
 *   BUG_FENCE_FIRST     the agent reads the fence before the pins
 *
 * Requirements: U5.
 */
#define WORKERS 2
#define AGENT   2         /* CPU numbers: 0 and 1 are the workers */
#define CPUS    3

#define WORD      0       /* the page word: state + 4 * generation */
#define PIN(c)    (1 + (c))
#define FENCE(c)  (3 + (c)) /* last GPU work launched on the page by worker c, in its block entry */
#define REACHED(c) (5 + (c)) /* last GPU work finished, on the timeline of worker c */
#define CELLS     7
#include "tso.h"

#define FREE      0
#define SHARED    1
#define EVICTING  2
#define STATE(w)  ((w) & 3)
#define GEN(w)    ((w) >> 2)
#define MAKE(s, g) ((s) + 4 * (g))

/* The workers are alike and do not interact, so only worker 0 repeats operations, launches GPU work and dies. */
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef EVICTIONS
#define EVICTIONS 2
#endif

/* Ghosts: the actual state, independent of the shared words. */
byte content;             /* generation that the page's bytes belong to */
bool using[WORKERS];
byte gpu[WORKERS];        /* number of the GPU work running for worker c, 0: none */
byte gpu_gen[WORKERS];
bool kill[WORKERS];
bool dead[WORKERS];

inline pin(c)
{
#if defined(BUG_NO_FENCE)
	store(c, PIN(c), 1);
	word = LOAD(c, WORD)
#elif defined(BUG_ACQUIRE_LOAD)
	word = LOAD(c, WORD);
	LOCKED(c, mem[PIN(c)] = mem[PIN(c)] + 1)
#else
	LOCKED(c, mem[PIN(c)] = mem[PIN(c)] + 1);
	word = LOAD(c, WORD)
#endif
}

inline unpin(c)
{
#ifdef BUG_NO_FENCE
	store(c, PIN(c), 0)
#else
	LOCKED(c, mem[PIN(c)] = mem[PIN(c)] - 1)
#endif
}

proctype worker(byte c)
{
	byte handle, word, round;

	{
		do
		:: round < (c == 0 -> ROUNDS : 1) ->
			round++;
			handle = LOAD(c, WORD);
			if
			:: STATE(handle) == SHARED ->
				pin(c);
				if
#ifdef BUG_NO_WORD_CHECK
				:: true ->
#else
				:: word == handle ->
#endif
					using[c] = true;
					assert(content == GEN(handle));
					if
					:: c == 0 && gpu[c] == 0 -> /* launch GPU work, which may continue after the
								     * unpin */
						store(c, FENCE(c), round);
						d_step { gpu[c] = round; gpu_gen[c] = GEN(handle) }
					:: true
					fi;
					assert(content == GEN(handle));
					using[c] = false
				:: else                   /* if EVICTING, try again later; otherwise stale */
				fi;
				unpin(c)
			:: else
			fi;
			d_step { handle = 0; word = 0 }
		:: else -> break
		od
	} unless { kill[c] };
	atomic { using[c] = false; dead[c] = true; handle = 0; word = 0; round = 0 }
}

/* The GPU finishes the work of worker c, and writes the timeline. */
proctype device(byte c)
{
end:	do
	:: d_step { gpu[c] != 0 ->
		assert(content == gpu_gen[c]);
		mem[REACHED(c)] = gpu[c];
		gpu[c] = 0; gpu_gen[c] = 0 }
	od
}

inline look_at_fence(c)
{
	d_step {
		if
		:: mem[FENCE(c)] != mem[REACHED(c)] -> busy = true
		:: else
		fi
	}
}

inline look_at_pins(c)
{
	d_step {
		if
		:: mem[PIN(c)] != 0 -> busy = true
		:: else
		fi
	}
}

proctype agent()
{
	byte k, c, old;
	bool busy;

	do
	:: k < EVICTIONS ->
		k++;
		(DRAINED(AGENT));
		old = mem[WORD];
#ifdef BUG_AGENT_NO_FENCE
		store(AGENT, WORD, MAKE(EVICTING, GEN(old)));
#else
		LOCKED(AGENT, mem[WORD] = MAKE(EVICTING, GEN(old)));
#endif
		c = 0;
		do
		:: c < WORKERS ->
			if
			/*
			 * The pidfd is signaled and the driver has released the process: discard the session segment
			 * with its pins.
			 */
			:: dead[c] && DRAINED(c) && gpu[c] == 0
			:: true ->
#ifdef BUG_FENCE_FIRST
				look_at_fence(c);
				look_at_pins(c)
#else
				look_at_pins(c);
				look_at_fence(c)
#endif
			fi;
			c++
		:: else -> break
		od;
		if
		:: busy -> store(AGENT, WORD, old)
		:: else ->
			d_step {
				assert(!using[0] && !using[1]);
				assert(gpu[0] == 0 && gpu[1] == 0);
				content = GEN(old) + 2   /* the page gets another owner, which writes other bytes */
			};
			store(AGENT, WORD, MAKE(FREE, GEN(old) + 1));
			store(AGENT, WORD, MAKE(SHARED, GEN(old) + 2))
		fi;
		d_step { busy = false; c = 0; old = 0 }
	:: else -> break
	od
}

proctype killer()
{
	if
	:: kill[0] = true
	:: true
	fi
}

init {
	atomic {
		mem[WORD] = MAKE(SHARED, 0);
		run worker(0); run worker(1);
		run device(0);
		run agent(); run killer()
	}
}
