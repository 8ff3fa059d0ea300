"""Ranges: addresses that stay while their pages change."""

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
    """no memory, or its memory has been given to another user"""
    RECLAIMABLE = _abi.GPOOL_PAGE_RECLAIMABLE
    """decommitted, and its memory has not been taken yet"""
    BACKED = _abi.GPOOL_PAGE_COMMITTED


class RangeInfo(NamedTuple):
    """The size and the state of a range."""

    asleep: bool
    memory_class: ObjectClass
    page_count: int
    address: int
    nbytes: int
    name: str
    """name of the object that keeps its content; empty: none"""
    version: int
    layout_hash: int
    committed_pages: int
    """all pages, except in an elastic range"""
    reclaimable_pages: int
    captured_pages: int
    handle_pages: int
    """pages that are mapped together"""


class Range:
    """Contiguous addresses that are valid until close(), from Pool.range(), Pool.open_range() or, elastic,
    Pool.reserve_range().

    Pool.sleep() releases the pages of all ranges, and Pool.wake() restores them, at the same addresses: with their
    contents (IMMUTABLE, MUTABLE), or without (EPHEMERAL). Pool.sleep() is refused while a view of a range exists.
    """

    def __init__(self, pool: Pool, pointer: int, elastic: bool) -> None:
        """Internal: use Pool.range()."""
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
            if kind is None:  # else views exist in the frames of an exception, which is more important
                raise

    def __del__(self) -> None:
        if hasattr(self, "handle") and not sys.is_finalizing():
            try:
                self.close()
            except Error:
                pass  # another library still has a tensor of it; it ends with the pool

    def close(self) -> None:
        """Destroy the range, awake or asleep; published content stays. Waits for work on the pool's streams. A second
        call does nothing.

        Raises Busy: a view of it exists, or GPU work that is queued elsewhere still uses it.
        """
        if not self._pool.closed:
            with self._pool.handle:
                self.handle.close(library().gpool_range_destroy)

    def info(self) -> RangeInfo:
        """Describe the range. Waits while a sleep or a wake is under way."""
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
        """Return the memory as an array: see Block.view(). It is read-only if the range is kept as an object. Raises
        Busy: it is asleep; for an elastic range Error with EFAULT: one of the pages is not committed."""
        info = self.info()
        if info.asleep:
            raise Asleep(errno.EHOSTDOWN, "cannot show a range: it is asleep; call Pool.wake() first")
        view = View(self, self._pool.device, dtype, shape, offset, readonly or info.version != 0, stream)
        if self._elastic and view.nbytes:
            first, last = offset // self._pool.page_bytes, (offset + view.nbytes - 1) // self._pool.page_bytes
            for page in range(first, last + 1):
                if self.page_state(page) != PageState.BACKED:
                    raise Error(errno.EFAULT, f"cannot show a range: page {page} is not committed; back() it first")
        return view

    def lend(self, stream: int) -> _abi.gpool_loan:
        """Create a loan for a view. Nothing is pinned: calls that would take the pages away check for views first."""
        with self._pool.handle as pool:
            return loan(pool, None, _abi.gpool_block(), stream)

    def where(self) -> Tuple[int, int]:
        """Return address and bytes for a view."""
        return self.address, self.nbytes

    # ---- elastic ranges ----

    def back(self, first: int, count: int, timeout_ms: int = 0) -> None:
        """Commit the pages [first, first + count), all or none. Pages that have memory keep it and its content.

        Raises NoRoom; Busy: asleep, or another thread commits them; Error with EINVAL: not an elastic range, or a page
        beyond its end.
        """
        with self.handle as pointer, self._pool.handle as pool:
            result = waiting(timeout_ms, library().gpool_range_commit, pointer, first, count, timeout_ms)
            self._pool.check_room(pool, result, f"back {count} pages")

    def unback(self, first: int, count: int, after: Optional[Fence] = None) -> None:
        """Decommit the pages [first, first + count); their content is discarded. Pass a fence behind the last work that
        uses them.

        Raises Busy: a view of the range exists; asleep.
        """
        self.handle.refuse_views("unback pages of")
        with self.handle as pointer:
            fence = after.fence if after is not None else _abi.gpool_fence(0)
            check(library().gpool_range_decommit(pointer, first, count, fence), f"unback {count} pages")

    def capture(self, first: int, count: int, captured: bool = True) -> None:
        """Note that the addresses of these committed pages are used in a captured graph: they stay mapped to the same
        memory, committed or not, until captured=False.
        """
        with self.handle as pointer:
            check(library().gpool_range_capture(pointer, first, count, int(captured)), f"capture {count} pages")

    def page_state(self, index: int) -> PageState:
        """Return the state of a page of an elastic range."""
        filled = _abi.gpool_range_page(size=ctypes.sizeof(_abi.gpool_range_page))
        with self.handle as pointer:
            check(library().gpool_range_resolve(pointer, index, ctypes.byref(filled)), f"tell of page {index}")
        return PageState(filled.state)
