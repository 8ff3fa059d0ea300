/*
 * warm_kept.c - keep copies in host memory mapped between loads.
 */
#include "client/lora/load/warm.h"

#include <errno.h>
#include <string.h>

static struct warm_kept_copy *kept_at(struct warm_kept *kept, uint32_t place)
{
	return &kept->copies[(kept->oldest + place) % WARM_KEPT];
}

static struct gpool_object *kept_take(struct warm_kept *kept, const char *name)
{
	struct gpool_object *object = NULL;

	pthread_mutex_lock(&kept->lock);
	for (uint32_t i = kept->count; i-- && !object;) {
		struct warm_kept_copy *copy = kept_at(kept, i);

		if (!copy->object || strcmp(copy->name, name) != 0)
			continue;
		object = copy->object;
		kept->pages -= copy->pages;
		copy->object = NULL;
	}
	pthread_mutex_unlock(&kept->lock);
	return object;
}

/* Remove the oldest copy from the ring; under the lock. Return: its object, or NULL if it is in use. */
static struct gpool_object *kept_drop(struct warm_kept *kept)
{
	struct warm_kept_copy *copy = kept_at(kept, 0);
	struct gpool_object *object = copy->object;

	if (object)
		kept->pages -= copy->pages;
	copy->object = NULL;
	kept->oldest = (kept->oldest + 1) % WARM_KEPT;
	kept->count--;
	return object;
}

static bool kept_fits(const struct warm_kept *kept, uint32_t pages)
{
	return kept->count < WARM_KEPT && kept->pages + pages <= WARM_KEPT_PAGES;
}

static void kept_add(struct warm_kept *kept, const char *name, struct gpool_object *object, uint32_t pages)
{
	struct warm_kept_copy *copy = kept_at(kept, kept->count++);

	memcpy(copy->name, name, sizeof(copy->name));
	copy->object = object;
	copy->pages = pages;
	kept->pages += pages;
}

int warm_again(struct warm_kept *kept, const char *name, const struct adapter_layout *layout, bool int8,
	struct warm_copy *copy)
{
	*copy = (struct warm_copy){.object = kept_take(kept, name)};
	if (!copy->object)
		return -ENOENT;
	if (gpool_object_pin(copy->object)) {
		gpool_object_close(copy->object);
		copy->object = NULL;
		return -ENOENT;
	}
	/* The metadata cannot have changed since it was checked, but the adapter may have. */
	if (!warm_look(copy, layout, int8))
		return 0;
	warm_close(copy);
	return -ENOENT;
}

void warm_leave(struct warm_kept *kept, const char *name, struct warm_copy *copy)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	struct gpool_object *gone;

	if (!copy->object)
		return;
	if (gpool_object_info(copy->object, &info) || info.pages > WARM_KEPT_PAGES) {
		warm_close(copy);
		return;
	}
	gpool_object_unpin(copy->object);
	pthread_mutex_lock(&kept->lock);
	while (!kept_fits(kept, info.pages)) {
		gone = kept_drop(kept);
		pthread_mutex_unlock(&kept->lock);
		gpool_object_close(gone);
		pthread_mutex_lock(&kept->lock);
	}
	kept_add(kept, name, copy->object, info.pages);
	pthread_mutex_unlock(&kept->lock);
	copy->object = NULL;
}

void warm_forget(struct warm_kept *kept, const char *name)
{
	gpool_object_close(kept_take(kept, name));
}

void warm_kept_end(struct warm_kept *kept)
{
	while (kept->count)
		gpool_object_close(kept_drop(kept));
	pthread_mutex_destroy(&kept->lock);
}
