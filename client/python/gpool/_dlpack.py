"""DLPack: export a view's memory to other libraries, which call a function to end its pin.

This function is gpool_loan_end() of the C library. A Python function would not be safe, because any thread may call it,
with or without the interpreter's lock, while an exception is propagating, or after the end of the interpreter. It ends
the pin and marks the loan as ended. The memory of an ended loan is freed by the next Handle.views, at the latest before
a close.
"""

from __future__ import annotations

import ctypes as c
import sys
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from . import _abi
from ._library import library

if TYPE_CHECKING:
    from ._view import View

CPU, CUDA = 1, 2
READ_ONLY = 1 << 0
VERSION = (1, 1)


class _Tensor(c.Structure):
    """DLTensor"""

    _fields_ = [
        ("data", c.c_void_p),
        ("device_type", c.c_int32),
        ("device_id", c.c_int32),
        ("ndim", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    ]


class _Managed(c.Structure):
    """DLManagedTensor, before version 1"""

    _fields_ = [("tensor", _Tensor), ("context", c.c_void_p), ("deleter", c.c_void_p)]


class _Versioned(c.Structure):
    """DLManagedTensorVersioned"""

    _fields_ = [
        ("major", c.c_uint32),
        ("minor", c.c_uint32),
        ("context", c.c_void_p),
        ("deleter", c.c_void_p),
        ("flags", c.c_uint64),
        ("tensor", _Tensor),
    ]


_python: Any = c.pythonapi
_new_capsule = c.PYFUNCTYPE(c.py_object, c.c_void_p, c.c_char_p, c.c_void_p)(("PyCapsule_New", _python))
_capsule_is = c.PYFUNCTYPE(c.c_int, c.py_object, c.c_char_p)(("PyCapsule_IsValid", _python))
_malloc = c.CDLL(None).malloc
_malloc.restype, _malloc.argtypes = c.c_void_p, [c.c_size_t]
_free = c.CDLL(None).free
_free.restype, _free.argtypes = None, [c.c_void_p]


class Loan:
    """An exported tensor: a loan, followed by the managed tensor, its shape and its strides, in memory that outlives
    all Python objects.

    The loan also keeps the capsule, to detect that it was never consumed: capsules do not support weak references, and
    a capsule destructor would have to be a Python function, although it can be called while an exception is
    propagating.
    """

    def __init__(self, view: View, loan: _abi.gpool_loan, device: Tuple[int, int], versioned: bool) -> None:
        kind: Any = _Versioned if versioned else _Managed
        dims = len(view.shape)
        place = _malloc(c.sizeof(_abi.gpool_loan) + c.sizeof(kind) + 2 * dims * 8)
        if not place:
            raise MemoryError
        self._place: int = place
        self._loan = _abi.gpool_loan.from_address(place)
        self._name = b"dltensor_versioned" if versioned else b"dltensor"
        c.memmove(place, c.addressof(loan), c.sizeof(loan))
        address = place + c.sizeof(loan)
        managed = kind.from_address(address)
        managed.deleter = c.cast(library().gpool_loan_end, c.c_void_p)
        managed.context = None
        if versioned:
            managed.major, managed.minor = VERSION
            managed.flags = READ_ONLY if view.readonly else 0
        numbers: Any = (c.c_int64 * (2 * dims)).from_address(address + c.sizeof(kind))
        numbers[:] = [*view.shape, *contiguous(view.shape)]
        tensor = managed.tensor
        tensor.data = view.address if view.nbytes else None
        tensor.device_type, tensor.device_id = device
        tensor.ndim = dims
        tensor.code, tensor.bits, tensor.lanes = view.element.code, view.element.bits, 1
        tensor.shape = c.cast(c.addressof(numbers), c.POINTER(c.c_int64))
        tensor.strides = c.cast(c.addressof(numbers) + 8 * dims, c.POINTER(c.c_int64))
        tensor.byte_offset = 0
        self.capsule: Optional[object] = _new_capsule(address, self._name, None)

    def settled(self) -> bool:
        """Return whether the loan has ended. If so, its memory is freed, and the caller must forget the loan."""
        if not self._loan.ended and _references(self) <= _ALONE and _capsule_is(self.capsule, self._name):
            library().gpool_loan_end(
                self._place + c.sizeof(_abi.gpool_loan)
            )  # no consumer has taken the capsule, and none can take it now
        if not self._loan.ended:
            return False
        self.capsule = None
        _free(self._place)
        return True


def _references(loan: Loan) -> int:
    return sys.getrefcount(loan.capsule)


def contiguous(shape: Tuple[int, ...]) -> List[int]:
    """Return the strides of a C-contiguous array, in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * max(shape[axis], 1)
    return strides


class _Probe:
    capsule = None


def _alone() -> int:
    """Return what _references() reports for a capsule with a single reference."""
    probe: Any = _Probe()
    probe.capsule = object()
    return _references(probe)


_ALONE = _alone()
