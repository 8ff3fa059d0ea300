"""Ranges: addresses that stay while the pages behind them come and go."""

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
    """Of a page of an elastic range."""

    HOLE = _abi.GPOOL_PAGE_HOLE
    """no memory, or memory that is somebody else's by now"""
    RECLAIMABLE = _abi.GPOOL_PAGE_RECLAIMABLE
    """not backed, and its memory is still there"""
    BACKED = _abi.GPOOL_PAGE_COMMITTED


class RangeInfo(NamedTuple):
    """What a range is, and how many pages it has."""

    asleep: bool
    memory_class: ObjectClass
    page_count: int
    address: int
    nbytes: int
    name: str
    """of the object as which it is kept; empty: it is not"""
    version: int
    layout_hash: int
    committed_pages: int
    """all of them, but for an elastic range"""
    reclaimable_pages: int
    captured_pages: int
    handle_pages: int
    """pages that are mapped together"""


class Range:
    """Addresses in a row from their creation to close(), from Pool.range(), Pool.open_range() or, elastic,
    Pool.reserve_range().

    Pool.sleep() takes the pages of all ranges away, and Pool.wake() brings them back, at the same addresses: with their
    contents (IMMUTABLE, MUTABLE), or without (EPHEMERAL). While a view of a range lives, the pool does not go to sleep.
    """

    def __init__(self, pool: Pool, pointer: int, elastic: bool) -> None:
        """The package's own."""
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
            if kind is None:  # else views live in the frames of an exception, which says more
                raise

    def __del__(self) -> None:
        if hasattr(self, "handle") and not sys.is_finalizing():
            try:
                self.close()
            except Error:
                pass  # a tensor of another library's lives on; it ends with the pool

    def close(self) -> None:
        """Its addresses end, awake or asleep; what was published stays. It waits for work on the pool's streams. A
        second call does nothing.

        Raises Busy: a view of it lives, or GPU work that is queued elsewhere still uses it.
        """
        if not self._pool.closed:
            with self._pool.handle:
                self.handle.close(library().gpool_range_destroy)

    def info(self) -> RangeInfo:
        """Waits while the pool goes to sleep or wakes."""
        filled = _abi.gpool_range_info(size=ctypes.sizeof(_abi.gpool_range_info))
        with self.handle as pointer:
            check(library().gpool_range_info(pointer, ctypes.byref(filled)), "tell of a range")
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
        """As Block.view(); also read only where the range is kept as an object. Raises Busy: it is asleep; of an
        elastic range Error with EFAULT: a page of those that are shown is not backed."""
        info = self.info()
        if info.asleep:
            raise Asleep(errno.EHOSTDOWN, "cannot show a range: it is asleep; call Pool.wake() first")
        view = View(self, self._pool.device, dtype, shape, offset, readonly or info.version != 0, stream)
        if self._elastic and view.nbytes:
            first, last = offset // self._pool.page_bytes, (offset + view.nbytes - 1) // self._pool.page_bytes
            for page in range(first, last + 1):
                if self.page_state(page) != PageState.BACKED:
                    raise Error(errno.EFAULT, f"cannot show a range: page {page} is not backed; back() it first")
        return view

    def lend(self, stream: int) -> _abi.gpool_loan:
        """For views. Nothing is pinned: what would take the pages away asks for views first."""
        with self._pool.handle as pool:
            return loan(pool, None, _abi.gpool_block(), stream)

    def where(self) -> Tuple[int, int]:
        """For views: address and bytes."""
        return self.address, self.nbytes

    # ---- elastic ranges ----

    def back(self, first: int, count: int, timeout_ms: int = 0) -> None:
        """Pages [first, first + count) have memory when this returns, all or none of them; what had any keeps it, with
        its content.

        Raises NoRoom; Busy: asleep, or another thread backs them; Error with EINVAL: not an elastic range, or not so
        many pages.
        """
        with self.handle as pointer, self._pool.handle as pool:
            result = waiting(timeout_ms, library().gpool_range_commit, pointer, first, count, timeout_ms)
            self._pool.check_room(pool, result, f"back {count} pages")

    def unback(self, first: int, count: int, after: Optional[Fence] = None) -> None:
        """Pages [first, first + count) have none any more, and their content is gone; with a fence behind the last work
        that uses them.

        Raises Busy: a view of the range lives; asleep.
        """
        self.handle.refuse_views("unback pages of")
        with self.handle as pointer:
            fence = after.fence if after is not None else _abi.gpool_fence(0)
            check(library().gpool_range_decommit(pointer, first, count, fence), f"unback {count} pages")

    def capture(self, first: int, count: int, captured: bool = True) -> None:
        """The addresses of these backed pages stand in a captured graph: they stay mapped to the same memory, backed or
        not, until captured=False.
        """
        with self.handle as pointer:
            check(library().gpool_range_capture(pointer, first, count, int(captured)), f"capture {count} pages")

    def page_state(self, index: int) -> PageState:
        """What lies behind a page of an elastic range."""
        filled = _abi.gpool_range_page(size=ctypes.sizeof(_abi.gpool_range_page))
        with self.handle as pointer:
            check(library().gpool_range_resolve(pointer, index, ctypes.byref(filled)), f"tell of page {index}")
        return PageState(filled.state)
