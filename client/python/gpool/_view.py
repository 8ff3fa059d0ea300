"""Views: pool memory as arrays, for numpy, PyTorch, CuPy and other libraries."""

from __future__ import annotations

import ctypes
import importlib
import math
from typing import TYPE_CHECKING, Any, Dict, Optional, Protocol, Sequence, Tuple, Union

from . import _abi, _dlpack
from ._checked import integer
from ._dtype import DType, dtype_of
from ._handle import Handle
from ._library import library
from ._stream import refuse_stream
from ._text import c_bytes, counted

if TYPE_CHECKING:
    from ._pool import Device, Pool
    from ._stream import Stream


def loan(pool: Any, object_: Any, block: _abi.gpool_block, stream: int) -> _abi.gpool_loan:
    """Return a loan. When it ends, the pin ends after the work that is then queued on `stream`; 0: at once."""
    return _abi.gpool_loan(pool, object_, block, stream, 0, 0, ctypes.sizeof(_abi.gpool_loan))


DIMENSIONS_MOST = 32
"""maximum of numpy 1, which crashes on more dimensions in __array_interface__; newer versions and PyTorch permit 64"""
BYTES_MOST = 2**63 - 1
"""lengths and strides of DLPack and numpy are signed integers of 64 bits"""


class Source(Protocol):
    """The interface of a block, span, range, or object allocation for views."""

    @property
    def handle(self) -> Handle:
        """Return the handle that the view holds."""

    def lend(self, stream: int) -> _abi.gpool_loan:
        """Pin the memory and return the loan. When the loan ends, the pin ends after the work that is then queued on
        `stream` (0: at once). Raises Stale.
        """

    def where(self) -> Tuple[int, int]:
        """Return address and size in bytes of the memory."""


class Addresses:
    """Present addresses whose pages are not pinned. Either calls that remove pages raise Busy while a view holds the
    handle, or the program must not access pages without memory.
    """

    def __init__(self, pool: Pool, handle: Handle, address: int, nbytes: int) -> None:
        self._pool = pool  # is not collected while there are views
        self._where = address, nbytes
        self.handle = handle

    def lend(self, stream: int) -> _abi.gpool_loan:
        """Return a loan without a pin. Raises Closed."""
        with self.handle, self._pool.handle as pool:
            return loan(pool, None, _abi.gpool_block(), stream)

    def where(self) -> Tuple[int, int]:
        """Return address and size in bytes."""
        return self._where


