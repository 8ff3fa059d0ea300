/* cold_file_write.c - write a cold file: first its groups, then its head. */
#include "client/lora/format/cold_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>
#include <zstd.h>

#include "client/lora/format/file_at.h"
#include "client/lora/format/int8_form.h"
#include "client/lora/format/peft_config.h"
#include "shm/checksum.h"

enum {
	LEVEL = 3, /* zstd's default; higher levels hardly compress weights better */
	/*
	 * Compression must save at least a third. Chosen: a core decompresses 1 to 2 GB/s, which is the speed of a
	 * disk, so a smaller gain costs more time than it saves. Weights in bf16 shrink by only a quarter; compressed,
	 * they took three times as long to load.
	 */
	GAIN_MIN = 3,
};

/* ---- the source ---- */

typedef XXH_errorcode hash_update(XXH3_state_t *state, const void *bytes, size_t length);

static int hash_bytes(int fd, uint64_t offset, uint64_t length, hash_update *update, XXH3_state_t *state)
{
	char bytes[16384];
	int error = 0;

	while (length && !error) {
		uint64_t some = length < sizeof(bytes) ? length : sizeof(bytes);

		error = file_read_at(fd, bytes, some, offset);
		if (!error)
			update(state, bytes, some);
		offset += some;
		length -= some;
	}
	return error;
}

static void source_of_file(const struct stat *status, struct cold_source *source)
{
	source->bytes = (uint64_t)status->st_size;
	source->inode = status->st_ino;
	source->mtime_ns = status->st_mtim.tv_sec * INT64_C(1000000000) + status->st_mtim.tv_nsec;
}

/* Identify weights that no process can change, by their content. */
static int source_of_content(int fd, XXH3_state_t *state, struct cold_source *source)
{
	XXH128_hash_t hash;
	int error;

	XXH3_128bits_reset(state);
	error = hash_bytes(fd, 0, source->bytes, XXH3_128bits_update, state);
	hash = XXH3_128bits_digest(state);
	source->inode = hash.low64;
	source->mtime_ns = (int64_t)hash.high64;
	return error;
}

/* Get the sizes of the data whose hash identifies the source, without interpreting the data. */
static int sizes_of(
	int config_fd, int weights_fd, uint64_t *config_bytes, uint64_t *header_bytes, struct reason *reason)
{
	uint64_t file_bytes;
	int error = peft_config_size(config_fd, config_bytes, reason);

	if (error)
		return error;
	error = safetensors_header(weights_fd, header_bytes, &file_bytes, reason);
	if (error)
		refuse_in(reason, PEFT_WEIGHTS_NAME);
	return error;
}

int cold_source_of(int config_fd, int weights_fd, struct cold_source *source, struct reason *reason)
{
	struct cold_source made = {0};
	uint64_t config_bytes, header_bytes;
	struct stat weights;
	XXH3_state_t *state;
	int error = sizes_of(config_fd, weights_fd, &config_bytes, &header_bytes, reason);

	if (error)
		return error;
	state = XXH3_createState();
	if (!state)
		return -ENOMEM;
	XXH3_64bits_reset(state);
	error = fstat(weights_fd, &weights) ? -EIO : hash_bytes(config_fd, 0, config_bytes, XXH3_64bits_update, state);
	if (!error)
		error = hash_bytes(weights_fd, 8, header_bytes, XXH3_64bits_update, state);
	if (!error) {
		source_of_file(&weights, &made);
		made.headers = XXH3_64bits_digest(state);
		if (file_is_sealed(weights_fd))
			error = source_of_content(weights_fd, state, &made);
	}
	if (!error) {
		*source = made;
	} else {
		refuse(reason, "cannot read the files of the adapter: a disk failed, or the files are being changed");
	}
	XXH3_freeState(state);
	return error;
}

/* Check that the weights have not changed since the source was identified. */
static int source_check(const struct convert *convert, const struct cold_source *source, struct reason *reason)
{
	struct cold_source now = *source;
	struct stat status;

	if (file_is_sealed(convert->fd))
		return 0;
	if (fstat(convert->fd, &status))
		return -EIO;
	source_of_file(&status, &now);
	return memcmp(&now, source, sizeof(now)) ? refuse(reason, "weights: the file was changed while it was read")
						 : 0;
}

/* ---- groups ---- */

