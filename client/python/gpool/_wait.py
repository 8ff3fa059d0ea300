"""Waiting calls that signals end.

Python runs the handlers of signals in the main thread, between two steps of the interpreter. A call that waits in the
library takes no such step, so Ctrl-C would have to wait, too. While it waits the library therefore asks a check every
50 ms, which takes one.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Generator, List, Optional

from . import _abi
from ._library import library

_CHECK: Any = _abi.CALLS["gpool_wait_check"][1][0]
_checks: List[Any] = []  # of the main thread: the last one counts, those before it are of calls in which a handler runs


def waiting(
    timeout_ms: int, call: Callable[..., int], *arguments: Any, undo: Optional[Callable[[], object]] = None
) -> int:
    """Call call(*arguments), which waits for up to timeout_ms, and let handlers of signals run meanwhile.

    Raises the exception of a handler, which ends the wait; if the call had its result by then, undo() is called first.
    """
    if timeout_ms == 0 or threading.current_thread() is not threading.main_thread():
        return call(*arguments)
    raised: List[Optional[BaseException]] = [None]
    steps = _steps(raised)
    next(steps)
    _checks.append(_CHECK(steps.send))
    try:
        library().gpool_wait_check(_checks[-1], None)
        result = call(*arguments)
    finally:
        _checks.pop()
        library().gpool_wait_check(_checks[-1] if _checks else _CHECK(), None)
    if raised[0] is None:
        return result
    if result >= 0 and undo is not None:
        undo()
    raise raised[0]


def _steps(raised: List[Optional[BaseException]]) -> Generator[int, None, None]:
    """Each send() is a step of the interpreter inside of `try`. A function as the check would not do: its first step,
    in which a handler may raise, is before any `try` of its own, and ctypes drops what a callback raises."""
    try:
        while True:
            yield 0
    except GeneratorExit:
        return
    except BaseException as error:
        raised[0] = error
    yield 1
