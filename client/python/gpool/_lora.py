"""LoRA adapters, in PEFT's format, in pages that engines share."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Tuple

from . import _abi
from ._errors import Error, check, error
from ._handle import Handle
from ._library import library
from ._text import c_optional, c_text
from ._wait import waiting

if TYPE_CHECKING:
    from ._pool import Pool
    from ._stream import Fence


class Element(enum.IntEnum):
    """The element type of loaded weights."""

    AS_FILE = _abi.GPOOL_LORA_AS_FILE
    """float16 if the file has only float16, else bfloat16"""
    FLOAT16 = _abi.GPOOL_LORA_F16
    BFLOAT16 = _abi.GPOOL_LORA_BF16


class AdapterState(enum.IntEnum):
    """The tier of an adapter."""

    COLD = _abi.GPOOL_LORA_COLD
    LOADING = _abi.GPOOL_LORA_LOADING
    HERE = _abi.GPOOL_LORA_RESIDENT
    """it was in the pool at the last check"""


class AdapterInfo(NamedTuple):
    """The state of an adapter in a process; the counts are of this process."""

    name: str
    state: AdapterState
    acquired: int
    """number of acquires by this process that have not ended"""
    rank_max: int
    modules: int
    layers: int
    pages: int
    element: Element
    hits: int
    """acquired without a load"""
    loads: int
    """loaded into the pool and published"""
    shared: int
    """found in the pool, loaded by another engine"""
    lost: int
    """found evicted since its last use"""
    from_warm: int
    """loads from a copy in host memory"""
    from_cold: int
    """loads from a copy in the cold folder; the others are from PEFT's files"""
    rebalanced: int
    """loads before the adapter was acquired again"""


class AdapterStatistics(NamedTuple):
    """Figures of all adapters of a process; the counts of loads are those of AdapterInfo."""

    registered: int
    resident: int
    """in the pool at the last check"""
    active: int
    """acquired"""
    hits: int
    loads: int
    shared: int
    lost: int
    from_warm: int
    from_cold: int
    hot_bytes: int
    """pages of resident adapters"""
    warm_bytes: int
    """all copies in the warm pool, of all processes"""
    cold_bytes: int
    """all copies in the cold folder, of all processes"""
    warm_made: int
    """copies stored in the warm pool"""
    warm_full: int
    """copies not stored, for lack of room"""
    refused: int
    """copies with invalid content, which were not used"""
    rebalanced: int
    """loads before the adapter was acquired again"""


class Matrix(NamedTuple):
    """The addresses of a matrix. It consists of tiles of 128 columns of all ranks, [rank][128] of 2 bytes; see
    gpool(3)."""

    first: int
    """device address of the first run of tiles"""
    more: int
    """device address of uint64 [n]: the address of each further run of tiles; 0: none"""
    head_tiles: int
    """number of tiles at `first`"""
    run_tiles: int
    """number of tiles of each further run; the last may have fewer"""


class Part(NamedTuple):
    """The weights of an adapter for one layer and target. The addresses are valid while the adapter is acquired."""

    a: Matrix
    """[rank][in]"""
    b: Matrix
    """transposed: [rank][out]"""
    rank: int
    scale: float


