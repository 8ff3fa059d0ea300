"""Ranges: addresses that stay the same while their pages change."""

from __future__ import annotations

import ctypes
import enum
import errno
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi, _native
from ._checked import check_count
from ._errors import Asleep, Error, check
from ._handle import Closing, Handle
from ._library import library
from ._object import Object, ObjectClass
from ._text import c_bytes, c_optional, c_text, counted
from ._view import View, loan

if TYPE_CHECKING:
    from ._pool import Pool
    from ._stream import Stream


class PageState(enum.IntEnum):
    """The state of a page of an elastic range."""

    HOLE = _abi.GPOOL_PAGE_HOLE
    """no memory, or the memory was taken"""
    RECLAIMABLE = _abi.GPOOL_PAGE_RECLAIMABLE
    """decommitted, but its memory is still mapped"""
    COMMITTED = _abi.GPOOL_PAGE_COMMITTED
    SHARED = _abi.GPOOL_PAGE_SHARED
    """a page of a named object: Range.publish(), Range.map()"""


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
    offered_pages: int
    """of the committed pages; includes pages that the agent has taken in the meantime"""


class Range(_native.Range, Closing):
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
        self.addresses = Handle(pointer, "a range", pool.handle)  # held by sparse views, which permit decommits
        self.handle = Handle(pointer, "a range", pool.handle)
        info = self.info()
        self.address, self.nbytes, self.page_count = info.address, info.nbytes, info.page_count

    def __repr__(self) -> str:
        return (
            f"<gpool.Range {counted(self.page_count, 'page')} at {self.address:#x}{', elastic' * self._elastic}"
            f"{', closed' * self.handle.closed}>"
        )

    def close(self) -> None:
        """Destroy the range, awake or asleep. A published object remains. A second call does nothing.

        Waits for the work on the pool's streams. A signal handler that raises an exception ends the wait, and the
        range remains open.
        Raises Busy: a view of the range exists, or GPU work that was queued elsewhere uses it.
        """
        if not self._pool.closed:
            self.addresses.refuse_views("close")
            with self._pool.handle:
                self.handle.close(library().gpool_range_destroy, waits=True)

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
            filled.offered_pages,
        )

    def view(
        self,
        dtype: Any = "uint8",
        shape: Union[int, Sequence[int], None] = None,
        offset: int = 0,
        readonly: bool = False,
        stream: Optional[Stream] = None,
        *,
        sparse: bool = False,
    ) -> View:
        """Return the range's memory as an array; arguments as in Block.view(). The view is read-only if an object keeps
        the range's content.

        sparse: permit pages without memory in the view of an elastic range, and permit decommit(), publish(), unmap()
        and Pool.sleep() while the view exists. The program must not access pages without memory: that ends the
        process, or fails the GPU work. The range can be closed only after the view.

        Raises Asleep; Error with EFAULT: a page of the view is not committed; ValueError; TypeError.
        Cost: for an elastic range, one query for each page of the view, unless it is sparse.
        """
        if sparse:
            return View(_Addresses(self), self._pool, dtype, shape, offset, readonly, stream)
        info = self.info()
        if info.asleep:
            raise Asleep(errno.EHOSTDOWN, "cannot create a view of a range: it is asleep; call Pool.wake() first")
        view = View(self, self._pool, dtype, shape, offset, readonly or info.version != 0, stream)
        if self._elastic and view.nbytes:
            first, last = offset // self._pool.page_bytes, (offset + view.nbytes - 1) // self._pool.page_bytes
            for page in range(first, last + 1):
                if self.page_state(page) != PageState.COMMITTED:
                    raise Error(
                        errno.EFAULT,
                        f"cannot create a view of a range: page {page} is not committed; commit() it first",
                    )
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

    # ---- named objects ----

    def publish(
        self,
        first: int,
        count: int,
        name: str,
        *,
        key: Optional[str] = None,
        value: bytes = b"",
        private: bool = False,
        follows: Optional[Object] = None,
    ) -> Object:
        """Publish the committed pages [first, first + count) as an object under an unused name. Return the object,
        pinned once.

        The pages stay at their addresses and are read-only in all processes; work that writes them must have finished.
        Other processes map them with map(). The agent may evict the object while it is not pinned.

        key, value: metadata of the object, a str and bytes or another buffer. private: refuse sessions of other
        tenants. follows: open object that is to be evicted after this one.
        Raises Stale: an object of this name exists; Busy: a view exists, or queued GPU work could write the pages;
        Asleep; NoRoom; Error with EINVAL: a page is not committed; EPERM.
        Cost: one request to the agent.
        """
        self._check_pages(first, count)
        self.handle.refuse_views("publish pages of")
        value = c_bytes(value, "value")
        if follows is not None and not isinstance(follows, Object):
            raise TypeError(f"follows is {follows!r}, which is not an Object")
        if follows is not None:
            _refuse_unfit(follows, self._pool, f"publish {counted(count, 'page')} as object '{name}'")
        options = _abi.gpool_range_publish_options(
            size=ctypes.sizeof(_abi.gpool_range_publish_options),
            flags=_abi.GPOOL_OBJECT_PRIVATE if private else 0,
            key=c_optional(key, "key"),
            value=ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p) if key is not None else None,
            value_bytes=len(value) if key is not None else 0,
        )
        made = ctypes.c_void_p()
        with self.handle as pointer:
            if follows is None:
                result = library().gpool_range_publish(pointer, first, count, c_text(name), options, ctypes.byref(made))
            else:
                with follows.handle as before:
                    options.follows = before
                    result = library().gpool_range_publish(
                        pointer, first, count, c_text(name), options, ctypes.byref(made)
                    )
            check(result, f"publish {counted(count, 'page')} as object '{name}'")
        assert made.value
        return Object(self._pool, made.value, name, pinned=True, within=self)

    def map(self, first: int, name: str) -> Object:
        """Map all pages of an object, read-only, at page `first` and the pages that follow, which must not be
        committed. Return the object, pinned once if it can be pinned.

        Object.close() ends the mapping.
        Raises NotFound; Stale: it has been evicted; Busy: a page there is in use; Asleep; Error with EINVAL: it
        does not fit, or is mutable; EACCES: it is private to another tenant.
        Cost: one request to the agent, a mapping for each page.
        """
        made = ctypes.c_void_p()
        self._check_pages(first)
        with self.handle as pointer:
            check(
                library().gpool_range_map(pointer, first, c_text(name), None, ctypes.byref(made)),
                f"map object '{name}' at page {first}",
            )
            pinned = library().gpool_object_unpin(made) == 0
            if pinned and library().gpool_object_pin(made):
                pinned = False  # evicted between the two calls; the next pin reports it
        assert made.value
        return Object(self._pool, made.value, name, pinned=pinned, within=self)

    def _check_pages(self, first: int, count: int = 1) -> None:
        """Raise OverflowError for pages that C cannot hold; the library refuses other numbers."""
        has = f"the range has {counted(self.page_count, 'page')}"
        check_count("first", first, f"from 0 to {self.page_count - 1}; {has}")
        check_count("count", count, f"from 1 to {self.page_count}; {has}")

    def capture(self, first: int, count: int, captured: bool = True) -> None:
        """Keep committed pages mapped to the same memory until captured=False, for a captured CUDA graph that uses
        their addresses.

        Raises Error with EINVAL: not committed; Asleep.
        Cost: one lock.
        """
        self._check_pages(first, count)
        with self.handle as pointer:
            check(
                library().gpool_range_capture(pointer, first, count, int(bool(captured))),
                f"capture {counted(count, 'page')}",
            )

    def page_state(self, index: int) -> PageState:
        """Return the state of page `index` of an elastic range.

        Raises Error with EINVAL: beyond the end; Asleep.
        Cost: one lock.
        """
        check_count(
            "index", index, f"from 0 to {self.page_count - 1}; the range has {counted(self.page_count, 'page')}"
        )
        filled = _abi.gpool_range_page(size=ctypes.sizeof(_abi.gpool_range_page))
        with self.handle as pointer:
            check(
                library().gpool_range_resolve(pointer, index, ctypes.byref(filled)), f"read the state of page {index}"
            )
        return PageState(filled.state)


def _refuse_unfit(follows: Object, pool: Pool, what: str) -> None:
    """Raise Error with EINVAL: the object belongs to another pool, or is not published. what: verb phrase of the
    call.
    """
    if follows._pool.handle is not pool.handle:
        why = "belongs to another pool"
    elif follows._draft:
        why = "is not published; publish() it first"
    else:
        return
    raise Error(errno.EINVAL, f"cannot {what}: follows is object '{follows.name}', which {why}")


class _Addresses:
    """Present the addresses of an elastic range to sparse views, whichever pages have memory."""

    def __init__(self, shown: Range) -> None:
        self._range = shown

    @property
    def handle(self) -> Handle:
        return self._range.addresses

    def lend(self, stream: int) -> _abi.gpool_loan:
        return self._range.lend(stream)

    def where(self) -> Tuple[int, int]:
        return self._range.where()
