"""Waits that signals can interrupt."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Optional

from . import _native

SLICE_SECONDS = 0.1
"""time after which a wait for a thread begins again"""


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


def in_another_thread(call: Callable[[], None]) -> None:
    """Call call() in another thread, and wait for its end; for a call that waits in C without a check for signals.

    Raises the exception of the call, or that of a signal handler, which ends only the wait: the call continues.
    """
    raised: List[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as exception:
            raised.append(exception)

    thread = threading.Thread(target=run, name="gpool", daemon=True)  # the interpreter does not wait for it at its end
    try:
        thread.start()
    except RuntimeError:  # no thread can be started
        call()
        return
    # A signal that arrives just before the wait, or in another thread, does not end it; its handler runs between waits.
    while thread.is_alive():
        thread.join(SLICE_SECONDS)
    if raised:
        raise raised[0]
