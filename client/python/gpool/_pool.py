"""Pools: attach, allocate, inspect."""

from __future__ import annotations

import ctypes
import enum
import errno
import sys
import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from . import _abi
from ._block import Block, Span
from ._errors import Error, Holder, NoRoom, Shortage, check, error
from ._event import Event, event_of
from ._handle import Handle
from ._library import library
from ._lora import Adapters, Element
from ._object import Object, ObjectClass, ObjectInfo, info_of
from ._options import Usage, alloc_options
from ._range import Range
from ._role import Role, acquire
from ._stream import Fence, Stream
from ._text import c_optional, c_text
from ._wait import waiting


class Pressure(enum.IntEnum):
    """The pressure of a pool."""

    LOW = _abi.GPOOL_PRESSURE_LOW
    MEDIUM = _abi.GPOOL_PRESSURE_MEDIUM
    HIGH = _abi.GPOOL_PRESSURE_HIGH
    CRITICAL = _abi.GPOOL_PRESSURE_CRITICAL


class Device(NamedTuple):
    """The device of a pool's memory."""

    pool: str
    """the pool's name"""
    backend: str
    """"cuda" or "host" """
    ordinal: Optional[int]
    """CUDA's number of the device in this process; None: an observer or admin"""
    uuid: str
    """empty: an observer or admin"""
    host_pointer: bool
    """the CPU can access device addresses"""


class Statistics(NamedTuple):
    """Counts of this session since it was attached."""

    leased_pages: int
    idle_pages: int
    """leased pages without a block"""
    deferred_blocks: int
    """blocks and pins that wait for a fence"""
    allocations: int
    frees: int
    pins: int
    unpins: int
    stale_pins: int
    contended_pins: int
    magazine_hits: int
    scattered: int
    refills: int
    refusals: int
    driver_calls: int
    allocation_ns: List[int]
    """histogram: entry i counts allocations of [2^i, 2^(i+1)) nanoseconds, one in 256"""
    refill_ns: List[int]
    """the same for each refill"""


