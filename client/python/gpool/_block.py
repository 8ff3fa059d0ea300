"""Blocks: pages of the pool, pinned while they are used; and spans, which are smaller than a page."""

from __future__ import annotations

import ctypes
import errno
import threading
import warnings
from typing import TYPE_CHECKING, Any, Optional, Sequence, Tuple, Union

from . import _abi
from ._errors import Error, Stale, check
from ._handle import Handle
from ._library import library
from ._view import View, loan

if TYPE_CHECKING:
    from ._pool import Pool
    from ._stream import Fence, Stream


class Pin:
    """The result of Block.pin(): `with block.pin():` unpins at the end. It has no other use."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def __enter__(self) -> Block:
        return self.block

    def __exit__(self, *_: object) -> None:
        self.block.unpin()


class Block:
    """Pages that Pool.alloc() returned, pinned once. They are freed by free() or at the end of a `with`, not by
    Python's collector:

        with pool.alloc(4) as block:            # freed at the end
            array = numpy.asarray(block.view("float16", (1024, 1024)))

    A block that is not pinned may be evicted; then all calls except free() raise Stale. A pin that lasts longer than
    the agent's pins.max_duration (30 s) counts as leaked unless touch() is called meanwhile; the agent's configuration
    states how leaked pins are treated.

    Threads: any."""

    def __init__(self, pool: Pool, block: _abi.gpool_block) -> None:
        self._pool = pool
        self._block = block
        self._lock = threading.Lock()
        self._pins = 1  # pins of the program; views have their own, which a surplus unpin() does not end
        self._freed = False

    def __repr__(self) -> str:
        return (
            f"<gpool.Block {self.page_count} pages from page {self._block.page}, "
            f"{self._pins} pins{', freed' * self._freed}>"
        )

    def __del__(self) -> None:
        if self._pins and not self._freed and not self._pool.closed:
            warnings.warn(
                f"{self!r} is dropped and stays pinned: free() or unpin() it",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._freed and not self._pool.closed:
            try:
                self.free()
            except Stale:
                pass  # it was evicted

    # ---- properties ----

    @property
    def page_count(self) -> int:
        return int(self._block.page_count)

    @property
    def page(self) -> int:
        """Number of the first page in the pool."""
        return int(self._block.page)

    @property
    def nbytes(self) -> int:
        return self.page_count * self._pool.page_bytes

    @property
    def address(self) -> int:
        """Return the device address of the `nbytes` contiguous bytes; valid while the block is pinned. Raises Stale."""
        address = ctypes.c_uint64()
        with self._pool.handle as pool:
            check(library().gpool_address(pool, self._block, ctypes.byref(address)), "tell a block's address")
        return address.value

    # ---- pins ----

    def pin(self) -> Pin:
        """Keep content and addresses until unpin(), or until the end of `with block.pin():`. Pins nest.

        Raises Stale: freed or evicted; NoRoom and others, for a block with `spill`: it cannot be restored now.
        Cost: mostly the interpreter's time; a system call only if the block is being moved or must be restored.
        """
        with self._pool.handle as pool:
            check(library().gpool_pin(pool, self._block), "pin a block")
        with self._lock:
            self._pins += 1
        return Pin(self)

    def unpin(self, after: Optional[Fence] = None) -> None:
        """End one pin of the program: the pin of the allocation, or of a pin(). With a fence, the pin ends when the
        fence is signaled; the call does not wait.

        Raises Error with EINVAL: the program has no pin. The pins of views end with the views.
        """
        self._end_pin("unpin a block")
        with self._pool.handle as pool:
            if after is None:
                result = library().gpool_unpin(pool, self._block)
            else:
                result = library().gpool_unpin_after(pool, self._block, after.fence)
        self._ended_pin(result, "unpin a block")

    def free(self, after: Optional[Fence] = None) -> None:
        """Free the block, pinned or not. With a fence, it is freed when the fence is signaled; the call does not wait.
        If views or other pins exist, it is freed with the last of them.

        Raises Stale: freed or evicted already.
        """
        if self._pins == 0 and after is None:
            with self._pool.handle as pool:
                check(library().gpool_discard(pool, self._block), "free a block")
            self._freed = True
            return
        if self._pins == 0:
            self.pin()
        self._end_pin("free a block")
        with self._pool.handle as pool:
            if after is None:
                result = library().gpool_free(pool, self._block)
            else:
                result = library().gpool_free_after(pool, self._block, after.fence)
        self._ended_pin(result, "free a block")
        self._freed = True

    def touch(self) -> None:
        """Mark the block as in use: a long pin does not count as leaked, and other blocks are evicted first."""
        with self._pool.handle as pool:
            check(library().gpool_touch(pool, self._block), "touch a block")

    def _end_pin(self, what: str) -> None:
        with self._lock:
            if self._pins == 0:
                raise Error(errno.EINVAL, f"cannot {what}: the program has not pinned it")
            self._pins -= 1

    def _ended_pin(self, result: int, what: str) -> None:
        if result < 0 and result != -errno.ESTALE:
            with self._lock:
                self._pins += 1
        check(result, what)

    # ---- views ----

    def view(
        self,
        dtype: Any = "uint8",
        shape: Union[int, Sequence[int], None] = None,
        offset: int = 0,
        readonly: bool = False,
        stream: Optional[Stream] = None,
    ) -> View:
        """Return the memory from byte `offset` on as an array, which keeps it pinned as long as it exists: see View.

        shape: integers, at most 32 of them; None: the rest of the block, in one dimension. Raises Stale: freed or
        evicted; ValueError: the memory is smaller, too many dimensions, or an offset that is not a multiple of the
        dtype's size; TypeError: no integers."""
        return View(_Shown(self._pool, self._block), self._pool.device, dtype, shape, offset, readonly, stream)


