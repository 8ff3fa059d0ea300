"""Refuse integers that C cannot hold: ctypes would truncate them without an error."""

from __future__ import annotations

import ctypes
import functools
import operator
from typing import Any, Callable, Dict, List, Optional, Tuple

_INTEGERS = (
    ctypes.c_int8,
    ctypes.c_uint8,
    ctypes.c_int16,
    ctypes.c_uint16,
    ctypes.c_int32,
    ctypes.c_uint32,
    ctypes.c_int64,
    ctypes.c_uint64,
)


def _limits(kind: Any) -> Optional[Tuple[int, int]]:
    """Return the smallest and the largest value of an integer type, or None for another type."""
    if kind not in _INTEGERS:
        return None
    bits = 8 * ctypes.sizeof(kind)
    return (-1 << bits - 1, (1 << bits - 1) - 1) if kind(-1).value < 0 else (0, (1 << bits) - 1)


_VALID = {"usage": "from 0 to 4"}
"""the valid values of arguments whose type in C has a wider range"""


def integer(value: Any, name: str) -> int:
    """Return an integer. Raises TypeError: it is a bool, which Python also accepts as an index, or no integer."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} is {value!r}, which is not an integer")


def _check(name: str, value: Any, limits: Tuple[int, int], valid: str = "") -> None:
    number = integer(value, name)
    if not limits[0] <= number <= limits[1]:
        least = -1 if name == "timeout_ms" else limits[0]  # of the numbers that C can hold, -1 is the least valid one
        raise OverflowError(
            f"{name} is {number}; it must be {valid or _VALID.get(name) or f'from {least} to {limits[1]}'}"
        )


def check_count(name: str, value: Any, valid: str) -> None:
    """Raise OverflowError for a number that a uint32 of C cannot hold, TypeError for no integer. The C library refuses
    other numbers. valid: the valid ones, such as "from 1 to 64, the pages of the pool".
    """
    _check(name, value, (0, 2**32 - 1), valid)


def check_address(name: str, value: Any) -> None:
    """Raise OverflowError for a number that a pointer of C cannot hold, which ctypes would truncate."""
    _check(name, value, (0, 2**64 - 1))


def check_pages(page_count: Any, most: int) -> None:
    """Call check_count() for a number of pages; most: the pages of the pool. Raises as check_count()."""
    check_count("page_count", page_count, f"from 1 to {most}, the pages of the pool")


@functools.lru_cache(maxsize=None)
def _fields(structure: Any) -> Dict[str, Tuple[int, int]]:
    limits = ((field[0], _limits(field[1])) for field in structure._fields_)
    return {name: pair for name, pair in limits if pair}


@functools.lru_cache(maxsize=None)
def _arrays(structure: Any) -> Dict[str, Tuple[int, Tuple[int, int]]]:
    kinds = ((field[0], field[1]) for field in structure._fields_ if hasattr(field[1], "_length_"))
    limits = ((name, kind._length_, _limits(kind._type_)) for name, kind in kinds)
    return {name: (length, pair) for name, length, pair in limits if pair}


class Structure(ctypes.Structure):
    """A C structure that checks each assignment. Raises OverflowError for an integer outside the range of the field's
    type, TypeError for a value that is not an integer, ValueError for an array of another length.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        limits = _fields(type(self)).get(name)
        if limits:
            _check(name, value, limits)
        of_array = _arrays(type(self)).get(name)
        if of_array:
            length, limits = of_array
            value = tuple(value) if isinstance(value, list) else value
            if not isinstance(value, (tuple, ctypes.Array)):
                raise TypeError(f"{name} is {value!r}, which is not a tuple of {length} numbers")
            if len(value) != length:
                raise ValueError(f"{name} has {len(value)} numbers; it must have {length}")
            for number in value:
                _check(name, number, limits)
        super().__setattr__(name, value)


def checked(call: Any, kinds: List[Any], names: List[str]) -> Callable[..., Any]:
    """Return a function that checks the integers among the arguments and then calls `call`."""
    integers = [(at, names[at], limits) for at, limits in enumerate(map(_limits, kinds)) if limits]
    if not integers:
        return call  # type: ignore[no-any-return]

    @functools.wraps(call, assigned=(), updated=())
    def check_and_call(*arguments: Any) -> Any:
        for at, name, limits in integers:
            _check(name, arguments[at], limits)
        return call(*arguments)

    return check_and_call
