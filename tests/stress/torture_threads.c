/*
 * torture_threads.c - the shared-memory protocols with workers as threads, so that ThreadSanitizer can check both
 * sides.
 *
 * Goal: pin, allocate, free, grant, reclaim, evict and death, as implemented in shm/, never give a page to two owners,
 * never change content under a pin, and order all accesses.
 *
 * Method: sessions of two threads each and an agent thread share one mapping of each segment. Contents are plain
 * memory, so a missing order is a data race in the sense of C. Ghosts record the owner of each page; they are relaxed
 * atomics, so that they order nothing. Sessions die at named points and leave everything in its state. A device thread
 * per session acts as its GPU: it reads pages after their blocks have been unpinned or freed with a fence, and then
 * signals the fence.
 *
 * With --broken, one of two bugs is planted: the pin ignores the page word, or an offer drops its pin before it stores
 * the fence. Violations must then be found; otherwise the test could not fail. The last line of such a run states their
 * number. Without --broken, a run with each bug comes first, in a separate process, except under ThreadSanitizer.
 *
 * usage: torture_threads [SECONDS [SEED]] [--broken]
 *
 * Requirements: U5.
 */
#include "shm/lease_bitmap.h"
#include "shm/pins.h"
#include "shm/timeline.h"
#include "tests/stress/stress.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

enum {
	PAGES = 256,
	SESSIONS = 4,
	THREADS = 2,     /* per session */
	BLOCK_MOST = 70, /* pages; more than one word of the bitmap */
	HANDLES = 24,    /* per thread */
	MAGAZINE = 4,
	SHARED = 2, /* handles that the threads of a session exchange */
	WORDS = 4,  /* words of content per page */
};

struct handle {
	uint64_t word, tag; /* tag 0: none */
	uint32_t page, page_count;
};

struct cached {
	uint64_t word;
	uint32_t page;
};

/* GPU work that reads the pages of a block. Each worker has a stream, with one job at a time. */
struct job {
	struct handle handle;
	_Atomic uint64_t launched; /* its number on the timeline */
};

struct session {
	struct session_segment segment;
	uint32_t id;
	_Atomic bool dying;
	_Atomic uint64_t sequence;
	pthread_mutex_t lock; /* only for the exchange of handles; no session dies while it holds the lock */
	struct handle shared[SHARED];
	struct job jobs[THREADS];
	pthread_t threads[THREADS], device;
};

struct worker {
	struct session *session;
	uint32_t stream; /* index in jobs[]; its slot of the timeline is one higher */
	uint64_t random;
	struct handle handles[HANDLES];
	uint32_t handle_count;
	struct cached magazine[MAGAZINE];
	uint32_t magazine_count;
	struct handle deferred[HANDLES]; /* blocks freed while another thread still had them pinned, or with a
					  * fence */
	uint32_t deferred_count;
	uint64_t verified, stale, lost_frees, late_frees, offers, claimed;
};

static _Atomic uint64_t page_words[PAGES];
static uint64_t contents[PAGES][WORDS];
static _Atomic uint64_t claims[PAGES]; /* ghost: tag of the block that owns the page */
static struct session sessions[SESSIONS];
static uint32_t owners[PAGES]; /* the agent's own table of owners: session; 0: none */
static enum { SOUND, BROKEN_PIN, BROKEN_OFFER } broken;
static const char *const broken_names[] = {
	[SOUND] = "",
	[BROKEN_PIN] = "with a pin that ignores the page word: ",
	[BROKEN_OFFER] = "with an offer that drops its pin before it stores the fence: ",
};
static _Atomic uint64_t violations;
static struct {
	uint64_t grants, reclaims, evictions, evicted_pages, freed_taken, vetoes, fenced, deaths;
} did;
static _Atomic uint64_t all_verified, all_stale, all_lost_frees, all_late_frees;
static _Atomic uint64_t all_offers, all_claimed, all_work;

