/*
 * huge_pages.h - memory of the back end `host` in huge pages. A huge page is mapped by a single entry of the
 * second-level page table and has 2 MiB on most machines.
 *
 * Published pages are write-protected, which changes each page table entry. With small pages, this can take longer than
 * to copy the data. Huge pages must be allocated at the start, so they cause no page fault at their first use.
 */
#ifndef GPOOL_AGENT_HUGE_PAGES_H
#define GPOOL_AGENT_HUGE_PAGES_H

#include "agent/pages/physical.h"

/*
 * huge_pages_make() - allocate the memory of all exports, which are parts of memfds, in huge pages. The system's
 * setting for huge pages in shared memory has no effect, except "deny". Memory for which the kernel finds no huge page
 * stays in small pages. The progress and the amount of memory in huge pages are logged.
 * Cost: 1.2 s per GiB (measured, 2 cores).
 *
 * Return: 0; -ENOMEM: not enough memory is available on the machine or in the control group of gpoold (checked before
 * the allocation); -ECANCELED: gpoold is stopping; -errno of the mapping.
 */
int huge_pages_make(const struct physical *physical, const struct physical_plan *plan);

#endif