struct writer {
	const struct convert *convert;
	const struct adapter_layout *layout;
	int fd;
	bool compress;
	struct cold_header *head; /* the complete head */
	struct cold_group *groups;
	uint64_t *checksums;
	uint8_t *image, *pages, *packed; /* a page; a group with the zeros after it; a compressed group */
	uint64_t pages_room, packed_room;
};

/* Return the number of pages of the group that begins with `page`: those of the next layer, up to the limit. */
static uint32_t group_pages(const struct adapter_layout *layout, uint32_t page)
{
	uint32_t most = COLD_GROUP_IMAGE_MAX / layout->header->page_bytes, layer = 0;

	while (layout->layers[layer].pages <= page)
		layer++;
	return layout->layers[layer].pages - page < most ? layout->layers[layer].pages - page : most;
}

static uint32_t groups_count(const struct adapter_layout *layout)
{
	uint32_t count = 0;

	for (uint32_t page = 0; page < layout->header->pages; page += group_pages(layout, page))
		count++;
	return count;
}

/* Make the form of a page, and the checksum of its expanded image. */
static int page_make(struct writer *writer, uint32_t page, uint8_t *form, struct reason *reason)
{
	const struct adapter_layout_header *header = writer->layout->header;
	uint32_t used = (uint32_t)cold_page_bytes(writer->layout, COLD_PLAIN, page);
	int error = convert_page(writer->convert, page, writer->image, reason);

	if (error)
		return error;
	if (writer->head->form == COLD_INT8) {
		int8_form_make(writer->image, used / ADAPTER_ROW_BYTES, header->element, form);
		int8_form_expand(form, used / ADAPTER_ROW_BYTES, header->element, writer->image);
	} else {
		memcpy(form, writer->image, used);
	}
	writer->checksums[page] = checksum_of(writer->image, header->page_bytes);
	return 0;
}

/* Make the stored bytes of a group. from: receives their address, with cold_align(group->bytes) bytes. */
static int group_pack(struct writer *writer, struct cold_group *group, const uint8_t **from)
{
	uint64_t whole = group->bytes;
	size_t packed;

	*from = writer->pages;
	if (!writer->compress)
		return 0;
	packed = ZSTD_compress(writer->packed, writer->packed_room, writer->pages, whole, LEVEL);
	if (ZSTD_isError(packed))
		return -ENOMEM;
	if (group->first_page == 0 && cold_align(packed) > whole - whole / GAIN_MIN)
		writer->compress = false; /* the other groups are likely to be similar */
	if (!writer->compress || cold_align(packed) >= cold_align(whole))
		return 0;
	memset(writer->packed + packed, 0, cold_align(packed) - packed);
	group->bytes = packed;
	group->codec = COLD_ZSTD;
	*from = writer->packed;
	return 0;
}

static int group_write(struct writer *writer, struct cold_group *group, struct reason *reason)
{
	const uint8_t *from;
	uint64_t at = 0;
	int error = 0;

	for (uint32_t i = 0; i < group->pages && !error; i++) {
		error = page_make(writer, group->first_page + i, writer->pages + at, reason);
		at += cold_page_bytes(writer->layout, writer->head->form, group->first_page + i);
	}
	if (error)
		return error;
	memset(writer->pages + at, 0, cold_align(at) - at);
	group->bytes = at;
	error = group_pack(writer, group, &from);
	if (error)
		return error;
	group->checksum = checksum_of(from, cold_align(group->bytes));
	return file_write_at(writer->fd, from, cold_align(group->bytes), group->offset);
}

static int groups_write(struct writer *writer, struct reason *reason)
{
	uint64_t offset = writer->head->head_bytes;
	uint32_t page = 0;
	int error = 0;

	for (uint32_t i = 0; i < writer->head->groups && !error; i++) {
		struct cold_group *group = &writer->groups[i];

		*group = (struct cold_group){
			.offset = offset, .first_page = page, .pages = group_pages(writer->layout, page)};
		error = group_write(writer, group, reason);
		page += group->pages;
		offset += cold_align(group->bytes);
	}
	writer->head->file_bytes = offset;
	return error;
}

/* ---- the file ---- */