static void __attribute__((format(printf, 1, 2))) violation(const char *format, ...)
{
	va_list arguments;

	if (atomic_fetch_add(&violations, 1) >= 10 || broken)
		return;
	va_start(arguments, format);
	fputs("violation: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
}

/* ---- ghosts and contents ---- */

static uint64_t claim_of(uint64_t tag)
{
	return tag >> BLOCK_SEQUENCE_SHIFT;
}

static void claim(uint32_t page, uint64_t from, uint64_t to, const char *what)
{
	uint64_t was = atomic_exchange_explicit(&claims[page], to, memory_order_relaxed);

	if (was != from)
		violation("%s: page %u belonged to block %llu, not %llu", what, page, (unsigned long long)was,
			(unsigned long long)from);
}

static void claim_run(uint32_t page, uint32_t count, uint64_t from, uint64_t to, const char *what)
{
	for (uint32_t i = 0; i < count; i++)
		claim(page + i, from, to, what);
}

static void contents_write(uint32_t page, uint32_t count, uint64_t key)
{
	for (uint32_t i = page; i < page + count; i++)
		for (uint32_t word = 0; word < WORDS; word++)
			contents[i][word] = key + i;
}

static void contents_check(const struct session *session, const struct handle *handle)
{
	for (uint32_t i = handle->page; i < handle->page + handle->page_count; i++)
		for (uint32_t word = 0; word < WORDS; word++)
			if (contents[i][word] != handle->tag + i)
				return violation("session %u: wrong content on page %u of block %llu", session->id, i,
					(unsigned long long)claim_of(handle->tag));
}

/* ---- the worker ---- */

/* The session may die here, whatever it holds. */
static void may_die(const struct worker *worker)
{
	if (!atomic_load_explicit(&worker->session->dying, memory_order_relaxed))
		return;
	atomic_fetch_add(&all_verified, worker->verified);
	atomic_fetch_add(&all_stale, worker->stale);
	atomic_fetch_add(&all_lost_frees, worker->lost_frees);
	atomic_fetch_add(&all_late_frees, worker->late_frees);
	atomic_fetch_add(&all_offers, worker->offers);
	atomic_fetch_add(&all_claimed, worker->claimed);
	pthread_exit(NULL);
}

/* Pin with pin_try(), or with the planted bug, which does not check the page word. */
static int pin(const struct worker *worker, const struct handle *handle)
{
	const struct session_segment *segment = &worker->session->segment;

	if (broken != BROKEN_PIN)
		return pin_try(segment, page_words, handle->page, handle->word, handle->tag);
	atomic_fetch_add_explicit(&segment->pins[handle->page], 1, memory_order_seq_cst);
	if (atomic_load_explicit(&segment->blocks[handle->page].tag, memory_order_acquire) == handle->tag)
		return 0;
	pin_drop(segment, handle->page);
	return -ESTALE;
}

/* Pin a page that this thread has claimed by its bit. Only a check by the agent may delay the pin. */
static uint64_t pin_claimed(const struct worker *worker, uint32_t page)
{
	const struct session_segment *segment = &worker->session->segment;
	uint64_t word;

	for (;;) {
		word = pin_raise(segment, page_words, page);
		if (!page_word_in_motion(word))
			return word;
		pin_drop(segment, page);
		while (atomic_load_explicit(&page_words[page], memory_order_acquire) == word)
			sched_yield();
	}
}

/* Make a block of claimed pages; the first page is pinned. */
static void block_begin(struct worker *worker, uint32_t page, uint32_t count, uint64_t word, struct handle *handle)
{
	struct session *session = worker->session;
	struct block_entry *entry = &session->segment.blocks[page];
	uint64_t tag = block_tag_make(atomic_fetch_add_explicit(&session->sequence, 1, memory_order_relaxed), 0);

	may_die(worker);
	claim_run(page, count, 0, claim_of(tag), "allocate");
	contents_write(page, count, tag);
	atomic_store_explicit(&entry->page_count, count, memory_order_relaxed);
	atomic_store_explicit(&entry->fence, 0, memory_order_relaxed);
	atomic_store_explicit(&entry->tag, tag, memory_order_release);
	*handle = (struct handle){.word = word, .tag = tag, .page = page, .page_count = count};
}

static bool allocate_cached(struct worker *worker, struct handle *handle)
{
	const struct session_segment *segment = &worker->session->segment;

	while (worker->magazine_count) {
		struct cached *top = &worker->magazine[worker->magazine_count - 1];
		uint64_t word = pin_raise(segment, page_words, top->page);

		if (word == top->word) {
			worker->magazine_count--;
			block_begin(worker, top->page, 1, word, handle);
			return true;
		}
		pin_drop(segment, top->page);
		if (page_word_in_motion(word) && page_word_generation(word) == page_word_generation(top->word))
			return false; /* the agent is checking the block: try again later */
		worker->magazine_count--;
	}
	return false;
}

static bool allocate(struct worker *worker, uint32_t count, struct handle *handle)
{
	const struct session_segment *segment = &worker->session->segment;
	bool first_fit = chance_below(&worker->random, 2);
	uint64_t word;
	uint32_t page;

	if (count == 1 && allocate_cached(worker, handle))
		return true;
	if (!lease_take_run(segment->free_bits, NULL, PAGES, count, first_fit, &page))
		return false;
	may_die(worker);
	word = pin_claimed(worker, page);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t now = i ? atomic_load_explicit(&page_words[page + i], memory_order_acquire) : word;

		/*
		 * The agent may also check a page inside the run for a moment, as the head of a block that does not
		 * exist.
		 */
		if (page_word_owner(now) != worker->session->id ||
			(page_word_state(now) != PAGE_LEASED && !(i && page_word_in_motion(now))))
			violation("session %u: claimed page %u is %s of session %u", worker->session->id, page + i,
				page_state_name(page_word_state(now)), page_word_owner(now));
	}
	may_die(worker);
	block_begin(worker, page, count, word, handle);
	return true;
}

