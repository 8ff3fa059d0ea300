"""Python's texts as C's."""

from __future__ import annotations

from typing import Optional


def c_text(value: str) -> bytes:
    """A name, key or path as a C string. Raises ValueError: it contains NUL, at which C would cut it short and mean
    something else.
    """
    encoded = value.encode()
    if b"\0" in encoded:
        raise ValueError(f"{value!r} contains NUL, which ends a text in C")
    return encoded


def c_optional(value: Optional[str]) -> Optional[bytes]:
    """As c_text(), or None."""
    return None if value is None else c_text(value)
