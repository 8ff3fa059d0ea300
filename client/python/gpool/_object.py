"""Named objects: memory and metadata that are published under a name in one step."""

from __future__ import annotations

import ctypes
import enum
import errno
import threading
from typing import TYPE_CHECKING, Any, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi
from ._checked import check_pages
from ._errors import Error, Stale, check
from ._handle import Closing, Handle
from ._library import library
from ._options import Usage, alloc_options
from ._stream import c_fence
from ._text import c_bytes, c_text, counted
from ._view import View, loan
from ._wait import waiting

if TYPE_CHECKING:
    from ._pool import Pool
    from ._range import Range
    from ._stream import Fence, Stream


class ObjectClass(enum.IntEnum):
    """The access to the pages of an object or range, and their eviction."""

    IMMUTABLE = _abi.GPOOL_OBJECT_IMMUTABLE
    """read-only for all sessions after its publication"""
    MUTABLE = _abi.GPOOL_OBJECT_MUTABLE
    """its only writer may write after the publication; readers see each write"""
    EPHEMERAL = _abi.GPOOL_OBJECT_EPHEMERAL
    """as IMMUTABLE; may be evicted as a whole while no session has it open"""
    PINNABLE = _abi.GPOOL_OBJECT_PINNABLE
    """as IMMUTABLE; may be evicted as a whole while no session pins it, open or not"""


class ObjectState(enum.IntEnum):
    """The state of a version of an object."""

    CURRENT = _abi.GPOOL_OBJECT_CURRENT
    OLD = _abi.GPOOL_OBJECT_OLD
    DELETED = _abi.GPOOL_OBJECT_DELETED


class ObjectInfo(NamedTuple):
    """Description of a version of an object."""

    name: str
    version: int
    state: ObjectState
    memory_class: ObjectClass
    pages: int
    allocations: int
    readers: int
    """sessions that have it open"""
    writer: int
    """session that may write to it; 0: none"""
    layout_hash: int
    """hash of the allocation sizes and the metadata, without the content of allocations"""
    metadata_bytes: int
    published_ms: int
    """wall clock, milliseconds since 1970"""
    uid: int
    pid: int
    """process of the publisher"""
    tenant: str
    role: str
    number: int
    """number of the object in the page table"""


def info_of(filled: _abi.gpool_object_info) -> ObjectInfo:
    """Return the description in a struct of the C library."""
    values: Dict[str, Any] = {name: getattr(filled, name) for name in ObjectInfo._fields}
    for name in ("name", "tenant", "role"):
        values[name] = values[name].decode(errors="replace")
    values["state"], values["memory_class"] = ObjectState(filled.state), ObjectClass(filled.memory_class)
    return ObjectInfo(**values)


class ObjectPin:
    """The result of Object.pin(): unpins the object at the end of a `with` statement."""

    def __init__(self, pinned: Object) -> None:
        self.object = pinned

    def __enter__(self) -> Object:
        return self.object

    def __exit__(self, *_: object) -> None:
        self.object.unpin()


