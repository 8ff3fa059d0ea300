"""Convert Python strings to C strings."""

from __future__ import annotations

from typing import Optional


def c_text(value: str) -> bytes:
    """Return a name, key or path as a C string. Raises TypeError: it is not a str; ValueError: it contains NUL, which
    would truncate it.
    """
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a str")
    encoded = value.encode()
    if b"\0" in encoded:
        raise ValueError(f"{value!r} contains NUL, which would truncate it in C")
    return encoded


def c_optional(value: Optional[str]) -> Optional[bytes]:
    """Return the text as c_text() does, or None."""
    return None if value is None else c_text(value)
