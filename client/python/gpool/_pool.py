"""Pools: attach, allocate, read the state."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi, _native
from ._block import Block, Pin, Span
from ._checked import check_address, check_count, check_pages, integer
from ._dtype import dtype_of
from ._errors import Holder, NoRoom, OomInfo, check, error
from ._event import Event, event_of
from ._handle import Closing, Handle
from ._kv import KvCache
from ._library import library
from ._lora import Adapters, Element
from ._object import Object, ObjectClass, ObjectInfo, info_of
from ._options import Usage
from ._range import Range
from ._role import Role, acquire, refuse_role
from ._scope import Scope
from ._sliced import SlicedRange
from ._stream import Fence, Stream, number_of
from ._text import c_bytes, c_optional, c_text, c_texts, counted
from ._wait import in_another_thread, waiting


class Pressure(enum.IntEnum):
    """The memory pressure of a pool."""

    LOW = _abi.GPOOL_PRESSURE_LOW
    MEDIUM = _abi.GPOOL_PRESSURE_MEDIUM
    HIGH = _abi.GPOOL_PRESSURE_HIGH
    CRITICAL = _abi.GPOOL_PRESSURE_CRITICAL


class Device(NamedTuple):
    """A pool and the device that holds its memory."""

    pool: str
    """the pool's name"""
    backend: str
    """"cuda" or "host" """
    ordinal: Optional[int]
    """CUDA number of the device in this process; None: an observer or admin session"""
    uuid: str
    """empty in an observer or admin session"""
    host_pointer: bool
    """the CPU can also use the addresses"""


class Stats(NamedTuple):
    """Counters of this session since it attached; `leased_pages` and `idle_pages` are current values."""

    leased_pages: int
    idle_pages: int
    """leased, without content"""
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
    """histogram: entry i counts allocations that took [2^i, 2^(i+1)) ns; one in 256 allocations is measured"""
    refill_ns: List[int]
    """histogram of all refills"""


