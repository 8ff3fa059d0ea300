/*
 * huge_pages.h - memory of the back end `host` in huge pages, each mapped by one entry of the second-level page table:
 * 2 MiB on most machines.
 *
 * Protecting published pages and unprotecting them changes an entry per page, so with small pages it takes longer than
 * a part of the copy itself. Memory that is already allocated also causes no fault at its first use. In return, all of
 * it is allocated at the start.
 */
#ifndef GPOOL_AGENT_HUGE_PAGES_H
#define GPOOL_AGENT_HUGE_PAGES_H

#include "agent/pages/physical.h"

/*
 * huge_pages_make() - allocate the memory behind all exports, which are slices of memfds, in huge pages. The system's
 * setting of huge pages for shared memory does not matter, except "deny". Memory for which the kernel finds no huge
 * page stays in small ones; the log reports the amount in huge pages. It takes 1.2 s per GiB (measured, 2 cores), and
 * the progress is logged.
 *
 * Return: 0; -ENOMEM: the machine, or the control group of gpoold, has less memory available, which is checked before
 * the allocation; -ECANCELED: gpoold is stopping; -errno of the mapping.
 */
int huge_pages_make(const struct physical *physical, const struct physical_plan *plan);

#endif
