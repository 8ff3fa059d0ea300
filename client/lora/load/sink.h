/*
 * sink.h - write the images of a part to its pages. Internal to client/lora.
 *
 * If the CPU can write to pages, images are made in place. Otherwise they are made in the loader's stage, whose pages
 * are used in turn, and copied. A form in int8 is then copied instead of its image, to a page of device memory that is
 * allocated for the part, and a kernel expands it from there. The kernel and the CPU make the same bits
 * (cuda/kernels/quantise.h).
 */
#ifndef GPOOL_CLIENT_LORA_SINK_H
#define GPOOL_CLIENT_LORA_SINK_H

#include "client/lora/load/load.h"

struct sink {
	struct lora_loader *loader;
	const struct lora_load *load;
	uint64_t base, page_bytes;
	struct gpool_fence fences[LORA_STAGE_PAGES];
	uint32_t count; /* number of pages of the stage that were used */
	bool unfenced;  /* the fence of the last use could not be recorded */
	bool no_room;   /* no page is available for forms */
	void *tail;     /* without a stage: the image of the last page if the adapter has a tail; NULL: not made */
	struct gpool_block room;
	uint64_t room_address; /* the page for forms; 0: not allocated */
};

/* sink_begin() - begin a part. */
struct sink sink_begin(struct lora_loader *loader, const struct lora_load *load);

/*
 * sink_image() - return the address at which the CPU is to make the image of a page, or NULL if the GPU failed or
 * memory for the image of a tail is short.
 * sink_put() - write this image to the page. Return: 0, or as gpool_copy().
 */
void *sink_image(struct sink *sink, uint32_t page);
int sink_put(struct sink *sink, uint32_t page);

/*
 * sink_expands() - return true if the GPU is to expand the form of a page in int8. Otherwise the CPU does: if it
 * writes to pages, if gpool has no kernels, if a launch has failed (logged once), if no page of device memory is
 * available, and for a tail, which is in several places.
 * sink_form() - return the address to which the form of a page is to be written, or NULL if the GPU failed.
 * sink_expand() - expand this form to the page. Return: 0; 1: the kernel could not be launched, so the CPU is to expand
 * the form; or as gpool_copy().
 */
bool sink_expands(struct sink *sink, uint32_t page);
void *sink_form(struct sink *sink);
int sink_expand(struct sink *sink, uint32_t page);

/*
 * sink_end() - wait until all images are written, even after an error: a late copy could overwrite the image of another
 * source, read a stage that is in use again, or write to a page that is no longer mapped, which is a fault. Return:
 * `error`, otherwise the error of the wait.
 */
int sink_end(struct sink *sink, int error);

#endif
