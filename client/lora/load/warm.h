/*
 * warm.h - copies of adapters in host memory: pinnable named objects of a pool of the back end `host`, which all
 * engines of a trust domain share.
 *
 * What a copy has is what a cold file has, uncompressed: the forms of the adapter's pages (cold_file.h) one after the
 * other, and as metadata
 *
 *   "layout"     the adapter's layout, with the page size of the pool that it is for
 *   "form"       uint32_t: enum cold_form
 *   "checksums"  uint64_t[pages]: XXH3 64 of each page's image, once it is expanded
 *   "name"       what its publisher calls it, for people
 *
 * Its name is a hash of what it is made of (load.c). Who has published it is of our trust, and still may have published
 * anything: sizes and layout are checked when it is found, and each page's image when it is made.
 */
#ifndef GPOOL_CLIENT_LORA_WARM_H
#define GPOOL_CLIENT_LORA_WARM_H

#include <pthread.h>

#include "client/gpool.h"
#include "client/lora/format/adapter.h"
#include "client/lora/format/cold_file.h"

/* One that is open and pinned, or is being made. */
struct warm_copy {
	struct gpool_object *object; /* NULL: none */
	uint8_t *forms;              /* to be read only, once it is published */
	struct cold_header header;
	struct cold_file file; /* for cold_page_expand(): form, checksums and layout, without groups */
	uint64_t version;      /* of one that was found, believed or not */
};

/* warm_form() - where the form of a page lies. */
static inline uint8_t *warm_form(const struct warm_copy *copy, uint32_t page)
{
	return copy->forms + page * cold_page_bytes(&copy->file.layout, (enum cold_form)copy->header.form, 0);
}

/*
 * warm_find() - open and pin a copy of an adapter with this layout, which has to stay until warm_close().
 * int8: it may be in int8. private: it is of this session's tenant. Return: 0; -ENOENT: there is none; -EINVAL, with a
 * reason: it is something else, copy->version; or what gpool_object_open() says.
 */
int warm_find(struct gpool *pool, const char *name, const struct adapter_layout *layout, bool int8, bool private,
	struct warm_copy *copy, struct reason *reason);
/*
 * Copies that were loaded stay mapped for a while, unpinned: so they leave as they would, and who loads one again
 * neither asks the agent nor has it mapped anew, which takes as long as reading it. Threads: any.
 */
/* at a time; a page is a mapping, of which Linux allows 65,530 by default */
enum { WARM_KEPT = 64, WARM_KEPT_PAGES = 8192 };

struct warm_kept {
	pthread_mutex_t lock;
	uint32_t oldest, count, pages;
	struct warm_kept_copy {
		char name[LORA_KEY_BYTES];
		struct gpool_object *object;
		uint32_t pages;
	} copies[WARM_KEPT]; /* from the oldest on, in a ring; those that are in use have object NULL */
};

/* warm_again() - as warm_find(), of one that is kept; -ENOENT: it is not, or has left. */
int warm_again(struct warm_kept *kept, const char *name, const struct adapter_layout *layout, bool int8,
	struct warm_copy *copy);
/* warm_leave() - instead of warm_close(). */
void warm_leave(struct warm_kept *kept, const char *name, struct warm_copy *copy);
/* warm_kept_end() - all are closed. */
void warm_kept_end(struct warm_kept *kept);

/* warm_look() - whether an open one is what it should be: NULL, or what is wrong. */
const char *warm_look(struct warm_copy *copy, const struct adapter_layout *layout, bool int8);
/* warm_close() - of one that was found. What is closed is fine. */
void warm_close(struct warm_copy *copy);

/*
 * warm_begin() - one in this form, to be filled: all pages' forms, and checksums[pages]; then warm_publish() or
 * warm_abort(). over: the version in whose place it shall be, or 0: it is the first. Return: 0; -ENOSPC, -EDQUOT: no
 * room; or what an allocation says.
 */
int warm_begin(struct gpool *pool, const char *name, const struct adapter_layout *layout, enum cold_form form,
	bool private, uint64_t over, struct warm_copy *copy);
/*
 * warm_publish() - for everybody, and closed here. label: what people call the adapter; checksums: [pages]. Return: 0;
 * -ESTALE: somebody else was first; or what gpool_object_publish() says.
 */
int warm_publish(struct warm_copy *copy, const char *label, const uint64_t *checksums);
void warm_abort(struct warm_copy *copy);

#endif
