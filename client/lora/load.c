/*
 * load.c - threads that bring adapters into the pool: by finding what another engine has published, or from files.
 *
 * The object's name is a hash of what it is made of: which files, for which type and page size, and the salt. Whoever finds it compares the
 * layout with the one that the files give. Of two who publish at once one is first, and the other opens that one's.
 */
#include "client/lora/lora.h"

#include "client/lora/pack.h"
#include "client/object.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { TRIES = 8 }; /* each of them ends by somebody else's work, publishing or evicting */

/* All that is known of an adapter while it is loaded. */
struct job {
	struct lora_loader *loader;
	struct lora_entry *entry;
	struct reason *reason;
	int fds[2];
	struct peft peft;
	struct adapter_layout layout;
	char key[LORA_KEY_BYTES], file_name[LORA_KEY_BYTES + 8];
	bool is_cold; /* it was read from the folder of converted ones */
};

/* ---- the job's files ---- */

static enum adapter_element element_of(const struct gpool_lora *lora, const struct peft *peft)
{
	return lora->element == GPOOL_LORA_AS_FILE ? pack_element(peft) : lora->element == GPOOL_LORA_F16 ? ADAPTER_F16 : ADAPTER_BF16;
}

static void key_make(struct job *job)
{
	const struct gpool_lora *lora = job->loader->lora;
	struct {
		struct cold_source source;
		uint64_t element, page_bytes, int8, salt[2];
		char tenant[POOL_NAME_BYTES]; /* where only its engines share */
	} identity;
	XXH128_hash_t hash;

	memset(&identity, 0, sizeof(identity));
	identity.source = job->entry->source;
	identity.element = job->layout.header->element;
	identity.page_bytes = job->layout.header->page_bytes;
	identity.int8 = lora->int8;
	memcpy(identity.salt, lora->salt, sizeof(identity.salt));
	if (lora->private)
		memcpy(identity.tenant, lora->pool->segment.sessions[lora->pool->id].tenant, sizeof(identity.tenant));
	hash = XXH3_128bits(&identity, sizeof(identity));
	snprintf(job->key, sizeof(job->key), "lora/%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
	snprintf(job->file_name, sizeof(job->file_name), "%s.cold", job->key + strlen("lora/"));
}

static int job_open(struct job *job)
{
	const struct gpool_lora *lora = job->loader->lora;
	struct cold_source source;
	int error = files_open(job->entry->folder, job->fds, job->reason);

	if (error)
		return error;
	error = cold_source_of(job->fds[0], job->fds[1], &source);
	if (!error && memcmp(&source, &job->entry->source, sizeof(source)) != 0)
		error = refuse(job->reason, "folder: its files are not those that were registered; register it again");
	if (!error)
		error = peft_read(job->fds[0], job->fds[1], &job->peft, job->reason);
	if (!error)
		error = pack_make(&job->peft, (uint32_t)lora->pool->page_bytes, element_of(lora, &job->peft), &job->layout, job->reason);
	if (!error)
		key_make(job);
	return error;
}

static void job_close(struct job *job)
{
	pack_free(&job->layout);
	peft_free(&job->peft);
	if (job->fds[0] >= 0)
		files_close(job->fds);
}

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

static int pages_convert(struct job *job, struct sink *sink)
{
	struct convert convert;
	int error = convert_open(&job->peft, &job->layout, job->fds[1], &convert, job->reason);

	if (error)
		return error;
	for (uint32_t page = 0; page < job->layout.header->pages && !error; page++) {
		uint8_t *image = sink_buffer(sink);

		error = image ? convert_page(&convert, page, image, job->reason) : -EIO;
		if (!error)
			error = sink_put(sink, page);
	}
	convert_close(&convert);
	return error;
}

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

/* How much room the largest group takes, as it stands there and uncompressed. */
static void group_room(const struct cold_file *file, uint64_t *stored, uint64_t *room)
{
	*stored = *room = 0;
	for (uint32_t i = 0; i < file->header->groups; i++) {
		const struct cold_group *group = &file->groups[i];
		uint64_t bytes = cold_pages_bytes(&file->layout, (enum cold_form)file->header->form, group->first_page, group->pages);

		*stored = cold_align(group->bytes) > *stored ? cold_align(group->bytes) : *stored;
		*room = bytes > *room ? bytes : *room;
	}
}

/* At least so much memory there, with nothing in it. */
static int memory_have(void **memory, uint64_t *bytes, uint64_t wanted)
{
	if (*bytes >= wanted)
		return 0;
	free(*memory);
	*memory = NULL;
	*bytes = 0;
	if (posix_memalign(memory, COLD_ALIGN, wanted))
		return -ENOMEM;
	*bytes = wanted;
	return 0;
}

static int groups_load(struct job *job, const struct cold_file *file, struct sink *sink)
{
	struct lora_loader *loader = job->loader;
	uint64_t stored_bytes, room_bytes;
	int error;

	group_room(file, &stored_bytes, &room_bytes);
	error = memory_have(&loader->stored, &loader->stored_bytes, stored_bytes);
	if (!error)
		error = memory_have(&loader->room, &loader->room_bytes, room_bytes);
	for (uint32_t i = 0; i < file->header->groups && !error; i++)
		error = group_load(job, file, i, loader->stored, loader->room, sink);
	return error;
}

/* From the folder of converted ones. -ENOENT: it is not there, or is of something else. */
static int pages_from_cold(struct job *job, struct sink *sink)
{
	const struct gpool_lora *lora = job->loader->lora;
	struct cold_file file;
	int fd = lora->cold_fd < 0 ? -1 : openat(lora->cold_fd, job->file_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW), error;

	if (fd < 0)
		return -ENOENT;
	error = cold_open(fd, &file, job->reason);
	if (!error) {
		if (!cold_is_of(&file, &job->entry->source) || file.layout.header->bytes != job->layout.header->bytes ||
			memcmp(file.layout.header, job->layout.header, job->layout.header->bytes))
			error = -ENOENT;
		else
			error = groups_load(job, &file, sink);
		cold_close(&file);
	}
	close(fd);
	return error;
}

/* One writer at a time in a folder. wait: for another one; else it is left to the next load. 0, -EAGAIN, or what cold_write() says. */
static int cold_keep(struct job *job, bool wait)
{
	const struct gpool_lora *lora = job->loader->lora;
	int folder = openat(lora->cold_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), error;
	struct convert convert;

	if (folder < 0)
		return -errno;
	error = flock(folder, wait ? LOCK_EX : LOCK_EX | LOCK_NB) ? -EAGAIN : convert_open(&job->peft, &job->layout, job->fds[1], &convert, job->reason);
	if (!error) {
		error = cold_write(&convert, &job->entry->source, folder, job->file_name, lora->int8, NULL, job->reason);
		convert_close(&convert);
	}
	close(folder);
	return error;
}

/* After a load, when nobody waits for it any more. */
static void cold_keep_later(struct job *job)
{
	int error;

	if (job->loader->lora->cold_fd < 0 || job->is_cold)
		return;
	job->reason->text[0] = '\0';
	error = cold_keep(job, false);
	if (error && error != -EAGAIN)
		pool_log(job->loader->lora->pool, POOL_LOG_ERROR, "adapter '%s' is not kept: %s", job->entry->name,
			job->reason->text[0] ? job->reason->text : gpool_strerror(error));
}

/* From PEFT's files; or, where pages shall be as they are kept, by way of the folder. */
static int pages_anew(struct job *job, struct sink *sink)
{
	int error;

	if (!job->loader->lora->int8)
		return pages_convert(job, sink);
	error = cold_keep(job, true);
	/* A full disk is no full pool. */
	if (error == -ENOSPC || error == -EDQUOT)
		return -EIO;
	job->is_cold = true;
	return error ? error : pages_from_cold(job, sink);
}

/* A damaged file is as good as none: it is made anew. */
static int pages_fill(struct job *job, uint64_t base)
{
	struct sink sink = { .loader = job->loader, .base = base, .page_bytes = job->layout.header->page_bytes };
	int error = pages_from_cold(job, &sink);

	job->is_cold = !error;
	if (error == -EINVAL)
		pool_log(job->loader->lora->pool, POOL_LOG_ERROR, "adapter '%s': %s: %s; it is read from '%s' and kept anew", job->entry->name,
			job->file_name, job->reason->text, job->entry->folder);
	if (error == -EINVAL || error == -ENOENT || error == -EIO) {
		job->reason->text[0] = '\0';
		error = pages_anew(job, &sink);
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
static void load_end(struct gpool_lora *lora, struct lora_entry *entry, int error, bool shared)
{
	entry->error = error;
	entry->state = error ? GPOOL_LORA_COLD : GPOOL_LORA_HERE;
	if (!error) {
		entry->placed = ++lora->placings;
		entry->loads += !shared;
		entry->shared += shared;
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
		load_end(lora, entry, error, shared);
		pthread_mutex_unlock(&lora->lock);
		job.entry = &kept;
		if (!error && !shared)
			cold_keep_later(&job);
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
