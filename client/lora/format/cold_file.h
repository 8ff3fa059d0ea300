/*
 * cold_file.h - the file of an adapter on disk, in a format that can be loaded fast.
 *
 *   header | groups struct cold_group[groups] | checksums u64[pages] | layout | zeros        the head
 *   group | zeros | group | zeros | ...                                                     each at a multiple of 4096
 *
 * A group is the pages that a layer needs in addition to those of earlier layers, or a part of these pages. So each
 * layer is one sequential read, optionally with O_DIRECT into a registered buffer. The rows of a page are stored
 * unchanged (plain) or in int8 (int8_form.h); the last page has the length that the layout states. A group may be
 * compressed by zstd.
 *
 * All data has checksums, XXH3 64: the head contains one of itself, one of each group with the zeros behind it, and one
 * of the expanded image of each page. They detect damage and incomplete files, but not forged ones. Therefore every
 * field is checked as well: a forged file results in wrong weights, and in nothing worse.
 */
#ifndef GPOOL_CLIENT_LORA_COLD_FILE_H
#define GPOOL_CLIENT_LORA_COLD_FILE_H

#include <stdbool.h>

#include "client/lora/format/convert.h"

#define COLD_MAGIC UINT64_C(0x61726f6c646c6f63) /* "coldlora" */

enum {
	COLD_VERSION = 1,
	COLD_ALIGN = 4096, /* sufficient for O_DIRECT on all devices */
	/* bytes of page images; chosen: long enough to read fast, short enough for a few buffers */
	COLD_GROUP_IMAGE_MAX = 8 << 20,
	COLD_HEAD_MAX = 32 << 20, /* the largest layout, and 65,536 groups and pages */
};

enum cold_form { COLD_PLAIN, COLD_INT8, COLD_FORMS };
enum cold_codec { COLD_RAW, COLD_ZSTD, COLD_CODECS };

/* Identifies the files from which it was made. Other files at the same path differ in one of these. */
struct cold_source {
	uint64_t bytes, inode; /* of adapter_model.safetensors */
	int64_t mtime_ns;
	uint64_t headers; /* XXH3 64 of adapter_config.json and of the header of adapter_model.safetensors */
};

struct cold_header {
	uint64_t magic;
	uint32_t version, header_bytes;
	uint64_t file_bytes;
	uint64_t checksum; /* of the head, with 0 in this field */
	struct cold_source source;
	uint32_t head_bytes; /* a multiple of COLD_ALIGN */
	uint32_t form;       /* enum cold_form */
	uint32_t groups, pages, layout_bytes;
	uint32_t loss_module; /* the module with the largest loss in int8: index in the layout */
	float loss, bound;    /* of this module: struct int8_loss */
};
static_assert(sizeof(struct cold_header) == 96, "a format of files");

struct cold_group {
	uint64_t offset;   /* in the file: behind the head, or the previous group */
	uint64_t bytes;    /* as stored, without the zeros behind them */
	uint64_t checksum; /* of these bytes and the zeros up to the next multiple of COLD_ALIGN */
	uint32_t first_page, pages;
	uint32_t codec; /* enum cold_codec */
	uint32_t reserved;
};
static_assert(sizeof(struct cold_group) == 40, "a format of files");

/* An open file, whose fields were checked. */
struct cold_file {
	int fd; /* the caller's */
	const struct cold_header *header;
	const struct cold_group *groups;
	const uint64_t *checksums; /* of pages' images */
	struct adapter_layout layout;
};

/* ---- sizes ---- */

static inline uint64_t cold_align(uint64_t bytes)
{
	return (bytes + COLD_ALIGN - 1) / COLD_ALIGN * COLD_ALIGN;
}

/* cold_page_bytes() - Return the bytes of a page in a form, the same for all pages but the last. */
uint64_t cold_page_bytes(const struct adapter_layout *layout, enum cold_form form, uint32_t page);
/* cold_pages_bytes() - Return the bytes of `pages` consecutive pages. */
uint64_t cold_pages_bytes(const struct adapter_layout *layout, enum cold_form form, uint32_t first, uint32_t pages);

/* ---- writing ---- */

/*
 * cold_source_of() - Identify the files of an adapter, by adapter_config.json and the header of the weights. Call it
 * before peft_read(), so that a later change is detected.
 * Return: 0; -EINVAL, with a reason: they cannot be such files; -EIO, with a reason; -ENOMEM.
 */
int cold_source_of(int config_fd, int weights_fd, struct cold_source *source, struct reason *reason);

/*
 * cold_write() - Write the file `name` in the folder. With `int8` it is in int8 if the loss is at most INT8_LOSS_MAX,
 * else plain. It is compressed if that makes its first group smaller by a third.
 *
 * @convert: with the file of weights that `source` identifies
 * @header:  receives the header of the file; may be NULL
 * @reason:  also receives the reason why the file is plain although int8 was requested; empty otherwise
 *
 * The file is written as NAME.new, and renamed when it is complete and on disk; it replaces an existing file. After an
 * error NAME.new is removed. A name must have one writer at a time. Memory: about four groups.
 *
 * Return: 0; -EINVAL, with a reason: weights are refused, or have changed while they were read; -EIO, -ENOMEM, or an
 * error of the folder such as -ENOSPC, with a reason.
 */
int cold_write(const struct convert *convert, const struct cold_source *source, int folder_fd, const char *name,
	bool int8, struct cold_header *header, struct reason *reason);

/* ---- reading ---- */

/*
 * cold_open() - Read the head of a file, which may be open with O_DIRECT, and check it; groups are not read.
 * Return: 0, and cold_close() is to be called; -EINVAL, with a reason: not a cold file, another version, incomplete, or
 * damaged; -EIO; -ENOMEM.
 */
int cold_open(int fd, struct cold_file *file, struct reason *reason);
void cold_close(struct cold_file *file);

/* cold_is_of() - Check whether a file was made from `source`. */
bool cold_is_of(const struct cold_file *file, const struct cold_source *source);

/*
 * cold_group_read() - Read a group as it is stored. stored: cold_align(group->bytes), aligned to COLD_ALIGN. Return: 0,
 * -EIO. Other ways to read, such as io_uring, use offset and bytes of the group.
 */
int cold_group_read(const struct cold_file *file, uint32_t group, void *stored);

/*
 * cold_group_expand() - Check a stored group, and decompress it.
 * @stored: [cold_align(group->bytes)]; if it changes meanwhile, this call may succeed, and cold_page_expand() fails
 * @room:   [cold_pages_bytes()] for decompressed data; may be NULL if group->codec is COLD_RAW
 * @pages:  receives `stored` or `room`: the forms of the pages, in order
 * Return: 0; -EINVAL, with a reason.
 */
int cold_group_expand(const struct cold_file *file, uint32_t group, const void *stored, void *room, const void **pages,
	struct reason *reason);

/*
 * cold_page_expand() - Make the image of a page. form: the form of this page, in the result of cold_group_expand().
 * image: [page_bytes]. Return: 0; -EINVAL, with a reason: the image does not match its checksum; -ENOMEM.
 */
int cold_page_expand(const struct cold_file *file, uint32_t page, const void *form, void *image, struct reason *reason);

#endif