/* End a block. The thread has claimed it and has the last pin, so no other thread can reach it. */
static void block_end(struct worker *worker, const struct handle *handle)
{
	const struct session_segment *segment = &worker->session->segment;
	struct block_entry *entry = &segment->blocks[handle->page];

	claim_run(handle->page, handle->page_count, claim_of(handle->tag), 0, "free");
	if (handle->page_count == 1 && worker->magazine_count < MAGAZINE) {
		atomic_store_explicit(&entry->tag, BLOCK_TAG_CACHED, memory_order_release);
		pin_drop(segment, handle->page);
		worker->magazine[worker->magazine_count++] = (struct cached){handle->word, handle->page};
		return;
	}
	atomic_store_explicit(&entry->tag, 0, memory_order_release);
	pin_drop(segment, handle->page);
	may_die(worker);
	lease_put(segment->free_bits, handle->page, handle->page_count);
}

/* Launch work on a pinned block. Return its fence; 0: the stream is busy. */
static uint64_t launch(const struct worker *worker, const struct handle *handle)
{
	struct session *session = worker->session;
	struct job *job = &session->jobs[worker->stream];
	uint64_t number = atomic_load_explicit(&job->launched, memory_order_relaxed);

	if (!fence_signaled(&session->segment, fence_make(worker->stream + 1, number)))
		return 0;
	job->handle = *handle;
	atomic_store_explicit(&job->launched, number + 1, memory_order_release);
	return fence_make(worker->stream + 1, number + 1);
}

/*
 * Add a fence to the entry of a pinned block. If the entry has another stream's unsignaled fence, wait for that first.
 */
static void fence_add(struct worker *worker, uint32_t page, uint64_t fence)
{
	const struct session_segment *segment = &worker->session->segment;
	_Atomic uint64_t *place = &segment->blocks[page].fence;
	uint64_t old = atomic_load_explicit(place, memory_order_acquire);

	if (!fence)
		return;
	do {
		while (fence_slot(old) != fence_slot(fence) && !fence_signaled(segment, old)) {
			may_die(worker);
			sched_yield();
			old = atomic_load_explicit(place, memory_order_acquire);
		}
	} while (
		!atomic_compare_exchange_weak_explicit(place, &old, fence, memory_order_acq_rel, memory_order_acquire));
}

static bool entry_fence_signaled(const struct session_segment *segment, uint32_t page)
{
	return fence_signaled(segment, atomic_load_explicit(&segment->blocks[page].fence, memory_order_acquire));
}

