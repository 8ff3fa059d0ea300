"""Ranges: addresses that stay the same while their pages change."""

from __future__ import annotations

import ctypes
import enum
import errno
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi
from ._errors import Asleep, Error, check
from ._handle import Handle
from ._library import library
from ._object import ObjectClass
from ._view import View, loan
from ._wait import waiting

if TYPE_CHECKING:
    from ._pool import Pool
    from ._stream import Fence, Stream


class PageState(enum.IntEnum):
    """The state of a page of an elastic range."""

    HOLE = _abi.GPOOL_PAGE_HOLE
    """no memory, or the memory was taken"""
    RECLAIMABLE = _abi.GPOOL_PAGE_RECLAIMABLE
    """decommitted, but its memory is still mapped"""
    COMMITTED = _abi.GPOOL_PAGE_COMMITTED


class RangeInfo(NamedTuple):
    """Description of a range, with the numbers of its pages."""

    asleep: bool
    memory_class: ObjectClass
    page_count: int
    address: int
    nbytes: int
    name: str
    """name of the object that keeps the content; empty: no object"""
    version: int
    layout_hash: int
    committed_pages: int
    """all pages, except for an elastic range"""
    reclaimable_pages: int
    captured_pages: int
    handle_pages: int
    """pages per driver handle"""


class Range:
    """A range of contiguous addresses, until close(). Pool.create_range(), Pool.open_range() and, for elastic ranges,
    Pool.reserve_range() create it.

    Pool.sleep() returns the pages of all ranges, and Pool.wake() commits pages again at the same addresses, with their
    content (IMMUTABLE, MUTABLE) or without (EPHEMERAL). The session cannot sleep while a view of a range exists.

    Threads: any.
    """

    def __init__(self, pool: Pool, pointer: int, elastic: bool) -> None:
        """Wrap a range of the library; for this package only."""
        self._pool = pool
        self._elastic = elastic
        self.handle = Handle(pointer, "a range", pool.handle)
        info = self.info()
        self.address, self.nbytes, self.page_count = info.address, info.nbytes, info.page_count

    def __repr__(self) -> str:
        return (
            f"<gpool.Range {self.page_count} pages at {self.address:#x}{', elastic' * self._elastic}"
            f"{', closed' * self.handle.closed}>"
        )

    def __enter__(self) -> Range:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except Error:
            if kind is None:  # otherwise the frames of a more informative exception may hold views
                raise

    def __del__(self) -> None:
        if hasattr(self, "handle") and not sys.is_finalizing():
            try:
                self.close()
            except Error:
                pass  # another library still has a tensor; the range ends with the pool

    def close(self) -> None:
        """Destroy the range, awake or asleep. A published object remains. A second call does nothing.

        Waits for the work on the pool's streams.
        Raises Busy: a view of the range exists, or GPU work that was queued elsewhere uses it.
        """
        if not self._pool.closed:
            with self._pool.handle:
                self.handle.close(library().gpool_range_destroy)

    def info(self) -> RangeInfo:
        """Return the description of the range. Waits for a sleep or wake of the session that is in progress.

        Raises Closed; Forked.
        Cost: one lock.
        """
        filled = _abi.gpool_range_info(size=ctypes.sizeof(_abi.gpool_range_info))
        with self.handle as pointer:
            check(library().gpool_range_info(pointer, ctypes.byref(filled)), "read the state of a range")
        return RangeInfo(
            filled.state == _abi.GPOOL_RANGE_ASLEEP,
            ObjectClass(filled.memory_class),
            filled.page_count,
            filled.address,
            filled.bytes,
            filled.name.decode(errors="replace"),
            filled.version,
            filled.layout_hash,
            filled.committed_pages,
            filled.reclaimable_pages,
            filled.captured_pages,
            filled.handle_pages,
        )

    def view(
        self,
        dtype: Any = "uint8",
        shape: Union[int, Sequence[int], None] = None,
        offset: int = 0,
        readonly: bool = False,
        stream: Optional[Stream] = None,
    ) -> View:
        """Return the range's memory as an array; arguments as in Block.view(). The view is read-only if an object keeps
        the range's content.

        Raises Asleep; Error with EFAULT: a page of the view is not committed; ValueError; TypeError.
        Cost: for an elastic range, one query for each page of the view.
        """
        info = self.info()
        if info.asleep:
            raise Asleep(errno.EHOSTDOWN, "cannot show a range: it is asleep; call Pool.wake() first")
        view = View(self, self._pool.device, dtype, shape, offset, readonly or info.version != 0, stream)
        if self._elastic and view.nbytes:
            first, last = offset // self._pool.page_bytes, (offset + view.nbytes - 1) // self._pool.page_bytes
            for page in range(first, last + 1):
                if self.page_state(page) != PageState.COMMITTED:
                    raise Error(errno.EFAULT, f"cannot show a range: page {page} is not committed; commit() it first")
        return view

    def lend(self, stream: int) -> _abi.gpool_loan:
        """Return a loan for views. It pins no page, since calls that remove pages raise Busy while views exist. Raises
        Closed.
        """
        with self._pool.handle as pool:
            return loan(pool, None, _abi.gpool_block(), stream)

    def where(self) -> Tuple[int, int]:
        """Return address and size in bytes, for views."""
        return self.address, self.nbytes

    # ---- elastic ranges ----

    def commit(self, first: int, count: int, timeout_ms: int = 0) -> None:
        """Commit pages [first, first + count) of an elastic range, all or none. Committed pages keep their content.

        timeout_ms: longest wait for pages in milliseconds; 0: do not wait, -1: no limit.
        Raises NoRoom; Asleep; Busy: another thread is committing these pages; Error with EINVAL: not an elastic range,
        or beyond its end.
        Cost: no driver call for reclaimable pages; otherwise a request to the agent, a map call for each handle, an
        access call.
        """
        with self.handle as pointer, self._pool.handle as pool:
            result = waiting(timeout_ms, library().gpool_range_commit, pointer, first, count, timeout_ms)
            self._pool.check_room(pool, result, f"commit {count} pages")

    def decommit(self, first: int, count: int, after: Optional[Fence] = None) -> None:
        """Decommit pages [first, first + count) of an elastic range. Their content is lost.

        after: fence behind the last work that uses the pages.
        Raises Busy: a view of the range exists; Asleep; Error with EINVAL.
        Cost: no request to the agent and no driver call.
        """
        self.handle.refuse_views("decommit pages of")
        with self.handle as pointer:
            fence = after.fence if after is not None else _abi.gpool_fence(0)
            check(library().gpool_range_decommit(pointer, first, count, fence), f"decommit {count} pages")

    def capture(self, first: int, count: int, captured: bool = True) -> None:
        """Keep committed pages mapped to the same memory until captured=False, for a captured CUDA graph that uses
        their addresses.

        Raises Error with EINVAL: not committed; Asleep.
        Cost: one lock.
        """
        with self.handle as pointer:
            check(library().gpool_range_capture(pointer, first, count, int(captured)), f"capture {count} pages")

    def page_state(self, index: int) -> PageState:
        """Return the state of page `index` of an elastic range.

        Raises Error with EINVAL: beyond the end; Asleep.
        Cost: one lock.
        """
        filled = _abi.gpool_range_page(size=ctypes.sizeof(_abi.gpool_range_page))
        with self.handle as pointer:
            check(
                library().gpool_range_resolve(pointer, index, ctypes.byref(filled)), f"read the state of page {index}"
            )
        return PageState(filled.state)
