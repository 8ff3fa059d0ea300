/*
 * convert.h - convert the weights of a safetensors file to images of an adapter's pages.
 *
 * Pages can be converted individually and in any order; in ascending order, each part of the file is read about once. A
 * weight that is infinite, not a number, or too large for the layout's element type is rejected, because it would make
 * every result of the adapter wrong. The reason contains its position.
 */
#ifndef GPOOL_CLIENT_LORA_CONVERT_H
#define GPOOL_CLIENT_LORA_CONVERT_H

#include "client/lora/format/peft.h"
#include "shm/adapter_layout.h"

struct element_rows;

/* Adjacent tiles of one matrix in a page. */
struct convert_piece {
	uint32_t page, offset;
	uint32_t module, is_b;
	uint32_t tile, tiles;
};

struct convert {
	const struct peft *peft;
	const struct adapter_layout *layout;
	int fd;
	struct convert_piece *pieces; /* [piece_count], ordered by position */
	uint32_t piece_count;
	void *source; /* a piece as stored in the file: at most two pages */
	const struct element_rows *rows;
};

/*
 * convert_open() - prepare the conversion. peft, layout (of pack_make() with the same peft) and fd (the file of
 * weights) must stay valid until convert_close().
 * Return: 0; -EINVAL, with a reason: the size of the file has changed; -EIO; -ENOMEM.
 */
int convert_open(const struct peft *peft, const struct adapter_layout *layout, int fd, struct convert *convert,
	struct reason *reason);
void convert_close(struct convert *convert);

/*
 * convert_page() - make the image of a page: tiles in the layout's element, with zeros between them. image:
 * [page_bytes]. Return: 0; -EINVAL, with a reason: a weight is infinite, not a number, or out of range for the element;
 * -EIO. After an error the image is undefined.
 */
int convert_page(const struct convert *convert, uint32_t page, void *image, struct reason *reason);

/*
 * convert_tiles() - convert `tiles` tiles of one matrix, beginning with `tile`; at most as many as fit in a page. to:
 * [tiles] tiles. Return: as convert_page().
 */
int convert_tiles(const struct convert *convert, const struct convert_piece *piece, void *to, struct reason *reason);

#endif
