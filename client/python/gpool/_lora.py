"""LoRA adapters in PEFT's file format, in pages that engines share."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import json
import reprlib
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi, _native
from ._arrays import HostArray, host_array
from ._errors import check, error
from ._handle import Closing, Handle
from ._library import library
from ._stream import c_fence
from ._text import c_optional, c_text, c_texts, counted
from ._wait import waiting

if TYPE_CHECKING:
    from ._pool import Pool
    from ._stream import Fence


Config = Union[str, Mapping[str, Any]]

_ELEMENTS = {
    "float32": _abi.GPOOL_LORA_F32,
    "float16": _abi.GPOOL_LORA_F16,
    "bfloat16": _abi.GPOOL_LORA_BF16,
}


class Element(enum.IntEnum):
    """The type of the weights in the pool."""

    AS_FILE = _abi.GPOOL_LORA_AS_FILE
    """float16 if the file has only float16, otherwise bfloat16"""
    FLOAT16 = _abi.GPOOL_LORA_F16
    BFLOAT16 = _abi.GPOOL_LORA_BF16


class AdapterState(enum.IntEnum):
    """The state of an adapter."""

    COLD = _abi.GPOOL_LORA_COLD
    LOADING = _abi.GPOOL_LORA_LOADING
    RESIDENT = _abi.GPOOL_LORA_RESIDENT
    """in the pool when its state was last read"""


class Tier(enum.IntEnum):
    """The fastest tier that contains an adapter."""

    COLD = _abi.GPOOL_LORA_TIER_COLD
    """only files, or the content that was registered"""
    WARM = _abi.GPOOL_LORA_TIER_WARM
    """a copy in host memory"""
    HOT = _abi.GPOOL_LORA_TIER_HOT
    """the pool, complete"""


class Activity(enum.IntEnum):
    """The activity of an adapter in this process."""

    ABSENT = _abi.GPOOL_LORA_ABSENT
    """not in the pool"""
    QUEUED = _abi.GPOOL_LORA_QUEUED
    """waits for a loader thread"""
    IN_LOAD = _abi.GPOOL_LORA_IN_LOAD
    IDLE = _abi.GPOOL_LORA_IDLE
    """in the pool, not in use by this process"""
    ACTIVE = _abi.GPOOL_LORA_ACTIVE
    """acquired, or released with a fence that is not signaled"""
    EVICTING = _abi.GPOOL_LORA_EVICTING
    """active, but evicted or unloaded by another engine: its pages are freed after the last release"""


class AdapterInfo(NamedTuple):
    """Description of an adapter, with the counters of this process."""

    name: str
    state: AdapterState
    acquired: int
    """unreleased acquisitions of this process"""
    rank_max: int
    modules: int
    layers: int
    pages: int
    element: Element
    hits: int
    """acquisitions without a load"""
    loads: int
    """loads that were published"""
    shared: int
    """acquisitions of an adapter that another engine had loaded"""
    lost: int
    """evictions that were detected at a later use"""
    from_warm: int
    """loads from a copy in host memory"""
    from_cold: int
    """loads from a packed copy in cache_dir; other loads are from the PEFT files"""
    rebalanced: int
    """loads in advance of a request"""
    tier: Tier
    activity: Activity
    used_ms: int
    """time of the last acquisition in this process, in milliseconds since 1970; 0: never"""
    served: int
    """acquisitions by this program, and finished requests of schedulers"""
    targets: Tuple[str, ...]
    """names of the target modules, with a star for the layer"""


class AdapterStats(NamedTuple):
    """Statistics of all adapters of a process; the counters of loads are as in AdapterInfo."""

    registered: int
    resident: int
    """in the pool when their state was last read"""
    active: int
    """acquired adapters"""
    hits: int
    loads: int
    shared: int
    lost: int
    from_warm: int
    from_cold: int
    hot_bytes: int
    """pages of resident adapters"""
    warm_bytes: int
    """all copies in the warm pool, of all engines"""
    cold_bytes: int
    """all packed copies in cache_dir, of all engines"""
    warm_made: int
    """copies stored in the warm pool"""
    warm_full: int
    """copies that were not stored because the warm pool was full"""
    refused: int
    """damaged copies, which were not used"""
    rebalanced: int
    """loads in advance of a request"""
    hot_evictions: int
    """adapters of all engines that the agent has evicted from the pool"""
    warm_evictions: int
    """copies that the agent has evicted from the warm pool"""
    hot_all_bytes: int
    """pages of the adapters of all engines in the pool"""
    hot_limit_bytes: int
    """size of the pool"""
    warm_limit_bytes: int
    """size of the warm pool; 0: none"""
    cold_limit_bytes: int
    """space for copies in the file system of cache_dir; 0: none"""
    hot_utilization: float
    """hot_all_bytes / hot_limit_bytes, from 0 to 1"""
    warm_utilization: float
    cold_utilization: float
    evicted: int
    """adapters that this set has evicted because of hot_adapters or hot_bytes"""
    dropped: int
    """copies that this set has deleted because of warm_adapters or warm_bytes"""


class Matrix(NamedTuple):
    """The addresses of a matrix's tiles: see gpool(3). A tile has 128 columns of all ranks, [rank][128] of 2 bytes."""

    first: int
    """device address of the first tiles, which are adjacent"""
    more: int
    """device address of uint64 [n] with the addresses of further runs of tiles; 0: no further runs"""
    head_tiles: int
    """number of tiles at `first`"""
    run_tiles: int
    """number of tiles in each further run; the last run may have fewer"""


