"""Waits that signals can interrupt."""

from __future__ import annotations

from typing import Any, Callable, Optional

from . import _native


def waiting(
    timeout_ms: int, call: Callable[..., int], *arguments: Any, undo: Optional[Callable[[], object]] = None
) -> int:
    """Call call(*arguments), which waits for up to timeout_ms, and let signal handlers run in the meantime.

    Raises the exception of a handler, which ends the wait; if the call has already returned its result, undo() is
    called first.
    """
    if timeout_ms == 0:
        return call(*arguments)
    return _native.waiting(call, arguments, undo)
