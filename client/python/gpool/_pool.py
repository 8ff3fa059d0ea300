"""A pool: attaching, allocating, looking."""

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
    """How short of pages a pool is."""

    LOW = _abi.GPOOL_PRESSURE_LOW
    MEDIUM = _abi.GPOOL_PRESSURE_MEDIUM
    HIGH = _abi.GPOOL_PRESSURE_HIGH
    CRITICAL = _abi.GPOOL_PRESSURE_CRITICAL


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
    scattered: int
    refills: int
    refusals: int
    driver_calls: int
    allocation_ns: List[int]
    """histogram: entry i counts allocations of [2^i, 2^(i+1)) nanoseconds, one in 256"""
    refill_ns: List[int]
    """likewise, every refill"""


class Pool:
    """An attached pool. Attached until close(), or until the end of a `with`:

        with gpool.Pool() as pool:
            ...

    Raises NotFound: no agent there in time, or no pool or tenant of that name; TimedOut; Error with EACCES, EUSERS,
    EPROTO, ENODEV, EMFILE.

    Threads: any may use a pool and all that comes from it, unless a call says otherwise; calls into the library let go
    of the interpreter's lock. Signals: handlers run within 50 ms while the main thread waits in a call with timeout_ms,
    and an exception that one raises, as Ctrl-C does, ends the call. A handler may not use the pool itself. After fork()
    the child owns nothing of it: every call raises Forked there, and the parent is not disturbed."""

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

        pool: its name; None: the first. directory: of the agent's sockets; None: $GPOOL_DIR, else /run/gpool. name: how
        tools show this process. tenant: None: the first that this user may join. timeout_ms: longest wait for an agent
        that is not up yet, milliseconds; -1: no limit. observer: read only, no pages. admin: may steer the agent, no
        pages. quota_bytes: most that this process may lease; 0: the tenant's limit. log: receives a level, 0 error to 3
        debug, and a line; by any thread."""
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
            # The frames of an exception that is on its way hold views; it says more than that, and the last of them
            # ends the pool.
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
        """Detach: all that came from it ends with it. A second call does nothing. It waits for GPU work that is queued
        on its streams.

        Raises Busy: a view of its memory lives, an adapter is acquired, or another thread is in a call.
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
        """A block of pages, pinned once.

        priority: 0..3, higher stays longer. owner_id: what tools show. timeout_ms: longest wait for pages,
        milliseconds; 0: none, -1: no limit. stream: where it will be used first. first_fit: lowest pages first.
        critical: may use the reserved pages. contiguous: neighbouring pages of the pool, else its addresses alone are.
        evict: other blocks may be evicted for it. spill: on eviction its content is kept, and comes back with pin().

        Raises NoRoom, whose `shortage` says what is missing; AgentGone; Error with EINVAL, EPERM, ENOMEM. Cost: mostly
        the interpreter's time; a wake-up of the agent when this process's lease is dry."""
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
        """1 byte to half a page, from pages that this process shares among spans of one size class and usage. Raises
        as alloc().
        """
        span = _abi.gpool_span()
        with self.handle as pool:
            self.check_room(
                pool, library().gpool_span_alloc(pool, nbytes, usage, ctypes.byref(span)), f"allocate {nbytes} bytes"
            )
        return Span(self, span)

    def check_room(self, pool: int, result: int, what: str) -> None:
        """As check(); a NoRoom gets its shortage. In the thread that asked."""
        if result < 0:
            raised = error(result, what)
            if isinstance(raised, NoRoom):
                raised.shortage = _shortage(pool, False)
            raise raised

    def shortage(self) -> Shortage:
        """Why the calling thread's last allocation was refused for lack of pages, and the sessions that lease the most
        pages now.

        Cost: one request to the agent, which looks at all pages.
        """
        with self.handle as pool:
            return _shortage(pool, True)

    def let_go(self) -> int:
        """Unmap what other trust domains want back; a process that is idle for long calls this now and then. How many
        handles were unmapped.
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
        """Begin an object of this name, at most 127 bytes; Object.publish() makes it seen.

        pinned: PINNABLE, and pinned from its publication on, until Object.unpin(). private: sessions of other tenants
        cannot open it. domain_write: all tenants of the trust domain may replace and delete it. role: that this process
        holds, looked at when it publishes. expect_version: publish only over this version, 0: only where there is none;
        None: over whatever is there.
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
        """Map a version, 0: the current one. It stays as it is until it is closed, whatever is published or deleted
        meanwhile.

        layout_hash: that it must have; 0: any. adopt: become the writer of a mutable object whose writer is gone; takes
        the object's role. Raises NotFound; Stale: the role is not good any more; Busy: adopt, and another process
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
        """The name is gone at once, the pages with their last reader. version: the one that must be current; 0: any.
        Raises NotFound, Stale.
        """
        with self.handle as pool:
            check(library().gpool_object_delete(pool, c_text(name), version), f"delete object '{name}'")

    def objects(self) -> Iterator[ObjectInfo]:
        """All versions of all objects, out of the shared table."""
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
        """Addresses in a row for so many pages, and the pages. name: IMMUTABLE: of the object as which it is kept.
        Raises as alloc(); Asleep.
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
        """An elastic range: addresses, and no page; Range.back() and Range.unback() bring and take single ones. It may
        be larger than the pool.
        """
        return self._range(library().gpool_range_reserve, page_count, memory_class, usage, None, owner_id, 0, True)

    def open_range(self, name: str, version: int = 0, *, layout_hash: int = 0) -> Range:
        """A range over the pages of an immutable object, read only. Raises as open_object()."""
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
        """All ranges give their pages back, all or none; contents are published (IMMUTABLE), spilled (MUTABLE) or
        dropped (EPHEMERAL).

        Raises Busy: a view of a range lives, or GPU work uses one; NoRoom: to spill; Error with EOPNOTSUPP: the pool
        keeps no spilled content; EIO. No other thread may make views of ranges meanwhile.
        """
        for made in list(self._ranges):
            made.handle.refuse_views("put to sleep")
        with self.handle as pool:
            check(library().gpool_sleep(pool, 0), "go to sleep")

    def wake(self, timeout_ms: int = 0) -> None:
        """All ranges have pages again, at the same addresses, with their contents; on failure all is as before. Raises
        NoRoom, Stale, Error with EIO.
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
        """LoRA adapters of this process on this pool, none at first.

        cache_dir: exists; where loaded ones are kept, ready to be loaded again. warm: a pool of the back end `host`, in
        which engines share copies; closing it closes these, too. int8: they are kept in int8 in the cold folder where
        that costs little. private: shared among engines of one tenant alone, else of a trust domain. load_threads: 0:
        4. salt: two numbers of 64 bits, who does not know them does not find what is shared."""
        made = Adapters(self, cache_dir, warm, int8, private, element, load_threads, salt)
        for pool in (self, warm) if warm is not None else (self,):
            pool._adapters.add(made)
        return made

    # ---- roles ----

    def acquire_role(self, name: str, timeout_ms: int = -1) -> Role:
        """Hold a role, waiting for it while another session does; 0: do not wait, -1: no limit. Raises TimedOut;
        NoRoom; Error with EALREADY, EACCES.
        """
        return acquire(self.handle, name, timeout_ms)

    def role_holder(self, name: str) -> Tuple[int, int]:
        """The session that holds a role, 0: nobody, and its or the last holder's token. Raises NotFound."""
        session, token = ctypes.c_uint32(), ctypes.c_uint64()
        with self.handle as pool:
            check(
                library().gpool_role_info(pool, c_text(name), ctypes.byref(session), ctypes.byref(token)),
                f"look for role '{name}'",
            )
        return session.value, token.value

    # ---- events ----

    def event(self, timeout_ms: int = -1) -> Event:
        """The agent's next event; the first call subscribes, what happened before is not seen. Events may be lost: ask
        for the state, events say when.

        Raises TimedOut. One thread at a time; the pool is not closed meanwhile.
        """
        filled = _abi.gpool_event(size=ctypes.sizeof(_abi.gpool_event))
        with self.handle as pool:
            check(
                waiting(timeout_ms, library().gpool_event_next, pool, timeout_ms, ctypes.byref(filled)), "get an event"
            )
        return event_of(filled)

    # ---- streams ----

    def stream(self, native: Optional[int] = None, host_signaled: bool = False) -> Stream:
        """A stream whose progress all processes can see; at most 255 at a time.

        native: a CUstream of the program's, such as torch.cuda.Stream().cuda_stream, which must outlive it; None: one
        of gpool's own. host_signaled: no GPU stream; the program signals the fences of the timeline."""
        number = ctypes.c_uint32()
        flags = _abi.GPOOL_STREAM_HOST_SIGNALED if host_signaled else 0
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
        filled = _abi.gpool_stats(size=ctypes.sizeof(_abi.gpool_stats))
        with self.handle as pool:
            check(library().gpool_stats(pool, ctypes.byref(filled)), "tell statistics")
        values: Dict[str, Any] = {name: getattr(filled, name) for name in Statistics._fields}
        values["allocation_ns"], values["refill_ns"] = list(filled.allocation_ns), list(filled.refill_ns)
        return Statistics(**values)


_LOG: Any = dict(_abi.gpool_options._fields_)["log"]


def _shortage(pool: int, with_holders: bool) -> Shortage:
    """Without holders the agent is not asked: the struct ends before their count."""
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
