/*
 * load_object.c - the object in the pool that contains an adapter, published by this process or another engine.
 *
 * The name of the object is a hash of the files, the type, the page size, the flag for int8, the salt, the trust
 * domain, and, if the object is private, the tenant. An engine that opens the object compares its layout with the one
 * that results from the files. If two engines publish at the same time, one is first, and the other one opens the
 * object of the first.
 */
#include "client/lora/load/load.h"

#include "client/object/object.h"

#include <errno.h>
#include <string.h>

/* Keep the agent's text if this session has no right to the object. Return: `error`. */
static int right_say(struct lora_load *load, int error)
{
	if ((error == -EACCES || error == -EPERM) && !load->reason.text[0])
		refuse(&load->reason, "%s", gpool_last_error(error));
	return error;
}

/* ---- an object of another engine ---- */

uint32_t load_object_pages(const struct lora_load *load)
{
	return load->adapter->layout.header->pages - adapter_has_tail(load->lora, load->adapter);
}

static bool same_layout(const struct lora_load *load, struct gpool_object *object)
{
	const struct adapter_layout_header *layout = load->adapter->layout.header;
	uint64_t address, length;
	const void *value;
	size_t value_bytes;

	return !gpool_object_get(object, "layout", &value, &value_bytes) && value_bytes == layout->bytes &&
		!memcmp(value, layout, layout->bytes) && !gpool_object_address(object, 0, &address, &length) &&
		length == (uint64_t)load_object_pages(load) * layout->page_bytes;
}

/*
 * Check an object that was published by another engine: its layout, and, if its name is private, its tenant. The agent
 * lets no other tenant publish under a private name; this is a second check.
 */
static int object_believe(struct lora_load *load, struct gpool_object *object)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	int error = gpool_object_info(object, &info);

	if (!error && load->lora->private && strcmp(info.tenant, pool_tenant_name(load->lora->pool)) != 0)
		return refuse(&load->reason, "object '%s' was published by another tenant, '%s'", load->adapter->key,
			info.tenant);
	if (!error && !same_layout(load, object))
		return refuse(&load->reason,
			"object '%s' of another process has a layout that does not match the files",
			load->adapter->key);
	return error;
}

bool load_object_exists(const struct lora_load *load)
{
	const char *name = load->adapter->key;

	return gpool_object_find(load->lora->pool, &name, 1) == 1;
}

int load_object_find(struct lora_load *load, struct gpool_object **object)
{
	int error = gpool_object_open(load->lora->pool, load->adapter->key, NULL, object);

	if (error)
		return right_say(load, error);
	error = gpool_object_pin(*object);
	if (!error) {
		error = object_believe(load, *object);
		if (error)
			gpool_object_unpin(*object);
	}
	if (error) {
		gpool_object_close(*object);
		*object = NULL;
	}
	return error == -ESTALE ? -ENOENT : error;
}

/* ---- an object of this process ---- */

int load_object_ask(struct lora_load *load)
{
	return right_say(load, object_adapter_ask(load->lora->pool, load->adapter->key, load->adapter->name));
}

int load_object_begin(struct lora_load *load)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_alloc_options alloc = GPOOL_ALLOC_OPTIONS_INIT;
	uint32_t index;
	int error;

	options.memory_class = GPOOL_OBJECT_PINNABLE;
	options.flags = OBJECT_CREATE_OWN | GPOOL_OBJECT_PINNED | (load->lora->private ? GPOOL_OBJECT_PRIVATE : 0);
	options.expect_version = GPOOL_OBJECT_NONE;
	alloc.usage = GPOOL_USAGE_LORA_WEIGHT;
	alloc.flags = alloc_flags(load);
	alloc.owner_id = load->entry->id;
	error = gpool_object_create(load->lora->pool, load->adapter->key, &options, &load->object);
	if (error) {
		load->object = NULL;
		return error;
	}
	error = gpool_object_alloc(load->object, load_object_pages(load), &alloc, &index);
	load->began_ns = monotonic_ns();
	return error;
}

void load_object_cost(const struct lora_load *load)
{
	uint64_t us = (monotonic_ns() - load->began_ns) / 1000 + 1;

	load->object->cost_us = us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

int load_object_publish(struct lora_load *load)
{
	const struct adapter_layout_header *layout = load->adapter->layout.header;
	uint64_t version;
	int error = gpool_object_set(load->object, "layout", layout, layout->bytes);

	if (!error)
		error = gpool_object_set(load->object, "name", load->adapter->name, strlen(load->adapter->name));
	return error ? error : right_say(load, gpool_object_publish(load->object, &version));
}

void load_object_drop(struct lora_load *load)
{
	/* After a device failure, queued copies may still write to the pages. They are freed when the process ends. */
	if (pool_gpu_failed(load->lora->pool)) {
		load->object = NULL;
		return;
	}
	runs_free(load->lora, &load->runs);
	if (!load->object)
		return;
	if (load->shared)
		gpool_object_unpin(load->object);
	/* Closing an object that is not published aborts it. */
	gpool_object_close(load->object);
	load->object = NULL;
}

void load_tail_drop(struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;

	if (pool_gpu_failed(lora->pool)) {
		tail_abandon(&lora->tails, &load->tail);
		return;
	}
	tail_unpin(lora->pool, &load->tail, GPOOL_FENCE_NONE);
	tail_free(&lora->tails, lora->pool, &load->tail, NULL);
}
