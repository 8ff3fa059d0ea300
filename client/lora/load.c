/*
 * load.c - threads that bring adapters into the pool: by finding what another engine has published, or from the warmest copy that there is.
 *
 * The object's name is a hash of what it is made of: which files, for which type and page size, and the salt. Whoever finds it compares the
 * layout with the one that the files give. Of two who publish at once one is first, and the other opens that one's.
 */
#include "client/lora/job.h"

#include "client/lora/pack.h"
#include "client/lora/warm.h"
#include "client/object.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { TRIES = 8 }; /* each of them ends by somebody else's work, publishing or evicting */

/* ---- what another engine has published ---- */

static bool same_layout(const struct job *job, struct gpool_object *object)
{
	uint32_t bytes = job->layout.header->bytes;
	uint64_t address, length;
	const void *value;
	size_t value_bytes;

	return !gpool_object_get(object, "layout", &value, &value_bytes) && value_bytes == bytes && !memcmp(value, job->layout.header, bytes) &&
		!gpool_object_address(object, 0, &address, &length) && length == (uint64_t)job->layout.header->pages * job->layout.header->page_bytes;
}

/* Open, and pinned. -ENOENT: there is none (any more). */
static int object_find(struct job *job, struct gpool_object **object)
{
	int error = gpool_object_open(job->loader->lora->pool, job->key, NULL, object);

	if (error)
		return error;
	error = gpool_object_pin(*object);
	if (!error && !same_layout(job, *object)) {
		gpool_object_unpin(*object);
		error = refuse(job->reason, "object '%s': it is not what the files say; somebody has published something else by this name", job->key);
	}
	if (error)
		gpool_object_close(*object);
	return error == -ESTALE ? -ENOENT : error;
}

/* ---- pages ---- */

/* Images go to the device by the stage's pages in turn. */
struct sink {
	struct lora_loader *loader;
	uint64_t base;
	uint32_t page_bytes;
	struct gpool_fence fences[LORA_STAGE_PAGES];
	uint32_t count;
};

/* The buffer for the next image, when nothing is read from it any more; NULL: -EIO. */
static uint8_t *sink_buffer(struct sink *sink)
{
	struct gpool *pool = sink->loader->lora->pool;
	uint32_t turn = sink->count % LORA_STAGE_PAGES;

	if (sink->count >= LORA_STAGE_PAGES && gpool_fence_wait(pool, sink->fences[turn], -1))
		return NULL;
	return sink->loader->stage + (uint64_t)turn * sink->page_bytes;
}

/* What is in that buffer is page `page`. */
static int sink_put(struct sink *sink, uint32_t page)
{
	struct gpool *pool = sink->loader->lora->pool;
	uint32_t turn = sink->count % LORA_STAGE_PAGES;
	int error = gpool_copy(pool, sink->loader->stream, sink->base + (uint64_t)page * sink->page_bytes,
		(uintptr_t)sink->loader->stage + (uint64_t)turn * sink->page_bytes, sink->page_bytes);

	if (!error)
		error = gpool_fence_record(pool, sink->loader->stream, &sink->fences[turn]);
	sink->count += !error;
	return error;
}

/* Everything is there. */
static int sink_end(struct sink *sink)
{
	return sink->count ? gpool_fence_wait(sink->loader->lora->pool, sink->fences[(sink->count - 1) % LORA_STAGE_PAGES], -1) : 0;
}

/* ---- from PEFT's files ---- */

static int page_convert(struct job *job, const struct convert *convert, uint32_t page, struct sink *sink)
{
	uint8_t *image = sink_buffer(sink);
	int error = image ? convert_page(convert, page, image, job->reason) : -EIO;

	if (error)
		return error;
	job_page(job, page, image, job->entry->form == COLD_INT8 ? job->loader->room : NULL);
	return sink_put(sink, page);
}

