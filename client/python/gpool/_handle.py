"""Handles: pointers of the C library, with a count of their users."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Callable, List, Optional, Tuple

from ._errors import Busy, Closed, Forked, check

if TYPE_CHECKING:
    from ._dlpack import Loan


class Handle:
    """A pointer of the C library, until it is closed.

    An object of the library must not end while a call or a view uses it. Calls therefore enter their handle (`with
    handle as pointer`), views hold it, and close() raises Busy while either exists. Calls and views also enter or hold
    the handle's parent.

    The lock is reentrant because Python may end a view at any line. Under the lock, the end of a view only changes
    counters.
    """

    def __init__(self, pointer: int, what: str, parent: Optional[Handle] = None) -> None:
        self.what = what
        self.parent = parent
        self._loans: List[Tuple[Loan, Handle]] = []  # of this handle and its descendants; only in the topmost handle
        self._pointer: Optional[int] = pointer
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._calls = 0
        self._views = 0

    # ---- calls ----

    def __enter__(self) -> int:
        self._count(1, 0)
        pointer = self._pointer
        assert pointer is not None
        return pointer

    def __exit__(self, *_: object) -> None:
        self._count(-1, 0)

    # ---- views ----

    def hold(self) -> None:
        """Count a view. Raises Closed; Forked."""
        self._count(0, 1)

    def release(self) -> None:
        """End the count of a view."""
        if not self.forked:
            self._count(0, -1)

    @property
    def views(self) -> int:
        """Return the number of views that exist, including tensors of DLPack."""
        self._settle()
        return self._views

    def lend(self, loan: Loan) -> None:
        """Count a loan as a view until it is settled, and forget settled loans."""
        top = self._top()
        top._settle()
        self.hold()
        with top._lock:
            top._loans.append((loan, self))

    def _top(self) -> Handle:
        return self if self.parent is None else self.parent._top()

    def _settle(self) -> None:
        top = self._top()
        with top._lock:
            settled = [entry for entry in top._loans if entry[0].settled()]
            for entry in settled:
                top._loans.remove(entry)
        for _, handle in settled:
            handle.release()

    # ---- end ----

    @property
    def forked(self) -> bool:
        """Return whether this process is a fork of the process that created the handle."""
        return os.getpid() != self._process

    @property
    def closed(self) -> bool:
        """Return whether the handle or its parent was closed."""
        return self._pointer is None or (self.parent is not None and self.parent.closed)

    def close(self, end: Callable[[int], Optional[int]], verb: str = "close") -> None:
        """Call end(pointer) once, which returns None or a code of the library. After an error the handle is unchanged.

        Does nothing if the handle is closed. Raises Busy; Error.
        """
        if self.forked or self.closed:
            return
        self.refuse_views(verb)
        with self._lock:
            if self._calls or self._views:
                raise Busy(errno.EBUSY, f"cannot {verb} {self.what}: another thread is in a call with it")
            pointer, self._pointer = self._pointer, None
        if pointer is None:
            return
        try:
            check(end(pointer) or 0, f"{verb} {self.what}")
        except BaseException:
            self._pointer = pointer
            raise

    def refuse_views(self, verb: str) -> None:
        """Raise Busy if views exist. Raises Busy."""
        views = self.views
        if views:
            raise Busy(
                errno.EBUSY,
                f"cannot {verb} {self.what}: {views} view{'s' * (views > 1)} of its memory live; "
                "drop the arrays and tensors first",
            )

    def _count(self, calls: int, views: int) -> None:
        if self.forked:
            raise Forked(errno.ECHILD, f"cannot use {self.what} after fork(): it is the parent's; open one of your own")
        if self.parent is not None:
            self.parent._count(calls, views)
        with self._lock:
            good = self._pointer is not None or calls + views < 0
            if good:
                self._calls += calls
                self._views += views
        if not good:
            if self.parent is not None:
                self.parent._count(-calls, -views)
            raise Closed(errno.EBADF, f"cannot use {self.what}: it is closed")