/* Launch work and drop the pin after it. Until its fence is signaled, the agent takes no page of the block. */
static void offer(struct worker *worker, const struct handle *handle)
{
	uint64_t fence = launch(worker, handle);

	if (fence)
		worker->offers++;
	if (broken == BROKEN_OFFER) {
		pin_drop(&worker->session->segment, handle->page);
		sched_yield();
		fence_add(worker, handle->page, fence);
		return;
	}
	fence_add(worker, handle->page, fence);
	may_die(worker);
	pin_drop(&worker->session->segment, handle->page);
}

/*
 * Free a block that this thread has pinned. Exactly one of two frees succeeds. While other threads have the block
 * pinned, or work reads it, the free waits without a pin; the agent may then take the block.
 */
static void free_pinned(struct worker *worker, const struct handle *handle, uint64_t fence)
{
	const struct session_segment *segment = &worker->session->segment;
	uint64_t tag = handle->tag;
	bool won = atomic_compare_exchange_strong(&segment->blocks[handle->page].tag, &tag, tag | BLOCK_DYING);

	may_die(worker);
	fence_add(worker, handle->page, fence);
	if (won && pin_count(segment, handle->page) == 1 && entry_fence_signaled(segment, handle->page)) {
		block_end(worker, handle);
		return;
	}
	if (won) {
		worker->deferred[worker->deferred_count++] = *handle;
		worker->late_frees++;
	} else {
		worker->lost_frees++;
	}
	pin_drop(segment, handle->page);
}

/* Claim a freed block that waits. Return: 0, -EAGAIN (it still waits), -ESTALE (the agent has taken it). */
static int claim_freed(const struct worker *worker, const struct handle *handle)
{
	const struct session_segment *segment = &worker->session->segment;
	bool alone = atomic_fetch_add_explicit(&segment->pins[handle->page], 1, memory_order_seq_cst) == 0;
	uint64_t word = atomic_load_explicit(&page_words[handle->page], memory_order_seq_cst), tag;
	int error = -EAGAIN;

	if (word == handle->word) {
		tag = atomic_load_explicit(&segment->blocks[handle->page].tag, memory_order_seq_cst);
		if (tag != (handle->tag | BLOCK_DYING))
			error = -ESTALE;
		else if (alone && entry_fence_signaled(segment, handle->page))
			return 0;
	} else if (!page_word_in_motion(word) || page_word_generation(word) != page_word_generation(handle->word)) {
		error = -ESTALE;
	}
	pin_drop(segment, handle->page);
	return error;
}

static void finish_deferred(struct worker *worker)
{
	for (uint32_t i = 0; i < worker->deferred_count;) {
		struct handle handle = worker->deferred[i];
		int error = claim_freed(worker, &handle);

		if (error == -EAGAIN) {
			i++;
			continue;
		}
		worker->deferred[i] = worker->deferred[--worker->deferred_count];
		if (error)
			continue;
		worker->claimed++;
		may_die(worker);
		block_end(worker, &handle);
	}
}

/* Leave a handle for the other thread, and take the one that it has left. From then on, both may use the same block. */
static struct handle hand_over(struct worker *worker, struct handle ours)
{
	struct session *session = worker->session;
	uint32_t at = chance_below(&worker->random, SHARED);
	struct handle theirs;

	pthread_mutex_lock(&session->lock);
	theirs = session->shared[at];
	session->shared[at] = ours;
	pthread_mutex_unlock(&session->lock);
	return theirs;
}

static void verify(struct worker *worker, uint32_t at)
{
	const struct handle handle = worker->handles[at];
	int error = pin(worker, &handle);

	if (error == -EAGAIN)
		return;
	if (error) {
		worker->stale++;
		worker->handles[at] = worker->handles[--worker->handle_count];
		return;
	}
	contents_check(worker->session, &handle);
	may_die(worker);
	if (chance_below(&worker->random, 8) == 0)
		sched_yield();
	contents_check(worker->session, &handle);
	worker->verified++;
	if (chance_below(&worker->random, 4) == 0)
		offer(worker, &handle);
	else
		pin_drop(&worker->session->segment, handle.page);
}

