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
    """A point in the order of a stream, signaled when all earlier work is done. Threads: any."""

    def __init__(self, handle: Handle, value: int) -> None:
        self._handle = handle
        self.value = value

    def __repr__(self) -> str:
        return f"<gpool.Fence {self.value:#x}>"

    @property
    def fence(self) -> _abi.gpool_fence:
        """Return the struct of the C library."""
        return _abi.gpool_fence(self.value)

    @property
    def done(self) -> bool:
        """Return whether the fence is signaled.

        Raises Error with EINVAL (not a fence of this process); for an imported fence also Error with ESRCH (its process
        died before the signal) and AgentGone (the agent, which reports deaths, is not running).
        Cost: one load.
        """
        with self._handle as pool:
            return check(library().gpool_fence_done(pool, self.fence), "check a fence") == 1

    def wait(self, timeout_ms: int = -1) -> None:
        """Wait until the fence is signaled.

        timeout_ms: longest wait in milliseconds; -1: no limit.
        Raises TimedOut; as `done`.
        Cost: sleeps on shared memory.
        """
        with self._handle as pool:
            check(waiting(timeout_ms, library().gpool_fence_wait, pool, self.fence, timeout_ms), "wait for a fence")

    def signal(self) -> None:
        """Signal the fence and all earlier fences of its host-signaled timeline.

        Raises Error with EINVAL: not a fence of a host-signaled timeline.
        Cost: one store, and a wake-up if another thread or process is waiting.
        """
        with self._handle as pool:
            check(library().gpool_fence_signal(pool, self.fence), "signal a fence")

    def export(self, event: bool = False) -> bytes:
        """Return 128 bytes for Pool.fence_import() in another process. They are valid while this process is running.

        event: use an event of the driver even if a timeline in shared memory is possible.
        Raises Error with EINVAL, EUSERS (too many exported events), EOPNOTSUPP; AgentGone.
        Cost: a driver call; the first time, also a request to the agent.
        """
        handle = _abi.gpool_fence_handle()
        with self._handle as pool:
            flags = _abi.GPOOL_FENCE_EXPORT_EVENT if event else 0
            check(library().gpool_fence_export(pool, self.fence, flags, ctypes.byref(handle)), "export a fence")
        return bytes(handle)

    def close(self) -> None:
        """End an import. Queued work that waits for the fence continues to wait. Raises Error with EINVAL: not an
        imported fence.
        """
        with self._handle as pool:
            check(library().gpool_fence_close(pool, self.fence), "close a fence")


class Stream:
    """A queue of GPU work, whose progress other processes can read, from Pool.stream() until close() or the close of
    the pool.

    Threads: any; the work is executed in the order of the calls.
    """

    def __init__(self, handle: Handle, number: int) -> None:
        self._handle = handle
        self._number: Optional[int] = number

    @property
    def number(self) -> int:
        """Return the stream's number in the C library. Raises Closed."""
        if self._number is None:
            raise Closed(errno.EBADF, "cannot use a stream: it is closed")
        return self._number

    @property
    def closed(self) -> bool:
        """Return whether the stream was closed."""
        return self._number is None

    @property
    def native(self) -> int:
        """Return the CUstream, on which the program can queue its own work. Raises Error with EINVAL: a host-signaled
        timeline.
        """
        native = ctypes.c_void_p()
        with self._handle as pool:
            check(library().gpool_stream_native(pool, self.number, ctypes.byref(native)), "get the native stream")
        return native.value or 0

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Queue a copy of `nbytes` bytes from device address `source` to `to`.

        Raises Error with EINVAL (host-signaled), EFAULT (not mapped), EIO (driver).
        Cost: a driver call.
        """
        with self._handle as pool:
            check(library().gpool_copy(pool, self.number, to, source, nbytes), f"copy {nbytes} bytes")

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Queue a fill of `nbytes` bytes, a multiple of 4, with a 32-bit value.

        Raises Error with EINVAL, EIO (driver).
        Cost: a driver call.
        """
        with self._handle as pool:
            check(library().gpool_fill(pool, self.number, address, value, nbytes), f"fill {nbytes} bytes")

    def record(self) -> Fence:
        """Return a fence recorded after all work that is queued on the stream.

        Raises Error with EIO (driver).
        Cost: a driver call.
        """
        fence = _abi.gpool_fence()
        with self._handle as pool:
            check(library().gpool_fence_record(pool, self.number, ctypes.byref(fence)), "record a fence")
        return Fence(self._handle, fence.value)

    def wait(self, fence: Fence) -> None:
        """Make later work of the stream wait for a fence. The call itself does not wait.

        Raises Error with EINVAL, ESRCH (the process of an imported fence has died).
        Cost: a driver call.
        """
        with self._handle as pool:
            check(library().gpool_stream_wait(pool, self.number, fence.fence), "make a stream wait")

    def synchronize(self, timeout_ms: int = -1) -> None:
        """Wait on the host for all work that is queued on the stream.

        timeout_ms: longest wait in milliseconds; -1: no limit.
        Raises TimedOut.
        Cost: a driver call, and the wait.
        """
        self.record().wait(timeout_ms)

    def close(self) -> None:
        """Wait for the stream's work and close the stream; a second call does nothing.

        Views with this stream that end later are unpinned at once. Raises Closed: the pool was closed.
        """
        with self._handle as pool:
            number, self._number = self._number, None
            if number is not None:
                library().gpool_stream_close(pool, number)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
