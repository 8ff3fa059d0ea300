/*
 * cold_file.h - the cold file: an adapter on disk, in a format that loads fast.
 *
 *   header | groups struct cold_group[groups] | checksums u64[pages] | layout | zeros        the head
 *   group | zeros | group | zeros | ...                                                     each at a multiple of 4096
 *
 * A group consists of the pages that a layer needs in addition to those of earlier layers, or of a part of these pages.
 * Each layer is therefore read sequentially, optionally with O_DIRECT into a registered buffer. The rows of a page are
 * stored unchanged (plain) or in int8 (int8_form.h). The last page has the length that the layout states. A group may
 * be compressed with zstd.
 *
 * All data has checksums (XXH3 64). The head contains a checksum of itself, one for each group with the zeros after it,
 * and one for the expanded image of each page. The checksums detect damage and incomplete files, but not forged files.
 * Every field is therefore checked, so that a forged file can result only in wrong weights.
 */
#ifndef GPOOL_CLIENT_LORA_COLD_FILE_H
#define GPOOL_CLIENT_LORA_COLD_FILE_H

#include <stdbool.h>

#include "client/lora/format/convert.h"

#define COLD_MAGIC UINT64_C(0x61726f6c646c6f63) /* "coldlora" */

enum {
	COLD_VERSION = 1,
	COLD_ALIGN = 4096, /* sufficient for O_DIRECT on usual devices */
	/* limit of a group's page images; chosen: large enough to read fast, small enough for several buffers */
	COLD_GROUP_IMAGE_MAX = 8 << 20,
	COLD_HEAD_MAX = 32 << 20, /* room for the largest layout, and 65,536 groups and pages */
};

enum cold_form { COLD_PLAIN, COLD_INT8, COLD_FORMS };
enum cold_codec { COLD_RAW, COLD_ZSTD, COLD_CODECS };

/*
 * Identifies the files from which a cold file was made. If they are replaced or changed, at least one field differs,
 * unless the time of the weights is set back. Weights in a sealed file (memory_file.h) are identified by their content,
 * so that each process that registers the same weights has the same source.
 */
struct cold_source {
	/* adapter_model.safetensors; for a sealed file, inode is the lower half of its XXH3 128, mtime_ns the upper */
	uint64_t bytes, inode;
	int64_t mtime_ns;
	uint64_t headers; /* XXH3 64 of adapter_config.json and of the header of adapter_model.safetensors */
};

struct cold_header {
	uint64_t magic;
	uint32_t version, header_bytes;
	uint64_t file_bytes;
	uint64_t checksum; /* XXH3 64 of the head, computed with 0 in this field */
	struct cold_source source;
	uint32_t head_bytes; /* a multiple of COLD_ALIGN */
	uint32_t form;       /* enum cold_form */
	uint32_t groups, pages, layout_bytes;
	uint32_t loss_module; /* index in the layout of the module with the largest loss in int8 */
	float loss, bound;    /* loss of this module, see struct int8_loss; 0: not measured */
};
static_assert(sizeof(struct cold_header) == 96, "a format of files");

struct cold_group {
	uint64_t offset;   /* in the file: after the head or the previous group */
	uint64_t bytes;    /* as stored, without the zeros after them */
	uint64_t checksum; /* XXH3 64 of the stored bytes and of the zeros up to the next multiple of COLD_ALIGN */
	uint32_t first_page, pages;
	uint32_t codec; /* enum cold_codec */
	uint32_t reserved;
};
static_assert(sizeof(struct cold_group) == 40, "a format of files");

/* An open file whose fields have been checked. */
struct cold_file {
	int fd; /* owned by the caller */
	const struct cold_header *header;
	const struct cold_group *groups; /* NULL: the forms are not in a file */
	const uint64_t *checksums;       /* of the pages' images */
	const uint64_t *form_checksums;  /* of the pages' forms; NULL: none, and in a file each group has one */
	struct adapter_layout layout;
};

/* ---- sizes ---- */

static inline uint64_t cold_align(uint64_t bytes)
{
	return (bytes + COLD_ALIGN - 1) / COLD_ALIGN * COLD_ALIGN;
}

