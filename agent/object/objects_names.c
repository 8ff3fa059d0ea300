/*
 * objects_names.c - the names under which a session may publish objects.
 */
#include "agent/object/objects.h"

#include <string.h>

/* Prefixes of libgpool's own objects, which its other calls rely on. */
static const char *const prefixes[] = {"lora/", "warm/", "kv-prefix/", "kv/"};

static const char *reserved_rest(const char *name)
{
	for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++)
		if (!strncmp(name, prefixes[i], strlen(prefixes[i])))
			return name + strlen(prefixes[i]);
	return NULL;
}

/*
 * The agent cannot verify that a request comes from libgpool: the flag only prevents programs from using such a name by
 * mistake. It verifies the tenant that a private name ends with (client/lora/format/adapter.c), so that no other tenant
 * can publish under that name first.
 */
const char *object_name_refusal(const struct session *session, const char *name, bool of_library)
{
	const char *rest = reserved_rest(name), *tenant = rest ? strchr(rest, '@') : NULL;

	if (!name[0])
		return "the name is empty";
	if (rest && !of_library)
		return "names that begin with lora/, warm/, kv-prefix/ or kv/ are the library's own";
	if (tenant && strcmp(tenant + 1, session->tenant->config->name) != 0)
		return "the name ends with another tenant";
	return NULL;
}
