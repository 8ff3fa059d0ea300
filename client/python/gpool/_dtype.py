"""Element types, with their names in DLPack and numpy."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional


class DType(NamedTuple):
    """An element type of DLPack and numpy."""

    name: str
    code: int
    """DLDataTypeCode of DLPack"""
    bits: int
    typestr: Optional[str]
    """type string of numpy; None: numpy lacks this type"""

    @property
    def itemsize(self) -> int:
        """Return the size of an element in bytes."""
        return self.bits // 8


_ALL: Dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("bool", 6, 8, "|b1"),
        DType("int8", 0, 8, "|i1"),
        DType("int16", 0, 16, "<i2"),
        DType("int32", 0, 32, "<i4"),
        DType("int64", 0, 64, "<i8"),
        DType("uint8", 1, 8, "|u1"),
        DType("uint16", 1, 16, "<u2"),
        DType("uint32", 1, 32, "<u4"),
        DType("uint64", 1, 64, "<u8"),
        DType("float16", 2, 16, "<f2"),
        DType("float32", 2, 32, "<f4"),
        DType("float64", 2, 64, "<f8"),
        DType("bfloat16", 4, 16, None),
        DType("complex64", 5, 64, "<c8"),
        DType("complex128", 5, 128, "<c16"),
        DType("float8_e4m3fn", 10, 8, None),
        DType("float8_e5m2", 12, 8, None),
    )
}


def dtype_of(dtype: Any) -> DType:
    """Return the type for a name, or for a dtype of numpy or PyTorch. Raises TypeError: unknown."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    try:
        return _ALL[name[len("torch.") :] if name.startswith("torch.") else name]
    except KeyError:
        raise TypeError(f"unknown dtype '{name}'; supported: {', '.join(_ALL)}") from None


def dtype_of_typestr(typestr: str) -> DType:
    """Return the type for a type string of numpy. Raises TypeError: unknown."""
    return _one([dtype for dtype in _ALL.values() if dtype.typestr == typestr], f"'{typestr}' of numpy")


def dtype_of_code(code: int, bits: int) -> DType:
    """Return the type for a DLDataTypeCode and a size in bits. Raises TypeError: unknown."""
    found = [dtype for dtype in _ALL.values() if (dtype.code, dtype.bits) == (code, bits)]
    return _one(found, f"{code} of DLPack with {bits} bits")


def _one(found: List[DType], what: str) -> DType:
    if not found:
        raise TypeError(f"unknown dtype {what}; supported: {', '.join(_ALL)}")
    return found[0]
