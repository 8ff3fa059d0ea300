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
    """What Block.pin() returns: `with block.pin():` unpins at the end, and nothing else is to be done with it."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def __enter__(self) -> Block:
        return self.block

    def __exit__(self, *_: object) -> None:
        self.block.unpin()


class Block:
    """Pages that Pool.alloc() gave, pinned once. Nobody frees them but free(), or the end of a `with`:

        with pool.alloc(4) as block:            # freed at the end
            array = numpy.asarray(block.view("float16", (1024, 1024)))

    A block that is not pinned may be evicted; then all calls but free() raise Stale. What is pinned for longer than the
    agent's pins.max_duration (30 s) counts as leaked unless touch() is called meanwhile; what becomes of it then its
    configuration says.

    Threads: any."""

    def __init__(self, pool: Pool, block: _abi.gpool_block) -> None:
        self._pool = pool
        self._block = block
        self._lock = threading.Lock()
        self._pins = 1  # of the program; views have their own, so that no unpin() too many takes theirs
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

    # ---- what it is ----

    @property
    def page_count(self) -> int:
        return int(self._block.page_count)

    @property
    def page(self) -> int:
        """First page in the pool."""
        return int(self._block.page)

    @property
    def nbytes(self) -> int:
        return self.page_count * self._pool.page_bytes

    @property
    def address(self) -> int:
        """Of `nbytes` contiguous bytes on the device; good while it is pinned. Raises Stale."""
        address = ctypes.c_uint64()
        with self._pool.handle as pool:
            check(library().gpool_address(pool, self._block, ctypes.byref(address)), "tell a block's address")
        return address.value

    # ---- pins ----

    def pin(self) -> Pin:
        """Keep content and place until unpin(), or until the end of `with block.pin():`. Pins count.

        Raises Stale: freed or evicted; NoRoom and others, of a block with `spill`: it cannot be brought back now.
        Cost: mostly the interpreter's time; a system call only where the block is on the move, or has to come back.
        """
        with self._pool.handle as pool:
            check(library().gpool_pin(pool, self._block), "pin a block")
        with self._lock:
            self._pins += 1
        return Pin(self)

    def unpin(self, after: Optional[Fence] = None) -> None:
        """End one pin of the program's, the one that it was allocated with or that of a pin(); with a fence when that
        is reached, without waiting.

        Raises Error with EINVAL: it has no such pin. Those of views are not the program's to end.
        """
        self._end_pin("unpin a block")
        with self._pool.handle as pool:
            if after is None:
                result = library().gpool_unpin(pool, self._block)
            else:
                result = library().gpool_unpin_after(pool, self._block, after.fence)
        self._ended_pin(result, "unpin a block")

    def free(self, after: Optional[Fence] = None) -> None:
        """End it, pinned or not; with a fence when that is reached, without waiting. Where views show it, or others pin
        it, with the last of them.

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
        """Say that it is in use: a long pin does not count as leaked, and eviction thinks of others first."""
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
        """Its memory from byte `offset` on as an array, pinned for as long as that lives: see View.

        shape: integers, at most 32 of them; None: all that is left, in one dimension. Raises Stale: freed or evicted;
        ValueError: the memory is smaller, too many dimensions, or an offset that does not fit the dtype; TypeError: no
        integers."""
        return View(_Shown(self._pool, self._block), self._pool.device, dtype, shape, offset, readonly, stream)


class _Shown:
    """A block as what views show."""

    def __init__(self, pool: Pool, block: _abi.gpool_block) -> None:
        self._pool = pool  # is not collected while there are views
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
    """Part of a page, aligned to 256 bytes, from Pool.alloc_span(). It is there until free(), or until the end of a
    `with`. Threads: any.
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
        """As rounded up."""
        return int(self._span.bytes)

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def free(self) -> None:
        """A second call does nothing. Raises Busy: views of it live, and another span could have the same bytes at
        once.
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
        """As Block.view()."""
        return View(self, self._pool.device, dtype, shape, offset, readonly, stream)

    def lend(self, stream: int) -> _abi.gpool_loan:
        """For views."""
        with self._pool.handle as pool:
            check(library().gpool_pin(pool, self._span.block), "pin a span")
            return loan(pool, None, self._span.block, stream)

    def where(self) -> Tuple[int, int]:
        """For views: address and bytes."""
        return self.address, self.nbytes
