"""Errors: the library's codes as exceptions."""

from __future__ import annotations

import errno
from typing import Dict, NamedTuple, Optional, Tuple, Type

from ._library import library


class Error(OSError):
    """A call failed. `errno` is the code, positive; `strerror` says what was tried, and the value and limit, or the
    cause, that the library names.

    It is an OSError, and caught as one; subclasses are what programs tell apart.
    """


class Holder(NamedTuple):
    """A session and the pages that it leases."""

    session: int
    name: str
    usage: Optional[int]
    """Content of most of its pages in blocks; None: it has no blocks"""
    needed_pages: int
    """pinned, or in a thread's hands"""
    offered_pages: int
    """content without a pin, kept until the page is needed elsewhere"""
    idle_pages: int
    """no content"""


class Shortage(NamedTuple):
    """Why an allocation was refused, as of the refusal."""

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
    """of Pool.shortage(): the sessions that lease the most pages at the time of that call, most first; empty: the agent
    did not answer
    """


class NoRoom(Error):
    """No pages to be had, a limit or quota is reached, or a table is full: ENOSPC, EDQUOT. Free or unpin something, or
    wait (timeout_ms).
    """

    shortage: Optional[Shortage] = None
    """where an allocation of this thread was refused for lack of pages; Pool.shortage() reports the holders as well"""


class Stale(Error):
    """Gone: freed or evicted, a version that is not current, a role that is not ours any more: ESTALE. Make the content
    anew.
    """


class TimedOut(Error, TimeoutError):
    """Not in time: ETIMEDOUT, and EAGAIN of a call that was not to wait."""


class NotFound(Error):
    """Nothing of that name: ENOENT, ENXIO."""


class Busy(Error):
    """In use by GPU work, a view, or a call in another thread: EBUSY. End that first."""


class Asleep(Busy):
    """The session is asleep: EHOSTDOWN. Call Pool.wake() first."""


class OutOfService(Busy):
    """The pool is out of service (`poolctl drain`): ESHUTDOWN. Attach to another pool, or later."""


class AgentGone(Error):
    """The agent is gone, or has ended this session: EPIPE. What is allocated stays usable; close the pool when it is
    not needed.
    """


class Forked(Error):
    """After fork(): the pool is the parent's, and the child opens one of its own: ECHILD."""


class Closed(Error):
    """It was closed before: EBADF."""


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
    """The exception for a code of either sign; `why` takes the place of the library's text. In the thread of the call,
    right after it.
    """
    code = abs(code)
    text = library().gpool_last_error(code).decode(errors="replace")  # asked for in any case, which forgets it
    text = why or text
    return _BY_CODE.get(code, Error)(code, f"cannot {what}: {text}")


def check(result: int, what: str) -> int:
    """A result of the library's that is no error."""
    if result < 0:
        raise error(result, what)
    return result
