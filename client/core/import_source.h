/*
 * import_source.h - sources of the progress of another process's streams: its timeline page, or driver events. Internal
 * to import.c.
 *
 * Only one thread at a time gets a source (imports->turn), so that no two threads open the same one. Any thread may
 * read a source or put it back.
 */
#ifndef GPOOL_CLIENT_IMPORT_SOURCE_H
#define GPOOL_CLIENT_IMPORT_SOURCE_H

#include "client/core/fence_ticket.h"
#include "client/core/pool.h"
#include "shm/timeline_page.h"

/*
 * The timeline page of another session. The key identifies the session, because its record in the pool segment is
 * reused after it ends.
 */
struct import_view {
	struct import_view *next;
	const struct timeline_page *page;
	uint32_t session, pid;
	uint64_t attached_ms;
	uint32_t refs;
};

struct import_event {
	struct import_event *next;
	struct gpu_event *event;
	uint64_t key;
	uint8_t ipc[GPU_IPC_BYTES];
	uint32_t refs;
	_Atomic bool dead; /* the exporter's process is dead */
};

struct import_sources {
	pthread_mutex_t lock; /* protects the lists and refs; no lock is acquired under it */
	struct import_view *views;
	struct import_event *events;
	uint32_t event_count;
};

void sources_open(struct import_sources *sources);
void sources_close(struct gpool *pool, struct import_sources *sources);

/*
 * view_get() - map the timeline page of a ticket. Return: 0, -ESRCH, -EACCES (another trust domain), -EMFILE, -ENOMEM,
 * -EPIPE, -EPROTO.
 */
int view_get(struct gpool *pool, struct import_sources *sources, const struct fence_ticket *ticket,
	struct import_view **view);
void view_put(struct import_sources *sources, struct import_view *view);
/*
 * view_reached() - compare the number in a slot with `value`. Return: 1 (it is at least `value`), 0 (not yet), -ESRCH
 * (never, because the process is dead), -EIO (never, because its GPU has failed).
 */
int view_reached(const struct gpool *pool, const struct import_view *view, uint32_t slot, uint64_t value);
bool view_is_dead(const struct gpool *pool, const struct import_view *view);

/*
 * event_get() - open the event of a ticket. Return: 0, -EINVAL, -ESRCH, -EACCES, -EUSERS (IMPORT_EVENTS are open),
 * -EOPNOTSUPP, -EMFILE, -ENOMEM, -EIO.
 */
int event_get(struct gpool *pool, struct import_sources *sources, const struct fence_ticket *ticket,
	struct import_event **event);
void event_put(struct gpool *pool, struct import_sources *sources, struct import_event *event);
/* event_reached() - query the event. Return: 1 (signaled), 0 (not yet), -ESRCH, -EIO (a device failure). */
int event_reached(struct gpool *pool, struct import_event *event);

#endif
