"""Scopes: blocks that are unpinned or freed together."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, Any, List, Optional

from ._block import Block
from ._errors import Closed, Error, Stale
from ._options import Usage

if TYPE_CHECKING:
    from ._pool import Pool
    from ._stream import Fence


class Scope:
    """A group of blocks that are pinned when they are allocated, and unpinned or freed together, from Pool.scope()
    until end() or the end of a `with` statement; for example for a kernel, the pass of a layer, or a request.

        with pool.scope(gpool.Usage.ACTIVATION, free=True) as layer:
            block = layer.alloc(8)

    The end of the scope does not affect blocks that the program has already unpinned or freed. Only Scope.alloc() adds
    blocks: GPOOL_SCOPE_THREAD of the C library, with which Pool.alloc() of a thread adds its blocks, is not provided.

    Threads: any.
    """

    def __init__(self, pool: Pool, usage: Usage, free: bool) -> None:
        """Begin a scope; for this package only: see Pool.scope()."""
        self._pool = pool
        self._usage = usage
        self._free = free
        self._lock = threading.Lock()
        self._blocks: Optional[List[Block]] = []

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if not self._pool.closed:
                self.end()
        except Error:
            if kind is None:  # otherwise the pending exception is more important
                raise

    def alloc(self, page_count: int, **options: Any) -> Block:
        """Allocate a block with the scope's usage, pinned until the scope ends.

        options: as in Pool.alloc(), without usage.
        Raises as Pool.alloc(); Closed: the scope has ended.
        Cost: as Pool.alloc().
        """
        block = self._pool.alloc(page_count, self._usage, **options)
        with self._lock:
            if self._blocks is not None:
                self._blocks.append(block)
                return block
        block.free()
        raise Closed(errno.EBADF, "cannot allocate in a scope: it has ended")

    def end(self, after: Optional[Fence] = None) -> None:
        """Unpin or free all blocks; a second call does nothing.

        after: unpin or free the blocks when this fence is signaled, without waiting.
        Raises the first error of Block.unpin() or Block.free(), after all blocks; an evicted block is not an error.
        Cost: that of these calls.
        """
        with self._lock:
            blocks, self._blocks = self._blocks, None
        first: Optional[Error] = None
        for block in blocks or ():
            try:
                if self._free and not block._freed:
                    block.free(after)
                elif not self._free and block._pins:
                    block.unpin(after)
            except Stale:
                pass
            except Error as raised:
                first = first or raised
        if first is not None:
            raise first
