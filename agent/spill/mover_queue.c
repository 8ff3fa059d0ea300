#include "agent/spill/mover_queue.h"

#include "agent/base/crash_point.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static void bell_ring(int bell)
{
	uint64_t one = 1;

	/* EAGAIN: the counter is full, so the bell has already rung. */
	while (write(bell, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

static void bell_drain(int bell)
{
	uint64_t rung;

	while (read(bell, &rung, sizeof(rung)) < 0 && errno == EINTR)
		;
}

void mover_queue_init(struct mover_queue *queue, struct mover_ring *ring, int work_bell, int done_bell)
{
	memset(queue, 0, sizeof(*queue));
	queue->ring = ring;
	queue->work_bell = work_bell;
	queue->done_bell = done_bell;
	/* The agent waits in epoll only. */
	fcntl(work_bell, F_SETFL, fcntl(work_bell, F_GETFL) | O_NONBLOCK);
	fcntl(done_bell, F_SETFL, fcntl(done_bell, F_GETFL) | O_NONBLOCK);
}

int mover_submit(struct mover_queue *queue, const struct mover_order *order)
{
	uint32_t slot = queue->next;
	struct mover_job *job;

	if (queue->in_flight == MOVER_JOBS)
		return -EAGAIN;
	while (queue->used[slot])
		slot = (slot + 1) % MOVER_JOBS;
	queue->next = (slot + 1) % MOVER_JOBS;
	queue->used[slot] = true;
	queue->orders[slot] = *order;
	queue->numbers[slot] = ++queue->number;
	queue->in_flight++;
	job = &queue->ring->jobs[slot];
	job->kind = order->kind;
	job->page = order->page;
	job->to = order->to;
	job->tier = order->tier;
	job->error = 0;
	job->number = queue->number;
	job->checksum = order->checksum;
	job->tag = order->tag;
	atomic_store_explicit(&job->state, MOVER_QUEUED, memory_order_release);
	bell_ring(queue->work_bell);
	return 0;
}

/* Replace an error that no mover returns by -EIO. */
static int error_known(int32_t error)
{
	return error == 0 || error == -EBADMSG || error == -ENOSPC || error == -EINVAL ? error : -EIO;
}

uint32_t mover_collect(
	struct mover_queue *queue, void (*each)(void *context, const struct mover_result *result), void *context)
{
	uint32_t count = 0;

	bell_drain(queue->done_bell); /* drain before reading the ring: a later result rings again */
	for (uint32_t slot = 0; slot < MOVER_JOBS; slot++) {
		struct mover_job *job = &queue->ring->jobs[slot];
		struct mover_result result;

		if (!queue->used[slot] || atomic_load_explicit(&job->state, memory_order_acquire) != MOVER_DONE)
			continue;
		result.order = queue->orders[slot];
		result.error = error_known(job->error);
		if (result.order.kind == MOVER_SPILL && !result.error)
			result.order.checksum = job->checksum;
		each(context, &result);
		atomic_store_explicit(&job->state, MOVER_IDLE, memory_order_release);
		queue->used[slot] = false;
		queue->in_flight--;
		count++;
	}
	return count;
}

uint32_t mover_rescan(struct mover_queue *queue)
{
	queue->in_flight = 0;
	for (uint32_t slot = 0; slot < MOVER_JOBS; slot++) {
		struct mover_job *job = &queue->ring->jobs[slot];
		uint32_t state = atomic_load_explicit(&job->state, memory_order_acquire);

		if (job->number > queue->number)
			queue->number = job->number;
		queue->used[slot] = state == MOVER_QUEUED || state == MOVER_TAKEN || state == MOVER_DONE;
		if (!queue->used[slot])
			continue;
		queue->numbers[slot] = job->number;
		queue->orders[slot] = (struct mover_order){.kind = job->kind,
			.tier = job->tier,
			.page = job->page,
			.to = job->to,
			.checksum = job->checksum,
			.tag = job->tag};
		queue->in_flight++;
	}
	bell_ring(queue->work_bell);
	return queue->in_flight;
}

const struct mover_order *mover_order_of(const struct mover_queue *queue, uint32_t slot)
{
	return slot < MOVER_JOBS && queue->used[slot] ? &queue->orders[slot] : NULL;
}

uint64_t mover_oldest(const struct mover_queue *queue)
{
	uint64_t oldest = UINT64_MAX;

	for (uint32_t slot = 0; slot < MOVER_JOBS; slot++)
		if (queue->used[slot] && queue->numbers[slot] < oldest)
			oldest = queue->numbers[slot];
	return oldest;
}

/* ---- the gate ---- */

static bool is_living(uint32_t gate, uint32_t ended)
{
	return gate != MOVER_SHUT && gate > ended;
}

bool mover_serves(const struct mover_queue *queue, uint32_t ended)
{
	return is_living(atomic_load_explicit(&queue->ring->gate, memory_order_acquire), ended);
}

bool mover_shut(struct mover_queue *queue, uint32_t ended)
{
	uint32_t gate = atomic_load_explicit(&queue->ring->gate, memory_order_acquire);
	bool shut = !is_living(gate, ended) &&
		atomic_compare_exchange_strong_explicit(
			&queue->ring->gate, &gate, MOVER_SHUT, memory_order_acq_rel, memory_order_acquire);

	if (shut)
		crash_point();
	return shut;
}

/* A mover stores TAKEN before it begins a job. It is dead now, so all its stores are visible. */
bool mover_begun(const struct mover_queue *queue, uint32_t slot)
{
	return atomic_load_explicit(&queue->ring->jobs[slot].state, memory_order_acquire) != MOVER_QUEUED;
}

void mover_withdraw(struct mover_queue *queue, uint32_t slot)
{
	atomic_store_explicit(&queue->ring->jobs[slot].state, MOVER_IDLE, memory_order_release);
	crash_point();
	queue->used[slot] = false;
	queue->in_flight--;
}

void mover_forget(struct mover_queue *queue, uint32_t slot)
{
	if (atomic_load_explicit(&queue->ring->jobs[slot].state, memory_order_acquire) == MOVER_DONE)
		mover_withdraw(queue, slot);
}

void mover_let_in(struct mover_queue *queue)
{
	uint32_t gate = MOVER_SHUT;

	/* Ring the bell to wake movers that wait at the gate. */
	if (atomic_compare_exchange_strong_explicit(
		    &queue->ring->gate, &gate, MOVER_NOBODY, memory_order_acq_rel, memory_order_relaxed))
		bell_ring(queue->work_bell);
}
