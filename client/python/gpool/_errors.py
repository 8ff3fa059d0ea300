"""Errors: the library's codes as exceptions."""

from __future__ import annotations

import errno
from typing import Dict, NamedTuple, Optional, Tuple, Type

from ._library import library


class Error(OSError):
    """A call failed. `errno` is the positive code; `strerror` names the operation, and the value and limit, or the
    cause, that the library reported.

    Error is an OSError; programs can distinguish its subclasses.
    """


class Holder(NamedTuple):
    """A session and its leased pages."""

    session: int
    name: str
    usage: Optional[int]
    """usage of most of its pages in blocks; None: it has no blocks"""
    needed_pages: int
    """pinned, prepared, or held by a thread"""
    offered_pages: int
    """unpinned content, kept until the page is needed elsewhere"""
    idle_pages: int
    """without content"""


class Shortage(NamedTuple):
    """The cause of a refused allocation, at the time of the refusal."""

    needed: int
    """pages"""
    free: int
    """pages"""
    pinned: int
    """pages, of all sessions"""
    holder: int
    """session with the most pinned pages; 0: none"""
    holder_pages: int
    """pages pinned by that session"""
    holders: Tuple[Holder, ...] = ()
    """filled by Pool.shortage(): the sessions that lease the most pages at the time of that call, largest first; empty:
    the agent did not answer
    """


class NoRoom(Error):
    """No pages are available, a limit or quota is reached, or a table is full: ENOSPC, EDQUOT. Free or unpin blocks, or
    wait (timeout_ms).
    """

    shortage: Optional[Shortage] = None
    """set if an allocation of this thread was refused for lack of pages; Pool.shortage() adds the holders"""


class Stale(Error):
    """The object of the call does not exist any more: a block that was freed or evicted, a version that is not current,
    a role that the process has lost: ESTALE. Create the content again.
    """


class TimedOut(Error, TimeoutError):
    """The timeout expired: ETIMEDOUT, or EAGAIN for a call without a wait."""


class NotFound(Error):
    """The name does not exist: ENOENT, ENXIO."""


class Busy(Error):
    """In use by GPU work, a view, or a call of another thread: EBUSY. End that first."""


class Asleep(Busy):
    """The session is asleep: EHOSTDOWN. Call Pool.wake() first."""


class OutOfService(Busy):
    """The pool is out of service (`poolctl drain`): ESHUTDOWN. Attach to another pool, or later."""


class AgentGone(Error):
    """The agent has ended, or has ended this session: EPIPE. Allocated memory stays usable; close the pool when it is
    not needed any more.
    """


class Forked(Error):
    """After fork(): the pool belongs to the parent, and the child must open its own: ECHILD."""


class Closed(Error):
    """The object was closed: EBADF."""


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
    """Return the exception for a code of either sign; `why` replaces the library's text. Call it in the thread of the
    failed call, directly after it.
    """
    code = abs(code)
    text = library().gpool_last_error(code).decode(errors="replace")  # read in any case, which also resets it
    text = why or text
    return _BY_CODE.get(code, Error)(code, f"cannot {what}: {text}")


def check(result: int, what: str) -> int:
    """Return a result of the library; raises an exception if it is an error code."""
    if result < 0:
        raise error(result, what)
    return result