static int pages_from_peft(struct job *job, struct sink *sink)
{
	struct convert convert;
	int error = convert_open(&job->peft, &job->layout, job->fds[1], &convert, job->reason);

	if (error)
		return error;
	error = job_form(job, &convert);
	if (!error)
		error = room_have(job->loader, sink->page_bytes, 0);
	for (uint32_t page = 0; page < job->layout.header->pages && !error; page++)
		error = page_convert(job, &convert, page, sink);
	convert_close(&convert);
	return error ? error : job_unchanged(job);
}

/* ---- from the kept file ---- */

static int group_load(struct job *job, const struct cold_file *file, uint32_t index, void *stored, void *room, struct sink *sink)
{
	const struct cold_group *group = &file->groups[index];
	const void *form;
	int error = cold_group_read(file, index, stored);

	if (!error)
		error = cold_group_expand(file, index, stored, room, &form, job->reason);
	for (uint32_t page = group->first_page; page < group->first_page + group->pages && !error; page++) {
		uint8_t *image = sink_buffer(sink);

		error = image ? cold_page_expand(file, page, form, image, job->reason) : -EIO;
		if (!error)
			error = sink_put(sink, page);
		form = (const char *)form + cold_page_bytes(&file->layout, (enum cold_form)file->header->form, page);
	}
	return error;
}

static int pages_from_cold(struct job *job, struct sink *sink)
{
	struct lora_loader *loader = job->loader;
	struct cold_file file;
	int error = job_cold(job, &file);

	if (error)
		return error;
	error = room_for_groups(loader, &file);
	for (uint32_t i = 0; i < file.header->groups && !error; i++)
		error = group_load(job, &file, i, loader->stored, loader->room, sink);
	job_cold_end(&file);
	return error;
}

/* ---- from a copy in host memory ---- */

static int pages_from_copy(struct job *job, const struct warm_copy *copy, struct sink *sink)
{
	int error = 0;

	for (uint32_t page = 0; page < job->layout.header->pages && !error; page++) {
		uint8_t *image = sink_buffer(sink);

		error = image ? cold_page_expand(&copy->file, page, warm_form(copy, page), image, job->reason) : -EIO;
		if (!error)
			error = sink_put(sink, page);
	}
	return error;
}

static int pages_from_warm(struct job *job, struct sink *sink)
{
	const struct gpool_lora *lora = job->loader->lora;
	struct warm_copy copy;
	int error = lora->warm ? warm_find(lora->warm, job->warm_name, &job->layout, lora->int8, &copy, job->reason) : -ENOENT;

	if (!error) {
		error = pages_from_copy(job, &copy, sink);
		warm_close(&copy);
	} else if (error != -EINVAL) {
		return -ENOENT; /* or nobody who could say whether there is */
	}
	if (error == -EINVAL)
		job->warm_refused = copy.version;
	return error;
}

/* ---- from what there is ---- */

static int (*const ways[LORA_FROM_COUNT])(struct job *job, struct sink *sink) = {
	[LORA_FROM_WARM] = pages_from_warm,
	[LORA_FROM_COLD] = pages_from_cold,
	[LORA_FROM_PEFT] = pages_from_peft,
};

/* A damaged copy is as good as none. */
static void refused_say(struct job *job, int error)
{
	struct gpool_lora *lora = job->loader->lora;

	pthread_mutex_lock(&lora->lock);
	lora->refused++;
	pthread_mutex_unlock(&lora->lock);
	job->cold_refused |= job->from == LORA_FROM_COLD;
	pool_log(lora->pool, POOL_LOG_ERROR, "adapter '%s': its copy '%s' is not taken: %s; it is loaded from elsewhere and copied anew", job->entry->name,
		job->from == LORA_FROM_COLD ? job->file_name : job->warm_name, job->reason->text[0] ? job->reason->text : gpool_strerror(error));
	job->reason->text[0] = '\0';
}

/* Each image overwrites its page whole, so that nothing is left of a copy that was refused halfway. */
static int pages_fill(struct job *job, uint64_t base)
{
	struct sink sink = { .loader = job->loader, .base = base, .page_bytes = job->layout.header->page_bytes };
	int error;

	job->from = LORA_FROM_WARM;
	while ((error = ways[job->from](job, &sink)) && job->from != LORA_FROM_PEFT && (error == -ENOENT || error == -EINVAL || error == -EIO)) {
		if (error != -ENOENT)
			refused_say(job, error);
		job->from++;
	}
	return error ? error : sink_end(&sink);
}

