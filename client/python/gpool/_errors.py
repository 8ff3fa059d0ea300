"""Errors: the codes of the library as exceptions."""

from __future__ import annotations

import errno
from typing import Dict, NamedTuple, Optional, Tuple, Type

from ._library import library


class Error(OSError):
    """Report that a call has failed: `errno` is the positive code, `strerror` names what failed, value and limit, or
    cause.

    It is an OSError; its subclasses are the cases that programs distinguish.
    """


class Holder(NamedTuple):
    """Count the pages that a session leases."""

    session: int
    name: str
    usage: Optional[int]
    """usage of most of its pages in blocks; None: it has no blocks"""
    needed_pages: int
    """pinned, or held by a thread"""
    offered_pages: int
    """with unpinned content"""
    idle_pages: int
    """without content"""


class OomInfo(NamedTuple):
    """Describe why an allocation was refused, as of the refusal."""

    needed: int
    """pages"""
    free: int
    """pages"""
    pinned: int
    """pages, of all sessions"""
    holder: int
    """session with the most pinned pages; 0: none"""
    holder_pages: int
    """pinned by it"""
    holders: Tuple[Holder, ...] = ()
    """of Pool.oom_info(): the sessions that lease the most pages at the time of that call, largest first; empty: the
    agent did not answer
    """


class NoRoom(Error):
    """Report that there are not enough pages, a limit or quota is reached, or a table is full (ENOSPC, EDQUOT).

    Free or unpin memory, or wait (timeout_ms).
    """

    oom_info: Optional[OomInfo] = None
    """where an allocation of this thread was refused for lack of pages; Pool.oom_info() reports the holders as well"""


class Stale(Error):
    """Report that content was freed or evicted, a version is not current, or a role is no longer held (ESTALE).

    Create or load the content again.
    """


class TimedOut(Error, TimeoutError):
    """Report that a wait has reached its time limit (ETIMEDOUT, and EAGAIN of a call that does not wait)."""


class NotFound(Error):
    """Report that there is nothing of that name (ENOENT, ENXIO)."""


class Busy(Error):
    """Report use by GPU work, a view, or a call in another thread (EBUSY), which has to end first."""


class Asleep(Busy):
    """Report that the session is asleep (EHOSTDOWN). Call Pool.wake() first."""


class OutOfService(Busy):
    """Report that the pool is out of service, by `poolctl drain` (ESHUTDOWN). Attach to another pool, or later."""


class AgentGone(Error):
    """Report that the agent has ended, or has ended this session (EPIPE).

    Allocated memory stays usable; close the pool when it is no longer needed.
    """


class Forked(Error):
    """Report a call in the child of fork(): the pool belongs to the parent (ECHILD). Attach again."""


class Closed(Error):
    """Report the use of something that was closed (EBADF)."""


_BY_CODE: Dict[int, Type[Error]] = {
    errno.ENOSPC: NoRoom,
    errno.EDQUOT: NoRoom,
    errno.ESTALE: Stale,
    errno.ETIMEDOUT: TimedOut,
    errno.EAGAIN: TimedOut,
    errno.ENOENT: NotFound,
    errno.ENXIO: NotFound,
    errno.EBUSY: Busy,
    errno.EHOSTDOWN: Asleep,
    errno.ESHUTDOWN: OutOfService,
    errno.EPIPE: AgentGone,
    errno.ECHILD: Forked,
}


def error(code: int, what: str, why: str = "") -> Error:
    """Return the exception for a code of either sign; must be called in the thread of the failed call, right after it.

    what: verb phrase of the call. why: text to use instead of the library's.
    """
    code = abs(code)
    text = library().gpool_last_error(code).decode(errors="replace")  # asked for in any case, which forgets it
    text = why or text
    return _BY_CODE.get(code, Error)(code, f"cannot {what}: {text}")


def check(result: int, what: str) -> int:
    """Return `result`, or raise its exception if it is negative. Raises Error."""
    if result < 0:
        raise error(result, what)
    return result
