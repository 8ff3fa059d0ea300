/* vpmm_options.c - options and environment of the stream-ordered allocator. See vpmm.h. */
#include "client/vm/vpmm.h"
#include "shm/plural.h"

#include "client/core/last_error.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t address_bytes_default = UINT64_C(8) << 40;

enum {
	TRACE_MAX = 3,
	SLACK_DEFAULT = 20, /* percent; measured: sizes up to 256 MiB then need no remapping (docs/internals/vm.md) */
};

/* ---- environment ---- */

/* Parse a number with a suffix. Return: 0, -EINVAL. */
static int size_parse(const char *text, uint64_t *bytes)
{
	static const char units[] = "KMGT";
	unsigned long long number;
	const char *unit;
	int shift = 0;
	char *end;

	errno = 0;
	number = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || errno)
		return -EINVAL;
	unit = *end ? strchr(units, *end) : NULL;
	if (unit) {
		shift = (int)(unit - units + 1) * 10;
		end += end[1] == 'i' ? 2 : 1;
		if (end[-1] == 'i' && *end != 'B')
			return -EINVAL;
	}
	if (*end == 'B')
		end++;
	if (*end || number > UINT64_MAX >> shift)
		return -EINVAL;
	*bytes = (uint64_t)number << shift;
	return 0;
}

/* Read a value from the environment if the options do not set it. */
static int size_from(struct vpmm *vpmm, const char *name, uint64_t *value)
{
	const char *text = *value ? NULL : secure_getenv(name);

	if (!text || !*text)
		return 0;
	if (!size_parse(text, value))
		return 0;
	pool_log(vpmm->pool, POOL_LOG_ERROR, "%s is '%s', which is not a size, such as 2097152, 2MB or 16GiB", name,
		text);
	return fail(-EINVAL, "%s is '%s', which is not a size, such as 2097152, 2MB or 16GiB", name, text);
}

/* Read the slack from the environment if the options do not set it. */
static int slack_from(struct vpmm *vpmm, int32_t *percent)
{
	const char *text = *percent ? NULL : secure_getenv("GPOOL_VM_SLACK");
	unsigned long number;
	char *end;

	if (*percent < 0)
		*percent = 0;
	else if (!*percent)
		*percent = SLACK_DEFAULT;
	if (!text || !*text)
		return 0;
	errno = 0;
	number = strtoul(text, &end, 10);
	if (*text >= '0' && *text <= '9' && !*end && !errno && number <= GPOOL_VM_SLACK_MAX) {
		*percent = (int32_t)number;
		return 0;
	}
	pool_log(vpmm->pool, POOL_LOG_ERROR, "GPOOL_VM_SLACK is '%s', which is not a number of percent from 0 to %d",
		text, GPOOL_VM_SLACK_MAX);
	return fail(-EINVAL, "GPOOL_VM_SLACK is '%s', which is not a number of percent from 0 to %d", text,
		GPOOL_VM_SLACK_MAX);
}

/* Read $GPOOL_VM_PAGES, a number of pages or a share of the pool, if the options do not set the initial memory. */
static int initial_from(struct vpmm *vpmm, struct gpool_vm_options *options, uint64_t *pages)
{
	const char *text = options->initial_bytes || options->initial_percent ? NULL : secure_getenv("GPOOL_VM_PAGES");
	size_t length = text ? strlen(text) : 0;
	unsigned long percent;
	char *end;

	*pages = 0;
	if (!length)
		return 0;
	if (text[length - 1] != '%')
		return size_from(vpmm, "GPOOL_VM_PAGES", pages);
	percent = strtoul(text, &end, 10);
	if (*text >= '0' && *text <= '9' && end == text + length - 1 && percent <= 100) {
		options->initial_percent = (uint32_t)percent;
		return 0;
	}
	pool_log(vpmm->pool, POOL_LOG_ERROR, "GPOOL_VM_PAGES is '%s', which is not a share from 0%% to 100%%", text);
	return fail(-EINVAL, "GPOOL_VM_PAGES is '%s', which is not a share from 0%% to 100%%", text);
}

/* ---- options ---- */

static int options_check(const struct gpool *pool, const struct gpool_vm_options *options)
{
	uint64_t handle_bytes = pool->page_bytes * handle_pages(pool);

	if (options->flags)
		return fail(-EINVAL, "flags are 0x%x; they must be 0", options->flags);
	if (options->small > GPOOL_VM_SMALL_PAGES)
		return fail(-EINVAL, "small is %u; the maximum is %d", options->small, GPOOL_VM_SMALL_PAGES);
	if (options->usage >= GPOOL_USAGE_COUNT)
		return fail(-EINVAL, "usage is %u; the maximum is %d", options->usage, GPOOL_USAGE_COUNT - 1);
	if (options->timeout_ms < -1)
		return fail_timeout(options->timeout_ms);
	if (options->trace > TRACE_MAX)
		return fail(-EINVAL, "trace is %u; the maximum is %d", options->trace, TRACE_MAX);
	if (options->idle_ms < -1)
		return fail(-EINVAL, "idle_ms is %d; the minimum is -1 (never)", options->idle_ms);
	if (options->initial_percent > 100 || options->reserved)
		return fail(-EINVAL, "initial_percent is %u, the maximum is 100; reserved is %u, it must be 0",
			options->initial_percent, options->reserved);
	if (options->initial_percent && options->initial_bytes)
		return fail(-EINVAL, "initial_bytes and initial_percent are both set");
	if (options->slack_percent < -1 || options->slack_percent > GPOOL_VM_SLACK_MAX)
		return fail(-EINVAL, "slack_percent is %d; it must be from -1 (none) to %d", options->slack_percent,
			GPOOL_VM_SLACK_MAX);
	return options->page_bytes % handle_bytes
		? fail(-EINVAL, "page_bytes is %llu; it must be a multiple of %llu, a handle of the pool",
			  (unsigned long long)options->page_bytes, (unsigned long long)handle_bytes)
		: 0;
}

