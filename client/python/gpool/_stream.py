"""Streams and fences."""

from __future__ import annotations

import contextlib
import ctypes
import errno
from typing import TYPE_CHECKING, Optional

from . import _abi, _native
from ._errors import Closed, Error, check
from ._library import library
from ._text import counted

if TYPE_CHECKING:
    from ._handle import Handle


class Fence(_native.Fence):
    """A point in the order of a stream, signaled when all earlier work is done. Threads: any."""

    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        return f"<gpool.Fence {self.value:#x}>"

    @property
    def fence(self) -> _abi.gpool_fence:
        """Return the struct of the C library."""
        return _abi.gpool_fence(self.value)

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


def c_fence(fence: Optional[Fence], pool: Handle, name: str = "after") -> _abi.gpool_fence:
    """Return the struct of the C library for a fence of this pool, or for None. Raises TypeError: it is not a Fence;
    Error with EINVAL: it belongs to another pool, in which its number is another fence.
    """
    if fence is None:
        return _abi.gpool_fence(0)
    if not isinstance(fence, Fence):
        raise TypeError(f"{name} is {fence!r}, which is not a Fence")
    if fence._handle is not pool:
        raise Error(errno.EINVAL, "cannot use a fence: it belongs to another pool")
    return fence.fence


class Stream(_native.Stream):
    """A queue of GPU work, whose progress other processes can read, from Pool.stream() until close() or the close of
    the pool.

    Threads: any; the work is executed in the order of the calls.
    """

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

        Raises Error with EINVAL (host-signaled; an address outside of the memory), EIO (not mapped; driver).
        Cost: a driver call.
        """
        with self._handle as pool:
            check(
                library().gpool_copy(pool, self.number, to, source, nbytes),
                f"copy {counted(nbytes, 'byte')} from {source:#x} to {to:#x}",
            )

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Queue a fill of `nbytes` bytes, a multiple of 4, with a 32-bit value.

        Raises as copy().
        Cost: a driver call.
        """
        with self._handle as pool:
            check(
                library().gpool_fill(pool, self.number, address, value, nbytes),
                f"fill {counted(nbytes, 'byte')} at {address:#x}",
            )

    def wait(self, fence: Fence) -> None:
        """Make later work of the stream wait for a fence. The call itself does not wait.

        Raises TypeError: it is not a Fence; Error with EINVAL, ESRCH (the process of an imported fence has died).
        Cost: a driver call.
        """
        if fence is None:
            raise TypeError("fence is None, which is not a Fence")
        with self._handle as pool:
            check(
                library().gpool_stream_wait(pool, self.number, c_fence(fence, self._handle, "fence")),
                "make a stream wait for a fence",
            )

    def synchronize(self, timeout_ms: int = -1) -> None:
        """Wait on the host for all work that is queued on the stream.

        timeout_ms: longest wait in milliseconds; -1: no limit.
        Raises TimedOut.
        Cost: a driver call, and the wait.
        """
        self.record().wait(timeout_ms)

    def close(self) -> None:
        """Wait for the stream's work and close the stream; a second call does nothing.

        A signal handler that raises an exception ends the wait, and the stream remains open. Views with this stream
        that end later are unpinned at once. Raises Closed: the pool was closed.
        """
        with self._handle as pool:
            native = ctypes.c_void_p()
            # The C library would wait without a check for signals. A timeline does not wait: its fences are signaled.
            if not self.closed and library().gpool_stream_native(pool, self.number, ctypes.byref(native)) == 0:
                with contextlib.suppress(Error):  # the GPU has failed, or a graph is being captured
                    self.synchronize()
            with contextlib.suppress(Closed):  # another thread has closed it
                library().gpool_stream_close(pool, self.number)
                self.take()  # after the call, so that a signal cannot end the method between a mark and the close

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refuse_stream(stream: Stream, pool: Handle) -> None:
    """Raise TypeError: it is not a Stream; Closed: the pool is closed; Error with EINVAL: the stream belongs to another
    pool, in which its number may be another stream.
    """
    if not isinstance(stream, Stream):
        raise TypeError(f"stream is {stream!r}, not a Stream")
    if stream._handle is not pool:
        with pool:  # raises Closed, which is the cause to report if both are wrong
            pass
        raise Error(errno.EINVAL, "cannot use a stream: it belongs to another pool")


def number_of(stream: Stream, pool: Handle) -> int:
    """Return the number of a stream in the C library. Raises as refuse_stream()."""
    refuse_stream(stream, pool)
    return stream.number