static void drop(struct worker *worker, struct handle handle)
{
	int error;

	while ((error = pin(worker, &handle)) == -EAGAIN)
		sched_yield();
	if (error)
		return;
	/* Give the other thread time to pin the block, too, and to free it first. */
	if (chance_below(&worker->random, 4) == 0)
		sched_yield();
	free_pinned(worker, &handle, chance_below(&worker->random, 2) ? launch(worker, &handle) : 0);
}

static void work(struct worker *worker)
{
	uint32_t what = chance_below(&worker->random, 16), at;
	struct handle handle;

	finish_deferred(worker);
	if (what < 5 && worker->handle_count < HANDLES) {
		uint32_t count = chance_below(&worker->random, 24) ? 1 + chance_below(&worker->random, 6) : BLOCK_MOST;

		if (!allocate(worker, count, &handle))
			return;
		worker->handles[worker->handle_count++] = handle;
		pin_drop(&worker->session->segment, handle.page);
		return;
	}
	if (!worker->handle_count)
		return;
	at = chance_below(&worker->random, worker->handle_count);
	if (what < 13) {
		verify(worker, at);
		return;
	}
	if (worker->deferred_count == HANDLES)
		return;
	handle = worker->handles[at];
	if (what == 13) {
		struct handle theirs = hand_over(worker, handle);

		if (theirs.tag)
			worker->handles[at] = theirs;
		return;
	}
	worker->handles[at] = worker->handles[--worker->handle_count];
	if (what == 14)
		hand_over(worker, handle); /* so that the other thread may also free it */
	drop(worker, handle);
}

static void *worker_main(void *argument)
{
	struct worker *worker = argument, mine = *worker;

	free(worker);
	for (;;) {
		may_die(&mine);
		work(&mine);
	}
	return NULL;
}

/* The GPU of a session. It ends when the session's process ends. */
static void *device_main(void *argument)
{
	struct session *session = argument;

	while (!atomic_load_explicit(&session->dying, memory_order_relaxed)) {
		for (uint32_t i = 0; i < THREADS; i++) {
			const struct job *job = &session->jobs[i];
			uint64_t number = atomic_load_explicit(&job->launched, memory_order_acquire);

			if (number == atomic_load_explicit(&session->segment.timeline[i + 1], memory_order_relaxed))
				continue;
			contents_check(session, &job->handle);
			sched_yield();
			contents_check(session, &job->handle);
			atomic_store_explicit(&session->segment.timeline[i + 1], number, memory_order_release);
			atomic_fetch_add_explicit(&all_work, 1, memory_order_relaxed);
		}
		sched_yield();
	}
	return NULL;
}

/* ---- the agent ---- */

static void session_begin(struct session *session, uint64_t *random)
{
	memset(session->segment.header, 0, session->segment.bytes);
	memset(session->shared, 0, sizeof(session->shared));
	memset(session->jobs, 0, sizeof(session->jobs));
	atomic_store(&session->sequence, 1 + (chance(random) >> 20)); /* no tag is used twice */
	atomic_store(&session->dying, false);
	for (int i = 0; i < THREADS; i++) {
		struct worker *worker = calloc(1, sizeof(*worker));

		worker->session = session;
		worker->stream = (uint32_t)i;
		worker->random = chance(random);
		pthread_create(&session->threads[i], NULL, worker_main, worker);
	}
	pthread_create(&session->device, NULL, device_main, session);
}

/* Take the page from its owner, and overwrite it, as the next owner would. */
static void page_take(uint32_t page)
{
	uint64_t word = atomic_load_explicit(&page_words[page], memory_order_relaxed);

	owners[page] = 0;
	for (int i = 0; i < WORDS; i++)
		contents[page][i] = 0;
	atomic_store_explicit(
		&page_words[page], page_word_make(PAGE_FREE, 0, page_word_generation(word) + 1), memory_order_seq_cst);
}

static void session_end(struct session *session)
{
	atomic_store(&session->dying, true);
	for (int i = 0; i < THREADS; i++)
		pthread_join(session->threads[i], NULL);
	pthread_join(session->device, NULL);
	for (uint32_t page = 0; page < PAGES; page++)
		if (owners[page] == session->id) {
			atomic_store_explicit(&claims[page], 0, memory_order_relaxed);
			page_take(page);
		}
	did.deaths++;
}

