"""Views: memory of a pool as an array, for numpy, PyTorch, CuPy and whatever else takes such."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, Dict, Optional, Protocol, Sequence, Tuple, Union

from . import _abi
from ._dtype import DType, dtype_of
from ._handle import Handle
from ._library import library

if TYPE_CHECKING:
    from ._pool import Device
    from ._stream import Stream

DLPACK_CPU, DLPACK_CUDA = 1, 2


class Source(Protocol):
    """What a view shows: a block, an object's allocation, a range."""

    @property
    def handle(self) -> Handle:
        """That the view holds."""

    def lend(self, stream: int) -> _abi.gpool_loan:
        """Pin it, and how that pin ends: behind what is queued on the stream by then, if that is not 0. Raises Stale: it is gone."""

    def where(self) -> Tuple[int, int]:
        """Address and bytes of what is lent."""


class View:
    """Part of a pool's memory as a C-contiguous array: shape and dtype, nothing copied.

    While a view lives, or anything that was made of it (numpy.asarray(), torch.from_dlpack(), ...), its memory stays where it is, with its content,
    whatever else is unpinned or freed; and the pool stays open: closing it raises Busy. There is nothing to close: it ends when nothing refers
    to it any more.

    For pools in a GPU's memory it has __cuda_array_interface__, for pools on the host (`host`) __array_interface__, read() and write(); for both
    __dlpack__. Types that numpy lacks (bfloat16, float8) go by __dlpack__ alone.

    Of the order of GPU work: with `stream` what reads the view first waits for what is queued there by then, and the memory is unpinned behind what
    is queued there when the view ends. Without it both are the program's to see to.

    Threads: any.
    """

    def __init__(
        self,
        source: Source,
        device: Device,
        dtype: Any,
        shape: Union[int, Sequence[int], None],
        offset: int,
        readonly: bool,
        stream: Optional[Stream],
    ) -> None:
        """The package's own: see Block.view()."""
        self._dtype: DType = dtype_of(dtype)
        self.device: Device = device
        self.readonly: bool = readonly
        self.stream: Optional[Stream] = stream
        source.handle.hold()
        try:
            self._loan = source.lend(stream.number if stream is not None else 0)
        except BaseException:
            source.handle.let_go()
            raise
        self._source = source  # from here on __del__ ends what stands
        address, room = source.where()
        size = self._dtype.itemsize
        if shape is None:
            shape = max(room - offset, 0) // size
        self.shape: Tuple[int, ...] = (shape,) if isinstance(shape, int) else tuple(int(length) for length in shape)
        self.nbytes: int = math.prod(self.shape) * size
        self.address: int = address + offset
        if offset < 0 or offset % size or any(length < 0 for length in self.shape):
            raise ValueError(f"no view of {self.dtype} {self.shape} at byte {offset}: that is a multiple of {size}, and nothing is negative")
        if offset + self.nbytes > room:
            raise ValueError(f"no view of {self.nbytes} bytes at byte {offset} of {room}: it ends behind the memory")

    def __del__(self) -> None:
        source: Optional[Source] = getattr(self, "_source", None)
        if source is not None and not source.handle.forked:
            library().gpool_loan_end(ctypes.addressof(self._loan) + ctypes.sizeof(self._loan))
            source.handle.let_go()

    def __repr__(self) -> str:
        return f"<gpool.View {self.dtype} {self.shape} at {self.address:#x}{', read only' * self.readonly}>"

    @property
    def dtype(self) -> str:
        """Name of the elements' type: "float16"."""
        return self._dtype.name

    # ---- by the CPU ----

    def read(self, offset: int = 0, nbytes: Optional[int] = None) -> bytes:
        """A copy of `nbytes` from byte `offset` on; None: all that follow. Host pools only."""
        nbytes = self.nbytes - offset if nbytes is None else nbytes
        self._check_host(offset, nbytes)
        return ctypes.string_at(self.address + offset, nbytes)

    def write(self, data: Union[bytes, bytearray, memoryview], offset: int = 0) -> None:
        """Bytes to byte `offset` and behind it. Host pools only."""
        whole = bytes(data)
        if self.readonly:
            raise BufferError("a view that is read only")
        self._check_host(offset, len(whole))
        ctypes.memmove(self.address + offset, whole, len(whole))

    def _check_host(self, offset: int, nbytes: int) -> None:
        if not self.device.host_pointer:
            raise BufferError(f"memory of a pool on '{self.device.backend}' is not the CPU's to use; copy it, or use a library for GPUs")
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(f"bytes {offset} to {offset + nbytes} of a view of {self.nbytes}")
        self._wait()

    def _wait(self) -> None:
        """What is queued before this is done."""
        if self.stream is not None and not self.stream.closed:
            self.stream.synchronize()

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if not self.device.host_pointer or self._dtype.typestr is None:
            raise AttributeError(f"no __array_interface__ of {self.dtype} on '{self.device.backend}'")
        self._wait()
        return self._interface()

    # ---- by a GPU ----

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if self.device.backend != "cuda" or self._dtype.typestr is None:
            raise AttributeError(f"no __cuda_array_interface__ of {self.dtype} on '{self.device.backend}'")
        return {**self._interface(), "stream": self.stream.native if self.stream is not None else None}

    def _interface(self) -> Dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self._dtype.typestr,
            "data": (self.address if self.nbytes else 0, self.readonly),
            "strides": None,
        }