class View:
    """Part of a pool's memory as a C-contiguous array, without a copy.

    While a view, or an array or tensor created from it (numpy.asarray(), torch.from_dlpack(), ...), exists, its memory
    keeps its address and content even if the block is unpinned or freed, and closing the pool raises Busy. A view need
    not be closed; it ends with its last reference.

    Views of GPU memory have __cuda_array_interface__; views of host memory (back end `host`) have __array_interface__,
    read() and write(); both have __dlpack__. Types that numpy lacks (bfloat16, float8) are available through __dlpack__
    only; numpy.asarray() of such a view raises TypeError, as it raises BufferError for GPU memory.

    Order of GPU work: with `stream`, readers of the view first wait for the work that is queued on the stream at that
    time, and when the view ends, the memory is unpinned after the work that is queued then. Without `stream` the
    program must ensure both.

    Threads: any.
    """

    def __init__(
        self,
        source: Source,
        pool: Pool,
        dtype: Any,
        shape: Union[int, Sequence[int], None],
        offset: int,
        readonly: bool,
        stream: Optional[Stream],
    ) -> None:
        """Create a view; for this package only: see Block.view()."""
        if stream is not None:
            refuse_stream(stream, pool.handle)
        self.element: DType = dtype_of(dtype)
        self.device: Device = pool.device
        self.readonly: bool = readonly
        self.stream: Optional[Stream] = stream
        source.handle.hold()
        try:
            self._loan = source.lend(self._stream_number())
        except BaseException:
            source.handle.release()
            raise
        self._source = source  # from here on __del__ releases the handle and the loan
        address, room = source.where()
        size = self.element.itemsize
        offset = integer(offset, "offset")
        self.shape: Tuple[int, ...] = (max(room - offset, 0) // size,) if shape is None else _shape_of(shape, size)
        self.nbytes: int = math.prod(self.shape) * size
        self.address: int = address + offset
        if offset < 0 or offset % size:
            raise ValueError(f"offset is {offset}; it must be a multiple of {size}, the bytes of {self.dtype}, from 0")
        if offset + self.nbytes > room:
            raise ValueError(
                f"offset is {offset}, and shape is {self.shape} with {counted(self.nbytes, 'byte')}: the memory has "
                f"{counted(room, 'byte')}"
            )

    def __del__(self) -> None:
        source: Optional[Source] = getattr(self, "_source", None)
        if source is not None and not source.handle.forked:
            _end(self._loan)
            source.handle.release()

    def __repr__(self) -> str:
        return f"<gpool.View {self.dtype} {self.shape} at {self.address:#x}{', read-only' * self.readonly}>"

    # ---- CPU and GPU ----

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Return the DLPack device: (1, 0) for the CPU, (2, number) for a GPU. Raises BufferError: DLPack has no such
        device.
        """
        if self.device.backend == "cuda" and self.device.ordinal is not None:
            return (_dlpack.CUDA, self.device.ordinal)
        if self.device.host_pointer:
            return (_dlpack.CPU, 0)
        raise BufferError(f"DLPack has no device for memory of the back end '{self.device.backend}'")

    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> object:
        """Return a capsule for from_dlpack() of numpy, PyTorch, CuPy, JAX and others; versioned if max_version is 1 or
        more.

        The memory remains pinned until the consumer calls the deleter, in any thread. If the capsule is not consumed,
        it remains pinned until the package finds the capsule unreferenced.

        stream: stream of the consumer on a GPU; -1: no order is needed. Unless it is the view's stream, the host waits
        for the work on the view's stream.
        Raises BufferError: a copy or another device is requested, or the view is read-only and max_version is below 1.
        """
        device = self.__dlpack_device__()
        versioned = max_version is not None and max_version[0] >= 1
        if copy:
            raise BufferError("copies are not supported; use copy=None or copy=False")
        if dl_device is not None and tuple(dl_device) != device:
            raise BufferError(f"the memory is on device {device}, not on {tuple(dl_device)}")
        if self.readonly and not versioned:
            raise BufferError(
                "the view is read-only, which DLPack before version 1 cannot express; pass max_version=(1, 0) or later"
            )
        if device[0] == _dlpack.CPU and stream not in (None, -1):
            raise BufferError("CPU memory has no streams; pass stream=None")
        if stream != -1 and not self._same_stream(stream):
            self._wait()
        source = self._source
        with source.handle:
            lent = source.lend(self._stream_number())
            try:
                loan = _dlpack.Loan(self, lent, device, versioned)
            except BaseException:
                _end(lent)
                raise
            source.handle.lend(loan)
            return loan.capsule

    def _same_stream(self, stream: Optional[int]) -> bool:
        return (
            stream is not None and self.stream is not None and not self.stream.closed and self.stream.native == stream
        )

    def _stream_number(self) -> int:
        """Return the stream's number; 0: no open stream, so no work to wait for."""
        return self.stream.number if self.stream is not None and not self.stream.closed else 0

    @property
    def dtype(self) -> str:
        """Return the name of the element type, such as "float16"."""
        return self.element.name

    # ---- CPU ----

    def read(self, offset: int = 0, nbytes: Optional[int] = None) -> bytes:
        """Return a copy of `nbytes` bytes from byte `offset`; None: all following bytes.

        Raises BufferError: the memory is not host memory; ValueError: beyond the end; TypeError.
        Cost: a copy, after the work on the view's stream.
        """
        offset = integer(offset, "offset")
        nbytes = self.nbytes - offset if nbytes is None else integer(nbytes, "nbytes")
        self._check_host(offset, nbytes)
        return ctypes.string_at(self.address + offset, nbytes)

    def write(self, data: Union[bytes, bytearray, memoryview], offset: int = 0) -> None:
        """Copy `data` to byte `offset`.

        Raises BufferError: the view is read-only, or the memory is not host memory; ValueError: beyond the end;
        TypeError: data has no buffer.
        Cost: a copy, after the work on the view's stream.
        """
        whole, offset = c_bytes(data, "data"), integer(offset, "offset")
        if self.readonly:
            raise BufferError("cannot write: the view is read-only")
        self._check_host(offset, len(whole))
        ctypes.memmove(self.address + offset, whole, len(whole))

    def _check_host(self, offset: int, nbytes: int) -> None:
        if not self.device.host_pointer:
            raise BufferError(
                f"the CPU cannot access memory of the back end '{self.device.backend}'; "
                "copy it, or use a library for GPUs"
            )
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(f"offset is {offset}, and nbytes is {nbytes}: the view has {counted(self.nbytes, 'byte')}")
        self._wait()

    def _wait(self) -> None:
        """Wait for the work that is queued on the view's stream."""
        if self.stream is not None and not self.stream.closed:
            self.stream.synchronize()

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        """Return the description for numpy. Raises AttributeError: not host memory, or a type that numpy lacks."""
        if not self.device.host_pointer or self.element.typestr is None:
            raise AttributeError(f"no __array_interface__ for {self.dtype} on the back end '{self.device.backend}'")
        self._wait()
        return self._interface(self.address)  # even for an empty view: numpy 1 rejects arrays without an address

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """Return a numpy array. numpy calls this method only for views without __array_interface__, and would otherwise
        create an array of one object.

        Raises BufferError: not host memory; TypeError: a type that numpy lacks.
        """
        self._check_host(0, 0)
        if self.element.typestr is None:
            raise TypeError(
                f"numpy has no type {self.dtype}; use torch.from_dlpack(view), or a view as "
                f"uint{self.element.bits}, which contains the bits of the elements"
            )
        numpy = importlib.import_module("numpy")
        array = numpy.asarray(_Interface(self), dtype)
        return array.copy() if copy else array

    # ---- GPU ----

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        """Return the description for CuPy, Numba and PyTorch. Raises AttributeError: not GPU memory, or a type that
        numpy lacks.
        """
        if self.device.backend != "cuda" or self.element.typestr is None:
            raise AttributeError(
                f"no __cuda_array_interface__ for {self.dtype} on the back end '{self.device.backend}'"
            )
        address = self.address if self.nbytes else 0  # the interface requires 0 for an array without elements
        return {**self._interface(address), "stream": self.stream.native if self.stream is not None else None}

    def _interface(self, address: int) -> Dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.element.typestr,
            "data": (address, self.readonly),
            "strides": None,
        }


