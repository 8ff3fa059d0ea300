"""LoRA adapters, as PEFT writes them, in pages that engines share."""

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
    """What weights become."""

    AS_FILE = _abi.GPOOL_LORA_AS_FILE
    """float16 where the file has nothing else, else bfloat16"""
    FLOAT16 = _abi.GPOOL_LORA_F16
    BFLOAT16 = _abi.GPOOL_LORA_BF16


class AdapterState(enum.IntEnum):
    """Where an adapter is."""

    COLD = _abi.GPOOL_LORA_COLD
    LOADING = _abi.GPOOL_LORA_LOADING
    HERE = _abi.GPOOL_LORA_RESIDENT
    """it was in the pool when it was last looked at"""


class AdapterInfo(NamedTuple):
    """What a process knows of an adapter; counts are its own."""

    name: str
    state: AdapterState
    acquired: int
    """times, by this process"""
    rank_max: int
    modules: int
    layers: int
    pages: int
    element: Element
    hits: int
    """acquired without a load"""
    loads: int
    """brought into the pool and published"""
    shared: int
    """found in the pool, loaded by another engine"""
    lost: int
    """found to have left the pool since its last use"""
    from_warm: int
    """of the loads: from a copy in host memory"""
    from_cold: int
    """from one in the cold folder; the others are from PEFT's files"""
    rebalanced: int
    """of the loads: brought back before somebody asked for it"""


class AdapterStatistics(NamedTuple):
    """Of all adapters of a process; counts of loads as in AdapterInfo."""

    registered: int
    resident: int
    """in the pool when they were last looked at"""
    active: int
    """acquired"""
    hits: int
    loads: int
    shared: int
    lost: int
    from_warm: int
    from_cold: int
    hot_bytes: int
    """pages of those that are resident"""
    warm_bytes: int
    """of all copies in the warm pool, whoever has made them"""
    cold_bytes: int
    """of all in the cold folder, likewise"""
    warm_made: int
    """copies that were put into the warm pool"""
    warm_full: int
    """that were not, since there was no room"""
    refused: int
    """copies that were not what they should be, and were not taken"""
    rebalanced: int
    """brought back before somebody asked for it"""


class Matrix(NamedTuple):
    """Where the tiles of a matrix lie, which are 128 columns of all ranks, [rank][128] of 2 bytes; see gpool(3)."""

    first: int
    """device address of the first tiles, side by side"""
    more: int
    """device address of uint64 [n]: where each further run of tiles begins; 0: there is none"""
    head_tiles: int
    """how many lie at `first`"""
    run_tiles: int
    """how many in each further run; the last may have fewer"""


class Part(NamedTuple):
    """An adapter's part in one layer and target. Addresses are good while it is acquired."""

    a: Matrix
    """[rank][in]"""
    b: Matrix
    """its transpose: [rank][out]"""
    rank: int
    scale: float


