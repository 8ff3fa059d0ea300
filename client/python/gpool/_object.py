"""Named objects: memory and metadata under a name, published in one step, readable by any worker of the pool."""

from __future__ import annotations

import ctypes
import enum
import errno
import sys
import threading
from typing import TYPE_CHECKING, Any, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi
from ._errors import Error, check
from ._handle import Handle
from ._library import library
from ._options import Usage, alloc_options
from ._text import c_text
from ._view import View, loan
from ._wait import waiting

if TYPE_CHECKING:
    from ._pool import Pool
    from ._stream import Fence, Stream


class ObjectClass(enum.IntEnum):
    """How the pages of an object or a range may be written and evicted."""

    IMMUTABLE = _abi.GPOOL_OBJECT_IMMUTABLE
    """read-only from its publication on"""
    MUTABLE = _abi.GPOOL_OBJECT_MUTABLE
    """its one writer continues to write; readers see changes at once"""
    EPHEMERAL = _abi.GPOOL_OBJECT_EPHEMERAL
    """immutable, and may be evicted as a whole while no session has it open"""
    PINNABLE = _abi.GPOOL_OBJECT_PINNABLE
    """immutable, and may be evicted as a whole while no session pins it, even if it is open"""


class ObjectState(enum.IntEnum):
    """The state of a version."""

    CURRENT = _abi.GPOOL_OBJECT_CURRENT
    OLD = _abi.GPOOL_OBJECT_OLD
    DELETED = _abi.GPOOL_OBJECT_DELETED


class ObjectInfo(NamedTuple):
    """One version of an object."""

    name: str
    version: int
    state: ObjectState
    memory_class: ObjectClass
    pages: int
    allocations: int
    readers: int
    """number of sessions that have it open"""
    writer: int
    """session that may write it; 0: none"""
    layout_hash: int
    """hash of allocation sizes and metadata, not of contents"""
    metadata_bytes: int
    published_ms: int
    """wall clock, milliseconds since 1970"""
    uid: int
    pid: int
    """process that published it"""
    tenant: str
    role: str
    number: int
    """owner in the page words"""


def info_of(filled: _abi.gpool_object_info) -> ObjectInfo:
    values: Dict[str, Any] = {name: getattr(filled, name) for name in ObjectInfo._fields}
    for name in ("name", "tenant", "role"):
        values[name] = values[name].decode(errors="replace")
    values["state"], values["memory_class"] = ObjectState(filled.state), ObjectClass(filled.memory_class)
    return ObjectInfo(**values)


class ObjectPin:
    """The result of Object.pin(): `with object.pin():` unpins at the end. It has no other use."""

    def __init__(self, pinned: Object) -> None:
        self.object = pinned

    def __enter__(self) -> Object:
        return self.object

    def __exit__(self, *_: object) -> None:
        self.object.unpin()


