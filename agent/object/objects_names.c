/*
 * objects_names.c - determine the names under which a session may publish objects.
 */
#include "agent/object/objects.h"

#include <string.h>

/* Prefixes of libgpool's own objects, on which other functions of libgpool rely. */
static const char *const prefixes[] = {"lora/", "warm/", "kv-prefix/", "kv/"};

static const char *reserved_rest(const char *name)
{
	for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++)
		if (!strncmp(name, prefixes[i], strlen(prefixes[i])))
			return name + strlen(prefixes[i]);
	return NULL;
}

/*
 * The agent cannot verify that libgpool made a request. The flag only prevents programs from using such a name by
 * mistake. The agent verifies the tenant at the end of a private name (client/lora/format/adapter.c), so that no other
 * tenant can publish under that name first.
 */
const char *object_name_refusal(const struct session *session, const char *name, bool of_library)
{
	const char *rest = reserved_rest(name), *tenant = rest ? strchr(rest, '@') : NULL;

	if (!name[0])
		return "the name is empty";
	if (rest && !of_library)
		return "names that begin with lora/, warm/, kv-prefix/ or kv/ are reserved for the library";
	if (tenant && strcmp(tenant + 1, session->tenant->config->name) != 0)
		return "the name ends with another tenant";
	return NULL;
}