class _Interface:
    """Present a view to numpy without __array__(), so that numpy uses its memory. numpy keeps the object."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.__array_interface__ = view.__array_interface__


def _shape_of(shape: Union[int, Sequence[int]], itemsize: int) -> Tuple[int, ...]:
    """Return the shape as a tuple. Raises TypeError: a length is not an integer; ValueError: too many dimensions or
    bytes.
    """
    whole: Any = (shape,) if hasattr(shape, "__index__") else shape
    if not hasattr(whole, "__iter__"):
        raise TypeError(f"shape is {shape!r}, which is neither an integer nor a sequence of integers")
    lengths = tuple(integer(length, "a length of shape") for length in whole)
    if any(length < 0 for length in lengths):
        raise ValueError(f"shape is {lengths}; no length may be negative (shape=None: all remaining memory)")
    if len(lengths) > DIMENSIONS_MOST:
        raise ValueError(f"no view of {counted(len(lengths), 'dimension')}: the maximum is {DIMENSIONS_MOST}")
    if math.prod(max(length, 1) for length in lengths) * itemsize > BYTES_MOST:
        raise ValueError(f"no view of shape {lengths}: its strides exceed {BYTES_MOST} bytes")
    return lengths


def _end(loan: _abi.gpool_loan) -> None:
    library().gpool_loan_end(ctypes.addressof(loan) + ctypes.sizeof(loan))
