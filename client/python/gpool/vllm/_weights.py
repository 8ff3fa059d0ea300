"""Weights that engines share: the model loader "gpool" (--load-format gpool).

The first engine loads a model by another format, publishes its tensors in one ephemeral object, and uses the parameters
there. The next ones map the object. It is kept while an engine has it open, and afterwards until the memory is needed.
An engine that sleeps does not have it open.

Each engine has the buffers for itself: vLLM writes some of them, and uses others again in the next model that it makes,
as the tables of rotary embeddings.

The weights of such a model are read-only: vLLM cannot replace them while the engine runs.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
import vllm
from torch import nn
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.model_executor.model_loader.weight_cache.protocol import check_ipc_quant_support
from vllm.model_executor.utils import weights_already_processed
from vllm.utils.torch_utils import set_default_torch_dtype

from .._errors import Error, NotFound, Stale
from .._object import Object, ObjectClass
from .._options import Usage
from .._pool import Pool
from .._range import Range
from .._view import View
from ._identity import weights_of
from ._settings import Settings, attach, settings_of

if TYPE_CHECKING:
    from vllm.config import LoadConfig, ModelConfig, VllmConfig

logger = logging.getLogger("vllm.gpool")

FORMAT = 1
"""version of names, metadata and layout"""
ALIGNMENT = 256
KEY = "gpool.vllm.weights"
CONSTANTS_KEY = "gpool.vllm.constants"
RETRIES = 3
CONSTANT_MOST = 256
"""elements of an attribute that is a tensor"""


class Entry(NamedTuple):
    """Describe a tensor of a model."""

    name: str
    is_parameter: bool
    dtype: str
    shape: List[int]
    offset: int


class Constant(NamedTuple):
    """Describe a tensor that is a plain attribute of a module. Its values are in the metadata."""

    name: str
    dtype: str
    shape: List[int]
    values: List[Any]
    device: str
    """its type"""


class Weights:
    """The weights of a model: an object that is mapped in a range, so that sleep() keeps their addresses.

    Threads: one at a time.
    """

    def __init__(self, pool: Pool, opened: Object, publish: Callable[[], None]) -> None:
        """Map an open object. publish: publishes it again, after it was evicted.

        Raises Error.
        """
        info = opened.info()
        self.name, self._hash = info.name, info.layout_hash
        self._pool = pool
        self._publish = publish
        self._range: Range = pool.reserve_range(info.pages, ObjectClass.EPHEMERAL)
        self._mapped: Optional[Object] = self._range.map(0, self.name)

    @property
    def asleep(self) -> bool:
        """Return whether the weights are not mapped."""
        return self._mapped is None

    def view(self, dtype: str, shape: List[int], offset: int) -> View:
        """Return a tensor of the weights; it must not be read during a sleep."""
        return self._range.view(dtype, shape, offset, readonly=True, sparse=True)

    def sleep(self) -> None:
        """Unmap the object: it may be evicted if no other engine has it open. Raises Busy."""
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None

    def wake(self) -> None:
        """Map the object again; load and publish it if it was evicted. On failure the weights remain asleep.

        Raises NoRoom; Error; RuntimeError: other weights have been published under its name.
        """
        for _ in range(RETRIES):
            if self._mapped is not None:
                return
            try:
                self._map()
            except (NotFound, Stale):
                self._publish()
        self._map()

    def _map(self) -> None:
        mapped = self._range.map(0, self.name)
        if mapped.info().layout_hash != self._hash:
            mapped.close()
            raise RuntimeError(f"cannot wake: object '{self.name}' has other weights now; restart the engine")
        self._mapped = mapped


loaded: List[Weights] = []
"""the weights that this process has mapped"""


class _Layers:
    """Remember the layers that vLLM knows, since it refuses a second model with layers of the same names."""

    def __init__(self, config: VllmConfig) -> None:
        self._compilation = config.compilation_config
        self._layers = dict(self._compilation.static_forward_context)
        self._experts = list(self._compilation.static_all_moe_layers)

    def restore(self) -> None:
        """Forget the layers of models that were made since."""
        self._compilation.static_forward_context.clear()
        self._compilation.static_forward_context.update(self._layers)
        self._compilation.static_all_moe_layers[:] = self._experts


class GpoolModelLoader(BaseModelLoader):  # type: ignore[misc]
    """Map a model's weights from the pool, or load and publish them."""

    def __init__(self, load_config: LoadConfig) -> None:
        """model_loader_extra_config: settings as of the connector; without them, those of the connector."""
        super().__init__(load_config)
        self._own: Dict[str, Any] = dict(load_config.model_loader_extra_config or {})
        self._default = DefaultModelLoader(_with_format(load_config))
        self._pool: Optional[Pool] = None

    def download_model(self, model_config: ModelConfig) -> None:
        """Download a model as the format "auto" does."""
        self._default.download_model(model_config)

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Load weights as the format "auto" does."""
        self._default.load_weights(model, model_config)
        _keep_weights(model)

    def load_model(self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = "") -> nn.Module:
        """Return a model whose weights are in the pool, or, if that has no room for them, in private memory."""
        settings = _settings(self._own, vllm_config)
        rank = vllm_config.parallel_config.rank
        pool = self._pool = attach(settings, rank, f"{settings.name or 'vllm-' + vllm_config.instance_id}-weights")
        name = _name(vllm_config, model_config, prefix)
        layers = _Layers(vllm_config)
        for _ in range(RETRIES):
            layers.restore()
            try:
                opened = pool.open_object(name)
            except NotFound:
                pass
            else:
                model = self._map(pool, opened, layers, vllm_config, model_config, prefix)
                if model is not None:
                    return model
                break
            model = super().load_model(vllm_config, model_config, prefix)
            try:
                check_ipc_quant_support(model)
                made = _publish(pool, name, model, settings.private)
            except Stale:
                continue  # another engine has published them meanwhile
            except (Error, RuntimeError) as error:
                logger.warning("gpool: the weights are not shared: %s", error)
                return model
            weights = self._weights(pool, made, layers, vllm_config, model_config, prefix)
            _assign(model, weights, _entries(made))
            made.close()
            _use_torch_linear(model)
            loaded.append(weights)
            return model
        layers.restore()
        return super().load_model(vllm_config, model_config, prefix)

    def _weights(
        self, pool: Pool, opened: Object, before: _Layers, config: VllmConfig, model_config: ModelConfig, prefix: str
    ) -> Weights:
        """Map an object. before: the layers that vLLM knew before the model was made. Raises Error."""

        def publish() -> None:
            now = _Layers(config)
            before.restore()
            try:
                with set_current_vllm_config(config):
                    model = super(GpoolModelLoader, self).load_model(config, model_config, prefix)
                _publish(pool, opened.name, model, _settings(self._own, config).private).close()
            except Stale:
                pass  # another engine has published them meanwhile
            finally:
                now.restore()

        return Weights(pool, opened, publish)

    def _map(
        self,
        pool: Pool,
        opened: Object,
        layers: _Layers,
        vllm_config: VllmConfig,
        model_config: ModelConfig,
        prefix: str,
    ) -> Optional[nn.Module]:
        """Return a model with the weights of an object; None: they do not fit to it."""
        device = torch.device(self.load_config.device or vllm_config.device_config.device)
        try:
            entries, constants = _entries(opened), _constants(opened)
            weights = self._weights(pool, opened, layers, vllm_config, model_config, prefix)
            with set_default_torch_dtype(model_config.dtype):
                with torch.device("meta"):
                    model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
                check_ipc_quant_support(model)
                _assign(model, weights, entries)
                _set_constants(model, constants, device)
                _keep_weights(model)
                with weights_already_processed():
                    process_weights_after_loading(model, model_config, device)
                _use_torch_linear(model)
            left = _meta_tensors(model)
            if left:
                raise ValueError(f"it lacks {', '.join(left[:3])}")
        except Exception as error:  # whatever a model's classes raise: the files are there
            logger.warning("gpool: the weights in object '%s' cannot be used: %r", opened.name, error, exc_info=True)
            return None
        finally:
            opened.close()
        loaded.append(weights)
        return model.eval()


def _with_format(config: LoadConfig) -> LoadConfig:
    """Return the configuration of the loader that reads files."""
    import copy

    changed = copy.copy(config)
    changed.load_format, changed.model_loader_extra_config = "auto", {}
    return changed


def _settings(own: Dict[str, Any], config: VllmConfig) -> Settings:
    transfer = config.kv_transfer_config
    if not own and transfer is not None and transfer.kv_connector == "GpoolConnector":
        return settings_of(transfer.kv_connector_extra_config)
    return settings_of(own)


def _name(config: VllmConfig, model: ModelConfig, prefix: str) -> str:
    """Return the name of the object with a rank's weights: everything that affects them."""
    parallel = config.parallel_config
    parts = {
        "format": FORMAT,
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "model": weights_of(str(model.model), model.revision),
        "config": model.hf_config.to_dict(),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "device": str(config.device_config.device_type),
        "prefix": prefix,
        "ranks": [parallel.tensor_parallel_size, parallel.enable_expert_parallel, parallel.rank],
    }
    return f"vllm-weights/{hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()}"