class Acquired:
    """The result of Adapter.acquire(): the adapter is resident until release(), or until the end of a `with`."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._released = False

    def __enter__(self) -> Acquired:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.adapter.adapters.handle.closed:
            self.release()

    def part(self, layer: int, target: str) -> Part:
        """Return the weights for a layer and a target.

        layer: its number; -1: modules outside all layers. target: "model.layers.*.self_attn.q_proj". Raises NotFound:
        the adapter has no such weights.
        """
        filled = _abi.gpool_lora_weights()
        with self.adapter.adapters.handle as pointer:
            result = library().gpool_lora_weights(pointer, self.adapter.id, layer, c_text(target), ctypes.byref(filled))
            check(result, f"find part '{target}' of layer {layer} of adapter '{self.adapter.name}'")
        return Part(_matrix(filled.a), _matrix(filled.b), int(filled.rank), float(filled.scale))

    def wait(self, layer: int = -1, timeout_ms: int = -1) -> None:
        """Wait until the layers up to this one are loaded; -1: all layers, and the modules outside all layers. Raises
        TimedOut, or the cause of a failed load.
        """
        with self.adapter.adapters.handle as pointer:
            result = waiting(timeout_ms, library().gpool_lora_wait_layer, pointer, self.adapter.id, layer, timeout_ms)
            if result < 0:
                raise error(result, f"wait for layer {layer} of adapter '{self.adapter.name}'", self.adapter.why())

    def release(self, after: Optional[Fence] = None) -> None:
        """Release the adapter; with a fence, when the fence is signaled, without a wait. A second call does nothing."""
        if self._released:
            return
        with self.adapter.adapters.handle as pointer:
            fence = after.fence if after is not None else _abi.gpool_fence()
            check(
                library().gpool_lora_release(pointer, self.adapter.id, fence), f"release adapter '{self.adapter.name}'"
            )
        self._released = True


class Adapter:
    """A registered adapter, from Adapters.register() or find(). Threads: any."""

    def __init__(self, adapters: Adapters, name: str, number: int) -> None:
        self.adapters = adapters
        self.name = name
        self.id = number
        """its number, for the C library"""

    def __repr__(self) -> str:
        return f"<gpool.Adapter '{self.name}'>"

    def acquire(self, timeout_ms: int = -1) -> Acquired:
        """Keep the adapter resident until it is released: `with adapter.acquire() as acquired:`.

        timeout_ms: longest wait for its load, milliseconds; 0: start the load and do not wait, -1: no limit. Raises
        TimedOut: it is being loaded; NoRoom: the pool's content is in use; NotFound: its files do not exist; Error with
        EINVAL: its files have changed or are invalid; Busy: another process has unloaded it while it is acquired here.
        Cost: for a resident adapter mostly the interpreter's time; else its load.
        """
        with self.adapters.handle as pointer:
            undo = lambda: library().gpool_lora_release(pointer, self.id, _abi.gpool_fence())  # noqa: E731
            result = waiting(timeout_ms, library().gpool_lora_acquire, pointer, self.id, timeout_ms, undo=undo)
            if result < 0:
                raise error(result, f"acquire adapter '{self.name}'", self.why())
        return Acquired(self)

    def begin(self, timeout_ms: int = -1) -> Acquired:
        """Acquire the adapter without waiting for its weights; only its memory is allocated. Acquired.wait() waits for
        layers. The release is deferred behind all queued work, even if the load fails; then other engines can use the
        adapter, too."""
        with self.adapters.handle as pointer:
            undo = lambda: library().gpool_lora_release(pointer, self.id, _abi.gpool_fence())  # noqa: E731
            result = waiting(timeout_ms, library().gpool_lora_acquire_async, pointer, self.id, timeout_ms, undo=undo)
            if result < 0:
                raise error(result, f"begin adapter '{self.name}'", self.why())
        return Acquired(self)

    def prefetch(self) -> None:
        """Start to load the adapter if it is not resident. It may be evicted before it is acquired."""
        self._call("prefetch")

    def unload(self) -> None:
        """Remove the adapter from the pool, for all engines. Raises Busy: it is acquired, here or elsewhere; then it is
        removed with its last use.
        """
        self._call("unload")

    def unregister(self) -> None:
        """Forget the adapter; its pages stay for other engines until they are needed. Raises Busy: it is acquired, or
        being loaded."""
        self._call("unregister")

    def why(self) -> str:
        """Return the cause of the last failed load; empty if the last load succeeded."""
        text = ctypes.create_string_buffer(_abi.GPOOL_LORA_REASON_BYTES)
        with self.adapters.handle as pointer:
            check(library().gpool_lora_last_error(pointer, self.id, text), f"tell of adapter '{self.name}'")
        return text.value.decode(errors="replace")

    def info(self) -> AdapterInfo:
        filled = _abi.gpool_lora_info(size=ctypes.sizeof(_abi.gpool_lora_info))
        with self.adapters.handle as pointer:
            check(library().gpool_lora_info(pointer, self.id, ctypes.byref(filled)), f"tell of adapter '{self.name}'")
        values = {name: getattr(filled, name) for name in AdapterInfo._fields}
        values["name"] = values["name"].decode(errors="replace")
        values["state"], values["element"] = AdapterState(filled.state), Element(filled.element)
        return AdapterInfo(**values)

    def _call(self, verb: str) -> None:
        with self.adapters.handle as pointer:
            check(getattr(library(), f"gpool_lora_{verb}")(pointer, self.id), f"{verb} adapter '{self.name}'")


class Adapters:
    """The adapters of a process on one pool, from Pool.adapters(); valid until close(), the end of a `with`, or the
    close of the pool.
    """

    handle: Handle

    def __init__(
        self,
        pool: Pool,
        cache_dir: Optional[str],
        warm: Optional[Pool],
        int8: bool,
        private: bool,
        element: Element,
        load_threads: int,
        salt: Tuple[int, int],
    ) -> None:
        """Internal: use Pool.adapters()."""
        self._pool = pool
        options = _abi.gpool_lora_options(
            size=ctypes.sizeof(_abi.gpool_lora_options),
            flags=(_abi.GPOOL_LORA_INT8 if int8 else 0) | (_abi.GPOOL_LORA_PRIVATE if private else 0),
            element=element,
            load_threads=load_threads,
            cache_dir=c_optional(cache_dir),
            salt=salt,
        )
        pointer = ctypes.c_void_p()
        with contextlib.ExitStack() as calls:
            attached = calls.enter_context(pool.handle)
            options.warm = calls.enter_context(warm.handle) if warm is not None else None
            check(library().gpool_lora_create(attached, options, ctypes.byref(pointer)), "open adapters")
        assert pointer.value
        self.handle = Handle(pointer.value, "adapters", pool.handle)

    def __enter__(self) -> Adapters:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except Error:
            if kind is None:
                raise

    def __del__(self) -> None:
        if hasattr(self, "handle") and not sys.is_finalizing():
            try:
                self.close()
            except Error:
                pass  # an adapter is acquired; Pool.close() raises the error

    def close(self) -> None:
        """Close all adapters, after the loads that are under way. A second call does nothing. Raises Busy: an adapter
        is acquired."""
        if not self._pool.closed:
            with self._pool.handle:
                self.handle.close(library().gpool_lora_destroy)

    def register(self, name: str, folder: str) -> Adapter:
        """Register an adapter: a folder of PEFT with adapter_config.json and adapter_model.safetensors. The headers are
        read, the weights are not.

        Raises Error with EINVAL: the files are invalid, for the reason in the text; EEXIST: the name is in use;
        NotFound.
        """
        number, why = ctypes.c_uint32(), ctypes.create_string_buffer(_abi.GPOOL_LORA_REASON_BYTES)
        with self.handle as pointer:
            result = library().gpool_lora_register(pointer, c_text(name), c_text(folder), ctypes.byref(number), why)
            if result < 0:
                raise error(result, f"register adapter '{name}'", why.value.decode(errors="replace"))
        return Adapter(self, name, number.value)

    def find(self, name: str) -> Adapter:
        """Return a registered adapter by its name. Raises NotFound."""
        number = ctypes.c_uint32()
        with self.handle as pointer:
            check(library().gpool_lora_find(pointer, c_text(name), ctypes.byref(number)), f"find adapter '{name}'")
        return Adapter(self, name, number.value)

    def statistics(self) -> AdapterStatistics:
        """Return the figures of all adapters. Cost: linear in the adapters, the objects of the warm pool and the files
        of the cold folder."""
        filled = _abi.gpool_lora_stats(size=ctypes.sizeof(_abi.gpool_lora_stats))
        with self.handle as pointer:
            check(library().gpool_lora_stats(pointer, ctypes.byref(filled)), "count adapters")
        return AdapterStatistics(*(getattr(filled, name) for name in AdapterStatistics._fields))


def _matrix(filled: Any) -> Matrix:
    return Matrix(int(filled.first), int(filled.more), int(filled.head_tiles), int(filled.run_tiles))