/* ---- publishing ---- */

/* Open, and pinned. -ESTALE: somebody else was first. */
static int object_make(struct job *job, struct gpool_object **object)
{
	struct gpool *pool = job->loader->lora->pool;
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_alloc_options alloc = GPOOL_ALLOC_OPTIONS_INIT;
	uint64_t base, bytes, version;
	uint32_t index;
	int error;

	options.memory_class = GPOOL_OBJECT_PINNABLE;
	options.flags = GPOOL_OBJECT_PINNED | (job->loader->lora->private ? GPOOL_OBJECT_PRIVATE : 0);
	options.expect_version = GPOOL_OBJECT_NONE;
	alloc.content = GPOOL_LORA_WEIGHT;
	alloc.owner_id = job->entry->id;
	error = gpool_object_create(pool, job->key, &options, object);
	if (error)
		return error;
	error = gpool_object_alloc(*object, job->layout.header->pages, &alloc, &index);
	if (!error)
		error = gpool_object_address(*object, index, &base, &bytes);
	if (!error)
		error = pages_fill(job, base);
	if (!error)
		error = gpool_object_set(*object, "layout", job->layout.header, job->layout.header->bytes);
	if (!error)
		error = gpool_object_set(*object, "name", job->entry->name, strlen(job->entry->name));
	if (!error)
		error = gpool_object_publish(*object, &version);
	if (error)
		gpool_object_abort(*object);
	return error;
}

static void shortage_say(struct job *job, int error)
{
	struct gpool_shortage shortage;

	if ((error != -ENOSPC && error != -EDQUOT) || job->reason->text[0])
		return;
	gpool_shortage(job->loader->lora->pool, &shortage);
	refuse(job->reason, "%s: it needs %u pages; %u are free, %u are pinned, most of them (%u) by session %u; release adapters, or give the %s more",
		error == -ENOSPC ? "pool" : "limit", job->layout.header->pages, shortage.free, shortage.pinned, shortage.holder_pages, shortage.holder,
		error == -ENOSPC ? "pool" : "tenant");
}

static int object_have(struct job *job, struct gpool_object **object, bool *shared)
{
	int error = -ENOENT;

	for (int i = 0; i < TRIES && (error == -ENOENT || error == -ESTALE); i++) {
		error = object_find(job, object);
		*shared = !error;
		if (error == -ENOENT)
			error = object_make(job, object);
	}
	if (error)
		*object = NULL;
	shortage_say(job, error);
	return error == -ESTALE || error == -ENOENT ? -EAGAIN : error;
}

/* ---- one adapter ---- */

/* Its entry is ours. On success the object is open and pinned. */
static int entry_load(struct job *job, bool *shared)
{
	struct lora_entry *entry = job->entry;
	struct gpool_lora *lora = job->loader->lora;
	uint64_t bytes;
	int error = job_open(job);

	if (!error)
		error = pack_make(&job->peft, job->layout.header->page_bytes, (enum adapter_element)job->layout.header->element, &entry->layout, job->reason);
	if (error)
		return error;
	error = object_have(job, &entry->object, shared);
	if (!error) {
		error = gpool_object_address(entry->object, 0, &entry->base, &bytes);
		if (!error)
			error = runs_make(lora, entry, job->loader->stream, job->loader->stage);
		if (!error)
			return 0;
		gpool_object_unpin(entry->object);
	}
	/* What is open is closed; nothing of ours is queued on it. */
	pthread_mutex_lock(&lora->lock);
	entry_close(lora, entry);
	pthread_mutex_unlock(&lora->lock);
	return error;
}