class Object:
    """A named object: one that is being built (Pool.create_object()), or an open version (Pool.open_object()).

        with pool.create_object("weights") as draft:
            numpy.asarray(draft.view(draft.alloc(4), "float16"))[:] = weights
            draft["scale"] = b"1.5"
            draft.publish()

    Until publish() the object is invisible to other sessions, and close() deletes it. Until then one thread at a time
    may use it, afterwards any. Metadata maps texts to bytes; len(), `in`, iteration and [] read the metadata of a
    published object."""

    def __init__(
        self,
        pool: Pool,
        pointer: int,
        name: str,
        memory_class: Optional[ObjectClass] = None,
        pinned: bool = False,
        adopted: bool = False,
    ) -> None:
        """Internal. memory_class: of an object that is to be published. pinned: pinned from its publication on.
        adopted: this process is its writer.
        """
        self._pool = pool
        self.name = name
        self.handle = Handle(pointer, f"object '{name}'", pool.handle)
        self._draft = memory_class is not None
        self._memory_class = self.info().memory_class if memory_class is None else memory_class
        self._writable = self._draft or adopted
        self._lock = threading.Lock()
        self._pins = int(pinned)  # pins of the program; views have their own

    def __repr__(self) -> str:
        return (
            f"<gpool.Object '{self.name}', {self._memory_class.name.lower()}{', not published' * self._draft}"
            f"{', closed' * self.handle.closed}>"
        )

    def __enter__(self) -> Object:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except Error:
            if kind is None:  # else views exist in the frames of an exception, which is more important
                raise

    def __del__(self) -> None:
        if hasattr(self, "handle") and not sys.is_finalizing():
            try:
                self.close()
            except Error:
                pass  # another library still has a tensor of it; it ends with the pool

    def close(self) -> None:
        """Close the object; its addresses become invalid. An object that is not published is deleted. A second call
        does nothing.

        Raises Busy: a view of it exists, or queued GPU work still uses it.
        """
        if not self._pool.closed:
            with self._pool.handle:
                self.handle.close(library().gpool_object_close)

    # ---- build ----

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
        """Add an allocation, pinned until the object is published; returns its index, from 0 on. See Pool.alloc();
        Error with EINVAL: the object is published.
        """
        index = ctypes.c_uint32()
        options = alloc_options(0, usage, priority, owner_id, timeout_ms, stream)
        with self.handle as pointer, self._pool.handle as pool:
            result = waiting(
                timeout_ms, library().gpool_object_alloc, pointer, page_count, options, ctypes.byref(index)
            )
            self._pool.check_room(pool, result, f"allocate {page_count} pages for object '{self.name}'")
        return index.value

    def __setitem__(self, key: str, value: bytes) -> None:
        """Set metadata: bytes under a key of 1 to 1,023 bytes. An object has at most 64 MiB of metadata."""
        with self.handle as pointer:
            check(
                library().gpool_object_set(pointer, c_text(key), value, len(value)),
                f"set '{key}' of object '{self.name}'",
            )

    def publish(self) -> int:
        """Publish the object under its name, in one step; returns its version. It stays open. GPU work that writes to
        it must be done.

        Raises Busy: a writable view exists; Stale: another version is current than expected; NoRoom; Error with EINVAL:
        it is published already, or has no allocation.
        """
        if self._memory_class != ObjectClass.MUTABLE:
            self.handle.refuse_views("publish")
        version = ctypes.c_uint64()
        with self.handle as pointer:
            check(library().gpool_object_publish(pointer, ctypes.byref(version)), f"publish object '{self.name}'")
        self._draft = False
        self._writable = self._memory_class == ObjectClass.MUTABLE
        return version.value

    # ---- read ----

    def info(self) -> ObjectInfo:
        """Describe the version. Raises Error with EINVAL: it is not published; Stale: PINNABLE, and evicted."""
        filled = _abi.gpool_object_info(size=ctypes.sizeof(_abi.gpool_object_info))
        with self.handle as pointer:
            check(library().gpool_object_info(pointer, ctypes.byref(filled)), f"tell of object '{self.name}'")
        return info_of(filled)

    def __getitem__(self, key: str) -> bytes:
        value, size = ctypes.c_void_p(), ctypes.c_size_t()
        with self.handle as pointer:
            result = library().gpool_object_get(pointer, c_text(key), ctypes.byref(value), ctypes.byref(size))
            if result == -errno.ENOENT:
                raise KeyError(key)
            check(result, f"get '{key}' of object '{self.name}'")
            return ctypes.string_at(value, size.value)

    def items(self) -> Iterator[Tuple[str, bytes]]:
        """Yield the keys and values of the metadata, ordered by key."""
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
        """Return address and bytes of an allocation; valid until close(), for the class PINNABLE while it is pinned."""
        address, size = ctypes.c_uint64(), ctypes.c_uint64()
        with self.handle as pointer:
            result = library().gpool_object_address(pointer, index, ctypes.byref(address), ctypes.byref(size))
            check(result, f"tell the address of allocation {index} of object '{self.name}'")
        return address.value, size.value

    def view(
        self,
        index: int = 0,
        dtype: Any = "uint8",
        shape: Union[int, Sequence[int], None] = None,
        offset: int = 0,
        stream: Optional[Stream] = None,
    ) -> View:
        """Return an allocation as an array: see Block.view(). It is read-only, except before the publication, and for
        the writer of a MUTABLE object. While the view exists, the object stays open, and one of the class PINNABLE
        stays pinned."""
        return View(_Allocation(self, index), self._pool.device, dtype, shape, offset, not self._writable, stream)

    def pin(self) -> ObjectPin:
        """Pin an object of the class PINNABLE until unpin() or the end of a `with`. Raises Stale: it was evicted; close
        it, and open the name again.
        """
        with self.handle as pointer:
            check(library().gpool_object_pin(pointer), f"pin object '{self.name}'")
        with self._lock:
            self._pins += 1
        return ObjectPin(self)

    def unpin(self, after: Optional[Fence] = None) -> None:
        """End a pin of the program; with a fence, when the fence is signaled, without a wait. Raises Error with EINVAL:
        the program has no pin.
        """
        with self._lock:
            if self._pins == 0:
                raise Error(errno.EINVAL, f"cannot unpin object '{self.name}': the program has not pinned it")
            self._pins -= 1
        with self.handle as pointer:
            if after is None:
                result = library().gpool_object_unpin(pointer)
            else:
                result = library().gpool_object_unpin_after(pointer, after.fence)
        if result < 0:
            with self._lock:
                self._pins += 1
        check(result, f"unpin object '{self.name}'")

    @property
    def pinnable(self) -> bool:
        """Return True if the object is published and must be pinned to be used."""
        return self._memory_class == ObjectClass.PINNABLE and not self._draft


class _Allocation:
    """An allocation of an object as the source of views."""

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
