"""vLLM on gpool: KV cache memory that engines share, through vLLM's connector interface.

    vllm serve MODEL --prefix-caching-hash-algo sha256_cbor --kv-transfer-config \\
        '{"kv_connector": "GpoolConnector", "kv_connector_module_path": "gpool.vllm", "kv_role": "kv_both"}'

Works with one minor version of vLLM (gpool.vllm._version). client/python/README.md describes the parts.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._adapters import publish_adapter
from ._plugin import register

if TYPE_CHECKING:
    from ._connector import GpoolConnector
    from ._nixl import NixlConnector
    from ._sleep import Worker

__all__ = ["GpoolConnector", "NixlConnector", "Worker", "publish_adapter", "register"]
_MODULES = {"GpoolConnector": "._connector", "NixlConnector": "._nixl", "Worker": "._sleep"}


def __getattr__(name: str) -> Any:
    """Import a class at its first use, after the check of vLLM's version. Raises ImportError: another version."""
    if name not in _MODULES:
        raise AttributeError(f"module 'gpool.vllm' has no attribute '{name}'")
    from ._version import check_version

    check_version()
    return getattr(importlib.import_module(_MODULES[name], __name__), name)
