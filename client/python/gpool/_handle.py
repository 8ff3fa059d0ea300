"""Pointers of the library, and their users."""

from __future__ import annotations

import errno
import sys
import threading
from typing import TYPE_CHECKING, Callable, List, NoReturn, Optional, Tuple, TypeVar

from . import _native
from ._errors import Busy, Closed, Error, Forked, check

if TYPE_CHECKING:
    from ._dlpack import Loan


class Handle(_native.Guard):
    """Keep a pointer of the library until it is closed.

    A pointer must not be closed while another thread uses it in a call, or while a view of its memory exists. Calls
    therefore enter their handle (`with handle as pointer`), views hold it, and close() refuses while any of them exist.
    Both also enter and hold the handle's parent. The counts are in C, in _native.Guard, where no other thread runs
    between a check of a count and the change that depends on it.
    """

    parent: Optional[Handle]

    def __init__(self, pointer: int, what: str, parent: Optional[Handle] = None) -> None:
        # Loans of this handle and its descendants. A handle with a parent has none: they are in the topmost handle.
        self._loans: List[Tuple[Loan, Handle]] = []
        self._lock = threading.RLock()  # protects _loans; reentrant because Python may end a view at any line

    # ---- views ----

    @property
    def views(self) -> int:
        """Return the number of views that exist, including tensors of DLPack."""
        self._settle()
        return self.held

    def lend(self, loan: Loan) -> None:
        """Count a loan as a view until it is settled, and remove settled loans."""
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

    def close(
        self,
        end: Callable[..., Optional[int]],
        verb: str = "close",
        before: Tuple[object, ...] = (),
        with_pointer: bool = True,
        waits: bool = False,
    ) -> None:
        """Call end(*before, pointer) once, a function of the library, which returns nothing or a code; after an error
        the handle is unchanged.

        Does nothing if the handle is closed. with_pointer: pass the pointer. waits: the function waits, and a signal
        handler that raises an exception ends the wait; the handle is then unchanged, unless the function has succeeded.
        Raises Busy; Error.
        """
        if self.forked or self.closed:
            return
        self.refuse_views(verb)
        code = self.end(end, before, with_pointer, waits)
        if code is None:
            raise Busy(errno.EBUSY, f"cannot {verb} {self.what}: another thread uses it in a call")
        check(code, f"{verb} {self.what}")

    def refuse_views(self, verb: str) -> None:
        """Raise Busy if there are views. verb: the operation, in which {} is replaced by the object, if present. Raises
        Busy.
        """
        views = self.views
        if views:
            what = verb.format(self.what) if "{}" in verb else f"{verb} {self.what}"
            exist = "1 view of its memory exists" if views == 1 else f"{views} views of its memory exist"
            raise Busy(errno.EBUSY, f"cannot {what}: {exist}; delete the arrays and tensors first")

    def _refuse(self, code: int) -> NoReturn:
        """Raise the exception for a call or view that cannot begin."""
        if code == errno.ECHILD:
            raise Forked(
                code, f"cannot use {self.what} after fork(): it belongs to the parent process; attach in the child"
            )
        raise Closed(code, f"cannot use {self.what}: it is closed")


SomeClosing = TypeVar("SomeClosing", bound="Closing")


class Closing:
    """An object with a `handle` that close() ends: at the end of a `with` statement, or with its last reference."""

    def __enter__(self: SomeClosing) -> SomeClosing:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except Error:
            # The frames of a propagating exception may hold views. That exception is more informative than Busy, and
            # the object is closed with its last reference.
            if kind is None:
                raise

    def __del__(self) -> None:
        if hasattr(self, "handle") and not sys.is_finalizing():
            try:
                self.close()
            except Error:
                pass  # a tensor, an acquired adapter or a call still uses it; it ends with the pool or the process

    def close(self) -> None:
        """Close the object; each class documents the effect. A second call does nothing. Raises Error."""
        raise NotImplementedError
