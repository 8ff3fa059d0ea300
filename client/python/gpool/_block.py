"""Blocks, which are pages of the pool, and spans, which are parts of a page."""

from __future__ import annotations

import ctypes
import functools
import warnings
from typing import TYPE_CHECKING, Any, Optional, Sequence, Tuple, Union

from . import _abi, _native
from ._errors import check
from ._handle import Handle
from ._library import library
from ._text import counted
from ._view import View, loan
from ._wait import waiting

if TYPE_CHECKING:
    from ._pool import Pool
    from ._stream import Stream


class Pin(_native.Pin):
    """The result of Block.pin(): unpins the block at the end of a `with` statement."""

    __slots__ = ()


class Block(_native.Block):
    """A block of pages from Pool.alloc(), pinned once, until free() or the end of a `with` statement.

        with pool.alloc(4) as block:            # freed at the end
            array = numpy.asarray(block.view("float16", (1024, 1024)))

    A block without pins may be evicted; then all calls except free() raise Stale. A pin counts as leaked if it is held
    for longer than the agent's pins.max_duration (30 s by default) without a call of touch() or another pin; the key
    pins.leaked then determines its treatment.

    Threads: any.
    """

    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        return (
            f"<gpool.Block {counted(self.page_count, 'page')} from page {self.page}, {counted(self._pins, 'pin')}"
            f"{', freed' * self._freed}>"
        )

    def _dropped(self) -> None:
        """Warn that the last reference of a pinned block has ended."""
        warnings.warn(
            f"{self!r} was deleted while pinned; call free() or unpin() first",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self.page_count * self._pool.page_bytes

    @property
    def _block(self) -> _abi.gpool_block:
        return _abi.gpool_block.from_buffer_copy(self._value)

    # ---- views ----

    def view(
        self,
        dtype: Any = "uint8",
        shape: Union[int, Sequence[int], None] = None,
        offset: int = 0,
        readonly: bool = False,
        stream: Optional[Stream] = None,
    ) -> View:
        """Return the block's memory from byte `offset` as an array. The view keeps the block pinned while it exists:
        see View.

        dtype: name of a type, or a dtype of numpy or PyTorch. shape: at most 32 integers; None: all remaining memory in
        one dimension. readonly: refuse writes through the view. stream: stream that orders the accesses.
        Raises Stale: freed or evicted; ValueError: more memory than the block has, too many dimensions, or an offset
        that is not a multiple of the element size; TypeError: unknown dtype, lengths that are not integers.
        Cost: a pin.
        """
        return View(_Shown(self._pool, self._block), self._pool, dtype, shape, offset, readonly, stream)


class _Shown:
    """A block as a source of views."""

    def __init__(self, pool: Pool, block: _abi.gpool_block) -> None:
        self._pool = pool  # keeps the pool alive while views exist
        self._block = block

    @property
    def handle(self) -> Handle:
        return self._pool.handle

    def lend(self, stream: int) -> _abi.gpool_loan:
        with self._pool.handle as pool:
            block = self._block
            undo = functools.partial(library().gpool_unpin, pool, block)
            check(waiting(-1, library().gpool_pin, pool, block, undo=undo), "pin a block")
            return loan(pool, None, self._block, stream)

    def where(self) -> Tuple[int, int]:
        address = ctypes.c_uint64()
        with self._pool.handle as pool:
            check(library().gpool_address(pool, self._block, ctypes.byref(address)), "read a block's address")
        return address.value, int(self._block.page_count) * self._pool.page_bytes


class Span:
    """Part of a page, aligned to 256 bytes, from Pool.alloc_span() until free() or the end of a `with` statement.

    Threads: any.
    """

    def __init__(self, pool: Pool, span: _abi.gpool_span) -> None:
        self._pool = pool
        self._span = span
        self.handle = Handle(span.address, "a span", pool.handle)

    @property
    def address(self) -> int:
        """Return the device address. Raises Closed: the span is freed, or the pool closed; Forked."""
        with self.handle as address:
            return int(address)

    @property
    def nbytes(self) -> int:
        """Return the size in bytes, rounded up to the size class."""
        return int(self._span.bytes)

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def free(self) -> None:
        """Free the span; a second call does nothing.

        Raises Busy: views of the span exist, whose bytes another span could get at once.
        Cost: mostly that of the interpreter.
        """
        if self.handle.forked or self.handle.closed:
            return
        with self._pool.handle as pool:
            self.handle.close(library().gpool_span_free, "free", (pool, self._span), with_pointer=False)

    def view(
        self,
        dtype: Any = "uint8",
        shape: Union[int, Sequence[int], None] = None,
        offset: int = 0,
        readonly: bool = False,
        stream: Optional[Stream] = None,
    ) -> View:
        """Return the span's memory as an array; arguments and errors as in Block.view(). Raises Stale; ValueError;
        TypeError.
        """
        return View(self, self._pool, dtype, shape, offset, readonly, stream)

    def lend(self, stream: int) -> _abi.gpool_loan:
        """Return a loan of the span's page, for views. Raises Stale."""
        with self._pool.handle as pool:
            check(library().gpool_pin(pool, self._span.block), "pin a span")
            return loan(pool, None, self._span.block, stream)

    def where(self) -> Tuple[int, int]:
        """Return address and size in bytes, for views."""
        return self.address, self.nbytes