# ---- publishing ----


def _tensors(model: nn.Module) -> Iterator[Tuple[str, bool, torch.Tensor]]:
    """Iterate over the parameters and buffers of a model; a tensor with several names has all of them."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield name, True, parameter.data
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield name, False, buffer


def _attributes(model: nn.Module) -> Iterator[Tuple[str, torch.Tensor]]:
    """Iterate over the tensors of a model that are neither parameters nor buffers."""
    for path, module in model.named_modules(remove_duplicate=False):
        for key, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                yield f"{path}.{key}", value


def _constants_of(model: nn.Module) -> List[Constant]:
    """Describe the attributes of a model. Raises RuntimeError: one is large."""
    made = []
    for name, tensor in _attributes(model):
        if tensor.numel() > CONSTANT_MOST:
            raise RuntimeError(f"tensor {name} has {tensor.numel()} elements, more than {CONSTANT_MOST}")
        kind = str(tensor.dtype).replace("torch.", "")
        values = tensor.detach().flatten().tolist()
        made.append(Constant(name, kind, list(tensor.shape), values, tensor.device.type))
    return made


def _publish(pool: Pool, name: str, model: nn.Module, private: bool) -> Object:
    """Publish the tensors of a model, each one once. Raises NoRoom; Stale: the name exists; Error; RuntimeError."""
    entries: List[Entry] = []
    constants = _constants_of(model)
    places: Dict[Tuple[int, Tuple[int, ...], torch.dtype], int] = {}
    copies: List[Tuple[int, torch.Tensor]] = []
    end = 0
    for key, is_parameter, tensor in _tensors(model):
        which = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
        if which not in places or not tensor.numel():
            places[which] = end
            copies.append((end, tensor))
            end = -(-(end + tensor.numel() * tensor.element_size()) // ALIGNMENT) * ALIGNMENT
        kind = str(tensor.dtype).replace("torch.", "")
        entries.append(Entry(key, is_parameter, kind, list(tensor.shape), places[which]))
    with pool.create_object(name, ObjectClass.EPHEMERAL, expect_version=0, private=private) as draft:
        draft.alloc(-(-max(end, 1) // pool.page_bytes), Usage.KV_CACHE)
        for offset, tensor in copies:
            if tensor.numel():
                size = tensor.numel() * tensor.element_size()
                to = torch.from_dlpack(draft.view(0, "uint8", size, offset))
                to.copy_(tensor.contiguous().view(-1).view(torch.uint8))
                del to
        if pool.device.backend == "cuda":
            torch.cuda.synchronize()
        draft[KEY] = json.dumps([entry._asdict() for entry in entries]).encode()
        draft[CONSTANTS_KEY] = json.dumps([constant._asdict() for constant in constants]).encode()
        draft.publish()
    return pool.open_object(name)


# ---- mapping ----


def _entries(opened: Object) -> List[Entry]:
    """Return the description of an object's tensors. Raises ValueError: it is not one of weights; KeyError."""
    _, room = opened.address(0)
    entries = []
    for fields in json.loads(opened[KEY]):
        entry = Entry(**fields)
        dtype = getattr(torch, entry.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"tensor '{entry.name}' has the type '{entry.dtype}'")
        size = dtype.itemsize
        for length in entry.shape:
            if not isinstance(length, int) or length < 0:
                raise ValueError(f"tensor '{entry.name}' has the shape {entry.shape}")
            size *= length
        if not isinstance(entry.offset, int) or entry.offset < 0 or entry.offset + size > room:
            raise ValueError(f"tensor '{entry.name}' ends behind the object")
        entries.append(entry)
    return entries