class Pool(_native.Pool, Closing):
    """An attached pool, until close() or the end of a `with` statement.

        with gpool.Pool() as pool:
            ...

    Threads: any thread may use a pool and its objects, unless a method documents otherwise; calls into the library
    release the interpreter's lock.
    Signals: while the main thread waits in a call, handlers run within 50 ms. An exception raised by a handler, such as
    KeyboardInterrupt, ends the call. A handler must not use the pool itself.
    Fork: after fork() the child does not own the pool, and all its calls raise Forked. The parent is not affected.
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
        """Attach to a pool.

        pool: name of the pool; None: the first. directory: directory of the agent's sockets; None: $GPOOL_DIR, or
        /run/gpool. name: name of this process in tools, truncated to 63 bytes. tenant: tenant to join; None: the first
        that admits this user. timeout_ms: longest wait in milliseconds for an agent that has not started; -1: no limit.
        observer: only read the state, lease no pages. admin: permit evictions and changes of limits, lease no pages.
        quota_bytes: maximum lease of this session in bytes, at least a page; 0: the tenant's limit. log: function that
        receives a level (0 error to 3 debug) and a line; any thread may call it.

        Raises NotFound: no agent has started within timeout_ms, or no such pool or tenant exists; TimedOut;
        OutOfService; Error with EACCES, EUSERS, EPROTO, ENODEV, EMFILE.
        Cost: a few system calls and a round trip to the agent; pages are mapped at their first use.
        """
        if log is not None and not callable(log):
            raise TypeError(f"log is {log!r}, which is not a function")
        said: List[str] = []

        def hear(_: Any, level: int, line: bytes) -> None:
            if level == 0:
                said[:] = [line.decode(errors="replace")]
            if log is not None:
                log(level, line.decode(errors="replace"))

        self._log = _LOG(_native.hearing(hear))
        options = _abi.gpool_options(
            size=ctypes.sizeof(_abi.gpool_options),
            flags=(_abi.GPOOL_OPEN_OBSERVER if observer else 0) | (_abi.GPOOL_OPEN_ADMIN if admin else 0),
            directory=c_optional(directory, "directory"),
            pool=c_optional(pool, "pool"),
            name=c_optional(name),
            tenant=c_optional(tenant, "tenant"),
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
        # The library may call the log until the pool is closed, even from threads that outlive all Python objects.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._log))
        self.handle = Handle(pointer.value, "the pool")
        self.page_bytes = int(library().gpool_page_bytes(pointer))
        self.page_count = int(library().gpool_page_count(pointer))
        """of the whole pool"""
        self.session = int(library().gpool_session(pointer))
        """number of this session"""
        self.device = _device(pointer)
        self._ranges: weakref.WeakSet[Union[Range, SlicedRange, KvCache]] = weakref.WeakSet()  # affected by sleep()
        self._adapters: weakref.WeakSet[Adapters] = weakref.WeakSet()
        self._reservation = threading.local()  # .number: that of use_reservation(), as the C library keeps it

    def __repr__(self) -> str:
        return (
            f"<gpool.Pool '{self.device.pool}' on {self.device.backend}, {counted(self.page_count, 'page')} of "
            f"{self.page_bytes} bytes{', closed' * self.closed}>"
        )

    @property
    def closed(self) -> bool:
        """Return whether the pool was closed or belongs to the parent process. Cost: no call of the library."""
        return self.handle.closed or self.handle.forked

    def close(self) -> None:
        """Detach from the pool and end all its objects; a second call does nothing.

        Waits for the work on the pool's streams; work that waits for a host-signaled timeline of this pool, or for an
        imported fence, is executed at once. A signal handler that raises an exception ends the wait; the pool is then
        closed, and a thread detaches from it when the work is done.
        Raises Busy: a view of its memory exists, an adapter is acquired, or another thread is in a call.
        """
        if not self.closed:
            self.handle.refuse_views("close")
            for made in list(self._ranges):
                for group in list(made.groups) if isinstance(made, KvCache) else ():
                    group.close()
            for adapters in list(self._adapters):
                adapters.close()
            if threading.current_thread() is threading.main_thread():
                in_another_thread(self._detach)
            else:
                self._detach()

    def _detach(self) -> None:
        self.handle.close(library().gpool_close)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._log))

    # ---- blocks ----

    def alloc_span(self, nbytes: int, usage: Usage = Usage.KV_CACHE) -> Span:
        """Allocate 1 byte to half a page. Spans of one size class and usage share pages.

        Raises as alloc().
        Cost: mostly that of the interpreter; as alloc() if a new page is needed.
        """
        span = _abi.gpool_span()
        check_count("nbytes", nbytes, f"from 1 to {self.page_bytes // 2}, half a page")
        with self.handle as pool:
            self.check_room(
                pool,
                library().gpool_span_alloc(pool, nbytes, usage, ctypes.byref(span)),
                f"allocate {counted(nbytes, 'byte')}",
            )
        return Span(self, span)

    def scope(self, usage: Usage = Usage.KV_CACHE, *, free: bool = False) -> Scope:
        """Begin a scope, whose blocks are unpinned together at its end. free: free them instead. Cost: none."""
        return Scope(self, usage, free)

    def create_reservation(self, page_count: int, *, timeout_ms: int = 0, duration_ms: int = 0) -> int:
        """Reserve pages for processes of the same tenant, and return the number of the reservation.

        Pages that no process takes over (use_reservation()) become free when the reservation ends: by
        release_reservation(), after duration_ms (0: no limit), or with this session. timeout_ms: as in alloc().
        page_count is rounded up to whole handles of the GPU. Raises as alloc(); Error with EUSERS (255 reservations, or
        the share of the tenant or user).
        Cost: one request to the agent.
        """
        number = ctypes.c_uint64()
        check_pages(page_count, self.page_count)
        with self.handle as pool:
            create, out = library().gpool_reservation_create, ctypes.byref(number)
            undo = lambda: library().gpool_reservation_release(pool, number)  # noqa: E731
            result = waiting(timeout_ms, create, pool, page_count, timeout_ms, duration_ms, out, undo=undo)
            self.check_room(pool, result, f"reserve {counted(page_count, 'page')}")
        return number.value

    @contextlib.contextmanager
    def use_reservation(self, reservation: int) -> Iterator[None]:
        """Begin to take pages of a reservation over in the calls of this thread, until the `with` statement ends.

            with pool.use_reservation(number):
                kv.commit(first, count)

        Calls that need pages first use idle pages of this session, and take the others from the reservation only. They
        also raise NotFound if it has ended or has too few pages left, and Error with EPERM if it belongs to another
        tenant. In a nested statement, the inner reservation applies (0: none, pages are taken from the pool), and at
        its end the outer one again.
        Cost: none; a call that takes pages over makes one request to the agent.
        """
        outer: int = getattr(self._reservation, "number", 0)
        self._use_reservation(reservation)
        try:
            yield
        finally:
            if not self.closed:
                self._use_reservation(outer)

    def _use_reservation(self, reservation: int) -> None:
        with self.handle as pool:
            check(library().gpool_reservation_use(pool, reservation), f"use reservation {reservation:#x}")
        self._reservation.number = reservation

    def release_reservation(self, reservation: int) -> int:
        """End a reservation, and return the number of freed pages; 0 also if it has already ended.

        Raises Error with EPERM: it belongs to another tenant; AgentGone.
        Cost: one request to the agent.
        """
        with self.handle as pool:
            return check(
                library().gpool_reservation_release(pool, reservation), f"release reservation {reservation:#x}"
            )

    def check_room(self, pool: int, result: int, what: str) -> None:
        """Raise the exception for a negative `result`; NoRoom has its `oom_info`. Must run in the thread of the failed
        call.
        """
        if result < 0:
            raised = error(result, what)
            if isinstance(raised, NoRoom):
                raised.oom_info = _oom_info(pool, False)
            raise raised

    def oom_info(self) -> OomInfo:
        """Return why the calling thread's last allocation was refused for lack of pages, and which sessions now lease
        the most pages.

        Raises Error.
        Cost: one request to the agent, which reads all page words.
        """
        with self.handle as pool:
            return _oom_info(pool, True)

    def release_unused(self) -> int:
        """Unmap unused memory for which other trust domains wait, and return the number of unmapped handles.

        Other calls do the same; a process that makes none for more than a second should call this method periodically.
        Raises Forked.
        Cost: one load if no session waits for a page; otherwise a driver call for each handle.
        """
        with self.handle as pool:
            return check(library().gpool_release_unused(pool), "release unused memory")

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
        """Create an object named `name` (at most 127 bytes). Object.publish() makes it visible.

        memory_class: access to its pages, and their eviction. pinned: publish an object of class PINNABLE pinned, until
        Object.unpin(). private: refuse sessions of other tenants. domain_write: permit all tenants of the trust domain
        to replace and delete it. role: leadership role that this process must hold when it publishes. expect_version:
        version that must be current at the publication; 0: no version may exist; None: any.

        Raises Error with EINVAL (name; a role that was acquired by another pool), EPERM (observer or admin; a name that
        is reserved for the library), ENOMEM.
        Cost: no request to the agent.
        """
        if role is not None:
            refuse_role(role, self.handle)
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
        """Open a version of an object and map its memory. The version remains unchanged until it is closed, even if it
        is replaced or deleted.

        version: the version to open; 0: the current one. layout_hash: hash that the object must have; 0: any. role:
        leadership role that this process holds. adopt: become the writer of a mutable object whose writer has ended;
        this requires the object's role.

        Raises NotFound; Stale: the role is no longer held; Busy: adopt, but the writer is still running; Error with
        EPROTO (layout_hash), EACCES (private), EPERM (adopt with another role), EINVAL (adopt without role; a role that
        was acquired by another pool).
        Cost: one request to the agent, a mapping for each page.
        """
        if role is not None:
            refuse_role(role, self.handle)
        options = _open_options(version, layout_hash, role, adopt)
        pointer = ctypes.c_void_p()
        with self.handle as pool:
            check(
                library().gpool_object_open(pool, c_text(name), options, ctypes.byref(pointer)), f"open object '{name}'"
            )
        assert pointer.value
        return Object(self, pointer.value, name, adopted=adopt)

    def delete_object(self, name: str, version: int = 0) -> None:
        """Delete an object by name. Its pages are freed when the last reader closes it.

        version: the version that must be current; 0: any.
        Raises NotFound; Stale: another version is current; Error with EPERM.
        Cost: one request to the agent.
        """
        with self.handle as pool:
            check(library().gpool_object_delete(pool, c_text(name), version), f"delete object '{name}'")

    def objects(self) -> Iterator[ObjectInfo]:
        """Iterate over all versions of all objects that this session may see.

        Raises Error.
        Cost: one pass over the shared table, no request to the agent.
        """
        cursor, filled = ctypes.c_uint32(), _abi.gpool_object_info(size=ctypes.sizeof(_abi.gpool_object_info))
        while True:
            with self.handle as pool:
                result = library().gpool_object_next(pool, ctypes.byref(cursor), ctypes.byref(filled))
            if result == -errno.ENOENT:
                return
            check(result, "list objects")
            yield info_of(filled)

    def find_objects(self, names: Sequence[str]) -> int:
        """Return how many names at the beginning of the list name objects that this session may open.

        For example, pass the names of the parts of a prefix, in order. The objects may be evicted or deleted at any
        time.
        Raises Error; TypeError: `names` is a str, or a name is not a str.
        Cost: a lookup in shared memory for each name, no request to the agent.
        """
        return self._find(c_texts(names, "names"))

    # ---- ranges ----

    def create_range(
        self,
        page_count: int,
        memory_class: ObjectClass = ObjectClass.MUTABLE,
        usage: Usage = Usage.KV_CACHE,
        *,
        name: Optional[str] = None,
        owner_id: int = 0,
        timeout_ms: int = 0,
    ) -> Range:
        """Create a range of contiguous addresses with `page_count` pages, for sleep() and wake().

        memory_class: treatment of the content when the session sleeps. name: for class IMMUTABLE, name of the object
        that keeps the content. owner_id, timeout_ms: as in alloc().
        Raises as alloc(); Asleep.
        Cost: as alloc(), and a map call for each handle.
        """
        check_pages(page_count, self.page_count)
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
        zero: bool = False,
    ) -> Range:
        """Reserve an elastic range. It initially has no pages; Range.commit() and Range.decommit() add and remove them
        individually.

        The range may be larger than the pool. zero: a committed page contains its own previous content or zeros;
        otherwise it may contain data of another program of the same trust domain.
        Raises Asleep; Error with EINVAL, ENOMEM.
        Cost: no request to the agent.
        """
        flags = _abi.GPOOL_RANGE_ZERO if zero else 0
        check_count("page_count", page_count, f"from 1 to {2**32 - 1}")
        return self._range(
            library().gpool_range_reserve, page_count, memory_class, usage, None, owner_id, 0, True, flags
        )

    def open_range(self, name: str, version: int = 0, *, layout_hash: int = 0) -> Range:
        """Open a read-only range of the pages of an immutable object.

        Raises as open_object(); Asleep.
        Cost: as open_object().
        """
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
        flags: int = 0,
    ) -> Range:
        options = _abi.gpool_range_options(
            size=ctypes.sizeof(_abi.gpool_range_options),
            flags=flags,
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
            self.check_room(pool, result, f"make a range of {counted(page_count, 'page')}")
        assert pointer.value
        return self._ranges_add(Range(self, pointer.value, elastic))

    def create_sliced_range(
        self,
        slices: int,
        blocks: int,
        block_pages: int = 1,
        memory_class: ObjectClass = ObjectClass.MUTABLE,
        usage: Usage = Usage.KV_CACHE,
        *,
        owner_id: int = 0,
        read_ahead: int = 0,
    ) -> SlicedRange:
        """Create an elastic range of `slices` slices of `blocks` blocks of `block_pages` pages. It initially has no
        pages; SlicedRange.grow() and SlicedRange.shrink() change all slices together.

        read_ahead: number of blocks beyond the committed ones that a thread of the library maps in advance; 0: none.
        Other sessions may take their pages.
        Raises Asleep; Error with EINVAL, ENOMEM.
        Cost: no request to the agent.
        """
        made = SlicedRange(self, slices, blocks, block_pages, memory_class, usage, owner_id, read_ahead)
        self._ranges.add(made)
        return made

    def create_kv_cache(
        self,
        layers: int,
        kv_heads: int,
        head_size: int,
        stream: Stream,
        dtype: Any = "float16",
        *,
        block_tokens: int = 16,
        max_blocks: int = 0,
        max_sequences: int = 0,
        max_sequence_tokens: int = 0,
        watermark_blocks: Optional[int] = None,
        owner_id: int = 0,
        keep: bool = False,
        prefixes: bool = False,
        adaptive: bool = False,
        zero: bool = False,
        int8: bool = False,
        model: bytes = b"",
        cached_blocks: int = 0,
        pool_blocks: int = 0,
        compact_bytes_per_s: int = 0,
    ) -> KvCache:
        """Create a paged KV cache. It initially has addresses, but no pages.

        A block contains the keys and values of block_tokens tokens: 2 * layers * kv_heads * head_size elements of
        `dtype` for each token.
        stream: stream that orders all work with the cache. block_tokens: a power of two up to 1,024. max_blocks: up to
        2^24, rounded up to whole chunks (KvLayout.max_blocks has the result); 0: as many as the pool can hold.
        max_sequences: maximum number of sequences at a time, including preempted ones; 0: 256. max_sequence_tokens:
        maximum length of a sequence; 0: 131,072. watermark_blocks: blocks that admission keeps free; None: 1 % of
        max_blocks. owner_id: number that tools show. keep: Pool.sleep() spills the content instead of discarding it.
        zero: fill blocks with zeros when a sequence gets them; otherwise their content is undefined. int8: store int8
        codes, with a bf16 scale for each vector, which KvCache.write() computes from elements of `dtype`, float16 or
        bfloat16; head_size must be a multiple of 16 up to 256, and block_tokens at least 8. compact_bytes_per_s:
        average limit of KvCache.compact(); 0: no limit.
        prefixes: blocks can be published and found by their tokens. The following arguments require prefixes. adaptive:
        evict according to statistics of past requests. model: hash of everything that affects the content, at most 32
        bytes. cached_blocks: maximum number of cached blocks; 0: no limit. pool_blocks: number of addresses for blocks
        that are shared with other processes; 0: prefix_share() is disabled.

        Raises Asleep; ValueError: model is too long, or int8 with another dtype; Closed: the stream is closed; Error
        with EINVAL: a number is out of range, or the stream is host-signaled; ENOMEM, EPERM, EIO; TypeError: unknown
        dtype.
        Cost: no request to the agent.
        """
        element = dtype_of(dtype)
        model = c_bytes(model, "model")
        if len(model) > 32:
            raise ValueError(f"model has {counted(len(model), 'byte')}; the maximum is 32")
        if int8 and element.name not in ("float16", "bfloat16"):
            raise ValueError(f"dtype is {element.name}; with int8 it must be float16 or bfloat16")
        # In C 0 is the default, and another number means none.
        watermark = 0 if watermark_blocks is None else watermark_blocks or _abi.GPOOL_KV_NO_WATERMARK
        options = _abi.gpool_kv_options(
            size=ctypes.sizeof(_abi.gpool_kv_options),
            flags=(_abi.GPOOL_KV_KEEP if keep else 0)
            | (_abi.GPOOL_KV_PREFIXES if prefixes else 0)
            | (_abi.GPOOL_KV_ADAPTIVE if adaptive else 0)
            | (_abi.GPOOL_KV_ZERO if zero else 0)
            | (_abi.GPOOL_KV_INT8 if int8 else _abi.GPOOL_KV_BF16 if element.name == "bfloat16" else 0),
            shape=_abi.gpool_kv_shape(layers, kv_heads, head_size, 1 if int8 else element.itemsize, block_tokens),
            stream=number_of(stream, self.handle),
            max_blocks=max_blocks,
            max_sequences=max_sequences,
            max_sequence_tokens=max_sequence_tokens,
            watermark_blocks=watermark,
            owner_id=owner_id,
            model=tuple(model.ljust(32, b"\0")),
            cached_blocks=cached_blocks,
            pool_blocks=pool_blocks,
            compact_bytes_per_s=compact_bytes_per_s,
        )
        made = KvCache(self, options, dtype)
        self._ranges.add(made)
        return made

    def _ranges_add(self, made: Range) -> Range:
        self._ranges.add(made)
        return made

    def sleep(self) -> None:
        """Return the pages of all ranges to the pool, all or none. Content is published (IMMUTABLE), spilled (MUTABLE)
        or discarded (EPHEMERAL).

        Waits for the work on the pool's streams. A signal handler that raises an exception ends the wait, and the
        session remains awake; if the handler runs at the end of the call, `asleep` returns whether the session sleeps.
        No other thread may create views of ranges during the call.
        Raises Busy: a view of a range exists, or GPU work uses a range; NoRoom: no room for spilled content; Error with
        EOPNOTSUPP (the pool has neither memory nor a file for spilled content), EIO (spilling failed).
        Cost: an unmap call for each range, one request to the agent; the time to save the content.
        """
        for made in list(self._ranges):
            made.handle.refuse_views("put {} to sleep")
        with self.handle as pool:
            check(waiting(-1, library().gpool_sleep, pool, 0), "go to sleep")

    def wake(self, timeout_ms: int = 0) -> None:
        """Commit pages for all ranges again, at the same addresses and with their content. On failure the session
        remains asleep.

        timeout_ms: longest wait for pages in milliseconds; 0: do not wait, -1: no limit. A signal handler that runs
        during the wait must not use the pool, nor wait for a thread that creates, closes or describes a range.
        Raises NoRoom; Stale: content is lost; Error with EIO (spilled content cannot be read now; it is kept), ENOMEM.
        Cost: three requests to the agent, a mapping for each handle; the time to restore the content.
        """
        with self.handle as pool:
            self.check_room(pool, waiting(timeout_ms, library().gpool_wake, pool, timeout_ms), "wake")

    @property
    def asleep(self) -> bool:
        """Return whether the session is asleep. Raises Error. Cost: one lock."""
        with self.handle as pool:
            return check(library().gpool_asleep(pool), "read whether the session is asleep") == 1

    # ---- adapters ----

    def adapters(
        self,
        cache_dir: Optional[str] = None,
        *,
        warm: Optional[Pool] = None,
        int8: bool = False,
        private: bool = False,
        share_pages: bool = False,
        element: Element = Element.AS_FILE,
        load_threads: int = 0,
        salt: Tuple[int, int] = (0, 0),
        hot_adapters: int = 0,
        hot_bytes: int = 0,
        warm_adapters: int = 0,
        warm_bytes: int = 0,
        idle_ms: int = 0,
    ) -> Adapters:
        """Create an empty set of LoRA adapters in this pool.

        cache_dir: existing directory for packed copies of loaded adapters; None: no copies. warm: pool of the back end
        `host` in which engines share copies; closing it also closes the adapters. int8: store copies in cache_dir and
        warm as int8 if the loss of precision is small. private: share adapters only with engines of the same tenant,
        not of the trust domain. share_pages: store the last pages of these adapters together, which saves memory if
        adapters have few pages and are used by one or two engines; engines then do not share adapters smaller than a
        page. element: type of the weights in the pool.
        load_threads: number of loader threads; 0: 4. salt: two 64-bit numbers; only engines with the same salt share
        adapters. hot_adapters, hot_bytes: limits of the adapters that this set keeps in the pool; 0: none.
        warm_adapters, warm_bytes: limits of its copies in warm; 0: none. idle_ms: time without a use after which an
        adapter is copied to warm; 0: as gpoold.conf states.

        Raises NotFound: cache_dir; Error with EINVAL, ENOTDIR, EACCES (cache_dir), EPERM (observer or admin), EUSERS
        (255 streams are open), EIO (driver), ENOMEM.
        Cost: starts the threads.
        """
        made = Adapters(
            self,
            cache_dir,
            warm,
            int8,
            private,
            share_pages,
            element,
            load_threads,
            salt,
            hot_adapters,
            hot_bytes,
            warm_adapters,
            warm_bytes,
            idle_ms,
        )
        for pool in (self, warm) if warm is not None else (self,):
            pool._adapters.add(made)
        return made

    # ---- roles ----

    def acquire_role(self, name: str, timeout_ms: int = -1) -> Role:
        """Acquire a leadership role of the trust domain; wait while another session holds it.

        timeout_ms: longest wait in milliseconds; 0: do not wait, -1: no limit.
        Raises TimedOut; NoRoom: 64 roles exist, or the share of the tenant or user is used up; AgentGone; Error with
        EALREADY (this process holds or awaits the role), EACCES (another tenant's role).
        Cost: one request to the agent.
        """
        return acquire(self.handle, name, timeout_ms)

    def role_info(self, name: str) -> Tuple[int, int]:
        """Return the session that holds a leadership role (0: none) and the token of the current or last holder.

        The role is that of the session's trust domain. Raises NotFound.
        Cost: no request to the agent.
        """
        session, token = ctypes.c_uint32(), ctypes.c_uint64()
        with self.handle as pool:
            check(
                library().gpool_role_info(pool, c_text(name), ctypes.byref(session), ctypes.byref(token)),
                f"read role '{name}'",
            )
        return session.value, token.value

    # ---- events ----

    def event(self, timeout_ms: int = -1) -> Event:
        """Wait for the agent's next event. The first call subscribes; earlier events are not received.

        timeout_ms: longest wait in milliseconds; -1: no limit. Events may be lost; read the state when an event
        arrives.
        Raises TimedOut; AgentGone.
        Threads: one at a time; the pool must not be closed during the call.
        """
        filled = _abi.gpool_event(size=ctypes.sizeof(_abi.gpool_event))
        with self.handle as pool:
            check(
                waiting(timeout_ms, library().gpool_event_next, pool, timeout_ms, ctypes.byref(filled)),
                "receive an event",
            )
        return event_of(filled)

    # ---- streams ----

    def stream(self, native: Optional[int] = None, host_signaled: bool = False) -> Stream:
        """Open a stream whose progress other processes can read. A session can have 255 streams.

        native: a CUstream of the program, such as torch.cuda.Stream().cuda_stream, which must outlive the stream; None:
        create one. host_signaled: open a host-signaled timeline, without a GPU stream; the program signals its fences.
        Waits for the work on the default streams of threads that have ended.
        Raises Error with EUSERS (255 streams are open), EINVAL, EOPNOTSUPP (the device cannot write fences), EIO
        (driver).
        Cost: a driver call.
        """
        if native is not None:
            native = integer(native, "native")  # ctypes would pass the address of a str
            check_address("native", native)
        number = ctypes.c_uint32()
        flags = _abi.GPOOL_STREAM_HOST_SIGNALED if host_signaled else 0
        with self.handle as pool:
            undo = lambda: library().gpool_stream_close(pool, number)  # noqa: E731
            opened = waiting(-1, library().gpool_stream_open, pool, native, flags, ctypes.byref(number), undo=undo)
            check(opened, "open a stream")
        return Stream(self.handle, number.value)

    def fence_import(self, exported: bytes) -> Fence:
        """Import a fence that another process exported with Fence.export(). Call Fence.close() when it is no longer
        needed.

        Raises Error with ESRCH (that process has died), EINVAL (not an exported fence), EACCES, EUSERS, EOPNOTSUPP,
        EIO; AgentGone; ValueError: not 128 bytes; TypeError: no bytes or other buffer.
        Cost: a few loads; for the first fence of a process, one request to the agent and a mapping.
        """
        exported = c_bytes(exported, "exported")
        if len(exported) != ctypes.sizeof(_abi.gpool_fence_handle):
            raise ValueError(f"an exported fence has 128 bytes, not {len(exported)}")
        handle, fence = _abi.gpool_fence_handle.from_buffer_copy(exported), _abi.gpool_fence()
        with self.handle as pool:
            check(library().gpool_fence_import(pool, ctypes.byref(handle), ctypes.byref(fence)), "import a fence")
        return Fence(self.handle, fence.value)

    # ---- state ----

    @property
    def pressure(self) -> Pressure:
        """Return the memory pressure of the pool. Raises Error. Cost: one load."""
        with self.handle as pool:
            return Pressure(check(library().gpool_pressure(pool), "read the pressure"))

    def stats(self) -> Stats:
        """Return the counters of this session.

        Raises Error.
        Cost: one pass over the page words.
        """
        filled = _abi.gpool_stats(size=ctypes.sizeof(_abi.gpool_stats))
        with self.handle as pool:
            check(library().gpool_stats(pool, ctypes.byref(filled)), "read the counters")
        values: Dict[str, Any] = {name: getattr(filled, name) for name in Stats._fields}
        values["allocation_ns"], values["refill_ns"] = list(filled.allocation_ns), list(filled.refill_ns)
        return Stats(**values)


_native.setup(error, (Block, Pin, Fence))
_LOG: Any = {field[0]: field[1] for field in _abi.gpool_options._fields_}["log"]


def _oom_info(pool: int, with_holders: bool) -> OomInfo:
    """Return the description of the last refusal. Without holders the struct is shorter and no request is sent."""
    first: Any = _abi.gpool_oom_info.holder_count
    filled = _abi.gpool_oom_info(size=ctypes.sizeof(_abi.gpool_oom_info) if with_holders else first.offset)
    check(library().gpool_oom_info(pool, ctypes.byref(filled)), "read the reason of the refusal")
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
    return OomInfo(filled.needed, filled.free, filled.pinned, filled.holder, filled.holder_pages, holders)


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
    check(library().gpool_device_info(pool, ctypes.byref(device)), "read the device")
    return Device(
        device.pool.decode(),
        device.backend.decode(),
        None if device.ordinal == _abi.GPOOL_DEVICE_NONE else int(device.ordinal),
        device.uuid.decode(),
        bool(device.flags & _abi.GPOOL_DEVICE_HOST_POINTER),
    )