static void grant(struct session *session, uint64_t *random)
{
	uint32_t first = chance_below(random, PAGES), count = 1 + chance_below(random, BLOCK_MOST);

	for (uint32_t page = first; page < first + count && page < PAGES; page++) {
		uint64_t generation =
			page_word_generation(atomic_load_explicit(&page_words[page], memory_order_relaxed)) + 1;

		if (owners[page])
			continue;
		owners[page] = session->id;
		atomic_store_explicit(
			&page_words[page], page_word_make(PAGE_LEASED, session->id, generation), memory_order_seq_cst);
		lease_put(session->segment.free_bits, page, 1);
		did.grants++;
	}
}

static void reclaim(struct session *session, uint64_t *random)
{
	uint32_t word = chance_below(random, PAGES / 64);
	uint64_t taken = lease_take_word(session->segment.free_bits, word, chance(random) & chance(random));

	for (; taken; taken &= taken - 1) {
		uint32_t page = word * 64 + (uint32_t)__builtin_ctzll(taken);

		if (owners[page] != session->id) {
			violation("reclaim: a free bit of session %u on page %u of session %u", session->id, page,
				owners[page]);
			continue;
		}
		claim(page, 0, 0, "reclaim");
		page_take(page);
		did.reclaims++;
	}
}

/* Take all pages of an unpinned block, or those of a magazine. */
static void evict_marked(struct session *session, uint32_t page, uint64_t word)
{
	struct block_entry *entry = &session->segment.blocks[page];
	uint64_t tag = atomic_load_explicit(&entry->tag, memory_order_acquire);
	uint32_t count = tag == BLOCK_TAG_CACHED ? 1 : atomic_load_explicit(&entry->page_count, memory_order_relaxed);

	if (!tag) {
		atomic_store_explicit(&page_words[page], word, memory_order_release);
		return;
	}
	if (tag & BLOCK_DYING && tag != BLOCK_TAG_CACHED)
		did.freed_taken++;
	if (!count || count > BLOCK_MOST || count > PAGES - page) {
		violation("evict: block %llu has %u pages", (unsigned long long)claim_of(tag), count);
		count = 1;
	}
	atomic_store_explicit(&entry->tag, 0, memory_order_release);
	claim_run(page, count, tag == BLOCK_TAG_CACHED ? 0 : claim_of(tag), 0, "evict");
	for (uint32_t i = count; i--;) { /* in reverse: the head, which pins check, is last */
		if (owners[page + i] == session->id)
			page_take(page + i);
		else
			violation("evict: page %u of a block of session %u is of session %u", page + i, session->id,
				owners[page + i]);
	}
	did.evictions++;
	did.evicted_pages += count;
}

static void evict(uint64_t *random)
{
	uint32_t page = chance_below(random, PAGES);
	struct session *session;
	uint64_t word;

	if (!owners[page])
		return;
	session = &sessions[owners[page] - 1];
	word = atomic_load_explicit(&page_words[page], memory_order_relaxed);
	atomic_store_explicit(&page_words[page], page_word_make(PAGE_EVICTING, session->id, page_word_generation(word)),
		memory_order_seq_cst);
	if (pin_count(&session->segment, page)) {
		atomic_store_explicit(&page_words[page], word, memory_order_release);
		did.vetoes++;
		return;
	}
	if (!entry_fence_signaled(&session->segment, page)) {
		atomic_store_explicit(&page_words[page], word, memory_order_release);
		did.fenced++;
		return;
	}
	evict_marked(session, page, word);
}

/* Return true if all events that the run must include have happened. */
static bool was_real(void)
{
	return did.evictions && did.reclaims && did.vetoes && did.fenced && did.freed_taken && did.deaths &&
		atomic_load(&all_verified) && atomic_load(&all_lost_frees) && atomic_load(&all_late_frees) &&
		atomic_load(&all_offers) && atomic_load(&all_claimed);
}

/* Return true if the run is to continue; with a planted bug, it ends with the first violation. */
static bool goes_on(uint64_t begin, double seconds)
{
	uint64_t length = (uint64_t)(seconds * 1e9), age = clock_ns() - begin;

	if (broken)
		return age < length && !atomic_load(&violations);
	return age < length || (age < length * STRESS_LONGEST && !was_real());
}

