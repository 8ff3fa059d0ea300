/*
 * torture_threads.c - the shared-memory protocols with workers as threads, where ThreadSanitizer sees both sides.
 *
 * Goal: pin, allocate, free, grant, reclaim, evict and death, as shm/ implements them, never give a page to two, never change a
 * content under a pin, and order every access. Method: sessions of two threads each and an agent thread share one mapping of each
 * segment; contents are plain memory, so that a missing order is a data race by the letter; ghosts (relaxed, so that they order
 * nothing) say who has which page. Sessions die at named points, leaving everything as it is.
 *
 * With --broken the pin ignores the page word. Then violations must be found, or the test could not fail: without arguments a
 * short broken run comes first, in a process of its own.
 *
 * usage: torture_threads [SECONDS [SEED]] [--broken]
 */
#include "shm/lease_bitmap.h"
#include "shm/pins.h"
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
	THREADS = 2,     /* of each session */
	BLOCK_MOST = 70, /* pages: more than a word of the bitmap */
	HANDLES = 24,    /* of each thread */
	MAGAZINE = 4,
	SHARED = 2, /* handles that the threads of a session pass each other */
	WORDS = 4,  /* of content in a page */
};

struct handle {
	uint64_t word, tag; /* tag 0: none */
	uint32_t page, page_count;
};

struct cached {
	uint64_t word;
	uint32_t page;
};

struct session {
	struct session_segment segment;
	uint32_t id;
	_Atomic bool dying;
	_Atomic uint64_t sequence;
	pthread_mutex_t lock; /* of the hand-over alone; nobody dies holding it */
	struct handle shared[SHARED];
	pthread_t threads[THREADS];
};

struct worker {
	struct session *session;
	uint64_t random;
	struct handle handles[HANDLES];
	uint32_t handle_count;
	struct cached magazine[MAGAZINE];
	uint32_t magazine_count;
	struct handle deferred[HANDLES]; /* freed while another thread still pinned them */
	uint32_t deferred_count;
	uint64_t verified, stale, lost_frees, late_frees;
};

static _Atomic uint64_t page_words[PAGES];
static uint64_t contents[PAGES][WORDS];
static _Atomic uint64_t claims[PAGES]; /* ghost: tag of the block that has the page */
static struct session sessions[SESSIONS];
static uint32_t owners[PAGES]; /* the agent's own table: session, 0: nobody */
static bool broken;
static _Atomic uint64_t violations;
static struct {
	uint64_t grants, reclaims, evictions, evicted_pages, vetoes, deaths;
} did;
static _Atomic uint64_t all_verified, all_stale, all_lost_frees, all_late_frees;

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

static void contents_check(const struct worker *worker, const struct handle *handle)
{
	for (uint32_t i = handle->page; i < handle->page + handle->page_count; i++)
		for (uint32_t word = 0; word < WORDS; word++)
			if (contents[i][word] != handle->tag + i)
				return violation("session %u: wrong content on page %u of block %llu", worker->session->id, i,
					(unsigned long long)claim_of(handle->tag));
}

/* ---- the worker ---- */

/* A session dies here, whatever it has in its hands. */
static void may_die(const struct worker *worker)
{
	if (!atomic_load_explicit(&worker->session->dying, memory_order_relaxed))
		return;
	atomic_fetch_add(&all_verified, worker->verified);
	atomic_fetch_add(&all_stale, worker->stale);
	atomic_fetch_add(&all_lost_frees, worker->lost_frees);
	atomic_fetch_add(&all_late_frees, worker->late_frees);
	pthread_exit(NULL);
}

/* pin_try(), or what it would be without its look at the page word. */
static int pin(const struct worker *worker, const struct handle *handle)
{
	const struct session_segment *segment = &worker->session->segment;

	if (!broken)
		return pin_try(segment, page_words, handle->page, handle->word, handle->tag);
	atomic_fetch_add_explicit(&segment->pins[handle->page], 1, memory_order_seq_cst);
	if (atomic_load_explicit(&segment->blocks[handle->page].tag, memory_order_acquire) == handle->tag)
		return 0;
	pin_drop(segment, handle->page);
	return -ESTALE;
}

/* Pin a page that nobody else can have, as its bit was ours: only the agent's look may be in the way. */
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

