/*
 * warm.h - warm copies: adapters in host memory, as pinnable named objects of a pool with the back end `host`, which
 * all engines of a trust domain share, or with private copies those of one tenant.
 *
 * A copy has the content of a cold file, uncompressed: the forms of the adapter's pages (cold_file.h) in order, and
 * this metadata:
 *
 *   "layout"     the adapter's layout, with the page size of the GPU pool
 *   "form"       uint32_t: enum cold_form
 *   "checksums"  uint64_t[pages]: XXH3 64 of the expanded image of each page
 *   "form_checksums"  the same for the form of each page, if it is in int8; without them, the CPU expands the forms
 *   "name"       the publisher's name of the adapter, for display
 *
 * The name of the object is a hash of its sources (format/adapter.c). A publisher in the same trust domain may have
 * published other content under this name. Sizes and layout are therefore checked when the copy is opened, and the
 * image of each page, or the form that the GPU expands, when it is made.
 */
#ifndef GPOOL_CLIENT_LORA_WARM_H
#define GPOOL_CLIENT_LORA_WARM_H

#include <pthread.h>

#include "client/gpool.h"
#include "client/lora/format/adapter.h"
#include "client/lora/format/cold_file.h"

/* A copy that is open and pinned, or is being created. */
struct warm_copy {
	struct gpool_object *object; /* NULL: none */
	uint8_t *forms;              /* read-only after it is published */
	struct cold_header header;
	struct cold_file file; /* form, checksums and layout; without groups */
	uint64_t version;      /* version of the object that was found, valid or not */
};

static inline uint8_t *warm_form(const struct warm_copy *copy, uint32_t page)
{
	return copy->forms + page * cold_page_bytes(&copy->file.layout, (enum cold_form)copy->header.form, 0);
}

/*
 * warm_find() - open and pin a copy of an adapter with this layout, which must remain valid until warm_close(). int8:
 * the copy may be in int8. private: the copy must be published by this session's tenant. Return: 0; -ENOENT: no copy;
 * -EINVAL, with a reason: the object copy->version is not such a copy; or as gpool_object_open().
 */
int warm_find(struct gpool *pool, const char *name, const struct adapter_layout *layout, bool int8, bool private,
	struct warm_copy *copy, struct reason *reason);
/*
 * Copies that were loaded stay mapped for some time, without a pin, so that they can be evicted. A load that uses such
 * a copy again needs neither the agent nor a new mapping, which would take as long as reading the copy. Threads: any.
 */
/* limits of kept copies and of their pages, each of which is a mapping; by default, Linux permits 65,530 mappings */
enum { WARM_KEPT = 64, WARM_KEPT_PAGES = 8192 };

struct warm_kept {
	pthread_mutex_t lock;
	uint32_t oldest, count, pages;
	struct warm_kept_copy {
		char name[LORA_KEY_BYTES];
		struct gpool_object *object;
		uint32_t pages;
	} copies[WARM_KEPT]; /* a ring, the oldest first; object is NULL while a copy is in use */
};

/* warm_again() - pin a kept copy, as warm_find() does. Return: -ENOENT: not kept, or evicted. */
int warm_again(struct warm_kept *kept, const char *name, const struct adapter_layout *layout, bool int8,
	struct warm_copy *copy);
/* warm_leave() - keep the copy instead of closing it, unless it was evicted or is too large. */
void warm_leave(struct warm_kept *kept, const char *name, struct warm_copy *copy);
/* warm_forget() - close a kept copy, so that its memory is free when it is deleted. */
void warm_forget(struct warm_kept *kept, const char *name);
void warm_kept_end(struct warm_kept *kept);

/* warm_look() - check an open copy. Return: NULL if it is valid, otherwise the text of an error. */
const char *warm_look(struct warm_copy *copy, const struct adapter_layout *layout, bool int8);
/* warm_close() - close a copy that was found. It may be closed already. */
void warm_close(struct warm_copy *copy);

/*
 * warm_begin() - create a copy in this form. The caller writes the forms of all pages, and then calls warm_publish() or
 * warm_abort(). over: the version to replace; 0: none. Return: 0; -ENOSPC, -EDQUOT: no room; or as
 * gpool_object_alloc().
 */
int warm_begin(struct gpool *pool, const char *name, const struct adapter_layout *layout, enum cold_form form,
	bool private, uint64_t over, struct warm_copy *copy);
/*
 * warm_publish() - publish a copy, and close it. label: the name of the adapter, for display; checksums: [pages], of
 * the images. The checksums of forms in int8 are computed here. *version receives the version of the object.
 * Return: 0; -ESTALE: another engine was first; or as gpool_object_publish().
 */
int warm_publish(struct warm_copy *copy, const char *label, const uint64_t *checksums, uint64_t *version);
void warm_abort(struct warm_copy *copy);

#endif