static void agent_run(double seconds, uint64_t seed)
{
	uint64_t begin = clock_ns(), random = seed, death = 0;

	while (goes_on(begin, seconds)) {
		for (int i = 0; i < 256; i++) {
			struct session *session = &sessions[chance_below(&random, SESSIONS)];

			switch (chance_below(&random, 4)) {
			case 0: grant(session, &random); break;
			case 1: reclaim(session, &random); break;
			default: evict(&random);
			}
		}
		if (clock_ns() > death) {
			struct session *session = &sessions[chance_below(&random, SESSIONS)];

			session_end(session);
			session_begin(session, &random);
			death = clock_ns() + 5000000;
		}
	}
}

static void run(const struct stress_arguments *arguments)
{
	size_t bytes = session_layout_of(PAGES).bytes;
	uint64_t random = arguments->seed;

	for (uint32_t page = 0; page < PAGES; page++)
		atomic_init(&page_words[page], page_word_make(PAGE_FREE, 0, 1));
	for (uint32_t i = 0; i < SESSIONS; i++) {
		sessions[i].id = i + 1;
		pthread_mutex_init(&sessions[i].lock, NULL);
		session_segment_over(aligned_alloc(4096, bytes), PAGES, &sessions[i].segment);
		session_begin(&sessions[i], &random);
	}
	agent_run(arguments->seconds, chance(&random));
	for (int i = 0; i < SESSIONS; i++) {
		session_end(&sessions[i]);
		free(sessions[i].segment.header);
	}
	printf("%s%llu grants, %llu reclaims, %llu evictions of %llu pages, %llu of freed blocks, %llu vetoed by a "
	       "pin, %llu by a fence, %llu deaths; %llu pins verified, %llu stale, %llu offers behind a fence, %llu "
	       "pieces of work, %llu frees lost to another, %llu late, %llu of them claimed; %llu violations\n",
		broken_names[broken], (unsigned long long)did.grants, (unsigned long long)did.reclaims,
		(unsigned long long)did.evictions, (unsigned long long)did.evicted_pages,
		(unsigned long long)did.freed_taken, (unsigned long long)did.vetoes, (unsigned long long)did.fenced,
		(unsigned long long)did.deaths, (unsigned long long)atomic_load(&all_verified),
		(unsigned long long)atomic_load(&all_stale), (unsigned long long)atomic_load(&all_offers),
		(unsigned long long)atomic_load(&all_work), (unsigned long long)atomic_load(&all_lost_frees),
		(unsigned long long)atomic_load(&all_late_frees), (unsigned long long)atomic_load(&all_claimed),
		(unsigned long long)atomic_load(&violations));
	fflush(stdout);
}

/* Run with a planted bug, in a separate process. Return true if the bug is found. */
static bool broken_is_found(struct stress_arguments arguments, int bug)
{
	int status = 0;
	pid_t pid;

	arguments.seconds = 300; /* maximum; it ends with the first violation */
	pid = fork();
	if (pid == 0) {
		broken = bug;
		run(&arguments);
		_exit(atomic_load(&violations) ? 0 : 1);
	}
	if (pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return true;
	fprintf(stderr, "%sno violation was found: this test proves nothing\n", broken_names[bug]);
	return false;
}

int main(int argc, char **argv)
{
	struct stress_arguments arguments = {.seconds = 10, .usage = "[SECONDS [SEED]] [--broken]"};

	if (!stress_arguments_read(argc, argv, &arguments))
		return 2;
	/* Not under ThreadSanitizer, which would report a planted bug, correctly, and fail the run. */
	if (arguments.broken || !UNDER_TSAN)
		for (int bug = BROKEN_PIN; bug <= BROKEN_OFFER; bug++)
			if (!broken_is_found(arguments, bug))
				return 1;
	if (arguments.broken)
		return 0;
	run(&arguments);
	if (!was_real()) {
		fprintf(stderr, "something this test is about did not happen\n");
		return 1;
	}
	return atomic_load(&violations) ? 1 : 0;
}
