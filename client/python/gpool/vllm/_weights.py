"""Weights that engines share: the model loader "gpool" (--load-format gpool).

The first engine loads a model with another loader, publishes its tensors in one ephemeral object, and uses the
parameters in this object. Later engines map the object. It is kept while an engine has it open, and afterwards until
its memory is needed. An engine closes it while it sleeps.

Buffers are private to each engine: vLLM writes to some of them, and reuses others, such as the tables of rotary
embeddings, in the next model that it creates.

The weights of such a model are read-only: vLLM cannot replace them while the engine runs.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import TYPE_CHECKING, Any, Dict, List, Optional

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
from .._pool import Pool
from ..torch_weights import RETRIES, ModelWeights, meta_tensors, publish
from ._identity import weights_of
from ._settings import Settings, attach, settings_of

if TYPE_CHECKING:
    from vllm.config import LoadConfig, ModelConfig, VllmConfig

logger = logging.getLogger("vllm.gpool")

FORMAT = 2
"""version of names, metadata and layout"""
loaded: List[ModelWeights] = []
"""the weights that this process has mapped"""


class _Layers:
    """The layers that vLLM has registered. It refuses a second model with layers of the same names."""

    def __init__(self, config: VllmConfig) -> None:
        self._compilation = config.compilation_config
        self._layers = dict(self._compilation.static_forward_context)
        self._experts = list(self._compilation.static_all_moe_layers)

    def restore(self) -> None:
        """Remove the layers of models that were created later."""
        self._compilation.static_forward_context.clear()
        self._compilation.static_forward_context.update(self._layers)
        self._compilation.static_all_moe_layers[:] = self._experts


class GpoolModelLoader(BaseModelLoader):  # type: ignore[misc]
    """Map a model's weights from the pool, or load and publish them."""

    def __init__(self, load_config: LoadConfig) -> None:
        """Read the settings from model_loader_extra_config; if it is empty, use those of the connector."""
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
        """Return a model whose weights are in the pool or, if they cannot be shared, in private memory."""
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
                made = publish(pool, name, model, memory_class=ObjectClass.EPHEMERAL, private=settings.private)
            except Stale:
                continue  # another engine has published them in the meantime
            except (Error, RuntimeError) as error:
                logger.warning("gpool: the weights are not shared: %s", error)
                return model
            weights = self._weights(pool, made, layers, vllm_config, model_config, prefix)
            weights.assign(model)
            made.close()
            _use_torch_linear(model)
            loaded.append(weights)
            return model
        layers.restore()
        return super().load_model(vllm_config, model_config, prefix)

    def _weights(
        self, pool: Pool, opened: Object, before: _Layers, config: VllmConfig, model_config: ModelConfig, prefix: str
    ) -> ModelWeights:
        """Map an object. before: the layers that vLLM knew before the model was made. Raises Error."""

        def publish_again() -> None:
            now = _Layers(config)
            before.restore()
            try:
                with set_current_vllm_config(config):
                    model = super(GpoolModelLoader, self).load_model(config, model_config, prefix)
                private = _settings(self._own, config).private
                publish(pool, opened.name, model, memory_class=ObjectClass.EPHEMERAL, private=private).close()
            except Stale:
                pass  # another engine has published them in the meantime
            finally:
                now.restore()

        return ModelWeights(pool, opened, publish_again)

    def _map(
        self,
        pool: Pool,
        opened: Object,
        layers: _Layers,
        vllm_config: VllmConfig,
        model_config: ModelConfig,
        prefix: str,
    ) -> Optional[nn.Module]:
        """Return a model with the weights of an object; None: the weights do not match the model."""
        device = torch.device(self.load_config.device or vllm_config.device_config.device)
        try:
            weights = self._weights(pool, opened, layers, vllm_config, model_config, prefix)
            with set_default_torch_dtype(model_config.dtype):
                with torch.device("meta"):
                    model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
                check_ipc_quant_support(model)
                weights.assign(model, device)
                _keep_weights(model)
                with weights_already_processed():
                    process_weights_after_loading(model, model_config, device)
                _use_torch_linear(model)
            left = meta_tensors(model)
            if left:
                raise ValueError(f"it lacks {', '.join(left[:3])}")
        except Exception as error:  # classes of models raise any exception; the files can still be read
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
    if not own and transfer is not None:
        extra = transfer.kv_connector_extra_config
        if transfer.kv_connector == "GpoolConnector":
            return settings_of(extra)
        for child in extra.get("connectors", []) if transfer.kv_connector == "MultiConnector" else []:
            if child.get("kv_connector") == "GpoolConnector":
                return settings_of(child.get("kv_connector_extra_config", {}))
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


# ---- the CPU ----


def _keep_weights(model: nn.Module) -> None:
    """On a CPU, make vLLM use the weights as they are, instead of a private packed copy."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        for module in model.modules():
            if hasattr(module, "quant_method") and isinstance(getattr(module, "weight", None), torch.Tensor):
                module._cpu_skip_gemm_dispatch = True


def _use_torch_linear(model: nn.Module) -> None:
    """On a CPU, remove the packed copies that vLLM makes nevertheless, such as that of the output layer."""
    for module in model.modules():
        if hasattr(module, "cpu_linear"):
            module.cpu_linear = nn.functional.linear