static int writer_make(struct writer *writer, const struct convert *convert, const struct cold_source *source)
{
	const struct adapter_layout_header *layout = convert->layout->header;
	struct cold_header header = {.magic = COLD_MAGIC,
		.version = COLD_VERSION,
		.header_bytes = sizeof(header),
		.source = *source,
		.groups = groups_count(convert->layout),
		.pages = layout->pages,
		.layout_bytes = layout->bytes};
	uint64_t tables = sizeof(header) + header.groups * sizeof(struct cold_group),
		 checksums = header.pages * sizeof(uint64_t);
	uint32_t pages_max = COLD_GROUP_IMAGE_MAX / layout->page_bytes;

	header.head_bytes = (uint32_t)cold_align(tables + checksums + header.layout_bytes);
	*writer = (struct writer){.convert = convert, .layout = convert->layout, .fd = -1, .compress = true};
	pages_max = pages_max < layout->pages ? pages_max : layout->pages;
	writer->pages_room = cold_align((uint64_t)pages_max * layout->page_bytes);
	writer->packed_room = cold_align(ZSTD_compressBound(writer->pages_room));
	writer->head = calloc(1, header.head_bytes);
	writer->image = malloc(layout->page_bytes);
	writer->pages = malloc(writer->pages_room);
	writer->packed = malloc(writer->packed_room);
	if (!writer->head || !writer->image || !writer->pages || !writer->packed)
		return -ENOMEM;
	*writer->head = header;
	writer->groups = (void *)(writer->head + 1);
	writer->checksums = (void *)(writer->groups + header.groups);
	memcpy(writer->checksums + header.pages, layout, layout->bytes);
	return 0;
}

static void writer_free(struct writer *writer)
{
	if (writer->fd >= 0)
		close(writer->fd);
	free(writer->head);
	free(writer->image);
	free(writer->pages);
	free(writer->packed);
}

static int form_choose(struct writer *writer, bool int8, struct reason *reason)
{
	char name[REASON_NAME_BYTES];
	struct int8_loss loss;
	int error;

	writer->head->form = COLD_PLAIN;
	if (!int8)
		return 0;
	error = int8_loss_measure(writer->convert, &loss, reason);
	if (error)
		return error;
	writer->head->loss_module = loss.module;
	writer->head->loss = loss.output;
	writer->head->bound = loss.bound;
	writer->head->form = loss.output <= INT8_LOSS_MAX ? COLD_INT8 : COLD_PLAIN;
	reason->text[0] = 0;
	if (writer->head->form == COLD_PLAIN)
		refuse(reason,
			"the file is stored with 16 bits: with int8, the output of '%s' has an error of %.2f %%; the "
			"limit is %.2f %%",
			refuse_name(writer->convert->peft->modules[loss.module].path, name), 100 * (double)loss.output,
			100 * INT8_LOSS_MAX);
	return 0;
}

/* The head is written last, so that an incomplete file has no valid head. */
static int file_write(struct writer *writer, const struct cold_source *source, struct reason *reason)
{
	int error = groups_write(writer, reason);

	if (!error)
		error = source_check(writer->convert, source, reason);
	if (error)
		return error;
	writer->head->checksum = checksum_of(writer->head, writer->head->head_bytes);
	error = file_write_at(writer->fd, writer->head, writer->head->head_bytes, 0);
	if (!error && fsync(writer->fd))
		error = -errno;
	return error;
}

int cold_write(const struct convert *convert, const struct cold_source *source, int folder_fd, const char *name,
	bool int8, struct cold_header *header, struct reason *reason)
{
	char new_name[256], text[REASON_NAME_BYTES];
	struct reason unread;
	struct writer writer;
	int error = writer_make(&writer, convert, source);

	reason = reason ? reason : &unread;
	if (!error && (size_t)snprintf(new_name, sizeof(new_name), "%s.new", name) >= sizeof(new_name))
		error = -ENAMETOOLONG;
	if (!error)
		error = form_choose(&writer, int8, reason);
	if (!error) {
		writer.fd = openat(folder_fd, new_name, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
		error = writer.fd < 0 ? -errno : file_write(&writer, source, reason);
		if (!error && (renameat(folder_fd, new_name, folder_fd, name) || fsync(folder_fd)))
			error = -errno;
		if (error && writer.fd >= 0)
			unlinkat(folder_fd, new_name, 0);
	}
	if (!error && header)
		*header = *writer.head;
	writer_free(&writer);
	if (error && error != -EINVAL)
		refuse(reason, "cannot write cold file '%s': %s", refuse_name(name, text), strerror(-error));
	return error;
}