def _constants(opened: Object) -> List[Constant]:
    """Return the constants in an object. Raises ValueError: a wrong description; TypeError; KeyError."""
    constants = []
    for fields in json.loads(opened[CONSTANTS_KEY]):
        constant = Constant(**fields)
        if not isinstance(getattr(torch, constant.dtype, None), torch.dtype):
            raise ValueError(f"tensor '{constant.name}' has the type '{constant.dtype}'")
        if not isinstance(constant.values, list) or len(constant.values) > CONSTANT_MOST:
            raise ValueError(f"tensor '{constant.name}' has more than {CONSTANT_MOST} values")
        constants.append(constant)
    return constants


def _set_constants(model: nn.Module, constants: List[Constant], device: torch.device) -> None:
    """Set the attributes of a model that are tensors. Raises ValueError: one is missing; RuntimeError."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for constant in constants:
        path, _, leaf = constant.name.rpartition(".")
        if path not in modules or not isinstance(getattr(modules[path], leaf, None), torch.Tensor):
            raise ValueError(f"the model has no attribute '{constant.name}'")
        tensor = torch.tensor(
            constant.values,
            dtype=getattr(torch, constant.dtype),
            device="cpu" if constant.device == "cpu" else device,
        )
        setattr(modules[path], leaf, tensor.reshape(constant.shape))


def _assign(model: nn.Module, weights: Weights, entries: List[Entry]) -> None:
    """Place the tensors of an object in the modules of a model. Raises ValueError: a module is missing."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for entry in entries:
        path, _, leaf = entry.name.rpartition(".")
        if path not in modules:
            raise ValueError(f"the model has no module '{path}'")
        if 0 in entry.shape:
            tensor = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
        else:
            tensor = torch.from_dlpack(weights.view(entry.dtype, entry.shape, entry.offset))
        if entry.is_parameter:
            old = modules[path]._parameters.get(leaf)
            if old is not None and not old.is_meta:
                old.data = tensor
            else:
                parameter = nn.Parameter(tensor, requires_grad=False)
                parameter.__dict__.update(old.__dict__ if old is not None else {})
                modules[path]._parameters[leaf] = parameter
        else:
            old = modules[path]._buffers.get(leaf)
            if old is None or old.is_meta:
                modules[path]._buffers[leaf] = tensor.clone()


def _meta_tensors(model: nn.Module) -> List[str]:
    """Return the names of tensors without memory, also of those in attributes of modules that are objects."""
    left = [name for name, _, tensor in _tensors(model) if tensor.is_meta]
    left += [name for name, tensor in _attributes(model) if tensor.is_meta]
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            inside = getattr(value, "__dict__", {}) if not isinstance(value, (nn.Module, type)) else {}
            left += [
                f"{path}.{key}.{name}"
                for name, each in inside.items()
                if isinstance(each, torch.Tensor) and each.is_meta
            ]
    return left


# ---- the CPU ----


def _keep_weights(model: nn.Module) -> None:
    """On a CPU, make vLLM use the weights as they are, instead of a private packed copy."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        for module in model.modules():
            if hasattr(module, "quant_method") and isinstance(getattr(module, "weight", None), torch.Tensor):
                module._cpu_skip_gemm_dispatch = True


def _use_torch_linear(model: nn.Module) -> None:
    """On a CPU, drop the packed copies that vLLM makes all the same, as of the output layer."""
    for module in model.modules():
        if hasattr(module, "cpu_linear"):
            module.cpu_linear = nn.functional.linear
