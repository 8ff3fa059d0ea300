"""Read arrays of other libraries that are in host memory, through numpy's array interface or DLPack."""

from __future__ import annotations

import ctypes as c
from typing import Any, NamedTuple, Tuple

from ._dlpack import CPU, _Managed, contiguous
from ._dtype import DType, dtype_of_code, dtype_of_typestr

CUDA_HOST = 3
"""memory of the host that is registered with CUDA, in DLPack"""

_capsule_pointer = c.PYFUNCTYPE(c.c_void_p, c.py_object, c.c_char_p)(("PyCapsule_GetPointer", c.pythonapi))


class HostArray(NamedTuple):
    """An array whose elements the CPU can read."""

    address: int
    dtype: DType
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    """in elements"""
    owner: object
    """keeps the memory until it is garbage"""


def host_array(array: Any, what: str) -> HostArray:
    """Return the address, type, shape and strides of an array. The array is not copied.

    Raises TypeError: the object is not an array, or has an unknown element type; ValueError: the array is not in host
    memory, or its elements are not aligned to their size.
    """
    interface = getattr(array, "__array_interface__", None)
    if isinstance(interface, dict) and interface.get("data") is not None:
        return _of_interface(array, interface, what)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _of_dlpack(array, what)
    raise TypeError(f"{what} is a {type(array).__name__}, which has neither DLPack nor numpy's array interface")


def _of_interface(array: Any, interface: Any, what: str) -> HostArray:
    dtype = dtype_of_typestr(interface["typestr"])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        strides = [dtype.itemsize * stride for stride in contiguous(shape)]
    if any(stride % dtype.itemsize for stride in strides):
        raise ValueError(f"{what} has strides of {tuple(strides)} bytes, which are not multiples of {dtype.itemsize}")
    return HostArray(
        interface["data"][0], dtype, shape, tuple(stride // dtype.itemsize for stride in strides), (array, interface)
    )


def _of_dlpack(array: Any, what: str) -> HostArray:
    kind, index = array.__dlpack_device__()
    if kind not in (CPU, CUDA_HOST):
        raise ValueError(f"{what} is in the memory of device {index} of kind {int(kind)}; copy it to host memory first")
    capsule = array.__dlpack__()
    # The capsule is not consumed: its destructor ends the loan when it is garbage.
    tensor = _Managed.from_address(_capsule_pointer(capsule, b"dltensor")).tensor
    if tensor.lanes != 1:
        raise TypeError(f"{what} has elements of {tensor.lanes} lanes")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else tuple(contiguous(shape))
    address = (tensor.data or 0) + tensor.byte_offset
    return HostArray(address, dtype_of_code(tensor.code, tensor.bits), shape, strides, capsule)