/* The pages are ours and the first is pinned: make them a block. */
static void block_begin(struct worker *worker, uint32_t page, uint32_t count, uint64_t word, struct handle *handle)
{
	struct session *session = worker->session;
	struct block_entry *entry = &session->segment.blocks[page];
	uint64_t tag = block_tag_make(atomic_fetch_add_explicit(&session->sequence, 1, memory_order_relaxed), 0);

	may_die(worker);
	claim_run(page, count, 0, claim_of(tag), "allocate");
	contents_write(page, count, tag);
	atomic_store_explicit(&entry->page_count, count, memory_order_relaxed);
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
			return false; /* the agent looks at it: try again later */
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

		/* A page inside the run may be the head of nothing: the agent looks at it too, for a moment. */
		if (page_word_owner(now) != worker->session->id ||
			(page_word_state(now) != PAGE_LEASED && !(i && page_word_in_motion(now))))
			violation("session %u: claimed page %u is %s of session %u", worker->session->id, page + i,
				page_state_name(page_word_state(now)), page_word_owner(now));
	}
	may_die(worker);
	block_begin(worker, page, count, word, handle);
	return true;
}

/* The claim is ours and the pin is the last: nobody else can reach the block. */
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

/* Of two frees one wins; ours has pinned the block. */
static void free_pinned(struct worker *worker, const struct handle *handle)
{
	const struct session_segment *segment = &worker->session->segment;
	uint64_t tag = handle->tag;

	if (!atomic_compare_exchange_strong(&segment->blocks[handle->page].tag, &tag, tag | BLOCK_DYING)) {
		pin_drop(segment, handle->page);
		worker->lost_frees++;
		return;
	}
	may_die(worker);
	if (pin_count(segment, handle->page) == 1) {
		block_end(worker, handle);
	} else {
		worker->deferred[worker->deferred_count++] = *handle;
		worker->late_frees++;
	}
}

static void finish_deferred(struct worker *worker)
{
	for (uint32_t i = 0; i < worker->deferred_count;) {
		struct handle handle = worker->deferred[i];

		if (pin_count(&worker->session->segment, handle.page) != 1) {
			i++;
			continue;
		}
		worker->deferred[i] = worker->deferred[--worker->deferred_count];
		block_end(worker, &handle);
	}
}

/* Put ours where the other thread finds it, and take what it left: both may hold the same block from now on. */
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
	contents_check(worker, &handle);
	may_die(worker);
	if (chance_below(&worker->random, 8) == 0)
		sched_yield();
	contents_check(worker, &handle);
	worker->verified++;
	pin_drop(&worker->session->segment, handle.page);
}

static void drop(struct worker *worker, struct handle handle)
{
	int error;

	while ((error = pin(worker, &handle)) == -EAGAIN)
		sched_yield();
	if (error)
		return;
	/* Time for the other thread to pin it too, and to be faster. */
	if (chance_below(&worker->random, 4) == 0)
		sched_yield();
	free_pinned(worker, &handle);
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
		hand_over(worker, handle); /* so that the other thread may free it too */
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

/* ---- the agent ---- */

static void session_begin(struct session *session, uint64_t *random)
{
	memset(session->segment.header, 0, session->segment.bytes);
	memset(session->shared, 0, sizeof(session->shared));
	atomic_store(&session->sequence, 1 + (chance(random) >> 20)); /* no tag comes back */
	atomic_store(&session->dying, false);
	for (int i = 0; i < THREADS; i++) {
		struct worker *worker = calloc(1, sizeof(*worker));

		worker->session = session;
		worker->random = chance(random);
		pthread_create(&session->threads[i], NULL, worker_main, worker);
	}
}

/* The page leaves its owner; the scribble stands for the next owner's content. */
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
		uint64_t generation = page_word_generation(atomic_load_explicit(&page_words[page], memory_order_relaxed)) + 1;

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
			violation("reclaim: a free bit of session %u on page %u of session %u", session->id, page, owners[page]);
			continue;
		}
		claim(page, 0, 0, "reclaim");
		page_take(page);
		did.reclaims++;
	}
}

