/* warm.c - find and publish copies of adapters in host memory. */
#include "client/lora/load/warm.h"

#include "client/object/object.h"
#include "client/core/pool.h"
#include "shm/checksum.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- find ---- */

static void copy_is(struct warm_copy *copy, const struct adapter_layout *layout, enum cold_form form)
{
	copy->header.form = form;
	copy->file = (struct cold_file){.fd = -1, .header = &copy->header, .layout = *layout};
}

static uint64_t forms_bytes(const struct warm_copy *copy)
{
	return cold_pages_bytes(
		&copy->file.layout, (enum cold_form)copy->header.form, 0, copy->file.layout.header->pages);
}

static const void *value_of(struct gpool_object *object, const char *key, size_t bytes)
{
	const void *value;
	size_t found;

	return !gpool_object_get(object, key, &value, &found) && found == bytes ? value : NULL;
}

/* The metadata of a published object is immutable, so one check is sufficient. */
const char *warm_look(struct warm_copy *copy, const struct adapter_layout *layout, bool int8)
{
	const void *its = value_of(copy->object, "layout", layout->header->bytes);
	const uint32_t *form = value_of(copy->object, "form", sizeof(*form));
	uint64_t address, bytes;

	if (!its || memcmp(its, layout->header, layout->header->bytes) != 0)
		return "its layout differs from that of the files";
	if (!form || (*form != COLD_PLAIN && (*form != COLD_INT8 || !int8)))
		return "its form is invalid";
	copy_is(copy, layout, (enum cold_form) * form);
	copy->file.checksums = value_of(copy->object, "checksums", layout->header->pages * sizeof(uint64_t));
	if (!copy->file.checksums)
		return "it does not have one checksum for each page";
	copy->file.form_checksums = value_of(copy->object, "form_checksums", layout->header->pages * sizeof(uint64_t));
	if (gpool_object_address(copy->object, 0, &address, &bytes) || bytes < forms_bytes(copy))
		return "it has fewer pages than its layout needs";
	copy->forms = (uint8_t *)(uintptr_t)address;
	return NULL;
}

int warm_find(struct gpool *pool, const char *name, const struct adapter_layout *layout, bool int8, bool private,
	struct warm_copy *copy, struct reason *reason)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	const char *wrong;
	int error;

	*copy = (struct warm_copy){.object = NULL};
	error = gpool_object_open(pool, name, NULL, &copy->object);
	if (error) {
		copy->object = NULL;
		return error;
	}
	error = gpool_object_info(copy->object, &info);
	copy->version = info.version;
	if (!error)
		error = gpool_object_pin(copy->object);
	if (error) {
		gpool_object_close(copy->object);
		copy->object = NULL;
		/* The object was evicted, or its class cannot be pinned. */
		return error == -ESTALE    ? -ENOENT
			: error == -EINVAL ? refuse(reason, "object '%s' does not have the class PINNABLE", name)
					   : error;
	}
	wrong = private && strcmp(info.tenant, pool_tenant_name(pool)) != 0 ? "it belongs to another tenant"
									    : warm_look(copy, layout, int8);
	if (!wrong)
		return 0;
	warm_close(copy);
	return refuse(reason, "object '%s': %s", name, wrong);
}

void warm_close(struct warm_copy *copy)
{
	if (!copy->object)
		return;
	gpool_object_unpin(copy->object);
	gpool_object_close(copy->object);
	copy->object = NULL;
}

/* ---- create ---- */

int warm_begin(struct gpool *pool, const char *name, const struct adapter_layout *layout, enum cold_form form,
	bool private, uint64_t over, struct warm_copy *copy)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_alloc_options alloc = GPOOL_ALLOC_OPTIONS_INIT;
	uint64_t page_bytes = gpool_page_bytes(pool), address, bytes;
	uint32_t index;
	int error;

	*copy = (struct warm_copy){.object = NULL};
	copy_is(copy, layout, form);
	options.memory_class = GPOOL_OBJECT_PINNABLE;
	options.flags = OBJECT_CREATE_OWN | (private ? GPOOL_OBJECT_PRIVATE : 0);
	options.expect_version = over ? over : GPOOL_OBJECT_NONE;
	alloc.usage = GPOOL_USAGE_LORA_WEIGHT;
	error = gpool_object_create(pool, name, &options, &copy->object);
	if (error)
		return error;
	error = gpool_object_alloc(
		copy->object, (uint32_t)((forms_bytes(copy) + page_bytes - 1) / page_bytes), &alloc, &index);
	if (!error)
		error = gpool_object_address(copy->object, index, &address, &bytes);
	if (error)
		warm_abort(copy);
	else
		copy->forms = (uint8_t *)(uintptr_t)address;
	return error;
}

/* Set the checksums with which a form in int8 is checked before a GPU expands it. */
static int form_checksums_set(const struct warm_copy *copy)
{
	uint32_t pages = copy->file.layout.header->pages;
	uint64_t *checksums;
	int error;

	if (copy->header.form != COLD_INT8)
		return 0;
	checksums = calloc(pages, sizeof(*checksums));
	if (!checksums)
		return -ENOMEM;
	for (uint32_t page = 0; page < pages; page++)
		checksums[page] =
			checksum_of(warm_form(copy, page), cold_page_bytes(&copy->file.layout, COLD_INT8, page));
	error = gpool_object_set(copy->object, "form_checksums", checksums, pages * sizeof(*checksums));
	free(checksums);
	return error;
}

int warm_publish(struct warm_copy *copy, const char *label, const uint64_t *checksums, uint64_t *version)
{
	const struct adapter_layout_header *layout = copy->file.layout.header;
	int error = gpool_object_set(copy->object, "layout", layout, layout->bytes);

	if (!error)
		error = gpool_object_set(copy->object, "form", &copy->header.form, sizeof(copy->header.form));
	if (!error)
		error = gpool_object_set(copy->object, "checksums", checksums, layout->pages * sizeof(*checksums));
	if (!error)
		error = form_checksums_set(copy);
	if (!error)
		error = gpool_object_set(copy->object, "name", label, strlen(label));
	if (!error)
		error = gpool_object_publish(copy->object, version);
	if (error) {
		warm_abort(copy);
		return error;
	}
	gpool_object_close(copy->object);
	copy->object = NULL;
	return 0;
}

void warm_abort(struct warm_copy *copy)
{
	gpool_object_abort(copy->object);
	copy->object = NULL;
}