class Acquired:
    """What Adapter.acquire() returns: the adapter is in the pool until release(), or the end of a `with`."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._released = False

    def __enter__(self) -> Acquired:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.adapter.adapters.handle.closed:
            self.release()

    def part(self, layer: int, target: str) -> Part:
        """layer: its number; -1: of modules outside of all layers. target: "model.layers.*.self_attn.q_proj". Raises
        NotFound: it has none there.
        """
        filled = _abi.gpool_lora_weights()
        with self.adapter.adapters.handle as pointer:
            result = library().gpool_lora_weights(pointer, self.adapter.id, layer, c_text(target), ctypes.byref(filled))
            check(result, f"find part '{target}' of layer {layer} of adapter '{self.adapter.name}'")
        return Part(_matrix(filled.a), _matrix(filled.b), int(filled.rank), float(filled.scale))

    def wait(self, layer: int = -1, timeout_ms: int = -1) -> None:
        """Until that layer is there, with all before it; -1: all of it, with the modules outside of all layers. Raises
        TimedOut, or why the load failed.
        """
        with self.adapter.adapters.handle as pointer:
            result = waiting(timeout_ms, library().gpool_lora_wait_layer, pointer, self.adapter.id, layer, timeout_ms)
            if result < 0:
                raise error(result, f"wait for layer {layer} of adapter '{self.adapter.name}'", self.adapter.why())

    def release(self, after: Optional[Fence] = None) -> None:
        """With a fence when that is reached, without waiting. A second call does nothing."""
        if self._released:
            return
        with self.adapter.adapters.handle as pointer:
            fence = after.fence if after is not None else _abi.gpool_fence()
            check(
                library().gpool_lora_release(pointer, self.adapter.id, fence), f"release adapter '{self.adapter.name}'"
            )
        self._released = True


class Adapter:
    """One that is registered, from Adapters.register() or find(). Threads: any."""

    def __init__(self, adapters: Adapters, name: str, number: int) -> None:
        self.adapters = adapters
        self.name = name
        self.id = number
        """its number, for the C library"""

    def __repr__(self) -> str:
        return f"<gpool.Adapter '{self.name}'>"

    def acquire(self, timeout_ms: int = -1) -> Acquired:
        """In the pool until it is released: `with adapter.acquire() as acquired:`.

        timeout_ms: longest wait for its load, milliseconds; 0: begin it and do not wait, -1: no limit. Raises TimedOut:
        it is being loaded; NoRoom: what is in the pool is in use; NotFound: its files are gone; Error with EINVAL: its
        files are not what they were; Busy: somebody has unloaded it while it is acquired here.
        Cost: where it is in the pool, mostly the interpreter's time; else its load.
        """
        with self.adapters.handle as pointer:
            undo = lambda: library().gpool_lora_release(pointer, self.id, _abi.gpool_fence())  # noqa: E731
            result = waiting(timeout_ms, library().gpool_lora_acquire, pointer, self.id, timeout_ms, undo=undo)
            if result < 0:
                raise error(result, f"acquire adapter '{self.name}'", self.why())
        return Acquired(self)

    def begin(self, timeout_ms: int = -1) -> Acquired:
        """As acquire(), and does not wait for the weights, only for their place: Acquired.wait() says which layers are
        there. Released with a fence behind all work that was queued, whatever came of it; then other engines may have
        it, too."""
        with self.adapters.handle as pointer:
            undo = lambda: library().gpool_lora_release(pointer, self.id, _abi.gpool_fence())  # noqa: E731
            result = waiting(timeout_ms, library().gpool_lora_acquire_async, pointer, self.id, timeout_ms, undo=undo)
            if result < 0:
                raise error(result, f"begin adapter '{self.name}'", self.why())
        return Acquired(self)

    def prefetch(self) -> None:
        """Begin to load it, if need be. It may leave again before it is acquired."""
        self._call("prefetch")

    def unload(self) -> None:
        """Out of the pool, for all engines. Raises Busy: it is acquired, here or elsewhere, where it goes with its last
        use.
        """
        self._call("unload")

    def unregister(self) -> None:
        """Its pages stay for other engines until they are needed. Raises Busy: it is acquired, or being loaded."""
        self._call("unregister")

    def why(self) -> str:
        """Why its last load failed; empty: it did not."""
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
    """The adapters of a process on one pool, from Pool.adapters(); there until close(), the end of a `with`, or the
    pool's.
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
        """The package's own."""
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
                pass  # one is acquired; Pool.close() says so

    def close(self) -> None:
        """Waits for loads that are under way. A second call does nothing. Raises Busy: one is acquired."""
        if not self._pool.closed:
            with self._pool.handle:
                self.handle.close(library().gpool_lora_destroy)

    def register(self, name: str, folder: str) -> Adapter:
        """Make an adapter known: PEFT's folder with adapter_config.json and adapter_model.safetensors. Headers are
        read, no weights.

        Raises Error with EINVAL: the files are not what they have to be, as the text says; EEXIST: the name is taken;
        NotFound.
        """
        number, why = ctypes.c_uint32(), ctypes.create_string_buffer(_abi.GPOOL_LORA_REASON_BYTES)
        with self.handle as pointer:
            result = library().gpool_lora_register(pointer, c_text(name), c_text(folder), ctypes.byref(number), why)
            if result < 0:
                raise error(result, f"register adapter '{name}'", why.value.decode(errors="replace"))
        return Adapter(self, name, number.value)

    def find(self, name: str) -> Adapter:
        """One that is registered, by its name. Raises NotFound."""
        number = ctypes.c_uint32()
        with self.handle as pointer:
            check(library().gpool_lora_find(pointer, c_text(name), ctypes.byref(number)), f"find adapter '{name}'")
        return Adapter(self, name, number.value)

    def statistics(self) -> AdapterStatistics:
        """Cost: looks at each adapter, at each object of the warm pool and at each file in the cold folder."""
        filled = _abi.gpool_lora_stats(size=ctypes.sizeof(_abi.gpool_lora_stats))
        with self.handle as pointer:
            check(library().gpool_lora_stats(pointer, ctypes.byref(filled)), "count adapters")
        return AdapterStatistics(*(getattr(filled, name) for name in AdapterStatistics._fields))


def _matrix(filled: Any) -> Matrix:
    return Matrix(int(filled.first), int(filled.more), int(filled.head_tiles), int(filled.run_tiles))
