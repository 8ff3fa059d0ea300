"""Waiting calls that signals can end.

Python runs signal handlers in the main thread, between two steps of the interpreter. A call that waits in the library
executes no such step, so Ctrl-C would have no effect during the wait. The library therefore calls a check every 50 ms,
which executes a step.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Generator, List, Optional

from . import _abi
from ._library import library

_CHECK: Any = _abi.CALLS["gpool_wait_check"][1][0]
# Of the main thread. The last check is active; earlier ones belong to calls that a signal handler interrupts.
_checks: List[Any] = []


def waiting(
    timeout_ms: int, call: Callable[..., int], *arguments: Any, undo: Optional[Callable[[], object]] = None
) -> int:
    """Call call(*arguments), which waits for up to timeout_ms, and let signal handlers run during the wait.

    Raises the exception of a signal handler, which ends the wait. If the call has already succeeded, undo() is called
    first.
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
    """Execute a step of the interpreter inside `try` at each send(). A plain function is not suitable as the check: a
    handler may raise in its first step, before its `try`, and ctypes discards exceptions of callbacks.
    """
    try:
        while True:
            yield 0
    except GeneratorExit:
        return
    except BaseException as error:
        raised[0] = error
    yield 1