class Object(Closing):
    """A named object: a draft (Pool.create_object()) or an open version (Pool.open_object()).

        with pool.create_object("weights") as draft:
            numpy.asarray(draft.view(draft.alloc(4), "float16"))[:] = weights
            draft["scale"] = b"1.5"
            draft.publish()

    A draft is not visible to other sessions, and is discarded when it is closed. The keys of metadata are str and the
    values bytes; [], len(), `in` and iteration read the metadata of a published object.

    Threads: one at a time until publish(), then any.
    """

    def __init__(
        self,
        pool: Pool,
        pointer: int,
        name: str,
        memory_class: Optional[ObjectClass] = None,
        pinned: bool = False,
        adopted: bool = False,
        within: Optional[Range] = None,
    ) -> None:
        """Wrap an object of the library; for this package only.

        memory_class: class of a draft; None: the object is published. pinned: it is published pinned. adopted: this
        process is its writer. within: the range in which it is mapped.
        """
        self._within = within
        self._pool = pool
        self.name = name
        self.handle = Handle(pointer, f"object '{name}'", pool.handle)
        self._draft = memory_class is not None
        self._memory_class = self.info().memory_class if memory_class is None else memory_class
        self._writable = self._draft or adopted
        self._lock = threading.Lock()
        self._pins = int(bool(pinned))  # the program's pins; views have their own pins

    def __repr__(self) -> str:
        return (
            f"<gpool.Object '{self.name}', {self._memory_class.name.lower()}{', not published' * self._draft}"
            f"{', closed' * self.handle.closed}>"
        )

    def close(self) -> None:
        """Close the object and release its addresses. A draft is discarded. A second call does nothing.

        Raises Busy: a view of the object exists, or queued GPU work uses it.
        """
        if self._pool.closed:
            return
        if self._within is None:
            with self._pool.handle:
                self.handle.close(library().gpool_object_close)
        elif not self.handle.closed and not self._within.handle.closed:
            with self._within.handle as within:
                self._unpin_all()
                self.handle.close(library().gpool_range_unmap, before=(within,))

    # ---- building ----

    def alloc(
        self,
        page_count: int,
        usage: Usage = Usage.KV_CACHE,
        *,
        priority: int = 0,
        owner_id: int = 0,
        timeout_ms: int = 0,
        stream: Optional[Stream] = None,
    ) -> int:
        """Add an allocation of `page_count` pages to a draft and return its index, counted from 0. It is pinned until
        the publication.

        Arguments and cost as in Pool.alloc().
        Raises as Pool.alloc(); Error with EINVAL: the object is published.
        """
        index = ctypes.c_uint32()
        check_pages(page_count, self._pool.page_count)
        options = alloc_options(0, usage, priority, owner_id, timeout_ms, stream, self._pool.handle)
        with self.handle as pointer, self._pool.handle as pool:
            result = waiting(
                timeout_ms, library().gpool_object_alloc, pointer, page_count, options, ctypes.byref(index)
            )
            self._pool.check_room(pool, result, f"allocate {counted(page_count, 'page')} for object '{self.name}'")
        return index.value

    def __setitem__(self, key: str, value: bytes) -> None:
        """Set the metadata value of a key of 1 to 1,023 bytes. An object can have 64 MiB of metadata.

        value: bytes or another buffer. Encode a str, for example with value.encode().
        Raises TypeError: the key is not a str, or the value has no buffer; ValueError: the key contains NUL; Error with
        EINVAL (key, published), EFBIG (more than 64 MiB), ENOMEM.
        """
        name = self._key(key)
        content = c_bytes(value, f"the value of '{key}' of object '{self.name}'")
        with self.handle as pointer:
            check(
                library().gpool_object_set(pointer, name, content, len(content)),
                f"set '{key}' of object '{self.name}'",
            )

    def _key(self, key: str) -> bytes:
        return c_text(key, f"a key of object '{self.name}'")

    def publish(self) -> int:
        """Publish the draft in one step as the current version of its name, and return the version. The object remains
        open.

        GPU work that writes to the object must have finished.
        Raises Busy: a writable view exists; Stale: the current version is not expect_version, or the role is not held;
        NoRoom; AgentGone; Error with EINVAL (already published, no allocation), EACCES, EPERM.
        Cost: one request to the agent.
        """
        if self._memory_class != ObjectClass.MUTABLE:
            self.handle.refuse_views("publish")
        version = ctypes.c_uint64()
        with self.handle as pointer:
            check(library().gpool_object_publish(pointer, ctypes.byref(version)), f"publish object '{self.name}'")
        self._draft = False
        self._writable = self._memory_class == ObjectClass.MUTABLE
        return version.value

    # ---- reading ----

    def info(self) -> ObjectInfo:
        """Return the description of this version.

        Raises Error with EINVAL: not published; Stale: an object of class PINNABLE was evicted.
        Cost: a few loads.
        """
        filled = _abi.gpool_object_info(size=ctypes.sizeof(_abi.gpool_object_info))
        with self.handle as pointer:
            check(library().gpool_object_info(pointer, ctypes.byref(filled)), f"read the state of object '{self.name}'")
        return info_of(filled)

    def __getitem__(self, key: str) -> bytes:
        """Return the metadata value of a key. Raises KeyError; TypeError; Error with EINVAL: not published."""
        value, size = ctypes.c_void_p(), ctypes.c_size_t()
        name = self._key(key)
        with self.handle as pointer:
            result = library().gpool_object_get(pointer, name, ctypes.byref(value), ctypes.byref(size))
            if result == -errno.ENOENT:
                raise KeyError(key)
            check(result, f"get '{key}' of object '{self.name}'")
            return ctypes.string_at(value, size.value)

    def items(self) -> Iterator[Tuple[str, bytes]]:
        """Iterate over the metadata in the order of the keys. Raises Error with EINVAL: not published."""
        key, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
        index = 0
        while True:
            with self.handle as pointer:
                result = library().gpool_object_entry(
                    pointer, index, ctypes.byref(key), ctypes.byref(value), ctypes.byref(size)
                )
                if result == -errno.ENOENT:
                    return
                check(result, f"get entry {index} of object '{self.name}'")
                entry = (key.value or b"").decode(errors="replace"), ctypes.string_at(value, size.value)
            yield entry
            index += 1

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.items())

    def __len__(self) -> int:
        return sum(1 for _ in self.items())

    def __bool__(self) -> bool:
        return True

    def __contains__(self, key: str) -> bool:
        try:
            self[key]
        except KeyError:
            return False
        return True

    # ---- memory ----

    def address(self, index: int = 0) -> Tuple[int, int]:
        """Return the device address and size in bytes of an allocation. The address is valid until close(); in an
        object of class PINNABLE, its content is valid while the object is pinned.

        Raises Error with EINVAL: no such allocation.
        Cost: a few loads.
        """
        address, size = ctypes.c_uint64(), ctypes.c_uint64()
        with self.handle as pointer:
            result = library().gpool_object_address(pointer, index, ctypes.byref(address), ctypes.byref(size))
            check(result, f"read the address of allocation {index} of object '{self.name}'")
        return address.value, size.value

    def view(
        self,
        index: int = 0,
        dtype: Any = "uint8",
        shape: Union[int, Sequence[int], None] = None,
        offset: int = 0,
        stream: Optional[Stream] = None,
    ) -> View:
        """Return an allocation as an array: see Block.view(). The view is read-only, except for a draft or the writer
        of a MUTABLE object.

        While the view exists, the object remains open, and pinned if its class is PINNABLE.
        Raises Stale: evicted; Error with EINVAL: no such allocation; ValueError; TypeError.
        """
        return View(_Allocation(self, index), self._pool, dtype, shape, offset, not self._writable, stream)

    def pin(self) -> ObjectPin:
        """Pin an object of class PINNABLE until unpin() or the end of a `with` statement.

        Raises Stale: the object was evicted; close it and open the name again. Error with EINVAL: another class.
        Cost: mostly that of the interpreter.
        """
        with self.handle as pointer:
            check(library().gpool_object_pin(pointer), f"pin object '{self.name}'")
        with self._lock:
            self._pins += 1
        return ObjectPin(self)

    def unpin(self, after: Optional[Fence] = None) -> None:
        """End one pin of the program.

        after: end it when this fence is signaled, without waiting.
        Raises Error with EINVAL: the program has no pin.
        """
        fence = c_fence(after, self._pool.handle)
        with self._lock:
            if self._pins == 0:
                raise Error(errno.EINVAL, f"cannot unpin object '{self.name}': the program has not pinned it")
            self._pins -= 1
        with self.handle as pointer:
            if after is None:
                result = library().gpool_object_unpin(pointer)
            else:
                result = library().gpool_object_unpin_after(pointer, fence)
        if result < 0:
            with self._lock:
                self._pins += 1
        check(result, f"unpin object '{self.name}'")

    def _unpin_all(self) -> None:
        """End the program's pins, so that the mapping in a range can end."""
        while self._pins:
            try:
                self.unpin()
            except Stale:
                return

    @property
    def pinnable(self) -> bool:
        """Return whether the object is published and of class PINNABLE, so that it must be pinned for use."""
        return self._memory_class == ObjectClass.PINNABLE and not self._draft


class _Allocation:
    """An allocation of an object as a source of views."""

    def __init__(self, shown: Object, index: int) -> None:
        self._object = shown
        self._index = index

    @property
    def handle(self) -> Handle:
        return self._object.handle

    def lend(self, stream: int) -> _abi.gpool_loan:
        pinnable = self._object.pinnable
        with self._object.handle as pointer, self._object._pool.handle as pool:
            if pinnable:
                check(library().gpool_object_pin(pointer), f"pin object '{self._object.name}'")
            return loan(pool, pointer if pinnable else None, _abi.gpool_block(), stream)

    def where(self) -> Tuple[int, int]:
        return self._object.address(self._index)
