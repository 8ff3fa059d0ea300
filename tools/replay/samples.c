#include "tools/replay/samples.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static_assert(REGION_KINDS <= 4, "two bits");

void samples_init(struct samples *samples, uint64_t span_ns)
{
	memset(samples, 0, sizeof(*samples));
	pthread_mutex_init(&samples->lock, NULL);
	samples->step_ns = span_ns / (SAMPLES_MAX - 1) + 1;
}

void samples_fini(struct samples *samples)
{
	pthread_mutex_destroy(&samples->lock);
	free(samples->regions);
}

/* Discard every second sample. */
static void samples_thin(struct samples *samples)
{
	size_t kept = 0, regions = 0;

	for (size_t i = 0; i < samples->count; i += 2) {
		struct sample *sample = &samples->list[i];

		memmove(samples->regions + regions, samples->regions + sample->first,
			sample->count * sizeof(*samples->regions));
		sample->first = regions;
		regions += sample->count;
		samples->list[kept++] = *sample;
	}
	samples->count = kept;
	samples->region_count = regions;
	samples->step_ns *= 2;
}

static void region_add(void *context, uint64_t address, uint64_t bytes, enum region_kind kind)
{
	struct samples *samples = context;

	if (samples->error)
		return;
	if (samples->region_count == samples->region_capacity) {
		size_t more = samples->region_capacity ? samples->region_capacity * 2 : 4096;
		struct sample_region *grown = realloc(samples->regions, more * sizeof(*grown));

		if (!grown) {
			samples->error = -ENOMEM;
			return;
		}
		samples->regions = grown;
		samples->region_capacity = more;
	}
	samples->regions[samples->region_count++] = (struct sample_region){address, bytes << 2 | kind};
}

/* Add a sample. The caller holds the lock. */
static void sample_add(struct samples *samples, uint64_t time_ns)
{
	struct sample *sample;
	struct allocator_totals totals;
	int error;

	if (samples->count == SAMPLES_MAX || (samples->count > 1 && samples->region_count > SAMPLES_REGIONS_MAX))
		samples_thin(samples);
	sample = &samples->list[samples->count];
	samples->allocator->ops->totals(samples->allocator, &totals);
	*sample = (struct sample){
		.time_ns = time_ns, .first = samples->region_count, .live = totals.live, .mapped = totals.mapped};
	error = samples->allocator->ops->visit(samples->allocator, region_add, samples);
	if (error)
		samples->error = error;
	sample->count = samples->region_count - sample->first;
	samples->count++;
}

void samples_take(struct samples *samples, uint64_t time_ns)
{
	if (pthread_mutex_trylock(&samples->lock))
		return; /* another thread is taking the sample */
	if (samples_due(samples, time_ns) && !samples->error) {
		sample_add(samples, time_ns);
		atomic_store_explicit(&samples->next_ns, time_ns - time_ns % samples->step_ns + samples->step_ns,
			memory_order_relaxed);
	}
	pthread_mutex_unlock(&samples->lock);
}
