/*
 * objects_names.c - determine the names under which a session may publish objects, and the adapters that it may use.
 */
#include "agent/object/objects.h"

#include "shm/object_names.h"

#include <fnmatch.h>
#include <string.h>

/* The names of some adapters end with @ and the tenants that may use them, separated by commas. */
bool object_name_lists(const struct session *session, const char *name)
{
	const char *rest = object_name_reserved(name), *tenant = rest ? strchr(rest, '@') : NULL,
		   *own = session->tenant->config->name;

	if (!tenant)
		return true;
	for (tenant++;; tenant++) {
		size_t length = strcspn(tenant, ",");

		if (length == strlen(own) && !memcmp(tenant, own, length))
			return true;
		tenant += length;
		if (!*tenant)
			return false;
	}
}

bool object_adapter_allowed(const struct session *session, const char *name, const char *adapter)
{
	char patterns[sizeof(session->tenant->config->adapters)], *rest = patterns, *pattern;

	if (strncmp(name, LORA_PREFIX, strlen(LORA_PREFIX)) != 0 &&
		strncmp(name, LORA_WARM_PREFIX, strlen(LORA_WARM_PREFIX)) != 0)
		return true;
	strcpy(patterns, session->tenant->config->adapters);
	while ((pattern = strsep(&rest, " ")))
		if (*pattern && !fnmatch(pattern, adapter ? adapter : "", 0))
			return true;
	return false;
}

/*
 * The agent cannot verify that libgpool made a request. The flag only prevents programs from using such a name by
 * mistake. The agent verifies the tenants at the end of a name (client/lora/format/adapter.c), so that no other tenant
 * can publish under that name first.
 */
const char *object_name_refusal(const struct session *session, const char *name, bool of_library)
{
	const char *rest = object_name_reserved(name);

	if (!name[0])
		return "the name is empty";
	if (rest && !of_library)
		return "names that begin with " NAMES_RESERVED " are reserved for the library";
	if (!object_name_lists(session, name))
		return "the name ends with other tenants";
	return NULL;
}