/* cold_page_bytes() - return the size of a page in a form. All pages except the last have the same size. */
uint64_t cold_page_bytes(const struct adapter_layout *layout, enum cold_form form, uint32_t page);
uint64_t cold_pages_bytes(const struct adapter_layout *layout, enum cold_form form, uint32_t first, uint32_t pages);

/* ---- write ---- */

/*
 * cold_source_of() - identify the files of an adapter, by adapter_config.json and the header of the weights. Call it
 * before peft_read(), so that a later change is detected. Sealed weights are read completely.
 * Return: 0; -EINVAL, with a reason: they are not the files of an adapter; -EIO, with a reason; -ENOMEM.
 */
int cold_source_of(int config_fd, int weights_fd, struct cold_source *source, struct reason *reason);

/*
 * cold_write() - write the file `name` in the folder. If `int8` is set and the loss is at most INT8_LOSS_MAX, the pages
 * are stored in int8, otherwise plain. The file is compressed if this reduces its first group by at least a third.
 *
 * @convert: with the file of weights that `source` identifies
 * @header:  receives the header of the file; may be NULL
 * @reason:  with int8, also receives the reason why the file is plain; empty if it is in int8
 *
 * The file is written as NAME.new, and renamed when it is complete and on disk; it replaces an existing file. After an
 * error NAME.new is removed. A name must have only one writer at a time. Memory: about four groups.
 *
 * Return: 0; -EINVAL, with a reason: weights are refused, or have changed while they were read; -EIO, -ENOMEM, or an
 * error of the folder such as -ENOSPC, with a reason.
 */
int cold_write(const struct convert *convert, const struct cold_source *source, int folder_fd, const char *name,
	bool int8, struct cold_header *header, struct reason *reason);

/* ---- read ---- */

/*
 * cold_open() - read and check the head of a file, which may be open with O_DIRECT. Groups are not read.
 * Return: 0, and cold_close() must be called; -EINVAL, with a reason: not a cold file, another version, incomplete, or
 * damaged; -EIO; -ENOMEM.
 */
int cold_open(int fd, struct cold_file *file, struct reason *reason);
void cold_close(struct cold_file *file);

/* cold_is_of() - check whether a file was made from `source`. */
bool cold_is_of(const struct cold_file *file, const struct cold_source *source);

/*
 * cold_group_read() - read a group as it is stored. stored: [cold_align(group->bytes)], aligned to COLD_ALIGN. Return:
 * 0, -EIO. Other ways to read, such as io_uring, use the offset and the bytes of the group.
 */
int cold_group_read(const struct cold_file *file, uint32_t group, void *stored);

/*
 * cold_group_expand() - check a stored group, and decompress it.
 * @stored: [cold_align(group->bytes)]; if it changes during the call, the call may succeed, but cold_page_expand() then
 *          fails
 * @room:   [cold_pages_bytes()] for decompressed data; may be NULL if group->codec is COLD_RAW
 * @pages:  receives `stored` or `room`: the forms of the pages, in order
 * Return: 0; -EINVAL, with a reason.
 */
int cold_group_expand(const struct cold_file *file, uint32_t group, const void *stored, void *room, const void **pages,
	struct reason *reason);

/*
 * cold_page_expand() - expand the form of a page to its image. form: from the result of cold_group_expand(). image:
 * [page_bytes]. Return: 0; -EINVAL, with a reason: the image does not match its checksum; -ENOMEM.
 */
int cold_page_expand(const struct cold_file *file, uint32_t page, const void *form, void *image, struct reason *reason);

/* cold_forms_have_checksums() - return true if a form can be checked without expanding it. */
static inline bool cold_forms_have_checksums(const struct cold_file *file)
{
	return file->groups || file->form_checksums;
}

/*
 * cold_page_copy() - copy the form of a page, for a caller that expands it by other means. form: as for
 * cold_page_expand(). Without form_checksums, only cold_group_expand() has checked the form. The checksum of the image
 * is not used. Return: 0; -EINVAL, with a reason: the copy does not match its checksum.
 */
int cold_page_copy(const struct cold_file *file, uint32_t page, const void *form, void *copy, struct reason *reason);

#endif
