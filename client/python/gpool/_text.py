"""Convert Python strings and buffers for C."""

from __future__ import annotations

import reprlib
from typing import Any, List, Optional, Sequence


def counted(count: int, noun: str) -> str:
    """Return a number and a noun: "1 page", "2 pages"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def c_text(value: str, argument: str = "name") -> bytes:
    """Return a name, key or path as a C string; argument: its name, for the text of an exception.

    Raises TypeError: it is not a str; ValueError: it contains NUL, which would truncate it, or is not valid Unicode.
    """
    if not isinstance(value, str):
        raise TypeError(f"{argument} is {reprlib.repr(value)}, which is not a str")
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{argument} is {value!r}, which cannot be encoded as UTF-8") from None
    if b"\0" in encoded:
        raise ValueError(f"{argument} is {value!r}, which contains NUL; C would end it there")
    return encoded


def c_optional(value: Optional[str], argument: str = "name") -> Optional[bytes]:
    """Return the text as c_text() does, or None."""
    return None if value is None else c_text(value, argument)


def c_texts(values: Sequence[str], argument: str) -> List[bytes]:
    """Return each as c_text() does. Raises TypeError: it is a str or no sequence, or an element is not a str;
    ValueError.
    """
    return [c_text(value, f"{argument}[{at}]") for at, value in enumerate(sequence(values, argument))]


def sequence(values: Any, argument: str) -> Any:
    """Return values if they are a sequence, other than a str. Raises TypeError."""
    if isinstance(values, str) or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
        raise TypeError(f"{argument} is {reprlib.repr(values)}, which is not a sequence")
    return values


def c_bytes(value: Any, argument: str) -> bytes:
    """Return bytes, or the content of another object with a buffer. Raises TypeError: it has none."""
    if isinstance(value, bytes):
        return value
    try:
        return bytes(memoryview(value))
    except TypeError:
        raise TypeError(f"{argument} is {reprlib.repr(value)}, which is not bytes") from None