/* Under the lock. Who waits has it pinned; without anybody it may leave again. */
static void load_end(struct gpool_lora *lora, struct lora_entry *entry, int error, bool shared, enum lora_from from)
{
	entry->error = error;
	entry->state = error ? GPOOL_LORA_COLD : GPOOL_LORA_HERE;
	if (!error) {
		entry->placed = ++lora->placings;
		if (shared)
			entry->counts.shared++;
		else
			entry->counts.from[from]++;
		entry->held = entry->waiting > 0;
		if (!entry->held)
			gpool_object_unpin(entry->object);
	}
	pthread_cond_broadcast(&lora->loaded);
}

static void *loader_run(void *argument)
{
	struct lora_loader *loader = argument;
	struct gpool_lora *lora = loader->lora;
	struct lora_entry *entry;

	pthread_mutex_lock(&lora->lock);
	for (;;) {
		struct reason reason = { "" };
		struct job job = { .loader = loader, .reason = &reason, .fds = { -1, -1 } };
		struct lora_entry kept;
		bool shared = false;
		int error;

		while (!(entry = TAILQ_FIRST(&lora->queue)) && !lora->ending)
			pthread_cond_wait(&lora->queued, &lora->lock);
		if (lora->ending)
			break;
		TAILQ_REMOVE(&lora->queue, entry, link);
		pthread_mutex_unlock(&lora->lock);
		job.entry = entry;
		error = entry_load(&job, &shared);
		pthread_mutex_lock(&lora->lock);
		entry->reason = reason;
		/* From here on it may be unregistered: what is still to be told of it is told of a copy. */
		kept = *entry;
		kept.folder = NULL;
		load_end(lora, entry, error, shared, job.from);
		pthread_mutex_unlock(&lora->lock);
		job.entry = &kept;
		if (!error && !shared)
			copies_make(&job);
		job_close(&job);
		pthread_mutex_lock(&lora->lock);
	}
	pthread_mutex_unlock(&lora->lock);
	return NULL;
}

/* ---- threads ---- */

static int loader_open(struct lora_loader *loader)
{
	struct gpool *pool = loader->lora->pool;
	uint64_t bytes = LORA_STAGE_PAGES * pool->page_bytes;
	void *stage = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int error;

	if (stage == MAP_FAILED)
		return -ENOMEM;
	error = gpu_host_register(pool->gpu, stage, bytes);
	if (error)
		goto unmap;
	error = gpool_stream_open(pool, NULL, 0, &loader->stream);
	if (error)
		goto unregister;
	loader->stage = stage;
	error = -pthread_create(&loader->thread, NULL, loader_run, loader);
	if (!error)
		return 0;
	gpool_stream_close(pool, loader->stream);
unregister:
	gpu_host_unregister(pool->gpu, stage);
unmap:
	munmap(stage, bytes);
	return error;
}

int loaders_start(struct gpool_lora *lora, uint32_t count)
{
	int error = 0;

	lora->loaders = calloc(count, sizeof(*lora->loaders));
	if (!lora->loaders)
		return -ENOMEM;
	while (lora->loader_count < count && !error) {
		lora->loaders[lora->loader_count].lora = lora;
		error = loader_open(&lora->loaders[lora->loader_count]);
		lora->loader_count += !error;
	}
	return error;
}

void loaders_end(struct gpool_lora *lora)
{
	struct gpool *pool = lora->pool;
	struct lora_entry *entry;

	pthread_mutex_lock(&lora->lock);
	lora->ending = true;
	pthread_cond_broadcast(&lora->queued);
	pthread_mutex_unlock(&lora->lock);
	for (uint32_t i = 0; i < lora->loader_count; i++) {
		pthread_join(lora->loaders[i].thread, NULL);
		gpool_stream_close(pool, lora->loaders[i].stream);
		gpu_host_unregister(pool->gpu, lora->loaders[i].stage);
		munmap(lora->loaders[i].stage, LORA_STAGE_PAGES * pool->page_bytes);
		free(lora->loaders[i].stored);
		free(lora->loaders[i].room);
	}
	free(lora->loaders);
	lora->loaders = NULL;
	lora->loader_count = 0;
	while ((entry = TAILQ_FIRST(&lora->queue))) {
		TAILQ_REMOVE(&lora->queue, entry, link);
		entry->state = GPOOL_LORA_COLD;
	}
}
