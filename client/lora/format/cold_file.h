/*
 * cold_file.h - an adapter on disk, ready to be brought into pages: one file for each.
 *
 *   header | groups struct cold_group[groups] | checksums u64[pages] | layout | zeros        the head
 *   group | zeros | group | zeros | ...                                                     each from a multiple of
 *   4096 on
 *
 * A group is the pages that a layer needs and the layers before it do not, or a part of them, so that layers come one
 * after the other by one sequential read each, with O_DIRECT into a registered buffer if one likes. A page in it is its
 * rows as they are (plain) or in int8 (int8_form.h); of the last page there is as much as the layout says. A group may
 * be compressed as a whole, by zstd.
 *
 * Everything is under a checksum, XXH3 64: the head under one in itself, each group with the zeros behind it under one
 * in the head, and each page's image, as engines will see it, under one too, for whoever has expanded it. That finds
 * damage and files that were not written to their end, not forgers. So every field is checked for itself as well: who
 * has forged a file gets wrong weights from it, and no more.
 */
#ifndef GPOOL_CLIENT_LORA_COLD_FILE_H
#define GPOOL_CLIENT_LORA_COLD_FILE_H

#include <stdbool.h>

#include "client/lora/format/convert.h"

#define COLD_MAGIC UINT64_C(0x61726f6c646c6f63) /* "coldlora" */

enum {
	COLD_VERSION = 1,
	COLD_ALIGN = 4096, /* what O_DIRECT wants of any device that there is */
	/* bytes of page images; chosen: long enough to read fast, short enough for a few buffers */
	COLD_GROUP_IMAGE_MAX = 8 << 20,
	COLD_HEAD_MAX = 32 << 20, /* the largest layout, and 65,536 groups and pages */
};

enum cold_form { COLD_PLAIN, COLD_INT8, COLD_FORMS };
enum cold_codec { COLD_RAW, COLD_ZSTD, COLD_CODECS };

/* Of which files it was made. Another one at the same place differs in one of these. */
struct cold_source {
	uint64_t bytes, inode; /* of adapter_model.safetensors */
	int64_t mtime_ns;
	uint64_t headers; /* XXH3 64 of adapter_config.json and of the header of the other */
};

struct cold_header {
	uint64_t magic;
	uint32_t version, header_bytes;
	uint64_t file_bytes;
	uint64_t checksum; /* of the head, with 0 in this place */
	struct cold_source source;
	uint32_t head_bytes; /* a multiple of COLD_ALIGN */
	uint32_t form;       /* enum cold_form */
	uint32_t groups, pages, layout_bytes;
	uint32_t loss_module; /* which loses most in int8: index in the layout */
	float loss, bound;    /* of it: struct int8_loss */
};
static_assert(sizeof(struct cold_header) == 96, "a format of files");

struct cold_group {
	uint64_t offset;   /* in the file: follows the head, or the group before */
	uint64_t bytes;    /* as they stand there, without the zeros behind them */
	uint64_t checksum; /* of these bytes and the zeros up to the next multiple of COLD_ALIGN */
	uint32_t first_page, pages;
	uint32_t codec; /* enum cold_codec */
	uint32_t reserved;
};
static_assert(sizeof(struct cold_group) == 40, "a format of files");

/* One that is open. Everything in it was checked. */
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

/* cold_page_bytes() - of a page in that form: all pages but the last have the same. */
uint64_t cold_page_bytes(const struct adapter_layout *layout, enum cold_form form, uint32_t page);
/* cold_pages_bytes() - of so many pages that follow each other. */
uint64_t cold_pages_bytes(const struct adapter_layout *layout, enum cold_form form, uint32_t first, uint32_t pages);

/* ---- writing ---- */

/*
 * cold_source_of() - to be called before peft_read(), so that what is read afterwards is of this source or found to
 * have changed. Reads adapter_config.json, and of the weights the header.
 * Return: 0; -EINVAL, with a reason: they cannot be such files; -EIO, with a reason; -ENOMEM.
 */
int cold_source_of(int config_fd, int weights_fd, struct cold_source *source, struct reason *reason);

/*
 * cold_write() - make the file `name` in the folder: with `int8` in int8 if that loses no more than INT8_LOSS_MAX, else
 * plain; compressed if its first group gets smaller by a third.
 *
 * @convert: with the weights' file that `source` was taken of
 * @header:  receives what is in the file; may be NULL
 * @reason:  also says why it is plain though int8 was asked for, when it is, and is empty when not
 *
 * It appears at once and whole, in the place of one that is there, and is on disk before this returns; before, it is
 * NAME.new, which is removed if it fails. Two writers of one name disturb each other: let there be one. Memory: about
 * four groups.
 *
 * Return: 0; -EINVAL, with a reason: weights are refused, or have changed while they were read; -EIO, -ENOMEM, or what
 * the folder says, -ENOSPC for one, with a reason.
 */
int cold_write(const struct convert *convert, const struct cold_source *source, int folder_fd, const char *name,
	bool int8, struct cold_header *header, struct reason *reason);

/* ---- reading ---- */

/*
 * cold_open() - read the head of a file, also of one that is open with O_DIRECT, and check all that can be without
 * reading groups.
 * Return: 0, and cold_close() is to be called; -EINVAL, with a reason: it is none, another version, not whole, or
 * damaged; -EIO; -ENOMEM.
 */
int cold_open(int fd, struct cold_file *file, struct reason *reason);
void cold_close(struct cold_file *file);

/* cold_is_of() - whether it was made of that. */
bool cold_is_of(const struct cold_file *file, const struct cold_source *source);

/*
 * cold_group_read() - a group as it stands in the file. stored: cold_align(group->bytes), aligned to COLD_ALIGN.
 * Return: 0, -EIO. Whoever has a faster way to read, as io_uring, takes place and length from the group.
 */
int cold_group_read(const struct cold_file *file, uint32_t group, void *stored);

/*
 * cold_group_expand() - check what was read, and undo the compression.
 * @stored: [cold_align(group->bytes)] may change meanwhile: then this may pass, and cold_page_expand() finds it
 * @room:   [cold_pages_bytes()] for what was compressed; may be NULL where group->codec is COLD_RAW
 * @pages:  receives `stored` or `room`: the pages' forms, one after the other
 * Return: 0; -EINVAL, with a reason.
 */
int cold_group_expand(const struct cold_file *file, uint32_t group, const void *stored, void *room, const void **pages,
	struct reason *reason);

/*
 * cold_page_expand() - the image of page `page` of the adapter. form: as cold_group_expand() gave it, at the place of
 * that page. image: [page_bytes].
 * Return: 0; -EINVAL, with a reason: the image is not what its checksum says; -ENOMEM.
 */
int cold_page_expand(const struct cold_file *file, uint32_t page, const void *form, void *image, struct reason *reason);

#endif
