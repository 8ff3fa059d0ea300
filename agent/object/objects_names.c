/* objects_names.c - which names of objects a session may publish by. */
#include "agent/object/objects.h"

#include <string.h>

/* What libgpool names so, and what its other calls then take for their own. */
static const char *const prefixes[] = {"lora/", "warm/", "kv-prefix/", "kv/"};

static const char *reserved_rest(const char *name)
{
	for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++)
		if (!strncmp(name, prefixes[i], strlen(prefixes[i])))
			return name + strlen(prefixes[i]);
	return NULL;
}

/*
 * That a request comes from libgpool cannot be verified: the flag keeps programs from publishing by such a name in
 * error. What is verified is the tenant that a private name ends with (client/lora/format/adapter.c), so that no other
 * tenant can publish by it first.
 */
const char *object_name_refusal(const struct session *session, const char *name, bool of_library)
{
	const char *rest = reserved_rest(name), *tenant = rest ? strchr(rest, '@') : NULL;

	if (!name[0])
		return "an object has a name";
	if (rest && !of_library)
		return "names that begin with lora/, warm/, kv-prefix/ or kv/ are the library's own";
	if (tenant && strcmp(tenant + 1, session->tenant->config->name) != 0)
		return "the name ends with another tenant";
	return NULL;
}
