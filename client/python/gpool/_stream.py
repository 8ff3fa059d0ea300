"""Streams and fences."""

from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING, Optional

from . import _abi
from ._errors import Closed, check
from ._library import library
from ._wait import waiting

if TYPE_CHECKING:
    from ._handle import Handle


class Fence:
    """A point in a stream, signaled when all work that was queued before it is done. Threads: any."""

    def __init__(self, handle: Handle, value: int) -> None:
        self._handle = handle
        self.value = value

    def __repr__(self) -> str:
        return f"<gpool.Fence {self.value:#x}>"

    @property
    def fence(self) -> _abi.gpool_fence:
        return _abi.gpool_fence(self.value)

    @property
    def done(self) -> bool:
        """Return True if the fence is signaled. For an imported fence, raises Error with ESRCH if its process has died
        before, AgentGone if the agent has ended and the state is unknown.
        """
        with self._handle as pool:
            return check(library().gpool_fence_done(pool, self.fence), "ask for a fence") == 1

    def wait(self, timeout_ms: int = -1) -> None:
        """Wait until the fence is signaled, at most `timeout_ms` milliseconds; -1: no limit. Raises TimedOut; for an
        imported fence the exceptions of `done`.
        """
        with self._handle as pool:
            check(waiting(timeout_ms, library().gpool_fence_wait, pool, self.fence, timeout_ms), "wait for a fence")

    def signal(self) -> None:
        """Signal the fence, and all earlier ones of its host-signaled timeline."""
        with self._handle as pool:
            check(library().gpool_fence_signal(pool, self.fence), "signal a fence")

    def export(self, event: bool = False) -> bytes:
        """Return 128 bytes that another process can pass to Pool.fence_import(); valid while this process runs.

        event: use an event of the driver even if shared memory is sufficient. Cost: a driver call, and the first time a
        request to the agent."""
        handle = _abi.gpool_fence_handle()
        with self._handle as pool:
            flags = _abi.GPOOL_FENCE_EXPORT_EVENT if event else 0
            check(library().gpool_fence_export(pool, self.fence, flags, ctypes.byref(handle)), "export a fence")
        return bytes(handle)

    def close(self) -> None:
        """Close an imported fence; it must not be used any more. Work that waits for it continues to wait."""
        with self._handle as pool:
            check(library().gpool_fence_close(pool, self.fence), "close a fence")


class Stream:
    """A queue of work that is executed in order, whose progress all processes can see; from Pool.stream(). It is open
    until close(), or until its pool is closed.

    Threads: any; a stream executes work in the order of the calls.
    """

    def __init__(self, handle: Handle, number: int) -> None:
        self._handle = handle
        self._number: Optional[int] = number

    @property
    def number(self) -> int:
        """Number of the stream in the C library."""
        if self._number is None:
            raise Closed(errno.EBADF, "cannot use a stream: it is closed")
        return self._number

    @property
    def closed(self) -> bool:
        return self._number is None

    @property
    def native(self) -> int:
        """The CUstream of the stream, for the program's own work. Error with EINVAL: it is host-signaled."""
        native = ctypes.c_void_p()
        with self._handle as pool:
            check(library().gpool_stream_native(pool, self.number, ctypes.byref(native)), "get a stream's own")
        return native.value or 0

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Queue a copy between device addresses."""
        with self._handle as pool:
            check(library().gpool_copy(pool, self.number, to, source, nbytes), f"copy {nbytes} bytes")

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Queue a fill with a 32-bit number; `nbytes` is a multiple of 4."""
        with self._handle as pool:
            check(library().gpool_fill(pool, self.number, address, value, nbytes), f"fill {nbytes} bytes")

    def record(self) -> Fence:
        """Record a fence behind all work that is queued so far. Cost: one driver call."""
        fence = _abi.gpool_fence()
        with self._handle as pool:
            check(library().gpool_fence_record(pool, self.number, ctypes.byref(fence)), "record a fence")
        return Fence(self._handle, fence.value)

    def wait(self, fence: Fence) -> None:
        """Let work that is queued from now on wait for a fence; the caller does not wait."""
        with self._handle as pool:
            check(library().gpool_stream_wait(pool, self.number, fence.fence), "have a stream wait")

    def synchronize(self, timeout_ms: int = -1) -> None:
        """Wait until all work that is queued so far is done. Raises TimedOut."""
        self.record().wait(timeout_ms)

    def close(self) -> None:
        """Close the stream after its work is done. A second call does nothing. Views with this stream that end later
        are unpinned at once.
        """
        with self._handle as pool:
            number, self._number = self._number, None
            if number is not None:
                library().gpool_stream_close(pool, number)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
