/*
 * huge_pages.h - memory of the host back end in pages of the size that one entry of the second table maps, 2 MiB on
 * most machines.
 *
 * Protecting what is published and opening it again is a change of each page's entry, so with small pages it takes
 * longer than a part of the copy itself; memory that is there already does not fault at its first use either. The price
 * is that all of it is taken at the start.
 */
#ifndef GPOOL_AGENT_HUGE_PAGES_H
#define GPOOL_AGENT_HUGE_PAGES_H

#include "agent/pages/physical.h"

/*
 * huge_pages_make() - the memory behind all exports, which are slices of files in memory, from now on present and huge.
 *
 * Whatever the system's setting of huge pages for shared memory is, except deny. What the kernel does not find a huge
 * page for stays in small ones; the log says how much is huge. Takes 1.2 s for each GiB [measured, 2 cores], and logs
 * its progress.
 *
 * Return: 0; -ENOMEM: the machine, or our control group, has less memory available than that, which is looked up before
 * any is taken; -ECANCELED: gpoold stops; -errno of mapping.
 */
int huge_pages_make(const struct physical *physical, const struct physical_plan *plan);

#endif