class Pool:
    """An attached pool. It stays attached until close(), or until the end of a `with`:

        with gpool.Pool() as pool:
            ...

    Raises NotFound: no agent answered in time, or the pool or tenant does not exist; TimedOut; Error with EACCES,
    EUSERS, EPROTO, ENODEV, EMFILE.

    Threads: any may use a pool and the objects that it returns, unless a call states otherwise; calls into the library
    release the interpreter's lock.

    Signals: handlers run within 50 ms while the main thread waits in a call with timeout_ms, and an exception that a
    handler raises, such as that of Ctrl-C, ends the call. A handler must not use the pool.

    After fork() the child owns no part of the pool: every call raises Forked there, and the parent is not affected."""

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

        pool: its name; None: the first. directory: of the agent's sockets; None: $GPOOL_DIR, else /run/gpool. name: the
        name of this process in tools. tenant: None: the first that this user may join. timeout_ms: longest wait for an
        agent that is not up yet, milliseconds; -1: no limit. observer: read only, no pages. admin: may send control
        requests, no pages. quota_bytes: the maximum that this process may lease; 0: the tenant's limit. log: receives a
        level, 0 error to 3 debug, and a line; called by any thread."""
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
            directory=c_optional(directory),
            pool=c_optional(pool),
            name=c_optional(name),
            tenant=c_optional(tenant),
            timeout_ms=timeout_ms,
            quota_bytes=quota_bytes,
            log=self._log,
        )
        pointer = ctypes.c_void_p()
        result = waiting(
            timeout_ms,
            library().gpool_open,
            options,
            ctypes.byref(pointer),
            undo=lambda: library().gpool_close(pointer),
        )
        if result < 0:
            why = library().gpool_last_error(result).decode(errors="replace")
            raise error(result, "attach to a pool", "; ".join([why, *(line for line in said if line not in why)]))
        assert pointer.value
        # The library may call it until the pool is closed, even from threads that outlive all Python objects.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._log))
        self.handle = Handle(pointer.value, "the pool")
        """for other calls of the C library: `with pool.handle as pointer`"""
        self.page_bytes = int(library().gpool_page_bytes(pointer))
        self.page_count = int(library().gpool_page_count(pointer))
        """the pages of the whole pool"""
        self.session = int(library().gpool_session(pointer))
        """number of this session"""
        self.device = _device(pointer)
        self._ranges: weakref.WeakSet[Range] = weakref.WeakSet()
        self._adapters: weakref.WeakSet[Adapters] = weakref.WeakSet()

    def __repr__(self) -> str:
        return (
            f"<gpool.Pool '{self.device.pool}' on {self.device.backend}, {self.page_count} pages of "
            f"{self.page_bytes} bytes{', closed' * self.closed}>"
        )

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except Error:
            # The frames of the exception may hold views. The exception is more important than Busy, and the pool is
            # closed with the last view.
            if kind is None:
                raise

    def __del__(self) -> None:
        if hasattr(self, "handle") and not sys.is_finalizing():
            try:
                self.close()
            except Error:
                pass  # another library still has a tensor; the pool stays open until the process ends

    @property
    def closed(self) -> bool:
        return self.handle.closed or self.handle.forked

    def close(self) -> None:
        """Detach: all objects that came from the pool end with it. A second call does nothing. Waits for GPU work that
        is queued on the pool's streams.

        Raises Busy: a view of its memory exists, an adapter is acquired, or another thread is in a call.
        """
        if not self.closed:
            self.handle.refuse_views("close")
            for adapters in list(self._adapters):
                adapters.close()
            self.handle.close(self._detach)

    def _detach(self, pool: int) -> None:
        library().gpool_close(pool)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._log))

    # ---- blocks ----

    def alloc(
        self,
        page_count: int,
        usage: Usage = Usage.KV_CACHE,
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
        """Allocate a block of pages, pinned once.

        priority: 0..3, higher is evicted later. owner_id: shown by tools. timeout_ms: longest wait for pages,
        milliseconds; 0: none, -1: no limit. stream: the stream of its first use. first_fit: use the lowest free pages.
        critical: may use the reserved pages. contiguous: pages that are adjacent in the pool; otherwise only the
        addresses are. evict: other blocks may be evicted for it. spill: on eviction its content is saved, and pin()
        restores it.

        Raises NoRoom, with the cause in `shortage`; AgentGone; Error with EINVAL, EPERM, ENOMEM. Cost: mostly the
        interpreter's time; a request to the agent when this process's lease is used up."""
        flags = (
            (_abi.GPOOL_ALLOC_FIRST_FIT if first_fit else 0)
            | (_abi.GPOOL_ALLOC_CRITICAL if critical else 0)
            | (_abi.GPOOL_ALLOC_CONTIGUOUS if contiguous else 0)
            | (0 if evict else _abi.GPOOL_ALLOC_NO_EVICT)
            | (_abi.GPOOL_ALLOC_SPILL if spill else 0)
        )
        options = alloc_options(flags, usage, priority, owner_id, timeout_ms, stream)
        block = _abi.gpool_block()
        with self.handle as pool:
            undo = lambda: library().gpool_free(pool, block)  # noqa: E731
            result = waiting(
                timeout_ms, library().gpool_alloc, pool, page_count, options, ctypes.byref(block), undo=undo
            )
            self.check_room(pool, result, f"allocate {page_count} pages")
        return Block(self, block)

    def alloc_span(self, nbytes: int, usage: Usage = Usage.KV_CACHE) -> Span:
        """Allocate 1 byte to half a page, from pages that this process divides among spans of one size class and usage.
        Raises the exceptions of alloc().
        """
        span = _abi.gpool_span()
        with self.handle as pool:
            self.check_room(
                pool, library().gpool_span_alloc(pool, nbytes, usage, ctypes.byref(span)), f"allocate {nbytes} bytes"
            )
        return Span(self, span)

    def check_room(self, pool: int, result: int, what: str) -> None:
        """Like check(), and set the shortage of a NoRoom. Call it in the thread of the failed call."""
        if result < 0:
            raised = error(result, what)
            if isinstance(raised, NoRoom):
                raised.shortage = _shortage(pool, False)
            raise raised

    def shortage(self) -> Shortage:
        """Report why the calling thread's last allocation was refused for lack of pages, and the sessions that lease
        the most pages now.

        Cost: one request to the agent, which scans all pages.
        """
        with self.handle as pool:
            return _shortage(pool, True)

    def let_go(self) -> int:
        """Unmap pages that other trust domains need; a process that is idle for a long time should call this
        periodically. Returns the number of unmapped handles.
        """
        with self.handle as pool:
            return check(library().gpool_release_unused(pool), "let go")

    # ---- named objects ----

    def create_object(
        self,
        name: str,
        memory_class: ObjectClass = ObjectClass.IMMUTABLE,
        *,
        pinned: bool = False,
        private: bool = False,
        domain_write: bool = False,
        role: Optional[Role] = None,
        expect_version: Optional[int] = None,
    ) -> Object:
        """Start to build an object of this name, at most 127 bytes; Object.publish() makes it visible.

        pinned: PINNABLE, and pinned from its publication on, until Object.unpin(). private: sessions of other tenants
        cannot open it. domain_write: all tenants of the trust domain may replace and delete it. role: a role that this
        process must hold when it publishes. expect_version: publish only if this version is current, 0: only if the
        name does not exist; None: in any case.
        """
        expected = 0 if expect_version is None else expect_version or _abi.GPOOL_OBJECT_NONE
        options = _abi.gpool_object_options(
            size=ctypes.sizeof(_abi.gpool_object_options),
            flags=(_abi.GPOOL_OBJECT_PINNED if pinned else 0)
            | (_abi.GPOOL_OBJECT_PRIVATE if private else 0)
            | (_abi.GPOOL_OBJECT_DOMAIN_WRITE if domain_write else 0),
            memory_class=memory_class,
            role=c_optional(role.name if role else None),
            role_token=role.token if role else 0,
            expect_version=expected,
        )
        pointer = ctypes.c_void_p()
        with self.handle as pool:
            check(
                library().gpool_object_create(pool, c_text(name), options, ctypes.byref(pointer)),
                f"create object '{name}'",
            )
        assert pointer.value
        return Object(self, pointer.value, name, memory_class, pinned)

    def open_object(
        self, name: str, version: int = 0, *, layout_hash: int = 0, role: Optional[Role] = None, adopt: bool = False
    ) -> Object:
        """Map a version, 0: the current one. Its content does not change until it is closed, even if other versions are
        published or it is deleted.

        layout_hash: expected hash; 0: any. adopt: become the writer of a mutable object whose writer has ended; takes
        the object's role. Raises NotFound; Stale: the process has lost the role; Busy: adopt, and another process
        writes it; Error with EPROTO (layout), EACCES, EPERM.
        """
        options = _open_options(version, layout_hash, role, adopt)
        pointer = ctypes.c_void_p()
        with self.handle as pool:
            check(
                library().gpool_object_open(pool, c_text(name), options, ctypes.byref(pointer)), f"open object '{name}'"
            )
        assert pointer.value
        return Object(self, pointer.value, name, adopted=adopt)

    def delete_object(self, name: str, version: int = 0) -> None:
        """Delete an object. The name is removed at once; the pages are freed with the last reader. version: the version
        that must be current; 0: any. Raises NotFound, Stale.
        """
        with self.handle as pool:
            check(library().gpool_object_delete(pool, c_text(name), version), f"delete object '{name}'")

    def objects(self) -> Iterator[ObjectInfo]:
        """Yield all versions of all objects, from the shared table."""
        cursor, filled = ctypes.c_uint32(), _abi.gpool_object_info(size=ctypes.sizeof(_abi.gpool_object_info))
        while True:
            with self.handle as pool:
                result = library().gpool_object_next(pool, ctypes.byref(cursor), ctypes.byref(filled))
            if result == -errno.ENOENT:
                return
            check(result, "list objects")
            yield info_of(filled)

    # ---- ranges ----

    def range(
        self,
        page_count: int,
        memory_class: ObjectClass = ObjectClass.MUTABLE,
        usage: Usage = Usage.KV_CACHE,
        *,
        name: Optional[str] = None,
        owner_id: int = 0,
        timeout_ms: int = 0,
    ) -> Range:
        """Create a range: contiguous addresses with pages. name: for IMMUTABLE, the name of the object that keeps the
        content. Raises the exceptions of alloc(); Asleep.
        """
        return self._range(
            library().gpool_range_create, page_count, memory_class, usage, name, owner_id, timeout_ms, False
        )

    def reserve_range(
        self,
        page_count: int,
        memory_class: ObjectClass = ObjectClass.MUTABLE,
        usage: Usage = Usage.KV_CACHE,
        *,
        owner_id: int = 0,
    ) -> Range:
        """Reserve an elastic range: addresses without pages; Range.back() and Range.unback() commit and decommit single
        pages. It may be larger than the pool.
        """
        return self._range(library().gpool_range_reserve, page_count, memory_class, usage, None, owner_id, 0, True)

    def open_range(self, name: str, version: int = 0, *, layout_hash: int = 0) -> Range:
        """Map the pages of an immutable object as a range, read-only. Raises the exceptions of open_object()."""
        pointer = ctypes.c_void_p()
        with self.handle as pool:
            options = _open_options(version, layout_hash, None, False)
            check(
                library().gpool_range_open(pool, c_text(name), options, ctypes.byref(pointer)),
                f"open a range of object '{name}'",
            )
        assert pointer.value
        return self._ranges_add(Range(self, pointer.value, False))

    def _range(
        self,
        call: Any,
        page_count: int,
        memory_class: ObjectClass,
        usage: Usage,
        name: Optional[str],
        owner_id: int,
        timeout_ms: int,
        elastic: bool,
    ) -> Range:
        options = _abi.gpool_range_options(
            size=ctypes.sizeof(_abi.gpool_range_options),
            memory_class=memory_class,
            usage=usage,
            name=c_optional(name),
            owner_id=owner_id,
            timeout_ms=timeout_ms,
        )
        pointer = ctypes.c_void_p()
        with self.handle as pool:
            result = waiting(
                timeout_ms,
                call,
                pool,
                page_count,
                options,
                ctypes.byref(pointer),
                undo=lambda: library().gpool_range_destroy(pointer),
            )
            self.check_room(pool, result, f"make a range of {page_count} pages")
        assert pointer.value
        return self._ranges_add(Range(self, pointer.value, elastic))

    def _ranges_add(self, made: Range) -> Range:
        self._ranges.add(made)
        return made

    def sleep(self) -> None:
        """Release the pages of all ranges, or of none; contents are published (IMMUTABLE), spilled (MUTABLE) or
        discarded (EPHEMERAL).

        Raises Busy: a view of a range exists, or GPU work uses one; NoRoom: for the spill; Error with EOPNOTSUPP: the
        pool keeps no spilled content; EIO. No other thread may create views of ranges meanwhile.
        """
        for made in list(self._ranges):
            made.handle.refuse_views("put to sleep")
        with self.handle as pool:
            check(library().gpool_sleep(pool, 0), "go to sleep")

    def wake(self, timeout_ms: int = 0) -> None:
        """Give all ranges pages again, at the same addresses and with their contents; on failure nothing has changed.
        Raises NoRoom, Stale, Error with EIO.
        """
        with self.handle as pool:
            self.check_room(pool, waiting(timeout_ms, library().gpool_wake, pool, timeout_ms), "wake")

    @property
    def asleep(self) -> bool:
        with self.handle as pool:
            return check(library().gpool_asleep(pool), "tell whether it sleeps") == 1

    # ---- adapters ----

    def adapters(
        self,
        cache_dir: Optional[str] = None,
        *,
        warm: Optional[Pool] = None,
        int8: bool = False,
        private: bool = False,
        element: Element = Element.AS_FILE,
        load_threads: int = 0,
        salt: Tuple[int, int] = (0, 0),
    ) -> Adapters:
        """Manage the LoRA adapters of this process on this pool; initially none is registered.

        cache_dir: an existing folder for converted adapters, which load faster. warm: a pool of the back end `host`, in
        which engines share copies; its close closes the adapters, too. int8: adapters are stored as int8 in the cold
        folder if the error is small. private: shared among the engines of one tenant only, otherwise of a trust domain.
        load_threads: 0: 4. salt: two numbers of 64 bits; engines with another salt do not find the shared adapters."""
        made = Adapters(self, cache_dir, warm, int8, private, element, load_threads, salt)
        for pool in (self, warm) if warm is not None else (self,):
            pool._adapters.add(made)
        return made

    # ---- roles ----

    def acquire_role(self, name: str, timeout_ms: int = -1) -> Role:
        """Acquire a role; wait while another session holds it, 0: do not wait, -1: no limit. Raises TimedOut; NoRoom;
        Error with EALREADY, EACCES.
        """
        return acquire(self.handle, name, timeout_ms)

    def role_holder(self, name: str) -> Tuple[int, int]:
        """Return the session that holds a role, 0: none, and the token of the last holder. Raises NotFound."""
        session, token = ctypes.c_uint32(), ctypes.c_uint64()
        with self.handle as pool:
            check(
                library().gpool_role_info(pool, c_text(name), ctypes.byref(session), ctypes.byref(token)),
                f"look for role '{name}'",
            )
        return session.value, token.value

    # ---- events ----

    def event(self, timeout_ms: int = -1) -> Event:
        """Return the agent's next event. The first call subscribes; earlier events are not reported. Events may be
        lost: use them as a hint to query the state again.

        Raises TimedOut. Only one thread at a time may call this, and the pool must not be closed meanwhile.
        """
        filled = _abi.gpool_event(size=ctypes.sizeof(_abi.gpool_event))
        with self.handle as pool:
            check(
                waiting(timeout_ms, library().gpool_event_next, pool, timeout_ms, ctypes.byref(filled)), "get an event"
            )
        return event_of(filled)

    # ---- streams ----

    def stream(self, native: Optional[int] = None, host_signaled: bool = False) -> Stream:
        """Open a stream whose progress all processes can see; at most 255 at a time.

        native: a CUstream of the program, such as torch.cuda.Stream().cuda_stream, which must outlive the stream; None:
        gpool creates one. host_signaled: no GPU stream; the program signals the fences of the timeline."""
        number = ctypes.c_uint32()
        flags = _abi.GPOOL_STREAM_HOST_SIGNALED if host_signaled else 0
        with self.handle as pool:
            check(library().gpool_stream_open(pool, native, flags, ctypes.byref(number)), "open a stream")
        return Stream(self.handle, number.value)

    def fence_import(self, exported: bytes) -> Fence:
        """Import a fence that another process exported with Fence.export(). Call its close() when it is not needed any
        more.

        Raises Error with ESRCH: that process has died; EINVAL: not an exported fence; EACCES, EUSERS, EOPNOTSUPP;
        AgentGone.
        """
        if len(exported) != ctypes.sizeof(_abi.gpool_fence_handle):
            raise ValueError(f"{len(exported)} bytes are no exported fence")
        handle, fence = _abi.gpool_fence_handle.from_buffer_copy(exported), _abi.gpool_fence()
        with self.handle as pool:
            check(library().gpool_fence_import(pool, ctypes.byref(handle), ctypes.byref(fence)), "import a fence")
        return Fence(self.handle, fence.value)

    # ---- state ----

    @property
    def pressure(self) -> Pressure:
        with self.handle as pool:
            return Pressure(check(library().gpool_pressure(pool), "tell the pressure"))

    def statistics(self) -> Statistics:
        """Return the counts of this session. Cost: a pass over the page table."""
        filled = _abi.gpool_stats(size=ctypes.sizeof(_abi.gpool_stats))
        with self.handle as pool:
            check(library().gpool_stats(pool, ctypes.byref(filled)), "tell statistics")
        values: Dict[str, Any] = {name: getattr(filled, name) for name in Statistics._fields}
        values["allocation_ns"], values["refill_ns"] = list(filled.allocation_ns), list(filled.refill_ns)
        return Statistics(**values)


_LOG: Any = dict(_abi.gpool_options._fields_)["log"]


def _shortage(pool: int, with_holders: bool) -> Shortage:
    """Without holders no request is sent to the agent: the struct ends before their count."""
    figures: int = _abi.gpool_oom_info.holder_count.offset
    filled = _abi.gpool_oom_info(size=ctypes.sizeof(_abi.gpool_oom_info) if with_holders else figures)
    check(library().gpool_oom_info(pool, ctypes.byref(filled)), "read the shortage")
    holders = tuple(
        Holder(
            holder.session,
            holder.name.decode(errors="replace"),
            Usage(holder.usage) if holder.usage < _abi.GPOOL_USAGE_COUNT else None,
            holder.needed_pages,
            holder.offered_pages,
            holder.idle_pages,
        )
        for holder in filled.holders[: filled.holder_count]
    )
    return Shortage(filled.needed, filled.free, filled.pinned, filled.holder, filled.holder_pages, holders)


def _open_options(version: int, layout_hash: int, role: Optional[Role], adopt: bool) -> _abi.gpool_object_open_options:
    return _abi.gpool_object_open_options(
        size=ctypes.sizeof(_abi.gpool_object_open_options),
        flags=_abi.GPOOL_OBJECT_ADOPT if adopt else 0,
        version=version,
        layout_hash=layout_hash,
        role=c_optional(role.name if role else None),
        role_token=role.token if role else 0,
    )


def _device(pool: ctypes.c_void_p) -> Device:
    device = _abi.gpool_device_info(size=ctypes.sizeof(_abi.gpool_device_info))
    check(library().gpool_device_info(pool, ctypes.byref(device)), "tell the device")
    return Device(
        device.pool.decode(),
        device.backend.decode(),
        None if device.ordinal == _abi.GPOOL_DEVICE_NONE else int(device.ordinal),
        device.uuid.decode(),
        bool(device.flags & _abi.GPOOL_DEVICE_HOST_POINTER),
    )
