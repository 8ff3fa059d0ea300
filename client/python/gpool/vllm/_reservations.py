"""The scheduler's side: reserving the memory of a request in the pools of all ranks, before any of it is committed.

Engines that commit chunk by chunk can each hold a part of the memory that the others need. If no request of an engine
is running, and commits are refused repeatedly, the engine therefore offers and releases all memory except its first
chunk, and reserves the memory of its first waiting request as a whole. While it waits for the reservation, it holds
only that chunk. One of several such engines therefore gets its reservation, and its request runs, whatever the speed of
the machine.

Until workers take the pages over, they count against the quota of the scheduler's session, afterwards against that of
the worker's session (gpool_reservation_create()): a quota limits all pages that other sessions cannot get because of a
session. If the quota of the scheduler's session is too small for a request, the engine works without reservations.
"""

from __future__ import annotations

import logging
from typing import Dict, Sequence, Tuple

from .._errors import Error, NoRoom, QuotaReached
from .._pool import Pool

logger = logging.getLogger("vllm.gpool")


class Reservations:
    """Reserve pages for all ranks or none. Threads: one, the scheduler's."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        """pools: the session for each rank; ranks in one pool share a session."""
        self._pools = pools
        # The order is the same in all engines, so that no two of them wait for each other.
        self._order = sorted(set(pools), key=lambda pool: pool.device.pool)
        self._made: Dict[Pool, int] = {}
        self._reported = ""
        self.over_quota = False
        """the last attempt was refused because of the quota of the scheduler's session"""

    @property
    def numbers(self) -> Tuple[int, ...]:
        """Return the number of the reservation for each rank; empty: nothing is reserved."""
        return tuple(self._made[pool] for pool in self._pools) if self._made else ()

    def make(self, pages: int, wait_ms: int) -> bool:
        """Reserve `pages` pages for each rank; wait in each pool for at most `wait_ms`. Return False if not all of them
        can be reserved now; then none is.
        """
        self.over_quota = False
        try:
            for pool in self._order:
                self._made[pool] = pool.create_reservation(pages * self._pools.count(pool), timeout_ms=wait_ms)
        except NoRoom as error:
            self.release()
            if isinstance(error, QuotaReached):
                self.over_quota = True
                effect = "until then, the workers commit memory that is not reserved"
                self._report(error, f" (session {pool.session}, of the scheduler); {effect}")
        except Error as error:
            self.release()
            self._report(error)
        return bool(self._made)

    def release(self) -> None:
        """Free the reserved pages that workers have not taken over."""
        for pool, number in self._made.items():
            try:
                pool.release_reservation(number)
            except Error as error:  # the pages are free at the latest when the session ends
                self._report(error)
        self._made = {}

    def _report(self, error: Error, effect: str = "") -> None:
        """Log an error unless it was the last one, because the scheduler tries again in each step."""
        if str(error) != self._reported:
            self._reported = str(error)
            logger.warning("gpool: %s%s", error, effect)
