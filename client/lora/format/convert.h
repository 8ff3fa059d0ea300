/*
 * convert.h - weights out of the safetensors file, as images of an adapter's pages.
 *
 * Any page can be made by itself, in any order; in order the file is read about once. What is no number, or not one in
 * the layout's element, is refused with its place: an adapter that overflows would be nonsense for every request that
 * uses it.
 */
#ifndef GPOOL_CLIENT_LORA_CONVERT_H
#define GPOOL_CLIENT_LORA_CONVERT_H

#include "client/lora/format/peft.h"
#include "shm/adapter_layout.h"

struct element_rows;

/* Some tiles of one matrix side by side in a page. */
struct convert_piece {
	uint32_t page, offset;
	uint32_t module, is_b;
	uint32_t tile, tiles;
};

struct convert {
	const struct peft *peft;
	const struct adapter_layout *layout;
	int fd;
	struct convert_piece *pieces; /* [piece_count], by place */
	uint32_t piece_count;
	void *source; /* of one piece, as it stands in the file: at most two pages */
	const struct element_rows *rows;
};

/*
 * convert_open() - peft and layout (of pack_make() with the same peft) and fd, of the file of weights, have to stay
 * until convert_close().
 * Return: 0; -EINVAL, with a reason: the file has another size than peft says; -EIO; -ENOMEM.
 */
int convert_open(const struct peft *peft, const struct adapter_layout *layout, int fd, struct convert *convert,
	struct reason *reason);
void convert_close(struct convert *convert);

/*
 * convert_page() - image: [page_bytes] receives the page: tiles in the layout's element, zeros where none is. Return:
 * 0; -EINVAL, with a reason: a weight is infinite, no number, or too large for fp16; -EIO. The image is undefined then.
 */
int convert_page(const struct convert *convert, uint32_t page, void *image, struct reason *reason);

/*
 * convert_tiles() - the same for `tiles` tiles of one matrix from `tile` on, wherever they lie; no more than fit a
 * page. to: [tiles] tiles.
 * Errors as above.
 */
int convert_tiles(const struct convert *convert, const struct convert_piece *piece, void *to, struct reason *reason);

#endif
