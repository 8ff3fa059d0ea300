"""A pool: attaching, allocating, looking."""

from __future__ import annotations

import ctypes
import enum
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from . import _abi
from ._block import Block, Span
from ._errors import Error, NoRoom, Shortage, check, error
from ._handle import Handle
from ._library import library
from ._stream import Fence, Stream


class Content(enum.IntEnum):
    """What a block holds, which weighs in when the agent chooses what to evict: TEMP_BUFFER is the cheapest to lose, then ACTIVATION, GRADIENT,
    LORA_WEIGHT, KV_CACHE."""

    KV_CACHE = _abi.GPOOL_KV_CACHE
    LORA_WEIGHT = _abi.GPOOL_LORA_WEIGHT
    TEMP_BUFFER = _abi.GPOOL_TEMP_BUFFER
    ACTIVATION = _abi.GPOOL_ACTIVATION
    GRADIENT = _abi.GPOOL_GRADIENT


class Pressure(enum.IntEnum):
    """How short of pages a pool is."""

    LOW = _abi.GPOOL_LOW
    MEDIUM = _abi.GPOOL_MEDIUM
    HIGH = _abi.GPOOL_HIGH
    CRITICAL = _abi.GPOOL_CRITICAL


class Device(NamedTuple):
    """Where a pool's memory is."""

    pool: str
    """the pool's name"""
    backend: str
    """"cuda" or "host" """
    ordinal: Optional[int]
    """number of the device in this process, as CUDA counts; None: a session that only reads"""
    uuid: str
    """empty: a session that only reads"""
    host_pointer: bool
    """the CPU may use the addresses, too"""


class Statistics(NamedTuple):
    """What this session did since it was attached."""

    leased_pages: int
    idle_pages: int
    """leased, and in no block"""
    deferred_blocks: int
    """blocks and pins that wait for a fence"""
    allocations: int
    frees: int
    pins: int
    unpins: int
    stale_pins: int
    contended_pins: int
    magazine_hits: int
    stitched: int
    refills: int
    refusals: int
    driver_calls: int
    allocation_ns: List[int]
    """histogram: entry i counts allocations of [2^i, 2^(i+1)) nanoseconds, one in 256"""
    refill_ns: List[int]
    """likewise, every refill"""


def text(value: Optional[str]) -> Optional[bytes]:
    return None if value is None else value.encode()


