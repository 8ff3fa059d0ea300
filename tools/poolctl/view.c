/* view.c - names and lists of the tables that poolctl shows. */
#include "tools/poolctl/view.h"

#include "client/gpool.h"

#include <stdio.h>
#include <stdlib.h>

const char *content_name(uint32_t content)
{
	static const char *const names[GPOOL_CONTENTS] = {
		[GPOOL_KV_CACHE] = "KV_CACHE",
		[GPOOL_LORA_WEIGHT] = "LORA_WEIGHT",
		[GPOOL_TEMP_BUFFER] = "TEMP_BUFFER",
		[GPOOL_ACTIVATION] = "ACTIVATION",
		[GPOOL_GRADIENT] = "GRADIENT",
	};

	return content < GPOOL_CONTENTS ? names[content] : "?";
}

const char *role_name(uint32_t role)
{
	static const char *const names[] = { "worker", "observer", "admin" };

	return role < sizeof(names) / sizeof(names[0]) ? names[role] : "?";
}

void pins_add(struct pins_view *view, const char *pool, uint64_t page_bytes, const struct msg_pin_entry *pin)
{
	struct pin_view *to;

	view->pins = list_grow(view->pins, view->count, &view->capacity, sizeof(*view->pins));
	to = &view->pins[view->count++];
	snprintf(to->pool, sizeof(to->pool), "%s", pool);
	to->page_bytes = page_bytes;
	to->pin = *pin;
}

void *list_grow(void *list, uint32_t count, uint32_t *capacity, size_t item)
{
	if (count < *capacity)
		return list;
	*capacity = *capacity ? *capacity * 2 : 64;
	return memory_or_exit(realloc(list, *capacity * item));
}