class Weights(NamedTuple):
    """The weights of an adapter in one layer and target. Their addresses are valid while the adapter is acquired."""

    a: Matrix
    """[rank][in]"""
    b: Matrix
    """its transpose: [rank][out]"""
    rank: int
    scale: float


class Acquired:
    """An acquisition, from Adapter.acquire(), until release() or the end of a `with` statement. Threads: any."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._released = False

    def __enter__(self) -> Acquired:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.adapter.adapters.handle.closed:
            self.release()

    def weights(self, layer: int, target: str) -> Weights:
        """Return the weights in a layer and target.

        layer: number of the layer; -1: modules outside all layers. target: path of the module with a star for the
        layer, such as "model.layers.*.self_attn.q_proj".
        Raises NotFound: the adapter has no weights there; Error with EINVAL.
        Cost: a lookup.
        """
        filled = _abi.gpool_lora_weights()
        with self.adapter.adapters.handle as pointer:
            result = library().gpool_lora_weights(
                pointer, self.adapter.id, layer, c_text(target, "target"), ctypes.byref(filled)
            )
            check(result, f"find part '{target}' of layer {layer} of adapter '{self.adapter.name}'")
        return Weights(_matrix(filled.a), _matrix(filled.b), int(filled.rank), float(filled.scale))

    def wait_layer(self, layer: int = -1, timeout_ms: int = -1) -> None:
        """Wait until a layer and all earlier layers are loaded.

        layer: number of a layer of the model; a layer after the adapter's last one is ready with the last one. -1: all
        layers and the modules outside them. timeout_ms: longest wait in milliseconds; -1: no limit.
        Raises TimedOut; Error with EINVAL: layer or timeout_ms is below -1; or the error of the load.
        """
        with self.adapter.adapters.handle as pointer:
            result = waiting(timeout_ms, library().gpool_lora_wait_layer, pointer, self.adapter.id, layer, timeout_ms)
            if result < 0:
                raise error(
                    result, f"wait for layer {layer} of adapter '{self.adapter.name}'", self.adapter.last_error()
                )

    def release(self, after: Optional[Fence] = None) -> None:
        """Release the adapter; a second call does nothing.

        after: release it when this fence is signaled, without waiting.
        Raises Error with EINVAL: not a fence of this process.
        """
        if self._released:
            return
        with self.adapter.adapters.handle as pointer:
            fence = c_fence(after, self.adapter.adapters._pool.handle)
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
        """number for the C library"""

    def __repr__(self) -> str:
        return f"<gpool.Adapter '{self.name}'>"

    def acquire(self, timeout_ms: int = -1) -> Acquired:
        """Load the adapter if it is not resident, and keep it in the pool until it is released: `with adapter.acquire()
        as acquired:`.

        timeout_ms: longest wait for the load in milliseconds; 0: start it without waiting, -1: no limit.
        Raises TimedOut: it is being loaded; NoRoom: the pool's pages are in use; NotFound: its files do not exist;
        Busy: another engine has unloaded it; Error with EINVAL (its files have changed, or timeout_ms is below -1), EIO
        (its files cannot be read).
        Cost: a lookup and a pin if it is resident; otherwise its load.
        """
        with self.adapters.handle as pointer:
            undo = lambda: library().gpool_lora_release(pointer, self.id, _abi.gpool_fence())  # noqa: E731
            result = waiting(timeout_ms, library().gpool_lora_acquire, pointer, self.id, timeout_ms, undo=undo)
            if result < 0:
                raise error(result, f"acquire adapter '{self.name}'", self.last_error())
        return Acquired(self)

    def acquire_async(self, timeout_ms: int = -1) -> Acquired:
        """Acquire the adapter without waiting for its weights, only for its pages; see Acquired.wait_layer().

        Release it with a fence recorded after all queued work, even if the load has failed. From then on other engines
        can use the adapter.
        Raises as acquire().
        Cost: as acquire(), without the load.
        """
        with self.adapters.handle as pointer:
            undo = lambda: library().gpool_lora_release(pointer, self.id, _abi.gpool_fence())  # noqa: E731
            result = waiting(timeout_ms, library().gpool_lora_acquire_async, pointer, self.id, timeout_ms, undo=undo)
            if result < 0:
                raise error(result, f"start the load of adapter '{self.name}'", self.last_error())
        return Acquired(self)

    def prefetch(self) -> None:
        """Start the load of the adapter if it is not resident. It may be evicted again before it is acquired.

        Raises Error with EINVAL.
        Cost: queues the load.
        """
        self._call("prefetch")

    def unload(self) -> None:
        """Remove the adapter from the pool for all engines. If another engine has acquired it, its last release removes
        it.

        Raises Busy: it is acquired in this process, or being loaded.
        Cost: one request to the agent.
        """
        self._call("unload")

    def unregister(self) -> None:
        """Unregister the adapter in this process. Its pages remain for other engines until they are evicted.

        Raises Busy: it is acquired, or being loaded.
        """
        self._call("unregister")

    def restrict(self, tenants: Sequence[str]) -> None:
        """Restrict the adapter to tenants, before its first load. The agent lets no other tenant open or publish it.

        tenants: names of tenants, with the tenant of this session.
        Raises Busy: it has been loaded; Error with EINVAL (no valid names, or the set is private), EPERM (the tenant of
        this session is not among them).
        """
        texts = c_texts(tenants, "tenants")
        names = (ctypes.c_char_p * len(texts))(*texts)
        with self.adapters.handle as pointer:
            check(library().gpool_lora_restrict(pointer, self.id, names, len(tenants)), f"restrict '{self.name}'")

    def last_error(self) -> str:
        """Return why the last load failed, or an empty text if it did not fail. Raises Error with EINVAL."""
        text = ctypes.create_string_buffer(_abi.GPOOL_LORA_REASON_BYTES)
        with self.adapters.handle as pointer:
            check(library().gpool_lora_last_error(pointer, self.id, text), f"read the state of adapter '{self.name}'")
        return text.value.decode(errors="replace")

    def info(self) -> AdapterInfo:
        """Return the state of the adapter. Raises Error with EINVAL. Cost: one lock for each target."""
        filled = _abi.gpool_lora_info(size=ctypes.sizeof(_abi.gpool_lora_info))
        with self.adapters.handle as pointer:
            check(
                library().gpool_lora_info(pointer, self.id, ctypes.byref(filled)),
                f"read the state of adapter '{self.name}'",
            )
            targets = tuple(self._target(pointer, index) for index in range(filled.targets))
        values = {name: getattr(filled, name) for name in AdapterInfo._fields}
        values["name"] = values["name"].decode(errors="replace")
        values["state"], values["element"] = AdapterState(filled.state), Element(filled.element)
        values["tier"], values["activity"] = Tier(filled.tier), Activity(filled.activity)
        values["targets"] = targets
        return AdapterInfo(**values)

    def _target(self, pointer: Any, index: int) -> str:
        text = ctypes.create_string_buffer(_abi.GPOOL_LORA_TARGET_BYTES)
        check(library().gpool_lora_target_name(pointer, self.id, index, text), f"read adapter '{self.name}'")
        return text.value.decode(errors="replace")

    def _call(self, verb: str) -> None:
        with self.adapters.handle as pointer:
            check(getattr(library(), f"gpool_lora_{verb}")(pointer, self.id), f"{verb} adapter '{self.name}'")


class Adapters(Closing):
    """The adapters of a process in one pool, from Pool.adapters() until close(), the end of a `with` statement, or the
    close of the pool.

    Threads: any.
    """

    handle: Handle

    def __init__(
        self,
        pool: Pool,
        cache_dir: Optional[str],
        warm: Optional[Pool],
        int8: bool,
        private: bool,
        share_pages: bool,
        element: Element,
        load_threads: int,
        salt: Tuple[int, int],
        hot_adapters: int,
        hot_bytes: int,
        warm_adapters: int,
        warm_bytes: int,
        idle_ms: int,
    ) -> None:
        """Create a set of adapters; for this package only: see Pool.adapters()."""
        self._pool = pool
        options = _abi.gpool_lora_options(
            size=ctypes.sizeof(_abi.gpool_lora_options),
            flags=(_abi.GPOOL_LORA_INT8 if int8 else 0)
            | (_abi.GPOOL_LORA_PRIVATE if private else 0)
            | (_abi.GPOOL_LORA_SHARE_PAGES if share_pages else 0),
            element=element,
            load_threads=load_threads,
            cache_dir=c_optional(cache_dir, "cache_dir"),
            salt=salt,
            hot_adapters=hot_adapters,
            hot_bytes=hot_bytes,
            warm_adapters=warm_adapters,
            warm_bytes=warm_bytes,
            idle_ms=idle_ms,
        )
        if warm is not None and not isinstance(warm, _native.Pool):
            raise TypeError(f"warm is {warm!r}, which is not a Pool")
        pointer = ctypes.c_void_p()
        with contextlib.ExitStack() as calls:
            attached = calls.enter_context(pool.handle)
            options.warm = calls.enter_context(warm.handle) if warm is not None else None
            check(library().gpool_lora_create(attached, options, ctypes.byref(pointer)), "create a set of adapters")
        assert pointer.value
        self.handle = Handle(pointer.value, "adapters", pool.handle)

    def close(self) -> None:
        """Cancel loads in progress and destroy the set; a second call does nothing. Raises Busy: an adapter is
        acquired.
        """
        if not self._pool.closed:
            with self._pool.handle:
                self.handle.close(library().gpool_lora_destroy)

    def register(self, name: str, folder: str) -> Adapter:
        """Register a PEFT directory, with adapter_config.json and adapter_model.safetensors, under a name.

        The rank of a module is the number of rows of its lora_A, also in its scale, lora_alpha / rank; `r` and
        `rank_pattern` of the configuration must be positive numbers, but need not equal it.
        Raises Error with EINVAL (the folder is empty, or its files are invalid; the text names the cause), EEXIST (the
        name is taken); NotFound.
        Cost: reads the headers of the files, but no weights.
        """
        number, why = ctypes.c_uint32(), ctypes.create_string_buffer(_abi.GPOOL_LORA_REASON_BYTES)
        with self.handle as pointer:
            result = library().gpool_lora_register(
                pointer, c_text(name), c_text(folder, "folder"), ctypes.byref(number), why
            )
            if result < 0:
                raise error(result, f"register adapter '{name}'", why.value.decode(errors="replace"))
        return Adapter(self, name, number.value)

    def register_buffer(self, name: str, weights: Any, config: Config) -> Adapter:
        """Register an adapter whose files are in memory.

        weights: content of adapter_model.safetensors, bytes or another object with a contiguous buffer; it is copied.
        config: content of adapter_config.json, as text or as a mapping.
        Raises as register(); Error with EMFILE: an adapter of this kind needs two file descriptors; TypeError: weights
        has no contiguous buffer, or config is of another type; ValueError: config cannot be encoded as JSON.
        Cost: copies the weights and reads them once.
        """
        try:
            view = memoryview(weights).cast("B")
        except TypeError:
            raise TypeError(f"weights is {reprlib.repr(weights)}, which has no contiguous buffer") from None
        if view.readonly and not isinstance(weights, bytes):
            weights = bytes(view)
        buffer: Any = weights if view.readonly else (ctypes.c_char * view.nbytes).from_buffer(view)
        address = ctypes.cast(buffer, ctypes.c_void_p)
        return self._register("buffer", name, config, address, view.nbytes)

    def register_arrays(self, name: str, arrays: Mapping[str, Any], config: Config) -> Adapter:
        """Register an adapter whose matrices are arrays in host memory.

        arrays: matrices by the names that they have in PEFT's files, such as
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"; float32, float16 or bfloat16, of any library
        with DLPack or numpy's array interface, with any strides. They are copied.
        config: as in register_buffer().
        Raises as register_buffer(); TypeError: an object is not an array, or has another element type; ValueError: an
        array has not two dimensions, or is in the memory of a GPU.
        Cost: as register_buffer(); an array that is not contiguous is copied element by element.
        """
        if not isinstance(arrays, Mapping):
            raise TypeError(f"arrays is {reprlib.repr(arrays)}, which is not a mapping")
        described = (_abi.gpool_lora_array * len(arrays))()
        owners = [host_array(array, f"array '{key}'") for key, array in arrays.items()]
        for filled, key, owner in zip(described, arrays, owners):
            _describe(filled, key, owner)
        adapter = self._register("arrays", name, config, described, len(arrays))
        del owners  # the arrays are copied
        return adapter

    def _register(self, what: str, name: str, config: Config, data: Any, count: int) -> Adapter:
        number, why = ctypes.c_uint32(), ctypes.create_string_buffer(_abi.GPOOL_LORA_REASON_BYTES)
        text = _json(config)
        with self.handle as pointer:
            result = getattr(library(), f"gpool_lora_register_{what}")(
                pointer, c_text(name), c_text(text, "config"), data, count, ctypes.byref(number), why
            )
            if result < 0:
                raise error(result, f"register adapter '{name}'", why.value.decode(errors="replace"))
        return Adapter(self, name, number.value)

    def find(self, name: str) -> Adapter:
        """Return the registered adapter with a name. Raises NotFound. Cost: a lookup."""
        number = ctypes.c_uint32()
        with self.handle as pointer:
            check(library().gpool_lora_find(pointer, c_text(name), ctypes.byref(number)), f"find adapter '{name}'")
        return Adapter(self, name, number.value)

    def stats(self) -> AdapterStats:
        """Return the counters of all adapters.

        Raises Error.
        Cost: proportional to the number of adapters, objects of the warm pool and files in cache_dir.
        """
        filled = _abi.gpool_lora_stats(size=ctypes.sizeof(_abi.gpool_lora_stats))
        with self.handle as pointer:
            check(library().gpool_lora_stats(pointer, ctypes.byref(filled)), "read the statistics of the adapters")
        return AdapterStats(*(getattr(filled, name) for name in AdapterStats._fields))


def _json(config: Config) -> str:
    """Return the content of adapter_config.json. Raises TypeError; ValueError."""
    if isinstance(config, str):
        return config
    if not isinstance(config, Mapping):
        raise TypeError(f"config is {reprlib.repr(config)}, which is neither a str nor a mapping")
    try:
        return json.dumps(dict(config))
    except (TypeError, ValueError) as wrong:
        raise type(wrong)(f"config cannot be encoded as JSON: {wrong}") from None


def _describe(filled: Any, key: str, array: HostArray) -> None:
    """Fill in a struct gpool_lora_array."""
    if len(array.shape) != 2:
        raise ValueError(f"array '{key}' has {counted(len(array.shape), 'dimension')}; it must have 2")
    if array.dtype.name not in _ELEMENTS:
        raise TypeError(f"array '{key}' is of {array.dtype.name}; only {', '.join(_ELEMENTS)} are supported")
    filled.name, filled.data = c_text(key, "the name of an array"), array.address
    filled.rows, filled.columns = array.shape
    filled.row_stride, filled.column_stride = array.strides
    filled.element = _ELEMENTS[array.dtype.name]


def _matrix(filled: Any) -> Matrix:
    return Matrix(int(filled.first), int(filled.more), int(filled.head_tiles), int(filled.run_tiles))