class Pool:
    """An attached pool. Attached until close(), or until the end of a `with`:

        with gpool.Pool() as pool:
            ...

    Raises NotFound: no agent there in time, or no pool or tenant of that name; TimedOut; Error with EACCES, EUSERS, EPROTO, ENODEV, EMFILE.

    Threads: any may use a pool and all that comes from it, unless a call says otherwise; calls into the library let go of the interpreter's lock.
    After fork() the child owns nothing of it: every call raises Forked there, and the parent is not disturbed.
    """

    def __init__(
        self,
        pool: Optional[str] = None,
        *,
        directory: Optional[str] = None,
        name: Optional[str] = None,
        tenant: Optional[str] = None,
        timeout_ms: int = 0,
        observer: bool = False,
        admin: bool = False,
        quota_bytes: int = 0,
        log: Optional[Callable[[int, str], None]] = None,
    ) -> None:
        """Attach.

        pool: its name; None: the first. directory: of the agent's sockets; None: $GPOOL_DIR, else /run/gpool. name: how tools show this process.
        tenant: None: the first that this user may join. timeout_ms: longest wait for an agent that is not up yet, milliseconds; -1: no limit.
        observer: read only, no pages. admin: may steer the agent, no pages. quota_bytes: most that this process may lease; 0: the tenant's limit.
        log: receives a level, 0 error to 3 debug, and a line; by any thread.
        """
        said: List[str] = []

        def hear(_: Any, level: int, line: bytes) -> None:
            if level == 0:
                said[:] = [line.decode(errors="replace")]
            if log is not None:
                log(level, line.decode(errors="replace"))

        self._log = _LOG(hear)
        options = _abi.gpool_options(
            size=ctypes.sizeof(_abi.gpool_options),
            flags=(_abi.GPOOL_OPEN_OBSERVER if observer else 0) | (_abi.GPOOL_OPEN_ADMIN if admin else 0),
            directory=text(directory),
            pool=text(pool),
            name=text(name),
            tenant=text(tenant),
            timeout_ms=timeout_ms,
            quota_bytes=quota_bytes,
            log=self._log,
        )
        pointer = ctypes.c_void_p()
        result = library().gpool_open(options, ctypes.byref(pointer))
        if result < 0:
            raise error(result, "attach to a pool", "; ".join([library().gpool_strerror(result).decode(), *said]))
        assert pointer.value
        # The library may call it until the pool is closed, if need be by threads that outlive all objects here.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._log))
        self.handle = Handle(pointer.value, "the pool")
        """for what else the C library can do: `with pool.handle as pointer`"""
        self.page_bytes = int(library().gpool_page_bytes(pointer))
        self.page_count = int(library().gpool_page_count(pointer))
        """of the whole pool"""
        self.session = int(library().gpool_session(pointer))
        """number of this session"""
        self.device = _device(pointer)

    def __repr__(self) -> str:
        return f"<gpool.Pool '{self.device.pool}' on {self.device.backend}, {self.page_count} pages of {self.page_bytes} bytes{', closed' * self.closed}>"

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except Error:
            # The frames of an exception that is on its way hold views; it says more than that, and the last of them ends the pool.
            if kind is None:
                raise

    def __del__(self) -> None:
        if hasattr(self, "handle") and not sys.is_finalizing():
            try:
                self.close()
            except Error:
                pass  # a tensor of another library's lives on: then so does the pool, until the process ends

    @property
    def closed(self) -> bool:
        return self.handle.closed or self.handle.forked

    def close(self) -> None:
        """Detach: blocks, spans, streams, objects and ranges end with it. A second call does nothing. It waits for GPU work that is queued on its streams.

        Raises Busy: a view of its memory lives, or another thread is in a call.
        """
        self.handle.close(self._detach)

    def _detach(self, pool: int) -> None:
        library().gpool_close(pool)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._log))

    # ---- blocks ----

    def alloc(
        self,
        page_count: int,
        content: Content = Content.KV_CACHE,
        *,
        priority: int = 0,
        owner_id: int = 0,
        timeout_ms: int = 0,
        stream: Optional[Stream] = None,
        first_fit: bool = False,
        critical: bool = False,
        contiguous: bool = False,
        evict: bool = True,
        spill: bool = False,
    ) -> Block:
        """A block of pages, pinned once.

        priority: 0..3, higher stays longer. owner_id: what tools show. timeout_ms: longest wait for pages, milliseconds; 0: none, -1: no limit.
        stream: where it will be used first. first_fit: lowest pages first. critical: may use the reserved pages. contiguous: neighbouring pages of the
        pool, else its addresses alone are. evict: other blocks may be evicted for it. spill: on eviction its content is kept, and comes back with pin().

        Raises NoRoom, whose `shortage` says what is missing; AgentGone; Error with EINVAL, EPERM, ENOMEM.
        Cost: some microseconds of Python; a wake-up of the agent when this process's lease is dry.
        """
        flags = (
            (_abi.GPOOL_ALLOC_FIRST_FIT if first_fit else 0)
            | (_abi.GPOOL_ALLOC_CRITICAL if critical else 0)
            | (_abi.GPOOL_ALLOC_CONTIGUOUS if contiguous else 0)
            | (0 if evict else _abi.GPOOL_ALLOC_NO_EVICT)
            | (_abi.GPOOL_ALLOC_SPILL if spill else 0)
        )
        options = alloc_options(flags, content, priority, owner_id, timeout_ms, stream)
        block = _abi.gpool_block()
        with self.handle as pool:
            self.check_room(pool, library().gpool_alloc(pool, page_count, options, ctypes.byref(block)), f"allocate {page_count} pages")
        return Block(self, block)

    def alloc_span(self, nbytes: int, content: Content = Content.KV_CACHE) -> Span:
        """1 byte to half a page, from pages that this process shares among spans of one size class and content. Raises as alloc()."""
        span = _abi.gpool_span()
        with self.handle as pool:
            self.check_room(pool, library().gpool_span_alloc(pool, nbytes, content, ctypes.byref(span)), f"allocate {nbytes} bytes")
        return Span(self, span)

    def check_room(self, pool: int, result: int, what: str) -> None:
        """As check(); a NoRoom gets its shortage. In the thread that asked."""
        if result < 0:
            raised = error(result, what)
            if isinstance(raised, NoRoom):
                shortage = _abi.gpool_shortage()
                library().gpool_shortage(pool, ctypes.byref(shortage))
                raised.shortage = Shortage(shortage.needed, shortage.free, shortage.pinned, shortage.holder, shortage.holder_pages)
            raise raised

    def let_go(self) -> int:
        """Unmap what other trust domains want back; a process that is idle for long calls this now and then. How many handles were unmapped."""
        with self.handle as pool:
            return check(library().gpool_let_go(pool), "let go")

    # ---- streams ----

    def stream(self, native: Optional[int] = None, manual: bool = False) -> Stream:
        """A stream whose progress all processes can see; at most 255 at a time.

        native: a CUstream of the program's, such as torch.cuda.Stream().cuda_stream, which must outlive it; None: one of gpool's own.
        manual: no GPU stream behind it, the program signals its fences.
        """
        number = ctypes.c_uint32()
        flags = _abi.GPOOL_STREAM_MANUAL if manual else 0
        with self.handle as pool:
            check(library().gpool_stream_open(pool, native, flags, ctypes.byref(number)), "open a stream")
        return Stream(self.handle, number.value)

    def fence_import(self, exported: bytes) -> Fence:
        """A fence of another process, from its Fence.export(). close() it when it is not needed any more.

        Raises Error with ESRCH: that process has died; EINVAL: no such bytes; EACCES, EUSERS, EOPNOTSUPP; AgentGone.
        """
        if len(exported) != ctypes.sizeof(_abi.gpool_fence_handle):
            raise ValueError(f"{len(exported)} bytes are no exported fence")
        handle, fence = _abi.gpool_fence_handle.from_buffer_copy(exported), _abi.gpool_fence()
        with self.handle as pool:
            check(library().gpool_fence_import(pool, ctypes.byref(handle), ctypes.byref(fence)), "import a fence")
        return Fence(self.handle, fence.value)

    # ---- looking ----

    @property
    def pressure(self) -> Pressure:
        with self.handle as pool:
            return Pressure(check(library().gpool_pressure(pool), "tell the pressure"))

    def statistics(self) -> Statistics:
        """Cost: a pass over the page table."""
        filled = _abi.gpool_statistics(size=ctypes.sizeof(_abi.gpool_statistics))
        with self.handle as pool:
            check(library().gpool_statistics(pool, ctypes.byref(filled)), "tell statistics")
        values: Dict[str, Any] = {name: getattr(filled, name) for name in Statistics._fields}
        values["allocation_ns"], values["refill_ns"] = list(filled.allocation_ns), list(filled.refill_ns)
        return Statistics(**values)


_LOG: Any = dict(_abi.gpool_options._fields_)["log"]


def _device(pool: ctypes.c_void_p) -> Device:
    device = _abi.gpool_device(size=ctypes.sizeof(_abi.gpool_device))
    check(library().gpool_device(pool, ctypes.byref(device)), "tell the device")
    return Device(
        device.pool.decode(),
        device.backend.decode(),
        None if device.ordinal == _abi.GPOOL_DEVICE_NONE else int(device.ordinal),
        device.uuid.decode(),
        bool(device.flags & _abi.GPOOL_DEVICE_HOST_POINTER),
    )


def alloc_options(
    flags: int, content: Content, priority: int, owner_id: int, timeout_ms: int, stream: Optional[Stream]
) -> _abi.gpool_alloc_options:
    return _abi.gpool_alloc_options(
        size=ctypes.sizeof(_abi.gpool_alloc_options),
        flags=flags,
        content=content,
        priority=priority,
        owner_id=owner_id,
        timeout_ms=timeout_ms,
        stream=stream.number if stream is not None else 0,
    )