int gpool_vm_configure(struct gpool *pool, const struct gpool_vm_options *options)
{
	struct gpool_vm_options read;
	struct vpmm *vpmm;
	char *path = NULL;
	int error;

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	vpmm = pool->vpmm;
	error = options_read(&read, sizeof(read), options);
	if (!error)
		error = options_check(pool, &read);
	if (error)
		return error;
	if (read.record_path) {
		path = strdup(read.record_path);
		if (!path)
			return -ENOMEM;
		read.record_path = path;
	}
	pthread_mutex_lock(&vpmm->start_lock);
	if (atomic_load_explicit(&vpmm->started, memory_order_relaxed)) {
		error = fail(-EALREADY, "the allocator has started: configure it before its first allocation");
	} else {
		free(vpmm->record_path);
		vpmm->record_path = path;
		vpmm->configured = read;
		path = NULL;
	}
	pthread_mutex_unlock(&vpmm->start_lock);
	free(path);
	return error;
}

int vpmm_options_read(struct vpmm *vpmm)
{
	struct gpool_vm_options *options = &vpmm->options;
	uint64_t handle_bytes = vpmm->pool->page_bytes * handle_pages(vpmm->pool), pages = 0, trace;
	uint64_t pool_bytes = vpmm->pool->page_count * vpmm->pool->page_bytes;
	int error;

	*options = vpmm->configured;
	trace = options->trace;
	error = size_from(vpmm, "GPOOL_VM_PAGE_SIZE", &options->page_bytes);
	if (!error)
		error = size_from(vpmm, "GPOOL_VM_VA_SIZE", &options->address_bytes);
	if (!error)
		error = initial_from(vpmm, options, &pages);
	if (!error)
		error = size_from(vpmm, "GPOOL_VM_TRACE", &trace);
	if (!error)
		error = slack_from(vpmm, &options->slack_percent);
	if (error)
		return error;
	options->trace = trace < TRACE_MAX ? (uint32_t)trace : TRACE_MAX;
	if (!options->record_path)
		options->record_path = secure_getenv("GPOOL_VM_RECORD");
	if (options->record_path && !*options->record_path)
		options->record_path = NULL;
	if (!options->page_bytes)
		options->page_bytes = handle_bytes;
	if (options->page_bytes % handle_bytes) {
		pool_log(vpmm->pool, POOL_LOG_ERROR, "a page cannot have %llu byte%s: handles of pool '%s' have %llu",
			(unsigned long long)options->page_bytes, plural(options->page_bytes), vpmm->pool->header->name,
			(unsigned long long)handle_bytes);
		return fail(-EINVAL, "page_bytes is %llu; it must be a multiple of %llu, a handle of the pool",
			(unsigned long long)options->page_bytes, (unsigned long long)handle_bytes);
	}
	vpmm->off = options->page_bytes > pool_bytes;
	if (vpmm->off)
		pool_log(vpmm->pool, POOL_LOG_INFO,
			"a VPMM page of %llu bytes is larger than pool '%s': all allocations are small",
			(unsigned long long)options->page_bytes, vpmm->pool->header->name);
	else if (pages > vpmm->pool->page_count)
		return fail(-ENOSPC, "GPOOL_VM_PAGES is %llu; this pool has %u page%s", (unsigned long long)pages,
			vpmm->pool->page_count, plural(vpmm->pool->page_count));
	vpmm->page_bytes = vpmm->off ? handle_bytes : options->page_bytes;
	if (vpmm->off)
		options->initial_bytes = 0;
	else if (pages)
		options->initial_bytes = pages * options->page_bytes;
	else if (options->initial_percent)
		options->initial_bytes =
			pool_bytes / vpmm->page_bytes * options->initial_percent / 100 * vpmm->page_bytes;
	vpmm->page_slots = (uint32_t)(vpmm->page_bytes / handle_bytes);
	vpmm->address_fixed = options->address_bytes != 0;
	vpmm->address_bytes = options->address_bytes ? options->address_bytes : address_bytes_default;
	/* Round down to whole pages, so that a reservation begins and ends at a page. */
	vpmm->address_bytes = vpmm->address_bytes / vpmm->page_bytes * vpmm->page_bytes;
	if (!vpmm->address_bytes)
		vpmm->address_bytes = vpmm->page_bytes;
	vpmm->take = (struct vm_take_options){.usage = options->usage};
	return 0;
}
