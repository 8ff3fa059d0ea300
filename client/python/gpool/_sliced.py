"""Sliced ranges: equal slices of addresses, whose blocks get memory together."""

from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Union

from . import _abi
from ._checked import check_count, integer
from ._errors import Error, check
from ._handle import Closing, Handle
from ._library import library
from ._object import ObjectClass
from ._options import Usage
from ._stream import c_fence
from ._text import counted
from ._view import Addresses, View
from ._wait import waiting

if TYPE_CHECKING:
    from ._pool import Pool
    from ._stream import Fence, Stream


class SlicedRangeInfo(NamedTuple):
    """Description of a sliced range, with the numbers of its blocks."""

    slices: int
    blocks: int
    """of each slice, with or without memory"""
    block_pages: int
    committed: int
    """blocks of each slice that have memory"""
    ready: int
    """committed blocks, and blocks that were mapped in advance; approximate"""
    address: int
    slice_bytes: int
    """from one slice to the next"""
    block_bytes: int


class SlicedRange(Closing):
    """An elastic range of equal slices, for example one for each layer and for K and V, from Pool.create_sliced_range()
    to close().

    Block i has memory in all slices or in none, so that one call grows or shrinks all slices. Block i of slice s is at
    address + s * slice_bytes + i * block_bytes.

    Threads: any; one call at a time grows or shrinks a range.
    """

    def __init__(
        self,
        pool: Pool,
        slices: int,
        blocks: int,
        block_pages: int,
        memory_class: ObjectClass,
        usage: Usage,
        owner_id: int,
        read_ahead: int,
    ) -> None:
        """Create a sliced range; for this package only: see Pool.create_sliced_range()."""
        self._pool = pool
        options = _abi.gpool_sliced_range_options(
            size=ctypes.sizeof(_abi.gpool_sliced_range_options),
            memory_class=memory_class,
            usage=usage,
            owner_id=owner_id,
            read_ahead=read_ahead,
        )
        pointer = ctypes.c_void_p()
        with pool.handle as attached:
            check(
                library().gpool_sliced_range_create(
                    attached, slices, blocks, block_pages, options, ctypes.byref(pointer)
                ),
                f"create a range of {counted(slices, 'slice')} of {counted(blocks, 'block')} of "
                f"{counted(block_pages, 'page')}",
            )
        assert pointer.value
        self.addresses = Handle(pointer.value, "a sliced range", pool.handle)  # held by sparse views
        self.handle = Handle(pointer.value, "a sliced range", pool.handle)
        info = self.info()
        self.slices, self.blocks = info.slices, info.blocks
        self.address, self.slice_bytes, self.block_bytes = info.address, info.slice_bytes, info.block_bytes

    def __repr__(self) -> str:
        return (
            f"<gpool.SlicedRange {counted(self.slices, 'slice')} of {counted(self.blocks, 'block')} at "
            f"{self.address:#x}{', closed' * self.handle.closed}>"
        )

    def close(self) -> None:
        """End the range; a second call does nothing.

        Waits for the work on the pool's streams. A signal handler that raises an exception ends the wait, and the
        range remains open.
        Raises Busy: a view of it exists, or GPU work that was queued elsewhere still uses it.
        """
        if not self._pool.closed:
            self.addresses.refuse_views("close")
            with self._pool.handle:
                self.handle.close(library().gpool_sliced_range_destroy, waits=True)

    def info(self) -> SlicedRangeInfo:
        """Return the description of the range. Raises Closed; Forked. Cost: one lock."""
        filled = _abi.gpool_sliced_range_info(size=ctypes.sizeof(_abi.gpool_sliced_range_info))
        with self.handle as pointer:
            check(library().gpool_sliced_range_info(pointer, ctypes.byref(filled)), "read the state of a sliced range")
        return SlicedRangeInfo(*(getattr(filled, name) for name in SlicedRangeInfo._fields))

    def grow(self, blocks: int, timeout_ms: int = 0) -> None:
        """Commit the first `blocks` blocks of all slices, all or none; blocks that have memory keep their content.

        timeout_ms: longest wait for pages in milliseconds; 0: do not wait, -1: no limit.
        Raises NoRoom; Asleep; Busy; Error with EINVAL: the slices have fewer blocks.
        Cost: no driver call for blocks that were mapped in advance; for others one request to the agent, a mapping for
        each handle and an access call for each slice.
        """
        check_count("blocks", blocks, f"from 0 to {self.blocks}")
        with self.handle as pointer, self._pool.handle as pool:
            result = waiting(timeout_ms, library().gpool_sliced_range_grow, pointer, blocks, timeout_ms)
            self._pool.check_room(pool, result, f"grow a sliced range to {counted(blocks, 'block')}")

    def shrink(self, blocks: int, after: Optional[Fence] = None) -> None:
        """Decommit all but the first `blocks` blocks of all slices; their content is lost.

        after: fence of the last work that uses these blocks.
        Raises Busy: a view exists that is not sparse; Asleep; Error with EINVAL: the slices have fewer blocks.
        Cost: no request to the agent and no driver call.
        """
        check_count("blocks", blocks, f"from 0 to {self.blocks}")
        self.handle.refuse_views("shrink")
        fence = c_fence(after, self._pool.handle)
        with self.handle as pointer:
            check(
                library().gpool_sliced_range_shrink(pointer, blocks, fence),
                f"shrink a sliced range to {counted(blocks, 'block')}",
            )

    def view(
        self,
        index: Optional[int] = None,
        dtype: Any = "uint8",
        shape: Union[int, Sequence[int], None] = None,
        offset: int = 0,
        readonly: bool = False,
        stream: Optional[Stream] = None,
        *,
        sparse: bool = False,
    ) -> View:
        """Return slice `index`, or with None and sparse=True the whole range, as an array; other arguments as in
        Block.view().

        sparse: permit blocks without memory in the view, and permit shrink() and Pool.sleep() while it exists. The
        program must not access blocks without memory: that ends the process, or fails the GPU work.
        Raises Error with EFAULT: a block of the view has no memory; IndexError; ValueError; TypeError.
        """
        if index is None and not sparse:
            raise ValueError("a view of all slices requires sparse=True: addresses between them may have no memory")
        if index is not None and not 0 <= integer(index, "index") < self.slices:
            raise IndexError(f"no slice {index}: the range has {counted(self.slices, 'slice')}")
        start = 0 if index is None else index * self.slice_bytes
        room = self.slices * self.slice_bytes if index is None else self.blocks * self.block_bytes
        memory = Addresses(self._pool, self.addresses if sparse else self.handle, self.address + start, room)
        made = View(memory, self._pool, dtype, shape, offset, readonly, stream)
        if not sparse and made.nbytes:
            blocks, committed = (offset + made.nbytes - 1) // self.block_bytes + 1, self.info().committed
            if blocks > committed:
                raise Error(
                    errno.EFAULT,
                    f"cannot create a view of {counted(blocks, 'block')} of a sliced range: {committed} have memory; "
                    "grow() it first",
                )
        return made