class _Shown:
    """A block as the source of views."""

    def __init__(self, pool: Pool, block: _abi.gpool_block) -> None:
        self._pool = pool  # keeps the pool alive while views exist
        self._block = block

    @property
    def handle(self) -> Handle:
        return self._pool.handle

    def lend(self, stream: int) -> _abi.gpool_loan:
        with self._pool.handle as pool:
            check(library().gpool_pin(pool, self._block), "pin a block")
            return loan(pool, None, self._block, stream)

    def where(self) -> Tuple[int, int]:
        address = ctypes.c_uint64()
        with self._pool.handle as pool:
            check(library().gpool_address(pool, self._block, ctypes.byref(address)), "tell a block's address")
        return address.value, int(self._block.page_count) * self._pool.page_bytes


class Span:
    """A part of a page, aligned to 256 bytes, from Pool.alloc_span(); valid until free(), or until the end of a `with`.

    Threads: any.
    """

    def __init__(self, pool: Pool, span: _abi.gpool_span) -> None:
        self._pool = pool
        self._span = span
        self.handle = Handle(span.address, "a span", pool.handle)

    @property
    def address(self) -> int:
        return int(self._span.address)

    @property
    def nbytes(self) -> int:
        """Size, rounded up to the size class."""
        return int(self._span.bytes)

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def free(self) -> None:
        """Free the span. A second call does nothing. Raises Busy: views of it exist, since its bytes could be given to
        another span at once.
        """
        self.handle.close(self._end, "free")

    def _end(self, _: int) -> int:
        with self._pool.handle as pool:
            return int(library().gpool_span_free(pool, self._span))

    def view(
        self,
        dtype: Any = "uint8",
        shape: Union[int, Sequence[int], None] = None,
        offset: int = 0,
        readonly: bool = False,
        stream: Optional[Stream] = None,
    ) -> View:
        """See Block.view()."""
        return View(self, self._pool.device, dtype, shape, offset, readonly, stream)

    def lend(self, stream: int) -> _abi.gpool_loan:
        """Pin the span for a view."""
        with self._pool.handle as pool:
            check(library().gpool_pin(pool, self._span.block), "pin a span")
            return loan(pool, None, self._span.block, stream)

    def where(self) -> Tuple[int, int]:
        """Return address and bytes for a view."""
        return self.address, self.nbytes