/* All of one block that nobody pins, or what a magazine holds. */
static void evict_marked(struct session *session, uint32_t page, uint64_t word)
{
	struct block_entry *entry = &session->segment.blocks[page];
	uint64_t tag = atomic_load_explicit(&entry->tag, memory_order_acquire);
	uint32_t count = tag == BLOCK_TAG_CACHED ? 1 : atomic_load_explicit(&entry->page_count, memory_order_relaxed);

	if (!tag) {
		atomic_store_explicit(&page_words[page], word, memory_order_release);
		return;
	}
	if (tag & BLOCK_DYING)
		violation("evict: block %llu is being freed and yet not pinned", (unsigned long long)claim_of(tag));
	if (!count || count > BLOCK_MOST || count > PAGES - page) {
		violation("evict: block %llu has %u pages", (unsigned long long)claim_of(tag), count);
		count = 1;
	}
	atomic_store_explicit(&entry->tag, 0, memory_order_release);
	claim_run(page, count, tag == BLOCK_TAG_CACHED ? 0 : claim_of(tag), 0, "evict");
	for (uint32_t i = count; i--;) { /* the head, which pins look at, last */
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
	atomic_store_explicit(
		&page_words[page], page_word_make(PAGE_EVICTING, session->id, page_word_generation(word)), memory_order_seq_cst);
	if (pin_count(&session->segment, page)) {
		atomic_store_explicit(&page_words[page], word, memory_order_release);
		did.vetoes++;
		return;
	}
	evict_marked(session, page, word);
}

static void agent_run(double seconds, uint64_t seed)
{
	uint64_t end = clock_ns() + (uint64_t)(seconds * 1e9), random = seed, death = 0;

	while (clock_ns() < end && !(broken && atomic_load(&violations))) {
		for (int i = 0; i < 256; i++) {
			struct session *session = &sessions[chance_below(&random, SESSIONS)];

			switch (chance_below(&random, 4)) {
			case 0:
				grant(session, &random);
				break;
			case 1:
				reclaim(session, &random);
				break;
			default:
				evict(&random);
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

	broken = arguments->broken;
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
	printf("%s%llu grants, %llu reclaims, %llu evictions of %llu pages, %llu vetoed by a pin, %llu deaths; %llu pins "
	       "verified, %llu "
	       "stale, %llu frees lost to another, %llu late; %llu violations\n",
		broken ? "with a pin that ignores the page word: " : "", (unsigned long long)did.grants,
		(unsigned long long)did.reclaims, (unsigned long long)did.evictions, (unsigned long long)did.evicted_pages,
		(unsigned long long)did.vetoes, (unsigned long long)did.deaths, (unsigned long long)atomic_load(&all_verified),
		(unsigned long long)atomic_load(&all_stale), (unsigned long long)atomic_load(&all_lost_frees),
		(unsigned long long)atomic_load(&all_late_frees), (unsigned long long)atomic_load(&violations));
	fflush(stdout);
}

/* The planted bug, in a process of its own: is it found? */
static bool broken_is_found(struct stress_arguments arguments)
{
	int status = 0;
	pid_t pid;

	arguments.broken = true;
	arguments.seconds = 60; /* it ends with the first violation */
	pid = fork();
	if (pid == 0) {
		run(&arguments);
		_exit(atomic_load(&violations) ? 0 : 1);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* What the run was for must have happened. */
static bool was_real(void)
{
	return did.evictions && did.reclaims && did.vetoes && did.deaths && atomic_load(&all_verified) &&
	       atomic_load(&all_lost_frees) && atomic_load(&all_late_frees);
}

int main(int argc, char **argv)
{
	struct stress_arguments arguments = {.seconds = 10};

	if (!stress_arguments_read(argc, argv, &arguments))
		return 2;
	if (arguments.broken)
		return broken_is_found(arguments) ? 0 : 1;
	/* Under ThreadSanitizer the planted bug would be reported, as it should, and fail the run. */
	if (!UNDER_TSAN && !broken_is_found(arguments)) {
		fprintf(stderr, "a pin that ignores the page word was not found out: this test proves nothing\n");
		return 1;
	}
	run(&arguments);
	if (!was_real()) {
		fprintf(stderr, "something this test is about did not happen\n");
		return 1;
	}
	return atomic_load(&violations) ? 1 : 0;
}
