"""The entry point of the group vllm.general_plugins, which vLLM calls in each of its processes."""

from __future__ import annotations

import logging

from ._adapters import register_resolver
from ._version import mismatch

logger = logging.getLogger("vllm.gpool")


def register() -> None:
    """Register the model loader, the resolver of adapters, the connector and, on a CPU, the attention backend.

    With another minor version of vLLM, only log the mismatch. May be called several times.
    """
    why = mismatch()
    if why:
        logger.warning("%s. Its connector will be refused.", why)
        return
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _register_cpu_backend()
    _register_loader()
    _register_connector()
    register_resolver()


def _register_cpu_backend() -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_ATTN, "gpool.vllm._cpu.Backend")


def _register_connector() -> None:
    """Register the connector's name, by which MultiConnector finds the class of its statistics."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    try:
        KVConnectorFactory.register_connector("GpoolConnector", "gpool.vllm", "GpoolConnector")
    except ValueError:
        pass  # it is already registered


def _register_loader() -> None:
    from vllm.model_executor import model_loader

    if "gpool" not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
        from ._weights import GpoolModelLoader

        model_loader.register_model_loader("gpool")(GpoolModelLoader)
